"""A program as operations: with every index, for one role of one CTA and the tiles that the CTA takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cutegemm.layout.inttuple import product
from cutegemm.machine.arch import WARP_THREADS
from cutegemm.plan.program import operations as op
from cutegemm.plan.program import steps as step
from cutegemm.plan.program.operations import KEPT, LAST, WHOLE_TILE, Op
from cutegemm.plan.program.reader import StepReader, reads
from cutegemm.plan.program.steps import Program, Step
from cutegemm.plan.stream import OperandStream
from cutegemm.plan.warp_roles import warp_roles
from cutegemm.tile.tma import TmaBox

if TYPE_CHECKING:
    from cutegemm.plan.plan import GemmPlan

TENSOR_CORES = "tensor cores"


@dataclass(frozen=True)
class Place:
    """Where a program is carried out: the CTA, the role, and the warps of the role.

    cta        of the grid; the CTAs of a cluster follow one another, those along M first
    role       its number among the plan's roles
    warp       a part of the role's warps: which of them
    warps      parts that each role is told apart by: 1, or its warps. What another one may have done and this one not
               is seen only where they are told apart
    """

    cta: int
    role: int
    warp: int = 0
    warps: int = 1


@dataclass
class State:
    """A role's position in its program.

    position    of the ring: k-tiles that have passed
    previous    the position of the k-tile before, of this tile; None where there is none
    number      of the tile among those of the CTA; past the last where there is none
    k           the k-tile
    shared      tiles so far whose sums went to the CTAs of their columns
    running     the stage of each group of products under way, the oldest first; None where a later group reads it too
    """

    position: int = 0
    previous: int | None = None
    number: int = 0
    k: int = 0
    shared: int = 0
    running: tuple[int | None, ...] = ()


def expand(
    plan: GemmPlan,
    program: Program,
    place: Place,
    tiles: Sequence[Any],
    stages: int = 0,
    reads_c: bool = True,
) -> tuple[Op, ...]:
    """The operations of a role.

    tiles     that the CTA takes, in their order: of each k_count, parts, part, tile and epilogue stage, as a work tile
              has them
    stages    of the ring; those of the plan where left out
    reads_c   whether the epilogue reads tile operands: beta is not 0

    >>> from cutegemm.build import sm90_plan
    >>> from cutegemm.plan.work.division import WorkTile
    >>> plan = sm90_plan()
    >>> [type(o).__name__ for o in expand(plan, plan.program("producer"), Place(0, 0), [WorkTile(0, 0, 1, 1, 0, 0)])]
    ['Wait', 'Expect', 'Load', 'Load']
    """
    return tuple(Expansion(plan, place, tiles, stages or plan.stages, reads_c).of(program))


def lines_of(
    plan: GemmPlan, program: Program, place: Place, tiles: Sequence[Any], reads_c: bool = True
) -> tuple[int, ...]:
    """The line of the program's text that each of a role's operations comes from, counted from 0; see `expand`.

    >>> from cutegemm.build import sm90_plan
    >>> from cutegemm.plan.work.division import WorkTile
    >>> plan = sm90_plan()
    >>> lines_of(plan, plan.program("producer"), Place(0, 0), [WorkTile(0, 0, 2, 1, 0, 0)])
    (2, 3, 3, 3, 2, 3, 3, 3)
    """
    found: Iterator[Any] = _WithLines(plan, place, tiles, plan.stages, reads_c).of(program)
    return tuple([each.line for each in found if isinstance(each, _Lined)])


class Expansion(StepReader):
    def __init__(self, plan: GemmPlan, place: Place, tiles: Sequence[Any], stages: int, reads_c: bool) -> None:
        self.plan, self.pipeline, self.place, self.tiles = plan, warp_roles(plan), place, tiles
        self.stages, self.reads_c = stages, reads_c and bool(plan.epilogue.tiles)
        self.role = plan.roles[place.role]
        self.first_consumer = len(plan.roles) - plan.body.consumers
        self.consumer = place.role - self.first_consumer
        self.threads = WARP_THREADS * self.role.warps // place.warps
        (cm, cn), cluster_k = plan.cluster_mn, plan.cluster_k
        rank = place.cta % (cm * cn)
        first = place.cta - rank
        self.rank = rank
        self.m_rank, self.n_rank = plan.scheduler.rank_mn(rank)
        row = tuple(range(first + self.m_rank, first + cm * cn, cm))
        self.row = row if cluster_k == 1 else (place.cta,)  # CTAs with the same rows and k-tiles of A
        self.sharers = row if cluster_k > 1 else ()  # CTAs with the same tile, and other k-tiles
        self.column = tuple(range(place.cta - self.m_rank, place.cta - self.m_rank + cm))  # the same columns of B
        self.sources = tuple(sorted({*self.row, *self.column}))
        self.epi_stages = plan.epi_stages
        self.epi_tiles = 0 if plan.epi_stages is None else product(plan.epi_stages.epi_tiles(plan.consumer_d_tile))

    def of(self, program: Program) -> Iterator[Op]:
        yield from self.steps(program.steps, State())

    def steps(self, steps: tuple[Step, ...], at: State, i: int = 0) -> Iterator[Op]:
        """The operations of some steps; `i` is the epilogue tile, where there is one."""
        for each in steps:
            yield from self.read(each, at, i)

    # --- loops and branches ---------------------------------------------------------------------------------

    @reads(step.ForTiles)
    def on_for_tiles(self, loop: step.ForTiles, at: State, i: int) -> Iterator[Op]:
        first = self.consumer if loop.every > 1 else 0
        for number in range(first, len(self.tiles) + loop.lasting, loop.every):
            at.number, at.k, at.previous = number, 0, None
            yield from self.steps(loop.steps, at)

    @reads(step.ForKTiles)
    def on_for_k_tiles(self, loop: step.ForKTiles, at: State, i: int) -> Iterator[Op]:
        count = self.k_tiles(at)
        for k in range(count % loop.by, max(0, count - loop.but_last), loop.by):
            at.k = k
            yield from self.steps(loop.steps, at)
            at.previous, at.position = at.position, at.position + 1
        at.k = max(0, self.k_tiles(at) - 1)

    @reads(step.ForAhead)
    def on_for_ahead(self, loop: step.ForAhead, at: State, i: int) -> Iterator[Op]:
        for k in range(min(loop.count, self.k_tiles(at))):
            at.k = k
            yield from self.steps(loop.steps, replace(at, position=at.position + k))

    @reads(step.ForStages)
    def on_for_stages(self, loop: step.ForStages, at: State, i: int) -> Iterator[Op]:
        for _ in range(self.stages):
            yield from self.steps(loop.steps, at)
            at.position += 1

    @reads(step.ForEpiTiles)
    def on_for_epi_tiles(self, loop: step.ForEpiTiles, at: State, i: int) -> Iterator[Op]:
        if not loop.overlapped:
            for epi_tile in range(self.epi_tiles):
                yield from self.steps(loop.steps, at, epi_tile)
            yield op.EndTile(self.counter(self.tiles[at.number]), self.place.warp)
            if self.epi_stages is not None and self.epi_tiles // self.epi_stages.count % 2:
                yield op.FlipPhase()
            return
        held, first = replace(at, number=at.number - 1), min(self.k_tiles(at), self.epi_tiles)
        body = [o for left in range(first, self.epi_tiles) for o in self.steps(loop.steps, held, left)]
        ended = [op.EndTile(self.counter(self.tiles[held.number]), self.place.warp)] if at.number else []
        yield from self.branch(KEPT, [*body, *ended, op.Mark(KEPT, False)])

    @reads(step.OverlappedEpiTile)
    def on_overlapped_epi_tile(self, loop: step.OverlappedEpiTile, at: State, i: int) -> Iterator[Op]:
        if at.k < self.epi_tiles:
            yield from self.branch(KEPT, self.steps(loop.steps, replace(at, number=at.number - 1), at.k))

    @reads(step.If)
    def on_if(self, branch: step.If, at: State, i: int) -> Iterator[Op]:
        if branch.condition == step.IS_LAST_SPLIT:
            yield from self.branch(LAST, self.steps(branch.steps, at, i))
        elif {
            step.HAS_K_TILES: self.k_tiles(at) > 0,
            step.HAS_ODD_K_TILES: self.k_tiles(at) % 2 > 0,
            step.IS_TILE: at.number < len(self.tiles),
            step.TILES_ARE_READ: self.reads_c and not self.place.warp,
            step.IS_FIRST_WARP: not self.place.warp,
        }[branch.condition]:
            yield from self.steps(branch.steps, at, i)

    def branch(self, flag: str, ops: Any) -> Iterator[Op]:
        """Operations that are passed over where a flag is not set."""
        body = list(ops)
        if body:
            yield op.Branch(flag, len(body))
            yield from body

    # --- the ring -------------------------------------------------------------------------------------------

    def k_tiles(self, at: State) -> int:
        """Of the tile; none where there is no tile."""
        return int(self.tiles[at.number].k_count) if at.number < len(self.tiles) else 0

    def stage(self, position: int) -> tuple[int, int]:
        """The stage at a position of the ring, and the parity of its phase."""
        return position % self.stages, position // self.stages & 1

    @reads(step.Wait)
    def on_wait(self, wait: step.Wait, at: State, i: int) -> Iterator[Op]:
        stage, parity = self.stage(at.position + wait.ahead)
        yield op.Wait(wait.barrier, stage, parity ^ (wait.barrier == "empty"))

    @reads(step.Load)
    def on_load(self, load: step.Load, at: State, i: int) -> Iterator[Op]:
        if self.place.role or self.place.warp or at.k + load.ahead >= self.k_tiles(at):
            return
        stage, _ = self.stage(at.position + load.ahead)
        tag, streams = (at.number, at.k + load.ahead), self.plan.streams
        yield op.Expect("full", stage, sum([stage_bytes(self.plan, stream) for stream in streams]))
        for stream in streams:
            ctas = (self.row if stream.mode == "m" else self.column) if stream.multicast > 1 else (self.place.cta,)
            operand = f"{stream.name.upper()}{ctas.index(self.place.cta)}"
            size_bytes = stage_bytes(self.plan, stream) // len(ctas)
            yield op.Load("full", stage, stage, operand, tag, size_bytes, ctas)

    @reads(step.Multiply)
    def on_multiply(self, multiply: step.Multiply, at: State, i: int) -> Iterator[Op]:
        stage, tag = self.stage(at.position)[0], (at.number, at.k)
        if multiply.k_blocks != step.OTHER_BLOCKS:
            yield op.BeginRead(stage, tag)
        yield op.Compute(multiply, tag, stage)
        at.running += (None if multiply.k_blocks == step.FIRST_BLOCK else stage,)

    @reads(step.WaitMma)
    def on_wait_mma(self, wait: step.WaitMma, at: State, i: int) -> Iterator[Op]:
        ended = at.running[: max(0, len(at.running) - wait.pending)]
        at.running = at.running[len(ended) :]
        yield from (op.EndRead(stage) for stage in ended if stage is not None)

    @reads(step.Release)
    def on_release(self, release: step.Release, at: State, i: int) -> Iterator[Op]:
        position = at.previous if release.previous else at.position
        if position is not None:
            yield self.released(self.stage(position)[0])

    def released(self, stage: int) -> Op:
        """A lane of each warp tells all CTAs that load to this stage."""
        return op.Arrive("empty", stage, self.role.warps // self.place.warps, self.sources)

    @reads(step.Skip)
    def on_skip(self, skip: step.Skip, at: State, i: int) -> Iterator[Op]:
        turns = self.pipeline.tiles_in_flight
        first, count = (0, self.consumer) if skip.whose == step.BEFORE else (at.number + 1, turns - 1)
        at.position += sum(int(tile.k_count) for tile in self.tiles[first : first + count])
        yield from ()

    @reads(step.Advance)
    def on_advance(self, advance: step.Advance, at: State, i: int) -> Iterator[Op]:
        at.previous, at.position, at.k = at.position, at.position + 1, at.k + 1
        yield from ()

    # --- turns and barriers of threads ----------------------------------------------------------------------

    @reads(step.OpenOrder)
    def on_open_order(self, turns: step.OpenOrder, at: State, i: int) -> Iterator[Op]:
        if self.consumer == self.pipeline.tiles_in_flight - 1 and self.tiles:
            yield op.NamedArrive("order", 0, self.threads)

    @reads(step.AwaitOrder)
    def on_await_order(self, order: step.AwaitOrder, at: State, i: int) -> Iterator[Op]:
        yield op.NamedSync("order", self.consumer, self.threads)
        yield op.Enter(TENSOR_CORES)

    @reads(step.PassOrder)
    def on_pass_order(self, order: step.PassOrder, at: State, i: int) -> Iterator[Op]:
        yield op.Leave(TENSOR_CORES)
        if at.number + 1 < len(self.tiles):
            yield op.NamedArrive("order", (self.consumer + 1) % self.pipeline.tiles_in_flight, self.threads)

    @reads(step.Stagger)
    def on_stagger(self, stagger: step.Stagger, at: State, i: int) -> Iterator[Op]:
        if self.tiles and self.tiles[0].k_count:
            yield op.Wait("full", 0, 0)

    @reads(step.SyncThreads)
    def on_sync_threads(self, sync: step.SyncThreads, at: State, i: int) -> Iterator[Op]:
        yield op.NamedSync("read", 0, self.threads)

    @reads(step.SyncEpiTile)
    def on_sync_epi_tile(self, sync: step.SyncEpiTile, at: State, i: int) -> Iterator[Op]:
        yield op.NamedSync("epi_tile", self.consumer, self.threads)

    # --- registers ------------------------------------------------------------------------------------------

    @reads(step.Clear, step.StoreAux, step.Reduce)
    def on_registers(self, each: Step, at: State, i: int) -> Iterator[Op]:
        yield op.Compute(each, (at.number, i))

    @reads(step.KeepTile)
    def on_keep_tile(self, hold: step.KeepTile, at: State, i: int) -> Iterator[Op]:
        yield op.Compute(hold, (at.number, i))
        yield op.Mark(KEPT, True)

    # --- parts of a tile ------------------------------------------------------------------------------------

    def counter(self, tile: Any) -> int:
        """Of a consumer's rows of a CTA's tile."""
        return self.place_of(int(tile.tile))

    def place_of(self, epi_stage: int) -> int:
        """Of the sums of a consumer's rows of a CTA's tile in the workspace, counted as counters are."""
        readers = self.pipeline.readers
        own = self.consumer if readers > 1 else 0
        return (epi_stage * product(self.plan.cluster_mn) + self.rank) * readers + own

    @reads(step.IncrementSemaphore)
    def on_increment_semaphore(self, semaphore: step.IncrementSemaphore, at: State, i: int) -> Iterator[Op]:
        if at.number >= len(self.tiles):
            return
        tile = self.tiles[at.number]
        if tile.splits > 1 and self.place.warp == 0:
            yield op.IncrementSemaphore(self.counter(tile), self.consumer, (at.number, 0))

    @reads(step.ReduceSplits)
    def on_reduce_splits(self, reduce: step.ReduceSplits, at: State, i: int) -> Iterator[Op]:
        tile, warp = self.tiles[at.number], self.place.warp
        if tile.splits < 2:
            yield op.Mark(LAST, bool(tile.splits == 1))
            return
        counter, tag = self.counter(tile), (at.number, 0)
        yield op.NamedSync("splits", self.consumer, self.threads)
        yield op.ReadSemaphore(counter, self.consumer, int(tile.splits))
        yield op.WriteAccumulators(counter, self.place_of(tile.slot + tile.k_split), warp, tag)
        if warp == 0:
            yield op.AwaitAccumulators(counter, int(tile.splits) - 1)
            yield op.ResetCounter(counter)
        yield op.NamedSync("splits", self.consumer, self.threads)
        if warp == 0:
            yield op.SignalAccumulators(counter)
        for k_split in range(int(tile.splits)):
            if k_split != tile.k_split:
                yield op.ReadAccumulators(counter, self.place_of(tile.slot + k_split), warp, (at.number, k_split))
        yield op.Compute(reduce, tag)

    # --- sums of CTAs that share K --------------------------------------------------------------------------

    @property
    def accumulators_stage(self) -> int:
        """The place of this consumer's sums from all CTAs: numbered behind the stages of the ring."""
        return self.stages + self.consumer

    @reads(step.SendAccumulators)
    def on_send_accumulators(self, send: step.SendAccumulators, at: State, i: int) -> Iterator[Op]:
        yield op.Wait("consumed", self.consumer, at.shared & 1 ^ 1)
        size_bytes = product(self.pipeline.consumer_tile) * self.plan.operands.acc.bits // 8
        if self.place.warp == 0:
            yield op.Expect("accumulators", self.consumer, size_bytes * len(self.sharers))
        operand, of_warp = accumulators_sender(self.n_rank, self.place.warp), size_bytes // self.place.warps
        tag = (at.number, WHOLE_TILE)
        yield op.Send(
            "accumulators", self.consumer, self.accumulators_stage, operand, tag, of_warp, self.sharers, self.n_rank
        )

    @reads(step.AddAccumulators)
    def on_add_accumulators(self, add: step.AddAccumulators, at: State, i: int) -> Iterator[Op]:
        yield op.Wait("accumulators", self.consumer, at.shared & 1)
        yield op.BeginRead(self.accumulators_stage, (at.number, WHOLE_TILE))
        yield op.Compute(add, (at.number, WHOLE_TILE), self.accumulators_stage)
        yield op.EndRead(self.accumulators_stage)
        yield op.Arrive("consumed", self.consumer, self.role.warps // self.place.warps, self.sharers)
        at.shared += 1

    @reads(step.AwaitConsumed)
    def on_await_consumed(self, wait: step.AwaitConsumed, at: State, i: int) -> Iterator[Op]:
        yield op.Wait("consumed", self.consumer, at.shared & 1 ^ 1)

    # --- to global memory -----------------------------------------------------------------------------------

    def epi_stage_of(self, i: int, result: str = "d") -> tuple[int, tuple[int, ...]]:
        """The epilogue stage of an epilogue tile of a result among all of the CTA's, and its parts."""
        assert self.epi_stages is not None
        epi_stage, _ = self.epi_stages.epi_stage_at(self.plan.epi_stage_number(i, result))
        return self.consumer * self.epi_stages.count + epi_stage, tuple(range(self.place.warps))

    @reads(step.LoadEpiTile)
    def on_load_epi_tile(self, fetch: step.LoadEpiTile, at: State, i: int) -> Iterator[Op]:
        assert self.epi_stages is not None
        if not self.reads_c:
            return
        count = self.epi_stages.count
        which = range(min(count, self.epi_tiles)) if fetch.ahead is None else (i + fetch.ahead,)
        for epi_tile in which:
            if fetch.ahead is None or count <= epi_tile < self.epi_tiles:
                epi_stage, pieces = self.epi_stage_of(epi_tile)
                size_bytes = c_bytes(self.plan)
                yield op.Expect("c", epi_stage, size_bytes)
                yield op.LoadEpiStage("c", epi_stage, epi_stage, pieces, (at.number, epi_tile), size_bytes)

    @reads(step.Evaluate)
    def on_evaluate(self, values: step.Evaluate, at: State, i: int) -> Iterator[Op]:
        if values.fetched and self.reads_c:
            assert self.epi_stages is not None
            epi_stage, _ = self.epi_stage_of(i)
            yield op.Wait("c", epi_stage, self.epi_stages.epi_stage_at(i)[1] & 1, flipped=True)
            yield op.ReadEpiStage(epi_stage, self.place.warp, (at.number, i))
        yield op.Compute(values, (at.number, i))

    @reads(step.WaitStores)
    def on_wait_stores(self, wait: step.WaitStores, at: State, i: int) -> Iterator[Op]:
        if wait.by != step.FIRST_WARP or self.place.warp == 0:
            yield op.WaitStores(wait.pending)

    @reads(step.WriteEpiStage)
    def on_write_epi_stage(self, write: step.WriteEpiStage, at: State, i: int) -> Iterator[Op]:
        epi_stage, _ = self.epi_stage_of(i, write.result)
        yield op.WriteEpiStage(epi_stage, self.place.warp, (at.number, i), write.result)

    @reads(step.StoreEpiStage)
    def on_store_epi_stage(self, store: step.StoreEpiStage, at: State, i: int) -> Iterator[Op]:
        epi_stage, pieces = self.epi_stage_of(i, store.result)
        tag, result = (at.number, i), store.result
        if store.by == step.ALL:
            yield op.CopyEpiStage(epi_stage, pieces, tag, self.place.warps, result)
        elif store.by == step.EACH_WARP and not store.by_tma:
            yield op.CopyEpiStage(epi_stage, (self.place.warp,), tag, 1, result)
        elif store.by == step.EACH_WARP:
            yield op.StoreEpiStage(epi_stage, (self.place.warp,), tag, result)
        elif self.place.warp == 0:
            yield op.StoreEpiStage(epi_stage, pieces, tag, result)

    @reads(step.StoreTile)
    def on_store_tile(self, store: step.StoreTile, at: State, i: int) -> Iterator[Op]:
        yield op.Compute(store, (at.number, 0))
        yield op.EndTile(self.counter(self.tiles[at.number]), self.place.warp)


@dataclass(frozen=True)
class _Lined:
    """An operation, and the line of the program that it comes from."""

    line: int
    op: Op


class _WithLines(Expansion):
    """The same operations, each with its line."""

    line = 0  # of the first of the steps that come next

    def steps(self, steps: tuple[Step, ...], at: State, i: int = 0) -> Iterator[Any]:
        first = line = self.line
        for each in steps:
            self.line = line + 1
            for found in super().steps((each,), at, i):
                yield found if isinstance(found, _Lined) else _Lined(line, found)
            line += step.height(each)
        self.line = first


def accumulators_sender(rank: int, warp: int = 0) -> str:
    """The part of the place of a consumer's sums that comes from a CTA, of those that share K, or from a warp of it."""
    return f"sums {rank}.{warp}"


def stage_bytes(plan: GemmPlan, stream: OperandStream) -> int:
    """Return the bytes of a k-tile of an operand stream that come to one CTA."""
    return product(stream.tile) * plan.operands.matrix(stream.name).dtype.bits // 8


def c_bytes(plan: GemmPlan) -> int:
    """Of an epilogue tile of C, as it comes to an epilogue stage."""
    assert plan.epi_stages is not None
    assert isinstance(plan.epi_stages.load_c, TmaBox)
    return product(plan.epi_stages.epi_tile) * plan.epi_stages.load_c.dtype.bits // 8
