"""From the objects of the algebra, of tiles and of plans to pictures of them."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from operator import xor
from typing import TYPE_CHECKING, Any, Union

import numpy as np

from cutegemm.arch import SMEM_BANK_BYTES, SMEM_BANKS, WARP_THREADS
from cutegemm.draw.grids import (
    HEAVY,
    MEDIUM,
    NO_LINE,
    Grid,
    Legend,
    Picture,
    as_labels,
    compressed,
    levels_of,
    shape_text,
    ticks_of,
)
from cutegemm.draw.palette import COLOURS, HUES, RAMP, SHADES
from cutegemm.errors import LayoutError, UnsupportedError
from cutegemm.layout import ComposedLayout, Layout, Swizzle, composition, idx2crd, product
from cutegemm.layout.inttuple import flatten
from cutegemm.tile.atoms import CopyAtom, MmaAtom
from cutegemm.tile.raster import Raster
from cutegemm.tile.tiled_copy import TiledCopy
from cutegemm.tile.tiled_mma import TiledMma

if TYPE_CHECKING:
    from cutegemm.plan.plan import GemmPlan
    from cutegemm.plan.problem import Problem

AnyLayout = Union[Layout, ComposedLayout]

MOST = 256  # rows and columns of a grid; what lies between is left out, and the picture says so
SLICES = 6
_FOLD = 32  # elements of a row of a layout of rank 1
_BANK_BITS = 8 * SMEM_BANK_BYTES

_LETTERS = np.array(list("abcdefghijklmnopqrstuvwxyz"))

_BANKS = Legend("bank", tuple((b, str(b)) for b in range(SMEM_BANKS)))
_LANES = Legend("lane", tuple((t, str(t)) for t in range(WARP_THREADS)))


def banks(offsets: Any, element_bits: int) -> Any:
    """The bank of shared memory in which an element begins; the buffer begins at bank 0.

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
) -> Picture:
    """A layout as a grid; of rank 1 in rows, of rank above 2 as slices (_, _, c).

    cells          offsets, coordinates or none: what is written in a cell
    color          bank, offset or none: what the colours say
    element_bits   width of an element, for the banks
    most, slices   rows and columns, and slices, that are shown
    fold           elements of a row at most, for a layout of rank 1
    """
    _one_of("cells", cells, ("offsets", "coordinates", "none"))
    _one_of("color", color, ("bank", "offset", "none"))
    if not _is_integral(layout) and color != "none":
        color = "none"
    sizes = [product(s) for s in _modes(layout)]
    head = title or "layout"
    if 0 in sizes:
        return Picture(head, (), str(layout), notes=("The layout is empty: it has no coordinate.",))
    notes: list[str] = []
    if len(sizes) <= 1:
        grids = [_row_grid(layout, cells, color, element_bits, most, fold)]
    else:
        beyond = int(np.prod(sizes[2:], dtype=object))
        grids = [
            _plane_grid(layout, index, cells, color, element_bits, most)
            for index in range(min(beyond, slices))
        ]
        if beyond > slices:
            notes.append(f"{beyond - slices} of {beyond} slices are left out.")
    return Picture(
        head, tuple(grids), str(layout), legends=_layout_legends(grids, color, layout), notes=tuple(notes)
    )


def _modes(layout: AnyLayout) -> tuple[Any, ...]:
    shape = layout.outer.shape if isinstance(layout, ComposedLayout) else layout.shape
    return shape if isinstance(shape, tuple) else (shape,)


def _is_integral(layout: AnyLayout) -> bool:
    """Whether it gives offsets, and no coordinates."""
    outer = layout.outer if isinstance(layout, ComposedLayout) else layout
    return outer.is_integral or outer.is_xor


def _evaluated(layout: AnyLayout, before: np.ndarray) -> np.ndarray:
    """Offsets from those of the outer layout."""
    if not isinstance(layout, ComposedLayout):
        return before
    moved = before + layout.offset
    inner = layout.inner
    if isinstance(inner, Swizzle):
        return np.asarray(inner(moved))
    return np.array([inner.offset_of(int(i)) for i in moved.flat], np.int64).reshape(moved.shape)


def _visible(count: int, most: int) -> np.ndarray:
    """Indices that are shown: all, or the first ones and the last."""
    return np.arange(count) if count <= most else np.append(np.arange(most - 1), count - 1)


def _gap(visible: np.ndarray) -> int:
    return len(visible) - 1 if len(visible) > 1 and visible[-1] - visible[-2] > 1 else 0


def _plane_grid(layout: AnyLayout, index: int, cells: str, color: str, bits: int, most: int) -> Grid:
    """Modes 0 and 1 at one coordinate of the others, the `index`-th."""
    outer = layout.outer if isinstance(layout, ComposedLayout) else layout
    shape = _modes(layout)
    row = _visible(product(shape[0]), most)
    col = _visible(product(shape[1]), most)
    rest: list[int] = []
    for extent in (product(s) for s in shape[2:]):
        rest.append(index % extent)
        index //= extent
    coord = ", ".join(["_", "_", *map(str, rest)])
    title = f"({coord})" if rest else ""
    if not _is_integral(layout):
        table = np.array(
            [[_coordinate_text(outer((int(r), int(c), *rest))) for c in col] for r in row], dtype=object
        )
        labels = table
        colours = None
    else:
        fixed = [outer[m].offset_of(c) for m, c in enumerate(rest, start=2)]
        rows, cols = outer[0].offsets()[row][:, None], outer[1].offsets()[col]
        before = reduce(xor, fixed, rows ^ cols) if outer.is_xor else rows + cols + sum(fixed)
        offsets = _evaluated(layout, before)
        colours = _layout_colours(offsets, color, bits, _top(layout) if color == "offset" else 0)
        labels = _layout_labels(cells, offsets, row, col, shape)
    row_levels, col_levels = levels_of(flatten(shape[0])), levels_of(flatten(shape[1]))
    return Grid(
        title, labels, colours=colours, ramp=color == "offset",
        row_levels=tuple(row_levels[r] for r in row), col_levels=tuple(col_levels[c] for c in col),
        row_ticks=tuple(map(str, row)), col_ticks=tuple(map(str, col)), row_name="mode 0", col_name="mode 1",
        row_gap=_gap(row), col_gap=_gap(col),
    )  # fmt: skip


def _coordinate_text(value: Any) -> str:
    return ",".join(shape_text(v) for v in value) if isinstance(value, tuple) else str(value)


def _row_grid(layout: AnyLayout, cells: str, color: str, bits: int, most: int, fold: int) -> Grid:
    """A layout of rank 0 or 1 in rows, as long as the largest prefix of its extents that fits."""
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
    place = row[:, None] * width + np.arange(width)
    inside = place < count
    safe = np.where(inside, place, 0)
    if _is_integral(layout):
        offsets = _evaluated(layout, outer.offsets()[safe])
        colours = _layout_colours(offsets, color, bits, _top(layout) if color == "offset" else 0)
        labels = as_labels(offsets) if cells == "offsets" else as_labels(safe)
        if cells == "none":
            labels = np.full(place.shape, "", dtype=object)
    else:
        colours = None
        labels = np.array([[_coordinate_text(outer(int(i))) for i in line] for line in safe], dtype=object)
    labels = np.where(inside, labels, "")
    if colours is not None:
        colours = np.where(inside, colours, -1)
    levels = levels_of(extents)
    return Grid(
        "", labels, colours=colours, ramp=color == "offset",
        row_levels=tuple(levels[r * width] if rows > 1 else NO_LINE for r in row),
        col_levels=tuple(levels[:width]),
        row_ticks=tuple(str(r * width) for r in row), col_ticks=ticks_of(width), col_name="mode 0",
        row_gap=_gap(row),
    )  # fmt: skip


def _top(layout: AnyLayout) -> int:
    return max(1, int(layout.offsets().max()))


def _layout_colours(offsets: np.ndarray, color: str, bits: int, top: int) -> np.ndarray | None:
    if color == "none":
        return None
    if color == "offset":
        return np.clip(offsets * RAMP // (top + 1), 0, RAMP - 1).astype(np.int64)
    return np.asarray(banks(offsets, bits)).astype(np.int64)


def _layout_labels(
    cells: str, offsets: np.ndarray, row: np.ndarray, col: np.ndarray, shape: tuple[Any, ...]
) -> np.ndarray:
    if cells == "none":
        return np.full(offsets.shape, "", dtype=object)
    if cells == "offsets":
        return as_labels(offsets)
    rows = [shape_text(idx2crd(int(r), shape[0])) for r in row]
    cols = [shape_text(idx2crd(int(c), shape[1])) for c in col]
    return np.array([[f"{r},{c}" for c in cols] for r in rows], dtype=object)


def _layout_legends(grids: list[Grid], color: str, layout: AnyLayout) -> tuple[Legend, ...]:
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
    return (_BANKS,)


def swizzle_picture(layout: ComposedLayout | Swizzle, *, element_bits: int = 32, title: str = "") -> Picture:
    """A swizzled layout before and after; of a swizzle alone, the units of 2**base elements that it moves."""
    if isinstance(layout, Swizzle):
        across = abs(layout.shift)
        unit = Swizzle(layout.bits, 0, layout.shift)
        whole = ComposedLayout(unit, 0, Layout((1 << layout.bits, 1 << across), (1 << across, 1)))
        note = f"A cell is a unit of {1 << layout.base} elements."
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
        raise UnsupportedError(f"swizzle_picture: {layout} has no swizzle; its inner part is a layout.")
    before = (
        layout.outer if layout.offset == 0 else ComposedLayout(Swizzle(0, 0, 0), layout.offset, layout.outer)
    )
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
    return replace(grid, title=title, **changes)


def slice_picture(layout: AnyLayout, coord: Any, *, element_bits: int = 32, title: str = "") -> Picture:
    """What a coordinate with None picks out of a layout, beside the layout that it gives."""
    whole = layout_picture(layout, element_bits=element_bits, slices=1)
    sizes = [product(s) for s in _modes(layout)]
    if len(sizes) != 2:
        raise UnsupportedError(f"slice_picture: {layout} has rank {len(sizes)}; a rank of 2 can be drawn.")
    part = layout(coord)
    if not isinstance(part, (Layout, ComposedLayout)):
        raise UnsupportedError(f"slice_picture: the coordinate {shape_text(coord)} holds no None.")
    outer = layout.outer if isinstance(layout, ComposedLayout) else layout
    numbered = Layout(outer.shape)  # each element by its place
    picked, first = numbered.slice(coord)
    places = picked.offsets() + first
    chosen = np.zeros(sizes[0] * sizes[1], bool)
    chosen[places] = True
    mask = chosen.reshape(sizes, order="F")
    grid = whole.grids[0]
    if grid.labels.shape != mask.shape or grid.colours is None:
        raise UnsupportedError(
            f"slice_picture: {layout} is larger than {MOST} x {MOST}, or holds coordinates."
        )
    from_offset = part
    if isinstance(part, Layout):  # `layout(coord)` leaves out what the fixed modes contribute
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
    """A, B and the composition A o B; an element has one colour in all three.

    b   a layout, or a tiler: then B is drawn as the layout that picks the same places of A
    """
    result = composition(a, b)
    picks = b if isinstance(b, Layout) else composition(Layout(a.shape), b)
    if result.size() > MOST * MOST:
        raise UnsupportedError(f"composition_picture: {result} has more than {MOST} x {MOST} elements.")
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
        title or "composition", tuple(grids), f"{a} o {shape_text(b)} = {result}", joints=("o", "="),
        notes=("B says which place of A an element is, A o B at which offset it lies.",),
        color_notes=("An element has one colour in all three.",),
        mark_notes=("* is a place that B takes.",) if any(g.marks is not None for g in grids) else (),
    )  # fmt: skip


def _placed(layout: Layout, colours: np.ndarray, grid: Grid) -> np.ndarray:
    """Colours in colexicographic order as they lie in the grid of the layout."""
    sizes = [product(s) for s in _modes(layout)]
    if len(sizes) == 2:
        table = colours.reshape(sizes, order="F")
        return table if table.shape == grid.labels.shape else table[: grid.rows, : grid.cols]
    out = np.full(grid.rows * grid.cols, -1, np.int64)
    out[: min(len(colours), len(out))] = colours[: len(out)]
    return out.reshape(grid.rows, grid.cols)


def holders(table: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Who holds each element of a tile: the least thread, its value, and how many threads do.

    table     (threads, values): the element that each holds
    returns   three arrays of `size`; -1, -1 and 0 where nobody does

    >>> [x.tolist() for x in holders(np.array([[0, 1], [0, 3]]), 4)]
    [[0, 0, -1, 1], [0, 1, -1, 1], [2, 1, 0, 1]]
    """
    threads, values = table.shape
    flat = table.reshape(-1)
    wrong = flat[(flat < 0) | (flat >= size)]
    if len(wrong):
        raise LayoutError(f"holders: element {wrong[0]} lies outside a tile of {size} elements.")
    element, first = np.unique(flat, return_index=True)  # in the order of threads, then of values
    thread, value = np.full(size, -1, np.int64), np.full(size, -1, np.int64)
    thread[element], value[element] = first // values, first % values
    pairs = np.unique(flat * np.int64(threads) + np.repeat(np.arange(threads), values))
    return thread, value, np.bincount(pairs // threads, minlength=size)


def tv_picture(
    layout_tv: Layout,
    tile: tuple[int, int],
    *,
    color: str = "lane",
    title: str = "",
    names: tuple[str, str] = ("m", "n"),
) -> Picture:
    """Who holds what: each element of the tile with its thread and value.

    layout_tv   (thread, value) -> colexicographic index in the tile
    color       lane, warp or none
    """
    if len(_modes(layout_tv)) != 2:
        raise LayoutError(f"tv_picture: {layout_tv} has not the two modes (thread, value).")
    table = _tv_table(layout_tv)
    grid = _owner_grid(
        table, tile, title or "who holds what", str(layout_tv), names, _color(color, len(table))
    )
    return Picture(
        title or "thread-value layout", (grid,), str(layout_tv),
        legends=_owner_legends(_color(color, len(table)), len(table)), notes=_shared_note([grid]),
    )  # fmt: skip


def _tv_table(layout_tv: Layout) -> np.ndarray:
    """(threads, values): the element that each holds."""
    return layout_tv.offsets().reshape(layout_tv[0].size(), -1, order="F")


def _color(color: str, threads: int) -> str:
    _one_of("color", color, ("auto", "lane", "warp", "none"))
    if color == "auto":
        return "lane" if threads <= WARP_THREADS else "warp"
    return color


def _owner_colours(thread: np.ndarray, color: str) -> np.ndarray | None:
    if color == "none":
        return None
    if color == "lane":
        out = thread % WARP_THREADS
    else:
        out = thread // WARP_THREADS % HUES * SHADES + thread % SHADES
    return np.where(thread < 0, -1, out)


def _owner_legends(color: str, threads: int) -> tuple[Legend, ...]:
    if color == "lane":
        return (Legend("lane", _LANES.entries[:threads]),)
    if color == "warp":
        warps = -(-threads // WARP_THREADS)
        return (Legend("warp", tuple((w % HUES * SHADES + 1, str(w)) for w in range(min(warps, 2 * HUES)))),)
    return ()


def _shared_note(grids: list[Grid]) -> tuple[str, ...]:
    if any("+" in str(label) for grid in grids for label in grid.labels.flat):
        return ("T4+ is held by several threads, of whom the least is named.",)
    return ()


def _owner_grid(
    table: np.ndarray,
    tile: tuple[int, int],
    title: str,
    subtitle: str,
    names: tuple[str, str],
    color: str,
    *,
    turned: bool = False,
) -> Grid:
    """The elements of a tile with the threads that hold them; `turned` puts the second mode downwards."""
    thread, value, count = (x.reshape(tile, order="F") for x in holders(table, tile[0] * tile[1]))
    if turned:
        thread, value, count = thread.T, value.T, count.T
        names = (names[1], names[0])
    rows, cols = len(thread), len(thread.T)
    warp = np.where(thread < 0, -1, thread // WARP_THREADS)
    labels = np.array(
        [
            [f"T{t}{'+' if n > 1 else ''}\nV{v}" if t >= 0 else "" for t, v, n in zip(*line, strict=True)]
            for line in zip(thread.tolist(), value.tolist(), count.tolist(), strict=True)
        ],
        dtype=object,
    )
    many = len(table) > WARP_THREADS
    return Grid(
        title, labels, subtitle, colours=_owner_colours(thread, color),
        row_levels=_repeats(thread, warp), col_levels=_repeats(thread.T, warp.T),
        row_ticks=ticks_of(rows), col_ticks=ticks_of(cols),
        row_name=names[0], col_name=names[1],
        owners=(warp, thread) if many else (thread,), owner_names=("warp ", "T") if many else ("T",),
    )  # fmt: skip


def _repeats(thread: np.ndarray, warp: np.ndarray) -> tuple[int, ...]:
    """HEAVY where every element goes to another warp, MEDIUM where the threads begin anew."""
    out, base = [NO_LINE], thread[0, 0]
    for r in range(1, len(thread)):
        if (warp[r] != warp[r - 1]).all():
            out.append(HEAVY)
            base = thread[r, 0]
        else:
            out.append(MEDIUM if thread[r, 0] == base and thread[r - 1, 0] != base else NO_LINE)
    return tuple(out)


def atom_picture(atom: MmaAtom, *, color: str = "auto", title: str = "") -> Picture:
    """An MMA atom: A, B and C around each other, each element with the thread and value that hold it."""
    m, n, k = atom.shape_mnk
    color = _color(color, atom.threads)
    grids = []
    for operand, tile, names in (("a", (m, k), "mk"), ("b", (n, k), "nk"), ("c", (m, n), "mn")):
        source = {"a": atom.a_source, "b": atom.b_source}.get(operand, "register")
        layout = atom.layout_tv(operand)
        grids.append(
            _operand_grid(operand, _tv_table(layout), tile, names, str(layout), source, color, atom.threads)
        )
    return Picture(
        title or atom.name, tuple(grids),
        f"{m} x {n} x {k} by {_threads(atom.threads)}, from {atom.min_arch} on",
        arrangement="gemm", legends=_owner_legends(color, atom.threads),
        notes=(*_shared_note(grids), f"Source: {atom.source}."),
    )  # fmt: skip


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"


def _operand_grid(
    operand: str,
    table: np.ndarray,
    tile: tuple[int, int],
    names: str,
    subtitle: str,
    source: str,
    color: str,
    threads: int,
) -> Grid:
    title = "C, D" if operand == "c" else operand.upper()
    turned = operand == "b"
    if source == "register":
        return _owner_grid(table, tile, title, subtitle, (names[0], names[1]), color, turned=turned)
    rows, cols = tile[::-1] if turned else tile
    return Grid(
        title, np.full((rows, cols), "", dtype=object), f"in shared memory, read by all {threads} threads",
        row_levels=(NO_LINE,) * rows, col_levels=(NO_LINE,) * cols,
        row_ticks=ticks_of(rows), col_ticks=ticks_of(cols),
        row_name=names[1] if turned else names[0], col_name=names[0] if turned else names[1],
    )  # fmt: skip


def tiled_mma_picture(
    mma: TiledMma, *, tile: tuple[int, int, int] | None = None, color: str = "auto", title: str = ""
) -> Picture:
    """A tiled MMA: A, B and C around each other.

    tile    (M, N, K) that is partitioned; what the threads cover once where it is left out
    color   lane, warp, none, or auto: warps where there are several
    """
    m, n, k = tile or mma.tile_mnk
    color = _color(color, mma.threads)
    grids = []
    for operand, extents, names in (("a", (m, k), "mk"), ("b", (n, k), "nk"), ("c", (m, n), "mn")):
        source = {"a": mma.atom.a_source, "b": mma.atom.b_source}.get(operand, "register")
        table = mma_table(mma, operand, extents)
        layout = getattr(mma, f"layout_{operand}_tv_tiled")
        grids.append(_operand_grid(operand, table, extents, names, str(layout), source, color, mma.threads))
    return Picture(
        title or f"tiled MMA of {mma.atom.name}", tuple(grids),
        f"{m} x {n} x {k} by {mma.threads} threads: {mma.atom_layout_mnk}", arrangement="gemm",
        legends=_owner_legends(color, mma.threads), notes=_shared_note(grids),
    )  # fmt: skip


def mma_table(mma: TiledMma, operand: str, extents: tuple[int, int]) -> np.ndarray:
    """(threads, values): the element of a tile of an operand that each thread holds.

    Values are numbered as in a fragment (value, rest_m, rest_n) that is compact.
    """
    split = getattr(mma, f"offsets_{operand}")(Layout(extents))
    return np.asarray(split.reshape(split.shape[0], -1, order="F"))


def copy_picture(copy: TiledCopy | CopyAtom, *, color: str = "auto", title: str = "") -> Picture:
    """A tiled copy or a copy atom: whom the elements are read by, and whom they are written or held by."""
    if isinstance(copy, CopyAtom):
        sides = [copy.layout_src_tv, copy.layout_dst_tv]
        count = max(side.cosize() for side in sides)
        across = min(count, max(1, 128 // copy.dtype.bits))
        tile, names, turned = (across, -(-count // across)), ("element", "vector"), True
        subtitle = f"{copy.bits} bits a thread, from {copy.min_arch} on"
        notes: tuple[str, ...] = (f"Source: {copy.source}.",)
        head = copy.name
    else:
        sides = [copy.layout_src_tv_tiled, copy.layout_dst_tv_tiled]
        extents = [t.size() if isinstance(t, Layout) else product(t) for t in copy.tiler_mn]
        tile = (extents[0], product(tuple(extents[1:]))) if len(extents) > 1 else (1, extents[0])
        names, turned, notes = ("0", "1"), False, ()
        subtitle, head = str(copy.layout_tv), f"tiled copy of {copy.atom.name}"
    color = _color(color, sides[0][0].size())
    if np.array_equal(sides[0].offsets(), sides[1].offsets()):
        sides = sides[:1]
    grids = [
        _owner_grid(_tv_table(side), tile, name, str(side), names, color, turned=turned)
        for side, name in zip(
            sides, ("source", "destination") if len(sides) > 1 else ("source, destination",), strict=False
        )
    ]
    return Picture(
        title or head, tuple(grids), subtitle, joints=("→",) if len(grids) > 1 else (),
        legends=_owner_legends(color, sides[0][0].size()), notes=(*_shared_note(grids), *notes),
    )  # fmt: skip


def raster_picture(
    raster: Raster | str,
    grid: tuple[int, int],
    *,
    batch: int = 1,
    ctas_per_wave: int | None = None,
    title: str = "",
) -> Picture:
    """The order in which CTAs take the tiles of D, and the waves in which they run.

    grid            tiles along M and N
    ctas_per_wave   that run at a time: multiprocessors times CTAs a multiprocessor
    """
    order = Raster.parse(raster) if isinstance(raster, str) else raster
    grid_m, grid_n = grid
    total = grid_m * grid_n * batch
    head, notes = title or f"raster {order}", []
    if total == 0:
        return Picture(head, (), f"{grid_m} x {grid_n} x {batch} tiles", notes=("There are no tiles.",))
    if max(grid_m, grid_n) > MOST:
        raise UnsupportedError(
            f"raster_picture: {grid_m} x {grid_n} tiles; up to {MOST} x {MOST} can be drawn."
        )
    wave_size = ctas_per_wave or total
    if wave_size < 1:
        raise LayoutError(f"raster_picture: ctas_per_wave = {ctas_per_wave}; 1 or more are expected.")
    tiles = order.order(grid_m, grid_n, batch)
    position = np.empty((batch, grid_m, grid_n), np.int64)
    position[tiles[:, 2], tiles[:, 0], tiles[:, 1]] = np.arange(total)
    wave = position // wave_size
    colours = wave % HUES * SHADES + (position % wave_size) * SHADES // min(wave_size, total)
    grids = []
    for l in range(min(batch, SLICES)):  # noqa: E741 - the batch, as in CuTe
        trail = tiles[tiles[:, 2] == l][:, :2] if grid_m * grid_n <= 1024 else None
        grids.append(
            Grid(
                f"l = {l}" if batch > 1 else "",
                as_labels(position[l]),
                colours=colours[l],
                row_levels=(NO_LINE,) * grid_m,
                col_levels=(NO_LINE,) * grid_n,
                row_ticks=ticks_of(grid_m),
                col_ticks=ticks_of(grid_n),
                row_name="m",
                col_name="n",
                owners=(wave[l],),
                owner_names=("wave ",),
                trail=trail,
                marks=_LETTERS[wave[l] % len(_LETTERS)] if ctas_per_wave is not None else None,
            )
        )
    if batch > SLICES:
        notes.append(f"{batch - SLICES} of {batch} batches are left out.")
    waves = -(-total // wave_size)
    legends: tuple[Legend, ...] = ()
    if ctas_per_wave is not None:
        last = total - (waves - 1) * wave_size
        legends = (
            Legend("wave", tuple((w % HUES * SHADES + 1, str(w)) for w in range(min(waves, 2 * HUES)))),
        )
        notes.append(f"{waves} {'wave' if waves == 1 else 'waves'} of {wave_size} CTAs, {last} in the last.")
    return Picture(
        head, tuple(grids), f"{grid_m} x {grid_n}{f' x {batch}' if batch > 1 else ''} tiles of D",
        legends=legends, notes=tuple(notes),
        color_notes=("The darker shade of a colour runs first.",),
        mark_notes=("The letter is the wave.",) if ctas_per_wave is not None else (),
    )  # fmt: skip


def plan_picture(
    plan: GemmPlan, problem: Problem | None = None, *, color: str = "auto", title: str = ""
) -> Picture:
    """The CTA tile of a plan: D by the threads that hold it, A and B by the banks that they lie in."""
    bm, bn, bk = plan.cta_tile
    mma, ops = plan.tiled_mma, plan.operands
    color = _color(color, mma.threads)
    shared = []
    for name, layout, extent, bits in (
        ("A", plan.smem_a, bm, ops.a.dtype.bits),
        ("B", plan.smem_b, bn, ops.b.dtype.bits),
    ):
        offsets = layout.offsets().reshape(extent, bk, -1, order="F")[:, :, 0]
        modes = (flatten(_modes(layout)[0]), flatten(_modes(layout)[1]))
        table, rows, cols, at = (
            (offsets, *modes, "mk") if name == "A" else (offsets.T, modes[1], modes[0], "kn")
        )
        shared.append(
            Grid(
                f"{name} in shared memory",
                as_labels(table),
                str(layout),
                colours=np.asarray(banks(table, bits)),
                row_levels=levels_of(rows),
                col_levels=levels_of(cols),
                row_ticks=ticks_of(table.shape[0]),
                col_ticks=ticks_of(table.shape[1]),
                row_name=at[0],
                col_name=at[1],
            )
        )
    held = _owner_grid(
        mma_table(mma, "c", (bm, bn)),
        (bm, bn),
        "D in registers",
        str(mma.layout_c_tv_tiled),
        ("m", "n"),
        color,
    )
    return Picture(
        title or plan.name, (*shared, held), f"CTA tile {bm} x {bn} x {bk}, {plan.threads} threads",
        arrangement="gemm", legends=(_BANKS, *_owner_legends(color, mma.threads)),
        color_notes=("A and B: the first stage, by bank. D: by the warp that holds it.",),
        text=plan.describe(problem),
        text_grids=_maps(held.owners[-1], mma),
    )  # fmt: skip


def _maps(thread: np.ndarray, mma: TiledMma) -> tuple[Grid, ...]:
    """Which warp has which part of D, and which lane which part of the first warp's.

    Of what the threads cover once: the rest of the CTA tile repeats that.
    """
    m, n, _ = mma.tile_mnk
    thread = thread[:m, :n]
    warp, out = thread // WARP_THREADS, []
    if mma.threads > WARP_THREADS:
        out.append(_map(f"warps of D, {m} x {n}", warp, np.arange(m), np.arange(n)))
    first = warp == 0
    rows, cols = np.nonzero(first.any(axis=1))[0], np.nonzero(first.any(axis=0))[0]
    part = np.where(first, thread, -1)[np.ix_(rows, cols)]
    out.append(_map("lanes of warp 0", part, rows, cols))
    return tuple(out)


def _map(title: str, table: np.ndarray, at_row: np.ndarray, at_col: np.ndarray) -> Grid:
    """A table of owners with equal neighbours told once; the ticks are where they begin."""
    small, rows, cols = compressed(table)
    row_levels, col_levels = _repeats(small, small * 0), _repeats(small.T, small.T * 0)
    return Grid(
        title, np.where(small < 0, ".", as_labels(small)), row_levels=row_levels, col_levels=col_levels,
        row_ticks=tuple(str(at_row[r]) for r in rows), col_ticks=tuple(str(at_col[c]) for c in cols),
        row_name="m", col_name="n",
    )  # fmt: skip


def _one_of(name: str, given: str, known: tuple[str, ...]) -> None:
    if given not in known:
        raise UnsupportedError(
            f"draw: {name} = {given!r}; {', '.join(known[:-1])} or {known[-1]} is expected."
        )


__all__ = [
    "atom_picture",
    "banks",
    "composition_picture",
    "copy_picture",
    "holders",
    "layout_picture",
    "mma_table",
    "plan_picture",
    "raster_picture",
    "slice_picture",
    "swizzle_picture",
    "tiled_mma_picture",
    "tv_picture",
]
