"""Handler of st.async, a store to the shared memory of a CTA of the cluster that signals an mbarrier there.

The values are read from registers at once. They arrive as late as possible: until then the destination holds poison,
and the mbarrier lacks the bytes.

source   PTX ISA, st.async: a weak store of the generic proxy, and a complete-tx with release semantics
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from cutegemm.emulator.access import address_registers, store_origins
from cutegemm.emulator.hopper.barriers import barrier_key, barriers_of, check_reachable, note_use
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
    """Raise UnsupportedError for a form of st.async that is not implemented.

    Implemented are stores of one, two or four 32-bit values, or of one or two 64-bit values.
    """
    _, _, *mods, kind = instruction.opcode
    names, vectors = set(mods), [mod for mod in mods if mod in ("v2", "v4")]
    is_known = names - set(vectors) <= {"weak", "shared::cluster", _COMPLETES} and _COMPLETES in names
    types = _WORDS if "v4" in vectors else _WORDS | _DOUBLES
    values = instruction.operands[1] if len(instruction.operands) == 3 else None
    count = len(values.items) if isinstance(values, Vector) else 1
    expected = int(vectors[0][1]) if vectors else 1
    if not is_known or kind not in types or len(vectors) > 1 or values is None or count != expected:
        raise UnsupportedError(
            f"emulate: line {instruction.line}: the emulator does not implement this form of st.async: "
            f"{instruction.text[:100]}"
        )


@dataclass(frozen=True)
class _Send:
    """A store by st.async that has been issued: from threads of one warp to the shared memory of one CTA.

    copy      the access to shared memory, for race detection
    values    uint8 (threads, bytes): the bytes that each thread stores
    origins   (threads,): 0 for an initialized value, else the number of the read of unwritten memory that it comes from
    barrier   address of the mbarrier in that CTA that counts the bytes
    """

    copy: Request
    values: np.ndarray
    origins: np.ndarray
    barrier: int

    def land(self) -> None:
        """Finish this st.async: write the values to shared memory, and count their bytes at the mbarrier.

        raises   EmulationError for an invalid mbarrier, or a CTA that has ended
        """
        copy, machine, slot = self.copy, self.copy.machine, self.copy.slot
        if not machine.alive[machine.block_of == slot].any():
            where = machine.blocks[slot].index
            raise copy.fail(f"it stores to CTA {where}, which ends before the values arrive.")
        proxy = proxy_of(machine)
        proxy.end_write(copy, self.values)
        if self.origins.any():
            store_origins(machine, slot * machine.shared.size + copy.units, copy.unit_bytes, self.origins)
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
    """Where the threads that execute st.async store, and which mbarriers they signal.

    slots      (threads,) index of the destination CTA among the CTAs that are emulated together
    offsets    (threads,) offsets of the stores in the shared-memory windows of these CTAs
    barriers   (threads,) offsets of the mbarriers in these windows
    """

    slots: np.ndarray
    offsets: np.ndarray
    barriers: np.ndarray

    def alike(self, warps: np.ndarray) -> Iterator[np.ndarray]:
        """Divide the threads that execute an st.async into sets that form one store each, as arrays of indices.

        The threads of a set belong to one warp, store to one CTA and signal one mbarrier.

        warps   (threads,) number of the warp of each thread
        """
        keys = np.stack([warps, self.slots, self.barriers])
        distinct, place = np.unique(keys, axis=1, return_inverse=True)
        for number in range(distinct.shape[1]):
            yield np.flatnonzero(place.reshape(-1) == number)


@handles("st.async", check=_check_form)
def _send(step: Step) -> None:
    """Execute st.async `[destination], values, [mbarrier]`: store to a CTA of the cluster and signal its mbarrier.

    The values are written later, when the store lands.
    """
    machine, instruction = step.machine, step.instruction
    _, values, _ = step.operands
    form = form_of(instruction, values)
    assert form is not None
    group = Group(step.threads, machine.total)
    targets = _targets(step, form.size)
    used = tuple([register.index for register in form.registers if isinstance(register, Register)])
    origins = np.broadcast_to(machine.origins_of(used, group), (group.n,))
    raw = gathered(machine, group, form).view(np.uint8).reshape(-1, form.size)
    proxy = proxy_of(machine)
    for which in targets.alike(machine.warp_of[step.threads]):
        first = which[0]
        thread, slot, place = int(step.threads[first]), int(targets.slots[first]), int(targets.barriers[first])
        offsets = targets.offsets[which]
        try:
            barrier = barriers_of(machine, slot).at(place)
            if machine.block_of[thread] != slot:
                check_reachable(step, thread, slot, barrier)
            _check_place(step, slot, offsets, form.size)
        except RuleViolation as violations:
            raise step.fail(str(violations), thread) from None
        copy = proxy.request(instruction, thread, slot, offsets, barrier.number, form.size)
        proxy.begin_write(copy)
        proxy.later(_Send(copy, raw[which], origins[which], place).land)


def _targets(step: Step, size: int) -> _Targets:
    """Read from the operands of st.async where each thread stores, and which mbarrier it signals.

    size     bytes that each thread stores
    raises   EmulationError for a bad address, or if destination and mbarrier are in different CTAs
    """
    machine, group = step.machine, Group(step.threads, step.machine.total)
    dest, _, barrier = step.operands
    assert isinstance(dest, Memory)
    assert isinstance(barrier, Memory)
    machine.require_written(address_registers(dest) + address_registers(barrier), group, "the address")
    slots, offsets = machine.shared_place(step, step.address(dest), size)
    barrier_slots, places = machine.shared_place(step, step.address(barrier), MBARRIER_BYTES)
    apart = np.flatnonzero(slots != barrier_slots)
    if len(apart):
        text = "the destination and the mbarrier of a store lie in different CTAs."
        raise step.fail(text, int(step.threads[apart[0]]))
    if len(machine.blocks[slots[0]].cluster) == 1:
        raise step.fail("st.async needs a cluster of at least 2 CTAs.")
    note_use(step, slots, places, writes=False)
    return _Targets(slots, offsets, places)


def _check_place(step: Step, slot: int, offsets: np.ndarray, size: int) -> None:
    """Raise RuleViolation if threads of a warp store to the same bytes by st.async, or to an mbarrier.

    slot      index of the destination CTA among the CTAs that are emulated together
    offsets   (threads,) offsets in the CTA's shared-memory window
    size      bytes that each thread stores
    """
    known, count = np.unique(offsets, return_counts=True)
    if (count > 1).any():
        raise RuleViolation(f"several threads of a warp store to shared memory at {int(known[count > 1][0]):#x}.")
    reserved = step.machine.shared.reserved[slot, offsets[:, None] + np.arange(size)].any(axis=1)
    if reserved.any():
        place = int(offsets[reserved][0])
        raise RuleViolation(f"it stores to shared memory at {place:#x}, where an mbarrier is.")
