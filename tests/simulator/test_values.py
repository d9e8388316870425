"""The expression of an epilogue by numpy, and plans whose epilogue has one operand more."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutegemm.build import mma_sync_plan, simt_plan
from cutegemm.dtypes import f32, round_to, s32
from cutegemm.errors import PlanError
from cutegemm.plan import Operands
from cutegemm.plan.epilogue import LINEAR, SCALED, Accumulator, Constant, Epilogue, Scalar, Tile
from cutegemm.run.emulated import emulate
from cutegemm.simulator import simulate
from cutegemm.simulator.values import evaluate
from tests.simulator.plans import WARPS, small_plan

ACC, ALPHA, BETA, GAMMA = Accumulator(), Scalar("alpha"), Scalar("beta"), Scalar("gamma")
C, E = Tile("c"), Tile("e")
LARGE = 2**24 + 1  # that f32 does not hold


def test_floats_are_computed_in_the_type_of_the_sums():
    accumulators, c = np.float32([1 / 3, 7e8, -2.0]), np.float32([0.1, 1e-3, 5.0])
    got = evaluate(LINEAR, accumulators, {"alpha": 0.1, "beta": 0.7}, {"c": c}, f32)
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, accumulators * np.float32(0.1) + c * np.float32(0.7))
    wide = evaluate(LINEAR, accumulators.astype(np.float64), {"alpha": 0.1, "beta": 0.7}, {"c": c}, f32)
    np.testing.assert_array_equal(wide, accumulators.astype(np.float64) * 0.1 + c.astype(np.float64) * 0.7)


@pytest.mark.parametrize(
    ("alpha", "beta", "want"),
    [
        # Sums of -7, 7 and 2^24 + 1; C of 3, -3 and 2^24 + 1
        (1.0, 0.0, [-7, 7, LARGE]),
        (1.0, 1.0, [-4, 4, 2 * LARGE]),
        (0.5, 0.0, [-4, 4, 2**23]),  # -3.5, 3.5 and 2^23 + 1/2: of two neighbours the even one
        (1.0, 0.5, [-6, 6, LARGE + 2**23 + 1]),  # -5.5, 5.5 and 2^24 + 2^23 + 3/2
        (0.5, 1.0, [0, 0, 2**23 + LARGE + 1]),  # -1/2, 1/2
        (0.5, 0.5, [-2, 2, LARGE]),  # halves that are whole together
        (2.0, -1.0, [-17, 17, LARGE]),
        (1000.0, 0.0, [-7000, 7000, 2**31 - 1]),  # past the greatest number
    ],
)
def test_whole_numbers(alpha, beta, want):
    accumulators, c = np.array([-7, 7, LARGE], np.int32), np.array([3, -3, LARGE], np.int32)
    tiles = {"c": c} if beta else {}
    exact = evaluate(LINEAR, accumulators, {"alpha": alpha, "beta": beta}, tiles, s32)
    assert round_to(s32, exact).tolist() == want


def test_whole_sums_of_a_float_result_are_not_cut_off():
    got = evaluate(SCALED, np.array([-7, LARGE], np.int32), {"alpha": 0.5, "beta": 0.0}, {}, f32)
    assert got.tolist() == [-3.5, LARGE / 2]


def test_scalars_that_meet_whole_numbers_are_rounded_with_them():
    """A quarter of 8; and 8 + 1.25, which is not an integer until it is stored. Scalars are those of f32."""
    scalars = {"alpha": 0.5, "beta": 0.75}
    assert evaluate(Epilogue(ALPHA * ALPHA * ACC), np.array([8]), scalars, {}, s32).tolist() == [2.0]
    of_both = evaluate(Epilogue(ACC + (ALPHA + BETA)), np.array([8, -8]), scalars, {}, s32)
    assert of_both.tolist() == [9.25, -6.75]
    tenth = evaluate(SCALED, np.array([2**30]), {"alpha": 0.1, "beta": 0.0}, {}, s32)
    assert tenth.tolist() == [2**30 * float(np.float32(0.1))]
    assert evaluate(Epilogue(ACC + (ALPHA + BETA)), np.array([8]), scalars, {}, f32).tolist() == [9.25]


def test_a_tile_of_a_step_that_is_idle_is_not_asked_for():
    accumulators = np.float32([1.0, np.nan])
    got = evaluate(LINEAR, accumulators, {"alpha": 2.0, "beta": 0.0}, {}, f32)
    np.testing.assert_array_equal(got, np.float32([2.0, np.nan]))
    with pytest.raises(KeyError):
        evaluate(LINEAR, accumulators, {"alpha": 2.0, "beta": 1.0}, {}, f32)


LEAVES = st.sampled_from([ACC, ALPHA, BETA, C, E]) | st.integers(-2, 2).map(lambda x: Constant(float(x)))
EXPRESSIONS = st.recursive(
    LEAVES,
    lambda x: st.tuples(st.booleans(), x, x).map(lambda t: t[1] + t[2] if t[0] else t[1] * t[2]),
    max_leaves=8,
)
FEW = st.integers(-2, 3)


@settings(max_examples=300, deadline=None)
@given(EXPRESSIONS, FEW, FEW, st.lists(FEW, min_size=3, max_size=3))
def test_steps_one_after_the_other_are_the_expression(expression, alpha, beta, elements):
    """Small integers, whose results float64 holds exactly: Python computes the same, without steps."""
    epilogue = Epilogue(ACC + expression)
    acc, c, e = (np.array([float(x)]) for x in elements)
    scalars = {"alpha": float(alpha), "beta": float(beta)}
    got = evaluate(epilogue, acc, scalars, {"c": c, "e": e}, f32)
    names = {"acc": acc[0], "c": c[0], "e": e[0], **scalars}
    assert got.tolist() == [eval(str(epilogue), names)]
    between = evaluate(epilogue.head, acc, scalars, {"c": c, "e": e}, f32)
    assert evaluate(epilogue.tail, between, scalars, {"c": c, "e": e}, f32) == got


# --- in plans ----------------------------------------------------------------------------------------------


def whole_numbers(*shape, seed):
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)


TENSOR_CORES = {"block": (64, 64, 32), "warp": (32, 32), "stages": 3}
PLANS = {
    "simt": lambda: small_plan(),
    "simt, m-major": lambda: small_plan(Operands.of("f32", out_major="m")),
    "simt, two warps a stage": lambda: simt_plan(**WARPS),
    "split, last": lambda: small_plan(split_k=2, reduction="last"),
    "split, kernel": lambda: small_plan(split_k=3),
    "mma.sync": lambda: mma_sync_plan(Operands.of("bf16", out="f32"), store="direct", **TENSOR_CORES),
    "mma.sync, through shared memory": lambda: mma_sync_plan(Operands.of("bf16", out="f32"), **TENSOR_CORES),
}


@pytest.mark.parametrize("name", PLANS)
def test_one_operand_more(name):
    plan = PLANS[name]().with_(epilogue=Epilogue(ALPHA * ACC + BETA * C + GAMMA * E + 1))
    a, b = whole_numbers(40, 24, seed=1), whole_numbers(24, 48, seed=2)
    c, e = whole_numbers(40, 48, seed=3), whole_numbers(40, 48, seed=4)
    got = simulate(plan, a, b, c, alpha=2, beta=-1, gamma=3, e=e)
    np.testing.assert_array_equal(got.d, 2 * (a @ b) - c + 3 * e + 1)
    unread = np.full_like(c, np.nan)
    got = simulate(plan, a, b, unread, alpha=2, beta=0, gamma=3, e=e)
    np.testing.assert_array_equal(got.d, 2 * (a @ b) + 3 * e + 1)
    got = simulate(plan, a, b, alpha=1, gamma=0)
    np.testing.assert_array_equal(got.d, a @ b + 1)


def test_what_is_missing_or_unknown_is_told():
    a = np.ones((8, 8), np.float32)
    more = small_plan().with_(epilogue=Epilogue(ALPHA * ACC + GAMMA * E))
    with pytest.raises(PlanError, match="gamma is missing; the epilogue is alpha \\* acc \\+ gamma \\* e"):
        simulate(more, a, a)
    with pytest.raises(PlanError, match=r"gamma is 2\.0, but E is missing"):
        simulate(more, a, a, gamma=2.0)
    with pytest.raises(PlanError, match="the epilogue is acc \\+ e, but E is missing"):
        simulate(small_plan().with_(epilogue=Epilogue(ACC + E)), a, a)
    with pytest.raises(PlanError, match=r"bias is not an operand of the plan .*, whose epilogue is alpha"):
        simulate(small_plan(), a, a, bias=a)
    with pytest.raises(PlanError, match="the shapes"):
        simulate(more, a, a, gamma=2.0, e=a[:4])


@pytest.mark.parametrize("value", [None, "2", 1 + 2j, 10**400, np.ones(2), np.array("2"), [2.0]], ids=type)
def test_a_scalar_is_a_real_number(value):
    """Of `emulate` too, which looks at them before it compiles."""
    a = np.ones((8, 8), np.float32)
    for carry_out in (simulate, emulate):
        with pytest.raises(PlanError, match=r"alpha = .* is not a real number") as refused:
            carry_out(small_plan(), a, a, alpha=value, beta=value)
        assert len(refused.value.violations) == 2


def test_an_array_of_one_number_is_a_scalar():
    a = np.eye(8, dtype=np.float32)
    np.testing.assert_array_equal(simulate(small_plan(), a, a, alpha=np.full((1,), 2)).d, 2 * a)
