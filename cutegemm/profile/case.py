"""Kernels that ncu can profile: a plan for a problem, or another object with the same methods."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from cutegemm.plan import GemmPlan, Problem
from cutegemm.profile.compare import METRICS


class Launchable(Protocol):
    """The interface of a kernel whose hardware counters are collected.

    The object is pickled for a child process that launches it.
    """

    @property
    def name(self) -> str:
        """Name of the case, unique among the cases that are run together."""

    @property
    def launches(self) -> int:
        """Number of launches to count; more than one if counters vary from launch to launch."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the ncu metrics to collect."""

    def prepared(self, arch: str, beta: float) -> Callable[[], None]:
        """Compile the kernel, allocate its operands on the GPU and return a function that launches it.

        arch   architecture to compile for, such as "sm_90a"
        beta   value of beta for plans that read C; D is passed as C
        """


@dataclass(frozen=True)
class Case:
    """A plan for a problem as a `Launchable`, a kernel whose hardware counters are collected.

    name       name of the case, unique among the cases that are run together
    launches   number of launches to count
    """

    name: str
    plan: GemmPlan
    problem: Problem
    launches: int = 1

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of all ncu metrics that `compare` uses."""
        return METRICS

    def prepared(self, arch: str, beta: float) -> Callable[[], None]:
        """Compile the plan, allocate zeros as its operands and return a function that launches it with alpha 1.

        arch   architecture to compile for, such as "sm_90a"
        beta   value of beta if the plan reads C; D is passed as C
        """
        from cutegemm.compile.plans import compile_plan

        kernel = compile_plan(self.plan, arch)
        a, b, d = (self._operand(name) for name in ("a", "b", "d"))
        if self.plan.has_c:
            return lambda: kernel(a, b, d, d, 1.0, beta)
        return lambda: kernel(a, b, d, 1.0)

    def _operand(self, name: str) -> Any:
        """Return a torch tensor of zeros on the GPU for an operand.

        name   "a" (M x K), "b" (K x N) or "d" (M x N); all with L in front if batched
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
