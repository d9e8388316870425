"""Copies of A or B by threads, from global memory through shared memory to fragments, for many CTAs at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cutegemm.plan.program.thread_schedule import StageWatch, ThreadSchedule
from cutegemm.simulator.checks import misplaced
from cutegemm.simulator.memory import GlobalMatrix, is_poison, poison
from cutegemm.simulator.report import Report
from cutegemm.simulator.tables import OperandTables


@dataclass(frozen=True)
class CtaGroup:
    """CTAs that are simulated together, as numpy arrays with one entry for each CTA.

    position         index of the CTA in the order of the raster (the order in which tiles are assigned to CTAs)
    m_tile, n_tile   coordinates of its tile of D, counted in tiles
    batch            index of its matrix of the batch
    """

    position: np.ndarray
    m_tile: np.ndarray
    n_tile: np.ndarray
    batch: np.ndarray

    def name(self, index: int) -> str:
        """Return the name of one CTA of this group for messages, such as "CTA 3 of the tile (0, 1, 0)".

        index   index of the CTA in the group
        """
        at = ", ".join(str(int(x[index])) for x in (self.m_tile, self.n_tile, self.batch))
        return f"CTA {int(self.position[index])} of the tile ({at})"

    def __len__(self) -> int:
        return len(self.position)


class OperandFlow(StageWatch):
    """Simulates copies of A or B by threads, for C CTAs at once: from global memory to shared memory to fragments.

    The base class executes the schedule of the threads (loads, barriers, reads) and checks its order. It calls methods
    of this class, such as `fetched` when a load starts, which move the elements.

    tables     index tables of the operand: which element each thread copies, and the offset of its destination
    matrix     the matrix in global memory
    group      the C CTAs
    origin     first row of A (column of B) of each CTA's tile: (C,)
    ragged     CTAs with elements that no copy writes, whose shared memory is zeroed first: bool (C,)
    k_first    k of the first k-tile: 0, or negative if bK does not divide K
    schedule   steps of the threads for each k-tile
    k_tiles    number of k-tiles
    report     collects faults
    checked    whether to look for poisoned elements (read, but never written) and misaligned accesses
    k_step     distance of successive k-tiles, more than 1 for strided split-K
    """

    def __init__(
        self,
        tables: OperandTables,
        matrix: GlobalMatrix,
        group: CtaGroup,
        origin: np.ndarray,
        ragged: np.ndarray,
        k_first: int,
        schedule: ThreadSchedule,
        k_tiles: int,
        report: Report,
        checked: bool,
        k_step: int = 1,
    ) -> None:
        super().__init__(schedule, tables.is_async, k_tiles)
        self.k_step = k_step
        self.tables, self.matrix, self.group = tables, matrix, group
        self.k_first, self.report, self.checked = k_first, report, checked
        self.loaded_elems = 0
        t, ctas = tables, len(group)
        self.rows, self.ks = t.source % t.extent, t.source // t.extent
        self.lead_k = t.lead // t.extent
        self.origin = origin
        self.address = matrix.addresses(self.rows, self.ks)
        zero = np.zeros_like(origin)
        first = matrix.addresses(origin, zero) - matrix.addresses(zero, zero)
        self.start = matrix.base + first + matrix.first(group.batch)
        # (E, C): accesses whose first element is inside along M or N; None if all are
        within = matrix.has_row((t.lead % t.extent)[:, None] + origin, group.batch)
        self.within: np.ndarray | None = None if within.all() else within
        self.moving: dict[int, tuple[np.ndarray, np.ndarray | None]] = {}
        self.values = np.zeros((len(t.source), ctas), matrix.buffer.dtype)  # registers between load and store
        self.shared = poison((t.shared_elems, ctas), matrix.dtype)
        if t.is_async and ragged.any():
            self.shared[np.ix_(t.dest.reshape(-1), ragged)] = 0
        entries = t.fragment.shape[1]
        self.fragment_buffers = [poison((entries, ctas), matrix.dtype) for _ in range(schedule.fragments)]
        self.accesses_checked = False

    def fetched(self, tile: int) -> None:
        """Simulate the loads of one k-tile of A or B from global memory. Elements outside of the matrix are not read.

        tile   index of the k-tile
        """
        k_start = self.k_first + tile * self.k_step * self.tables.bk
        index = self.address[:, None] + (self.start + k_start * self.matrix.strides[1])
        mask = self.within
        if k_start < 0:
            inside = (self.lead_k + k_start >= 0)[:, None]
            mask = np.broadcast_to(inside, index.shape) if mask is None else mask & inside
        self.loaded_elems += index.size if mask is None else int(np.count_nonzero(mask))
        if self.checked:
            self._check_accesses(index, mask, k_start)
        if mask is None:
            values, outside = self.matrix.read(index)
        else:
            values = np.zeros(index.shape, self.values.dtype)
            some, outside_some = self.matrix.read(index[mask])
            values[mask] = some
            outside = None
            if outside_some is not None:
                outside = np.zeros(index.shape, bool)
                outside[mask] = outside_some
        if outside is not None:
            values[outside] = poison((), self.matrix.dtype)
            self.report.add_each("outside", np.argwhere(outside), lambda at: self._outside(at, k_start))
        if self.is_async:
            self.moving[tile] = (values, mask)
        else:
            self.values = values if mask is None else np.where(mask, values, self.values)

    def started(self, tile: int, stage: int) -> None:
        """Simulate the start of a copy to a stage of shared memory: fill the stage with poison (marked as not written).

        tile    index of the k-tile that is copied
        stage   index of the stage
        """
        if not self.is_async:
            self.moving[tile] = (self.values, None)
        self._write(stage, poison((), self.matrix.dtype), self.moving[tile][1])

    def shown(self, tile: int, stage: int) -> None:
        """Write a k-tile to its stage of simulated shared memory: from this step on, every thread may read the stage.

        tile    index of the k-tile
        stage   index of the stage
        """
        values, mask = self.moving.pop(tile)
        self._write(stage, values, mask)

    def _write(self, stage: int, values: np.ndarray, mask: np.ndarray | None) -> None:
        """Write elements of a k-tile to a stage of simulated shared memory.

        stage    index of the stage
        values   the E elements that a k-tile's copies move, for each of C CTAs: (E, C); or one value for all
        mask     booleans (E, C), true for elements that are written; None: all
        """
        dest = self.tables.dest[stage]
        self.shared[dest] = values if mask is None else np.where(mask, values, self.shared[dest])

    def read_into(self, tile: int, stage: int, k_block: int, buffer: int) -> None:
        """Copy the fragments of all threads for a k-block from a stage to registers, and report elements never written.

        tile      index of the k-tile
        stage     index of the stage
        k_block   index of the k-block: the part of the k-tile that one step of the MMA atom multiplies
        buffer    index of the fragment buffer in registers
        """
        if not 0 <= k_block < len(self.tables.read):
            return
        fragment = self.fragment_buffers[buffer]
        np.take(self.shared, self.tables.read[k_block, stage], axis=0, out=fragment, mode="clip")
        if self.checked:
            holes = is_poison(fragment)
            if holes.any():
                self.report.add_each("hole", np.argwhere(holes), lambda at: self._hole(at, tile, stage, k_block))

    def _check_accesses(self, index: np.ndarray, mask: np.ndarray | None, k_start: int) -> None:
        """Report accesses to global memory that are not aligned, or whose elements are not contiguous.

        Contiguity is checked for the first k-tile only.

        index     index in global memory of each of E elements that are read, for each of C CTAs: (E, C)
        mask      booleans (E, C), true for elements that are read; None: all
        k_start   k of the k-tile's first element
        """
        vector = self.tables.copy_vector
        if vector == 1:
            return
        runs = index.reshape(-1, vector, index.shape[1])
        if not self.accesses_checked:
            self.accesses_checked = True
            bad = misplaced(runs[:, :, 0] - runs[:, :1, 0])
            self.report.add_each("alignment", np.argwhere(bad)[:, 0], lambda run: self._torn(run))
        bad = runs[:, 0] % vector != 0
        if mask is not None:
            bad = bad & mask[::vector]
        if bad.any():
            self.report.add_each("alignment", np.argwhere(bad), lambda at: self._misaligned(at, k_start, runs))

    def _torn(self, run: int) -> str:
        """Return the text of a fault: one access of a thread covers elements that are not contiguous in global memory.

        run   index of the access among those of the copy
        """
        t, vector = self.tables, self.tables.copy_vector
        elements = ", ".join(t.element(p) for p in t.source[run * vector :][:vector])
        return (
            f"thread {t.copying_thread(run * vector)} reads {elements} at once, which are not contiguous in "
            "global memory."
        )

    def _misaligned(self, at: np.ndarray, k_start: int, runs: np.ndarray) -> str:
        """Return the text of a fault: an access to global memory is not aligned to its width.

        at        indices of the access and of the CTA
        k_start   k of the k-tile's first element
        runs      index in global memory of each element: (accesses, elements of an access, CTAs)
        """
        run, cta = (int(x) for x in at)
        t, vector = self.tables, self.tables.copy_vector
        return (
            f"{self.group.name(cta)}: thread {t.copying_thread(run * vector)} reads {vector} elements "
            f"at once from {self._global(run * vector, cta, k_start)}, whose address, element "
            f"{runs[run, 0, cta]}, is not a multiple of {vector}."
        )

    def _outside(self, at: np.ndarray, k_start: int) -> str:
        """Return the text of a fault: a thread reads an element outside of the matrix.

        at        index of the element among all that the copies move, and index of the CTA in the group
        k_start   k of the k-tile's first element
        """
        entry, cta = (int(x) for x in at)
        extents = " x ".join(str(e) for e in self.matrix.extents[:2])
        return (
            f"{self.group.name(cta)}: thread {self.tables.copying_thread(entry)} reads "
            f"{self._global(entry, cta, k_start)} of a matrix of {extents}."
        )

    def _global(self, entry: int, cta: int, k_start: int) -> str:
        """Return the name of an element of this operand for messages, such as "A(m 2, k 1)".

        entry     index of the element among all that the copies move
        cta       index of the CTA in the group
        k_start   k of the k-tile's first element
        """
        row, k = int(self.rows[entry] + self.origin[cta]), int(self.ks[entry]) + k_start
        return f"{self.tables.name}({self.tables.modes[0]} {row}, k {k})"

    def _hole(self, at: np.ndarray, tile: int, stage: int, k_block: int) -> str:
        """Return the text of a fault: a thread reads a fragment register from shared memory that was never written.

        at        index of the fragment register, and index of the CTA in the group
        tile      index of the k-tile
        stage     index of the stage
        k_block   index of the k-block
        """
        entry, cta = (int(x) for x in at)
        t = self.tables
        return (
            f"{self.group.name(cta)}: thread {entry % t.mma_threads} reads "
            f"{t.element(t.fragment[k_block, entry])} of k-tile {tile} from offset "
            f"{t.read[k_block, stage, entry]}, stage {stage}, which has not been written yet."
        )
