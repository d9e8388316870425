"""The disk cache of compiled kernels.

An entry is a folder. Its name is a hash of everything that the machine code depends on. It is written under a temporary
name, then renamed, so that no other process sees half of it. Its manifest has a hash of every file, so that a damaged
entry is noticed and compiled again.

Code from the cache runs with the rights of the user. So the cache folder and its entries must belong to the user or to
root, and nobody else may be able to write to them. An entry that breaks this rule is compiled again.
CUTEGEMM_CACHE_TRUST=1 also accepts another owner, for a shared cache that only its owner can write to.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cutegemm.errors import CompileError

if TYPE_CHECKING:
    from cutegemm.plan.memory.exchange import Exchange
    from cutegemm.plan.memory.rows import RowKernel
    from cutegemm.plan.plan import GemmPlan
    from cutegemm.plan.quantize import Quantize

Manifest = dict[str, Any]

NO_DSL = "none"  # what `dsl_version` returns if the DSL is not installed

_FORMAT = 1
_ROOT = 0  # user id
_MANIFEST = "manifest.json"
_IMPORTED = time.time()
# Source files and folders that the machine code and the format of an entry depend on.
_SOURCES = (
    "dtypes.py",
    "layout",
    "machine",
    "tile",
    "plan",
    "kernels",
    "compile/cache.py",
    "compile/plans.py",
)


def cache_folder() -> Path:
    """Return the folder of compiled kernels: $CUTEGEMM_CACHE_DIR, else the user's cache folder on this platform.

    raises   CompileError if the variable is not set and the user has no home folder
    """
    named = os.environ.get("CUTEGEMM_CACHE_DIR")
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME")
    if base:
        return Path(base) / "cutegemm"
    try:
        home = Path.home()
    except RuntimeError as error:
        raise CompileError(
            "the cache of compiled kernels: this user has no home folder. Set CUTEGEMM_CACHE_DIR to a folder."
        ) from error
    return home / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "cutegemm"


def entry(plan: GemmPlan | Quantize | Exchange | RowKernel, arch: str) -> Path:
    """Return the folder in the disk cache for the compiled kernel of a plan. It may not exist yet.

    Its name is a hash of the plan, the architecture, cutegemm's sources and the version of the CuTe DSL. If a source
    file was edited after this process imported it, the name is unique to the process, because its code differs from the
    files on the disk.

    arch     architecture that the plan is compiled for
    raises   CompileError if the cache cannot be read, or if another user can write to it
    """
    folder = cache_folder()
    try:
        wrong = untrusted(folder) if folder.exists() else None
    except OSError as error:
        raise CompileError(
            f"the cache of compiled kernels {folder} cannot be read: {error}. Set CUTEGEMM_CACHE_DIR to another folder."
        ) from error
    if wrong:
        raise CompileError(
            f"the cache of compiled kernels {folder}: {wrong}, who could run code with the rights of this user. Run "
            "chmod go-w on it, or set CUTEGEMM_CACHE_DIR to another folder."
        )
    text = f"{_toolchain()}\0{arch}\0{plan.family}\0{plan.key()}"
    if edited():
        text += f"\0{os.getpid()} {_IMPORTED}"
    return folder / hashlib.sha256(text.encode()).hexdigest()[:40]


def untrusted(folder: Path) -> str | None:
    """Return a sentence that says how another user could write to a folder or its files; None if nobody else can.

    Code from such a folder must not be executed. On Windows nothing is checked, and the result is None.
    """
    if not hasattr(os, "getuid"):
        return None
    owners = {_ROOT, os.getuid()}
    accepts_any_owner = os.environ.get("CUTEGEMM_CACHE_TRUST") == "1"
    for path in (folder, *(file for file in folder.iterdir() if file.is_file())):
        status = path.stat()
        if status.st_uid not in owners and not accepts_any_owner:
            return f"{path} belongs to the user {status.st_uid}"
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and (path == folder or folder.stat().st_mode & 0o011):
            who = "everybody" if status.st_mode & stat.S_IWOTH else f"the group {status.st_gid}"
            return f"{path} may be written by {who}"
    for parent in folder.resolve().parents:
        status = parent.stat()
        if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
            return f"{parent} may be written by everybody"
    return None


def intact(folder: Path) -> Manifest | None:
    """Check a folder of the kernel cache, and return its manifest; None if it cannot be used.

    That is so if a file is missing or does not match its hash, or if another user can write to the folder.

    folder    folder of one compiled kernel
    returns   the manifest is a dict with "plan" (name), "arch", "key" (hash of plan and architecture), "symbol" (name
              of the function) and "files" (hash by file name)
    """
    try:
        if untrusted(folder):
            return None
        manifest: Manifest = json.loads((folder / _MANIFEST).read_text())
        for name, digest in manifest["files"].items():
            if _digest(folder / name) != digest:
                return None
        return manifest
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return None


def store(folder: Path, build: Callable[[Path], Manifest]) -> Manifest:
    """Build a cache entry in a temporary folder, rename it to `folder`, and return its manifest.

    So no other process sees a half-written entry. If another process stores the same entry first, that one stays and
    its manifest is returned.

    folder   final folder of the compiled kernel
    build    function that writes the files of the entry to the folder that it receives, and returns the manifest: a
             dict with "plan" (name), "arch", "key" (hash of plan and architecture) and "symbol" (name of the function)
    raises   CompileError if the entry cannot be written
    """
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        staged = Path(tempfile.mkdtemp(prefix=".building-", dir=folder.parent))
    except OSError as error:
        raise CompileError(
            f"the cache of compiled kernels cannot be written: {error}. Set CUTEGEMM_CACHE_DIR to another folder."
        ) from error
    try:
        facts = build(staged)
        files = {file.name: _digest(file) for file in sorted(staged.iterdir())}
        manifest = {"format": _FORMAT, **facts, "dsl": dsl_version(), "files": files}
        (staged / _MANIFEST).write_text(json.dumps(manifest, indent=1))
        _publish(staged, folder)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    written = intact(folder)
    if written is None:
        raise CompileError(
            f"the cache entry {folder} is damaged right after it was written. Free some disk space, or set "
            "CUTEGEMM_CACHE_DIR to a folder on another disk."
        )
    return written


def _publish(staged: Path, final: Path) -> None:
    """Rename a finished folder of the kernel cache to its final name; a damaged folder of that name is removed first.

    staged   temporary folder with the compiled kernel
    final    final folder. If another process has stored an intact kernel there, that one stays
    raises   CompileError if neither succeeds in three attempts
    """
    for _ in range(3):
        try:
            os.rename(staged, final)
            return
        except OSError:
            if intact(final) is not None:
                return
            aside = Path(tempfile.mkdtemp(prefix=".damaged-", dir=final.parent))
            with contextlib.suppress(OSError):
                os.rename(final, aside / "entry")
            shutil.rmtree(aside, ignore_errors=True)
    raise CompileError(f"the cache entry {final} can neither be written nor replaced. Remove that folder.")


def _digest(file: Path) -> str:
    """Return the SHA-256 hash of a file's content, in hexadecimal."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


@cache
def _sources() -> tuple[Path, ...]:
    """Return the Python files of cutegemm that the machine code of kernels depends on, e.g. those in `plan`."""
    sources = [Path(__file__).parents[1] / name for name in _SOURCES]
    return tuple([file for s in sources for file in ([s] if s.suffix else sorted(s.rglob("*.py")))])


def edited() -> bool:
    """Return True if a source file of cutegemm that kernels depend on was changed or removed after the import."""
    try:
        return any(file.stat().st_mtime > _IMPORTED for file in _sources())
    except FileNotFoundError:
        return True


@cache
def sources_digest() -> str:
    """Return a SHA-256 hash of cutegemm's source files that the machine code or the arguments of kernels depend on."""
    digest = hashlib.sha256()
    package = Path(__file__).parents[1]
    for file in _sources():
        digest.update(str(file.relative_to(package)).encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()


@cache
def _toolchain() -> str:
    """Return a hash of what all cached kernels depend on: sources, cache format, DSL, platform, runtime library."""
    digest = hashlib.sha256(sources_digest().encode())
    for text in (str(_FORMAT), dsl_version(), platform.machine(), sys.platform, str(runtime_library())):
        digest.update(text.encode() + b"\0")
    return digest.hexdigest()


def dsl_version() -> str:
    """Return the version of the installed CuTe DSL, without importing it.

    It is "at PATH" if the DSL was not installed as a package, and the constant `NO_DSL` if it is not installed at all.
    """
    try:
        return importlib.metadata.version("nvidia-cutlass-dsl")
    except importlib.metadata.PackageNotFoundError:
        path = _dsl()
        return NO_DSL if path is None else f"at {path}"


def _dsl() -> str | None:
    """Return the path of the CuTe DSL's module `cutlass`, without importing it; None if it is not installed.

    A folder named cutlass without such a module does not count: nvidia-cutlass-operators has one.
    """
    spec = importlib.util.find_spec("cutlass")
    return None if spec is None else spec.origin


@cache
def has_dsl() -> bool:
    """Return True if the CuTe DSL can be imported, so that plans can be compiled. It is not imported here."""
    return _dsl() is not None


@cache
def runtime_library() -> Path | None:
    """Return the path of the CuTe DSL's libcute_dsl_runtime.so, which compiled kernels call; None without the DSL.

    The DSL is not imported.
    """
    path = _dsl()
    if path is None:
        return None
    root = Path(path).resolve().parents[2]
    by_cuda_version = sorted(root.glob("cu*/lib/libcute_dsl_runtime.so"), reverse=True)
    return next(iter([*by_cuda_version, *root.glob("lib/libcute_dsl_runtime.so")]), None)
