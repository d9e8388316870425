"""The choice among Hopper plans: held against the times that were recorded, and its model."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import geometric_mean

import numpy as np
import pytest

from cutegemm.choice.candidate import Variants
from cutegemm.choice.catalog import built, choose, chosen, plan_named, ranked
from cutegemm.choice.ladders.sm90 import SM90_LADDER
from cutegemm.choice.names import recipe_named
from cutegemm.choice.sm90.choice import FEW_WAVES, SEVERAL_WAVES
from cutegemm.choice.sm90.costs import COSTS
from cutegemm.choice.sm90.named import SM90_CHOSEN, SM90_PROMOTED
from cutegemm.choice.sm90.shapes import Shapes, TileShape
from cutegemm.choice.sm90.tiles import every_tile
from cutegemm.choice.sm90.time import Model, predicted_us
from cutegemm.errors import PlanError
from cutegemm.machine.arch import SMEM_RESERVED_BYTES, arch_named
from cutegemm.machine.device import DEFAULT_DEVICE, device_named
from cutegemm.plan import Operands, Problem
from cutegemm.plan.work.split import FIXUP, KSplit
from docs.evidence.files import read_record
from docs.evidence.fit_sm90 import timed
from docs.evidence.fitting import errors, fit, losses

BF16 = Operands.of("bf16", layout="nt")
ONE = Variants(np.array([0]))
BY_NAME = {recipe.name: recipe.shape for recipe in (*SM90_LADDER, *SM90_CHOSEN)}
BENCHMARKS = Path(__file__).parents[2] / "docs" / "evidence" / "data"
# Bounds for the time of the choice over that of the best candidate that was timed: on average, and at most. The first
# holds random problems of all layouts, the second linear layers of public models.
CONTESTS = {
    "choice_fit_h200": (1.025, 1.25),
    "choice_fit_layers_h100": (1.025, 1.12),
    "hopper_llama": (1.02, 1.15),
    "hopper_small": (1.01, 1.06),
    "hopper_tiles": (1.03, 1.15),
}


@cache
def recorded(file):
    """Plans that were timed, by problem."""
    return timed(read_record(BENCHMARKS / f"{file}.json"))


def divisions(name, operands, problem):
    """How the candidates of a name divide K, where they do: the numbers of parts, and "fill"."""
    found = [one.recipe for one in ranked(operands, problem, swap_ab=False) if one.recipe.name == name]
    splits = [recipe.split for recipe in found if recipe.split is not None]
    return [
        *sorted(split.splits for split in splits if not split.fixup),
        *["fixup" for split in splits if split.fixup],
    ]


# --- against what was measured -----------------------------------------------------------------------------


@pytest.mark.parametrize(("file", "bounds"), CONTESTS.items())
def test_the_choice_is_near_the_best_that_was_timed(file, bounds):
    contests = recorded(file)
    assert len(contests) >= 14
    lost = losses(contests, COSTS)
    assert geometric_mean(lost) <= bounds[0]
    assert max(lost) <= bounds[1]


def test_the_model_tells_fast_plans_from_slow_ones():
    """Where one plan takes half as long again as another, the model has them in this order; all problems, all pairs."""
    pairs, wrong = 0, 0
    for file in CONTESTS:
        for contest in recorded(file):
            us, said = np.array(contest.us), contest.predicted_us(COSTS)
            is_slower = us[None, :] > 1.5 * us[:, None]
            pairs += int(is_slower.sum())
            wrong += int((is_slower & (said[:, None] >= said[None, :])).sum())
    assert pairs > 10_000
    assert wrong <= pairs / 100, (wrong, pairs)


def test_a_fit_finds_constants_that_err_less():
    """From costs that are wrong, a few steps of least squares lead nearer to what was measured."""
    pytest.importorskip("scipy")
    contests = recorded("hopper_small")
    wrong = replace(COSTS, load=4 * COSTS.load, start=1.0)
    better = fit(contests, wrong, steps=4, names=("load", "start"))
    assert np.square(errors(contests, better)).sum() < 0.6 * np.square(errors(contests, wrong)).sum()


def test_many_plans_are_predicted_as_each_by_itself():
    problem = Problem(1000, 3000, 5000)
    for split in (KSplit(), KSplit(3), FIXUP):
        recipes = [replace(recipe, split=split) for recipe in SM90_CHOSEN]
        together = Model.of(recipes, BF16, DEFAULT_DEVICE).predict(Variants.of(recipes), problem).us
        assert together.tolist() == pytest.approx(
            [predicted_us(one.shape, BF16, problem, split=split) for one in recipes]
        )


@pytest.mark.parametrize("layout", ["nt", "nn", "tn", "tt"])
def test_both_ways_are_predicted_as_each_by_itself(layout):
    operands = Operands.of("bf16", layout=layout)
    problem = Problem(1000, 3000, 5000, operands=operands)
    recipes = [replace(one, split=KSplit(3), swap_ab=way) for way in (False, True) for one in SM90_CHOSEN]
    both = Model.of(recipes, operands, DEFAULT_DEVICE).predict(Variants.of(recipes), problem).us
    each = [
        predicted_us(one.shape, own.operands, own, split=KSplit(3))
        for own in (problem, problem.transposed)
        for one in SM90_CHOSEN
    ]
    assert both.tolist() == pytest.approx(each)


@pytest.mark.parametrize(
    ("dtype", "align_bytes", "first"),
    [("bf16", 16, 0), ("tf32", 16, 1), ("e4m3", 16, 2), ("bf16", 4, 1), ("tf32", 4, 2), ("e4m3", 4, 0)],
)
def test_stages_and_subtiles_are_those_of_the_plan(dtype, align_bytes, first):
    """Each combination builds another third of the recipes."""
    operands = Operands.of(dtype, layout="nt", out="bf16" if dtype == "e4m3" else None)
    operands = replace(operands, d=replace(operands.d, align_bytes=align_bytes))
    promoted = SM90_PROMOTED if dtype == "e4m3" else ()
    for recipe in [*SM90_CHOSEN, *promoted][first::3]:
        plan = recipe.build(operands)
        epi_tiles = plan.store.epi_tile_count(plan)
        assert recipe.shape.pipeline_state(operands) == (plan.stages, epi_tiles), recipe.name


# --- what is chosen ----------------------------------------------------------------------------------------


def test_the_choice():
    """A plan is chosen for part of a chip, for another architecture, with C and for an empty D."""
    assert choose(BF16, Problem(4096, 4096, 4096), device=DEFAULT_DEVICE.with_sms(114)).scheduler.grid.ctas == 114
    assert choose(BF16, Problem(4096, 4096, 4096), "sm_80").family != "sm90"
    assert choose(BF16, Problem(4096, 4096, 4096), with_c=True).has_c
    assert choose(BF16, Problem(0, 0, 0)) is not None


@pytest.mark.parametrize("dtype", ["e4m3", "e5m2"])
def test_how_fp8_is_summed_up(dtype):
    fp8 = Operands.of(dtype, layout="nt", out="bf16")
    for shape in ((4096, 4096, 4096), (64, 4096, 4096), (128, 128, 65536)):
        assert not chosen(fp8, Problem(*shape))[1].body.promoted
        assert chosen(fp8, Problem(*shape), accumulate="promoted")[1].body.promoted
    # With one k-tile no total exists to add its accumulators to
    short = [chosen(fp8, Problem(4096, 4096, k), accumulate="promoted")[1].body.promoted for k in (128, 144)]
    assert short == [False, True]
    whole = Operands.of("s8", layout="nt", out="s32")
    assert not chosen(whole, Problem(4096, 4096, 4096), accumulate="promoted")[1].body.promoted
    with pytest.raises(PlanError, match="accumulate = 'slow'; fast or promoted is expected"):
        chosen(fp8, Problem(64, 64, 64), accumulate="slow")
    assert {named.options["promoted"] for named in SM90_PROMOTED} == {True}


@pytest.mark.parametrize("shape", [(128, 128, 16384), (256, 256, 131072), (512, 512, 8192)])
def test_k_is_split_where_few_tiles_have_many_k_tiles(shape):
    plan = choose(BF16, Problem(*shape))
    assert plan.scheduler.split.is_split or plan.cluster_k > 1
    assert choose(BF16, Problem(*shape), with_c=True).has_c


@pytest.mark.parametrize("dtype", ["bf16", "e4m3"])
def test_two_ctas_have_room_in_a_multiprocessor(dtype):
    operands, have = Operands.of(dtype, layout="nt", out="bf16"), arch_named("sm_90a")
    crowded = [recipe for recipe in SM90_CHOSEN if recipe.shape.ctas_per_sm == 2]
    assert crowded
    for recipe in crowded:
        held = sum(recipe.build(operands).smem_bytes().values()) + SMEM_RESERVED_BYTES
        assert have.smem_per_sm_bytes // held == 2, recipe.name


def test_what_idle_ctas_take():
    """8 x 64 tiles of 128 x 128, in clusters 512 of 66: 7.76 waves, 8 where tiles are whole. 50 of them keep 101 of 128
    k-tiles, so that the last wave is 0.79 of one. 66 x 3 tiles leave nothing to take, and 64 of 66 too little."""
    name = "sm90_cluster_2x1"
    fills = [
        "fixup" in divisions(name, BF16, Problem(*shape))
        for shape in ((2048, 8192, 8192), (256 * 66, 128 * 3, 8192), (512, 4096, 8192))
    ]
    assert fills == [True, False, False]
    unlimited = replace(COSTS, burst=1e9)  # at the power limit a wave that is not full costs less
    whole, filled = [
        predicted_us(BY_NAME[name], BF16, Problem(2048, 8192, 8192), split=how, costs=unlimited)
        for how in (KSplit(), FIXUP)
    ]
    assert (7 + 101 / 128) / 8 < filled / whole < 1


def test_no_tile_has_an_owner_by_a_ring_of_three_stages():
    """256 x 192 leaves room for three; 128 x 256 and 256 x 160 for four."""
    problem = Problem(5000, 5000, 5000)
    fixup = {one.recipe for one in ranked(BF16, problem) if one.recipe.division.fixup}
    stages = {recipe.shape.pipeline_state(BF16)[0] for recipe in fixup}
    assert len(fixup) > 50
    assert min(stages) == 4
    assert BY_NAME["sm90_256x192_2x1"].pipeline_state(BF16)[0] == 3


def test_no_large_cluster_waits_for_another():
    """Plans in clusters of four and of eight are ranked only if all tiles and K splits run at a time.

    Large tiles are ranked only with few waves. For few rows, which wait for memory, this holds for clusters of eight
    only.
    """
    few = [one.recipe for one in ranked(BF16, Problem(16, 16384, 4096)) if one.recipe.family == "sm90"]
    assert {math.prod(recipe.shape.cluster) for recipe in few} == {1, 2, 4}
    seen = {4: 0, 8: 0}
    for m in range(64, 4096, 192):
        problem = Problem(m, 1024, 4096)
        for one in ranked(BF16, problem):
            ctas = math.prod(one.recipe.shape.cluster if one.recipe.family == "sm90" else (1,))
            if ctas in seen and (m > 64 or ctas == 8):
                of = problem.transposed if one.recipe.swap_ab else problem
                (tiles,) = Model(Shapes.of([one.recipe.shape], of.operands), of.operands).tiling(of).tiles
                waves = FEW_WAVES if math.prod(one.recipe.tile) >= SEVERAL_WAVES else 1
                assert tiles * one.recipe.division.splits <= {4: 30, 8: 15}[ctas] * waves
                seen[ctas] += 1
    assert min(seen.values()) > 50


def test_how_many_candidates_there_are():
    """Each once, and not so many that a choice takes long."""
    for recipes, most in ((SM90_CHOSEN, 287), (SM90_PROMOTED, 100)):
        assert len({recipe.name for recipe in recipes}) == len(recipes) <= most


@pytest.mark.parametrize("given", [*every_tile()], ids=lambda given: given.name)
def test_every_tile_has_a_plan_that_keeps_the_rules(given):
    tile, cluster, depth, cluster_k = given.tile, given.cluster, given.depth, given.cluster_k
    usual = [named for named in SM90_CHOSEN if named.shape.raster is None and named.shape.epilogue != "single"]
    found = [
        named
        for named in usual
        if (named.tile, named.shape.cluster, named.shape.depth, named.shape.cluster_k)
        == (tile, cluster, depth, cluster_k)
        and named.shape.ctas_per_sm == 1
        and ("_coop" in named.name) == given.is_alone
    ]
    has_both = tile == (128, 192) and math.prod(cluster) == 2 and cluster_k == 1 and not given.is_alone
    assert len(found) == (2 if has_both else 1)  # with narrow epilogue stages, and with wide ones
    plans = [plan_named(named.name, BF16) for named in found]
    for named, plan in zip(found, plans, strict=True):
        assert (plan.mma_tile, plan.cluster_k) == ((*tile, 64 * depth), cluster_k)
        assert (plan.cta_tile[1], plan.cluster_mn) == (tile[1] // cluster_k, (cluster[0], cluster[1] * cluster_k))
        assert plan.body.overlapped == (named.shape.epilogue == "overlapped")
        assert (plan.body.kind == "pingpong") == (named.shape.epilogue == "pingpong")
        assert not (named.shape.alone and named.shape.waits_for_next)
    assert [(plan.stages, plan.store.epi_tile[1]) for plan in plans if tile == (128, 192)] in (
        [],
        [(4, 64), (5, 32)] if has_both else [(5, 32)],
    )


@pytest.mark.parametrize(("tile", "cluster"), [((128, 128), (2, 2)), ((128, 160), (4, 2)), ((128, 96), (2, 4))])
def test_the_only_tile_of_a_cta_is_shared_where_d_is_of_16_bits(tile, cluster):
    name = f"sm90_{tile[0]}x{tile[1]}_{cluster[0]}x{cluster[1]}"
    kinds = {
        (dtype, out, align): plan_named(name, Operands.of(dtype, layout="nt", out=out, align_bytes=align)).body.kind
        for dtype, out, align in (
            ("bf16", "bf16", 16),
            ("bf16", "f32", 16),
            ("tf32", "f32", 16),
            ("e4m3", "e4m3", 16),
        )
    }
    assert list(kinds.values()) == ["cooperative", "pingpong", "pingpong", "pingpong"]
    assert plan_named("sm90_cluster_2x1", BF16).body.kind == "pingpong"  # a CTA may have many tiles


def test_k_tiles_twice_as_deep():
    """A stage of 64 x 16 x 256 bytes has 20 KiB: 11 fill shared memory. Few columns with a deep K are faster."""
    deep, usual = [plan_named(name, BF16) for name in ("sm90_64x16_deep", "sm90_64x16")]
    assert (deep.cta_tile, usual.cta_tile) == ((64, 16, 128), (64, 16, 64))
    assert deep.stages == 11
    problem = Problem(112, 32, 12032)
    times = [predicted_us(BY_NAME[name], BF16, problem, split=KSplit(6)) for name in ("sm90_64x16_deep", "sm90_64x16")]
    assert 0.8 < times[0] / times[1] < 1


@pytest.mark.parametrize("m", [1, 16, 40, 300])
def test_a_problem_and_its_transpose_take_the_same_time(m):
    problem, transposed = Problem(m, 4096, 4096), Problem(4096, m, 4096)
    us = [next(ranked(*of)).us for of in ((BF16, problem), (BF16.transposed, transposed))]
    assert us[0] == pytest.approx(us[1])


@pytest.mark.parametrize(("operands", "arch"), [(BF16, "sm_90"), (Operands.of("f32"), "sm_90a")])
def test_only_wgmma_multiplies_the_transposed_problem(operands, arch):
    assert not any(one.recipe.swap_ab for one in ranked(operands, Problem(16, 4096, 4096), arch))


@pytest.mark.parametrize(("ctas", "at_once"), [(1, 132), (2, 264), (3, 396)])
def test_a_persistent_grid_has_as_many_ctas_as_the_multiprocessors_hold(ctas, at_once):
    text = f"sm90:tile=64x16x64,schedule=cooperative,consumers=1,stages=3,ctas_per_sm={ctas}"
    assert plan_named(text, BF16).scheduler.grid.ctas == at_once


@pytest.mark.parametrize("ctas", [0, -1, 1 << 40])
def test_a_number_of_ctas_that_no_multiprocessor_holds_is_what_the_refusal_speaks_of(ctas):
    text = f"sm90:tile=64x16x64,schedule=cooperative,consumers=1,stages=3,ctas_per_sm={ctas}"
    with pytest.raises(PlanError) as refused:
        plan_named(text, BF16)
    assert f"{ctas}" in refused.value.violations[0]
    assert not any("pipeline" in rule or rule.startswith("ctas =") for rule in refused.value.violations)


@pytest.mark.parametrize(("columns", "stages"), [(16, 5), (32, 4)])
def test_two_ctas_of_one_warpgroup_share_a_multiprocessor(columns, stages):
    plan = plan_named(f"sm90_64x{columns}_deep_occ2", BF16)
    assert (plan.ctas_per_sm, plan.stages, plan.threads) == (2, stages, 128)
    assert plan.cta_tile == (64, columns, 128)


def test_tiles_of_few_columns_are_for_a_d_of_few_columns():
    nn = Operands.of("bf16", layout="nn")
    of_few = {str(one.recipe) for one in ranked(nn, Problem(16, 14704, 7568))}
    assert "swap_ab:sm90_128x16_2x1" in of_few
    tiles = {one.recipe.tile for one in ranked(nn, Problem(704, 1680, 64)) if one.recipe.family == "sm90"}
    assert (128, 64) in tiles
    assert not tiles & {(128, 16), (128, 32)}


def test_large_tiles_by_single_halves_are_not_considered():
    odd = Operands.of("bf16", layout="nt").fitted(114, 8536, 4937)
    names = {one.recipe.name for one in ranked(odd, Problem(114, 8536, 4937))}
    assert "mma_64x64" in names
    assert not names & {"mma_128x128", "mma_128x256", "mma_256x128"}


def test_a_refusal_of_the_transposed_problem_says_so():
    """B is n-major: as A of the transposed problem it is m-major, and no wgmma of bytes takes that."""
    with pytest.raises(PlanError, match="for D\\^T = B\\^T A\\^T, whose A is B\\^T") as caught:
        plan_named("swap_ab:sm90_epi_stages", Operands.of("e4m3"))
    assert "A is m-major" in str(caught.value)


def test_what_cannot_be_built_is_not_taken():
    """Candidates are ranked unbuilt: a D of bytes is stored by 32 columns, which do not divide a tile of 64 x 48."""
    operands = Operands.of("e4m3", layout="nt")
    problem = Problem(48, 4096, 4096, operands=operands)
    refused = [one.recipe for one in ranked(operands, problem) if one.recipe.tile == (64, 48)]
    assert refused
    for recipe in refused:
        with pytest.raises(PlanError, match="epilogue tiles"):
            built(recipe, operands, operands, problem)
    assert chosen(operands, problem)[0] not in refused


# --- the model ---------------------------------------------------------------------------------------------


def test_the_model_grows_with_the_work():
    recipes = [*SM90_LADDER, *SM90_CHOSEN]
    model, variants = Model.of(recipes, BF16, DEFAULT_DEVICE), Variants.of(recipes)
    us = [
        model.predict(variants, Problem(m, 4096, k)).us for m, k in ((512, 64), (512, 512), (4096, 512), (4096, 4096))
    ]
    assert (np.diff(us, axis=0) >= 0).all()


def test_a_tile_that_is_read_for_each_that_is_stored():
    """With C the consumers wait for the store of a tile, so that two tiles in turn hide more of it."""
    problem = Problem(8192, 14336, 4096)

    def longer(name):
        times = [
            Model(Shapes.of([BY_NAME[name]], BF16, with_c=c), BF16, with_c=c).predict(ONE, problem).us[0]
            for c in (False, True)
        ]
        return times[1] / times[0]

    assert 1 < longer("sm90_wide_2x1") < 1.02
    assert longer("sm90_overlapped_2x1") > 1.03


def test_at_the_power_limit_what_no_products_overlap_is_lost():
    """64 k-tiles of 128 x 256 are stored after the first MMAs of the next tile, tiles of 128 x 192 during its MMAs;
    with K = 28672 that does not matter."""
    short, long = [
        predicted_us(BY_NAME["sm90_overlapped_2x1"], BF16, Problem(8192, 14336, k))
        / predicted_us(BY_NAME["sm90_wide_2x1"], BF16, Problem(8192, 14336, k))
        for k in (4096, 28672)
    ]
    assert long == pytest.approx(1, abs=0.003)
    assert short > 1.005


def test_rows_of_64_bytes_take_longer():
    """5008 x 5008 x 5008 nn: 160 columns of B are rows of 64 bytes, 256 of them are rows of 128."""
    nn = Operands.of("bf16", layout="nn")
    found = [
        predicted_us(BY_NAME["sm90_256x160_1x2"], of.operands, of)
        for of in (
            Problem(5008, 5008, 5008, operands=nn),
            Problem(5008, 5008, 5008, operands=nn).transposed,
            Problem(5008, 5008, 5008, operands=BF16),
        )
    ]
    assert found[0] > found[1] == found[2]


def test_lines_of_short_rows_are_asked_for_more_often():
    """With K = 16 of e4m3 a line has 8 rows of B, with K = 128 one: 107 x 2 CTAs take longer for their first k-tile
    than 54 x 2 clusters, which load B once."""
    fp8 = Operands.of("e4m3", layout="nt", out="bf16")
    longer = [
        predicted_us(TileShape((64, 64)), fp8, Problem(6848, 112, k))
        - predicted_us(TileShape((64, 64), (2, 1)), fp8, Problem(6848, 112, k))
        for k in (16, 128)
    ]
    assert longer[0] > longer[1] + 0.4


@pytest.mark.parametrize(
    ("name", "stages", "epi_stages", "columns"),
    [
        ("sm90_128x96", 7, 3, 32),
        ("sm90_128x112_coop_2x1", 7, 3, 16),
        ("sm90_128x128", 6, 2, 64),
        ("sm90_128x224_2x1", 4, 3, 32),
        ("sm90_192x144", 5, 2, 16),
        ("sm90_192x160_1x2", 4, 3, 32),
        ("sm90_192x192_2x1", 4, 2, 32),
        ("sm90_256x144_2x1", 4, 3, 16),
    ],
)
def test_slots_take_no_room_of_a_stage(name, stages, epi_stages, columns):
    """Shared memory is 227 KiB less the barriers. Mainloop stages and epilogue stages of all consumers take:

    192 x 192   4 stages of 48 KiB and, of 3 consumers, 2 epilogue stages of 64 x 32: 216 KiB; with 3, 228
    128 x 128   6 stages of 32 KiB and, of 2 consumers, 2 epilogue stages of 64 x 64: 224; with 3, 240
    128 x 96    7 stages of 28 KiB and 3 epilogue stages of 64 x 32: 220
    128 x 112   7 stages of 30 KiB and 3 epilogue stages of 64 x 16: 222; with 7, which divide 112 columns, 238
    192 x 144   5 stages of 42 KiB and 2 epilogue stages of 64 x 16: 222; with 3, 228
    """
    plan = plan_named(name, BF16)
    assert (plan.stages, plan.store.count, plan.store.epi_tile[1]) == (stages, epi_stages, columns)


@pytest.mark.parametrize("align_bytes", [16, 2])
def test_what_leaves_by_threads_takes_longer(align_bytes):
    """If TMA does not store D, threads store its rows: by rows of the tile rather than by columns, and by
    long ones rather than by short ones; no epilogue overlaps with MMAs."""
    odd = replace(BF16, d=replace(BF16.d, align_bytes=align_bytes))
    problem = Problem(13291, 13289, 64)
    wide, square, overlapped, cooperative = [
        predicted_us(BY_NAME[name], odd, problem)
        for name in ("sm90_wide_along_n", "sm90_epi_stages", "sm90_overlapped_2x1", "sm90_cooperative_2x1")
    ]
    across = predicted_us(BY_NAME["sm90_wide_along_n"], replace(odd, d=replace(odd.d, major="m")), problem)
    is_odd = align_bytes == 2
    assert (square > 1.08 * wide, overlapped == pytest.approx(cooperative), across > 1.4 * wide) == (is_odd,) * 3


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        ("sm90_128x192_2x1", 192), ("sm90_64x192_2x1", 192), ("sm90_64x64_2x1", 64),
        ("swap_ab:sm90_128x176_2x1", 176), ("swap_ab:sm90_128x136_1x2", 136),
        ("swap_ab:sm90_128x192_2x1", 96), ("swap_ab:sm90_128x160_2x1", 80),
    ],
)  # fmt: skip
def test_lines_that_threads_store_are_long_and_their_subtiles_few(name, columns):
    """By epilogue tiles of 32 columns, as boxes of TMA have them, 13163 x 2201 x 536 takes 83 us by 128 x 192, and 60
    by one of 192; 4155 x 185 x 144 20 us by a transposed 128 x 176 of 16 columns, and 10 of 176 (one H200,
    2026-11-26)."""
    odd = Operands.of("bf16", layout="nt")
    odd = replace(odd, d=replace(odd.d, align_bytes=2))
    plan = plan_named(name, odd)
    assert plan.store.epi_tile == (64, columns)
    shape = BY_NAME[name.removeprefix("swap_ab:")]
    own = odd.transposed if name.startswith("swap_ab:") else odd
    assert shape.pipeline_state(own) == (
        plan.stages,
        plan.consumer_d_tile[0] // 64 * (plan.consumer_d_tile[1] // columns),
    )


def test_short_runs_of_lanes_take_longer_to_store():
    """16 bytes of a line at once by 168 columns, as 8 elements of 16 bits divide them, 32 by 176, 512 by 256: twice as
    long, 1.25 times and 1.001 times. None if TMA stores D, or if lines lie along the rows of the tile."""
    names = ("sm90_128x168_2x1", "sm90_128x176_2x1", "sm90_64x256_2x1")
    shapes = [BY_NAME[name] for name in names]
    odd = replace(BF16, d=replace(BF16.d, align_bytes=8))
    model = Model(Shapes.of(shapes, odd), odd)
    assert model._short_run_factor.tolist() == pytest.approx([2.0, 1.25, 1 + 1 / 1024], abs=1e-4)
    problem = Problem(4920, 3236, 104, operands=odd)
    by_eight, by_sixteen, _ = [predicted_us(shape, odd, problem) for shape in shapes]
    assert by_eight > 1.2 * by_sixteen
    of_m = replace(odd, d=replace(odd.d, major="m"))
    for other in (BF16, of_m):
        by_eight, by_sixteen, _ = [predicted_us(shape, other, Problem(4920, 3236, 104)) for shape in shapes]
        assert by_eight < 1.15 * by_sixteen  # and more epilogue tiles than one


def test_more_parts_cost_more_to_add_up():
    """One tile of 64 x 64 and no more k-tiles than a part needs: each part more is 16 KiB more to read."""
    shape, long = BY_NAME["sm90_64x64"], Problem(64, 64, 1 << 20)
    free = replace(COSTS, l2=1e-9, burst=1e9)
    device = replace(DEFAULT_DEVICE, own_rates=replace(DEFAULT_DEVICE.measured, tma_read_gb_s=1e30))
    meeting = [
        predicted_us(shape, BF16, long, device, KSplit(parts, reduction="last"), free)
        - predicted_us(shape, BF16, Problem(64, 64, (1 << 20) // parts), device, costs=free)
        for parts in (2, 4, 8)
    ]
    assert meeting == sorted(meeting)
    assert meeting[2] - meeting[1] == pytest.approx(2 * (meeting[1] - meeting[0]))


def test_the_rates_are_those_of_the_device():
    """16 rows of a large B wait for memory: longer on an H100, less than the rates say; half a chip takes as long. Half
    of it takes less than twice as long for a square, as it is not at the power limit."""
    shape, flat = BY_NAME["sm90_64x16"], Problem(16384, 16, 16384)
    h200, h100, half = [
        predicted_us(shape, BF16, flat, device) - COSTS.start
        for device in (DEFAULT_DEVICE, device_named("h100"), DEFAULT_DEVICE.with_sms(66))
    ]
    rates = [device_named(name).measured.tma_read_gb_s for name in ("h200", "h100")]
    assert 1.3 < h100 / h200 < rates[0] / rates[1]
    assert half == pytest.approx(h200, rel=0.35)
    wide, square = BY_NAME["sm90_overlapped_2x1"], Problem(8192, 8192, 8192)
    whole, part = [predicted_us(wide, BF16, square, device) for device in (DEFAULT_DEVICE, DEFAULT_DEVICE.with_sms(66))]
    assert 1.4 < part / whole < 2


def test_rows_that_do_not_begin_at_lines_cost_more():
    """K = 4096 of bf16 has rows of 64 lines; 4104 has one k-tile more, and rows that begin within lines."""
    narrow = BY_NAME["sm90_64x96"]
    even, odd = [predicted_us(narrow, BF16, Problem(2112, 4096, k)) for k in (4096, 4104)]
    assert odd > 1.2 * even
    padded = Problem(2112, 4096, 4104, ld=(("a", 4160), ("b", 4160)))
    assert predicted_us(narrow, BF16, padded) < 1.05 * even


def test_an_operand_that_many_read_at_once_comes_cheaper():
    """192 rows of A for all columns of B, by one row of CTAs; or as many bytes for each CTA, but of its own."""
    shape = BY_NAME["sm90_64x192"]
    alone = predicted_us(shape, BF16, Problem(64 * 128, 192, 8192))
    own = predicted_us(shape, BF16, Problem(64 * 11, 192 * 12, 8192))
    assert alone > own


def test_parts_are_long_enough():
    fp8 = Operands.of("e4m3", layout="nt", out="bf16")

    def parts(operands, m, k, name="sm90_64x64"):
        return divisions(name, operands, Problem(m, 64, k))

    assert parts(BF16, 64, 511) == []
    assert parts(BF16, 64, 2048) == [2, 3, 4, "fixup"]
    assert parts(fp8, 64, 2048) == [2]
    assert parts(fp8, 64, 4096) == [2, 3, 4, "fixup"]
    assert parts(BF16, 64 * 44, 2048) == [2, 3, "fixup"]  # 132 parts are a whole wave
    assert parts(BF16, 64 * 45, 2048) == [2, "fixup"]
    assert parts(BF16, 64 * 132, 2048) == []  # a whole wave
    assert parts(BF16, 128 * 132, 2048, "sm90_epi_stages") == []
    assert parts(BF16, 128 * 133, 2048, "sm90_epi_stages") == ["fixup"]
    assert parts(fp8, 128 * 133, 4096, "sm90_epi_stages") == ["fixup"]
    assert parts(BF16, 128 * 131, 8192, "sm90_epi_stages") == []  # of 128 k-tiles an owner would keep all


def test_helpers_of_owners_read_from_memory_again():
    """A, 220 MB, has two columns of tiles: clusters of 1 x 2 share its rows, those of 2 x 1 read them twice."""
    tf32, h100 = Operands.of("tf32", layout="nt"), device_named("h100")
    problem = Problem(288, 5216, 10576, operands=tf32)
    said = {str(one.recipe): one.us for one in ranked(tf32, problem, device=h100)}
    along_n, along_m = (said[f"swap_ab:sm90_128x144_{cluster}/fixup"] for cluster in ("1x2", "2x1"))
    assert 1.05 * along_n < along_m  # 125 and 154 us


def test_rows_that_begin_at_no_line_are_not_joined():
    """2000 bytes are not whole lines: without a cluster each CTA reads its own, which took 173 us, 148 in clusters."""
    bytes_of = Operands.of("e4m3", layout="nt", out="bf16")
    for k, joined in ((2000, False), (2048, True)):
        problem = Problem(7840, 5216, k, operands=bytes_of).transposed
        alone, paired = [
            predicted_us(recipe_named(name).shape, problem.operands, problem)
            for name in ("sm90_promoted_128x192", "sm90_promoted_128x192_2x1")
        ]
        assert (alone < paired) == joined


def test_rows_of_d_that_begin_within_a_sector_are_stored_slower():
    """A row of a box of 64 bytes touches three sectors, not two: the store takes half as long again."""
    shape, without_store = (
        TileShape((192, 96), epilogue="cooperative", consumers=3),
        replace(COSTS, store=1e9),
    )

    def store_us(n: int) -> float:
        problem = Problem(1536, n, 32)
        return predicted_us(shape, BF16, problem) - predicted_us(shape, BF16, problem, costs=without_store)

    assert store_us(5376 - 8) > 1.4 * store_us(5376)
