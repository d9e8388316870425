"""Write pictures as SVG that adapts to light and dark themes.

This module places the heading, grids, legends and notes. `cells` draws a single grid on a `Canvas`.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil

from cutegemm.draw.canvas import MONO, PAD, Canvas, text_width, wrapped
from cutegemm.draw.cells import TICK, Size, draw_grid, margins_of, titles_of
from cutegemm.draw.grids import Grid, Legend, Picture

_CELL, _NOTE, _TITLE = 11.0, 11.5, 15.0  # font sizes
DETAILED = (44, 96, 2560)  # maximum columns, rows and cells of pictures whose cells have text: about a page
_WIDE = 1240  # maximum width of the grids in pixels if cells are too small for text


def svg(picture: Picture, detailed: tuple[int, int, int] = DETAILED) -> str:
    """Return a picture (grids of cells with a heading) as an SVG document.

    detailed   (columns, rows, cells): largest picture whose cells have text; a larger one has colours only
    """
    canvas = Canvas()
    y = _head(canvas, picture)
    if picture.grids:
        size, stacked = _cell_size(picture, detailed)
        place = _gemm if picture.arrangement == "gemm" else _stacked if stacked else _beside
        y = place(canvas, picture, size, y)
    y = _legends(canvas, picture.legends, y + 14)
    for note in (*_gaps(picture.grids), *picture.notes, *picture.color_notes):
        for line in wrapped(note, max(canvas.right, 520) - PAD, 11.5, mono=False):
            y += 17
            canvas.text(PAD, y, line, "say muted", _NOTE, mono=False)
    grids = "; ".join(f"{g.title or 'grid'}: {g.rows} x {g.cols} {g.subtitle}".strip() for g in picture.grids)
    return canvas.finish(picture.title, "; ".join(p for p in (picture.subtitle, grids) if p))


def _head(canvas: Canvas, picture: Picture) -> float:
    """Draw the title and subtitle of a picture on a canvas, and return the y coordinate below them, in pixels."""
    y = PAD + _TITLE * 0.8
    canvas.text(PAD, y, picture.title, "title ink", _TITLE, mono=False)
    widest = max([520.0] + [text_width(picture.title, _TITLE, False)])
    for line in wrapped(picture.subtitle, widest, _NOTE):
        y += 18
        canvas.text(PAD, y, line, "mono muted", _NOTE)
    return y + 14


def _gaps(grids: Iterable[Grid]) -> list[str]:
    """Return one note for each range of rows or columns that grids leave out, such as "Rows 8 .. 30 are left out."

    The note is returned once if several grids leave out the same range.
    """
    out: list[str] = []
    for grid in grids:
        for what, ticks, gap in (
            ("Rows", grid.row_ticks, grid.row_gap),
            ("Columns", grid.col_ticks, grid.col_gap),
        ):
            if gap:
                note = f"{what} {int(ticks[gap - 1]) + 1} .. {int(ticks[gap]) - 1} are left out."
                if note not in out:
                    out.append(note)
    return out


def _cell_size(picture: Picture, detailed: tuple[int, int, int]) -> tuple[Size, bool]:
    """Return the size of a picture's cells, and whether its grids are stacked: ((width, height, has text), stacked).

    detailed   (columns, rows, cells): largest picture whose cells have text
    returns    extents in pixels; True if cells have text; True if the grids do not fit side by side and are stacked
    """
    grids = picture.grids
    if picture.arrangement == "gemm":
        return _fitting(picture, grids[0].cols + grids[2].cols, grids[1].rows + grids[0].rows, detailed), False
    cols, rows = max(g.cols for g in grids), max(g.rows for g in grids)
    if not picture.joints:
        return _fitting(picture, cols, rows, detailed), False
    beside = _fitting(picture, sum(g.cols for g in grids), rows, detailed)
    stacked = _fitting(picture, cols, sum(g.rows for g in grids), detailed)
    return (stacked, True) if stacked[2] and not beside[2] else (beside, False)


def _fitting(picture: Picture, cols: int, rows: int, detailed: tuple[int, int, int]) -> Size:
    """Return how large the cells of a picture can be: (width, height, True if cells have text), in pixels.

    cols       number of cells side by side, over all grids
    rows       number of cells below each other, over all grids
    detailed   (columns, rows, cells): largest picture whose cells have text
    """
    labels = [str(x).split("\n") for g in picture.grids for x in g.labels.flat]
    if all(count <= most for count, most in zip((cols, rows, len(labels)), detailed, strict=True)):
        longest = max(len(line) for label in labels for line in label)
        two = any(len(label) > 1 for label in labels)
        width = 2 * ceil(max(32 if two else 26, longest * _CELL * MONO + 9) / 2)
        return width, 30 if two else 26 if longest else 20, True
    small = max(3, min(10, _WIDE // max(cols, rows * 3 // 4)))
    return small, small, False


def _beside(canvas: Canvas, picture: Picture, size: Size, y: float) -> float:
    """Draw the grids of a picture side by side from `y` on, and return the y coordinate below them, in pixels.

    canvas   SVG document under construction
    size     (width of a cell, height of a cell, True if cells have text), in pixels
    """
    x, low = float(PAD), y
    top = max(margins_of(g, size)[1] for g in picture.grids)
    tallest = max(g.rows for g in picture.grids) * size[1]
    for i, grid in enumerate(picture.grids):
        left, _ = margins_of(grid, size)
        titles = max((text_width(t, s) for t, _, s in titles_of(grid, size)), default=0)
        wide = left + max(grid.cols * size[0], titles)
        if i and not picture.joints and x + wide > _WIDE + PAD:
            x, y = float(PAD), low + 22
        draw_grid(canvas, grid, size, x + left, y + top)
        low = max(low, y + top + grid.rows * size[1])
        x += wide + 26
        if i < len(picture.joints):
            joint = picture.joints[i]
            canvas.text(x + 4, y + top + min(tallest, 320) / 2 + 7, joint, "joint muted", 22)
            x += 22 * MONO * len(joint) + 18
    return low


def _stacked(canvas: Canvas, picture: Picture, size: Size, y: float) -> float:
    """Draw the grids of a picture below each other from `y` on, and return the y coordinate below them, in pixels.

    canvas   SVG document under construction
    size     (width of a cell, height of a cell, True if cells have text), in pixels
    """
    left = max(margins_of(g, size)[0] for g in picture.grids)
    for i, grid in enumerate(picture.grids):
        y += margins_of(grid, size)[1]
        draw_grid(canvas, grid, size, PAD + left, y)
        y += grid.rows * size[1]
        if i < len(picture.joints):
            joint = "↓" if picture.joints[i] == "→" else picture.joints[i]
            canvas.text(PAD + left + grid.cols * size[0] / 2, y + 30, joint, "joint muted mid", 22)
            y += 30
    return y


def _gemm(canvas: Canvas, picture: Picture, size: Size, y: float) -> float:
    """Draw the grids of A, B and C, B above C and A to the left of C, from `y` on. Return the y coordinate below them.

    canvas    SVG document under construction
    picture   picture with exactly three grids, in the order A, B, C
    size      (width of a cell, height of a cell, True if cells have text), in pixels
    y         y coordinate of the upper edge, in pixels
    """
    a, b, c = picture.grids
    cell_w, cell_h, _ = size
    left_a, top_a = margins_of(a, size)
    left_c, top_c = margins_of(c, size)
    left_b, top_b = margins_of(b, size, left_c)
    titles = max((text_width(t, s) for t, _, s in titles_of(a, size)), default=0)
    x_c = PAD + left_a + max(a.cols * cell_w, titles - left_a) + 22 + max(left_b, left_c)
    y_c = y + top_b + b.rows * cell_h + 16 + max(top_a, top_c)
    draw_grid(canvas, b, size, x_c, y + top_b)
    draw_grid(canvas, a, size, PAD + left_a, y_c)
    draw_grid(canvas, c, size, x_c, y_c)
    return y_c + c.rows * cell_h


def _legends(canvas: Canvas, legends: tuple[Legend, ...], y: float) -> float:
    """Draw the legends of a picture's colours on an SVG canvas, and return the y coordinate below them, in pixels.

    canvas    SVG document under construction
    legends   each is a row of colours with their meanings
    y         y coordinate of the upper edge, in pixels
    """
    for legend in legends:
        prefix, x = "s" if legend.ramp else "c", float(PAD)
        strip = len(legend.entries) > 16 or legend.ramp
        canvas.text(x, y + 20, legend.name, "say ink", _NOTE, mono=False)
        x += text_width(legend.name, _NOTE, False) + 12
        for position, (colour, content) in enumerate(legend.entries):
            name = f"{prefix}{colour}"
            canvas.rect(x, y + 9, 17, 15, f"fill {name}")
            if strip:
                if legend.ramp or position % 4 == 0 or position == len(legend.entries) - 1:
                    canvas.text(x + 8.5, y + 36, content, "tick muted mid", TICK)
                x += 17
            else:
                canvas.text(x + 22, y + 20, content, "tick muted", TICK)
                x += 22 + text_width(content, TICK) + 14
        y += 40 if strip else 28
    return y
