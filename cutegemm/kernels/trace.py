"""Trace a program into code: its loops, its branches, and the steps of all roles on the mainloop pipeline.

`Tracer` has a method for each kind of step, as `plan.program.expand` has; there a step becomes operations, here it
becomes code. Values that change from one iteration of a loop to the next, such as the pipeline state or the tile,
are carried by the loop. Each class of steps names the fields of `At` that it changes.
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
from cutegemm.plan.work.work import State, Work

_PIPELINE_STATE = ("stage", "phase")
_KEPT = ("left", "overlapped_m", "overlapped_n", "overlapped_l", "overlapped_begin", "overlapped_size")
LOADED = ("loaded_m", "loaded_n", "loaded_l")


@dataclass
class MainloopPipeline:
    """The stages of the mainloop pipeline in shared memory, and their barriers.

    smem          (rows, k, stages) of each operand that is loaded to stages, by name
    gmem          (rows, k, L) of each mainloop operand that threads read from global memory, by name
    full, empty   first mbarrier of each kind; there is one for each stage
    """

    smem: dict[str, cute.Tensor]
    gmem: dict[str, cute.Tensor]
    full: cute.Pointer
    empty: cute.Pointer


@dataclass
class Who:
    """The thread, warp and CTA for which the code of a role's program is emitted.

    warp_idx    index of the warp among the warps of its kind of role, the producer or all consumers
    consumer    index of the consumer; None for a producer
    tid, lane   index of the thread in its consumer, and in its warp
    rank        rank of the CTA in its cluster
    cluster     position of the cluster in the order of work tiles, which determines its first work tile
    """

    warp_idx: Any
    consumer: Any
    tid: Any
    lane: Any
    rank: Any
    cluster: Any


@dataclass
class At:
    """A warp role's position in its program: which tile, k-tile and pipeline stage its next step works on.

    Most fields are values known at run time; None: not known at this position.

    stage, phase                   pipeline state: index of the stage and parity of its phase
    last                           stage of the previous k-tile
    state                          numbers that determine the cluster's first work tile; in the loop over work tiles,
                                   the current one
    tile                           the current work tile
    k_count                        its number of k-tiles; 0 if the work tile does not exist
    is_tile                        whether the work tile exists
    is_another                     whether the next consumer has a work tile
    k_tile                         iteration of the loop over k-tiles. None: outside of the loop, or if an earlier
                                   k-tile of the work tile is certain to exist
    i                              index of the epilogue tile
    accumulators_phase             phase of the barriers of cluster split-K
    semaphore                      previous value of the tile's semaphore, as the consumer found it
    is_last                        whether this is the last K split of the tile
    c_phase                        phase of the barriers of the epilogue stages
    left                           epilogue tiles that remain of the tile that is kept in registers (overlapped
                                   epilogue)
    overlapped_m, _n, _l           coordinates of that tile
    overlapped_begin, _size        first row and number of rows of its group
    loaded_m, loaded_n, loaded_l   coordinates of the tiles that a producer loads
    """

    stage: Any = None
    phase: Any = None
    last: Any = None
    state: Any = None
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
    overlapped_begin: Any = None
    overlapped_size: Any = None
    loaded_m: Any = None
    loaded_n: Any = None
    loaded_l: Any = None

    def get(self, names: tuple[str, ...]) -> tuple[Any, ...]:
        """Return the values of some fields of this object, such as "stage" and "phase", in the order of `names`."""
        return tuple([getattr(self, name) for name in names])

    def put(self, names: tuple[str, ...], values: tuple[Any, ...]) -> None:
        """Set some fields of this record of a role's position, e.g. after a loop whose iterations have changed them.

        names    names of the fields, such as "stage" and "phase"
        values   their new values, in the same order
        """
        for name, value in zip(names, values, strict=True):
            setattr(self, name, value)


def changed_by(steps: tuple[Step, ...]) -> tuple[str, ...]:
    """Return the names of the variables that some steps of a program change, such as "stage" or "phase", each once.

    A loop over these steps has to carry these variables. They describe the role's position, e.g. the pipeline stage.
    """
    names = [name for each in Program(steps).walk() for name in each.changes]
    return tuple(dict.fromkeys(names))


class Tracer(StepReader):
    """Emits the code of a warp role (producer or consumer) while the CuTe DSL traces a Hopper kernel.

    A warp role's program is a list of steps, such as "wait for a full stage" or "issue the MMAs of a k-tile", with
    loops around them. A subclass has a method for each class of step, which emits the code of that step. The methods
    share a record of the position in the program, e.g. the current pipeline stage. Loops of the kernel carry its values
    from one iteration to the next.

    name      name of the program, which a profile shows as the source of the code
    carries   names of more loop-carried values of the loop over work tiles; values that steps change are carried anyway
    """

    name = "consumer"
    carries: tuple[str, ...] = ()

    def __init__(self, plan: GemmPlan) -> None:
        self.plan, self.pipeline = plan, plan.body

    def trace(self, program: Program, who: Who, pipeline_state: MainloopPipeline, work: Work) -> None:
        """Emit the code of a whole warp role, producer or consumer, from the steps of its program.

        program          the steps, such as waits, loads and MMAs, with loops around them
        who              thread, warp and CTA for which the code is emitted
        pipeline_state   stages of shared memory, and their barriers
        work             the scheduler, which gives each cluster its work tiles (a tile of D and a range of K)
        """
        self.who, self.pipeline_state, self.work = who, pipeline_state, work
        self.line = 0  # line of the program on which the next step stands
        at = At(
            **{name: Int32(0) for name in (*_PIPELINE_STATE, "last", "c_phase", "accumulators_phase", *_KEPT)},
            state=work.first(who.cluster),
        )
        loop = next(each for each in program.steps if isinstance(each, step.ForTiles))
        self.own_first = self.first_state(loop, at.state)
        self.steps(program.steps, at)

    def steps(self, steps: tuple[Step, ...], at: At) -> None:
        """Emit the code of steps of a program in order, and record for each step its line of the program.

        at   the role's position in the program, which the steps change
        """
        first = line = self.line
        for each in steps:
            self.line = line + 1  # first line of the steps inside of this one
            with from_line(self.name, line):
                self.read(each, at)
            line += step.height(each)
        self.line = first

    def inside(self, steps: tuple[Step, ...], at: At, names: tuple[str, ...], values: tuple, **known) -> tuple:
        """Emit the steps inside of a loop or branch, and return the new values of the variables that it may change.

        at              the role's position before; it is not changed
        names, values   names of the loop-carried variables, such as "stage", and their values at the start
        known           further fields of `At` that are set for the steps
        """
        at = replace(at, **known)
        at.put(names, values)
        self.steps(steps, at)
        return at.get(names)

    # --- loops and branches ------------------------------------------------------------------------------------

    @reads(step.ForTiles)
    def on_for_tiles(self, loop: step.ForTiles, at: At) -> None:
        names = changed_by(loop.steps)
        if any(isinstance(each, step.ForAhead) for each in loop.steps):  # without a producer, tiles start at stage 0
            names = tuple([name for name in names if name not in _PIPELINE_STATE])
        names = (*names, *self.carries)
        at.put(names, self.for_tiles(loop, at, names, self.own_first, at.get(names)))

    def first_state(self, loop: step.ForTiles, state: State) -> State:
        """Return the numbers that determine the first work tile of this role, from those of its cluster.

        loop    the loop over work tiles
        state   integers that identify the cluster's first work tile
        """
        return state if loop.every == 1 else self.work.first_of(state, self.who.consumer, loop.every)

    @cute.jit
    def for_tiles(
        self,
        loop: cutlass.Constexpr,
        at: cutlass.Constexpr,
        names: cutlass.Constexpr,
        state: tuple,
        values: tuple,
    ):
        """Emit the loop over a role's work tiles, and return the final values of its loop-carried variables.

        loop            the step, with the steps of an iteration
        at              the role's position before the loop
        names, values   names of the loop-carried variables, such as "stage", and their values before the loop
        state           integers that identify the role's first work tile; the loop carries them too
        """
        if cutlass.const_expr(loop.lasting):
            while self.work.exists(state) or self.is_overlapped(names, values):
                values = self.tile(loop, at, names, state, values)
                state = self.work.ahead(state, loop.every)
        else:
            while self.work.exists(state):
                values = self.tile(loop, at, names, state, values)
                state = self.work.ahead(state, loop.every)
        return values

    def is_overlapped(self, names: tuple[str, ...], values: tuple):
        """Return whether a finished tile that is kept in registers is still to be stored (overlapped epilogue).

        names, values   names of loop-carried variables, such as "stage", and their values
        """
        return values[names.index("left")] > 0

    def tile(self, loop: step.ForTiles, at: At, names: tuple[str, ...], state: State, values: tuple) -> tuple:
        """Emit the code of one work tile, and return the new values of the loop-carried variables.

        loop            the step, with the steps of an iteration
        at              the role's position before the loop
        names, values   names of the loop-carried variables, such as "stage", and their values before the work tile
        state           integers that identify the work tile, such as its number
        """
        tile = self.work.tile(state)
        self.begin(tile)
        known = {"state": state, "tile": tile, "k_count": tile.k_count}
        if loop.every > 1:
            known["is_another"] = self.work.exists(self.work.next(state))
        if loop.lasting:
            known["is_tile"] = self.work.exists(state)
            known["k_count"] = self.k_count_of(known["is_tile"], tile.k_count)
        return self.inside(loop.steps, at, names, values, **known)

    def begin(self, tile) -> None:
        """Compute values about a work tile that this role needs, before it waits for anything; by default nothing."""

    @cute.jit
    def k_count_of(self, is_tile, k_count):
        """Return the number of k-tiles to multiply for a work tile, a run-time value: 0 if there is no work tile.

        is_tile   run-time condition: whether the work tile exists
        k_count   number of its k-tiles if it exists
        """
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
        """Emit a loop over `count` k-tiles, and return the final values of its loop-carried variables.

        loop            the step, with the steps of an iteration
        at              the role's position before the loop
        names, values   names of the loop-carried variables, such as "stage", and their values before the loop
        """
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
        """Emit a loop over pairs of k-tiles. If their number is odd, the first one is handled before the loop.

        loop            the step, with the steps of an iteration
        at              the role's position before the loop
        names, values   names of the loop-carried variables, such as "stage", and their values before it
        count           number of k-tiles
        returns         the final values of these variables
        """
        for k_tile in cutlass.range(count % 2, count, 2, unroll=1):
            values = self.k_tile(loop, at, names, k_tile, values)
        return values

    def k_tile(self, loop: step.ForKTiles, at: At, names: tuple[str, ...], k_tile, values: tuple) -> tuple:
        """Emit the code of one k-tile, advance the pipeline state, and return the loop-carried variables.

        loop            the step, with the steps of an iteration
        at              the role's position before the loop
        names, values   names of the loop-carried variables, such as "stage", and their values before the k-tile
        k_tile          index of the k-tile in its work tile
        """
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
        """Return whether the steps of a branch store epilogue tiles, so that they may flip the phase of barriers.

        The barriers are those of the epilogue stages (buffers in shared memory). If True, the parity of their phase is
        one of the variables that the branch changes.
        """
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
        """Emit steps that run only if a condition holds, and return the variables that they may change.

        steps           the steps
        at              the role's position before the branch
        names, values   names of the variables (fields of `At`) that the branch may change, and their values before it
        condition       value known at run time
        """
        if condition:
            values = self.inside(steps, at, names, values)
        elif cutlass.const_expr(self.forgets(at)):
            self.forget()
        return values

    def forgets(self, at: At) -> bool:
        """Return whether this role no longer needs values that it keeps in registers, if a branch is not taken."""
        return False

    def forget(self) -> None:
        """Overwrite dead registers of this role, so that the compiler does not preserve their values.

        A subclass overrides it; by default nothing is overwritten.
        """

    def condition(self, branch: step.If, at: At):
        """Return the value of the condition of an `If` step: a bool known while tracing, or a value known at run time.

        branch   the step, which names its condition
        at       the role's position in its program: work tile, k-tile and pipeline state
        """
        if branch.condition == step.HAS_K_TILES:
            return at.k_count > 0
        if branch.condition == step.HAS_ODD_K_TILES:
            return at.k_count % 2 > 0
        if branch.condition == step.IS_TILE:
            return at.is_tile
        assert branch.condition == step.IS_LAST_SPLIT, branch.condition
        return at.is_last

    # --- the mainloop pipeline -----------------------------------------------------------------------------------

    @reads(step.Wait)
    def on_wait(self, wait: step.Wait, at: At) -> None:
        if wait.barrier == "full":
            cute.arch.mbarrier_wait(self.pipeline_state.full + at.stage, at.phase)
        else:
            cute.arch.mbarrier_wait(self.pipeline_state.empty + at.stage, at.phase ^ 1)

    @cute.jit
    def next_stage(self, stage: Int32, phase: Int32):
        """Return (stage, phase) of the mainloop pipeline for the next k-tile. The phase flips after the last stage.

        stage, phase   index of the present stage, and parity of its phase
        """
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
            k_tiles = self.work.k_tiles_before(at.state, self.who.consumer, turns)
        else:
            k_tiles = self.work.k_tiles_between(at.state, turns)
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
        """Release the stage of the previous k-tile (consumer release), unless this is the first k-tile of a work tile.

        at       the role's position in its program: work tile, k-tile and pipeline state
        k_tile   index of the k-tile in its work tile
        """
        if k_tile > 0:
            self.release(at.last)

    @cute.jit
    def release(self, stage: Int32):
        """Release a stage that this warp has read (consumer release): arrive at the `empty` barriers of the stage.

        One lane arrives for each CTA that loads to this stage.

        stage   index of the stage
        """
        cm, cn = self.plan.multicast_mn
        if self.who.lane < cm + cn - 1:
            if cutlass.const_expr(cm * cn > 1):
                cute.arch.mbarrier_arrive(self.pipeline_state.empty + stage, self.peer)
            else:
                cute.arch.mbarrier_arrive(self.pipeline_state.empty + stage)

    @cute.jit
    def peer_of(self, lane: Int32, rank: Int32):
        """Return the rank of the CTA at whose `empty` barriers this lane arrives, to release a stage.

        It is one of the CTAs that load to this CTA.

        lane   index of the thread in its warp; each lane has another CTA
        rank   rank of this CTA in its cluster
        """
        cm, cn = self.plan.multicast_mn
        peer = lane  # multicast along one mode: every CTA of the cluster
        if cutlass.const_expr(self.plan.cluster_k > 1):  # cluster split-K: every CTA with the same k-tiles
            _, n = self.plan.cluster_tile.rank_mn(rank)
            peer = lane + n * cm
        if cutlass.const_expr(cm > 1 and cn > 1):
            m, n = self.plan.cluster_tile.rank_mn(rank)
            peer = lane + n * cm  # lanes 0 .. cm - 1: along M
            if lane >= cm:  # then along N, without itself
                other = lane - cm
                if other >= n:
                    other += 1
                peer = m + other * cm
        return peer

    # --- named barriers ------------------------------------------------------------------------------------------

    def sync(self, name: str, index) -> None:
        """Arrive at a named barrier of the CTA, and wait until all threads that use the barrier have arrived.

        name    name of the barrier in the plan, such as "order"
        index   index among the barriers of this name, such as that of the consumer
        """
        cute.arch.barrier(
            barrier_id=self.plan.barrier_id(name) + index, number_of_threads=self.plan.barrier(name).arrivals
        )

    def arrive(self, name: str, index) -> None:
        """Arrive at a named barrier of this plan without waiting.

        name    name of the barrier, such as "order"
        index   index among the barriers of this name, such as that of the consumer
        """
        cute.arch.barrier_arrive(
            barrier_id=self.plan.barrier_id(name) + index, number_of_threads=self.plan.barrier(name).arrivals
        )


def _uses_last(steps: tuple[Step, ...]) -> bool:
    """Return whether any of the steps uses the stage of the previous k-tile, as `Release(previous=True)` does."""
    return any(getattr(each, "previous", False) or getattr(each, "ahead", 0) for each in Program(steps).walk())
