"""Wavefronts of shared-memory accesses: how often the 32 banks must be visited for one instruction of a warp.

The model. A wavefront takes one 4-byte word from each of the 32 banks. Lanes of one instruction are served in
phases that ask for at most 128 bytes: all 32 lanes where each asks for 32 bits or less, half-warps for 64
bits, quarter-warps for 128 bits. `ldmatrix` and `stmatrix` are served a matrix at a time, 8 rows of 16 bytes:
the quarter-warps of a 128-bit access. In a phase, lanes that ask for the same word cost nothing extra; a bank
that is asked for w different words takes w wavefronts. The phase takes as many as its busiest bank.

Loads of 64 and 128 bits may take half as many phases: where lanes i and i ^ 1 of every pair ask for the same
address, or lanes i and i ^ 2, two phases are served as one. Stores never are.

cp.async is different: see `copies`.

Sources: CUDA C++ Programming Guide, "Shared Memory" of compute capability 5.x and later (banks, broadcast);
NVIDIA developer forum, topic 77228 (128-bit loads: 4 requests, 2 where pairs are uniform); public counter
studies on sm_120 (stores and cp.async never merge, read wavefronts of cp.async). `PLAIN` leaves the merging
out. docs/measured/counters.md holds the default rules against the counters of an H200.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cutegemm.analysis.copies import copy_wavefronts
from cutegemm.errors import LayoutError
from cutegemm.layout import ComposedLayout, Layout
from cutegemm.machine.arch import SMEM_BANK_BYTES, SMEM_BANKS, WARP_THREADS

PHASE_BITS = 8 * SMEM_BANKS * SMEM_BANK_BYTES  # what one wavefront delivers at most
ACCESS_BITS = (8, 16, 32, 64, 128)
OPS = ("load", "store", "ldmatrix", "stmatrix", "cp.async", "st.async", "wgmma", "tma")
_MATRIX_OPS = ("ldmatrix", "stmatrix", "wgmma")


@dataclass(frozen=True)
class Rules:
    """What the hardware is taken to do beyond the plain phases.

    merges_pairs   two phases of a load are one where lanes i and i ^ m ask for the same address, for an m of
                   these, in every pair of lanes; empty for never
    """

    name: str
    merges_pairs: tuple[int, ...]
    source: str


PLAIN = Rules("plain", (), "CUDA C++ Programming Guide, compute capability 5.x and later, shared memory")
UNIFORM_PAIRS = Rules("uniform pairs", (1, 2), "NVIDIA developer forum, topic 77228; counters of an H200")
DEFAULT_RULES = UNIFORM_PAIRS


@dataclass(frozen=True)
class Collision:
    """The worst of an access: lanes of one warp that ask one bank for different words in one phase.

    warp, request   of the access: which warp, and which of its instructions
    lanes           a lane for each word that is asked for
    bank            the busiest
    words           byte addresses of these words
    """

    warp: int
    request: int
    lanes: tuple[int, ...]
    bank: int
    words: tuple[int, ...]

    @property
    def ways(self) -> int:
        """How many words the bank is asked for."""
        return len(self.words)

    def __str__(self) -> str:
        lanes = ", ".join(str(lane) for lane in self.lanes[:8]) + (", ..." if len(self.lanes) > 8 else "")
        return f"{self.ways}-way: lanes {lanes} of warp {self.warp} in bank {self.bank}"


@dataclass(frozen=True)
class Wavefronts:
    """What an access costs.

    requests     instructions, summed over warps
    wavefronts   that they take
    ideal        that they would take without conflicts: the phases
    worst        the worst collision, or None where there is none
    """

    requests: int
    wavefronts: int
    ideal: int
    worst: Collision | None = None

    @property
    def conflicts(self) -> int:
        """Wavefronts beyond the ideal."""
        return self.wavefronts - self.ideal

    @property
    def ways(self) -> float:
        """Wavefronts over the ideal: 1 without conflicts, 8 where each phase takes eight.

        >>> Wavefronts(4, 32, 16).ways
        2.0
        """
        return self.wavefronts / self.ideal if self.ideal else 1.0


def wavefronts(
    addresses: Any,
    bits: int,
    *,
    op: str = "load",
    sources: Any = None,
    rules: Rules = DEFAULT_RULES,
    active: Any = None,
) -> tuple[np.ndarray, np.ndarray]:
    """(wavefronts, ideal) of each request.

    addresses   bytes: (requests, lanes), at most 32 lanes; the first ones of a warp where there are fewer
    bits        of one lane
    op          load, store, ldmatrix, stmatrix (with 128 bits: the row of a lane), cp.async, wgmma; st.async: a store,
                in the shared memory of the CTA that it goes to
    sources     cp.async: the addresses in global memory that the lanes read from
    active      bool (requests, lanes): lanes whose predicate is on; all where left out
    raises      LayoutError for an access that there is none of, or addresses that are not aligned to it

    >>> lanes = np.arange(32)
    >>> [int(wavefronts([lanes * stride * 4], 32)[0][0]) for stride in (0, 1, 2, 32, 33)]
    [1, 1, 2, 32, 1]
    >>> wavefronts([lanes * 16], 128)[0].tolist()
    [4]
    >>> wavefronts([lanes * 16], 128, active=[lanes < 10])[0].tolist()
    [2]
    """
    table = _checked(addresses, bits, op)
    lanes, on = table.shape[1], None if active is None else np.asarray(active, dtype=bool)
    if op == "cp.async":
        return copy_wavefronts(table, None if sources is None else np.asarray(sources), bits, on)
    if op == "tma":  # whole rows, in an order of its own: it never conflicts
        per_request = -(-lanes * bits // PHASE_BITS)
        return np.full(len(table), per_request), np.full(len(table), per_request)
    phase = _phases(lanes, bits)
    busiest = _busiest_bank(table, bits, phase, on)
    total, ideal = busiest.sum(axis=1), (busiest > 0).sum(axis=1)
    uniform = _is_merged(table, bits, op, rules, on)
    if uniform.any():
        merged = _busiest_bank(table[uniform], bits, phase // 2, None if on is None else on[uniform])
        total[uniform], ideal[uniform] = merged.sum(axis=1), (merged > 0).sum(axis=1)
    return total, ideal


def _is_merged(table: np.ndarray, bits: int, op: str, rules: Rules, active: np.ndarray | None = None) -> np.ndarray:
    """Of which requests two phases are served as one."""
    uniform = np.zeros(len(table), bool)
    if op == "load" and bits > 32 and table.shape[1] == WARP_THREADS:
        pairs = np.arange(WARP_THREADS)
        for mask in rules.merges_pairs:
            alike = table == table[:, pairs ^ mask]
            if active is not None:
                alike |= ~active | ~active[:, pairs ^ mask]
            uniform |= alike.all(axis=1)
    return uniform


def _checked(addresses: Any, bits: int, op: str) -> np.ndarray:
    table = np.asarray(addresses, dtype=np.int64)
    rules = []
    if op not in OPS:
        rules.append(f"the operation {op!r}; {', '.join(OPS)} are there")
    if bits not in ACCESS_BITS:
        rules.append(f"{bits} bits a lane; one of {', '.join(map(str, ACCESS_BITS))} is expected")
    elif op in _MATRIX_OPS and bits != 128:
        rules.append(f"{bits} bits a lane; {op} takes a row of 128")
    if table.ndim != 2 or not 1 <= table.shape[1] <= WARP_THREADS:
        rules.append(f"addresses of shape {table.shape}; (requests, lanes) with at most 32 lanes is expected")
    if not rules and table.size:
        size = bits // 8
        wrong = np.argwhere((table % size != 0) | (table < 0))
        if len(wrong):
            request, lane = (int(i) for i in wrong[0])
            rules.append(f"lane {lane} of request {request} at byte {table[request, lane]}, no multiple of {size}")
    if rules:
        raise LayoutError(f"wavefronts: {'; '.join(rules)}.")
    return table


def _phases(lanes: int, bits: int) -> np.ndarray:
    """The phase of each lane."""
    return np.arange(lanes) * max(bits, 32) // PHASE_BITS


def _words(table: np.ndarray, bits: int) -> np.ndarray:
    """The words of each lane: (requests, lanes, words of a lane)."""
    count = max(1, bits // 32)
    return (table // SMEM_BANK_BYTES)[:, :, None] + np.arange(count)


def _busiest_bank(table: np.ndarray, bits: int, phase: np.ndarray, active: np.ndarray | None = None) -> np.ndarray:
    """(requests, phases): the different words that the busiest bank is asked for by active lanes."""
    requests, phases = len(table), int(phase[-1]) + 1
    words = _words(table, bits)
    row = np.arange(requests)[:, None] * phases + phase[None, :]
    span = int(words.max(initial=0)) + 1
    asked = row[:, :, None] * span + words
    distinct = np.unique((asked if active is None else asked[active]).reshape(-1))
    row_of, word_of = distinct // span, distinct % span
    per_bank = np.bincount(
        (row_of * SMEM_BANKS + word_of % SMEM_BANKS).astype(np.intp, copy=False),
        minlength=requests * phases * SMEM_BANKS,
    )
    return per_bank.reshape(requests, phases, SMEM_BANKS).max(axis=2)


def cost(
    addresses: np.ndarray,
    bits: int,
    *,
    op: str = "load",
    sources: Any = None,
    rules: Rules = DEFAULT_RULES,
    active: Any = None,
) -> Wavefronts:
    """What the requests of several warps cost together, and the worst collision among them.

    addresses   bytes: (warps, requests of a warp, lanes); sources, active: see `wavefronts`, likewise
    """
    requests, lanes = addresses.shape[1:]
    table = addresses.reshape(-1, lanes)
    on = None if active is None else np.asarray(active).reshape(-1, lanes)
    if not len(table):
        return Wavefronts(0, 0, 0)
    flat_sources = None if sources is None else np.asarray(sources).reshape(-1, lanes)
    total, ideal = wavefronts(table, bits, op=op, sources=flat_sources, rules=rules, active=on)
    worst = None
    if (total > ideal).any():
        row = int(np.argmax(total - ideal))
        worst = _collision(table[row], bits, row // requests, row % requests)
    executed = len(table) if on is None else int(on.any(axis=1).sum())
    return Wavefronts(executed, int(total.sum()), int(ideal.sum()), worst)


Phase = dict[int, dict[int, list[int]]]  # bank -> byte address of a word -> the lanes that ask for it


def served(addresses: np.ndarray, bits: int, *, op: str = "load", rules: Rules = DEFAULT_RULES) -> list[Phase]:
    """The phases of one request: who asks which bank for what. A bank takes a wavefront for each of its words.

    Of cp.async it is what is written: its source may collide too, see `copies`.

    addresses   bytes, of each lane
    bits        of one lane

    >>> phases = served(np.arange(32) * 8, 32)
    >>> len(phases), phases[0][0]
    (1, {0: [0], 128: [16]})
    """
    phase = _phases(len(addresses), bits)
    if _is_merged(addresses[None], bits, op, rules)[0]:
        phase = phase // 2
    out: list[Phase] = [{} for _ in range(int(phase[-1]) + 1)]
    for lane, words in enumerate(_words(addresses[None], bits)[0].tolist()):
        for word in words:
            asked = out[int(phase[lane])].setdefault(word % SMEM_BANKS, {})
            asked.setdefault(word * SMEM_BANK_BYTES, []).append(lane)
    return out


def _collision(addresses: np.ndarray, bits: int, warp: int, request: int) -> Collision | None:
    phases = served(addresses, bits, rules=PLAIN)
    busiest = max(phases, key=lambda phase: max(map(len, phase.values())))
    bank, found = max(busiest.items(), key=lambda item: len(item[1]))
    if len(found) < 2:
        return None  # cp.async alone: the source is what collides
    return Collision(warp, request, tuple([lanes[0] for lanes in found.values()]), bank, tuple(found))


def bank_conflicts(
    layout: Layout | ComposedLayout,
    tv: Layout | np.ndarray,
    *,
    element_bits: int,
    access_bits: int | None = None,
    op: str = "load",
    rules: Rules = DEFAULT_RULES,
) -> Wavefronts:
    """What it costs that threads read or write a tile in shared memory.

    layout         of the tile, in elements: index in the tile -> offset
    tv             (thread, value) -> colexicographic index in the tile, or the table of it, (threads, values)
    element_bits   of an element
    access_bits    of one instruction of a lane; one element where left out
    op             see `wavefronts`
    raises         LayoutError where a lane's elements are no aligned vectors of that width, or lie outside of
                   the tile

    >>> transposed = bank_conflicts(Layout((32, 32)), Layout((32, 32), (32, 1)), element_bits=32)
    >>> transposed.wavefronts, transposed.ideal, str(transposed.worst)
    (1024, 32, '32-way: lanes 0, 1, 2, 3, 4, 5, 6, 7, ... of warp 0 in bank 0')
    >>> bank_conflicts(Layout((32, 32), (1, 33)), Layout((32, 32), (32, 1)), element_bits=32).conflicts
    0
    """
    elements = tv if isinstance(tv, np.ndarray) else tv.offsets().reshape(tv[0].size(), -1, order="F")
    bits = element_bits if access_bits is None else access_bits
    table = layout.offsets()
    if table.ndim != 1:
        raise LayoutError(f"bank_conflicts: {layout} gives coordinates; a layout of offsets is expected.")
    if elements.ndim != 2 or not elements.size:
        raise LayoutError(
            f"bank_conflicts: a table of shape {elements.shape}; (threads, values) is expected, one or more of each."
        )
    if not 0 <= elements.min() <= elements.max() < len(table):
        raise LayoutError(
            f"bank_conflicts: the elements reach from {elements.min()} to {elements.max()}, the tile {layout} has "
            f"{len(table)}."
        )
    lanes = min(WARP_THREADS, elements.shape[0])
    if elements.shape[0] % lanes:
        raise LayoutError(f"bank_conflicts: {elements.shape[0]} threads are no whole warps.")
    grouped = elements.reshape(-1, lanes, elements.shape[1])
    return cost(byte_addresses(table, grouped, element_bits, bits), bits, op=op, rules=rules)


def byte_addresses(table: np.ndarray, elements: np.ndarray, element_bits: int, bits: int) -> np.ndarray:
    """Addresses of the vectors of `bits` that lanes access one after the other.

    table      index in the tile -> offset in elements
    elements   (warps, lanes, values): the index of each value of each lane
    returns    bytes: (warps, values * element_bits / bits, lanes)
    raises     LayoutError where the elements of a vector are no neighbours
    """
    if bits < element_bits or bits % element_bits:
        raise LayoutError(f"an access of {bits} bits holds no whole elements of {element_bits} bits.")
    count = bits // element_bits
    if elements.shape[2] % count:
        raise LayoutError(
            f"{elements.shape[2]} values of a lane are no whole accesses of {count} elements, {bits} bits."
        )
    offsets = table[elements].reshape(*elements.shape[:2], -1, count)
    if not (offsets - offsets[..., :1] == np.arange(count)).all():
        raise LayoutError(f"the {count} elements of an access of {bits} bits are no neighbours in this layout.")
    return np.moveaxis(offsets[..., 0] * element_bits // 8, 1, 2)


def widest_access(table: np.ndarray, elements: np.ndarray, element_bits: int, most: int = 128) -> int:
    """Bits of the widest aligned vector that each run of a lane's values makes in this layout: what
    `autovec_copy` turns the copy into.

    >>> lanes = np.arange(64).reshape(1, 8, 8)
    >>> widest_access(np.arange(64), lanes, 32), widest_access(np.arange(64) * 2, lanes, 32)
    (128, 32)
    """
    values = table[elements]
    bits = element_bits
    while bits < most:
        count = 2 * bits // element_bits
        if values.shape[2] % count:
            break
        runs = values.reshape(*values.shape[:2], -1, count)
        if (runs - runs[..., :1] != np.arange(count)).any() or (runs[..., 0] % count).any():
            break
        bits *= 2
    return bits
