"""Divides, which split a layout into tiles, and products, which repeat a layout as a tile.

A *tiler* is a layout, an integer n (for n:1), None, or a tuple of tilers with one for each mode. The four forms
of a divide contain the same modes and group them differently:

    logical   ((tile, rest), ...)
    zipped    ((tile, ...), (rest, ...))
    tiled     ((tile, ...), rest, ...)
    flat      (tile, ..., rest, ...)

If a tile does not divide its mode, the number of tiles is rounded up, as in CuTe. The last tile then reaches
past the end and needs a predicate.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any, TypeVar, cast

from cutegemm.errors import LayoutError
from cutegemm.layout.algebra import coalesce, composition, require_fit
from cutegemm.layout.construction import make_identity_layout, make_ordered_layout
from cutegemm.layout.inttuple import (
    IntTuple,
    as_int_tuple,
    as_integer,
    as_tuples,
    ceil_div,
    integer_of,
    product_each,
    shown,
    wrong_kind,
)
from cutegemm.layout.inttuple import flatten as leaves_of
from cutegemm.layout.inverses import copies_of, rest_of
from cutegemm.layout.layout import Layout, concatenate, cute_text, regroup
from cutegemm.layout.modes import append, dice, on_layout, require_coord, require_layout
from cutegemm.layout.stride import F2
from cutegemm.layout.swizzle import ComposedLayout
from cutegemm.layout.tensor import Tensor

Tiler = Any  # int | Layout | None | tuple[Tiler, ...]
Target = TypeVar("Target", Layout, ComposedLayout, Tensor)
F = TypeVar("F", bound=Callable[..., Any])


def _explained(operation: F) -> F:
    """Decorate an operation so that its errors begin with its name and the arguments of the user's call."""

    @wraps(operation)
    def call(*args: Any, **options: Any) -> Any:
        try:
            return operation(*args, **options)
        except LayoutError as error:
            values = signature(operation).bind(*args, **options).arguments
            written = ", ".join([f"{name}={cute_text(value)}" for name, value in values.items()])
            raise LayoutError(f"{operation.__name__}({written}) failed.\n  {error}") from error

    return cast(F, call)


@_explained
def logical_divide(target: Target, tiler: Tiler) -> Target:
    """Divide a layout into (tile, rest), or mode by mode if the tiler is a tuple: 8:1 by 4 is (4,2):(1,4).

    Law: for a layout T as the tiler, R(t, r) == L(T(t) + C(r)), where C is the complement of T in the size of L. If a
    tuple has fewer entries than L has modes, the further modes stay as they are, and so do modes with the entry None.

    target    L: layout, composed layout or tensor
    tiler     T: a layout, an integer n (for n:1), None, or a tuple of tilers, one for each mode
    returns   a Layout, ComposedLayout or Tensor, whichever `target` is
    raises    LayoutError if copies of T overlap or would leave gaps, such as copies of (2,2):(1,3); or if T has more
              entries than L has modes
    source    CuTe layout algebra, `logical_divide`

    >>> logical_divide(Layout((10, 8), (8, 1)), (4, Layout(2, 4)))
    Layout(((4, 3), (2, 4)), ((8, 32), (4, 1)))
    """
    return on_layout("target", _logical_divide, target, as_tuples(tiler))


def _logical_divide(layout: Layout, tiler: Tiler) -> Layout:
    """Divide a plain layout (not a tensor or composed layout) into (tile, rest), or mode by mode.

    layout   the layout
    tiler    a layout, an integer, None, or a tuple of these, without lists
    """
    if tiler is None:
        return layout
    if isinstance(tiler, tuple):
        require_fit("logical_divide", layout, tiler)
        parts = [_logical_divide(layout[m], t) for m, t in enumerate(tiler)]
        return regroup(parts + [layout[m] for m in range(len(parts), len(layout))])
    if type(tiler) is int:
        return regroup(_tile_and_rest(layout, tiler))
    return _divided(layout, _as_layout(tiler))


def _divided(layout: Layout, tile: Layout) -> Layout:
    """Divide a layout by one tile into (elements within a tile, tiles).

    layout   the layout
    tile     layout of a tile's elements in `layout`, whose offsets may be indices or coordinates
    """
    if not tile.is_coordinates:
        return composition(layout, concatenate([tile, rest_of(tile, layout.size())]))
    if tile.shape == leaves_of(tile.shape) and tile == make_identity_layout(tile.shape):
        return regroup(_tile_and_rest(layout, tile.shape))  # the tile is that many elements of each mode
    return composition(layout, concatenate([tile, rest_of(tile, layout.shape)]))


def _as_layout(tiler: Tiler) -> Layout:
    """Return a tiler that is not a tuple as a layout: an integer n becomes n:1, and a layout stays.

    raises   LayoutError for a tiler of another kind, or a size that is not positive
    """
    if type(tiler) is Layout:
        return tiler
    count = integer_of(tiler)
    if count is None:
        raise wrong_kind("tiler", tiler, "a Layout, an integer, None or a tuple of them")
    if count <= 0:
        raise LayoutError(f"tiler = {shown(count)} is not positive. Give a tile of 1 element or more.")
    return Layout._unchecked(count, 1 if count != 1 else 0)


def _tile_and_rest(layout: Layout, tiler: Tiler) -> tuple[Layout, Layout]:
    """Return a layout divided by a tiler as two layouts: the elements within a tile, and the tiles.

    layout   the layout to divide
    tiler    a layout, an integer n for n:1, None, or a tuple of these, without lists
    """
    if tiler is None:
        return layout, Layout._unchecked(1, 0)
    if isinstance(tiler, tuple):
        require_fit("logical_divide", layout, tiler)
        parts = [_tile_and_rest(layout[m], t) for m, t in enumerate(tiler)]
        rest = [p[1] for p in parts] + [layout[m] for m in range(len(parts), len(layout))]
        return regroup([p[0] for p in parts]), regroup(rest)
    tile = _as_layout(tiler)
    if type(tiler) is int and type(layout.shape) is int and type(layout.stride) is not F2:
        # The tiles of a single extent need no algebra
        count, stride = -(-layout.shape // tiler), layout.stride
        return (
            Layout._unchecked(tiler, stride if tiler != 1 else 0),
            Layout._unchecked(count, tiler * stride if count != 1 else 0),
        )
    divided = _divided(layout, tile)
    return divided[0], divided[1]


def _unzip(layout: Layout, tiler: Tiler) -> tuple[Layout, Layout]:
    """Split a logical product into two layouts: the elements of a block, and the copies of the block.

    layout   result of a logical product by `tiler`: each mode is (block, copies)
    tiler    a layout, or a tuple of tilers, one for each mode
    """
    if tiler is None:
        return layout, Layout._unchecked(1, 0)
    if not isinstance(tiler, tuple):
        return layout[0], layout[1]
    parts = [_unzip(layout[m], t) for m, t in enumerate(tiler)]
    rest = [p[1] for p in parts] + [layout[m] for m in range(len(parts), len(layout))]
    return regroup([p[0] for p in parts]), regroup(rest)


def _opened(layout: Layout) -> list[Layout]:
    """Return the modes of a layout as a list of layouts; a layout with an integer shape is its only mode."""
    return [layout[m] for m in range(len(layout))]


def _zipped_divide(layout: Layout, tiler: Tiler) -> Layout:
    """Divide a plain layout (not a tensor or composed layout) into ((tile, ...), (rest, ...)).

    The first mode is the layout within a tile, the second one the layout over the tiles.

    layout   the layout
    tiler    a layout, an integer, None, or a tuple of these, without lists
    """
    return regroup(_tile_and_rest(layout, tiler))


@_explained
def zipped_divide(target: Target, tiler: Tiler) -> Target:
    """Divide a layout into ((tile, ...), (rest, ...)): shape (8, 6) by (4, 3) gives ((4, 3), (2, 2)).

    The first mode is the layout within a tile, the second one the layout over the tiles.

    target    layout, composed layout or tensor
    tiler     a layout, an integer n (for n:1), None, or a tuple of tilers, one for each mode
    returns   a Layout, ComposedLayout or Tensor, whichever `target` is
    raises    LayoutError if a tile has no complement, would leave gaps, or does not fit its mode
    source    CuTe layout algebra, `zipped_divide`

    >>> zipped_divide(Layout((10, 8, 3), (8, 1, 80)), (4, 2))
    Layout(((4, 2), (3, 4, 3)), ((8, 1), (32, 2, 80)))
    """
    return on_layout("target", _zipped_divide, target, as_tuples(tiler))


@_explained
def tiled_divide(target: Target, tiler: Tiler) -> Target:
    """Divide a layout into ((tile, ...), rest, ...): shape (8, 6) by (4, 3) gives ((4, 3), 2, 2).

    The first mode is the layout within a tile, the other modes are over the tiles.

    target    layout, composed layout or tensor
    tiler     a layout, an integer n (for n:1), None, or a tuple of tilers, one for each mode
    returns   a Layout, ComposedLayout or Tensor, whichever `target` is
    raises    LayoutError if a tile has no complement, would leave gaps, or does not fit its mode
    source    CuTe layout algebra, `tiled_divide`

    >>> tiled_divide(Layout((10, 8, 3), (8, 1, 80)), (4, 2))
    Layout(((4, 2), 3, 4, 3), ((8, 1), 32, 2, 80))
    """

    tiler = as_tuples(tiler)

    def divide(layout: Layout) -> Layout:
        tile, rest = _tile_and_rest(layout, tiler)
        return regroup([tile] + _opened(rest))

    return on_layout("target", divide, target)


@_explained
def flat_divide(target: Target, tiler: Tiler) -> Target:
    """Divide a layout into (tile, ..., rest, ...): shape (8, 6) by (4, 3) gives (4, 3, 2, 2).

    The modes within a tile come first, then the modes over the tiles.

    target    layout, composed layout or tensor
    tiler     a layout, an integer n (for n:1), None, or a tuple of tilers, one for each mode
    returns   a Layout, ComposedLayout or Tensor, whichever `target` is
    raises    LayoutError if a tile has no complement, would leave gaps, or does not fit its mode
    source    CuTe layout algebra, `flat_divide`

    >>> flat_divide(Layout((10, 8, 3), (8, 1, 80)), (4, 2))
    Layout((4, 2, 3, 4, 3), (8, 1, 32, 2, 80))
    """

    tiler = as_tuples(tiler)

    def divide(layout: Layout) -> Layout:
        tile, rest = _tile_and_rest(layout, tiler)
        return regroup(_opened(tile) + _opened(rest))

    return on_layout("target", divide, target)


@_explained
def logical_product(block: Target, tiler: Tiler) -> Target:
    """Return the layout (block, copies) of copies of a block that do not overlap: 4:1 and 2:1 give (4,2):(1,4).

    Law: R(b, t) == A(b) + C(T(t)), where A is the block, T the tiler and C the complement of A. If the offsets
    of A and the offsets of T are distinct, those of R are distinct. The block may be padded.

    block     A: layout, composed layout or tensor
    tiler     T: a layout whose offsets number the copies; or a tuple of tilers, one for each mode of the block
    returns   a Layout, ComposedLayout or Tensor, whichever `block` is
    raises    LayoutError if the block has no complement, or if the tiler does not fit it
    source    CuTe layout algebra, `logical_product`

    >>> logical_product(Layout((2, 2)), Layout((3, 4)))
    Layout(((2, 2), (3, 4)), ((1, 2), (4, 12)))
    """
    return on_layout("block", _logical_product, block, as_tuples(tiler))


def _logical_product(block: Layout, tiler: Tiler) -> Layout:
    """Return the layout (block, copies) of copies of a plain layout (not a tensor or composed layout).

    block   the layout to copy
    tiler   a layout whose offsets number the copies, or a tuple of tilers without lists
    """
    if tiler is None:
        return block
    if isinstance(tiler, tuple):
        require_fit("logical_product", block, tiler)
        parts = [_logical_product(block[m], t) for m, t in enumerate(tiler)]
        return concatenate(parts + [block[m] for m in range(len(parts), len(block))])
    return concatenate([block, _copies(block, _as_layout(tiler))])


def _copies(block: Layout, tiler: Layout) -> Layout:
    """Return the layout of the copies of a block: coordinate of a copy -> starting offset of the copy.

    block   the layout to copy
    tiler   layout whose offsets number the copies
    """
    count = tiler.cosize()
    if type(count) is not int:
        raise LayoutError(f"tiler {tiler} returns coordinates. Give a layout whose offsets number the copies.")
    return composition(copies_of(block, count), tiler)


@_explained
def zipped_product(block: Target, tiler: Tiler) -> Target:
    """Return copies of a block as ((block, ...), (copies, ...)): (2, 2) and (3, 4) give ((2, 2), (3, 4)).

    The first mode is the layout within a block, the second one the layout over the copies.

    block     layout, composed layout or tensor
    tiler     a layout whose offsets number the copies; or a tuple of tilers, one for each mode of the block
    returns   a Layout, ComposedLayout or Tensor, whichever `block` is
    raises    LayoutError if the block has no complement, or if the tiler does not fit it
    source    CuTe layout algebra, `zipped_product`

    >>> zipped_product(Layout((2, 2)), Layout((3, 4)))
    Layout(((2, 2), (3, 4)), ((1, 2), (4, 12)))
    """
    return on_layout("block", _zipped_product, block, as_tuples(tiler))


def _zipped_product(block: Layout, tiler: Tiler) -> Layout:
    """Return copies of a plain layout (not a tensor or composed layout) as ((block, ...), (copies, ...)).

    The first mode is the layout within a block, the second one the layout over the copies.

    block   the layout to copy
    tiler   a layout whose offsets number the copies, or a tuple of tilers without lists
    """
    return concatenate(_unzip(_logical_product(block, tiler), tiler))


@_explained
def tiled_product(block: Target, tiler: Tiler) -> Target:
    """Return copies of a block as ((block, ...), copies, ...): (2, 2) and (3, 4) give ((2, 2), 3, 4).

    The first mode is the layout within a block, the other modes are over the copies.

    block     layout, composed layout or tensor
    tiler     a layout whose offsets number the copies; or a tuple of tilers, one for each mode of the block
    returns   a Layout, ComposedLayout or Tensor, whichever `block` is
    raises    LayoutError if the block has no complement, or if the tiler does not fit it
    source    CuTe layout algebra, `tiled_product`

    >>> tiled_product(Layout((2, 2)), Layout((3, 4)))
    Layout(((2, 2), 3, 4), ((1, 2), 4, 12))
    """

    tiler = as_tuples(tiler)

    def multiply(layout: Layout) -> Layout:
        zipped = _zipped_product(layout, tiler)
        return concatenate([zipped[0]] + _opened(zipped[1]))

    return on_layout("block", multiply, block)


@_explained
def flat_product(block: Target, tiler: Tiler) -> Target:
    """Return copies of a block as (block, ..., copies, ...): (2, 2) and (3, 4) give (2, 2, 3, 4).

    The modes within a block come first, then the modes over the copies.

    block     layout, composed layout or tensor
    tiler     a layout whose offsets number the copies; or a tuple of tilers, one for each mode of the block
    returns   a Layout, ComposedLayout or Tensor, whichever `block` is
    raises    LayoutError if the block has no complement, or if the tiler does not fit it
    source    CuTe layout algebra, `flat_product`

    >>> flat_product(Layout((2, 2)), Layout((3, 4)))
    Layout((2, 2, 3, 4), (1, 2, 4, 12))
    """

    tiler = as_tuples(tiler)

    def multiply(layout: Layout) -> Layout:
        zipped = _zipped_product(layout, tiler)
        return concatenate(_opened(zipped[0]) + _opened(zipped[1]))

    return on_layout("block", multiply, block)


def _block_and_copies(block: Layout, tiler: Layout) -> tuple[Layout, Layout]:
    """Return the block and its copies as layouts with equally many modes; the shorter one is extended by modes 1:0."""
    require_layout("tiler", tiler)
    rank = max(len(block), len(tiler))
    block, tiler = (x if len(x) == rank else append(x, Layout._unchecked(1, 0), rank) for x in (block, tiler))
    copies = _copies(block, tiler)
    if rank == 1 and (type(block.shape) is int or type(tiler.shape) is int):
        return concatenate([block]), concatenate([copies])
    return block, copies


def _zip_modes(first: Layout, second: Layout) -> Layout:
    """Return the layout whose mode i is the pair (mode i of `first`, mode i of `second`)."""
    shape = tuple(zip(first.shape, second.shape, strict=True))
    return Layout._joined(shape, tuple(zip(first.stride, second.stride, strict=True)))


@_explained
def blocked_product(block: Target, tiler: Layout) -> Target:
    """Return copies of a block next to each other, with modes (block, copies): (2, 2) and (3, 4) give ((2, 3), (2, 4)).

    block     layout, composed layout or tensor
    tiler     layout whose offsets number the copies
    returns   a Layout, ComposedLayout or Tensor, whichever `block` is
    raises    LayoutError if the block has no complement, or if the tiler does not fit it
    source    CuTe layout algebra, `blocked_product`

    >>> blocked_product(Layout((2, 2)), Layout((3, 4)))
    Layout(((2, 3), (2, 4)), ((1, 4), (2, 12)))
    """
    return on_layout("block", _blocked_product, block, tiler)


def _blocked_product(block: Layout, tiler: Layout) -> Layout:
    """Return copies of a plain layout next to each other, with modes (block, copies), for `blocked_product`.

    block   the layout to copy
    tiler   layout whose offsets number the copies
    """
    return _zip_modes(*_block_and_copies(block, tiler))


@_explained
def raked_product(block: Target, tiler: Layout) -> Target:
    """Return interleaved copies of a block, with modes (copies, block): (2, 2) and (3, 4) give ((3, 2), (4, 2)).

    block     layout, composed layout or tensor
    tiler     layout whose offsets number the copies
    returns   a Layout, ComposedLayout or Tensor, whichever `block` is; each mode is coalesced
    raises    LayoutError if the block has no complement, or if the tiler does not fit it
    source    CuTe layout algebra, `raked_product`

    >>> raked_product(Layout((2, 2)), Layout((3, 4)))
    Layout(((3, 2), (4, 2)), ((4, 1), (12, 2)))
    """
    return on_layout("block", _raked_product, block, tiler)


def _raked_product(block: Layout, tiler: Layout) -> Layout:
    """Return interleaved copies of a plain layout, with modes (copies, block), for `raked_product`.

    block   the layout to copy
    tiler   layout whose offsets number the copies
    """
    block, copies = _block_and_copies(block, tiler)
    return coalesce(_zip_modes(copies, block), (1,) * len(block))


@_explained
def tile_to_shape(block: Target, trg_shape: IntTuple, order: IntTuple) -> Target:
    """Return copies of a block that cover a shape. Extents that the block does not divide are rounded up.

    block       layout, composed layout or tensor
    trg_shape   extents to cover, with at least as many modes as the block
    order       one number for each mode: in memory, copies follow each other along the mode with the smallest number
                first, so (0, 1) is column-major
    returns     a Layout, ComposedLayout or Tensor, whichever `block` is
    raises      LayoutError if the block has more modes than the shape, or if the order does not fit the shape
    source      CuTe layout algebra, `tile_to_shape`

    >>> tile_to_shape(Layout((2, 4), (4, 1)), (4, 8), order=(1, 0))
    Layout(((2, 2), (4, 2)), ((4, 16), (1, 8)))
    """
    trg_shape = as_int_tuple(trg_shape, "trg_shape")
    order = as_int_tuple(order, "order")
    rank = len(trg_shape) if isinstance(trg_shape, tuple) else 1

    def tile(layout: Layout) -> Layout:
        if len(layout) > rank:
            raise LayoutError(
                f"block {layout} has {len(layout)} modes, trg_shape {cute_text(trg_shape)} has {rank}. "
                "Give an extent for each mode of the block."
            )
        padded = append(layout, Layout._unchecked(1, 0), rank)
        sizes = tuple([padded[m].size() for m in range(rank)])
        copies = ceil_div(product_each(trg_shape), sizes if isinstance(trg_shape, tuple) else sizes[0])
        return blocked_product(padded, make_ordered_layout(copies, order))

    return on_layout("block", tile, block)


def _require_tensor(call: str, target: Any) -> None:
    """Raise LayoutError if `target` is not a Tensor.

    call   text of the user's call, which the message begins with
    """
    if not isinstance(target, Tensor):
        raise wrong_kind(f"{call}: target", target, "a Tensor", "Tensor(None, layout) holds the offsets of a layout.")


def local_tile(target: Tensor, tiler: Tiler, coord: Any, proj: Any = None) -> Tensor:
    """Return the tile of a tensor at a tile coordinate: tile (1, 0) of size (4, 3) starts at element (4, 0).

    target    Tensor
    tiler     extents of a tile
    coord     coordinate of the tile; None for all tiles along a mode
    proj      a tuple as long as `tiler`, or None: modes with the entry None are removed from the tiler and the
              coordinate
    returns   Tensor with the modes of the tile, then one mode of tiles for each None of the coordinate
    raises    LayoutError for a tiler or a coordinate that does not fit the tensor
    source    CuTe, `local_tile`

    >>> from cutegemm.layout.tensor import make_identity_tensor
    >>> local_tile(make_identity_tensor((10, 8, 3)), (4, 2, 1), (1, None, None))[3, 1, 0, 2, 1]
    (7, 5, 1)
    """
    call = "local_tile(target, tiler, coord, proj)"
    _require_tensor(call, target)
    tiler, coord, proj = as_tuples(tiler), as_tuples(coord), as_tuples(proj)
    if not isinstance(tiler, (int, tuple)):
        raise wrong_kind(f"{call}: tiler", tiler, "an extent or a tuple with one for each mode")
    require_coord(call, "coord", coord)
    require_coord(call, "proj", proj)
    if proj is not None:
        tiler, coord = dice(tiler, proj), dice(coord, proj)
    divided = zipped_divide(target, tiler)
    try:
        return divided[None if isinstance(tiler, int) else (None,) * len(tiler), coord]
    except LayoutError as error:
        raise LayoutError(
            f"{call}: coord {cute_text(coord)} does not fit the tiles of tiler {cute_text(tiler)}: {error}"
        ) from None


def local_partition(target: Tensor, tiler: Layout | IntTuple, index: int, proj: Any = None) -> Tensor:
    """Return the elements of a tensor that belong to one thread.

    A layout of threads is repeated over the tensor; thread `index` owns the elements at its own positions.

    target    Tensor
    tiler     layout from coordinates to threads, with one extent for each mode of the target, such as (2,3):(1,2)
    index     the thread: one of the offsets of the tiler
    proj      a tuple as long as `tiler`, or None: modes with the entry None are removed from the tiler
    returns   Tensor with one mode for each mode of the target: the repetitions along it
    raises    LayoutError for an index that is not an offset of the tiler, or for a tiler that does not fit
    source    CuTe, `local_partition`

    >>> from cutegemm.layout.tensor import make_identity_tensor
    >>> local_partition(make_identity_tensor((8, 8)), Layout((2, 4), (4, 1)), 5)[1, 1]
    (3, 5)
    """
    call = "local_partition(target, tiler, index, proj)"
    _require_tensor(call, target)
    proj, index = as_tuples(proj), as_integer(index, f"{call}: index")
    require_coord(call, "proj", proj)
    layout = tiler if isinstance(tiler, Layout) else Layout(as_int_tuple(tiler, f"{call}: tiler"))
    extents, strides = product_each(layout.shape), layout.stride
    if layout.size() == 0:
        raise LayoutError(f"{call}: tiler {layout} is empty. Give extents of 1 or more.")
    if not isinstance(extents, tuple):
        raise LayoutError(f"{call}: tiler {layout} has no modes. Write ({cute_text(extents)},).")
    if leaves_of(layout.shape) != leaves_of(extents) or not layout.is_integral:
        raise LayoutError(f"{call}: tiler {layout} is nested or gives coordinates. Give one extent for each mode.")
    coord = tuple([(index // d) % s if d else 0 for s, d in zip(leaves_of(extents), leaves_of(strides), strict=True)])
    if layout(coord) != index:
        raise LayoutError(
            f"{call}: tiler {layout} has no coordinate for index {shown(index)}. Give one of its offsets, which lie in "
            f"[0, {layout.cosize()})."
        )
    if proj is not None:
        extents, coord = dice(extents, proj), dice(coord, proj)
    try:
        return zipped_divide(target, extents)[coord, (None,) * len(target.layout)]
    except LayoutError as error:
        raise LayoutError(f"{call}: tiler {layout} does not fit target {target}: {error}") from None
