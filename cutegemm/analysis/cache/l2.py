"""Simulation of the L2 cache over time: bytes that come from DRAM if CTAs do not run in step.

The model. A CTA reads its panels of A and B piece by piece along K, and writes D at its end. `analysis.pace` gives the
time of each tile. The tile scheduler gives the work tiles of each cluster, which it takes one after the other. A
cluster that ends makes room for the next one. So the model knows when each line is read or written.

If the K of a tile is split, each CTA writes the accumulators of its K split. The one that ends last reads them all and
writes D, or a kernel after the GEMM does.

The L2 has partitions. Each line has a home in one of them; each partition is the home of an equal share of every panel.
A multiprocessor asks the partition on its own side. That partition fetches a line with another home from there and
keeps a copy. So a line that both sides read is in the cache twice, and so is a line that is written from the other
side. Each partition evicts the least recently used line.
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

    from cutegemm.analysis.cache.pace import Pace

_LEAST_TIME = 0.2  # lower limit of a random time, relative to the mean
_EVENTS = 1 << 16  # approximate number of simulated events: with more CTAs, K is cut into fewer pieces
_PIECES = (4, 64)
_SEED = 0
_MOST_KNOWN = 1 << 12  # grids whose result is cached
_known: dict[bytes, Moved] = {}


@dataclass(frozen=True)
class Work:
    """Describes which data each work tile of a grid reads and writes, as the input of a simulation of the L2 cache.

    A work tile is a tile of D, computed by a cluster, with all of K or a range of K. The first six fields are arrays
    with one entry for each work tile.

    clusters             index of the cluster that computes the work tile
    tiles                index of its tile of D
    k_first, k_last      start and end of its range of K, as shares of K between 0 and 1
    panels_a, panels_b   indices of the panels that it reads (blocks of rows of A, of columns of B); second axis: panels
    bytes_a, bytes_b     bytes of each panel
    bytes_d              bytes of D that a cluster writes for a tile
    bytes_partials       bytes of the accumulators that a cluster writes for a K split
    all_write            True if all K splits of a tile write their accumulators; False if all but the last to end do so
    last_adds            True if the K split that ends last reads the accumulators of the others and writes D; False if
                         a later kernel does
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
    """The result of a simulation of L2: bytes that a grid moves between DRAM, L2 partitions and multiprocessors.

    dram_bytes        bytes of A and B that come from DRAM
    far_bytes         bytes that pass from one partition of the L2 to another
    partials_bytes_   bytes of accumulators of K splits that were evicted from L2 and come from DRAM again
    """

    dram_bytes: float = 0.0
    far_bytes: float = 0.0
    partials_bytes_: float = 0.0


def play(work: Work, pace: Pace, l2_bytes: int, partitions: int, *, pieces: int | None = None) -> Moved:
    """Simulate the L2 cache while a grid runs; return the bytes that move from DRAM and between partitions of L2.

    Results of earlier calls with the same arguments are cached.

    work         data that the work tiles read and write
    pace         times of the clusters that run at once
    l2_bytes     size of the L2 cache
    partitions   number of its partitions; each multiprocessor belongs to one
    pieces       number of sections of K that are simulated one after the other; None: chosen by the size of the grid
    """
    if len(work.tiles) == 0:
        return Moved()
    most = int(np.bincount(work.tiles.astype(np.intp, copy=False)).max())  # K splits of a tile
    steps = pieces or max(_PIECES[0] * most, min(_PIECES[1], _EVENTS // len(work.panels_a)))
    key = _digest(*vars(work).values(), *vars(pace).values(), l2_bytes, partitions, steps, _SEED)
    moved = _known.get(key)
    if moved is None:
        if len(_known) == _MOST_KNOWN:
            _known.clear()
        moved = _known[key] = _played(work, pace, l2_bytes, partitions, steps)
    return moved


def _digest(*values: Any) -> bytes:
    """Return a hash of arrays and numbers, as a key for the cache of simulation results: equal values, equal hash."""
    digest = hashlib.sha256()
    for value in values:
        if isinstance(value, np.ndarray):
            digest.update(f"{value.dtype}{value.shape}".encode())
            digest.update(value.tobytes())
        else:
            digest.update(f"{value!r};".encode())
    return digest.digest()


def _played(work: Work, pace: Pace, l2_bytes: int, partitions: int, steps: int) -> Moved:
    """Simulate the L2 cache while a grid runs, without caching the result; return the bytes that it moves.

    An event is that a cluster reads one piece (a range of K) of its tile. Events are executed in the order of time.

    work         data that the work tiles read and write
    pace         times of the clusters that run at once
    l2_bytes     size of the L2 cache
    partitions   number of its partitions
    steps        number of pieces that K is cut into; the pieces of a tile are read one after another
    """
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
    due = [(0.0, place) for place in range(len(at))]  # a heap of (time, place); all start at 0
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
        before, lines = cache.dram_bytes, cache.lines[here]
        for panel in panels[tile]:
            first_key = (panel * steps + piece) * partitions
            for home in homes:
                key = first_key + home
                if key in lines:  # the common case of `cache.read`, without a call
                    lines.move_to_end(key)
                else:
                    cache.read(key, here, home, sizes[panel])
        at[place] = number, piece + 1
        waited = pace.wait * (cache.dram_bytes - before) / asked[tile]
        heapq.heapreplace(due, (now + times[place] * (noise[number] + waited), place))
    return Moved(cache.dram_bytes - ends.partials_bytes_, cache.far_bytes, ends.partials_bytes_)


def _by_cluster(clusters: np.ndarray) -> list[list[int]]:
    """Return, for each cluster that has any, the list of its work tiles' indices, in ascending order.

    clusters   cluster that takes each work tile
    """
    order = np.argsort(clusters, kind="stable")
    starts = np.flatnonzero(np.diff(clusters[order])) + 1
    return [own.tolist() for own in np.split(order, starts)]


class _Ends:
    """Simulates what CTAs do to the L2 cache at the end of a tile: move accumulators of K splits, and write D.

    work     data that the work tiles read and write
    splits   number of K splits of each tile of D
    cache    the simulated cache
    """

    def __init__(self, work: Work, splits: list[int], cache: _Cache) -> None:
        self.work, self.splits, self.cache = work, splits, cache
        self.ended = [0] * len(splits)
        self.homes = range(len(cache.lines))
        self.partials_bytes_ = 0.0

    def end(self, tile: int, here: int) -> None:
        """Simulate the end of a work tile: read and write accumulators of K splits and D in the simulated L2.

        tile   index of the tile of D
        here   index of the L2 partition that the multiprocessor belongs to
        """
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
        """Read or write accumulators of a K split in the simulated L2, with equal shares in all its partitions.

        touch     method of the simulated cache, `read` or `write`, that is called for each partition
        tile      index of the tile of D
        k_split   index of the K split
        here      L2 partition of the multiprocessor that reads or writes
        size      bytes
        """
        for home in self.homes:
            touch((tile, k_split, home), here, home, size / len(self.homes))


class _Cache:
    """Simulates an L2 cache whose partitions each evict the least recently used data, and counts the bytes fetched.

    partitions   number of partitions
    bytes_each   size of one partition
    """

    def __init__(self, partitions: int, bytes_each: float) -> None:
        self.lines: list[OrderedDict[object, float]] = [OrderedDict() for _ in range(partitions)]
        self.free = [bytes_each] * partitions
        self.dram_bytes = self.far_bytes = 0.0

    def read(self, key: object, here: int, home: int, size: float) -> None:
        """Simulate that a multiprocessor of the partition `here` reads data whose home is the partition `home`.

        key    name of the data, which is hashable
        here   L2 partition of the multiprocessor
        home   L2 partition that holds these addresses and fetches them from DRAM
        size   bytes
        """
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
        """Simulate that a multiprocessor of the partition `here` writes new data whose home is the partition `home`.

        key    name of the data, which is hashable
        here   L2 partition of the multiprocessor
        home   L2 partition that holds these addresses
        size   bytes
        """
        self._keep(key, home, size)
        if here != home:
            self._keep(key, here, size)

    def _keep(self, key: object, where: int, size: float) -> None:
        """Insert data into an L2 partition that does not have them, and evict the least recently used if it is full.

        key     name of the data
        where   index of the partition
        size    bytes
        """
        lines, free = self.lines[where], self.free[where] - size
        lines[key] = size
        while free < 0:
            free += lines.popitem(last=False)[1]
        self.free[where] = free
