"""cp.async: copies that a thread starts, closes into groups, and waits for.

The source is read when the copy starts. The destination changes when the thread waits for the group, not before: until
then it is PENDING and holds poison.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from cutegemm.emulator.access import address_registers, addresses, read_global
from cutegemm.emulator.machine import Machine
from cutegemm.emulator.scheduler import Action, Group
from cutegemm.emulator.state import (
    EMPTY,
    FULL,
    PENDING,
    POISON_BYTE,
    Immediate,
    Instruction,
    Memory,
    Register,
    wide_view,
)


@dataclass
class _Copies:
    """The unfinished copies of one cp.async instruction, one for each thread that executed it.

    threads   (threads,) numbers of the threads
    flat      (threads,) destinations, as indices in the flattened array of shared memory
    data      uint8 (threads, bytes), the bytes that are copied
    state     uint8 (threads, bytes), the state of each byte after the copy: initialized or not
    group     (threads,) number of the cp.async group (by the thread's commits) that the copy belongs to
    """

    threads: np.ndarray
    flat: np.ndarray
    data: np.ndarray
    state: np.ndarray
    group: np.ndarray

    def some(self, which: np.ndarray) -> _Copies:
        """Return the copies of those threads that a boolean mask selects."""
        fields = (self.threads, self.flat, self.data, self.state, self.group)
        return _Copies(*[field[which] for field in fields])


@dataclass
class _UnderWay:
    """All cp.async copies of the CTAs that are emulated together that have started and have not been waited for.

    copies   the copies of each instruction
    closed   (threads,) number of cp.async groups that each thread has committed
    """

    copies: list[_Copies]
    closed: np.ndarray


def _under_way(m: Machine) -> _UnderWay:
    """Return the record of cp.async copies that threads have not waited for yet. The first call creates it."""
    under_way = m.private.get("cp.async")
    if under_way is None:
        under_way = m.private["cp.async"] = _UnderWay([], np.zeros(m.total, np.int64))
    return under_way


def _cp_async(instruction: Instruction) -> Action | None:
    dest, source, size, *more = instruction.operands
    if not (isinstance(dest, Memory) and isinstance(source, Memory) and isinstance(size, Immediate)):
        return None
    mods = instruction.opcode
    if more and "L2::cache_hint" in mods:
        more = more[:-1]
    count = size.bits
    at_shared, at_global = addresses(dest), addresses(source)
    bases = address_registers(dest) + address_registers(source)
    source_size = more[0] if more else None
    if source_size is not None and not isinstance(source_size, (Register, Immediate)):
        return None

    def copy(m: Machine, group: Group) -> None:
        m.require_written(bases, group, "the address")
        if isinstance(source_size, Register):
            m.require_written((source_size.index,), group, "the size of the source")
            sizes = m.value(source_size.index, group.sel).astype(np.int64)
        else:
            sizes = np.full(group.n, count if source_size is None else source_size.bits)
        if (sizes > count).any():
            bad = int(np.flatnonzero(sizes > count)[0])
            text = f"the source size of {int(sizes[bad])} bytes is larger than the {count} bytes of the copy."
            raise m.fault(group, bad, text)
        sources, to = at_global(m, group), at_shared(m, group)
        m.report_access("cp.async", "shared", 8 * count, group.threads, to, sources)
        if m.watch is not None:
            some = sizes > 0
            m.report_access("cp.async", "global", 8 * count, group.threads[some], sources[some], to[some])
        data, state = _source_bytes(m, group, sources, sizes, count)
        flat = m.shared_flat(group, to, count)
        if m.clocks is not None:
            m.note_access(group, flat, count, True)
        at = flat // count
        wide_view(m.shared.data, count)[at] = wide_view(np.full(16, POISON_BYTE, np.uint8), count)[0]
        wide_view(m.shared.state, count)[at] = wide_view(np.full(16, PENDING, np.uint8), count)[0]
        under_way = _under_way(m)
        under_way.copies.append(_Copies(group.threads, flat, data, state, under_way.closed[group.threads]))

    return copy


def _source_bytes(
    m: Machine, group: Group, address: np.ndarray, sizes: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Read the source bytes of a cp.async, and whether each is initialized.

    group     the threads that execute the instruction
    address   global address of each thread, (threads,)
    sizes     (threads,) bytes that are read from global memory; zeros fill the rest of the `count` bytes
    returns   (bytes, state FULL or EMPTY of each byte), both of shape (threads, count)
    raises    EmulationError for a bad address or a race
    """
    data = np.zeros((group.n, count), np.uint8)
    state = np.full((group.n, count), FULL, np.uint8)
    for size in np.unique(sizes):
        if size == 0:
            continue
        here = np.flatnonzero(sizes == size)
        some = Group(group.threads[here], m.total)
        whole = size == count
        if not whole and int(np.bitwise_or.reduce(address[here])) & (count - 1):
            raise m.fault(some, 0, f"the source address is not a multiple of {count} bytes.")
        step = count if whole else 1
        for first in range(0, int(size), step):
            raw, origins = read_global(m, some, address[here] + first, step)
            data[here, first : first + step] = raw.view(np.uint8).reshape(-1, step)
            if np.any(origins):
                state[here[np.broadcast_to(origins, len(here)) != 0], first : first + step] = EMPTY
    return data, state


def _commit(instruction: Instruction) -> Action | None:
    def close(m: Machine, group: Group) -> None:
        _under_way(m).closed[group.threads] += 1

    return close


def _wait(instruction: Instruction) -> Action | None:
    is_all = "wait_all" in instruction.opcode
    count = 0
    if not is_all:
        (operand,) = instruction.operands
        if not isinstance(operand, Immediate):
            return None
        count = operand.bits

    def land(m: Machine, group: Group) -> None:
        under_way = _under_way(m)
        limit = np.full(m.total, -1)
        closed = under_way.closed[group.threads]
        limit[group.threads] = closed + 1 if is_all else closed - count
        remaining = []
        for copies in under_way.copies:
            due = copies.group < limit[copies.threads]
            if due.any():
                _land(m, copies, due)
            if not due.all():
                remaining.append(copies.some(~due))
        under_way.copies = remaining

    return land


def _land(m: Machine, copies: _Copies, due: np.ndarray) -> None:
    """Write the data of finished cp.async copies to shared memory, with a check for races.

    For race detection, this counts as a write by the warp that waits for the copies.

    copies   the copies of one instruction
    due      bool (threads,): the copies that are finished
    """
    flat, data, state = (v if due.all() else v[due] for v in (copies.flat, copies.data, copies.state))
    count = data.shape[1]
    if m.clocks is not None:
        threads = copies.threads[due]
        m.note_access(Group(threads, m.total), flat, count, True)
    at = flat // count
    wide_view(m.shared.data, count)[at] = wide_view(data, count)
    wide_view(m.shared.state, count)[at] = wide_view(state, count)


COPIES: dict[str, Callable[[Instruction], Action | None]] = {
    "cp.async.ca": _cp_async,
    "cp.async.cg": _cp_async,
    "cp.async.commit_group": _commit,
    "cp.async.wait_group": _wait,
    "cp.async.wait_all": _wait,
}
