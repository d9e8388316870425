"""The interface of a store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from cutegemm.layout import Layout
from cutegemm.plan.access import Move
from cutegemm.plan.problem import Operands
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
    """How a tile of D gets from accumulator registers to global memory: base class of the stores of a plan.

    There is a subclass for each way: directly from registers; through shared memory; through epilogue stages, by TMA or
    by threads. The methods answer what the rest of the package needs to know about a store. A subclass has a field
    `atom`, the copy of D from registers to global or to shared memory.

    stored_by_tma   whether TMA stores D
    reuses_stages   whether D uses the shared memory of A and B, which have been read by then
    reads_ahead     whether threads load rows and columns for the next epilogue tile before they need them
    rotates_lines   whether threads store a line of D from its first aligned address on, and the part before that
                    address last
    """

    stored_by_tma: ClassVar[bool] = False
    reuses_stages: ClassVar[bool] = False
    reads_ahead: ClassVar[bool] = False

    if TYPE_CHECKING:

        @property
        def atom(self) -> CopyAtom:
            """Return the copy atom that moves D out of registers in this store: to shared or to global memory."""

    @property
    def rotates_lines(self) -> bool:
        """Return whether threads store each line of D from its first aligned address on, and the start of it last.

        Then accesses are aligned wherever the line starts. `LineStore` is the only store that does.
        """
        return False

    @property
    def fetched(self) -> TmaBox | None:
        """Return the TMA box that loads an M x N operand such as C to D's shared memory; None if TMA loads none."""
        return None

    def to_adjacent_rows(self, operands: Operands) -> Store:
        """Return this store for a batch of equal groups: one that stores rows, if this one adds them."""
        return self

    @property
    def boxes(self) -> tuple[tuple[str, TmaBox], ...]:
        """Return (operand, TMA box) for each box: "D" if it stores D, "C" if it loads C or another M x N operand."""
        return ()

    @property
    def options(self) -> Mapping[str, int]:
        """Return the options of a plan's builder that describe this store, e.g. its number of stages: name -> number.

        {} if it has none.
        """
        return {}

    @property
    def layout(self) -> SharedLayout | None:
        """Return the layout of the shared memory that D passes through; None if D is stored from registers."""
        return None

    @property
    def stage_copy(self) -> TiledCopy | None:
        """Return the copy of D from registers to epilogue stages (shared memory); None without stages."""
        return None

    @property
    def from_shared(self) -> TiledCopy | None:
        """Return the copy of an M x N operand such as C from epilogue stages (shared memory) to registers.

        None if TMA loads no operand there.
        """
        return None

    @property
    def line_copy(self) -> TiledCopy | None:
        """Return the copy of D from shared to global memory by threads; None if D is stored otherwise."""
        return None

    @property
    def cta_copy(self) -> TiledCopy | None:
        """Return the copy of a whole tile of D from shared to global memory by all threads of a CTA; None for none."""
        return None

    def rotated(self, elements: np.ndarray, addresses: np.ndarray, tile: tuple[int, int], major: str) -> np.ndarray:
        """Return the element at which each stored vector of D begins, if threads rotate lines to aligned addresses.

        A line of D may begin at an unaligned address. A store that rotates begins each line at its first aligned
        address; the lanes at the end of the line store the elements before that address. This store does not rotate:
        the result is `elements`.

        elements    element at which each vector begins without the rotation, as indices in the tile
        addresses   byte address in D of each element of the tile
        tile        (M, N) of the tile
        major       "m" or "n": the contiguous mode of D
        """
        return elements

    @property
    def store_atom(self) -> CopyAtom:
        """Return the copy atom that threads store D with; the models of time count its instructions for a tile of D."""
        return self.atom

    def tile(self, plan: GemmPlan) -> tuple[int, int]:
        """Return (M, N) of the piece of D that passes through shared memory at a time: here the whole tile of D."""
        return plan.d_tile

    def buffers(self, plan: GemmPlan) -> tuple[Buffer, ...]:
        """Return the shared-memory buffers that D passes through in this store; () if D is stored from registers."""
        return () if self.layout is None else (Buffer("d", plan.operands.d.dtype, self.layout, self.tile(plan)),)

    def smem_extents(self, plan: GemmPlan) -> tuple[int, ...]:
        """Return the extents that the shared memory of D must have: (M, N) of `tile`, then e.g. the stages."""
        return self.tile(plan)

    def moves(self, operands: Operands) -> tuple[Move, ...]:
        """Return the copies of D that threads make in this store: by default one, `atom`, out of registers.

        operands   operands of the plan, with the type of D
        """
        target = "shared" if self.reuses_stages else "global"
        return (Move("store.atom", self.atom, operands.d.dtype, "register", target),)

    def results(self, plan: GemmPlan) -> tuple[str, ...]:
        """Return the names of the results that are stored through epilogue stages (shared memory); D is the last.

        Each result of an epilogue tile takes a stage of its own. () if this store does not use epilogue stages.
        """
        return ()

    def epi_tile_count(self, plan: GemmPlan) -> int:
        """Return the number of epilogue tiles of a consumer's tile; 0 if D does not pass through epilogue stages."""
        return 0

    def pieces(self, plan: GemmPlan, elements: int) -> int:
        """Return the number of pieces that a thread divides the epilogue of its tile into: here its stored vectors.

        elements   number of elements of D that the thread has
        """
        return elements // self.atom.values

    def accumulator_order(self, plan: GemmPlan, shape: tuple[int, int, int]) -> Layout:
        """Return the layout from an accumulator's coordinates (value, MMA_M, MMA_N) to the index of its register.

        shape   (values of an atom, atoms along M, atoms along N) of a thread
        """
        return Layout(shape)

    # --- the program of a consumer ------------------------------------------------------------------------------

    def prologue(self, plan: GemmPlan) -> Steps:
        """Return the program steps that load an M x N operand, such as C, to epilogue stages; () if TMA loads none."""
        return ()

    def steps(self, plan: GemmPlan) -> Steps:
        """Return the program steps of a consumer that evaluate the epilogue of a tile and store it."""
        raise NotImplementedError

    def first_wait(self, plan: GemmPlan) -> Steps:
        """Return the program steps that wait for earlier stores before the first epilogue tile; () for none."""
        return ()

    def epi_tile_steps(self, plan: GemmPlan) -> Steps:
        """Return the program steps that store one epilogue tile; () if D does not pass through epilogue stages."""
        return ()

    def epilogue(self, plan: GemmPlan) -> Steps:
        """Return the program steps after a consumer's last tile: wait for stores that still read shared memory."""
        return ()

    def read_fetched(self, expansion: Expansion, at: State, i: int) -> Iterable[Op]:
        """Return the simulated operations that read C (an M x N operand) from an epilogue stage; () if TMA loads none.

        expansion   the symbolic execution of the warp role's program
        at          position of the role in its program
        i           index of the epilogue tile
        """
        return ()

    def barriers(self, plan: GemmPlan) -> Mapping[str, int]:
        """Return the number of mbarriers that this store needs, by name; {} for none."""
        return {}

    def rows(self, plan: GemmPlan) -> tuple[Row, ...]:
        """Return the lines of the plan's printed description for copies of D after the one out of registers."""
        return ()

    # --- rules --------------------------------------------------------------------------------------------------

    def bounds(self) -> Iterable[str]:
        """Return a sentence for each number of this store that is out of bounds, such as a count below 1."""
        return ()

    def needs(self, plan: GemmPlan) -> Iterable[str]:
        """Return a sentence if the plan lacks what this store needs, such as warp roles."""
        return ()

    def shape_rules(self, plan: GemmPlan) -> Iterable[str]:
        """Return a sentence for each error in the shape of D's shared memory. Rules on layouts need the right shape."""
        return ()

    def rules(self, plan: GemmPlan) -> Iterable[str]:
        """Return a sentence for each rule of this store that a plan with warp roles breaks, except rules on shapes."""
        return ()
