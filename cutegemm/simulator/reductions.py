"""Sums and maxima over rows, columns or all of D: partial results of warps, in the workspace, and their reduction.

As a kernel does it: a thread goes over its registers, then lanes exchange what they have, then one of them writes; the
second kernel adds in the order of places. Each step rounds to the type of the result: the bits are those of a kernel,
but where that adds a product, which it does not round before.
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
    """A reduction of a plan's epilogue: the workspace of its partial results, and its result."""

    def __init__(self, task: Task, name: str, reduction: Reduction) -> None:
        plan = task.plan
        self.plan, self.report = plan, task.report
        self.name, self.reduction, self.matrix = name, reduction, task.matrices[name]
        self.folding = folding(plan, reduction.along)
        self.combine: Callable[[Any, Any], Any] = np.add if reduction.operation == "sum" else np.maximum
        held, (bm, _) = held_in_units(plan), plan.d_tile
        self.rows, self.columns = held % bm, held // bm  # (threads, units, registers) of the tile
        self.extents = task.matrices["d"].extents  # (M, N, L)
        self.shape = partials_shape(plan, reduction.along, *self.extents)
        self.memory = poison(self.shape, self.matrix.dtype)
        self.written = np.zeros(self.shape, np.uint16)

    def write(self, values: np.ndarray, group: CtaGroup, first_thread: int = 0) -> None:
        """The values of a tile, or of the part of it that some threads have.

        values         (threads, units, registers, CTAs); what lies outside of D does not count
        first_thread   of those that hold D's tile
        """
        own, (bm, bn) = slice(first_thread, first_thread + len(values)), self.plan.d_tile
        m = self.rows[own][..., None] + group.m_tile * bm
        n = self.columns[own][..., None] + group.n_tile * bn
        inside = (m < self.extents[0]) & (n < self.extents[1])
        kind = self.memory.dtype
        found = np.where(inside, values, self.reduction.identity).astype(kind)
        with np.errstate(all="ignore"):
            totals = self._by_lanes(self._by_registers(found))
        threads = first_thread + np.arange(len(values))
        leads = threads % WARP_THREADS & sum(self.folding.lanes) == 0
        ends = list(self.folding.ends)
        unit, warp = np.arange(values.shape[1])[None, :], threads[:, None] // WARP_THREADS
        pieces = self.folding.piece_of[0].offsets()[unit] + self.folding.piece_of[1].offsets()[warp]
        m_tiles = -(-self.extents[0] // bm)
        place = self.folding.place(group.m_tile, group.n_tile, m_tiles, pieces[:, :, None, None])
        key = kept(self.reduction.along, m, n)[:, :, ends]
        there = (group.m_tile * bm < self.extents[0]) & (group.n_tile * bn < self.extents[1])
        wanted = leads[:, None, None, None] & (key < self.shape[0]) & there
        at = [np.broadcast_to(x, wanted.shape)[wanted] for x in (key, place, group.batch)]
        np.add.at(self.written, tuple(at), 1)
        self.memory[tuple(at)] = totals[wanted]

    def _by_registers(self, values: np.ndarray) -> np.ndarray:
        """(threads, units, results, CTAs): the registers of each result, one after the other."""
        out: list[Any] = [None] * len(self.folding.ends)
        for register, group in enumerate(self.folding.groups):
            value = values[:, :, register]
            out[group] = value if out[group] is None else self.combine(out[group], value)
        return np.stack(out, axis=2)

    def _by_lanes(self, values: np.ndarray) -> np.ndarray:
        lane = np.arange(len(values))
        for distance in self.folding.lanes:
            values = self.combine(values, values[lane ^ distance])
        return values

    def finish(self) -> None:
        """The second kernel: each result of its partial results, in their order."""
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
            self.report.add("hole", f"partial results of {self.name} are reduced that no warp has written.")
        _, runs = reducer_shape(self.reduction.along)
        extent, count, batch = self.shape
        of_run = np.full((extent, runs, batch), self.reduction.identity, self.memory.dtype)
        with np.errstate(all="ignore"):
            for first in range(0, count, runs):
                some = self.memory[:, first : first + runs]
                of_run[:, : some.shape[1]] = self.combine(of_run[:, : some.shape[1]], some)
            while runs > 1:
                runs //= 2
                of_run = self.combine(of_run[:, :runs], of_run[:, runs:])
        seen = self.matrix.view(self.matrix.buffer)
        seen[...] = of_run if self.reduction.along == ("n",) else of_run.swapaxes(0, 1)


def reduced_results(task: Task) -> dict[str, PartialResults]:
    """The reductions of a plan's epilogue, by name."""
    return {name: PartialResults(task, name, each) for name, each in task.plan.epilogue.reductions}


def of_reduction(matrix: GlobalMatrix, along: tuple[str, ...], batched: bool) -> np.ndarray:
    """What lies in a result that is reduced: (M), (N) or (), with L in front where there is a batch."""
    whole = np.moveaxis(matrix.view(matrix.buffer), 2, 0)
    return without_modes(whole if batched else whole[0], along)


def without_modes(values: np.ndarray, along: tuple[str, ...]) -> np.ndarray:
    """(..., M, N) that is the same along some modes, without these."""
    if "m" in along:
        values = values[..., 0, :]
    return (values[..., 0] if "n" in along else values).copy()


def finish_all(reductions: Mapping[str, PartialResults]) -> None:
    """All second kernels."""
    for each in reductions.values():
        each.finish()
