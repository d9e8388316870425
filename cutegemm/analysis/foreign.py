"""Wavefronts of kernels from other packages: a thread-value layout over a tile in shared memory.

| from                              | argument `part` of `check_part`                                                |
|-----------------------------------|--------------------------------------------------------------------------------|
| CuTe, C++ or Python               | text of a thread-value layout, or of a tiled copy as the DSL prints it         |
| `cutlass.cute`, in traced code    | a `TiledCopy`, with argument `side`; a `TiledMma`, with argument `operand`     |
| Triton                            | a linear layout: bases of register, lane and warp                              |
| this package                      | a `Layout`, or a `TiledCopy`                                                   |

Each of them maps (thread, value) to a position in a tile. Positions count along the first mode first.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from cutegemm.analysis.shared import DEFAULT_RULES, Rules, Wavefronts, tile_cost
from cutegemm.dtypes import DType
from cutegemm.errors import LayoutError
from cutegemm.layout import ComposedLayout, F2Matrix, Layout, Swizzle, from_f2, parse
from cutegemm.layout.inttuple import product
from cutegemm.machine.arch import WARP_THREADS

OPS = ("load", "store", "ldmatrix", "stmatrix")
_TV = re.compile(r"TV Layout tiled:\s*(\S+)")
_TILER = re.compile(r"Tiler MN:\s*\((\d+):\d+,\s*(\d+):\d+\)")
_TYPE = re.compile(r"Value type:\s*(\w+)")


@dataclass(frozen=True)
class Part:
    """Tells which element of a tile each value of each thread is, whichever library the layout came from.

    places   integer array with axes for threads and values of a thread: position of the element in the tile
    tile     extents of the tile that positions refer to; None: all of shared memory
    bits     bits of an element; None if the layout does not name an element type
    """

    places: np.ndarray
    tile: tuple[int, int] | None = None
    bits: int | None = None


def check_part(
    part: Any,
    shared: Any,
    dtype: Any = None,
    *,
    tile: tuple[int, int] | None = None,
    op: str = "load",
    access_bits: int | None = None,
    side: str = "dst",
    operand: str = "A",
    swizzle_of: str = "",
    rules: Rules = DEFAULT_RULES,
) -> Wavefronts:
    """Return the wavefronts and bank conflicts of threads that access a shared-memory tile once, for any layouts.

    part          which thread accesses which element: a layout, a tiled copy or tiled MMA of this package or the CuTe
                  DSL, its printed text, or a linear layout of Triton
    shared        layout of shared memory: of this package, of the DSL, or a text. If it has several stages, the first
                  one counts
    dtype         type of an element; None: the type of the tiled copy
    tile          extents of the tile that `part` refers to; None: all of shared memory. If the tile is smaller, the
                  threads repeat it over all of shared memory
    op            "load", "store", "ldmatrix" or "stmatrix"
    access_bits   bits that a lane accesses per instruction; None: the widest that the layout allows, in shared memory
    side          layout of a tiled copy to use: "src" or "dst"
    operand       layout of a tiled MMA to use: "A", "B" or "C"
    swizzle_of    unit of the swizzle: "bytes", as in the DSL's shared-memory layouts, or "elements"; "": bytes for a
                  layout of the DSL, else elements
    rules         model of shared memory: which groups of lanes are served together
    raises        LayoutError if the layouts do not match

    Threads that read a column of a row-major tile, without and with a swizzle:

    >>> column = "(32,32):(1,32)"
    >>> check_part(column, "(32,32):(32,1)", "f32", access_bits=32).ways
    32.0
    >>> check_part(column, "S<5,0,5> o 0 o (32,32):(32,1)", "f32", access_bits=32).ways
    1.0
    """
    accessed = _part(part, side, operand)
    layout = _layout(shared)
    bits = DType.parse(dtype).bits if dtype is not None else accessed.bits
    if bits is None:
        raise LayoutError("check_part: the element type is not known. Pass dtype, such as 'bf16'.")
    if op not in OPS:
        raise LayoutError(f"check_part: op = {op!r} is unknown. Use one of {', '.join(OPS)}.")
    if isinstance(layout, ComposedLayout) and (swizzle_of or _unit_of(shared)) == "bytes":
        layout = _in_elements(layout, bits)
    table, extents = _first_stage(layout)
    places = _over_all(accessed.places, tile or accessed.tile or extents, extents)
    if len(places) % WARP_THREADS:
        raise LayoutError(f"check_part: {len(places)} threads are not whole warps of {WARP_THREADS}.")
    grouped = places.reshape(-1, WARP_THREADS, places.shape[1])
    return tile_cost(table, grouped, bits, op=op, access_bits=access_bits, rules=rules)


def _part(part: Any, side: str, operand: str) -> Part:
    """Convert a layout, tiled copy or tiled MMA to a table of the elements that each thread accesses.

    part      layout, tiled copy or tiled MMA of this package or the CuTe DSL, its printed text, or a Triton linear
              layout
    side      layout of a tiled copy to use: "src" or "dst"
    operand   layout of a tiled MMA to use: "A", "B" or "C"
    """
    if isinstance(part, str) and "TV Layout tiled" in part:
        return _printed_copy(part)
    if hasattr(part, f"tv_layout_{operand}_tiled"):  # a tiled MMA of the DSL or of this package
        layout, shape = _layout(getattr(part, f"tv_layout_{operand}_tiled")), None
        size = getattr(part, "get_tile_size", None)
        if size is not None:
            m, n, k = (int(size(mode)) for mode in range(3))
            shape = {"A": (m, k), "B": (n, k), "C": (m, n)}[operand]
        return Part(_table(layout), shape)
    if hasattr(part, f"layout_{side}_tv_tiled"):
        rows, columns = [_extent(mode) for mode in part.tiler_mn]
        return Part(_table(_layout(getattr(part, f"layout_{side}_tv_tiled"))), (rows, columns))
    if hasattr(part, "bases") or hasattr(part, "reg_bases"):
        return _linear(part)
    return Part(_table(_layout(part)))


def _printed_copy(text: str) -> Part:
    """Convert the text that the CuTe DSL prints for a tiled copy to a table of the elements of each thread."""
    layout, tiler, kind = _TV.search(text), _TILER.search(text), _TYPE.search(text)
    if layout is None or tiler is None:
        raise LayoutError("check_part: the text has 'TV Layout tiled', but it lacks 'Tiler MN: (m:1,n:1)'.")
    bits = DType.parse(kind[1]).bits if kind else None
    return Part(_table(parse(layout[1])), (int(tiler[1]), int(tiler[2])), bits)


def _linear(part: Any) -> Part:
    """Convert a linear layout of Triton to a table of the elements that each thread accesses.

    Its inputs "lane" and "warp" give the thread, "register" the value. The bases of "block" (CTAs) are ignored.
    """
    if hasattr(part, "reg_bases"):
        bases = {"register": part.reg_bases, "lane": part.lane_bases, "warp": part.warp_bases}
        sizes = [*part.shape]
    else:
        bases = dict(part.bases)
        dims = part.out_dims.items() if hasattr(part.out_dims, "items") else part.out_dims
        sizes = [size for _, size in dims]
    missing = [name for name in ("lane", "register") if name not in bases]
    if missing:
        raise LayoutError(
            f"check_part: the linear layout has the inputs {', '.join(bases)}. It lacks {' and '.join(missing)}."
        )
    if len(sizes) != 2:
        raise LayoutError(f"check_part: the linear layout has {len(sizes)} outputs instead of two, rows and columns.")

    def columns(name: str) -> list[int]:
        """Return the tile position that each bit of one input of a Triton linear layout stands for, lowest bit first.

        name   the input: "lane", "warp" or "register"
        """
        return [row + sizes[0] * column for row, column in bases.get(name, ())]

    threads, values = [*columns("lane"), *columns("warp")], columns("register")
    layout = from_f2(F2Matrix(tuple([*threads, *values])), (1 << len(threads), 1 << len(values)))
    return Part(layout.offsets().reshape(1 << len(threads), -1, order="F"), (sizes[0], sizes[1]))


def _layout(layout: Any) -> Layout | ComposedLayout:
    """Convert a layout of the CuTe DSL, of this package or in CuTe's notation to a layout of this package."""
    if isinstance(layout, (Layout, ComposedLayout)):
        return layout
    try:
        return parse(str(layout))
    except LayoutError as error:
        raise LayoutError(
            f"check_part: {str(layout)[:80]!r} is not the text of a static layout. In a traced function, all extents "
            "and strides must be known."
        ) from error


def _unit_of(shared: Any) -> str:
    """Return the unit of the offsets that a layout's swizzle permutes: "bytes" in the CuTe DSL, else "elements".

    shared   layout of shared memory, of this package, as a text, or of the DSL
    """
    return "elements" if isinstance(shared, (str, Layout, ComposedLayout)) else "bytes"


def _in_elements(layout: ComposedLayout, bits: int) -> ComposedLayout:
    """Convert a swizzled layout whose swizzle acts on byte addresses to one whose swizzle acts on element offsets.

    bits   bits of an element
    """
    inner = layout.inner
    if not isinstance(inner, Swizzle):
        return layout
    return ComposedLayout(inner.recast(8, bits), layout.offset, layout.outer)


def _extent(mode: Any) -> int:
    """Return how many elements along one mode an entry of a tiler selects: an integer itself, or a layout's size."""
    if isinstance(mode, int):
        return mode
    return product(_layout(mode).shape)


def _modes(layout: Layout | ComposedLayout) -> tuple[Any, ...]:
    """Return the modes of a layout's shape as a tuple; a layout with an integer shape has one mode."""
    return layout.shape if isinstance(layout.shape, tuple) else (layout.shape,)


def _table(layout: Layout | ComposedLayout) -> np.ndarray:
    """Return the offsets of a thread-value layout as an array with a row for each thread, a column for each value."""
    modes = _modes(layout)
    if len(modes) != 2:
        raise LayoutError(f"check_part: {layout} has {len(modes)} modes instead of two, (thread, value).")
    return layout.offsets().reshape(product(modes[0]), -1, order="F")


def _first_stage(layout: Layout | ComposedLayout) -> tuple[np.ndarray, tuple[int, int]]:
    """Return the offsets of one pipeline stage of a shared-memory layout, and the stage's numbers of rows and columns.

    The first two modes of the layout are rows and columns. A third one, the stages, may follow.

    returns   (array of the offsets of the first stage in column-major order, (rows, columns))
    raises    LayoutError for a layout with one mode
    """
    extents = [product(mode) for mode in _modes(layout)]
    if len(extents) < 2:
        raise LayoutError(
            f"check_part: the layout {layout} of shared memory has one mode. Pass a layout of rows and columns."
        )
    first = extents[0] * extents[1]
    return layout.offsets()[:first], (extents[0], extents[1])


def _over_all(places: np.ndarray, tile: tuple[int, int], extents: tuple[int, int]) -> np.ndarray:
    """Return where the elements of each thread are in shared memory, if the memory consists of several tiles.

    The threads access each tile in the same way, one after the other, so that each thread has more values.

    places    array of positions in the tile; a row for each thread, a column for each value of a thread
    tile      extents of the tile
    extents   extents of shared memory
    returns   integer array with a row for each thread, and more columns (values of a thread) than `places`
    """
    if any(e % t for e, t in zip(extents, tile, strict=True)):
        raise LayoutError(
            f"check_part: tiles of {tile[0]} x {tile[1]} do not divide the {extents[0]} x {extents[1]} elements of "
            "shared memory."
        )
    if places.min() < 0 or places.max() >= tile[0] * tile[1]:
        raise LayoutError(
            f"check_part: the threads access position {int(places.max())}, which is not in a tile of {tile[0]} x "
            f"{tile[1]}."
        )
    row, column = places % tile[0], places // tile[0]
    tiles = [
        row + m + extents[0] * (column + n)
        for n in range(0, extents[1], tile[1])
        for m in range(0, extents[0], tile[0])
    ]
    return np.concatenate(tiles, axis=1)
