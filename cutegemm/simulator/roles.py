"""Simulation of plans with warp roles: the programs of the roles are executed with data.

`protocol.machine` executes the operations of the programs and checks the barriers. `Player` extends it with data: a
load that lands fills a stage, MMAs read the stage, epilogue tiles pass through epilogue stages, and accumulators of K
splits through the workspace. Loads land, and stores read their epilogue stages, as late as possible, so data that a
role does not wait for are not there.

Clusters with equally many tiles and k-tiles do the same, so they are executed together, as arrays. If K is split, all
clusters are executed in one protocol, because they wait for each other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cutegemm.layout.inttuple import product
from cutegemm.plan.memory.groups import elements_between_starts
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.program import steps as step
from cutegemm.plan.program.operations import (
    Compute,
    CopyEpiStage,
    EndRead,
    EpiStageOp,
    Load,
    LoadEpiStage,
    ReadEpiStage,
    Send,
    SplitOp,
    StoreEpiStage,
    Tag,
    WriteAccumulators,
    WriteEpiStage,
)
from cutegemm.plan.program.reader import StepReader, reads
from cutegemm.plan.program.steps import Program
from cutegemm.plan.stream import OperandStream
from cutegemm.plan.warp_roles import warp_roles
from cutegemm.plan.work.division import WorkTile
from cutegemm.plan.work.work import Work
from cutegemm.simulator.boxes import BoxFlow, BoxTables, box_tables, check_boxes
from cutegemm.simulator.checks import check_tables
from cutegemm.simulator.copies import CtaGroup
from cutegemm.simulator.k_splits.cluster_split_k import ClusterSplitK
from cutegemm.simulator.mainloop import as_factor
from cutegemm.simulator.memory import GatedB, GlobalMatrix
from cutegemm.simulator.protocol.machine import Machine
from cutegemm.simulator.protocol.protocol import Process, Protocol, ProtocolError, protocol_for
from cutegemm.simulator.reductions import finish_all
from cutegemm.simulator.repack import repack_operands
from cutegemm.simulator.stores.epi_stages import EpiStageStorage, consumer_elements
from cutegemm.simulator.stores.tile_store import TileStore
from cutegemm.simulator.tables import plan_tables, stored_elements
from cutegemm.simulator.task import Task
from cutegemm.simulator.work import Workspace, tensors_of, work_tiles_of
from cutegemm.tile.tma import TmaBox

NOTHING_MNL = (0, 0, 0)  # coordinates of a work tile past the last tile of D, which is not executed


@dataclass(frozen=True)
class Shape:
    """The tiles that the CTAs of one cluster rank compute, in several clusters that are simulated at once.

    group     CTA index and tile coordinates in each cluster, as arrays over the clusters
    tile      work tile (tile of D with a range of k-tiles) in the first cluster; all clusters have as many k-tiles
    k_first   index of the first k-tile in each cluster, as an array over the clusters
    """

    group: CtaGroup
    tile: WorkTile
    k_first: np.ndarray


def run_roles(task: Task, programs: Mapping[str, Program] | None = None) -> tuple[int, int, int, int, int]:
    """Simulate every tile of a plan with warp roles (producer and consumers), and return counts of the work.

    D and further results are written to the task's simulated matrices. Faults are added to its report.

    programs   role -> program that replaces the plan's, for tests that plant faults; None: those of the plan
    returns    (CTAs, k-tiles of a tile, multiply-adds, elements of A loaded, elements of B loaded)
    """
    plan, problem = task.plan, task.problem
    stage = Stage(task)
    tiles = work_tiles_of(task)
    grid = plan.work(problem, tensors_of(task))
    batches = _batches(plan, grid, task.ctas_at_once)
    for done, clusters in enumerate(batches):
        work = [grid.of_cluster(place) for place in _heads(plan, clusters)]
        protocol = protocol_for(
            plan, work, programs=programs, reads_c=any(t in task.matrices for t in plan.epilogue.tiles)
        )
        _play(stage, protocol, _shapes(plan, grid, clusters))
        task.report_progress((done + 1) / len(batches))
    stage.reduce()
    if task.checked:
        stage.finish()
    bm, bn, bk = plan.mma_tile
    return (
        len(tiles),
        plan.k_tiles(problem),
        stage.multiplied * bm * bn * bk,
        stage.loaded["a"],
        stage.loaded["b"],
    )


def _batches(plan: GemmPlan, grid: Work, ctas_at_once: int) -> list[list[int]]:
    """Divide the clusters of a grid into batches that are simulated together; return a list of clusters for each.

    If K is split, all clusters are one batch, because they exchange accumulators. Otherwise the clusters of a batch
    have the same number of work tiles with the same numbers of k-tiles, so that arrays can hold the data of all.

    grid           work tiles of the problem
    ctas_at_once   largest number of CTAs of a batch
    """
    clusters = range(grid.clusters if grid.tiles.count else 0)
    if plan.scheduler.split.is_split:
        return [list(clusters)] if clusters else []
    at_once = max(1, ctas_at_once // product(plan.cluster_mn))
    alike: dict[tuple[int, ...], list[int]] = defaultdict(list)  # by the k-tiles of their work tiles
    for cluster in clusters:
        alike[tuple([tile.k_count for tile in grid.of_cluster(cluster)])].append(cluster)
    return [own[first : first + at_once] for own in alike.values() for first in range(0, len(own), at_once)]


def _heads(plan: GemmPlan, clusters: Sequence[int]) -> Sequence[int]:
    """Return the clusters of a batch whose CTAs are executed operation by operation, with checks of synchronization.

    If K is split, these are all clusters. Otherwise it is the first one: the others execute the same operations at the
    same time, on their own data.

    clusters   indices of the clusters of the batch
    """
    return clusters if plan.scheduler.split.is_split else clusters[:1]


def _shapes(plan: GemmPlan, grid: Work, clusters: Sequence[int]) -> list[list[Shape]]:
    """Return, for each CTA that is executed operation by operation, the list of its tiles in order.

    Only one cluster of a batch is executed so. Each of its CTAs stands for the CTAs of the same rank in all clusters of
    the batch, so an item of the list describes the tiles of all of them, by arrays over the clusters.

    plan       the plan
    grid       work tiles of the problem
    clusters   indices of the clusters that are simulated together
    """
    in_cluster = product(plan.cluster_mn)
    played = [[c] for c in clusters] if plan.scheduler.split.is_split else [list(clusters)]
    out = []
    for together in played:
        tiles = [grid.of_cluster(place) for place in together]
        for rank in range(in_cluster):
            shapes = []
            for column in zip(*tiles, strict=True):
                own = [plan.cluster_tile.share_of(tile, rank) for tile in column]
                mnl = np.array([grid.tile_mnl(tile, rank) if tile.splits else NOTHING_MNL for tile in own], np.int64).T
                position = np.array(together, np.int64) * in_cluster + rank
                shapes.append(
                    Shape(CtaGroup(position, *mnl), own[0], np.array([tile.k_first for tile in own], np.int64))
                )
            out.append(shapes)
    return out


def _play(stage: Stage, protocol: Protocol, shapes: list[list[Shape]]) -> None:
    """Execute all warp roles of some CTAs, with data, until they end or block, and report the faults.

    Each role of each CTA goes as far as it can before the next one. A copy ends only when no role can continue.

    stage      matrices, index tables and counts that all clusters share
    protocol   the operations of each role, and the barriers
    shapes     for each executed CTA, its tiles in order
    """
    machine = Player(stage, protocol, shapes)
    count = len(protocol.processes)
    try:
        while True:
            moved = False
            for number in range(count):
                while machine.is_ready(number):
                    machine.step(number)
                    moved = True
            if moved:
                continue
            if machine.copies:
                machine.step(count)
            else:
                break
        texts = machine.leftovers() if machine.finished else [machine.stuck()]
    except ProtocolError as error:
        texts = [str(error)]
    for text in texts:
        stage.task.report.add("protocol", text)


class Stage:
    """The data that all simulated clusters of a plan with warp roles share: matrices, index tables and workspace."""

    def __init__(self, task: Task) -> None:
        self.task, self.plan = task, task.plan
        plan, report, checked = task.plan, task.report, task.checked
        self.matrices: dict[str, GlobalMatrix] = {
            **task.matrices,
            **{repack.name: repack_operands(task, repack) for repack in plan.repacks},
        }
        if plan.glu is not None:
            self.matrices["b"] = GatedB(self.matrices["b"], plan.glu, task.problem.n)
        self.tables = _tables(plan)
        if checked:
            for tables in self.tables.values():
                check_boxes(tables, report)
            if not plan.tiled_mma.atom.is_of_warpgroup:  # each element is followed to the accumulators
                check_tables(plan, plan_tables(plan), report)
        self.elements = consumer_elements(plan, report)
        is_staged = plan.store.stage_copy is not None
        self.storage = EpiStageStorage(task) if is_staged else None
        self.direct = None if is_staged else TileStore(task, stored_elements(plan))
        self.workspace = Workspace(plan, task.problem, self.elements, report) if plan.scheduler.split.is_split else None
        self.shared = ClusterSplitK(plan, self.elements, report) if plan.cluster_k > 1 else None
        self.loaded, self.multiplied = dict.fromkeys(self.tables, 0), 0
        self.tiles = plan.work(task.problem, tensors_of(task)).of_arrays().tiles
        self.loaded_mn = plan.mma_grid(task.problem)[:2]

    def sources(self, stream: OperandStream, group: CtaGroup, first: np.ndarray) -> np.ndarray:
        """Return the row of an operand whose rows are gathered, for each row of the tile of each CTA: (rows, C).

        It is -1 for rows after the last one of the CTA's group.

        first   first row of each tile in its group
        """
        return self.matrices[stream.index].selected(first, stream.tile[0], group.batch)

    def reduce(self) -> None:
        """Combine the partial results of all tiles to the reductions' results, as a second kernel does."""
        for storage in (self.storage, self.direct):
            if storage is not None:
                finish_all(storage.reduced)

    def finish(self) -> None:
        """Report elements of the results that were not written exactly once. Called after the last tile."""
        for target in (self.storage, self.direct, self.workspace):
            if target is not None:
                target.finish()


class Player(StepReader, Machine):
    """Simulates warp roles with their data: executes operations, and moves elements between simulated memories.

    The base class `Machine` simulates barriers and checks the order of accesses. This class adds the values: what each
    load writes to a stage, each MMA to accumulators, and each store to D. For each class of step in a role's program
    there is a method, marked by the decorator `reads`, that executes it.

    Dictionaries of this object have the index of a process (one role of one CTA) as key, unless a comment says
    otherwise.

    stage      matrices, index tables and counts that all clusters share
    protocol   the operations of each role of each CTA, and the barriers
    shapes     for each CTA of the simulated cluster, its tiles in order
    """

    def __init__(self, stage: Stage, protocol: Protocol, shapes: list[list[Shape]]) -> None:
        super().__init__(protocol)
        plan, task = stage.plan, stage.task
        self.stage, self.plan, self.pipeline, self.shapes = stage, plan, warp_roles(plan), shapes
        self.in_cluster = product(plan.cluster_mn)
        self.stream_of = {f"{s.name.upper()}{i}": s for s in plan.streams for i in range(s.multicast)}
        groups = [own[0].group for own in shapes]
        self.flows = [
            {
                name: BoxFlow(tables, stage.matrices[name], group, task.report, task.checked)
                for name, tables in stage.tables.items()
            }
            for group in groups
        ]
        storage = stage.storage
        self.epi_stage_flows = [] if storage is None else [storage.flows(group) for group in groups]
        self.products: dict[tuple[int, Tag], list[Any]] = {}  # A @ B of a k-tile of a CTA, and its remaining readers
        self.accumulators: dict[int, np.ndarray] = {}  # (CTAs, M, N)
        self.totals: dict[int, np.ndarray] = {}  # totals of accumulator promotion
        self.of_mainloop: dict[int, Any] = {}  # registers of a mainloop whose steps are simulated in another file
        self.own_accumulators: dict[int, np.ndarray] = {}  # cluster split-K: those of the own columns from all CTAs
        self.partial_accumulators: dict[tuple[int, str], np.ndarray] = {}  # promotion: those of single k-tiles
        # MMAs in flight, oldest first: name of the accumulators that they write, and their results
        self.under_way: dict[int, list[tuple[str, np.ndarray]]] = defaultdict(list)
        self.registers: dict[int, np.ndarray] = {}  # values of the epilogue's head: (CTAs, threads, registers)
        self.values: dict[int, dict[str, np.ndarray]] = {}  # results of an epilogue tile, by name
        self.fetched: dict[int, np.ndarray] = {}  # tile operand that TMA loaded to an epilogue stage
        self.kept: dict[int, list[np.ndarray]] = {}  # overlapped epilogue: the epilogue tiles kept in registers
        self.blocks: dict[int, int] = defaultdict(int)  # number of k-blocks of the k-tile multiplied so far
        self.sent: dict[tuple[int, int, str], np.ndarray] = {}  # accumulators on their way, by CTA, stage and operand
        self.leaving: dict[tuple[int, int], dict[int, np.ndarray]] = defaultdict(dict)  # by (CTA, tile), by consumer

    # --- who, and where ------------------------------------------------------------------------------------

    @property
    def storage(self) -> EpiStageStorage:
        """Return the simulated epilogue stages (shared memory for tiles of D) of all clusters.

        Only for plans that store D through epilogue stages.
        """
        assert self.stage.storage is not None
        return self.stage.storage

    def consumer(self, process: Process) -> int:
        """Return the number in the role's name: 1 for the role "consumer 1".

        process   the simulated consumer (a warp role of one CTA)
        """
        return int(process.role.removeprefix("consumer "))

    def shape(self, process: Process, number: int) -> Shape:
        """Return one of the tiles that the CTA of a warp role computes, with its data for all simulated clusters.

        process   a simulated warp role of the CTA
        number    index of the tile among those of the CTA, from 0
        """
        return self.shapes[process.cta][number]

    def own_group(self, process: Process, number: int) -> CtaGroup:
        """Return the CTAs of a tile, with coordinates that count tiles of one consumer instead of tiles of a CTA.

        For example, with two consumers along M, the second one has m_tile 7 in CTA tile 3.

        process   the simulated consumer (a warp role of one CTA)
        number    index of the tile among those of its CTA
        """
        group = self.shape(process, number).group
        m, n, batch = self.plan.own_tile((group.m_tile, group.n_tile, group.batch), self.consumer(process))
        return CtaGroup(group.position, m, n, batch)

    def own_split(self, process: Process) -> tuple[Any, Any]:
        """Return (rows, columns) of the CTA's tile that a consumer accumulates, each as a slice or an index array.

        process   the simulated consumer (a warp role of one CTA)
        """
        if self.pipeline.readers == 1:
            return slice(None), slice(None)
        rows, columns = self.pipeline.consumer_tile
        m, n, _ = self.plan.own_tile((0, 0, 0), self.consumer(process))
        own_columns = self.plan.column_of(n, np.arange(columns))
        return slice(m * rows, (m + 1) * rows), own_columns if columns != self.plan.cta_tile[1] else slice(None)

    def rows_before(self, name: str, group: CtaGroup) -> Any:
        """Return how many rows (or columns) before each CTA's tile its stages of an operand begin: (C,), or 0 for all.

        name    name of an operand that the mainloop loads
        group   the C CTAs
        """
        apart, groups = elements_between_starts(self.plan.operands, name), self.stage.matrices[name].groups
        return 0 if apart == 1 or groups is None else groups.begins[group.batch] % apart

    # --- stages --------------------------------------------------------------------------------------------

    def _land(self, cta: int, load: Load) -> None:
        """Simulate the end of a TMA load in one CTA: when an operand's last box ends, write its elements to the stage.

        The transfer of accumulators between CTAs of a cluster (cluster split-K) is such a load too. At its end, the
        accumulators are written to the receive buffer.

        cta    index of the CTA
        load   the operation that started the load
        """
        super()._land(cta, load)
        if isinstance(load, Send):
            assert self.stage.shared is not None
            self.stage.shared.land(cta, load, self.sent.pop((cta, load.stage, load.operand)))
            return
        stream = self.stream_of[load.operand]
        pieces = [piece for piece in self.protocol.operands[cta] if self.stream_of[piece] is stream]
        if all(self.holds.get((cta, load.stage, piece)) == load.tag for piece in pieces):
            shape, flow = self.shapes[cta][load.tag[0]], self.flows[cta][stream.name]
            (bm, bn, _), before = self.plan.mma_tile, flow.loaded_elems
            flow.group = shape.group
            tile_mnl = (shape.group.m_tile, shape.group.n_tile, shape.group.batch)
            m_tile, n_tile, _ = self.stage.tiles.loaded_mnl(tile_mnl, *self.stage.loaded_mn)
            first = m_tile * bm if stream.mode == "m" else n_tile * bn
            first = first - self.rows_before(stream.name, shape.group)
            sources = None
            if stream.index:
                sources = self.stage.sources(stream, shape.group, first)
                first = np.zeros_like(first)
            flow.load((first, (shape.k_first + load.tag[1]) * stream.tile[1]), load.stage, sources)
            self.stage.loaded[stream.name] += flow.loaded_elems - before

    def product(self, process: Process, op: Compute) -> np.ndarray:
        """Return a consumer's rows and columns of A @ B for one k-tile: (CTAs, M, N).

        The product of the whole CTA tile is computed once and kept until all consumers have read it.

        process   the simulated consumer (a warp role of one CTA)
        op        the operation that multiplies; `op.tag` is (tile, k-tile)
        """
        key = (process.cta, op.tag)
        known = self.products.get(key)
        if known is None:
            operands, flows = (self.plan.operands.a, self.plan.operands.b), self.flows[process.cta]
            extents = self.plan.mma_tile[:2]  # more columns of B may be loaded than are multiplied
            # numpy calls BLAS for contiguous arrays only
            a, b = (
                np.ascontiguousarray(
                    np.moveaxis(as_factor(flows[name].read(op.stage)[:extent], operand.dtype, self.plan), 2, 0)
                )
                for name, operand, extent in zip("ab", operands, extents, strict=True)
            )
            reads = self.pipeline.readers * self.plan.b_column_blocks
            known = self.products[key] = [a @ b.swapaxes(1, 2), reads]
            self.stage.multiplied += len(a)
        known[1] -= 1
        if not known[1]:
            del self.products[key]
        rows, columns = self.own_split(process)
        out: np.ndarray = known[0][:, rows, columns]
        return out

    def _compute(self, number: int, process: Process, op: Compute) -> None:
        """Execute a program step that computes in registers: call the method or function registered for its class.

        number    index of `process` in the list of all simulated processes
        process   the simulated warp role of one CTA that executes the operation, e.g. consumer 0 of CTA 1
        op        entry of the process's list of operations that contains the step
        """
        super()._compute(number, process, op)
        self.read(op.step, number, process, op)

    @reads(step.Clear)
    def clear(self, clear: step.Clear, number: int, process: Process, op: Compute) -> None:
        """Simulate the program step that sets accumulators, or the total of accumulator promotion, to 0.

        clear     the step, which says what is set to 0
        number    index of `process` in the list of all simulated processes
        process   the simulated warp role of one CTA that executes the operation, e.g. consumer 0 of CTA 1
        op        entry of the process's list of operations that contains the step
        """
        zeros = self._nothing(process, op.tag[0])
        if clear.what == "total":
            self.totals[number] = zeros
        elif clear.what == step.ACC:
            self.accumulators[number] = zeros
        else:
            self.partial_accumulators[number, clear.what] = zeros[:, :, self.columns_of(clear.what)]

    @reads(step.AddAccumulators)
    def add_accumulators(self, add: step.AddAccumulators, number: int, process: Process, op: Compute) -> None:
        """Simulate the step of cluster split-K that adds the accumulators which the CTAs of the cluster have sent.

        add       the step
        number    index of `process` in the list of all simulated processes
        process   the simulated warp role of one CTA that executes the operation, e.g. consumer 0 of CTA 1
        op        entry of the process's list of operations that contains the step; `op.stage` is the buffer
        """
        assert self.stage.shared is not None
        self.own_accumulators[number] = self.stage.shared.total(process.cta, op.stage - self.plan.stages)

    @reads(step.KeepTile)
    def keep_tile(self, keep: step.KeepTile, number: int, process: Process, op: Compute) -> None:
        """Simulate the step of an overlapped epilogue that computes a tile's epilogue and keeps D in registers.

        Auxiliary outputs and reductions are stored at once.

        keep      the step
        number    index of `process` in the list of all simulated processes
        process   the simulated warp role of one CTA that executes the operation, e.g. consumer 0 of CTA 1
        op        entry of the process's list of operations that contains the step; `op.tag[0]` is the tile
        """
        registers, storage = self.registers[number], self.storage
        group = self.own_group(process, op.tag[0])
        tails = [storage.tail(registers, i, group) for i in range(self.plan.store.epi_tile_count(self.plan))]
        for i, values in enumerate(tails):
            storage.store_aux(values, i, group)
            storage.reduce(values, i, group)
        self.kept[number] = [values["d"] for values in tails]

    @reads(step.StoreAux)
    def store_aux(self, store: step.StoreAux, number: int, process: Process, op: Compute) -> None:
        """Simulate the program step that stores the auxiliary outputs of an epilogue tile.

        store     the step
        number    index of `process` in the list of all simulated processes
        process   the simulated warp role of one CTA that executes the operation, e.g. consumer 0 of CTA 1
        op        entry of the process's list of operations that contains the step; `op.tag` is (tile, epilogue tile)
        """
        (tile, i), storage = op.tag, self.storage
        storage.store_aux(self.values[number], i, self.own_group(process, tile))

    @reads(step.Reduce)
    def reduce(self, reduce: step.Reduce, number: int, process: Process, op: Compute) -> None:
        """Simulate the step that adds the values of an epilogue tile to the reductions (sums or maxima over D).

        reduce    the step
        number    index of `process` in the list of all simulated processes
        process   the simulated consumer (a warp role of one CTA) that executes the step
        op        entry of the process's list of operations that contains the step; `op.tag` is (tile, epilogue tile)
        """
        (tile, i), storage = op.tag, self.storage
        storage.reduce(self.values[number], i, self.own_group(process, tile))

    @reads(step.Multiply)
    def multiply(self, multiply: step.Multiply, number: int, process: Process, op: Compute) -> None:
        """Simulate MMAs. All of A @ B of a k-tile is added when the last k-block of the k-tile is multiplied.

        multiply   the program step
        number     index of `process` in the list of all simulated processes
        process    the simulated warp role of one CTA that executes the operation, e.g. consumer 0 of CTA 1
        op         entry of the process's list of operations that contains the step; `op.tag` is (tile, k-tile)
        raises     ProtocolError if k-blocks are not multiplied in their order
        """
        product = self.complete_product(number, process, op, multiply.blocks_of(self.plan.k_blocks))
        if product is None:
            return
        accumulators = multiply.accumulators
        if accumulators != step.ACC:
            self.under_way[number].append((accumulators, product[:, :, self.columns_of(accumulators)]))
        elif op.tag[1] == 0:
            self.accumulators[number] = product.copy()
        else:
            self.accumulators[number] = self.accumulators[number] + product

    def complete_product(self, number: int, process: Process, op: Compute, k_blocks: range) -> np.ndarray | None:
        """Return A @ B of a k-tile, (CTAs, M, N) for the consumer's tile; None unless this is its last k-block.

        number     index of `process` in the list of all simulated processes
        process    the simulated consumer (a warp role of one CTA)
        op         the simulated operation that multiplies; `op.tag` is (tile, k-tile)
        k_blocks   the k-blocks that the step multiplies; those before must have been multiplied
        """
        if k_blocks[0] != self.blocks[number]:
            raise ProtocolError(f"{process} multiplies k-block {k_blocks[0]} instead of {self.blocks[number]}.")
        self.blocks[number] = (k_blocks[-1] + 1) % self.plan.k_blocks
        return None if self.blocks[number] else self.product(process, op)

    def columns_of(self, accumulators: str) -> slice:
        """Return the columns of a consumer's tile that a set of accumulators covers: all, or the left or right half.

        accumulators   name of the set: `LEFT` or `RIGHT` for a half, any other name for all
        """
        half = self.plan.consumer_mma_tile[1] // 2
        return {step.LEFT: slice(half), step.RIGHT: slice(half, None)}.get(accumulators, slice(None))

    def _end_read(self, number: int, process: Process, op: EndRead) -> None:
        """Simulate the end of the oldest MMAs in flight, which the consumer has waited for: write their results.

        number    index of `process` in the list of all simulated processes
        process   the simulated warp role of one CTA that executes the operation, e.g. consumer 0 of CTA 1
        op        the operation that ends the read of their stage
        """
        super()._end_read(number, process, op)
        if self.under_way[number]:
            accumulators, product = self.under_way[number].pop(0)
            self.partial_accumulators[number, accumulators] = product

    def add_level(self, number: int, process: Process, accumulators: str, factor: Any = 1) -> None:
        """Add the accumulators of one k-tile, multiplied by `factor`, to the f32 total (accumulator promotion).

        number         index of `process` in the list of all simulated processes
        process        the simulated consumer (a warp role of one CTA)
        accumulators   name of the set of accumulators, such as `FIRST`
        factor         number or array that broadcasts to (CTAs, M, N), e.g. block scales
        raises         ProtocolError if MMAs still write the accumulators, or have not written them yet
        """
        if any(accumulators == other for other, _ in self.under_way[number]):
            raise ProtocolError(f"{process} adds the {accumulators} to its total while MMAs write them.")
        if number not in self.totals or (number, accumulators) not in self.partial_accumulators:
            raise ProtocolError(
                f"{process} adds the {accumulators} to its total before the total is cleared or the MMAs are done."
            )
        self.totals[number] = self.totals[number].copy()
        added = self.partial_accumulators[number, accumulators] * factor
        self.totals[number][:, :, self.columns_of(accumulators)] += added

    def _nothing(self, process: Process, number: int) -> np.ndarray:
        """Return accumulators of a consumer that are all 0: (CTAs, M, N).

        process   the simulated consumer (a warp role of one CTA)
        number    index of the tile among those of the process's CTA
        """
        ctas = len(self.shape(process, number).group)
        return np.zeros((ctas, *self.plan.consumer_mma_tile), self.plan.operands.acc.storage)

    def total(self, number: int, process: Process, tile: int) -> np.ndarray:
        """Return the accumulators of a tile that a consumer's own MMAs have added so far: (CTAs, M, N).

        Accumulators of other K splits are not included.

        number    index of `process` in the list of all simulated processes
        process   the simulated consumer (a warp role of one CTA)
        tile      index of the tile among those of the process's CTA
        """
        if self.pipeline.promoted:
            return self.totals[number]
        if not self.shape(process, tile).tile.k_count:
            return self._nothing(process, tile)
        return self.accumulators[number]

    # --- cluster split-K -----------------------------------------------------------------------------------

    def _load(self, number: int, process: Process, op: Load) -> None:
        """Simulate the start of a load.

        If it sends accumulators to other CTAs of the cluster, take their present values.

        number    index of `process` in the list of all simulated processes
        process   the simulated warp role of one CTA that executes the operation, e.g. consumer 0 of CTA 1
        op        the load, or the operation that sends accumulators (cluster split-K)
        """
        super()._load(number, process, op)
        if isinstance(op, Send):
            assert self.stage.shared is not None
            accumulators = self.total(number, process, op.tag[0])
            for to, cta in enumerate(op.ctas):
                self.sent[cta, op.stage, op.operand] = self.stage.shared.sent(accumulators, self.consumer(process), to)

    # --- K splits of a tile --------------------------------------------------------------------------------

    def _k_split(self, number: int, process: Process, op: SplitOp) -> None:
        """Simulate an operation on the K splits of a tile.

        If it writes accumulators, put them into the simulated workspace.

        number    index of `process` in the list of all simulated processes
        process   the simulated warp role of one CTA that executes the operation, e.g. consumer 0 of CTA 1
        op        the operation to execute
        """
        super()._k_split(number, process, op)
        if isinstance(op, WriteAccumulators) and not self.split_k_partials.last[number]:
            assert self.stage.workspace is not None
            accumulators = self.total(number, process, op.tag[0])[0]
            tile, rank = self.shape(process, op.tag[0]).tile, process.cta % self.in_cluster
            self.stage.workspace.write(accumulators, tile, rank, self.consumer(process))

    @reads(step.ReduceSplits)
    def reduce_splits(self, reduce: step.ReduceSplits, number: int, process: Process, op: Compute) -> None:
        """Simulate the step that adds the accumulators of all K splits of a tile.

        Only the K split that ends last does it.

        reduce    the step
        number    index of `process` in the list of all simulated processes
        process   the simulated consumer (a warp role of one CTA) that executes the step
        op        entry of the process's list of operations that contains the step; `op.tag[0]` is the tile
        """
        if not self.split_k_partials.last[number]:
            return
        assert self.stage.workspace is not None
        accumulators, tile = self.total(number, process, op.tag[0])[0], self.shape(process, op.tag[0]).tile
        total = self.stage.workspace.total(accumulators, tile, process.cta % self.in_cluster, self.consumer(process))
        self.accumulators[number] = self.totals[number] = total[None]

    # --- to global memory ----------------------------------------------------------------------------------

    @reads(step.Evaluate)
    def evaluate(self, values: step.Evaluate, number: int, process: Process, op: Compute) -> None:
        """Simulate the step that evaluates a section of the epilogue.

        The head (scaling such as alpha * acc) is evaluated for a whole tile, the tail (the rest) for one epilogue tile.

        values    the step, which names the section
        number    index of `process` in the list of all simulated processes
        process   the simulated consumer (a warp role of one CTA) that executes the step
        op        entry of the process's list of operations that contains the step; `op.tag` is (tile, epilogue tile)
        """
        storage = self.stage.storage
        if storage is None:
            return  # `TileStore` computes the epilogue when it stores
        (tile, i), consumer = op.tag, self.consumer(process)
        if values.section == step.HEAD:
            accumulators = self.stored(number, process, tile)
            self.registers[number] = storage.head(storage.registers(accumulators, consumer))
            return
        fetched = self.fetched.pop(number, None)
        self.values[number] = storage.tail(self.registers[number], i, self.own_group(process, tile), fetched)

    def stored(self, number: int, process: Process, tile: int) -> np.ndarray:
        """Return the complete accumulators that a tile of D is computed from: (CTAs, M, N).

        If K is split, the accumulators of all K splits are added, or those of all CTAs of the cluster.

        number    index of `process` in the list of all simulated processes
        process   the simulated consumer (a warp role of one CTA)
        tile      index of the tile among those of the process's CTA
        """
        if self.plan.cluster_k > 1:
            return self.own_accumulators[number]
        if self.plan.scheduler.split.is_split and self.shape(process, tile).tile.splits > 1:
            return self.accumulators[number]
        return self.total(number, process, tile)

    def _epi_stage(self, number: int, process: Process, op: EpiStageOp) -> None:
        """Simulate an operation on an epilogue stage: move data between the stage and registers or global memory.

        number    index of `process` in the list of all simulated processes
        process   the simulated warp role of one CTA that executes the operation, e.g. consumer 0 of CTA 1
        op        the operation to execute
        """
        super()._epi_stage(number, process, op)
        storage = self.storage
        if isinstance(op, ReadEpiStage):
            stores, _ = self.epi_stage_flows[process.cta]
            self.fetched[number] = stores.shared[storage.in_epi_stage(op.epi_stage)].copy()
        elif isinstance(op, WriteEpiStage):
            kept = number in self.kept
            values = self.kept[number][op.tag[1]] if kept else self.values[number][op.result]
            stores, _ = self.epi_stage_flows[process.cta]
            stores.shared[storage.in_epi_stage(op.epi_stage)] = np.moveaxis(values, 0, 2)
        elif isinstance(op, CopyEpiStage):
            self._store_epi_stage(process, op)

    def _epi_stage_done(self, position: int) -> None:
        """Simulate the end of a TMA copy of an epilogue stage: a store to global memory, or a load of C.

        position   index of the copy among those in flight
        """
        number, _, _, op = self.epi_stages.flights[position]
        super()._epi_stage_done(position)
        process, storage = self.protocol.processes[number], self.storage
        if isinstance(op, StoreEpiStage):
            self._store_epi_stage(process, op)
        elif isinstance(op, LoadEpiStage):
            _, loads = self.epi_stage_flows[process.cta]
            assert loads is not None
            group = self.own_group(process, op.tag[0])
            loads.group = group
            loads.load(storage.at(group, op.tag[1]), op.epi_stage)

    def _store_epi_stage(self, process: Process, op: StoreEpiStage | CopyEpiStage) -> None:
        """Move the content of an epilogue stage to global memory, and poison the stage (mark it as not written).

        process   the simulated warp role that stores
        op        the operation, which names the epilogue stage and the result
        """
        storage = self.storage
        group = self.own_group(process, op.tag[0])
        stores, written = self.epi_stage_flows[process.cta][0], storage.written
        if op.result != "d":
            stores, written = storage.flow_of(op.result, stores, group), storage.aux[op.result].written
        stores.group, origin = group, storage.at(group, op.tag[1])
        stores.store(origin, op.epi_stage, written, storage.targets(origin, group))
        stores.clear(op.epi_stage)

    @reads(step.StoreTile)
    def store_tile(self, store: step.StoreTile, number: int, process: Process, op: Compute) -> None:
        """Simulate the step that stores a tile of D from registers.

        The store happens when all consumers of the tile execute it.

        store     the step
        number    index of `process` in the list of all simulated processes
        process   the simulated consumer (a warp role of one CTA) that executes the step
        op        entry of the process's list of operations that contains the step; `op.tag[0]` is the tile
        """
        tile, direct = op.tag[0], self.stage.direct
        assert direct is not None
        accumulators = self.stored(number, process, tile)
        by_consumer = self.leaving[process.cta, tile]
        by_consumer[self.consumer(process)] = accumulators
        if len(by_consumer) < self.pipeline.readers:
            return
        group = self.shape(process, tile).group
        whole = np.zeros((len(group), *self.plan.cta_tile[:2]), accumulators.dtype)
        for other in self.protocol.processes:
            if other.cta == process.cta and other.role != "producer" and self.consumer(other) in by_consumer:
                rows, columns = self.own_split(other)
                whole[:, rows, columns] = by_consumer[self.consumer(other)]
        del self.leaving[process.cta, tile]
        direct.write(np.moveaxis(whole[:, direct.sum_rows, direct.sum_columns], 0, 1), group)


def _tables(plan: GemmPlan) -> dict[str, BoxTables]:
    """Return the index tables of the TMA boxes of each operand that the mainloop loads, by the operand's name."""
    out = {}
    for stream in plan.streams:
        assert isinstance(stream.load, TmaBox)
        inner = 1 if plan.loaded.matrix(stream.name).major == "k" else 0
        label, modes = stream.name.upper(), (stream.mode, "k")
        out[stream.name] = box_tables(label, modes, stream.load, stream.smem, stream.tile, inner)
    return out
