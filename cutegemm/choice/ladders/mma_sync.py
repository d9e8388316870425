"""The mma.sync ladder: from the tile of a wmma instruction to the fastest plan, one change per step, with the reason.

The literature teaches these steps for a TF32 GEMM with tensor cores. Every plan takes f32 (as tf32), f16 and bf16
operands of any majorness. A k-tile of 32 bytes is one atom deep: 8 elements of tf32, or 16 elements of 16 bits.
Accumulators stay in registers, in the fragment layout of the atom.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cutegemm.choice.ladders.ladder import Ladder, LadderStep
from cutegemm.choice.mma_sync.recipe import MmaSyncRecipe
from cutegemm.plan.problem import Operands

_TF32 = Operands.of("f32", layout="nt")  # f32 that is multiplied as tf32; A and B are K-major

_FIRST = {
    "block": (32, 32), "warp": (16, 16), "k_bytes": 32, "stages": 1,
    "load": "register", "load_bytes": 1, "k_run": 1,
    "shared": "plain", "read": "plain", "store": "direct", "store_elems": 1, "raster": "along_n",
}  # fmt: skip

# (name, change, why, options that change; None takes an option back to the builder's default)
_STEPS: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
    (
        "tensorop_00_wmma",
        "one 16 x 16 tile per warp, two atoms side by side",
        "the tile that a wmma instruction computes",
        {},
    ),
    (
        "tensorop_01_baseline",
        "warp tiles of 64 x 32, 4 x 4 atoms",
        "each fragment that is read is multiplied four times",
        {"block": (128, 64), "warp": (64, 32)},
    ),
    (
        "tensorop_02_vectorized",
        "loads of 16 bytes",
        "a quarter as many load instructions, or an eighth for elements of 16 bits",
        {"load_bytes": 16, "k_run": 8},
    ),
    (
        "tensorop_03_swizzled",
        "neighbouring threads load neighbouring elements, and shared memory is swizzled",
        "loads cover whole cache lines, and reads have no bank conflicts",
        {"k_run": None, "shared": "swizzled"},
    ),
    (
        "tensorop_04_async",
        "cp.async, which bypasses L1",
        "tiles reach shared memory without passing through registers",
        {"load": "cp.async"},
    ),
    (
        "tensorop_05_fragments",
        "the two neighbouring elements of a fragment are stored together",
        "half as many stores to D",
        {"store_elems": 2},
    ),
    (
        "tensorop_06_double",
        "two stages",
        "the next k-tile is loaded while one is multiplied",
        {"stages": 2, "fragments": 1, "load_chunks": 1},
    ),
    (
        "tensorop_07_stages",
        "four stages; threads wait only for the oldest group of copies",
        "three k-tiles in flight cover the latency of memory",
        {"stages": 4},
    ),
    (
        "tensorop_08_large",
        "warp tiles of 64 x 64; k-tiles two atoms deep, whose fragments are read one atom ahead",
        "a third fewer reads from shared memory per MMA",
        {"block": (128, 128), "warp": (64, 64), "k_bytes": 64, "fragments": 2},
    ),
    (
        "tensorop_09_raster",
        "CTAs that run at the same time take a square of tiles",
        "fewer reads from DRAM, because more of them hit L2",
        {"raster": "log_tile:3"},
    ),
    (
        "tensorop_10_ldmatrix",
        "fragments are read by ldmatrix",
        "one instruction reads four registers, and transposes them if the layout needs it",
        {"read": "ldmatrix"},
    ),
    (
        "tensorop_11_best",
        "k-tiles of 128 bytes; 128 x 256 by 8 warps; copies spread over the k-blocks; D stored by whole lines",
        "fewer barriers, less traffic through L2 and shared memory, and stores that fill their sectors",
        {
            "block": (128, 256), "k_bytes": None, "stages": None, "load_chunks": None, "store": None,
            "raster": "grouped_n:8",
        },
    ),
)  # fmt: skip

# (step, name, change, why, options that change): alternatives to a step of the ladder.
_VARIANTS: tuple[tuple[str, str, str, str, dict[str, Any]], ...] = (
    (
        "tensorop_04_async",
        "tensorop_04_async_l1",
        "cp.async through L1",
        "does L1 help? No thread reads the same data from it again",
        {"cache": "ca"},
    ),
    ("tensorop_07_stages", "tensorop_07_stages_3", "three stages", "are three enough?", {"stages": 3}),
    ("tensorop_07_stages", "tensorop_07_stages_6", "six stages", "do more stages help?", {"stages": 6}),
)


def _ladder() -> Iterator[LadderStep]:
    """Yield the steps of the mma.sync tutorial in order, then alternatives to some of them, each with a step number."""
    options: dict[str, Any] = dict(_FIRST)
    options_of, numbers = {}, {}
    for number, (name, change, why, changes) in enumerate(_STEPS):
        options = _changed(options, changes)
        options_of[name], numbers[name] = options, number
        yield _step(name, number, change, why, options)
    for name, variant, change, why, changes in _VARIANTS:
        yield _step(variant, numbers[name], change, why, _changed(options_of[name], changes))


def _step(name: str, number: int, change: str, why: str, options: dict[str, Any]) -> LadderStep:
    """Return one step of the mma.sync tutorial. The plan's one-line summary combines the texts `change` and `why`.

    name      name of the plan
    number    number of the step in the tutorial
    change    what differs from the step before, as text
    why       what the change is meant to gain, as text
    options   arguments of `mma_sync_plan`
    """
    return LadderStep(MmaSyncRecipe(name, f"{change}: {why}", options), number, change, why, _TF32)


def _changed(options: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of the builder's arguments `options` with `changes`. A change to None removes the argument."""
    return {key: value for key, value in {**options, **changes}.items() if value is not None}


_ALL = tuple(_ladder())
MMA_SYNC_LADDER = tuple([step.recipe for step in _ALL])
STEPS = tuple([name for name, *_ in _STEPS])
TENSOROP_LADDERS = tuple(
    [
        Ladder(
            name=f"mma_{kind}",
            title=f"{kind} GEMM with tensor cores, step by step",
            steps=tuple(sorted(_ALL, key=lambda step: step.number)),
            operands=Operands.of(dtype, layout="nt"),
            data=f"{kind}, A and B K-major; the library uses wgmma if the chip has it",
        )
        for kind, dtype in (("tf32", "f32"), ("bf16", "bf16"), ("f16", "f16"))
    ]
)
