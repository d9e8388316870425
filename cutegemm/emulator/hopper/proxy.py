"""What TMA, wgmma and st.async do to shared memory after the thread that asked has gone on.

An asynchronous access takes place as late as the program lets it. For the clocks a copy is an agent of its own, which
knows what the asking warp knew when it asked. It sees what threads wrote by ordinary stores (the generic proxy) only
after `fence.proxy.async`: a unit that was stored and not fenced yet is marked. What st.async has stored is of the
generic proxy too.
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

_WHY_NOT = {EMPTY: "nothing has been written", PENDING: "a copy to it is still under way"}


@dataclass(frozen=True)
class Request:
    """An asynchronous access to shared memory, and the thread that asked for it.

    slot         of the CTA whose shared memory it is
    units        by their offsets in the CTA's window
    known        what the thread knew of that CTA's warps then; None where races are not looked for
    channel      of a copy into shared memory: the number of the barrier that will hear of it
    warps        the agents that read, where it is no copy
    unit_bytes   16, or less of a store
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
        """An error to raise."""
        return self.machine.error(self.instruction, self.thread, reason)


class AsyncProxy:
    """Asynchronous accesses of the CTAs in flight."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        # How many copies have still to read 16 bytes: (CTAs, units)
        self.to_be_read = np.zeros((len(machine.blocks), machine.shared.size // UNIT_BYTES), np.int16)
        self._elsewhere: dict[tuple[int, int], np.ndarray] = {}  # (agent, slot of another CTA of its cluster)

    # --- when ----------------------------------------------------------------------------------------------

    def later(self, action: Callable[[], None]) -> None:
        """Does it when the machine lets it happen: by default as late as can be."""
        if self.machine.lands_now():
            action()
        else:
            self.machine.defer(action)

    # --- who knows what ------------------------------------------------------------------------------------

    def request(
        self,
        instruction: Instruction,
        thread: int,
        slot: int,
        units: np.ndarray,
        channel: int | None = None,
        unit_bytes: int = UNIT_BYTES,
    ) -> Request:
        """A copy that a thread asks for now."""
        known = self._known_by(thread, slot)
        return Request(self.machine, instruction, thread, slot, units, known, channel, unit_bytes=unit_bytes)

    def _known_by(self, thread: int, slot: int) -> np.ndarray | None:
        """What a thread knows of the warps of a CTA of its cluster, now; None where races are not looked for."""
        machine, clocks = self.machine, self.machine.clocks
        if clocks is None:
            return None
        agent = int(machine.agent_of[thread])
        if machine.block_of[thread] != slot:
            found = self._elsewhere.get((agent, slot))
            return np.zeros(clocks.known.shape[1], np.int64) if found is None else found
        known: np.ndarray = clocks.known[agent].copy()
        known[agent % clocks.agents] = clocks.now
        return known

    def learn(self, key: Any, agents: np.ndarray, slot: int) -> None:
        """Agents of a CTA learn what is kept under a key, also for the other CTAs of their cluster."""
        clocks, order = self.machine.clocks, self.machine.order
        if clocks is None or order is None:
            return
        clocks.acquire(key, agents)
        for other in self.machine.blocks[slot].cluster:
            held = clocks.keys.get((key, other))
            if other != slot and held is not None:
                for agent in agents:
                    before = self._elsewhere.get((int(agent), other), held)
                    self._elsewhere[int(agent), other] = np.maximum(before, held)
                    order.pass_on(int(agent), held, other)

    def publish(self, key: Any, copy: Request) -> None:
        """A copy leaves at a key what it has done."""
        if self.machine.clocks is not None:
            self.machine.clocks.release(key, np.array([self._agent(copy)]))

    def _agent(self, copy: Request) -> int:
        """The copy as an agent, which knows what the thread knew that asked for it."""
        clocks = self.machine.clocks
        assert clocks is not None
        assert copy.known is not None
        local = clocks.warps if copy.channel is None else clocks.readers + copy.channel % clocks.CHANNELS
        agent = copy.slot * clocks.agents + local
        clocks.known[agent] = copy.known
        return agent

    # --- accesses ------------------------------------------------------------------------------------------

    def begin_write(self, copy: Request) -> None:
        """A copy begins: until it ends its units are neither what they were nor what they will be.

        raises   EmulationError where somebody may still use them, or another copy is on its way
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
                f"race: it writes shared memory at {first:#x}, which an asynchronous copy has still to read: "
                "nothing has waited for that."
            )
        self._note(copy, writes=True)
        data[at] = POISON_BYTE
        state[at] = PENDING
        self.machine.shared.unfenced[slot, among] = 0

    def end_write(self, copy: Request, values: np.ndarray) -> None:
        """The bytes (units, bytes of a unit) have come."""
        at = copy.units // copy.unit_bytes
        data, state = self._memory(copy)
        data[at] = values
        state[at] = FULL

    def read(self, request: Request) -> np.ndarray:
        """Bytes (units, 16). raises EmulationError for a race, for what is not there, or not fenced"""
        self._check_inside(request)
        at = request.units // request.unit_bytes
        data, state = self._memory(request)
        states = state[at]
        if not (states == FULL).all():
            place, byte = (int(found[0]) for found in np.nonzero(states != FULL))
            why = _WHY_NOT[int(states[place, byte])]
            raise request.fail(f"it reads shared memory at {int(request.units[place]) + byte:#x}: {why}.")
        self.check_fenced(request)
        self._note(request, writes=False)
        found: np.ndarray = data[at]
        return found

    def check_fenced(self, request: Request) -> None:
        """raises EmulationError where what a thread stored is not fenced, as it must be when the copy is asked for"""
        unfenced = self.machine.shared.unfenced[request.slot, request.units // UNIT_BYTES]
        if unfenced.any():
            place = int(np.flatnonzero(unfenced)[0])
            who = f"warp {int(unfenced[place]) - 1} wrote by an ordinary store"
            if unfenced[place] == ASYNC_STORE:
                who = "st.async wrote"
            raise request.fail(
                f"it reads shared memory at {int(request.units[place]):#x}, which {who} with no fence.proxy.async "
                "after it."
            )

    def _memory(self, request: Request) -> tuple[np.ndarray, np.ndarray]:
        """Data and state of the CTA's window: (units, bytes of a unit)."""
        shared, shape = self.machine.shared, (-1, request.unit_bytes)
        return shared.data[request.slot].reshape(shape), shared.state[request.slot].reshape(shape)

    def _check_inside(self, request: Request) -> None:
        shared = self.machine.shared
        inside = shared.has(request.units, request.unit_bytes)
        if not inside.all():
            first = int(request.units[~inside][0])
            raise request.fail(f"address {first:#x} of shared memory lies past its end, {shared.end:#x}.")

    def _note(self, request: Request, writes: bool) -> None:
        """For the clocks. raises EmulationError for a race"""
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
    """The machine's asynchronous proxy."""
    found = machine.private.get("proxy")
    if found is None:
        found = machine.private["proxy"] = AsyncProxy(machine)
    return found
