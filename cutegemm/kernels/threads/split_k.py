"""Tiles of D that CTAs share: each one's sums go to the workspace, and there they are added.

| reduction | launches                                                                                       |
|-----------|------------------------------------------------------------------------------------------------|
| "kernel"  | the GEMM, whose CTAs write the sums of their parts; `add_kernel`, which adds them to D         |
| "last"    | the GEMM alone: in each tile the CTA that arrives last adds the sums and writes D              |

The grid is (tiles, parts); or that of a persistent plan, whose CTAs take one work tile after the other, and write D
at once where it is all of its tile; a kernel adds the sums of the others. Which work tiles there are, and which slot of
the workspace a part has, says `plan.scheduler`; where the sums of a part lie in its slot, `partials_layout`.

Arrival of a part: every thread has written its sums; barrier; one thread adds 1 to the tile's counter, acquire and
release; barrier; the CTA that finds `splits` - 1 in it sees what all others wrote before they arrived. (Causality
order of the PTX memory model: what a barrier orders before a release, that releases too, and what it orders after an
acquire has acquired.) No CTA waits for another, so that it does not matter which of them run at a time.

From sm_90 on `add_kernel` is launched while the CTAs of the GEMM write their sums, and waits for all of them to have
ended before it reads (programmatic dependent launch): its own launch is then over.

What is written has been scaled, where the epilogue scales sums. Were it the sums as they are, a vector of them would
have to lie in neighbouring registers from the first product on, and then the three operands of a multiply-add meet in
one of the two banks of the register file: the mainloop took up to a sixth longer (H200, 2048 cubed, 2026-11-20).
"""

from __future__ import annotations

import functools
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import T, dsl_user_op

from cutegemm.kernels import lower
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

_ADDED_AT_ONCE = 128  # sums of parts that a thread of `add_kernel` has under way: one latency of L2 for up to 32 parts
_ADDED_BY_LAST = 16  # of a thread that holds a tile's sums besides


@dsl_user_op
def opaque(value: Int32, *, loc=None, ip=None) -> Int32:
    """The same value, of which the compiler does not know that it is: what follows from it is worked out here."""
    asm = functools.partial(llvm.inline_asm, has_side_effects=True, is_align_stack=False, loc=loc, ip=ip)
    operands = [Int32(value).ir_value(loc=loc, ip=ip)]
    return Int32(asm(T.i32(), operands, "mov.b32 $0, $1;", "=r,r", asm_dialect=llvm.AsmDialect.AD_ATT))


class SplitKGemm(ScheduledGemm):
    """The kernels of a plan that may share tiles. What they work on is known while they are traced."""

    accumulators: Any = None
    arrivals: Any = None
    at_hand: WorkTile | None = None  # of a CTA of a persistent grid
    current: Any = None  # works it out

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
        """A part of a tile, or all of it; of a persistent plan the work tiles of a CTA, one after the other."""
        wait(self.launches[GEMM])
        if cutlass.const_expr(SUMS not in self.launches):
            release(self.launches[GEMM])
        self.accumulators, self.arrivals, self.of_host = accumulators, arrivals, tiles
        self.values = Values.of(self.plan, operands, scalars)
        if cutlass.const_expr(self.plan.persistent is None):
            self.tile(mA, mB, mD)
        else:
            number, _, _ = cute.arch.block_idx()
            while number < self.tiles(mD).along(opaque(mA.shape[1])).count:
                self.take(number, mA, mB, mD)
                number = self.tiles(mD).along(mA.shape[1]).following(number)

    @cute.jit
    def take(self, number: Int32, mA: cute.Tensor, mB: cute.Tensor, mD: cute.Tensor):
        self.current = lambda: self.tiles(mD).along(opaque(mA.shape[1])).work_tile(number)
        self.at_hand = self.current()
        if self.at_hand.splits > 0:
            cute.arch.sync_threads()  # all have read what they need of the shared memory of the work tile before
            self.tile(mA, mB, mD)

    def tile_number(self, again: bool = False):
        """The tile of the work tile at hand, worked out `again` instead of kept in registers; else that of the CTA."""
        if self.plan.persistent is None:
            return ScheduledGemm.tile_number(self, again)
        if again:
            self.at_hand = self.current()
        return self.at_hand.tile

    def work_tile(self, work: WorkGrid, tile) -> WorkTile:
        """The part of this CTA."""
        if self.plan.persistent is not None:
            return self.at_hand
        if self.plan.split_k == 1:
            return work.whole(tile)
        return work.split_of(tile, cute.arch.block_idx()[1])

    def end(self, thr_mma, mD, sA, sD, acc, tid, work: WorkGrid, tile) -> None:
        """The sums of all of K to D, those of a part to the workspace."""
        if self.plan.persistent is not None:
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
        if work_tile.splits == 1:
            ScheduledGemm.end(self, thr_mma, mD, sA, None, acc, tid, work, work_tile.tile)
        else:
            self.pass_order(thr_mma, mD, sA, acc, tid, work, work_tile)

    def pass_order(self, thr_mma, mD, sA, acc, tid, work: WorkGrid, work_tile: WorkTile) -> None:
        """The sums of a part to the workspace, from which the last one takes them all."""
        if SUMS in self.launches:
            release(self.launches[GEMM])
        scaled = self.plan.epilogue.head.expression
        vAcc, own = self.by_vectors(acc), self.partials_at(tid, self.slot_of(work, work_tile, work_tile.k_split))
        for i in range(cute.size(vAcc, mode=[1])):
            line = cute.make_rmem_tensor((self.plan.store_d.values,), acc.element_type)
            for v in range(self.plan.store_d.values):
                value = self.values.element(scaled, vAcc[v, i], {}, acc.element_type)
                line[v] = value.to(acc.element_type)
            copy_vector(self.wide, line, own[None, i])
        if self.plan.split.reduction == "last":
            self.arrive(thr_mma, mD, sA, acc, tid, work, work_tile)

    @cute.jit
    def arrive(
        self, thr_mma: cutlass.Constexpr, mD: cutlass.Constexpr, sA: cutlass.Constexpr,
        acc: cutlass.Constexpr, tid: Int32, work: cutlass.Constexpr,
        work_tile: cutlass.Constexpr,
    ):  # fmt: skip
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
        """A part's sums (vector, vectors) to those that are there."""
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
        """One vector of each thread of a tile: the parts' sums, in their order, then D.

        operands, scalars   that become D together with the total of the parts' sums
        """
        begin(self.launches[SUMS])
        self.accumulators, self.of_host = accumulators, tiles
        self.values = Values.of(self.plan, operands, scalars, self.plan.epilogue.tail)
        tid, _, _ = cute.arch.thread_idx()
        tile, which, _ = cute.arch.block_idx()
        total = cute.make_rmem_tensor((self.plan.store_d.values,), accumulators.element_type)
        total.fill(0.0)
        work = self.tiles(mD).along(k)
        peers = work.peers(tile)
        if cutlass.const_expr(self.plan.split.waves == 0):
            slots = [self.slot_of(work, peers, k_split) for k_split in range(peers.splits)]
            self.add_vectors(total, slots, tid, which)
            self.finish(mD, total, work, peers, tid, which)
        else:
            if tile < work.shared and peers.splits > 1:
                for k_split in cutlass.range(peers.splits, unroll=4):
                    self.add_vectors(total, [self.slot_of(work, peers, k_split)], tid, which)
                self.finish(mD, total, work, peers, tid, which)

    def add_vectors(self, total, slots, tid, which) -> None:
        """One vector of a thread from each of some slots, several read before they are added."""
        theirs = [self.partials_at(tid, slot)[None, which] for slot in slots]
        self.add_each([total] * len(slots), theirs, _ADDED_AT_ONCE)

    def add_each(self, totals, lines, at_once: int) -> None:
        """Vectors in the workspace to vectors of registers, so many of their sums read before they are added."""
        vector = self.plan.store_d.values
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
        """A vector of D from the sums of all of K."""
        thr_mma = lower.tiled_mma(self.plan.tiled_mma).get_slice(tid)
        of_total = self.plan.epilogue.tail
        self.store_d(thr_mma, mD, None, total, of_total, work.tile_mnl(work_tile), tid, which)

    def slot_of(self, work: WorkGrid, work_tile: WorkTile, k_split):
        """The slot of a part in the workspace; where tiles have a row of the grid for each, 32 bits may be too few."""
        return work.slot_of(work_tile, Int64(k_split) if work.scheduler.splits_are_rows else k_split)

    def partials_at(self, tid, slot) -> cute.Tensor:
        """A thread's sums in a slot: (vector, vectors)."""
        layout = partials_layout(self.plan, 1)
        vector, by_thread, by_vector, by_slot = layout.stride
        first = cute.assume(Int64(slot) * by_slot + tid * by_thread, divby=layout.shape[0])
        shape = (layout.shape[0], layout.shape[2])
        return cute.make_tensor(self.accumulators.iterator + first, cute.make_layout(shape, stride=(vector, by_vector)))

    @property
    def wide(self) -> CopyAtom:
        """The widest access to a vector of sums."""
        acc = self.plan.operands.acc
        return universal_copy(acc, acc.bits * min(self.plan.store_d.values, 128 // acc.bits))
