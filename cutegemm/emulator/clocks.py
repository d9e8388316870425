"""Race detection in shared memory by vector clocks (for global memory see `order`).

An agent is a warp, all copies out of a CTA's shared memory together, or all copies into it that signal one mbarrier (a
channel). A warp that has waited for one channel knows nothing of copies on another one.

One counter serves as the clock of all agents. It grows with each synchronization, and each access is stamped with it.
The vector clock of agent w is row `slot * agents + w` of `known`: its entry u is the last stamp of agent u that w has
synchronized with. An earlier access of u is ordered before an access of w if and only if its stamp is at most that
entry.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np


class Race(Exception):
    """Raised for a data race: two accesses, at least one of them a write, that no synchronization orders.

    place   index of the conflicting access among those that were checked
    other   agent (warp or asynchronous copy) of the earlier access
    kind    what the earlier access did, for messages: "written by", "read by"
    """

    def __init__(self, place: int, other: int, kind: str) -> None:
        super().__init__()
        self.place, self.other, self.kind = place, other, kind


class Clocks:
    """Vector clocks and access stamps of the shared memory of `blocks` CTAs.

    warps     warps of a CTA
    size      bytes of a CTA's shared memory
    grain     bytes of a unit. Units are numbered over all CTAs
    columns   further columns of each clock, for the warps of other CTAs: see `order`

    Agents are numbered over all CTAs, `agents` to a CTA: its warps, the copies out of it, and CHANNELS channels.
    """

    CHANNELS = 32

    def __init__(self, blocks: int, warps: int, size: int, grain: int, columns: int = 0) -> None:
        self.warps, self.readers = warps, warps + 1
        self.agents = self.readers + self.CHANNELS
        self.grain = grain
        self.units = size // grain
        self.now = 1
        self.known = np.zeros((blocks * self.agents, self.agents + columns), np.int64)
        self.floor = np.zeros(blocks, np.int64)  # accesses up to this stamp are known to all warps of a CTA
        self.written = np.zeros(blocks * self.units, np.int64)
        self.writer = np.zeros(blocks * self.units, np.int8)
        self.read_at = np.zeros((blocks * self.units, self.readers), np.int64)
        self.released: dict[Hashable, np.ndarray] = {}  # by (key, slot): clocks that were released there
        self.asynchronous = False  # whether an agent other than a warp has accessed memory

    # --- synchronization ---------------------------------------------------------------------------------

    def barrier(self, slot: int, agents: np.ndarray) -> None:
        """Synchronize agents (warps or copies) of a CTA: the vector clock of each becomes the maximum of their clocks.

        slot     slot of the CTA
        agents   (n,) numbers over all CTAs
        """
        local = agents - slot * self.agents
        joined = self.known[agents].max(axis=0)
        joined[local] = self.now
        self.known[agents] = joined
        self.tick(slot)

    def arrive(self, agents: np.ndarray) -> np.ndarray:
        """Return the maximum of the vector clocks of agents (warps or copies) that arrive at a barrier.

        agents   (n,) numbers over all CTAs
        """
        joined = self.known[agents].max(axis=0)
        joined[agents % self.agents] = self.now
        self.now += 1
        return np.asarray(joined)

    def learn(self, slot: int, agents: np.ndarray, clock: np.ndarray) -> None:
        """Raise the vector clocks of agents (warps or copies) of a CTA to at least a clock that `arrive` returned.

        slot     slot of the CTA
        agents   (n,) numbers over all CTAs
        clock    the clock
        """
        self.known[agents] = np.maximum(self.known[agents], clock)
        self.tick(slot)

    def release(self, key: Hashable, agents: np.ndarray) -> None:
        """Store the vector clocks of agents (warps or copies) under a key, for agents that acquire it later.

        key      what they synchronize by, such as a phase of an mbarrier
        agents   (n,) numbers over all CTAs
        """
        for agent in agents:
            slot, local = divmod(int(agent), self.agents)
            clock = self.known[agent].copy()
            clock[local] = self.now
            present = self.released.get((key, slot))
            self.released[key, slot] = clock if present is None else np.maximum(present, clock)
        self.now += 1

    def acquire(self, key: Hashable, agents: np.ndarray) -> None:
        """Add to the vector clocks of agents (warps or copies) what others of their CTA have released under a key.

        key      what they synchronize by, such as a phase of an mbarrier
        agents   (n,) numbers over all CTAs
        """
        for agent in agents:
            slot = int(agent) // self.agents
            clock = self.released.get((key, slot))
            if clock is not None:
                self.known[agent] = np.maximum(self.known[agent], clock)
        for slot in np.unique(agents // self.agents):
            self.tick(int(slot))

    def tick(self, slot: int) -> None:
        """Advance the counter of all clocks after a clock of the CTA has changed, and recompute the CTA's `floor`.

        slot   slot of the CTA
        """
        first = slot * self.agents
        self.floor[slot] = self.known[first : first + self.warps, : self.warps].min()
        self.now += 1

    # --- accesses ----------------------------------------------------------------------------------------

    def read(self, units: np.ndarray, slots: np.ndarray, warps: np.ndarray) -> None:
        """Record that warps read units of shared memory, and check for races.

        units     (n, count), numbered over all CTAs
        slots     (n,) slot of the CTA
        warps     (n,) warp in the CTA
        raises    Race with a write that is not ordered before the read
        """
        self._check_after_writes(units, slots, warps)
        self.read_at[units, warps[:, None]] = self.now

    def write(self, units: np.ndarray, slots: np.ndarray, warps: np.ndarray) -> None:
        """Record that warps write units of shared memory, and check for races. The arguments are those of `read`.

        raises    Race with a read or a write that is not ordered before the write
        """
        self._check_after_writes(units, slots, warps)
        stamps = self.read_at[units]  # (n, count, readers)
        late = stamps > self.floor[slots][:, None, None]
        if self.asynchronous:
            late[..., self.warps] = stamps[..., self.warps] > 0
        if late.any():
            at, column, others = np.nonzero(late)
            self._check_ordered(slots[at], warps[at], stamps[at, column, others], others, at, "read by")
        self.written[units], self.writer[units] = self.now, warps[:, None]
        others = self.writer[units]
        clash = others != warps[:, None]
        if clash.any():
            place = int(np.nonzero(clash)[0][0])
            raise Race(place, int(others[place][clash[place]][0]), "written at the same time by")

    def _check_after_writes(self, units: np.ndarray, slots: np.ndarray, warps: np.ndarray) -> None:
        """Raise Race if a write to the units is not ordered before the accesses of the warps."""
        stamps = self.written[units]
        late = stamps > self.floor[slots][:, None]
        if self.asynchronous:
            late |= self.writer[units] >= self.warps
        if late.any():
            at, column = np.nonzero(late)
            others = self.writer[units[at, column]]
            self._check_ordered(slots[at], warps[at], stamps[at, column], others, at, "written by")

    def _check_ordered(
        self,
        slots: np.ndarray,
        mine: np.ndarray,
        stamps: np.ndarray,
        others: np.ndarray,
        places: np.ndarray,
        kind: str,
    ) -> None:
        """Raise Race if an earlier access is not ordered before the present access, for any of n pairs of accesses.

        slots     (n,) slot of the CTA
        mine      (n,) agent of the present access
        stamps    (n,) stamp of the earlier access
        others    (n,) agent of the earlier access
        places    (n,) index of the present access, for `Race`
        kind      for `Race`
        """
        unknown = (stamps > self.known[slots * self.agents + mine, others]) & (others != mine)
        if unknown.any():
            first = int(np.flatnonzero(unknown)[0])
            raise Race(int(places[first]), int(others[first]), kind)

    def read_together(self, units: np.ndarray, agents: np.ndarray) -> None:
        """Record that all of several agents of a CTA read units (n,) of shared memory, and check for races.

        agents    the warps of a warpgroup, or one copy
        raises    Race with a write that is not ordered before the read
        """
        self.asynchronous |= bool((agents % self.agents >= self.warps).any())
        self._check_known(agents, self.written[units], self.writer[units], "written by")
        self.read_at[units[:, None], agents % self.agents] = self.now

    def write_alone(self, units: np.ndarray, agent: int) -> None:
        """Record that an asynchronous copy writes units (n,) of shared memory, and check for races.

        agent     number of the copy's agent
        raises    Race with a read or a write that is not ordered before the write
        """
        self.asynchronous = True
        agents = np.array([agent])
        self._check_known(agents, self.written[units], self.writer[units], "written by")
        readers = np.arange(self.readers)
        self._check_known(agents, self.read_at[units], readers, "read by")
        self.written[units], self.writer[units] = self.now, agent % self.agents

    def _check_known(self, agents: np.ndarray, stamps: np.ndarray, others: np.ndarray, kind: str) -> None:
        """Raise Race if an earlier access to units (n, ...) is not ordered before the present access of all agents.

        stamps    (n, ...) stamps of the earlier accesses
        others    agents of the earlier accesses; the shape broadcasts to the shape of `stamps`
        kind      for `Race`
        """
        known = self.known[agents].min(axis=0)[others]
        if (stamps > known).any():
            at = np.nonzero(stamps > known)
            late, doers = stamps[at], np.broadcast_to(others, stamps.shape)[at]
            for agent in agents:
                slot, mine = np.divmod(np.full(len(late), agent), self.agents)
                self._check_ordered(slot, mine, late, doers, at[0], kind)
