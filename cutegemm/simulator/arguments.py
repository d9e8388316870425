"""Arguments of `simulate` and `emulate`: operand arrays, and the problem that they define."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cutegemm.dtypes import round_to, s32, tf32
from cutegemm.errors import PlanError
from cutegemm.plan.arguments import check_is_plan
from cutegemm.plan.epilogue import LINEAR, Epilogue
from cutegemm.plan.memory.groups import group_bounds, is_clipped, operand_of_sizes, ragged_mode
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import D_INDEX, INDEX, Problem, check_is_problem
from cutegemm.simulator.memory import GlobalMatrix, GroupsOf

_IDLE = dict([pair for step in LINEAR.steps for pair in step.idle])  # values of alpha and beta without effect
_NO_NUMBERS = "cOSUMm"  # complex, objects, texts and times, by numpy's letters for kinds of types


def given_operands(
    operation: str, plan: GemmPlan, arguments: Mapping[str, Any]
) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Check the arguments of `simulate` or `emulate`, and return (arrays that the plan reads, scalars), each by name.

    operation   name of the public function, "simulate" or "emulate", for error messages
    arguments   A, B and the operands of the epilogue by name, e.g. {"a": ..., "b": ..., "alpha": 2.0}; None for an
                operand that is not passed. "c", "alpha" and "beta" are accepted even if the epilogue does not use them,
                but then alpha must be 1 and beta 0
    returns     (name -> array, name -> float). An M x N operand, such as C, is left out if the epilogue does not read
                it for these scalars, e.g. if beta is 0
    raises      PlanError with every violated rule
    """
    check_is_plan(operation, plan)
    epilogue = plan.epilogue
    names, of_mainloop = epilogue.scalars, plan.operands.of_mainloop
    violations = [
        f"{name} is not an operand of the plan {plan.name!r}, whose epilogue is {epilogue}."
        for name in arguments
        if name not in ("a", "b", "c", *of_mainloop, *_IDLE, *epilogue.tensors, *names)
    ]
    violations += [f"{name} is missing; the epilogue is {epilogue}." for name in names if name not in arguments]
    violations += [
        f"{name} is {reprlib.repr(arguments[name])}, but {_unread(plan, name)}"
        for name, idle in _IDLE.items()
        if name in arguments and name not in names and not _is_equal(arguments[name], idle)
    ]
    scalars = {name: _number(arguments[name]) for name in names if name in arguments}
    violations += [
        f"{name} = {reprlib.repr(value)} is not a real number in the range of float."
        for name, value in scalars.items()
        if not _is_real(value)
    ]
    if violations:
        raise PlanError(operation, violations)
    read, arrays = epilogue.tensors_read(scalars), {}
    for name in ("a", "b", *of_mainloop, *read):
        value = arguments.get(name)
        if value is None and name in read:
            violations.append(f"{_why_read(epilogue, name, scalars)}, but {name.upper()} is missing.")
            continue
        if value is None and name in of_mainloop:
            modes = ", ".join(plan.operands.modes(name))
            violations.append(f"{name} is missing; the mainloop reads it. Pass an array of shape ({modes}).")
            continue
        try:
            arrays[name] = np.asarray(value)
        except (RuntimeError, TypeError, ValueError) as error:
            violations.append(f"{name.upper()} is a {type(value).__name__} that is not an array of numbers: {error}")
            continue
        if plan.operands.modes(name)[1] == "1" and arrays[name].ndim == 1:
            arrays[name] = arrays[name][:, None]  # one element for each group or row
        if arrays[name].dtype.kind in _NO_NUMBERS:
            violations.append(f"{name.upper()} has the type {arrays[name].dtype}, which is not a type of real numbers.")
        elif name in of_mainloop and plan.operands.matrix(name).dtype == s32:
            violations += _wrong_integers(name, arrays[name])
    if violations:
        raise PlanError(operation, violations)
    return arrays, scalars


def _wrong_integers(name: str, array: np.ndarray) -> list[str]:
    """Return a list with one error message if an element of an array is not an integer of 32 bits, else []."""
    limits = np.iinfo(np.int32)
    is_wrong = ~((array >= limits.min) & (array <= limits.max) & (np.trunc(array) == array))
    if not is_wrong.any():
        return []
    return [f"{name.upper()} has the element {array[is_wrong][0]}, which is not an integer of 32 bits. Pass integers."]


def _unread(plan: GemmPlan, name: str) -> str:
    """Return a text for an error message: why the plan's epilogue does not use alpha or beta, and what to do instead.

    name   "alpha" or "beta", an argument that the caller has passed
    """
    if name == "beta":
        return f"the plan {plan.name!r} cannot read C. Make it with_c=True."
    return f"the epilogue of the plan {plan.name!r} is {plan.epilogue}. Leave {name} out."


def seen_by_plan(
    operation: str, plan: GemmPlan, arrays: dict[str, np.ndarray], problem: Problem | None
) -> tuple[dict[str, np.ndarray], Problem]:
    """Return (arrays, problem) as the kernel multiplies them: both transposed if the plan swaps A and B.

    A plan with swap A/B computes D^T = B^T A^T, so its A is the caller's B^T.

    operation   name of the public function, for error messages
    arrays      the caller's arrays, by name
    problem     the caller's problem (extents and strides); None: the extents of the arrays, with a gap after each row
    raises      PlanError with every violated rule
    """
    check_is_problem(operation, problem)
    if not plan.swap_ab:
        return arrays, problem_of(operation, plan, arrays, problem)
    swapped = {
        name: array if plan.operands.matrix(name).modes else np.swapaxes(np.atleast_2d(array), -1, -2)
        for name, array in arrays.items()
    }
    swapped["a"], swapped["b"] = swapped["b"], swapped["a"]
    transposed = None if problem is None else problem.transposed
    return swapped, problem_of(f"{operation} of D^T = B^T A^T", plan, swapped, transposed)


def as_caller_has(plan: GemmPlan, tile: np.ndarray) -> np.ndarray:
    """Return a result matrix in the caller's orientation: transposed if the plan swaps A and B, else unchanged.

    tile   the matrix as the kernel computes it, (M, N) or (L, M, N)
    """
    return np.swapaxes(tile, -1, -2) if plan.swap_ab else tile


def _number(value: Any) -> Any:
    """Return the only element of a one-element array as a Python number; return any other value unchanged."""
    return value.item() if isinstance(value, np.ndarray) and value.size == 1 else value


def _is_real(value: Any) -> bool:
    """Return whether a value is a real number in the range of float; texts such as "1" are not."""
    try:
        return not isinstance(value, (str, bytes)) and isinstance(float(value), float)
    except (OverflowError, TypeError, ValueError):
        return False


def _is_equal(value: Any, number: float) -> bool:
    """Return whether a value, or the only element of an array, is a real number that equals `number`."""
    value = _number(value)
    return _is_real(value) and float(value) == number


def _why_read(epilogue: Epilogue, tile: str, scalars: Mapping[str, float]) -> str:
    """Return a text that says why the epilogue reads an M x N operand for these scalars, such as "beta is 1.0".

    tile      name of the operand, such as "c"
    scalars   values of the epilogue's scalars, by name
    """
    idle = [step.idle for step in epilogue.steps if tile in step.tensors and not step.is_idle(scalars)]
    why = [f"{name} is {scalars[name]}" for name, _ in idle[0]]
    return " and ".join(why) or f"the epilogue is {epilogue}"


def laid_out(
    problem: Problem, arrays: dict[str, np.ndarray], results: Sequence[str] = ("d",)
) -> dict[str, GlobalMatrix]:
    """Copy arrays to simulated global memory, with the problem's types and strides, and allocate memory for results.

    arrays    arrays of the operands, by name
    results   names of the results. Their memory is filled with poison, i.e. marked as never written
    returns   name of each operand and result -> its matrix in simulated memory. A D that rows are added to is 0
    """
    matrices = {name: GlobalMatrix(problem, name) for name in (*arrays, *results)}
    for name, array in arrays.items():
        kind = matrices[name].dtype
        seen = np.broadcast_to(_as_modes(array, name), matrices[name].extents)
        matrices[name].view(matrices[name].buffer)[...] = seen if kind is tf32 else round_to(kind, seen)
    if problem.operands.scattered:
        matrices["d"].view(matrices["d"].buffer)[...] = 0
    if problem.operands.groups:
        _divide_into_groups(problem, matrices)
    return matrices


def _divide_into_groups(problem: Problem, matrices: dict[str, GlobalMatrix]) -> None:
    """Tell each matrix with the mode that groups divide where its groups lie. Changes the matrices.

    Rows of results after the last group are not results: they must not be written.

    matrices   matrices in simulated memory, by name. `ends` has the end of each group
    """
    name = operand_of_sizes(problem.operands)
    values = matrices[name].view(matrices[name].buffer)[:, 0, 0].astype(np.int64)
    extent = getattr(problem, problem.operands.groups)
    begins, sizes = group_bounds(name, values, extent)
    for name, matrix in matrices.items():
        mode = ragged_mode(problem.operands, name)
        if mode is None:
            continue
        if name == problem.operands.gathered:  # any group may have any of its rows
            matrix.groups = GroupsOf(0, np.zeros_like(begins), np.full_like(begins, matrix.extents[0]))
            continue
        of_mainloop = name in ("a", "b", *problem.operands.of_mainloop)
        by_tma_only = of_mainloop and name not in (INDEX, D_INDEX) and not is_clipped(problem.operands, name)
        matrix.groups = GroupsOf(mode, begins, extent - begins if by_tma_only else sizes)
        is_result = np.zeros(extent, bool)
        for begin, size in zip(begins, sizes, strict=True):
            is_result[begin : begin + size] = True
        if not of_mainloop:
            matrix.view(matrix.inside)[:] = is_result[:, None, None] if mode == 0 else is_result[:, None]
        if name == D_INDEX:
            d, targets = matrices["d"], matrix.view(matrix.buffer)[is_result, 0, 0].astype(np.int64)
            across = "mn".index(problem.operands.groups)
            count = d.extents[across]
            d.groups = GroupsOf(across, np.zeros_like(begins), np.full_like(begins, count))
            times = np.bincount(targets[(targets >= 0) & (targets < count)], minlength=count)
            d.times = np.zeros(len(d.buffer), int)
            d.view(d.times)[...] = times[:, None, None] if across == 0 else times[:, None]


def _as_modes(array: np.ndarray, name: str) -> np.ndarray:
    """Return a caller's array transposed to (M, K, L), (N, K, L) or (M, N, L); an array without a batch gets L = 1.

    array   array (M, K), (K, N) or (M, N), or the same with the batch in front, e.g. (L, M, K)
    name    name of the operand: "a", "b", or one with the extents of D
    """
    stacked = array.reshape((1,) * (3 - array.ndim) + array.shape)
    return np.moveaxis(stacked, 0, 2) if name != "b" else stacked.transpose(2, 1, 0)


def problem_of(operation: str, plan: GemmPlan, arrays: dict[str, np.ndarray], problem: Problem | None) -> Problem:
    """Return the problem (extents and strides) that arrays of operands define; check that their shapes fit each other.

    operation   name of the public function, for error messages
    arrays      arrays by name, in the orientation that the kernel multiplies
    problem     problem that the arrays must have, which is then returned; None: the extents of the arrays, with a gap
                after each row
    raises      PlanError if the shapes do not fit each other or `problem`
    """
    violations = [
        f"{name.upper()} has the shape {array.shape}. Pass two modes, or three with a batch."
        for name, array in arrays.items()
        if array.ndim not in (2, 3) and not _is_broadcast(plan, name)
    ]
    if violations:
        raise PlanError(operation, violations)
    shapes = {name: _as_modes(array, name).shape for name, array in arrays.items()}
    m, k, batch = shapes["a"]
    n, gathered = shapes["b"][0], plan.operands.gathered
    sources = shapes[gathered][0] if gathered else None
    if gathered:
        m, n = (shapes[INDEX][0], n) if gathered == "a" else (m, shapes[INDEX][0])
    if plan.operands.groups:
        batch = shapes[operand_of_sizes(plan.operands)][0]
    extents = {"m": m, "n": n, "k": k, "l": batch, "1": 1}
    is_grouped = bool(plan.operands.groups)  # then one matrix may hold all groups
    batches = {name: 1 if is_grouped and not plan.operands.has_batch(name) else batch for name in shapes}
    expected = {
        name: (*[_extent(mode, extents) for mode in plan.operands.modes(name)], batches[name])
        for name in ("a", "b", *plan.operands.of_mainloop)
    }
    if gathered:
        expected[gathered] = (sources, *expected[gathered][1:])
    caller_shapes = {name: array.shape for name, array in arrays.items()}
    d_columns = n // 2 if plan.operands.gated else n
    matrices = {name: shape for name, shape in shapes.items() if not _is_broadcast(plan, name)}
    if any(shape != expected.get(name, (m, d_columns, batches[name])) for name, shape in matrices.items()):
        raise PlanError(operation, [f"the shapes {caller_shapes} do not fit D = A @ B + C."])
    violations = [
        f"{name} has the shape {caller_shapes[name]}. It is a {_kind(plan, name)}: pass {_shape(plan, name, m, n)}, or "
        "this shape for each matrix of the batch."
        for name, shape in shapes.items()
        if name not in matrices and not _fits(plan, name, shape, (m, _columns(plan, name, n), batches[name]))
    ]
    if violations:
        raise PlanError(operation, violations)
    if problem is None:
        return Problem(m, n, k, batch, plan.operands, _padded(plan, extents), sources)
    if (problem.m, problem.n, problem.k, problem.l) != (m, n, k, batch):
        raise PlanError(operation, [f"the problem is {problem}, but the arrays have the shapes {caller_shapes}."])
    if gathered and problem.extent(gathered, plan.operands.groups) != sources:
        rule = f"the problem has sources = {problem.sources}, but {gathered.upper()} has {sources} rows to gather from."
        raise PlanError(operation, [f"{rule} Pass Problem(..., sources={sources})."])
    return problem


def _extent(mode: str, extents: Mapping[str, int]) -> int:
    """Return the extent of a mode, given as a text such as "k" or "n/128", in a problem with these extents.

    mode      "m", "n" or "k"; or e.g. "n/128" for N divided by 128, rounded up
    extents   extents of the problem: {"m": M, "n": N, "k": K}
    """
    whole, _, every = mode.partition("/")
    return -(-extents[whole] // int(every or 1))


def _is_broadcast(plan: GemmPlan, name: str) -> bool:
    """Return whether an operand of the epilogue is a row, a column or a single element, not an M x N matrix.

    name   name of the operand, such as "bias"
    """
    return bool(plan.operands.matrix(name).broadcast)


def _fits(plan: GemmPlan, name: str, shape: tuple[int, ...], extents: tuple[int, int, int]) -> bool:
    """Return whether a row, column or single-element operand's array has a shape that fits a D of extents (M, N, L).

    A row must have the shape (1, N, L), a column (M, 1, L), a single element (1, 1, L). The batch extent may also be 1:
    then all matrices share the operand.

    name      name of the epilogue operand
    shape     shape of the caller's array as (M, N, L)
    extents   extents (M, N, L) of D
    """
    same = plan.operands.matrix(name).broadcast
    wanted = [1 if mode in same else extent for mode, extent in zip("mn", extents, strict=False)]
    return list(shape[:2]) == wanted and shape[2] in (1, extents[2])


def _columns(plan: GemmPlan, name: str, n: int) -> int:
    """Return the number of columns that an operand of the epilogue must have: N, or N / 2 in a gated GEMM (GLU).

    A gated D has N / 2 columns. But an operand that is applied before gate and up are combined has N, like B.

    name   name of the operand
    n      number of columns of B
    """
    return n // 2 if plan.operands.gated and not plan.operands.matrix(name).gated else n


def _kind(plan: GemmPlan, name: str) -> str:
    """Return the kind of an epilogue operand as a word for messages: "row", "column", "element" or "tile".

    A row has one value for each column of D, a column one for each row, an element a single one, a tile M x N.

    name   name of the operand
    """
    return plan.epilogue.kinds[name].__name__.lower()


def _shape(plan: GemmPlan, name: str, m: int, n: int) -> str:
    """Return the shape that the array of a row, column or single-element operand must have, as text such as "(64, 1)".

    name   name of the epilogue operand
    m, n   extents M and N of the problem
    """
    shapes = {("m",): (_columns(plan, name, n),), ("n",): (m, 1), ("m", "n"): (1,)}
    return str(shapes[plan.operands.matrix(name).broadcast])


def _padded(plan: GemmPlan, extents: dict[str, int]) -> tuple[tuple[str, int], ...]:
    """Return (name, leading stride in elements) of each matrix: a multiple of its alignment, with a gap after each row.

    The gap has the size of one aligned access. It is filled with poison, so that reads past the end of a row are found.

    extents   extents of the problem: {"m": M, "n": N, "k": K}
    """
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
