"""The simulator finds no fault in the schedules of the package, and a fault in each one that is broken on purpose."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutegemm.errors import UnsupportedError
from cutegemm.ranks import (
    FORMS,
    OPERATIONS,
    Add,
    Barrier,
    Follow,
    Gemm,
    Schedule,
    ScheduleReport,
    Signal,
    Step,
    Wait,
    all_gather,
    all_reduce,
    forms_of,
    miniature,
    reduce_scatter,
    schedule_of,
    simulate_calls,
    simulate_schedule,
)
from cutegemm.ranks.values import Values, added
from tests.ranks.schedules import edited, schedules, without

KINDS = [(operation, form) for operation in OPERATIONS for form in forms_of(operation)]


def kinds(report: ScheduleReport) -> set[str]:
    """Return the kinds of the faults of a report."""
    return {fault.kind for fault in report.faults}


def example(report: ScheduleReport, kind: str) -> str:
    """Return the first example of a kind of fault."""
    return next(fault.examples[0] for fault in report.faults if fault.kind == kind)


def chunked(operation: str, form: str) -> int:
    """Return 2 chunks for a reduction by shard, and 1 for other schedules."""
    return 2 if operation != "all_gather" and form == "by_shard" else 1


@settings(max_examples=40, deadline=None)
@given(schedules())
def test_schedules_have_no_fault(schedule: Schedule) -> None:
    report = simulate_schedule(schedule, interleavings=3)
    assert str(report) == f"3 interleavings of 4 calls, {report.steps} steps: no fault"
    issued = sum(len(steps) + 2 for steps in schedule.steps)  # the caller writes x and reads D
    assert report.steps == 3 * 4 * issued


def test_a_simulation_without_steps_is_refused() -> None:
    """It would report no fault."""
    for options in ({"calls": 0}, {"interleavings": 0}):
        with pytest.raises(UnsupportedError, match=r"have no steps. Pass at least one call and one interleaving."):
            simulate_schedule(all_gather(2, 8, 4, 4), **options)


@pytest.mark.parametrize("ranks", [2, 8])
@pytest.mark.parametrize(("operation", "form"), KINDS)
def test_many_calls_in_many_interleavings(operation: str, form: str, ranks: int) -> None:
    schedule = schedule_of(operation, ranks, 2 * ranks, 3, 4, form=form, chunks=chunked(operation, form))
    assert not simulate_schedule(schedule, calls=7, interleavings=80 // ranks, seed=1).faults


@pytest.mark.parametrize("is_captured", [False, True])
@pytest.mark.parametrize(("operation", "form"), KINDS)
def test_every_step_is_needed(operation: str, form: str, is_captured: bool) -> None:
    """Without any one step of a rank, some interleaving of three ranks has a fault.

    Calls of an all-reduce by shard need no barrier between them, but they share memory with other calls.
    """
    chunks = chunked(operation, form)
    schedule = schedule_of(operation, 3, 6, 3, 4, form=form, chunks=chunks, is_captured=is_captured)
    other = schedule_of("reduce_scatter", 3, 6, 3, 4, is_captured=is_captured)
    for index, step in enumerate(schedule.steps[1]):
        report = simulate_schedule(without(schedule, 1, index), calls=3, interleavings=6)
        if isinstance(step, Barrier):
            report = simulate_calls([schedule, other, without(schedule, 1, index)], interleavings=6)
        assert report.faults, f"no fault without {step} of stream {step.stream}"


@pytest.mark.parametrize(("operation", "form"), KINDS)
def test_one_copy_of_buffers_needs_a_barrier(operation: str, form: str) -> None:
    """With one copy, a rank overwrites what another still reads in the call before.

    In an all-reduce by shard, signals order each call after the one before: a rank that stores partial results has
    copied the rows that their owner reduced in the call before.
    """
    is_ordered = (operation, form) == ("all_reduce", "by_shard")
    schedule = schedule_of(operation, 2, 4, 3, 4, form=form)
    one = replace(schedule, buffers=tuple([replace(buffer, copies=1) for buffer in schedule.buffers]))
    captured = schedule_of(operation, 2, 4, 3, 4, form=form, is_captured=True)
    unguarded = replace(captured, steps=tuple([steps[1:] for steps in captured.steps]))
    for broken in (one, unguarded):
        assert ("overwritten" in kinds(simulate_schedule(broken))) != is_ordered
    assert not simulate_schedule(one, calls=1).faults  # the fault is between two calls


@st.composite
def sequences(draw: st.DrawFn) -> list[Schedule]:
    """Draw schedules of consecutive calls of some ranks; all calls after a captured one are captured."""
    ranks, count = draw(st.integers(2, 4)), draw(st.integers(3, 6))
    first_captured = draw(st.integers(0, count))

    def call(number: int) -> Schedule:
        operation, form = draw(st.sampled_from(KINDS))
        rows, chunks = draw(st.integers(2, 4)), chunked(operation, form)
        return schedule_of(
            operation, ranks, rows * ranks, 3, 4, form=form, chunks=chunks, is_captured=number >= first_captured
        )

    return [call(number) for number in range(count)]


@settings(max_examples=40, deadline=None)
@given(sequences())
def test_calls_of_different_schedules_share_memory(calls: list[Schedule]) -> None:
    assert not simulate_calls(calls, interleavings=3).faults


@pytest.mark.parametrize(("operation", "form"), KINDS)
def test_calls_of_different_schedules_need_two_copies(operation: str, form: str) -> None:
    """With one copy, a call of a rank may store to another rank that is still in the call before."""

    def with_one_copy(schedule: Schedule) -> Schedule:
        return replace(schedule, buffers=tuple([replace(buffer, copies=1) for buffer in schedule.buffers]))

    first = with_one_copy(schedule_of("reduce_scatter", 2, 4, 3, 4))
    second = with_one_copy(schedule_of(operation, 2, 8, 3, 4, form=form))
    report = simulate_calls([first, second, first])
    assert "overwritten" in kinds(report)
    with pytest.raises(UnsupportedError, match=r"schedules of \[2, 3\] ranks"):
        simulate_calls([first, schedule_of(operation, 3, 9, 3, 4, form=form)])


def test_an_early_read() -> None:
    """A GEMM of rows that are still copied, if the wait is in the other stream."""
    moved = edited(all_gather(2, 4, 3, 4), lambda step: [replace(step, stream="main") if type(step) is Wait else step])
    report = simulate_schedule(moved)
    expected = "may read gathered[2:4] of rank 0 before the end of this: rank 1, call 0: copy x[0:2] of rank 1 -> "
    assert any(expected in text for fault in report.faults if fault.kind == "early" for text in fault.examples)


def test_a_read_of_nothing() -> None:
    """A rank signals, but has not stored its partial result."""
    schedule = reduce_scatter(2, 4, 3, 4)
    report = simulate_schedule(edited(schedule, lambda s: [] if type(s) is Gemm and s.d.rank == 1 else [s], 0))
    assert "which no step has written" in example(report, "early")
    assert kinds(report) == {"early", "result"}


def test_a_stream_that_no_one_follows() -> None:
    """Then the caller could overwrite x while it is still copied."""
    hasty = edited(all_gather(3, 6, 3, 4), lambda step: [] if step == Follow("main", "signal") else [step])
    assert example(simulate_schedule(hasty), "rule") == (
        "rank 0: the main stream does not follow the last step of stream copy."
    )


def test_a_stale_signal() -> None:
    """Rank 0 signals twice a call, and rank 1 waits once. Its wait in call 1 takes the second signal of call 0."""
    twice = edited(all_gather(2, 4, 3, 4), lambda step: [step, step] if type(step) is Signal else [step], 0)
    report = simulate_schedule(twice, calls=3)
    assert "rank 1, call 1: wait for rank 0, flag 0 takes the signal of call 0." in example(report, "stale")


def test_a_signal_that_no_wait_takes() -> None:
    unheard = edited(all_gather(2, 4, 3, 4), lambda step: [] if type(step) is Wait else [step], 1)
    report = simulate_schedule(unheard, calls=1)
    assert example(report, "stale") == (
        "rank 0, call 0: signal rank 1, flag 0: no wait of rank 1 takes flag 0 of rank 0."
    )
    assert "deadlock" in kinds(simulate_schedule(unheard, calls=3))  # the next signal waits until the flag is 0


def with_flags(schedule: Schedule) -> Schedule:
    """Return a schedule of two ranks with a signal and a wait in place of each barrier."""

    def flags(rank: int, step: Step) -> list[Step]:
        return [Signal("main", 1 - rank, 0), Wait("main", 1 - rank, 0)] if isinstance(step, Barrier) else [step]

    steps = [tuple([new for step in steps for new in flags(rank, step)]) for rank, steps in enumerate(schedule.steps)]
    return replace(schedule, steps=tuple(steps))


def test_a_deadlock_of_flags() -> None:
    """Each rank waits before it signals."""

    def swapped(steps: tuple[Step, ...]) -> Iterator[Step]:
        waits = [step for step in steps if isinstance(step, Wait)]
        yield from waits
        yield from [step for step in steps if step not in waits]

    schedule = with_flags(reduce_scatter(2, 4, 3, 4))
    assert not simulate_schedule(schedule).faults
    report = simulate_schedule(replace(schedule, steps=tuple([tuple(swapped(steps)) for steps in schedule.steps])))
    assert kinds(report) == {"deadlock"}
    assert example(report, "deadlock") == (
        "rank 0, call 0: wait for rank 1, flag 0 waits; rank 1, call 0: wait for rank 0, flag 0 waits."
    )


def test_a_deadlock_of_multiprocessors() -> None:
    """The waits are in a second stream from the start. Then a GEMM may have no multiprocessor for its last CTA.

    Its rank does not signal, so the wait of the other rank does not end, and neither does the GEMM that it blocks.
    """

    def aside(steps: tuple[Step, ...]) -> Iterator[Step]:
        yield Follow("second", "main")
        for step in steps:
            yield replace(step, stream="second") if isinstance(step, Wait) else step
            if isinstance(step, Wait):
                yield Follow("main", "second")

    schedule = with_flags(reduce_scatter(2, 4, 3, 4))
    report = simulate_schedule(replace(schedule, steps=tuple([tuple(aside(steps)) for steps in schedule.steps])))
    assert kinds(report) == {"deadlock"}
    assert "has no multiprocessor for its last CTA while this runs: rank " in example(report, "deadlock")
    assert "wait for rank " in example(report, "deadlock")


@dataclass(frozen=True)
class WaitingGemm(Wait, Gemm):
    """A GEMM whose kernel waits for a flag itself."""

    from_rank: int = 0
    flag: int = 0

    __str__ = Gemm.__str__


def test_a_gemm_that_waits_inside_the_kernel() -> None:
    """It has all multiprocessors, so the kernel that signals to the other rank finds none. The other does the same."""

    def fused(step: Step) -> list[Step]:
        if isinstance(step, Gemm) and step.a.buffer == "gathered":
            return [WaitingGemm(step.stream, step.a, step.d, from_rank=1 - step.d.rank)]
        return [] if isinstance(step, Wait) else [step]

    report = simulate_schedule(edited(all_gather(2, 4, 3, 4), fused), calls=1, interleavings=40)
    expected = "signal rank 1, flag 0 has no multiprocessor while this runs: rank 0, call 0: gemm gathered[2:4]"
    assert expected in example(report, "deadlock")


def test_a_sum_that_leaves_out_a_partial_result() -> None:
    schedule = reduce_scatter(2, 4, 3, 4)
    report = simulate_schedule(edited(schedule, lambda s: [replace(s, adds=())] if type(s) is Gemm else [s]))
    assert kinds(report) == {"result"}
    assert "rank 0, call 0: d[0, 0] has error" in example(report, "result")


def test_sums_in_different_orders_have_different_bits() -> None:
    """Each rank adds its own product first. The sums are right, but they differ in the last bits of f32."""

    def own_first(step: Step, rank: int) -> Step:
        if not isinstance(step, Add):
            return step
        own = step.sources[rank]
        return replace(step, sources=(own, *[source for source in step.sources if source != own]))

    schedule = all_reduce(4, 8, 6, 16, "f32", form="whole")
    steps = [tuple([own_first(step, rank) for step in steps]) for rank, steps in enumerate(schedule.steps)]
    report = simulate_schedule(replace(schedule, steps=tuple(steps)))
    assert kinds(report) == {"result"}
    assert example(report, "result").endswith("D has other bits than in another interleaving or on another rank.")


def test_a_broken_rule_ends_the_simulation() -> None:
    schedule = reduce_scatter(2, 4, 3, 4)
    far = edited(schedule, lambda s: [replace(s, d=replace(s.d, first_row=1))] if type(s) is Gemm else [s], 0)
    report = simulate_schedule(far)
    assert (kinds(report), report.interleavings, report.steps) == ({"rule"}, 0, 0)


def test_a_seed_gives_one_result() -> None:
    broken = without(all_gather(3, 6, 3, 4), 0, 3)
    assert str(simulate_schedule(broken, seed=5)) == str(simulate_schedule(broken, seed=5))


def test_a_miniature_has_the_same_steps() -> None:
    large = all_reduce(4, 8191, 4096, 8192, "f16", out_dtype="f32", chunks=3, is_captured=True)
    small = miniature(large)
    assert [[type(step) for step in steps] for steps in small.steps] == [
        [type(step) for step in steps] for steps in large.steps
    ]
    assert (small.m, small.n, small.k, small.is_captured) == (27, 8, 16, True)  # 8 rows a chunk, and 8191 % 4
    assert [buffer.dtype for buffer in small.buffers] == [buffer.dtype for buffer in large.buffers]


def test_the_error_bound_by_hand() -> None:
    """Two ranks with products 1.5 and -0.25: u of bf16 is 2^-8. One product, and the sum 1.25, is rounded."""
    schedule = reduce_scatter(2, 2, 1, 1)
    x = (np.array([[1.5], [1.5]]), np.array([[-0.25], [-0.25]]))
    values = Values(schedule, x, (np.ones((1, 1)), np.ones((1, 1))))
    assert values.exact(1).tolist() == [[1.25]]
    before = 1 * 1.5 * 2**-8 + 2**-22 * 2 * 1.75
    assert values.bound(1) == pytest.approx(np.array([[before + (1.25 + before) * 2**-8]]))
    gathered = Values(all_gather(2, 2, 1, 1), (x[0][:1], x[1][:1]), values.weights)
    assert gathered.exact(0).tolist() == [[1.5], [-0.25]]
    assert gathered.bound(0)[0, 0] == pytest.approx(1.5 * 2**-8 + 2**-22 * 1.5, rel=0.01)


@pytest.mark.parametrize("ranks", [2, 4, 5, 8])
@pytest.mark.parametrize("form", FORMS)
def test_the_error_bound_is_not_far_off(form: str, ranks: int) -> None:
    """The largest error of 4096 elements, rounded to f16 by each rank, is at least a tenth of its bound.

    By shard, the rank's own product is not rounded, but its sum with those of three others is if there are more.
    """
    schedule = all_reduce(ranks, 64, 64, 16, "f16", form=form)
    values = Values.random(schedule)
    own, *others = [values.multiplied(rank, values.x[rank]) for rank in range(ranks)]
    rounded = [product.astype(np.float16) for product in others]
    if form == "whole":
        terms = [own.astype(np.float16), *rounded]
    elif ranks <= 4:
        terms = [own, *rounded]
    else:
        terms = [added([own, *rounded[:3]]).astype(np.float16), *rounded[3:]]
    error = np.abs(added(terms).astype(np.float16) - values.exact(0))
    bound = values.bound(0)
    assert (error <= bound).all()
    assert (error / bound).max() > 0.1
