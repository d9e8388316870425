"""Cluster split-K: the CTAs of a cluster split the k-tiles of a tile and exchange accumulators through shared memory.

Each CTA multiplies the columns of all these CTAs by its own k-tiles, and stores only its own columns.

| consumer that sends accumulators                           | consumer with the same index in each receiving CTA     |
|------------------------------------------------------------|--------------------------------------------------------|
| waits until all CTAs have added its previous accumulators  | announces to its barrier how many bytes will arrive    |
| sends each CTA, itself included, that CTA's columns        | waits until all bytes have arrived                     |
| uses 16-byte st.async, which counts bytes at the barrier   | adds the accumulators in the order of the k-tiles      |
|                                                            | signals all CTAs that its buffer is free               |

A thread sends to the thread with the same index in the other CTA, and both use the same order of registers. So no
thread computes coordinates. Source: PTX ISA, st.async and the complete_tx operation of mbarrier.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Int32
from cutlass.cutlass_dsl import dsl_user_op

from cutegemm.kernels.assembly import assembler
from cutegemm.kernels.sm90.accumulator_vectors import AccumulatorVectors
from cutegemm.kernels.trace import Who
from cutegemm.kernels.values import branch
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.reduction import ACCUMULATOR_VECTOR, exchanged, sent

_WORD_BYTES = 4  # bytes of an accumulator


@dsl_user_op
def send_vector(address: Int32, barrier: Int32, words: tuple, *, loc=None, ip=None) -> None:
    """Write four 32-bit words to the shared memory of a CTA in the cluster (st.async).

    Their 16 bytes count at an mbarrier of that CTA.

    address, barrier   shared::cluster addresses in the target, as `mapa` returns them
    """
    asm = assembler(loc, ip)
    operands = [Int32(value).ir_value(loc=loc, ip=ip) for value in (address, barrier, *words)]
    text = "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [$0], {$2, $3, $4, $5}, [$1];"
    asm(None, operands, text, "r,r,r,r,r,r")


class ClusterSplitK(AccumulatorVectors):
    """Exchanges accumulators between the CTAs of a cluster that split K: each CTA sums some columns of the tile.

    Methods without a decorator such as @cute.jit are plain Python that runs while the DSL traces the kernel.

    base       shared-memory buffer of the accumulators that this CTA receives
    arrived    mbarriers, one for each consumer: the accumulators of all CTAs have arrived
    consumed   mbarriers, one for each consumer: all CTAs have added what this consumer sent
    """

    def __init__(self, plan: GemmPlan, base: cute.Pointer, arrived: cute.Pointer, consumed: cute.Pointer) -> None:
        super().__init__(plan)
        self.layout, self.base, self.arrived, self.consumed = exchanged(plan), base, arrived, consumed

    def place(self, part, who: Who) -> cute.Tensor:
        """View the accumulators that this thread receives from one CTA: (elements of a vector, vectors).

        part   index of the sending CTA among the CTAs that split K
        who    thread, warp and CTA of the consumer
        """
        vector, by_thread, by_vector, by_cta, by_consumer = self.layout.stride
        first = who.consumer * by_consumer + who.tid * by_thread + part * by_cta
        pointer = self.base + cute.assume(first, divby=ACCUMULATOR_VECTOR)
        shape = (self.layout.shape[0], self.layout.shape[2])
        return cute.make_tensor(pointer, cute.make_layout(shape, stride=(vector, by_vector)))

    def ranks(self, who: Who):
        """Return (index of this CTA among the CTAs that split K, rank in the cluster of the first of these CTAs).

        who   thread, warp and CTA of the consumer
        """
        m_rank, part = self.plan.cluster_tile.rank_mn(who.rank)
        return part, m_rank

    @cute.jit
    def send(self, accumulators: cutlass.Constexpr, k_count: Int32, phase: Int32, who: cutlass.Constexpr):
        """Send to each CTA that splits K the accumulators of the columns that it will store.

        All threads of a consumer call it.

        accumulators   the thread's accumulators, of all columns
        k_count        number of k-tiles of this CTA; if it is 0, zeros are sent
        phase          parity of the phase of this consumer's mbarriers
        who            thread, warp and CTA of the consumer
        """
        if k_count == 0:
            branch()  # without it the compiler emits a select for each accumulator of every tile
            accumulators.fill(0)
        self.await_spent(phase, who)
        if who.tid == 0:
            size_bytes = self.plan.barrier("accumulators").transaction_bytes
            cute.arch.mbarrier_arrive_and_expect_tx(self.arrived + who.consumer, size_bytes)
        part, first = self.ranks(who)
        place, words = self.place(part, who), cute.recast_tensor(accumulators, Int32)
        registers, step_bytes = sent(self.plan), self.layout.stride[2] * _WORD_BYTES
        for to in cutlass.range_constexpr(self.plan.cluster_k):
            rank = first + to * self.plan.cluster_mn[0]
            address = cute.arch.map_dsmem_ptr(place.iterator, rank).toint()
            barrier = cute.arch.map_dsmem_ptr(self.arrived + who.consumer, rank).toint()
            for j in cutlass.range_constexpr(self.layout.shape[2]):
                vector = tuple([words[registers(i, j, to)] for i in range(ACCUMULATOR_VECTOR)])
                send_vector(address + j * step_bytes, barrier, vector)

    @cute.jit
    def add(self, total: cutlass.Constexpr, phase: Int32, who: cutlass.Constexpr):
        """Set `total` to the sum of the accumulators that all CTAs have sent for the columns that this CTA stores.

        All threads of a consumer call it. It waits for the accumulators, and at the end arrives at the `consumed`
        mbarrier of each CTA that sent some.

        phase   parity of the phase of this consumer's mbarriers
        who     thread, warp and CTA of the consumer
        """
        cute.arch.mbarrier_wait(self.arrived + who.consumer, phase)
        accumulators = self.by_vectors(total)
        held = cute.make_rmem_tensor(accumulators.layout, accumulators.element_type)
        for part in cutlass.range_constexpr(self.plan.cluster_k):
            self.read(held if part else accumulators, 0, self.place(part, who))
            if cutlass.const_expr(part > 0):
                self.plus(accumulators, held)
        cute.arch.sync_warp()
        if who.lane < self.plan.cluster_k:
            _, first = self.ranks(who)
            peer = first + who.lane * self.plan.cluster_mn[0]
            cute.arch.mbarrier_arrive(self.consumed + who.consumer, peer)

    def await_spent(self, phase, who: Who) -> None:
        """Wait until all CTAs have added the accumulators that this consumer sent them for its previous tile.

        Only then may it send new ones to the same buffers.

        phase   parity of the phase of this consumer's mbarriers
        who     thread, warp and CTA of the consumer
        """
        cute.arch.mbarrier_wait(self.consumed + who.consumer, phase ^ 1)
