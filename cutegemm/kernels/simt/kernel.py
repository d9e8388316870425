"""Choose the kernel of a SIMT plan: with shared memory, without it, or with a workspace."""

from __future__ import annotations

from cutegemm.kernels.arguments import fake_arguments
from cutegemm.kernels.simt.direct import DirectGemm
from cutegemm.kernels.simt.gemm import SimtGemm
from cutegemm.kernels.threads.workspace import WorkspaceGemm
from cutegemm.machine.arch import Arch
from cutegemm.plan.plan import GemmPlan

__all__ = ["fake_arguments", "host_function"]


class SimtWorkspaceGemm(WorkspaceGemm, SimtGemm):
    """Emits the kernels of a GEMM without tensor cores that needs a workspace in global memory.

    A workspace is needed for the accumulators of K splits, and for copies of operands (repack pass).
    """


def host_function(plan: GemmPlan, arch: Arch) -> SimtGemm:
    """Return the host function that launches a SIMT plan's kernels, to be compiled for an architecture.

    Its arguments are a, b, further mainloop operands (such as block scales), epilogue inputs, d, further results,
    workspace, scalars, and the stream.
    """
    if plan.repacks or plan.scheduler.split.is_split:
        return SimtWorkspaceGemm(plan, arch)
    return DirectGemm(plan, arch) if plan.stages == 0 else SimtGemm(plan, arch)
