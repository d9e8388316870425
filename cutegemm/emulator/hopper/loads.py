"""Handlers of TMA loads.

A box arrives as late as possible. Until then its bytes are PENDING, and its mbarrier lacks them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cutegemm.dtypes import round_to, tf32
from cutegemm.emulator.hopper.barriers import barrier_key, barriers_of, check_reachable
from cutegemm.emulator.hopper.boxes import Boxes, check_form, map_at, places
from cutegemm.emulator.hopper.faults import RuleViolation
from cutegemm.emulator.hopper.mbarrier import MBARRIER_BYTES
from cutegemm.emulator.hopper.proxy import Request, proxy_of
from cutegemm.emulator.hopper.stores import store_boxes
from cutegemm.emulator.hopper.tensormap import TensorMap
from cutegemm.emulator.state import EMPTY, FULL, Step, handles


@handles("prefetch", "cp.async.bulk.prefetch")
def _prefetch(step: Step) -> None:
    """Execute prefetch. If it is for a tensor map, check that the address holds one; otherwise it has no effect."""
    if "tensormap" in step.instruction.opcode:
        addresses = step.address(step.operands[0])
        for address, thread in zip(addresses.tolist(), step.threads, strict=True):
            try:
                map_at(step, address)
            except RuleViolation as violations:
                raise step.fail(str(violations), int(thread)) from None


@dataclass(frozen=True)
class _Load:
    """A TMA load that has been issued: of one box into the shared memory of one CTA.

    copy      the access to shared memory, for race detection
    map       tensor map of the box
    corner    coordinates of its first element
    barrier   address of the mbarrier in that CTA that counts the bytes
    """

    copy: Request
    map: TensorMap
    corner: tuple[int, ...]
    barrier: int

    def land(self) -> None:
        """Finish this TMA load: write the box to shared memory, and count its bytes at the mbarrier.

        raises   EmulationError for a fault in global memory, an invalid mbarrier, or a CTA that has ended
        """
        machine, slot = self.copy.machine, self.copy.slot
        if not machine.alive[machine.block_of == slot].any():
            raise self.copy.fail("the CTA has ended before its copy to shared memory was complete.")
        proxy = proxy_of(machine)
        proxy.end_write(self.copy, self._from_global())
        try:
            barrier = barriers_of(machine, slot).at(self.barrier)
            proxy.publish(barrier_key(slot, self.barrier, barrier.phase), self.copy)
            barrier.complete_tx(self.map.box_bytes)
        except RuleViolation as violations:
            raise self.copy.fail(str(violations)) from None
        machine.notify()

    def _from_global(self) -> np.ndarray:
        """Read the box from global memory as 16-byte units, (units, 16), with zeros for bytes out of bounds.

        raises   EmulationError for an address outside of a buffer, or bytes that were never written
        """
        units = self.map.units(self.corner)
        out = np.zeros(units.inside.shape, np.uint8)
        buffer, at = places(self.copy, self.map, units.address, units.inside)
        states = buffer.state[at]
        if (states != FULL).any():
            first = int(np.flatnonzero(states != FULL)[0])
            why = "which has not been written" if states[first] == EMPTY else "outside of the matrix"
            raise self.copy.fail(f"it reads {buffer.place(int(at[first]))}, {why}.")
        out[units.inside] = buffer.data[at]
        if self.map.element == "tf32":
            return round_to(tf32, out.view(np.float32), "rne").view(np.uint8)
        return out


@handles("cp.async.bulk.tensor", check=check_form)
def _copy(step: Step) -> None:
    """Execute cp.async.bulk.tensor: a load `[shared], [map, {corner}], [mbarrier]{, CTA mask}{, policy}`, or a store.

    A CTA mask means multicast to several CTAs of the cluster. Stores are left to `store_boxes`.
    """
    opcode = step.instruction.opcode
    if "mbarrier::complete_tx::bytes" not in opcode:
        store_boxes(step, None)
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
            box, corner = boxes.box(i)
            units = box.shared_units(int(offsets[i]))
            targets = [slot]
            if "multicast::cluster" in opcode:
                mask = int(step.get(more[0], np.uint16)[i])
                if mask >> len(cluster) or not mask:
                    raise RuleViolation(
                        f"the multicast mask {mask:#x} is not valid for a cluster of {len(cluster)} CTAs."
                    )
                targets = [cluster[rank] for rank in range(len(cluster)) if mask >> rank & 1]
            elif int(barrier_slots[i]) != slot:
                raise RuleViolation("the destination and the mbarrier of a copy lie in different CTAs.")
            place = int(barrier_offsets[i])
            for target in targets:
                check_reachable(step, thread, target, barriers_of(machine, target).at(place))
        except RuleViolation as violations:
            raise step.fail(str(violations), thread) from None
        proxy = proxy_of(machine)
        for target in targets:
            number = barriers_of(machine, target).at(place).number
            copy = proxy.request(step.instruction, thread, target, units, number)
            proxy.begin_write(copy)
            proxy.later(_Load(copy, box, corner, place).land)
