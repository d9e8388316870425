"""Expand the program of a role into operations: every barrier, stage and tile index, for the tiles that one CTA takes.

The simulator executes the operations (see `operations`); the barriers of a plan are counted from them.
"""

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

if TYPE_CHECKING:
    from cutegemm.plan.plan import GemmPlan

TENSOR_CORES = "tensor cores"


@dataclass(frozen=True)
class Place:
    """The place where a warp role's program is executed: which CTA, which role, and which of its warps.

    cta        index of the CTA in the grid. The CTAs of a cluster have consecutive indices, along M first
    role       index of the role in `plan.roles`
    warp       index of the simulated process among those of the role, in [0, warps)
    warps      number of processes that simulate the role: 1 for all its warps together, or one for each warp, which
               also finds errors in the order of two warps
    """

    cta: int
    role: int
    warp: int = 0
    warps: int = 1


@dataclass
class State:
    """The position of a warp role in its program and in the mainloop pipeline, at one moment of its execution.

    position    number of k-tiles that the CTA has passed through the mainloop pipeline before the present one
    previous    `position` of the previous k-tile of the same work tile; None at the first k-tile of a work tile
    number      index of the work tile among those of the CTA. In a last iteration without a work tile it is their
                number
    k           index of the k-tile in the work tile
    shared      number of tiles whose accumulators the CTAs of the cluster have exchanged so far (cluster split-K)
    running     the stage that each unfinished group of MMAs reads, the oldest group first; None for a group if a later
                one reads the same stage and ends the reading
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
    """Execute a warp role's program symbolically: return its barrier and memory operations for the tiles of a CTA.

    Loops are unrolled, and all indices (stage, parity, tile) are numbers.

    plan      plan with warp roles
    program   program of the role
    place     the CTA, the role and its warps
    tiles     work tiles (a tile of D with all or some of its k-tiles) that the CTA takes, in order; `WorkTile`, or any
              object with its fields
    stages    number of stages of the mainloop pipeline; 0: as many as the plan has
    reads_c   whether the epilogue reads its M x N operands, such as C: beta is not 0
    returns   operations such as `Wait` or `Load`

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
    """Return, for each operation that `expand` returns, the line of the printed program that it comes from, from 0.

    program   program of a warp role
    place     the CTA, the role and its warps
    tiles     work tiles that the CTA takes, in order
    reads_c   whether the epilogue reads its M x N operands, such as C

    >>> from cutegemm.build import sm90_plan
    >>> from cutegemm.plan.work.division import WorkTile
    >>> plan = sm90_plan()
    >>> lines_of(plan, plan.program("producer"), Place(0, 0), [WorkTile(0, 0, 2, 1, 0, 0)])
    (2, 3, 3, 3, 2, 3, 3, 3)
    """
    found: Iterator[Any] = _WithLines(plan, place, tiles, plan.stages, reads_c).of(program)
    return tuple([each.line for each in found if isinstance(each, _Lined)])


class Expansion(StepReader):
    """Executes a warp role's program for one CTA symbolically: yields the barrier and memory operations of each step.

    For each class of program step there is a method `on_...`. It gets the step, the role's position in the program
    (work tile, k-tile and pipeline stage), and the index of the epilogue tile if the step is in a loop over epilogue
    tiles, else 0.

    plan      plan with warp roles
    place     the CTA, the role and its warps
    tiles     work tiles (a tile of D with all or some of its k-tiles) that the CTA takes, in order
    stages    number of stages of the mainloop pipeline
    reads_c   whether the epilogue reads its M x N operands, such as C
    """

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
        self.m_rank, self.n_rank = plan.cluster_tile.rank_mn(rank)
        row = tuple(range(first + self.m_rank, first + cm * cn, cm))
        self.row = row if cluster_k == 1 else (place.cta,)  # CTAs that read the same rows and k-tiles of A
        self.sharers = row if cluster_k > 1 else ()  # CTAs that split the K of the same tile
        self.column = tuple(
            range(place.cta - self.m_rank, place.cta - self.m_rank + cm)
        )  # CTAs that read the same columns of B
        self.sources = tuple(sorted({*self.row, *self.column}))
        self.epi_tiles = plan.store.epi_tile_count(plan)

    def of(self, program: Program) -> Iterator[Op]:
        """Yield the barrier and memory operations of a warp role's program, from its first step on."""
        yield from self.steps(program.steps, State())

    def steps(self, steps: tuple[Step, ...], at: State, i: int = 0) -> Iterator[Op]:
        """Yield the barrier and memory operations of some steps of a warp role's program.

        at   position of the role in its program and in the mainloop pipeline; the steps change it
        i    index of the epilogue tile, in a loop over epilogue tiles
        """
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
        """Yield a `Branch` followed by some operations: at run time they are skipped if the flag is not set.

        flag   `LAST` (this is the last K split of a tile) or `KEPT` (a tile is kept in registers)
        ops    the operations; nothing is yielded if there are none
        """
        body = list(ops)
        if body:
            yield op.Branch(flag, len(body))
            yield from body

    # --- the mainloop pipeline ------------------------------------------------------------------------------

    def k_tiles(self, at: State) -> int:
        """Return the number of k-tiles of the work tile that a role is at; 0 after the last work tile.

        at   position of the role
        """
        return int(self.tiles[at.number].k_count) if at.number < len(self.tiles) else 0

    def stage(self, position: int) -> tuple[int, int]:
        """Return (stage, parity of its phase) of a k-tile in the mainloop pipeline.

        position   number of k-tiles that the CTA has passed through the pipeline before it. With 4 stages, 5 gives (1,
                   1)
        """
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
        if self.plan.operands.gathered:  # each other warp arrives as well, also one that has no row to load
            yield op.Arrive("full", stage, self.role.warps - 1, (self.place.cta,))
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
        """Return the operation that releases a stage of the mainloop pipeline: it arrives on its "empty" barriers.

        One lane of each warp arrives, in every CTA that loads to the stage.

        stage   index of the stage
        """
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

    # --- order barriers and other named barriers ------------------------------------------------------------

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

    # --- K splits of a tile ---------------------------------------------------------------------------------

    def counter(self, tile: Any) -> int:
        """Return the index of the semaphore that counts the K splits of this consumer's rows of a tile.

        tile   a work tile of the cluster; its field `tile` is the index of the tile
        """
        return self.place_of(int(tile.tile))

    def place_of(self, slot: int) -> int:
        """Return the index of this consumer's semaphore of a tile, or of its accumulators of a K split in memory.

        Both are stored as arrays with three modes: slot, CTA of the cluster, consumer. The consumer is the fastest
        mode.

        slot   for a semaphore: index of the cluster's tile. For accumulators: index of the K split's slot in the
               workspace
        """
        readers = self.pipeline.readers
        own = self.consumer if readers > 1 else 0
        return (slot * product(self.plan.cluster_mn) + self.rank) * readers + own

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

    # --- cluster split-K ------------------------------------------------------------------------------------

    @property
    def accumulators_stage(self) -> int:
        """Return the stage number of this consumer's buffer for accumulators from other CTAs (cluster split-K).

        These buffers are numbered after the stages of the mainloop pipeline.
        """
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

    @reads(step.Evaluate)
    def on_evaluate(self, values: step.Evaluate, at: State, i: int) -> Iterator[Op]:
        if values.fetched and self.reads_c:
            yield from self.plan.store.read_fetched(self, at, i)
        yield op.Compute(values, (at.number, i))

    @reads(step.StoreTile)
    def on_store_tile(self, store: step.StoreTile, at: State, i: int) -> Iterator[Op]:
        yield op.Compute(store, (at.number, 0))
        yield op.EndTile(self.counter(self.tiles[at.number]), self.place.warp)


@dataclass(frozen=True)
class _Lined:
    """An operation of an executed program, with the line of the printed program that it comes from.

    line   index of the line, counted from 0
    op     the operation, such as a wait or a load
    """

    line: int
    op: Op


class _WithLines(Expansion):
    """Executes a warp role's program symbolically: yields each operation with the line of the program it is from."""

    line = 0  # line of the first step of the next call of `steps`

    def steps(self, steps: tuple[Step, ...], at: State, i: int = 0) -> Iterator[Any]:
        first = line = self.line
        for each in steps:
            self.line = line + 1
            for found in super().steps((each,), at, i):
                yield found if isinstance(found, _Lined) else _Lined(line, found)
            line += step.height(each)
        self.line = first


def accumulators_sender(rank: int, warp: int = 0) -> str:
    """Return the simulator's name for the accumulators that one warp sends to the other CTAs of its cluster (split-K).

    E.g. "sums 1.0" for warp 0 of the CTA of rank 1.

    rank   rank of the sending CTA among the CTAs that split K
    warp   index of the warp in its consumer
    """
    return f"sums {rank}.{warp}"


def stage_bytes(plan: GemmPlan, stream: OperandStream) -> int:
    """Return the number of bytes that one k-tile of an operand takes in the shared memory of one CTA.

    stream   how the operand (A, B or another one of the mainloop) is loaded
    """
    return product(stream.tile) * plan.operands.matrix(stream.name).dtype.bits // 8
