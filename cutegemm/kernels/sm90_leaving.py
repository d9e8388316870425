"""C and D as a Hopper consumer sees them: its tile of each, and what its threads hold of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from cutegemm.kernels import lower
from cutegemm.plan.plan import GemmPlan


@dataclass
class Leaving:
    """C and D in global memory, and the slots. mC and mD are coordinates where TMA moves them, else tensors.

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


class PartOfConsumer:
    """The consumer's tile of a plan. Methods without a decorator are plain Python, run while tracing."""

    def __init__(self, plan: GemmPlan) -> None:
        assert plan.pipeline is not None
        self.plan, self.tile = plan, plan.pipeline.consumer_tile
        c = plan.operands.c
        self.c_values = 2 if c.major == "n" and c.align_elems >= 2 else 1  # of a row, that lie together

    def own_tile(self, mX, own_mnl):
        """The consumer's part of C or of D."""
        m_tile, n_tile, batch = own_mnl
        return cute.local_tile(mX[None, None, batch], self.tile, (m_tile, n_tile))

    def add_scaled(self, leaving: Leaving, sums, held) -> None:
        """sums += beta * held."""
        for i in range(cute.size(sums)):
            sums[i] = sums[i] + (leaving.beta * held[i].to(Float32)).to(sums.element_type)

    @cute.jit
    def add_c_straight(
        self, leaving: cutlass.Constexpr, sums: cutlass.Constexpr, i: cutlass.Constexpr, own_mnl, tid: Int32
    ):
        """sums += beta * C for the i-th subtile, from global memory: all of a thread's loads, then the sums."""
        if leaving.beta != 0.0:
            vC, vcC, vSums = self.by_vectors(self.c_values, own_mnl, tid, leaving.mC, None, sums=sums)
            held = cute.make_rmem_tensor(vSums.shape, leaving.mC.element_type)
            held.fill(0)
            first, count = i * cute.size(vSums, mode=[1]), cute.size(vSums, mode=[1])
            for j in cutlass.range_constexpr(count):
                self.read_inside(vC[None, first + j], held[None, j], vcC[0, first + j], leaving.mC.shape[:2])
            self.add_scaled(leaving, vSums, held)

    @cute.jit
    def read_inside(self, gC, held: cutlass.Constexpr, at, extents: cutlass.Constexpr):
        """Neighbours of a row of C, where the first is inside: so are the others then."""
        if cute.elem_less(at, extents):
            self.read_c(gC, held)

    def read_c(self, gC, held) -> None:
        """Neighbours of a row of C, in as few accesses as it allows."""
        bits = gC.element_type.width * min(self.c_values, cute.size(gC))
        atom = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), gC.element_type, num_bits_per_copy=bits)
        cute.copy(atom, cute.coalesce(gC), held)

    def by_vectors(self, vector: int, own_mnl, tid, *tensors, sums=None):
        """A thread's part of each tensor's tile as (vector, vectors); of coordinates for None, and of `sums`."""
        m_tile, n_tile, _ = own_mnl
        own = lower.consumer_mma(self.plan.tiled_mma).get_slice(tid)
        extents = next(tensor for tensor in tensors if tensor is not None).shape[:2]
        coords = cute.local_tile(cute.make_identity_tensor(extents), self.tile, (m_tile, n_tile))
        tiles = [coords if tensor is None else self.own_tile(tensor, own_mnl) for tensor in tensors]
        parts = [cute.group_modes(own.partition_C(tile), 0, 3) for tile in tiles]
        flat = sums if cute.rank(sums) == 1 else cute.group_modes(sums, 0, 3)
        return [cute.zipped_divide(part, (vector,)) for part in (*parts, flat)]
