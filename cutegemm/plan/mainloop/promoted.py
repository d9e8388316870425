"""Accumulator promotion: threads add the accumulators of each k-tile to a total in f32.

wgmma keeps about 14 bits of sums of fp8 products (DeepSeek-V3 technical report, section 3.3.2).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from cutegemm.plan.accumulation import Chain, Sum, Total
from cutegemm.plan.mainloop.base import Mainloop, Steps
from cutegemm.plan.program.expand import Expansion, State
from cutegemm.plan.program.operations import Compute, Op
from cutegemm.plan.program.steps import (
    FIRST,
    HAS_ODD_K_TILES,
    LEFT,
    RIGHT,
    SECOND,
    Advance,
    Clear,
    ForKTiles,
    If,
    Multiply,
    Release,
    Step,
    Wait,
    WaitMma,
)

if TYPE_CHECKING:
    from cutegemm.plan.plan import GemmPlan


@dataclass(frozen=True)
class Promote(Step):
    """Add the accumulators of one k-tile to the total, in f32.

    accumulators   name of the set, or half, of accumulators that is added; see `Multiply`
    """

    accumulators: str

    def __str__(self) -> str:
        return f"add      {self.accumulators} to total"


@Expansion.handles(Promote)
def _promote(expansion: Expansion, promote: Promote, at: State, i: int) -> Iterator[Op]:
    yield Compute(promote, (at.number, i))


@dataclass(frozen=True)
class Promoted(Mainloop):
    """wgmma starts from 0 at each k-tile, and threads add its accumulators to a total.

    By default they do so while the next MMAs run. Two accumulators alternate. If registers do not hold two
    accumulators and a total, there is one accumulator, whose left and right half of the columns alternate.

    at_once   whether there is one accumulator, which is added as soon as its MMAs have ended, while the MMAs of other
              consumers run. It needs fewer registers than two accumulators, and fewer MMAs than two halves
    promote   the step that adds accumulators to the total
    factor    what the accumulators of a k-tile are multiplied by, as text; "" for nothing
    """

    at_once: bool = False

    promoted: ClassVar[bool] = True
    promote: ClassVar[type[Promote]] = Promote
    factor: ClassVar[str] = ""

    def read(self, plan: GemmPlan) -> Steps:
        """Return the steps that read what the accumulators of a k-tile are multiplied by.

        They run while the stage of the k-tile is full, after the accumulators of the k-tile before have been added.
        """
        return ()

    def after_two(self, plan: GemmPlan) -> Steps:
        """Return the steps after every second k-tile of a work tile, counted from its end."""
        return ()

    def prologue(self, plan: GemmPlan) -> Steps:
        """Return the step that sets the total to 0, before any MMA.

        After MMAs, ptxas would make the MMAs wait for each other.
        """
        return (Clear("total"),) if self.at_once else (Clear("total"), Clear(self.partial_accumulators(plan)))

    def k_tiles(self, plan: GemmPlan) -> Steps:
        """Return the loop, two k-tiles an iteration, with one wait for all MMAs when the next stage is full.

        ptxas follows MMAs around a loop only to a wait for all of them.
        """
        if self.at_once:
            return self._by_k_tiles(plan)
        return self._by_halves(plan) if self.partial_accumulators(plan) == RIGHT else self._by_accumulators(plan)

    def epilogue(self, plan: GemmPlan) -> Steps:
        """Return the steps after the last k-tile: they add its accumulators to the total, if that is not done yet."""
        return () if self.at_once else (*super().epilogue(plan), self.promote(self.partial_accumulators(plan)))

    def accumulation(self, plan: GemmPlan, runs: tuple[tuple[int, int], ...]) -> Total:
        """Return the order of the additions: each k-tile is an accumulator of its own, and these are added."""
        bk = plan.cta_tile[2]
        k_tiles = [Chain(((k, k + bk),)) for first, end in runs for k in range(first, end, bk)]
        return Sum(tuple(k_tiles), self.factor)

    def b_column_blocks(self, plan: GemmPlan) -> int:
        """Return the number of separately multiplied column blocks: 1, or 2 if halves of the columns alternate."""
        return plan.consumer_mma_tile[1] // plan.consumer_mma.tile_mnk[1]

    def partial_accumulators(self, plan: GemmPlan) -> str:
        """Return the name of the last k-tile's accumulators: `SECOND` of two sets, or `RIGHT` half of the columns.

        If accumulators are added at once, it is `FIRST`, the only set.
        """
        if self.at_once:
            return FIRST
        return SECOND if self.b_column_blocks(plan) == 1 else RIGHT

    def registers(self, plan: GemmPlan, accumulators: int) -> Mapping[str, int]:
        """Return the registers of a thread for the accumulators that are added to the total, by use."""
        return {"accumulators of a k-tile": accumulators * (1 + (self.partial_accumulators(plan) == SECOND))}

    def rules(self, plan: GemmPlan) -> Iterable[str]:
        """Yield a sentence for each rule on the accumulators that the plan breaks."""
        if self.at_once and self.b_column_blocks(plan) > 1:
            own, columns = plan.consumer_mma.tile_mnk[1], plan.consumer_mma_tile[1]
            yield f"at_once: a wgmma computes {own} of {columns} columns; it must compute all."

    def _by_k_tiles(self, plan: GemmPlan) -> Steps:
        """Return the loop with one accumulator, which is added before the next k-tile is multiplied."""
        k_tile = (Wait("full"), Multiply(FIRST), *self.read(plan), WaitMma(0), Release(), self.promote(FIRST))
        odd = If(HAS_ODD_K_TILES, (*k_tile, Advance()))
        return (odd, ForKTiles((*k_tile, Advance(), *k_tile, *self.after_two(plan)), by=2))

    def _by_accumulators(self, plan: GemmPlan) -> Steps:
        """Return the loop with two alternating accumulators: one is added to the total while the other is written."""
        read = self.read(plan)
        odd = (Wait("full"), Multiply(SECOND), *read, Advance())
        add_first, add_second = ((Release(previous=True), self.promote(each), *read) for each in (FIRST, SECOND))
        one = (Wait("full"), WaitMma(0), Multiply(FIRST), *add_second)
        other = (Wait("full"), Multiply(SECOND), WaitMma(1), *add_first, *self.after_two(plan))
        return (If(HAS_ODD_K_TILES, odd), ForKTiles((*one, Advance(), *other), by=2))

    def _by_halves(self, plan: GemmPlan) -> Steps:
        """Return the loop with two alternating halves of the columns: one is added while the other is written."""
        before, half = (Release(previous=True), self.promote(RIGHT)), WaitMma(1, "half")
        right = (Multiply(RIGHT), *self.read(plan), half, self.promote(LEFT))
        odd = (Wait("full"), Multiply(LEFT), *right, Advance())
        one = (Wait("full"), WaitMma(0), Multiply(LEFT), *before, *right)
        other = (Wait("full"), Multiply(LEFT), half, *before, *right, *self.after_two(plan))
        return (If(HAS_ODD_K_TILES, odd), ForKTiles((*one, Advance(), *other), by=2))
