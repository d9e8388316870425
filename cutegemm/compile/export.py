"""Export kernels to one shared library, for machines without the DSL and without a compiler.

The library is linked from the object files in the cache. A zip archive that lists the kernels is appended to the same
file. The runtime library of the DSL, which the kernels call, is copied to the same folder. `exported` loads the file.
"""

from __future__ import annotations

import importlib.metadata
import json
import shutil
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path

from cutegemm.compile import cache
from cutegemm.compile.exported import FORMAT, LIST, Exported, Kernels, key_of
from cutegemm.compile.plans import compile_missing, folder_of, link, symbol_of
from cutegemm.errors import CompileError, UnsupportedError
from cutegemm.machine.arch import DEFAULT_ARCH
from cutegemm.plan.memory.rows import RowKernel
from cutegemm.plan.plan import GemmPlan


def export(
    plans: Iterable[GemmPlan | RowKernel],
    path: str | Path,
    arch: str = DEFAULT_ARCH,
    processes: int | None = None,
    done: Callable[[], None] = lambda: None,
) -> Kernels:
    """Compile kernel plans and write them to one shared library, which `cutegemm.load` reads without a compiler.

    plans       plans to export, and kernels of the rows of experts, such as the `plans` of `prepare`; one that occurs
                several times is exported once
    path        file to write, such as kernels.so; the runtime library of the CuTe DSL is copied to the same folder
    arch        architecture such as "sm_90a"
    processes   number of processes that compile; None: the number of processors
    done        function that is called after each plan that is compiled, e.g. to show progress
    returns     the list of the kernels in the file
    raises      the errors of `compile_plan`; CompileError if linking fails, for example without a linker;
                UnsupportedError if `plans` is empty or the file cannot be written

    >>> cutegemm.export([plan_named("sm90_overlapped_2x1", operands)], "kernels.so")  # doctest: +SKIP
    >>> cutegemm.export(cutegemm.prepare(model, rows=range(1, 2049)).plans, "kernels.so")  # doctest: +SKIP
    """
    path, wanted = Path(path), list({key_of(plan, arch): plan for plan in plans}.values())
    if not wanted:
        raise UnsupportedError("export: plans is empty. Pass at least one plan.")
    compile_missing(wanted, arch, processes=processes, done=done)
    objects = [folder_of(plan, arch) / "kernel.o" for plan in wanted]
    runtime = cache.runtime_library()
    assert runtime is not None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not link(objects, path, "$ORIGIN"):
            raise CompileError(
                f"export: {path} was not linked. Install cc, gcc or clang, or set CC to a linker that accepts -shared."
            )
        if not (path.parent / runtime.name).exists():
            shutil.copyfile(runtime, path.parent / runtime.name)
        kernels = tuple([Exported(p.name, p.swap_ab, arch, key_of(p, arch), symbol_of(p, arch)) for p in wanted])
        version = _version()
        manifest = {
            "format": FORMAT,
            "version": version,
            "sources": cache.sources_digest(),
            "kernels": [asdict(kernel) for kernel in kernels],
        }
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr(LIST, json.dumps(manifest, indent=1))
    except OSError as error:
        raise UnsupportedError(f"export: {path} cannot be written: {error}.") from error
    return Kernels(path, kernels, version)


def _version() -> str:
    """Return the version of the installed cutegemm; the text "of no version" if it is not installed as a package."""
    try:
        return importlib.metadata.version("cutegemm")
    except importlib.metadata.PackageNotFoundError:
        return "of no version"
