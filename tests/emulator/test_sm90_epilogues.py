"""Emulated sm_90 kernels that store fp8 and int32, through padded epilogue stages or from registers; their barriers."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("cutlass.cute", reason="the CuTe DSL is not installed")
pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi is not installed")

from cutegemm.build import sm90_plan
from cutegemm.choice.catalog import plan_named
from cutegemm.compile.plans import compile_plan
from cutegemm.dtypes import round_to
from cutegemm.emulator.state import EmulationError
from cutegemm.plan import GemmPlan, Operands
from cutegemm.run.emulated import emulate
from cutegemm.simulator import simulate
from tests.kernels.plans import asks_for_the_shared_memory_of
from tests.kernels.sm90_forms import fitting, form
from tests.marks import with_thorough


def held_against_exact_sums(plan: GemmPlan, alpha: float = 1.0, beta: float = 0.0, seed: int = 0) -> None:
    """Check D of a ragged problem of a few tiles of whole numbers. Each CTA computes several tiles."""
    bm, bn, bk = plan.cta_tile
    m, n, k = fitting(plan, bm + 9, bn + 11, 2 * bk + 5)
    rng = np.random.default_rng(seed)
    a, b, c = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((m, k), (k, n), (m, n)))
    found = emulate(plan, a, b, c if beta else None, alpha=alpha, beta=beta)
    assert np.array_equal(found.d, round_to(plan.operands.d.dtype, alpha * (a @ b) + beta * c))
    assert asks_for_the_shared_memory_of(plan, found)


@pytest.mark.parametrize("kind", with_thorough(["e4m3", "e5m2"], ["e5m2"]))
def test_bytes_saturate(kind):
    """Results past 448, the largest e4m3, or past 57344, the largest e5m2, saturate."""
    held_against_exact_sums(plan_named("sm90:tile=64x128x128,ctas=2", Operands.of(kind, layout="nt")), 1000.0)


def test_integers_that_f32_cannot_represent():
    """int32 sums exceed 2**24, and C has values up to 2**30: both are added without conversion to f32."""
    operands = Operands.of("s8", layout="nt", out="s32")
    plan = sm90_plan(operands, tile=(64, 32, 128), epi_tile_n=16, ctas=2, with_c=True)
    rng = np.random.default_rng(0)
    a, b, c = (rng.integers(-most, most, s) for most, s in ((128, (9, 2100)), (128, (2100, 4)), (2**30, (9, 4))))
    a[0], b[:, 0] = -128, -127  # 2100 * 128 * 127 = 34,137,600
    found = emulate(plan, a.astype(np.int8), b.astype(np.int8), c.astype(np.int32), beta=1.0).d
    assert np.array_equal(found, a @ b + c)


@pytest.mark.parametrize(
    "options",
    [
        {"epi_tile_n": 16},
        {"store": "direct"},
        pytest.param({"epi_tile_n": 16, "split_k": 2}, marks=pytest.mark.thorough),
    ],
)
def test_whole_numbers_are_rounded_once(options):
    """alpha * acc + beta * C is rounded once, to nearest even, and saturates to int32, as in the simulator."""
    operands = Operands.of("s8", layout="nt", out="s32")
    ctas = {} if "split_k" in options else {"ctas": 2}
    plan = sm90_plan(operands, tile=(64, 32, 128), with_c=True, **ctas, **options)
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-128, 128, shape).astype(np.int8) for shape in ((9, 520), (520, 12)))
    c = rng.integers(-(2**31), 2**31, (9, 12)).astype(np.int32)
    for alpha, beta in ((0.5, 0.0), (0.5, 0.5), (0.3, -0.7), (3.0, 1.0), (-70000.0, 0.0)):
        exact = float(np.float32(alpha)) * (a.astype(np.int64) @ b.astype(np.int64)) + float(np.float32(beta)) * c
        want = np.clip(np.rint(exact), -(2**31), 2**31 - 1)
        given = (plan, a, b, c)
        assert np.array_equal(emulate(*given, alpha=alpha, beta=beta).d, want)
        assert np.array_equal(simulate(*given, alpha=alpha, beta=beta).d, want)


@pytest.mark.parametrize("name", with_thorough(["sm90_64x16", "sm90_64x32"], ["sm90_64x32"]))
def test_narrow_tiles_of_the_transposed_problem(name):
    held_against_exact_sums(plan_named(f"swap_ab:{name}", Operands.of("bf16", layout="nt")))


def test_each_barrier_of_a_padded_epilogue_tile_is_needed():
    """Without one of the barriers, a warp copies rows of an epilogue stage that another warp has not written yet."""
    plan = form("padded_d", 2)
    text = compile_plan(plan).ptx
    barriers = list(re.finditer(r"bar\.sync\s+%r\d+, 128;", text))
    assert len(barriers) == np.prod(plan.store.epi_tiles(plan.consumer_tile))
    a, b = np.ones((256, 136), np.float32), np.ones((136, 256), np.float32)
    assert (emulate(plan, a, b, ptx=text).d == 136).all()
    for barrier in barriers:
        without = text[: barrier.start()] + text[barrier.end() :]
        with pytest.raises(EmulationError, match=r"race: it (reads|writes) shared memory"):
            emulate(plan, a, b, ptx=without)


def test_c_of_another_majorness_than_d_with_direct_stores():
    operands = Operands.of("bf16", layout="nt")
    operands = replace(operands, c=replace(operands.c, major="m"))
    plan = sm90_plan(operands, tile=(64, 64, 64), ctas=2, store="direct", with_c=True)
    held_against_exact_sums(plan, beta=2.0)
