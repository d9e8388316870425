"""Operands, instructions, memories and CTAs of an emulated kernel, and the registry of instruction handlers.

The threads of all CTAs in flight are numbered consecutively, CTA by CTA. A register is one array over them. A handler
gets a `Step`: one instruction, and all threads that execute it together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from cutegemm.errors import EmulationError

if TYPE_CHECKING:
    from cutegemm.emulator.machine import Machine

WARP = 32
WARPGROUP = 128
SHARED_BASE = 1024  # first address of a CTA's shared memory; the system reserves the KiB below it
CLUSTER_SHIFT = 24  # shared::cluster address: (rank + 1) << 24 | offset; below 1 << 24 it is in the thread's own CTA
GENERIC_SHARED = 0x7E00_0000_0000  # generic address of the start of the shared memory window
GENERIC_PARAM = 0x7D00_0000_0000  # generic address of the start of the kernel parameters

STORED = {
    "pred": np.dtype("?"),
    "b16": np.dtype("u2"),
    "b32": np.dtype("u4"),
    "b64": np.dtype("u8"),
}  # by kind of register: the dtype of its array
EMPTY, FULL, PENDING = 0, 1, 2  # states of a byte: never written, written, to be written by a copy under way
ASYNC_STORE = -1  # stands for a warp in `SharedMemory.unfenced`: the bytes were stored by st.async
POISON_BYTE = 0xFF  # value of bytes that were never written: all ones is a NaN in every float format


# --- operands ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Register:
    """A virtual register of a PTX kernel.

    name    name in the PTX text, such as "%r1"
    kind    "pred", "b16", "b32" or "b64"
    index   position in `Kernel.registers`
    """

    name: str
    kind: str
    index: int


@dataclass(frozen=True)
class Immediate:
    """A constant operand of a PTX instruction, or the address of a symbol.

    bits       the value as written, sign-extended; the bit pattern of a float constant
    is_float   True for a float constant
    """

    bits: int
    is_float: bool = False


@dataclass(frozen=True)
class Special:
    """A PTX special register, by its name without the percent sign: "tid.x", "laneid", "cluster_ctarank"."""

    name: str


@dataclass(frozen=True)
class Vector:
    """A PTX vector operand `{a, b, ...}`, as in a vector load or store.

    items   registers or immediates in order; None stands for the sink `_`, whose value is discarded
    """

    items: tuple[Any, ...]


@dataclass(frozen=True)
class Memory:
    """A PTX memory operand: `[base + offset]`, or for a tensor copy `[base, {coordinates}]`.

    base          register or constant that the address is counted from; for a tensor copy, the address of the tensor
                  map
    offset        number of bytes that is added to the base
    coordinates   coordinates of a TMA box, the contiguous mode first; None for an ordinary address
    """

    base: Register | Immediate
    offset: int = 0
    coordinates: Vector | None = None


@dataclass(frozen=True)
class Pair:
    """A PTX destination of two results, written `a|b`.

    first, second   register of each result; None stands for the sink `_`, whose result is discarded
    """

    first: Register | None
    second: Register | None


@dataclass(frozen=True)
class Negated:
    """A negated predicate operand of a PTX instruction, written `!p`.

    register   the predicate register
    """

    register: Register


Operand = Register | Immediate | Special | Vector | Memory | Pair | Negated | None


@dataclass(frozen=True)
class Instruction:
    """One parsed instruction of a PTX text.

    line       line number in the text, from 1 on
    text       the statement, without its semicolon
    opcode     the name split at the dots: ("mbarrier", "try_wait", "parity", "shared", "b64")
    operands   in the order of the text, destinations first
    guard      (predicate, whether it is negated) of `@p` or `@!p`; None if the instruction has no guard
    target     index of the instruction that a branch jumps to; None for all other instructions
    """

    line: int
    text: str
    opcode: tuple[str, ...]
    operands: tuple[Operand, ...]
    guard: tuple[Register, bool] | None = None
    target: int | None = None

    @property
    def name(self) -> str:
        """Return the opcode of this instruction with its modifiers, joined by dots: "ld.global.v4.u32"."""
        return ".".join(self.opcode)


# --- handlers ----------------------------------------------------------------------------------------------

Handler = Callable[["Step"], None]


@dataclass(frozen=True)
class Handled:
    """The registered function that executes PTX instructions of some opcode, with the conditions for its call.

    function   executes the instruction for a `Step`
    scope      "thread", "warp" or "warpgroup": the threads that must have reached the instruction before it runs
    check      called once, when the kernel is decoded. Raises UnsupportedError for modifiers that are not implemented
    explain    returns lines for a deadlock report: what the threads wait for that could not finish the instruction
    """

    function: Handler
    scope: str
    check: Callable[[Instruction], None] | None
    explain: Callable[[Step], list[str]] | None


HANDLERS: dict[str, Handled] = {}


def handles(
    *prefixes: str,
    scope: str = "thread",
    check: Callable[[Instruction], None] | None = None,
    explain: Callable[[Step], list[str]] | None = None,
) -> Callable[[Handler], Handler]:
    """Register the decorated function to execute all PTX opcodes that begin with one of the prefixes.

    The longest matching prefix wins.

    prefixes   opcodes or their beginnings, such as "mbarrier.try_wait"
    scope      "thread": the function is called for any set of threads. "warp", "warpgroup": threads wait until all 32
               or 128 of them have reached the instruction, and `step.threads` holds whole warps or warpgroups
    check      function that raises UnsupportedError for modifiers that are not implemented; None: all are accepted
    explain    function that returns lines for a deadlock report on what threads wait for; None: it shows the
               instruction only
    """

    def register(function: Handler) -> Handler:
        for prefix in prefixes:
            assert prefix not in HANDLERS, prefix
            HANDLERS[prefix] = Handled(function, scope, check, explain)
        return function

    return register


def handler_of(instruction: Instruction) -> Handled | None:
    """Return the function that is registered to execute an instruction, with its conditions; None if none is."""
    for count in range(len(instruction.opcode), 0, -1):
        handled = HANDLERS.get(".".join(instruction.opcode[:count]))
        if handled is not None:
            return handled
    return None


class Step:
    """One execution of an instruction by several threads together.

    machine   the emulated CTAs
    threads   numbers of the threads over all CTAs that are emulated together, ascending
    late      bool (threads,): True for a thread that should give up waiting here, because no other thread can run.
              `mbarrier.try_wait` then returns false
    parked    bool (threads,): threads that could not finish the instruction and will execute it again; None if all
              could
    """

    def __init__(self, machine: Machine, instruction: Instruction, threads: np.ndarray, late: np.ndarray) -> None:
        self.machine, self.instruction, self.threads, self.late = machine, instruction, threads, late
        self.parked: np.ndarray | None = None

    @property
    def operands(self) -> tuple[Any, ...]:
        """Return the operands of the executed instruction, destinations first."""
        return self.instruction.operands

    def get(self, operand: Any, dtype: Any) -> np.ndarray:
        """Return the values (threads,) of a register, immediate or special register for the executing threads.

        The bits are viewed as the numpy type `dtype`. A predicate gives bool, and a `Negated` predicate the inverted
        value.
        """
        return self.machine.read_operand(operand, np.dtype(dtype), self.threads)

    def put(self, operand: Any, values: Any) -> None:
        """Write `values` (threads,) to a register of the executing threads; do nothing for None, the sink `_`."""
        if operand is not None:
            self.machine.write_register(operand, np.asarray(values), self.threads)

    def address(self, operand: Memory) -> np.ndarray:
        """Return the address that a memory operand gives for each executing thread: base + offset, int64 (threads,)."""
        base = operand.base
        if isinstance(base, Immediate):
            return np.full(len(self.threads), base.bits + operand.offset, np.int64)
        kind = np.int64 if base.kind == "b64" else np.uint32
        return self.get(base, kind).astype(np.int64) + operand.offset

    def park(self, where: np.ndarray) -> None:
        """Let some of the executing threads wait at this instruction, and execute it again after `machine.notify()`.

        where   bool (threads,): True for the threads to park
        """
        self.parked = where

    def fail(self, reason: str, thread: int | None = None) -> EmulationError:
        """Return an error that names the kernel, line, CTA and thread of this execution, for the caller to raise.

        reason   what is wrong
        thread   number of one of `threads`; None: the first of them
        """
        return self.machine.error(self.instruction, self.threads[0] if thread is None else thread, reason)


# --- bytes as wide values ----------------------------------------------------------------------------------

_WIDE = {
    1: "u1",
    2: "u2",
    4: "u4",
    8: "u8",
    16: "c16",
}  # numpy has no 128-bit integer; complex128 only carries the bits


def wide_view(array: np.ndarray, count: int) -> np.ndarray:
    """Return a flat view of an array's memory as numbers of `count` bytes each, so that numpy moves each as one value.

    count   1, 2, 4, 8 or 16; numpy has no 16-byte integer, and complex128 carries the bits
    """
    return array.reshape(-1).view(_WIDE[count])


def full_pattern(count: int) -> Any:
    """Return the states of `count` initialized bytes (one byte each) as one number, to compare them all at once."""
    return _FULL[count]


_FULL = {count: np.full(count, FULL, np.uint8).view(kind)[0] for count, kind in _WIDE.items()}


# --- memories ----------------------------------------------------------------------------------------------


@dataclass
class Block:
    """A CTA that is being emulated, with its position in the grid and in its cluster.

    slot      index among the CTAs that are emulated together
    index     (x, y, z) of %ctaid
    grid      (x, y, z) of %nctaid
    rank      rank of the CTA in its cluster
    cluster   slots of all CTAs of its cluster, by rank
    private   state that the functions of some instructions keep for the CTA, by keys of their choice
    """

    slot: int
    index: tuple[int, int, int]
    grid: tuple[int, int, int]
    rank: int
    cluster: tuple[int, ...]
    private: dict[Any, Any] = field(default_factory=dict)


class SharedMemory:
    """The shared memory of all CTAs that are emulated together, with the state of each byte.

    A CTA's slot is its index among these CTAs.

    size       bytes of a CTA's window: SHARED_BASE reserved bytes, then the shared memory, padded to 16 bytes
    end        offset of the first byte past a CTA's shared memory
    data       uint8 (CTAs, size): the bytes, by slot and by offset in the window
    state      uint8 (CTAs, size): EMPTY (unwritten), FULL (initialized) or PENDING (a copy to it is under way)
    origin     int32 (CTAs * size,): for a byte that was stored from an uninitialized value, the number of the read of
               unwritten memory that the value comes from, else 0; None until such a value is stored
    reserved   bool (CTAs, size): True for the bytes of mbarrier objects, which ordinary stores must not touch
    unfenced   int16 (CTAs, size / 16): the last store to each 16 bytes that no fence.proxy.async has followed. 1 + warp
               for an ordinary store, ASYNC_STORE for an st.async; 0 if all stores are fenced
    """

    def __init__(self, blocks: int, size: int) -> None:
        self.size = SHARED_BASE + -(-size // 16) * 16
        self.end = SHARED_BASE + size
        self.data = np.full((blocks, self.size), POISON_BYTE, np.uint8)
        self.state = np.zeros((blocks, self.size), np.uint8)
        self.reserved = np.zeros((blocks, self.size), bool)
        self.origin: np.ndarray | None = None
        self.unfenced = np.zeros((blocks, self.size // 16), np.int16)

    def has(self, offset: np.ndarray | int, count: int) -> Any:
        """Return whether `count` bytes from each offset on lie in a CTA's shared memory: bool, shaped like `offset`.

        offset   in the CTA's shared-memory window, in bytes
        """
        return (offset >= SHARED_BASE) & (offset + count <= self.end)


@dataclass
class Buffer:
    """One allocation of emulated global memory.

    base           address of its first byte
    data           uint8 (bytes,)
    state          uint8 (bytes,): EMPTY, FULL or `GlobalMemory.OUTSIDE`
    describe       returns a name for a byte offset, such as "A(m 3, k 4)"; None: `place` names the byte by its offset
    stored_bytes   number of bytes stored so far; bytes that are stored twice count twice
    given          True for an operand of the kernel, which is only read
    is_settled     True if the previous launch does not write the buffer: with PDL, a kernel may then read it before
                   that launch has ended
    """

    name: str
    base: int
    data: np.ndarray
    state: np.ndarray
    describe: Callable[[int], str] | None = None
    stored_bytes: int = 0
    given: bool = False
    is_settled: bool = False

    @property
    def end(self) -> int:
        """Return the address of the first byte after this buffer."""
        return self.base + len(self.data)

    def place(self, offset: int) -> str:
        """Return a name for the byte at `offset` of this buffer, for messages, such as "A(m 3, k 4)"."""
        return self.describe(offset) if self.describe else f"byte {offset} of {self.name}"


class GlobalMemory:
    """Emulated global memory: named buffers far apart, with no valid address between them.

    A byte of a buffer is FULL if it may be read, EMPTY if nothing has been written to it, and OUTSIDE if it belongs to
    no element, such as the gap between two rows of a matrix. An OUTSIDE byte may be neither read nor written.
    """

    OUTSIDE = 3
    _FIRST, _APART = 0x4000_0000_0000, 1 << 36

    def __init__(self) -> None:
        self.buffers: list[Buffer] = []

    def add(
        self,
        name: str,
        data: np.ndarray,
        state: np.ndarray,
        describe: Callable[[int], str] | None = None,
        given: bool = False,
    ) -> Buffer:
        """Allocate a buffer of global memory at a new address, a multiple of 256, and return it.

        name          name of the buffer, for messages
        data, state   bytes and their states, uint8 (bytes,), copied. The buffer is padded to a multiple of 16 bytes,
                      and the padding is OUTSIDE
        describe      function from a byte offset to a name such as "A(m 3, k 4)", for messages; None: messages have the
                      offset
        given         True for an operand of the kernel, which is only read
        """
        size = -(-max(1, len(data)) // 16) * 16
        padded = np.zeros(size // 16, np.complex128).view(np.uint8)  # aligned to 16 bytes
        states = np.full(size // 16, 0, np.complex128).view(np.uint8)
        states[...] = self.OUTSIDE
        padded[: len(data)], states[: len(data)] = data, state
        base = self._FIRST + len(self.buffers) * self._APART
        self.buffers.append(Buffer(name, base, padded, states, describe, given=given))
        return self.buffers[-1]

    def buffer_of(self, address: int) -> Buffer | None:
        """Return the buffer that contains an address, or None."""
        place = (int(address) - self._FIRST) // self._APART
        if 0 <= place < len(self.buffers):
            buffer = self.buffers[place]
            if buffer.base <= address < buffer.end:
                return buffer
        return None

    def near(self, address: int) -> str:
        """Describe where an address lies relative to the nearest buffer, in parentheses; "" without any buffer."""
        if not self.buffers:
            return ""
        buffer = min(self.buffers, key=lambda b: min(abs(address - b.base), abs(address - b.end)))
        if buffer.base <= address < buffer.end:
            return f" ({buffer.place(address - buffer.base)})"
        side = address - buffer.end + 1
        where = f"{side} bytes past the end" if side > 0 else f"{buffer.base - address} bytes before the start"
        return f" ({where} of {buffer.name})"
