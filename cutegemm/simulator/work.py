"""Work tiles of plans with warp roles: the CTAs that take them, and the workspace for accumulators of K splits."""

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
from cutegemm.plan.work.work import Work
from cutegemm.simulator.memory import is_poison, poison
from cutegemm.simulator.report import Report, tile_text
from cutegemm.simulator.task import Task


@dataclass(frozen=True)
class WorkTiles:
    """Work tiles (tiles of D with all or some of their k-tiles) of a grid, as arrays with one entry for each.

    turn             number of work tiles that the same CTA takes before it
    cta              index of the CTA that takes the work tile
    rank             rank of the CTA in its cluster
    m_tile, n_tile   coordinates of the tile of D; CTAs of a cluster may have tiles past the edges of D
    batch            index of the matrix of the batch
    tile             range of k-tiles and K split of each, as a `WorkTile` of arrays
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
        """Return the selected work tiles: arrays for a boolean mask, or single values for an index.

        which   boolean array, or an index
        """
        kept = {f.name: getattr(self, f.name)[which] for f in fields(self) if f.name != "tile"}
        return WorkTiles(**kept, tile=self.tile.map(lambda values: values[which]))


def tensors_of(task: Task) -> dict[str, np.ndarray]:
    """Return the operands that the plan's tile scheduler reads, as arrays (rows, columns, L) by name.

    {} if it reads none.
    """
    return {name: task.matrices[name].view(task.matrices[name].buffer) for name in task.plan.scheduler.reads}


def work_tiles_of(task: Task) -> WorkTiles:
    """Return every work tile that a CTA takes in a simulation, first those of the CTAs with rank 0 in their cluster.

    A work tile is a tile of D with all or some of its k-tiles. Tiles and k-tiles that are not taken exactly once are
    reported as faults.

    task   the simulation: plan, problem and collector of faults
    """
    plan, problem = task.plan, task.problem
    work, in_cluster = plan.work(problem, tensors_of(task)), plan.cluster_tile.size
    assignment, by_rank = work.assignment(), []
    zeros = 0 * assignment.cluster
    for rank in range(in_cluster):
        mnl = [coord + zeros for coord in assignment.tile_mnl(rank)]
        by_rank.append((assignment.turn, assignment.cluster * in_cluster + rank, zeros + rank, *mnl))
    turn, cta, ranks, m, n, batch = (np.concatenate(arrays) for arrays in zip(*by_rank, strict=True))
    tile = assignment.work_tile.map(lambda values: np.tile(values, in_cluster))
    tiles = WorkTiles(turn, cta, ranks, m, n, batch, tile)
    k_tiles = np.broadcast_to(work.of_arrays().k_tiles_of(tile), tiles.turn.shape)
    inside = tiles_inside(plan, work, problem)
    _check(tiles, inside, k_tiles, in_cluster, task.report)
    return tiles


def tiles_inside(plan: GemmPlan, work: Work, problem: Problem) -> np.ndarray:
    """Return which tiles of D exist: booleans (m_tiles, n_tiles, batch). In a group, only those of its rows do."""
    grid = plan.grid(problem)
    inside = np.zeros(grid, bool)
    for batch in range(grid[2]):
        m_tiles, n_tiles = work.ctas_along(batch)
        inside[:m_tiles, :n_tiles, batch] = True
    return inside


def _check(tiles: WorkTiles, inside: np.ndarray, k_tiles: np.ndarray, in_cluster: int, report: Report) -> None:
    """Report tiles of D and ranges of their k-tiles that are computed never or twice.

    CTAs with tiles outside of the grid are reported as well, unless they belong to a cluster of several CTAs.

    tiles        all work tiles that CTAs take
    inside       which tiles of D exist: booleans (m_tiles, n_tiles, batch)
    k_tiles      number of k-tiles of the tile that each work tile belongs to
    in_cluster   number of CTAs of a cluster
    report       collects the faults
    """
    at, grid = np.stack([tiles.m_tile, tiles.n_tile, tiles.batch], axis=1), inside.shape
    exists = np.asarray(((at >= 0) & (at < grid)).all(axis=1))
    exists[exists] = inside[tuple(at[exists].T)]
    if in_cluster == 1:
        report.add_each(
            "raster",
            np.flatnonzero(~exists),
            lambda i: f"CTA {tiles.cta[i]} takes the tile {tile_text(at[i])}, which is outside of the grid {grid}.",
        )
    number = np.ravel_multi_index(tuple(at[exists].T), grid)
    taken = tiles.where(exists)
    times = np.bincount(number[taken.tile.k_split == 0], minlength=product(grid))

    def describe(tile: int) -> str:
        who = "no CTA takes" if times[tile] == 0 else f"{times[tile]} CTAs take"
        return f"{who} the tile {tile_text(np.unravel_index(tile, grid))}."

    report.add_each("raster", np.flatnonzero(times != inside.reshape(-1)), describe)
    wanted = np.zeros(product(grid), np.int64)
    wanted[number] = k_tiles[exists]
    most = int(wanted.max(initial=0))
    covered = np.zeros((product(grid), most + 1), np.int64)
    np.add.at(covered, (number, taken.tile.k_first), 1)
    np.add.at(covered, (number, taken.tile.k_first + taken.tile.k_count), -1)
    k_times = covered.cumsum(axis=1)[:, :most]
    report.add_each(
        "split",
        np.argwhere((k_times != (np.arange(most) < wanted[:, None])) & (times[:, None] == 1)),
        lambda i: (
            f"k-tile {i[1]} of the tile {tile_text(np.unravel_index(i[0], grid))} is multiplied "
            f"{k_times[tuple(i)]} times."
        ),
    )


class Workspace:
    """Simulates the workspace in global memory that K splits are added in, for plans with warp roles.

    `write` stores the accumulators of a K split, `total` adds those of all K splits of a tile.

    plan       plan that splits K among clusters
    problem    the problem, whose extents determine the size
    elements   position in the consumer's tile of each accumulator: (consumers, threads, registers)
    report     collects faults
    """

    def __init__(self, plan: GemmPlan, problem: Problem, elements: np.ndarray, report: Report) -> None:
        self.report, self.elements, self.work = report, elements, plan.work(problem)
        self.readers, self.rows = plan.body.readers, plan.consumer_tile[0]
        layout = slot_layout(plan, self.work.slots)
        self.strides: Any = layout.stride
        self.memory = poison(max(1, int(layout.cosize())), plan.operands.acc)
        self.written = np.zeros(len(self.memory), np.uint8)
        thread, register = np.indices(elements.shape[1:])
        coords = (register % ACCUMULATOR_VECTOR, thread, register // ACCUMULATOR_VECTOR)
        self.within = sum(coord * stride for coord, stride in zip(coords, self.strides, strict=False))

    def write(self, accumulators: np.ndarray, tile: WorkTile, rank: int, consumer: int) -> None:
        """Write one consumer's accumulators of a K split to the simulated workspace.

        accumulators   accumulators (M, N) of the consumer's tile
        tile           the work tile, which is one K split of a tile of D
        rank           rank of the CTA in its cluster
        consumer       index of the consumer in the CTA
        """
        places = self._places(tile, tile.k_split, rank, consumer)
        np.add.at(self.written, places.reshape(-1), 1)
        self.memory[places] = accumulators[self._elements(consumer)]

    def total(self, accumulators: np.ndarray, tile: WorkTile, rank: int, consumer: int) -> np.ndarray:
        """Add the accumulators of all K splits of a consumer's tile in their order, and return the sums (M, N).

        accumulators   accumulators of the K split that ends last, which are not in the workspace
        tile           work tile of the K split that ends last
        rank           rank of the CTA in its cluster
        consumer       index of the consumer
        """
        at = self._elements(consumer)
        total = np.zeros(self.within.shape, accumulators.dtype)
        for k_split in range(int(tile.splits)):
            theirs = (
                accumulators[at]
                if k_split == tile.k_split
                else self.memory[self._places(tile, k_split, rank, consumer)]
            )
            if is_poison(theirs).any():
                text = f"accumulators of K split {k_split} of a tile are added, but no CTA has written them."
                self.report.add("hole", text)
            total += theirs
        out = np.empty_like(accumulators)
        out[at] = total
        return out

    def finish(self) -> None:
        """Report elements of the simulated workspace that were written more than once, after the last work tile."""
        twice = int((self.written > 1).sum())
        if twice:
            self.report.add("result", f"{twice} elements of the workspace are written more than once.")

    def _elements(self, consumer: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the row and column in the consumer's tile of each register: two arrays (threads, registers)."""
        return self.elements[consumer] % self.rows, self.elements[consumer] // self.rows

    def _places(self, tile: WorkTile, k_split: Any, rank: int, consumer: int) -> np.ndarray:
        """Return the workspace offsets of one consumer's accumulators for one K split of a tile: (threads, registers).

        tile       any work tile of the same tile of D
        k_split    index of the K split
        rank       rank of the CTA in its cluster
        consumer   index of the consumer in the CTA
        """
        own, slot = consumer if self.readers > 1 else 0, int(self.work.slot_of(tile, k_split))
        first = own * self.strides[3] + rank * self.strides[4] + slot * self.strides[5]
        places: np.ndarray = self.within + first
        return places
