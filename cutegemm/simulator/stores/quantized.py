"""Simulation of the step that quantizes a tile of D by blocks of 1 x 128."""

from __future__ import annotations

import numpy as np

from cutegemm.plan.epilogue.quantized import Quantized
from cutegemm.plan.mainloop.block_scaled import BLOCK
from cutegemm.plan.program.operations import Compute
from cutegemm.plan.store.quantized import QuantizeTile
from cutegemm.simulator.blocks import scaled
from cutegemm.simulator.copies import CtaGroup
from cutegemm.simulator.protocol.protocol import Process
from cutegemm.simulator.roles import Player


@Player.handles(QuantizeTile)
def quantize_tile(player: Player, quantize: QuantizeTile, number: int, process: Process, op: Compute) -> None:
    """Simulate the step that quantizes a tile: evaluate the epilogue, store the scales of D, and divide by them.

    player     simulator of all warp roles, with their registers and shared memory
    quantize   the step, which names the result that holds the scales
    number     index of `process` in the list of all simulated processes
    process    the simulated consumer (a warp role of one CTA) that executes the step
    op         entry of the process's list of operations that contains the step; `op.tag[0]` is the tile
    """
    storage, epilogue = player.storage, player.plan.epilogue
    group, values = player.own_group(process, op.tag[0]), epilogue.expression
    assert isinstance(values, Quantized)
    assert epilogue.quantized is not None
    registers, count = player.registers[number], player.plan.store.epi_tile_count(player.plan)
    parts = [storage.evaluated(epilogue.quantized, registers, i, group)["d"] for i in range(count)]
    (rows, columns), elements = player.plan.consumer_d_tile, storage.elements[player.consumer(process)]
    elements = storage.place_in_d(elements)
    m, n = elements % rows, elements // rows  # (threads, registers)
    tile = np.empty((len(group), rows, columns), np.float32)
    tile[:, m, n] = np.concatenate(parts, axis=-1)
    first_n = storage.at(group, 0)[1]
    outside = first_n[:, None] + np.arange(columns) >= storage.d.extents[1]
    whole, scales = scaled(np.where(outside[:, None], np.float32(0), tile), values)
    _store(player, quantize.scales, scales, group, first_n)
    player.registers[number] = whole[:, m, n]


def _store(player: Player, name: str, scales: np.ndarray, group: CtaGroup, first_n: np.ndarray) -> None:
    """Store the scales of a quantized D for the rows and columns of some tiles, except outside of D.

    player    simulator of all warp roles
    name      name of the result that holds the scales
    scales    (CTAs, rows, blocks of 128 columns)
    group     the simulated CTAs, with the coordinates of each one's tile, counted in tiles of a consumer
    first_n   first column in D of each CTA's tile: (CTAs,)
    """
    result, (rows, blocks) = player.storage.aux[name], scales.shape[1:]
    matrix = result.matrix
    m = group.m_tile[:, None, None] * rows + np.arange(rows)[:, None]
    n = first_n[:, None, None] // BLOCK + np.arange(blocks)
    inside = (m < matrix.extents[0]) & (n < matrix.extents[1])
    index = matrix.base + matrix.addresses(m, n) + group.batch[:, None, None] * matrix.strides[2]
    result.write(index[inside], scales[inside])
