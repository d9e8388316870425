"""Scheduling of emulated threads: which group of threads executes next.

A group is a set of threads at one instruction. By default, the group at the lowest instruction executes first. It runs
until it branches, waits, or reaches other threads, which then join it. So threads that diverge reconverge as early as
the code allows. All CTAs in flight run together. A CTA sees another one only through global memory and through its
cluster.
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
_LANDS = 0.25  # with a random schedule: probability that an asynchronous copy takes place at once
_MOST_SPINS = 50  # a polling loop that runs this often without a change of memory is a deadlock

Selection = Any  # index of threads in a register's array: None for all threads, a slice, or an array of numbers


class Group:
    """Threads that execute an instruction together, at the same time.

    threads   numbers over all CTAs that are emulated together, ascending
    n         number of threads
    sel       index that selects the threads in an array over all threads: None for all, a slice, or an array
    total     number of threads of all CTAs that are emulated together
    """

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
        """Return the number of the first thread of each warpgroup that has a thread in this group."""
        if self._warpgroups is None:
            self._warpgroups = np.unique(self.threads // WARPGROUP * WARPGROUP).tolist()
        return self._warpgroups


# Executes an instruction for a group. Returns True if it has scheduled the threads itself, as a branch does; None or
# False if they continue with the next instruction.
Action = Callable[["Machine", Group], "bool | None"]


def when_converged(scope: str, action: Action) -> Action:
    """Let an instruction run only when all threads of a warp, or warpgroup, have reached it; early threads wait.

    scope     "warp" or "warpgroup"
    action    function that executes the instruction for a group of complete warps or warpgroups
    returns   a function that executes it for any group of threads
    """

    def act(m: Machine, group: Group) -> bool | None:
        complete = m.converged(group, scope)
        if complete is None:
            return True
        scheduled = action(m, complete)
        if complete is group or scheduled:
            return scheduled
        m.resume(m.at + 1, complete.threads)
        return True

    return act


@dataclass(frozen=True)
class Decoded:
    """A PTX instruction together with the function that executes it.

    action          executes it for a group of threads
    reads, writes   indices of its source and destination registers, used to mark uninitialized results
    propagates      whether the action itself marks uninitialized results
    """

    instruction: Instruction
    action: Action
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    propagates: bool


@dataclass(frozen=True)
class Arrival:
    """Threads that have arrived together at a named barrier of their CTA.

    at        index of the barrier instruction in the program
    threads   numbers of the threads, over all CTAs that are emulated together
    waits     True for bar.sync; False for bar.arrive, which does not wait
    known     vector clock of their warps at the arrival; None if races are not checked
    """

    at: int
    threads: np.ndarray
    waits: bool
    known: np.ndarray | None


class Scheduler:
    """Schedules the threads of all CTAs that are emulated together: which run next, and what others wait for.

    name            name of the kernel, for messages
    program         instructions of the kernel, ready for execution
    blocks          the CTAs that are emulated together
    block_threads   number of threads of a CTA
    alive           bool (threads,): False for threads that have ended
    waiting         (slot, barrier number) -> arrivals at that CTA barrier, if it is not complete; slot is the index of
                    the CTA
    ending          functions to call with the threads that have just ended
    at              index of the instruction that is being executed
    seed            None: the group at the lowest instruction runs first, and asynchronous copies take place as late as
                    possible. A number: both are random
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
        # Threads by instruction: ready to run; waiting for the rest of their warp or warpgroup; parked until the next
        # `notify`; in what may be a loop that polls memory.
        self._ready: dict[int, np.ndarray] = {}
        self._incomplete: dict[int, np.ndarray] = {}
        self._parked: dict[int, np.ndarray] = {}
        self._spinning: dict[int, np.ndarray] = {}
        self._events = 0
        self._late = np.zeros(self.total, bool)
        self._deferred: deque[Callable[[], None]] = deque()
        self._chance = None if seed is None else random.Random(seed)
        self._counts = np.zeros(len(program) + 1, np.int64)

    @property
    def machine(self) -> Machine:
        """Return this object itself, for the type checker as an object of the derived class `Machine`."""
        return cast("Machine", self)

    def run(self) -> None:
        """Run the threads of all CTAs that are emulated together until they have ended.

        raises   EmulationError for a fault of a thread, or for a deadlock
        """
        self._ready[0] = np.arange(self.total)
        given_up, seen, idle = -1, -1, 0
        with np.errstate(all="ignore"):
            while True:
                while self._ready:
                    self._run_group(*self._next_group())
                    if self._deferred and self.lands_now():
                        self._run_deferred()
                idle = idle + 1 if seen == self._events else 0
                seen = self._events
                if self._deferred:
                    self._run_deferred()
                elif self._spinning and idle < _MOST_SPINS:
                    spinning, self._spinning = self._spinning, {}
                    for at, threads in spinning.items():
                        self.resume(at, threads)
                elif not self.alive.any():
                    break
                elif self._parked and given_up != self._events:
                    given_up = self._events
                    for threads in self._parked.values():
                        self._late[threads] = True
                    self._wake()
                else:
                    raise self._deadlock()

    def memory_changed(self) -> None:
        """Record that global memory has changed, so that polling loops are not taken for a deadlock."""
        self._events += 1

    def spin(self, threads: np.ndarray) -> None:
        """Let threads continue with the next instruction only after all others have run.

        This is for polling loops, which need other threads to make progress.

        threads   numbers over all CTAs that are emulated together
        """
        others = self._spinning.get(self.at + 1)
        self._spinning[self.at + 1] = threads if others is None else np.sort(np.concatenate([threads, others]))

    def notify(self) -> None:
        """Let all waiting threads execute their instruction again, since what they wait for may have happened.

        Waiting (parked) threads are those that could not finish an instruction, such as a wait for a barrier.
        """
        self._events += 1
        self._wake()

    def defer(self, action: Callable[[], None]) -> None:
        """Run `action`, such as the end of an asynchronous copy, as late as possible: when no thread can run."""
        self._deferred.append(action)

    def lands_now(self) -> bool:
        """Return whether an asynchronous copy takes place at once: random with a seed, and always False without one."""
        return self._chance is not None and self._chance.random() < _LANDS

    def _run_deferred(self) -> None:
        """Run the oldest deferred action, such as the end of a copy; with a seed, a random one."""
        if self._chance is not None:
            self._deferred.rotate(self._chance.randrange(len(self._deferred)))
        self._deferred.popleft()()

    def _next_group(self) -> tuple[int, np.ndarray]:
        """Choose the threads that run next, remove them from the ready ones, and return (instruction's index, threads).

        Without a seed, these are all threads at the lowest instruction; with a seed, random warps at a random one.
        """
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
        held = self._incomplete.pop(at, None)
        return at, threads[goes] if held is None else np.sort(np.concatenate([threads[goes], held]))

    def _wake(self) -> None:
        """Make all waiting (parked) threads ready to run: they execute the unfinished instruction again."""
        parked, self._parked = self._parked, {}
        for at, threads in parked.items():
            self.resume(at, threads)

    def resume(self, at: int, threads: np.ndarray) -> None:
        """Make threads ready to run, from the instruction with index `at` on.

        at        index of the instruction
        threads   numbers over all CTAs that are emulated together
        """
        if len(threads) == 0:
            return
        for others in (self._ready.pop(at, None), self._incomplete.pop(at, None)):
            if others is not None:
                threads = np.sort(np.concatenate([threads, others]))
        self._ready[at] = threads

    def wait_for_rest(self, at: int, threads: np.ndarray) -> None:
        """Let threads wait at an instruction that a whole warp or warpgroup executes, until the rest of it gets there.

        at        index of the instruction in the program
        threads   numbers of the threads over all CTAs that are emulated together
        """
        if len(threads):
            others = self._incomplete.get(at)
            self._incomplete[at] = threads if others is None else np.sort(np.concatenate([threads, others]))

    def park(self, threads: np.ndarray) -> None:
        """Let threads wait at the current instruction, and execute it again after the next `notify`.

        An instruction parks threads that cannot finish it yet, such as those that wait for a barrier.

        threads   numbers over all CTAs that are emulated together
        """
        if len(threads):
            others = self._parked.get(self.at)
            self._parked[self.at] = threads if others is None else np.sort(np.concatenate([threads, others]))

    def perform(self, instruction: Instruction, function: Any, group: Group) -> bool:
        """Call the function that executes an instruction for a group of threads.

        function   handler of the instruction, called with a `Step`
        returns    True if some threads could not finish and were parked; the others are then ready at the next
                   instruction
        """
        step = Step(self.machine, instruction, group.threads, self._late[group.threads])
        self._late[group.threads] = False
        function(step)
        if step.parked is None or not step.parked.any():
            return False
        self.park(group.threads[step.parked])
        self.resume(self.at + 1, group.threads[~step.parked])
        return True

    def _run_group(self, at: int, threads: np.ndarray) -> None:
        """Execute instructions from index `at` on, until the group branches, waits, or reaches other threads.

        threads   numbers of the group's threads over all CTAs that are emulated together
        """
        group = Group(threads, self.total)
        others = (place for places in (self._ready, self._incomplete) for place in places if place > at)
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
            if machine.origins and not decoded.propagates:
                machine.propagate_origins(decoded, group)
            at += 1
            if at >= limit:
                counts[start] += n
                counts[at] -= n
                self.resume(at, group.threads)
                return

    def executions(self) -> np.ndarray:
        """Return how many threads have executed each instruction of the program, as an array over instructions."""
        return np.cumsum(self._counts)[:-1]

    def converged(self, group: Group, scope: str) -> Group | None:
        """Split a group of threads that are at the same instruction: return those whose warp or warpgroup is complete.

        A warp is complete if all its threads that have not ended are in the group. Threads of other warps are made to
        wait at this instruction for the rest of their warp. None if no warp is complete.

        group   threads that have reached the instruction
        scope   "warp" or "warpgroup"
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
        self.wait_for_rest(self.at, group.threads[~complete])
        rest = group.threads[complete]
        return Group(rest, self.total) if len(rest) else None

    def end(self, group: Group) -> None:
        """End the threads of a group. Threads that waited for them to complete a warp are scheduled again."""
        self.alive[group.threads] = False
        for check in self.ending:
            check(group.threads)
        held, self._incomplete = self._incomplete, {}
        for at, threads in held.items():
            self.resume(at, threads)

    def _deadlock(self) -> EmulationError:
        """Return the error to raise for a deadlock. It lists where each warp waits, and for what."""
        lines = []
        at_barriers = [(a.at, a.threads) for arrived in self.waiting.values() for a in arrived if a.waits]
        for why, groups in (
            ("waits", sorted(self._parked.items())),
            ("polls memory", sorted(self._spinning.items())),
            ("waits for the rest of its warp or warpgroup", sorted(self._incomplete.items())),
            ("waits at the barrier", at_barriers),
        ):
            for at, threads in groups:
                warps = sorted({(int(self.block_of[t]), int(self.thread_of[t]) // WARP) for t in threads})
                names = ", ".join(f"CTA {self.blocks[slot].index} warp {warp}" for slot, warp in warps[:8])
                more = f" and {len(warps) - 8} more" if len(warps) > 8 else ""
                instruction = self.program[at].instruction
                lines.append(f"  {names}{more} {why} at line {instruction.line}: {instruction.text[:100]}")
                handled = handler_of(instruction)
                if handled is not None and handled.explain is not None:
                    step = Step(self.machine, instruction, threads, np.ones(len(threads), bool))
                    lines += [f"    {text}" for text in handled.explain(step)]
        return EmulationError("\n".join([f"emulate: kernel {self.name[:60]}: deadlock; no thread can run.", *lines]))
