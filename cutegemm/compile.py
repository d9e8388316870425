"""Plans to machine code: compile for any architecture without a GPU, read the code back, keep it on disk.

A compiled kernel is a small shared library that TVM-FFI loads: it takes the caller's own tensors, through DLPack, and runs
on the current stream of their framework. Loading one from the disk imports neither the DSL nor a compiler.

An entry of the cache is a folder, named by a hash of everything that the code depends on, that appears under its name at once
(written beside it, then renamed), and holds a manifest with a hash of every file, so that a damaged entry is seen and rebuilt.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from .errors import CutegemmError, UnsupportedError

ENTRY_FORMAT = 1
SYMBOL = "gemm"                 # the exported function of every entry
_TRACED = ("layout", "tile", "plan", "kernels")   # packages whose source decides what is traced
_compiling = threading.Lock()   # the DSL traces one function at a time


class CompileError(CutegemmError):
    """The DSL, ptxas or the linker refused a plan; the message holds what it said."""


# --- what was compiled, read back ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ResourceReport:
    """What one kernel takes of the machine, read from its cubin.

    registers       of a thread
    stack_bytes     of a thread: local memory, so anything but 0 means spills or an indexed array
    static_smem_bytes
                    what the cubin itself declares; what is asked for at launch is in the plan
    code_bytes      of the kernel
    instructions    how often each opcode stands in the code, with its modifiers: {"LDS.128": 48, "FFMA": 1024, ...}
    """

    kernel: str
    registers: int
    stack_bytes: int
    static_smem_bytes: int
    code_bytes: int
    instructions: Mapping[str, int]

    def count(self, opcode: str) -> int:
        """Instructions whose opcode is `opcode` or `opcode` with further modifiers: "LDS" counts "LDS.128" too.

        >>> ResourceReport("k", 32, 0, 0, 64, {"LDS": 3, "LDS.128": 2, "LDSM": 1}).count("LDS")
        5
        """
        return sum(n for name, n in self.instructions.items() if name == opcode or name.startswith(opcode + "."))

    @property
    def spills(self) -> int:
        """Loads from and stores to local memory in the code."""
        return self.count("LDL") + self.count("STL")


# Attributes of a cubin's .nv.info section: records (format u8, attribute u8, size u16), as nvdisasm -elf and readelf -x show.
_EIFMT_SVAL = 0x04
_EIATTR_REGCOUNT = 0x2F
_EIATTR_FRAME_SIZE = 0x11


def _sections(cubin: bytes) -> dict[str, tuple[int, int]]:
    """Name -> (offset, size) of the sections of a 64-bit little-endian ELF file."""
    if cubin[:6] != b"\x7fELF\x02\x01":
        raise CompileError("resources: this is no 64-bit little-endian ELF file, so no cubin.")
    table, = struct.unpack_from("<Q", cubin, 0x28)
    entry_bytes, count, names_index = struct.unpack_from("<HHH", cubin, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", cubin, table + i * entry_bytes) for i in range(count)]
    names = headers[names_index][4]
    found = {}
    for name, _, _, _, offset, size in headers:
        end = cubin.index(b"\0", names + name)
        found[cubin[names + name:end].decode()] = (offset, size)
    return found


def _info(cubin: bytes, offset: int, size: int) -> dict[int, int]:
    """Attribute -> value, of those records that say one number of one function."""
    values, end = {}, offset + size
    while offset < end:
        form, attribute, length = struct.unpack_from("<BBH", cubin, offset)
        offset += 4
        if form == _EIFMT_SVAL:
            if length == 8:
                values[attribute] = struct.unpack_from("<II", cubin, offset)[1]
            offset += length
    return values


_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)")


def instructions(sass: str) -> dict[str, int]:
    """How often each opcode stands in a listing of nvdisasm.

    >>> instructions("/*0040*/ @!P0 LDS.128 R4, [R8] ;\\n/*0050*/ FFMA R1, R2, R3, R1 ;")
    {'LDS.128': 1, 'FFMA': 1}
    """
    counts: dict[str, int] = {}
    for opcode in _INSTRUCTION.findall(sass):
        counts[opcode] = counts.get(opcode, 0) + 1
    return counts


def resources(cubin: bytes, sass: str) -> ResourceReport:
    """The resources of the one kernel of a cubin."""
    sections = _sections(cubin)
    kernels = [name[len(".text."):] for name in sections if name.startswith(".text.")]
    if len(kernels) != 1:
        raise CompileError(f"resources: the cubin holds {len(kernels)} kernels, not one: {kernels}.")
    kernel = kernels[0]
    info = _info(cubin, *sections[".nv.info"])
    return ResourceReport(
        kernel=kernel,
        registers=info[_EIATTR_REGCOUNT],
        stack_bytes=info.get(_EIATTR_FRAME_SIZE, 0),
        static_smem_bytes=sections.get(f".nv.shared.{kernel}", (0, 0))[1],
        code_bytes=sections[f".text.{kernel}"][1],
        instructions=MappingProxyType(instructions(sass)),
    )


@functools.cache
def _nvdisasm() -> str:
    """The disassembler: of the wheel `nvidia-cuda-nvdisasm`, else of a CUDA toolkit."""
    try:
        for file in importlib.metadata.files("nvidia-cuda-nvdisasm") or ():
            if file.stem == "nvdisasm" and "bin" in file.parts:
                return str(file.locate())
    except importlib.metadata.PackageNotFoundError:
        pass
    for candidate in (shutil.which("nvdisasm"), *(str(Path(os.environ[v]) / "bin" / "nvdisasm")
                                                  for v in ("CUDA_HOME", "CUDA_PATH") if v in os.environ)):
        if candidate and os.access(candidate, os.X_OK):
            return candidate
    raise UnsupportedError("disassemble: no nvdisasm found. Install cutegemm[sass] (nvidia-cuda-nvdisasm) or a CUDA toolkit.")


def disassemble(cubin: Path) -> str:
    """The SASS of a cubin, as nvdisasm -c prints it."""
    done = subprocess.run([_nvdisasm(), "-c", str(cubin)], capture_output=True, text=True)
    if done.returncode:
        raise CompileError(f"disassemble: nvdisasm refused {cubin}: {done.stderr.strip()}")
    return done.stdout


# --- a compiled kernel --------------------------------------------------------------------------------------------------


class CompiledKernel:
    """A plan's kernel, loaded: `kernel(a, b, c, d, alpha, beta)` computes d = alpha * a @ b + beta * c.

    a, b, c, d   CUDA tensors (torch's, or anything with DLPack), M x K, K x N, M x N, M x N; with L in front where the plan
                 is batched; of the dtypes, majorness and alignment that the plan names. c may be d; with beta = 0 it is not read.
    raises       ValueError or TypeError, from the argument checks compiled into the kernel

    It runs on the current stream of the tensors' framework and allocates nothing, so a CUDA graph can capture it.
    """

    __slots__ = ("plan", "arch", "folder", "function", "__dict__")

    def __init__(self, plan, arch: str, folder: Path, function):
        self.plan, self.arch, self.folder, self.function = plan, arch, folder, function

    def __call__(self, a, b, c, d, alpha, beta):
        self.function(a, b, c, d, alpha, beta)

    def __repr__(self):
        return f"CompiledKernel({self.plan!r}, arch={self.arch!r})"

    @functools.cached_property
    def ptx(self) -> str:
        return (self.folder / "kernel.ptx").read_text()

    @functools.cached_property
    def cubin(self) -> bytes:
        return (self.folder / "kernel.cubin").read_bytes()

    @functools.cached_property
    def sass(self) -> str:
        return disassemble(self.folder / "kernel.cubin")

    @functools.cached_property
    def resources(self) -> ResourceReport:
        return resources(self.cubin, self.sass)


# --- the cache ----------------------------------------------------------------------------------------------------------


def cache_folder() -> Path:
    """$CUTEGEMM_CACHE_DIR, else the platform's folder for caches of this user."""
    named = os.environ.get("CUTEGEMM_CACHE_DIR")
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME")
    if not base:
        base = Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache")
    return Path(base) / "cutegemm"


@functools.cache
def _toolchain() -> str:
    """Of all that decides the code beside the plan and the architecture: one hash a process."""
    digest = hashlib.sha256()
    package = Path(__file__).parent
    for file in sorted([Path(__file__), *(f for folder in _TRACED for f in (package / folder).rglob("*.py"))]):
        digest.update(str(file.relative_to(package)).encode() + b"\0" + file.read_bytes() + b"\0")
    for part in (str(ENTRY_FORMAT), _dsl_version(), platform.machine(), sys.platform, str(_runtime_library())):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()


def _dsl_version() -> str:
    try:
        return importlib.metadata.version("nvidia-cutlass-dsl")
    except importlib.metadata.PackageNotFoundError:
        spec = importlib.util.find_spec("cutlass")
        return f"at {spec.origin}" if spec else "none"


def _runtime_library() -> Path | None:
    """libcute_dsl_runtime.so of the installed DSL, found without importing it."""
    spec = importlib.util.find_spec("cutlass")
    if spec is None or spec.origin is None:
        return None
    root = Path(spec.origin).resolve().parents[2]
    return next(iter(sorted(root.glob("cu*/lib/libcute_dsl_runtime.so"), reverse=True)
                     or sorted(root.glob("lib/libcute_dsl_runtime.so"))), None)


def cache_key(plan, arch: str) -> str:
    """A name for the code of this plan on this architecture, from this source and this DSL."""
    return hashlib.sha256(f"{_toolchain()}\0{arch}\0{plan!r}".encode()).hexdigest()[:40]


def _intact(folder: Path) -> dict | None:
    """The manifest of an entry, or None where a file is missing or is not what was written."""
    try:
        manifest = json.loads((folder / "manifest.json").read_text())
        for name, digest in manifest["files"].items():
            if hashlib.sha256((folder / name).read_bytes()).hexdigest() != digest:
                return None
        return manifest
    except (OSError, ValueError, KeyError, AttributeError):
        return None


def _publish(staged: Path, final: Path) -> None:
    """Give a finished entry its name. Whoever comes first wins; a damaged entry in the way is moved aside."""
    for _ in range(3):
        try:
            os.rename(staged, final)
            return
        except OSError:
            if _intact(final):
                shutil.rmtree(staged, ignore_errors=True)
                return
            aside = Path(tempfile.mkdtemp(prefix=".damaged-", dir=final.parent))
            try:
                os.rename(final, aside / "entry")
            except OSError:
                pass
            shutil.rmtree(aside, ignore_errors=True)
    raise CompileError(f"compile_plan: the cache entry {final} can neither be written nor replaced; remove it.")


def _load(folder: Path, manifest: dict):
    """The function of an entry, ready to be called."""
    import tvm_ffi

    if "kernel.so" in manifest["files"]:
        return getattr(tvm_ffi.load_module(str(folder / "kernel.so")), SYMBOL)
    # No linker was found when it was compiled: the DSL's own loader takes the object as it is.
    from cutlass._mlir._mlir_libs._cutlass_ir._execution_engine import BinaryExecutionEngine

    engine = BinaryExecutionEngine((folder / "kernel.o").read_bytes(), [str(_runtime_library())], True)
    return tvm_ffi.Function.__from_extern_c__(engine.lookup(f"__tvm_ffi_{SYMBOL}"), keep_alive_object=engine)


# --- compiling ----------------------------------------------------------------------------------------------------------


def _link(folder: Path) -> bool:
    """kernel.o to kernel.so, where there is a linker."""
    runtime = _runtime_library()
    compiler = next((c for c in (os.environ.get("CC"), "cc", "gcc", "clang") if c and shutil.which(c)), None)
    if compiler is None or runtime is None:
        return False
    done = subprocess.run([compiler, "-shared", "-o", "kernel.so", "kernel.o", str(runtime), f"-Wl,-rpath,{runtime.parent}"],
                          cwd=folder, capture_output=True, text=True)
    return done.returncode == 0


def _build(plan, arch: str, folder: Path) -> None:
    """Trace, compile, export and link a plan into a folder, and write the folder's manifest last."""
    with _compiling:
        try:
            import cutlass.cute as cute
        except ImportError as error:
            raise UnsupportedError("compile_plan: compiling needs the CuTe DSL. Install cutegemm[cuda] "
                                   "(nvidia-cutlass-dsl, apache-tvm-ffi).") from error
        # By name, so that the core of the package imports no kernel before one is compiled.
        kernel = importlib.import_module(f"{__package__}.kernels.{plan.kernel}")
        dumped = folder / "dump"
        dumped.mkdir()
        try:
            compiled = cute.compile(kernel.host_function(plan), *kernel.fake_arguments(plan),
                                    options=f"--enable-tvm-ffi --gpu-arch {arch} --keep-ptx --keep-cubin --dump-dir {dumped}")
            compiled.export_to_c(str(folder / "kernel.o"), function_name=SYMBOL)
        except Exception as error:
            raise CompileError(f"compile_plan: {plan.name} for {arch} did not compile.\n{error}") from error
    for suffix in ("ptx", "cubin"):
        found = list(dumped.glob(f"*.{suffix}"))
        if len(found) != 1:
            raise CompileError(f"compile_plan: expected one .{suffix} from the DSL, found {len(found)}.")
        os.replace(found[0], folder / f"kernel.{suffix}")
    shutil.rmtree(dumped)
    if _link(folder):
        (folder / "kernel.o").unlink()
    files = {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in sorted(folder.iterdir())}
    manifest = {"format": ENTRY_FORMAT, "plan": repr(plan), "arch": arch, "dsl": _dsl_version(), "files": files}
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1))


@functools.lru_cache(maxsize=None)
def compile_plan(plan, arch: str = "sm_90a") -> CompiledKernel:
    """The kernel of a plan for an architecture: from this process, else from the disk, else compiled.

    plan     a GemmPlan; the cache tells plans apart by their repr
    arch     "sm_80", "sm_90a", ...: need not be that of this machine, which needs no GPU
    raises   CompileError with what the DSL, ptxas or the linker said; UnsupportedError without the DSL
    """
    folder = cache_folder() / cache_key(plan, arch)
    manifest = _intact(folder)
    if manifest is not None:
        try:
            return CompiledKernel(plan, arch, folder, _load(folder, manifest))
        except (OSError, RuntimeError, AttributeError):
            pass   # linked against libraries that are gone: build it again
    folder.parent.mkdir(parents=True, exist_ok=True)
    staged = Path(tempfile.mkdtemp(prefix=".building-", dir=folder.parent))
    try:
        _build(plan, arch, staged)
        if manifest is not None:
            shutil.rmtree(folder, ignore_errors=True)
        _publish(staged, folder)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    manifest = _intact(folder)
    if manifest is None:
        raise CompileError(f"compile_plan: the cache entry {folder} was damaged as it was written; is the disk full?")
    return CompiledKernel(plan, arch, folder, _load(folder, manifest))
