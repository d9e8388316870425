"""A GEMM by mma.sync with warp roles: a producer loads k-tiles by TMA, and each consumer is a warp.

Pipeline, barriers and storage are those of `sm90`. No barrier joins the consumers: each warp waits for a stage and
releases it by itself. So the warps of an SM may be as many k-tiles apart as the pipeline has stages, and one multiplies
while another stores.

Fragments are read ahead, also across k-tiles, as the steps `MultiplyBlock` of the program say. Fragments of the inner
mode have two buffers, and all are read before the MMAs of their k-block. Fragments of the outer mode have one
buffer: after the last MMA of a fragment, the fragment of the next k-block is read to its place.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import cutlass.cute as cute
from cutlass import Boolean, Int32

from cutegemm.kernels import lower
from cutegemm.kernels.sm90.cluster_split_k import ClusterSplitK
from cutegemm.kernels.sm90.consumer import ConsumerTracer
from cutegemm.kernels.sm90.kernel import Sm90Gemm
from cutegemm.kernels.sm90.loads import Loads
from cutegemm.kernels.sm90.split_k import Parts
from cutegemm.kernels.sm90.storage import Storage
from cutegemm.kernels.threads import fragments
from cutegemm.kernels.threads.mainloop import reread, serpentine
from cutegemm.kernels.trace import At, MainloopPipeline
from cutegemm.machine.arch import WARP_THREADS
from cutegemm.plan.mainloop.warp_mma import MultiplyBlock, ReadFirst, Test
from cutegemm.plan.program import steps as step
from cutegemm.plan.program.reader import reads
from cutegemm.plan.work.work import State


@dataclass
class Products:
    """The fragments and accumulators of one consumer warp, i.e. a warp that multiplies by mma.sync while another loads.

    The MMAs of a k-block are two nested loops, over M and over N. The fragments of the inner mode are double-buffered.

    tiled_mma   the MMA instruction, and how it is repeated over the tile
    a, b        fragments of A and of B: (MMA, MMA_M or MMA_N, buffers)
    inner       reads the fragments of the inner mode, which have two buffers
    outer       reads the fragments of the outer mode, which have one buffer
    acc         accumulators (MMA, MMA_M, MMA_N)
    """

    tiled_mma: cute.TiledMma
    a: cute.Tensor
    b: cute.Tensor
    inner: fragments.Reader
    outer: fragments.Reader
    acc: cute.Tensor

    @property
    def total(self) -> cute.Tensor:
        """Return the accumulators that the epilogue stores: those of the MMAs, as nothing is promoted."""
        return self.acc


class TmaFedGemm(Sm90Gemm):
    """Emits a Hopper kernel in which one producer warp loads tiles by TMA and consumer warps multiply them by mma.sync.

    In kernels that multiply by wgmma a consumer is a warpgroup; here it is a single warp.
    """

    def consumers(
        self, storage: Storage, split_k: Parts | None, shared: ClusterSplitK | None, loads: Loads
    ) -> WarpTracer:
        """Return the object that emits the code of the consumer warps, which multiply and store.

        storage   stores accumulators to global memory
        split_k   adds the K splits of a tile; None if K is not split
        shared    cluster split-K, which these plans do not have
        loads     loads k-tiles, which the producer does in these plans
        """
        return WarpTracer(self.plan, storage, split_k, shared, loads)


class WarpTracer(ConsumerTracer):
    """Emits the code of a consumer warp, which multiplies by mma.sync, from its program of waits, MMAs and stores.

    Methods without a decorator such as @cute.jit are plain Python that runs while the DSL traces the kernel.
    """

    def first_state(self, loop: step.ForTiles, state: State) -> State:
        """Return the numbers that determine this cluster's first work tile, computed from the CTA index.

        The special register of the CTA index is read again here: if the producer's value were used, ptxas would merge
        the variables of both roles, and spill the result.

        loop, state   not used here, but by the method that this one overrides
        """
        return self.work.first(reread("%ctaid.x"))

    def own_tile(self, at: At):
        """Return (m_tile, n_tile, batch) of the tile of D that this warp computes.

        The special register of the thread index is read again here. If the index stayed in a general register, the
        compiler would keep addresses derived from it through the mainloop, which has no registers to spare.

        at   the consumer's position in its program, which includes the current work tile
        """
        thread = reread("%tid.x")
        warp = cute.arch.make_warp_uniform(thread // WARP_THREADS) - self.plan.roles[0].warps
        self.storage.tid = thread % WARP_THREADS
        return self.plan.own_tile(self.work.tile_mnl(at.tile, self.who.rank), warp)

    def partition(self, pipeline_state: MainloopPipeline) -> Products:
        """Allocate the warp's fragments and accumulators, and set up the reads of fragments from shared memory.

        pipeline_state   stages in shared memory, and their barriers
        """
        plan, tid = self.plan, self.who.warp_idx * WARP_THREADS + cute.arch.lane_idx()
        tiled_mma = lower.tiled_mma(plan.tiled_mma)
        own = tiled_mma.get_slice(tid)
        held, read = [], []
        for name, tile, part, buffers in zip(
            "ab",
            (pipeline_state.smem["a"], pipeline_state.smem["b"]),
            (own.partition_A(pipeline_state.smem["a"]), own.partition_B(pipeline_state.smem["b"])),
            plan.fragment_buffers,
            strict=True,
        ):
            held.append(cute.make_rmem_tensor((*part.shape[:2], buffers), part.element_type))
            read.append(fragments.reader(plan, name, tile, held[-1], tid))
        inner, outer = read if plan.mma_order == "n" else read[::-1]
        acc = cute.make_rmem_tensor(self.accumulator_order(own), lower.dtype(plan.operands.acc))
        return Products(tiled_mma, *held, inner, outer, acc)

    def accumulator_order(self, own) -> cute.Layout:
        """Return the layout from (MMA, MMA_M, MMA_N) to registers for a thread's accumulators.

        It makes the accumulators of an epilogue tile contiguous.

        own   this thread's slice of the tiled MMA
        """
        of_atom, *rest = own.partition_shape_C(self.plan.cta_tile[:2])
        if not self.plan.store.epi_tile_count(self.plan):
            return cute.make_layout((of_atom, *rest))
        extents = tuple([cute.size(extent) for extent in (of_atom, *rest)])
        return lower.layout(self.plan.accumulator_order(extents))

    def k_tile(self, loop, at: At, names, k_tile, values) -> tuple:
        """Emit the code of one k-tile for a consumer warp. At its end, the first fragments of the next k-tile are read.

        at              the consumer's position in its program: work tile, k-tile and pipeline state
        names, values   names of the loop-carried variables, such as "stage", and their values before the k-tile
        k_tile          index of the k-tile in its work tile
        returns         values of these variables after the k-tile
        """
        at = replace(at, k_tile=k_tile)
        at.put(names, values)
        self.following, self.turned = self.next_stage(at.stage, at.phase)
        self.steps(loop.steps, at)
        at.stage, at.phase = self.following, self.turned
        return at.get(names)

    @reads(Test)
    def on_test(self, test: Test, at: At) -> None:
        self.is_full = cute.arch.mbarrier_test_wait(self.pipeline_state.full + self.following, self.turned)

    @reads(step.Wait)
    def on_wait(self, wait: step.Wait, at: At) -> None:
        if wait.ahead:
            self.wait_unless(self.is_full, self.pipeline_state.full + self.following, self.turned)
        else:
            super().on_wait(wait, at)

    @reads(ReadFirst)
    def on_read_first(self, read: ReadFirst, at: At) -> None:
        self.products.inner(0, 0, at.stage)
        self.products.outer(0, 0, at.stage)

    @reads(MultiplyBlock)
    def on_multiply_block(self, block: MultiplyBlock, at: At) -> None:
        p, k_block = self.products, block.k_block
        ahead = (0, self.following) if block.ahead == 1 else (k_block + 1, at.stage)
        if block.ahead is not None:
            p.inner((k_block + 1) % 2, *ahead)
        for part in range(p.outer.parts):
            self.multiply_part(p, k_block % 2, part)
            if block.releases and part == 0:
                cute.arch.sync_warp()
                self.release(at.stage)
            if block.ahead is not None:
                p.outer.read_part(part, 0, *ahead)

    @cute.jit
    def wait_unless(self, is_full: Boolean, barrier: cute.Pointer, parity: Int32):
        """Wait for a stage of the mainloop pipeline to be full, unless an earlier test found that it was.

        is_full   result of the test, one k-block earlier
        barrier   the stage's `full` mbarrier
        parity    parity of the phase to wait for
        """
        if not is_full:
            cute.arch.mbarrier_wait(barrier, parity)

    def multiply_part(self, p: Products, buffer: int, part: int) -> None:
        """Issue the MMAs that use one group of fragments of the outer mode, with all fragments of the inner mode.

        p        fragments and accumulators of the warp
        buffer   buffer of the inner mode's fragments
        part     index of the group of outer fragments, in [0, `p.outer.parts`)
        """
        by_rows = self.plan.mma_order == "m"
        a, b = p.a[None, None, 0 if by_rows else buffer], p.b[None, None, buffer if by_rows else 0]
        rows, columns = cute.size(a, mode=[1]), cute.size(b, mode=[1])
        per = (rows if by_rows else columns) // p.outer.parts
        for m, n in serpentine(rows, columns, self.plan.mma_order):
            if (m if by_rows else n) // per == part:
                accumulators = p.acc[None, m, n]
                cute.mma_atom_call(p.tiled_mma, accumulators, a[None, m], b[None, n], accumulators)
