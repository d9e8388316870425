"""The builder of mma.sync plans: what it makes, what it refuses, and that no lanes meet in a bank."""

from __future__ import annotations

import pytest

from cutegemm.analysis import shared_accesses
from cutegemm.analysis.accesses import buffer_layout
from cutegemm.errors import PlanError
from cutegemm.layout import Layout
from cutegemm.plan import Operands, Problem, mma_sync_plan
from cutegemm.plan.catalog import choose, plan_named
from cutegemm.plan.mma_sync_catalog import MMA_SYNC_PLANS
from cutegemm.plan.mma_sync_ladder import STEPS

LAYOUTS = ("nn", "nt", "tn", "tt")
ARCHS = ("sm_80", "sm_89", "sm_90a", "sm_120a")
SMALL = {"block": (64, 64, 64), "warp": (32, 32)}


@pytest.mark.parametrize("out_major", ["n", "m"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("dtype", "out"), [("bf16", "bf16"), ("f16", "f32"), ("tf32", "f32")])
def test_no_lanes_meet_in_a_bank(dtype, out, layout, out_major):
    operands = Operands.of(dtype, layout=layout, out=out, out_major=out_major)
    for options in ({"warp": (64, 32)}, {"warp": (32, 64), "warps_along": "n"}):
        plan = mma_sync_plan(operands, block=(128, 128, 1024 // operands.a.dtype.bits), **options)
        for access in shared_accesses(plan):
            cost = access.cost(buffer_layout(plan, access.buffer))
            if dtype == "tf32" and access.op == "cp.async":
                # Rows along M or N are padded, not swizzled: their fill takes up to 9/4 of the ideal, as the
                # rules that were held against counters say (docs/analysis.md). The reads are free of it.
                assert cost.wavefronts <= 9 / 4 * cost.ideal, access.name
            else:
                assert cost.conflicts == 0, access.name


@pytest.mark.parametrize("arch", ARCHS)
def test_the_names_serve_every_type_majorness_and_alignment(arch):
    for dtype, aligns in (("f16", (16, 8, 4, 2)), ("bf16", (16, 2)), ("tf32", (16, 8, 4))):
        for layout, align in zip(LAYOUTS, (*aligns, *aligns), strict=False):
            for batched in (False, True):
                operands = Operands.of(dtype, layout=layout, align_bytes=align, batched=batched)
                for problem in (Problem(100, 100, 100), Problem(8192, 8192, 8192)):
                    if arch == "sm_90a" and dtype != "tf32":
                        continue  # the sm90 family comes first there
                    plan = choose(operands, problem, arch)
                    assert plan.family == "mma_sync"
                    assert plan.violations(arch) == []


def test_a_name_fills_the_shared_memory_that_there_is():
    operands = Operands.of("bf16", layout="nt")
    stages = [plan_named("mma_128x256", operands, arch=arch).stages for arch in ("sm_90a", "sm_80", "sm_89")]
    assert stages == [4, 3, 2]
    narrow = plan_named("mma_128x256", Operands.of("f32"), arch="sm_89")
    assert narrow.smem_d is None  # D of f32 has no room there


def test_the_names_stand_for_what_they_say():
    for named in MMA_SYNC_PLANS:
        plan = plan_named(named.name, Operands.of("f16", layout="nt"))
        assert f"mma_{plan.cta_tile[0]}x{plan.cta_tile[1]}" == plan.name
        assert plan.summary
    assert len(STEPS) == 12
    text = "mma_sync:block=64x64x32,warp=32x32,stages=2,shared=k+8,read=plain,rounding=rna"
    plan = plan_named(text, Operands.of("f32", layout="nt"))
    assert (plan.operands.a.dtype.name, plan.rounding, plan.smem_a) == (
        "tf32",
        "rna",
        Layout((64, 32, 2), (40, 1, 2560)),
    )
    with pytest.raises(PlanError, match="'blok' is no argument"):
        plan_named("mma_sync:blok=1x1x1", Operands.of("bf16"))


def test_hopper_falls_back_on_it():
    odd = Operands.of("bf16", align_bytes=2)
    assert choose(odd, Problem(333, 333, 333), "sm_90a").family == "mma_sync"
    assert choose(Operands.of("bf16"), Problem(333, 333, 333), "sm_90a").family == "sm90"
    assert choose(Operands.of("f32"), Problem(333, 333, 333), "sm_90a").family == "simt"


def test_every_broken_rule_at_once():
    with pytest.raises(PlanError) as caught:
        mma_sync_plan(
            Operands.of("bf16"), block=(64, 64, 40), warp=(32, 32), stages=0, load="tma", read="wmma",
            store="no", fragments=3, shares=9, load_bytes=2,
        )  # fmt: skip
    said = str(caught.value)
    for words in ("stages = 0", "load = 'tma'", "read = 'wmma'", "store = 'no'", "fragments = 3", "bK = 40"):
        assert words in said, words


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"warp": (24, 32)}, "does not divide into warp tiles of 24"),
        ({"shares": 9}, "shares = 9; 1 to 4"),
        ({"shared": "twisted"}, "shared = 'twisted'"),
        ({"rounding": "rna"}, "operands of bf16 are rounded by 'rna'"),
        ({"block": (256, 256, 64), "warp": (64, 64), "stages": 4}, "bytes is over the 166912"),
        ({"block": (128, 128, 64), "warp": (128, 128), "stages": 2}, "registers"),
    ],
)
def test_what_is_refused(options, words):
    with pytest.raises(PlanError, match=words):
        mma_sync_plan(Operands.of("bf16"), **{**SMALL, **options})


def test_a_plan_says_how_d_leaves():
    plan = mma_sync_plan(**SMALL)
    assert "D leaves" in plan.describe()
    with pytest.raises(PlanError, match="a copy out of it"):
        plan.with_(copy_d=None)
    with pytest.raises(PlanError, match="a tile of \\(64, 64\\) passes through it"):
        plan.with_(smem_d=Layout((64, 32)))
    with pytest.raises(PlanError, match="puts two elements in one place"):
        plan.with_(smem_d=Layout((64, 64), (32, 1)))
