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
from cutegemm.parse.groups import Groups
from cutegemm.plan import GemmPlan, Operands, Problem
from cutegemm.plan.mainloop.block_scaled import BLOCKS, GRANULARITIES, ROWS, with_scales
from cutegemm.plan.memory.groups import ENDS
from cutegemm.plan.rules.limits import MOST_EXTENT

# type of A -> type of D, if D has another type by default
_MOST_DIGITS = 1000  # longest extent that is converted to an integer
_SCALES = 4  # scales of rows in 16 bytes
_RESULTS = {e4m3: bf16, e5m2: bf16, s8: s32}


def dtype_of(text: str | None, plan: str | None) -> DType:
    """Return the element type of A and B from a command's option, or the default type for a kernel plan.

    text     option --dtype; None if it is absent
    plan     name of the plan, or None. Without the option, wgmma plans (sm90_...) get bf16, and all others f32. An
             unknown name is not an error here: the caller reports it
    raises   UnsupportedError for a text that is not a type

    >>> dtype_of(None, "simt_64x64"), dtype_of(None, "sm90_pingpong"), dtype_of("f16", None)
    (f32, bf16, f16)
    """
    if text is not None:
        return DType.parse(text)
    with suppress(CutegemmError):  # the caller reports an unknown name
        if plan is not None and recipe_named(plan).family == "sm90":
            return bf16
    return f32


def operands_for(dtype: DType, layout: str, out: DType | None = None, scales: str | None = None) -> Operands:
    """Return the descriptions (type, layout, alignment) of A, B, C and D of a GEMM whose A and B have one element type.

    dtype    element type of A and B
    layout   two letters for A and B: n or t (transposed), as in BLAS, e.g. "nt"
    out      element type of D; None for the one that `cutegemm.gemm` chooses: bf16 for float8, s32 for s8, else `dtype`
    scales   granularity of the block scales of A and B, such as "1x128,128x128"; None without block scales
    raises   PlanError if the text is not two granularities, or if the type has no block scales

    >>> operands_for(DType.parse("e4m3"), "nt").d.dtype, operands_for(DType.parse("s8"), "nt").d.dtype
    (bf16, s32)
    """
    operands = Operands.of(dtype, layout=layout, out=out or _RESULTS.get(dtype))
    if scales is None:
        return operands
    pair = tuple(scales.split(","))
    wrong = []
    if len(pair) != len("ab") or any(each not in GRANULARITIES for each in pair):
        known = " or ".join(GRANULARITIES)
        wrong.append(f"--scales {scales} is not two of {known}, for A and for B. Write --scales {ROWS},{BLOCKS}.")
    if dtype not in (e4m3, e5m2):
        wrong.append(f"--scales belong to float8, but A and B are {dtype}. Give --dtype e4m3.")
    if wrong:
        raise PlanError("operands", wrong)
    return with_scales(operands, (pair[0], pair[1]))


def scales_text(operands: Operands) -> str:
    """Return the granularity of block scales as the option --scales takes it, e.g. "1x128,128x128".

    operands   as the user states them, before A and B are swapped; without block scales the result is ""

    >>> scales_text(operands_for(e4m3, "nt", scales="1x128,128x128"))
    '1x128,128x128'
    """
    modes = [operands.modes(name)[0] for name in operands.of_mainloop if name != ENDS]
    return ",".join([BLOCKS if "/" in mode else ROWS for mode in modes])


def problem_of(m: int, n: int, k: int, batch: int, operands: Operands) -> Problem:
    """Return the GEMM problem of size m x n x k with compact matrices.

    Compact means without gaps between rows or columns. Only block scales with one value per row are padded, to a
    multiple of 4 values, because TMA needs strides of 16 bytes.

    batch      number of matrices (1 without batches)
    operands   types and layouts of A, B, C and D

    >>> problem_of(150, 200, 300, 1, operands_for(e4m3, "nt", scales="1x128,128x128")).ld
    (('scale_a', 152),)
    """
    extents = {"m": m, "n": n}
    ld = [
        (name, -(-max(1, extents[mode]) // _SCALES) * _SCALES)
        for name in operands.of_mainloop
        for mode in operands.modes(name)[:1]
        if mode in extents
    ]
    return Problem(m, n, k, batch, operands, tuple(ld))


def as_multiplied(problem: Problem, plan: GemmPlan) -> Problem:
    """Return a GEMM problem with the types of A and B replaced by those that a plan's MMAs multiply.

    The types change only for tf32 plans, which take f32 matrices and multiply tf32.

    problem   extents and operand types as the user stated them
    plan      the plan that computes the problem
    """
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
    scales: str | None = None,
    groups: Groups | None = None,
) -> tuple[GemmPlan, Problem | None]:
    """Build the plan that command-line options name, and the problem that they state.

    The alignment of the operands follows from the problem's extents.

    operation   name of the command, for messages
    name        name of the plan, e.g. sm90_pingpong
    dtype       option --dtype; None if it is absent
    layout      two letters for A and B: n or t (transposed), as in BLAS
    problem     extents as text, MxNxK or MxNxKxL; None if absent, and then the returned problem is None
    arch        architecture, such as sm_90a
    ending      epilogue; None for alpha * acc + beta * c
    scales      option --scales; None if it is absent
    groups      groups of a grouped GEMM; None for other GEMMs
    raises      PlanError with every fault of the texts
    """
    complaints = Complaints(operation)
    if groups is not None and (scales is not None or ending is not None):
        complaints.violations.append("--groups excludes --scales and --epilogue.")
    kind = complaints.attempt(lambda: dtype_of(dtype, name))
    operands = complaints.attempt(lambda: operands_for(kind or f32, layout, scales=scales))
    extents = None if problem is None else complaints.attempt(lambda: _extents(operation, problem))
    complaints.attempt(lambda: arch_named(arch))
    if complaints.violations:
        complaints.attempt(lambda: recipe_named(name))
    complaints.check()
    operands, recipe = made(operands), recipe_named(name)
    if groups is not None:
        operands = groups.of(operands)
    if extents is None:
        return _ended(recipe, operands, arch, ending), None
    m, n, k, *batch = extents
    if groups is None:
        operands = replace(operands, batched=bool(batch))
    elif batch:
        raise PlanError(operation, [f"--problem {problem} has a batch, which --groups excludes. Write MxNxK."])
    else:
        batch = [groups.count]
    operands = operands.fitted(m, n, k)
    plan = _ended(recipe, operands, arch, ending)
    if ending is not None:
        operands = ending.ends(operands)
    gemm = problem_of(m, n, k, batch[0] if batch else 1, operands)
    return plan, as_multiplied(gemm.transposed if recipe.swap_ab else gemm, plan)


def _ended(recipe: Recipe, operands: Operands, arch: str, ending: ParsedEpilogue | None) -> GemmPlan:
    """Build a kernel plan from a named set of build options (a recipe), for some operands and an epilogue.

    recipe     the options, e.g. those that the plan name "sm90_pingpong" stands for
    operands   types, layouts and alignments of A, B, C and D
    arch       architecture of the plan, such as "sm_90a"
    ending     the epilogue; None for the linear one, alpha * acc + beta * c
    """
    if ending is None:
        return recipe.build(operands, arch=arch)
    plan = recipe.build(ending.made_for(operands), ending.reads_tiles, arch)
    return ending.on(plan, recipe.swap_ab)


def _extents(operation: str, text: str) -> tuple[int, ...]:
    """Parse a problem size such as "4096x4096x512" as integers (M, N, K), or (M, N, K, L) for L batches.

    operation   name of the command, for messages
    raises      PlanError for another form, or for an extent that is too large
    """
    if not re.fullmatch(r"\d+x\d+x\d+(x\d+)?", text.strip()):
        raise PlanError(operation, [f"--problem {shown(text)} is not MxNxK or MxNxKxL, such as 4096x4096x4096."])
    digits = text.strip().split("x")
    if max(map(len, digits)) > _MOST_DIGITS or max(map(int, digits)) > MOST_EXTENT:
        raise PlanError(operation, [f"--problem {shown(text)} has an extent above {MOST_EXTENT}, the largest allowed."])
    return tuple(map(int, digits))
