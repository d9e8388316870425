"""The choice among the named SIMT plans, by the time that `simt.time` predicts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import numpy as np

from cutegemm.choose.candidate import Candidate
from cutegemm.choose.columns import Column, by_time
from cutegemm.choose.refusals import by_reason
from cutegemm.choose.simt.named import SIMT_PLANS
from cutegemm.choose.simt.recipe import SimtRecipe
from cutegemm.choose.simt.time import Model, Tiles
from cutegemm.errors import PlanError
from cutegemm.machine.arch import DEFAULT_ARCH
from cutegemm.machine.device import DEFAULT_DEVICE, Device
from cutegemm.plan.problem import Operands, Problem
from cutegemm.plan.work.split import Split

SPLITS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
MOST_PARTS = 96  # which one thread adds
_SPLITS = np.array(SPLITS)
_IS_BETWEEN = ~np.isin(np.arange(MOST_PARTS + 2), SPLITS)  # by the number of parts
_LEAST_K = 32  # of a part
_FEW = 2  # grids of tiles: beyond that evenly divided k-tiles bring little, and have not been timed
_EVENLY = Split(waves=1)
# Of tiles of 48, 96 or 192 rows or columns, at most so many for each CTA that runs at a time: with more, other tiles
# leave as little empty, and these were not timed
_MOST_OF_THIRDS = 8
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
    served = _serving(operands, arch, device)
    if not served.recipes:
        raise PlanError(f"choose: no named plan for {operands} on {arch}", by_reason(served.refusals))
    rows, parts, grid = _divisions(served, problem)
    found = served.model.predicted(problem, rows, parts, grid)
    return (
        Candidate(
            _variant(served.recipes[rows[place]], int(parts[place]), int(grid[place])),
            float(found.us[place]),
            partial(found.bound, place),
        )
        for place in by_time(found.us)
    )


@dataclass(frozen=True)
class Serving:
    """The recipes whose plans serve operands on an architecture, as they are and packed, and the model of their times.

    may_share  of each recipe
    refusals   why others do not serve
    """

    recipes: tuple[SimtRecipe, ...]
    model: Model
    may_share: Column
    refusals: tuple[tuple[object, str], ...]


@lru_cache(maxsize=256)
def _serving(operands: Operands, arch: str, device: Device) -> Serving:
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
            broken = plan.refusals(arch)
            refused += [(recipe, rule) for rule in broken]
            if not broken:
                recipes.append(recipe)
                plans.append(plan)
    tiles = Tiles.of(plans)
    shares = may_share(tiles) if plans else np.zeros(0, bool)
    return Serving(tuple(recipes), Model(tiles, operands, device), shares, tuple(refused))


def _divisions(served: Serving, problem: Problem) -> tuple[Column, Column, Column]:
    """Numbers of recipes, each as often as there are ways to divide its K; in how many parts; and among how many CTAs
    evenly, or 0. Parts are as many as the multiprocessors hold at a time, one more, and fewer."""
    tiles, sms = served.model.tiles, served.model.device.sms
    count, at_once = tiles.tiles_of(problem), sms * tiles.ctas
    grids = count / np.maximum(1.0, at_once)
    held = np.floor(at_once / np.maximum(1.0, count))
    most = min(MOST_PARTS, problem.k // _LEAST_K)
    (whole,) = (~_has_thirds(tiles) | (grids <= _MOST_OF_THIRDS)).nonzero()
    which, split = ((_SPLITS[:, None] <= held + 1) & (_SPLITS[:, None] <= most)).nonzero()
    (full,) = ((held > 1) & (held <= most) & _IS_BETWEEN.take(held.astype(int), mode="clip")).nonzero()
    is_few = (np.floor(grids) < grids) & (grids < _FEW) & (count * problem.k >= at_once * _LEAST_K)
    (few,) = (is_few & served.may_share).nonzero()
    rows = np.concatenate([whole, split, full, few])
    parts = np.concatenate([np.ones(len(whole)), _SPLITS[which], held[full], np.ones(len(few))])
    grid = np.zeros(len(rows))
    grid[len(rows) - len(few) :] = at_once[few]
    return rows, parts, grid


def _has_thirds(tiles: Tiles) -> Column:
    """Whether rows or columns of a tile are three times a power of two."""
    return (tiles.bm % 3 == 0) | (tiles.bn % 3 == 0)


def may_share(tiles: Tiles) -> Column:
    """Whether CTAs may share a plan's k-tiles evenly."""
    is_deep = (tiles.by_registers > 0) & (tiles.bk > _DEEPEST) & (np.maximum(tiles.bm, tiles.bn) >= _WIDE)
    return ~is_deep & (np.minimum(tiles.bm, tiles.bn) > _NARROW) & (tiles.ctas <= _MOST_CTAS)


@lru_cache(maxsize=4096)
def _variant(recipe: SimtRecipe, parts: int, grid: int) -> SimtRecipe:
    if grid:
        return replace(recipe, split=_EVENLY, ctas=grid)
    return recipe if parts == 1 else replace(recipe, split=Split(parts))
