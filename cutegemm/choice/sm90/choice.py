"""Candidates among the Hopper plans: recipes that can implement the operands, and the problems they are tried for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import zip_longest

import numpy as np

from cutegemm.build.epi_stages import WHOLE_COLUMNS
from cutegemm.choice.candidate import Request, Variants
from cutegemm.choice.columns import Column
from cutegemm.choice.sm90.named import SM90_CHOSEN, SM90_PROMOTED, SM90_READING, SM90_SCALED
from cutegemm.choice.sm90.recipe import Sm90Recipe, can_read
from cutegemm.choice.sm90.repack import read_by
from cutegemm.choice.sm90.shapes import K_TILE_BYTES, Shapes, may_share
from cutegemm.choice.sm90.tiling import FixupTiles, FixupVariants
from cutegemm.choice.sm90.time import Model
from cutegemm.errors import PlanError
from cutegemm.machine.device import Device
from cutegemm.plan.mainloop.block_scaled import has_scales
from cutegemm.plan.memory.repack import ALIGN_BYTES, repacked_for_wgmma
from cutegemm.plan.problem import Operand, Operands, Problem
from cutegemm.plan.work.gpcs import PAIR

ACCUMULATIONS = ("fast", "promoted")
SPLITS = (2, 3, 4, 6, 8, 12, 16)
MOST_SPLITS = 3  # numbers of K splits that are tried for a tile: the largest that fit the grid
MAX_SPLITS = 1 << 20  # larger than any number of K splits
LEAST_K_TILES = 8  # k-tiles of a K split: they fill the mainloop pipeline of a large tile twice
UNSPLIT = 128 * 192  # elements of a tile; tiles as large gain nothing from split-K in less than a wave
SEVERAL_WAVES, FEW_WAVES = 128 * 224, 4  # elements of a tile; large clusters of tiles as large may run 4 waves
MOST_DEEP_K_TILES = 40  # k-tiles of a problem; with more, split-K is faster than deep k-tiles
FEW_ROWS = 64  # rows or columns of D; with at most as many, loading the other operand takes most of the time
FEW_COLUMNS = 48  # columns of D; tiles of few columns are candidates for at most as many
MIN_FIXUP_K_TILES = 32  # k-tiles of a problem; with fewer, stream-K fixup gains nothing
_BYTE_BITS, _BYTE_COLUMNS = 8, 32  # with cluster split-K, each CTA stores a multiple of 32 columns of an 8-bit D
_FOUR = 4  # CTAs of a cluster
_FIXUP_STAGES = 4  # stages of the mainloop pipeline that stream-K fixup needs


@dataclass(frozen=True, eq=False)
class Sm90Family(Model):
    """Selects the Hopper plans to try for a problem with given operands, and predicts their times.

    The plans compute D, or D^T (swap A/B). Properties of this object are arrays with one entry per plan. Most are
    limits of the problems for which the plan is tried, e.g. the largest number of tiles of D.
    """

    recipes: tuple[Sm90Recipe, ...] = ()

    def candidates(self, problem: Problem) -> Variants:
        """Return the Hopper candidates for a problem: plans that do not divide K, with split-K, or with stream-K fixup.

        The CTAs of a split-K plan must fit in one wave. With stream-K fixup, CTAs that the last wave leaves idle take
        k-tiles of its tiles.

        problem   extents of the GEMM; or of several that differ in M, if its M is an array (problems, 1)
        """
        tiling, k_tiles = self.tiling(problem), self.k_tiles(problem)
        tiles, grid = tiling.tiles, tiling.grid
        may_be_whole = (self._least_k_tiles <= k_tiles) & (tiling.n <= self._most_columns)
        most_tiles = np.where(self._most_k_tiles >= k_tiles, self._most_tiles, -1)
        is_short = np.minimum(problem.m, problem.n) <= FEW_ROWS
        most_tiles = np.where(is_short, self._most_tiles_of_few, most_tiles)
        may_be_whole &= tiles <= np.minimum(most_tiles, self._most_alone)
        rows, splits = [np.flatnonzero(may_be_whole)], [1]
        if tiles.ndim > 1:
            tiles, grid = tiles.ravel(), np.tile(grid, len(tiles))
        if k_tiles >= 2 * LEAST_K_TILES:
            few = np.flatnonzero((2 * tiling.tiles <= tiling.grid) & self._may_split)
            times = grid[few] / tiles[few]
            fitting = [count for count in SPLITS if k_tiles >= count * LEAST_K_TILES]
            for count, too_large in zip_longest(fitting, fitting[MOST_SPLITS:], fillvalue=MAX_SPLITS):
                if len(some := few[(times >= count) & (times < too_large)]):
                    rows.append(some)
                    splits.append(count)
        before_fixup, fixup_tiles = sum(map(len, rows)), None
        if k_tiles >= MIN_FIXUP_K_TILES:
            usable = np.flatnonzero(((tiling.tiles >= tiling.grid) | self._is_small) & self._may_fix_up)
            divided = FixupTiles.of(tiles[usable], k_tiles, grid[usable])
            rows.append(usable[divided.at])
            splits.append(1)
            fixup_tiles = replace(divided, at=np.arange(before_fixup, before_fixup + len(divided.at)))
        recipes = np.concatenate(rows)
        problems: Column = 0
        if tiling.tiles.ndim > 1:
            problems, recipes = np.divmod(recipes, len(self.recipes))
        fixup, column = np.arange(len(recipes)) >= before_fixup, np.repeat(splits, [len(some) for some in rows])
        return FixupVariants(recipes, column, fixup=fixup, problem=problems, fixup_tiles=fixup_tiles)

    @cached_property
    def _is_small(self) -> Column:
        """Return an array of flags, one per plan: is its tile small enough for split-K to be tried?

        Split-K is tried only if the tiles of D do not fill the grid.
        """
        return self.shapes.bm * self.shapes.bn < UNSPLIT

    @cached_property
    def _needs_one(self) -> Column:
        """Return an array of flags, one per plan: is the plan a candidate only if each CTA has at most one tile of D?

        True for plans with one warpgroup, clusters of four or eight CTAs, deep k-tiles, or cluster split-K: they are 5
        to 30% slower than other plans if CTAs have several tiles. The limit is used only for a D of many (more than
        `FEW_ROWS`) rows and columns.
        """
        shapes = self.shapes
        is_deep = shapes.is_deep & ~shapes.is_two
        return (shapes.splits_k_in_cluster | shapes.single | shapes.is_large_cluster | is_deep) & ~shapes.streams

    @cached_property
    def _most_alone(self) -> Column:
        """Return, for each plan, the largest number of tiles of D for which it is a candidate; infinity: no limit.

        Some tile sizes have two plans: one for grids with one tile per CTA, and one for more tiles. Only the first has
        a limit: the number of CTAs that run at a time.
        """
        return np.where(self.shapes.has_other_form, self.grid, np.inf)

    @cached_property
    def _most_tiles(self) -> Column:
        """Return, for each plan, the largest number of tiles of D for which it is a candidate without split-K.

        The limit is used for a D of many (more than `FEW_ROWS`) rows and columns. It is finite only for plans that are
        slow if CTAs have several tiles.
        """
        shapes = self.shapes
        most = self.grid * most_waves(shapes.cm * shapes.cn, shapes.bm * shapes.bn)
        return np.where(self._needs_one, most, np.inf)

    @cached_property
    def _most_tiles_of_few(self) -> Column:
        """Return, for each plan, the largest number of tiles of D for which it is a candidate if D has few rows.

        It is one tile per CTA for clusters of eight and for CTAs of one warpgroup, else infinity. A second cluster of
        eight would wait for the first, and one warpgroup cannot overlap its stores: 16368 x 32 x 128 in 64 x 32 takes
        8.2 us, cuBLAS 7.0 us (H200, 2026-11-25).
        """
        shapes = self.shapes
        needs_one = shapes.single | (shapes.cm * shapes.cn > _FOUR)
        return np.where(needs_one, self.grid, np.inf)

    @cached_property
    def _most_columns(self) -> Column:
        """Return, for each plan, the largest number of columns of D for which it is a candidate without split-K.

        It is infinity for most plans. Tiles of few columns have a limit because they are slow if D has many: 704 x 1680
        x 64 takes 8.4 us in 128 x 32, and 5.8 us by cuBLAS (H100, 2026-11-22).
        """
        return np.where(~self._needs_one & self.shapes.is_for_few, FEW_COLUMNS, np.inf)

    @cached_property
    def _least_k_tiles(self) -> Column:
        """Return, for each plan, the smallest number of k-tiles of a problem for which it is a candidate.

        It is 0, except for cluster split-K, which needs `LEAST_K_TILES` for each CTA that splits K. These k-tiles have
        128 bytes along K.
        """
        return np.where(self.shapes.splits_k_in_cluster, self.shapes.cluster_k * LEAST_K_TILES, 0)

    @cached_property
    def _most_k_tiles(self) -> Column:
        """Return, for each plan, the largest number of k-tiles for which it is a candidate without split-K.

        Only plans with deep k-tiles (more than 128 bytes along K) have a limit, which is used for a D of more than
        `FEW_ROWS` rows and columns; it is infinity for others.
        """
        shapes = self.shapes
        deep = self._needs_one & shapes.is_deep & ~shapes.is_large_cluster
        return np.where(deep, MOST_DEEP_K_TILES, np.inf)

    @cached_property
    def _may_split(self) -> Column:
        """Return an array of flags, one per plan: is split-K tried with it?

        It is not tried with large tiles, with a single consumer warpgroup, or with cluster split-K, which splits K
        already. In clusters of one or two CTAs, plans that are meant for few columns or for one tile per CTA are left
        out too.
        """
        shapes = self.shapes
        is_usual = self._is_small & ~shapes.single & ~shapes.splits_k_in_cluster
        return is_usual & (shapes.is_large_cluster | ~(shapes.is_for_few | shapes.has_other_form))

    @cached_property
    def _may_fix_up(self) -> Column:
        """Return an array of flags, one per plan: is stream-K fixup tried for it?

        With fixup, CTAs that the last wave leaves idle take k-tiles of its tiles. Plans with few stages are left out,
        because three stages run empty when a CTA goes on to the k-tiles of another tile: 5000 x 5000 x 5000 (tn) takes
        414 us in 256 x 192 with fixup, 381 us in 128 x 256 (H200, 2026-11-26).
        """
        shapes = self.shapes
        is_usual = ~(shapes.is_large_cluster | shapes.alone | shapes.is_deep | shapes.single)
        is_usual &= shapes.stages >= _FIXUP_STAGES
        return is_usual & ~(shapes.splits_k_in_cluster | shapes.is_joint)


def most_waves(ctas: Column, elements: Column) -> Column:
    """Return the largest number of waves for which a plan that is meant for one tile per CTA is a candidate.

    A wave is one tile of D per multiprocessor. The result is 1, or more for large tiles in large clusters.

    ctas       CTAs of a cluster, one entry per plan
    elements   elements of a tile of D, one entry per plan

    >>> most_waves(np.array([2, 8, 8]), np.array([128 * 224, 128 * 192, 128 * 224])).tolist()
    [1, 1, 4]
    """
    return np.where((ctas > PAIR) & (elements >= SEVERAL_WAVES), FEW_WAVES, 1)


def family(request: Request, k: int) -> Sm90Family:
    """Return the Hopper plans that can implement the operands of a request, with the repack passes that they need.

    The request says whether plans for D, for D^T (swap A/B) or for both are returned.

    request   operands, architecture and other conditions of the choice
    k         extent along K. If it is a single k-tile, accumulators are not promoted, since there is no total to add
              them to (except with block scales, which multiply the accumulators)
    raises    PlanError if `request.accumulate` is unknown

    >>> from cutegemm.choice.candidate import ranked
    >>> plans = family(Request(Operands.of("bf16", layout="nt")), 4096)
    >>> [next(ranked(plans, Problem(*mnk))).recipe.tile for mnk in ((16, 4096, 4096), (4096, 4096, 4096))]
    [(64, 16), (128, 256)]
    """
    if request.accumulate not in ACCUMULATIONS:
        rule = f"accumulate = {request.accumulate!r}; {' or '.join(ACCUMULATIONS)} is expected."
        raise PlanError("choose", [rule])
    kind = request.operands.a.dtype
    is_fp8 = kind.is_float and kind.bits == _BYTE_BITS
    promotes = is_fp8 and request.accumulate == "promoted" and k * kind.bits > K_TILE_BYTES * 8
    promotes |= has_scales(request.operands)
    return _family(request.operands, request.variants, promotes, request.with_c, request.device)


@lru_cache(maxsize=256)
def _family(operands: Operands, variants: tuple[bool, ...], promotes: bool, with_c: bool, device: Device) -> Sm90Family:
    """Return the Hopper plans that store D in pieces large enough to be fast, with their time model. Cached.

    operands   types, majorness and alignment of A to D
    variants   values of `swap_ab` to include: False for plans that compute D, True for plans that compute D^T
    promotes   whether accumulators of fp8 are added to a total in f32 after each k-tile, as they are with block scales
    with_c     whether the epilogue reads a C
    device     device whose rates the time model uses
    """
    repacked = repacked_for_wgmma(operands)
    loaded = _as_loaded(operands, repacked)
    recipes: list[Sm90Recipe] = []
    shapes: list[Shapes] = []
    named = SM90_PROMOTED if promotes else SM90_CHOSEN
    if has_scales(operands):
        named = SM90_SCALED
    for swap_ab in variants:
        if not _can_store(operands, swap_ab):
            continue
        reads = can_read(operands.transposed if swap_ab else operands)
        # If threads can read A into registers, the plans of SM90_READING need no repack pass for it
        suited = [one for one in named if not (reads and repacked == "ab" and one.may_read)]
        for some, reads_a in ((suited, False), (SM90_READING, True))[: 1 + reads]:
            copied = repacked.replace(read_by(swap_ab), "") if reads_a else repacked
            recipes += [replace(one, is_repacked=bool(copied), swap_ab=swap_ab) for one in some]
            shapes.append(Shapes.of([one.shape for one in some], loaded, swap_ab, with_c, reads_a))
    joined = Shapes.joined(shapes or [Shapes.of((), loaded)])
    stores_well = _stores_well(joined, operands.d)
    if not may_share(operands):
        stores_well = stores_well & ~joined.has_other_form
    kept = np.flatnonzero(stores_well)
    serving = tuple([recipes[i] for i in kept])
    return Sm90Family(joined.take(kept), loaded, device, repacked, with_c, recipes=serving)


def _can_store(operands: Operands, swap_ab: bool) -> bool:
    """Return whether a Hopper kernel can store D from its accumulator fragments.

    Fragments hold pairs along N, so an 8-bit D must be N-major as the kernel sees it.

    swap_ab   whether the kernel computes D^T = B^T A^T
    """
    return operands.d.dtype.bits > _BYTE_BITS or (operands.d.major == "m") == swap_ab


def _stores_well(shapes: Shapes, d: Operand) -> Column:
    """Return an array of flags, one per plan of `shapes`: does it store D in pieces large enough to be fast?

    Plans with epilogue tiles of eight columns store only 16 or 32 bytes of each row of D. They are left out, except for
    D^T, where they store whole lines: bf16 5000 x 5000 x 5000 with 256 x 152 tiles takes 453 us for D and 430 us for
    D^T (H200, 2026-11-26).

    shapes   properties of the plans
    d        the problem's D: its type and majorness
    """
    own = shapes.bn // shapes.cluster_k
    has_lines = ~shapes.by_eight | (shapes.swap_ab != (d.major == "m"))
    stores_well = (own % WHOLE_COLUMNS == 0) | ((d.dtype.bits == 16) & has_lines)
    if d.dtype.bits == _BYTE_BITS:  # the smallest row of a box has 32 elements of 8 bits
        stores_well = stores_well & ((shapes.cluster_k == 1) | (own % _BYTE_COLUMNS == 0))
    return stores_well


def _as_loaded(operands: Operands, repacked: str) -> Operands:
    """Return the operands as the GEMM loads them after repack passes: a repacked operand is K-major and aligned.

    repacked   names of the operands that a repack pass (a copy kernel) copies first: "", "a", "b" or "ab"
    """
    made = {name: replace(getattr(operands, name), major="k", align_bytes=ALIGN_BYTES) for name in repacked}
    return replace(operands, **made) if made else operands
