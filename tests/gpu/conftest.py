"""What needs a GPU: skipped without one; kernels of the suite are compiled beforehand, on all processors at once."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Once = Callable[[str, Callable[[], Any]], Any]


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
def once(tmp_path_factory) -> Once:
    """`once(name, work)`: what `work` returns, which the first process of this run to ask does; others wait for it."""
    own = tmp_path_factory.getbasetemp()
    folder: Path = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own

    def result(name: str, work: Callable[[], Any]) -> Any:
        file = folder / f"once_{name}.json"
        with (folder / f"once_{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not file.exists():
                file.write_text(json.dumps(work()))
        return json.loads(file.read_text())

    return result


@pytest.fixture(scope="session")
def compiled(arch, once) -> list[str]:
    """Why plans of the suite do not compile; the others are in the disk cache."""

    def compile_all() -> list[str]:
        from cutegemm.run.compile import compile_plans
        from tests.gpu.plans import all_plans

        return [str(error) for error in compile_plans(all_plans(arch), arch) if error is not None]

    return once("compiled", compile_all)
