"""The constants of the choice among mma.sync plans, from what was measured; and how good that choice is.

    python -m docs.evidence fit-mma-sync docs/evidence/data/mma_{sync_fit,power}_*.json

It needs no GPU, but scipy. Least squares of the logarithms find those `MmaCosts` that err least for the plans that are
near the best of their problem. Plans whose k-tiles TMA brings are left out: they are persistent, and few.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np

from cutegemm.choose.mma_sync.recipe import MmaSyncRecipe, MmaTmaRecipe
from cutegemm.choose.mma_sync.time import COSTS, MmaCosts, Tiles, predicted
from cutegemm.choose.names import recipe_named
from cutegemm.errors import CutegemmError
from cutegemm.machine.arch import DEFAULT_ARCH
from cutegemm.machine.device import DEFAULT_DEVICE, Device, device_called
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Problem
from docs.evidence.contest import operands_of

_LEAST_WEIGHT = 0.1  # of a plan that takes far longer than the best
_TIED = 0.05  # of a constant's logarithm to what it was
_NEAR = 1.15  # times the best: plans whose predictions are judged


@dataclass(frozen=True)
class Timed:
    """Plans that were timed on a problem in turns.

    us   microseconds of each
    """

    plans: tuple[GemmPlan, ...]
    rates: tuple[float, ...]
    problem: Problem
    device: Device
    us: tuple[float, ...]

    @cached_property
    def _tiles(self) -> Tiles:
        return Tiles.of(self.plans, self.rates)

    def errors(self, costs: MmaCosts) -> Any:
        """Logarithms of what is predicted over what was measured."""
        parts = np.array([plan.split_k for plan in self.plans])
        peak = self.device.peak_tflops(self.plans[0].tiled_mma.atom)
        of = self.problem
        found = predicted(self._tiles, peak, of.operands, of, self.device, parts, costs)
        return np.log(found.us / np.array(self.us))

    @property
    def slower(self) -> Any:
        """Times the best."""
        return np.array(self.us) / min(self.us)


def timed(found: Mapping[str, Any]) -> list[Timed]:
    """The problems of a file, with the plans of the tables that were timed on each."""
    gpu = found.get("gpu") or found.get("machine", {}).get("gpu", "")
    device = device_called(gpu, DEFAULT_ARCH, DEFAULT_DEVICE.sms)
    by_problem: dict[Problem, list[tuple[GemmPlan, float, float]]] = {}
    for row in found["rows"]:
        recipe = recipe_named(row["plan"]) if row.get("plan", "").startswith("mma_") else None
        if "us" not in row or not isinstance(recipe, MmaSyncRecipe) or isinstance(recipe, MmaTmaRecipe):
            continue
        if recipe.rate is not None and (recipe.split is None or recipe.split.reduction == "kernel"):
            m, n, k = row["m"], row["n"], row["k"]
            problem = Problem(m, n, k, operands=operands_of(row["dtype"], row["layout"], m, n, k))
            plan = recipe.build(problem.operands, device=device)
            by_problem.setdefault(problem, []).append((plan, recipe.rate, row["us"]))
    contests = []
    for problem, plans in by_problem.items():
        built, rates, us = zip(*plans, strict=True)
        contests.append(Timed(built, rates, problem, device, us))
    return contests


def fit(contests: Sequence[Timed], steps: int, costs: MmaCosts = COSTS) -> MmaCosts:
    """The costs whose errors are least.

    steps   of least squares
    """
    from scipy.optimize import least_squares

    names = list(asdict(costs))
    start = np.log([getattr(costs, name) for name in names])

    def of(logarithms: Any) -> MmaCosts:
        return replace(costs, **dict(zip(names, np.exp(logarithms).tolist(), strict=True)))

    def residuals(logarithms: Any) -> Any:
        made = of(logarithms)
        weighted = [one.errors(made) * np.maximum(_LEAST_WEIGHT**0.5, 1 / one.slower) for one in contests]
        return np.concatenate([*weighted, _TIED * (logarithms - start)])

    return of(least_squares(residuals, start, loss="soft_l1", f_scale=0.15, max_nfev=steps).x)


def summary(contests: Sequence[Timed], costs: MmaCosts = COSTS) -> str:
    """How far predictions of plans near the best are off, and what the choice by them loses.

    >>> file = Path("docs/evidence/data/mma_sync_fit_h200.json")
    >>> summary(timed(json.loads(file.read_text()))).partition(":")[0]
    '35 problems'
    """
    near, lost = [], []
    for one in contests:
        errors = one.errors(costs)
        near.append(errors[one.slower <= _NEAR])
        lost.append(float(one.slower[np.argmin(errors + np.log(one.us))]))
    off = np.concatenate(near)
    return (
        f"{len(contests)} problems: of plans near the best {math.sqrt(float(np.mean(off**2))):.1%} off (root mean "
        f"square), {float(np.mean(off)):+.1%} on average; the choice takes {geometric_mean(lost):.3f} of the best "
        f"time, {max(lost):.3f} at most"
    )


def main(argv: Sequence[str]) -> None:
    """Prints the costs, and what the choice loses by them."""
    parser = argparse.ArgumentParser(prog="python -m docs.evidence fit-mma-sync", description=__doc__)
    parser.add_argument("files", nargs="+", metavar="FILE.json", help="what docs.evidence wrote")
    parser.add_argument("--steps", type=int, default=50, help="of least squares; 0: today's costs")
    given = parser.parse_args(argv)
    by_file = {file: timed(json.loads(Path(file).read_text())) for file in given.files}
    every = [one for contests in by_file.values() for one in contests]
    if not every:
        raise CutegemmError("fit_mma_sync: no file holds a timed mma.sync plan.")
    costs = fit(every, given.steps) if given.steps else COSTS
    print("MmaCosts(", *(f"    {name}={value:.3g}," for name, value in asdict(costs).items()), ")", sep="\n")
    for file, contests in by_file.items():
        print(f"{file}: {summary(contests, costs)}")
