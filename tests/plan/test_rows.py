"""Few plans for any number of rows: how many there are, and what they lose, by the model that chooses."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from cutegemm.choice.candidate import Request
from cutegemm.choice.catalog import candidates as ranking
from cutegemm.choice.catalog import families, ranked
from cutegemm.choice.names import recipe_named
from cutegemm.choice.rows import MOST_KERNELS, few, looked_at
from cutegemm.choice.times import Numbering, Times
from cutegemm.plan import Operands, Problem
from docs.evidence.random_problems import drawn

NAMES = ("simt_64x64", "simt_128x128", "sm90_64x64", "sm90_128x128")
RECIPES = [recipe_named(name) for name in NAMES]


class Numbered(Numbering):
    """Numbers the recipes by their places in `NAMES`."""

    def __getitem__(self, number):
        return RECIPES[number]


def times(**us):
    """By their places in `NAMES`."""
    return {int(name[1:]): one for name, one in us.items()}


def select(by_rows, most, **options):
    entries = [(index, *one) for index, times in enumerate(by_rows.values()) for one in times.items()]
    columns = [np.array(column) for column in zip(*entries, strict=True)] or [np.zeros(0, int)] * 3
    return few(list(by_rows), Times(*columns), Numbered(), most, **options)


# Times by rows: p0 is the best of few rows, p1 of many, p2 the second of both, p3 is considered for 8 rows alone.
TIMES = {
    1: times(p0=1.0, p1=4.0, p2=1.2),
    8: times(p0=2.0, p1=4.0, p2=2.2, p3=1.9),
    64: times(p0=9.0, p1=4.0, p2=4.4),
}


@pytest.mark.parametrize(("most", "taken"), [(1, {2}), (2, {0, 1}), (3, {0, 1, 3}), (4, {0, 1, 3}), (9, {0, 1, 3})])
def test_which_are_taken(most, taken):
    """One: p2 loses 20, 16 and 10%. Two: p0 and p1 lose 5% of 8 rows; three lose nothing."""
    found = select(TIMES, most)
    assert {RECIPES.index(recipe) for recipe in found} >= taken
    assert len(found) == len(set(found)) <= most


def test_a_greedy_choice_is_exchanged():
    """p2 is the best alone; of two, p0 and p1 lose nothing, p2 and any other 10%."""
    by_rows = {1: times(p0=1.0, p1=9.0, p2=1.1), 2: times(p0=9.0, p1=1.0, p2=1.1)}
    assert select(by_rows, 1) == (RECIPES[2],)
    assert set(select(by_rows, 2)) == {RECIPES[0], RECIPES[1]}


def test_large_numbers_of_rows_count_more():
    """By octaves alone, 1 would count as half of the others: means of 1.22 and 1.23. By rows it counts as a quarter."""
    few_rows, many = times(p0=1.0, p1=1.5), times(p0=1.4, p1=1.0)
    assert select({1: few_rows, 4096: many, 8192: many}, 1) == (RECIPES[1],)
    assert select({1: few_rows, 64: few_rows, 4096: many}, 1) == (RECIPES[0],)


def test_rows_without_candidates_are_left_out():
    assert select({0: times(), **TIMES, 99: times()}, 2) == select(TIMES, 2) != ()
    assert select({1: times(), 2: times()}, 2) == ()


def test_refused_recipes_are_left_out_as_if_they_were_not_candidates():
    """Without p1, p2 is the only recipe for 64 rows; its slowdown is then 1. With p0 refused too, p3 remains for 8."""
    refused = {RECIPES[1]}

    def can_implement(recipe):
        return recipe not in refused

    without = {rows: {number: us for number, us in one.items() if number != 1} for rows, one in TIMES.items()}
    assert select(TIMES, 2, can_implement=can_implement) == select(without, 2)
    refused.add(RECIPES[0])
    assert set(select(TIMES, 2, can_implement=can_implement)) == {RECIPES[2], RECIPES[3]}
    refused.update(RECIPES)
    assert select(TIMES, 2, can_implement=can_implement) == ()


def test_only_recipes_that_would_be_chosen_are_tested():
    tested = []
    assert select(TIMES, 1, can_implement=lambda recipe: not tested.append(recipe)) == (RECIPES[2],) == tuple(tested)


PROBLEMS = [
    *drawn(977, 24),
    *[Problem(192, 4096, 4096, operands=Operands.of(kind, layout="nt").transposed) for kind in ("bf16", "e4m3")],
    Problem(77, 555, 4096, operands=Operands.of("bf16", layout="nt").transposed.fitted(77, 555, 4096)),
    Problem(77, 512, 512, 3, Operands.of("tf32", batched=True).transposed, ld=(("a", 30000), ("d", 20008))),
]


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_times_in_arrays_are_those_of_candidates(problem):
    """For several numbers of rows, with one numbering: the recipes, their order and their times, bit by bit."""
    recipes, request = Numbering(), Request(problem.operands)
    numbers, problems = {}, [replace(problem, m=rows) for rows in (problem.m, 1, 40, 64, 333, 3000, 20000)]
    times = recipes.times(problems, lambda of_rows: families(request, of_rows)).ascending()
    for index, of_rows in enumerate(problems):
        expected, found = list(ranked(problem.operands, of_rows)), times.where(times.problem == index)
        assert found.us.tolist() == [one.us for one in expected]
        assert [recipes[number] for number in found.numbers] == [one.recipe for one in expected]
        near = found.within(1.5)
        assert near.us.tolist() == [one.us for one in expected if one.us <= 1.5 * expected[0].us]
        for number, one in zip(found.numbers.tolist(), expected, strict=True):
            assert numbers.setdefault(one.recipe, number) == number


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
        weigh = {each: ranking(ops, Problem(each, n, k)) for each in rows}
        recipes, problems = Numbering(), [Problem(each, n, k) for each in looked_at()]
        taken = few(looked_at(), recipes.times(problems, lambda one: families(Request(ops), one)), recipes)
        chosen = {each: next(one for one in weigh[each] if one.recipe in taken) for each in weigh}
        assert len({one.recipe for one in chosen.values()}) <= MOST_KERNELS == 6
        losses.append(np.mean([chosen[each].us / weigh[each][0].us - 1 for each in rows]))
    assert np.mean(losses) < 0.02, losses
