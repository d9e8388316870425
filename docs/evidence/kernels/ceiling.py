"""A loop of mma.sync alone: the rate that no mma.sync GEMM can exceed on a chip at its clock.

Each warp keeps the fragments of two k-blocks of a 64 x 64 tile in registers and multiplies them repeatedly, in the
order of the large plans. It loads nothing.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from cutegemm.dtypes import DType
from cutegemm.dtypes import f32 as sums
from cutegemm.kernels import lower
from cutegemm.kernels.threads.mainloop import serpentine
from cutegemm.machine.arch import WARP_THREADS
from cutegemm.tile.mma_atoms import mma_sync

_TILE = (64, 64)
_K_BLOCKS = 2
_ATOM_K_BITS = 256


class RegisterLoop:
    """The kernel: (values, out, turns, ctas, stream) -> None.

    kind    f16, bf16 or tf32
    warps   warps of a CTA
    """

    def __init__(self, kind: DType, warps: int) -> None:
        self.atom, self.warps = mma_sync(kind, _ATOM_K_BITS // kind.bits, sums), warps

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return self.warps * WARP_THREADS

    @property
    def flops(self) -> int:
        """FLOP of a CTA in one iteration."""
        return 2 * self.warps * _TILE[0] * _TILE[1] * self.atom.shape_mnk[2] * _K_BLOCKS

    @cute.jit
    def __call__(self, values: cute.Tensor, out: cute.Tensor, turns: Int32, ctas: Int32, stream):
        self.kernel(values, out, turns).launch(grid=(ctas, 1, 1), block=(self.threads, 1, 1), stream=stream)

    @cute.kernel
    def kernel(self, values: cute.Tensor, out: cute.Tensor, turns: Int32):
        tid, _, _ = cute.arch.thread_idx()
        cta, _, _ = cute.arch.block_idx()
        mma = cute.make_tiled_mma(lower.mma_op(self.atom))
        a, b = [
            cute.make_rmem_tensor((*self.of_a_tile(held), _K_BLOCKS), lower.dtype(self.atom.a_dtype))
            for held in ("a", "b")
        ]
        used = 0
        for fragments in (a, b):
            words = cute.recast_tensor(fragments, Int32)
            for i in range(cute.size(words)):
                words[i] = values[(used + i) * self.threads + tid]
            used += cute.size(words)
        acc = cute.make_rmem_tensor(mma.get_slice(0).partition_shape_C(_TILE), Float32)
        acc.fill(0.0)
        for _ in cutlass.range(turns, unroll=1):
            for k_block in range(_K_BLOCKS):
                for m, n in serpentine(cute.size(acc, mode=[1]), cute.size(acc, mode=[2]), "n"):
                    part = acc[None, m, n]
                    cute.mma_atom_call(mma, part, a[None, m, k_block], b[None, n, k_block], part)
        total = Float32(0.0)
        for i in range(cute.size(acc)):
            total = total + acc[i]
        out[cta * self.threads + tid] = total

    def of_a_tile(self, operand: str) -> tuple[Any, int]:
        """Return (values per fragment, number of atoms) of an operand of a warp's tile."""
        held = self.atom.layout_a_tv if operand == "a" else self.atom.layout_b_tv
        extent, step = (_TILE[0], self.atom.shape_mnk[0]) if operand == "a" else (_TILE[1], self.atom.shape_mnk[1])
        return held[1].size(), extent // step


def words_needed(loop: RegisterLoop) -> int:
    """Return the number of 32-bit words of `values` that a launch reads; `out` has one for each thread of the grid.

    >>> from cutegemm.dtypes import bf16
    >>> words_needed(RegisterLoop(bf16, 8))
    16384
    """
    per_thread = sum(v * n for v, n in map(loop.of_a_tile, "ab")) * _K_BLOCKS * loop.atom.a_dtype.bits // 32
    return int(per_thread) * loop.threads


def compile_loop(loop: RegisterLoop, options: str = "") -> Any:
    """Return the compiled kernel, called with values as int32, out as float32, turns and ctas.

    options   additional options of the DSL's compiler
    """
    values = cute.runtime.make_fake_compact_tensor(Int32, (cute.sym_int32(),), assumed_align=16)
    out = cute.runtime.make_fake_compact_tensor(Float32, (cute.sym_int32(),), assumed_align=16)
    stream = cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True)
    return cute.compile(loop, values, out, Int32(1), Int32(1), stream, options=f"--enable-tvm-ffi {options}")
