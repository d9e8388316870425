"""Thread schedules: the steps of all threads of a CTA for each k-tile, as data.

The simulator executes the steps of a schedule, and the kernels trace the same steps into code. So the code that runs is
the code that was checked. Steps name k-tiles relative to t, the k-tile that is being multiplied. K-tile i is in the
shared-memory stage i % stages. The fragments of a k-block are in the buffer k_block % fragments.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, ClassVar, Union

from cutegemm.errors import UnsupportedError
from cutegemm.layout import hooks
from cutegemm.plan.mainloop.base import Mainloop
from cutegemm.plan.rules.bounds import MOST_STAGES, count_rule
from cutegemm.tile.tiled_mma import TiledMma

if TYPE_CHECKING:
    from cutegemm.plan.plan import GemmPlan

_MOST_STEPS = 1 << 16  # steps of a schedule, with loops unrolled


@dataclass(frozen=True)
class Fetch:
    """Step of a thread schedule: start to load a k-tile, by cp.async to its stage, or else to registers.

    ahead    number of k-tiles from the one that is multiplied to the one that is loaded
    chunk    index of the piece of the k-tile's copies that this step issues; piece 0 begins to overwrite the stage
    chunks   number of pieces that the copies of a k-tile are divided into
    """

    ahead: int
    chunk: int = 0
    chunks: int = 1


@dataclass(frozen=True)
class Commit:
    """Step of a thread schedule: put the copies since the last commit into a group (cp.async.commit_group)."""


@dataclass(frozen=True)
class Store:
    """Step of a thread schedule: write a k-tile from registers to its stage. It does nothing if cp.async loads k-tiles.

    ahead   number of k-tiles from the one that is multiplied to the one that is written
    """

    ahead: int


@dataclass(frozen=True)
class Wait:
    """Step of a thread schedule: wait until at most `pending` groups of copies are unfinished (cp.async.wait_group)."""

    pending: int


@dataclass(frozen=True)
class Sync:
    """Step of a thread schedule: synchronize all threads of the CTA (bar.sync 0)."""


@dataclass(frozen=True)
class Read:
    """Step of a thread schedule: read the fragments of a k-block to registers, from shared memory.

    Without stages they are read from global memory.

    k_block   index of the k-block in its k-tile
    ahead     number of k-tiles from the one that is multiplied to the one that is read
    """

    k_block: int
    ahead: int = 0


@dataclass(frozen=True)
class Multiply:
    """Step of a thread schedule: multiply the fragments of a k-block, and add to the accumulators.

    k_block   index of the k-block in its k-tile
    """

    k_block: int


@dataclass(frozen=True)
class Repeat:
    """Loop in a thread schedule over k-blocks. In iteration i, i * `stride` is added to the k-block index of each step.

    times    number of iterations
    stride   k-blocks from one iteration to the next
    steps    the steps of the first iteration
    """

    times: int
    stride: int
    steps: tuple[Union[Read, Multiply], ...]

    def expand(self) -> Iterator[Step]:
        """Yield the steps of all iterations of this loop, in order, with their own k-block indices."""
        for turn in range(self.times):
            for step in self.steps:
                yield replace(step, k_block=step.k_block + turn * self.stride)


Step = Union[Fetch, Commit, Store, Wait, Sync, Read, Multiply, Repeat]


@dataclass(frozen=True)
class ThreadSchedule(hooks.Listing):
    """What all threads of a CTA do, if they have no roles: steps before the loop over k-tiles, and in each iteration.

    Steps are loads, waits, reads of fragments and MMAs. Steps for k-tiles past the last one do nothing.

    Plans with warp roles have a `WarpRoles` instead of a schedule. Its further attributes, such as `has_roles`, also
    exist here, as constants for a plan without roles.

    stages      number of k-tiles in shared memory; 0 if fragments are read from global memory
    fragments   number of buffers of fragments in registers
    prologue    steps before the loop, where "the k-tile that is multiplied" is k-tile 0
    k_tile      steps of an iteration
    """

    stages: int
    fragments: int
    prologue: tuple[Step, ...]
    k_tile: tuple[Step, ...]

    has_roles: ClassVar[bool] = False
    slices_k: ClassVar[bool] = False
    kind: ClassVar[str] = "threads"
    cluster_k: ClassVar[int] = 1
    consumers: ClassVar[int] = 1
    readers: ClassVar[int] = 1
    tiles_in_flight: ClassVar[int] = 1
    overlapped: ClassVar[bool] = False
    promoted: ClassVar[bool] = False
    mainloop: ClassVar[Mainloop] = Mainloop()

    @property
    def k_warps(self) -> int:
        """Return the number of warps of a CTA that split K: 1, as this schedule has no sliced-K."""
        return 1

    def partial_elements(self, plan: GemmPlan) -> int:
        """Return the number of accumulators that are exchanged in shared memory: 0, as K is not split in this schedule.

        plan   not used here, but by the same method of `WarpRoles`
        """
        return 0

    def k_ctas(self, cluster_mn: tuple[int, int]) -> int:
        """Return the number of CTAs of a cluster that split K: 1, as this schedule has no sliced-K.

        cluster_mn   CTAs of a cluster along M and N
        """
        return 1

    def stored_mma(self, plan: GemmPlan) -> TiledMma:
        """Return the tiled MMA whose accumulator (C) layout says which thread stores which element of D."""
        return plan.tiled_mma

    def tile_of_consumer(self, cta_tile: tuple[int, int, int]) -> tuple[int, int]:
        """Return (rows, columns) of D that a consumer computes: all of the CTA's tile, as the threads have no roles.

        cta_tile   (bM, bN, bK)
        """
        return cta_tile[:2]

    def fragment_buffers(self, mma_order: str) -> tuple[int, int]:
        """Return how many k-blocks' fragments a thread holds at once: (of A, of B).

        Both are `fragments` of this schedule.

        mma_order   not used here, but by the same method of `WarpRoles`
        """
        return self.fragments, self.fragments

    def __str__(self) -> str:
        """Return this schedule as text, one step a line, in the same form as the programs of roles.

        >>> print(single_stage(k_blocks=8, unroll=1))
        for k in tile.k_tiles:
          fetch    A[k], B[k]
          commit   the copies fetched
          store    A[k], B[k] -> their stage, if they were loaded to registers
          wait     for all copies
          sync     all threads
          for i in 0, 1 .. 7:
            read     A[k], B[k]: k-block i
            mma      k-block i -> acc
          sync     all threads
        """
        lines = [*_lines(self.prologue, 0, "0"), "for k in tile.k_tiles:", *_lines(self.k_tile, 1, "k")]
        return "\n".join(lines)

    def lined(self, steps: tuple[Step, ...]) -> list[tuple[int, Step]]:
        """Return (line, step) pairs for some steps of this schedule: their lines in the printed schedule, from 0.

        steps   `prologue`, `k_tile`, or the steps of a `Repeat` in one of them

        >>> schedule = single_stage(k_blocks=8, unroll=1)
        >>> [line for line, _ in schedule.lined(schedule.k_tile)]
        [1, 2, 3, 4, 5, 6, 9]
        """
        line = 0
        for own in (self.prologue, self.k_tile):
            for step in own:
                if isinstance(step, Repeat) and step.steps is steps:
                    return list(enumerate(steps, line + 1))
                line += _height(step)
            line += 1  # the printed line of the loop over k-tiles
        line = 0 if steps is self.prologue else 1 + sum(map(_height, self.prologue))
        found = []
        for step in steps:
            found.append((line, step))
            line += _height(step)
        return found

    def play(self, k_tiles: int) -> Iterator[tuple[int, Step]]:
        """Yield (t, step) for all steps of a tile in the order of execution, where t is the k-tile that is multiplied.

        Loops are expanded. The prologue has t = 0. Nothing is yielded if there are no k-tiles.

        k_tiles   number of k-tiles of the tile
        """
        if k_tiles == 0:
            return
        for step in self.prologue:
            yield 0, step
        for tile in range(k_tiles):
            for step in self.k_tile:
                if isinstance(step, Repeat):
                    yield from ((tile, inner) for inner in step.expand())
                else:
                    yield tile, step

    def bounds(self, plan: GemmPlan) -> Iterator[str]:
        """Yield a sentence for each number of this schedule that is out of bounds, and for too many steps."""
        yield from count_rule("body.stages", self.stages, 0, MOST_STAGES)
        yield from count_rule("body.fragments", self.fragments, 1, MOST_STAGES)
        count = 0
        for name in ("prologue", "k_tile"):
            for step in getattr(self, name):
                inner = step.steps if isinstance(step, Repeat) else ()
                count += step.times * len(inner) if inner else 1
                for each in (step, *inner):
                    for field in fields(each):
                        least = int(field.name in ("chunks", "times"))
                        if field.name != "steps" and getattr(each, field.name) < least:
                            yield f"{each} of body.{name}: {field.name} is below {least}."
        if count > _MOST_STEPS:
            yield f"the schedule has {count} steps; at most {_MOST_STEPS} are allowed."

    def needs(self, plan: GemmPlan) -> Iterator[str]:
        """Yield a sentence if a plan with this schedule has a cluster, or lacks copy atoms that read fragments."""
        if plan.cluster_mn != (1, 1) and not self.slices_k:
            yield (
                f"the cluster is {plan.cluster_mn}; a thread schedule has no clusters. Use cluster_mn = (1, 1), or "
                "warp roles."
            )
        for stream in plan.streams:
            if self.stages and stream.read is None:
                name = stream.name
                yield (
                    f"{name}.read is None; it is needed, because threads read the fragments of {name.upper()} from "
                    "shared memory."
                )

    def hazards(self, is_async: bool, k_tiles: int, k_blocks: int | None = None) -> list[str]:
        """Return a sentence for each error of this schedule, found by executing it step by step; [] if it is correct.

        Errors are, for example, a stage that is overwritten while other warps may read it, and a read of a k-tile whose
        copy has not been waited for.

        is_async   whether k-tiles are loaded by cp.async
        k_tiles    number of k-tiles for which the schedule is executed
        k_blocks   number of k-blocks of a k-tile. Each must be multiplied once; None: this is not checked

        >>> multistage(3, 4).hazards(is_async=True, k_tiles=5, k_blocks=4)
        []
        """
        return list(_hazards(self, is_async, k_tiles, k_blocks))


def thread_schedule(plan: GemmPlan) -> ThreadSchedule:
    """Return the thread schedule of a plan without warp roles, or raise an error.

    raises   UnsupportedError if the plan has warp roles
    """
    if not isinstance(plan.body, ThreadSchedule):
        raise UnsupportedError(f"plan {plan.name!r}: its warps have roles, so it does not have a thread schedule.")
    return plan.body


@functools.lru_cache(maxsize=1024)
def _hazards(schedule: ThreadSchedule, is_async: bool, k_tiles: int, k_blocks: int | None) -> tuple[str, ...]:
    """Return a sentence for each error of a schedule, e.g. a stage that is overwritten too early.

    It is cached: many plans that differ only in their layouts have the same schedule.

    is_async   whether k-tiles are loaded by cp.async
    k_tiles    number of k-tiles for which the schedule is executed
    k_blocks   number of k-blocks of a k-tile. Each must be multiplied once; None: this is not checked
    """
    watch = StageWatch(schedule, is_async, k_tiles)
    for tile, step in schedule.play(k_tiles):
        watch.apply(tile, step)
    if k_blocks is not None:
        watch.finish(k_blocks)
    return tuple(watch.found)


def _height(step: Step) -> int:
    """Return the number of lines that a step of a thread schedule takes when printed, including the steps of a loop."""
    return 1 + len(step.steps) if isinstance(step, Repeat) else 1


def _lines(steps: tuple[Step, ...], depth: int, tile: str, k_block: str = "") -> Iterator[str]:
    """Yield the printed lines of some steps of a thread schedule.

    steps     steps, e.g. the prologue
    depth     levels of indentation
    tile      name of the k-tile that is multiplied: "0" before the loop, "k" in it
    k_block   name of the loop variable that k-block indices are added to: "i" in a loop over k-blocks, "" outside
    """
    for step in steps:
        yield "  " * depth + _line(step, tile, k_block)
        if isinstance(step, Repeat):
            yield from _lines(step.steps, depth + 1, tile, "i")


def _line(step: Step, tile: str, k_block: str) -> str:
    """Return the printed line of a step of a thread schedule, without indentation, e.g. "fetch    A[k + 2], B[k + 2]".

    tile      name of the k-tile that is multiplied: "0" before the loop, "k" in it
    k_block   name of the loop variable that the k-block index is added to: "i" in a loop over k-blocks, "" outside
    """
    if isinstance(step, Repeat):
        turns = [str(turn * step.stride) for turn in range(step.times)]
        if len(turns) > 3:
            turns = [f"{turns[0]}, {turns[1]} .. {turns[-1]}"]
        return f"for i in {', '.join(turns)}:"
    if isinstance(step, Commit):
        return "commit   the copies fetched"
    if isinstance(step, Wait):
        late = {0: "", 1: " but those of the last commit"}
        return f"wait     for all copies{late.get(step.pending, f' but those of the last {step.pending} commits')}"
    if isinstance(step, Sync):
        return "sync     all threads"
    if not isinstance(step, (Fetch, Store, Read, Multiply)):
        return repr(step)  # not a step: a rule of plans reports it
    if isinstance(step, Multiply):
        return f"mma      k-block {_counted(k_block, step.k_block)} -> acc"
    at = _counted("" if tile == "0" else tile, step.ahead)
    moved = f"A[{at}], B[{at}]"
    if isinstance(step, Store):
        return f"store    {moved} -> their stage, if they were loaded to registers"
    if isinstance(step, Read):
        return f"read     {moved}: k-block {_counted(k_block, step.k_block)}"
    return f"fetch    {moved}{f', chunk {step.chunk + 1} of {step.chunks}' if step.chunks > 1 else ''}"


def _counted(start: str, number: int) -> str:
    """Return the printed form of an index: "k + 2" for "k" and 2, "k" for "k" and 0, and "2" for "" and 2.

    start, number   name of the variable, and the number that is added to it
    """
    return str(number) if not start else f"{start} + {number}" if number else start


class StageWatch:
    """Checks a thread schedule: follows the k-tiles of one operand through shared memory and registers.

    For each stage it knows the k-tile there, whether its copy has ended, and whether all threads may read it. For each
    error, e.g. a stage that is overwritten too early, it adds a sentence to the list `found`. The simulator's subclass
    also moves data: it overrides `fetched`, `started`, `shown` and `read_into`, which are called when a load starts,
    overwrites a stage, becomes visible, or is read.

    schedule   the schedule that is executed
    is_async   whether k-tiles are loaded by cp.async
    k_tiles    number of k-tiles for which the schedule is executed
    """

    def __init__(self, schedule: ThreadSchedule, is_async: bool, k_tiles: int) -> None:
        stages = schedule.stages
        self.stages, self.fragments = stages, schedule.fragments
        self.is_async, self.k_tiles = is_async, k_tiles
        self.held: list[int | None] = [None] * stages  # the k-tile in each stage, complete or still being copied
        self.landed = [False] * stages  # the copy has ended, as seen by the thread that issued it
        self.visible = [False] * stages  # every thread may read the stage
        self.read_since_sync: set[int] = set()
        self.to_land = [0] * stages  # pieces of the copy to each stage that have not ended
        self.groups: list[list[int]] = []  # each unfinished group: the k-tile of each piece in it
        self.open_group: list[int] = []
        self.registers: int | None = None
        self.at_hand: int | None = None  # the k-tile whose fragments are read, if the schedule has no stages
        self.load_chunks = 0  # pieces issued of the last k-tile fetched
        self.buffers: list[tuple[int, int] | None] = [None] * self.fragments
        self.multiplied: Counter[tuple[int, int]] = Counter()
        self.found: list[str] = []

    def fetched(self, tile: int) -> None:
        """Called when a load of k-tile `tile` from global memory starts.

        It does nothing; the simulator overrides it.
        """

    def started(self, tile: int, stage: int) -> None:
        """Called when k-tile `tile` begins to overwrite a stage. It does nothing; the simulator overrides it.

        stage   index of the stage, whose earlier content is lost
        """

    def shown(self, tile: int, stage: int) -> None:
        """Called when k-tile `tile` is complete, and every thread may read it.

        It does nothing; the simulator overrides it.

        stage   index of the stage that holds the k-tile
        """

    def read_into(self, tile: int, stage: int, k_block: int, buffer: int) -> None:
        """Called when fragments of a k-block are read from a stage to registers.

        It does nothing; the simulator overrides it.

        It is also called if the stage holds another k-tile, which is recorded as an error.

        tile      the k-tile that should be read
        stage     index of the stage
        k_block   index of the k-block in it
        buffer    index of the buffer of fragments in registers
        """

    def fail(self, message: str) -> None:
        """Record an error of the thread schedule: add the sentence `message` to `found`, unless it is there already."""
        if message not in self.found:
            self.found.append(message)

    def apply(self, tile: int, step: Step) -> None:
        """Execute one step of the thread schedule on a model of stages and registers, and record its errors.

        tile   the k-tile that is multiplied; the step's `ahead` counts from it
        step   the step, such as `Fetch` or `Sync`
        """
        if isinstance(step, Fetch):
            self._fetch(tile + step.ahead, step.chunk, step.chunks)
        elif isinstance(step, Commit):
            self.groups.append(self.open_group)
            self.open_group = []
        elif isinstance(step, Store):
            self._store(tile + step.ahead)
        elif isinstance(step, Wait):
            while len(self.groups) > step.pending:
                for moved in self.groups.pop(0):
                    stage = moved % self.stages
                    if self.held[stage] == moved:
                        self.to_land[stage] -= 1
                        self.landed[stage] = self.to_land[stage] == 0
        elif isinstance(step, Sync):
            self._sync()
        elif isinstance(step, Read):
            self._read(tile + step.ahead, step.k_block)
        elif isinstance(step, Multiply):
            self._multiply(tile, step.k_block)

    def finish(self, k_blocks: int) -> None:
        """Check, after the last step of the schedule, that every k-block of every k-tile has been multiplied once.

        k_blocks   number of k-blocks of a k-tile
        """
        wanted = {(tile, k_block) for tile in range(self.k_tiles) for k_block in range(k_blocks)}
        wrong: dict[tuple[int, int], list[int]] = {}
        for tile, k_block in sorted(wanted | set(self.multiplied)):
            times = self.multiplied[tile, k_block]
            if (tile, k_block) not in wanted:
                self.fail(f"k-block {k_block} of k-tile {tile} is multiplied, but it does not exist.")
            elif times != 1:
                wrong.setdefault((tile, times), []).append(k_block)
        for (tile, times), found in wrong.items():
            which = f"k-block {found[0]}" if len(found) == 1 else f"k-blocks {', '.join(map(str, found))}"
            often = "never multiplied" if times == 0 else f"multiplied {times} times"
            self.fail(f"{which} of k-tile {tile} {'is' if len(found) == 1 else 'are'} {often}.")

    def _overwrite(self, tile: int) -> int:
        """Choose the stage of shared memory for a k-tile that is loaded, mark it as overwritten, and return its index.

        An error is recorded if other threads may still read the stage, or a copy to it has not ended.

        tile   index of the k-tile
        """
        stage = tile % self.stages
        if stage in self.read_since_sync:
            self.fail(
                f"stage {stage} is overwritten by k-tile {tile} while other warps may still read k-tile "
                f"{self.held[stage]} from it: no barrier separates them."
            )
        if self.is_async and self.held[stage] is not None and not self.landed[stage]:
            self.fail(
                f"stage {stage} is overwritten by k-tile {tile} while the copy of k-tile {self.held[stage]} to "
                "it is still in flight."
            )
        self.held[stage], self.landed[stage], self.visible[stage] = tile, False, False
        self.started(tile, stage)
        return stage

    def _fetch(self, tile: int, chunk: int, chunks: int) -> None:
        """Check and record a `Fetch` step, which starts to load k-tile `tile`.

        chunk    index of the piece of the k-tile's copies that is issued
        chunks   number of pieces of these copies
        """
        if tile >= self.k_tiles:
            return
        if chunk == 0:
            if not self.is_async and self.registers is not None:
                self.fail(f"k-tile {tile} is fetched while k-tile {self.registers} is still in the registers.")
            self.fetched(tile)
            self.load_chunks = 0
            if self.is_async:
                self.to_land[self._overwrite(tile)] = chunks
            else:
                self.registers = tile
        if chunk != self.load_chunks:
            self.fail(f"load chunk {chunk} of k-tile {tile} is fetched when load chunk {self.load_chunks} is due.")
        self.load_chunks = chunk + 1
        if self.is_async:
            self.open_group.append(tile)

    def _store(self, tile: int) -> None:
        """Check and record a `Store` step, which writes k-tile `tile` from registers to its stage of shared memory."""
        if self.is_async or tile >= self.k_tiles:
            return
        if self.registers != tile:
            held = "nothing" if self.registers is None else f"k-tile {self.registers}"
            self.fail(f"k-tile {tile} is stored, but the registers hold {held}.")
        self.landed[self._overwrite(tile)] = True
        self.registers = None

    def _sync(self) -> None:
        """Record a `Sync` step, a barrier of all threads: ended copies become visible, and earlier reads are over."""
        self.read_since_sync.clear()
        for stage, tile in enumerate(self.held):
            if tile is not None and self.landed[stage] and not self.visible[stage]:
                self.visible[stage] = True
                self.shown(tile, stage)

    def _read(self, tile: int, k_block: int) -> None:
        """Check and record a `Read` step, which reads a k-block from its stage to a buffer of fragments in registers.

        tile      k-tile that is read
        k_block   index of the k-block in it
        """
        if tile >= self.k_tiles:
            return
        if self.stages == 0:
            if self.at_hand != tile:  # the k-blocks of a k-tile are read one after the other
                self.fetched(tile)
                self.started(tile, 0)
                self.shown(tile, 0)
                self.at_hand = tile
            self.buffers[k_block % self.fragments] = (tile, k_block)
            self.read_into(tile, 0, k_block, k_block % self.fragments)
            return
        stage = tile % self.stages
        if self.held[stage] != tile:
            held = "nothing" if self.held[stage] is None else f"k-tile {self.held[stage]}"
            self.fail(f"k-tile {tile} is read from stage {stage}, which holds {held}.")
        elif not self.visible[stage]:
            late = "has not been waited for" if not self.landed[stage] else "is not followed by a barrier"
            self.fail(f"k-tile {tile} is read from stage {stage}, but its copy {late}.")
        self.read_since_sync.add(stage)
        self.buffers[k_block % self.fragments] = (tile, k_block)
        self.read_into(tile, stage, k_block, k_block % self.fragments)

    def _multiply(self, tile: int, k_block: int) -> None:
        """Check and record a `Multiply` step: the registers must hold the fragments of the k-block that it multiplies.

        tile      index of the k-tile that is multiplied
        k_block   index of the k-block in this k-tile
        """
        held = self.buffers[k_block % self.fragments]
        if held != (tile, k_block):
            self.fail(
                f"k-block {k_block} of k-tile {tile} is multiplied, but the fragments hold "
                f"{'nothing' if held is None else f'k-block {held[1]} of k-tile {held[0]}'}."
            )
        self.multiplied[tile, k_block] += 1


def _in_turn(k_blocks: int, unroll: int | None) -> list[Step]:
    """Return the steps of a thread schedule that multiply a k-tile: read a k-block, multiply it, and so on.

    k_blocks   number of k-blocks of a k-tile
    unroll     number of k-blocks in each iteration of a loop; None: no loop
    """
    steps = tuple([step for k in range(unroll or k_blocks) for step in (Read(k), Multiply(k))])
    return list(steps) if unroll in (None, k_blocks) else [Repeat(k_blocks // unroll, unroll, steps)]


def single_stage(k_blocks: int, unroll: int | None = None) -> ThreadSchedule:
    """Return the thread schedule of the textbook's tiled GEMM: load a k-tile, barrier, multiply, barrier.

    k_blocks   number of k-blocks of a k-tile
    unroll     number of k-blocks in each iteration of the loop over k-blocks, a divisor of `k_blocks`; None: all
    """
    blocks = _in_turn(k_blocks, unroll)
    return ThreadSchedule(1, 1, (), (Fetch(0), Commit(), Store(0), Wait(0), Sync(), *blocks, Sync()))


def direct() -> ThreadSchedule:
    """Return the thread schedule without shared memory: each k-tile is a single k-block, read from global memory."""
    return ThreadSchedule(0, 1, (), (Read(0), Multiply(0)))


def streamed(k_blocks: int, load_chunks: int = 2) -> ThreadSchedule:
    """Return the thread schedule without shared memory: fragments are read from global memory during other MMAs.

    k_blocks      number of k-blocks of a k-tile. Registers hold the fragments of all of them
    load_chunks   number of equal groups of k-blocks, a divisor of `k_blocks`. While one group is multiplied, the reads
                  of the other groups are under way. 1: all fragments of a k-tile are read, then multiplied

    >>> print(streamed(2))
    read     A[0], B[0]: k-block 0
    for k in tile.k_tiles:
      read     A[k], B[k]: k-block 1
      mma      k-block 0 -> acc
      read     A[k + 1], B[k + 1]: k-block 0
      mma      k-block 1 -> acc
    """
    each = k_blocks // load_chunks
    under_way = k_blocks - each
    body: list[Step] = []
    for first in range(0, k_blocks, each):
        later = range(first + under_way, first + k_blocks)
        body += [Read(k % k_blocks, k // k_blocks) for k in later]
        body += [Multiply(k) for k in range(first, first + each)]
    return ThreadSchedule(0, k_blocks, tuple([Read(k) for k in range(under_way)]), tuple(body))


def prefetched(k_blocks: int, unroll: int | None = None) -> ThreadSchedule:
    """Return the thread schedule with one stage: while a k-tile is multiplied, the next one is loaded to registers.

    It needs two barriers for each k-tile.

    k_blocks   number of k-blocks of a k-tile
    unroll     number of k-blocks in each iteration of the loop over k-blocks, a divisor of `k_blocks`; None: all
    """
    blocks = _in_turn(k_blocks, unroll)
    first = (Fetch(0), Commit(), Store(0), Wait(0), Sync())
    return ThreadSchedule(1, 1, first, (Fetch(1), Commit(), *blocks, Sync(), Store(1), Wait(0), Sync()))


def multistage(
    stages: int, k_blocks: int, unroll: int | None = None, *, load_chunks: int = 1, fragments: int = 2
) -> ThreadSchedule:
    """Return the thread schedule with several stages: k-tiles are loaded `stages` - 1 iterations early.

    Fragments are read one k-block before they are multiplied. Each k-tile needs one barrier. With two stages and copies
    through registers it is double buffering.

    stages        number of k-tiles in shared memory, 2 or more
    k_blocks      number of k-blocks of a k-tile, 1 or more
    unroll        number of k-blocks in each iteration of a loop over k-blocks, an even divisor of `k_blocks`. The last
                  `unroll` k-blocks follow the loop. None: no loop. A loop takes fewer registers, because the compiler
                  cannot move all reads of a k-tile to its start
    load_chunks   number of pieces of the copies of a k-tile. They are issued with different k-blocks, not all at once
    fragments     2; or 1: each k-block is read just before it is multiplied

    >>> [type(step).__name__ for step in multistage(2, 2).k_tile]
    ['Read', 'Fetch', 'Commit', 'Multiply', 'Store', 'Wait', 'Sync', 'Read', 'Multiply']
    """
    prologue: list[Step] = []
    for tile in range(stages - 1):
        prologue += [Fetch(tile), Commit(), Store(tile)]
    prologue += [Wait(stages - 2), Sync()]
    turn_over: list[Step] = [Store(stages - 1), Wait(stages - 2), Sync()]
    ahead: list[list[Step]] = [[] for _ in range(k_blocks)]
    for chunk in range(load_chunks):
        ahead[chunk * k_blocks // load_chunks].append(Fetch(stages - 1, chunk, load_chunks))
    ahead[(load_chunks - 1) * k_blocks // load_chunks].append(Commit())
    body: list[Step] = []
    if fragments == 1:
        for k in range(k_blocks):
            last = turn_over if k == k_blocks - 1 else []  # the stage has been read: prepare the next one
            body += [Read(k), *ahead[k], *last, Multiply(k)]
        return ThreadSchedule(stages, 1, tuple(prologue), tuple(body))
    prologue.append(Read(0))
    step = unroll or k_blocks
    turns = k_blocks // step - 1
    if turns:
        blocks = [chunk for k in range(step) for chunk in (Read(k + 1), Multiply(k))]
        body += [*ahead[0], Repeat(turns, step, tuple(blocks))]
    for k in range(turns * step, k_blocks):
        if k + 1 < k_blocks:
            body += [Read(k + 1), *ahead[k], Multiply(k)]
        elif k % 2:
            body += [*ahead[k], *turn_over, Read(0, ahead=1), Multiply(k)]
        else:  # the next k-tile's first fragments are read to the buffer of this k-block
            body += [*ahead[k], Multiply(k), *turn_over, Read(0, ahead=1)]
    return ThreadSchedule(stages, min(2, k_blocks), tuple(prologue), tuple(body))
