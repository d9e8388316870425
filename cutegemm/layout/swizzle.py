"""Swizzles, and the only form of a swizzled layout: inner o offset o outer."""

from __future__ import annotations

from typing import Any

import numpy as np

from cutegemm.errors import LayoutError
from cutegemm.layout import hooks
from cutegemm.layout.inttuple import IntTuple
from cutegemm.layout.layout import Layout, has_none
from cutegemm.layout.stride import add


class Swizzle:
    """The bijection on offsets that XORs `bits` bits from `shift` places above into those at `base`.

    With a negative shift the bits come from below. Measured in elements of the layout that it is composed
    with. It is its own inverse.

    bits     0 or more; 0 is the identity
    base     0 or more: the offsets within 2**base stay together
    shift    |shift| at least `bits`
    raises   LayoutError where the two bit fields overlap or lie below bit 0
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
                raise LayoutError(f"Swizzle: {name} = {value!r} is not an integer.")
        rules = []
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
        """The swizzled offset; an integer, or an integer array elementwise."""
        if isinstance(offset, (float, str)):
            raise LayoutError(f"{self}: the offset {offset!r} is no integer.")
        source = ((1 << self.bits) - 1) << (self.base + max(self.shift, 0))
        if self.shift >= 0:
            return offset ^ ((offset & source) >> self.shift)
        source = ((1 << self.bits) - 1) << self.base
        return offset ^ ((offset & source) << -self.shift)

    def recast(self, old_bits: int, new_bits: int) -> Swizzle:
        """The same permutation of memory, measured in elements of `new_bits` instead of `old_bits`.

        raises   LayoutError where an element would be torn apart by it

        >>> Swizzle(3, 3, 3).recast(16, 8)
        Swizzle(3, 4, 3)
        """
        base = self.base + _log2_ratio(old_bits, new_bits)
        if base < 0:
            raise LayoutError(
                f"recast: {self} on elements of {old_bits} bits moves units smaller than {new_bits} bits."
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
    ratio = max(old_bits, new_bits) // min(old_bits, new_bits)
    if ratio * min(old_bits, new_bits) != max(old_bits, new_bits) or ratio & (ratio - 1):
        raise LayoutError(f"recast: {old_bits} and {new_bits} bits are not a power of two apart.")
    return (ratio.bit_length() - 1) * (1 if old_bits > new_bits else -1)


class ComposedLayout:
    """The function c -> inner(offset + outer(c)), where `inner` is a swizzle or a layout.

    The operations of the algebra act on `outer`, which holds the shape, and keep `inner` and `offset`.

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
            raise LayoutError(f"ComposedLayout: inner is {inner!r}; a Swizzle or a Layout is expected.")
        if not isinstance(outer, Layout):
            raise LayoutError(f"ComposedLayout: outer is {outer!r}; a Layout is expected.")
        if isinstance(inner, Swizzle) and not outer.is_integral:
            reason = (
                f"the strides of {outer} are over F2 already. Multiply the matrices: from_f2(to_f2(...) @ ...)"
                if outer.is_xor
                else f"{inner} permutes offsets, but {outer} gives coordinates"
            )
            raise LayoutError(f"ComposedLayout: {reason}.")
        if isinstance(offset, (str, float)) or (isinstance(inner, Swizzle) and not isinstance(offset, int)):
            raise LayoutError(f"ComposedLayout: the offset {offset!r} is no integer.")
        object.__setattr__(self, "inner", inner)
        object.__setattr__(self, "offset", offset)
        object.__setattr__(self, "outer", outer)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"ComposedLayout is immutable; {name} cannot be set")

    @property
    def shape(self) -> IntTuple:
        """The shape of the outer layout: the coordinates that it takes."""
        return self.outer.shape

    def with_outer(self, outer: Layout) -> ComposedLayout:
        """The same inner function and offset after another outer layout."""
        return ComposedLayout(self.inner, self.offset, outer)

    def __call__(self, *coord: Any) -> Any:
        """The offset of a coordinate; where it holds None, the composed layout of those modes.

        Unlike a plain layout, a slice keeps the offset of the sliced modes: the swizzle depends on it.
        """
        c = coord[0] if len(coord) == 1 else coord
        if has_none(c):
            outer, offset = self.outer.slice(c)
            return ComposedLayout(self.inner, add(self.offset, offset), outer)
        return self.inner(add(self.offset, self.outer.offset_of(c)))

    def __getitem__(self, mode: int) -> ComposedLayout:
        """The composed layout of one mode."""
        return self.with_outer(self.outer[mode])

    __iter__ = None

    def __len__(self) -> int:
        return len(self.outer)

    def size(self) -> int:
        """How many coordinates it has."""
        return self.outer.size()

    def cosize(self) -> int:
        """One more than its largest offset; 0 where it is empty.

        For a swizzle without offset, where whole periods of it are covered, that of the outer layout.
        """
        if self.size() == 0:
            return 0
        return int(self.offsets().max()) + 1

    def offsets(self) -> np.ndarray:
        """Every offset in colexicographic order, as an int64 array."""
        before = self.outer.offsets() + self.offset
        if isinstance(self.inner, Swizzle):
            return self.inner(before)
        return np.array([self.inner.offset_of(int(i)) for i in before])

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

    def _repr_html_(self) -> str:
        """The drawing that a notebook shows."""
        return str(hooks.notebook(self))


def make_swizzle(bits: int, base: int, shift: int) -> Swizzle:
    """The swizzle S<bits,base,shift>; see `Swizzle`."""
    return Swizzle(bits, base, shift)


def make_composed_layout(inner: Swizzle | Layout, offset: Any, outer: Layout) -> ComposedLayout:
    """The layout c -> inner(offset + outer(c)); see `ComposedLayout`."""
    return ComposedLayout(inner, offset, outer)
