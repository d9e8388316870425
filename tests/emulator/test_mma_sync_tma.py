"""Emulated mma.sync kernels that load by TMA: exact in any order of the warps; faults planted in their PTX."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("cutlass.cute", reason="the CuTe DSL is not installed")
pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi is not installed")

from cutegemm.compile.plans import compile_plan
from cutegemm.dtypes import round_to
from cutegemm.errors import EmulationError
from cutegemm.run.emulated import emulate
from tests.emulator.snippets import edited
from tests.kernels.mma_sync_forms import small


def run(plan, mnk, **options):
    """Emulate a plan on small whole numbers. Return D and the expected D."""
    m, n, k = mnk
    rng = np.random.default_rng(m + n + k)
    lead = (2,) if plan.operands.batched else ()
    a, b, c = (rng.integers(-3, 4, (*lead, *shape)).astype(np.float32) for shape in ((m, k), (k, n), (m, n)))
    alpha, beta = options.get("alpha", 1.0), options.get("beta", 0.0)
    found = emulate(plan, a, b, c if beta else None, **options)
    return found.d, round_to(plan.operands.d.dtype, alpha * (a.astype(np.float64) @ b) + beta * c)


@pytest.mark.parametrize(
    ("name", "seeds", "options"),
    [
        ("tma_bf16_nn", [None], {"alpha": 0.5, "beta": 2.0}),
        ("tma_bf16_nt", [None, 1], {}),
        ("tma_m_major", [None], {}),  # f16, tt
        pytest.param("tma_tf32_nn", [1], {"beta": -1.0}, marks=pytest.mark.thorough),
        ("tma_tf32_m_major", [None, 1], {"alpha": 0.5, "beta": 2.0}),  # tn
        pytest.param("tma_tf32_tt", [1], {}, marks=pytest.mark.thorough),
    ],
)
def test_every_majorness_is_exact_in_whatever_order(name, seeds, options):
    plan = small(name, ctas=2)
    bm, bn, bk = plan.cta_tile
    mnk = (2 * bm + 8, bn + 8, 3 * bk + 8)  # 3 tiles per CTA, of 4 k-tiles each: the 3 stages are used again
    for seed in seeds:
        found, right = run(plan, mnk, seed=seed, **options)
        assert np.array_equal(found, right)


@pytest.mark.parametrize(
    ("name", "mnk"),
    [
        ("tma_bf16_nt", (64, 64, 0)),
        ("tma_bf16_nt", (8, 8, 8)),
        ("tma_batched", (72, 64, 72)),
        ("tma_unaligned_d", (65, 127, 72)),
        ("tma_lines_m_major", (65, 127, 72)),
        ("tma_lines_tf32", (68, 127, 36)),
        pytest.param("tma_direct", (72, 168, 72), marks=pytest.mark.thorough),
        pytest.param("tma_eight_warps", (136, 72, 200), marks=pytest.mark.thorough),
    ],
)
def test_other_ways(name, mnk):
    ctas = {"ctas": 2} if name == "tma_bf16_nt" else {}  # as above, so that it is compiled once
    found, right = run(small(name, **ctas), mnk, beta=1.0)
    assert np.array_equal(found, right)


FAULTS = {
    "an arrival of empty too few": (
        edited(r"mov\.b32 (\s*%r\d+), 4;(\s*mbarrier\.init)", r"mov.b32 \1, 3;\2", 0),
        r"race: it writes shared memory at .* read by warp \d+",
    ),
    "an arrival of empty too many": (
        edited(r"mov\.b32 (\s*%r\d+), 4;(\s*mbarrier\.init)", r"mov.b32 \1, 5;\2", 0),
        r"deadlock(.|\n)*lacks 1 of 5 arrivals and 0 bytes",
    ),
    "a tile's first stage is not waited for": (
        edited(r"mbarrier\.try_wait\.parity\.shared\.b64 P1,[^;]*;\s*@P1", "@!P1", 1),
        r"ldmatrix.*race: it reads shared memory at .* written by an asynchronous copy",
    ),
    "a k-tile's next stage is not waited for": (
        edited(r"mbarrier\.try_wait\.parity\.shared\.b64 P1,[^;]*;\s*@P1", "@!P1", 2),
        r"ldmatrix.*race: it reads shared memory at .* written by an asynchronous copy",
    ),
    "an epilogue stage is written while it is stored": (
        edited(r"(cp\.async\.bulk\.wait_group\.read\s+)1;", r"\g<1>2;"),
        r"cp\.async\.bulk\.tensor\.2d\.global.*race: it reads shared memory at .* written by warp \d+",
    ),
    "no fence.proxy.async": (
        edited(r"fence\.proxy\.async\.shared::cta;", ""),
        r"wrote by an ordinary store with no fence\.proxy\.async",
    ),
    "stores are not waited for": (
        edited(r"cp\.async\.bulk\.wait_group\.read\s+\d;", ""),
        r"before this copy has read shared memory|read by an asynchronous copy",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_found(fault):
    edit, says = FAULTS[fault]
    plan = small("tma_bf16_nt", ctas=2)
    with pytest.raises(EmulationError, match=says):
        run(plan, (128, 192, 448), ptx=edit(compile_plan(plan).ptx))
