"""Kernels that round operands to the nearest tf32, because mma.sync ignores the low bits of f32."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("cutlass.cute", reason="the CuTe DSL is not installed")
pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi is not installed")

from cutegemm.build import gemv_plan, mma_sync_plan
from cutegemm.dtypes import round_to, tf32
from cutegemm.plan import GemmPlan, Operands
from cutegemm.run.emulated import emulate
from cutegemm.simulator import simulate

TF32 = Operands.of("tf32", layout="nt")
PLANS = {
    "mma_sync": mma_sync_plan(TF32, block=(32, 32, 32), warp=(16, 16), rounding="rna"),
    "gemv": gemv_plan(TF32, tile=(16, 16), warps=1, rounding="rna"),
}
# Ties of both signs, all low bits set, a carry into the exponent, overflow, infinities, NaN, zeros, least normal number
SPECIAL = (
    1 + 2.0**-11, 1 + 3 * 2.0**-11, -(1 + 2.0**-11), 2 - 2.0**-23, -(4 - 2.0**-22), 1 + 2.0**-11 - 2.0**-23,
    3.4028235e38, -3.4028235e38, np.inf, -np.inf, np.nan, 0.0, -0.0, 2.0**-126, 2.0**-126 * (1 + 2.0**-11),
)  # fmt: skip


def diagonal(plan: GemmPlan, values: np.ndarray, run) -> np.ndarray:
    """Return each value after a plan has multiplied it by one, with zeros in the rest of its row."""
    a = np.diag(values.astype(np.float32))
    return np.diag(run(plan, a, np.eye(len(values), dtype=np.float32)).d)


@pytest.mark.parametrize("name", PLANS)
def test_any_value_is_rounded_to_nearest(name):
    rng = np.random.default_rng(0)
    values = np.array([*SPECIAL, *rng.normal(size=17) * 10.0 ** rng.integers(-30, 30, 17)], np.float32)
    want = round_to(tf32, values, "rna")
    with np.errstate(all="ignore"):
        assert np.array_equal(diagonal(PLANS[name], values, emulate), want, equal_nan=True)
        assert np.array_equal(diagonal(PLANS[name], values, simulate), want, equal_nan=True)


@pytest.mark.parametrize("name", PLANS)
def test_subnormal_numbers_are_truncated(name):
    values = np.array([2.0**-127 + 2.0**-138, 2.0**-130 * 1.999, -(2.0**-140), 2.0**-149] * 8, np.float32)
    want = round_to(tf32, values, "rz")
    assert np.array_equal(diagonal(PLANS[name], values, emulate), want)
    assert np.array_equal(diagonal(PLANS[name], values, simulate), want)


@pytest.mark.parametrize("name", PLANS)
def test_the_error_is_less_than_half_of_the_error_of_truncation(name):
    rng = np.random.default_rng(1)
    a, b = (rng.normal(size=shape).astype(np.float32) for shape in ((32, 512), (512, 32)))
    exact = a.astype(np.float64) @ b.astype(np.float64)
    cut_a, cut_b = (round_to(tf32, x, "rz").astype(np.float64) for x in (a, b))
    error, of_cutting = (np.linalg.norm(d - exact) for d in (emulate(PLANS[name], a, b).d, cut_a @ cut_b))
    assert error < 0.5 * of_cutting
