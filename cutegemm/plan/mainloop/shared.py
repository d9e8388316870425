"""wgmma that reads A and B from shared memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cutegemm.plan.mainloop.base import Mainloop, Steps
from cutegemm.plan.program.steps import FIRST_BLOCK, OTHER_BLOCKS, Multiply, Release, Wait, WaitMma

if TYPE_CHECKING:
    from cutegemm.plan.plan import GemmPlan


class SharedShared(Mainloop):
    """Mainloop in which wgmma reads A and B from shared memory and adds every k-tile to the same accumulators."""

    def k_tile(self, plan: GemmPlan) -> Steps:
        """Return the program steps that multiply one k-tile with wgmma.

        They wait until its stage is full, issue its MMAs, and release the stage of the previous k-tile. The wait for
        the previous k-tile's MMAs comes after the first k-block is issued, not after all. So its stage is released as
        soon as these MMAs end, while the tensor cores work on the first k-block.
        """
        if plan.k_blocks == 1:
            return (Wait("full"), Multiply(), WaitMma(1), Release(previous=True))
        first, others = Multiply(k_blocks=FIRST_BLOCK), Multiply(k_blocks=OTHER_BLOCKS)
        return (Wait("full"), first, WaitMma(1, "k-block"), Release(previous=True), others)
