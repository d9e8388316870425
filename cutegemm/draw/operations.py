"""Pictures of layout operations: swizzle, slice and composition, each next to its operands."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from cutegemm.draw.grids import MOST, Grid, Picture, shape_text
from cutegemm.draw.layouts import AnyLayout, layout_picture, modes_of
from cutegemm.draw.palette import COLOURS
from cutegemm.errors import UnsupportedError
from cutegemm.layout import ComposedLayout, Layout, Swizzle, composition, product


def swizzle_picture(layout: ComposedLayout | Swizzle, *, element_bits: int = 32, title: str = "") -> Picture:
    """Return the picture of a layout's offsets before and after its swizzle: two grids coloured by shared-memory bank.

    layout         a swizzled layout; or a Swizzle alone, which is drawn with a cell for each run of 2**base offsets
    element_bits   width of an element in bits; decides the bank of each offset
    title          heading; "swizzle" if empty
    raises         UnsupportedError if the inner layout of a composed layout is not a Swizzle

    >>> [grid.labels.tolist() for grid in swizzle_picture(Swizzle(1, 0, 1)).grids]
    [[['0', '1'], ['2', '3']], [['0', '1'], ['3', '2']]]
    """
    if isinstance(layout, Swizzle):
        across = abs(layout.shift)
        unit = Swizzle(layout.bits, 0, layout.shift)
        whole = ComposedLayout(unit, 0, Layout((1 << layout.bits, 1 << across), (1 << across, 1)))
        note = f"A cell is a unit of {1 << layout.base} element{'s' if layout.base else ''}."
        grids = []
        for name, shown in (("before", whole.outer), ("after", whole)):
            (grid,) = layout_picture(shown, color="none").grids
            column = shown.offsets().reshape(grid.labels.shape, order="F") % (1 << across)
            step = max(1, COLOURS >> across)
            grids.append(_retitled(grid, name, colours=column * step % COLOURS))
        return Picture(
            title or "swizzle", tuple(grids), str(layout), joints=("→",), notes=(note,),
            color_notes=("The colour of a unit is the column that it comes from.",),
        )  # fmt: skip
    if not isinstance(layout.inner, Swizzle):
        raise UnsupportedError(f"swizzle_picture: {layout} has no swizzle; its inner layout is a Layout.")
    before = layout.outer if layout.offset == 0 else ComposedLayout(Swizzle(0, 0, 0), layout.offset, layout.outer)
    first = layout_picture(before, element_bits=element_bits, slices=1)
    second = layout_picture(layout, element_bits=element_bits, slices=1)
    grids = [
        _retitled(first.grids[0], "before", subtitle=str(layout.outer)),
        _retitled(second.grids[0], "after", subtitle=str(layout)),
    ]
    return Picture(
        title or "swizzle", tuple(grids), str(layout), joints=("→",), legends=first.legends,
        notes=(*second.notes, f"Elements of {element_bits} bits."),
    )  # fmt: skip


def _retitled(grid: Grid, title: str, **changes: Any) -> Grid:
    """Return a copy of a grid (table of cells) with another title.

    changes   other fields of the copy, by name
    """
    return replace(grid, title=title, **changes)


def slice_picture(layout: AnyLayout, coord: Any, *, element_bits: int = 32, title: str = "") -> Picture:
    """Return the picture of a layout with the elements of a slice marked, next to the slice as a layout.

    layout         layout of rank 2 with at most 256 x 256 elements that maps to offsets
    coord          coordinate with None for each mode or leaf that the slice keeps, as in `layout(coord)`
    element_bits   width of an element in bits; decides the bank of each offset
    title          heading; "slice" and the coordinate if empty
    raises         UnsupportedError if the layout is not of this kind, or if `coord` has no None

    >>> whole, part = slice_picture(Layout((2, 3)), (1, None)).grids
    >>> whole.marks.tolist(), part.subtitle
    ([['', '', ''], ['*', '*', '*']], '(3):(2) from offset 1')
    """
    whole = layout_picture(layout, element_bits=element_bits, slices=1)
    sizes = [product(s) for s in modes_of(layout)]
    if len(sizes) != 2:
        raise UnsupportedError(f"slice_picture: {layout} has rank {len(sizes)}. Pass a layout of rank 2.")
    part = layout(coord)
    if not isinstance(part, (Layout, ComposedLayout)):
        raise UnsupportedError(f"slice_picture: the coordinate {shape_text(coord)} holds no None.")
    outer = layout.outer if isinstance(layout, ComposedLayout) else layout
    numbered = Layout(outer.shape)  # the column-major index of each element
    picked, first = numbered.slice(coord)
    places = picked.offsets() + first
    chosen = np.zeros(sizes[0] * sizes[1], bool)
    chosen[places] = True
    mask = chosen.reshape(sizes, order="F")
    grid = whole.grids[0]
    if grid.labels.shape != mask.shape or grid.colours is None:
        raise UnsupportedError(f"slice_picture: {layout} is larger than {MOST} x {MOST}, or holds coordinates.")
    from_offset = part
    if isinstance(part, Layout):  # `layout(coord)` does not include the offset of the fixed modes
        shift = outer.slice(coord)[1]
        from_offset = ComposedLayout(Swizzle(0, 0, 0), shift, part) if shift else part
        right_text = f"{part} from offset {shift}"
    else:
        right_text = str(part)
    right = layout_picture(from_offset, element_bits=element_bits, slices=1)
    grids = (
        _retitled(
            grid,
            f"the elements of {shape_text(coord)}",
            subtitle=f"of {layout}",
            colours=np.where(mask, grid.colours, -1),
            marks=np.where(mask, "*", ""),
        ),
        _retitled(right.grids[0], "the slice", subtitle=right_text),
    )
    return Picture(
        title or f"slice {shape_text(coord)}", grids, str(layout), joints=("→",), legends=whole.legends,
        mark_notes=("* is in the slice.",),
    )  # fmt: skip


def composition_picture(a: Layout, b: Any, *, title: str = "") -> Picture:
    """Return the picture of A, B and the composition A o B, where an element has the same colour in all three grids.

    a        a layout
    b        a layout whose offsets are indices of A, a layout of coordinates of A, or a tiler. In the last two cases,
             B is drawn as the layout of the same indices
    title    heading; "composition" if empty
    raises   UnsupportedError if the composition has more than 256 x 256 elements

    >>> composition_picture(Layout((2, 3), (3, 1)), Layout(2, 2)).subtitle
    '(2,3):(3,1) o 2:2 = 2:1'
    """
    result = composition(a, b)
    picks = b if isinstance(b, Layout) and not b.is_coordinates else composition(Layout(a.shape), b)
    if result.size() > MOST * MOST:
        raise UnsupportedError(f"composition_picture: {result} has more than {MOST} x {MOST} elements.")
    text = f"{a} o {shape_text(b)} = {result}"
    if 0 in (a.size(), picks.size()):
        return Picture(title or "composition", (), text, notes=("A o B is empty: it has no coordinate.",))
    number = np.arange(picks.size())
    colour_of_place = np.full(a.size(), -1, np.int64)
    places = picks.offsets()
    inside = places < a.size()
    step = max(1, COLOURS // max(1, picks.size()))
    colour_of_place[places[inside]] = (number * step % COLOURS)[inside]
    grids = []
    for name, layout, colours in (
        ("A", a, colour_of_place),
        ("B", picks, number * step % COLOURS),
        ("A o B", result, number * step % COLOURS),
    ):
        grid = layout_picture(layout, color="none", slices=1).grids[0]
        placed = _placed(layout, colours, grid)
        marks = np.where(placed >= 0, "*", "") if name == "A" and (placed < 0).any() else None
        grids.append(_retitled(grid, name, subtitle=str(layout), colours=placed, marks=marks))
    return Picture(
        title or "composition", tuple(grids), text, joints=("o", "="),
        notes=("B says which place of A an element is, A o B at which offset it lies.",),
        color_notes=("An element has one colour in all three.",),
        mark_notes=("* is a place that B takes.",) if any(g.marks is not None for g in grids) else (),
    )  # fmt: skip


def _placed(layout: Layout, colours: np.ndarray, grid: Grid) -> np.ndarray:
    """Return the colours of a layout's elements, given in column-major order, as an array in the shape of a grid.

    layout    layout that the grid draws
    colours   palette index of each element of the layout, in column-major order; -1 for no colour
    grid      table of cells, which may leave out rows and columns of the layout
    """
    sizes = [product(s) for s in modes_of(layout)]
    if len(sizes) == 2:
        table = colours.reshape(sizes, order="F")
        return table if table.shape == grid.labels.shape else table[: grid.rows, : grid.cols]
    out = np.full(grid.rows * grid.cols, -1, np.int64)
    out[: min(len(colours), len(out))] = colours[: len(out)]
    return out.reshape(grid.rows, grid.cols)
