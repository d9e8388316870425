"""Load the rows of a tile one by one by TMA, each from the row of the operand that an index selects.

A TMA box of one row is written where that row of a box of many would be: the swizzle permutes bits of the address. All
warps of the producer load, each its part of the rows, because one warp issues them too slowly. The lanes of a warp hold
the indices of its rows. An index that the operand does not have gives a coordinate that TMA fills with zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from cutegemm.machine.arch import WARP_THREADS
from cutegemm.plan.stream import OperandStream

if TYPE_CHECKING:
    from cutegemm.kernels.sm90.loads import Boxes

_NOWHERE = -1  # coordinate of a row that no operand has


class GatheredRows:
    """The rows of the tiles of one operand that a warp of the producer loads.

    stream    the operand; its box has one row
    warps     number of warps of the producer
    warp      index of this warp
    box       the TMA copy of a row. In shared memory it has three modes: elements of a row, rows of a stage, stages
    index     (rows of D, 1, 1): the row of the operand for each row of D, in global memory
    """

    def __init__(self, stream: OperandStream, warps: int, warp, box: Boxes, index: cute.Tensor) -> None:
        self.count, self.warp, self.box, self.index = stream.tile[0] // warps, warp, box, index
        self.sources = cute.make_rmem_tensor(-(-self.count // WARP_THREADS), Int32)  # the lane's indices

    @cute.jit
    def find(self, first, end):
        """Load the indices of the rows of a tile to registers.

        first   first row of the tile in D
        end     end of the rows of its group. Zeros fill the rows from there on
        """
        lane = cute.arch.lane_idx()
        for i in cutlass.range_constexpr(cute.size(self.sources)):
            row = first + self.warp * self.count + i * WARP_THREADS + lane
            source = Int32(_NOWHERE)
            if row < end:
                source = self.index[row, 0, 0]
            self.sources[i] = source

    @cute.jit
    def by_first_warp(self, function: cutlass.Constexpr[Callable[[], None]]):
        """Emit the code of a function for the first warp only."""
        if self.warp == 0:
            function()

    @cute.jit
    def load(self, k_tile, stage, full):
        """Load this warp's rows of a k-tile to a stage.

        k_tile   index of the k-tile
        stage    index of the stage
        full     its barrier
        """
        for i in cutlass.range_constexpr(self.count):
            mine = self.sources[i // WARP_THREADS]
            source = cute.arch.make_warp_uniform(cute.arch.shuffle_sync(mine, i % WARP_THREADS))
            place = self.box.sX[None, self.warp * self.count + i, stage]
            cute.copy(
                self.box.atom, self.box.gX[(None, source, k_tile, 0)], place, tma_bar_ptr=full, **self.box.options
            )
