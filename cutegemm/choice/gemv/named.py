"""The gemv plans that have a name: plans for few columns, which load A straight to registers."""

from __future__ import annotations

from cutegemm.choice.gemv.recipe import GemvRecipe

_PDL = "PDL: begins before the previous kernel of the stream has ended, which must not write A"

GEMV_PLANS = (
    GemvRecipe(
        "gemv_16x8", "up to 8 columns: A is loaded from global memory directly to fragments", {"tile": (16, 8)},
        is_chosen=True, for_one=True,
    ),
    GemvRecipe(
        "gemv_16x8_short", "up to 8 columns; k-tiles half as deep", {"tile": (16, 8), "vectors": 2},
        is_chosen=True,
    ),
    GemvRecipe(
        "gemv_16x8_wide", "up to 8 columns; 16 warps split K: for few rows of A",
        {"tile": (16, 8), "vectors": 2, "warps": 16, "ctas_per_sm": 1}, is_chosen=True, for_one=True,
    ),
    GemvRecipe(
        "gemv_16x16", "up to 16 columns", {"tile": (16, 16), "vectors": 2}, is_chosen=True,
    ),
    GemvRecipe(
        "gemv_32x16", "up to 16 columns; tiles of 32 rows: half as many CTAs read B", {"tile": (32, 16), "vectors": 1},
        is_chosen=True,
    ),
    *[
        GemvRecipe(
            f"gemv_16x8_k{ctas}", f"up to 8 columns; {ctas} CTAs split K: for small problems",
            {"tile": (16, 8), "vectors": 2, "cluster": ctas}, is_chosen=True,
        )
        for ctas in (2, 4)
    ],
    *[
        GemvRecipe(
            f"gemv_16x16_k{ctas}", f"tiles of 16 columns; {ctas} CTAs split K: for small problems",
            {"tile": (16, 16), "vectors": 2, "cluster": ctas}, is_chosen=True,
        )
        for ctas in (2, 4, 8)
    ],
    GemvRecipe(
        "gemv_16x16_k8_short", "tiles of 16 columns, k-tiles half as deep; 8 CTAs split K: for small problems",
        {"tile": (16, 16), "vectors": 1, "cluster": 8}, is_chosen=True,
    ),
    GemvRecipe(
        "gemv_16x16_k8_wide", "tiles of 16 columns, 16 warps per CTA; 8 CTAs split K: for small problems",
        {"tile": (16, 16), "vectors": 1, "warps": 16, "cluster": 8}, is_chosen=True,
    ),
    *[
        GemvRecipe(
            f"gemv_16x32_k{ctas}", f"tiles of 32 columns, which read A half as often; {ctas} CTAs split K",
            {"tile": (16, 32), "vectors": 1, "cluster": ctas}, is_chosen=True,
        )
        for ctas in (2, 4, 8)
    ],
    *[
        GemvRecipe(
            f"gemv_32x32_k{ctas}", f"tiles of 32 x 32, one CTA per SM; {ctas} CTAs split K: for small problems",
            {"tile": (32, 32), "vectors": 1, "cluster": ctas, "ctas_per_sm": 1}, is_chosen=True,
        )
        for ctas in (2, 4, 8)
    ],
    GemvRecipe("gemv_16x8_pdl", f"up to 8 columns; {_PDL}", {"tile": (16, 8), "pdl": True}),
    GemvRecipe(
        "gemv_16x16_pdl", f"up to 16 columns; {_PDL}",
        {"tile": (16, 16), "vectors": 2, "pdl": True},
    ),
)  # fmt: skip
