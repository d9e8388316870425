"""Wavefronts of cp.async: every lane is a copy of its own, from a place in L1, or past it, to shared memory.

Copies of 4 and 8 bytes go through the banks on both sides: equal addresses are not merged, and a write goes out with
the read wavefront that brings its data, or after it.

Copies of 16 bytes pass L1 by. Those of eight lanes go out together as far as they go from one line of 128 bytes to
one line and are moved alike: the chunk of 16 bytes that is read, XOR the chunk that is written, says how.

- Whole sectors, both chunks of which are moved alike: all that are moved alike.
- Other chunks, the even ones of a line and the odd ones by themselves: all whose moves agree in their two low bits,
  as far as no two read, or write, the same sector.

So a swizzle costs nothing, and a pad does. Source: counters of an H200 (2026-11-20) for the 45 patterns of the proof
and 451 others, which isolate two lanes, parts of a line, strides, and random moves. The rule was formed on them, and
is exact for all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cutegemm.machine.arch import SMEM_BANK_BYTES, SMEM_BANKS

if TYPE_CHECKING:
    from collections.abc import Sequence

_LINE = SMEM_BANKS * SMEM_BANK_BYTES
_CHUNK = 16
_CHUNKS = _LINE // _CHUNK  # of a line, and lanes that go together at most


def copy_wavefronts(
    table: np.ndarray, sources: np.ndarray | None, bits: int, active: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """(wavefronts, at least) of each request.

    table     (requests, lanes): where each lane writes, in bytes
    sources   where it reads; in a row where left out
    active    which lanes copy; all where left out
    """
    read = np.arange(table.shape[1])[None, :] * (bits // 8) + table * 0 if sources is None else sources
    on = np.ones(table.shape, bool) if active is None else active
    lanes = table.shape[1]
    group = 8 * _LINE // max(bits, 32) if bits != 8 * _CHUNK else _CHUNKS
    starts = np.arange(0, lanes, group)
    ideal = np.add.reduceat(on.astype(np.int64), starts, axis=1) > 0
    if bits == 8 * _CHUNK:
        return _past_l1(table, read, on), ideal.sum(axis=1)
    patterns, which = np.unique(np.concatenate([table % _LINE, read % _LINE, on], axis=1), axis=0, return_inverse=True)
    words, costs = max(1, bits // 32), []
    for pattern in patterns.tolist():
        writes, reads, copies = (pattern[lanes * part : lanes * (part + 1)] for part in range(3))
        cost = 0
        for first in starts.tolist():
            some = [lane for lane in range(first, min(lanes, first + group)) if copies[lane]]
            if some:
                cost += _one_group([reads[lane] for lane in some], [writes[lane] for lane in some], words)
        costs.append(cost)
    return np.array(costs, dtype=np.int64)[which.reshape(-1)], ideal.sum(axis=1)


def _past_l1(table: np.ndarray, read: np.ndarray, on: np.ndarray) -> np.ndarray:
    """Copies of 16 bytes."""
    requests, lanes = table.shape
    lane = np.arange(lanes)
    source, target = read // _CHUNK % _CHUNKS, table // _CHUNK % _CHUNKS
    turned = source ^ target

    def alike(values: np.ndarray) -> np.ndarray:
        return np.asarray(values[:, :, None] == values[:, None, :])

    near = lane[:, None] // _CHUNKS == lane // _CHUNKS
    together = near & alike(read // _LINE) & alike(table // _LINE) & on[:, :, None] & on[:, None, :]
    before = lane < lane[:, None]
    again = (together & before & alike(source)).sum(axis=2)  # the lanes before that read the same chunk
    whole = (together & alike(source // 2) & ~alike(source) & alike(turned) & alike(again)).any(axis=2)
    place = np.arange(requests)[:, None] * lanes + together.argmax(axis=2)  # the first lane of the same lines
    kind = np.where(whole, _CHUNKS + turned, source % 2 * 4 + turned % 4)
    key = place * 2 * _CHUNKS + kind
    keys = np.unique(key[on])
    passes = np.ones(len(keys), dtype=np.int64)
    for chunk in (source, target):
        uses, count = np.unique((key * _CHUNKS + chunk // 2)[on & ~whole], return_counts=True)
        np.maximum.at(passes, np.searchsorted(keys, uses // _CHUNKS), count)
    places = (keys // (2 * _CHUNKS * lanes)).astype(np.intp, copy=False)
    return np.bincount(places, passes, minlength=requests).astype(np.int64)


def _one_group(read: Sequence[int], write: Sequence[int], words: int) -> int:
    """Cycles of one group of lanes: reads in passes without two lanes in a bank; each write pass goes out
    with the last of its reads, or in the cycle after the write pass before it."""
    read_pass, write_pass = _passes(read, words), _passes(write, words)
    cycle = -1
    for number in range(max(write_pass) + 1):
        arrives = max(r for r, w in zip(read_pass, write_pass, strict=True) if w == number)
        cycle = max(arrives, cycle + 1)
    return max(max(read_pass), cycle) + 1


def _passes(addresses: Sequence[int], words: int) -> list[int]:
    """The pass of each lane: the first one after which all of its banks are free."""
    free = [0] * SMEM_BANKS
    out = []
    for address in addresses:
        first = address // SMEM_BANK_BYTES
        banks = [(first + w) % SMEM_BANKS for w in range(words)]
        number = max(free[b] for b in banks)
        for b in banks:
            free[b] = number + 1
        out.append(number)
    return out
