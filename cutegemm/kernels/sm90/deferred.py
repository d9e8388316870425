"""A Hopper consumer that stores a tile behind the products of its next one.

After its last product a consumer converts its sums, which takes half the registers that they do, and goes on. While
the products of a k-tile are under way it has nothing to do: behind each of the first k-tiles it stores a subtile of
the tile before. So the tensor cores wait for a conversion, and not for shared memory, barriers and TMA.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32
from cutlass.cute.nvgpu import warpgroup

from cutegemm.kernels import lower
from cutegemm.kernels.sm90.consumer import Consumer
from cutegemm.kernels.sm90.leaving import Leaving
from cutegemm.machine.arch import WARPGROUP_THREADS


@dataclass
class Held:
    """A tile that is to be stored.

    values   (values of a subtile, subtiles), converted
    left     how many subtiles there are; 0 where there is no tile
    """

    leaving: Leaving
    values: cute.Tensor
    left: Int32
    own_mnl: Any
    tid: Int32
    consumer: Int32


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
        consumer = warp_idx // self.pipeline.consumer_warps
        tid = cute.arch.thread_idx()[0] % WARPGROUP_THREADS
        lane = cute.arch.lane_idx()
        peer = self.peer_of(lane, work.rank)
        products = self.products(queue, consumer, tid)
        self.leave.set_up(leaving, consumer)
        sums = self.leave.by_subtiles(products.acc)
        values = cute.make_rmem_tensor(sums.shape, lower.dtype(self.plan.operands.d.dtype))
        subtiles, split = cute.size(values, mode=[1]), self.plan.split.is_split
        if cutlass.const_expr(self.pipeline.stagger_cycles):
            self.begin_later(queue, work, consumer)

        number = work.first
        stage, phase, left = Int32(0), Int32(0), Int32(0)
        own_m, own_n, batch = Int32(0), Int32(0), Int32(0)  # of the tile that is held
        while number < work.units or left > 0:
            held = Held(leaving, values, left, (own_m, own_n, batch), tid, consumer)
            unit, k_tiles = self.unit(work, number), Int32(0)
            if number < work.units:
                k_tiles = unit.k_count
            stage, phase, last = self.mainloop(products, queue, k_tiles, stage, phase, lane, peer, held)
            for i in cutlass.range(cutlass.min(k_tiles, left), left, unroll=1):
                self.store_one(held, i)
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
                    values.store(self.leave.by_subtiles(acc).load().to(values.element_type))
                    left = Int32(subtiles)
                    own_m, own_n, batch = self.own_tile_of(work, unit, consumer)
                elif cutlass.const_expr(split):
                    values.fill(0)  # they have left: no register keeps them while parts are added up
            number = self.following(work, number)
        self.leave.wait_for_stores()

    @cute.jit
    def work_behind(self, held: cutlass.Constexpr, k_tile: Int32):
        """Behind each of the first k-tiles: a subtile of the tile before."""
        if k_tile < held.left:
            self.store_one(held, k_tile)

    @cute.jit
    def store_one(self, held: cutlass.Constexpr, i: Int32):
        """The i-th subtile: registers have no index, so a branch for each."""
        for j in cutlass.range_constexpr(cute.size(held.values, mode=[1])):
            if i == j:
                self.leave.store_subtile(
                    held.leaving, held.values[None, j], j, held.own_mnl, held.tid, held.consumer
                )
