"""Load kernels that `export` wrote to a shared library. This needs neither the DSL nor a compiler."""

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
    from cutegemm.plan.quantize import Quantize

FORMAT = 1
LIST = "kernels.json"  # file in the zip archive that is appended to the library


@dataclass(frozen=True)
class Exported:
    """A kernel in an exported library.

    plan     name of the plan
    arch     architecture such as "sm_90a"
    key      hash of the plan and the architecture, from `key_of`
    symbol   name of the kernel's function in the library
    """

    plan: str
    arch: str
    key: str
    symbol: str


@dataclass(frozen=True)
class Kernels:
    """The list of the kernels in a shared library that `export` wrote.

    path      the file
    kernels   one entry for each kernel
    """

    path: Path
    kernels: tuple[Exported, ...]

    def __str__(self) -> str:
        names = ", ".join([f"{kernel.plan} for {kernel.arch}" for kernel in self.kernels])
        return f"{len(self.kernels)} kernels in {self.path}: {names}"


def load(path: str | Path) -> Kernels:
    """Load the kernels in a file that `export` wrote. Later calls with these plans run them without compiling.

    The code in the file runs with the rights of this process, so load only files that you trust.

    path      the file. The DSL's runtime library must be in the same folder, unless the DSL is installed
    returns   the list of the kernels in the file
    raises    UnsupportedError if `export` did not write the file, or did so with other sources of cutegemm, whose
              kernels may take other arguments; or if TVM-FFI or a library that the kernels need is missing

    >>> cutegemm.load("kernels.so")  # doctest: +SKIP
    >>> d = cutegemm.gemm(a, b)  # doctest: +SKIP
    """
    path = Path(path).resolve()
    try:
        with zipfile.ZipFile(path) as archive:
            manifest = json.loads(archive.read(LIST))
        assert manifest["format"] == FORMAT
        kernels = Kernels(path, tuple([Exported(**kernel) for kernel in manifest["kernels"]]))
    except (OSError, zipfile.BadZipFile, AssertionError, KeyError, TypeError, ValueError) as error:
        raise UnsupportedError(
            f"load: {path} is not a file of kernels in format {FORMAT} ({error!r}). `cutegemm export` writes such "
            "files."
        ) from error
    if manifest["sources"] != sources_digest():
        raise UnsupportedError(
            f"load: {path} was exported by cutegemm {manifest['version']}, whose sources differ from the installed "
            "ones. Export the kernels again, or install that version."
        )
    try:
        import tvm_ffi
    except ImportError as error:
        raise UnsupportedError(
            f"load: kernels are called through TVM-FFI, which is not installed. {how_to_install('kernels')}"
        ) from error
    try:
        library = tvm_ffi.load_module(str(path))
        _LOADED.update({kernel.key: getattr(library, kernel.symbol) for kernel in kernels.kernels})
    except (OSError, RuntimeError, AttributeError) as error:
        raise UnsupportedError(f"load: {path} cannot be loaded: {error}") from error
    return kernels


def key_of(plan: GemmPlan | Quantize, arch: str) -> str:
    """Return a hash of the plan and the architecture, the key of a kernel in a file of exported kernels.

    Kernels whose code differs have different keys.
    """
    return hashlib.sha256(f"{arch}\0{plan.family}\0{plan.key()}".encode()).hexdigest()


def loaded(plan: GemmPlan, arch: str) -> Any:
    """Return the loaded function of a plan's kernel; None if no file passed to `load` has it."""
    return _LOADED.get(key_of(plan, arch)) if _LOADED else None


_LOADED: dict[str, Any] = {}
