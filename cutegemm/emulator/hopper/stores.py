"""Handlers: boxes that leave shared memory by TMA, and the groups in which their threads wait for them.

Shared memory is read when the thread waits for that, global memory is written as late as can be, or when the thread
waits for that.
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
class _Leaving:
    """A box that leaves shared memory. reduction: None for a plain store."""

    copy: Request
    map: TensorMap
    corner: tuple[int, ...]
    reduction: str | None
    values: np.ndarray | None = None
    written: bool = False

    def read(self) -> None:
        """Takes the box out of shared memory, if that has not been done."""
        if self.values is not None:
            return
        copy, proxy = self.copy, proxy_of(self.copy.machine)
        proxy.to_be_read[copy.slot, copy.units // UNIT_BYTES] -= 1
        self.values = proxy.read(copy)
        proxy.publish(("bulk", copy.thread), copy)
        proxy.later(self.write)

    def write(self) -> None:
        """Puts it into global memory, if that has not been done."""
        if self.written:
            return
        assert self.values is not None
        self.written = True
        copy, machine, units = self.copy, self.copy.machine, self.map.units(self.corner)
        buffer, at = places(copy, self.map, units.address, units.whole)
        outside = np.flatnonzero(buffer.state[at] == GlobalMemory.OUTSIDE)
        if len(outside):
            raise copy.fail(
                f"it writes {buffer.place(int(at[outside[0]]))}, which is outside of the matrix: TMA writes whole "
                "16 bytes."
            )
        if machine.order is not None:
            strength = Strength() if self.reduction is None else Strength(DEVICE, adds=True)
            access = Access(copy.instruction, np.array([copy.thread]), strength)
            machine.order.write_bytes(access, buffer, at)
        new = self.values[units.whole]
        if self.reduction is not None:
            holes = np.flatnonzero(buffer.state[at] != FULL)
            if len(holes):
                place = buffer.place(int(at[holes[0]]))
                raise copy.fail(f"it reduces into {place}, to which nothing has been written.")
            new = _reduced(self.reduction, self.map.element, buffer.data[at], new)
        buffer.data[at] = new
        buffer.state[at] = FULL
        buffer.stored_bytes += len(at)
        machine.notify()


_WHOLE = {"u32": "u4", "s32": "i4", "u64": "u8", "s64": "i8"}


def _reduced(name: str, element: str, old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Bytes of the elements' sum, minimum or maximum, rounded to their type."""
    reduce = _REDUCTIONS[name]
    if element in _WHOLE:
        kind = np.dtype(_WHOLE[element])
        return np.ascontiguousarray(reduce(old.view(kind), new.view(kind))).view(np.uint8)
    dtype = DType.parse(element.removesuffix(".ftz"))
    a, b = (values_of(dtype, raw.view(f"u{dtype.bits // 8}")) for raw in (old, new))
    return exact_bits(dtype, round_to(dtype, reduce(a, b))).view(np.uint8)


@dataclass
class _Groups:
    """Boxes that a thread has sent off: those of no group yet, and its groups, the oldest first."""

    open: list[_Leaving] = field(default_factory=list)
    closed: list[list[_Leaving]] = field(default_factory=list)


def _groups(machine: Machine) -> dict[int, _Groups]:
    if "bulk groups" not in machine.private:
        machine.private["bulk groups"] = {}
        machine.ending.append(lambda threads: _check_read(machine, threads))
    return machine.private["bulk groups"]


def leave(step: Step, reduction: str | None) -> None:
    """[map, {corner}], [shared]{, policy}.

    The DSL has all lanes of a warp store, with the same operands, and ptxas makes one UTMASTG of that, which a
    warp carries out once; so it is here.
    """
    machine = step.machine
    target, source, *_ = step.operands
    slots, offsets = machine.shared_place(step, step.address(source), 1)
    boxes = Boxes(step, target)
    sent: dict[Any, _Leaving] = {}
    for i, number in enumerate(step.threads):
        thread, slot = int(number), int(slots[i])
        try:
            box, corner = boxes.of(i)
            units = box.shared_units(int(offsets[i]))
        except RuleViolation as violations:
            raise step.fail(str(violations), thread) from None
        key = (int(machine.warp_of[thread]), box, corner, int(offsets[i]))
        if key not in sent:
            copy = proxy_of(machine).request(step.instruction, thread, slot, units)
            proxy_of(machine).check_fenced(copy)
            sent[key] = _Leaving(copy, box, corner, reduction)
            proxy_of(machine).to_be_read[slot, units // UNIT_BYTES] += 1
        _groups(machine).setdefault(thread, _Groups()).open.append(sent[key])


@handles("cp.reduce.async.bulk.tensor", check=check_form)
def _reduce(step: Step) -> None:
    name = next((part for part in step.instruction.opcode if part in _REDUCTIONS), None)
    if name is None:
        raise step.fail("this reduction is not carried out here.")
    leave(step, name)


@handles("cp.async.bulk.commit_group")
def _commit(step: Step) -> None:
    for number in step.threads:
        groups = _groups(step.machine).setdefault(int(number), _Groups())
        groups.closed.append(groups.open)
        groups.open = []


@handles("cp.async.bulk.wait_group")
def _wait(step: Step) -> None:
    """Until all groups but the last so many have been read from shared memory, or written as well."""
    machine = step.machine
    (count,) = step.operands
    assert isinstance(count, Immediate)
    for number in step.threads:
        thread = int(number)
        groups = _groups(machine).get(thread)
        if groups is None:
            continue
        due = groups.closed[: max(0, len(groups.closed) - count.bits)]
        for leaving in [leaving for group in due for leaving in group]:
            leaving.read()
            if "read" not in step.instruction.opcode:
                leaving.write()
        if machine.clocks is not None:
            for asked in {leaving.copy.thread for group in due for leaving in group}:
                machine.clocks.acquire(("bulk", asked), machine.agent_of[thread : thread + 1])
        groups.closed = [g for g in groups.closed if not all(each.written for each in g)]


def _check_read(machine: Machine, threads: np.ndarray) -> None:
    """A CTA's shared memory must live until what leaves it has been read. raises EmulationError"""
    for number in threads:
        groups = _groups(machine).get(int(number))
        if groups is None:
            continue
        for leaving in [*groups.open, *(each for group in groups.closed for each in group)]:
            if leaving.values is None:
                raise leaving.copy.fail(
                    "the thread ends before this copy has read shared memory: cp.async.bulk.wait_group.read is missing."
                )
