"""Store D through shared memory, a whole tile at once, if all threads follow one schedule."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from cutegemm.layout import product_each
from cutegemm.plan.access import Move
from cutegemm.plan.problem import Operands
from cutegemm.plan.rows import Row, copy_row
from cutegemm.plan.rules.boxes import overlapping
from cutegemm.plan.shared import SharedLayout
from cutegemm.plan.store.base import Store
from cutegemm.tile.atoms import CopyAtom
from cutegemm.tile.tiled_copy import TiledCopy

if TYPE_CHECKING:
    from cutegemm.plan.plan import GemmPlan


@dataclass(frozen=True)
class SharedStore(Store):
    """Store of D through shared memory, a whole tile at once: all threads write it there, then copy it from there.

    The copy makes wider accesses than stores from registers would. The tile takes the memory of A and B, which have
    been read by then.

    atom   copy atom that stores one vector from registers to shared memory
    smem   layout (rows, columns) of the tile in shared memory
    copy   tiled copy of the tile from shared to global memory, by all threads
    """

    atom: CopyAtom
    smem: SharedLayout
    copy: TiledCopy

    reuses_stages: ClassVar[bool] = True

    @property
    def layout(self) -> SharedLayout:
        """Return the layout of the tile of D in shared memory, (rows, columns)."""
        return self.smem

    @property
    def store_atom(self) -> CopyAtom:
        """Return the copy atom that stores the tile of D from shared to global memory, e.g. 128-bit vectors."""
        return self.copy.atom

    @property
    def line_copy(self) -> TiledCopy:
        """Return the tiled copy of the tile of D from shared to global memory, by all threads."""
        return self.copy

    @property
    def cta_copy(self) -> TiledCopy:
        """Return the copy of the tile from shared to global memory: by all threads of the CTA."""
        return self.copy

    def moves(self, operands: Operands) -> tuple[Move, ...]:
        """Return the copies of D that threads make: from registers to shared memory, and from there to global memory.

        operands   operands of the plan, with the type of D
        """
        return (*super().moves(operands), Move("store.copy", self.copy, operands.d.dtype, "shared", "global"))

    def rows(self, plan: GemmPlan) -> tuple[Row, ...]:
        """Return the line of the plan's description for the copy of D from shared to global memory."""
        return (copy_row("shared to D", self.copy, plan.d_tile),)

    def needs(self, plan: GemmPlan) -> Iterator[str]:
        """Yield a sentence if the plan has warp roles: this store needs all threads of the CTA to copy the tile."""
        if plan.body.has_roles:
            yield (
                "the store is a SharedStore; with warp roles D is stored through epilogue stages or from registers. "
                "Use another store."
            )

    def shape_rules(self, plan: GemmPlan) -> Iterator[str]:
        """Yield a sentence if the shared memory of the tile has other extents than the tile, or elements overlap."""
        if product_each(self.smem.shape) != plan.d_tile:
            yield f"the shared memory of D is {self.smem}; its extents must be those of the tile of D, {plan.d_tile}."
        else:
            yield from overlapping("D", self.smem)
