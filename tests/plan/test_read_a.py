"""Plans whose consumers read an m-major A of tf32 into registers, which wgmma reads."""

from __future__ import annotations

import re

import numpy as np
import pytest

from cutegemm.analysis import check
from cutegemm.build import sm90_plan
from cutegemm.choice.catalog import candidates, chosen, plan_named, ranked
from cutegemm.choice.names import recipe_named
from cutegemm.choice.sm90.named import SM90_READING
from cutegemm.errors import PlanError
from cutegemm.plan import Operands, Problem
from cutegemm.run.tune import varied
from cutegemm.tile.mma_atoms import ROWS_IN_BANKS

TT = Operands.of("tf32", layout="tt")  # A m-major, B k-major
TILE = {"tile": (128, 256, 32), "schedule": "cooperative"}


def packed(plan):
    return "".join(repack.name for repack in plan.repacks)


def test_lanes_read_from_as_many_banks():
    """Element (m, k) of a tile lies at m % 32 + 32 k words. The swizzle of 128 bytes XORs bits 2 to 4 with k % 8: it is
    in bank (m % 32) ^ 4 (k % 8). A warp's first load is of the rows r = 0 .. 7 of the atom and k = 0 .. 3.

    | r             | 0 1 2 3 | 4 5 6 7     | banks where k = 0, 1, 2, 3                                       |
    |---------------|---------|-------------|------------------------------------------------------------------|
    | m, in order   | 0 1 2 3 | 4 5 6 7     | 0-3 and 4-7; 4-7 and 0-3; 8-11 and 12-15; 12-15 and 8-11: twice  |
    | m, of a plan  | 0 1 2 3 | 16 17 18 19 | 0-3 and 16-19; 4-7 and 20-23; 8-11 and 24-27; 12-15 and 28-31    |
    """
    rows = ROWS_IN_BANKS.offsets()
    assert rows[:16].tolist() == [0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23]
    assert sorted(rows.tolist()) == list(range(64))
    plan = sm90_plan(TT, **TILE)
    mma = plan.consumer_mma
    held = mma.offsets_a(plan.a.smem).reshape(mma.threads, -1)  # (threads, values)
    for warp in range(4):
        for value in range(held.shape[1]):
            assert len(set((held[32 * warp : 32 * warp + 32, value] % 32).tolist())) == 32
    by_hand = np.array([(m ^ 4 * k) for m in rows[:8].tolist() for k in range(4)])
    assert (held[:32, 0] % 32).tolist() == by_hand.tolist()


def test_its_report_counts_no_conflict():
    plan = sm90_plan(TT, **TILE, cluster=(2, 1))
    report = check(plan, Problem(4096, 4096, 4096, operands=plan.operands), device="h200")
    (read,) = [line for line in str(report).splitlines() if line.startswith("read A")]
    # 128 x 32 elements by warps of 32 lanes
    assert re.split(r"\s{2,}", read.strip())[:6] == ["read A", "LDS", "k-tile", "128", "128", "128"]


def test_what_it_holds():
    plan = sm90_plan(TT, **TILE)
    # 64 x 256 sums, and 64 x 32 elements of A, of 128 threads
    assert plan.registers() == {"accumulators": 128, "fragments": 16}
    assert plan.tiled_mma.atom.name == "wgmma.m64n256k8.f32.tf32.k_k.rs"
    assert [str(step) for step in plan.program("consumer 0").steps[0].steps[0].steps] == [
        "wait     full[k]",
        "wait     for all MMAs",
        "release  empty[k - 1]",
        "mma      A[k], B[k] -> acc",
    ]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"tile": (128, 128, 32)}, "reads A from registers, because a 32-bit A that is m-major needs it."),
        ({**TILE, "overlapped": True}, "reads A from registers, because a 32-bit A that is m-major needs it."),
        (
            {"tile": (128, 128, 32), "schedule": "single"},
            "reads A from registers, because a 32-bit A that is m-major needs it.",
        ),
        ({**TILE, "tile": (256, 192, 32)}, "192 (accumulators) + 32 (fragments)"),
    ],
)
def test_rules(options, says):
    with pytest.raises(PlanError, match=re.escape(says)):
        sm90_plan(TT, **options)


def test_a_plan_that_does_not_say_how_a_is_read():
    with pytest.raises(PlanError, match=r"a.read is None; it is needed, because"):
        sm90_plan(TT, **TILE).with_stream("a", read=None)


def test_b_is_to_be_k_major():
    with pytest.raises(PlanError, match="B is n-major, but wgmma takes only k-major tf32 operands"):
        sm90_plan(Operands.of("tf32", layout="tn"), **TILE)
    assert packed(sm90_plan(Operands.of("tf32", layout="tn"), **TILE, repack="b")) == "b"


@pytest.mark.parametrize(
    "name", ["sm90_cluster_2x1", "sm90_overlapped_2x1/fixup", "sm90_192x160_1x2", "sm90_wide_2x1/k2"]
)
def test_a_name_stands_for_consumers_that_share_the_tile(name):
    plan = plan_named(name, TT)
    assert (plan.body.kind, plan.body.overlapped, packed(plan)) == ("cooperative", False, "")
    kept = plan_named("sm90_cluster_2x1+repack", TT)
    assert (kept.body.kind, packed(kept)) == ("pingpong", "a")


def test_all_that_are_considered_are_what_their_names_say():
    assert {recipe.name for recipe in SM90_READING} >= {
        "sm90_overlapped_2x1",
        "sm90_128x64",
        "sm90_256x160_1x2",
    }
    for recipe in SM90_READING:
        for ending in ("", "/fixup", "/k2") if recipe.shape.cluster_k == 1 else ("",):
            plan = recipe_named(recipe.name + ending).build(TT)
            assert plan.tiled_mma.atom.a_source == "register"
            assert not plan.repacks
        assert recipe_named(recipe.name).build(TT) == recipe.build(TT)


@pytest.mark.parametrize(
    ("layout", "turned", "mnk"),
    [
        ("tt", False, (4096, 4096, 4096)),
        ("nn", True, (4096, 4096, 4096)),
        ("nn", True, (1856, 14176, 7232)),
        ("tt", False, (11712, 624, 11952)),
        ("tt", False, (1024, 1024, 1024)),
    ],
)
def test_large_problems_pack_nothing(layout, turned, mnk):
    operands = Operands.of("tf32", layout=layout)
    recipe, plan = chosen(operands, Problem(*mnk, operands=operands))
    assert (packed(plan), recipe.swap_ab, plan.tiled_mma.atom.a_source) == ("", turned, "register")


@pytest.mark.parametrize(
    ("mnk", "turned"), [((336, 14352, 5234), True), ((11712, 624, 11952), False), ((4096, 4096, 4096), False)]
)
def test_where_neither_is_k_major_the_smaller_one_is_packed(mnk, turned):
    """A has M rows and B has N; the operand that is packed is B, of D or of D^T = B^T A^T."""
    operands = Operands.of("tf32", layout="tn")
    recipe, plan = chosen(operands, Problem(*mnk, operands=operands))
    assert (packed(plan), recipe.swap_ab, plan.tiled_mma.atom.a_source) == ("b", turned, "register")
    assert recipe.is_repacked
    assert recipe_named(str(recipe)).build(operands) == recipe.build(operands)


@pytest.mark.parametrize(
    ("name", "operands", "repacks"),
    [
        ("sm90_cluster_2x1+repack", Operands.of("tf32", layout="tn"), "b"),
        ("sm90_64x128+repack", Operands.of("tf32", layout="tn"), "ab"),
        ("sm90_cluster_2x1+repack", Operands.of("tf32", layout="tn", align_bytes=4), "ab"),
        ("sm90_cluster_2x1+repack", Operands.of("tf32", layout="tn", out="bf16", out_major="m"), "ab"),
    ],
)
def test_both_are_packed_if_threads_cannot_read_a(name, operands, repacks):
    """64 rows are of one consumer, which cannot read while it multiplies; TMA loads no A that is not aligned."""
    assert packed(plan_named(name, operands)) == repacks


@pytest.mark.parametrize("layout", ["tn", "nn", "tt"])
@pytest.mark.parametrize("align_bytes", [16, 4])
def test_the_candidates_pack_what_their_plans_pack(layout, align_bytes):
    operands = Operands.of("tf32", layout=layout, align_bytes=align_bytes)
    found = [one.recipe for one in ranked(operands, Problem(4096, 4096, 4096, operands=operands))]
    assert len(set(found)) == len(found)
    for recipe in [one for one in found if one.family == "sm90"][:40]:
        assert bool(packed(recipe.build(operands))) == recipe.is_repacked


def test_the_tuner_times_both_ways():
    """Of 4096 x 4096 x 4096 the transposed problem reads B, and both may pack it."""
    operands = Operands.of("tf32", layout="nn")
    first = varied(candidates(operands, Problem(4096, 4096, 4096, operands=operands)))[:6]
    assert {one.recipe.is_repacked for one in first} == {False, True}


def test_what_cannot_be_read_so_is_packed():
    def first(operands, mnk=(4096, 4096, 4096)):
        return next(ranked(operands, Problem(*mnk, operands=operands))).recipe

    assert first(Operands.of("tf32", layout="tt", align_bytes=4)).is_repacked
    assert first(Operands.of("e4m3", layout="tt", out="bf16")).is_repacked


@pytest.mark.parametrize(
    ("layout", "major", "reads"),
    [("tt", "n", True), ("tt", "m", False), ("nn", "n", False), ("nn", "m", True)],
)
def test_a_d_of_16_bits_leaves_along_n_of_the_plan(layout, major, reads):
    """stmatrix writes 8 rows side by side where D is m-major, and the plan's rows are 4 and 4."""
    operands = Operands.of("tf32", layout=layout, out="bf16", out_major=major)
    recipe, plan = chosen(operands, Problem(4096, 4096, 4096, operands=operands))
    assert (plan.tiled_mma.atom.a_source == "register") == reads
    assert recipe.is_repacked == (not reads)
    with pytest.raises(PlanError, match="the 8 elements are not adjacent"):
        sm90_plan(Operands.of("tf32", layout="tt", out="bf16", out_major="m"), **TILE)
