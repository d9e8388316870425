"""The ends of k-tiles that several CTAs share, and what goes through the workspace, counted one by one."""

from __future__ import annotations

from collections import Counter

import pytest

from cutegemm.analysis import check, traffic
from cutegemm.analysis.split_k import Ends, Pass, ends_of, passes_of
from cutegemm.build import simt_plan, sm90_plan
from cutegemm.choice.catalog import plan_named
from cutegemm.parse.plan import described
from cutegemm.plan import Operands, Problem


def counted(plan, problem) -> tuple[int, int, int]:
    """(tiles of one unit, tiles of several, units of these), unit by unit; tiles counted in clusters."""
    work = plan.work(problem)
    units = Counter(w.tile for w in map(work.work_tile, range(work.count)) if w.splits)
    several = [n for n in units.values() if n > 1]
    return len(units) - len(several), len(several), sum(several)


@pytest.mark.parametrize("mnk", [(4096, 4096, 4096), (1024, 2048, 512), (300, 500, 8192)])
def test_ends_of_a_stream_are_those_of_its_units(mnk):
    hopper = plan_named("sm90_stream", Operands.of("bf16"))
    problem = Problem(*mnk, operands=hopper.operands)
    _, several, units = counted(hopper, problem)
    m_tiles, n_tiles, _ = hopper.grid(problem)
    ctas = hopper.cluster_mn[0] * hopper.cluster_mn[1]
    handed, semaphores = (units - several) * ctas, 2 * units * ctas  # of two consumers, of four warps each
    assert ends_of(hopper, problem) == Ends(m_tiles * n_tiles, handed, handed, semaphores, 4 * semaphores)

    simt = plan_named("sgemm_15_stream", Operands.of("f32"))
    problem = Problem(*mnk, operands=Operands.of("f32"))
    whole, _, units = counted(simt, problem)
    assert ends_of(simt, problem) == Ends(whole, units, 0)


def test_ends_of_a_split_by_hand():
    """2 x 2 tiles in 4 parts: a SIMT grid writes all 16; a Hopper grid hands on 3 of each tile. Semaphores are
    incremented 16 times, and 8 warps of a SIMT CTA, or 4 of a consumer, read the result.
    """
    problem = Problem(256, 256, 4096)
    assert ends_of(simt_plan(), problem) == Ends(4)
    assert ends_of(simt_plan(split_k=4, reduction="kernel"), problem) == Ends(0, 16)
    assert ends_of(simt_plan(split_k=4, reduction="last"), problem) == Ends(4, 16, 16, 16, 128)
    hopper = sm90_plan(tile=(128, 128, 64), split_k=4)
    assert ends_of(hopper, Problem(256, 256, 4096, operands=hopper.operands)) == Ends(4, 12, 12, 16, 64)


def test_stores_of_a_split_are_of_sums_where_a_kernel_adds_them():
    """4 tiles of 128 x 128 in 4 parts: 16 times 64 KiB of sums, and not one store of D."""
    found = check(simt_plan(split_k=4, reduction="kernel"), Problem(256, 256, 4096))
    assert found.sector_count("st") == (16 * 65536 // 512, 16 * 65536 // 32)
    found = check(simt_plan(split_k=4, reduction="last"), Problem(256, 256, 4096))
    assert found.sector_count("st")[1] == (16 + 4) * 65536 // 32
    of_a = 2 * 256 * 4096 * 4  # both columns of tiles read all of A, by LDG
    assert found.sector_count("ld")[1] == (16 * 65536 + of_a) // 32


def test_the_parts_of_a_tile_are_resident_together():
    """2 x 32 tiles in 4 parts, 132 CTAs at a time: 33 tiles, columns 0 to 16 of both rows; then the 31 others."""
    plan = sm90_plan(tile=(64, 128, 64), split_k=4, raster="along_m")
    problem = Problem(128, 4096, 8192, operands=plan.operands)
    found = traffic(plan, problem, ctas_per_wave=132, l2_bytes=30 << 20)
    assert (found.waves, found.resident_mn) == (2, (2.0, (17 + 16) / 2))


def test_passes_by_hand():
    """A of 130 x 64 is packed into runs of 160 rows; 2 x 1 tiles in 2 parts of 64 KiB of sums each."""
    plan = simt_plan(Operands.of("f32", layout="nn"), repack="a", split_k=2)
    assert passes_of(plan, Problem(130, 128, 64)) == [
        Pass("repack A", 160 * 64 * 4, 130 * 64 * 4, True), Pass("accumulators", 4 * 65536, 4 * 65536, False),
    ]  # fmt: skip
    assert passes_of(simt_plan(), Problem(130, 128, 64)) == []


def test_the_roofline_counts_what_goes_through_the_workspace():
    problem = Problem(2048, 2048, 2048)
    plain, packed = (check(simt_plan(Operands.of("f32"), repack=p), problem).roofline for p in ("", "a"))
    moved = 2 * 2048 * 2048 * 4
    assert packed.level("DRAM").amount - plain.level("DRAM").amount == moved
    assert packed.level("L2").amount - plain.level("L2").amount == moved
    report = str(check(simt_plan(Operands.of("f32"), repack="a"), problem))
    assert "pack A: 0.017 GB read, 0.017 GB written, before the GEMM begins" in report


def test_sums_that_l2_does_not_hold_are_written_to_dram_and_read_as_far_as_they_are_played():
    """2,048 squared in 4 parts: 67 MB. A kernel after the GEMM reads all of them."""
    problem, accumulators = Problem(2048, 2048, 1024), 4 * 2048 * 2048 * 4
    for reduction in ("last", "kernel"):
        plan = simt_plan(split_k=4, reduction=reduction)
        found = check(plan, problem, device="h200", search=False)
        assert accumulators > found.device.l2_bytes
        moved = found.traffic
        again = moved.partials_read_bytes
        assert (0 < again < accumulators) == (reduction == "last")
        want = moved.dram_read_bytes + moved.dram_write_bytes + accumulators + (again or accumulators)
        assert found.roofline.level("DRAM").amount == pytest.approx(want)
        assert (f"{again / 1e9:.3f} GB of it from DRAM" in str(found)) == (reduction == "last")


def test_sums_on_two_levels_are_added_by_threads():
    """32 k-tiles of 128 of e4m3: 128 x 128 additions a tile and k-tile, 512 instructions of warps."""
    once, twice = (
        check(plan, Problem(1024, 1024, 4096, operands=plan.operands)).roofline.level("issue").amount
        for plan in (
            sm90_plan(Operands.of("e4m3", layout="nt"), tile=(128, 128, 128), schedule="cooperative", promoted=two)
            for two in (False, True)
        )
    )
    assert twice - once == 64 * 32 * 512


def test_a_stream_is_not_advised_to_become_one():
    plan = plan_named("sgemm_15_stream", Operands.of("f32"))
    advice = [c.advice for c in check(plan, Problem(4096, 4096, 4096)).changes]
    assert not any("stream-K" in text for text in advice)
    whole = check(plan_named("sgemm_15_best", Operands.of("f32")), Problem(4096, 4096, 4096)).changes
    assert any("stream-K" in c.advice for c in whole)


def test_a_split_is_advised_more_parts_than_it_has():
    """132 multiprocessors take 8 parts of each of 16 tiles; but 4 k-tiles are 4 parts at most."""
    plan = plan_named("simt_128x128/k4", Operands.of("f32"))
    advice = [c.advice for c in check(plan, Problem(512, 512, 8192), device="h200").changes]
    assert "split K in 8, or smaller tiles" in advice
    few = Problem(512, 512, 4 * plan.cta_tile[2])
    advice = [c.advice for c in check(plan, few, device="h200").changes]
    assert not any("split K" in text for text in advice)


def test_without_k_tiles_no_tile_is_missed_in_shared_memory():
    advice = [c.advice for c in check(simt_plan(), Problem(64, 64, 0)).changes]
    assert not any("in shared memory" in text for text in advice)


def test_a_plan_for_the_transposed_problem_is_held_against_it():
    plan, problem = described("check", "swap_ab:sm90_64x32", None, "nn", "32x4096x2048")
    assert (problem.m, problem.n, problem.k) == (4096, 32, 2048)
    assert plan.violations(problem=problem) == []


def test_idle_multiprocessors_are_said_to_be_filled():
    """16 x 32 tiles of 128 x 256 are 3.88 turns of 132; of a shared one nothing is left empty. Where owners would
    keep all, as of 16 k-tiles, it is."""
    whole, filled = (plan_named(name, Operands.of("bf16")) for name in ("sm90_overlapped_2x1", "sm90_fixup"))
    long, short = (Problem(2048, 8192, k, operands=whole.operands) for k in (8192, 512))
    advice = [c.advice for c in check(whole, long).changes]
    assert "another tile size, or /fixup after the plan's name" in advice
    assert not any("/fixup" in c.advice for c in check(filled, long).changes)
    once = plan_named("sm90_multistage", whole.operands)  # a CTA for each tile, and no producer: it shares none
    assert not any("/fixup" in c.advice for plan in (filled, once) for c in check(plan, short).changes)
    assert [check(filled, problem).waves.is_even for problem in (long, short)] == [True, False]
