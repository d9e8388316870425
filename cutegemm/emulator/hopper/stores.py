"""Handlers of TMA stores and reductions, and of bulk groups: threads wait for the stores of a group together.

Shared memory is read when a thread waits for that (cp.async.bulk.wait_group.read). Global memory is written as late as
possible, or when a thread waits for that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cutegemm.dtypes import DType, round_to
from cutegemm.emulator.hopper.boxes import Boxes, check_form, places
from cutegemm.emulator.hopper.faults import RuleViolation
from cutegemm.emulator.hopper.proxy import Request, proxy_of
from cutegemm.emulator.hopper.tensormap import UNIT_BYTES, TensorMap
from cutegemm.emulator.machine import Machine
from cutegemm.emulator.order import DEVICE, Access, Strength
from cutegemm.emulator.scalar import exact_bits, values_of
from cutegemm.emulator.state import FULL, GlobalMemory, Immediate, Step, handles

_REDUCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda old, new: old + new,
    "min": np.minimum,
    "max": np.maximum,
}


@dataclass
class _Store:
    """A TMA store that has been issued: of one box from shared to global memory.

    copy        the access to shared memory, for race detection
    map         tensor map of the box
    corner      coordinates of its first element
    reduction   "add", "min" or "max"; None for a plain store
    values      uint8 (units, 16), the bytes of the box in 16-byte units; None until shared memory is read
    written     whether global memory has been written
    """

    copy: Request
    map: TensorMap
    corner: tuple[int, ...]
    reduction: str | None
    values: np.ndarray | None = None
    written: bool = False

    def read(self) -> None:
        """Read the box of this TMA store from shared memory, unless that has been done already.

        raises   EmulationError for a race, or bytes that are unwritten or unfenced
        """
        if self.values is not None:
            return
        copy, proxy = self.copy, proxy_of(self.copy.machine)
        proxy.to_be_read[copy.slot, copy.units // UNIT_BYTES] -= 1
        self.values = proxy.read(copy)
        proxy.publish(("bulk", copy.thread), copy)
        proxy.later(self.write)

    def write(self) -> None:
        """Write the box of this TMA store to global memory, unless that has been done already.

        raises   EmulationError for a race, or a write outside of the matrix
        """
        if self.written:
            return
        assert self.values is not None
        self.written = True
        copy, machine, units = self.copy, self.copy.machine, self.map.units(self.corner)
        buffer, at = places(copy, self.map, units.address, units.whole)
        outside = np.flatnonzero(buffer.state[at] == GlobalMemory.OUTSIDE)
        if len(outside):
            raise copy.fail(
                f"it writes {buffer.place(int(at[outside[0]]))}, which lies outside of the matrix: TMA writes whole "
                "units of 16 bytes."
            )
        if machine.order is not None:
            strength = Strength() if self.reduction is None else Strength(DEVICE, adds=True)
            access = Access(copy.instruction, np.array([copy.thread]), strength)
            machine.order.write_bytes(access, buffer, at)
        new = self.values[units.whole]
        if self.reduction is not None:
            origins = np.flatnonzero(buffer.state[at] != FULL)
            if len(origins):
                place = buffer.place(int(at[origins[0]]))
                raise copy.fail(f"it reduces into {place}, which has not been written.")
            new = _reduced(self.reduction, self.map.element, buffer.data[at], new)
        buffer.data[at] = new
        buffer.state[at] = FULL
        buffer.stored_bytes += len(at)
        machine.notify()


_INTEGERS = {"u32": "u4", "s32": "i4", "u64": "u8", "s64": "i8"}


def _reduced(name: str, element: str, old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Combine old and new elements as a TMA reduction does, rounded to their type.

    name       "add", "min" or "max"
    element    element type, as tensor maps name it
    old, new   uint8, bytes of the elements
    returns    uint8, bytes of the results
    """
    reduce = _REDUCTIONS[name]
    if element in _INTEGERS:
        kind = np.dtype(_INTEGERS[element])
        return np.ascontiguousarray(reduce(old.view(kind), new.view(kind))).view(np.uint8)
    dtype = DType.parse(element.removesuffix(".ftz"))
    a, b = (values_of(dtype, raw.view(f"u{dtype.bits // 8}")) for raw in (old, new))
    return exact_bits(dtype, round_to(dtype, reduce(a, b))).view(np.uint8)


@dataclass
class _Groups:
    """The TMA stores that one thread has issued, in bulk groups: a thread waits for all stores of a group together.

    open     stores that the thread has not committed to a group yet
    closed   stores of each committed group, the oldest group first
    """

    open: list[_Store] = field(default_factory=list)
    closed: list[list[_Store]] = field(default_factory=list)


def _groups(machine: Machine) -> dict[int, _Groups]:
    """Return the TMA stores that threads have issued: number of a thread -> its stores in groups."""
    if "bulk groups" not in machine.private:
        machine.private["bulk groups"] = {}
        machine.ending.append(lambda threads: _check_read(machine, threads))
    return machine.private["bulk groups"]


def store_boxes(step: Step, reduction: str | None) -> None:
    """Issue TMA stores `[map, {corner}], [shared]{, policy}`, one for each thread or for lanes with equal operands.

    Lanes of a warp with the same operands issue one store. The DSL generates such code, and ptxas turns it into one
    UTMASTG, which a warp executes once.

    reduction   "add", "min" or "max" to combine with global memory; None for a plain store
    """
    machine = step.machine
    target, source, *_ = step.operands
    slots, offsets = machine.shared_place(step, step.address(source), 1)
    boxes = Boxes(step, target)
    sent: dict[Any, _Store] = {}
    for i, number in enumerate(step.threads):
        thread, slot = int(number), int(slots[i])
        try:
            box, corner = boxes.box(i)
            units = box.shared_units(int(offsets[i]))
        except RuleViolation as violations:
            raise step.fail(str(violations), thread) from None
        if reduction is not None and min(corner) < 0:  # an illegal instruction on an H100 (2026-11-28)
            raise step.fail(f"it reduces into a box at {corner}; a coordinate is negative.", thread)
        key = (int(machine.warp_of[thread]), box, corner, int(offsets[i]))
        if key not in sent:
            copy = proxy_of(machine).request(step.instruction, thread, slot, units)
            proxy_of(machine).check_fenced(copy)
            sent[key] = _Store(copy, box, corner, reduction)
            proxy_of(machine).to_be_read[slot, units // UNIT_BYTES] += 1
        _groups(machine).setdefault(thread, _Groups()).open.append(sent[key])


@handles("cp.reduce.async.bulk.tensor", check=check_form)
def _reduce(step: Step) -> None:
    """Execute cp.reduce.async.bulk.tensor: a TMA store that adds to global memory, or takes the minimum or maximum."""
    name = next((part for part in step.instruction.opcode if part in _REDUCTIONS), None)
    if name is None:
        raise step.fail("the emulator does not implement this reduction.")
    store_boxes(step, name)


@handles("cp.async.bulk.commit_group")
def _commit(step: Step) -> None:
    """Execute cp.async.bulk.commit_group: put the thread's uncommitted TMA stores into a new group."""
    for number in step.threads:
        groups = _groups(step.machine).setdefault(int(number), _Groups())
        groups.closed.append(groups.open)
        groups.open = []


@handles("cp.async.bulk.wait_group")
def _wait(step: Step) -> None:
    """Execute cp.async.bulk.wait_group: wait for all groups of TMA stores of the thread but the `count` latest.

    With .read, only the reads of shared memory are finished; without it, also the writes of global memory.
    """
    machine = step.machine
    (count,) = step.operands
    assert isinstance(count, Immediate)
    for number in step.threads:
        thread = int(number)
        groups = _groups(machine).get(thread)
        if groups is None:
            continue
        due = groups.closed[: max(0, len(groups.closed) - count.bits)]
        for store in [store for group in due for store in group]:
            store.read()
            if "read" not in step.instruction.opcode:
                store.write()
        if machine.clocks is not None:
            for asked in {store.copy.thread for group in due for store in group}:
                machine.clocks.acquire(("bulk", asked), machine.agent_of[thread : thread + 1])
        groups.closed = [group for group in groups.closed if not all(store.written for store in group)]


def _check_read(machine: Machine, threads: np.ndarray) -> None:
    """Raise EmulationError if a thread ends before its TMA stores have read shared memory.

    threads   numbers of the threads that have just ended
    """
    for number in threads:
        groups = _groups(machine).get(int(number))
        if groups is None:
            continue
        for store in [store for group in (groups.open, *groups.closed) for store in group]:
            if store.values is None:
                raise store.copy.fail(
                    "the thread ends before this copy has read shared memory: cp.async.bulk.wait_group.read is missing."
                )
