"""The choice among the named mma.sync plans, by the time that `mma_sync.time` predicts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import numpy as np

from cutegemm.choose.candidate import Candidate
from cutegemm.choose.columns import Column, by_time
from cutegemm.choose.mma_sync.named import MMA_SYNC_PLANS
from cutegemm.choose.mma_sync.recipe import MmaSyncRecipe, by_halves, spills
from cutegemm.choose.mma_sync.time import Model, Tiles
from cutegemm.choose.refusals import by_reason
from cutegemm.errors import PlanError
from cutegemm.machine.arch import DEFAULT_ARCH
from cutegemm.machine.device import DEFAULT_DEVICE, Device
from cutegemm.plan.problem import Operands, Problem
from cutegemm.plan.work.split import Split

SPLITS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96)
MOST_PARTS = 128  # which one thread adds, one after the other
_SPLITS = np.array(SPLITS)
_IS_BETWEEN = ~np.isin(np.arange(MOST_PARTS + 1), (0, 1, *SPLITS))  # by the number of parts


def candidates(
    operands: Operands, problem: Problem, arch: str = DEFAULT_ARCH, device: Device = DEFAULT_DEVICE
) -> list[Candidate]:
    """`ranked`, all of them."""
    return list(ranked(operands, problem, arch, device))


def ranked(
    operands: Operands, problem: Problem, arch: str = DEFAULT_ARCH, device: Device = DEFAULT_DEVICE
) -> Iterator[Candidate]:
    """Plans, whole and with K split, that which is held to be the fastest first. The split ones are not built yet.

    raises   PlanError where no named plan serves the operands

    >>> from cutegemm.machine.device import device_named
    >>> bf16, a100 = Operands.of("bf16"), device_named("a100-80gb")
    >>> small, large = Problem(256, 512, 4096), Problem(8192, 8192, 8192)
    >>> [str(next(ranked(bf16, problem, "sm_80", a100)).recipe) for problem in (small, large)]
    ['mma_64x64/k6', 'mma_128x256']
    """
    served = _serving(operands, arch, device)
    if served.model is None:
        raise PlanError(f"choose: no named plan for {operands} on {arch}", by_reason(served.refusals))
    rows, parts = _divisions(served.model, served, problem)
    found = served.model.predicted(problem, rows, parts)
    return (
        Candidate(
            _variant(served.recipes[rows[place]], int(parts[place])),
            float(found.us[place]),
            partial(found.bound, place),
        )
        for place in by_time(found.us)
    )


@dataclass(frozen=True)
class Serving:
    """The recipes whose plans serve operands on an architecture, and the model of their times; None where none does.

    may_split  of each recipe
    may_whole  of each recipe, whether it is considered without: see `spills`
    refusals   why others do not serve
    """

    recipes: tuple[MmaSyncRecipe, ...]
    model: Model | None
    may_split: Column
    may_whole: Column
    refusals: tuple[tuple[object, str], ...]


@lru_cache(maxsize=256)
def _serving(operands: Operands, arch: str, device: Device) -> Serving:
    recipes, plans, rates = [], [], []
    refused: list[tuple[object, str]] = []
    for recipe in MMA_SYNC_PLANS:
        assert recipe.rate is not None
        try:
            plan = recipe.build(operands, arch=arch, device=device)
        except PlanError as error:
            refused += [(recipe, rule) for rule in error.violations]
            continue
        if by_halves(plan):
            refused.append(
                (recipe, "elements of 2 bytes come one at a time, of which threads hold too many.")
            )
            continue
        recipes.append(recipe)
        plans.append(plan)
        rates.append(recipe.rate)
    model = None
    if plans:
        peak = device.peak_tflops(plans[0].tiled_mma.atom)
        model = Model(Tiles.of(plans, rates), peak, operands, device)
    return Serving(
        tuple(recipes),
        model,
        np.array([bool(recipe.splits) for recipe in recipes]),
        np.array([not spills(plan) for plan in plans]),
        tuple(refused),
    )


def _divisions(model: Model, served: Serving, problem: Problem) -> tuple[Column, Column]:
    """Numbers of recipes, each as often as there are ways to divide its K, and how many parts: as many as the
    multiprocessors hold at a time, or as there are k-tiles, and fewer."""
    tiles, sms = model.tiles, model.device.sms
    held = np.minimum(sms * tiles.ctas // np.maximum(1, tiles.tiles_of(problem)), MOST_PARTS)
    full = np.where(served.may_split, np.minimum(held, -(-problem.k // tiles.bk)), 1)
    (whole,) = served.may_whole.nonzero()
    which, split = (full >= _SPLITS[:, None]).nonzero()
    (rest,) = _IS_BETWEEN[full.astype(int)].nonzero()
    rows = np.concatenate([whole, split, rest])
    return rows, np.concatenate([np.ones(len(whole)), _SPLITS[which], full[rest]])


@lru_cache(maxsize=4096)
def _variant(recipe: MmaSyncRecipe, parts: int) -> MmaSyncRecipe:
    return recipe if parts == 1 else replace(recipe, split=Split(parts))
