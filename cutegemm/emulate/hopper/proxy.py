"""The asynchronous proxy: what TMA and wgmma do to shared memory after the thread that asked has gone on.

An asynchronous access takes place as late as the program lets it. For the clocks a copy is an agent of its own, which
knows what the asking warp knew when it asked. It sees what threads wrote by ordinary stores (the generic proxy) only
after `fence.proxy.async`: a unit that was stored and not fenced yet is marked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cutegemm.emulate.clocks import Race
from cutegemm.emulate.machine import Machine
from cutegemm.emulate.state import EMPTY, FULL, PENDING, POISON_BYTE, Instruction
from cutegemm.errors import EmulationError

UNIT_BYTES = 16


class AsyncProxy:
    """Asynchronous accesses of the CTAs in flight.

    Units are of 16 bytes, given by their offsets in the window of a CTA.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.data = machine.shared.data.reshape(len(machine.blocks), -1, UNIT_BYTES)
        self.state = machine.shared.state.reshape(len(machine.blocks), -1, UNIT_BYTES)
        # How many copies have still to read a unit: (CTAs, units)
        self.to_be_read = np.zeros(self.state.shape[:2], np.int16)
        self._elsewhere: dict[tuple[int, int], np.ndarray] = {}  # (agent, slot of another CTA of its cluster)

    # --- when ----------------------------------------------------------------------------------------------

    def later(self, action: Callable[[], None]) -> None:
        """Does it when the machine lets it happen: by default as late as can be."""
        if self.machine.lands_now():
            action()
        else:
            self.machine.defer(action)

    # --- who knows what ------------------------------------------------------------------------------------

    def known_by(self, thread: int, slot: int) -> np.ndarray | None:
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
        """These agents of a CTA take over what lies at a key, also of the other CTAs of their cluster."""
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

    def publish(self, key: Any, slot: int, known: np.ndarray | None, channel: int | None = None) -> None:
        """A copy leaves at a key what it has done: out of a CTA, or into it by a channel."""
        if self.machine.clocks is not None:
            self.machine.clocks.release(key, np.array([self._agent(slot, known, channel)]))

    def _agent(self, slot: int, known: np.ndarray | None, channel: int | None) -> int:
        clocks = self.machine.clocks
        assert clocks is not None
        assert known is not None
        local = clocks.warps if channel is None else clocks.readers + channel % clocks.CHANNELS
        agent = slot * clocks.agents + local
        clocks.known[agent] = known
        return agent

    # --- accesses ------------------------------------------------------------------------------------------

    def begin_write(
        self,
        instruction: Instruction,
        thread: int,
        slot: int,
        units: np.ndarray,
        known: np.ndarray | None,
        channel: int,
    ) -> None:
        """A copy into these units begins: until it ends they are neither what they were nor what they will be.

        channel   the number of the barrier that will hear of it
        raises   EmulationError where somebody may still use them, or another copy is on its way
        """
        at = units // UNIT_BYTES
        self._check_inside(instruction, thread, units)
        on_the_way = (self.state[slot, at] == PENDING).any(axis=1)
        if on_the_way.any():
            first = int(units[on_the_way][0])
            raise self._error(
                instruction,
                thread,
                f"it writes shared memory at {first:#x}, where a copy is still under way.",
            )
        to_be_read = self.to_be_read[slot, at] > 0
        if to_be_read.any():
            first = int(units[to_be_read][0])
            raise self._error(
                instruction,
                thread,
                f"race: it writes shared memory at {first:#x}, which an asynchronous copy has still to read: "
                "nothing has waited for that.",
            )
        self._note(instruction, thread, slot, units, known, writes=True, channel=channel)
        self.data[slot, at] = POISON_BYTE
        self.state[slot, at] = PENDING
        self.machine.shared.unfenced[slot, at] = 0

    def end_write(self, slot: int, units: np.ndarray, values: np.ndarray) -> None:
        """The bytes (units, 16) have come."""
        at = units // UNIT_BYTES
        self.data[slot, at] = values
        self.state[slot, at] = FULL

    def read(
        self,
        instruction: Instruction,
        thread: int,
        slot: int,
        units: np.ndarray,
        known: np.ndarray | None,
        agents: tuple[int, ...] = (),
    ) -> np.ndarray:
        """Bytes (..., 16) of units (...).

        agents   the warps that read, where it is no copy
        raises   EmulationError for a race, for what is not there, or not fenced
        """
        flat = units.reshape(-1)
        self._check_inside(instruction, thread, flat)
        at = flat // UNIT_BYTES
        states = self.state[slot, at]
        if not (states == FULL).all():
            place, byte = (int(found[0]) for found in np.nonzero(states != FULL))
            why = {EMPTY: "nothing has been written", PENDING: "a copy to it is still under way"}
            raise self._error(
                instruction,
                thread,
                f"it reads shared memory at {int(flat[place]) + byte:#x}: {why[int(states[place, byte])]}.",
            )
        unfenced = self.machine.shared.unfenced[slot, at]
        if unfenced.any():
            place = int(np.flatnonzero(unfenced)[0])
            raise self._error(
                instruction,
                thread,
                f"it reads shared memory at {int(flat[place]):#x}, which warp {int(unfenced[place]) - 1} wrote by an "
                "ordinary store with no fence.proxy.async after it.",
            )
        self._note(instruction, thread, slot, flat, known, writes=False, agents=agents)
        return self.data[slot, at].reshape(*units.shape, UNIT_BYTES)

    def _check_inside(self, instruction: Instruction, thread: int, units: np.ndarray) -> None:
        shared = self.machine.shared
        inside = shared.has(units, UNIT_BYTES)
        if not inside.all():
            raise self._error(
                instruction,
                thread,
                f"address {int(units[~inside][0]):#x} of shared memory lies past its end, {shared.end:#x}.",
            )

    def _note(
        self,
        instruction: Instruction,
        thread: int,
        slot: int,
        units: np.ndarray,
        known: np.ndarray | None,
        writes: bool,
        agents: tuple[int, ...] = (),
        channel: int | None = None,
    ) -> None:
        machine, clocks = self.machine, self.machine.clocks
        if clocks is None:
            return
        grains = UNIT_BYTES // clocks.grain
        flat = (slot * machine.shared.size + units) // clocks.grain
        rows = flat[:, None] + np.arange(grains)
        slots = np.full(len(rows), slot)
        for agent in agents or (self._agent(slot, known, channel),):
            try:
                (clocks.write if writes else clocks.read)(rows, np.full(len(rows), agent), slots)
            except Race as race:
                other = f"warp {race.other}" if race.other < clocks.warps else "an asynchronous copy"
                verb = "writes" if writes else "reads"
                raise self._error(
                    instruction,
                    thread,
                    f"race: it {verb} shared memory at {int(units[race.place]):#x}, which was {race.kind} {other} "
                    "with no barrier in between.",
                ) from None

    def _error(self, instruction: Instruction, thread: int, reason: str) -> EmulationError:
        return self.machine.error(instruction, thread, reason)


def proxy_of(machine: Machine) -> AsyncProxy:
    """The machine's asynchronous proxy."""
    found = machine.private.get("proxy")
    if found is None:
        found = machine.private["proxy"] = AsyncProxy(machine)
    return found
