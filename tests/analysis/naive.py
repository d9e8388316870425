"""Counts lane by lane, with sets, which the results of the vectorized code are compared with."""

from __future__ import annotations

from collections import OrderedDict


def phase_words(addresses, bits, lanes):
    """The words that some lanes ask for, by bank."""
    banks: dict[int, set[int]] = {}
    for lane in lanes:
        for part in range(max(1, bits // 32)):
            word = addresses[lane] // 4 + part
            banks.setdefault(word % 32, set()).add(word)
    return banks


def passes(addresses, bits, lanes):
    return max(len(words) for words in phase_words(addresses, bits, lanes).values())


def wavefronts(addresses, bits, op, pairs=(1, 2)):
    """(wavefronts, ideal) of one request."""
    per_phase = {8: 32, 16: 32, 32: 32, 64: 16, 128: 8}[bits]
    n = len(addresses)
    groups = [range(first, min(n, first + per_phase)) for first in range(0, n, per_phase)]
    plain = sum(passes(addresses, bits, group) for group in groups)
    if op == "load" and n == 32 and bits > 32:
        for mask in pairs:
            if all(addresses[lane] == addresses[lane ^ mask] for lane in range(32)):
                wide = [range(first, first + 2 * per_phase) for first in range(0, 32, 2 * per_phase)]
                return sum(passes(addresses, bits, group) for group in wide), len(wide)
    return plain, len(groups)


def sectors(addresses, bits):
    return len({byte // 32 for a in addresses for byte in range(a, a + bits // 8)})


def lru_dram_bytes(tiles, per_wave, panels_a, panels_b, steps, l2_bytes, tile_d):
    """Bytes of A and B from DRAM: an LRU cache of (panel, step) blocks, a wave at a time, all CTAs in step.

    panels_a, panels_b   bytes of each panel
    """
    cache: OrderedDict = OrderedDict()
    held = total = 0

    def touch(key, size, reads):
        nonlocal held, total
        if key in cache:
            cache.move_to_end(key)
            return
        total += size if reads else 0
        cache[key] = size
        held += size
        while held > l2_bytes:
            held -= cache.popitem(last=False)[1]

    for wave, first in enumerate(range(0, len(tiles), per_wave)):
        part = tiles[first : first + per_wave]
        rows, columns = sorted({m for m, _ in part}), sorted({n for _, n in part})
        for step in range(steps):
            for m in rows:
                touch(("a", m, step), panels_a[m] / steps, True)
            for n in columns:
                touch(("b", n, step), panels_b[n] / steps, True)
        for index in range(len(part)):
            touch(("d", wave, index), tile_d, False)
    return total


class Partitions:
    """An L2 cache as lists of (key, bytes), the one used last the longest ago first."""

    def __init__(self, count, capacity):
        self.held = [[] for _ in range(count)]
        self.capacity = capacity
        self.dram_bytes = self.far_bytes = 0.0

    def _uses(self, where, key):
        """Whether it was in the cache; then it is the last one now."""
        found = [entry for entry in self.held[where] if entry[0] == key]
        if found:
            self.held[where].remove(found[0])
            self.held[where].append(found[0])
        return bool(found)

    def write(self, key, here, home, size):
        for where in {here, home}:
            self._keep(key, where, size)

    def _keep(self, key, where, size):
        self.held[where] = [entry for entry in self.held[where] if entry[0] != key] + [(key, size)]
        while sum(entry[1] for entry in self.held[where]) > self.capacity:
            self.held[where].pop(0)

    def read(self, key, here, home, size):
        if self._uses(here, key):
            return
        if here != home:
            self.far_bytes += size
        if here == home or not self._uses(home, key):
            self.dram_bytes += size
            self._keep(key, home, size)
        if here != home:
            self._keep(key, here, size)
