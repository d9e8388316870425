"""Kernels that were compiled elsewhere, in one shared library: see `export`. Loading needs no DSL and no compiler."""

from __future__ import annotations

import hashlib
import json
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cutegemm.compile.cache import sources_digest
from cutegemm.errors import UnsupportedError, how_to_install

if TYPE_CHECKING:
    from cutegemm.plan.plan import GemmPlan

FORMAT = 1
LIST = "kernels.json"  # of the archive that follows the library in its file


@dataclass(frozen=True)
class Exported:
    """A kernel of a library.

    plan     the name of its plan
    key      of the plan and the architecture: see `key_of`
    symbol   of its function
    """

    plan: str
    arch: str
    key: str
    symbol: str


@dataclass(frozen=True)
class Kernels:
    """What a file of kernels holds."""

    path: Path
    kernels: tuple[Exported, ...]

    def __str__(self) -> str:
        names = ", ".join([f"{one.plan} for {one.arch}" for one in self.kernels])
        return f"{len(self.kernels)} kernels of {self.path}: {names}"


def load(path: str | Path) -> Kernels:
    """Lets this process take kernels from a file that `cutegemm export` wrote: neither the DSL nor a compiler is asked.

    path      the file; beside it lies the library that the kernels call, unless the DSL is installed
    returns   what it holds
    raises    UnsupportedError where the file is no such file, or is of other sources of cutegemm, whose kernels may
              take other arguments; where TVM-FFI is missing, or a library that the kernels need

    A call whose plan is among them runs at once. Code from the file runs as this process: load what you trust.

    >>> cutegemm.load("kernels.so")  # doctest: +SKIP
    >>> d = cutegemm.gemm(a, b)  # doctest: +SKIP
    """
    path = Path(path).resolve()
    try:
        with zipfile.ZipFile(path) as archive:
            held = json.loads(archive.read(LIST))
        assert held["format"] == FORMAT
        found = Kernels(path, tuple([Exported(**one) for one in held["kernels"]]))
    except (OSError, zipfile.BadZipFile, AssertionError, KeyError, TypeError, ValueError) as error:
        raise UnsupportedError(
            f"load: {path} is no file of kernels of format {FORMAT} ({error!r}). `cutegemm export` writes one."
        ) from error
    if held["sources"] != sources_digest():
        raise UnsupportedError(
            f"load: the kernels of {path} are of cutegemm with other sources ({held['version']}). Export them anew "
            "with this one, or install that."
        )
    try:
        import tvm_ffi
    except ImportError as error:
        raise UnsupportedError(
            f"load: kernels are called through TVM-FFI, which is not installed. {how_to_install('kernels')}"
        ) from error
    try:
        library = tvm_ffi.load_module(str(path))
        _LOADED.update({one.key: getattr(library, one.symbol) for one in found.kernels})
    except (OSError, RuntimeError, AttributeError) as error:
        raise UnsupportedError(f"load: {path}: {error}") from error
    return found


def key_of(plan: GemmPlan, arch: str) -> str:
    """What two kernels differ in that are compiled otherwise."""
    return hashlib.sha256(f"{arch}\0{plan.family}\0{plan.key()}".encode()).hexdigest()


def loaded(plan: GemmPlan, arch: str) -> Any:
    """The function of a plan's kernel, or None where no file that was loaded has it."""
    return _LOADED.get(key_of(plan, arch)) if _LOADED else None


_LOADED: dict[str, Any] = {}
