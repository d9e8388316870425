"""The constants of the choice among mma.sync plans, from what was measured; and how good that choice is.

    python -m docs.evidence fit-mma-sync --measure mma_sync_fit.json       # on a GPU
    python -m docs.evidence fit-mma-sync \
        docs/evidence/data/{mma_sync_fit*,mma_power_bf16,mma_power_tf32,choice_fit_seed*}.json

The fit needs no GPU, but scipy. Least squares of the logarithms find those `MmaCosts` that err least for the plans that
are near the best of their problem.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from cutegemm.choose.mma_sync.choice import candidates
from cutegemm.choose.mma_sync.recipe import MmaSyncRecipe
from cutegemm.choose.mma_sync.time import COSTS, MmaCosts, Model, Tiles
from cutegemm.choose.names import recipe_named
from cutegemm.errors import CutegemmError
from cutegemm.machine.arch import ACCESS_BITS, DEFAULT_ARCH
from cutegemm.machine.device import DEFAULT_DEVICE, Device, device_called
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Problem
from docs.evidence.contest import Case, contests, operands_of, record
from docs.evidence.fitting import judged
from docs.evidence.measure import machine, need_gpu

# Problems that wgmma does not multiply as they are: few tiles and a deep K, rows that begin at any element, a short K
_PROBLEMS = """
    bfloat16 98x90x11053 nn, bfloat16 23x608x7441 nt, bfloat16 16x29x3537 nt, bfloat16 1151x19x193 tt
    bfloat16 644x1653x25 tt, bfloat16 28x11957x19 nn, bfloat16 49x557x29 tt, bfloat16 53x549x194 tn
    bfloat16 88x85x1102 nt, bfloat16 33x19x1658 nt, bfloat16 16x3261x2697 nt, bfloat16 317x310x253 tn
    bfloat16 261x8730x35 nt, bfloat16 674x2638x6263 tt, float16 588x3627x897 tn, float16 18x11054x2512 nn
    tf32 48x80x7984 tn, tf32 288x288x2368 nn, tf32 192x704x2240 tt, tf32 96x32x1152 nn, tf32 8624x96x5696 tt
    tf32 3794x20x15422 nn, tf32 39x10511x2606 tn, tf32 1072x1072x896 tn, tf32 80x448x768 tt
"""
_LARGE = 128 * 128  # elements of a tile
_WORD = 4  # bytes
_TRIED = 6  # plans of a problem: the best by the model of as many tiles, with one of them whole
_SECONDS = 0.06  # of measuring for each problem


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

    def predicted_us(self, costs: MmaCosts) -> Any:
        """What the model says of each."""
        parts = np.array([plan.split_k for plan in self.plans])
        peak = self.device.peak_tflops(self.plans[0].tiled_mma.atom)
        of = self.problem
        model = Model(self._tiles, peak, of.operands, self.device, costs)
        return model.predicted(of, np.arange(len(parts)), parts).us


def cases() -> list[Case]:
    """The problems, with the plans to measure on each.

    >>> len(cases())
    25
    """
    found = []
    for text in _PROBLEMS.replace("\n", ",").split(","):
        if text.strip():
            dtype, extents, layout = text.split()
            m, n, k = map(int, extents.split("x"))
            problem = Problem(m, n, k, operands=operands_of(dtype, layout, m, n, k))
            best: dict[str, str] = {}
            for one in candidates(problem.operands, problem):
                best.setdefault(one.recipe.name, str(one.recipe))
            names = list(best.values())[:_TRIED]
            found.append(Case(problem, list(dict.fromkeys([*names, names[0].partition("/")[0]]))))
    return found


def timed(found: Mapping[str, Any]) -> list[Timed]:
    """The problems of a file, with the plans of the tables that were timed on each.

    >>> file = Path("docs/evidence/data/mma_sync_fit.json")
    >>> len(timed(json.loads(file.read_text())))
    34
    """
    gpu = found.get("gpu") or found.get("machine", {}).get("gpu", "")
    device = device_called(gpu, DEFAULT_ARCH, DEFAULT_DEVICE.sms)
    by_problem: dict[Problem, list[tuple[GemmPlan, float, float]]] = {}
    for row in [*found["rows"], *found.get("trials", ())]:
        us = row.get("us", {})
        for name, each in us.items() if isinstance(us, Mapping) else [(row["plan"], us)]:
            recipe = recipe_named(name) if name.startswith("mma_") else None
            if not isinstance(recipe, MmaSyncRecipe) or recipe.rate is None:
                continue
            if recipe.split is not None and recipe.split.reduction != "kernel":
                continue
            m, n, k = row["m"], row["n"], row["k"]
            problem = Problem(m, n, k, operands=operands_of(row["dtype"], row["layout"], m, n, k))
            if not _spilled(recipe, problem):
                plan = recipe.build(problem.operands, device=device)
                by_problem.setdefault(problem, []).append((plan, recipe.rate, each))
    out = []
    for problem, plans in by_problem.items():
        built, rates, times = zip(*plans, strict=True)
        out.append(Timed(built, rates, problem, device, times))
    return out


def _spilled(recipe: MmaSyncRecipe, problem: Problem) -> bool:
    """Whether a plan's threads spilled registers when these times were taken: they do no more, or it is not chosen."""
    align = min(problem.operands.a.align_bytes, problem.operands.b.align_bytes)
    bm, bn = recipe.options["block"]
    return bool(bm * bn >= _LARGE and align < ACCESS_BITS // 8) or bool(
        2 * bm * bn >= _LARGE and align < _WORD
    )


def run(path: Path) -> None:
    """Measures the problems, and writes all numbers to a file."""
    need_gpu()
    record({**machine(), "rows": []}, contests(cases(), _SECONDS, say=print), path)


def main(argv: Sequence[str]) -> None:
    """Prints the costs, and what the choice loses by them."""
    parser = argparse.ArgumentParser(prog="python -m docs.evidence fit-mma-sync", description=__doc__)
    parser.add_argument("files", nargs="*", metavar="FILE.json", help="what docs.evidence wrote")
    parser.add_argument("--measure", type=Path, metavar="FILE.json", help="write times for it there")
    parser.add_argument("--steps", type=int, default=25, help="of least squares; 0: today's costs")
    parser.add_argument("--held", action="store_true", help="judge each half by the other half's costs")
    given = parser.parse_args(argv)
    if given.measure is not None:
        run(given.measure)
        return
    by_file = {file: timed(json.loads(Path(file).read_text())) for file in given.files}
    if not any(by_file.values()):
        raise CutegemmError("fit_mma_sync: no file holds a timed mma.sync plan.")
    print(judged(by_file, COSTS, given.steps, given.held))
