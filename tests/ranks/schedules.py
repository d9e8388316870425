"""Random schedules for hypothesis, and schedules with one step changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from hypothesis import strategies as st

from cutegemm.ranks import OPERATIONS, Schedule, Step, forms_of, schedule_of


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    """Draw a schedule of 2 to 8 ranks with few rows, some of them in shards of different sizes."""
    operation = draw(st.sampled_from(OPERATIONS))
    form = draw(st.sampled_from(forms_of(operation)))
    ranks, rows = draw(st.integers(2, 8)), draw(st.integers(1, 6))
    is_reduced = operation == "all_reduce"
    chunks = draw(st.integers(1, min(3, rows))) if operation != "all_gather" and form == "by_shard" else 1
    m = rows * ranks + (draw(st.integers(0, ranks - 1)) if is_reduced else 0)
    captured = draw(st.booleans())
    dtype = draw(st.sampled_from(["bf16", "f16", "f32"]))
    return schedule_of(operation, ranks, m, 3, 8, dtype, form=form, chunks=chunks, is_captured=captured)


def edited(schedule: Schedule, edit: Callable[[Step], Iterable[Step]], *ranks: int) -> Schedule:
    """Return a schedule with each step of some ranks replaced by the steps that `edit` returns.

    ranks   ranks whose steps are edited; none for all ranks
    """
    return replace(
        schedule,
        steps=tuple(
            [
                tuple([new for step in steps for new in edit(step)]) if not ranks or rank in ranks else steps
                for rank, steps in enumerate(schedule.steps)
            ]
        ),
    )


def without(schedule: Schedule, rank: int, index: int) -> Schedule:
    """Return a schedule without one step of a rank."""
    steps = list(schedule.steps)
    steps[rank] = (*steps[rank][:index], *steps[rank][index + 1 :])
    return replace(schedule, steps=tuple(steps))
