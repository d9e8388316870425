"""A GEMM by mma.sync whose k-tiles a producer brings by TMA: the queue, the barriers and the way out of `sm90`.

| role               | warps        | does                                                                   |
|--------------------|--------------|------------------------------------------------------------------------|
| producer           | 4, one works | as in `sm90`: fills the queue with the k-tiles of its CTA's tiles      |
| consumer 0, 1, ... | 1 each       | multiplies its part of a tile, then stores it through slots of its own |

No barrier holds consumers together: each waits for a stage and releases it by itself, so that the warps of a
multiprocessor's partition may be as far apart as the queue is deep, and one multiplies while another stores.

Fragments are read ahead, across k-tiles as well:

| k-block           | reads                                     | multiplies                                    |
|-------------------|-------------------------------------------|-----------------------------------------------|
| all but the last  | the next k-block's                        | this k-block's                                |
| the last          | the next k-tile's first ones, after its   | this k-block's; after the first products of   |
|                   | barrier                                   | it, all of the stage has been read: released  |

Those of one operand are there twice, and all read before the products. Those of the other one, whose mode is
outermost, are there once: after a fragment's last product, the next k-block's is read to its place.
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32

from cutegemm.kernels import lower
from cutegemm.kernels.sm90.epilogue import Sm90Epilogue
from cutegemm.kernels.sm90.kernel import Sm90Gemm
from cutegemm.kernels.sm90.leaving import Leaving
from cutegemm.kernels.sm90.queue import Queue, QueueOfTiles, Work
from cutegemm.kernels.threads import fragments
from cutegemm.kernels.threads.mainloop import reread, serpentine
from cutegemm.machine.arch import WARP_THREADS
from cutegemm.plan.plan import GemmPlan


@dataclass
class Products:
    """What a warp multiplies.

    a, b     fragments (MMA, MMA_MN, buffers)
    inner    reads those of the operand that is read as a whole; outer: of the other one
    acc      (MMA, MMA_M, MMA_N)
    """

    tiled_mma: cute.TiledMma
    a: cute.Tensor
    b: cute.Tensor
    inner: fragments.Reader
    outer: fragments.Reader
    acc: cute.Tensor


class TmaFedGemm(Sm90Gemm):
    """The kernel of an mma.sync plan with a queue."""

    def __init__(self, plan: GemmPlan) -> None:
        super().__init__(plan)
        self.consumer = WarpConsumer(plan, self.leave)


class WarpConsumer(QueueOfTiles):
    """A consumer that is a warp. Methods without a decorator are plain Python, run while tracing.

    leave   how its sums are stored
    """

    def __init__(self, plan: GemmPlan, leave: Sm90Epilogue) -> None:
        super().__init__(plan)
        self.leave = leave

    def consume(self, tma_a, mA, tma_b, mB, queue: Queue, leaving: Leaving, work: Work, warp_idx) -> None:
        """A warp: multiplies its part of every tile, and stores it."""
        lane = cute.arch.lane_idx()
        products = self.products(queue, warp_idx * WARP_THREADS + lane)
        self.leave.set_up(leaving, warp_idx)
        self.tiles(products, queue, leaving, work, lane)

    @cute.jit
    def tiles(
        self,
        products: cutlass.Constexpr,
        queue: cutlass.Constexpr,
        leaving: cutlass.Constexpr,
        work: cutlass.Constexpr,
        lane: Int32,
    ):
        """Its part of one tile after the other."""
        peer = self.peer_of(lane, work.rank)
        # Not `work.first`: of what both roles count, ptxas makes one variable, and spills it
        number = reread("%ctaid.x")
        stage, phase = Int32(0), Int32(0)
        while number < work.units:
            self.clear(products)
            stage, phase = self.mainloop(products, queue, work.k_tiles, stage, phase, lane, peer)
            self.store(self.leave.scaled(leaving, products.acc, work.k_tiles), leaving, work, number)
            number += work.clusters
        self.leave.wait_for_stores()

    def store(self, sums, leaving: Leaving, work: Work, number) -> None:
        """The sums of a tile. Which thread this is is read once more: were it kept in a register, the compiler would
        keep addresses that follow from it as well, through the mainloop, which has none to spare."""
        down, across = [
            whole // own for whole, own in zip(self.plan.cta_tile, self.pipeline.consumer_tile, strict=False)
        ]
        thread = reread("%tid.x")
        warp = cute.arch.make_warp_uniform(thread // WARP_THREADS) - self.plan.roles[0].warps
        m_tile, n_tile, batch = self.tile_of(work, number)
        own_mnl = (m_tile * down + warp // across, n_tile * across + warp % across, batch)
        self.leave.store(leaving, sums, own_mnl, thread % WARP_THREADS, warp, Int32(0))

    def clear(self, products: Products) -> None:
        """No sums yet."""
        products.acc.fill(0)

    def products(self, queue: Queue, tid) -> Products:
        """The warp's share of each k-tile."""
        plan = self.plan
        tiled_mma = lower.tiled_mma(plan.tiled_mma)
        own = tiled_mma.get_slice(tid)
        held, read = [], []
        for name, tile, part, buffers in zip(
            "ab",
            (queue.sA, queue.sB),
            (own.partition_A(queue.sA), own.partition_B(queue.sB)),
            plan.fragment_buffers,
            strict=True,
        ):
            held.append(cute.make_rmem_tensor((*part.shape[:2], buffers), part.element_type))
            read.append(fragments.reader(plan, name, tile, held[-1], tid))
        inner, outer = read if plan.mma_order == "n" else read[::-1]
        acc = cute.make_rmem_tensor(self.sums(own), lower.dtype(plan.operands.acc))
        return Products(tiled_mma, *held, inner, outer, acc)

    def sums(self, own) -> cute.Layout:
        """(MMA, MMA_M, MMA_N) to registers, in the order in which they leave: those of a subtile together."""
        of_atom, *rest = own.partition_shape_C(self.plan.cta_tile[:2])
        if self.plan.slots is None:
            return cute.make_layout((of_atom, *rest))
        m, n = self.leave.atoms_at_once
        down, across = [cute.size(extent) // step for extent, step in zip(rest, (m, n), strict=True)]
        values = cute.size(of_atom)
        return cute.make_layout(
            (values, (m, down), (n, across)),
            stride=(1, (values, values * m * n * across), (values * m, values * m * n)),
        )

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
        """The products of a tile; those of the last k-tile stand apart, as nothing is read ahead there."""
        if k_tiles > 0:
            cute.arch.mbarrier_wait(queue.full + stage, phase)
            self.read_first(products, stage)
            for _ in cutlass.range(k_tiles - 1, unroll=1):
                following, turned = self.next_stage(stage, phase)
                self.multiply(products, queue, stage, lane, peer, following, turned)
                stage, phase = following, turned
            self.multiply(products, queue, stage, lane, peer)
            stage, phase = self.next_stage(stage, phase)
        return stage, phase

    def read_first(self, products: Products, stage) -> None:
        """The fragments of a k-tile's first k-block."""
        products.inner(0, 0, stage)
        products.outer(0, 0, stage)

    def multiply(
        self, products: Products, queue: Queue, stage, lane, peer, following=None, turned=None
    ) -> None:
        """The products of a k-tile, whose first fragments have been read.

        following, turned   the next k-tile's stage and its parity, where its first fragments are to be read
        """
        p, blocks = products, self.plan.k_blocks
        for k_block in range(blocks):
            is_last = k_block == blocks - 1
            ahead = (0, following) if is_last else (k_block + 1, stage)
            reads = not is_last or following is not None
            if k_block == blocks - 2 and following is not None:
                is_full = cute.arch.mbarrier_test_wait(queue.full + following, turned)
            if is_last and reads:
                self.wait_unless(is_full, queue.full + following, turned)
            if reads:
                p.inner((k_block + 1) % 2, *ahead)
            for part in range(p.outer.parts):
                self.multiply_part(p, k_block % 2, part)
                if is_last and part == 0:
                    cute.arch.sync_warp()
                    self.release(queue, stage, lane, peer)
                if reads:
                    p.outer.read_part(part, 0, *ahead)

    @cute.jit
    def wait_unless(self, is_full: Boolean, barrier: cute.Pointer, parity: Int32):
        """For a stage that had not been filled when this was asked a k-block ago."""
        if not is_full:
            cute.arch.mbarrier_wait(barrier, parity)

    def multiply_part(self, p: Products, buffer: int, part: int) -> None:
        """acc += A B for some fragments of the outermost mode, an atom at a time."""
        by_rows = self.plan.mma_order == "m"
        a, b = p.a[None, None, 0 if by_rows else buffer], p.b[None, None, buffer if by_rows else 0]
        rows, columns = cute.size(a, mode=[1]), cute.size(b, mode=[1])
        per = (rows if by_rows else columns) // p.outer.parts
        for m, n in serpentine(rows, columns, self.plan.mma_order):
            if (m if by_rows else n) // per == part:
                sums = p.acc[None, m, n]
                cute.mma_atom_call(p.tiled_mma, sums, a[None, m], b[None, n], sums)
