"""Who goes next: threads in groups that stand at one instruction.

Of all groups that can run, the one at the lowest instruction goes first, until it branches, waits, or comes to
where others stand, whom it joins: so threads that parted meet again as early as the code allows. All CTAs in
flight go together; nothing of a CTA is visible to another one but through global memory and its cluster.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from cutegemm.emulator.state import WARP, WARPGROUP, Block, Instruction, Step, handler_of
from cutegemm.errors import EmulationError

if TYPE_CHECKING:
    from cutegemm.emulator.machine import Machine

_SCOPES = {"warp": WARP, "warpgroup": WARPGROUP}
_LANDS = 0.25  # how often a copy lands, where that is left to chance
_MOST_SPINS = 50  # rounds of a waiting loop in which nothing changes

Selection = Any  # of threads: None for all of them, a slice, or their numbers


class Group:
    """Threads that do an instruction together. sel: how to take them out of a register."""

    __slots__ = ("_warpgroups", "n", "sel", "threads")

    def __init__(self, threads: np.ndarray, total: int) -> None:
        self.threads, self.n = threads, len(threads)
        self._warpgroups: list[int] | None = None
        first, last = int(threads[0]), int(threads[-1])
        if self.n == total:
            self.sel: Selection = None
        elif last - first + 1 == self.n:
            self.sel = slice(first, last + 1)
        else:
            self.sel = threads

    @property
    def warpgroups(self) -> list[int]:
        """The first threads of the warpgroups that they are in."""
        if self._warpgroups is None:
            self._warpgroups = np.unique(self.threads // WARPGROUP * WARPGROUP).tolist()
        return self._warpgroups


# What an instruction does to a group; None or False: on to the next one. A control instruction places its
# threads itself and returns True.
Action = Callable[["Machine", Group], "bool | None"]


def in_whole(scope: str, action: Action) -> Action:
    """The action for whole warps or warpgroups only; threads of what is not all there wait for the rest."""

    def together(m: Machine, group: Group) -> bool | None:
        there = m.whole(group, scope)
        if there is None:
            return True
        placed = action(m, there)
        if there is group or placed:
            return placed
        m.place(m.at + 1, there.threads)
        return True

    return together


@dataclass(frozen=True)
class Decoded:
    """An instruction made ready.

    reads, writes   registers, by which holes are followed
    follows         whether the action itself follows holes through the instruction
    """

    instruction: Instruction
    action: Action
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    follows: bool


@dataclass(frozen=True)
class Arrival:
    """Threads that have come to a barrier of their CTA.

    at      the instruction; waits: whether they wait there for the others
    known   what their warps knew then; None where races are not looked for
    """

    at: int
    threads: np.ndarray
    waits: bool
    known: np.ndarray | None


class Scheduler:
    """The threads of the CTAs in flight, and what each of them waits for.

    alive     bool (threads,)
    waiting   arrivals at each barrier that lacks some: (slot, barrier)
    ending    called with threads that have just ended
    at        the instruction that is carried out
    seed      None: the lowest go first, and what is copied asynchronously lands as late as can be. A number:
              chance decides on both
    """

    def __init__(
        self,
        name: str,
        program: list[Decoded],
        blocks: list[Block],
        block_threads: int,
        seed: int | None,
    ) -> None:
        self.name, self.program, self.blocks = name, program, blocks
        self.block_threads = block_threads
        self.warps = -(-block_threads // WARP)
        self.total = len(blocks) * block_threads
        self.block_of, self.thread_of = np.divmod(np.arange(self.total), block_threads)
        self.own_warp_of = self.thread_of // WARP  # within the CTA
        self.warp_of = self.block_of * self.warps + self.own_warp_of
        self.alive = np.ones(self.total, bool)
        self.waiting: dict[tuple[int, int], list[Arrival]] = {}
        self.ending: list[Callable[[np.ndarray], None]] = []
        self.at = 0
        # Groups by where they stand: ready to run; held until more threads come; parked until something happens;
        # perhaps in a loop that waits for another thread's store.
        self._ready: dict[int, np.ndarray] = {}
        self._held: dict[int, np.ndarray] = {}
        self._parked: dict[int, np.ndarray] = {}
        self._spinning: dict[int, np.ndarray] = {}
        self._events = 0
        self._late = np.zeros(self.total, bool)
        self._overlapped: deque[Callable[[], None]] = deque()
        self._chance = None if seed is None else random.Random(seed)
        self._counts = np.zeros(len(program) + 1, np.int64)

    @property
    def machine(self) -> Machine:
        """This object, with the type of the class that derives from it."""
        return cast("Machine", self)

    def run(self) -> None:
        """Until all threads have ended. raises EmulationError"""
        self._ready[0] = np.arange(self.total)
        given_up, seen, idle = -1, -1, 0
        with np.errstate(all="ignore"):
            while True:
                while self._ready:
                    self._run_group(*self._next_group())
                    if self._overlapped and self.lands_now():
                        self._land()
                idle = idle + 1 if seen == self._events else 0
                seen = self._events
                if self._overlapped:
                    self._land()
                elif self._spinning and idle < _MOST_SPINS:
                    spinning, self._spinning = self._spinning, {}
                    for at, threads in spinning.items():
                        self.place(at, threads)
                elif not self.alive.any():
                    break
                elif self._parked and given_up != self._events:
                    given_up = self._events
                    for threads in self._parked.values():
                        self._late[threads] = True
                    self._wake()
                else:
                    raise self._deadlock()

    def changed(self) -> None:
        """Global memory has changed, for which a loop may wait that reads it again and again."""
        self._events += 1

    def spin(self, threads: np.ndarray) -> None:
        """They go on from the next instruction, once all others have run: they may be waiting in a loop."""
        others = self._spinning.get(self.at + 1)
        self._spinning[self.at + 1] = threads if others is None else np.sort(np.concatenate([threads, others]))

    def notify(self) -> None:
        """Something happened that parked threads may wait for: they try again."""
        self._events += 1
        self._wake()

    def defer(self, action: Callable[[], None]) -> None:
        """To be done as late as possible: when no thread can run."""
        self._overlapped.append(action)

    def lands_now(self) -> bool:
        """Whether an asynchronous copy is carried out now, and not as late as can be: by chance only."""
        return self._chance is not None and self._chance.random() < _LANDS

    def _land(self) -> None:
        if self._chance is not None:
            self._overlapped.rotate(self._chance.randrange(len(self._overlapped)))
        self._overlapped.popleft()()

    def _next_group(self) -> tuple[int, np.ndarray]:
        """Who goes next: those at the lowest instruction; or by chance some warps of those at any."""
        if self._chance is None:
            at = min(self._ready)
            return at, self._ready.pop(at)
        at = self._chance.choice(sorted(self._ready))
        threads = self._ready.pop(at)
        warp_of = self.warp_of[threads]
        warps = np.flatnonzero(np.bincount(warp_of))
        chosen = np.zeros(warps[-1] + 1, bool)
        chosen[self._chance.sample(warps.tolist(), self._chance.randint(1, len(warps)))] = True
        goes = chosen[warp_of]
        if not goes.all():
            self._ready[at] = threads[~goes]
        held = self._held.pop(at, None)
        return at, threads[goes] if held is None else np.sort(np.concatenate([threads[goes], held]))

    def _wake(self) -> None:
        parked, self._parked = self._parked, {}
        for at, threads in parked.items():
            self.place(at, threads)

    def place(self, at: int, threads: np.ndarray) -> None:
        """Lets threads go on from an instruction."""
        if len(threads) == 0:
            return
        for others in (self._ready.pop(at, None), self._held.pop(at, None)):
            if others is not None:
                threads = np.sort(np.concatenate([threads, others]))
        self._ready[at] = threads

    def hold(self, at: int, threads: np.ndarray) -> None:
        """They wait until others come to where they are."""
        if len(threads):
            others = self._held.get(at)
            self._held[at] = threads if others is None else np.sort(np.concatenate([threads, others]))

    def park(self, threads: np.ndarray) -> None:
        """They try their instruction again after something has happened."""
        if len(threads):
            others = self._parked.get(self.at)
            self._parked[self.at] = threads if others is None else np.sort(np.concatenate([threads, others]))

    def perform(self, instruction: Instruction, function: Any, group: Group) -> bool:
        """Calls a handler; whether its threads have been placed, because some of them park."""
        step = Step(self.machine, instruction, group.threads, self._late[group.threads])
        self._late[group.threads] = False
        function(step)
        if step.parked is None or not step.parked.any():
            return False
        self.park(group.threads[step.parked])
        self.place(self.at + 1, group.threads[~step.parked])
        return True

    def _run_group(self, at: int, threads: np.ndarray) -> None:
        """Until it branches or waits, or comes to where others stand."""
        group = Group(threads, self.total)
        others = (place for places in (self._ready, self._held) for place in places if place > at)
        limit = min(others, default=len(self.program))
        program, start = self.program, at
        counts, n, machine = self._counts, group.n, self.machine
        while True:
            decoded = program[at]
            self.at = at
            if decoded.action(machine, group):
                counts[start] += n
                counts[at + 1] -= n
                return
            if machine.holes and not decoded.follows:
                machine.follow_holes(decoded, group)
            at += 1
            if at >= limit:
                counts[start] += n
                counts[at] -= n
                self.place(at, group.threads)
                return

    def executions(self) -> np.ndarray:
        """How many threads have carried out each instruction of the program."""
        return np.cumsum(self._counts)[:-1]

    def whole(self, group: Group, scope: str) -> Group | None:
        """The part of a group whose warps or warpgroups are all there; what is not waits for the rest.

        None where no warp is complete.
        """
        if group.sel is None:
            return group
        size = _SCOPES[scope]
        if group.n % size == 0 == self.block_threads % size:
            units = group.threads.reshape(-1, size)
            if not (units[:, 0] % size).any() and (units[:, -1] - units[:, 0] == size - 1).all():
                return group
        unit = self.block_of * -(-self.block_threads // size) + self.thread_of // size
        present = np.bincount(unit[group.threads], minlength=int(unit[-1]) + 1)
        needed = np.bincount(unit[self.alive], minlength=len(present))
        complete = (present == needed)[unit[group.threads]]
        if complete.all():
            return group
        self.hold(self.at, group.threads[~complete])
        rest = group.threads[complete]
        return Group(rest, self.total) if len(rest) else None

    def end(self, group: Group) -> None:
        """These threads are done; who waits for their warp may go on."""
        self.alive[group.threads] = False
        for check in self.ending:
            check(group.threads)
        held, self._held = self._held, {}
        for at, threads in held.items():
            self.place(at, threads)

    def _deadlock(self) -> EmulationError:
        lines = []
        at_barriers = [(a.at, a.threads) for arrived in self.waiting.values() for a in arrived if a.waits]
        for why, groups in (
            ("waits", sorted(self._parked.items())),
            ("reads again and again", sorted(self._spinning.items())),
            ("waits for the rest of its warps", sorted(self._held.items())),
            ("waits at the barrier", at_barriers),
        ):
            for at, threads in groups:
                warps = sorted({(int(self.block_of[t]), int(self.thread_of[t]) // WARP) for t in threads})
                told = ", ".join(f"CTA {self.blocks[slot].index} warp {warp}" for slot, warp in warps[:8])
                more = f" and {len(warps) - 8} more" if len(warps) > 8 else ""
                instruction = self.program[at].instruction
                lines.append(f"  {told}{more} {why} at line {instruction.line}: {instruction.text[:100]}")
                handled = handler_of(instruction)
                if handled is not None and handled.explain is not None:
                    step = Step(self.machine, instruction, threads, np.ones(len(threads), bool))
                    lines += [f"    {text}" for text in handled.explain(step)]
        return EmulationError("\n".join([f"emulate: kernel {self.name[:60]}: deadlock; no thread can run.", *lines]))
