"""The GEMM kernel for Hopper: TMA loads k-tiles to stages, wgmma multiplies them, and D is stored as the plan says.

The plan's program of each role lists the role's steps in order, with the barriers that they wait at; see
`plan.program`. On the host this file creates the tensor maps and launches the kernel. On the device it allocates
shared memory, initializes the barriers, and traces the program of each role: the producer by `loads`, the consumers
by `consumer`.

Operands that need a repack pass are copied by a kernel before this one; see `repack`. The GEMM is launched while the
repack pass runs, and waits for it after its barriers are initialized; see `plan.launches`. The last k-tile may be
ragged: TMA fills elements beyond K, M or N with zeros, and does not store them.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64
from cutlass.cute.nvgpu import cpasync

from cutegemm.kernels import lower
from cutegemm.kernels.arguments import fake_arguments, launch_arguments, operands_seen
from cutegemm.kernels.glu import box_tile, columns_of_b, gate_and_up
from cutegemm.kernels.launches import SMEM_CARVEOUT_PERCENT, begin
from cutegemm.kernels.reduce import Reducer
from cutegemm.kernels.repack import Repacker, region
from cutegemm.kernels.sm90 import block_scaled as _block_scaled  # noqa: F401 - registers how its steps are traced
from cutegemm.kernels.sm90 import line_store, register_store, tma_store  # noqa: F401  (how each store is traced)
from cutegemm.kernels.sm90 import promoted as _promoted  # noqa: F401 - registers how its step is traced
from cutegemm.kernels.sm90 import quantized as _quantized  # noqa: F401 - registers how its step is traced
from cutegemm.kernels.sm90.cluster_split_k import ClusterSplitK
from cutegemm.kernels.sm90.consumer import ConsumerTracer
from cutegemm.kernels.sm90.gathered import clear
from cutegemm.kernels.sm90.groups import mapped
from cutegemm.kernels.sm90.loads import Loads, ProducerTracer, loaded_mnl
from cutegemm.kernels.sm90.split_k import Parts
from cutegemm.kernels.sm90.storage import Storage, Targets
from cutegemm.kernels.trace import MainloopPipeline, Who
from cutegemm.kernels.values import Values
from cutegemm.kernels.work import TRACED
from cutegemm.layout.inttuple import product
from cutegemm.machine.arch import WARP_THREADS, Arch
from cutegemm.plan.launches import GEMM, REPACK, launches_of, uses_pdl
from cutegemm.plan.memory.groups import operand_of_sizes
from cutegemm.plan.memory.workspace import regions, repacked_bytes_of
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import D_INDEX
from cutegemm.plan.reduction import ACCUMULATOR_ALIGN_BYTES, exchanged
from cutegemm.plan.warp_roles import warp_roles

# The warp that initializes the barriers. In a producer of four warps, warp 1 loads nothing, so it does not need the
# position of its cluster. Plans without a producer, and those with mma.sync, take positions from the block index.
_SETS_UP = 1

__all__ = ["Sm90Gemm", "fake_arguments", "host_function"]


def host_function(plan: GemmPlan, arch: Arch) -> Sm90Gemm:
    """Return the host function that launches a Hopper plan's kernels, to be compiled for an architecture.

    Its arguments are a, b, further mainloop operands (such as block scales), epilogue inputs, d, further results,
    workspace, scalars, and the stream.
    """
    return Sm90Gemm(plan, arch)


class Sm90Gemm:
    """Emits a Hopper GEMM kernel (TMA and wgmma with warp roles), and the host code that launches it.

    Methods without a decorator such as @cute.jit are plain Python that runs while the DSL traces the kernel.

    plan   all decisions about the kernel as data: tile, stages, roles, epilogue and so on
    arch   architecture to compile for
    """

    def __init__(self, plan: GemmPlan, arch: Arch) -> None:
        self.plan, self.pipeline, self.launches = plan, warp_roles(plan), launches_of(plan, arch)
        self.storage = Storage.of(plan)
        streams = [stream.name for stream in plan.streams]
        self.read = tuple([name for name in plan.operands.of_mainloop if name not in streams])  # threads read these

    def consumers(
        self, storage: Storage, split_k: Parts | None, shared: ClusterSplitK | None, loads: Loads
    ) -> ConsumerTracer:
        """Return the object that emits the code of the consumers' program.

        storage   stores accumulators to global memory
        split_k   adds the K splits of a tile; None if K is not split
        shared    exchanges accumulators in cluster split-K; None without it
        loads     loads k-tiles, if the plan has no producer
        """
        return ConsumerTracer(self.plan, storage, split_k, shared, loads)

    # --- host ----------------------------------------------------------------------------------------------

    @cute.jit
    def __call__(self, *arguments):
        """Launch the kernels of one GEMM: the repack pass if needed, the GEMM, and the kernels that finish reductions.

        Runs on the host.

        arguments   a, b, further mainloop operands, epilogue inputs, d, further results, workspace, scalars, stream
        """
        plan, given = self.plan, launch_arguments(self.plan, arguments)
        a, b, stream = given.a, given.b, given.stream
        arrivals, space = (None, None, *given.spaces)[-2:]
        cm, cn = plan.cluster_mn
        K = a.shape[1 + plan.operands.has_batch("a")]
        at_least_one = cutlass.max(K, 1)  # a descriptor has no extent of 0; with K = 0 nothing is loaded
        # (M, K, L), (N, K, L), (M, N, L), (M, N, L)
        sources = {"a": (a, 0, 1), "b": (b, 1, 0)}
        loaded = {name: self.seen_as(name, *operand, at_least_one) for name, operand in sources.items()}
        for name, tensor in given.mainloop.items():
            extent = cutlass.max(tensor.shape[1 + plan.operands.has_batch(name)], 1)
            loaded[name] = self.seen_as(name, tensor, 0, 1, extent)
        mD = self.seen_as("d", given.d, 0, 1)
        L = loaded[operand_of_sizes(plan.operands)].shape[0] if plan.operands.groups else mD.shape[2]
        tensors, results = operands_seen(plan, given, mD)
        reducer = Reducer(plan, self.launches)
        partials = reducer.partials(given, mD, K)
        operands = (tensors, (*results, *partials))
        rows, columns = mD.shape[0], columns_of_b(plan, mD)
        if cutlass.const_expr(plan.operands.scattered):  # D has rows of its own
            count = loaded[D_INDEX].shape[0]
            rows, columns = (count, columns) if plan.operands.groups == "m" else (rows, count)
        extents = [Int64(extent) for extent in (rows, columns, K, L)]
        split_k = regions(plan, *extents, TRACED)
        firsts = {r.name: r.first for r in split_k}
        repacked_bytes = repacked_bytes_of(split_k)
        if cutlass.const_expr(plan.repacks):
            as_they_are = {repack.name: self.seen_as(repack.name, *sources[repack.name]) for repack in plan.repacks}
            loaded |= Repacker(plan.repacks, self.launches[REPACK]).launch(as_they_are, space, firsts, stream)
        accumulators = (
            region(space, firsts["accumulators"], lower.dtype(plan.operands.acc))
            if plan.scheduler.split.is_split
            else None
        )
        if cutlass.const_expr(plan.operands.gated):
            loaded["b"] = gate_and_up(loaded["b"], plan, mD.shape[1])
        streams = tuple(
            [
                lower.tma_atom(each.load, mapped(plan, each.name, loaded[each.name]), each.smem, box_tile(plan, each))
                for each in plan.streams
            ]
        )
        read = tuple([loaded[name] for name in self.read])
        (tma_c, tC), (tma_d, tD), more = self.storage.tma_atoms(operands, mD, streams[0][0])
        work = plan.scheduler.tiles(plan.cluster_tile, rows, columns, L, TRACED).along(K)
        values = work.host_values(Int32, lower.divisors)
        self.kernel(
            streams,
            read,
            tma_c,
            tC,
            tma_d,
            tD,
            more,
            operands,
            given.scalars,
            values,
            arrivals,
            accumulators,
        ).launch(
            grid=(work.clusters * (cm * cn), 1, 1),
            block=(plan.threads, 1, 1),
            cluster=(cm * cn, 1, 1),
            stream=stream,
            min_blocks_per_mp=plan.ctas_per_sm,
            # Without it, the DSL asks a driver if several CTAs run on an SM
            preferred_smem_carveout=SMEM_CARVEOUT_PERCENT if plan.ctas_per_sm > 1 else None,
            use_pdl=uses_pdl(self.launches[GEMM], repacked_bytes),
        )
        reducer.launch(partials, given, stream)

    def seen_as(self, name: str, tensor: cute.Tensor, first: int, second: int, second_extent=None) -> cute.Tensor:
        """View the caller's tensor with its modes in CuTe's order and the batch last: (M or N, K, L) or (M, N, L).

        name            name of the operand
        first, second   modes of the caller's matrix that become the first and the second mode
        second_extent   replaces the extent of the second mode; None: keep it
        """
        batched = int(self.plan.operands.has_batch(name))
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
        streams: tuple,
        read: tuple,
        tma_c: cute.CopyAtom,
        mC: cute.Tensor,
        tma_d: cute.CopyAtom,
        mD: cute.Tensor,
        more: tuple,
        operands: tuple,
        scalars: tuple,
        values: tuple,
        arrivals,
        accumulators,
    ):
        plan = self.plan
        in_cluster = product(plan.cluster_mn)
        warp_idx = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        cta, _, _ = cute.arch.block_idx()
        rank = Int32(0)
        if cutlass.const_expr(in_cluster > 1):
            rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())

        smem = cutlass.memory.SmemAllocator()
        buffers = {
            each.name: lower.smem_tensor(smem, plan.operands.matrix(each.name).dtype, each.smem)
            for each in plan.streams
        }  # (rows, k, stages) each
        sD = self.storage.epi_stage_tensor(smem)
        place = None
        if cutlass.const_expr(plan.cluster_k > 1):
            kind = lower.dtype(plan.operands.acc)
            place = smem.allocate_array(kind, exchanged(plan).cosize(), byte_alignment=ACCUMULATOR_ALIGN_BYTES)
        mbarriers = [barrier for barrier in plan.barriers if barrier.kind == "mbarrier"]
        at = {barrier.name: smem.allocate_array(Int64, barrier.count) for barrier in mbarriers}
        semaphores = None
        if cutlass.const_expr(plan.scheduler.split.is_split):
            semaphores = smem.allocate_tensor(Int32, cute.make_layout(self.pipeline.consumers))
        gmem = dict(zip(self.read, read, strict=True))
        reads = {name: gmem[name] for name in plan.scheduler.reads}
        work = plan.scheduler.from_values(plan.cluster_tile, values, TRACED, reads).of_rank(rank)
        cluster, first_mnl = cta // in_cluster, (Int32(0), Int32(0), Int32(0))
        if cutlass.const_expr(plan.operands.gathered):
            clear(buffers[plan.operands.gathered], plan.threads)
            cute.arch.sync_threads()
        if warp_idx == _SETS_UP:
            for atom in (*[atom for atom, _ in streams], *self.storage.descriptors(tma_c, tma_d, more)):
                cpasync.prefetch_descriptor(atom)
            with cute.arch.elect_one():
                for barrier in mbarriers:
                    for i in range(barrier.count):
                        cute.arch.mbarrier_init(at[barrier.name] + i, barrier.arrivals)
            cute.arch.mbarrier_init_fence()
            if cutlass.const_expr(plan.operands.gathered):  # this warp loads rows
                cluster = work.place(cluster)
        else:
            cluster = work.place(cluster)
            if cutlass.const_expr(not plan.scheduler.reads):  # the kernel ahead may still write what it reads
                if warp_idx == 0:  # the producer's warp, which has to wait for the barriers anyway
                    first_mnl = loaded_mnl(plan, work, work.first(cluster), rank, streams[0][1], streams[1][1])
        if cutlass.const_expr(in_cluster > 1):
            cute.arch.cluster_arrive_relaxed()
            cute.arch.cluster_wait()
        else:
            cute.arch.sync_threads()
        begin(self.launches[GEMM])

        split_k = None
        if cutlass.const_expr(plan.scheduler.split.is_split):
            split_k = Parts(plan, arrivals, accumulators, semaphores)
        shared = None
        if cutlass.const_expr(plan.cluster_k > 1):
            shared = ClusterSplitK(plan, place, at["accumulators"], at["consumed"])
        pipeline_state = MainloopPipeline(buffers, gmem, at["full"], at.get("empty", at["full"]))
        self.storage.use(
            Targets(tma_c, mC, tma_d, mD, more, sD, at.get("c", at["full"]), gmem.get(D_INDEX)),
            Values.of(plan, operands, scalars),
        )
        loads = Loads(plan, streams)
        consumers = self.consumers(self.storage, split_k, shared, loads)
        if cutlass.const_expr(self.pipeline.kind == "single"):
            self.consume(consumers, pipeline_state, work, warp_idx, rank, cluster)
        else:
            first = plan.roles[0].warps
            produce, consume = plan.roles[0].registers, plan.roles[1].registers
            if warp_idx < first:
                if cutlass.const_expr(produce is not None):
                    cute.arch.setmaxregister_decrease(produce)
                if self.loads_tiles(warp_idx):
                    who = Who(warp_idx, None, None, None, rank, cluster)
                    known_mnl = None if plan.scheduler.reads else first_mnl
                    ProducerTracer(plan, loads, known_mnl).trace(plan.program("producer"), who, pipeline_state, work)
            else:
                if cutlass.const_expr(consume is not None):
                    cute.arch.setmaxregister_increase(consume)
                self.consume(consumers, pipeline_state, work, warp_idx - first, rank, cluster)

    def loads_tiles(self, warp_idx):
        """Return whether a warp of the producer loads: the first, or all if rows are gathered."""
        return warp_idx < self.plan.roles[0].warps if self.plan.operands.gathered else warp_idx == 0

    def consume(
        self, consumers: ConsumerTracer, pipeline_state: MainloopPipeline, work, warp_idx, rank, cluster
    ) -> None:
        """Emit the code of the consumers' program.

        All consumers run the same code, with their own index `who.consumer`.

        consumers        emits the code
        pipeline_state   stages in shared memory, and their barriers
        work             the scheduler, which gives each cluster its work tiles (a tile of D and a range of K)
        warp_idx         index of the warp among the consumers' warps
        rank, cluster    rank of the CTA in its cluster, and place of the cluster
        """
        pipeline = self.pipeline
        consumer = warp_idx // pipeline.consumer_warps
        tid = cute.arch.thread_idx()[0] % (WARP_THREADS * pipeline.consumer_warps)
        who = Who(warp_idx, consumer, tid, None, rank, cluster)
        consumers.trace(self.plan.program(self.plan.roles[-1].name), who, pipeline_state, work)
