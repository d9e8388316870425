"""Emulated kernels of GEMV-like plans, which stream A to registers: against float64 and the simulator."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("cutlass.cute", reason="the CuTe DSL is not installed")
pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi is not installed")

from cutegemm.build import gemv_plan, with_epilogue
from cutegemm.choice.gemv.named import GEMV_PLANS
from cutegemm.compile.plans import compile_plan
from cutegemm.dtypes import f32, round_to
from cutegemm.emulator.state import EmulationError
from cutegemm.plan import GemmPlan, Operands
from cutegemm.plan.epilogue import Column, Tile, parse_epilogue
from cutegemm.plan.problem import Operand, Problem
from cutegemm.run.emulated import emulate
from cutegemm.simulator import simulate
from tests.kernels.plans import check_each, in_groups
from tests.marks import with_thorough

# By name: (arguments of Operands.of, arguments of gemv_plan)
FORMS = {
    "16x8": ({}, {}),
    "16x16": ({}, {"tile": (16, 16), "vectors": 2}),
    "32x16": ({"dtype": "f16"}, {"tile": (32, 16), "vectors": 1}),
    "wide": ({}, {"vectors": 2, "warps": 16, "ctas_per_sm": 1}),
    "one_share": ({}, {"vectors": 2, "load_chunks": 1, "warps": 2}),
    "four_shares": ({}, {"vectors": 1, "load_chunks": 4, "warps": 4}),
    "one_warp": ({"dtype": "f16"}, {"tile": (16, 32), "warps": 1, "vectors": 1}),
    "two_ctas": ({}, {"tile": (32, 8), "cluster": 2, "vectors": 2}),
    "eight_ctas": ({}, {"tile": (128, 8), "cluster": 8, "vectors": 1, "warps": 4, "ctas_per_sm": 1}),
    "pdl": ({}, {"pdl": True}),
    "two_ctas_overlap": ({}, {"tile": (32, 8), "cluster": 2, "vectors": 1, "pdl": True}),
    "e4m3": ({"dtype": "e4m3", "out": "bf16"}, {}),
    "e5m2_into_f32": ({"dtype": "e5m2", "out": "f32"}, {"tile": (16, 16), "vectors": 2}),
    "tf32": ({"dtype": "tf32"}, {"tile": (16, 16), "vectors": 2}),
    "n_major": ({"out_major": "n"}, {}),
    "batched": ({"batched": True}, {"vectors": 1, "warps": 4}),
}


def form(name: str, align_d: int | None = None) -> GemmPlan:
    """Return the plan of a form. C and D are aligned to one element, so that extents may have any value."""
    operands, options = FORMS[name]
    ops = Operands.of(**{"dtype": "bf16", "layout": "nt", "out_major": "m", **operands})
    size = ops.d.dtype.bits // 8
    ops = replace(ops, c=replace(ops.c, align_bytes=size), d=replace(ops.d, align_bytes=size))
    return gemv_plan(ops, **options)


def whole_numbers(plan: GemmPlan, m: int, n: int, k: int, batch: int = 2) -> tuple[np.ndarray, ...]:
    """Return A, B and C of small whole numbers, whose products have exact sums."""
    rng, lead = np.random.default_rng(0), (batch,) if plan.operands.batched else ()
    shapes = ((m, k), (k, n), (m, n))
    return tuple([rng.integers(-3, 4, (*lead, *shape)).astype(np.float32) for shape in shapes])


# Each component of these forms, such as a tile or a type, is in another form too
THOROUGH = ("one_share", "one_warp", "eight_ctas", "e5m2_into_f32", "n_major", "batched")
BOTH = ("16x16", "wide", "four_shares", "two_ctas_overlap")  # left out: other forms have the same components


@pytest.mark.parametrize("name", with_thorough([name for name in FORMS if name not in BOTH], THOROUGH))
def test_ragged_rows_columns_and_k(name):
    """M and N are a few elements off whole tiles, N may be 1, and K is not a multiple of a k-tile."""
    plan = form(name)
    bm, bn, bk = plan.mma_tile
    step = plan.a.load.atom.values
    for m, n, k in ((bm + 5, bn, 2 * bk + step), (bm - 3, 1, bk - 3 * step)):
        a, b, c = whole_numbers(plan, m, n, k)
        want = round_to(plan.operands.d.dtype, 2 * (a.astype(np.float64) @ b) - c)
        given = {"alpha": 2.0, "beta": -1.0}
        assert np.array_equal(emulate(plan, a, b, c, **given).d, want)
        assert np.array_equal(simulate(plan, a, b, c, **given).d, want)


@pytest.mark.parametrize("name", ["16x8", "32x16", "two_ctas", "e4m3", "tf32"])
def test_normal_numbers(name):
    """Accumulate in f32, in the order of the hardware within an MMA, and round D once."""
    plan, rng = form(name), np.random.default_rng(1)
    a, b = (rng.normal(size=shape).astype(np.float32) for shape in ((40, 2080), (2080, 7)))
    kind = plan.operands.a.dtype
    rounded = [round_to(kind, x).astype(np.float64) for x in (a, b)]
    exact, bound = rounded[0] @ rounded[1], np.abs(rounded[0]) @ np.abs(rounded[1]) * 2.0**-20
    bound = bound + np.abs(exact) * (2.0**-8 if plan.operands.d.dtype is not f32 else 0)
    for found in (emulate(plan, a, b).d, simulate(plan, a, b).d):
        assert (np.abs(found - exact) <= bound).all()


@pytest.mark.parametrize("seed", [None, 0, 1])
def test_any_order_of_warps(seed):
    plan = form("two_ctas")
    a, b, _ = whole_numbers(plan, 70, 8, 2048)
    assert np.array_equal(emulate(plan, a, b, seed=seed).d, round_to(plan.operands.d.dtype, a @ b))


def test_no_k_tiles():
    plan = form("16x8")
    a, b, c = whole_numbers(plan, 16, 8, 0)
    assert np.array_equal(emulate(plan, a, b, c, beta=1.0).d, c)
    assert np.array_equal(simulate(plan, a, b, c, beta=1.0).d, c)


def test_rows_with_gaps_between_them():
    """The gaps between the rows of a matrix are not read."""
    plan = form("16x16")
    a, b, _ = whole_numbers(plan, 33, 9, 1064)
    problem = Problem(33, 9, 1064, operands=plan.operands, ld=(("a", 1080), ("b", 1072), ("d", 40)))
    assert np.array_equal(emulate(plan, a, b, problem=problem).d, round_to(plan.operands.d.dtype, a @ b))


def test_an_epilogue_with_auxiliary_operands_and_outputs():
    """The plan computes D^T, so a bias along N is a column."""
    kinds = {"bias": Column, "residual": Tile}
    plan = form("16x8")
    more = {
        "bias": Operand.of_kind(Column, f32),
        "residual": Operand.of_kind(Tile, plan.operands.d.dtype, major="m"),
        "preact": Operand.of_kind(Tile, f32, major="m"),
        "total": Operand.of_kind(Column, f32),
    }
    epilogue = parse_epilogue("relu(acc + bias) + residual, preact = acc + bias, total = row_sum(acc)", kinds)
    plan = with_epilogue(epilogue, plan, more)
    a, b, c = whole_numbers(plan, 50, 5, 2056)
    bias = np.arange(50, dtype=np.float32)[:, None]
    accumulators = a @ b
    for run in (emulate, simulate):
        found = run(plan, a, b, bias=bias, residual=c)
        assert np.array_equal(found.d, round_to(plan.operands.d.dtype, np.maximum(accumulators + bias, 0) + c))
        assert np.array_equal(found.aux["preact"], accumulators + bias)
        assert np.array_equal(found.aux["total"].reshape(-1), accumulators.sum(axis=1))


# For each tile, the plan with the most registers for loads in flight
KERNELS = list(
    {
        recipe.options.get("tile"): recipe
        for recipe in sorted(
            GEMV_PLANS,
            key=lambda recipe: recipe.options.get("vectors", 1) * recipe.options.get("load_chunks", 1),
        )
    }.values()
)


@pytest.mark.thorough
@in_groups("recipes", KERNELS)
def test_named_plans_spill_nothing(recipes):
    operands = Operands.of("bf16", layout="nt", out_major="m")
    check_each([recipe.build(operands) for recipe in recipes], spills_nothing)


def spills_nothing(kernel):
    plan, report = kernel.plan, kernel.resources
    assert kernel.violations() == []
    assert (report.count("LDL"), report.count("STL")) == (0, 0)
    of_a = plan.mma_tile[0] // 8 * len(plan.body.prologue)
    assert report.count("LDG.E.EF.LTC128B.128") >= of_a  # at least the loads of the prologue
    assert report.count("ACQBULK") >= 1
    assert report.count("PREEXIT") == 1


def test_a_kernel_with_pdl_waits_before_it_reads_b():
    """With PDL, a kernel without griddepcontrol.wait would read B or write D while the previous kernel runs."""
    plan = form("pdl")
    a, b, _ = whole_numbers(plan, 20, 3, 2056)
    text = compile_plan(plan, "sm_90a").ptx
    waits = [found.start() for found in re.finditer(r"griddepcontrol\.wait;", text)]
    assert waits
    assert text[: max(waits)].count("ld.global.L1::evict_first") >= 2  # the prologue loads A before the wait
    with pytest.raises(EmulationError, match=r"with no griddepcontrol\.wait before"):
        emulate(plan, a, b, ptx=text.replace("griddepcontrol.wait;", ""))


def test_barriers_are_needed():
    """Without the CTA barrier, accumulators of warps race. Without the cluster barrier, those of CTAs are missing."""
    plan = form("two_ctas")
    a, b, _ = whole_numbers(plan, 64, 8, 1024)
    text = compile_plan(plan, "sm_90a").ptx
    of_cta, of_cluster = (
        re.findall(r"bar\.sync\s+0;", text),
        re.findall(r"barrier\.cluster\.wait[^;]*;", text),
    )
    assert (len(of_cta), len(of_cluster)) == (1, 2)
    with pytest.raises(EmulationError, match="race: it reads shared memory"):
        emulate(plan, a, b, ptx=text.replace(of_cta[0], ""), seed=0)
    start, _, end = text.rpartition(of_cluster[1])
    with pytest.raises(EmulationError, match="memory that was never written"):
        emulate(plan, a, b, ptx=start + end, seed=0)
