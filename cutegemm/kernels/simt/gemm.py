"""A GEMM by fused multiply-adds of single threads, with CTA, warp and thread tiles, as a SIMT plan says.

All threads of a CTA follow the plan's schedule; see `threads.mainloop`. Fragments are read by vectors of the plan's
width, and Multiply is the outer product of two fragments.
"""

from __future__ import annotations

import cutlass.cute as cute

from cutegemm.kernels import lower
from cutegemm.kernels.threads.mainloop import ScheduledGemm, ThreadTiles, serpentine
from cutegemm.plan.program.thread_schedule import Multiply, Read


class SimtGemm(ScheduledGemm):
    """Emits a GEMM kernel without tensor cores: threads load tiles to shared memory and multiply by FMAs (SIMT).

    It implements how fragments are read from shared memory and multiplied; the base class does the rest.
    """

    def read(self, parts: ThreadTiles, step: Read, stage, k_block) -> None:
        """Read the fragments of a k-block from shared memory, by vectors of the plan's width.

        parts     the thread's tiles, in shared memory and in registers
        step      the Read step, which names the buffer of registers
        stage     index of the stage
        k_block   index of the k-block in the k-tile
        """
        buffer = step.k_block % self.plan.body.fragments
        for atom, source, fragments in (
            (self.plan.a.read, parts.tCsA, parts.tCrA),
            (self.plan.b.read, parts.tCsB, parts.tCrB),
        ):
            vector = (atom.values,)
            src = cute.zipped_divide(cute.coalesce(source[None, None, k_block, stage]), vector)
            dst = cute.zipped_divide(cute.coalesce(fragments[None, None, buffer]), vector)
            cute.copy(lower.copy_atom(atom), src, dst)

    def multiply(self, parts: ThreadTiles, step: Multiply) -> None:
        """Add the outer products of a k-block's fragments to the accumulators.

        parts   the thread's fragments and accumulators
        step    the Multiply step, which names the buffer of fragments
        """
        buffer = step.k_block % self.plan.body.fragments
        kind = parts.acc.element_type
        a = [parts.tCrA[0, m, buffer].to(kind) for m in range(cute.size(parts.tCrA, mode=[1]))]
        b = [parts.tCrB[0, n, buffer].to(kind) for n in range(cute.size(parts.tCrB, mode=[1]))]
        for m, n in serpentine(len(a), len(b), self.plan.mma_order):
            parts.acc[0, m, n] = cute.math.fma(a[m], b[n], parts.acc[0, m, n])
