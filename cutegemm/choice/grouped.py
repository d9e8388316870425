"""Choose the plan of a grouped GEMM: groups of any size, which only the device knows.

The time of a plan is that of a batch of equal groups, as the models of dense GEMMs predict it. A plan for few rows of
each group is thus one for few rows of D.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from cutegemm.choice.candidate import Candidate
from cutegemm.choice.catalog import ranked
from cutegemm.choice.recipe import Recipe
from cutegemm.choice.refusals import by_reason
from cutegemm.errors import PlanError
from cutegemm.machine.arch import DEFAULT_ARCH
from cutegemm.machine.device import DEFAULT_DEVICE, Device
from cutegemm.plan.memory.groups import batch_of_equal_groups
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Problem
from cutegemm.plan.rules.limits import limits

_MOST_TRIED = 400  # candidates to try, the fastest first, until one suits groups


def ranked_grouped(
    problem: Problem,
    arch: str = DEFAULT_ARCH,
    device: Device = DEFAULT_DEVICE,
    accumulate: str = "fast",
    swap_ab: bool | None = None,
    with_c: bool = False,
) -> Iterator[Candidate]:
    """Yield the candidate plans for a grouped problem in ascending order of predicted time; no plan is built yet.

    Some of them may not suit groups. The arguments are those of `choice.catalog.ranked`.

    raises   PlanError if no named plan can implement the operands on the architecture
    """
    dense = replace(batch_of_equal_groups(problem), ld=())
    found = ranked(dense.operands, dense, arch, device, accumulate, swap_ab, with_c=with_c)
    return (one for one in found if one.recipe.family == "sm90" and not one.recipe.division.is_split)


def chosen_grouped(
    problem: Problem,
    arch: str = DEFAULT_ARCH,
    device: Device = DEFAULT_DEVICE,
    accumulate: str = "fast",
    with_c: bool = False,
    can_implement: Callable[[GemmPlan, bool], GemmPlan | None] | None = None,
) -> tuple[Recipe, GemmPlan]:
    """Return the recipe of the plan with the lowest predicted time for a grouped problem, and the plan itself.

    can_implement   function of a plan, and of whether it swaps A and B: returns the plan with the epilogue of the call,
                    or None if it cannot have it; None: plans are taken as they are
    raises          PlanError with the reasons if no plan can implement the problem

    >>> from cutegemm.plan import Operands
    >>> operands = Operands.of("bf16", layout="nt", batched=True, groups="m")
    >>> recipe, plan = chosen_grouped(Problem(32768, 4096, 4096, 8, operands))
    >>> plan.scheduler.mode, plan.cta_tile
    ('m', (128, 192, 64))
    """
    swap_ab = False if problem.operands.gated else None
    refusals: list[tuple[object, str]] = []
    for number, one in enumerate(ranked_grouped(problem, arch, device, accumulate, swap_ab, with_c)):
        if number == _MOST_TRIED:
            break
        recipe = one.recipe
        try:
            plan = recipe.build(problem.operands, with_c, arch, device)
            too_large = list(limits(plan, problem.transposed if recipe.swap_ab else problem))
            if too_large:
                raise PlanError(f"plan {recipe} on {problem}", too_large)
            made = plan if can_implement is None else can_implement(plan, recipe.swap_ab)
        except PlanError as error:
            refusals += [(recipe, rule) for rule in error.violations]
            continue
        if made is not None:
            return recipe, recipe.as_launched(made)
    raise PlanError(f"choose: no named plan for {problem.operands} on {arch}", by_reason(refusals))
