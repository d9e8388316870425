"""Wavefronts of cp.async: each lane copies from global memory to shared memory, through L1 or past it.

Copies of 4 and 8 bytes go through L1 and occupy banks on both sides. Equal addresses are not merged. A write wavefront
goes out together with the read wavefront that brings its data, or later.

Copies of 16 bytes bypass L1. The *move* of a copy is the index of the 16-byte chunk that it reads in its line of 128
bytes, XOR the index of the chunk that it writes. Up to eight copies from one line to one line share a wavefront:

- If both chunks of a sector have the same move, all such copies with this move share one wavefront.
- Other copies are separate for even and for odd source chunks. Copies whose moves agree in their
  two low bits share a wavefront, unless two of them read, or write, the same sector.

So a swizzle adds no wavefronts, but a pad does.

Source: counters of an H200 (2026-11-20) for 45 patterns of the proof and 451 others, which isolate two lanes, chunks of
a line, strides, and random moves. The rule was derived from these patterns and is exact for all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cutegemm.machine.arch import SMEM_BANK_BYTES, SMEM_BANKS

if TYPE_CHECKING:
    from collections.abc import Sequence

_LINE = SMEM_BANKS * SMEM_BANK_BYTES
_CHUNK = 16
_CHUNKS = _LINE // _CHUNK  # chunks of a line; also the most lanes that share a wavefront


def copy_wavefronts(
    table: np.ndarray, sources: np.ndarray | None, bits: int, active: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the shared-memory wavefronts (cycles) of each cp.async request, and the fewest that its bytes allow.

    table     byte address in shared memory that each lane writes; a row for each request (warp instruction), a column
              for each lane
    sources   byte address in global memory that each lane reads, in an array of the same shape; None: contiguous
    bits      bits that a lane copies: 32, 64 or 128
    active    boolean array of the same shape: True for lanes that copy; None: all lanes
    returns   (wavefronts, fewest wavefronts), two arrays with an entry for each request

    Lanes that write 16 bytes each, contiguously and with gaps of 16 bytes:

    >>> lanes = np.arange(32)
    >>> [[int(count[0]) for count in copy_wavefronts((lanes * stride)[None], None, 128)] for stride in (16, 32)]
    [[4, 4], [32, 4]]
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
    """Return the wavefronts of 16-byte cp.async copies, which bypass L1, as an array with an entry for each request.

    table   byte address in shared memory that each lane writes; a row for each request (warp instruction), a column for
            each lane
    read    byte address in global memory that each lane reads, in an array of the same shape
    on      boolean array of the same shape: True for lanes that copy
    """
    requests, lanes = table.shape
    lane = np.arange(lanes)
    source, target = read // _CHUNK % _CHUNKS, table // _CHUNK % _CHUNKS
    move = source ^ target

    def alike(values: np.ndarray) -> np.ndarray:
        """Return which pairs of lanes of a request have equal values: an array with axes for requests, lanes and lanes.

        values   a value for each lane; a row for each request, a column for each lane
        """
        return np.asarray(values[:, :, None] == values[:, None, :])

    near = lane[:, None] // _CHUNKS == lane // _CHUNKS
    together = near & alike(read // _LINE) & alike(table // _LINE) & on[:, :, None] & on[:, None, :]
    before = lane < lane[:, None]
    again = (together & before & alike(source)).sum(axis=2)  # lower lanes that read the same chunk
    whole = (together & alike(source // 2) & ~alike(source) & alike(move) & alike(again)).any(axis=2)
    place = np.arange(requests)[:, None] * lanes + together.argmax(axis=2)  # lowest lane with the same two lines
    kind = np.where(whole, _CHUNKS + move, source % 2 * 4 + move % 4)
    key = place * 2 * _CHUNKS + kind
    keys = np.unique(key[on])
    passes = np.ones(len(keys), dtype=np.int64)
    for chunk in (source, target):
        uses, count = np.unique((key * _CHUNKS + chunk // 2)[on & ~whole], return_counts=True)
        np.maximum.at(passes, np.searchsorted(keys, uses // _CHUNKS), count)
    places = (keys // (2 * _CHUNKS * lanes)).astype(np.intp, copy=False)
    return np.bincount(places, passes, minlength=requests).astype(np.int64)


def _one_group(read: Sequence[int], write: Sequence[int], words: int) -> int:
    """Return the clock cycles that shared memory needs for one group of lanes whose copies go through L1.

    Reads are done in passes that access each bank at most once, and so are writes. A pass of writes is done with the
    last of its reads, or in the cycle after the pass of writes before it.

    read, write   byte address that each lane reads and writes
    words         4-byte words that a lane copies
    """
    read_pass, write_pass = _passes(read, words), _passes(write, words)
    cycle = -1
    for number in range(max(write_pass) + 1):
        arrives = max(r for r, w in zip(read_pass, write_pass, strict=True) if w == number)
        cycle = max(arrives, cycle + 1)
    return max(max(read_pass), cycle) + 1


def _passes(addresses: Sequence[int], words: int) -> list[int]:
    """Assign lanes to passes so that no two lanes of a pass use one bank; return the index of each lane's pass.

    In the order of the lanes, each gets the first pass in which all banks of its words are free.

    addresses   byte address of each lane
    words       4-byte words that a lane accesses
    """
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
