"""Boxes of tensors that an instruction names, and where they lie in global memory."""

from __future__ import annotations

import numpy as np

from cutegemm.emulator.hopper.faults import RuleViolation
from cutegemm.emulator.hopper.proxy import Request
from cutegemm.emulator.hopper.tensormap import TENSOR_MAP_BYTES, TensorMap
from cutegemm.emulator.state import Buffer, Instruction, Memory, Step
from cutegemm.errors import UnsupportedError


def check_form(instruction: Instruction) -> None:
    """Boxes in tiles only, of one to five modes. raises UnsupportedError"""
    unserved = {"im2col", "im2col::w", "tile::gather4", "tile::scatter4"} & set(instruction.opcode)
    if unserved:
        raise UnsupportedError(
            f"emulate: line {instruction.line}: {unserved.pop()} is not carried out: {instruction.text[:100]}"
        )


class Boxes:
    """The boxes that an instruction's threads name: a tensor map and a corner each."""

    def __init__(self, step: Step, at: Memory) -> None:
        self.step, self.addresses = step, step.address(at)
        step.machine.check_waited(step.threads)
        assert at.coordinates is not None
        self.corners = np.stack([step.get(c, np.int32) for c in at.coordinates.items], axis=1).tolist()

    def of(self, i: int) -> tuple[TensorMap, tuple[int, ...]]:
        """The tensor map and the corner of the i-th thread's box. raises RuleViolation"""
        found = map_at(self.step, int(self.addresses[i]))
        corner = tuple(self.corners[i])
        if len(corner) != len(found.extents):
            raise RuleViolation(f"{len(corner)} coordinates for a tensor map of {len(found.extents)} modes.")
        return found, corner


def map_at(step: Step, address: int) -> TensorMap:
    """The tensor map at a generic address. raises RuleViolation, EmulationError"""
    return TensorMap.of(step.machine.read_bytes(step, address, TENSOR_MAP_BYTES).tobytes())


def places(copy: Request, box: TensorMap, address: np.ndarray, chosen: np.ndarray) -> tuple[Buffer, np.ndarray]:
    """The buffer of a tensor map, and where in it the chosen bytes (units, 16) are. raises EmulationError"""
    buffer = copy.machine.memory.buffer_of(box.address)
    if buffer is None:
        raise copy.fail(f"its tensor map begins at {box.address:#x}, in no buffer of global memory.")
    at = (address[:, None] + np.arange(chosen.shape[1]) - buffer.base)[chosen]
    stray = np.flatnonzero((at < 0) | (at >= len(buffer.data)))
    if len(stray):
        raise copy.fail(f"address {int(at[stray[0]]) + buffer.base:#x} lies outside of {buffer.name}.")
    return buffer, at
