"""A SIMT GEMM without shared memory: each thread reads its operands from global memory."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute

from cutegemm.kernels import lower
from cutegemm.kernels.simt.gemm import SimtGemm
from cutegemm.kernels.vectors import condition, copy_vector
from cutegemm.tile.copy_atoms import universal_copy

_UNROLL = 4


class DirectGemm(SimtGemm):
    """Emits a GEMM kernel without shared memory and tensor cores: each thread reads its operands from global memory.

    Threads multiply by fused multiply-adds (SIMT). Plans for this kernel have 0 stages.
    """

    @cute.jit
    def tile(self, mA: cute.Tensor, mB: cute.Tensor, mD: cute.Tensor):
        """Compute the CTA's tile of D for one k after another, from operands in global memory, and store it.

        mA, mB, mD   A (M, K, L), B (N, K, L) and D (M, N, L) in global memory
        """
        plan = self.plan
        bM, bN, _ = plan.cta_tile
        tid, _, _ = cute.arch.thread_idx()
        tiles, tile = self.tiles(mD), self.tile_number()
        m_tile, n_tile, batch = tiles.tile_mnl(tile)
        thr_mma = lower.tiled_mma(plan.tiled_mma).get_slice(tid)
        sides = []
        for mX, extent, at, part in (
            (mA, bM, m_tile, thr_mma.partition_A),
            (mB, bN, n_tile, thr_mma.partition_B),
        ):
            mX, coords, rows = self.tiled(mX, mD.shape[1] if mX is mB else None)
            gX, cX = [
                part(cute.local_tile(whole, (extent, 1), (at, None))) for whole in (mX[None, None, batch], coords)
            ]  # (1, REST_MN, 1, K)
            values = cute.size(gX, mode=[1])
            inside = [cute.elem_less(cX[0, i, 0, 0][0], rows) for i in range(values)]
            fragments = cute.make_rmem_tensor((1, values), mX.element_type)
            fragments.fill(0.0)
            sides.append((gX, inside, fragments))
        (gA, a_inside, tCrA), (gB, b_inside, tCrB) = sides
        acc = cute.make_rmem_tensor((1, len(a_inside), len(b_inside)), lower.dtype(plan.operands.acc))
        acc.fill(0.0)
        for k in cutlass.range(mA.shape[1], unroll=_UNROLL):
            self.take(gA, a_inside, tCrA, k)
            self.take(gB, b_inside, tCrB, k)
            self.multiply_direct(tCrA, tCrB, acc)
        self.end(thr_mma, mD, None, None, acc, tid, tiles.along(mA.shape[1]), tile)

    def take(self, gX, inside, fragments, k) -> None:
        """Read a thread's elements of A or B for one k from global memory. Elements outside of the matrix are not read.

        gX          the thread's rows or columns in global memory
        inside      for each of them, whether it is inside of the matrix
        fragments   registers that receive the elements
        """
        atom = universal_copy(self.plan.operands.a.dtype, self.plan.operands.a.dtype.bits)
        for i, where in enumerate(inside):
            copy_vector(atom, gX[None, i, 0, k], fragments[None, i], condition(where))

    def multiply_direct(self, tCrA, tCrB, acc) -> None:
        """Add the outer product of two fragments (a column of A, a row of B) to the accumulators of a thread.

        tCrA, tCrB   fragments of A and of B in registers
        acc          accumulators, with three modes: elements of an MMA atom, MMA atoms along M, MMA atoms along N
        """
        kind = acc.element_type
        for m in range(cute.size(tCrA)):
            for n in range(cute.size(tCrB)):
                acc[0, m, n] = cute.math.fma(tCrA[0, m].to(kind), tCrB[0, n].to(kind), acc[0, m, n])
