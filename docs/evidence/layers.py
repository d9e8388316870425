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
from collections.abc import Mapping
from dataclasses import dataclass

from cutegemm.plan.problem import Problem
from docs.evidence.benchmark import operands_of

MOST_ROWS = 16384
# Least rows: a model that generates text has one; training has a batch of sequences.
PRODUCTS = {"forward": 1, "data gradient": 32, "weight gradient": 32}


@dataclass(frozen=True)
class Model:
    """Weights of a model's linear layers.

    weights   shapes (N, K) of the weights: N output features, K input features
    tokens    rows that one image or sequence has; 1 if any number of rows is usual
    """

    weights: tuple[tuple[int, int], ...]
    tokens: int = 1


def _decoder(width: int, heads: int, groups: int, hidden: int, vocabulary: int) -> Model:
    """Model of a decoder with a gated MLP.

    width      features of a token
    heads      features of all queries
    groups     features of all keys, and of all values
    hidden     features between the two layers of the MLP
    vocabulary rows of the last layer's weight
    """
    weights = (heads, width), (groups, width), (heads + 2 * groups, width), (width, heads)
    return Model((*weights, (hidden, width), (2 * hidden, width), (width, hidden), (vocabulary, width)))


def _encoder(width: int, tokens: int, outputs: int) -> Model:
    """Model of a transformer whose MLP is four times as wide as a token, without gates.

    tokens    see `Model`
    outputs   rows of the last layer's weight
    """
    weights = (width, width), (3 * width, width), (4 * width, width), (width, 4 * width), (outputs, width)
    return Model(weights, tokens)


MODELS: Mapping[str, Model] = {
    "Llama 3.2 1B": _decoder(2048, 2048, 512, 8192, 128256),
    "Llama 3.2 3B": _decoder(3072, 3072, 1024, 8192, 128256),
    "Llama 3.1 8B": _decoder(4096, 4096, 1024, 14336, 128256),
    "Llama 3.1 70B": _decoder(8192, 8192, 1024, 28672, 128256),
    "Qwen 2.5 0.5B": _decoder(896, 896, 128, 4864, 151936),
    "Qwen 2.5 1.5B": _decoder(1536, 1536, 256, 8960, 151936),
    "Qwen 2.5 7B": _decoder(3584, 3584, 512, 18944, 152064),
    "Qwen 2.5 32B": _decoder(5120, 5120, 1024, 27648, 152064),
    "Qwen 3 8B": _decoder(4096, 4096, 1024, 12288, 151936),
    "Gemma 2 2B": _decoder(2304, 2048, 1024, 9216, 256000),
    "Gemma 2 9B": _decoder(3584, 4096, 2048, 14336, 256000),
    "Gemma 2 27B": _decoder(4608, 4096, 2048, 36864, 256000),
    "Phi 3 mini": _decoder(3072, 3072, 3072, 8192, 32064),
    "Phi 4": _decoder(5120, 5120, 1280, 17920, 100352),
    "ViT-B/16": _encoder(768, 197, 1000),
    "ViT-L/16": _encoder(1024, 197, 1000),
    "ViT-H/14": _encoder(1280, 257, 1000),
    "BERT base": _encoder(768, 128, 30522),
    "BERT large": _encoder(1024, 512, 30522),
    "SD3.5 medium, image": _encoder(1536, 4096, 64),
    "SD3.5 medium, text": _encoder(1536, 333, 9216),
    "SD3.5 large, image": _encoder(2432, 4096, 64),
    "SD3.5 large, text": _encoder(2432, 333, 14592),
}


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
