"""A plan whose roles differ on the CPU: its programs played with data.

The protocol of the plan's programs is played by the same machine as in `protocol`, which here moves data
besides: a load that lands fills a stage, products read it, epilogue tiles go through epilogue stages, parts of a tile
through the workspace. Loads land, and stores read their epilogue stages, as late as they can; so what is not waited for
is not seen.

Clusters that take as many tiles, of as many k-tiles, do the same in lockstep: they are played together, as
arrays. Where K is split all clusters are played in one protocol, as they wait for each other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cutegemm.layout.inttuple import product
from cutegemm.plan.mainloop.promoted import Promote
from cutegemm.plan.mainloop.warp_mma import MultiplyBlock
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
from cutegemm.plan.warp_roles import warp_roles
from cutegemm.plan.work.division import WorkTile
from cutegemm.plan.work.scheduler import WorkGrid
from cutegemm.simulator.boxes import BoxFlow, BoxTables, box_tables, check_boxes
from cutegemm.simulator.checks import check_tables
from cutegemm.simulator.cluster_split_k import ClusterSplitK
from cutegemm.simulator.copies import CtaGroup
from cutegemm.simulator.epi_stages import EpiStageStorage, held_by_consumers
from cutegemm.simulator.mainloop import as_factor
from cutegemm.simulator.memory import GatedB, GlobalMatrix
from cutegemm.simulator.protocol.machine import Machine
from cutegemm.simulator.protocol.protocol import Process, Protocol, ProtocolError, protocol_for
from cutegemm.simulator.reductions import finish_all
from cutegemm.simulator.repack import repack_operands
from cutegemm.simulator.tables import held_to_be_stored, plan_tables
from cutegemm.simulator.task import Task
from cutegemm.simulator.tile_store import TileStore
from cutegemm.simulator.work import Workspace, work_tiles_of
from cutegemm.tile.tma import TmaBox

NOTHING_MNL = (0, 0, 0)  # of a work tile without parts, which nobody does: it lies past the last tile of D


@dataclass(frozen=True)
class Shape:
    """A work tile of one CTA, of each cluster that is played together.

    group   where it lies, by CTA
    tile    the work tile; its k-tiles are as many in each, the rest is the first cluster's
    k_first by CTA
    """

    group: CtaGroup
    tile: WorkTile
    k_first: np.ndarray


def run_roles(task: Task, programs: Mapping[str, Program] | None = None) -> tuple[int, int, int, int, int]:
    """Carries out every tile; (CTAs, k-tiles, multiply-adds, elements loaded of A, of B).

    programs   by role, instead of the plan's
    """
    plan, problem, report = task.plan, task.problem, task.report
    stage = Stage(task)
    tiles = work_tiles_of(plan, problem, report)
    grid = plan.scheduler.of(problem)
    casts = list(_casts(plan, grid, task.ctas_at_once))
    for done, clusters in enumerate(casts):
        work = [[grid.work_tile(number) for number in grid.numbers(c)] for c in _heads(plan, clusters)]
        protocol = protocol_for(
            plan, work, programs=programs, reads_c=any(t in task.matrices for t in plan.epilogue.tiles)
        )
        _play(stage, protocol, _shapes(plan, grid, clusters))
        task.tell((done + 1) / len(casts))
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


def _casts(plan: GemmPlan, grid: WorkGrid, ctas_at_once: int) -> list[list[int]]:
    """Clusters that are played together."""
    clusters = range(grid.clusters if grid.tiles.count else 0)
    if plan.split.is_split:
        return [list(clusters)] if clusters else []
    at_once = max(1, ctas_at_once // product(plan.cluster_mn))
    alike: dict[int, list[int]] = defaultdict(list)
    for cluster in clusters:
        alike[len([*grid.numbers(cluster)])].append(cluster)
    return [own[first : first + at_once] for own in alike.values() for first in range(0, len(own), at_once)]


def _heads(plan: GemmPlan, clusters: Sequence[int]) -> Sequence[int]:
    """Clusters of the protocol: one that stands for all, or where K is split each."""
    return clusters if plan.split.is_split else clusters[:1]


def _shapes(plan: GemmPlan, grid: WorkGrid, clusters: Sequence[int]) -> list[list[Shape]]:
    """The tiles of each CTA of the protocol, in their order."""
    in_cluster = product(plan.cluster_mn)
    played = [[c] for c in clusters] if plan.split.is_split else [list(clusters)]
    out = []
    for together in played:
        numbers = np.array([[*grid.numbers(c)] for c in together], np.int64)  # (clusters, tiles)
        for rank in range(in_cluster):
            shapes = []
            for column in numbers.T:
                own = [plan.scheduler.share_of(grid.work_tile(int(number)), rank) for number in column]
                at = np.array([grid.tile_mnl(tile, rank) if tile.splits else NOTHING_MNL for tile in own], np.int64).T
                position = np.array(together, np.int64) * in_cluster + rank
                shapes.append(
                    Shape(CtaGroup(position, *at), own[0], np.array([tile.k_first for tile in own], np.int64))
                )
            out.append(shapes)
    return out


def _play(stage: Stage, protocol: Protocol, shapes: list[list[Shape]]) -> None:
    """The protocol to its end, one process as far as it can, then the next; copies end when no process can go on."""
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
    """Memory that all clusters share, the tables of a plan, and what has been done."""

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
            if not plan.tiled_mma.atom.is_of_warpgroup:  # each element is followed into the sums once
                check_tables(plan, plan_tables(plan), report)
        self.held = held_by_consumers(plan, report)
        self.storage = None if plan.epi_stages is None else EpiStageStorage(task)
        self.direct = TileStore(task, held_to_be_stored(plan)) if plan.epi_stages is None else None
        self.workspace = Workspace(plan, task.problem, self.held, report) if plan.split.is_split else None
        self.shared = ClusterSplitK(plan, self.held, report) if plan.cluster_k > 1 else None
        self.loaded, self.multiplied = dict.fromkeys(self.tables, 0), 0
        self.tiles = plan.scheduler.of(task.problem).of_arrays().tiles
        self.loaded_mn = plan.mma_grid(task.problem)[:2]

    def reduce(self) -> None:
        """The partial results of all tiles to the results of sums and maxima."""
        for storage in (self.storage, self.direct):
            if storage is not None:
                finish_all(storage.reduced)

    def finish(self) -> None:
        """After the last tile."""
        for part in (self.storage, self.direct, self.workspace):
            if part is not None:
                part.finish()


class Player(StepReader, Machine):
    """The machine of a protocol, which moves data."""

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
        self.products: dict[tuple[int, Tag], list[Any]] = {}  # of a k-tile, and how many consumers are to take it
        self.accumulators: dict[int, np.ndarray] = {}  # of a process: (CTAs, M, N)
        self.totals: dict[int, np.ndarray] = {}
        self.own_accumulators: dict[int, np.ndarray] = {}  # those of the own columns from all CTAs that share K
        self.partial_accumulators: dict[tuple[int, str], np.ndarray] = {}  # those of k-tiles alone
        # Of products that are under way, the oldest first: which sums they are of, and their values
        self.under_way: dict[int, list[tuple[str, np.ndarray]]] = defaultdict(list)
        self.registers: dict[int, np.ndarray] = {}  # (CTAs, threads, registers), behind the epilogue's head
        self.values: dict[int, dict[str, np.ndarray]] = {}  # results of an epilogue tile, by name
        self.fetched: dict[int, np.ndarray] = {}  # of a tile that has come to an epilogue stage
        self.kept: dict[int, list[np.ndarray]] = {}  # epilogue tiles of the tile that is held
        self.blocks: dict[int, int] = defaultdict(int)  # k-blocks multiplied so far
        self.sent: dict[tuple[int, int, str], np.ndarray] = {}  # of sums on their way to a CTA
        self.leaving: dict[tuple[int, int], dict[int, np.ndarray]] = defaultdict(dict)  # sums of a tile, by consumer

    # --- who, and where ------------------------------------------------------------------------------------

    def consumer(self, process: Process) -> int:
        """Which of the consumers a process is."""
        return int(process.role.removeprefix("consumer "))

    def shape(self, process: Process, number: int) -> Shape:
        """The tile of that number of a process's CTA."""
        return self.shapes[process.cta][number]

    def own_group(self, process: Process, number: int) -> CtaGroup:
        """The same in tiles of the consumer."""
        group = self.shape(process, number).group
        m, n, batch = self.plan.own_tile((group.m_tile, group.n_tile, group.batch), self.consumer(process))
        return CtaGroup(group.position, m, n, batch)

    def own_split(self, process: Process) -> tuple[Any, Any]:
        """Rows and columns of the CTA's tile that a consumer sums up."""
        if self.pipeline.readers == 1:
            return slice(None), slice(None)
        rows, columns = self.pipeline.consumer_tile
        m, n, _ = self.plan.own_tile((0, 0, 0), self.consumer(process))
        of_n = self.plan.column_of(n, np.arange(columns))
        return slice(m * rows, (m + 1) * rows), of_n if columns != self.plan.cta_tile[1] else slice(None)

    # --- stages --------------------------------------------------------------------------------------------

    def _land(self, cta: int, load: Load) -> None:
        super()._land(cta, load)
        if isinstance(load, Send):
            assert self.stage.shared is not None
            self.stage.shared.land(cta, load, self.sent.pop((cta, load.stage, load.operand)))
            return
        stream = self.stream_of[load.operand]
        parts = [part for part in self.protocol.operands[cta] if self.stream_of[part] is stream]
        if all(self.holds.get((cta, load.stage, part)) == load.tag for part in parts):
            shape, flow = self.shapes[cta][load.tag[0]], self.flows[cta][stream.name]
            (bm, bn, _), before = self.plan.mma_tile, flow.loaded_elems
            flow.group = shape.group
            of = (shape.group.m_tile, shape.group.n_tile, shape.group.batch)
            m_tile, n_tile, _ = self.stage.tiles.loaded_mnl(of, *self.stage.loaded_mn)
            first = m_tile * bm if stream.mode == "m" else n_tile * bn
            flow.load((first, (shape.k_first + load.tag[1]) * stream.tile[1]), load.stage)
            self.stage.loaded[stream.name] += flow.loaded_elems - before

    def product(self, process: Process, op: Compute) -> np.ndarray:
        """The consumer's part of the products of a k-tile (CTAs, M, N)."""
        key = (process.cta, op.tag)
        known = self.products.get(key)
        if known is None:
            operands, flows = (self.plan.operands.a, self.plan.operands.b), self.flows[process.cta]
            extents = self.plan.mma_tile[:2]  # of B more columns may have come
            # In C's order, or the product is no matter of BLAS
            of_a, of_b = (
                np.ascontiguousarray(
                    np.moveaxis(as_factor(flows[name].read(op.stage)[:extent], operand.dtype, self.plan), 2, 0)
                )
                for name, operand, extent in zip("ab", operands, extents, strict=True)
            )
            takers = self.pipeline.readers * self.plan.b_column_blocks
            known = self.products[key] = [of_a @ of_b.swapaxes(1, 2), takers]
            self.stage.multiplied += len(of_a)
        known[1] -= 1
        if not known[1]:
            del self.products[key]
        rows, columns = self.own_split(process)
        out: np.ndarray = known[0][:, rows, columns]
        return out

    def _compute(self, number: int, process: Process, op: Compute) -> None:
        self.read(op.step, number, process, op)

    @reads(Promote)
    def promote(self, add: Promote, number: int, process: Process, op: Compute) -> None:
        """Add the accumulators of a k-tile to the total."""
        self._add_level(number, process, add.accumulators)

    @reads(step.Clear)
    def clear(self, clear: step.Clear, number: int, process: Process, op: Compute) -> None:
        """Set accumulators to 0."""
        nothing = self._nothing(process, op.tag[0])
        if clear.what == "total":
            self.totals[number] = nothing
        elif clear.what == step.ACC:
            self.accumulators[number] = nothing
        else:
            self.partial_accumulators[number, clear.what] = nothing[:, :, self.columns_of(clear.what)]

    @reads(step.AddAccumulators)
    def add_accumulators(self, add: step.AddAccumulators, number: int, process: Process, op: Compute) -> None:
        """Add the accumulators that all CTAs of a cluster have sent."""
        assert self.stage.shared is not None
        self.own_accumulators[number] = self.stage.shared.total(process.cta, op.stage - self.plan.stages)

    @reads(step.KeepTile)
    def keep_tile(self, keep: step.KeepTile, number: int, process: Process, op: Compute) -> None:
        """Evaluate the epilogue of a tile, and keep the values of D."""
        assert self.stage.storage is not None
        registers, storage = self.registers[number], self.stage.storage
        group = self.own_group(process, op.tag[0])
        found = [storage.tail(registers, i, group) for i in range(self.epi_tiles)]
        for i, values in enumerate(found):
            storage.store_aux(values, i, group)
            storage.reduce(values, i, group)
        self.kept[number] = [values["d"] for values in found]

    @reads(step.StoreAux)
    def store_aux(self, store: step.StoreAux, number: int, process: Process, op: Compute) -> None:
        """Store auxiliary outputs of an epilogue tile."""
        assert self.stage.storage is not None
        (tile, i), storage = op.tag, self.stage.storage
        storage.store_aux(self.values[number], i, self.own_group(process, tile))

    @reads(step.Reduce)
    def reduce(self, reduce: step.Reduce, number: int, process: Process, op: Compute) -> None:
        """Add an epilogue tile to sums or maxima."""
        assert self.stage.storage is not None
        (tile, i), storage = op.tag, self.stage.storage
        storage.reduce(self.values[number], i, self.own_group(process, tile))

    @reads(step.Multiply, MultiplyBlock)
    def multiply(self, each: step.Step, number: int, process: Process, op: Compute) -> None:
        """Multiply a k-tile, or some k-blocks of it; the values are there when the last k-block is multiplied."""
        begins_anew = op.tag[1] == 0
        if isinstance(each, step.Multiply):
            blocks = each.blocks_of(self.plan.k_blocks)
        else:
            assert isinstance(each, MultiplyBlock)
            blocks = range(each.k_block, each.k_block + 1)
            begins_anew = False
        if blocks[0] != self.blocks[number]:
            raise ProtocolError(f"{process} multiplies k-block {blocks[0]} where {self.blocks[number]} is due.")
        self.blocks[number] = (blocks[-1] + 1) % self.plan.k_blocks
        if self.blocks[number]:
            return
        product = self.product(process, op)
        if isinstance(each, step.Multiply) and each.accumulators != step.ACC:
            self.under_way[number].append((each.accumulators, product[:, :, self.columns_of(each.accumulators)]))
        else:
            self.accumulators[number] = product.copy() if begins_anew else self.accumulators[number] + product

    def columns_of(self, accumulators: str) -> slice:
        """Of a consumer's tile, those that some sums are of."""
        half = self.plan.consumer_mma_tile[1] // 2
        return {step.LEFT: slice(half), step.RIGHT: slice(half, None)}.get(accumulators, slice(None))

    def _end_read(self, number: int, process: Process, op: EndRead) -> None:
        """Products that are waited for have written their sums, and not before."""
        super()._end_read(number, process, op)
        if self.under_way[number]:
            accumulators, product = self.under_way[number].pop(0)
            self.partial_accumulators[number, accumulators] = product

    def _add_level(self, number: int, process: Process, accumulators: str) -> None:
        if any(accumulators == other for other, _ in self.under_way[number]):
            raise ProtocolError(f"{process} adds the {accumulators} to its total while products write them.")
        if number not in self.totals or (number, accumulators) not in self.partial_accumulators:
            raise ProtocolError(f"{process} adds the {accumulators} to its total, one of which nobody has begun.")
        self.totals[number] = self.totals[number].copy()
        self.totals[number][:, :, self.columns_of(accumulators)] += self.partial_accumulators[number, accumulators]

    def _nothing(self, process: Process, number: int) -> np.ndarray:
        """Sums of 0."""
        ctas = len(self.shape(process, number).group)
        return np.zeros((ctas, *self.plan.consumer_mma_tile), self.plan.operands.acc.storage)

    def total(self, number: int, process: Process, tile: int) -> np.ndarray:
        """The values of a tile that are stored."""
        if self.pipeline.promoted:
            return self.totals[number]
        if not self.shape(process, tile).tile.k_count:
            return self._nothing(process, tile)
        return self.accumulators[number]

    # --- sums of CTAs that share K -------------------------------------------------------------------------

    def _load(self, number: int, process: Process, op: Load) -> None:
        super()._load(number, process, op)
        if isinstance(op, Send):
            assert self.stage.shared is not None
            accumulators = self.total(number, process, op.tag[0])
            for to, cta in enumerate(op.ctas):
                self.sent[cta, op.stage, op.operand] = self.stage.shared.sent(accumulators, self.consumer(process), to)

    # --- parts of a tile -----------------------------------------------------------------------------------

    def _part(self, number: int, process: Process, op: SplitOp) -> None:
        super()._part(number, process, op)
        if isinstance(op, WriteAccumulators) and not self.split_k_partials.last[number]:
            assert self.stage.workspace is not None
            accumulators = self.total(number, process, op.tag[0])[0]
            tile, rank = self.shape(process, op.tag[0]).tile, process.cta % self.in_cluster
            self.stage.workspace.write(accumulators, tile, rank, self.consumer(process))

    @reads(step.ReduceSplits)
    def reduce_splits(self, reduce: step.ReduceSplits, number: int, process: Process, op: Compute) -> None:
        """The last K split adds the accumulators of all."""
        if not self.split_k_partials.last[number]:
            return
        assert self.stage.workspace is not None
        accumulators, tile = self.total(number, process, op.tag[0])[0], self.shape(process, op.tag[0]).tile
        found = self.stage.workspace.total(accumulators, tile, process.cta % self.in_cluster, self.consumer(process))[
            None
        ]
        self.accumulators[number] = self.totals[number] = found

    # --- to global memory ----------------------------------------------------------------------------------

    @property
    def epi_tiles(self) -> int:
        """Of a consumer's tile."""
        assert self.plan.epi_stages is not None
        return product(self.plan.epi_stages.epi_tiles(self.plan.consumer_d_tile))

    @reads(step.Evaluate)
    def evaluate(self, values: step.Evaluate, number: int, process: Process, op: Compute) -> None:
        """Evaluate the head or the tail of the epilogue."""
        storage = self.stage.storage
        if storage is None:
            return  # `TileStore` computes all of it where it stores
        (tile, i), consumer = op.tag, self.consumer(process)
        if values.section == step.HEAD:
            accumulators = self.stored(number, process, tile)
            self.registers[number] = storage.head(storage.registers(accumulators, consumer))
            return
        fetched = self.fetched.pop(number, None)
        self.values[number] = storage.tail(self.registers[number], i, self.own_group(process, tile), fetched)

    def stored(self, number: int, process: Process, tile: int) -> np.ndarray:
        """The sums of a tile that become D: with those of other parts, or of other CTAs."""
        if self.plan.cluster_k > 1:
            return self.own_accumulators[number]
        if self.plan.split.is_split and self.shape(process, tile).tile.splits > 1:
            return self.accumulators[number]
        return self.total(number, process, tile)

    def _slot(self, number: int, process: Process, op: EpiStageOp) -> None:
        super()._slot(number, process, op)
        storage = self.stage.storage
        assert storage is not None
        if isinstance(op, ReadEpiStage):
            stores, _ = self.epi_stage_flows[process.cta]
            self.fetched[number] = stores.shared[storage.in_epi_stage(op.epi_stage)].copy()
        elif isinstance(op, WriteEpiStage):
            kept = number in self.kept
            values = self.kept[number][op.tag[1]] if kept else self.values[number][op.result]
            stores, _ = self.epi_stage_flows[process.cta]
            stores.shared[storage.in_epi_stage(op.epi_stage)] = np.moveaxis(values, 0, 2)
        elif isinstance(op, CopyEpiStage):
            self._leaves(process, op)

    def _epi_stage_done(self, position: int) -> None:
        number, _, _, op = self.epi_stages.flights[position]
        super()._epi_stage_done(position)
        process, storage = self.protocol.processes[number], self.stage.storage
        assert storage is not None
        if isinstance(op, StoreEpiStage):
            self._leaves(process, op)
        elif isinstance(op, LoadEpiStage):
            _, loads = self.epi_stage_flows[process.cta]
            assert loads is not None
            group = self.own_group(process, op.tag[0])
            loads.group = group
            loads.load(storage.at(group, op.tag[1]), op.epi_stage)

    def _leaves(self, process: Process, op: StoreEpiStage | CopyEpiStage) -> None:
        """An epilogue stage to global memory; nothing lies in it any more."""
        storage = self.stage.storage
        assert storage is not None
        group = self.own_group(process, op.tag[0])
        stores, written = self.epi_stage_flows[process.cta][0], storage.written
        if op.result != "d":
            stores, written = storage.flow_of(op.result, stores, group), storage.aux[op.result].written
        stores.group = group
        stores.store(storage.at(group, op.tag[1]), op.epi_stage, written)
        stores.clear(op.epi_stage)

    @reads(step.StoreTile)
    def store_tile(self, store: step.StoreTile, number: int, process: Process, op: Compute) -> None:
        """Store a tile from registers, as soon as all of its consumers have come to it."""
        tile, direct = op.tag[0], self.stage.direct
        assert direct is not None
        accumulators = self.stored(number, process, tile)
        of_all = self.leaving[process.cta, tile]
        of_all[self.consumer(process)] = accumulators
        if len(of_all) < self.pipeline.readers:
            return
        group = self.shape(process, tile).group
        whole = np.zeros((len(group), *self.plan.cta_tile[:2]), accumulators.dtype)
        for other in self.protocol.processes:
            if other.cta == process.cta and other.role != "producer" and self.consumer(other) in of_all:
                rows, columns = self.own_split(other)
                whole[:, rows, columns] = of_all[self.consumer(other)]
        del self.leaving[process.cta, tile]
        direct.write(np.moveaxis(whole[:, direct.sum_rows, direct.sum_columns], 0, 1), group)


def _tables(plan: GemmPlan) -> dict[str, BoxTables]:
    """Return the tables of the boxes of each operand stream, by its name."""
    out = {}
    for stream in plan.streams:
        assert isinstance(stream.load, TmaBox)
        inner = 1 if plan.loaded.matrix(stream.name).major == "k" else 0
        label, modes = stream.name.upper(), (stream.mode, "k")
        out[stream.name] = box_tables(label, modes, stream.load, stream.smem, stream.tile, inner)
    return out
