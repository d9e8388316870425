"""Packing carried out: an operand, tile by tile, through shared memory to where the mainloop reads it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cutegemm.layout import Layout
from cutegemm.plan.packing import Packing
from cutegemm.simulate.checks import misplaced
from cutegemm.simulate.memory import GlobalMatrix, is_poison, poison
from cutegemm.simulate.report import Report
from cutegemm.simulate.task import Task


def pack(task: Task, packing: Packing) -> GlobalMatrix:
    """The packed matrix, whose rows beyond the operand's are zeros."""
    plan, problem, source = task.plan, task.problem, task.matrices[packing.name]
    report, checked = task.report, task.checked
    first = "m" if packing.name == "a" else "n"
    rows = packing.extent(getattr(problem, first))
    out = GlobalMatrix(
        replace(problem, operands=plan.loaded, ld=((packing.name, max(1, rows)),), **{first: rows}),
        packing.name,
    )
    tile, smem = Layout(packing.tile), packing.smem
    taken, put = packing.load.offsets_s(tile), packing.load.offsets_d(smem)
    given, left = packing.store.offsets_s(smem), packing.store.offsets_d(tile)
    # (thread, rest_mn, rest_k, value): the elements of an access lie together
    taken, left = (x.transpose(0, 2, 3, 1).reshape(-1) for x in (taken, left))
    put, given = (x.reshape(x.shape[:4]).transpose(0, 2, 3, 1).reshape(-1) for x in (put, given))
    if checked:
        _check(packing, taken, put, given, left, report)
    extent = source.extents[0]
    vector_in, vector_out = packing.load.atom.values, packing.store.atom.values
    for batch in range(problem.l):
        for row in range(0, rows, packing.tile[0]):
            for k in range(0, problem.k, packing.tile[1]):
                at = (row, k, batch)
                values = np.zeros(len(taken), source.buffer.dtype)
                index, inside = _at(source, taken, at, packing.tile[0], vector_in, (extent, problem.k))
                found, outside = source.read(index[inside])
                if outside is not None:
                    report.add(
                        "outside",
                        f"packing {packing.name.upper()} reads {int(outside.sum())} places outside of it.",
                    )
                values[inside] = found
                shared = poison(int(smem.cosize()), source.dtype)
                shared[put] = values
                moved = shared[given]
                if checked and is_poison(moved).any():
                    report.add(
                        "hole", f"packing {packing.name.upper()} writes memory that nothing was copied to."
                    )
                index, inside = _at(out, left, at, packing.tile[0], vector_out, (rows, problem.k))
                out.buffer[index[inside]] = moved[inside]
    return out


def _at(
    matrix: GlobalMatrix, places: np.ndarray, at: tuple[int, int, int], tile_rows: int, vector: int,
    extents: tuple[int, int],
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Addresses in a matrix of the places of a tile, and which accesses lie inside by their first element."""
    rows, ks = places % tile_rows + at[0], places // tile_rows + at[1]
    lead = np.arange(len(places)) // vector * vector
    inside = (rows[lead] < extents[0]) & (ks[lead] < extents[1])
    return matrix.base + matrix.addresses(rows, ks) + at[2] * matrix.strides[2], inside


def _check(
    packing: Packing, taken: np.ndarray, put: np.ndarray, given: np.ndarray, left: np.ndarray, report: Report
) -> None:
    """Each element of a tile goes in once and comes out once, at its own place, by aligned vectors."""
    name, size = packing.name.upper(), packing.tile[0] * packing.tile[1]
    for places, what in ((taken, "read"), (left, "written")):
        times = np.bincount(places, minlength=size)
        if (times != 1).any():
            report.add(
                "copy", f"packing {name}: {int((times != 1).sum())} elements of a tile are not {what} once."
            )
    label = np.full(int(packing.smem.cosize()), -1)
    label[put] = taken
    if (label[given] != left).any():
        report.add("copy", f"packing {name}: elements come out of shared memory as others than they went in.")
    vector = packing.store.atom.values
    if misplaced(given.reshape(-1, vector)).any():
        report.add(
            "alignment", f"packing {name} reads vectors that are not aligned neighbours of shared memory."
        )
