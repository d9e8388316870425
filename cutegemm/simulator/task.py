"""A task of the simulator: a plan, a problem, and its matrices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Problem
from cutegemm.simulator.memory import GlobalMatrix
from cutegemm.simulator.report import Report

# Accumulators of the CTAs that are simulated together: 1 MiB of them stays in a core's cache.
_ACCUMULATORS_AT_ONCE = 1 << 18


@dataclass(frozen=True)
class Task:
    """A plan on matrices in memory.

    matrices   "a", "b", "d", and the tiles that the epilogue reads for these scalars
    scalars    of the epilogue, by name
    report     where faults are told
    checked    whether they are looked for
    progress   called now and then with the fraction that is done
    """

    plan: GemmPlan
    problem: Problem
    matrices: dict[str, GlobalMatrix]
    scalars: Mapping[str, float]
    report: Report
    checked: bool
    progress: Callable[[float], None] | None = None

    @property
    def ctas_at_once(self) -> int:
        """How many CTAs are simulated together."""
        bm, bn, _ = self.plan.mma_tile
        return max(1, _ACCUMULATORS_AT_ONCE // (bm * bn))

    def tell(self, done: float) -> None:
        """The fraction that is done."""
        if self.progress is not None:
            self.progress(done)
