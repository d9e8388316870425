"""`cutegemm check` for inputs other than plans: a thread-value layout over shared memory, PTX or a cubin."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from cutegemm.analysis import Wavefronts, occupancy
from cutegemm.analysis.foreign import check_part
from cutegemm.cli.output import output
from cutegemm.compile.cubin import disassemble, resources
from cutegemm.errors import UnsupportedError
from cutegemm.parse.layout import parse_layout
from cutegemm.run.executed import executed_ptx

_ACCESSES = ("LDS", "STS", "LDSM", "STSM", "LDGSTS", "LDG", "STG", "LDL", "STL")
_SHOWN_LINES = 12


def check_layout(
    text: str,
    shared: str | None,
    dtype: str | None,
    op: str,
    access_bits: int | None,
    in_bytes: bool,
    as_json: bool,
) -> None:
    """Print how many shared-memory wavefronts a thread-value layout, or a tiled copy of the CuTe DSL, takes.

    text          the layout, or the tiled copy as the DSL prints it
    shared        layout of the tile in shared memory; None is an error
    dtype         element type; None for the type of the tiled copy
    op            "load", "store", "ldmatrix" or "stmatrix"
    access_bits   bits that a thread accesses at a time; None for the widest possible access
    in_bytes      True if the swizzle of `shared` permutes bytes, False for elements
    as_json       True to print JSON
    """
    if shared is None:
        raise UnsupportedError("check: a thread-value layout needs --shared, the layout of shared memory.")
    unit = "bytes" if in_bytes else ""
    part = text if "TV Layout tiled" in text else parse_layout(text, "check")
    cost = check_part(part, parse_layout(shared, "check"), dtype, op=op, access_bits=access_bits, swizzle_of=unit)
    if as_json:
        print(json.dumps(_data(cost), indent=2))
        return
    worst = str(cost.worst) if cost.worst else "no conflicts"
    instructions = f"{cost.requests} instructions of warps ({cost.form})"
    print(f"{instructions}, {cost.wavefronts} wavefronts, at least {cost.ideal}: {worst}")


def check_ptx(
    path: Path,
    arguments: list[str],
    kernel: str,
    grid: tuple[int, ...],
    block: tuple[int, ...],
    shared_bytes: int,
    as_json: bool,
) -> None:
    """Execute a kernel of a PTX file on the CPU, and print the wavefronts and sectors of its memory accesses.

    path           the PTX file
    arguments      the kernel parameters, such as ["f32[4096]", "64"]: a pointer to 4096 floats, and an integer
    kernel         beginning of the kernel's name; "" for the only one
    grid, block    extents of the launch, one to three each
    shared_bytes   bytes of dynamic shared memory
    as_json        True to print JSON
    """
    run = executed_ptx(path.read_text(), arguments, kernel=kernel, grid=grid, block=block, shared_bytes=shared_bytes)
    if as_json:
        lines = [{"line": line, "op": op, "bits": bits, **_data(w)} for (line, op, bits), w in run.lines.items()]
        sectors = {op: {"requests": g.requests, "sectors": g.sectors} for op, g in run.global_.items()}
        print(json.dumps({"shared": {op: _data(w) for op, w in run.shared.items()}, "lines": lines,
                          "global": sectors}, indent=2))  # fmt: skip
        return
    console = output()
    rows = [(op, w, str(w.worst or "-")) for op, w in run.shared.items()]
    console.print(_table("Shared memory, as executed", rows) if rows else "No access to shared memory by threads.")
    worst = sorted(run.lines.items(), key=lambda item: -item[1].conflicts)[:_SHOWN_LINES]
    costly = [
        (f"line {line}: {op}, {bits} bits", w, str(w.worst or "-")) for (line, op, bits), w in worst if w.conflicts
    ]
    if costly:
        console.print(_table("The lines that cost most", costly))
    for op, g in run.global_.items():
        console.print(f"global {op}: {g.requests} instructions of warps, {g.sectors} sectors")


def check_cubin(path: Path, block: tuple[int, ...], arch: str, as_json: bool) -> None:
    """Print the registers, spills, occupancy and memory instructions of a cubin (compiled kernel), without running it.

    path      the cubin file
    block     threads of a CTA, one to three extents
    arch      architecture for the occupancy, such as "sm_90a"
    as_json   True to print JSON
    """
    kernel = resources(path.read_bytes(), disassemble(path))
    threads = 1
    for extent in block:
        threads *= extent
    resident = occupancy(arch, threads, kernel.registers, kernel.static_smem_bytes, measured=True)
    accesses = {name: n for name, n in kernel.instructions.items() if name.startswith(_ACCESSES)}
    if as_json:
        print(json.dumps({"kernel": kernel.kernel, "registers": kernel.registers, "spills": kernel.spills,
                          "stack_bytes": kernel.stack_bytes, "static_smem_bytes": kernel.static_smem_bytes,
                          "accesses": accesses, "ctas": resident.ctas}, indent=2))  # fmt: skip
        return
    print(
        f"{kernel.kernel[:90]}\n  {kernel.registers} registers, "
        f"{kernel.static_smem_bytes} bytes of static shared memory"
    )
    print(f"  {kernel.spills} spills, {kernel.stack_bytes} bytes of stack per thread")
    print(f"  {resident.ctas} CTAs of {threads} threads per SM by registers and static shared memory")
    print("  in the code: " + ", ".join(f"{n} {name}" for name, n in sorted(accesses.items())))
    print("  A cubin is not executed. To count wavefronts, check the kernel's PTX: `cutegemm check kernel.ptx`.")


def _data(cost: Wavefronts) -> dict[str, Any]:
    """Return the counts of a shared-memory access as a dict for JSON: instructions, wavefronts, conflicts."""
    return {"form": cost.form, "requests": cost.requests, "wavefronts": cost.wavefronts, "ideal": cost.ideal,
            "worst": None if cost.worst is None else str(cost.worst)}  # fmt: skip


def _table(title: str, rows: list[tuple[str, Wavefronts, str]]) -> Table:
    """Return a printable table of shared-memory accesses, with their instructions and wavefronts.

    rows   (name of the access, its counts, description of its worst bank conflict) for each row of the table
    """
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("", "requests", "wavefronts", "ideal", "worst collision"):
        table.add_column(name, justify="left" if name in ("", "worst collision") else "right")
    for name, cost, worst in rows:
        table.add_row(name, str(cost.requests), str(cost.wavefronts), str(cost.ideal), worst)
    return table
