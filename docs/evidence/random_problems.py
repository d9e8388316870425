"""Random problems, sampled by a seed, and plans that compete for each.

Extents are uniform in their logarithm, from 16 to 16384: multiples of 16 in two thirds of the problems, any numbers in
the others. fp8 has K-major A and B, and N and K in multiples of 16, which is all that torch._scaled_mm accepts.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from contextlib import suppress

import cutegemm.choice.gemv.choice as gemv
import cutegemm.choice.mma_sync.choice as mma_sync
import cutegemm.choice.sm90.choice as sm90
from cutegemm.choice.candidate import Candidate, Request
from cutegemm.choice.candidate import ranked as ranked_of
from cutegemm.choice.catalog import by_simt, ranked
from cutegemm.choice.recipe import Recipe
from cutegemm.choice.sm90.recipe import Sm90Recipe
from cutegemm.dtypes import DType
from cutegemm.errors import PlanError
from cutegemm.plan.problem import Problem
from docs.evidence.benchmark import operands_of
from docs.evidence.gemm import LAYOUTS

LEAST, MOST = 16, 16384
_ALIGNED = 16
_KINDS = {"bfloat16": 8, "float16": 3, "float8_e4m3fn": 3, "tf32": 3, "float32": 3}  # of 20
_DEEP_BITS, _DEEP_ELEMENTS = 16384, 1 << 20  # along K; elements of D
_SHORT_BITS, _FEW, _FEW_ELEMENTS = 6400, 64, 1 << 17  # along K; rows or columns; elements of D
_MOST_ELEMENTS = 1 << 25  # elements of D
_WORST = 1.6  # times the best prediction: plans that are still tried


def drawn(seed: int, count: int) -> list[Problem]:
    """Return `count` random problems; the same seed gives the same problems.

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


def rivals(problem: Problem, first: int, others: int, seed: int = 0, accumulate: str = "fast") -> list[Recipe]:
    """Return recipes to time: those with the lowest predicted times, and random others that are not much slower.

    first, others   number of each
    accumulate      accumulation of fp8: see `chosen`
    """
    pool = list(ranked(problem.operands, problem, accumulate=accumulate))
    if not pool:
        return []
    chance = random.Random(f"{seed} {problem}")
    rest = [one for one in pool[first:] if one.us <= _WORST * pool[0].us]
    taken = [*pool[:first], *chance.sample(rest, min(others, len(rest)))]
    return [one.recipe for one in taken]


def is_small(problem: Problem) -> bool:
    """Return whether plans of several families compete: K is short, or D is small and has few rows or columns.

    >>> extents = (48, 672, 4384), (480, 672, 4384)
    >>> [is_small(Problem(*mnk, operands=operands_of("bf16", "nn", *mnk))) for mnk in extents]
    [True, False]
    """
    kind, elements = problem.operands.a.dtype, problem.m * problem.n
    if by_simt(kind) or kind.bits == 8:
        return False
    is_short = problem.k * kind.bits <= _SHORT_BITS and elements <= _MOST_ELEMENTS
    return is_short or (min(problem.m, problem.n) <= _FEW and elements <= _FEW_ELEMENTS)


def is_deep(problem: Problem) -> bool:
    """Return whether D has few tiles and K is long, so that CTAs share K in some way.

    >>> extents = (432, 304, 7552), (4096, 4096, 7552), (432, 304, 512)
    >>> [is_deep(Problem(*mnk, operands=operands_of("bf16", "nn", *mnk))) for mnk in extents]
    [True, False, False]
    """
    kind = problem.operands.a.dtype
    is_long = problem.k * kind.bits >= _DEEP_BITS and problem.m * problem.n <= _DEEP_ELEMENTS
    return is_long and not by_simt(kind)


def of_each_family(problem: Problem, count: int) -> list[Recipe]:
    """Return the recipes of each tensor-core family with the lowest predicted times.

    Each tile of mma.sync appears once, since its K may be split in many ways.
    """
    request = Request(problem.operands)
    found = [
        *_first(ranked_of(sm90.family(request, problem.k), problem), count),
        *_first(ranked_of(gemv.family(request), problem), count),
    ]
    with suppress(PlanError):  # mma.sync may not serve
        found += _first(ranked_of(mma_sync.family(request), problem), count, is_each_once=True)
    return found


def of_each_way(problem: Problem, count: int, accumulate: str = "fast") -> list[Recipe]:
    """Return the Hopper recipes with the lowest predicted times for each way to take K.

    The ways are: whole, split through global memory, and cluster split-K.
    """
    found: dict[str, list[Recipe]] = {}
    request = Request(problem.operands, accumulate=accumulate)
    for one in ranked_of(sm90.family(request, problem.k), problem):
        recipe = one.recipe
        assert isinstance(recipe, Sm90Recipe)
        way = "cluster" if recipe.shape.cluster_k > 1 else "whole" if recipe.split is None else "splits"
        found.setdefault(way, []).append(recipe)
    return [recipe for recipes in found.values() for recipe in recipes[:count]]


def _first(candidates: Iterable[Candidate], count: int, is_each_once: bool = False) -> list[Recipe]:
    found: dict[str, Recipe] = {}
    for one in candidates:
        if len(found) == count:
            break
        found.setdefault(one.recipe.name if is_each_once else str(one.recipe), one.recipe)
    return list(found.values())
