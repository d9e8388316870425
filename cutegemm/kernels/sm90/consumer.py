"""A consumer of a Hopper kernel: multiplies k-tiles by wgmma, and has the sums stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32
from cutlass.cute.nvgpu import warpgroup

from cutegemm.kernels import lower
from cutegemm.kernels.sm90.epilogue import Leaving, Sm90Epilogue
from cutegemm.kernels.sm90.parts import Parts
from cutegemm.kernels.sm90.producer import Producer
from cutegemm.kernels.sm90.queue import Queue, QueueOfTiles, Work
from cutegemm.machine.arch import WARPGROUP_THREADS
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.work.shares import Unit


@dataclass
class Products:
    """What a consumer multiplies.

    tCrA, tCrB   (MMA, MMA_MN, MMA_K, stages): descriptors of shared memory
    acc          (MMA, MMA_M, MMA_N)
    total        what is stored: acc, or where sums are kept on two levels as much again
    """

    tCrA: cute.Tensor
    tCrB: cute.Tensor
    acc: cute.Tensor
    total: cute.Tensor


class Consumer(QueueOfTiles):
    """Methods without a decorator are plain Python, run while tracing.

    leave      how its sums are stored
    producer   in whose place a consumer asks for k-tiles, where there is none
    """

    def __init__(self, plan: GemmPlan, leave: Sm90Epilogue, producer: Producer) -> None:
        super().__init__(plan)
        self.leave, self.producer, self.parts = leave, producer, Parts(plan)

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
        """A warpgroup: multiplies its units, or its rows of every unit, and stores what it has the sums of."""
        pipeline = self.pipeline
        turns, ordered, split = pipeline.turns, pipeline.order_epilogue, self.plan.split.is_split
        consumer = warp_idx // pipeline.consumer_warps
        tid = cute.arch.thread_idx()[0] % WARPGROUP_THREADS
        products = self.products(queue, consumer, tid)
        lane = cute.arch.lane_idx()
        peer = self.peer_of(lane, work.rank)
        self.leave.set_up(leaving, consumer)

        number = work.first
        stage, phase, c_phase = Int32(0), Int32(0), Int32(0)
        if cutlass.const_expr(turns > 1):
            number = self.first_of(work, consumer)
            stage, phase = self.skip(stage, phase, self.k_tiles_before(work, consumer))
            if consumer == turns - 1 and work.first < work.units:  # the first turn is the first consumer's
                self.hand_over("order mainloop", consumer)
                if cutlass.const_expr(ordered):
                    self.hand_over("order epilogue", consumer)
        if cutlass.const_expr(pipeline.stagger_cycles):
            self.begin_later(queue, work, consumer)
        while number < work.units:
            unit = self.unit(work, number)
            following = self.following(work, number)  # the unit that the next consumer takes
            is_another = following < work.units
            if cutlass.const_expr(not self.fetches_c_late):
                self.fetch_c_ahead(leaving, work, unit, consumer, tid)
            # Here and not after the products: ptxas would make them wait for each other
            if cutlass.const_expr(pipeline.two_level):
                products.total.fill(0)
            if cutlass.const_expr(turns > 1):
                self.wait_turn("order mainloop", consumer)
            last = Int32(0)
            if cutlass.const_expr(pipeline.kind == "single"):
                self.multistage(
                    products,
                    self.producer.loads(tma_a, mA, tma_b, mB, queue, work.rank),
                    queue,
                    work,
                    self.tile_of(work, unit.tile),
                    warp_idx,
                )
            elif cutlass.const_expr(pipeline.two_level):
                stage, phase = self.two_level(products, queue, unit.k_count, stage, phase, lane, peer)
            else:
                stage, phase, last = self.mainloop(products, queue, unit.k_count, stage, phase, lane, peer)
            if cutlass.const_expr(turns > 1):
                if is_another:
                    self.hand_over("order mainloop", consumer)
                stage, phase = self.skip(stage, phase, self.k_tiles_between(work, number))
            found = Int32(0)
            if cutlass.const_expr(split):
                found = self.parts.take_ticket(work.parts, unit, work.rank, consumer, tid)
            warpgroup.wait_group(0)
            if cutlass.const_expr(pipeline.kind != "single" and not pipeline.two_level):
                if unit.k_count > 0:
                    self.release(queue, last, lane, peer)
            if cutlass.const_expr(ordered):
                self.wait_turn("order epilogue", consumer)
            if cutlass.const_expr(split):
                if self.parts.add_up(products.total, work.parts, unit, found, work.rank, consumer, tid):
                    c_phase = self.store(leaving, products, work, unit, consumer, tid, c_phase)
            else:
                c_phase = self.store(leaving, products, work, unit, consumer, tid, c_phase)
            if cutlass.const_expr(ordered):
                if is_another:
                    self.hand_over("order epilogue", consumer)
            number = self.following(work, number, turns)
        self.leave.wait_for_stores()

    @property
    def fetches_c_late(self) -> bool:
        """Whether C is asked for only when the sums are there, as others may use its slots, or store the tile."""
        return self.pipeline.order_epilogue or self.plan.split.is_split

    def fetch_c_ahead(self, leaving: Leaving, work: Work, unit: Unit, consumer, tid) -> None:
        """Where C comes by TMA: as many of the unit's subtiles as have a slot."""
        if self.leave.c_by_tma:
            self.leave.fetch_c_ahead(leaving, self.own_tile_of(work, unit, consumer), tid)

    def store(self, leaving: Leaving, products: Products, work: Work, unit: Unit, consumer, tid, c_phase):
        """The sums of a unit. Returns the phase of the barriers of C.

        Which tile it is, is worked out as late as it can be: behind what does not depend on it.
        """
        if self.fetches_c_late:
            self.fetch_c_ahead(leaving, work, unit, consumer, tid)
        sums = self.leave.scaled(leaving, products.total, unit.k_count)
        return self.leave.store(leaving, sums, self.own_tile_of(work, unit, consumer), tid, consumer, c_phase)

    def own_tile_of(self, work: Work, unit: Unit, consumer) -> tuple[Any, Any, Any]:
        """(m_tile, n_tile, batch) of what the consumer stores, in tiles of its own."""
        m_tile, n_tile, batch = self.tile_of(work, unit.tile)
        readers = self.pipeline.readers
        return m_tile * readers + (consumer if readers > 1 else 0), n_tile, batch

    def products(self, queue: Queue, consumer, tid) -> Products:
        """The consumer's share of each k-tile: all of it, or its rows."""
        plan, pipeline = self.plan, self.pipeline
        sA = queue.sA
        if pipeline.kind != "pingpong":
            sA = cute.local_tile(
                sA, (pipeline.consumer_tile[0], plan.cta_tile[2], plan.stages), (consumer, 0, 0)
            )
        mma = lower.tiled_mma(plan.consumer_mma)
        thr_mma = mma.get_slice(tid)
        tCrA = mma.make_fragment_A(thr_mma.partition_A(sA))
        tCrB = mma.make_fragment_B(thr_mma.partition_B(queue.sB))
        shape = thr_mma.partition_shape_C(pipeline.consumer_tile)
        acc = cute.make_rmem_tensor(shape, lower.dtype(plan.operands.acc))
        total = cute.make_rmem_tensor(shape, acc.element_type) if pipeline.two_level else acc
        return Products(tCrA, tCrB, acc, total)

    def first_of(self, work: Work, consumer):
        """The number of a consumer's first unit, where consumers take them in turn."""
        if not self.plan.split.owned:
            return work.first + consumer * work.clusters
        number = work.first
        for before in range(self.pipeline.turns - 1):
            is_before = cutlass.min(cutlass.max(consumer - before, 0), 1)
            number = number + is_before * (self.following(work, number) - number)
        return number

    def k_tiles_before(self, work: Work, consumer):
        """Those that the consumers before this one take from the queue first."""
        if not self.plan.split.is_split:
            return consumer * work.k_tiles
        count = Int32(0)
        for before in range(self.pipeline.turns - 1):
            is_before = cutlass.min(cutlass.max(consumer - before, 0), 1)
            count = count + is_before * self.unit(work, self.following(work, work.first, before)).k_count
        return count

    def k_tiles_between(self, work: Work, number):
        """Those that the other consumers take between this consumer's unit and its next."""
        if not self.plan.split.is_split:
            return (self.pipeline.turns - 1) * work.k_tiles
        others = range(1, self.pipeline.turns)
        theirs = [self.unit(work, self.following(work, number, ahead)) for ahead in others]
        return sum([unit.k_count for unit in theirs], Int32(0))

    @cute.jit
    def begin_later(self, queue: cutlass.Constexpr, work: cutlass.Constexpr, consumer: Int32):
        """Each consumer waits for a while from when the first stage is there."""
        if self.unit(work, work.first).k_count > 0 and work.first < work.units:
            cute.arch.mbarrier_wait(queue.full, 0)
        begun = cute.arch.clock()
        now = begun
        while now - begun < consumer * self.pipeline.stagger_cycles:
            now = cute.arch.clock()

    def multiply(self, products: Products, k_tile, stage) -> None:
        """Issues the products of a k-tile. Whether the first one adds to the sums is known at run time."""
        p = products
        warpgroup.fence()
        for k_block in range(cute.size(p.tCrA, mode=[2])):
            mma = lower.tiled_mma(self.plan.consumer_mma)
            mma.set(warpgroup.Field.ACCUMULATE, k_tile > 0 if k_block == 0 else True)
            cute.gemm(
                mma, p.acc, p.tCrA[None, None, k_block, stage], p.tCrB[None, None, k_block, stage], p.acc
            )
        warpgroup.commit_group()

    @cute.jit
    def mainloop(
        self,
        products: cutlass.Constexpr,
        queue: cutlass.Constexpr,
        k_tiles: Int32,
        stage: Int32,
        phase: Int32,
        lane: Int32,
        peer: Int32,
        held: cutlass.Constexpr = None,
    ):
        """Issues the products of a tile. Those of the last k-tile are still under way, and hold its stage.

        held   what a consumer has to do meanwhile: see `work_behind`
        """
        last = stage
        for k_tile in cutlass.range(k_tiles, unroll=1):
            cute.arch.mbarrier_wait(queue.full + stage, phase)
            self.multiply(products, k_tile, stage)
            self.work_behind(held, k_tile)
            warpgroup.wait_group(1)
            if k_tile > 0:
                self.release(queue, last, lane, peer)
            last = stage
            stage, phase = self.next_stage(stage, phase)
        return stage, phase, last

    def work_behind(self, held, k_tile) -> None:
        """While the products of a k-tile are under way: nothing."""

    @cute.jit
    def two_level(
        self,
        products: cutlass.Constexpr,
        queue: cutlass.Constexpr,
        k_tiles: Int32,
        stage: Int32,
        phase: Int32,
        lane: Int32,
        peer: Int32,
    ):
        """The sums of a k-tile at a time, added to those of the k-tiles before."""
        for _ in cutlass.range(k_tiles, unroll=1):
            cute.arch.mbarrier_wait(queue.full + stage, phase)
            self.multiply(products, 0, stage)
            warpgroup.wait_group(0)
            self.release(queue, stage, lane, peer)
            self.add_up(products)
            stage, phase = self.next_stage(stage, phase)
        return stage, phase

    def add_up(self, products: Products) -> None:
        """total += acc, register by register."""
        for i in range(cute.size(products.acc)):
            products.total[i] = products.total[i] + products.acc[i]

    @cute.jit
    def multistage(
        self,
        products: cutlass.Constexpr,
        loads: cutlass.Constexpr,
        queue: cutlass.Constexpr,
        work: cutlass.Constexpr,
        tile_mnl: cutlass.Constexpr,
        warp_idx: Int32,
    ):
        """Without a producer: the first warp asks for the k-tile that is `stages` - 1 ahead."""
        ahead = self.plan.stages - 1
        if warp_idx == 0:
            for k_tile in cutlass.range_constexpr(ahead):
                if k_tile < work.k_tiles:
                    self.producer.fill(loads, queue, tile_mnl, k_tile, k_tile)
        stage, phase, last = Int32(0), Int32(0), Int32(ahead)
        for k_tile in cutlass.range(work.k_tiles, unroll=1):
            cute.arch.mbarrier_wait(queue.full + stage, phase)
            self.multiply(products, k_tile, stage)
            warpgroup.wait_group(1)
            cute.arch.sync_threads()  # all warps have multiplied the k-tile before: its stage is free
            if warp_idx == 0:
                if k_tile + ahead < work.k_tiles:
                    self.producer.fill(loads, queue, tile_mnl, k_tile + ahead, last)
            last = stage
            stage, phase = self.next_stage(stage, phase)

    def wait_turn(self, name: str, consumer) -> None:
        """Until the consumer before this one has handed over."""
        barrier = self.plan.barrier(name)
        cute.arch.barrier(
            barrier_id=self.plan.barrier_id(name) + consumer, number_of_threads=barrier.arrivals
        )

    def hand_over(self, name: str, consumer) -> None:
        """To the next consumer."""
        barrier = self.plan.barrier(name)
        cute.arch.barrier_arrive(
            barrier_id=self.plan.barrier_id(name) + (consumer + 1) % barrier.count,
            number_of_threads=barrier.arrivals,
        )
