"""The expression of an epilogue by numpy, rounded as the kernels round."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from cutegemm.dtypes import DType, round_to
from cutegemm.plan.epilogue import (
    COMPARED,
    Accumulator,
    Add,
    Cast,
    Compare,
    Constant,
    Divide,
    Epilogue,
    Expression,
    Function,
    Half,
    Maximum,
    Minimum,
    Multiply,
    Negative,
    Row,
    Scalar,
    Subtract,
    Tensor,
    Where,
)
from cutegemm.simulator.functions import BINARY, FUNCTIONS


def evaluate(
    epilogue: Epilogue,
    accumulators: np.ndarray,
    scalars: Mapping[str, float],
    tensors: Mapping[str, np.ndarray],
    result: DType,
) -> np.ndarray:
    """D's values of an epilogue for some sums, before they are rounded to the type of D.

    accumulators   of any shape; whole numbers are computed with as float64, which holds them. Of a gated epilogue (2,
                   ...), gates and ups
    tensors        of that shape, or one that numpy makes that: those that are read for these scalars; (2, ...) of rows
                   beside a gated B
    result         the type of D. Whole numbers are made in float64 of scalars of f32, and not rounded here but once,
                   when they are stored: to nearest, ties to even

    >>> from cutegemm.dtypes import f32, s32
    >>> from cutegemm.plan.epilogue import LINEAR
    >>> accumulators, c = np.array([-7, 7, 2**24 + 1]), np.array([1, 1, 2**24 + 1])
    >>> evaluate(LINEAR, accumulators, {"alpha": 0.5, "beta": 1.0}, {"c": c}, s32).tolist()
    [-2.5, 4.5, 25165825.5]
    >>> evaluate(LINEAR, np.float32([1.5]), {"alpha": 2.0, "beta": 0.0}, {}, f32).tolist()
    [3.0]
    """
    return results(epilogue, accumulators, scalars, tensors, result)["d"]


def results(
    epilogue: Epilogue,
    accumulators: np.ndarray,
    scalars: Mapping[str, float],
    tensors: Mapping[str, np.ndarray],
    result: DType,
) -> dict[str, np.ndarray]:
    """All that an epilogue stores, by name; "d" is D; and of each reduction what it reduces. As `evaluate` has it.

    >>> from cutegemm.dtypes import f32
    >>> from cutegemm.plan.epilogue import epilogue_of
    >>> both = epilogue_of(lambda acc: (acc * 2, acc), {})
    >>> {name: values.tolist() for name, values in results(both, np.float32([1.5]), {}, {}, f32).items()}
    {'d': [3.0], 'aux': [1.5]}
    """
    kind = accumulators.dtype if accumulators.dtype.kind == "f" else np.dtype(np.float64)
    values, aux = accumulators.astype(kind), {}
    for step in epilogue.steps:
        if not step.is_idle(scalars):
            elements = _Elements(values, scalars, tensors, result)
            aux = {name: elements.of(expression) for name, expression in step.aux}
            aux |= {name: elements.of(reduction.child) for name, reduction in step.reductions}
            values = elements.of(step.expression)
    shape = accumulators.shape[1:] if epilogue.gated else accumulators.shape
    return {name: np.broadcast_to(each, shape) for name, each in (("d", values), *aux.items())}


class _Elements:
    """The operands of an expression whose accumulator has these values."""

    def __init__(
        self,
        values: np.ndarray,
        scalars: Mapping[str, float],
        tensors: Mapping[str, np.ndarray],
        result: DType,
    ) -> None:
        self.values, self.scalars, self.tensors = values, scalars, tensors
        self.kind, self.of_scalars = values.dtype, values.dtype if result.is_float else np.dtype(np.float32)
        self.known: dict[Expression, Any] = {}

    def of(self, node: Expression) -> Any:
        """An expression's values, each worked out once."""
        if node not in self.known:
            with np.errstate(all="ignore"):
                self.known[node] = self._of(node)
        return self.known[node]

    def _of(self, node: Expression) -> Any:
        if isinstance(node, Accumulator):
            return self.values
        if isinstance(node, Half):
            own = node.child
            both = self.tensors[own.name] if isinstance(own, Row) else self.values
            return both[node.side].astype(self.kind)
        if isinstance(node, Constant):
            return self.kind.type(self.of_scalars.type(node.value))
        if isinstance(node, Scalar):
            return self.kind.type(self.of_scalars.type(self.scalars[node.name]))
        if isinstance(node, Tensor):
            return self.tensors[node.name].astype(self.kind)
        children = [self.of(child) for child in node.children]
        if isinstance(node, Add):
            return children[0] + children[1]
        if isinstance(node, Subtract):
            return children[0] - children[1]
        if isinstance(node, Multiply):
            return children[0] * children[1]
        if isinstance(node, Divide):
            return BINARY["divide"](*children)
        if isinstance(node, Negative):
            return -children[0]
        if isinstance(node, Minimum):  # a Maximum is one
            return BINARY["maximum" if isinstance(node, Maximum) else "minimum"](*children)
        if isinstance(node, Compare):
            return COMPARED[node.symbol](*children)
        if isinstance(node, Where):
            return np.where(*children)
        if isinstance(node, Cast):
            return round_to(node.dtype, children[0]).astype(self.kind)
        if isinstance(node, Function):
            return FUNCTIONS[node.name](np.asarray(children[0]))
        raise TypeError(f"no value of {node!r} is known to the simulator")
