"""Store D through epilogue stages by the threads of the consumer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cutegemm.layout import ComposedLayout, size
from cutegemm.machine.arch import ACCESS_BITS
from cutegemm.plan.access import Move
from cutegemm.plan.problem import Operands
from cutegemm.plan.program.steps import ALL, EACH_WARP, Step, StoreEpiStage, SyncEpiTile, WriteEpiStage
from cutegemm.plan.store.base import Steps
from cutegemm.plan.store.staged import StagedStore
from cutegemm.tile.tiled_copy import TiledCopy

if TYPE_CHECKING:
    from cutegemm.plan.plan import GemmPlan


@dataclass(frozen=True)
class LineStore(StagedStore):
    """Store of D through epilogue stages in shared memory, which threads copy row by row to global memory.

    A row here is along D's contiguous mode, so it is a column of D if D is M-major. The accesses are as wide as D's
    alignment allows, up to 16 bytes.

    copy   tiled copy of a stage to global memory
    """

    copy: TiledCopy

    @property
    def to_global(self) -> TiledCopy:
        """Return the tiled copy of an epilogue stage to global memory, by the threads of the consumer."""
        return self.copy

    @property
    def rotates_lines(self) -> bool:
        """Return whether threads start each line of D at its first aligned address: if accesses are below 16 bytes.

        A line is a row (or column) of D along its contiguous mode. The lanes of a warp store neighbours in it, in runs
        that start at multiples of their size. Elements before the first such address are stored by the lanes at the end
        of the line. So only two memory sectors of a line are written in part, not two for each run.
        """
        return self.copy.atom.bits < ACCESS_BITS

    @property
    def line_copy(self) -> TiledCopy:
        """Return the tiled copy of an epilogue stage from shared to global memory, by threads."""
        return self.copy

    def moves(self, operands: Operands) -> tuple[Move, ...]:
        """Return the copies of D that threads make: from registers to an epilogue stage, from there to global memory.

        operands   operands of the plan, with the type of D
        """
        return (*super().moves(operands), Move("store.copy", self.copy, operands.d.dtype, "shared", "global"))

    def rotated(self, elements: np.ndarray, addresses: np.ndarray, tile: tuple[int, int], major: str) -> np.ndarray:
        """Return the element at which each stored vector of D begins, after threads rotate lines to aligned addresses.

        A line of D may begin at an unaligned address. The threads begin each line at its first aligned address, and the
        lanes at the end of the line store the elements before that address. The tile may have several epilogue tiles; a
        line ends at the edge of its epilogue tile.

        elements    element at which each vector begins without the rotation, as indices in the tile
        addresses   byte address in D of each element of the tile
        tile        (M, N) of the tile
        major       "m" or "n": the contiguous mode of D
        """
        if not self.rotates_lines:
            return elements
        along = "mn".index(major)
        atom, length = self.copy.atom, self.epi_tile[along]
        step = 1 if along == 0 else tile[0]  # from one element of a line to the next
        place = elements // step % tile[along] % length
        first = elements - place * step
        run_bytes = size(self.copy.tiler_mn[along]) * atom.dtype.bits // 8
        shift = addresses[first] % run_bytes // (atom.bits // 8) * atom.values
        rotated: np.ndarray = first + (place - shift) % length * step
        return rotated

    def epi_tile_steps(self, plan: GemmPlan) -> Steps:
        """Return the program steps that store one epilogue tile through its epilogue stage in shared memory.

        They need no wait for earlier stores: when all threads reach the barrier of the next epilogue tile, they have
        read the stage before. With a single epilogue stage one more barrier is needed for this.
        """
        body: list[Step] = []
        for name in plan.epi_stage_results:
            if plan.consumer_warps == 1:
                body += [WriteEpiStage(name), StoreEpiStage(EACH_WARP, by_tma=False, result=name)]
            else:
                free: Steps = (SyncEpiTile(),) if self.count == 1 else ()
                body += [*free, WriteEpiStage(name), SyncEpiTile(), StoreEpiStage(ALL, by_tma=False, result=name)]
        return tuple(body)

    def rules(self, plan: GemmPlan) -> Iterator[str]:
        """Yield a sentence for each rule on epilogue stages and on their copy to global memory that the plan breaks."""
        yield from super().rules(plan)
        (rows, cols), copy, have = self.epi_tile, self.copy, plan.consumer_threads
        if copy.threads != have:
            yield f"the copy of an epilogue stage is made for {copy.threads} threads, but a consumer has {have}."
        if rows % size(copy.tiler_mn[0]) or cols % size(copy.tiler_mn[1]):
            yield f"the copy of an epilogue stage, {copy}, does not divide an epilogue tile of {rows} x {cols}."
        elif self.rotates_lines:
            yield from self._rotation_rules("mn".index(plan.operands.d.major))

    def _rotation_rules(self, along: int) -> Iterator[str]:
        """Yield a sentence for each reason why threads cannot start lines of D at their first aligned addresses.

        along   contiguous mode of D: 0 for M, 1 for N
        """
        copy, layout = self.copy, self.smem
        run, lines = size(copy.tiler_mn[along]) // copy.atom.values, size(copy.tiler_mn[1 - along])
        if copy.layout_tv[1].size() != copy.atom.values or run & (run - 1) or lines & (lines - 1):
            yield (
                f"the copy of an epilogue stage, {copy}, has vectors of less than 16 bytes and rotates rows: it "
                "needs one vector a thread, and a power of two of vectors in a row and of rows."
            )
        if isinstance(layout, ComposedLayout) or (layout[along].offsets() != np.arange(layout[along].size())).any():
            yield (
                f"the shared memory of D is {layout}; because the copy of an epilogue stage, {copy}, has vectors "
                "of less than 16 bytes, the elements of a row must be adjacent, without a swizzle."
            )
