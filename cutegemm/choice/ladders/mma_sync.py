"""The ladder of mma.sync plans: from plain fragments to the fastest, one change a step, each with its reason.

The steps are those that the literature teaches for a TF32 GEMM by Tensor Cores. Every name takes operands of
f32 (as tf32), f16 and bf16, of any majorness; a k-tile of 32 bytes is 8 elements of tf32 or 16 of 16 bits, an
atom deep. Sums are in registers throughout, as the fragment layout has them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cutegemm.choice.ladders.ladder import Ladder, LadderStep
from cutegemm.choice.mma_sync.recipe import MmaSyncRecipe
from cutegemm.plan.problem import Operands

_TF32 = Operands.of("f32", layout="nt")  # as tf32, both k-major

_FIRST = {
    "block": (32, 32), "warp": (16, 16), "k_bytes": 32, "stages": 1,
    "load": "register", "load_bytes": 1, "k_run": 1,
    "shared": "plain", "read": "plain", "store": "direct", "store_elems": 1, "raster": "along_n",
}  # fmt: skip

# (name, what changed, why, the options that changed)
_STEPS: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
    (
        "tensorop_00_wmma",
        "one 16 x 16 tile a warp, which is two atoms side by side",
        "what wmma computes",
        {},
    ),
    (
        "tensorop_01_baseline",
        "warps of 64 x 32, 4 x 4 atoms",
        "each fragment that is read is multiplied four times",
        {"block": (128, 64), "warp": (64, 32)},
    ),
    (
        "tensorop_02_vectorized",
        "16 bytes a load",
        "a quarter of the instructions (an eighth with 16-bit elements)",
        {"load_bytes": 16, "k_run": 8},
    ),
    (
        "tensorop_03_swizzled",
        "neighbouring threads load neighbours, and shared memory is swizzled",
        "lines are asked for as a whole, and no lanes meet in a bank",
        {"k_run": None, "shared": "swizzled"},
    ),
    (
        "tensorop_04_async",
        "cp.async around L1",
        "tiles go to shared memory without registers",
        {"load": "cp.async"},
    ),
    (
        "tensorop_05_fragments",
        "the two neighbours of a fragment leave together",
        "half the stores of D",
        {"store_elems": 2},
    ),
    (
        "tensorop_06_double",
        "two stages",
        "the next k-tile comes while one is multiplied",
        {"stages": 2, "fragments": 1, "load_chunks": 1},
    ),
    (
        "tensorop_07_stages",
        "four stages, and waiting for the oldest group alone",
        "three k-tiles cover the latency of memory",
        {"stages": 4},
    ),
    (
        "tensorop_08_large",
        "warps of 64 x 64; k-tiles of two atoms, read an atom ahead",
        "a third fewer reads a product",
        {"block": (128, 128), "warp": (64, 64), "k_bytes": 64, "fragments": 2},
    ),
    (
        "tensorop_09_raster",
        "CTAs that run together take a square of tiles",
        "less is read from DRAM, more from L2",
        {"raster": "log_tile:3"},
    ),
    (
        "tensorop_10_ldmatrix",
        "ldmatrix",
        "four registers by one instruction, transposed on the way where need be",
        {"read": "ldmatrix"},
    ),
    (
        "tensorop_11_best",
        "k-tiles of 128 bytes, 128 x 256 by 8 warps, copies spread over the k-blocks, D by whole lines",
        "fewer barriers, less traffic through L2 and shared memory, stores that fill their sectors",
        {
            "block": (128, 256), "k_bytes": None, "stages": None, "load_chunks": None, "store": None,
            "raster": "grouped_n:8",
        },
    ),
)  # fmt: skip

# Beside the ladder: what a step might have been.
_VARIANTS: tuple[tuple[str, str, str, str, dict[str, Any]], ...] = (
    (
        "tensorop_04_async",
        "tensorop_04_async_l1",
        "cp.async through L1",
        "nothing is read from there again",
        {"cache": "ca"},
    ),
    ("tensorop_07_stages", "tensorop_07_stages_3", "three stages", "is it enough?", {"stages": 3}),
    ("tensorop_07_stages", "tensorop_07_stages_6", "six stages", "is it too much?", {"stages": 6}),
)


def _ladder() -> Iterator[LadderStep]:
    options: dict[str, Any] = dict(_FIRST)
    reached, numbers = {}, {}
    for number, (name, change, why, changes) in enumerate(_STEPS):
        options = _changed(options, changes)
        reached[name], numbers[name] = options, number
        yield _step(name, number, change, why, options)
    for name, variant, change, why, changes in _VARIANTS:
        yield _step(variant, numbers[name], change, why, _changed(reached[name], changes))


def _step(name: str, number: int, change: str, why: str, options: dict[str, Any]) -> LadderStep:
    return LadderStep(MmaSyncRecipe(name, f"{change}: {why}", options), number, change, why, _TF32)


def _changed(options: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """With the changes; None takes an option back to what the builder does by itself."""
    return {key: value for key, value in {**options, **changes}.items() if value is not None}


_ALL = tuple(_ladder())
MMA_SYNC_LADDER = tuple([step.recipe for step in _ALL])
STEPS = tuple([name for name, *_ in _STEPS])
TENSOROP_LADDERS = tuple(
    [
        Ladder(
            name=f"mma_{kind}",
            title=f"{kind} GEMM by Tensor Cores step by step",
            steps=tuple(sorted(_ALL, key=lambda step: step.number)),
            operands=Operands.of(dtype, layout="nt"),
            data=f"{kind}, both operands k-major; the library multiplies by wgmma where the chip has it",
        )
        for kind, dtype in (("tf32", "f32"), ("bf16", "bf16"), ("f16", "f16"))
    ]
)
