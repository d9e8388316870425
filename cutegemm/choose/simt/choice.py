"""The choice among the named SIMT plans, by the time that `simt.time` predicts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from cutegemm.choose.candidate import Candidate
from cutegemm.choose.columns import Column, by_time
from cutegemm.choose.refusals import by_reason
from cutegemm.choose.simt.named import SIMT_PLANS
from cutegemm.choose.simt.recipe import SimtRecipe
from cutegemm.choose.simt.time import Tiles, predicted
from cutegemm.errors import PlanError
from cutegemm.machine.arch import DEFAULT_ARCH
from cutegemm.machine.device import DEFAULT_DEVICE, Device
from cutegemm.plan.problem import Operands, Problem
from cutegemm.plan.work.split import Split

SPLITS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
MOST_PARTS = 96  # which one thread adds
_LEAST_K = 32  # of a part
_FEW = 2  # grids of tiles: beyond that evenly divided k-tiles bring little, and have not been timed
_EVENLY = Split(waves=1)
# Of tiles whose k-tiles CTAs share evenly: wide ones that go through registers are as deep at most, none is as narrow,
# and no more CTAs share a multiprocessor. Deeper ones took 1.09 to 1.2 times what they are held to take, narrow ones
# up to 1.9, four CTAs and more 1.06 to 1.08, for reasons that were not found (H100 and H200, 2026-11-22)
_DEEPEST, _WIDE, _NARROW, _MOST_CTAS = 8, 256, 16, 3


def ranked(
    operands: Operands, problem: Problem, arch: str = DEFAULT_ARCH, device: Device = DEFAULT_DEVICE
) -> Iterator[Candidate]:
    """Plans, whole and with K split, that which is held to be the fastest first. The split ones are not built yet.

    raises   PlanError where no named plan serves the operands
    """
    served = _serving(operands, arch)
    if not served.recipes:
        raise PlanError(f"choose: no named plan for {operands} on {arch}", by_reason(served.refusals))
    rows, parts, grid = _divisions(served.tiles, problem, device.sms)
    found = predicted(served.tiles.taken(rows), operands, problem, device, parts, grid)
    return (
        Candidate(
            _variant(served.recipes[rows[place]], int(parts[place]), int(grid[place])),
            float(found.us[place]),
            found.bound(place),
        )
        for place in by_time(found.us)
    )


@dataclass(frozen=True)
class Serving:
    """The recipes whose plans serve operands on an architecture, as they are and packed, with what the model asks.

    refusals   why others do not serve
    """

    recipes: tuple[SimtRecipe, ...]
    tiles: Tiles
    refusals: tuple[tuple[object, str], ...]


@lru_cache(maxsize=256)
def _serving(operands: Operands, arch: str) -> Serving:
    recipes, plans = [], []
    refused: list[tuple[object, str]] = []
    for named in SIMT_PLANS:
        for is_packed in (False, True) if named.to_pack(operands) else (False,):
            recipe = replace(named, is_packed=is_packed)
            try:
                plan = recipe.build(operands)
            except PlanError as error:
                refused += [(recipe, rule) for rule in error.violations]
                continue
            broken = plan.violations(arch)
            refused += [(recipe, rule) for rule in broken]
            if not broken:
                recipes.append(recipe)
                plans.append(plan)
    return Serving(tuple(recipes), Tiles.of(plans), tuple(refused))


def _divisions(tiles: Tiles, problem: Problem, sms: int) -> tuple[Column, Column, Column]:
    """Numbers of recipes, each as often as there are ways to divide its K; in how many parts; and among how many CTAs
    evenly, or 0. Parts are as many as the multiprocessors hold at a time, one more, and fewer."""
    count, at_once = tiles.tiles_of(problem), sms * tiles.ctas
    held = at_once // np.maximum(1, count)
    most = np.minimum(MOST_PARTS, problem.k // _LEAST_K)
    every = np.arange(len(count))
    of_full = every[(held > 1) & (held <= most) & ~np.isin(held, SPLITS)]
    few = (count % at_once > 0) & (count < _FEW * at_once) & (count * problem.k >= at_once * _LEAST_K)
    few &= may_share(tiles)
    rows = [every, *(every[(parts <= held + 1) & (parts <= most)] for parts in SPLITS), of_full, every[few]]
    parts = [
        *(np.full(len(some), parts) for some, parts in zip(rows, (1, *SPLITS), strict=False)),
        held[of_full],
        np.ones(int(few.sum())),
    ]
    grid = [np.zeros(sum(map(len, rows[:-1]))), at_once[few]]
    return np.concatenate(rows), np.concatenate(parts), np.concatenate(grid)


def may_share(tiles: Tiles) -> Column:
    """Whether CTAs may share a plan's k-tiles evenly."""
    is_deep = (tiles.by_registers > 0) & (tiles.bk > _DEEPEST) & (np.maximum(tiles.bm, tiles.bn) >= _WIDE)
    return ~is_deep & (np.minimum(tiles.bm, tiles.bn) > _NARROW) & (tiles.ctas <= _MOST_CTAS)


@lru_cache(maxsize=4096)
def _variant(recipe: SimtRecipe, parts: int, grid: int) -> SimtRecipe:
    if grid:
        return replace(recipe, split=_EVENLY, ctas=grid)
    return recipe if parts == 1 else replace(recipe, split=Split(parts))
