"""The builder of mma.sync plans that TMA feeds: roles, barriers, who holds what, and that no lanes meet in a bank."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cutegemm.analysis import shared_accesses
from cutegemm.analysis.accesses import buffer_layout
from cutegemm.build import mma_sync_plan, mma_tma_plan
from cutegemm.choice.catalog import plan_named
from cutegemm.errors import PlanError
from cutegemm.layout import Layout, product
from cutegemm.plan import Operands
from cutegemm.plan.work.split import KSplit
from cutegemm.tile.tiled_mma import TiledMma
from tests.kernels.mma_sync_forms import FED, form
from tests.streams import stream_changes

LAYOUTS = ("nn", "nt", "tn", "tt")
SMALL = {"block": (64, 64, 64), "warp": (32, 32)}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["bf16", "tf32"])
def test_no_lanes_meet_in_a_bank_in_the_mainloop(dtype, layout):
    """Each fill and read takes the wavefronts of its bytes, 128 at a time: 256 x 128 with k-tiles of 128 bytes."""
    plan = mma_tma_plan(Operands.of(dtype, layout=layout))
    costs = {a.name: a.cost(buffer_layout(plan, a.buffer)).wavefronts for a in shared_accesses(plan)}
    assert costs.pop("store D") == (512 if dtype == "bf16" else 2048 if layout[1] == "t" else 1024)
    # A is read by the 2 columns of warps, B by the 4 rows of them
    assert costs == {"fill A": 256, "fill B": 128, "read A": 2 * 256, "read B": 4 * 128}


def test_words_along_m_and_n_are_read_two_halves_apart():
    """In one line of 128 bytes of each of 4 k, swizzled by TMA: rows 0 .. 3 and 16 .. 19 of an atom's 8."""
    plan = mma_tma_plan(Operands.of("tf32", layout="tn"))
    rows = plan.tiled_mma.offsets_a(Layout((256, 32)))[:32:4, 0, 0, 0] % 256
    columns = plan.tiled_mma.offsets_b(Layout((128, 32)))[:32:4, 0, 0, 0] % 128
    assert rows.tolist() == columns.tolist() == [0, 1, 2, 3, 16, 17, 18, 19]
    along_k = mma_tma_plan(Operands.of("tf32", layout="nt"))
    assert (along_k.tiled_mma.offsets_a(Layout((256, 32)))[:32:4, 0, 0, 0] % 256).tolist() == list(range(8))


@pytest.mark.parametrize("name", FED)
def test_each_consumer_sums_up_its_own_part(name):
    """(bM, bN) falls into the consumers' tiles, in rows of them; a consumer has its own tile and nothing else."""
    plan = form(name)
    (bm, bn, _), (own_m, own_n) = plan.cta_tile, plan.consumer_tile
    held = plan.tiled_mma.offsets_c(Layout((bm, bn))).reshape(plan.body.consumers, -1)
    across = bn // own_n
    for consumer, places in enumerate(held):
        rows = consumer // across * own_m + np.arange(own_m)
        columns = plan.column_of(consumer % across, np.arange(own_n))
        assert sorted(places.tolist()) == sorted((rows[:, None] + bm * columns).ravel().tolist())


def test_columns_in_pieces_where_lines_would_be_torn():
    """160 columns of bf16 lie in lines of 32; two warps of 80 take 16 of each in turn. K has no such lines,
    and each has its 80 together."""
    plan = mma_tma_plan(Operands.of("bf16", layout="nn"), block=(256, 160, 64), warp=(64, 80))
    own = plan.column_of(1, np.arange(80))
    assert own.tolist() == [
        *range(16, 32),
        *range(48, 64),
        *range(80, 96),
        *range(112, 128),
        *range(144, 160),
    ]
    assert plan.column_of(2, 0) == 160  # columns of the next tile
    assert plan.store.epi_tile == (16, 16)
    together = mma_tma_plan(Operands.of("bf16", layout="nt"), block=(256, 160, 64), warp=(64, 80))
    assert together.column_of(1, np.arange(80)).tolist() == list(range(80, 160))


def test_the_roles():
    """A warpgroup that produces, 8 warps that consume: of 65,536 registers 24 and 240 a thread."""
    plan = mma_tma_plan(Operands.of("bf16", layout="nt"))
    assert [(role.warps, role.registers) for role in plan.roles] == [(4, 24)] + 8 * [(1, 240)]
    assert [(b.name, b.count, b.arrivals, b.transaction_bytes) for b in plan.barriers] == [
        ("full", 4, 1, (256 + 128) * 64 * 2),
        ("empty", 4, 8, 0),
    ]
    assert plan.registers() == {"accumulators": 128, "fragments": 2 * 16 + 16}
    rows = plan.with_(mma_order="m")
    assert (plan.fragment_buffers, rows.fragment_buffers) == ((2, 1), (1, 2))
    plain = mma_tma_plan(Operands.of("bf16", layout="nt"), arch="sm_90", **SMALL)  # without setmaxnreg
    assert {role.registers for role in plain.roles} == {None}


def test_slots_leave_the_stages_their_room():
    """4 stages of 48 KiB and 32 KiB for D: two epilogue stages of 2 KiB a warp, or one of 4 KiB where tf32 needs 32 x
    32."""
    for dtype, layout, epi_tile, epi_stages in (
        ("bf16", "nt", (16, 64), 2),
        ("tf32", "nt", (16, 32), 2),
        ("tf32", "tt", (32, 16), 2),
        ("tf32", "tn", (32, 32), 1),
    ):
        plan = mma_tma_plan(Operands.of(dtype, layout=layout))
        assert (plan.stages, plan.store.epi_tile, plan.store.count) == (4, epi_tile, epi_stages)
        assert plan.smem_bytes()["d"] == 8 * epi_stages * product(epi_tile) * plan.operands.d.dtype.bits // 8 == 32768


@pytest.mark.parametrize(
    ("dtype", "layout", "epi_tile"),
    [("bf16", "nt", (16, 64)), ("tf32", "nt", (16, 32)), ("tf32", "tt", (32, 16)), ("tf32", "tn", None)],
)
def test_d_that_tma_cannot_store_leaves_by_lines(dtype, layout, epi_tile):
    """A warp copies lines of 128 bytes from an epilogue stage of its own, or of 64 if shared memory is full.

    If the accumulators are spread along N, D is stored from registers.
    """
    operands = Operands.of(dtype, layout=layout)
    size_bytes = operands.d.dtype.bits // 8
    odd = replace(operands, d=replace(operands.d, align_bytes=size_bytes))
    plan = mma_tma_plan(odd)
    assert plan.stages == 4
    if epi_tile is None:
        assert (plan.store.layout, plan.store.atom.bits) == (None, 8 * size_bytes)
    else:
        assert (plan.store.epi_tile, plan.store.count, plan.store.line_copy.threads) == (epi_tile, 1, 32)
        assert "by each warp" in str(plan.program("consumer 0"))
    for direct in (mma_tma_plan(operands, store="direct"), mma_tma_plan(odd, store="direct")):
        assert direct.store.layout is None


def test_the_names():
    for dtype in ("bf16", "f32"):
        for layout in LAYOUTS:
            plan = plan_named("mma_tma_128x256", Operands.of(dtype, layout=layout))
            assert (plan.cta_tile[:2], plan.stages, plan.body.kind) == ((128, 256), 4, "cooperative")
    text = "mma_tma:block=128x128x32,warp=64x32,stages=3,ctas=7,store=direct,mma_order=m"
    plan = plan_named(text, Operands.of("f32", layout="tt"))
    assert (plan.operands.a.dtype.name, plan.stages, plan.scheduler.grid.ctas) == ("tf32", 3, 7)


@pytest.mark.parametrize(
    ("operands", "options", "words"),
    [
        ({}, {"arch": "sm_80"}, "tma.load.64x64.bf16.128B needs sm_90; sm_80 does not support it"),
        (
            {},
            {"warp": (24, 32)},
            "bM = 64 does not divide into warp tiles of 24, which hold whole atoms of 16",
        ),
        (
            {"align_bytes": 8},
            {},
            "A is aligned to 8 bytes; TMA needs an alignment of 16 bytes",
        ),
        ({"dtype": "tf32", "layout": "tn"}, {"warp": (16, 32)}, "whole atoms of 16 and lines of 128 bytes"),
        ({"layout": "tn"}, {"block": (96, 64, 64), "warp": (48, 32)}, "48 along M end within lines"),
        ({}, {"block": (64, 64, 48)}, "an even number of k-blocks"),
        ({}, {"store": "tma"}, "store = 'tma' is neither 'shared' nor 'direct'"),
        ({}, {"stages": 1}, "stages = 1; a mainloop pipeline has at least 2"),
        ({}, {"block": (256, 128, 64), "warp": (64, 64), "arch": "sm_90"}, "leave 168 each"),
    ],
)
def test_what_is_refused(operands, options, words):
    of = Operands.of(**{"dtype": "bf16", "layout": "nt", **operands})
    small = {**SMALL, "block": (64, 64, 1024 // of.a.dtype.bits)}
    with pytest.raises(PlanError, match=words):
        mma_tma_plan(of, **{**small, **options})


def test_what_a_plan_cannot_become():
    plan = form("tma_bf16_nt")
    pipeline = plan.body
    for changes, words in (
        ({"body": replace(pipeline, kind="pingpong")}, "not pingpong ones of 1 warps"),
        ({"body": replace(pipeline, consumer_tile=(32, 16))}, "each do not fill a tile of 64 x 64"),
        (
            {"tiled_mma": TiledMma(plan.tiled_mma.atom, (2, 2, 1))},
            r"is not \(atom, consumers, atoms of a consumer\) along M and N.",
        ),
        (stream_changes(plan, read_a=None), "a.read or b.read is None; both are needed, because"),
        ({"scheduler": replace(plan.scheduler, split=KSplit(2, reduction="last"))}, "consumers that are single warps"),
        ({"body": replace(pipeline, stagger_cycles=9)}, "consumers that are single warps do not support split-K"),
        ({"cluster_mn": (1, 2)}, "consumers that are single warps do not support clusters. Leave cluster out."),
        ({"roles": plan.roles[1:]}, "the roles are consumer 0"),
    ):
        with pytest.raises(PlanError, match=words):
            plan.with_(**changes)
    by_threads = mma_sync_plan(Operands.of("bf16", layout="nt"), **SMALL)
    with pytest.raises(
        PlanError, match=r"a TMA load needs warp roles; in a thread schedule all threads load. Use a tiled copy."
    ):
        by_threads.with_stream("a", load=plan.a.load)
