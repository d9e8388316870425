"""Simulation of the mainloop of warps that multiply by mma.sync, one k-block after the other."""

from __future__ import annotations

from cutegemm.plan.mainloop.warp_mma import MultiplyBlock
from cutegemm.plan.program.operations import Compute
from cutegemm.simulator.protocol.protocol import Process
from cutegemm.simulator.roles import Player


@Player.handles(MultiplyBlock)
def multiply_block(player: Player, block: MultiplyBlock, number: int, process: Process, op: Compute) -> None:
    """Simulate the step that multiplies a k-block with mma.sync.

    The numbers of the whole k-tile, A @ B, are added to the accumulators when its last k-block is multiplied.

    player    simulator of all warp roles, with their registers and shared memory
    block     the step, which names the k-block
    number    index of `process` in the list of all simulated processes
    process   the simulated consumer (a warp role of one CTA)
    op        entry of the process's list of operations that contains the step; `op.tag` is (tile, k-tile)
    """
    product = player.complete_product(number, process, op, range(block.k_block, block.k_block + 1))
    if product is not None:
        player.accumulators[number] = player.accumulators[number] + product
