"""Accesses to global and shared memory: each checked, and done as a thread of the GPU would do it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cutegemm.emulator.machine import Group, Machine
from cutegemm.emulator.order import Access, Strength
from cutegemm.emulator.state import (
    EMPTY,
    PENDING,
    WARP,
    Immediate,
    Memory,
    Register,
    full_pattern,
    wide_view,
)

_ORDINARY = Strength()


def addresses(memory: Memory) -> Callable[[Machine, Group], np.ndarray]:
    """A function that gives base + offset, int64 (threads,)."""
    base, offset = memory.base, memory.offset
    if isinstance(base, Immediate):
        return lambda m, group: np.full(group.n, base.bits + offset, np.int64)
    index = base.index
    if base.kind == "b64":
        return lambda m, group: m.value(index, group.sel).view(np.int64) + offset
    return lambda m, group: np.add(m.value(index, group.sel), offset, dtype=np.int64)


def address_registers(memory: Memory) -> tuple[int, ...]:
    """The register of an address."""
    return (memory.base.index,) if isinstance(memory.base, Register) else ()


def global_places(m: Machine, group: Group, address: np.ndarray, count: int) -> list[tuple[Any, Any, np.ndarray]]:
    """(buffer, which threads: None for all, offsets) for `count` bytes at each address.

    raises   EmulationError for an address in no buffer, or one that is not aligned
    """
    m.check_waited(group.threads, address)
    if int(np.bitwise_or.reduce(address)) & (count - 1):
        bad = int(np.flatnonzero(address & (count - 1))[0])
        at = int(address[bad])
        text = f"address {at:#x} of global memory is no multiple of the {count} bytes of the access"
        raise m.fault(group, bad, f"{text}{m.memory.near(at)}.")
    low, high = int(address.min()), int(address.max())
    buffer = m.memory.buffer_of(low)
    if buffer is not None and high + count <= buffer.end:
        return [(buffer, None, address - buffer.base)]
    out = []
    left = np.ones(len(address), bool)
    while left.any():
        first = int(np.flatnonzero(left)[0])
        at = int(address[first])
        buffer = m.memory.buffer_of(at)
        if buffer is None or at + count > buffer.end:
            text = f"address {at:#x} lies in no buffer of global memory{m.memory.near(at)}."
            raise m.fault(group, first, text)
        inside = left & (address >= buffer.base) & (address + count <= buffer.end)
        out.append((buffer, inside, address[inside] - buffer.base))
        left &= ~inside
    return out


def _access(m: Machine, group: Group, which: Any, strength: Strength) -> Access:
    """The access of the instruction at hand by some threads of a group; None for all."""
    threads = group.threads if which is None else group.threads[which]
    return Access(m.program[m.at].instruction, threads, strength)


def _outside(m: Machine, group: Group, which: int, buffer: Any, offset: int, verb: str) -> Exception:
    return m.fault(group, which, f"it {verb} {buffer.place(offset)}, which is outside of the matrix.")


def read_global(
    m: Machine, group: Group, address: np.ndarray, count: int, strength: Strength = _ORDINARY
) -> tuple[np.ndarray, Any]:
    """Bytes (threads, count) and the hole that each thread has read, 0 for none.

    An atomic's is noted as the write that it is besides.

    raises   EmulationError
    """
    out, holes = None, 0
    for buffer, which, offset in global_places(m, group, address, count):
        if m.order is not None and not strength.adds:
            m.order.read(_access(m, group, which, strength), buffer, offset, count)
        at = offset // count if count > 1 else offset
        raw = wide_view(buffer.data, count)[at]
        state = wide_view(buffer.state, count)[at]
        full = state == full_pattern(count)
        if not full.all():
            holes = _holes_in_global(m, group, buffer, which, offset, count, full, holes)
        if which is None:
            return raw, holes
        if out is None:
            out = np.empty(group.n, raw.dtype)
        out[which] = raw
    assert out is not None
    return out, holes


def _holes_in_global(
    m: Machine,
    group: Group,
    buffer: Any,
    which: Any,
    offset: np.ndarray,
    count: int,
    full: np.ndarray,
    holes: Any,
) -> Any:
    numbers = np.arange(group.n) if which is None else np.flatnonzero(which)
    bad = np.flatnonzero(~full)
    states = buffer.state[offset[bad][:, None] + np.arange(count)]
    strays = np.flatnonzero((states == m.memory.OUTSIDE).any(axis=1))
    if len(strays):
        first = bad[strays[0]]
        raise _outside(m, group, int(numbers[first]), buffer, int(offset[first]), "reads")
    found = np.zeros(group.n, np.int32) + holes
    text = f"it reads {buffer.place(int(offset[bad[0]]))}, to which nothing has been written"
    found[numbers[bad]] = m.hole(group, int(numbers[bad[0]]), text)
    return found


def write_global(
    m: Machine,
    group: Group,
    address: np.ndarray,
    raw: np.ndarray,
    count: int,
    strength: Strength = _ORDINARY,
) -> None:
    """Stores one value of `count` bytes a thread. raises EmulationError"""
    for buffer, which, offset in global_places(m, group, address, count):
        at = offset // count if count > 1 else offset
        states = wide_view(buffer.state, count)
        before = states[at]
        if ((before != 0) & (before != full_pattern(count))).any():
            rows = buffer.state[offset[:, None] + np.arange(count)]
            stray = np.flatnonzero((rows == m.memory.OUTSIDE).any(axis=1))
            if len(stray):
                numbers = np.arange(group.n) if which is None else np.flatnonzero(which)
                raise _outside(m, group, int(numbers[stray[0]]), buffer, int(offset[stray[0]]), "writes")
        if m.order is not None:
            m.order.write(_access(m, group, which, strength), buffer, offset, count)
        wide_view(buffer.data, count)[at] = raw if which is None else raw[which]
        states[at] = full_pattern(count)
        buffer.stored_bytes += len(offset) * count
    m.changed()


def read_shared(m: Machine, group: Group, address: np.ndarray, count: int) -> tuple[np.ndarray, Any]:
    """As `read_global`, for shared memory."""
    flat = m.shared_flat(group, address, count)
    at = flat // count if count > 1 else flat
    raw = wide_view(m.shared.data, count)[at]
    full = wide_view(m.shared.state, count)[at] == full_pattern(count)
    holes = 0 if full.all() else _holes_in_shared(m, group, flat, count, np.flatnonzero(~full))
    if m.clocks is not None:
        m.note_access(group, flat, count, False)
    return raw, holes


def _holes_in_shared(m: Machine, group: Group, flat: np.ndarray, count: int, bad: np.ndarray) -> np.ndarray:
    """The hole that each thread has read: one that was written there, or a new one for all the others."""
    places = flat[bad][:, None] + np.arange(count)
    passed_on = np.zeros(len(bad), np.int32)
    if m.shared.origin is not None:
        empty = m.shared.state.reshape(-1)[places] == EMPTY
        passed_on = np.where(empty, m.shared.origin[places], 0).max(axis=1)
    holes = np.zeros(group.n, np.int32)
    holes[bad] = passed_on
    new = np.flatnonzero(passed_on == 0)
    if len(new):
        pending = (m.shared.state.reshape(-1)[places[new[0]]] == PENDING).any()
        why = "a copy to it is still under way" if pending else "nothing has been written"
        at = int(flat[bad[new[0]]]) % m.shared.size
        which = int(bad[new[0]])
        holes[bad[new]] = m.hole(group, which, f"it reads shared memory at {at:#x}: {why}")
    return holes


def write_shared(m: Machine, group: Group, address: np.ndarray, raw: np.ndarray, count: int, holes: Any) -> None:
    """As `write_global`; where what is written is a hole, so is what it is written to."""
    flat = m.shared_flat(group, address, count)
    if m.clocks is not None:
        m.note_access(group, flat, count, True)
    at = flat // count if count > 1 else flat
    _leave_barriers(m, group, address, flat)
    m.shared.unfenced.reshape(-1)[flat >> 4] = m.thread_of[group.threads] // WARP + 1
    wide_view(m.shared.data, count)[at] = raw
    states = wide_view(m.shared.state, count)
    states[at] = full_pattern(count)
    if np.any(holes):
        leave_holes(m, flat, count, np.broadcast_to(holes, len(at)))


def leave_holes(m: Machine, flat: np.ndarray, count: int, holes: np.ndarray) -> None:
    """Where a hole was written to shared memory there is one now: `count` bytes from each place on.

    holes   its number, for each place; 0 for none
    """
    wide_view(m.shared.state, count)[flat[holes != 0] // count] = EMPTY
    if m.shared.origin is None:
        m.shared.origin = np.zeros(m.shared.state.size, np.int32)
    m.shared.origin[flat[:, None] + np.arange(count)] = holes[:, None]


def _leave_barriers(m: Machine, group: Group, address: np.ndarray, flat: np.ndarray) -> None:
    """raises EmulationError where an ordinary store goes to an mbarrier"""
    reserved = m.shared.reserved.reshape(-1)[flat]
    if reserved.any():
        bad = int(np.flatnonzero(reserved)[0])
        text = f"it stores to shared memory at {int(address[bad]):#x}, where an mbarrier is."
        raise m.fault(group, bad, text)
