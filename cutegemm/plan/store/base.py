"""The interface of a store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from cutegemm.layout import Layout
from cutegemm.plan.program.steps import Step
from cutegemm.plan.rows import Row
from cutegemm.plan.shared import Buffer, SharedLayout
from cutegemm.tile.atoms import CopyAtom
from cutegemm.tile.tiled_copy import TiledCopy
from cutegemm.tile.tma import TmaBox

if TYPE_CHECKING:
    from cutegemm.plan.plan import GemmPlan
    from cutegemm.plan.program.expand import Expansion, State
    from cutegemm.plan.program.operations import Op

Steps = tuple[Step, ...]


@dataclass(frozen=True)
class Store:
    """How a tile of D gets from the accumulators of threads to global memory.

    A subclass has `atom`, the copy that takes D out of registers: to global memory, or to shared memory that D passes
    through. Other parts of the package ask a store by these methods and do not name its class.

    stored_by_tma   whether TMA stores D
    reuses_stages   whether the shared memory of D is that of A and B, which have been read by then
    reads_ahead     whether threads read rows and columns of the next epilogue tile before they need them
    rotates_lines   whether threads store lines of D rotated by their address; see `LineStore`
    """

    stored_by_tma: ClassVar[bool] = False
    reuses_stages: ClassVar[bool] = False
    reads_ahead: ClassVar[bool] = False

    if TYPE_CHECKING:

        @property
        def atom(self) -> CopyAtom:
            """Return the copy atom that takes D out of registers."""

    @property
    def rotates_lines(self) -> bool:
        """Return whether threads store lines of D rotated by their address; see `LineStore`."""
        return False

    @property
    def fetched(self) -> TmaBox | None:
        """Return the TMA box that loads an M x N operand such as C to the shared memory of D; None if none does."""
        return None

    @property
    def layout(self) -> SharedLayout | None:
        """Return the layout of the shared memory that D passes through; None if it passes through none."""
        return None

    @property
    def stage_copy(self) -> TiledCopy | None:
        """Return the copy from registers to epilogue stages; None if D does not pass through epilogue stages."""
        return None

    @property
    def from_shared(self) -> TiledCopy | None:
        """Return the copy of an M x N operand such as C from epilogue stages to registers.

        None if no operand is loaded there.
        """
        return None

    @property
    def line_copy(self) -> TiledCopy | None:
        """Return the copy of D from shared to global memory by threads; None if D is stored otherwise."""
        return None

    def rotated(self, elements: np.ndarray, addresses: np.ndarray, tile: tuple[int, int], major: str) -> np.ndarray:
        """Return the first elements of vectors of D after the rotation of lines, as indices in a tile.

        elements    first element of each vector without the rotation, as indices in the tile
        addresses   byte address in D of each element of the tile
        tile        (M, N) of the tile
        major       "m" or "n": the contiguous mode of D
        """
        return elements

    @property
    def store_atom(self) -> CopyAtom:
        """Return the copy atom of threads that the models of time count for a tile of D."""
        return self.atom

    def tile(self, plan: GemmPlan) -> tuple[int, int]:
        """Return the (M, N) of D that passes through shared memory at a time: all of the CTA's tile of D."""
        return plan.d_tile

    def buffers(self, plan: GemmPlan) -> tuple[Buffer, ...]:
        """Return the shared memory that D passes through; () if D is stored from registers."""
        return () if self.layout is None else (Buffer("d", plan.operands.d.dtype, self.layout, self.tile(plan)),)

    def results(self, plan: GemmPlan) -> tuple[str, ...]:
        """Return the names of the results that pass through epilogue stages, each through its own; D is the last."""
        return ()

    def epi_tile_count(self, plan: GemmPlan) -> int:
        """Return the number of epilogue tiles of a consumer's tile; 0 if D does not pass through epilogue stages."""
        return 0

    def pieces(self, plan: GemmPlan, elements: int) -> int:
        """Return the number of pieces that a consumer's thread divides the epilogue of its tile into.

        elements   elements of D of the thread
        """
        return elements // self.atom.values

    def accumulator_order(self, plan: GemmPlan, shape: tuple[int, int, int]) -> Layout:
        """Return the layout from (values, MMA_M, MMA_N), coordinates of an accumulator, to its register.

        shape   (values of an atom, atoms along M, atoms along N)
        """
        return Layout(shape)

    # --- the program of a consumer ------------------------------------------------------------------------------

    def prologue(self, plan: GemmPlan) -> Steps:
        """Return the steps that load an M x N operand such as C to the epilogue stages; () if TMA loads none."""
        return ()

    def steps(self, plan: GemmPlan) -> Steps:
        """Return the steps that evaluate the epilogue of a tile and store it."""
        raise NotImplementedError

    def first_wait(self, plan: GemmPlan) -> Steps:
        """Return the steps that wait for earlier stores before the first epilogue tile; () if no wait is needed."""
        return ()

    def epi_tile_steps(self, plan: GemmPlan) -> Steps:
        """Return the steps that store the values of an epilogue tile; () if D does not pass through epilogue stages."""
        return ()

    def epilogue(self, plan: GemmPlan) -> Steps:
        """Return the steps after the last tile: wait for stores that still read shared memory."""
        return ()

    def read_fetched(self, expansion: Expansion, at: State, i: int) -> Iterable[Op]:
        """Return the operations that read an M x N operand, such as C, from an epilogue stage; () if TMA loads none.

        at   position of the role in its program
        i    index of the epilogue tile
        """
        return ()

    def barriers(self, plan: GemmPlan) -> Mapping[str, int]:
        """Return the number of mbarriers of this store by name."""
        return {}

    def rows(self, plan: GemmPlan) -> tuple[Row, ...]:
        """Return the rows of `describe` for the copies of D after the one out of registers."""
        return ()

    def rules(self, plan: GemmPlan) -> Iterable[str]:
        """Return a sentence for each rule of this store that the plan breaks."""
        return ()
