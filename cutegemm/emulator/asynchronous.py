"""cp.async: copies that a thread starts, closes into groups, and waits for.

What is copied is read when the copy starts, and comes when the thread waits for its group, not before: until
then the place holds poison, and is PENDING.
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
    """cp.async of some threads that are under way.

    flat     where each goes to in shared memory; data: the bytes; state: what they are once there
    group    the number of each thread's group that it belongs to
    """

    threads: np.ndarray
    flat: np.ndarray
    data: np.ndarray
    state: np.ndarray
    group: np.ndarray

    def some(self, which: np.ndarray) -> _Copies:
        """The copies of some threads."""
        parts = (self.threads, self.flat, self.data, self.state, self.group)
        return _Copies(*[part[which] for part in parts])


@dataclass
class _UnderWay:
    """All copies under way, and how many groups each thread has closed."""

    copies: list[_Copies]
    closed: np.ndarray


def _under_way(m: Machine) -> _UnderWay:
    found = m.private.get("cp.async")
    if found is None:
        found = m.private["cp.async"] = _UnderWay([], np.zeros(m.total, np.int64))
    return found


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
    given = more[0] if more else None
    if given is not None and not isinstance(given, (Register, Immediate)):
        return None

    def copy(m: Machine, group: Group) -> None:
        m.forbid_holes(bases, group, "the address")
        if isinstance(given, Register):
            m.forbid_holes((given.index,), group, "the size of the source")
            sizes = m.value(given.index, group.sel).astype(np.int64)
        else:
            sizes = np.full(group.n, count if given is None else given.bits)
        if (sizes > count).any():
            bad = int(np.flatnonzero(sizes > count)[0])
            text = f"{int(sizes[bad])} bytes of the source are more than the {count} of the copy."
            raise m.fault(group, bad, text)
        sources, to = at_global(m, group), at_shared(m, group)
        m.tell("cp.async", "shared", 8 * count, group.threads, to, sources)
        if m.watch is not None:
            some = sizes > 0
            m.tell("cp.async", "global", 8 * count, group.threads[some], sources[some], to[some])
        data, state = _source_bytes(m, group, sources, sizes, count)
        flat = m.shared_flat(group, to, count)
        if m.clocks is not None:
            m.note_access(group, flat, count, True)
        at = flat // count
        wide_view(m.shared.data, count)[at] = wide_view(np.full(16, POISON_BYTE, np.uint8), count)[0]
        wide_view(m.shared.state, count)[at] = wide_view(np.full(16, PENDING, np.uint8), count)[0]
        way = _under_way(m)
        way.copies.append(_Copies(group.threads, flat, data, state, way.closed[group.threads]))

    return copy


def _source_bytes(
    m: Machine, group: Group, address: np.ndarray, sizes: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """(threads, count) bytes and their states: `sizes` of global memory, zeros after them."""
    data = np.zeros((group.n, count), np.uint8)
    state = np.full((group.n, count), FULL, np.uint8)
    for size in np.unique(sizes):
        if size == 0:
            continue
        here = np.flatnonzero(sizes == size)
        some = Group(group.threads[here], m.total)
        whole = size == count
        if not whole and int(np.bitwise_or.reduce(address[here])) & (count - 1):
            raise m.fault(some, 0, "the source is not aligned.")
        step = count if whole else 1
        for first in range(0, int(size), step):
            raw, holes = read_global(m, some, address[here] + first, step)
            data[here, first : first + step] = raw.view(np.uint8).reshape(-1, step)
            if np.any(holes):
                state[here[np.broadcast_to(holes, len(here)) != 0], first : first + step] = EMPTY
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
        way = _under_way(m)
        limit = np.full(m.total, -1)
        closed = way.closed[group.threads]
        limit[group.threads] = closed + 1 if is_all else closed - count
        left = []
        for copies in way.copies:
            due = copies.group < limit[copies.threads]
            if due.any():
                _land(m, copies, due)
            if not due.all():
                left.append(copies.some(~due))
        way.copies = left

    return land


def _land(m: Machine, copies: _Copies, due: np.ndarray) -> None:
    """The bytes are where they belong; from here on the write is the waiting warp's own."""
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
