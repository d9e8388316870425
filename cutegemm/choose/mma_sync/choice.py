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
    """The named plan, K split or not, that a simple model, `time.terms`, holds to be the fastest.

    suits    of a plan: whether it is one that is wanted, beside its time
    raises   PlanError where none serves the operands

    >>> from cutegemm.machine.device import device_named
    >>> small, large = Problem(256, 512, 4096), Problem(8192, 8192, 8192)
    >>> a100 = device_named("a100-80gb")
    >>> [choose_mma_sync(Operands.of("bf16"), p, "sm_80", a100).name for p in (small, large)]
    ['mma_64x64/k6', 'mma_128x256']
    """
    refusals: list[tuple[object, str]] = []
    for _, recipe in _ranked(operands, problem, arch, device, refusals):
        try:
            plan = recipe.build(operands, arch=arch, device=device)
        except PlanError as error:
            refusals += [(recipe, rule) for rule in error.violations]
            continue
        too_large = list(limits(plan, problem))
        if not too_large and (suits is None or suits(plan)):
            return plan
        refusals += [(recipe, rule) for rule in too_large]
    raise PlanError(f"choose_mma_sync: no named plan for {operands} on {arch}", by_reason(refusals))


def candidates(
    operands: Operands, problem: Problem, arch: str = DEFAULT_ARCH, device: Device = DEFAULT_DEVICE
) -> list[Candidate]:
    """What `choose_mma_sync` weighs, the plan to take first."""
    found = _ranked(operands, problem, arch, device)
    return [Candidate(recipe, of.us, of.bound) for of, recipe in found]


def _ranked(
    operands: Operands,
    problem: Problem,
    arch: str,
    device: Device,
    refusals: list[tuple[object, str]] | None = None,
) -> list[tuple[Terms, MmaSyncRecipe]]:
    """The recipes that serve, K split or not, with the model's terms: the fastest first."""
    found = []
    for recipe, plan in serving(operands, problem, arch, device, refusals):
        assert recipe.rate is not None
        for split in (None, *_splits(recipe, plan, problem, device.sms)):
            of = terms(plan, problem, recipe.rate, device, 1 if split is None else split.parts)
            found.append((of, recipe if split is None else replace(recipe, split=split)))
    return sorted(found, key=lambda one: one[0].us)


def serving(
    operands: Operands,
    problem: Problem,
    arch: str,
    device: Device,
    refusals: list[tuple[object, str]] | None = None,
) -> Iterator[tuple[MmaSyncRecipe, GemmPlan]]:
    """The recipes whose plans serve the operands and the problem, with these plans.

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
        too_large = list(limits(plan, problem))
        if too_large:
            refused += [(recipe, rule) for rule in too_large]
        else:
            yield recipe, plan


def _splits(recipe: MmaSyncRecipe, plan: GemmPlan, problem: Problem, sms: int) -> Iterator[Split]:
    """Splits of K, as far as they may gain: no more parts than the multiprocessors hold at a time."""
    if not recipe.splits:
        return
    m_tiles, n_tiles, batch = plan.grid(problem)
    tiles, k_tiles = max(1, m_tiles * n_tiles * batch), plan.k_tiles(problem)
    full = min(sms * plan.ctas_per_sm // tiles, k_tiles, _MOST_PARTS)
    for parts in sorted({full, *_SPLITS} - {0, 1}):
        if parts <= full:
            yield Split(parts)
