"""Who holds what: the elements of a tile with their threads and values."""

from __future__ import annotations

import numpy as np

from cutegemm.draw.grids import HEAVY, MEDIUM, NO_LINE, Grid, Legend, Picture, one_of, ticks_of
from cutegemm.draw.palette import HUES, SHADES
from cutegemm.errors import LayoutError
from cutegemm.layout import Layout
from cutegemm.machine.arch import WARP_THREADS

_LANES = Legend("lane", tuple((t, str(t)) for t in range(WARP_THREADS)))


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
    return thread, value, np.bincount((pairs // threads).astype(np.intp, copy=False), minlength=size)


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
    if not isinstance(layout_tv.shape, tuple) or len(layout_tv.shape) != 2:
        raise LayoutError(f"tv_picture: {layout_tv} has not the two modes (thread, value).")
    table = tv_table(layout_tv)
    grid = owner_grid(table, tile, title or "who holds what", str(layout_tv), names, colour_by(color, len(table)))
    return Picture(
        title or "thread-value layout", (grid,), str(layout_tv),
        legends=owner_legends(colour_by(color, len(table)), len(table)), notes=shared_note([grid]),
    )  # fmt: skip


def tv_table(layout_tv: Layout) -> np.ndarray:
    """(threads, values): the element that each holds."""
    return layout_tv.offsets().reshape(layout_tv[0].size(), -1, order="F")


def colour_by(color: str, threads: int) -> str:
    """What "auto" stands for: lanes of one warp, else warps."""
    one_of("color", color, ("auto", "lane", "warp", "none"))
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


def owner_legends(color: str, threads: int) -> tuple[Legend, ...]:
    """What the colours of lanes or warps say."""
    if color == "lane":
        return (Legend("lane", _LANES.entries[:threads]),)
    if color == "warp":
        warps = -(-threads // WARP_THREADS)
        return (Legend("warp", tuple((w % HUES * SHADES + 1, str(w)) for w in range(min(warps, 2 * HUES)))),)
    return ()


def shared_note(grids: list[Grid]) -> tuple[str, ...]:
    """The note that a "+" in a cell needs."""
    if any("+" in str(label) for grid in grids for label in grid.labels.flat):
        return ("T4+ is held by several threads, of whom the least is named.",)
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
        row_levels=repeats(thread, warp), col_levels=repeats(thread.T, warp.T),
        row_ticks=ticks_of(rows), col_ticks=ticks_of(cols),
        row_name=names[0], col_name=names[1],
        owners=(warp, thread) if many else (thread,), owner_names=("warp ", "T") if many else ("T",),
    )  # fmt: skip


def repeats(thread: np.ndarray, warp: np.ndarray) -> tuple[int, ...]:
    """HEAVY where every element goes to another warp, MEDIUM where the threads begin anew."""
    out, base = [NO_LINE], thread[0, 0]
    for r in range(1, len(thread)):
        if (warp[r] != warp[r - 1]).all():
            out.append(HEAVY)
            base = thread[r, 0]
        else:
            out.append(MEDIUM if thread[r, 0] == base and thread[r - 1, 0] != base else NO_LINE)
    return tuple(out)
