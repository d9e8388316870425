"""Sums and maxima over rows, columns or all of D: partial results of warps in the workspace, and their reduction.

The order is that of the kernels. A thread combines its registers, lanes exchange their values, and one of them writes a
partial result. The second kernel combines the partial results in the order of their positions. Each step rounds to the
type of the result, so the bits are those of a kernel, except where a kernel fuses a multiplication with the addition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from cutegemm.machine.arch import WARP_THREADS
from cutegemm.plan.epilogue import Reduction
from cutegemm.plan.memory.partials import folding, held_in_units, kept, partials_shape, reducer_shape
from cutegemm.simulator.copies import CtaGroup
from cutegemm.simulator.memory import GlobalMatrix, is_poison, poison
from cutegemm.simulator.task import Task


class PartialResults:
    """Simulates one reduction of an epilogue (a sum or maximum over rows, columns or all of D) by partial results.

    `write` reduces a tile in each warp and stores the partial results to a simulated workspace. `finish` combines them,
    as a second kernel does.

    task        the simulation, with the plan and the matrices
    name        name of the result in the epilogue
    reduction   the operation ("sum" or "max") and the modes that are reduced
    """

    def __init__(self, task: Task, name: str, reduction: Reduction) -> None:
        plan = task.plan
        self.plan, self.report = plan, task.report
        self.name, self.reduction, self.matrix = name, reduction, task.matrices[name]
        self.folding = folding(plan, reduction.along)
        self.combine: Callable[[Any, Any], Any] = np.add if reduction.operation == "sum" else np.maximum
        elements, (bm, _) = held_in_units(plan), plan.d_tile
        self.rows, self.columns = elements % bm, elements // bm  # (threads, units, registers) of the tile
        self.extents = task.matrices["d"].extents  # (M, N, L)
        self.shape = partials_shape(plan, reduction.along, *self.extents)
        self.memory = poison(self.shape, self.matrix.dtype)
        self.written = np.zeros(self.shape, np.uint16)

    def write(self, values: np.ndarray, group: CtaGroup, first_thread: int = 0) -> None:
        """Reduce the values of a tile, or of the rows of one consumer, to partial results in the workspace.

        values         values to reduce: (threads, units, registers, CTAs). A unit is a set of registers that a thread
                       reduces at a time. Values outside of D are ignored
        group          the CTAs, with their tile coordinates
        first_thread   index of the first of these threads among all that store the tile of D; 0 unless one consumer
                       stores only some rows
        """
        own, (bm, bn) = slice(first_thread, first_thread + len(values)), self.plan.d_tile
        m = self.rows[own][..., None] + group.m_tile * bm
        n = self.columns[own][..., None] + group.n_tile * bn
        inside = (m < self.extents[0]) & (n < self.extents[1])
        kind = self.memory.dtype
        inside_values = np.where(inside, values, self.reduction.identity).astype(kind)
        with np.errstate(all="ignore"):
            totals = self._by_lanes(self._by_registers(inside_values))
        threads = first_thread + np.arange(len(values))
        leads = threads % WARP_THREADS & sum(self.folding.lanes) == 0
        ends = list(self.folding.ends)
        unit, warp = np.arange(values.shape[1])[None, :], threads[:, None] // WARP_THREADS
        pieces = self.folding.piece_of[0].offsets()[unit] + self.folding.piece_of[1].offsets()[warp]
        m_tiles = -(-self.extents[0] // bm)
        place = self.folding.place(group.m_tile, group.n_tile, m_tiles, pieces[:, :, None, None])
        key = kept(self.reduction.along, m, n)[:, :, ends]
        exists = (group.m_tile * bm < self.extents[0]) & (group.n_tile * bn < self.extents[1])
        wanted = leads[:, None, None, None] & (key < self.shape[0]) & exists
        at = [np.broadcast_to(x, wanted.shape)[wanted] for x in (key, place, group.batch)]
        np.add.at(self.written, tuple(at), 1)
        self.memory[tuple(at)] = totals[wanted]

    def _by_registers(self, values: np.ndarray) -> np.ndarray:
        """Combine, in each thread, the registers that contribute to the same result, e.g. to the sum of one row.

        values    values in the registers: (threads, units, registers of a unit, CTAs). A unit is a set of registers
                  that a thread reduces at a time
        returns   (threads, units, results of a thread, CTAs)
        """
        out: list[Any] = [None] * len(self.folding.ends)
        for register, group in enumerate(self.folding.groups):
            value = values[:, :, register]
            out[group] = value if out[group] is None else self.combine(out[group], value)
        return np.stack(out, axis=2)

    def _by_lanes(self, values: np.ndarray) -> np.ndarray:
        """Combine values of the same result (e.g. of one row) over the lanes of a warp, in the order of the shuffles.

        values    (threads, units, results of a thread, CTAs), where a unit is a set of registers that is reduced at a
                  time
        returns   same shape; the lanes of a result have equal values
        """
        lane = np.arange(len(values))
        for distance in self.folding.lanes:
            values = self.combine(values, values[lane ^ distance])
        return values

    def finish(self) -> None:
        """Combine the partial results in the order of the second kernel, and write the reduction's result.

        Partial results that were not written exactly once are reported.
        """
        times = self.written
        self.report.add_each(
            "result",
            np.argwhere(times != 1),
            lambda at: (
                f"partial result {at[1]} of element {at[0]} of {self.name}, l {at[2]}, is written "
                f"{int(times[tuple(at)])} times."
            ),
        )
        if is_poison(self.memory).any():
            self.report.add("hole", f"partial results of {self.name} are reduced, but no warp has written them.")
        _, runs = reducer_shape(self.reduction.along)
        extent, count, batch = self.shape
        totals = np.full((extent, runs, batch), self.reduction.identity, self.memory.dtype)
        with np.errstate(all="ignore"):
            for first in range(0, count, runs):
                some = self.memory[:, first : first + runs]
                totals[:, : some.shape[1]] = self.combine(totals[:, : some.shape[1]], some)
            while runs > 1:
                runs //= 2
                totals = self.combine(totals[:, :runs], totals[:, runs:])
        seen = self.matrix.view(self.matrix.buffer)
        seen[...] = totals if self.reduction.along == ("n",) else totals.swapaxes(0, 1)


def reduced_results(task: Task) -> dict[str, PartialResults]:
    """Return the simulated partial results of each reduction of a plan's epilogue, by the name of the reduction."""
    return {name: PartialResults(task, name, one) for name, one in task.plan.epilogue.reductions}


def of_reduction(matrix: GlobalMatrix, along: tuple[str, ...], batched: bool) -> np.ndarray:
    """Return the result of a reduction over D as a numpy array: (M,), (N,) or (), with L in front if `batched`.

    matrix   simulated memory of the result
    along    modes of D that were reduced: ("n",) gives (M,), ("m",) gives (N,), both give ()
    """
    whole = np.moveaxis(matrix.view(matrix.buffer), 2, 0)
    return without_modes(whole if batched else whole[0], along)


def without_modes(values: np.ndarray, along: tuple[str, ...]) -> np.ndarray:
    """Return an array (..., M, N) without one or both of its last modes; their first entry is taken, as all are equal.

    values   the array
    along    names of the modes to remove: "m", "n" or both

    >>> without_modes(np.ones((2, 3, 4)), ("n",)).shape
    (2, 3)
    """
    if "m" in along:
        values = values[..., 0, :]
    return (values[..., 0] if "n" in along else values).copy()


def finish_all(reductions: Mapping[str, PartialResults]) -> None:
    """Combine the partial results of every reduction to its result, as a second kernel does for each.

    reductions   partial results by the name of the reduction
    """
    for reduction in reductions.values():
        reduction.finish()
