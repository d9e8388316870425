"""The mma.sync plans that have a name, apart from the steps of their ladder."""

from __future__ import annotations

from cutegemm.choice.mma_sync.recipe import MmaSyncRecipe, MmaTmaRecipe

# The last number is the speed on large problems, relative to mma_128x256. Measured for the first three plans (bf16,
# 4096 and 8192 cubed, normal data, H200, 2026-11-20), estimated for the others.
MMA_SYNC_PLANS = (
    MmaSyncRecipe("mma_128x256", "8 warps of 64 x 64; columns of B outermost",
        {"block": (128, 256), "raster": "grouped_n:8"}, 1.0),
    MmaSyncRecipe("mma_256x128", "8 warps of 64 x 64; rows of A outermost",
        {"block": (256, 128), "mma_order": "m"}, 0.98),
    MmaSyncRecipe("mma_128x128",
        "4 warps of 64 x 64; two CTAs per SM, so that one covers the other's barriers",
        {"block": (128, 128), "ctas_per_sm": 2}, 0.90),
    MmaSyncRecipe("mma_128x64", "4 warps of 64 x 32; for medium problems",
        {"block": (128, 64), "warp": (64, 32), "ctas_per_sm": 2}, 0.75),
    MmaSyncRecipe("mma_64x64", "4 warps of 32 x 32; for small problems",
        {"block": (64, 64), "warp": (32, 32), "ctas_per_sm": 2}, 0.6),
    MmaSyncRecipe("mma_32x64", "2 warps of 32 x 32; for problems of few tiles",
        {"block": (32, 64), "warp": (32, 32), "ctas_per_sm": 3}, 0.4),
    MmaSyncRecipe("mma_16x128", "4 warps of 16 x 32; for few rows",
        {"block": (16, 128), "warp": (16, 32), "ctas_per_sm": 3}, 0.35),
    MmaSyncRecipe("mma_64x32", "4 warps of 32 x 16; for few columns",
        {"block": (64, 32), "warp": (32, 16), "ctas_per_sm": 3}, 0.4),
    MmaSyncRecipe("mma_32x32", "4 warps of 16 x 16; for one or two tiles whose K is split among many CTAs",
        {"block": (32, 32), "warp": (16, 16), "ctas_per_sm": 3}, 0.3),
    MmaSyncRecipe("mma_16x64", "4 warps of 16 x 16; for very few rows",
        {"block": (16, 64), "warp": (16, 16), "ctas_per_sm": 3}, 0.25),
    MmaSyncRecipe("mma_64x16", "4 warps of 16 x 16; for very few columns",
        {"block": (64, 16), "warp": (16, 16), "ctas_per_sm": 3}, 0.25),
    MmaSyncRecipe("mma_64x64_short", "as mma_64x64, with k-tiles of 64 bytes; for a short K",
        {"block": (64, 64), "warp": (32, 32), "ctas_per_sm": 3, "k_bytes": 64}, 0.5),
    MmaSyncRecipe("mma_32x32_short", "as mma_32x32, with k-tiles of 64 bytes; for a short K",
        {"block": (32, 32), "warp": (16, 16), "ctas_per_sm": 5, "k_bytes": 64}, 0.25),
    MmaSyncRecipe("mma_16x128_short", "as mma_16x128, with k-tiles of 64 bytes; for few rows and a short K",
        {"block": (16, 128), "warp": (16, 32), "ctas_per_sm": 4, "k_bytes": 64}, 0.3),
)  # fmt: skip

# Tiles are loaded by TMA: for chips that have TMA and no wgmma, such as sm_120. `choose` does not consider these plans:
# on sm_90a wgmma is faster, and on other chips they were not timed. For four MMAs, a warp reads 5.5 rows of 128 bytes
# from shared memory with warp tiles of 64 x 64 in 256 x 128, and 4.9 rows with 64 x 80 in 256 x 160, one row per cycle.
# The tensor cores take 6.1 to 6.7 cycles for four MMAs (H200 peak at 1.8 to 2.0 GHz).
MMA_SYNC_FED = (
    MmaTmaRecipe("mma_tma_128x256", "as mma_128x256, with a producer warp; the other warps only multiply and store",
        {"block": (128, 256), "raster": "grouped_n:8"}),
    MmaTmaRecipe("mma_tma_256x128", "as mma_256x128, with a producer warp; the other warps only multiply and store",
        {"block": (256, 128), "mma_order": "m"}),
    MmaTmaRecipe("mma_tma_256x160",
        "8 warps of 64 x 80: a tenth fewer reads per MMA, in the registers that the producer leaves",
        {"block": (256, 160), "warp": (64, 80)}),
)  # fmt: skip
