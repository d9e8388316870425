"""Schedules: their steps by hand, the rows that they compute, and the rules that they keep."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given

from cutegemm.dtypes import bf16, f32
from cutegemm.errors import PlanError, UnsupportedError
from cutegemm.ranks import (
    OPERATIONS,
    Add,
    Barrier,
    Buffer,
    Copy,
    Follow,
    Gemm,
    Region,
    Schedule,
    Signal,
    Spread,
    Wait,
    all_gather,
    all_reduce,
    forms_of,
    reduce_scatter,
    schedule_of,
)
from tests.ranks.schedules import schedules


def test_an_all_gather_of_three_ranks() -> None:
    """Rank 1 has rows 2 and 3 of 6. It sends to 0 and 2, the ranks before it, and receives from 2 and 0."""
    expected = """
copy    follow stream main
copy    copy x[0:2] of rank 1 -> gathered[2:4] of rank 0
signal  follow stream copy
signal  signal rank 0, flag 0
second  follow stream copy
main    gemm x[0:2] of rank 1 -> d[2:4] of rank 1
copy    copy x[0:2] of rank 1 -> gathered[2:4] of rank 2
signal  follow stream copy
signal  signal rank 2, flag 0
second  wait for rank 2, flag 0
second  gemm gathered[4:6] of rank 1 -> d[4:6] of rank 1
main    wait for rank 0, flag 0
main    gemm gathered[0:2] of rank 1 -> d[0:2] of rank 1
main    follow stream signal
main    follow stream second"""
    assert all_gather(3, 6, 4, 8).described(1) == expected.lstrip()


def test_a_reduce_scatter_of_three_ranks() -> None:
    """Rank 2 has the last 2 of 6 rows. Its partial results are in slot 0 of rank 0, and in slot 1 of rank 1."""
    expected = """
second  follow stream main
main    gemm x[0:2] of rank 2 -> partials[0:2] of rank 0
second  gemm x[2:4] of rank 2 -> partials[2:4] of rank 1
main    follow stream second
main    barrier of all ranks
main    gemm x[4:6] of rank 2 + partials[0:2] of rank 2 + partials[2:4] of rank 2 -> d[0:2] of rank 2"""
    assert reduce_scatter(3, 6, 4, 8).described(2) == expected.lstrip()


def test_an_all_reduce_in_chunks() -> None:
    """9 rows of 2 ranks are 4 and 5. Rank 0 reduces its 4 in chunks of 2, rank 1 its 5 in chunks of 2 and 3."""
    expected = """
main    gemm x[4:6] of rank 0 -> sent[0:2] of rank 0
copy 0  follow stream main
copy 0  copy sent[0:2] of rank 0 -> partials[0:2] of rank 1
main    gemm x[6:9] of rank 0 -> sent[2:5] of rank 0
copy 1  follow stream main
copy 1  copy sent[2:5] of rank 0 -> partials[2:5] of rank 1
main    follow stream copy 0
main    barrier of all ranks
main    gemm x[0:2] of rank 0 + partials[0:2] of rank 0 -> reduced[0:2] of rank 0
main    barrier of all ranks
copy    follow stream main
copy    copy reduced[0:2] of rank 1 -> d[4:6] of rank 0
copy    copy reduced[0:2] of rank 0 -> d[0:2] of rank 0
main    follow stream copy 1
main    barrier of all ranks
main    gemm x[2:4] of rank 0 + partials[2:4] of rank 0 -> reduced[2:4] of rank 0
main    barrier of all ranks
copy    follow stream main
copy    copy reduced[2:5] of rank 1 -> d[6:9] of rank 0
copy    copy reduced[2:4] of rank 0 -> d[2:4] of rank 0
main    follow stream copy"""
    assert all_reduce(2, 9, 4, 8, chunks=2).described(0) == expected.lstrip()


def test_the_whole_forms() -> None:
    gather = """
main  spread x[0:2] of rank 0 -> gathered[0:2] of rank 0, gathered[0:2] of rank 1
main  barrier of all ranks
main  gemm gathered[0:4] of rank 0 -> d[0:4] of rank 0"""
    assert all_gather(2, 4, 4, 8, form="whole").described(0) == gather.lstrip()
    scatter = """
main  gemm x[0:4] of rank 1 -> product[0:4] of rank 1
main  barrier of all ranks
main  add product[2:4] of rank 0 + product[2:4] of rank 1 -> d[0:2] of rank 1"""
    assert reduce_scatter(2, 4, 4, 8, form="whole").described(1) == scatter.lstrip()
    reduce = scatter.replace("[2:4]", "[0:4]").replace("d[0:2]", "d[0:4]")
    assert all_reduce(2, 4, 4, 8, form="whole").described(1) == reduce.lstrip()


def test_the_forms_by_copy() -> None:
    """Rank 1 of 3 has rows 2 and 3 of 6. Rank 0 of 2 reads the last product of rank 1 there."""
    scatter = """
main  gemm x[4:6] of rank 1 -> sent[0:2] of rank 1
copy  follow stream main
copy  copy sent[0:2] of rank 1 -> partials[0:2] of rank 2
main  gemm x[0:2] of rank 1 -> sent[2:4] of rank 1
copy  follow stream main
copy  copy sent[2:4] of rank 1 -> partials[2:4] of rank 0
main  gemm x[2:4] of rank 1 -> product[0:2] of rank 1
main  follow stream copy
main  barrier of all ranks
main  add product[0:2] of rank 1 + partials[0:2] of rank 1 + partials[2:4] of rank 1 -> d[0:2] of rank 1"""
    found = reduce_scatter(3, 6, 4, 8, form="by_copy").described(1)
    assert found == scatter.lstrip()
    reduce = """
main  gemm x[2:4] of rank 0 -> product[2:4] of rank 0
copy  follow stream main
copy  copy product[2:4] of rank 0 -> copies[2:4] of rank 1
main  gemm x[0:2] of rank 0 -> product[0:2] of rank 0
main  follow stream copy
main  barrier of all ranks
main  add product[0:2] of rank 0 + copies[0:2] of rank 0 -> d[0:2] of rank 0
main  add product[2:4] of rank 0 + product[2:4] of rank 1 -> d[2:4] of rank 0"""
    found = all_reduce(2, 4, 4, 8, form="by_copy").described(0)
    assert found == reduce.lstrip()


def test_a_sum_adds_what_an_epilogue_does_not() -> None:
    """5 ranks have 4 partial results for a shard. The epilogue adds 3, a separate sum the fourth."""
    *_, gemm, add = reduce_scatter(5, 5, 4, 8).steps[0]
    product = Region(0, "product", 0, 1)
    assert gemm == Gemm("main", Region(0, "x", 0, 1), product, tuple([Region(0, "partials", i, 1) for i in range(3)]))
    assert add == Add("main", (product, Region(0, "partials", 3, 1)), Region(0, "d", 0, 1))


def test_buffers() -> None:
    """Two copies of the partial results of 2 other ranks for a shard of 4 rows, with 6 columns of f32."""
    schedule = reduce_scatter(3, 12, 6, 8, "bf16", out_dtype="f32")
    assert schedule.buffers == (
        Buffer("x", 12, 8, bf16), Buffer("partials", 8, 6, f32, True, 2), Buffer("d", 4, 6, f32),
    )  # fmt: skip
    assert schedule.buffer("partials").size_bytes == 2 * 8 * 6 * 4
    assert all_reduce(3, 10, 6, 8).buffer("partials") == Buffer("partials", 8, 6, bf16, True, 2)
    assert all_gather(3, 12, 6, 8, form="whole").buffer("gathered") == Buffer("gathered", 12, 8, bf16, True, 2)
    with pytest.raises(UnsupportedError, match=r"'y' is not a buffer of all_gather\. Its buffers: x, gathered, d\."):
        all_gather(3, 12, 6, 8).buffer("y")


def test_a_captured_schedule() -> None:
    """It has one copy of each buffer, and a barrier first."""
    for operation in OPERATIONS:
        for form in forms_of(operation):
            schedule = schedule_of(operation, 2, 4, 4, 8, form=form, is_captured=True)
            assert {buffer.copies for buffer in schedule.buffers} == {1}
            for steps in schedule.steps:
                assert isinstance(steps[0], Barrier)
                eager = schedule_of(operation, 2, 4, 4, 8, form=form).steps[0]
                assert len(steps) == len(eager) + 1


def test_flags_and_streams() -> None:
    assert all_gather(2, 4, 4, 8).flags == 1
    assert all_reduce(2, 12, 4, 8, chunks=3).flags == 0
    assert all_gather(2, 4, 4, 8).streams(1) == ("copy", "signal", "second", "main")
    assert reduce_scatter(2, 4, 4, 8).streams(0) == ("main",)


@given(schedules())
def test_every_row_is_computed_once(schedule: Schedule) -> None:
    """A rank multiplies each of its rows of A once, and each row of its D is written once by a final step."""
    for rank, steps in enumerate(schedule.steps):
        gemms = [step for step in steps if isinstance(step, Gemm)]
        rows = sorted(row for gemm in gemms for row in _rows_of_m(schedule, rank, gemm))
        assert rows == list(range(schedule.m))
        written = [region for step in steps for region in step.writes if region.buffer == "d"]
        own = schedule.shard(rank)[1] if schedule.operation == "reduce_scatter" else schedule.m
        assert sorted(row for region in written for row in _rows(region)) == list(range(own))
        assert all(region.rank == rank for region in written)


@given(schedules())
def test_a_rank_sends_to_one_and_receives_from_one(schedule: Schedule) -> None:
    """The i-th transfer to or from another rank has another target on each rank, and another source."""
    moved = [
        [
            (region.rank if region.rank != rank else step.reads[0].rank)
            for step in steps
            if isinstance(step, Gemm | Copy | Spread)
            for region in step.writes
            if {region.rank, step.reads[0].rank} != {rank}
        ]
        for rank, steps in enumerate(schedule.steps)
    ]
    for others in zip(*moved, strict=True):
        assert sorted(others) == list(range(schedule.ranks))


@given(schedules())
def test_signals_and_waits_are_pairs(schedule: Schedule) -> None:
    """Each flag of each pair of ranks is set once and awaited once, or all ranks have as many barriers."""
    sent = [(rank, s.to_rank, s.flag) for rank, steps in enumerate(schedule.steps) for s in steps if type(s) is Signal]
    taken = [(s.from_rank, rank, s.flag) for rank, steps in enumerate(schedule.steps) for s in steps if type(s) is Wait]
    assert sorted(sent) == sorted(taken)
    assert len(set(sent)) == len(sent)
    assert max((flag for *_, flag in sent), default=-1) == schedule.flags - 1
    barriers = {sum(isinstance(step, Barrier) for step in steps) for steps in schedule.steps}
    assert len(barriers) == 1
    assert sent or min(barriers)
    assert list(schedule.violations()) == []


def test_all_broken_rules_are_reported_at_once() -> None:
    with pytest.raises(PlanError) as error:
        schedule_of("gather", 1, 0, 8, 8, form="half", chunks=0)
    assert [text.partition(" =")[0] for text in error.value.violations] == [
        "operation", "form", "ranks", "m, n, k", "chunks",
    ]  # fmt: skip
    with pytest.raises(PlanError, match=r"m = 7 is not a multiple of 2 ranks\. Pad the rows, or use all_reduce"):
        all_gather(2, 7, 8, 8)
    with pytest.raises(PlanError, match=r"m = 3 has less than a row for each chunk of 2 ranks\. Use form='whole'\."):
        all_reduce(2, 3, 8, 8, chunks=2)
    with pytest.raises(PlanError, match=r"chunks = 2; use 1, or more for reduce_scatter and all_reduce by_shard"):
        reduce_scatter(2, 8, 8, 8, form="by_copy", chunks=2)
    with pytest.raises(PlanError, match=r"form = 'by_copy' adds products\. Use 'by_shard', which copies rows of A\."):
        all_gather(2, 8, 8, 8, form="by_copy")
    assert all_reduce(8, 1, 8, 8, form="whole").m == 1  # rows that all_reduce does not divide


def test_rules_of_single_steps() -> None:
    schedule = reduce_scatter(2, 4, 4, 8)

    def rules(*steps: object) -> list[str]:
        return list(replace(schedule, steps=((*steps,), schedule.steps[1])).violations())  # type: ignore[arg-type]

    far = Gemm("main", Region(0, "x", 0, 2), Region(1, "d", 1, 2))
    assert rules(far) == [
        f"rank 0, {far}: d[1:3] of rank 1 is not symmetric, so only rank 1 can access it.",
        f"rank 0, {far}: d[1:3] of rank 1 is not in the buffer's 2 rows.",
    ]
    assert rules(Signal("copy", 1, 0)) == [
        "rank 0: stream copy begins with signal rank 1, flag 0. Let it follow another stream first.",
        "rank 0: the main stream does not follow the last step of stream copy.",
    ]
    joined = (Follow("copy", "main"), Signal("copy", 1, 0), Follow("second", "copy"), Follow("main", "second"))
    assert rules(*joined) == []
    assert rules(joined[0], joined[2], joined[1], joined[3]) == [
        "rank 0: the main stream does not follow the last step of stream copy."
    ]


def _rows(region: Region) -> range:
    """Return the indices of the rows of a region."""
    return range(region.first_row, region.first_row + region.rows)


def _rows_of_m(schedule: Schedule, rank: int, gemm: Gemm) -> list[int]:
    """Return the rows among those of all ranks that a GEMM multiplies."""
    is_own = schedule.operation == "all_gather" and gemm.a.buffer == "x"
    begin = schedule.shard(rank)[0] if is_own else 0
    return [begin + row for row in _rows(gemm.a)]
