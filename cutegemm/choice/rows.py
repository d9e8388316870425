"""A few kernels for any number of rows: a layer's weight is fixed, and the rows of its input vary from call to call.

Each number of rows has its own fastest plan, and each plan is compiled at its first call: about twenty plans between 1
and 8192 rows. `few` returns at most six plans that together lose the least time. For each number of rows the one with
the lowest predicted time counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from cutegemm.choice.recipe import Recipe
from cutegemm.choice.times import Numbering, Times

MOST_KERNELS = 6
MOST_ROWS = 8192
_STEP = 1.12  # ratio of a sampled number of rows to the one before: about a sixth of an octave
_EVEN_STEP = 352  # rows between further samples; they meet the ends of tiles, and numbers between them
_MOST_EVEN = 1 << 17  # rows; beyond, only the samples of the octaves are taken
_NEVER = 10.0  # time / least time of a recipe for rows that it is not a candidate for
_BY_OCTAVES = 0.3  # share of the mean that counts each octave of rows alike; the rest counts each number of rows alike
_NEAR = 1.1  # time / least time: a recipe that is never below it is left out, unless it serves all rows
_BEGINNINGS = 4  # first recipes that the search is repeated from


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


def few(
    rows: Sequence[int],
    times: Times,
    recipes: Numbering,
    most: int = MOST_KERNELS,
    can_implement: Callable[[Recipe], bool] = lambda _: True,
) -> tuple[Recipe, ...]:
    """Choose a few plans that together are fast for any number of rows of A, so that only these are compiled.

    For one number of rows, the slowdown is the time of the fastest chosen plan, divided by the time of the fastest plan
    of all. A greedy search with exchanges looks for the plans with the lowest mean slowdown over numbers of rows.

    rows            the numbers of rows of A that the mean is taken over, in ascending order; each stands for the
                    numbers nearest to it. Numbers without candidates are left out
    times           predicted times of the candidate plans for each of them
    recipes         the recipes of the numbers in these times
    most            largest number of plans
    can_implement   function that returns whether a recipe may be chosen; only recipes that would be chosen are tested
    returns         recipes (names and arguments of plans); the first one can implement all numbers of rows if any
                    recipe can. () if no number of rows has candidates

    >>> from cutegemm.choice.candidate import Request
    >>> from cutegemm.choice.catalog import families
    >>> from cutegemm.plan.problem import Operands, Problem
    >>> request, recipes = Request(Operands.of("bf16", layout="nt")), Numbering()
    >>> rows = 16, 128, 4096
    >>> times = recipes.times([Problem(m, 4096, 4096) for m in rows], lambda problem: families(request, problem))
    >>> len(few(rows, times, recipes, most=2))
    2
    """
    while len(times.us):
        table = _Table.of(np.array(rows), times, recipes)
        chosen = min([table.search(most, first) for first in range(_BEGINNINGS)], key=table.mean)
        selected = table.numbers[list(dict.fromkeys(chosen))].tolist()
        refused = [number for number in selected if not can_implement(recipes[number])]
        if not refused:
            return tuple([recipes[number] for number in selected])
        times = times.where(~np.isin(times.numbers, refused))
    return ()


class _Table:
    """Table of the slowdown of each plan at each number of rows of A; its method `search` selects a few plans.

    The slowdown is the plan's time, divided by the least time of any plan for the same number of rows. For each number
    of rows the fastest selected plan is used, and the mean of its slowdown should be low.

    numbers   number of each plan's recipe
    slower    slowdowns, an array (plans, numbers of rows)
    serving   flags, an array with one entry per plan: can it implement every number of rows? The first selected plan
              must be one that can, if there are any
    rows      the numbers of rows, in ascending order
    """

    def __init__(self, numbers: np.ndarray, slower: np.ndarray, serving: np.ndarray, rows: np.ndarray) -> None:
        self.numbers, self.slower, self.rows = numbers, slower, rows
        self.weights = _BY_OCTAVES * _shares(np.log2(rows)) + (1 - _BY_OCTAVES) * _shares(rows)
        self.is_first = np.where(serving, 0.0, np.inf) if serving.any() else np.zeros(len(slower))

    @classmethod
    def of(cls, rows: np.ndarray, times: Times, recipes: Numbering) -> _Table:
        """Return the table of the plans that are fast for some number of rows of A, or can implement all of them.

        rows      numbers of rows of A, in ascending order
        times     predicted times of the candidates for each of them
        recipes   the recipes of the numbers in `times`
        """
        sampled, column = np.unique(times.problem, return_inverse=True)
        numbers, place, count = np.unique(times.numbers, return_inverse=True, return_counts=True)
        least, serving = times.least[sampled], count == len(sampled)
        near = np.flatnonzero(times.us <= _NEAR * least[column])
        near = near[np.lexsort((times.us[near], column[near]))]
        by_name = sorted(np.flatnonzero(serving).tolist(), key=lambda one: str(recipes[int(numbers[one])]))
        kept = np.array(list(dict.fromkeys([*place[near].tolist(), *by_name])))
        slower = np.tile(_NEVER * least / least, (len(numbers), 1))
        slower[place, column] = times.us / least[column]
        return cls(numbers[kept], slower[kept], serving[kept], rows[sampled])

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
