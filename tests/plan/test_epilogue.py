"""The expression of an epilogue: how it is written, printed, divided, and when its operands are not read."""

from __future__ import annotations

import pickle

import pytest

from cutegemm.build import simt_plan, sm90_plan
from cutegemm.errors import PlanError
from cutegemm.plan import Operands
from cutegemm.plan.epilogue import (
    LINEAR,
    SCALED,
    Accumulator,
    Add,
    Constant,
    Epilogue,
    Multiply,
    Scalar,
    Step,
    Tile,
    epilogue_of,
    parse_epilogue,
)

ACC, ALPHA, BETA, GAMMA = Accumulator(), Scalar("alpha"), Scalar("beta"), Scalar("gamma")
C, E = Tile("c"), Tile("e")


def test_operators_make_the_tree_that_they_read_as():
    assert ALPHA * ACC + BETA * C == Add(Multiply(ALPHA, ACC), Multiply(BETA, C)) == LINEAR.expression
    assert Add(Multiply(Constant(2.0), ACC), Constant(1.0)) == 2 * ACC + 1
    assert Add(Add(ACC, C), E) == ACC + C + E
    assert ACC * (C + 1) != ACC * C + 1


@pytest.mark.parametrize("other", ["alpha", None, [1.0]])
def test_other_values_are_no_operands(other):
    with pytest.raises(TypeError):
        ACC + other
    with pytest.raises(TypeError):
        other * ACC


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        (ALPHA * ACC + BETA * C, "alpha * acc + beta * c"),
        (ALPHA * (ACC + C), "alpha * (acc + c)"),
        ((ALPHA * BETA) * ACC, "alpha * beta * acc"),
        (ALPHA * (BETA * ACC), "alpha * (beta * acc)"),
        (ACC + (C + 0.5), "acc + (c + 0.5)"),
    ],
)
def test_printing_keeps_the_tree(expression, text):
    assert str(Epilogue(expression)) == str(expression) == text
    names = {"acc": ACC, "alpha": ALPHA, "beta": BETA, "c": C}
    assert eval(text, names) == expression


@pytest.mark.parametrize(
    ("expression", "steps", "head", "tail"),
    [
        (
            ALPHA * ACC + BETA * C,
            ["alpha * acc", "acc + beta * c"],
            "alpha * acc", "acc + beta * c",
        ),
        (ALPHA * ACC, ["alpha * acc"], "alpha * acc", "acc"),
        (ACC, [], "acc", "acc"),
        # The accumulator on the right, and a constant that cannot be added to each part of a sum
        (
            BETA * C + (ALPHA * ACC + 1),
            ["alpha * acc", "acc + 1", "beta * c + acc"],
            "alpha * acc", "beta * c + (acc + 1)",
        ),
        (
            GAMMA * (ALPHA * ACC + C) + E,
            ["alpha * acc", "acc + c", "gamma * acc", "acc + e"],
            "alpha * acc", "gamma * (acc + c) + e",
        ),
        # Sums that are used twice are one step
        (ALPHA * (ACC * (ACC + C)), ["acc * (acc + c)", "alpha * acc"],
         "acc", "alpha * (acc * (acc + c))"),
        (ALPHA * GAMMA * ACC * C, ["alpha * gamma * acc", "acc * c"],
         "alpha * gamma * acc", "acc * c"),
    ],
)  # fmt: skip
def test_division_into_steps(expression, steps, head, tail):
    epilogue = Epilogue(expression)
    assert [str(step) for step in epilogue.steps] == steps
    assert str(epilogue.head) == head
    assert str(epilogue.tail) == tail
    assert epilogue.tail.expression.replaced(ACC, epilogue.head.expression) == expression
    assert not epilogue.head.tiles
    assert set(epilogue.tail.tiles) == set(epilogue.tiles)


@pytest.mark.parametrize(
    ("expression", "idle"),
    [
        (ALPHA * ACC, {("alpha", 1.0)}),
        (ACC + BETA * C, {("beta", 0.0)}),
        (ACC + C * (GAMMA * BETA), {("beta", 0.0), ("gamma", 0.0)}),
        (ACC + BETA, {("beta", 0.0)}),
        (ACC * (BETA * C + 1), {("beta", 0.0)}),
        (ACC + (BETA + -1) * C, {("beta", 1.0)}),
        (ACC + C, set()),
        (ACC + BETA * C + E, set()),
        ((ALPHA * BETA) * ACC, set()),
        (ALPHA * ACC + 1, set()),
    ],
)
def test_values_of_scalars_that_change_nothing_follow_from_the_step(expression, idle):
    step = Step(expression)
    assert set(step.idle) == idle
    ordinary = dict.fromkeys(step.scalars, 0.75)
    assert not step.is_idle(ordinary)
    for name, value in idle:
        assert step.is_idle({**ordinary, name: value})
        assert step.expression.given({name: value}) == ACC


def test_no_name_is_special():
    renamed = Epilogue(Scalar("x") * ACC + Scalar("y") * Tile("z"))
    assert [step.idle for step in renamed.steps] == [(("x", 1.0),), (("y", 0.0),)]
    assert renamed.tensors_read({"x": 0.0, "y": 2.0}) == ("z",)
    assert renamed.tensors_read({"x": 0.0, "y": 0.0}) == ()


def test_tiles_are_read_where_a_step_needs_them():
    epilogue = Epilogue(ALPHA * ACC + BETA * C + GAMMA * E)
    values = {"alpha": 1.0, "beta": 0.0, "gamma": 2.0}
    assert epilogue.tensors_read(values) == ("e",)
    assert epilogue.tensors_read({**values, "beta": 1.0}) == ("c", "e")
    assert Epilogue(ACC + C).tensors_read({}) == ("c",)
    assert str(epilogue.without_tiles) == "alpha * acc"


@pytest.mark.parametrize(
    ("values", "left"),
    [
        ({"beta": 0.0}, "alpha * acc"),
        ({"alpha": 1.0}, "acc + beta * c"),
        ({"alpha": 1.0, "beta": 1.0}, "acc + c"),
        ({"alpha": 0.0}, "beta * c"),
        ({"alpha": 2.0}, "2 * acc + beta * c"),
        ({"gamma": 0.0}, "alpha * acc + beta * c"),
    ],
)
def test_what_is_left_for_values_of_scalars(values, left):
    assert str(LINEAR.expression.given(values)) == left


def test_constants_alone_are_computed():
    assert (ACC * (ALPHA * 3 + BETA)).given({"alpha": 2.0, "beta": 1.0}) == Multiply(ACC, Constant(7.0))


def test_an_epilogue_is_a_value():
    again = Epilogue(Scalar("alpha") * Accumulator() + Scalar("beta") * Tile("c"))
    assert again == LINEAR != SCALED
    assert hash(again) == hash(LINEAR)
    assert {LINEAR: 1}[again] == 1
    assert LINEAR.steps
    assert pickle.loads(pickle.dumps(LINEAR)) == again
    assert repr(LINEAR) == repr(again)
    # Equal texts, but different epilogues: an operand's kind is part of it
    assert repr(Epilogue(ACC + Scalar("x"))) != repr(Epilogue(ACC + Tile("x")))


@pytest.mark.parametrize(
    ("expression", "messages"),
    [
        (ALPHA * C, ["it does not use the accumulator. Build it from Accumulator()."]),
        (ACC + Tile("d"), ["'d' is not a name of an operand. Use an identifier other than"]),
        (ACC + Scalar("2x"), ["'2x' is not a name of an operand. Use an identifier other than"]),
        (ACC + Scalar("c") * C, ["'c' names a Scalar and a Tile"]),
        (
            Scalar("c") * C,
            ["it does not use the accumulator. Build it from Accumulator().", "'c' names a Scalar and a Tile"],
        ),
        ("alpha * acc", ["expression = 'alpha \\* acc'; an Expression is expected"]),
    ],
)
def test_what_is_no_epilogue(expression, messages):
    for message in messages:
        with pytest.raises(PlanError, match=message):
            Epilogue(expression)


def test_a_plan_holds_its_epilogue():
    plan = simt_plan()
    assert plan.epilogue == LINEAR
    assert plan.has_c
    scaled = plan.with_(epilogue=SCALED)
    assert not scaled.has_c
    assert scaled.key() != plan.key()
    assert "alpha * acc + beta * c" in plan.describe()
    assert "beta" not in scaled.describe()


def test_builders_choose_it_by_whether_c_is_read():
    operands = Operands.of("bf16", layout="nt")
    assert sm90_plan(operands).epilogue == SCALED
    assert sm90_plan(operands, with_c=True).epilogue == LINEAR


def test_pythons_own_abs_is_that_of_epilogues():
    own, known = epilogue_of(lambda acc: abs(acc) + 1, {}), parse_epilogue("abs(acc) + 1", {})
    assert own == known
    assert str(own) == "abs(acc) + 1"
