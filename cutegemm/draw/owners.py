"""Pictures that show which thread and which value hold each element of a tile."""

from __future__ import annotations

import numpy as np

from cutegemm.draw.grids import HEAVY, MEDIUM, NO_LINE, Grid, Legend, Picture, one_of, ticks_of
from cutegemm.draw.palette import HUES, SHADES
from cutegemm.errors import LayoutError
from cutegemm.layout import Layout
from cutegemm.machine.arch import WARP_THREADS

_LANES = Legend("lane", tuple((t, str(t)) for t in range(WARP_THREADS)))


def holders(table: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the thread and value that hold each element of a tile, and the number of threads that hold it.

    table     array with a row for each thread and a column for each value of a thread: index of the element in the tile
    size      number of elements of the tile
    returns   three arrays with an entry for each element of the tile: the lowest thread that holds the element, the
              index of the value in that thread, and the number of threads. They are -1, -1 and 0 for an element that no
              thread holds
    raises    LayoutError if an index is not in [0, size)

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
    return thread, value, np.bincount((pairs // threads).astype(np.intp, copy=False), minlength=size)


def tv_picture(
    layout_tv: Layout,
    tile: tuple[int, int],
    *,
    color: str = "lane",
    title: str = "",
    names: tuple[str, str] = ("m", "n"),
) -> Picture:
    """Return the picture of a thread-value layout: a tile whose cells show the thread and value that hold the element.

    layout_tv   layout (thread, value) -> column-major index in the tile
    tile        number of rows and columns
    color       meaning of the colours: "lane", "warp", "none" or "auto" (lanes if there is one warp, else warps)
    title       heading; "thread-value layout" if empty
    names       names of the modes of the tile
    raises      LayoutError if `layout_tv` does not have two modes, or reaches outside the tile

    >>> (thread,) = tv_picture(Layout((2, 2), (1, 2)), (2, 2)).grids[0].owners
    >>> thread.tolist()
    [[0, 0], [1, 1]]
    """
    if not isinstance(layout_tv.shape, tuple) or len(layout_tv.shape) != 2:
        raise LayoutError(f"tv_picture: {layout_tv} does not have the two modes (thread, value).")
    table = tv_table(layout_tv)
    grid = owner_grid(
        table, tile, title or "thread and value of each element", str(layout_tv), names, colour_by(color, len(table))
    )
    return Picture(
        title or "thread-value layout", (grid,), str(layout_tv),
        legends=owner_legends(colour_by(color, len(table)), len(table)), notes=shared_note([grid]),
    )  # fmt: skip


def tv_table(layout_tv: Layout) -> np.ndarray:
    """Return which element each value of each thread is, as indices: a row for each thread, a column for each value.

    layout_tv   layout (thread, value) -> column-major index of the element
    """
    return layout_tv.offsets().reshape(layout_tv[0].size(), -1, order="F")


def colour_by(color: str, threads: int) -> str:
    """Return what the colours of a picture stand for: "lane", "warp" or "none".

    It is the user's option `color`; "auto" becomes "lane" for at most one warp of threads, and "warp" for more.

    color     "lane", "warp", "none" or "auto"
    threads   number of threads in the picture
    """
    one_of("color", color, ("auto", "lane", "warp", "none"))
    if color == "auto":
        return "lane" if threads <= WARP_THREADS else "warp"
    return color


def _owner_colours(thread: np.ndarray, color: str) -> np.ndarray | None:
    """Return the palette index of each cell by the lane or warp of its thread; None if `color` is "none".

    thread   thread that holds each element; -1, which is kept, for no thread
    color    "lane", "warp" or "none"
    """
    if color == "none":
        return None
    if color == "lane":
        out = thread % WARP_THREADS
    else:
        out = thread // WARP_THREADS % HUES * SHADES + thread % SHADES
    return np.where(thread < 0, -1, out)


def owner_legends(color: str, threads: int) -> tuple[Legend, ...]:
    """Return the legend of the colours of lanes or warps as a tuple of one `Legend`, or () if `color` is "none".

    color     what a colour stands for: "lane", "warp" or "none"
    threads   number of threads; lanes or warps beyond it are not listed
    """
    if color == "lane":
        return (Legend("lane", _LANES.entries[:threads]),)
    if color == "warp":
        warps = -(-threads // WARP_THREADS)
        return (Legend("warp", tuple((w % HUES * SHADES + 1, str(w)) for w in range(min(warps, 2 * HUES)))),)
    return ()


def shared_note(grids: list[Grid]) -> tuple[str, ...]:
    """Return the note that explains a label such as "T4+" (thread 4 and others hold the element), in a tuple.

    The tuple is empty if no label contains "+".

    grids   grids (tables of cells) whose labels are searched
    """
    if any("+" in str(label) for grid in grids for label in grid.labels.flat):
        return ("T4+ is held by several threads; the one with the lowest index is named.",)
    return ()


def owner_grid(
    table: np.ndarray,
    tile: tuple[int, int],
    title: str,
    subtitle: str,
    names: tuple[str, str],
    color: str,
    *,
    turned: bool = False,
) -> Grid:
    """Return the grid (table of cells) of a tile; each cell shows the thread and value that hold the element.

    table      array with a row for each thread and a column for each value of a thread: index of the element in the
               tile
    tile       extents of the two modes
    title      heading of the grid
    subtitle   second line of the heading, such as the layout
    names      names of the two modes
    color      meaning of the colours: "lane", "warp" or "none"
    turned     True if the second mode runs down and the first mode runs across
    """
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
        row_levels=repeats(thread, warp), col_levels=repeats(thread.T, warp.T),
        row_ticks=ticks_of(rows), col_ticks=ticks_of(cols),
        row_name=names[0], col_name=names[1],
        owners=(warp, thread) if many else (thread,), owner_names=("warp ", "T") if many else ("T",),
    )  # fmt: skip


def repeats(thread: np.ndarray, warp: np.ndarray) -> tuple[int, ...]:
    """Return the weight of the line that a grid draws before each row of a table of threads.

    The line is HEAVY if the warp of every element differs from that in the row before. It is MEDIUM if the threads of
    this warp repeat from this row on, i.e. the row starts with the warp's first thread again. All other rows have
    NO_LINE.

    thread   array (rows, cols): thread that holds each element
    warp     array (rows, cols): warp that holds each element
    """
    out, base = [NO_LINE], thread[0, 0]
    for r in range(1, len(thread)):
        if (warp[r] != warp[r - 1]).all():
            out.append(HEAVY)
            base = thread[r, 0]
        else:
            out.append(MEDIUM if thread[r, 0] == base and thread[r - 1, 0] != base else NO_LINE)
    return tuple(out)
