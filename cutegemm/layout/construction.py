"""Functions that make a layout: from strides, from an order of the modes, or from another layout; and identities."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from cutegemm.errors import LayoutError
from cutegemm.layout.inttuple import IntTuple, as_int_tuple, flatten, map_leaves, unflatten, wrong_kind
from cutegemm.layout.layout import Layout, concatenate, cute_text
from cutegemm.layout.stride import ScaledBasis

_ORDERED = "make_ordered_layout(shape, order)"


def make_layout(shape: IntTuple | Iterable[Layout], *, stride: Any = None) -> Layout:
    """Return the layout of a shape and strides, or the layout whose modes are the given layouts.

    shape    extents; or a layout; or a sequence of layouts, which become the modes
    stride   strides of a shape, None for the compact ones; must be None for layouts
    raises   LayoutError for a shape and strides that make no layout, and for a stride together with layouts
    source   CuTe, `make_layout`

    >>> make_layout((4, 8), stride=(8, 1))
    Layout((4, 8), (8, 1))
    >>> make_layout([Layout(4, 8), Layout((2, 4))])
    Layout((4, (2, 4)), (8, (1, 2)))
    """
    modes: Any = shape
    if not isinstance(modes, Layout):
        if isinstance(modes, Iterable) and not isinstance(modes, (list, tuple, str, bytes, Mapping)):
            modes = tuple(modes)
        if type(modes) not in (list, tuple) or {*map(type, modes)} != {Layout}:
            try:
                return Layout(modes, stride)
            except LayoutError as error:
                raise LayoutError(f"make_layout: {error}") from None
    if stride is not None:
        raise LayoutError(
            f"make_layout(shape, stride): stride {cute_text(stride)} is given together with layouts, which have their "
            "own strides. Give a shape and a stride, or only layouts."
        )
    return modes if isinstance(modes, Layout) else concatenate(modes)


def make_ordered_layout(shape: IntTuple, order: IntTuple) -> Layout:
    """Return the compact layout whose strides grow in a given order: shape (2, 3, 4), order (2, 0, 1) gives (12, 1, 3).

    shape    extents
    order    one number for each mode, or for each leaf: the smallest number gets stride 1. Equal numbers are
             ordered from left to right
    raises   LayoutError if the order does not fit the shape
    source   CuTe, `make_ordered_layout`

    >>> make_ordered_layout((4, 2, 3), order=(1, 0, 2))
    Layout((4, 2, 3), (2, 1, 8))
    """
    shape = as_int_tuple(shape, f"{_ORDERED}: shape")
    order = as_int_tuple(order, f"{_ORDERED}: order")
    ranks = flatten(_spread(order, shape))
    extents = flatten(shape)
    strides, running = [0] * len(extents), 1
    for position in sorted(range(len(extents)), key=lambda p: (ranks[p], p)):
        if extents[position] != 1:
            strides[position] = running
        running *= extents[position]
    return Layout(shape, unflatten(strides, shape))


def _spread(order: IntTuple, shape: IntTuple) -> IntTuple:
    """Return an order of modes with one number for each leaf of the shape, by repeating each mode's number.

    For example, the order (1, 0) of the shape (2, (3, 4)) becomes (1, (0, 0)). The smallest number gets stride 1.
    """
    if isinstance(order, tuple):
        if not isinstance(shape, tuple) or len(order) != len(shape):
            raise LayoutError(
                f"{_ORDERED}: order {cute_text(order)} does not fit shape {cute_text(shape)}. "
                "Give one entry for each mode."
            )
        return tuple([_spread(o, s) for o, s in zip(order, shape, strict=True)])
    return map_leaves(lambda _: order, shape)


def make_layout_like(layout: Layout) -> Layout:
    """Return the compact layout of the same shape with strides in the same order: (2,4):(8,1) gives (2,4):(4,1).

    A mode of stride 0 keeps that stride.

    layout   layout with integer strides
    raises   LayoutError for a layout of coordinates and for strides over F2, whose contributions are XORed
    source   CuTe, `make_layout_like`

    >>> make_layout_like(Layout((4, 8, 2), (20, 0, 1)))
    Layout((4, 8, 2), (2, 0, 1))
    """
    if type(layout) is not Layout:
        raise wrong_kind("make_layout_like(layout): layout", layout, "a Layout")
    if not layout.is_integral:
        kind = "strides over F2" if layout.is_xor else "coordinate strides"
        raise LayoutError(f"make_layout_like: {layout} has {kind}, which have no order.")
    extents, strides = layout.flat()
    out, running = [0] * len(extents), 1
    for position in sorted(range(len(extents)), key=lambda p: (strides[p], p)):
        if strides[position] != 0 and extents[position] != 1:
            out[position] = running
            running *= extents[position]
    return Layout._unchecked(layout.shape, unflatten(out, layout.shape))


def make_identity_layout(shape: IntTuple) -> Layout:
    """Return the layout that maps every coordinate of `shape` to itself: (4, 8) gives (4,8):(1@0,1@1).

    shape    extents
    source   CuTe, `make_identity_layout`

    >>> make_identity_layout((4, (2, 3)))(1, (1, 2))
    (1, (1, 2))
    """
    shape = as_int_tuple(shape, "make_identity_layout(shape): shape")
    return Layout(shape, identity_strides(shape, ()))


def identity_strides(shape: IntTuple, path: tuple[int, ...]) -> Any:
    """Return the strides of `make_identity_layout`, basis vectors such as 1@0, for one mode of a shape.

    shape   shape of the mode
    path    indices that lead to the mode from the outermost one inwards; () for the whole shape
    """
    if isinstance(shape, tuple):
        return tuple([identity_strides(s, (*path, m)) for m, s in enumerate(shape)])
    return ScaledBasis(1, path) if path else 1
