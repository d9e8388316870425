"""The corner of a large problem: the plan does with the corner everything that it does with the problem."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cutegemm.choice.catalog import plan_named, plans
from cutegemm.cli.corner import Corner, corner_of
from cutegemm.cli.inputs import Extents
from cutegemm.plan import GemmPlan, Operands, Problem
from cutegemm.simulator import simulate

MOST = 1 << 30
RAGGED = (4100, 4104, 4128)
SUFFIXED = (
    "sm90_cluster_2x1/fixup", "sm90_overlapped_2x1/fixup", "sm90_epi_stages/stream", "sm90_epi_stages/k4",
    "simt_128x256/s132",
    "simt_256x128/k4", "simt_64x256+repack/s264",
)  # fmt: skip


def made(name: str, m: int, n: int, k: int, l: int = 1) -> tuple[GemmPlan, Problem, Corner]:  # noqa: E741
    operands = Operands.of("f32" if name.startswith(("simt", "sgemm")) else "bf16", layout="nt")
    plan = plan_named(name, replace(operands, batched=l > 1).fitted(m, n, k))
    problem = Problem(m, n, k, l, plan.operands)
    corner = corner_of(plan, problem, Extents(m, n, k, l if l > 1 else None), MOST)
    assert corner is not None
    return plan, problem, corner


def most_turns(plan: GemmPlan, problem: Problem) -> int:
    """Return the largest number of work tiles that a CTA takes."""
    return int(np.bincount(plan.work(problem).assignment().cluster).max())


@pytest.mark.parametrize("name", [*(name for name, _ in plans()), *SUFFIXED])
def test_a_corner_is_what_the_plan_is_about(name: str) -> None:
    plan, problem, corner = made(name, *RAGGED)
    of = corner.extents
    part = Problem(of.m, of.n, of.k, operands=plan.operands)
    assert of.m * of.n * of.k <= MOST // 2
    assert corner.plan.violations(problem=part) == []
    assert not any("raster" not in what for what in corner.not_exercised), corner.not_exercised

    # The last tiles are as ragged as those of the problem, and there are full tiles too.
    (bm, bn, bk), (cm, cn) = plan.cta_tile, plan.cluster_mn
    for extent, whole, tile in zip((of.m, of.n, of.k), RAGGED, (bm * cm, bn * cn, bk), strict=True):
        assert extent % tile == whole % tile
        assert extent > tile or not whole % tile

    # Stages are refilled twice. Every consumer takes a second tile if it does so in the problem.
    assignment = corner.plan.work(part).assignment().work_tile
    assert max(assignment.k_count) >= 2 * max(1, plan.stages) + 1
    consumers = plan.body.tiles_in_flight
    if most_turns(plan, problem) >= 2 * consumers:
        assert most_turns(corner.plan, part) >= 2 * consumers

    # There are split tiles, and tiles that are not split, if the problem has them.
    real = plan.work(problem).assignment().work_tile
    for happens in (lambda parts: (parts > 1).any(), lambda parts: (parts == 1).any()):
        assert happens(assignment.splits) or not happens(real.splits)
    assert any("K splits" in what for what in corner.exercised) is bool((real.splits > 1).any())


@pytest.mark.parametrize("name", ["sm90_64x64_2x1/fixup", "sm90_64x64/stream", "simt_128x256/s132", "sm90_64x32/k4"])
def test_a_corner_is_simulated(name: str) -> None:
    _, _, corner = made(name, *RAGGED)
    of, rng = corner.extents, np.random.default_rng(0)
    a, b = rng.integers(-3, 4, (of.m, of.k)), rng.integers(-3, 4, (of.k, of.n))
    found = simulate(corner.plan, a, b)
    exact = (a @ b).astype(np.float64)
    assert np.abs(found.d - exact).max() <= 2.0**-8 * np.abs(exact).max()
    assert any("with up to" in what for what in corner.exercised)


def test_a_corner_of_a_batch_and_of_few_k_tiles() -> None:
    """The corner of a batch of five has two matrices. The report lists only what happens in the whole problem too."""
    _, _, corner = made("simt_128x128", 4096, 4096, 32, 5)
    assert (corner.extents.batch, corner.extents.k) == (2, 32)
    assert "several batches" in corner.exercised
    assert not any("k-tiles" in what or "ragged" in what for what in (*corner.exercised, *corner.not_exercised))


def test_what_a_corner_lacks_is_told() -> None:
    plan, problem, corner = made("sm90_64x64/fixup", 4096, 4096, 4096)
    assert not any("K splits" in what for what in corner.not_exercised)
    small = corner_of(plan, problem, Extents(4096, 4096, 4096, None), 1 << 20)
    assert small is not None
    assert any("through 12 stages" in what for what in small.not_exercised)
    assert any("with up to" in what for what in small.not_exercised)
    least = corner_of(plan, problem, Extents(4096, 4096, 4096, None), 2048)
    assert least is not None
    assert (least.extents.m, least.extents.n) == (64, 64)


def test_a_small_problem_is_its_own() -> None:
    plan = plan_named("simt_64x64", Operands.of("f32"))
    problem = Problem(1024, 1024, 1024, operands=plan.operands)
    assert corner_of(plan, problem, Extents(1024, 1024, 1024, None), MOST) is None
