"""Simulate a schedule: all ranks and streams, several calls, in random interleavings, with the values in numpy.

The model:

    stream            a step starts after the one before it in its stream. What happens before a step is a vector clock
                      with an entry for each stream of each rank
    buffer            for each run of rows, the step that last wrote it, and the steps that read it since then. Two
                      accesses need an order if one of them is a write, in whatever order this interleaving has them
    flag              0 or 1, with the call that set it
    multiprocessors   a GEMM has a CTA for each of them, and no other kernel runs next to one. So a signal, a wait or
                      another small kernel starts only if no GEMM holds all of them. A GEMM that starts while a small
                      kernel runs does not end before it. GEMMs of one rank run one after the other. These are worst
                      cases. Copies need no multiprocessor
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

import numpy as np

from cutegemm.dtypes import round_to
from cutegemm.ranks.builders import schedule_of
from cutegemm.ranks.schedule import INPUT, MAIN, OUTPUT, Schedule
from cutegemm.ranks.steps import Add, Barrier, Copy, Gemm, Region, Signal, Step, Wait, followed
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
    report = Report()
    for text in schedule.violations():
        report.add("rule", text)
    if report.faults():
        return ScheduleReport(0, calls, 0, report.faults())
    values, steps = Values.random(schedule, calls, seed), 0
    first: dict[tuple[int, int], np.ndarray] = {}
    for number in range(interleavings):
        machine = _Machine(schedule, values, calls, report, Random(f"{seed} {number}"))
        steps += machine.run()
        for (call, rank), d in sorted(machine.results.items()):
            same_as = first.setdefault((0 if schedule.operation == "all_reduce" else rank, call), d)
            for text in _wrong_values(values, call, rank, d, same_as):
                report.add("result", text)
    return ScheduleReport(interleavings, calls, steps, report.faults())


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


def _wrong_values(values: Values, call: int, rank: int, d: np.ndarray, same_as: np.ndarray) -> Iterator[str]:
    """Yield a sentence if D of a rank in a call is too far from the exact result, or differs from an array."""
    error, bound = np.abs(d - values.exact(call, rank)), values.bound(call, rank)
    wrong = np.argwhere(~(error <= bound))  # NaN counts as wrong
    if len(wrong):
        row, column = wrong[0]
        worst = f"error {error[row, column]:.3g}, bound {bound[row, column]:.3g}"
        yield f"rank {rank}, call {call}: d[{row}, {column}] has {worst} ({len(wrong)} elements)."
    elif not np.array_equal(d, same_as):
        yield f"rank {rank}, call {call}: D has other bits than in another interleaving or on another rank."


@dataclass(frozen=True)
class _Fill(Step):
    """The caller writes x before a call."""

    region: Region

    @property
    def writes(self) -> tuple[Region, ...]:
        return (self.region,)

    def __str__(self) -> str:
        return f"the caller writes {self.region}"


@dataclass(frozen=True)
class _Use(Step):
    """The caller reads D after a call."""

    region: Region

    @property
    def reads(self) -> tuple[Region, ...]:
        return (self.region,)

    def __str__(self) -> str:
        return f"the caller reads {self.region}"


@dataclass
class _Task:
    """A step of one call, as a node of the order.

    after   tasks that must end before this one starts
    clock   what has happened before the end of this task: entry i is the number of tasks of stream i
    place   index of its stream in the clock
    """

    rank: int
    call: int
    step: Step
    after: list[_Task]
    place: int
    clock: np.ndarray
    has_started: bool = False
    has_ended: bool = False

    def __str__(self) -> str:
        return f"rank {self.rank}, call {self.call}: {self.step}"

    @property
    def count(self) -> int:
        """Number of this task in its stream, from 1."""
        return int(self.clock[self.place])

    def precedes(self, other: _Task) -> bool:
        """Return whether this task ends before another one starts in every interleaving."""
        return bool(other.clock[self.place] >= self.count) and self is not other


@dataclass
class _Rows:
    """A run of rows that every step accesses completely: values, and the accesses that later ones must follow."""

    values: np.ndarray
    writer: _Task | None = None
    readers: list[_Task] = field(default_factory=list)


@dataclass
class _Sms:
    """The multiprocessors of a rank: the GEMM that runs, the small kernels that run, and those that the GEMM awaits."""

    gemm: _Task | None = None
    small: list[_Task] = field(default_factory=list)
    blocking: list[_Task] = field(default_factory=list)


class _Machine:
    """Executes the steps of all ranks in one interleaving, and adds faults to a report.

    results   D of (call, rank)
    """

    def __init__(self, schedule: Schedule, values: Values, calls: int, report: Report, rng: Random) -> None:
        self.schedule, self.values, self.report, self.rng = schedule, values, report, rng
        self.results: dict[tuple[int, int], np.ndarray] = {}
        self.flags: dict[tuple[int, int, int], _Task] = {}  # (from, to, flag) -> signal that has set it
        self.sms = [_Sms() for _ in range(schedule.ranks)]
        self.arrived: dict[int, list[_Task]] = {}  # number of a barrier -> tasks that have reached it
        self.barriers: dict[int, int] = {}  # identity of a task -> number of its barrier
        self.queues = self._queues(calls)
        self.at = [0] * len(self.queues)
        self.borders = self._borders()
        self.memory = self._memory()

    def _queues(self, calls: int) -> list[list[_Task]]:
        """Return the tasks of each stream of each rank, in order, with what each of them follows."""
        places = {
            (rank, stream): place
            for place, (rank, stream) in enumerate(
                (rank, stream)
                for rank in range(self.schedule.ranks)
                for stream in dict.fromkeys((MAIN, *self.schedule.streams(rank)))
            )
        }
        queues: list[list[_Task]] = [[] for _ in places]
        for rank in range(self.schedule.ranks):
            steps = [(call, step) for call in range(calls) for step in self._called(rank)]
            tasks: list[_Task] = []
            for (call, step), before in zip(steps, followed([step for _, step in steps]), strict=True):
                place = places[rank, step.stream]
                clock = np.zeros(len(places), np.int64)
                tasks.append(_Task(rank, call, step, [tasks[index] for index in before], place, clock))
                queues[place].append(tasks[-1])
            barriers = [task for task in tasks if isinstance(task.step, Barrier)]
            self.barriers |= {id(task): number for number, task in enumerate(barriers)}
        return queues

    def _called(self, rank: int) -> Iterator[Step]:
        """Yield the steps of a call of a rank, between those of the caller."""
        schedule = self.schedule
        yield _Fill(MAIN, Region(rank, INPUT, 0, schedule.buffer(INPUT).rows))
        yield from schedule.steps[rank]
        yield _Use(MAIN, Region(rank, OUTPUT, 0, self._rows_of_d(rank)))

    def _rows_of_d(self, rank: int) -> int:
        """Return the number of rows of D of a rank."""
        is_scattered = self.schedule.operation == "reduce_scatter"
        return self.schedule.shard(rank)[1] if is_scattered else self.schedule.m

    def _borders(self) -> dict[str, list[int]]:
        """Return the rows of each buffer where a region of a step begins or ends, in ascending order."""
        borders = {buffer.name: {0, buffer.rows} for buffer in self.schedule.buffers}
        for rank in range(self.schedule.ranks):
            for step in self._called(rank):
                for region in (*step.reads, *step.writes):
                    borders[region.buffer] |= {region.first_row, region.first_row + region.rows}
        return {name: sorted(rows) for name, rows in borders.items()}

    def _memory(self) -> dict[tuple[int, str, int], dict[int, _Rows]]:
        """Return the memory of all ranks, filled with NaN: (rank, buffer, copy) -> first row -> run of rows."""
        return {
            (rank, buffer.name, copy): {
                begin: _Rows(np.full((end - begin, buffer.columns), np.nan, np.float32))
                for begin, end in zip(self.borders[buffer.name], self.borders[buffer.name][1:], strict=False)
            }
            for rank in range(self.schedule.ranks)
            for buffer in self.schedule.buffers
            for copy in range(buffer.copies)
        }

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

    def _has_room(self, task: _Task) -> bool:
        """Return whether the kernel of a task finds a multiprocessor now; True if it needs none."""
        sms = self.sms[task.rank]
        if isinstance(task.step, Gemm):
            return sms.gemm is None
        return not _is_small(task.step) or sms.gemm is None or bool(sms.blocking)

    def _start(self, task: _Task) -> None:
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
            self.arrived.setdefault(self.barriers[id(task)], []).append(task)
        for region in task.step.reads:
            for rows in self._rows(task, region):
                self._check_read(task, region, rows)
                rows.readers.append(task)
        for region in task.step.writes:
            for rows in self._rows(task, region):
                self._check_write(task, region, rows)
                rows.writer, rows.readers = task, []

    def _is_done(self, task: _Task) -> bool:
        """Return whether a task that has started can end now: its flag or barrier, or the SMs of its GEMM, allow it."""
        step, rank = task.step, task.rank
        if isinstance(step, Gemm) and self.sms[rank].blocking:
            return False
        if isinstance(step, Signal):
            return (rank, step.to_rank, step.flag) not in self.flags
        if isinstance(step, Wait):
            return (step.from_rank, rank, step.flag) in self.flags
        if isinstance(step, Barrier):
            return len(self.arrived[self.barriers[id(task)]]) == self.schedule.ranks
        return True

    def _end(self, task: _Task) -> None:
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
            for other in self.arrived[self.barriers[id(task)]]:
                np.maximum(task.clock, other.clock, out=task.clock)
        if isinstance(step, _Use):
            self.results[task.call, task.rank] = self._read(task, step.region)
        elif step.writes:
            self._write(task, step.writes[0], self._computed(task))
        if sms.gemm is task:
            sms.gemm = None
        for kernels in (sms.small, sms.blocking):
            if task in kernels:
                kernels.remove(task)
        task.has_ended = True

    def _computed(self, task: _Task) -> np.ndarray:
        """Return what a step stores, before it is rounded to the type of the buffer."""
        step = task.step
        if isinstance(step, Gemm):
            adds = [self._read(task, region) for region in step.adds]
            return self.values.multiplied(task.rank, self._read(task, step.a), adds)
        if isinstance(step, Add):
            return added([self._read(task, region) for region in step.sources])
        if isinstance(step, Copy):
            return self._read(task, step.source)
        return self.values.x[task.call][task.rank]

    def _rows(self, task: _Task, region: Region) -> list[_Rows]:
        """Return the runs of rows of a region, in the copy of the buffer that the call of a task uses."""
        copies = self.schedule.buffer(region.buffer).copies
        runs = self.memory[region.rank, region.buffer, task.call % copies]
        begin, end = region.first_row, region.first_row + region.rows
        return [runs[row] for row in self.borders[region.buffer] if begin <= row < end]

    def _read(self, task: _Task, region: Region) -> np.ndarray:
        """Return the values of a region."""
        return np.concatenate([rows.values for rows in self._rows(task, region)])

    def _write(self, task: _Task, region: Region, values: np.ndarray) -> None:
        """Store values to a region, rounded to the type of its buffer."""
        rounded, begin = round_to(self.schedule.buffer(region.buffer).dtype, values), 0
        for rows in self._rows(task, region):
            end = begin + len(rows.values)
            rows.values, begin = rounded[begin:end], end

    def _check_read(self, task: _Task, region: Region, rows: _Rows) -> None:
        """Add a fault if the rows that a task reads were not written in its call, by a step that precedes it."""
        if rows.writer is None:
            self.report.add("early", f"{task} reads {region}, which no step has written.")
        elif not rows.writer.precedes(task):
            self.report.add("early", f"{task} may read {region} before the end of this: {rows.writer}.")
        elif rows.writer.call != task.call:
            self.report.add("early", f"{task} reads {region} of another call: {rows.writer}.")

    def _check_write(self, task: _Task, region: Region, rows: _Rows) -> None:
        """Add a fault if a task overwrites rows that another task may still read or write."""
        for other in (*rows.readers, *([] if rows.writer is None else [rows.writer])):
            if not other.precedes(task) and other is not task:
                self.report.add("overwritten", f"{task} may overwrite {region} before the end of this: {other}.")

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
    return isinstance(step, Signal | Wait | Barrier | Add) and not isinstance(step, Gemm)
