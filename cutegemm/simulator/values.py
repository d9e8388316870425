"""Epilogue expressions in numpy, rounded as the kernels round."""

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
from cutegemm.plan.epilogue.quantized import Blockwise
from cutegemm.simulator.blocks import scaled
from cutegemm.simulator.functions import BINARY, FUNCTIONS


def evaluate(
    epilogue: Epilogue,
    accumulators: np.ndarray,
    scalars: Mapping[str, float],
    tensors: Mapping[str, np.ndarray],
    result: DType,
) -> np.ndarray:
    """Evaluate an epilogue in numpy: return the values of D for given accumulators, not yet rounded to D's type.

    accumulators   array of any shape; integers are computed as float64. For a gated epilogue (2, ...): gate and up
                   projections
    scalars        values of the scalars, by name
    tensors        operands that are read for these scalars, by name: arrays that broadcast to the shape of the
                   accumulators; (2, ...) for a row with the columns of a gated B
    result         type of D. An integer D is computed in float64 with scalars of f32, and rounded when it is stored: to
                   nearest, ties to even

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
    """Evaluate an epilogue in numpy: return all its results by name, not yet rounded to their types.

    accumulators   array of any shape; for a gated epilogue (2, ...): gate and up projections
    scalars        values of the scalars, by name
    tensors        operands that are read, by name: arrays that broadcast to the shape of the accumulators
    result         type of D
    returns        "d" -> D, and name -> array for each auxiliary output. A reduction has the values before they are
                   reduced

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
    return {
        name: array if name in epilogue.scales else np.broadcast_to(array, shape)
        for name, array in (("d", values), *aux.items())
    }


class _Elements:
    """Evaluator of an epilogue's expression tree in numpy. It computes each node once, from its children.

    values    values of the node that stands for the accumulator
    scalars   values of the scalars, by name
    tensors   arrays of the operands in global memory, by name
    result    type of D, which decides the type of the scalars
    """

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
        """Return the values of a node of the expression, as an array or a scalar. Each node is computed once."""
        if node not in self.known:
            with np.errstate(all="ignore"):
                self.known[node] = self._of(node)
        return self.known[node]

    def _of(self, node: Expression) -> Any:
        """Compute the values of one node of the epilogue's expression from those of its children."""
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
        if isinstance(node, Minimum):  # `Maximum` is a subclass
            return BINARY["maximum" if isinstance(node, Maximum) else "minimum"](*children)
        if isinstance(node, Compare):
            return COMPARED[node.symbol](*children)
        if isinstance(node, Where):
            return np.where(*children)
        if isinstance(node, Cast):
            return round_to(node.dtype, children[0]).astype(self.kind)
        if isinstance(node, Function):
            return FUNCTIONS[node.name](np.asarray(children[0]))
        if isinstance(node, Blockwise):
            return scaled(np.asarray(children[0]), node)[node.place]
        raise TypeError(f"the simulator cannot evaluate {node!r}")
