"""A GEMM for Hopper: TMA fills a queue of k-tiles, wgmma empties it, D leaves by TMA, as an sm90 plan says.

| role               | warps         | does                                                                  |
|--------------------|---------------|-----------------------------------------------------------------------|
| producer           | 4, one works  | fills the queue with the k-tiles of its CTA's tiles, in their order    |
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
| order ... (named)  | consumer      | its 128 threads, and the 128 of   | pingpong: its turn                |
|                    |               | the one before it                 |                                   |

pingpong      the consumers take a CTA's tiles in turn; each skips the others' k-tiles in the queue (`skip`)
cooperative   each consumer has some rows of every tile
single        no producer: a lane of the first consumer asks for a k-tile ahead, between the products

The last k-tile is the ragged one: TMA fills what lies beyond K, M or N with zeros, and stores nothing there.
The epilogue is in `sm90_epilogue`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int16, Int32, Int64
from cutlass.cute.nvgpu import cpasync, warpgroup

from cutegemm.arch import WARP_THREADS, WARPGROUP_THREADS
from cutegemm.kernels import lower
from cutegemm.kernels.sm90_epilogue import Leaving, Sm90Epilogue
from cutegemm.layout.inttuple import product
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Operand

_WARPS = WARPGROUP_THREADS // WARP_THREADS


def host_function(plan: GemmPlan) -> Sm90Gemm:
    """What is traced for a plan: (a, b, c, d, alpha, beta, stream) -> None."""
    return Sm90Gemm(plan)


def fake_arguments(plan: GemmPlan) -> tuple[Any, ...]:
    """Arguments that stand for all that the plan serves: any extents, any leading strides."""
    ops = plan.operands
    return (
        _fake_tensor(ops.a, "m", ops.batched),
        _fake_tensor(ops.b, "k", ops.batched),
        _fake_tensor(ops.c, "m", ops.batched),
        _fake_tensor(ops.d, "m", ops.batched),
        Float32(1.0),
        Float32(0.0),
        cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True),
    )


def _fake_tensor(operand: Operand, first_mode: str, batched: bool) -> cute.Tensor:
    """(rows, columns) or (L, rows, columns) as the caller has it. TMA asks of strides, not of extents."""
    leading = cute.sym_int64(divisibility=operand.align_elems)
    extents: list[Any] = [cute.sym_int32(), cute.sym_int32()]
    strides: list[Any] = [1, leading] if operand.major == first_mode else [leading, 1]
    if batched:
        extents = [cute.sym_int32(), *extents]
        strides = [cute.sym_int64(divisibility=operand.align_elems), *strides]
    return cute.runtime.make_fake_tensor(
        lower.dtype(operand.dtype), tuple(extents), tuple(strides), assumed_align=operand.align_bytes
    )


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


@dataclass
class Load:
    """How tiles of A, or of B, come by TMA.

    gX        (box, tiles, k_tiles, L)
    sX        (box, stages)
    options   multicast and L2 policy
    """

    atom: cute.CopyAtom
    gX: cute.Tensor
    sX: cute.Tensor
    options: dict[str, Any]


@dataclass
class Products:
    """What a consumer multiplies.

    tCrA, tCrB   (MMA, MMA_MN, MMA_K, stages): descriptors of shared memory
    acc          (MMA, MMA_M, MMA_N)
    """

    tCrA: cute.Tensor
    tCrB: cute.Tensor
    acc: cute.Tensor


class Sm90Gemm:
    """The kernel of an sm90 plan. Methods without a decorator are plain Python, run while tracing."""

    def __init__(self, plan: GemmPlan) -> None:
        assert plan.pipeline is not None
        self.plan, self.pipeline = plan, plan.pipeline
        self.leave = Sm90Epilogue(plan)

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
        plan = self.plan
        bM, bN, bK = plan.cta_tile
        cm, cn = plan.cluster_mn
        K = a.shape[1 + plan.operands.batched]
        at_least_one = cutlass.max(K, 1)  # a descriptor has no extent of 0; with K = 0 nothing is loaded
        # (M, K, L), (N, K, L), (M, N, L), (M, N, L)
        mA, mB = self.seen_as(a, 0, 1, at_least_one), self.seen_as(b, 1, 0, at_least_one)
        mC, mD = self.seen_as(c, 0, 1), self.seen_as(d, 0, 1)
        tma_a, tA = lower.tma_atom(plan.load_a, mA, plan.smem_a, (bM, bK))
        tma_b, tB = lower.tma_atom(plan.load_b, mB, plan.smem_b, (bN, bK))
        (tma_c, tC), (tma_d, tD) = self.leave.tma_atoms(mC, mD, tma_a)
        grid_m, grid_n = cute.ceil_div(mD.shape[0], bM * cm), cute.ceil_div(mD.shape[1], bN * cn)
        tiles = grid_m * grid_n * mD.shape[2]
        clusters = tiles
        if cutlass.const_expr(self.pipeline.ctas is not None):
            clusters = cutlass.min(tiles, self.pipeline.ctas // (cm * cn))
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
            cute.ceil_div(K, bK),
            grid_m,
            grid_n,
            tiles,
            clusters,
        ).launch(
            grid=(clusters * (cm * cn), 1, 1),
            block=(plan.threads, 1, 1),
            cluster=(cm * cn, 1, 1),
            stream=stream,
            min_blocks_per_mp=plan.ctas_per_sm,
        )

    def seen_as(self, tensor: cute.Tensor, first: int, second: int, second_extent=None) -> cute.Tensor:
        """The caller's tensor with its modes in CuTe's order, the batch last."""
        batched = int(self.plan.operands.batched)
        shape, stride = tensor.layout.shape, tensor.layout.stride
        extents = [shape[batched + first], shape[batched + second]]
        if first > second:
            extents[1] = extents[1] if second_extent is None else second_extent
        elif second_extent is not None:
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
        tiles: Int32,
        clusters: Int32,
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

        work = Work(cta // in_cluster, clusters, tiles, grid_m, grid_n, k_tiles, rank)
        queue = Queue(sA, sB, at["full"], at.get("empty", at["full"]))
        leaving = Leaving(tma_c, mC, tma_d, mD, sD, at.get("c", at["full"]), alpha, beta)
        if cutlass.const_expr(self.pipeline.kind == "single"):
            self.consume(tma_a, mA, tma_b, mB, queue, leaving, work, warp_idx)
        else:
            produce, consume = plan.roles[0].registers, plan.roles[1].registers
            if warp_idx < plan.roles[0].warps:
                if cutlass.const_expr(produce is not None):
                    cute.arch.setmaxregister_decrease(produce)
                if warp_idx == 0:
                    self.produce(tma_a, mA, tma_b, mB, queue, work)
            else:
                if cutlass.const_expr(consume is not None):
                    cute.arch.setmaxregister_increase(consume)
                self.consume(tma_a, mA, tma_b, mB, queue, leaving, work, warp_idx - plan.roles[0].warps)

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

    # --- loads ---------------------------------------------------------------------------------------------

    def loads(self, tma_a, mA, tma_b, mB, queue: Queue, rank) -> tuple[Load, Load]:
        """What this CTA loads: its share of the A of its row of the cluster, and of the B of its column."""
        plan = self.plan
        bM, bN, bK = plan.cta_tile
        cm, cn = plan.cluster_mn
        m_rank, n_rank = rank % cm, rank // cm
        row = sum(1 << (n * cm) for n in range(cn))  # the ranks with the same m_rank, for m_rank = 0
        column = (1 << cm) - 1
        a = self.load(plan.load_a, tma_a, mA, queue.sA, (bM, bK), n_rank, row << m_rank)
        b = self.load(plan.load_b, tma_b, mB, queue.sB, (bN, bK), m_rank, column << (n_rank * cm))
        return a, b

    def load(self, box, atom, mX, sX, tile, share, mask) -> Load:
        gX = cute.local_tile(mX, tile, (None, None, None))  # (b_MN, bK, tiles, k_tiles, L)
        tXsX, tXgX = cpasync.tma_partition(
            atom,
            share,
            cute.make_layout(box.multicast),
            cute.group_modes(sX, 0, 2),
            cute.group_modes(gX, 0, 2),
        )
        options = lower.l2_policy(box)
        if box.multicast > 1:
            options["mcast_mask"] = Int16(mask)
        return Load(atom, tXgX, tXsX, options)

    def fill(self, loads, queue: Queue, tile_mnl, k_tile, stage) -> None:
        """One warp: asks for a k-tile of A and of B."""
        a, b = loads
        m_tile, n_tile, batch = tile_mnl
        full = queue.full + stage
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(full, self.plan.barrier("full").transaction_bytes)
        cute.copy(a.atom, a.gX[None, m_tile, k_tile, batch], a.sX[None, stage], tma_bar_ptr=full, **a.options)
        cute.copy(b.atom, b.gX[None, n_tile, k_tile, batch], b.sX[None, stage], tma_bar_ptr=full, **b.options)

    @cute.jit
    def produce(self, tma_a, mA, tma_b, mB, queue: cutlass.Constexpr, work: cutlass.Constexpr):
        """One warp: the k-tiles of every tile of this CTA, in the order of the tiles."""
        loads = self.loads(tma_a, mA, tma_b, mB, queue, work.rank)
        stage, phase = Int32(0), Int32(0)
        linear = work.first
        while linear < work.tiles:
            tile_mnl = self.tile_of(work, linear)
            for k_tile in cutlass.range(work.k_tiles, unroll=1):
                cute.arch.mbarrier_wait(queue.empty + stage, phase ^ 1)
                self.fill(loads, queue, tile_mnl, k_tile, stage)
                stage, phase = self.next_stage(stage, phase)
            linear += work.clusters
        # No CTA leaves while a consumer of another may still arrive at its barriers
        if cutlass.const_expr(product(self.plan.cluster_mn) > 1):
            for _ in cutlass.range(self.plan.stages, unroll=1):
                cute.arch.mbarrier_wait(queue.empty + stage, phase ^ 1)
                stage, phase = self.next_stage(stage, phase)

    # --- a consumer ----------------------------------------------------------------------------------------

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
        """A warpgroup: multiplies its tiles, or its rows of every tile, and stores them."""
        pipeline = self.pipeline
        turns, ordered = pipeline.turns, pipeline.order_epilogue
        consumer = warp_idx // _WARPS
        tid = cute.arch.thread_idx()[0] % WARPGROUP_THREADS
        products = self.products(queue, consumer, tid)
        lane = cute.arch.lane_idx()
        peer = self.peer_of(lane, work.rank)
        self.leave.set_up(leaving, consumer)

        linear = work.first
        stage, phase, c_phase = Int32(0), Int32(0), Int32(0)
        if cutlass.const_expr(turns > 1):
            linear = work.first + consumer * work.clusters
            stage, phase = self.skip(stage, phase, consumer * work.k_tiles)
            if consumer == turns - 1 and work.first < work.tiles:  # the first turn is the first consumer's
                self.hand_over("order mainloop", consumer)
                if cutlass.const_expr(ordered):
                    self.hand_over("order epilogue", consumer)
        if cutlass.const_expr(pipeline.stagger_cycles):
            self.begin_later(queue, work, consumer)
        while linear < work.tiles:
            m_tile, n_tile, batch = self.tile_of(work, linear)
            is_another = linear + work.clusters < work.tiles  # the next tile, which the next consumer takes
            own_m = m_tile if turns > 1 else m_tile * pipeline.consumers + consumer
            if cutlass.const_expr(not ordered):
                self.leave.fetch_c_ahead(leaving, (own_m, n_tile, batch), tid)
            if (
                work.k_tiles == 0
            ):  # before the products: ptxas makes them wait for each other if acc is written after
                products.acc.fill(0.0)
            if cutlass.const_expr(turns > 1):
                self.wait_turn("order mainloop", consumer)
            last = Int32(0)
            if cutlass.const_expr(pipeline.kind == "single"):
                self.multistage(
                    products,
                    self.loads(tma_a, mA, tma_b, mB, queue, work.rank),
                    queue,
                    work,
                    (m_tile, n_tile, batch),
                    warp_idx,
                )
            else:
                stage, phase, last = self.mainloop(products, queue, work.k_tiles, stage, phase, lane, peer)
            if cutlass.const_expr(turns > 1):
                if is_another:
                    self.hand_over("order mainloop", consumer)
                stage, phase = self.skip(stage, phase, (turns - 1) * work.k_tiles)
            warpgroup.wait_group(0)
            if cutlass.const_expr(pipeline.kind != "single"):
                if work.k_tiles > 0:
                    self.release(queue, last, lane, peer)
            if cutlass.const_expr(ordered):
                self.wait_turn("order epilogue", consumer)
                self.leave.fetch_c_ahead(leaving, (own_m, n_tile, batch), tid)
            c_phase = self.leave.store(leaving, products.acc, (own_m, n_tile, batch), tid, consumer, c_phase)
            if cutlass.const_expr(ordered):
                if is_another:
                    self.hand_over("order epilogue", consumer)
            linear += work.clusters * turns
        self.leave.wait_for_stores()

    def products(self, queue: Queue, consumer, tid) -> Products:
        """The consumer's share of each k-tile: all of it, or its rows."""
        plan, pipeline = self.plan, self.pipeline
        sA = queue.sA
        if pipeline.kind != "pingpong":
            sA = cute.local_tile(
                sA, (pipeline.consumer_tile[0], plan.cta_tile[2], plan.stages), (consumer, 0, 0)
            )
        mma = lower.consumer_mma(plan.tiled_mma)
        thr_mma = mma.get_slice(tid)
        tCrA = mma.make_fragment_A(thr_mma.partition_A(sA))
        tCrB = mma.make_fragment_B(thr_mma.partition_B(queue.sB))
        acc = cute.make_rmem_tensor(
            thr_mma.partition_shape_C(pipeline.consumer_tile), lower.dtype(plan.operands.acc)
        )
        return Products(tCrA, tCrB, acc)

    @cute.jit
    def begin_later(self, queue: cutlass.Constexpr, work: cutlass.Constexpr, consumer: Int32):
        """Each consumer waits for a while from when the first stage is there."""
        if work.k_tiles > 0 and work.first < work.tiles:
            cute.arch.mbarrier_wait(queue.full, 0)
        begun = cute.arch.clock()
        now = begun
        while now - begun < consumer * self.pipeline.stagger_cycles:
            now = cute.arch.clock()

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

    def multiply(self, products: Products, k_tile, stage) -> None:
        """Issues the products of a k-tile. Whether the first one adds to the sums is known at run time."""
        p = products
        warpgroup.fence()
        for k_block in range(cute.size(p.tCrA, mode=[2])):
            mma = lower.consumer_mma(self.plan.tiled_mma)
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
    ):
        """Issues the products of a tile. Those of the last k-tile are still under way, and hold its stage."""
        last = stage
        for k_tile in cutlass.range(k_tiles, unroll=1):
            cute.arch.mbarrier_wait(queue.full + stage, phase)
            self.multiply(products, k_tile, stage)
            warpgroup.wait_group(1)
            if k_tile > 0:
                self.release(queue, last, lane, peer)
            last = stage
            stage, phase = self.next_stage(stage, phase)
        return stage, phase, last

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
                    self.fill(loads, queue, tile_mnl, k_tile, k_tile)
        stage, phase, last = Int32(0), Int32(0), Int32(ahead)
        for k_tile in cutlass.range(work.k_tiles, unroll=1):
            cute.arch.mbarrier_wait(queue.full + stage, phase)
            self.multiply(products, k_tile, stage)
            warpgroup.wait_group(1)
            cute.arch.sync_threads()  # all warps have multiplied the k-tile before: its stage is free
            if warp_idx == 0:
                if k_tile + ahead < work.k_tiles:
                    self.fill(loads, queue, tile_mnl, k_tile + ahead, last)
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
