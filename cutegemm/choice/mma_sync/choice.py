"""Candidates among the named mma.sync plans; `mma_sync.time` predicts their times."""

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
MAX_SPLITS = 128  # K splits whose accumulators one thread adds, one after the other
_SPLITS = np.array(SPLITS)
_IS_BETWEEN = ~np.isin(np.arange(MAX_SPLITS + 1), (0, 1, *SPLITS))  # by number of K splits: whether `SPLITS` lacks it


@dataclass(frozen=True, eq=False)
class MmaSyncFamily(Model):
    """Selects the mma.sync plans to try for a problem with given operands, and predicts their times.

    Only plans that can implement the operands are considered.

    may_be_whole   array of flags, one per plan: is the plan tried without split-K? False for plans that would then
                   spill registers
    """

    recipes: tuple[MmaSyncRecipe, ...] = ()
    may_be_whole: Column = True

    def candidates(self, problem: Problem) -> Variants:
        """Return the mma.sync candidates for a problem: plans without split-K, and with several numbers of K splits.

        The largest number of K splits is the one for which all CTAs run at the same time, but at most one split per
        k-tile. Smaller numbers (2, 3, 4, 6, 8, ...) are tried too.
        """
        tiles, sms = self.tiles, self.device.sms
        resident = np.minimum(sms * tiles.ctas // np.maximum(1, tiles.tiles_of(problem)), MAX_SPLITS)
        full = np.minimum(resident, -(-problem.k // tiles.bk))
        (whole,) = self.may_be_whole.nonzero()
        which, split = (full >= _SPLITS[:, None]).nonzero()
        (rest,) = _IS_BETWEEN[full.astype(int)].nonzero()
        splits = np.concatenate([np.ones(len(whole)), _SPLITS[which], full[rest]])
        return Variants(np.concatenate([whole, split, rest]), splits)


def family(request: Request) -> MmaSyncFamily:
    """Return the mma.sync plans that can implement the operands of a request, with their time model.

    raises   PlanError with the reasons if no named plan can implement the operands

    >>> from cutegemm.choice.candidate import ranked
    >>> from cutegemm.machine.device import device_named
    >>> bf16, a100 = Operands.of("bf16"), device_named("a100-80gb")
    >>> plans = family(Request(bf16, arch="sm_80", device=a100))
    >>> [str(next(ranked(plans, Problem(*mnk))).recipe) for mnk in ((256, 512, 4096), (8192, 8192, 8192))]
    ['mma_64x64/k6', 'mma_128x256']
    """
    serving, plans = _family(request.loaded, request.arch, request.device)
    if plans is None:
        raise serving.error(request)
    return plans


@lru_cache(maxsize=256)
def _family(operands: Operands, arch: str, device: Device) -> tuple[Serving[MmaSyncRecipe], MmaSyncFamily | None]:
    """Build all named mma.sync plans for the operands, and separate those that can implement them. Cached.

    operands       types, majorness and alignment of A to D
    arch, device   architecture to build for, and device whose rates the time model uses
    returns        a pair: the usable plans and the rules that all other plans violate; and the object that selects and
                   times usable plans, or None if no plan is usable
    """
    serving = Serving.of(MMA_SYNC_PLANS, operands, arch, device, _rule)
    if not serving.recipes:
        return serving, None
    model = Model.of(serving.recipes, operands, device)
    may_be_whole = np.array([not spills(plan) for plan in serving.plans])
    plans = MmaSyncFamily(
        model.tiles, model.peak_tflops, operands, device, recipes=serving.recipes, may_be_whole=may_be_whole
    )
    return serving, plans


def _rule(plan: GemmPlan) -> str:
    """Return the error text for a plan that must not be used since it loads a large tile 2 bytes at a time; else ""."""
    return "elements of 2 bytes are loaded one at a time, and threads hold too many of them." if by_halves(plan) else ""
