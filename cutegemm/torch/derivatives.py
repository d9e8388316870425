"""Derivatives of epilogues by reverse accumulation, from the results to the accumulator and the operands.

One set of rules serves tensors and expressions. A backward pass applies them to tensors. Applied to expressions, they
give the epilogues of `gemm_dact` and `gemm_dgated`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from cutegemm.plan import epilogue as nodes
from cutegemm.plan.epilogue import Expression, Half, Reduction, functions
from cutegemm.torch.reference import dims_of, join_halves, tensor_of

ACC = "acc"  # name of the accumulator among the operands
Value = Callable[[Expression], Any]
# The rule of a function: "x" if it reads the argument or "y" if it reads the value, and the function that applies it.
Fused = tuple[str, Callable[[Any, Any], Any]]
Term = tuple[Expression, Callable[[], Any]]


class ExpressionRules:
    """Functions, such as tanh, that build the derivative of an epilogue as a symbolic expression.

    The chain rule uses + - * / and the methods of this class. Its result is then an expression, which a kernel for the
    backward pass can compute. With the subclass `TensorRules`, which has the same methods, its result is a tensor.
    """

    def where(self, condition: Any, x: Any, y: Any) -> Any:
        """Return an expression whose value is x where a condition holds, and y elsewhere, like torch.where."""
        return functions.where(condition, x, y)

    def function(self, name: str, x: Any) -> Any:
        """Return the symbolic expression name(x), such as tanh(x), of a function with one argument."""
        return getattr(functions, name)(x)

    def fused(self, name: str) -> Fused | None:
        """Return how to go back through y = `name`(x) by one operation; None if no such operation exists.

        name      name of a function of one argument, such as "gelu"
        returns   (reads, function). The function maps (g, value) to g * dy/dx, where g is the gradient of y. The value
                  is x if `reads` is "x", else y
        """
        return None

    def join(self, halves: Sequence[tuple[Expression, Any]]) -> Any:
        """Return the gradient of an expression from the gradients of its gate columns and of its up columns.

        An expression has no columns, so the result is the sum of both. It reads the same operands as the gradient,
        which is enough to find out which values the backward pass needs.

        halves   a pair for each half: an expression of the class `Half`, which selects the gate or the up columns of
                 its argument, and the gradient of these columns
        """
        return sum([g for _, g in halves[1:]], halves[0][1])

    def of_sum(self, node: Reduction, g: Any) -> Any:
        """Return the gradient of each element that is summed, from the gradient g of the sum.

        node   the sum over rows, columns or all of D
        g      gradient of the sum: one value for each row, each column or all of D
        """
        return g

    def of_maximum(self, node: Reduction, g: Any, x: Any, y: Any) -> Any:
        """Return the gradient of each element x that a maximum is taken over.

        node   the maximum over rows, columns or all of D
        g      gradient of the maximum
        x      the elements
        y      the maximum
        """
        return self.where(functions.equal(x, y), g, 0.0)


class TensorRules(ExpressionRules):
    """Functions, such as tanh, that compute the derivative of an epilogue as torch tensors.

    The chain rule uses + - * / and the methods of this class. If torch has one operation for a whole derivative, such
    as that of gelu, the operation is used, in one pass over memory.

    shape   extents of D; needed only for reductions
    """

    def __init__(self, shape: Sequence[int] = ()) -> None:
        self.shape = shape

    def where(self, condition: Any, x: Any, y: Any) -> Any:
        return torch.where(tensor_of(condition), x, y)

    def function(self, name: str, x: Any) -> Any:
        return getattr(torch, name)(tensor_of(x))

    def fused(self, name: str) -> Fused | None:
        return _FUSED.get(name)

    def join(self, halves: Sequence[tuple[Expression, Any]]) -> Any:
        return join_halves(halves)

    def of_sum(self, node: Reduction, g: Any) -> Any:
        return self._spread(node, g)

    def of_maximum(self, node: Reduction, g: Any, x: Any, y: Any) -> Any:
        """Return the gradient of each element x that a maximum is taken over.

        Elements that are equal to the maximum share its gradient equally, as in torch.amax; all others get 0.

        node   the maximum over rows, columns or all of D
        g      gradient of the maximum
        x      the elements
        y      the maximum
        """
        is_largest = tensor_of(x).expand(self.shape) == self._spread(node, y)
        count = is_largest.sum(dims_of(node), keepdim=True)
        return torch.where(is_largest, self._spread(node, g) / count, 0.0)

    def _spread(self, node: Reduction, x: Any) -> Any:
        """Expand the value of a reduction, or its gradient, to the shape of D.

        node   the sum or maximum over rows, columns or all of D
        x      its value or gradient: (M,), (N,) or one number, with L in front if batched
        """
        x = x.unsqueeze(-2) if node.along == ("m",) else x.unsqueeze(-1)
        return (x.unsqueeze(-1) if len(node.along) == 2 else x).expand(self.shape)


def _promoted(g: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    dtype = torch.promote_types(g.dtype, x.dtype)
    return g.to(dtype), x.to(dtype)


def _silu_backward(g: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return g times the derivative of silu at x.

    torch's own operation for it is not differentiable, so it is used only if no gradients are recorded.

    g   gradient of silu(x)
    x   argument of silu
    """
    if torch.is_grad_enabled():
        return g * _silu(TensorRules(), torch.sigmoid(x), x)
    return torch.ops.aten.silu_backward(g, x)


_ATEN = torch.ops.aten
_FUSED: dict[str, Fused] = {
    "abs": ("x", lambda g, x: g * torch.sgn(x)),
    "tanh": ("y", lambda g, y: _ATEN.tanh_backward(*_promoted(g, y))),
    "sigmoid": ("y", lambda g, y: _ATEN.sigmoid_backward(*_promoted(g, y))),
    "relu": ("y", lambda g, y: _ATEN.threshold_backward(*_promoted(g, y), 0)),
    "gelu": ("x", lambda g, x: _ATEN.gelu_backward(*_promoted(g, x))),
    "gelu_tanh": ("x", lambda g, x: _ATEN.gelu_backward(*_promoted(g, x), approximate="tanh")),
    "silu": ("x", lambda g, x: _silu_backward(*_promoted(g, x))),
}
# The general rules, (rules, g, x or y) -> g * dy/dx.
_DERIVATIVES: dict[str, tuple[str, Callable[[ExpressionRules, Any, Any], Any]]] = {
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


def _gelu(f: ExpressionRules, x: Any) -> Any:
    density = 1 / math.sqrt(2 * math.pi) * f.function("exp", -0.5 * (x * x))
    return 0.5 * (1.0 + f.function("erf", math.sqrt(0.5) * x)) + x * density


def _gelu_tanh(f: ExpressionRules, x: Any) -> Any:
    slope, cubic = math.sqrt(2 / math.pi), 0.044715
    t = f.function("tanh", slope * x * (1.0 + cubic * (x * x)))
    return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * (slope * (1.0 + 3 * cubic * (x * x)))


def _silu(f: ExpressionRules, s: Any, x: Any) -> Any:
    return s * (1.0 + x * (1.0 - s))


def pullback(
    results: Sequence[Expression],
    upstream: Sequence[Any],
    value: Value,
    wanted: frozenset[str],
    f: ExpressionRules,
) -> dict[str, Any]:
    """Return the gradients of an epilogue's operands and accumulator, given the gradients of its results.

    This is reverse-mode differentiation of the epilogue. The accumulator's name is "acc".

    results    results of the epilogue, as expressions
    upstream   gradient of each result, of its shape; None if a result has no gradient
    value      function that returns the value of a subexpression; called only for values that the rules read
    wanted     names of the operands to differentiate by
    f          functions such as tanh for these values: `ExpressionRules` (symbolic) or `TensorRules` (tensors)
    returns    operand name -> derivative, of the shape of D; derivatives that are zero everywhere are left out

    >>> from cutegemm.torch.epilogue import formula
    >>> (result,) = formula("lambda acc, scale: square(acc) * scale").results
    >>> acc = nodes.Accumulator()
    >>> print(pullback([result], [acc], lambda node: node, frozenset({"acc"}), ExpressionRules())["acc"])
    acc * scale * (2 * acc)
    """
    ordered = list(nodes_of(results))
    reaches: dict[Expression, bool] = {}  # whether a wanted operand is below the node
    for node in ordered:
        name = _leaf(node)
        passes = not isinstance(node, nodes.Compare) and any(reaches[child] for child in node.children)
        reaches[node] = name in wanted if name else passes
    adjoints: dict[Expression, Any] = {}

    def add(node: Expression, g: Any) -> None:
        before = adjoints.get(node)
        adjoints[node] = g if before is None else before + g

    for result, g in zip(results, upstream, strict=True):
        if g is not None and reaches[result]:
            add(result, g)
    by_name: dict[str, Any] = {}
    halves: dict[Expression, list[tuple[Expression, Any]]] = {}  # gradients of gate and up, by the node of both
    for node in reversed(ordered):
        if node in halves:
            add(node, f.join(halves[node]))
        g = adjoints.pop(node, None)
        if g is None:
            continue
        if name := _leaf(node):
            by_name[name] = g
        elif isinstance(node, Half):
            halves.setdefault(node.children[0], []).append((node, g))
        else:
            for child, term in _terms(node, g, value, f):
                if reaches[child]:
                    add(child, term())
    return by_name


def nodes_of(results: Sequence[Expression]) -> Iterator[Expression]:
    """Yield all subexpressions of several expressions, each once, and after its own subexpressions."""
    return iter(dict.fromkeys(node for result in results for node in result.nodes()))


def _leaf(node: Expression) -> str:
    """Return the name of an operand in an expression tree, "acc" for the accumulator, and "" for an operation."""
    return ACC if isinstance(node, nodes.Accumulator) else node.name if isinstance(node, nodes.Input) else ""


def _terms(node: Expression, g: Any, value: Value, f: ExpressionRules) -> Iterator[Term]:
    """Yield (child, function) for each child of an operation: the function returns the child's term of the gradient.

    This is the chain rule for one node of an epilogue's expression: for x * y, the term of x is g * y.

    node    the operation
    g       gradient of the value of `node`
    value   function that returns the value of a subexpression
    f       functions such as tanh for these values: `ExpressionRules` (symbolic) or `TensorRules` (tensors)
    """
    if isinstance(node, nodes.Add):
        yield node.left, lambda: g
        yield node.right, lambda: g
    elif isinstance(node, nodes.Subtract):
        yield node.left, lambda: g
        yield node.right, lambda: -g
    elif isinstance(node, nodes.Multiply):
        yield node.left, lambda: _times(g, value(node.right))
        yield node.right, lambda: _times(g, value(node.left))
    elif isinstance(node, nodes.Divide):
        yield node.left, lambda: g / value(node.right)
        yield node.right, lambda: -(g * value(node.left)) / (value(node.right) * value(node.right))
    elif isinstance(node, nodes.Negative):
        yield node.child, lambda: -g
    elif isinstance(node, nodes.Cast):
        yield node.child, lambda: g
    elif isinstance(node, nodes.Function):
        yield node.child, lambda: _of_function(node, g, value, f)
    elif isinstance(node, Reduction) and node.operation == "sum":
        yield node.child, lambda: f.of_sum(node, g)
    elif isinstance(node, Reduction):
        yield node.child, lambda: f.of_maximum(node, g, value(node.child), value(node))
    elif isinstance(node, nodes.Minimum):
        yield node.left, lambda: _of_extreme(node, node.left, node.right, g, value, f)
        yield node.right, lambda: _of_extreme(node, node.right, node.left, g, value, f)
    elif isinstance(node, nodes.Where):
        yield node.left, lambda: f.where(value(node.condition), g, 0.0)
        yield node.right, lambda: f.where(value(node.condition), 0.0, g)


def _times(g: Any, factor: Any) -> Any:
    return g if isinstance(factor, float) and factor == 1.0 else g * factor


def _of_function(node: Any, g: Any, value: Value, f: ExpressionRules) -> Any:
    fused = f.fused(node.name)
    if fused is not None:
        reads, apply = fused
        return apply(g, tensor_of(value(node.child if reads == "x" else node)))
    reads, rule = _DERIVATIVES[node.name]
    return rule(f, g, value(node.child if reads == "x" else node))


def _of_extreme(node: Any, child: Expression, other: Expression, g: Any, value: Value, f: ExpressionRules) -> Any:
    """Return the gradient of one argument of a minimum or maximum of two arguments.

    Two equal tensors get half of g each. A tensor that is equal to a number gets all of it, as in torch.clamp.

    node           the minimum or maximum
    child, other   the argument whose gradient is wanted, and the other one
    g              gradient of the value of `node`
    value          function that returns the value of a subexpression
    f              functions such as tanh for these values: `ExpressionRules` (symbolic) or `TensorRules` (tensors)
    """
    x, y = value(child), value(other)
    if isinstance(node, nodes.Maximum):
        x, y = y, x
    return f.where(x < y, g, f.where(x > y, 0.0, g if isinstance(other, nodes.Constant) else g * 0.5))


def derivative(result: Expression, name: str, g: Expression) -> Expression:
    """Return g times the derivative of a result by an operand, as an expression; the constant 0 if it is not read.

    result   expression of an epilogue
    name     name of the operand
    g        factor of the derivative, such as the accumulator in the epilogue of a backward pass

    >>> print(derivative(functions.tanh(nodes.Tile("preact")), "preact", nodes.Accumulator()))
    acc * (1 - tanh(preact) * tanh(preact))
    """
    by_name = pullback([result], [g], lambda node: node, frozenset({name}), ExpressionRules())
    return by_name.get(name, nodes.Constant(0.0))


def operands_read(expressions: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of the operands that occur in derivatives; "acc" stands for the accumulator.

    expressions   operand name -> derivative as an expression, as `pullback` returns them
    """
    return frozenset(_leaf(node) for each in expressions.values() for node in each.nodes() if _leaf(node))
