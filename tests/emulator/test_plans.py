"""Emulated SIMT and mma.sync kernels against sums in the kernel's own order, the simulator, and float64."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cutlass.cute", reason="the CuTe DSL is not installed")
pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi is not installed")

from cutegemm.build import mma_sync_plan, simt_plan
from cutegemm.choice.catalog import plan_named
from cutegemm.choice.ladders.simt import SIMT_LADDER
from cutegemm.compile.plans import compile_plan
from cutegemm.dtypes import round_to
from cutegemm.errors import EmulationError, PlanError, UnsupportedError
from cutegemm.plan import GemmPlan, Operands
from cutegemm.run.emulated import Emulation, emulate
from cutegemm.simulator import simulate
from tests.kernels.mma_sync_forms import small
from tests.kernels.plans import asks_for_the_shared_memory_of
from tests.marks import with_thorough

SPLIT = [step for step in SIMT_LADDER.steps if step.build().split_k > 1]
# Ladder steps with different copies, shared memory layouts and thread tiles. Faults are planted in some of STEPS
STEPS = (
    "sgemm_01_naive", "sgemm_05_row_of_4", "sgemm_08_transposed", "sgemm_09_double_buffer", "sgemm_14_async_3",
)  # fmt: skip
THOROUGH = (
    "sgemm_06_vectors", "sgemm_07_square_of_8", "sgemm_10_swizzle", "sgemm_11_warp_tiles", "sgemm_12_warp_pad",
    "sgemm_15_best",
)  # fmt: skip


def normal(plan: GemmPlan, m: int, n: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(m + n + k)
    batch = (2,) if plan.operands.batched else ()
    return tuple(
        round_to(plan.operands.a.dtype, rng.standard_normal((*batch, *shape), np.float32)) for shape in ((m, k), (k, n))
    )  # type: ignore[return-value]


def whole(plan: GemmPlan, m: int, n: int, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return A, B and C of small whole numbers, whose sums are exact in any order."""
    rng = np.random.default_rng(m + n + k)
    batch = (2,) if plan.operands.batched else ()
    return tuple(rng.integers(-3, 4, (*batch, *shape)).astype(np.float32) for shape in ((m, k), (k, n), (m, n)))  # type: ignore[return-value]


def exact(plan: GemmPlan, given: tuple[np.ndarray, ...], alpha: float, beta: float) -> np.ndarray:
    a, b, c = given
    return round_to(plan.operands.d.dtype, alpha * (a.astype(np.float64) @ b) + beta * c)


def one_by_one(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return A @ B by fused multiply-adds along K, the order of a thread of a SIMT kernel."""
    accumulators = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for k in range(a.shape[1]):
        accumulators = (np.multiply.outer(a[:, k].astype(np.float64), b[k]) + accumulators).astype(np.float32)
    return accumulators


@pytest.mark.parametrize("name", with_thorough((*STEPS, *THOROUGH), THOROUGH))
def test_simt_kernels_add_in_order_of_k(name):
    plan = SIMT_LADDER.step(name).build()
    a, b = normal(plan, 132, 72, 44)
    found = emulate(plan, a, b)
    assert np.array_equal(found.d, one_by_one(a, b))
    assert asks_for_the_shared_memory_of(plan, found)


@pytest.mark.parametrize("step", with_thorough(SPLIT, ("sgemm_13_split_kernel",), lambda step: step.name))
def test_split_k(step):
    plan = step.build()
    given = whole(plan, 132, 136, 200)
    found = emulate(plan, *given[:2], alpha=0.5)
    assert np.array_equal(found.d, exact(plan, given, 0.5, 0.0))


@pytest.mark.parametrize("dtype", ["f64", "bf16"])
def test_other_types(dtype):
    plan = plan_named("simt_64x64", Operands.of(dtype))
    given = whole(plan, 72, 80, 40)
    found = emulate(plan, *given[:2], alpha=3.0)
    assert found.d.dtype == plan.operands.d.dtype.storage
    assert np.array_equal(found.d, exact(plan, given, 3.0, 0.0))


@pytest.fixture(scope="module")
def with_c() -> GemmPlan:
    operands = Operands.of("f32", layout="tt", out_major="m", batched=True)
    return simt_plan(operands, name="emulated", block=(32, 32, 8), warp=(16, 32), thread=(4, 4))


def test_batch_majorness_and_c(with_c):
    given = whole(with_c, 68, 72, 20)
    assert np.array_equal(emulate(with_c, *given, alpha=2.0, beta=-0.5).d, exact(with_c, given, 2.0, -0.5))
    assert np.array_equal(emulate(with_c, *given[:2]).d, exact(with_c, given, 1.0, 0.0))
    nothing = whole(with_c, 68, 72, 0)
    assert np.array_equal(emulate(with_c, *nothing, beta=2.0).d, 2 * nothing[2])


# Forms that together have each component of mma.sync plans; K splits and TMA have test files of their own
OF_MMA_SYNC = ("five_stages", "rna", "one_stage_registers", "tf32_nn_m_major", "e4m3_into_e4m3_m_major")
THOROUGH_OF_MMA_SYNC = (
    "bf16_nn_4", "batched_tf32", "e4m3_into_e4m3", "e4m3_nt_8", "e5m2", "f16_sums", "one_k_block", "one_warp",
    "plain_tf32_tn", "shallow_atom_tf32", "three_k_blocks",
)  # fmt: skip


@pytest.mark.parametrize("name", with_thorough((*OF_MMA_SYNC, *THOROUGH_OF_MMA_SYNC), THOROUGH_OF_MMA_SYNC))
def test_mma_sync_kernels_agree_with_the_simulator(name):
    """On whole numbers to the bit. On others to the roundings of a sum: K of them in each, of f32 or f16."""
    plan = small(name)
    bm, bn, bk = plan.cta_tile
    extents = (bm + 16, bn + 32, 2 * bk + 16)
    given = whole(plan, *extents)
    found = emulate(plan, *given[:2])
    assert np.array_equal(found.d, simulate(plan, *given[:2]).d)
    assert np.array_equal(found.d, exact(plan, given, 1.0, 0.0))
    assert asks_for_the_shared_memory_of(plan, found)


def test_a_tile_of_d_that_is_larger_than_the_stages_it_lies_over():
    """D lies over A and B; it needs more where its elements are wider."""
    how = {"block": (32, 64, 16), "warp": (16, 32), "stages": 2}
    narrow, wide = (mma_sync_plan(Operands.of("bf16", layout="nt", out=out), **how) for out in ("bf16", "f32"))
    assert (narrow.smem_bytes()["d"], wide.smem_bytes()["d"]) == (0, 2048)
    given = whole(wide, 72, 136, 40)
    found = emulate(wide, *given[:2])
    assert np.array_equal(found.d, exact(wide, given, 1.0, 0.0))
    assert asks_for_the_shared_memory_of(wide, found)


@pytest.mark.parametrize("reduction", with_thorough(["kernel", "last"], ["kernel"]))
def test_split_k_with_f16_accumulators(reduction):
    plan = simt_plan(
        Operands.of("f16", acc="f16"), block=(32, 32, 8), warp=(16, 32), thread=(4, 4), split_k=2,
        reduction=reduction,
    )  # fmt: skip
    given = whole(plan, 40, 40, 72)
    assert np.array_equal(emulate(plan, *given[:2], alpha=2.0).d, exact(plan, given, 2.0, 0.0))


@pytest.mark.parametrize("name", ["rna", "five_stages"])
def test_mma_sync_kernels_on_other_numbers(name):
    """To K roundings of f32 and one of the result; tf32 operands count by their upper 10 bits of mantissa."""
    plan = small(name)
    a, b = normal(plan, 80, 96, 144)
    kind = plan.operands
    factors = [round_to(kind.a.dtype, x, "rna").astype(np.float64) for x in (a, b)]
    bound = 144 * 2.0**-23 * (abs(factors[0]) @ abs(factors[1])) + 2.0 ** -(kind.d.dtype.mantissa_bits + 1) * 40
    assert (abs(emulate(plan, a, b).d - factors[0] @ factors[1]) <= bound).all()


@pytest.mark.parametrize(("name", "seed"), [("sgemm_14_async_3", 1), ("sgemm_13_split_last", 2)])
def test_any_order_of_warps(name, seed):
    plan = SIMT_LADDER.step(name).build()
    given = whole(plan, 132, 136, 72)
    assert np.array_equal(emulate(plan, *given[:2], seed=seed).d, exact(plan, given, 1.0, 0.0))


def test_counts_of_an_emulation():
    """One CTA multiplies 64 x 64 x 64: the 128 threads execute 64**3 fused multiply-adds in total."""
    plan = plan_named("simt_64x64", Operands.of("f32"))
    found = emulate(plan, np.ones((64, 64)), np.ones((64, 64)))
    assert found.instructions["fma.rn.f32"] == 64**3
    assert found.ctas == 1
    (launch,) = found.launches
    assert (launch.grid, launch.block, launch.cluster) == ((1, 1, 1), (plan.threads, 1, 1), 1)
    assert asks_for_the_shared_memory_of(plan, found)


def test_invalid_calls_are_errors():
    plan = plan_named("simt_64x64", Operands.of("f32"))
    with pytest.raises(PlanError, match=r"emulate: .*\n.*C is missing"):
        emulate(plan, np.ones((4, 4)), np.ones((4, 4)), beta=1.0)
    with pytest.raises(PlanError, match="do not fit"):
        emulate(plan, np.ones((4, 4)), np.ones((8, 4)))
    wrong = compile_plan(plan).ptx.replace("fma.rn.f32", "fma.rm.f32")
    with pytest.raises(UnsupportedError, match=r"does not know:\n  line .* fma.rm.f32"):
        emulate(plan, np.ones((4, 4)), np.ones((4, 4)), ptx=wrong)


# --- faults ------------------------------------------------------------------------------------------------


def emulated(plan: GemmPlan, text: str, **options: Any) -> Emulation:
    """Emulate a plan with PTX `text` on whole tiles and enough k-tiles to reuse every stage; check D."""
    bm, bn, bk = plan.cta_tile
    given = whole(plan, bm, bn, max(6, 2 * plan.stages) * bk)
    found = emulate(plan, *given[:2], ptx=text, **options)
    assert np.array_equal(found.d, exact(plan, given, 1.0, 0.0)), "D is wrong"
    return found


def without(text: str, pattern: str, which: int) -> str:
    match = list(re.finditer(pattern, text))[which]
    return text[: match.start()] + text[match.end() :]


def plan_of(name: str) -> GemmPlan:
    return SIMT_LADDER.step(name).build() if name.startswith("sgemm") else small(name)


def barriers(text: str) -> int:
    return len(re.findall(r"bar\.sync\s+0;", text))


@pytest.mark.parametrize("name", ["sgemm_08_transposed", "sgemm_09_double_buffer", "sgemm_14_async_3", "five_stages"])
def test_each_barrier_is_needed(name):
    """Removing any barrier but the first causes a race. The first is for ragged edges, which this problem lacks."""
    plan = plan_of(name)
    text = compile_plan(plan).ptx
    emulated(plan, text)
    silent = []
    for which in range(barriers(text)):
        try:
            emulated(plan, without(text, r"bar\.sync\s+0;", which))
            silent.append(which)
        except EmulationError as error:
            assert "race: it" in str(error)  # noqa: PT017
    assert silent == [0]


@pytest.mark.parametrize("name", ["sgemm_14_async_3", "five_stages"])
def test_a_looser_wait_is_found(name):
    """With cp.async.wait_group n + 1 in place of n in the loop, a stage is read while a copy to it is under way."""
    plan = plan_of(name)
    text = compile_plan(plan).ptx
    last = list(re.finditer(r"cp\.async\.wait_group\s+(\d+);", text))[-1]
    looser = text[: last.start(1)] + str(int(last[1]) + 1) + text[last.end(1) :]
    with pytest.raises(EmulationError, match=r"race: it writes shared memory .* read by warp"):
        emulated(plan, looser)
    with pytest.raises(EmulationError, match=r"what it stores comes from .* a copy to it is still under way"):
        emulated(plan, looser, check_races=False)


@pytest.mark.parametrize("shift", [16, 4])
def test_an_address_of_ldmatrix_that_is_off_is_found(shift):
    plan = small("five_stages")
    text = compile_plan(plan).ptx
    address = re.search(r"ldmatrix[^;]*\[%r\d+(\+\d+)?\];", text)
    assert address is not None
    first, end = address.span(1) if address[1] else (address.end() - 2, address.end() - 2)
    shifted = f"{text[:first]}+{int(address[1] or 0) + shift}{text[end:]}"
    with pytest.raises((AssertionError, EmulationError), match=r"not a multiple of the 16|D is wrong|race|nothing has"):
        emulated(plan, shifted)


STORE = r"st\.global\.b32[^;]*;"


def found_of(texts: list[str]) -> set[str]:
    """Return the errors of several texts, with numbers replaced by N.

    A fault in a store that no thread executes gives no error.
    """
    plan = plan_of("sgemm_05_row_of_4")
    said = set()
    for text in texts:
        try:
            emulated(plan, text)
        except EmulationError as error:
            said.add(re.sub(r"\d+", "N", str(error)))
    return said


def test_an_element_that_is_never_or_twice_written_is_found():
    text = compile_plan(plan_of("sgemm_05_row_of_4")).ptx
    stores = list(re.finditer(STORE, text))
    head = "emulate: sgemm_N_row_of_N "
    never = found_of([without(text, STORE, which) for which in range(len(stores))])
    assert never == {head + "never writes N elements of D; the first is D(m N, n N, l N)."}
    twice = found_of([text[: s.end()] + s[0] + text[s.end() :] for s in stores])
    assert twice == {head + "writes N elements of D more than once."}


def test_a_store_beside_d_is_found():
    """Each element is stored one element too far, so the last column is stored outside of D."""
    text = re.sub(
        r"(st\.global\.b32 \s*\[%rd\d+)(?:\+(\d+))?\]",
        _shifted,
        compile_plan(plan_of("sgemm_05_row_of_4")).ptx,
    )
    with pytest.raises(EmulationError, match=r"thread \d+: it writes the memory outside of D, .* outside"):
        emulated(plan_of("sgemm_05_row_of_4"), text)


def _shifted(match: re.Match[str]) -> str:
    return f"{match[1]}+{int(match[2] or 0) + 4}]"
