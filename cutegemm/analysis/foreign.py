"""Parts of kernels that are not ours: a thread-value layout over a tile in shared memory, from wherever it comes.

| from                                     | given as                                                                |
|------------------------------------------|-------------------------------------------------------------------------|
| CuTe, C++ or Python                      | the text of a thread-value layout, or of a tiled copy as the DSL prints |
| `cutlass.cute`, in a function it traces  | a `TiledCopy`, with `side`; a `TiledMma`, with `operand`                |
| Triton                                   | a linear layout: bases of register, lane and warp                       |
| this package                             | a `Layout`, a `TiledCopy`                                               |

Threads count first in all of them: (thread, value) -> place in a tile whose places count along the first mode first.
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
    """Which places of a tile each thread touches.

    places   (threads, values)
    tile     extents of the tile in which they count; None where it is that of shared memory
    bits     of an element, where the part says so
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
    """What one pass of threads over a tile in shared memory costs.

    part          who touches what: see the table above
    shared        the layout of shared memory: this package's, the DSL's, or a text; of several stages the first counts
    dtype         of an element; that of a tiled copy where left out
    tile          extents that the part counts its places in; that of shared memory where left out. Where it is smaller,
                  the threads go over all of shared memory
    op            load, store, ldmatrix or stmatrix
    access_bits   bits that a lane accesses with one instruction, None for the widest: see `tile_cost`
    side          of a tiled copy: src or dst; operand: of a tiled MMA: A, B or C
    swizzle_of    "bytes", as the DSL means it for what lies in shared memory, or "elements"; where left out bytes for a
                  layout of the DSL, else elements
    raises        LayoutError where the parts do not fit together

    Threads that read a column of a row-major tile, without a swizzle and with one:

    >>> column = "(32,32):(1,32)"
    >>> check_part(column, "(32,32):(32,1)", "f32", access_bits=32).ways
    32.0
    >>> check_part(column, "S<5,0,5> o 0 o (32,32):(32,1)", "f32", access_bits=32).ways
    1.0
    """
    found = _part(part, side, operand)
    layout = _layout(shared)
    bits = DType.parse(dtype).bits if dtype is not None else found.bits
    if bits is None:
        raise LayoutError("check_part: the type of an element is not known; give dtype, such as 'bf16'.")
    if op not in OPS:
        raise LayoutError(f"check_part: op = {op!r}; one of {', '.join(OPS)} is expected.")
    if isinstance(layout, ComposedLayout) and (swizzle_of or _unit_of(shared)) == "bytes":
        layout = _in_elements(layout, bits)
    table, extents = _first_stage(layout)
    places = _over_all(found.places, tile or found.tile or extents, extents)
    if len(places) % WARP_THREADS:
        raise LayoutError(f"check_part: {len(places)} threads are no whole warps.")
    grouped = places.reshape(-1, WARP_THREADS, places.shape[1])
    return tile_cost(table, grouped, bits, op=op, access_bits=access_bits, rules=rules)


def _part(part: Any, side: str, operand: str) -> Part:
    """Who touches what, from any of the kinds."""
    if isinstance(part, str) and "TV Layout tiled" in part:
        return _printed_copy(part)
    if hasattr(part, f"tv_layout_{operand}_tiled"):  # of the DSL, or this package's
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
    """A tiled copy as the DSL prints it."""
    layout, tiler, kind = _TV.search(text), _TILER.search(text), _TYPE.search(text)
    if layout is None or tiler is None:
        raise LayoutError("check_part: the text has 'TV Layout tiled', but no 'Tiler MN: (m:1,n:1)'.")
    bits = DType.parse(kind[1]).bits if kind else None
    found = parse(layout[1])
    return Part(_table(found), (int(tiler[1]), int(tiler[2])), bits)


def _linear(part: Any) -> Part:
    """Triton's: registers are values, lanes and warps the threads; what is there for each CTA is left out."""
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
            f"check_part: the linear layout has the inputs {', '.join(bases)}; {' and '.join(missing)} are missing."
        )
    if len(sizes) != 2:
        raise LayoutError(f"check_part: the linear layout has {len(sizes)} outputs; rows and columns are expected.")

    def columns(name: str) -> list[int]:
        return [row + sizes[0] * column for row, column in bases.get(name, ())]

    threads, values = [*columns("lane"), *columns("warp")], columns("register")
    layout = from_f2(F2Matrix(tuple([*threads, *values])), (1 << len(threads), 1 << len(values)))
    return Part(layout.offsets().reshape(1 << len(threads), -1, order="F"), (sizes[0], sizes[1]))


def _layout(layout: Any) -> Layout | ComposedLayout:
    """This package's layout of one of the DSL's, of a text, or of itself."""
    if isinstance(layout, (Layout, ComposedLayout)):
        return layout
    try:
        return parse(str(layout))
    except LayoutError as error:
        raise LayoutError(
            f"check_part: {str(layout)[:80]!r} does not read as a static layout. In a traced function all extents and "
            "strides must be known."
        ) from error


def _unit_of(shared: Any) -> str:
    return "elements" if isinstance(shared, (str, Layout, ComposedLayout)) else "bytes"


def _in_elements(layout: ComposedLayout, bits: int) -> ComposedLayout:
    """A swizzle of bytes as one of elements."""
    inner = layout.inner
    if not isinstance(inner, Swizzle):
        return layout
    return ComposedLayout(inner.recast(8, bits), layout.offset, layout.outer)


def _extent(mode: Any) -> int:
    """Of a mode of a tiler: an integer, or a layout."""
    if isinstance(mode, int):
        return mode
    return product(_layout(mode).shape)


def _modes(layout: Layout | ComposedLayout) -> tuple[Any, ...]:
    return layout.shape if isinstance(layout.shape, tuple) else (layout.shape,)


def _table(layout: Layout | ComposedLayout) -> np.ndarray:
    """(threads, values) -> place."""
    modes = _modes(layout)
    if len(modes) != 2:
        raise LayoutError(f"check_part: {layout} has modes: {len(modes)}; two, (thread, value), are expected.")
    return layout.offsets().reshape(product(modes[0]), -1, order="F")


def _first_stage(layout: Layout | ComposedLayout) -> tuple[np.ndarray, tuple[int, int]]:
    """Offsets of the first two modes, and their extents."""
    extents = [product(mode) for mode in _modes(layout)]
    if len(extents) < 2:
        raise LayoutError(
            f"check_part: shared memory {layout} has modes: {len(extents)}; rows and columns are expected."
        )
    first = extents[0] * extents[1]
    return layout.offsets()[:first], (extents[0], extents[1])


def _over_all(places: np.ndarray, tile: tuple[int, int], extents: tuple[int, int]) -> np.ndarray:
    """Places in shared memory of threads that go over all of it, tile by tile."""
    if any(e % t for e, t in zip(extents, tile, strict=True)):
        raise LayoutError(
            f"check_part: tiles of {tile[0]} x {tile[1]} do not divide the {extents[0]} x {extents[1]} of shared "
            "memory."
        )
    if places.min() < 0 or places.max() >= tile[0] * tile[1]:
        raise LayoutError(
            f"check_part: the threads reach place {int(places.max())} of a tile of {tile[0]} x {tile[1]}."
        )
    row, column = places % tile[0], places // tile[0]
    parts = [
        row + m + extents[0] * (column + n)
        for n in range(0, extents[1], tile[1])
        for m in range(0, extents[0], tile[0])
    ]
    return np.concatenate(parts, axis=1)
