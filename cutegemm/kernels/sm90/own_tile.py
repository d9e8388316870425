"""The tile of C and D that a Hopper consumer computes, and the elements that its threads hold."""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

from cutegemm.kernels import lower
from cutegemm.kernels.sm90.groups import extents_of, matrix_of
from cutegemm.kernels.vectors import by_vectors, copy_vector
from cutegemm.plan.plan import GemmPlan
from cutegemm.tile.copy_atoms import universal_copy


class OwnTile:
    """Gives a consumer's threads their views of C and D: the elements of the tile that the consumer computes.

    A consumer is a warpgroup, or a warp, that multiplies. Methods without a decorator such as @cute.jit are plain
    Python that runs while the DSL traces the kernel.
    """

    def __init__(self, plan: GemmPlan) -> None:
        self.plan, self.tile = plan, plan.consumer_d_tile
        self.work_tile: Any = None

    def begin(self, work_tile) -> None:
        """Set the work tile whose results are stored next. If its group has rows of its own, D ends with them."""
        self.work_tile, self.extents = work_tile, extents_of(self.plan, self.extents, work_tile)

    def gate_and_up(self, accumulators):
        """Separate a thread's accumulators of a gated epilogue into gate accumulators and up accumulators, as a pair.

        Both have the layout of D's tile.
        """
        (of_atom, down, across), half = accumulators.shape, self.plan.consumer_d_tile[1]
        if self.plan.consumer_warps == 1:
            layout = cute.make_layout((of_atom, down, across // 2))
            return tuple([cute.make_tensor(accumulators.iterator + first, layout) for first in (0, cute.size(layout))])
        pairs, rows, columns = of_atom
        of_row = cute.size(of_atom) // 2
        layout = cute.make_layout(((pairs, rows, columns // 2), down, across), stride=((1, 2, 4), 2 * of_row, 0))
        assert 8 * (columns // 2) == half
        return tuple([cute.make_tensor(accumulators.iterator + first, layout) for first in (0, of_row)])

    def own_tile(self, mX, own_mnl):
        """Return the tile of C or D that this consumer computes, as a view.

        mX        C or D (M, N, L)
        own_mnl   (m_tile, n_tile, batch): indices of the consumer's tile in the grid of consumer tiles
        """
        return self.split_of(matrix_of(self.plan, mX, own_mnl[2], self.work_tile), own_mnl)

    def split_of(self, matrix, own_mnl):
        """Return the tile of a matrix that this consumer computes, as a view.

        The columns of a consumer may be several pieces of the CTA's tile; the view concatenates the pieces.

        matrix    (M, N)
        own_mnl   (m_tile, n_tile, batch): indices of the consumer's tile in the grid of consumer tiles
        """
        m_tile, n_tile, _ = own_mnl
        (rows, columns), piece = self.tile, self.plan.piece_n
        if self.plan.operands.gated or piece == self.plan.consumer_tile[1]:
            return cute.local_tile(matrix, self.tile, (m_tile, n_tile))
        bN = self.plan.d_tile[1]
        across = bN // columns
        whole = cute.local_tile(matrix, (rows, bN), (m_tile, n_tile // across))
        pieces = cute.logical_divide(whole, (None, cute.make_layout((piece, across))))
        return cute.group_modes(pieces[None, ((None, n_tile % across), None)], 1, 3)

    @cute.jit
    def copy_inside(
        self,
        name: cutlass.Constexpr,
        source,
        target,
        at,
        extents: cutlass.Constexpr,
        modes: cutlass.Constexpr,
    ):
        """Copy neighbouring elements of a row between registers and global memory, if the first of them is inside of D.

        The plan's alignment ensures that the others are then inside as well.

        name             operand or result of the epilogue
        source, target   registers and global memory, in either order
        at               (m, n) of the first element in D
        extents          (M, N) of D
        modes            modes of D along which the element may be outside; empty: no test
        """
        if cutlass.const_expr(not modes):
            self.copy(name, source, target)
        elif cutlass.const_expr(len(modes) == 2):
            if cute.elem_less(at, extents):
                self.copy(name, source, target)
        else:
            if at[modes[0]] < extents[modes[0]]:
                self.copy(name, source, target)

    def copy(self, name: str, source, target) -> None:
        """Copy neighbouring elements of a row between registers and global memory, in the widest aligned accesses.

        name             operand or result of the epilogue, whose alignment the plan knows
        source, target   registers and global memory, in either order
        """
        access = self.plan.access(name)
        bits = min(access.bits, access.dtype.bits * cute.size(source))
        copy_vector(universal_copy(access.dtype, bits), source, target)

    def by_vectors(self, vector: int, own_mnl, tid, *tensors, accumulators, extents):
        """Return a thread's elements of several tensors, and its accumulators, each as (elements of a vector, vectors).

        All results have one order, so that element i of each belongs to one element of D.

        vector         elements of a vector
        own_mnl        (m_tile, n_tile, batch): indices of the consumer's tile in the grid of consumer tiles
        tid            index of the thread in the consumer
        tensors        matrices (M, N, L); for None, the coordinates (m, n) of the elements are returned
        accumulators   the thread's accumulators, returned last
        extents        (M, N) of D
        """
        own = lower.tiled_mma(self.plan.consumer_d_mma).get_slice(tid)
        coords = self.split_of(cute.make_identity_tensor(extents), own_mnl)
        tiles = [coords if tensor is None else self.own_tile(tensor, own_mnl) for tensor in tensors]
        parts = [self.in_order(own.partition_C(tile)) for tile in tiles]
        flat = accumulators if cute.rank(accumulators) == 1 else self.in_order(accumulators)
        return [by_vectors(part, (vector,)) for part in (*parts, flat)]

    def in_order(self, part):
        """View accumulators (MMA, MMA_M, MMA_N) as a single mode, in the order of their stores to D.

        part   the accumulators of a thread, or a tensor of their shape
        """
        if not self.plan.store.epi_tile_count(self.plan) or self.plan.consumer_warps > 1:
            return cute.group_modes(part, 0, 3)
        m, n = self.plan.store.atoms_at_once(self.plan)
        split = cute.logical_divide(part, (None, cute.make_layout(m), cute.make_layout(n))).layout
        modes = ((0,), (1, 0), (2, 0), (2, 1), (1, 1))
        ordered = cute.make_layout(
            tuple([cute.get(split, list(at)).shape for at in modes]),
            stride=tuple([cute.get(split, list(at)).stride for at in modes]),
        )
        return cute.group_modes(cute.make_tensor(part.iterator, ordered), 0, len(modes))
