"""The disk cache of compiled kernels.

An entry is a folder, named by a hash of everything that the code depends on. It appears under its name at
once (written beside it, then renamed), and holds a manifest with a hash of every file, so that a damaged
entry is seen and rebuilt.

Code from the cache runs as the user. So the folder must belong to the user (or to root) and be writable by nobody
else, as must its entries: an entry of another owner is compiled anew. With CUTEGEMM_CACHE_TRUST=1 another owner is
accepted, of a shared cache that only the owner can write.
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
    from cutegemm.plan.plan import GemmPlan

Manifest = dict[str, Any]

NO_DSL = "none"  # in the place of a version

_FORMAT = 1
_ROOT = 0  # a user id
_MANIFEST = "manifest.json"
_IMPORTED = time.time()
# Source that decides what is traced and how it is kept.
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
    """$CUTEGEMM_CACHE_DIR, else the platform's folder for the caches of this user."""
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
            "the cache of compiled kernels: this user has no home. Name a folder by CUTEGEMM_CACHE_DIR."
        ) from error
    return home / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "cutegemm"


def entry(plan: GemmPlan, arch: str) -> Path:
    """The folder of a plan's code for an architecture, by this source and this DSL.

    A process whose source was edited after it had begun has entries that no other one finds: what it has
    imported is not what the files say.
    """
    folder = cache_folder()
    try:
        wrong = untrusted(folder) if folder.exists() else None
    except OSError as error:
        raise CompileError(
            f"the cache of compiled kernels {folder} cannot be read: {error}. Name another by CUTEGEMM_CACHE_DIR."
        ) from error
    if wrong:
        raise CompileError(
            f"the cache of compiled kernels {folder}: {wrong}, who could run code as this user. Take the right away "
            "(chmod go-w), or name another folder by CUTEGEMM_CACHE_DIR."
        )
    text = f"{_toolchain()}\0{arch}\0{plan.family}\0{plan.key()}"
    if edited():
        text += f"\0{os.getpid()} {_IMPORTED}"
    return folder / hashlib.sha256(text.encode()).hexdigest()[:40]


def untrusted(folder: Path) -> str | None:
    """Who else may write a folder or the files in it, in words; None where nobody may, and on Windows."""
    if not hasattr(os, "getuid"):
        return None
    owners = {_ROOT, os.getuid()}
    is_vouched_for = os.environ.get("CUTEGEMM_CACHE_TRUST") == "1"
    for path in (folder, *(file for file in folder.iterdir() if file.is_file())):
        facts = path.stat()
        if facts.st_uid not in owners and not is_vouched_for:
            return f"{path} belongs to the user {facts.st_uid}"
        if facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and (path == folder or folder.stat().st_mode & 0o011):
            who = "everybody" if facts.st_mode & stat.S_IWOTH else f"the group {facts.st_gid}"
            return f"{path} may be written by {who}"
    for parent in folder.resolve().parents:
        facts = parent.stat()
        if facts.st_mode & stat.S_IWOTH and not facts.st_mode & stat.S_ISVTX:
            return f"{parent} may be written by everybody"
    return None


def intact(folder: Path) -> Manifest | None:
    """The manifest of an entry, or None where a file is missing or damaged, or others may write it."""
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
    """Builds an entry beside its place, then gives it its name. Of two processes, the first one wins.

    build    writes the files into the folder it is given, and returns what the manifest is to say
    raises   CompileError where the entry cannot be written
    """
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        staged = Path(tempfile.mkdtemp(prefix=".building-", dir=folder.parent))
    except OSError as error:
        raise CompileError(
            f"the cache of compiled kernels cannot be written: {error}. Name a folder by CUTEGEMM_CACHE_DIR."
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
        raise CompileError(f"the cache entry {folder} was damaged as it was written; is the disk full?")
    return written


def _publish(staged: Path, final: Path) -> None:
    """Renames a finished entry; a damaged one in its way is moved aside first."""
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
    raise CompileError(f"the cache entry {final} can neither be written nor replaced; remove it.")


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


@cache
def _sources() -> tuple[Path, ...]:
    sources = [Path(__file__).parents[1] / name for name in _SOURCES]
    return tuple([file for s in sources for file in ([s] if s.suffix else sorted(s.rglob("*.py")))])


def edited() -> bool:
    """Whether a source has changed since this process imported the package."""
    try:
        return any(file.stat().st_mtime > _IMPORTED for file in _sources())
    except FileNotFoundError:
        return True


@cache
def sources_digest() -> str:
    """One hash of the sources that decide what a kernel is and how it is called."""
    digest = hashlib.sha256()
    package = Path(__file__).parents[1]
    for file in _sources():
        digest.update(str(file.relative_to(package)).encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()


@cache
def _toolchain() -> str:
    """One hash a process of all that decides the code besides the plan and the architecture."""
    digest = hashlib.sha256(sources_digest().encode())
    for part in (str(_FORMAT), dsl_version(), platform.machine(), sys.platform, str(runtime_library())):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()


def dsl_version() -> str:
    """The installed CuTe DSL, without importing it."""
    try:
        return importlib.metadata.version("nvidia-cutlass-dsl")
    except importlib.metadata.PackageNotFoundError:
        spec = importlib.util.find_spec("cutlass")
        return f"at {spec.origin}" if spec else NO_DSL


@cache
def runtime_library() -> Path | None:
    """libcute_dsl_runtime.so of the DSL, which compiled kernels call; found without importing it."""
    spec = importlib.util.find_spec("cutlass")
    if spec is None or spec.origin is None:
        return None
    root = Path(spec.origin).resolve().parents[2]
    found = sorted(root.glob("cu*/lib/libcute_dsl_runtime.so"), reverse=True)
    return next(iter([*found, *root.glob("lib/libcute_dsl_runtime.so")]), None)
