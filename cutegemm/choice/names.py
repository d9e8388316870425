"""Names of plans: this module reads them, and `str` of a recipe writes them.

simt_128x128           a plan of a table, or a step of a ladder
sm90_128x144_2x1       a Hopper tile of any size, and its cluster: see `sm90.tiles`
simt_256x128+repack    operands that the mainloop cannot load well as they are go through a repack pass first
sm90_64x128/k4         split-K: each tile has 4 K splits. A second kernel adds their accumulators in SIMT and mma.sync
                       plans; with /k4last the CTA that ends last does, as it does in every Hopper plan
simt_128x128/s264      stream-K, also for mma_: the k-tiles of the tiles that do not fill a grid of 264 CTAs are divided
                       evenly among these CTAs
sm90_wide_2x1/stream   stream-K of a Hopper plan: the k-tiles of the tiles that do not fill the grid, and of one full
                       wave, are divided evenly among its CTAs; /stream1 leaves the full wave out
sm90_wide_2x1/fixup    stream-K fixup: the CTAs that the last wave leaves idle take the last k-tiles of its tiles
simt:block=64x64x8     the arguments of a builder, after simt:, mma_sync:, mma_tma:, gemv: or sm90:
swap_ab:NAME           the plan NAME for D^T = B^T A^T

`register_plan`, or an entry point of an installed package, adds names. Some names are steps of a ladder: `step_of`
returns the ladder and the step.
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
_OWN: dict[str, Recipe] = {}  # recipes of `register_plan`, by name
_NAME = re.compile(
    r"(?P<base>\w+)(?P<repack>\+repack)?"
    r"(?:/k(?P<k>\d{1,9})(?P<last>last)?|/s(?P<s>\d{1,9})|/stream(?P<stream>\d{0,9})|/(?P<fixup>fixup))?",
    re.ASCII,
)


def plans() -> list[tuple[str, str]]:
    """Return (name, one-line summary) of every named plan.

    First come the plans that `choose` may choose, by family, then steps of the tutorials, then plans that users
    registered.
    """
    tables = (*MMA_SYNC_PLANS, *MMA_SYNC_FED, *GEMV_PLANS)
    to_use = [*simt_names(), *[(recipe.name, recipe.summary) for recipe in tables], *sm90_names()]
    steps = (*[step.recipe for step in SIMT_LADDER.steps], *MMA_SYNC_LADDER, *SM90_LADDER)
    to_learn = [(recipe.name, recipe.summary) for recipe in steps if recipe.name not in _TO_USE]
    return [*to_use, *to_learn, *_own_names()]


def _own_names() -> list[tuple[str, str]]:
    """Return (name, one-line summary) of the plans that users added.

    Plans registered in this process come first, then plans of installed packages. If a plan cannot be loaded, the
    reason takes the place of its summary.
    """
    names = [(name, recipe.summary) for name, recipe in _OWN.items()]
    for name in installed():
        if name in _OWN or not is_own(name):
            continue
        try:
            recipe = _installed(name)
        except CutegemmError as error:
            names.append((name, f"cannot be used: {error}"))
        else:
            names.append((name, "" if recipe is None else recipe.summary))
    return names


def is_own(name: str) -> bool:
    """Return whether a user added the plan `name`, by `register_plan` or by the entry point of an installed package."""
    return name in _OWN or (name in installed() and _of_package(name) is None)


def step_of(name: str) -> tuple[Ladder, LadderStep] | None:
    """Return the pair (tutorial, step) whose plan has a given name; None if no tutorial has it.

    The result is also None for a plan that `choose` considers, even if a tutorial has it: the name then means the plan
    that is in use, not the step.

    name   name of a plan, e.g. "sm90_pingpong"

    >>> ladder, step = step_of("sm90_pingpong")
    >>> ladder.name, step.number
    ('sm90', 5)
    >>> step_of("sm90_cluster_2x1")  # a step of the same ladder, but `choose` may choose it
    """
    if name in _TO_USE:
        return None
    for ladder in _LADDERS:
        for step in ladder.steps:
            if step.name == name:
                return ladder, step
    return None


def register_plan(name: str, plan: str | Recipe | Make, summary: str = "") -> Recipe:
    """Register a plan under a name in this process, so that `gemm(plan=name)`, `plan_named` and `plans` know it.

    name      letters, digits and underscores; a name that no other plan has
    plan      a text such as "sm90:tile=128x224x64,cluster=2x1"; a recipe (name and arguments of a plan); or a function
              that takes operands and returns a GemmPlan for them, or raises PlanError if it cannot implement them
    summary   what is special about the plan, for lists of plans
    returns   the recipe that has the name
    raises    PlanError with every rule that is broken, or if the name belongs to another plan

    A package adds names to all processes and to the command line by entry points of the group "cutegemm.plans":
    `[project.entry-points."cutegemm.plans"]`, `name = "module:attribute"`. The attribute is a text, a recipe or a
    function.

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
    """Return the recipe (name and arguments; `build` makes the plan) for a plan that a user defined.

    name      name of the plan
    plan      text or recipe of a plan, or a function that builds it from operands
    summary   what is special about the plan, in one sentence; "": the summary of `plan`
    raises    PlanError with every rule that is broken
    """
    violations = []
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_]\w*", name):
        violations.append(f"name = {name!r}; expected letters, digits and underscores, with a letter first.")
    recipe: Recipe | None = None
    if isinstance(plan, (str, Recipe)):
        recipe = recipe_named(plan) if isinstance(plan, str) else plan
        if recipe.swap_ab or recipe.is_repacked or recipe.split is not None:
            violations.append(
                f"{recipe} has swap_ab:, +repack or a K split. Register the plan without them and add them to its name."
            )
        recipe = replace(recipe, name=name, summary=summary or recipe.summary)
    elif callable(plan):
        first_line = (plan.__doc__ or "").strip().partition("\n")[0]
        recipe = OwnRecipe(name, summary or first_line, {}, make=plan)
    else:
        violations.append(
            f"plan = {plan!r}; expected the text of a plan, a recipe, or a function of operands that returns a "
            "GemmPlan. Pass a GemmPlan itself to gemm: it fits one kind of operands."
        )
    if violations or recipe is None:
        raise PlanError(f"register_plan {name!r}", violations)
    return recipe


@lru_cache(maxsize=256)
def _installed(name: str) -> Recipe | None:
    """Return the plan that an installed package offers under a name by an entry point, as a recipe (name, arguments).

    The result is None if no package offers such a plan, or if a built-in plan has this name. It is cached.

    name   name of the plan, i.e. of the entry point
    """
    return _own(name, loaded(name), "") if name in installed() and _of_package(name) is None else None


@lru_cache(maxsize=4096)
def recipe_named(name: str) -> Recipe:
    """Return the recipe (name and arguments of a plan) that a full name such as "swap_ab:sm90_128x144/k4" stands for.

    The result is cached.

    raises   UnsupportedError for an unknown name; PlanError if the arguments of a builder are not valid

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
    recipe_or_none = _varied(name)
    if recipe_or_none is None:
        close = get_close_matches(name, [known for known, _ in plans()], n=4, cutoff=0.5)
        meant = f" Is it {' or '.join(close)}?" if close else ""
        raise UnsupportedError(
            f"plan_named: no plan is called {name!r}.{meant} `cutegemm plans` lists them; simt:block=..., "
            "mma_sync:block=... and sm90:tile=... spell one out."
        )
    return recipe_or_none


def _of_package(name: str) -> Recipe | None:
    """Return the recipe (name and arguments) of a built-in plan; None for other names.

    A built-in name is listed in a table, is a step of a tutorial, or spells out a tile, such as sm90_128x144_2x1.

    name   name of a plan, without suffixes such as /k4
    """
    tile = NamedTile.of(name)
    return _FIXED.get(name) or _VARIED.get(name) or (None if tile is None else of_tile(tile))


def _varied(name: str) -> Recipe | None:
    """Return the plan of a name that may end with suffixes such as +repack or /k4, as a recipe (name and arguments).

    A suffix changes the plan: /k4 means four K splits, and +repack a copy of operands before the GEMM.

    name      e.g. "sm90_128x144_2x1+repack/k3", or a name without suffixes
    returns   None if the name before the suffixes or a suffix is unknown
    raises    PlanError if the division of K that a suffix asks for is not valid
    """
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    base, suffixes = match["base"], {key for key in ("k", "last", "s", "stream", "fixup") if match[key] is not None}
    recipe = _of_package(base) or _OWN.get(base) or _installed(base)
    if recipe is None or not suffixes <= recipe.splits or (match["repack"] and not recipe.repacks):
        return None
    if name != base and (base in _FIXED or recipe.spelled_out or isinstance(recipe, OwnRecipe)):
        return None
    if match["fixup"]:
        split = FIXUP
    else:
        waves = 1 if match["s"] else int(match["stream"] or STREAM_WAVES) if "stream" in suffixes else 0
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
