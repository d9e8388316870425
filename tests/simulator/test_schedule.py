"""The account of a schedule's hazards: every step that matters is missed when it is left out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cutegemm.plan.program.thread_schedule import (
    Commit,
    Fetch,
    Multiply,
    Read,
    Store,
    Sync,
    ThreadSchedule,
    Wait,
    multistage,
    single_stage,
)

K_BLOCKS = 4
SCHEDULES = {
    "single": single_stage(K_BLOCKS),
    "two stages": multistage(2, K_BLOCKS),
    "three stages": multistage(3, K_BLOCKS),
    "four stages, unrolled by 2": multistage(4, K_BLOCKS, 2),
}


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("name", SCHEDULES)
def test_sound_schedules_have_no_hazards(name, is_async):
    for k_tiles in range(9):
        assert SCHEDULES[name].hazards(is_async, k_tiles, K_BLOCKS) == []


def without_each_step(schedule):
    for part in ("prologue", "k_tile"):
        steps = getattr(schedule, part)
        for i, step in enumerate(steps):
            yield part, step, replace(schedule, **{part: steps[:i] + steps[i + 1 :]})


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("name", SCHEDULES)
def test_every_step_is_missed(name, is_async):
    idle = (Store,) if is_async else (Commit, Wait)  # what the other kind of copy needs
    for part, step, schedule in without_each_step(SCHEDULES[name]):
        found = schedule.hazards(is_async, 9, K_BLOCKS)
        assert bool(found) != isinstance(step, idle), (part, step, found)


@pytest.mark.parametrize(
    ("steps", "is_async", "message"),
    [
        ((Fetch(0), Store(0), Read(0), Multiply(0)), False, "is not followed by a barrier"),
        ((Fetch(0), Commit(), Sync(), Read(0), Multiply(0)), True, "has not been waited for"),
        (
            (Fetch(0), Fetch(1), Store(0)),
            False,
            "k-tile 1 is fetched while k-tile 0 is still in the registers",
        ),
        ((Store(0),), False, "k-tile 0 is stored, but the registers hold nothing"),
        (
            (Fetch(0), Fetch(2)),
            True,
            "stage 0 is overwritten by k-tile 2 while the copy of k-tile 0 to",
        ),
        (
            (Fetch(0), Commit(), Wait(0), Sync(), Read(0), Fetch(2)),
            True,
            "while other warps may still read k-tile 0",
        ),
        ((Read(0),), True, "k-tile 0 is read from stage 0, which holds nothing"),
        ((Multiply(1),), True, "k-block 1 of k-tile 0 is multiplied, but the fragments hold nothing"),
        ((Multiply(0), Multiply(0)), True, "k-block 0 of k-tile 0 is multiplied 2 times"),
        ((Multiply(5),), True, "k-block 5 of k-tile 0 is multiplied, but it does not exist"),
    ],
)
def test_each_hazard_is_told(steps, is_async, message):
    found = ThreadSchedule(2, 2, steps, ()).hazards(is_async, 3, 2)
    assert any(message in text for text in found)
