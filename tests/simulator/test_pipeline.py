"""Hopper plans on the CPU: exact for integers in every form, and faults planted in each part are found."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cutegemm.build import sm90_plan
from cutegemm.choice.catalog import plan_named
from cutegemm.dtypes import round_to
from cutegemm.errors import PlanError, SimulationError
from cutegemm.layout import ComposedLayout, Layout, Swizzle, product
from cutegemm.plan import Operands, Persistent, Problem
from cutegemm.simulator import (
    play_interleavings,
    protocol_of,
    simulate,
)
from cutegemm.tile.raster import Raster
from cutegemm.tile.tiled_copy import TiledCopy
from cutegemm.tile.tiled_mma import TiledMma
from cutegemm.tile.tma import TmaBox
from tests.kernels.sm90_forms import covering, fitting, form, on_few_ctas
from tests.simulator.plans import violations

BF16 = Operands.of("bf16", layout="nt")
SMALL = {"tile": (64, 64, 64), "epi_tile_n": 32, "ctas": 3}


def integers(*shapes, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(-3, 4, shape).astype(np.float32) for shape in shapes]


def faults_of(plan, m=70, n=136, k=100, **options):
    a, b = integers((m, k), (k, n))
    return {fault.kind: fault for fault in simulate(plan, a, b, check="report", **options).faults}


@pytest.mark.parametrize("name", covering())
def test_forms_are_exact_on_ragged_extents(name):
    plan = on_few_ctas(name)
    bm, bn, bk = plan.cta_tile
    d = plan.operands.d
    for shape in ((bm + 9, 2 * bn + 11, 2 * bk + 5), (3, 5, 0)):
        m, n, k = fitting(plan, *shape)
        batch = (2,) if plan.operands.batched else ()
        a, b, c = integers((*batch, m, k), (*batch, k, n), (*batch, m, n))
        if plan.has_c:
            got, want = simulate(plan, a, b, c, alpha=2, beta=-1).d, 2 * (a @ b) - c
        else:
            got, want = simulate(plan, a, b).d, a @ b
        assert np.array_equal(got, round_to(d.dtype, want))


@pytest.mark.parametrize(("kind", "largest"), [("e4m3", 448), ("e5m2", 57344)])
@pytest.mark.parametrize("store", ["tma", "direct"])
def test_bytes_saturate(kind, largest, store):
    """As cvt.rn.satfinite does: what lies past the largest value becomes it, and 17 of 16, 18 rounds to even."""
    plan = sm90_plan(Operands.of(kind, layout="nt"), tile=(64, 128, 128), ctas=2, store=store)
    a, b = np.ones((64, 128), np.float32), np.zeros((128, 128), np.float32)
    b[:, 0], b[:, 1], b[0, 2], b[:17, 3], b[:19, 4] = 448, -448, 1, 1, 1
    found = simulate(plan, a, b, alpha=1.0).d[5, :6].tolist()
    assert found == [largest, -largest, 1, 16, 20, 0]
    assert simulate(plan, a, b, alpha=0.001).d[5, 0] == round_to(plan.operands.d.dtype, 57.344)


def test_c_is_not_read_where_beta_is_0():
    a, b = integers((70, 100), (100, 136))
    assert np.array_equal(simulate(form("c"), a, b).d, round_to(BF16.d.dtype, a @ b))
    with pytest.raises(PlanError, match="cannot read C"):
        simulate(form("pingpong"), a, b, a @ b, beta=1)


@pytest.mark.parametrize("raster", ["along_m", "along_n", "grouped_m:2", "grouped_n:3"])
@pytest.mark.parametrize("cluster", [(1, 1), (2, 1), (1, 2), (2, 2)])
def test_rasters_of_clusters(cluster, raster):
    plan = sm90_plan(**{**SMALL, "ctas": 4}, cluster=cluster, raster=raster)
    a, b = integers((64 * 5 - 3, 70), (70, 64 * 3))
    assert np.array_equal(simulate(plan, a, b).d, round_to(BF16.d.dtype, a @ b))


@pytest.mark.parametrize("cluster", [(1, 1), (2, 1), (1, 2), (2, 2)])
def test_a_cta_past_the_edge_loads_the_last_tile_again(cluster):
    """Three tiles along M and along N, in clusters of two: the fourth is the third once more."""
    plan = sm90_plan(**{**SMALL, "ctas": 4}, cluster=cluster)
    a, b = integers((64 * 3 - 8, 64), (64, 64 * 3 - 16))
    loaded = [64 * 3 - 8, 64 * 3 - 16]  # rows of A, and columns of B
    tiles = [3, 3]
    for mode, ctas in enumerate(cluster):
        if ctas == 2:
            loaded[mode], tiles[mode] = loaded[mode] + (64 - 8 * (mode + 1)), 4
    found = simulate(plan, a, b)
    assert np.array_equal(found.d, round_to(BF16.d.dtype, a @ b))
    stats = found.stats
    assert (stats.loaded_a_elems, stats.loaded_b_elems) == (
        64 * loaded[0] * tiles[1],
        64 * loaded[1] * tiles[0],
    )


# --- planted faults ----------------------------------------------------------------------------------------


def test_another_swizzle_than_that_of_tma():
    plan = sm90_plan(**SMALL)
    other = violations(plan, smem_a=ComposedLayout(Swizzle(2, 3, 3), 0, plan.a.smem.outer))
    assert "TMA puts A(m 4, k 0)" in str(faults_of(other)["copy"])


def test_boxes_that_do_not_end_with_the_tile():
    plan = sm90_plan(**SMALL)
    found = faults_of(violations(plan, load_b=TmaBox("load", BF16.b.dtype, (64, 48), "128B")))
    assert "a box of B reaches (64, 0), past a tile of (64, 64)" in str(found["copy"])


def test_stages_that_overlap():
    plan = sm90_plan(**SMALL)
    outer = plan.a.smem.outer
    near = Layout(outer.shape, (*outer.stride[:2], 64 * 32))
    found = faults_of(violations(plan, smem_a=ComposedLayout(plan.a.smem.inner, 0, near)))
    assert "overlaps another copy" in str(found["shared"])


def test_registers_that_stand_for_other_elements():
    plan = sm90_plan(**SMALL)
    turned = Layout(((4, 8, 4), (2, 2, 2)), ((128, 1, 16), (64, 512, 8)))
    copy = TiledCopy(plan.store.to_shared.atom, turned, (64, 16))
    found = faults_of(violations(plan, store=replace(plan.store, to_shared=copy)))
    assert "stores as D(m" in str(found["fragment"])
    assert found["fragment"].count > 100


def test_slots_swizzled_another_way_than_the_store():
    plan = sm90_plan(**SMALL)
    store = replace(plan.store.box, swizzle="none")
    found = faults_of(violations(plan, store=replace(plan.store, box=store)))
    assert "D(m" in str(found["copy"])


def test_threads_that_copy_another_layout_of_a_slot():
    plan = sm90_plan(**SMALL, shared_d="padded")
    half = TiledCopy(plan.store.line_copy.atom, Layout(((4, 32), 8), ((512, 2), 64)), (64, 32))
    found = faults_of(violations(plan, store=replace(plan.store, copy=half)))
    assert "D(m 1, n 0) of a tile is copied by no box" in str(found["copy"])
    assert "is written 0 times" in str(found["result"])
    dense = Layout((64, 32, 2, 2), (32, 1, 2048, 4096))
    assert faults_of(violations(plan, store=replace(plan.store, smem=dense))) == {}  # without padding: only slower


def test_consumers_whose_rows_are_not_their_own():
    plan = sm90_plan(schedule="cooperative", tile=(256, 64, 64))
    interleaved = TiledMma(plan.tiled_mma.atom, Layout((2, 1, 1)))
    found = faults_of(violations(plan, tiled_mma=interleaved), m=256)
    assert "outside of the consumer's tile" in str(found["product"])


def test_a_store_past_the_end_of_a_row():
    """TMA writes whole 16 bytes: with 43 columns it writes 48."""
    plan = sm90_plan(**SMALL)
    a, b = integers((70, 100), (100, 43))
    problem = Problem(70, 43, 100, operands=BF16, ld=(("a", 104), ("b", 104), ("c", 48), ("d", 48)))
    with pytest.raises(PlanError, match="D has 43 elements along n"):
        simulate(plan, a, b, problem=problem)
    found = {f.kind: f for f in simulate(plan, a, b, problem=problem, check="report").faults}
    assert found["outside"].count == 70 * 5
    assert "it writes units of 16 bytes" in str(found["outside"])


def test_a_raster_that_drops_a_tile():
    class Dropping(Raster):
        def tile(self, linear, grid_m, grid_n, minimum=min, *others):
            m, n, batch = Raster("along_m").tile(linear, grid_m, grid_n, minimum, *others)
            return m, n * 0, batch

    plan = sm90_plan(**SMALL)
    found = faults_of(violations(plan, scheduler=replace(plan.scheduler, raster=Dropping())))
    assert "no CTA takes the tile (0, 1, 0)" in str(found["raster"])
    assert "CTAs take the tile (0, 0, 0)" in str(found["raster"])


def test_faults_are_raised_by_default():
    plan = sm90_plan(**SMALL)
    other = violations(plan, smem_b=ComposedLayout(Swizzle(1, 3, 3), 0, plan.b.smem.outer))
    a, b = integers((70, 100), (100, 136))
    with pytest.raises(SimulationError, match="TMA puts B"):
        simulate(other, a, b)


# The others have the program of one of these, for other tiles, rasters or the other way round.
OTHER_PROGRAMS = (
    "sm90_multistage", "sm90_specialized", "sm90_persistent", "sm90_pingpong", "sm90_tma_plain", "sm90_padded",
    "sm90_epi_stages", "sm90_cluster_2x1", "sm90_cooperative_2x1", "sm90_overlapped_2x1", "sm90_64x128", "sm90_split",
    "sm90_stream", "sm90_fixup",
)  # fmt: skip


@pytest.mark.parametrize("name", OTHER_PROGRAMS)
def test_the_programs_of_named_plans_in_many_interleavings(name):
    plan = plan_named(name, BF16)
    most = 3 if plan.scheduler.grid.is_persistent else 1
    if plan.scheduler.split.is_split:
        plan = plan.with_scheduler(grid=Persistent(2 * product(plan.cluster_mn)))
    protocol = protocol_of(plan, k_tiles=2 * plan.stages + 1, tiles=most)
    assert play_interleavings(protocol, random_runs=1).faults == ()
