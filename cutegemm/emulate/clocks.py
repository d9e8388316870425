"""Who knows of whose accesses: vector clocks of the warps of each CTA, which find races in shared memory; of those in
global memory see `order`.

One counter serves as the clock of all: it grows with each synchronization, an access is stamped with it, and
`known[slot, w, u]` is the last stamp of warp u that warp w has synchronized with. An access of u is ordered
before what w does now if and only if its stamp is no later. The threads of a warp are one agent. What copies
asynchronously out of a CTA's shared memory is one as well; and what copies into it is one for each channel, an
mbarrier: who has waited for one of them knows nothing of what comes by the others.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np


class Race(Exception):
    """Two accesses that nothing orders. place: which of those asked about; other: the agent in conflict."""

    def __init__(self, place: int, other: int, kind: str) -> None:
        super().__init__()
        self.place, self.other, self.kind = place, other, kind


class Clocks:
    """Clocks of `blocks` CTAs of `warps` warps, over shared memory of `size` bytes a CTA in units of `grain`.

    Agents are numbered over all CTAs, `agents` each: its warps, then the copies out of it, then the channels.
    columns   of clocks besides those: what is known of warps of other CTAs, for global memory; see `order`
    """

    CHANNELS = 32

    def __init__(self, blocks: int, warps: int, size: int, grain: int, columns: int = 0) -> None:
        self.warps, self.readers = warps, warps + 1
        self.agents = self.readers + self.CHANNELS
        self.grain = grain
        self.units = size // grain
        self.now = 1
        self.known = np.zeros((blocks * self.agents, self.agents + columns), np.int64)
        self.floor = np.zeros(blocks, np.int64)  # what every warp of a CTA knows of every warp
        self.written = np.zeros(blocks * self.units, np.int64)
        self.writer = np.zeros(blocks * self.units, np.int8)
        self.read_at = np.zeros((blocks * self.units, self.readers), np.int64)
        self.keys: dict[Hashable, np.ndarray] = {}
        self.asynchronous = False  # whether anything has been copied by other agents than warps

    # --- synchronization ---------------------------------------------------------------------------------

    def barrier(self, slot: int, agents: np.ndarray) -> None:
        """These agents of a CTA meet: each knows then what any of them knew."""
        local = agents - slot * self.agents
        joined = self.known[agents].max(axis=0)
        joined[local] = self.now
        self.known[agents] = joined
        self.tick(slot)

    def arrive(self, agents: np.ndarray) -> np.ndarray:
        """What these agents of a CTA know together, now and not later."""
        joined = self.known[agents].max(axis=0)
        joined[agents % self.agents] = self.now
        self.now += 1
        return np.asarray(joined)

    def learn(self, slot: int, agents: np.ndarray, clock: np.ndarray) -> None:
        """These agents of a CTA get to know what others have arrived with."""
        self.known[agents] = np.maximum(self.known[agents], clock)
        self.tick(slot)

    def release(self, key: Hashable, agents: np.ndarray) -> None:
        """What these agents know is left at `key`, such as an mbarrier of a CTA."""
        for agent in agents:
            slot, local = divmod(int(agent), self.agents)
            clock = self.known[agent].copy()
            clock[local] = self.now
            held = self.keys.get((key, slot))
            self.keys[key, slot] = clock if held is None else np.maximum(held, clock)
        self.now += 1

    def acquire(self, key: Hashable, agents: np.ndarray) -> None:
        """These agents take over what lies at `key`."""
        for agent in agents:
            slot = int(agent) // self.agents
            held = self.keys.get((key, slot))
            if held is not None:
                self.known[agent] = np.maximum(self.known[agent], held)
        for slot in np.unique(agents // self.agents):
            self.tick(int(slot))

    def tick(self, slot: int) -> None:
        """A warp of a CTA has learned something."""
        first = slot * self.agents
        self.floor[slot] = self.known[first : first + self.warps, : self.warps].min()
        self.now += 1

    # --- accesses ----------------------------------------------------------------------------------------

    def read(self, units: np.ndarray, agents: np.ndarray, slots: np.ndarray) -> None:
        """Agents (n,) of CTAs (n,) read units (n, count), numbered over all CTAs.

        raises   Race with a write that the reader does not know of
        """
        self.asynchronous |= bool((agents % self.agents >= self.warps).any())
        self._after_writes(units, agents, self.floor[slots][:, None])
        self.read_at[units, (agents % self.agents)[:, None]] = self.now

    def write(self, units: np.ndarray, agents: np.ndarray, slots: np.ndarray) -> None:
        """The same for writes, which must know of all other accesses.

        raises   Race
        """
        self.asynchronous |= bool((agents % self.agents >= self.warps).any())
        floor = self.floor[slots][:, None]
        self._after_writes(units, agents, floor)
        stamps = self.read_at[units]  # (n, count, readers)
        late = stamps > floor[:, :, None]
        if self.asynchronous:
            late[..., self.warps] = stamps[..., self.warps] > 0
        if late.any():
            found = np.nonzero(late)
            self._ordered(found[:2], stamps[found], found[2], agents, "read by")
        self.written[units] = self.now
        self.writer[units] = (agents % self.agents)[:, None]
        if (self.writer[units] != (agents % self.agents)[:, None]).any():
            place = int(np.nonzero(self.writer[units] != (agents % self.agents)[:, None])[0][0])
            raise Race(place, int(self.writer[units[place, 0]]), "written at once by")

    def _after_writes(self, units: np.ndarray, agents: np.ndarray, floor: np.ndarray) -> None:
        """raises Race with a write that the agents do not know of"""
        stamps, writers = self.written[units], self.writer[units]
        late = stamps > floor
        if self.asynchronous:
            late |= writers >= self.warps
        if late.any():
            at = np.nonzero(late)
            self._ordered(at, stamps[at], writers[at], agents, "written by")

    def _ordered(
        self,
        at: tuple[np.ndarray, ...],
        stamps: np.ndarray,
        others: np.ndarray,
        agents: np.ndarray,
        kind: str,
    ) -> None:
        mine = agents[at[0]]
        unknown = (stamps > self.known[mine, others]) & (others != mine % self.agents)
        if unknown.any():
            first = int(np.flatnonzero(unknown)[0])
            raise Race(int(at[0][first]), int(others[first]), kind)
