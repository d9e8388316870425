"""SIMT plans that need a workspace: operands are packed first, K is split, or both.

| plan              | launches, in order                                                                    |
|-------------------|---------------------------------------------------------------------------------------|
| packs A, B        | `pack_kernel` for each, then the GEMM, whose operand is the packed one                |
| shares tiles of D | the GEMM, and `add_kernel` where that adds the sums: see `simt_parts`                 |

Where each thing lies in the workspace is `plan.workspace.regions`.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32, Int64

from cutegemm.kernels import lower
from cutegemm.kernels.arguments import SPACE_ALIGN_BYTES
from cutegemm.kernels.simt_parts import PartsGemm
from cutegemm.plan.packing import Packing
from cutegemm.plan.workspace import regions


class WorkspaceGemm(PartsGemm):
    """A plan that needs a workspace: it packs operands, shares tiles, or both."""

    @cute.jit
    def __call__(
        self,
        a: cute.Tensor,
        b: cute.Tensor,
        c: cute.Tensor,
        d: cute.Tensor,
        space: cute.Tensor,
        alpha: cutlass.Numeric,
        beta: cutlass.Numeric,
        stream,
    ):
        plan = self.plan
        mA, mB, mC, mD = self.matrices(a, b, c, d)
        (bM, bN, _), M, N, K, L = plan.cta_tile, mD.shape[0], mD.shape[1], mA.shape[1], mD.shape[2]
        tiles = self.tiles(mD)
        extents = [Int64(extent) for extent in (M, N, K, L)]
        firsts = {r.name: r.first for r in regions(plan, *extents, cutlass.min, cutlass.max)}
        whole = {"a": mA, "b": mB}
        for packing in plan.packs:
            source = whole[packing.name]
            whole[packing.name] = self.packed(packing, source, space, firsts[packing.name])
            self.pack_kernel(packing, source, whole[packing.name]).launch(
                grid=(packing.ctas(source.shape[0], cutlass.max(K, 1), L), 1, 1),
                block=(packing.threads, 1, 1),
                stream=stream,
            )
        sums, arrivals = [
            self.region(space, firsts[name], kind, 1) if name in firsts else mD
            for name, kind in (("sums", lower.dtype(plan.operands.acc)), ("arrivals", Int32))
        ]
        self.parts_kernel(whole["a"], whole["b"], mC, mD, sums, arrivals, alpha, beta).launch(
            grid=(tiles, plan.split_k, 1) if plan.persistent is None else (plan.persistent, 1, 1),
            block=(plan.threads, 1, 1),
            stream=stream,
            min_blocks_per_mp=plan.ctas_per_sm,
            preferred_smem_carveout=100,
        )
        if cutlass.const_expr(plan.split.is_split and plan.split.reduction == "kernel"):
            vectors = bM * bN // (plan.threads * plan.store_d.values)
            added = tiles if plan.persistent is None else cutlass.max(self.shares(mD, K).shared, 1)
            self.add_kernel(K, mC, mD, sums, beta).launch(
                grid=(added, vectors, 1), block=(plan.threads, 1, 1), stream=stream
            )

    def region(self, space, first, kind, extent) -> cute.Tensor:
        """A part of the workspace, as elements of a type."""
        address = space.iterator.toint() + first
        pointer = cute.make_ptr(kind, address, cute.AddressSpace.gmem, assumed_align=SPACE_ALIGN_BYTES)
        return cute.make_tensor(pointer, cute.make_layout(extent))

    def packed(self, packing: Packing, mX, space, first) -> cute.Tensor:
        """The packed matrix (rows, K, L)."""
        rows = cute.assume(packing.extent(mX.shape[0]), divby=packing.line)
        leading = cute.assume(Int64(rows), divby=packing.line)
        batch = cute.assume(leading * mX.shape[1], divby=packing.line)
        layout = cute.make_layout((rows, mX.shape[1], mX.shape[2]), stride=(1, leading, batch))
        return cute.make_tensor(self.region(space, first, mX.element_type, 1).iterator, layout)

    @cute.kernel
    def pack_kernel(self, packing: cutlass.Constexpr, mX: cute.Tensor, mP: cute.Tensor):
        """A tile of an operand, through shared memory to the packed one."""
        tid, _, _ = cute.arch.thread_idx()
        place, _, _ = cute.arch.block_idx()
        rows, columns = mX.shape[0], cutlass.max(mX.shape[1], 1)
        row_tiles, of_batch = packing.ctas(rows, 1, 1), packing.ctas(rows, columns, 1)
        within, batch = place % of_batch, place // of_batch
        row_tile, k_tile = within % row_tiles, within // row_tiles
        dtype = getattr(self.plan.operands, packing.name).dtype
        sX = lower.smem_tensor(cutlass.memory.SmemAllocator(), dtype, packing.smem)[None, None, 0]
        load, store = lower.tiled_copy(packing.load), lower.tiled_copy(packing.store)
        gX, cX, gP, cP = [
            cute.local_tile(whole, packing.tile, (row_tile, k_tile))
            for whole in (
                mX[None, None, batch], cute.make_identity_tensor((mX.shape[0], mX.shape[1])),
                mP[None, None, batch], cute.make_identity_tensor((mP.shape[0], mP.shape[1])),
            )
        ]  # fmt: skip
        taker, giver = load.get_slice(tid), store.get_slice(tid)
        tXsX = taker.partition_D(sX)
        tXrX = cute.make_rmem_tensor(tXsX.shape, mX.element_type)
        tXrX.fill(0.0)
        inside = self.within(taker.partition_S(cX), (mX.shape[0], mX.shape[1]))
        cute.copy(load, taker.partition_S(gX), tXrX, pred=inside)
        cute.autovec_copy(tXrX, tXsX)
        cute.arch.sync_threads()
        tPsX = giver.partition_S(sX)
        tPrX = cute.make_rmem_tensor(tPsX.shape, mX.element_type)
        cute.autovec_copy(tPsX, tPrX)
        inside = self.within(giver.partition_D(cP), (mP.shape[0], mP.shape[1]))
        cute.copy(store, tPrX, giver.partition_D(gP), pred=inside)

    def within(self, coords, extents) -> cute.Tensor:
        """Which accesses (V, REST_MN, REST_K) lie inside of a matrix."""
        vectors, rest_mn, rest_k = [cute.size(coords, mode=mode) for mode in ([0, 1], [1], [2])]
        out = cute.make_rmem_tensor((vectors, rest_mn, rest_k), Boolean)
        for v in range(vectors):
            for i in range(rest_mn):
                for j in range(rest_k):
                    out[v, i, j] = cute.elem_less(coords[(0, v), i, j], extents)
        return out
