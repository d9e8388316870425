"""Least squares for the constants of a model of time, and the loss of the choice on recorded times.

A record is a file of `docs.evidence` with times of several plans for each of many problems. Only plans that `choose`
considers today for the problem count.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import geometric_mean
from typing import Any, TypeVar

import numpy as np

from cutegemm.choice.candidate import Family, Request, Variants
from cutegemm.choice.names import recipe_named
from cutegemm.choice.recipe import Recipe
from cutegemm.errors import CutegemmError, PlanError
from cutegemm.machine.arch import DEFAULT_ARCH
from cutegemm.machine.device import DEFAULT_DEVICE, Device, device_called
from cutegemm.plan.problem import Problem
from docs.evidence.benchmark import operands_of
from docs.evidence.files import read_record

_NEAR = 3.0  # how fast a plan counts less, the more time it takes than the best
_LEAST_WEIGHT = 0.05
_COMMON = 0.5  # weight of the error that all predictions of a problem share, which does not change the choice
_TIED = 0.03  # weight of the distance of a constant's logarithm from its old value
_MOST_PLANS = 40  # plans of a problem; more plans count as this number
_UNSURE = 0.025  # in the logarithm of a prediction: plans this close to the first one might also be chosen
# Power of what the choice loses: below 1, many small losses count less than a large one, squared
_TAIL = 0.75
_JUDGED = 1.15  # times the best: plans whose predictions are judged
_MUCH = 1.08  # times the best: a plan that should not be chosen

Costs = TypeVar("Costs", bound=Any)  # a frozen dataclass of positive numbers


@dataclass(frozen=True)
class Timed:
    """Plans of a family that were timed on one problem, in alternating order.

    recipes   the plans
    model     model of their times, such as `choice.sm90.time.Model`
    us        microseconds of each plan
    """

    recipes: tuple[Recipe, ...]
    problem: Problem
    model: Any
    us: tuple[float, ...]

    @cached_property
    def _ways(self) -> Variants:
        return Variants.of(self.recipes)

    def predicted_us(self, costs: Any) -> Any:
        """Return the predicted microseconds of each plan."""
        return replace(self.model, costs=costs).predict(self._ways, self.problem).us


def problems(recorded: Mapping[str, Any]) -> Iterator[tuple[Problem, Device, dict[Recipe, float]]]:
    """Yield the problems of a record, with the device and the microseconds of the plans that have a recipe."""
    gpu = recorded.get("machine", {}).get("gpu", "")
    device = device_called(gpu, DEFAULT_ARCH, DEFAULT_DEVICE.sms)
    found: dict[Problem, dict[Recipe, float]] = {}
    for row in [*recorded["rows"], *recorded.get("trials", ())]:
        us = row.get("us", {})
        for name, each in us.items() if isinstance(us, Mapping) else [(row["plan"], us)]:
            try:
                recipe = recipe_named(name)
            except CutegemmError:  # a row of the library, or of a plan that no longer exists
                continue
            m, n, k, l = (row.get(mode, 1) for mode in "mnkl")  # noqa: E741
            problem = Problem(m, n, k, l, operands_of(row["dtype"], row["layout"], m, n, k, batched=l > 1))
            plans = found.setdefault(problem, {})
            plans[recipe] = min(each, plans.get(recipe, each))
    return iter([(problem, device, plans) for problem, plans in found.items()])


def timed(
    recorded: Mapping[str, Any],
    model: Any,
    families: Callable[[Request, Problem], Iterable[Family]],
    is_stale: Callable[[Recipe, Problem], bool] = lambda *_: False,
) -> list[Timed]:
    """Return the problems of a record on which at least two of today's candidates were timed.

    model      class of the model of the times, such as `choice.sm90.time.Model`
    families   returns the families of the candidates; none if the family cannot implement the operands
    is_stale   returns whether the recorded time of a plan is out of date
    """
    found = []
    for problem, device, us in problems(recorded):
        candidates: set[Recipe] = set()
        try:
            for family in families(Request(problem.operands, device=device), problem):
                variants = family.candidates(problem)
                candidates |= {variants.recipe_at(place, family.recipes) for place in range(len(variants.recipe))}
        except PlanError:  # the family does not serve these operands
            continue
        kept = [one for one in us if one in candidates and not is_stale(one, problem)]
        if len(kept) > 1:
            times = tuple([us[one] for one in kept])
            found.append(Timed(tuple(kept), problem, model.of(kept, problem.operands, device), times))
    return found


def slower(one: Timed) -> Any:
    """Return each plan's time over that of the best."""
    return np.array(one.us) / min(one.us)


def errors(measured: Iterable[Timed], costs: Any) -> Any:
    """Return the weighted logarithms of predicted over measured times of all plans.

    Plans near the best of their problem count more. An error that all plans of a problem share counts less, since it
    does not change the choice.
    """
    found = []
    for one in measured:
        weight = np.exp(-_NEAR * (slower(one) - 1)) + _LEAST_WEIGHT
        off = np.log(one.predicted_us(costs) / np.array(one.us))
        off = off - (1 - _COMMON) * np.average(off, weights=weight)
        found.append(np.sqrt(weight / min(len(off), _MOST_PLANS)) * off)
    return np.concatenate(found)


def expected_losses(measured: Iterable[Timed], costs: Any) -> Any:
    """Return the expected loss of the choice for each problem, as a share of the best time.

    Plans whose predictions are as good as the first count as equally likely choices.
    """
    found = []
    for one in measured:
        said = np.log(one.predicted_us(costs))
        weight = np.exp((said.min() - said) / _UNSURE)
        found.append(float((weight * (slower(one) - 1)).sum() / weight.sum()))
    return np.array(found)


def fit(measured: Sequence[Timed], costs: Costs, steps: int = 25, names: Sequence[str] = ()) -> Costs:
    """Return the costs with the smallest `errors` and `expected_losses`.

    costs   initial costs
    steps   of least squares; scipy is needed
    names   names of the fitted costs; None for all
    """
    from scipy.optimize import least_squares

    fitted = list(names or asdict(costs))
    start = np.log([getattr(costs, name) for name in fitted])

    def of(logarithms: Any) -> Costs:
        return replace(costs, **dict(zip(fitted, np.exp(logarithms).tolist(), strict=True)))

    def residuals(logarithms: Any) -> Any:
        made = of(logarithms)
        lost = expected_losses(measured, made) ** _TAIL
        return np.concatenate([errors(measured, made), lost, _TIED * (logarithms - start)])

    return of(least_squares(residuals, start, loss="soft_l1", f_scale=0.1, max_nfev=steps).x)


def losses(measured: Iterable[Timed], costs: Any) -> list[float]:
    """Return, for each problem, the time of the plan that ranks first over that of the best."""
    return [float(slower(one)[np.argmin(one.predicted_us(costs))]) for one in measured]


def summary(measured: Sequence[Timed], costs: Any) -> str:
    """Return a sentence: how far predictions of plans near the best are off, and what the choice loses."""
    every = [(slower(one), np.log(one.predicted_us(costs) / np.array(one.us))) for one in measured]
    off, lost = np.concatenate([found[by <= _JUDGED] for by, found in every]), losses(measured, costs)
    return (
        f"{len(measured)} problems: of plans near the best {math.sqrt(float(np.mean(off**2))):.1%} off (root mean "
        f"square), {float(np.mean(off)):+.1%} on average; the choice takes {geometric_mean(lost):.4f} of the best "
        f"time, {max(lost):.3f} at most, and more than {_MUCH} for {np.mean(np.array(lost) > _MUCH):.1%}"
    )


def as_text(costs: Any) -> str:
    """Return the constants as Python code."""
    values = [f"    {name}={value:.3g}," for name, value in asdict(costs).items()]
    return "\n".join([f"{type(costs).__name__}(", *values, ")"])


def judged(
    by_file: Mapping[str, Sequence[Timed]], costs: Costs, steps: int, held: bool, names: Sequence[str] = ()
) -> str:
    """Return the output of a fit: the costs, and by file what the choice loses with them.

    steps   of least squares; 0 to keep the costs
    held    whether each half of the problems is judged with the costs of the other half, which are not printed
    """
    every = [one for measured in by_file.values() for one in measured]

    def fitted(measured: Sequence[Timed]) -> Costs:
        return fit(measured, costs, steps, names) if steps else costs

    if held:
        halves = [(every[half::2], fitted(every[1 - half :: 2])) for half in (0, 1)]
        return "\n".join(
            f"half {half}, by the costs of the other: {summary(measured, found)}"
            for half, (measured, found) in enumerate(halves)
        )
    found = fitted(every)
    return "\n".join([as_text(found), *(f"{file}: {summary(of, found)}" for file, of in by_file.items() if of)])


def options(prog: str, text: str, names: Sequence[str] = ()) -> argparse.ArgumentParser:
    """Return the parsed options that all commands for fitting share.

    prog    the command, such as "fit-sm90"
    names   names of the constants that are fitted by default
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m docs.evidence {prog}",
        description=text,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("files", nargs="*", metavar="FILE.json", help="records")
    parser.add_argument("--steps", type=int, default=25, help="of least squares; 0: today's constants")
    parser.add_argument("--held", action="store_true", help="judge each half by the constants of the other half")
    parser.add_argument("--only", action="append", metavar="NAME", help="fit this constant; may be repeated")
    parser.set_defaults(names=names)
    return parser


def fit_files(given: argparse.Namespace, read: Callable[[Mapping[str, Any]], Sequence[Timed]], costs: Any) -> str:
    """Return the output of a fit to the files of `options`: see `judged`.

    read     returns the problems of a record
    raises   CutegemmError if no file has two plans for one problem
    """
    by_file = {file: read(read_record(Path(file))) for file in given.files}
    if not any(by_file.values()):
        raise CutegemmError("fit: no file holds two plans of this family for one problem.")
    return judged(by_file, costs, given.steps, given.held, given.only or given.names)
