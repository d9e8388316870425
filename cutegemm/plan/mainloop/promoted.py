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
    """Program step of accumulator promotion: add the accumulators of one k-tile to the total, in f32.

    accumulators   which are added: `FIRST` or `SECOND` of two sets, or the `LEFT` or `RIGHT` half of the columns
    """

    accumulators: str

    def __str__(self) -> str:
        return f"add      {self.accumulators} to total"


@Expansion.handles(Promote)
def _promote(expansion: Expansion, promote: Promote, at: State, i: int) -> Iterator[Op]:
    yield Compute(promote, (at.number, i))


@dataclass(frozen=True)
class Promoted(Mainloop):
    """Mainloop with accumulator promotion: MMAs of each k-tile start from 0, and threads add the result to a total.

    The total is f32. Threads usually add while the next MMAs run. Two sets of accumulators alternate for that. If
    registers do not hold two sets and a total, there is one set, whose left and right half of the columns alternate.

    at_once   True: there is one set, which is added as soon as its MMAs have ended, while the MMAs of other consumers
              run. It needs fewer registers than two sets, and fewer MMAs than two halves
    promote   class of the program step that adds accumulators to the total
    factor    what the accumulators of a k-tile are multiplied by, as text; "" for nothing
    """

    at_once: bool = False

    promoted: ClassVar[bool] = True
    promote: ClassVar[type[Promote]] = Promote
    factor: ClassVar[str] = ""

    def read(self, plan: GemmPlan) -> Steps:
        """Return the program steps that read the factors of a k-tile's accumulators, e.g. block scales; () for none.

        They come when the stage of the k-tile is full, and the accumulators of the previous k-tile have been added.
        """
        return ()

    def after_two(self, plan: GemmPlan) -> Steps:
        """Return the program steps that follow each pair of k-tiles; () for none.

        Pairs are counted from the end of the tile: if the number of k-tiles is odd, the first k-tile stands alone.
        """
        return ()

    def prologue(self, plan: GemmPlan) -> Steps:
        """Return the program steps before any MMA: set to 0 the total, and the accumulators that are added to it first.

        After MMAs these steps would cost time: ptxas would make the MMAs wait for each other.
        """
        return (Clear("total"),) if self.at_once else (Clear("total"), Clear(self.partial_accumulators(plan)))

    def k_tiles(self, plan: GemmPlan) -> Steps:
        """Return the consumer's loop over k-tiles as program steps, two k-tiles in each iteration.

        Each iteration waits once for all MMAs, when the next stage is full. A wait for some of the MMAs would not do:
        around a loop, ptxas recognizes only a wait for all.
        """
        if self.at_once:
            return self._by_k_tiles(plan)
        return self._by_halves(plan) if self.partial_accumulators(plan) == RIGHT else self._by_accumulators(plan)

    def epilogue(self, plan: GemmPlan) -> Steps:
        """Return the program steps after the last k-tile: add its accumulators to the total, if not done yet."""
        return () if self.at_once else (*super().epilogue(plan), self.promote(self.partial_accumulators(plan)))

    def accumulation(self, plan: GemmPlan, runs: tuple[tuple[int, int], ...]) -> Total:
        """Return in what order products are added: each k-tile has its own accumulator, and these are added in order.

        runs      ranges (first k, end) of the k-tiles, in the order of the MMAs
        returns   a `Sum` with a `Chain` for each k-tile
        """
        bk = plan.cta_tile[2]
        k_tiles = [Chain(((k, k + bk),)) for first, end in runs for k in range(first, end, bk)]
        return Sum(tuple(k_tiles), self.factor)

    def b_column_blocks(self, plan: GemmPlan) -> int:
        """Return the number of column blocks that are multiplied separately: 2 if halves alternate, else 1."""
        return plan.consumer_mma_tile[1] // plan.consumer_mma.tile_mnk[1]

    def partial_accumulators(self, plan: GemmPlan) -> str:
        """Return the name of the accumulators of the last k-tile, which are still to be added to the total.

        It is `SECOND` of two sets, `RIGHT` of two halves of the columns, or `FIRST`, the only set, if each is added at
        once.
        """
        if self.at_once:
            return FIRST
        return SECOND if self.b_column_blocks(plan) == 1 else RIGHT

    def registers(self, plan: GemmPlan, accumulators: int) -> Mapping[str, int]:
        """Return the registers of a thread for the accumulators that are added to the total: use -> number.

        accumulators   registers of one set of accumulators; two sets may alternate
        """
        return {"accumulators of a k-tile": accumulators * (1 + (self.partial_accumulators(plan) == SECOND))}

    def rules(self, plan: GemmPlan) -> Iterable[str]:
        """Yield a sentence for each rule of accumulator promotion that the plan breaks."""
        if self.at_once and self.b_column_blocks(plan) > 1:
            own, columns = plan.consumer_mma.tile_mnk[1], plan.consumer_mma_tile[1]
            yield f"at_once: a wgmma computes {own} of {columns} columns; it must compute all."

    def _by_k_tiles(self, plan: GemmPlan) -> Steps:
        """Return the loop over k-tiles, as program steps, with a single set of accumulators.

        They are added to the total before the next k-tile is multiplied.
        """
        k_tile = (Wait("full"), Multiply(FIRST), *self.read(plan), WaitMma(0), Release(), self.promote(FIRST))
        odd = If(HAS_ODD_K_TILES, (*k_tile, Advance()))
        return (odd, ForKTiles((*k_tile, Advance(), *k_tile, *self.after_two(plan)), by=2))

    def _by_accumulators(self, plan: GemmPlan) -> Steps:
        """Return the loop over k-tiles, as program steps, with two alternating sets of accumulators.

        MMAs write one set while the other is added to the total.
        """
        read = self.read(plan)
        odd = (Wait("full"), Multiply(SECOND), *read, Advance())
        add_first, add_second = ((Release(previous=True), self.promote(each), *read) for each in (FIRST, SECOND))
        one = (Wait("full"), WaitMma(0), Multiply(FIRST), *add_second)
        other = (Wait("full"), Multiply(SECOND), WaitMma(1), *add_first, *self.after_two(plan))
        return (If(HAS_ODD_K_TILES, odd), ForKTiles((*one, Advance(), *other), by=2))

    def _by_halves(self, plan: GemmPlan) -> Steps:
        """Return the loop over k-tiles, as program steps, with two alternating halves of the columns.

        MMAs write one half while threads add the other to the total.
        """
        before, half = (Release(previous=True), self.promote(RIGHT)), WaitMma(1, "half")
        right = (Multiply(RIGHT), *self.read(plan), half, self.promote(LEFT))
        odd = (Wait("full"), Multiply(LEFT), *right, Advance())
        one = (Wait("full"), WaitMma(0), Multiply(LEFT), *before, *right)
        other = (Wait("full"), Multiply(LEFT), half, *before, *right, *self.after_two(plan))
        return (If(HAS_ODD_K_TILES, odd), ForKTiles((*one, Advance(), *other), by=2))
