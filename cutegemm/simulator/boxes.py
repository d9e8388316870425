"""TMA on the CPU: copies of boxes between global memory and a swizzled buffer in shared memory.

Copies by threads from an epilogue stage to global memory use the same classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cutegemm.layout import ComposedLayout, Layout, Swizzle
from cutegemm.layout.inttuple import product
from cutegemm.plan.shared import SharedLayout
from cutegemm.simulator.memory import GlobalMatrix, is_poison, poison
from cutegemm.simulator.report import Report
from cutegemm.tile.tiled_copy import TiledCopy
from cutegemm.tile.tma import TMA_INNER_ALIGNED_BYTES, TMA_SWIZZLES, TmaBox

if TYPE_CHECKING:
    from cutegemm.simulator.copies import CtaGroup


@dataclass(frozen=True)
class BoxTables:
    """Index tables for the copy of one tile between global and shared memory, by TMA or by threads.

    The tables have an entry for each of the E elements that the boxes of the tile move, one box after the other. The
    boxes of all CTAs that share the tile are included.

    name           name of the operand, such as "A"
    modes          names of the two modes of the tile, such as ("m", "k")
    tile           extents (X, Y) of the two modes
    x, y           coordinates of each element in the tile: two arrays (E,)
    dest           shared-memory offset where the copy puts each element, for each stage: (stages, E)
    shared         shared-memory offset where the plan's layout expects each element: (stages, X * Y), first mode
                   fastest
    shared_elems   elements of shared memory
    unit           number of elements that are stored together: those of 16 bytes, or of a thread's access
    inner          index of the contiguous mode, 0 or 1
    who            subject for messages: "TMA", or "the copy" for threads
    """

    name: str
    modes: tuple[str, str]
    tile: tuple[int, int]
    x: np.ndarray
    y: np.ndarray
    dest: np.ndarray
    shared: np.ndarray
    shared_elems: int
    unit: int
    inner: int
    who: str = "TMA"

    def element(self, place: int) -> str:
        """Return the printed name of an element of this tile for messages, such as "A(m 2, k 1)".

        place   index of the element in the tile, the first mode fastest: x + X * y
        """
        x, y = int(place) % self.tile[0], int(place) // self.tile[0]
        return f"{self.name}({self.modes[0]} {x}, {self.modes[1]} {y})"

    @property
    def index(self) -> np.ndarray:
        """Return the position x + X * y in the tile of each element that the boxes move, box after box: (E,)."""
        return np.asarray(self.x + self.tile[0] * self.y)


def box_tables(
    name: str, modes: tuple[str, str], box: TmaBox, smem: SharedLayout, tile: tuple[int, int], inner: int
) -> BoxTables:
    """Return the index tables of a tile that TMA copies, with each element at the offset where the hardware puts it.

    The rule: a box starts at the offset of its first element in the plan's layout, taken without swizzle. Its rows
    follow one another, and the box's swizzle permutes the addresses. So a layout that does not agree with the box is
    found.

    name    name of the operand
    modes   names of the two modes of its tile, such as ("m", "k")
    box     the TMA box
    smem    layout of shared memory in the plan
    tile    extents of the tile
    inner   index of the contiguous mode of the tile, 0 or 1

    The first elements of the second row of A, which has 64 elements, are moved by the 128-byte swizzle:

    >>> from cutegemm.build import sm90_plan
    >>> plan = sm90_plan()
    >>> tables = box_tables("A", ("m", "k"), plan.a.load, plan.a.smem, (128, 64), inner=1)
    >>> tables.dest[0, :4].tolist(), tables.dest[0, 64:68].tolist()
    ([0, 1, 2, 3], [72, 73, 74, 75])
    """
    outer_layout = smem.outer if isinstance(smem, ComposedLayout) else smem
    assert isinstance(outer_layout, Layout)
    width, rows = box.box
    in_box = np.arange(width * rows)
    along, across = in_box % width, in_box // width
    copies = product(smem.shape[2:])
    bits, _ = TMA_SWIZZLES[box.swizzle]
    bytewise = Swizzle(bits, 4, 3).recast(8, box.dtype.bits)
    unswizzled = outer_layout.offsets().reshape((*tile, copies), order="F")
    boxes: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    for first in range(0, tile[1 - inner], rows):
        for start in range(0, tile[inner], width):
            corner = (start, first) if inner == 0 else (first, start)
            x, y = (start + along, first + across) if inner == 0 else (first + across, start + along)
            base = unswizzled[corner]  # (copies,)
            boxes.append((x, y, bytewise(base[:, None] + in_box)))
    shared = smem.offsets().reshape((tile[0] * tile[1], copies), order="F").T
    dest = np.concatenate([b[2] for b in boxes], axis=1)
    return BoxTables(
        name=name,
        modes=modes,
        tile=tile,
        x=np.concatenate([b[0] for b in boxes]),
        y=np.concatenate([b[1] for b in boxes]),
        dest=dest,
        shared=shared,
        shared_elems=int(max(shared.max(), dest.max())) + 1,
        unit=TMA_INNER_ALIGNED_BYTES * 8 // box.dtype.bits,
        inner=inner,
    )


def thread_tables(
    name: str, modes: tuple[str, str], copy: TiledCopy, smem: SharedLayout, tile: tuple[int, int], inner: int
) -> BoxTables:
    """Return the index tables of a tile of D that threads copy from shared to global memory, access by access.

    name    name of the operand, such as "D"
    modes   names of the two modes of its tile, such as ("m", "n")
    copy    the tiled copy: which thread moves which elements
    smem    layout of the tile in shared memory
    tile    extents of the tile
    inner   index of the contiguous mode of the tile, 0 or 1
    """
    copies = product(smem.shape[2:])
    place = copy.offsets_d(Layout(tile)).reshape(-1)
    read = copy.offsets_s(smem)
    read = read.reshape((*read.shape[:4], copies), order="F").reshape(len(place), copies)
    shared = smem.offsets().reshape((tile[0] * tile[1], copies), order="F").T
    return BoxTables(
        name=name,
        modes=modes,
        tile=tile,
        x=place % tile[0],
        y=place // tile[0],
        dest=read.T,
        shared=shared,
        shared_elems=int(shared.max()) + 1,
        unit=copy.atom.values,
        inner=inner,
        who="the copy",
    )


def check_boxes(t: BoxTables, report: Report) -> None:
    """Report elements that TMA never copies, copies twice, or puts at another offset than the plan's layout says.

    t        index tables of the tile
    report   collects the faults
    """
    within = (t.x < t.tile[0]) & (t.y < t.tile[1])
    past = np.flatnonzero(~within)
    report.add_each("copy", past, lambda e: f"a box of {t.name} reaches ({t.x[e]}, {t.y[e]}), past a tile of {t.tile}.")
    times = np.bincount(t.index[within], minlength=t.tile[0] * t.tile[1])

    def moved(place: int) -> str:
        boxes = "no box" if times[place] == 0 else f"{times[place]} boxes"
        return f"{t.element(place)} of a tile is copied by {boxes}."

    report.add_each("copy", np.flatnonzero(times != 1), moved)
    for copy, dest in enumerate(t.dest):
        wrong = np.flatnonzero(within)[dest[within] != t.shared[copy, t.index[within]]]

        def misplaced(e: int, copy: int = copy, dest: np.ndarray = dest) -> str:
            place = int(t.index[e])
            return (
                f"{t.who} puts {t.element(place)} at offset {dest[e]} of copy {copy}; the layout of shared memory has "
                f"it at {t.shared[copy, place]}."
            )

        def again(place: int, copy: int = copy) -> str:
            return f"{t.element(place)} of copy {copy} overlaps another copy."

        report.add_each("copy", wrong, misplaced)
        before = t.shared[:copy].reshape(-1)
        report.add_each("shared", np.flatnonzero(np.isin(t.shared[copy], before)), again)


class BoxFlow:
    """Simulates TMA copies of tiles between a matrix in global memory and stages in shared memory, for C CTAs at once.

    `load` copies a tile to a stage of each CTA, `read` returns a stage's elements, `store` copies a stage to the
    matrix.

    tables    index tables of the tile
    matrix    the matrix in global memory
    group     the C CTAs, with their tile coordinates
    report    collects faults
    checked   whether to look for faults
    """

    def __init__(self, tables: BoxTables, matrix: GlobalMatrix, group: CtaGroup, report: Report, checked: bool) -> None:
        self.tables, self.matrix, self.group = tables, matrix, group
        self.report, self.checked = report, checked
        self.shared = poison((tables.shared_elems, len(group)), matrix.dtype)
        self.loaded_elems = 0

    def load(self, origin: tuple[np.ndarray, np.ndarray], copy: int, sources: np.ndarray | None = None) -> None:
        """Load the tile of each CTA from global memory to one stage of its shared memory.

        Elements outside of the matrix become 0.

        origin    coordinates of the first element of each CTA's tile: two arrays (C,)
        copy      index of the stage
        sources   (X, C) row of the matrix for each row of the tile of each CTA; None: rows follow the first
        """
        t = self.tables
        x, y = self._coordinates(origin)
        if sources is not None:
            x = sources[t.x]
        batch = self.group.batch
        inside = (x >= 0) & self.matrix.has_row(x, batch) & (y < self.matrix.extent(1, batch))
        index = self._index(x, y)
        self.loaded_elems += int(np.count_nonzero(inside))
        self.shared[t.dest[copy]] = np.where(inside, self.matrix.buffer[np.where(inside, index, 0)], 0)

    def read(self, copy: int) -> np.ndarray:
        """Return the elements of one stage, found by the plan's layout of shared memory: (X, Y, C).

        X and Y are the extents of the tile, C is the number of CTAs. Elements that were never written are reported.

        copy   index of the stage
        """
        t = self.tables
        values = self.shared[t.shared[copy]]
        if self.checked:
            holes = is_poison(values)
            if holes.any():
                self.report.add_each(
                    "hole",
                    np.argwhere(holes),
                    lambda at: f"{self.group.name(int(at[1]))}: {t.element(at[0])} is read, but never written.",
                )
        return values.reshape((t.tile[1], t.tile[0], -1)).swapaxes(0, 1)

    def clear(self, copy: int) -> None:
        """Poison one stage of all CTAs: fill it with values that mark memory that was never written.

        copy   index of the stage
        """
        self.shared[self.tables.shared[copy]] = poison((), self.matrix.dtype)

    def store(
        self,
        origin: tuple[np.ndarray, np.ndarray],
        copy: int,
        written: np.ndarray,
        targets: np.ndarray | None = None,
    ) -> None:
        """Store one stage of each CTA to its tile in global memory, in whole units, as the hardware does.

        A unit (16 bytes for TMA, one access for threads) is written as a whole if its first element is inside of the
        matrix. Elements that were never written, and writes outside of the matrix, are reported.

        origin    coordinates of the first element of each CTA's tile: two arrays (C,)
        copy      index of the stage
        written   number of writes of each element of global memory, which is incremented
        targets   (rows, C) row of the matrix that each row of the tile of each CTA is added to; None: rows follow the
                  first, and are stored
        """
        t = self.tables
        values = self.shared[t.dest[copy]]
        x, y = self._coordinates(origin)
        if targets is not None:
            x, y = (x, targets[t.y]) if t.inner == 0 else (targets[t.x], y)
        along, across = (x, y) if t.inner == 0 else (y, x)
        extents = [self.matrix.extent(mode, self.group.batch) for mode in (0, 1)]
        inside = (along // t.unit * t.unit < extents[t.inner]) & (across >= 0) & (across < extents[1 - t.inner])
        index = self._index(x, y)
        holes = is_poison(values) & inside if self.checked else np.zeros(0, bool)
        if holes.any():
            self.report.add_each(
                "hole",
                np.argwhere(holes),
                lambda at: f"{self.group.name(int(at[1]))}: {t.element(t.index[at[0]])} is stored, but never written.",
            )
        at = index[inside]
        belongs = self.matrix.belongs(at)
        if belongs is not None:
            self.report.add_each(
                "outside",
                np.argwhere(inside)[~belongs],
                lambda e: (
                    f"{self.group.name(int(e[1]))}: {t.who} writes {t.element(t.index[e[0]])} of the tile, past "
                    f"the end of {self.matrix.name}, because it writes units of {TMA_INNER_ALIGNED_BYTES} bytes."
                ),
            )
            at, stored = at[belongs], values[inside][belongs]
        else:
            stored = values[inside]
        if targets is None:
            self.matrix.buffer[at] = stored
        else:
            self.matrix.add(at, stored)
        np.add.at(written, at, 1)

    def _coordinates(self, origin: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Return the matrix coordinates (x, y) of each element that the boxes move, for each CTA: two arrays (E, C).

        origin   coordinates of the first element of each CTA's tile: two arrays (C,)
        """
        return self.tables.x[:, None] + origin[0], self.tables.y[:, None] + origin[1]

    def _index(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return the index in simulated global memory of matrix elements, in the batch of each CTA: (elements, CTAs).

        x, y   coordinates of the elements in the matrix: (elements, CTAs)
        """
        out: np.ndarray = self.matrix.base + self.matrix.addresses(x, y) + self.matrix.first(self.group.batch)
        return out
