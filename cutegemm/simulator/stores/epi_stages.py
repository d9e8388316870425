"""Stores of D through epilogue stages on the CPU, one epilogue tile at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from cutegemm.dtypes import round_to
from cutegemm.layout import Layout
from cutegemm.plan.epilogue import Epilogue
from cutegemm.plan.glu import Glu
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import D_INDEX
from cutegemm.plan.store import staged
from cutegemm.plan.warp_roles import warp_roles
from cutegemm.simulator.boxes import BoxFlow, BoxTables, box_tables, check_boxes, thread_tables
from cutegemm.simulator.checks import misplaced
from cutegemm.simulator.copies import CtaGroup
from cutegemm.simulator.memory import GlobalMatrix, half_of
from cutegemm.simulator.reductions import reduced_results
from cutegemm.simulator.report import Report
from cutegemm.simulator.stores.tile_store import aux_outputs, check_written
from cutegemm.simulator.task import Task
from cutegemm.simulator.values import evaluate, results
from cutegemm.tile.tiled_copy import TiledCopy


class EpiStageStorage:
    """Simulates stores of D through epilogue stages (shared memory for parts of a tile), and checks each element.

    It evaluates the epilogue for one epilogue tile at a time, and counts how often each element of D is written.

    elements   attribute: position in the consumer's tile of the element that each register accumulates, (consumers,
               threads, registers), in register order. For a gated epilogue only the gate projections
    ups        attribute: the same for the up projections; None if the epilogue is not gated
    """

    def __init__(self, task: Task) -> None:
        plan, report = task.plan, task.report
        self.plan, self.store = plan, staged(plan)
        self.d, self.fetched = task.matrices["d"], task.matrices.get(plan.fetched_tile)
        self.task, self.report, self.checked = task, report, task.checked
        self.written = np.zeros(len(self.d.buffer), np.uint16)
        self.aux, self.reduced = aux_outputs(task), reduced_results(task)
        self.waiting: dict[tuple[int, ...], list[dict[str, np.ndarray]]] = {}  # values to reduce later, by tile
        self.elements = consumer_elements(plan, report)
        self.ups: np.ndarray | None = None
        if plan.glu is not None:
            self.ups = self.elements[:, :, list(plan.stored_pairs.ups)]
            self.elements = self.elements[:, :, list(plan.stored_pairs.gates)]
        inner = 1 if plan.operands.d.major == "n" else 0
        epi_tile, smem = self.store.epi_tile, self.store.smem
        tables: Any = box_tables if self.store.stored_by_tma else thread_tables
        self.stores: BoxTables = tables("D", ("m", "n"), self.store.to_global, smem, epi_tile, inner)
        self.loads: BoxTables | None = None
        if self.store.fetched is not None:
            name = plan.fetched_tile.upper()
            self.loads = box_tables(name, ("m", "n"), self.store.fetched, smem, epi_tile, inner)
        # Element of the epilogue tile that each register holds: (threads, registers of an epilogue tile)
        self.moved = _registers(self.store.to_shared, Layout(epi_tile))
        self.place = self._places()
        if self.checked:
            self._check()

    def _places(self) -> np.ndarray:
        """Return the shared-memory offset of each element of an epilogue tile: (epilogue stages * consumers, elements).

        An entry is -1 if no register is copied to that element.
        """
        copy, epi_tile = self.store.to_shared, self.store.epi_tile
        elements = copy.offsets_d(Layout(epi_tile)).reshape(-1)
        offsets = copy.offsets_d(self.store.smem)  # (threads, values, rest_m, rest_n, epilogue stages, consumers)
        tables = offsets.reshape((*offsets.shape[:4], -1), order="F")
        flat = np.moveaxis(tables, -1, 0).reshape(tables.shape[-1], -1)
        out = np.full((flat.shape[0], epi_tile[0] * epi_tile[1]), -1)
        out[:, elements] = flat
        return out

    def _check(self) -> None:
        """Report lost, misplaced or misaligned elements in the copies of an epilogue tile to and from shared memory."""
        check_boxes(self.stores, self.report)
        if self.loads is not None:
            check_boxes(self.loads, self.report)
        report, epi_tile = self.report, self.store.epi_tile
        lost = np.flatnonzero((self.place < 0).any(axis=0))
        report.add_each(
            "copy", lost, lambda e: f"{self.stores.element(e)} of an epilogue tile is written to no epilogue stage."
        )
        vector = self.store.to_shared.atom.aligned_bytes * 8 // self.plan.operands.d.dtype.bits
        rows = self.store.to_shared.offsets_d(self.store.smem)
        runs = np.moveaxis(rows, 1, -1)
        if vector > 1 and runs.shape[-1] % vector == 0:
            bad = misplaced(runs.reshape(*runs.shape[:-1], -1, vector))
            report.add_each(
                "alignment",
                np.argwhere(bad),
                lambda at: (
                    f"thread {int(at[0])} writes a row to an epilogue stage that is not {vector} contiguous, aligned "
                    "elements."
                ),
            )
        # The registers that the copy takes for an epilogue tile must be the next ones of the accumulators
        down, across = self.store.epi_tiles(self.plan.consumer_d_tile)
        per = self.moved.shape[1]
        for consumer, elements in enumerate(self.elements):
            for i in range(down * across):
                own = self.place_in_d(elements[:, i * per : (i + 1) * per])
                origin = self._origin(i)
                want = self._in_tile(self.moved % epi_tile[0] + origin[0], self.moved // epi_tile[0] + origin[1])

                def other(at: np.ndarray, i: int = i, own: np.ndarray = own, consumer: int = consumer) -> str:
                    return (
                        f"thread {int(at[0])} of consumer {consumer} stores as "
                        f"{self.stores.element(self.moved[tuple(at)])} of epilogue tile {i} the accumulator of "
                        f"element {own[tuple(at)]} of its tile."
                    )

                report.add_each("fragment", np.argwhere(own != want), other)

    def _origin(self, i: int) -> tuple[int, int]:
        """Return the (row, column) of the first element of the i-th epilogue tile in the consumer's tile."""
        m, n = self.store.epi_tile_at(i, self.plan.consumer_d_tile)
        return m * self.store.epi_tile[0], n * self.store.epi_tile[1]

    def _in_tile(self, m: np.ndarray, n: np.ndarray) -> np.ndarray:
        """Return the index in the consumer's tile of the element in row m and column n: m + rows * n.

        m, n   integer arrays: coordinates in the consumer's tile
        """
        out: np.ndarray = m + self.plan.consumer_tile[0] * n
        return out

    def place_in_d(self, elements: np.ndarray) -> np.ndarray:
        """Return the position in the consumer's tile of D of the element that each accumulator contributes to.

        Without a gated epilogue (GLU) it is the position of the accumulator. With one, a gate and an up projection
        contribute to the same element, and D has half as many columns.

        elements   positions m + rows * n of accumulators in the consumer's tile
        """
        (rows, columns), glu = self.plan.consumer_tile, self.plan.glu
        if glu is None:
            return elements
        # The tile of a consumer may be narrower than a block of columns.
        own = Glu(glu.by, min(glu.block, columns // 2), columns)
        return elements % rows + rows * own.d_column(elements // rows)

    def registers(self, accumulators: np.ndarray, consumer: int) -> np.ndarray:
        """Return the accumulators of a consumer in the order of its threads' registers: (CTAs, threads, registers).

        For a gated epilogue (GLU) the shape is (2, CTAs, threads, registers): gate and up projections.

        accumulators   tile of the consumer: (CTAs, M, N)
        consumer       index of the consumer
        """
        rows = self.plan.consumer_tile[0]
        elements = (
            self.elements[consumer] if self.ups is None else np.stack([self.elements[consumer], self.ups[consumer]])
        )
        out: np.ndarray = np.moveaxis(accumulators[:, elements % rows, elements // rows], 0, -3)
        return out

    def head(self, registers: np.ndarray) -> np.ndarray:
        """Evaluate the epilogue's head, the leading scaling such as alpha * acc, on the accumulators of a tile.

        registers   accumulators as the method `registers` returns them
        returns     values of the same shape
        """
        return evaluate(self.plan.head, registers, self.task.scalars, {}, self.plan.operands.d.dtype)

    def tail(
        self, registers: np.ndarray, i: int, group: CtaGroup, fetched: np.ndarray | None = None
    ) -> dict[str, np.ndarray]:
        """Evaluate the epilogue after its leading scaling on one epilogue tile, and return the rounded results.

        registers   values after the leading scaling: (..., C, threads, registers)
        i           index of the epilogue tile in the consumer's tile
        group       the C simulated CTAs, with the coordinates of each one's tile, counted in tiles of a consumer
        fetched     elements of the M x N operand that TMA loaded to the epilogue stage: (threads, registers, C); None
                    if TMA loads none
        returns     name of a result -> array (C, threads, registers of an epilogue tile)
        """
        out = self.evaluated(self.plan.tail, registers, i, group, fetched)
        return {name: round_to(self.plan.operands.matrix(name).dtype, values) for name, values in out.items()}

    def evaluated(
        self, epilogue: Epilogue, registers: np.ndarray, i: int, group: CtaGroup, fetched: np.ndarray | None = None
    ) -> dict[str, np.ndarray]:
        """Evaluate an epilogue on one epilogue tile, and return its results by name, before they are rounded.

        epilogue    what to evaluate
        registers   values that stand for the accumulator: (..., C, threads, registers)
        i           index of the epilogue tile in the consumer's tile
        group       the C simulated CTAs, with the coordinates of each one's tile, counted in tiles of a consumer
        fetched     elements of the M x N operand that TMA loaded to the epilogue stage: (threads, registers, C); None
                    if TMA loads none
        """
        per, kind = self.moved.shape[1], self.plan.operands.d.dtype
        operands = {} if fetched is None else {self.plan.fetched_tile: fetched}
        for name in epilogue.tensors_read(self.task.scalars):
            if name not in operands:
                operands[name] = self._operand(name, self.at(group, i), group)
        tensors = {name: np.moveaxis(values, -1, -3) for name, values in operands.items()}
        own = registers[..., i * per : (i + 1) * per]
        return results(epilogue, own, self.task.scalars, tensors, kind)

    def store_aux(self, values: dict[str, np.ndarray], i: int, group: CtaGroup) -> None:
        """Store the auxiliary outputs of the i-th epilogue tile from registers to simulated global memory.

        values   name of a result -> array (CTAs, threads, registers of an epilogue tile)
        i        index of the epilogue tile in the consumer's tile
        group    the simulated CTAs, with the coordinates of each one's tile, counted in tiles of a consumer
        """
        for name in self.plan.aux_outputs:
            result = self.aux[name]
            inside, index = self._places_in(result.matrix, self.at(group, i), group)
            result.write(index[inside], np.moveaxis(values[name], 0, 2)[inside])

    def reduce(self, values: dict[str, np.ndarray], i: int, group: CtaGroup) -> None:
        """Collect the values of one epilogue tile for the epilogue's reductions (sums and maxima).

        With the last epilogue tile of a tile, the tile's partial results are written.

        values   name of a result -> array (CTAs, threads, registers of an epilogue tile)
        i        index of the epilogue tile in the consumer's tile
        group    the simulated CTAs, with the coordinates of each one's tile, counted in tiles of a consumer
        """
        if not self.reduced:
            return
        key = tuple([int(x[0]) for x in (group.position, group.m_tile, group.n_tile, group.batch)])
        waiting = self.waiting.setdefault(key, [])
        waiting.append(values)
        down, across = self.store.epi_tiles(self.plan.consumer_d_tile)
        if i + 1 < down * across:
            return
        del self.waiting[key]
        tile, rows = self.plan.tile_of_own((group.m_tile, group.n_tile, group.batch))
        for name, result in self.reduced.items():
            joined = np.concatenate([one[name] for one in waiting], axis=2)  # (C, threads, registers)
            by_thread, whole = np.moveaxis(joined, 0, 2)[:, None], CtaGroup(group.position, *tile)
            first = int(rows[0]) * by_thread.shape[0]
            result.write(by_thread, whole, first)

    def at(self, group: CtaGroup, i: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the row and the column in D of the first element of the i-th epilogue tile: two arrays (CTAs,).

        group   the simulated CTAs, with the coordinates of each one's tile, counted in tiles of a consumer
        i       index of the epilogue tile in the consumer's tile
        """
        origin = self._origin(i)
        rows, columns = self.plan.consumer_d_tile
        if self.plan.operands.gated:  # the columns of a consumer's tile of D are contiguous
            return group.m_tile * rows + origin[0], group.n_tile * columns + origin[1]
        return group.m_tile * rows + origin[0], self.plan.column_of(group.n_tile, origin[1])

    def targets(self, origin: tuple[np.ndarray, np.ndarray], group: CtaGroup) -> np.ndarray | None:
        """Return the row of D that each row of an epilogue tile is added to: (rows, CTAs); None if D is stored.

        It is -1 for rows after the last one of the CTA's group.

        origin   row and column of the epilogue tile's first element in the CTA's group: two arrays (CTAs,)
        """
        if not self.plan.operands.scattered:
            return None
        mode = "mn".index(self.plan.operands.groups)
        return self.task.matrices[D_INDEX].selected(origin[mode], self.store.epi_tile[mode], group.batch)

    def flows(self, group: CtaGroup) -> tuple[BoxFlow, BoxFlow | None]:
        """Return (copy that stores D, copy that loads C or another M x N operand) through some CTAs' epilogue stages.

        The second one is None if TMA loads no operand. Both use the same simulated shared memory.

        group   the simulated CTAs, with the coordinates of each one's tile, counted in tiles of a consumer
        """
        stores = BoxFlow(self.stores, self.d, group, self.report, self.checked)
        if self.fetched is None or self.loads is None:
            return stores, None
        loads = BoxFlow(self.loads, self.fetched, group, self.report, self.checked)
        loads.shared = stores.shared
        return stores, loads

    def flow_of(self, result: str, stores: BoxFlow, group: CtaGroup) -> BoxFlow:
        """Return an object that simulates the stores of an auxiliary output, through the same shared memory as D.

        result   name of the auxiliary output
        stores   the object that simulates the stores of D
        group    the simulated CTAs, with the coordinates of each one's tile, counted in tiles of a consumer
        """
        flow = BoxFlow(self.stores, self.task.matrices[result], group, self.report, self.checked)
        flow.shared = stores.shared
        return flow

    def in_epi_stage(self, epi_stage: int) -> np.ndarray:
        """Return the shared-memory offset that each register of an epilogue tile is written to: (threads, registers).

        epi_stage   index of the epilogue stage among those of all consumers
        """
        out: np.ndarray = self.place[epi_stage][self.moved]
        return out

    def _places_in(
        self, matrix: GlobalMatrix, origin: tuple[np.ndarray, np.ndarray], group: CtaGroup
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return (whether the element of each register is inside of a matrix, its index in the matrix's memory).

        Both are arrays (threads, registers, C).

        matrix   the matrix in global memory
        origin   row and column in D of the epilogue tile's first element, for each CTA: two arrays (C,)
        group    the C CTAs, with the index of each one's batch
        """
        rows = self.store.epi_tile[0]
        m, n = (self.moved % rows)[..., None] + origin[0], (self.moved // rows)[..., None] + origin[1]
        inside = (m < matrix.extent(0, group.batch)) & (n < matrix.extent(1, group.batch))
        return inside, matrix.base + matrix.addresses(m, n) + matrix.first(group.batch)

    def _operand(self, name: str, origin: tuple[np.ndarray, np.ndarray], group: CtaGroup) -> np.ndarray:
        """Read the elements of an epilogue operand, such as a bias, for one epilogue tile of each CTA.

        name      name of the operand
        origin    row and column in D of the epilogue tile's first element, for each CTA: two arrays (CTAs,)
        group     the CTAs, with the index of each one's batch
        returns   array (threads, registers, CTAs). For a row vector of a gated epilogue, with elements for gate and up
                  columns, (2, threads, registers, CTAs): first those for gates, then those for ups
        """
        matrix, by = self.task.matrices[name], self.plan.operands.matrix(name).gated
        if not by:
            return self._straight(matrix, origin, group)
        return np.stack([self._straight(half_of(matrix, by, which), origin, group) for which in (0, 1)])

    def _straight(self, matrix: GlobalMatrix, origin: tuple[np.ndarray, np.ndarray], group: CtaGroup) -> np.ndarray:
        """Read, for each register, the matrix element at its row and column in D: (threads, registers, CTAs).

        The register's place in the epilogue tile, added to the tile's origin, gives row and column. Elements outside of
        the matrix are 0.

        matrix   a matrix with the extents of D, or a row or column with strides of 0
        origin   row and column in D of the epilogue tile's first element, for each CTA: two arrays (CTAs,)
        group    the CTAs, with the index of each one's batch
        """
        inside, index = self._places_in(matrix, origin, group)
        out = np.zeros(index.shape, matrix.buffer.dtype)
        out[inside], outside = matrix.read(index[inside])
        if outside is not None:
            self.report.add("outside", f"{matrix.name} is read at {int(outside.sum())} offsets outside of it.")
        return out

    def finish(self) -> None:
        """Report elements of D and of auxiliary outputs that were not written exactly once, after the last CTA."""
        check_written(self.d, self.written, self.report)
        for result in self.aux.values():
            result.finish()


def _registers(copy: TiledCopy, tile: Layout) -> np.ndarray:
    """Return the position in a tile of the element that each register of a thread holds: (threads, registers).

    copy   tiled copy from registers, which says which thread has which elements
    tile   layout of the tile: coordinates -> position
    """
    table = copy.offsets_s(tile)
    return table.reshape(table.shape[0], -1, order="F")


def consumer_elements(plan: GemmPlan, report: Report) -> np.ndarray:
    """Return which element of its consumer's tile each register accumulates: (consumers, threads, registers).

    An entry is m + rows * n for row m and column n of the tile. Elements outside of the consumer's tile are reported.

    >>> from cutegemm.build import sm90_plan
    >>> consumer_elements(sm90_plan(), Report()).shape
    (2, 128, 128)
    """
    pipeline, mma = warp_roles(plan), plan.epilogue_mma
    bm, bn, _ = plan.cta_tile
    rows, columns = pipeline.consumer_tile
    table = mma.offsets_c(Layout((bm, bn)))  # (threads, values, rest_m, rest_n)
    flat = np.empty((table.shape[0], table[0].size), table.dtype)
    flat[:, plan.accumulator_registers] = table.reshape(flat.shape, order="F")
    if pipeline.kind == "pingpong":
        return np.broadcast_to(flat, (pipeline.consumers, *flat.shape))
    own = flat.reshape(pipeline.consumers, -1, flat.shape[1])
    consumer, across = np.arange(pipeline.consumers)[:, None, None], bn // columns
    place = np.full((across, bn), -1)
    for i in range(across):
        place[i, plan.column_of(i, np.arange(columns))] = np.arange(columns)
    m, n = own % bm - consumer // across * rows, place[consumer % across, own // bm]
    outside = (m < 0) | (m >= rows) | (n < 0)
    report.add_each(
        "product",
        np.argwhere(outside),
        lambda at: f"thread {int(at[1])} of consumer {int(at[0])} accumulates elements outside of the consumer's tile.",
    )
    return np.where(outside, 0, m + rows * n)
