"""Predicted times of the candidates for many problems as arrays, without an object for each candidate.

A `Numbering` gives each recipe the same number for all problems. A choice for many problems compares the numbers and
times of all candidates, and makes only the recipes that it selects.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from cutegemm.choice.candidate import Family, recipe_of
from cutegemm.choice.columns import Column
from cutegemm.choice.recipe import Recipe
from cutegemm.plan.problem import Problem

_FAMILY_BIT = 48  # lower bits of a number are those of `Variants.numbers`


@dataclass(frozen=True)
class Times:
    """The candidates for one problem with their predicted times, as parallel arrays.

    Candidates with equal times are in the order of `choice.catalog.ranked`; other candidates are in any order.

    numbers   number of each candidate's recipe in a `Numbering`
    us        predicted time of each candidate in microseconds
    """

    numbers: Column
    us: Column

    def where(self, selected: Column) -> Times:
        """Return some of these candidates: those at an array of indices, or with True in an array of flags."""
        return Times(self.numbers[selected], self.us[selected])

    def within(self, ratio: float) -> Times:
        """Return the candidates that take at most `ratio` times the least time of these."""
        return self.where(self.us <= ratio * self.us.min()) if len(self.us) else self

    def ascending(self) -> Times:
        """Return these candidates in ascending order of time, i.e. in the order of `choice.catalog.ranked`."""
        return self.where(self.us.argsort(kind="stable"))


class Numbering:
    """Numbers of recipes (names and arguments of plans): a recipe has the same number for all problems.

    >>> from cutegemm.choice.candidate import Request
    >>> from cutegemm.choice.sm90.choice import family
    >>> from cutegemm.plan.problem import Operands
    >>> plans, recipes = [family(Request(Operands.of("bf16", layout="nt")), 4096)], Numbering()
    >>> first = [recipes.times(plans, Problem(m, 4096, 4096)).ascending().numbers[0] for m in (4096, 4095)]
    >>> str(recipes[first[0]]), bool(first[0] == first[1])
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

    def times(self, families: Iterable[Family], problem: Problem) -> Times:
        """Return the candidates of kernel families for a problem, with their predicted times.

        Candidates that the device cannot run (infinite time) are left out if there are any that it can run.

        families   families such as SIMT. Each is the same object for all problems
        problem    extents M, N, K and L of the GEMM
        """
        numbers, us = [np.zeros(0, np.int64)], [np.zeros(0)]
        for family in families:
            variants = family.candidates(problem) if family.recipes else None
            if variants is not None and len(variants.recipe):
                index = self._families.setdefault(family, len(self._families))
                numbers.append(variants.numbers + (index << _FAMILY_BIT))
                us.append(family.predict(variants, problem).us)
        times = Times(np.concatenate(numbers), np.concatenate(us))
        is_finite = np.isfinite(times.us)
        return times.where(is_finite) if is_finite.any() else times
