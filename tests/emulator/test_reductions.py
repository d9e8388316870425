"""Emulated kernels with sums and maxima over rows, columns and all of D: values, equal bits, races, atomics."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("cutlass.cute", reason="the CuTe DSL is not installed")
pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi is not installed")

from cutegemm import epilogue as e
from cutegemm.build import with_epilogue
from cutegemm.choice.catalog import plan_named
from cutegemm.compile.plans import compile_plan
from cutegemm.dtypes import e4m3, f32, round_to
from cutegemm.plan.epilogue import Column, Element, epilogue_of, parse_epilogue
from cutegemm.plan.problem import Operand, Operands
from cutegemm.run.emulated import emulate
from cutegemm.simulator import simulate
from tests.epilogues import CASES
from tests.reductions import EMPTY, PLANS, REDUCED, hold_against_float64, operands, takes

# The case "reduced" has every kind of result. The plans in BOTH have only components that other plans have too. The
# other cases read an operand, or take the maximum of a computed value.
FEW = ("simt", "mma.sync", "pingpong", "direct")
BOTH = (
    "simt, packed", "simt, one warp", "simt, m-major", "simt, waves", "simt, split, kernel",
    "simt, split, kernel, m-major", "cooperative", "cooperative, rows of two", "cluster along M", "direct, cluster",
    "single", "split", "fp8",
)  # fmt: skip
THOROUGH = ("simt, f64", "simt, split, last", "mma.sync, TMA", "cluster along N", "overlapped", "fixup")
ALSO = {("pingpong", "rms"), ("pingpong", "absmax")}
MORE = {("simt", "rms"), ("mma.sync", "absmax")}


def of(name, is_quick):
    """Return a test parameter. If it is not quick, it is marked `slow`: such tests take minutes."""
    marks = [] if is_quick else [pytest.mark.slow]
    is_thorough = name[0] in THOROUGH or name in MORE
    return pytest.param(*name, marks=[pytest.mark.thorough] if is_quick and is_thorough else marks)


@pytest.mark.parametrize(
    ("name", "case"),
    [
        of((name, case), (case == "reduced" and name not in BOTH) or (name, case) in ALSO | MORE)
        for name in PLANS
        for case in REDUCED
    ],
)
def test_against_float64_and_the_simulator(name, case):
    """Results are near float64. Except for "rms", they have the bits of the simulator.

    In "rms" the kernel adds squares by fused multiply-adds, and the simulator rounds each square.
    """
    if not takes(name, case):
        return
    plan = CASES[case].on(PLANS[name]())
    given = operands(plan, case, 120, 72, 136)
    found = emulate(plan, **given)
    hold_against_float64(plan, found, given)
    if case != "rms":
        simulated = simulate(plan, **given).aux
        for reduced, _ in plan.epilogue.reductions:
            np.testing.assert_array_equal(found.aux[reduced], simulated[reduced])


@pytest.mark.parametrize(
    "name",
    [
        of((name,), name in ("simt, split, kernel", "fixup"))
        for name in ("simt, split, kernel", "simt, split, last", "mma.sync", "fixup", "cluster along N")
    ],
)
def test_batches(name):
    plan = PLANS[name]()
    plan = CASES["reduced"].on(plan.with_(operands=replace(plan.operands, batched=True)))
    given = operands(plan, "reduced", 72, 80, 136, batch=2)
    hold_against_float64(plan, emulate(plan, **given), given)


@pytest.mark.parametrize(
    "name",
    [
        of((name,), name in ("simt, split, last", "fixup"))
        for name in ("simt", "simt, split, last", "mma.sync, TMA", "pingpong", "split", "fixup", "direct")
    ],
)
def test_the_same_bits_with_any_schedule(name):
    """Sums of normal numbers have the same bits with any schedule; in another order they would round differently."""
    ending = epilogue_of(lambda acc: (acc, e.row_sum(e.exp(acc)), e.total_sum(e.exp(acc))), {})
    plan = PLANS[name]()
    reduced = {"aux": Operand.of_kind(Column, f32), "aux2": Operand.of_kind(Element, f32)}
    plan = plan.with_(epilogue=ending, operands=plan.operands.with_aux(**reduced))
    rng = np.random.default_rng(7)
    a, b = (round_to(plan.operands.a.dtype, rng.standard_normal(s) / 8) for s in ((136, 136), (136, 72)))
    first, *others = [emulate(plan, a, b, seed=seed).aux for seed in (None, 1)]
    for other in others:
        for name_of in reduced:
            np.testing.assert_array_equal(first[name_of].view(np.uint32), other[name_of].view(np.uint32))


def test_no_k_tiles():
    plan = CASES["reduced"].on(PLANS["pingpong"]())
    given = operands(plan, "reduced", 40, 48, 0)
    hold_against_float64(plan, emulate(plan, **given), given)


@pytest.mark.parametrize("mnk", EMPTY, ids=str)
@pytest.mark.parametrize("name", ["simt", "mma.sync", "pingpong"])
def test_no_elements(name, mnk):
    """Without elements, a sum is 0 and a maximum is -inf."""
    plan = CASES["reduced"].on(PLANS[name]())
    given = operands(plan, "reduced", *mnk)
    hold_against_float64(plan, emulate(plan, **given), given)


def test_nan_propagates():
    plan = CASES["absmax"].on(PLANS["pingpong"]())
    given = operands(plan, "absmax", 40, 48, 64)
    given["a"][3, 3] = np.nan
    assert np.isnan(emulate(plan, **given).aux["aux"])


@pytest.mark.parametrize(("name", "case"), sorted(ALSO | {(name, "reduced") for name in FEW}))
def test_floats_are_not_added_by_atomics(name, case):
    """Only integers, the semaphores of K splits, are added by atomics."""
    ptx = compile_plan(CASES[case].on(PLANS[name]())).ptx
    atomics = [line.split()[0] for line in ptx.splitlines() if line.strip().startswith(("atom.", "red."))]
    assert not [line for line in atomics if ".f32" in line or ".f64" in line]
    assert "shfl.sync.bfly" in ptx


@pytest.mark.parametrize(
    ("kind", "layout", "name"),
    [
        ("bf16", "nt", "gemv_16x16"),
        pytest.param("f16", "tn", "sm90_64x16+repack", marks=pytest.mark.thorough),
    ],
)
def test_a_result_of_one_byte_and_its_absolute_maximum(kind, layout, name):
    """Round the scaled accumulator once to e4m3, saturating. The maximum is of the unscaled values."""
    operands = Operands.of(kind, layout=layout, out="e4m3")
    element = Operand.of_kind(Element, f32)
    epilogue = parse_epilogue("acc * scale, amax = total_max(abs(acc))", {"scale": Element})
    plan = with_epilogue(epilogue, plan_named(name, operands), {"scale": element, "amax": element})
    rng = np.random.default_rng(7)
    a, b = rng.integers(-4, 5, (80, 64)).astype(np.float32), rng.integers(-4, 5, (64, 48)).astype(np.float32)
    scale = np.full((1, 1), 4.0, np.float32)
    exact = a @ b
    for run in (emulate, simulate):
        found = run(plan, a, b, scale=scale)
        assert np.array_equal(found.d, round_to(e4m3, 4 * exact))
        assert np.abs(found.d).max() == 448 < np.abs(4 * exact).max()
        assert found.aux["amax"].reshape(()) == np.abs(exact).max()
