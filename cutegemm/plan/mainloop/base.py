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
    """How consumers multiply the k-tiles of a work tile: the steps of their programs, and what those steps need.

    A subclass defines `k_tile`, or `k_tiles` if its loop is not one k-tile an iteration. The steps that it brings are
    defined in its file. Readers of programs handle them by functions registered with `StepReader.handles`.

    promoted   whether threads add the accumulators of each k-tile to a total in f32
    """

    promoted: ClassVar[bool] = False

    def prologue(self, plan: GemmPlan) -> Steps:
        """Return the steps before the first k-tile of a work tile, outside of the pingpong order barrier."""
        return ()

    def k_tile(self, plan: GemmPlan) -> Steps:
        """Return the steps of a k-tile. Its last MMAs may still run when they end.

        () means that the loop has no steps of single k-tiles; then no epilogue overlaps with it.
        """
        return ()

    def k_tiles(self, plan: GemmPlan) -> Steps:
        """Return the loop over the k-tiles of a work tile. The last MMAs may still run when it ends."""
        return (ForKTiles(self.k_tile(plan)),)

    def epilogue(self, plan: GemmPlan) -> Steps:
        """Return the steps after the last k-tile: wait for its MMAs and release its stage."""
        return (WaitMma(0), If(HAS_K_TILES, (Release(previous=True),)))

    def b_column_blocks(self, plan: GemmPlan) -> int:
        """Return the number of blocks of a consumer's columns whose MMAs are issued and waited for separately."""
        return 1

    def partial_accumulators(self, plan: GemmPlan) -> str:
        """Return the name of the accumulators that are still to be added to the f32 total after the last k-tile.

        `ACC` if the accumulators are not promoted.
        """
        return ACC

    def registers(self, plan: GemmPlan, accumulators: int) -> Mapping[str, int]:
        """Return the 32-bit registers that a thread needs for this mainloop in addition to fragments and accumulators.

        accumulators   registers of the accumulators
        returns        name of each use -> number of registers
        """
        return {}

    def accumulation(self, plan: GemmPlan, runs: tuple[tuple[int, int], ...]) -> Total:
        """Return the order of additions to an element of D: see `plan.accumulation`.

        runs   ranges (first k, end) of the k-tiles, in the order of their multiplication
        """
        return Chain(runs)

    def accesses(self, plan: GemmPlan) -> Iterable[SmemAccess]:
        """Return the mainloop's accesses to shared memory in addition to the reads of A and B by MMAs."""
        return ()

    def global_reads(self, plan: GemmPlan) -> Iterable[GlobalRead]:
        """Return the mainloop's reads of global memory by threads. Loads of operand streams are not among them."""
        return ()

    def operands(self, plan: GemmPlan) -> Iterable[str]:
        """Return the names of the operands that the mainloop reads, except A and B: those that the plan loads."""
        return [stream.name for stream in plan.streams if stream.name in plan.operands.of_mainloop]

    def rules(self, plan: GemmPlan) -> Iterable[str]:
        """Return a sentence for each rule of this mainloop that the plan breaks."""
        return ()
