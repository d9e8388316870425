"""The kernel that quantizes a matrix, emulated: the bits of the results are those of torch and of numpy."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("cutlass.cute", reason="the CuTe DSL is not installed")
pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi is not installed")

import contextlib  # noqa: E402

from cutegemm.compile import plans  # noqa: E402
from cutegemm.run import torch_ops  # noqa: E402
from cutegemm.torch.quantization import by_torch, launch, results  # noqa: E402
from tests.emulator.on_cpu import emulated  # noqa: E402

GUARD = 12  # elements of NaN after each row
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
CASES = [
    # rows, K, rows of a block, type, type of the values, powers of two
    (37, 300, 1, torch.bfloat16, E4M3, False),
    (5, 131, 1, torch.float32, E5M2, True),
    (130, 260, 128, torch.bfloat16, E4M3, True),
    (129, 77, 128, torch.float16, E4M3, False),
    (1, 1, 1, torch.float32, E4M3, False),
]


@pytest.fixture
def launched(monkeypatch):
    """Let `launch` take the CPU for a Hopper GPU and emulate the kernels. Return the list of these kernels."""
    kernels, compiled = [], plans.compile_quantize

    def take(kernel, arch):
        folder, _ = compiled(kernel, arch)
        kernels.append(kernel)
        return folder, lambda x, values, scales: emulated(folder, (x, values, scales), [x], [values, scales])

    monkeypatch.setattr(plans, "compile_quantize", take)
    monkeypatch.setattr(torch_ops, "device_arch", lambda index: "sm_90a")
    monkeypatch.setattr(torch.cuda, "device", lambda *_: contextlib.nullcontext())
    return kernels


def matrix(rows, k, kind, seed=0):
    """Return numbers of very different sizes in a matrix with NaN after each row: zeros, tiny, infinite and NaN too."""
    torch.manual_seed(seed)
    x = torch.randn(rows, k) * torch.exp(4 * torch.randn(rows, 1))
    x[rows // 2, : k // 3] = 0
    x[-1] *= 1e-36
    x[0, :128] = 0
    if rows > 4:
        x[3, k // 2], x[2, -1] = float("inf"), -float("nan")
    outer = torch.full((rows, k + (-k % 4) + GUARD), float("nan"))
    outer[:, :k] = x
    return outer.to(kind)[:, :k]


def bits(values, scales):
    """Return values and scales as integers. A NaN, whose bits are not defined, is -1."""
    of_values, of_scales = values.view(torch.uint8).int(), scales.contiguous().view(torch.int32)
    return torch.where(values.float().isnan(), -1, of_values), torch.where(scales.isnan(), -1, of_scales)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_bits_of_torch(launched, case):
    rows, k, block, kind, target, power_of_two = case
    x = matrix(rows, k, kind)
    found = results(x, block, target)
    launch(x, *found, block, power_of_two)
    for ours, theirs in zip(bits(*found), bits(*by_torch(x, block, target, power_of_two)), strict=True):
        assert torch.equal(ours, theirs)
    (kernel,) = launched
    assert kernel.vector == (4 if k % 4 == 0 else 1)


def test_a_matrix_that_is_not_contiguous_along_k(launched):
    x = matrix(40, 136, torch.float32).t().contiguous().t()
    found = results(x, 1, E4M3)
    launch(x, *found, 1, False)
    for ours, theirs in zip(bits(*found), bits(*by_torch(x.contiguous(), 1, E4M3, False)), strict=True):
        assert torch.equal(ours, theirs)
