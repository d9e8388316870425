"""The sums of the parts of a tile, where K is split: to the workspace, and into the consumer that ends last.

| a consumer with the sums of one part of a tile           | and the one that is the last to take a ticket        |
|----------------------------------------------------------|------------------------------------------------------|
| takes a ticket: adds 1 to the tile's counter             | takes a ticket                                       |
| its sums to the workspace, 16 bytes a thread at a time   | keeps its own in registers                           |
| adds 1 << 16 to the counter: they are written            | waits until the others' are written                  |
| goes on with its next tile                               | adds all parts' in their order, its own among them   |
|                                                          | counter to 0, for the next launch; stores the tile   |

A tile's sums are added in the order of its k-tiles whichever part ends last, so that the result is the same every
time. What the last one waits for are writes of consumers that are under way and wait for nobody, so that it does
not matter which CTAs run at a time. The counter is that of a consumer's rows: its 128 threads agree by a barrier,
by which one thread's release on the device covers the writes of all, and its acquire the reads of all (PTX ISA,
memory consistency model, causality order).
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
from cutegemm.plan.work.scheduler import WorkGrid

_WRITTEN = 1 << 16  # in a tile's counter, for each part whose sums are in the workspace; 1 for each ticket


class Parts(AccumulatorVectors):
    """Methods without a decorator are plain Python, run while tracing.

    arrivals       counters in global memory
    accumulators   the workspace
    semaphores     in shared memory, one for each consumer
    """

    def __init__(
        self, plan: GemmPlan, arrivals: cute.Tensor, accumulators: cute.Tensor, semaphores: cute.Tensor
    ) -> None:
        super().__init__(plan)
        self.arrivals, self.accumulators, self.semaphores = arrivals, accumulators, semaphores

    def counter(self, tile: WorkTile, rank, consumer) -> cute.Pointer:
        """The counter of a tile, or of a consumer's rows of it."""
        return self.arrivals.iterator + counter_of(self.plan, tile.tile, rank, self.own(consumer))

    def own(self, consumer):
        """Which of the consumers that share a tile."""
        return consumer if self.plan.body.readers > 1 else Int32(0)

    @cute.jit
    def increment_semaphore(self, tile: cutlass.Constexpr, rank: Int32, consumer: Int32, tid: Int32):
        """The counter as a consumer's first thread finds it; it comes while the last products run."""
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
        """A warpgroup: whether it has the sums of all parts now, and so is to store the tile."""
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
        """For all threads of a consumer."""
        self.semaphores[consumer] = semaphore

    def meet(self, consumer) -> None:
        """All threads of a consumer."""
        barrier = self.plan.barrier("splits")
        cute.arch.barrier(barrier_id=self.plan.barrier_id("splits") + consumer, number_of_threads=barrier.arrivals)

    def place(self, slot, rank, own, tid) -> cute.Tensor:
        """A thread's sums in a slot: (vector, vectors)."""
        layout = slot_layout(self.plan, 1)
        vector, by_thread, by_vector, by_consumer, by_cta, by_slot = layout.stride
        first = Int64(slot) * by_slot + (rank * by_cta + own * by_consumer + tid * by_thread)
        pointer = self.accumulators.iterator + cute.assume(first, divby=ACCUMULATOR_VECTOR)
        shape = (layout.shape[0], layout.shape[2])
        return cute.make_tensor(pointer, cute.make_layout(shape, stride=(vector, by_vector)))

    def write(self, acc, place) -> None:
        """A thread's sums to the workspace."""
        accumulators = self.by_vectors(acc)
        for i in range(cute.size(accumulators, mode=[1])):
            copy_vector(self.wide, accumulators[None, i], place[None, i])

    def add(self, acc, work: WorkGrid, tile: WorkTile, rank, own, tid) -> None:
        """acc = the sums of all parts, added in their order: those before this one together, then this one.

        So many vectors at a time as registers hold, and twice as many where there is no total to hold besides.
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
        """Some vectors of the parts before this one, or of those after it."""
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
