"""TMA on the CPU: boxes between global memory and a swizzled buffer in shared memory; also what threads store there."""

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
    """How a tile travels by TMA: E elements, all boxes of all CTAs that share it one after the other.

    name           of the operand, and `modes` of its tile
    tile           (X, Y) extents of the two modes
    x, y           (E,) coordinates in the tile
    dest           (copies, E) where the hardware has each in shared memory
    shared         (copies, X * Y) where the layout of shared memory has each, colexicographically
    shared_elems   elements of shared memory
    unit           elements that a store writes as a whole: those of 16 bytes, or of a thread's access
    inner          0 or 1: the contiguous mode
    who            TMA, or the copy by threads
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
        """An element of the tile in words."""
        x, y = int(place) % self.tile[0], int(place) // self.tile[0]
        return f"{self.name}({self.modes[0]} {x}, {self.modes[1]} {y})"

    @property
    def index(self) -> np.ndarray:
        """(E,) the colexicographic index in the tile."""
        return np.asarray(self.x + self.tile[0] * self.y)


def box_tables(
    name: str, modes: tuple[str, str], box: TmaBox, smem: SharedLayout, tile: tuple[int, int], inner: int
) -> BoxTables:
    """The tables of an operand, by the extents of its box and what the hardware does with its swizzle.

    A box begins where the plan's layout, unswizzled, has its first element; its rows follow one another, and
    the swizzle permutes the addresses.

    inner   0 or 1: the contiguous mode of the tile
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
    parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    for first in range(0, tile[1 - inner], rows):
        for start in range(0, tile[inner], width):
            corner = (start, first) if inner == 0 else (first, start)
            x, y = (start + along, first + across) if inner == 0 else (first + across, start + along)
            base = unswizzled[corner]  # (copies,)
            parts.append((x, y, bytewise(base[:, None] + in_box)))
    shared = smem.offsets().reshape((tile[0] * tile[1], copies), order="F").T
    dest = np.concatenate([p[2] for p in parts], axis=1)
    return BoxTables(
        name=name,
        modes=modes,
        tile=tile,
        x=np.concatenate([p[0] for p in parts]),
        y=np.concatenate([p[1] for p in parts]),
        dest=dest,
        shared=shared,
        shared_elems=int(max(shared.max(), dest.max())) + 1,
        unit=TMA_INNER_ALIGNED_BYTES * 8 // box.dtype.bits,
        inner=inner,
    )


def thread_tables(
    name: str, modes: tuple[str, str], copy: TiledCopy, smem: SharedLayout, tile: tuple[int, int], inner: int
) -> BoxTables:
    """The tables of tiles that threads copy from shared to global memory, access by access."""
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
    """Reports elements that no box moves, or several, and those that are not where the layout has them."""
    within = (t.x < t.tile[0]) & (t.y < t.tile[1])
    past = np.flatnonzero(~within)
    report.add_each("copy", past, lambda e: f"a box of {t.name} reaches ({t.x[e]}, {t.y[e]}), past a tile of {t.tile}.")
    times = np.bincount(t.index[within], minlength=t.tile[0] * t.tile[1])

    def moved(place: int) -> str:
        often = "by no box" if times[place] == 0 else f"by {times[place]} boxes"
        return f"{t.element(place)} of a tile is moved {often}."

    report.add_each("copy", np.flatnonzero(times != 1), moved)
    for copy, dest in enumerate(t.dest):
        wrong = np.flatnonzero(within)[dest[within] != t.shared[copy, t.index[within]]]

        def misplaced(e: int, copy: int = copy, dest: np.ndarray = dest) -> str:
            place = int(t.index[e])
            return (
                f"{t.who} has {t.element(place)} at place {dest[e]} of copy {copy}, the layout of shared memory "
                f"at {t.shared[copy, place]}."
            )

        def again(place: int, copy: int = copy) -> str:
            return f"{t.element(place)} of copy {copy} lies where another copy does."

        report.add_each("copy", wrong, misplaced)
        before = t.shared[:copy].reshape(-1)
        report.add_each("shared", np.flatnonzero(np.isin(t.shared[copy], before)), again)


class BoxFlow:
    """Tiles of one matrix for C CTAs at once, between global memory and buffers of their own.

    origin   (C,) coordinates of each CTA's tiles in the tile's modes that do not run over K
    """

    def __init__(self, tables: BoxTables, matrix: GlobalMatrix, group: CtaGroup, report: Report, checked: bool) -> None:
        self.tables, self.matrix, self.group = tables, matrix, group
        self.report, self.checked = report, checked
        self.shared = poison((tables.shared_elems, len(group)), matrix.dtype)
        self.loaded_elems = 0

    def load(self, origin: tuple[np.ndarray, np.ndarray], copy: int) -> None:
        """A tile at these coordinates, to a buffer; zeros for what lies outside."""
        t = self.tables
        x, y = self._coordinates(origin)
        inside = self.matrix.has_row(x) & (y < self.matrix.extents[1])
        index = self._index(x, y)
        self.loaded_elems += int(np.count_nonzero(inside))
        self.shared[t.dest[copy]] = np.where(inside, self.matrix.buffer[np.where(inside, index, 0)], 0)

    def read(self, copy: int) -> np.ndarray:
        """The values in a buffer, by the layout: (X, Y, C)."""
        t = self.tables
        held = self.shared[t.shared[copy]]
        if self.checked:
            holes = is_poison(held)
            if holes.any():
                self.report.add_each(
                    "hole",
                    np.argwhere(holes),
                    lambda at: f"{self.group.name(int(at[1]))}: {t.element(at[0])} is read, but nothing is there.",
                )
        return held.reshape((t.tile[1], t.tile[0], -1)).swapaxes(0, 1)

    def clear(self, copy: int) -> None:
        """Nothing lies in a buffer any more."""
        self.shared[self.tables.shared[copy]] = poison((), self.matrix.dtype)

    def store(self, origin: tuple[np.ndarray, np.ndarray], copy: int, written: np.ndarray) -> None:
        """A buffer to these coordinates: whole units of 16 bytes, those that begin inside.

        written   counts for each place of global memory
        """
        t = self.tables
        held = self.shared[t.dest[copy]]
        x, y = self._coordinates(origin)
        along, across = (x, y) if t.inner == 0 else (y, x)
        extents = self.matrix.extents
        inside = (along // t.unit * t.unit < extents[t.inner]) & (across < extents[1 - t.inner])
        index = self._index(x, y)
        holes = is_poison(held) & inside if self.checked else np.zeros(0, bool)
        if holes.any():
            self.report.add_each(
                "hole",
                np.argwhere(holes),
                lambda at: f"{self.group.name(int(at[1]))}: {t.element(t.index[at[0]])} is stored, but not written.",
            )
        at = index[inside]
        belongs = self.matrix.belongs(at)
        if belongs is not None:
            self.report.add_each(
                "outside",
                np.argwhere(inside)[~belongs],
                lambda e: (
                    f"{self.group.name(int(e[1]))}: {t.who} writes {t.element(t.index[e[0]])} of the tile, past "
                    f"the end of {self.matrix.name}: it writes whole {TMA_INNER_ALIGNED_BYTES} bytes."
                ),
            )
            at, values = at[belongs], held[inside][belongs]
        else:
            values = held[inside]
        self.matrix.buffer[at] = values
        np.add.at(written, at, 1)

    def _coordinates(self, origin: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        return self.tables.x[:, None] + origin[0], self.tables.y[:, None] + origin[1]

    def _index(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        out: np.ndarray = self.matrix.base + self.matrix.addresses(x, y) + self.group.batch * self.matrix.strides[2]
        return out
