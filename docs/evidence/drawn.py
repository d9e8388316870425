"""Problems that nobody picked: sizes, types and layouts drawn by a seed; and plans that compete for each.

Extents are alike in their logarithm, 16 to 16384. Two thirds of the problems have extents that are multiples of 16, the
others any. float8 has A and B along K, and N and K in multiples of 16, which is all that torch._scaled_mm takes.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import replace

from cutegemm.choose.catalog import by_simt
from cutegemm.choose.mma_sync import choice as mma_sync
from cutegemm.choose.recipe import Recipe
from cutegemm.choose.simt import choice as simt
from cutegemm.choose.sm90 import choice as sm90
from cutegemm.choose.sm90.time import predicted_us
from cutegemm.dtypes import DType
from cutegemm.machine.device import DEFAULT_DEVICE
from cutegemm.plan.memory.packing import to_pack_for_wgmma
from cutegemm.plan.problem import Operands, Problem
from cutegemm.plan.work.split import FILLED, Split
from docs.evidence.contest import operands_of
from docs.evidence.gemm import LAYOUTS

LEAST, MOST = 16, 16384
_ALIGNED = 16
_KINDS = {"bfloat16": 8, "float16": 3, "float8_e4m3fn": 3, "tf32": 3, "float32": 3}  # of 20
_WORST = 1.6  # times the best prediction: plans that are still tried
_STREAM = Split(waves=2)


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


def rivals(problem: Problem, first: int, others: int, seed: int = 0) -> list[Recipe]:
    """Recipes that compete: those that are predicted to be the fastest, and others by chance, none far slower.

    first, others   how many of each
    """
    pool = sorted(_weighed(problem), key=lambda one: one[0])
    if not pool:
        return []
    chance = random.Random(f"{seed} {problem}")
    rest = [one for one in pool[first:] if one[0] <= _WORST * pool[0][0]]
    taken = [*pool[:first], *chance.sample(rest, min(others, len(rest)))]
    return [recipe for _, recipe in taken]


def _weighed(problem: Problem) -> Iterator[tuple[float, Recipe]]:
    """Microseconds that are predicted, and the recipe: of each family that serves the problem's operands."""
    operands = problem.operands
    if by_simt(operands.a.dtype):
        for found in simt.candidates(operands, problem):
            yield found.us, found.recipe
        return
    packed_us = sm90.packing_us(operands, problem)
    for of, is_turned in ((problem, False), (problem.transposed, True)):
        for us, recipe in _hopper(of.operands, of):
            yield us + packed_us, replace(recipe, transposed=is_turned)
    if operands.a.dtype.bits > 8 and to_pack_for_wgmma(operands):
        for found in mma_sync.candidates(operands, problem, "sm_90"):
            yield found.us, found.recipe


def _hopper(operands: Operands, problem: Problem) -> Iterator[tuple[float, Recipe]]:
    """Of each tile the two best ways to divide it."""
    is_packed = bool(to_pack_for_wgmma(operands))
    for recipe in sm90.considered(operands):
        divisions: list[Split | None] = [None, *sm90.splits(recipe, operands, problem)]
        if recipe.options.get("schedule") != "single":
            divisions += [FILLED, _STREAM]
        weighed = sorted(
            [
                (predicted_us(recipe.shape, operands, problem, DEFAULT_DEVICE, each), str(each), each)
                for each in dict.fromkeys(divisions)
            ],
            key=lambda one: one[:2],
        )
        for us, _, each in weighed[:2]:
            yield us, replace(recipe, is_packed=is_packed, split=each)
