"""Strides that are not integers: scaled basis vectors and strides over F2.

A scaled basis vector is a stride whose multiples are coordinates: `3@1` is three times the basis vector of mode
1. A layout with such strides returns coordinates instead of offsets. The identity layout of (4, 8) is
`(4,8):(1@0,1@1)`. CuTe writes the innermost mode first: `2@0@1` is twice the basis vector of mode 0 within mode
1, `2 * E((1, 0))`.

A stride over F2, `F2(9)`, multiplies its coordinate without carries, and a layout XORs the products instead of
adding them. A swizzled layout can be written as a plain one with such strides; see `f2`.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import index as to_int
from typing import Any

from cutegemm.errors import LayoutError
from cutegemm.layout.inttuple import INTEGERS, MAX_DEPTH, MAX_RANK, as_integer, integer_of, shown, wrong_kind

MAX_F2_BITS = 1024  # longest stride over F2, and longest index of a layout with such strides, in bits


class ScaledBasis:
    """A stride that moves along one mode of a coordinate: 2@1 adds 2 to entry 1, so 3 steps of it give (0, 6).

    value    factor of the basis vector: an integer, also negative or zero
    mode     index of the mode, from 0 to 999; or a tuple of up to 100 indices, the path from the outermost mode
             inwards
    raises   LayoutError for a value or a mode of another kind, or outside of these bounds
    source   CuTe, `ScaledBasis`

    >>> 3 * E(1)
    ScaledBasis(3, (1,))
    >>> str(2 * E((1, 0)))
    '2@0@1'
    """

    __slots__ = ("mode", "value")

    value: int
    mode: tuple[int, ...]

    def __init__(self, value: int, mode: int | Sequence[int]) -> None:
        object.__setattr__(self, "value", as_integer(value, "ScaledBasis(value, mode): value"))
        object.__setattr__(self, "mode", _path(mode))

    @staticmethod
    def _unchecked(value: int, path: tuple[int, ...]) -> ScaledBasis:
        """Return the scaled basis vector of a valid value and path, without the checks of the constructor."""
        out = object.__new__(ScaledBasis)
        object.__setattr__(out, "value", value)
        object.__setattr__(out, "mode", path)
        return out

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"ScaledBasis is immutable; {name} cannot be set")

    def __mul__(self, factor: int) -> ScaledBasis:
        if not hasattr(factor, "__index__"):
            return NotImplemented
        return ScaledBasis._unchecked(self.value * to_int(factor), self.mode)

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
        """Return this stride as a coordinate: `value` in its mode, and 0 in the modes before it. 2@1 gives (0, 2).

        >>> (3 * E(1)).coordinate(), (2 * E((1, 0))).coordinate()
        ((0, 3), (0, (2,)))
        """
        out: Any = self.value
        for m in reversed(self.mode):
            out = (0,) * m + (out,)
        return out


def _path(mode: int | Sequence[int]) -> tuple[int, ...]:
    """Return a mode as a path, a tuple of indices from the outermost mode inwards: the index 2 becomes (2,).

    raises   LayoutError for a mode of another kind or outside of the bounds
    """
    if type(mode) is int and 0 <= mode < MAX_RANK:
        return (mode,)
    indices = mode if isinstance(mode, (tuple, list)) else (mode,)
    path = tuple([number for m in indices if (number := integer_of(m)) is not None])
    if not path or len(path) < len(indices):
        raise wrong_kind("ScaledBasis(value, mode): mode", mode, INTEGERS)
    if len(path) > MAX_DEPTH or not 0 <= min(path) <= max(path) < MAX_RANK:
        raise LayoutError(
            f"ScaledBasis(value, mode): mode {shown(mode)} is out of bounds. Use indices from 0 to {MAX_RANK - 1}, "
            f"and at most {MAX_DEPTH} of them."
        )
    return path


class XorArithmetic(Exception):
    """Raised internally when an operation would multiply a stride over F2, which is XORed, by an integer."""


class F2:
    """A stride over F2 (bits, with XOR as addition): its contributions are XORed instead of added, as in a swizzle.

    A coordinate c contributes the carry-less product of c and `value`: the XOR, over the bits set in c, of `value`
    shifted left by the position of the bit. F2(3) and c = 3 give 3 XOR 6 = 5.

    value    integer from 0 to 2**1024 - 1
    raises   LayoutError for a value of another kind or outside of these bounds
    source   Cecka, "CuTe Layout Representation and Algebra" (2026)

    >>> F2(9).at(5), str(F2(9))
    (F2(45), 'F2(9)')
    >>> F2(3).at(3)
    F2(5)
    """

    __slots__ = ("value",)

    value: int

    def __init__(self, value: int) -> None:
        number = as_integer(value, "F2(value): value")
        if number < 0 or number.bit_length() > MAX_F2_BITS:
            raise LayoutError(f"F2(value): value {shown(value)} is not in [0, 2**{MAX_F2_BITS}).")
        object.__setattr__(self, "value", number)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"F2 is immutable; {name} cannot be set")

    @staticmethod
    def _unchecked(value: int) -> F2:
        """Return a stride over F2 (bits, with XOR as addition) of any number of bits, without the constructor's checks.

        It is needed because the product of a stride and a coordinate may have more bits than a stride may have.
        """
        out = object.__new__(F2)
        object.__setattr__(out, "value", value)
        return out

    def at(self, coordinate: int) -> F2:
        """Return the contribution of a coordinate under this stride: its carry-less product with `value`.

        coordinate   integer, 0 or more
        raises       LayoutError for a coordinate that is negative or not an integer

        >>> F2(3).at(3)
        F2(5)
        """
        bits = as_integer(coordinate, f"{self}.at(coordinate): coordinate")
        if bits < 0:
            raise LayoutError(f"{self}.at(coordinate): coordinate {shown(bits)} is negative. Count from 0.")
        out, place = 0, 0
        while bits >> place:
            if bits >> place & 1:
                out ^= self.value << place
            place += 1
        return F2._unchecked(out)

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
    """Return the basis vector of a mode, a stride of 1 along that mode of a coordinate: E(1) is 1@1.

    mode     index, or path of indices from the outermost mode inwards
    source   CuTe, `E`

    >>> str(E(0)), str(E((1, 0)))
    ('1@0', '1@0@1')
    """
    try:
        return ScaledBasis(1, mode)
    except LayoutError as error:
        raise LayoutError(f"E: {error}") from None


def add(a: Any, b: Any) -> Any:
    """Return the sum of two offsets, of two coordinates, or of two contributions of strides over F2 (their XOR).

    A shorter coordinate is extended by zeros. The offset 0 may be added to anything.

    a, b     integers (offsets), nested tuples (coordinates), or F2
    raises   LayoutError for a coordinate and an offset other than 0

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
    """Return the XOR of two strides' contributions over F2; 0 stands for no contribution.

    a, b   an F2, or 0
    """
    if type(a) is F2 and type(b) is F2:
        return F2._unchecked(a.value ^ b.value)
    contribution, other = (a, b) if type(a) is F2 else (b, a)
    if other != 0:
        raise LayoutError(f"the contribution {contribution} over F2 and the offset {other} cannot be added.")
    return contribution


def _broadcast_zero(coordinate: tuple[Any, ...], offset: int) -> tuple[Any, ...]:
    """Return the sum of a coordinate and the offset 0: the coordinate. Raise LayoutError for another offset."""
    if offset != 0:
        raise LayoutError(f"a coordinate {coordinate} and an offset {offset} cannot be added.")
    return coordinate
