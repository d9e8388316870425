"""The choice among the named mma.sync plans, by the time that `mma_sync.time` predicts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from cutegemm.choose.candidate import Candidate
from cutegemm.choose.columns import Column
from cutegemm.choose.mma_sync.named import MMA_SYNC_FED, MMA_SYNC_PLANS
from cutegemm.choose.mma_sync.recipe import MmaSyncRecipe, by_halves, spills
from cutegemm.choose.mma_sync.time import Tiles, predicted
from cutegemm.choose.refusals import by_reason
from cutegemm.errors import PlanError
from cutegemm.machine.arch import DEFAULT_ARCH
from cutegemm.machine.device import DEFAULT_DEVICE, Device
from cutegemm.plan.problem import Operands, Problem
from cutegemm.plan.work.split import Split

SPLITS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96)
MOST_PARTS = 128  # which one thread adds, one after the other


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
    if not served.recipes:
        raise PlanError(f"choose: no named plan for {operands} on {arch}", by_reason(served.refusals))
    rows, parts = _divisions(served, problem, device.sms)
    found = predicted(served.tiles.taken(rows), served.peak, operands, problem, device, parts)
    return (
        Candidate(
            _variant(served.recipes[rows[place]], int(parts[place])),
            float(found.us[place]),
            found.bound(place),
        )
        for place in np.argsort(found.us, kind="stable").tolist()
    )


@dataclass(frozen=True)
class Serving:
    """The recipes whose plans serve operands on an architecture, with what the model asks of them.

    peak       TFLOP/s of the device's tensor cores by mma.sync, where it has such
    may_split  of each recipe
    may_whole  of each recipe, whether it is considered without: see `spills`
    refusals   why others do not serve
    """

    recipes: tuple[MmaSyncRecipe, ...]
    tiles: Tiles
    peak: float | None
    may_split: Column
    may_whole: Column
    refusals: tuple[tuple[object, str], ...]


@lru_cache(maxsize=256)
def _serving(operands: Operands, arch: str, device: Device) -> Serving:
    fed = MMA_SYNC_FED if arch.startswith("sm_90") else ()
    recipes, plans, rates = [], [], []
    refused: list[tuple[object, str]] = []
    for recipe in (*MMA_SYNC_PLANS, *fed):
        if recipe.rate is None:
            continue
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
    return Serving(
        tuple(recipes),
        Tiles.of(plans, rates),
        device.peak_tflops(plans[0].tiled_mma.atom) if plans else None,
        np.array([bool(recipe.splits) for recipe in recipes]),
        np.array([not spills(plan) for plan in plans]),
        tuple(refused),
    )


def _divisions(served: Serving, problem: Problem, sms: int) -> tuple[Column, Column]:
    """Numbers of recipes, each as often as there are ways to divide its K, and how many parts: as many as the
    multiprocessors hold at a time, or as there are k-tiles, and fewer."""
    tiles = served.tiles
    held = np.minimum(sms * tiles.ctas // np.maximum(1, tiles.tiles_of(problem)), MOST_PARTS)
    full = np.where(served.may_split, np.minimum(held, -(-problem.k // tiles.bk)), 1)
    every = np.arange(len(full))
    rows = [
        every[served.may_whole],
        *(every[full >= parts] for parts in SPLITS),
        every[~np.isin(full, (0, 1, *SPLITS))],
    ]
    return np.concatenate(rows), np.concatenate(
        [
            *(np.full(len(some), parts) for some, parts in zip(rows, (1, *SPLITS), strict=False)),
            full[rows[-1]],
        ]
    )


@lru_cache(maxsize=4096)
def _variant(recipe: MmaSyncRecipe, parts: int) -> MmaSyncRecipe:
    return recipe if parts == 1 else replace(recipe, split=Split(parts))
