"""Parser of plan names, element types, layouts and extents as users type them."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace

from cutegemm.build.building import Complaints, made
from cutegemm.choice.names import recipe_named
from cutegemm.choice.recipe import Recipe
from cutegemm.dtypes import DType, bf16, e4m3, e5m2, f32, s8, s32, tf32
from cutegemm.errors import CutegemmError, PlanError
from cutegemm.layout.inttuple import shown
from cutegemm.machine.arch import DEFAULT_ARCH, arch_named
from cutegemm.parse.epilogue import ParsedEpilogue
from cutegemm.plan import GemmPlan, Operands, Problem
from cutegemm.plan.rules.limits import MOST_EXTENT

# type of A -> type of D, if D has another type by default
_MOST_DIGITS = 1000  # longest extent that is converted to an integer
_RESULTS = {e4m3: bf16, e5m2: bf16, s8: s32}


def dtype_of(text: str | None, plan: str | None) -> DType:
    """Return the element type of A and B from a command's option, or the default type for a plan.

    text      option --dtype; None if it is absent
    plan      name of the plan, or None
    returns   the type of the option; without it bf16 for a plan of wgmma, which multiplies f32 as tf32, else
              f32. The caller reports unknown plan names
    raises    UnsupportedError for a text that is not a type

    >>> dtype_of(None, "simt_64x64"), dtype_of(None, "sm90_pingpong"), dtype_of("f16", None)
    (f32, bf16, f16)
    """
    if text is not None:
        return DType.parse(text)
    with suppress(CutegemmError):  # the caller reports an unknown name
        if plan is not None and recipe_named(plan).family == "sm90":
            return bf16
    return f32


def operands_for(dtype: DType, layout: str, out: DType | None = None) -> Operands:
    """Return the operands of a GEMM whose A and B have one type.

    dtype    element type of A and B
    layout   two letters n or t, for A and B
    out      element type of D; None for the one that `cutegemm.gemm` chooses: bf16 for float8, s32 for s8, else `dtype`

    >>> operands_for(DType.parse("e4m3"), "nt").d.dtype, operands_for(DType.parse("s8"), "nt").d.dtype
    (bf16, s32)
    """
    return Operands.of(dtype, layout=layout, out=out or _RESULTS.get(dtype))


def as_multiplied(problem: Problem, plan: GemmPlan) -> Problem:
    """Return the problem with the operand types of a plan's MMAs: some plans multiply f32 in memory as tf32."""
    if plan.operands.a.dtype is not tf32:
        return problem
    return replace(problem, operands=problem.operands.as_tf32)


def described(
    operation: str,
    name: str,
    dtype: str | None,
    layout: str,
    problem: str | None,
    arch: str = DEFAULT_ARCH,
    ending: ParsedEpilogue | None = None,
) -> tuple[GemmPlan, Problem | None]:
    """Return the plan with a given name, and the problem of a text MxNxK or MxNxKxL, or None without a text.

    The operands have the alignment that the problem gives them.

    operation   name of the command, for messages
    name        name of the plan, as the catalog lists it
    dtype       option --dtype; None if it is absent
    layout      two letters n or t, for A and B
    problem     text of the extents; None if it is absent
    arch        architecture, such as sm_90a
    ending      epilogue; None for the linear one
    raises      PlanError with every fault of the texts
    """
    complaints = Complaints(operation)
    kind = complaints.attempt(lambda: dtype_of(dtype, name))
    operands = complaints.attempt(lambda: operands_for(kind or f32, layout))
    extents = None if problem is None else complaints.attempt(lambda: _extents(operation, problem))
    complaints.attempt(lambda: arch_named(arch))
    if complaints.violations:
        complaints.attempt(lambda: recipe_named(name))
    complaints.check()
    operands, recipe = made(operands), recipe_named(name)
    if extents is None:
        return _ended(recipe, operands, arch, ending), None
    m, n, k, *batch = extents
    operands = replace(operands, batched=bool(batch)).fitted(m, n, k)
    plan = _ended(recipe, operands, arch, ending)
    if ending is not None:
        operands = ending.ends(operands)
    gemm = Problem(m, n, k, batch[0] if batch else 1, operands)
    return plan, as_multiplied(gemm.transposed if recipe.swap_ab else gemm, plan)


def _ended(recipe: Recipe, operands: Operands, arch: str, ending: ParsedEpilogue | None) -> GemmPlan:
    """Build the plan of a recipe (a named plan whose operand types are not known yet), with an epilogue.

    ending   the epilogue; None for the linear one, alpha * acc + beta * c
    """
    if ending is None:
        return recipe.build(operands, arch=arch)
    plan = recipe.build(ending.made_for(operands), ending.reads_tiles, arch)
    return ending.on(plan, recipe.swap_ab)


def _extents(operation: str, text: str) -> tuple[int, ...]:
    """Parse a problem size MxNxK or MxNxKxL, and return it as integers (M, N, K) or (M, N, K, L).

    operation   name of the command, for messages
    raises      PlanError for another form, or for an extent that is too large
    """
    if not re.fullmatch(r"\d+x\d+x\d+(x\d+)?", text.strip()):
        raise PlanError(operation, [f"--problem {shown(text)} is not MxNxK or MxNxKxL, such as 4096x4096x4096."])
    digits = text.strip().split("x")
    if max(map(len, digits)) > _MOST_DIGITS or max(map(int, digits)) > MOST_EXTENT:
        raise PlanError(operation, [f"--problem {shown(text)} has an extent above {MOST_EXTENT}, the largest allowed."])
    return tuple(map(int, digits))
