"""Load kernels that `export` wrote to a shared library. This needs neither the DSL nor a compiler.

`load` loads a library that the caller names. Without a call, the process uses the library that the environment variable
CUTEGEMM_LIBRARY names, else one in the folder `prebuilt` of the package, if there is one: see `automatic`.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cutegemm.compile.cache import sources_digest, untrusted
from cutegemm.errors import UnsupportedError, how_to_install

if TYPE_CHECKING:
    from cutegemm.plan.memory.exchange import Exchange
    from cutegemm.plan.memory.rows import RowKernel
    from cutegemm.plan.plan import GemmPlan
    from cutegemm.plan.quantize import Quantize

FORMAT = 2
LIST = "kernels.json"  # file in the zip archive that is appended to the library
LIBRARY = "kernels.so"  # name of the file in a folder of kernels
VARIABLE = "CUTEGEMM_LIBRARY"
PREBUILT = Path(__file__).parents[1] / "prebuilt"  # folder of the package that may hold a library


@dataclass(frozen=True)
class Exported:
    """Describes one kernel in a shared library that `export` wrote: its plan, architecture and function.

    plan     name of the kernel's plan, or of a kernel of the rows of experts
    swaps    True if the plan computes D^T = B^T A^T
    arch     architecture such as "sm_90a"
    key      hash of the plan and the architecture; kernels whose code differs have different keys
    symbol   name of the kernel's function in the library
    """

    plan: str
    swaps: bool
    arch: str
    key: str
    symbol: str

    @property
    def recipe(self) -> str:
        """Name of this kernel's plan, with "swap_ab:" in front if it computes D^T, as `cutegemm explain` prints it."""
        return f"swap_ab:{self.plan}" if self.swaps else self.plan


@dataclass(frozen=True)
class Kernels:
    """The list of the kernels in a shared library that `export` wrote; `load` returns it, too.

    path      path of the library
    kernels   one entry for each kernel
    version   version of cutegemm that wrote the file
    """

    path: Path
    kernels: tuple[Exported, ...]
    version: str

    def __str__(self) -> str:
        count, archs = len(self.kernels), " and ".join(sorted({kernel.arch for kernel in self.kernels}))
        names = ", ".join([kernel.recipe for kernel in self.kernels[:_MOST_NAMES]])
        more = f", and {count - _MOST_NAMES} more" if count > _MOST_NAMES else ""
        return f"{count} kernels for {archs} in {self.path}: {names}{more}"

    @cached_property
    def by_key(self) -> Mapping[str, Exported]:
        """All kernels of this library by their keys, i.e. hashes of plan and architecture."""
        return {kernel.key: kernel for kernel in self.kernels}


_MOST_NAMES = 8


def load(path: str | Path) -> Kernels:
    """Load compiled kernels from a file that `export` wrote, so that later calls run them without compiling.

    The code in the file runs with the rights of this process, so load only files that you trust.

    path      the file, or a folder with a file `kernels.so`. The CuTe DSL's runtime library must be in the same folder,
              if the DSL is not installed
    returns   the list of the kernels in the file
    raises    UnsupportedError if `export` did not write the file, or did so with other sources of cutegemm, whose
              kernels may take other arguments; or if TVM-FFI or a library that the kernels need is missing

    >>> cutegemm.load("kernels.so")  # doctest: +SKIP
    >>> d = cutegemm.gemm(a, b)  # doctest: +SKIP
    """
    path = Path(path).resolve()
    path = path / LIBRARY if path.is_dir() else path
    kernels, sources = _listed(path)
    if sources != sources_digest():
        raise UnsupportedError(
            f"load: {path} was exported by cutegemm {kernels.version}, whose sources differ from the installed "
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
    except (OSError, RuntimeError) as error:
        raise UnsupportedError(f"load: {path} cannot be loaded: {error}") from error
    missing = [kernel.symbol for kernel in kernels.kernels[:1] if not hasattr(library, kernel.symbol)]
    if missing:
        raise UnsupportedError(f"load: {path} cannot be loaded: it has no function {missing[0]}.")
    _LIBRARIES.append((kernels, library))
    return kernels


def _listed(path: Path) -> tuple[Kernels, str]:
    """Return the list of the kernels in a shared library, and the hash of the cutegemm sources that wrote it.

    path     file that `export` wrote
    raises   UnsupportedError if `export` did not write the file, or did so in another format
    """
    try:
        with zipfile.ZipFile(path) as archive:
            manifest = json.loads(archive.read(LIST))
        assert manifest["format"] == FORMAT
        kernels = tuple([Exported(**kernel) for kernel in manifest["kernels"]])
        return Kernels(path, kernels, manifest["version"]), manifest["sources"]
    except (OSError, zipfile.BadZipFile, AssertionError, KeyError, TypeError, ValueError) as error:
        raise UnsupportedError(
            f"load: {path} is not a file of kernels in format {FORMAT} ({error!r}). `cutegemm export` writes such "
            "files."
        ) from error


def automatic() -> None:
    """Load the library of kernels that this process uses even if nobody calls `load`; once per process.

    It is the file or folder that CUTEGEMM_LIBRARY names or, if the variable is not set, `kernels.so` in the package's
    folder `prebuilt`. If the package's library cannot be used, a warning says why. CUTEGEMM_LIBRARY="" switches the
    library off.

    raises   UnsupportedError if CUTEGEMM_LIBRARY names a file that `load` refuses, or whose folder another user can
             write to
    """
    global _is_looked_for
    if _is_looked_for:
        return
    with _looking:
        if _is_looked_for:
            return
        named = os.environ.get(VARIABLE)
        if named:
            _load_named(Path(named))
        elif named is None and (PREBUILT / LIBRARY).exists():
            try:
                load(PREBUILT)
            except UnsupportedError as error:
                warnings.warn(f"The prebuilt kernels of the package are not used. {error}", stacklevel=2)
        _is_looked_for = True


def _load_named(path: Path) -> None:
    """Load the library of kernels that the environment variable CUTEGEMM_LIBRARY names.

    path     value of the variable: a file, or a folder with `kernels.so`
    raises   UnsupportedError if `load` refuses the file, or if another user can write to its folder
    """
    folder = path if path.is_dir() else path.parent
    try:
        wrong = untrusted(folder) if folder.exists() else None
        if wrong:
            raise UnsupportedError(
                f"load: {wrong}, who could run code with the rights of this user. Run chmod go-w on it, or copy the "
                "library to another folder."
            )
        load(path)
    except UnsupportedError as error:
        raise UnsupportedError(f"{VARIABLE}={path}: {error} Unset {VARIABLE} to compile kernels instead.") from error


def recipes(arch: str) -> frozenset[str]:
    """Return the names of all plans that the loaded libraries have kernels for, with any types and layouts of operands.

    A warning says, once for each architecture, if libraries are loaded but have no kernels for it.

    arch     architecture such as "sm_90a"
    raises   UnsupportedError if CUTEGEMM_LIBRARY names a library that cannot be used
    """
    automatic()
    count = len(_LIBRARIES)
    if _RECIPES.get(arch, (0, frozenset()))[0] != count:
        every = [kernel for kernels, _ in _LIBRARIES for kernel in kernels.kernels]
        names = frozenset([kernel.recipe for kernel in every if kernel.arch == arch])
        if not names:
            archs, paths = sorted({kernel.arch for kernel in every}), [str(kernels.path) for kernels, _ in _LIBRARIES]
            warnings.warn(
                f"{' and '.join(paths)} has kernels for {' and '.join(archs)} and none for {arch}, so that kernels are "
                f"compiled. `cutegemm export --device` writes a library for another GPU.",
                stacklevel=2,
            )
        _RECIPES[arch] = count, names
    return _RECIPES.get(arch, (0, frozenset[str]()))[1]


def key_of(plan: GemmPlan | Quantize | Exchange | RowKernel, arch: str) -> str:
    """Return a hash of a plan and an architecture, under which an exported library stores the kernel.

    Kernels whose code differs have different keys.
    """
    return hashlib.sha256(f"{arch}\0{plan.family}\0{plan.key()}".encode()).hexdigest()


def loaded(plan: GemmPlan | RowKernel, arch: str) -> Any:
    """Return the callable kernel of a plan from the loaded libraries; None if none of them has it.

    plan     the plan, or a kernel of the rows of experts
    arch     architecture such as "sm_90a"
    raises   UnsupportedError if CUTEGEMM_LIBRARY names a library that cannot be used
    """
    automatic()
    return function_of(key_of(plan, arch)) if _LIBRARIES else None


def function_of(key: str) -> Any:
    """Return the callable kernel with a given key from the loaded libraries; None if none of them has it.

    key   hash of plan and architecture, as `key_of(plan, arch)` computes it
    """
    for kernels, library in reversed(_LIBRARIES):
        kernel = kernels.by_key.get(key)
        if kernel is not None:
            return getattr(library, kernel.symbol)
    return None


def identity() -> str:
    """Return a text that identifies the loaded libraries by path, size and time of change; "" if none is loaded.

    raises   UnsupportedError if CUTEGEMM_LIBRARY names a library that cannot be used
    """
    automatic()
    status = [(str(kernels.path), kernels.path.stat()) for kernels, _ in _LIBRARIES]
    return "\0".join([f"{path} {facts.st_size} {facts.st_mtime_ns}" for path, facts in status])


_LIBRARIES: list[tuple[Kernels, Any]] = []  # the loaded libraries, the last one first in use
_RECIPES: dict[str, tuple[int, frozenset[str]]] = {}  # architecture -> (number of libraries, what `recipes` returns)
_is_looked_for = False  # whether `automatic` has looked for a library
_looking = threading.Lock()
