"""The machine that runs a kernel: the registers of all threads, the memories, and what is noted about them."""

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

_CYCLES_A_LOOK = 32


class Watch(Protocol):
    """Hears of every access to shared and to global memory by threads, as it is carried out; not of what TMA and
    st.async do later."""

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
        """One instruction.

        op        load, store, ldmatrix, stmatrix (a row of 128 bits for each thread) or cp.async, which is told of
                  twice: where all threads write, zeros too, and where some read
        space     "shared" or "global"
        bits      of one thread
        threads   that carry it out: numbers in which the warps are whole
        at        bytes, of each
        other     cp.async: bytes in the other space
        line      of the PTX
        """


class Machine(Scheduler):
    """CTAs of one launch in flight, from their start to the end of all their threads.

    grain   bytes: the unit by which races in shared memory are looked for
    seed    None: see `Scheduler`
    order   of the launch's accesses to global memory, and the first CTA's number in the grid; None for a
            launch all of whose CTAs are in flight here
    early   the launch may begin while the one before it runs: until a thread has waited for that, by
            griddepcontrol.wait, global memory is not its to read or write
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
        # By register, which hole each thread's value came from: its number in `hole_texts`, from 1 on, or 0.
        self.holes: dict[int, np.ndarray] = {}
        self.hole_texts: list[str] = []
        self.private: dict[Any, Any] = {}
        self._cycles = 0
        self.watch: Watch | None = None

    def follow_holes(self, decoded: Decoded, group: Group) -> None:
        """A result is a hole where one of its sources is."""
        found = self.holes_of(decoded.reads, group)
        for register in decoded.writes:
            self.mark_holes(register, group.sel, found)

    def tell(self, op: str, space: str, bits: int, threads: np.ndarray, at: np.ndarray, other: Any = None) -> None:
        """Tells the watch, where there is one, of the access of the instruction at hand."""
        if self.watch is not None:
            self.watch.seen(op, space, bits, threads, at, other, self.program[self.at].instruction.line)

    # --- registers ---------------------------------------------------------------------------------------

    def value(self, index: int, sel: Selection) -> np.ndarray:
        """The bits of a register for the selected threads."""
        held = self.regs[index]
        if held is None:
            held = self._fresh(index)
        return held if sel is None else held[sel]

    def assign(self, index: int, values: np.ndarray, sel: Selection) -> None:
        """Writes bits of the register's own width. With all threads, the array itself becomes the register."""
        if sel is None:
            self.regs[index] = values if values.ndim else np.full(self.total, values)
            return
        held = self.regs[index]
        if held is None:
            held = self._fresh(index)
        held[sel] = values

    def _fresh(self, index: int) -> np.ndarray:
        kind = STORED[self.kernel.registers[index].kind]
        held = np.full(self.total, 0 if kind == np.bool_ else (1 << 8 * kind.itemsize) - 1, kind)
        self.regs[index] = held
        return held

    def read_operand(self, operand: Any, dtype: np.dtype, threads: np.ndarray) -> np.ndarray:
        """Bits of an operand as `dtype`, (threads,)."""
        if isinstance(operand, Register):
            held = self.value(operand.index, threads)
            return held if held.dtype == dtype else held.view(dtype)
        if isinstance(operand, Negated):
            return ~self.value(operand.register.index, threads)
        if isinstance(operand, Immediate):
            width = 8 * dtype.itemsize
            bits = np.array(operand.bits & ((1 << width) - 1), f"u{dtype.itemsize}").view(dtype)
            return np.full(len(threads), bits)
        assert isinstance(operand, Special), operand
        return self.special(operand.name)[threads].view(dtype)

    def write_register(self, register: Register, values: np.ndarray, threads: np.ndarray) -> None:
        """Bits of a register of these threads."""
        kind = STORED[register.kind]
        bits = values if values.dtype == kind else values.view(kind) if kind != np.bool_ else values.astype(bool)
        held = self.value(register.index, None)
        held[threads] = bits
        if register.index in self.holes:
            self.mark_holes(register.index, threads, 0)

    def special(self, name: str) -> np.ndarray:
        """A special register of all threads."""
        if name in ("clock", "clock64"):  # goes on with every look at it
            self._cycles += _CYCLES_A_LOOK
            return np.full(self.total, self._cycles, np.uint32 if name == "clock" else np.uint64)
        known = self.private.get(("special", name))
        if known is None:
            known = self.private["special", name] = self._special(name)
        return known

    def _special(self, name: str) -> np.ndarray:
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
        """Where `count` bytes at each address are in `shared.data`, flat. raises EmulationError"""
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
        bad = int(np.flatnonzero(address & (count - 1))[0])
        text = f"address {int(address[bad]):#x} is no multiple of the {count} bytes of the access."
        return self.fault(group, bad, text)

    def _cluster_flat(self, group: Group, address: np.ndarray, count: int) -> np.ndarray:
        rank, offset = (address >> CLUSTER_SHIFT) - 1, address & ((1 << CLUSTER_SHIFT) - 1)
        own = rank < 0
        slots = self.block_of[group.threads].copy()
        for i in np.flatnonzero(~own):
            cluster = self.blocks[slots[i]].cluster
            if rank[i] >= len(cluster):
                raise self.fault(group, i, f"no CTA {rank[i]} in the cluster.")
            slots[i] = cluster[rank[i]]
        self.shared_flat(group, offset, count)  # checks the offsets
        return slots * self.shared.size + offset

    def shared_place(self, step: Step, address: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        """(slots, offsets) of addresses of any window of shared memory. raises EmulationError"""
        inside = np.where(address >= GENERIC_SHARED, address - GENERIC_SHARED, address)
        find = self._cluster_flat if int(inside.max()) >= 1 << CLUSTER_SHIFT else self.shared_flat
        return np.divmod(find(Group(step.threads, self.total), inside, count), self.shared.size)

    def read_bytes(self, step: Step, address: int, count: int) -> np.ndarray:
        """Bytes at a generic address: of parameters or of global memory. raises EmulationError"""
        if address >= GENERIC_PARAM:
            at = address - GENERIC_PARAM
            if at + count <= len(self.params):
                return self.params[at : at + count]
        else:
            buffer = self.memory.buffer_of(address)
            if buffer is not None and address + count <= buffer.end:
                return buffer.data[address - buffer.base : address - buffer.base + count]
        raise step.fail(f"there are no {count} bytes at the address {address:#x}.")

    def check_waited(self, threads: np.ndarray, address: np.ndarray | None = None) -> None:
        """raises EmulationError where a thread accesses global memory that the launch before may still work on

        address   of each thread, where that is known
        """
        if self.early is not None and self.early[threads].any() and not self._are_settled(address):
            thread = int(threads[self.early[threads]][0])
            raise self.error(
                self.program[self.at].instruction,
                thread,
                "it accesses global memory with no griddepcontrol.wait before, though its kernel may begin while the "
                "launch before it runs.",
            )

    def _are_settled(self, address: np.ndarray | None) -> bool:
        """Whether addresses lie in one buffer that the launch before does not write."""
        if address is None:
            return False
        buffer = self.memory.buffer_of(int(address.min()))
        return buffer is not None and buffer.is_settled and int(address.max()) < buffer.end

    def read_params(self, group: Group, at: np.ndarray, count: int) -> np.ndarray:
        """`count` bytes of the parameters as one wide value a thread. raises EmulationError"""
        low, high = int(at.min()), int(at.max())
        if low < 0 or high + count > len(self.params):
            raise self.fault(group, 0, f"the parameters have no byte {high}.")
        if low == high:
            return np.repeat(wide_view(self.params[low : low + count].copy(), count), group.n)
        return wide_view(self.params[at[:, None] + np.arange(count)], count)

    # --- holes: memory that was read before it was written ------------------------------------------------

    def hole(self, group: Group, which: int, text: str) -> int:
        """Notes a hole that a thread of a group has read; its number."""
        self.hole_texts.append(self._where(self.program[self.at].instruction, int(group.threads[which])) + text)
        return len(self.hole_texts)

    def mark_holes(self, register: int, sel: Selection, holes: Any) -> None:
        """Which hole a register's value comes from for the selected threads; 0 for none."""
        held = self.holes.get(register)
        if held is None:
            if not np.any(holes):
                return
            held = self.holes[register] = np.zeros(self.total, np.int32)
        held[slice(None) if sel is None else sel] = holes
        if not held.any():
            del self.holes[register]

    def holes_of(self, registers: tuple[int, ...], group: Group) -> Any:
        """The holes that values of these registers come from, (threads,), or 0 where there are none."""
        found: Any = 0
        for register in registers:
            held = self.holes.get(register)
            if held is not None:
                found = np.maximum(found, held if group.sel is None else held[group.sel])
        return found

    def forbid_holes(self, registers: tuple[int, ...], group: Group, use: str) -> None:
        """raises EmulationError where a value that came from a hole is used for something that matters."""
        if not self.holes:
            return
        found = np.broadcast_to(self.holes_of(registers, group), (group.n,))
        bad = np.flatnonzero(found)
        if len(bad):
            hole = self.hole_texts[found[bad[0]] - 1]
            raise self.fault(group, bad[0], f"{use} comes from memory to which nothing was written: {hole}")

    # --- races -------------------------------------------------------------------------------------------

    def note_access(self, group: Group, flat: np.ndarray, count: int, writes: bool) -> None:
        """Holds accesses to shared memory against those before. raises EmulationError for a race"""
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
        """The error for a race at an offset of shared memory."""
        who = f"warp {race.other}" if race.other < self.warps else "an asynchronous copy"
        return self.error(
            instruction,
            thread,
            f"race: it {'writes' if writes else 'reads'} shared memory at {offset:#x}, which was {race.kind} "
            f"{who} with no barrier in between.",
        )

    # --- errors ------------------------------------------------------------------------------------------

    def _where(self, instruction: Instruction, thread: int) -> str:
        block = self.blocks[self.block_of[thread]]
        return (
            f"line {instruction.line} ({instruction.text[:100]}), CTA {block.index}, thread {self.thread_of[thread]}: "
        )

    def fault(self, group: Group, which: Any, reason: str) -> EmulationError:
        """The error of one thread of a group, by its number in it, at the instruction that is carried out."""
        return self.error(self.program[self.at].instruction, int(group.threads[which]), reason)

    def error(self, instruction: Instruction, thread: int, reason: str) -> EmulationError:
        """Names the kernel, the line, the CTA and the thread."""
        return EmulationError(f"emulate: kernel {self.kernel.name[:60]}, {self._where(instruction, thread)}{reason}")


def launch_blocks(grid: tuple[int, int, int], cluster: int, first: int, count: int) -> list[Block]:
    """CTAs `first` .. `first + count` of a grid, in the order in which they start; clusters lie along x."""
    out = []
    for slot in range(count):
        number = first + slot
        x, y, z = number % grid[0], number // grid[0] % grid[1], number // (grid[0] * grid[1])
        rank = x % cluster
        out.append(Block(slot, (x, y, z), grid, rank, tuple(range(slot - rank, slot - rank + cluster))))
    return out


__all__ = ["Action", "Decoded", "Group", "Machine", "Selection", "launch_blocks"]
