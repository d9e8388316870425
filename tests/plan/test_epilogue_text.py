"""Epilogues from text: what is printed is read again, and what is not an epilogue is refused with a message."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from cutegemm import epilogue as e
from cutegemm.dtypes import bf16
from cutegemm.errors import PlanError
from cutegemm.plan.epilogue import (
    Accumulator,
    Cast,
    Compare,
    Constant,
    Divide,
    Epilogue,
    Multiply,
    Negative,
    Row,
    Scalar,
    Subtract,
    Tile,
    Where,
    epilogue_of,
    parse_epilogue,
    parse_expression,
)
from cutegemm.plan.epilogue.text import function_of, operands_of, written
from tests.epilogues import CASES
from tests.expressions import KINDS, any_expressions

ACC, S = Accumulator(), Scalar("s")


@settings(max_examples=300, deadline=None)
@given(any_expressions())
def test_what_is_printed_is_read_again(expression):
    assert parse_expression(str(expression), KINDS) == expression


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        (Negative(Constant(2.0)), "-(2)"),  # a sign that is an operation, and one that is the number's own
        (Constant(-2.0), "-2"),
        (Negative(Constant(-2.0)), "-(-2)"),
        (Multiply(Constant(-2.0), ACC), "-2 * acc"),
        (Subtract(ACC, Negative(S)), "acc - -s"),
        (Negative(Multiply(ACC, S)), "-(acc * s)"),
        (Multiply(Negative(ACC), S), "-acc * s"),
        (Divide(ACC, Multiply(S, S)), "acc / (s * s)"),
        (Constant(1 / 3), "0.3333333333333333"),
        (Constant(1e30), "1e+30"),
        (Constant(-0.0), "-0.0"),  # Python reads -0 as 0
        (Cast(ACC, bf16), "bf16(acc)"),
        (Where(Compare("==", ACC, S), S, Constant(0.0)), "where(acc == s, s, 0)"),
    ],
)
def test_print(expression, text):
    assert str(expression) == text
    assert parse_expression(text, {"s": Scalar}) == expression


def test_functions_that_are_made_of_others_are_read_too():
    assert parse_expression("clamp(softcap(acc, 30), -1, 1)") == e.clamp(e.softcap(ACC, 30), -1, 1)
    assert parse_expression('cast(acc, "bf16")') == parse_expression("bf16(acc)") == e.cast(ACC, "bf16")
    assert parse_expression("where(equal(acc, 0), 1, acc)") == e.where(e.equal(ACC, 0), 1, ACC)
    assert parse_expression("silu(s) + acc", {"s": Scalar}) == e.silu(S) + ACC


@pytest.mark.parametrize("name", CASES)
def test_epilogues(name):
    case = CASES[name]
    (_, first), *aux = (*case.epilogue.results, *case.epilogue.reductions)
    text = ", ".join([written(first), *[f"{name} = {written(each)}" for name, each in aux]])
    again = parse_epilogue(text, case.kinds)
    assert again == case.epilogue
    assert text == str(case.epilogue) or case.epilogue.gated
    assert hash(again) == hash(case.epilogue)


def test_further_results_have_the_names_that_they_are_given():
    text = "gelu(acc + bias), preact = acc + bias"
    assert parse_epilogue(text, {"bias": Row}).outputs == ("d", "preact")
    for unnamed in ("acc + 1, acc, -acc", "(acc + 1, acc, -acc)", "lambda x: (x + 1, x, -x)"):
        assert parse_epilogue(unnamed) == epilogue_of(lambda acc: (acc + 1, acc, -acc), {})


def test_a_lambda_is_read_as_python_reads_it():
    text = "lambda acc, bias, scale=1: acc"
    with pytest.raises(
        PlanError,
        match=r"a lambda of the accumulator and of operands by name is expected, such as 'lambda acc, bias: relu\(acc",
    ):
        function_of(text)
    text = "lambda sums, bias, scale: (gelu(sums * scale + bias), 2 * 3)"
    assert operands_of(text) == ("bias", "scale")
    kinds = {"bias": Row, "scale": Scalar}
    read = epilogue_of(function_of(text), kinds)
    assert read == epilogue_of(lambda acc, bias, scale: (e.gelu(acc * scale + bias), Constant(2.0) * 3), kinds)
    assert parse_epilogue(text, kinds) == read
    with pytest.raises(PlanError, match=r"it takes bias and scale; pass their kinds\."):
        parse_epilogue(text)
    with pytest.raises(PlanError, match="it has the parameter 'bias', which is not passed"):
        epilogue_of(function_of(text), {"scale": Scalar})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gelu(acc + bais)", r"'bais' is not an operand; the operands are acc, bias\."),
        ("__import__('os')", "__import__ is not a function of an epilogue; the functions are cast, abs, square, sqrt"),
        ("acc.up + bias", r"acc\.up: halves\(acc\)\[1\] or pairs\(acc\)\[1\] is expected"),
        ("acc.d", r"acc\.d cannot be used in an epilogue."),
        ("acc ** 2", r"acc \*\* 2 cannot be used in an epilogue."),
        ("acc if acc > 0 else bias", "cannot be used in an epilogue."),
        ("(lambda: acc)()", "cannot be used in an epilogue."),
        ("acc.detach()", r"acc\.detach\(\) cannot be used in an epilogue."),
        ("0 < acc < 1", "cannot be used in an epilogue."),
        ("gelu(acc, acc)", r"gelu\(acc, acc\): .*argument"),
        ("where(acc, 1, 2)", "the condition is .*; a comparison such as acc > 0 is expected"),
        ("gelu(x=acc)", "keyword and starred arguments are not supported. Pass positional arguments."),
        ("gelu(*acc)", "keyword and starred arguments are not supported. Pass positional arguments."),
        ("cast(acc)", "an expression and a type such as 'bf16' are expected"),
        ("cast(acc, 'f17')", "'f17' is not an element type"),
        ("'acc'", "'acc' is not a value of an element. Use an expression or a number."),
        ("acc + True", "cannot be used in an epilogue."),
        ("acc +", "it is not Python:"),
        ("acc), open('x'", "an expression of acc, the accumulator of A @ B, is expected."),
        ("", "the first expression has a name; it is D, which has none."),
        ("d = acc", "the first expression has a name; it is D, which has none."),
        ("bias", "it does not use the accumulator. Build it from Accumulator()."),
        ("acc, bias = acc", "'bias' is declared as an operand, but does not appear."),
        ("bias + acc, bias = acc", "'bias' names a Row and a result"),
        ("-" * 300 + "acc", "200 deep or more. Use fewer in each other."),
        ("(" * 5000 + "acc" + ")" * 5000, "it is not Python:"),
        ("acc > bias", "is the comparison acc > bias, not a number."),
        (f"acc * {10**400}", "is too large for a float; use a number that float32 holds"),
        (f"softcap(acc, {10**400})", "a number of magnitude 1e-30 to 1e\\+30 is expected"),
        ("softcap(acc, 0)", "cap is 0; a number of magnitude 1e-30 to 1e\\+30 is expected"),
    ],
)  # fmt: skip
def test_what_is_no_epilogue(text, message):
    with pytest.raises(PlanError, match=message):
        parse_epilogue(text, {"bias": Row} if "bias" in text or "bais" in text else None)


def test_operands_may_have_the_names_of_functions():
    kinds = {"gelu": Row, "exp": Tile}
    epilogue = Epilogue(e.gelu(ACC + Row("gelu")) * Tile("exp"))
    assert parse_epilogue(str(epilogue), kinds) == epilogue
