"""Orders of accumulation: what a plan's value says is what the simulated and the emulated kernel do."""

from __future__ import annotations

import numpy as np
import pytest

from cutegemm.build import gemv_plan, mma_sync_plan, simt_plan, sm90_plan
from cutegemm.dtypes import round_to
from cutegemm.plan import Operands, Problem
from cutegemm.plan.accumulation import Chain, Instruction, Sum
from cutegemm.run.emulated import emulate
from cutegemm.simulator import simulate
from tests.orders import in_order

NT = Operands.of("bf16", layout="nt", out="f32")
E4M3 = Operands.of("e4m3", layout="nt", out="f32")
SIMT = {"block": (32, 32, 8), "warp": (32, 32), "thread": (8, 4)}


def factors(operands, m, n, k):
    """Numbers of very different size, whose sum depends on the order of the additions."""
    rng = np.random.default_rng(m + n + k)
    shapes = ((operands.a, (m, k)), (operands.b, (k, n)))
    return [
        round_to(each.dtype, (rng.standard_normal(s) * 2.0 ** rng.integers(-4, 4, s)).astype(np.float32))
        for each, s in shapes
    ]


@pytest.mark.parametrize(
    ("plan", "k", "total"),
    [
        # A chain covers whole k-tiles: zeros after K by TMA, before the first k by copies of threads
        (sm90_plan(NT, tile=(64, 64, 64)), 100, Chain(((0, 128),))),
        (simt_plan(**SIMT), 20, Chain(((-4, 20),))),
        # 5 k-tiles in 2 splits: 3 and 2, of 64 k
        (sm90_plan(NT, tile=(64, 64, 64), split_k=2), 320, Sum((Chain(((0, 192),)), Chain(((192, 320),))))),
        (sm90_plan(NT, tile=(64, 64, 64), cluster_k=2), 320, Sum((Chain(((0, 192),)), Chain(((192, 320),))))),
        (sm90_plan(E4M3, tile=(64, 64, 128), promoted=True), 256, Sum((Chain(((0, 128),)), Chain(((128, 256),))))),
        # Threads scale the accumulators of a K split before another CTA adds them
        (simt_plan(**SIMT, split_k=2), 32, Sum((Chain(((0, 16),)), Chain(((16, 32),))), "alpha * acc")),
        (
            simt_plan(**SIMT, split_k=2, split_order="strided"), 32,
            Sum((Chain(((0, 8), (16, 24))), Chain(((8, 16), (24, 32)))), "alpha * acc"),
        ),
    ],
    ids=lambda value: getattr(value, "name", None),
)  # fmt: skip
def test_totals(plan, k, total):
    order = plan.accumulation_order(Problem(96, 96, k, operands=plan.operands))
    assert order.totals == (total,)
    assert order.is_uniform


def test_stream_k_has_an_order_for_each_kind_of_tile():
    """6 tiles of 16 k-tiles on 4 CTAs: 2 tiles are shared by 4 CTAs, the other 4 are whole."""
    plan = sm90_plan(NT, tile=(64, 64, 64), stream=1, ctas=4)
    order = plan.accumulation_order(Problem(64, 384, 1024))
    halves = Sum((Chain(((0, 512),)), Chain(((512, 1024),))))
    assert set(order.totals) == {halves, Chain(((0, 1024),))}
    assert not order.is_uniform
    assert plan.accumulation_order(Problem(64, 256, 1024)).totals == (Chain(((0, 1024),)),)


def test_orders_of_other_tiles_stages_and_schedules_are_equal():
    problem = Problem(512, 512, 512)
    plans = [
        sm90_plan(NT, tile=(64, 64, 64)),
        sm90_plan(NT, tile=(128, 192, 64), cluster=(2, 1)),
        sm90_plan(NT, tile=(128, 128, 128), schedule="cooperative", stages=2),
    ]
    (order,) = {plan.accumulation_order(problem) for plan in plans}
    assert order.instruction == Instruction("wgmma", 16, "bf16 x bf16 -> f32")
    others = [mma_sync_plan(NT), gemv_plan(NT), sm90_plan(Operands.of("f16", layout="nt", out="f32"))]
    assert all(plan.accumulation_order(problem) != order for plan in others)


def test_swapped_plans_have_the_types_of_the_caller():
    mixed = Operands.of("e5m2", b="e4m3", layout="nt", out="f32")
    plan = sm90_plan(mixed, tile=(64, 64, 128)).with_(swap_ab=True)
    assert plan.accumulation_order(Problem(64, 64, 512)).instruction.types == "e4m3 x e5m2 -> f32"


def test_integers_are_exact_in_any_order():
    operands = Operands.of("s8", layout="nt", out="s32")
    split = sm90_plan(operands, tile=(64, 64, 128), split_k=4).accumulation_order(Problem(64, 64, 4096))
    assert split == sm90_plan(operands, tile=(128, 128, 128)).accumulation_order(Problem(64, 64, 4096))
    assert str(split) == "s8 x s8 -> s32: exact in any order"


@pytest.mark.parametrize(
    "plan",
    [
        simt_plan(**SIMT),
        simt_plan(**SIMT, split_k=3),
        simt_plan(**SIMT, split_k=3, split_order="strided"),
        mma_sync_plan(NT, block=(64, 64, 32), warp=(32, 32)),
        gemv_plan(NT, tile=(16, 8), warps=4),
        gemv_plan(NT, tile=(32, 8), warps=4, cluster=2, vectors=2),
    ],
    ids=lambda plan: f"{plan.name}-{plan.scheduler.split.splits}-{plan.scheduler.split.order}-{plan.cluster_k}",
)
def test_the_simulator_adds_in_this_order(plan):
    m, n, k = 36, 24, 1000
    a, b = factors(plan.operands, m, n, k)
    order = plan.accumulation_order(Problem(m, n, k, operands=plan.operands))
    (total,) = order.totals
    plain = type(order)(order.instruction, (Sum(total.terms) if isinstance(total, Sum) else total,))  # alpha is 1
    expected = in_order(plain, a, b, fused=False)
    assert np.array_equal(simulate(plan, a, b).d, expected)
    assert not np.array_equal(expected, a @ b)


@pytest.mark.parametrize(
    "plan",
    [
        sm90_plan(NT, tile=(64, 64, 64)),
        sm90_plan(NT, tile=(64, 16, 128), schedule="single"),
        sm90_plan(NT, tile=(128, 32, 64), schedule="cooperative", split_k=2),
        sm90_plan(NT, tile=(64, 64, 64), cluster_k=2),
        gemv_plan(NT, tile=(16, 8), warps=4),
    ],
    ids=lambda plan: f"{plan.name}-{plan.body}"[:40],
)
def test_compiled_kernels_add_in_this_order(plan):
    """The emulator executes the PTX of the kernel. It adds the products of an instruction exactly, and rounds once."""
    pytest.importorskip("cutlass.cute", reason="the CuTe DSL is not installed")
    m, n, k = 40, 48, 512
    a, b = factors(plan.operands, m, n, k)
    order = plan.accumulation_order(Problem(m, n, k, operands=plan.operands))
    expected = in_order(order, a, b)
    assert np.array_equal(emulate(plan, a, b, check_races=False).d, expected)
    assert not np.array_equal(expected, (a.astype(np.float64) @ b).astype(np.float32))
