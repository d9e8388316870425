"""K splits of kernels with one schedule: accumulators are written to the workspace, and added there.

| reduction | launches                                                                                       |
|-----------|------------------------------------------------------------------------------------------------|
| "kernel"  | the GEMM, whose CTAs write the accumulators of their K splits; then `add_kernel`, which adds   |
|           | them and stores D                                                                              |
| "last"    | the GEMM alone: the CTA of a tile that arrives last adds the accumulators and stores D         |

The grid is (tiles, K splits). The CTAs of a persistent plan take one work tile after another instead; they store D
directly if a work tile has all k-tiles of its tile. `plan.scheduler` says which work tiles there are, and which slot of
the workspace a K split has. `partials_layout` is the layout of accumulators in a slot.

Arrival: after all threads have written their accumulators, they meet at a barrier. One thread increments the tile's
semaphore with acquire and release, and the threads meet again. The CTA that finds `splits` - 1 sees what all others
wrote before they arrived. (PTX memory model, causality order: a release covers what a barrier orders before it, and an
acquire what a barrier orders after it.) No CTA waits for another, so any number of them may run at once.

From sm_90 on, `add_kernel` is launched while the CTAs of the GEMM write their accumulators, and waits for the end of
all of them before it reads (programmatic dependent launch). This hides its launch latency.

The head of the epilogue scales the accumulators before they are written. If they were written unscaled, each vector of
them would occupy adjacent registers from the first MMA on. Then the three operands of a multiply-add meet in one of the
two register banks, and the mainloop takes up to a sixth longer (H200, 2048 x 2048 x 2048, 2026-11-20).
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64
from cutlass.cutlass_dsl import T, dsl_user_op

from cutegemm.kernels import lower
from cutegemm.kernels.assembly import assembler
from cutegemm.kernels.launches import begin, release, wait
from cutegemm.kernels.threads.mainloop import ScheduledGemm, reread
from cutegemm.kernels.values import Values
from cutegemm.kernels.vectors import copy_vector
from cutegemm.plan.launches import GEMM, SUMS
from cutegemm.plan.memory.workspace import partials_layout
from cutegemm.plan.work.division import WorkTile
from cutegemm.plan.work.scheduler import WorkGrid
from cutegemm.tile.atoms import CopyAtom
from cutegemm.tile.copy_atoms import universal_copy

_ADDED_AT_ONCE = 128  # accumulators that a thread of `add_kernel` reads at once: one L2 latency for up to 32 K splits
_ADDED_BY_LAST = 16  # accumulators that a thread reads at once if it also has a tile's accumulators in registers


@dsl_user_op
def opaque(value: Int32, *, loc=None, ip=None) -> Int32:
    """Return the same value, moved by inline assembly, so that the compiler does not hoist code that depends on it."""
    asm = assembler(loc, ip)
    operands = [Int32(value).ir_value(loc=loc, ip=ip)]
    return Int32(asm(T.i32(), operands, "mov.b32 $0, $1;", "=r,r"))


class SplitKGemm(ScheduledGemm):
    """Emits the kernels of a GEMM without warp roles that may split K: the GEMM, and a kernel that adds the K splits.

    accumulators   workspace of accumulators, set while a kernel is traced
    arrivals       semaphores of the tiles, set while a kernel is traced
    at_hand        work tile (a tile of D and a range of K) that the CTA computes; None if the grid is not persistent
    current        function that computes that work tile again, so that it need not stay in registers
    """

    accumulators: Any = None
    arrivals: Any = None
    at_hand: WorkTile | None = None
    current: Any = None

    @cute.kernel
    def split_k_kernel(
        self,
        mA: cute.Tensor,
        mB: cute.Tensor,
        operands: tuple,
        mD: cute.Tensor,
        accumulators: cute.Tensor,
        arrivals: cute.Tensor,
        scalars: tuple,
        tiles: tuple,
    ):
        """Compute one K split or a whole tile of D in each CTA (device code).

        In a persistent plan, each CTA computes all its work tiles.

        mA, mB, mD     A (M, K, L), B (N, K, L) and D (M, N, L)
        operands       (input tensors, auxiliary outputs) of the epilogue
        accumulators   workspace of the K splits' accumulators
        arrivals       semaphores, one for each tile
        scalars        scalars of the epilogue
        tiles          values of the host that CTAs use to find their tiles
        """
        wait(self.launches[GEMM])
        if cutlass.const_expr(SUMS not in self.launches):
            release(self.launches[GEMM])
        self.accumulators, self.arrivals, self.of_host = accumulators, arrivals, tiles
        self.values = Values.of(self.plan, operands, scalars)
        if cutlass.const_expr(not self.plan.scheduler.grid.is_persistent):
            self.tile(mA, mB, mD)
        else:
            place, _, _ = cute.arch.block_idx()
            state = self.tiles(mD).along(mA.shape[1]).first(place)
            while self.tiles(mD).along(opaque(mA.shape[1])).exists(state):
                self.take(state, mA, mB, mD)
                state = self.tiles(mD).along(mA.shape[1]).next(state)

    @cute.jit
    def take(self, state: tuple, mA: cute.Tensor, mB: cute.Tensor, mD: cute.Tensor):
        """Compute one work tile of a persistent grid. A work tile with 0 K splits is empty: nothing is done.

        state        integers that determine the work tile
        mA, mB, mD   A (M, K, L), B (N, K, L) and D (M, N, L)
        """
        self.current = lambda: self.tiles(mD).along(opaque(mA.shape[1])).tile(state)
        self.at_hand = self.current()
        if self.at_hand.splits > 0:
            cute.arch.sync_threads()  # all threads have read the shared memory of the previous work tile
            self.tile(mA, mB, mD)

    def tile_number(self, again: bool = False):
        """Return the number of this CTA's current tile of D in raster order.

        again   True to emit code that computes the number again, so that no register holds it through the mainloop
        """
        if not self.plan.scheduler.grid.is_persistent:
            return ScheduledGemm.tile_number(self, again)
        if again:
            self.at_hand = self.current()
        return self.at_hand.tile

    def work_tile(self, work: WorkGrid, tile) -> WorkTile:
        """Return the work tile of this CTA: one K split of a tile, or the whole tile if K is not split.

        work   the scheduler, which gives each cluster its work tiles (a tile of D and a range of K)
        tile   number of the tile of D, in raster order
        """
        if self.plan.scheduler.grid.is_persistent:
            return self.at_hand
        if self.plan.split_k == 1:
            return work.whole(tile)
        return work.split_of(tile, cute.arch.block_idx()[1])

    def end(self, thr_mma, mD, sA, sD, acc, tid, work: WorkGrid, tile) -> None:
        """Store a whole tile to D, or the accumulators of a K split to the workspace.

        thr_mma, tid   the thread's slice of the tiled MMA, and its index
        mD             D (M, N, L)
        sA, sD         shared memory of A and of D's tile; sD is None if D is stored from registers
        acc            accumulators of the thread
        work, tile     the scheduler of work tiles (tiles of D with a range of K), and the number of the tile
        """
        if self.plan.scheduler.grid.is_persistent:
            self.end_persistent(thr_mma, mD, sA, acc, tid, work, self.at_hand)
        elif self.plan.split_k > 1:
            work_tile = work.split_of(tile, reread("%ctaid.y"))
            self.pass_order(thr_mma, mD, sA, acc, tid, work, work_tile)
        else:
            ScheduledGemm.end(self, thr_mma, mD, sA, sD, acc, tid, work, tile)

    @cute.jit
    def end_persistent(
        self, thr_mma: cutlass.Constexpr, mD: cutlass.Constexpr, sA: cutlass.Constexpr,
        acc: cutlass.Constexpr, tid: Int32,
        work: cutlass.Constexpr, work_tile: cutlass.Constexpr,
    ):  # fmt: skip
        """Finish a work tile of a persistent grid.

        A whole tile is stored to D, and the accumulators of a K split are written to the workspace.

        thr_mma, tid      the thread's slice of the tiled MMA, and its index
        mD                D (M, N, L)
        sA                shared memory of A, reused for the semaphore's value
        acc               accumulators of the thread
        work, work_tile   the scheduler of work tiles (tiles of D with a range of K), and the current one
        """
        if work_tile.splits == 1:
            ScheduledGemm.end(self, thr_mma, mD, sA, None, acc, tid, work, work_tile.tile)
        else:
            self.pass_order(thr_mma, mD, sA, acc, tid, work, work_tile)

    def pass_order(self, thr_mma, mD, sA, acc, tid, work: WorkGrid, work_tile: WorkTile) -> None:
        """Write a thread's accumulators of one K split to the workspace, multiplied by the epilogue's leading scalars.

        If the plan's reduction is "last", the CTA that ends last for the tile then adds all K splits and stores D.
        Otherwise a later kernel does.

        thr_mma, tid      the thread's slice of the tiled MMA, and its index
        mD                D (M, N, L)
        sA                shared memory of A, reused for the semaphore's value
        acc               accumulators of the thread
        work, work_tile   the scheduler of work tiles (tiles of D with a range of K), and the current one
        """
        if SUMS in self.launches:
            release(self.launches[GEMM])
        scaled = self.plan.epilogue.head.expression
        vAcc, own = self.by_vectors(acc), self.partials_at(tid, self.slot_of(work, work_tile, work_tile.k_split))
        for i in range(cute.size(vAcc, mode=[1])):
            line = cute.make_rmem_tensor((self.plan.store.atom.values,), acc.element_type)
            for v in range(self.plan.store.atom.values):
                value = self.values.element(scaled, vAcc[v, i], {}, acc.element_type)
                line[v] = value.to(acc.element_type)
            copy_vector(self.wide, line, own[None, i])
        if self.plan.scheduler.split.reduction == "last":
            self.arrive(thr_mma, mD, sA, acc, tid, work, work_tile)

    @cute.jit
    def arrive(
        self, thr_mma: cutlass.Constexpr, mD: cutlass.Constexpr, sA: cutlass.Constexpr,
        acc: cutlass.Constexpr, tid: Int32, work: cutlass.Constexpr,
        work_tile: cutlass.Constexpr,
    ):  # fmt: skip
        """Increment the tile's semaphore. The CTA that arrives last adds all K splits in their order, and stores D.

        thr_mma, tid      the thread's slice of the tiled MMA, and its index
        mD                D (M, N, L)
        sA                shared memory of A, reused for the semaphore's value
        acc               accumulators of the thread
        work, work_tile   the scheduler of work tiles (tiles of D with a range of K), and the current one
        """
        splits = work_tile.splits
        flag = cute.make_tensor(cute.recast_ptr(sA.iterator, dtype=Int32), cute.make_layout(1))
        cute.arch.sync_threads()
        if tid == 0:
            counter = self.arrivals.iterator + work_tile.tile
            flag[0] = cute.arch.atomic_add(counter, Int32(1), sem="acq_rel", scope="gpu")
        cute.arch.sync_threads()
        if flag[0] == splits - 1:
            vAcc = self.by_vectors(acc)
            acc.fill(0.0)
            for k_split in cutlass.range(splits, unroll=1):
                self.add(vAcc, self.partials_at(tid, self.slot_of(work, work_tile, k_split)))
            self.store_d(thr_mma, mD, None, acc, self.plan.epilogue.tail, work.tile_mnl(work_tile), tid)

    def add(self, vAcc, theirs) -> None:
        """Add the accumulators of another K split, in the workspace, to those in registers.

        vAcc     registers (elements of a vector, vectors)
        theirs   accumulators in the workspace, with the same shape
        """
        vectors = [vAcc[None, i] for i in range(cute.size(vAcc, mode=[1]))]
        self.add_each(vectors, [theirs[None, i] for i in range(len(vectors))], _ADDED_BY_LAST)

    @cute.kernel
    def add_kernel(
        self,
        k: Int32,
        operands: tuple,
        mD: cute.Tensor,
        accumulators: cute.Tensor,
        scalars: tuple,
        tiles: tuple,
    ):
        """Add the accumulators of all K splits, in their order, and store D. Device code of the kernel after the GEMM.

        Each thread handles one vector of D.

        k                   extent K
        operands, scalars   operands of the steps of the epilogue that follow the leading scalings
        mD                  D (M, N, L)
        accumulators        workspace of the K splits' accumulators
        tiles               values of the host that CTAs use to find their tiles
        """
        begin(self.launches[SUMS])
        self.accumulators, self.of_host = accumulators, tiles
        self.values = Values.of(self.plan, operands, scalars, self.plan.epilogue.tail)
        tid, _, _ = cute.arch.thread_idx()
        tile, which, _ = cute.arch.block_idx()
        total = cute.make_rmem_tensor((self.plan.store.atom.values,), accumulators.element_type)
        total.fill(0.0)
        work = self.tiles(mD).along(k)
        peers = work.peers(tile)
        if cutlass.const_expr(self.plan.scheduler.split.waves == 0):
            slots = [self.slot_of(work, peers, k_split) for k_split in range(peers.splits)]
            self.add_vectors(total, slots, tid, which)
            self.finish(mD, total, work, peers, tid, which)
        else:
            if tile < work.shared and peers.splits > 1:
                for k_split in cutlass.range(peers.splits, unroll=4):
                    self.add_vectors(total, [self.slot_of(work, peers, k_split)], tid, which)
                self.finish(mD, total, work, peers, tid, which)

    def add_vectors(self, total, slots, tid, which) -> None:
        """Add one vector of a thread from each of several K splits in the workspace to the registers `total`.

        slots   indices of the K splits' buffers in the workspace
        tid     index of the thread
        which   index of the thread's vector in a buffer
        """
        theirs = [self.partials_at(tid, slot)[None, which] for slot in slots]
        self.add_each([total] * len(slots), theirs, _ADDED_AT_ONCE)

    def add_each(self, totals, lines, at_once: int) -> None:
        """Add vectors in the workspace to vectors of registers, pair by pair.

        totals    register vectors; the same one may occur several times
        lines     vectors in the workspace, one for each of `totals`
        at_once   number of accumulators that are read before they are added
        """
        vector = self.plan.store.atom.values
        step = max(1, at_once // vector)
        for first in range(0, len(lines), step):
            group = range(first, min(first + step, len(lines)))
            held = [cute.make_rmem_tensor((vector,), totals[0].element_type) for _ in group]
            for i, line in zip(group, held, strict=True):
                copy_vector(self.wide, lines[i], line)
            for i, line in zip(group, held, strict=True):
                for v in range(vector):
                    totals[i][v] = totals[i][v] + line[v]

    def finish(self, mD, total, work: WorkGrid, work_tile: WorkTile, tid, which) -> None:
        """Apply the rest of the epilogue to one vector of accumulators summed over all of K, and store it to D.

        The leading scalings have been applied to each K split.

        mD                D (M, N, L)
        total             the sums
        work, work_tile   the scheduler of work tiles (tiles of D with a range of K), and the current one
        tid               index of the thread
        which             index of the vector among those of the thread
        """
        thr_mma = lower.tiled_mma(self.plan.tiled_mma).get_slice(tid)
        of_total = self.plan.epilogue.tail
        self.store_d(thr_mma, mD, None, total, of_total, work.tile_mnl(work_tile), tid, which)

    def slot_of(self, work: WorkGrid, work_tile: WorkTile, k_split):
        """Return the index of a K split's buffer in the workspace.

        It has 64 bits if the grid has a row for each K split, because the indices of such plans may exceed 32 bits.

        work, work_tile   the scheduler of work tiles (tiles of D with a range of K), and the current one
        k_split           index of the K split in its tile
        """
        return work.slot_of(work_tile, Int64(k_split) if work.splits_are_rows else k_split)

    def partials_at(self, tid, slot) -> cute.Tensor:
        """View a thread's accumulators of one K split in the workspace: (elements of a vector, vectors).

        tid    index of the thread
        slot   index of the K split's buffer in the workspace
        """
        layout = partials_layout(self.plan, 1)
        vector, by_thread, by_vector, by_slot = layout.stride
        first = cute.assume(Int64(slot) * by_slot + tid * by_thread, divby=layout.shape[0])
        shape = (layout.shape[0], layout.shape[2])
        return cute.make_tensor(self.accumulators.iterator + first, cute.make_layout(shape, stride=(vector, by_vector)))

    @property
    def wide(self) -> CopyAtom:
        """Return the copy atom for the widest access to a vector of accumulators in the workspace."""
        acc = self.plan.operands.acc
        return universal_copy(acc, acc.bits * min(self.plan.store.atom.values, 128 // acc.bits))
