"""Operators of nvidia-cutlass-operators on a GPU: results, streams, and torch's NVGEMM backend."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("cutlass.operators", reason="nvidia-cutlass-operators is not installed")

import cutlass.operators as ops
import torch

from cutegemm.interop.operators import register

pytestmark = pytest.mark.gpu


@pytest.fixture
def provider(arch: str) -> Any:
    if arch != "sm_90a":
        pytest.skip("the operators are for Hopper")
    return register()


def integers(*shape: int) -> Any:
    """Return a bf16 tensor of small integers, whose products are exact in f32."""
    return torch.randint(-3, 4, shape, device="cuda").bfloat16()


@pytest.mark.parametrize("shape", [(512, 384, 256), (1, 4096, 512), (33, 40, 24)])
def test_every_operator_computes_the_product(provider, shape):
    m, n, k = shape
    a, b = integers(m, k), integers(n, k).t()
    expected = (a.float() @ b.float()).bfloat16()
    args = ops.GemmArguments(a, b, torch.empty_like(expected), torch.float32)
    operators = ops.get_operators(args, target_sm="90a", providers=[provider])
    assert operators
    for operator in operators:
        out = torch.full_like(expected, torch.nan)
        operator.run(ops.GemmArguments(a, b, out, torch.float32))
        assert torch.equal(out, expected), operator.metadata.operator_name


def test_a_batch_and_an_epilogue(provider):
    a, b, c = integers(3, 96, 64), integers(3, 80, 64).mT, integers(3, 96, 80)
    bias, out, aux = integers(80), torch.empty_like(c), torch.empty_like(c)
    source = (
        "def epilogue(accum, C, bias, scale):\n    F = accum * scale + bias\n    D = relu(F) + C\n    return D, F\n"
    )
    epilogue = ops.EpilogueArguments(source, C=c, bias=bias, scale=0.5, D=out, F=aux)
    args = ops.GemmArguments(a, b, out, torch.float32, epilogue)
    operator, *_ = ops.get_operators(args, target_sm="90a", providers=[provider])
    operator.run(args, operator.compile(args))
    expected = a.float() @ b.float() * 0.5 + bias
    assert torch.equal(aux, expected.bfloat16())
    assert torch.equal(out, (expected.relu() + c).bfloat16())


@pytest.mark.parametrize("as_handle", [False, True])
def test_the_kernel_runs_on_the_stream_that_is_passed(provider, as_handle):
    """The stream waits for a long kernel before A is filled, so a launch on another stream would read zeros."""
    from cuda.bindings.driver import CUstream

    a, b = torch.zeros(256, 256, device="cuda", dtype=torch.bfloat16), integers(256, 256).t()
    out, stream = torch.empty_like(a), torch.cuda.Stream()
    args = ops.GemmArguments(a, b, out, torch.float32)
    operator, *_ = ops.get_operators(args, target_sm="90a", providers=[provider])
    operator.run(args)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        a.fill_(1)
    operator.run(args, stream=CUstream(stream.cuda_stream) if as_handle else stream)
    torch.cuda.synchronize()
    assert torch.equal(out, (torch.ones_like(a).float() @ b.float()).bfloat16())


def test_the_backend_of_torch_compiles_with_an_operator(provider, monkeypatch):
    """torch.compile times the operators of cutegemm among others, and the result is that of torch."""
    inductor_utils = pytest.importorskip("torch._inductor.utils")
    is_available = getattr(inductor_utils, "ensure_nv_universal_gemm_available", None)
    if is_available is None:
        pytest.skip("this torch has no NVGEMM backend")
    cache = pytest.importorskip("torch._inductor.codegen.nv_universal_gemm.kernel_cache")
    if "cutlass_api" in inspect.getsource(cache):
        pytest.skip("the NVGEMM backend of this torch takes kernels of cutlass_api, not of nvidia-cutlass-operators")
    assert is_available()
    register(first=True)
    from torch._inductor import config

    monkeypatch.setattr(config, "max_autotune_gemm_backends", "NVGEMM")
    a, b = integers(512, 256), integers(384, 256).t()
    compiled = torch.compile(torch.matmul, mode="max-autotune-no-cudagraphs", dynamic=False)
    assert torch.equal(compiled(a, b), (a.float() @ b.float()).bfloat16())
