"""Few kernels for any number of rows: a layer's weight stays, and the rows of its input vary from call to call.

Each number of rows has its fastest plan, some twenty of them between 1 and 8192 rows, and each is compiled when it is
first met. `few` finds six that together lose least: for each number of rows that of the six counts which is held to be
the fastest for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from cutegemm.choice.candidate import Candidate
from cutegemm.choice.recipe import Recipe

MOST_KERNELS = 6
MOST_ROWS = 8192
_A_STEP = 1.12  # from one number of rows that is looked at to the next: a sixth of an octave
_EVENLY = 352  # rows from one to the next of those that are looked at besides: ends of tiles, and what is between
_MOST_EVEN = 1 << 17  # rows, beyond which those of the octaves alone are looked at
_NEVER = 10.0  # times the fastest: what a plan counts for rows that it is not considered for
_BY_OCTAVES = 0.3  # of the mean: there each octave of rows counts alike, in the rest of it each number of rows
_NEAR = 1.1  # times the fastest: what is never as near to it is not taken
_BEGINNINGS = 4

Weigh = Callable[[int], Sequence[Candidate]]


def looked_at(most: int = MOST_ROWS) -> list[int]:
    """Numbers of rows that stand for all: as many in each octave, and more of the large ones.

    >>> looked_at(16)
    [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 15, 16]
    """
    rows, at = {1, most, *range(_EVENLY, min(most, _MOST_EVEN), _EVENLY)}, 1.0
    while at < most:
        rows.add(round(at))
        at *= _A_STEP
    return sorted(rows)


def few(weigh: Weigh, most: int = MOST_KERNELS, rows: Iterable[int] | None = None) -> tuple[Recipe, ...]:
    """The recipes, `most` of them at most, by which a mean over rows of time / least time is least.

    weigh    the candidates for a number of rows, with predicted times; rows that have none are left out
    rows     that the mean is taken over, in their order: each stands for those that are nearest to it. A part of the
             mean counts each octave alike, the rest each number of rows

    The first is one that serves all rows; of the others, each is the one that helps most. Then each is exchanged for a
    better one, as long as there is one. So it is done again from other beginnings, and the best end is taken.

    >>> from cutegemm.choice.catalog import candidates
    >>> from cutegemm.plan.problem import Operands, Problem
    >>> operands = Operands.of("bf16", layout="nt")
    >>> found = few(lambda rows: candidates(operands, Problem(rows, 4096, 4096)), most=2, rows=(16, 128, 4096))
    >>> len(found)
    2
    """
    found = {each: {one.recipe: one.us for one in weigh(each)} for each in (looked_at() if rows is None else rows)}
    places = [each for each, times in found.items() if times]
    looked = [found[each] for each in places]
    if not looked:
        return ()
    least = [min(times.values()) for times in looked]
    serving = set.intersection(*[set(times) for times in looked])
    near = [r for times, us in zip(looked, least, strict=True) for r, of in times.items() if of <= _NEAR * us]
    recipes = list(dict.fromkeys([*near, *sorted(serving, key=str)]))
    slower = np.array(
        [[times.get(recipe, _NEVER * us) / us for times, us in zip(looked, least, strict=True)] for recipe in recipes]
    )  # (recipes, rows)
    table = _Table(slower, np.array([recipe in serving for recipe in recipes]), np.array(places))
    taken = min([table.taken(most, first) for first in range(_BEGINNINGS)], key=table.mean)
    return tuple([recipes[each] for each in dict.fromkeys(taken)])


class _Table:
    """Times / least time of recipes for numbers of rows.

    slower    (recipes, rows)
    serving   of a recipe, whether it serves all rows; () where none does
    """

    def __init__(self, slower: np.ndarray, serving: np.ndarray, rows: np.ndarray) -> None:
        self.slower, self.rows = slower, rows
        self.weights = _BY_OCTAVES * _shares(np.log2(rows)) + (1 - _BY_OCTAVES) * _shares(rows)
        self.is_first = np.where(serving, 0.0, np.inf) if serving.any() else np.zeros(len(slower))

    def mean(self, taken: list[int]) -> float:
        """Of some recipes, each of which is taken for the rows that it is the fastest for."""
        return float(self.slower[taken].min(0) @ self.weights)

    def taken(self, most: int, beginning: int) -> list[int]:
        """The places of recipes, the first of one that serves all rows.

        beginning   which of the recipes that serve all is taken at first: 0 is the best of them
        """
        alone = self.slower @ self.weights + self.is_first
        found = [int(np.argsort(alone, kind="stable")[min(beginning, len(alone) - 1)])]
        by_taken = self.slower[found[0]]
        while len(found) < min(most, len(self.slower)):
            found.append(int((np.minimum(by_taken, self.slower) @ self.weights).argmin()))
            by_taken = np.minimum(by_taken, self.slower[found[-1]])
        while self._is_exchanged(found):
            pass
        return found

    def _is_exchanged(self, taken: list[int]) -> bool:
        """Exchanges one of those that are taken for another by which all lose less; whether there was one."""
        for place in range(len(taken)):
            others = [self.slower[each] for at, each in enumerate(taken) if at != place]
            rest = np.min(others, axis=0) if others else np.full(len(self.rows), np.inf)
            means = np.minimum(rest, self.slower) @ self.weights + (self.is_first if place == 0 else 0.0)
            best = int(means.argmin())
            if means[best] < means[taken[place]] * (1 - 1e-9):
                taken[place] = best
                return True
        return False


def _shares(places: np.ndarray) -> np.ndarray:
    """What each of some places on a line, in their order, has of it: as far as halfway to its neighbours.

    >>> _shares(np.array([0.0, 1.0, 4.0])).tolist()
    [0.125, 0.5, 0.375]
    """
    if len(places) == 1:
        return np.ones(1)
    halves = np.diff(places) / 2
    return (np.pad(halves, (0, 1)) + np.pad(halves, (1, 0))) / (places[-1] - places[0])
