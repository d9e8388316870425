"""Least squares for the constants of a model of time, and what the choice by them loses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from statistics import geometric_mean
from typing import Any, Protocol, TypeVar

import numpy as np

_LEAST_WEIGHT = 0.1  # of a plan that takes far longer than the best
_TIED = 0.05  # of a constant's logarithm to what it was
_NEAR = 1.15  # times the best: plans whose predictions are judged

Costs = TypeVar("Costs", bound=Any)  # a frozen dataclass of positive numbers


class Timed(Protocol):
    """Plans that were timed on a problem in turns.

    us   microseconds of each
    """

    @property
    def us(self) -> Sequence[float]:
        """Of each plan."""

    def errors(self, costs: Any) -> Any:
        """Logarithms of what is predicted over what was measured."""


def slower(one: Timed) -> Any:
    """Each plan's time over that of the best."""
    return np.array(one.us) / min(one.us)


def fit(measured: Sequence[Timed], steps: int, costs: Costs) -> Costs:
    """The costs whose errors are least; those of plans near the best of their problem count most.

    steps   of least squares; scipy is needed
    costs   to start from
    """
    from scipy.optimize import least_squares

    names = list(asdict(costs))
    start = np.log([getattr(costs, name) for name in names])

    def of(logarithms: Any) -> Costs:
        return replace(costs, **dict(zip(names, np.exp(logarithms).tolist(), strict=True)))

    def residuals(logarithms: Any) -> Any:
        made = of(logarithms)
        weighted = [one.errors(made) * np.maximum(_LEAST_WEIGHT**0.5, 1 / slower(one)) for one in measured]
        return np.concatenate([*weighted, _TIED * (logarithms - start)])

    return of(least_squares(residuals, start, loss="soft_l1", f_scale=0.15, max_nfev=steps).x)


def losses(measured: Sequence[Timed], costs: Any) -> list[float]:
    """For each problem: the time of the plan that ranks first over that of the best."""
    return [float(slower(one)[np.argmin(one.errors(costs) + np.log(one.us))]) for one in measured]


def summary(measured: Sequence[Timed], costs: Any) -> str:
    """How far predictions of plans near the best are off, and what the choice by them loses."""
    off = np.concatenate([one.errors(costs)[slower(one) <= _NEAR] for one in measured])
    lost = losses(measured, costs)
    return (
        f"{len(measured)} problems: of plans near the best {math.sqrt(float(np.mean(off**2))):.1%} off (root mean "
        f"square), {float(np.mean(off)):+.1%} on average; the choice takes {geometric_mean(lost):.3f} of the best "
        f"time, {max(lost):.3f} at most"
    )


def as_text(costs: Any) -> str:
    """The constants, as they stand in the code."""
    values = [f"    {name}={value:.3g}," for name, value in asdict(costs).items()]
    return "\n".join([f"{type(costs).__name__}(", *values, ")"])
