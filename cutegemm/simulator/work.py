"""The work tiles of a plan with a pipeline on the CPU: who takes them, and where the sums of a tile's parts meet."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from cutegemm.layout.inttuple import product
from cutegemm.plan.memory.workspace import slot_layout
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Problem
from cutegemm.plan.reduction import ACCUMULATOR_VECTOR
from cutegemm.plan.work.division import WorkTile
from cutegemm.simulator.memory import is_poison, poison
from cutegemm.simulator.report import Report, tile_text


@dataclass(frozen=True)
class WorkTiles:
    """Work tiles of CTAs; each field an array, or one element of it.

    turn                    the work tile's number among those of its CTA
    cta, rank               who takes it, and which of its cluster that is
    m_tile, n_tile, batch   of D; past its edges for some CTAs of a cluster
    tile                    the work tile
    """

    turn: Any
    cta: Any
    rank: Any
    m_tile: Any
    n_tile: Any
    batch: Any
    tile: WorkTile

    def __len__(self) -> int:
        return len(self.turn)

    def where(self, which: Any) -> WorkTiles:
        """Some of them, or one."""
        kept = {f.name: getattr(self, f.name)[which] for f in fields(self) if f.name != "tile"}
        return WorkTiles(**kept, tile=self.tile.map(lambda of: of[which]))


def work_tiles_of(plan: GemmPlan, problem: Problem, report: Report) -> WorkTiles:
    """Every work tile that a CTA takes, rank by rank; what is wrong with them is told."""
    work, in_cluster = plan.scheduler.of(problem), plan.scheduler.cluster_size
    taken, of_rank = work.assignment(), []
    nought = 0 * taken.number
    for rank in range(in_cluster):
        at = [of_mode + nought for of_mode in taken.tile_mnl(rank)]
        of_rank.append((taken.turn, taken.cluster * in_cluster + rank, nought + rank, *at))
    turn, cta, ranks, m, n, batch = (np.concatenate(of_field) for of_field in zip(*of_rank, strict=True))
    tile = taken.work_tile.map(lambda of: np.tile(of, in_cluster))
    tiles = WorkTiles(turn, cta, ranks, m, n, batch, tile)
    _check(tiles, plan.grid(problem), work.k_tiles, in_cluster, report)
    return tiles


def _check(taken: WorkTiles, grid: tuple[int, int, int], k_tiles: int, in_cluster: int, report: Report) -> None:
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
    times = np.bincount(number[inside.tile.k_split == 0], minlength=product(grid))

    def describe(tile: int) -> str:
        who = "no CTA takes" if times[tile] == 0 else f"{times[tile]} CTAs take"
        return f"{who} the tile {tile_text(np.unravel_index(tile, grid))}."

    report.add_each("raster", np.flatnonzero(times != 1), describe)
    covered = np.zeros((product(grid), k_tiles + 1), np.int64)
    np.add.at(covered, (number, inside.tile.k_first), 1)
    np.add.at(covered, (number, inside.tile.k_first + inside.tile.k_count), -1)
    k_times = covered.cumsum(axis=1)[:, :k_tiles]
    report.add_each(
        "split",
        np.argwhere((k_times != 1) & (times[:, None] == 1)),
        lambda i: (
            f"k-tile {i[1]} of the tile {tile_text(np.unravel_index(i[0], grid))} is multiplied "
            f"{k_times[tuple(i)]} times."
        ),
    )


class Workspace:
    """The sums of parts in global memory, where K is split.

    held   (consumers, threads, registers) element of its own tile that each accumulator sums up
    """

    def __init__(self, plan: GemmPlan, problem: Problem, held: np.ndarray, report: Report) -> None:
        self.report, self.held, self.work = report, held, plan.scheduler.of(problem)
        self.readers, self.rows = plan.body.readers, plan.consumer_tile[0]
        layout = slot_layout(plan, self.work.slots)
        self.strides: Any = layout.stride
        self.memory = poison(max(1, int(layout.cosize())), plan.operands.acc)
        self.written = np.zeros(len(self.memory), np.uint8)
        thread, register = np.indices(held.shape[1:])
        splits = (register % ACCUMULATOR_VECTOR, thread, register // ACCUMULATOR_VECTOR)
        self.within = sum(k_split * stride for k_split, stride in zip(splits, self.strides, strict=False))

    def write(self, accumulators: np.ndarray, tile: WorkTile, rank: int, consumer: int) -> None:
        """A consumer's sums (M, N) of a part of a tile."""
        places = self._places(tile, tile.k_split, rank, consumer)
        np.add.at(self.written, places.reshape(-1), 1)
        self.memory[places] = accumulators[self._elements(consumer)]

    def total(self, accumulators: np.ndarray, tile: WorkTile, rank: int, consumer: int) -> np.ndarray:
        """The sums (M, N) of all parts, added in their order, where this consumer's part is the last to end."""
        at = self._elements(consumer)
        total = np.zeros(self.within.shape, accumulators.dtype)
        for k_split in range(int(tile.splits)):
            theirs = (
                accumulators[at]
                if k_split == tile.k_split
                else self.memory[self._places(tile, k_split, rank, consumer)]
            )
            if is_poison(theirs).any():
                self.report.add("hole", f"sums of part {k_split} of a tile are added that no CTA has written.")
            total += theirs
        out = np.empty_like(accumulators)
        out[at] = total
        return out

    def finish(self) -> None:
        """After the last work tile."""
        twice = int((self.written > 1).sum())
        if twice:
            self.report.add("result", f"{twice} places of the workspace are written more than once.")

    def _elements(self, consumer: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows and columns of its tile that a consumer's registers sum up."""
        return self.held[consumer] % self.rows, self.held[consumer] // self.rows

    def _places(self, tile: WorkTile, k_split: Any, rank: int, consumer: int) -> np.ndarray:
        own, slot = consumer if self.readers > 1 else 0, int(self.work.slot_of(tile, k_split))
        first = own * self.strides[3] + rank * self.strides[4] + slot * self.strides[5]
        places: np.ndarray = self.within + first
        return places
