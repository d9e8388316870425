"""A Hopper consumer that stores a tile behind the products of its next one.

After its last product a consumer converts its sums, which takes half the registers that they do, and goes on. While
the products of a k-tile are under way it has nothing to do: behind each of the first k-tiles it stores a subtile of
the tile before. So the tensor cores wait for a conversion, and not for shared memory, barriers and TMA.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32
from cutlass.cute.nvgpu import warpgroup

from cutegemm.arch import WARP_THREADS, WARPGROUP_THREADS
from cutegemm.kernels import lower
from cutegemm.kernels.sm90_consumer import Consumer

_WARPS = WARPGROUP_THREADS // WARP_THREADS


class DeferredConsumer(Consumer):
    """Methods without a decorator are plain Python, run while tracing."""

    @cute.jit
    def consume(
        self,
        tma_a,
        mA,
        tma_b,
        mB,
        queue: cutlass.Constexpr,
        leaving: cutlass.Constexpr,
        work: cutlass.Constexpr,
        warp_idx: Int32,
    ):
        """A warpgroup: multiplies its rows of every unit, and then of none, while it stores the tile before."""
        consumer = warp_idx // _WARPS
        tid = cute.arch.thread_idx()[0] % WARPGROUP_THREADS
        lane = cute.arch.lane_idx()
        peer = self.peer_of(lane, work.rank)
        products = self.products(queue, consumer, tid)
        self.leave.set_up(leaving, consumer)
        sums = self.leave.by_subtiles(products.acc)
        held = cute.make_rmem_tensor(sums.shape, lower.dtype(self.plan.operands.d.dtype))
        subtiles, split = cute.size(held, mode=[1]), self.plan.split.is_split
        if cutlass.const_expr(self.pipeline.stagger_cycles):
            self.begin_later(queue, work, consumer)

        number = work.first
        stage, phase = Int32(0), Int32(0)
        left, own_m, own_n, batch = (
            Int32(0),
            Int32(0),
            Int32(0),
            Int32(0),
        )  # subtiles to be stored, and of which tile
        while number < work.units or left > 0:
            own_mnl, unit = (own_m, own_n, batch), self.unit(work, number)
            last, k_tiles = stage, Int32(0)
            if number < work.units:
                k_tiles = unit.k_count
            for k_tile in cutlass.range(k_tiles, unroll=1):
                cute.arch.mbarrier_wait(queue.full + stage, phase)
                self.multiply(products, k_tile, stage)
                if k_tile < left:
                    self.store_one(leaving, held, k_tile, own_mnl, tid, consumer)
                warpgroup.wait_group(1)
                if k_tile > 0:
                    self.release(queue, last, lane, peer)
                last = stage
                stage, phase = self.next_stage(stage, phase)
            for i in cutlass.range(cutlass.min(k_tiles, left), left, unroll=1):
                self.store_one(leaving, held, i, own_mnl, tid, consumer)
            found = Int32(0)
            if cutlass.const_expr(split):
                if number < work.units:
                    found = self.parts.take_ticket(work.parts, unit, work.rank, consumer, tid)
            warpgroup.wait_group(0)
            if k_tiles > 0:
                self.release(queue, last, lane, peer)
            left = Int32(0)
            if number < work.units:
                is_whole = Boolean(True)
                if cutlass.const_expr(split):
                    is_whole = self.parts.add_up(
                        products.acc, work.parts, unit, found, work.rank, consumer, tid
                    )
                if is_whole:
                    acc = self.leave.scaled(leaving, products.acc, k_tiles)
                    held.store(self.leave.by_subtiles(acc).load().to(held.element_type))
                    left = Int32(subtiles)
                    own_m, own_n, batch = self.own_tile_of(work, unit, consumer)
                elif cutlass.const_expr(split):
                    held.fill(0)  # they have left: no register keeps them while parts are added up
            number += work.clusters
        self.leave.wait_for_stores()

    @cute.jit
    def store_one(
        self,
        leaving: cutlass.Constexpr,
        held: cutlass.Constexpr,
        i: Int32,
        own_mnl,
        tid: Int32,
        consumer: Int32,
    ):
        """The i-th subtile: registers have no index, so a branch for each."""
        for j in cutlass.range_constexpr(cute.size(held, mode=[1])):
            if i == j:
                self.leave.store_subtile(leaving, held[None, j], j, own_mnl, tid, consumer)
