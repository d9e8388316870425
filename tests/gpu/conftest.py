"""What needs a GPU: skipped without one; kernels of the suite are compiled beforehand, on all processors at once."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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


@pytest.fixture(autouse=True)
def _seeded(arch) -> None:
    """Random numbers are the same whichever tests run before."""
    import torch

    torch.manual_seed(0)


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory) -> Path:
    """A folder of this run, the same one for all its processes."""
    own: Path = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """One process at a time; others wait."""
    with file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture
def much_memory(arch, shared_folder) -> Iterator[None]:
    """For a test that takes a large part of the GPU's memory: one at a time, which gives it back."""
    import torch

    with locked(shared_folder / "much_memory.lock"):
        torch.cuda.empty_cache()
        yield
        torch.cuda.empty_cache()


@pytest.fixture(scope="session")
def once(shared_folder) -> Once:
    """`once(name, work)`: what `work` returns, which the first process of this run to ask does; others wait for it."""

    def result(name: str, work: Callable[[], Any]) -> Any:
        file = shared_folder / f"once_{name}.json"
        with locked(shared_folder / f"once_{name}.lock"):
            if not file.exists():
                file.write_text(json.dumps(work()))
        return json.loads(file.read_text())

    return result


@pytest.fixture(scope="session")
def compiled(arch, once) -> list[str]:
    """Why plans of the suite do not compile; the others are in the disk cache."""

    def compile_all() -> list[str]:
        from cutegemm.compile.plans import compile_plans
        from tests.gpu.plans import all_plans

        return [str(error) for error in compile_plans(all_plans(arch), arch) if error is not None]

    return once("compiled", compile_all)
