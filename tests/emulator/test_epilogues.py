"""Emulated kernels with an epilogue: each family, and each kind of operand and result, against float64."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

pytest.importorskip("cutlass.cute", reason="the CuTe DSL is not installed")
pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi is not installed")

from cutegemm.dtypes import bf16, e4m3, f16, f32, round_to
from cutegemm.epilogue import where
from cutegemm.plan.epilogue import Accumulator, Column, Element, Epilogue, Row, Scalar, Tile, parse_epilogue
from cutegemm.plan.problem import Operand
from cutegemm.run.emulated import emulate
from cutegemm.simulator import simulate
from tests.epilogues import CASES, Case, reference, values_of
from tests.expressions import KINDS, tame_expressions
from tests.fused import PLANS, extents_of, hold, whole_numbers
from tests.kernels.sm90_forms import form
from tests.simulator.plans import small_plan

# Each family, and each way to load operands and to store results. The types of the plans differ.
KEPT = {
    ("simt, m-major", "three"),
    ("simt, split, kernel", "all_kinds"),
    ("mma.sync", "all_kinds"),
    ("pingpong", "preact"),
    ("pingpong, m-major", "all_kinds"),
    ("direct", "three"),
    ("overlapped", "preact"),
    ("K shared by CTAs", "preact"),
    ("e4m3, e4m3 out", "scales"),
}


THOROUGH = {
    ("simt, split, kernel", "all_kinds"),
    ("pingpong, m-major", "all_kinds"),
    ("direct", "three"),
    ("K shared by CTAs", "preact"),
}


@pytest.mark.parametrize(
    ("name", "case"),
    [pytest.param(*both, marks=[pytest.mark.thorough] * (both in THOROUGH)) for both in sorted(KEPT)],
)
def test_against_float64(name, case):
    plan = CASES[case].on(PLANS[name]())
    bm, bn, bk = plan.cta_tile
    hold(emulate, CASES[case], plan, *extents_of(plan, bm + 9, bn + 11, bk + 5))


def test_a_tile_operand_loaded_by_tma():
    case = CASES["all_kinds"]
    plan = case.on(form("c", 2, tile=(64, 64, 64)))
    assert plan.fetched_tile == "tile"
    hold(emulate, case, plan, *extents_of(plan, 73, 75, 69))


@pytest.mark.parametrize("kind", [bf16, pytest.param(f16, marks=pytest.mark.thorough)])
def test_arithmetic_of_16_bits(kind):
    """Compare, negate and add values that the compiler keeps in 16 bits."""
    case = Case(
        lambda acc, row, column: (acc + where(row < column, -row, row), column + 0.5, -acc),
        {"row": Row, "column": Column},
        {"row": kind, "column": kind, "aux": kind, "aux2": kind},
    )
    hold(emulate, case, case.on(small_plan()), 17, 24, 8)


def test_operands_and_results_of_other_types():
    """Rows, columns and results have other types than D; one problem has M = 1, one has K = 0."""
    case = Case(
        lambda acc, row, column, one: ((acc + row) * column, acc * one, acc - row),
        {"row": Row, "column": Column, "one": Element},
        {"row": e4m3, "column": bf16, "one": f16, "aux": e4m3, "aux2": f16},
    )
    plan = case.on(small_plan())
    for mnk in ((41, 44, 24), (1, 4, 8), (17, 20, 0)):
        hold(emulate, case, plan, *extents_of(plan, *mnk))


@pytest.mark.parametrize(("s", "t"), [(1.0, 1.0), (0.5, 2.0), (1.0, 0.0), (0.3, 0.7)])
def test_int32_with_a_tile_operand_of_fp8(s, t):
    """Round int32 sums past 2**24 once. A tile operand has another type than D, and is not read if t = 0."""
    rng = np.random.default_rng(0)
    plan = form("s8", 2, tile=(64, 32, 128))
    plan = plan.with_(
        epilogue=parse_epilogue("s * acc + t * x", {"x": Tile, "s": Scalar, "t": Scalar}),
        operands=plan.operands.with_aux(x=Operand(e4m3, "n")),
    )
    a, b = (rng.integers(-128, 128, shape).astype(np.int8) for shape in ((9, 2112), (2112, 16)))
    a[0], b[:, 0] = -128, -127
    x = round_to(e4m3, 3 * rng.standard_normal((9, 16)))
    got = emulate(plan, a, b, x=x, s=s, t=t).d
    assert np.array_equal(got, simulate(plan, a, b, x=x, s=s, t=t).d)
    exact = np.float64(np.float32(s)) * (a.astype(np.int64) @ b) + np.float64(np.float32(t)) * x
    assert np.array_equal(got, np.rint(exact))


RESULTS = 8


@pytest.mark.parametrize("plan", [small_plan(), form("f32_out", 2)], ids=["simt", "pingpong"])
@settings(max_examples=1, deadline=None, derandomize=True, phases=[Phase.generate], database=None)
@given(st.lists(tame_expressions(10), min_size=RESULTS, max_size=RESULTS, unique=True))
def test_random_expressions(plan, expressions):
    """Evaluate several random expressions in one kernel, the same in each run of the tests."""
    first, *others = [Accumulator() + each for each in expressions]
    epilogue = Epilogue(first, tuple([(f"x{i}", each) for i, each in enumerate(others)]))
    aux = {
        name: Operand.of_kind(KINDS[name], f32, align_bytes=16 if KINDS[name] is Tile else None)
        for name in epilogue.tensors
    }
    aux |= {name: Operand(f32, "n") for name in epilogue.outputs[1:]}
    plan = plan.with_(epilogue=epilogue, operands=plan.operands.with_aux(**aux))
    m, n, k = extents_of(plan, 41, 44, 24)
    a, b = whole_numbers(plan, m, n, k)
    given = values_of(epilogue, epilogue.kinds, np.random.default_rng(2), m, n)
    given = {name: x if isinstance(x, float) else x.astype(np.float32) for name, x in given.items()}
    got = emulate(plan, a, b, **given)
    for name, want in reference(epilogue, a @ b, given).items():
        values = got.d if name == "d" else got.aux[name]
        np.testing.assert_allclose(values, want, rtol=1e-4, atol=1e-4, err_msg=str(dict(epilogue.results)[name]))
