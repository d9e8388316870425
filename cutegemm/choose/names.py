"""Names of plans: the one place where their text is read. `str` of a recipe writes it.

simt_128x128            a plan of a table, or a step of a ladder
sm90_128x144_2x1        a Hopper tile of any size, and its cluster: see `sm90.tiles`
simt_256x128+pack       operands that are in the way are packed first
sm90_64x128/k4          K is split in 4 parts; with /k4last the CTA that ends last adds those of a SIMT or mma.sync plan
simt_128x128/s264       (or mma_) a grid of 264 CTAs shares evenly the k-tiles of those tiles that do not fill it
sm90_wide_2x1/stream    the same among all CTAs of a Hopper grid, and of one grid of tiles more; /stream1 without
sm90_wide_2x1/fill      the CTAs that the last tiles leave idle take the last k-tiles of each of these
simt:block=64x64x8      the arguments of a builder; so begin simt:, mma_sync:, mma_tma:, skinny: and sm90:
transposed:NAME         the plan of NAME for D^T = B^T A^T
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from functools import lru_cache

from cutegemm.choose.mma_sync.ladder import MMA_SYNC_LADDER
from cutegemm.choose.mma_sync.named import MMA_SYNC_FED, MMA_SYNC_PLANS
from cutegemm.choose.mma_sync.recipe import MmaSyncRecipe, MmaTmaRecipe
from cutegemm.choose.options import parse_options
from cutegemm.choose.recipe import STREAM_WAVES, TRANSPOSED, Recipe
from cutegemm.choose.simt.ladder import SIMT_LADDER, ladder_names
from cutegemm.choose.simt.named import SIMT_PLANS, simt_names
from cutegemm.choose.simt.recipe import SimtRecipe
from cutegemm.choose.skinny.named import SKINNY_PLANS
from cutegemm.choose.skinny.recipe import SkinnyRecipe
from cutegemm.choose.sm90.named import SM90_PLANS, of_tile, sm90_names
from cutegemm.choose.sm90.recipe import Sm90Recipe
from cutegemm.choose.sm90.tiles import read_tile
from cutegemm.errors import PlanError, UnsupportedError
from cutegemm.plan.work.split import FILLED, Split

_FAMILIES: Mapping[str, type[Recipe]] = {
    family.family: family for family in (SimtRecipe, MmaSyncRecipe, MmaTmaRecipe, SkinnyRecipe, Sm90Recipe)
}
_VARIED: Mapping[str, Recipe] = {
    recipe.name: recipe for recipe in (*SIMT_PLANS, *MMA_SYNC_PLANS, *SM90_PLANS)
}
_FIXED: Mapping[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        *[step.recipe for step in SIMT_LADDER.steps],
        *MMA_SYNC_FED,
        *SKINNY_PLANS,
        *MMA_SYNC_LADDER,
    )
}
_NAME = re.compile(
    r"(?P<base>\w+)(?P<pack>\+pack)?"
    r"(?:/k(?P<k>\d+)(?P<last>last)?|/s(?P<s>\d+)|/stream(?P<stream>\d*)|/(?P<fill>fill))?"
)


def plans() -> list[tuple[str, str]]:
    """Every name, with what is behind it.

    >>> plans()[0][0]
    'simt_256x128'
    """
    mma_sync = (*MMA_SYNC_PLANS, *MMA_SYNC_FED, *SKINNY_PLANS, *MMA_SYNC_LADDER)
    of_mma_sync = [(recipe.name, recipe.summary) for recipe in mma_sync]
    return simt_names() + ladder_names() + of_mma_sync + sm90_names()


@lru_cache(maxsize=4096)
def recipe_named(name: str) -> Recipe:
    """The recipe that a name stands for.

    raises   UnsupportedError for another name; PlanError where spelled-out arguments do not read

    >>> recipe = recipe_named("transposed:sm90_128x144_2x1+pack/k3")
    >>> recipe.name, recipe.is_packed, recipe.split.parts, recipe.transposed
    ('sm90_128x144_2x1', True, 3, True)
    >>> str(recipe)
    'transposed:sm90_128x144_2x1+pack/k3'
    """
    if name.startswith(TRANSPOSED):
        recipe = recipe_named(name.removeprefix(TRANSPOSED))
        return replace(recipe, transposed=not recipe.transposed)
    family = _FAMILIES.get(name.partition(":")[0]) if ":" in name else None
    if family is not None:
        return family(name, "", parse_options(name, family.arguments), spelled_out=True)
    found = _FIXED.get(name) or _varied(name)
    if found is None:
        close = get_close_matches(name, [known for known, _ in plans()], n=4, cutoff=0.5)
        meant = f" Is it {' or '.join(close)}?" if close else ""
        raise UnsupportedError(
            f"plan_named: no plan is called {name!r}.{meant} `cutegemm plans` lists them; simt:block=..., "
            "mma_sync:block=... and sm90:tile=... spell one out."
        )
    return found


def _varied(name: str) -> Recipe | None:
    """A plan of a table or a tile, packed and split as the name says; None where no plan has the name."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    base, said = (
        match["base"],
        {key for key in ("k", "last", "s", "stream", "fill") if match[key] is not None},
    )
    tile = read_tile(base)
    recipe = _VARIED.get(base) or (None if tile is None else of_tile(*tile))
    if recipe is None or not said <= recipe.splits or (match["pack"] and not recipe.packs):
        return None
    if match["fill"]:
        split = FILLED
    else:
        waves = 1 if match["s"] else int(match["stream"] or STREAM_WAVES) if "stream" in said else 0
        reduction = match["last"] or recipe.reduction
        try:
            split = Split(int(match["k"] or 1), waves=waves, reduction=reduction)
        except PlanError as error:
            raise PlanError(f"plan_named: {name!r}", error.violations) from None
    return replace(
        recipe,
        is_packed=match["pack"] is not None,
        split=split if split.is_split else None,
        ctas=int(match["s"]) if match["s"] else None,
    )
