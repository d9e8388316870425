"""A GEMM by mma.sync: warps multiply fragments in registers on tensor cores, as an mma.sync plan says.

All threads of a CTA follow the plan's schedule; see `threads.mainloop`. This family implements two steps:

| step     | implementation                                                                              |
|----------|---------------------------------------------------------------------------------------------|
| Read     | ldmatrix, transposed if A is M-major or B is N-major with 16-bit elements. Plain loads of    |
|          | single registers if the plan says so, or for a tf32 operand that is not K-major              |
| Multiply | one mma.sync for each pair of atoms, in serpentine order: neighbours share a fragment        |

tf32 operands are f32 in memory. mma.sync ignores their low 13 bits, so `rounding` rounds them before.
"""

from __future__ import annotations

from typing import Any

import cutlass.cute as cute

from cutegemm.kernels.arguments import fake_arguments
from cutegemm.kernels.mma_sync.rounding import round_fragment
from cutegemm.kernels.threads import fragments
from cutegemm.kernels.threads.mainloop import ScheduledGemm, ThreadTiles, serpentine
from cutegemm.kernels.threads.workspace import WorkspaceGemm
from cutegemm.machine.arch import Arch
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.program.thread_schedule import Multiply, Read

__all__ = ["MmaSyncGemm", "fake_arguments", "host_function"]


def host_function(plan: GemmPlan, arch: Arch) -> Any:
    """Return the host function that launches an mma.sync plan's kernels, to be compiled for an architecture.

    Its arguments are a, b, further mainloop operands (such as block scales), epilogue inputs, d, further results,
    workspace, scalars, and the stream.
    """
    if plan.body.has_roles:
        from cutegemm.kernels.mma_sync.tma import TmaFedGemm

        return TmaFedGemm(plan, arch)
    if plan.body.slices_k:
        from cutegemm.kernels.mma_sync.gemv import GemvGemm

        return GemvGemm(plan, arch)
    return MmaSyncWorkspaceGemm(plan, arch) if plan.scheduler.split.is_split else MmaSyncGemm(plan, arch)


class MmaSyncGemm(ScheduledGemm):
    """Emits the kernel of a GEMM by mma.sync without warp roles: all threads load, multiply and store by one schedule.

    It implements how fragments are read from shared memory (ldmatrix or plain loads) and multiplied; the base class
    does the rest.
    """

    def prepare(self, parts: ThreadTiles, tid, sA, sB) -> None:
        """Set up how this thread reads the fragments of A and of B from shared memory.

        parts    the thread's tiles; the objects that read fragments are stored here
        tid      index of the thread
        sA, sB   shared memory of A and B, with all stages
        """
        held = (("a", sA, parts.tCrA), ("b", sB, parts.tCrB))
        parts.reads = [fragments.reader(self.plan, name, tile, to, tid) for name, tile, to in held]

    def read(self, parts: ThreadTiles, step: Read, stage, k_block) -> None:
        """Read the fragments of a k-block from shared memory, by ldmatrix or by plain loads.

        If the plan says so, f32 is rounded to tf32 here.

        parts     the thread's tiles, in shared memory and in registers
        step      the Read step, which names the buffer of registers
        stage     index of the stage
        k_block   index of the k-block in the k-tile
        """
        buffer = step.k_block % self.plan.body.fragments
        for read in parts.reads:
            read(buffer, k_block, stage)
        if self.plan.rounding == "rna":
            for fragment in (parts.tCrA, parts.tCrB):
                round_fragment(fragment[None, None, buffer])

    def multiply(self, parts: ThreadTiles, step: Multiply) -> None:
        """Add the product of a k-block's fragments to the accumulators, one MMA atom at a time.

        parts   the thread's fragments and accumulators
        step    the Multiply step, which names the buffer of fragments
        """
        buffer = step.k_block % self.plan.body.fragments
        a, b = parts.tCrA[None, None, buffer], parts.tCrB[None, None, buffer]
        for m, n in serpentine(cute.size(a, mode=[1]), cute.size(b, mode=[1]), self.plan.mma_order):
            accumulators = parts.acc[None, m, n]
            cute.mma_atom_call(parts.tiled_mma, accumulators, a[None, m], b[None, n], accumulators)


class MmaSyncWorkspaceGemm(WorkspaceGemm, MmaSyncGemm):
    """Emits the kernels of a GEMM by mma.sync that needs a workspace in global memory.

    A workspace is needed for the accumulators of K splits, and for copies of operands (repack pass).
    """
