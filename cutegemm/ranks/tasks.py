"""Tasks of a simulation: the steps of consecutive calls on all ranks, and the order that streams give them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from cutegemm.ranks.schedule import INPUT, MAIN, OUTPUT, Schedule
from cutegemm.ranks.steps import Region, Step, followed


@dataclass(frozen=True)
class Fill(Step):
    """The caller writes x before a call."""

    region: Region

    @property
    def writes(self) -> tuple[Region, ...]:
        """The whole x of a rank."""
        return (self.region,)

    def __str__(self) -> str:
        return f"the caller writes {self.region}"


@dataclass(frozen=True)
class Use(Step):
    """The caller reads D after a call."""

    region: Region

    @property
    def reads(self) -> tuple[Region, ...]:
        """The whole D of a rank."""
        return (self.region,)

    def __str__(self) -> str:
        return f"the caller reads {self.region}"


@dataclass(eq=False)
class Task:
    """A step of one call, as a node of the order of all steps.

    rank, call   rank that issues the step, and number of the call
    schedule     schedule of the call
    after        tasks that must end before this one starts
    place        index of its stream in the clock
    clock        what has happened before the end of this task: entry i is the number of tasks of stream i. It is 0
                 everywhere until the task starts
    """

    rank: int
    call: int
    schedule: Schedule
    step: Step
    after: list[Task]
    place: int
    clock: np.ndarray
    has_started: bool = False
    has_ended: bool = False

    def __str__(self) -> str:
        return f"rank {self.rank}, call {self.call}: {self.step}"

    def precedes(self, other: Task) -> bool:
        """Return whether this task, which has started, ends before another one starts, in every interleaving."""
        return bool(other.clock[self.place] >= self.clock[self.place]) and self is not other


def called(schedule: Schedule, rank: int) -> Iterator[Step]:
    """Yield the steps of a call of a rank, between those of the caller."""
    rows = schedule.shard(rank)[1] if schedule.operation == "reduce_scatter" else schedule.m
    yield Fill(MAIN, Region(rank, INPUT, 0, schedule.buffer(INPUT).rows))
    yield from schedule.steps[rank]
    yield Use(MAIN, Region(rank, OUTPUT, 0, rows))


def queues_of(schedules: Sequence[Schedule]) -> list[list[Task]]:
    """Return the tasks of each stream of each rank, in order, for consecutive calls of schedules."""
    ranks = range(schedules[0].ranks)
    names = dict.fromkeys((MAIN, *(name for of in schedules for rank in ranks for name in of.streams(rank))))
    places = {stream: place for place, stream in enumerate((rank, name) for rank in ranks for name in names)}
    queues: list[list[Task]] = [[] for _ in places]
    for rank in ranks:
        steps = [(call, step) for call, schedule in enumerate(schedules) for step in called(schedule, rank)]
        tasks: list[Task] = []
        for (call, step), before in zip(steps, followed([step for _, step in steps]), strict=True):
            after, place = [tasks[index] for index in before], places[rank, step.stream]
            clock = np.zeros(len(places), np.int64)
            tasks.append(Task(rank, call, schedules[call], step, after, place, clock))
            queues[place].append(tasks[-1])
    return queues
