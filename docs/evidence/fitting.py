"""Least squares for the constants of a model of time, and what the choice by them loses."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from statistics import geometric_mean
from typing import Any, Protocol, TypeVar

import numpy as np

_NEAR = 3.0  # how fast a plan counts less, the more time it takes than the best
_LEAST_WEIGHT = 0.05
_COMMON = 0.5  # of what all predictions of a problem err alike, which changes no choice
_TIED = 0.03  # of a constant's logarithm to what it was
_MOST_PLANS = 40  # of a problem, which count as so many
_UNSURE = 0.025  # of the logarithm of a prediction: plans as near to the first might as well be chosen
_TAIL = (
    0.75  # power of what the choice loses: below 1, many small losses count less than a large one, squared
)
_JUDGED = 1.15  # times the best: plans whose predictions are judged

Costs = TypeVar("Costs", bound=Any)  # a frozen dataclass of positive numbers


class Timed(Protocol):
    """Plans that were timed on a problem in turns.

    us   microseconds of each
    """

    @property
    def us(self) -> Sequence[float]:
        """Of each plan."""

    def predicted_us(self, costs: Any) -> Any:
        """What the model says of each."""


def slower(one: Timed) -> Any:
    """Each plan's time over that of the best."""
    return np.array(one.us) / min(one.us)


def errors(measured: Iterable[Timed], costs: Any) -> Any:
    """Logarithms of what is predicted over what was measured, of all plans: those that are near the best count more,
    and what they have in common less."""
    found = []
    for one in measured:
        weight = np.exp(-_NEAR * (slower(one) - 1)) + _LEAST_WEIGHT
        off = np.log(one.predicted_us(costs) / np.array(one.us))
        off = off - (1 - _COMMON) * np.average(off, weights=weight)
        found.append(np.sqrt(weight / min(len(off), _MOST_PLANS)) * off)
    return np.concatenate(found)


def expected_losses(measured: Iterable[Timed], costs: Any) -> Any:
    """By problem, what the choice takes longer than the best, as a share: of plans that are as good as the first, by
    the model, the mean."""
    found = []
    for one in measured:
        said = np.log(one.predicted_us(costs))
        weight = np.exp((said.min() - said) / _UNSURE)
        found.append(float((weight * (slower(one) - 1)).sum() / weight.sum()))
    return np.array(found)


def fit(measured: Sequence[Timed], costs: Costs, steps: int = 25, names: Sequence[str] = ()) -> Costs:
    """The costs whose `errors` and `expected_losses` are least.

    costs   to start from
    steps   of least squares; scipy is needed
    names   of the costs that are fitted; all where left out
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
    """For each problem: the time of the plan that ranks first over that of the best."""
    return [float(slower(one)[np.argmin(one.predicted_us(costs))]) for one in measured]


def summary(measured: Sequence[Timed], costs: Any) -> str:
    """How far predictions of plans near the best are off, and what the choice by them loses."""
    every = [(slower(one), np.log(one.predicted_us(costs) / np.array(one.us))) for one in measured]
    off, lost = np.concatenate([found[by <= _JUDGED] for by, found in every]), losses(measured, costs)
    return (
        f"{len(measured)} problems: of plans near the best {math.sqrt(float(np.mean(off**2))):.1%} off (root mean "
        f"square), {float(np.mean(off)):+.1%} on average; the choice takes {geometric_mean(lost):.4f} of the best "
        f"time, {max(lost):.3f} at most"
    )


def as_text(costs: Any) -> str:
    """The constants, as they stand in the code."""
    values = [f"    {name}={value:.3g}," for name, value in asdict(costs).items()]
    return "\n".join([f"{type(costs).__name__}(", *values, ")"])


def judged(
    by_file: Mapping[str, Sequence[Timed]], costs: Costs, steps: int, held: bool, names: Sequence[str] = ()
) -> str:
    """What a fit finds, as a command prints it: the costs, and by file what the choice loses by them.

    steps   of least squares; 0 for the costs as they are
    held    whether each half of the problems is judged by the costs of the other half; these are not printed
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
    return "\n".join(
        [as_text(found), *(f"{file}: {summary(of, found)}" for file, of in by_file.items() if of)]
    )
