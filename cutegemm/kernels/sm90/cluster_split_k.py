"""CTAs of a cluster that share the k-tiles of a tile: each sends its sums to the CTAs that store them, which add them
up in their shared memory.

| a consumer with the sums of its k-tiles                    | the same consumer of each CTA, for its own columns     |
|------------------------------------------------------------|--------------------------------------------------------|
| waits until all have added what it sent them before        | says how many bytes come                               |
| sends each CTA the sums of its columns, itself too:        | waits for all of them                                  |
| 16 bytes of a thread at once, which count at the barrier   | adds them, in the order of the k-tiles                 |
|                                                            | tells all that its place is free                       |

A thread's sums go to the same thread of the other CTA, at the same place from there as its own columns have: so nobody
computes where a sum belongs. Source: PTX ISA, st.async and mbarrier's complete_tx.
"""

from __future__ import annotations

import functools

import cutlass
import cutlass.cute as cute
from cutlass import Int32
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import dsl_user_op

from cutegemm.kernels.sm90.accumulator_vectors import AccumulatorVectors
from cutegemm.kernels.trace import Who
from cutegemm.kernels.values import branch
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.reduction import ACCUMULATOR_VECTOR, exchanged, sent

_WORD_BYTES = 4  # of a sum


@dsl_user_op
def send_vector(address: Int32, barrier: Int32, words: tuple, *, loc=None, ip=None) -> None:
    """Writes four words to the shared memory of a CTA of the cluster, whose barrier counts their bytes.

    address, barrier   that `mapa` gave
    """
    asm = functools.partial(llvm.inline_asm, has_side_effects=True, is_align_stack=False, loc=loc, ip=ip)
    operands = [Int32(value).ir_value(loc=loc, ip=ip) for value in (address, barrier, *words)]
    text = "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [$0], {$2, $3, $4, $5}, [$1];"
    asm(None, operands, text, "r,r,r,r,r,r", asm_dialect=llvm.AsmDialect.AD_ATT)


class ClusterSplitK(AccumulatorVectors):
    """Methods without a decorator are plain Python, run while tracing.

    base                of the sums in shared memory, which lie as `exchanged` says
    arrived, consumed   barriers, one of each for each consumer
    """

    def __init__(self, plan: GemmPlan, base: cute.Pointer, arrived: cute.Pointer, consumed: cute.Pointer) -> None:
        super().__init__(plan)
        self.layout, self.base, self.arrived, self.consumed = exchanged(plan), base, arrived, consumed

    def place(self, part, who: Who) -> cute.Tensor:
        """A thread's sums that come from a CTA: (vector, vectors)."""
        vector, by_thread, by_vector, by_cta, by_consumer = self.layout.stride
        first = who.consumer * by_consumer + who.tid * by_thread + part * by_cta
        pointer = self.base + cute.assume(first, divby=ACCUMULATOR_VECTOR)
        shape = (self.layout.shape[0], self.layout.shape[2])
        return cute.make_tensor(pointer, cute.make_layout(shape, stride=(vector, by_vector)))

    def ranks(self, who: Who):
        """The CTA's number among those that share K, and the rank in the cluster of the first of them."""
        m_rank, part = self.plan.scheduler.rank_mn(who.rank)
        return part, m_rank

    @cute.jit
    def send(self, accumulators: cutlass.Constexpr, k_count: Int32, phase: Int32, who: cutlass.Constexpr):
        """A warpgroup: the sums of each CTA's columns to that CTA.

        phase   of the barriers of this consumer's sums
        """
        if k_count == 0:
            branch()  # or each sum would be selected, of all tiles
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
        """A warpgroup: total = the sums of the own columns that have come from all CTAs."""
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
        """Until all CTAs have added what this consumer sent them before."""
        cute.arch.mbarrier_wait(self.consumed + who.consumer, phase ^ 1)
