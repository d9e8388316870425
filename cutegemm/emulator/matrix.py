"""Instructions that a warp executes together: shfl, vote, ldmatrix, stmatrix, mma.sync.

A function such as `_shfl` takes an instruction and returns the action that executes it; None if the form of the
instruction is not implemented.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from cutegemm.dtypes import DType, round_to
from cutegemm.dtypes import tf32 as tf32_type
from cutegemm.emulator.access import address_registers, addresses, read_shared, write_shared
from cutegemm.emulator.machine import Action, Group, Machine
from cutegemm.emulator.scalar import values_of
from cutegemm.emulator.scheduler import when_converged
from cutegemm.emulator.state import WARP, Immediate, Instruction, Memory, Pair, Register, Vector

_LANES = np.arange(WARP)


# --- shuffles and votes ------------------------------------------------------------------------------------


def _bits(m: Machine, group: Group, operand: Any) -> np.ndarray:
    """Return the 32 bits of a register or immediate for each thread of a group, uint32 (threads,)."""
    return m.read_operand(operand, np.dtype(np.uint32), group.threads)


def _shfl(instruction: Instruction) -> Action | None:
    mode = instruction.opcode[2] if instruction.opcode[1] == "sync" else ""
    dest, source, lane, bounds, _mask = instruction.operands
    if mode not in ("idx", "up", "down", "bfly"):
        return None
    first = dest.first if isinstance(dest, Pair) else dest
    second = dest.second if isinstance(dest, Pair) else None
    if not isinstance(first, Register) or not isinstance(source, (Register, Immediate)):
        return None

    def act(m: Machine, group: Group) -> None:
        own = np.broadcast_to(_LANES, (group.n // WARP, WARP))
        b, c = (_bits(m, group, o).reshape(-1, WARP).astype(np.int64) for o in (lane, bounds))
        clamp, segment = c & 31, (c >> 8) & 31
        low, high = own & segment, (own & segment) | (clamp & ~segment)
        wanted = {
            "idx": low | (b & ~segment & 31),
            "up": own - (b & 31),
            "down": own + (b & 31),
            "bfly": own ^ (b & 31),
        }[mode]
        valid = wanted >= high if mode == "up" else wanted <= high
        chosen = np.where(valid, wanted, own)
        values = np.take_along_axis(_bits(m, group, source).reshape(-1, WARP), chosen, axis=1).reshape(-1)
        if m.origins and isinstance(source, Register):
            origins = np.broadcast_to(m.origins_of((source.index,), group), (group.n,)).reshape(-1, WARP)
            m.set_origins(first.index, group.sel, np.take_along_axis(origins, chosen, axis=1).reshape(-1))
        m.assign(first.index, values, group.sel)
        if second is not None:
            m.assign(second.index, valid.reshape(-1), group.sel)

    return when_converged("warp", act)


def _vote(instruction: Instruction) -> Action | None:
    mode, kind = instruction.opcode[-2:]
    dest, source, _mask = instruction.operands
    if not isinstance(dest, Register) or not isinstance(source, Register):
        return None
    if (mode, kind) == ("ballot", "b32"):

        def ballot(m: Machine, group: Group) -> None:
            held = m.value(source.index, group.sel).reshape(-1, WARP)
            words = (held.astype(np.uint32) << _LANES.astype(np.uint32)).sum(axis=1, dtype=np.uint32)
            m.assign(dest.index, np.repeat(words, WARP), group.sel)

        return when_converged("warp", ballot)
    if kind != "pred" or mode not in ("all", "any"):
        return None
    combine = np.all if mode == "all" else np.any

    def vote(m: Machine, group: Group) -> None:
        held = m.value(source.index, group.sel).reshape(-1, WARP)
        m.assign(dest.index, np.repeat(combine(held, axis=1), WARP), group.sel)

    return when_converged("warp", vote)


# --- ldmatrix and stmatrix ---------------------------------------------------------------------------------


def _matrices(instruction: Instruction) -> tuple[Memory, tuple[Register, ...], bool] | None:
    """Parse an ldmatrix or stmatrix instruction into (address operand, registers, whether transposed).

    There is one register for each 8 x 8 matrix of 16-bit elements. None if the form is not known.
    """
    op, *mods = instruction.opcode
    fragment, memory = instruction.operands if op == "ldmatrix" else instruction.operands[::-1]
    registers = fragment.items if isinstance(fragment, Vector) else (fragment,)
    known = mods[-1] == "b16" and "m8n8" in mods and f"x{len(registers)}" in mods
    return (memory, registers, "trans" in mods) if known and isinstance(memory, Memory) else None


def _rows(m: Machine, group: Group, memory: Memory, count: int) -> tuple[Group, np.ndarray]:
    """Return the threads whose addresses ldmatrix or stmatrix uses, and these addresses.

    group    the threads that execute the instruction
    memory   the address operand
    count    number of 8 x 8 matrices; each takes the row addresses of 8 lanes of a warp
    """
    lanes = (group.threads.reshape(-1, WARP)[:, : 8 * count]).reshape(-1)
    owners = Group(lanes, m.total)
    m.require_written(address_registers(memory), owners, "the address")
    return owners, addresses(memory)(m, owners)


def _ldmatrix(instruction: Instruction) -> Action | None:
    form = _matrices(instruction)
    if form is None:
        return None
    source, registers, transposed = form
    count = len(registers)

    def load(m: Machine, group: Group) -> None:
        owners, at = _rows(m, group, source, count)
        m.report_access("ldmatrix", "shared", 128, owners.threads, at)
        raw, origins = read_shared(m, owners, at, 16)
        rows = raw.view(np.uint16).reshape(-1, count, 8, 8)  # (warp, matrix, row, column)
        if transposed:
            rows = rows.transpose(0, 1, 3, 2)
        words = np.ascontiguousarray(rows).view(np.uint32).reshape(-1, count, WARP)
        for i, register in enumerate(registers):
            m.assign(register.index, np.ascontiguousarray(words[:, i]).reshape(-1), group.sel)
        if m.origins or np.any(origins):
            from_rows = np.broadcast_to(origins, (len(at),)).reshape(-1, count, 8)
            for i, register in enumerate(registers):
                m.set_origins(register.index, group.sel, _row_origins(from_rows[:, i], transposed).reshape(-1))

    return when_converged("warp", load)


def _row_origins(rows: np.ndarray, transposed: bool) -> np.ndarray:
    """Return the marks of uninitialized values for a register loaded by ldmatrix, from marks of the matrix's rows.

    A mark, called origin, is 0 for initialized values, else the number of a read of unwritten memory. The elements of
    lane l are from row l // 4; of a transposed matrix, from rows 2 (l % 4) and 2 (l % 4) + 1.

    rows      origins of the 8 rows, (warps, 8)
    returns   origins of the register in each lane, (warps, 32)
    """
    if not transposed:
        return rows[:, _LANES // 4]
    return np.maximum(rows[:, 2 * (_LANES % 4)], rows[:, 2 * (_LANES % 4) + 1])


def _stmatrix(instruction: Instruction) -> Action | None:
    form = _matrices(instruction)
    if form is None:
        return None
    dest, registers, transposed = form
    count = len(registers)

    def store(m: Machine, group: Group) -> None:
        owners, at = _rows(m, group, dest, count)
        words = np.stack([m.value(r.index, group.sel).reshape(-1, WARP) for r in registers], axis=1)
        rows = words.view(np.uint16).reshape(-1, count, 8, 8)
        if transposed:
            rows = rows.transpose(0, 1, 3, 2)
        origins: Any = 0
        if m.origins:
            by_register = [np.broadcast_to(m.origins_of((r.index,), group), (group.n,)) for r in registers]
            lanes = np.stack([one.reshape(-1, WARP) for one in by_register], axis=1)
            of_rows = lanes.reshape(-1, count, 8, 4).max(axis=3)
            if transposed:
                of_rows = np.repeat(lanes.max(axis=2, keepdims=True), 8, axis=2)
            origins = of_rows.reshape(-1)
        raw = np.ascontiguousarray(rows).reshape(-1).view(np.complex128)
        m.report_access("stmatrix", "shared", 128, owners.threads, at)
        write_shared(m, owners, at, raw, 16, origins)

    return when_converged("warp", store)


# --- mma.sync ----------------------------------------------------------------------------------------------

_SHAPE = re.compile(r"m(\d+)n(\d+)k(\d+)")


def _mma(instruction: Instruction) -> Action | None:
    """Return the function that executes mma.sync, D = A B + C; None if its shape or type is not implemented.

    The sum is computed in f64 and rounded once to the type of D.
    """
    mods = instruction.opcode[1:]
    shape = next((_SHAPE.fullmatch(mod) for mod in mods if mod[0] == "m" and mod[1].isdigit()), None)
    kinds = mods[-4:]
    if shape is None or mods[:2] != ("sync", "aligned") or len(mods) != 9 or mods[3:5] != ("row", "col"):
        return None
    try:
        types = [DType.parse(kind) for kind in kinds]
    except Exception:  # a type that `DType` does not know
        return None
    mnk = tuple(int(x) for x in shape.groups())
    places = fragments(mnk, types[1])
    operands = instruction.operands
    if places is None or not all(isinstance(o, Vector) for o in operands):
        return None
    vectors = [tuple(o.items) for o in operands]  # type: ignore[union-attr]
    out, acc = types[0], types[3]

    def act(m: Machine, group: Group) -> None:
        a, b, c = (
            _matrix(m, group, registers, kind, place, extents)
            for registers, kind, place, extents in (
                (vectors[1], types[1], places[0], (mnk[0], mnk[2])),
                (vectors[2], types[2], places[1], (mnk[2], mnk[1])),
                (vectors[3], acc, places[2], (mnk[0], mnk[1])),
            )
        )
        d = np.matmul(a, b) + c
        _scatter(m, group, vectors[0], out, places[2], d)
        if m.origins:
            _propagate_mma(m, group, vectors, places, mnk)

    return when_converged("warp", act)


def fragments(mnk: tuple[int, ...], kind: DType) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Return where each element of the fragments of mma.sync lies: (row, column) for A, B and C, by lane and value.

    B is indexed as (k, n). A 32-bit register of A or B holds 32 // bits elements that are adjacent along k.

    mnk       shape of the instruction
    kind      element type of A
    returns   three arrays (32 lanes, values, 2); None if the shape is not implemented
    source    PTX ISA, "Matrix Fragments for mma.m16n8k4" to "k32"

    >>> from cutegemm.dtypes import f16
    >>> a, b, c = fragments((16, 8, 16), f16)
    >>> a[5].tolist()[:4], b[5].tolist()[:2], c[5].tolist()
    ([[1, 2], [1, 3], [9, 2], [9, 3]], [[2, 1], [3, 1]], [[1, 2], [1, 3], [9, 2], [9, 3]])
    """
    m, n, k = mnk
    if (m, n) == (8, 8) and k == 4 and kind.bits == 64:
        lane = _LANES[:, None]
        a = np.stack([lane // 4, lane % 4], axis=-1)
        b = np.stack([lane % 4, lane // 4], axis=-1)
        column = 2 * (lane % 4) + np.arange(2)
        return a, b, np.stack([np.broadcast_to(lane // 4, column.shape), column], axis=-1)
    packed = 32 // kind.bits
    if (m, n) != (16, 8) or kind.bits > 32 or k % (4 * packed):
        return None
    lane = _LANES[:, None]
    values = np.arange(m * k // WARP)
    register, within = np.divmod(values, packed)
    # Registers of A are ordered along the two 8-row halves first, then along blocks of 4 * packed elements of k.
    row = lane // 4 + 8 * (register % 2)
    column = (lane % 4) * packed + within + 4 * packed * (register // 2)
    a = np.stack([row, column], axis=-1)
    values = np.arange(n * k // WARP)
    register, within = np.divmod(values, packed)
    along = (lane % 4) * packed + within + 4 * packed * register
    b = np.stack([along, np.broadcast_to(lane // 4, along.shape)], axis=-1)
    i = np.arange(4)
    c = np.stack([lane // 4 + 8 * (i // 2), 2 * (lane % 4) + i % 2], axis=-1)
    return a, b, c


def _matrix(
    m: Machine,
    group: Group,
    registers: tuple[Any, ...],
    kind: DType,
    place: np.ndarray,
    extents: tuple[int, int],
) -> np.ndarray:
    """Assemble a matrix of mma.sync in each warp from the fragments in registers: f64 (warps, rows, columns).

    group       the threads that execute the instruction
    registers   registers of the fragment
    kind        element type
    place       (32, values, 2), the (row, column) of each element, from `fragments`
    extents     (rows, columns)
    """
    words = np.stack([m.read_operand(r, _word(r), group.threads) for r in registers], axis=1)
    bits = np.ascontiguousarray(words).view(f"u{kind.bits // 8}").reshape(-1, WARP, place.shape[1])
    values = values_of(kind, bits)
    if kind is tf32_type:
        values = round_to(tf32_type, values, "rz")  # the hardware ignores the low bits of a register
    out = np.empty((len(values), *extents), np.float64)
    out[:, place[..., 0], place[..., 1]] = values
    return out


def _word(register: Any) -> np.dtype:
    """Return the numpy type of a fragment register's bits: uint64 for a 64-bit register, uint32 otherwise."""
    return np.dtype(np.uint64 if isinstance(register, Register) and register.kind == "b64" else np.uint32)


def _scatter(
    m: Machine, group: Group, registers: tuple[Any, ...], kind: DType, place: np.ndarray, d: np.ndarray
) -> None:
    """Write the result D (warps, rows, columns) of mma.sync to the registers of all lanes.

    group       the threads that execute the instruction
    registers   registers of D
    kind        element type of D
    place       (row, column) of each element that a lane holds, from `fragments`
    d           the result, as f64
    """
    values = d[:, place[..., 0], place[..., 1]].reshape(group.n, -1)
    if kind.name == "s32":
        wrapped = values.astype(np.int64).astype(np.int32)
    else:
        wrapped = values.astype(kind.storage)
    words = np.ascontiguousarray(wrapped).view(_word(registers[0])).reshape(group.n, -1)
    for i, register in enumerate(registers):
        m.assign(register.index, words[:, i].copy(), group.sel)


def _propagate_mma(m: Machine, group: Group, vectors: Any, places: Any, mnk: tuple[int, ...]) -> None:
    """Mark the elements of D = A B + C of mma.sync that depend on uninitialized elements.

    An uninitialized element of A affects its row of D, one of B its column, one of C only itself. The mark of a value
    is the number of the read of unwritten memory that it comes from.

    group     the threads that execute the instruction
    vectors   registers of D, A, B and C
    places    (row, column) of the elements of A, B and C, from `fragments`
    mnk       shape of the instruction
    """

    def spread(registers: tuple[Any, ...], place: np.ndarray, extents: tuple[int, int]) -> np.ndarray:
        out = np.zeros((group.n // WARP, *extents), np.int32)
        per = place.shape[1] // len(registers)
        for i, register in enumerate(registers):
            if isinstance(register, Register):
                origins = np.broadcast_to(m.origins_of((register.index,), group), (group.n,)).reshape(-1, WARP, 1)
                at = place[:, i * per : (i + 1) * per]
                out[:, at[..., 0], at[..., 1]] = np.repeat(origins, per, axis=2)
        return out

    rows = spread(vectors[1], places[0], (mnk[0], mnk[2])).max(axis=2)
    columns = spread(vectors[2], places[1], (mnk[2], mnk[1])).max(axis=1)
    before = spread(vectors[3], places[2], (mnk[0], mnk[1]))
    after = np.maximum(np.maximum(rows[:, :, None], columns[:, None, :]), before)
    origins = after[:, places[2][..., 0], places[2][..., 1]].reshape(group.n, -1)
    per = origins.shape[1] // len(vectors[0])
    for i, register in enumerate(vectors[0]):
        m.set_origins(register.index, group.sel, origins[:, i * per : (i + 1) * per].max(axis=1))


MATRIX: dict[str, Callable[[Instruction], Action | None]] = {
    "shfl": _shfl,
    "vote": _vote,
    "ldmatrix": _ldmatrix,
    "stmatrix": _stmatrix,
    "mma": _mma,
}
