"""The SIMT plans that have a name; `simt.choice` chooses among them. What may follow a name:

simt_256x128+pack      operands that are k-major, or aligned to less than 16 bytes, are packed first
simt_128x128/k4        K is split among 4 CTAs, whose sums a second kernel adds
simt_128x128/k4last    the CTA that ends last adds them
simt_128x128/s264      a grid of 264 CTAs shares evenly the k-tiles of those tiles that do not fill it
"""

from __future__ import annotations

from dataclasses import replace

from cutegemm.choose.simt.recipe import SimtRecipe


def _rates(tn: float, nn: float, tt: float, nt: float) -> dict[str, float]:
    return {"tn": tn, "nn": nn, "tt": tt, "nt": nt}


# Rates: one H200, f32, torch 2.11, normal data, 2026-11-20, by `docs.evidence.fit_simt`. Where a plan was not timed
# they are those of its mirror image, in which A and B change places ("nn" with "tt"), a shade less for 128x256x16; or
# estimates: 32x32, 16x128, 128x16, and 64x256 between 64x128 and 128x128; of 64x256x8 that of
# "nt" was timed, and "nn" in a batch.
SIMT_PLANS = (
    SimtRecipe(
        "simt_256x128",
        "16x8 elements a thread, 8 warps; rows of A outermost",
        {"block": (256, 128, 16), "warp": (64, 64), "thread": (16, 8), "stages": (3, 2), "unroll": 4},
        _rates(0.911, 0.829, 0.889, 0.831),
    ),
    SimtRecipe(
        "simt_128x256",
        "8x16 elements a thread, 8 warps; columns of B outermost",
        {
            "block": (128, 256, 8), "warp": (64, 64), "thread": (8, 16), "stages": (4, 2), "unroll": 2,
            "mma_order": "n",
        },
        _rates(0.851, 0.846, 0.843, 0.849),
    ),
    SimtRecipe(
        "simt_128x256x16",
        "the mirror image of simt_256x128: 16 k-blocks between barriers instead of 8",
        {
            "block": (128, 256, 16), "warp": (64, 64), "thread": (8, 16), "stages": (3, 2), "unroll": 4,
            "mma_order": "n",
        },
        _rates(0.893, 0.845, 0.832, 0.828),
    ),
    SimtRecipe(
        "simt_128x128",
        "8x16 elements a thread, 4 warps; two CTAs per SM, so that one covers the other's barriers",
        {
            "block": (128, 128, 16), "warp": (64, 64), "thread": (8, 16), "stages": (4, 2), "unroll": 4,
            "mma_order": "n", "ctas_per_sm": 2,
        },
        _rates(0.879, 0.828, 0.860, 0.790),
    ),
    SimtRecipe(
        "simt_64x256",
        "8x16 elements a thread, 4 warps side by side, two CTAs per SM; for few rows",
        {
            "block": (64, 256, 16), "warp": (64, 64), "thread": (8, 16), "stages": (3, 2), "unroll": 4,
            "mma_order": "n", "ctas_per_sm": 2,
        },
        _rates(0.870, 0.838, 0.790, 0.710),
    ),
    SimtRecipe(
        "simt_64x256x8",
        "k-tiles half as deep, and one more on its way; where those of B go through registers",
        {
            "block": (64, 256, 8), "warp": (64, 64), "thread": (8, 16), "stages": (4, 2), "unroll": 2,
            "mma_order": "n", "ctas_per_sm": 2,
        },
        _rates(0.83, 0.796, 0.78, 0.732),
    ),
    SimtRecipe(
        "simt_256x64",
        "16x8 elements a thread, 4 warps on top of each other, two CTAs per SM; for few columns",
        {
            "block": (256, 64, 16), "warp": (64, 64), "thread": (16, 8), "stages": (3, 2), "unroll": 4,
            "ctas_per_sm": 2, "store": "direct",  # loads of C ahead of stores to shared memory would spill
        },
        _rates(0.889, 0.790, 0.838, 0.703),
    ),
    SimtRecipe(
        "simt_128x64",
        "8x8 elements a thread, 4 warps; for middling problems",
        {"block": (128, 64, 16), "warp": (64, 32), "thread": (8, 8), "stages": (3, 2), "unroll": 4,
         "ctas_per_sm": 3},
        _rates(0.834, 0.707, 0.827, 0.665),
    ),
    SimtRecipe(
        "simt_64x128",
        "8x8 elements a thread, 4 warps; for middling problems of few rows",
        {"block": (64, 128, 16), "warp": (32, 64), "thread": (8, 8), "stages": (3, 2), "unroll": 4,
         "ctas_per_sm": 3},
        _rates(0.840, 0.799, 0.711, 0.664),
    ),
    SimtRecipe(
        "simt_64x64",
        "8x4 elements a thread, 4 warps; for small problems",
        {"block": (64, 64, 16), "warp": (32, 32), "thread": (8, 4), "stages": (3, 2), "unroll": 4,
         "ctas_per_sm": 4},
        _rates(0.707, 0.572, 0.605, 0.518),
    ),
    SimtRecipe(
        "simt_32x256",
        "8x8 elements a thread, 4 warps side by side; for few rows",
        {"block": (32, 256, 8), "warp": (32, 64), "thread": (8, 8), "stages": (4, 2), "unroll": 2,
         "ctas_per_sm": 3},
        _rates(0.722, 0.613, 0.391, 0.447),
    ),
    SimtRecipe(
        "simt_256x32",
        "8x8 elements a thread, 4 warps on top of each other; for few columns",
        {"block": (256, 32, 8), "warp": (64, 32), "thread": (8, 8), "stages": (4, 2), "unroll": 2,
         "ctas_per_sm": 3},
        _rates(0.722, 0.391, 0.613, 0.447),
    ),
    SimtRecipe(
        "simt_16x256",
        "8x8 elements a thread, 2 warps side by side; for very few rows",
        {"block": (16, 256, 8), "warp": (16, 128), "thread": (8, 8), "stages": (4, 2), "unroll": 2,
         "ctas_per_sm": 4},
        _rates(0.544, 0.429, 0.370, 0.308),
    ),
    SimtRecipe(
        "simt_256x16",
        "8x8 elements a thread, 2 warps on top of each other; for very few columns",
        {"block": (256, 16, 8), "warp": (128, 16), "thread": (8, 8), "stages": (4, 2), "unroll": 2,
         "ctas_per_sm": 4},
        _rates(0.544, 0.370, 0.429, 0.308),
    ),
    SimtRecipe(
        "simt_32x32",
        "4x4 elements a thread, 2 warps; for problems of few tiles",
        {"block": (32, 32, 16), "warp": (16, 32), "thread": (4, 4), "stages": (4, 2), "unroll": 4,
         "ctas_per_sm": 8},
        _rates(0.32, 0.30, 0.30, 0.28),
    ),
    SimtRecipe(
        "simt_16x128",
        "4x4 elements a thread, 4 warps side by side; for few rows",
        {"block": (16, 128, 16), "warp": (16, 32), "thread": (4, 4), "stages": (4, 2), "unroll": 4,
         "ctas_per_sm": 4},
        _rates(0.32, 0.30, 0.30, 0.28),
    ),
    SimtRecipe(
        "simt_128x16",
        "4x4 elements a thread, 4 warps on top of each other; for few columns",
        {"block": (128, 16, 16), "warp": (32, 16), "thread": (4, 4), "stages": (4, 2), "unroll": 4,
         "ctas_per_sm": 4},
        _rates(0.32, 0.30, 0.30, 0.28),
    ),
)  # fmt: skip
# The largest tiles, packed: the last steps of the ladder.
LARGE_PACKED = replace(SIMT_PLANS[0], is_packed=True)


def simt_names() -> list[tuple[str, str]]:
    """Every name, with what is behind it; `/k4` and `+pack` may follow each.

    >>> [name for name, _ in simt_names()][:3]
    ['simt_256x128', 'simt_128x256', 'simt_128x256x16']
    """
    packed = (
        str(LARGE_PACKED),
        "the same, operands that are k-major or not aligned copied first, to where they are neither",
    )
    return [*((recipe.name, recipe.summary) for recipe in SIMT_PLANS), packed]
