"""Epilogues evaluated by torch: on tensors of any device, and differentiable."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from cutegemm.dtypes import DType
from cutegemm.plan.epilogue import (
    Accumulator,
    Add,
    Binary,
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
)
from cutegemm.run.torch_ops import memory_of
from cutegemm.torch.halves import is_half, part

FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "abs": torch.abs,
    "square": torch.square,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "exp": torch.exp,
    "log": torch.log,
    "tanh": torch.tanh,
    "erf": torch.erf,
    "sigmoid": torch.sigmoid,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
}
_OF_WHOLE = ("abs", "square", "relu")  # functions of whole numbers that are such
_BINARY = {Add: operator.add, Subtract: operator.sub, Multiply: operator.mul, Divide: operator.truediv}
_COMPARISONS = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}


class Values:
    """The values of expressions, each computed when it is first asked for.

    acc        what gives the sums
    operands   tensors and numbers by name
    shape      extents of D, over which sums and maxima are taken; not needed without these
    known      values that need not be computed

    >>> from cutegemm.torch.text import formula
    >>> (result,) = formula("lambda acc, bias: relu(acc + bias)").results
    >>> acc, bias = torch.tensor([[1.0, 2.0], [-3.0, 4.0]]), torch.tensor([0.5, -5.0])
    >>> Values(lambda: acc, {"bias": bias})(result)
    tensor([[1.5000, 0.0000],
            [0.0000, 0.0000]])
    """

    def __init__(
        self,
        acc: Callable[[], torch.Tensor],
        operands: Mapping[str, Any],
        shape: Sequence[int] = (),
        known: Mapping[Expression, torch.Tensor] | None = None,
    ) -> None:
        self._acc, self._operands, self._shape = acc, operands, shape
        self._known: dict[Expression, Any] = dict(known or {})

    def __call__(self, node: Expression) -> Any:
        found = self._known.get(node)
        if found is None:
            found = self._known[node] = self._computed(node)
        return found

    def _computed(self, node: Expression) -> Any:
        if isinstance(node, Accumulator):
            return self._acc()
        if isinstance(node, Constant):
            return node.value
        if isinstance(node, Input):
            return self._operands[node.name]
        given = [self(child) for child in node.children]
        if isinstance(node, Binary):
            return _BINARY[type(node)](*given)
        if isinstance(node, Negative):
            return -given[0]
        if isinstance(node, Function):
            x = tensor_of(given[0])
            return FUNCTIONS[node.name](x if x.is_floating_point() or node.name in _OF_WHOLE else x.float())
        if isinstance(node, Minimum):
            return _extreme(isinstance(node, Maximum), *given)
        if isinstance(node, Compare):
            return _COMPARISONS[node.symbol](*given)
        if isinstance(node, Where):
            condition, left, right = given
            if not isinstance(left, torch.Tensor) and not isinstance(right, torch.Tensor):
                left = torch.as_tensor(left, dtype=self._compared(node.children[0]))
            return torch.where(tensor_of(condition), left, right)
        if isinstance(node, Cast):
            return rounded(tensor_of(given[0]), node.dtype)
        if isinstance(node, Reduction):
            return reduced(node, tensor_of(given[0]).expand(self._shape))
        if is_half(node):
            return part(node, given[0])
        raise TypeError(f"{type(node).__name__} {node} is not evaluated by torch.")

    def _compared(self, condition: Expression) -> torch.dtype:
        """The type in which numbers are chosen by a comparison: of what is compared."""
        values = [self(child) for child in condition.children]
        kinds = [x.dtype for x in values if isinstance(x, torch.Tensor) and x.is_floating_point()]
        return kinds[0] if kinds else torch.float32


def tensor_of(value: Any) -> torch.Tensor:
    """A number as a tensor of no dimension, whose type gives way to that of any that has some."""
    if isinstance(value, torch.Tensor):
        return value
    return torch.as_tensor(value, dtype=torch.float64 if isinstance(value, float) else None)


def _extreme(is_largest: bool, left: Any, right: Any) -> Any:
    if not isinstance(left, torch.Tensor):
        left, right = right, left
    if isinstance(right, torch.Tensor):
        return torch.maximum(left, right) if is_largest else torch.minimum(left, right)
    return torch.clamp(tensor_of(left), **{"min" if is_largest else "max": right})


def modes_of(node: Reduction) -> list[int]:
    """Return the dimensions of D that a sum or maximum is taken over."""
    return [{"m": -2, "n": -1}[mode] for mode in node.along]


def reduced(node: Reduction, x: torch.Tensor) -> torch.Tensor:
    """Return the sum or the maximum of x over some of its last two dimensions; a maximum of nothing is -inf.

    >>> reduced(Reduction("max", ("n",), Constant(0.0)), torch.tensor([[1.0, 3.0], [2.0, torch.nan]]))
    tensor([3., nan])
    """
    modes, x = modes_of(node), x if x.is_floating_point() else x.float()
    if node.operation == "sum":
        return x.sum(modes)
    if any(x.shape[mode] == 0 for mode in modes):
        return x.sum(modes) + node.identity
    return x.amax(modes)


def rounded(x: torch.Tensor, dtype: DType) -> torch.Tensor:
    """The nearest values of an element type, in the type of x."""
    return stored(x, memory_of(dtype)).to(x.dtype) if dtype.name != "tf32" else x


def stored(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Values as a kernel stores them: past the largest of a type of one byte they become that.

    >>> stored(torch.tensor([500.0]), torch.float8_e4m3fn).float()
    tensor([448.])
    """
    if dtype == x.dtype:
        return x
    if not dtype.is_floating_point and x.dtype.is_floating_point:
        limits = torch.iinfo(dtype)
        return x.round().clamp(limits.min, limits.max).to(dtype)
    if dtype.itemsize == 1:
        limit = torch.finfo(dtype).max
        return x.clamp(-limit, limit).to(dtype)
    return x.to(dtype)


def nodes_of(results: Sequence[Expression]) -> Iterator[Expression]:
    """The nodes of expressions, each once, behind those that it is made of."""
    seen: set[Expression] = set()
    for result in results:
        for node in result.nodes():
            if node not in seen:
                seen.add(node)
                yield node
