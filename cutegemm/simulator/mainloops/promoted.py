"""Simulation of accumulator promotion: the accumulators of a k-tile are added to a total."""

from __future__ import annotations

from cutegemm.plan.mainloop.promoted import Promote
from cutegemm.plan.program.operations import Compute
from cutegemm.simulator.protocol.protocol import Process
from cutegemm.simulator.roles import Player


@Player.handles(Promote)
def promote(player: Player, add: Promote, number: int, process: Process, op: Compute) -> None:
    """Simulate the step of accumulator promotion that adds the accumulators of one k-tile to the f32 total.

    player    simulator of all warp roles, with their registers and shared memory
    add       the step, which names the accumulators
    number    index of `process` in the list of all simulated processes
    process   the simulated consumer (a warp role of one CTA)
    op        entry of the process's list of operations that contains the step
    """
    player.add_level(number, process, add.accumulators)
