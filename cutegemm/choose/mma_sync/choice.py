"""The choice among the named mma.sync plans, by the time that `mma_sync.time` predicts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from cutegemm.choose.candidate import Candidate
from cutegemm.choose.mma_sync.named import MMA_SYNC_FED, MMA_SYNC_PLANS
from cutegemm.choose.mma_sync.recipe import MmaSyncRecipe
from cutegemm.choose.mma_sync.time import Terms, terms
from cutegemm.choose.refusals import by_reason
from cutegemm.errors import PlanError
from cutegemm.machine.arch import DEFAULT_ARCH
from cutegemm.machine.device import DEFAULT_DEVICE, Device
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Operands, Problem
from cutegemm.plan.rules.limits import limits
from cutegemm.plan.work.split import Split

_SPLITS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_MOST_PARTS = 128  # which a thread adds one after the other


def choose_mma_sync(
    operands: Operands,
    problem: Problem,
    arch: str = DEFAULT_ARCH,
    device: Device = DEFAULT_DEVICE,
    suits: Callable[[GemmPlan], bool] | None = None,
) -> GemmPlan:
    """The named plan, K split or not, that a simple model, `predicted_us`, holds to be the fastest.

    suits    of a plan: whether it is one that is wanted, beside its time
    raises   PlanError where none serves the operands

    >>> from cutegemm.machine.device import device_named
    >>> small, large = Problem(256, 512, 4096), Problem(8192, 8192, 8192)
    >>> a100 = device_named("a100-80gb")
    >>> [choose_mma_sync(Operands.of("bf16"), p, "sm_80", a100).name for p in (small, large)]
    ['mma_32x64', 'mma_128x256']
    """
    refusals: list[tuple[object, str]] = []
    served = [
        one for one in serving(operands, problem, arch, device, refusals) if suits is None or suits(one[1])
    ]
    if not served:
        raise PlanError(f"choose_mma_sync: no named plan for {operands} on {arch}", by_reason(refusals))
    return min(served, key=lambda one: _terms(*one, problem, device).us)[1]


def candidates(
    operands: Operands, problem: Problem, arch: str = DEFAULT_ARCH, device: Device = DEFAULT_DEVICE
) -> list[Candidate]:
    """What `choose_mma_sync` weighs, the plan to take first."""
    found = []
    for recipe, plan in serving(operands, problem, arch, device):
        of = _terms(recipe, plan, problem, device)
        found.append(Candidate(recipe, of.us, of.bound))
    return sorted(found, key=lambda one: one.us)


def serving(
    operands: Operands,
    problem: Problem,
    arch: str,
    device: Device,
    refusals: list[tuple[object, str]] | None = None,
) -> Iterator[tuple[MmaSyncRecipe, GemmPlan]]:
    """The recipes whose plans serve the operands and the problem, K split or not, with these plans.

    refusals   is told why others do not
    """
    refused = [] if refusals is None else refusals
    fed = MMA_SYNC_FED if arch.startswith("sm_90") else ()
    for recipe in (*MMA_SYNC_PLANS, *fed):
        if recipe.rate is None:
            continue
        try:
            plan = recipe.build(operands, arch=arch, device=device)
        except PlanError as error:
            refused += [(recipe, rule) for rule in error.violations]
            continue
        for one in _variants(recipe, plan, problem, device.sms):
            made = plan if one is recipe else one.build(operands, arch=arch, device=device)
            too_large = list(limits(made, problem))
            if too_large:
                refused += [(one, rule) for rule in too_large]
            else:
                yield one, made


def _variants(recipe: MmaSyncRecipe, plan: GemmPlan, problem: Problem, sms: int) -> Iterator[MmaSyncRecipe]:
    """The recipe as it is, and with K split as far as that may gain."""
    yield recipe
    if not recipe.splits:
        return
    m_tiles, n_tiles, batch = plan.grid(problem)
    tiles, k_tiles = max(1, m_tiles * n_tiles * batch), plan.k_tiles(problem)
    full = min(sms * plan.ctas_per_sm // tiles, _MOST_PARTS)
    for parts in sorted({full, k_tiles, *_SPLITS} - {0, 1}):
        if parts <= min(full, k_tiles):
            yield replace(recipe, split=Split(parts))


def _terms(recipe: MmaSyncRecipe, plan: GemmPlan, problem: Problem, device: Device) -> Terms:
    assert recipe.rate is not None
    return terms(plan, problem, recipe.rate, device)
