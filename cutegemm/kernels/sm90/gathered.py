"""Load the rows of a tile one by one by TMA, each from the row of the operand that an index selects.

A TMA box of one row is written where that row of a box of many would be: the swizzle permutes bits of the address. All
warps of the producer load in turn, a row each, because one warp issues them too slowly. The lanes of a warp hold the
indices of its rows. An index that the operand does not have gives a coordinate that TMA fills with zeros.

Rows after the end of a group are not loaded, as such boxes take several times as long. The MMAs multiply zeros, or what
an earlier tile left in the stage, and the results are not stored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from cutegemm.machine.arch import WARP_THREADS
from cutegemm.plan.stream import OperandStream

if TYPE_CHECKING:
    from cutegemm.kernels.sm90.loads import Boxes

_UNROLLED = 8  # rows that are loaded in an iteration


@cute.jit
def clear(stages: cute.Tensor, threads: cutlass.Constexpr[int]):
    """Fill the stages of an operand with zeros. All threads of a CTA call it, before a barrier of theirs.

    threads   number of threads of the CTA
    """
    tid, _, _ = cute.arch.thread_idx()
    count = cute.cosize(stages) * stages.element_type.width // Int64.width
    words = cute.make_tensor(cute.recast_ptr(stages.iterator, dtype=Int64), cute.make_layout(count))
    for i in cutlass.range(tid, count, threads):
        words[i] = Int64(0)
    cute.arch.fence_proxy("async.shared", space="cta")


class GatheredRows:
    """The rows of the tiles of one operand that a warp of the producer loads.

    stream    the operand; its box has one row
    warps     number of warps of the producer
    warp      index of this warp
    box       the TMA copy of a row. In shared memory it has three modes: elements of a row, rows of a stage, stages
    index     (rows of D, 1, 1): the row of the operand for each row of D, in global memory
    """

    def __init__(self, stream: OperandStream, warps: int, warp, box: Boxes, index: cute.Tensor) -> None:
        self.rows, self.warps, self.warp, self.box, self.index = stream.tile[0], warps, warp, box, index
        self.row_bytes = stream.tile[1] * stream.load.dtype.bits // 8
        self.own = self.rows // warps  # rows of a warp
        self.sources = cute.make_rmem_tensor(-(-self.own // WARP_THREADS), Int32)  # the lane's indices
        self.left = cute.make_rmem_tensor(1, Int32)  # number of rows of the tile that belong to its group

    @cute.jit
    def find(self, first, end):
        """Load the indices of the rows of a tile to registers.

        first   first row of the tile in D
        end     end of the rows of its group
        """
        lane = cute.arch.lane_idx()
        for i in cutlass.range_constexpr(cute.size(self.sources)):
            row, source = first + (i * WARP_THREADS + lane) * self.warps + self.warp, Int32(0)
            if row < end:
                source = self.index[row, 0, 0]
            self.sources[i] = source
        self.left[0] = cute.arch.make_warp_uniform(cutlass.max(cutlass.min(end - first, self.rows), 0))

    def bytes_left_out(self):
        """Return the number of bytes of the rows of a k-tile that are after the end of the group."""
        return (self.rows - self.left[0]) * self.row_bytes

    @cute.jit
    def arrive(self, by_first_warp: cutlass.Constexpr[Callable[[], None]], full):
        """Emit the arrival of this warp at the barrier of a stage. A function emits the first warp's.

        A warp that has no row to load arrives too. Otherwise it could be late by all stages, and then wait for a phase
        of a barrier that has passed.

        by_first_warp   emits the arrival of the first warp, which also expects the bytes, and its other loads
        full            the barrier
        """
        if self.warp == 0:
            by_first_warp()
        else:
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive(full)

    @cute.jit
    def load(self, k_tile, stage, full):
        """Load this warp's rows of a k-tile to a stage.

        k_tile   index of the k-tile
        stage    index of the stage
        full     its barrier
        """
        box, left = self.box, cute.ceil_div(self.left[0] - self.warp, self.warps)
        for i in cutlass.range_constexpr(cute.size(self.sources)):
            mine = self.sources[i]
            for lane in cutlass.range(cutlass.min(left - i * WARP_THREADS, WARP_THREADS), unroll=_UNROLLED):
                source = cute.arch.make_warp_uniform(cute.arch.shuffle_sync(mine, lane))
                target = box.sX[None, (i * WARP_THREADS + lane) * self.warps + self.warp, stage]
                cute.copy(box.atom, box.gX[(None, source, k_tile, 0)], target, tma_bar_ptr=full, **box.options)
