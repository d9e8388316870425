"""Linear layers of public models, sampled by a seed: problems that the choice of a plan is fitted to and judged by.

A layer with a weight w of shape (N, K), row-major as torch keeps it, takes `rows` rows of x. Training multiplies three
times, and the matrices are read as they lie in memory:

    forward           y  = x w^T       rows x N x K   layout "nt": w is K-major
    data gradient     dx = dy w        rows x K x N   layout "nn": w is N-major, seen from this product
    weight gradient   dw = dy^T x      N x K x rows   layout "tn": dy is M-major, x is N-major

The number of rows is uniform in its logarithm. It is a multiple of the tokens of one image or sequence if the model has
a fixed number of them. Otherwise half of the samples have a power of two.
"""

from __future__ import annotations

import math
import random

from cutegemm.choice.models import MODELS
from cutegemm.plan.problem import Problem
from docs.evidence.benchmark import operands_of

MOST_ROWS = 16384
# Least rows: a model that generates text has one; training has a batch of sequences.
PRODUCTS = {"forward": 1, "data gradient": 32, "weight gradient": 32}


def product_of(product: str, rows: int, weight: tuple[int, int], dtype: str = "bfloat16") -> Problem:
    """Return the problem of one product of a linear layer.

    product   one of `PRODUCTS`
    rows      of x
    weight    (N, K)

    >>> [str(product_of(name, 64, (4096, 1024)).operands.layout) for name in PRODUCTS]
    ['nt', 'nn', 'tn']
    >>> problem = product_of("weight gradient", 64, (4096, 1024))
    >>> problem.m, problem.n, problem.k
    (4096, 1024, 64)
    """
    n, k = weight
    layout, extents = {
        "forward": ("nt", (rows, n, k)),
        "data gradient": ("nn", (rows, k, n)),
        "weight gradient": ("tn", (n, k, rows)),
    }[product]
    return Problem(*extents, operands=operands_of(dtype, layout, *extents))


def layers(seed: int, count: int) -> list[Problem]:
    """Return `count` different problems; the same seed gives the same problems.

    >>> problems = layers(0, 150)
    >>> len(set(problems)), sorted({problem.operands.layout for problem in problems})
    (150, ['nn', 'nt', 'tn'])
    """
    chance = random.Random(seed)
    found: dict[Problem, None] = {}
    while len(found) < count:
        model = chance.choice(list(MODELS.values()))
        product, weight = chance.choice(list(PRODUCTS)), chance.choice(model.weights)
        found[product_of(product, _rows(chance, PRODUCTS[product], model.tokens), weight)] = None
    return list(found)


def _rows(chance: random.Random, least: int, tokens: int) -> int:
    """Sample a number of rows between `least` and `MOST_ROWS`, a multiple of `tokens`."""
    logarithm = chance.uniform(math.log2(max(least, tokens)), math.log2(MOST_ROWS))
    if tokens == 1 and chance.random() < 1 / 2:
        return 1 << round(logarithm)
    return tokens * round(2**logarithm / tokens)
