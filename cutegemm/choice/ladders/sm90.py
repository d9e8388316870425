"""The Hopper ladder: plans as steps, each one change to the one before it, with the reason.

A number in a reason is of one H200, bf16, D bf16, A and B k-major, normal data, in turns with cuBLAS (2026-11-20).
"""

from __future__ import annotations

from collections.abc import Iterator

from cutegemm.choice.ladders.ladder import Ladder, LadderStep
from cutegemm.choice.recipe import STREAM_WAVES
from cutegemm.choice.sm90.named import SM90_PLANS
from cutegemm.choice.sm90.recipe import Sm90Recipe
from cutegemm.choice.sm90.tiles import COOPERATIVE
from cutegemm.plan.problem import Operands

_OPERANDS = Operands.of("bf16", layout="nt")
_DIRECT = {"store": "direct", "raster": "along_n"}
_KEEP_INPUTS = ("evict_last", "evict_last", "evict_first")
# (name, options, what changes: why), or the name of a plan that `choose` considers too
_STEPS = (
    ("sm90_multistage", {"tile": (128, 128), "schedule": "single", **_DIRECT},
     "TMA loads and wgmma: one warpgroup, which asks for k-tiles ahead between its products"),
    ("sm90_specialized",
     {"tile": (128, 128), "schedule": "cooperative", "consumers": 1, **_DIRECT, "ctas": None},
     "a producer warp fills the ring, so that the products never wait for the asking"),
    ("sm90_large_tile", {"tile": (128, 256), **COOPERATIVE, **_DIRECT, "ctas": None},
     "two consumers share 128 x 256: 1.3 times the products for each byte that is loaded"),
    ("sm90_persistent", {"tile": (128, 256), **COOPERATIVE, **_DIRECT},
     "one CTA per SM takes tile after tile: the next one's k-tiles come while D is written"),
    ("sm90_pingpong", {"tile": (128, 128), **_DIRECT},
     "the consumers take tiles in turn: one writes D while the other multiplies"),
    ("sm90_tma_plain", {"tile": (128, 128), "shared_d": "plain", "raster": "along_n"},
     "D leaves by TMA, through rows of 128 bytes: stmatrix meets 8-fold bank conflicts"),
    ("sm90_padded", {"tile": (128, 128), "shared_d": "padded", "raster": "along_n"},
     "the rows are padded by 16 bytes: no conflicts; but a box of TMA lies dense, so the threads copy D out"),
    ("sm90_tma_swizzled", {"tile": (128, 128), "raster": "along_n"},
     "the rows are swizzled as TMA unswizzles them: no conflicts, no padding, and no thread copies"),
    "sm90_epi_stages",
    ("sm90_along_m", {"tile": (128, 128), "epi_stages": 4, "raster": "along_m"},
     "tiles in columns: which operand is read again from L2 decides at large K"),
    ("sm90_grouped", {"tile": (128, 128), "epi_stages": 4, "raster": "grouped_m:16"},
     "tiles in bands of 16 rows: both operands are read again from L2"),
    ("sm90_hilbert", {"tile": (128, 128), "epi_stages": 4, "raster": "hilbert:8"},
     "tiles along a Hilbert curve in squares of 8 x 8: as near to each other as an order can have them"),
    ("sm90_l2", {"tile": (128, 128), "epi_stages": 4, "raster": "grouped_m:8", "l2": _KEEP_INPUTS},
     "L2 is told to keep A and B, and to let go of D"),
    "sm90_cluster_1x2",
    "sm90_cluster_2x1",
    "sm90_wide_1x2",
    "sm90_wide_2x1",
    "sm90_wide_along_n",
    "sm90_wide_along_n_1x2",
    "sm90_wide_along_n_2x1",
    ("sm90_cooperative", {"tile": (128, 256), **COOPERATIVE},
     "128 x 256 by two consumers with D through TMA, where many k-tiles hide the epilogue"),
    ("sm90_cooperative_2x1", {"tile": (128, 256), **COOPERATIVE, "cluster": (2, 1), "stagger_cycles": 550},
     "128 x 256 in clusters of 2 x 1; the second consumer begins 550 cycles later, so that the two do not "
     "store at once"),
    ("sm90_tall_1x2", {"tile": (256, 128), **COOPERATIVE, "cluster": (1, 2)},
     "256 x 128 by two consumers of 128 x 128 each, sharing A in clusters"),
    "sm90_overlapped",
    "sm90_overlapped_2x1",
    "sm90_overlapped_tall_1x2",
    "sm90_256x160",
    "sm90_64x256",
    "sm90_64x128",
    "sm90_64x128_2x1",
    "sm90_64x64_2x1",
    "sm90_64x64",
    "sm90_64x32",
    "sm90_64x16",
    ("sm90_split", {"tile": (64, 128), "epi_stages": 2, "split_k": 4},
     "four CTAs share the k-tiles of 64 x 128: for few tiles, which leave multiprocessors idle"),
    ("sm90_stream", {"tile": (128, 256), **COOPERATIVE, "cluster": (2, 1), "stream": STREAM_WAVES},
     "the k-tiles of what does not fill the waves are divided evenly among all CTAs"),
    ("sm90_fixup", {"tile": (128, 128), "cluster": (2, 1), "fixup": True},
     "each tile of a last wave that is not full keeps a CTA; idle CTAs take its last k-tiles"),
)  # fmt: skip


def _recipes() -> Iterator[Sm90Recipe]:
    candidates = {recipe.name: recipe for recipe in SM90_PLANS}
    for step in _STEPS:
        if isinstance(step, str):
            yield candidates[step]
        else:
            name, options, summary = step
            yield Sm90Recipe(name, summary, options)


def _step(number: int, recipe: Sm90Recipe) -> LadderStep:
    change, _, why = recipe.summary.partition(": ")
    return LadderStep(recipe, number, change, why, _OPERANDS)


SM90_LADDER = tuple(_recipes())
HOPPER_LADDER = Ladder(
    name="sm90",
    title="GEMM by TMA and wgmma step by step",
    steps=tuple([_step(number, recipe) for number, recipe in enumerate(SM90_LADDER, 1)]),
    operands=_OPERANDS,
    data="bf16, both operands k-major",
)
