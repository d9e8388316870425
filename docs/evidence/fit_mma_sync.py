"""Fit of the constants of the choice among mma.sync plans, and the quality of that choice.

    python -m docs.evidence fit-mma-sync --measure mma_sync_fit.json       # on a GPU
    python -m docs.evidence fit-mma-sync \
        docs/evidence/data/{mma_sync_fit*,mma_power_bf16,mma_power_tf32,choice_fit_seed*}.json

The fit needs scipy and no GPU. Least squares of logarithms find the `MmaCosts` with the smallest errors for plans that
are near the best of their problem.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cutegemm.choice.candidate import Request, ranked
from cutegemm.choice.mma_sync.choice import family
from cutegemm.choice.mma_sync.recipe import MmaSyncRecipe
from cutegemm.choice.mma_sync.time import COSTS, Model
from cutegemm.choice.recipe import Recipe
from cutegemm.machine.arch import ACCESS_BITS
from cutegemm.plan.problem import Problem
from docs.evidence import fitting
from docs.evidence.benchmark import Case, contests, operands_of, record, write_times
from docs.evidence.fitting import Timed, fit_files, options
from docs.evidence.measure import machine, need_gpu

# Problems that wgmma does not multiply as they are: few tiles and a deep K, rows that begin at any element, a short K
_PROBLEMS = """
    bfloat16 98x90x11053 nn, bfloat16 23x608x7441 nt, bfloat16 16x29x3537 nt, bfloat16 1151x19x193 tt
    bfloat16 644x1653x25 tt, bfloat16 28x11957x19 nn, bfloat16 49x557x29 tt, bfloat16 53x549x194 tn
    bfloat16 88x85x1102 nt, bfloat16 33x19x1658 nt, bfloat16 16x3261x2697 nt, bfloat16 317x310x253 tn
    bfloat16 261x8730x35 nt, bfloat16 674x2638x6263 tt, float16 588x3627x897 tn, float16 18x11054x2512 nn
    tf32 48x80x7984 tn, tf32 288x288x2368 nn, tf32 192x704x2240 tt, tf32 96x32x1152 nn, tf32 8624x96x5696 tt
    tf32 3794x20x15422 nn, tf32 39x10511x2606 tn, tf32 1072x1072x896 tn, tf32 80x448x768 tt
"""
_LARGE = 128 * 128  # elements of a tile
_WORD = 4  # bytes
_TRIED = 6  # plans of a problem: the best by the model of as many tiles, with one of them whole
_SECONDS = 0.06  # of measuring for each problem


def cases() -> list[Case]:
    """Return the problems, with the plans to measure on each.

    >>> len(cases())
    25
    """
    found = []
    for text in _PROBLEMS.replace("\n", ",").split(","):
        if text.strip():
            dtype, extents, layout = text.split()
            m, n, k = map(int, extents.split("x"))
            problem = Problem(m, n, k, operands=operands_of(dtype, layout, m, n, k))
            best: dict[str, str] = {}
            for one in ranked(family(Request(problem.operands)), problem):
                best.setdefault(one.recipe.name, str(one.recipe))
            names = list(best.values())[:_TRIED]
            found.append(Case(problem, list(dict.fromkeys([*names, names[0].partition("/")[0]]))))
    return found


def timed(recorded: Mapping[str, Any]) -> list[Timed]:
    """Return the problems of a record, with the mma.sync plans that were timed on each.

    >>> from docs.evidence.files import read_record
    >>> len(timed(read_record(Path("docs/evidence/data/mma_sync_fit.json"))))
    33
    """
    return fitting.timed(recorded, Model, lambda request, _: [family(request)], _is_stale)


def _is_stale(recipe: Recipe, problem: Problem) -> bool:
    return not isinstance(recipe, MmaSyncRecipe) or _spilled(recipe, problem)


def _spilled(recipe: MmaSyncRecipe, problem: Problem) -> bool:
    """Return whether a plan spilled registers when its times were recorded. It no longer does, or is not chosen."""
    align = min(problem.operands.a.align_bytes, problem.operands.b.align_bytes)
    bm, bn = recipe.options["block"]
    return bool(bm * bn >= _LARGE and align < ACCESS_BITS // 8) or bool(2 * bm * bn >= _LARGE and align < _WORD)


def run(path: Path) -> None:
    """Measure the problems and write all times to a file."""
    need_gpu()
    found: dict[str, Any] = {"machine": machine(), "rows": []}
    record(found, contests(cases(), _SECONDS, say=print), path)
    write_times(found, path)


def main(argv: Sequence[str]) -> None:
    """Print the constants, and what the choice loses with them."""
    parser = options("fit-mma-sync", __doc__)
    parser.add_argument("--measure", type=Path, metavar="FILE.json", help="write times for it there")
    given = parser.parse_args(argv)
    if given.measure is not None:
        run(given.measure)
    else:
        print(fit_files(given, timed, COSTS))
