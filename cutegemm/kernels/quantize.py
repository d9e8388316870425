"""The kernel of `plan.quantize`: values of float8 and f32 scales of a matrix, by blocks.

| step of a CTA, for one tile                                                                                       |
|-------------------------------------------------------------------------------------------------------------------|
| load the tile, with zeros outside of the matrix                                                                   |
| find the largest magnitude of each block: of a thread's elements, of a warp, and for 128 x 128 of all warps       |
| compute the scale and its reciprocal, and store the scale                                                         |
| multiply the elements by the reciprocal, convert them and store them                                              |

Magnitudes are compared as integers: the bits of an infinity are larger than those of finite numbers, and those of NaN
are larger still.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32

from cutegemm.dtypes import DType
from cutegemm.kernels import lower
from cutegemm.kernels.repack import within
from cutegemm.machine.arch import WARP_THREADS, Arch
from cutegemm.plan.quantize import LEAST_SCALE, Quantize

MAGNITUDE = 0x7FFFFFFF  # bits of an f32 without its sign
_INFINITY = 0x7F800000
_NAN = 0x7FC00000
_MANTISSA = 0x007FFFFF


def host_function(quantize: Quantize, arch: Arch) -> Any:
    """Return the host function that launches the quantization of a matrix: (matrix, values, scales, stream) -> None.

    quantize   types, size of the blocks, and rounding of the scales
    arch       architecture to compile for
    """
    return Quantizer(quantize)


def fake_arguments(quantize: Quantize) -> tuple[Any, ...]:
    """Return placeholders with which the quantization kernel is traced: for the matrix, its fp8 values and the scales.

    Matrix and values are (rows, K). The scales are (rows, K / 128) with a stride of 1 along the rows, or (rows / 128, K
    / 128) with a stride of 1 along K.

    quantize   types of matrix and values, and size of the blocks
    """
    vector = quantize.vector
    rows, columns = cute.sym_int32(), cute.sym_int32(divisibility=vector)
    matrices = []
    for kind in (quantize.source, quantize.target):
        pitch, align = cute.sym_int64(divisibility=vector), kind.bits * vector // 8
        made = cute.runtime.make_fake_tensor(lower.dtype(kind), (rows, columns), (pitch, 1), assumed_align=align)
        matrices.append(made)
    strides = (cute.sym_int64(), 1) if quantize.by_block else (1, cute.sym_int64())
    scales = cute.runtime.make_fake_tensor(Float32, (cute.sym_int32(), cute.sym_int32()), strides, assumed_align=4)
    return (*matrices, scales, cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True))


def block_scale(top: Any, target: DType, power_of_two: bool) -> Any:
    """Return the scale of a block of elements to quantize: its largest magnitude divided by the type's largest number.

    top            bits of the largest magnitude of the block
    target         element type of the values
    power_of_two   whether scales are powers of two
    """
    held = cute.make_rmem_tensor(1, Int32)
    number = cute.recast_tensor(held, Float32)
    held[0] = top
    scale = number[0] / Float32(target.largest)
    scale = cutlass.select_(scale < Float32(LEAST_SCALE), Float32(LEAST_SCALE), scale)
    number[0] = scale
    bits = held[0]
    if power_of_two:
        bits = (bits + _MANTISSA) & _INFINITY
    number[0] = Float32(1)
    bits = cutlass.select_(top == 0, held[0], bits)
    held[0] = cutlass.select_(top >= _INFINITY, Int32(_NAN), bits)
    return number[0]


class Quantizer:
    """Emits the kernel that quantizes a matrix to fp8, with a scale for each block of elements.

    Methods without a decorator such as @cute.jit are plain Python that runs while the DSL traces the kernel.

    quantize   types, size of the blocks, and rounding of the scales
    """

    def __init__(self, quantize: Quantize) -> None:
        self.quantize = quantize

    @cute.jit
    def __call__(self, mX: cute.Tensor, mV: cute.Tensor, mS: cute.Tensor, stream):
        """Launch the quantization kernel, one CTA for each tile. Runs on the host.

        stream   CUDA stream of the launch
        mX       the matrix (rows, K)
        mV       its quantized values (rows, K)
        mS       the scales, one for each block
        """
        ctas = cute.ceil_div(mX.shape[0], self.quantize.tile[0]) * mS.shape[1]
        self.quantize_kernel(mX, mV, mS).launch(grid=(ctas, 1, 1), block=(self.quantize.threads, 1, 1), stream=stream)

    @cute.kernel
    def quantize_kernel(self, mX: cute.Tensor, mV: cute.Tensor, mS: cute.Tensor):
        """Quantize one tile in each CTA (device code). CTAs with consecutive indices have neighbouring tiles along K.

        mX, mV, mS   the matrix, its quantized values, and the scales
        """
        tid, _, _ = cute.arch.thread_idx()
        cta, _, _ = cute.arch.block_idx()
        self.quantize_tile(mX, mV, mS, tid, cta)

    def quantize_tile(self, mX: cute.Tensor, mV: cute.Tensor, mS: cute.Tensor, tid, cta) -> None:
        """Quantize the tile of a CTA: find the largest magnitudes, store the scales, and store the scaled values.

        mX, mV, mS   the matrix, its quantized values, and the scales
        tid, cta     index of the thread and of the CTA
        """
        quantize = self.quantize
        row_tile, k_block = cta // mS.shape[1], cta % mS.shape[1]
        load, store = [lower.tiled_copy(copy) for copy in (quantize.load, quantize.store)]
        place, extents = (row_tile, k_block), (mX.shape[0], mX.shape[1])
        gX, cX, gV = [
            cute.local_tile(whole, quantize.tile, place) for whole in (mX, cute.make_identity_tensor(extents), mV)
        ]
        loader, storer = load.get_slice(tid), store.get_slice(tid)
        tXgX, tXcX, tVgV = loader.partition_S(gX), loader.partition_S(cX), storer.partition_D(gV)
        inside = within(tXcX, extents)
        tXrX = cute.make_rmem_tensor(tXgX.shape, mX.element_type)
        tXrX.fill(0)
        cute.copy(load, tXgX, tXrX, pred=inside)
        values = cute.make_rmem_tensor(tXgX.shape, Float32)
        values.store(tXrX.load().to(Float32))
        tops = self.largest(cute.recast_tensor(values, Int32), tid)
        inverses = [self.scale_of(top, self.place_of(row, row_tile, k_block, tid), mS) for row, top in enumerate(tops)]
        of_row = cute.size(values) // quantize.rows_of_warp
        for i in range(cute.size(values)):
            values[i] = values[i] * inverses[i // of_row % len(inverses)]
        tVrV = cute.make_rmem_tensor(tVgV.shape, mV.element_type)
        tVrV.store(values.load().to(mV.element_type))
        cute.copy(store, tVrV, tVgV, pred=within(storer.partition_D(cX), extents))

    def largest(self, bits: cute.Tensor, tid) -> list[Any]:
        """Return the largest magnitude of each block in the thread's warp, as bits.

        A block is what shares a scale: a row, or the whole tile. Magnitudes of floats are compared as integers.

        bits      the thread's elements as integers, row by row
        tid       index of the thread
        returns   one number for each row of the warp, or a single one for the tile
        """
        quantize = self.quantize
        blocks = 1 if quantize.by_block else quantize.rows_of_warp
        count = cute.size(bits) // blocks
        tops = []
        for block in range(blocks):
            top = Int32(0)
            for i in range(count):
                top = cutlass.max(top, bits[block * count + i] & MAGNITUDE)
            for distance in (16, 8, 4, 2, 1):
                top = cutlass.max(top, cute.arch.shuffle_sync_bfly(top, distance))
            tops.append(top)
        if not quantize.by_block:
            return tops
        warps = quantize.threads // WARP_THREADS
        of_warps = cutlass.memory.SmemAllocator().allocate_tensor(Int32, cute.make_layout(warps))
        of_warps[tid // WARP_THREADS] = tops[0]
        cute.arch.sync_threads()
        top = of_warps[0]
        for warp in range(1, warps):
            top = cutlass.max(top, of_warps[warp])
        return [top]

    def place_of(self, row: int, row_tile, k_block, tid) -> tuple[Any, Any, Any]:
        """Return where the scale of a block is stored, and whether by this thread: (row, block along K, condition).

        row                 index of the block's row among the rows of the warp; 0 for a block of 128 rows
        row_tile, k_block   index of the tile along the rows, and of the block along K
        tid                 index of the thread
        """
        quantize = self.quantize
        if quantize.by_block:
            return row_tile, k_block, tid == 0
        warp, lane = tid // WARP_THREADS, tid % WARP_THREADS
        first = row_tile * quantize.tile[0] + warp * quantize.rows_of_warp
        return first + row, k_block, lane == row

    def scale_of(self, top, place: tuple[Any, Any, Any], mS: cute.Tensor) -> Any:
        """Compute the scale of a block from its largest magnitude, store the scale, and return its reciprocal.

        top     bits of the largest magnitude of the block
        place   (row, block along K) of the scale in mS, and whether this thread stores it
        mS      the scales
        """
        scale = block_scale(top, self.quantize.target, self.quantize.power_of_two)
        row, k_block, writes = place
        self.write(scale, row, k_block, Boolean(writes) & (row < mS.shape[0]), mS)
        return Float32(1) / scale

    @cute.jit
    def write(self, scale, row, k_block, writes: Boolean, mS: cute.Tensor):
        """Write a block scale to global memory, from the one thread of each block that has to.

        scale     the scale
        row       row of the matrix of scales
        k_block   column of the matrix of scales: index of a block of 128 along K
        writes    run-time condition: True in the thread that writes
        mS        matrix of scales in global memory
        """
        if writes:
            mS[row, k_block] = scale
