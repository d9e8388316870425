"""The tile scheduler: the work tiles of a problem, the cluster that takes each, and the tile of D of each CTA.

A *work tile* is a tile of D of a whole cluster, with all its k-tiles or, if K is split, some of them. Work tiles are
numbered; tiles are numbered in the order of the raster.

    TileScheduler   what a plan knows before it has a problem
    TileGrid        for M, N and L: the tiles of D, their order, and the tile of each CTA of a cluster
    WorkGrid        for K as well: the work tiles, and the clusters that take them

Kernels trace these classes; the simulator, the analysis and the drawings enumerate them. No other code maps a number to
a tile of D, a rank to a tile, or a K split to a workspace slot. All functions compute without branches on their values,
for integers, numpy arrays and traced values.

The split of K decides what the number of a work tile means:

| split                  | work tile `number`                                          | grid                        |
|------------------------|-------------------------------------------------------------|-----------------------------|
| none                   | tile `number`, all its k-tiles                              | a cluster for each work     |
|                        |                                                             | tile, or persistent         |
| split-K                | tile `number // splits`, K split `number % splits`. K       | the same                    |
|                        | splits of a tile are neighbours, and none is empty          |                             |
| split-K, `idle_ctas`   | tile `number % tiles`, K split `number // tiles`            | (tiles, K splits)           |
| stream-K               | K splits first, then tiles that are not split: see          | persistent                  |
|                        | `division`                                                  |                             |

Extensions. In a single GEMM, or a batch of one size, every work tile has group 0. A grouped GEMM (mixture of experts)
keeps the first number of each group in device memory: `WorkGrid.work_tile` is the place to look up the group of a
number, subtract the group's first number, and continue with the group's tiles and k-tiles. If several GPUs share a
GEMM, a GPU's rank enters in the first number of a cluster and in `WorkGrid.following`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from cutegemm.plan.work.arithmetic import ARRAYS, INTEGERS, Arithmetic
from cutegemm.plan.work.division import KDivision, WorkTile, k_division_of
from cutegemm.plan.work.gpcs import GpcRaster
from cutegemm.plan.work.split import KSplit
from cutegemm.tile.raster import Raster

if TYPE_CHECKING:
    from cutegemm.plan.problem import Problem

# Fields of `KDivision` that the host computes and passes to a kernel.
_HOST_VALUES = ("shared", "span", "workers", "run", "longer")
_FIXUP_HOST_VALUES = (*_HOST_VALUES, "fixup", "pieces")


@dataclass(frozen=True)
class TileScheduler:
    """The numbering of work tiles and their assignment to clusters, as a plan knows them before it has a problem.

    raster       the order of the tiles. A tile is that of a whole cluster
    split        the split of K: none, split-K or stream-K
    cta_tile     (bM, bN, bK)
    cluster_mn   CTAs of a cluster along M and N
    persistent   number of CTAs of a persistent grid; None: the grid has a cluster for each work tile
    batched      whether L may be greater than 1. The raster then divides by the number of tiles of a batch
    gpc_raster   GPC-aware rasterization: the order in which clusters of a persistent grid take their first work tiles;
                 None: launch order
    idle_ctas    whether CTAs may be launched that have nothing to do. The grid is then (tiles, K splits) with split-K,
                 or all persistent CTAs. False: at most as many clusters as work tiles are launched
    cluster_k    number of CTAs of a cluster along N that split K: each loads the columns of B of all of them, for its
                 own k-tiles. 1: no cluster split-K
    """

    raster: Raster
    split: KSplit
    cta_tile: tuple[int, int, int]
    cluster_mn: tuple[int, int] = (1, 1)
    persistent: int | None = None
    batched: bool = True
    idle_ctas: bool = False
    gpc_raster: GpcRaster | None = None
    cluster_k: int = 1

    @property
    def cluster_size(self) -> int:
        """Return the number of CTAs of a cluster."""
        return self.cluster_mn[0] * self.cluster_mn[1]

    def rank_mn(self, rank: Any) -> tuple[Any, Any]:
        """Return the place (m, n) of a CTA in its cluster, from its rank. Ranks are numbered along M first.

        >>> [TileScheduler(Raster(), KSplit(), (64, 64, 64), (2, 2)).rank_mn(rank) for rank in range(4)]
        [(0, 0), (1, 0), (0, 1), (1, 1)]
        """
        return rank % self.cluster_mn[0], rank // self.cluster_mn[0]

    def cluster_k_range(self, rank: Any, k_tiles: Any, minimum: Any = min) -> tuple[Any, Any]:
        """Return (first k-tile, number of k-tiles) of the CTA of a rank in a cluster that splits K.

        rank      rank of the CTA in its cluster
        k_tiles   number of k-tiles of the tile
        minimum   see `KSplit.k_range`

        >>> scheduler = TileScheduler(Raster(), KSplit(), (64, 16, 64), (2, 2), cluster_k=2)
        >>> [scheduler.cluster_k_range(rank, 7) for rank in range(4)]
        [(0, 4), (0, 4), (4, 3), (4, 3)]
        """
        if self.cluster_k == 1:
            return 0, k_tiles
        return KSplit(self.cluster_k).k_range(self.rank_mn(rank)[1], k_tiles, minimum)

    def share_of(self, work_tile: WorkTile, rank: Any) -> WorkTile:
        """Return a work tile with only the k-tiles that one CTA of the cluster takes.

        Unless the cluster splits K, these are all k-tiles of the work tile.

        rank   rank of the CTA in its cluster
        """
        if self.cluster_k == 1:
            return work_tile
        k_first, k_count = self.cluster_k_range(rank, work_tile.k_count)
        return replace(work_tile, k_first=work_tile.k_first + k_first, k_count=k_count)

    @property
    def persistent_clusters(self) -> int | None:
        """Return the number of clusters of a persistent grid, or None if the grid is not persistent."""
        return None if self.persistent is None else self.persistent // self.cluster_size

    @property
    def splits_are_rows(self) -> bool:
        """Return whether each K split is a row of the launched grid: blockIdx.y is the K split.

        The grid then has all rows, even if K has fewer k-tiles than K splits.
        """
        return self.idle_ctas and self.split.splits > 1

    def of(self, problem: Problem) -> WorkGrid:
        """Return the work tiles of a problem.

        >>> from cutegemm.build import sm90_plan
        >>> from cutegemm.plan import Problem
        >>> sm90_plan(split_k=4).scheduler.of(Problem(128, 1024, 4096)).count
        32
        """
        return self.tiles(problem.m, problem.n, problem.l).along(problem.k)

    def tiles(
        self,
        m: Any,
        n: Any,
        l: Any = 1,  # noqa: E741
        arithmetic: Arithmetic = INTEGERS,
    ) -> TileGrid:
        """Return the tiles of a D of M x N x L elements.

        arithmetic   functions for the type of these values
        """
        (bm, bn, _), (cm, cn), ceil_div = self.cta_tile, self.cluster_mn, arithmetic.ceil_div
        m_tiles, n_tiles = ceil_div(m, bm * cm), ceil_div(n, bn * cn)
        return TileGrid(self, m_tiles, n_tiles, m_tiles * n_tiles * l, arithmetic)

    def from_values(self, values: tuple[Any, ...], arithmetic: Arithmetic) -> WorkGrid:
        """Return the work tiles in a kernel, from the values of `WorkGrid.host_values`.

        The numbers of tiles and of workspace slots are None, because only the host needs them.
        """
        k_tiles, m_tiles, n_tiles, divisors, count, clusters, host, ends = values
        division = None
        if self.split.is_split:
            names = (*_FIXUP_HOST_VALUES, "divisors") if self.split.fixup else _HOST_VALUES
            known = {"pieces": self.split.waves + 1, **dict(zip(names, host, strict=True))}
            columns = self.persistent_clusters if self.split.waves else count
            division = KDivision(
                k_tiles=k_tiles, columns=columns, count=count, slots=None, arithmetic=arithmetic, **known,
            )  # fmt: skip
        tiles = TileGrid(self, m_tiles, n_tiles, None, arithmetic, divisors)
        return WorkGrid(tiles, k_tiles, count, clusters, division, ends)


@dataclass(frozen=True)
class TileGrid:
    """The tiles of D in the order of the raster, numbered from 0 to `count` - 1. A tile is that of a whole cluster.

    m_tiles, n_tiles   number of tiles along M and along N
    count              number of tiles of all batches; None in a kernel, see `TileScheduler.from_values`
    arithmetic         functions for the type of these values
    divisors           the divisors of the raster in a form that is faster to divide by; None: the raster computes them

    >>> scheduler = TileScheduler(Raster("along_m"), KSplit(), (128, 128, 64), cluster_mn=(2, 1))
    >>> tiles = scheduler.tiles(600, 256)
    >>> tiles.count, [tiles.tile_mnl(4, rank) for rank in range(2)]
    (6, [(2, 1, 0), (3, 1, 0)])
    """

    scheduler: TileScheduler
    m_tiles: Any
    n_tiles: Any
    count: Any
    arithmetic: Arithmetic = INTEGERS
    divisors: tuple[Any, ...] | None = None

    def tile_mnl(self, tile: Any, rank: Any = 0) -> tuple[Any, Any, Any]:
        """Return the CTA tile (m_tile, n_tile, l) of D that one CTA of a cluster computes in a tile.

        It may lie past the edge of D.

        tile   number of the tile
        rank   rank of the CTA in its cluster; see `TileScheduler.rank_mn`
        """
        (cm, cn), raster = self.scheduler.cluster_mn, self.scheduler.raster
        m, n, batch = raster.tile(
            tile, self.m_tiles, self.n_tiles, self.arithmetic.minimum, self.scheduler.batched, self.divisors
        )
        if cm * cn == 1:
            return m, n, batch
        m_rank, n_rank = self.scheduler.rank_mn(rank)
        return m * cm + m_rank, n * cn + n_rank, batch

    def loaded_mnl(self, tile_mnl: tuple[Any, Any, Any], m_tiles: Any, n_tiles: Any) -> tuple[Any, Any, Any]:
        """Return (m_tile of A, n_tile of B, l) that a CTA loads for its tile of D.

        Past the edge of D these are the last m_tile and n_tile. The results are not used, but a TMA box outside of the
        matrix takes longer, and the whole cluster waits for it: e4m3, 813 x 2400 x 11168, tile 128 x 160, cluster
        1 x 2 takes 48.2 us, and 56.0 us with boxes past the edge (H100, 2026-11-22). With cluster split-K, the CTAs
        that split K load the same n_tile, which has the columns of all of them.

        tile_mnl           the CTA's tile of D; see `tile_mnl`
        m_tiles, n_tiles   number of tiles of A along M, and of B along N

        >>> tiles = TileScheduler(Raster("along_m"), KSplit(), (128, 128, 64), cluster_mn=(2, 1)).tiles(600, 256)
        >>> tiles.tile_mnl(2, rank=1), tiles.loaded_mnl(tiles.tile_mnl(2, rank=1), 5, 2)
        ((5, 0, 0), (4, 0, 0))
        """
        (m, n, batch), (cm, cn), least = tile_mnl, self.scheduler.cluster_mn, self.arithmetic.minimum
        cluster_k = self.scheduler.cluster_k
        if cluster_k > 1:
            n, cn = n // cluster_k, cn // cluster_k
        return m if cm == 1 else least(m, m_tiles - 1), n if cn == 1 else least(n, n_tiles - 1), batch

    def host_divisors(self, divisors: Callable[[tuple[Any, ...]], tuple[Any, ...]] = tuple) -> tuple[Any, ...]:
        """Return the divisors of the raster in the form in which the host passes them to a kernel.

        divisors   converts non-negative integers to a form that is faster to divide by
        """
        return divisors(self.scheduler.raster.divisors(self.m_tiles, self.n_tiles))

    def order(self) -> np.ndarray:
        """Return (m_tile, n_tile, l) of every CTA as int64 array (count, CTAs of a cluster, 3).

        The extents must be integers, not traced values.

        >>> scheduler = TileScheduler(Raster("along_n"), KSplit(), (128, 128, 64), cluster_mn=(2, 1))
        >>> scheduler.tiles(300, 256).order()[:, :, :2].tolist()
        [[[0, 0], [1, 0]], [[0, 1], [1, 1]], [[2, 0], [3, 0]], [[2, 1], [3, 1]]]
        """
        tile, rank = np.arange(self.count)[:, None], np.arange(self.scheduler.cluster_size)
        found = replace(self, arithmetic=ARRAYS).tile_mnl(tile, rank)
        return np.stack(np.broadcast_arrays(*found, rank + 0 * tile)[:3], axis=-1)

    def along(self, k: Any) -> WorkGrid:
        """Return the work tiles of a problem with these tiles of D and extent `k` of K, in elements."""
        return self.work(self.arithmetic.ceil_div(k, self.scheduler.cta_tile[2]))

    def work(self, k_tiles: Any) -> WorkGrid:
        """Return the work tiles of a problem with these tiles of D, each of which has `k_tiles` k-tiles."""
        scheduler, arithmetic = self.scheduler, self.arithmetic
        count, division = self.count, None
        if scheduler.splits_are_rows:
            count = self.count * scheduler.split.splits
        elif scheduler.split.is_split:
            grid = scheduler.persistent_clusters or 1
            division = k_division_of(scheduler.split, self.count, k_tiles, grid, arithmetic)
            count = division.count
        clusters = count
        if scheduler.persistent_clusters is not None:
            clusters = scheduler.persistent_clusters
            if not scheduler.idle_ctas:
                clusters = arithmetic.minimum(count, clusters)
        return WorkGrid(self, k_tiles, count, clusters, division)


@dataclass(frozen=True)
class WorkGrid:
    """The work tiles of a problem, 0 to `count` - 1, and the clusters that take them.

    tiles        the tiles of D
    k_tiles      number of k-tiles of each tile
    count        number of work tiles. With stream-K some are empty
    clusters     number of launched clusters. The cluster at place c takes work tile c first
    division     the division of K; None if K is not split, or if the K splits are rows of the launched grid
    known_ends   the value of `ends` if it is known already, as in a kernel; None: it is computed
    k_first      index of the first k-tile of each tile; not 0 only for CTAs of a cluster that splits K, see `of_rank`

    >>> scheduler = TileScheduler(Raster("along_m"), KSplit(), (128, 128, 64), cluster_mn=(2, 1), persistent=4)
    >>> work = scheduler.tiles(600, 256).along(512)
    >>> work.clusters, [[*work.numbers(cluster)] for cluster in range(2)]
    (2, [[0, 2, 4], [1, 3, 5]])
    >>> work.work_tile(4)
    WorkTile(tile=4, k_first=0, k_count=8, splits=1, k_split=0, slot=0, group=0)
    """

    tiles: TileGrid
    k_tiles: Any
    count: Any
    clusters: Any
    division: KDivision | None
    known_ends: tuple[Any, ...] | None = None
    k_first: Any = 0

    @property
    def scheduler(self) -> TileScheduler:
        """Return the tile scheduler of these work tiles."""
        return self.tiles.scheduler

    # --- the work tile of a number ------------------------------------------------------------------------------

    def work_tile(self, number: Any) -> WorkTile:
        """Return the work tile with a number: a tile of D, and the k-tiles of it that one cluster takes.

        number   in [0, `count`)
        returns  an empty work tile has `splits` = 0
        """
        if self.scheduler.splits_are_rows:
            return self.split_of(number % self.tiles.count, number // self.tiles.count)
        return self.whole(number) if self.division is None else self.division.work_tile(number)

    def whole(self, tile: Any) -> WorkTile:
        """Return the work tile that takes all k-tiles of a tile."""
        return WorkTile(tile, self.k_first, self.k_tiles, 1, 0, 0)

    def of_rank(self, rank: Any) -> WorkGrid:
        """Return the work tiles with only the k-tiles that one CTA of each cluster takes.

        Unless the cluster splits K, these are all k-tiles.

        rank   rank of the CTA in its cluster
        """
        if self.scheduler.cluster_k == 1:
            return self
        k_first, k_tiles = self.scheduler.cluster_k_range(rank, self.k_tiles, self.tiles.arithmetic.minimum)
        return replace(self, k_tiles=k_tiles, k_first=k_first)

    def split_of(self, tile: Any, k_split: Any) -> WorkTile:
        """Return the work tile of a K split, if K splits are rows of the launched grid.

        tile      blockIdx.x
        k_split   blockIdx.y
        """
        split = self.scheduler.split
        k_first, k_count = split.k_range(k_split, self.k_tiles, self.tiles.arithmetic.minimum)
        return WorkTile(tile, k_first, k_count, split.splits, k_split, tile)

    def tile_mnl(self, work_tile: WorkTile, rank: Any = 0) -> tuple[Any, Any, Any]:
        """Return (m_tile, n_tile, batch) of D that a CTA computes in a work tile; see `TileGrid.tile_mnl`.

        rank   rank of the CTA in its cluster
        """
        return self.tiles.tile_mnl(work_tile.tile, rank)

    # --- the work tiles of a cluster, in order -----------------------------------------------------------------

    def place(self, cluster: Any) -> Any:
        """Return the place of a cluster: the number of its first work tile.

        The other methods identify a cluster by its place.

        cluster   index of the cluster in launch order
        """
        gpc_raster = self.scheduler.gpc_raster
        return cluster if gpc_raster is None else gpc_raster.place(cluster, self.ends, self.tiles.arithmetic)

    @cached_property
    def ends(self) -> tuple[Any, ...]:
        """Return the values, computed by the host, that `place` needs; see `GpcRaster.ends`. () in launch order."""
        gpc_raster = self.scheduler.gpc_raster
        if self.known_ends is not None or gpc_raster is None:
            return self.known_ends or ()
        return gpc_raster.ends(self.clusters, self.tiles.arithmetic)

    def launched(self) -> np.ndarray:
        """Return an array whose entry p is the launch index of the cluster at place p; see `place`.

        The extents must be integers, not traced values.
        """
        return np.argsort(self.of_arrays().place(np.arange(self.clusters)), kind="stable")

    def following(self, number: Any, turns: int = 1) -> Any:
        """Return the number of the work tile that the same cluster takes `turns` work tiles after `number`."""
        if not self.scheduler.split.fixup:
            return number + self.clusters * turns
        assert self.division is not None
        for _ in range(turns):
            number = self.division.following(number, self.clusters)
        return number

    def numbers(self, cluster: int) -> Iterator[int]:
        """Yield the numbers of the work tiles that the cluster at a place takes, in order."""
        number = cluster
        while number < self.count:
            yield number
            number = self.following(number)

    # --- pingpong consumers, which alternate between the work tiles of a CTA ------------------------------------

    def first_of(self, cluster: Any, turn: Any, turns: int) -> Any:
        """Return the number of the first work tile that one of the pingpong consumers takes.

        cluster   place of the cluster
        turn      index of the consumer
        turns     number of consumers, which take the work tiles of the cluster in turn
        """
        if not self.scheduler.split.fixup:
            return cluster + turn * self.clusters
        number = cluster
        for before in range(turns - 1):
            number = number + self.tiles.arithmetic.is_below(before, turn) * (self.following(number) - number)
        return number

    def k_tiles_before(self, cluster: Any, turn: Any, turns: int) -> Any:
        """Return the number of k-tiles of the first work tiles of the pingpong consumers before one of them.

        They pass through the mainloop pipeline before its first k-tile.

        cluster   place of the cluster
        turn      index of the consumer
        turns     number of consumers, which take the work tiles of the cluster in turn
        """
        if not self.scheduler.split.is_split:
            return turn * self.k_tiles
        count = 0
        for before in range(turns - 1):
            theirs = self.work_tile(self.following(cluster, before))
            count = count + self.tiles.arithmetic.is_below(before, turn) * theirs.k_count
        return count

    def k_tiles_between(self, number: Any, turns: int) -> Any:
        """Return the k-tiles that other pingpong consumers take between a consumer's work tile and its next one.

        number   number of the work tile
        turns    number of consumers, which take the work tiles of the cluster in turn
        """
        if not self.scheduler.split.is_split:
            return (turns - 1) * self.k_tiles
        theirs = [self.work_tile(self.following(number, ahead)) for ahead in range(1, turns)]
        return sum([work_tile.k_count for work_tile in theirs], 0)

    # --- the K splits of a tile --------------------------------------------------------------------------------

    @property
    def shared(self) -> Any:
        """Return the number of tiles that may have several K splits. They come first."""
        if self.scheduler.splits_are_rows:
            return self.tiles.count
        return 0 if self.division is None else self.division.shared

    @property
    def slots(self) -> Any:
        """Return the number of workspace slots. Each holds the accumulators of one K split of a cluster's tile."""
        if self.scheduler.splits_are_rows:
            return self.count
        return 0 if self.division is None else self.division.slots

    def peers(self, tile: Any) -> WorkTile:
        """Return K split 0 of a tile whose K is split, with its `splits` and `slot`. Its k-tiles are not computed.

        tile   index of the tile, below `shared`
        """
        if self.division is None:
            return WorkTile(tile, 0, 0, self.scheduler.split.splits, 0, tile)
        splits, slot = self.division.sums_of(tile)
        return WorkTile(tile, 0, 0, splits, 0, slot)

    def slot_of(self, work_tile: WorkTile, k_split: Any) -> Any:
        """Return the workspace slot for the accumulators of K split `k_split` of a work tile's tile."""
        if self.scheduler.splits_are_rows:
            return k_split * self.tiles.count + work_tile.slot
        return work_tile.slot + k_split

    # --- values for a kernel, and the enumeration of all work tiles --------------------------------------------

    def host_values(
        self,
        integer: Callable[[Any], Any] = int,
        divisors: Callable[[tuple[Any, ...]], tuple[Any, ...]] = tuple,
    ) -> tuple[Any, ...]:
        """Return the values that the host passes to a kernel: numbers and tuples of numbers.

        The kernel calls `TileScheduler.from_values` with them.

        integer    converts a number to a kernel argument
        divisors   converts non-negative integers to a form that is faster to divide by
        """
        host: tuple[Any, ...] = ()
        if self.division is not None:
            fixup = self.scheduler.split.fixup
            host = tuple([integer(getattr(self.division, f)) for f in (_FIXUP_HOST_VALUES if fixup else _HOST_VALUES)])
            if fixup:
                host = (*host, divisors(self.division.divided_by))
        return (
            self.k_tiles,
            self.tiles.m_tiles,
            self.tiles.n_tiles,
            self.tiles.host_divisors(divisors),
            self.count,
            self.clusters,
            host,
            tuple([integer(end) for end in self.ends]),
        )

    def of_arrays(self) -> WorkGrid:
        """Return these work tiles for numpy arrays: methods then accept and return arrays of numbers."""
        tiles, division = replace(self.tiles, arithmetic=ARRAYS), self.division
        if division is not None:
            division = replace(division, arithmetic=ARRAYS)
        return replace(self, tiles=tiles, division=division, known_ends=self.ends)

    def assignment(self) -> Assignment:
        """Return all work tiles that are not empty, with the clusters that take them.

        The extents must be integers, not traced values.
        """
        work, number = self.of_arrays(), np.arange(self.count, dtype=np.int64)
        clusters = max(1, self.clusters)
        cluster, turn = number % clusters, number // clusters
        if self.scheduler.split.fixup:
            for first in range(min(clusters, self.count)):
                own = [*self.numbers(first)]
                turn[own] = np.arange(len(own))
        work_tiles = work.work_tile(number).map(lambda value: value + 0 * number)
        return Assignment(work.tiles, number, cluster, turn, work_tiles).where(work_tiles.splits > 0)


@dataclass(frozen=True)
class Assignment:
    """Work tiles in the order of their numbers, as arrays with one entry for each.

    tiles       the tiles of D; not an array
    number      number of the work tile
    cluster     place of the cluster that takes it
    turn        index of the work tile among those that its cluster takes, empty ones included
    work_tile   the work tile, whose fields are arrays
    """

    tiles: TileGrid
    number: np.ndarray
    cluster: np.ndarray
    turn: np.ndarray
    work_tile: WorkTile

    def __len__(self) -> int:
        """Return the number of work tiles."""
        return len(self.number)

    def where(self, which: Any) -> Assignment:
        """Return the selected work tiles, by a boolean mask or an array of indices."""
        work_tile = self.work_tile.map(lambda of: of[which])
        return Assignment(self.tiles, self.number[which], self.cluster[which], self.turn[which], work_tile)

    def tile_mnl(self, rank: int = 0) -> tuple[Any, Any, Any]:
        """Return arrays (m_tile, n_tile, l) of the CTA tiles of D that the CTAs of a rank compute.

        rank   rank of the CTA in its cluster
        """
        return self.tiles.tile_mnl(self.work_tile.tile, rank)
