"""Kernels that ncu can profile: a plan for a problem, or another object with the same methods."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from cutegemm.errors import UnsupportedError
from cutegemm.plan import GemmPlan, Problem
from cutegemm.profile.compare import METRICS


class Launchable(Protocol):
    """Interface of an object whose kernel can be run under Nsight Compute (ncu) to collect hardware counters.

    The object is pickled and sent to a child process, which runs under ncu. The child calls `prepared`, which returns a
    function that launches the kernel once, and calls that function `launches` times.
    """

    @property
    def name(self) -> str:
        """Name of this kernel in results, unique among the kernels that are profiled together."""

    @property
    def launches(self) -> int:
        """How often this kernel is launched and counted; more than once if counters vary from launch to launch."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the ncu metrics to collect for this kernel, such as "dram__bytes_read.sum"."""

    def prepared(self, arch: str, beta: float) -> Callable[[], None]:
        """Compile this kernel, allocate its operands on the GPU and return a function that launches it.

        arch   architecture to compile for, such as "sm_90a"
        beta   factor of C, for kernels that read C; the buffer of D is passed as C
        """


@dataclass(frozen=True)
class Case:
    """A kernel plan for a problem size, to be run under Nsight Compute (ncu) to collect hardware counters.

    name       name of the case, unique among the cases that are profiled together
    plan       the plan to compile
    problem    extents and operands of the GEMM
    launches   how often the kernel is launched and counted
    raises     UnsupportedError for a grouped GEMM, whose counters depend on the sizes of groups
    """

    name: str
    plan: GemmPlan
    problem: Problem
    launches: int = 1

    def __post_init__(self) -> None:
        if self.plan.operands.groups:
            raise UnsupportedError(f"profile: {self.plan.name} is a plan of a grouped GEMM, which is not profiled.")

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of all ncu metrics whose values the analysis predicts, such as "dram__bytes_read.sum"."""
        return METRICS

    def prepared(self, arch: str, beta: float) -> Callable[[], None]:
        """Compile this case's plan, allocate zeros as operands and return a function that launches it with alpha 1.

        arch   architecture to compile for, such as "sm_90a"
        beta   factor of C, if the plan reads C; the buffer of D is passed as C
        """
        from cutegemm.compile.plans import compile_plan

        kernel = compile_plan(self.plan, arch)
        a, b, d = (self._operand(name) for name in ("a", "b", "d"))
        if self.plan.has_c:
            return lambda: kernel(a, b, d, d, 1.0, beta)
        return lambda: kernel(a, b, d, 1.0)

    def _operand(self, name: str) -> Any:
        """Return a torch tensor of zeros on the GPU for one operand of this case's problem.

        Its shape and strides are those of the problem; a batched problem has its L matrices along the first axis.

        name   "a" (M x K), "b" (K x N) or "d" (M x N)
        """
        import torch

        from cutegemm.run.torch_ops import memory_of

        layout, operand = self.problem.layout(name), getattr(self.problem.operands, name)
        order = (1, 0) if name == "b" else (0, 1)
        batch = (2,) if self.problem.operands.batched else ()
        shape = tuple(layout.shape[i] for i in (*batch, *order))
        stride = tuple(layout.stride[i] for i in (*batch, *order))
        out = torch.empty_strided(shape, stride, dtype=memory_of(operand.dtype), device="cuda")
        (out.view(torch.uint8) if operand.dtype.bits == 8 else out).zero_()
        return out
