"""What some SIMT plans do besides: pack operands first, split K, or go without shared memory.

| plan              | launches, in order                                                                    |
|-------------------|---------------------------------------------------------------------------------------|
| packs A, B        | `pack_kernel` for each, then the GEMM, whose operand is the packed one                |
| split K, "kernel" | the GEMM, each part's sums to the workspace; `add_kernel`, which adds them to D       |
| split K, "last"   | the GEMM alone: in each tile the CTA that arrives last adds the sums and writes D     |
| no stages         | the GEMM alone, fragments read from global memory                                     |

Where each thing lies in the workspace is `plan.workspace.regions`; where a part's sums do,
`sums_layout`.

Arrival of a part: every thread has written its sums; fence; barrier; one thread adds 1 to the tile's counter,
acquire and release; the CTA that finds `parts` - 1 in it sees what all others wrote before they arrived. No
CTA waits for another, so that it does not matter which of them run at a time.
"""

from __future__ import annotations

import math
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32, Int64

from cutegemm.kernels import lower
from cutegemm.kernels.simt import SimtGemm
from cutegemm.plan.packing import Packing
from cutegemm.plan.workspace import regions, sums_layout
from cutegemm.tile.copy_atoms import universal_copy

_SPACE_ALIGN_BYTES = 16
_ADDED_AT_ONCE = 8  # loads of parts' sums that a thread has under way
_DIRECT_UNROLL = 4


class DirectGemm(SimtGemm):
    """A thread reads what it multiplies from global memory."""

    @cute.jit
    def tile(
        self,
        mA: cute.Tensor,
        mB: cute.Tensor,
        mC: cute.Tensor,
        mD: cute.Tensor,
        alpha: cutlass.Numeric,
        beta: cutlass.Numeric,
    ):
        plan = self.plan
        bM, bN, _ = plan.cta_tile
        tid, _, _ = cute.arch.thread_idx()
        cta, _, _ = cute.arch.block_idx()
        m_tile, n_tile, batch = self.tile_of(cta, mD.shape[0], mD.shape[1])
        thr_mma = lower.tiled_mma(plan.tiled_mma).get_slice(tid)
        sides = []
        for mX, extent, at, part in (
            (mA, bM, m_tile, thr_mma.partition_A),
            (mB, bN, n_tile, thr_mma.partition_B),
        ):
            coords = cute.make_identity_tensor((mX.shape[0], mX.shape[1]))
            gX, cX = [
                part(cute.local_tile(whole, (extent, 1), (at, None)))
                for whole in (mX[None, None, batch], coords)
            ]  # (1, REST_MN, 1, K)
            values = cute.size(gX, mode=[1])
            inside = [cute.elem_less(cX[0, i, 0, 0][0], mX.shape[0]) for i in range(values)]
            fragments = cute.make_rmem_tensor((1, values), mX.element_type)
            fragments.fill(0.0)
            sides.append((gX, inside, fragments))
        (gA, a_inside, tCrA), (gB, b_inside, tCrB) = sides
        acc = cute.make_rmem_tensor((1, len(a_inside), len(b_inside)), lower.dtype(plan.operands.acc))
        acc.fill(0.0)
        for k in cutlass.range(mA.shape[1], unroll=_DIRECT_UNROLL):
            self.take(gA, a_inside, tCrA, k)
            self.take(gB, b_inside, tCrB, k)
            self.multiply_direct(tCrA, tCrB, acc)
        self.end(thr_mma, mC, mD, None, None, acc, alpha, beta, tid, cta)

    def take(self, gX, inside, fragments, k) -> None:
        """One k of a thread's rows, those inside of the matrix."""
        atom = universal_copy(self.plan.operands.a.dtype, self.plan.operands.a.dtype.bits)
        for i, where in enumerate(inside):
            self.copy_vector(atom, gX[None, i, 0, k], fragments[None, i], where)

    def multiply_direct(self, tCrA, tCrB, acc) -> None:
        kind = acc.element_type
        for m in range(cute.size(tCrA)):
            for n in range(cute.size(tCrB)):
                acc[0, m, n] = cute.math.fma(tCrA[0, m].to(kind), tCrB[0, n].to(kind), acc[0, m, n])


class SpaceGemm(SimtGemm):
    """A plan that needs a workspace: it packs operands, splits K, or both."""

    sums: Any = None
    arrivals: Any = None

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
        mA, mC, mD = [self.seen_as(tensor, 0, 1) for tensor in (a, c, d)]
        mB = self.seen_as(b, 1, 0)
        (bM, bN, _), M, N, K, L = plan.cta_tile, mD.shape[0], mD.shape[1], mA.shape[1], mD.shape[2]
        tiles = cute.ceil_div(M, bM) * cute.ceil_div(N, bN) * L
        firsts = {r.name: r.first for r in regions(plan, Int64(M), Int64(N), Int64(K), Int64(L))}
        whole = {"a": mA, "b": mB}
        for packing in plan.packs:
            source = whole[packing.name]
            whole[packing.name] = self.packed(packing, source, space, firsts[packing.name])
            rows, columns = packing.tile
            grid = (cute.ceil_div(source.shape[0], rows), cutlass.max(cute.ceil_div(K, columns), 1), L)
            self.pack_kernel(packing, source, whole[packing.name]).launch(
                grid=grid, block=(packing.threads, 1, 1), stream=stream
            )
        sums, arrivals = [
            self.region(space, firsts[name], kind, 1) if name in firsts else mD
            for name, kind in (("sums", lower.dtype(plan.operands.acc)), ("arrivals", Int32))
        ]
        self.part_kernel(whole["a"], whole["b"], mC, mD, sums, arrivals, alpha, beta).launch(
            grid=(tiles, plan.split_k, 1),
            block=(plan.threads, 1, 1),
            stream=stream,
            min_blocks_per_mp=plan.ctas_per_sm,
            preferred_smem_carveout=100,
        )
        if cutlass.const_expr(plan.split_k > 1 and plan.split.reduction == "kernel"):
            bM, bN, _ = plan.cta_tile
            vectors = bM * bN // (plan.threads * plan.store_d.values)
            self.add_kernel(mC, mD, sums, alpha, beta).launch(
                grid=(tiles, vectors, 1), block=(plan.threads, 1, 1), stream=stream
            )

    def region(self, space, first, kind, extent) -> cute.Tensor:
        """A part of the workspace, as elements of a type."""
        address = space.iterator.toint() + first
        pointer = cute.make_ptr(kind, address, cute.AddressSpace.gmem, assumed_align=_SPACE_ALIGN_BYTES)
        return cute.make_tensor(pointer, cute.make_layout(extent))

    # --- packing -------------------------------------------------------------------------------------------

    def packed(self, packing: Packing, mX, space, first) -> cute.Tensor:
        """The packed matrix (rows, K, L)."""
        vector = packing.store.atom.values
        rows = cute.assume(packing.extent(mX.shape[0]), divby=vector)
        leading = cute.assume(Int64(rows), divby=vector)
        batch = cute.assume(leading * mX.shape[1], divby=vector)
        layout = cute.make_layout((rows, mX.shape[1], mX.shape[2]), stride=(1, leading, batch))
        return cute.make_tensor(self.region(space, first, mX.element_type, 1).iterator, layout)

    @cute.kernel
    def pack_kernel(self, packing: cutlass.Constexpr, mX: cute.Tensor, mP: cute.Tensor):
        """A tile of an operand, through shared memory to the packed one."""
        tid, _, _ = cute.arch.thread_idx()
        row_tile, k_tile, batch = cute.arch.block_idx()
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

    # --- split K -------------------------------------------------------------------------------------------

    @cute.kernel
    def part_kernel(
        self,
        mA: cute.Tensor,
        mB: cute.Tensor,
        mC: cute.Tensor,
        mD: cute.Tensor,
        sums: cute.Tensor,
        arrivals: cute.Tensor,
        alpha: cutlass.Numeric,
        beta: cutlass.Numeric,
    ):
        self.sums, self.arrivals = sums, arrivals
        self.tile(mA, mB, mC, mD, alpha, beta)

    def k_range(self, k_tiles):
        """The k-tiles of this CTA's part."""
        if self.plan.split_k == 1:
            return 0, k_tiles
        _, part, _ = cute.arch.block_idx()
        return self.plan.split.k_range(part, k_tiles, minimum=cutlass.min)

    def end(self, thr_mma, mC, mD, sA, sD, acc, alpha, beta, tid, cta) -> None:
        """The sums of all of K to D; those of a part to the workspace, from which the last one takes them "
        "all."""
        if self.plan.split_k == 1:
            SimtGemm.end(self, thr_mma, mC, mD, sA, sD, acc, alpha, beta, tid, cta)
            return
        vAcc = self.by_vectors(acc)
        own = self.part_of(mD, tid, cta, reread_part())
        for i in range(cute.size(vAcc, mode=[1])):
            line = cute.make_rmem_tensor((self.plan.store_d.values,), acc.element_type)
            for v in range(self.plan.store_d.values):
                line[v] = vAcc[v, i]
            cute.copy(self.wide(), self.pieces(line), self.pieces(own[None, i]))
        if self.plan.split.reduction == "last":
            self.arrive(thr_mma, mC, mD, acc, alpha, beta, tid, cta, sA)

    @cute.jit
    def arrive(
        self, thr_mma: cutlass.Constexpr, mC: cutlass.Constexpr, mD: cutlass.Constexpr, acc:
        cutlass.Constexpr, alpha: cutlass.Constexpr, beta: cutlass.Constexpr, tid: Int32, cta: Int32, sA:
        cutlass.Constexpr,
    ):  # fmt: skip
        parts = self.plan.split_k
        flag = cute.make_tensor(cute.recast_ptr(sA.iterator, dtype=Int32), cute.make_layout(1))
        cute.arch.fence_acq_rel_gpu()
        cute.arch.sync_threads()
        if tid == 0:
            flag[0] = cute.arch.atomic_add(self.arrivals.iterator + cta, Int32(1), sem="acq_rel", scope="gpu")
        cute.arch.sync_threads()
        if flag[0] == parts - 1:
            cute.arch.fence_acq_rel_gpu()
            vAcc = self.by_vectors(acc)
            acc.fill(0.0)
            held = cute.make_rmem_tensor(
                (self.plan.store_d.values, cute.size(vAcc, mode=[1])), acc.element_type
            )
            for part in cutlass.range(parts, unroll=1):
                theirs = self.part_of(mD, tid, cta, part)
                self.add(vAcc, held, theirs)
            at = self.tile_of(cta, mD.shape[0], mD.shape[1])
            self.epilogue(thr_mma, mC, mD, None, acc, alpha, beta, at, tid)

    def add(self, vAcc, held, theirs) -> None:
        """A part's sums (vector, vectors) to those that are there."""
        count = cute.size(vAcc, mode=[1])
        for first in range(0, count, _ADDED_AT_ONCE):
            group = range(first, min(first + _ADDED_AT_ONCE, count))
            for i in group:
                cute.copy(self.wide(), self.pieces(theirs[None, i]), self.pieces(held[None, i]))
            for i in group:
                for v in range(cute.size(vAcc, mode=[0])):
                    vAcc[v, i] = vAcc[v, i] + held[v, i]

    @cute.kernel
    def add_kernel(
        self,
        mC: cute.Tensor,
        mD: cute.Tensor,
        sums: cute.Tensor,
        alpha: cutlass.Numeric,
        beta: cutlass.Numeric,
    ):
        """One vector of each thread of a tile: the parts' sums, in their order, then D."""
        self.sums = sums
        tid, _, _ = cute.arch.thread_idx()
        cta, which, _ = cute.arch.block_idx()
        vector = self.plan.store_d.values
        total = cute.make_rmem_tensor((vector,), sums.element_type)
        total.fill(0.0)
        for part in cutlass.range(self.plan.split_k, unroll=math.gcd(_ADDED_AT_ONCE, self.plan.split_k)):
            held = cute.make_rmem_tensor((vector,), sums.element_type)
            theirs = self.part_of(mD, tid, cta, part)
            cute.copy(self.wide(), self.pieces(theirs[None, which]), self.pieces(held))
            for v in range(vector):
                total[v] = total[v] + held[v]
        thr_mma = lower.tiled_mma(self.plan.tiled_mma).get_slice(tid)
        at = self.tile_of(cta, mD.shape[0], mD.shape[1])
        self.epilogue(thr_mma, mC, mD, None, total, alpha, beta, at, tid, which)

    def part_of(self, mD, tid, cta, part) -> cute.Tensor:
        """Where a thread's sums of a part of a tile lie: (vector, vectors)."""
        bM, bN, _ = self.plan.cta_tile
        tiles = cute.ceil_div(mD.shape[0], bM) * cute.ceil_div(mD.shape[1], bN) * mD.shape[2]
        layout = sums_layout(self.plan, 1)  # of one tile; its last mode would be the parts
        vector, by_thread, by_vector, by_tile, _ = layout.stride
        shape = (layout.shape[0], layout.shape[2])
        first = (Int64(part) * tiles + cta) * by_tile + tid * by_thread
        first = cute.assume(first, divby=layout.shape[0])
        return cute.make_tensor(
            self.sums.iterator + first, cute.make_layout(shape, stride=(vector, by_vector))
        )

    def wide(self) -> cute.CopyAtom:
        """The widest access to a vector of sums."""
        acc = self.plan.operands.acc
        return lower.copy_atom(universal_copy(acc, acc.bits * min(self.plan.store_d.values, 128 // acc.bits)))

    def pieces(self, tensor) -> cute.Tensor:
        """A vector as (elements of an access, accesses)."""
        acc = self.plan.operands.acc
        values = min(self.plan.store_d.values, 128 // acc.bits)
        return cute.logical_divide(cute.coalesce(tensor), cute.make_layout(values))


def reread_part() -> Int32:
    """The part of this CTA, read when it is needed."""
    from cutegemm.kernels.mainloop import reread

    return reread("%ctaid.y")
