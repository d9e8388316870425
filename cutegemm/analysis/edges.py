"""Tiles of a problem that one access finds alike: as far inside of the matrix, beginning at the same place of a sector.

A plan's copies leave out what lies outside of a matrix, and rows that are no multiple of a cache line begin at other
places of it from tile to tile. Both decide what an access costs, so that a few kinds of tiles stand for all of them:
full ones and those on each edge, by the byte of a line at which they begin. Of copies by threads the first k-tile is
the ragged one, which begins before k = 0; of TMA the last.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cutegemm.machine.arch import CACHE_LINE_BYTES
from cutegemm.tile.tma import TmaBox

if TYPE_CHECKING:
    from cutegemm.plan.plan import GemmPlan
    from cutegemm.plan.problem import Problem


@dataclass(frozen=True)
class Kind:
    """Tiles of one matrix.

    first, last   (mn, k), or (m, n) of D: elements from `first` on and before `last` are inside
    phase         bytes from the beginning of a cache line to the tile's first element
    count         of such tiles; of A and B each counts once for every CTA and k-tile that loads it. CTAs that share K
                  load other k-tiles of the same rows and columns
    """

    first: tuple[int, int]
    last: tuple[int, int]
    phase: int
    count: int

    @property
    def elements(self) -> int:
        """Of a tile that are inside."""
        return (self.last[0] - self.first[0]) * (self.last[1] - self.first[1])

    def inside(self, shape: tuple[int, int]) -> np.ndarray:
        """Which elements of a tile of this shape are inside, by their index in it."""
        down, across = (
            (np.arange(extent) >= low) & (np.arange(extent) < high)
            for extent, low, high in zip(shape, self.first, self.last, strict=True)
        )
        return np.outer(across, down).ravel()


def strides_of(plan: GemmPlan, name: str, problem: Problem) -> tuple[int, int, int]:
    """Elements from one to the next along both modes and the batch of a matrix, as it is packed where it is."""
    layout = problem.layout(name)
    along, across, batch = (int(stride) for stride in layout.stride)
    for repack in plan.repacks:
        if repack.name == name:
            extents = repack.extents(int(layout.shape[0]), int(layout.shape[1]))
            along, across = repack.strides(extents)
            batch = int(extents[0] * extents[1])
    return along, across, batch


def grid_of_clusters(plan: GemmPlan, problem: Problem) -> tuple[int, int, int]:
    """Tiles along M, N and the batch, with those outside of D that the last clusters have besides: their CTAs go
    through all of K as well, by the last tile of A or of B."""
    grid_m, grid_n, batch = plan.grid(problem)
    across, along = plan.cluster_mn
    return -(-grid_m // across) * across, -(-grid_n // along) * along, batch


def grid_of_loads(plan: GemmPlan, problem: Problem) -> tuple[int, int, int]:
    """`GemmPlan.mma_grid`, and what the last clusters multiply outside of D; see `grid_of_clusters`."""
    grid_m, grid_n, batch = grid_of_clusters(plan, problem)
    down, across = sharers_mn(plan)
    return grid_m // down, grid_n // across, batch


def sharers_mn(plan: GemmPlan) -> tuple[int, int]:
    """The CTAs of a cluster that share K, along M and N: they load the same rows and columns, of other k-tiles.

    >>> from cutegemm.build import gemv_plan, sm90_plan
    >>> sharers_mn(sm90_plan(tile=(64, 64, 64), cluster_k=4)), sharers_mn(gemv_plan(cluster=2))
    ((1, 4), (2, 1))
    """
    (rows, columns, _), (bm, bn, _) = plan.mma_tile, plan.cta_tile
    return rows // bm, columns // bn


def kinds_of(plan: GemmPlan, name: str, problem: Problem) -> list[Kind]:
    """The kinds of tiles of A, of B, or of a matrix of D's extents.

    >>> from cutegemm.build import simt_plan
    >>> from cutegemm.plan import Problem
    >>> plan = simt_plan(block=(128, 128, 16))
    >>> for kind in kinds_of(plan, "a", Problem(200, 128, 40)):
    ...     print(kind)
    Kind(first=(0, 0), last=(128, 16), phase=32, count=1)
    Kind(first=(0, 0), last=(128, 16), phase=96, count=1)
    Kind(first=(0, 0), last=(72, 16), phase=32, count=1)
    Kind(first=(0, 0), last=(72, 16), phase=96, count=1)
    Kind(first=(0, 8), last=(128, 16), phase=96, count=1)
    Kind(first=(0, 8), last=(72, 16), phase=96, count=1)
    """
    bits = plan.loaded.matrix(name).dtype.bits
    streams = {stream.name: stream for stream in plan.streams}
    if name not in streams:
        operand = plan.operands.matrix(name)
        steps = strides_of(plan, name, problem)
        if operand.broadcast:
            steps = (int("m" not in operand.broadcast), int("n" not in operand.broadcast), 0)
        modes = [_along(extent, tile) for extent, tile in zip((problem.m, problem.n), plan.d_tile, strict=True)]
        return _joined(modes, steps, problem.l, bits, 1)
    steps = strides_of(plan, name, problem)
    grid_m, grid_n, batch = grid_of_loads(plan, problem)
    mode, depth = "mn".index(streams[name].mode), streams[name].tile[1]
    extent, grid, others = ((problem.m, grid_m, grid_n), (problem.n, grid_n, grid_m))[mode]
    tile, loaded = plan.mma_tile[mode], streams[name].tile[0] if plan.stages else plan.loaded_tile[mode]
    for repack in plan.repacks:
        if repack.name == name:
            extent = repack.extents(extent, problem.k)[0]
    deep = problem.extent(name, plan.operands.modes(name)[1])
    along_k = _along(deep, depth) if isinstance(streams[name].load, TmaBox) else _before(deep, depth)
    return _joined([_along(extent, tile, grid, loaded), along_k], steps, batch, bits, others)


@dataclass(frozen=True)
class _Run:
    """Tiles that lie one after the other: elements `low` to `high` of each are inside.

    at, step   where the first one begins, and from one to the next
    count      of them
    """

    low: int
    high: int
    at: int
    step: int
    count: int

    def residues(self, stride: int, modulus: int) -> np.ndarray:
        """How many of them begin at each of the places 0 to `modulus` - 1, with that stride of the elements; exact,
        as objects of Python."""
        found = np.zeros(modulus, dtype=object)
        period = modulus // math.gcd(modulus, self.step * stride)
        whole, rest = divmod(self.count, period)
        for number in range(min(self.count, period)):
            found[(self.at + number * self.step) * stride % modulus] += whole + (number < rest)
        return found


def _along(extent: int, tile: int, count: int = 0, loaded: int | None = None) -> list[_Run]:
    """Tiles from 0 on, the last of which may be ragged; and that one again, if there are to be so many in all: see
    `TileGrid.loaded_mnl`.

    loaded   elements of each, where some are those of the next one: see `GemmPlan.loaded_tile`
    """
    held, tiles = loaded or tile, -(-extent // tile)
    full = max(0, (extent - held) // tile + 1)
    out = [_Run(0, held, 0, tile, full)] if full else []
    out += [_Run(0, extent - at * tile, at * tile, 0, 1) for at in range(full, tiles)]
    again = count - tiles
    if out and again > 0:
        last = out[-1]
        out.append(_Run(last.low, last.high, last.at + (last.count - 1) * last.step, 0, again))
    return out


def _before(extent: int, tile: int) -> list[_Run]:
    """Tiles up to an end, the first of which may begin before 0."""
    full, rest = divmod(extent, tile)
    out = [_Run(0, tile, rest, tile, full)] if full else []
    return [*out, _Run(tile - rest, tile, rest - tile, 0, 1)] if rest else out


_Ends = tuple[int, int]


def _joined(
    modes: list[list[_Run]],
    steps: tuple[int, int, int],
    batch: int,
    bits: int,
    times: int,
) -> list[Kind]:
    modulus = 8 * CACHE_LINE_BYTES // bits  # elements of a line
    of_batch = _Run(0, 1, 0, 1, batch).residues(steps[2], modulus)
    found: dict[tuple[_Ends, _Ends], np.ndarray] = {}
    for across in modes[1]:
        of_across = _added(across.residues(steps[1], modulus), of_batch)
        for along in modes[0]:
            ends = (along.low, across.low), (along.high, across.high)
            counts = _added(along.residues(steps[0], modulus), of_across)
            found[ends] = found[ends] + counts if ends in found else counts
    return [
        Kind(first, last, place * bits // 8, times * count)
        for (first, last), counts in found.items()
        for place, count in enumerate(counts.tolist())
        if count
    ]


def _added(counts: np.ndarray, others: np.ndarray) -> np.ndarray:
    """How many sums of a place of each there are at every place, around the modulus."""
    found = np.zeros_like(counts)
    for place in np.flatnonzero(counts):
        found = found + counts[place] * np.roll(others, place)
    return found
