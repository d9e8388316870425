"""The emulated machine: registers of all threads, memories, and checks of every access."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from cutegemm.emulator.clocks import Clocks, Race
from cutegemm.emulator.order import GlobalOrder
from cutegemm.emulator.ptx import Kernel
from cutegemm.emulator.scheduler import Action, Decoded, Group, Scheduler, Selection
from cutegemm.emulator.state import (
    CLUSTER_SHIFT,
    GENERIC_PARAM,
    GENERIC_SHARED,
    SHARED_BASE,
    STORED,
    WARP,
    Block,
    GlobalMemory,
    Immediate,
    Instruction,
    Negated,
    Register,
    SharedMemory,
    Special,
    Step,
    wide_view,
)
from cutegemm.errors import EmulationError

_CYCLES_PER_READ = 32  # of %clock: every read of the clock advances it


class Watch(Protocol):
    """Interface of an observer that the emulator calls for each instruction that accesses shared or global memory.

    It is called for loads and stores by threads, ldmatrix, stmatrix and cp.async. It is not called for accesses by TMA
    or by st.async.
    """

    def seen(
        self,
        op: str,
        space: str,
        bits: int,
        threads: np.ndarray,
        at: np.ndarray,
        other: np.ndarray | None = None,
        line: int = 0,
    ) -> None:
        """Receive the report of one instruction that accesses memory.

        op        "load", "store", "ldmatrix", "stmatrix" or "cp.async". cp.async is reported twice: its writes to
                  shared memory, then its reads of global memory by the threads that copy at least one byte
        space     "shared" or "global"
        bits      accessed by each thread; 128, one row, for ldmatrix and stmatrix
        threads   numbers of the threads, over all CTAs that are emulated together
        at        address of each thread, in bytes
        other     cp.async: address of each thread in the other space; None for all other instructions
        line      line of the instruction in the PTX text
        """


class Machine(Scheduler):
    """The CTAs of a launch that are emulated together, from their start until all their threads have ended.

    program        instructions of the kernel, ready for execution
    blocks         the CTAs that are emulated together
    threads        number of threads of a CTA
    shared_bytes   shared memory of a CTA
    params         uint8, the bytes of the kernel parameters
    check_races    whether to detect races in shared and global memory
    grain          bytes of shared memory that race detection treats as one unit
    seed           None: a deterministic schedule of threads; a number: a random one
    order          (race detector for global memory, index in the grid of the first CTA), if other machines run other
                   CTAs of the same launch; None if this machine runs all of them
    early          True for a launch with PDL: threads must execute griddepcontrol.wait before they access global memory

    Attributes by index of a register:

    regs      bits of the register for all threads; None if it was never written
    origins   int32 (threads,): where an uninitialized value comes from. A number n > 0 is the n-th read of unwritten
              memory, described by `origin_texts[n - 1]`; 0 means that the value is initialized. A register without
              uninitialized values is absent
    """

    def __init__(
        self,
        kernel: Kernel,
        program: list[Decoded],
        blocks: list[Block],
        threads: int,
        shared_bytes: int,
        params: np.ndarray,
        memory: GlobalMemory,
        check_races: bool,
        grain: int,
        seed: int | None = None,
        order: tuple[GlobalOrder, int] | None = None,
        early: bool = False,
    ) -> None:
        super().__init__(kernel.name, program, blocks, threads, seed)
        self.early = np.full(self.total, early) if early else None
        self.kernel, self.params, self.memory = kernel, params, memory
        self.shared = SharedMemory(len(blocks), shared_bytes)
        self.lane_of = self.thread_of % WARP
        self.row_of = self.block_of * self.shared.size
        self.clocks: Clocks | None = None
        self.order: GlobalOrder | None = None
        agents = self.warps
        if check_races:
            self.order, first = order or (GlobalOrder(program, len(blocks), threads), 0)
            self.clocks = Clocks(len(blocks), self.warps, self.shared.size, grain, self.order.columns)
            agents = self.clocks.agents
            self.order.enter(self, first)
        self.agent_of = self.block_of * agents + self.own_warp_of
        self.regs: list[Any] = [None] * len(kernel.registers)
        self.origins: dict[int, np.ndarray] = {}
        self.origin_texts: list[str] = []
        self.private: dict[Any, Any] = {}
        self._cycles = 0
        self.watch: Watch | None = None

    def propagate_origins(self, decoded: Decoded, group: Group) -> None:
        """Mark the results of an instruction as uninitialized for threads with an uninitialized source.

        The mark, called origin, is the number of the read of unwritten memory that the value comes from.

        decoded   the instruction, with the indices of its source and destination registers
        group     the threads that execute the instruction
        """
        origins = self.origins_of(decoded.reads, group)
        for register in decoded.writes:
            self.set_origins(register, group.sel, origins)

    def report_access(
        self, op: str, space: str, bits: int, threads: np.ndarray, at: np.ndarray, other: Any = None
    ) -> None:
        """Report an access of the current instruction to the observer of this machine, if it has one.

        There is at most one observer, which counts accesses for example.

        op            "load", "store", "ldmatrix", "stmatrix" or "cp.async"
        space         "shared" or "global"
        bits          accessed by each thread
        threads, at   numbers of the threads over all CTAs that are emulated together, and their addresses in bytes
        other         cp.async: addresses in the other space; None for all other instructions
        """
        if self.watch is not None:
            self.watch.seen(op, space, bits, threads, at, other, self.program[self.at].instruction.line)

    # --- registers ---------------------------------------------------------------------------------------

    def value(self, index: int, sel: Selection) -> np.ndarray:
        """Return the bits of a register for selected threads, as an array.

        index   index of the register in `Kernel.registers`
        sel     the threads: None for all, a slice, or an array of numbers
        """
        bits = self.regs[index]
        if bits is None:
            bits = self._fresh(index)
        return bits if sel is None else bits[sel]

    def assign(self, index: int, values: np.ndarray, sel: Selection) -> None:
        """Write the bits of a register for selected threads.

        If all threads are selected, the array itself becomes the register: the caller must not change it later.

        index    index of the register in `Kernel.registers`
        values   one value for each selected thread, in the register's own width
        sel      the threads: None for all, a slice, or an array of numbers
        """
        if sel is None:
            self.regs[index] = values if values.ndim else np.full(self.total, values)
            return
        bits = self.regs[index]
        if bits is None:
            bits = self._fresh(index)
        bits[sel] = values

    def _fresh(self, index: int) -> np.ndarray:
        """Give a register that was never written its initial value, and return it as an array over all threads.

        The value is all ones (false for a predicate), so that kernels which use it do not get zeros by luck.

        index   index of the register in `Kernel.registers`
        """
        kind = STORED[self.kernel.registers[index].kind]
        bits = np.full(self.total, 0 if kind == np.bool_ else (1 << 8 * kind.itemsize) - 1, kind)
        self.regs[index] = bits
        return bits

    def read_operand(self, operand: Any, dtype: np.dtype, threads: np.ndarray) -> np.ndarray:
        """Return the values (threads,) of a register, immediate or special register for some threads.

        operand   operand of the instruction
        dtype     numpy type to view the bits as
        threads   numbers of the threads over all CTAs that are emulated together
        """
        if isinstance(operand, Register):
            values = self.value(operand.index, threads)
            return values if values.dtype == dtype else values.view(dtype)
        if isinstance(operand, Negated):
            return ~self.value(operand.register.index, threads)
        if isinstance(operand, Immediate):
            width = 8 * dtype.itemsize
            bits = np.array(operand.bits & ((1 << width) - 1), f"u{dtype.itemsize}").view(dtype)
            return np.full(len(threads), bits)
        assert isinstance(operand, Special), operand
        return self.special(operand.name)[threads].view(dtype)

    def write_register(self, register: Register, values: np.ndarray, threads: np.ndarray) -> None:
        """Write values (threads,) to a register for some threads, and mark them as initialized.

        threads   numbers of the threads over all CTAs that are emulated together
        """
        kind = STORED[register.kind]
        bits = values if values.dtype == kind else values.view(kind) if kind != np.bool_ else values.astype(bool)
        self.value(register.index, None)[threads] = bits
        if register.index in self.origins:
            self.set_origins(register.index, threads, 0)

    def special(self, name: str) -> np.ndarray:
        """Return the values of a PTX special register, such as "tid.x", for all threads that are emulated together.

        Each read of a clock returns a later time.
        """
        if name in ("clock", "clock64"):
            self._cycles += _CYCLES_PER_READ
            return np.full(self.total, self._cycles, np.uint32 if name == "clock" else np.uint64)
        values = self.private.get(("special", name))
        if values is None:
            values = self.private["special", name] = self._special(name)
        return values

    def _special(self, name: str) -> np.ndarray:
        """Compute the values of a special register other than a clock, for all threads that run together."""
        base, _, axis = name.partition(".")
        i = "xyz".find(axis) if axis else 0

        def of_blocks(value: Callable[[Block], int]) -> np.ndarray:
            return np.array([value(block) for block in self.blocks])[self.block_of].astype(np.uint32)

        simple: dict[str, Callable[[], np.ndarray]] = {
            "tid": lambda: (self.thread_of if i == 0 else np.zeros(self.total)).astype(np.uint32),
            "ntid": lambda: np.full(self.total, self.block_threads if i == 0 else 1, np.uint32),
            "ctaid": lambda: of_blocks(lambda b: b.index[i]),
            "nctaid": lambda: of_blocks(lambda b: b.grid[i]),
            "laneid": lambda: self.lane_of.astype(np.uint32),
            "warpid": lambda: (self.thread_of // WARP).astype(np.uint32),
            "cluster_ctarank": lambda: of_blocks(lambda b: b.rank),
            "cluster_nctarank": lambda: of_blocks(lambda b: len(b.cluster)),
            "cluster_ctaid": lambda: of_blocks(lambda b: b.rank if i == 0 else 0),
            "cluster_nctaid": lambda: of_blocks(lambda b: len(b.cluster) if i == 0 else 1),
            "clusterid": lambda: of_blocks(lambda b: b.index[i] // (len(b.cluster) if i == 0 else 1)),
            "nclusterid": lambda: of_blocks(lambda b: b.grid[i] // (len(b.cluster) if i == 0 else 1)),
            "lanemask_eq": lambda: np.uint32(1) << self.lane_of.astype(np.uint32),
            "smid": lambda: self.block_of.astype(np.uint32),
            "nsmid": lambda: np.full(self.total, len(self.blocks), np.uint32),
            "globaltimer": lambda: np.full(self.total, time.time_ns(), np.uint64),
        }
        return simple[base]()

    # --- memory ------------------------------------------------------------------------------------------

    def shared_flat(self, group: Group, address: np.ndarray, count: int) -> np.ndarray:
        """Convert shared-memory addresses to indices in the flattened array that holds the shared memory of all CTAs.

        group     threads that access the addresses
        address   int64 (threads,), shared::cta or shared::cluster
        count     bytes that each thread accesses
        returns   index of the first byte of each thread, (threads,)
        raises    EmulationError for an address that is misaligned or out of bounds
        """
        low, high = int(address.min()), int(address.max())
        if low >= SHARED_BASE and high + count <= self.shared.end:
            if count & (count - 1) == 0 and int(np.bitwise_or.reduce(address)) & (count - 1):
                raise self._misaligned(group, address, count)
            rows = self.row_of if group.sel is None else self.row_of[group.sel]
            return rows + address
        if low >= 1 << CLUSTER_SHIFT:
            return self._cluster_flat(group, address, count)
        bad = int(np.flatnonzero((address < SHARED_BASE) | (address + count > self.shared.end))[0])
        size = self.shared.end - SHARED_BASE
        text = f"address {int(address[bad]):#x} of shared memory: the CTA has {size} bytes from {SHARED_BASE:#x} on."
        raise self.fault(group, bad, text)

    def _misaligned(self, group: Group, address: np.ndarray, count: int) -> EmulationError:
        """Return the error to raise for an instruction with a misaligned address: it names the first such thread.

        group     the threads that execute the instruction
        address   address of each thread, in bytes
        count     bytes of an access; each address must be a multiple of it
        """
        bad = int(np.flatnonzero(address & (count - 1))[0])
        text = f"address {int(address[bad]):#x} is not a multiple of the {count} bytes of the access."
        return self.fault(group, bad, text)

    def _cluster_flat(self, group: Group, address: np.ndarray, count: int) -> np.ndarray:
        """Convert shared-memory addresses, also in other CTAs of the cluster, to indices in the memory of all CTAs.

        group     threads that access the addresses
        address   int64 (threads,): shared::cluster addresses
        count     bytes that each thread accesses
        returns   (threads,): index of each thread's first byte in the flattened array of the shared memory of all CTAs
        raises    EmulationError for an address that is misaligned or out of bounds
        """
        rank, offset = (address >> CLUSTER_SHIFT) - 1, address & ((1 << CLUSTER_SHIFT) - 1)
        own = rank < 0
        slots = self.block_of[group.threads].copy()
        for i in np.flatnonzero(~own):
            cluster = self.blocks[slots[i]].cluster
            if rank[i] >= len(cluster):
                raise self.fault(group, i, f"CTA rank {rank[i]} is not in the cluster of {len(cluster)} CTAs.")
            slots[i] = cluster[rank[i]]
        self.shared_flat(group, offset, count)  # raises for a bad offset
        return slots * self.shared.size + offset

    def shared_place(self, step: Step, address: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return for each shared-memory address the CTA that it belongs to, and the offset there: (slots, offsets).

        Each CTA has a window of addresses. A slot is the index of a CTA among the CTAs that are emulated together; the
        offset is counted in bytes from the start of the CTA's window.

        address   (threads,) addresses in shared::cta, shared::cluster or the generic space
        count     bytes that each thread accesses
        raises    EmulationError for an address that is misaligned or out of bounds
        """
        inside = np.where(address >= GENERIC_SHARED, address - GENERIC_SHARED, address)
        find = self._cluster_flat if int(inside.max()) >= 1 << CLUSTER_SHIFT else self.shared_flat
        return np.divmod(find(Group(step.threads, self.total), inside, count), self.shared.size)

    def read_bytes(self, step: Step, address: int, count: int) -> np.ndarray:
        """Return `count` bytes at a generic address in the kernel parameters or in global memory.

        TMA instructions read their tensor maps so.

        step     the instruction that reads, for messages
        raises   EmulationError if the bytes do not lie in either
        """
        if address >= GENERIC_PARAM:
            at = address - GENERIC_PARAM
            if at + count <= len(self.params):
                return self.params[at : at + count]
        else:
            buffer = self.memory.buffer_of(address)
            if buffer is not None and address + count <= buffer.end:
                return buffer.data[address - buffer.base : address - buffer.base + count]
        raise step.fail(
            f"{count} bytes at address {address:#x} are not in the kernel parameters or in one buffer of global memory."
        )

    def check_waited(self, threads: np.ndarray, address: np.ndarray | None = None) -> None:
        """Raise EmulationError if the previous launch may still write the global memory that threads access.

        With PDL, a thread must execute griddepcontrol.wait before it accesses such memory.

        threads   numbers of the threads over all CTAs that are emulated together
        address   (threads,) addresses of the access; None if they are not known
        """
        if self.early is not None and self.early[threads].any() and not self._are_settled(address):
            thread = int(threads[self.early[threads]][0])
            raise self.error(
                self.program[self.at].instruction,
                thread,
                "it accesses global memory with no griddepcontrol.wait before, but its kernel may begin while the "
                "previous launch still runs (PDL).",
            )

    def _are_settled(self, address: np.ndarray | None) -> bool:
        """Return whether all addresses lie in one buffer that the previous launch does not write.

        address   (threads,) addresses of an access; None if they are not known, for which the result is False
        """
        if address is None:
            return False
        buffer = self.memory.buffer_of(int(address.min()))
        return buffer is not None and buffer.is_settled and int(address.max()) < buffer.end

    def read_params(self, group: Group, at: np.ndarray, count: int) -> np.ndarray:
        """Load `count` bytes of the kernel parameters for each thread.

        group     the threads that execute the instruction
        at        (threads,) offsets in bytes
        returns   (threads,), each as one number of `count` bytes
        raises    EmulationError for an offset out of bounds
        """
        low, high = int(at.min()), int(at.max())
        if low < 0 or high + count > len(self.params):
            raise self.fault(group, 0, f"it reads byte {high} of the parameters, which have {len(self.params)} bytes.")
        if low == high:
            return np.repeat(wide_view(self.params[low : low + count].copy(), count), group.n)
        return wide_view(self.params[at[:, None] + np.arange(count)], count)

    # --- uninitialized values, and the reads that they come from ------------------------------------------

    def new_origin(self, group: Group, which: int, text: str) -> int:
        """Record that a thread has read unwritten memory, and return the number of this read: 1 for the first one.

        The emulator marks the value that was read with this number, and all values computed from it. So an error at a
        later use of such a value can name the read that it comes from.

        group   the threads that execute the instruction
        which   index of the thread in the group
        text    what was read, for messages
        """
        self.origin_texts.append(self._where(self.program[self.at].instruction, int(group.threads[which])) + text)
        return len(self.origin_texts)

    def set_origins(self, register: int, sel: Selection, origins: Any) -> None:
        """Mark a register's values as initialized or uninitialized for selected threads.

        register   index of the register
        sel        the threads: None for all, a slice, or an array of numbers
        origins    (threads,) or one number for all: 0 for an initialized value, else the number of the read of
                   unwritten memory that it comes from
        """
        present = self.origins.get(register)
        if present is None:
            if not np.any(origins):
                return
            present = self.origins[register] = np.zeros(self.total, np.int32)
        present[slice(None) if sel is None else sel] = origins
        if not present.any():
            del self.origins[register]

    def origins_of(self, registers: tuple[int, ...], group: Group) -> Any:
        """Return for each thread of a group whether a value computed from these registers is initialized.

        registers   indices of the registers
        returns     (threads,): 0 for an initialized value, else the number of a read of unwritten memory that it
                    depends on; or a single 0 if all are initialized
        """
        origins: Any = 0
        for register in registers:
            one = self.origins.get(register)
            if one is not None:
                origins = np.maximum(origins, one if group.sel is None else one[group.sel])
        return origins

    def require_written(self, registers: tuple[int, ...], group: Group, use: str) -> None:
        """Raise EmulationError if a register has an uninitialized value for a thread of the group.

        registers   indices of the registers
        use         how the value is used, for the message, such as "the address"
        """
        if not self.origins:
            return
        origins = np.broadcast_to(self.origins_of(registers, group), (group.n,))
        bad = np.flatnonzero(origins)
        if len(bad):
            text = self.origin_texts[origins[bad[0]] - 1]
            raise self.fault(group, bad[0], f"{use} comes from memory that was never written: {text}")

    # --- races -------------------------------------------------------------------------------------------

    def note_access(self, group: Group, flat: np.ndarray, count: int, writes: bool) -> None:
        """Record accesses of a group to shared memory, and check that earlier accesses are ordered before them.

        flat     (threads,) index of each thread's bytes in the flattened array of shared memory
        count    bytes that each thread accesses
        writes   whether the accesses are writes
        raises   EmulationError for a race
        """
        clocks = self.clocks
        assert clocks is not None
        units = flat[:, None] // clocks.grain + np.arange(max(1, count // clocks.grain))
        threads = group.threads
        try:
            (clocks.write if writes else clocks.read)(units, self.block_of[threads], self.own_warp_of[threads])
        except Race as race:
            thread, offset = int(threads[race.place]), int(flat[race.place]) % self.shared.size
            raise self.race(self.program[self.at].instruction, thread, offset, race, writes) from None

    def race(self, instruction: Instruction, thread: int, offset: int, race: Race, writes: bool) -> EmulationError:
        """Return the error to raise for a data race in shared memory.

        instruction   instruction that makes the present access
        thread        number of its thread over all CTAs that are emulated together
        offset        offset in the CTA's window of shared memory
        race          describes the earlier access
        writes        whether the present access is a write
        """
        other = f"warp {race.other}" if race.other < self.warps else "an asynchronous copy"
        return self.error(
            instruction,
            thread,
            f"race: it {'writes' if writes else 'reads'} shared memory at {offset:#x}, which was {race.kind} "
            f"{other} with no barrier in between.",
        )

    # --- errors ------------------------------------------------------------------------------------------

    def _where(self, instruction: Instruction, thread: int) -> str:
        """Return a text for error messages that says where an error occurred: line of the PTX, CTA and thread.

        instruction   instruction that caused the error
        thread        number of the thread over all CTAs that are emulated together
        """
        block = self.blocks[self.block_of[thread]]
        return (
            f"line {instruction.line} ({instruction.text[:100]}), CTA {block.index}, thread {self.thread_of[thread]}: "
        )

    def fault(self, group: Group, which: Any, reason: str) -> EmulationError:
        """Return the error to raise for one thread of a group at the current instruction.

        which    index of the thread in the group
        reason   what is wrong
        """
        return self.error(self.program[self.at].instruction, int(group.threads[which]), reason)

    def error(self, instruction: Instruction, thread: int, reason: str) -> EmulationError:
        """Return an EmulationError that names the kernel, the line, the CTA and the thread, for the caller to raise.

        thread   number over all CTAs that are emulated together
        reason   what is wrong
        """
        return EmulationError(f"emulate: kernel {self.kernel.name[:60]}, {self._where(instruction, thread)}{reason}")


def launch_blocks(grid: tuple[int, int, int], cluster: int, first: int, count: int) -> list[Block]:
    """Return `count` CTAs of a grid to run together, from number `first` on, in launch order.

    grid      number of CTAs along (x, y, z)
    cluster   CTAs of a cluster, which lie along x
    first     number of the first CTA, with x the fastest
    """
    out = []
    for slot in range(count):
        number = first + slot
        x, y, z = number % grid[0], number // grid[0] % grid[1], number // (grid[0] * grid[1])
        rank = x % cluster
        out.append(Block(slot, (x, y, z), grid, rank, tuple(range(slot - rank, slot - rank + cluster))))
    return out


__all__ = ["Action", "Decoded", "Group", "Machine", "Selection", "launch_blocks"]
