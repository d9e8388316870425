"""Emulated sm_90 kernels with cluster split-K: exact results, and faults planted in their PTX."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("cutlass.cute", reason="the CuTe DSL is not installed")
pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi is not installed")

from cutegemm.build import sm90_plan
from cutegemm.compile.plans import compile_plan
from cutegemm.dtypes import round_to
from cutegemm.errors import EmulationError
from cutegemm.plan import GemmPlan, Operands
from cutegemm.run.emulated import Emulation, emulate
from tests.emulator.snippets import edited
from tests.kernels.plans import asks_for_the_shared_memory_of

FOUR = {"tile": (64, 64, 64), "cluster_k": 4, "schedule": "cooperative", "consumers": 1, "ctas": 4}
PINGPONG = {"tile": (64, 64, 64), "cluster_k": 2, "cluster": (2, 1), "ctas": 4}
TALL = {"tile": (128, 64, 64), "cluster_k": 2, "schedule": "cooperative", "with_c": True, "ctas": 2}
FEW = {**FOUR, "tile": (64, 16, 128), "cluster_k": 2, "epi_tile_n": 8, "ctas": 2}


def of(dtype: str = "bf16", **options: Any) -> Operands:
    return Operands.of(dtype, **{"layout": "nt", **options})


def run(plan: GemmPlan, mnk: tuple[int, int, int], **options: Any) -> tuple[Emulation, Any]:
    """Emulate a plan on small whole numbers. Return the emulation and the expected D."""
    m, n, k = mnk
    rng = np.random.default_rng(m + n + k)
    a, b, c = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((m, k), (k, n), (m, n)))
    alpha, beta = (2, -1) if plan.has_c else (1, 0)
    given = {"c": c, "alpha": alpha, "beta": beta} if plan.has_c else {}
    found = emulate(plan, a, b, **given, **options)
    return found, round_to(plan.operands.d.dtype, alpha * (a @ b) + beta * c)


@pytest.mark.parametrize(
    ("operands", "options", "mnk"),
    [
        (of(), FOUR, (130, 72, 584)),  # 3 x 2 tiles, one after the other
        (of(), FOUR, (64, 64, 72)),  # two CTAs have a k-tile each, two have none
        *[
            pytest.param(*given, marks=pytest.mark.thorough)
            for given in (
                (of(), PINGPONG, (64 * 5 - 3, 72, 200)),  # 3 x 2 clusters of two tiles
                (of(), TALL, (200, 72, 40)),  # the second CTA has no k-tile
                (of().transposed, FEW, (200, 24, 600)),  # 4 x 2 tiles of D^T; each CTA stores eight columns
            )
        ],
    ],
    ids=lambda given: given.a.dtype.name if isinstance(given, Operands) else str(given),
)  # fmt: skip
def test_exact(operands, options, mnk):
    """D is exact, with a deterministic schedule (sends arrive as late as possible) and with a random one."""
    plan = sm90_plan(operands, **options)
    for seed in (None, 1):
        found, expected = run(plan, mnk, seed=seed)
        assert (found.d == expected).all()
        assert asks_for_the_shared_memory_of(plan, found)


def test_each_accumulator_is_sent_once():
    """Each CTA sends each accumulator of a tile once, four at a time: 64 * 64 / 4 st.async of 16 bytes."""
    found, _ = run(sm90_plan(of(), **FOUR), (128, 128, 64))
    sent = {name: count for name, count in found.instructions.items() if name.startswith("st.async")}
    tiles, ctas = 4, 4
    assert sent == {"st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32": tiles * ctas * 64 * 64 // 4}


def test_the_same_bits_in_any_order():
    """Accumulators are added in the order of the CTAs, whichever arrives first. A single CTA adds in another order."""
    plan = sm90_plan(of(out="f32"), **FOUR)
    rng = np.random.default_rng(2)
    a, b = rng.normal(size=(70, 344)), rng.normal(size=(344, 40))
    first = emulate(plan, a, b).d
    assert all(np.array_equal(first, emulate(plan, a, b, seed=seed).d) for seed in range(2))
    alone = emulate(sm90_plan(of(out="f32"), **{**FOUR, "cluster_k": 1}), a, b).d
    assert not np.array_equal(first, alone)
    assert np.allclose(first, alone, atol=1e-3)


# --- faults: a consumer waits for its stages, `consumed`, `accumulators`, and at the end `consumed` again -------------

WAITS = r"mbarrier\.try_wait\.parity\.shared\.b64 P1,[^;]*;\s*@P1"
SPENT, SUMS, LAST = 3, 4, 5  # indices of waits in the text; the waits of the producer and for a stage come first

FAULTS = {
    "accumulators are not waited for": (
        edited(WAITS, "@!P1", SUMS),
        r"ld\.shared.*race: it reads shared memory at .* written by an asynchronous copy",
    ),
    "the release of the exchange buffer is not waited for": (
        edited(WAITS, "@!P1", SPENT),
        r"st\.async.*race: it writes shared memory at .* read by warp",
    ),
    "the exchange buffer is never released": (
        edited(r"(mbarrier\.arrive)\.shared::cluster(\.b64 _, \[%r\d+\], %r\d+);", ""),
        r"deadlock(.|\n)*lacks 16 of 16 arrivals and 0 bytes",
    ),
    "the exchange buffer of the first CTA only is released": (
        edited(r"(mapa\.shared::cluster\.u32 \s*%r\d+, %r\d+), %r\d+;", r"\1, 0;", -1),
        r"deadlock(.|\n)*CTA \(1, 0, 0\) waits for parity 0.*lacks 16 of 16 arrivals and 0 bytes",
    ),
    "one warp too few is waited for": (
        edited(r"mov\.b32 (\s*%r\d+), 16;(\s*mbarrier\.init)", r"mov.b32 \1, 15;\2"),
        r"st\.async.*race: it writes shared memory at .* read by warp",
    ),
    "fewer bytes are expected than arrive": (
        edited(r"mov\.b32 (\s*%r\d+), 16384;", r"mov.b32 \1, 16368;", 1),
        r"deadlock(.|\n)*lacks 0 of 1 arrivals and -16 bytes",
    ),
    "accumulators are sent to another CTA": (
        edited(r"(mapa\.shared::cluster\.u32 \s*%r\d+, %r\d+), 1;", r"\1, 0;"),
        r"st\.async.*it writes shared memory at .* where a copy is still under way",
    ),
    "the barrier is another CTA's": (
        edited(r"(mapa\.shared::cluster\.u32 \s*%r\d+, %r\d+), 1;", r"\1, 0;", 0),
        r"the destination and the mbarrier of a store lie in different CTAs",
    ),
    "a vector is misaligned": (
        edited(r"(st\.async\S* \[%r\d+)\]", r"\1+8]", 0),
        r"is not a multiple of the 16 bytes of the access",
    ),
    "a CTA ends before its accumulators are consumed": (
        edited(WAITS, "@!P1", LAST),
        r"mbarrier\.arrive.* in CTA .*, which has ended",
    ),
    "accumulators are sent while the wgmma is under way": (
        edited(r"(wgmma\.wait_group\.sync\.aligned\s+)0;", r"\g<1>1;"),
        r"it uses %r\d+ while the wgmma of line \d+ is under way",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_found(fault):
    edit, says = FAULTS[fault]
    plan = sm90_plan(of(), **FOUR)
    with pytest.raises(EmulationError, match=says):
        run(plan, (128, 192, 328), ptx=edit(compile_plan(plan).ptx))
