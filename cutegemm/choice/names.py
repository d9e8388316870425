"""Names of plans: the one place where their text is read. `str` of a recipe writes it.

simt_128x128            a plan of a table, or a step of a ladder
sm90_128x144_2x1        a Hopper tile of any size, and its cluster: see `sm90.tiles`
simt_256x128+repack       operands that are in the way are packed first
sm90_64x128/k4          K is split in 4 parts; with /k4last the CTA that ends last adds those of a SIMT or mma.sync plan
simt_128x128/s264       (or mma_) a grid of 264 CTAs shares evenly the k-tiles of those tiles that do not fill it
sm90_wide_2x1/stream    the same among all CTAs of a Hopper grid, and of one grid of tiles more; /stream1 without
sm90_wide_2x1/fixup      the CTAs that the last tiles leave idle take the last k-tiles of each of these
simt:block=64x64x8      the arguments of a builder; so begin simt:, mma_sync:, mma_tma:, gemv: and sm90:
swap_ab:NAME         the plan of NAME for D^T = B^T A^T

A name of one's own is given by `register_plan`, or by an entry point of an installed package. The names of ladders are
steps: `step_of` tells which.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from functools import lru_cache

from cutegemm.choice.gemv.named import GEMV_PLANS
from cutegemm.choice.gemv.recipe import GemvRecipe
from cutegemm.choice.ladders.ladder import Ladder, LadderStep
from cutegemm.choice.ladders.mma_sync import MMA_SYNC_LADDER, TENSOROP_LADDERS
from cutegemm.choice.ladders.simt import SIMT_LADDER
from cutegemm.choice.ladders.sm90 import HOPPER_LADDER, SM90_LADDER
from cutegemm.choice.mma_sync.named import MMA_SYNC_FED, MMA_SYNC_PLANS
from cutegemm.choice.mma_sync.recipe import MmaSyncRecipe, MmaTmaRecipe
from cutegemm.choice.options import parse_options
from cutegemm.choice.own import Make, OwnRecipe, installed, loaded
from cutegemm.choice.recipe import STREAM_WAVES, SWAP_AB, Recipe
from cutegemm.choice.simt.named import SIMT_PLANS, simt_names
from cutegemm.choice.simt.recipe import SimtRecipe
from cutegemm.choice.sm90.named import SM90_PLANS, of_tile, sm90_names
from cutegemm.choice.sm90.recipe import Sm90Recipe
from cutegemm.choice.sm90.tiles import NamedTile
from cutegemm.errors import CutegemmError, PlanError, UnsupportedError
from cutegemm.plan.work.split import FIXUP, KSplit

_FAMILIES: Mapping[str, type[Recipe]] = {
    family.family: family for family in (SimtRecipe, MmaSyncRecipe, MmaTmaRecipe, GemvRecipe, Sm90Recipe)
}
_VARIED: Mapping[str, Recipe] = {
    recipe.name: recipe for recipe in (*SIMT_PLANS, *MMA_SYNC_PLANS, *SM90_PLANS, *SM90_LADDER)
}
_TO_USE = frozenset([recipe.name for recipe in (*SIMT_PLANS, *MMA_SYNC_PLANS, *SM90_PLANS)])
_FIXED: Mapping[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        *[step.recipe for step in SIMT_LADDER.steps],
        *MMA_SYNC_FED,
        *GEMV_PLANS,
        *MMA_SYNC_LADDER,
    )
}
_LADDERS = (SIMT_LADDER, *TENSOROP_LADDERS, HOPPER_LADDER)
_OWN: dict[str, Recipe] = {}  # by `register_plan`
_NAME = re.compile(
    r"(?P<base>\w+)(?P<repack>\+repack)?"
    r"(?:/k(?P<k>\d{1,9})(?P<last>last)?|/s(?P<s>\d{1,9})|/stream(?P<stream>\d{0,9})|/(?P<fixup>fixup))?",
    re.ASCII,
)


def plans() -> list[tuple[str, str]]:
    """Every name, with what is behind it: plans to use by family, then the steps of ladders, then those of one's own.

    >>> plans()[0][0]
    'simt_256x128'
    """
    tables = (*MMA_SYNC_PLANS, *MMA_SYNC_FED, *GEMV_PLANS)
    to_use = [*simt_names(), *[(recipe.name, recipe.summary) for recipe in tables], *sm90_names()]
    steps = (*[step.recipe for step in SIMT_LADDER.steps], *MMA_SYNC_LADDER, *SM90_LADDER)
    to_learn = [(recipe.name, recipe.summary) for recipe in steps if recipe.name not in _TO_USE]
    return [*to_use, *to_learn, *_own_names()]


def _own_names() -> list[tuple[str, str]]:
    """Those that are registered, then those of installed packages; of one that cannot be loaded, why."""
    found = [(name, recipe.summary) for name, recipe in _OWN.items()]
    for name in installed():
        if name in _OWN or not is_own(name):
            continue
        try:
            recipe = _installed(name)
        except CutegemmError as error:
            found.append((name, f"cannot be used: {error}"))
        else:
            found.append((name, "" if recipe is None else recipe.summary))
    return found


def is_own(name: str) -> bool:
    """Whether a name of `plans` is registered, or of an installed package."""
    return name in _OWN or (name in installed() and _of_package(name) is None)


def step_of(name: str) -> tuple[Ladder, LadderStep] | None:
    """The ladder and the step that a name stands for, where it is one to learn from and not one to use.

    >>> ladder, step = step_of("sm90_pingpong")
    >>> ladder.name, step.number
    ('sm90', 5)
    >>> step_of("sm90_cluster_2x1")  # a step of that ladder too, and chosen where it is held to be the fastest
    """
    if name in _TO_USE:
        return None
    for ladder in _LADDERS:
        for step in ladder.steps:
            if step.name == name:
                return ladder, step
    return None


def register_plan(name: str, plan: str | Recipe | Make, summary: str = "") -> Recipe:
    """Gives a plan of one's own a name, in this process: for `gemm(plan=name)`, `plan_named` and `plans`.

    name      letters, digits and underscores; one that nothing else has
    plan      a text such as "sm90:tile=128x224x64,cluster=2x1"; a recipe; or a function that takes operands and
              returns a GemmPlan for them, or raises PlanError where it does not serve them
    summary   what is special about it, for the list
    raises    PlanError with every rule that is broken; for a name that is taken too, unless by the same plan

    A package gives names to others' processes, and to the command line, by entry points of the group "cutegemm.plans":
    `[project.entry-points."cutegemm.plans"]`, `name = "module:attribute"`, of a text, a recipe or a function.

    >>> str(register_plan("my_64x48", "simt:block=64x48x8,warp=32x24,thread=4x6,quad=4x2", "for 48 columns"))
    'my_64x48'
    >>> recipe_named("swap_ab:my_64x48").name
    'my_64x48'
    """
    recipe = _own(name, plan, summary)
    if _OWN.get(name) == recipe:
        return recipe
    if name in _OWN or _of_package(name) is not None or name in _FAMILIES:
        raise PlanError(f"register_plan {name!r}", ["the name is taken. Choose another one."])
    _OWN[name] = recipe
    return recipe


def _own(name: str, plan: str | Recipe | Make, summary: str) -> Recipe:
    """The recipe of a plan of one's own."""
    violations = []
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_]\w*", name):
        violations.append(f"name = {name!r}; letters, digits and underscores are expected, a letter first.")
    recipe: Recipe | None = None
    if isinstance(plan, (str, Recipe)):
        recipe = recipe_named(plan) if isinstance(plan, str) else plan
        if recipe.swap_ab or recipe.is_repacked or recipe.split is not None:
            violations.append(f"{recipe} says how a plan is used. Register what is left, and say that around the name.")
        recipe = replace(recipe, name=name, summary=summary or recipe.summary)
    elif callable(plan):
        said = (plan.__doc__ or "").strip().partition("\n")[0]
        recipe = OwnRecipe(name, summary or said, {}, make=plan)
    else:
        violations.append(
            f"plan = {plan!r}; the text of a plan, a recipe or a function of operands that returns a GemmPlan is "
            "expected. A GemmPlan itself is passed to gemm as it is: it serves one kind of operands."
        )
    if violations or recipe is None:
        raise PlanError(f"register_plan {name!r}", violations)
    return recipe


@lru_cache(maxsize=256)
def _installed(name: str) -> Recipe | None:
    """The recipe of an entry point; None where there is none of the name."""
    return _own(name, loaded(name), "") if name in installed() and _of_package(name) is None else None


@lru_cache(maxsize=4096)
def recipe_named(name: str) -> Recipe:
    """The recipe that a name stands for.

    raises   UnsupportedError for another name; PlanError where spelled-out arguments do not read

    >>> recipe = recipe_named("swap_ab:sm90_128x144_2x1+repack/k3")
    >>> recipe.name, recipe.is_repacked, recipe.split.splits, recipe.swap_ab
    ('sm90_128x144_2x1', True, 3, True)
    >>> str(recipe)
    'swap_ab:sm90_128x144_2x1+repack/k3'
    """
    if name.startswith(SWAP_AB):
        rest = name
        while rest.startswith(SWAP_AB):
            rest = rest.removeprefix(SWAP_AB)
        recipe, times = recipe_named(rest), (len(name) - len(rest)) // len(SWAP_AB)
        return replace(recipe, swap_ab=recipe.swap_ab != bool(times % 2))
    family = _FAMILIES.get(name.partition(":")[0]) if ":" in name else None
    if family is not None:
        return family(name, "", parse_options(name, family.arguments), spelled_out=True)
    found = _varied(name)
    if found is None:
        close = get_close_matches(name, [known for known, _ in plans()], n=4, cutoff=0.5)
        meant = f" Is it {' or '.join(close)}?" if close else ""
        raise UnsupportedError(
            f"plan_named: no plan is called {name!r}.{meant} `cutegemm plans` lists them; simt:block=..., "
            "mma_sync:block=... and sm90:tile=... spell one out."
        )
    return found


def _of_package(name: str) -> Recipe | None:
    """The plan of a table, a step or a tile of this name; None where there is none."""
    tile = NamedTile.of(name)
    return _FIXED.get(name) or _VARIED.get(name) or (None if tile is None else of_tile(tile))


def _varied(name: str) -> Recipe | None:
    """A plan of a table or a tile, packed and split as the name says; None where no plan has the name."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    base, said = (
        match["base"],
        {key for key in ("k", "last", "s", "stream", "fixup") if match[key] is not None},
    )
    recipe = _of_package(base) or _OWN.get(base) or _installed(base)
    if recipe is None or not said <= recipe.splits or (match["repack"] and not recipe.repacks):
        return None
    if name != base and (base in _FIXED or recipe.spelled_out or isinstance(recipe, OwnRecipe)):
        return None
    if match["fixup"]:
        split = FIXUP
    else:
        waves = 1 if match["s"] else int(match["stream"] or STREAM_WAVES) if "stream" in said else 0
        reduction = match["last"] or recipe.reduction
        try:
            split = KSplit(int(match["k"] or 1), waves=waves, reduction=reduction)
        except PlanError as error:
            raise PlanError(f"plan_named: {name!r}", error.violations) from None
    return replace(
        recipe,
        is_repacked=match["repack"] is not None,
        split=split if split.is_split else None,
        ctas=int(match["s"]) if match["s"] else None,
    )
