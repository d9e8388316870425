"""The analysis of grouped GEMMs: that of a batch of equal groups, whose numbers are counted by hand."""

from __future__ import annotations

import random
from itertools import accumulate

import numpy as np
import pytest

from cutegemm import analysis
from cutegemm.analysis.groups import group_schedule
from cutegemm.build import sm90_plan
from cutegemm.choice.catalog import candidates, choose, chosen
from cutegemm.choice.grouped import chosen_grouped
from cutegemm.errors import PlanError, UnsupportedError
from cutegemm.machine.device import device_named
from cutegemm.plan import GemmPlan, Operands, Problem
from cutegemm.plan.accumulation import accumulation_order, row_independent_order
from cutegemm.plan.work.grouped import with_equal_groups
from cutegemm.profile.case import Case
from cutegemm.run.checks import check_plan
from cutegemm.run.executed import executed_accesses
from tests.grouped import FORMS, LAYOUTS, form

# (M, N, K) of 8 groups of 1024 along one mode; the bytes of A, B and D in bf16
PROBLEMS = {
    "m": ((8192, 4096, 2048), (8192 * 2048, 8 * 4096 * 2048, 8192 * 4096)),
    "n": ((2048, 8192, 2048), (8 * 2048 * 2048, 8192 * 2048, 2048 * 8192)),
    "k": ((2048, 4096, 8192), (2048 * 8192, 4096 * 8192, 8 * 2048 * 4096)),
}
TILES = {"m": 8 * 8 * 16, "n": 8 * 16 * 4, "k": 8 * 16 * 16}  # of 128 x 256


def plan_of(groups: str, **options: object) -> GemmPlan:
    layout, major = LAYOUTS[groups]
    operands = Operands.of("bf16", layout=layout, batched=True, groups=groups, out_major=major)
    options = {"tile": (128, 256, 64), "schedule": "cooperative", **options}
    return sm90_plan(operands, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("groups", PROBLEMS)
def test_bytes_and_tiles_by_hand(groups: str) -> None:
    """Each matrix is counted once: those with the mode that groups divide are one matrix, the others are 8."""
    plan, (extents, elements) = plan_of(groups), PROBLEMS[groups]
    problem = Problem(*extents, 8, plan.operands)
    report = analysis.check(plan, problem, search=False)
    assert report.traffic is not None
    assert report.waves is not None
    assert report.roofline is not None
    assert report.problem == f"{problem}, 8 groups of equal size"
    assert report.traffic.min_bytes == 2 * (elements[0] + elements[1])
    assert report.traffic.dram_write_bytes == 2 * elements[2]
    assert problem.min_bytes == 2 * sum(elements) + 8 * 4  # and the ends
    assert report.tiles == report.waves.ctas == TILES[groups]
    assert report.waves.tail == pytest.approx(TILES[groups] / 132 % 1)
    compute = next(level for level in report.roofline.levels if level.name == "compute")
    assert compute.amount == problem.flops
    assert not report.violations
    assert "of equal size" in str(report)


# Groups of 1000, 0, 24 and 1024 along one mode of extent 2048; the other modes of D are 256 and 512, or K is 512.
SIZES = [1000, 0, 24, 1024]
COSTS = {  # (M, N, K), bytes of the weights of a group, CTA tiles of 128 x 256, elements that the tiles cover
    "m": ((2048, 512, 256), 2 * 512 * 256, (8 + 1 + 8) * 2, (8 + 1 + 8) * 128),
    "n": ((512, 2048, 256), 2 * 512 * 256, (4 + 1 + 4) * 4, (4 + 1 + 4) * 256),
    "k": ((256, 512, 2048), 0, 4 * 2 * 2, (16 + 1 + 1 + 16) * 64),  # an empty group has a k-tile
}


@pytest.mark.parametrize("groups", COSTS)
def test_sizes_by_hand(groups: str) -> None:
    """The weights of the empty group are not read. 132 CTAs have a tile or none."""
    plan, (extents, weight, tiles, covered) = plan_of(groups), COSTS[groups]
    problem = Problem(*extents, 4, plan.operands)
    report = analysis.check(plan, problem, search=False, ends=[*accumulate(SIZES)])
    cost = report.groups
    assert cost is not None
    assert (cost.along, cost.count, cost.empty, cost.least, cost.most, cost.is_known) == (groups, 4, 1, 0, 1024, True)
    assert (cost.weight_bytes, cost.all_weight_bytes) == (3 * weight, 4 * weight)
    assert (cost.tiles, cost.per_wave, cost.rounds) == (tiles, 132, 1)
    assert cost.tail == pytest.approx(tiles / 132)
    assert cost.waste == pytest.approx(1 - 2048 / covered)
    # m, n: a CTA has 4 k-tiles of 64 at most. k: 16 at most, and 4 tiles of each group have 16, 1, 1 and 16
    most, total = (16, 4 * 34) if groups == "k" else (4, 4 * tiles)
    assert cost.imbalance == pytest.approx(most * 132 / total - 1)
    assert "4 groups of 0 to 1024" in str(report)
    assert "1 of them empty" in str(report)
    assert ("weights of groups with" in str(report)) == (groups != "k")
    assert report.to_dict()["groups"]["weight_bytes"] == 3 * weight


@pytest.mark.parametrize("name", FORMS)
def test_schedule_is_that_of_the_work_tiles(name: str) -> None:
    """Each cluster has the groups and k-tiles that the tile scheduler of the plan gives it."""
    plan, numbers = form(name), random.Random(name)
    for _ in range(5):
        sizes = [numbers.choice((0, 1, 63, 64, 65, 200)) for _ in range(5)]
        ends = [*accumulate(sizes)]
        extents = dict.fromkeys("mnk", 192) | {plan.operands.groups: ends[-1] + 8}
        problem = Problem(extents["m"], extents["n"], extents["k"], 5, plan.operands)
        found = group_schedule(plan, problem, ends, 132)
        work = plan.work(problem, {"ends": np.array(ends).reshape(-1, 1, 1)})
        for place in range(found.clusters):
            tiles = list(work.of_cluster(place)) if place < work.clusters else []
            own = slice(place, None, found.clusters)
            assert found.groups[own].tolist() == [tile.group for tile in tiles]
            assert found.k_tiles[own].tolist() == [work.k_tiles_of(tile) for tile in tiles]


def test_equal_groups_have_the_tiles_of_the_batch() -> None:
    plan = plan_of("m")
    problem = Problem(8192, 4096, 2048, 8, plan.operands)
    report = analysis.check(plan, problem, search=False)
    assert report.groups is not None
    assert report.waves is not None
    assert not report.groups.is_known
    assert (report.groups.tiles, report.groups.rounds) == (report.tiles, report.waves.count)
    assert report.groups.tail == pytest.approx(report.waves.tail)
    assert (report.groups.weight_bytes, report.groups.waste) == (8 * 2 * 4096 * 2048, 0)
    dense = sm90_plan(Operands.of("bf16", layout="nt"))
    assert analysis.check(dense, Problem(512, 512, 512, operands=dense.operands), search=False).groups is None


@pytest.mark.parametrize("ends", [[8192], [5, 4], [-1, 8192], [0, 8193], []])
def test_wrong_ends(ends: list[int]) -> None:
    plan = plan_of("m")
    with pytest.raises(PlanError, match="are not 2 ends from 0 to 8192 that do not decrease"):
        analysis.check(plan, Problem(8192, 4096, 2048, 2, plan.operands), ends=ends)
    with pytest.raises(PlanError, match="are passed without groups"):
        analysis.check(plan, ends=ends)


def test_changes_do_not_split_k() -> None:
    """The last wave is not full; a plan without groups would be advised to use the stream-K fixup."""
    plan = plan_of("m")
    problem = Problem(8192, 4096, 2048, 8, plan.operands)
    said = str(analysis.check(plan, problem).changes)
    assert "another tile size" in said
    assert "fixup" not in said
    assert "split" not in said


def test_numbers_are_those_of_a_batch() -> None:
    """Each public function of the analysis returns what it returns for the batch."""
    plan = plan_of("m", cluster=(2, 1))
    problem = Problem(8192, 4096, 2048, 8, plan.operands)
    batched, batch = with_equal_groups(plan, problem)
    assert (batch.m, batch.l, batched.operands.groups) == (1024, 8, "")
    device, capacity = device_named("h100"), 50 << 20
    for ask in (
        lambda *of: analysis.traffic(*of, ctas_per_wave=132, l2_bytes=capacity),
        lambda *of: analysis.compare_rasters(*of, ctas_per_wave=132, l2_bytes=capacity),
        lambda *of: analysis.best_rasters(*of, device, ctas_per_wave=132, most=1),
        lambda *of: analysis.waves(*of, 132, 1),
        lambda *of: analysis.gpc_reads(*of, device),
        lambda *of: analysis.global_accesses(*of),
        lambda *of: [each.name for each in analysis.shared_accesses(*of)],
        lambda *of: analysis.global_table(of[0], "a", of[1]).tolist(),
    ):
        assert ask(plan, problem) == ask(batched, batch)


@pytest.mark.parametrize("name", FORMS)
def test_no_form_fails(name: str) -> None:
    plan = form(name, ctas=132)
    problem = Problem(1000, 1024, 1000, 7, plan.operands)
    assert analysis.check(plan, problem, search=False).roofline is not None
    assert analysis.check(plan).problem is None
    assert "groups" in plan.describe(problem)


def test_accumulation_order() -> None:
    """A row is added in the same order in each group. Groups of K have k-tiles of their own."""
    plan = plan_of("m")
    problem = Problem(512, 512, 300, 4, plan.operands)
    dense = sm90_plan(Operands.of("bf16", layout="nt"), tile=(128, 256, 64), schedule="cooperative")
    order = accumulation_order(plan, problem)
    assert order == row_independent_order(plan, problem)
    assert order == accumulation_order(dense, Problem(64, 64, 300, operands=dense.operands))
    deep = plan_of("k")
    with pytest.raises(UnsupportedError, match=r"groups divide K of sm90, and each has its own number of k-tiles\."):
        accumulation_order(deep, Problem(512, 512, 300, 4, deep.operands))


def test_what_is_not_counted() -> None:
    plan = plan_of("m")
    assert executed_accesses(plan, Problem(512, 512, 300, 4, plan.operands)) is None
    with pytest.raises(PlanError, match="at least one group"):
        analysis.check(plan, Problem(512, 512, 512, 0, plan.operands))


def test_choices_of_a_grouped_problem_agree() -> None:
    """The list of candidates, the choice of a plan and that of `grouped_mm` begin with the same plan."""
    operands = Operands.of("bf16", layout="nt", batched=True, groups="m")
    problem = Problem(8 * 64, 4096, 4096, 8, operands)
    times = [each.us for each in candidates(operands, problem)]
    assert times == sorted(times)
    recipe = candidates(operands, problem)[0].recipe
    assert recipe == chosen(operands, problem)[0] == chosen_grouped(problem)[0]
    assert choose(operands, problem).scheduler.groups == "m"


def test_many_groups_of_few_rows() -> None:
    """512 groups have the rows of 512 tiles, not each of them: 512 x 16 tiles of 128 x 256, below the limit of 2^20."""
    plan = plan_of("m")
    problem = Problem(512 * 128, 4096, 64, 512, plan.operands)
    assert analysis.check(plan, problem).groups.tiles == 512 * 16
    with pytest.raises(UnsupportedError, match=r"has 1 x 16 x 65537 tiles .* at most 1048576 tiles is simulated"):
        analysis.check(plan, Problem(65537 * 128, 4096, 64, 65537, plan.operands))


def test_what_is_not_supported_says_so() -> None:
    plan = plan_of("m")
    problem = Problem(512, 512, 512, 4, plan.operands)
    with pytest.raises(UnsupportedError, match="a plan of a grouped GEMM, which is not profiled"):
        Case("grouped", plan, problem)
    with pytest.raises(PlanError, match=r"the plan is made for a grouped GEMM\. Call cutegemm\.torch\.grouped"):
        check_plan(plan, plan.operands, problem, False, False)
