"""Packing: who moves what of a tile, where the packed matrix lies, and what Hopper plans pack."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cutegemm.analysis import check
from cutegemm.analysis.shared import byte_addresses, cost
from cutegemm.build import mma_tma_plan, sm90_plan
from cutegemm.choice.catalog import choose, plan_named
from cutegemm.choice.sm90.repack import MEETS_EARLY_US, MEETS_US, REPACK_START_US, repacking_us
from cutegemm.errors import PlanError
from cutegemm.layout import Layout
from cutegemm.machine.device import DEFAULT_DEVICE, device_named
from cutegemm.plan import Operands, Problem
from cutegemm.plan.memory.repack import make_repack, repacked_for_wgmma
from cutegemm.plan.memory.workspace import regions

DTYPES = ("f64", "f32", "tf32", "bf16", "f16", "e4m3", "s8")


def of(dtype, layout="nn", align=16, **more):
    """Return operands whose A and B are aligned to `align` bytes."""
    ops = Operands.of(dtype, layout=layout, **more)
    return replace(ops, a=replace(ops.a, align_bytes=align), b=replace(ops.b, align_bytes=align))


def repacks():
    for dtype in DTYPES:
        element_bytes = Operands.of(dtype).a.dtype.bits // 8
        for align in (1, 2, 4, 8, 16):
            if align >= element_bytes:
                for layout in ("nn", "tt"):
                    for name, major in (("a", "m"), ("a", "k"), ("b", "n"), ("b", "k")):
                        yield make_repack(of(dtype, layout, align), name, major), align


def words(repack, copy, offsets):
    """(warps, lanes, values) addresses in shared memory, the values of one access innermost."""
    flat = offsets.reshape(offsets.shape[0], -1, order="F")
    lanes = flat.reshape(-1, 32, flat.shape[1])
    bits = repack.load.atom.dtype.bits
    addresses = byte_addresses(np.arange(flat.max() + 1), lanes, bits, copy.atom.bits)
    return addresses, copy.atom.bits


def test_a_thread_puts_what_it_has_loaded():
    for repack, _ in repacks():
        tile, everything = Layout(repack.tile), np.arange(repack.tile[0] * repack.tile[1])
        loaded, put = repack.load.offsets_s(tile), repack.put.offsets_d(tile)
        assert (loaded[:, repack.order] == put).all()
        for copy in (repack.load, repack.store):
            assert (np.sort(copy.offsets_s(tile), axis=None) == everything).all()


def test_accesses_are_as_wide_as_alignment_lets_them_be():
    for repack, align in repacks():
        assert (repack.load.atom.bits, repack.store.atom.bits) == (8 * align, 128)
        assert repack.put.atom.bits >= min(32, repack.load.atom.bits)


def test_bank_conflicts():
    """None if 16 bytes are loaded; a vector that is put is never on more than two paths."""
    for repack, align in repacks():
        read, bits = words(repack, repack.store, repack.store.offsets_s(repack.smem))
        assert cost(read, bits, op="load").conflicts == 0
        put, bits = words(repack, repack.put, repack.put.offsets_d(repack.smem))
        found = cost(put, bits, op="store")
        assert found.wavefronts <= (1 if align == 16 else 2) * found.ideal


def test_every_tile_has_one_cta():
    """Successive threads write one after the other along the runs."""
    for repack, _ in repacks():
        for rows, columns, batch in ((1, 1, 1), (200, 300, 1), (65, 700, 3)):
            divisors, along = repack.divided_by(rows, columns), int(repack.major == "k")
            ctas = repack.ctas(rows, columns, batch)
            at = [repack.tile_at(cta, divisors) for cta in range(ctas)]
            tiles = [-(-extent // tile) for extent, tile in zip((rows, columns), repack.tile, strict=True)]
            assert sorted(at) == [(m, k, b) for m in range(tiles[0]) for k in range(tiles[1]) for b in range(batch)]
            first_run = [tile[along] for tile in at[: tiles[along]]]
            assert first_run == list(range(tiles[along]))
            if batch == 1:
                assert [repack.tile_at(cta, divisors, batched=False) for cta in range(ctas)] == at


def test_the_packed_matrix():
    """4093 elements of 2 bytes end within their 64th line of 64; 300 bytes within their third line of 128."""
    along_k = make_repack(of("bf16", align=2), "a", "k")
    assert along_k.extents(4097, 4093) == (4097, 4096)
    assert along_k.strides((4097, 4096)) == (4096, 1)
    assert along_k.extents(7, 0) == (7, 64)  # TMA takes no extent of 0
    along_m = make_repack(of("e4m3", "tn"), "a", "m")
    assert (along_m.extents(300, 5), along_m.strides((384, 5))) == ((384, 5), (1, 384))
    assert along_m.extents(300, 0) == (384, 0)
    # 128 x 128 bytes of a tile: 3 x 2 of them, in each of 2 matrices
    assert make_repack(of("s8"), "b", "k").ctas(300, 200, 2) == 12
    plan = sm90_plan(of("tf32"), tile=(128, 128, 32), repack="b", split_k=2)
    assert [(r.name, r.first, r.size) for r in regions(plan, 128, 100, 33, 1)] == [
        ("arrivals", 0, 256), ("b", 0, 100 * 64 * 4), ("accumulators", 100 * 64 * 4, 2 * 128 * 128 * 4)
    ]  # fmt: skip


def test_what_is_in_the_way():
    found = {
        (dtype, layout): repacked_for_wgmma(of(dtype, layout))
        for dtype in ("bf16", "tf32", "e5m2", "s8")
        for layout in ("nn", "nt", "tn", "tt")
    }
    for dtype in ("tf32", "e5m2", "s8"):
        assert [found[dtype, layout] for layout in ("nn", "nt", "tn", "tt")] == ["b", "", "ab", "a"]
    assert {found["bf16", layout] for layout in ("nn", "nt", "tn", "tt")} == {""}
    assert repacked_for_wgmma(of("f16", "nt", 8)) == "ab"


@pytest.mark.parametrize("dtype", ["bf16", "tf32", "e4m3", "s8"])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_hopper_plans_pack(dtype, layout):
    ops = of(dtype, layout, 4, out="f32")
    for end in ("epi_stages+repack", "overlapped_2x1+repack/k2", "64x128+repack/stream", "multistage+repack"):
        name = f"sm90_{end}"
        plan = plan_named(name, ops)
        assert (plan.name, "".join(p.name for p in plan.repacks)) == (name, "ab")
        assert (plan.loaded.a.major, plan.loaded.b.major, plan.loaded.a.align_bytes) == ("k", "k", 16)
        assert (plan.tiled_mma.atom.a_major, plan.tiled_mma.atom.b_major) == ("k", "k")
        assert (plan.operands.a, plan.operands.b) == (ops.a, ops.b)
    assert plan_named("sm90_epi_stages+repack", of(dtype, "nt")).repacks == ()
    with pytest.raises(PlanError, match=r"A is aligned to 4 bytes; TMA needs an alignment of 16|k-major"):
        plan_named("sm90_epi_stages", ops)


def test_rules():
    plan = plan_named("sm90_epi_stages+repack", of("bf16", "nn", 2))
    aligned = Problem(100, 104, 99, operands=plan.operands)
    assert plan.violations(problem=aligned) == []
    text = plan.describe()
    assert "repack A" in text
    assert "A to k-major by tiles of 64 x 64, 256 threads" in text
    threads = plan_named("sm90_epi_stages+repack", of("bf16", "nn", 8))
    said = threads.violations(problem=replace(aligned, operands=threads.operands))
    assert [rule[:27] for rule in said] == ["A has 99 elements along k, ", "A has the stride 99, 198 by"]
    with pytest.raises(PlanError, match=r"repack = 'ba' is not 'a', 'b' or 'ab'."):
        sm90_plan(repack="ba")
    with pytest.raises(PlanError, match=r"repack passes exist for plans of the families simt and sm90 only."):
        mma_tma_plan(Operands.of("bf16")).with_(repacks=plan.repacks)
    huge = Problem(2**31 - 200, 8, 2**31 - 200, operands=plan.operands)
    assert plan.violations(problem=huge)[-1].startswith("the repack pass of A and B takes")


def test_what_packing_costs():
    """4096 x 4096 of 4 bytes are 67 MB, read and written: 32 us at 4.2 TB/s.

    A small GEMM starts while the repack pass runs.
    """
    ops, square = Operands.of("tf32", layout="tn"), Problem(4096, 4096, 4096)
    bytes_per_us = DEFAULT_DEVICE.measured.repack_along_k_gb_s * 1e3
    assert repacking_us(ops, square) == pytest.approx(REPACK_START_US + MEETS_US + 2 * 2 * 4 * 4096**2 / bytes_per_us)
    assert repacking_us(ops, Problem(64, 64, 64)) == pytest.approx(REPACK_START_US + MEETS_EARLY_US, rel=0.01)
    assert repacking_us(ops, square, device_named("a100-40gb")) > 2 * repacking_us(ops, square)
    assert repacking_us(Operands.of("tf32", layout="nt"), square) == 0.0


def test_when_packing_pays():
    """Not where an operand is read about once, as the copy moves it twice more."""
    tf32 = Operands.of("tf32", layout="nn")
    assert [bool(choose(tf32, Problem(n, n, n)).repacks) for n in (256, 2048, 8192)] == [False, True, True]
    assert not choose(tf32, Problem(64, 8192, 8192)).repacks
    assert choose(tf32, Problem(256, 256, 256)).family == "mma_sync"
    assert choose(tf32, Problem(8192, 8192, 8192), "sm_80").family == "mma_sync"


def test_the_analysis_counts_the_pass():
    problem = Problem(512, 512, 500, operands=of("tf32", "nn"))
    plan = plan_named("sm90_epi_stages+repack", problem.operands)
    found = check(plan, problem)
    (packed,) = found.passes
    assert (packed.name, packed.read_bytes, packed.write_bytes) == ("repack B", 512 * 500 * 4, 512 * 512 * 4)
    nt = Operands.of("tf32", layout="nt")
    alone = check(plan_named("sm90_epi_stages", nt), Problem(512, 512, 500, operands=nt))
    moved = packed.read_bytes + packed.write_bytes
    assert found.roofline.level("L2").amount - alone.roofline.level("L2").amount == moved
    assert [(x.name, x.cost) for x in found.shared] == [(x.name, x.cost) for x in alone.shared]
