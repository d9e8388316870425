"""Who knows of whose accesses to global memory: what orders CTAs with each other, and what nothing orders.

The rules are those of the PTX ISA, memory consistency model, as far as kernels use them. A write that releases, or a
strong one (relaxed, volatile, atomic) after a fence, leaves at its address what its warp knows. A read that acquires,
or a strong one before a fence, takes over what lies there. An atomic adds to what lies there; a store replaces it.
What was taken over goes on through the barriers of a CTA and of its cluster with all else that a warp knows
(`Clocks`). The end of a kernel orders everything: a `GlobalOrder` is that of one launch.

Two accesses to a unit of which one writes, with nothing that orders them, are a race, unless both are strong and the
scope of each includes the other. A unit keeps its last writer, and the last readers of two CTAs, each as one number:
which of the accesses that were noted, and which thread of the launch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from cutegemm.emulator.scalar import TYPES
from cutegemm.emulator.scheduler import Decoded
from cutegemm.emulator.state import WARP, Buffer, Immediate, Instruction
from cutegemm.errors import EmulationError

if TYPE_CHECKING:
    from cutegemm.emulator.clocks import Clocks
    from cutegemm.emulator.machine import Machine

WEAK, CTA, CLUSTER, DEVICE = range(4)  # scopes; that of an ordinary access is nobody
_SCOPES = {"cta": CTA, "cluster": CLUSTER}
_STRONG = {"relaxed", "acquire", "release", "acq_rel", "volatile"}
_LARGEST_UNIT = 8  # bytes: those of an mbarrier
_THREAD_BITS = 32  # of the number that a unit keeps
_Key = TypeVar("_Key")


@dataclass(frozen=True)
class Strength:
    """What an access is to others.

    scope   for whom it is strong; WEAK for an ordinary one
    adds    an atomic: what was released at its address before stays there
    """

    scope: int = WEAK
    acquires: bool = False
    releases: bool = False
    adds: bool = False


@dataclass(frozen=True)
class Access:
    """What threads (n,) do to global memory with one instruction."""

    instruction: Instruction
    threads: np.ndarray
    strength: Strength


def scope_of(instruction: Instruction) -> int:
    """The scope of a strong access or of a fence: the device where it names none."""
    return next((_SCOPES[part] for part in instruction.opcode if part in _SCOPES), DEVICE)


def strength_of(instruction: Instruction) -> Strength:
    """The strength of ld, st, atom or red.

    >>> line = Instruction(1, "", ("red", "release", "gpu", "global", "add", "s32"), ())
    >>> strength_of(line)
    Strength(scope=3, acquires=False, releases=True, adds=True)
    """
    said, atomic = set(instruction.opcode), instruction.opcode[0] in ("atom", "red")
    if not atomic and not said & _STRONG:
        return Strength()
    acquires, releases = bool(said & {"acquire", "acq_rel"}), bool(said & {"release", "acq_rel"})
    return Strength(scope_of(instruction), acquires, releases, atomic)


def smallest_access(program: Sequence[Decoded], space: str) -> int:
    """Bytes of the smallest access to a space, 8 at most: the unit of its races."""
    return min([_LARGEST_UNIT, *(_access_bytes(d.instruction, space) for d in program)])


def _access_bytes(instruction: Instruction, space: str) -> int:
    """What a thread accesses of a space at once, as far as that may be less than the largest unit.

    >>> _access_bytes(Instruction(1, "", ("ld", "shared", "v2", "b16"), ()), "shared")
    4
    """
    op, *mods = instruction.opcode
    named = {"param", "shared", "global"}.intersection([mod.partition("::")[0] for mod in mods])
    if named and space not in named:
        return _LARGEST_UNIT
    if op in ("ld", "st", "atom", "red"):
        count = next((int(mod[1:]) for mod in mods if mod in ("v2", "v4", "v8")), 1)
        return TYPES[mods[-1]].itemsize * count
    if op == "cp" and len(instruction.operands) > 2 and isinstance(instruction.operands[2], Immediate):
        return instruction.operands[2].bits
    return _LARGEST_UNIT


def _orders(instruction: Instruction) -> bool:
    """Whether an instruction may order CTAs."""
    name = instruction.opcode[0]
    if name in ("ld", "st"):
        return "global" in instruction.opcode and strength_of(instruction).scope > CTA
    return name in ("atom", "red", "membar") or instruction.opcode[:2] in (
        ("fence", "acq_rel"),
        ("fence", "sc"),
        ("barrier", "cluster"),
    )


class _Log:
    """The last accesses to each unit of a buffer; 0 where there was none."""

    def __init__(self, units: int) -> None:
        self.written = np.zeros(units, np.int64)
        self.read = np.zeros(units, np.int64)
        self.read_elsewhere = np.zeros(units, np.int64)  # by another CTA than `read`


class GlobalOrder:
    """The accesses to global memory of a launch of `ctas` CTAs, of which some are in flight at a time.

    columns   of the clocks of its machines: one for each warp of the launch; 0 where the program has nothing
              that orders CTAs
    grain     bytes of a unit
    """

    machine: Machine  # whose CTAs are in flight, `first` and those after it in the grid
    clocks: Clocks
    first: int

    def __init__(self, program: Sequence[Decoded], ctas: int, block_threads: int) -> None:
        self.block_threads, self.warps = block_threads, -(-block_threads // WARP)
        self.columns = ctas * self.warps if any(_orders(d.instruction) for d in program) else 0
        self.grain = smallest_access(program, "global")
        self._logs: dict[int, _Log] = {}
        # Accesses that were noted, counted from 1 on, and when that was.
        self._noted: list[tuple[Instruction, Strength]] = []
        self._stamps = np.zeros(1024, np.int64)
        # By address: clocks over all warps, by for whom they lie there.
        self._left: dict[int, dict[tuple[int, int], np.ndarray]] = {}
        # Of a warp and a scope: what it knew at its last fence; what its strong reads found since.
        self._fenced: dict[tuple[int, int], np.ndarray] = {}
        self._found: dict[tuple[int, int], np.ndarray] = {}

    def enter(self, machine: Machine, first: int) -> None:
        """The CTAs of a machine, `first` and those after it in the grid, are in flight now."""
        assert machine.clocks is not None
        self.machine, self.clocks, self.first = machine, machine.clocks, first
        self._person = first * self.block_threads + np.arange(machine.total)

    # --- what orders -------------------------------------------------------------------------------------

    def wrote(self, threads: np.ndarray, addresses: np.ndarray, strength: Strength) -> None:
        """Strong writes, after they have been noted: what they leave."""
        for thread, address in zip(threads.tolist(), addresses.tolist(), strict=True):
            row, warp, cta = self._who(thread)
            if not strength.adds:
                self._left.pop(address, None)
            leaves = {s: self._fenced.get((warp, s)) for s in (CTA, CLUSTER, DEVICE)}
            if strength.releases:
                leaves[strength.scope] = self._now(row, warp, cta)
            for scope, clock in leaves.items():
                if clock is not None:
                    place = self._reach(cta)[min(scope, strength.scope) - 1]
                    _join(self._left.setdefault(address, {}), place, clock)
        if strength.releases:
            self.clocks.now += 1

    def read_strongly(self, threads: np.ndarray, addresses: np.ndarray, strength: Strength) -> None:
        """Strong reads, after they have been noted: what they take over, now or at a fence."""
        for thread, address in zip(threads.tolist(), addresses.tolist(), strict=True):
            row, warp, cta = self._who(thread)
            left = self._left.get(address, {})
            for place in self._reach(cta):
                clock = left.get(place)
                if clock is None:
                    continue
                if strength.acquires:
                    self._take(row, clock)
                else:
                    _join(self._found, (warp, place[0]), clock)

    def fence(self, threads: np.ndarray, scope: int) -> None:
        """What strong reads before it found is known from here on, and left by strong writes after it."""
        _, first = np.unique(self.machine.agent_of[threads], return_index=True)
        for thread in threads[first].tolist():
            row, warp, cta = self._who(thread)
            for narrower in range(CTA, scope + 1):
                clock = self._found.pop((warp, narrower), None)
                if clock is not None:
                    self._take(row, clock)
            self._fenced[warp, scope] = self._now(row, warp, cta)
        self.clocks.now += 1

    def pass_on(self, row: int, clock: np.ndarray, slot: int) -> None:
        """A warp takes over what one of another CTA in flight knew, by a barrier of their cluster."""
        if self.columns:
            self._take(row, self._of_all(clock, self.first + slot))

    def _who(self, thread: int) -> tuple[int, int, int]:
        """A thread's row in the clocks, its warp among all of the launch, its CTA."""
        cta, own = divmod(int(self._person[thread]), self.block_threads)
        return int(self.machine.agent_of[thread]), cta * self.warps + own // WARP, cta

    def _reach(self, cta: int) -> tuple[tuple[int, int], ...]:
        """(scope, group) for those that each scope includes."""
        size = len(self.machine.blocks[0].cluster)
        return (CTA, cta), (CLUSTER, cta // size), (DEVICE, 0)

    def _of_all(self, clock: np.ndarray, cta: int) -> np.ndarray:
        """A clock of a CTA's warp as one over all warps of the launch."""
        out = clock[self.clocks.agents :].copy()
        out[cta * self.warps : (cta + 1) * self.warps] = clock[: self.warps]
        return out

    def _now(self, row: int, warp: int, cta: int) -> np.ndarray:
        out = self._of_all(self.clocks.known[row], cta)
        out[warp] = self.clocks.now
        return out

    def _take(self, row: int, clock: np.ndarray) -> None:
        clocks = self.clocks
        known, slot = clocks.known[row], row // clocks.agents
        first = (self.first + slot) * self.warps
        known[clocks.agents :] = np.maximum(known[clocks.agents :], clock)
        known[: self.warps] = np.maximum(known[: self.warps], clock[first : first + self.warps])
        clocks.tick(slot)

    # --- accesses ----------------------------------------------------------------------------------------

    def read(self, access: Access, buffer: Buffer, offset: np.ndarray, count: int) -> None:
        """Each thread reads `count` bytes from its offset on; of an operand that is not noted.

        raises   EmulationError for a race
        """
        if buffer.given:
            return
        log, units = self._log(buffer), self._units(offset, count)
        number = self._note(access)
        self._check(access, buffer, units, log.written, "reads", "written")
        before = log.read[units]
        people = self._person[access.threads][:, None]
        elsewhere = (before != 0) & (_thread(before) // self.block_threads != people // self.block_threads)
        if elsewhere.any():
            log.read_elsewhere[units[elsewhere]] = before[elsewhere]
        log.read[units] = number << _THREAD_BITS | people

    def write(self, access: Access, buffer: Buffer, offset: np.ndarray, count: int) -> None:
        """The same for writes and atomics. raises EmulationError, for a store to an operand as well"""
        self._write(access, buffer, self._units(offset, count))

    def write_bytes(self, access: Access, buffer: Buffer, at: np.ndarray) -> None:
        """A copy on behalf of one thread writes bytes. raises EmulationError"""
        units = np.unique(at // self.grain)[None]
        if units.size:
            self._write(access, buffer, units)

    def _write(self, access: Access, buffer: Buffer, units: np.ndarray) -> None:
        """Threads (n,) write units (n, count)."""
        threads = access.threads
        if buffer.given:
            where = buffer.place(int(units[0, 0]) * self.grain)
            raise self._error(access, 0, f"it writes {where}: operands are only read.")
        log, number = self._log(buffer), self._note(access)
        for accesses, verb in ((log.written, "written"), (log.read, "read"), (log.read_elsewhere, "read")):
            self._check(access, buffer, units, accesses, "writes", verb)
        mine = number << _THREAD_BITS | self._person[threads][:, None]
        log.written[units] = mine
        if len(threads) > 1 and (log.written[units] != mine).any():  # several write it at once
            self._check(access, buffer, units, log.written, "writes", "written")

    def _log(self, buffer: Buffer) -> _Log:
        found = self._logs.get(buffer.base)
        if found is None:
            found = self._logs[buffer.base] = _Log(len(buffer.data) // self.grain)
        return found

    def _units(self, offset: np.ndarray, count: int) -> np.ndarray:
        return offset[:, None] // self.grain + np.arange(max(1, count // self.grain))

    def _note(self, access: Access) -> int:
        """The number of an access that is made now."""
        self._noted.append((access.instruction, access.strength))
        number = len(self._noted)
        if number == len(self._stamps):
            self._stamps = np.concatenate([self._stamps, np.zeros_like(self._stamps)])
        self._stamps[number] = self.clocks.now
        return number

    def _check(
        self, access: Access, buffer: Buffer, units: np.ndarray, accesses: np.ndarray, does: str, was: str
    ) -> None:
        """raises EmulationError where a thread of an access does not know of one of those before"""
        before = accesses[units]
        if not before.any():
            return
        at, column = np.nonzero(before)
        found = before[at, column]
        cta, other = np.divmod(_thread(found), self.block_threads)
        mine = access.threads[at]
        slot = self.machine.block_of[mine]
        same = cta == self.first + slot
        clocks, warp = self.clocks, other // WARP
        rows = self.machine.agent_of[mine]
        if self.columns:
            known = clocks.known[rows, np.where(same, warp, clocks.agents + cta * self.warps + warp)]
        else:
            known = np.where(same, clocks.known[rows, np.where(same, warp, 0)], 0)
        itself = same & (warp == self.machine.thread_of[mine] // WARP)
        late = np.flatnonzero((self._stamps[found >> _THREAD_BITS] > known) & ~itself)
        for i in late.tolist():
            line, strength = self._noted[(int(found[i]) >> _THREAD_BITS) - 1]
            scope = min(strength.scope, access.strength.scope)
            if set(self._reach(int(cta[i]))[:scope]) & set(self._reach(self.first + int(slot[i]))[:scope]):
                continue
            offset = int(units[at[i], column[i]]) * self.grain
            raise self._error(
                access,
                int(at[i]),
                f"race: it {does} {buffer.place(offset)}, at {buffer.base + offset:#x} of global memory, which "
                f"was {was} by line {line.line} ({line.text[:100]}), CTA {self._index(int(cta[i]))}, thread "
                f"{other[i]}, and nothing orders the two.",
            )

    def _error(self, access: Access, which: int, reason: str) -> EmulationError:
        return self.machine.error(access.instruction, int(access.threads[which]), reason)

    def _index(self, cta: int) -> tuple[int, int, int]:
        """ctaid of a CTA."""
        x, y, _ = self.machine.blocks[0].grid
        return cta % x, cta // x % y, cta // (x * y)


def _thread(accesses: np.ndarray) -> np.ndarray:
    """The threads of accesses as they are kept, numbered over the launch."""
    return accesses & ((1 << _THREAD_BITS) - 1)


def _join(clocks: dict[_Key, np.ndarray], key: _Key, clock: np.ndarray) -> None:
    """Joins a clock to the one that is kept under a key: the later of the two, agent by agent."""
    held = clocks.get(key)
    clocks[key] = clock if held is None else np.maximum(held, clock)
