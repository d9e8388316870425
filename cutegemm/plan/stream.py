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
    """An operand that is loaded k-tile by k-tile, and its place in a stage of shared memory.

    name   "a" or "b", or the name of another operand
    mode   "m" or "n": the mode of the tile of D that the first mode of the operand runs along
    load   copy from global to shared memory, by the threads or as a box by TMA; to registers if there are no stages
    smem   shared memory (rows or columns of the tile, k, stages), in elements
    read   copy from shared memory to registers; None if the MMA reads shared memory
    """

    name: str
    mode: str
    load: TiledCopy | TmaBox
    smem: SharedLayout
    read: CopyAtom | None = None

    @property
    def tile(self) -> tuple[int, int]:
        """Return the rows or columns of D and the elements along K that a stage holds."""
        extents = product_each(self.smem.shape)
        return int(extents[0]), int(extents[1])

    @property
    def multicast(self) -> int:
        """Return the number of CTAs of a cluster that share what is loaded."""
        return self.load.multicast if isinstance(self.load, TmaBox) else 1
