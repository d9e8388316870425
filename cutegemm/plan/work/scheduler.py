"""The tile scheduler: which work tile a cluster takes, in which order, and which tile of D each of its CTAs has in it.

A *work tile* is a tile of D of a whole cluster, in the order of the raster, and of this tile all k-tiles or, where K is
split, some of them.

    TileScheduler   what a plan knows before it has a problem
    TileGrid        with M, N and L: the tiles of D, their order, and which of them a CTA of a cluster has
    WorkGrid        with K: the work tiles, and who takes which

Kernels trace these, the simulator, the analysis and the drawings enumerate them: nobody else turns a number into a tile
of D, a rank into a tile, or a part into a slot of the workspace.

All is arithmetic without a branch on its values, for integers, numpy arrays, and values that a kernel computes with.

How K is split decides what the number of a work tile means:

| split               | work tile `number`                                         | grid                 |
|---------------------|------------------------------------------------------------|----------------------|
| none                | tile `number`, all its k-tiles                             | a cluster for each,  |
|                     |                                                            | or persistent        |
| parts (split-K)     | tile `number // splits`, part `number % splits`: peers are   | the same             |
|                     | neighbours, and none is without k-tiles                    |                      |
| parts, `idle_ctas`  | tile `number % tiles`, part `number // tiles`              | (tiles, parts)       |
| waves (stream-K)    | runs of k-tiles first, then whole tiles: see `division`      | persistent           |

Groups and ranks. A single GEMM, or a batch of one size, is the group 0 of every work tile. A grouped GEMM (a mixture
of experts) has the first number of each group in device memory: `WorkGrid.work_tile` is the place that looks the group
of a number up there, subtracts its first number, and goes on with the tiles and k-tiles of that group. Several GPUs
that share a GEMM have numbers of one order: the first number of a cluster, and `WorkGrid.following`, are the places
where a GPU's rank enters.
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

# Of `KDivision`, what the host works out and a kernel is handed.
_HOST_VALUES = ("shared", "span", "workers", "run", "longer")
_FIXUP_HOST_VALUES = (*_HOST_VALUES, "fixup", "pieces")


@dataclass(frozen=True)
class TileScheduler:
    """How work tiles are numbered, and who takes which.

    raster       the order of the tiles of clusters
    split        how K is split
    cta_tile     (bM, bN, bK)
    cluster_mn   CTAs of a cluster along M and N
    persistent   CTAs of a persistent grid; None: a cluster for each work tile
    batched      whether there may be several batches: the raster divides by the tiles of one
    gpc_raster   the order of a persistent grid's clusters by which they take work tiles; None: that of their launch
    idle_ctas    whether the launched grid follows from the tiles alone, so that CTAs may have nothing to do: (tiles,
                 parts) of a split in parts, or all persistent CTAs. Else there are no more clusters than work tiles
    cluster_k    CTAs of a cluster along N that share K: each loads the B of all of them, and multiplies its part of the
                 k-tiles
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
        """Return the place (m, n) of a CTA in its cluster. Ranks are numbered along M first.

        >>> [TileScheduler(Raster(), KSplit(), (64, 64, 64), (2, 2)).rank_mn(rank) for rank in range(4)]
        [(0, 0), (1, 0), (0, 1), (1, 1)]
        """
        return rank % self.cluster_mn[0], rank // self.cluster_mn[0]

    def cluster_k_range(self, rank: Any, k_tiles: Any, minimum: Any = min) -> tuple[Any, Any]:
        """Return the first k-tile of a CTA of a cluster that splits K, and the number of its k-tiles; see
        `KSplit.k_range`.

        >>> scheduler = TileScheduler(Raster(), KSplit(), (64, 16, 64), (2, 2), cluster_k=2)
        >>> [scheduler.cluster_k_range(rank, 7) for rank in range(4)]
        [(0, 4), (0, 4), (4, 3), (4, 3)]
        """
        if self.cluster_k == 1:
            return 0, k_tiles
        return KSplit(self.cluster_k).k_range(self.rank_mn(rank)[1], k_tiles, minimum)

    def share_of(self, work_tile: WorkTile, rank: Any) -> WorkTile:
        """Return a work tile with the k-tiles that one CTA of the cluster takes: all of them unless the cluster
        splits K.
        """
        if self.cluster_k == 1:
            return work_tile
        k_first, k_count = self.cluster_k_range(rank, work_tile.k_count)
        return replace(work_tile, k_first=work_tile.k_first + k_first, k_count=k_count)

    @property
    def persistent_clusters(self) -> int | None:
        """Return the clusters of a persistent grid, or None if the grid is not persistent."""
        return None if self.persistent is None else self.persistent // self.cluster_size

    @property
    def splits_are_rows(self) -> bool:
        """Return whether the K splits of a tile are rows of the launched grid: one row for each, even if K has fewer
        k-tiles.
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
        """Return the tiles of M x N x L elements."""
        (bm, bn, _), (cm, cn), ceil_div = self.cta_tile, self.cluster_mn, arithmetic.ceil_div
        m_tiles, n_tiles = ceil_div(m, bm * cm), ceil_div(n, bn * cn)
        return TileGrid(self, m_tiles, n_tiles, m_tiles * n_tiles * l, arithmetic)

    def from_values(self, values: tuple[Any, ...], arithmetic: Arithmetic) -> WorkGrid:
        """The work tiles as a kernel has them, from what `WorkGrid.host_values` handed it.

        How many tiles and slots there are in all is known to the host alone.
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
    """The tiles of D, in clusters: 0 to `count` - 1 in the order of the raster.

    m_tiles, n_tiles   along M and N
    count              of all batches; None in a kernel that is handed its work: see `from_values`
    arithmetic         functions of these values
    divisors           those of the raster, in a form that is faster to divide by; None where the raster is to find them

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
        """(m_tile, n_tile, l) of D that a CTA of a cluster has in a tile; past the edge of D for some ranks.

        rank   of the CTA in its cluster: see `TileScheduler.rank_mn`
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
        """(m_tile of A, n_tile of B, l) that a CTA loads for a tile of D: past the edge of D, those of the last tile.
        The CTAs that share K load the same n_tile, of the columns of all of them.

        Nobody needs these products. But the CTAs of a cluster go on together, and a box of rows that are not there was
        seen to take longer than one of rows that are: 813 x 2400 x 11168 of e4m3 by 128 x 160 in clusters of 1 x 2, of
        which the last has half of its columns past the edge, took 56.0 us, and takes 48.2 so (one H100, 2026-11-22).

        m_tiles, n_tiles   of A and of B, that there are

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
        """Those of the raster, as the host hands them to a kernel.

        divisors   makes numbers that are faster to divide by of some that are not negative
        """
        return divisors(self.scheduler.raster.divisors(self.m_tiles, self.n_tiles))

    def order(self) -> np.ndarray:
        """Return (m_tile, n_tile, l) of every CTA as int64 (count, CTAs of a cluster, 3). Extents must be known
        integers.

        >>> scheduler = TileScheduler(Raster("along_n"), KSplit(), (128, 128, 64), cluster_mn=(2, 1))
        >>> scheduler.tiles(300, 256).order()[:, :, :2].tolist()
        [[[0, 0], [1, 0]], [[0, 1], [1, 1]], [[2, 0], [3, 0]], [[2, 1], [3, 1]]]
        """
        tile, rank = np.arange(self.count)[:, None], np.arange(self.scheduler.cluster_size)
        found = replace(self, arithmetic=ARRAYS).tile_mnl(tile, rank)
        return np.stack(np.broadcast_arrays(*found, rank + 0 * tile)[:3], axis=-1)

    def along(self, k: Any) -> WorkGrid:
        """Return the work tiles for an extent of K, in elements."""
        return self.work(self.arithmetic.ceil_div(k, self.scheduler.cta_tile[2]))

    def work(self, k_tiles: Any) -> WorkGrid:
        """Return the work tiles for a number of k-tiles of each tile."""
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

    tiles        of D
    k_tiles      of each tile
    count        numbers of work tiles; of some of stream-K nobody has anything to do
    clusters     that are launched; the one at place c begins with the work tile c
    division     how K is divided, where the parts of a tile are neither all of it nor rows of the grid
    known_ends   the `ends`, where they were worked out before: a kernel is handed them
    k_first      the first k-tile of each tile: see `of_rank`

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

    # --- what a number is --------------------------------------------------------------------------------------

    def work_tile(self, number: Any) -> WorkTile:
        """The work tile of a number below `count`; one that nobody has anything to do for has 0 parts."""
        if self.scheduler.splits_are_rows:
            return self.split_of(number % self.tiles.count, number // self.tiles.count)
        return self.whole(number) if self.division is None else self.division.work_tile(number)

    def whole(self, tile: Any) -> WorkTile:
        """Return the work tile that takes all k-tiles of a tile."""
        return WorkTile(tile, self.k_first, self.k_tiles, 1, 0, 0)

    def of_rank(self, rank: Any) -> WorkGrid:
        """Return the work tiles with the k-tiles that one CTA of a cluster takes: all of them unless the cluster
        splits K.
        """
        if self.scheduler.cluster_k == 1:
            return self
        k_first, k_tiles = self.scheduler.cluster_k_range(rank, self.k_tiles, self.tiles.arithmetic.minimum)
        return replace(self, k_tiles=k_tiles, k_first=k_first)

    def split_of(self, tile: Any, k_split: Any) -> WorkTile:
        """Return the work tile of a K split, if K splits are rows of the launched grid: blockIdx.x is the tile,
        blockIdx.y the split.
        """
        split = self.scheduler.split
        k_first, k_count = split.k_range(k_split, self.k_tiles, self.tiles.arithmetic.minimum)
        return WorkTile(tile, k_first, k_count, split.splits, k_split, tile)

    def tile_mnl(self, work_tile: WorkTile, rank: Any = 0) -> tuple[Any, Any, Any]:
        """(m_tile, n_tile, l) of D that a CTA of a cluster has in a work tile: see `TileGrid.tile_mnl`."""
        return self.tiles.tile_mnl(work_tile.tile, rank)

    # --- the order in which a cluster takes them ---------------------------------------------------------------

    def place(self, cluster: Any) -> Any:
        """Return the number of the first work tile of a cluster, from the order in which clusters are launched.

        Everything that follows identifies a cluster by this place.
        """
        gpc_raster = self.scheduler.gpc_raster
        return cluster if gpc_raster is None else gpc_raster.place(cluster, self.ends, self.tiles.arithmetic)

    @cached_property
    def ends(self) -> tuple[Any, ...]:
        """Return what the host computes for `place`; see `GpcRaster.ends`."""
        gpc_raster = self.scheduler.gpc_raster
        if self.known_ends is not None or gpc_raster is None:
            return self.known_ends or ()
        return gpc_raster.ends(self.clusters, self.tiles.arithmetic)

    def launched(self) -> np.ndarray:
        """Return the launch order of the cluster at each place. Extents must be known integers."""
        return np.argsort(self.of_arrays().place(np.arange(self.clusters)), kind="stable")

    def following(self, number: Any, turns: int = 1) -> Any:
        """Return the number of the work tile that the same cluster takes `turns` work tiles later."""
        if not self.scheduler.split.fixup:
            return number + self.clusters * turns
        assert self.division is not None
        for _ in range(turns):
            number = self.division.following(number, self.clusters)
        return number

    def numbers(self, cluster: int) -> Iterator[int]:
        """Yield the numbers of the work tiles that a cluster takes, in order."""
        number = cluster
        while number < self.count:
            yield number
            number = self.following(number)

    # --- consumers that take the work tiles of a CTA in turn (pingpong) -----------------------------------------

    def first_of(self, cluster: Any, turn: Any, turns: int) -> Any:
        """Return the number of the first work tile of consumer `turn` of `turns` consumers that alternate."""
        if not self.scheduler.split.fixup:
            return cluster + turn * self.clusters
        number = cluster
        for before in range(turns - 1):
            number = number + self.tiles.arithmetic.is_below(before, turn) * (self.following(number) - number)
        return number

    def k_tiles_before(self, cluster: Any, turn: Any, turns: int) -> Any:
        """Return the k-tiles that pass through the stages for earlier consumers before the first k-tile of this one."""
        if not self.scheduler.split.is_split:
            return turn * self.k_tiles
        count = 0
        for before in range(turns - 1):
            theirs = self.work_tile(self.following(cluster, before))
            count = count + self.tiles.arithmetic.is_below(before, turn) * theirs.k_count
        return count

    def k_tiles_between(self, number: Any, turns: int) -> Any:
        """Return the k-tiles that other consumers take between a consumer's work tile and its next."""
        if not self.scheduler.split.is_split:
            return (turns - 1) * self.k_tiles
        theirs = [self.work_tile(self.following(number, ahead)) for ahead in range(1, turns)]
        return sum([work_tile.k_count for work_tile in theirs], 0)

    # --- the parts of a tile -----------------------------------------------------------------------------------

    @property
    def shared(self) -> Any:
        """Return the number of tiles that may have several K splits. They come first."""
        if self.scheduler.splits_are_rows:
            return self.tiles.count
        return 0 if self.division is None else self.division.shared

    @property
    def slots(self) -> Any:
        """Return the slots of the workspace. Each holds the accumulators of one K split of a cluster's tile."""
        if self.scheduler.splits_are_rows:
            return self.count
        return 0 if self.division is None else self.division.slots

    def peers(self, tile: Any) -> WorkTile:
        """Part 0 of a tile below `shared`: in how many parts it is, and where their slots are; not which k-tiles."""
        if self.division is None:
            return WorkTile(tile, 0, 0, self.scheduler.split.splits, 0, tile)
        splits, slot = self.division.sums_of(tile)
        return WorkTile(tile, 0, 0, splits, 0, slot)

    def slot_of(self, work_tile: WorkTile, k_split: Any) -> Any:
        """Return the slot of a K split of the tile that a work tile belongs to."""
        if self.scheduler.splits_are_rows:
            return k_split * self.tiles.count + work_tile.slot
        return work_tile.slot + k_split

    # --- from the host to the kernel, and all of it ------------------------------------------------------------

    def host_values(
        self,
        integer: Callable[[Any], Any] = int,
        divisors: Callable[[tuple[Any, ...]], tuple[Any, ...]] = tuple,
    ) -> tuple[Any, ...]:
        """The values that the host hands to a kernel for `TileScheduler.from_values`: numbers, and tuples of them.

        integer    makes an argument of a number
        divisors   makes numbers that are faster to divide by of some that are not negative
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
        """Return the same work tiles for arrays of numbers."""
        tiles, division = replace(self.tiles, arithmetic=ARRAYS), self.division
        if division is not None:
            division = replace(division, arithmetic=ARRAYS)
        return replace(self, tiles=tiles, division=division, known_ends=self.ends)

    def assignment(self) -> Assignment:
        """Return every work tile that has k-tiles, with the cluster that takes it. Extents must be known integers."""
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
    """Work tiles in the order of their numbers; each field but the first an array.

    tiles       of D
    number      of the work tile
    cluster     that takes it
    turn        which it is of those that its cluster takes, those counted in which there is nothing to do
    work_tile   the work tile
    """

    tiles: TileGrid
    number: np.ndarray
    cluster: np.ndarray
    turn: np.ndarray
    work_tile: WorkTile

    def __len__(self) -> int:
        return len(self.number)

    def where(self, which: Any) -> Assignment:
        """Return the work tiles that a mask or an index selects."""
        work_tile = self.work_tile.map(lambda of: of[which])
        return Assignment(self.tiles, self.number[which], self.cluster[which], self.turn[which], work_tile)

    def tile_mnl(self, rank: int = 0) -> tuple[Any, Any, Any]:
        """(m_tile, n_tile, l) of D that a CTA of each cluster has: see `TileGrid.tile_mnl`."""
        return self.tiles.tile_mnl(self.work_tile.tile, rank)
