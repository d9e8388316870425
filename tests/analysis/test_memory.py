"""Sectors of global memory, occupancy, waves, traffic and the roofline."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutegemm.analysis import (
    DEVICES,
    Waves,
    best_rasters,
    check,
    compare_rasters,
    global_accesses,
    occupancy,
    roofline,
    sectors,
    traffic,
    traffic_in_time,
    usable_bits,
    waves,
)
from cutegemm.analysis.accesses import shared_accesses, stored_by_lanes
from cutegemm.analysis.cache import l2
from cutegemm.analysis.cache.pace import Pace, pace_of
from cutegemm.analysis.cache.traffic import _share_below, work_of
from cutegemm.analysis.roofline import register_bytes
from cutegemm.build import Shared, simt_plan
from cutegemm.build.mma_sync import mma_sync_plan
from cutegemm.build.sm90 import sm90_plan
from cutegemm.choice.catalog import plan_named
from cutegemm.dtypes import bf16, e4m3, e5m2, f16, s8, tf32
from cutegemm.errors import UnsupportedError
from cutegemm.plan import Operands, Problem
from cutegemm.plan.epilogue import Accumulator, Epilogue, Tile
from cutegemm.tile.mma_atoms import wgmma
from cutegemm.tile.raster import Raster
from tests.analysis import naive

LANES = np.arange(32)

# (what, bytes of each lane, bits, sectors of 32 bytes)
SECTORS = [
    ("128 bytes in a row", LANES * 4, 32, 4),
    ("every second word: 256 bytes are touched", LANES * 8, 32, 8),
    ("a word of each line", LANES * 128, 32, 32),
    ("512 bytes in a row", LANES * 16, 128, 16),
    ("4 rows of 8 words", LANES // 8 * 4096 + LANES % 8 * 4, 32, 4),
    ("16 bytes of each of 32 rows: half a sector each", LANES * 4096, 128, 32),
    ("one word for all", LANES * 0, 32, 1),
    ("128 bytes in a row that begin in the middle of a sector", LANES * 4 + 16, 32, 5),
]


@pytest.mark.parametrize(("addresses", "bits", "want"), [row[1:] for row in SECTORS], ids=[row[0] for row in SECTORS])
def test_sectors_by_hand(addresses, bits, want):
    assert sectors([addresses], bits).tolist() == [want]


@settings(max_examples=200, deadline=None)
@given(
    epi_stages=st.lists(st.integers(0, 400), min_size=32, max_size=32),
    bits=st.sampled_from([8, 16, 32, 64, 128]),
    skew=st.integers(0, 7),
)
def test_sectors_in_lockstep_with_sets(epi_stages, bits, skew):
    table = np.array([epi_stages]) * (bits // 8) + 4 * skew
    assert sectors(table, bits).tolist() == [naive.sectors(table[0].tolist(), bits)]


def test_sectors_of_a_plan():
    """A, 128 x 8 of f32 in 128-bit vectors along k: 2 lanes a row, a sector each; D in quads of a row."""
    plan = simt_plan(block=(128, 128, 8), warp=(64, 32), thread=(8, 8))
    found = {s.name: s for s in global_accesses(plan)}
    assert (found["load A"].requests, found["load A"].sectors, found["load A"].ideal) == (8, 128, 128)
    # a warp stores 8 rows of 4 lanes of 16 bytes: 64 bytes a row, 2 sectors each
    assert (found["store D"].requests, found["store D"].sectors, found["store D"].ideal) == (128, 2048, 2048)


def test_a_tile_of_the_epilogue_counts_where_it_is_read():
    """C is read as D is stored, in quads of a row."""
    plan = simt_plan(block=(128, 128, 8), warp=(64, 32), thread=(8, 8))
    assert not [s for s in global_accesses(plan) if s.name == "load C"]
    assert global_accesses(plan, scalars={"alpha": 2.0, "beta": 0.0}) == global_accesses(plan)
    found = {s.name: s for s in global_accesses(plan, scalars={"alpha": 1.0, "beta": 2.0})}
    c, d = found["load C"], found["store D"]
    assert (c.requests, c.sectors, c.ideal, c.per, c.op) == (128, 2048, 2048, "tile", "ld")
    assert (c.requests, c.sectors, c.bits) == (d.requests, d.sectors, d.bits)
    always = plan.with_(epilogue=Epilogue(Accumulator() + Tile("residual")))
    assert {s.name for s in global_accesses(always)} == {"load A", "load B", "load RESIDUAL", "store D"}


def test_a_c_that_comes_by_tma_is_read_in_whole_sectors():
    """128 x 128 of bf16: 32 KiB, 1024 sectors."""
    plan = sm90_plan(Operands.of("bf16", layout="nt"), with_c=True)
    (c,) = [s for s in global_accesses(plan, scalars={"alpha": 1.0, "beta": 1.0}) if s.name == "load C"]
    assert (c.op, c.sectors, c.ideal, c.per) == ("tma", 1024, 1024, "tile")


def test_a_c_that_a_consumer_reads_straight_comes_in_pairs():
    """Fragments of wgmma: 4 lanes have 8 neighbours of a row, 32 bytes of f32, in pairs: a sector for every 4 lanes."""
    ops = Operands.of("bf16", layout="nt", out="f32")
    plan = sm90_plan(ops, with_c=True, store="direct")
    (c,) = [s for s in global_accesses(plan, scalars={"alpha": 1.0, "beta": 1.0}) if s.name == "load C"]
    assert (c.bits, c.requests, c.sectors) == (64, 128 * 128 // 64, 128 * 128 // 8)


def test_a_skewed_matrix_touches_more_sectors():
    """Rows of 61 elements of f32, in single elements: a row of 8 begins anywhere in a sector."""
    ops = Operands.of("f32", align_bytes=4)
    plan = simt_plan(ops, block=(128, 128, 8), warp=(64, 32), thread=(8, 8))
    found = {s.name: s for s in global_accesses(plan, Problem(256, 256, 61, operands=ops))}
    assert found["load A"].sectors > found["load A"].ideal
    assert found["load A"].op == "ld"
    assert found["load A"].bits == 32


def test_what_lies_outside_of_a_small_matrix_is_not_asked_for():
    """5 x 5 x 3, f32. D: rows of 20 bytes at 0, 20, 40, 60, 80 touch 1 + 2 + 1 + 2 + 2 sectors, 100 bytes fill 4.

    A: rows of 12 bytes by two warps, of four rows at 0, 12, 24, 36 and of one at 48: sectors 0 and 1, then 1.
    """
    plan = plan_named("simt_64x64", Operands.of("f32", align_bytes=4))
    found = {s.name: s for s in global_accesses(plan, Problem(5, 5, 3, operands=plan.operands))}
    assert [(found[name].sectors, found[name].ideal) for name in ("load A", "store D")] == [(3, 2), (8, 4)]
    found = {s.name: s for s in global_accesses(plan, Problem(5, 5, 0, operands=plan.operands))}
    of_all = [found[name].in_grid for name in ("load A", "load B", "store D")]
    assert [one.sectors for one in of_all] == [0, 0, 8]
    assert of_all[0].requests == 0


def test_usable_vectors():
    ops = Operands.of("f32", align_bytes=4)
    assert usable_bits(ops.a) == 32
    wide = Operands.of("f32")
    for k, want in ((64, 128), (62, 64), (61, 32)):
        assert usable_bits(wide.a, Problem(8, 8, k, operands=wide), "a") == want
    assert usable_bits(wide.b, Problem(8, 62, 61, operands=wide), "b") == 64


# --- occupancy: NVIDIA's calculator -------------------------------------------------------------------------

# (arch, threads, registers, shared bytes, CTAs, what limits); each row by the calculator's rules: a warp has
# ceil(32 r / 256) * 256 registers, a quarter of 65536 holds floor(16384 / that) warps; shared memory is
# rounded up to 128 bytes and 1024 are added
OCCUPANCY = [
    ("sm_80", 256, 32, 0, 8, "threads"),            # 1024 a warp: 16 * 4 = 64 warps
    ("sm_80", 256, 40, 0, 6, "registers"),          # 1280 a warp: 12 * 4 = 48 warps of 8
    ("sm_80", 256, 64, 0, 4, "registers"),          # 2048: 8 * 4 = 32
    ("sm_80", 256, 72, 0, 3, "registers"),          # 2304: 7 * 4 = 28
    ("sm_80", 256, 96, 0, 2, "registers"),          # 3072: 5 * 4 = 20
    ("sm_80", 256, 128, 0, 2, "registers"),         # 4096: 4 * 4 = 16
    ("sm_80", 256, 168, 0, 1, "registers"),         # 5376: 3 * 4 = 12
    ("sm_80", 256, 255, 0, 1, "registers"),         # 8192: 2 * 4 = 8
    ("sm_80", 384, 168, 0, 1, "registers"),         # 12 warps of 12
    ("sm_80", 512, 168, 0, 0, "registers"),         # 16 warps do not fit 12
    ("sm_80", 128, 168, 0, 3, "registers"),         # 12 warps of 4
    ("sm_80", 1024, 64, 0, 1, "registers"),         # 32 warps, exactly
    ("sm_80", 1024, 65, 0, 0, "registers"),         # 2304: 28 warps
    ("sm_80", 64, 32, 0, 32, "threads"),            # 64 warps of 2, and 32 blocks
    ("sm_80", 32, 32, 0, 32, "blocks"),             # 64 warps, but 32 blocks
    ("sm_86", 128, 32, 0, 12, "threads"),           # 1536 threads
    ("sm_86", 32, 32, 0, 16, "blocks"),
    ("sm_89", 32, 32, 0, 24, "blocks"),
    ("sm_86", 128, 32, 48 * 1024, 2, "shared memory"),   # 100 KiB / 49 KiB
    ("sm_86", 128, 32, 49 * 1024, 2, "shared memory"),   # 100 / 50
    ("sm_86", 128, 32, 49 * 1024 + 1, 1, "shared memory"),
    ("sm_80", 128, 32, 80 * 1024, 2, "shared memory"),   # 164 / 81
    ("sm_80", 128, 32, 163 * 1024, 1, "shared memory"),
    ("sm_80", 128, 32, 164 * 1024, 0, "shared memory"),  # 163 KiB are the most of a block
    ("sm_90", 256, 128, 113 * 1024, 2, "registers"),     # 228 / 114 = 2
    ("sm_90", 256, 64, 113 * 1024, 2, "shared memory"),
    ("sm_90", 128, 32, 227 * 1024, 1, "shared memory"),
    ("sm_90a", 384, 168, 200 * 1024, 1, "registers"),
    ("sm_90", 2048, 32, 0, 0, "threads"),           # a block has 1024 threads at most
]  # fmt: skip


@pytest.mark.parametrize(("arch", "threads", "registers", "smem", "ctas", "limit"), OCCUPANCY)
def test_occupancy_by_the_calculator(arch, threads, registers, smem, ctas, limit):
    found = occupancy(arch, threads, registers, smem)
    assert found.ctas == ctas
    assert limit in found.limited_by


def test_occupancy_counts_warps():
    found = occupancy("sm_90", 256, 128, 0)
    assert (found.warps, found.max_warps, found.theoretical) == (16, 64, 0.25)
    assert found.limits == {"threads": 8, "registers": 2, "shared memory": 228, "blocks": 32}


def test_occupancy_of_nothing():
    with pytest.raises(
        UnsupportedError, match="threads = 0, registers = 8, smem_bytes = -1; they must be at least 1, 0"
    ):
        occupancy("sm_90", threads=0, registers=8, smem_bytes=-1)


def test_a_report_replaces_the_estimate():
    class Report:
        registers, static_smem_bytes, spills = 200, 0, 3

    plan = simt_plan()
    assert not check(plan).occupancy.measured
    found = check(plan, Problem(1024, 1024, 1024), report=Report())
    assert (found.occupancy.registers, found.occupancy.ctas, found.occupancy.measured) == (200, 1, True)
    told = next(c for c in found.changes if "3 instructions spill" in c.what)
    assert told is found.changes[0]
    assert "3 instructions spill registers" in str(found)
    assert "hidden" not in str(found).partition(told.what)[2].splitlines()[0]


@pytest.mark.parametrize(
    ("ctas", "per_wave", "count", "tail", "efficiency"),
    [
        (132, 132, 1, 1.0, 1.0),
        (133, 132, 2, 1 / 132, 133 / 264),
        (100, 132, 1, 100 / 132, 100 / 132),
        (0, 132, 0, 1.0, 1.0),
    ],
)
def test_waves(ctas, per_wave, count, tail, efficiency):
    found = Waves(ctas, per_wave)
    assert (found.count, found.tail, found.efficiency) == (count, tail, efficiency)


def test_waste_of_ragged_tiles():
    plan = simt_plan()
    assert waves(plan, Problem(128, 128, 8), 132, 1).tile_waste == 0
    assert waves(plan, Problem(192, 128, 8), 132, 1).tile_waste == 0.25  # a half of the second tile


# --- traffic ------------------------------------------------------------------------------------------------


def test_a_grid_of_one_wave_reads_everything_once():
    plan, problem = simt_plan(), Problem(1024, 1024, 512)
    found = traffic(plan, problem, ctas_per_wave=64, l2_bytes=0)
    assert found.waves == 1
    assert found.dram_read_bytes == found.min_bytes == 2 * 1024 * 512 * 4
    assert found.l2_read_bytes == 64 * 2 * 128 * 512 * 4
    assert found.hit_share == pytest.approx(1 - 1 / 8)


def test_without_a_cache_each_wave_reads_its_panels():
    """4 x 4 tiles along M, 4 a wave: each wave is a column of D, and needs all of A and one panel of B."""
    plan, problem = simt_plan(), Problem(512, 512, 256)
    panel = 128 * 256 * 4
    found = traffic(plan, problem, ctas_per_wave=4, l2_bytes=0, raster=Raster("along_m"))
    assert found.resident_mn == (4, 1)
    assert found.dram_read_bytes == 4 * 5 * panel
    assert found.wave_bytes == 5 * panel
    grouped = traffic(plan, problem, ctas_per_wave=4, l2_bytes=0, raster=Raster("grouped_m", 2))
    assert grouped.resident_mn == (2, 2)
    assert grouped.dram_read_bytes == 4 * 4 * panel


def test_a_cache_that_holds_all_reads_everything_once():
    plan, problem = simt_plan(), Problem(2048, 2048, 512)
    for raster in ("along_m", "along_n", "grouped_m:2", "grouped_n:4"):
        found = traffic(plan, problem, ctas_per_wave=16, l2_bytes=1 << 40, raster=Raster.parse(raster))
        assert found.dram_read_bytes == found.min_bytes


@pytest.mark.parametrize("raster", ["along_m", "along_n", "grouped_m:4", "grouped_n:3"])
@pytest.mark.parametrize("mib", [1, 4, 8, 20])
@pytest.mark.parametrize("shape", [(2048, 1536, 1024), (1000, 2000, 2048)])
def test_traffic_against_an_lru_cache(raster, mib, shape):
    plan, problem = simt_plan(block=(128, 128, 16)), Problem(*shape)
    per_wave, l2, steps = 24, mib << 20, 64
    found = traffic(plan, problem, ctas_per_wave=per_wave, l2_bytes=l2, raster=Raster.parse(raster))
    m_tiles, n_tiles, _ = plan.grid(problem)
    order = [(int(m), int(n)) for m, n, _ in Raster.parse(raster).order(m_tiles, n_tiles)]
    rows = [min(128, problem.m - 128 * i) * problem.k * 4 for i in range(m_tiles)]
    columns = [min(128, problem.n - 128 * i) * problem.k * 4 for i in range(n_tiles)]
    want = naive.lru_dram_bytes(order, per_wave, rows, columns, steps, l2, 128 * 128 * 4)
    assert found.dram_read_bytes == pytest.approx(want, rel=0.04)


@given(start=st.integers(0, 80), slope=st.integers(-80, 80), bound=st.integers(0, 80))
def test_share_below(start, slope, bound):
    """Values at points in multiples of 1/8, so that no sum is rounded."""
    points = np.linspace(0, 1, 4097)
    sampled = float((start / 8 + slope / 8 * points <= bound / 8).mean())
    assert _share_below(start / 8, slope / 8, bound / 8) == pytest.approx(sampled, abs=1 / 4096)


def test_the_batch_repeats():
    ops = Operands.of("f32", batched=True)
    plan = simt_plan(ops)
    one = traffic(plan, Problem(512, 512, 256, 1, ops), ctas_per_wave=4, l2_bytes=1 << 20)
    three = traffic(plan, Problem(512, 512, 256, 3, ops), ctas_per_wave=4, l2_bytes=1 << 20)
    assert three.dram_read_bytes == pytest.approx(3 * one.dram_read_bytes)
    assert three.l2_read_bytes == 3 * one.l2_read_bytes


def test_a_group_near_the_square_root_of_the_wave_is_best():
    """132 CTAs of 128 x 128: a wave of about 11.5 x 11.5 tiles needs the fewest panels."""
    plan = simt_plan(raster="along_m")
    best = compare_rasters(plan, Problem(16384, 16384, 1024), ctas_per_wave=132, l2_bytes=0)[0]
    assert best.raster in ("grouped_m:8", "grouped_n:8", "grouped_m:16", "grouped_n:16")


# --- L2 in time ---------------------------------------------------------------------------------------------


def grid(plan, problem, raster="along_m"):
    """What the tiles of a plan without clusters touch."""
    m_tiles, n_tiles, _ = plan.grid(problem)
    order = Raster.parse(raster).order(m_tiles, n_tiles)
    panel = [128 * problem.k * 4.0] * max(m_tiles, n_tiles)
    bytes_a, bytes_b = np.array(panel[:m_tiles]), np.array(panel[:n_tiles])
    tiles = np.arange(len(order))
    return l2.Work(
        tiles,
        tiles,
        0.0 * tiles,
        0.0 * tiles + 1,
        order[:, :1],
        order[:, 1:2],
        bytes_a,
        bytes_b,
        128 * 128 * 4.0,
    )


@settings(max_examples=150, deadline=None)
@given(
    steps=st.lists(st.tuples(st.integers(0, 8), st.integers(0, 1), st.integers(0, 1), st.booleans()), max_size=80),
    partitions=st.integers(1, 2),
    capacity=st.integers(2, 12),
)
def test_the_cache_in_lockstep_with_lists(steps, partitions, capacity):
    """Keys have a home; what is written is new."""
    fast, slow = l2._Cache(partitions, capacity), naive.Partitions(partitions, capacity)
    for number, (key, here, home, writes) in enumerate(steps):
        for cache in (fast, slow):
            if writes:
                cache.write(("d", number), here % partitions, home % partitions, 1.0 + key % 2)
            else:
                cache.read((key, home % partitions), here % partitions, home % partitions, 1.0 + key % 2)
    assert (fast.dram_bytes, fast.far_bytes) == (slow.dram_bytes, slow.far_bytes)
    assert [list(lines.items()) for lines in fast.lines] == slow.held


@pytest.mark.parametrize("raster", ["along_m", "along_n", "grouped_m:4"])
@pytest.mark.parametrize("mib", [4, 8, 20])
def test_in_step_the_played_grid_is_the_formula(raster, mib):
    """Where all keep the same pace and L2 is one partition."""
    plan, problem = simt_plan(block=(128, 128, 16)), Problem(2048, 1536, 1024)
    work, pace = grid(plan, problem, raster), Pace(np.ones(24))
    played = l2.play(work, pace, mib << 20, 1, pieces=64)
    formula = traffic(plan, problem, ctas_per_wave=24, l2_bytes=mib << 20, raster=Raster.parse(raster))
    assert played.dram_bytes == pytest.approx(formula.dram_read_bytes, rel=0.05)
    assert played.far_bytes == 0


def test_what_both_sides_read_crosses_once():
    plan, problem = simt_plan(), Problem(2048, 2048, 512)
    found = traffic_in_time(plan, problem, DEVICES["h200"], ctas_per_wave=132)
    assert found.dram_read_bytes == pytest.approx(found.min_bytes)
    assert found.far_bytes == pytest.approx(found.min_bytes)
    alone = traffic_in_time(plan, Problem(128, 128, 512), DEVICES["h200"], ctas_per_wave=132)
    assert alone.far_bytes == pytest.approx(alone.min_bytes / 2)  # one CTA: the half whose home is elsewhere


def test_places_that_go_ahead_cost_where_the_grid_is_persistent():
    """Such a place begins its next tile before the others, and whose panels they have in common are read apart."""
    one_each = grid(simt_plan(), Problem(4096, 4096, 1024), "grouped_m:8")
    work = replace(one_each, clusters=one_each.tiles % 132)
    even, uneven = Pace(np.ones(132)), Pace(np.where(np.arange(132) % 6 == 0, 1.0, 1.4))
    steady, ahead = (l2.play(work, pace, 10 << 20, 1) for pace in (even, uneven))
    assert ahead.dram_bytes > 1.4 * steady.dram_bytes
    assert l2.play(one_each, even, 10 << 20, 1) == steady


def test_a_cluster_takes_its_work_tiles_one_after_the_other():
    """Two clusters of two tiles each; one cluster runs at a time, and L2 holds one of their two panels of 10 bytes."""
    number, panels = np.arange(4), np.array([[0], [1], [0], [1]])
    work = l2.Work(
        number % 2, number, 0.0 * number, 0.0 * number + 1, panels, 0 * panels, np.full(2, 10.0), np.zeros(1), 0.0
    )  # fmt: skip
    assert l2.play(work, Pace(np.ones(1)), 12, 1, pieces=1).dram_bytes == 20
    assert l2.play(replace(work, clusters=number), Pace(np.ones(1)), 12, 1, pieces=1).dram_bytes == 40


def test_who_takes_what_is_the_tile_schedulers_word():
    plan = sm90_plan(fixup=True, cluster=(2, 1), ctas=8)
    problem = Problem(11 * 256, 128, 95 * 64, operands=plan.operands)
    work, scheduled = work_of(plan, problem, plan.scheduler.raster), plan.work(problem)
    for cluster in range(scheduled.clusters):
        taken = scheduled.of_cluster(cluster)
        own = work.clusters == cluster
        assert work.tiles[own].tolist() == [w.tile for w in taken if w.splits]
        assert (work.k_last[own] * 95).round().tolist() == [w.k_first + w.k_count for w in taken if w.splits]


def test_the_one_that_waits_for_memory_meets_the_one_behind_it():
    """Two CTAs read one panel of 2 MiB. L2 keeps a sixteenth of it, so the first CTA reads it from DRAM."""
    work = replace(grid(simt_plan(), Problem(128, 256, 4096)), bytes_b=np.ones(2))
    uneven = Pace(np.array([1.0, 1.3]))
    met, apart = (l2.play(work, replace(uneven, wait=w), 1 << 17, 1) for w in (0.5, 0.0))
    assert met.dram_bytes == pytest.approx(2 << 20, rel=0.01)
    assert apart.dram_bytes > 1.7 * met.dram_bytes


def test_a_line_that_is_written_from_the_other_side_takes_two():
    """96 bytes of D by a writer on side 1: half in the home on side 0, and all on its own side."""
    cache = l2._Cache(2, 100.0)
    cache.read("a", 0, 0, 30.0)
    for number in range(8):
        for home in (0, 1):
            cache.write((number, home), 1, home, 6.0)
    assert [round(sum(lines.values())) for lines in cache.lines] == [78, 96]
    cache.read("a", 0, 0, 30.0)
    assert cache.dram_bytes == 30


@pytest.mark.parametrize(
    ("given", "ratios"),
    [
        ({}, {1.0: 24, 1.39: 108}),  # 59 bytes a clock each, 6 times that of a port of 256
        ({"cluster": (2, 1)}, {1.0: 12, 1.04: 54}),  # clusters of two
        ({"schedule": "cooperative", "tile": (128, 256, 64)}, {1.0: 24, 1.04: 108}),
        ({"schedule": "cooperative", "tile": (128, 256, 64), "cluster": (2, 1)}, {1.0: 66}),
    ],
)
def test_pace_of_plans(given, ratios):
    """Four of the 24 multiprocessors in CPCs of two TPCs are never slower than their MMA."""
    plan = sm90_plan(Operands.of("bf16", layout="nt"), **given)
    found = pace_of(plan, DEVICES["h200"], 132 // (plan.cluster_mn[0] * plan.cluster_mn[1]))
    assert Counter(found.time.round(2).tolist()) == ratios
    assert (found.wait > 0) == (len(ratios) > 1)
    assert pace_of(simt_plan(), DEVICES["h200"], 132).time.tolist() == [1.0] * 132


def test_the_places_ahead_are_those_of_the_chip():
    """CTAs 40 to 45 and 48 to 53 ran on multiprocessors 32 to 43; 86 to 90 and 93 to 97 on 78 to 87."""
    ahead = [1, 13, *range(40, 46), *range(48, 54), *range(86, 91), *range(93, 98)]
    for gpc_aware in (False, True):
        plan = sm90_plan(Operands.of("bf16", layout="nt"), gpc_raster=gpc_aware)
        found = np.flatnonzero(pace_of(plan, DEVICES["h200"], 132).time == 1)
        places = plan.work(Problem(4096, 4096, 64)).launched()
        assert sorted(places[found].tolist()) == ahead


@pytest.mark.parametrize("all_write", [True, False])
@pytest.mark.parametrize("last_adds", [True, False])
def test_the_sums_of_parts_by_hand(all_write, last_adds):
    """Two tiles in 3 parts, each of 10 bytes of sums, and of 5 of D; L2 keeps 35, and A and B take none of it.

    The parts run one at a time. Tile by tile, all are there when the last one adds them. Part by part, 00 to 11 are
    written; L2 keeps 10 01 11. If all write, 02 replaces 10; 00 and 01, missed, replace the others; 02 hits; D is
    written. 12 takes that of 00; 10 and 11 are missed. Else 00 is missed and 01 there, and then both of the other tile
    are missed.
    """
    none = np.zeros((2, 1), int)
    thirds = np.tile([0, 1 / 3, 2 / 3], 2)

    def accumulators(tiles, firsts):
        work = l2.Work(
            np.arange(6), np.array(tiles), firsts, firsts + 1 / 3, none, none, np.zeros(1), np.zeros(1), 5.0, 10.0,
            all_write=all_write, last_adds=last_adds,
        )  # fmt: skip
        return l2.play(work, Pace(np.ones(1)), 35, 1).partials_bytes_

    assert accumulators([0, 0, 0, 1, 1, 1], thirds) == 0
    by_parts = accumulators([0, 1, 0, 1, 0, 1], np.sort(thirds))
    if not last_adds:
        assert by_parts == 0
    else:
        assert by_parts == (40 if all_write else 30)


def test_the_sums_of_a_plan():
    """2 x 2 tiles in 4 parts fit L2; of 16 x 16 tiles in 4 parts, 67 MB, most must come back."""
    few, many = (
        traffic_in_time(
            simt_plan(split_k=4, reduction=reduction),
            Problem(mn, mn, 1024),
            DEVICES["h200"],
            ctas_per_wave=264,
        )
        for reduction, mn in (("last", 256), ("last", 2048))
    )
    assert few.partials_read_bytes == 0
    assert 0.5 * 67e6 < many.partials_read_bytes < 67.2e6
    assert many.dram_read_bytes == pytest.approx(many.min_bytes)
    behind = traffic_in_time(simt_plan(split_k=4), Problem(2048, 2048, 1024), DEVICES["h200"], ctas_per_wave=264)
    assert behind.partials_read_bytes == 0  # a kernel after the GEMM reads them


def test_the_prediction_does_not_depend_on_chance_or_on_the_parts_of_k(monkeypatch):
    plan, problem = simt_plan(raster="grouped_m:8"), Problem(8192, 8192, 2048)
    want = traffic_in_time(plan, problem, DEVICES["h200"], ctas_per_wave=132)
    assert traffic_in_time(plan, problem, DEVICES["h200"], ctas_per_wave=132) == want
    monkeypatch.setattr(l2, "_SEED", 5)
    other = traffic_in_time(plan, problem, DEVICES["h200"], ctas_per_wave=132)
    assert other.dram_read_bytes == pytest.approx(want.dram_read_bytes, rel=0.03)
    monkeypatch.setattr(l2, "_PIECES", (32, 32))
    finer = traffic_in_time(plan, problem, DEVICES["h200"], ctas_per_wave=132)
    assert finer.dram_read_bytes == pytest.approx(want.dram_read_bytes, rel=0.03)


def test_a_grid_that_is_asked_for_again_is_not_played_again(monkeypatch):
    work = grid(simt_plan(block=(128, 128, 16)), Problem(512, 384, 256), "along_m")
    pace = Pace(np.ones(5), jitter=0.25)
    played, play = [], l2._played
    monkeypatch.setattr(l2, "_played", lambda *given: played.append(given) or play(*given))
    monkeypatch.setattr(l2, "_known", {})
    others = [
        (work, pace, 3 << 18, 2),
        (work, replace(pace, time=pace.time * [1, 1, 1, 1, 2]), 1 << 18, 2),
        (replace(work, bytes_d=work.bytes_d + 1), pace, 1 << 18, 2),
        (replace(work, panels_a=work.panels_a[::-1]), pace, 1 << 18, 2),
    ]
    found = l2.play(work, pace, 1 << 18, 2)
    assert l2.play(replace(work, tiles=work.tiles.copy()), replace(pace), 1 << 18, 2) == found
    assert len(played) == 1
    for other in others:
        l2.play(*other)
    assert len(played) == 1 + len(others)


def test_clusters_read_a_shared_panel_once():
    ops = Operands.of("bf16", layout="nt")
    problem = Problem(4096, 4096, 512, operands=ops)
    found = traffic_in_time(sm90_plan(ops, cluster=(2, 1)), problem, DEVICES["h200"], ctas_per_wave=132)
    single = traffic_in_time(sm90_plan(ops), problem, DEVICES["h200"], ctas_per_wave=132)
    assert found.sm_read_bytes == single.sm_read_bytes == single.l2_read_bytes
    assert found.l2_read_bytes == 0.75 * single.l2_read_bytes  # B once for two CTAs
    ragged = Problem(4096 - 128, 4096, 512, operands=ops)  # 31 tiles along M: the last cluster is half outside
    odd = traffic_in_time(sm90_plan(ops, cluster=(2, 1)), ragged, DEVICES["h200"], ctas_per_wave=132)
    assert odd.dram_read_bytes == pytest.approx(odd.min_bytes)


def test_the_best_rasters_are_played():
    plan, problem = simt_plan(raster="along_m"), Problem(8192, 8192, 2048)
    found = best_rasters(plan, problem, DEVICES["h200"], ctas_per_wave=132)
    assert len(found) == 4
    assert "along_m" in {t.raster for t in found}
    assert all(t.far_bytes is not None for t in found)
    assert [t.dram_read_bytes for t in found] == sorted(t.dram_read_bytes for t in found)
    assert found[0].dram_read_bytes < 0.5 * next(t for t in found if t.raster == "along_m").dram_read_bytes


# --- plans of other forms -----------------------------------------------------------------------------------


def test_d_through_shared_memory_by_the_threads():
    """128 x 256 of bf16: 512 bytes a row leave in whole lines; STS of 2 elements, 4 rows apart a lane."""
    ops = Operands.of("bf16", layout="nt")
    found = check(mma_sync_plan(ops), Problem(1024, 1024, 256, operands=ops))
    cost = {a.name: (a.instruction, a.cost.wavefronts, a.cost.ideal) for a in found.shared}
    assert cost["store D"] == ("STS", 512, 512)  # 128 * 256 * 2 bytes / 128
    assert cost["read D"] == ("LDS.128", 512, 512)
    stored = next(s for s in found.global_ if s.name == "store D")
    assert (stored.instruction, stored.sectors, stored.ideal) == ("STG.128", 2048, 2048)


def test_vectors_of_d_are_neighbours_however_the_sums_are_held():
    """8x8 sums a thread, the rows first; D is aligned to 4 of its elements, so that each row leaves by two.

    By hand: of the 16 lanes along a row of D, lane 0 has columns 0 to 7 and lane 1 columns 8 to 15. An access of
    64 bits goes by half-warps: 16 lanes with 8 bytes at every 16 of a row of 256 bytes, which has the banks twice:
    2 wavefronts where 1 would do. Of 8 warps with 16 accesses each that is 512, where 256 would do.
    """
    operands = Operands.of("bf16", align_bytes=8)
    plan = simt_plan(
        block=(128, 128, 8), warp=(16, 128), thread=(8, 8), quad=(8, 8), lanes_along="n", operands=operands
    )
    lanes = stored_by_lanes(plan)
    row, column = lanes % 128, lanes // 128
    assert (row[0, 0, :16].tolist(), column[0, 0, :16].tolist()) == (
        [0] * 8 + [1] * 8,
        [*range(8), *range(8)],
    )
    assert sorted(lanes.ravel()) == list(range(128 * 128))
    (write,) = [a for a in shared_accesses(plan) if a.name == "store D"]
    once = write.cost(plan.store.layout)
    assert (write.bits, once.wavefronts, once.ideal) == (64, 512, 256)


def test_without_shared_memory_nothing_touches_it():
    plan = simt_plan(stages=0, block=(64, 64, 1), warp=(32, 32), thread=(8, 4))
    found = check(plan, Problem(512, 512, 512))
    assert found.shared == ()
    assert [s.name for s in found.global_] == ["load A", "load B", "store D"]
    assert "Shared memory" in str(found)


def test_the_parts_of_a_split_share_the_k_tiles():
    problem = Problem(512, 512, 512)
    whole, split = (check(simt_plan(split_k=parts), problem) for parts in (1, 4))
    assert split.waves.ctas == 4 * whole.waves.ctas
    assert split.sector_count("ldgsts") == whole.sector_count("ldgsts")
    # each part reads a k-block of 16 in vain at its end
    extra = (4 - 1) * whole.waves.ctas * whole.shared[2].cost.wavefronts / 16
    extra += (4 - 1) * whole.waves.ctas * whole.shared[3].cost.wavefronts / 16
    assert split.counts("load")[1] - whole.counts("load")[1] == extra


def test_a_packed_operand_is_read_as_it_was_packed():
    """515 rows end in their 17th line, so that each k begins a line: the 512 bytes of a warp in it are 16 sectors.

    Were they 516, as a vector of four would have it, every second k would begin in the middle of a sector, and a
    warp's bytes there touch 17; 3 of them are torn between two lines of shared memory, as a pad tears them.
    """
    plan = simt_plan(repack="a")
    assert plan.repacks[0].run(515) == 17 * 32
    found = {s.name: s for s in check(plan, Problem(515, 512, 512)).global_}
    assert (found["load A"].ideal, found["load A"].sectors) == (16 * 16, 16 * 16)
    ops = Operands.of("f32", layout="tn")
    torn = check(simt_plan(ops), Problem(515, 512, 512, operands=ops, ld=(("a", 516),))).global_[0]
    assert (torn.name, torn.ideal, torn.sectors) == ("load A", 16 * 16, 8 * 16 + 8 * (17 + 3))


# --- roofline -----------------------------------------------------------------------------------------------


def test_roofline_by_hand():
    """1024 x 1024 x 1024 by 64 CTAs of 128 x 128 on 132 multiprocessors at 1.98 GHz."""
    plan, problem, device = simt_plan(), Problem(1024, 1024, 1024), DEVICES["h200"]
    moved = traffic(plan, problem, ctas_per_wave=132, l2_bytes=0)
    found = roofline(plan, problem, device, wavefronts=1e6, instructions=3e6, traffic=moved, sm_share=64 / 132)
    flops = 2 * 1024**3
    assert found.flops == flops
    assert found.level("compute").seconds == pytest.approx(flops / 66.9e12 / (64 / 132))
    issued = 1024**3 / 32 + 3e6
    assert found.level("issue").seconds == pytest.approx(issued / (132 * 4 * 1.98e9) / (64 / 132))
    assert found.level("shared").seconds == pytest.approx(1e6 / (132 * 1.98e9) / (64 / 132))
    assert found.level("shared").intensity == pytest.approx(flops / 128e6)
    assert found.level("DRAM").amount == 2 * 1024 * 1024 * 4 + 1024 * 1024 * 4
    assert found.level("DRAM").seconds == pytest.approx(12 * 2**20 / 4800e9)
    assert found.level("L2").amount == 64 * 2 * 128 * 1024 * 4
    assert found.level("register").amount == 16 * 1024**3
    assert found.bound.name == "issue"
    assert found.tflops == pytest.approx(flops / found.level("issue").seconds / 1e12)


def test_register_bytes_of_atoms():
    assert register_bytes(simt_plan()) == 16  # two operands, the sum read and written


def test_unknown_devices_are_refused():
    with pytest.raises(UnsupportedError, match="Use one of a100"):
        check(simt_plan(), device="gt730")


@pytest.mark.parametrize("device", DEVICES.values(), ids=str)
def test_devices_are_plausible(device):
    flops_a_clock = device.tflops["fma.f32"] * 1e12 / (device.sms * device.clock_mhz * 1e6)
    assert flops_a_clock == pytest.approx(128 if device.arch == "sm_80" else 256, rel=0.02)


@pytest.mark.parametrize("device", [d for d in DEVICES.values() if d.arch == "sm_90a"], ids=str)
def test_the_peak_of_wgmma_goes_with_the_elements_in_32_bytes(device):
    """An instruction takes 32 bytes along K in the same time, whatever their type."""
    for kind in (tf32, f16, bf16, e4m3, e5m2, s8):
        atom = wgmma(kind, 64)
        assert device.peak_tflops(atom) / atom.shape_mnk[2] == pytest.approx(device.tflops["wgmma.bf16"] / 16, rel=2e-3)


@pytest.mark.parametrize(("pad", "sectors", "again"), [(0, 0, 0), (8, 1 / 8, 1 / 2), (16, 0, 0), (32, 0, 0)])
def test_a_pad_of_16_bytes_tears_sectors(pad, sectors, again):
    ops = Operands.of("bf16", layout="nt")
    plan = mma_sync_plan(ops, block=(128, 128, 64), warp=(64, 32), shared=Shared("k", pad))
    load = next(s for s in check(plan, Problem(512, 512, 512, operands=ops)).global_ if s.name == "load A")
    whole = 4 * 512 * 512 * 2 // 32  # A is loaded for each of 4 tiles along N
    assert (load.sectors / load.ideal - 1, load.in_grid.arriving / whole - 1) == (sectors, again)


def test_the_range_of_dram_is_a_point_where_everything_fits():
    small, large = Problem(1024, 1024, 512), Problem(8192, 4096, 1024)
    plan = simt_plan(block=(128, 128, 8))
    fits = check(plan, small, device="h200", search=False).traffic
    assert fits.dram_range == pytest.approx((0.95 * fits.min_bytes, 1.07 * fits.min_bytes))
    low, high = check(plan, large, device="h200", search=False).traffic.dram_range
    assert high / low > 1.15 > 1.07 / 0.95
    torn = Operands.of("f32", align_bytes=4)
    odd = Problem(1023, 1021, 509, operands=torn)
    direct = check(simt_plan(torn, store="direct"), odd, device="h200", search=False).traffic
    whole = check(simt_plan(torn, store="shared"), odd, device="h200", search=False).traffic
    assert direct.dram_range[1] - whole.dram_range[1] == pytest.approx(0.4 * 1023 * 1021 * 4)
