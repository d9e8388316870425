"""How a Hopper consumer's sums leave: by TMA through slots of shared memory, or straight out of registers.

| with an epilogue by TMA, for each subtile        | barrier                                                 |
|--------------------------------------------------|---------------------------------------------------------|
| where C is read: its subtile comes to the slot   | c, awaited; the slot's last store has been read by then |
| sums, scaled and converted, into the slot        |                                                         |
| the slot to global memory, by one elected lane   | subtile: all 128 threads have written theirs            |
| that lane waits until all but slots - 2 stores   | the next subtile's barrier tells the others before they |
| have read their slots                            | write to the slot after it                              |

Where each warp stores its own 16 rows, the barrier is that of the warp.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32
from cutlass.cute.nvgpu import cpasync

from cutegemm.arch import WARP_THREADS, WARPGROUP_THREADS
from cutegemm.kernels import lower
from cutegemm.plan.plan import GemmPlan


@dataclass
class Leaving:
    """C and D in global memory, and the slots. mC and mD are coordinates where TMA moves them.

    sD          (M, N, slots, consumers) of subtiles; after `set_up` (M, N, slots) of this consumer
    arrived_c   barriers of the slots
    """

    tma_c: cute.CopyAtom
    mC: cute.Tensor
    tma_d: cute.CopyAtom
    mD: cute.Tensor
    sD: Any
    arrived_c: cute.Pointer
    alpha: Any
    beta: Any


class Sm90Epilogue:
    """The epilogue of an sm90 plan. Methods without a decorator are plain Python, run while tracing."""

    def __init__(self, plan: GemmPlan) -> None:
        assert plan.pipeline is not None
        self.plan, self.epilogue = plan, plan.epilogue
        self.tile = plan.pipeline.consumer_tile

    # --- host ----------------------------------------------------------------------------------------------

    def tma_atoms(self, mC, mD, unused):
        """For C and for D: the copy by TMA and the tensor that it takes; else the tensors themselves."""
        plan, epilogue = self.plan, self.epilogue
        if epilogue is None:
            return (unused, mC), (unused, mD)
        d = lower.tma_atom(epilogue.store, mD, plan.smem_d, self.store_tile)
        if epilogue.load_c is None:
            return d, d
        return lower.tma_atom(epilogue.load_c, mC, plan.smem_d, epilogue.subtile), d

    @property
    def store_tile(self) -> tuple[int, int]:
        """Rows and columns of D that one store moves: of a subtile, or of a warp."""
        rows, columns = self.epilogue.subtile
        return (self.epilogue.store.box[1], columns) if self.plan.operands.d.major == "n" else (rows, columns)

    # --- device --------------------------------------------------------------------------------------------

    def descriptors(self, tma_c, tma_d) -> Sequence[cute.CopyAtom]:
        """Those to be fetched ahead."""
        if self.epilogue is None:
            return ()
        return (tma_d,) if self.epilogue.load_c is None else (tma_c, tma_d)

    def set_up(self, leaving: Leaving, consumer) -> None:
        """The consumer's own slots, and their barriers."""
        if self.epilogue is not None:
            leaving.sD = leaving.sD[None, None, None, consumer]
            leaving.arrived_c = leaving.arrived_c + consumer * self.epilogue.slots

    def store(self, leaving: Leaving, acc, own_mnl, tid, consumer, c_phase):
        """The consumer's tile: D = alpha * acc + beta * C. Returns the phase of the barriers of C."""
        acc = self.as_result(acc)
        self.scale(leaving, acc)
        if self.epilogue is None:
            self.store_directly(leaving, acc, own_mnl, tid)
            return c_phase
        return self.store_by_tma(leaving, acc, own_mnl, tid, consumer, c_phase)

    def as_result(self, acc):
        """Whole sums as f32 where D is no whole number, so that alpha and beta may be fractions."""
        ops = self.plan.operands
        if ops.acc.is_float or not ops.d.dtype.is_float:
            return acc
        out = cute.make_rmem_tensor(acc.layout, Float32)
        for i in range(cute.size(acc)):
            out[i] = acc[i].to(Float32)
        return out

    @cute.jit
    def scale(self, leaving: cutlass.Constexpr, acc: cutlass.Constexpr):
        """acc *= alpha; whole numbers stay what they are where alpha is 1."""
        if leaving.alpha != 1.0:
            self.scale_each(acc, leaving.alpha)

    def scale_each(self, acc, alpha) -> None:
        """Register by register: as one vector it takes 150 instructions more."""
        for i in range(cute.size(acc)):
            acc[i] = (acc[i].to(Float32) * alpha).to(acc.element_type)

    def wait_for_stores(self) -> None:
        """The slots live as long as their readers."""
        if self.epilogue is not None:
            cute.arch.cp_async_bulk_wait_group(0, read=True)

    # --- by TMA --------------------------------------------------------------------------------------------

    def own_tile(self, mX, own_mnl):
        """The consumer's part of C or of D."""
        m_tile, n_tile, batch = own_mnl
        return cute.local_tile(mX[None, None, batch], self.tile, (m_tile, n_tile))

    def fetch_c(self, leaving: Leaving, gC, i: int) -> None:
        """One warp: asks for the i-th subtile of C, to a slot that no store reads any more."""
        epilogue = self.epilogue
        slot = i % epilogue.slots
        across = epilogue.subtiles(self.tile)[1]
        subtile = cute.local_tile(gC, epilogue.subtile, (i // across, i % across))
        tCsC, tCgC = cpasync.tma_partition(
            leaving.tma_c,
            0,
            cute.make_layout(1),
            cute.group_modes(leaving.sD, 0, 2),
            cute.group_modes(subtile, 0, 2),
        )
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(
                leaving.arrived_c + slot, self.plan.barrier("c").transaction_bytes
            )
        cute.copy(leaving.tma_c, tCgC, tCsC[None, slot], tma_bar_ptr=leaving.arrived_c + slot)

    def fetch_c_ahead(self, leaving: Leaving, own_mnl, tid) -> None:
        """The subtiles of C that have a slot, as soon as the stores from these slots have read them."""
        if self.epilogue is not None and self.epilogue.load_c is not None:
            self._fetch_c_ahead(leaving, own_mnl, tid)

    @cute.jit
    def _fetch_c_ahead(self, leaving: cutlass.Constexpr, own_mnl, tid: Int32):
        if leaving.beta != 0.0 and cute.arch.make_warp_uniform(tid // WARP_THREADS) == 0:
            cute.arch.cp_async_bulk_wait_group(0, read=True)
            for i in cutlass.range_constexpr(self.epilogue.slots):
                self.fetch_c(leaving, self.own_tile(leaving.mC, own_mnl), i)

    @cute.jit
    def store_by_tma(
        self,
        leaving: cutlass.Constexpr,
        acc: cutlass.Constexpr,
        own_mnl,
        tid: Int32,
        consumer: Int32,
        c_phase: Int32,
    ):
        plan, e = self.plan, self.epilogue
        kind = lower.dtype(plan.operands.d.dtype)
        down, across = e.subtiles(self.tile)
        subtiles = down * across
        warp_of = cute.arch.make_warp_uniform(tid // WARP_THREADS)
        gC, gD, sD = self.own_tile(leaving.mC, own_mnl), self.own_tile(leaving.mD, own_mnl), leaving.sD
        to_shared = lower.tiled_copy(e.to_shared).get_slice(tid)
        tDsD = to_shared.partition_D(sD)
        # One store: the slot, by the consumer's first warp, or its own rows by each warp
        sBox = cute.zipped_divide(sD, self.store_tile)  # (box, (boxes M, 1, slots))
        gBox = cute.zipped_divide(gD, self.store_tile)  # (box, (boxes M, boxes N))
        tBsD, tBgD = cpasync.tma_partition(leaving.tma_d, 0, cute.make_layout(1), sBox, gBox)
        boxes = e.subtile[0] // self.store_tile[0]
        box = warp_of if boxes > 1 else Int32(0)
        # (values of a subtile, subtiles): those along N come first, as the accumulators lie
        values = cute.make_tensor(
            acc.iterator, cute.make_layout((e.subtile[0] * e.subtile[1] // WARPGROUP_THREADS, subtiles))
        )

        for i in cutlass.range_constexpr(subtiles):
            slot = i % e.slots
            if cutlass.const_expr(plan.has_c):
                self.add_c(leaving, values[None, i], slot, tid, c_phase ^ ((i // e.slots) & 1))
            tDrD = cute.make_rmem_tensor(tDsD[None, None, None, 0].shape, kind)
            tDrD.store(values[None, i].load().to(kind).reshape(tDrD.shape))
            cute.copy(to_shared, tDrD, tDsD[None, None, None, slot])
            cute.arch.fence_proxy("async.shared", space="cta")
            if cutlass.const_expr(boxes == 1):
                cute.arch.barrier(
                    barrier_id=plan.barrier_id("subtile") + consumer,
                    number_of_threads=plan.barrier("subtile").arrivals,
                )
            else:
                cute.arch.sync_warp()
            if boxes > 1 or warp_of == 0:
                target = tBgD[None, (i // across * boxes + box, i % across)]
                cute.copy(leaving.tma_d, tBsD[None, (box, 0, slot)], target, **lower.l2_policy(e.store))
                cute.arch.cp_async_bulk_commit_group()
                cute.arch.cp_async_bulk_wait_group(e.slots - 2, read=True)
                if cutlass.const_expr(plan.has_c and e.slots <= i + 2 < subtiles):
                    if leaving.beta != 0.0:
                        self.fetch_c(leaving, gC, i + 2)
        return c_phase ^ ((subtiles // e.slots) & 1)

    @cute.jit
    def add_c(
        self,
        leaving: cutlass.Constexpr,
        sums: cutlass.Constexpr,
        slot: cutlass.Constexpr,
        tid: Int32,
        phase: Int32,
    ):
        """sums += beta * C, from the slot that C has come to."""
        if leaving.beta != 0.0:
            from_shared = lower.tiled_copy(self.epilogue.from_shared).get_slice(tid)
            tCsC = from_shared.partition_S(leaving.sD)
            tCrC = cute.make_rmem_tensor(
                tCsC[None, None, None, 0].shape, lower.dtype(self.plan.operands.c.dtype)
            )
            cute.arch.mbarrier_wait(leaving.arrived_c + slot, phase)
            cute.copy(from_shared, tCsC[None, None, None, slot], tCrC)
            for i in cutlass.range_constexpr(cute.size(sums)):
                sums[i] = sums[i] + (leaving.beta * tCrC[i].to(Float32)).to(sums.element_type)

    # --- straight out of registers -------------------------------------------------------------------------

    def store_directly(self, leaving: Leaving, acc, own_mnl, tid) -> None:
        """Neighbours that a thread holds are stored together, those inside of D alone."""
        plan = self.plan
        m_tile, n_tile, _ = own_mnl
        extents = leaving.mD.shape[:2]
        thr_mma = lower.consumer_mma(plan.tiled_mma).get_slice(tid)
        coords = cute.local_tile(cute.make_identity_tensor(extents), self.tile, (m_tile, n_tile))
        parts = (self.own_tile(leaving.mD, own_mnl), self.own_tile(leaving.mC, own_mnl), coords)
        tCgD, tCgC, tCcD = [thr_mma.partition_C(part) for part in parts]
        vector = (plan.store_d.values,)
        # (vector, vectors)
        vD, vC, vcD, vAcc = [
            cute.zipped_divide(cute.group_modes(t, 0, 3), vector) for t in (tCgD, tCgC, tCcD, acc)
        ]
        for i in range(cute.size(vD, mode=[1])):
            self.store_vector(leaving, vAcc[None, i], vC[None, i], vD[None, i], vcD[0, i], extents)

    @cute.jit
    def store_vector(
        self, leaving: cutlass.Constexpr, sums: cutlass.Constexpr, gC, gD, at, extents: cutlass.Constexpr
    ):
        """One access to D, where its first element is inside: so are the others then."""
        kind = leaving.mD.element_type
        if cute.elem_less(at, extents):
            out = cute.make_rmem_tensor(sums.shape, kind)
            for v in cutlass.range_constexpr(cute.size(sums)):
                out[v] = sums[v].to(kind)
            if cutlass.const_expr(self.plan.has_c):
                if leaving.beta != 0.0:
                    for v in cutlass.range_constexpr(cute.size(sums)):
                        out[v] = (sums[v] + (leaving.beta * gC[v].to(Float32)).to(sums.element_type)).to(kind)
            cute.copy(lower.copy_atom(self.plan.store_d), out, cute.coalesce(gD))
