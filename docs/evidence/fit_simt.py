"""Fit of the constants of the choice among SIMT plans, and the quality of that choice.

    python -m docs.evidence fit-simt --measure simt_fit.json       # on a GPU
    python -m docs.evidence fit-simt docs/evidence/data/{choice_fit_*,simt_fit_*,simt}.json

The fit needs scipy and no GPU. Least squares of logarithms find the `SimtCosts` with the smallest errors for plans that
are near the best of their problem. With `--held`, each half of the problems is judged with the constants of the other
half.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cutegemm.choice.candidate import Request
from cutegemm.choice.catalog import ranked
from cutegemm.choice.recipe import Recipe
from cutegemm.choice.simt.choice import SimtFamily, family
from cutegemm.choice.simt.recipe import SimtRecipe
from cutegemm.choice.simt.time import COSTS, Model
from cutegemm.dtypes import f32
from cutegemm.plan.launches import MAX_REPACKED_BYTES
from cutegemm.plan.problem import Problem
from docs.evidence import fitting
from docs.evidence.benchmark import Case, contests, record, write_times
from docs.evidence.fitting import Timed, fit_files, options
from docs.evidence.measure import machine, need_gpu
from docs.evidence.random_problems import drawn

_SEED, _DRAWN = 31, 300
_MOST_FLOPS = 2e10  # largest problem to measure: small and medium ones are the hard ones
_TRIED = 16  # plans of a problem: the best by the model of as many tiles, then others by chance
_WORST = 1.8  # times the best prediction: plans that are still tried
_SECONDS = 0.1  # of measuring for each problem
_DRAWN_SHORT, _SHORT_K, _LEAST_D = 9000, 400, 1e5  # problems with at most _SHORT_K, and at least _LEAST_D elements of D
# Since then the repack pass ends before the CTAs of the GEMM start if they share an SM, see `plan.launches`. Older
# times of such plans are left out if few bytes were packed.
_CROWDED_BEFORE = "2026-11-22 14:20"
# Since then nothing moves what is loaded to registers, see `load_words`: before, CTAs that share k-tiles evenly waited
# for k-major operands
_WAITED_BEFORE = "2026-11-24 12:00"


def timed(recorded: Mapping[str, Any]) -> list[Timed]:
    """Return the f32 problems of a record, with the SIMT plans that were timed on each."""
    date = recorded["machine"]["date"]

    def is_stale(recipe: Recipe, problem: Problem) -> bool:
        if not isinstance(recipe, SimtRecipe):
            return True
        crowds = date < _CROWDED_BEFORE and _crowds(recipe, problem)
        return crowds or (date < _WAITED_BEFORE and _waits(recipe, problem))

    return fitting.timed(recorded, Model, _families, is_stale)


def _families(request: Request, problem: Problem) -> list[SimtFamily]:
    return [family(request)] if problem.operands.a.dtype is f32 else []


def _crowds(recipe: SimtRecipe, problem: Problem) -> bool:
    """Return whether several CTAs per SM may start while operands are repacked."""
    repacks = recipe.repacked(problem.operands)
    rows = sum({"a": problem.m, "b": problem.n}[name] for name in repacks)
    few = 4 * rows * problem.k * problem.l <= MAX_REPACKED_BYTES
    return bool(repacks) and few and recipe.options.get("ctas_per_sm", 1) > 1


def _waits(recipe: SimtRecipe, problem: Problem) -> bool:
    """Return whether the plan is stream-K and has a K-major operand that is not repacked."""
    packed = recipe.repacked(problem.operands)
    found = [getattr(problem.operands, name).major for name in "ab" if name not in packed]
    return recipe.ctas is not None and "k" in found


def cases(seed: int = _SEED, is_short: bool = False) -> list[Case]:
    """Return random f32 problems, with the plans to measure on each.

    is_short   whether to return problems with a short K and a large D

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
            best.setdefault((one.recipe.name, one.recipe.is_repacked), str(one.recipe))
        names = list(best.values())[: _TRIED // 2]
        rest = [str(one.recipe) for one in pool if one.us <= _WORST * pool[0].us]
        rest = [name for name in rest if name not in names]
        chance = random.Random(f"{seed} {problem}")
        found.append(Case(problem, [*names, *chance.sample(rest, min(_TRIED - len(names), len(rest)))]))
    return found


def _short(seed: int) -> list[Problem]:
    """Return random problems of all types that have a short K and a large D.

    >>> len([one for one in _short(_SEED) if str(one.operands.a.dtype) == "f32"])
    373
    """
    return [one for one in drawn(seed, _DRAWN_SHORT) if one.k <= _SHORT_K and one.m * one.n >= _LEAST_D]


def run(path: Path, seed: int, is_short: bool) -> None:
    """Measure the problems and write all times to a file."""
    need_gpu()
    found: dict[str, Any] = {"machine": machine(), "seed": seed, "rows": []}
    record(found, contests(cases(seed, is_short), _SECONDS, say=print), path)
    write_times(found, path)


def main(argv: Sequence[str] | None = None) -> None:
    """Print the constants, and what the choice loses with them."""
    parser = options("fit-simt", __doc__)
    parser.add_argument("--measure", type=Path, metavar="FILE.json", help="write times for it there")
    parser.add_argument("--seed", type=int, default=_SEED, help="of the problems that are measured")
    parser.add_argument("--short", action="store_true", help="measure those with a short K instead")
    given = parser.parse_args(argv)
    if given.measure is not None:
        run(given.measure, given.seed, given.short)
    else:
        print(fit_files(given, timed, COSTS))
