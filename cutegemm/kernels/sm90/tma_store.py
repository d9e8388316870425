"""Store a consumer's tile of D through epilogue stages by TMA, which may load C to them as well."""

from __future__ import annotations

from collections.abc import Sequence

import cutlass
import cutlass.cute as cute
from cutlass import Int32
from cutlass.cute.nvgpu import cpasync

from cutegemm.kernels import lower
from cutegemm.kernels.sm90.groups import mapped
from cutegemm.kernels.sm90.staged_store import StagedStorage
from cutegemm.kernels.sm90.storage import Storage
from cutegemm.machine.arch import WARP_THREADS
from cutegemm.plan.program import steps as step
from cutegemm.plan.store import TmaStore

_UNROLLED = 8  # rows that are added in an iteration


@Storage.stores(TmaStore)
class TmaStorage(StagedStorage):
    """Stores D by TMA from epilogue stages, buffers in shared memory that a consumer fills with pieces of its tile.

    The consumer's first warp stores a whole stage, or each warp stores its own rows of it. TMA can also load C to the
    stages.
    """

    # --- host ----------------------------------------------------------------------------------------------

    def tma_atoms(self, operands, mD, unused):
        """Return (TMA copy, tensor that it takes) for C, for D, and for each auxiliary output in epilogue stages.

        If TMA does not load C, it has the atom `unused`. Runs on the host.

        operands   (input tensors, auxiliary outputs) of the epilogue, each (M, N, L)
        mD         D (M, N, L)
        unused     a placeholder
        """
        c, _, more = super().tma_atoms(operands, mD, unused)
        store = self.store
        if store.fetched is not None:
            mC = operands[0][self.plan.epilogue.tensors.index(self.plan.fetched_tile)]
            c = lower.tma_atom(store.fetched, mapped(self.plan, self.plan.fetched_tile, mC), store.smem, store.epi_tile)
        tensors = zip(("d", *self.plan.epi_stage_results[:-1]), (mD, *[mX for _, mX in more]), strict=True)
        d, *more = [
            lower.tma_atom(store.box, mapped(self.plan, name, mX), store.smem, self.box_tile) for name, mX in tensors
        ]
        return c, d, tuple(more)

    @property
    def box_tile(self) -> tuple[int, int]:
        """Return the shape (rows, columns) of what one TMA store copies: an epilogue tile, or some rows of it."""
        (rows, columns), across = self.store.epi_tile, self.store.box.box[1]
        return (across, columns) if self.plan.operands.d.major == "n" else (rows, across)

    # --- device --------------------------------------------------------------------------------------------

    def descriptors(self, tma_c, tma_d, more) -> Sequence[cute.CopyAtom]:
        """Return the TMA copies whose descriptors (tensor maps) the kernel prefetches: of C, D and auxiliary outputs.

        tma_c, tma_d, more   the TMA copies of C, of D and of auxiliary outputs
        """
        stored = (tma_d, *[atom for atom, _ in more])
        return stored if self.store.fetched is None else (tma_c, *stored)

    def reads_tiles(self):
        """Return whether the epilogue reads an M x N operand, such as C: True, False, or a value known at run time.

        It is known at run time if it depends on a scalar, such as beta.
        """
        return self.values.reads(self.values.epilogue)

    def reads_by_first(self):
        """Return whether this warp must load C by TMA, i.e. is the consumer's first warp, and the epilogue reads C.

        The result is False, or a value known at run time.
        """
        return cutlass.and_(self.reads_tiles(), self.find_warp() == 0)

    def fetch_first(self, own_mnl) -> None:
        """Load the first epilogue tiles of C by TMA, one to each epilogue stage. One warp of the consumer calls it.

        own_mnl   (m_tile, n_tile, batch): indices of the consumer's tile in the grid of consumer tiles
        """
        for i in range(self.store.count):
            self.fetch(own_mnl, i)

    def fetch_ahead(self, own_mnl, i: int) -> None:
        """Load the i-th epilogue tile of C by TMA, unless `fetch_first` has loaded it or it does not exist.

        One warp of the consumer calls it.

        own_mnl   (m_tile, n_tile, batch): indices of the consumer's tile in the grid of consumer tiles
        """
        if self.store.count <= i < self.epi_tiles:
            self.fetch_read(own_mnl, i)

    @cute.jit
    def fetch_read(self, own_mnl, i: cutlass.Constexpr):
        """Load the i-th epilogue tile of C by TMA, if the epilogue reads C (which may be known only at run time).

        own_mnl   (m_tile, n_tile, batch): indices of the consumer's tile in the grid of consumer tiles
        """
        if self.reads_tiles():
            self.fetch(own_mnl, i)

    def fetch(self, own_mnl, i: int) -> None:
        """Load the i-th epilogue tile of C by TMA to its epilogue stage. One warp of the consumer calls it.

        No store may still read the epilogue stage.

        own_mnl   (m_tile, n_tile, batch): indices of the consumer's tile in the grid of consumer tiles
        """
        store, to = self.store, self.targets
        epi_stage, _ = store.epi_stage_at(i)
        epi_tile = cute.local_tile(self.own_tile(to.mC, own_mnl), store.epi_tile, store.epi_tile_at(i, self.tile))
        tCsC, tCgC = cpasync.tma_partition(
            to.tma_c, 0, cute.make_layout(1), cute.group_modes(to.sD, 0, 2), cute.group_modes(epi_tile, 0, 2)
        )
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(to.arrived_c + epi_stage, self.plan.barrier("c").transaction_bytes)
        cute.copy(to.tma_c, tCgC, tCsC[None, epi_stage], tma_bar_ptr=to.arrived_c + epi_stage)

    def read_epi_stage(self, epi_stage: int, phase) -> cute.Tensor:
        """Wait until TMA has loaded an epilogue tile of C, and return this thread's values of it.

        epi_stage   index of the epilogue stage that holds it
        phase       parity of the phase of the stage's barrier
        """
        to, operand = self.targets, self.plan.operands.matrix(self.plan.fetched_tile)
        from_shared = lower.tiled_copy(self.store.from_shared).get_slice(self.tid)
        tCsC = from_shared.partition_S(to.sD)
        held = from_shared.partition_D(to.sD)[None, None, None, 0].shape
        tCrC = cute.make_rmem_tensor(held, lower.dtype(operand.dtype))
        cute.arch.mbarrier_wait(to.arrived_c + epi_stage, phase)
        cute.copy(from_shared, tCsC[None, None, None, epi_stage], tCrC)
        return tCrC

    def wait_stores(self, pending: int, by: str) -> None:
        """Wait until at most `pending` TMA stores of a warp still read their epilogue stages.

        pending   number of stores that may still be in progress
        by        which warps wait: `FIRST_WARP`, `EACH_WARP` or `ALL` of `plan.program.steps`
        """
        if by == step.FIRST_WARP:
            self.wait_by_first(pending)
            return
        cute.arch.cp_async_bulk_wait_group(pending, read=True)
        if by == step.EACH_WARP:
            cute.arch.sync_warp()

    @cute.jit
    def wait_by_first(self, pending: cutlass.Constexpr):
        """Wait until at most `pending` TMA stores still read epilogue stages, if this is the consumer's first warp."""
        if self.warp == 0:
            cute.arch.cp_async_bulk_wait_group(pending, read=True)

    def after_write(self) -> None:
        """Make a thread's writes to an epilogue stage visible to TMA, which stores the stage next."""
        cute.arch.fence_proxy("async.shared", space="cta")

    def store_epi_stage(self, by: str, i: int, own_mnl, result: str) -> None:
        """Store the i-th epilogue tile of a result from its epilogue stage to global memory by TMA.

        by        which warps store: `FIRST_WARP` or `EACH_WARP` of `plan.program.steps`
        own_mnl   (m_tile, n_tile, batch): indices of the consumer's tile in the grid of consumer tiles
        result    "d", or the name of an auxiliary output
        """
        if self.plan.operands.scattered:
            self.add_rows(by, i, own_mnl)
        elif by == step.EACH_WARP:
            cute.arch.sync_warp()
            box = Int32(0) if self.plan.consumer_warps == 1 else self.warp
            self.store_box(i, own_mnl, box, result)
        else:
            self.store_by_first(i, own_mnl, result)

    @cute.jit
    def store_by_first(self, i: cutlass.Constexpr, own_mnl, result: cutlass.Constexpr):
        """Store the i-th epilogue tile of a result by TMA, if this is the consumer's first warp.

        own_mnl   (m_tile, n_tile, batch): indices of the consumer's tile in the grid of consumer tiles
        result    "d", or the name of an auxiliary output
        """
        if self.warp == 0:
            self.store_box(i, own_mnl, Int32(0), result)

    def store_box(self, i: int, own_mnl, box, result: str) -> None:
        """Store the i-th epilogue tile of a result by TMA: all of it, or one warp's rows. One warp calls it.

        own_mnl   (m_tile, n_tile, batch): indices of the consumer's tile in the grid of consumer tiles
        box       index of the warp's rows in the epilogue tile
        result    "d", or the name of an auxiliary output
        """
        store, to = self.store, self.targets
        tma, mX = self.target_of(result)
        boxes = store.epi_tile[0] // self.box_tile[0]
        sBox = cute.zipped_divide(to.sD, self.box_tile)  # (box, (boxes M, 1, epilogue stages))
        gBox = cute.zipped_divide(self.own_tile(mX, own_mnl), self.box_tile)  # (box, (boxes M, boxes N))
        tBsD, tBgD = cpasync.tma_partition(tma, 0, cute.make_layout(1), sBox, gBox)
        m, n = store.epi_tile_at(i, self.tile)
        epi_stage = self.epi_stage_of(i, result)
        cute.copy(
            tma,
            tBsD[None, (box, 0, epi_stage)],
            tBgD[None, (m * boxes + box, n)],
            **lower.l2_policy(store.box),
        )
        cute.arch.cp_async_bulk_commit_group()

    @cute.jit
    def add_rows(self, by: cutlass.Constexpr, i: cutlass.Constexpr, own_mnl):
        """Add each row of the i-th epilogue tile that belongs to the group to the row of D that the index selects.

        A box of one row is read where that row of a box of many would be: the swizzle permutes bits of the address. The
        lanes of a warp hold the indices of its rows. TMA drops a row past the last one of D. A row with a negative
        index is skipped here, because TMA would stop with an illegal instruction (H100, 2026-11-28).

        by        which warps add: `FIRST_WARP`, or `EACH_WARP` its own rows
        own_mnl   (m_tile, n_tile, batch): indices of the consumer's tile in the grid of consumer tiles
        """
        to, mode, (rows, columns) = self.targets, "mn".index(self.plan.operands.groups), self.store.epi_tile
        count, first = self.store.epi_tile[mode], Int32(0)
        if cutlass.const_expr(by == step.EACH_WARP):
            cute.arch.sync_warp()
            count //= self.plan.consumer_warps
            first = self.warp * count
        m, n = self.store.epi_tile_at(i, self.tile)
        at = own_mnl[0] * self.tile[0] + m * rows, self.plan.column_of(own_mnl[1], n * columns)
        across = at[1 - mode] // self.box_tile[1 - mode]
        sBox = cute.zipped_divide(to.sD[None, None, self.epi_stage_of(i, "d")], self.box_tile)  # (box, boxes)
        gBox = cute.local_tile(to.mD, self.box_tile, (None, None, 0))  # (*box, boxes M, boxes N)
        tBsD, tBgD = cpasync.tma_partition(to.tma_d, 0, cute.make_layout(1), sBox, cute.group_modes(gBox, 0, 2))
        left = cutlass.min(self.extents[mode] - at[mode] - first, count)
        if by == step.EACH_WARP or self.warp == 0:
            for j in cutlass.range_constexpr(0, count, WARP_THREADS):
                own, target = first + j + cute.arch.lane_idx(), Int32(0)
                if at[mode] + own < self.extents[mode]:
                    target = to.index[self.work_tile.begin + at[mode] + own, 0, 0]
                for lane in cutlass.range(cutlass.min(left - j, WARP_THREADS), unroll=_UNROLLED):
                    row = cute.arch.make_warp_uniform(cute.arch.shuffle_sync(target, lane))
                    source = tBsD[None, (first + j + lane, 0) if mode == 0 else (0, first + j + lane)]
                    result = tBgD[None, row, across] if mode == 0 else tBgD[None, across, row]
                    if row >= 0:
                        cute.copy(to.tma_d, source, result, **lower.l2_policy(self.store.box))
            cute.arch.cp_async_bulk_commit_group()
