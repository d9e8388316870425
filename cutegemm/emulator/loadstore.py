"""The instructions ld, st, atom and red."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from cutegemm.emulator.access import (
    address_registers,
    addresses,
    read_global,
    read_shared,
    write_global,
    write_shared,
)
from cutegemm.emulator.machine import Action, Group, Machine
from cutegemm.emulator.order import strength_of
from cutegemm.emulator.scalar import TYPES
from cutegemm.emulator.state import (
    GENERIC_PARAM,
    GENERIC_SHARED,
    STORED,
    Immediate,
    Instruction,
    Memory,
    Register,
    Vector,
    wide_view,
)

_COUNTS = {"v2": 2, "v4": 4, "v8": 8}
_SPACES = ("param", "shared", "shared::cta", "shared::cluster", "global")


@dataclass(frozen=True)
class Form:
    """Operands of a PTX load or store (ld, st): state space, element type, and registers.

    space       "param", "shared", "global" or "generic"
    kind        numpy type of an element
    registers   destinations of a load or sources of a store, one for each element of the vector; None stands for the
                sink `_`, which discards a loaded element
    """

    space: str
    kind: np.dtype
    registers: tuple[Register | Immediate | None, ...]

    @property
    def size(self) -> int:
        """Return the number of bytes that each thread loads or stores by this instruction."""
        return self.kind.itemsize * len(self.registers)


def form_of(instruction: Instruction, value: Any) -> Form | None:
    """Return the state space, element type and registers of an ld or st; None if its type is not implemented.

    value   the operand that is loaded or stored: a register, an immediate, or a vector of them
    """
    mods = instruction.opcode[1:]
    space = next((m for m in mods if m in _SPACES), "generic")
    count = next((_COUNTS[m] for m in mods if m in _COUNTS), 1)
    items = value.items if isinstance(value, Vector) else (value,)
    if mods[-1] not in TYPES or len(items) != count:
        return None
    return Form(space.partition("::")[0], TYPES[mods[-1]], items)


def _ld(instruction: Instruction) -> Action | None:
    dest, source = instruction.operands
    form = form_of(instruction, dest)
    if form is None or not isinstance(source, Memory):
        return None
    address, size = addresses(source), form.size
    base = address_registers(source)
    strength = strength_of(instruction)

    def load(m: Machine, group: Group) -> bool | None:
        if m.origins:
            m.require_written(base, group, "the address")
        at = address(m, group)
        space = form.space if form.space != "generic" else _space_of(int(at[0]))
        if space != "param":
            m.report_access("load", space, 8 * size, group.threads, at % GENERIC_SHARED)
        if space == "global":
            raw, origins = read_global(m, group, at, size, strength)
            if strength.scope and m.order is not None:
                m.order.strong_read(group.threads, at, strength)
        elif space == "shared":
            raw, origins = read_shared(m, group, at % GENERIC_SHARED, size)
        else:
            raw, origins = m.read_params(group, at % GENERIC_PARAM, size), 0
        _spread(m, group, form, raw)
        if m.origins or np.any(origins):
            for register in form.registers:
                if isinstance(register, Register):
                    m.set_origins(register.index, group.sel, origins)
        if strength.scope:
            m.spin(group.threads)
            return True
        return None

    return load


def _space_of(address: int) -> str:
    """Return the state space of a generic address: "param", "shared" or "global"."""
    return "shared" if address >= GENERIC_SHARED else "param" if address >= GENERIC_PARAM else "global"


def _spread(m: Machine, group: Group, form: Form, raw: np.ndarray) -> None:
    """Write loaded values to the destination registers of an ld; each element is extended to its register's width.

    group   the threads that execute the instruction
    form    registers of the instruction, and the type of each
    raw     (threads,): all elements of each thread, joined to one number of their total size
    """
    count = len(form.registers)
    parts = raw.view(form.kind).reshape(group.n, count)
    columns = np.ascontiguousarray(parts.T)
    for register, values in zip(form.registers, columns, strict=True):
        if isinstance(register, Register):
            stored = STORED[register.kind]
            if form.kind.itemsize != stored.itemsize:
                values = values.astype(f"{form.kind.kind}{stored.itemsize}")
            m.assign(register.index, values.view(stored), group.sel)


def gathered(m: Machine, group: Group, form: Form) -> np.ndarray:
    """Return the value that each thread of a group stores: all its registers, joined to one number.

    form      registers or immediates of the instruction, and the type of each
    returns   (threads,), each value as wide as all elements together
    """
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
    form = form_of(instruction, source)
    if form is None or not isinstance(dest, Memory):
        return None
    address, size = addresses(dest), form.size
    base = address_registers(dest)
    values = tuple([r.index for r in form.registers if isinstance(r, Register)])
    strength = strength_of(instruction)

    def store(m: Machine, group: Group) -> None:
        origins = 0
        if m.origins:
            m.require_written(base, group, "the address")
            origins = m.origins_of(values, group)
        at = address(m, group)
        space = form.space if form.space != "generic" else _space_of(int(at[0]))
        raw = gathered(m, group, form)
        m.report_access("store", space, 8 * size, group.threads, at % GENERIC_SHARED)
        if space == "global":
            m.require_written(values, group, "what it stores")
            write_global(m, group, at, raw, size, strength)
            if strength.scope and m.order is not None:
                m.order.strong_write(group.threads, at, strength)
        else:
            write_shared(m, group, at % GENERIC_SHARED, raw, size, origins)

    return store


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
    """Return the function that executes atom or red on global memory, thread after thread; None for an unknown form."""
    *mods, kind = instruction.opcode[1:]
    name = next((mod for mod in mods if mod in _UPDATES), None)
    dest, memory, value = (None, *instruction.operands)[-3:]
    if name is None or kind not in TYPES or "global" not in mods or not isinstance(memory, Memory):
        return None
    update, dtype = _UPDATES[name], TYPES[kind]
    address, base = addresses(memory), address_registers(memory)
    strength = strength_of(instruction)

    def act(m: Machine, group: Group) -> None:
        m.require_written(base, group, "the address")
        at = address(m, group)
        size = dtype.itemsize
        values = m.read_operand(value, dtype, group.threads)
        old = np.empty(group.n, dtype)
        for i in range(group.n):
            one = Group(group.threads[i : i + 1], m.total)
            where = at[i : i + 1]
            raw, origins = read_global(m, one, where, size, strength)
            if np.any(origins):
                raise m.fault(one, 0, m.origin_texts[-1])
            old[i] = raw.view(dtype)[0]
            new = np.array([update(old[i], values[i])], dtype).view(f"u{size}")
            write_global(m, one, where, new, size, strength)
            if m.order is not None:
                m.order.strong_read(one.threads, where, strength)
                m.order.strong_write(one.threads, where, strength)
        if isinstance(dest, Register):
            m.write_register(dest, old, group.threads)

    return act


MEMORY: dict[str, Callable[[Instruction], Action | None]] = {
    "ld": _ld,
    "st": _st,
    "atom": _atomic,
    "red": _atomic,
}
