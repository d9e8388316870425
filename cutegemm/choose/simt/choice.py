"""The choice among the named SIMT plans, by the time that `simt.time` predicts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

from cutegemm.choose.candidate import Candidate
from cutegemm.choose.refusals import by_reason
from cutegemm.choose.simt.named import SIMT_PLANS
from cutegemm.choose.simt.recipe import SimtRecipe
from cutegemm.choose.simt.time import bound, seconds
from cutegemm.errors import PlanError
from cutegemm.machine.arch import DEFAULT_ARCH
from cutegemm.machine.device import DEFAULT_DEVICE, Device
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Operands, Problem
from cutegemm.plan.work.split import Split

_SPLITS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_LEAST_K = 256  # of a part
_FEW = 2  # grids of tiles: beyond that evenly divided k-tiles bring little, and have not been timed
_EVENLY = Split(waves=1)


def ranked(
    operands: Operands,
    problem: Problem,
    arch: str = DEFAULT_ARCH,
    device: Device = DEFAULT_DEVICE,
    within: float = 1e9,
) -> list[SimtRecipe]:
    """The plans that serve, that which `seconds` holds to be the fastest first.

    within   times its time
    raises   PlanError where none does
    """
    found: list[tuple[float, str, SimtRecipe]] = []
    refusals: list[tuple[object, str]] = []
    for recipe in SIMT_PLANS:
        plan, refused = _if_it_serves(recipe, operands, arch)
        if plan is None:
            refusals += [(recipe, rule) for rule in refused]
            continue
        for one in _variants(recipe, plan, operands, problem, device.sms):
            found.append((seconds(one, operands, problem, device), str(one), one))
    if not found:
        raise PlanError(f"choose: no named plan for {operands} on {arch}", by_reason(refusals))
    found.sort(key=lambda one: one[:2])
    return [recipe for time, _, recipe in found if time <= within * found[0][0]]


def candidates(
    operands: Operands, problem: Problem, arch: str = DEFAULT_ARCH, device: Device = DEFAULT_DEVICE
) -> list[Candidate]:
    """What `choose` weighs, the plan to take first.

    raises   PlanError where no named plan serves the operands
    """
    return [
        Candidate(
            recipe,
            seconds(recipe, operands, problem, device) * 1e6,
            bound(recipe, operands, problem, device),
        )
        for recipe in ranked(operands, problem, arch, device)
    ]


def _variants(
    recipe: SimtRecipe, plan: GemmPlan, operands: Operands, problem: Problem, sms: int
) -> Iterator[SimtRecipe]:
    """The recipe as it is and with K split, as far as that may gain, with operands packed and without."""
    m_tiles, n_tiles, batch = plan.grid(problem)
    tiles, at_once = max(1, m_tiles * n_tiles * batch), sms * plan.ctas_per_sm
    full = at_once // tiles
    splits: list[tuple[Split | None, int | None]] = [(None, None)]
    for parts in sorted({full, *_SPLITS} - {0, 1}):
        if problem.k >= parts * _LEAST_K and parts <= full + 1:
            splits.append((Split(parts), None))
    if tiles % at_once and tiles < _FEW * at_once and tiles * problem.k >= at_once * _LEAST_K:
        splits.append((_EVENLY, at_once))
    for is_packed in (False, True) if recipe.to_pack(operands) else (False,):
        for split, ctas in splits:
            yield replace(recipe, is_packed=is_packed, split=split, ctas=ctas)


@cache
def _if_it_serves(
    recipe: SimtRecipe, operands: Operands, arch: str
) -> tuple[GemmPlan | None, tuple[str, ...]]:
    try:
        plan = recipe.build(operands)
    except PlanError as error:
        return None, error.violations
    broken = plan.violations(arch)
    return (None, tuple(broken)) if broken else (plan, ())
