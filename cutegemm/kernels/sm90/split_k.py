"""Reduction of K splits: consumers write accumulators to the workspace, and the last consumer of a tile adds them.

| a consumer with one K split of a tile                    | the consumer that increments the semaphore last      |
|----------------------------------------------------------|------------------------------------------------------|
| adds 1 to the semaphore of the tile                      | adds 1 to the semaphore                              |
| writes accumulators to the workspace, 16 bytes at a time | keeps its own accumulators in registers              |
| adds 1 << 16 to the semaphore: they are written          | waits until all others are written                   |
| continues with its next tile                             | adds all K splits in their order, its own included   |
|                                                          | resets the semaphore to 0, and stores the tile       |

The order of the additions is that of the k-tiles, whichever K split ends last, so the result is deterministic. The
last consumer waits only for writes that are already in progress and wait for nothing. So the scheme is free of
deadlock, however few CTAs run at once. There is one semaphore for the rows of each consumer. Its 128 threads meet at a
named barrier, so that the release by one thread covers the writes of all, and the acquire by one thread the reads of
all (PTX ISA, memory consistency model, causality order).
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32, Int64

from cutegemm.kernels.sm90.accumulator_vectors import AccumulatorVectors
from cutegemm.kernels.vectors import copy_vector
from cutegemm.plan.memory.workspace import counter_of, slot_layout
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.reduction import ACCUMULATOR_VECTOR
from cutegemm.plan.work.division import WorkTile
from cutegemm.plan.work.work import Work

_WRITTEN = 1 << 16  # added to a semaphore for each K split in the workspace; each increment in the low half adds 1


class Parts(AccumulatorVectors):
    """Adds the accumulators of K splits through a workspace in global memory, in a Hopper kernel (stream-K or split-K).

    Several CTAs compute the same tile of D, each with other k-tiles. A semaphore shows which of them ends last. All
    others write their accumulators to the workspace; the last one adds them and stores D.

    Methods without a decorator such as @cute.jit are plain Python that runs while the DSL traces the kernel.

    arrivals       semaphores of all tiles, in global memory
    accumulators   workspace of accumulators, in global memory
    semaphores     shared memory, one entry for each consumer (warpgroup): it passes the semaphore's old value to all of
                   its threads
    """

    def __init__(
        self, plan: GemmPlan, arrivals: cute.Tensor, accumulators: cute.Tensor, semaphores: cute.Tensor
    ) -> None:
        super().__init__(plan)
        self.arrivals, self.accumulators, self.semaphores = arrivals, accumulators, semaphores

    def counter(self, tile: WorkTile, rank, consumer) -> cute.Pointer:
        """Return a pointer to the semaphore that counts the finished K splits of a tile, for one consumer's rows of it.

        tile       the work tile
        rank       rank of the CTA in its cluster
        consumer   index of the consumer in the CTA
        """
        return self.arrivals.iterator + counter_of(self.plan, tile.tile, rank, self.own(consumer))

    def own(self, consumer):
        """Return the index of a consumer among the consumers that compute one tile together; 0 if it is alone.

        consumer   index of the consumer in the CTA
        """
        return consumer if self.plan.body.readers > 1 else Int32(0)

    @cute.jit
    def increment_semaphore(self, tile: cutlass.Constexpr, rank: Int32, consumer: Int32, tid: Int32):
        """Increment the semaphore of a tile, and return its previous value: how many K splits were finished before.

        Only the first thread of a consumer increments. Other threads, and all threads if the tile is not split, return
        0. The result arrives while the last MMAs run.

        tile       the work tile
        rank       rank of the CTA in its cluster
        consumer   index of the consumer in the CTA
        tid        index of the thread in the consumer
        """
        found = Int32(0)
        if tile.splits > 1 and tid == 0:
            counter = self.counter(tile, rank, consumer)
            found = cute.arch.atomic_add(counter, Int32(1), sem="relaxed", scope="gpu")
        return found

    @cute.jit
    def add_up(
        self,
        acc: cutlass.Constexpr,
        work: cutlass.Constexpr,
        tile: cutlass.Constexpr,
        found: Int32,
        rank: Int32,
        consumer: Int32,
        tid: Int32,
    ):
        """Write the accumulators to the workspace, or add all K splits if this consumer incremented the semaphore last.

        All threads of a consumer call it.

        acc             accumulators of the thread
        work, tile      the scheduler of work tiles (tiles of D with a range of K), and the current work tile
        found           value that `increment_semaphore` returned
        rank            rank of the CTA in its cluster
        consumer, tid   index of the consumer in the CTA, and of the thread in the consumer
        returns         whether `acc` now has the sums of all K splits, and the consumer has to store the tile
        """
        stores = Boolean(tile.splits == 1)
        if tile.splits > 1:
            own, counter = self.own(consumer), self.counter(tile, rank, consumer)
            if tid == 0:
                self.keep(consumer, found & (_WRITTEN - 1))
            self.meet(consumer)
            stores = self.semaphores[consumer] == tile.splits - 1
            if stores:
                if tid == 0:
                    written = Int32(0)
                    while written < tile.splits - 1:
                        written = cute.arch.load(counter, Int32, sem="acquire", scope="gpu") // _WRITTEN
                    cute.arch.store(counter, Int32(0), sem="relaxed", scope="gpu")
                self.meet(consumer)
                self.add(acc, work, tile, rank, own, tid)
            else:
                self.write(acc, self.place(work.slot_of(tile, tile.k_split), rank, own, tid))
                self.meet(consumer)
                if tid == 0:
                    cute.arch.red(counter, Int32(_WRITTEN), op="add", dtype="s32", sem="release", scope="gpu")
        return stores

    def keep(self, consumer, semaphore) -> None:
        """Write the value of a tile's semaphore to shared memory, where all threads of a consumer can read it.

        consumer    index of the consumer in the CTA
        semaphore   the value, known to one thread
        """
        self.semaphores[consumer] = semaphore

    def meet(self, consumer) -> None:
        """Let all threads of a consumer wait for each other at a named barrier.

        consumer   index of the consumer in the CTA
        """
        barrier = self.plan.barrier("splits")
        cute.arch.barrier(barrier_id=self.plan.barrier_id("splits") + consumer, number_of_threads=barrier.arrivals)

    def place(self, slot, rank, own, tid) -> cute.Tensor:
        """View a thread's accumulators in the workspace: (elements of a vector, vectors).

        slot   index of the K split's buffer in the workspace
        rank   rank of the CTA in its cluster
        own    index of the consumer among the consumers that share the tile
        tid    index of the thread in the consumer
        """
        layout = slot_layout(self.plan, 1)
        vector, by_thread, by_vector, by_consumer, by_cta, by_slot = layout.stride
        first = Int64(slot) * by_slot + (rank * by_cta + own * by_consumer + tid * by_thread)
        pointer = self.accumulators.iterator + cute.assume(first, divby=ACCUMULATOR_VECTOR)
        shape = (layout.shape[0], layout.shape[2])
        return cute.make_tensor(pointer, cute.make_layout(shape, stride=(vector, by_vector)))

    def write(self, acc, place) -> None:
        """Write a thread's accumulators to the workspace.

        acc     the accumulators
        place   the thread's section of a buffer of the workspace: (elements of a vector, vectors)
        """
        accumulators = self.by_vectors(acc)
        for i in range(cute.size(accumulators, mode=[1])):
            copy_vector(self.wide, accumulators[None, i], place[None, i])

    def add(self, acc, work: Work, tile: WorkTile, rank, own, tid) -> None:
        """Set `acc` to the sum of the accumulators of all K splits, added in the order of the K splits.

        The accumulators of the other K splits are read from the workspace. The sum of the earlier K splits is computed
        first, and `acc` is added to it; then each later one is added. The order is fixed, so the result does not depend
        on which CTA ends last. The loads of a group of `plan.vectors_at_once` vectors are in flight together. The group
        has twice as many vectors if the sum of earlier K splits needs no registers of its own.

        acc          accumulators of the thread, of its own K split
        work, tile   the scheduler of work tiles (tiles of D with a range of K), and the current work tile
        rank         rank of the CTA in its cluster
        own          index of the consumer among the consumers that share the tile
        tid          index of the thread in the consumer
        """
        accumulators, at_once = self.by_vectors(acc), self.plan.vectors_at_once
        count = cute.size(accumulators, mode=[1])
        for before, group in ((True, at_once), (False, 2 * at_once)):
            for first in range(0, count, group):
                end = min(first + group, count)
                self.add_group(accumulators, (first, end), before, work, tile, rank, own, tid)

    @cute.jit
    def add_group(
        self,
        accumulators: cutlass.Constexpr,
        vectors: cutlass.Constexpr,
        before: cutlass.Constexpr,
        work: cutlass.Constexpr,
        tile: cutlass.Constexpr,
        rank: Int32,
        own: Int32,
        tid: Int32,
    ):
        """Add one group of accumulator vectors of other K splits, from the workspace, to a thread's accumulators.

        accumulators   registers that the vectors are added to
        vectors        (first, end): the vectors [first, end) of the thread
        before         True: add the K splits before this one; False: those after it
        work, tile     the scheduler of work tiles (tiles of D with a range of K), and the current work tile
        rank           rank of the CTA in its cluster
        own            index of the consumer among the consumers that share the tile
        tid            index of the thread in the consumer
        """
        first, end = vectors
        mine = cute.make_tensor(
            accumulators.iterator + first * ACCUMULATOR_VECTOR, cute.make_layout((ACCUMULATOR_VECTOR, end - first))
        )
        held = cute.make_rmem_tensor(mine.layout, mine.element_type)
        if cutlass.const_expr(before):
            total = cute.make_rmem_tensor(mine.layout, mine.element_type)
            total.fill(0)
            for k_split in cutlass.range(tile.k_split, unroll=1):
                self.read(held, first, self.place(work.slot_of(tile, k_split), rank, own, tid))
                self.plus(total, held)
            self.plus(mine, total)
        else:
            for k_split in cutlass.range(tile.k_split + 1, tile.splits, unroll=1):
                self.read(held, first, self.place(work.slot_of(tile, k_split), rank, own, tid))
                self.plus(mine, held)
