"""Decoding of a kernel: each PTX instruction becomes a function of a machine and a group of threads."""

from __future__ import annotations

import functools
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from cutegemm.emulator.asynchronous import COPIES
from cutegemm.emulator.control import CONTROL
from cutegemm.emulator.hopper import watch
from cutegemm.emulator.loadstore import MEMORY
from cutegemm.emulator.machine import Action, Decoded, Group, Machine
from cutegemm.emulator.matrix import MATRIX
from cutegemm.emulator.ptx import Kernel, parse
from cutegemm.emulator.scalar import Pure, pure
from cutegemm.emulator.scheduler import when_converged
from cutegemm.emulator.state import (
    STORED,
    Handled,
    Immediate,
    Instruction,
    Memory,
    Negated,
    Pair,
    Register,
    Special,
    Vector,
    handler_of,
)
from cutegemm.errors import UnsupportedError


@functools.lru_cache(maxsize=32)
def programs(text: str) -> dict[str, tuple[Kernel, list[Decoded]]]:
    """Parse a PTX module and prepare its instructions for execution: kernel's name -> (kernel, instructions).

    The result is cached.

    raises   UnsupportedError that lists every instruction that the emulator does not know
    """
    with _no_collection():
        return {name: (kernel, decode(kernel)) for name, kernel in parse(text).items()}


@contextmanager
def _no_collection() -> Iterator[None]:
    """Disable Python's garbage collector in the body of a `with` statement.

    Decoding makes many small objects that all live on. The collector would take four times as long as the decoding.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def decode(kernel: Kernel) -> list[Decoded]:
    """Prepare all instructions of a PTX kernel for execution: each gets the function that carries it out.

    raises   UnsupportedError that lists every instruction that the emulator does not know
    """
    unknown: dict[str, Instruction] = {}
    out = []
    for instruction in kernel.instructions:
        action = _action(instruction)
        if action is None:
            unknown.setdefault(instruction.name, instruction)
            continue
        propagates = _propagates_origins(instruction)
        reads, writes = _registers_of(instruction)
        if instruction.guard is not None and instruction.opcode[0] != "bra":
            action = _guarded(action, instruction.guard)
        out.append(Decoded(instruction, action, reads, writes, propagates))
    if unknown:
        lines = "\n".join(f"  line {i.line}: {i.text[:110]}" for i in unknown.values())
        raise UnsupportedError(
            f"emulate: kernel {kernel.name[:60]} has instructions that the emulator does not know:\n{lines}"
        )
    return watch(out)


def _action(instruction: Instruction) -> Action | None:
    """Return the function of (machine, group of threads) that executes a PTX instruction; None if it is not known."""
    op = instruction.opcode[0]
    if op == "mov":
        return _mov(instruction)
    handled = handler_of(instruction)
    if handled is not None:
        return _handled(instruction, handled)
    for table in (CONTROL, MEMORY, COPIES, MATRIX):
        for count in range(min(4, len(instruction.opcode)), 0, -1):
            build = table.get(".".join(instruction.opcode[:count]))
            if build is not None:
                return build(instruction)
    operation = pure(instruction)
    return None if operation is None else _computed(instruction, operation)


def _propagates_origins(instruction: Instruction) -> bool:
    """Return whether the function that executes an instruction also marks which results are uninitialized.

    After other instructions, a result is marked if any source is marked. It is also True for instructions that have no
    results to mark.
    """
    return instruction.opcode[0] in {"ld", "st", "selp", "bra", "ret", "exit", "bar", "cp", "ldmatrix", "stmatrix",
                                     "shfl", "mma", "atom", "fence", "membar"}  # fmt: skip


def _registers_of(instruction: Instruction) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the indices of the registers of an instruction: (sources, destinations).

    The first operand counts as the destination.
    """
    operands = instruction.operands
    return (
        tuple([r.index for operand in operands[1:] for r in _registers_in(operand)]),
        tuple([r.index for operand in operands[:1] for r in _registers_in(operand)]),
    )


def _registers_in(operand: Any) -> Iterator[Register]:
    """Yield the registers that occur in a PTX operand, such as the base of an address or the items of a vector."""
    if isinstance(operand, Register):
        yield operand
    elif isinstance(operand, Negated):
        yield operand.register
    elif isinstance(operand, Vector):
        for item in operand.items:
            yield from _registers_in(item)
    elif isinstance(operand, Pair):
        yield from _registers_in(operand.first)
        yield from _registers_in(operand.second)
    elif isinstance(operand, Memory):
        yield from _registers_in(operand.base)


# --- operations without memory -----------------------------------------------------------------------------


def _constant(operand: Immediate, dtype: np.dtype) -> Any:
    """Return the bit pattern of a PTX immediate operand, viewed as a numpy scalar of type `dtype`."""
    width = 8 * dtype.itemsize
    return np.array(operand.bits & ((1 << width) - 1), f"u{dtype.itemsize}").view(dtype)[()]


def _getter(operand: Any, dtype: np.dtype | None) -> Any:
    """Return a function that reads a PTX operand: (machine, selected threads) -> array of its bits.

    operand   register, immediate or special register
    dtype     numpy type to view the bits as; None: an unsigned integer of the register's width
    """
    if isinstance(operand, Immediate):
        assert dtype is not None, "an immediate has no type of its own"
        bits = operand.bits != 0 if dtype == np.bool_ else _constant(operand, dtype)
        return lambda m, sel: bits
    if isinstance(operand, Special):
        name = operand.name
        return lambda m, sel: m.special(name) if sel is None else m.special(name)[sel]
    if isinstance(operand, Negated):
        index = operand.register.index
        return lambda m, sel: ~m.value(index, sel)
    assert isinstance(operand, Register), operand
    index, stored = operand.index, STORED[operand.kind]
    if dtype is None or dtype == stored:
        return lambda m, sel: m.value(index, sel)
    if dtype.itemsize == stored.itemsize:
        return lambda m, sel: m.value(index, sel).view(dtype)
    narrow = np.dtype(f"u{dtype.itemsize}")  # an operand in a wider register: its low bits
    return lambda m, sel: m.value(index, sel).astype(narrow).view(dtype)


def _putter(register: Register, dtype: np.dtype) -> Any:
    """Return a function (machine, selected threads, values) that writes values to a register.

    dtype   numpy type of the values that will be written
    """
    index, stored = register.index, STORED[register.kind]
    if dtype == stored or stored == np.bool_:
        return lambda m, sel, out: m.assign(index, out, sel)
    if dtype.itemsize == stored.itemsize:
        return lambda m, sel, out: m.assign(index, out.view(stored), sel)
    return lambda m, sel, out: m.assign(index, out.astype(f"{dtype.kind}{stored.itemsize}").view(stored), sel)


def _computed(instruction: Instruction, operation: Pure) -> Action | None:
    """Return the function that executes an instruction which only computes on registers; None if it has other operands.

    operation   what the instruction computes, and the types of its operands
    """
    dest, *sources = instruction.operands
    if isinstance(dest, Pair) or not isinstance(dest, Register) or len(sources) != len(operation.sources):
        return None
    if all(isinstance(s, Immediate) for s in sources):
        return None
    compute, put = operation.compute, _putter(dest, operation.result)
    getters = [_getter(s, t) for s, t in zip(sources, operation.sources, strict=True)]
    if instruction.opcode[0] == "selp":
        return _selected(instruction, compute, put, getters)
    if len(getters) == 1:
        (one,) = getters

        def act1(m: Machine, group: Group) -> None:
            sel = group.sel
            put(m, sel, compute(one(m, sel)))

        return act1
    if len(getters) == 2:
        first, second = getters

        def act2(m: Machine, group: Group) -> None:
            sel = group.sel
            put(m, sel, compute(first(m, sel), second(m, sel)))

        return act2

    def act(m: Machine, group: Group) -> None:
        sel = group.sel
        put(m, sel, compute(*[get(m, sel) for get in getters]))

    return act


def _selected(instruction: Instruction, compute: Any, put: Any, getters: list[Any]) -> Action:
    """Return the function that executes selp, which selects one of two sources by a predicate.

    The result counts as uninitialized if the chosen source is; the other source does not matter.

    compute   function of the three sources' values
    put       function that writes the destination register
    getters   functions that read the sources
    """
    dest, *sources = (tuple([r.index for r in _registers_in(o)]) for o in instruction.operands)

    def act(m: Machine, group: Group) -> None:
        sel = group.sel
        values = [get(m, sel) for get in getters]
        if m.origins:
            m.require_written(sources[2], group, "the predicate")
            chosen = np.where(values[2], m.origins_of(sources[0], group), m.origins_of(sources[1], group))
            m.set_origins(dest[0], sel, chosen)
        put(m, sel, compute(*values))

    return act


def _mov(instruction: Instruction) -> Action | None:
    dest, source = instruction.operands
    if isinstance(dest, Vector):
        return _unpacked(dest, source)
    if isinstance(source, Vector):
        return _packed(dest, source)
    assert isinstance(dest, Register)
    stored = STORED[dest.kind]
    if isinstance(source, Immediate):
        put = _putter(dest, stored)
        bits = np.bool_(source.bits) if stored == np.bool_ else _constant(source, stored)

        def fill(m: Machine, group: Group) -> None:
            put(m, group.sel, np.full(group.n, bits))

        return fill
    get, put = _getter(source, stored), _putter(dest, stored)

    def copy(m: Machine, group: Group) -> None:
        put(m, group.sel, get(m, group.sel).copy())

    return copy


def _unpacked(dest: Vector, source: Any) -> Action | None:
    """Return the function that executes `mov {low, ..., high}, source`, which splits a register into narrower ones.

    None if the form is not implemented.

    dest, source   vector of the narrow registers, and the wide register
    """
    parts = [r for r in dest.items if r is not None]
    kind = STORED[parts[0].kind]
    puts = [None if r is None else _putter(r, kind) for r in dest.items]
    wide = np.dtype(f"u{kind.itemsize * len(puts)}")
    get = _getter(source, wide)

    def act(m: Machine, group: Group) -> None:
        pieces = get(m, group.sel).view(kind).reshape(group.n, -1)
        for i, put in enumerate(puts):
            if put is not None:
                put(m, group.sel, pieces[:, i].copy())

    return act


def _packed(dest: Any, source: Vector) -> Action | None:
    """Return the function that executes `mov dest, {low, ..., high}`, which joins registers to a wider one.

    None if the form is not implemented.

    dest, source   the wide register, and vector of the narrow registers
    """
    stored = STORED[dest.kind]
    kind = np.dtype(f"u{stored.itemsize // len(source.items)}")
    gets = [_getter(item, kind) for item in source.items]
    put = _putter(dest, stored)

    def act(m: Machine, group: Group) -> None:
        pieces = np.empty((group.n, len(gets)), kind)
        for i, get in enumerate(gets):
            pieces[:, i] = get(m, group.sel)
        put(m, group.sel, pieces.view(stored)[:, 0])

    return act


# --- handlers and guards -----------------------------------------------------------------------------------


def _handled(instruction: Instruction, handled: Handled) -> Action:
    """Return the function that executes an instruction by calling the handler that is registered for its opcode.

    handled   the handler, with the threads that must be complete (warp, warpgroup) before it is called
    """
    if handled.check is not None:
        handled.check(instruction)
    function = handled.function

    def act(m: Machine, group: Group) -> bool:
        return m.perform(instruction, function, group)

    return act if handled.scope == "thread" else when_converged(handled.scope, act)


def _guarded(action: Action, guard: tuple[Register, bool]) -> Action:
    """Restrict the execution of an instruction to the threads whose predicate (`@p` or `@!p`) holds.

    The other threads continue with the next instruction.

    action   function that executes the instruction for a group of threads
    guard    (predicate register, whether it is negated)
    """
    register, negated = guard

    def act(m: Machine, group: Group) -> bool | None:
        m.require_written((register.index,), group, "the predicate")
        holds = m.value(register.index, group.sel)
        if negated:
            holds = ~holds
        if holds.all():
            return action(m, group)
        if not holds.any():
            return None
        at = m.at
        if action(m, Group(group.threads[holds], m.total)):
            m.resume(at + 1, group.threads[~holds])
            return True
        return None

    return act
