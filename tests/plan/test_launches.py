"""The kernels of a call: their names, their order, and which overlap."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cutegemm.analysis import check
from cutegemm.build import gemv_plan, mma_sync_plan, mma_tma_plan, simt_plan, sm90_plan
from cutegemm.choice.catalog import plan_named
from cutegemm.errors import PlanError
from cutegemm.layout import Layout
from cutegemm.machine.arch import ARCHS, arch_named
from cutegemm.plan import Operands, Problem
from cutegemm.plan.launches import Launch, Room, launches_of
from cutegemm.tile.tiled_copy import make_tiled_copy_tv
from tests.epilogues import CASES

APART, LETS_IN, LAST = Launch(False, False), Launch(True, True), Launch(True, False)
TF32 = Operands.of("tf32", layout="tn")
SMALL = {"block": (64, 64, 8), "warp": (32, 32), "thread": (8, 4)}


def test_by_hand():
    """The CTAs of a Hopper plan add the parts of its split; a kernel those of a SIMT plan, unless the last CTA does."""
    f32 = Operands.of("f32", layout="tn")
    assert launches_of(sm90_plan(split_k=3)) == {"gemm": LAST}
    assert launches_of(sm90_plan(TF32, tile=(128, 128, 32), repack="ab")) == {"repack": LETS_IN, "gemm": LAST}
    assert launches_of(simt_plan(f32, split_k=4, reduction="last")) == {"gemm": LAST}
    assert launches_of(simt_plan(f32, split_k=4)) == {"gemm": LETS_IN, "accumulators": LAST}
    assert launches_of(simt_plan(f32, waves=1, persistent=4)) == {"gemm": LETS_IN, "accumulators": LAST}
    reduced = CASES["reduced"].on(simt_plan(f32, **SMALL, split_k=4, repack="a"))
    found = launches_of(reduced)
    names = ["repack", "gemm", "accumulators", *[f"reduce {name}" for name, _ in reduced.epilogue.reductions]]
    assert len(names) > 5
    assert list(found) == names
    assert [found[name] for name in names] == [*[LETS_IN] * (len(names) - 1), LAST]


def test_who_lets_the_next_call_begin():
    """Plans that stream A, and those for wgmma with tiles of less than 128 x 96.

    The last kernel of a call, if that is the GEMM; as room is left, unless the plan reads A before the wait.
    """
    small, bf16 = sm90_plan(tile=(64, 64, 64)), Operands.of("bf16", layout="nt")
    in_fours = sm90_plan(tile=(64, 32, 64), cluster=(2, 1), cluster_k=2, schedule="cooperative", consumers=1)
    for plan, room in (
        (small, Room()),
        (sm90_plan(tile=(128, 80, 64)), Room()),
        (in_fours, Room(cluster_ctas=4)),
        (gemv_plan(bf16), Room(ctas_per_sm=2)),
        (gemv_plan(bf16, pdl=True), None),
    ):
        assert launches_of(plan) == {"gemm": replace(LETS_IN, room=room)}
    for plan in (
        sm90_plan(tile=(128, 96, 64)),
        sm90_plan(gpc_raster=False),
        mma_sync_plan(bf16),
        mma_tma_plan(bf16),
        simt_plan(),
    ):
        assert launches_of(plan) == {"gemm": LAST}
    packed = {"repack": LETS_IN, "gemm": replace(LETS_IN, room=Room())}
    assert launches_of(sm90_plan(TF32, tile=(64, 64, 32), repack="ab")) == packed
    reduced = launches_of(CASES["reduced"].on(small))
    assert [launch.releases for launch in reduced.values()] == [True] * (len(reduced) - 1) + [False]


def test_room_by_hand():
    """132 multiprocessors: half of them are 66, seven eighths 115.5. Two CTAs to each: 132, 231. Of 132 clusters of
    four reach 120: 60, 105."""
    for room, half, most in (
        (Room(), 66, 115.5),
        (Room(ctas_per_sm=2), 132, 231),
        (Room(cluster_ctas=8), 60, 105),
    ):
        left = [ctas for ctas in range(1, 400) if room.is_left(ctas, 132)]
        assert left == [ctas for ctas in range(1, 400) if ctas <= half or ctas >= most]


@pytest.mark.parametrize("arch", ARCHS)
def test_they_overlap_from_hopper_on(arch):
    plan = simt_plan(Operands.of("f32", layout="tn"), **SMALL, repack="a")
    overlap = {"repack": LETS_IN, "gemm": LAST}
    assert launches_of(plan, arch_named(arch)) == (
        dict.fromkeys(overlap, APART) if arch in ("sm_80", "sm_86", "sm_89") else overlap
    )


def test_packing_ends_before_ctas_that_share_a_multiprocessor_begin():
    f32 = Operands.of("f32", layout="tn")
    for ctas in (1, 2):
        found = launches_of(simt_plan(f32, **SMALL, repack="ab", split_k=2, ctas_per_sm=ctas))
        assert found == {"repack": replace(LETS_IN, late=ctas > 1), "gemm": LETS_IN, "accumulators": LAST}
    alone = launches_of(simt_plan(f32, **SMALL, repack="ab", ctas_per_sm=2), arch_named("sm_80"))
    assert alone == {"repack": APART, "gemm": APART}


def test_they_are_said():
    packed = plan_named("sm90_epi_stages+repack", TF32)
    (line,) = [line for line in packed.describe().splitlines() if line.startswith("kernels")]
    assert line.split()[:4] == ["kernels", "2", "repack,", "gemm"]
    assert "from sm_90 on" in line
    assert "kernels" not in sm90_plan().describe()
    found = check(packed, Problem(256, 256, 256, operands=TF32), search=False)
    assert found.to_dict()["launches"] == {"repack": True, "gemm": True}
    assert "2. gemm, starts while repack runs, and waits for its end" in str(found)
    large = check(packed, Problem(4096, 4096, 4096, operands=TF32), search=False)  # 64 MiB of A
    assert "2. gemm, starts when repack has ended" in str(large)
    split = simt_plan(Operands.of("f32"), split_k=4)
    assert "2. accumulators, starts when gemm has ended" in str(
        check(split, Problem(256, 256, 256), "sm_80", search=False)
    )
    plain = sm90_plan()
    alone = check(plain, Problem(256, 256, 256, operands=plain.operands), search=False)
    assert "Launches" not in str(alone)


def test_one_kernel_packs_both():
    """By as many threads; and the CTAs of both are one grid: (2^31 - 1) / 2 tiles of 64 x 64 each are too many."""
    plan = sm90_plan(TF32, tile=(128, 128, 32), repack="ab")
    half = make_tiled_copy_tv(plan.repacks[1].load.atom, Layout((16, 8)), Layout((4, 1)))  # 128 threads
    narrow = replace(plan.repacks[1], load=half)
    with pytest.raises(
        PlanError,
        match="the repack passes copy A with 256 threads, B with 128 threads in one kernel;",
    ):
        plan.with_(repacks=(plan.repacks[0], narrow))
    side = 1 << 21  # 2^15 tiles along M, N and K each: 2^30 of A, as many of B
    huge = Problem(side, side, side, operands=plan.operands)
    assert any(rule.startswith("the repack pass of A and B takes 2147483648") for rule in plan.violations(problem=huge))
    flat = Problem(side, 64, side, operands=plan.operands)
    assert not any(rule.startswith("the repack pass") for rule in plan.violations(problem=flat))
