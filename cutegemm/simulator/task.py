"""Task of the simulator: a plan, a problem and its matrices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Problem
from cutegemm.simulator.memory import GlobalMatrix
from cutegemm.simulator.report import Report

# Accumulators of the CTAs that are simulated together: 1 MiB, which fits the cache of a core.
_ACCUMULATORS_AT_ONCE = 1 << 18


@dataclass(frozen=True)
class Task:
    """One simulation: a plan, the matrices in simulated memory, the scalars, and the collector of faults.

    plan       the plan
    problem    extents and strides
    matrices   simulated global memory by name: "a", "b", "d", auxiliary outputs, and the M x N operands that the
               epilogue reads for these scalars
    scalars    value of each scalar of the epilogue, such as "alpha", by name
    report     collects faults
    checked    whether to look for faults
    progress   called from time to time with the finished share of the work, between 0 and 1; None: not called
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
        """Return the number of CTAs that are simulated together as one array operation: as many as fit a CPU cache."""
        bm, bn, _ = self.plan.mma_tile
        return max(1, _ACCUMULATORS_AT_ONCE // (bm * bn))

    def report_progress(self, done: float) -> None:
        """Call `progress`, if it is not None, with the finished share of the simulation.

        done   share, between 0 and 1
        """
        if self.progress is not None:
            self.progress(done)
