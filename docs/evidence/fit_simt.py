"""The constants of the choice among SIMT plans, from what was measured; and how good that choice is.

    python -m docs.evidence fit-simt docs/evidence/data/simt.json

It needs no GPU. The rate of each plan's tiles and layout is the one that makes the model of `plan.simt_choice` right
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

from cutegemm.choose.catalog import plan_named
from cutegemm.choose.simt.choice import H200, Costs, Terms, parse, ranked, rate_of, seconds, terms
from cutegemm.choose.simt.named import NAMED
from cutegemm.machine.arch import DEFAULT_ARCH
from cutegemm.machine.device import H200_MULTIPROCESSORS
from cutegemm.plan.problem import Operands, Problem
from docs.evidence.simt import problem_of

_TRIED = {
    "start_s": (3e-6, 4e-6, 5e-6, 6e-6, 7e-6),
    "round_s": (2e-6, 3e-6, 4e-6, 5e-6, 6e-6, 8e-6),
    "one_warp": (0.8, 0.85, 0.9, 0.93, 0.96, 1.0),
    "unaligned": (0.86, 0.9, 0.93, 0.96, 1.0),
    "copy_bytes_per_s": (2.9e12, 3.1e12, 3.3e12, 3.5e12),
}
_PASSES = 3
Rates = dict[tuple[str, str], float]


@dataclass(frozen=True)
class Timed:
    """A plan that was timed on a problem.

    us   microseconds
    """

    name: str
    operands: Operands
    problem: Problem
    us: float

    @property
    def is_split(self) -> bool:
        """Whether CTAs share tiles."""
        _, _, parts, ctas = parse(self.name)
        return parts > 1 or ctas > 0

    def terms(self, costs: Costs) -> Terms:
        """The model's terms."""
        return terms(self.name, self.operands, self.problem, H200_MULTIPROCESSORS, costs)

    @property
    def fills(self) -> bool:
        """Whether every multiprocessor has as many CTAs as fit."""
        base, _, parts, ctas = parse(self.name)
        plan = plan_named(base, self.operands)
        m, n, batch = plan.grid(self.problem)
        return (ctas or m * n * batch * parts) > H200_MULTIPROCESSORS * (plan.ctas_per_sm - 1)


def timed(rows: Iterable[Mapping[str, Any]]) -> dict[tuple[Problem, str], list[Timed]]:
    """The rows of `simt` by problem and layout, those whose plan is one of the choice's."""
    names = {named.name for named in NAMED}
    found: dict[tuple[Problem, str], list[Timed]] = {}
    for row in rows:
        if "us" not in row or row["plan"].startswith("simt:") or row["plan"].endswith("last"):
            continue
        if parse(row["plan"])[0] not in names:
            continue
        shape = (row["m"], row["n"], row["k"], row["l"])
        problem = problem_of(shape, row["layout"])
        one = Timed(row["plan"], problem.operands, problem, row["us"])
        found.setdefault((problem, row["layout"]), []).append(one)
    return found


def fit_rates(measured: Sequence[Timed], costs: Costs) -> Rates:
    """By tiles and layout, as the mainloop has it: the median of what each time implies."""
    implied: dict[tuple[str, str], dict[bool, list[float]]] = {}
    for one in measured:
        parts = one.terms(costs)
        _, layout, factor = rate_of(one.name, one.operands, costs)
        left = one.us * 1e-6 - parts.waiting - parts.besides
        if left > 0:
            groups = implied.setdefault((parse(one.name)[0], layout), {})
            groups.setdefault(one.fills and not one.is_split, []).append(parts.products / left / factor)
    return {key: statistics.median(groups.get(True) or groups[False]) for key, groups in implied.items()}


def error(measured: Sequence[Timed], costs: Costs, rates: Rates) -> float:
    """The mean square of the model's relative errors."""
    total = 0.0
    for one in measured:
        _, layout, factor = rate_of(one.name, one.operands, costs)
        said = one.terms(costs).seconds(rates[parse(one.name)[0], layout] * factor)
        total += (said / (one.us * 1e-6) - 1) ** 2
    return total / max(1, len(measured))


def fit(measured: Sequence[Timed], costs: Costs = H200) -> tuple[Costs, Rates]:
    """The costs with which the model errs least where K is not split, and the rates of all plans with them."""
    whole = [one for one in measured if not one.is_split]
    for _ in range(_PASSES):
        for name, values in _TRIED.items():
            tried = [replace(costs, **{name: value}) for value in values]
            costs = min(tried, key=lambda c: error(whole, c, fit_rates(whole, c)))
    return costs, fit_rates(measured, costs)


def losses(measured: Mapping[tuple[Problem, str], Sequence[Timed]]) -> list[tuple[str, str, float, str]]:
    """For each problem: what the model puts first of all that was timed, its time over the least, the fastest."""
    found = []
    for (problem, layout), several in measured.items():
        said = {one.name: seconds(one.name, one.operands, problem, H200_MULTIPROCESSORS) for one in several}
        first = min(several, key=lambda one: said[one.name])
        best = min(several, key=lambda one: one.us)
        found.append((f"{problem} {layout}", first.name, first.us / best.us, best.name))
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
    costs, rates = fit(measured)
    print(costs)
    for named in NAMED:
        own = {
            layout: f"{rates[named.name, layout]:.3f}"
            for layout in named.rate
            if (named.name, layout) in rates
        }
        print(f"{named.name:18} {own} now {dict(named.rate)}")
    whole = [one for one in measured if not one.is_split]
    print(f"error where K is not split: {error(whole, costs, rates) ** 0.5:.3f} (root mean square)")
    print("the model's first of the plans that were timed, its time over that of the fastest:")
    for where, first, loss, best in losses(by_problem):
        mark = "" if loss <= 1.03 else f"   {best} is faster"
        print(f"  {where:28} {first:26} {loss:.3f}{mark}")
    for (problem, layout), several in by_problem.items():
        chosen = ranked(several[0].operands, problem, DEFAULT_ARCH, H200_MULTIPROCESSORS)[0]
        if chosen not in {one.name for one in several}:
            print(f"  {problem} {layout}: {chosen} is chosen, which was not timed")
    return 0
