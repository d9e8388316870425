"""Epilogues as text, evaluated by torch, and differentiated: against torch's autograd, with random expressions."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from cutegemm.errors import PlanError  # noqa: E402
from cutegemm.plan.epilogue import Accumulator, Tensor, functions  # noqa: E402
from cutegemm.torch.autograd import needed, with_saved  # noqa: E402
from cutegemm.torch.derivatives import ExpressionRules, TensorRules, derivative, pullback  # noqa: E402
from cutegemm.torch.epilogue import formula, text_of  # noqa: E402
from cutegemm.torch.reference import FUNCTIONS, Values  # noqa: E402
from tests.torch.cases import close, normal  # noqa: E402

# Functions that have a derivative everywhere, for any argument.
SMOOTH = ("square", "tanh", "erf", "sigmoid", "gelu", "gelu_tanh", "silu")
LEAVES = (Accumulator(), Tensor("bias"), Tensor("tile"), -1.5, 0.0, 0.5, 1.0)


def node(children):
    both = st.tuples(children, children)
    return (
        both.map(lambda pair: functions._expression("test", pair[0]) + pair[1])
        | both.map(lambda pair: functions._expression("test", pair[0]) - pair[1])
        | both.map(lambda pair: functions._expression("test", pair[0]) * pair[1])
        | both.map(lambda pair: pair[0] / (1.5 + functions.square(pair[1])))
        | both.map(lambda pair: functions.minimum(*pair))
        | both.map(lambda pair: functions.maximum(*pair))
        | st.tuples(children, children).map(lambda t: functions.where(functions.square(t[0]) > t[1], *t))
        | children.map(lambda x: -functions._expression("test", x))
        | st.tuples(st.sampled_from(SMOOTH), children).map(lambda pair: getattr(functions, pair[0])(pair[1]))
    )


trees = st.recursive(st.sampled_from(LEAVES), node, max_leaves=6)
expressions = trees.map(lambda x: functions._expression("test", x) + Accumulator())


@settings(max_examples=120, deadline=None)
@given(expressions)
def test_text_values_and_derivatives(expression):
    """Written and read, it has the same value; its derivatives are those that autograd finds of its value."""
    names = ("bias", "tile")
    both = Tensor("bias") * 0.0 + Tensor("tile") * 0.0  # an epilogue takes what it is passed
    text = text_of([expression, Accumulator() + both], names)
    read = formula(text)
    assert formula(text_of(read.results, names)).results == read.results
    acc, bias, tile = normal(3, 4, grad=True), normal(4, seed=1, grad=True), normal(3, 4, seed=2, grad=True)
    values = Values(lambda: acc, {"bias": bias, "tile": tile})
    result = values(expression)
    close([values(read.results[0])], [result], 0.0)
    upstream = normal(3, 4, seed=3)
    inputs = {"acc": acc, "bias": bias, "tile": tile}
    theirs = torch.autograd.grad(result, inputs.values(), upstream, allow_unused=True, retain_graph=True)
    for arithmetic in (TensorRules(), AsTensors()):
        found = pullback([expression], [upstream], values, frozenset(inputs), arithmetic)
        for (name, x), other in zip(inputs.items(), theirs, strict=True):
            if other is None:
                assert name not in found or not (found[name] * 1.0).any()
            else:
                close([found[name].expand(3, 4).sum_to_size(x.shape)], [other], 1e-9)


class AsTensors(TensorRules):
    """The rules of expressions, computed on tensors: without torch's own derivatives."""

    def fused(self, name):
        return None


@pytest.mark.parametrize("name", FUNCTIONS)
def test_each_function(name):
    """Both kinds of rules, and the expression that `gemm_dact` is made of."""
    x = (normal(50).abs() + 0.1) if name in ("sqrt", "rsqrt", "log") else normal(50)
    x.requires_grad_()
    (result,) = formula(f"lambda acc: {name}(acc)").results
    values = Values(lambda: x, {})
    g = normal(50, seed=1)
    (wanted,) = torch.autograd.grad(values(result), x, g, retain_graph=True)
    for arithmetic in (TensorRules(), AsTensors()):
        close([pullback([result], [g], values, frozenset({"acc"}), arithmetic)["acc"]], [wanted])
    as_expression = derivative(getattr(functions, name)(Tensor("preact")), "preact", Accumulator())
    close([Values(lambda: g, {"preact": x})(as_expression)], [wanted])


def test_ties_and_kinks():
    """As torch has them: half of it to each of two tensors, all of it where a number bounds, none of relu at 0."""
    x = torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64, requires_grad=True)
    y = torch.tensor([0.0, 1.0, 1.0], dtype=torch.float64)
    cases = [
        ("lambda acc, y: minimum(acc, y)", lambda: torch.minimum(x, y)),
        ("lambda acc, y: maximum(y, acc)", lambda: torch.maximum(x, y)),
        ("lambda acc, y: maximum(acc, 1) + 0 * y", lambda: x.clamp(min=1)),
        ("lambda acc, y: minimum(1, acc) + 0 * y", lambda: x.clamp(max=1)),
        ("lambda acc, y: relu(acc) + 0 * y", lambda: torch.relu(x)),
        ("lambda acc, y: abs(acc) + 0 * y", lambda: x.abs()),
    ]
    for text, theirs in cases:
        (result,) = formula(text).results
        found = pullback([result], [torch.ones(3)], Values(lambda: x, {"y": y}), frozenset({"acc"}), TensorRules())
        (wanted,) = torch.autograd.grad(theirs().sum(), x)
        assert torch.equal(found["acc"].double(), wanted), text


KEPT = [
    # (epilogue, auxiliary output): None if the backward pass needs only D, the operands or nothing
    ("lambda acc: acc", None),
    ("lambda acc, bias: acc + bias", None),
    ("lambda acc, bias: relu(acc + bias)", None),
    ("lambda acc, bias: tanh(acc + bias)", None),
    ("lambda acc, bias: gelu(acc + bias)", "acc + bias"),
    ("lambda acc, c: gelu(acc) * c", "acc"),
    ("lambda acc, bias: silu(halves(acc + bias)[0]) * halves(acc + bias)[1]", "acc + bias"),
    ("lambda acc: square(relu(acc))", "relu(acc)"),
]


@pytest.mark.parametrize(("text", "kept"), KEPT)
def test_what_is_stored_for_the_way_back(text, kept):
    names = formula(text).names
    found = formula(with_saved(text, len(names)))
    assert found.results[: len(formula(text).results)] == formula(text).results
    more = [text_of([each], ()).removeprefix("lambda acc: ") for each in found.results[1:]]
    assert more == ([] if kept is None else [kept])
    assert "acc" not in needed(found.text, frozenset({"acc", *names})).names


REFUSED = [
    (
        "acc + 1",
        "a lambda of the accumulator and of operands by name is expected",
    ),
    ("lambda acc: acc +", "it is not Python:"),
    (
        "lambda acc, *rest: acc",
        "a lambda of the accumulator and of operands by name is expected",
    ),
    (
        "lambda acc, x=1: acc * x",
        "a lambda of the accumulator and of operands by name is expected",
    ),
    (
        "lambda acc: acc ** 2",
        "cannot be used in an epilogue",
    ),
    ("lambda acc: __import__('os')", "__import__ is not a function of an epilogue"),
    (
        "lambda acc: acc.__class__",
        "cannot be used in an epilogue",
    ),
    (
        "lambda acc: [acc for acc in acc]",
        "cannot be used in an epilogue",
    ),
    ("lambda acc: gelu(acc, acc=acc)", "keyword and starred arguments are not supported. Pass positional arguments."),
    ("lambda acc: other", "'other' is not an operand; the operands are acc"),
]


@pytest.mark.parametrize(("text", "words"), REFUSED)
def test_text_that_is_no_epilogue(text, words):
    with pytest.raises(PlanError, match=words):
        formula(text)


def test_rules_on_expressions_know_every_function():
    for name in functions.NAMES:
        assert derivative(getattr(functions, name)(Tensor("x")), "x", Accumulator()) is not None
        assert ExpressionRules().fused(name) is None
