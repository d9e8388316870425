"""The machine code of a plan, each instruction with the line of the plan's program that it comes from."""

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
    """One instruction.

    address   in bytes, from the kernel's begin
    program   by its name in `programs_of`; "" where no step of a program is the reason
    line      of it, counted from 0
    label     that branches to it name, or ""
    """

    address: int
    text: str
    program: str = ""
    line: int = 0
    label: str = ""


@dataclass(frozen=True)
class Listing:
    """The GEMM kernel of a plan, disassembled; `resources` is what it takes."""

    instructions: tuple[Instruction, ...]
    resources: ResourceReport


def programs_of(plan: GemmPlan) -> dict[str, str]:
    """The text of each program that is traced, by its name in a listing: consumers have one for all of them.

    >>> from cutegemm.build import simt_plan, sm90_plan
    >>> list(programs_of(sm90_plan())), list(programs_of(simt_plan()))
    (['producer', 'consumer'], ['all threads'])
    """
    if plan.schedule is not None:
        return {"all threads": str(plan.schedule)}
    return {"producer" if role == "producer" else "consumer": str(p) for role, p in plan.programs.items()}


def listing(plan: GemmPlan, arch: str) -> Listing:
    """Compiles a plan anew, with a line table, which does not change the instructions.

    raises   as `compile_plan`; UnsupportedError without a disassembler
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
    with TemporaryDirectory(prefix="cutegemm-") as held:
        compiled_into(Path(held), plan, arch, "--generate-line-info", noted())
        cubin = Path(held) / "kernel.cubin"
        sass = disassemble(cubin, lines=True)
        found = resources(cubin.read_bytes(), sass)
    lines = [*_read(listing_of(sass, found.kernel))]
    products = iter(_products(plan, sum(_WGMMA.search(text) is not None for _, text, *_ in lines)))
    out = []
    for address, text, label, entry in lines:
        of_wgmma = next(products, None) if _WGMMA.search(text) else None
        at = of_wgmma or read(*entry, programs) or ("", 0)
        out.append(Instruction(address, text, *at, label))
    return Listing(tuple(out), found)


def _products(plan: GemmPlan, count: int) -> list[tuple[str, int]]:
    """Where each of so many wgmma stands in the programs, if a k-tile's are issued at one place, or those of its first
    k-block before the others: ptxas numbers them with whatever is around them."""
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
    """(address, text, label, (file, line of the table)) of each instruction."""
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
