"""What was compiled, read back: registers, stack and instructions of the kernel in a cubin."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import struct
import subprocess
import tempfile
from bisect import bisect
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from cutegemm.errors import CompileError, UnsupportedError, how_to_install
from cutegemm.machine.arch import SMEM_RESERVED_BYTES, arch_named

if TYPE_CHECKING:
    from cutegemm.plan.plan import GemmPlan

# Records of a cubin's .nv.info section: format u8, attribute u8, size u16; as `cuobjdump -elf` prints them.
_FORMAT_SIZED = 0x04
_ATTRIBUTE_REGISTERS = 0x2F
_ATTRIBUTE_FRAME = 0x11
_SYMBOL_BYTES = 24  # of an entry of .symtab

# By the names of their functions: not what packs operands or adds the parts of a split K.
GEMM_KERNELS = "kernel_cutlass_(split_k_)?kernel"
_INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Za-z0-9_.]*)")  # address, opcode


@dataclass(frozen=True)
class ResourceReport:
    """What a kernel takes of the machine, read from its cubin.

    registers            of a thread
    stack_bytes          of a thread, in local memory: more than 0 where registers spill
    static_smem_bytes    declared by the cubin; what a launch asks for besides is in the plan
    code_bytes           of the kernel
    instructions         how often each opcode stands in the code, with its modifiers: {"LDS.128": 48, ...}
    """

    kernel: str
    registers: int
    stack_bytes: int
    static_smem_bytes: int
    code_bytes: int
    instructions: Mapping[str, int]

    def count(self, opcode: str) -> int:
        """Instructions of that opcode, whatever modifiers follow: "LDS" counts "LDS.128" too.

        >>> ResourceReport("k", 32, 0, 0, 64, {"LDS": 3, "LDS.128": 2, "LDSM": 1}).count("LDS")
        5
        """
        return sum(n for name, n in self.instructions.items() if name == opcode or name.startswith(opcode + "."))

    @property
    def spills(self) -> int:
        """Loads from and stores to local memory."""
        return self.count("LDL") + self.count("STL")

    def violations(self, plan: GemmPlan, arch: str) -> list[str]:
        """Where the code takes more than the plan has for it, in words."""
        from cutegemm.plan.rules.registers import register_budget

        budget, found = register_budget(plan, arch_named(arch)), []
        if self.registers > budget:
            found.append(
                f"a thread has {self.registers} registers; {plan.ctas_per_sm} CTAs of {plan.threads} threads "
                f"on a multiprocessor of {arch} leave it {budget}."
            )
        if self.spills or self.stack_bytes:
            found.append(f"{self.spills} instructions spill registers to {self.stack_bytes} bytes of stack.")
        waits, meant = self.count("WARPGROUP"), _wgmma_waits(plan)
        if waits > meant:
            found.append(f"{waits} instructions make products of wgmma wait, {meant} are meant to.")
        if self.static_smem_bytes:
            found.append(f"the kernel declares {self.static_smem_bytes} bytes of shared memory of its own.")
        return found


def _wgmma_waits(plan: GemmPlan) -> int:
    """WARPGROUP.ARRIVE before products, and WARPGROUP.DEPBAR for them, as the program of a consumer has them.

    Where ptxas cannot follow the accumulators it adds one after each product, and says so in a warning that nobody
    reads.
    """
    from cutegemm.plan.program.steps import OTHER_BLOCKS, Multiply, WaitMma

    if plan.pipeline is None:
        return 0
    program = plan.program(plan.roles[-1].name)
    return sum(
        isinstance(each, WaitMma) or (isinstance(each, Multiply) and each.k_blocks != OTHER_BLOCKS)
        for each in program.walk()
    )


def instructions(sass: str) -> dict[str, int]:
    """How often each opcode stands in a listing of nvdisasm.

    >>> instructions("/*0040*/ @!P0 LDS.128 R4, [R8] ;\\n/*0050*/ FFMA R1, R2, R3, R1 ;")
    {'LDS.128': 1, 'FFMA': 1}
    """
    return dict(Counter([opcode for _, opcode in _INSTRUCTION.findall(sass)]))


def resources(cubin: bytes, sass: str) -> ResourceReport:
    """The resources of the GEMM kernel of a cubin, where others pack operands or add parts.

    sass     its listing, from `disassemble`
    raises   CompileError where this is no cubin, or one without a kernel
    """
    sections = _sections(cubin)
    kernel = _gemm_of(sections)
    return _report(cubin, sections, kernel, instructions(listing_of(sass, kernel)))


def resources_of_many(cubins: Sequence[bytes], arch: str) -> list[ResourceReport]:
    """The same of several cubins for one architecture, by one start of the disassembler, which takes it longer than
    most kernels do.

    raises   CompileError where one is no cubin, or the disassembler refuses them
    """
    found = [_sections(cubin) for cubin in cubins]
    kernels = [_gemm_of(sections) for sections in found]
    code, starts = b"", []
    for cubin, sections, kernel in zip(cubins, found, kernels, strict=True):
        offset, size = sections[f".text.{kernel}"]
        starts.append(len(code))
        code += cubin[offset : offset + size]
    with tempfile.NamedTemporaryFile(suffix=".bin") as file:
        file.write(code)
        file.flush()
        listing = _nvdisasm_says("-b", arch.replace("sm_", "SM"), file.name)
    counts: list[Counter[str]] = [Counter() for _ in cubins]
    for address, opcode in _INSTRUCTION.findall(listing):
        counts[bisect(starts, int(address, 16)) - 1][opcode] += 1
    return [
        _report(cubin, sections, kernel, dict(count))
        for cubin, sections, kernel, count in zip(cubins, found, kernels, counts, strict=True)
    ]


def code_of(cubin: bytes) -> dict[str, bytes]:
    """Return kernel name -> machine code for all kernels of a cubin.

    raises   CompileError if `cubin` is not a 64-bit little-endian ELF file
    """
    return {
        name.removeprefix(".text."): cubin[offset : offset + size]
        for name, (offset, size) in _sections(cubin).items()
        if name.startswith(".text.")
    }


def _gemm_of(sections: Mapping[str, tuple[int, int]]) -> str:
    """The GEMM kernel among those of a cubin."""
    kernels = [name.removeprefix(".text.") for name in sections if name.startswith(".text.")]
    if not kernels:
        raise CompileError("resources: the cubin holds no kernel.")
    gemms = [name for name in kernels if re.match(GEMM_KERNELS, name)]
    return max(gemms or kernels, key=lambda name: sections[f".text.{name}"][1])


def _report(
    cubin: bytes, sections: Mapping[str, tuple[int, int]], kernel: str, counts: dict[str, int]
) -> ResourceReport:
    info = _info(cubin, sections, kernel)
    # From sm_90 on the section begins with what the system keeps for itself.
    reserved = SMEM_RESERVED_BYTES if ".nv.shared.reserved.0" in sections else 0
    return ResourceReport(
        kernel=kernel,
        registers=info[_ATTRIBUTE_REGISTERS],
        stack_bytes=info.get(_ATTRIBUTE_FRAME, 0),
        static_smem_bytes=max(0, sections.get(f".nv.shared.{kernel}", (0, 0))[1] - reserved),
        code_bytes=sections[f".text.{kernel}"][1],
        instructions=MappingProxyType(counts),
    )


def _sections(cubin: bytes) -> dict[str, tuple[int, int]]:
    """Name -> (offset, size) of the sections of a 64-bit little-endian ELF file."""
    if cubin[:6] != b"\x7fELF\x02\x01":
        raise CompileError("resources: this is no 64-bit little-endian ELF file, so no cubin.")
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    entry_bytes, count, names_index = struct.unpack_from("<HHH", cubin, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", cubin, table + i * entry_bytes) for i in range(count)]
    names = headers[names_index][4]
    found = {}
    for name, _, _, _, offset, size in headers:
        end = cubin.index(b"\0", names + name)
        found[cubin[names + name : end].decode()] = (offset, size)
    return found


def listing_of(sass: str, kernel: str) -> str:
    """The part of a listing that is one kernel's; all of it where it names none.

    >>> listing_of("\\t.section\\t.text.a,...\\nx\\n\\t.section\\t.text.b,...\\ny\\n", "b").split()[-1]
    'y'
    """
    parts = re.split(r"^\s*\.section\s+\.text\.", sass, flags=re.MULTILINE)
    own = [part for part in parts[1:] if re.split(r"[,\s]", part, maxsplit=1)[0].strip('"') == kernel]
    return own[0] if own else sass


def _info(cubin: bytes, sections: Mapping[str, tuple[int, int]], kernel: str) -> dict[int, int]:
    """Attribute -> value, of those records that say one number of a kernel."""
    names, (table, table_size) = sections[".strtab"][0], sections[".symtab"]
    entries = range(table, table + table_size, _SYMBOL_BYTES)
    symbols = [struct.unpack_from("<I", cubin, at)[0] for at in entries]
    offset, size = sections[".nv.info"]
    values: dict[int, int] = {}
    end = offset + size
    while offset < end:
        form, attribute, length = struct.unpack_from("<BBH", cubin, offset)
        offset += 4
        if form == _FORMAT_SIZED:
            if length == 8:
                symbol, value = struct.unpack_from("<II", cubin, offset)
                first = names + symbols[symbol]
                if cubin[first : cubin.index(b"\0", first)].decode() == kernel:
                    values[attribute] = value
            offset += length
    return values


def disassemble(cubin: Path, *, lines: bool = False) -> str:
    """The SASS of a cubin, as `nvdisasm -c` prints it; without its search for where branches go to by a stack.

    lines    with the entries of its line table, before the instructions that they are of
    raises   UnsupportedError without a disassembler, CompileError where it refuses the file
    """
    return _nvdisasm_says("-c", "-ndf", *(["-g"] if lines else []), str(cubin))


def _nvdisasm_says(*arguments: str) -> str:
    done = subprocess.run([_nvdisasm(), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise CompileError(f"disassemble: nvdisasm refused {arguments[-1]}: {done.stderr.strip()}")
    return done.stdout


@cache
def _nvdisasm() -> str:
    """The disassembler: of the wheel `nvidia-cuda-nvdisasm`, else of a CUDA toolkit."""
    try:
        for file in importlib.metadata.files("nvidia-cuda-nvdisasm") or ():
            if file.stem == "nvdisasm" and "bin" in file.parts:
                return str(file.locate())
    except importlib.metadata.PackageNotFoundError:
        pass
    toolkits = [Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if name in os.environ]
    for candidate in (shutil.which("nvdisasm"), *(str(root / "bin" / "nvdisasm") for root in toolkits)):
        if candidate and os.access(candidate, os.X_OK):
            return candidate
    raise UnsupportedError(
        f"disassemble: no nvdisasm was found. {how_to_install('kernels')} A CUDA toolkit has nvdisasm too."
    )
