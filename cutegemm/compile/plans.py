"""Plans to machine code: for any architecture, without a GPU.

A compiled kernel is a small shared library that TVM-FFI loads: it takes the caller's own tensors, through
DLPack, and runs on the current stream of their framework. Loading one from the disk imports neither the DSL
nor a compiler.
"""

from __future__ import annotations

import functools
import importlib
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any

from cutegemm.compile import cache, cubin, exported, workers
from cutegemm.compile.loading import load_function
from cutegemm.compile.spaces import Sizes, with_workspace
from cutegemm.compile.workspace import sizes_of
from cutegemm.errors import CompileError, CutegemmError, PlanError, UnsupportedError
from cutegemm.machine.arch import DEFAULT_ARCH, arch_named
from cutegemm.plan.arguments import check_is_plan
from cutegemm.plan.memory.workspace import needs_workspace
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.signature import tensor_names

_KERNELS = {
    "simt": "cutegemm.kernels.simt.kernel",
    "mma_sync": "cutegemm.kernels.mma_sync.kernel",
    "sm90": "cutegemm.kernels.sm90.kernel",
}  # by the plan's family; imported when one is compiled
_ESCAPE = re.compile(r"\x1b(\[[0-9;?]*[ -/]*[@-~]|[@-_])")  # ECMA-48: colours and their like
_CODE = re.compile(r":?\s*%\d+ = ")  # where an operation of MLIR begins
_MORE = ("note:", "suggestion:", "module ", "func.func", "gpu.module")
_MOST_LINES, _MOST_COLUMNS = 8, 200
_compiling = threading.Lock()  # the DSL traces one function at a time


class CompiledKernel:
    """A plan's kernel, loaded: `kernel(a, b, *tensors, d, *results, *scalars)`.

    It takes what `plan.epilogue` reads and writes, and nothing else: see `signature_of`. A plan that can
    read C computes d = alpha * a @ b + beta * c by `kernel(a, b, c, d, alpha, beta)`; one that cannot computes
    d = alpha * a @ b by `kernel(a, b, d, alpha)`.

    a, b, c, d   CUDA tensors (torch's, or anything with DLPack), M x K, K x N, M x N, M x N, with L in front
                 if the plan is batched; of the types, strides and alignment of `signature_of(plan)`. c may be d;
                 with beta = 0 it is not read
    raises       UnsupportedError for another number of arguments; ValueError or TypeError, from the checks compiled
                 into the kernel. These do not compare the extents of one tensor with those of another

    It runs on the current stream of the tensors' framework, so a CUDA graph captures it; it allocates nothing
    but, where `needs_workspace`, that. `function` is the same without this object around it.
    """

    def __init__(self, plan: GemmPlan, arch: str, folder: Path | None, function: Any) -> None:
        self.plan, self.arch, self._folder, self.function = plan, arch, folder, function

    def __call__(self, a: Any, b: Any, *operands: Any) -> None:
        epilogue = self.plan.epilogue
        names = (*tensor_names(self.plan)[2:], *epilogue.scalars)
        if len(operands) != len(names):
            raise UnsupportedError(
                f"{self.plan.name}: {2 + len(operands)} arguments are given. Its epilogue is {epilogue}; pass "
                f"({', '.join(('a', 'b', *names))})."
            )
        function = self.function
        if self.needs_workspace:
            batch = a.shape[0] if a.ndim == 3 else 1
            m, n = a.shape[-2], b.shape[-1]
            if self.plan.swap_ab:
                m, n = n, m
            function = self.for_problem(m, n, a.shape[-1], batch)
        function(a, b, *operands)

    @cached_property
    def needs_workspace(self) -> bool:
        """Whether a call allocates memory besides: see `plan.workspace`. `function` then takes it after d.

        One with a pipeline that splits K takes its counters of arrivals first, int32 and zero, as it leaves them.
        """
        return needs_workspace(self.plan)

    def for_problem(self, m: int, n: int, k: int, l: int) -> Any:  # noqa: E741
        """The same for operands of these extents, which are not asked again: for calls that are many."""
        if not self.needs_workspace:
            return self.function
        return with_workspace(self.function, self.sizes(m, n, k, l), len(tensor_names(self.plan)))

    @cached_property
    def sizes(self) -> Callable[[int, int, int, int], Sizes]:
        """The sizes of the workspace for M, N, K and L, remembered for the last few."""
        return functools.lru_cache(maxsize=256)(functools.partial(sizes_of, self.plan))

    @property
    def folder(self) -> Path:
        """The entry of the cache.

        raises   UnsupportedError for a kernel that `cutegemm.load` has loaded
        """
        if self._folder is None:
            raise UnsupportedError(
                f"{self.plan.name} was loaded from a file of kernels, which holds neither its PTX nor its cubin."
            )
        return self._folder

    def __repr__(self) -> str:
        return f"<CompiledKernel {self.plan.name} for {self.arch}>"

    @cached_property
    def ptx(self) -> str:
        """What the DSL wrote for ptxas."""
        return (self.folder / "kernel.ptx").read_text()

    @cached_property
    def sass(self) -> str:
        """The machine code, disassembled."""
        return cubin.disassemble(self.folder / "kernel.cubin")

    @cached_property
    def resources(self) -> cubin.ResourceReport:
        """Registers, stack and instructions, read from the machine code."""
        return cubin.resources((self.folder / "kernel.cubin").read_bytes(), self.sass)

    def violations(self) -> list[str]:
        """Where the machine code takes more than the plan has for it, in words."""
        return self.resources.violations(self.plan, self.arch)


@functools.cache
def compile_plan(plan: GemmPlan, arch: str = DEFAULT_ARCH) -> CompiledKernel:
    """The kernel of a plan for an architecture: from this process, else from the disk, else compiled.

    arch     sm_80, sm_90a, ...: need not be that of this machine, which needs no GPU
    raises   PlanError for a plan that breaks rules there; UnsupportedError without the DSL or a kernel for
             the plan's family; CompileError with what the DSL or ptxas said
    """
    check_is_plan("compile_plan", plan)
    function = exported.loaded(plan, arch)
    if function is not None:
        return CompiledKernel(plan, arch, None, function)
    folder = cache.entry(plan, arch)
    manifest = cache.intact(folder)
    if manifest is not None:
        try:
            return CompiledKernel(plan, arch, folder, load_function(folder, manifest))
        except (OSError, RuntimeError, AttributeError):
            shutil.rmtree(folder, ignore_errors=True)  # linked against libraries that are gone
    with _compiling:  # a thread that waited here may find that another one has compiled it
        manifest = cache.intact(folder) or cache.store(folder, lambda staged: _build(plan, arch, staged))
    try:
        return CompiledKernel(plan, arch, folder, load_function(folder, manifest))
    except (OSError, RuntimeError, AttributeError) as error:
        raise CompileError(f"compile_plan: {plan.name!r} for {arch} is compiled, but does not load: {error}") from error


def compile_plans(
    plans: Iterable[GemmPlan],
    arch: str = DEFAULT_ARCH,
    processes: int | None = None,
    done: Callable[[], None] = lambda: None,
) -> list[CutegemmError | None]:
    """Fills the disk cache with many plans in parallel processes; what each raised, or None.

    processes   as many as there are processors where left out
    done        is called behind each
    raises      CompileError where a process came to a sudden end
    """
    wanted = list(plans)
    count = min(len(wanted), processes or workers.processors())
    if count <= 1:
        found = []
        for plan in wanted:
            found.append(_outcome(plan, arch))
            done()
        return found
    try:
        return workers.spread(_outcome, [(plan, arch) for plan in wanted], count, done)
    except workers.Ended as error:
        raise CompileError(
            "compile_plans: a process came to a sudden end. Is there memory for so many? Pass fewer processes."
        ) from error


def compile_missing(plans: Iterable[GemmPlan], arch: str = DEFAULT_ARCH, least: int = 2) -> None:
    """`compile_plans` of those that the disk cache does not hold; what does not compile says so when it is called.

    least   plans for which processes are worth their start
    """
    found = {plan.key(): plan for plan in plans if cache.intact(cache.entry(plan, arch)) is None}
    if len(found) >= least:
        compile_plans(found.values(), arch)


def _outcome(plan: GemmPlan, arch: str) -> CutegemmError | None:
    try:
        compile_plan(plan, arch)
    except CutegemmError as error:
        return error
    return None


def compiled_into(
    folder: Path,
    plan: GemmPlan,
    arch: str,
    options: str = "",
    around: AbstractContextManager[Any] | None = None,
) -> Any:
    """Traces and compiles a plan; kernel.ptx and kernel.cubin are then in a folder.

    options   of the DSL's, further ones
    around    what it is traced in
    returns   what the DSL made of it
    raises    as `compile_plan`
    """
    violations = plan.violations(arch)
    if violations:
        raise PlanError(f"compile_plan: {plan.name!r} on {arch}", violations)
    if plan.family not in _KERNELS:
        known = ", ".join(_KERNELS)
        raise UnsupportedError(f"compile_plan: no kernel carries out the family {plan.family!r}; there are {known}.")
    try:
        import cutlass.cute as cute

        from cutegemm.kernels.unlogged import spare_the_text_of_modules
    except ImportError as error:
        raise UnsupportedError(
            f"compile_plan: {plan.name!r} is neither compiled nor among kernels that were loaded; compiling needs the "
            "CuTe DSL, on Linux: pip install 'cutegemm[kernels]'."
        ) from error
    kernel = importlib.import_module(_KERNELS[plan.family])
    spare_the_text_of_modules()
    dumped = folder / "dump"
    dumped.mkdir()
    asked = f"--enable-tvm-ffi --gpu-arch {arch} --keep-ptx --keep-cubin --dump-dir {dumped} {options}"
    try:
        # Without the engine that calls it in this process: it is loaded from the folder.
        with around or nullcontext():
            compiled = cute.compile(
                kernel.host_function(plan, arch_named(arch)),
                *kernel.fake_arguments(plan),
                options=asked,
                no_jit_engine=True,
            )
    except Exception as error:
        raise CompileError(
            f"compile_plan: {plan.name!r} for {arch} did not compile: {first_words(str(error))}\n"
            "  The plan breaks no rule that is known here: take another one, and report this one with plan.key(). What "
            "the compiler said in full is this error's __cause__."
        ) from error
    for suffix in ("ptx", "cubin"):
        found = list(dumped.glob(f"*.{suffix}"))
        if len(found) != 1:
            raise CompileError(f"compile_plan: expected one .{suffix} from the DSL, found {len(found)}.")
        os.replace(found[0], folder / f"kernel.{suffix}")
    shutil.rmtree(dumped)
    return compiled


def _build(plan: GemmPlan, arch: str, folder: Path) -> cache.Manifest:
    """Traces, compiles, exports and links a plan into a folder."""
    symbol = symbol_of(plan, arch)
    compiled_into(folder, plan, arch).export_to_c(str(folder / "kernel.o"), function_name=symbol)
    runtime = cache.runtime_library()
    if runtime is not None:
        link([folder / "kernel.o"], folder / "kernel.so", str(runtime.parent))
    return {"plan": plan.name, "arch": arch, "key": plan.key(), "symbol": symbol}


def symbol_of(plan: GemmPlan, arch: str) -> str:
    """The name of the function of a kernel, which is its own, so that several are linked into one library."""
    return f"gemm_{exported.key_of(plan, arch)[:24]}"


def first_words(text: str) -> str:
    """What a compiler said first, in a few lines: without colours, the code that it was about, and what follows.

    >>> first_words("\\x1b[91merror:\\x1b[0m pass failed\\n  error: no such layout: %7 = \\"op\\"(%6)\\n  note: see")
    'error: pass failed\\n  error: no such layout'
    """
    out: list[str] = []
    for line in _ESCAPE.sub("", text).strip().splitlines():
        if len(out) == _MOST_LINES or line.lstrip().startswith(_MORE):
            break
        said = _CODE.split(line, maxsplit=1)
        out.append(said[0].rstrip()[:_MOST_COLUMNS])
        if len(said) > 1:
            break
    return "\n".join([line for line in out if line]) or "nothing was said"


def link(objects: Sequence[Path], library: Path, runtime_in: str) -> bool:
    """Objects to a shared library, where there is a linker; whether there is one, and it did so.

    runtime_in   the folder in which the library finds the runtime of the DSL when it is loaded
    """
    runtime = cache.runtime_library()
    names = (os.environ.get("CC"), "cc", "gcc", "clang")
    linker = next((name for name in names if name and shutil.which(name)), None)
    if linker is None or runtime is None:
        return False
    given = [str(path) for path in (*objects, runtime)]
    command = [linker, "-shared", "-o", str(library), *given, f"-Wl,-rpath,{runtime_in}"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
