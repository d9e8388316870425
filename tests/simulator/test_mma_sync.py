"""mma.sync plans on the CPU: exact for integers whatever the form, and told where a step comes too early."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cutegemm.build import mma_sync_plan
from cutegemm.choice.catalog import plan_named
from cutegemm.choice.ladders.mma_sync import MMA_SYNC_LADDER, STEPS
from cutegemm.dtypes import bf16, round_to, tf32
from cutegemm.errors import SimulationError
from cutegemm.layout import ComposedLayout, Layout, Swizzle
from cutegemm.layout.layout import concatenate
from cutegemm.plan import Operands
from cutegemm.plan.program.operations import Arrive, EndRead, WaitStores
from cutegemm.plan.program.thread_schedule import Commit, Fetch, Sync, Wait
from cutegemm.simulator import play_interleavings, protocol_of, simulate
from cutegemm.tile.tiled_mma import TiledMma
from tests.kernels.mma_sync_forms import COVERING, form
from tests.marks import with_thorough
from tests.simulator.plans import violations

SMALL = {"block": (64, 64, 64), "warp": (32, 32)}


def integers(plan, m, n, k):
    """A, B and C of small integers, of extents that the plan allows, with a batch if the plan has one."""
    ops, rng = plan.operands, np.random.default_rng(0)
    unit = max(o.align_elems for o in (ops.a, ops.b, ops.c, ops.d))
    m, n, k = (-(-extent // unit) * unit for extent in (m, n, k))
    batch = (2,) if ops.batched else ()
    return [rng.integers(-2, 3, (*batch, *shape)).astype(np.float64) for shape in ((m, k), (k, n), (m, n))]


@pytest.mark.parametrize("name", COVERING)
def test_forms_are_exact(name):
    plan = form(name)
    bm, bn, bk = plan.cta_tile
    for shape in ((bm + 9, bn + 5, 2 * bk + 3), (3, 2 * bn, bk), (5, 7, 0)):
        a, b, c = integers(plan, *shape)
        d = simulate(plan, a, b, c, alpha=2, beta=-1).d
        assert np.array_equal(d, round_to(plan.operands.d.dtype, 2 * (a @ b) - c))


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("name", [named.name for named in MMA_SYNC_LADDER])
def test_the_ladder_is_exact(name, dtype):
    for layout in ("nt", "tn"):
        plan = plan_named(name, Operands.of(dtype, layout=layout))
        a, b, _ = integers(plan, plan.cta_tile[0] + 8, 80, 3 * plan.cta_tile[2] + 8)
        assert np.array_equal(simulate(plan, a, b).d, round_to(plan.operands.d.dtype, a @ b))


def test_each_step_of_the_ladder_is_another_plan():
    for dtype in ("f32", "f16", "bf16"):
        keys = [plan_named(name, Operands.of(dtype, layout="nt")).key() for name in STEPS]
        assert len(set(keys)) == len(STEPS) == 12


@pytest.mark.parametrize("rounding", ["rz", "rna"])
def test_tf32_is_rounded_as_the_plan_says(rounding):
    plan = mma_sync_plan(Operands.of("tf32"), block=(64, 64, 32), warp=(32, 32), rounding=rounding)
    a = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
    assert np.array_equal(simulate(plan, a, np.eye(64)).d, round_to(tf32, a, rounding))


@pytest.mark.parametrize(("rounding", "relative"), [("rz", 2.0**-9), ("rna", 2.0**-10)])
def test_tf32_is_within_the_stated_bound(rounding, relative):
    """Return the error of a product: two operands cut below 10 bits of mantissa, 2^-10 each, or rounded to nearest,
    half of it; and K accumulators in f32. The products themselves, of 11 by 11 bits, are exact."""
    plan = mma_sync_plan(Operands.of("tf32"), block=(64, 64, 32), warp=(32, 32), rounding=rounding)
    rng = np.random.default_rng(1)
    a, b = (rng.normal(size=shape).astype(np.float32) for shape in ((128, 512), (512, 64)))
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    magnitude, found = np.abs(wide_a) @ np.abs(wide_b), simulate(plan, a, b).d
    taken = round_to(tf32, a, rounding).astype(np.float64) @ round_to(tf32, b, rounding).astype(np.float64)
    assert (np.abs(found - taken) <= 512 * 2.0**-24 * magnitude).all()
    assert (np.abs(found - wide_a @ wide_b) <= (relative + 2.0**-20 + 512 * 2.0**-24) * magnitude).all()
    assert (np.abs(found - wide_a @ wide_b) > relative / 64 * magnitude).any()  # it is tf32, and not f32


def test_d_is_rounded_once():
    plan = mma_sync_plan(Operands.of("bf16"), **SMALL)
    a, b = (round_to(bf16, np.random.default_rng(i).normal(size=(64, 64))) for i in (0, 1))
    off = np.abs(simulate(plan, a, b).d - a.astype(np.float64) @ b)
    assert (off <= 2.0**-8 * np.abs(a.astype(np.float64) @ b) + 1e-5).all()


def faults(plan, **changes):
    """Return the faults of a plan that was changed without checking its rules."""
    wrong = violations(plan, **changes)
    a, b, c = integers(plan, 128, 128, 320)
    with pytest.raises(SimulationError) as caught:
        simulate(wrong, a, b, c, beta=1)
    return str(caught.value)


def without(steps, kind):
    return tuple(step for step in steps if not isinstance(step, kind))


def changed(plan, change):
    return replace(plan.body, k_tile=tuple(change(step) for step in plan.body.k_tile))


def test_a_read_before_its_group_was_waited_for():
    plan = mma_sync_plan(**SMALL)
    late = changed(plan, lambda s: Wait(s.pending + 1) if isinstance(s, Wait) else s)
    assert "its copy has not been waited for" in faults(plan, body=late)
    never = replace(plan.body, k_tile=without(plan.body.k_tile, Commit))
    assert "its copy has not been waited for" in faults(plan, body=never)


def test_a_stage_without_a_barrier():
    plan = mma_sync_plan(**SMALL)
    assert "no barrier" in faults(plan, body=replace(plan.body, k_tile=without(plan.body.k_tile, Sync)))


def test_a_share_that_is_left_out():
    plan = mma_sync_plan(**SMALL)
    body = tuple(s for s in plan.body.k_tile if not (isinstance(s, Fetch) and s.chunk == 2))
    found = faults(plan, body=replace(plan.body, k_tile=body))
    assert "load chunk 3 of k-tile 2 is fetched when load chunk 2 is due." in found
    assert "has not been waited for" in found


def test_a_d_that_is_not_all_copied():
    plan = mma_sync_plan(**SMALL)
    threads, values = plan.store.line_copy.layout_tv[0], plan.store.line_copy.layout_tv[1]
    the_same = concatenate([Layout(threads.shape, (0, 0)), values])
    assert "is written 0 times" in faults(
        plan, store=violations(plan.store, copy=violations(plan.store.line_copy, layout_tv=the_same))
    )


def test_a_d_that_overlaps_itself():
    plan = mma_sync_plan(**SMALL)
    assert "have the same offset" in faults(plan, store=violations(plan.store, smem=Layout((64, 64), (32, 1))))


# --- a producer, and warps that consume --------------------------------------------------------------------


def texts(protocol, **options):
    return " | ".join(fault.text for fault in play_interleavings(protocol, **options).faults)


@pytest.mark.parametrize(
    "name", with_thorough(["tma_bf16_nt", "tma_two_blocks", "tma_eight_warps"], ["tma_eight_warps"])
)
def test_warps_that_consume_a_ring(name):
    plan = form(name)
    for k_tiles in (0, 1, plan.stages - 1, plan.stages, plan.stages + 1, 11):
        for tiles in (1, 3):
            assert texts(protocol_of(plan, k_tiles=k_tiles, tiles=tiles), random_runs=2) == ""
    protocol = protocol_of(plan, k_tiles=7, tiles=2)
    count = plan.body.consumers
    assert "overwritten stage" in texts(protocol.with_barrier("empty", arrivals=count - 1))
    assert "lacks 1 arrivals" in texts(protocol.with_barrier("empty", arrivals=count + 1))

    def forget(process, op):
        return None if isinstance(op, Arrive) and process.role == "consumer 2" else op

    def late(process, op):
        return None if isinstance(op, EndRead) and process.role == "consumer 1" else op

    def hasty(process, op):
        return WaitStores(plan.store.count) if op == WaitStores(plan.store.count - 1) else op

    assert "waits for parity" in texts(protocol.edited(forget))
    assert "which is being read: overwritten stage" in texts(protocol.edited(late))
    assert "overwritten epilogue stage" in texts(protocol.edited(hasty))


def test_fragments_that_are_read_from_a_wrong_place():
    """Of tf32 along M and N, a thread that takes 8 neighbours has not what its sums ask for."""
    plan = form("tma_tf32_tn")
    in_a_row = (Layout((16, 2, 2), (1, 32, 16)), Layout((8, 2, 4), (1, 32, 8)), None)
    mma = TiledMma(plan.tiled_mma.atom, plan.tiled_mma.atom_layout_mnk, in_a_row)
    assert "the accumulator of element" in faults(plan, tiled_mma=mma)
    swapped = ComposedLayout(Swizzle(3, 2, 4), 0, plan.a.smem.outer)
    assert "the layout of shared memory" in faults(plan, smem_a=swapped)
