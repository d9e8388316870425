"""From a name to its plan, and from a problem to the plan with the lowest predicted time.

A name fixes the tile sizes. The rest follows from the operands: the copies of A and B from their majorness and
alignment, the width of the accesses from their types.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import Any

import cutegemm.choice.gemv.choice as gemv
import cutegemm.choice.mma_sync.choice as mma_sync
import cutegemm.choice.simt.choice as simt
import cutegemm.choice.sm90.choice as sm90
from cutegemm.choice.candidate import WITH_WGMMA, Candidate, Family, Request
from cutegemm.choice.candidate import ranked as ranked_of
from cutegemm.choice.grouped import ranked_grouped
from cutegemm.choice.names import plans as plans
from cutegemm.choice.names import recipe_named
from cutegemm.choice.recipe import Recipe
from cutegemm.choice.refusals import TooLargeError, by_reason
from cutegemm.dtypes import DType, e4m3, f32, f64
from cutegemm.errors import PlanError
from cutegemm.machine.arch import DEFAULT_ARCH
from cutegemm.machine.device import DEFAULT_DEVICE, Device
from cutegemm.plan.arguments import not_operands
from cutegemm.plan.mainloop.block_scaled import has_scales
from cutegemm.plan.memory.repack import repacked_for_wgmma
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Operand, Operands, Problem
from cutegemm.plan.rules.limits import limits
from cutegemm.tile.atoms import runs_on
from cutegemm.tile.mma_atoms import mma_sync as mma_sync_atom

CanImplement = Callable[[GemmPlan], bool]
WITH_FLOAT8 = mma_sync_atom(e4m3, 32).min_arch
# mma.sync plans start without reading tensor maps, and a second kernel adds their K splits. Next to wgmma they are
# candidates only if K is short, or if D is small with few rows or columns: on other problems none was faster (84
# problems, H200, 2026-11-24). tf32 is left to wgmma and gemv plans, which round to nearest; mma.sync truncates.
_SHORT_K, _SHORT_ELEMENTS = 96, 3 << 19  # the largest K, and elements of D
_FEW, _FEW_ELEMENTS = 64, 1 << 17  # the most rows or columns of D, and elements of D


def plan_named(name: str, operands: Operands, with_c: bool = False, arch: str = DEFAULT_ARCH) -> GemmPlan:
    """Build the plan that a name stands for, or a text that spells out the arguments of a plan builder.

    name     one of `plans()`, or a text such as "simt:block=128x128x8,warp=64x32,thread=8x8,stages=3,mma_order=n" for
             `simt_plan`, "mma_sync:block=128x128x64,stages=3" for `mma_sync_plan`,
             "mma_tma:block=256x128x64,warp=64x64" for `mma_tma_plan`, or
             "sm90:tile=128x128x64,cluster=2x1,epi_stages=4" for `sm90_plan`. "swap_ab:" before a name gives its plan
             for `operands.transposed`, as `gemm` launches it.
    with_c   whether the kernel of an `sm90_plan` must be able to read C; other kernels always can
    arch     architecture, such as "sm_90a"; its shared memory limits mma.sync plans
    raises   UnsupportedError for an unknown name; PlanError if `operands` is not an Operands, or breaks rules of the
             plan

    >>> plan_named("simt_64x64", Operands.of("f32")).cta_tile
    (64, 64, 16)
    >>> plan_named("simt:block=64x64x8,warp=32x32,thread=8x4,stages=4", Operands.of("f32")).stages
    4
    """
    wrong = not_operands(operands)
    if not isinstance(name, str):
        wrong.append(f"name = {name!r}; expected the name of a plan, as listed by `cutegemm plans`.")
    if wrong:
        raise PlanError(f"plan_named: {name!r}", wrong)
    return recipe_named(name).build(operands, with_c, arch)


def by_simt(dtype: DType) -> bool:
    """Return whether plans multiply elements of a type on CUDA cores (SIMT) instead of tensor cores: f32 and f64.

    >>> by_simt(f32), by_simt(DType.parse("tf32"))
    (True, False)
    """
    return dtype in (f32, f64)


def choose(
    operands: Operands,
    problem: Problem,
    arch: str = DEFAULT_ARCH,
    device: Device = DEFAULT_DEVICE,
    with_c: bool = False,
) -> GemmPlan:
    """Return the plan with the lowest predicted time among those that compute D itself, without swap A/B.

    `gemm` considers plans for D^T = B^T A^T too.

    SIMT plans multiply f32 and f64; wgmma multiplies the other types on sm_90a, and mma.sync on other architectures. If
    wgmma would need repack passes (copies of operands before the GEMM), mma.sync plans are candidates too. Block-scaled
    operands have Hopper plans only.

    operands   types, majorness and alignment of A, B, C and D
    device     device whose rates the time models use
    with_c     whether the epilogue reads a C
    raises     PlanError if no named plan can implement the operands on the architecture

    >>> small, large = Problem(128, 128, 512), Problem(8192, 8192, 8192)
    >>> choose(Operands.of("f32"), small).name, choose(Operands.of("f32"), large).name
    ('simt_32x64/k16', 'simt_256x128+repack')
    """
    return chosen(operands, problem, arch, device, with_c, swap_ab=False)[1]


def chosen(
    operands: Operands,
    problem: Problem,
    arch: str = DEFAULT_ARCH,
    device: Device = DEFAULT_DEVICE,
    with_c: bool = False,
    accumulate: str = "fast",
    *,
    swap_ab: bool | None = None,
    can_implement: CanImplement | None = None,
    by_threads: Operands | None = None,
) -> tuple[Recipe, GemmPlan]:
    """Return the recipe (name and arguments) of the plan with the lowest predicted time, and the plan itself.

    operands        types, majorness and alignment of A to D. For A and B, it is the alignment that counts for TMA
                    (address, strides)
    with_c          whether the epilogue reads a C
    accumulate      accumulation of fp8: "fast" in wgmma, with about 14 bits; "promoted" to f32 after each k-tile
    swap_ab         True: plans for D^T = B^T A^T only; False: plans for D only; None: both
    can_implement   further condition on a plan, such as room for an epilogue; None: no condition. If no plan meets it,
                    the fastest plan is returned nevertheless
    by_threads      `operands` with the alignments that count for loads by threads (also row length); None: as
                    `operands`
    raises          PlanError with the reasons if no plan can implement the operands or the problem

    >>> bf16 = Operands.of("bf16", layout="nt")
    >>> [str(chosen(bf16, Problem(m, 4096, 4096))[0]) for m in (16, 4096)]
    ['swap_ab:gemv_16x16', 'sm90_overlapped_2x1']
    """
    return _chosen(operands, by_threads or operands, problem, arch, device, with_c, accumulate, swap_ab, can_implement)


@lru_cache(maxsize=4096)
def _chosen(
    operands: Operands,
    by_threads: Operands,
    problem: Problem,
    arch: str,
    device: Device,
    with_c: bool,
    accumulate: str,
    swap_ab: bool | None,
    can_implement: CanImplement | None,
) -> tuple[Recipe, GemmPlan]:
    """Return (recipe, plan) of the candidate with the lowest predicted time that can be built and meets a condition.

    If none meets it, the fastest one that can be built is returned. A recipe is the name and arguments of a plan.

    operands, by_threads   types, majorness and alignment of A to D, with the alignments that count for TMA, and with
                           those that count for loads by threads
    with_c                 whether the epilogue reads a C
    accumulate             accumulation of fp8: "fast" in wgmma, with about 14 bits; "promoted" to f32 after each k-tile
    swap_ab                True: plans for D^T = B^T A^T only; False: plans for D only; None: both
    can_implement          condition on a plan; None: no condition
    raises                 PlanError if no candidate can be built
    """
    fallback: tuple[Recipe, GemmPlan] | None = None
    unsuited: list[tuple[object, str]] = []
    too_large: list[tuple[object, str]] = []
    for one in ranked(operands, problem, arch, device, accumulate, swap_ab, by_threads, with_c):
        recipe = one.recipe
        try:
            plan = built(recipe, operands, by_threads, problem, arch, device, with_c)
        except PlanError as error:
            refusals = too_large if isinstance(error, TooLargeError) else unsuited
            refusals += [(recipe, rule) for rule in error.violations]
            continue
        if can_implement is None or can_implement(plan):
            return recipe, plan
        fallback = fallback or (recipe, plan)
    if fallback is not None:
        return fallback
    # If some plans failed only because the problem is too large, that is the reason to report
    raise PlanError(f"choose: no named plan for {operands} on {arch}", by_reason(too_large or unsuited))


def built(
    recipe: Recipe,
    operands: Operands,
    by_threads: Operands,
    problem: Problem,
    arch: str = DEFAULT_ARCH,
    device: Device = DEFAULT_DEVICE,
    with_c: bool = False,
) -> GemmPlan:
    """Build the plan of a recipe (name and arguments of a plan) for a problem, with the repack passes that it needs.

    A repack pass is a kernel that copies A or B before the GEMM, because the GEMM could not load it well.

    operands     types, majorness and alignment of A to D. For A and B, it is the alignment that counts for TMA
                 (address, strides)
    by_threads   `operands` with the alignments that count for loads by threads (also row length)
    with_c       whether the epilogue reads a C
    raises       PlanError if the operands or the architecture break rules of the plan; TooLargeError if the problem's
                 extents do
    """
    is_hopper = recipe.family == "sm90"
    boxes, read = recipe.boxes(operands), by_threads
    if boxes is not None:
        repacked: dict[str, Any] = {name: _to_repack(name, operands, by_threads) for name in "ab" if name not in boxes}
        read = replace(operands, **repacked)
    plan = recipe.build(read, with_c, arch, device)
    # The SIMT builder does not know the architecture, and with repacked operands it may take more stages
    violations = () if is_hopper else _violations(recipe, read, with_c, arch, device)
    if violations:
        raise PlanError(f"plan {recipe} on {arch}", violations)
    too_large = list(limits(plan, problem.transposed if recipe.swap_ab else problem))
    if too_large:
        raise TooLargeError(f"plan {recipe} on {problem}", too_large)
    return plan


@lru_cache(maxsize=4096)
def _violations(recipe: Recipe, operands: Operands, with_c: bool, arch: str, device: Device) -> tuple[str, ...]:
    """Build a plan, and return the rules that it violates, as texts; () if it can be launched.

    recipe         name and arguments of the plan
    operands       types, majorness and alignment of A, B, C and D
    with_c         whether the epilogue reads a C
    arch, device   architecture and device to build the plan for
    """
    return tuple(recipe.build(operands, with_c, arch, device).refusals(arch))


def ranked(
    operands: Operands,
    problem: Problem,
    arch: str = DEFAULT_ARCH,
    device: Device = DEFAULT_DEVICE,
    accumulate: str = "fast",
    swap_ab: bool | None = None,
    by_threads: Operands | None = None,
    with_c: bool = False,
) -> Iterator[Candidate]:
    """Yield the candidate plans of all kernel families for a problem, in ascending order of predicted time.

    No plan is built yet. The times of a grouped problem are those of groups of random sizes; see `choice.grouped`.

    operands     types, majorness and alignment of A to D. For A and B, it is the alignment that counts for TMA
                 (address, strides)
    accumulate   accumulation of fp8: "fast" in wgmma, with about 14 bits; "promoted" to f32 after each k-tile
    swap_ab      True: plans for D^T = B^T A^T only; False: plans for D only; None: both
    by_threads   `operands` with the alignments that count for loads by threads (also row length); None: as `operands`
    with_c       whether the epilogue reads a C
    raises       PlanError if no named plan can implement the operands on the architecture

    >>> first = next(ranked(Operands.of("bf16", layout="nt"), Problem(4096, 4096, 4096)))
    >>> print(f"{first.recipe}: {first.us:.0f} us, most of it {first.bound}")
    sm90_overlapped_2x1: 186 us, most of it power
    """
    if operands.groups:
        stated = replace(problem, operands=operands)
        return ranked_grouped(stated, arch, device, accumulate, swap_ab, with_c)
    return ranked_for(Request(operands, by_threads, arch, device, accumulate, swap_ab, with_c), problem)


def ranked_for(request: Request, problem: Problem) -> Iterator[Candidate]:
    """Yield the candidate plans of all kernel families for a problem without groups, fastest first, as `ranked` does.

    request   operands, architecture and other conditions of the choice
    """
    return heapq.merge(*[ranked_of(family, problem) for family in families(request, problem)], key=lambda one: one.us)


def families(request: Request, problem: Problem) -> list[Family]:
    """Return the kernel families (SIMT, mma.sync, gemv, Hopper) whose plans are compared for a problem.

    request   operands, architecture and other conditions of the choice
    returns   may be empty if only plans with swap A/B are wanted, since only gemv and Hopper plans can swap
    raises    PlanError if no family can implement the operands on the architecture
    """
    kind, arch, is_for_d = request.operands.a.dtype, request.arch, not request.swap_ab
    if has_scales(request.operands):
        if arch != WITH_WGMMA:
            only = f"block scales are read by Hopper plans, for {WITH_WGMMA}; {arch} does not have wgmma."
            raise PlanError(f"choose: no named plan for {request.operands}", [only])
        return [sm90.family(request, problem.k)]
    if by_simt(kind):
        return [simt.family(request)] if is_for_d else []
    other = request.operands.b.dtype
    is_mixed = other != kind
    has_mma_sync = kind.is_float and not is_mixed and runs_on(WITH_FLOAT8, arch)
    if kind.bits == 8 and arch != WITH_WGMMA and not has_mma_sync:
        both = f"{kind} and {other} are" if is_mixed else f"{kind} is"
        only = f"{both} multiplied only by wgmma; {WITH_WGMMA} has it, {arch} does not have it."
        if kind.is_float and not is_mixed:
            only = (
                f"{kind} is multiplied by wgmma, which {WITH_WGMMA} has, or by mma.sync from {WITH_FLOAT8} on; {arch} "
                "has neither."
            )
        raise PlanError(f"choose: no named plan for {request.operands}", [only])
    if arch != WITH_WGMMA:
        return [mma_sync.family(request)] if is_for_d else []
    families: list[Family] = [gemv.family(request), sm90.family(request, problem.k)]
    repacks = kind.bits > 8 and repacked_for_wgmma(request.operands)
    if is_for_d and (repacks or (kind.bits == 16 and _is_small(problem))):
        with suppress(PlanError):  # other families may have plans
            families.append(mma_sync.family(request))
    return families


def _is_small(problem: Problem) -> bool:
    """Return whether a problem is so small that mma.sync plans may be faster than wgmma plans, and should be tried.

    It is small if K is short, or if D is small and has few rows or few columns.
    """
    elements = problem.m * problem.n * problem.l
    is_short = problem.k <= _SHORT_K and elements <= _SHORT_ELEMENTS
    has_few = min(problem.m, problem.n) <= _FEW and elements <= _FEW_ELEMENTS
    return problem.k > 0 and (is_short or has_few)


def _to_repack(name: str, operands: Operands, by_threads: Operands) -> Operand:
    """Return A or B with its alignment for the loads of a repack pass (a copy kernel before the GEMM).

    A and B may be aligned differently for TMA (address, strides) and for threads (also row length). A repack pass needs
    the smaller alignment.

    name         "a" or "b"
    operands     operands with the alignments that count for TMA
    by_threads   operands with the alignments that count for loads by threads
    """
    boxed, read = getattr(operands, name), getattr(by_threads, name)
    return replace(boxed, align_bytes=min(boxed.align_bytes, read.align_bytes))


def candidates(
    operands: Operands,
    problem: Problem,
    arch: str = DEFAULT_ARCH,
    device: Device = DEFAULT_DEVICE,
    accumulate: str = "fast",
) -> list[Candidate]:
    """Return all candidate plans for a problem, in ascending order of predicted time, as a list.

    operands       types, majorness and alignment of A to D
    arch, device   architecture to compile for, and device whose rates the time models use
    accumulate     accumulation of fp8: "fast" in wgmma, with about 14 bits; "promoted" to f32 after each k-tile
    """
    return list(ranked(operands, problem, arch, device, accumulate))
