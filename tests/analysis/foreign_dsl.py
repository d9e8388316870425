"""A tiled copy, an ldmatrix and a tiled MMA of the DSL over its own layouts of shared memory, while it traces."""

from __future__ import annotations

import os

os.environ.setdefault("CUTE_DSL_ARCH", "sm_90a")

import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import CopyUniversalOp, warp, warpgroup

from cutegemm.analysis import Wavefronts
from cutegemm.analysis.foreign import check_part

FOUND: dict[str, Wavefronts] = {}


@cute.jit
def _trace():
    kind = cutlass.BFloat16
    mma = cute.make_tiled_mma(
        warp.MmaF16BF16Op(kind, cutlass.Float32, (16, 8, 16)),
        cute.make_layout((2, 2, 1)),
        permutation_mnk=(32, 32, 16),
    )
    atom = warpgroup.make_smem_layout_atom(warpgroup.SmemLayoutAtomKind.K_SW128, kind)
    swizzled = cute.tile_to_shape(atom, (128, 64, 4), order=(0, 1, 2))
    plain = cute.make_layout((128, 64), stride=(64, 1))
    rows = cute.make_tiled_copy_A(cute.make_copy_atom(warp.LdMatrix8x8x16bOp(False, 4), kind), mma)
    copy = cute.make_tiled_copy_tv(
        cute.make_copy_atom(CopyUniversalOp(), kind, num_bits_per_copy=128),
        cute.make_layout((16, 8), stride=(8, 1)),
        cute.make_layout((1, 8)),
    )
    FOUND["ldmatrix"] = check_part(rows, swizzled, "bf16", op="ldmatrix", side="src")
    FOUND["ldmatrix, plain"] = check_part(rows, plain, "bf16", op="ldmatrix", side="src")
    FOUND["mma"] = check_part(mma, swizzled, "bf16", operand="A")
    FOUND["mma, plain"] = check_part(mma, plain, "bf16", operand="A")
    FOUND["copy"] = check_part(copy, swizzled, "bf16", op="store")
    FOUND["copy, printed"] = check_part(str(copy), swizzled, op="store")


def traced() -> dict[str, Wavefronts]:
    """What was found of each."""
    _trace()
    return FOUND
