"""Sums and maxima over rows, columns and all of D in graphs, under transformations and with gradients, on the CPU."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.nn.functional as F  # noqa: E402

import cutegemm  # noqa: E402
from cutegemm.epilogue import column_max, column_sum, halves, row_max, row_sum, silu, square, total_sum  # noqa: E402
from cutegemm.errors import PlanError  # noqa: E402
from cutegemm.torch.autograd import product  # noqa: E402
from cutegemm.torch.epilogue import text_of_function  # noqa: E402
from tests.torch.cases import close, gradients, normal  # noqa: E402


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch):
    """`cutegemm.gemm` as if the CPU were a GPU."""
    monkeypatch.setattr("cutegemm.torch.gemm.wrong_devices", lambda given: [])


def plain(a, b, bias, residual):
    """RMSNorm's sums of squares of a residual, and others, by one product."""

    def epilogue(acc, bias, residual):
        x = acc + bias + residual
        return x, row_sum(square(x)), column_max(acc), total_sum(silu(x)), column_sum(acc + bias), row_max(x)

    return cutegemm.gemm(a, b, epilogue=epilogue, bias=bias, residual=residual)


def plain_by_torch(a, b, bias, residual):
    acc = a @ b
    x = acc + bias + residual
    accumulators = (acc + bias).sum(-2)
    return x, x.square().sum(-1), acc.amax(-2), F.silu(x).sum((-2, -1)), accumulators, x.amax(-1)


def gated(a, b, bias, residual):
    def epilogue(acc, bias, residual):
        gate, up = halves(acc + bias)
        y = silu(gate) * up + residual
        return y, row_sum(square(y)), gate, column_max(up)

    return cutegemm.gemm(a, b, epilogue=epilogue, bias=bias, residual=residual)


def gated_by_torch(a, b, bias, residual):
    gate, up = (a @ b + bias).chunk(2, -1)
    y = F.silu(gate) * up + residual
    return y, y.square().sum(-1), gate, up.amax(-2)


def operands(*lead, columns):
    return (
        normal(*lead, 5, 6, grad=True), normal(*lead, 6, 8, seed=1, grad=True), normal(8, seed=2, grad=True),
        normal(*lead, 5, columns, seed=3, grad=True),
    )  # fmt: skip


@pytest.mark.parametrize("lead", [(), (2,)])
@pytest.mark.parametrize(("ours", "theirs", "columns"), [(plain, plain_by_torch, 8), (gated, gated_by_torch, 4)])
def test_values_and_gradients(ours, theirs, columns, lead):
    given = operands(*lead, columns=columns)
    close(ours(*given), theirs(*given))
    close(gradients(ours(*given), given), gradients(theirs(*given), given))
    if not lead:
        assert torch.autograd.gradgradcheck(ours, given)
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    close(gradients(compiled(*given), given), gradients(theirs(*given), given))


def test_a_gradient_of_one_sum_alone():
    """It is as wide as D also where no other result has one."""
    a, b = normal(5, 6, grad=True), normal(6, 8, seed=1, grad=True)
    found = cutegemm.gemm(a, b, epilogue=lambda acc: (acc, row_sum(acc)))[1]
    close(gradients(found, (a, b)), gradients((a @ b).sum(-1), (a, b)))


def test_of_equal_maxima_each_has_its_part():
    a, b = torch.ones(2, 3, dtype=torch.float64, requires_grad=True), torch.eye(3, dtype=torch.float64)
    found = cutegemm.gemm(a, b, epilogue=lambda acc: (acc, row_max(acc)))[1]
    close(torch.autograd.grad(found.sum(), a), [torch.full((2, 3), 1 / 3, dtype=torch.float64)])


@pytest.mark.parametrize("in_dims", [(0, None), (0, 0), (None, 0)])
def test_vmap(in_dims):
    """Rows of a batch with one b are rows of one product, but not where columns are reduced."""
    a, b = normal(3, 5, 6), normal(3, 6, 8, seed=1)
    given = [x if dim == 0 else x[0] for x, dim in zip((a, b), in_dims, strict=True)]
    for text in (
        "lambda acc: (relu(acc), row_max(acc))",
        "lambda acc: (acc, column_sum(acc), total_max(acc))",
    ):

        def call(a, b, text=text):
            return tuple(product(a, (b,), text))

        found = torch.vmap(call, in_dims=in_dims)(*given)
        for i in range(3):
            one = [x[i] if dim == 0 else x for x, dim in zip(given, in_dims, strict=True)]
            close([each[i] for each in found], call(*one))


def test_the_operator_has_fakes_and_gradients():
    given = (
        normal(5, 6, grad=True), [normal(6, 8, seed=1, grad=True)],
        "lambda acc, c: (acc * c, row_sum(acc), total_max(acc))",
        [normal(8, seed=2, grad=True)], [], None, None, "fast", False, False, False, False,
    )  # fmt: skip
    found = torch.library.opcheck(torch.ops.cutegemm.gemm.default, given)
    assert set(found.values()) == {"SUCCESS"}


def test_sums_of_float32_whatever_d_is():
    a, b = normal(5, 6, dtype=torch.bfloat16), normal(6, 8, seed=1, dtype=torch.bfloat16)
    d, accumulators = product(a, (b,), "lambda acc: (acc, row_sum(acc))")
    assert (d.dtype, accumulators.dtype) == (torch.bfloat16, torch.float32)
    close([accumulators], [(a.float() @ b.float()).sum(-1)], 1e-6)
    whole = torch.ones(2, 3, dtype=torch.int8)
    assert product(whole, (whole.mT,), "lambda acc: (acc, row_max(acc))")[1].tolist() == [3.0, 3.0]


def test_of_no_values():
    _, accumulators, largest = product(
        torch.zeros(0, 4), (torch.zeros(4, 3),), "lambda acc: (acc, column_sum(acc), total_max(acc))"
    )
    assert (accumulators.tolist(), largest.item()) == ([0.0, 0.0, 0.0], -torch.inf)


def test_columns_that_a_gated_result_does_not_have():
    with pytest.raises(PlanError, match=r"aux = row_sum\(acc\) reduces all columns of A @ B, D half of them"):
        text_of_function(lambda acc: (halves(acc)[0], row_sum(acc)), (), ())
