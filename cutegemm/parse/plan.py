"""What a person types of a GEMM, made into a plan and a problem: a name, a type, letters, extents."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace

from cutegemm.build.building import Complaints, made
from cutegemm.choose.names import recipe_named
from cutegemm.choose.recipe import Recipe
from cutegemm.dtypes import DType, bf16, e4m3, e5m2, f32, s8, s32, tf32
from cutegemm.errors import CutegemmError, PlanError
from cutegemm.layout.inttuple import shown
from cutegemm.machine.arch import DEFAULT_ARCH, arch_named
from cutegemm.parse.epilogue import ParsedEpilogue
from cutegemm.plan import GemmPlan, Operands, Problem
from cutegemm.plan.rules.limits import MOST_EXTENT

# The type of D where none is asked for and it is not that of A.
_MOST_DIGITS = 1000  # that are read before the size of an extent is checked
_RESULTS = {e4m3: bf16, e5m2: bf16, s8: s32}


def dtype_of(text: str | None, plan: str | None) -> DType:
    """The element type that is asked for; where none is, f32, or bf16 for a plan of wgmma, which takes f32 as tf32.

    >>> dtype_of(None, "simt_64x64"), dtype_of(None, "sm90_pingpong"), dtype_of("f16", None)
    (f32, bf16, f16)
    """
    if text is not None:
        return DType.parse(text)
    with suppress(CutegemmError):  # a name that there is not is told of elsewhere
        if plan is not None and recipe_named(plan).family == "sm90":
            return bf16
    return f32


def operands_for(dtype: DType, layout: str, out: DType | None = None) -> Operands:
    """Operands of one type, with D of the type that `cutegemm.gemm` gives it where none is asked for.

    >>> operands_for(DType.parse("e4m3"), "nt").d.dtype, operands_for(DType.parse("s8"), "nt").d.dtype
    (bf16, s32)
    """
    return Operands.of(dtype, layout=layout, out=out or _RESULTS.get(dtype))


def as_multiplied(problem: Problem, plan: GemmPlan) -> Problem:
    """The problem with its operands as the plan takes them: f32 in memory may be multiplied as tf32."""
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
    """The plan of a name, and the problem that a text MxNxK or MxNxKxL says, for operands fitted to it.

    ending   what becomes of the sums, where it is said
    raises   PlanError with all that is wrong with the texts
    """
    complaints = Complaints(operation)
    kind = complaints.attempt(lambda: dtype_of(dtype, name))
    operands = complaints.attempt(lambda: operands_for(kind or f32, layout))
    extents = None if problem is None else complaints.attempt(lambda: _extents(operation, problem))
    complaints.attempt(lambda: arch_named(arch))
    if complaints.broken:
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
    of = Problem(m, n, k, batch[0] if batch else 1, operands)
    return plan, as_multiplied(of.transposed if recipe.transposed else of, plan)


def _ended(recipe: Recipe, operands: Operands, arch: str, ending: ParsedEpilogue | None) -> GemmPlan:
    """The plan of a recipe, which ends as is said."""
    if ending is None:
        return recipe.build(operands, arch=arch)
    plan = recipe.build(ending.made_for(operands), ending.reads_tiles, arch)
    return ending.on(plan, recipe.transposed)


def _extents(operation: str, text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"\d+x\d+x\d+(x\d+)?", text.strip()):
        raise PlanError(
            operation, [f"--problem {shown(text)} is not MxNxK or MxNxKxL, such as 4096x4096x4096."]
        )
    digits = text.strip().split("x")
    if max(map(len, digits)) > _MOST_DIGITS or max(map(int, digits)) > MOST_EXTENT:
        raise PlanError(
            operation, [f"--problem {shown(text)} has an extent above {MOST_EXTENT}, the largest allowed."]
        )
    return tuple(map(int, digits))
