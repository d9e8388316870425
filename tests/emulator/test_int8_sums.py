"""int8 products whose sums overflow int32 are exact modulo 2**32: simulated, emulated, and by torch on the CPU."""

from __future__ import annotations

import numpy as np
import pytest

from cutegemm.build import sm90_plan
from cutegemm.plan import GemmPlan, Operands
from cutegemm.simulator import simulate
from tests.int8_sums import EXACT, A, B


def plan_of_one_tile(**options) -> GemmPlan:
    operands = Operands.of("s8", layout="nt", out="s32")
    return sm90_plan(operands, tile=(64, 32, 512), **options)


def test_partial_sums_overflow_int32():
    """Check the inputs: two results fit int32 although a partial sum overflows, and four overflow.

    Overflows of both signs occur.
    """
    fits = (EXACT >= -(2**31)) & (EXACT < 2**31)
    partial = np.cumsum(A[:, :, None].astype(np.int64) * B[None], axis=1)
    assert (fits & ((partial >= 2**31) | (partial < -(2**31))).any(axis=1)).tolist() == [
        [True, False, False, False],
        [False, True, False, False],
    ]
    assert fits.tolist() == [[True, False, False, False], [True, True, False, True]]


@pytest.mark.parametrize("options", [{}, {"split_k": 3}, {"cluster_k": 2, "schedule": "cooperative", "consumers": 1}])
def test_simulated(options):
    ctas = {} if "split_k" in options else {"ctas": 4}
    assert np.array_equal(simulate(plan_of_one_tile(**options, **ctas), A, B).d, EXACT.astype(np.int32))


def test_emulated():
    pytest.importorskip("cutlass.cute", reason="the CuTe DSL is not installed")
    pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi is not installed")
    from cutegemm.run.emulated import emulate

    assert np.array_equal(emulate(plan_of_one_tile(schedule="single"), A, B).d, EXACT.astype(np.int32))


def test_torch_on_a_cpu():
    torch = pytest.importorskip("torch")
    import cutegemm

    product = cutegemm.mm(torch.from_numpy(A), torch.from_numpy(B), out_dtype=torch.int32)
    assert np.array_equal(product.numpy(), EXACT.astype(np.int32))
