"""wgmma that reads A from registers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cutegemm.plan.mainloop.base import Mainloop, Steps
from cutegemm.plan.program.steps import Multiply, Release, Wait, WaitMma

if TYPE_CHECKING:
    from cutegemm.plan.plan import GemmPlan


class RegisterShared(Mainloop):
    """Mainloop with A from registers: threads copy A there from shared memory, and wgmma reads B in shared memory."""

    def k_tile(self, plan: GemmPlan) -> Steps:
        """Return the program steps that multiply one k-tile, with A from registers.

        They wait for all MMAs of the previous k-tile first, since these still read the registers of A.
        """
        return (Wait("full"), WaitMma(0), Release(previous=True), Multiply())
