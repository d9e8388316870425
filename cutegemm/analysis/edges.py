"""Kinds of tiles of a matrix: tiles with the same elements inside of the matrix and the same offset in a cache line.

Both decide what an access costs. Copies skip elements outside of the matrix, and tiles start at different bytes of a
cache line if rows are not multiples of it. So a few kinds stand for all tiles of a problem. Copies by threads take the
ragged k-tile first, which starts before k = 0; TMA takes it last.
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
    """A group of tiles of one matrix for which every memory access costs the same, so that one stands for all.

    All tiles of the group have the same elements inside the matrix, and start equally far from a cache line.

    first, last   elements from `first` up to, but without, `last` are inside: (mn, k) in a tile of A or B, (m, n) in
                  D
    phase         bytes from the start of a cache line to the tile's first element
    count         number of such tiles. A tile of A or B counts once for every CTA and k-tile that loads it. CTAs that
                  split K load other k-tiles of the same rows and columns
    """

    first: tuple[int, int]
    last: tuple[int, int]
    phase: int
    count: int

    @property
    def elements(self) -> int:
        """Number of elements of each of these tiles that are inside of the matrix."""
        return (self.last[0] - self.first[0]) * (self.last[1] - self.first[1])

    def inside(self, shape: tuple[int, int]) -> np.ndarray:
        """Return a boolean array over the indices in one of these tiles: True for elements inside of the matrix.

        shape   extents of the tile
        """
        down, across = (
            (np.arange(extent) >= low) & (np.arange(extent) < high)
            for extent, low, high in zip(shape, self.first, self.last, strict=True)
        )
        return np.outer(across, down).ravel()


def strides_of(plan: GemmPlan, name: str, problem: Problem) -> tuple[int, int, int]:
    """Return the strides of a matrix along its two modes and the batch, in elements.

    If the plan copies the matrix before the GEMM (repack pass), these are the strides of the copy.

    name   name of the matrix, such as "a" or "d"
    """
    layout = problem.layout(name)
    along, across, batch = (int(stride) for stride in layout.stride)
    for repack in plan.repacks:
        if repack.name == name:
            extents = repack.extents(int(layout.shape[0]), int(layout.shape[1]))
            along, across = repack.strides(extents)
            batch = int(extents[0] * extents[1])
    return along, across, batch


def grid_of_clusters(plan: GemmPlan, problem: Problem) -> tuple[int, int, int]:
    """Return (tiles along M, tiles along N, batches) of a problem's grid, with tiles rounded up to whole clusters.

    CTAs whose tiles lie outside of D multiply all k-tiles as well. They load the last tile of A or B.

    >>> from cutegemm.build import sm90_plan
    >>> from cutegemm.plan import Problem
    >>> grid_of_clusters(sm90_plan(cluster=(2, 1)), Problem(300, 256, 64))  # 3 x 2 tiles of 128 x 128
    (4, 2, 1)
    """
    grid_m, grid_n, batch = plan.grid(problem)
    across, along = plan.cluster_mn
    return -(-grid_m // across) * across, -(-grid_n // along) * along, batch


def grid_of_loads(plan: GemmPlan, problem: Problem) -> tuple[int, int, int]:
    """Return (tiles along M, tiles along N, batches) that CTAs load, with tiles rounded up to whole clusters.

    CTAs whose tiles lie outside of D load tiles too.
    """
    grid_m, grid_n, batch = grid_of_clusters(plan, problem)
    down, across = sharers_mn(plan)
    return grid_m // down, grid_n // across, batch


def sharers_mn(plan: GemmPlan) -> tuple[int, int]:
    """Return how many CTAs of a cluster split the K of one tile between them, along M and along N of the cluster.

    All of them load the same rows of A and the same columns of B. The result is (1, 1) without cluster split-K.

    >>> from cutegemm.build import gemv_plan, sm90_plan
    >>> sharers_mn(sm90_plan(tile=(64, 64, 64), cluster_k=4)), sharers_mn(gemv_plan(cluster=2))
    ((1, 4), (2, 1))
    """
    (rows, columns, _), (bm, bn, _) = plan.mma_tile, plan.cta_tile
    return rows // bm, columns // bn


def kinds_of(plan: GemmPlan, name: str, problem: Problem) -> list[Kind]:
    """Group the tiles of a matrix by the part that is inside the matrix and by their offset within a cache line.

    Tiles of one kind have the same cost of every access, so that one of them is evaluated for all.

    name   "a", "b", or another matrix, which has the extents of D

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
    tile, loaded = plan.mma_tile[mode], streams[name].tile[0]
    for repack in plan.repacks:
        if repack.name == name:
            extent = repack.extents(extent, problem.k)[0]
    deep = problem.extent(name, plan.operands.modes(name)[1])
    along_k = _along(deep, depth) if isinstance(streams[name].load, TmaBox) else _before(deep, depth)
    return _joined([_along(extent, tile, grid, loaded), along_k], steps, batch, bits, others)


@dataclass(frozen=True)
class _Run:
    """Equally spaced tiles along one mode of a matrix that have the same part inside of the matrix.

    low, high   elements `low` up to, but without, `high` of each tile are inside of the matrix
    at          index along the mode of the first tile's first element
    step        elements from the start of a tile to the start of the next one
    count       number of tiles
    """

    low: int
    high: int
    at: int
    step: int
    count: int

    def residues(self, stride: int, modulus: int) -> np.ndarray:
        """Return how many tiles of this run start at each position within a cache line.

        The result is an array with a count for each element of a cache line, as Python integers.

        stride    stride of the mode in elements
        modulus   number of elements of a cache line
        """
        counts = np.zeros(modulus, dtype=object)
        period = modulus // math.gcd(modulus, self.step * stride)
        whole, rest = divmod(self.count, period)
        for number in range(min(self.count, period)):
            counts[(self.at + number * self.step) * stride % modulus] += whole + (number < rest)
        return counts


def _along(extent: int, tile: int, count: int = 0, loaded: int | None = None) -> list[_Run]:
    """Return the tiles along a mode of a matrix as runs of equally spaced ones; the first tile starts at element 0.

    The last tile may be ragged, i.e. reach past the end of the matrix.

    extent   elements of the matrix along the mode
    tile     elements from one tile to the next
    count    number of tiles that are loaded; 0: as many as cover the extent. Tiles beyond the extent load the last tile
             again
    loaded   elements that are loaded for each tile, so that tiles may overlap; None: `tile`
    """
    width, tiles = loaded or tile, -(-extent // tile)
    full = max(0, (extent - width) // tile + 1)
    out = [_Run(0, width, 0, tile, full)] if full else []
    out += [_Run(0, extent - at * tile, at * tile, 0, 1) for at in range(full, tiles)]
    again = count - tiles
    if out and again > 0:
        last = out[-1]
        out.append(_Run(last.low, last.high, last.at + (last.count - 1) * last.step, 0, again))
    return out


def _before(extent: int, tile: int) -> list[_Run]:
    """Return the tiles along a mode of a matrix as runs of equally spaced ones; the last tile ends at `extent`.

    The first tile may start before element 0.

    extent   elements of the matrix along the mode
    tile     elements of a tile
    """
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
    """Combine tiles along the two modes of a matrix to two-dimensional tiles, and group those of equal cost.

    Tiles of a group have the same part inside of the matrix, and the same offset within a cache line.

    modes   runs of equally spaced tiles along the first and along the second mode
    steps   strides of both modes and of the batch, in elements
    batch   number of matrices
    bits    bits of an element
    times   how often each tile is loaded
    """
    modulus = 8 * CACHE_LINE_BYTES // bits  # elements of a line
    batch_counts = _Run(0, 1, 0, 1, batch).residues(steps[2], modulus)
    by_ends: dict[tuple[_Ends, _Ends], np.ndarray] = {}
    for across in modes[1]:
        across_counts = _convolved(across.residues(steps[1], modulus), batch_counts)
        for along in modes[0]:
            ends = (along.low, across.low), (along.high, across.high)
            counts = _convolved(along.residues(steps[0], modulus), across_counts)
            by_ends[ends] = by_ends[ends] + counts if ends in by_ends else counts
    return [
        Kind(first, last, place * bits // 8, times * count)
        for (first, last), counts in by_ends.items()
        for place, count in enumerate(counts.tolist())
        if count
    ]


def _convolved(counts: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return the cyclic convolution of two histograms of positions within a cache line.

    Entry i counts the pairs, one item from each histogram, whose positions add up to i modulo the length.

    counts, others   histograms of the same length: number of items at each element of a cache line
    """
    sums = np.zeros_like(counts)
    for place in np.flatnonzero(counts):
        sums = sums + counts[place] * np.roll(others, place)
    return sums
