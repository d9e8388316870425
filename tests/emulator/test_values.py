"""Emulated kernels whose epilogue is not alpha * acc + beta * c."""

from __future__ import annotations

import numpy as np
import pytest

from cutegemm.build import mma_sync_plan, simt_plan, sm90_plan
from cutegemm.dtypes import s32
from cutegemm.plan import Operands
from cutegemm.plan.epilogue import SCALED, Accumulator, Epilogue, Scalar, Tile
from cutegemm.run.emulated import emulate
from cutegemm.simulator.values import evaluate
from tests.marks import with_thorough

ACC, ALPHA, BETA, GAMMA = Accumulator(), Scalar("alpha"), Scalar("beta"), Scalar("gamma")
C, E = Tile("c"), Tile("e")
SMALL = {"block": (16, 32, 8), "warp": (16, 32), "thread": (4, 4)}
TENSOR_CORES = {"block": (32, 32, 32), "warp": (16, 16), "stages": 3}
PLANS = {
    "simt": lambda: simt_plan(**SMALL),
    "without shared memory": lambda: simt_plan(**{**SMALL, "block": (16, 32, 1)}, stages=0),
    "split, last": lambda: simt_plan(**SMALL, split_k=2, reduction="last"),
    "split, kernel": lambda: simt_plan(**SMALL, split_k=2),
    "mma.sync, through shared memory": lambda: mma_sync_plan(Operands.of("bf16", out="f32"), **TENSOR_CORES),
}


def whole_numbers(*shape, seed):
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)


@pytest.mark.parametrize("name", PLANS)
def test_an_additional_tile_operand(name):
    plan = PLANS[name]().with_(epilogue=Epilogue(ALPHA * ACC + BETA * C + GAMMA * E + 1))
    a, b = whole_numbers(40, 24, seed=1), whole_numbers(24, 48, seed=2)
    c, e = whole_numbers(40, 48, seed=3), whole_numbers(40, 48, seed=4)
    got = emulate(plan, a, b, c, alpha=2, beta=-1, gamma=3, e=e)
    np.testing.assert_array_equal(got.d, 2 * (a @ b) - c + 3 * e + 1)
    unread = np.full_like(c, np.nan)
    got = emulate(plan, a, b, unread, alpha=2, beta=0, gamma=3, e=e)
    np.testing.assert_array_equal(got.d, 2 * (a @ b) + 3 * e + 1)


@pytest.mark.parametrize("name", with_thorough(["simt", "split, kernel"], ["split, kernel"]))
def test_no_scalars_and_a_tile_that_is_always_read(name):
    plan = PLANS[name]().with_(epilogue=Epilogue((ACC + E) * 2))
    a, b, e = whole_numbers(36, 12, seed=1), whole_numbers(12, 48, seed=2), whole_numbers(36, 48, seed=3)
    np.testing.assert_array_equal(emulate(plan, a, b, e=e).d, 2 * (a @ b + e))


@pytest.mark.parametrize(
    "name", with_thorough(["simt", "split, last", "split, kernel"], ["split, last", "split, kernel"])
)
def test_a_plan_that_reads_no_c(name):
    a, b = whole_numbers(40, 24, seed=1), whole_numbers(24, 48, seed=2)
    got = emulate(PLANS[name]().with_(epilogue=SCALED), a, b, alpha=-0.5)
    np.testing.assert_array_equal(got.d, -0.5 * (a @ b))


@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 1.0), (0.5, 1.0), (1.0, 0.5), (0.75, 0.75), (1.0, 0.0)])
@pytest.mark.parametrize(
    ("expression", "store"),
    [
        (ALPHA * ACC + BETA * C, "tma"),
        (ALPHA * ACC + (ALPHA + BETA) + C, "direct"),
        ((ALPHA * ACC + BETA * C) * BETA, "tma"),
    ],
)
def test_integers_that_f32_cannot_represent(expression, store, alpha, beta):
    plan = sm90_plan(
        Operands.of("s8", layout="nt", out="s32"),
        tile=(64, 64, 64), with_c=True, schedule="single", ctas=None, store=store,
    ).with_(epilogue=Epilogue(expression))  # fmt: skip
    rng = np.random.default_rng(5)
    a, b = (rng.integers(-128, 128, (64, 64)) for _ in "ab")
    c = rng.integers(-(2**29), 2**29, (64, 64))
    scalars = {"alpha": alpha, "beta": beta}
    exact = evaluate(plan.epilogue, (a @ b).astype(np.int32), scalars, {"c": c}, s32)
    want = np.clip(np.rint(exact), -(2**31), 2**31 - 1)  # rounded once, to nearest even
    np.testing.assert_array_equal(emulate(plan, a, b, c, **scalars).d, want)
