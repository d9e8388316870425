"""Emulated mma.sync kernels that split K, and kernels whose rows begin at any element."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("cutlass.cute", reason="the CuTe DSL is not installed")
pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi is not installed")

from cutegemm.dtypes import round_to
from cutegemm.run.emulated import emulate
from tests.kernels.mma_sync_forms import small
from tests.marks import with_thorough

# Ragged in all modes; fewer k-tiles than K splits; a few elements; K = 0
ODD = ((67, 41, 171), (33, 70, 31), (5, 3, 1), (5, 3, 0))
EVEN = ((66, 42, 170), (34, 70, 30), (6, 4, 2), (6, 4, 0))


@pytest.mark.parametrize(
    "name",
    with_thorough(("split_last", "split_evenly", "split_strided", "deep_halves"), ("split_strided", "deep_halves")),
)
def test_whole_numbers_are_exact(name):
    """Against float64, with warps in step and in some other order; nothing outside of a matrix is touched."""
    plan = small(name)
    operands = plan.operands
    unit = max(operands.a.align_elems, operands.b.align_elems, operands.d.align_elems)
    for m, n, k in ODD if unit == 1 else EVEN:
        m, n, k = (-(-extent // unit) * unit for extent in (m, n, k))
        rng = np.random.default_rng(m + n + k)
        a, b, c = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((m, k), (k, n), (m, n)))
        wanted = round_to(operands.d.dtype, 2 * (a.astype(np.float64) @ b) - c)
        for seed in (None, 1):
            assert np.array_equal(emulate(plan, a, b, c, alpha=2.0, beta=-1.0, seed=seed).d, wanted), (
                m,
                n,
                k,
            )
