"""`gemm` with sums and maxima over rows, columns and all of D, by emulated kernels: shapes, types, batches."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("cutlass.cute", reason="the CuTe DSL is not installed")
pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi is not installed")

from cutegemm import gemm  # noqa: E402
from cutegemm.epilogue import abs, column_max, column_sum, row_sum, square, total_max, where  # noqa: E402
from cutegemm.errors import CutegemmError, UnsupportedError  # noqa: E402
from tests.emulator.on_cpu import emulate_launches  # noqa: E402


def whole(*shape, dtype=torch.float32):
    return torch.randint(-3, 4, shape, dtype=torch.int8).to(dtype)


@pytest.mark.parametrize(
    ("plan", "batch"),
    [
        (None, ()),
        ("sm90:tile=64x64x64,ctas=3,split_k=2", (2,)),
        ("swap_ab:sm90_64x32", ()),
    ],
)
def test_results_in_the_order_of_the_function(monkeypatch, plan, batch):
    emulate_launches(monkeypatch, 3)
    a, b = whole(*batch, 72, 136, dtype=torch.bfloat16), whole(*batch, 80, 136, dtype=torch.bfloat16).mT
    bias = whole(80, dtype=torch.float32)

    def epilogue(acc, bias):
        x = acc + bias
        return x, row_sum(square(x)), where(x > 0, 1, 0), column_max(abs(x)), total_max(abs(x)), column_sum(x)

    d, squares, positive, largest, largest_of_all, accumulators = gemm(a, b, epilogue=epilogue, plan=plan, bias=bias)
    x = a.float() @ b.float() + bias
    assert torch.equal(d, x.to(torch.bfloat16))
    assert torch.equal(positive, (x > 0).to(torch.bfloat16))
    for found, expected in (
        (squares, x.square().sum(-1)),
        (largest, x.abs().amax(-2)),
        (largest_of_all, x.abs().amax((-2, -1))),
        (accumulators, x.sum(-2)),
    ):
        assert found.dtype == torch.float32
        assert found.shape == expected.shape
        assert torch.equal(found, expected)


def test_float64_is_summed_in_float64(monkeypatch):
    emulate_launches(monkeypatch, 2)
    a, b = torch.randn(33, 24, dtype=torch.float64), torch.randn(24, 30, dtype=torch.float64)
    _, found = gemm(a, b, epilogue=lambda acc: (acc, row_sum(square(acc))))
    assert found.dtype == torch.float64
    assert torch.allclose(found, (a @ b).square().sum(-1), rtol=1e-14)


def test_results_are_stored_in_out(monkeypatch):
    emulate_launches(monkeypatch, 2)
    a, b = whole(40, 16), whole(16, 24)
    d, out = torch.full((40, 24), torch.nan), torch.full((40,), torch.nan)
    found = gemm(a, b, epilogue=lambda acc: (acc, row_sum(acc), total_max(acc)), out=(d, out, None))
    assert found[0] is d
    assert found[1] is out
    assert torch.equal(out, (a @ b).sum(-1))
    assert found[2] == (a @ b).max()


@pytest.mark.parametrize(("m", "n"), [(0, 8), (8, 0)])
def test_reductions_of_empty_matrices(monkeypatch, m, n):
    emulate_launches(monkeypatch, 2)
    _, accumulators, largest = gemm(whole(m, 8), whole(8, n), epilogue=lambda acc: (acc, row_sum(acc), total_max(acc)))
    assert accumulators.tolist() == [0.0] * m
    assert largest.item() == -np.inf


@pytest.mark.parametrize(
    ("out", "says"),
    [
        ((None, torch.empty(41)), "out[1], for row_sum(acc), has shape (41,). Pass a tensor of shape (40,)"),
        (
            (None, torch.empty(40, dtype=torch.float16)),
            "out[1], for row_sum(acc), is of float16. Pass a tensor of float32",
        ),
        ((None, torch.empty(80)[::2]), "has strides (2,). Pass a contiguous tensor"),
    ],
)  # fmt: skip
def test_invalid_out_is_an_error(monkeypatch, out, says):
    emulate_launches(monkeypatch, 2)
    with pytest.raises(UnsupportedError) as error:
        gemm(whole(40, 16), whole(16, 24), epilogue=lambda acc: (acc, row_sum(acc)), out=out)
    assert says in str(error.value)


def test_a_reduction_inside_an_expression_is_an_error(monkeypatch):
    emulate_launches(monkeypatch, 2)
    with pytest.raises(CutegemmError, match="is complete only after all of D, so no expression can use it"):
        gemm(whole(8, 16), whole(16, 24), epilogue=lambda acc: acc / row_sum(acc))
