"""Few kernels for any number of rows: a layer's weight stays, and the rows of its input vary from call to call.

Each number of rows has its fastest plan, some twenty of them between 1 and 8192 rows, and each is compiled when it is
first met. `few` finds six that together lose least: for each number of rows that of the six counts which is held to be
the fastest for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from cutegemm.choose.candidate import Candidate
from cutegemm.choose.recipe import Recipe

MOST_KERNELS = 6
MOST_ROWS = 8192
_A_STEP = 1.19  # from one number of rows that is looked at to the next: a quarter of an octave
_NEVER = 10.0  # times the fastest: what a plan counts for rows that it is not considered for

Weigh = Callable[[int], Sequence[Candidate]]


def looked_at(most: int = MOST_ROWS) -> list[int]:
    """Numbers of rows that stand for all, as many in each octave.

    >>> looked_at(16)
    [1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 14, 16]
    """
    rows, at = {1, most}, 1.0
    while at < most:
        rows.add(round(at))
        at *= _A_STEP
    return sorted(rows)


def few(weigh: Weigh, most: int = MOST_KERNELS, rows: Iterable[int] | None = None) -> tuple[Recipe, ...]:
    """The recipes, `most` of them at most, by which a mean over rows of time / least time is least.

    weigh    the candidates for a number of rows, with predicted times; rows that have none are left out
    rows     that the mean is taken over. Half of it counts each of them alike, so each octave of those of `looked_at`;
             the other half counts them by the rows themselves, of which a large number has more than a small one

    The first are taken one by one, each the one that helps most; then each is exchanged for a better one, as long as
    there is one.

    >>> from cutegemm.choose.catalog import candidates
    >>> from cutegemm.plan.problem import Operands, Problem
    >>> operands = Operands.of("bf16", layout="nt")
    >>> found = few(lambda rows: candidates(operands, Problem(rows, 4096, 4096)), most=2, rows=(16, 128, 4096))
    >>> len(found)
    2
    """
    found = {
        each: {one.recipe: one.us for one in weigh(each)} for each in (looked_at() if rows is None else rows)
    }
    places = [each for each, times in found.items() if times]
    looked = [found[each] for each in places]
    if not looked:
        return ()
    weights = 1 / len(places) + np.array(places) / sum(places)
    recipes = list(dict.fromkeys([recipe for times in looked for recipe in times]))
    least = [min(times.values()) for times in looked]
    # (recipes, rows)
    slower = np.array(
        [
            [times.get(recipe, _NEVER * us) / us for times, us in zip(looked, least, strict=True)]
            for recipe in recipes
        ]
    )
    taken: list[int] = []
    by_taken = np.full(len(looked), _NEVER)
    for _ in range(min(most, len(recipes))):
        taken.append(int((np.minimum(by_taken, slower) @ weights).argmin()))
        by_taken = np.minimum(by_taken, slower[taken[-1]])
    while _exchanged(taken, slower, weights):
        pass
    return tuple([recipes[each] for each in dict.fromkeys(taken)])


def _exchanged(taken: list[int], slower: np.ndarray, weights: np.ndarray) -> bool:
    """Exchanges one of the plans that are taken for another by which all lose less; whether there was one."""
    for place in range(len(taken)):
        others = [slower[each] for at, each in enumerate(taken) if at != place]
        rest = np.min(others, axis=0) if others else np.full(slower.shape[1], np.inf)
        means = np.minimum(rest, slower) @ weights
        best = int(means.argmin())
        if means[best] < means[taken[place]] * (1 - 1e-9):
            taken[place] = best
            return True
    return False
