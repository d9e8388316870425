"""Checked accesses of threads to global and shared memory."""

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
    """Return a function that computes the addresses of a PTX memory operand `[base + offset]`, one for each thread.

    returns   function of (machine, group of threads) -> int64 array (threads,)
    """
    base, offset = memory.base, memory.offset
    if isinstance(base, Immediate):
        return lambda m, group: np.full(group.n, base.bits + offset, np.int64)
    index = base.index
    if base.kind == "b64":
        return lambda m, group: m.value(index, group.sel).view(np.int64) + offset
    return lambda m, group: np.add(m.value(index, group.sel), offset, dtype=np.int64)


def address_registers(memory: Memory) -> tuple[int, ...]:
    """Return the index of the base register of a memory operand, in a tuple; () if the base is a constant."""
    return (memory.base.index,) if isinstance(memory.base, Register) else ()


def global_places(m: Machine, group: Group, address: np.ndarray, count: int) -> list[tuple[Any, Any, np.ndarray]]:
    """Find the buffers of global memory that a group of threads accesses, and the offsets in these buffers.

    address   address of each thread, int64 (threads,)
    count     bytes that each thread accesses
    returns   a list of (buffer, threads, offsets). `threads` is a mask of the threads that access this buffer, or None
              for all; `offsets` are their positions in bytes from the start of the buffer
    raises    EmulationError for an address that is misaligned or in no buffer
    """
    m.check_waited(group.threads, address)
    if int(np.bitwise_or.reduce(address)) & (count - 1):
        bad = int(np.flatnonzero(address & (count - 1))[0])
        at = int(address[bad])
        text = f"address {at:#x} of global memory is not a multiple of the {count} bytes of the access"
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
    """Return a description of the current instruction's access to global memory, for the race detector.

    which      mask of the threads of the group that make the access; None for all
    strength   memory ordering of the access: weak, or a scope with .acquire or .release
    """
    threads = group.threads if which is None else group.threads[which]
    return Access(m.program[m.at].instruction, threads, strength)


def _outside(m: Machine, group: Group, which: int, buffer: Any, offset: int, verb: str) -> Exception:
    """Return the error to raise if a thread accesses bytes of a buffer that belong to no element of a matrix.

    Such bytes are, for example, the gap between two rows.

    which    index of the thread in the group
    offset   offset of the bytes in the buffer
    verb     what the thread does, for the message
    """
    return m.fault(group, which, f"it {verb} {buffer.place(offset)}, which lies outside of the matrix.")


def read_global(
    m: Machine, group: Group, address: np.ndarray, count: int, strength: Strength = _ORDINARY
) -> tuple[np.ndarray, Any]:
    """Load `count` bytes of global memory for each thread, with a check for reads of unwritten memory and for races.

    The read of an atomic is not recorded for race detection, because its write is.

    group      the threads that execute the instruction
    address    address of each thread, int64 (threads,)
    strength   memory ordering of the load: weak, or a scope with .acquire
    returns    (the loaded bytes, one value of `count` bytes for each thread; for each thread 0 if they were written,
               else the number of this read of unwritten memory)
    raises     EmulationError for a bad address or a race
    """
    out, origins = None, 0
    for buffer, which, offset in global_places(m, group, address, count):
        if m.order is not None and not strength.adds:
            m.order.read(_access(m, group, which, strength), buffer, offset, count)
        at = offset // count if count > 1 else offset
        raw = wide_view(buffer.data, count)[at]
        state = wide_view(buffer.state, count)[at]
        full = state == full_pattern(count)
        if not full.all():
            origins = _uninitialized_global(m, group, buffer, which, offset, count, full, origins)
        if which is None:
            return raw, origins
        if out is None:
            out = np.empty(group.n, raw.dtype)
        out[which] = raw
    assert out is not None
    return out, origins


def _uninitialized_global(
    m: Machine,
    group: Group,
    buffer: Any,
    which: Any,
    offset: np.ndarray,
    count: int,
    full: np.ndarray,
    origins: Any,
) -> Any:
    """Record that threads have read unwritten bytes of global memory; return a mark for each thread's value.

    The mark, called origin, is the number of the read of unwritten memory that the value comes from; 0: initialized. An
    error message can then name this read.

    group     the threads that execute the instruction
    which     mask of the threads that read the buffer, or None for all
    offset    offsets of these threads in the buffer, in bytes
    count     bytes that each thread reads
    full      bool, for each of these threads: whether all its bytes were written
    origins   origins from the buffers that were read before, (threads,)
    raises    EmulationError if a thread reads bytes that belong to no element
    """
    numbers = np.arange(group.n) if which is None else np.flatnonzero(which)
    bad = np.flatnonzero(~full)
    states = buffer.state[offset[bad][:, None] + np.arange(count)]
    strays = np.flatnonzero((states == m.memory.OUTSIDE).any(axis=1))
    if len(strays):
        first = bad[strays[0]]
        raise _outside(m, group, int(numbers[first]), buffer, int(offset[first]), "reads")
    out = np.zeros(group.n, np.int32) + origins
    text = f"it reads {buffer.place(int(offset[bad[0]]))}, which has not been written"
    out[numbers[bad]] = m.new_origin(group, int(numbers[bad[0]]), text)
    return out


def write_global(
    m: Machine,
    group: Group,
    address: np.ndarray,
    raw: np.ndarray,
    count: int,
    strength: Strength = _ORDINARY,
) -> None:
    """Store one value of `count` bytes for each thread to global memory, with a check for races.

    group      the threads that execute the instruction
    address    address of each thread, int64 (threads,)
    raw        the values, (threads,), each as one number of `count` bytes
    strength   memory ordering of the store: weak, or a scope with .release
    raises     EmulationError for a bad address, a race, or bytes that belong to no element
    """
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
    m.memory_changed()


def read_shared(m: Machine, group: Group, address: np.ndarray, count: int) -> tuple[np.ndarray, Any]:
    """Load `count` bytes of shared memory for each thread, with a check for reads of unwritten memory and for races.

    group     the threads that execute the instruction
    address   address of each thread, int64 (threads,)
    returns   (the loaded bytes, one value of `count` bytes for each thread; for each thread 0 if they are initialized,
              else the number of the read of unwritten memory that they come from)
    raises    EmulationError for a bad address or a race
    """
    flat = m.shared_flat(group, address, count)
    at = flat // count if count > 1 else flat
    raw = wide_view(m.shared.data, count)[at]
    full = wide_view(m.shared.state, count)[at] == full_pattern(count)
    origins = 0 if full.all() else _uninitialized_shared(m, group, flat, count, np.flatnonzero(~full))
    if m.clocks is not None:
        m.note_access(group, flat, count, False)
    return raw, origins


def _uninitialized_shared(m: Machine, group: Group, flat: np.ndarray, count: int, bad: np.ndarray) -> np.ndarray:
    """Record that threads have read unwritten bytes of shared memory; return a mark for each thread's value.

    The mark, called origin, is the number of the read of unwritten memory that the value comes from; 0: initialized.
    Bytes that were stored from an uninitialized value have the origin of that value. All other unwritten bytes of this
    read get one new origin.

    flat    index of each thread's bytes in the flattened array of shared memory, (threads,)
    count   bytes that each thread reads
    bad     indices in the group of the threads that read unwritten bytes
    """
    places = flat[bad][:, None] + np.arange(count)
    stored = np.zeros(len(bad), np.int32)
    if m.shared.origin is not None:
        empty = m.shared.state.reshape(-1)[places] == EMPTY
        stored = np.where(empty, m.shared.origin[places], 0).max(axis=1)
    origins = np.zeros(group.n, np.int32)
    origins[bad] = stored
    new = np.flatnonzero(stored == 0)
    if len(new):
        pending = (m.shared.state.reshape(-1)[places[new[0]]] == PENDING).any()
        why = "a copy to it is still under way" if pending else "nothing has been written"
        at = int(flat[bad[new[0]]]) % m.shared.size
        which = int(bad[new[0]])
        origins[bad[new]] = m.new_origin(group, which, f"it reads shared memory at {at:#x}: {why}")
    return origins


def write_shared(m: Machine, group: Group, address: np.ndarray, raw: np.ndarray, count: int, origins: Any) -> None:
    """Store one value of `count` bytes for each thread to shared memory, with a check for races.

    group     the threads that execute the instruction
    address   address of each thread, int64 (threads,)
    raw       the values, (threads,), each as one number of `count` bytes
    origins   (threads,): 0 for an initialized value, else the number of the read of unwritten memory that it comes
              from; or 0 if all are initialized. Uninitialized values leave their bytes uninitialized
    raises    EmulationError for a bad address, a race, or a store to an mbarrier
    """
    flat = m.shared_flat(group, address, count)
    if m.clocks is not None:
        m.note_access(group, flat, count, True)
    at = flat // count if count > 1 else flat
    _check_no_barrier(m, group, address, flat)
    m.shared.unfenced.reshape(-1)[flat >> 4] = m.thread_of[group.threads] // WARP + 1
    wide_view(m.shared.data, count)[at] = raw
    states = wide_view(m.shared.state, count)
    states[at] = full_pattern(count)
    if np.any(origins):
        store_origins(m, flat, count, np.broadcast_to(origins, len(at)))


def store_origins(m: Machine, flat: np.ndarray, count: int, origins: np.ndarray) -> None:
    """Mark bytes of shared memory as uninitialized if an uninitialized value was stored to them.

    flat      index of each thread's bytes in the flattened array of shared memory, (threads,)
    count     bytes that each thread stored
    origins   (threads,): 0 for an initialized value, else the number of the read of unwritten memory that it comes from
    """
    wide_view(m.shared.state, count)[flat[origins != 0] // count] = EMPTY
    if m.shared.origin is None:
        m.shared.origin = np.zeros(m.shared.state.size, np.int32)
    m.shared.origin[flat[:, None] + np.arange(count)] = origins[:, None]


def _check_no_barrier(m: Machine, group: Group, address: np.ndarray, flat: np.ndarray) -> None:
    """Raise EmulationError if an ordinary store would overwrite an mbarrier object in shared memory.

    group     the threads that execute the instruction
    address   address of each thread's store, (threads,)
    flat      index of each thread's bytes in the flattened array of shared memory, (threads,)
    """
    reserved = m.shared.reserved.reshape(-1)[flat]
    if reserved.any():
        bad = int(np.flatnonzero(reserved)[0])
        text = f"it stores to shared memory at {int(address[bad]):#x}, where an mbarrier is."
        raise m.fault(group, bad, text)
