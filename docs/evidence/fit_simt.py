"""The constants of the choice among SIMT plans, from what was measured; and how good that choice is.

    python -m docs.evidence fit-simt --measure simt_fit.json       # on a GPU
    python -m docs.evidence fit-simt docs/evidence/data/{choice_fit_*,simt_fit_*,simt}.json

The fit needs no GPU, but scipy. Least squares of the logarithms find those `SimtCosts` that err least for the plans
that are near the best of their problem. With `--held` each half of the problems is judged by the constants of the
other half.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from cutegemm.choose.names import recipe_named
from cutegemm.choose.simt.choice import may_share, ranked
from cutegemm.choose.simt.recipe import SimtRecipe
from cutegemm.choose.simt.time import COSTS, Model, SimtCosts, Tiles
from cutegemm.errors import CutegemmError
from cutegemm.machine.arch import DEFAULT_ARCH
from cutegemm.machine.device import DEFAULT_DEVICE, Device, device_called
from cutegemm.plan.launches import MOST_PACKED_BYTES
from cutegemm.plan.problem import Problem
from docs.evidence.contest import Case, contests, operands_of, record, write_times
from docs.evidence.drawn import drawn
from docs.evidence.fitting import judged
from docs.evidence.measure import machine, need_gpu

_SEED, _DRAWN = 31, 300
_MOST_FLOPS = 2e10  # of a problem that is measured: small and middling ones are the hard ones
_TRIED = 16  # plans of a problem: the best by the model of as many tiles, then others by chance
_WORST = 1.8  # times the best prediction: plans that are still tried
_SECONDS = 0.1  # of measuring for each problem
_DRAWN_SHORT, _SHORT_K, _LEAST_D = 9000, 400, 1e5  # of which those with at most that K, and at least such a D
# Since then packing ends before CTAs begin that share a multiprocessor, see `plan.launches`: older times of theirs are
# left out, where the GEMM began while few bytes were packed
_CROWDED_BEFORE = "2026-11-22 14:20"
# Since then nothing moves what is loaded to registers, see `load_words`: before, CTAs that share k-tiles evenly waited
# for k-major operands
_WAITED_BEFORE = "2026-11-24 12:00"


@dataclass(frozen=True)
class Timed:
    """Plans that were timed on a problem in turns.

    us   microseconds of each
    """

    recipes: tuple[SimtRecipe, ...]
    problem: Problem
    device: Device
    us: tuple[float, ...]

    @cached_property
    def _columns(self) -> tuple[Tiles, Any, Any]:
        whole = [replace(recipe, split=None, ctas=None) for recipe in self.recipes]
        parts = [1 if recipe.split is None else recipe.split.parts for recipe in self.recipes]
        grid = [recipe.ctas or 0 for recipe in self.recipes]
        return Tiles.of([one.build(self.problem.operands) for one in whole]), np.array(parts), np.array(grid)

    def predicted_us(self, costs: SimtCosts) -> Any:
        """What the model says of each."""
        tiles, parts, grid = self._columns
        of = self.problem
        model = Model(tiles, of.operands, self.device, costs)
        return model.predicted(of, np.arange(len(parts)), parts, grid).us


def timed(found: Mapping[str, Any]) -> list[Timed]:
    """The problems of a file of `docs.evidence`, with the named SIMT plans of f32 that were timed on each, as far as
    the choice considers them.

    A plan that was timed twice, as it was chosen and by its name, has the lesser time.
    """
    date = found["machine"]["date"]
    crowded, waited = date < _CROWDED_BEFORE, date < _WAITED_BEFORE
    device = device_called(found["machine"]["gpu"], DEFAULT_ARCH, DEFAULT_DEVICE.sms)
    by_problem: dict[Problem, dict[SimtRecipe, float]] = {}
    for row in [*found["rows"], *found.get("trials", ())]:
        us = row.get("us", {}) if row.get("dtype") == "f32" else {}
        for name, each in us.items() if isinstance(us, Mapping) else [(row["plan"], us)]:
            recipe = _recipe(name)
            if recipe is not None:
                m, n, k, l = (row[mode] for mode in "mnkl")  # noqa: E741
                problem = Problem(m, n, k, l, operands_of("f32", row["layout"], m, n, k, batched=l > 1))
                is_stale = (crowded and _crowds(recipe, problem)) or (waited and _waits(recipe, problem))
                if is_stale or not _is_considered(recipe, problem):
                    continue
                plans = by_problem.setdefault(problem, {})
                plans[recipe] = min(each, plans.get(recipe, each))
    return [
        Timed(tuple(plans), problem, device, tuple(plans.values()))
        for problem, plans in by_problem.items()
        if len(plans) > 1
    ]


def _crowds(recipe: SimtRecipe, problem: Problem) -> bool:
    """Whether several CTAs of a multiprocessor begin while operands are packed."""
    packs = recipe.packed(problem.operands)
    rows = sum({"a": problem.m, "b": problem.n}[name] for name in packs)
    few = 4 * rows * problem.k * problem.l <= MOST_PACKED_BYTES
    return bool(packs) and few and recipe.options.get("ctas_per_sm", 1) > 1


def _waits(recipe: SimtRecipe, problem: Problem) -> bool:
    """Whether CTAs share k-tiles evenly, of a k-major operand that is not packed."""
    packed = recipe.packed(problem.operands)
    found = [getattr(problem.operands, name).major for name in "ab" if name not in packed]
    return recipe.ctas is not None and "k" in found


def _is_considered(recipe: SimtRecipe, problem: Problem) -> bool:
    whole = replace(recipe, split=None, ctas=None).build(problem.operands)
    return recipe.ctas is None or bool(may_share(Tiles.of([whole]))[0])


def _recipe(name: str) -> SimtRecipe | None:
    """Of a named plan that is considered; None for another."""
    recipe = recipe_named(name) if name.startswith("simt_") else None
    if not isinstance(recipe, SimtRecipe):
        return None
    return recipe if recipe.split is None or recipe.split.reduction == SimtRecipe.reduction else None


def cases(seed: int = _SEED, is_short: bool = False) -> list[Case]:
    """Problems of f32 that are drawn by a seed, with the plans to measure on each.

    is_short   whether those with a short K, and a D that is not small

    >>> len(cases())
    35
    """
    found = []
    for problem in _short(seed) if is_short else drawn(seed, _DRAWN):
        if str(problem.operands.a.dtype) != "f32" or problem.flops > _MOST_FLOPS:
            continue
        pool = list(ranked(problem.operands, problem))
        best: dict[tuple[str, bool], str] = {}
        for one in pool:
            best.setdefault((one.recipe.name, one.recipe.is_packed), str(one.recipe))
        names = list(best.values())[: _TRIED // 2]
        rest = [str(one.recipe) for one in pool if one.us <= _WORST * pool[0].us]
        rest = [name for name in rest if name not in names]
        chance = random.Random(f"{seed} {problem}")
        found.append(Case(problem, [*names, *chance.sample(rest, min(_TRIED - len(names), len(rest)))]))
    return found


def _short(seed: int) -> list[Problem]:
    """Problems of all types that are drawn by a seed: those with a short K, and a D that is not small.

    >>> len([one for one in _short(_SEED) if str(one.operands.a.dtype) == "f32"])
    373
    """
    return [one for one in drawn(seed, _DRAWN_SHORT) if one.k <= _SHORT_K and one.m * one.n >= _LEAST_D]


def run(path: Path, seed: int, is_short: bool) -> None:
    """Measures the problems, and writes all numbers to a file."""
    need_gpu()
    found: dict[str, Any] = {"machine": machine(), "seed": seed, "rows": []}
    record(found, contests(cases(seed, is_short), _SECONDS, say=print), path)
    write_times(found, path)


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the costs, and what the choice loses by them."""
    parser = argparse.ArgumentParser(
        prog="python -m docs.evidence fit-simt",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("files", nargs="*", metavar="FILE.json", help="what docs.evidence wrote")
    parser.add_argument("--measure", type=Path, metavar="FILE.json", help="write times for it there")
    parser.add_argument("--seed", type=int, default=_SEED, help="of the problems that are measured")
    parser.add_argument("--short", action="store_true", help="measure those with a short K instead")
    parser.add_argument("--steps", type=int, default=25, help="of least squares; 0: today's costs")
    parser.add_argument("--held", action="store_true", help="judge each half by the other half's costs")
    given = parser.parse_args(argv)
    if given.measure is not None:
        run(given.measure, given.seed, given.short)
        return 0
    by_file = {file: timed(json.loads(Path(file).read_text())) for file in given.files}
    if not any(by_file.values()):
        raise CutegemmError("fit_simt: no file holds two timed SIMT plans for one problem.")
    print(judged(by_file, COSTS, given.steps, given.held))
    return 0
