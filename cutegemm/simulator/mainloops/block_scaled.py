"""Simulation of block-scaled operands: scales are read, and multiply the accumulators that are added to a total."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from cutegemm.plan.mainloop.block_scaled import (
    BLOCK,
    LANES,
    ClearScales,
    LoadScales,
    PromoteScaled,
    ReadScales,
    ReloadScales,
    Scales,
    block_scales_of,
    scales_of,
)
from cutegemm.plan.program.operations import Compute
from cutegemm.simulator.protocol.protocol import Process
from cutegemm.simulator.roles import Player


@dataclass
class Registers:
    """The block scales that the threads of one simulated consumer hold in registers.

    Scales of 128 x 128 blocks are spread over the lanes of a warp: each lane holds those of one k-tile, for 32 k-tiles
    in all. A thread gets the scales of another lane by a shuffle.

    both   factors of the accumulators of the present k-tile, row scale times column scale: (CTAs, M, N)
    now    operand -> scales of the present 32 k-tiles: (CTAs, blocks of rows or columns, lanes)
    next   operand -> scales of the 32 k-tiles after those, with the same shape
    k      position of the next k-tile: lane k % 32 has its scales. It starts at 1 if the work tile has an odd number of
           k-tiles, else at 0, so that pairs of k-tiles begin at even lanes
    """

    both: np.ndarray = field(default_factory=lambda: np.zeros((1, 1, 1), np.float32))
    now: dict[str, np.ndarray] = field(default_factory=dict)
    next: dict[str, np.ndarray] = field(default_factory=dict)
    k: int = 0


@Player.handles(ClearScales)
def clear_scales(player: Player, clear: ClearScales, number: int, process: Process, op: Compute) -> None:
    """Simulate the step that sets the block scales in a consumer's registers to 0.

    player    simulator of all warp roles, with their registers and shared memory
    clear     the step
    number    index of `process` in the list of all simulated processes
    process   the simulated warp role of one CTA that executes the step, e.g. consumer 0 of CTA 1
    op        entry of the process's list of operations that contains the step
    """
    player.of_mainloop[number] = Registers()


@Player.handles(LoadScales)
def load_scales(player: Player, load: LoadScales, number: int, process: Process, op: Compute) -> None:
    """Simulate the step that loads 128 x 128 block scales of the first 64 k-tiles to registers, two in each lane.

    player    simulator of all warp roles, with their registers and shared memory
    load      the step
    number    index of `process` in the list of all simulated processes
    process   the simulated warp role of one CTA that executes the step, e.g. consumer 0 of CTA 1
    op        entry of the process's list of operations that contains the step; `op.tag[0]` is the tile
    """
    registers: Registers = player.of_mainloop[number]
    registers.k = player.shape(process, op.tag[0]).tile.k_count % 2
    for scales in block_scales_of(player.plan):
        registers.now[scales.name] = _of_lanes(player, scales, process, op, 0)
        registers.next[scales.name] = _of_lanes(player, scales, process, op, LANES)


@Player.handles(ReloadScales)
def reload_scales(player: Player, reload: ReloadScales, number: int, process: Process, op: Compute) -> None:
    """Simulate the step that replaces the block scales in the lanes by those of the next 32 k-tiles.

    Each lane holds the scales of one k-tile. The step does nothing until all 32 lanes have been read.

    player    simulator of all warp roles, with their registers and shared memory
    reload    the step
    number    index of `process` in the list of all simulated processes
    process   the simulated warp role of one CTA that executes the step, e.g. consumer 0 of CTA 1
    op        entry of the process's list of operations that contains the step; `op.tag[0]` is the tile
    """
    registers: Registers = player.of_mainloop[number]
    if registers.k % LANES:
        return
    registers.now = registers.next
    registers.next = {
        scales.name: _of_lanes(player, scales, process, op, registers.k + LANES)
        for scales in block_scales_of(player.plan)
    }


@Player.handles(ReadScales)
def read_scales(player: Player, read: ReadScales, number: int, process: Process, op: Compute) -> None:
    """Simulate the step that reads the block scales of a k-tile, and keep row scale times column scale of each element.

    player    simulator of all warp roles, with their registers and shared memory
    read      the step
    number    index of `process` in the list of all simulated processes
    process   the simulated warp role of one CTA that executes the step, e.g. consumer 0 of CTA 1
    op        entry of the process's list of operations that contains the step; `op.stage` is the stage that has scales
              of single rows
    """
    registers: Registers = player.of_mainloop[number]
    found = []
    for scales in scales_of(player.plan):
        if scales.by_block:
            found.append(registers.now[scales.name][:, :, registers.k % LANES])
        else:
            along = int(scales.mode == "n")
            own = np.arange(player.plan.mma_tile[along])[player.own_split(process)[along]]
            values = player.flows[process.cta][scales.name].read(op.stage)[:, 0]
            before = player.rows_before(scales.name, player.shape(process, op.tag[0]).group)
            at = np.broadcast_to(own[:, None] + before, (len(own), values.shape[1]))
            found.append(np.take_along_axis(values, at, 0).T)
    registers.k += 1
    rows, columns = found
    registers.both = rows[:, :, None] * columns[:, None, :]


@Player.handles(PromoteScaled)
def promote_scaled(player: Player, add: PromoteScaled, number: int, process: Process, op: Compute) -> None:
    """Simulate the program step that adds a k-tile's accumulators, multiplied by block scales, to the total.

    player    simulator of all warp roles, with their registers and shared memory
    add       the step, which names the accumulators
    number    index of `process` in the list of all simulated processes
    process   the simulated warp role of one CTA that executes the operation, e.g. consumer 0 of CTA 1
    op        entry of the process's list of operations that contains the step
    """
    columns, scales = player.columns_of(add.accumulators), player.of_mainloop[number].both
    scales = scales if scales.shape[2] == 1 else scales[:, :, columns]
    player.add_level(number, process, add.accumulators, scales)


def _of_lanes(player: Player, scales: Scales, process: Process, op: Compute, first: int) -> np.ndarray:
    """Return the scales of 128 x 128 blocks that the lanes of a warp load: (CTAs, rows or columns, lanes).

    Each of the 32 lanes loads those of one k-tile, and 0 if the work tile has no such k-tile.

    player    simulator of all warp roles, which has the matrices
    scales    which operand has the scales, and which rows or columns share one
    process   the consumer that loads (a warp role of one CTA)
    op        the simulated operation; `op.tag[0]` is the tile
    first     index of the k-tile of lane 0, plus 1 if the work tile has an odd number of k-tiles
    """
    count = player.shape(process, op.tag[0]).tile.k_count
    k = first - count % 2 + np.arange(LANES)
    if not count:
        return np.zeros((len(player.shape(process, op.tag[0]).k_first), scales.extent, LANES), np.float32)
    found = _of_blocks(player, scales, process, op, np.clip(k, 0, count - 1))
    return np.where((k >= 0) & (k < count), found, np.float32(0))


def _of_blocks(player: Player, scales: Scales, process: Process, op: Compute, k: np.ndarray) -> np.ndarray:
    """Return the scales of 128 x 128 blocks for a consumer's tile: (CTAs, rows or columns, k-tiles).

    player    simulator of all warp roles, which has the matrices
    scales    which operand has the scales, and which rows or columns share one
    process   the consumer (a warp role of one CTA)
    op        the simulated operation; `op.tag[0]` is the tile
    k         indices of k-tiles in the work tile: an integer array
    """
    group, matrix = player.own_group(process, op.tag[0]), player.stage.matrices[scales.name]
    tile = group.m_tile if scales.mode == "m" else group.n_tile
    first = tile[:, None] * scales.extent + np.arange(0, scales.extent, scales.run)
    blocks = np.minimum(first // BLOCK, matrix.extents[0] - 1)  # the last block serves what lies beyond it
    k_block = player.shape(process, op.tag[0]).k_first[:, None, None] + k
    at = matrix.addresses(blocks[:, :, None], k_block)
    index = matrix.base + at + group.batch[:, None, None] * matrix.strides[2]
    return np.asarray(matrix.buffer[index][:, scales.layout.offsets()])
