"""Divides and products: tiles of a layout, and layouts of tiles.

A tiler is a layout, an integer n (for n:1), or a tuple of tilers and None, one for each mode. The four forms of a
divide differ in how modes are grouped:

    logical   ((tile, rest), ...)
    zipped    ((tile, ...), (rest, ...))
    tiled     ((tile, ...), rest, ...)
    flat      (tile, ..., rest, ...)

Where a tile does not divide its mode, the number of tiles is rounded up, as in CuTe: the last tile runs over the end
and needs a predicate.
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
from cutegemm.layout.layout import Layout, _text, concatenate, gathered
from cutegemm.layout.modes import append, dice, on_layout, require_coord, require_layout
from cutegemm.layout.stride import F2
from cutegemm.layout.swizzle import ComposedLayout
from cutegemm.layout.tensor import Tensor

Tiler = Any  # int | Layout | None | tuple[Tiler, ...]
Target = TypeVar("Target", Layout, ComposedLayout, Tensor)
F = TypeVar("F", bound=Callable[..., Any])


def _explained(operation: F) -> F:
    """Return `operation` with errors that begin with its name and the arguments of the call."""

    @wraps(operation)
    def call(*args: Any, **options: Any) -> Any:
        try:
            return operation(*args, **options)
        except LayoutError as error:
            values = signature(operation).bind(*args, **options).arguments
            written = ", ".join([f"{name}={_text(value)}" for name, value in values.items()])
            raise LayoutError(f"{operation.__name__}({written}) failed.\n  {error}") from error

    return cast(F, call)


@_explained
def logical_divide(target: Target, tiler: Tiler) -> Target:
    """A layout split into (tile, rest), or each of its modes by an entry of a tuple.

    Law: for a layout T as the tiler, R(t, r) == L(T(t) + C(r)), where C is the complement of T in the size
    of L. Modes beyond the tuple, and those at None, stay as they are.

    raises   LayoutError where T has no complement or is padded (its copies would leave elements out), or where the
             tile does not fit the modes of L
    source   CuTe layout algebra, `logical_divide`

    >>> logical_divide(Layout((10, 8), (8, 1)), (4, Layout(2, 4)))
    Layout(((4, 3), (2, 4)), ((8, 32), (4, 1)))
    """
    return on_layout("target", _logical_divide, target, as_tuples(tiler))


def _logical_divide(layout: Layout, tiler: Tiler) -> Layout:
    if tiler is None:
        return layout
    if isinstance(tiler, tuple):
        require_fit("logical_divide", layout, tiler)
        parts = [_logical_divide(layout[m], t) for m, t in enumerate(tiler)]
        return gathered(parts + [layout[m] for m in range(len(parts), len(layout))])
    if type(tiler) is int:
        return gathered(_tile_and_rest(layout, tiler))
    return _divided(layout, _as_layout(tiler))


def _divided(layout: Layout, tile: Layout) -> Layout:
    if not tile.is_coordinates:
        return composition(layout, concatenate([tile, rest_of(tile, layout.size())]))
    if tile.shape == leaves_of(tile.shape) and tile == make_identity_layout(tile.shape):
        return gathered(_tile_and_rest(layout, tile.shape))  # so many elements of each mode
    return composition(layout, concatenate([tile, rest_of(tile, layout.shape)]))


def _as_layout(tiler: Tiler) -> Layout:
    if type(tiler) is Layout:
        return tiler
    count = integer_of(tiler)
    if count is None:
        raise wrong_kind("tiler", tiler, "a Layout, an integer, None or a tuple of them")
    if count <= 0:
        raise LayoutError(f"tiler = {shown(count)} is not positive. Give a tile of 1 element or more.")
    return Layout._of(count, 1 if count != 1 else 0)


def _tile_and_rest(layout: Layout, tiler: Tiler) -> tuple[Layout, Layout]:
    """The two modes of a zipped divide."""
    if tiler is None:
        return layout, Layout._of(1, 0)
    if isinstance(tiler, tuple):
        require_fit("logical_divide", layout, tiler)
        parts = [_tile_and_rest(layout[m], t) for m, t in enumerate(tiler)]
        rest = [p[1] for p in parts] + [layout[m] for m in range(len(parts), len(layout))]
        return gathered([p[0] for p in parts]), gathered(rest)
    tile = _as_layout(tiler)
    if type(tiler) is int and type(layout.shape) is int and type(layout.stride) is not F2:
        # A plain extent in tiles: no algebra is needed
        count, stride = -(-layout.shape // tiler), layout.stride
        return (
            Layout._of(tiler, stride if tiler != 1 else 0),
            Layout._of(count, tiler * stride if count != 1 else 0),
        )
    divided = _divided(layout, tile)
    return divided[0], divided[1]


def _unzip(layout: Layout, tiler: Tiler) -> tuple[Layout, Layout]:
    """The block and the copies of a logical product by `tiler`."""
    if tiler is None:
        return layout, Layout._of(1, 0)
    if not isinstance(tiler, tuple):
        return layout[0], layout[1]
    parts = [_unzip(layout[m], t) for m, t in enumerate(tiler)]
    rest = [p[1] for p in parts] + [layout[m] for m in range(len(parts), len(layout))]
    return gathered([p[0] for p in parts]), gathered(rest)


def _opened(layout: Layout) -> list[Layout]:
    return [layout[m] for m in range(len(layout))]


def _zipped_divide(layout: Layout, tiler: Tiler) -> Layout:
    return gathered(_tile_and_rest(layout, tiler))


@_explained
def zipped_divide(target: Target, tiler: Tiler) -> Target:
    """((tile, ...), (rest, ...)): the first mode runs within a tile, the second over the tiles.

    >>> zipped_divide(Layout((10, 8, 3), (8, 1, 80)), (4, 2))
    Layout(((4, 2), (3, 4, 3)), ((8, 1), (32, 2, 80)))
    """
    return on_layout("target", _zipped_divide, target, as_tuples(tiler))


@_explained
def tiled_divide(target: Target, tiler: Tiler) -> Target:
    """((tile, ...), rest, ...).

    >>> tiled_divide(Layout((10, 8, 3), (8, 1, 80)), (4, 2))
    Layout(((4, 2), 3, 4, 3), ((8, 1), 32, 2, 80))
    """

    tiler = as_tuples(tiler)

    def divide(layout: Layout) -> Layout:
        tile, rest = _tile_and_rest(layout, tiler)
        return gathered([tile] + _opened(rest))

    return on_layout("target", divide, target)


@_explained
def flat_divide(target: Target, tiler: Tiler) -> Target:
    """(tile, ..., rest, ...).

    >>> flat_divide(Layout((10, 8, 3), (8, 1, 80)), (4, 2))
    Layout((4, 2, 3, 4, 3), (8, 1, 32, 2, 80))
    """

    tiler = as_tuples(tiler)

    def divide(layout: Layout) -> Layout:
        tile, rest = _tile_and_rest(layout, tiler)
        return gathered(_opened(tile) + _opened(rest))

    return on_layout("target", divide, target)


@_explained
def logical_product(block: Target, tiler: Tiler) -> Target:
    """(block, copies): copies of a block that do not overlap.

    Law: R(b, t) == A(b) + C(T(t)), where C is the complement of A. Where the offsets of A and those of T are
    distinct, so are those of R. The block may be padded.

    raises   LayoutError where the block has no complement, or the tiler does not fit it
    source   CuTe layout algebra, `logical_product`

    >>> logical_product(Layout((2, 2)), Layout((3, 4)))
    Layout(((2, 2), (3, 4)), ((1, 2), (4, 12)))
    """
    return on_layout("block", _logical_product, block, as_tuples(tiler))


def _logical_product(block: Layout, tiler: Tiler) -> Layout:
    if tiler is None:
        return block
    if isinstance(tiler, tuple):
        require_fit("logical_product", block, tiler)
        parts = [_logical_product(block[m], t) for m, t in enumerate(tiler)]
        return concatenate(parts + [block[m] for m in range(len(parts), len(block))])
    return concatenate([block, _copies(block, _as_layout(tiler))])


def _copies(block: Layout, tiler: Layout) -> Layout:
    count = tiler.cosize()
    if type(count) is not int:
        raise LayoutError(
            f"tiler {tiler} gives coordinates. Give a layout whose offsets are the numbers of the copies."
        )
    return composition(copies_of(block, count), tiler)


@_explained
def zipped_product(block: Target, tiler: Tiler) -> Target:
    """((block, ...), (copies, ...)).

    >>> zipped_product(Layout((2, 2)), Layout((3, 4)))
    Layout(((2, 2), (3, 4)), ((1, 2), (4, 12)))
    """
    return on_layout("block", _zipped_product, block, as_tuples(tiler))


def _zipped_product(block: Layout, tiler: Tiler) -> Layout:
    return concatenate(_unzip(_logical_product(block, tiler), tiler))


@_explained
def tiled_product(block: Target, tiler: Tiler) -> Target:
    """((block, ...), copies, ...).

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
    """(block, ..., copies, ...).

    >>> flat_product(Layout((2, 2)), Layout((3, 4)))
    Layout((2, 2, 3, 4), (1, 2, 4, 12))
    """

    tiler = as_tuples(tiler)

    def multiply(layout: Layout) -> Layout:
        zipped = _zipped_product(layout, tiler)
        return concatenate(_opened(zipped[0]) + _opened(zipped[1]))

    return on_layout("block", multiply, block)


def _block_and_copies(block: Layout, tiler: Layout) -> tuple[Layout, Layout]:
    """The block and its copies with the same number of modes: the shorter of the two is extended by 1:0."""
    require_layout("tiler", tiler)
    rank = max(len(block), len(tiler))
    block, tiler = (x if len(x) == rank else append(x, Layout._of(1, 0), rank) for x in (block, tiler))
    copies = _copies(block, tiler)
    if rank == 1 and (type(block.shape) is int or type(tiler.shape) is int):
        return concatenate([block]), concatenate([copies])
    return block, copies


def _zip_modes(first: Layout, second: Layout) -> Layout:
    shape = tuple(zip(first.shape, second.shape, strict=True))
    return Layout._joined(shape, tuple(zip(first.stride, second.stride, strict=True)))


@_explained
def blocked_product(block: Target, tiler: Layout) -> Target:
    """Copies of a block side by side: each mode is (block, copies).

    source   CuTe layout algebra, `blocked_product`

    >>> blocked_product(Layout((2, 2)), Layout((3, 4)))
    Layout(((2, 3), (2, 4)), ((1, 4), (2, 12)))
    """
    return on_layout("block", _blocked_product, block, tiler)


def _blocked_product(block: Layout, tiler: Layout) -> Layout:
    return _zip_modes(*_block_and_copies(block, tiler))


@_explained
def raked_product(block: Target, tiler: Layout) -> Target:
    """Copies of a block, interleaved: each mode is (copies, block), coalesced.

    source   CuTe layout algebra, `raked_product`

    >>> raked_product(Layout((2, 2)), Layout((3, 4)))
    Layout(((3, 2), (4, 2)), ((4, 1), (12, 2)))
    """
    return on_layout("block", _raked_product, block, tiler)


def _raked_product(block: Layout, tiler: Layout) -> Layout:
    block, copies = _block_and_copies(block, tiler)
    return coalesce(_zip_modes(copies, block), (1,) * len(block))


@_explained
def tile_to_shape(block: Target, trg_shape: IntTuple, order: IntTuple) -> Target:
    """Copies of a block that cover a shape; extents that the block does not divide are rounded up.

    order    one entry for each mode: copies follow each other first along the mode with the smallest entry
    raises   LayoutError where the block has more modes than the shape, or the order does not fit
    source   CuTe layout algebra, `tile_to_shape`

    >>> tile_to_shape(Layout((2, 4), (4, 1)), (4, 8), order=(1, 0))
    Layout(((2, 2), (4, 2)), ((4, 16), (1, 8)))
    """
    trg_shape = as_int_tuple(trg_shape, "trg_shape")
    order = as_int_tuple(order, "order")
    rank = len(trg_shape) if isinstance(trg_shape, tuple) else 1

    def tile(layout: Layout) -> Layout:
        if len(layout) > rank:
            raise LayoutError(
                f"block {layout} has {len(layout)} modes, trg_shape {_text(trg_shape)} has {rank}. "
                "Give an extent for each mode of the block."
            )
        padded = append(layout, Layout._of(1, 0), rank)
        sizes = tuple([padded[m].size() for m in range(rank)])
        copies = ceil_div(product_each(trg_shape), sizes if isinstance(trg_shape, tuple) else sizes[0])
        return blocked_product(padded, make_ordered_layout(copies, order))

    return on_layout("block", tile, block)


def _require_tensor(call: str, target: Any) -> None:
    if not isinstance(target, Tensor):
        raise wrong_kind(
            f"{call}: target", target, "a Tensor", "Tensor(None, layout) holds the offsets of a layout."
        )


def local_tile(target: Tensor, tiler: Tiler, coord: Any, proj: Any = None) -> Tensor:
    """The tile of a tensor at a tile coordinate; where the coordinate holds None, all tiles of that mode.

    proj     where it holds None, that mode of the tiler and of the coordinate is left out
    returns  the modes of the tile, then one mode of tiles for each None of the coordinate
    source   CuTe, `local_tile`

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
            f"{call}: coord {_text(coord)} does not fit the tiles of tiler {_text(tiler)}: {error}"
        ) from None


def local_partition(target: Tensor, tiler: Layout | IntTuple, index: int, proj: Any = None) -> Tensor:
    """The elements of a tensor that belong to one thread, when a layout of threads is repeated over the tensor.

    tiler    a layout from coordinates to threads
    index    the thread: one of the offsets of the tiler
    proj     where it holds None, that mode of the tiler is left out
    raises   LayoutError for an index that the tiler gives no coordinate, or a tiler that does not fit
    source   CuTe, `local_partition`

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
        raise LayoutError(f"{call}: tiler {layout} has no modes. Write ({_text(extents)},).")
    if leaves_of(layout.shape) != leaves_of(extents) or not layout.is_integral:
        raise LayoutError(
            f"{call}: tiler {layout} is nested or gives coordinates. Give one extent for each mode."
        )
    coord = tuple(
        [(index // d) % s if d else 0 for s, d in zip(leaves_of(extents), leaves_of(strides), strict=True)]
    )
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
