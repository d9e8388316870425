"""The SIMT plans that have a name; `simt.choice` chooses among them.

A name may have these suffixes:

simt_256x128+repack   operands that are K-major, or aligned to less than 16 bytes, go through a repack pass first
simt_128x128/k4       split-K: 4 CTAs share each tile, and a second kernel adds their accumulators
simt_128x128/k4last   the CTA that ends last adds them
simt_128x128/s264     stream-K: the k-tiles of the tiles that do not fill a grid of 264 CTAs are divided evenly among
                      these CTAs
"""

from __future__ import annotations

from dataclasses import replace

from cutegemm.choice.simt.recipe import SimtRecipe
from cutegemm.layout import product

# cp.async loads K-major tiles too, one element at a time: so several k-tiles are in flight, instead of one in
# registers.
_DEEP = {"stages": 4, "unroll": 4, "load_a": "cp.async", "load_b": "cp.async"}

# Twelve rows or columns per thread: tiles of 48, 96 and 192 rows or columns, if powers of two would extend further
# beyond D. 80 x 15824 x 13120 takes 818 us in 96 x 192, and 993 us in 128 x 256, the fastest of the others (nt, H200,
# 2026-11-25). 12 or 24 accesses of four elements along M or N divide evenly among 128 or 256 threads.
_BY_TWELVE = tuple(
    [
        SimtRecipe(
            f"simt_{rows}x{columns}",
            f"{thread[0]}x{thread[1]} elements per thread, {rows * columns // product(warp)} warps; if tiles of powers "
            "of two extend further beyond D",
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
    SimtRecipe("simt_256x128", "16x8 elements per thread, 8 warps; rows of A outermost",
        {"block": (256, 128, 16), "warp": (64, 64), "thread": (16, 8), "stages": (3, 2), "unroll": 4}),
    SimtRecipe("simt_128x256", "8x16 elements per thread, 8 warps; columns of B outermost",
        {"block": (128, 256, 8), "warp": (64, 64), "thread": (8, 16), "stages": (4, 2), "unroll": 2,
         "mma_order": "n"}),
    SimtRecipe("simt_128x256x16",
        "the mirror image of simt_256x128: 16 k-blocks between barriers instead of 8",
        {"block": (128, 256, 16), "warp": (64, 64), "thread": (8, 16), "stages": (3, 2), "unroll": 4,
         "mma_order": "n"}),
    SimtRecipe("simt_128x128",
        "8x16 elements per thread, 4 warps; two CTAs per SM, so that one covers the other's barriers",
        {"block": (128, 128, 16), "warp": (64, 64), "thread": (8, 16), "stages": (4, 2), "unroll": 4,
         "mma_order": "n", "ctas_per_sm": 2}),
    SimtRecipe("simt_64x256", "8x16 elements per thread, 4 warps side by side, two CTAs per SM; for few rows",
        {"block": (64, 256, 16), "warp": (64, 64), "thread": (8, 16), "stages": (3, 2), "unroll": 4,
         "mma_order": "n", "ctas_per_sm": 2}),
    SimtRecipe("simt_64x256x8",
        "k-tiles half as deep, and one more in flight; for a B that is loaded through registers",
        {"block": (64, 256, 8), "warp": (64, 64), "thread": (8, 16), "stages": (4, 2), "unroll": 2,
         "mma_order": "n", "ctas_per_sm": 2}),
    # Stored from registers: loads of C before the stores to shared memory would spill
    SimtRecipe("simt_256x64",
        "16x8 elements per thread, 4 warps on top of each other, two CTAs per SM; for few columns",
        {"block": (256, 64, 16), "warp": (64, 64), "thread": (16, 8), "stages": (3, 2), "unroll": 4,
         "ctas_per_sm": 2, "store": "direct"}),
    SimtRecipe("simt_128x64", "8x8 elements per thread, 4 warps; for medium problems",
        {"block": (128, 64, 16), "warp": (64, 32), "thread": (8, 8), "stages": (3, 2), "unroll": 4,
         "ctas_per_sm": 3}),
    SimtRecipe("simt_64x128", "8x8 elements per thread, 4 warps; for medium problems of few rows",
        {"block": (64, 128, 16), "warp": (32, 64), "thread": (8, 8), "stages": (3, 2), "unroll": 4,
         "ctas_per_sm": 3}),
    SimtRecipe("simt_64x64", "8x4 elements per thread, 4 warps; for small problems",
        {"block": (64, 64, 16), "warp": (32, 32), "thread": (8, 4), "stages": (3, 2), "unroll": 4,
         "ctas_per_sm": 4}),
    SimtRecipe("simt_32x256", "8x8 elements per thread, 4 warps side by side; for few rows",
        {"block": (32, 256, 8), "warp": (32, 64), "thread": (8, 8), "stages": (4, 2), "unroll": 2,
         "ctas_per_sm": 3}),
    SimtRecipe("simt_256x32", "8x8 elements per thread, 4 warps on top of each other; for few columns",
        {"block": (256, 32, 8), "warp": (64, 32), "thread": (8, 8), "stages": (4, 2), "unroll": 2,
         "ctas_per_sm": 3}),
    SimtRecipe("simt_16x256", "8x8 elements per thread, 2 warps side by side; for very few rows",
        {"block": (16, 256, 8), "warp": (16, 128), "thread": (8, 8), "stages": (4, 2), "unroll": 2,
         "ctas_per_sm": 4}),
    SimtRecipe("simt_256x16", "8x8 elements per thread, 2 warps on top of each other; for very few columns",
        {"block": (256, 16, 8), "warp": (128, 16), "thread": (8, 8), "stages": (4, 2), "unroll": 2,
         "ctas_per_sm": 4}),
    SimtRecipe("simt_32x32", "4x4 elements per thread, 2 warps; for problems of few tiles",
        {"block": (32, 32, 16), "warp": (16, 32), "thread": (4, 4), "stages": (4, 2), "unroll": 4,
         "ctas_per_sm": 8}),
    SimtRecipe("simt_16x128", "4x4 elements per thread, 4 warps side by side; for few rows",
        {"block": (16, 128, 16), "warp": (16, 32), "thread": (4, 4), "stages": (4, 2), "unroll": 4,
         "ctas_per_sm": 4}),
    SimtRecipe("simt_128x16", "4x4 elements per thread, 4 warps on top of each other; for few columns",
        {"block": (128, 16, 16), "warp": (32, 16), "thread": (4, 4), "stages": (4, 2), "unroll": 4,
         "ctas_per_sm": 4}),
    SimtRecipe("simt_32x32x32",
        "2x4 elements per thread, 4 warps, 3 k-tiles of 32 in flight by cp.async; for few tiles with split-K",
        {"block": (32, 32, 32), "warp": (8, 32), "thread": (2, 4), "quad": (2, 4), **_DEEP, "ctas_per_sm": 4}),
    SimtRecipe("simt_16x32", "4x4 elements per thread, a single warp, 3 k-tiles of 32 in flight",
        {"block": (16, 32, 32), "warp": (16, 32), "thread": (4, 4), **_DEEP, "ctas_per_sm": 5}),
    SimtRecipe("simt_32x16", "the mirror image of simt_16x32",
        {"block": (32, 16, 32), "warp": (32, 16), "thread": (4, 4), **_DEEP, "ctas_per_sm": 5}),
    SimtRecipe("simt_16x64",
        "4x4 elements per thread, 2 warps side by side, 3 k-tiles of 32 in flight; for few rows",
        {"block": (16, 64, 32), "warp": (16, 32), "thread": (4, 4), **_DEEP, "ctas_per_sm": 3}),
    SimtRecipe("simt_64x16", "the mirror image of simt_16x64, for few columns",
        {"block": (64, 16, 32), "warp": (32, 16), "thread": (4, 4), **_DEEP, "ctas_per_sm": 3}),
    SimtRecipe("simt_16x16",
        "2x2 elements per thread, 2 warps, 3 k-tiles of 64 in flight; for the smallest problems",
        {"block": (16, 16, 64), "warp": (8, 16), "thread": (2, 2), "quad": (2, 2), **_DEEP, "ctas_per_sm": 4}),
    SimtRecipe("simt_32x64", "4x4 elements per thread, 4 warps, 3 k-tiles in flight",
        {"block": (32, 64, 16), "warp": (16, 32), "thread": (4, 4), **_DEEP, "ctas_per_sm": 4}),
    SimtRecipe("simt_64x32", "the mirror image of simt_32x64",
        {"block": (64, 32, 16), "warp": (16, 32), "thread": (4, 4), **_DEEP, "ctas_per_sm": 4}),
    *_BY_TWELVE,
)  # fmt: skip
# The largest tiles, with repack passes: the last steps of the ladder.
LARGE_REPACKED = replace(SIMT_PLANS[0], is_repacked=True)


def simt_names() -> list[tuple[str, str]]:
    """Return (name, one-line summary) of every SIMT plan.

    A name may be followed by `+repack` and by `/k4` (four K splits).

    >>> [name for name, _ in simt_names()][:3]
    ['simt_256x128', 'simt_128x256', 'simt_128x256x16']
    """
    repacked = (
        str(LARGE_REPACKED),
        "256 x 128; repack passes first for operands that are K-major, or aligned to less than 16 bytes",
    )
    return [*((recipe.name, recipe.summary) for recipe in SIMT_PLANS), repacked]
