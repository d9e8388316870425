"""Problems that nobody picked: sizes, types and layouts drawn by a seed; and plans that compete for each.

Extents are alike in their logarithm, 16 to 16384. Two thirds of the problems have extents that are multiples of 16, the
others any. float8 has A and B along K, and N and K in multiples of 16, which is all that torch._scaled_mm takes.
"""

from __future__ import annotations

import math
import random

from cutegemm.choose.catalog import ranked
from cutegemm.choose.recipe import Recipe
from cutegemm.dtypes import DType
from cutegemm.plan.problem import Problem
from docs.evidence.contest import operands_of
from docs.evidence.gemm import LAYOUTS

LEAST, MOST = 16, 16384
_ALIGNED = 16
_KINDS = {"bfloat16": 8, "float16": 3, "float8_e4m3fn": 3, "tf32": 3, "float32": 3}  # of 20
_WORST = 1.6  # times the best prediction: plans that are still tried


def drawn(seed: int, count: int) -> list[Problem]:
    """So many problems; the same ones for the same seed.

    >>> problems = drawn(0, 300)
    >>> len(set(problems)), all(LEAST <= extent <= MOST for p in problems for extent in (p.m, p.n, p.k))
    (300, True)
    >>> 80 < sum(bool((p.m | p.n | p.k) % 16) for p in problems) < 120
    True
    """
    chance = random.Random(seed)
    return [_one(chance) for _ in range(count)]


def _one(chance: random.Random) -> Problem:
    (name,) = chance.choices(list(_KINDS), list(_KINDS.values()))
    is_ragged, layout = chance.random() < 1 / 3, chance.choice(LAYOUTS)
    extents = [round(math.exp(chance.uniform(math.log(LEAST), math.log(MOST)))) for _ in "mnk"]
    kind = DType.parse(name)
    free = "mnk" if is_ragged else ""
    if kind.bits == 8:
        free, layout = free[:1], "nt"
    m, n, k = [
        extent if mode in free else max(_ALIGNED, round(extent / _ALIGNED) * _ALIGNED)
        for mode, extent in zip("mnk", extents, strict=True)
    ]
    return Problem(m, n, k, operands=operands_of(name, layout, m, n, k))


def rivals(
    problem: Problem, first: int, others: int, seed: int = 0, accumulate: str = "fast"
) -> list[Recipe]:
    """Recipes that compete: those that are predicted to be the fastest, and others by chance, none far slower.

    first, others   how many of each
    accumulate      of float8: see `chosen`
    """
    pool = list(ranked(problem.operands, problem, accumulate=accumulate))
    if not pool:
        return []
    chance = random.Random(f"{seed} {problem}")
    rest = [one for one in pool[first:] if one.us <= _WORST * pool[0].us]
    taken = [*pool[:first], *chance.sample(rest, min(others, len(rest)))]
    return [one.recipe for one in taken]
