"""The choice among the named mma.sync plans, by the cost of the busiest multiprocessor: see `mma_sync.time`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from cutegemm.choose.candidate import Candidate
from cutegemm.choose.mma_sync.named import MMA_SYNC_FED, MMA_SYNC_PLANS
from cutegemm.choose.mma_sync.recipe import MmaSyncRecipe
from cutegemm.choose.mma_sync.time import START_STEPS, busiest_cost, predicted_us
from cutegemm.choose.refusals import by_reason
from cutegemm.errors import PlanError
from cutegemm.machine.arch import DEFAULT_ARCH
from cutegemm.machine.device import DEFAULT_DEVICE, Device
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Operands, Problem
from cutegemm.plan.rules.limits import limits


def choose_mma_sync(
    operands: Operands,
    problem: Problem,
    arch: str = DEFAULT_ARCH,
    device: Device = DEFAULT_DEVICE,
    suits: Callable[[GemmPlan], bool] | None = None,
) -> GemmPlan:
    """The named plan that a simple model, `busiest_cost`, holds to be the fastest.

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
    return min(served, key=lambda one: _cost(one[0], one[1], problem, device))[1]


def candidates(
    operands: Operands, problem: Problem, arch: str = DEFAULT_ARCH, device: Device = DEFAULT_DEVICE
) -> list[Candidate]:
    """What `choose_mma_sync` weighs, the plan to take first. The model knows of products alone."""
    found = [
        Candidate(recipe, predicted_us(plan, problem, recipe.rate, device), "tensor cores")
        for recipe, plan in serving(operands, problem, arch, device)
        if recipe.rate is not None
    ]
    return sorted(found, key=lambda one: one.us)


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


def _cost(recipe: MmaSyncRecipe, plan: GemmPlan, problem: Problem, device: Device) -> float:
    assert recipe.rate is not None
    return busiest_cost(plan, problem, recipe.rate, device.sms, START_STEPS)
