"""Simulation of accumulator promotion: the accumulators of a k-tile are added to a total."""

from __future__ import annotations

from cutegemm.plan.mainloop.promoted import Promote
from cutegemm.plan.program.operations import Compute
from cutegemm.simulator.protocol.protocol import Process
from cutegemm.simulator.roles import Player


@Player.handles(Promote)
def promote(player: Player, add: Promote, number: int, process: Process, op: Compute) -> None:
    """Add the accumulators of a k-tile to the total."""
    player.add_level(number, process, add.accumulators)
