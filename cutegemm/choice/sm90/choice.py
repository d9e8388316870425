"""The candidates among Hopper plans: recipes that serve operands, and for which problems each may be the fastest."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import zip_longest

import numpy as np

from cutegemm.build.epi_stages import WHOLE_COLUMNS
from cutegemm.choice.candidate import Request, Variants
from cutegemm.choice.columns import Column
from cutegemm.choice.sm90.named import SM90_CHOSEN, SM90_PROMOTED, SM90_READING
from cutegemm.choice.sm90.recipe import Sm90Recipe, can_read
from cutegemm.choice.sm90.repack import read_by
from cutegemm.choice.sm90.shapes import K_TILE_BYTES, Shapes, may_share
from cutegemm.choice.sm90.tiling import FixupTiles, FixupVariants
from cutegemm.choice.sm90.time import Model
from cutegemm.errors import PlanError
from cutegemm.machine.device import Device
from cutegemm.plan.memory.repack import ALIGN_BYTES, repacked_for_wgmma
from cutegemm.plan.problem import Operand, Operands, Problem
from cutegemm.plan.work.gpcs import PAIR

ACCUMULATIONS = ("fast", "promoted")
SPLITS = (2, 3, 4, 6, 8, 12, 16)
MOST_SPLITS = 3  # of a tile: the largest that fit the grid; of 7200 random problems 3 took smaller ones
MAX_SPLITS = 1 << 20  # more than any
LEAST_K_TILES = 8  # of a part: it fills the pipeline of a large tile twice
UNSPLIT = 128 * 192  # elements of a tile, from which on splitting less than a wave gains nothing
SEVERAL_WAVES, FEW_WAVES = 128 * 224, 4  # elements of tiles that large clusters take in at most so many waves
MOST_DEEP_K_TILES = 40  # of K in one part: with more, parts of it are faster than deep k-tiles
FEW_ROWS = 64  # or columns of a D, most of whose time is the reading of the other operand, by whatever plan
FEW_COLUMNS = 48  # of a D, for which tiles of few columns are faster
MIN_FIXUP_K_TILES = 32  # of a tile that has an owner: with fewer, owners gain nothing
_BYTE_BITS, _COLUMNS_OF_BYTES = 8, 32  # of a D that CTAs sharing K store, each its own columns
_FOUR = 4  # CTAs of a cluster
_FIXUP_STAGES = 4  # of the pipeline of tiles that have owners


@dataclass(frozen=True, eq=False)
class Sm90Family(Model):
    """The Hopper plans that serve operands, for D and for D^T: see `candidate.Family`."""

    recipes: tuple[Sm90Recipe, ...] = ()

    def candidates(self, problem: Problem) -> Variants:
        """Return the recipes with K whole, with K in parts that are long enough and fit the grid, and with owners."""
        tiling, k_tiles = self.tiling(problem), self.k_tiles(problem)
        tiles, grid = tiling.tiles, tiling.grid
        may_be_whole = (self._least_k_tiles <= k_tiles) & (tiling.n <= self._most_columns)
        if min(problem.m, problem.n) <= FEW_ROWS:
            may_be_whole &= tiles <= self._most_tiles_of_few
        else:
            may_be_whole &= (tiles <= self._most_tiles) & (self._most_k_tiles >= k_tiles)
        may_be_whole &= tiles <= self._most_alone
        rows, splits = [np.flatnonzero(may_be_whole)], [1]
        if k_tiles >= 2 * LEAST_K_TILES:
            few = np.flatnonzero((2 * tiles <= grid) & self._may_split)
            times = grid[few] / tiles[few]
            fitting = [count for count in SPLITS if k_tiles >= count * LEAST_K_TILES]
            for count, beyond in zip_longest(fitting, fitting[MOST_SPLITS:], fillvalue=MAX_SPLITS):
                if len(some := few[(times >= count) & (times < beyond)]):
                    rows.append(some)
                    splits.append(count)
        unowned, fixup_tiles = sum(map(len, rows)), None
        if k_tiles >= MIN_FIXUP_K_TILES:
            owning = np.flatnonzero(((tiles >= grid) | self._is_small) & self._may_own)
            found = FixupTiles.of(tiles[owning], k_tiles, grid[owning])
            rows.append(owning[found.at])
            splits.append(1)
            fixup_tiles = replace(found, at=np.arange(unowned, unowned + len(found.at)))
        every = np.concatenate(rows)
        fixup, of_splits = np.arange(len(every)) >= unowned, np.repeat(splits, [len(some) for some in rows])
        return FixupVariants(every, of_splits, fixup=fixup, fixup_tiles=fixup_tiles)

    @cached_property
    def _is_small(self) -> Column:
        """Whether splitting less than a wave may gain something."""
        return self.shapes.bm * self.shapes.bn < UNSPLIT

    @cached_property
    def _needs_one(self) -> Column:
        """Whether CTAs take one tile each, of a D of more than few rows.

        If they take several, one warpgroup, clusters of four or eight and deep k-tiles lose 5 to 30%; and K is not
        shared by CTAs, unless they stream A.
        """
        shapes = self.shapes
        is_deep = shapes.is_deep & ~shapes.is_two
        return (shapes.splits_k_in_cluster | shapes.single | shapes.is_large_cluster | is_deep) & ~shapes.streams

    @cached_property
    def _most_alone(self) -> Column:
        """The most tiles of a shape for one tile a CTA that has another form for several."""
        return np.where(self.shapes.is_other_orientation, self.grid, np.inf)

    @cached_property
    def _most_tiles(self) -> Column:
        """The most tiles of a problem of more than few rows that a shape is considered for, with K whole."""
        shapes = self.shapes
        most = self.grid * most_waves(shapes.cm * shapes.cn, shapes.bm * shapes.bn)
        return np.where(self._needs_one, most, np.inf)

    @cached_property
    def _most_tiles_of_few(self) -> Column:
        """The same for few rows: no cluster of eight waits for another, and no CTA of one warpgroup, which hides no
        store. 16368 x 32 x 128 takes 8.2 us by 64 x 32 so, cuBLAS 7.0 (H200, 2026-11-25)."""
        shapes = self.shapes
        needs_one = shapes.single | (shapes.cm * shapes.cn > _FOUR)
        return np.where(needs_one, self.grid, np.inf)

    @cached_property
    def _most_columns(self) -> Column:
        """The most columns of D, with K whole. Tiles of few columns lose with many: 704 x 1680 x 64 takes 8.4 us in 128
        x 32, and 5.8 by cuBLAS (H100, 2026-11-22)."""
        return np.where(~self._needs_one & self.shapes.is_for_few, FEW_COLUMNS, np.inf)

    @cached_property
    def _least_k_tiles(self) -> Column:
        """The fewest k-tiles of a problem: CTAs that share K have as many each as a part of it has."""
        return np.where(self.shapes.splits_k_in_cluster, self.shapes.cluster_k * LEAST_K_TILES, 0)

    @cached_property
    def _most_k_tiles(self) -> Column:
        """The most k-tiles of a problem of more than few rows, with K whole; deep ones alone have a limit."""
        shapes = self.shapes
        deep = self._needs_one & shapes.is_deep & ~shapes.is_large_cluster
        return np.where(deep, MOST_DEEP_K_TILES, np.inf)

    @cached_property
    def _may_split(self) -> Column:
        """Whether K may be in parts."""
        shapes = self.shapes
        is_usual = self._is_small & ~shapes.single & ~shapes.splits_k_in_cluster
        return is_usual & (shapes.is_large_cluster | ~(shapes.is_for_few | shapes.is_other_orientation))

    @cached_property
    def _may_own(self) -> Column:
        """Whether tiles may have owners: not with a pipeline of three stages, which runs empty when a CTA goes on to
        another tile's k-tiles. 5000 x 5000 x 5000 tn takes 414 us by 256 x 192 so, 381 by 128 x 256 (H200, 2026-11-26).
        """
        shapes = self.shapes
        is_usual = ~(shapes.is_large_cluster | shapes.alone | shapes.is_deep | shapes.single)
        is_usual &= shapes.stages >= _FIXUP_STAGES
        return is_usual & ~(shapes.splits_k_in_cluster | shapes.is_joint)


def most_waves(ctas: Column, elements: Column) -> Column:
    """Return the most waves of shapes for one tile a CTA: large tiles in large clusters have several.

    ctas       CTAs of a cluster
    elements   elements of a tile

    >>> most_waves(np.array([2, 8, 8]), np.array([128 * 224, 128 * 192, 128 * 224])).tolist()
    [1, 1, 4]
    """
    return np.where((ctas > PAIR) & (elements >= SEVERAL_WAVES), FEW_WAVES, 1)


def family(request: Request, k: int) -> Sm90Family:
    """Return the plans, whole and split, for the ways that are asked for; operands that are in the way are packed.

    k        extent along K: accumulators of one k-tile are not promoted, as there is nothing to add them to
    raises   PlanError for an unknown way to accumulate

    >>> from cutegemm.choice.candidate import ranked
    >>> found = family(Request(Operands.of("bf16", layout="nt")), 4096)
    >>> [next(ranked(found, Problem(*mnk))).recipe.tile for mnk in ((16, 4096, 4096), (4096, 4096, 4096))]
    [(64, 16), (128, 256)]
    """
    if request.accumulate not in ACCUMULATIONS:
        rule = f"accumulate = {request.accumulate!r}; {' or '.join(ACCUMULATIONS)} is expected."
        raise PlanError("choose", [rule])
    kind = request.operands.a.dtype
    is_fp8 = kind.is_float and kind.bits == _BYTE_BITS
    promotes = is_fp8 and request.accumulate == "promoted" and k * kind.bits > K_TILE_BYTES * 8
    return _family(request.operands, request.variants, promotes, request.with_c, request.device)


@lru_cache(maxsize=256)
def _family(operands: Operands, variants: tuple[bool, ...], promotes: bool, with_c: bool, device: Device) -> Sm90Family:
    """The recipes for D and for D^T that store D well: see `_may_leave`."""
    packed = repacked_for_wgmma(operands)
    loaded = _as_loaded(operands, packed)
    recipes: list[Sm90Recipe] = []
    shapes: list[Shapes] = []
    for swap_ab in variants:
        if not _may_end(operands, swap_ab):
            continue
        reads = can_read(operands.transposed if swap_ab else operands)
        # +repack reads A, and packs B alone, by those that may
        of_way = [
            one
            for one in (SM90_PROMOTED if promotes else SM90_CHOSEN)
            if not (reads and packed == "ab" and one.may_read)
        ]
        for some, reads_a in ((of_way, False), (SM90_READING, True))[: 1 + reads]:
            copied = packed.replace(read_by(swap_ab), "") if reads_a else packed
            recipes += [replace(one, is_repacked=bool(copied), swap_ab=swap_ab) for one in some]
            shapes.append(Shapes.of([one.shape for one in some], loaded, swap_ab, with_c, reads_a))
    every = Shapes.joined(shapes or [Shapes.of((), loaded)])
    serving = _may_leave(every, operands.d)
    if not may_share(operands):
        serving = serving & ~every.is_other_orientation
    leaving = np.flatnonzero(serving)
    serve = tuple([recipes[i] for i in leaving])
    return Sm90Family(every.taken(leaving), loaded, device, packed, with_c, recipes=serve)


def _may_end(operands: Operands, swap_ab: bool) -> bool:
    """Return whether threads can store D, or D^T: they hold a D of bytes in pairs along N."""
    return operands.d.dtype.bits > _BYTE_BITS or (operands.d.major == "m") == swap_ab


def _may_leave(shapes: Shapes, d: Operand) -> Column:
    """Return whether D is stored well. An epilogue tile of eight columns stores 16 or 32 bytes of each row of D, but
    whole lines of a D^T (bf16 5000 x 5000 x 5000 in 256 x 152: 453 and 430 us, H200; tf32 3392 x 4624 x 1984: 202 us in
    128 x 136, 175 in 192 x 160, H100)."""
    own = shapes.bn // shapes.cluster_k
    has_lines = ~shapes.by_eight | (shapes.swap_ab != (d.major == "m"))
    leaves = (own % WHOLE_COLUMNS == 0) | ((d.dtype.bits == 16) & has_lines)
    if d.dtype.bits == _BYTE_BITS:  # the least row of a box has 32 of them
        leaves = leaves & ((shapes.cluster_k == 1) | (own % _COLUMNS_OF_BYTES == 0))
    return leaves


def _as_loaded(operands: Operands, packed: str) -> Operands:
    """Return the operands as the GEMM loads them, after those of these names are packed."""
    made = {name: replace(getattr(operands, name), major="k", align_bytes=ALIGN_BYTES) for name in packed}
    return replace(operands, **made) if made else operands
