"""Arguments of `simulate` and `emulate`: arrays, and the problem that they are."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cutegemm.dtypes import round_to, tf32
from cutegemm.errors import PlanError
from cutegemm.plan.arguments import check_is_plan
from cutegemm.plan.epilogue import LINEAR, Epilogue
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Problem, check_is_problem
from cutegemm.simulator.memory import GlobalMatrix

_IDLE = dict([pair for step in LINEAR.steps for pair in step.idle])  # scalars of BLAS that change nothing
_NO_NUMBERS = "cOSUMm"  # complex, objects, texts and times, by numpy's letters for kinds of types


def given_operands(
    operation: str, plan: GemmPlan, given: Mapping[str, Any]
) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Return the arrays that take part, and the scalars: a tile only if the plan's epilogue reads it.

    given    A, B and the operands of the epilogue by name; None for a tile that is left out. A plan whose epilogue has
             no "c", "alpha" or "beta" takes them too, if they change nothing
    raises   PlanError in the name of an operation
    """
    check_is_plan(operation, plan)
    epilogue = plan.epilogue
    names, streams = epilogue.scalars, [stream.name for stream in plan.streams[2:]]
    violations = [
        f"{name} is not an operand of the plan {plan.name!r}, whose epilogue is {epilogue}."
        for name in given
        if name not in ("a", "b", "c", *streams, *_IDLE, *epilogue.tensors, *names)
    ]
    violations += [f"{name} is not given; the epilogue is {epilogue}." for name in names if name not in given]
    violations += [
        f"{name} is {reprlib.repr(given[name])}, but {_unread(plan, name)}"
        for name, idle in _IDLE.items()
        if name in given and name not in names and not _is_equal(given[name], idle)
    ]
    scalars = {name: _number(given[name]) for name in names if name in given}
    violations += [
        f"{name} = {reprlib.repr(value)}; a real number is expected, and one that a float holds."
        for name, value in scalars.items()
        if not _is_real(value)
    ]
    if violations:
        raise PlanError(operation, violations)
    read, arrays = epilogue.tensors_read(scalars), {}
    for name in ("a", "b", *streams, *read):
        value = given.get(name)
        if value is None and name in read:
            violations.append(f"{_why_read(epilogue, name, scalars)}, but no {name.upper()} is given.")
            continue
        try:
            arrays[name] = np.asarray(value)
        except (RuntimeError, TypeError, ValueError) as error:
            violations.append(f"{name.upper()} is a {type(value).__name__} that is no array of numbers: {error}")
            continue
        if arrays[name].dtype.kind in _NO_NUMBERS:
            violations.append(f"{name.upper()} is of {arrays[name].dtype}; real numbers are expected.")
    if violations:
        raise PlanError(operation, violations)
    return arrays, scalars


def _unread(plan: GemmPlan, name: str) -> str:
    """Say that the epilogue of a plan does not have the scalar "alpha" or "beta"."""
    if name == "beta":
        return f"the plan {plan.name!r} cannot read C. Make it with_c=True."
    return f"the epilogue of the plan {plan.name!r} is {plan.epilogue}. Leave {name} out."


def seen_by_plan(
    operation: str, plan: GemmPlan, given: dict[str, np.ndarray], problem: Problem | None
) -> tuple[dict[str, np.ndarray], Problem]:
    """The arrays as the plan sees them, and their problem: for a plan that is transposed, those of D^T = B^T A^T; see
    `GemmPlan.transposed`.

    problem   the caller's; see `problem_of`
    raises    PlanError in the name of an operation
    """
    check_is_problem(operation, problem)
    if not plan.swap_ab:
        return given, problem_of(operation, plan, given, problem)
    turned = {
        name: array if plan.operands.matrix(name).modes else np.swapaxes(np.atleast_2d(array), -1, -2)
        for name, array in given.items()
    }
    turned["a"], turned["b"] = turned["b"], turned["a"]
    of = None if problem is None else problem.transposed
    return turned, problem_of(f"{operation} of D^T = B^T A^T", plan, turned, of)


def as_caller_has(plan: GemmPlan, tile: np.ndarray) -> np.ndarray:
    """A tile of the plan's extents as the caller has it: transposed back where the plan is transposed."""
    return np.swapaxes(tile, -1, -2) if plan.swap_ab else tile


def _number(value: Any) -> Any:
    """The number of an array of one."""
    return value.item() if isinstance(value, np.ndarray) and value.size == 1 else value


def _is_real(value: Any) -> bool:
    """Whether a value is a real number that a float holds."""
    try:
        return not isinstance(value, (str, bytes)) and isinstance(float(value), float)
    except (OverflowError, TypeError, ValueError):
        return False


def _is_equal(value: Any, number: float) -> bool:
    value = _number(value)
    return _is_real(value) and float(value) == number


def _why_read(epilogue: Epilogue, tile: str, scalars: Mapping[str, float]) -> str:
    """The scalars by whose values a tile is read."""
    idle = [step.idle for step in epilogue.steps if tile in step.tensors and not step.is_idle(scalars)]
    why = [f"{name} is {scalars[name]}" for name, _ in idle[0]]
    return " and ".join(why) or f"the epilogue is {epilogue}"


def laid_out(
    problem: Problem, given: dict[str, np.ndarray], results: Sequence[str] = ("d",)
) -> dict[str, GlobalMatrix]:
    """The arrays and the results in memory as a problem lays them out, by the problem's types."""
    matrices = {name: GlobalMatrix(problem, name) for name in (*given, *results)}
    for name, array in given.items():
        kind = matrices[name].dtype
        seen = np.broadcast_to(_as_modes(array, name), matrices[name].extents)
        matrices[name].view(matrices[name].buffer)[...] = seen if kind is tf32 else round_to(kind, seen)
    return matrices


def _as_modes(array: np.ndarray, name: str) -> np.ndarray:
    """(M, K, L), (N, K, L) or (M, N, L) of an array as the caller has it; extents of 1 where it has fewer modes."""
    stacked = array.reshape((1,) * (3 - array.ndim) + array.shape)
    return np.moveaxis(stacked, 0, 2) if name != "b" else stacked.transpose(2, 1, 0)


def problem_of(operation: str, plan: GemmPlan, given: dict[str, np.ndarray], problem: Problem | None) -> Problem:
    """The problem that the arrays are, with gaps between rows; or the given one, which they must be."""
    violations = [
        f"{name.upper()} has the shape {array.shape}; two modes are expected, or three with a batch."
        for name, array in given.items()
        if array.ndim not in (2, 3) and not _is_broadcast(plan, name)
    ]
    if violations:
        raise PlanError(operation, violations)
    shapes = {name: _as_modes(array, name).shape for name, array in given.items()}
    m, k, batch = shapes["a"]
    n = shapes["b"][0]
    extents = {"m": m, "n": n, "k": k}
    expected = {
        stream.name: (*[_extent(mode, extents) for mode in plan.operands.modes(stream.name)], batch)
        for stream in plan.streams
    }
    told = {name: array.shape for name, array in given.items()}
    of_d = n // 2 if plan.operands.gated else n
    matrices = {name: shape for name, shape in shapes.items() if not _is_broadcast(plan, name)}
    if any(shape != expected.get(name, (m, of_d, batch)) for name, shape in matrices.items()):
        raise PlanError(operation, [f"the shapes {told} do not fit D = A @ B + C."])
    violations = [
        f"{name} has the shape {told[name]}; it is a {_lies(plan, name)}, of which {_of_kind(plan, name, m, n)} is "
        "expected, or as many for each of the batch."
        for name, shape in shapes.items()
        if name not in matrices and not _fits(plan, name, shape, (m, _columns(plan, name, n), batch))
    ]
    if violations:
        raise PlanError(operation, violations)
    if problem is None:
        return Problem(m, n, k, batch, plan.operands, _padded(plan, {"m": m, "n": n, "k": k}))
    if (problem.m, problem.n, problem.k, problem.l) != (m, n, k, batch):
        raise PlanError(operation, [f"the problem is {problem}, but the arrays have the shapes {told}."])
    return problem


def _extent(mode: str, extents: Mapping[str, int]) -> int:
    """Return the extent of a mode such as "k", or "k/128": K divided by 128, rounded up."""
    whole, _, every = mode.partition("/")
    return -(-extents[whole] // int(every or 1))


def _is_broadcast(plan: GemmPlan, name: str) -> bool:
    """Whether an operand stays the same along a mode of D."""
    return bool(plan.operands.matrix(name).broadcast)


def _fits(plan: GemmPlan, name: str, shape: tuple[int, ...], extents: tuple[int, int, int]) -> bool:
    """Whether a row, a column or a single element is of these extents of D, of a batch or of one for all of it."""
    same = plan.operands.matrix(name).broadcast
    wanted = [1 if mode in same else extent for mode, extent in zip("mn", extents, strict=False)]
    return list(shape[:2]) == wanted and shape[2] in (1, extents[2])


def _columns(plan: GemmPlan, name: str, n: int) -> int:
    """Columns of a row beside B, or beside D, which may have half of them."""
    return n // 2 if plan.operands.gated and not plan.operands.matrix(name).gated else n


def _lies(plan: GemmPlan, name: str) -> str:
    return plan.epilogue.kinds[name].__name__.lower()


def _of_kind(plan: GemmPlan, name: str, m: int, n: int) -> str:
    """The shape of a row, a column or a single element."""
    shapes = {("m",): (_columns(plan, name, n),), ("n",): (m, 1), ("m", "n"): (1,)}
    return str(shapes[plan.operands.matrix(name).broadcast])


def _padded(plan: GemmPlan, extents: dict[str, int]) -> tuple[tuple[str, int], ...]:
    """Leading strides with a gap of one aligned access, and aligned as the plan needs."""
    out, whole = [], extents["n"]
    for name in ("a", "b", "c", "d", *dict(plan.operands.aux)):
        operand = plan.operands.matrix(name)
        if operand.broadcast:
            continue
        extents["n"] = whole if name == "b" or operand.modes else _columns(plan, name, whole)
        contiguous = next(mode for mode in plan.operands.modes(name) if mode[0] == operand.major)
        units = -(-_extent(contiguous, extents) // operand.align_elems) + 1
        out.append((name, units * operand.align_elems))
    return tuple(out)
