"""The Hopper ladder: named plans that each change one thing of the step before, with the reason."""

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
# (name, options, "change: why"), or the name of a plan that `choose` considers too
_STEPS = (
    ("sm90_multistage", {"tile": (128, 128), "schedule": "single", **_DIRECT},
     "TMA loads and wgmma: one warpgroup loads k-tiles ahead, between its MMAs"),
    ("sm90_specialized",
     {"tile": (128, 128), "schedule": "cooperative", "consumers": 1, **_DIRECT, "ctas": None},
     "a producer warp fills the mainloop pipeline: the MMAs never wait until a load is issued"),
    ("sm90_large_tile", {"tile": (128, 256), **COOPERATIVE, **_DIRECT, "ctas": None},
     "two consumers share 128 x 256: 1.3 times as many MMAs per loaded byte"),
    ("sm90_persistent", {"tile": (128, 256), **COOPERATIVE, **_DIRECT},
     "one CTA per SM takes tile after tile: the next tile's k-tiles are loaded while D is stored"),
    ("sm90_pingpong", {"tile": (128, 128), **_DIRECT},
     "the consumers alternate in taking tiles: one stores D while the other multiplies"),
    ("sm90_tma_plain", {"tile": (128, 128), "shared_d": "plain", "raster": "along_n"},
     "D is stored by TMA, through rows of 128 bytes: stmatrix has 8-way bank conflicts"),
    ("sm90_padded", {"tile": (128, 128), "shared_d": "padded", "raster": "along_n"},
     "the rows are padded by 16 bytes: no conflicts, but TMA needs dense boxes, so the threads store D"),
    ("sm90_tma_swizzled", {"tile": (128, 128), "raster": "along_n"},
     "the rows are swizzled in the mode of the TMA store: no conflicts, no padding, and no copies by threads"),
    "sm90_epi_stages",
    ("sm90_along_m", {"tile": (128, 128), "epi_stages": 4, "raster": "along_m"},
     "tiles in columns: at large K it matters which operand is reused in L2"),
    ("sm90_grouped", {"tile": (128, 128), "epi_stages": 4, "raster": "grouped_m:16"},
     "tiles in bands of 16 rows: both operands are reused in L2"),
    ("sm90_hilbert", {"tile": (128, 128), "epi_stages": 4, "raster": "hilbert:8"},
     "tiles along a Hilbert curve in squares of 8 x 8: consecutive tiles are neighbours"),
    ("sm90_l2", {"tile": (128, 128), "epi_stages": 4, "raster": "grouped_m:8", "l2": _KEEP_INPUTS},
     "L2 hints: keep A and B, evict D first"),
    "sm90_cluster_1x2",
    "sm90_cluster_2x1",
    "sm90_wide_1x2",
    "sm90_wide_2x1",
    "sm90_wide_along_n",
    "sm90_wide_along_n_1x2",
    "sm90_wide_along_n_2x1",
    ("sm90_cooperative", {"tile": (128, 256), **COOPERATIVE},
     "128 x 256 by two consumers with D stored by TMA: for a mainloop that is long compared with the epilogue"),
    ("sm90_cooperative_2x1", {"tile": (128, 256), **COOPERATIVE, "cluster": (2, 1), "stagger_cycles": 550},
     "128 x 256 in clusters of 2 x 1: the second consumer starts 550 cycles later, so the two do not store at "
     "the same time"),
    ("sm90_tall_1x2", {"tile": (256, 128), **COOPERATIVE, "cluster": (1, 2)},
     "256 x 128 by two consumers of 128 x 128 each: the CTAs of a cluster share A"),
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
     "split-K: four CTAs share the k-tiles of 64 x 128, if there are few tiles and SMs would be idle"),
    ("sm90_stream", {"tile": (128, 256), **COOPERATIVE, "cluster": (2, 1), "stream": STREAM_WAVES},
     "stream-K: the k-tiles of the tiles that do not fill the waves are divided evenly among all CTAs"),
    ("sm90_fixup", {"tile": (128, 128), "cluster": (2, 1), "fixup": True},
     "stream-K fixup: if the last wave is not full, idle CTAs take the last k-tiles of its tiles"),
)  # fmt: skip


def _recipes() -> Iterator[Sm90Recipe]:
    """Yield the recipe (name and arguments of a plan) of each step of the Hopper tutorial, in order."""
    candidates = {recipe.name: recipe for recipe in SM90_PLANS}
    for step in _STEPS:
        if isinstance(step, str):
            yield candidates[step]
        else:
            name, options, text = step
            yield Sm90Recipe(name, text, options)


def _step(number: int, recipe: Sm90Recipe) -> LadderStep:
    """Return one step of the Hopper tutorial, made from the recipe (name and arguments) of its plan.

    number   number of the step in the tutorial
    recipe   its summary has the form "change: why", which becomes the step's change and reason
    """
    change, _, why = recipe.summary.partition(": ")
    return LadderStep(recipe, number, change, why, _OPERANDS)


SM90_LADDER = tuple(_recipes())
HOPPER_LADDER = Ladder(
    name="sm90",
    title="GEMM with TMA and wgmma, step by step",
    steps=tuple([_step(number, recipe) for number, recipe in enumerate(SM90_LADDER, 1)]),
    operands=_OPERANDS,
    data="bf16, A and B K-major",
)
