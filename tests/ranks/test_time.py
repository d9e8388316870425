"""The model of the time of schedules, with times by hand, and the choice of the form."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings

from cutegemm.draw import draw
from cutegemm.errors import PlanError, SimulationError
from cutegemm.machine.device import device_named
from cutegemm.machine.links import NVLINK_HOPPER, Link
from cutegemm.ranks import (
    OPERATIONS,
    Barrier,
    Copy,
    Gemm,
    Schedule,
    Signal,
    Wait,
    all_gather,
    all_reduce,
    explained,
    predict,
    predictions,
    reduce_scatter,
)
from tests.ranks.schedules import edited, schedules

# 1 byte per ns each: 1000 bytes take 1 us. A copy of few bytes takes 3 us, in one GPU 1 us, a signal 4 us, a wait for a
# flag that is set 0.5 us, a barrier 5 us, a kernel 2 us.
LINK = Link("test", 1.0, 1.0, 3.0, 1.0, 4.0, 0.5, 5.0, 2.0, "made up")


@pytest.fixture
def simple(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a GEMM take 1 us for each row, and 10 us for each launch."""
    monkeypatch.setattr("cutegemm.ranks.clock._gemm_us", lambda a, d, problem, device, with_c: 10.0 + problem.m)


@pytest.mark.usefixtures("simple")
def test_an_all_gather_by_hand() -> None:
    """Rows of 1000 bytes: 8 rows are copied in 3 + 8 us. The signal starts when the GEMM of 18 us has ended.

    The other rank's GEMM starts at 18 + 4 us, and takes 18 us.
    """
    found = predict(all_gather(2, 16, 8, 500), link=LINK)
    times = {(type(one.step), one.step.stream): (one.start, one.end) for one in found.steps if one.rank == 1}
    assert times[Copy, "copy"] == (0, 11)
    assert times[Gemm, "main"] == (0, 18)
    assert times[Signal, "signal"] == (18, 22)
    assert times[Wait, "second"] == (18, 22)
    assert times[Gemm, "second"] == (22, 40)
    assert (found.us, found.gemm_us, found.outside_us) == (40, 26, 4)


@pytest.mark.usefixtures("simple")
def test_a_copy_that_takes_longer_than_a_gemm() -> None:
    """Rows of 10000 bytes: 8 rows are copied in 3 + 80 us, longer than the GEMM of 18 us. Then a signal and a GEMM."""
    found = predict(all_gather(2, 16, 8, 5000), link=LINK)
    assert found.us == 83 + 4 + 18
    assert found.busy_us(Copy) == 83


@pytest.mark.usefixtures("simple")
def test_a_reduce_scatter_by_hand() -> None:
    """Rows of 10000 bytes: 8 rows are stored to the other rank in 80 us, 0.7 of it after 18 us. A barrier, a GEMM.

    Of 8 rows of 10^6 bytes, 8 ms, the stores of 132 tiles of 64 KiB are the last ones, all of them. Of 80 rows, 0.18 of
    the time of the others is not hidden either.
    """
    assert predict(reduce_scatter(2, 16, 5000, 8), link=LINK).us == pytest.approx(18 + 0.7 * 80 + 5 + 18)
    last, rest = 132 * 65.536, 80000 - 132 * 65.536
    found = predict(reduce_scatter(2, 160, 500_000, 8), link=LINK).us
    assert found == pytest.approx(90 + 0.7 * last + 0.18 * rest + 5 + 90)


@pytest.mark.usefixtures("simple")
def test_chunks_by_hand() -> None:
    """Two chunks of 4 rows of 1000 bytes take 14 us each, times 1.02 as they are chunks, their copies 3 + 4 us.

    Barriers of 5 us follow copies. The first chunk has arrived when the second is computed, at 28.56 us. So has the
    second, when its barrier starts.
    """
    found = predict(reduce_scatter(2, 16, 500, 8, chunks=2), link=LINK)
    assert found.us == pytest.approx(1.02 * 28 + 5 + 1.02 * 14 + 5 + 1.02 * 14)
    assert found.busy_us(Copy) == 14


@pytest.mark.usefixtures("simple")
def test_a_reduction_by_copy_by_hand() -> None:
    """Two GEMMs of 18 us, the second next to a copy of 3 + 8 us. A barrier, and a sum of 3 * 8 rows of 1000 bytes."""
    found = predict(reduce_scatter(2, 16, 500, 8, form="by_copy"), link=LINK)
    in_memory = 3 * 8000 / device_named("h100").dram_gb_s * 1e-3
    assert found.us == pytest.approx(36 + 5 + 2 + in_memory, abs=0.01)


@pytest.mark.usefixtures("simple")
def test_a_sum_by_hand() -> None:
    """A GEMM of 16 rows takes 26 us, a barrier 5 us, and a sum 2 us + 16 rows of 1000 bytes over the link."""
    found = predict(all_reduce(2, 16, 500, 8, form="whole"), link=LINK)
    assert found.us == 26 + 5 + 2 + 16
    assert found.outside_us == 23


@pytest.mark.usefixtures("simple")
def test_copies_share_a_link() -> None:
    """3 copies of 4 rows of 1000 bytes: they start one after the other, every 7 us, as all are in one stream."""
    found = predict(all_gather(4, 16, 8, 500), link=LINK)
    sent = [(one.start, one.end) for one in found.steps if isinstance(one.step, Copy) and one.rank == 1]
    assert sorted(set(sent)) == [(0, 7), (7, 14), (14, 21)]
    spread = predict(all_gather(4, 16, 8, 500, form="whole"), link=LINK)
    assert spread.us == 3 * 4 + 5 + 26  # a kernel stores 4 rows to 3 ranks, a barrier follows


@pytest.mark.usefixtures("simple")
def test_a_deadlock_has_no_time() -> None:
    unheard = edited(all_gather(2, 4, 3, 4), lambda step: [] if isinstance(step, Signal) else [step], 0)
    with pytest.raises(SimulationError, match=r"deadlock, once:\n +- rank 1: wait for rank 0, flag 0"):
        predict(unheard)
    alone = edited(reduce_scatter(2, 4, 3, 4), lambda step: [] if isinstance(step, Barrier) else [step], 0)
    with pytest.raises(SimulationError, match=r"deadlock, once:\n +- rank 1: barrier of all ranks"):
        predict(alone)


@settings(max_examples=30, deadline=None)
@given(schedules())
def test_steps_keep_their_order(schedule: Schedule) -> None:
    """Every step has a time, those of a stream follow each other, and GEMMs of a rank do not overlap."""
    found = predict(schedule)
    assert len(found.steps) == sum(map(len, schedule.steps))
    for rank, steps in enumerate(schedule.steps):
        for stream in schedule.streams(rank):
            of = [one for one in found.steps if one.rank == rank and one.step.stream == stream]
            assert [one.step for one in of] == [step for step in steps if step.stream == stream]
            assert all(one.end <= other.start for one, other in pairwise(of))
        gemms = sorted((one.start, one.end) for one in found.steps if one.rank == rank and isinstance(one.step, Gemm))
        assert all(end <= start for (_, end), (start, _) in pairwise(gemms))


@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_form_follows_from_the_rows(operation: str) -> None:
    """64 rows are computed by one GEMM, which reads the weights once. 8192 rows are computed by shard."""
    few, many = [predictions(operation, 2, rows, 8192, 4096) for rows in (64, 8192)]
    assert few[0].schedule.form == "whole"
    assert many[0].schedule.form == "by_shard"
    for found in few, many:
        assert [one.us for one in found] == sorted(one.us for one in found)
        assert {one.schedule.way for one in found} == {"whole", "by_shard"} | (
            {"by_copy", *[f"by_shard in {chunks} chunks" for chunks in (2, 4)]} if operation != "all_gather" else set()
        )


def test_a_form_without_rows_for_each_rank_is_left_out() -> None:
    assert [one.schedule.form for one in predictions("all_reduce", 8, 3, 64, 64)] == ["whole"]
    with pytest.raises(PlanError, match="operation = 'gather' is unknown"):
        predictions("gather", 2, 8, 8, 8)


def test_a_slow_link_hides_less() -> None:
    schedule = all_gather(2, 8192, 4096, 8192)
    slow = replace(NVLINK_HOPPER, copy_gb_s=39, kernel_gb_s=32)
    fast, slowed = predict(schedule), predict(schedule, link=slow)
    assert slowed.outside_us > 10 * fast.outside_us
    assert predict(schedule, device_named("h100")).us != fast.us


def test_the_explanation_names_the_difference() -> None:
    found = predictions("all_gather", 2, 8192, 4096, 8192)
    text = explained(found).splitlines()
    assert text[0] == str(found[0].schedule)
    assert text[3].startswith("by_shard")
    assert f"takes {found[1].us - found[0].us:.1f} us less than whole" in text[-1]
    hidden = found[0].outside_us - found[1].outside_us
    assert f"{hidden:+.1f} us while no GEMM runs." in text[-1]


def test_the_timeline_has_a_line_for_each_stream() -> None:
    """The number of a bar is the other rank, and the owner of the rows of a GEMM."""
    timeline = predict(all_gather(3, 6144, 4096, 4096)).timeline((1,))
    assert timeline.roles == ("rank 1 main", "rank 1 copy", "rank 1 second", "rank 1 signal")
    assert {(e.event, e.stage) for e in timeline.events if e.role == "rank 1 main"} == {("gemm", 1), ("gemm", 0)} | (
        {("wait", 0)} if any(e.is_wait for e in timeline.events if e.role == "rank 1 main") else set()
    )
    assert [e.stage for e in timeline.events if e.event == "copy"] == [0, 2]
    text = draw(timeline, kind="text")
    assert "A digit is the rank that is worked on" in text
    drawing = draw(timeline)
    ElementTree.fromstring(drawing)
    assert ">rank<" in drawing
    assert "rank 1 copy: copy, rank 2, " in drawing
    whole = predict(all_reduce(2, 64, 4096, 4096, form="whole")).timeline()
    assert [(e.event, e.stage) for e in whole.events] == [("gemm", None), ("barrier", None), ("add", None)]
