"""Arguments of the builders of plans that are refused in words, at once, by the name that was given."""

from __future__ import annotations

import time

import numpy as np
import pytest

from cutegemm import (
    Layout,
    Operands,
    PlanError,
    TiledMma,
    mma_sync_plan,
    mma_tma_plan,
    plan_named,
    simt_plan,
    sm90_plan,
)

F32, BF16 = Operands.of("f32"), Operands.of("bf16")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: simt_plan(mma_order="k"), "mma_order = 'k'"),
        (lambda: simt_plan(raster=5), "raster = 5"),
        (lambda: simt_plan(access_bits=0), "access_bits = 0 is neither 8"),
        (lambda: simt_plan(access_bits=48), "access_bits = 48 is neither 8"),
        (lambda: simt_plan(access_bits="x"), "access_bits = 'x' is neither 8"),
        (lambda: simt_plan(unroll="x"), "unroll = 'x'; a positive integer is expected"),
        (lambda: simt_plan(waves=1.5), "waves = 1.5; an integer is expected"),
        (lambda: simt_plan().with_(ctas_per_sm=0), "ctas_per_sm = 0"),
        (lambda: mma_sync_plan(k_run=-8), "k_run = -8; a positive integer is expected"),
        (lambda: mma_sync_plan(load_bytes="16"), "load_bytes = '16'; a positive integer is expected"),
        (lambda: mma_sync_plan(store_elems=0), "store_elems = 0 is neither 1 nor 2"),
        (lambda: mma_tma_plan(Operands.of("tf32", out="f64")), "D of f64 does not leave by TMA"),
    ],
)
def test_what_is_no_choice_is_named(make, said):
    with pytest.raises(PlanError) as refused:
        make()
    assert said in str(refused.value)


def test_a_deep_tile_is_refused_before_it_is_laid_out():
    start = time.process_time()
    with pytest.raises(
        PlanError, match="bK = 1000000: a k-tile is laid out k-block by k-block; 1024 are the most"
    ):
        plan_named("simt:block=128x128x1000000,warp=64x32,thread=8x8", F32)
    assert time.process_time() - start < 2


def test_fragments_are_read_in_the_order_of_elements():
    """The kernels retile fragments as CuTe does, which is wrong for values against the order of elements."""
    plan = mma_sync_plan(BF16, block=(64, 64, 64), warp=(32, 32))
    atom, repeats = plan.tiled_mma.atom, plan.tiled_mma.atom_layout_mnk
    against = TiledMma(atom, repeats, (None, Layout((8, 2, 2, 2), (1, 8, 32, 16)), None))
    assert plan.with_(tiled_mma=TiledMma(atom, repeats, (None, Layout((8, 2, 2, 2), (1, 8, 16, 32)), None)))
    with pytest.raises(
        PlanError, match="permutation runs the values of a thread against the order of elements"
    ):
        plan.with_(tiled_mma=against)


def test_an_extent_is_a_permutation_of_a_single_consumer():
    from cutegemm.simulate import simulate

    plan = sm90_plan(BF16, tile=(64, 64, 64), schedule="single", stages=2)
    plan = plan.with_(tiled_mma=TiledMma(plan.tiled_mma.atom, permutation_mnk=(None, 64, None)))
    rng = np.random.default_rng(0)
    a, b = rng.integers(-3, 4, (64, 64)), rng.integers(-3, 4, (64, 64))
    result = simulate(plan, a, b)
    assert (np.asarray(getattr(result, "d", result)) == a @ b).all()
