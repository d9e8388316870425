"""Handlers: boxes that TMA brings to shared memory.

A box comes as late as can be; until then its bytes are on their way, and its barrier lacks them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cutegemm.emulate.hopper.barriers import barrier_key, barriers_of, check_there
from cutegemm.emulate.hopper.boxes import Boxes, check_form, map_at, places
from cutegemm.emulate.hopper.faults import RuleBroken
from cutegemm.emulate.hopper.mbarrier import MBARRIER_BYTES
from cutegemm.emulate.hopper.proxy import proxy_of
from cutegemm.emulate.hopper.stores import leave
from cutegemm.emulate.hopper.tensormap import TensorMap
from cutegemm.emulate.machine import Machine
from cutegemm.emulate.state import EMPTY, FULL, Instruction, Step, handles


@handles("prefetch", "cp.async.bulk.prefetch")
def _prefetch(step: Step) -> None:
    """What it names must be a tensor map; nothing else can be seen of it."""
    if "tensormap" in step.instruction.opcode:
        addresses = step.address(step.operands[0])
        for address, thread in zip(addresses.tolist(), step.threads, strict=True):
            try:
                map_at(step, address)
            except RuleBroken as broken:
                raise step.fail(str(broken), int(thread)) from None


@dataclass
class _Load:
    """A box on its way to one CTA. known: what the asking thread knew of that CTA's warps."""

    machine: Machine
    instruction: Instruction
    thread: int
    map: TensorMap
    corner: tuple[int, ...]
    slot: int
    units: np.ndarray
    barrier: int
    known: np.ndarray | None

    def begin(self) -> None:
        number = barriers_of(self.machine, self.slot).at(self.barrier).number
        proxy_of(self.machine).begin_write(
            self.instruction, self.thread, self.slot, self.units, self.known, number
        )

    def land(self) -> None:
        """The bytes come, and the barrier hears of it."""
        machine = self.machine
        if not machine.alive[machine.block_of == self.slot].any():
            raise machine.error(
                self.instruction, self.thread, "CTA has ended before its copy to shared memory has come."
            )
        values = _from_global(machine, self.instruction, self.thread, self.map, self.corner)
        proxy = proxy_of(machine)
        proxy.end_write(self.slot, self.units, values)
        try:
            barrier = barriers_of(machine, self.slot).at(self.barrier)
            key = barrier_key(self.slot, self.barrier, barrier.phase)
            proxy.publish(key, self.slot, self.known, barrier.number)
            barrier.complete_tx(self.map.box_bytes)
        except RuleBroken as broken:
            raise machine.error(self.instruction, self.thread, str(broken)) from None
        machine.notify()


def _from_global(
    machine: Machine, instruction: Instruction, thread: int, box: TensorMap, corner: tuple[int, ...]
) -> np.ndarray:
    """(units, 16) bytes of a box, zeros for what is out of bounds. raises EmulationError"""
    units = box.units(corner)
    out = np.zeros(units.inside.shape, np.uint8)
    buffer, at = places(machine, instruction, thread, box, units.address, units.inside)
    states = buffer.state[at]
    if (states != FULL).any():
        first = int(np.flatnonzero(states != FULL)[0])
        why = "to which nothing has been written" if states[first] == EMPTY else "outside of the matrix"
        raise machine.error(instruction, thread, f"it reads {buffer.place(int(at[first]))}, {why}.")
    out[units.inside] = buffer.data[at]
    return out


@handles("cp.async.bulk.tensor", check=check_form)
def _copy(step: Step) -> None:
    """A load: [shared], [map, {corner}], [barrier]{, CTAs}{, policy}; or a store: see `leave`."""
    opcode = step.instruction.opcode
    if "mbarrier::complete_tx::bytes" not in opcode:
        leave(step, None)
        return
    machine = step.machine
    dest, source, barrier, *more = step.operands
    slots, offsets = machine.shared_place(step, step.address(dest), 1)
    boxes = Boxes(step, source)
    barrier_slots, barrier_offsets = machine.shared_place(step, step.address(barrier), MBARRIER_BYTES)
    for i, number in enumerate(step.threads):
        thread, slot = int(number), int(slots[i])
        cluster = machine.blocks[slot].cluster
        try:
            box, corner = boxes.of(i)
            units = box.shared_units(int(offsets[i]))
            targets = [slot]
            if "multicast::cluster" in opcode:
                mask = int(step.get(more[0], np.uint16)[i])
                if mask >> len(cluster) or not mask:
                    raise RuleBroken(f"the multicast mask {mask:#x} of a cluster of {len(cluster)} CTAs.")
                targets = [cluster[rank] for rank in range(len(cluster)) if mask >> rank & 1]
            elif int(barrier_slots[i]) != slot:
                raise RuleBroken("the destination and the barrier of a copy lie in different CTAs.")
            place = int(barrier_offsets[i])
            for target in targets:
                check_there(step, thread, target, barriers_of(machine, target).at(place))
        except RuleBroken as broken:
            raise step.fail(str(broken), thread) from None
        for target in targets:
            known = proxy_of(machine).known_by(thread, target)
            load = _Load(machine, step.instruction, thread, box, corner, target, units, place, known)
            load.begin()
            proxy_of(machine).later(load.land)
