"""Batch invariance on the GPU: rows of batches of 1 to 8192 have the same bits at every place."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402

import cutegemm  # noqa: E402
from cutegemm.epilogue import gelu, swiglu  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("arch")]

BATCHES = (1, 2, 7, 16, 33, 64, 100, 128, 200, 256, 511, 1024, 2048, 4096, 8192)
TYPES = {
    "bf16": (torch.bfloat16, {}), "f16": (torch.float16, {}), "f32": (torch.float32, {}),
    "tf32": (torch.float32, {"allow_tf32": True}), "e4m3": (torch.float8_e4m3fn, {"out_dtype": torch.bfloat16}),
    "e4m3 promoted": (torch.float8_e4m3fn, {"out_dtype": torch.bfloat16, "accumulate": "promoted"}),
}  # fmt: skip


def numbers(*shape, dtype=torch.bfloat16, seed=0):
    """Return numbers of very different size, whose sum depends on the order of the additions."""
    generator = torch.Generator("cuda").manual_seed(seed)
    powers = torch.randint(-3, 4, shape, device="cuda", generator=generator)
    return (torch.randn(shape, device="cuda", generator=generator) * 2.0**powers).to(dtype)


def assert_invariant(call, x, batches=BATCHES):
    """Assert that a call gives rows the same bits in batches of all sizes, at the beginning, the middle and the end."""
    whole = call(x)
    for count in batches:
        for first in {0, (len(x) - count) // 2, len(x) - count}:
            assert torch.equal(call(x[first : first + count]), whole[first : first + count]), (count, first)


@pytest.mark.parametrize("varying_rows", [False, True])
@pytest.mark.parametrize(("n", "k"), [(4096, 4096), (1000, 1000), (256, 8192)])
@pytest.mark.parametrize("name", TYPES)
def test_rows_of_gemm(name, n, k, varying_rows):
    dtype, how = TYPES[name]
    x, w = numbers(BATCHES[-1], k, dtype=dtype), numbers(n, k, dtype=dtype, seed=1)
    if dtype.itemsize == 1 and k % 16:
        pytest.skip("rows of fp8 that are not aligned to 16 bytes are copied")
    how = {**how, "varying_rows": varying_rows, "batch_invariant": True}
    assert_invariant(lambda x: cutegemm.gemm(x, w.t(), **how), x, BATCHES[:: 1 if not varying_rows else 3])


EPILOGUES = {
    "bias and gelu": lambda x, w, bias: cutegemm.gemm(
        x, w.t(), epilogue=lambda acc, bias: gelu(acc + bias), bias=bias
    ),
    "two products": lambda x, w, bias: cutegemm.gemm(
        x, w.t(), epilogue=lambda acc, bias, s: s * acc + s * bias, bias=bias, s=0.3
    ),
    "gated": lambda x, w, bias: cutegemm.gemm(x, w.t(), epilogue=lambda acc: swiglu(acc)),
    "residual": lambda x, w, bias: cutegemm.gemm(x, w.t(), c=x[:, : len(w)].contiguous(), alpha=0.7, beta=0.3),
    "linear": lambda x, w, bias: cutegemm.linear(x, w, bias, "silu"),
}  # fmt: skip


@pytest.mark.parametrize("name", EPILOGUES)
def test_rows_with_epilogues(name):
    x, w, bias = numbers(BATCHES[-1], 4096), numbers(2048, 4096, seed=1), numbers(2048, seed=2)
    with cutegemm.batch_invariant():
        assert_invariant(lambda x: EPILOGUES[name](x, w, bias), x)


def test_models_and_gradients_of_their_inputs():
    layers = nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)
    model, x = nn.Sequential(*layers).to("cuda", torch.bfloat16), numbers(4096, 1024)

    def with_gradient(x):
        x = x.detach().requires_grad_()
        y = model(x)
        (gradient,) = torch.autograd.grad(y.square().sum(), x)
        return torch.cat([y.detach(), gradient], 1)

    with cutegemm.use(model, batch_invariant=True):
        assert_invariant(with_gradient, x, (1, 33, 256, 4096))
        with torch.no_grad():
            assert_invariant(torch.compile(model, dynamic=True), x, (1, 33, 256, 4096))


def test_cuda_graphs():
    x, w = numbers(64, 4096), numbers(4096, 4096, seed=1)
    with cutegemm.batch_invariant():
        whole = cutegemm.gemm(numbers(8192, 4096).copy_(x.repeat(128, 1)), w.t())
        cutegemm.gemm(x, w.t())
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            d = cutegemm.gemm(x, w.t())
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(d, whole[:64])
