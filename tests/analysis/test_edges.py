"""Ragged tiles: the kinds of a problem's tiles, and what they cost, against every tile one by one."""

from __future__ import annotations

import numpy as np
import pytest

from cutegemm.analysis import check, global_accesses, wavefronts
from cutegemm.analysis.accesses import by_warps, tile_shape
from cutegemm.analysis.edges import kinds_of
from cutegemm.build import mma_tma_plan, simt_plan, sm90_plan
from cutegemm.build.mma_sync import mma_sync_plan
from cutegemm.layout import Layout
from cutegemm.plan import Operands, Problem
from tests.analysis import naive


def test_kinds_count_every_tile_once():
    plan = simt_plan(Operands.of("f32", align_bytes=4), block=(64, 32, 8), warp=(32, 16), thread=(4, 4))
    problem = Problem(150, 70, 37, operands=plan.operands)
    grid_m, grid_n, k_tiles = 3, 3, 5
    for name, others in (("a", grid_n), ("b", grid_m)):
        kinds = kinds_of(plan, name, problem)
        assert sum(k.count for k in kinds) == grid_m * grid_n * k_tiles
        extent = problem.m if name == "a" else problem.n
        assert sum(k.count * k.elements for k in kinds) == extent * problem.k * others
    assert sum(k.count * k.elements for k in kinds_of(plan, "d", problem)) == 150 * 70


def test_columns_beside_a_tile_are_loaded_with_it():
    """Tiles of 112 columns along N as lines, 128: of 300 columns, the first two whole, 76 of the last one.

    Their lines begin 0, 224 and 448 bytes after the starts of the rows, which are 640 bytes apart: 0, 96 and 64 bytes
    into a line.
    """
    ops = Operands.of("bf16", layout="nn")
    plan = sm90_plan(ops, tile=(128, 112, 64))
    problem = Problem(128, 300, 64, operands=ops, ld=(("b", 320),))
    kinds = [(kind.last, kind.phase, kind.count) for kind in kinds_of(plan, "b", problem)]
    assert sorted(kinds) == [((76, 64), 64, 1), ((128, 64), 0, 1), ((128, 64), 96, 1)]
    load = next(part for part in global_accesses(plan, problem) if part.name == "load B")
    assert load.sectors == 64 * 2 * 4
    assert load.in_grid.requests == 3 * 2
    # Each of 64 rows has two boxes of four sectors; the last tile has one, and 24 bytes before four sectors of zeros
    assert load.in_grid.arriving == 64 * (2 * 8 + 4 + 1 + 4)


@pytest.mark.parametrize("layout", ["nn", "tt"])
@pytest.mark.parametrize("extents", [(150, 70, 37), (64, 64, 16), (31, 129, 9), (200, 33, 64)])
def test_sectors_in_lockstep_with_every_tile(layout, extents):
    """Loads and stores of every CTA and k-tile, lane by lane with sets of sectors."""
    ops = Operands.of("f32", layout=layout, align_bytes=4)
    plan = simt_plan(ops, block=(64, 32, 8), warp=(32, 16), thread=(4, 4), stages=2, store="direct")
    problem = Problem(*extents, operands=ops)
    found = {part.name: part for part in global_accesses(plan, problem)}
    k_first = problem.k - plan.k_tiles(problem) * 8
    for name, copy in (("a", plan.a.load), ("b", plan.b.load)):
        rows, columns = tile_shape(plan, name)
        elements = by_warps(copy.offsets_s(Layout((rows, columns))))
        stride, extent = problem.layout(name).stride, problem.layout(name).shape[0]
        requests = total = 0
        for row in range(0, extent, rows):
            for k in range(k_first, problem.k, columns):
                for warp in elements:
                    for one in warp[:, :: copy.atom.values].T:
                        asked = [
                            4 * ((row + e % rows) * stride[0] + (k + e // rows) * stride[1])
                            for e in one.tolist()
                            if row + e % rows < extent and k + e // rows >= 0
                        ]
                        requests += bool(asked)
                        total += naive.sectors(asked, copy.atom.bits)
        others = -(-problem.n // 32) if name == "a" else -(-problem.m // 64)
        part = found[f"load {name.upper()}"].in_grid
        assert (part.requests, part.sectors) == (others * requests, others * total)


def test_zeros_of_a_box_arrive_too():
    """f16, K = 40 of k-tiles of 64: the second half of a sector, and three sectors of zeros after 80 bytes."""
    ops = Operands.of("bf16", layout="nt")
    plan = mma_tma_plan(ops, block=(64, 64, 64), warp=(32, 32))
    load = next(s for s in global_accesses(plan, Problem(64, 64, 40, operands=ops)) if s.name == "load A")
    rows_even, rows_odd = 32 * (3 + 2), 32 * (3 + 2)  # 80 bytes from 0, and from 16: rows are 80 bytes apart
    assert load.in_grid.arriving == rows_even + rows_odd
    whole = next(s for s in global_accesses(plan, Problem(64, 64, 128, operands=ops)) if s.name == "load A")
    assert whole.in_grid.arriving == 2 * 64 * 4
    half = next(s for s in global_accesses(plan, Problem(32, 64, 128, operands=ops)) if s.name == "load A")
    assert half.in_grid.arriving == whole.in_grid.arriving


def test_ctas_outside_of_d_are_counted_where_a_cluster_has_them():
    ops = Operands.of("bf16", layout="nt")
    plan = sm90_plan(ops, tile=(128, 128, 64), cluster=(2, 1))
    one, two = (check(plan, Problem(m, 128, 256, operands=ops), device="h200") for m in (128, 256))
    assert one.arriving() == two.arriving() == 2 * 4 * (128 + 128) * 4
    assert one.counts("stmatrix") == two.counts("stmatrix")
    # The one past the edge loads the last rows of A again: all 16 of them, or the few that A has
    assert one.traffic.l2_read_bytes == two.traffic.l2_read_bytes == 256 * 2 * (128 + 128 + 128)
    few = check(plan, Problem(272, 128, 256, operands=ops), device="h200").traffic
    assert few.l2_read_bytes == 256 * 2 * (128 + 128 + 16 + 16 + 2 * 128)


def test_threads_clear_what_their_copies_leave_out():
    """32 KiB in each of 3 stages: 768 wavefronts of 128 bytes in each of the 25 tiles on an edge of 13 x 13."""
    ops = Operands.of("bf16", layout="tn")
    plan = mma_sync_plan(ops, block=(128, 128, 64), warp=(64, 32), stages=3)
    found = check(plan, Problem(1600, 1600, 6400, operands=ops), device="h200", search=False)
    cleared = sum(a.in_grid[1] for a in found.shared if a.name.startswith("clear"))
    stored = sum(a.in_grid[1] for a in found.shared if a.name == "store D")
    assert (cleared, stored + cleared) == (25 * 768, 62_464)  # as an H200 counted
    assert not [a for a in check(plan, Problem(1664, 1664, 6400, operands=ops)).shared if "clear" in a.name]


@pytest.mark.parametrize("bits", [32, 64, 128])
@pytest.mark.parametrize("op", ["load", "store"])
def test_lanes_that_are_off_ask_for_nothing(bits, op):
    rng = np.random.default_rng(bits)
    table = rng.integers(0, 256, (40, 32)) * (bits // 8)
    active = rng.random((40, 32)) < 0.6
    total, ideal = wavefronts(table, bits, op=op, active=active)
    per_phase = {32: 32, 64: 16, 128: 8}[bits]
    for row, on, found, least in zip(table.tolist(), active, total, ideal, strict=True):
        groups = [[lane for lane in range(first, first + per_phase) if on[lane]] for first in range(0, 32, per_phase)]
        assert found == sum(naive.passes(row, bits, group) for group in groups if group)
        assert least == sum(bool(group) for group in groups)
    assert wavefronts(table, bits, op=op, active=np.zeros_like(active))[0].sum() == 0
