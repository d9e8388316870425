"""List the machine code of a plan, each instruction with the line of the plan's program that it comes from."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from cutegemm.errors import UnsupportedError, how_to_install
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.program.steps import FIRST_BLOCK

if TYPE_CHECKING:
    from cutegemm.compile.cubin import ResourceReport

_ENTRY = re.compile(r'\s*//## File "([^"]*)", line (\d+)')
_CODE = re.compile(r"\s*/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;")
_WGMMA = re.compile(r"\b[HIQ]GMMA\.")
_LABEL = re.compile(r"(\.L_\w+):")


@dataclass(frozen=True)
class Instruction:
    """A machine instruction of a kernel, with the line of the plan's program that it was compiled from.

    address   bytes from the start of the kernel
    text      the instruction as nvdisasm prints it
    program   "producer", "consumer" or "all threads"; "" if the instruction comes from no program line
    line      line of the program, from 0
    label     label of the instruction, which branches name; "" if it has none
    """

    address: int
    text: str
    program: str = ""
    line: int = 0
    label: str = ""


@dataclass(frozen=True)
class Listing:
    """The disassembled GEMM kernel of a plan, with the line of the plan's program that each instruction belongs to.

    instructions   all instructions, in the order of their addresses
    resources      registers, stack and shared memory of the kernel
    """

    instructions: tuple[Instruction, ...]
    resources: ResourceReport


def programs_of(plan: GemmPlan) -> dict[str, str]:
    """Return the text of each warp program of a plan, by name: "producer" and "consumer", or "all threads".

    A program lists what a warp role does, in the plan's own notation, one operation a line. All consumer warps share
    one program. A plan without warp roles has only "all threads".

    >>> from cutegemm.build import simt_plan, sm90_plan
    >>> list(programs_of(sm90_plan())), list(programs_of(simt_plan()))
    (['producer', 'consumer'], ['all threads'])
    """
    if not plan.body.has_roles:
        return {"all threads": str(plan.body)}
    return {"producer" if role == "producer" else "consumer": str(p) for role, p in plan.programs.items()}


def listing(plan: GemmPlan, arch: str) -> Listing:
    """Compile a plan with line information and return its machine instructions, each with its program line.

    Line information does not change the code. The disk cache is not used.

    arch     architecture, such as "sm_90a"
    raises   the errors of `compile_plan`; UnsupportedError if nvdisasm is not installed
    """
    try:
        from cutegemm.kernels.lines import noted, read
    except ImportError as error:
        raise UnsupportedError(
            f"listing: compiling needs the CuTe DSL, on Linux. {how_to_install('kernels')}"
        ) from error
    from cutegemm.compile.cubin import disassemble, listing_of, resources
    from cutegemm.compile.plans import compiled_into

    programs = tuple(programs_of(plan))
    with TemporaryDirectory(prefix="cutegemm-") as folder:
        compiled_into(Path(folder), plan, arch, "--generate-line-info", noted())
        cubin = Path(folder) / "kernel.cubin"
        sass = disassemble(cubin, lines=True)
        report = resources(cubin.read_bytes(), sass)
    lines = [*_read(listing_of(sass, report.kernel))]
    wgmma_lines = iter(_wgmma_lines(plan, sum(_WGMMA.search(text) is not None for _, text, *_ in lines)))
    out = []
    for address, text, label, entry in lines:
        wgmma_line = next(wgmma_lines, None) if _WGMMA.search(text) else None
        at = wgmma_line or read(*entry, programs) or ("", 0)
        out.append(Instruction(address, text, *at, label))
    return Listing(tuple(out), report)


def _wgmma_lines(plan: GemmPlan, count: int) -> list[tuple[str, int]]:
    """Return the program line of a plan that each wgmma instruction of its kernel was compiled from.

    ptxas gives a wgmma the line of a neighbouring instruction, so the line table does not have these lines. They follow
    from the plan in two cases: its programs have one `mma` line, or they have two, for the first k-block and for the
    rest.

    plan      plan of the kernel
    count     number of wgmma instructions in the kernel
    returns   (program, line) for each of them, in the order of the code; empty if the lines do not follow from the plan
    """
    lines = {
        (program, number): line
        for program, text in programs_of(plan).items()
        for number, line in enumerate(text.splitlines())
        if line.split()[0] == "mma"
    }
    at = [*lines]
    if len(at) == 1:
        return at * count
    if len(at) == 2 and lines[at[0]].endswith(FIRST_BLOCK):
        first = count // plan.k_blocks
        return [at[0]] * first + [at[1]] * (count - first)
    return []


def _read(sass: str) -> Iterator[tuple[int, str, str, tuple[str, int]]]:
    """Yield (address, text, label, (file, line)) for each instruction in a disassembly.

    sass           output of nvdisasm with line information
    label          label of the instruction; "" without a label
    (file, line)   source line that precedes the instruction; ("", 0) without one
    """
    at, label = ("", 0), ""
    for line in sass.splitlines():
        entry, code, named = _ENTRY.match(line), _CODE.match(line), _LABEL.match(line)
        if entry is not None:
            at = entry[1], int(entry[2])
        elif named is not None:
            label = named[1]
        elif code is not None:
            yield int(code[1], 16), code[2], label, at
            label = ""
