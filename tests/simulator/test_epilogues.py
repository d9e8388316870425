"""Plans with an epilogue, simulated: every family and every way out, ragged, against float64."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from cutegemm.dtypes import f32, f64, s8, tf32
from cutegemm.errors import PlanError
from cutegemm.plan import Operands
from cutegemm.plan.epilogue import Accumulator, Epilogue, Row, Tile, parse_epilogue
from cutegemm.plan.problem import Operand, Problem
from cutegemm.simulator import simulate
from cutegemm.simulator.values import evaluate
from tests.epilogues import CASES, Case, reference
from tests.expressions import any_expressions, tame_expressions
from tests.fused import PLANS, extents_of, hold
from tests.kernels.sm90_forms import form
from tests.simulator.plans import small_plan

EVERY_CASE = ("simt", "pingpong")
OF_TILES = ("residual", "three", "all_kinds")  # that read a tile: a deferred plan reads none


def ragged(plan, tiles=1):
    """A problem with a tile that is cut off along each mode."""
    bm, bn, bk = plan.cta_tile
    return extents_of(plan, tiles * bm + 9, tiles * bn + 11, bk + 5)


@pytest.mark.parametrize("case", [name for name, case in CASES.items() if not case.epilogue.gated])
@pytest.mark.parametrize("name", EVERY_CASE)
def test_every_case(name, case):
    plan = CASES[case].on(PLANS[name]())
    hold(simulate, CASES[case], plan, *ragged(plan))


@pytest.mark.parametrize("name", [name for name in PLANS if name not in EVERY_CASE])
def test_every_way_out(name):
    plan = PLANS[name]()
    is_deferred = plan.body.overlapped
    for case in ("preact", "scales") if is_deferred else ("three", "all_kinds"):
        ended = CASES[case].on(plan)
        hold(simulate, CASES[case], ended, *ragged(ended))


@pytest.mark.parametrize("case", OF_TILES)
@pytest.mark.parametrize("name", ["c", "c_f32", "c_m_major"])
def test_tiles_that_come_by_tma(name, case):
    plan = CASES[case].on(form(name, 2))
    assert plan.fetched_tile == {"residual": "residual", "three": "gate", "all_kinds": "tile"}[case]
    hold(simulate, CASES[case], plan, *ragged(plan, tiles=0))


@pytest.mark.parametrize("mnk", [(1, 1, 1), (1, 9, 8), (40, 1, 8), (17, 20, 0)])
@pytest.mark.parametrize("name", ["simt", "mma.sync, direct", "direct, elements"])
def test_extents_of_one_and_no_k(name, mnk):
    for case in ("all_kinds", "three"):
        plan = CASES[case].on(PLANS[name]())
        hold(simulate, CASES[case], plan, *extents_of(plan, *mnk))


def test_a_row_is_read_in_whole_vectors_up_to_its_end():
    case = Case(lambda acc, bias: acc + bias, {"bias": Row}, {"bias": f32})
    plan = PLANS["direct, m-major"]()
    with pytest.raises(PlanError, match=r"BIAS has 75 elements, but is read 2 at a time\. .* aligned to 4 bytes"):
        hold(simulate, case, case.on(plan, align_bytes=16), 80, 75, 16)
    hold(simulate, case, case.on(plan, align_bytes=16), 80, 76, 16)
    hold(simulate, case, case.on(plan, align_bytes=4), 80, 75, 16)


WHOLE = Operands.of("s8", layout="nt", out="s32")


@pytest.mark.parametrize(
    ("text", "kinds", "said"),
    [
        ("relu(acc)", {}, r"D is s32; .* not by relu\(acc\)\. Make D f32"),
        ("acc - x", {"x": Tile}, "not by acc - x"),
        ("acc / 2", {}, "not by acc / 2"),
        ("where(acc > 0, acc, 0)", {}, "not by acc > 0"),
        ("acc + x", {"x": Row}, "not by x"),
        ("acc + 1, acc", {}, "an epilogue with an integer D has no auxiliary outputs"),
    ],
)  # fmt: skip
def test_what_whole_numbers_are_not_made_of(text, kinds, said):
    with pytest.raises(PlanError, match=said):
        form("s8", 2).with_(epilogue=parse_epilogue(text, kinds))
    assert form("s8", 2).with_(epilogue=parse_epilogue("acc * 2 + 1")).operands.d.dtype.name == "s32"


@pytest.mark.parametrize(
    ("text", "aux", "said"),
    [
        ("acc + x", {"x": Operand.of_kind(Row, tf32)}, "X is tf32. Only A and B of a tensor-core MMA are tf32"),
        (
            "acc + 1, aux = acc",
            {"aux": Operand(s8, "n")},
            "AUX is s8; an auxiliary output must have a floating-point type",
        ),
        ("s8(acc) + 1", {}, r"s8\(acc\) rounds to integers; the type of a cast must be"),
    ],
)
def test_types_that_no_kernel_serves(text, aux, said):
    epilogue = parse_epilogue(text, {"x": Row} if "x" in aux else None)
    plan = small_plan()
    with pytest.raises(PlanError, match=said):
        plan.with_(epilogue=epilogue, operands=plan.operands.with_aux(**aux))


def test_operands_and_results_count_among_the_least_bytes():
    """bf16 of 4 x 6 by 8: 64 + 96 + 48; a row of 6 f32, a column of 4 f32, and a result of f32: 24 + 16 + 96."""
    case = CASES["scales"]
    plan = case.on(PLANS["mma.sync"]())
    operands = plan.operands.with_aux(aux=Operand(f32, "n"))
    of = Problem(4, 6, 8, operands=operands)
    assert of.bytes_of("by_row") == 16
    assert of.bytes_of("scale") == 4
    assert of.min_bytes == 64 + 96 + 48 + 24 + 16 + 4 + 96
    assert Problem(4, 6, 8, operands=PLANS["mma.sync"]().operands).min_bytes == 208


# --- random expressions ------------------------------------------------------------------------------------

SUMS = np.array([-3.0, -0.75, -0.0, 0.125, 1.0, 2.5])
GIVEN = {
    "row": np.array([0.5, -2.0, 0.25, 1.0, -1.0, 2.5]),
    "column": np.array([-0.5, 3.0, 1.5, -1.25, 0.75, 0.125]),
    "tile": np.array([1.0, -1.0, 2.0, 0.375, -0.5, 0.0]),
    "one": np.array([0.75]),
}


@settings(max_examples=100, deadline=None)
@given(tame_expressions())
def test_values_are_those_of_the_printed_expression(expression):
    epilogue = Epilogue(Accumulator() + expression)
    want = reference(epilogue, SUMS, {**GIVEN, "s": 0.5})["d"]
    for kind, near in ((f64, 1e-12), (f32, 1e-4)):
        tensors = {name: values.astype(kind.storage) for name, values in GIVEN.items()}
        got = evaluate(epilogue, SUMS.astype(kind.storage), {"s": 0.5}, tensors, kind)
        assert got.dtype == kind.storage
        np.testing.assert_allclose(got, want, rtol=near, atol=near)


@settings(max_examples=100, deadline=None)
@given(any_expressions())
def test_whatever_can_be_written_has_values(expression):
    """Infinities and NaN too: as in Python, and without a warning."""
    epilogue = Epilogue(Accumulator() + expression)
    with np.errstate(all="raise"):
        got = evaluate(epilogue, SUMS, {"s": 0.5}, GIVEN, f64)
    assert got.shape == SUMS.shape
