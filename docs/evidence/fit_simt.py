"""The constants of the choice among SIMT plans, from what was measured; and how good that choice is.

    python -m docs.evidence fit-simt docs/evidence/data/simt.json

It needs no GPU. The rate of each plan's tiles and layout is the one that makes the model of `choose.simt.time` right
in the median of the problems that fill the multiprocessors without splitting K, or of all where there are none.
The costs that all plans share are those with which the model errs least where K is not split, each from a few values
around today's.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cutegemm.choose.names import recipe_named
from cutegemm.choose.simt.choice import ranked
from cutegemm.choose.simt.named import SIMT_PLANS
from cutegemm.choose.simt.recipe import SimtRecipe
from cutegemm.choose.simt.time import FITTED, Costs, Terms, rate_of, seconds, terms
from cutegemm.machine.device import DEFAULT_DEVICE, Device
from cutegemm.plan.problem import Operands, Problem
from docs.evidence.simt import problem_of

# Of `Costs`, and of what is measured on the device.
_TRIED = {
    "start_s": (3e-6, 4e-6, 5e-6, 6e-6, 7e-6),
    "round_s": (2e-6, 3e-6, 4e-6, 5e-6, 6e-6, 8e-6),
    "one_warp": (0.8, 0.85, 0.9, 0.93, 0.96, 1.0),
    "unaligned": (0.86, 0.9, 0.93, 0.96, 1.0),
    "pack_along_mn_gb_s": (2900.0, 3100.0, 3300.0, 3500.0),
}
_PASSES = 3
Rates = dict[tuple[str, str], float]


@dataclass(frozen=True)
class Fit:
    """What is fitted: the model's costs, and rates of the device."""

    costs: Costs = FITTED
    device: Device = DEFAULT_DEVICE

    def moved(self, name: str, value: float) -> Fit:
        """With another value for one of them."""
        if hasattr(self.costs, name):
            return replace(self, costs=replace(self.costs, **{name: value}))
        measured: Any = replace(self.device.measured, **{name: value})
        return replace(self, device=replace(self.device, own_rates=measured))


@dataclass(frozen=True)
class Timed:
    """A plan that was timed on a problem.

    us   microseconds
    """

    recipe: SimtRecipe
    problem: Problem
    us: float

    @property
    def operands(self) -> Operands:
        """Of the problem."""
        return self.problem.operands

    @property
    def is_split(self) -> bool:
        """Whether CTAs share tiles."""
        return self.recipe.split is not None

    def terms(self, fit: Fit) -> Terms:
        """The model's terms."""
        return terms(self.recipe, self.operands, self.problem, fit.device, fit.costs)

    @property
    def fills(self) -> bool:
        """Whether every multiprocessor has as many CTAs as fit."""
        plan = self.recipe.build(self.operands)
        m, n, batch = plan.grid(self.problem)
        return (self.recipe.ctas or m * n * batch * plan.split_k) > DEFAULT_DEVICE.sms * (
            plan.ctas_per_sm - 1
        )


def timed(rows: Iterable[Mapping[str, Any]]) -> dict[tuple[Problem, str], list[Timed]]:
    """The rows of `simt` by problem and layout, those whose plan is one of the choice's."""
    found: dict[tuple[Problem, str], list[Timed]] = {}
    for row in rows:
        if "us" not in row:
            continue
        recipe = recipe_named(row["plan"])
        if not isinstance(recipe, SimtRecipe) or not recipe.rate:
            continue
        if recipe.split is not None and recipe.split.reduction == "last":
            continue
        problem = problem_of((row["m"], row["n"], row["k"], row["l"]), row["layout"])
        found.setdefault((problem, row["layout"]), []).append(Timed(recipe, problem, row["us"]))
    return found


def fit_rates(measured: Sequence[Timed], fit: Fit = Fit()) -> Rates:
    """By tiles and layout, as the mainloop has it: the median of what each time implies."""
    implied: dict[tuple[str, str], dict[bool, list[float]]] = {}
    for one in measured:
        parts = one.terms(fit)
        layout, factor = rate_of(one.recipe, one.operands, fit.costs)
        left = one.us * 1e-6 - parts.waiting - parts.besides
        if left > 0:
            groups = implied.setdefault((one.recipe.name, layout), {})
            groups.setdefault(one.fills and not one.is_split, []).append(parts.products / left / factor)
    return {key: statistics.median(groups.get(True) or groups[False]) for key, groups in implied.items()}


def error(measured: Sequence[Timed], fit: Fit, rates: Rates) -> float:
    """The mean square of the model's relative errors."""
    total = 0.0
    for one in measured:
        layout, factor = rate_of(one.recipe, one.operands, fit.costs)
        said = one.terms(fit).seconds(rates[one.recipe.name, layout] * factor)
        total += (said / (one.us * 1e-6) - 1) ** 2
    return total / max(1, len(measured))


def best(measured: Sequence[Timed], start: Fit = Fit()) -> tuple[Fit, Rates]:
    """The costs with which the model errs least where K is not split, and the rates of all plans with them."""
    whole, found = [one for one in measured if not one.is_split], start
    for _ in range(_PASSES):
        for name, values in _TRIED.items():
            tried = [found.moved(name, value) for value in values]
            found = min(tried, key=lambda fit: error(whole, fit, fit_rates(whole, fit)))
    return found, fit_rates(measured, found)


def losses(measured: Mapping[tuple[Problem, str], Sequence[Timed]]) -> list[tuple[str, str, float, str]]:
    """For each problem: what the model puts first of all that was timed, its time over the least, the fastest."""
    found = []
    for (problem, layout), several in measured.items():
        first = min(several, key=lambda one: seconds(one.recipe, one.operands, problem))
        least = min(several, key=lambda one: one.us)
        found.append((f"{problem} {layout}", str(first.recipe), first.us / least.us, str(least.recipe)))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line of this module."""
    parser = argparse.ArgumentParser(
        prog="python -m docs.evidence fit-simt",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", type=Path, help="docs/evidence/data/simt.json")
    given = parser.parse_args(arguments)
    by_problem = timed(json.loads(given.source.read_text())["rows"])
    measured = [one for several in by_problem.values() for one in several]
    fit, rates = best(measured)
    print(fit.costs)
    print(fit.device.measured)
    for recipe in SIMT_PLANS:
        own = {
            layout: f"{rates[recipe.name, layout]:.3f}"
            for layout in recipe.rate
            if (recipe.name, layout) in rates
        }
        print(f"{recipe.name:18} {own} now {dict(recipe.rate)}")
    whole = [one for one in measured if not one.is_split]
    print(f"error where K is not split: {error(whole, fit, rates) ** 0.5:.3f} (root mean square)")
    print("the model's first of the plans that were timed, its time over that of the fastest:")
    for where, first, loss, fastest in losses(by_problem):
        mark = "" if loss <= 1.03 else f"   {fastest} is faster"
        print(f"  {where:28} {first:26} {loss:.3f}{mark}")
    for (problem, layout), several in by_problem.items():
        chosen = ranked(several[0].operands, problem)[0]
        if chosen not in [one.recipe for one in several]:
            print(f"  {problem} {layout}: {chosen} is chosen, which was not timed")
    return 0
