"""Emulated kernels of `gemm_gated` and of its backward passes: residuals, types of results, scales, sums of rows."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("cutlass.cute", reason="the CuTe DSL is not installed")
pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi is not installed")

from cutegemm.torch.activations import dactivated, dgated, gated  # noqa: E402
from cutegemm.torch.epilogue import formula  # noqa: E402
from cutegemm.torch.launch import by_gemm  # noqa: E402
from cutegemm.torch.reference import by_torch  # noqa: E402
from tests.emulator.on_cpu import emulate_launches  # noqa: E402
from tests.torch.cases import normal  # noqa: E402

BF16, F32 = torch.bfloat16, torch.float32
M, N, K = 72, 96, 136
RESIDUAL = (M, N)
CASES = {
    "a residual, gate and up in halves": (
        gated("swiglu", ("bias", "c", "scale"), False, False),
        [(N,), RESIDUAL],
        (0.5,),
        None,
    ),
    "a residual, gate and up interleaved, with auxiliary outputs": (
        gated("reglu", ("c",), True, True),
        [RESIDUAL],
        (),
        None,
    ),
    "two types, gate and up interleaved": (gated("reglu", (), True, True), [], (), (F32, BF16)),
    "two types, gate and up in halves": (gated("swiglu_oai", ("bias",), False, True), [(N,)], (), (F32, BF16)),
    "a scale of rows and their sums": (dactivated("gelu", True, True), [RESIDUAL, (M, 1)], (), None),
    "a gated scale of rows and their sums": (
        dgated("swiglu", True, True),
        [RESIDUAL, RESIDUAL, (M, 1)],
        (),
        (BF16, BF16, F32),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_kernels_agree_with_torch(monkeypatch, name):
    emulate_launches(monkeypatch, 3)
    text, shapes, scalars, types = CASES[name]
    a, b = normal(M, K, dtype=BF16), normal(N, K, seed=1, dtype=BF16).mT / 8
    operands = [normal(*shape, seed=2 + i, dtype=BF16) for i, shape in enumerate(shapes)]
    found = by_gemm(a, b, text, operands, scalars, types)
    expected = by_torch(a, b, formula(text), [*operands, *scalars], types)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert (one.shape, one.dtype, one.is_contiguous()) == (other.shape, other.dtype, True)
        off = (one.float() - other.float()).abs()
        rounding = 2.0**-7 if one.dtype == BF16 else 2.0**-14
        assert (off <= rounding * (other.float().abs() + 0.05)).all(), float(off.max())
