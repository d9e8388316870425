"""From a name to its plan, and from a problem to the plan that a model holds to be the fastest.

A name stands for tile sizes; what else the plan is follows from the operands: how a tile is loaded from their
majorness and alignment, how wide the accesses are from their types.
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
from cutegemm.choice.candidate import Candidate, Family, Request
from cutegemm.choice.candidate import ranked as ranked_of
from cutegemm.choice.names import plans as plans
from cutegemm.choice.names import recipe_named
from cutegemm.choice.recipe import Recipe
from cutegemm.choice.refusals import TooLargeError, by_reason
from cutegemm.dtypes import DType, e4m3, f32, f64
from cutegemm.errors import PlanError
from cutegemm.machine.arch import DEFAULT_ARCH
from cutegemm.machine.device import DEFAULT_DEVICE, Device
from cutegemm.plan.arguments import not_operands
from cutegemm.plan.memory.repack import repacked_for_wgmma
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Operand, Operands, Problem
from cutegemm.plan.rules.limits import limits
from cutegemm.tile.atoms import runs_on
from cutegemm.tile.mma_atoms import mma_sync as mma_sync_atom

CanImplement = Callable[[GemmPlan], bool]
WITH_WGMMA = "sm_90a"
WITH_FLOAT8 = mma_sync_atom(e4m3, 32).min_arch
# Plans of mma.sync have no descriptors to read first, and a kernel of their own adds the parts of K. So they are
# considered beside those of wgmma where K is short, or where D is small and has few rows or columns: elsewhere none was
# faster (84 problems on one H200, 2026-11-24). tf32 is left to wgmma and to plans that stream A: TMA and those round it
# to nearest, mma.sync cuts it off.
_SHORT_K, _SHORT_ELEMENTS = 96, 3 << 19
_FEW, _FEW_ELEMENTS = 64, 1 << 17


def plan_named(name: str, operands: Operands, with_c: bool = False, arch: str = DEFAULT_ARCH) -> GemmPlan:
    """The plan of a name, or of a text that spells out the arguments of a builder.

    name     one of `plans()`, "simt:block=128x128x8,warp=64x32,thread=8x8,stages=3,mma_order=n" for
             `simt_plan`, "mma_sync:block=128x128x64,stages=3" for `mma_sync_plan`,
             "mma_tma:block=256x128x64,warp=64x64" for `mma_tma_plan`, or
             "sm90:tile=128x128x64,cluster=2x1,epi_stages=4" for `sm90_plan`. After "swap_ab:" the plan of
             the rest for `operands.transposed`, as `gemm` then calls it. See `choose.names`
    with_c   whether the kernel of an `sm90_plan` must be able to read C; the others always are
    arch     whose shared memory mma.sync plans fill
    raises   UnsupportedError for another name; PlanError where the operands break the plan's rules, or are none

    >>> plan_named("simt_64x64", Operands.of("f32")).cta_tile
    (64, 64, 16)
    >>> plan_named("simt:block=64x64x8,warp=32x32,thread=8x4,stages=4", Operands.of("f32")).stages
    4
    """
    wrong = not_operands(operands)
    if not isinstance(name, str):
        wrong.append(f"name = {name!r}; the name of a plan is expected, as `cutegemm plans` lists them.")
    if wrong:
        raise PlanError(f"plan_named: {name!r}", wrong)
    return recipe_named(name).build(operands, with_c, arch)


def by_simt(dtype: DType) -> bool:
    """Whether elements are multiplied by SIMT plans, and not by tensor cores.

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
    """The named plan for D that a model holds to be the fastest; `gemm` considers those for D^T as well.

    f32 and f64 are multiplied by SIMT plans, other types by wgmma on sm_90a and by mma.sync elsewhere. Operands that
    would have to be packed for wgmma are where that pays; else they are multiplied by mma.sync.

    device   whose rates the model takes
    raises   PlanError where no named plan serves the operands on the architecture

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
    """The recipe to take, and the plan that it builds: for D^T = B^T A^T where the recipe is transposed.

    operands        as TMA loads A and B
    accumulate      of fp8: see `sm90.ranked`
    swap_ab         whether the plan is to be for D^T, or for D; whichever is faster where left out
    can_implement   of a plan: whether it is what is wanted, beside its time; one that is not is taken where none is
    by_threads      the operands as threads load them, where that is another alignment
    raises          PlanError where nothing serves, with the reasons

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
    """The first candidate that can be built for the problem, and that suits; the first that can, where none suits."""
    second: tuple[Recipe, GemmPlan] | None = None
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
        second = second or (recipe, plan)
    if second is not None:
        return second
    # A problem that is too large for plans of its operands is so whatever the other plans cannot do
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
    """The plan of a candidate.

    operands, by_threads   see `chosen`: some are read by boxes of TMA, the others by threads
    raises                 PlanError where the operands or the architecture break its rules, TooLargeError where the
                           problem does
    """
    is_hopper = recipe.family == "sm90"
    boxes, read = recipe.boxes(operands), by_threads
    if boxes is not None:
        packed: dict[str, Any] = {name: _packed(name, operands, by_threads) for name in "ab" if name not in boxes}
        read = replace(operands, **packed)
    plan = recipe.build(read, with_c, arch, device)
    # Whose builder knows no architecture: what is packed comes by cp.async alone, so that there may be more stages
    violations = () if is_hopper else _violations(recipe, read, with_c, arch, device)
    if violations:
        raise PlanError(f"plan {recipe} on {arch}", violations)
    beyond = list(limits(plan, problem.transposed if recipe.swap_ab else problem))
    if beyond:
        raise TooLargeError(f"plan {recipe} on {problem}", beyond)
    return plan


@lru_cache(maxsize=4096)
def _violations(recipe: Recipe, operands: Operands, with_c: bool, arch: str, device: Device) -> tuple[str, ...]:
    """The rules that the plan of a recipe breaks on an architecture."""
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
    """Return the candidates of all families that serve the operands, the one with the lowest predicted time first.

    None is built yet.

    operands, by_threads   see `chosen`
    with_c                 whether a tile of C is read for each tile of D
    raises                 PlanError if no named plan serves the operands on the architecture

    >>> first = next(ranked(Operands.of("bf16", layout="nt"), Problem(4096, 4096, 4096)))
    >>> print(f"{first.recipe}: {first.us:.0f} us, most of it {first.bound}")
    sm90_overlapped_2x1: 186 us, most of it power
    """
    request = Request(operands, by_threads, arch, device, accumulate, swap_ab, with_c)
    return heapq.merge(*[ranked_of(family, problem) for family in _families(request, problem)], key=lambda one: one.us)


def _families(request: Request, problem: Problem) -> list[Family]:
    """Return the families among whose plans there is a choice.

    raises   PlanError if none serves the operands on the architecture
    """
    kind, arch, is_for_d = request.operands.a.dtype, request.arch, not request.swap_ab
    if by_simt(kind):
        return [simt.family(request)] if is_for_d else []
    other = request.operands.b.dtype
    is_mixed = other != kind
    has_mma_sync = kind.is_float and not is_mixed and runs_on(WITH_FLOAT8, arch)
    if kind.bits == 8 and arch != WITH_WGMMA and not has_mma_sync:
        both = f"{kind} and {other} are" if is_mixed else f"{kind} is"
        only = f"{both} multiplied by wgmma alone; {WITH_WGMMA} has it and {arch} does not."
        if kind.is_float and not is_mixed:
            only = (
                f"{kind} is multiplied by wgmma, which {WITH_WGMMA} has, or by mma.sync from {WITH_FLOAT8} on; {arch} "
                "has neither."
            )
        raise PlanError(f"choose: no named plan for {request.operands}", [only])
    if arch != WITH_WGMMA:
        return [mma_sync.family(request)] if is_for_d else []
    found: list[Family] = [gemv.family(request), sm90.family(request, problem.k)]
    repacks = kind.bits > 8 and repacked_for_wgmma(request.operands)
    if is_for_d and (repacks or (kind.bits == 16 and _is_small(problem))):
        with suppress(PlanError):  # others may serve
            found.append(mma_sync.family(request))
    return found


def _is_small(problem: Problem) -> bool:
    """Whether threads may have loaded A and B, of 16 bits, before TMA has, or more of them at a time."""
    elements = problem.m * problem.n * problem.l
    is_short = problem.k <= _SHORT_K and elements <= _SHORT_ELEMENTS
    has_few = min(problem.m, problem.n) <= _FEW and elements <= _FEW_ELEMENTS
    return problem.k > 0 and (is_short or has_few)


def _packed(name: str, operands: Operands, by_threads: Operands) -> Operand:
    """An operand that threads load to pack it: as little aligned as TMA would find it."""
    boxed, read = getattr(operands, name), getattr(by_threads, name)
    return replace(boxed, align_bytes=min(boxed.align_bytes, read.align_bytes))


def candidates(
    operands: Operands,
    problem: Problem,
    arch: str = DEFAULT_ARCH,
    device: Device = DEFAULT_DEVICE,
    accumulate: str = "fast",
) -> list[Candidate]:
    """`ranked`, all of them."""
    return list(ranked(operands, problem, arch, device, accumulate))
