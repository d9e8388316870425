"""Derivatives of epilogues, from the results back to the sums and the operands: reverse accumulation.

One table of rules serves two kinds of values: torch tensors, in the backward pass of a product, and expressions, of
which the epilogues of `gemm_dact` and `gemm_dgated` are made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch

from cutegemm.plan.epilogue import (
    Accumulator,
    Add,
    Cast,
    Compare,
    Constant,
    Divide,
    Expression,
    Function,
    Input,
    Maximum,
    Minimum,
    Multiply,
    Negative,
    Reduction,
    Subtract,
    Where,
    functions,
)
from cutegemm.torch.halves import is_half, together
from cutegemm.torch.values import modes_of, nodes_of, tensor_of

ACC = "acc"  # the name of the sums among operands
Value = Callable[[Expression], Any]


class Arithmetic(Protocol):
    """What rules compute with, besides + - * / and comparisons."""

    def where(self, condition: Any, x: Any, y: Any) -> Any:
        """x where the condition holds, else y."""

    def function(self, name: str, x: Any) -> Any:
        """A function of one value."""

    def fused(self, name: str) -> tuple[str, Callable[[Any, Any], Any]] | None:
        """A product with a function's derivative that is one operation, if there is one, as in `_DERIVATIVES`."""

    def whole(self, halves: Sequence[tuple[Expression, Any]]) -> Any:
        """What gate and up, or one of them, add to what they are parts of."""

    def of_sum(self, node: Reduction, g: Any) -> Any:
        """Return the gradient of what a sum is taken of."""

    def of_maximum(self, node: Reduction, g: Any, x: Any, y: Any) -> Any:
        """Return the gradient of what a maximum is taken of: x; y is the maximum."""


class OfExpressions:
    """Rules on expressions."""

    def where(self, condition: Any, x: Any, y: Any) -> Any:
        return functions.where(condition, x, y)

    def function(self, name: str, x: Any) -> Any:
        return getattr(functions, name)(x)

    def fused(self, name: str) -> tuple[str, Callable[[Any, Any], Any]] | None:
        return None

    def whole(self, halves: Sequence[tuple[Expression, Any]]) -> Any:
        return sum(
            [g for _, g in halves[1:]], halves[0][1]
        )  # made of the same operands, which is all that is asked

    def of_sum(self, node: Reduction, g: Any) -> Any:
        return g

    def of_maximum(self, node: Reduction, g: Any, x: Any, y: Any) -> Any:
        return self.where(functions.equal(x, y), g, 0.0)


_ATEN = torch.ops.aten
_FUSED: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {
    "abs": ("x", lambda g, x: g * torch.sgn(x)),
    "tanh": ("y", lambda g, y: _ATEN.tanh_backward(*_of_one_type(g, y))),
    "sigmoid": ("y", lambda g, y: _ATEN.sigmoid_backward(*_of_one_type(g, y))),
    "relu": ("y", lambda g, y: _ATEN.threshold_backward(*_of_one_type(g, y), 0)),
    "gelu": ("x", lambda g, x: _ATEN.gelu_backward(*_of_one_type(g, x))),
    "gelu_tanh": ("x", lambda g, x: _ATEN.gelu_backward(*_of_one_type(g, x), approximate="tanh")),
    "silu": ("x", lambda g, x: _silu_backward(*_of_one_type(g, x))),
}


def _silu_backward(g: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """torch's own is not differentiable, as its autograd has it only where no gradients of gradients are recorded."""
    if torch.is_grad_enabled():
        return g * _silu(OfTensors(), torch.sigmoid(x), x)
    found: torch.Tensor = _ATEN.silu_backward(g, x)
    return found


class OfTensors:
    """Rules on tensors: torch's own operations where it has one for a whole rule, one pass over memory.

    shape   extents of D; not needed without sums and maxima over it
    """

    def __init__(self, shape: Sequence[int] = ()) -> None:
        self.shape = shape

    def where(self, condition: Any, x: Any, y: Any) -> Any:
        return torch.where(tensor_of(condition), x, y)

    def function(self, name: str, x: Any) -> Any:
        return getattr(torch, name)(tensor_of(x))

    def fused(self, name: str) -> tuple[str, Callable[[Any, Any], Any]] | None:
        return _FUSED.get(name)

    def whole(self, halves: Sequence[tuple[Expression, Any]]) -> Any:
        return together(halves)

    def of_sum(self, node: Reduction, g: Any) -> Any:
        return self._spread(node, g)

    def of_maximum(self, node: Reduction, g: Any, x: Any, y: Any) -> Any:
        """Where several are the maximum each has an equal part of it, as torch.amax has it."""
        is_largest = tensor_of(x).expand(self.shape) == self._spread(node, y)
        count = is_largest.sum(modes_of(node), keepdim=True)
        return torch.where(is_largest, self._spread(node, g) / count, 0.0)

    def _spread(self, node: Reduction, x: Any) -> Any:
        """Return a value of each row, of each column or of all of D as one for each element."""
        x = x.unsqueeze(-2) if node.along == ("m",) else x.unsqueeze(-1)
        return (x.unsqueeze(-1) if len(node.along) == 2 else x).expand(self.shape)


def _of_one_type(g: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    wide = torch.promote_types(g.dtype, x.dtype)
    return g.to(wide), x.to(wide)


# Of each function: whether its rule is made of the argument x or of the value y; and g * dy/dx.
_DERIVATIVES: dict[str, tuple[str, Callable[[Arithmetic, Any, Any], Any]]] = {
    "abs": ("x", lambda f, g, x: f.where(x > 0, g, f.where(x < 0, -g, 0.0))),
    "square": ("x", lambda f, g, x: g * (2.0 * x)),
    "sqrt": ("y", lambda f, g, y: g * 0.5 / y),
    "rsqrt": ("y", lambda f, g, y: g * (-0.5 * (y * y * y))),
    "exp": ("y", lambda f, g, y: g * y),
    "log": ("x", lambda f, g, x: g / x),
    "tanh": ("y", lambda f, g, y: g * (1.0 - y * y)),
    "erf": ("x", lambda f, g, x: g * (2 / math.sqrt(math.pi) * f.function("exp", -(x * x)))),
    "sigmoid": ("y", lambda f, g, y: g * (y * (1.0 - y))),
    "relu": ("y", lambda f, g, y: f.where(y > 0, g, 0.0)),
    "gelu": ("x", lambda f, g, x: g * _gelu(f, x)),
    "gelu_tanh": ("x", lambda f, g, x: g * _gelu_tanh(f, x)),
    "silu": ("x", lambda f, g, x: g * _silu(f, f.function("sigmoid", x), x)),
}


def _gelu(f: Arithmetic, x: Any) -> Any:
    density = 1 / math.sqrt(2 * math.pi) * f.function("exp", -0.5 * (x * x))
    return 0.5 * (1.0 + f.function("erf", math.sqrt(0.5) * x)) + x * density


def _gelu_tanh(f: Arithmetic, x: Any) -> Any:
    slope, cubic = math.sqrt(2 / math.pi), 0.044715
    t = f.function("tanh", slope * x * (1.0 + cubic * (x * x)))
    return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * (slope * (1.0 + 3 * cubic * (x * x)))


def _silu(f: Arithmetic, s: Any, x: Any) -> Any:
    return s * (1.0 + x * (1.0 - s))


def pullback(
    results: Sequence[Expression],
    upstream: Sequence[Any],
    value: Value,
    wanted: frozenset[str],
    f: Arithmetic,
) -> dict[str, Any]:
    """The derivatives of sum(g * result) by operands, and by the sums, whose name is "acc".

    results    expressions
    upstream   g of each, of the extents of its result; None for one that has none
    value      gives the value of a node; asked only for what the rules need
    wanted     names of what to differentiate by
    returns    by name, of the extents of D; without those that do not count

    >>> from cutegemm.torch.text import formula
    >>> (result,) = formula("lambda acc, scale: square(acc) * scale").results
    >>> found = pullback([result], [Accumulator()], lambda node: node, frozenset({"acc"}), OfExpressions())
    >>> print(found["acc"])
    acc * scale * (2 * acc)
    """
    nodes = list(nodes_of(results))
    reaches: dict[Expression, bool] = {}
    for node in nodes:
        name = _leaf(node)
        passes = not isinstance(node, Compare) and any(reaches[child] for child in node.children)
        reaches[node] = name in wanted if name else passes
    adjoints: dict[Expression, Any] = {}

    def add(node: Expression, g: Any) -> None:
        before = adjoints.get(node)
        adjoints[node] = g if before is None else before + g

    for result, g in zip(results, upstream, strict=True):
        if g is not None and reaches[result]:
            add(result, g)
    found: dict[str, Any] = {}
    parted: dict[
        Expression, list[tuple[Expression, Any]]
    ] = {}  # what gate and up leave for what they are parts of
    for node in reversed(nodes):
        if node in parted:
            add(node, f.whole(parted[node]))
        g = adjoints.pop(node, None)
        if g is None:
            continue
        name = _leaf(node)
        if name:
            found[name] = g
            continue
        if is_half(node):
            parted.setdefault(node.children[0], []).append((node, g))
            continue
        for child, term in _terms(node, g, value, f):
            if reaches[child]:
                add(child, term())
    return found


def _leaf(node: Expression) -> str:
    return ACC if isinstance(node, Accumulator) else node.name if isinstance(node, Input) else ""


def _terms(
    node: Expression, g: Any, value: Value, f: Arithmetic
) -> Iterator[tuple[Expression, Callable[[], Any]]]:
    """For each child what it is to be multiplied by, computed when it is called."""
    if isinstance(node, Add):
        yield node.left, lambda: g
        yield node.right, lambda: g
    elif isinstance(node, Subtract):
        yield node.left, lambda: g
        yield node.right, lambda: -g
    elif isinstance(node, Multiply):
        yield node.left, lambda: _times(g, value(node.right))
        yield node.right, lambda: _times(g, value(node.left))
    elif isinstance(node, Divide):
        yield node.left, lambda: g / value(node.right)
        yield node.right, lambda: -(g * value(node.left)) / (value(node.right) * value(node.right))
    elif isinstance(node, Negative):
        yield node.child, lambda: -g
    elif isinstance(node, Cast):
        yield node.child, lambda: g
    elif isinstance(node, Function):
        yield node.child, lambda: _of_function(node, g, value, f)
    elif isinstance(node, Reduction) and node.operation == "sum":
        yield node.child, lambda: f.of_sum(node, g)
    elif isinstance(node, Reduction):
        yield node.child, lambda: f.of_maximum(node, g, value(node.child), value(node))
    elif isinstance(node, Minimum):
        yield from _of_extreme(node, g, value, f)
    elif isinstance(node, Where):
        yield node.left, lambda: f.where(value(node.condition), g, 0.0)
        yield node.right, lambda: f.where(value(node.condition), 0.0, g)


def _times(g: Any, factor: Any) -> Any:
    return g if isinstance(factor, float) and factor == 1.0 else g * factor


def _of_function(node: Function, g: Any, value: Value, f: Arithmetic) -> Any:
    fused = f.fused(node.name)
    if fused is not None:
        made_of, product = fused
        return product(g, tensor_of(value(node.child if made_of == "x" else node)))
    made_of, rule = _DERIVATIVES[node.name]
    return rule(f, g, value(node.child if made_of == "x" else node))


def _of_extreme(
    node: Minimum, g: Any, value: Value, f: Arithmetic
) -> Iterator[tuple[Expression, Callable[[], Any]]]:
    """Where both are equal each has half of it; beside a number, all of it, as torch's clamp has it."""

    def share(child: Expression, other: Expression) -> Any:
        x, y = value(child), value(other)
        x, y = (y, x) if isinstance(node, Maximum) else (x, y)  # now the child is taken where x < y
        at_a_tie = g if isinstance(other, Constant) else g * 0.5
        return f.where(x < y, g, f.where(x > y, 0.0, at_a_tie))

    yield node.left, lambda: share(node.left, node.right)
    yield node.right, lambda: share(node.right, node.left)


def derivative(result: Expression, name: str, g: Expression) -> Expression:
    """g * d result / d operand, as an expression.

    >>> from cutegemm.plan.epilogue import Tile
    >>> print(derivative(functions.tanh(Tile("preact")), "preact", Accumulator()))
    acc * (1 - tanh(preact) * tanh(preact))
    """
    found = pullback([result], [g], lambda node: node, frozenset({name}), OfExpressions())
    expression: Expression = found.get(name, Constant(0.0))
    return expression


def used(expressions: Mapping[str, Any]) -> frozenset[str]:
    """The names of what derivatives are made of."""
    return frozenset(_leaf(node) for each in expressions.values() for node in each.nodes() if _leaf(node))
