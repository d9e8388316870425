"""The choice among SIMT plans: the model of their time by hand, and against what was measured."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from cutegemm.choice.candidate import Variants
from cutegemm.choice.catalog import choose, plan_named, ranked
from cutegemm.choice.names import recipe_named
from cutegemm.choice.simt.time import COSTS, Model, SimtCosts
from cutegemm.machine.device import DEFAULT_DEVICE
from cutegemm.plan import Operands, Problem
from docs.evidence.benchmark import operands_of
from docs.evidence.files import read_record
from docs.evidence.fit_simt import timed
from docs.evidence.fitting import errors, fit, losses

DATA = Path(__file__).parents[2] / "docs/evidence/data"
TN, NT = (Operands.of("f32", layout=layout) for layout in ("tn", "nt"))
H200, RATES = DEFAULT_DEVICE, DEFAULT_DEVICE.measured
# Powers of ten, so that the sum shows each term; what goes on at the same time: the slowest
BY_HAND = SimtCosts(
    start=1000.0, alone=0.0, round=100.0, drain=0.0, latency=3.0, step=0.5, block=0.0,
    wide=0.0, narrow=0.0, transposes=0.0, reads=0.0, few=0.0, crowded=0.0, store=0.0,
    written=0.0, runs=0.0, torn=0.0, apart=0.0, across=1.0, full=1.0, issue=0.0, added=10_000.0,
    accumulators=1.0, streamed=5.0, repack=100_000.0, packed=1.0, within=64.0, beside=64.0,
)  # fmt: skip
FAST = replace(H200, own_rates=replace(RATES, ffma_tflops=1e9))  # multiply-adds take no time


def of(name, problem, costs=BY_HAND, device=FAST):
    """Microseconds of a named plan, and what bounds it."""
    recipe, operands = recipe_named(name), problem.operands
    found = Model.of([recipe], operands, device, costs).predict(Variants.of([recipe]), problem)
    return float(found.us[0]), found.bound(0)


def test_a_tile_by_hand():
    """One tile of 32 x 32 and 40 k-tiles of 16: three are under way by cp.async, one through registers."""
    found, bound = of("simt_32x32", Problem(32, 32, 640, operands=TN))
    assert found == pytest.approx(1000 + 100 + 40 * (3 / 3 + 0.5), rel=1e-6)
    assert bound == "start and end"
    found, _ = of("simt_32x32", Problem(32, 32, 640, operands=NT))
    assert found == pytest.approx(1000 + 100 + 40 * (3 + 0.5), rel=1e-6)


def test_what_few_large_ctas_cover_less_of():
    """Two CTAs of 128 x 128 fit a multiprocessor: half of a start more. The last k-tile of 16 is multiplied by one of
    their 4 warps on its scheduler, a fourth of a multiprocessor, as is that of one warp's 16 x 32 and 32."""
    slow = replace(H200, own_rates=replace(RATES, ffma_tflops=10.0))
    for name, extents, held, k_tile in (
        ("simt_128x128", (128, 128), 2, 2 * 128 * 128 * 16 / 4),
        ("simt_16x32", (16, 32), 5, 2 * 16 * 32 * 32),
    ):
        problem = Problem(*extents, 64, operands=TN)
        before = of(name, problem, device=slow)[0]
        alone = of(name, problem, replace(BY_HAND, alone=10.0), slow)[0]
        assert alone - before == pytest.approx(10.0 / held)
        drain = of(name, problem, replace(BY_HAND, drain=2.0), slow)[0]
        assert drain - before == pytest.approx(2 * k_tile / (10e6 / 132 / 4))


def test_parts_of_k():
    """Of 20 k-tiles of 32 the longest of 3 parts has 7; their sums, 512 elements each, go both ways."""
    found, bound = of("simt_16x32/k3", Problem(16, 32, 640, operands=NT))
    moved = 2 * 3 * 512 * 4 / (RATES.partials_gb_s * 1e3)
    assert found == pytest.approx(1000 + 100 + 7 * (3 / 3 + 0.5) + 10_000 + moved, rel=1e-6)
    assert bound == "adding K splits"


def test_even_shares():
    """132 CTAs share 32 tiles of 1024 k-tiles: 249 for the longest; the sums of 132 + 32 - 1 parts are written."""
    problem = Problem(128, 8192, 8192, operands=TN)
    found, _ = of("simt_128x256/s132", problem)
    moved = 2 * (132 + 32 - 1) * 128 * 256 * 4 / (RATES.partials_gb_s * 1e3)
    accumulators = 10_000 + 5 + moved
    assert found == pytest.approx(1000 + 100 + 249 * (3 / 3 + 0.5) + accumulators, rel=1e-6)
    filled = Problem(128, 256 * 132, 8192, operands=TN)
    assert of("simt_128x256/s132", filled)[0] == pytest.approx(of("simt_128x256", filled)[0], rel=1e-6)


def test_rounds_and_products():
    """364 tiles of 128 x 128; a multiprocessor runs two at a time: one round of two, and one more tile."""
    slow = replace(H200, own_rates=replace(RATES, ffma_tflops=10.0))
    free = replace(BY_HAND, latency=1e-3, step=1e-3)
    found, bound = of("simt_128x128", Problem(128 * 364, 128, 64, operands=TN), free, slow)
    products = 3 * 2 * 128 * 128 * 64 / (10e6 / 132)  # one CTA of 4 warps has all schedulers, as two have
    assert found == pytest.approx(1000 + 100 * (1 + 1 / 2) + products, rel=1e-6)
    assert bound == "start and end"
    assert of("simt_128x128", Problem(128 * 364, 128, 3200, operands=TN), free, slow)[1] == "multiply-adds"
    # The last 100 CTAs take 100 of 264 places: half as often do two of them share a multiprocessor
    crowded = replace(free, crowded=0.5)
    more = of("simt_128x128", Problem(128 * 364, 128, 64, operands=TN), crowded, slow)[0] - found
    assert more == pytest.approx(0.5 * 100 / 264 * products / 3, rel=1e-6)
    one_warp = of("simt_16x32", Problem(16, 32, 64, operands=TN), free, slow)[0]
    assert one_warp == pytest.approx(1000 + 100 + 4 * 2 * 16 * 32 * 64 / (10e6 / 132), rel=1e-4)


def test_d_is_written():
    """In rows of 64 and of 256 elements, 2 and 8 cache lines; two CTAs of three rounds overlap, one runs alone."""
    costs = replace(BY_HAND, written=1.0, runs=0.5, latency=100.0)
    m = 64 * 396
    steps, d = 16 * (100 / 2 + 0.5), m * 256 * 4 / (RATES.thread_read_gb_s * 1e3)
    tiles = 4 * m / 64 / 132  # CTAs of a multiprocessor, with tiles of 64 x 64: four at a time
    for apart in (0.0, 1.0):
        exponent = 1 + apart * 2 * (1 - 1 / 3)  # four CTAs are two more than keep in step
        found, _ = of("simt_64x64", Problem(m, 256, 256, operands=TN), replace(costs, apart=apart))
        both = (tiles / 4 * steps) ** exponent + (d * (1 + 0.5 / 2)) ** exponent
        assert found == pytest.approx(1000 + 100 * (1 + 2 / 4) + both ** (1 / exponent), rel=1e-4)
    wide = of("simt_256x128", Problem(256 * 132 * 3, 128, 256, operands=TN), replace(costs, apart=1.0))[0]
    d = 256 * 132 * 3 * 128 * 4 / (RATES.thread_read_gb_s * 1e3)
    assert wide == pytest.approx(1000 + 100 * 3 + 3 * steps + d * (1 + 0.5 / 4), rel=1e-4)


@pytest.mark.parametrize(
    ("name", "align", "torn"),
    [
        ("simt_64x64", 16, 0),
        ("simt_64x64", 4, 2 * 32 / 256),  # both ends of a run of 256 bytes
        ("simt_256x64", 16, 0),
        (
            "simt_256x64",
            8,
            2,
        ),  # each 16 bytes of a thread by two accesses, followed by those of its neighbour
        ("simt_256x64", 4, 4),
        ("simt_64x64/k4", 4, 1),  # narrow accesses of the kernel that adds the parts
        ("simt_64x64/s528", 4, 4),
    ],
)
def test_sectors_that_are_written_in_part(name, align, torn):
    operands = Operands.of("f32", layout="tn", align_bytes=align)
    problem = Problem(4096, 4096, 256, operands=operands)
    free = replace(BY_HAND, latency=1e-3, step=1e-3, written=1.0)
    more = of(name, problem, replace(free, torn=1.0))[0] - of(name, problem, free)[0]
    assert more == pytest.approx(torn * 4096 * 4096 * 4 / (RATES.thread_read_gb_s * 1e3), rel=1e-6)


def test_tiles_of_twelve_rows_or_columns_a_thread():
    """80 columns fill most of a tile of 96; a tile of 128 has 48 empty columns.

    They take 676 us in 192 x 96 by 264 CTAs, 843 in 128 x 128 (one H200, 2026-11-25). If D has more than eight grids
    of tiles, other tiles have equally few empty columns.
    """
    few, many = Problem(15136, 80, 11312), Problem(8192, 8192, 8192)
    ranks = {str(one.recipe): at for at, one in enumerate(ranked(NT, few))}
    assert ranks["simt_192x96/s264"] < ranks["simt_128x128/s264"]
    plan = plan_named("simt_192x96", NT)
    assert (plan.cta_tile, plan.threads, plan.ctas_per_sm) == ((192, 96, 16), 128, 2)
    assert sum(plan.registers().values()) <= 255
    whole = [one.recipe for one in ranked(NT, many) if one.recipe.split is None]
    assert whole
    assert not [recipe for recipe in whole if any(extent % 3 == 0 for extent in recipe.options["block"][:2])]


def test_which_tiles_ctas_share_evenly():
    """Not those of 256 rows or columns through registers, 16 deep; nor any of 16, nor four CTAs a multiprocessor."""
    problem = Problem(1024, 1024, 8192, operands=NT)
    shared = {one.recipe.name for one in ranked(NT, problem) if one.recipe.ctas and not one.recipe.is_repacked}
    assert {"simt_128x256", "simt_64x256x8", "simt_128x128"} <= shared
    assert not shared & {
        "simt_256x128",
        "simt_128x256x16",
        "simt_64x256",
        "simt_256x64",
        "simt_16x256",
        "simt_64x64",
    }
    assert "simt_256x128" in {one.recipe.name for one in ranked(TN, replace(problem, operands=TN)) if one.recipe.ctas}


def test_packing_is_paid_for():
    """Both operands are k-major: read and written once, and read no more from memory."""
    problem = Problem(1024, 512, 256, operands=NT)
    found, bound = of("simt_64x64+repack", problem)
    moved = 2 * 4 * (1024 + 512) * 256 / (RATES.repack_along_mn_gb_s * 1e3)
    assert found == pytest.approx(1000 + 100 + 16 * (3 / 2 + 0.5) + 100_000 + moved, rel=1e-6)
    assert bound == "repack"


@pytest.mark.parametrize(
    ("file", "mean", "most"),
    [
        ("simt", 1.03, 1.3),
        ("choice_fit_h200", 1.03, 1.1),
        *[
            pytest.param(*each, marks=pytest.mark.thorough)
            for each in (
                ("simt_fit_small_h100", 1.04, 1.2),
                ("simt_fit_hard_h100", 1.04, 1.15),
                ("simt_fit_repacked_h100", 1.02, 1.1),
            )
        ],
        ("simt_fit_twelve_h200", 1.02, 1.15),
    ],
)
def test_the_first_is_near_the_fastest(file, mean, most):
    """Return, for each problem, the time of the plan with the lowest prediction over the time of the fastest timed
    plan."""
    lost = losses(timed(read_record(DATA / f"{file}.json")), COSTS)
    assert len(lost) > 5
    assert np.exp(np.mean(np.log(lost))) < mean
    assert max(lost) < most


def test_the_fit_finds_what_made_the_times():
    """Times that other costs predict: the fit starts at today's, and ends at ones that predict alike."""
    pytest.importorskip("scipy")
    measured = timed(read_record(DATA / "simt_fit_repacked_h100.json"))
    made = replace(COSTS, start=4 * COSTS.start, repack=COSTS.repack / 2)
    timed_so = [replace(one, us=tuple(one.predicted_us(made))) for one in measured]
    found = fit(timed_so, COSTS, 10, names=("start", "round", "latency", "repack"))
    before, after = [np.square(errors(timed_so, costs)).mean() ** 0.5 for costs in (COSTS, found)]
    assert after < before / 10, (before, after)
    assert max(losses(timed_so, found)) < 1.02


def test_a_recipe_builds_what_it_says():
    problem = Problem(128, 8192, 8192, operands=NT)
    found = list(ranked(NT, problem))
    assert len(found) > 100
    assert len({str(one.recipe) for one in found}) == len(found)
    assert [one.us for one in found] == sorted(one.us for one in found)
    for one in islice(found, 40):
        plan, recipe = one.recipe.build(NT), one.recipe
        parts = 1 if recipe.split is None else recipe.split.splits
        assert (plan.split_k, plan.scheduler.grid.ctas or None, bool(plan.repacks)) == (
            parts,
            recipe.ctas,
            recipe.is_repacked,
        )
        assert plan.name == str(recipe)
        assert plan.violations("sm_90a", problem) == []


def test_few_tiles_are_split_and_many_are_not():
    def chosen(m, n, k):
        return choose(NT, Problem(m, n, k, operands=NT))

    for m in (16, 32, 64, 128, 256):
        assert chosen(m, 8192, 8192).scheduler.split.is_split
    assert chosen(256, 256, 131072).split_k > 32  # 2 tiles of 128 x 256 on 132 multiprocessors
    for n in (2048, 4096, 8192):
        assert not chosen(n, n, n).scheduler.split.is_split
    assert chosen(80, 80, 384).split_k > 4  # 25 tiles at most, and a k-tile waits for memory


@pytest.mark.parametrize("mnk", [(4624, 661, 105), (4969, 203, 74)])
def test_little_is_not_packed_for_a_short_k(mnk):
    """By tn, of one H200: `simt_32x32+repack` took 30.9 and 14.4 us, what is chosen 28.7 and 12.8."""
    problem = Problem(*mnk, operands=operands_of("f32", "tn", *mnk))
    said = {str(one.recipe): one.us for one in ranked(problem.operands, problem, "sm_90a", H200)}
    first = next(iter(said))
    assert "+repack" not in first
    assert said["simt_32x32+repack"] > 1.05 * said[first]


def test_other_chips_are_modelled_as_such():
    """Half the rate or half the multiprocessors: twice the time of a large problem. f64 has half the rate of f32."""
    problem = Problem(8192, 8192, 8192, operands=TN)
    slow = replace(H200, own_rates=replace(RATES, ffma_tflops=RATES.ffma_tflops / 2))
    once = of("simt_256x128", problem, COSTS, H200)[0]
    assert of("simt_256x128", problem, COSTS, slow)[0] > 1.8 * once
    assert of("simt_256x128", problem, COSTS, H200.with_sms(66))[0] == pytest.approx(2 * once, rel=0.05)
    double = replace(problem, operands=Operands.of("f64", layout="tn"))
    single = of("simt_64x64", problem, COSTS, H200)[0]
    assert of("simt_64x64", double, COSTS, H200)[0] > 1.7 * single
