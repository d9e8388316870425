"""Pictures of layouts, tensors and matrices over F2.

Cells show offsets or coordinates. Colours show banks or offsets.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from operator import xor
from typing import Any, Union

import numpy as np

from cutegemm.draw.grids import (
    MOST,
    NO_LINE,
    SLICES,
    Grid,
    Legend,
    Picture,
    as_labels,
    levels_of,
    one_of,
    shape_text,
    ticks_of,
)
from cutegemm.draw.palette import RAMP
from cutegemm.errors import UnsupportedError
from cutegemm.layout import ComposedLayout, F2Matrix, Layout, Swizzle, Tensor, idx2crd, product
from cutegemm.layout.inttuple import flatten
from cutegemm.layout.layout import at_indices
from cutegemm.layout.stride import add
from cutegemm.machine.arch import SMEM_BANK_BYTES, SMEM_BANKS

AnyLayout = Union[Layout, ComposedLayout]

_FOLD = 32  # maximum elements per row for a layout of rank 1
_MOST_ELEMENTS = 1 << 62  # indices of a partial last row, which may be larger, still fit 64 bits
_BANK_BITS = 8 * SMEM_BANK_BYTES
BANKS = Legend("bank", tuple((b, str(b)) for b in range(SMEM_BANKS)))


def banks(offsets: Any, element_bits: int) -> Any:
    """Return the shared-memory bank of the first bit of each element, for a buffer that starts at bank 0.

    offsets        integer or array of offsets, in elements
    element_bits   width of an element in bits

    >>> banks(np.array([0, 1, 31, 32]), 32).tolist(), banks(np.array([0, 1, 2]), 16).tolist()
    ([0, 1, 31, 0], [0, 0, 1])
    """
    return offsets * element_bits // _BANK_BITS % SMEM_BANKS


def layout_picture(
    layout: AnyLayout,
    *,
    cells: str = "offsets",
    color: str = "bank",
    element_bits: int = 32,
    title: str = "",
    most: int = MOST,
    slices: int = SLICES,
    fold: int = _FOLD,
    tensor: Tensor | None = None,
) -> Picture:
    """Return the picture of a layout: grids whose cells show offsets or coordinates, coloured by bank or offset.

    A layout of rank 1 is folded into rows. A layout of rank 3 or more gives one grid per slice (_, _, c).

    cells          text of a cell: "offsets", "coordinates" or "none"
    color          what a colour stands for: "bank" of shared memory, "offset" (light to dark) or "none"
    element_bits   width of an element in bits; decides the bank of each offset
    title          heading; "layout" if empty
    most           maximum rows and maximum columns of a grid; others are left out
    slices         maximum number of slices
    fold           maximum elements per row for a layout of rank 1
    tensor         tensor with this layout, whose elements are written instead of `cells`; None for no tensor
    raises         UnsupportedError if the layout has more than 2**62 elements

    >>> layout_picture(Layout((2, 3), (3, 1))).grids[0].labels.tolist()
    [['0', '1', '2'], ['3', '4', '5']]
    """
    one_of("cells", cells, ("offsets", "coordinates", "none"))
    one_of("color", color, ("bank", "offset", "none"))
    if not _is_integral(layout) and color != "none":
        color = "none"
    sizes = [product(s) for s in modes_of(layout)]
    head = title or "layout"
    if 0 in sizes:
        return Picture(head, (), str(layout), notes=("The layout is empty: it has no coordinate.",))
    if product(sizes) > _MOST_ELEMENTS:
        raise UnsupportedError(
            f"layout_picture: {layout} has {product(sizes)} elements; 64-bit indices allow up to {_MOST_ELEMENTS}. "
            "Draw a slice of it."
        )
    notes: list[str] = []
    if len(sizes) <= 1:
        grids = [_row_grid(layout, cells, color, element_bits, most, fold, tensor)]
    else:
        beyond = int(np.prod(sizes[2:], dtype=object))
        grids = [
            _plane_grid(layout, index, cells, color, element_bits, most, tensor) for index in range(min(beyond, slices))
        ]
        if beyond > slices:
            notes.append(f"{beyond - slices} of {beyond} slices are left out.")
    return Picture(head, tuple(grids), str(layout), legends=_layout_legends(grids, color, layout), notes=tuple(notes))


def tensor_picture(tensor: Tensor, *, title: str = "", most: int = MOST, slices: int = SLICES) -> Picture:
    """Return the picture of a tensor: its elements or, if it has no array, its offsets or coordinates.

    title    heading; "tensor" and the element type if empty
    most     maximum rows and maximum columns of a grid; others are left out
    slices   maximum number of slices (_, _, c) if the rank is 3 or more

    >>> tensor_picture(Tensor(10 * np.arange(6), Layout((2, 3), (3, 1)))).grids[0].labels.tolist()
    [['0', '10', '20'], ['30', '40', '50']]
    """
    array, start = tensor.array, tensor.offset
    shown = layout_picture(
        tensor.layout,
        title=title or ("tensor" if array is None else f"tensor of {array.dtype}"),
        most=most,
        slices=slices,
        element_bits=32 if array is None else 8 * array.itemsize,
        tensor=tensor,
    )
    return replace(shown, subtitle=f"{tensor.layout} from {shape_text(start)}" if start else str(tensor.layout))


def matrix_picture(matrix: F2Matrix, *, title: str = "") -> Picture:
    """Return the picture of a matrix over F2 (bits, with XOR as addition): a cell per bit, lowest bits at the top left.

    title   heading; "matrix over F2" if empty

    >>> matrix_picture(F2Matrix((1, 2, 5))).grids[0].labels.tolist()
    [['1', '0', '1'], ['0', '1', '0'], ['0', '0', '1']]
    """
    bits = np.array([[column >> row & 1 for column in matrix.columns] for row in range(matrix.height)], np.int64)
    if bits.size == 0:
        return Picture(title or "matrix over F2", (), notes=("It is empty.",))
    grid = Grid(
        "", as_labels(bits), colours=np.where(bits == 1, 0, -1),
        row_levels=(NO_LINE,) * bits.shape[0], col_levels=(NO_LINE,) * bits.shape[1],
        row_ticks=ticks_of(bits.shape[0]), col_ticks=ticks_of(bits.shape[1]),
        row_name="bit of the offset", col_name="bit of the index",
    )  # fmt: skip
    return Picture(title or "matrix over F2", (grid,), f"rank {matrix.rank}")


def _element_labels(tensor: Tensor, offsets: np.ndarray) -> np.ndarray:
    """Return the text of the tensor's element at each offset, for the cells of a picture.

    The text is empty past the end of the array, which the last tile of a ragged divide can reach. Without an array, the
    text is the offset itself.

    offsets   offsets of the elements, in elements from the tensor's start
    """
    array, places = tensor.array, offsets + tensor.offset
    if array is None:
        return as_labels(places)
    inside = (places >= 0) & (places < len(array))
    values = array[np.where(inside, places, 0)].reshape(-1).tolist()
    texts = [f"{value:.4g}" if isinstance(value, float) else str(value) for value in values]
    return np.where(inside, np.array(texts, dtype=object).reshape(places.shape), "")


def modes_of(layout: AnyLayout) -> tuple[Any, ...]:
    """Return the shapes of a layout's modes as a tuple: (4, (2, 8)) for (4,(2,8)):..., and (32,) for 32:1."""
    shape = layout.outer.shape if isinstance(layout, ComposedLayout) else layout.shape
    return shape if isinstance(shape, tuple) else (shape,)


def _is_integral(layout: AnyLayout) -> bool:
    """Return True if the layout maps to offsets, False if it maps to coordinates."""
    outer = layout.outer if isinstance(layout, ComposedLayout) else layout
    return outer.is_integral or outer.is_xor


def _evaluated(layout: AnyLayout, before: np.ndarray) -> np.ndarray:
    """Return the offsets of a composed layout, given those of its outer layout, by applying the inner function to each.

    layout   any layout; the offsets of one that is not composed are returned unchanged
    before   array of offsets of the outer layout
    """
    if not isinstance(layout, ComposedLayout):
        return before
    moved = before + layout.offset
    inner = layout.inner
    if isinstance(inner, Swizzle):
        return np.asarray(inner(moved))
    return np.array([inner.offset_of(int(i)) for i in moved.flat], np.int64).reshape(moved.shape)


def _offsets_at(layout: Layout, indices: np.ndarray) -> np.ndarray:
    """Return the offsets of a layout at the given indices (column-major), as an array of the shape of `indices`.

    Only the given indices are evaluated, because a table of all offsets of a large layout may not fit into memory.
    """
    if layout.is_integral:
        return at_indices(layout, indices)
    return np.array([layout(int(i)) for i in indices.flat], dtype=object).reshape(indices.shape)


def _visible(count: int, most: int) -> np.ndarray:
    """Return the indices of rows or columns that a grid shows: all `count`, or the first `most - 1` and the last."""
    places = np.arange(min(count, most), dtype=np.int64)  # 64 bits, also if pointers have 32 (Pyodide)
    return places if count <= most else np.append(places[:-1], np.int64(count - 1))


def _gap(visible: np.ndarray) -> int:
    """Return the position in `visible` before which indices are left out, e.g. 2 for (0, 1, 9); 0 if all are shown.

    visible   array of the row or column indices that are shown
    """
    return len(visible) - 1 if len(visible) > 1 and visible[-1] - visible[-2] > 1 else 0


def _plane_grid(
    layout: AnyLayout, index: int, cells: str, color: str, bits: int, most: int, tensor: Tensor | None
) -> Grid:
    """Return the grid (table of cells) of one two-dimensional slice of a layout: rows are mode 0, columns mode 1.

    index    column-major index of the coordinate in the remaining modes, which selects the slice
    cells    text of a cell: "offsets", "coordinates" or "none"
    color    what a colour stands for: "bank", "offset" or "none"
    bits     width of an element in bits, which decides the bank
    most     maximum rows and maximum columns; others are left out
    tensor   tensor whose elements are written instead of `cells`; None for no tensor
    """
    outer = layout.outer if isinstance(layout, ComposedLayout) else layout
    shape = modes_of(layout)
    row = _visible(product(shape[0]), most)
    col = _visible(product(shape[1]), most)
    rest: list[int] = []
    for extent in (product(s) for s in shape[2:]):
        rest.append(index % extent)
        index //= extent
    coord = ", ".join(["_", "_", *map(str, rest)])
    title = f"({coord})" if rest else ""
    if not _is_integral(layout):
        start = 0 if tensor is None else tensor.offset
        table = np.array(
            [[_coordinate_text(add(start, outer((int(r), int(c), *rest)))) for c in col] for r in row],
            dtype=object,
        )
        labels = table
        colours = None
    else:
        fixed = [outer[m].offset_of(c) for m, c in enumerate(rest, start=2)]
        rows, cols = _offsets_at(outer[0], row)[:, None], _offsets_at(outer[1], col)
        if any(abs(offset) >= 2**62 for offset in fixed):
            rows = rows.astype(object)
        before = reduce(xor, fixed, rows ^ cols) if outer.is_xor else rows + cols + sum(fixed)
        offsets = _evaluated(layout, before)
        colours = _layout_colours(offsets, color, bits, _top(layout) if color == "offset" else 0)
        if tensor is None:
            labels = _layout_labels(cells, offsets, row, col, shape)
        else:
            labels = _element_labels(tensor, offsets)
    return Grid(
        title, labels, colours=colours, ramp=color == "offset",
        row_levels=levels_of(flatten(shape[0]), row), col_levels=levels_of(flatten(shape[1]), col),
        row_ticks=tuple(map(str, row)), col_ticks=tuple(map(str, col)), row_name="mode 0", col_name="mode 1",
        row_gap=_gap(row), col_gap=_gap(col),
    )  # fmt: skip


def _coordinate_text(value: Any) -> str:
    """Return the text of a coordinate in a cell, without outer parentheses: (1, 2) becomes "1,2"."""
    return ",".join(shape_text(v) for v in value) if isinstance(value, tuple) else str(value)


def _row_grid(
    layout: AnyLayout, cells: str, color: str, bits: int, most: int, fold: int, tensor: Tensor | None
) -> Grid:
    """Return the grid (table of cells) of a layout with at most one mode, folded into rows of at most `fold` elements.

    The length of a row is the product of the longest prefix of the layout's extents that is at most `fold`.

    cells    text of a cell: "offsets", "coordinates" or "none"
    color    what a colour stands for: "bank", "offset" or "none"
    bits     width of an element in bits, which decides the bank
    most     maximum rows; others are left out
    fold     maximum elements per row
    tensor   tensor whose elements are written instead of `cells`; None for no tensor
    """
    outer = layout.outer if isinstance(layout, ComposedLayout) else layout
    extents = flatten(outer.shape)
    count = product(outer.shape)
    width, running = min(count, fold), 1
    if count > fold:
        for extent in extents:
            if running * extent > fold:
                break
            running *= extent
        width = running if running > 1 else 1 << (fold.bit_length() - 1)
    rows = -(-count // width)
    row = _visible(rows, most)
    place = row[:, None] * width + np.arange(width, dtype=np.int64)
    inside = place < count
    safe = np.where(inside, place, 0)
    if _is_integral(layout):
        offsets = _evaluated(layout, _offsets_at(outer, safe))
        colours = _layout_colours(offsets, color, bits, _top(layout) if color == "offset" else 0)
        labels = as_labels(offsets) if cells == "offsets" else as_labels(safe)
        if cells == "none":
            labels = np.full(place.shape, "", dtype=object)
        if tensor is not None:
            labels = _element_labels(tensor, offsets)
    else:
        colours = None
        start = 0 if tensor is None else tensor.offset
        labels = np.array([[_coordinate_text(add(start, outer(int(i)))) for i in line] for line in safe], dtype=object)
    labels = np.where(inside, labels, "")
    if colours is not None:
        colours = np.where(inside, colours, -1)
    return Grid(
        "", labels, colours=colours, ramp=color == "offset",
        row_levels=levels_of(extents, row * width) if rows > 1 else (NO_LINE,),
        col_levels=levels_of(extents, np.arange(width)),
        row_ticks=tuple(str(r * width) for r in row), col_ticks=ticks_of(width), col_name="mode 0",
        row_gap=_gap(row),
    )  # fmt: skip


def _top(layout: AnyLayout) -> int:
    """Return the offset that a picture of a layout draws in the darkest colour: the largest one, but at least 1."""
    return max(1, int(layout.offsets().max()))


def _layout_colours(offsets: np.ndarray, color: str, bits: int, top: int) -> np.ndarray | None:
    """Return the colour index of each offset, or None if `color` is "none".

    offsets   integer array of the layout's offsets
    color     "bank": index in the palette of distinct colours; "offset": index in a ramp from light to dark
    bits      width of an element in bits, which decides the bank
    top       largest offset of the layout, the end of the ramp
    """
    if color == "none":
        return None
    if color == "offset":
        return np.clip(offsets * RAMP // (top + 1), 0, RAMP - 1).astype(np.int64)
    return np.asarray(banks(offsets, bits)).astype(np.int64)


def _layout_labels(
    cells: str, offsets: np.ndarray, row: np.ndarray, col: np.ndarray, shape: tuple[Any, ...]
) -> np.ndarray:
    """Return the text of each cell of a drawn layout, as an array (rows, cols) of strings.

    cells      text of a cell: "offsets", "coordinates" or "none"
    offsets    array (rows, cols) of the layout's offsets
    row, col   indices along mode 0 and mode 1 that are shown
    shape      shape of the modes, to write an index as a coordinate
    """
    if cells == "none":
        return np.full(offsets.shape, "", dtype=object)
    if cells == "offsets":
        return as_labels(offsets)
    rows = [shape_text(idx2crd(int(r), shape[0])) for r in row]
    cols = [shape_text(idx2crd(int(c), shape[1])) for c in col]
    return np.array([[f"{r},{c}" for c in cols] for r in rows], dtype=object)


def _layout_legends(grids: list[Grid], color: str, layout: AnyLayout) -> tuple[Legend, ...]:
    """Return the legend of the colours of a drawn layout (banks or offsets) in a tuple; () if no grid is coloured.

    grids    the drawn tables of cells
    color    what a colour stands for: "bank", "offset" or "none"
    layout   the layout. For "offset", the colours from light to dark stand for offsets from 0 to its largest one
    """
    if color == "none" or all(g.colours is None for g in grids):
        return ()
    if color == "offset":
        top = _top(layout)
        return (
            Legend(
                "offset",
                tuple((i, "0" if i == 0 else str(top) if i == RAMP - 1 else "") for i in range(RAMP)),
                ramp=True,
            ),
        )
    return (BANKS,)
