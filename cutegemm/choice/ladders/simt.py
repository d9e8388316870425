"""The SIMT ladder: the literature's steps to a fast SGEMM, each a named plan.

It follows two worklogs: A, "How to write a CUDA kernel to achieve 95% cuBLAS performance" (2024, row-major), and B,
"How to optimize SGEMM on NVIDIA GPUs" (2021, column-major). Matrices are row-major here ("nn"): A is K-major and B is
N-major. What worklog B does along M, the contiguous mode of its D, is done along N here: its 4x1 is a 1x4.
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
    """Return one step of the SIMT tutorial. The plan's one-line summary is the text `change`.

    name      name of the plan
    number    number of the step in the tutorial
    change    what differs from the step before, as text
    why       what the change is meant to gain, as text
    options   arguments of `simt_plan`
    """
    recipe = SimtRecipe(name, f"step {number}: {change}", options)
    return LadderStep(recipe, number, change, why, _OPERANDS)


_BY_REGISTER = {"load_a": "register", "load_b": "register"}
_ELEMENTS = {"quad": (1, 1), "access_bits": 32}
_OF_32 = {
    "block": (32, 32, 32), "warp": (1, 32), "thread": (1, 1), "lanes_along": "n", "stages": 1, "unroll": 8,
}  # fmt: skip
_ONE = {**_OF_32, **_ELEMENTS, **_BY_REGISTER}
_ROW_OF_4 = {**_OF_32, "warp": (4, 32), "thread": (1, 4), "ctas_per_sm": 5}
# The 8 x 8 elements of a thread are contiguous. A warp has 2 x 16 threads, so its tile of 16 x 128 is flat.
_FLAT = {
    "block": (128, 128, 8),
    "warp": (16, 128),
    "thread": (8, 8),
    "quad": (8, 8),
    "lanes_along": "n",
    "unroll": 2,
    "ctas_per_sm": 2,
}
_TRANSPOSED = {"shared_a": Shared("mn"), "shared_b": Shared("mn")}
_WARPS = {
    "block": (128, 128, 8), "warp": (64, 32), "thread": (8, 8), "stages": 2, "unroll": 2,
    "ctas_per_sm": 2, **_BY_REGISTER,
}  # fmt: skip
_NO_CONFLICTS = {"shared_a": Shared("mn", swizzle=Swizzle(1, 4, 5)), "shared_b": Shared("mn")}
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
            "sgemm_01_naive", 1, "one thread per element of D, 32x32 per CTA; fragments come from global memory",
            "The start. Each multiply-add reads two elements; only the caches keep these reads away from DRAM. The 32 "
            "lanes of a warp lie along N, so a warp reads one line of B and one element of A, which all lanes share.",
            {"block": (32, 32, 1), "warp": (1, 32), "thread": (1, 1), "quad": (1, 1), "lanes_along": "n",
             "stages": 0, "ctas_per_sm": 2},
        ),
        _step(
            "sgemm_02_tiles", 2, "tiles of 32x32x32 in shared memory; each element is loaded by one thread",
            "Global memory is read 32 times less. Both tiles are stored K-major, so the 32 lanes of a warp, which "
            "read one column of B each, access addresses that are 32 words apart: all in the same bank.",
            {**_ONE, "shared_a": Shared("k"), "shared_b": Shared("k")},
        ),
        _step(
            "sgemm_03_hoisted", 3, "no change: the compiler already keeps threadIdx in a register",
            "One worklog reads threadIdx once before the loop, which saved registers in 2021. Here the indices come "
            "from the plan's layouts, and the machine code reads threadIdx once before the loop anyway: "
            "`examples/sgemm_ladder.py --sass` counts the S2R instructions.",
            {**_ONE, "shared_a": Shared("k"), "shared_b": Shared("k")},
        ),
        _step(
            "sgemm_04_no_conflicts", 4, "the tile of B is stored N-major in shared memory",
            "Neighbouring lanes access neighbouring words of B: one wavefront instead of 32, for the store and for "
            "every read.",
            {**_ONE, "shared_a": Shared("k"), "shared_b": Shared("mn")},
        ),
        _step(
            "sgemm_05_row_of_4", 5, "each thread computes 4 neighbours of a row; 256 threads per CTA",
            "Each element of A that is read feeds four multiply-adds: 5 reads for 4 multiply-adds instead of 8. But "
            "a warp now covers four rows of A, which are 32 words apart: its reads of A hit one bank.",
            {**_ROW_OF_4, **_ELEMENTS, **_BY_REGISTER, "quad": (1, 4), "shared_a": Shared("k")},
        ),
        _step(
            "sgemm_06_vectors", 6, "accesses of 128 bits wherever elements are neighbours",
            "A quarter as many instructions load, store and read B, for the same bytes.",
            {**_ROW_OF_4, **_BY_REGISTER, "quad": (1, 4), "shared_a": Shared("k")},
        ),
        _step(
            "sgemm_07_square_of_4", 7, "4x4 elements per thread, tiles of 64x64x16",
            "8 elements that are read feed 16 multiply-adds, and each loaded element is used 64 times instead of 32.",
            {"block": (64, 64, 16), "warp": (8, 64), "thread": (4, 4), "lanes_along": "n", "stages": 1,
             "unroll": 4, "ctas_per_sm": 3, **_BY_REGISTER, "shared_a": Shared("k")},
        ),
        _step(
            "sgemm_07_square_of_8", 7, "8x8 elements per thread, tiles of 128x128x8",
            "16 elements that are read feed 64 multiply-adds. Fewer threads fit an SM, because the accumulators "
            "take 64 registers per thread.",
            {**_FLAT, "stages": 1, **_BY_REGISTER, "shared_a": Shared("k")},
        ),
        _step(
            "sgemm_08_transposed", 8, "A is transposed on its way: loaded by 128 bits along K, stored along M",
            "Fragments of A are read by 128 bits as well. The store costs more: the four elements of a vector go to "
            "four addresses, and two lanes of a warp hit each bank.",
            {**_FLAT, "stages": 1, **_BY_REGISTER, **_TRANSPOSED},
        ),
        _step(
            "sgemm_09_prefetch", 9, "the next k-tile is loaded to registers while one is multiplied",
            "This hides the latency of global memory. Shared memory still has one stage, which is overwritten "
            "between two barriers.",
            {**_FLAT, "stages": 1, "prefetch": True, **_BY_REGISTER, **_TRANSPOSED},
        ),
        _step(
            "sgemm_09_double_buffer", 9, "two stages of shared memory; fragments are read one k-block ahead",
            "One barrier per k-tile instead of two; the latency of shared memory is hidden too.",
            {**_FLAT, "stages": 2, **_BY_REGISTER, **_TRANSPOSED},
        ),
        _step(
            "sgemm_10_swizzle", 10, "shared memory is swizzled: one bit of the lane moves its vectors to other banks",
            "The eight neighbours of a thread make the 128-bit reads of a quarter-warp hit only half of the banks. The "
            "swizzle spreads them over all banks; the transposed store has the same conflicts as before. One worklog "
            "became as slow here as its first kernels: it swizzled the order of a thread's two reads, "
            "not the memory. The thread index then selects registers, so the compiler puts them in local memory. A "
            "swizzled layout of shared memory leaves registers alone.",
            {**_FLAT, "stages": 2, **_BY_REGISTER, "shared_a": Shared("mn", swizzle=Swizzle(1, 2, 3)),
             "shared_b": Shared("mn", swizzle=Swizzle(1, 2, 3))},
        ),
        _step(
            "sgemm_11_warp_tiles", 11, "warp tiles of 64x32; a thread has four 4x4 blocks, strided over the warp tile",
            "A quarter-warp reads neighbouring vectors: no conflicts, and no swizzle. For each k a warp reads 96 "
            "elements instead of 144, for the same 2048 multiply-adds.",
            {**_WARPS, **_TRANSPOSED},
        ),
        _step(
            "sgemm_12_warp_swizzle", 12, "the tile of A is swizzled, so that its transposed store has no conflicts",
            "Neither reads nor stores have conflicts now. In each read address, one bit changes with k.",
            {**_WARPS, **_NO_CONFLICTS},
        ),
        _step(
            "sgemm_12_warp_pad", 12, "rows are padded by four elements instead of swizzled",
            "The padding avoids the same conflicts, and the layout keeps plain strides: no address arithmetic.",
            {**_WARPS, "shared_a": Shared("mn", pad=4), "shared_b": Shared("mn")},
        ),
        _step(
            "sgemm_13_split_kernel", 13, "split-K: 4 strided K splits; a second kernel adds their accumulators",
            "For a large D this only costs time: the accumulators are written and read again. For a small D it is "
            "what fills the machine.",
            {**_WARPS, "shared_a": Shared("mn", pad=4), "split_k": 4, "split_order": "strided"},
        ),
        _step(
            "sgemm_13_split_last", 13, "the CTA of a tile that ends last adds the accumulators",
            "It needs no second launch, and the addition overlaps with the work on other tiles. But only one CTA per "
            "tile does it.",
            {**_WARPS, "shared_a": Shared("mn", pad=4), "split_k": 4, "split_order": "strided",
             "reduction": "last"},
        ),
        _step(
            "sgemm_14_async_3", 14, "cp.async and 3 stages: tiles in flight need no registers",
            "Two CTAs with 8x16 elements per thread fit an SM. A K-major A is copied one element at a time, which "
            "transposes it.",
            {**_ASYNC, "stages": 3},
        ),
        _step("sgemm_14_async_4", 14, "4 stages", "One more k-tile in flight, if latency is not hidden yet.",
             {**_ASYNC, "stages": 4}),
        _step("sgemm_14_async_5", 14, "5 stages", "And one more.", {**_ASYNC, "stages": 5}),
        _step(
            "sgemm_15_best", 15, "a repack pass transposes A; 16x8 elements per thread, 256x128x16, 3 stages by "
            "128-bit cp.async",
            "To transpose A once in memory costs 2 M K elements of traffic, 1% of the time at 4096 cubed; in the "
            "mainloop it costs 6%. The code has a loop over 4 k-blocks: completely unrolled, the k-tile needs too many "
            "registers. The multiply-adds of a k-block run back and forth over the thread's tile.",
            _BEST,
        ),
        _step(
            "sgemm_15_stream", 15, "stream-K: a grid of 132 CTAs divides evenly the tiles that do not fill it",
            "At 4096 cubed, 512 tiles are 3.9 waves of 132 SMs: 16 SMs would be idle in the last wave. Here the "
            "k-tiles of its 116 tiles form one line, which is cut into 132 runs of equal length. The accumulators of "
            "the runs are written, and a second kernel adds those of each tile.",
            {**_BEST, "waves": 1, "persistent": 132},
        ),
    ),
)  # fmt: skip
