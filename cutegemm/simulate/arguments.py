"""What a person gives to `simulate` or `emulate`: arrays, and the problem that they are."""

from __future__ import annotations

from typing import Any

import numpy as np

from cutegemm.dtypes import round_to, tf32
from cutegemm.errors import PlanError
from cutegemm.plan.arguments import check_is_plan
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Problem
from cutegemm.simulate.memory import GlobalMatrix

_NO_NUMBERS = "cOSUMm"  # complex, objects, texts and times, by numpy's letters for kinds of types


def given_arrays(
    operation: str, plan: GemmPlan, a: Any, b: Any, c: Any, beta: float
) -> dict[str, np.ndarray]:
    """The arrays that take part: C only where beta is not 0. raises PlanError in the name of an operation"""
    check_is_plan(operation, plan)
    broken, given = [], {}
    for name, value in (("a", a), ("b", b), ("c", c if beta != 0 else None)):
        if name == "c" and value is None:
            continue
        try:
            given[name] = np.asarray(value)
        except (RuntimeError, TypeError, ValueError) as error:
            broken.append(f"{name.upper()} is a {type(value).__name__} that is no array of numbers: {error}")
            continue
        if given[name].dtype.kind in _NO_NUMBERS:
            broken.append(f"{name.upper()} is of {given[name].dtype}; real numbers are expected.")
    if beta != 0 and c is None:
        broken.append(f"beta is {beta}, but no C is given.")
    if beta != 0 and not plan.has_c:
        broken.append(f"beta is {beta}, but the plan {plan.name!r} cannot read C. Make it with_c=True.")
    if broken:
        raise PlanError(operation, broken)
    return given


def laid_out(problem: Problem, given: dict[str, np.ndarray]) -> dict[str, GlobalMatrix]:
    """The arrays and D in memory as a problem lays them out, by the problem's types."""
    matrices = {name: GlobalMatrix(problem, name) for name in (*given, "d")}
    for name, array in given.items():
        kind = matrices[name].dtype
        seen = _as_modes(array, name)
        matrices[name].view(matrices[name].buffer)[...] = seen if kind is tf32 else round_to(kind, seen)
    return matrices


def _as_modes(array: np.ndarray, name: str) -> np.ndarray:
    """(M, K, L), (N, K, L) or (M, N, L) of an array as the caller has it."""
    stacked = array if array.ndim == 3 else array[None]
    return np.moveaxis(stacked, 0, 2) if name != "b" else stacked.transpose(2, 1, 0)


def problem_of(
    operation: str, plan: GemmPlan, given: dict[str, np.ndarray], problem: Problem | None
) -> Problem:
    """The problem that the arrays are, with gaps between rows; or the given one, which they must be."""
    broken = [
        f"{name.upper()} has the shape {array.shape}; two modes are expected, or three with a batch."
        for name, array in given.items()
        if array.ndim not in (2, 3)
    ]
    if broken:
        raise PlanError(operation, broken)
    shapes = {name: _as_modes(array, name).shape for name, array in given.items()}
    m, k, batch = shapes["a"]
    n = shapes["b"][0]
    expected = {"a": (m, k, batch), "b": (n, k, batch), "c": (m, n, batch)}
    told = {name: array.shape for name, array in given.items()}
    if any(shapes[name] != expected[name] for name in shapes):
        raise PlanError(operation, [f"the shapes {told} do not fit D = A @ B + C."])
    if problem is None:
        return Problem(m, n, k, batch, plan.operands, _padded(plan, {"m": m, "n": n, "k": k}))
    if (problem.m, problem.n, problem.k, problem.l) != (m, n, k, batch):
        raise PlanError(operation, [f"the problem is {problem}, but the arrays have the shapes {told}."])
    return problem


def _padded(plan: GemmPlan, extents: dict[str, int]) -> tuple[tuple[str, int], ...]:
    """Leading strides with a gap of one aligned access, and aligned as the plan needs."""
    out = []
    for name in ("a", "b", "c", "d"):
        operand = getattr(plan.operands, name)
        units = -(-extents[operand.major] // operand.align_elems) + 1
        out.append((name, units * operand.align_elems))
    return tuple(out)
