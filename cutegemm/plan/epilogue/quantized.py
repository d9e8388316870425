"""Nodes of an epilogue that quantizes D by blocks: values of float8, and one scale for every 128 columns of a row.

`functions.quantize` makes both. They are the results of an epilogue, D and its scales; no expression can use them.
`plan.quantize` defines the scale of a block. It is known only after all 128 columns have been computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cutegemm.dtypes import DType
from cutegemm.plan.epilogue.expression import Expression


@dataclass(frozen=True)
class Blockwise(Expression):
    """Base class of the two results of the epilogue function `quantize`: the float8 values, and their block scales.

    child          the expression that is quantized
    dtype          element type of the values, e4m3 or e5m2
    power_of_two   whether scales are rounded up to powers of two
    """

    child: Expression
    dtype: DType
    power_of_two: bool = False

    place: ClassVar[int]  # index among the results of `quantize`

    @property
    def children(self) -> tuple[Expression, ...]:
        return (self.child,)

    def with_children(self, *children: Expression) -> Expression:
        return type(self)(children[0], self.dtype, self.power_of_two)

    def __str__(self) -> str:
        # torch.compile follows `str` and the name, but not the formatting of an object
        return f"quantize({self.child!s}, '{self.dtype.name}'{', 1' if self.power_of_two else ''})[{self.place}]"


@dataclass(frozen=True)
class Quantized(Blockwise):
    """The float8 values of a quantized D: an expression, multiplied by the reciprocal of the scale of its block."""

    place: ClassVar[int] = 0


@dataclass(frozen=True)
class BlockScale(Blockwise):
    """The f32 scales of a quantized D, one for every 128 columns of a row: (M, N / 128)."""

    place: ClassVar[int] = 1
