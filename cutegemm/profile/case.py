"""What is launched under ncu: a plan for a problem, or anything else of the same methods."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from cutegemm.plan import GemmPlan, Problem
from cutegemm.profile.compare import METRICS


class Launchable(Protocol):
    """A kernel with its arguments. It is pickled, and made ready in a process of its own.

    name       one for each of those that are run together
    launches   that are counted: several where counters differ from one to the next
    """

    @property
    def name(self) -> str: ...

    @property
    def launches(self) -> int: ...

    @property
    def metrics(self) -> tuple[str, ...]:
        """The counters that are asked for."""

    def prepared(self, arch: str, beta: float) -> Callable[[], None]:
        """What launches it, compiled and with its operands on the GPU.

        beta   of the plans that can read C, which is then D
        """


@dataclass(frozen=True)
class Case:
    """A plan for a problem: see `Launchable`."""

    name: str
    plan: GemmPlan
    problem: Problem
    launches: int = 1

    @property
    def metrics(self) -> tuple[str, ...]:
        return METRICS

    def prepared(self, arch: str, beta: float) -> Callable[[], None]:
        from cutegemm.compile.plans import compile_plan

        kernel = compile_plan(self.plan, arch)
        a, b, d = (self._operand(name) for name in ("a", "b", "d"))
        if self.plan.has_c:
            return lambda: kernel(a, b, d, d, 1.0, beta)
        return lambda: kernel(a, b, d, 1.0)

    def _operand(self, name: str) -> Any:
        """Zeros, as the caller of a kernel has them: M x K, K x N, M x N, L in front of a batch."""
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
