"""The interface of a mainloop."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from cutegemm.plan.access import GlobalRead, SmemAccess
from cutegemm.plan.accumulation import Chain, Total
from cutegemm.plan.program.steps import ACC, HAS_K_TILES, ForKTiles, If, Release, Step, WaitMma

if TYPE_CHECKING:
    from cutegemm.plan.plan import GemmPlan

Steps = tuple[Step, ...]


@dataclass(frozen=True)
class Mainloop:
    """How consumers multiply the k-tiles of a tile: base class of the mainloops that a plan with warp roles can have.

    A mainloop gives the part of the consumers' program that multiplies: steps such as "wait for a full stage", "issue
    MMAs" and "release the stage". It also says what these steps need: registers, operands, and rules that a plan must
    keep.

    A subclass defines `k_tile`, the steps for one k-tile. If an iteration of its loop is not one k-tile, it defines
    `k_tiles` instead. It may add step classes of its own, which the simulator and the kernel execute by functions
    registered for these classes.

    promoted   whether threads add the accumulators of each k-tile to a total in f32
    """

    promoted: ClassVar[bool] = False

    def prologue(self, plan: GemmPlan) -> Steps:
        """Return the program steps of a consumer before the first k-tile of a tile.

        Pingpong consumers, which alternate, run them before they may issue MMAs.
        """
        return ()

    def k_tile(self, plan: GemmPlan) -> Steps:
        """Return the program steps of a consumer for one k-tile. Its last MMAs may still run when the steps end.

        () means that k-tiles have no steps of their own, e.g. because two make an iteration; then no epilogue overlaps
        with the loop.
        """
        return ()

    def k_tiles(self, plan: GemmPlan) -> Steps:
        """Return the consumer's loop over the k-tiles of a tile, as program steps.

        The last MMAs may still run when it ends.
        """
        return (ForKTiles(self.k_tile(plan)),)

    def epilogue(self, plan: GemmPlan) -> Steps:
        """Return the program steps after the last k-tile of a tile: wait for its MMAs and release its stage."""
        return (WaitMma(0), If(HAS_K_TILES, (Release(previous=True),)))

    def b_column_blocks(self, plan: GemmPlan) -> int:
        """Return the number of blocks of a consumer's columns whose MMAs are issued and waited for separately.

        It is 1, or 2 if the MMAs of the left and the right half alternate.
        """
        return 1

    def partial_accumulators(self, plan: GemmPlan) -> str:
        """Return the name of the set of accumulators that is still to be added to the f32 total after the last k-tile.

        Without a total (accumulator promotion), it is `ACC`, the only set.
        """
        return ACC

    def registers(self, plan: GemmPlan, accumulators: int) -> Mapping[str, int]:
        """Return the 32-bit registers of a thread that this mainloop needs in addition to fragments and accumulators.

        accumulators   number of registers of the accumulators
        returns        use, such as "scales" -> number of registers; {} for none
        """
        return {}

    def accumulation(self, plan: GemmPlan, runs: tuple[tuple[int, int], ...]) -> Total:
        """Return in what order this mainloop adds the products of an element of D in one CTA.

        runs      ranges (first k, end) of the k-tiles, in the order of the MMAs
        returns   a `Chain` (one accumulator), or a `Sum` if several are added
        """
        return Chain(runs)

    def accesses(self, plan: GemmPlan) -> Iterable[SmemAccess]:
        """Return this mainloop's accesses to shared memory for the analysis, except the MMAs' reads of A and B."""
        return ()

    def global_reads(self, plan: GemmPlan) -> Iterable[GlobalRead]:
        """Return the reads of global memory by threads in this mainloop, for the analysis, except loads of k-tiles."""
        return ()

    def operands(self, plan: GemmPlan) -> Iterable[str]:
        """Return the names of the operands that this mainloop reads in addition to A and B, such as block scales."""
        return [stream.name for stream in plan.streams if stream.name in plan.operands.of_mainloop]

    def rules(self, plan: GemmPlan) -> Iterable[str]:
        """Return a sentence for each rule of this mainloop that the plan breaks; () if it breaks none."""
        return ()
