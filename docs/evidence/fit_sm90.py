"""Fit of the constants of the choice among Hopper plans, and the quality of that choice.

    python -m docs.evidence fit-sm90 docs/evidence/data/{choice_fit_*,choice_classes_h200,hopper_tiles}.json

It needs scipy and no GPU. `choice.sm90.time` predicts times from a few constants. Least squares of logarithms find the
constants with the smallest errors for plans near the best of their problem, and with the smallest loss of the choice.
With --held, each half of the problems is judged with the constants of the other half.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from cutegemm.build.sm90 import columns_loaded
from cutegemm.choice.candidate import Request
from cutegemm.choice.catalog import by_simt
from cutegemm.choice.recipe import Recipe
from cutegemm.choice.sm90.choice import ACCUMULATIONS, Sm90Family, family
from cutegemm.choice.sm90.costs import COSTS
from cutegemm.choice.sm90.recipe import Sm90Recipe
from cutegemm.choice.sm90.tiles import NamedTile, has_narrow_epi_stages
from cutegemm.choice.sm90.time import Model
from cutegemm.plan.problem import Problem
from docs.evidence import fitting
from docs.evidence.fitting import Timed, fit_files, options

# Constants for a D that TMA does not store. Few times are recorded, so they are fitted to these problems only.
_FOUND_APART = ("store_across", "ends_of_rows")
# Until then tiles with narrow epilogue stages, named by their size, had wide ones, and a stage less.
_NARROW_SINCE = "2026-11-23 02:00 UTC"
# Until then clusters took tiles in the order of their launch.
_BY_GPC_SINCE = "2026-11-24 00:30 UTC"
# Until then columns of a B along N were loaded by boxes of part of a line, where today whole lines are loaded.
_BY_LINES_SINCE = "2026-11-26 04:00 UTC"


def timed(recorded: Mapping[str, Any]) -> list[Timed]:
    """Return the problems of a record, with the Hopper plans that repack nothing."""
    date = recorded.get("machine", {}).get("date", "")

    def is_stale(recipe: Recipe, problem: Problem) -> bool:
        if not isinstance(recipe, Sm90Recipe) or recipe.is_repacked:
            return True
        own = problem.transposed if recipe.swap_ab else problem
        is_tile = NamedTile.of(recipe.name) is not None
        had_wide_slots = date < _NARROW_SINCE and is_tile and has_narrow_epi_stages(recipe.tile)
        has_lines = columns_loaded(own.operands.b, recipe.tile) != recipe.tile[1]
        return had_wide_slots or (date < _BY_LINES_SINCE and has_lines)

    found = fitting.timed(recorded, Model, _families, is_stale)
    if date >= _BY_GPC_SINCE:
        return found
    shapes = [replace(one.model.shapes, gpc_aware=one.model.shapes.gpc_aware & False) for one in found]
    return [replace(one, model=replace(one.model, shapes=of)) for one, of in zip(found, shapes, strict=True)]


def _families(request: Request, problem: Problem) -> list[Sm90Family]:
    """Return the candidates with fast accumulation and with promotion."""
    if by_simt(problem.operands.a.dtype):
        return []
    return [family(replace(request, accumulate=how), problem.k) for how in ACCUMULATIONS]


def main(argv: Sequence[str]) -> None:
    """Print the constants, and what the choice loses with them."""
    names = [name for name in asdict(COSTS) if name not in _FOUND_APART]
    print(fit_files(options("fit-sm90", __doc__, names).parse_args(argv), timed, COSTS))
