"""The plans for few columns that have a name."""

from __future__ import annotations

from cutegemm.choose.skinny.recipe import SkinnyRecipe

SKINNY_PLANS = (
    SkinnyRecipe("skinny_16x8", "up to 8 columns: A goes from memory straight to fragments", {"tile": (16, 8)},
                 is_chosen=True),
    SkinnyRecipe("skinny_16x16", "up to 16 columns", {"tile": (16, 16)}, is_chosen=True),
    SkinnyRecipe(
        "skinny_16x8_early",
        "begins before the kernel ahead of it has ended, which must not write A",
        {"tile": (16, 8), "overlaps": True},
    ),
    SkinnyRecipe(
        "skinny_16x16_early",
        "up to 16 columns; begins before the kernel ahead of it has ended, which must not write A",
        {"tile": (16, 16), "overlaps": True},
    ),
)  # fmt: skip
