"""What this Python process can do: compile kernels, multiply torch tensors, and run on a GPU; and why not."""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass
from importlib.util import find_spec

from cutegemm.errors import how_to_install
from cutegemm.machine.arch import ARCHS
from cutegemm.version import __version__


@dataclass(frozen=True)
class Backend:
    """One requirement for running kernels, such as torch or a GPU, and whether this process can use it.

    name        "CuTe DSL", "launcher", "torch" or "GPU"
    serves      what it is needed for, as text for the user
    available   True if it can be used
    detail      version or name if it is available; otherwise the reason and the remedy
    """

    name: str
    serves: str
    available: bool
    detail: str


@dataclass(frozen=True)
class Backends:
    """Report on what this process needs to run kernels: CuTe DSL, launcher, torch, GPU. `print` shows it as a table."""

    backends: tuple[Backend, ...]

    def __getitem__(self, name: str) -> Backend:
        """Return the entry of this report with a given name: "CuTe DSL", "launcher", "torch" or "GPU"."""
        return {backend.name: backend for backend in self.backends}[name]

    def __str__(self) -> str:
        lines = [f"cutegemm {__version__}: layouts, plans, simulation and analysis need numpy alone"]
        for backend in self.backends:
            mark = "yes" if backend.available else "no "
            lines.append(f"  {backend.name:9} {mark}  {backend.serves}: {backend.detail}")
        return "\n".join(lines)

    __repr__ = __str__


def backends() -> Backends:
    """Report which packages that kernels need are installed, and which GPU this machine has.

    For what is missing, the report has the reason and the remedy.

    >>> [backend.name for backend in backends().backends]
    ['CuTe DSL', 'launcher', 'torch', 'GPU']
    >>> print(backends())  # doctest: +ELLIPSIS
    cutegemm ...: layouts, plans, simulation and analysis need numpy alone
      CuTe DSL  ...
    """
    return Backends(
        (
            _package("CuTe DSL", "cutlass", "nvidia-cutlass-dsl", "kernels", "compiles and emulates kernels"),
            _package("launcher", "tvm_ffi", "apache-tvm-ffi", "kernels", "launches compiled kernels"),
            _package("torch", "torch", "torch", "torch", "has the tensors that gemm multiplies"),
            _gpu(),
        )
    )


def _package(name: str, module: str, distribution: str, extra: str, serves: str) -> Backend:
    """Return whether a package is installed, without importing it.

    name           name in the report, such as "launcher"
    module         name with which it is imported, such as "tvm_ffi"
    distribution   its name on a package index
    extra          optional dependency group of cutegemm that installs it
    serves         what it is needed for, as text for the user
    """
    try:
        found = find_spec(module) is not None
        version = importlib.metadata.version(distribution) if found else ""
    except (importlib.metadata.PackageNotFoundError, ValueError):
        version = "of an unknown version"
    missing = f"{distribution} is not installed. {how_to_install(extra)}"
    return Backend(name, serves, found, f"{distribution} {version}" if found else missing)


def _gpu() -> Backend:
    """Return whether torch sees a GPU, and one whose compute capability kernels can be compiled for."""
    serves = "runs kernels"
    if find_spec("torch") is None:
        return Backend("GPU", serves, False, "torch, which finds GPUs, is not installed")
    import torch

    if not torch.cuda.is_available():
        built = torch.version.cuda or "none, a CPU build"
        reason = f"torch {torch.__version__} sees no CUDA device (CUDA of its build: {built})"
        return Backend("GPU", serves, False, f"{reason}. Install a CUDA build of torch on a machine with a GPU.")
    major, minor = torch.cuda.get_device_capability()
    names = [arch.name for arch in ARCHS.values() if arch.capability == 10 * major + minor]
    name = torch.cuda.get_device_name()
    if not names:
        known = ", ".join(str(arch.capability / 10) for arch in ARCHS.values())
        return Backend("GPU", serves, False, f"{name} has compute capability {major}.{minor}; plans exist for {known}")
    return Backend("GPU", serves, True, f"{name}, {names[-1]}")
