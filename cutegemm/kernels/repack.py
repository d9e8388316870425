"""The repack pass: one kernel copies operands to the workspace before the GEMM; see `plan.memory.repack`.

| step of a CTA, for one tile of an operand                                                                         |
|-------------------------------------------------------------------------------------------------------------------|
| load the tile along the operand's contiguous mode, with zeros outside of the operand                              |
| write it to shared memory along the repacked matrix's contiguous mode; if that is the other mode, each thread     |
| transposes its block of elements first                                                                            |
| store it, 16 bytes per thread, with the zeros that pad each run                                                   |
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32, Int64

from cutegemm.kernels import lower
from cutegemm.kernels.arguments import SPACE_ALIGN_BYTES
from cutegemm.kernels.launches import SMEM_CARVEOUT_PERCENT, begin, end
from cutegemm.machine.arch import SMEM_MAX_ALIGN_BYTES
from cutegemm.plan.launches import Launch
from cutegemm.plan.memory.repack import Repack

_THREADS_AT_ONCE = 2048  # threads of an SM at once: 32 registers per thread are enough


def region(space: cute.Tensor, first, kind, layout=1) -> cute.Tensor:
    """View part of the workspace, from byte `first` on, as a tensor. Runs on the host.

    space    the workspace, in bytes
    kind     element type
    layout   layout of the tensor; 1: a single element
    """
    address = space.iterator.toint() + first
    pointer = cute.make_ptr(kind, address, cute.AddressSpace.gmem, assumed_align=SPACE_ALIGN_BYTES)
    return cute.make_tensor(pointer, cute.make_layout(layout) if layout == 1 else layout)


def within(coords: cute.Tensor, extents) -> cute.Tensor:
    """Return for each access of a thread whether it is inside of a matrix, as predicates.

    coords    coordinates (mn, k) of the elements that the thread copies, with three modes: elements at one position of
              the tiled copy, its positions along M or N, its positions along K
    extents   extents of the matrix
    returns   predicates with the same modes, one for each access
    """
    vectors, rest_mn, rest_k = [cute.size(coords, mode=mode) for mode in ([0, 1], [1], [2])]
    out = cute.make_rmem_tensor((vectors, rest_mn, rest_k), Boolean)
    for v in range(vectors):
        for i in range(rest_mn):
            for j in range(rest_k):
                out[v, i, j] = cute.elem_less(coords[(0, v), i, j], extents)
    return out


class Repacker:
    """Emits the repack pass: a kernel that copies A, B or both before the GEMM to a layout that the GEMM can load.

    Methods without a decorator such as @cute.jit are plain Python that runs while the DSL traces the kernel.

    repacks   what to do with each operand; the CTAs of the grid are divided among them in this order
    own       how this kernel overlaps with the kernels before and after it (programmatic dependent launch)
    """

    def __init__(self, repacks: tuple[Repack, ...], own: Launch) -> None:
        self.repacks, self.own = repacks, own

    def launch(
        self, sources: dict[str, cute.Tensor], space: cute.Tensor, firsts: dict, stream
    ) -> dict[str, cute.Tensor]:
        """Launch the repack pass, and return the repacked matrices in the workspace: "a" or "b" -> tensor.

        Runs on the host.

        stream    CUDA stream of the launch
        sources   the operands (rows, K, L) by name
        space     the workspace, in bytes
        firsts    first byte of each repacked matrix in the workspace, by name
        """
        packed = {p.name: self.packed(p, sources[p.name], space, firsts[p.name]) for p in self.repacks}
        pairs = [(lower.as_bits(sources[p.name]), lower.as_bits(packed[p.name])) for p in self.repacks]
        divided_by, ctas = [], []
        for repack, (mX, _) in zip(self.repacks, pairs, strict=True):
            # With K = 0, runs along K still have zeros to write
            rows, columns, batch = mX.shape[0], cutlass.max(mX.shape[1], 1), mX.shape[2]
            divided_by.append(lower.divisors(repack.divided_by(rows, columns)))
            ctas.append(repack.ctas(rows, columns, batch))
        self.repack_kernel(
            tuple([mX for mX, _ in pairs]), tuple([mP for _, mP in pairs]), tuple(divided_by), ctas[0]
        ).launch(
            grid=(sum(ctas[1:], start=ctas[0]), 1, 1),
            block=(self.repacks[0].threads, 1, 1),
            stream=stream,
            min_blocks_per_mp=_THREADS_AT_ONCE // self.repacks[0].threads,
            preferred_smem_carveout=SMEM_CARVEOUT_PERCENT,
            use_pdl=self.own.waits,
        )
        return packed

    def packed(self, repack: Repack, mX: cute.Tensor, space: cute.Tensor, first) -> cute.Tensor:
        """Return the tensor (rows, K, L) of a repacked operand in the workspace, with the zeros that pad it.

        repack   what the repack pass does with the operand
        mX       the operand (rows, K, L)
        space    the workspace, in bytes
        first    first byte of the repacked matrix in the workspace
        """
        line, along = repack.line, int(repack.major == "k")
        extents = list(repack.extents(mX.shape[0], mX.shape[1], cutlass.max))
        extents[along] = cute.assume(extents[along], divby=line)
        leading = cute.assume(Int64(extents[along]), divby=line)
        batch = cute.assume(leading * extents[1 - along], divby=line)
        strides = repack.strides((leading, leading))
        layout = cute.make_layout((*extents, mX.shape[2]), stride=(*strides, batch))
        return region(space, first, mX.element_type, layout)

    @cute.kernel
    def repack_kernel(self, sources: tuple, packed: tuple, divided_by: tuple, first: Int32):
        """Copy one tile of an operand to its repacked matrix, in each CTA (device code).

        sources      the operands (rows, K, L)
        packed       the repacked matrices (rows, K, L)
        divided_by   for each operand the divisors that turn a CTA index into tile coordinates
        first        number of CTAs that repack the first operand; the others repack the second one
        """
        begin(self.own)
        cta, _, _ = cute.arch.block_idx()
        bytes_of = [repack.smem.cosize() * repack.store.atom.dtype.bits // 8 for repack in self.repacks]
        smem = cutlass.memory.SmemAllocator().allocate(max(bytes_of), SMEM_MAX_ALIGN_BYTES)
        if cutlass.const_expr(len(self.repacks) == 1):
            self.repack_tile(self.repacks[0], sources[0], packed[0], divided_by[0], smem, cta)
        else:
            if cta < first:
                self.repack_tile(self.repacks[0], sources[0], packed[0], divided_by[0], smem, cta)
            else:
                self.repack_tile(self.repacks[1], sources[1], packed[1], divided_by[1], smem, cta - first)
        end(self.own)

    def repack_tile(self, repack: Repack, mX: cute.Tensor, mP: cute.Tensor, divided_by, smem, cta) -> None:
        """Copy one tile of an operand to the repacked matrix, through shared memory (device code).

        repack       how the operand is repacked
        mX           the operand (rows, K, L)
        mP           the repacked matrix (rows, K, L)
        divided_by   divisors that turn the CTA index into tile coordinates
        smem         shared memory of the CTA
        cta          index of the CTA among those of this operand
        """
        tid, _, _ = cute.arch.thread_idx()
        row_tile, k_tile, batch = repack.tile_at(cta, divided_by, not cute.is_static(mX.shape[2]))
        sX = lower.as_bits(lower.smem_view(smem, repack.load.atom.dtype, repack.smem))
        copies = (repack.load, repack.put, repack.store)
        load, put, store = [lower.tiled_copy(copy, mX.element_type) for copy in copies]
        gX, cX, gP, cP = [
            cute.local_tile(whole, repack.tile, (row_tile, k_tile))
            for whole in (
                mX[None, None, batch], cute.make_identity_tensor((mX.shape[0], mX.shape[1])),
                mP[None, None, batch], cute.make_identity_tensor((mP.shape[0], mP.shape[1])),
            )
        ]  # fmt: skip
        taker, putter, giver = load.get_slice(tid), put.get_slice(tid), store.get_slice(tid)
        tXgX, tYsX = taker.partition_S(gX), putter.partition_D(sX)
        tXrX, tYrX = [cute.make_rmem_tensor(shape, mX.element_type) for shape in (tXgX.shape, tYsX.shape)]
        tXrX.fill(0)
        inside = within(taker.partition_S(cX), (mX.shape[0], mX.shape[1]))
        cute.copy(load, tXgX, tXrX, pred=inside)
        self.turn(repack, tXrX, tYrX)
        cute.copy(put, tYrX, tYsX)
        cute.arch.sync_threads()
        tPsX = giver.partition_S(sX)
        tPrX = cute.make_rmem_tensor(tPsX.shape, mX.element_type)
        cute.autovec_copy(tPsX, tPrX)
        inside = within(giver.partition_D(cP), (mP.shape[0], mP.shape[1]))
        cute.copy(store, tPrX, giver.partition_D(gP), pred=inside)

    def turn(self, repack: Repack, loaded: cute.Tensor, put: cute.Tensor) -> None:
        """Reorder values in a thread's registers: from the order of loads to the order of writes to shared memory.

        repack   the repack pass of the operand
        loaded   registers with the loaded values
        put      registers that receive the same values
        """
        for i in range(cute.size(put, mode=[1])):
            for j in range(cute.size(put, mode=[2])):
                for value, source in enumerate(repack.order):
                    put[value, i, j] = loaded[source, i, j]
