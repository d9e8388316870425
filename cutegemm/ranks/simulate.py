"""Simulate a schedule: all ranks and streams, several calls, in random interleavings, with the values in numpy.

The model:

    stream            a step starts after the one before it in its stream. What happens before a step is a vector clock
                      with an entry for each stream of each rank
    buffer            for each run of rows, the step that last wrote it, and the steps that read it since then. Two
                      accesses need an order if one of them is a write, in whatever order this interleaving has them.
                      Internal buffers of different schedules share memory: any two accesses need an order
    flag              0 or 1, with the call that set it
    multiprocessors   a GEMM has a CTA for each of them, and no other kernel runs next to one. So a signal, a wait or
                      another small kernel starts only if no GEMM holds all of them. A GEMM that starts while a small
                      kernel runs does not end before it. GEMMs of one rank run one after the other. These are worst
                      cases. Copies need no multiprocessor
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np

from cutegemm.errors import UnsupportedError
from cutegemm.ranks.builders import schedule_of
from cutegemm.ranks.memory import Memory
from cutegemm.ranks.schedule import INPUT, OUTPUT, Schedule
from cutegemm.ranks.steps import Add, Barrier, Copy, Gemm, Signal, Spread, Step, Wait
from cutegemm.ranks.tasks import Task, Use, queues_of
from cutegemm.ranks.values import Values, added
from cutegemm.simulator.report import Fault, Report

_ORDERS_OF_SPEED = 3.0  # streams differ in speed by up to a factor of 1000
_TRIES = 8  # streams that are picked at random before all are looked at


@dataclass(frozen=True)
class ScheduleReport:
    """Reports what a simulation of a schedule found.

    interleavings   number of simulated interleavings
    calls           number of consecutive calls in each of them
    steps           number of executed steps, in all interleavings together
    faults          one `Fault` for each kind, with examples; () without faults
    """

    interleavings: int
    calls: int
    steps: int
    faults: tuple[Fault, ...]

    def __str__(self) -> str:
        done = f"{self.interleavings} interleavings of {self.calls} calls, {self.steps} steps"
        return "\n".join([f"{done}: {'faults' if self.faults else 'no fault'}", *map(str, self.faults)])


def simulate_schedule(schedule: Schedule, *, calls: int = 4, interleavings: int = 12, seed: int = 0) -> ScheduleReport:
    """Simulate consecutive calls of a schedule in random interleavings, and return the faults.

    Every call has other operands. The simulation finds these kinds of faults:

    rule          a rule of `Schedule.violations` is broken. Nothing is simulated then
    deadlock      steps wait for each other, by flags or for multiprocessors
    early         a step may read rows before the step that writes them has ended
    overwritten   a step may overwrite rows that another step still reads or writes
    stale         a wait takes the signal of another call, or a signal is never taken
    result        an element of D has a larger error than the documented bound, other bits than in the first
                  interleaving, or, in an all-reduce, other bits than on rank 0

    calls           number of consecutive calls. At least 3 reuse a copy of each buffer
    interleavings   number of random interleavings

    >>> from cutegemm.ranks import all_gather
    >>> print(simulate_schedule(all_gather(2, 8, 4, 16)))
    12 interleavings of 4 calls, 1152 steps: no fault
    """
    return simulate_calls([schedule] * calls, interleavings=interleavings, seed=seed)


def simulate_calls(schedules: Sequence[Schedule], *, interleavings: int = 12, seed: int = 0) -> ScheduleReport:
    """Simulate consecutive calls of several schedules, whose internal buffers share memory, and return the faults.

    The buffers of all schedules start at the same address, so a step that accesses one must follow the accesses of
    other schedules to the same copy. The faults are those of `simulate_schedule`.

    schedules       schedule of each call, all for the same number of ranks
    interleavings   number of random interleavings
    raises          UnsupportedError if the numbers of ranks differ, or without a call or an interleaving

    >>> from cutegemm.ranks import all_gather, reduce_scatter
    >>> gather, scatter = all_gather(2, 8, 4, 16), reduce_scatter(2, 8, 16, 4)
    >>> print(simulate_calls([gather, scatter, scatter, gather, gather]))
    12 interleavings of 5 calls, 1104 steps: no fault
    """
    ranks = {schedule.ranks for schedule in schedules}
    if not ranks or interleavings < 1:
        runs = f"{interleavings} interleavings of {len(schedules)} calls"
        raise UnsupportedError(f"simulate_calls: {runs} have no steps. Pass at least one call and one interleaving.")
    if len(ranks) != 1:
        raise UnsupportedError(f"simulate_calls: schedules of {sorted(ranks)} ranks. Pass schedules of one number.")
    report, steps = Report(), 0
    once = {schedule: schedule for schedule in schedules}
    for schedule in once:
        for text in schedule.violations():
            report.add("rule", text)
    if report.faults():
        return ScheduleReport(0, len(schedules), 0, report.faults())
    calls = tuple([Values.random(once[schedule], seed + call) for call, schedule in enumerate(schedules)])
    first: dict[tuple[int, int], np.ndarray] = {}
    for number in range(interleavings):
        machine = _Machine(calls, report, Random(f"{seed} {number}"))
        steps += machine.run()
        for (call, rank), d in sorted(machine.results.items()):
            same_as = first.setdefault((call, 0 if schedules[call].operation == "all_reduce" else rank), d)
            for text in _wrong_values(calls[call], rank, d, same_as):
                report.add("result", f"rank {rank}, call {call}: {text}")
    return ScheduleReport(interleavings, len(schedules), steps, report.faults())


def miniature(schedule: Schedule) -> Schedule:
    """Return a schedule with the same steps on few rows and columns, whose simulation is fast.

    >>> from cutegemm.ranks import all_reduce
    >>> print(miniature(all_reduce(2, 8191, 8192, 4096, chunks=4)))
    all_reduce by_shard in 4 chunks, 2 ranks: m=17 n=8 k=16
    """
    ranks, chunks = schedule.ranks, schedule.chunks
    m = min(schedule.m, 2 * ranks * chunks + schedule.m % ranks)
    return schedule_of(
        schedule.operation, ranks, m, min(schedule.n, 8), min(schedule.k, 16), schedule.buffer(INPUT).dtype,
        schedule.buffer(OUTPUT).dtype, form=schedule.form, chunks=chunks, is_captured=schedule.is_captured,
    )  # fmt: skip


def _wrong_values(values: Values, rank: int, d: np.ndarray, same_as: np.ndarray) -> Iterator[str]:
    """Yield a sentence if D of a rank is too far from the exact result, or differs from an array."""
    error, bound = np.abs(d - values.exact(rank)), values.bound(rank)
    wrong = np.argwhere(~(error <= bound))  # NaN counts as wrong
    if len(wrong):
        row, column = wrong[0]
        worst = f"error {error[row, column]:.3g}, bound {bound[row, column]:.3g}"
        yield f"d[{row}, {column}] has {worst} ({len(wrong)} elements)."
    elif not np.array_equal(d, same_as):
        yield "D has other bits than in another interleaving or on another rank."


@dataclass
class _Sms:
    """The multiprocessors of a rank: the GEMM that runs, the small kernels that run, and those that the GEMM awaits."""

    gemm: Task | None = None
    small: list[Task] = field(default_factory=list)
    blocking: list[Task] = field(default_factory=list)


class _Machine:
    """Executes the steps of all ranks in one interleaving, and adds faults to a report.

    calls     schedule and operands of each call; equal schedules are one object
    results   D of (call, rank)
    """

    def __init__(self, calls: Sequence[Values], report: Report, rng: Random) -> None:
        schedules = [values.schedule for values in calls]
        self.calls, self.report, self.rng = calls, report, rng
        self.results: dict[tuple[int, int], np.ndarray] = {}
        self.memory = Memory(list({id(schedule): schedule for schedule in schedules}.values()))
        self.flags: dict[tuple[int, int, int], Task] = {}  # (from, to, flag) -> signal that has set it
        self.sms = [_Sms() for _ in range(schedules[0].ranks)]
        self.queues = queues_of(schedules)
        self.at = [0] * len(self.queues)
        self.arrived: list[list[Task]] = [[] for _ in self.sms]  # barriers that each rank has reached

    def run(self) -> int:
        """Execute all tasks, or as many as a deadlock allows. Return the number of executed steps."""
        weights = [10 ** -self.rng.uniform(0, _ORDERS_OF_SPEED) for _ in self.queues]
        open_queues, steps = list(range(len(self.queues))), 0
        while open_queues:
            of = [weights[queue] for queue in open_queues]
            picked = next(filter(self._advance, self.rng.choices(open_queues, of, k=_TRIES)), None)
            if picked is None:
                picked = next(filter(self._advance, self.rng.sample(open_queues, len(open_queues))), None)
            if picked is None:
                self.report.add("deadlock", "; ".join([self._blocked(queue) for queue in open_queues]) + ".")
                return steps
            while self.at[picked] < len(self.queues[picked]) and self.queues[picked][self.at[picked]].has_ended:
                self.at[picked] += 1
                steps += 1
            open_queues = [queue for queue in open_queues if self.at[queue] < len(self.queues[queue])]
        for (source, to, flag), signal in self.flags.items():
            self.report.add("stale", f"{signal}: no wait of rank {to} takes flag {flag} of rank {source}.")
        return steps

    def _advance(self, queue: int) -> bool:
        """Start or end the next task of a stream, and return whether that is possible now."""
        task = self.queues[queue][self.at[queue]]
        if not task.has_started:
            if not all(other.has_ended for other in task.after) or not self._has_room(task):
                return False
            self._start(task)
            return True
        if not self._is_done(task):
            return False
        self._end(task)
        return True

    def _has_room(self, task: Task) -> bool:
        """Return whether the kernel of a task finds a multiprocessor now; True if it needs none."""
        sms = self.sms[task.rank]
        if isinstance(task.step, Gemm):
            return sms.gemm is None
        return not _is_small(task.step) or sms.gemm is None or bool(sms.blocking)

    def _start(self, task: Task) -> None:
        """Start a task: occupy multiprocessors, and check that its accesses follow those of others."""
        task.has_started = True
        for other in task.after:
            np.maximum(task.clock, other.clock, out=task.clock)
        task.clock[task.place] = self.at[task.place] + 1
        sms = self.sms[task.rank]
        if isinstance(task.step, Gemm):
            sms.gemm, sms.blocking = task, sms.small.copy()
        elif _is_small(task.step):
            sms.small.append(task)
            if sms.gemm is not None:
                sms.blocking.append(task)
        if isinstance(task.step, Barrier):
            self.arrived[task.rank].append(task)
        for kind, text in self.memory.accessed(task):
            self.report.add(kind, text)

    def _is_done(self, task: Task) -> bool:
        """Return whether a task that has started can end now: its flag or barrier, or the SMs of its GEMM, allow it."""
        step, rank = task.step, task.rank
        if isinstance(step, Gemm) and self.sms[rank].blocking:
            return False
        if isinstance(step, Signal):
            return (rank, step.to_rank, step.flag) not in self.flags
        if isinstance(step, Wait):
            return (step.from_rank, rank, step.flag) in self.flags
        if isinstance(step, Barrier):
            return len(self._at_barrier(task)) == len(self.sms)
        return True

    def _at_barrier(self, task: Task) -> list[Task]:
        """Return the tasks of all ranks that have reached the barrier of a task, itself among them."""
        number = self.arrived[task.rank].index(task)
        return [tasks[number] for tasks in self.arrived if len(tasks) > number]

    def _end(self, task: Task) -> None:
        """End a task: compute its values, set or take its flag, and release multiprocessors."""
        step, sms = task.step, self.sms[task.rank]
        if isinstance(step, Signal):
            self.flags[task.rank, step.to_rank, step.flag] = task
        elif isinstance(step, Wait):
            signal = self.flags.pop((step.from_rank, task.rank, step.flag))
            np.maximum(task.clock, signal.clock, out=task.clock)
            if signal.call != task.call:
                self.report.add("stale", f"{task} takes the signal of call {signal.call}.")
        elif isinstance(step, Barrier):
            for other in self._at_barrier(task):
                np.maximum(task.clock, other.clock, out=task.clock)
        if isinstance(step, Use):
            self.results[task.call, task.rank] = self.memory.read(task, step.region)
        elif step.writes:
            computed = self._computed(task)
            for region in step.writes:
                self.memory.write(task, region, computed)
        if sms.gemm is task:
            sms.gemm = None
        for kernels in (sms.small, sms.blocking):
            if task in kernels:
                kernels.remove(task)
        task.has_ended = True

    def _computed(self, task: Task) -> np.ndarray:
        """Return what a step stores, before it is rounded to the type of the buffer."""
        step = task.step
        if isinstance(step, Gemm):
            adds = [self.memory.read(task, region) for region in step.adds]
            return self.calls[task.call].multiplied(task.rank, self.memory.read(task, step.a), adds)
        if isinstance(step, Add):
            return added([self.memory.read(task, region) for region in step.sources])
        if isinstance(step, Copy | Spread):
            return self.memory.read(task, step.source)
        return self.calls[task.call].x[task.rank]

    def _blocked(self, queue: int) -> str:
        """Return a text that says what the next task of a stream waits for."""
        task = self.queues[queue][self.at[queue]]
        blocking = self.sms[task.rank].blocking
        if task.has_started and isinstance(task.step, Gemm) and blocking:
            return f"{task} has no multiprocessor for its last CTA while this runs: {blocking[0]}"
        if not task.has_started and all(other.has_ended for other in task.after):
            return f"{task} has no multiprocessor while this runs: {self.sms[task.rank].gemm}"
        waiting = next((str(other) for other in task.after if not other.has_ended), "a signal")
        return f"{task} waits" if task.has_started else f"{task} follows {waiting}"


def _is_small(step: Step) -> bool:
    """Return whether a step is a kernel that occupies one multiprocessor in the model."""
    return isinstance(step, Signal | Wait | Barrier | Add | Spread) and not isinstance(step, Gemm)
