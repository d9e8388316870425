"""`recast_layout`: the layout of the same memory in elements of another width."""

from __future__ import annotations

from math import gcd
from typing import TypeVar

from cutegemm.errors import LayoutError
from cutegemm.layout.inttuple import shown, unflatten, wrong_kind
from cutegemm.layout.layout import Layout
from cutegemm.layout.modes import require_layout
from cutegemm.layout.swizzle import ComposedLayout, Swizzle
from cutegemm.layout.tensor import Tensor

Target = TypeVar("Target", Layout, ComposedLayout)


def recast_layout(new_bits: int, old_bits: int, layout: Target) -> Target:
    """Return the layout of the same memory in elements of another width: (4,8):(1,4) from 16 to 8 bits is (8,8):(1,8).

    Law: with narrower elements, each element becomes `old_bits / new_bits` neighbours along a mode of stride 1.
    With wider elements, the elements that share a wide one become one element, and the number of wide elements
    is rounded up. If neither width divides the other, the layout is recast to their greatest common divisor
    first.

    new_bits   width of an element of the result, in bits
    old_bits   width of an element of `layout`, in bits
    layout     Layout with integer strides, or a swizzle composed with one
    returns    a Layout or ComposedLayout, whichever `layout` is
    raises     LayoutError if elements at different coordinates of the result would share a wide element
    source     CuTe layout algebra, `recast`

    >>> recast_layout(32, 16, Layout((8, 64), (64, 1)))
    Layout((8, 32), (32, 1))
    >>> str(recast_layout(8, 16, ComposedLayout(Swizzle(3, 3, 3), 0, Layout((8, 64), (64, 1)))))
    'S<3,4,3> o 0 o (8,128):(128,1)'
    """
    call = "recast_layout(new_bits, old_bits, layout)"
    for name, bits in (("new_bits", new_bits), ("old_bits", old_bits)):
        if type(bits) is not int:
            raise wrong_kind(f"{call}: {name}", bits, "an integer")
        if bits <= 0:
            raise LayoutError(f"{call}: {name} = {shown(bits)} is not positive. Give a width of 1 bit or more.")
    if isinstance(layout, Tensor):
        raise wrong_kind(f"{call}: layout", layout, "a Layout or ComposedLayout", "Recast its .layout.")
    if isinstance(layout, ComposedLayout):
        outer = recast_layout(new_bits, old_bits, layout.outer)
        if not isinstance(layout.inner, Swizzle):
            raise LayoutError(f"recast_layout: the inner function of {layout} is a layout. Give a swizzle of a layout.")
        scaled = layout.offset * old_bits
        if scaled % new_bits:
            raise LayoutError(f"recast_layout: the offset of {layout} is not a multiple of {new_bits} bits.")
        return ComposedLayout(layout.inner.recast(old_bits, new_bits), scaled // new_bits, outer)
    require_layout(f"{call}: layout", layout)
    if layout.is_xor:
        raise LayoutError(
            f"recast_layout: {layout} has strides over F2. Recast to_swizzled(layout), a swizzle of a layout."
        )
    if not layout.is_integral:
        raise LayoutError(f"recast_layout: {layout} returns coordinates. Give a layout of offsets.")
    common = gcd(old_bits, new_bits)
    return _widened(_narrowed(layout, old_bits // common), new_bits // common)


def _narrowed(layout: Layout, ratio: int) -> Layout:
    """Return the layout of the same memory in elements that are `ratio` times narrower.

    For example, (4,8):(1,4) with ratio 2 becomes (8,8):(1,8). The new elements extend the leaf of stride 1; if there is
    none, they become the extent of a leaf that had the extent 1.

    raises   LayoutError if the layout has neither a leaf of stride 1 nor one of extent 1
    """
    if ratio == 1:
        return layout
    extents, strides = layout.flat()
    split = [m for m, s in enumerate(extents) if s == 1 or strides[m] == 1]
    if not split:
        raise LayoutError(
            f"recast_layout: each element of {layout} becomes {ratio} neighbours, but no mode has stride 1 to "
            "hold them.\n  Append a mode 1:1 to the layout."
        )
    unit = min(split, key=lambda m: (strides[m] != 1, extents[m] == 1, m))
    shape = [s * ratio if m == unit else s for m, s in enumerate(extents)]
    stride = [1 if m == unit else d * ratio for m, d in enumerate(strides)]
    return Layout._unchecked(unflatten(shape, layout.shape), unflatten(stride, layout.shape))


def _widened(layout: Layout, ratio: int) -> Layout:
    """Return the layout of the same memory in elements that are `ratio` times wider.

    raises   LayoutError if elements at different coordinates of the result would share a wide element
    """
    if ratio == 1:
        return layout
    shape, stride = [], []
    shared = 0  # largest distance of an element from the start of its wide element
    for s, d in zip(*layout.flat(), strict=True):
        per_wide = ratio // d if d > 0 and ratio % d == 0 else ratio
        if d % ratio == 0:
            shape.append(s)
        elif s == 1 or 0 < (s - 1) * d < ratio:
            shape.append(1)
            shared += (s - 1) * d
        elif d * per_wide == ratio:
            shape.append(-(-s // per_wide))
            shared += ratio - d
        else:
            shared = ratio
        stride.append(-(-abs(d) // ratio) * (1 if d > 0 else -1))
    if shared >= ratio:
        raise LayoutError(
            f"recast_layout: {layout} cannot be written in elements {ratio} times as wide: elements at different "
            "coordinates would share a wide element."
        )
    return Layout._unchecked(unflatten(shape, layout.shape), unflatten(stride, layout.shape))
