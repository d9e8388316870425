"""Few plans for any number of rows: how many there are, and what they lose, by the model that chooses."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from cutegemm.choice.candidate import Candidate
from cutegemm.choice.catalog import candidates as ranking
from cutegemm.choice.names import recipe_named
from cutegemm.choice.rows import MOST_KERNELS, few, looked_at
from cutegemm.plan import Operands, Problem

NAMES = ("simt_64x64", "simt_128x128", "sm90_64x64", "sm90_128x128")
RECIPES = [recipe_named(name) for name in NAMES]


def candidates(**us):
    """By their places in `NAMES`, the fastest first."""
    found = [Candidate(RECIPES[int(name[1:])], one, dict) for name, one in us.items()]
    return sorted(found, key=lambda one: one.us)


# Times by rows: p0 is the best of few rows, p1 of many, p2 the second of both, p3 is considered for 8 rows alone.
TIMES = {
    1: candidates(p0=1.0, p1=4.0, p2=1.2),
    8: candidates(p0=2.0, p1=4.0, p2=2.2, p3=1.9),
    64: candidates(p0=9.0, p1=4.0, p2=4.4),
}


@pytest.mark.parametrize(("most", "taken"), [(1, {2}), (2, {0, 1}), (3, {0, 1, 3}), (4, {0, 1, 3}), (9, {0, 1, 3})])
def test_which_are_taken(most, taken):
    """One: p2 loses 20, 16 and 10%. Two: p0 and p1 lose 5% of 8 rows; three lose nothing."""
    found = few(TIMES.__getitem__, most, TIMES)
    assert {RECIPES.index(recipe) for recipe in found} >= taken
    assert len(found) == len(set(found)) <= most


def test_a_greedy_choice_is_exchanged():
    """p2 is the best alone; of two, p0 and p1 lose nothing, p2 and any other 10%."""
    times = {1: candidates(p0=1.0, p1=9.0, p2=1.1), 2: candidates(p0=9.0, p1=1.0, p2=1.1)}
    assert few(times.__getitem__, 1, times) == (RECIPES[2],)
    assert set(few(times.__getitem__, 2, times)) == {RECIPES[0], RECIPES[1]}


def test_large_numbers_of_rows_count_more():
    """By octaves alone, 1 would count as half of the others: means of 1.22 and 1.23. By rows it counts as a quarter."""
    few_rows, many = candidates(p0=1.0, p1=1.5), candidates(p0=1.4, p1=1.0)
    times = {1: few_rows, 4096: many, 8192: many}
    assert few(times.__getitem__, 1, times) == (RECIPES[1],)
    times = {1: few_rows, 64: few_rows, 4096: many}
    assert few(times.__getitem__, 1, times) == (RECIPES[0],)


def test_rows_without_candidates_are_left_out():
    assert few(lambda rows: TIMES.get(rows, []), 2, (1, 2, 64)) != ()
    assert few(lambda rows: [], 2, (1, 2)) == ()


def test_rows_that_are_looked_at():
    found = looked_at()
    assert (found[0], found[-1], len(found)) == (1, 8192, len(set(found)))
    assert max(b / a for a, b in pairwise(found[18:])) < 1.15


# Weights of Llama 3 8B and 70B.
WEIGHTS = [(4096, 4096), (14336, 4096), (4096, 14336), (8192, 8192), (28672, 8192)]


@pytest.mark.parametrize("weights", [WEIGHTS[1:2], pytest.param(WEIGHTS, marks=pytest.mark.slow)])
def test_six_plans_lose_two_per_cent(weights):
    """On the average of numbers of rows from 1 to 8192, most of them not among those of `few`."""
    rows = np.random.default_rng(2).integers(1, 8193, 60).tolist()
    ops = Operands.of("bf16", layout="nt")
    losses = []
    for n, k in weights:
        weigh = {each: ranking(ops, Problem(each, n, k)) for each in {*rows, *looked_at()}}
        taken = few(weigh.__getitem__)
        chosen = {each: next(one for one in weigh[each] if one.recipe in taken) for each in weigh}
        assert len({one.recipe for one in chosen.values()}) <= MOST_KERNELS == 6
        losses.append(np.mean([chosen[each].us / weigh[each][0].us - 1 for each in rows]))
    assert np.mean(losses) < 0.02, losses
