"""C and D as a Hopper consumer sees them: its tile of each, and what its threads hold of it."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute

from cutegemm.kernels import lower
from cutegemm.plan.plan import GemmPlan


class OwnTile:
    """The consumer's tile of a plan. Methods without a decorator are plain Python, run while tracing."""

    def __init__(self, plan: GemmPlan) -> None:
        assert plan.pipeline is not None
        self.plan, self.tile = plan, plan.pipeline.consumer_tile
        c = plan.operands.c
        self.c_values = 2 if c.major == "n" and c.align_elems >= 2 else 1  # of a row, that lie together

    def own_tile(self, mX, own_mnl):
        """The consumer's part of C or of D."""
        return self.part_of(mX[None, None, own_mnl[2]], own_mnl)

    def part_of(self, matrix, own_mnl):
        """The consumer's part of a matrix: a tile, or where its columns do not lie together a piece of it after
        the other; see `GemmPlan.column_of`."""
        m_tile, n_tile, _ = own_mnl
        (rows, columns), piece = self.tile, self.plan.piece_n
        if piece == columns:
            return cute.local_tile(matrix, self.tile, (m_tile, n_tile))
        bN = self.plan.cta_tile[1]
        across = bN // columns
        whole = cute.local_tile(matrix, (rows, bN), (m_tile, n_tile // across))
        pieces = cute.logical_divide(whole, (None, cute.make_layout((piece, across))))
        return cute.group_modes(pieces[None, ((None, n_tile % across), None)], 1, 3)

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
        own = lower.tiled_mma(self.plan.consumer_mma).get_slice(tid)
        extents = next(tensor for tensor in tensors if tensor is not None).shape[:2]
        coords = self.part_of(cute.make_identity_tensor(extents), own_mnl)
        tiles = [coords if tensor is None else self.own_tile(tensor, own_mnl) for tensor in tensors]
        parts = [self.in_order(own.partition_C(tile)) for tile in tiles]
        flat = sums if cute.rank(sums) == 1 else self.in_order(sums)
        return [cute.zipped_divide(part, (vector,)) for part in (*parts, flat)]

    def in_order(self, part):
        """(MMA, MMA_M, MMA_N) as one mode, in the order in which the sums leave."""
        if self.plan.slots is None or self.plan.pipeline.consumer_warps > 1:
            return cute.group_modes(part, 0, 3)
        m, n = self.plan.atoms_at_once
        split = cute.logical_divide(part, (None, cute.make_layout(m), cute.make_layout(n))).layout
        modes = ((0,), (1, 0), (2, 0), (2, 1), (1, 1))
        ordered = cute.make_layout(
            tuple([cute.get(split, list(at)).shape for at in modes]),
            stride=tuple([cute.get(split, list(at)).stride for at in modes]),
        )
        return cute.group_modes(cute.make_tensor(part.iterator, ordered), 0, len(modes))
