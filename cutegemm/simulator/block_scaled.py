"""Simulation of block-scaled operands: scales are read, and multiply the accumulators that are added to a total."""

from __future__ import annotations

import numpy as np

from cutegemm.plan.mainloop.block_scaled import (
    BLOCK,
    ClearScales,
    PromoteScaled,
    ReadScales,
    Scales,
    scales_of,
)
from cutegemm.plan.program.operations import Compute
from cutegemm.simulator.protocol.protocol import Process
from cutegemm.simulator.roles import Player


@Player.handles(ClearScales)
def clear_scales(player: Player, clear: ClearScales, number: int, process: Process, op: Compute) -> None:
    """Set the scales that a process keeps for its k-tile to 0. The process is a consumer of a block-scaled GEMM.

    clear     the step to execute
    number    index of the process in the protocol
    process   the process: the operations of one role of a CTA
    op        the operation that contains the step
    """
    player.of_mainloop[number] = np.zeros((1, 1, 1), np.float32)


@Player.handles(ReadScales)
def read_scales(player: Player, read: ReadScales, number: int, process: Process, op: Compute) -> None:
    """Read the scales of a k-tile, and keep the products of row scales and column scales: (CTAs, M, N).

    read      the step to execute
    number    index of the process in the protocol
    process   the process: the operations of one role of a CTA
    op        the operation that contains the step
    """
    rows, columns = (_scales(player, each, process, op) for each in scales_of(player.plan))
    player.of_mainloop[number] = rows[:, :, None] * columns[:, None, :]


@Player.handles(PromoteScaled)
def promote_scaled(player: Player, add: PromoteScaled, number: int, process: Process, op: Compute) -> None:
    """Multiply the accumulators of a k-tile by its scales, and add them to the total of the tile.

    add       the step to execute
    number    index of the process in the protocol
    process   the process: the operations of one role of a CTA
    op        the operation that contains the step
    """
    columns, scales = player.columns_of(add.accumulators), player.of_mainloop[number]
    scales = scales if scales.shape[2] == 1 else scales[:, :, columns]
    player.add_level(number, process, add.accumulators, scales)


def _scales(player: Player, scales: Scales, process: Process, op: Compute) -> np.ndarray:
    """Return the scales of the rows or columns of a consumer's tile, for a k-tile: (CTAs, rows or columns).

    player   the simulated machine, which has the matrices
    scales   description of the scales: whether they are one per row or column, or one per block
    op       the operation, whose tag names the tile and the k-tile
    """
    if not scales.by_block:
        own = player.own_split(process)[scales.mode == "n"]
        return np.asarray(player.flows[process.cta][scales.name].read(op.stage)[own, 0].T)
    group, matrix = player.own_group(process, op.tag[0]), player.stage.matrices[scales.name]
    tile = group.m_tile if scales.mode == "m" else group.n_tile
    first = tile[:, None] * scales.extent + np.arange(0, scales.extent, scales.run)
    blocks = np.minimum(first // BLOCK, matrix.extents[0] - 1)  # the last block serves what lies beyond it
    k_block = (player.shape(process, op.tag[0]).k_first + op.tag[1])[:, None]
    index = matrix.base + matrix.addresses(blocks, k_block) + group.batch[:, None] * matrix.strides[2]
    return np.asarray(matrix.buffer[index][:, scales.layout.offsets()])
