"""Simulation of the mainloop of warps that multiply by mma.sync, one k-block after the other."""

from __future__ import annotations

from cutegemm.plan.mainloop.warp_mma import MultiplyBlock
from cutegemm.plan.program.operations import Compute
from cutegemm.simulator.protocol.protocol import Process
from cutegemm.simulator.roles import Player


@Player.handles(MultiplyBlock)
def multiply_block(player: Player, block: MultiplyBlock, number: int, process: Process, op: Compute) -> None:
    """Multiply a k-block: A @ B of a k-tile is added to the accumulators with its last k-block."""
    product = player.complete_product(number, process, op, range(block.k_block, block.k_block + 1))
    if product is not None:
        player.accumulators[number] = player.accumulators[number] + product
