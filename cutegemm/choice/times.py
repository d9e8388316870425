"""Predicted times of the candidates for many problems as arrays, without an object for each candidate.

A `Numbering` gives each recipe the same number for all problems. A choice for many problems compares the numbers and
times of all candidates, and makes only the recipes that it selects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import numpy as np

from cutegemm.choice.candidate import Family, recipe_of
from cutegemm.choice.columns import Column
from cutegemm.choice.recipe import Recipe
from cutegemm.choice.sm90.choice import Sm90Family
from cutegemm.plan.problem import Problem

_AT_ONCE = 6144  # plans times problems that are predicted at once: larger arrays do not stay in the L2 cache of a CPU
_FAMILY_BIT = 48  # lower bits of a number are those of `Variants.numbers`


@dataclass(frozen=True)
class Times:
    """The candidates for several problems with their predicted times, as parallel arrays with one entry for each.

    Candidates for a problem with equal times are in the order of `choice.catalog.ranked`; others are in any order.

    problem   index of the problem
    numbers   number of the candidate's recipe in a `Numbering`
    us        predicted time in microseconds
    """

    problem: Column
    numbers: Column
    us: Column

    def where(self, selected: Column) -> Times:
        """Return some of these candidates: those at an array of indices, or with True in an array of flags."""
        return Times(self.problem[selected], self.numbers[selected], self.us[selected])

    def within(self, ratio: float) -> Times:
        """Return the candidates that take at most `ratio` times the least time of all candidates for their problem."""
        return self.where(self.us <= ratio * self.least[self.problem])

    def ascending(self) -> Times:
        """Return these candidates by problem, those of each in ascending order of time, as `choice.catalog.ranked`."""
        return self.where(np.lexsort((self.us, self.problem)))

    @cached_property
    def least(self) -> Column:
        """Return the least time of the candidates for each problem; infinity for a problem without candidates."""
        least = np.full(self.problem.max(initial=-1) + 1, np.inf)
        np.minimum.at(least, self.problem, self.us)
        return least


class Numbering:
    """Numbers of recipes (names and arguments of plans): a recipe has the same number for all problems.

    >>> from cutegemm.choice.candidate import Request
    >>> from cutegemm.choice.sm90.choice import family
    >>> from cutegemm.plan.problem import Operands
    >>> plans, recipes = [family(Request(Operands.of("bf16", layout="nt")), 4096)], Numbering()
    >>> problems = [Problem(m, 4096, 4096) for m in (4096, 4095)]
    >>> first, second = [recipes.times([one], lambda _: plans).ascending().numbers[0] for one in problems]
    >>> str(recipes[first]), bool(first == second)
    ('sm90_overlapped_2x1', True)
    """

    def __init__(self) -> None:
        self._families: dict[Family, int] = {}
        self._recipes: dict[int, Recipe] = {}

    def __getitem__(self, number: int) -> Recipe:
        """Return the recipe that has a number."""
        recipe = self._recipes.get(number)
        if recipe is None:
            family, rest = divmod(int(number), 1 << _FAMILY_BIT)
            recipe = self._recipes[number] = recipe_of(rest, list(self._families)[family].recipes)
        return recipe

    def times(self, problems: Sequence[Problem], families_of: Callable[[Problem], Iterable[Family]]) -> Times:
        """Return the candidates for several problems, with their predicted times.

        Candidates that the device cannot run (infinite time) are left out if there are any that it can run.

        problems      problems that differ only in M
        families_of   function that returns the kernel families whose plans are compared for a problem. Each is the same
                      object for all problems, also in other calls
        """
        by_family: dict[Family, list[int]] = {}
        for index, problem in enumerate(problems):
            for family in families_of(problem):
                if family.recipes:
                    by_family.setdefault(family, []).append(index)
        found = [(np.zeros(0, int), np.zeros(0, np.int64), np.zeros(0))]
        for family, indices in by_family.items():
            first = self._families.setdefault(family, len(self._families)) << _FAMILY_BIT
            for stacked, own in _stacked(family, problems, indices):
                variants = family.candidates(stacked)
                if len(variants.recipe):
                    us = family.predict(variants, stacked).us
                    found.append((own.take(np.broadcast_to(variants.problem, len(us))), variants.numbers + first, us))
        times = Times(*[np.concatenate(columns) for columns in zip(*found, strict=True)])
        is_finite = np.isfinite(times.us)
        return times if is_finite.all() else times.where(is_finite | np.isinf(times.least)[times.problem])


def _stacked(family: Family, problems: Sequence[Problem], indices: Sequence[int]) -> Iterator[tuple[Any, Column]]:
    """Yield problems as a kernel family takes them, each with the indices of the problems that it stands for.

    Hopper plans, which are the most, are predicted for several problems at once: M is an array (problems, 1).
    """
    count = max(1, _AT_ONCE // len(family.recipes)) if isinstance(family, Sm90Family) else 1
    for start in range(0, len(indices), count):
        own = np.array(indices[start : start + count])
        one = problems[own[0]]
        if count > 1:
            m = np.array([[problems[index].m] for index in own])
            yield SimpleNamespace(m=m, n=one.n, k=one.k, l=one.l, ld=one.ld), own
        else:
            yield one, own
