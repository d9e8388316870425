"""Read registers, stack size and instructions of a compiled kernel from its cubin."""

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

# A record of a cubin's .nv.info section is (format u8, attribute u8, size u16), as `cuobjdump -elf` prints it.
_FORMAT_SIZED = 0x04
_ATTRIBUTE_REGISTERS = 0x2F
_ATTRIBUTE_FRAME = 0x11
_SYMBOL_BYTES = 24  # size of an entry of .symtab

# Names of the GEMM kernels. The kernels of repack passes and those that add K splits have other names.
GEMM_KERNELS = "kernel_cutlass_(split_k_)?kernel"
_INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Za-z0-9_.]*)")  # address, opcode


@dataclass(frozen=True)
class ResourceReport:
    """Registers, memory and instructions that a compiled kernel uses, read from its cubin.

    kernel              name of the kernel in the cubin
    registers           registers per thread
    stack_bytes         local memory per thread in bytes; more than 0 if registers spill
    static_smem_bytes   static shared memory per CTA in bytes; dynamic shared memory is set at the launch and not
                        counted
    code_bytes          size of the machine code in bytes
    instructions        number of instructions by opcode with its modifiers: {"LDS.128": 48, ...}
    """

    kernel: str
    registers: int
    stack_bytes: int
    static_smem_bytes: int
    code_bytes: int
    instructions: Mapping[str, int]

    def count(self, opcode: str) -> int:
        """Return how many instructions of this kernel have an opcode, with any modifiers: "LDS" counts "LDS.128" too.

        >>> ResourceReport("k", 32, 0, 0, 64, {"LDS": 3, "LDS.128": 2, "LDSM": 1}).count("LDS")
        5
        """
        return sum(n for name, n in self.instructions.items() if name == opcode or name.startswith(opcode + "."))

    @property
    def spills(self) -> int:
        """Number of instructions of this kernel that load from or store to local memory (LDL and STL)."""
        return self.count("LDL") + self.count("STL")

    def violations(self, plan: GemmPlan, arch: str) -> list[str]:
        """Return one sentence for each way that this kernel's machine code exceeds what the plan allows.

        An empty list means, e.g., that no register spills and that the planned CTAs fit on an SM.

        arch   architecture that the kernel was compiled for
        """
        from cutegemm.plan.rules.registers import register_budget

        budget, violations = register_budget(plan, arch_named(arch)), []
        if self.registers > budget:
            violations.append(
                f"a thread uses {self.registers} registers. {plan.ctas_per_sm} CTAs of {plan.threads} threads on an SM "
                f"of {arch} allow {budget}."
            )
        if self.spills or self.stack_bytes:
            violations.append(f"{self.spills} instructions spill registers to {self.stack_bytes} bytes of stack.")
        waits, expected = self.count("WARPGROUP"), _wgmma_waits(plan)
        if waits > expected:
            violations.append(f"{waits} instructions wait for wgmma. The plan's program has {expected}.")
        if self.static_smem_bytes:
            violations.append(
                f"the kernel declares {self.static_smem_bytes} bytes of static shared memory. The plan has none."
            )
        return violations


def _wgmma_waits(plan: GemmPlan) -> int:
    """Return how many WARPGROUP.ARRIVE and WARPGROUP.DEPBAR instructions a plan's consumer warps should have in SASS.

    If a kernel has more of them, ptxas has serialized its wgmmas: the kernel waits after each one, because ptxas could
    not follow the accumulators. ptxas mentions that only in a warning.

    plan   plan of the kernel; the result is 0 for a plan without warp roles
    """
    from cutegemm.plan.program.steps import OTHER_BLOCKS, Multiply, WaitMma

    if not plan.body.has_roles:
        return 0
    program = plan.program(plan.roles[-1].name)
    return sum(
        isinstance(step, WaitMma) or (isinstance(step, Multiply) and step.k_blocks != OTHER_BLOCKS)
        for step in program.walk()
    )


def instructions(sass: str) -> dict[str, int]:
    """Count the instructions in a disassembly by opcode with its modifiers, e.g. {"LDS.128": 48}.

    sass   output of nvdisasm

    >>> instructions("/*0040*/ @!P0 LDS.128 R4, [R8] ;\\n/*0050*/ FFMA R1, R2, R3, R1 ;")
    {'LDS.128': 1, 'FFMA': 1}
    """
    return dict(Counter([opcode for _, opcode in _INSTRUCTION.findall(sass)]))


def resources(cubin: bytes, sass: str) -> ResourceReport:
    """Read the registers, memory and instructions of the GEMM kernel from a cubin.

    The cubin may hold other kernels, such as one that copies A before the GEMM; they are ignored.

    cubin    content of the cubin file
    sass     disassembly of the cubin, from `disassemble`
    raises   CompileError if `cubin` is not a cubin, or has no kernel
    """
    sections = _sections(cubin)
    kernel = _gemm_of(sections)
    return _report(cubin, sections, kernel, instructions(listing_of(sass, kernel)))


def resources_of_many(cubins: Sequence[bytes], arch: str) -> list[ResourceReport]:
    """Read the registers, memory and instructions of the GEMM kernels in several cubins, one report per cubin.

    The disassembler runs once for all, because its start takes longer than disassembling most kernels.

    cubins   contents of the files
    arch     architecture of all cubins
    raises   CompileError if one is not a cubin or has no kernel, or if the disassembler fails
    """
    all_sections = [_sections(cubin) for cubin in cubins]
    kernels = [_gemm_of(sections) for sections in all_sections]
    code, starts = b"", []
    for cubin, sections, kernel in zip(cubins, all_sections, kernels, strict=True):
        offset, size = sections[f".text.{kernel}"]
        starts.append(len(code))
        code += cubin[offset : offset + size]
    with tempfile.NamedTemporaryFile(suffix=".bin") as file:
        file.write(code)
        file.flush()
        listing = _run_nvdisasm("-b", arch.replace("sm_", "SM"), file.name)
    counts: list[Counter[str]] = [Counter() for _ in cubins]
    for address, opcode in _INSTRUCTION.findall(listing):
        counts[bisect(starts, int(address, 16)) - 1][opcode] += 1
    return [
        _report(cubin, sections, kernel, dict(count))
        for cubin, sections, kernel, count in zip(cubins, all_sections, kernels, counts, strict=True)
    ]


def code_of(cubin: bytes) -> dict[str, bytes]:
    """Return the machine code of all kernels in a cubin, by kernel name.

    cubin    content of the file
    raises   CompileError if it is not a 64-bit little-endian ELF file
    """
    return {
        name.removeprefix(".text."): cubin[offset : offset + size]
        for name, (offset, size) in _sections(cubin).items()
        if name.startswith(".text.")
    }


def _gemm_of(sections: Mapping[str, tuple[int, int]]) -> str:
    """Return the name of the GEMM kernel in a cubin that may also hold helper kernels.

    A name tells a GEMM kernel from helper kernels. If none does, the result is the kernel with the most code.

    sections   (offset, size) in bytes of each ELF section of the cubin, by name
    raises     CompileError if the cubin has no kernel
    """
    kernels = [name.removeprefix(".text.") for name in sections if name.startswith(".text.")]
    if not kernels:
        raise CompileError("resources: the cubin does not hold a kernel.")
    gemms = [name for name in kernels if re.match(GEMM_KERNELS, name)]
    return max(gemms or kernels, key=lambda name: sections[f".text.{name}"][1])


def _report(
    cubin: bytes, sections: Mapping[str, tuple[int, int]], kernel: str, counts: dict[str, int]
) -> ResourceReport:
    """Return the resources of one kernel in a cubin: registers, stack, shared memory and code size.

    cubin      content of the cubin file
    sections   (offset, size) in bytes of each ELF section, by name
    kernel     name of the kernel
    counts     number of instructions by opcode
    """
    info = _info(cubin, sections, kernel)
    # From sm_90 on, the section of shared memory starts with bytes that the system reserves.
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
    """Return (offset, size) in bytes of each ELF section of a cubin, by name.

    raises   CompileError if `cubin` is not a 64-bit little-endian ELF file
    """
    if cubin[:6] != b"\x7fELF\x02\x01":
        raise CompileError("resources: the bytes are not a cubin. A cubin is a 64-bit little-endian ELF file.")
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    entry_bytes, count, names_index = struct.unpack_from("<HHH", cubin, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", cubin, table + i * entry_bytes) for i in range(count)]
    names = headers[names_index][4]
    sections = {}
    for name, _, _, _, offset, size in headers:
        end = cubin.index(b"\0", names + name)
        sections[cubin[names + name : end].decode()] = (offset, size)
    return sections


def listing_of(sass: str, kernel: str) -> str:
    """Return the part of a disassembly that belongs to one kernel; all of it if it has no section for the kernel.

    sass     output of nvdisasm
    kernel   name of the kernel

    >>> listing_of("\\t.section\\t.text.a,...\\nx\\n\\t.section\\t.text.b,...\\ny\\n", "b").split()[-1]
    'y'
    """
    sections = re.split(r"^\s*\.section\s+\.text\.", sass, flags=re.MULTILINE)[1:]
    own = [section for section in sections if re.split(r"[,\s]", section, maxsplit=1)[0].strip('"') == kernel]
    return own[0] if own else sass


def _info(cubin: bytes, sections: Mapping[str, tuple[int, int]], kernel: str) -> dict[int, int]:
    """Return the attributes of a kernel that are one number, such as its register count, by attribute code.

    They are read from the section .nv.info of the cubin.

    cubin      content of the cubin file
    sections   (offset, size) in bytes of each ELF section, by name
    kernel     name of the kernel
    """
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
    """Return the SASS of a cubin file, as `nvdisasm -c -ndf` prints it.

    -ndf switches off nvdisasm's data-flow analysis, which infers branch targets.

    cubin    path of the file
    lines    True to print source lines (the line table) before the instructions
    raises   UnsupportedError if nvdisasm is not installed, CompileError if it does not accept the file
    """
    return _run_nvdisasm("-c", "-ndf", *(["-g"] if lines else []), str(cubin))


def _run_nvdisasm(*arguments: str) -> str:
    """Run the disassembler nvdisasm and return what it prints to stdout.

    arguments   command-line arguments; the last one is the file
    raises      UnsupportedError if nvdisasm is not installed, CompileError if it fails
    """
    done = subprocess.run([_nvdisasm(), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise CompileError(f"disassemble: nvdisasm does not accept {arguments[-1]}: {done.stderr.strip()}")
    return done.stdout


@cache
def _nvdisasm() -> str:
    """Return the path of nvdisasm, from the wheel `nvidia-cuda-nvdisasm` or else from a CUDA toolkit.

    raises   UnsupportedError if there is neither
    """
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
