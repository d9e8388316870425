"""How a Hopper consumer's sums leave: through slots of shared memory, or straight out of registers.

| through slots by TMA, for each subtile           | barrier                                                 |
|--------------------------------------------------|---------------------------------------------------------|
| where C comes by TMA: its subtile, to the slot   | c, awaited; the slot's last store has been read by then |
| sums, scaled and converted, into the slot        |                                                         |
| the storing lane waits until all but slots - 2   | subtile: all 128 threads have written theirs, and may   |
| stores have read their slots                     | write to the slot after this one                        |
| the slot to global memory, by that lane          |                                                         |

The wait comes as late as it can, so that what is converted and written meanwhile costs nothing. Where C comes by
TMA, it comes right after the store, as C is asked for behind it.
Where each warp stores its own 16 rows, or is a consumer, the barriers are those of the warp, and it waits before it
writes: until all but slots - 1 of its stores have read. Where the threads store the slot, they have all read it when
they come to the next subtile's barrier: the slot after that one is free.
"""

from __future__ import annotations

from collections.abc import Sequence

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32
from cutlass.cute.nvgpu import cpasync

from cutegemm.kernels import lower
from cutegemm.kernels.sm90.leaving import Leaving, PartOfConsumer
from cutegemm.machine.arch import WARP_THREADS
from cutegemm.plan.plan import GemmPlan
from cutegemm.tile.tma import TmaBox


class Sm90Epilogue(PartOfConsumer):
    """The epilogue of an sm90 plan. Methods without a decorator are plain Python, run while tracing."""

    def __init__(self, plan: GemmPlan) -> None:
        super().__init__(plan)
        self.slots = plan.slots
        self.by_tma = plan.slots is not None and isinstance(plan.slots.store, TmaBox)
        self.c_by_tma = plan.slots is not None and plan.slots.load_c is not None
        self.is_warp = plan.pipeline.consumer_warps == 1

    # --- host ----------------------------------------------------------------------------------------------

    def tma_atoms(self, mC, mD, unused):
        """For C and for D: the copy by TMA and the tensor that it takes; else the tensors themselves."""
        plan, slots = self.plan, self.slots
        c, d = (unused, mC), (unused, mD)
        if self.c_by_tma:
            c = lower.tma_atom(slots.load_c, mC, plan.smem_d, slots.subtile)
        if self.by_tma:
            d = lower.tma_atom(slots.store, mD, plan.smem_d, self.store_tile)
        return c, d

    @property
    def store_tile(self) -> tuple[int, int]:
        """Rows and columns of D that one store moves: of a subtile, or of a warp."""
        rows, columns = self.slots.subtile
        return (self.slots.store.box[1], columns) if self.plan.operands.d.major == "n" else (rows, columns)

    # --- device --------------------------------------------------------------------------------------------

    def descriptors(self, tma_c, tma_d) -> Sequence[cute.CopyAtom]:
        """Those to be fetched ahead."""
        used = ((tma_c, self.c_by_tma), (tma_d, self.by_tma))
        return tuple([atom for atom, is_used in used if is_used])

    def set_up(self, leaving: Leaving, consumer) -> None:
        """The consumer's own slots, and their barriers."""
        if self.slots is not None:
            leaving.sD = leaving.sD[None, None, None, consumer]
            leaving.arrived_c = leaving.arrived_c + consumer * self.slots.count

    def scaled(self, leaving: Leaving, acc, k_tiles):
        """alpha * acc, which no product has set to 0 where there are no k-tiles."""
        acc = self.as_result(acc)
        self.scale(leaving, acc, k_tiles)
        return acc

    def store(self, leaving: Leaving, acc, own_mnl, tid, consumer, c_phase):
        """The consumer's tile: D = acc + beta * C. Returns the phase of the barriers of C."""
        if self.slots is None:
            self.store_directly(leaving, acc, own_mnl, tid)
            return c_phase
        return self.store_through_slots(leaving, acc, own_mnl, tid, consumer, c_phase)

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
    def scale(self, leaving: cutlass.Constexpr, acc: cutlass.Constexpr, k_tiles: Int32):
        """acc *= alpha; whole numbers stay what they are where alpha is 1."""
        if leaving.alpha != 1.0 or k_tiles == 0:
            if k_tiles == 0:
                acc.fill(0)
            self.scale_each(acc, leaving.alpha)

    def scale_each(self, acc, alpha) -> None:
        """Register by register: as one vector it takes 150 instructions more."""
        for i in range(cute.size(acc)):
            acc[i] = (acc[i].to(Float32) * alpha).to(acc.element_type)

    def wait_for_stores(self) -> None:
        """The slots live as long as their readers."""
        if self.by_tma:
            cute.arch.cp_async_bulk_wait_group(0, read=True)

    # --- through slots -------------------------------------------------------------------------------------

    def fetch_c(self, leaving: Leaving, gC, i: int) -> None:
        """One warp: asks for the i-th subtile of C, to a slot that no store reads any more."""
        slots = self.slots
        slot = i % slots.count
        across = slots.subtiles(self.tile)[1]
        subtile = cute.local_tile(gC, slots.subtile, (i // across, i % across))
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
        if self.c_by_tma:
            self._fetch_c_ahead(leaving, own_mnl, tid)

    @cute.jit
    def _fetch_c_ahead(self, leaving: cutlass.Constexpr, own_mnl, tid: Int32):
        if leaving.beta != 0.0 and cute.arch.make_warp_uniform(tid // WARP_THREADS) == 0:
            cute.arch.cp_async_bulk_wait_group(0, read=True)
            for i in cutlass.range_constexpr(self.slots.count):
                self.fetch_c(leaving, self.own_tile(leaving.mC, own_mnl), i)

    @cute.jit
    def store_through_slots(
        self,
        leaving: cutlass.Constexpr,
        acc: cutlass.Constexpr,
        own_mnl,
        tid: Int32,
        consumer: Int32,
        c_phase: Int32,
    ):
        plan, e = self.plan, self.slots
        values = self.by_subtiles(acc)
        subtiles = cute.size(values, mode=[1])
        for i in cutlass.range_constexpr(subtiles):
            if cutlass.const_expr(self.c_by_tma):
                self.add_c(leaving, values[None, i], i % e.count, tid, c_phase ^ ((i // e.count) & 1))
            elif cutlass.const_expr(plan.has_c):
                self.add_c_straight(leaving, values[None, i], i, own_mnl, tid)
            self.store_subtile(leaving, self.converted(values[None, i]), i, own_mnl, tid, consumer)
            if cutlass.const_expr(self.c_by_tma):
                if cute.arch.make_warp_uniform(tid // WARP_THREADS) == 0:
                    cute.arch.cp_async_bulk_wait_group(e.count - 2, read=True)
                    if cutlass.const_expr(e.count <= i + 2 < subtiles):
                        if leaving.beta != 0.0:
                            self.fetch_c(leaving, self.own_tile(leaving.mC, own_mnl), i + 2)
        return c_phase ^ ((subtiles // e.count) & 1)

    def by_subtiles(self, acc):
        """(values of a subtile, subtiles): those along N come first, as the accumulators lie."""
        e = self.slots
        down, across = e.subtiles(self.tile)
        shape = (e.subtile[0] * e.subtile[1] // self.plan.pipeline.consumer_threads, down * across)
        return cute.make_tensor(acc.iterator, cute.make_layout(shape))

    def converted(self, sums):
        """The values of a subtile as those of D."""
        out = cute.make_rmem_tensor(sums.shape, lower.dtype(self.plan.operands.d.dtype))
        out.store(sums.load().to(out.element_type))
        return out

    @cute.jit
    def store_subtile(
        self,
        leaving: cutlass.Constexpr,
        values: cutlass.Constexpr,
        i: cutlass.Constexpr,
        own_mnl,
        tid: Int32,
        consumer: Int32,
    ):
        """The values of the i-th subtile: into its slot, and on to global memory."""
        plan, e = self.plan, self.slots
        slot = i % e.count
        # Each warp stores its own
        in_rows = self.by_tma and (self.is_warp or self.store_tile[0] < e.subtile[0])
        warp_of = cute.arch.make_warp_uniform(tid // WARP_THREADS)
        if cutlass.const_expr(in_rows):
            cute.arch.cp_async_bulk_wait_group(e.count - 1, read=True)
            cute.arch.sync_warp()
        to_shared = lower.tiled_copy(e.to_shared).get_slice(tid)
        tDsD = to_shared.partition_D(leaving.sD)[None, None, None, slot]
        tDrD = cute.make_tensor(values.iterator, cute.make_layout(tDsD.shape))
        cute.copy(to_shared, tDrD, tDsD)
        if cutlass.const_expr(self.by_tma):
            cute.arch.fence_proxy("async.shared", space="cta")
        if cutlass.const_expr(in_rows):
            cute.arch.sync_warp()
        else:
            if cutlass.const_expr(self.by_tma and not self.c_by_tma):
                if warp_of == 0:
                    cute.arch.cp_async_bulk_wait_group(e.count - 2, read=True)
            cute.arch.barrier(
                barrier_id=plan.barrier_id("subtile") + consumer,
                number_of_threads=plan.barrier("subtile").arrivals,
            )
        if cutlass.const_expr(not self.by_tma):
            self.copy_slot(leaving, slot, self.subtile_at(own_mnl, i), tid)
        elif in_rows or warp_of == 0:
            self.store_slot(leaving, slot, i, own_mnl, warp_of if in_rows and not self.is_warp else Int32(0))

    def store_slot(self, leaving: Leaving, slot: int, i: int, own_mnl, box) -> None:
        """One warp: the i-th subtile by TMA, all of the slot or a warp's rows.

        box   which rows of the slot
        """
        e = self.slots
        boxes, across = e.subtile[0] // self.store_tile[0], e.subtiles(self.tile)[1]
        sBox = cute.zipped_divide(leaving.sD, self.store_tile)  # (box, (boxes M, 1, slots))
        gBox = cute.zipped_divide(
            self.own_tile(leaving.mD, own_mnl), self.store_tile
        )  # (box, (boxes M, boxes N))
        tBsD, tBgD = cpasync.tma_partition(leaving.tma_d, 0, cute.make_layout(1), sBox, gBox)
        target = tBgD[None, (i // across * boxes + box, i % across)]
        cute.copy(leaving.tma_d, tBsD[None, (box, 0, slot)], target, **lower.l2_policy(e.store))
        cute.arch.cp_async_bulk_commit_group()

    def subtile_at(self, own_mnl, i: int):
        """Where the i-th subtile of a consumer's tile lies, counted in subtiles."""
        down, across = self.slots.subtiles(self.tile)
        m_tile, n_tile, batch = own_mnl
        return m_tile * down + i // across, n_tile * across + i % across, batch

    def copy_slot(self, leaving: Leaving, slot: int, at_mnl, tid) -> None:
        """A slot to D by the consumer's threads: all that a thread reads first, then what is inside of D."""
        copy = self.slots.store
        m, n, batch = at_mnl
        extents = leaving.mD.shape[:2]
        tiles = [leaving.mD[None, None, batch], cute.make_identity_tensor(extents)]
        gD, coords = [cute.local_tile(tensor, self.slots.subtile, (m, n)) for tensor in tiles]
        own = lower.tiled_copy(copy).get_slice(tid)
        tDsD = own.partition_S(leaving.sD)[None, None, None, slot]
        tDgD, tDcD = own.partition_D(gD), own.partition_D(coords)
        tDrD = cute.make_rmem_tensor(tDsD.shape, leaving.mD.element_type)
        cute.copy(lower.copy_atom(copy.atom), tDsD, tDrD)
        for j in range(cute.size(tDrD, mode=[2])):
            for i in range(cute.size(tDrD, mode=[1])):
                self.store_line(tDrD[None, i, j], tDgD[None, i, j], tDcD[0, i, j], extents)

    @cute.jit
    def store_line(self, values: cutlass.Constexpr, gD, at, extents: cutlass.Constexpr):
        """One access to D, where its first element is inside: so are the others then."""
        if cute.elem_less(at, extents):
            cute.copy(lower.copy_atom(self.slots.store.atom), values, gD)

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
            from_shared = lower.tiled_copy(self.slots.from_shared).get_slice(tid)
            tCsC = from_shared.partition_S(leaving.sD)
            tCrC = cute.make_rmem_tensor(
                tCsC[None, None, None, 0].shape, lower.dtype(self.plan.operands.c.dtype)
            )
            cute.arch.mbarrier_wait(leaving.arrived_c + slot, phase)
            cute.copy(from_shared, tCsC[None, None, None, slot], tCrC)
            self.add_scaled(leaving, sums, tCrC)

    # --- straight out of registers -------------------------------------------------------------------------

    def store_directly(self, leaving: Leaving, acc, own_mnl, tid) -> None:
        """Neighbours that a thread holds are stored together, those inside of D alone."""
        vector, extents = self.plan.store_d.values, leaving.mD.shape[:2]
        vD, vC, vcD, vAcc = self.by_vectors(vector, own_mnl, tid, leaving.mD, leaving.mC, None, sums=acc)
        for i in range(cute.size(vD, mode=[1])):
            self.store_vector(leaving, vAcc[None, i], vC[None, i], vD[None, i], vcD[0, i], extents)

    @cute.jit
    def store_vector(
        self, leaving: cutlass.Constexpr, sums: cutlass.Constexpr, gC, gD, at, extents: cutlass.Constexpr
    ):
        """One access to D, where its first element is inside: so are the others then."""
        kind = leaving.mD.element_type
        if cute.elem_less(at, extents):
            if cutlass.const_expr(self.plan.has_c):
                if leaving.beta != 0.0:
                    held = cute.make_rmem_tensor(gC.shape, gC.element_type)
                    self.read_c(gC, held)
                    self.add_scaled(leaving, sums, held)
            out = cute.make_rmem_tensor(sums.shape, kind)
            for v in cutlass.range_constexpr(cute.size(sums)):
                out[v] = sums[v].to(kind)
            cute.copy(lower.copy_atom(self.plan.store_d), out, cute.coalesce(gD))
