"""The constants of the choice among Hopper plans, from what was measured; and how good that choice is.

    python -m docs.evidence fit-sm90 docs/evidence/data/{choice_fit_*,choice_classes_h200,hopper_tiles}.json

It needs no GPU, but scipy. `choose.sm90.time` predicts times from a few constants; least squares of the logarithms find
those that err least for the plans that are near the best of their problem, and with which the choice loses least. With
--held, each half of the problems is
judged by the constants of the other half.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from cutegemm.build.sm90 import columns_loaded
from cutegemm.choose.names import recipe_named
from cutegemm.choose.sm90.considered import FEW_ROWS, most_waves
from cutegemm.choose.sm90.costs import COSTS, Sm90Costs
from cutegemm.choose.sm90.named import SM90_CHOSEN, SM90_TWO_LEVEL
from cutegemm.choose.sm90.recipe import Sm90Recipe
from cutegemm.choose.sm90.shapes import Shapes
from cutegemm.choose.sm90.tiles import NamedTile, has_narrow_slots
from cutegemm.choose.sm90.time import Model, predicted
from cutegemm.errors import CutegemmError
from cutegemm.machine.arch import DEFAULT_ARCH
from cutegemm.machine.device import DEFAULT_DEVICE, Device, device_called
from cutegemm.plan.problem import Problem
from cutegemm.plan.work.gpcs import PAIR
from docs.evidence.contest import operands_of
from docs.evidence.fitting import judged

Row = Mapping[str, Any]
# Of an odd D, of which there are few times: found for such problems alone. Of the power limit: from 8192^3, the sizes
# of language models (hopper_tiles, hopper_llama) and all others of more than 100 us. Of two levels: from times of e4m3
# alone, of later kernels. Of clusters, CTAs that share K, rings of few or many stages, rows of 64 bytes and runs along
# M or N: by which the choice loses least on all files, the others as they are.
_FOUND_APART = (
    "store_across", "ends_of_rows", "burst", "rests", "two_level", "fours", "l2_fours", "pairs", "shallow", "deeper",
    "half", "shared", "sent", "evens", "runs",
)  # fmt: skip
# Until then tiles with narrow slots, named by their size, had wide ones, and a stage less.
_NARROW_SINCE = "2026-11-23 02:00 UTC"
# Until then clusters took tiles in the order of their launch.
_BY_GPC_SINCE = "2026-11-24 00:30 UTC"
# Until then columns of a B along N came by boxes of part of a line, where today whole lines are loaded.
_BY_LINES_SINCE = "2026-11-26 04:00 UTC"
_CONSIDERED = {recipe.name for recipe in (*SM90_CHOSEN, *SM90_TWO_LEVEL)}


@dataclass(frozen=True)
class Timed:
    """Plans that were timed on a problem in turns, all of them for D or all for D^T.

    us        microseconds of each
    by_gpc    whether clusters took tiles in the order of the GPCs
    """

    recipes: tuple[Sm90Recipe, ...]
    problem: Problem
    device: Device
    us: tuple[float, ...]
    by_gpc: bool = True

    @cached_property
    def _columns(self) -> tuple[Shapes, Any, Any]:
        divisions = [recipe.division for recipe in self.recipes]
        shapes = Shapes.of([recipe.shape for recipe in self.recipes], self.problem.operands)
        return (
            replace(shapes, by_gpc=shapes.by_gpc & self.by_gpc),
            np.array([one.parts for one in divisions]),
            np.array([one.owned for one in divisions]),
        )

    def predicted_us(self, costs: Sm90Costs) -> Any:
        """What the model says of each."""
        shapes, parts, owned = self._columns
        model = Model(shapes, self.problem.operands, self.device, costs=costs)
        return predicted(model, self.problem, parts, owned).us


@dataclass(frozen=True)
class Contest:
    """All plans that were timed on a problem: those for D, and those for D^T."""

    ways: tuple[Timed, ...]

    @property
    def us(self) -> tuple[float, ...]:
        """Microseconds of each."""
        return tuple([us for way in self.ways for us in way.us])

    def predicted_us(self, costs: Sm90Costs) -> Any:
        """What the model says of each."""
        return np.concatenate([way.predicted_us(costs) for way in self.ways])


def timed(recorded: Mapping[str, Any]) -> dict[tuple[Any, ...], Contest]:
    """Contests of a file of `docs.evidence`, by problem; a plan that was chosen as well counts once."""
    by_problem: dict[tuple[Any, ...], dict[str, tuple[Sm90Recipe, float]]] = {}
    date = recorded["machine"].get("date", "")
    had_wide_slots, by_gpc, by_lines = date < _NARROW_SINCE, date >= _BY_GPC_SINCE, date >= _BY_LINES_SINCE
    for row in [*recorded["rows"], *recorded.get("trials", ())]:
        us = row.get("us", {})
        for name, each in us.items() if isinstance(us, Mapping) else [(row["plan"], us)]:
            recipe = _recipe(name)
            if recipe is not None and not (
                had_wide_slots and has_narrow_slots(recipe.tile) and _is_tile(recipe)
            ):
                key = (row["dtype"], row["layout"], row["m"], row["n"], row["k"], row["l"])
                by_problem.setdefault(key, {})[str(recipe)] = recipe, each
    device = device_called(recorded["machine"]["gpu"], DEFAULT_ARCH, DEFAULT_DEVICE.sms)
    found = {
        key: _contest(key, list(plans.values()), device, by_gpc, by_lines)
        for key, plans in by_problem.items()
    }
    return {key: contest for key, contest in found.items() if len(contest.us) > 1}


def _contest(
    key: tuple[Any, ...],
    plans: Iterable[tuple[Sm90Recipe, float]],
    device: Device,
    by_gpc: bool,
    by_lines: bool,
) -> Contest:
    """
    by_lines   whether a B along N came by whole lines where it does so today
    """
    dtype, layout, m, n, k, l = key  # noqa: E741
    problem = Problem(m, n, k, l, operands_of(dtype, layout, m, n, k, batched=l > 1))
    found = []
    for turned in (False, True):
        solved = problem.transposed if turned else problem
        b = solved.operands.b
        of = [
            one
            for one in plans
            if one[0].transposed == turned
            and _fits(one[0], solved, device)
            and (by_lines or columns_loaded(b, one[0].tile) == one[0].tile[1])
        ]
        if of:
            recipes, us = zip(*of, strict=True)
            found.append(Timed(recipes, solved, device, us, by_gpc))
    return Contest(tuple(found))


def _fits(recipe: Sm90Recipe, problem: Problem, device: Device) -> bool:
    """Not where CTAs of one warpgroup, or large clusters, would take more tiles than they are considered for."""
    shape, ctas = recipe.shape, math.prod(recipe.shape.cluster)
    is_large = ctas > PAIR and min(problem.m, problem.n) > FEW_ROWS
    if shape.epilogue != "single" and not is_large:
        return True
    clusters = problem.l * math.prod(
        -(-extent // (tile * across))
        for extent, tile, across in zip((problem.m, problem.n), recipe.tile, shape.cluster, strict=True)
    )
    at_a_time = device.clusters_by_size[ctas * shape.k_ctas] * shape.ctas_per_sm
    return clusters <= at_a_time * int(most_waves(ctas, math.prod(recipe.tile)))


def _recipe(name: str) -> Sm90Recipe | None:
    """Of a Hopper plan that is considered, packs nothing and streams no waves; None for another."""
    try:
        recipe = recipe_named(name)
    except CutegemmError:  # of the library, or a plan that is no more
        return None
    if not isinstance(recipe, Sm90Recipe) or recipe.name not in _CONSIDERED or recipe.is_packed:
        return None
    division = recipe.division
    return recipe if division.owned or not division.waves else None


def _is_tile(recipe: Sm90Recipe) -> bool:
    """Whether it is named by its tile, and no step of the ladder."""
    return NamedTile.of(recipe.name) is not None


def main(argv: Sequence[str]) -> None:
    """Prints the costs, and what the choice loses by them."""
    parser = argparse.ArgumentParser(prog="python -m docs.evidence fit-sm90", description=__doc__)
    parser.add_argument("files", nargs="+", metavar="FILE.json", help="what docs.evidence wrote")
    parser.add_argument("--steps", type=int, default=25, help="of least squares; 0: today's costs")
    parser.add_argument("--held", action="store_true", help="judge each half by the other half's costs")
    given = parser.parse_args(argv)
    by_file = {file: list(timed(json.loads(Path(file).read_text())).values()) for file in given.files}
    if not any(by_file.values()):
        raise CutegemmError("fit_sm90: no file holds two timed Hopper plans for one problem.")
    names = [name for name in asdict(COSTS) if name not in _FOUND_APART]
    print(judged(by_file, COSTS, given.steps, given.held, names))
