"""TMA boxes that an instruction names, and their bytes in global memory."""

from __future__ import annotations

import numpy as np

from cutegemm.emulator.hopper.faults import RuleViolation
from cutegemm.emulator.hopper.proxy import Request
from cutegemm.emulator.hopper.tensormap import TENSOR_MAP_BYTES, TensorMap
from cutegemm.emulator.state import Buffer, Instruction, Memory, Step
from cutegemm.errors import UnsupportedError


def check_form(instruction: Instruction) -> None:
    """Raise UnsupportedError if a TMA instruction has a mode other than tiles, such as im2col."""
    unserved = {"im2col", "im2col::w", "tile::gather4", "tile::scatter4"} & set(instruction.opcode)
    if unserved:
        raise UnsupportedError(
            f"emulate: line {instruction.line} uses {unserved.pop()}, which the emulator does not implement: "
            f"{instruction.text[:100]}"
        )


class Boxes:
    """The TMA boxes that one instruction copies: for each thread that executes it, a tensor map and a corner.

    step   the execution of the instruction
    at     the operand `[tensor map, {coordinates}]`
    """

    def __init__(self, step: Step, at: Memory) -> None:
        self.step, self.addresses = step, step.address(at)
        step.machine.check_waited(step.threads)
        assert at.coordinates is not None
        self.corners = np.stack([step.get(c, np.int32) for c in at.coordinates.items], axis=1).tolist()

    def box(self, i: int) -> tuple[TensorMap, tuple[int, ...]]:
        """Return the tensor map and the coordinates of the corner of the box that the i-th thread copies.

        raises   RuleViolation for an invalid tensor map, or if its rank is not the number of coordinates
        """
        tensor_map = map_at(self.step, int(self.addresses[i]))
        corner = tuple(self.corners[i])
        if len(corner) != len(tensor_map.extents):
            raise RuleViolation(f"{len(corner)} coordinates for a tensor map of {len(tensor_map.extents)} modes.")
        return tensor_map, corner


def map_at(step: Step, address: int) -> TensorMap:
    """Return the decoded tensor map that lies at a generic address.

    raises   RuleViolation for an invalid tensor map; EmulationError for an address out of bounds
    """
    return TensorMap.decode(step.machine.read_bytes(step, address, TENSOR_MAP_BYTES).tobytes())


def places(copy: Request, box: TensorMap, address: np.ndarray, chosen: np.ndarray) -> tuple[Buffer, np.ndarray]:
    """Find the bytes of a TMA box in global memory: the buffer that the tensor map describes, and offsets in it.

    copy      the TMA instruction, for messages
    address   (units,) global address of each 16-byte unit of the box
    chosen    bool (units, 16): the bytes whose offsets are returned
    returns   (buffer, offsets of the chosen bytes in it)
    raises    EmulationError if the tensor map does not describe a buffer, or a byte lies outside of it
    """
    buffer = copy.machine.memory.buffer_of(box.address)
    if buffer is None:
        raise copy.fail(f"its tensor map describes address {box.address:#x}, which lies in no buffer of global memory.")
    at = (address[:, None] + np.arange(chosen.shape[1]) - buffer.base)[chosen]
    stray = np.flatnonzero((at < 0) | (at >= len(buffer.data)))
    if len(stray):
        raise copy.fail(f"address {int(at[stray[0]]) + buffer.base:#x} lies outside of {buffer.name}.")
    return buffer, at
