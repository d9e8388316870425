"""Operands packed into the workspace before the GEMM: see `plan.packing`.

| a CTA, a tile of an operand                                                                                       |
|-------------------------------------------------------------------------------------------------------------------|
| loads it along the operand's contiguous mode, zeros for what lies outside                                         |
| puts it into shared memory along that of the packed matrix: where it is another one, each thread turns its block  |
| stores it, 16 bytes a thread, with the zeros that end each run                                                    |
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int64

from cutegemm.kernels import lower
from cutegemm.kernels.arguments import SPACE_ALIGN_BYTES
from cutegemm.plan.memory.packing import Packing


def region(space: cute.Tensor, first, kind, layout=1) -> cute.Tensor:
    """A part of the workspace, as elements of a type; on the host."""
    address = space.iterator.toint() + first
    pointer = cute.make_ptr(kind, address, cute.AddressSpace.gmem, assumed_align=SPACE_ALIGN_BYTES)
    return cute.make_tensor(pointer, cute.make_layout(layout) if layout == 1 else layout)


class Packer:
    """The kernel that packs one operand. Methods without a decorator are plain Python, run while tracing."""

    def __init__(self, packing: Packing) -> None:
        self.packing = packing

    def launch(self, mX: cute.Tensor, space: cute.Tensor, first, stream) -> cute.Tensor:
        """Packs an operand (rows, K, L) into the workspace, from byte `first` on; the packed matrix; on the host."""
        packing = self.packing
        rows, columns, batch = mX.shape
        mP = self.packed(mX, space, first)
        self.pack_kernel(*[lower.as_bits(whole) for whole in (mX, mP)]).launch(
            grid=(packing.ctas(rows, cutlass.max(columns, 1), batch), 1, 1),
            block=(packing.threads, 1, 1),
            stream=stream,
        )
        return mP

    def packed(self, mX: cute.Tensor, space: cute.Tensor, first) -> cute.Tensor:
        """The packed matrix (rows, K, L), with the zeros that end its runs."""
        packing, line = self.packing, self.packing.line
        along = int(packing.major == "k")
        extents = list(packing.extents(mX.shape[0], mX.shape[1], cutlass.max))
        extents[along] = cute.assume(extents[along], divby=line)
        leading = cute.assume(Int64(extents[along]), divby=line)
        batch = cute.assume(leading * extents[1 - along], divby=line)
        strides = packing.strides((leading, leading))
        layout = cute.make_layout((*extents, mX.shape[2]), stride=(*strides, batch))
        return region(space, first, mX.element_type, layout)

    @cute.kernel
    def pack_kernel(self, mX: cute.Tensor, mP: cute.Tensor):
        packing = self.packing
        tid, _, _ = cute.arch.thread_idx()
        place, _, _ = cute.arch.block_idx()
        rows, columns = mX.shape[0], cutlass.max(mX.shape[1], 1)
        of_batch = packing.ctas(rows, columns, 1)
        within, batch = place % of_batch, place // of_batch
        # One after the other along the runs that are written
        if cutlass.const_expr(packing.major == "k"):
            k_tiles = packing.ctas(1, columns, 1)
            row_tile, k_tile = within // k_tiles, within % k_tiles
        else:
            row_tiles = packing.ctas(rows, 1, 1)
            row_tile, k_tile = within % row_tiles, within // row_tiles
        allocator = cutlass.memory.SmemAllocator()
        sX = lower.as_bits(lower.smem_tensor(allocator, packing.load.atom.dtype, packing.smem))
        copies = (packing.load, packing.put, packing.store)
        load, put, store = [lower.tiled_copy(copy, mX.element_type) for copy in copies]
        gX, cX, gP, cP = [
            cute.local_tile(whole, packing.tile, (row_tile, k_tile))
            for whole in (
                mX[None, None, batch], cute.make_identity_tensor((mX.shape[0], mX.shape[1])),
                mP[None, None, batch], cute.make_identity_tensor((mP.shape[0], mP.shape[1])),
            )
        ]  # fmt: skip
        taker, putter, giver = load.get_slice(tid), put.get_slice(tid), store.get_slice(tid)
        tXgX, tYsX = taker.partition_S(gX), putter.partition_D(sX)
        tXrX, tYrX = [cute.make_rmem_tensor(shape, mX.element_type) for shape in (tXgX.shape, tYsX.shape)]
        tXrX.fill(0)
        inside = self.within(taker.partition_S(cX), (mX.shape[0], mX.shape[1]))
        cute.copy(load, tXgX, tXrX, pred=inside)
        self.turn(tXrX, tYrX)
        cute.copy(put, tYrX, tYsX)
        cute.arch.sync_threads()
        tPsX = giver.partition_S(sX)
        tPrX = cute.make_rmem_tensor(tPsX.shape, mX.element_type)
        cute.autovec_copy(tPsX, tPrX)
        inside = self.within(giver.partition_D(cP), (mP.shape[0], mP.shape[1]))
        cute.copy(store, tPrX, giver.partition_D(gP), pred=inside)

    def turn(self, loaded: cute.Tensor, put: cute.Tensor) -> None:
        """A thread's values (V, REST_MN, REST_K), in the order in which it puts them."""
        for i in range(cute.size(put, mode=[1])):
            for j in range(cute.size(put, mode=[2])):
                for value, source in enumerate(self.packing.order):
                    put[value, i, j] = loaded[source, i, j]

    def within(self, coords: cute.Tensor, extents) -> cute.Tensor:
        """Which accesses (V, REST_MN, REST_K) lie inside of a matrix."""
        vectors, rest_mn, rest_k = [cute.size(coords, mode=mode) for mode in ([0, 1], [1], [2])]
        out = cute.make_rmem_tensor((vectors, rest_mn, rest_k), Boolean)
        for v in range(vectors):
            for i in range(rest_mn):
                for j in range(rest_k):
                    out[v, i, j] = cute.elem_less(coords[(0, v), i, j], extents)
        return out
