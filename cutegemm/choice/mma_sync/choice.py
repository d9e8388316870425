"""The candidates among the named mma.sync plans; `mma_sync.time` predicts their times."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from cutegemm.choice.candidate import Request, Serving, Variants
from cutegemm.choice.columns import Column
from cutegemm.choice.mma_sync.named import MMA_SYNC_PLANS
from cutegemm.choice.mma_sync.recipe import MmaSyncRecipe, by_halves, spills
from cutegemm.choice.mma_sync.time import Model
from cutegemm.machine.device import Device
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Operands, Problem

SPLITS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96)
MAX_SPLITS = 128  # which one thread adds, one after the other
_SPLITS = np.array(SPLITS)
_IS_BETWEEN = ~np.isin(np.arange(MAX_SPLITS + 1), (0, 1, *SPLITS))  # by the number of parts


@dataclass(frozen=True, eq=False)
class MmaSyncFamily(Model):
    """The mma.sync plans that serve operands: see `candidate.Family`.

    may_be_whole   of each recipe, whether it is considered with K whole: see `spills`
    """

    recipes: tuple[MmaSyncRecipe, ...] = ()
    may_be_whole: Column = True

    def candidates(self, problem: Problem) -> Variants:
        """Return the recipes whole and with K split.

        Parts are as many as the multiprocessors hold at a time, or as there are k-tiles, and fewer.
        """
        tiles, sms = self.tiles, self.device.sms
        held = np.minimum(sms * tiles.ctas // np.maximum(1, tiles.tiles_of(problem)), MAX_SPLITS)
        full = np.minimum(held, -(-problem.k // tiles.bk))
        (whole,) = self.may_be_whole.nonzero()
        which, split = (full >= _SPLITS[:, None]).nonzero()
        (rest,) = _IS_BETWEEN[full.astype(int)].nonzero()
        splits = np.concatenate([np.ones(len(whole)), _SPLITS[which], full[rest]])
        return Variants(np.concatenate([whole, split, rest]), splits)


def family(request: Request) -> MmaSyncFamily:
    """Return the plans that multiply by mma.sync.

    raises   PlanError with the reasons if no named plan serves the operands

    >>> from cutegemm.choice.candidate import ranked
    >>> from cutegemm.machine.device import device_named
    >>> bf16, a100 = Operands.of("bf16"), device_named("a100-80gb")
    >>> found = family(Request(bf16, arch="sm_80", device=a100))
    >>> [str(next(ranked(found, Problem(*mnk))).recipe) for mnk in ((256, 512, 4096), (8192, 8192, 8192))]
    ['mma_64x64/k6', 'mma_128x256']
    """
    served, found = _family(request.loaded, request.arch, request.device)
    if found is None:
        raise served.error(request)
    return found


@lru_cache(maxsize=256)
def _family(operands: Operands, arch: str, device: Device) -> tuple[Serving[MmaSyncRecipe], MmaSyncFamily | None]:
    served = Serving.of(MMA_SYNC_PLANS, operands, arch, device, _rule)
    if not served.recipes:
        return served, None
    model = Model.of(served.recipes, operands, device)
    may_be_whole = np.array([not spills(plan) for plan in served.plans])
    found = MmaSyncFamily(
        model.tiles, model.peak_tflops, operands, device, recipes=served.recipes, may_be_whole=may_be_whole
    )
    return served, found


def _rule(plan: GemmPlan) -> str:
    return "elements of 2 bytes are loaded one at a time, and threads hold too many of them." if by_halves(plan) else ""
