"""Write pictures as plain text for a terminal, without colour."""

from __future__ import annotations

from cutegemm.draw.grids import FINE, HEAVY, NO_LINE, Grid, Picture

WIDTH = 120
ROWS = 72

# Box-drawing characters by the lines (up, right, down, left) that meet: 0 none, 1 single, 2 double.
_JOINTS = {
    (0, 1, 1, 0): "┌", (0, 1, 1, 1): "┬", (0, 0, 1, 1): "┐", (0, 1, 2, 1): "╥",
    (1, 1, 1, 0): "├", (1, 1, 1, 1): "┼", (1, 0, 1, 1): "┤", (2, 1, 2, 1): "╫",
    (1, 2, 1, 0): "╞", (1, 2, 1, 2): "╪", (1, 0, 1, 2): "╡", (2, 2, 2, 2): "╬",
    (1, 1, 0, 0): "└", (1, 1, 0, 1): "┴", (1, 0, 0, 1): "┘", (2, 1, 0, 1): "╨",
}  # fmt: skip
_ACROSS, _DOWN = ("", "─", "═"), ("", "│", "║")
_GAP = -1


def text(picture: Picture, *, width: int = WIDTH, rows: int = ROWS) -> str:
    """Return a picture (grids of cells with a heading) as plain text for a terminal.

    width   maximum characters per line. Columns that do not fit are left out, and a line below the grid names them
    rows    maximum rows of a grid. Rows that do not fit are left out, and a line below the grid names them
    """
    parts = [picture.text] if picture.text else [_head(picture)]
    grids = picture.grids if picture.text_grids is None else picture.text_grids
    if picture.arrangement == "gemm" and picture.text_grids is None:
        parts += _gemm(picture, width, rows)
    elif grids:
        parts += _beside(grids, picture.joints, width, rows)
    parts += [*picture.notes, *picture.mark_notes]
    return "\n".join(part.rstrip() for part in parts if part) + "\n"


def _head(picture: Picture) -> str:
    """Return the first line of a picture as plain text: its title and subtitle."""
    return f"{picture.title}: {picture.subtitle}" if picture.subtitle else picture.title


def _beside(grids: tuple[Grid, ...], between: tuple[str, ...], width: int, rows: int) -> list[str]:
    """Return the lines of text that show some grids, side by side if they fit `width`, else below each other.

    between   symbols between neighbouring grids, such as ("o", "=") for A o B = C
    width     maximum characters per line
    rows      maximum rows of a grid; others are left out
    """
    blocks = [_block(grid, width, rows) for grid in grids]
    joints = [between[i] if i < len(between) else "" for i in range(len(blocks) - 1)]
    wide = [max(map(len, block)) for block in blocks]
    if sum(wide) + sum(len(j) + 4 for j in joints) > width:
        return [line for i, block in enumerate(blocks) for line in ([" "] if i else []) + block]
    height = max(map(len, blocks))
    out = []
    for r in range(height):
        line = ""
        for i, block in enumerate(blocks):
            line += (block[r] if r < len(block) else "").ljust(wide[i])
            if i < len(joints):
                line += f"  {joints[i] if r == height // 2 else ' ' * len(joints[i])}  "
        out.append(line.rstrip())
    return out


def _block(grid: Grid, width: int, rows: int) -> list[str]:
    """Return the lines of text that show one grid, below its title and subtitle.

    width   maximum characters per line
    rows    maximum rows of the grid; others are left out
    """
    head = [f"{part}" for part in (": ".join(p for p in (grid.title, grid.subtitle) if p),) if part]
    return head + lines_of(grid, width, rows)


def _gemm(picture: Picture, width: int, rows: int) -> list[str]:
    """Return the lines of text that show A, B and C of a GEMM: B above C and A to the left of C.

    If the grids do not fit `width`, labels are shortened ("T12 V3" to "12.3"). If that does not help, the grids are
    below each other.

    width   maximum characters per line
    rows    maximum rows of a grid; others are left out
    """
    a, b, c = picture.grids
    for short in (False, True):
        cell = max(_cell_width(grid, short) for grid in picture.grids)
        left = lines_of(a, 1 << 20, rows, short, cell)
        top = lines_of(b, 1 << 20, rows, short, cell)
        under = lines_of(c, 1 << 20, rows, short, cell)
        pad = max(map(len, left)) + 2
        if pad + max(map(len, under)) <= width:
            break
    else:
        return [line for i, g in enumerate(picture.grids) for line in ([" "] if i else []) + _block(g, width, rows)]
    names = [f"{g.title}: {g.subtitle}" if g.subtitle else g.title for g in (a, b, c)]
    out = [*names, *(["12.3: thread 12, value 3"] if short and a.owners else [])]
    out += [f"{' ' * pad}{line}" for line in top]
    out += [f"{x.ljust(pad)}{y}".rstrip() for x, y in zip(left, under, strict=False)]
    return out


def _label(label: object, short: bool) -> str:
    """Return the label of a cell on one line, such as "T12 V3" (thread and value), or "12.3" if `short`."""
    parts = str(label).split("\n")
    if len(parts) == 1:
        return parts[0]
    return f"{parts[0][1:]}.{parts[1][1:]}" if short else " ".join(parts)


def _cell(grid: Grid, r: int, c: int, short: bool = False) -> str:
    """Return the text of the cell in row `r` and column `c` of a grid: its label, then its mark if the grid has marks.

    grid    table of cells; a mark is one character that replaces the colour
    short   True to shorten "T12 V3" to "12.3"
    """
    label = _label(grid.labels[r, c], short)
    return label if grid.marks is None else label + (str(grid.marks[r, c]) or " ")


def _cell_width(grid: Grid, short: bool = False) -> int:
    """Return the number of characters of a grid's widest label or index label.

    short   True if labels are shortened, "T12 V3" to "12.3"
    """
    widest = max((len(_label(x, short)) for x in grid.labels.flat), default=0)
    return max([widest + (grid.marks is not None)] + [len(t) for t in grid.col_ticks])


def lines_of(grid: Grid, width: int, rows: int, short: bool = False, cell: int = 0) -> list[str]:
    """Return a grid as lines of text: a frame, the index labels, and lines at the boundaries of hierarchical modes.

    width   maximum characters per line; columns that do not fit are left out
    rows    maximum rows of the grid; others are left out
    short   True to shorten labels, "T12 V3" to "12.3"
    cell    characters per cell; 0 for the width of the widest label
    """
    cell = cell or _cell_width(grid, short)
    corner = f"{grid.row_name}\\{grid.col_name}" if 0 < len(grid.row_name) <= 2 else ""
    margin = max([len(corner)] + [len(t) for t in grid.row_ticks])
    lines = sum(level > FINE for level in grid.col_levels)
    fits = max(3, (width - margin - 3 - 2 * lines) // (cell + 1))
    cols, down = _kept(grid.col_gap, grid.cols, fits), _kept(grid.row_gap, grid.rows, rows)
    weights = [_weight(grid.col_levels, c) for c in cols]
    header = _line(margin, corner, [grid.col_ticks[c] if c != _GAP else "…" for c in cols], cell, weights, blank=True)
    out = [header.rstrip(), _rule(margin, cell, weights, 1, "top")]
    for position, r in enumerate(down):
        level = _weight(grid.row_levels, r)
        if position and level:
            out.append(_rule(margin, cell, weights, level, "middle"))
        if r == _GAP:
            out.append(_line(margin, "…", ["…"] * len(cols), cell, weights))
        else:
            cells = [_cell(grid, r, c, short) if c != _GAP else "…" for c in cols]
            out.append(_line(margin, grid.row_ticks[r] if grid.row_ticks else "", cells, cell, weights))
    out.append(_rule(margin, cell, weights, 1, "bottom"))
    gaps = (_left_out("rows", grid.row_ticks, down), _left_out("columns", grid.col_ticks, cols))
    return out + [note for note in gaps if note]


def _kept(gap: int, count: int, most: int) -> list[int]:
    """Return the indices of the rows or columns that a grid shows as text; a marker stands for omitted ones.

    gap     position before which the grid already leaves out rows or columns of the matrix; 0 if it has all
    count   number of rows or columns of the grid
    most    maximum number of rows or columns that are shown
    """
    if count > most:
        return [*range(most - 2), _GAP, count - 1]
    return [*range(gap), _GAP, *range(gap, count)] if gap else list(range(count))


def _left_out(what: str, ticks: tuple[str, ...], kept: list[int]) -> str:
    """Return the line of text that names the rows or columns that are left out, or "" if all are shown.

    what    "rows" or "columns"
    ticks   index label of each row or column
    kept    positions that are shown, with _GAP in place of the others
    """
    if _GAP not in kept:
        return ""
    at = kept.index(_GAP)
    return f"{what} {int(ticks[kept[at - 1]]) + 1} .. {int(ticks[kept[at + 1]]) - 1} are left out"


def _weight(levels: tuple[int, ...], index: int) -> int:
    """Return the kind of line that text output draws before a row or column: 0 none, 1 single, 2 double.

    levels   weight of the line before each row or column: NO_LINE, MEDIUM or HEAVY; empty for no lines
    index    the row or column
    """
    level = levels[index] if 0 <= index < len(levels) else NO_LINE
    return 2 if level >= HEAVY else 1 if level > FINE else 0


def _line(margin: int, head: str, cells: list[str], cell: int, weights: list[int], blank: bool = False) -> str:
    """Return one line of text: the index label `head` of a row, then its cells, with vertical lines between them.

    margin    characters for the index label
    cells     text of each cell
    cell      characters per cell
    weights   vertical line before each cell: 0 none, 1 single, 2 double
    blank     True to write spaces instead of the vertical lines, as above the frame
    """
    side = " " if blank else "│"
    out = f"{head.rjust(margin)} {side}"
    for position, (value, weight) in enumerate(zip(cells, weights, strict=False)):
        if position and weight:
            out += " " + (" " if blank else _DOWN[weight])
        out += " " + value.rjust(cell)
    return out + ("" if blank else " │")


def _rule(margin: int, cell: int, weights: list[int], weight: int, where: str) -> str:
    """Return one line of text that is a horizontal line: the top or bottom of a grid's frame, or a boundary inside.

    margin    characters to the left, for index labels
    cell      characters per cell
    weights   vertical line before each cell, which crosses this line: 0 none, 1 single, 2 double
    weight    1 for a single horizontal line, 2 for a double one
    where     "top", "middle" or "bottom" of the grid
    """
    up, down = (0 if where == "top" else 1), (0 if where == "bottom" else 1)
    bar = _ACROSS[weight]
    out = " " * (margin + 1) + _joint(up, weight, down, 0)
    for position, vertical in enumerate(weights):
        if position and vertical:
            out += bar + _joint(up * vertical, weight, down * vertical, weight)
        out += bar * (cell + 1)
    return out + bar + _joint(up, 0, down, weight)


def _joint(up: int, right: int, down: int, left: int) -> str:
    """Return the box-drawing character for four lines that meet, or the closest one that exists.

    up, right, down, left   line in each direction: 0 none, 1 single, 2 double
    """
    exact = _JOINTS.get((up, right, down, left))
    if exact is not None:
        return exact
    upright = max(up, down)  # a single line across a double one, or the other way round
    across = max(left, right)
    return {(1, 2): "╪", (2, 1): "╫", (2, 2): "╬"}.get((upright, across), "┼")
