"""What a picture shows, before anything is drawn: grids of cells, told as tables.

A `Grid` is a table of labels with colours, ticks and lines; a `Picture` is one grid or several, beside each
other or placed as the operands of a GEMM. The text, SVG and HTML writers all draw these.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cutegemm.errors import UnsupportedError
from cutegemm.layout import hooks

MOST = 256  # rows and columns of a grid; what lies between is left out, and the picture says so
SLICES = 6

# Lines before a row or column.
NO_LINE, FINE, MEDIUM, HEAVY = 0, 1, 2, 3


@dataclass(frozen=True, eq=False)
class Grid:
    """A table of cells.

    title, subtitle           what it is; the layout in CuTe's notation
    labels                    text of each cell: an array (rows, cols); "\\n" parts two lines
    colours                   index in the palette of each cell, -1 for none; None where nothing is coloured
    ramp                      whether the colours are those of the ramp, from few to many
    row_levels, col_levels    the line before each row and column: NO_LINE, MEDIUM or HEAVY
    row_ticks, col_ticks      index of each row and column
    row_gap, col_gap          the position before which indices are left out, or 0
    row_name, col_name        of the modes
    owners                    (rows, cols) integers, coarse to fine: cells of different owners are parted by
                              a line; -1 for no owner
    owner_names               what precedes the number of an owner: ("warp ", "T")
    trail                     (row, column) of the cells in order, joined by a line; or None
    marks                     a character of each cell that says without colour what the colour says
    """

    title: str
    labels: np.ndarray
    subtitle: str = ""
    colours: np.ndarray | None = None
    ramp: bool = False
    row_levels: tuple[int, ...] = ()
    col_levels: tuple[int, ...] = ()
    row_ticks: tuple[str, ...] = ()
    col_ticks: tuple[str, ...] = ()
    row_gap: int = 0
    col_gap: int = 0
    row_name: str = ""
    col_name: str = ""
    owners: tuple[np.ndarray, ...] = ()
    owner_names: tuple[str, ...] = ()
    trail: np.ndarray | None = None
    marks: np.ndarray | None = None

    @property
    def rows(self) -> int:
        return int(self.labels.shape[0])

    @property
    def cols(self) -> int:
        return int(self.labels.shape[1])


@dataclass(frozen=True)
class Legend:
    """What colours mean: (index in the palette or the ramp, text)."""

    name: str
    entries: tuple[tuple[int, str], ...]
    ramp: bool = False


@dataclass(frozen=True, eq=False)
class Picture(hooks.Shown):
    """Grids and what is said about them.

    arrangement   "beside", or "gemm": the grids are A, B and C; B stands above C, A to the left of it
    joints        what stands between grids that are beside each other: ("o", "=")
    notes         said in any form; color_notes where there are colours, mark_notes where there are marks
    text          where given, what a terminal shows for the title: a description
    text_grids    where given, what a terminal shows for the grids
    """

    title: str
    grids: tuple[Grid, ...]
    subtitle: str = ""
    arrangement: str = "beside"
    joints: tuple[str, ...] = ()
    legends: tuple[Legend, ...] = ()
    notes: tuple[str, ...] = ()
    color_notes: tuple[str, ...] = ()
    mark_notes: tuple[str, ...] = ()
    text: str = ""
    text_grids: tuple[Grid, ...] | None = None


def levels_of(extents: tuple[int, ...], places: np.ndarray | None = None) -> tuple[int, ...]:
    """The line before each place of a mode with these leaves: none within the innermost extent, MEDIUM where
    the next one steps, HEAVY where any further one does.

    places   that are looked at; all where left out

    >>> levels_of((2, 2, 2))
    (0, 0, 2, 0, 3, 0, 2, 0)
    """
    steps, running = [], 1
    for extent in extents:
        if extent > 1:
            if running > 1:
                steps.append(running)
            running *= extent
    at = np.arange(0 if 0 in extents else running) if places is None else places
    out = np.zeros(len(at), np.int64)
    for level, step in enumerate(steps):
        out[at % step == 0] = min(MEDIUM + level, HEAVY)
    out[at == 0] = NO_LINE
    return tuple(out.tolist())


def ticks_of(count: int) -> tuple[str, ...]:
    """0, 1, 2, ... as texts."""
    return tuple(str(i) for i in range(count))


def as_labels(values: np.ndarray) -> np.ndarray:
    """An array of texts of integers."""
    return np.asarray(values).astype(str)


def runs(mask: np.ndarray) -> list[tuple[int, int, int]]:
    """(row, first column, length) of each horizontal run of True.

    >>> runs(np.array([[1, 1, 0, 1]], bool))
    [(0, 0, 2), (0, 3, 1)]
    """
    padded = np.zeros((mask.shape[0], mask.shape[1] + 2), np.int8)
    padded[:, 1:-1] = mask
    change = np.diff(padded, axis=1)
    row, start = np.nonzero(change == 1)
    _, end = np.nonzero(change == -1)
    return [(int(r), int(s), int(e - s)) for r, s, e in zip(row, start, end, strict=False)]


def regions(owner: np.ndarray) -> list[tuple[int, int, int, int, int]]:
    """(owner, row, column, rows, columns) of rectangles of one owner; every owned cell is in one of them.

    >>> regions(np.array([[0, 0, 1], [0, 0, 1]]))
    [(0, 0, 0, 2, 2), (1, 0, 2, 2, 1)]
    """
    table, seen = owner.tolist(), np.zeros(owner.shape, bool)
    rows, cols = owner.shape
    out = []
    for r in range(rows):
        for c in range(cols):
            who = table[r][c]
            if who < 0 or seen[r, c]:
                continue
            right = c + 1
            while right < cols and table[r][right] == who and not seen[r, right]:
                right += 1
            low = r + 1
            while low < rows and all(table[low][x] == who for x in range(c, right)) and not seen[low, c:right].any():
                low += 1
            seen[r:low, c:right] = True
            out.append((who, r, c, low - r, right - c))
    return out


def compressed(table: np.ndarray) -> tuple[np.ndarray, list[int], list[int]]:
    """The table without rows and columns equal to the one before; and where each kept one begins.

    >>> compressed(np.array([[0, 0, 1], [0, 0, 1], [2, 2, 3]]))[0].tolist()
    [[0, 1], [2, 3]]
    """
    keep_r = [0] + [r for r in range(1, table.shape[0]) if (table[r] != table[r - 1]).any()]
    keep_c = [0] + [c for c in range(1, table.shape[1]) if (table[:, c] != table[:, c - 1]).any()]
    return table[np.ix_(keep_r, keep_c)], keep_r, keep_c


def shape_text(value: Any) -> str:
    """CuTe's notation of a hierarchical value."""
    if isinstance(value, tuple):
        return "(" + ",".join(shape_text(v) for v in value) + ")"
    return "_" if value is None else str(value)


def one_of(name: str, given: str, known: tuple[str, ...]) -> None:
    """Raises UnsupportedError for an option that is none of those known."""
    if given not in known:
        raise UnsupportedError(f"draw: {name} = {given!r}; {', '.join(known[:-1])} or {known[-1]} is expected.")
