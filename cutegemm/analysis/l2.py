"""The L2 cache in time: what comes from DRAM when CTAs do not keep step.

The model. A CTA takes the parts of its panels of A and B along K one after the other, and writes D at its end.
How long that takes, and which CTAs go ahead, says `analysis.pace`; which work tiles each cluster of CTAs takes one
after the other, the tile scheduler. A cluster that is done makes place for the next one, on whichever multiprocessor is
free. Which line is touched when follows.

Where CTAs share a tile, each writes the sums of its part of K; the one that ends last reads them and writes D, or a
kernel behind the GEMM does.

The L2 has partitions. Each line has a home in one of them, half of every panel in each; a multiprocessor asks
the partition on its own side, which fetches a line with a home elsewhere from there and keeps it too. So a
line that both sides read is held twice, and so is one that is written from the other side. Each partition drops what
was used last the longest ago.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from cutegemm.analysis.pace import Pace

_LEAST_TIME = 0.2  # of the mean: where a random time would be none
_EVENTS = 1 << 16  # about as many as are played: the more CTAs, the coarser the pieces of K
_PIECES = (4, 64)
_SEED = 0
_MOST_KNOWN = 1 << 12  # grids whose outcome is remembered
_known: dict[bytes, Moved] = {}


@dataclass(frozen=True)
class Work:
    """What the work tiles of a grid touch, in the order of their numbers.

    clusters             of each work tile: the cluster that takes it
    tiles                of each work tile: the tile of D, counted in clusters
    k_first, k_last      the part of K, between 0 and 1
    panels_a, panels_b   (tiles, panels of each): numbers of the panels
    bytes_a, bytes_b     of each panel
    bytes_d              of the tiles of a cluster
    bytes_partials       of the sums of a work tile that has peers
    all_write            whether such work tiles all write their sums; else all but the one that ends last
    last_adds            whether that one reads what was written, and writes D
    """

    clusters: np.ndarray
    tiles: np.ndarray
    k_first: np.ndarray
    k_last: np.ndarray
    panels_a: np.ndarray
    panels_b: np.ndarray
    bytes_a: np.ndarray
    bytes_b: np.ndarray
    bytes_d: float
    bytes_partials: float = 0.0
    all_write: bool = False
    last_adds: bool = True


@dataclass(frozen=True)
class Moved:
    """Bytes.

    dram_bytes        of A and B that come from DRAM
    far_bytes         that pass from one partition of the L2 to another
    partials_bytes_   of sums that come from DRAM again
    """

    dram_bytes: float = 0.0
    far_bytes: float = 0.0
    partials_bytes_: float = 0.0


def play(work: Work, pace: Pace, l2_bytes: int, partitions: int, *, pieces: int | None = None) -> Moved:
    """Plays the grid, unless the same one has been played before.

    pace     of the clusters that run at once
    pieces   of K; chosen by the size of the grid where left out
    """
    if len(work.tiles) == 0:
        return Moved()
    most = int(np.bincount(work.tiles.astype(np.intp, copy=False)).max())  # parts of a tile
    steps = pieces or max(_PIECES[0] * most, min(_PIECES[1], _EVENTS // len(work.panels_a)))
    key = _digest(*vars(work).values(), *vars(pace).values(), l2_bytes, partitions, steps, _SEED)
    found = _known.get(key)
    if found is None:
        if len(_known) == _MOST_KNOWN:
            _known.clear()
        found = _known[key] = _played(work, pace, l2_bytes, partitions, steps)
    return found


def _digest(*values: Any) -> bytes:
    """Equal for equal arrays and numbers."""
    digest = hashlib.sha256()
    for value in values:
        if isinstance(value, np.ndarray):
            digest.update(f"{value.dtype}{value.shape}".encode())
            digest.update(value.tobytes())
        else:
            digest.update(f"{value!r};".encode())
    return digest.digest()


def _played(work: Work, pace: Pace, l2_bytes: int, partitions: int, steps: int) -> Moved:
    count, running = len(work.tiles), len(pace.time)
    splits = np.bincount(work.tiles.astype(np.intp, copy=False))
    random = np.random.default_rng(_SEED)
    noise = np.maximum(_LEAST_TIME, 1 + pace.jitter * random.standard_normal(count)).tolist()
    first, last = (np.rint(share * steps).astype(int).tolist() for share in (work.k_first, work.k_last))
    sides = random.permutation(np.arange(running) % partitions).tolist()
    panels = np.concatenate([work.panels_a, work.panels_b + len(work.bytes_a)], axis=1).tolist()
    sizes = (np.concatenate([work.bytes_a, work.bytes_b]) / (steps * partitions)).tolist()
    asked = [partitions * sum(sizes[panel] for panel in needed) or 1.0 for needed in panels]
    times, tiles, homes = (pace.time / steps).tolist(), work.tiles.tolist(), range(partitions)
    cache = _Cache(partitions, l2_bytes / partitions)
    ends = _Ends(work, splits.tolist(), cache)
    waiting = iter(_by_cluster(work.clusters))
    own = [iter(numbers) for numbers in itertools.islice(waiting, running)]
    at = [(number, first[number]) for number in map(next, own)]
    due = [(0.0, place) for place in range(len(at))]  # a heap: all alike
    while due:
        now, place = due[0]
        number, piece = at[place]
        here = sides[place]
        if piece >= last[number]:
            ends.end(tiles[number], here)
            following = next(own[place], None)
            if following is None and (numbers := next(waiting, None)) is not None:
                own[place] = iter(numbers)
                following = next(own[place])
            if following is None:
                heapq.heappop(due)
            else:
                at[place] = following, first[following]
            continue
        tile = tiles[number]
        before, held = cache.dram_bytes, cache.lines[here]
        for panel in panels[tile]:
            first_key = (panel * steps + piece) * partitions
            for home in homes:
                key = first_key + home
                if key in held:  # nearly always: `read` without a call
                    held.move_to_end(key)
                else:
                    cache.read(key, here, home, sizes[panel])
        at[place] = number, piece + 1
        waited = pace.wait * (cache.dram_bytes - before) / asked[tile]
        heapq.heapreplace(due, (now + times[place] * (noise[number] + waited), place))
    return Moved(cache.dram_bytes - ends.partials_bytes_, cache.far_bytes, ends.partials_bytes_)


def _by_cluster(clusters: np.ndarray) -> list[list[int]]:
    """The work tiles of each cluster that takes any, in their order."""
    order = np.argsort(clusters, kind="stable")
    starts = np.flatnonzero(np.diff(clusters[order])) + 1
    return [own.tolist() for own in np.split(order, starts)]


class _Ends:
    """What work tiles do at their end."""

    def __init__(self, work: Work, splits: list[int], cache: _Cache) -> None:
        self.work, self.splits, self.cache = work, splits, cache
        self.ended = [0] * len(splits)
        self.homes = range(len(cache.lines))
        self.partials_bytes_ = 0.0

    def end(self, tile: int, here: int) -> None:
        """A work tile of a tile ends."""
        work, splits, k_split = self.work, self.splits[tile], self.ended[tile]
        self.ended[tile] += 1
        is_last = k_split == splits - 1
        if splits > 1 and (work.all_write or not is_last):
            self._each(self.cache.write, tile, k_split, here, work.bytes_partials)
        if not is_last or (splits > 1 and not work.last_adds):
            return
        before = self.cache.dram_bytes
        written = 0 if splits == 1 else splits if work.all_write else splits - 1
        for other in range(written):
            self._each(self.cache.read, tile, other, here, work.bytes_partials)
        self.partials_bytes_ += self.cache.dram_bytes - before
        self._each(self.cache.write, tile, splits, here, work.bytes_d)

    def _each(self, touch: Callable[..., None], tile: int, k_split: int, here: int, size: float) -> None:
        for home in self.homes:
            touch((tile, k_split, home), here, home, size / len(self.homes))


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
                self._keep(key, home, size)
        else:
            self.dram_bytes += size
        self._keep(key, here, size)

    def write(self, key: object, here: int, home: int, size: float) -> None:
        """It writes something new."""
        self._keep(key, home, size)
        if here != home:
            self._keep(key, here, size)

    def _keep(self, key: object, where: int, size: float) -> None:
        """Something that the partition `where` does not have."""
        lines, free = self.lines[where], self.free[where] - size
        lines[key] = size
        while free < 0:
            free += lines.popitem(last=False)[1]
        self.free[where] = free
