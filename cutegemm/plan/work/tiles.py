"""The tiles of D in the order of the raster, and the tile of each CTA of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from cutegemm.plan.work.arithmetic import ARRAYS, INTEGERS, Arithmetic
from cutegemm.plan.work.cluster import ClusterTile

if TYPE_CHECKING:
    from cutegemm.plan.work.scheduler import TileScheduler
    from cutegemm.plan.work.work import Work


@dataclass(frozen=True)
class TileGrid:
    """The tiles of D that clusters compute, numbered from 0 to `count` - 1 in the order of the raster.

    The raster maps a number to the coordinates of a tile. If a cluster has several CTAs, a tile here is the tile of the
    whole cluster, and each CTA computes a part of it.

    scheduler          tile scheduler of the plan, which has the raster
    cluster            size of a cluster's tile, and how its CTAs divide it
    m_tiles, n_tiles   number of tiles along M and along N
    count              number of tiles of all batches; None inside of a kernel, which does not need it
    arithmetic         minimum, maximum and division for these values: Python integers, numpy arrays, or values in a
                       kernel
    divisors           the numbers that the raster divides by, in a form that a kernel divides by faster; None: plain
                       numbers

    >>> from cutegemm.plan.work.scheduler import TileScheduler
    >>> from cutegemm.tile.raster import Raster
    >>> cluster = ClusterTile((128, 128, 64), cluster_mn=(2, 1))
    >>> tiles = TileScheduler(Raster("along_m")).tiles(cluster, 600, 256)
    >>> tiles.count, [tiles.tile_mnl(4, rank) for rank in range(2)]
    (6, [(2, 1, 0), (3, 1, 0)])
    """

    scheduler: TileScheduler
    cluster: ClusterTile
    m_tiles: Any
    n_tiles: Any
    count: Any
    arithmetic: Arithmetic = INTEGERS
    divisors: tuple[Any, ...] | None = None

    def tile_mnl(self, tile: Any, rank: Any = 0) -> tuple[Any, Any, Any]:
        """Return the CTA tile (m_tile, n_tile, l) of D that one CTA of a cluster computes, for a tile of the cluster.

        It may lie past the edge of D.

        tile   number of the cluster's tile in the order of the raster
        rank   rank of the CTA in its cluster, numbered along M first
        """
        (cm, cn), raster = self.cluster.cluster_mn, self.scheduler.raster
        m, n, batch = raster.tile(
            tile, self.m_tiles, self.n_tiles, self.arithmetic.minimum, self.cluster.batched, self.divisors
        )
        if cm * cn == 1:
            return m, n, batch
        m_rank, n_rank = self.cluster.rank_mn(rank)
        return m * cm + m_rank, n * cn + n_rank, batch

    def part(self, mode: int, along: Any) -> TileGrid:
        """Return the tiles of a single matrix that has another number of tiles along one mode, such as a group.

        mode    0 for M, 1 for N
        along   number of tiles along this mode
        """
        m_tiles, n_tiles = (along, self.n_tiles) if mode == 0 else (self.m_tiles, along)
        divisors = self.divisors
        if divisors is not None:
            fast = self.arithmetic.divisors
            divisors = self.scheduler.raster.divisors_of_part(divisors, m_tiles, n_tiles, mode, fast)
        cluster = replace(self.cluster, batched=False)
        return replace(self, cluster=cluster, m_tiles=m_tiles, n_tiles=n_tiles, divisors=divisors)

    def loaded_mnl(self, tile_mnl: tuple[Any, Any, Any], m_tiles: Any, n_tiles: Any) -> tuple[Any, Any, Any]:
        """Return (m_tile of A, n_tile of B, l) that a CTA loads for its tile of D.

        Inside of D they are the coordinates of the tile itself. A CTA past the edge of D loads the last m_tile and
        n_tile. Its results are not used, but a TMA box outside of the matrix takes longer, and the whole cluster waits
        for it (e4m3, 813 x 2400 x 11168, tile 128 x 160, cluster 1 x 2: 56.0 us, and 48.2 us without boxes past the
        edge; H100, 2026-11-22). CTAs of a cluster that splits K load the same n_tile, which has the columns of all of
        them.

        tile_mnl           the CTA's tile of D: (m_tile, n_tile, l)
        m_tiles, n_tiles   number of tiles of A along M, and of B along N

        >>> from cutegemm.plan.work.scheduler import TileScheduler
        >>> from cutegemm.tile.raster import Raster
        >>> cluster = ClusterTile((128, 128, 64), cluster_mn=(2, 1))
        >>> tiles = TileScheduler(Raster("along_m")).tiles(cluster, 600, 256)
        >>> tiles.tile_mnl(2, rank=1), tiles.loaded_mnl(tiles.tile_mnl(2, rank=1), 5, 2)
        ((5, 0, 0), (4, 0, 0))
        """
        (m, n, batch), (cm, cn), least = tile_mnl, self.cluster.cluster_mn, self.arithmetic.minimum
        cluster_k = self.cluster.cluster_k
        if cluster_k > 1:
            n, cn = n // cluster_k, cn // cluster_k
        return m if cm == 1 else least(m, m_tiles - 1), n if cn == 1 else least(n, n_tiles - 1), batch

    def host_divisors(self, divisors: Callable[[tuple[Any, ...]], tuple[Any, ...]] = tuple) -> tuple[Any, ...]:
        """Return the divisors that the raster needs to find a tile, in the form of kernel arguments.

        divisors   function that converts non-negative integers to a form that is faster to divide by
        """
        return divisors(self.scheduler.raster.divisors(self.m_tiles, self.n_tiles))

    def order(self) -> np.ndarray:
        """Return the CTA tiles of all clusters in the order of the raster: (m_tile, n_tile, l) of each CTA.

        It is an int64 array (count, CTAs of a cluster, 3). The extents must be integers, not traced values.

        >>> from cutegemm.plan.work.scheduler import TileScheduler
        >>> from cutegemm.tile.raster import Raster
        >>> cluster = ClusterTile((128, 128, 64), cluster_mn=(2, 1))
        >>> TileScheduler(Raster("along_n")).tiles(cluster, 300, 256).order()[:, :, :2].tolist()
        [[[0, 0], [1, 0]], [[0, 1], [1, 1]], [[2, 0], [3, 0]], [[2, 1], [3, 1]]]
        """
        tile, rank = np.arange(self.count)[:, None], np.arange(self.cluster.size)
        mnl = replace(self, arithmetic=ARRAYS).tile_mnl(tile, rank)
        return np.stack(np.broadcast_arrays(*mnl, rank + 0 * tile)[:3], axis=-1)

    def along(self, k: Any, tensors: Mapping[str, Any] | None = None) -> Work:
        """Return the work tiles of a problem with these tiles of D and extent `k` of K, in elements.

        A work tile is a tile of D with all or some of its k-tiles.

        tensors   operands that the scheduler reads, as arrays by name; None: none, or their contents are not known
        """
        return self.work(self.arithmetic.ceil_div(k, self.cluster.cta_tile[2]), tensors)

    def work(self, k_tiles: Any, tensors: Mapping[str, Any] | None = None) -> Work:
        """Return the work tiles of a problem with these tiles of D, each with `k_tiles` k-tiles.

        A work tile is a tile of D with all or some of its k-tiles.

        tensors   operands that the scheduler reads, as arrays by name; None: none, or their contents are not known
        """
        return self.scheduler.divide(self, k_tiles, tensors or {})
