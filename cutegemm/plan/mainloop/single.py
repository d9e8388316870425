"""wgmma without a producer: consumers load k-tiles ahead, between their MMAs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cutegemm.plan.mainloop.base import Mainloop, Steps
from cutegemm.plan.program.steps import ForAhead, ForKTiles, Load, Multiply, SyncThreads, Wait, WaitMma

if TYPE_CHECKING:
    from cutegemm.plan.plan import GemmPlan


class LoadingAhead(Mainloop):
    """Mainloop without a producer warp: consumers load k-tiles themselves, a few k-tiles before they multiply them.

    One warp issues each load, after all warps have read the stage that it overwrites.
    """

    def k_tiles(self, plan: GemmPlan) -> Steps:
        """Return the program steps that load the first k-tiles, then the loop over all k-tiles.

        Each iteration multiplies a k-tile and loads a later one.
        """
        ahead = plan.stages - 1
        loop = ForKTiles((Wait("full"), Multiply(), WaitMma(1), SyncThreads(), Load(ahead)))
        return (ForAhead((Load(),), ahead), loop)

    def epilogue(self, plan: GemmPlan) -> Steps:
        """Return the program step after the last k-tile: the wait for its MMAs.

        No stage is released, as no producer waits.
        """
        return (WaitMma(0),)
