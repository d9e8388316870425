"""Block-scaled plans in the simulator: random problems against float64, every order of execution, planted faults."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest

from cutegemm.errors import SimulationError
from cutegemm.plan import GemmPlan
from cutegemm.plan.mainloop.base import Mainloop, Steps
from cutegemm.plan.mainloop.block_scaled import BlockScaled, PromoteScaled, ReadScales, ReloadScales
from cutegemm.plan.program.steps import (
    FIRST,
    LEFT,
    RIGHT,
    SECOND,
    Multiply,
    Release,
    Step,
    Wait,
    WaitMma,
)
from cutegemm.simulator import play_interleavings, protocol_of, search_interleavings, simulate
from tests.kernels.sm90_forms import fitting
from tests.scaled import FORMS, arguments, check_result, form

RANDOM_PROBLEMS = 12
WITH_BLOCKS = (
    "rows_blocks",
    "rows_blocks_halves_2x1",
    "blocks_rows_pingpong",
    "at_once_192",
    "at_once_blocks_split",
    "at_once_batched",
)


@pytest.mark.parametrize("name", FORMS)
def test_random_problems(name: str) -> None:
    """M and N are not multiples of the tile; K is, or is not, a multiple of 128."""
    plan, rng = form(name), np.random.default_rng(sum(map(ord, name)))
    for _ in range(RANDOM_PROBLEMS):
        m, n, k = (int(rng.integers(1, most)) for most in (400, 420, 900))
        given = arguments(plan, *fitting(plan, m, n, k if rng.integers(2) else k // 128 * 128))
        check_result(plan, given, simulate(plan, **given).d)


@pytest.mark.parametrize(
    "name", ["rows_blocks", "blocks_rows_pingpong", "blocks_blocks_split", "batched", "at_once_2x1"]
)
def test_swapped(name: str) -> None:
    plan = form(name, swap_ab=True)
    given = arguments(plan, 150, 300, 520)
    check_result(plan, given, simulate(plan, **given).d)


@pytest.mark.parametrize("name", WITH_BLOCKS)
@pytest.mark.parametrize("k_tiles", [31, 32, 33, 64, 65, 97])
def test_more_k_tiles_than_lanes(name: str, k_tiles: int) -> None:
    """Lanes hold the scales of 64 k-tiles at a time; an odd number of k-tiles begins at the second lane."""
    plan = form(name)
    given = arguments(plan, 70, 140, k_tiles * 128 - 16)
    check_result(plan, given, simulate(plan, **given).d)


@pytest.mark.parametrize("name", FORMS)
def test_no_k(name: str) -> None:
    plan = form(name)
    given = arguments(plan, *fitting(plan, 70, 130, 0))
    assert not simulate(plan, **given).d.any()


@pytest.mark.parametrize("problem", [(1, 1, 1), (129, 65, 129), (65, 129, 127)])
def test_one_row_or_column_more_than_a_tile(problem: tuple[int, int, int]) -> None:
    """The memory around the scales is NaN. Columns past N, which are not stored, have the scale of the last block."""
    plan = form("any_columns")
    given = arguments(plan, *problem)
    check_result(plan, given, simulate(plan, **given).d)


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_a_scale_that_is_not_finite_stays_in_its_rows(value: float) -> None:
    """The scales of a tile begin at 0, whatever the scales of the tile before were."""
    plan = form("rows_blocks", ctas=1)
    given = arguments(plan, 300, 140, 300)
    given["scale_a"][7, 1] = value
    d = simulate(plan, **given).d
    assert not np.isfinite(d[7]).any()
    others = np.arange(300) != 7
    rest = {**given, "a": given["a"][others], "scale_a": given["scale_a"][others]}
    check_result(plan, rest, d[others])


@pytest.mark.parametrize("name", FORMS)
def test_orders_of_execution(name: str) -> None:
    plan = form(name)
    protocol = protocol_of(plan, k_tiles=plan.stages + 2, tiles=3)
    assert play_interleavings(protocol).faults == ()
    assert search_interleavings(protocol, max_states=500).faults == ()


# --- planted faults ----------------------------------------------------------------------------------------------


def with_loop(plan: GemmPlan, change: Callable[[tuple[Step, ...]], tuple[Step, ...]]) -> GemmPlan:
    """Return the plan with the loop over k-tiles changed."""

    class Changed(BlockScaled):
        def k_tiles(self, plan: GemmPlan) -> Steps:
            *before, loop = super().k_tiles(plan)
            return (*before, replace(loop, steps=change(loop.steps)))

    mainloop = plan.body.mainloop
    return plan.with_(body=replace(plan.body, mainloop=Changed(mainloop.at_once)))


def faults_of(plan: GemmPlan) -> str:
    """Return the faults that interleavings find, as text."""
    return "\n".join(each.text for each in play_interleavings(protocol_of(plan, k_tiles=9, tiles=3)).faults)


def reads_of(steps: tuple[Step, ...]) -> list[Step]:
    """Return the steps that read scales."""
    return [each for each in steps if isinstance(each, ReadScales)]


def read_first(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """Read the scales of a k-tile before the wait for its stage."""
    out: list[Step] = []
    for each in steps:
        if each == Wait("full"):
            out += reads_of(steps)[:1]
        if not isinstance(each, ReadScales):
            out.append(each)
    return tuple(out)


@pytest.mark.parametrize("name", ["rows_blocks", "rows_rows", "blocks_rows_pingpong", "at_once_2x1"])
def test_scales_that_are_read_before_their_barrier(name: str) -> None:
    wrong = with_loop(form(name), read_first)
    assert "early read" in faults_of(wrong)
    with pytest.raises(SimulationError, match="early read"):
        simulate(wrong, **arguments(wrong, 200, 200, 900))


class ReleasedEarly(Mainloop):
    """One accumulator, promoted at once; the stage is released when its MMAs have ended, before its scales are read."""

    promoted: ClassVar[bool] = True
    late: ClassVar[bool] = True

    def operands(self, plan: GemmPlan) -> Iterable[str]:
        return BlockScaled().operands(plan)

    def prologue(self, plan: GemmPlan) -> Steps:
        return BlockScaled().prologue(plan)

    def k_tile(self, plan: GemmPlan) -> Steps:
        after = (Release(), ReadScales()) if self.late else (ReadScales(), Release())
        return (Wait("full"), Multiply(FIRST), WaitMma(0), *after, PromoteScaled(FIRST))

    def epilogue(self, plan: GemmPlan) -> Steps:
        return ()


class ReleasedInTime(ReleasedEarly):
    late: ClassVar[bool] = False


def test_a_stage_that_is_released_before_its_scales_are_read() -> None:
    plan = form("rows_blocks")
    wrong, right = (plan.with_(body=replace(plan.body, mainloop=each())) for each in (ReleasedEarly, ReleasedInTime))
    assert faults_of(right) == ""
    assert "reads k-tile" in faults_of(wrong)


@pytest.mark.parametrize("name", ["at_once_2x1", "at_once_rows", "at_once_192"])
def test_a_stage_that_is_released_before_its_scales_are_read_at_once(name: str) -> None:
    """The scales are read, and the stage is released, in the same k-tile; here the release stands first."""

    def late(steps: tuple[Step, ...]) -> tuple[Step, ...]:
        out: list[Step] = []
        for each in steps:
            if isinstance(each, Release):
                out += [each, *reads_of(steps)[:1]]
            elif not isinstance(each, ReadScales):
                out.append(each)
        return tuple(out)

    assert "reads k-tile" in faults_of(with_loop(form(name), late))


@pytest.mark.parametrize("name", ["rows_blocks", "rows_rows", "at_once_2x1"])
def test_an_accumulator_that_is_still_being_written(name: str) -> None:
    """Without the waits before promotion, threads add accumulators that MMAs write."""
    plan = form(name)
    last = 0 if plan.body.mainloop.at_once else 1  # groups of MMAs that a wait before promotion leaves

    def unwaited(steps: tuple[Step, ...]) -> tuple[Step, ...]:
        return tuple([step for step in steps if not isinstance(step, WaitMma) or step.pending != last])

    wrong = with_loop(plan, unwaited)
    with pytest.raises(SimulationError, match="while MMAs write them"):
        simulate(wrong, **arguments(wrong, 200, 200, 900))


@pytest.mark.parametrize("name", ["rows_blocks", "rows_rows"])
def test_the_wrong_accumulators_are_promoted(name: str) -> None:
    """The other half, or the other accumulator, is added: MMAs are writing it, or it is added twice."""
    other = {LEFT: RIGHT, RIGHT: LEFT, FIRST: SECOND, SECOND: FIRST}

    def swapped(steps: tuple[Step, ...]) -> tuple[Step, ...]:
        return tuple([PromoteScaled(other[s.accumulators]) if isinstance(s, PromoteScaled) else s for s in steps])

    wrong = with_loop(form(name), swapped)
    with pytest.raises(SimulationError, match="while MMAs write them"):
        simulate(wrong, **arguments(wrong, 200, 200, 900))


def test_scales_of_the_wrong_k_tile() -> None:
    """Scales that are read before the accumulators of the k-tile before were added scale those instead."""

    def early(steps: tuple[Step, ...]) -> tuple[Step, ...]:
        out: list[Step] = []
        for each in steps:
            if isinstance(each, Release):
                out += reads_of(steps)[:1]
            if not isinstance(each, ReadScales):
                out.append(each)
        return tuple(out)

    plan = form("rows_blocks")
    wrong, given = with_loop(plan, early), arguments(plan, 200, 200, 900)
    assert faults_of(wrong) == ""
    with pytest.raises(AssertionError):
        check_result(wrong, given, simulate(wrong, **given).d)


def missing(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """Leave out the step that loads the scales of later k-tiles."""
    return tuple([each for each in steps if not isinstance(each, ReloadScales)])


def too_early(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """Load the scales of later k-tiles before those of the pair of k-tiles are read."""
    return (ReloadScales(), *missing(steps))


@pytest.mark.parametrize("name", ["rows_blocks", "rows_blocks_halves_2x1", "at_once_2x1", "at_once_batched"])
@pytest.mark.parametrize("change", [missing, too_early])
def test_lanes_that_have_the_scales_of_other_k_tiles(name: str, change: Callable[..., tuple[Step, ...]]) -> None:
    plan = form(name)
    wrong, given = with_loop(plan, change), arguments(plan, 60, 72, 36 * 128)
    assert faults_of(wrong) == ""
    with pytest.raises(AssertionError):
        check_result(wrong, given, simulate(wrong, **given).d)
