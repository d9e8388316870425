"""Tensors without numbers: on the meta device, as fakes, and with extents by name."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

import cutegemm  # noqa: E402
from cutegemm.errors import UnsupportedError  # noqa: E402
from cutegemm.run.gemm import plan_of  # noqa: E402
from cutegemm.torch import addmm, mm, scaled_mm  # noqa: E402
from tests.torch.functions import FUNCTIONS, differentiable  # noqa: E402


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch):
    """`cutegemm.gemm` as if the CPU were a GPU."""
    monkeypatch.setattr("cutegemm.torch.gemm.wrong_devices", lambda given: [])


def kinds(results):
    results = results if isinstance(results, tuple) else (results,)
    return [None if x is None else (x.shape, x.dtype, x.stride()) for x in results]


def with_gradients(function):
    """Its results, and the gradients of their sum by all that it takes."""

    def call(*tensors):
        results = function(*tensors)
        results = [x for x in (results if isinstance(results, tuple) else (results,)) if x is not None]
        return (*results, *torch.autograd.grad(sum(x.sum() for x in results), tensors))

    return call


@pytest.mark.parametrize("name", FUNCTIONS)
def test_on_the_meta_device(name):
    function, shapes = FUNCTIONS[name]
    tensors = differentiable(*shapes)
    meta = [x.detach().to("meta").requires_grad_() for x in tensors]
    assert kinds(with_gradients(function)(*meta)) == kinds(with_gradients(function)(*tensors))
    with torch.no_grad():
        found = function(*meta)
    assert all(x is None or x.is_meta for x in (found if isinstance(found, tuple) else (found,)))


@pytest.mark.parametrize("mode", ["fake", "symbolic"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_traced(name, mode):
    """Into a graph of operators, forward and backward, which then computes the same."""
    function, shapes = FUNCTIONS[name]
    tensors = differentiable(*shapes)
    graph = make_fx(with_gradients(function), tracing_mode=mode)(*tensors)
    for ours, eager in zip(graph(*tensors), with_gradients(function)(*tensors), strict=True):
        torch.testing.assert_close(ours, eager)


def test_gemm_on_the_meta_device(monkeypatch):
    monkeypatch.undo()
    a, b, c = (torch.empty(shape, device="meta", dtype=torch.bfloat16) for shape in ((4, 6), (6, 8), (4, 8)))
    assert kinds(cutegemm.gemm(a, b)) == [((4, 8), torch.bfloat16, (8, 1))]
    assert cutegemm.gemm(a, b, out_dtype=torch.float32).dtype == torch.float32
    assert cutegemm.gemm(a, b, c=c, beta=1.0, out=c) is c
    d, aux = cutegemm.gemm(a, b, c=c, epilogue=lambda acc, c, s: ((acc + c) * s, acc), s=2.0)
    assert d.is_meta
    assert kinds(aux) == kinds(cutegemm.gemm(a[None], b[None])[0])
    assert mm(a, b, out=c) is addmm(c, a, b, out=c)
    by_bytes, scale = a.to(torch.float8_e4m3fn), torch.empty((), device="meta")
    assert scaled_mm(by_bytes, b.to(torch.float8_e5m2), scale, 0, scale, 0).is_meta
    with pytest.raises(UnsupportedError, match="a has 6 columns, b has 4 rows"):
        cutegemm.gemm(a, c)
    with pytest.raises(UnsupportedError, match=r"a is on meta, b is on cpu\. Pass tensors on a CUDA device"):
        cutegemm.gemm(a, torch.ones(6, 8, dtype=torch.bfloat16))
    with pytest.raises(UnsupportedError, match=r"a and b are on meta\. Pass tensors on a CUDA device"):
        plan_of(a, b)


def test_fakes_of_a_gpu():
    with FakeTensorMode():
        x, w = torch.empty(5, 8, device="cuda"), torch.empty(6, 8, device="cuda")
        scale = torch.empty((), device="cuda")
        assert cutegemm.gemm_gated(x, w.t())[1].shape == (5, 3)
        assert cutegemm.gemm(x, w.t()).shape == (5, 6)
        x, w = x.to(torch.float8_e4m3fn), w.to(torch.float8_e4m3fn)
        of_bytes = scaled_mm(x, w.t(), scale, "TensorWise", scale, "TensorWise")
        assert (of_bytes.shape, of_bytes.dtype) == ((5, 6), torch.bfloat16)
