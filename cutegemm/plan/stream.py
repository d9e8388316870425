"""Operand streams: what the mainloop loads for each k-tile."""

from __future__ import annotations

from dataclasses import dataclass

from cutegemm.layout import product_each
from cutegemm.plan.shared import SharedLayout
from cutegemm.tile.atoms import CopyAtom
from cutegemm.tile.tiled_copy import TiledCopy
from cutegemm.tile.tma import TmaBox


@dataclass(frozen=True)
class OperandStream:
    """How the mainloop loads one operand k-tile by k-tile: its copies, and its stages in shared memory.

    name   "a" or "b", or the name of another operand of the mainloop, such as block scales
    mode   "m" or "n": mode of D that the operand's rows run along; "m" for A, "n" for B
    load   copy from global to shared memory: a tiled copy by the threads, or a box by TMA. If the plan has no stages, a
           tiled copy from global memory to registers
    smem   layout (rows, k, stages) of the operand in shared memory, in elements. Rows are rows of A or columns of B
    read   copy atom that loads fragments from shared memory to registers; None if the MMA reads shared memory itself
    index  name of the operand that has the source row of each row, in global memory. All warps of the producer then
           load the rows of a box one by one. "": rows follow each other
    """

    name: str
    mode: str
    load: TiledCopy | TmaBox
    smem: SharedLayout
    read: CopyAtom | None = None
    index: str = ""

    @property
    def tile(self) -> tuple[int, int]:
        """Return (rows, elements along K) that one stage of this operand holds. Rows are rows of A or columns of B."""
        extents = product_each(self.smem.shape)
        return int(extents[0]), int(extents[1])

    @property
    def multicast(self) -> int:
        """Return the number of CTAs of a cluster that receive each load of this operand; 1 without TMA multicast."""
        return self.load.multicast if isinstance(self.load, TmaBox) else 1
