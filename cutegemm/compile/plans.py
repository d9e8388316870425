"""Compile plans to machine code, for any architecture; no GPU is needed.

A compiled kernel is a small shared library, which TVM-FFI loads. Its function takes tensors of any framework through
DLPack, and runs on the current stream of that framework. Loading a kernel from the disk cache needs neither the DSL
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
from cutegemm.errors import CompileError, CutegemmError, PlanError, UnsupportedError, how_to_install
from cutegemm.machine.arch import DEFAULT_ARCH, arch_named
from cutegemm.plan.arguments import check_is_plan
from cutegemm.plan.memory.exchange import Exchange
from cutegemm.plan.memory.rows import RowKernel
from cutegemm.plan.memory.workspace import needs_workspace
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.quantize import Quantize
from cutegemm.plan.signature import tensor_names

_KERNELS = {
    "simt": "cutegemm.kernels.simt.kernel",
    "mma_sync": "cutegemm.kernels.mma_sync.kernel",
    "sm90": "cutegemm.kernels.sm90.kernel",
    "quantize": "cutegemm.kernels.quantize",
    "exchange": "cutegemm.kernels.exchange",
    "rows": "cutegemm.kernels.rows",
}  # modules by the family of the plan, imported when a plan is compiled
_ESCAPE = re.compile(r"\x1b(\[[0-9;?]*[ -/]*[@-~]|[@-_])")  # control sequences of ECMA-48, such as colours
_CODE = re.compile(r":?\s*%\d+ = ")  # start of an MLIR operation
_MORE = ("note:", "suggestion:", "module ", "func.func", "gpu.module")  # lines that follow the error itself
_MOST_LINES, _MOST_COLUMNS = 8, 200
_compiling = threading.Lock()  # the DSL can trace only one function at a time
_was_forked_while_compiling = False  # then the DSL's state in this process is that of a function traced to the half


def _after_fork() -> None:
    """Reset the compiler's lock in a process made by `fork`, because the thread that held it does not exist there."""
    global _compiling, _was_forked_while_compiling
    _was_forked_while_compiling |= _compiling.locked()
    _compiling = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class CompiledKernel:
    """The loaded kernel of a plan, called as `kernel(a, b, c, d, alpha, beta)` for d = alpha * a @ b + beta * c.

    A plan that cannot read C is called as `kernel(a, b, d, alpha)`. A plan with an epilogue expression is called with
    the tensors that the expression reads, then D, its auxiliary outputs, and its scalars: for gelu(acc * s + bias) it
    is `kernel(a, b, bias, d, s)`. The order is that of `signature_of(plan)`.

    a, b, c, d   CUDA tensors of any framework with DLPack, of shape (M, K), (K, N), (M, N) and (M, N), with L in front
                 if the plan is batched. c may be d; c is not read if beta is 0
    raises       UnsupportedError for another number of arguments. ValueError or TypeError for wrong types or strides.
                 That the extents of different tensors match is not checked

    The kernel runs on the current stream of the tensors' framework, so a CUDA graph can capture it. It allocates memory
    only if `needs_workspace`. `function` is the kernel's function without this object. `library_key` is the key of the
    kernel in a loaded library, or None if it comes from the disk cache.
    """

    def __init__(
        self, plan: GemmPlan, arch: str, folder: Path | None, function: Any, library_key: str | None = None
    ) -> None:
        self.plan, self.arch, self._folder, self.function, self.library_key = plan, arch, folder, function, library_key

    def __call__(self, a: Any, b: Any, *operands: Any) -> None:
        epilogue = self.plan.epilogue
        names = (*tensor_names(self.plan)[2:], *epilogue.scalars)
        if len(operands) != len(names):
            raise UnsupportedError(
                f"{self.plan.name}: the kernel got {2 + len(operands)} arguments. Its epilogue is {epilogue}. Pass "
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
        """True if this kernel needs a workspace in global memory, e.g. for the partial accumulators of split-K.

        The attribute `function` takes the workspace after the results. If the plan has warp roles and splits K, it
        takes an int32 tensor of semaphores before the workspace; they must be zero, and are zero again after the
        launch.
        """
        return needs_workspace(self.plan)

    def for_problem(self, m: int, n: int, k: int, l: int) -> Any:  # noqa: E741
        """Return a faster function that calls this kernel for problems of the given extents only.

        It takes the same arguments as the kernel and provides the workspace. It is faster because it does not read the
        extents from the tensors.

        m, n, k, l   extents; l is the number of batches
        """
        if not self.needs_workspace:
            return self.function
        return with_workspace(self.function, self.sizes(m, n, k, l), len(tensor_names(self.plan)))

    @cached_property
    def sizes(self) -> Callable[[int, int, int, int], Sizes]:
        """Function that returns the sizes of this kernel's workspace (`Sizes`) for a problem (M, N, K, L).

        It remembers its last 256 results.
        """
        return functools.lru_cache(maxsize=256)(functools.partial(sizes_of, self.plan))

    @property
    def folder(self) -> Path:
        """Folder of this kernel in the disk cache, with its PTX and cubin.

        raises   UnsupportedError for a kernel that `cutegemm.load` has loaded
        """
        if self._folder is None:
            raise UnsupportedError(
                f"{self.plan.name}: the kernel was loaded by `cutegemm.load` from a file, which has neither PTX nor "
                "cubin. Compile the plan in a process that has not loaded the file."
            )
        return self._folder

    def __repr__(self) -> str:
        return f"<CompiledKernel {self.plan.name} for {self.arch}>"

    @cached_property
    def ptx(self) -> str:
        """PTX of this kernel, as the CuTe DSL generated it."""
        return (self.folder / "kernel.ptx").read_text()

    @cached_property
    def sass(self) -> str:
        """Machine code of this kernel, as nvdisasm prints it."""
        return cubin.disassemble(self.folder / "kernel.cubin")

    @cached_property
    def resources(self) -> cubin.ResourceReport:
        """Registers, stack size and instruction counts of this kernel, read from its cubin."""
        return cubin.resources((self.folder / "kernel.cubin").read_bytes(), self.sass)

    def violations(self) -> list[str]:
        """Return one sentence for each way that this kernel exceeds what its plan allows, e.g. in registers."""
        return self.resources.violations(self.plan, self.arch)


@functools.cache
def compile_plan(plan: GemmPlan, arch: str = DEFAULT_ARCH) -> CompiledKernel:
    """Return the kernel of a plan, ready to be called; it is compiled if neither a library nor the disk cache has it.

    arch     architecture such as "sm_80" or "sm_90a"; it may differ from this machine's, and no GPU is needed
    raises   PlanError if the plan breaks rules on the architecture; UnsupportedError if the DSL is not installed or no
             kernel implements the plan's family; CompileError with the message of the DSL or ptxas
    """
    check_is_plan("compile_plan", plan)
    function = exported.loaded(plan, arch)
    if function is not None:
        return CompiledKernel(plan, arch, None, function, exported.key_of(plan, arch))
    return CompiledKernel(plan, arch, *_compiled(plan, arch))


@functools.cache
def compile_quantize(quantize: Quantize, arch: str = DEFAULT_ARCH) -> tuple[Path, Any]:
    """Return the kernel that quantizes a matrix to float8; it is compiled if the disk cache does not have it.

    quantize   describes the kernel: types, and the block of elements that shares a scale
    arch       architecture such as "sm_90a"
    returns    the kernel's folder in the disk cache, and its function (matrix, values, scales) -> None
    raises     the errors of `compile_plan`
    """
    return _compiled(quantize, arch)


@functools.cache
def compile_rows(kernel: RowKernel, arch: str = DEFAULT_ARCH) -> tuple[Path, Any]:
    """Return a kernel of the rows of experts; it is compiled if the disk cache does not have it.

    arch      architecture such as "sm_90a"
    returns   the kernel's folder in the disk cache, and its function, whose arguments are those of `kernels.rows`
    raises    the errors of `compile_plan`
    """
    return _compiled(kernel, arch)


@functools.cache
def compile_exchange(exchange: Exchange, arch: str = DEFAULT_ARCH) -> tuple[Path, Any]:
    """Return an exchange kernel of ranks, compiled if the disk cache does not have it.

    exchange   describes the kernel: operation, ranks and element type
    arch       architecture such as "sm_90a"
    returns    the kernel's folder in the disk cache, and its function; see `kernels.exchange.Exchanger`
    raises     the errors of `compile_plan`
    """
    return _compiled(exchange, arch)


def folder_of(plan: GemmPlan | RowKernel, arch: str) -> Path:
    """Return the folder of a kernel in the disk cache; it is compiled if the cache does not have it.

    arch     architecture such as "sm_90a"
    raises   the errors of `compile_plan`; UnsupportedError if a loaded library has the plan
    """
    return compile_rows(plan, arch)[0] if isinstance(plan, RowKernel) else compile_plan(plan, arch).folder


def _compiled(plan: GemmPlan | Quantize | Exchange | RowKernel, arch: str) -> tuple[Path, Any]:
    """Return the folder of a kernel in the disk cache and its callable function, after compiling it if needed.

    arch   architecture such as "sm_90a"
    """
    folder = cache.entry(plan, arch)
    manifest = cache.intact(folder)
    if manifest is not None:
        try:
            return folder, load_function(folder, manifest)
        except (OSError, RuntimeError, AttributeError):
            shutil.rmtree(folder, ignore_errors=True)  # it was linked against a library that has been removed
    with _compiling:  # another thread may have compiled the plan while this one waited
        manifest = cache.intact(folder) or _stored(plan, arch, folder)
    try:
        return folder, load_function(folder, manifest)
    except (OSError, RuntimeError, AttributeError) as error:
        raise CompileError(
            f"compile_plan: {plan.name!r} for {arch} was compiled, but cannot be loaded: {error}"
        ) from error


def _stored(plan: GemmPlan | Quantize | Exchange | RowKernel, arch: str, folder: Path) -> cache.Manifest:
    """Compile a plan into the disk cache, and return the manifest of the new entry.

    If this process was forked while another thread compiled, the DSL's state is unusable, and a new process compiles.

    arch     architecture such as "sm_90a"
    folder   folder of the entry
    raises   the errors of `compile_plan`
    """
    if not _was_forked_while_compiling:
        return cache.store(folder, lambda staged: _build(plan, arch, staged))
    (error,) = workers.map_in_processes(compile_error, [(plan, arch)], 1)
    manifest = cache.intact(folder)
    if error is not None or manifest is None:
        raise error or CompileError(f"compile_plan: the entry {folder} that another process compiled is damaged.")
    return manifest


def compile_plans(
    plans: Iterable[GemmPlan | RowKernel],
    arch: str = DEFAULT_ARCH,
    processes: int | None = None,
    done: Callable[[], None] = lambda: None,
) -> list[CutegemmError | None]:
    """Compile many plans into the disk cache, in parallel processes.

    arch        architecture such as "sm_90a"
    processes   number of processes; None: the number of processors
    done        function that is called after each plan, e.g. to show progress
    returns     for each plan, the error that its compilation raised, or None
    raises      CompileError if a process exits early
    """
    wanted = list(plans)
    count = min(len(wanted), processes or workers.processors())
    if count <= 1:
        errors = []
        for plan in wanted:
            errors.append(compile_error(plan, arch))
            done()
        return errors
    try:
        return workers.map_in_processes(compile_error, [(plan, arch) for plan in wanted], count, done)
    except workers.WorkerExited as error:
        raise CompileError(
            f"compile_plans: one of {count} processes exited early; perhaps memory ran out. Pass a smaller `processes`."
        ) from error


def compile_missing(
    plans: Iterable[GemmPlan | RowKernel],
    arch: str = DEFAULT_ARCH,
    least: int = 2,
    processes: int | None = None,
    done: Callable[[], None] = lambda: None,
) -> None:
    """Compile those plans that are not in the disk cache yet, in parallel processes.

    Errors are ignored here: a plan that does not compile raises its error when it is called.

    arch        architecture such as "sm_90a"
    least       if fewer plans than this are missing, nothing is compiled, because starting processes is not worth the
                time
    processes   number of processes; None: the number of processors
    done        function that is called once for each plan, compiled or not
    """
    missing = {}
    for plan in plans:
        if cache.intact(cache.entry(plan, arch)) is None:
            missing[plan.key()] = plan
        else:
            done()
    if len(missing) >= least:
        compile_plans(missing.values(), arch, processes, done)


def compile_error(plan: GemmPlan | Quantize | Exchange | RowKernel, arch: str) -> CutegemmError | None:
    """Compile a plan into the disk cache; return the error instead of raising it, or None if it compiled.

    Worker processes call this.

    arch   architecture such as "sm_90a"
    """
    try:
        if isinstance(plan, Quantize):
            compile_quantize(plan, arch)
        elif isinstance(plan, Exchange):
            compile_exchange(plan, arch)
        elif isinstance(plan, RowKernel):
            compile_rows(plan, arch)
        else:
            compile_plan(plan, arch)
    except CutegemmError as error:
        return error
    return None


def compiled_into(
    folder: Path,
    plan: GemmPlan | Quantize | Exchange | RowKernel,
    arch: str,
    options: str = "",
    around: AbstractContextManager[Any] | None = None,
) -> Any:
    """Trace and compile a plan with the CuTe DSL, and write kernel.ptx and kernel.cubin to a folder.

    arch      architecture such as "sm_90a"
    options   additional compiler options for the DSL
    around    context manager that is entered while the plan is traced and compiled; None for none
    returns   the DSL's compiled function
    raises    the errors of `compile_plan`
    """
    violations = list(plan.violations(arch))
    if violations:
        raise PlanError(f"compile_plan: {plan.name!r} on {arch}", violations)
    if plan.family not in _KERNELS:
        known = ", ".join(_KERNELS)
        raise UnsupportedError(
            f"compile_plan: {plan.name!r} is of the family {plan.family!r}, which no kernel implements. The families "
            f"are {known}."
        )
    try:
        import cutlass.cute as cute

        from cutegemm.kernels.unlogged import spare_the_text_of_modules
    except ImportError as error:
        raise UnsupportedError(
            f"compile_plan: {plan.name!r} is neither in the cache nor among the loaded kernels. Compiling needs the "
            f"CuTe DSL, on Linux. {how_to_install('kernels')}"
        ) from error
    kernel = importlib.import_module(_KERNELS[plan.family])
    spare_the_text_of_modules()
    dumped = folder / "dump"
    dumped.mkdir()
    options = f"--enable-tvm-ffi --gpu-arch {arch} --keep-ptx --keep-cubin --dump-dir {dumped} {options}"
    try:
        # no_jit_engine: the kernel is loaded from the folder later, not called through the DSL.
        with around or nullcontext():
            compiled = cute.compile(
                kernel.host_function(plan, arch_named(arch)),
                *kernel.fake_arguments(plan),
                options=options,
                no_jit_engine=True,
            )
    except Exception as error:
        raise CompileError(
            f"compile_plan: {plan.name!r} for {arch} did not compile: {short_message(str(error))}\n"
            "  The plan does not break any rule that cutegemm checks. Use another plan, and report this one with "
            "plan.key(). The compiler's full message is this error's __cause__."
        ) from error
    for suffix in ("ptx", "cubin"):
        files = list(dumped.glob(f"*.{suffix}"))
        if len(files) != 1:
            raise CompileError(
                f"compile_plan: {plan.name!r} for {arch}: the DSL wrote {len(files)} .{suffix} files instead of 1. "
                "Report the plan with plan.key()."
            )
        os.replace(files[0], folder / f"kernel.{suffix}")
    shutil.rmtree(dumped)
    return compiled


def _build(plan: GemmPlan | Quantize | Exchange | RowKernel, arch: str, folder: Path) -> cache.Manifest:
    """Compile a plan and write its object file and shared library to a folder, for an entry of the disk cache.

    Without a linker, only the object file is written.

    folder    folder to write to
    returns   the description of the entry: a dict with "plan" (name), "arch", "key" (hash of plan and architecture) and
              "symbol" (name of the function)
    """
    symbol = symbol_of(plan, arch)
    compiled_into(folder, plan, arch).export_to_c(str(folder / "kernel.o"), function_name=symbol)
    runtime = cache.runtime_library()
    if runtime is not None:
        link([folder / "kernel.o"], folder / "kernel.so", str(runtime.parent))
    return {"plan": plan.name, "arch": arch, "key": plan.key(), "symbol": symbol}


def symbol_of(plan: GemmPlan | Quantize | Exchange | RowKernel, arch: str) -> str:
    """Return the name of a kernel's function in its object file, which contains a hash of plan and architecture.

    So it differs for kernels with different code, and several can be linked into one library.
    """
    return f"gemm_{exported.key_of(plan, arch)[:24]}"


def short_message(text: str) -> str:
    """Shorten a compiler's message to at most 8 lines, without colours, quoted code and notes.

    >>> short_message("\\x1b[91merror:\\x1b[0m pass failed\\n  error: no such layout: %7 = \\"op\\"(%6)\\n  note: see")
    'error: pass failed\\n  error: no such layout'
    """
    out: list[str] = []
    for line in _ESCAPE.sub("", text).strip().splitlines():
        if len(out) == _MOST_LINES or line.lstrip().startswith(_MORE):
            break
        message_and_code = _CODE.split(line, maxsplit=1)
        out.append(message_and_code[0].rstrip()[:_MOST_COLUMNS])
        if len(message_and_code) > 1:
            break
    return "\n".join([line for line in out if line]) or "the compiler printed no message"


def link(objects: Sequence[Path], library: Path, runtime_in: str) -> bool:
    """Link object files and the CuTe DSL's runtime library to a shared library; return True if that succeeds.

    objects      object files
    library      file to write
    runtime_in   folder where the library looks for the runtime library when it is loaded (rpath)
    returns      False without a linker or the DSL, or if linking fails
    """
    runtime = cache.runtime_library()
    names = (os.environ.get("CC"), "cc", "gcc", "clang")
    linker = next((name for name in names if name and shutil.which(name)), None)
    if linker is None or runtime is None:
        return False
    inputs = [str(path) for path in (*objects, runtime)]
    command = [linker, "-shared", "-o", str(library), *inputs, f"-Wl,-rpath,{runtime_in}"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
