"""The ladder's steps, packing, split K: what they are, what they refuse, and what is chosen."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from cutegemm.build import simt_plan
from cutegemm.choice.catalog import choose, plan_named, plans, ranked
from cutegemm.choice.ladders.simt import SIMT_LADDER
from cutegemm.choice.simt.named import LARGE_REPACKED
from cutegemm.errors import PlanError
from cutegemm.layout import Layout
from cutegemm.plan import Operands, Problem
from cutegemm.plan.memory.repack import make_repack
from cutegemm.plan.memory.workspace import regions, workspace_bytes
from cutegemm.plan.work.split import KSplit

F32 = Operands.of("f32")


def test_all_fifteen_steps_are_listed_with_a_reason():
    assert sorted({step.number for step in SIMT_LADDER.steps}) == list(range(1, 16))
    listed = dict(plans())
    for step in SIMT_LADDER.steps:
        assert step.change in listed[step.name]
        assert len(step.why) > 10
        assert plan_named(step.name, F32).name == step.name
    assert len({step.name for step in SIMT_LADDER.steps}) == len(SIMT_LADDER.steps)


def test_what_the_steps_say_of_themselves():
    built = {step.name: step.build() for step in SIMT_LADDER.steps}
    assert (built["sgemm_01_naive"].stages, built["sgemm_01_naive"].cta_tile) == (0, (32, 32, 1))
    assert built["sgemm_02_tiles"].threads == 1024
    assert built["sgemm_02_tiles"].key() == built["sgemm_03_hoisted"].key()
    assert built["sgemm_05_row_of_4"].threads == built["sgemm_06_vectors"].threads == 256
    assert {built["sgemm_05_row_of_4"].a.load.atom.bits, built["sgemm_06_vectors"].a.load.atom.bits} == {
        32,
        128,
    }
    assert [built[f"sgemm_14_async_{n}"].stages for n in (3, 4, 5)] == [3, 4, 5]
    assert built["sgemm_14_async_3"].a.load.atom.is_async
    assert built["sgemm_15_best"].repacks[0].name == "a"


@pytest.mark.parametrize("order", ["strided", "blocked"])
def test_parts_cover_the_k_tiles_once(order):
    for parts in (1, 2, 3, 7):
        split = KSplit(parts, order)
        for k_tiles in range(20):
            taken = []
            for part in range(parts):
                first, count = split.k_range(part, k_tiles)
                assert count >= 0
                taken += [first + i * split.k_step for i in range(count)]
            assert sorted(taken) == list(range(k_tiles))


def test_what_is_refused_is_said_at_once():
    with pytest.raises(PlanError) as caught:
        simt_plan(repack="ac", split_k=0, reduction="later", split_order="random", stages=-2)
    for part in ("repack = 'ac'", "splits = 0", "reduction = 'later'", "order = 'random'", "stages = -2"):
        assert part in str(caught.value)
    with pytest.raises(PlanError) as caught:
        simt_plan(stages=0)
    rule = "stages = 0, without shared memory, needs bK = 1; block = (128, 128, 16). Use stages of 1 or more."
    assert caught.value.violations == (rule,)
    with pytest.raises(PlanError) as caught:
        simt_plan(waves=1, persistent=0)
    assert "a persistent grid of 0 CTAs; expected 1 to 65536" in str(caught.value)
    with pytest.raises(PlanError) as caught:
        simt_plan(waves=1, reduction="last", store="shared", persistent=132)
    for part in ("not 'blocked' and 'last'", "if K is split, D is stored from registers. Use store = "):
        assert part in str(caught.value)
    with pytest.raises(PlanError, match="stream-K of a thread schedule needs a persistent grid, and a persistent grid"):
        simt_plan(waves=1)
    with pytest.raises(PlanError, match="stream-K of a thread schedule needs a persistent grid, and a persistent grid"):
        simt_plan(persistent=132)
    with pytest.raises(PlanError, match=r"without stages of shared memory D is stored from registers. Use store = "):
        simt_plan(block=(32, 32, 1), warp=(1, 32), thread=(1, 1), quad=(1, 1), stages=0, store="shared")
    with pytest.raises(PlanError, match="store = 'slow' is neither 'direct' nor 'shared'"):
        simt_plan(store="slow")


def test_packing_makes_operands_what_the_mainloop_likes():
    ops = Operands.of("f32", layout="nt", align_bytes=4)
    plan = simt_plan(ops, repack=LARGE_REPACKED.to_repack(ops), stages=3)
    assert (plan.operands.a.major, plan.operands.a.align_bytes) == ("k", 4)
    assert (plan.loaded.a.major, plan.loaded.b.major, plan.loaded.b.align_bytes) == ("m", "n", 16)
    assert plan.a.load.atom.is_async
    assert plan.a.load.atom.bits == 128
    for name in "ab":
        repack = make_repack(ops, name, "mn"["ab".index(name)])
        assert repack.run(np.array([0, 1, 32, 33, 64, 4097])).tolist() == [0, 32, 32, 64, 64, 4128]


def test_the_workspace_holds_what_is_written_to_it():
    plan = simt_plan(Operands.of("f32", layout="nt"), repack="ab", split_k=3, reduction="last")
    found = regions(plan, 100, 300, 64, 1)
    assert [region.name for region in found] == ["arrivals", "a", "b", "accumulators"]
    for before, after in itertools.pairwise(found):
        assert before.first + before.size == after.first
        assert after.first % 256 == 0
    tiles = 1 * 3
    assert found[0].size >= 4 * tiles
    assert found[1].size >= 4 * 100 * 64
    assert found[3].size >= 4 * 3 * tiles * 128 * 128
    assert workspace_bytes(plan, Problem(100, 300, 64))[1] == found[0].size


def test_suffixes_of_names():
    ops = Operands.of("f32", layout="nt")
    plan = plan_named("simt_128x128+repack/k4last", ops)
    assert ([p.name for p in plan.repacks], plan.scheduler.split) == (["a", "b"], KSplit(4, "blocked", "last"))
    assert plan_named("simt_128x128+repack", Operands.of("f32", layout="tn")).repacks == ()
    assert plan_named("simt_64x64/k12", ops).scheduler.split.reduction == "kernel"
    shared = plan_named("simt_128x256x16+repack/s132", ops)
    assert (shared.cta_tile, shared.scheduler.split, shared.scheduler.grid.ctas) == (
        (128, 256, 16),
        KSplit(waves=1),
        132,
    )
    assert "132 persistent" in " ".join(shared.describe().split())


@pytest.mark.parametrize("out_major", "mn")
@pytest.mark.parametrize(("align", "store"), [(4, 32), (8, 64), (16, 128)])
def test_narrow_d_leaves_through_shared_memory_by_lines(align, store, out_major):
    """A thread holds 4 neighbours: of a D aligned to less it would write every fourth element of a line."""
    plan = plan_named("simt_128x128", Operands.of("f32", align_bytes=align, out_major=out_major))
    assert plan.store.atom.bits == store
    assert (plan.store.layout is None) == (align == 16)
    if plan.store.layout is not None:
        lanes = plan.store.line_copy.offsets_s(Layout((128, 128), (128, 1) if out_major == "n" else (1, 128)))[
            :32, :, 0, 0
        ]
        assert (np.sort(lanes.reshape(-1)) == np.arange(lanes.size)).all()  # a warp copies one run
    assert plan_named("simt_128x128/k2", Operands.of("f32", align_bytes=align)).store.layout is None


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_the_choice(layout):
    ops = Operands.of("f32", layout=layout)

    def chosen(m, n, k):
        return choose(ops, Problem(m, n, k, operands=ops))

    assert chosen(256, 256, 131072).split_k > 16
    assert chosen(16, 8192, 8192).scheduler.split.is_split
    assert chosen(16, 8192, 8192).cta_tile[0] <= 32
    assert chosen(8192, 8192, 8192).split_k == 1
    assert {p.name for p in chosen(8192, 8192, 8192).repacks} == set(LARGE_REPACKED.to_repack(ops))
    assert len(list(ranked(ops, Problem(512, 512, 512, operands=ops)))) > 10
