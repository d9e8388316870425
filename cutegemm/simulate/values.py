"""The expression of an epilogue by numpy, rounded as the kernels round."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from cutegemm.dtypes import DType
from cutegemm.plan.epilogue import Accumulator, Add, Constant, Epilogue, Expression, Multiply, Scalar, Tile


def evaluate(
    epilogue: Epilogue,
    sums: np.ndarray,
    scalars: Mapping[str, float],
    tiles: Mapping[str, np.ndarray],
    result: DType,
) -> np.ndarray:
    """The values of an epilogue for some sums, before they are rounded to the type of D.

    sums      of any shape; whole numbers are computed with as float64, which holds them
    tiles     of that shape: those that are read for these scalars
    result    the type of D. On the way to whole numbers a product is one of f32, of which what is no whole number is
              cut off; a factor that is 1 is left out, so that whole numbers stay what they are

    >>> from cutegemm.dtypes import f32, s32
    >>> from cutegemm.plan.epilogue import LINEAR
    >>> sums, c = np.array([-7, 7, 2**24 + 1]), np.array([1, 1, 2**24 + 1])
    >>> evaluate(LINEAR, sums, {"alpha": 0.5, "beta": 1.0}, {"c": c}, s32).tolist()
    [-2.0, 4.0, 25165825.0]
    >>> evaluate(LINEAR, np.float32([1.5]), {"alpha": 2.0, "beta": 0.0}, {}, f32).tolist()
    [3.0]
    """
    kind = sums.dtype if sums.dtype.kind == "f" else np.dtype(np.float64)
    values = sums.astype(kind)
    for step in epilogue.steps:
        if not step.is_idle(scalars):
            ones = {name: 1.0 for name in step.factors if scalars[name] == 1}
            values = _Elements(values, scalars, tiles, result).of(step.expression.given(ones))
    return values


class _Elements:
    """The operands of an expression whose accumulator has these values."""

    def __init__(
        self, values: np.ndarray, scalars: Mapping[str, float], tiles: Mapping[str, np.ndarray], result: DType
    ) -> None:
        self.values, self.scalars, self.tiles = values, scalars, tiles
        self.kind, self.cuts_off = values.dtype, not result.is_float

    def of(self, node: Expression) -> Any:
        """An expression's values."""
        if isinstance(node, Accumulator):
            return self.values
        if isinstance(node, Constant):
            return self.kind.type(node.value)
        if isinstance(node, Scalar):
            return self.kind.type(self.scalars[node.name])
        if isinstance(node, Tile):
            return self.tiles[node.name].astype(self.kind)
        if isinstance(node, Add):
            return self.sum(node, self.of(node.left), self.of(node.right))
        if isinstance(node, Multiply):
            return self.product(node, self.of(node.left), self.of(node.right))
        raise TypeError(f"no value of {node!r} is known to the simulator")

    def sum(self, node: Add, left: Any, right: Any) -> Any:
        """left + right."""
        if self.are_whole(node):
            return np.trunc(left) + np.trunc(right)
        return left + right

    def product(self, node: Multiply, left: Any, right: Any) -> Any:
        """left * right."""
        if self.are_whole(node):
            return np.trunc(np.float32(left) * np.float32(right)).astype(self.kind)
        return left * right

    def are_whole(self, node: Expression) -> bool:
        """Whether its values are whole numbers: not those of scalars alone, which are no elements yet."""
        return self.cuts_off and (node.has_accumulator or bool(node.tiles))
