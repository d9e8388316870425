"""Names of plans: what they say is what a recipe holds, and a recipe writes the name that it is read from."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutegemm.choice.catalog import candidates, chosen, plan_named, plans
from cutegemm.choice.ladders.mma_sync import MMA_SYNC_LADDER
from cutegemm.choice.ladders.simt import SIMT_LADDER
from cutegemm.choice.mma_sync.named import MMA_SYNC_FED, MMA_SYNC_PLANS
from cutegemm.choice.names import recipe_named
from cutegemm.choice.recipe import REPACK, SWAP_AB
from cutegemm.choice.simt.named import SIMT_PLANS
from cutegemm.choice.sm90.named import SM90_CHOSEN, SM90_PLANS, SM90_PROMOTED, of_tile
from cutegemm.choice.sm90.tiles import NamedTile
from cutegemm.errors import PlanError, UnsupportedError
from cutegemm.machine.device import DEFAULT_DEVICE
from cutegemm.plan import Operands, Problem
from cutegemm.plan.work.split import FIXUP, KSplit

COUNTS = st.integers(2, 200)
BY_SCHEDULE = st.one_of(
    st.just((None, None)),
    COUNTS.map(lambda parts: (KSplit(parts), None)),
    COUNTS.map(lambda parts: (KSplit(parts, reduction="last"), None)),
    COUNTS.map(lambda ctas: (KSplit(waves=1), ctas)),
)
# By family: how K may be split, with the CTAs that a name says.
DIVISIONS = {
    "simt": BY_SCHEDULE,
    "mma_sync": BY_SCHEDULE,
    "sm90": st.one_of(
        st.just((None, None)),
        st.just((FIXUP, None)),
        COUNTS.map(lambda parts: (KSplit(parts, reduction="last"), None)),
        st.integers(1, 9).map(lambda waves: (KSplit(waves=waves, reduction="last"), None)),
    ),
}
SIDES = st.sampled_from((64, 128, 192, 256)), st.integers(1, 16).map(lambda n: 16 * n)
NAMED = {recipe.name for recipe in SM90_PLANS}  # among them some tiles, which are as their step says
TILES = st.builds(
    lambda m, n, cluster, is_alone: of_tile(NamedTile((m, n), cluster, is_alone=is_alone)),
    *SIDES,
    st.sampled_from(((1, 1), (2, 1), (1, 2))),
    st.booleans(),
).filter(lambda recipe: recipe.name not in NAMED)
VARIED = st.sampled_from((*SIMT_PLANS, *MMA_SYNC_PLANS, *SM90_PLANS, *SM90_CHOSEN)) | TILES
FIXED = (*[step.recipe for step in SIMT_LADDER.steps], *MMA_SYNC_FED, *MMA_SYNC_LADDER)
SPELLED = (
    "simt:block=64x64x8,warp=32x32,thread=8x4,stages=4,repack=a",
    "mma_sync:block=128x128x64,stages=3,shared=k+8",
    "mma_tma:block=256x128x64,warp=64x64",
    "sm90:tile=128x128x64,cluster=2x1,epi_stages=4,l2=last+last+first,ctas=none",
)


@st.composite
def recipes(draw):
    """Of every family, packed and split as a name may say, for the problem or for the transposed one."""
    recipe = draw(VARIED | st.sampled_from(FIXED) | st.sampled_from(SPELLED).map(recipe_named))
    if recipe.splits and not recipe.spelled_out and recipe not in FIXED:
        split, ctas = draw(DIVISIONS[recipe.family])
        is_repacked = recipe.repacks and draw(st.booleans())
        recipe = replace(recipe, is_repacked=is_repacked, split=split, ctas=ctas)
    return replace(recipe, swap_ab=draw(st.booleans()))


def test_a_name_stands_for_one_recipe():
    """A step of a ladder that is a tile by name is the candidate of that tile."""
    known = {}
    for recipe in (*SIMT_PLANS, *MMA_SYNC_PLANS, *SM90_PLANS, *SM90_CHOSEN, *SM90_PROMOTED):
        assert known.setdefault(recipe.name, recipe) == recipe
        assert recipe_named(recipe.name) == recipe


@given(recipes())
def test_a_name_is_read_as_it_was_written(recipe):
    assert recipe_named(str(recipe)) == recipe
    assert str(recipe_named(str(recipe))) == str(recipe)


@given(recipes(), recipes())
def test_different_recipes_have_different_names(one, other):
    assert (str(one) == str(other)) == (one == other)


def test_every_listed_name_is_read():
    for name, summary in plans():
        assert str(recipe_named(name)) == name
        assert summary


def test_what_a_name_says():
    """By hand: each part of a name, and what stands for it."""
    recipe = recipe_named("swap_ab:simt_128x128+repack/k4last")
    said = (recipe.family, recipe.name, recipe.is_repacked, recipe.split, recipe.ctas, recipe.swap_ab)
    assert said == ("simt", "simt_128x128", True, KSplit(4, reduction="last"), None, True)
    shared = recipe_named("simt_64x64/s528")
    assert (shared.split, shared.ctas, shared.swap_ab) == (KSplit(waves=1), 528, False)
    streamed = recipe_named("sm90_wide_2x1/stream")
    assert streamed.split == KSplit(waves=2, reduction="last")
    assert str(recipe_named("sm90_wide_2x1/stream2")) == "sm90_wide_2x1/stream"
    assert recipe_named("sm90_192x208_1x2").options["cluster"] == (1, 2)
    assert recipe_named(SWAP_AB + SWAP_AB + "mma_64x64") == recipe_named("mma_64x64")
    spelled = recipe_named("sm90:tile=64x64x128,repack=ab")
    assert (spelled.options, spelled.spelled_out) == ({"tile": (64, 64, 128), "repack": "ab"}, True)


@pytest.mark.parametrize(
    "name",
    [
        "", "simt", "sm90", "sm90_", "sm90_8x8x8", "simt_64x64/fixup", "simt_64x64/stream", "sm90_epi_stages/s132",
        "sm90_epi_stages/k4last", "sm90_epi_stages/k4+repack", "mma_64x64/fixup", "mma_tma_256x128/k2",
        "mma_64x64+repack", "sgemm_01_naive/k2", "wgmma:tile=64x64x64", "swap_ab:", "simt_64x64 ",
        "sm90_epi_stages+packed",
        "sm90_64x64_1x1x0", "sm90_64x64_1x1x10", "sm90_64x64_x4",
    ],
)  # fmt: skip
def test_a_name_that_there_is_not(name):
    with pytest.raises(UnsupportedError, match="no plan is called"):
        recipe_named(name)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gemv:tile=7", "tile = .7,.; 2 positive integers are expected"),
        ("sm90_128x128_4x8", "a cluster has at most 16 CTAs"),
        ("sm90_128x128_8x2", "a cluster has 16 CTAs; at most 8 are allowed"),
        ("sm90:tile=128x128x64,cluster=4x8", "a cluster has at most 16 CTAs"),
        ("sm90_64x64_4x1x4", "a cluster has 16 CTAs; at most 8 are allowed"),
        ("sm90_64x64_1x2x4", "cluster = .1, 2.: with cluster_k = 4 its tiles must lie along M"),
        (
            "sm90_64x64_1x1x7",
            "1 rule is broken.\n  - cluster_k = 7: each CTA must store an equal number of the 64 columns",
        ),
        ("sm90_64x64_1x1x4/k2", "cluster_k > 1 is not possible if K is also split over CTAs"),
        ("sm90_64x64_1x1x4/fixup", "cluster_k > 1 is not possible if K is also split over CTAs"),
        ("sm90:tile=64x64x64,cluster_k=-1", "cluster_k = -1; a positive integer is expected"),
        ("sm90:tile=64x64x64,cluster_k=x", "'cluster_k=x': a whole number is expected"),
        (
            "simt:block=64x64x8,warp=32x32,thread=8x4,shared_a=k^1.2",
            "'shared_a=k.1.2': a value of shared_a is expected",
        ),
        ("sm90_128x128/k" + "9" * 5000, "no plan is called"),
        ("sm90_١٢٨x١٢٨", "no plan is called"),
    ],
)
def test_a_name_of_what_there_cannot_be(name, words):
    with pytest.raises((PlanError, UnsupportedError), match=words):
        recipe_named(name).build(Operands.of("bf16", layout="nt"))


def test_a_plan_that_is_all_defaults_and_one_that_is_turned_often():
    assert recipe_named("gemv:warps=4").build(Operands.of("bf16", layout="nt")).family == "mma_sync"
    assert recipe_named("swap_ab:" * 2001 + "simt_128x128").swap_ab


def test_what_does_not_read():
    with pytest.raises(PlanError, match="splits = 0; at least 1"):
        recipe_named("sm90_epi_stages/k0")
    with pytest.raises(PlanError) as caught:
        recipe_named("sm90:tyle=1x1x1,epi_stages=two,epi_stages=2")
    assert len(caught.value.violations) == 2


def test_what_tma_loads():
    """Operands that wgmma cannot read as they are: A and B, then only A: all that is not packed."""
    neither, a_alone = Operands.of("e4m3", layout="tn"), Operands.of("e4m3", layout="nn")
    found = {
        name: [recipe_named(name).boxes(of) for of in (neither, a_alone)]
        for name in (
            "simt_64x64+repack",
            "mma_64x64",
            "mma_tma_128x256",
            "sm90_epi_stages",
            "sm90_epi_stages+repack/k2",
        )
    }
    assert found == {
        "simt_64x64+repack": [None, None],
        "mma_64x64": [None, None],
        "mma_tma_128x256": ["ab", "ab"],
        "sm90_epi_stages": ["ab", "ab"],
        "sm90_epi_stages+repack/k2": ["", "a"],
    }
    packs_b = recipe_named("sm90:tile=128x128x128,repack=b")
    assert (packs_b.boxes(neither), replace(packs_b, swap_ab=True).boxes(neither)) == ("a", "b")
    assert recipe_named("swap_ab:sm90_epi_stages+repack").boxes(a_alone) == "a"


def test_a_recipe_is_built_for_a_device():
    bf16 = Operands.of("bf16", layout="nt")
    small = DEFAULT_DEVICE.with_sms(44)
    for name in ("sm90_epi_stages", "mma_tma_128x256"):
        assert recipe_named(name).build(bf16, device=small).scheduler.grid.ctas == 44
    whole = recipe_named("sm90_epi_stages").build(bf16)
    assert whole is plan_named("sm90_epi_stages", bf16)
    assert plan_named("swap_ab:sm90_epi_stages", bf16.transposed) == whole


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "e4m3", "tf32"])
def test_the_first_candidate_is_chosen(dtype, packed):
    for extents in ((4096, 4096, 4096), (128, 128, 8192), (64, 4096, 1024)):
        operands = Operands.of(dtype, layout="nn" if packed else "nt").fitted(*extents)
        problem = Problem(*extents, operands=operands)
        found = candidates(operands, problem)
        taken = chosen(operands, problem)[0]
        assert taken in [one.recipe for one in found[:12]]  # others have no tile for a D of bytes
        assert (REPACK in str(taken)) <= packed or dtype == "f32"
        assert [one.us for one in found] == sorted(one.us for one in found)
        assert all(one.bound for one in found)
