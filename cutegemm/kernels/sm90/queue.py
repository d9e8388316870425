"""The queue of k-tiles of a Hopper kernel, and which tiles of D a CTA takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from cutegemm.kernels import lower
from cutegemm.layout.inttuple import product
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.work.shares import Shares, Unit

# What the host works out of the division of the units, besides their number; see `Shares`.
DIVIDED = ("shared", "span", "workers", "run", "longer")
DIVIDED_OWNED = (*DIVIDED, "owned", "pieces", "divisors")


def divided_of(plan: GemmPlan, shares: Shares) -> tuple[Any, ...]:
    """What a plan's kernel is given of the division; on the host."""
    numbers = tuple([Int32(getattr(shares, name)) for name in DIVIDED])
    if not plan.split.owned:
        return numbers
    return (*numbers, Int32(shares.owned), Int32(shares.pieces), lower.divisors(shares.divided_by))


@dataclass
class Work:
    """The units of a CTA: those of its cluster are `first`, `first` + `clusters`, ... of all.

    A unit is a tile of D, in the raster's order, or where K is split some k-tiles of it.

    units            of all clusters
    grid_m, grid_n   tiles of D, in clusters
    divisors         of the raster
    k_tiles          of a tile
    rank             of the CTA in its cluster, counted along M first
    divided          what `QueueOfTiles.unit` needs besides where K is split: see `divided_of`
    parts            where the sums of a tile's parts meet then
    """

    first: Any
    clusters: Any
    units: Any
    grid_m: Any
    grid_n: Any
    divisors: tuple[Any, ...]
    k_tiles: Any
    rank: Any
    divided: tuple[Any, ...] = ()
    parts: Any = None


@dataclass
class Queue:
    """The stages in shared memory, and their barriers."""

    sA: cute.Tensor  # (bM, bK, stages)
    sB: cute.Tensor  # (bN, bK, stages)
    full: cute.Pointer
    empty: cute.Pointer


class QueueOfTiles:
    """What producer and consumers have in common: both go through the same units, and the same stages."""

    def __init__(self, plan: GemmPlan) -> None:
        assert plan.pipeline is not None
        self.plan, self.pipeline = plan, plan.pipeline

    def unit(self, work: Work, number) -> Unit:
        """The unit of that number: a tile, or where K is split some k-tiles of one."""
        if not self.plan.split.is_split:
            return Unit(number, 0, work.k_tiles, 1, 0, 0)
        return self.shares(work).unit(number)

    def following(self, work: Work, number, turns: int = 1):
        """The number of the CTA's unit that is so many behind that one."""
        if not self.plan.split.owned:
            return number + work.clusters * turns
        for _ in range(turns):
            number = self.shares(work).following(number, work.clusters)
        return number

    def shares(self, work: Work) -> Shares:
        """The division of K."""
        split = self.plan.split
        columns = self.pipeline.ctas // product(self.plan.cluster_mn) if split.waves else work.units
        names = DIVIDED_OWNED if split.owned else DIVIDED
        known = dict(zip(names, work.divided, strict=True))
        return Shares(
            k_tiles=work.k_tiles, columns=columns, units=work.units, slots=0, minimum=cutlass.min,
            maximum=cutlass.max, **{"pieces": split.waves + 1, **known},
        )  # fmt: skip

    def tile_of(self, work: Work, tile) -> tuple[Any, Any, Any]:
        """(m_tile, n_tile, batch) of this CTA in the `tile`-th tile of clusters."""
        cm, cn = self.plan.cluster_mn
        m, n, batch = self.plan.raster.tile(
            tile,
            work.grid_m,
            work.grid_n,
            minimum=cutlass.min,
            batched=self.plan.operands.batched,
            divisors=work.divisors,
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

    @cute.jit
    def peer_of(self, lane: Int32, rank: Int32):
        """The CTA that this lane tells of a free stage: one of those that load to this CTA."""
        cm, cn = self.plan.cluster_mn
        peer = lane  # along one mode: everyone in the cluster
        if cutlass.const_expr(cm > 1 and cn > 1):
            m, n = rank % cm, rank // cm
            peer = lane + n * cm  # lanes 0 .. cm - 1: along M
            if lane >= cm:  # then along N, without itself
                other = lane - cm
                if other >= n:
                    other += 1
                peer = m + other * cm
        return peer

    @cute.jit
    def release(self, queue: cutlass.Constexpr, stage: Int32, lane: Int32, peer: Int32):
        """A warp has read the stage, and says so to all CTAs that load to it."""
        cm, cn = self.plan.cluster_mn
        if lane < cm + cn - 1:
            if cutlass.const_expr(cm * cn > 1):
                cute.arch.mbarrier_arrive(queue.empty + stage, peer)
            else:
                cute.arch.mbarrier_arrive(queue.empty + stage)
