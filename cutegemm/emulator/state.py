"""What a kernel works on while it is emulated: operands, memories, CTAs, and the handlers of instructions.

All threads of the CTAs in flight are numbered through, CTA by CTA; a register is an array over them. A
handler is called with a `Step`: one instruction, for all threads that stand at it together.
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
SHARED_BASE = 1024  # where a CTA's shared memory begins in its window: the first KiB is the system's
CLUSTER_SHIFT = 24  # shared::cluster addresses: (rank + 1) << 24 | offset; below 1 << 24 is one's own CTA
GENERIC_SHARED = 0x7E00_0000_0000  # the window of shared memory among the generic addresses
GENERIC_PARAM = 0x7D00_0000_0000  # that of the kernel's parameters

STORED = {
    "pred": np.dtype("?"),
    "b16": np.dtype("u2"),
    "b32": np.dtype("u4"),
    "b64": np.dtype("u8"),
}  # registers
EMPTY, FULL, PENDING = 0, 1, 2  # states of a byte: never written, written, on its way
ASYNC_STORE = -1  # in the place of a warp: what st.async has stored
POISON_BYTE = 0xFF  # of memory to which nothing was written: a NaN in every float format


# --- operands ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Register:
    """A virtual register. kind: pred, b16, b32, b64; index: its place in the register file."""

    name: str
    kind: str
    index: int


@dataclass(frozen=True)
class Immediate:
    """A constant, or the address of a symbol. bits: as written, sign extended; a float by its bits."""

    bits: int
    is_float: bool = False


@dataclass(frozen=True)
class Special:
    """A special register: tid.x, ctaid.y, laneid, cluster_ctarank, ..."""

    name: str


@dataclass(frozen=True)
class Vector:
    """{a, b, ...}; a sink `_` is None."""

    items: tuple[Any, ...]


@dataclass(frozen=True)
class Memory:
    """[base + offset], or a tensor's [base, {coordinates}]."""

    base: Register | Immediate
    offset: int = 0
    coordinates: Vector | None = None


@dataclass(frozen=True)
class Pair:
    """a|b: two results."""

    first: Register | None
    second: Register | None


@dataclass(frozen=True)
class Negated:
    """!p: a predicate turned round, as wgmma and setp take it."""

    register: Register


Operand = Register | Immediate | Special | Vector | Memory | Pair | Negated | None


@dataclass(frozen=True)
class Instruction:
    """One line of PTX.

    opcode     its parts: ("mbarrier", "try_wait", "parity", "shared", "b64"); `name` joins them by dots
    operands   as they stand in the text, results first
    guard      (predicate, whether it is negated) of @p and @!p
    target     of a branch: the number of an instruction
    """

    line: int
    text: str
    opcode: tuple[str, ...]
    operands: tuple[Operand, ...]
    guard: tuple[Register, bool] | None = None
    target: int | None = None

    @property
    def name(self) -> str:
        """The opcode with its modifiers."""
        return ".".join(self.opcode)


# --- handlers ----------------------------------------------------------------------------------------------

Handler = Callable[["Step"], None]


@dataclass(frozen=True)
class Handled:
    """A handler, what must stand at its instruction together (thread, warp, warpgroup), a check made once when
    the kernel is read: it raises UnsupportedError for modifiers that are not served; and what threads that
    park there wait for, in words for the report of a deadlock."""

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
    """Registers a handler for all opcodes that begin with one of the prefixes; the longest one wins.

    scope   "thread": called for any set of threads. "warp", "warpgroup": threads wait until all 32 or 128 of
            them stand here; `step.threads` holds whole ones then
    """

    def register(function: Handler) -> Handler:
        for prefix in prefixes:
            assert prefix not in HANDLERS, prefix
            HANDLERS[prefix] = Handled(function, scope, check, explain)
        return function

    return register


def handler_of(instruction: Instruction) -> Handled | None:
    """The handler registered for an opcode, or None."""
    for count in range(len(instruction.opcode), 0, -1):
        found = HANDLERS.get(".".join(instruction.opcode[:count]))
        if found is not None:
            return found
    return None


class Step:
    """An instruction, carried out for `threads`: numbers over all CTAs in flight, ascending.

    late   bool (threads,): who has parked here until nothing else could run, and must give up if it may
           (mbarrier.try_wait: with a predicate of false)
    """

    def __init__(self, machine: Machine, instruction: Instruction, threads: np.ndarray, late: np.ndarray) -> None:
        self.machine, self.instruction, self.threads, self.late = machine, instruction, threads, late
        self.parked: np.ndarray | None = None

    @property
    def operands(self) -> tuple[Any, ...]:
        """The operands of the instruction."""
        return self.instruction.operands

    def get(self, operand: Any, dtype: Any) -> np.ndarray:
        """Values (threads,) of a register, immediate or special register, as `dtype`: the bits, not converted.

        Of a predicate: bool. A `Negated` one is turned round.
        """
        return self.machine.read_operand(operand, np.dtype(dtype), self.threads)

    def put(self, operand: Any, values: Any) -> None:
        """Writes a register of these threads; None, the sink, takes anything."""
        if operand is not None:
            self.machine.write_register(operand, np.asarray(values), self.threads)

    def address(self, operand: Memory) -> np.ndarray:
        """base + offset, int64 (threads,)."""
        base = operand.base
        if isinstance(base, Immediate):
            return np.full(len(self.threads), base.bits + operand.offset, np.int64)
        kind = np.int64 if base.kind == "b64" else np.uint32
        return self.get(base, kind).astype(np.int64) + operand.offset

    def park(self, where: np.ndarray) -> None:
        """These (bool, over `threads`) wait here, and try again after the next `machine.notify()`."""
        self.parked = where

    def fail(self, reason: str, thread: int | None = None) -> EmulationError:
        """An error to raise; it names kernel, line, CTA and thread. thread: one of `threads`."""
        return self.machine.error(self.instruction, self.threads[0] if thread is None else thread, reason)


# --- bytes as wide values ----------------------------------------------------------------------------------

_WIDE = {
    1: "u1",
    2: "u2",
    4: "u4",
    8: "u8",
    16: "c16",
}  # numpy has no 128-bit integer; the bits are only moved


def wide_view(array: np.ndarray, count: int) -> np.ndarray:
    """An array's memory as values of `count` bytes, flat."""
    return array.reshape(-1).view(_WIDE[count])


def full_pattern(count: int) -> Any:
    """The state of a value of `count` bytes all of which are FULL."""
    return _FULL[count]


_FULL = {count: np.full(count, FULL, np.uint8).view(kind)[0] for count, kind in _WIDE.items()}


# --- memories ----------------------------------------------------------------------------------------------


@dataclass
class Block:
    """A CTA in flight.

    slot           its place among those in flight
    index, grid    ctaid, nctaid (x, y, z)
    rank           within its cluster; `cluster` holds the slots of all its CTAs, by rank
    private        whatever handlers keep for it, by their own keys
    """

    slot: int
    index: tuple[int, int, int]
    grid: tuple[int, int, int]
    rank: int
    cluster: tuple[int, ...]
    private: dict[Any, Any] = field(default_factory=dict)


class SharedMemory:
    """The shared memory of all CTAs in flight.

    data       uint8 (CTAs, size): [slot, offset]; offsets count from the start of a CTA's window, of which the first
               SHARED_BASE bytes are nobody's
    state      uint8, the same shape: EMPTY, FULL or PENDING
    origin     flat; of an EMPTY byte, the hole that the value written there came from; None where there is none
    reserved   bool, the same shape: bytes of mbarrier objects, which ordinary accesses must leave alone
    unfenced   int16 (CTAs, size / 16): 1 + the warp whose ordinary stores no fence.proxy.async follows yet, or
               ASYNC_STORE
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
        """Whether `count` bytes from each offset are this CTA's to use."""
        return (offset >= SHARED_BASE) & (offset + count <= self.end)


@dataclass
class Buffer:
    """A piece of global memory. data, state: uint8 of one length, from address `base` on.

    describe       what is at an offset, in words: "element (3, 4) of A"
    stored_bytes   how many have been written; more than there are, where a byte is written twice
    given          an operand: it is only read
    is_settled     it may be read before the launch before has ended, which does not write it: somebody vouches for that
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
        """The first address past it."""
        return self.base + len(self.data)

    def place(self, offset: int) -> str:
        """An offset in words."""
        return self.describe(offset) if self.describe else f"byte {offset} of {self.name}"


class GlobalMemory:
    """Global memory: named buffers, far apart, with nothing between them.

    state of a byte: FULL where it may be read, EMPTY where nothing has been written; OUTSIDE of a matrix (the
    gaps between its rows) may be neither read nor written
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
        """A buffer at a new address, a multiple of 256; padded to whole 16 bytes by what is OUTSIDE."""
        size = -(-max(1, len(data)) // 16) * 16
        held = np.zeros(size // 16, np.complex128).view(np.uint8)  # aligned to 16 bytes
        states = np.full(size // 16, 0, np.complex128).view(np.uint8)
        states[...] = self.OUTSIDE
        held[: len(data)], states[: len(data)] = data, state
        base = self._FIRST + len(self.buffers) * self._APART
        self.buffers.append(Buffer(name, base, held, states, describe, given=given))
        return self.buffers[-1]

    def buffer_of(self, address: int) -> Buffer | None:
        """The buffer that holds an address; None where there is none."""
        place = (int(address) - self._FIRST) // self._APART
        if 0 <= place < len(self.buffers):
            buffer = self.buffers[place]
            if buffer.base <= address < buffer.end:
                return buffer
        return None

    def near(self, address: int) -> str:
        """Where an address is, in words, for an error."""
        if not self.buffers:
            return ""
        buffer = min(self.buffers, key=lambda b: min(abs(address - b.base), abs(address - b.end)))
        if buffer.base <= address < buffer.end:
            return f" ({buffer.place(address - buffer.base)})"
        side = address - buffer.end + 1
        where = f"{side} bytes past the end" if side > 0 else f"{buffer.base - address} bytes before the start"
        return f" ({where} of {buffer.name})"
