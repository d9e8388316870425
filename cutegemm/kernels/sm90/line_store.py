"""Store a consumer's tile of D through epilogue stages by the threads of the consumer, line by line."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from cutegemm.kernels import lower
from cutegemm.kernels.sm90.epi_stage_lines import Lines
from cutegemm.kernels.sm90.groups import matrix_of
from cutegemm.kernels.sm90.staged_store import StagedStorage
from cutegemm.kernels.sm90.storage import Storage
from cutegemm.kernels.vectors import copy_vector
from cutegemm.plan.program import steps as step
from cutegemm.plan.store import LineStore


@Storage.stores(LineStore)
class LineStorage(StagedStorage):
    """Copies epilogue stages (buffers in shared memory for pieces of D) to global memory with a consumer's threads.

    It is used if TMA cannot store D, e.g. because D's rows are not aligned to 16 bytes. Accesses are as wide as D's
    alignment allows.
    """

    def store_epi_stage(self, by: str, i: int, own_mnl, result: str) -> None:
        """Store the i-th epilogue tile of a result from its epilogue stage to global memory, by the threads.

        by        which warps store: `ALL`, or `EACH_WARP` its own stage, of `plan.program.steps`
        own_mnl   (m_tile, n_tile, batch): indices of the consumer's tile in the grid of consumer tiles
        result    "d", or the name of an auxiliary output
        """
        if by == step.ALL:
            self.copy_epi_stage(i, own_mnl, result)
            return
        cute.arch.sync_warp()
        self.copy_epi_stage(i, own_mnl, result)
        cute.arch.sync_warp()

    def copy_epi_stage(self, i: int, own_mnl, result: str) -> None:
        """Copy an epilogue stage to global memory with the consumer's threads, without elements outside of D.

        Each thread first reads several vectors, so that the reads are in flight together, and then stores them.

        i         index of the epilogue tile
        own_mnl   (m_tile, n_tile, batch): indices of the consumer's tile in the grid of consumer tiles
        result    "d", or the name of an auxiliary output
        """
        store, to = self.store, self.targets
        down, across = store.epi_tiles(self.tile)
        (m, n), (m_tile, n_tile, batch) = store.epi_tile_at(i, self.tile), own_mnl
        extents, (_, mX) = self.extents, self.target_of(result)
        tiles = [matrix_of(self.plan, mX, batch, self.work_tile), cute.make_identity_tensor(extents)]
        at = (m_tile * down + m, n_tile * across + n)
        gD, coords = [cute.local_tile(tensor, store.epi_tile, at) for tensor in tiles]
        own = lower.tiled_copy(store.copy).get_slice(self.tid)
        if store.rotates_lines:
            first = own.partition_D(cute.make_identity_tensor(store.epi_tile))[0, 0, 0]
            sD = to.sD[None, None, self.epi_stage_of(i, result)]
            lines = Lines(store.copy, store.epi_tile, self.plan.operands.d.major, sD, gD, first)
            self.copy_lines(lines, *lines.inside(coords[0, 0], extents))
            return
        tDsD = own.partition_S(to.sD)[None, None, None, self.epi_stage_of(i, result)]
        tDgD, tDcD = cute.coalesce(own.partition_D(gD), target_profile=(1, 1, 1)), own.partition_D(coords)
        tDrD = cute.make_rmem_tensor(tDsD.shape, to.mD.element_type)
        cute.copy(lower.copy_atom(store.copy.atom), tDsD, tDrD)
        for y in range(cute.size(tDrD, mode=[2])):
            for x in range(cute.size(tDrD, mode=[1])):
                self.store_line(tDrD[None, x, y], tDgD[None, x, y], tDcD[0, x, y], extents)

    @cute.jit
    def store_line(self, values: cutlass.Constexpr, gD, at, extents: cutlass.Constexpr):
        """Store one vector of registers to D if its first element is inside of D.

        The plan's alignment puts the others inside as well.

        values    the vector in registers
        gD        the vector in D
        at        coordinates (m, n) of its first element
        extents   (M, N) of D
        """
        if cute.elem_less(at, extents):
            copy_vector(self.store.copy.atom, values, gD)

    @cute.jit
    def copy_lines(self, lines: cutlass.Constexpr, count: Int32, left: Int32):
        """Copy the lines of an epilogue stage that are inside of D, `lines.at_once` lines of a thread at a time.

        These are loops on purpose: in straight code each access would have its own condition, and the addresses of all
        lines would stay in registers from one epilogue tile to the next.

        lines   what this thread copies
        count   number of its lines inside of D
        left    number of vectors of a line that are inside of D
        """
        whole = count // lines.at_once * lines.at_once
        for first in cutlass.range(0, whole, lines.at_once, unroll=1):
            self.copy_some(lines, first, lines.at_once, left)
        for line in cutlass.range(whole, count, 1, unroll=1):
            self.copy_some(lines, line, 1, left)

    def copy_some(self, lines: Lines, first, count: int, left) -> None:
        """Copy `count` lines of an epilogue stage to D, from the thread's line number `first` on.

        It is a method here because a DSL loop would carry `lines` as a value if its own method were called in the loop.

        lines   what this thread copies
        left    number of vectors of a line that are inside of D
        """
        lines.copy(first, count, left)
