"""The SIMT ladder: the steps in which the literature teaches SGEMM, each a named plan.

Two worklogs are followed: A, "How to write a CUDA kernel to achieve 95% cuBLAS performance" (2024, row-major),
and B, "How to optimize SGEMM on NVIDIA GPUs" (2021, column-major). Matrices are row-major here ("nn"): A is
k-major and B n-major. What worklog B does along M, the contiguous mode of its D, is done along N here: its 4x1
is a 1x4.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cutegemm.build.building import Shared
from cutegemm.choice.ladders.ladder import Ladder, LadderStep
from cutegemm.choice.recipe import NEEDED
from cutegemm.choice.simt.named import SIMT_PLANS
from cutegemm.choice.simt.recipe import SimtRecipe
from cutegemm.layout import Swizzle
from cutegemm.plan.problem import Operands

_OPERANDS = Operands.of("f32")


def _step(name: str, number: int, change: str, why: str, options: Mapping[str, Any]) -> LadderStep:
    recipe = SimtRecipe(name, f"step {number}: {change}", options)
    return LadderStep(recipe, number, change, why, _OPERANDS)


_BY_REGISTER = {"load_a": "register", "load_b": "register"}
_ELEMENTS = {"quad": (1, 1), "access_bits": 32}
_OF_32 = {
    "block": (32, 32, 32), "warp": (1, 32), "thread": (1, 1), "lanes_along": "n", "stages": 1, "unroll": 8,
}  # fmt: skip
_ONE = {**_OF_32, **_ELEMENTS, **_BY_REGISTER}
_ROW_OF_4 = {**_OF_32, "warp": (4, 32), "thread": (1, 4), "ctas_per_sm": 5}
# Threads of 8 x 8 elements that lie side by side, 2 x 16 of them a warp: no warp tile worth the name.
_FLAT = {
    "block": (128, 128, 8),
    "warp": (16, 128),
    "thread": (8, 8),
    "quad": (8, 8),
    "lanes_along": "n",
    "unroll": 2,
    "ctas_per_sm": 2,
}
_TURNED = {"shared_a": Shared("mn"), "shared_b": Shared("mn")}
_WARPS = {
    "block": (128, 128, 8), "warp": (64, 32), "thread": (8, 8), "stages": 2, "unroll": 2,
    "ctas_per_sm": 2, **_BY_REGISTER,
}  # fmt: skip
_FREE_OF_CONFLICTS = {"shared_a": Shared("mn", swizzle=Swizzle(1, 4, 5)), "shared_b": Shared("mn")}
_ASYNC = {
    "block": (128, 128, 8), "warp": (64, 64), "thread": (8, 16), "unroll": 2, "mma_order": "n",
    "load_a": "cp.async", "load_b": "cp.async", "ctas_per_sm": 2,
}  # fmt: skip

_BEST = {**SIMT_PLANS[0].options, "repack": NEEDED}

SIMT_LADDER = Ladder(
    "simt",
    "SGEMM step by step",
    operands=_OPERANDS,
    data="f32 without TF32, row-major matrices",
    steps=(
        _step(
            "sgemm_01_naive", 1, "a thread sums up one element of D from global memory, 32x32 of them a CTA",
            "The start. Each multiply-add asks for two elements; the caches alone keep them from coming "
            "from DRAM. Lanes lie along N, so that a warp's row of B is one line and its element of A one "
            "broadcast.",
            {"block": (32, 32, 1), "warp": (1, 32), "thread": (1, 1), "quad": (1, 1), "lanes_along": "n",
             "stages": 0, "ctas_per_sm": 2},
        ),
        _step(
            "sgemm_02_tiles", 2, "tiles of 32x32x32 in shared memory, each element fetched by one thread",
            "32 times less is asked of global memory. Both tiles lie k by k, so that the 32 lanes of a "
            "warp, each with its column of B, read addresses 32 words apart: all in one bank.",
            {**_ONE, "shared_a": Shared("k"), "shared_b": Shared("k")},
        ),
        _step(
            "sgemm_03_hoisted", 3, "no change: the compiler already keeps threadIdx in a register",
            "In 2021 that saved registers. Here the indices are those of the plan's layouts, and the "
            "machine code reads the thread's number once before the loop in either case: "
            "`examples/sgemm_ladder.py --sass` counts S2R.",
            {**_ONE, "shared_a": Shared("k"), "shared_b": Shared("k")},
        ),
        _step(
            "sgemm_04_no_conflicts", 4, "the tile of B lies along N in shared memory",
            "Lanes read neighbours: one wavefront instead of 32, for the store and for every read.",
            {**_ONE, "shared_a": Shared("k"), "shared_b": Shared("mn")},
        ),
        _step(
            "sgemm_05_row_of_4", 5, "a thread sums up 4 neighbours of a row, 256 threads",
            "An element of A that is read serves four multiply-adds: 5 reads for 4 of them instead of 8. "
            "But a warp has four rows of A now, which lie 32 words apart: its reads of A meet in one bank.",
            {**_ROW_OF_4, **_ELEMENTS, **_BY_REGISTER, "quad": (1, 4), "shared_a": Shared("k")},
        ),
        _step(
            "sgemm_06_vectors", 6, "every access by 128 bits where its elements are neighbours",
            "A quarter of the instructions that load, store and read B, for the same bytes.",
            {**_ROW_OF_4, **_BY_REGISTER, "quad": (1, 4), "shared_a": Shared("k")},
        ),
        _step(
            "sgemm_07_square_of_4", 7, "4x4 elements a thread, tiles of 64x64x16",
            "8 elements read serve 16 multiply-adds, and a tile fetched serves twice as many.",
            {"block": (64, 64, 16), "warp": (8, 64), "thread": (4, 4), "lanes_along": "n", "stages": 1,
             "unroll": 4, "ctas_per_sm": 3, **_BY_REGISTER, "shared_a": Shared("k")},
        ),
        _step(
            "sgemm_07_square_of_8", 7, "8x8 elements a thread, tiles of 128x128x8",
            "16 elements read serve 64 multiply-adds. Fewer threads share a multiprocessor: the sums take "
            "64 registers.",
            {**_FLAT, "stages": 1, **_BY_REGISTER, "shared_a": Shared("k")},
        ),
        _step(
            "sgemm_08_transposed", 8, "A is turned round on its way: 128-bit loads along K, stored along M",
            "Fragments of A are read by 128 bits as well. The store pays: a vector of four goes to four "
            "places, and two lanes of a warp meet in each bank.",
            {**_FLAT, "stages": 1, **_BY_REGISTER, **_TURNED},
        ),
        _step(
            "sgemm_09_prefetch", 9, "the next k-tile is on its way to registers while one is multiplied",
            "The latency of global memory is hidden; shared memory is still overwritten between two "
            "barriers.",
            {**_FLAT, "stages": 1, "prefetch": True, **_BY_REGISTER, **_TURNED},
        ),
        _step(
            "sgemm_09_double_buffer", 9, "two stages of shared memory, fragments read a k-block ahead",
            "One barrier a k-tile instead of two, and the latency of shared memory is hidden too.",
            {**_FLAT, "stages": 2, **_BY_REGISTER, **_TURNED},
        ),
        _step(
            "sgemm_10_swizzle", 10, "shared memory swizzled: a bit of the lane moves its vectors elsewhere",
            "Eight neighbours a thread make 128-bit reads of a quarter-warp meet in half of the banks; the "
            "swizzle parts them, the turned store meets as before. One of the two worklogs fell back to the "
            "speed of its first kernels here: it swizzled the order in which a thread reads its two vectors instead of "
            "the memory, so that a thread's number indexes its registers, which puts them into local "
            "memory. A layout leaves registers alone.",
            {**_FLAT, "stages": 2, **_BY_REGISTER, "shared_a": Shared("mn", swizzle=Swizzle(1, 2, 3)),
             "shared_b": Shared("mn", swizzle=Swizzle(1, 2, 3))},
        ),
        _step(
            "sgemm_11_warp_tiles", 11, "warp tiles of 64x32; a thread's 8x8 are sub-tiles of 4x4 in strides",
            "A quarter-warp reads neighbours, with no conflict and no swizzle; a warp needs 96 elements for"
            " 2048 multiply-adds instead of 144.",
            {**_WARPS, **_TURNED},
        ),
        _step(
            "sgemm_12_warp_swizzle", 12, "A's tile swizzled against the conflicts of its turned store",
            "Neither read nor store has a conflict. The address of each read changes with k in one bit.",
            {**_WARPS, **_FREE_OF_CONFLICTS},
        ),
        _step(
            "sgemm_12_warp_pad", 12, "rows padded by four elements instead of the swizzle",
            "The same banks without address arithmetic: the layout stays one of strides.",
            {**_WARPS, "shared_a": Shared("mn", pad=4), "shared_b": Shared("mn")},
        ),
        _step(
            "sgemm_13_split_kernel", 13, "K split in 4, strided; a second kernel adds the parts' sums",
            "For large D it only costs: sums are written and read again. For small D it is what fills the "
            "machine.",
            {**_WARPS, "shared_a": Shared("mn", pad=4), "split_k": 4, "split_order": "strided"},
        ),
        _step(
            "sgemm_13_split_last", 13, "the CTA that ends last in a tile adds them",
            "No second launch, and the adding is hidden behind other tiles; it has one CTA a tile to do it.",
            {**_WARPS, "shared_a": Shared("mn", pad=4), "split_k": 4, "split_order": "strided",
             "reduction": "last"},
        ),
        _step(
            "sgemm_14_async_3", 14, "cp.async, 3 stages: no register holds a tile on its way",
            "Threads of 8x16 fit two CTAs per SM. A k-major A is turned round an element at a "
            "time.",
            {**_ASYNC, "stages": 3},
        ),
        _step("sgemm_14_async_4", 14, "4 stages", "Further ahead, where latency is not hidden yet.",
             {**_ASYNC, "stages": 4}),
        _step("sgemm_14_async_5", 14, "5 stages", "And further.", {**_ASYNC, "stages": 5}),
        _step(
            "sgemm_15_best", 15, "A is packed first; 16x8 elements a thread, 256x128x16, 3 stages by "
            "128-bit cp.async",
            "Turning A round once in memory costs 2 M K elements of traffic, 1% at 4096 cubed; in the "
            "mainloop it costs 6%. k-blocks are a loop of 4: laid out whole, the compiler runs out of "
            "registers; products go back and forth.",
            _BEST,
        ),
        _step(
            "sgemm_15_stream", 15, "a grid of 132 CTAs shares evenly the tiles that do not fill it",
            "512 tiles are 3.9 times 132 multiprocessors: in the last round 16 would be idle. The k-tiles of those "
            "116 tiles are one line, cut into 132 runs of equal length; the sums of a tile's runs are written and "
            "added by a second kernel.",
            {**_BEST, "waves": 1, "persistent": 132},
        ),
    ),
)  # fmt: skip
