"""The constants of the choice among Hopper plans, from what was measured; and how good that choice is.

    python -m docs.evidence fit-sm90 docs/evidence/data/hopper_tiles.json docs/evidence/data/hopper_llama.json

It needs no GPU. `choose.sm90.time` predicts times from a few constants; those are moved at random, a little at a time,
and a change is kept where the choice loses less by it, or the predictions of plans near the best err less.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, geometric_mean, pstdev
from typing import Any

from rich.progress import track

from cutegemm.choose.names import recipe_named
from cutegemm.choose.sm90.recipe import Sm90Recipe
from cutegemm.choose.sm90.time import H200_COSTS, Sm90Costs, predicted_us
from cutegemm.errors import CutegemmError
from cutegemm.plan.problem import Problem
from docs.evidence.contest import operands_of

Row = Mapping[str, Any]
_STEP = 0.1  # of the logarithm of a constant
_NEAR = 1.3  # times the best: plans whose predictions count
_OTHERS = 0.12  # share of the others that is kept, which must only not seem the best
_SPREAD, _BIAS = 0.2, 0.2  # what an error of the predictions counts, beside what the choice loses
_MOST_SOFTNESS = 8.0
_SEED = 7


@dataclass(frozen=True)
class Timed:
    """A plan that was timed on a problem; both transposed, where the plan was.

    us   microseconds
    """

    recipe: Sm90Recipe
    problem: Problem
    us: float

    @property
    def name(self) -> str:
        """Of the plan, as the row has it."""
        return str(self.recipe)

    def predicted_us(self, costs: Sm90Costs) -> float:
        """What the model says."""
        of = self.problem
        return predicted_us(self.recipe.shape, of.operands, of, split=self.recipe.division, costs=costs)


def timed(rows: Iterable[Row]) -> dict[tuple[Any, ...], list[Timed]]:
    """Plans by problem; a row that was chosen has its plan's name as well."""
    found: dict[tuple[Any, ...], dict[str, Timed]] = {}
    for row in rows:
        if "us" not in row:
            continue
        recipe = _recipe(row["plan"])
        if recipe is None:
            continue
        extents = (row["m"], row["n"], row["k"])
        operands = operands_of(row["dtype"], row["layout"], *extents, batched=row["l"] > 1)
        problem = Problem(*extents, row["l"], operands)
        of = problem.transposed if recipe.transposed else problem
        key = (row["dtype"], row["layout"], row["m"], row["n"], row["k"], row["l"])
        found.setdefault(key, {})[row["plan"]] = Timed(recipe, of, row["us"])
    return {key: list(plans.values()) for key, plans in found.items() if len(plans) > 1}


def _recipe(name: str) -> Sm90Recipe | None:
    """Of a Hopper plan of the tables that packs nothing; None for another."""
    try:
        recipe = recipe_named(name)
    except CutegemmError:  # of the library, or a plan that is no more
        return None
    if not isinstance(recipe, Sm90Recipe) or recipe.spelled_out or recipe.is_packed:
        return None
    return recipe


def losses(measured: Iterable[Sequence[Timed]], costs: Sm90Costs) -> list[float]:
    """By problem, the logarithm of the time of the plan that ranks first over that of the best."""
    found = []
    for plans in measured:
        first = min(plans, key=lambda one: one.predicted_us(costs))
        found.append(math.log(first.us / min(one.us for one in plans)))
    return found


def error(measured: Sequence[Sequence[Timed]], costs: Sm90Costs) -> float:
    """What `fit` makes small: what the choice loses on average, and how far off near plans are predicted."""
    lost, off = [], []
    for plans in measured:
        best = min(one.us for one in plans)
        said = [one.predicted_us(costs) for one in plans]
        lost.append(math.log(plans[said.index(min(said))].us / best))
        off += [math.log(us / one.us) for us, one in zip(said, plans, strict=True) if one.us < _NEAR * best]
    return fmean(lost) + _SPREAD * pstdev(off) + _BIAS * abs(fmean(off))


def fit(
    measured: Iterable[Sequence[Timed]], costs: Sm90Costs = H200_COSTS, steps: int = 1000, seed: int = _SEED
) -> Sm90Costs:
    """The costs with which `error` is least that were met on the way."""
    chance = random.Random(seed)
    kept = [
        [one for one in plans if one.us < _NEAR * min(p.us for p in plans) or chance.random() < _OTHERS]
        for plans in measured
    ]
    least = error(kept, costs)
    for _ in track(range(steps), description="fitting", transient=True):
        names = chance.sample(list(asdict(costs)), chance.choice((1, 1, 2, 3)))
        moved = {name: getattr(costs, name) * math.exp(chance.gauss(0.0, _STEP)) for name in names}
        tried = replace(costs, **moved)
        if tried.softness > _MOST_SOFTNESS or max(tried.mixed, tried.eased) > 1.0:
            continue
        found = error(kept, tried)
        if found < least:
            least, costs = found, tried
    return costs


def main(argv: Sequence[str]) -> None:
    """Prints the costs, and what the choice loses by them."""
    parser = argparse.ArgumentParser(prog="python -m docs.evidence fit-sm90", description=__doc__)
    parser.add_argument("files", nargs="+", metavar="FILE.json", help="what docs.evidence.gemm wrote")
    parser.add_argument("--steps", type=int, default=1000, help="moves that are tried; 0: today's costs")
    given = parser.parse_args(argv)
    measured = {file: timed(json.loads(Path(file).read_text())["rows"]) for file in given.files}
    every = [plans for problems in measured.values() for plans in problems.values()]
    if not every:
        raise CutegemmError("fit_sm90: no file holds two timed Hopper plans for one problem.")
    costs = fit(every, steps=given.steps)
    print("Sm90Costs(")
    for name, value in asdict(costs).items():
        print(f"    {name}={value:.3g},")
    print(")")
    for file, problems in measured.items():
        lost = losses(problems.values(), costs)
        ratio = geometric_mean([math.exp(one) for one in lost]) if lost else 1.0
        most = math.exp(max(lost, default=0.0))
        print(
            f"{file}: {len(lost)} problems; the choice takes {ratio:.4f} of the best time, {most:.3f} at most"
        )
