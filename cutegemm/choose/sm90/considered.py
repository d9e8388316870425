"""Which Hopper plans are considered for operands, and for a problem; others were not seen to be faster."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import zip_longest

import numpy as np

from cutegemm.build.slots import WHOLE_COLUMNS
from cutegemm.choose.columns import Column
from cutegemm.choose.sm90.named import SM90_CHOSEN, SM90_READING, SM90_TWO_LEVEL
from cutegemm.choose.sm90.recipe import Sm90Recipe, can_read
from cutegemm.choose.sm90.shapes import Shapes, may_share
from cutegemm.choose.sm90.tiling import Divided, Owners, Tiling
from cutegemm.choose.sm90.time import Model
from cutegemm.machine.device import Device
from cutegemm.plan.memory.packing import ALIGN_BYTES, to_pack_for_wgmma
from cutegemm.plan.problem import Operand, Operands, Problem
from cutegemm.plan.work.gpcs import PAIR

ONE_LEVEL, TWO_LEVELS = "sums on one level", "sums on two levels"
_RECIPES = {ONE_LEVEL: SM90_CHOSEN, TWO_LEVELS: SM90_TWO_LEVEL}

SPLITS = (2, 3, 4, 6, 8, 12, 16)
MOST_SPLITS = 3  # of a tile: the largest that fit the grid; of 7200 drawn problems 3 took smaller ones
LEAST_K_TILES = 8  # of a part: it fills the ring of a large tile twice
UNSPLIT = 128 * 192  # elements of a tile, from which on dividing less than a wave was not seen to be faster
SEVERAL_WAVES, FEW_WAVES = 128 * 224, 4  # elements of tiles that large clusters take in so many waves at most
MOST_DEEP_K_TILES = 40  # of K in one part: with more, parts of it were seen to be faster than deep k-tiles
FEW_ROWS = 64  # or columns of a D, most of whose time is the reading of the other operand, by whatever plan
FEW_COLUMNS = 48  # of a D, for which tiles of few columns were seen to be faster
_BYTE_BITS, _COLUMNS_OF_BYTES = 8, 32  # of a D that CTAs sharing K store, each its own columns
_FOUR = 4  # CTAs of a cluster
_STAGES_OF_OWNERS = 4  # of the ring of tiles that have owners
LEAST_OWNED_K_TILES = 32  # of a tile that has an owner: with fewer that was not seen to be faster


@dataclass(frozen=True, eq=False)
class Considered:
    """The recipes among which there is a choice, and the model of their times; and for which problems each is."""

    recipes: tuple[Sm90Recipe, ...]
    model: Model

    def divided(self, tiling: Tiling, problem: Problem) -> Divided:
        """The ways to divide the K of each tile, as far as parts are long enough, and fit the grid."""
        k_tiles, tiles, grid = self.model.k_tiles(problem), tiling.tiles, tiling.grid
        may_be_whole = (self._least_k_tiles <= k_tiles) & (tiling.n <= self._most_columns)
        if min(problem.m, problem.n) <= FEW_ROWS:
            may_be_whole &= tiles <= self._most_tiles_of_few
        else:
            may_be_whole &= (tiles <= self._most_tiles) & (self._most_k_tiles >= k_tiles)
        may_be_whole &= tiles <= self._most_alone
        every, of_parts = [np.flatnonzero(may_be_whole)], [1.0]
        if k_tiles >= 2 * LEAST_K_TILES:
            few = np.flatnonzero((2 * tiles <= grid) & self._may_split)
            times = grid[few] / tiles[few]
            fitting = [parts for parts in SPLITS if k_tiles >= parts * LEAST_K_TILES]
            for parts, beyond in zip_longest(fitting, fitting[MOST_SPLITS:], fillvalue=np.inf):
                if len(some := few[(times >= parts) & (times < beyond)]):
                    every.append(some)
                    of_parts.append(parts)
        owners, is_split = None, len(every) > 1
        if k_tiles >= LEAST_OWNED_K_TILES:
            owning = np.flatnonzero(((tiles >= grid) | self._is_small) & self._may_own)
            owners = Owners.of(tiles[owning], k_tiles, grid[owning])
            whole = sum(map(len, every))
            every.append(owning[owners.at])
            of_parts.append(1.0)
            owners = replace(owners, at=np.arange(whole, whole + len(owners.at)))
        if len(every) == 1:
            return Divided(every[0], np.ones(len(every[0])), owners, is_split)
        of_rows = np.repeat(of_parts, [len(rows) for rows in every])
        return Divided(np.concatenate(every), of_rows, owners, is_split)

    @cached_property
    def _is_small(self) -> Column:
        """Whether dividing less than a wave was seen to be faster."""
        return self.model.shapes.bm * self.model.shapes.bn < UNSPLIT

    @cached_property
    def _needs_one(self) -> Column:
        """Whether CTAs are to have one tile each, of a D of more than few rows: where they take several, one warpgroup,
        clusters of four or eight and deep k-tiles were seen to lose 5 to 30%. Nor is K shared by CTAs then, but where
        they stream A."""
        shapes = self.model.shapes
        is_deep = shapes.is_deep & ~shapes.is_two
        return (shapes.shares_k | shapes.single | shapes.is_large_cluster | is_deep) & ~shapes.streams

    @cached_property
    def _most_alone(self) -> Column:
        """The most tiles of a shape that is for one tile a CTA, and there for several in another way."""
        return np.where(self.model.shapes.is_other_way, self.model.grid, np.inf)

    @cached_property
    def _most_tiles(self) -> Column:
        """The most tiles of a problem of more than few rows that a shape is considered for, with K whole."""
        shapes = self.model.shapes
        most = self.model.grid * most_waves(shapes.cm * shapes.cn, shapes.bm * shapes.bn)
        return np.where(self._needs_one, most, np.inf)

    @cached_property
    def _most_tiles_of_few(self) -> Column:
        """The same of few rows: no cluster of eight waits for another, and no CTA of one warpgroup, which hides no
        store: 16368 x 32 x 128 took 8.2 us by 64 x 32 so, cuBLAS 7.0 (one H200, 2026-11-25)."""
        shapes = self.model.shapes
        needs_one = shapes.single | (shapes.cm * shapes.cn > _FOUR)
        return np.where(needs_one, self.model.grid, np.inf)

    @cached_property
    def _most_columns(self) -> Column:
        """The most columns of D, with K whole. What is for few columns loses where there are many: 704 x 1680 x 64 took
        8.4 us in 128 x 32 (H100, 2026-11-22), and 5.8 by cuBLAS."""
        return np.where(~self._needs_one & self.model.shapes.is_for_few, FEW_COLUMNS, np.inf)

    @cached_property
    def _least_k_tiles(self) -> Column:
        """The fewest k-tiles of a problem: CTAs that share K have as many each as a part of it has."""
        shapes = self.model.shapes
        return np.where(shapes.shares_k, shapes.k_ctas * LEAST_K_TILES, 0)

    @cached_property
    def _most_k_tiles(self) -> Column:
        """The most k-tiles of a problem of more than few rows, with K whole; deep ones alone have a limit."""
        shapes = self.model.shapes
        deep = self._needs_one & shapes.is_deep & ~shapes.is_large_cluster
        return np.where(deep, MOST_DEEP_K_TILES, np.inf)

    @cached_property
    def _may_split(self) -> Column:
        """Whether K may be in parts."""
        shapes = self.model.shapes
        is_usual = self._is_small & ~shapes.single & ~shapes.shares_k
        return is_usual & (shapes.is_large_cluster | ~(shapes.is_for_few | shapes.is_other_way))

    @cached_property
    def _may_own(self) -> Column:
        """Whether tiles may have owners: not by a ring of three stages, which runs empty where a CTA goes on to another
        tile's k-tiles. 5000 x 5000 x 5000 tn takes 414 us by 256 x 192 so, 381 by 128 x 256, which was predicted to
        take 1% longer (one H200, 2026-11-26); of 60 drawn problems 3 were fastest so."""
        shapes = self.model.shapes
        is_usual = ~(shapes.is_large_cluster | shapes.alone | shapes.is_deep | shapes.single)
        is_usual &= shapes.stages >= _STAGES_OF_OWNERS
        return is_usual & ~(shapes.shares_k | shapes.is_joint)


def most_waves(ctas: Column, elements: Column) -> Column:
    """The most waves of what is for one tile a CTA otherwise: large tiles in large clusters have several.

    ctas       of a cluster
    elements   of a tile

    >>> most_waves(np.array([2, 8, 8]), np.array([128 * 224, 128 * 192, 128 * 224])).tolist()
    [1, 1, 4]
    """
    return np.where((ctas > PAIR) & (elements >= SEVERAL_WAVES), FEW_WAVES, 1)


@lru_cache(maxsize=256)
def considered(
    sums: str, operands: Operands, ways: tuple[bool, ...], with_c: bool, device: Device
) -> Considered:
    """Return the recipes for D and for D^T, and the model of their times, without those that store D badly.

    D is stored well where `_may_leave` says so.

    sums   ONE_LEVEL or TWO_LEVELS
    ways   whether for D^T
    """
    packed = to_pack_for_wgmma(operands)
    read = _as_read(operands, packed)
    recipes: list[Sm90Recipe] = []
    shapes: list[Shapes] = []
    for way in ways:
        reads = can_read(operands.transposed if way else operands)
        taken = [one for one in _RECIPES[sums] if not (reads and packed == "ab" and one.may_read)]
        for of, reads_a in ((taken, False), (SM90_READING, True))[: 1 + reads]:
            recipes += of
            shapes.append(Shapes.of([one.shape for one in of], read, way, with_c, reads_a))
    every = shapes[0].joined(*shapes[1:])
    serving = _may_leave(every, operands.d)
    if not may_share(operands):
        serving = serving & ~every.is_other_way
    leaving = np.flatnonzero(serving)
    model = Model(every.taken(leaving), read, device, packed, with_c)
    return Considered(tuple([recipes[i] for i in leaving]), model)


def _may_leave(shapes: Shapes, d: Operand) -> Column:
    """Whether D leaves well. A tile that leaves by eight columns at a time stores 16 or 32 bytes of each row of D, but
    whole lines of a D^T (bf16 5000 x 5000 x 5000 in 256 x 152 took 453 and 430 us, one H200; tf32 3392 x 4624 x 1984
    took 202 us in 128 x 136, 175 in 192 x 160, one H100)."""
    own = shapes.bn // shapes.k_ctas
    has_lines = ~shapes.by_eight | (shapes.turned != (d.major == "m"))
    leaves = (own % WHOLE_COLUMNS == 0) | ((d.dtype.bits == 16) & has_lines)
    if d.dtype.bits == _BYTE_BITS:  # the least row of a box has 32 of them
        leaves = leaves & ((shapes.k_ctas == 1) | (own % _COLUMNS_OF_BYTES == 0))
    return leaves


def _as_read(operands: Operands, packed: str) -> Operands:
    """As the GEMM reads them, behind what packs those of these names."""
    made = {name: replace(getattr(operands, name), major="k", align_bytes=ALIGN_BYTES) for name in packed}
    return replace(operands, **made) if made else operands
