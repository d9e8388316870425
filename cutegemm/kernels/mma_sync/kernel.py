"""A GEMM by mma.sync: warps multiply fragments in registers by Tensor Cores, as an mma.sync plan says.

All threads of a CTA follow the plan's schedule; `mainloop` tells how. What is here:

| step     | by this family                                                                              |
|----------|---------------------------------------------------------------------------------------------|
| Read     | ldmatrix, transposed where A is m-major or B n-major and an element has 16 bits; plain loads |
|          | of what a register holds where the plan says so, or the operand is tf32 and not k-major     |
| Multiply | one mma.sync for each pair of atoms, back and forth: neighbours have a fragment in common   |

tf32 operands are f32 in memory, of which mma.sync does not look at the low 13 bits; `rounding` has them rounded before.
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
    """The host function that is traced for a plan and an architecture, of `LaunchArguments`."""
    if plan.body.has_roles:
        from cutegemm.kernels.mma_sync.tma import TmaFedGemm

        return TmaFedGemm(plan, arch)
    if plan.sliced_k is not None:
        from cutegemm.kernels.mma_sync.gemv import GemvGemm

        return GemvGemm(plan, arch)
    return MmaSyncWorkspaceGemm(plan, arch) if plan.split.is_split else MmaSyncGemm(plan, arch)


class MmaSyncGemm(ScheduledGemm):
    """The kernel of an mma.sync plan."""

    def prepare(self, parts: ThreadTiles, tid, sA, sB) -> None:
        """How this thread reads the fragments of A and of B."""
        held = (("a", sA, parts.tCrA), ("b", sB, parts.tCrB))
        parts.reads = [fragments.reader(self.plan, name, tile, to, tid) for name, tile, to in held]

    def read(self, parts: ThreadTiles, step: Read, stage, k_block) -> None:
        """Fragments of a k-block, as ldmatrix distributes them or by plain loads."""
        buffer = step.k_block % self.plan.body.fragments
        for read in parts.reads:
            read(buffer, k_block, stage)
        if self.plan.rounding == "rna":
            for fragment in (parts.tCrA, parts.tCrB):
                round_fragment(fragment[None, None, buffer])

    def multiply(self, parts: ThreadTiles, step: Multiply) -> None:
        """acc += A B, an atom at a time."""
        buffer = step.k_block % self.plan.body.fragments
        a, b = parts.tCrA[None, None, buffer], parts.tCrB[None, None, buffer]
        for m, n in serpentine(cute.size(a, mode=[1]), cute.size(b, mode=[1]), self.plan.mma_order):
            accumulators = parts.acc[None, m, n]
            cute.mma_atom_call(parts.tiled_mma, accumulators, a[None, m], b[None, n], accumulators)


class MmaSyncWorkspaceGemm(WorkspaceGemm, MmaSyncGemm):
    """The kernels of an mma.sync plan that splits K."""
