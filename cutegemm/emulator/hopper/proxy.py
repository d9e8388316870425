"""Asynchronous accesses to shared memory by TMA, wgmma and st.async.

Such an access takes place as late as the program allows. For race detection, a copy is an agent of its own, which knows
what the issuing warp knew when it issued the copy. An asynchronous access sees ordinary stores of threads (the generic
proxy) only after `fence.proxy.async`. Each 16 bytes therefore record whether an ordinary store, or an st.async, has
written them since the last such fence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from cutegemm.emulator.clocks import Race
from cutegemm.emulator.hopper.tensormap import UNIT_BYTES
from cutegemm.emulator.machine import Machine
from cutegemm.emulator.state import ASYNC_STORE, EMPTY, FULL, PENDING, POISON_BYTE, Instruction
from cutegemm.errors import EmulationError

_WHY_UNREADABLE = {EMPTY: "nothing has been written", PENDING: "a copy to it is still under way"}


@dataclass(frozen=True)
class Request:
    """An asynchronous access (by TMA, st.async or wgmma) to the shared memory of one CTA, as the race detector sees it.

    The accessed bytes are given as units, the smallest pieces that the race detector tells apart.

    machine       the emulated CTAs
    instruction   the instruction that issued the access
    thread        number of the issuing thread over all CTAs that are emulated together
    slot          index of the accessed CTA among the CTAs that are emulated together
    units         offset of each accessed unit in that CTA's window of shared memory: (units,)
    known         what is ordered before the access: vector clock of the issuing thread, for that CTA; None if races are
                  not checked
    channel       for a copy into shared memory, number of the mbarrier that the copy signals (`MBarrier.number`);
                  otherwise None
    warps         for a read by wgmma, numbers of its warps in the race detector; otherwise ()
    unit_bytes    bytes of a unit: 16, or the bytes that each thread stores by st.async
    """

    machine: Machine
    instruction: Instruction
    thread: int
    slot: int
    units: np.ndarray
    known: np.ndarray | None = None
    channel: int | None = None
    warps: tuple[int, ...] = ()
    unit_bytes: int = UNIT_BYTES

    def fail(self, reason: str) -> EmulationError:
        """Return an error that names the thread and the instruction of this access, for the caller to raise."""
        return self.machine.error(self.instruction, self.thread, reason)


class AsyncProxy:
    """The asynchronous accesses (by TMA, st.async and wgmma) to the shared memory of all emulated CTAs.

    This object delays the accesses as long as the program allows, and checks them for races and missing proxy fences.

    machine   the emulated CTAs
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        # (CTAs, units): for each 16 bytes, how many copies have not read them yet
        self.to_be_read = np.zeros((len(machine.blocks), machine.shared.size // UNIT_BYTES), np.int16)
        # By (agent, slot): clock that an agent has for another CTA of its cluster
        self._elsewhere: dict[tuple[int, int], np.ndarray] = {}

    # --- scheduling ----------------------------------------------------------------------------------------

    def later(self, action: Callable[[], None]) -> None:
        """Postpone the effect of an asynchronous access as long as possible: it takes place when no thread can run.

        With a random schedule, it may also take place at once.

        action   function without arguments that carries out the effect, such as a write to shared memory
        """
        if self.machine.lands_now():
            action()
        else:
            self.machine.defer(action)

    # --- clocks --------------------------------------------------------------------------------------------

    def request(
        self,
        instruction: Instruction,
        thread: int,
        slot: int,
        units: np.ndarray,
        channel: int | None = None,
        unit_bytes: int = UNIT_BYTES,
    ) -> Request:
        """Return a record of an asynchronous copy that a thread issues now, for race detection at its end.

        The record includes the thread's present vector clock, i.e. the accesses that are ordered before the copy.

        thread       number of the thread over all CTAs that are emulated together
        slot         index of the CTA whose shared memory is accessed, among those that are emulated together
        units        (units,) offsets of the accessed units in that CTA's shared-memory window
        channel      for a copy into shared memory, `MBarrier.number` of the mbarrier that it signals; otherwise None
        unit_bytes   bytes of a unit
        """
        known = self._known_by(thread, slot)
        return Request(self.machine, instruction, thread, slot, units, known, channel, unit_bytes=unit_bytes)

    def _known_by(self, thread: int, slot: int) -> np.ndarray | None:
        """Return which accesses to a CTA's shared memory are ordered before what a thread does next, as a vector clock.

        The clock has an entry for each warp and asynchronous copy of the CTA: all its accesses up to that moment (a
        value of the detector's counter) are ordered before. None if races are not checked.

        thread   number of the thread over all CTAs that are emulated together
        slot     index of the CTA among the CTAs that are emulated together
        """
        machine, clocks = self.machine, self.machine.clocks
        if clocks is None:
            return None
        agent = int(machine.agent_of[thread])
        if machine.block_of[thread] != slot:
            clock = self._elsewhere.get((agent, slot))
            return np.zeros(clocks.known.shape[1], np.int64) if clock is None else clock
        known: np.ndarray = clocks.known[agent].copy()
        known[agent % clocks.agents] = clocks.now
        return known

    def learn(self, key: Any, agents: np.ndarray, slot: int) -> None:
        """Raise the vector clocks of warps or copies that pass a barrier to the clocks stored at its arrivals.

        What CTAs of the cluster did before they arrived is then ordered before what the warps do next.

        key      barrier and phase: of an mbarrier, or of the cluster barrier
        agents   numbers of the warps or copies over all CTAs
        slot     index of their CTA among those that are emulated together
        """
        clocks, order = self.machine.clocks, self.machine.order
        if clocks is None or order is None:
            return
        clocks.acquire(key, agents)
        for other in self.machine.blocks[slot].cluster:
            clock = clocks.released.get((key, other))
            if other != slot and clock is not None:
                for agent in agents:
                    before = self._elsewhere.get((int(agent), other), clock)
                    self._elsewhere[int(agent), other] = np.maximum(before, clock)
                    order.join_cluster(int(agent), clock, other)

    def publish(self, key: Any, copy: Request) -> None:
        """Make a finished copy known, in the race detector, to the threads that wait for it.

        key    what the threads wait for, under which the copy's vector clock is stored: a phase of an mbarrier, or the
               bulk groups of a thread
        copy   the finished copy
        """
        if self.machine.clocks is not None:
            self.machine.clocks.release(key, np.array([self._agent(copy)]))

    def _agent(self, copy: Request) -> int:
        """Give an asynchronous copy a vector clock in the race detector: a copy of its issuing thread's clock.

        returns   the number of the copy in the race detector, over all CTAs
        """
        clocks = self.machine.clocks
        assert clocks is not None
        assert copy.known is not None
        local = clocks.warps if copy.channel is None else clocks.readers + copy.channel % clocks.CHANNELS
        agent = copy.slot * clocks.agents + local
        clocks.known[agent] = copy.known
        return agent

    # --- accesses ------------------------------------------------------------------------------------------

    def begin_write(self, copy: Request) -> None:
        """Begin a copy into shared memory. Until it ends, its bytes have the state PENDING and hold poison.

        raises   EmulationError if an earlier access to these bytes is not ordered before the copy, or another copy to
                 them is under way
        """
        slot, at, among = copy.slot, copy.units // copy.unit_bytes, copy.units // UNIT_BYTES
        data, state = self._memory(copy)
        self._check_inside(copy)
        on_the_way = (state[at] == PENDING).any(axis=1)
        if on_the_way.any():
            first = int(copy.units[on_the_way][0])
            raise copy.fail(f"it writes shared memory at {first:#x}, where a copy is still under way.")
        to_be_read = self.to_be_read[slot, among] > 0
        if to_be_read.any():
            first = int(copy.units[to_be_read][0])
            raise copy.fail(
                f"race: it writes shared memory at {first:#x}, which an asynchronous copy has not read yet: "
                "no thread has waited for that."
            )
        self._note(copy, writes=True)
        data[at] = POISON_BYTE
        state[at] = PENDING
        self.machine.shared.unfenced[slot, among] = 0

    def end_write(self, copy: Request, values: np.ndarray) -> None:
        """End an asynchronous copy into shared memory: write its bytes and mark them as initialized.

        copy     the copy, with the units of shared memory that it writes
        values   bytes to write, uint8 (units, bytes of a unit)
        """
        at = copy.units // copy.unit_bytes
        data, state = self._memory(copy)
        data[at] = values
        state[at] = FULL

    def read(self, request: Request) -> np.ndarray:
        """Read the bytes of shared memory that a TMA store or wgmma reads, as uint8 (units, bytes of a unit).

        request   the asynchronous access: its CTA, its bytes and the thread that issued it
        raises    EmulationError for a race, for bytes that are unwritten or unfenced, or for an address out of bounds
        """
        self._check_inside(request)
        at = request.units // request.unit_bytes
        data, state = self._memory(request)
        states = state[at]
        if not (states == FULL).all():
            place, byte = (int(indices[0]) for indices in np.nonzero(states != FULL))
            why = _WHY_UNREADABLE[int(states[place, byte])]
            raise request.fail(f"it reads shared memory at {int(request.units[place]) + byte:#x}: {why}.")
        self.check_fenced(request)
        self._note(request, writes=False)
        values: np.ndarray = data[at]
        return values

    def check_fenced(self, request: Request) -> None:
        """Raise EmulationError if a thread stored bytes of this access without a fence.proxy.async since.

        request   the asynchronous access: its CTA, its bytes and the thread that issued it
        """
        unfenced = self.machine.shared.unfenced[request.slot, request.units // UNIT_BYTES]
        if unfenced.any():
            place = int(np.flatnonzero(unfenced)[0])
            writer = f"warp {int(unfenced[place]) - 1} wrote by an ordinary store"
            if unfenced[place] == ASYNC_STORE:
                writer = "st.async wrote"
            raise request.fail(
                f"it reads shared memory at {int(request.units[place]):#x}, which {writer} with no fence.proxy.async "
                "after it."
            )

    def _memory(self, request: Request) -> tuple[np.ndarray, np.ndarray]:
        """Return all bytes of the accessed CTA's shared memory, and the state of each byte.

        Both are uint8 views (units, bytes of a unit). A state says whether the byte is written, unwritten or being
        copied to.

        request   the asynchronous access: its CTA, its bytes and the thread that issued it
        """
        shared, shape = self.machine.shared, (-1, request.unit_bytes)
        return shared.data[request.slot].reshape(shape), shared.state[request.slot].reshape(shape)

    def _check_inside(self, request: Request) -> None:
        """Raise EmulationError if any unit of this access lies outside of the CTA's shared memory.

        request   the asynchronous access: its CTA, its bytes and the thread that issued it
        """
        shared = self.machine.shared
        inside = shared.has(request.units, request.unit_bytes)
        if not inside.all():
            first = int(request.units[~inside][0])
            raise request.fail(f"address {first:#x} of shared memory lies past its end, {shared.end:#x}.")

    def _note(self, request: Request, writes: bool) -> None:
        """Record an asynchronous access in the race detector.

        request   the asynchronous access: its CTA, its bytes and the thread that issued it
        writes    True for a copy into shared memory, False for a read
        raises    EmulationError for a race
        """
        machine, clocks = self.machine, self.machine.clocks
        if clocks is None:
            return
        first = (request.slot * machine.shared.size + request.units) // clocks.grain
        grains = max(1, request.unit_bytes // clocks.grain)
        units = (first[:, None] + np.arange(grains)).reshape(-1)
        try:
            if writes:
                clocks.write_alone(units, self._agent(request))
            else:
                clocks.read_together(units, np.array(request.warps or [self._agent(request)]))
        except Race as race:
            offset = int(request.units[race.place // grains])
            raise machine.race(request.instruction, request.thread, offset, race, writes) from None


def proxy_of(machine: Machine) -> AsyncProxy:
    """Return the record of asynchronous accesses (TMA, st.async, wgmma) to shared memory. The first call creates it."""
    proxy = machine.private.get("proxy")
    if proxy is None:
        proxy = machine.private["proxy"] = AsyncProxy(machine)
    return proxy
