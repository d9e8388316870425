"""Race detection in global memory: which accesses of different CTAs are ordered.

The rules are those of the PTX memory consistency model, as far as GEMM kernels use them. The clock of a warp says which
accesses of other warps are ordered before its next access (see `clocks`):

- A release write publishes the clock of its warp at its address. A strong write (relaxed, volatile, atomic) publishes
  the clock that the warp had at its last fence.
- An acquire read adds what is published at its address to the clock of its warp. A strong read does so at the warp's
  next fence.
- An atomic adds to what is published at its address; a store replaces it.
- Barriers of a CTA and of its cluster exchange the clocks of warps.
- The end of a kernel orders everything. A `GlobalOrder` therefore describes one launch.

Two accesses to one unit of memory are a race if at least one is a write and nothing orders them. They are not a race if
both are strong and the scope of each includes the other. Each unit keeps its last write, its last read, and its last
read by another CTA, each as one number: (index of the access, thread of the launch).
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

WEAK, CTA, CLUSTER, DEVICE = range(4)  # scopes; an ordinary access is WEAK
_SCOPES = {"cta": CTA, "cluster": CLUSTER}
_STRONG = {"relaxed", "acquire", "release", "acq_rel", "volatile"}
_LARGEST_UNIT = 8  # bytes; the size of an mbarrier
_THREAD_BITS = 32  # low bits of a unit's number: the thread; the bits above are the index of the access
_Key = TypeVar("_Key")


@dataclass(frozen=True)
class Strength:
    """The memory ordering of an access to global memory, as the PTX memory model defines it.

    scope      CTA, CLUSTER or DEVICE for a strong access; WEAK for an ordinary one
    acquires   True for .acquire and .acq_rel
    releases   True for .release and .acq_rel
    adds       True for an atomic, which continues a release sequence: what was released at its address before stays
               visible
    """

    scope: int = WEAK
    acquires: bool = False
    releases: bool = False
    adds: bool = False


@dataclass(frozen=True)
class Access:
    """An access to global memory by one instruction, for race detection.

    threads    (n,) numbers of the threads over all CTAs that are emulated together
    strength   memory ordering of the access
    """

    instruction: Instruction
    threads: np.ndarray
    strength: Strength


def scope_of(instruction: Instruction) -> int:
    """Return the scope of a strong access or of a fence: CTA, CLUSTER, or DEVICE if the instruction names none."""
    return next((_SCOPES[part] for part in instruction.opcode if part in _SCOPES), DEVICE)


def strength_of(instruction: Instruction) -> Strength:
    """Return the memory ordering of an ld, st, atom or red instruction.

    >>> line = Instruction(1, "", ("red", "release", "gpu", "global", "add", "s32"), ())
    >>> strength_of(line)
    Strength(scope=3, acquires=False, releases=True, adds=True)
    """
    modifiers, atomic = set(instruction.opcode), instruction.opcode[0] in ("atom", "red")
    if not atomic and not modifiers & _STRONG:
        return Strength()
    acquires, releases = bool(modifiers & {"acquire", "acq_rel"}), bool(modifiers & {"release", "acq_rel"})
    return Strength(scope_of(instruction), acquires, releases, atomic)


def smallest_access(program: Sequence[Decoded], space: str) -> int:
    """Return the bytes of the smallest access of a program to a memory space, at most 8: the unit of race detection.

    space   "shared" or "global"
    """
    return min([_LARGEST_UNIT, *(_access_bytes(d.instruction, space) for d in program)])


def _access_bytes(instruction: Instruction, space: str) -> int:
    """Return the bytes that one thread of an instruction accesses at once in a memory space.

    If the instruction does not access the space, the result is 8, the largest unit of race detection.

    space   "shared" or "global"

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
    """Return whether an instruction can order memory accesses of different CTAs, as fences and atomics can."""
    name = instruction.opcode[0]
    if name in ("ld", "st"):
        return "global" in instruction.opcode and strength_of(instruction).scope > CTA
    return name in ("atom", "red", "membar") or instruction.opcode[:2] in (
        ("fence", "acq_rel"),
        ("fence", "sc"),
        ("barrier", "cluster"),
    )


class _Log:
    """The last accesses to each unit of a buffer of global memory, for race detection.

    An entry is one integer, (index of the access << 32 | thread), or 0 if no access was recorded.

    units            number of units of the buffer
    written          last write of each unit
    read             last read of each unit
    read_elsewhere   last read of each unit by another CTA than the CTA of `read`
    """

    def __init__(self, units: int) -> None:
        self.written = np.zeros(units, np.int64)
        self.read = np.zeros(units, np.int64)
        self.read_elsewhere = np.zeros(units, np.int64)  # by another CTA than `read`


class GlobalOrder:
    """Race detector for the accesses of one launch to global memory, by vector clocks.

    program         instructions of the kernel
    ctas            number of CTAs of the launch; only some of them are emulated at a time
    block_threads   number of threads of a CTA
    columns         attribute: number of entries that a vector clock needs for the warps of other CTAs: one for each
                    warp of the launch, or 0 if no instruction of the program orders CTAs
    grain           attribute: bytes of a unit, the smallest piece of memory whose accesses are recorded separately
    """

    machine: Machine  # runs the CTAs in flight: number `first` of the grid and those after it
    clocks: Clocks
    first: int

    def __init__(self, program: Sequence[Decoded], ctas: int, block_threads: int) -> None:
        self.block_threads, self.warps = block_threads, -(-block_threads // WARP)
        self.columns = ctas * self.warps if any(_orders(d.instruction) for d in program) else 0
        self.grain = smallest_access(program, "global")
        self._logs: dict[int, _Log] = {}
        # All recorded accesses, numbered from 1 on, and the clock of each.
        self._accesses: list[tuple[Instruction, Strength]] = []
        self._stamps = np.zeros(1024, np.int64)
        # By address: clocks over all warps of the launch, by (scope, group) of the threads that may learn them.
        self._published: dict[int, dict[tuple[int, int], np.ndarray]] = {}
        # By (warp, scope): the clock at the last fence; what strong reads have observed since.
        self._fenced: dict[tuple[int, int], np.ndarray] = {}
        self._observed: dict[tuple[int, int], np.ndarray] = {}

    def enter(self, machine: Machine, first: int) -> None:
        """Record which CTAs of the launch run now, before their accesses to global memory are checked for races.

        machine   emulates these CTAs
        first     index in the grid of the first of them
        """
        assert machine.clocks is not None
        self.machine, self.clocks, self.first = machine, machine.clocks, first
        self._launch_thread = first * self.block_threads + np.arange(machine.total)

    # --- synchronization -------------------------------------------------------------------------------------

    def strong_write(self, threads: np.ndarray, addresses: np.ndarray, strength: Strength) -> None:
        """Record in the race detector that warps make strong writes (e.g. st.release) to global memory.

        The vector clocks of the warps, i.e. what is ordered before the writes, are stored at the written addresses.

        An acquire read of such an address is then ordered after all of that. Call this method after `write` has
        recorded the accesses.

        threads     (n,) numbers over all CTAs that are emulated together
        addresses   (n,) generic addresses
        strength    memory ordering of the writes
        """
        for thread, address in zip(threads.tolist(), addresses.tolist(), strict=True):
            row, warp, cta = self._identify(thread)
            if not strength.adds:
                self._published.pop(address, None)
            clocks = {s: self._fenced.get((warp, s)) for s in (CTA, CLUSTER, DEVICE)}
            if strength.releases:
                clocks[strength.scope] = self._clock_of(row, warp, cta)
            for scope, clock in clocks.items():
                if clock is not None:
                    group = self._scope_groups(cta)[min(scope, strength.scope) - 1]
                    _join(self._published.setdefault(address, {}), group, clock)
        if strength.releases:
            self.clocks.now += 1

    def strong_read(self, threads: np.ndarray, addresses: np.ndarray, strength: Strength) -> None:
        """Record in the race detector that warps make strong reads (e.g. ld.acquire) of global memory.

        What happened before strong writes to these addresses is then ordered before what the warps do next.

        An acquire read has this effect at once, any other strong read at the next fence. Call this method after `read`
        has recorded the accesses.

        threads     (n,) numbers over all CTAs that are emulated together
        addresses   (n,) generic addresses
        strength    memory ordering of the reads
        """
        for thread, address in zip(threads.tolist(), addresses.tolist(), strict=True):
            row, warp, cta = self._identify(thread)
            published = self._published.get(address, {})
            for group in self._scope_groups(cta):
                clock = published.get(group)
                if clock is None:
                    continue
                if strength.acquires:
                    self._learn(row, clock)
                else:
                    _join(self._observed, (warp, group[0]), clock)

    def fence(self, threads: np.ndarray, scope: int) -> None:
        """Execute a memory fence of some warps in the race detector for global memory.

        What their earlier strong reads observed is then ordered before what the warps do next. Their later strong
        writes pass on to readers all that is ordered before the fence.

        threads   (n,) numbers of the warps' threads over all CTAs that are emulated together
        scope     CTA, CLUSTER or DEVICE: the memory scope of the fence
        """
        _, first = np.unique(self.machine.agent_of[threads], return_index=True)
        for thread in threads[first].tolist():
            row, warp, cta = self._identify(thread)
            for narrower in range(CTA, scope + 1):
                clock = self._observed.pop((warp, narrower), None)
                if clock is not None:
                    self._learn(row, clock)
            self._fenced[warp, scope] = self._clock_of(row, warp, cta)
        self.clocks.now += 1

    def join_cluster(self, row: int, clock: np.ndarray, slot: int) -> None:
        """Raise a warp's vector clock after a cluster barrier, to include the clock of a warp in another CTA.

        What the other warp did before the barrier is then ordered before what this warp does next.

        row     row of the warp in the table of vector clocks, `Clocks.known`
        clock   vector clock of the other warp at the barrier
        slot    index of the other warp's CTA among those that are emulated together
        """
        if self.columns:
            self._learn(row, self._over_launch(clock, self.first + slot))

    def _identify(self, thread: int) -> tuple[int, int, int]:
        """Return three numbers for a thread: its warp's row in the table of vector clocks, its warp and its CTA.

        The warp is numbered over the launch, the CTA in the grid.
        """
        cta, own = divmod(int(self._launch_thread[thread]), self.block_threads)
        return int(self.machine.agent_of[thread]), cta * self.warps + own // WARP, cta

    def _scope_groups(self, cta: int) -> tuple[tuple[int, int], ...]:
        """Return (scope, set of CTAs) for each memory scope that a CTA belongs to: CTA, CLUSTER and DEVICE.

        Two CTAs with the same set in a scope see each other's strong accesses of that scope.

        cta   number of the CTA in the grid
        """
        size = len(self.machine.blocks[0].cluster)
        return (CTA, cta), (CLUSTER, cta // size), (DEVICE, 0)

    def _over_launch(self, clock: np.ndarray, cta: int) -> np.ndarray:
        """Convert the vector clock of a warp to one that has an entry for each warp of the launch.

        clock   clock with entries for the warps of CTAs that are emulated together
        cta     number in the grid of the warp's CTA
        """
        out = clock[self.clocks.agents :].copy()
        out[cta * self.warps : (cta + 1) * self.warps] = clock[: self.warps]
        return out

    def _clock_of(self, row: int, warp: int, cta: int) -> np.ndarray:
        """Return the present vector clock of a warp, with an entry for each warp of the launch.

        row    row of the warp in the table of vector clocks, `Clocks.known`
        warp   number of the warp in the launch
        cta    number in the grid of the warp's CTA
        """
        out = self._over_launch(self.clocks.known[row], cta)
        out[warp] = self.clocks.now
        return out

    def _learn(self, row: int, clock: np.ndarray) -> None:
        """Raise a warp's vector clock to `clock`, which has an entry for each warp of the launch.

        row   row in the table of vector clocks, `Clocks.known`, of the warp whose clock is raised
        """
        clocks = self.clocks
        known, slot = clocks.known[row], row // clocks.agents
        first = (self.first + slot) * self.warps
        known[clocks.agents :] = np.maximum(known[clocks.agents :], clock)
        known[: self.warps] = np.maximum(known[: self.warps], clock[first : first + self.warps])
        clocks.tick(slot)

    # --- accesses ----------------------------------------------------------------------------------------

    def read(self, access: Access, buffer: Buffer, offset: np.ndarray, count: int) -> None:
        """Record that each thread of an access reads `count` bytes of a buffer, and check for races.

        Reads of kernel operands are not recorded, because the kernel never writes them.

        offset   (n,) offsets in the buffer, in bytes
        raises   EmulationError for a race
        """
        if buffer.given:
            return
        log, units = self._log(buffer), self._units(offset, count)
        number = self._note(access)
        self._check(access, buffer, units, log.written, "reads", "written")
        before = log.read[units]
        readers = self._launch_thread[access.threads][:, None]
        elsewhere = (before != 0) & (_thread(before) // self.block_threads != readers // self.block_threads)
        if elsewhere.any():
            log.read_elsewhere[units[elsewhere]] = before[elsewhere]
        log.read[units] = number << _THREAD_BITS | readers

    def write(self, access: Access, buffer: Buffer, offset: np.ndarray, count: int) -> None:
        """Record that each thread of an access writes `count` bytes of a buffer, or updates them atomically.

        offset   (n,) offsets in the buffer, in bytes
        raises   EmulationError for a race, or if the buffer is an operand of the kernel
        """
        self._write(access, buffer, self._units(offset, count))

    def write_bytes(self, access: Access, buffer: Buffer, at: np.ndarray) -> None:
        """Record that a TMA store of one thread writes bytes of a buffer, and check for races.

        access   the TMA store, with the thread that issued it
        at       offsets of the bytes in the buffer
        raises   EmulationError for a race, or if the buffer is an operand of the kernel
        """
        units = np.unique(at // self.grain)[None]
        if units.size:
            self._write(access, buffer, units)

    def _write(self, access: Access, buffer: Buffer, units: np.ndarray) -> None:
        """Record that the threads (n,) of an access write memory units, and check for races.

        buffer   the buffer of global memory
        units    (n, count), the units that each thread writes
        """
        threads = access.threads
        if buffer.given:
            element = buffer.place(int(units[0, 0]) * self.grain)
            raise self._error(access, 0, f"it writes {element}, an operand of the kernel; operands are read-only.")
        log, number = self._log(buffer), self._note(access)
        for accesses, verb in ((log.written, "written"), (log.read, "read"), (log.read_elsewhere, "read")):
            self._check(access, buffer, units, accesses, "writes", verb)
        entries = number << _THREAD_BITS | self._launch_thread[threads][:, None]
        log.written[units] = entries
        if len(threads) > 1 and (log.written[units] != entries).any():  # two threads write the same unit
            self._check(access, buffer, units, log.written, "writes", "written")

    def _log(self, buffer: Buffer) -> _Log:
        """Return the log of the last accesses to a buffer. The first call for a buffer creates it."""
        log = self._logs.get(buffer.base)
        if log is None:
            log = self._logs[buffer.base] = _Log(len(buffer.data) // self.grain)
        return log

    def _units(self, offset: np.ndarray, count: int) -> np.ndarray:
        """Return the numbers of the memory units that hold `count` bytes from each offset on: (n, count of units).

        offset   (n,) offsets in a buffer, in bytes
        """
        return offset[:, None] // self.grain + np.arange(max(1, count // self.grain))

    def _note(self, access: Access) -> int:
        """Record an access to global memory with the present value of the common counter, and return its index."""
        self._accesses.append((access.instruction, access.strength))
        number = len(self._accesses)
        if number == len(self._stamps):
            self._stamps = np.concatenate([self._stamps, np.zeros_like(self._stamps)])
        self._stamps[number] = self.clocks.now
        return number

    def _check(
        self, access: Access, buffer: Buffer, units: np.ndarray, accesses: np.ndarray, does: str, was: str
    ) -> None:
        """Raise EmulationError for a race: an earlier access to the same units is not ordered before the present one.

        buffer     the buffer of global memory
        units      (n, count), the units that each thread accesses
        accesses   the earlier accesses to all units: `written`, `read` or `read_elsewhere` of a log
        does       what the present access does, for the message: "reads" or "writes"
        was        what the earlier access did: "written" or "read"
        """
        before = accesses[units]
        if not before.any():
            return
        at, column = np.nonzero(before)
        entries = before[at, column]
        cta, other = np.divmod(_thread(entries), self.block_threads)
        mine = access.threads[at]
        slot = self.machine.block_of[mine]
        same = cta == self.first + slot
        clocks, warp = self.clocks, other // WARP
        rows = self.machine.agent_of[mine]
        if self.columns:
            known = clocks.known[rows, np.where(same, warp, clocks.agents + cta * self.warps + warp)]
        else:
            known = np.where(same, clocks.known[rows, np.where(same, warp, 0)], 0)
        same_warp = same & (warp == self.machine.thread_of[mine] // WARP)
        late = np.flatnonzero((self._stamps[entries >> _THREAD_BITS] > known) & ~same_warp)
        for i in late.tolist():
            line, strength = self._accesses[(int(entries[i]) >> _THREAD_BITS) - 1]
            scope = min(strength.scope, access.strength.scope)
            groups, others = (self._scope_groups(int(c))[:scope] for c in (cta[i], self.first + slot[i]))
            if set(groups) & set(others):
                continue
            offset = int(units[at[i], column[i]]) * self.grain
            raise self._error(
                access,
                int(at[i]),
                f"race: it {does} {buffer.place(offset)}, at {buffer.base + offset:#x} of global memory, which "
                f"was {was} by line {line.line} ({line.text[:100]}), CTA {self._index(int(cta[i]))}, thread "
                f"{other[i]}, and nothing orders the two accesses.",
            )

    def _error(self, access: Access, which: int, reason: str) -> EmulationError:
        """Return the error to raise for one thread of an access to global memory.

        which    index of the thread in the access
        reason   what is wrong
        """
        return self.machine.error(access.instruction, int(access.threads[which]), reason)

    def _index(self, cta: int) -> tuple[int, int, int]:
        """Convert a CTA's number in the grid to its %ctaid (x, y, z)."""
        x, y, _ = self.machine.blocks[0].grid
        return cta % x, cta // x % y, cta // (x * y)


def _thread(accesses: np.ndarray) -> np.ndarray:
    """Return the threads that are packed into records of accesses, integers (access index << 32 | thread).

    Threads are numbered over all CTAs of the launch.
    """
    return accesses & ((1 << _THREAD_BITS) - 1)


def _join(clocks: dict[_Key, np.ndarray], key: _Key, clock: np.ndarray) -> None:
    """Merge a vector clock into the one that is stored under a key: each entry becomes the larger of the two.

    clocks   the stored clocks, by key; without the key, `clock` itself is stored
    """
    present = clocks.get(key)
    clocks[key] = clock if present is None else np.maximum(present, clock)
