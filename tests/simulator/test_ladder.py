"""The SIMT ladder, packing, split K and plans without shared memory, simulated: right, and their faults seen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cutegemm.build import simt_plan
from cutegemm.choice.ladders.simt import SIMT_LADDER
from cutegemm.layout import Layout
from cutegemm.plan import Operands
from cutegemm.plan.work.scheduler import WorkGrid
from cutegemm.simulator import simulate
from cutegemm.simulator.report import Report
from cutegemm.simulator.split_k import SplitKWorkspace
from cutegemm.simulator.tables import plan_tables
from tests.simulator.plans import WARPS, violations

LAYOUTS = ("nn", "nt", "tn", "tt")


def right(plan, m, n, k, *, alpha=1.0, beta=0.0, batch=None):
    rng = np.random.default_rng(m + 7 * n + 49 * k)
    front = () if batch is None else (batch,)
    a, b, c = (rng.integers(-4, 4, (*front, *shape)).astype(np.float32) for shape in ((m, k), (k, n), (m, n)))
    d = simulate(plan, a, b, c, alpha=alpha, beta=beta).d
    return (d == alpha * (a @ b) + beta * c).all()


@pytest.mark.parametrize("step", SIMT_LADDER.steps, ids=lambda step: step.name)
def test_steps(step):
    for layout, align, shape in (
        ("nn", 4, (131, 259, 37)),
        ("nt", 16, (132, 36, 68)),
        ("nn", 16, (4, 260, 4)),
    ):
        plan = step.build(Operands.of("f32", layout=layout, align_bytes=align))
        assert plan.name == step.name
        assert right(plan, *shape, alpha=2, beta=0.5)


@pytest.mark.parametrize("reduction", ["kernel", "last"])
@pytest.mark.parametrize("order", ["strided", "blocked"])
@pytest.mark.parametrize("splits", [2, 3, 8])
def test_split(splits, order, reduction):
    plan = simt_plan(
        Operands.of("f32", align_bytes=4, batched=True), stages=3, split_k=splits, split_order=order,
        reduction=reduction, **WARPS,
    )  # fmt: skip
    for k in (0, 1, 8, 17, 100):  # fewer k-tiles than parts, and parts that do not divide them
        assert right(plan, 65, 70, k, alpha=2, beta=0.5, batch=2)


@pytest.mark.parametrize(("waves", "persistent"), [(1, 5), (2, 7), (1, 1), (3, 64)])
def test_k_tiles_that_are_shared_evenly(waves, persistent):
    plan = simt_plan(
        Operands.of("f32", align_bytes=4, batched=True), stages=3, waves=waves, persistent=persistent, **WARPS
    )
    for shape in ((65, 70, 0), (65, 70, 3), (200, 70, 300), (64, 64, 500)):
        assert right(plan, *shape, alpha=2, beta=0.5, batch=2)


@pytest.mark.parametrize("out_major", "mn")
@pytest.mark.parametrize(("dtype", "align"), [("f32", 4), ("f32", 8), ("f16", 4), ("f64", 8)])
def test_d_through_shared_memory(dtype, align, out_major):
    ops = Operands.of(dtype, align_bytes=align, out_major=out_major)
    plan = simt_plan(ops, stages=2, quad=(2, 2) if dtype == "f64" else (4, 4), **WARPS)
    assert plan.store.layout is not None
    assert right(plan, 66, 70, 20, alpha=2, beta=0.5)


@pytest.mark.parametrize("out_major", "mn")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("align", [16, 4])
def test_packed(layout, align, out_major):
    ops = Operands.of("f32", layout=layout, align_bytes=align, out_major=out_major, batched=True)
    for repack in ("a", "b", "ab"):
        plan = simt_plan(ops, stages=3, repack=repack, split_k=2, **WARPS)
        for shape in ((132, 68, 140),) if align == 16 else ((67, 130, 65), (1, 1, 1), (65, 3, 0)):
            assert right(plan, *shape, alpha=2, beta=0.5, batch=2)


@pytest.mark.parametrize("dtype", ["f64", "f16", "bf16"])
def test_packed_types(dtype):
    plan = simt_plan(Operands.of(dtype, layout="nt"), stages=2, repack="ab", quad=(2, 2), **WARPS)
    assert right(plan, 72, 72, 72)


def kinds(plan, m=72, n=72, k=72):
    a, b = np.ones((m, k), np.float32), np.ones((k, n), np.float32)
    return {fault.kind for fault in simulate(plan, a, b, check="report").faults}


def test_packing_that_loses_elements():
    plan = simt_plan(Operands.of("f32", layout="nt"), stages=3, repack="a", **WARPS)
    repack = plan.repacks[0]
    assert kinds(plan) == set()
    overlapping = replace(repack, smem=Layout((64, 64, 1), (1, 32, 4096)))
    assert "copy" in kinds(violations(plan, repacks=(overlapping,)))
    torn = replace(repack, smem=Layout((64, 64, 1), (1, 65, 4160)))
    assert "alignment" in kinds(violations(plan, repacks=(torn,)))


def test_a_part_that_is_left_out():
    plan = simt_plan(stages=3, split_k=2, **WARPS)
    assert kinds(plan) == set()

    class Short(type(plan.scheduler.split)):
        def k_range(self, part, k_tiles, minimum=min):
            first, count = super().k_range(part, k_tiles, minimum)
            return first, count - part

    short = object.__new__(Short)
    for name, value in vars(plan.scheduler.split).items():
        object.__setattr__(short, name, value)
    a = np.ones((72, 72), np.float32)
    assert not (
        simulate(violations(plan, scheduler=replace(plan.scheduler, split=short)), a, a, check="report").d == 72
    ).all()


def test_sums_that_go_to_the_same_place():
    """Two parts of one epilogue stage, and one of an epilogue stage that is not there."""
    plan = simt_plan(stages=3, split_k=2, **WARPS)
    workspace = SplitKWorkspace(plan, plan_tables(plan), 2, report := Report())
    accumulators = np.zeros((*workspace.shape, 1))
    workspace.write(np.array([0]), accumulators)
    assert report.faults() == ()
    workspace.write(np.array([0]), accumulators)
    assert {fault.kind for fault in report.faults()} == {"result"}
    workspace.write(np.array([2]), accumulators)
    assert {fault.kind for fault in report.faults()} == {"result", "outside"}


def test_k_tiles_that_two_work_tiles_take(monkeypatch):
    """Work tiles that do not begin their tile take a k-tile more than is theirs."""
    plan = simt_plan(stages=3, waves=1, persistent=3, **WARPS)
    assert kinds(plan, 64, 64, 640) == set()
    real = WorkGrid.work_tile

    def greedy(self, number):
        found = real(self, number)
        return replace(found, k_count=found.k_count + (found.k_first > 0))

    monkeypatch.setattr(WorkGrid, "work_tile", greedy)
    assert "product" in kinds(plan, 64, 64, 640)


def test_a_step_without_shared_memory_reads_only_what_is_there():
    plan = SIMT_LADDER.steps[0].build()
    assert plan.smem_bytes() == {"a": 0, "b": 0}
    result = simulate(plan, np.ones((40, 44), np.float32), np.ones((44, 36), np.float32))
    assert result.stats.loaded_a_elems == 40 * 44 * 64  # each row by the lanes of two CTAs
    assert (result.d == 44).all()
