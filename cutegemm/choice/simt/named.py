"""The SIMT plans that have a name; `simt.choice` chooses among them. What may follow a name:

simt_256x128+repack      operands that are k-major, or aligned to less than 16 bytes, are packed first
simt_128x128/k4        K is split among 4 CTAs, whose sums a second kernel adds
simt_128x128/k4last    the CTA that ends last adds them
simt_128x128/s264      a grid of 264 CTAs shares evenly the k-tiles of those tiles that do not fill it
"""

from __future__ import annotations

from dataclasses import replace

from cutegemm.choice.simt.recipe import SimtRecipe
from cutegemm.layout import product

# k-major tiles travel by cp.async too, an element at a time: several are under way, where registers hold one
_DEEP = {"stages": 4, "unroll": 4, "load_a": "cp.async", "load_b": "cp.async"}

# Twelve rows or columns a thread: tiles of 48, 96 and 192 rows or columns, where powers of two would have more beyond
# the end. 80 x 15824 x 13120 took 818 us in 96 x 192 and 993 in 128 x 256, the fastest of the others; 288 x 11232 x
# 13392 1789 and 1931 (nt, one H200, 2026-11-25). Accesses of four elements, 12 or 24 of them along M or N, are as many
# as 128 threads, or 256, share evenly.
_BY_TWELVE = tuple(
    [
        SimtRecipe(
            f"simt_{rows}x{columns}",
            f"{thread[0]}x{thread[1]} elements a thread, {rows * columns // product(warp)} warps; where powers of two "
            "leave more of a tile empty",
            {
                "block": (rows, columns, deep), "warp": warp, "thread": thread, "stages": stages, "unroll": 4,
                "ctas_per_sm": ctas, "mma_order": "n" if columns > rows else "m", "access_elems": 4,
            },
        )
        for rows, columns, deep, warp, thread, stages, ctas in (
            (128, 96, 16, (64, 48), (8, 12), (4, 2), 2),
            (96, 128, 16, (48, 64), (12, 8), (4, 2), 2),
            (192, 128, 16, (48, 64), (12, 8), (4, 2), 1),
            (128, 192, 16, (64, 48), (8, 12), (4, 2), 1),
            (192, 96, 16, (96, 48), (12, 12), (3, 2), 2),
            (96, 192, 16, (48, 96), (12, 12), (3, 2), 2),
            (256, 48, 32, (64, 48), (8, 12), 2, 2),
            (48, 256, 32, (48, 64), (12, 8), 2, 2),
            (128, 48, 32, (32, 48), (4, 12), 2, 3),
            (48, 128, 32, (48, 32), (12, 4), 2, 3),
        )
    ]
)  # fmt: skip

SIMT_PLANS = (
    SimtRecipe("simt_256x128", "16x8 elements a thread, 8 warps; rows of A outermost",
        {"block": (256, 128, 16), "warp": (64, 64), "thread": (16, 8), "stages": (3, 2), "unroll": 4}),
    SimtRecipe("simt_128x256", "8x16 elements a thread, 8 warps; columns of B outermost",
        {"block": (128, 256, 8), "warp": (64, 64), "thread": (8, 16), "stages": (4, 2), "unroll": 2,
         "mma_order": "n"}),
    SimtRecipe("simt_128x256x16",
        "the mirror image of simt_256x128: 16 k-blocks between barriers instead of 8",
        {"block": (128, 256, 16), "warp": (64, 64), "thread": (8, 16), "stages": (3, 2), "unroll": 4,
         "mma_order": "n"}),
    SimtRecipe("simt_128x128",
        "8x16 elements a thread, 4 warps; two CTAs per SM, so that one covers the other's barriers",
        {"block": (128, 128, 16), "warp": (64, 64), "thread": (8, 16), "stages": (4, 2), "unroll": 4,
         "mma_order": "n", "ctas_per_sm": 2}),
    SimtRecipe("simt_64x256", "8x16 elements a thread, 4 warps side by side, two CTAs per SM; for few rows",
        {"block": (64, 256, 16), "warp": (64, 64), "thread": (8, 16), "stages": (3, 2), "unroll": 4,
         "mma_order": "n", "ctas_per_sm": 2}),
    SimtRecipe("simt_64x256x8",
        "k-tiles half as deep, and one more on its way; where those of B go through registers",
        {"block": (64, 256, 8), "warp": (64, 64), "thread": (8, 16), "stages": (4, 2), "unroll": 2,
         "mma_order": "n", "ctas_per_sm": 2}),
    # Stored straight out of registers: loads of C ahead of stores to shared memory would spill
    SimtRecipe("simt_256x64",
        "16x8 elements a thread, 4 warps on top of each other, two CTAs per SM; for few columns",
        {"block": (256, 64, 16), "warp": (64, 64), "thread": (16, 8), "stages": (3, 2), "unroll": 4,
         "ctas_per_sm": 2, "store": "direct"}),
    SimtRecipe("simt_128x64", "8x8 elements a thread, 4 warps; for middling problems",
        {"block": (128, 64, 16), "warp": (64, 32), "thread": (8, 8), "stages": (3, 2), "unroll": 4,
         "ctas_per_sm": 3}),
    SimtRecipe("simt_64x128", "8x8 elements a thread, 4 warps; for middling problems of few rows",
        {"block": (64, 128, 16), "warp": (32, 64), "thread": (8, 8), "stages": (3, 2), "unroll": 4,
         "ctas_per_sm": 3}),
    SimtRecipe("simt_64x64", "8x4 elements a thread, 4 warps; for small problems",
        {"block": (64, 64, 16), "warp": (32, 32), "thread": (8, 4), "stages": (3, 2), "unroll": 4,
         "ctas_per_sm": 4}),
    SimtRecipe("simt_32x256", "8x8 elements a thread, 4 warps side by side; for few rows",
        {"block": (32, 256, 8), "warp": (32, 64), "thread": (8, 8), "stages": (4, 2), "unroll": 2,
         "ctas_per_sm": 3}),
    SimtRecipe("simt_256x32", "8x8 elements a thread, 4 warps on top of each other; for few columns",
        {"block": (256, 32, 8), "warp": (64, 32), "thread": (8, 8), "stages": (4, 2), "unroll": 2,
         "ctas_per_sm": 3}),
    SimtRecipe("simt_16x256", "8x8 elements a thread, 2 warps side by side; for very few rows",
        {"block": (16, 256, 8), "warp": (16, 128), "thread": (8, 8), "stages": (4, 2), "unroll": 2,
         "ctas_per_sm": 4}),
    SimtRecipe("simt_256x16", "8x8 elements a thread, 2 warps on top of each other; for very few columns",
        {"block": (256, 16, 8), "warp": (128, 16), "thread": (8, 8), "stages": (4, 2), "unroll": 2,
         "ctas_per_sm": 4}),
    SimtRecipe("simt_32x32", "4x4 elements a thread, 2 warps; for problems of few tiles",
        {"block": (32, 32, 16), "warp": (16, 32), "thread": (4, 4), "stages": (4, 2), "unroll": 4,
         "ctas_per_sm": 8}),
    SimtRecipe("simt_16x128", "4x4 elements a thread, 4 warps side by side; for few rows",
        {"block": (16, 128, 16), "warp": (16, 32), "thread": (4, 4), "stages": (4, 2), "unroll": 4,
         "ctas_per_sm": 4}),
    SimtRecipe("simt_128x16", "4x4 elements a thread, 4 warps on top of each other; for few columns",
        {"block": (128, 16, 16), "warp": (32, 16), "thread": (4, 4), "stages": (4, 2), "unroll": 4,
         "ctas_per_sm": 4}),
    SimtRecipe("simt_32x32x32",
        "2x4 elements a thread, 4 warps, 3 deep k-tiles under way by cp.async; for few tiles and a K that "
        "is split",
        {"block": (32, 32, 32), "warp": (8, 32), "thread": (2, 4), "quad": (2, 4), **_DEEP, "ctas_per_sm": 4}),
    SimtRecipe("simt_16x32", "4x4 elements a thread, a single warp, 3 deep k-tiles under way",
        {"block": (16, 32, 32), "warp": (16, 32), "thread": (4, 4), **_DEEP, "ctas_per_sm": 5}),
    SimtRecipe("simt_32x16", "the mirror image of simt_16x32",
        {"block": (32, 16, 32), "warp": (32, 16), "thread": (4, 4), **_DEEP, "ctas_per_sm": 5}),
    SimtRecipe("simt_16x64",
        "4x4 elements a thread, 2 warps side by side, 3 deep k-tiles under way; for few rows",
        {"block": (16, 64, 32), "warp": (16, 32), "thread": (4, 4), **_DEEP, "ctas_per_sm": 3}),
    SimtRecipe("simt_64x16", "the mirror image of simt_16x64, for few columns",
        {"block": (64, 16, 32), "warp": (32, 16), "thread": (4, 4), **_DEEP, "ctas_per_sm": 3}),
    SimtRecipe("simt_16x16",
        "2x2 elements a thread, 2 warps, 3 k-tiles of 64 under way; for the smallest problems",
        {"block": (16, 16, 64), "warp": (8, 16), "thread": (2, 2), "quad": (2, 2), **_DEEP, "ctas_per_sm": 4}),
    SimtRecipe("simt_32x64", "4x4 elements a thread, 4 warps, 3 k-tiles under way",
        {"block": (32, 64, 16), "warp": (16, 32), "thread": (4, 4), **_DEEP, "ctas_per_sm": 4}),
    SimtRecipe("simt_64x32", "the mirror image of simt_32x64",
        {"block": (64, 32, 16), "warp": (16, 32), "thread": (4, 4), **_DEEP, "ctas_per_sm": 4}),
    *_BY_TWELVE,
)  # fmt: skip
# The largest tiles, packed: the last steps of the ladder.
LARGE_REPACKED = replace(SIMT_PLANS[0], is_repacked=True)


def simt_names() -> list[tuple[str, str]]:
    """Every name, with what is behind it; `/k4` and `+repack` may follow each.

    >>> [name for name, _ in simt_names()][:3]
    ['simt_256x128', 'simt_128x256', 'simt_128x256x16']
    """
    packed = (
        str(LARGE_REPACKED),
        "256 x 128, operands that are k-major or not aligned copied first, to where they are neither",
    )
    return [*((recipe.name, recipe.summary) for recipe in SIMT_PLANS), packed]
