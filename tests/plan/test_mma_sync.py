"""The builder of mma.sync plans: what it makes, what it refuses, and that no lanes meet in a bank."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cutegemm.analysis import shared_accesses
from cutegemm.analysis.accesses import buffer_layout
from cutegemm.analysis.swizzle import search_plan
from cutegemm.build import mma_sync_plan
from cutegemm.choice import candidate
from cutegemm.choice.catalog import choose, chosen, plan_named, ranked
from cutegemm.choice.ladders.mma_sync import STEPS
from cutegemm.choice.mma_sync.choice import family
from cutegemm.choice.mma_sync.named import MMA_SYNC_FED, MMA_SYNC_PLANS
from cutegemm.errors import PlanError
from cutegemm.layout import Layout, Swizzle
from cutegemm.machine.device import DEFAULT_DEVICE, default_device
from cutegemm.plan import Operands, Problem
from tests.marks import with_thorough

LAYOUTS = ("nn", "nt", "tn", "tt")
ARCHS = ("sm_80", "sm_89", "sm_90a", "sm_120a")
SMALL = {"block": (64, 64, 64), "warp": (32, 32)}


def fastest(operands, problem, arch, device=DEFAULT_DEVICE):
    """Return the mma.sync plan with the lowest predicted time, also if wgmma would be faster."""
    first = next(candidate.ranked(family(candidate.Request(operands, arch=arch, device=device)), problem))
    return first.recipe.build(operands, arch=arch, device=device)


@pytest.mark.parametrize("out_major", ["n", "m"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("dtype", "out"), [("bf16", "bf16"), ("f16", "f32"), ("tf32", "f32")])
def test_no_lanes_meet_in_a_bank(dtype, out, layout, out_major):
    operands = Operands.of(dtype, layout=layout, out=out, out_major=out_major)
    for options in ({"warp": (64, 32)}, {"warp": (32, 64), "warps_along": "n"}):
        plan = mma_sync_plan(operands, block=(128, 128, 1024 // operands.a.dtype.bits), **options)
        for access in shared_accesses(plan):
            cost = access.cost(buffer_layout(plan, access.buffer))
            assert cost.conflicts == 0, access.name


def test_the_swizzle_of_words_along_m_and_n_is_what_the_search_finds():
    """Two bits of k choose among four groups of 8 banks: S<2,3,s>, whose s only says where k's bits are."""
    plan = mma_sync_plan(Operands.of("tf32", layout="tn"), block=(128, 256, 32))
    for buffer, extent, layout in (("a", 128, plan.a.smem), ("b", 256, plan.b.smem)):
        found = search_plan(plan, buffer).swizzle.layout
        assert (found.inner, layout.inner) == (Swizzle(2, 3, extent.bit_length() - 4), Swizzle(2, 3, 2))


def test_rows_too_short_for_all_banks_are_read_without_conflicts():
    for rows, swizzle in ((16, Swizzle(1, 3, 2)), (48, Swizzle(1, 3, 2)), (8, Swizzle(0, 3, 2))):
        operands = Operands.of("tf32", layout="nn")
        plan = mma_sync_plan(operands, block=(64, rows, 32), warp=(32, rows), store="direct")
        assert plan.b.smem.inner == swizzle
        costs = {a.name: a.cost(buffer_layout(plan, a.buffer)) for a in shared_accesses(plan)}
        assert costs["read B"].conflicts == 0


@pytest.mark.parametrize("arch", with_thorough(ARCHS, ("sm_89", "sm_120a")))
def test_the_names_serve_every_type_majorness_and_alignment(arch):
    for dtype, aligns in (("f16", (16, 8, 4, 2)), ("bf16", (16, 2)), ("tf32", (16, 8, 4))):
        for layout, align in zip(LAYOUTS, (*aligns, *aligns), strict=False):
            for batched in (False, True):
                operands = Operands.of(dtype, layout=layout, align_bytes=align, batched=batched)
                for problem in (Problem(100, 100, 100), Problem(8192, 8192, 8192)):
                    plan = fastest(operands, problem, arch)
                    assert plan.family == "mma_sync"
                    assert plan.violations(arch) == []


def test_a_name_fills_the_shared_memory_that_there_is():
    operands = Operands.of("bf16", layout="nt")
    stages = [plan_named("mma_128x256", operands, arch=arch).stages for arch in ("sm_90a", "sm_80", "sm_89")]
    assert stages == [4, 3, 2]
    narrow = plan_named("mma_128x256", Operands.of("f32"), arch="sm_89")
    assert narrow.store.layout is None  # D of f32 has no room there


def test_the_names_stand_for_what_they_say():
    for named in MMA_SYNC_PLANS:
        plan = plan_named(named.name, Operands.of("f16", layout="nt"))
        is_short = plan.cta_tile[2] == 32
        assert f"mma_{plan.cta_tile[0]}x{plan.cta_tile[1]}{'_short' if is_short else ''}" == plan.name
        assert plan.summary
    for named in MMA_SYNC_FED:
        plan = plan_named(named.name, Operands.of("f16", layout="nt"))
        assert plan.a.load.direction == "load"  # by TMA
        assert f"mma_tma_{plan.cta_tile[0]}x{plan.cta_tile[1]}" == plan.name
    assert len(STEPS) == 12
    text = "mma_sync:block=64x64x32,warp=32x32,stages=2,shared=k+8,read=plain,rounding=rna"
    plan = plan_named(text, Operands.of("f32", layout="nt"))
    assert (plan.operands.a.dtype.name, plan.rounding, plan.a.smem) == (
        "tf32",
        "rna",
        Layout((64, 32, 2), (40, 1, 2560)),
    )
    with pytest.raises(PlanError, match="'blok' is not an argument"):
        plan_named("mma_sync:blok=1x1x1", Operands.of("bf16"))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_120a"])
@pytest.mark.parametrize("align_bytes", [16, 8])
def test_no_plan_that_loads_by_tma_is_a_candidate(arch, align_bytes):
    operands = Operands.of("tf32", layout="tn", align_bytes=align_bytes)
    assert fastest(operands, Problem(4096, 4096, 4096), arch).body.has_roles is False


def test_what_no_plan_serves_is_refused_with_the_reasons():
    """Columns of B in pairs, without an epilogue that takes them so."""
    gated = Operands.of("bf16", layout="nn").as_gated("pairs", ())
    for arch in ("sm_80", "sm_90a"):
        with pytest.raises(PlanError, match="takes no two of its columns"):
            choose(gated, Problem(64, 64, 64), arch)


def test_hopper_falls_back_on_it():
    odd = Operands.of("bf16", align_bytes=2)
    assert choose(odd, Problem(333, 333, 333), "sm_90a").family == "mma_sync"
    assert choose(Operands.of("bf16"), Problem(333, 333, 333), "sm_90a").family == "sm90"
    assert choose(Operands.of("f32"), Problem(333, 333, 333), "sm_90a").family == "simt"


def test_every_broken_rule_at_once():
    with pytest.raises(PlanError) as caught:
        mma_sync_plan(
            Operands.of("bf16"), block=(64, 64, 40), warp=(32, 32), stages=0, load="dma", read="wmma",
            store="no", fragments=3, load_chunks=9, load_bytes=2,
        )  # fmt: skip
    said = str(caught.value)
    for words in ("stages = 0", "load = 'dma'", "read = 'wmma'", "store = 'no'", "fragments = 3", "bK = 40"):
        assert words in said, words


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"warp": (24, 32)}, "does not divide into warp tiles of 24"),
        ({"load_chunks": 9}, "load_chunks = 9; use 1 to 4"),
        ({"shared": "twisted"}, "shared = 'twisted'"),
        ({"load": "tma"}, "load = 'tma' is neither 'cp.async' nor 'register'"),
        ({"rounding": "rna"}, "rounding = 'rna': if threads load operands of bf16, it must be"),
        ({"block": (256, 256, 64), "warp": (64, 64), "stages": 4}, "bytes exceeds the 166912"),
        ({"block": (128, 128, 64), "warp": (128, 128), "stages": 2}, "registers"),
    ],
)
def test_what_is_refused(options, words):
    with pytest.raises(PlanError, match=words):
        mma_sync_plan(Operands.of("bf16"), **{**SMALL, **options})


def test_wide_warps_interleave_where_lines_would_be_torn():
    """Two warps of 96 columns: pieces of 32, half a line of 64, in turn; each column once, by whole pieces."""
    plan = mma_sync_plan(block=(64, 192, 64), warp=(64, 96), fragments=1)
    columns = plan.tiled_mma.offsets_c(Layout((64, 192))).reshape(plan.threads, -1) // 64
    first, second = (sorted(set(columns[warp * 32 : warp * 32 + 32].ravel().tolist())) for warp in (0, 1))
    assert first == [*range(32), *range(64, 96), *range(128, 160)]
    assert sorted(first + second) == list(range(192))


def test_a_plan_says_how_d_leaves():
    plan = mma_sync_plan(**SMALL)
    assert "shared to D" in plan.describe()
    with pytest.raises(PlanError, match=r"its extents must be those of the tile of D, \(64, 64\)."):
        plan.with_(store=replace(plan.store, smem=Layout((64, 32))))
    with pytest.raises(PlanError, match=r"places two elements at one offset."):
        plan.with_(store=replace(plan.store, smem=Layout((64, 64), (32, 1))))


def test_float8_is_multiplied_from_sm_89_on():
    """On architectures without wgmma; sm_90a uses wgmma."""
    float8, problem = Operands.of("e4m3", layout="nt", out="bf16"), Problem(256, 512, 1024)
    for arch in ("sm_89", "sm_90", "sm_120a"):
        recipe, plan = chosen(float8, problem, arch, default_device(arch))
        assert (recipe.family, plan.refusals(arch)) == ("mma_sync", [])
        assert plan.tiled_mma.atom.name == "mma.m16n8k32.f32.e4m3"
    assert chosen(float8, problem)[0].family == "sm90"
    assert mma_sync_plan(float8).refusals("sm_86")
    assert predicted_of(float8, "sm_89") < predicted_of(Operands.of("bf16", layout="nt"), "sm_89")


def test_float8_of_two_types_is_multiplied_by_wgmma_alone():
    mixed, problem = Operands.of("e4m3", b="e5m2", layout="nt", out="bf16"), Problem(256, 512, 1024)
    with pytest.raises(PlanError, match=r"mma\.sync plans multiply float8 of one type\. Use an sm90_plan"):
        mma_sync_plan(mixed)
    for arch in ("sm_80", "sm_89", "sm_120a"):
        with pytest.raises(PlanError, match=rf"e4m3 and e5m2 are multiplied only by wgmma; sm_90a has it, {arch}"):
            chosen(mixed, problem, arch, default_device(arch))
    for small in (problem, Problem(1, 4096, 4096)):
        recipe, plan = chosen(mixed, small)
        assert recipe.family == "sm90"
        kinds = "e5m2_e4m3" if recipe.swap_ab else "e4m3_e5m2"
        assert kinds in plan.tiled_mma.atom.name


def predicted_of(operands: Operands, arch: str) -> float:
    """Microseconds that the fastest plan of 4096 cubed is held to take."""
    problem = Problem(4096, 4096, 4096, operands=operands)
    return next(ranked(operands, problem, arch, default_device(arch))).us
