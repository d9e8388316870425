"""The queue of k-tiles of a Hopper kernel, and which tiles of D a CTA takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from cutegemm.plan.plan import GemmPlan


@dataclass
class Work:
    """The tiles of a CTA: those of its cluster are `first`, `first` + `clusters`, ... of the raster's order.

    rank             of the CTA in its cluster, counted along M first
    grid_m, grid_n   tiles of D, in clusters
    """

    first: Any
    clusters: Any
    tiles: Any
    grid_m: Any
    grid_n: Any
    k_tiles: Any
    rank: Any


@dataclass
class Queue:
    """The stages in shared memory, and their barriers."""

    sA: cute.Tensor  # (bM, bK, stages)
    sB: cute.Tensor  # (bN, bK, stages)
    full: cute.Pointer
    empty: cute.Pointer


class QueueOfTiles:
    """What producer and consumers have in common: both go through the same tiles, and the same stages."""

    def __init__(self, plan: GemmPlan) -> None:
        assert plan.pipeline is not None
        self.plan, self.pipeline = plan, plan.pipeline

    def tile_of(self, work: Work, linear) -> tuple[Any, Any, Any]:
        """(m_tile, n_tile, batch) of this CTA among the `linear`-th tiles of clusters."""
        cm, cn = self.plan.cluster_mn
        m, n, batch = self.plan.raster.tile(
            linear, work.grid_m, work.grid_n, minimum=cutlass.min, batched=self.plan.operands.batched
        )
        return m * cm + work.rank % cm, n * cn + work.rank // cm, batch

    @cute.jit
    def next_stage(self, stage: Int32, phase: Int32):
        """The state one k-tile further in the queue."""
        stage = stage + 1
        if stage == self.plan.stages:
            stage = Int32(0)
            phase = phase ^ 1
        return stage, phase

    def skip(self, stage, phase, k_tiles):
        """The state `k_tiles` further: past what the other consumers take from the queue."""
        position = cute.arch.make_warp_uniform(stage + k_tiles)
        return position % self.plan.stages, phase ^ ((position // self.plan.stages) & 1)
