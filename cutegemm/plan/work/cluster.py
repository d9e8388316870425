"""The tile of a cluster: what a tile scheduler needs to know about the plan."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from cutegemm.plan.work.division import WorkTile
from cutegemm.plan.work.split import KSplit


@dataclass(frozen=True)
class ClusterTile:
    """The tile of D that a cluster computes, and how it is divided among its CTAs.

    cta_tile     (bM, bN, bK)
    cluster_mn   CTAs of a cluster along M and N
    cluster_k    number of CTAs of a cluster along N that split K; 1: no cluster split-K. Each of these CTAs loads the
                 columns of B of all of them, for its own k-tiles
    batched      whether L may be greater than 1. The raster then divides by the number of tiles of a batch
    idle_ctas    True: CTAs without work may be launched. The grid is (tiles, K splits) with split-K, and all CTAs of a
                 persistent grid are launched. False: at most as many clusters as work tiles are launched
    """

    cta_tile: tuple[int, int, int]
    cluster_mn: tuple[int, int] = (1, 1)
    cluster_k: int = 1
    batched: bool = True
    idle_ctas: bool = False

    @property
    def size(self) -> int:
        """Return the number of CTAs of a cluster."""
        return self.cluster_mn[0] * self.cluster_mn[1]

    def rank_mn(self, rank: Any) -> tuple[Any, Any]:
        """Return the place (m, n) of a CTA in its cluster, from its rank. Ranks are numbered along M first.

        >>> [ClusterTile((64, 64, 64), (2, 2)).rank_mn(rank) for rank in range(4)]
        [(0, 0), (1, 0), (0, 1), (1, 1)]
        """
        return rank % self.cluster_mn[0], rank // self.cluster_mn[0]

    def k_range(self, rank: Any, k_tiles: Any, minimum: Any = min) -> tuple[Any, Any]:
        """Return (first k-tile, number of k-tiles) that one CTA takes in a cluster that splits K.

        rank      rank of the CTA in its cluster
        k_tiles   number of k-tiles of the tile
        minimum   function that returns the smaller of two values: `min` for integers, others for arrays and traced
                  values

        >>> cluster = ClusterTile((64, 16, 64), (2, 2), cluster_k=2)
        >>> [cluster.k_range(rank, 7) for rank in range(4)]
        [(0, 4), (0, 4), (4, 3), (4, 3)]
        """
        if self.cluster_k == 1:
            return 0, k_tiles
        return KSplit(self.cluster_k).k_range(self.rank_mn(rank)[1], k_tiles, minimum)

    def share_of(self, work_tile: WorkTile, rank: Any) -> WorkTile:
        """Return what one CTA of the cluster multiplies of a work tile, as a work tile with some of its k-tiles.

        Unless the cluster splits K, these are all k-tiles of the work tile.

        work_tile   a tile of D with all or some of its k-tiles
        rank        rank of the CTA in its cluster
        """
        if self.cluster_k == 1:
            return work_tile
        k_first, k_count = self.k_range(rank, work_tile.k_count)
        return replace(work_tile, k_first=work_tile.k_first + k_first, k_count=k_count)
