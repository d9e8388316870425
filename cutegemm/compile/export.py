"""Kernels in one shared library, to be taken to where there is no DSL and no compiler: see `exported`.

The library is linked of the objects that the cache keeps of each kernel. Behind it, in the same file, follows an
archive that lists them. The kernels call a runtime library of the DSL, which is copied beside it.
"""

from __future__ import annotations

import importlib.metadata
import json
import shutil
import zipfile
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from cutegemm.compile import cache
from cutegemm.compile.exported import FORMAT, LIST, Exported, Kernels, key_of
from cutegemm.compile.plans import compile_missing, compile_plan, link, symbol_of
from cutegemm.errors import CompileError, UnsupportedError
from cutegemm.machine.arch import DEFAULT_ARCH
from cutegemm.plan.plan import GemmPlan


def export(plans: Iterable[GemmPlan], path: str | Path, arch: str = DEFAULT_ARCH) -> Kernels:
    """Writes the kernels of plans for an architecture into one file, which `cutegemm.load` reads.

    plans    each may come several times
    path     such as kernels.so; the runtime library that the kernels call is copied into its folder
    raises   as `compile_plan`; CompileError where there is no linker, UnsupportedError where nothing is to be exported
             or the file cannot be written

    >>> cutegemm.export([plan_named("sm90_overlapped_2x1", operands)], "kernels.so")  # doctest: +SKIP
    """
    path, wanted = Path(path), list({key_of(plan, arch): plan for plan in plans}.values())
    if not wanted:
        raise UnsupportedError("export: there are no plans to export.")
    compile_missing(wanted, arch)
    objects = [compile_plan(plan, arch).folder / "kernel.o" for plan in wanted]
    runtime = cache.runtime_library()
    assert runtime is not None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not link(objects, path, "$ORIGIN"):
            raise CompileError("export: kernels are linked by cc, gcc or clang; none was found, or it failed.")
        if not (path.parent / runtime.name).exists():
            shutil.copyfile(runtime, path.parent / runtime.name)
        found = Kernels(path, tuple([Exported(p.name, arch, key_of(p, arch), symbol_of(p, arch)) for p in wanted]))
        listed = {
            "format": FORMAT,
            "version": _version(),
            "sources": cache.sources_digest(),
            "kernels": [asdict(one) for one in found.kernels],
        }
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr(LIST, json.dumps(listed, indent=1))
    except OSError as error:
        raise UnsupportedError(f"export: {path} cannot be written: {error}.") from error
    return found


def _version() -> str:
    try:
        return importlib.metadata.version("cutegemm")
    except importlib.metadata.PackageNotFoundError:
        return "of no version"
