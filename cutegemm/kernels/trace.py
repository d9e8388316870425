"""A program traced into code: its loops and branches, and what all roles do to the ring of stages and its barriers.

`Tracer` has a method for each kind of step, as `plan.program.expand` has: there a step becomes operations,
here code. What changes from turn to turn of a loop (where a role is in the ring, which tile it holds) is
carried by the loop; each class of steps says what it changes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from cutegemm.kernels.lines import from_line
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.program import steps as step
from cutegemm.plan.program.reader import StepReader, reads
from cutegemm.plan.program.steps import Program, Step
from cutegemm.plan.work.scheduler import WorkGrid

_PIPELINE_STATE = ("stage", "phase")
_KEPT = ("left", "overlapped_m", "overlapped_n", "overlapped_l")
LOADED = ("loaded_m", "loaded_n", "loaded_l")


@dataclass
class MainloopPipeline:
    """The stages in shared memory, and their barriers.

    smem   (rows, k, stages) of each operand stream
    gmem   (rows, k, L) of each operand of the mainloop that threads read from global memory
    """

    smem: dict[str, cute.Tensor]
    gmem: dict[str, cute.Tensor]
    full: cute.Pointer
    empty: cute.Pointer


@dataclass
class Who:
    """The thread, warp and CTA for which a program is traced.

    warp_idx    of the warp among those of all roles of its kind: the producer, or the consumers
    consumer    which of the consumers
    tid, lane   of the thread in its consumer, and in its warp
    rank        of the CTA in its cluster
    cluster     of the grid
    """

    warp_idx: Any
    consumer: Any
    tid: Any
    lane: Any
    rank: Any
    cluster: Any


@dataclass
class At:
    """A role's position in its program.

    stage, phase                   of the ring; last: the stage of the k-tile before
    first                          number of the role's first work tile; of the CTA's it is the cluster
    number                         of the work tile; tile: the work tile; k_count: of its k-tiles, none where there is
                                   no tile
    is_another                     whether the next consumer has a tile
    k_tile                         of the loop; None where it is known that another one of the tile lies before, or
                                   there is none
    i                              the epilogue tile
    accumulators_phase             of the barriers of sums, where CTAs share K
    semaphore                      that was taken for the tile
    is_last                        whether this is the last part of the tile
    c_phase                        of the barriers of the epilogue stages
    left                           epilogue tiles of the tile that is held, and overlapped_m, overlapped_n,
                                   overlapped_l: where that tile lies
    loaded_m, loaded_n, loaded_l   where a producer's tile lies: see `loaded_mnl`
    """

    stage: Any = None
    phase: Any = None
    last: Any = None
    first: Any = None
    number: Any = None
    tile: Any = None
    k_count: Any = None
    is_tile: Any = None
    is_another: Any = None
    k_tile: Any = None
    i: Any = None
    accumulators_phase: Any = None
    semaphore: Any = None
    is_last: Any = None
    c_phase: Any = None
    left: Any = None
    overlapped_m: Any = None
    overlapped_n: Any = None
    overlapped_l: Any = None
    loaded_m: Any = None
    loaded_n: Any = None
    loaded_l: Any = None

    def get(self, names: tuple[str, ...]) -> tuple[Any, ...]:
        """Some of the values."""
        return tuple([getattr(self, name) for name in names])

    def put(self, names: tuple[str, ...], values: tuple[Any, ...]) -> None:
        """Other values for them."""
        for name, value in zip(names, values, strict=True):
            setattr(self, name, value)


def changed_by(steps: tuple[Step, ...]) -> tuple[str, ...]:
    """The fields of `At` that steps change."""
    names = [name for each in Program(steps).walk() for name in each.changes]
    return tuple(dict.fromkeys(names))


class Tracer(StepReader):
    """The code of a program. Methods without a decorator are plain Python, run while tracing.

    name      of the program, where its lines are noted
    carries   fields of `At` that go from tile to tile, beside those that steps change
    """

    name = "consumer"
    carries: tuple[str, ...] = ()

    def __init__(self, plan: GemmPlan) -> None:
        self.plan, self.pipeline = plan, plan.body

    def trace(self, program: Program, who: Who, pipeline_state: MainloopPipeline, work: WorkGrid) -> None:
        """Lays the program out in the code."""
        self.who, self.pipeline_state, self.work = who, pipeline_state, work
        self.line = 0  # of the program, that the next step is
        at = At(
            **{name: Int32(0) for name in (*_PIPELINE_STATE, "last", "c_phase", "accumulators_phase", *_KEPT)},
            number=who.cluster,
        )
        at.first = self.first_number(next(each for each in program.steps if isinstance(each, step.ForTiles)))
        self.steps(program.steps, at)

    def steps(self, steps: tuple[Step, ...], at: At) -> None:
        """One step after the other."""
        first = line = self.line
        for each in steps:
            self.line = line + 1  # of its own steps
            with from_line(self.name, line):
                self.read(each, at)
            line += step.height(each)
        self.line = first

    def inside(self, steps: tuple[Step, ...], at: At, names: tuple[str, ...], values: tuple, **known) -> tuple:
        """Steps inside of a loop or a branch, which carries some values in and out."""
        at = replace(at, **known)
        at.put(names, values)
        self.steps(steps, at)
        return at.get(names)

    # --- loops and branches ------------------------------------------------------------------------------------

    @reads(step.ForTiles)
    def on_for_tiles(self, loop: step.ForTiles, at: At) -> None:
        names = changed_by(loop.steps)
        if any(isinstance(each, step.ForAhead) for each in loop.steps):  # who loads for itself begins a tile at stage 0
            names = tuple([name for name in names if name not in _PIPELINE_STATE])
        names = (*names, *self.carries)
        at.put(names, self.for_tiles(loop, at, names, at.first, at.get(names)))

    def first_number(self, loop: step.ForTiles):
        """Of the role's first work tile."""
        if loop.every == 1:
            return self.who.cluster
        return self.work.first_of(self.who.cluster, self.who.consumer, loop.every)

    @cute.jit
    def for_tiles(
        self,
        loop: cutlass.Constexpr,
        at: cutlass.Constexpr,
        names: cutlass.Constexpr,
        number: Int32,
        values: tuple,
    ):
        if cutlass.const_expr(loop.lasting):
            while number < self.work.count or self.is_overlapped(names, values):
                values = self.tile(loop, at, names, number, values)
                number = self.work.following(number, loop.every)
        else:
            while number < self.work.count:
                values = self.tile(loop, at, names, number, values)
                number = self.work.following(number, loop.every)
        return values

    def is_overlapped(self, names: tuple[str, ...], values: tuple):
        """Whether there is a tile that is to be stored yet."""
        return values[names.index("left")] > 0

    def tile(self, loop: step.ForTiles, at: At, names: tuple[str, ...], number, values: tuple) -> tuple:
        """A work tile."""
        tile = self.work.work_tile(number)
        self.begin(tile)
        known = {"number": number, "tile": tile, "k_count": tile.k_count}
        if loop.every > 1:
            known["is_another"] = self.work.following(number) < self.work.count
        if loop.lasting:
            known["is_tile"] = number < self.work.count
            known["k_count"] = self.k_count_of(known["is_tile"], tile.k_count)
        return self.inside(loop.steps, at, names, values, **known)

    def begin(self, tile) -> None:
        """What a role works out of a work tile before it waits for anything."""

    @cute.jit
    def k_count_of(self, is_tile, k_count):
        """k-tiles of a tile; none where there is no tile."""
        found = Int32(0)
        if is_tile:
            found = Int32(k_count)
        return found

    @reads(step.ForKTiles)
    def on_for_k_tiles(self, loop: step.ForKTiles, at: At) -> None:
        count = at.k_count - 1 if loop.but_last else at.k_count
        names = (*(("last",) if _uses_last(loop.steps) else ()), *_PIPELINE_STATE)
        if loop.by == 1:
            if "last" in names:
                at.last = at.stage
            at.put(names, self.for_k_tiles(loop, at, names, count, at.get(names)))
        else:
            at.put(names, self.by_twos(loop, at, names, count, at.get(names)))

    @cute.jit
    def for_k_tiles(
        self,
        loop: cutlass.Constexpr,
        at: cutlass.Constexpr,
        names: cutlass.Constexpr,
        count: Int32,
        values: tuple,
    ):
        for k_tile in cutlass.range(count, unroll=1):
            values = self.k_tile(loop, at, names, k_tile, values)
        return values

    @cute.jit
    def by_twos(
        self,
        loop: cutlass.Constexpr,
        at: cutlass.Constexpr,
        names: cutlass.Constexpr,
        count: Int32,
        values: tuple,
    ):
        """All but an odd one, which stands before them."""
        for k_tile in cutlass.range(count % 2, count, 2, unroll=1):
            values = self.k_tile(loop, at, names, k_tile, values)
        return values

    def k_tile(self, loop: step.ForKTiles, at: At, names: tuple[str, ...], k_tile, values: tuple) -> tuple:
        """A k-tile; the position moves on behind it."""
        at = replace(at, k_tile=k_tile)
        at.put(names, values)
        self.steps(loop.steps, at)
        at.last = at.stage
        at.stage, at.phase = self.next_stage(at.stage, at.phase)
        return at.get(names)

    @reads(step.ForStages)
    def on_for_stages(self, loop: step.ForStages, at: At) -> None:
        names = _PIPELINE_STATE
        at.put(names, self.for_k_tiles(loop, at, names, Int32(self.plan.stages), at.get(names)))

    @reads(step.If)
    def on_if(self, branch: step.If, at: At) -> None:
        names = tuple([name for name in changed_by(branch.steps) if name != "c_phase" or self.turns(branch)])
        at.put(names, self.when(branch.steps, at, names, self.condition(branch, at), at.get(names)))

    def turns(self, branch: step.If) -> bool:
        """Whether a branch stores epilogue tiles, which turns the phase of their epilogue stages' barriers round."""
        return any(isinstance(each, step.ForEpiTiles) for each in Program(branch.steps).walk())

    @cute.jit
    def when(
        self,
        steps: cutlass.Constexpr,
        at: cutlass.Constexpr,
        names: cutlass.Constexpr,
        condition,
        values: tuple,
    ):
        if condition:
            values = self.inside(steps, at, names, values)
        elif cutlass.const_expr(self.forgets(at)):
            self.forget()
        return values

    def forgets(self, at: At) -> bool:
        """Whether registers hold something that nobody reads where a condition does not hold."""
        return False

    def forget(self) -> None:
        """Overwrites them, so that the compiler keeps no registers for it."""

    def condition(self, branch: step.If, at: At):
        """The value of a condition."""
        if branch.condition == step.HAS_K_TILES:
            return at.k_count > 0
        if branch.condition == step.HAS_ODD_K_TILES:
            return at.k_count % 2 > 0
        if branch.condition == step.IS_TILE:
            return at.is_tile
        assert branch.condition == step.IS_LAST_SPLIT, branch.condition
        return at.is_last

    # --- the ring ----------------------------------------------------------------------------------------------

    @reads(step.Wait)
    def on_wait(self, wait: step.Wait, at: At) -> None:
        if wait.barrier == "full":
            cute.arch.mbarrier_wait(self.pipeline_state.full + at.stage, at.phase)
        else:
            cute.arch.mbarrier_wait(self.pipeline_state.empty + at.stage, at.phase ^ 1)

    @cute.jit
    def next_stage(self, stage: Int32, phase: Int32):
        """The position one k-tile further."""
        stage = stage + 1
        if stage == self.plan.stages:
            stage = Int32(0)
            phase = phase ^ 1
        return stage, phase

    @reads(step.Advance)
    def on_advance(self, advance: step.Advance, at: At) -> None:
        at.last, at.k_tile = at.stage, None
        at.stage, at.phase = self.next_stage(at.stage, at.phase)

    @reads(step.Skip)
    def on_skip(self, skip: step.Skip, at: At) -> None:
        turns = self.pipeline.tiles_in_flight
        if skip.whose == step.BEFORE:
            k_tiles = self.work.k_tiles_before(self.who.cluster, self.who.consumer, turns)
        else:
            k_tiles = self.work.k_tiles_between(at.number, turns)
        position = cute.arch.make_warp_uniform(at.stage + k_tiles)
        stages = self.plan.stages
        at.stage, at.phase = position % stages, at.phase ^ ((position // stages) & 1)

    @reads(step.Release)
    def on_release(self, release: step.Release, at: At) -> None:
        if not release.previous:
            self.release(at.stage)
        elif at.k_tile is None:
            self.release(at.last)
        else:
            self.release_previous(at, at.k_tile)

    @cute.jit
    def release_previous(self, at: cutlass.Constexpr, k_tile: Int32):
        """At a tile's first k-tile there is none."""
        if k_tile > 0:
            self.release(at.last)

    @cute.jit
    def release(self, stage: Int32):
        """A warp has read the stage, and says so to all CTAs that load to it."""
        cm, cn = self.plan.multicast_mn
        if self.who.lane < cm + cn - 1:
            if cutlass.const_expr(cm * cn > 1):
                cute.arch.mbarrier_arrive(self.pipeline_state.empty + stage, self.peer)
            else:
                cute.arch.mbarrier_arrive(self.pipeline_state.empty + stage)

    @cute.jit
    def peer_of(self, lane: Int32, rank: Int32):
        """The CTA that this lane tells of a free stage: one of those that load to this CTA."""
        cm, cn = self.plan.multicast_mn
        peer = lane  # along one mode: everyone in the cluster
        if cutlass.const_expr(self.plan.cluster_k > 1):  # or everyone with the same k-tiles
            _, n = self.plan.scheduler.rank_mn(rank)
            peer = lane + n * cm
        if cutlass.const_expr(cm > 1 and cn > 1):
            m, n = self.plan.scheduler.rank_mn(rank)
            peer = lane + n * cm  # lanes 0 .. cm - 1: along M
            if lane >= cm:  # then along N, without itself
                other = lane - cm
                if other >= n:
                    other += 1
                peer = m + other * cm
        return peer

    # --- named barriers ------------------------------------------------------------------------------------------

    def sync(self, name: str, index) -> None:
        """All threads of a named barrier."""
        cute.arch.barrier(
            barrier_id=self.plan.barrier_id(name) + index, number_of_threads=self.plan.barrier(name).arrivals
        )

    def arrive(self, name: str, index) -> None:
        """At a named barrier, without waiting."""
        cute.arch.barrier_arrive(
            barrier_id=self.plan.barrier_id(name) + index, number_of_threads=self.plan.barrier(name).arrivals
        )


def _uses_last(steps: tuple[Step, ...]) -> bool:
    """Whether the stage of the k-tile before is asked for."""
    return any(getattr(each, "previous", False) or getattr(each, "ahead", 0) for each in Program(steps).walk())
