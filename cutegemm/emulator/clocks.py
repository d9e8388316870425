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

    def read(self, units: np.ndarray, slots: np.ndarray, warps: np.ndarray) -> None:
        """Warps (n,) of CTAs (n,) read units (n, count), numbered over all CTAs.

        raises   Race with a write that the reader does not know of
        """
        self._after_writes(units, slots, warps)
        self.read_at[units, warps[:, None]] = self.now

    def write(self, units: np.ndarray, slots: np.ndarray, warps: np.ndarray) -> None:
        """The same for writes, which must know of all other accesses.

        raises   Race
        """
        self._after_writes(units, slots, warps)
        stamps = self.read_at[units]  # (n, count, readers)
        late = stamps > self.floor[slots][:, None, None]
        if self.asynchronous:
            late[..., self.warps] = stamps[..., self.warps] > 0
        if late.any():
            at, column, others = np.nonzero(late)
            self._ordered(slots[at], warps[at], stamps[at, column, others], others, at, "read by")
        self.written[units], self.writer[units] = self.now, warps[:, None]
        others = self.writer[units]
        several = others != warps[:, None]
        if several.any():
            place = int(np.nonzero(several)[0][0])
            raise Race(place, int(others[place][several[place]][0]), "written at once by")

    def _after_writes(self, units: np.ndarray, slots: np.ndarray, warps: np.ndarray) -> None:
        """raises Race with a write that the warps do not know of"""
        stamps = self.written[units]
        late = stamps > self.floor[slots][:, None]
        if self.asynchronous:
            late |= self.writer[units] >= self.warps
        if late.any():
            at, column = np.nonzero(late)
            others = self.writer[units[at, column]]
            self._ordered(slots[at], warps[at], stamps[at, column], others, at, "written by")

    def _ordered(
        self,
        slots: np.ndarray,
        mine: np.ndarray,
        stamps: np.ndarray,
        others: np.ndarray,
        places: np.ndarray,
        kind: str,
    ) -> None:
        """raises Race where agents (n,) do not know of what others (n,) of their CTAs (n,) did at a time (n,)"""
        unknown = (stamps > self.known[slots * self.agents + mine, others]) & (others != mine)
        if unknown.any():
            first = int(np.flatnonzero(unknown)[0])
            raise Race(int(places[first]), int(others[first]), kind)

    def read_together(self, units: np.ndarray, agents: np.ndarray) -> None:
        """Agents of one CTA, each, read units (n,): the warps of a warpgroup, or a copy. raises Race"""
        self.asynchronous |= bool((agents % self.agents >= self.warps).any())
        self._all_know(agents, self.written[units], self.writer[units], "written by")
        self.read_at[units[:, None], agents % self.agents] = self.now

    def write_alone(self, units: np.ndarray, agent: int) -> None:
        """A copy writes units (n,). raises Race"""
        self.asynchronous = True
        agents = np.array([agent])
        self._all_know(agents, self.written[units], self.writer[units], "written by")
        readers = np.arange(self.readers)
        self._all_know(agents, self.read_at[units], readers, "read by")
        self.written[units], self.writer[units] = self.now, agent % self.agents

    def _all_know(self, agents: np.ndarray, stamps: np.ndarray, others: np.ndarray, kind: str) -> None:
        """raises Race where one of the agents does not know of what others did to units (n, ...)"""
        known = self.known[agents].min(axis=0)[others]
        if (stamps > known).any():
            at = np.nonzero(stamps > known)
            late, doers = stamps[at], np.broadcast_to(others, stamps.shape)[at]
            for agent in agents:
                slot, mine = np.divmod(np.full(len(late), agent), self.agents)
                self._ordered(slot, mine, late, doers, at[0], kind)
