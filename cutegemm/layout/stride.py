"""Strides that are no integers: scaled basis vectors, whose multiples are coordinates, and strides over F2.

`3@1` is three times the basis vector of mode 1. A layout with such strides gives coordinates instead of
offsets: the identity layout of (4, 8) is `(4,8):(1@0,1@1)`. CuTe writes a nested mode innermost first:
`2@0@1` is twice mode 0 of mode 1, E((1, 0)).

A stride over F2, `F2(9)`, multiplies its coordinate without carries, and the products are XORed. A swizzled layout is
a plain one with such strides; see `f2`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cutegemm.errors import LayoutError
from cutegemm.layout.inttuple import integer_of


class ScaledBasis:
    """`value` times the basis vector of the mode at `mode`, a path from the outside in.

    >>> 3 * E(1)
    ScaledBasis(3, (1,))
    >>> str(2 * E((1, 0)))
    '2@0@1'
    """

    __slots__ = ("mode", "value")

    value: int
    mode: tuple[int, ...]

    def __init__(self, value: int, mode: int | Sequence[int]) -> None:
        path = tuple(mode) if isinstance(mode, (tuple, list)) else (mode,)
        if not path or any(isinstance(m, bool) or not isinstance(m, int) or m < 0 for m in path):
            raise LayoutError(f"ScaledBasis: the mode {mode!r} is no path of non-negative integers.")
        number = integer_of(value)
        if number is None:
            raise LayoutError(f"ScaledBasis: the value {value!r} is no integer.")
        object.__setattr__(self, "value", number)
        object.__setattr__(self, "mode", path)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"ScaledBasis is immutable; {name} cannot be set")

    def __mul__(self, factor: int) -> ScaledBasis:
        if not hasattr(factor, "__index__"):
            return NotImplemented
        return ScaledBasis(self.value * factor, self.mode)

    __rmul__ = __mul__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ScaledBasis) and (self.value, self.mode) == (other.value, other.mode)

    def __hash__(self) -> int:
        return hash((self.value, self.mode))

    def __reduce__(self) -> tuple[Any, ...]:
        return (ScaledBasis, (self.value, self.mode))

    def __repr__(self) -> str:
        return f"ScaledBasis({self.value}, {self.mode})"

    def __str__(self) -> str:
        return "@".join(str(part) for part in (self.value, *reversed(self.mode)))

    def coordinate(self) -> Any:
        """The coordinate that it is.

        >>> (3 * E(1)).coordinate(), (2 * E((1, 0))).coordinate()
        ((0, 3), (0, (2,)))
        """
        out: Any = self.value
        for m in reversed(self.mode):
            out = (0,) * m + (out,)
        return out


class XorArithmetic(Exception):
    """Internal: a stride over F2 where an operation would multiply by integers."""


class F2:
    """A stride over F2: the contribution of a coordinate c is the carry-less product of c and `value`.

    value    0 or more: the XOR, over the bits that are set in c, of `value` shifted by the place of the bit

    >>> F2(9).at(5), str(F2(9))
    (F2(45), 'F2(9)')
    >>> F2(3).at(3)
    F2(5)
    """

    __slots__ = ("value",)

    value: int

    def __init__(self, value: int) -> None:
        number = integer_of(value)
        if number is None or number < 0:
            raise LayoutError(f"F2: the value {value!r} is no integer of 0 or more.")
        object.__setattr__(self, "value", number)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"F2 is immutable; {name} cannot be set")

    def at(self, coordinate: int) -> F2:
        """The contribution of a coordinate."""
        place = integer_of(coordinate)
        if place is None or place < 0:
            raise LayoutError(f"{self}: the coordinate {coordinate!r} is no integer of 0 or more.")
        coordinate = place
        out, place = 0, 0
        while coordinate >> place:
            if coordinate >> place & 1:
                out ^= self.value << place
            place += 1
        return F2(out)

    def __mul__(self, factor: object) -> F2:
        raise XorArithmetic

    __rmul__ = __mul__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, F2) and self.value == other.value

    def __hash__(self) -> int:
        return hash(("F2", self.value))

    def __reduce__(self) -> tuple[Any, ...]:
        return (F2, (self.value,))

    def __repr__(self) -> str:
        return f"F2({self.value})"


def E(mode: int | Sequence[int]) -> ScaledBasis:
    """The basis vector of a mode: E(0) is 1@0, E((1, 0)) is 1@0@1."""
    return ScaledBasis(1, mode)


def add(a: Any, b: Any) -> Any:
    """The sum of two offsets or coordinates; a shorter coordinate is extended by zeros.

    raises   LayoutError where one is an offset other than 0 and the other a coordinate

    >>> add(3, 4), add((1, 2), (0, 5, 7)), add(0, (1, 2))
    (7, (1, 7, 7), (1, 2))
    """
    if isinstance(a, ScaledBasis):
        a = a.coordinate()
    if isinstance(b, ScaledBasis):
        b = b.coordinate()
    if type(a) is F2 or type(b) is F2:
        return _xor(a, b)
    a_is, b_is = isinstance(a, tuple), isinstance(b, tuple)
    if a_is and b_is:
        if len(a) < len(b):
            a, b = b, a
        return tuple([add(x, y) for x, y in zip(a, b, strict=False)]) + a[len(b) :]
    if a_is:
        return _broadcast_zero(a, b)
    if b_is:
        return _broadcast_zero(b, a)
    return a + b


def _xor(a: Any, b: Any) -> F2:
    if type(a) is F2 and type(b) is F2:
        return F2(a.value ^ b.value)
    known, other = (a, b) if type(a) is F2 else (b, a)
    if other != 0:
        raise LayoutError(f"the XOR offset {known} and {other} cannot be added.")
    return known


def _broadcast_zero(coordinate: tuple[Any, ...], offset: int) -> tuple[Any, ...]:
    if offset != 0:
        raise LayoutError(f"a coordinate {coordinate} and an offset {offset} cannot be added.")
    return coordinate
