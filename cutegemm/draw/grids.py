"""Pictures as data, independent of the output format.

A `Grid` is a table of labels with colours, ticks and lines. A `Picture` is one or more grids, placed side by side or as
the operands of a GEMM. The text, SVG and HTML writers all draw pictures.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cutegemm.errors import UnsupportedError
from cutegemm.layout import hooks

MOST = 256  # default maximum of rows and of columns of a grid; a note names those that are left out
SLICES = 6  # default maximum number of slices

# Weight of the line before a row or column.
NO_LINE, FINE, MEDIUM, HEAVY = 0, 1, 2, 3


@dataclass(frozen=True, eq=False)
class Grid:
    r"""Describes a table of coloured cells to draw, such as a matrix with the thread that holds each element.

    title, subtitle          heading, and a second line such as the layout in CuTe's notation
    labels                   text of each cell: array (rows, cols) of strings; "\n" separates two lines
    colours                  palette index of each cell: array (rows, cols), -1 for no colour; None if no cell is
                             coloured
    ramp                     True if `colours` are indices of a ramp from light to dark; False for distinct colours
    row_levels, col_levels   line before each row and column: NO_LINE, MEDIUM or HEAVY
    row_ticks, col_ticks     text at each row and column: its index
    row_gap, col_gap         position before which indices are left out, or 0 for none
    row_name, col_name       names of the two modes
    owners                   integer arrays (rows, cols), from coarse to fine, such as warp and thread; -1 for no
                             owner. A line separates cells of different owners
    owner_names              prefix of an owner's number, for each array in `owners`: ("warp ", "T")
    trail                    array (cells, 2) of (row, column) positions that a line joins in order; None for no line
    marks                    array (rows, cols) of one character per cell, which replaces the colour in text output;
                             None for no marks
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
        """Number of rows."""
        return int(self.labels.shape[0])

    @property
    def cols(self) -> int:
        """Number of columns."""
        return int(self.labels.shape[1])


@dataclass(frozen=True)
class Legend:
    """Lists the colours of a picture with their meanings, e.g. bank 0, bank 1 and so on.

    name      quantity that the colours show, such as "bank"
    entries   pairs (index of a colour, text)
    ramp      True if colours are numbered along a ramp from light to dark; False for distinct colours
    """

    name: str
    entries: tuple[tuple[int, str], ...]
    ramp: bool = False


@dataclass(frozen=True, eq=False)
class Picture(hooks.Shown):
    """Describes a drawing, before it is written as SVG, HTML or plain text: grids of cells with heading and notes.

    title, subtitle   two lines of heading
    grids             tables of cells
    arrangement       `beside`: the grids are side by side. `gemm`: A is to the left of C, and B above C
    joints            symbols between grids that are side by side, such as ("o", "=")
    legends           meanings of the colours
    notes             lines below the grids in every format
    color_notes       lines of the SVG only, which explain its colours
    mark_notes        lines of the plain text only, which explain its marks
    text              heading of the plain text; "" for title and subtitle
    text_grids        grids of the plain text; None for `grids`
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
    """Return the weight of the line that a grid draws before each index of a hierarchical mode, such as (4, 2, 2).

    The line is MEDIUM before an index where the second leaf of the mode's coordinate changes, and HEAVY if a later leaf
    changes. All other indices have NO_LINE. For extents (4, 2, 2), indices 4 and 12 have a MEDIUM line, index 8 a HEAVY
    one.

    extents   extents of the leaves of the mode; leaves of extent 1 are ignored
    places    indices to return the weights of; None for all indices of the mode

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
    """Return the index labels "0", "1", ... of `count` rows or columns."""
    return tuple(str(i) for i in range(count))


def as_labels(values: np.ndarray) -> np.ndarray:
    """Return an array of integers as an array of strings of the same shape, for the labels of cells."""
    return np.asarray(values).astype(str)


def runs(mask: np.ndarray) -> list[tuple[int, int, int]]:
    """Return (row, first column, length) of each maximal horizontal run of True in a boolean array (rows, cols).

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
    """Divide a grid into rectangles of one owner each, and return them as (owner, row, column, rows, columns).

    An owner is the number of a thread or warp that holds an element. The rectangles do not overlap and cover every cell
    whose owner is 0 or more.

    owner     array (rows, cols) of owner numbers; -1 for no owner
    returns   for each rectangle: its owner, its first row and column, and its numbers of rows and of columns

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
    """Return a table without repeated rows and columns, and the indices of the rows and of the columns that remain.

    A row or column is dropped if it is equal to the one before it.

    table     array (rows, cols)
    returns   (smaller array, row indices, column indices)

    >>> compressed(np.array([[0, 0, 1], [0, 0, 1], [2, 2, 3]]))[0].tolist()
    [[0, 1], [2, 3]]
    """
    keep_r = [0] + [r for r in range(1, table.shape[0]) if (table[r] != table[r - 1]).any()]
    keep_c = [0] + [c for c in range(1, table.shape[1]) if (table[:, c] != table[:, c - 1]).any()]
    return table[np.ix_(keep_r, keep_c)], keep_r, keep_c


def shape_text(value: Any) -> str:
    """Return a nested tuple as text in CuTe's notation, with "_" for None: (2, (None, 4)) becomes "(2,(_,4))"."""
    if isinstance(value, tuple):
        return "(" + ",".join(shape_text(v) for v in value) + ")"
    return "_" if value is None else str(value)


def one_of(name: str, given: str, known: tuple[str, ...]) -> None:
    """Raise UnsupportedError if a drawing option has an unknown value.

    name    name of the option
    given   its value
    known   the allowed values
    """
    if given not in known:
        raise UnsupportedError(f"draw: {name} = {given!r}. Use {', '.join(known[:-1])} or {known[-1]}.")
