"""A plan carried out on the CPU: `simulate`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cutegemm.errors import PlanError, SimulationError
from cutegemm.layout import hooks
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Problem
from cutegemm.plan.rules.violations import problem_rules
from cutegemm.simulator.arguments import as_caller_has, given_operands, laid_out, seen_by_plan
from cutegemm.simulator.gemv import run_gemv
from cutegemm.simulator.memory import GlobalMatrix
from cutegemm.simulator.reductions import of_reduction
from cutegemm.simulator.report import Fault, Report
from cutegemm.simulator.roles import run_roles
from cutegemm.simulator.scheduled import run_schedule
from cutegemm.simulator.task import Task


@dataclass(frozen=True)
class SimulationStats:
    """Counts of what a simulation carried out.

    ctas, k_tiles                    CTAs that ran, and steps of each along K
    multiply_adds                    those of the ragged edges included
    loaded_a_elems, loaded_b_elems   read from global memory by all CTAs
    seconds                          it took
    """

    ctas: int
    k_tiles: int
    multiply_adds: int
    loaded_a_elems: int
    loaded_b_elems: int
    seconds: float


@dataclass(frozen=True)
class SimulationResult(hooks.Shown):
    """D, what went wrong on the way, and what was done.

    aux   results of the epilogue beside D, by name
    """

    d: np.ndarray
    faults: tuple[Fault, ...]
    stats: SimulationStats
    aux: Mapping[str, np.ndarray] = field(default_factory=dict)


def simulate(
    plan: GemmPlan,
    a: Any,
    b: Any,
    c: Any = None,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    problem: Problem | None = None,
    check: bool | str = True,
    progress: Callable[[float], None] | None = None,
    **operands: Any,
) -> SimulationResult:
    """Does what the kernel of a plan does, in numpy: every copy, every product, by the plan's own layouts.

    Shared memory and registers are poisoned first, and D as well; global memory is laid out anew as the
    problem says, with guard bands around each matrix. C is not read where beta is 0.

    a, b       arrays (M, K) and (K, N), or (L, M, K) and (L, K, N), of any strides; for a plan that is transposed, all
               arrays are those of the problem whose transpose it computes
    c          (M, N) or (L, M, N); needed where beta is not 0
    problem    extents and leading strides; where left out, those of the arrays, with gaps between the rows
    check      True: raise for any fault. "report": leave them in the result. False: look for none, and take
               problems that the plan is not made for
    progress   called now and then with the fraction that is done
    operands   further ones of the plan's epilogue, by name: numbers, and arrays as c
    raises     PlanError where the arrays or the problem do not fit the plan; SimulationError with every fault

    >>> from cutegemm.build import simt_plan
    >>> a, b = np.ones((4, 8)), np.eye(8)[:, :4]
    >>> plan = simt_plan(block=(32, 32, 8), warp=(32, 32), thread=(8, 4))
    >>> simulate(plan, a, b, alpha=2).d
    array([[2., 2., 2., 2.],
           [2., 2., 2., 2.],
           [2., 2., 2., 2.],
           [2., 2., 2., 2.]], dtype=float32)
    """
    started = time.perf_counter()
    if check not in (True, False, "report"):
        raise PlanError("simulate", [f"check = {check!r}; True, False or 'report' is expected."])
    named = {"a": a, "b": b, "c": c, "alpha": alpha, "beta": beta, **operands}
    given, scalars = given_operands("simulate", plan, named)
    given, problem = seen_by_plan("simulate", plan, given, problem)
    if check is True:
        violations = list(problem_rules(plan, problem))
        if violations:
            raise PlanError(f"simulate: plan {plan.name!r} on {problem}", violations)
    report = Report()
    matrices = laid_out(problem, given, ("d", *plan.epilogue.beside))
    carry_out = run_gemv if plan.sliced_k is not None else run_schedule if not plan.body.has_roles else run_roles
    with np.errstate(over="ignore", invalid="ignore"):  # the caller's infinities are the caller's
        stats = carry_out(Task(plan, problem, matrices, scalars, report, check is not False, progress))
    faults = report.faults()
    if faults and check is True:
        raise SimulationError(f"simulate: plan {plan.name!r} on {problem}", faults)
    batched = any(array.ndim == 3 for name, array in given.items() if name in ("a", "b"))
    d, *aux = [as_caller_has(plan, result_of(matrices[name], batched)) for name in plan.epilogue.outputs]
    reduced = {name: of_reduction(matrices[name], each.along, batched) for name, each in plan.epilogue.reductions}
    return SimulationResult(
        d,
        faults,
        SimulationStats(*stats, time.perf_counter() - started),
        {**dict(zip(plan.epilogue.outputs[1:], aux, strict=True)), **reduced},
    )


def result_of(matrix: GlobalMatrix, batched: bool) -> np.ndarray:
    """What lies in a matrix of D's extents, as (L, M, N), or (M, N) without a batch."""
    out = np.moveaxis(matrix.view(matrix.buffer), 2, 0).copy()
    return out if batched else out[0]
