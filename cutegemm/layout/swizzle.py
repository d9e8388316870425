"""Swizzles, and composed layouts: a swizzle or a layout applied to an offset plus another layout."""

from __future__ import annotations

from math import gcd
from typing import Any

import numpy as np

from cutegemm.errors import LayoutError
from cutegemm.layout import hooks
from cutegemm.layout.inttuple import IntTuple, as_int_tuple, as_integer, as_tuples, shown, wrong_kind
from cutegemm.layout.inttuple import flatten as leaves_of
from cutegemm.layout.layout import INT64_MAX, MAX_TABLE, Layout, at_indices, has_none
from cutegemm.layout.stride import add

_COMPOSED = "ComposedLayout(inner, offset, outer)"
MAX_SWIZZLE_BIT = 512  # bits of an offset that a swizzle may read or change; an address has 64


class Swizzle(hooks.Shown):
    """A bijection on offsets that XORs one field of bits with another, to spread rows over shared-memory banks.

    The `bits` bits from bit `base` on are XORed with the bits that lie `shift` positions higher. With a
    negative shift, the higher field is XORed with the lower one. Offsets count elements of the layout that the
    swizzle is composed with. A swizzle is its own inverse.

    bits     number of bits of a field, 0 or more; 0 is the identity
    base     position of the lowest bit of the lower field, 0 or more: runs of 2**base offsets stay together
    shift    distance of the two fields; its absolute value is at least `bits`
    raises   LayoutError if the fields overlap, lie below bit 0 or above bit 512
    source   CuTe, `Swizzle<B, M, S>`

    >>> S = Swizzle(3, 3, 3)
    >>> S(64), S(65 + 8), S(S(1234))
    (72, 65, 1234)
    >>> str(S)
    'S<3,3,3>'
    """

    __slots__ = ("base", "bits", "shift")

    bits: int
    base: int
    shift: int

    def __init__(self, bits: int, base: int, shift: int) -> None:
        for name, value in (("bits", bits), ("base", base), ("shift", shift)):
            if isinstance(value, bool) or not isinstance(value, int):
                raise wrong_kind(f"Swizzle(bits, base, shift): {name}", value, "an integer")
        rules = []
        if base + bits + abs(shift) > MAX_SWIZZLE_BIT:
            rules.append(f"its bits reach to {base + bits + abs(shift)}, past bit {MAX_SWIZZLE_BIT}")
        if bits < 0:
            rules.append(f"bits = {bits} is negative")
        if base < 0:
            rules.append(f"base = {base} is negative")
        if abs(shift) < bits:
            rules.append(f"|shift| = {abs(shift)} is below bits = {bits}, so the two bit fields overlap")
        if rules:
            raise LayoutError(f"Swizzle({bits}, {base}, {shift}): {'; '.join(rules)}.")
        object.__setattr__(self, "bits", bits)
        object.__setattr__(self, "base", base)
        object.__setattr__(self, "shift", shift)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"Swizzle is immutable; {name} cannot be set")

    def __call__(self, offset: Any) -> Any:
        """Return the offset after this swizzle or, for an integer array, that of each element.

        returns   an integer; for an int64 array an int64 array, or an object array if 64 bits are too few
        raises    LayoutError for an offset that is not an integer
        """
        if isinstance(offset, np.ndarray):
            return self._of_array(offset)
        try:
            return self._swizzled(offset)
        except TypeError:
            raise wrong_kind(f"{self}(offset): offset", offset, "an integer or an integer array") from None

    def _swizzled(self, offset: Any) -> Any:
        """Return an offset after this swizzle, or the offsets in an integer array whose type has enough bits."""
        field = (1 << self.bits) - 1
        if self.shift >= 0:
            return offset ^ ((offset & (field << (self.base + self.shift))) >> self.shift)
        return offset ^ ((offset & (field << self.base)) << -self.shift)

    def _of_array(self, offsets: np.ndarray) -> np.ndarray:
        """Return each element of an integer array after this swizzle, as int64, or as Python integers if needed."""
        if offsets.dtype.kind not in "iuO":
            raise wrong_kind(f"{self}(offset): offset", offsets, "an integer or an integer array")
        if self.base + self.bits + abs(self.shift) < offsets.dtype.itemsize * 8 and offsets.dtype.kind != "O":
            return self._swizzled(offsets)
        return narrowed(self._swizzled(offsets.astype(object)))

    def recast(self, old_bits: int, new_bits: int) -> Swizzle:
        """Return the swizzle that moves the same bytes as this one, for offsets that count elements of another width.

        old_bits   width of the elements that the offsets of this swizzle count, in bits
        new_bits   width of the elements that the offsets of the result count, in bits
        raises     LayoutError if the swizzle moves units that are smaller than a new element

        >>> Swizzle(3, 3, 3).recast(16, 8)
        Swizzle(3, 4, 3)
        """
        base = self.base + _log2_ratio(old_bits, new_bits)
        if base < 0:
            raise LayoutError(
                f"recast: {self} on elements of {old_bits} bits moves units that are smaller than {new_bits} bits. "
                "Recast to elements that are at most as wide as these units."
            )
        return Swizzle(self.bits, base, self.shift)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Swizzle) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[int, int, int]:
        return (self.bits, self.base, self.shift)

    def __reduce__(self) -> tuple[Any, ...]:
        return (Swizzle, self._key())

    def __repr__(self) -> str:
        return f"Swizzle({self.bits}, {self.base}, {self.shift})"

    def __str__(self) -> str:
        return f"S<{self.bits},{self.base},{self.shift}>"


def _log2_ratio(old_bits: int, new_bits: int) -> int:
    """Return log2(old_bits / new_bits): how far a swizzle's bit positions move if the element width changes.

    raises   LayoutError if the ratio of the widths is not a power of two
    """
    call = "Swizzle.recast(old_bits, new_bits)"
    for name, bits in (("old_bits", old_bits), ("new_bits", new_bits)):
        if type(bits) is not int:
            raise wrong_kind(f"{call}: {name}", bits, "an integer")
        if bits <= 0:
            raise LayoutError(f"{call}: {name} = {shown(bits)} is not positive. Give a width of 1 bit or more.")
    ratio = max(old_bits, new_bits) // min(old_bits, new_bits)
    if ratio * min(old_bits, new_bits) != max(old_bits, new_bits) or ratio & (ratio - 1):
        raise LayoutError(f"recast: the ratio of {old_bits} and {new_bits} bits is not a power of two.")
    return (ratio.bit_length() - 1) * (1 if old_bits > new_bits else -1)


class ComposedLayout(hooks.Shown):
    """Maps a coordinate c to inner(offset + outer(c)), such as a layout whose offsets are swizzled.

    Operations such as divide act on `outer`, which has the shape, and keep `inner` and `offset`.

    inner    Swizzle or Layout
    offset   integer, added to the offset of `outer`; a coordinate if `outer` returns coordinates
    outer    Layout; with a swizzle as `inner`, it has integer strides
    raises   LayoutError for arguments of another type, and for a swizzle of a layout that returns coordinates
    source   CuTe, `ComposedLayout`

    >>> C = ComposedLayout(Swizzle(3, 3, 3), 0, Layout((8, 64), (64, 1)))
    >>> C(3, 5), str(C)
    (221, 'S<3,3,3> o 0 o (8,64):(64,1)')
    """

    __slots__ = ("inner", "offset", "outer")

    inner: Swizzle | Layout
    offset: Any
    outer: Layout

    def __init__(self, inner: Swizzle | Layout, offset: Any, outer: Layout) -> None:
        if not isinstance(inner, (Swizzle, Layout)):
            raise wrong_kind(f"{_COMPOSED}: inner", inner, "a Swizzle or a Layout")
        if not isinstance(outer, Layout):
            raise wrong_kind(f"{_COMPOSED}: outer", outer, "a Layout")
        if isinstance(inner, Swizzle) and not outer.is_integral:
            reason = (
                f"{outer} already has strides over F2. Multiply the matrices instead: from_f2(to_f2(...) @ ...)"
                if outer.is_xor
                else f"{inner} permutes offsets, but {outer} returns coordinates"
            )
            raise LayoutError(f"ComposedLayout: {reason}.")
        if isinstance(inner, Swizzle):
            offset = offset if type(offset) is int else as_integer(offset, f"{_COMPOSED}: offset")
        elif type(offset) is not int:
            offset = as_int_tuple(offset, f"{_COMPOSED}: offset")
        object.__setattr__(self, "inner", inner)
        object.__setattr__(self, "offset", offset)
        object.__setattr__(self, "outer", outer)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"ComposedLayout is immutable; {name} cannot be set")

    @property
    def shape(self) -> IntTuple:
        """Shape of this composed layout: that of its outer layout, which is applied first."""
        return self.outer.shape

    def with_outer(self, outer: Layout) -> ComposedLayout:
        """Return this composed layout with another outer layout, and the same inner function and offset."""
        return ComposedLayout(self.inner, self.offset, outer)

    def with_shape(self, *shape: IntTuple) -> ComposedLayout:
        """Return the composed layout of another shape that gives the same offset for each index as this one.

        shape    extents, or one tuple of them; if their product is larger than the size, the last mode continues
        raises   LayoutError if no strides of the outer layout give its offsets in that shape

        >>> print(ComposedLayout(Swizzle(1, 0, 2), 0, Layout(32)).with_shape(4, 8))
        S<1,0,2> o 0 o (4,8):(1,4)
        """
        return self.with_outer(self.outer.with_shape(*shape))

    def __call__(self, *coord: Any) -> Any:
        """Return the offset of a coordinate in this composed layout, or a composed layout if it contains None.

        Unlike a slice of a plain layout, a slice of a composed layout keeps the offset of the fixed modes,
        because the swizzle depends on it.

        coord   one coordinate, or its modes as separate arguments
        """
        c = as_tuples(coord[0] if len(coord) == 1 else coord)
        if has_none(c):
            outer, offset = self.outer.slice(c)
            return ComposedLayout(self.inner, add(self.offset, offset), outer)
        return self._inner_at(add(self.offset, self.outer.offset_of(c)))

    def at(self, *coord: Any) -> Any:
        """Return the offset of a coordinate, after checking that it lies in the shape of this composed layout.

        coord    one coordinate, or its modes as separate arguments
        raises   LayoutError for a coordinate outside of the shape; the plain call accepts it
        """
        self.outer.at(*coord)
        return self(*coord)

    def _inner_at(self, offset: Any) -> Any:
        """Return the inner function's value at `offset`, the sum of this layout's offset and the outer layout's value.

        An inner layout takes the sum as its coordinate: an integer, or one with several modes.

        offset   the sum
        """
        if isinstance(self.inner, Swizzle):
            return self.inner(offset)
        return self.inner.offset_of(_extended(offset, self.inner.shape))

    def __getitem__(self, mode: int) -> ComposedLayout:
        """Return the composed layout of one mode of this one, such as the rows of a swizzled tile.

        The inner function and the offset stay; the outer layout, which is applied first, is reduced to that mode.

        mode   index of the mode
        """
        return self.with_outer(self.outer[mode])

    __iter__ = None

    def __len__(self) -> int:
        return len(self.outer)

    def size(self) -> int:
        """Return the number of coordinates of this composed layout: the product of the outer layout's extents."""
        return self.outer.size()

    def cosize(self) -> int:
        """Return the largest offset of this composed layout plus 1; 0 if it is empty.

        A swizzle without offset that covers whole periods of the swizzle has the cosize of its outer layout.

        raises   LayoutError if the layout returns coordinates, or if only a table of more than 2**20 offsets
                 could decide
        """
        if self.size() == 0:
            return 0
        if isinstance(self.inner, Swizzle):
            return _largest_swizzled(self) + 1
        if not self.inner.is_integral:
            raise LayoutError(f"cosize: {self} returns coordinates. Give a layout of offsets.")
        _require_table("cosize", self)
        return int(self.offsets().max()) + 1

    def offsets(self) -> np.ndarray:
        """Return the offsets of all coordinates of this composed layout, as an array in colexicographic order.

        The array has one axis and the type int64, or holds Python integers if 64 bits are too few. If the layout
        returns coordinates, there is one row for each, with a column for each entry.

        raises   LayoutError if the layout has more than 2**28 coordinates, or 2**20 if 64 bits are too few
        """
        if self.outer.is_integral and isinstance(self.offset, int):
            before = self.outer.offsets()
            furthest = max(abs(int(before.min())), abs(int(before.max()))) if len(before) else 0
            if furthest + abs(self.offset) > INT64_MAX or self._moves_past_64_bits():
                _require_table("offsets", self)
                before = before.astype(object)
            before = before + self.offset
            if isinstance(self.inner, Swizzle):
                return self.inner(before)
            if self.inner.is_integral:
                self._check_indices(before)
                return narrowed(at_indices(self.inner, before))
        _require_table("offsets", self)
        values = [self(i) for i in range(self.size())]
        if any(isinstance(v, tuple) for v in values):
            return np.array([leaves_of(v) for v in values])
        return narrowed(np.array(values, dtype=object))

    def _moves_past_64_bits(self) -> bool:
        """Return True if this swizzle reads or changes bits that an int64 does not have."""
        inner = self.inner
        return isinstance(inner, Swizzle) and bool(inner.bits) and inner.base + inner.bits + abs(inner.shift) >= 64

    def _check_indices(self, indices: np.ndarray) -> None:
        """Raise LayoutError unless every index is that of a coordinate of the inner layout.

        indices   sums of the offset and the outer layout's offsets
        """
        extents = self.inner.flat()[0] if isinstance(self.inner, Layout) else ()
        if len(indices) and len(extents) > 1 and (0 in extents[:-1] or indices.min() < 0):
            raise LayoutError(f"{self}: the inner layout {self.inner} has no coordinate for index {indices.min()}.")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ComposedLayout) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        return (self.inner, self.offset, self.outer)

    def __reduce__(self) -> tuple[Any, ...]:
        return (ComposedLayout, self._key())

    def __repr__(self) -> str:
        return f"ComposedLayout({self.inner!r}, {self.offset!r}, {self.outer!r})"

    def __str__(self) -> str:
        return f"{self.inner} o {self.offset} o {self.outer}"


def narrowed(offsets: np.ndarray) -> np.ndarray:
    """Return an object array of integers as an int64 array if 64 bits hold every element, else unchanged."""
    if offsets.dtype != object or (len(offsets) and max(-offsets.min() - 1, offsets.max()) > INT64_MAX):
        return offsets
    return offsets.astype(np.int64)


def _extended(coord: Any, shape: IntTuple) -> Any:
    """Return a coordinate with 0 for each mode that it lacks, so that it is as deep as `shape`.

    A sum of basis vectors such as 1@1 and 2@1 lacks entries for the modes along which none of them moves.

    coord    integer or nested tuple
    shape    nested tuple of extents
    raises   LayoutError if the coordinate is not 0 in a mode that the shape does not have

    >>> _extended(((3,),), ((4, 4), 1))
    ((3, 0), 0)
    """
    if not isinstance(coord, tuple):
        return coord
    if not isinstance(shape, tuple):
        shape, whole = (shape,), False
    else:
        whole = True
    if any(c != 0 for c in leaves_of(coord[len(shape) :])):
        raise LayoutError(f"ComposedLayout: coordinate {coord} has more modes than the inner shape {shape}.")
    parts = tuple([_extended(coord[m] if m < len(coord) else 0, s) for m, s in enumerate(shape)])
    return parts if whole else parts[0]


def _require_table(operation: str, layout: ComposedLayout) -> None:
    """Raise LayoutError if a composed layout has more than 2**20 coordinates, so that a table of offsets is too long.

    operation   name of the operation, for the message
    """
    if layout.size() > MAX_TABLE:
        raise LayoutError(f"{operation}: {layout} has {layout.size()} coordinates; at most {MAX_TABLE} are evaluated.")


def _largest_swizzled(layout: ComposedLayout) -> int:
    """Return the largest offset of a composed layout that is a swizzle of a layout of offsets.

    The bits that a swizzle reads and changes are below some 2**p, the *period*: an offset plus a multiple of the period
    is mapped to the same result plus that multiple. So each mode is divided into two. The first n steps, where n steps
    together are a multiple of the period, are computed one by one. The rest adds a multiple of the period, and only its
    largest value counts.
    """
    swizzle, period = layout.inner, 1
    assert isinstance(swizzle, Swizzle)
    if swizzle.bits:
        period = 1 << (swizzle.base + swizzle.bits + abs(swizzle.shift))
    boxes: list[tuple[int, list[tuple[int, int]]]] = [(layout.offset, [])]  # (an offset of whole periods, modes)
    for s, d in zip(*layout.outer.flat(), strict=True):
        steps = period // gcd(period, d)  # number of steps after which whole periods have passed
        if s <= steps:
            boxes = [(start, [*modes, (s, d)]) for start, modes in boxes]
            continue
        rounds, rest = divmod(s, steps)
        full = (steps, max(rounds - 1, 0) * steps * d if d > 0 else 0)
        parts = [full, (rest, rounds * steps * d if d > 0 else 0)] if rest else [full]
        boxes = [(start + further, [*modes, (count, d)]) for start, modes in boxes for count, further in parts]
    largest = []
    for start, modes in boxes:
        table = ComposedLayout(swizzle, start, Layout(tuple([s for s, _ in modes]), tuple([d for _, d in modes])))
        _require_table("cosize", table)
        largest.append(int(table.offsets().max()))
    return max(largest)


def make_swizzle(bits: int, base: int, shift: int) -> Swizzle:
    """Return the swizzle S<bits,base,shift>, which XORs one field of an offset's bits with another.

    bits    number of bits of a field
    base    position of the lowest bit of the lower field
    shift   distance of the two fields

    >>> make_swizzle(3, 4, 3)
    Swizzle(3, 4, 3)
    """
    try:
        return Swizzle(bits, base, shift)
    except LayoutError as error:
        raise LayoutError(f"make_swizzle: {error}") from None


def make_composed_layout(inner: Swizzle | Layout, offset: Any, outer: Layout) -> ComposedLayout:
    """Return the composed layout c -> inner(offset + outer(c)), such as a swizzled layout.

    inner    Swizzle or Layout that is applied last
    offset   integer (or coordinate, if `outer` returns them) that is added between the two functions
    outer    layout that is applied first

    >>> print(make_composed_layout(make_swizzle(3, 3, 3), 0, Layout((8, 64), (64, 1))))
    S<3,3,3> o 0 o (8,64):(64,1)
    """
    try:
        return ComposedLayout(inner, offset, outer)
    except LayoutError as error:
        raise LayoutError(f"make_composed_layout: {error}") from None
