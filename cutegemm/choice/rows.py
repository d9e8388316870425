"""A few kernels for any number of rows: a layer's weight is fixed, and the rows of its input vary from call to call.

Each number of rows has its own fastest plan, and each plan is compiled at its first call: about twenty plans between 1
and 8192 rows. `few` returns at most six plans that together lose the least time. For each number of rows the one with
the lowest predicted time counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from cutegemm.choice.candidate import Candidate
from cutegemm.choice.recipe import Recipe

MOST_KERNELS = 6
MOST_ROWS = 8192
_STEP = 1.12  # ratio of a sampled number of rows to the one before: about a sixth of an octave
_EVEN_STEP = 352  # rows between further samples; they meet the ends of tiles, and numbers between them
_MOST_EVEN = 1 << 17  # rows; beyond, only the samples of the octaves are taken
_NEVER = 10.0  # time / least time of a recipe for rows that it is not a candidate for
_BY_OCTAVES = 0.3  # share of the mean that counts each octave of rows alike; the rest counts each number of rows alike
_NEAR = 1.1  # time / least time: a recipe that is never below it is left out, unless it serves all rows
_BEGINNINGS = 4  # first recipes that the search is repeated from

Weigh = Callable[[int], Sequence[Candidate]]


def looked_at(most: int = MOST_ROWS) -> list[int]:
    """Return the numbers of rows from 1 to `most` for which plans are compared, in ascending order.

    Each octave (from n to 2n) has the same number of them. Some large ones are added.

    >>> looked_at(16)
    [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 15, 16]
    """
    rows, sample = {1, most, *range(_EVEN_STEP, min(most, _MOST_EVEN), _EVEN_STEP)}, 1.0
    while sample < most:
        rows.add(round(sample))
        sample *= _STEP
    return sorted(rows)


def few(weigh: Weigh, most: int = MOST_KERNELS, rows: Iterable[int] | None = None) -> tuple[Recipe, ...]:
    """Choose a few plans that together are fast for any number of rows of A, so that only these are compiled.

    For one number of rows, the slowdown is the time of the fastest chosen plan, divided by the time of the fastest plan
    of all. A greedy search with exchanges looks for the plans with the lowest mean slowdown over numbers of rows.

    weigh     function that returns the candidate plans for a number of rows of A, with their predicted times; a number
              of rows without candidates is left out
    most      largest number of plans
    rows      the numbers of rows that the mean is taken over, in ascending order; each stands for the numbers nearest
              to it. None: about equally many from each n to 2n
    returns   recipes (names and arguments of plans); the first one can implement all numbers of rows if any recipe can.
              () if no number of rows has candidates

    >>> from cutegemm.choice.catalog import candidates
    >>> from cutegemm.plan.problem import Operands, Problem
    >>> operands = Operands.of("bf16", layout="nt")
    >>> recipes = few(lambda rows: candidates(operands, Problem(rows, 4096, 4096)), most=2, rows=(16, 128, 4096))
    >>> len(recipes)
    2
    """
    samples = looked_at() if rows is None else rows
    times_of = {sample: {one.recipe: one.us for one in weigh(sample)} for sample in samples}
    sampled = [sample for sample, times in times_of.items() if times]
    tables = [times_of[sample] for sample in sampled]
    if not tables:
        return ()
    least = [min(times.values()) for times in tables]
    serving = set.intersection(*[set(times) for times in tables])
    near = [recipe for times, us in zip(tables, least, strict=True) for recipe in times if times[recipe] <= _NEAR * us]
    recipes = list(dict.fromkeys([*near, *sorted(serving, key=str)]))
    slower = np.array(
        [[times.get(recipe, _NEVER * us) / us for times, us in zip(tables, least, strict=True)] for recipe in recipes]
    )  # (recipes, rows)
    table = _Table(slower, np.array([recipe in serving for recipe in recipes]), np.array(sampled))
    chosen = min([table.search(most, first) for first in range(_BEGINNINGS)], key=table.mean)
    return tuple([recipes[index] for index in dict.fromkeys(chosen)])


class _Table:
    """Table of the slowdown of each plan at each number of rows of A; its method `search` selects a few plans.

    The slowdown is the plan's time, divided by the least time of any plan for the same number of rows. For each number
    of rows the fastest selected plan is used, and the mean of its slowdown should be low.

    slower    slowdowns, an array (plans, numbers of rows)
    serving   flags, an array with one entry per plan: can it implement every number of rows? The first selected plan
              must be one that can, if there are any
    rows      the numbers of rows, in ascending order
    """

    def __init__(self, slower: np.ndarray, serving: np.ndarray, rows: np.ndarray) -> None:
        self.slower, self.rows = slower, rows
        self.weights = _BY_OCTAVES * _shares(np.log2(rows)) + (1 - _BY_OCTAVES) * _shares(rows)
        self.is_first = np.where(serving, 0.0, np.inf) if serving.any() else np.zeros(len(slower))

    def mean(self, chosen: list[int]) -> float:
        """Return the weighted mean slowdown if each number of rows of A is computed by the fastest of the chosen plans.

        chosen   indices of plans in the table
        """
        return float(self.slower[chosen].min(0) @ self.weights)

    def search(self, most: int, beginning: int) -> list[int]:
        """Return the indices of a few plans whose mean slowdown is low, found by a greedy search with exchanges.

        The first of them can implement all numbers of rows of A.

        most        the largest number of plans
        beginning   where the search starts: 0 is the best single plan that can implement all numbers of rows, 1 the
                    second best, and so on
        """
        alone = self.slower @ self.weights + self.is_first
        chosen = [int(np.argsort(alone, kind="stable")[min(beginning, len(alone) - 1)])]
        fastest = self.slower[chosen[0]]
        while len(chosen) < min(most, len(self.slower)):
            chosen.append(int((np.minimum(fastest, self.slower) @ self.weights).argmin()))
            fastest = np.minimum(fastest, self.slower[chosen[-1]])
        while self._exchange(chosen):
            pass
        return chosen

    def _exchange(self, chosen: list[int]) -> bool:
        """Replace one entry of `chosen`, in place, by another recipe that lowers the mean slowdown.

        chosen    indices of recipes
        returns   False if no exchange lowers the mean
        """
        for place in range(len(chosen)):
            others = [self.slower[index] for at, index in enumerate(chosen) if at != place]
            rest = np.min(others, axis=0) if others else np.full(len(self.rows), np.inf)
            means = np.minimum(rest, self.slower) @ self.weights + (self.is_first if place == 0 else 0.0)
            best = int(means.argmin())
            if means[best] < means[chosen[place]] * (1 - 1e-9):
                chosen[place] = best
                return True
        return False


def _shares(places: np.ndarray) -> np.ndarray:
    """Return the weight of each point in a mean: the fraction of the line that is nearer to it than to other points.

    The weights add up to 1. E.g. points 0, 1 and 4 have weights 1/8, 1/2 and 3/8.

    places   positions of the points, in ascending order

    >>> _shares(np.array([0.0, 1.0, 4.0])).tolist()
    [0.125, 0.5, 0.375]
    """
    if len(places) == 1:
        return np.ones(1)
    halves = np.diff(places) / 2
    return (np.pad(halves, (0, 1)) + np.pad(halves, (1, 0))) / (places[-1] - places[0])
