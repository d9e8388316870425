"""A GEMM for Hopper: TMA fills a queue of k-tiles, wgmma empties it, D leaves by TMA, as an sm90 plan says.

| role               | warps         | does                                                                  |
|--------------------|---------------|-----------------------------------------------------------------------|
| producer           | 4, one works  | fills the queue with the k-tiles of its CTA's tiles, in their order   |
| consumer 0, 1, ... | 4 each        | multiplies the k-tiles of its tile, then stores it, by subtiles       |

| barrier            | one for each  | arrivals of a phase               | says                              |
|--------------------|---------------|-----------------------------------|-----------------------------------|
| full               | stage         | the producer's lane, and the      | the stage has been filled         |
|                    |               | bytes of A and B                  |                                   |
| empty              | stage         | each warp that reads it, in each  | the stage has been read in all    |
|                    |               | CTA that it is loaded to          | CTAs that it is loaded to         |
| read (all threads) | CTA           | no producer: all threads          | the stage before has been read    |
| c                  | slot          | one lane, and the bytes of C      | the subtile of C has come         |
| subtile (named)    | consumer      | its 128 threads                   | the slot has been written, the    |
|                    |               |                                   | next one is free                  |
| parts (named)      | consumer      | its 128 threads                   | K is split: see `sm90_parts`      |
| order ... (named)  | consumer      | its 128 threads, and the 128 of   | pingpong: its turn                |
|                    |               | the one before it                 |                                   |

pingpong      the consumers take a CTA's units in turn; each skips the others' k-tiles in the queue (`skip`)
cooperative   each consumer has some rows of every tile; deferred: it stores them while it multiplies the next tile's
single        no producer: a lane of the first consumer asks for a k-tile ahead, between the products

A unit is a tile of D, or where K is split some k-tiles of one: see `plan.shares`.
Operands that are packed first are so by kernels of their own, before this one: see `packing`.
The last k-tile is the ragged one: TMA fills what lies beyond K, M or N with zeros, and stores nothing there.
The roles are in `sm90_producer` and `sm90_consumer`, the way out in `sm90_epilogue`.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64
from cutlass.cute.nvgpu import cpasync

from cutegemm.kernels import lower
from cutegemm.kernels.arguments import fake_arguments
from cutegemm.kernels.pack import Packer, region
from cutegemm.kernels.sm90.consumer import Consumer
from cutegemm.kernels.sm90.deferred import DeferredConsumer
from cutegemm.kernels.sm90.epilogue import Leaving, Sm90Epilogue
from cutegemm.kernels.sm90.parts import PartsAt
from cutegemm.kernels.sm90.producer import Producer
from cutegemm.kernels.sm90.queue import Queue, Work, divided_of
from cutegemm.layout.inttuple import product
from cutegemm.plan.memory.workspace import regions
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.work.shares import cluster_shares, grid_of

__all__ = ["Sm90Gemm", "SplitSm90Gemm", "fake_arguments", "host_function"]


def host_function(plan: GemmPlan) -> Sm90Gemm:
    """What is traced for a plan: (a, b, c, d, alpha, beta, stream) -> None.

    Counters of arrivals and a workspace follow d where the plan splits K, a workspace alone where it packs operands.
    """
    if plan.split.is_split:
        return SplitSm90Gemm(plan)
    return PackedSm90Gemm(plan) if plan.packs else Sm90Gemm(plan)


class Sm90Gemm:
    """The kernel of an sm90 plan. Methods without a decorator are plain Python, run while tracing."""

    def __init__(self, plan: GemmPlan) -> None:
        assert plan.pipeline is not None
        self.plan, self.pipeline = plan, plan.pipeline
        self.leave, self.producer = Sm90Epilogue(plan), Producer(plan)
        consumer = DeferredConsumer if plan.pipeline.deferred else Consumer
        self.consumer = consumer(plan, self.leave, self.producer)

    # --- host ----------------------------------------------------------------------------------------------

    @cute.jit
    def __call__(
        self,
        a: cute.Tensor,
        b: cute.Tensor,
        c: cute.Tensor,
        d: cute.Tensor,
        alpha: Float32,
        beta: Float32,
        stream,
    ):
        self.launch(a, b, c, d, None, None, alpha, beta, stream)

    def launch(self, a, b, c, d, arrivals, space, alpha, beta, stream) -> None:
        """Packs operands, makes the descriptors, divides the work, and launches the kernel."""
        plan = self.plan
        bM, bN, bK = plan.cta_tile
        cm, cn = plan.cluster_mn
        K = a.shape[1 + plan.operands.batched]
        at_least_one = cutlass.max(K, 1)  # a descriptor has no extent of 0; with K = 0 nothing is loaded
        # (M, K, L), (N, K, L), (M, N, L), (M, N, L)
        given = {"a": (a, 0, 1), "b": (b, 1, 0)}
        loaded = {name: self.seen_as(*operand, at_least_one) for name, operand in given.items()}
        mC, mD = self.seen_as(c, 0, 1), self.seen_as(d, 0, 1)
        extents = [Int64(extent) for extent in (mD.shape[0], mD.shape[1], K, mD.shape[2])]
        firsts = {r.name: r.first for r in regions(plan, *extents, cutlass.min, cutlass.max)}
        for packing in plan.packs:
            source = self.seen_as(*given[packing.name])
            loaded[packing.name] = Packer(packing).launch(source, space, firsts[packing.name], stream)
        sums = region(space, firsts["sums"], lower.dtype(plan.operands.acc)) if plan.split.is_split else None
        tma_a, tA = lower.tma_atom(plan.load_a, loaded["a"], plan.smem_a, (bM, bK))
        tma_b, tB = lower.tma_atom(plan.load_b, loaded["b"], plan.smem_b, (bN, bK))
        (tma_c, tC), (tma_d, tD) = self.leave.tma_atoms(mC, mD, tma_a)
        grid_m, grid_n = cute.ceil_div(mD.shape[0], bM * cm), cute.ceil_div(mD.shape[1], bN * cn)
        tiles = grid_m * grid_n * mD.shape[2]
        k_tiles = cute.ceil_div(K, bK)
        units, divided = tiles, ()
        if plan.split.is_split:
            shares = cluster_shares(plan, tiles, k_tiles, cutlass.min, cutlass.max)
            units, divided = shares.units, divided_of(plan, shares)
        clusters = grid_of(plan, units, cutlass.min)
        divisors = lower.divisors(plan.raster.divisors(grid_m, grid_n))
        self.kernel(
            tma_a,
            tA,
            tma_b,
            tB,
            tma_c,
            tC,
            tma_d,
            tD,
            alpha,
            beta,
            k_tiles,
            grid_m,
            grid_n,
            divisors,
            units,
            clusters,
            divided,
            arrivals,
            sums,
        ).launch(
            grid=(clusters * (cm * cn), 1, 1),
            block=(plan.threads, 1, 1),
            cluster=(cm * cn, 1, 1),
            stream=stream,
            min_blocks_per_mp=plan.ctas_per_sm,
        )

    def seen_as(self, tensor: cute.Tensor, first: int, second: int, second_extent=None) -> cute.Tensor:
        """The caller's tensor with its modes in CuTe's order, the batch last.

        second_extent   of the second mode, where it is to be another
        """
        batched = int(self.plan.operands.batched)
        shape, stride = tensor.layout.shape, tensor.layout.stride
        extents = [shape[batched + first], shape[batched + second]]
        if second_extent is not None:
            extents[1] = second_extent
        strides = [stride[batched + first], stride[batched + second]]
        batch = (shape[0], stride[0]) if batched else (1, 0)
        layout = cute.make_layout((*extents, batch[0]), stride=(*strides, batch[1]))
        return cute.make_tensor(tensor.iterator, layout)

    # --- device --------------------------------------------------------------------------------------------

    @cute.kernel
    def kernel(
        self,
        tma_a: cute.CopyAtom,
        mA: cute.Tensor,
        tma_b: cute.CopyAtom,
        mB: cute.Tensor,
        tma_c: cute.CopyAtom,
        mC: cute.Tensor,
        tma_d: cute.CopyAtom,
        mD: cute.Tensor,
        alpha: Float32,
        beta: Float32,
        k_tiles: Int32,
        grid_m: Int32,
        grid_n: Int32,
        divisors: tuple,
        units: Int32,
        clusters: Int32,
        divided: tuple,
        arrivals,
        sums,
    ):
        plan = self.plan
        in_cluster = product(plan.cluster_mn)
        warp_idx = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        cta, _, _ = cute.arch.block_idx()
        rank = Int32(0)
        if cutlass.const_expr(in_cluster > 1):
            rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())

        smem = cutlass.memory.SmemAllocator()
        sA = lower.smem_tensor(smem, plan.operands.a.dtype, plan.smem_a)  # (bM, bK, stages)
        sB = lower.smem_tensor(smem, plan.operands.b.dtype, plan.smem_b)  # (bN, bK, stages)
        sD = None if plan.smem_d is None else lower.smem_tensor(smem, plan.operands.d.dtype, plan.smem_d)
        mbarriers = [barrier for barrier in plan.barriers if barrier.kind == "mbarrier"]
        at = {barrier.name: smem.allocate_array(Int64, barrier.count) for barrier in mbarriers}
        tickets = None
        if cutlass.const_expr(plan.split.is_split):
            tickets = smem.allocate_tensor(Int32, cute.make_layout(self.pipeline.consumers))
        if warp_idx == 0:
            for atom in (tma_a, tma_b, *self.leave.descriptors(tma_c, tma_d)):
                cpasync.prefetch_descriptor(atom)
            with cute.arch.elect_one():
                for barrier in mbarriers:
                    for i in range(barrier.count):
                        cute.arch.mbarrier_init(at[barrier.name] + i, barrier.arrivals)
            cute.arch.mbarrier_init_fence()
        if cutlass.const_expr(in_cluster > 1):
            cute.arch.cluster_arrive_relaxed()
            cute.arch.cluster_wait()
        else:
            cute.arch.sync_threads()

        work = Work(cta // in_cluster, clusters, units, grid_m, grid_n, divisors, k_tiles, rank, divided)
        if cutlass.const_expr(plan.split.is_split):
            work.parts = PartsAt(arrivals, sums, tickets)
        queue = Queue(sA, sB, at["full"], at.get("empty", at["full"]))
        leaving = Leaving(tma_c, mC, tma_d, mD, sD, at.get("c", at["full"]), alpha, beta)
        if cutlass.const_expr(self.pipeline.kind == "single"):
            self.consumer.consume(tma_a, mA, tma_b, mB, queue, leaving, work, warp_idx)
        else:
            produce, consume = plan.roles[0].registers, plan.roles[1].registers
            if warp_idx < plan.roles[0].warps:
                if cutlass.const_expr(produce is not None):
                    cute.arch.setmaxregister_decrease(produce)
                if warp_idx == 0:
                    self.producer.produce(tma_a, mA, tma_b, mB, queue, work)
            else:
                if cutlass.const_expr(consume is not None):
                    cute.arch.setmaxregister_increase(consume)
                self.consumer.consume(
                    tma_a, mA, tma_b, mB, queue, leaving, work, warp_idx - plan.roles[0].warps
                )


class PackedSm90Gemm(Sm90Gemm):
    """The kernels of a plan that packs operands: it takes memory."""

    @cute.jit
    def __call__(
        self,
        a: cute.Tensor,
        b: cute.Tensor,
        c: cute.Tensor,
        d: cute.Tensor,
        space: cute.Tensor,
        alpha: Float32,
        beta: Float32,
        stream,
    ):
        self.launch(a, b, c, d, None, space, alpha, beta, stream)


class SplitSm90Gemm(Sm90Gemm):
    """The kernels of a plan that splits K: it takes counters, which it leaves as zero as they came, and memory."""

    @cute.jit
    def __call__(
        self,
        a: cute.Tensor,
        b: cute.Tensor,
        c: cute.Tensor,
        d: cute.Tensor,
        arrivals: cute.Tensor,
        space: cute.Tensor,
        alpha: Float32,
        beta: Float32,
        stream,
    ):
        self.launch(a, b, c, d, arrivals, space, alpha, beta, stream)
