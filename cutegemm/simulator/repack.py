"""Repack pass on the CPU: copies an operand through shared memory to the layout that the mainloop loads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from cutegemm.layout import Layout
from cutegemm.plan.memory.repack import Repack
from cutegemm.simulator.checks import misplaced
from cutegemm.simulator.memory import GlobalMatrix, is_poison, poison
from cutegemm.simulator.report import Report
from cutegemm.simulator.task import Task


def repack_operands(task: Task, repack: Repack) -> GlobalMatrix:
    """Simulate a repack pass, and return the repacked matrix.

    A repack pass is a kernel that copies A or B to another layout before the GEMM. The copy is padded with zeros.

    task     the simulation, which has the operand and collects faults
    repack   which operand is copied, and the tile and copies of each CTA
    """
    source, report, checked = task.matrices[repack.name], task.report, task.checked
    out = _packed(task, repack)
    tile, smem = Layout(repack.tile), repack.smem
    loaded, stored = repack.load.offsets_s(tile), repack.store.offsets_d(tile)
    put, fetched = repack.put.offsets_d(smem), repack.store.offsets_s(smem)
    # (thread, rest_mn, rest_k, value): the elements of an access are contiguous
    tables = [x.reshape(x.shape[:4]).transpose(0, 2, 3, 1) for x in (loaded, stored, put, fetched)]
    by_thread, order = tables[0].shape, list(repack.order)
    if checked:
        _check(repack, tables, report)
    loaded, stored, put, fetched = (table.reshape(-1) for table in tables)
    columns = max(1, task.problem.k)  # if K is 0, runs along K are still filled with zeros
    rows = source.extents[0]
    divisors = repack.divided_by(rows, columns)
    for cta in range(repack.ctas(rows, columns, task.problem.l)):
        row_tile, k_tile, batch = repack.tile_at(cta, divisors)
        at = (row_tile * repack.tile[0], k_tile * repack.tile[1], batch)
        values = np.zeros(len(loaded), source.buffer.dtype)
        index, inside = _at(source, loaded, at, repack.tile[0], repack.load.atom.values)
        values[inside], outside = source.read(index[inside])
        if outside is not None:
            text = f"the repack pass of {repack.name.upper()} reads {int(outside.sum())} offsets outside of it."
            report.add("outside", text)
        shared = poison(int(smem.cosize()), source.dtype)
        shared[put] = values.reshape(by_thread)[..., order].reshape(-1)
        moved = shared[fetched]
        if checked and is_poison(moved).any():
            text = f"the repack pass of {repack.name.upper()} stores shared memory that nothing was copied to."
            report.add("hole", text)
        index, inside = _at(out, stored, at, repack.tile[0], repack.store.atom.values)
        out.buffer[index[inside]] = moved[inside]
    return out


def _packed(task: Task, repack: Repack) -> GlobalMatrix:
    """Return poisoned memory for the result of a repack pass (a copy of A or B that is made before the GEMM)."""
    rows, k, _ = task.matrices[repack.name].extents
    extents = repack.extents(rows, k)
    leading = max(1, max(repack.strides(extents)))
    changes: dict[str, Any] = {"m" if repack.name == "a" else "n": extents[0], "k": extents[1]}
    ld = ((repack.name, leading),)
    return GlobalMatrix(replace(task.problem, operands=task.plan.loaded, ld=ld, **changes), repack.name)


def _at(
    matrix: GlobalMatrix, places: np.ndarray, at: tuple[int, int, int], tile_rows: int, vector: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return where the elements of a tile are in a matrix, and whether the access to each of them is executed.

    An access is executed if its first element is inside of the matrix.

    places      positions row + tile_rows * k in the tile, access by access
    at          row, k and batch of the tile's first element in the matrix
    tile_rows   rows of the tile
    vector      elements of an access
    returns     (indices in the matrix's memory, booleans), each of the shape of `places`
    """
    rows, ks = places % tile_rows + at[0], places // tile_rows + at[1]
    lead = np.arange(len(places)) // vector * vector
    inside = (rows[lead] < matrix.extents[0]) & (ks[lead] < matrix.extents[1])
    return matrix.base + matrix.addresses(rows, ks) + at[2] * matrix.strides[2], inside


def _check(repack: Repack, tables: list[np.ndarray], report: Report) -> None:
    """Report elements that a repack pass does not copy exactly once to their own position, and misaligned vectors.

    A repack pass is a kernel that copies A or B before the GEMM, through shared memory.

    report   collects the faults
    tables   four arrays, each with an entry for each element of each access: position in the tile that is read,
             position in the repacked tile that is written, shared-memory offset that is written, shared-memory offset
             that is read
    """
    name, size = repack.name.upper(), repack.tile[0] * repack.tile[1]
    loaded, stored, put, fetched = tables
    pass_of = f"the repack pass of {name}"
    for places, what in ((loaded, "read"), (stored, "written")):
        times = np.bincount(places.reshape(-1), minlength=size)
        if (times != 1).any():
            report.add("copy", f"{pass_of}: {int((times != 1).sum())} elements of a tile are not {what} exactly once.")
    label = np.full(int(repack.smem.cosize()), -1)
    label[put] = loaded[..., list(repack.order)]
    if (label[fetched] != stored).any():
        report.add("copy", f"{pass_of} stores elements of shared memory at the positions of other elements.")
    for places, atom, what in ((put, repack.put.atom, "writes"), (fetched, repack.read, "reads")):
        if misplaced(places.reshape(-1, atom.values)).any():
            report.add("alignment", f"{pass_of} {what} vectors that are not contiguous and aligned in shared memory.")
