"""The work tiles of a plan with a pipeline on the CPU: who takes them, and where the sums of a tile's parts meet."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from cutegemm.layout.inttuple import product
from cutegemm.plan.memory.workspace import slot_layout
from cutegemm.plan.plan import SUM_VECTOR, GemmPlan
from cutegemm.plan.problem import Problem
from cutegemm.plan.work.shares import WorkTile
from cutegemm.simulate.memory import is_poison, poison
from cutegemm.simulate.report import Report, tile_text


@dataclass(frozen=True)
class Units:
    """Work tiles of CTAs; each field an array, or one element of it.

    turn            the work tile's number among those of its CTA
    cta, rank       who takes it, and which of its cluster that is
    m_tile, n_tile, batch   of D; past its edges for some CTAs of a cluster
    unit            the work tile
    """

    turn: Any
    cta: Any
    rank: Any
    m_tile: Any
    n_tile: Any
    batch: Any
    unit: WorkTile

    def __len__(self) -> int:
        return len(self.turn)

    def where(self, which: Any) -> Units:
        """Some of them, or one."""
        kept = {f.name: getattr(self, f.name)[which] for f in fields(self) if f.name != "unit"}
        return Units(**kept, unit=self.unit.map(lambda of: of[which]))


def units_of(plan: GemmPlan, problem: Problem, report: Report) -> Units:
    """Every work tile that a CTA takes, rank by rank; what is wrong with them is told."""
    work, in_cluster = plan.scheduler.of(problem), plan.scheduler.cluster_size
    taken, of_rank = work.taken(), []
    nought = 0 * taken.number
    for rank in range(in_cluster):
        at = [of_mode + nought for of_mode in taken.tile_mnl(rank)]
        of_rank.append((taken.turn, taken.cluster * in_cluster + rank, nought + rank, *at))
    every = [np.concatenate(of_field) for of_field in zip(*of_rank, strict=True)]
    units = Units(*every, unit=taken.work_tile.map(lambda of: np.tile(of, in_cluster)))
    _check(units, plan.grid(problem), work.k_tiles, in_cluster, report)
    return units


def _check(taken: Units, grid: tuple[int, int, int], k_tiles: int, in_cluster: int, report: Report) -> None:
    """Each tile of D, and each of its k-tiles, is taken once; only a cluster's CTAs may be past the edges of D."""
    at = np.stack([taken.m_tile, taken.n_tile, taken.batch], axis=1)
    exists = ((at >= 0) & (at < grid)).all(axis=1)
    if in_cluster == 1:
        report.add_each(
            "raster",
            np.flatnonzero(~exists),
            lambda i: f"CTA {taken.cta[i]} takes the tile {tile_text(at[i])}, outside of a grid of {grid}.",
        )
    number = np.ravel_multi_index(tuple(at[exists].T), grid)
    inside = taken.where(exists)
    times = np.bincount(number[inside.unit.part == 0], minlength=product(grid))

    def describe(tile: int) -> str:
        who = "no CTA takes" if times[tile] == 0 else f"{times[tile]} CTAs take"
        return f"{who} the tile {tile_text(np.unravel_index(tile, grid))}."

    report.add_each("raster", np.flatnonzero(times != 1), describe)
    covered = np.zeros((product(grid), k_tiles + 1), np.int64)
    np.add.at(covered, (number, inside.unit.k_first), 1)
    np.add.at(covered, (number, inside.unit.k_first + inside.unit.k_count), -1)
    k_times = covered.cumsum(axis=1)[:, :k_tiles]
    report.add_each(
        "split",
        np.argwhere((k_times != 1) & (times[:, None] == 1)),
        lambda i: (
            f"k-tile {i[1]} of the tile {tile_text(np.unravel_index(i[0], grid))} is multiplied "
            f"{k_times[tuple(i)]} times."
        ),
    )


class Meeting:
    """The workspace of a plan that splits K, and how many parts of each tile have come.

    held   (consumers, threads, registers) element of its own tile that each accumulator sums up
    """

    def __init__(self, plan: GemmPlan, problem: Problem, held: np.ndarray, report: Report) -> None:
        assert plan.pipeline is not None
        self.report, self.readers = report, plan.pipeline.readers
        self.work = plan.scheduler.of(problem)
        layout = slot_layout(plan, self.work.slots)
        self.strides: Any = layout.stride
        self.memory = poison(max(1, int(layout.cosize())), plan.operands.acc)
        self.written = np.zeros(len(self.memory), np.uint8)
        self.arrived: dict[tuple[int, int], int] = {}
        rows, own = plan.pipeline.consumer_tile[0], held[: self.readers]
        consumer, thread, register = np.indices(own.shape)
        self.m, self.n = own % rows + consumer * rows, own // rows
        parts = (register % SUM_VECTOR, thread, register // SUM_VECTOR, consumer)
        self.places = sum(part * stride for part, stride in zip(parts, self.strides, strict=False))

    def add_up(self, sums: np.ndarray, of: Units) -> np.ndarray | None:
        """The sums (M, N) of all parts of a tile where this work tile's are the last, else None."""
        unit, key = of.unit, (int(of.unit.tile), int(of.rank))
        self.arrived[key] = self.arrived.get(key, 0) + 1
        if self.arrived[key] < unit.parts:
            index = self._index(of, unit.part)
            np.add.at(self.written, index.reshape(-1), 1)
            self.memory[index] = sums[self.m, self.n]
            return None
        total = np.zeros(self.places.shape, sums.dtype)
        for part in range(unit.parts):
            theirs = sums[self.m, self.n] if part == unit.part else self.memory[self._index(of, part)]
            if is_poison(theirs).any():
                self.report.add("hole", f"sums of part {part} of a tile are added that no CTA has written.")
            total += theirs
        out = np.empty_like(sums)
        out[self.m, self.n] = total
        return out

    def finish(self) -> None:
        """After the last work tile."""
        twice = int((self.written > 1).sum())
        if twice:
            self.report.add("result", f"{twice} places of the workspace are written more than once.")

    def _index(self, of: Units, part: Any) -> np.ndarray:
        slot = self.work.slot_of(of.unit, part)
        index: np.ndarray = self.places + of.rank * self.strides[4] + slot * self.strides[5]
        return index
