"""Candidates among the named SIMT plans; `simt.time` predicts their times."""

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
MAX_SPLITS = 96  # K splits whose accumulators one thread adds
_SPLITS = np.array(SPLITS)
_IS_BETWEEN = ~np.isin(np.arange(MAX_SPLITS + 2), SPLITS)  # by number of K splits: whether `SPLITS` does not have it
_LEAST_K = 32  # elements along K of a K split
_FEW = 2  # waves; with more, stream-K gains little, and was not timed
# Waves of tiles of 48, 96 or 192 rows or columns. With more, other tiles leave as little of a tile empty, and these
# were not timed.
_MOST_OF_THIRDS = 8
# Limits of stream-K: the depth of k-tiles that are loaded through registers to tiles at least `_WIDE` wide, the
# narrowest tile that is too narrow, and the CTAs per SM. Plans outside of them took 1.06 to 1.9 times the predicted
# time (H100 and H200, 2026-11-22).
_DEEPEST, _WIDE, _NARROW, _MOST_CTAS = 8, 256, 16, 3


@dataclass(frozen=True, eq=False)
class SimtFamily(Model):
    """Selects the SIMT plans to try for a problem with given operands, and predicts their times.

    Only plans that can implement the operands are considered. A plan is listed twice if repack passes (copies of
    operands before the GEMM) make an operand faster to load: without and with them.
    """

    recipes: tuple[SimtRecipe, ...] = ()

    def candidates(self, problem: Problem) -> Variants:
        """Return the SIMT candidates for a problem: plans that do not divide K, and plans with split-K or stream-K.

        Numbers of K splits to try are 2, 3, 4, 6, 8 and so on, up to the first one for which not all CTAs run at the
        same time. The largest one for which they do is tried too. Stream-K divides the k-tiles of the last, partial
        wave evenly among CTAs.
        """
        tiles, sms = self.tiles, self.device.sms
        count, at_once = tiles.tiles_of(problem), sms * tiles.ctas
        waves = count / np.maximum(1.0, at_once)
        full_splits = np.floor(at_once / np.maximum(1.0, count))
        most = min(MAX_SPLITS, problem.k // _LEAST_K)
        (whole,) = (~self._has_thirds | (waves <= _MOST_OF_THIRDS)).nonzero()
        which, split = ((_SPLITS[:, None] <= full_splits + 1) & (_SPLITS[:, None] <= most)).nonzero()
        is_between = _IS_BETWEEN.take(full_splits.astype(int), mode="clip")
        (full,) = ((full_splits > 1) & (full_splits <= most) & is_between).nonzero()
        is_few = (np.floor(waves) < waves) & (waves < _FEW) & (count * problem.k >= at_once * _LEAST_K)
        (few,) = (is_few & self._may_share).nonzero()
        splits = np.concatenate([np.ones(len(whole)), _SPLITS[which], full_splits[full], np.ones(len(few))])
        ctas = np.zeros(len(splits))
        ctas[len(splits) - len(few) :] = at_once[few]
        return Variants(np.concatenate([whole, split, full, few]), splits, ctas)

    @cached_property
    def _has_thirds(self) -> Column:
        """Return an array of flags, one per plan: is a side of its tile a multiple of 3, i.e. 48, 96 or 192?"""
        return (self.tiles.bm % 3 == 0) | (self.tiles.bn % 3 == 0)

    @cached_property
    def _may_share(self) -> Column:
        """Return an array of flags, one per plan: is stream-K (k-tiles divided evenly among CTAs) tried? Cached."""
        return may_share(self.tiles)


def may_share(tiles: Tiles) -> Column:
    """Return an array of flags, one per SIMT plan: is stream-K (k-tiles divided evenly among CTAs) tried for it?

    It is tried only for some sizes of tiles and numbers of stages, because other plans with stream-K take longer than
    predicted.

    tiles   properties of the plans, as arrays with one entry per plan
    """
    is_deep = (tiles.by_registers > 0) & (tiles.bk > _DEEPEST) & (np.maximum(tiles.bm, tiles.bn) >= _WIDE)
    return ~is_deep & (np.minimum(tiles.bm, tiles.bn) > _NARROW) & (tiles.ctas <= _MOST_CTAS)


def family(request: Request) -> SimtFamily:
    """Return the SIMT plans that can implement the f32 or f64 operands of a request, with their time model.

    raises   PlanError with the reasons if no named plan can implement the operands
    """
    serving, plans = _family(request.loaded, request.arch, request.device)
    if plans is None:
        raise serving.error(request)
    return plans


@lru_cache(maxsize=256)
def _family(operands: Operands, arch: str, device: Device) -> tuple[Serving[SimtRecipe], SimtFamily | None]:
    """Build all named SIMT plans for the operands, and separate those that can implement them. The result is cached.

    operands       types, majorness and alignment of A to D
    arch, device   architecture to build for, and device whose rates the time model uses
    returns        a pair: the usable plans and the rules that all other plans violate; and the object that selects and
                   times usable plans, or None if no plan is usable
    """
    serving = Serving.of(_recipes(operands), operands, arch, device)
    if not serving.recipes:
        return serving, None
    return serving, SimtFamily(Tiles.of(serving.plans), operands, device, recipes=serving.recipes)


def _recipes(operands: Operands) -> Iterator[SimtRecipe]:
    """Yield the recipe (name and arguments) of each named SIMT plan, followed by its variant with repack passes.

    A repack pass is a copy kernel before the GEMM. The variant is left out if it does not make loads faster.
    """
    for recipe in SIMT_PLANS:
        yield recipe
        if recipe.to_repack(operands):
            yield replace(recipe, is_repacked=True)
