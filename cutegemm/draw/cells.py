"""Draw a grid of cells in an SVG document.

All cells of one colour are one path, with one stroke per run of neighbours, which keeps files small. All lines of one
weight are one path. If cells are too small for their text, each region of one owner is named instead.
"""

from __future__ import annotations

from html import escape
from math import ceil

import numpy as np

from cutegemm.draw.canvas import Canvas, num, text_width, texts, wrapped
from cutegemm.draw.grids import FINE, HEAVY, MEDIUM, Grid, regions, runs

TICK = 9.5  # font size of ticks
_FINE_FROM = 5  # fine lines are drawn if cells are larger than 5 pixels

Size = tuple[int, int, bool]  # width and height of a cell in pixels, and True if cells contain text


def margins_of(grid: Grid, size: Size, left: float | None = None) -> tuple[float, float]:
    """Return (left, top): the space that a grid's index labels and titles need around its cells, in pixels.

    grid   table of cells with its heading, index labels and mode names
    size   (width of a cell, height of a cell, True if cells have text), in pixels
    left   minimum space to the left, in pixels; None for no minimum
    """
    ticks = max((text_width(t, TICK) for t in grid.row_ticks), default=0)
    own = ticks + 8 + (18 if grid.row_name else 0)
    head = len(titles_of(grid, size)) * 16
    return ceil(max(own, left or 0)), head + (16 if grid.col_ticks else 0) + (13 if grid.col_name else 0)


def titles_of(grid: Grid, size: Size) -> list[tuple[str, str, float]]:
    """Return the lines of text above a grid as (text, CSS classes, font size in pixels): title, then wrapped subtitle.

    grid   table of cells; its columns limit the width of a line
    size   (width of a cell, height of a cell, True if cells have text), in pixels
    """
    room = max(220.0, grid.cols * size[0] + 40)
    head = [(grid.title, "head ink", 12.0)] if grid.title else []
    return head + [(line, "tick muted", TICK) for line in wrapped(grid.subtitle, room, TICK)]


def draw_grid(canvas: Canvas, grid: Grid, size: Size, x: float, y: float) -> None:
    """Draw a grid of cells on a canvas so that the top left corner of its first cell is at (x, y), in pixels.

    canvas   SVG document under construction
    grid     table of cells with labels, colours, index labels and lines
    size     (width of a cell, height of a cell, True if cells have text), in pixels
    """
    cell_w, cell_h, detailed = size
    width, height = grid.cols * cell_w, grid.rows * cell_h
    canvas.reach(x + width, y + height)
    _axes(canvas, grid, size, x, y)
    canvas.add(
        f'<g class="grid" transform="translate({num(x)} {num(y)})" '
        f'data-rows="{grid.rows}" data-cols="{grid.cols}" data-cell="{cell_w} {cell_h}">'
        f'<rect width="{width}" height="{height}" class="fill empty"/>'
    )
    if grid.colours is not None:
        canvas.add(_cells(grid.colours, "s" if grid.ramp else "c", cell_w, cell_h))
    canvas.add(_lines(grid, cell_w, cell_h, detailed))
    if grid.trail is not None and len(grid.trail) > 1 and min(cell_w, cell_h) >= 8:
        canvas.add(_trail(grid.trail, cell_w, cell_h))
    if detailed:
        canvas.add(_labels(grid, cell_w, cell_h))
    else:
        canvas.add(_names(grid, cell_w, cell_h))
    canvas.add(f'<rect width="{width}" height="{height}" class="frame ink"/></g>')


def _axes(canvas: Canvas, grid: Grid, size: Size, x: float, y: float) -> None:
    """Draw the titles, index labels and mode names of a grid whose first cell has its top left corner at (x, y).

    canvas   SVG document under construction
    grid     table of cells
    size     (width of a cell, height of a cell, True if cells have text), in pixels
    """
    cell_w, cell_h, detailed = size
    line = y - margins_of(grid, size)[1]
    for content, style, font in titles_of(grid, size):
        line += 16
        canvas.text(x, line - 6, content, style, font)
    step = _tick_step(max((text_width(t, TICK) for t in grid.col_ticks), default=0) + 5, cell_w)
    ticks = [(x + (c + 0.5) * cell_w, y - 5, grid.col_ticks[c]) for c in range(0, len(grid.col_ticks), step)]
    canvas.series(ticks, "tick muted mid", TICK)
    step = _tick_step(TICK + 1.5 if detailed else 2 * TICK, cell_h)
    ticks = [(x - 5, y + (r + 0.5) * cell_h + 3.3, grid.row_ticks[r]) for r in range(0, len(grid.row_ticks), step)]
    canvas.series(ticks, "tick muted end", TICK)
    if grid.col_name:
        canvas.text(x + grid.cols * cell_w / 2, y - 18, grid.col_name, "tick muted mid", TICK)
    if grid.row_name:
        widest = max((text_width(t, TICK) for t in grid.row_ticks), default=0)
        at = (num(x - widest - 14), num(y + grid.rows * cell_h / 2 + (3 if len(grid.row_name) < 3 else 0)))
        turn = "" if len(grid.row_name) < 3 else " rotate(-90)"
        canvas.add(
            f'<text transform="translate({at[0]} {at[1]}){turn}" class="tick muted mid">{escape(grid.row_name)}</text>'
        )


def _tick_step(needed: float, cell: int) -> int:
    """Return the number of cells from one index label to the next: the smallest power of two that leaves enough space.

    needed   space that an index label needs, in pixels
    cell     extent of a cell in pixels
    """
    step = 1
    while step * cell < needed:
        step *= 2
    return step


def _cells(colours: np.ndarray, prefix: str, cell_w: int, cell_h: int) -> str:
    """Return the SVG of the coloured cells: one path per colour, with one stroke per run of neighbours.

    A run is drawn as one wide line along a row or a column, whichever direction needs fewer lines.

    colours          array (rows, cols) of colour indices; -1 for no colour
    prefix           CSS class prefix: "c" for indices of distinct colours, "s" for the ramp from light to dark
    cell_w, cell_h   extents of a cell in pixels
    """
    across = sum(len(runs(colours == c)) for c in np.unique(colours) if c >= 0)
    down = sum(len(runs(c == colours.T)) for c in np.unique(colours) if c >= 0)
    turned = down < across
    shift = f"{num(cell_w / 2)} 0" if turned else f"0 {num(cell_h / 2)}"
    out = [f'<g class="cells" transform="translate({shift}) scale({cell_w} {cell_h})">']
    table = colours.T if turned else colours
    for colour in np.unique(table):
        if colour >= 0:
            out.append(f'<path class="{prefix}{colour}" d="{_strokes(runs(table == colour), turned)}"/>')
    return "".join([*out, "</g>"])


def _strokes(strokes: list[tuple[int, int, int]], turned: bool) -> str:
    """Return the SVG path data of wide lines; each line colours a run of neighbouring cells of a row or column.

    strokes   (row, first column, number of columns) of each run; if `turned`, (column, first row, number of rows)
    turned    True if the runs are vertical
    """
    out, x, y = [], 0, 0
    for line, start, length in strokes:
        to = (line, start) if turned else (start, line)
        dy = f"{to[1] - y}" if to[1] < y else f" {to[1] - y}"
        out.append(f"m{to[0] - x}{dy}{'v' if turned else 'h'}{length}")
        x, y = (to[0], to[1] + length) if turned else (to[0] + length, to[1])
    return "".join(out)


def edges(grid: Grid) -> tuple[np.ndarray, np.ndarray]:
    """Return the weights of the lines between the cells of a grid: left of each cell, and above each cell.

    A line is drawn where the grid has a boundary of a mode (MEDIUM or HEAVY), and between two cells of different
    owners, i.e. of different threads or warps. If the grid shows warps and threads, lines between warps are HEAVY and
    lines between threads of a warp FINE. If it shows threads alone, they are FINE; any other owners alone, MEDIUM.

    grid      table of cells with mode boundaries and owners
    returns   two integer arrays (rows, cols) with NO_LINE, FINE, MEDIUM or HEAVY
    """
    left = np.zeros((grid.rows, grid.cols), np.int8)
    above = np.zeros_like(left)
    if grid.col_levels:
        left |= np.asarray(grid.col_levels, np.int8)[None, :]
    if grid.row_levels:
        above |= np.asarray(grid.row_levels, np.int8)[:, None]
    weights = (HEAVY, FINE) if len(grid.owners) > 1 else (FINE if grid.owner_names == ("T",) else MEDIUM,)
    for owner, weight in zip(grid.owners, weights, strict=False):
        left[:, 1:] = np.maximum(left[:, 1:], np.where(owner[:, 1:] != owner[:, :-1], weight, 0))
        above[1:] = np.maximum(above[1:], np.where(owner[1:] != owner[:-1], weight, 0))
    return left, above


def _lines(grid: Grid, cell_w: int, cell_h: int, detailed: bool) -> str:
    """Return the SVG of the lines between cells: at mode boundaries, and between cells of different threads or warps.

    grid             table of cells; its `owners` are the threads or warps that hold the elements
    cell_w, cell_h   extents of a cell in pixels
    detailed         True to add a thin line around every cell
    """
    width, height = grid.cols * cell_w, grid.rows * cell_h
    out = ['<g class="lines">']
    if detailed:
        plain = "".join(f"M{c * cell_w} 0v{height}" for c in range(1, grid.cols))
        plain += "".join(f"M0 {r * cell_h}h{width}" for r in range(1, grid.rows))
        out.append(f'<path class="l0 rule" d="{plain}"/>' if plain else "")
    left, above = edges(grid)
    for weight in (FINE, MEDIUM, HEAVY) if min(cell_w, cell_h) > _FINE_FROM else (MEDIUM, HEAVY):
        path = "".join(f"M{c * cell_w} {r * cell_h}v{n * cell_h}" for c, r, n in runs(weight == left.T))
        path += "".join(f"M{c * cell_w} {r * cell_h}h{n * cell_w}" for r, c, n in runs(above == weight))
        if path:
            out.append(f'<path class="l{weight} ink" d="{path}"/>')
    return "".join([*out, "</g>"])


def _trail(trail: np.ndarray, cell_w: int, cell_h: int) -> str:
    """Return the SVG of a polyline that visits cells of a grid in order, through their centres.

    trail            array (cells, 2) of (row, column) in the order of the visit
    cell_w, cell_h   extents of a cell in pixels
    """
    points = [(num((c + 0.5) * cell_w), num((r + 0.5) * cell_h)) for r, c in trail.tolist()]
    return f'<path class="trail ink" d="M{" ".join(f"{x} {y}" for x, y in points)}"/>'


def _labels(grid: Grid, cell_w: int, cell_h: int) -> str:
    r"""Return the SVG of the labels of all cells of a grid; "\n" in a label separates two lines.

    grid             table of cells with `labels`, an array (rows, cols) of strings
    cell_w, cell_h   extents of a cell in pixels
    """
    items: dict[str, list[tuple[float, float, str]]] = {"cell": [], "two": [], "low": []}
    for r in range(grid.rows):
        for c in range(grid.cols):
            first, _, second = str(grid.labels[r, c]).partition("\n")
            x, y = (c + 0.5) * cell_w, (r + 0.5) * cell_h
            if second:
                items["two"].append((x, y - 1, first))
                items["low"].append((x, y + 10, second))
            elif first:
                items["cell"].append((x, y + 4, first))
    groups = [f'<g class="{style}">{texts(found)}</g>' for style, found in items.items() if found]
    return f'<g class="mid ink">{"".join(groups)}</g>'


def _names(grid: Grid, cell_w: int, cell_h: int) -> str:
    """Return the SVG of the names of threads or warps, such as "warp 2", in the regions of a grid that they own.

    A region is a rectangle of cells whose elements one thread, or warp, holds. Threads are named if their names fit in
    at least half of their regions; else warps, by the same rule; else nothing, and the result is "".

    grid             table of cells with `owners` and `owner_names`
    cell_w, cell_h   extents of a cell in pixels
    """
    for depth in reversed(range(len(grid.owners))):
        boxes, items = [], []
        name, size = grid.owner_names[depth], TICK if depth == len(grid.owners) - 1 and depth else 12.0
        areas = regions(grid.owners[depth])
        named = [area for area in areas if _fits(f"{name}{area[0]}", size, area, cell_w, cell_h)]
        if 2 * len(named) < len(areas):
            continue
        for who, r, c, rows, cols in named:
            x, y = (c + cols / 2) * cell_w, (r + rows / 2) * cell_h
            content = f"{name}{who}"
            if depth < len(grid.owners) - 1:
                wide = text_width(content, size) + 12
                boxes.append(
                    f'<rect x="{num(x - wide / 2)}" y="{num(y - 10)}" width="{num(wide)}" height="20" rx="4" '
                    'class="fill paper" opacity=".86"/>'
                )
            items.append((x, y + size * 0.34, content))
        return f'<g class="mid ink {"tick" if size == TICK else "head"}">{"".join(boxes)}{texts(items)}</g>'
    return ""


def _fits(content: str, size: float, region: tuple[int, int, int, int, int], cell_w: int, cell_h: int) -> bool:
    """Return True if a text fits in a rectangle of cells.

    content          the text
    size             font size in pixels
    region           the rectangle: (owner, first row, first column, number of rows, number of columns), in cells
    cell_w, cell_h   extents of a cell in pixels
    """
    _, _, _, rows, cols = region
    return text_width(content, size) + 2 <= cols * cell_w and size + 1 <= rows * cell_h
