"""Arguments of the builders of plans that are refused at once, with the name that the caller gave."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest

from cutegemm import (
    Layout,
    Operands,
    PlanError,
    Problem,
    TiledMma,
    epilogue,
    gemv_plan,
    mma_sync_plan,
    mma_tma_plan,
    plan_named,
    simt_plan,
    sm90_plan,
)
from cutegemm.build import Shared, with_epilogue
from cutegemm.dtypes import f16, f32
from cutegemm.plan.epilogue import Row, epilogue_of, parse_epilogue
from cutegemm.plan.problem import Operand
from cutegemm.plan.work.split import KSplit

F32, BF16 = Operands.of("f32"), Operands.of("bf16")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: simt_plan(mma_order="k"), "mma_order = 'k'"),
        (lambda: simt_plan(raster=5), "raster = 5"),
        (lambda: sm90_plan(raster=8), "raster = 8; a Raster is expected, or its text"),
        (lambda: simt_plan(0), "operands = 0; Operands are expected"),
        (lambda: simt_plan(shared_a="x"), "shared_a = 'x'; Shared or None is expected"),
        (lambda: simt_plan(prefetch=1), "prefetch = 1; True or False is expected"),
        (lambda: sm90_plan(promoted="no"), "promoted = 'no'; True or False is expected"),
        (lambda: sm90_plan(with_c=None, overlapped="no", fixup=2), "with_c = None"),
        (lambda: gemv_plan(pdl="no"), "pdl = 'no'; True or False is expected"),
        (lambda: sm90_plan(name=3), "name = 3; a text is expected"),
        (lambda: sm90_plan(ctas=10**9), "a persistent grid of 1000000000 CTAs; expected 1 to 65536"),
        (lambda: simt_plan(waves=1, persistent=10**9), "a persistent grid of 1000000000 CTAs; expected 1 to 65536"),
        (
            lambda: sm90_plan(schedule="cooperative", stagger_cycles=10**12),
            "stagger_cycles = 1000000000000; at most",
        ),
        (lambda: sm90_plan(consumers=10**9), "consumers = 1000000000; at most 8 are possible"),
        (lambda: Shared("q"), "major = 'q' is neither 'mn' nor 'k'"),
        (lambda: Shared(pad=-1), "pad = -1; at least 0 is expected"),
        (lambda: Shared(pad="4", swizzle=3), "swizzle = 3; Swizzle or None is expected"),
        (lambda: Operands.of("f32", layout=3), "layout is 3; expected two letters"),
        (lambda: Operands.of("f32", align_bytes="x"), "A is aligned to 'x' bytes, which is not a power of two."),
        (lambda: Operands.of("f32", align_bytes=4.0), "A is aligned to 4.0 bytes, which is not a power of two."),
        (lambda: Operands.of("f32", batched="no"), "batched = 'no'; True or False is expected"),
        (lambda: F32.as_gated("x"), "B is gated by 'x', which is neither '' nor 'halves' nor 'pairs'"),
        (lambda: Problem(4, 4, 4, ld=(("a", "x"),)), "ld = (('a', 'x'),); pairs of a name and an integer"),
        (lambda: Problem(4, 4, 4, ld=3), "ld = 3; pairs of a name and an integer"),
        (lambda: parse_epilogue(3), "epilogue 3: 1 rule is broken.\n  - a text is expected"),
        (lambda: simt_plan(access_bits=0), "access_bits = 0 is neither 8"),
        (lambda: simt_plan(access_bits=48), "access_bits = 48 is neither 8"),
        (lambda: simt_plan(access_bits="x"), "access_bits = 'x' is neither 8"),
        (lambda: simt_plan(unroll="x"), "unroll = 'x'; a positive integer is expected"),
        (lambda: simt_plan(waves=1.5), "waves = 1.5; an integer is expected"),
        (lambda: simt_plan().with_(ctas_per_sm=0), "ctas_per_sm = 0"),
        (lambda: sm90_plan(ctas_per_sm=0), "ctas_per_sm = 0; a positive integer is expected"),
        (lambda: mma_sync_plan(k_run=-8), "k_run = -8; a positive integer is expected"),
        (lambda: mma_sync_plan(load_bytes="16"), "load_bytes = '16'; a positive integer is expected"),
        (lambda: mma_sync_plan(store_elems=0), "store_elems = 0 is neither 1 nor 2"),
        (lambda: mma_sync_plan(store_elems="x"), "store_elems = 'x'; an integer is expected"),
        (lambda: mma_sync_plan(load_bytes=None), "load_bytes = None; a positive integer is expected"),
        (lambda: mma_sync_plan([]), "operands = []; Operands are expected"),
        (lambda: gemv_plan(0), "operands = 0; Operands are expected"),
        (lambda: gemv_plan(warps=None), "warps = None; a positive integer is expected"),
        (lambda: mma_tma_plan(Operands.of("tf32", out="f64")), "TMA cannot store D of f64"),
    ],
)
def test_what_is_no_choice_is_named(make, said):
    with pytest.raises(PlanError) as refused:
        make()
    assert said in str(refused.value)


def test_a_deep_tile_is_refused_before_it_is_laid_out():
    start = time.process_time()
    with pytest.raises(PlanError, match="bK = 1000000: a k-tile has at most 1024 k-blocks"):
        plan_named("simt:block=128x128x1000000,warp=64x32,thread=8x8", F32)
    assert time.process_time() - start < 2


def test_fragments_are_read_in_the_order_of_elements():
    """The kernels retile fragments as CuTe does, which is wrong for values against the order of elements."""
    plan = mma_sync_plan(BF16, block=(64, 64, 64), warp=(32, 32))
    atom, repeats = plan.tiled_mma.atom, plan.tiled_mma.atom_layout_mnk
    against = TiledMma(atom, repeats, (None, Layout((8, 2, 2, 2), (1, 8, 32, 16)), None))
    assert plan.with_(tiled_mma=TiledMma(atom, repeats, (None, Layout((8, 2, 2, 2), (1, 8, 16, 32)), None)))
    with pytest.raises(
        PlanError,
        match=r"whose permutation reverses the order of a thread's elements; kernels need fragments in element order.",
    ):
        plan.with_(tiled_mma=against)


def test_an_extent_is_a_permutation_of_a_single_consumer():
    from cutegemm.simulator import simulate

    plan = sm90_plan(BF16, tile=(64, 64, 64), schedule="single", stages=2)
    plan = plan.with_(tiled_mma=TiledMma(plan.tiled_mma.atom, permutation_mnk=(None, 64, None)))
    rng = np.random.default_rng(0)
    a, b = rng.integers(-3, 4, (64, 64)), rng.integers(-3, 4, (64, 64))
    result = simulate(plan, a, b)
    assert (np.asarray(getattr(result, "d", result)) == a @ b).all()


def _unaligned(block, warp, align_bytes, out=None):
    operands = Operands.of("bf16", layout="nt", out=out)
    d = replace(operands.d, align_bytes=align_bytes)
    return mma_sync_plan(replace(operands, c=d, d=d), block=block, warp=warp)


def _column_sums(**options):
    plan = gemv_plan(tile=(48, 8), vectors=2, load_chunks=1, **options)
    ending = epilogue_of(lambda acc: (acc, epilogue.column_sum(acc)), {})
    return with_epilogue(ending, plan, {"aux": Operand.of_kind(Row, f32)})


def _gated(block):
    options = {"warp": (32, 24), "thread": (4, 6), "quad": (1, 1), "lanes_along": "n"}
    plan = simt_plan(Operands.of("f32", align_bytes=4), block=block, **options)
    return with_epilogue(epilogue_of(lambda acc: epilogue.swiglu(acc), {}), plan)


F16_SUMS = Operands.of("f16", layout="nt", acc="f16")


@pytest.mark.parametrize(
    ("make", "said"),
    [  # each of these was built once, and then computed something else or did not compile
        (lambda: _unaligned((192, 48, 64), (64, 48), 4, "f32"), "the copies of D"),
        (lambda: _unaligned((192, 96, 64), (64, 48), 2), "the copies of D"),
        (
            lambda: mma_sync_plan(
                Operands.of("tf32", layout="tn"), block=(48, 48, 16), warp=(48, 24), load_bytes=4, load_run=3
            ),
            "the accesses to A",
        ),
        (lambda: _column_sums(warps=3), "where registers and lanes together do not hold whole columns, so they"),
        (lambda: gemv_plan(F16_SUMS, tile=(16, 8), warps=4, cluster=2), "the accumulators are f16; CTAs"),
        (
            lambda: sm90_plan(Operands.of("s8", layout="nt"), tile=(64, 64, 128), promoted=True),
            "promoted = True needs accumulators in f32, not s32. Leave promoted out.",
        ),
        (lambda: sm90_plan(tile=(64, 64, 64), ctas_per_sm=2), "the roles ask for 64512 registers"),
        (
            lambda: sm90_plan(tile=(64, 64, 64), schedule="single", ctas_per_sm=50),
            "no room for a k-tile, 16384 bytes, with 50 CTAs per SM",
        ),
        (lambda: sm90_plan(F16_SUMS, tile=(64, 96, 64)), "wgmma with 96 columns and accumulators in f16: if the"),
        (lambda: _gated((32, 48, 8)), "B is n-major and copied 16 columns at a time, but only 12 gate columns are"),
        (lambda: mma_sync_plan(Operands.of("s8", layout="nt")), "A is of s8, but mma.sync plans multiply"),
        (lambda: mma_sync_plan(Operands.of("e4m3", layout="tn")), "A is m-major; float8 must be k-major"),
        (lambda: mma_sync_plan(Operands.of("e5m2", layout="nt", align_bytes=2)), "B is aligned to 2 bytes; float8"),
        (lambda: mma_tma_plan(Operands.of("s8", layout="nt")), "A is of s8, but mma.sync plans multiply floats of 16"),
        (lambda: mma_tma_plan(Operands.of("e4m3", layout="nt")), "A is of e4m3, but mma.sync plans multiply"),
    ],
)  # fmt: skip
def test_what_no_kernel_carries_out_is_refused(make, said):
    with pytest.raises(PlanError) as refused:
        make()
    assert said in str(refused.value)


def test_what_lies_beside_these_is_built():
    assert sm90_plan(F16_SUMS, tile=(64, 128, 64)).operands.acc is f16
    assert gemv_plan(F16_SUMS, tile=(16, 8), warps=4).operands.acc is f16
    assert _unaligned((128, 64, 64), (64, 32), 2).store.layout is not None


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: simt_plan(stages=10**12), "stages = 1000000000000; 1024 at most"),
        (lambda: mma_sync_plan(stages=9_999_999), "stages = 9999999; 1024 at most"),
        (lambda: gemv_plan(vectors=10**6, load_chunks=10**6), "load_chunks = 1000000; 1024 at most"),
        (lambda: sm90_plan(stream=10**9), "stream = 1000000000; 1024 at most"),
        (lambda: KSplit(waves=2000), "waves = 2000; expected 0 to 1024"),
        (
            lambda: plan_named("sm90:tile=64x64x64,promoted=true", BF16),
            "'promoted=true': 1 for yes",
        ),
        (
            lambda: plan_named("sm90:tile=64x64x64,fixup=banana", BF16),
            "'fixup=banana': 1 for yes",
        ),
    ],
)
def test_no_machine_has_room_for_so_many(make, said):
    start = time.process_time()
    with pytest.raises(PlanError) as refused:
        make()
    assert said in str(refused.value)
    assert time.process_time() - start < 1
