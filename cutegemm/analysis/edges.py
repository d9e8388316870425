"""Tiles of a problem that one access finds alike: as far inside of the matrix, beginning at the same place of a sector.

A plan's copies leave out what lies outside of a matrix, and rows that are no multiple of a cache line begin at other
places of it from tile to tile. Both decide what an access costs, so that a few kinds of tiles stand for all of them:
full ones and those on each edge, by the byte of a line at which they begin. Of copies by threads the first k-tile is
the ragged one, which begins before k = 0; of TMA the last.
"""

from __future__ import annotations

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
    count         of such tiles; of A and B each counts once for every CTA and k-tile that loads it
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
    for packing in plan.packs:
        if packing.name == name:
            extents = packing.extents(int(layout.shape[0]), int(layout.shape[1]))
            along, across = packing.strides(extents)
            batch = int(extents[0] * extents[1])
    return along, across, batch


def grid_of_clusters(plan: GemmPlan, problem: Problem) -> tuple[int, int, int]:
    """Tiles along M, N and the batch, with those outside of D that the last clusters have besides: their CTAs go
    through all of K as well, by the last tile of A or of B."""
    grid_m, grid_n, batch = plan.grid(problem)
    across, along = plan.cluster_mn
    return -(-grid_m // across) * across, -(-grid_n // along) * along, batch


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
    if name not in ("a", "b"):
        operand = plan.operands.matrix(name)
        steps = strides_of(plan, name, problem)
        if operand.broadcast:
            steps = (int("m" not in operand.broadcast), int("n" not in operand.broadcast), 0)
        modes = [
            _along(extent, tile) for extent, tile in zip((problem.m, problem.n), plan.d_tile, strict=True)
        ]
        return _joined(modes, steps, problem.l, bits, 1)
    steps = strides_of(plan, name, problem)
    grid_m, grid_n, batch = grid_of_clusters(plan, problem)
    extent, tile, grid, others = (
        (problem.m, plan.cta_tile[0], grid_m, grid_n)
        if name == "a"
        else (problem.n, plan.cta_tile[1], grid_n, grid_m)
    )
    for packing in plan.packs:
        if packing.name == name:
            extent = packing.extents(extent, problem.k)[0]
    bk, by_box = plan.cta_tile[2], isinstance(plan.load_a, TmaBox)
    along_k = _along(problem.k, bk) if by_box else _before(problem.k, bk)
    return _joined([_along(extent, tile, grid), along_k], steps, batch, bits, others)


_Part = tuple[int, int, np.ndarray]  # the elements inside of a tile, and where such tiles begin


def _along(extent: int, tile: int, count: int = 0) -> list[_Part]:
    """Tiles from 0 on, the last of which may be ragged; and that one again, if there are to be so many in all: see
    `TileGrid.loaded_mnl`."""
    full, rest = divmod(extent, tile)
    out = [(0, tile, np.arange(full) * tile)] if full else []
    if rest:
        out.append((0, rest, np.array([full * tile])))
    if out:
        low, high, at = out[-1]
        again = np.repeat(at[-1:], max(0, count - full - bool(rest)))
        out[-1] = (low, high, np.concatenate([at, again]))
    return out


def _before(extent: int, tile: int) -> list[_Part]:
    """Tiles up to an end, the first of which may begin before 0."""
    full, rest = divmod(extent, tile)
    out = [(0, tile, rest + np.arange(full) * tile)] if full else []
    return [*out, (tile - rest, tile, np.array([rest - tile]))] if rest else out


def _joined(
    modes: list[list[_Part]],
    steps: tuple[int, int, int],
    batch: int,
    bits: int,
    times: int,
) -> list[Kind]:
    out = []
    of_batch = np.arange(batch) * steps[2]
    for low_k, high_k, at_k in modes[1]:
        for low, high, at in modes[0]:
            places = (at[:, None] * steps[0] + at_k * steps[1])[:, :, None] + of_batch
            phases, counts = np.unique(places * bits // 8 % CACHE_LINE_BYTES, return_counts=True)
            out += [
                Kind((low, low_k), (high, high_k), phase, times * count)
                for phase, count in zip(phases.tolist(), counts.tolist(), strict=True)
            ]
    return out
