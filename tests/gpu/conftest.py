"""What needs a GPU: skipped without one, and its kernels compiled beforehand, on all processors at once."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def arch():
    """The architecture of the GPU that is here."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi is not installed")
    from cutegemm.run.torch_ops import device_arch

    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    return device_arch(0)


@pytest.fixture(scope="session")
def compiled(arch):
    """All plans of the suite, in the disk cache."""
    from cutegemm.run.compile import compile_plans
    from tests.gpu.cases import all_plans

    failed = [str(error) for error in compile_plans(all_plans(), arch) if error is not None]
    assert failed == []
