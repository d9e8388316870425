"""`cutegemm check` of what is no plan: a thread-value layout over shared memory, PTX, a cubin."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from cutegemm.analysis import Wavefronts, occupancy
from cutegemm.analysis.foreign import check_part
from cutegemm.compile.cubin import disassemble, resources
from cutegemm.errors import UnsupportedError
from cutegemm.run.ptx import executed_ptx

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
    """A thread-value layout, or a tiled copy as the DSL prints it, over a tile in shared memory."""
    if shared is None:
        raise UnsupportedError("check: a thread-value layout needs --shared, the layout of shared memory.")
    unit = "bytes" if in_bytes else ""
    found = check_part(text, shared, dtype, op=op, access_bits=access_bits, swizzle_of=unit)
    if as_json:
        print(json.dumps(_data(found), indent=2))
        return
    said = str(found.worst) if found.worst else "no conflicts"
    print(f"{found.requests} instructions of warps, {found.wavefronts} wavefronts, {found.ideal} at least: {said}")


def check_ptx(
    path: Path,
    arguments: list[str],
    kernel: str,
    grid: tuple[int, ...],
    block: tuple[int, ...],
    shared_bytes: int,
    as_json: bool,
) -> None:
    """The accesses of a PTX file's kernel, executed."""
    found = executed_ptx(path.read_text(), arguments, kernel=kernel, grid=grid, block=block, shared_bytes=shared_bytes)
    if as_json:
        lines = [{"line": line, "op": op, "bits": bits, **_data(w)} for (line, op, bits), w in found.lines.items()]
        sectors = {op: {"requests": g.requests, "sectors": g.sectors} for op, g in found.global_.items()}
        print(json.dumps({"shared": {op: _data(w) for op, w in found.shared.items()}, "lines": lines,
                          "global": sectors}, indent=2))  # fmt: skip
        return
    console = Console(highlight=False)
    rows = [(op, w, str(w.worst or "-")) for op, w in found.shared.items()]
    console.print(_table("Shared memory, as executed", rows) if rows else "No access to shared memory by threads.")
    worst = sorted(found.lines.items(), key=lambda item: -item[1].conflicts)[:_SHOWN_LINES]
    costly = [
        (f"line {line}: {op}, {bits} bits", w, str(w.worst or "-")) for (line, op, bits), w in worst if w.conflicts
    ]
    if costly:
        console.print(_table("The lines that cost most", costly))
    for op, g in found.global_.items():
        console.print(f"global {op}: {g.requests} instructions of warps, {g.sectors} sectors")


def check_cubin(path: Path, block: tuple[int, ...], arch: str, as_json: bool) -> None:
    """What a cubin's machine code has of memory accesses, registers and spills; to be executed it takes its PTX."""
    found = resources(path.read_bytes(), disassemble(path))
    threads = 1
    for extent in block:
        threads *= extent
    held = occupancy(arch, threads, found.registers, found.static_smem_bytes, measured=True)
    accesses = {name: n for name, n in found.instructions.items() if name.startswith(_ACCESSES)}
    if as_json:
        print(json.dumps({"kernel": found.kernel, "registers": found.registers, "spills": found.spills,
                          "stack_bytes": found.stack_bytes, "static_smem_bytes": found.static_smem_bytes,
                          "accesses": accesses, "ctas": held.ctas}, indent=2))  # fmt: skip
        return
    print(
        f"{found.kernel[:90]}\n  {found.registers} registers, {found.static_smem_bytes} bytes of static shared memory"
    )
    print(f"  {found.spills} spills, {found.stack_bytes} bytes of stack of a thread")
    print(f"  {held.ctas} CTAs of {threads} threads per SM by registers and static shared memory")
    print("  in the code: " + ", ".join(f"{n} {name}" for name, n in sorted(accesses.items())))
    print("  A cubin is read, not executed: wavefronts take the kernel's PTX, `cutegemm check kernel.ptx`.")


def _data(found: Wavefronts) -> dict[str, Any]:
    return {"requests": found.requests, "wavefronts": found.wavefronts, "ideal": found.ideal,
            "worst": None if found.worst is None else str(found.worst)}  # fmt: skip


def _table(title: str, rows: list[tuple[str, Wavefronts, str]]) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("", "requests", "wavefronts", "ideal", "worst collision"):
        table.add_column(name, justify="left" if name in ("", "worst collision") else "right")
    for name, found, worst in rows:
        table.add_row(name, str(found.requests), str(found.wavefronts), str(found.ideal), worst)
    return table
