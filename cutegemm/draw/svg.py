"""Pictures as SVG: small files, for light and for dark paper, without a drawing library.

Cells of one colour are one path of strokes, a run of neighbours one stroke; lines of one weight are one
path. Where a cell is too small for its text, the text is left out and the regions of one owner are named.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

import numpy as np

from cutegemm.draw.grids import FINE, HEAVY, MEDIUM, Grid, Legend, Picture, regions, runs
from cutegemm.draw.palette import stylesheet

SCOPE = "svg.cutegemm"
PAD = 20
_MONO, _SANS = 0.605, 0.58  # widths of a character, in font sizes: at least those of the fonts named below
_TICK, _CELL, _NOTE, _TITLE = 9.5, 11.0, 11.5, 15.0
_DETAILED_COLS, _DETAILED_ROWS, _DETAILED_CELLS = 44, 96, 2560
_FINE_FROM = 5  # no fine lines between cells of this many pixels and fewer
_WIDE = 1240  # that a picture may be, in cells too small for text

Size = tuple[int, int, bool]  # width and height of a cell, and whether there is text in it

_STYLE = (
    "{s}{{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace}}"
    "{s} text{{fill:currentColor}}"
    "{s} .title,{s} .say{{font-family:"
    "system-ui,-apple-system,'Segoe UI',Roboto,'Liberation Sans',sans-serif}}"
    "{s} .title{{font-size:15px;font-weight:600}}{s} .say{{font-size:11.5px}}{s} .mono{{font-size:11.5px}}"
    "{s} .head{{font-size:12px;font-weight:600}}{s} .tick{{font-size:9.5px}}{s} .cell{{font-size:11px}}"
    "{s} .two{{font-size:10.5px}}{s} .low{{font-size:9px;opacity:.72}}{s} .joint{{font-size:22px}}"
    "{s} .mid text,{s} text.mid{{text-anchor:middle}}{s} text.end,{s} .end text{{text-anchor:end}}"
    "{s} .cells path{{fill:none;stroke:currentColor;stroke-width:1;shape-rendering:crispEdges}}"
    "{s} .lines path{{fill:none;stroke:currentColor}}{s} .l0{{stroke-width:1}}"
    "{s} .l1{{stroke-width:1;opacity:.32}}{s} .l2{{stroke-width:1.3;opacity:.75}}{s} .l3{{stroke-width:2.6}}"
    "{s} .trail{{fill:none;stroke:currentColor;stroke-width:1.4;opacity:.22;stroke-linejoin:round}}"
    "{s} .fill{{fill:currentColor}}{s} .frame{{fill:none;stroke:currentColor;stroke-width:1.2}}"
)


class Canvas:
    """Elements, the colours that they use, and how far they reach: the size follows from what is drawn."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.used: set[str] = set()
        self.right = 0.0
        self.bottom = 0.0

    def reach(self, x: float, y: float) -> None:
        self.right, self.bottom = max(self.right, x), max(self.bottom, y)

    def add(self, element: str) -> None:
        self.parts.append(element)

    def rect(self, x: float, y: float, width: float, height: float, style: str, extra: str = "") -> None:
        self.reach(x + width, y + height)
        self.used |= set(style.split())
        box = f'x="{num(x)}" y="{num(y)}" width="{num(width)}" height="{num(height)}"'
        self.add(f'<rect {box} class="{style}"{extra}/>')

    def text(self, x: float, y: float, content: str, style: str, size: float, mono: bool = True) -> None:
        """Text at a baseline; with the style `mid` around x, with `end` before it."""
        wide = text_width(content, size, mono)
        kinds = style.split()
        self.reach(x + (wide / 2 if "mid" in kinds else 0 if "end" in kinds else wide), y + size * 0.3)
        self.add(f'<text x="{num(x)}" y="{num(y)}" class="{style}">{escape(content)}</text>')

    def finish(self, title: str, description: str) -> str:
        width, height = num(np.ceil(self.right + PAD)), num(np.ceil(self.bottom + PAD))
        style = _STYLE.format(s=SCOPE) + stylesheet(SCOPE, self.used)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="cutegemm" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" style="max-width:100%;height:auto" role="img">'
            f"<title>{escape(title)}</title><desc>{escape(description)}</desc><style>{style}</style>"
            f'<rect width="{width}" height="{height}" rx="6" class="fill paper"/>{"".join(self.parts)}</svg>'
        )


def num(value: float) -> str:
    """A coordinate with at most two decimals.

    >>> num(3.0), num(2.5), num(1 / 3)
    ('3', '2.5', '0.33')
    """
    return f"{float(value):.2f}".rstrip("0").rstrip(".")


def text_width(content: str, size: float, mono: bool = True) -> float:
    """At least as wide as the text is drawn."""
    return len(content) * size * (_MONO if mono else _SANS)


def svg(picture: Picture) -> str:
    """The picture as an SVG document."""
    canvas = Canvas()
    y = _head(canvas, picture)
    if picture.grids:
        size, stacked = _cell_size(picture)
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
    y = PAD + _TITLE * 0.8
    canvas.text(PAD, y, picture.title, "title ink", _TITLE, mono=False)
    widest = max([520.0] + [text_width(picture.title, _TITLE, False)])
    for line in wrapped(picture.subtitle, widest, _NOTE):
        y += 18
        canvas.text(PAD, y, line, "mono muted", _NOTE)
    return y + 14


def _gaps(grids: Iterable[Grid]) -> list[str]:
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


def wrapped(content: str, width: float, size: float, mono: bool = True) -> list[str]:
    """The text in lines that fit; broken after a comma, a colon or a space where there is one."""
    most = max(8, int(width / (size * (_MONO if mono else _SANS))))
    lines, rest = [], content
    while len(rest) > most:
        at = max(rest.rfind(mark, most // 2, most) for mark in (" ", ",", ":"))
        at = at + 1 if at > 0 else most
        lines.append(rest[:at].rstrip())
        rest = rest[at:].lstrip()
    return [*lines, rest] if rest else lines


def _cell_size(picture: Picture) -> tuple[Size, bool]:
    """The size of a cell, the same in all grids, and whether these stand below each other."""
    grids = picture.grids
    if picture.arrangement == "gemm":
        return _fitting(picture, grids[0].cols + grids[2].cols, grids[1].rows + grids[0].rows), False
    cols, rows = max(g.cols for g in grids), max(g.rows for g in grids)
    if not picture.joints:
        return _fitting(picture, cols, rows), False
    beside = _fitting(picture, sum(g.cols for g in grids), rows)
    stacked = _fitting(picture, cols, sum(g.rows for g in grids))
    return (stacked, True) if stacked[2] and not beside[2] else (beside, False)


def _fitting(picture: Picture, cols: int, rows: int) -> Size:
    """The size of a cell where so many stand beside each other, and so many below each other."""
    labels = [str(x).split("\n") for g in picture.grids for x in g.labels.flat]
    if cols <= _DETAILED_COLS and rows <= _DETAILED_ROWS and len(labels) <= _DETAILED_CELLS:
        longest = max(len(line) for label in labels for line in label)
        two = any(len(label) > 1 for label in labels)
        width = int(max(26, longest * _CELL * _MONO + 9))
        return (max(width, 32), 30, True) if two else (width, 26 if longest else 20, True)
    small = max(3, min(10, _WIDE // max(cols, rows * 3 // 4)))
    return small, small, False


def _margins(grid: Grid, size: Size, left: float | None = None) -> tuple[float, float]:
    """Room to the left of the cells and above them."""
    ticks = max((text_width(t, _TICK) for t in grid.row_ticks), default=0)
    own = ticks + 8 + (18 if grid.row_name else 0)
    head = len(_titles(grid, size)) * 16
    return max(own, left or 0), head + (16 if grid.col_ticks else 0) + (13 if grid.col_name else 0)


def _titles(grid: Grid, size: Size) -> list[tuple[str, str, float]]:
    """(text, style, font size) of the lines above a grid."""
    room = max(220.0, grid.cols * size[0] + 40)
    head = [(grid.title, "head ink", 12.0)] if grid.title else []
    return head + [(line, "tick muted", _TICK) for line in wrapped(grid.subtitle, room, _TICK)]


def _beside(canvas: Canvas, picture: Picture, size: Size, y: float) -> float:
    x, low = float(PAD), y
    top = max(_margins(g, size)[1] for g in picture.grids)
    tallest = max(g.rows for g in picture.grids) * size[1]
    for i, grid in enumerate(picture.grids):
        left, _ = _margins(grid, size)
        titles = max((text_width(t, s) for t, _, s in _titles(grid, size)), default=0)
        wide = left + max(grid.cols * size[0], titles)
        if i and not picture.joints and x + wide > _WIDE + PAD:
            x, y = float(PAD), low + 22
        _grid(canvas, grid, size, x + left, y + top)
        low = max(low, y + top + grid.rows * size[1])
        x += wide + 26
        if i < len(picture.joints):
            joint = picture.joints[i]
            canvas.text(x + 4, y + top + min(tallest, 320) / 2 + 7, joint, "joint muted", 22)
            x += 22 * _MONO * len(joint) + 18
    return low


def _stacked(canvas: Canvas, picture: Picture, size: Size, y: float) -> float:
    left = max(_margins(g, size)[0] for g in picture.grids)
    for i, grid in enumerate(picture.grids):
        y += _margins(grid, size)[1]
        _grid(canvas, grid, size, PAD + left, y)
        y += grid.rows * size[1]
        if i < len(picture.joints):
            joint = "↓" if picture.joints[i] == "→" else picture.joints[i]
            canvas.text(PAD + left + grid.cols * size[0] / 2, y + 30, joint, "joint muted mid", 22)
            y += 30
    return y


def _gemm(canvas: Canvas, picture: Picture, size: Size, y: float) -> float:
    a, b, c = picture.grids
    cell_w, cell_h, _ = size
    left_a, top_a = _margins(a, size)
    left_c, top_c = _margins(c, size)
    left_b, top_b = _margins(b, size, left_c)
    titles = max((text_width(t, s) for t, _, s in _titles(a, size)), default=0)
    x_c = PAD + left_a + max(a.cols * cell_w, titles - left_a) + 22 + max(left_b, left_c)
    y_c = y + top_b + b.rows * cell_h + 16 + max(top_a, top_c)
    _grid(canvas, b, size, x_c, y + top_b)
    _grid(canvas, a, size, PAD + left_a, y_c)
    _grid(canvas, c, size, x_c, y_c)
    return y_c + c.rows * cell_h


def _grid(canvas: Canvas, grid: Grid, size: Size, x: float, y: float) -> None:
    """A grid whose first cell has its corner at (x, y)."""
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
        canvas.add(_cells(canvas, grid.colours, "s" if grid.ramp else "c", cell_w, cell_h))
    canvas.add(_lines(grid, cell_w, cell_h, detailed))
    if grid.trail is not None and len(grid.trail) > 1 and min(cell_w, cell_h) >= 8:
        canvas.add(_trail(grid.trail, cell_w, cell_h))
    if detailed:
        canvas.add(_labels(grid, cell_w, cell_h))
    else:
        canvas.add(_names(grid, cell_w, cell_h))
    canvas.add(f'<rect width="{width}" height="{height}" class="frame ink"/></g>')


def _axes(canvas: Canvas, grid: Grid, size: Size, x: float, y: float) -> None:
    cell_w, cell_h, detailed = size
    line = y - _margins(grid, size)[1]
    for content, style, font in _titles(grid, size):
        line += 16
        canvas.text(x, line - 6, content, style, font)
    step = _tick_step(max((text_width(t, _TICK) for t in grid.col_ticks), default=0) + 5, cell_w)
    for c in range(0, len(grid.col_ticks), step):
        canvas.text(x + (c + 0.5) * cell_w, y - 5, grid.col_ticks[c], "tick muted mid", _TICK)
    step = _tick_step(_TICK + 1.5 if detailed else 2 * _TICK, cell_h)
    for r in range(0, len(grid.row_ticks), step):
        canvas.text(x - 5, y + (r + 0.5) * cell_h + 3.3, grid.row_ticks[r], "tick muted end", _TICK)
    if grid.col_name:
        canvas.text(x + grid.cols * cell_w / 2, y - 18, grid.col_name, "tick muted mid", _TICK)
    if grid.row_name:
        ticks = max((text_width(t, _TICK) for t in grid.row_ticks), default=0)
        at = (num(x - ticks - 14), num(y + grid.rows * cell_h / 2 + (3 if len(grid.row_name) < 3 else 0)))
        turn = "" if len(grid.row_name) < 3 else " rotate(-90)"
        canvas.add(
            f'<text transform="translate({at[0]} {at[1]}){turn}" class="tick muted mid">'
            f"{escape(grid.row_name)}</text>"
        )


def _tick_step(needed: float, cell: int) -> int:
    step = 1
    while step * cell < needed:
        step *= 2
    return step


def _cells(canvas: Canvas, colours: np.ndarray, prefix: str, cell_w: int, cell_h: int) -> str:
    """One path a colour, of strokes along the rows or the columns, whichever are fewer."""
    across = sum(len(runs(colours == c)) for c in np.unique(colours) if c >= 0)
    down = sum(len(runs(c == colours.T)) for c in np.unique(colours) if c >= 0)
    turned = down < across
    shift = f"{num(cell_w / 2)} 0" if turned else f"0 {num(cell_h / 2)}"
    out = [f'<g class="cells" transform="translate({shift}) scale({cell_w} {cell_h})">']
    table = colours.T if turned else colours
    for colour in np.unique(table):
        if colour >= 0:
            name = f"{prefix}{colour}"
            canvas.used.add(name)
            out.append(f'<path class="{name}" d="{_strokes(runs(table == colour), turned)}"/>')
    return "".join([*out, "</g>"])


def _strokes(found: list[tuple[int, int, int]], turned: bool) -> str:
    """SVG path of runs (line, start, length); moves are relative, as they are shorter."""
    out, x, y = [], 0, 0
    for line, start, length in found:
        to = (line, start) if turned else (start, line)
        dy = f"{to[1] - y}" if to[1] < y else f" {to[1] - y}"
        out.append(f"m{to[0] - x}{dy}{'v' if turned else 'h'}{length}")
        x, y = (to[0], to[1] + length) if turned else (to[0] + length, to[1])
    return "".join(out)


def edges(grid: Grid) -> tuple[np.ndarray, np.ndarray]:
    """The weight of the line before each cell: to its left (rows, cols), and above it."""
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
    points = [(num((c + 0.5) * cell_w), num((r + 0.5) * cell_h)) for r, c in trail.tolist()]
    return f'<path class="trail ink" d="M{" ".join(f"{x} {y}" for x, y in points)}"/>'


def _labels(grid: Grid, cell_w: int, cell_h: int) -> str:
    ones, firsts, seconds = ['<g class="cell">'], ['<g class="two">'], ['<g class="low">']
    for r in range(grid.rows):
        for c in range(grid.cols):
            first, _, second = str(grid.labels[r, c]).partition("\n")
            x, y = num((c + 0.5) * cell_w), (r + 0.5) * cell_h
            if second:
                firsts.append(f'<text x="{x}" y="{num(y - 1)}">{escape(first)}</text>')
                seconds.append(f'<text x="{x}" y="{num(y + 10)}">{escape(second)}</text>')
            elif first:
                ones.append(f'<text x="{x}" y="{num(y + 4)}">{escape(first)}</text>')
    groups = ["".join([*group, "</g>"]) for group in (ones, firsts, seconds) if len(group) > 1]
    return f'<g class="mid ink">{"".join(groups)}</g>'


def _names(grid: Grid, cell_w: int, cell_h: int) -> str:
    """The owners of regions that have room for it; the coarser ones where the finer have none."""
    for depth in reversed(range(len(grid.owners))):
        out = ['<g class="mid ink">']
        name, size = grid.owner_names[depth], _TICK if depth == len(grid.owners) - 1 and depth else 12.0
        found = regions(grid.owners[depth])
        fine = [f for f in found if _fits(f"{name}{f[0]}", size, f, cell_w, cell_h)]
        if 2 * len(fine) < len(found):
            continue
        for who, r, c, rows, cols in fine:
            x, y = (c + cols / 2) * cell_w, (r + rows / 2) * cell_h
            content = f"{name}{who}"
            if depth < len(grid.owners) - 1:
                wide = text_width(content, size) + 12
                out.append(
                    f'<rect x="{num(x - wide / 2)}" y="{num(y - 10)}" width="{num(wide)}" height="20" rx="4" '
                    'class="fill paper" opacity=".86"/>'
                )
            style = "tick" if size == _TICK else "head"
            out.append(f'<text x="{num(x)}" y="{num(y + size * 0.34)}" class="{style}">{content}</text>')
        return "".join([*out, "</g>"])
    return ""


def _fits(
    content: str, size: float, region: tuple[int, int, int, int, int], cell_w: int, cell_h: int
) -> bool:
    _, _, _, rows, cols = region
    return text_width(content, size) + 2 <= cols * cell_w and size + 1 <= rows * cell_h


def _legends(canvas: Canvas, legends: tuple[Legend, ...], y: float) -> float:
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
                    canvas.text(x + 8.5, y + 36, content, "tick muted mid", _TICK)
                x += 17
            else:
                canvas.text(x + 22, y + 20, content, "tick muted", _TICK)
                x += 22 + text_width(content, _TICK) + 14
        y += 40 if strip else 28
    return y
