"""The L2 cache in time: what comes from DRAM when CTAs do not keep step.

The model. A CTA takes the parts of its panels of A and B along K one after the other, at an even pace, and
writes D at its end. Its time differs from the mean by `JITTER`, each CTA anew. Where the grid is persistent,
a CTA keeps its tiles, so that a multiprocessor which is slower, by `SPREAD`, falls behind for good; not where
the tensor cores are the bound, since their clock is that of all. Else the next CTA of the order begins on
whichever multiprocessor is free. Which line is touched when follows.

The L2 has partitions. Each line has a home in one of them, half of every panel in each; a multiprocessor asks
the partition on its own side, which fetches a line with a home elsewhere from there and keeps it too. So a
line that both sides read is held twice. Each partition drops what was used last the longest ago; it holds
`KEPT` of its size, since no real cache finds the one oldest line. D passes through the home of each line.

The three constants are those that fit the counters of ten plans on an H200; docs/analysis.md shows the fit
and plans that they were not fitted to.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

KEPT = 0.92
JITTER = 0.0125
SPREAD = 0.0275
_LEAST_TIME = 0.2  # of the mean: where a random time would be none
_EVENTS = 1 << 16  # about as many as are played: the more CTAs, the coarser the parts of K
_PARTS = (4, 64)
_SEED = 0


@dataclass(frozen=True)
class Work:
    """What the clusters of a grid, which take their tiles together, touch, in the order of the raster.

    panels_a, panels_b   (clusters of tiles, panels of each): numbers of the panels
    bytes_a, bytes_b     of each panel
    bytes_d              of the tiles of a cluster
    """

    panels_a: np.ndarray
    panels_b: np.ndarray
    bytes_a: np.ndarray
    bytes_b: np.ndarray
    bytes_d: float


@dataclass(frozen=True)
class Moved:
    """Bytes of A and B.

    dram_bytes   that come from DRAM
    far_bytes    that pass from one partition of the L2 to another
    """

    dram_bytes: float
    far_bytes: float


def play(
    work: Work,
    units: int,
    l2_bytes: int,
    partitions: int,
    *,
    persistent: bool,
    jitter: float = JITTER,
    spread: float = SPREAD,
    kept: float = KEPT,
    parts: int | None = None,
) -> Moved:
    """Plays the grid.

    units        clusters that run at once
    persistent   whether each of them takes every `units`-th cluster of tiles
    parts        of K; chosen by the size of the grid where left out
    """
    count = len(work.panels_a)
    if count == 0:
        return Moved(0.0, 0.0)
    random = np.random.default_rng(_SEED)
    steps = parts or min(_PARTS[1], max(_PARTS[0], _EVENTS // count))
    start, time, unit = _times(count, min(units, count), persistent, jitter, spread, random)
    touched = (start[:, None] + time[:, None] * np.arange(steps) / steps).reshape(-1)
    order = np.argsort(np.concatenate([touched, start + time]), kind="stable")
    side = random.permutation(np.arange(units) % partitions)[unit]
    cache = _Cache(partitions, kept * l2_bytes / partitions)
    ids_a, ids_b = work.panels_a.tolist(), (work.panels_b + len(work.bytes_a)).tolist()
    sizes = (np.concatenate([work.bytes_a, work.bytes_b]) / (steps * partitions)).tolist()
    sides, last, homes = side.tolist(), count * steps, range(partitions)
    for event in order.tolist():
        if event >= last:
            for home in homes:
                cache.write((event, home), home, work.bytes_d / partitions)
            continue
        which, step = divmod(event, steps)
        here = sides[which]
        for panel in (*ids_a[which], *ids_b[which]):
            for home in homes:
                cache.read(((panel * steps + step) * partitions + home), here, home, sizes[panel])
    return Moved(cache.dram_bytes, cache.far_bytes)


def _times(
    count: int, units: int, persistent: bool, jitter: float, spread: float, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(when each begins, how long it takes, which unit it runs on); the mean time is 1."""
    time = 1 + jitter * random.standard_normal(count)
    start, unit = np.zeros(count), np.arange(count) % units
    if persistent:
        time += spread * random.standard_normal(units)[unit]
        time = np.maximum(_LEAST_TIME, time)
        for one in range(units):
            start[one::units] = np.cumsum(time[one::units]) - time[one::units]
        return start, time, unit
    time = np.maximum(_LEAST_TIME, time)
    free = [(0.0, one) for one in range(units)]
    for number in range(count):
        now, one = heapq.heappop(free)
        start[number], unit[number] = now, one
        heapq.heappush(free, (now + float(time[number]), one))
    return start, time, unit


class _Cache:
    """Partitions that each drop what was used last the longest ago."""

    def __init__(self, partitions: int, bytes_each: float) -> None:
        self.lines: list[OrderedDict[object, float]] = [OrderedDict() for _ in range(partitions)]
        self.free = [bytes_each] * partitions
        self.dram_bytes = self.far_bytes = 0.0

    def read(self, key: object, here: int, home: int, size: float) -> None:
        """A multiprocessor of the side `here` reads what has its home in `home`."""
        lines = self.lines[here]
        if key in lines:
            lines.move_to_end(key)
            return
        if here != home:
            self.far_bytes += size
            if key in self.lines[home]:
                self.lines[home].move_to_end(key)
            else:
                self.dram_bytes += size
                self.write(key, home, size)
        else:
            self.dram_bytes += size
        self.write(key, here, size)

    def write(self, key: object, where: int, size: float) -> None:
        """Something new in a partition."""
        lines, free = self.lines[where], self.free[where] - size
        lines[key] = size
        while free < 0:
            free += lines.popitem(last=False)[1]
        self.free[where] = free
