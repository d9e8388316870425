"""Predict how long a schedule takes, and choose the schedule with the lowest predicted time."""

from __future__ import annotations

from dataclasses import dataclass

from cutegemm.draw.timeline import Event, Timeline
from cutegemm.dtypes import DType, bf16
from cutegemm.machine.device import DEFAULT_DEVICE, Device
from cutegemm.machine.links import NVLINK_HOPPER, Link
from cutegemm.ranks.builders import schedule_of
from cutegemm.ranks.clock import Clock, Timed
from cutegemm.ranks.schedule import INPUT, MAIN, OUTPUT, Schedule
from cutegemm.ranks.steps import Add, Barrier, Copy, Gemm, Region, Signal, Spread, Step, Wait

_CHUNKS = (2, 4)  # launches for the rows of a shard that are compared with one, in a reduction by shard
_COLUMNS = ("times in us", "total", "GEMMs", "in them", "copies", "sums", "waiting")
_KINDS: tuple[tuple[type[Step], ...], ...] = ((Gemm,), (Copy, Spread), (Add,), (Signal, Wait, Barrier))
_ROW = "{:<22}{:>9}{:>7}{:>9}{:>9}{:>9}{:>9}"


@dataclass(frozen=True)
class Prediction:
    """The predicted time of a schedule, step by step.

    schedule   the schedule
    steps      steps of all ranks, with their times
    gemm_us    predicted time of one GEMM of all rows of a rank, without communication, in microseconds
    """

    schedule: Schedule
    steps: tuple[Timed, ...]
    gemm_us: float

    @property
    def us(self) -> float:
        """Predicted time of the slowest rank in microseconds."""
        return max(timed.end for timed in self.steps)

    @property
    def outside_us(self) -> float:
        """Predicted time in microseconds while rank 0 runs no GEMM: communication that no GEMM hides."""
        return self.us - self.busy_us(Gemm)

    def busy_us(self, *kinds: type[Step], rank: int = 0) -> float:
        """Return the time in microseconds that a rank spends on steps of some classes, added up.

        >>> from cutegemm.ranks import Copy, all_gather
        >>> round(predict(all_gather(2, 8192, 4096, 8192)).busy_us(Copy))
        180
        """
        return sum(
            timed.end - timed.start for timed in self.steps if timed.rank == rank and isinstance(timed.step, kinds)
        )

    def timeline(self, ranks: tuple[int, ...] = (0,)) -> Timeline:
        """Return the timeline of some ranks: one line for each stream, with its steps and waits.

        The number in a bar is the other rank: owner of the rows that a GEMM computes, source or target of a copy.

        >>> from cutegemm.ranks import all_gather
        >>> predict(all_gather(2, 8192, 4096, 8192)).timeline().roles
        ('rank 0 main', 'rank 0 copy', 'rank 0 second', 'rank 0 signal')
        """
        shown = [timed for timed in self.steps if timed.rank in ranks and timed.end > timed.start]
        events = []
        for timed in sorted(shown, key=lambda timed: (timed.rank, timed.step.stream != MAIN, timed.step.stream)):
            name, other = _label(self.schedule, timed)
            lane = f"rank {timed.rank} {timed.step.stream}"
            events.append(Event(lane, name, other, round(timed.start, 1), round(timed.end, 1)))
        return Timeline(events, title=str(self.schedule), unit="us", number="rank")


def predict(schedule: Schedule, device: Device = DEFAULT_DEVICE, link: Link = NVLINK_HOPPER) -> Prediction:
    """Predict the times of all steps of one call that all ranks enter at the same time.

    device   GPU of each rank, whose rates the time model of GEMMs uses
    link     rates and latencies between two ranks
    raises   SimulationError if the schedule ends in a deadlock

    >>> from cutegemm.ranks import all_gather
    >>> prediction = predict(all_gather(2, 8192, 4096, 8192))
    >>> print(f"{prediction.us:.0f} us, one GEMM {prediction.gemm_us:.0f} us")
    772 us, one GEMM 791 us
    """
    rows = schedule.buffer(OUTPUT if schedule.operation == "all_gather" else INPUT).rows
    clock = Clock(schedule, device, link)
    return Prediction(schedule, tuple(clock.run()), clock.gemm_us(rows, 0))


def predictions(
    operation: str,
    ranks: int,
    m: int,
    n: int,
    k: int,
    dtype: DType | str = bf16,
    out_dtype: DType | str | None = None,
    *,
    is_captured: bool = False,
    device: Device = DEFAULT_DEVICE,
    link: Link = NVLINK_HOPPER,
) -> list[Prediction]:
    """Return the predictions of all forms of an operation, in ascending order of predicted time.

    ranks, m, n, k, dtype, out_dtype, is_captured   as for `schedule_of`
    device, link                                    as for `predict`
    raises                                          PlanError with every rule that the arguments break

    >>> for rows in 64, 8192:
    ...     print(rows, predictions("all_gather", 2, rows, 4096, 8192)[0].schedule.form)
    64 whole
    8192 by_shard
    """
    options = [("whole", 1), ("by_shard", 1)]
    if operation != "all_gather":
        options += [("by_copy", 1), *[("by_shard", chunks) for chunks in _CHUNKS]]
    made = [
        schedule_of(operation, ranks, m, n, k, dtype, out_dtype, form=form, chunks=chunks, is_captured=is_captured)
        for form, chunks in options
        if form == "whole" or m >= ranks * chunks
    ]
    return sorted([predict(schedule, device, link) for schedule in made], key=lambda one: one.us)


def explained(made: list[Prediction]) -> str:
    """Return a text that says why the first of some predictions is chosen, with the times of all of them.

    made   result of `predictions`

    >>> print(explained(predictions("reduce_scatter", 2, 64, 8192, 4096)))
    reduce_scatter whole, 2 ranks: m=64 n=8192 k=4096
    one GEMM of all rows: 25.0 us
    times in us               total  GEMMs  in them   copies     sums  waiting
    whole                      34.9      1     25.0      0.0      4.9      5.0
    by_shard                   54.0      2     49.0      0.0      0.0      5.0
    by_copy                    56.2      2     47.6      8.5      3.6      5.0
    by_shard in 2 chunks      105.8      4     95.8     15.6      0.0     10.0
    by_shard in 4 chunks      199.4      8    179.4     29.8      0.0     20.0
    whole takes 19.0 us less than by_shard: -23.9 us of GEMMs, +4.9 us while no GEMM runs.
    """
    first = made[0]
    lines = [f"{first.schedule}", f"one GEMM of all rows: {first.gemm_us:.1f} us", _ROW.format(*_COLUMNS)]
    for one in made:
        spent = [f"{one.busy_us(*kinds):.1f}" for kinds in _KINDS]
        gemms = sum(isinstance(step, Gemm) for step in one.schedule.steps[0])
        lines.append(_ROW.format(one.schedule.way, f"{one.us:.1f}", gemms, *spent))
    other = next((one for one in made if one.schedule.form != first.schedule.form), None)
    if other is not None:
        gemms_us = first.busy_us(Gemm) - other.busy_us(Gemm)
        lines.append(
            f"{first.schedule.way} takes {other.us - first.us:.1f} us less than {other.schedule.way}: "
            f"{gemms_us:+.1f} us of GEMMs, {first.outside_us - other.outside_us:+.1f} us while no GEMM runs."
        )
    return "\n".join(lines)


def _label(schedule: Schedule, timed: Timed) -> tuple[str, int | None]:
    """Return (name, other rank) of a step for a timeline; the rank is None for a step on the rows of all ranks."""
    step, rank = timed.step, timed.rank
    if isinstance(step, Gemm):
        at = step.d if schedule.operation == "all_gather" else step.a
        owners = [owner for owner in range(schedule.ranks) if _owns(schedule.shard(owner), at)]
        return "gemm", owners[0] if owners else None
    if isinstance(step, Copy):
        return "copy", step.target.rank if step.target.rank != rank else step.source.rank
    if isinstance(step, Signal):
        return "signal", step.to_rank
    if isinstance(step, Wait):
        return "wait", step.from_rank
    return type(step).__name__.lower(), None


def _owns(shard: tuple[int, int], region: Region) -> bool:
    """Return whether all rows of a region are in a shard (first row, rows)."""
    first, rows = shard
    return first <= region.first_row and region.first_row + region.rows <= first + rows
