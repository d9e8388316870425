"""Stores of whole tiles of D: from the accumulators to global memory.

The tile passes through shared memory, which is poisoned first, if the plan has shared memory for D. `values` computes
the epilogue.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cutegemm.dtypes import round_to
from cutegemm.layout import Layout
from cutegemm.plan.epilogue import Epilogue
from cutegemm.plan.memory.partials import in_units
from cutegemm.plan.plan import GemmPlan
from cutegemm.simulator.checks import misplaced
from cutegemm.simulator.copies import CtaGroup
from cutegemm.simulator.memory import GlobalMatrix, half_of, is_poison, poison
from cutegemm.simulator.reductions import reduced_results
from cutegemm.simulator.report import Report
from cutegemm.simulator.task import Task
from cutegemm.simulator.values import results
from cutegemm.tile.tiled_copy import TiledCopy


class TileStore:
    """Simulates stores of whole tiles of D, from registers or through shared memory, and checks each element.

    `write` applies the epilogue to the accumulators of some CTAs and stores the results. It counts how often each
    element of D is written.

    task       the simulation
    elements   position in the tile of the element of each accumulator. Axes: MMA atoms of a thread along M, the same
               along N, registers of an atom, threads
    apply      epilogue to apply to the accumulators; None: the plan's
    """

    def __init__(self, task: Task, elements: np.ndarray, apply: Epilogue | None = None) -> None:
        plan = task.plan
        self.plan, self.task, self.d = plan, task, task.matrices["d"]
        self.apply = plan.epilogue if apply is None else apply
        self.report, self.checked = task.report, task.checked
        self.written = np.zeros(len(self.d.buffer), np.uint16)
        self.aux, self.reduced = aux_outputs(task), reduced_results(task)
        self.vector = plan.store.atom.values
        bm = plan.cta_tile[0]
        self.shape, self.threads, self.major = elements.shape, elements.shape[3], plan.operands.d.major
        flat = elements.reshape(-1)
        self.sum_rows, self.sum_columns = flat % bm, flat // bm
        self.pairs: np.ndarray | None = None
        if plan.glu is not None:
            self.pairs, elements = _gates(plan, elements)
            self.shape, flat = elements.shape, elements.reshape(-1)
        lead = _leads(elements, self.vector, self.major).reshape(-1)
        self.rows, self.columns = flat % bm, flat // bm
        self.lead = (lead % bm, lead // bm)
        self.through = _Through(plan, plan.store.cta_copy) if plan.store.cta_copy is not None else None
        if self.through is not None and self.checked:
            self._check_places(self.through.accumulator_index(self.rows, self.columns))

    def write(self, accumulators: np.ndarray, group: CtaGroup) -> None:
        """Apply the epilogue to the accumulators of some CTAs, and store all results to simulated global memory.

        accumulators   axes: MMA atoms of a thread along M, the same along N, registers of an atom in all threads of all
                       CTAs (the CTA fastest)
        group          the CTAs, with their tile coordinates
        """
        m0, n0 = [at * step for at, step in zip((group.m_tile, group.n_tile), self.plan.d_tile, strict=True)]
        inside = self._is_inside(self.lead, group, m0, n0)
        totals = accumulators.reshape(-1, len(group))
        if self.pairs is not None:
            totals = totals[self.pairs]  # (2, gates, CTA)
        everything = bool(inside.all())
        where = slice(None) if everything else inside
        index_d = self._index(self.d, group, m0, n0)
        if self.checked and self.through is None:
            self._check_accesses(index_d, inside, group)
        tensors = {}
        for name in self.apply.tensors_read(self.task.scalars):
            matrix, by = self.task.matrices[name], self.plan.operands.matrix(name).gated
            halves = [half_of(matrix, by, which) for which in (0, 1)] if by else [matrix]
            read = []
            for half in halves:
                values, outside = half.read(self._index(half, group, m0, n0)[where])
                if outside is not None:
                    count = int(outside.sum())
                    self.report.add("outside", f"{matrix.name} is read at {count} offsets outside of it.")
                read.append(values)
            tensors[name] = np.stack(read) if by else read[0]
        result = self.plan.operands.d.dtype
        own = totals[where] if self.pairs is None else totals[:, where] if everything else totals[:, inside]
        computed = results(self.apply, own, self.task.scalars, tensors, result)
        for name, values in computed.items():
            if name in self.reduced:
                self._reduce(name, values, where, inside.shape, group)
            elif name != "d":
                self.aux[name].write(self._index(self.task.matrices[name], group, m0, n0)[where], values)
        out = round_to(result, computed["d"])
        threads = self.threads
        if self.through is not None:
            out, inside, index_d = self._through_shared(out, where, inside.shape, group, m0, n0)
            where, threads = inside, self.through.threads
            out = out[where]
        index = index_d[where]
        belongs = self.d.belongs(index)
        if belongs is not None:
            at = np.argwhere(inside)[~belongs.reshape(-1)]
            self.report.add_each("outside", at, lambda e: self._outside(e, group, m0, n0, threads))
            index, out = index[belongs], out[belongs]
        self.d.buffer[index] = out
        if self.checked:
            np.add.at(self.written, index.reshape(-1), 1)

    def _is_inside(
        self, lead: tuple[np.ndarray, np.ndarray], group: CtaGroup, m0: np.ndarray, n0: np.ndarray
    ) -> np.ndarray:
        """Return whether the first element of each access is inside of D: (elements, CTA).

        lead     row and column of that element in the tile, for each element
        m0, n0   row and column of each tile's first element: (CTA,)
        """
        rows, columns = (self.d.extent(mode, group.batch) for mode in (0, 1))
        out: np.ndarray = (lead[0][:, None] + m0 < rows) & (lead[1][:, None] + n0 < columns)
        return out

    def _reduce(self, name: str, values: np.ndarray, where: Any, shape: tuple[int, ...], group: CtaGroup) -> None:
        """Give the values of a tile to the simulated reduction called `name`, as an array over all accumulators.

        name     name of the reduction in the epilogue, such as "total"
        values   its values for the accumulators that are inside of D
        where    index that selects these accumulators: slice(None) for all, or a boolean array of shape `shape`. The
                 others count as 0 here; the reduction ignores them
        shape    (number of accumulators of a CTA, number of CTAs)
        group    the CTAs, with their tile coordinates
        """
        whole = np.zeros(shape, values.dtype)
        whole[where] = values.reshape(whole[where].shape)
        by_thread = whole.reshape(*self.shape, -1)  # (rest_m, rest_n, value, thread, CTA)
        self.reduced[name].write(in_units(self.plan, by_thread.transpose(3, 2, 0, 1, 4)), group)

    def _check_places(self, places: np.ndarray) -> None:
        """Add a fault to the report for each pair of elements of D's tile with the same offset in shared memory.

        places   shared-memory offset of each stored element
        """
        bm = self.plan.cta_tile[0]
        order = np.argsort(places, kind="stable")
        elements = self.rows + bm * self.columns

        def describe(position: int) -> str:
            first, second = (f"D(m {elements[i] % bm}, n {elements[i] // bm})" for i in order[position : position + 2])
            place = places[order[position]]
            return f"{first} and {second} of a tile have the same offset {place} in shared memory."

        self.report.add_each("shared", np.flatnonzero(np.diff(places[order]) == 0), describe)

    def _through_shared(
        self,
        out: np.ndarray,
        where: Any,
        shape: tuple[int, ...],
        group: CtaGroup,
        m0: np.ndarray,
        n0: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Simulate the way of D's tiles through shared memory: the writes by threads, and the reads by the copy to D.

        out       results for the accumulators that are inside of D
        where     index that selects these accumulators: slice(None) for all, or a boolean array of shape `shape`
        shape     (number of accumulators of a CTA, number of CTAs)
        group     the CTAs, with their tile coordinates
        m0, n0    row and column in D of each tile's first element: (CTAs,)
        returns   (values, inside, index) for the elements that the copy moves, each an array (elements, CTAs): their
                  values, whether they are inside of D, and their indices in D's memory
        """
        through = self.through
        assert through is not None
        kind = self.plan.operands.d.dtype
        whole = np.zeros(shape, out.dtype)
        whole[where] = out.reshape(whole[where].shape)
        shared = poison((through.elements, len(group)), kind)
        shared[through.accumulator_index(self.rows, self.columns)] = whole
        values = shared[through.read]
        inside = self._is_inside(through.lead, group, m0, n0)
        if self.checked:
            self.report.add_each(
                "hole", np.argwhere(is_poison(values) & inside),
                lambda at: f"{group.name(int(at[1]))}: the copy of D reads offset {through.read[at[0]]} of "
                "shared memory, which has not been written.",
            )  # fmt: skip
        start = self.d.base + self.d.addresses(m0, n0) + self.d.first(group.batch)
        index = self.d.addresses(through.rows, through.columns)[:, None] + start
        if self.checked:
            self._check_copied(through, index, inside, group)
        return values, inside, index

    def _check_copied(self, through: _Through, index: np.ndarray, inside: np.ndarray, group: CtaGroup) -> None:
        """Report accesses of the copy from shared memory to D whose elements are not contiguous and aligned in D.

        through   index tables of the copy
        index     index in D's memory of each of the E elements: (E, CTA)
        inside    which elements are inside of D, same shape
        group     the CTAs, for the message
        """
        count = through.vector
        if count == 1:
            return
        runs = np.moveaxis(index.reshape(-1, count, index.shape[1]), 1, 2)
        bad = misplaced(runs) & inside.reshape(-1, count, index.shape[1])[:, 0]
        self.report.add_each(
            "alignment", np.argwhere(bad),
            lambda at: f"{group.name(int(at[1]))}: {count} elements of D are stored at once to the addresses "
            f"{', '.join(str(int(x)) for x in runs[tuple(at)])}, which are not contiguous and aligned.",
        )  # fmt: skip

    def finish(self) -> None:
        """Report elements of D and of auxiliary outputs that were not written exactly once, after the last CTA."""
        check_written(self.d, self.written, self.report)
        for result in self.aux.values():
            result.finish()

    def _index(self, matrix: GlobalMatrix, group: CtaGroup, m0: np.ndarray, n0: np.ndarray) -> np.ndarray:
        """Return the index in a matrix's memory of the element that belongs to each accumulator: (accumulators, CTA).

        matrix   D, or an operand or result of the epilogue with its extents
        group    the CTAs, with the index of each one's batch
        m0, n0   row and column in D of each tile's first element: (CTA,)
        """
        start = matrix.base + matrix.addresses(m0, n0) + matrix.first(group.batch)
        index: np.ndarray = matrix.addresses(self.rows, self.columns)[:, None] + start
        return index

    def _check_accesses(self, index: np.ndarray, inside: np.ndarray, group: CtaGroup) -> None:
        """Report stores from registers whose elements are not contiguous and aligned in D.

        index    index in D's memory of each accumulator: (accumulators, CTA)
        inside   which accumulators are inside of D, same shape
        group    the CTAs, for the message
        """
        if self.vector == 1:
            return
        # (rest ..., thread, CTA, vector)
        accesses = _runs(index.reshape(*self.shape, -1), self.vector, self.major)
        bad = misplaced(accesses) & _runs(inside.reshape(*self.shape, -1), self.vector, self.major)[..., 0]
        if bad.any():
            self.report.add_each(
                "alignment",
                np.argwhere(bad),
                lambda at: (
                    f"{group.name(int(at[-1]))}: thread {int(at[-2])} stores {self.vector} elements of D at "
                    f"once to the addresses {', '.join(str(int(x)) for x in accesses[tuple(at)])}, which are "
                    "not contiguous and aligned."
                ),
            )

    def _outside(self, at: np.ndarray, group: CtaGroup, m0: np.ndarray, n0: np.ndarray, threads: int) -> str:
        """Return the text of a fault: a thread stores an element outside of D.

        at        indices of the stored element and of the CTA in the group
        group     the CTAs
        m0, n0    row and column in D of each tile's first element: (CTA,)
        threads   number of threads that store
        """
        entry, cta = (int(x) for x in at)
        table = self if self.through is None else self.through
        m, n = int(table.rows[entry] + m0[cta]), int(table.columns[entry] + n0[cta])
        extents = " x ".join(str(e) for e in self.d.extents[:2])
        thread = entry % threads if self.through is None else entry // (len(table.rows) // threads)
        who = f"{group.name(cta)}: thread {thread}"
        return f"{who} writes D(m {m}, n {n}) of a matrix of {extents}."


class _Through:
    """Index tables for the copy of a tile of D from shared to global memory by threads. It has E elements.

    elements        elements of shared memory
    read            shared-memory offset of each element: (E,), all of thread 0 first; the elements of an access are
                    adjacent
    rows, columns   row and column of each element in the tile: (E,)
    lead            (rows, columns) of the first element of the same access: two arrays (E,). The access is executed if
                    that element is inside of D
    vector          elements of an access
    threads         number of threads that copy
    """

    def __init__(self, plan: GemmPlan, copy: TiledCopy) -> None:
        (bm, bn), layout = plan.d_tile, plan.store.layout
        assert layout is not None
        self.vector, self.threads = copy.atom.values, copy.threads
        self.places, self.rows_of_tile = layout.offsets().reshape(-1), bm
        self.elements = int(layout.offsets().max()) + 1
        self.read = copy.offsets_s(layout).transpose(0, 2, 3, 1).reshape(-1)
        place = copy.offsets_d(Layout((bm, bn))).transpose(0, 2, 3, 1).reshape(-1)
        lead = place.reshape(-1, self.vector)[:, :1].repeat(self.vector, axis=1).reshape(-1)
        self.rows, self.columns = place % bm, place // bm
        self.lead = (lead % bm, lead // bm)

    def accumulator_index(self, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Return the shared-memory offsets where threads write elements of D's tile from their accumulators.

        rows, columns   integer arrays: coordinates of the elements in the tile
        """
        out: np.ndarray = self.places[rows + self.rows_of_tile * columns]
        return out


def _gates(plan: GemmPlan, elements: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return which accumulators are gate and up of the same element of D (gated epilogue), and where that element is.

    elements   position in the tile of each accumulator. Axes: MMA atoms of a thread along M, the same along N,
               registers of an atom, threads
    returns    (indices, positions). The indices, an array (2, pairs), are those of the gates and of their ups in the
               flattened `elements`. The positions are those of the pairs' elements in D's tile, with the axes of
               `elements`
    """
    glu, pairs, bm = plan.glu, plan.pairs, plan.cta_tile[0]
    assert glu is not None
    assert pairs is not None
    rest_m, rest_n, values, threads = elements.shape
    number = np.arange(elements.size).reshape(elements.shape).transpose(3, 2, 0, 1).reshape(threads, -1, order="F")
    half = (values // 2, rest_m, rest_n) if rest_n % 2 else (values, rest_m, rest_n // 2)
    shape = (threads, *half)
    pair = [number[:, list(own)].reshape(shape, order="F").transpose(2, 3, 1, 0) for own in (pairs.gates, pairs.ups)]
    element = elements.reshape(-1)[pair[0]]
    place = element % bm + bm * glu.d_column(element // bm)
    return np.stack([projection.reshape(-1) for projection in pair]), place


def _runs(table: np.ndarray, vector: int, major: str) -> np.ndarray:
    """Group an array over accumulators by the accesses that store them: add a last axis of `vector` entries.

    An access stores registers of one MMA atom if `vector` divides their number. Otherwise it stores registers of
    neighbouring atoms along D's contiguous mode.

    table    array with an entry for each accumulator. Axes: MMA atoms of a thread along M, the same along N, registers
             of an atom, threads, and perhaps more
    vector   number of elements that an access stores
    major    majorness of D: "m" or "n"
    """
    values = table.shape[2]
    axis = 2 if values % vector == 0 else (0 if major == "m" else 1)
    shape = (*table.shape[:axis], table.shape[axis] // vector, vector, *table.shape[axis + 1 :])
    return np.moveaxis(table.reshape(shape), axis + 1, -1)


def _leads(elements: np.ndarray, vector: int, major: str) -> np.ndarray:
    """Return, for each accumulator, the position in the tile of the first element of the access that stores it.

    An access is executed if its first element is inside of D.

    elements   position in the tile of each accumulator. Axes: MMA atoms of a thread along M, the same along N,
               registers of an atom, threads
    vector     number of elements that an access stores
    major      majorness of D: "m" or "n"
    """
    values = elements.shape[2]
    axis = 2 if values % vector == 0 else (0 if major == "m" else 1)
    first = np.arange(elements.shape[axis]) // vector * vector
    return np.take(elements, first, axis=axis)


class AuxOutput:
    """Simulates stores of an epilogue's auxiliary output, and counts the writes of each element.

    matrix   simulated global memory of the output
    report   collects faults
    """

    def __init__(self, matrix: GlobalMatrix, report: Report) -> None:
        self.matrix, self.report = matrix, report
        self.written = np.zeros(len(matrix.buffer), np.uint16)

    def write(self, index: np.ndarray, values: np.ndarray) -> None:
        """Round values to the type of this auxiliary output, and store them to its simulated memory.

        index    indices in the output's memory
        values   values to store, same shape
        """
        belongs = self.matrix.belongs(index)
        if belongs is not None:
            outside = int((~belongs).sum())
            self.report.add("outside", f"{self.matrix.name} is written at {outside} offsets outside of it.")
            index, values = index[belongs], values[belongs]
        self.matrix.buffer[index] = round_to(self.matrix.dtype, values)
        np.add.at(self.written, index.reshape(-1), 1)

    def finish(self) -> None:
        """Report elements of this auxiliary output that were not written exactly once. Called after the last CTA."""
        check_written(self.matrix, self.written, self.report)


def aux_outputs(task: Task) -> dict[str, AuxOutput]:
    """Return the memory of each auxiliary output, and of the scales of a quantized D, by the name of the result."""
    names = (*task.plan.epilogue.outputs[1:], *task.plan.epilogue.scales)
    return {name: AuxOutput(task.matrices[name], task.report) for name in names}


def check_written(d: GlobalMatrix, written: np.ndarray, report: Report) -> None:
    """Report elements of D, or of another result, that were not written as often as they must be: mostly once.

    d         simulated memory of the result
    written   number of writes of each element of this memory
    report    collects the faults
    """
    times = d.view(written)
    report.add_each(
        "result",
        np.argwhere(times != d.view(d.times)),
        lambda at: f"{d.name}(m {at[0]}, n {at[1]}, l {at[2]}) is written {int(times[tuple(at)])} times.",
    )
