"""Loads, stores and atomics: every access checked, and done as a thread of the GPU would do it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from cutegemm.emulate.machine import Action, Group, Machine
from cutegemm.emulate.order import Access, Strength, strength_of
from cutegemm.emulate.scalar import TYPES
from cutegemm.emulate.state import (
    EMPTY,
    GENERIC_PARAM,
    GENERIC_SHARED,
    PENDING,
    STORED,
    WARP,
    Immediate,
    Instruction,
    Memory,
    Register,
    Vector,
    full_pattern,
    wide_view,
)

_COUNTS = {"v2": 2, "v4": 4, "v8": 8}
_ORDINARY = Strength()
_SPACES = ("param", "shared", "shared::cta", "shared::cluster", "global")


@dataclass(frozen=True)
class _Form:
    """What an ld or st says: its space, the type of an element, how many, the registers."""

    space: str
    kind: np.dtype
    registers: tuple[Register | Immediate | None, ...]

    @property
    def size(self) -> int:
        return self.kind.itemsize * len(self.registers)


def _form(instruction: Instruction, value: Any) -> _Form | None:
    mods = instruction.opcode[1:]
    space = next((m for m in mods if m in _SPACES), "generic")
    count = next((_COUNTS[m] for m in mods if m in _COUNTS), 1)
    items = value.items if isinstance(value, Vector) else (value,)
    if mods[-1] not in TYPES or len(items) != count:
        return None
    return _Form(space.partition("::")[0], TYPES[mods[-1]], items)


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


# --- global memory -----------------------------------------------------------------------------------------


def global_places(
    m: Machine, group: Group, address: np.ndarray, count: int
) -> list[tuple[Any, Any, np.ndarray]]:
    """(buffer, which threads: None for all, offsets) for `count` bytes at each address.

    raises   EmulationError for an address in no buffer, or one that is not aligned
    """
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
    """That of the instruction at hand by some threads of a group; None for all."""
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


# --- shared memory -----------------------------------------------------------------------------------------


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


def write_shared(
    m: Machine, group: Group, address: np.ndarray, raw: np.ndarray, count: int, holes: Any
) -> None:
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
        found = np.broadcast_to(holes, len(at))
        states[at[found != 0]] = 0
        if m.shared.origin is None:
            m.shared.origin = np.zeros(m.shared.state.size, np.int32)
        m.shared.origin[flat[:, None] + np.arange(count)] = found[:, None]


def _leave_barriers(m: Machine, group: Group, address: np.ndarray, flat: np.ndarray) -> None:
    """raises EmulationError where an ordinary store goes to an mbarrier"""
    reserved = m.shared.reserved.reshape(-1)[flat]
    if reserved.any():
        bad = int(np.flatnonzero(reserved)[0])
        text = f"it stores to shared memory at {int(address[bad]):#x}, where an mbarrier is."
        raise m.fault(group, bad, text)


# --- ld and st ---------------------------------------------------------------------------------------------


def _ld(instruction: Instruction) -> Action | None:
    dest, source = instruction.operands
    form = _form(instruction, dest)
    if form is None or not isinstance(source, Memory):
        return None
    address, size = addresses(source), form.size
    base = address_registers(source)
    strength = strength_of(instruction)

    def load(m: Machine, group: Group) -> bool | None:
        if m.holes:
            m.forbid_holes(base, group, "the address")
        at = address(m, group)
        space = form.space if form.space != "generic" else _space_of(int(at[0]))
        if space == "global":
            raw, holes = read_global(m, group, at, size, strength)
            if strength.scope and m.order is not None:
                m.order.read_strongly(group.threads, at, strength)
        elif space == "shared":
            raw, holes = read_shared(m, group, at % GENERIC_SHARED, size)
        else:
            raw, holes = m.read_params(group, at % GENERIC_PARAM, size), 0
        _spread(m, group, form, raw)
        if m.holes or np.any(holes):
            for register in form.registers:
                if isinstance(register, Register):
                    m.mark_holes(register.index, group.sel, holes)
        if strength.scope:
            m.spin(group.threads)
            return True
        return None

    return load


def _space_of(address: int) -> str:
    return "shared" if address >= GENERIC_SHARED else "param" if address >= GENERIC_PARAM else "global"


def _spread(m: Machine, group: Group, form: _Form, raw: np.ndarray) -> None:
    """Wide values into the registers, each extended to its width."""
    count = len(form.registers)
    parts = raw.view(form.kind).reshape(group.n, count)
    columns = np.ascontiguousarray(parts.T)
    for register, values in zip(form.registers, columns, strict=True):
        if isinstance(register, Register):
            stored = STORED[register.kind]
            if form.kind.itemsize != stored.itemsize:
                values = values.astype(f"{form.kind.kind}{stored.itemsize}")
            m.assign(register.index, values.view(stored), group.sel)


def _gather(m: Machine, group: Group, form: _Form) -> np.ndarray:
    """The registers' values side by side, as one wide value a thread."""
    unsigned = np.dtype(f"u{form.kind.itemsize}")
    parts = np.empty((group.n, len(form.registers)), unsigned)
    for i, register in enumerate(form.registers):
        if isinstance(register, Immediate):
            parts[:, i] = register.bits & ((1 << (8 * unsigned.itemsize)) - 1)
        else:
            assert register is not None
            parts[:, i] = m.value(register.index, group.sel)
    return wide_view(parts, form.size)


def _st(instruction: Instruction) -> Action | None:
    dest, source = instruction.operands
    form = _form(instruction, source)
    if form is None or not isinstance(dest, Memory):
        return None
    address, size = addresses(dest), form.size
    base = address_registers(dest)
    values = tuple([r.index for r in form.registers if isinstance(r, Register)])
    strength = strength_of(instruction)

    def store(m: Machine, group: Group) -> None:
        holes = 0
        if m.holes:
            m.forbid_holes(base, group, "the address")
            holes = m.holes_of(values, group)
        at = address(m, group)
        space = form.space if form.space != "generic" else _space_of(int(at[0]))
        raw = _gather(m, group, form)
        if space == "global":
            m.forbid_holes(values, group, "what it stores")
            write_global(m, group, at, raw, size, strength)
            if strength.scope and m.order is not None:
                m.order.wrote(group.threads, at, strength)
        else:
            write_shared(m, group, at % GENERIC_SHARED, raw, size, holes)

    return store


# --- atomics -----------------------------------------------------------------------------------------------

_UPDATES: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda old, value: old + value,
    "min": min,
    "max": max,
    "and": lambda old, value: old & value,
    "or": lambda old, value: old | value,
    "xor": lambda old, value: old ^ value,
    "exch": lambda old, value: value,
    "inc": lambda old, value: type(old)(0) if old >= value else old + type(old)(1),
}


def _atomic(instruction: Instruction) -> Action | None:
    """atom and red on global memory, a thread after the other."""
    *mods, kind = instruction.opcode[1:]
    name = next((mod for mod in mods if mod in _UPDATES), None)
    dest, memory, value = (None, *instruction.operands)[-3:]
    if name is None or kind not in TYPES or "global" not in mods or not isinstance(memory, Memory):
        return None
    update, dtype = _UPDATES[name], TYPES[kind]
    address, base = addresses(memory), address_registers(memory)
    strength = strength_of(instruction)

    def act(m: Machine, group: Group) -> None:
        m.forbid_holes(base, group, "the address")
        at = address(m, group)
        size = dtype.itemsize
        values = m.read_operand(value, dtype, group.threads)
        old = np.empty(group.n, dtype)
        for i in range(group.n):
            one = Group(group.threads[i : i + 1], m.total)
            where = at[i : i + 1]
            raw, holes = read_global(m, one, where, size, strength)
            if np.any(holes):
                raise m.fault(one, 0, m.hole_texts[-1])
            old[i] = raw.view(dtype)[0]
            new = np.array([update(old[i], values[i])], dtype).view(f"u{size}")
            write_global(m, one, where, new, size, strength)
            if m.order is not None:
                m.order.read_strongly(one.threads, where, strength)
                m.order.wrote(one.threads, where, strength)
        if isinstance(dest, Register):
            m.write_register(dest, old, group.threads)

    return act


MEMORY: dict[str, Callable[[Instruction], Action | None]] = {
    "ld": _ld,
    "st": _st,
    "atom": _atomic,
    "red": _atomic,
}
