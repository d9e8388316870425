"""The candidates among the named SIMT plans; `simt.time` predicts their times."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from cutegemm.choice.candidate import Request, Serving, Variants
from cutegemm.choice.columns import Column
from cutegemm.choice.simt.named import SIMT_PLANS
from cutegemm.choice.simt.recipe import SimtRecipe
from cutegemm.choice.simt.time import Model, Tiles
from cutegemm.machine.device import Device
from cutegemm.plan.problem import Operands, Problem

SPLITS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
MAX_SPLITS = 96  # which one thread adds
_SPLITS = np.array(SPLITS)
_IS_BETWEEN = ~np.isin(np.arange(MAX_SPLITS + 2), SPLITS)  # by the number of parts
_LEAST_K = 32  # of a part
_FEW = 2  # grids of tiles: with more, evenly shared k-tiles gain little, and were not timed
# Tiles of 48, 96 or 192 rows or columns, at most so many for each CTA that runs at a time: with more, other tiles leave
# as little empty, and these were not timed
_MOST_OF_THIRDS = 8
# Tiles whose k-tiles CTAs share evenly: k-tiles of wide ones that are loaded through registers are at most so deep, no
# tile is so narrow, and no more CTAs share a multiprocessor. Deeper ones took 1.09 to 1.2 times the predicted time,
# narrow ones up to 1.9, four CTAs and more 1.06 to 1.08 (H100 and H200, 2026-11-22)
_DEEPEST, _WIDE, _NARROW, _MOST_CTAS = 8, 256, 16, 3


@dataclass(frozen=True, eq=False)
class SimtFamily(Model):
    """The SIMT plans that serve operands, as they are and packed: see `candidate.Family`."""

    recipes: tuple[SimtRecipe, ...] = ()

    def candidates(self, problem: Problem) -> Variants:
        """Return the recipes whole, with K split, and with k-tiles that CTAs share evenly.

        Parts of K are as many as the multiprocessors hold at a time, one more, and fewer.
        """
        tiles, sms = self.tiles, self.device.sms
        count, at_once = tiles.tiles_of(problem), sms * tiles.ctas
        grids = count / np.maximum(1.0, at_once)
        held = np.floor(at_once / np.maximum(1.0, count))
        most = min(MAX_SPLITS, problem.k // _LEAST_K)
        (whole,) = (~self._has_thirds | (grids <= _MOST_OF_THIRDS)).nonzero()
        which, split = ((_SPLITS[:, None] <= held + 1) & (_SPLITS[:, None] <= most)).nonzero()
        (full,) = ((held > 1) & (held <= most) & _IS_BETWEEN.take(held.astype(int), mode="clip")).nonzero()
        is_few = (np.floor(grids) < grids) & (grids < _FEW) & (count * problem.k >= at_once * _LEAST_K)
        (few,) = (is_few & self._may_share).nonzero()
        splits = np.concatenate([np.ones(len(whole)), _SPLITS[which], held[full], np.ones(len(few))])
        ctas = np.zeros(len(splits))
        ctas[len(splits) - len(few) :] = at_once[few]
        return Variants(np.concatenate([whole, split, full, few]), splits, ctas)

    @cached_property
    def _has_thirds(self) -> Column:
        """Whether rows or columns of a tile are three times a power of two."""
        return (self.tiles.bm % 3 == 0) | (self.tiles.bn % 3 == 0)

    @cached_property
    def _may_share(self) -> Column:
        return may_share(self.tiles)


def may_share(tiles: Tiles) -> Column:
    """Return whether CTAs may share the k-tiles of plans evenly."""
    is_deep = (tiles.by_registers > 0) & (tiles.bk > _DEEPEST) & (np.maximum(tiles.bm, tiles.bn) >= _WIDE)
    return ~is_deep & (np.minimum(tiles.bm, tiles.bn) > _NARROW) & (tiles.ctas <= _MOST_CTAS)


def family(request: Request) -> SimtFamily:
    """Return the plans for f32 and f64.

    raises   PlanError with the reasons if no named plan serves the operands
    """
    served, found = _family(request.loaded, request.arch, request.device)
    if found is None:
        raise served.error(request)
    return found


@lru_cache(maxsize=256)
def _family(operands: Operands, arch: str, device: Device) -> tuple[Serving[SimtRecipe], SimtFamily | None]:
    served = Serving.of(_recipes(operands), operands, arch, device)
    if not served.recipes:
        return served, None
    return served, SimtFamily(Tiles.of(served.plans), operands, device, recipes=served.recipes)


def _recipes(operands: Operands) -> Iterator[SimtRecipe]:
    """Yield each plan as it is, and packed if that makes an operand better to load."""
    for recipe in SIMT_PLANS:
        yield recipe
        if recipe.to_repack(operands):
            yield replace(recipe, is_repacked=True)
