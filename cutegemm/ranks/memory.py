"""Memory of all ranks in a simulation: values, and the accesses that later ones must follow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from cutegemm.dtypes import round_to
from cutegemm.ranks.schedule import INPUT, OUTPUT, Schedule
from cutegemm.ranks.steps import Region
from cutegemm.ranks.tasks import Task, called


@dataclass
class Rows:
    """A run of rows that every step accesses completely, or not at all.

    values    the content; NaN before the first write
    writer    task that last wrote it
    readers   tasks that have read it since then
    """

    values: np.ndarray
    writer: Task | None = None
    readers: list[Task] = field(default_factory=list)


class Memory:
    """The buffers of all schedules on all ranks. The internal buffers of different schedules share their memory.

    schedules   the schedules, each once
    """

    def __init__(self, schedules: Sequence[Schedule]) -> None:
        self.numbers = {id(schedule): number for number, schedule in enumerate(schedules)}
        # (number of the schedule, rank, buffer, copy) -> first row -> run of rows
        self.runs: dict[tuple[int, int, str, int], dict[int, Rows]] = {}
        # (rank, copy) -> (number of the schedule, stream) -> last access to an internal buffer
        self.last: dict[tuple[int, int], dict[tuple[int, int], Task]] = {}
        for number, schedule in enumerate(schedules):
            for name, borders in _borders(schedule).items():
                buffer = schedule.buffer(name)
                for rank in range(schedule.ranks):
                    for copy in range(buffer.copies):
                        self.runs[number, rank, name, copy] = {
                            begin: Rows(np.full((end - begin, buffer.columns), np.nan, np.float32))
                            for begin, end in pairwise(borders)
                        }

    def read(self, task: Task, region: Region) -> np.ndarray:
        """Return the values of a region, in the copy that the call of a task uses."""
        return np.concatenate([rows.values for rows in self._rows(task, region)])

    def write(self, task: Task, region: Region, values: np.ndarray) -> None:
        """Store values to a region, rounded to the type of its buffer."""
        rounded, begin = round_to(task.schedule.buffer(region.buffer).dtype, values), 0
        for rows in self._rows(task, region):
            end = begin + len(rows.values)
            rows.values, begin = rounded[begin:end], end

    def accessed(self, task: Task) -> Iterator[tuple[str, str]]:
        """Record the accesses of a task that starts; yield (kind, text) of each fault."""
        for region in task.step.reads:
            for rows in self._rows(task, region):
                yield from _early(task, region, rows)
                rows.readers.append(task)
            yield from self._shared(task, region)
        for region in task.step.writes:
            for rows in self._rows(task, region):
                yield from _overwritten(task, region, [*rows.readers, *([rows.writer] if rows.writer else [])])
                rows.writer, rows.readers = task, []
            yield from self._shared(task, region)

    def _rows(self, task: Task, region: Region) -> list[Rows]:
        """Return the runs of rows of a region, in the copy of the buffer that the call of a task uses."""
        copy = task.call % task.schedule.buffer(region.buffer).copies
        runs = self.runs[self.numbers[id(task.schedule)], region.rank, region.buffer, copy]
        return [rows for begin, rows in runs.items() if 0 <= begin - region.first_row < region.rows]

    def _shared(self, task: Task, region: Region) -> Iterator[tuple[str, str]]:
        """Record a read or write of an internal buffer. Yield a fault for unordered accesses of other schedules."""
        if region.buffer in (INPUT, OUTPUT):
            return
        number = self.numbers[id(task.schedule)]
        copy = task.call % task.schedule.buffer(region.buffer).copies
        last = self.last.setdefault((region.rank, copy), {})
        others = [other for (schedule, _), other in last.items() if schedule != number]
        yield from _overwritten(task, region, others)
        last[number, task.place] = task


def _borders(schedule: Schedule) -> dict[str, list[int]]:
    """Return the rows of each buffer where a region of a step begins or ends, in ascending order."""
    borders = {buffer.name: {0, buffer.rows} for buffer in schedule.buffers}
    for rank in range(schedule.ranks):
        for step in called(schedule, rank):
            for region in (*step.reads, *step.writes):
                borders[region.buffer] |= {region.first_row, region.first_row + region.rows}
    return {name: sorted(rows) for name, rows in borders.items()}


def _early(task: Task, region: Region, rows: Rows) -> Iterator[tuple[str, str]]:
    """Yield a fault if the rows that a task reads were not written in its call, by a task that precedes it."""
    if rows.writer is None:
        yield "early", f"{task} reads {region}, which no step has written."
    elif not rows.writer.precedes(task):
        yield "early", f"{task} may read {region} before the end of this: {rows.writer}."
    elif rows.writer.call != task.call:
        yield "early", f"{task} reads {region} of another call: {rows.writer}."


def _overwritten(task: Task, region: Region, others: Sequence[Task]) -> Iterator[tuple[str, str]]:
    """Yield a fault for each of some accesses to the memory of a region that a task does not follow."""
    for other in others:
        if not other.precedes(task) and other is not task:
            yield "overwritten", f"{task} may overwrite {region} before the end of this: {other}."
