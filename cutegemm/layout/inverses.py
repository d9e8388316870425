"""Complement, right and left inverse, nullspace and common vectors of layouts.

As in `algebra`, every result obeys the law that the docstring states.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cutegemm.errors import LayoutError
from cutegemm.layout import coordinates, f2
from cutegemm.layout.algebra import coalesced, from_flat, stands_still
from cutegemm.layout.inttuple import IntTuple, as_int_tuple, product, shown
from cutegemm.layout.layout import Layout, _text
from cutegemm.layout.modes import get, require_layout
from cutegemm.layout.stride import ScaledBasis
from cutegemm.layout.tensor import Tensor

Mode = tuple[int, int, int]  # stride, index of the second element, extent


def complement(layout: Layout, cotarget: IntTuple | Layout) -> Layout:
    """The layout C of where copies of L may start without overlapping each other.

    Law: the sums L(i) + C(j), over the distinct offsets of L, are distinct; C increases, and repeats the period of
    L, which is its last stride times extent, up to the size of the cotarget rounded up. Where each sorted stride of L
    is a multiple of the period of the modes before it, the sums leave no gap; else (L is padded) some offsets belong
    to no copy, as many as rounding down costs. A layout of coordinates is complemented mode by mode.

    layout     offsets distinct but for modes of stride 0; strides not negative, and each sorted stride at least
               the extent times stride before it
    cotarget   an integer, a shape or a layout, of which the size counts; for coordinates their shape
    raises     LayoutError where L has a negative stride or interleaved modes
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
    """The complement of a tile in a shape: where the other tiles start.

    raises   LayoutError where the tiles do not cover the shape: where the tile has no complement, or is padded
    """
    return _complement(tile, target, padded=False)


def copies_of(block: Layout, count: int) -> Layout:
    """The complement of a block, with room for `count` copies or more."""
    total = block.size() * count
    if not block.is_integral or total == 0:
        return _complement(block, total, padded=True)
    shape, stride, _ = _gaps(block, total, padded=True)
    room = 1  # for copies within a period
    for extent in shape[:-1]:
        room *= extent
    shape[-1] = max(shape[-1], -(-count // room))
    return from_flat(*coalesced(shape, stride, keep_last=False))


def _complement(layout: Layout, target: IntTuple, padded: bool) -> Layout:
    total = product(target)
    if total < 0:
        raise LayoutError(
            f"complement(layout, cotarget): cotarget has {shown(total)} elements. Give extents of 0 or more."
        )
    if layout.size() == 0:
        raise LayoutError(f"complement: {layout} is empty, it has no copies.")
    if layout.is_integral:
        shape, stride, _ = _gaps(layout, total, padded)
        return from_flat(*coalesced(shape, stride, keep_last=False))
    if layout.is_xor:
        return f2.complement(layout, total)
    parts = {}
    for path in coordinates.paths_of(layout):
        try:
            extent = product(get(target, path))
        except LayoutError:
            raise LayoutError(
                f"complement: {layout} moves along {ScaledBasis(1, path)}, a mode that the cotarget {_text(target)} "
                "does not have. Give an extent for each mode of the coordinate."
            ) from None
        shape, stride, period = _gaps(coordinates.along(layout, path), extent, padded)
        merged = coalesced(shape, stride, keep_last=False)
        part = from_flat(*merged) if merged[0] else Layout._of(1, period)
        parts[path] = coordinates.scaled(part, path)
    return coordinates.assembled(parts, target)


def _gaps(layout: Layout, total: int, padded: bool) -> tuple[list[int], list[int], int]:
    """Extents and strides of the complement of a layout of offsets, not coalesced, and the period of the layout."""
    shape, stride, period = [], [], 1
    extents, strides = layout.flat()
    for d, s in sorted([(d, s) for s, d in zip(extents, strides, strict=True) if s != 1 and d != 0]):
        if d < 0:
            raise LayoutError(
                f"complement: {layout} has the negative stride {d}; offsets from 0 on are expected. "
                "Reverse that mode."
            )
        if d < period:
            raise LayoutError(
                f"complement: {layout} interleaves its modes:\n"
                f"  the mode {s}:{d} starts before {period}, where the modes of smaller stride end.\n"
                "  Each stride must be at least the extent times stride before it."
            )
        if d % period and not padded:
            raise LayoutError(
                f"complement: tiles of {layout} do not cover all elements:\n"
                f"  the mode {s}:{d} does not start at a multiple of {period}, where the modes of smaller "
                "stride end.\n  Each stride must be a multiple of the extent times stride before it."
            )
        shape.append(d // period)
        stride.append(period)
        period = s * d
    shape.append(-(-total // period))
    stride.append(period)
    return shape, stride, period


def _require_elements(operation: str, layout: Layout) -> None:
    require_layout(f"{operation}(layout): layout", layout)
    if 0 in layout.flat()[0]:
        raise LayoutError(f"{operation}: {layout} is empty.")


def right_inverse(layout: Layout) -> Layout:
    """The layout R from the contiguous offsets (or the coordinates) of L to their indices.

    Law: L(R(i)) == i for every i < size(R). Where the offsets of L are distinct, R is as long as the modes
    of strides 1, s, s*s', ... reach. Where L gives coordinates, L(R(c)) == c for every coordinate c of R.

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
    shape, stride, current = [], [], 1
    for d, start, s in modes:
        if d == current:
            shape.append(s)
            stride.append(start)
            current *= s
        elif d > current:
            break
    return from_flat(*coalesced(shape, stride, keep_last=False))


def _inverse(operation: str, layout: Layout, invert: Callable[[list[Mode]], Layout]) -> Layout:
    if layout.is_integral:
        return invert(sorted(_positions(layout)))
    by_path = modes_by_path(operation, layout)
    return coordinates.assembled({path: invert(modes) for path, modes in by_path.items()})


def _positions(layout: Layout) -> list[tuple[Any, int, int]]:
    """(stride, index of the second element, extent) of each coalesced mode."""
    out, start = [], 1
    for s, d in zip(*coalesced(*layout.flat(), keep_last=False)):  # noqa: B905 - of one length
        out.append((d, start, s))
        start *= s
    return out


def modes_by_path(operation: str, layout: Layout) -> dict[coordinates.Path, list[Mode]]:
    """The coalesced modes, sorted by stride: of a layout of offsets under the path (), of one of coordinates under
    the path of each mode of the coordinate."""
    if layout.is_integral:
        return {(): sorted(_positions(layout))}
    moving = [p for p in _positions(layout) if isinstance(p[0], ScaledBasis)]
    return {
        path: sorted([(d.value, start, s) for d, start, s in moving if d.mode == path])
        for path in coordinates.paths_of(layout)
    }


def left_inverse(layout: Layout) -> Layout:
    """The layout R from each offset, or coordinate, of L back to its index.

    Law: R(L(i)) == i for every i < size(L), where the offsets of L are distinct. Where modes of stride 0 repeat
    offsets, R gives the first index of each: L(R(L(i))) == L(i).

    raises   LayoutError where L repeats an offset in another way, has a negative stride, or has sorted strides that
             do not divide one another
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
    modes = [mode for mode in modes if mode[0] != 0]
    if not modes:
        return Layout._of(1, 0)
    shape, stride = [], []
    before, extent_before, start_before = 1, 1, 0
    for d, start, s in modes:
        if d < before * extent_before:
            reason = (
                f"the stride {d} is negative" if d < 0 else f"the mode {s}:{d} repeats offsets of other modes"
            )
            raise LayoutError(
                f"left_inverse: {layout} has none: {reason}.\n"
                "  Strides must not be negative, and each at least the extent times stride before it."
            )
        if d % before:
            raise LayoutError(
                f"left_inverse: {layout} has none with strides of its own: the stride {d} is no "
                f"multiple of {before}.\n  Each sorted stride must be a multiple of the one before it."
            )
        if d != before:
            shape.append(d // before)
            stride.append(start_before)
        before, extent_before, start_before = d, s, start
    shape.append(extent_before)
    stride.append(start_before)
    return from_flat(*coalesced(shape, stride, keep_last=False))


def nullspace(layout: Layout) -> Layout:
    """The layout N of the modes of stride 0: indices at which L has the offset 0.

    Law: L(N(i)) == 0 for every i < size(N), and the N(i) are distinct.

    >>> nullspace(Layout((2, 3, 4), (0, 1, 0)))
    Layout((2, 4), (1, 6))
    """
    require_layout("nullspace(layout): layout", layout)
    shape, stride, start = [], [], 1
    for s, d in zip(*layout.flat(), strict=True):
        if stands_still(d):
            shape.append(s)
            stride.append(start)
        start *= s
    return from_flat(shape, stride)


def max_common_layout(a: Layout | Tensor, b: Layout | Tensor) -> Layout:
    """The indices over which A and B are both contiguous: the longest vector that one copy may move.

    Law: A(R(i)) == B(R(i)) == i for every i < size(R). Of a layout of coordinates the result is 1:0.

    a, b     layouts or tensors

    >>> max_common_layout(Layout((4, 8), (8, 1)), Layout((4, 8), (16, 1)))
    Layout(8, 4)
    """
    return _common_layout("max_common_layout(a, b)", a, b)


def _common_layout(call: str, a: Layout | Tensor, b: Layout | Tensor) -> Layout:
    layouts: list[Any] = [x.layout if isinstance(x, Tensor) else x for x in (a, b)]
    for name, layout in zip("ab", layouts, strict=True):
        require_layout(f"{call}: {name}", layout)
    shape, stride = [], []
    inverses = [right_inverse(x) for x in layouts]
    if any(x.is_coordinates for x in layouts):
        return Layout._of(1, 0)
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
    """How many elements `max_common_layout` holds.

    >>> max_common_vector(Layout((4, 8), (1, 4)), Layout((4, 8), (1, 8)))
    4
    """
    return _common_layout("max_common_vector(a, b)", a, b).size()
