"""Complement, right and left inverse, nullspace and common vectors of layouts.

As in `algebra`, the docstring of an operation states its law, which every result obeys.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cutegemm.errors import LayoutError
from cutegemm.layout import coordinates, f2
from cutegemm.layout.algebra import coalesce_leaves, from_flat, is_zero_stride
from cutegemm.layout.inttuple import IntTuple, as_int_tuple, product, shown
from cutegemm.layout.layout import Layout, cute_text
from cutegemm.layout.modes import get, require_layout
from cutegemm.layout.stride import ScaledBasis
from cutegemm.layout.tensor import Tensor

Mode = tuple[int, int, int]  # stride, index of the second element, extent


def complement(layout: Layout, cotarget: IntTuple | Layout) -> Layout:
    """Return the layout C of starting offsets for copies of L that do not overlap, until they cover a space.

    For example, 4:2 in a space of 16 has the complement (2,2):(1,8). Law: the sums L(i) + C(j), over the distinct
    offsets of L, are distinct. C increases. It repeats the *period* of L, its largest stride times extent, until the
    cotarget is covered. If each stride of L, in ascending order, is a multiple of the period of the modes before it,
    the sums leave no gap. Otherwise L is *padded*, and some offsets belong to no copy. A layout of coordinates is
    complemented mode by mode.

    layout     strides not negative; in ascending order, each stride other than 0 at least the stride times
               extent before it
    cotarget   size of the space to cover: an integer, or a shape or layout with that size. For a layout of
               coordinates, the shape of the coordinates
    raises     LayoutError if L has a negative stride or interleaved modes
    source     CuTe layout algebra, `complement`

    >>> complement(Layout(4, 2), 16)
    Layout((2, 2), (1, 8))
    >>> complement(Layout((4, 6), (1, 6)), 72)  # rows of 4 at a pitch of 6: the next copy starts at 36
    Layout(2, 36)
    """
    call = "complement(layout, cotarget)"
    require_layout(f"{call}: layout", layout)
    target = cotarget.shape if isinstance(cotarget, Layout) else as_int_tuple(cotarget, f"{call}: cotarget")
    return _complement(layout, target, padded=True)


def rest_of(tile: Layout, target: IntTuple) -> Layout:
    """Return the layout of the starting offsets of tiles that cover a shape: the complement of one tile in the shape.

    tile     layout of one tile
    target   the shape to cover
    raises   LayoutError if copies of the tile overlap, or leave gaps in the shape
    """
    return _complement(tile, target, padded=False)


def copies_of(block: Layout, count: int) -> Layout:
    """Return a layout of at least `count` starting offsets for copies of a block that do not overlap.

    It is the block's complement, i.e. the offsets where further copies fit, extended along its last mode if it is too
    short.
    """
    total = block.size() * count
    if not block.is_integral or total == 0:
        return _complement(block, total, padded=True)
    shape, stride, _ = _gaps(block, total, padded=True)
    room = 1  # number of copies within a period
    for extent in shape[:-1]:
        room *= extent
    shape[-1] = max(shape[-1], -(-count // room))
    return from_flat(*coalesce_leaves(shape, stride, keep_last=False))


def _complement(layout: Layout, target: IntTuple, padded: bool) -> Layout:
    """Return the complement of a layout (the starting offsets of copies that do not overlap) in a given space.

    target   shape of the space to cover
    padded   False to raise LayoutError if the copies would leave gaps
    """
    total = product(target)
    if total < 0:
        raise LayoutError(
            f"complement(layout, cotarget): cotarget has {shown(total)} elements. Give extents of 0 or more."
        )
    if layout.size() == 0:
        raise LayoutError(f"complement: {layout} is empty, so it has no copies.")
    if layout.is_integral:
        shape, stride, _ = _gaps(layout, total, padded)
        return from_flat(*coalesce_leaves(shape, stride, keep_last=False))
    if layout.is_xor:
        return f2.complement(layout, total)
    parts = {}
    for path in coordinates.paths_of(layout):
        try:
            extent = product(get(target, path))
        except LayoutError:
            raise LayoutError(
                f"complement: {layout} moves along {ScaledBasis(1, path)}; the cotarget {cute_text(target)} "
                "does not have that mode. Give an extent for each mode of the coordinate."
            ) from None
        shape, stride, period = _gaps(coordinates.along(layout, path), extent, padded)
        merged = coalesce_leaves(shape, stride, keep_last=False)
        part = from_flat(*merged) if merged[0] else Layout._unchecked(1, period)
        parts[path] = coordinates.scaled(part, path)
    return coordinates.assembled(parts, target)


def _gaps(layout: Layout, total: int, padded: bool) -> tuple[list[int], list[int], int]:
    """Return (extents, strides, period) of the complement of a layout, the starting offsets of copies of the layout.

    Extents and strides are flat lists, which are not coalesced. The period is the distance of copies that lie beyond
    the gaps of the layout: its largest stride times extent.

    layout   layout of offsets
    total    size of the space that the copies have to cover
    padded   True if the copies may leave gaps
    raises   LayoutError if the layout has no complement
    """
    shape, stride, period = [], [], 1
    extents, strides = layout.flat()
    for d, s in sorted([(d, s) for s, d in zip(extents, strides, strict=True) if s != 1 and d != 0]):
        if d < 0:
            raise LayoutError(
                f"complement: {layout} has the negative stride {d}. Reverse that mode; offsets must be 0 or more."
            )
        if d < period:
            raise LayoutError(
                f"complement: {layout} interleaves its modes:\n"
                f"  the stride of mode {s}:{d} is below {period}, the period of the modes with smaller strides.\n"
                "  In ascending order, each stride must be at least the extent times stride before it."
            )
        if d % period and not padded:
            raise LayoutError(
                f"complement: tiles of {layout} do not cover all elements:\n"
                f"  the stride of mode {s}:{d} is not a multiple of {period}, the period of the modes with smaller "
                "strides.\n  In ascending order, each stride must be a multiple of the extent times stride before it."
            )
        shape.append(d // period)
        stride.append(period)
        period = s * d
    shape.append(-(-total // period))
    stride.append(period)
    return shape, stride, period


def _require_elements(operation: str, layout: Layout) -> None:
    """Raise LayoutError unless an argument is a Layout with at least one coordinate.

    operation   name of the operation, for the message
    """
    require_layout(f"{operation}(layout): layout", layout)
    if 0 in layout.flat()[0]:
        raise LayoutError(f"{operation}: {layout} is empty.")


def right_inverse(layout: Layout) -> Layout:
    """Return the layout R from the contiguous offsets 0, 1, 2, ... of L to indices: (4,8):(8,1) has (8,4):(4,1).

    Law: L(R(i)) == i for every i < size(R). R is as long as the modes with strides 1, s, s*s', ... reach, where
    s, s', ... are the extents of these modes. If L returns coordinates, L(R(c)) == c for every coordinate c of
    R.

    layout   L, with at least one coordinate
    raises   LayoutError for an empty layout
    source   CuTe layout algebra, `right_inverse`

    >>> right_inverse(Layout((4, 8), (8, 1)))
    Layout((8, 4), (4, 1))
    >>> right_inverse(Layout((4, 8), (2, 8)))
    Layout(1, 0)
    """
    _require_elements("right_inverse", layout)
    if layout.is_xor:
        return f2.right_inverse(layout)
    return _inverse("right_inverse", layout, _right_inverse)


def _right_inverse(modes: list[Mode]) -> Layout:
    """Return the right inverse (offset -> index) of a layout that is given by its modes.

    modes   (stride, step, extent) of each mode, sorted by stride; `step` is how far the index advances if the mode's
            coordinate grows by 1
    """
    shape, stride, current = [], [], 1
    for d, start, s in modes:
        if d == current:
            shape.append(s)
            stride.append(start)
            current *= s
        elif d > current:
            break
    return from_flat(*coalesce_leaves(shape, stride, keep_last=False))


def _inverse(operation: str, layout: Layout, invert: Callable[[list[Mode]], Layout]) -> Layout:
    """Return the right or left inverse of a layout; for a layout of coordinates, each entry is inverted by itself.

    operation   name of the operation, for messages
    invert      function from a list of modes (stride, step, extent), sorted by stride, to the inverse layout; `step`
                is how far the index advances if the mode's coordinate grows by 1
    """
    if layout.is_integral:
        return invert(sorted(_positions(layout)))
    by_path = modes_by_path(operation, layout)
    return coordinates.assembled({path: invert(modes) for path, modes in by_path.items()})


def _positions(layout: Layout) -> list[tuple[Any, int, int]]:
    """Return (stride, step, extent) for each mode of the coalesced layout, from left to right.

    `step` is how far the index advances if the mode's coordinate grows by 1: the product of the extents to the left.
    For example, (4,8):(8,1) gives (8, 1, 4) and (1, 4, 8).
    """
    out, start = [], 1
    for s, d in zip(*coalesce_leaves(*layout.flat(), keep_last=False)):  # noqa: B905 - of one length
        out.append((d, start, s))
        start *= s
    return out


def modes_by_path(operation: str, layout: Layout) -> dict[coordinates.Path, list[Mode]]:
    """Return the modes of a coalesced layout as (stride, step, extent), sorted by stride, to invert the layout.

    `step` is how far the index advances if the mode's coordinate grows by 1: (4,8):(8,1) gives (1, 4, 8) and (8, 1, 4).

    operation   name of the calling operation, for messages
    returns     dict with such a list for each entry of the coordinates that the layout returns, by the entry's path.
                For a layout that returns offsets, the only key is ()
    """
    if layout.is_integral:
        return {(): sorted(_positions(layout))}
    moving = [p for p in _positions(layout) if isinstance(p[0], ScaledBasis)]
    return {
        path: sorted([(d.value, start, s) for d, start, s in moving if d.mode == path])
        for path in coordinates.paths_of(layout)
    }


def left_inverse(layout: Layout) -> Layout:
    """Return the layout R from each offset, or coordinate, of L back to its index: (4,8):(8,1) has (8,4):(4,1).

    Law: R(L(i)) == i for every i < size(L) if the offsets of L are distinct. If modes of stride 0 repeat
    offsets, R returns the first index of each offset: L(R(L(i))) == L(i).

    layout   L, with at least one coordinate
    raises   LayoutError if L repeats an offset in another way, has a negative stride, or has a stride that, in
             ascending order, is not a multiple of the one before it
    source   CuTe layout algebra, `left_inverse`

    >>> left_inverse(Layout((4, 8), (1, 5)))
    Layout((5, 8), (1, 4))
    >>> left_inverse(Layout((2, 4), (0, 1)))
    Layout(4, 2)
    """
    _require_elements("left_inverse", layout)
    if layout.is_xor:
        return f2.left_inverse(layout)
    return _inverse("left_inverse", layout, lambda modes: _left_inverse(layout, modes))


def _left_inverse(layout: Layout, modes: list[Mode]) -> Layout:
    """Return the left inverse (offset -> index) of a layout that is given by its modes.

    layout   the layout, for messages
    modes    (stride, step, extent) of each mode, sorted by stride; `step` is how far the index advances if the mode's
             coordinate grows by 1
    """
    modes = [mode for mode in modes if mode[0] != 0]
    if not modes:
        return Layout._unchecked(1, 0)
    shape, stride = [], []
    before, extent_before, start_before = 1, 1, 0
    for d, start, s in modes:
        if d < before * extent_before:
            reason = f"the stride {d} is negative" if d < 0 else f"the mode {s}:{d} repeats offsets of other modes"
            raise LayoutError(
                f"left_inverse: {layout} has no left inverse: {reason}.\n"
                "  In ascending order, each stride must be at least the extent times stride before it."
            )
        if d % before:
            raise LayoutError(
                f"left_inverse: no layout is a left inverse of {layout}: the stride {d} is not a multiple of "
                f"{before}.\n  In ascending order, each stride must be a multiple of the one before it."
            )
        if d != before:
            shape.append(d // before)
            stride.append(start_before)
        before, extent_before, start_before = d, s, start
    shape.append(extent_before)
    stride.append(start_before)
    return from_flat(*coalesce_leaves(shape, stride, keep_last=False))


def nullspace(layout: Layout) -> Layout:
    """Return the layout N of the indices where L has the offset 0 since strides are 0: (2,4):(0,1) has 2:1.

    Law: L(N(i)) == 0 for every i < size(N), and the N(i) are distinct.

    source   CuTe layout algebra, `nullspace`

    >>> nullspace(Layout((2, 3, 4), (0, 1, 0)))
    Layout((2, 4), (1, 6))
    """
    require_layout("nullspace(layout): layout", layout)
    shape, stride, start = [], [], 1
    for s, d in zip(*layout.flat(), strict=True):
        if is_zero_stride(d):
            shape.append(s)
            stride.append(start)
        start *= s
    return from_flat(shape, stride)


def max_common_layout(a: Layout | Tensor, b: Layout | Tensor) -> Layout:
    """Return the layout R of the indices that are contiguous in both A and B.

    A copy instruction may move such indices as one vector. For example, (4,8):(1,4) and (4,8):(1,8) have 4:1 in
    common. Law: A(R(i)) == B(R(i)) == i for every i < size(R). If A or B returns coordinates, R is 1:0.

    a, b     layouts or tensors
    source   CuTe layout algebra, `max_common_layout`

    >>> max_common_layout(Layout((4, 8), (8, 1)), Layout((4, 8), (16, 1)))
    Layout(8, 4)
    """
    return _common_layout("max_common_layout(a, b)", a, b)


def _common_layout(call: str, a: Layout | Tensor, b: Layout | Tensor) -> Layout:
    """Return the layout of the indices that are contiguous in both A and B, as `max_common_layout` does.

    call   text of the call that the user made, which error messages begin with
    a, b   layouts or tensors
    """
    layouts: list[Any] = [x.layout if isinstance(x, Tensor) else x for x in (a, b)]
    for name, layout in zip("ab", layouts, strict=True):
        require_layout(f"{call}: {name}", layout)
    shape, stride = [], []
    inverses = [right_inverse(x) for x in layouts]
    if any(x.is_coordinates for x in layouts):
        return Layout._unchecked(1, 0)
    if any(x.is_xor for x in layouts):
        return f2.common(*inverses)
    modes = [zip(*inverse.flat(), strict=True) for inverse in inverses]
    for (s_a, start_a), (s_b, start_b) in zip(*modes, strict=False):
        if start_a != start_b:
            break
        shape.append(min(s_a, s_b))
        stride.append(start_a)
        if s_a != s_b:
            break
    return from_flat(shape, stride)


def max_common_vector(a: Layout | Tensor, b: Layout | Tensor) -> int:
    """Return the number of elements that are contiguous in both A and B, so that one instruction may copy them.

    a, b     layouts or tensors
    source   CuTe layout algebra, `max_common_vector`

    >>> max_common_vector(Layout((4, 8), (1, 4)), Layout((4, 8), (1, 8)))
    4
    """
    return _common_layout("max_common_vector(a, b)", a, b).size()
