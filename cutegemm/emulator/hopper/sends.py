"""Handlers: st.async, by which a thread stores to the shared memory of a CTA of its cluster, whose barrier counts the
bytes.

What is stored is read from registers at once. It comes as late as can be; until then its place is poison, and the
barrier lacks the bytes. Source: PTX ISA, st.async: a weak store of the generic proxy, and complete-tx, which releases.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from cutegemm.emulator.access import address_registers, leave_holes
from cutegemm.emulator.hopper.barriers import barrier_key, barriers_of, check_there, note_use
from cutegemm.emulator.hopper.faults import RuleViolation
from cutegemm.emulator.hopper.mbarrier import MBARRIER_BYTES
from cutegemm.emulator.hopper.proxy import Request, proxy_of
from cutegemm.emulator.hopper.tensormap import UNIT_BYTES
from cutegemm.emulator.loadstore import form_of, gathered
from cutegemm.emulator.machine import Group
from cutegemm.emulator.state import ASYNC_STORE, Instruction, Memory, Register, Step, Vector, handles
from cutegemm.errors import UnsupportedError

_COMPLETES = "mbarrier::complete_tx::bytes"
_WORDS, _DOUBLES = {"b32", "u32", "s32", "f32"}, {"b64", "u64", "s64", "f64"}


def _check_form(instruction: Instruction) -> None:
    """Stores to shared memory, of one, two or four words or one or two double words. raises UnsupportedError"""
    _, _, *mods, kind = instruction.opcode
    said, vectors = set(mods), [mod for mod in mods if mod in ("v2", "v4")]
    is_known = said - set(vectors) <= {"weak", "shared::cluster", _COMPLETES} and _COMPLETES in said
    types = _WORDS if "v4" in vectors else _WORDS | _DOUBLES
    values = instruction.operands[1] if len(instruction.operands) == 3 else None
    count = len(values.items) if isinstance(values, Vector) else 1
    expected = int(vectors[0][1]) if vectors else 1
    if not is_known or kind not in types or len(vectors) > 1 or values is None or count != expected:
        raise UnsupportedError(
            f"emulate: line {instruction.line}: this form of st.async is not carried out: {instruction.text[:100]}"
        )


@dataclass(frozen=True)
class _Send:
    """What the threads of a warp have stored to one CTA, on its way.

    values    (threads, bytes)
    holes     the hole that each thread's values come from, 0 for none
    barrier   its address there
    """

    copy: Request
    values: np.ndarray
    holes: np.ndarray
    barrier: int

    def land(self) -> None:
        """The bytes come, and the barrier hears of it."""
        copy, machine, slot = self.copy, self.copy.machine, self.copy.slot
        if not machine.alive[machine.block_of == slot].any():
            where = machine.blocks[slot].index
            raise copy.fail(f"it stores to CTA {where}, which has ended before that has come.")
        proxy = proxy_of(machine)
        proxy.end_write(copy, self.values)
        if self.holes.any():
            leave_holes(machine, slot * machine.shared.size + copy.units, copy.unit_bytes, self.holes)
        machine.shared.unfenced[slot, copy.units // UNIT_BYTES] = ASYNC_STORE
        try:
            barrier = barriers_of(machine, slot).at(self.barrier)
            phase = barrier.phase
            proxy.publish(barrier_key(slot, self.barrier, phase), copy)
            barrier.complete_tx(self.values.size)
        except RuleViolation as violations:
            raise copy.fail(str(violations)) from None
        if barrier.phase != phase:
            machine.notify()


@dataclass(frozen=True)
class _Targets:
    """Where the threads of a step store, and which barriers hear of it: slots of CTAs, and offsets in their windows."""

    slots: np.ndarray
    offsets: np.ndarray
    barriers: np.ndarray

    def alike(self, warps: np.ndarray) -> Iterator[np.ndarray]:
        """The threads, by their numbers in the step, of each warp, CTA and barrier."""
        keys = np.stack([warps, self.slots, self.barriers])
        found, place = np.unique(keys, axis=1, return_inverse=True)
        for number in range(found.shape[1]):
            yield np.flatnonzero(place.reshape(-1) == number)


@handles("st.async", check=_check_form)
def _send(step: Step) -> None:
    """[place], values, [barrier]."""
    machine, instruction = step.machine, step.instruction
    _, values, _ = step.operands
    form = form_of(instruction, values)
    assert form is not None
    group = Group(step.threads, machine.total)
    targets = _targets(step, form.size)
    used = tuple([register.index for register in form.registers if isinstance(register, Register)])
    holes = np.broadcast_to(machine.holes_of(used, group), (group.n,))
    raw = gathered(machine, group, form).view(np.uint8).reshape(-1, form.size)
    proxy = proxy_of(machine)
    for which in targets.alike(machine.warp_of[step.threads]):
        of_first = (step.threads[which[0]], targets.slots[which[0]], targets.barriers[which[0]])
        (thread, slot, place), offsets = map(int, of_first), targets.offsets[which]
        try:
            barrier = barriers_of(machine, slot).at(place)
            if machine.block_of[thread] != slot:
                check_there(step, thread, slot, barrier)
            _check_place(step, slot, offsets, form.size)
        except RuleViolation as violations:
            raise step.fail(str(violations), thread) from None
        copy = proxy.request(instruction, thread, slot, offsets, barrier.number, form.size)
        proxy.begin_write(copy)
        proxy.later(_Send(copy, raw[which], holes[which], place).land)


def _targets(step: Step, size: int) -> _Targets:
    """Those of the step, of which each stores `size` bytes. raises EmulationError"""
    machine, group = step.machine, Group(step.threads, step.machine.total)
    dest, _, barrier = step.operands
    assert isinstance(dest, Memory)
    assert isinstance(barrier, Memory)
    machine.forbid_holes(address_registers(dest) + address_registers(barrier), group, "the address")
    slots, offsets = machine.shared_place(step, step.address(dest), size)
    barrier_slots, places = machine.shared_place(step, step.address(barrier), MBARRIER_BYTES)
    apart = np.flatnonzero(slots != barrier_slots)
    if len(apart):
        text = "the destination and the barrier of a store lie in different CTAs."
        raise step.fail(text, int(step.threads[apart[0]]))
    if len(machine.blocks[slots[0]].cluster) == 1:
        raise step.fail("it is for clusters of more CTAs than one.")
    note_use(step, slots, places, writes=False)
    return _Targets(slots, offsets, places)


def _check_place(step: Step, slot: int, offsets: np.ndarray, size: int) -> None:
    """Whether threads of a warp may store there together. raises RuleViolation"""
    known, count = np.unique(offsets, return_counts=True)
    if (count > 1).any():
        raise RuleViolation(f"threads of a warp store to shared memory at {int(known[count > 1][0]):#x} at once.")
    reserved = step.machine.shared.reserved[slot, offsets[:, None] + np.arange(size)].any(axis=1)
    if reserved.any():
        place = int(offsets[reserved][0])
        raise RuleViolation(f"it stores to shared memory at {place:#x}, where an mbarrier is.")
