"""The analysis of random plans on ragged problems, compared with the accesses of their compiled kernels."""

from __future__ import annotations

import random

import numpy as np
import pytest

pytest.importorskip("cutlass.cute", reason="the CuTe DSL is not installed")
pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi is not installed")

import cutegemm.simulator.memory
from cutegemm.analysis import check
from cutegemm.analysis.executed import EXECUTED_OPS, Executed
from cutegemm.choice.catalog import plan_named
from cutegemm.compile.plans import compile_plan
from cutegemm.plan import GemmPlan, Operands, Problem
from cutegemm.run.emulated import emulate
from cutegemm.run.executed import executed_accesses
from docs.evidence.counters.random_plans import draw

# Random plans of seed 1 whose accesses the compiler does not change. Each takes two seconds to compile.
DRAWN = {
    "simt": (0, 2, 3, 4, 5, 7, 8),
    "mma_sync": (0, 1, 2, 3, 4, 5, 6, 7),
    "mma_tma": (1, 3),
    "sm90": (2, 5),
}
QUICK = {("simt", 0): (), ("mma_sync", 4): pytest.mark.thorough}
CASES = [
    pytest.param(family, number, marks=QUICK.get((family, number), pytest.mark.slow))
    for family, numbers in DRAWN.items()
    for number in numbers
]


def carried_out(plan: GemmPlan, problem: Problem, monkeypatch: pytest.MonkeyPatch) -> Executed:
    """Return all accesses of the compiled kernel. Matrices begin at cache lines, as the analysis assumes."""
    monkeypatch.setattr(cutegemm.simulator.memory, "_GUARD_UNITS", 128)
    batch = (problem.l,) if problem.operands.batched else ()
    shapes = ((*batch, problem.m, problem.k), (*batch, problem.k, problem.n))
    heard = Executed()
    emulate(plan, *[np.zeros(s, np.float32) for s in shapes], problem=problem, check_races=False, watch=heard)
    return heard


@pytest.mark.parametrize(("family", "number"), CASES)
def test_ragged_tiles_of_random_plans(family, number, monkeypatch):
    """The analysis counts exactly the instructions, wavefronts and sectors of the compiled kernel."""
    drawn = draw(family, number + 1, seed=1)[number]
    plan = drawn.case().plan
    chance = random.Random(number)
    step = plan.operands.a.align_elems
    extents = [max(step, int(t * chance.choice((0.6, 1.4, 2.0))) // step * step) for t in plan.cta_tile[:2]]
    deep = max(step, int(plan.cta_tile[2] * chance.choice((1.5, 2.5, 4.3))) // step * step)
    problem = Problem(*extents, deep, drawn.extents[3], operands=plan.operands)
    heard = carried_out(plan, problem, monkeypatch)
    found = check(plan, problem, "sm_90a", "h200", search=False)
    for op in EXECUTED_OPS:
        done = heard.shared.get(op)
        assert found.planned(op) == ((done.requests, done.wavefronts, done.ideal) if done else (0, 0, 0)), op
    for op, kind in (("load", "ld"), ("store", "st"), ("cp.async", "ldgsts")):
        touched = heard.global_.get(op)
        assert found.sector_count(kind) == ((touched.requests, touched.sectors) if touched else (0, 0)), op


def test_a_few_tiles_stand_for_the_whole_grid(monkeypatch):
    """3 x 2 tiles and nine k-tiles, ragged all of them, against the four kinds of tiles of fewer k-tiles."""
    plan = plan_named("simt:block=16x32x8,warp=16x32,thread=4x4,stages=2", Operands.of("f32", align_bytes=4))
    problem = Problem(41, 49, 67, operands=plan.operands)
    whole = carried_out(plan, problem, monkeypatch)
    few = executed_accesses(plan, problem)
    assert {op: (w.requests, w.wavefronts) for op, w in few.counts.items()} == {
        op: (w.requests, w.wavefronts) for op, w in whole.shared.items()
    }


def test_accesses_that_the_compiler_joins():
    """The compiler joins single reads along K to 128-bit reads: a quarter of the instructions and of the conflicts."""
    plan = plan_named("sgemm_02_tiles", Operands.of("f32"))
    problem = Problem(4096, 4096, 4096, operands=plan.operands)
    executed = executed_accesses(plan, problem)
    planned = check(plan, problem, device="h200", search=False)
    resources = compile_plan(plan, "sm_90a").resources
    found = check(plan, problem, "sm_90a", "h200", resources, search=False, executed=executed)
    assert planned.counts("load")[0] == 4 * found.counts("load")[0] == 4 * 1024**3
    assert planned.roofline.tflops < 0.6
    assert 1.6 < found.roofline.tflops < 2  # measured on an H200: 1.6 TFLOP/s
    assert "TFLOP/s at most" in str(found)
    assert "at most" not in str(planned)
    assert found.planned("load") == planned.counts("load")
