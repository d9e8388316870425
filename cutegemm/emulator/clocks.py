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

    place   index of the conflicting access among the accesses that were checked together
    other   number of the warp or asynchronous copy that made the earlier access
    kind    what the earlier access did, for messages: "written by", "read by"
    """

    def __init__(self, place: int, other: int, kind: str) -> None:
        super().__init__()
        self.place, self.other, self.kind = place, other, kind


class Clocks:
    """Race detector for shared memory, by vector clocks of warps and copies.

    It also keeps the last accesses to each unit, i.e. to each few bytes of shared memory. The vector clock of a warp
    has an entry for each other warp: all accesses of the other warp up to this moment are ordered before what the warp
    does next. An access is a race if an earlier conflicting access to the same unit is not ordered before it.

    Whatever has a clock is called an agent. The agents of a CTA are its warps, the bulk copies out of its shared
    memory, and channels. A channel stands for the copies into shared memory that signal the same mbarrier.

    blocks    number of CTAs
    warps     number of warps of a CTA
    size      bytes of a CTA's shared memory
    grain     bytes of a unit
    columns   number of further entries of each clock, for warps of other CTAs
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
        """Synchronize warps or copies of a CTA in the race detector: all get the maximum of their vector clocks.

        slot     index of the CTA among the CTAs that are emulated together
        agents   (n,) numbers of the warps or copies, over all CTAs
        """
        local = agents - slot * self.agents
        joined = self.known[agents].max(axis=0)
        joined[local] = self.now
        self.known[agents] = joined
        self.tick(slot)

    def arrive(self, agents: np.ndarray) -> np.ndarray:
        """Return a vector clock of all that is ordered before an arrival of warps or copies at a barrier.

        It is the maximum of their own vector clocks. Whoever passes the barrier later gets it by `learn`.

        agents   (n,) numbers of the warps or copies that arrive, over all CTAs
        """
        joined = self.known[agents].max(axis=0)
        joined[agents % self.agents] = self.now
        self.now += 1
        return np.asarray(joined)

    def learn(self, slot: int, agents: np.ndarray, clock: np.ndarray) -> None:
        """Raise the vector clocks of warps or copies that pass a barrier to the clock of its arrivals.

        What the arrived warps did before is then ordered before what these warps do next.

        slot     index of the CTA among the CTAs that are emulated together
        agents   (n,) numbers of the warps or copies that pass the barrier, over all CTAs
        clock    vector clock of the arrivals, as `arrive` returns it
        """
        self.known[agents] = np.maximum(self.known[agents], clock)
        self.tick(slot)

    def release(self, key: Hashable, agents: np.ndarray) -> None:
        """Store the vector clocks of warps or copies under a key, so that others can take them over by `acquire`.

        key      what they synchronize on, such as a phase of an mbarrier
        agents   (n,) numbers of the warps or copies, over all CTAs
        """
        for agent in agents:
            slot, local = divmod(int(agent), self.agents)
            clock = self.known[agent].copy()
            clock[local] = self.now
            present = self.released.get((key, slot))
            self.released[key, slot] = clock if present is None else np.maximum(present, clock)
        self.now += 1

    def acquire(self, key: Hashable, agents: np.ndarray) -> None:
        """Let warps or copies take over, by the maximum, the vector clocks that others of their CTA stored under a key.

        key      what they synchronize on, such as a phase of an mbarrier
        agents   (n,) numbers of the warps or copies, over all CTAs
        """
        for agent in agents:
            slot = int(agent) // self.agents
            clock = self.released.get((key, slot))
            if clock is not None:
                self.known[agent] = np.maximum(self.known[agent], clock)
        for slot in np.unique(agents // self.agents):
            self.tick(int(slot))

    def tick(self, slot: int) -> None:
        """Advance the race detector's counter of events after a clock of a CTA has changed.

        It also recomputes the CTA's `floor`: accesses up to this value of the counter are ordered before whatever the
        CTA's warps do next, and need no further check.

        slot   index of the CTA among the CTAs that are emulated together
        """
        first = slot * self.agents
        self.floor[slot] = self.known[first : first + self.warps, : self.warps].min()
        self.now += 1

    # --- accesses ----------------------------------------------------------------------------------------

    def read(self, units: np.ndarray, slots: np.ndarray, warps: np.ndarray) -> None:
        """Record that warps read units of shared memory, and check for races.

        units    (n, count) units that each read touches, numbered over all CTAs
        slots    (n,) index of the CTA among the CTAs that are emulated together
        warps    (n,) index of the warp in its CTA
        raises   Race with a write that is not ordered before the read
        """
        self._check_after_writes(units, slots, warps)
        self.read_at[units, warps[:, None]] = self.now

    def write(self, units: np.ndarray, slots: np.ndarray, warps: np.ndarray) -> None:
        """Record that warps write units of shared memory, and check for races.

        units    (n, count) units that each write touches, numbered over all CTAs
        slots    (n,) index of the CTA among the CTAs that are emulated together
        warps    (n,) index of the warp in its CTA
        raises   Race with a read or a write that is not ordered before the write
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
        """Raise Race if any unit was written by a warp or copy whose write is not ordered before the present access.

        units   (n, count) units that each access touches, numbered over all CTAs
        slots   (n,) index of the CTA among the CTAs that are emulated together
        warps   (n,) index of the warp in its CTA
        """
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
        """Raise Race if, for any of n pairs of accesses, the earlier one is not ordered before the present one.

        slots    (n,) index of the CTA among the CTAs that are emulated together
        mine     (n,) number of the warp or copy that makes the present access, in its CTA
        stamps   (n,) value of the common counter at the earlier access
        others   (n,) number of the warp or copy that made the earlier access, in its CTA
        places   (n,) index of the present access, for the attribute `place` of the Race
        kind     "read by" or "written by", for the message
        """
        unknown = (stamps > self.known[slots * self.agents + mine, others]) & (others != mine)
        if unknown.any():
            first = int(np.flatnonzero(unknown)[0])
            raise Race(int(places[first]), int(others[first]), kind)

    def read_together(self, units: np.ndarray, agents: np.ndarray) -> None:
        """Record that several warps (or one copy) of a CTA together read units of shared memory, and check for races.

        units    (n,) numbers of the units, over all CTAs
        agents   numbers of the warps of a warpgroup, or of one copy, over all CTAs
        raises   Race with a write that is not ordered before the read
        """
        self.asynchronous |= bool((agents % self.agents >= self.warps).any())
        self._check_known(agents, self.written[units], self.writer[units], "written by")
        self.read_at[units[:, None], agents % self.agents] = self.now

    def write_alone(self, units: np.ndarray, agent: int) -> None:
        """Record that an asynchronous copy writes units of shared memory, and check for races.

        units    (n,) numbers of the units, over all CTAs
        agent    number of the copy, over all CTAs
        raises   Race with a read or a write that is not ordered before the write
        """
        self.asynchronous = True
        agents = np.array([agent])
        self._check_known(agents, self.written[units], self.writer[units], "written by")
        readers = np.arange(self.readers)
        self._check_known(agents, self.read_at[units], readers, "read by")
        self.written[units], self.writer[units] = self.now, agent % self.agents

    def _check_known(self, agents: np.ndarray, stamps: np.ndarray, others: np.ndarray, kind: str) -> None:
        """Raise Race if an earlier access to units is not ordered before the present access of several warps or a copy.

        agents   numbers of the warps or of the copy, over all CTAs; all of them must know of the earlier access
        stamps   (n, ...) value of the common counter at each earlier access, for n units
        others   number in the CTA of the warp or copy that made it; the shape broadcasts to the shape of `stamps`
        kind     "read by" or "written by", for the message
        """
        known = self.known[agents].min(axis=0)[others]
        if (stamps > known).any():
            at = np.nonzero(stamps > known)
            late, doers = stamps[at], np.broadcast_to(others, stamps.shape)[at]
            for agent in agents:
                slot, mine = np.divmod(np.full(len(late), agent), self.agents)
                self._check_ordered(slot, mine, late, doers, at[0], kind)
