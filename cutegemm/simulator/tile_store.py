"""How the tiles of D are stored: from the accumulators to global memory.

Directly, or where the plan has shared memory for D, through that, poisoned first. What becomes of the sums on the way
is `values`' matter.
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


class TileStore:
    """Writes the tiles of D and counts how often each element is written.

    held    (rest_m, rest_n, value, thread) element of the tile that each accumulator sums up
    apply   what becomes of the sums that it is given; the plan's epilogue where left out
    """

    def __init__(self, task: Task, held: np.ndarray, apply: Epilogue | None = None) -> None:
        plan = task.plan
        self.plan, self.task, self.d = plan, task, task.matrices["d"]
        self.apply = plan.epilogue if apply is None else apply
        self.report, self.checked = task.report, task.checked
        self.written = np.zeros(len(self.d.buffer), np.uint16)
        self.aux, self.reduced = aux_outputs(task), reduced_results(task)
        self.vector = plan.store_d.values
        bm = plan.cta_tile[0]
        self.shape, self.threads, self.major = held.shape, held.shape[3], plan.operands.d.major
        flat = held.reshape(-1)
        self.sum_rows, self.sum_columns = flat % bm, flat // bm
        self.pairs: np.ndarray | None = None
        if plan.glu is not None:
            self.pairs, held = _gates(plan, held)
            self.shape, flat = held.shape, held.reshape(-1)
        lead = _leads(held, self.vector, self.major).reshape(-1)
        self.rows, self.columns = flat % bm, flat // bm
        self.lead = (lead % bm, lead // bm)
        self.through = None if plan.smem_d is None else _Through(plan)
        if self.through is not None and self.checked:
            self._check_places(self.through.accumulator_index(self.rows, self.columns))

    def write(self, accumulators: np.ndarray, group: CtaGroup) -> None:
        """One group of CTAs: sums (rest_m, rest_n, value * thread * CTA)."""
        m0, n0 = [at * step for at, step in zip((group.m_tile, group.n_tile), self.plan.d_tile, strict=True)]
        inside = (self.lead[0][:, None] + m0 < self.d.extents[0]) & (self.lead[1][:, None] + n0 < self.d.extents[1])
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
            seen = [half_of(matrix, by, which) for which in (0, 1)] if by else [matrix]
            found = []
            for each in seen:
                values, outside = each.read(self._index(each, group, m0, n0)[where])
                if outside is not None:
                    count = int(outside.sum())
                    self.report.add("outside", f"{matrix.name} is read at {count} places that are not in it.")
                found.append(values)
            tensors[name] = np.stack(found) if by else found[0]
        result = self.plan.operands.d.dtype
        own = totals[where] if self.pairs is None else totals[:, where] if everything else totals[:, inside]
        of_all = results(self.apply, own, self.task.scalars, tensors, result)
        for name, values in of_all.items():
            if name in self.reduced:
                self._reduce(name, values, where, inside.shape, group)
            elif name != "d":
                self.aux[name].write(self._index(self.task.matrices[name], group, m0, n0)[where], values)
        out = round_to(result, of_all["d"])
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

    def _reduce(self, name: str, values: np.ndarray, where: Any, shape: tuple[int, ...], group: CtaGroup) -> None:
        """The values that a reduction takes; what lies outside of D is no value."""
        whole = np.zeros(shape, values.dtype)
        whole[where] = values.reshape(whole[where].shape)
        held = whole.reshape(*self.shape, -1)  # (rest_m, rest_n, value, thread, CTA)
        self.reduced[name].write(in_units(self.plan, held.transpose(3, 2, 0, 1, 4)), group)

    def _check_places(self, places: np.ndarray) -> None:
        """No two sums go to one place of shared memory."""
        bm = self.plan.cta_tile[0]
        order = np.argsort(places, kind="stable")
        held = self.rows + bm * self.columns

        def describe(position: int) -> str:
            first, second = (f"D(m {held[i] % bm}, n {held[i] // bm})" for i in order[position : position + 2])
            place = places[order[position]]
            return f"{first} and {second} of a tile lie at one place, {place}, of shared memory."

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
        """D's tiles to shared memory and out of it as the copy does: values, which are inside, addresses."""
        through = self.through
        assert through is not None
        kind = self.plan.operands.d.dtype
        whole = np.zeros(shape, out.dtype)
        whole[where] = out.reshape(whole[where].shape)
        shared = poison((through.elements, len(group)), kind)
        shared[through.accumulator_index(self.rows, self.columns)] = whole
        values = shared[through.read]
        inside = (through.lead[0][:, None] + m0 < self.d.extents[0]) & (
            through.lead[1][:, None] + n0 < self.d.extents[1]
        )
        if self.checked:
            self.report.add_each(
                "hole", np.argwhere(is_poison(values) & inside),
                lambda at: f"{group.name(int(at[1]))}: the copy of D reads place {through.read[at[0]]} of "
                "shared memory, to which nothing has been written.",
            )  # fmt: skip
        start = self.d.base + self.d.addresses(m0, n0) + group.batch * self.d.strides[2]
        index = self.d.addresses(through.rows, through.columns)[:, None] + start
        if self.checked:
            self._check_copied(through, index, inside, group)
        return values, inside, index

    def _check_copied(self, through: _Through, index: np.ndarray, inside: np.ndarray, group: CtaGroup) -> None:
        count = through.vector
        if count == 1:
            return
        runs = np.moveaxis(index.reshape(-1, count, index.shape[1]), 1, 2)
        bad = misplaced(runs) & inside.reshape(-1, count, index.shape[1])[:, 0]
        self.report.add_each(
            "alignment", np.argwhere(bad),
            lambda at: f"{group.name(int(at[1]))}: {count} elements of D are stored at once to the addresses "
            f"{', '.join(str(int(x)) for x in runs[tuple(at)])}, which are not {count} aligned neighbours.",
        )  # fmt: skip

    def finish(self) -> None:
        """After the last CTA."""
        check_written(self.d, self.written, self.report)
        for result in self.aux.values():
            result.finish()

    def _index(self, matrix: GlobalMatrix, group: CtaGroup, m0: np.ndarray, n0: np.ndarray) -> np.ndarray:
        start = matrix.base + matrix.addresses(m0, n0) + group.batch * matrix.strides[2]
        index: np.ndarray = matrix.addresses(self.rows, self.columns)[:, None] + start
        return index

    def _check_accesses(self, index: np.ndarray, inside: np.ndarray, group: CtaGroup) -> None:
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
                    f"not {self.vector} aligned neighbours."
                ),
            )

    def _outside(self, at: np.ndarray, group: CtaGroup, m0: np.ndarray, n0: np.ndarray, threads: int) -> str:
        entry, cta = (int(x) for x in at)
        table = self if self.through is None else self.through
        m, n = int(table.rows[entry] + m0[cta]), int(table.columns[entry] + n0[cta])
        extents = " x ".join(str(e) for e in self.d.extents[:2])
        thread = entry % threads if self.through is None else entry // (len(table.rows) // threads)
        who = f"{group.name(cta)}: thread {thread}"
        return f"{who} writes D(m {m}, n {n}) of a matrix of {extents}."


class _Through:
    """The tables of a D that passes through shared memory.

    elements        of shared memory
    read            (E,) where the copy reads; all of thread 0 first, the elements of an access together
    rows, columns   (E,) of the tile that these elements belong to, by which they are stored
    lead            rows and columns of the first element of each access, by which it is predicated
    vector          elements of an access
    threads         that copy
    """

    def __init__(self, plan: GemmPlan) -> None:
        assert plan.smem_d is not None
        assert plan.copy_d is not None
        bm, bn = plan.d_tile
        copy = plan.copy_d
        self.vector, self.threads = copy.atom.values, copy.threads
        self.places, self.rows_of_tile = plan.smem_d.offsets().reshape(-1), bm
        self.elements = int(plan.smem_d.offsets().max()) + 1
        self.read = copy.offsets_s(plan.smem_d).transpose(0, 2, 3, 1).reshape(-1)
        place = copy.offsets_d(Layout((bm, bn))).transpose(0, 2, 3, 1).reshape(-1)
        lead = place.reshape(-1, self.vector)[:, :1].repeat(self.vector, axis=1).reshape(-1)
        self.rows, self.columns = place % bm, place // bm
        self.lead = (lead % bm, lead // bm)

    def accumulator_index(self, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Where in shared memory what is D's element of these rows and columns of a tile is written."""
        out: np.ndarray = self.places[rows + self.rows_of_tile * columns]
        return out


def _gates(plan: GemmPlan, held: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(2, gates) the accumulators, as `held` counts them, that are gates and their ups; and (rest_m, rest_n, value,
    thread) the element of D's tile that each gate is for."""
    glu, pairs, bm = plan.glu, plan.pairs, plan.cta_tile[0]
    assert glu is not None
    assert pairs is not None
    rest_m, rest_n, values, threads = held.shape
    number = np.arange(held.size).reshape(held.shape).transpose(3, 2, 0, 1).reshape(threads, -1, order="F")
    half = (values // 2, rest_m, rest_n) if rest_n % 2 else (values, rest_m, rest_n // 2)
    shape = (threads, *half)
    both = [number[:, list(own)].reshape(shape, order="F").transpose(2, 3, 1, 0) for own in (pairs.gates, pairs.ups)]
    element = held.reshape(-1)[both[0]]
    place = element % bm + bm * glu.d_column(element // bm)
    return np.stack([each.reshape(-1) for each in both]), place


def _runs(table: np.ndarray, vector: int, major: str) -> np.ndarray:
    """(rest_m, rest_n, value, thread, ...) with what is stored at once along a last axis of its own.

    Values of an atom that lie side by side are stored together; else neighbours along D's contiguous mode.
    """
    values = table.shape[2]
    axis = 2 if values % vector == 0 else (0 if major == "m" else 1)
    shape = (*table.shape[:axis], table.shape[axis] // vector, vector, *table.shape[axis + 1 :])
    return np.moveaxis(table.reshape(shape), axis + 1, -1)


def _leads(held: np.ndarray, vector: int, major: str) -> np.ndarray:
    """For each accumulator the element that leads its access, by which it is predicated."""
    values = held.shape[2]
    axis = 2 if values % vector == 0 else (0 if major == "m" else 1)
    first = np.arange(held.shape[axis]) // vector * vector
    return np.take(held, first, axis=axis)


class AuxOutput:
    """A result of an epilogue beside D, which goes from registers straight to global memory."""

    def __init__(self, matrix: GlobalMatrix, report: Report) -> None:
        self.matrix, self.report = matrix, report
        self.written = np.zeros(len(matrix.buffer), np.uint16)

    def write(self, index: np.ndarray, values: np.ndarray) -> None:
        """Values to places of its memory, rounded to its type."""
        belongs = self.matrix.belongs(index)
        if belongs is not None:
            outside = int((~belongs).sum())
            self.report.add("outside", f"{self.matrix.name} is written at {outside} places that are not in it.")
            index, values = index[belongs], values[belongs]
        self.matrix.buffer[index] = round_to(self.matrix.dtype, values)
        np.add.at(self.written, index.reshape(-1), 1)

    def finish(self) -> None:
        """After the last CTA."""
        check_written(self.matrix, self.written, self.report)


def aux_outputs(task: Task) -> dict[str, AuxOutput]:
    """The results of a plan's epilogue beside D, by name."""
    names = task.plan.epilogue.outputs[1:]
    return {name: AuxOutput(task.matrices[name], task.report) for name in names}


def check_written(d: GlobalMatrix, written: np.ndarray, report: Report) -> None:
    """Each element of D, or of another result, must have been written once.

    written   how often each place of D's memory was
    """
    times = d.view(written)
    report.add_each(
        "result",
        np.argwhere(times != 1),
        lambda at: f"{d.name}(m {at[0]}, n {at[1]}, l {at[2]}) is written {int(times[tuple(at)])} times.",
    )
