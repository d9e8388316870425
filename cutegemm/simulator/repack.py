"""Packing carried out: an operand, tile by tile, through shared memory to where the mainloop loads it."""

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
    """The packed matrix, whose runs end with zeros."""
    source, report, checked = task.matrices[repack.name], task.report, task.checked
    out = _packed(task, repack)
    tile, smem = Layout(repack.tile), repack.smem
    taken, left = repack.load.offsets_s(tile), repack.store.offsets_d(tile)
    put, given = repack.put.offsets_d(smem), repack.store.offsets_s(smem)
    # (thread, rest_mn, rest_k, value): the elements of an access lie together
    tables = [x.reshape(x.shape[:4]).transpose(0, 2, 3, 1) for x in (taken, left, put, given)]
    by_thread, order = tables[0].shape, list(repack.order)
    if checked:
        _check(repack, tables, report)
    taken, left, put, given = (table.reshape(-1) for table in tables)
    columns = max(1, task.problem.k)  # without any, zeros are written where there are runs along K
    rows = source.extents[0]
    divisors = repack.divided_by(rows, columns)
    for cta in range(repack.ctas(rows, columns, task.problem.l)):
        row_tile, k_tile, batch = repack.tile_at(cta, divisors)
        at = (row_tile * repack.tile[0], k_tile * repack.tile[1], batch)
        values = np.zeros(len(taken), source.buffer.dtype)
        index, inside = _at(source, taken, at, repack.tile[0], repack.load.atom.values)
        found, outside = source.read(index[inside])
        if outside is not None:
            text = f"packing {repack.name.upper()} reads {int(outside.sum())} places outside of it."
            report.add("outside", text)
        values[inside] = found
        shared = poison(int(smem.cosize()), source.dtype)
        shared[put] = values.reshape(by_thread)[..., order].reshape(-1)
        moved = shared[given]
        if checked and is_poison(moved).any():
            report.add("hole", f"packing {repack.name.upper()} writes memory that nothing was copied to.")
        index, inside = _at(out, left, at, repack.tile[0], repack.store.atom.values)
        out.buffer[index[inside]] = moved[inside]
    return out


def _packed(task: Task, repack: Repack) -> GlobalMatrix:
    """Memory for the packed matrix; nothing has been written there yet."""
    rows, k, _ = task.matrices[repack.name].extents
    extents = repack.extents(rows, k)
    leading = max(1, max(repack.strides(extents)))
    changes: dict[str, Any] = {"m" if repack.name == "a" else "n": extents[0], "k": extents[1]}
    ld = ((repack.name, leading),)
    return GlobalMatrix(replace(task.problem, operands=task.plan.loaded, ld=ld, **changes), repack.name)


def _at(
    matrix: GlobalMatrix, places: np.ndarray, at: tuple[int, int, int], tile_rows: int, vector: int
) -> tuple[np.ndarray, np.ndarray]:
    """Addresses in a matrix of the places of a tile, and which accesses lie inside by their first element."""
    rows, ks = places % tile_rows + at[0], places // tile_rows + at[1]
    lead = np.arange(len(places)) // vector * vector
    inside = (rows[lead] < matrix.extents[0]) & (ks[lead] < matrix.extents[1])
    return matrix.base + matrix.addresses(rows, ks) + at[2] * matrix.strides[2], inside


def _check(repack: Repack, tables: list[np.ndarray], report: Report) -> None:
    """Each element of a tile goes in once and comes out once, at its own place, by aligned vectors.

    tables   of each access: where it is in the tile that is read, in that which is written; and in shared memory
    """
    name, size = repack.name.upper(), repack.tile[0] * repack.tile[1]
    taken, left, put, given = tables
    for places, what in ((taken, "read"), (left, "written")):
        times = np.bincount(places.reshape(-1), minlength=size)
        if (times != 1).any():
            report.add("copy", f"packing {name}: {int((times != 1).sum())} elements of a tile are not {what} once.")
    label = np.full(int(repack.smem.cosize()), -1)
    label[put] = taken[..., list(repack.order)]
    if (label[given] != left).any():
        report.add("copy", f"packing {name}: elements come out of shared memory as others than they went in.")
    for places, atom, what in ((put, repack.put.atom, "writes"), (given, repack.read, "reads")):
        if misplaced(places.reshape(-1, atom.values)).any():
            text = f"packing {name} {what} vectors that are not aligned neighbours of shared memory."
            report.add("alignment", text)
