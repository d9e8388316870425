"""`simulate`: execute a plan on the CPU."""

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
from cutegemm.simulator import mainloops as _mainloops  # noqa: F401 - registers how their steps are simulated
from cutegemm.simulator.arguments import as_caller_has, given_operands, laid_out, seen_by_plan
from cutegemm.simulator.gemv import run_gemv
from cutegemm.simulator.memory import GlobalMatrix
from cutegemm.simulator.reductions import of_reduction
from cutegemm.simulator.report import Fault, Report
from cutegemm.simulator.roles import run_roles
from cutegemm.simulator.scheduled import run_schedule
from cutegemm.simulator.stores import quantized as _quantized  # noqa: F401 - registers how its step is simulated
from cutegemm.simulator.task import Task


@dataclass(frozen=True)
class SimulationStats:
    """Counts of a simulation: how many CTAs ran, and what they loaded and multiplied.

    ctas             number of CTAs that ran
    k_tiles          number of k-tiles of a tile of D; of all groups together, if groups divide K
    multiply_adds    number of multiply-adds, including those of tile elements outside of the matrices
    loaded_a_elems   number of elements of A that all CTAs read from global memory
    loaded_b_elems   number of elements of B that all CTAs read from global memory
    seconds          duration of the simulation
    """

    ctas: int
    k_tiles: int
    multiply_adds: int
    loaded_a_elems: int
    loaded_b_elems: int
    seconds: float


@dataclass(frozen=True)
class SimulationResult(hooks.Shown):
    """Result of a simulation of a plan on the CPU: D, the faults and the counts.

    d        D, of shape (M, N) or (L, M, N)
    faults   faults by kind; () if none was found or looked for
    stats    counts
    aux      auxiliary outputs, reductions and scales of the epilogue, by name
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
    """Execute the kernel of a plan in numpy, on the CPU: every copy and every MMA, by the layouts of the plan.

    Shared memory, registers and D are first filled with poison, which marks memory that was never written. Global
    memory is laid out anew according to the problem, with guard bands around each matrix. C is not read if beta is 0.

    a, b       arrays (M, K) and (K, N), or (L, M, K) and (L, K, N), with any strides. If the plan swaps A and B, all
               arrays are still those of the problem before the swap
    c          (M, N) or (L, M, N); None if beta is 0
    alpha      factor of A @ B
    beta       factor of C
    problem    extents and leading strides; None: those of the arrays, with gaps between the rows
    check      True: raise an error for any fault. "report": return faults in the result. False: do not look for faults,
               and accept problems that violate the rules of the plan
    progress   called from time to time with the finished share of the work, between 0 and 1
    operands   further operands of the plan's epilogue, by name: numbers, and arrays with the shapes of c
    raises     PlanError if the arrays or the problem do not fit the plan; SimulationError with every fault

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
        raise PlanError("simulate", [f"check = {check!r} is not one of True, False and 'report'."])
    named = {"a": a, "b": b, "c": c, "alpha": alpha, "beta": beta, **operands}
    arrays, scalars = given_operands("simulate", plan, named)
    arrays, problem = seen_by_plan("simulate", plan, arrays, problem)
    if check is True:
        violations = list(problem_rules(plan, problem))
        if violations:
            raise PlanError(f"simulate: plan {plan.name!r} on {problem}", violations)
    report = Report()
    matrices = laid_out(problem, arrays, ("d", *plan.epilogue.beside))
    execute = run_gemv if plan.body.slices_k else run_schedule if not plan.body.has_roles else run_roles
    with np.errstate(over="ignore", invalid="ignore"):  # infinities in the arguments are allowed
        stats = execute(Task(plan, problem, matrices, scalars, report, check is not False, progress))
    faults = report.faults()
    if faults and check is True:
        raise SimulationError(f"simulate: plan {plan.name!r} on {problem}", faults)
    batched = any(array.ndim == 3 for name, array in arrays.items() if name in ("a", "b"))
    if problem.operands.groups:
        batched = problem.operands.has_batch("d")
    d, *aux = [as_caller_has(plan, result_of(matrices[name], batched)) for name in plan.epilogue.outputs]
    reduced = {name: of_reduction(matrices[name], one.along, batched) for name, one in plan.epilogue.reductions}
    scales = {name: result_of(matrices[name], batched) for name in plan.epilogue.scales}
    return SimulationResult(
        d,
        faults,
        SimulationStats(*stats, time.perf_counter() - started),
        {**dict(zip(plan.epilogue.outputs[1:], aux, strict=True)), **reduced, **scales},
    )


def result_of(matrix: GlobalMatrix, batched: bool) -> np.ndarray:
    """Copy a result of a simulation with the extents of D to a numpy array: (L, M, N) if `batched`, else (M, N).

    matrix    simulated memory of the result
    batched   whether the caller's arrays have a batch
    """
    out = np.moveaxis(matrix.view(matrix.buffer), 2, 0).copy()
    return out if batched else out[0]
