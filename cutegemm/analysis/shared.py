"""Wavefronts of shared-memory accesses: how often the 32 banks are accessed for one warp instruction.

The model. A wavefront reads or writes one 4-byte word in each of the 32 banks. The lanes of an instruction are served
in phases that access at most 128 bytes: all 32 lanes if each accesses up to 32 bits, half-warps for 64 bits,
quarter-warps for 128 bits. `ldmatrix` and `stmatrix` are served one matrix at a time, 8 rows of 16 bytes, like the
quarter-warps of a 128-bit access. Within a phase, lanes that access the same word cost nothing extra. A bank takes
one wavefront for each different word that is accessed in it, and a phase takes as many wavefronts as its busiest bank.

Loads of 64 and 128 bits may take half as many phases: if lanes i and i ^ 1 of every pair access the same address, or
lanes i and i ^ 2, two phases are merged. Phases of stores are never merged.

cp.async follows other rules: see `copies`.

Sources: CUDA C++ Programming Guide, "Shared Memory" of compute capability 5.x and later (banks, broadcast); NVIDIA
developer forum, topic 77228 (128-bit loads: 4 requests, 2 if pairs are uniform); public counter studies on sm_120
(stores and cp.async never merge, read wavefronts of cp.async). `PLAIN` never merges phases. docs/measured/counters.md
compares the default rules with the counters of an H200.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cutegemm.analysis.copies import copy_wavefronts
from cutegemm.errors import LayoutError
from cutegemm.layout import ComposedLayout, Layout
from cutegemm.machine.arch import SMEM_BANK_BYTES, SMEM_BANKS, WARP_THREADS

PHASE_BITS = 8 * SMEM_BANKS * SMEM_BANK_BYTES  # most bits of one wavefront
ACCESS_BITS = (8, 16, 32, 64, 128)
OPS = ("load", "store", "ldmatrix", "stmatrix", "cp.async", "st.async", "wgmma", "tma")
_MATRIX_OPS = ("ldmatrix", "stmatrix", "wgmma")
_MATRIX_ROWS, _ROW_BITS = 8, 128  # rows of a matrix of ldmatrix and stmatrix: each lane gives the address of one


@dataclass(frozen=True)
class Rules:
    """A model of how shared memory serves wide loads, to predict wavefronts.

    A 64-bit or 128-bit access is served in phases: groups of lanes that access at most 128 bytes together. The model
    says when two phases of a load are merged into one wavefront.

    name           name of the model
    merges_pairs   masks such as (1, 2): two phases are merged if, for one mask m, each lane i accesses the same address
                   as lane i ^ m. Empty: phases are never merged
    source         source of the model
    """

    name: str
    merges_pairs: tuple[int, ...]
    source: str


PLAIN = Rules("plain", (), "CUDA C++ Programming Guide, compute capability 5.x and later, shared memory")
UNIFORM_PAIRS = Rules("uniform pairs", (1, 2), "NVIDIA developer forum, topic 77228; counters of an H200")
DEFAULT_RULES = UNIFORM_PAIRS


@dataclass(frozen=True)
class Collision:
    """Describes the worst bank conflict of an access: which lanes of a warp access different words of one bank.

    warp      index of the warp
    request   index of the warp's instruction
    lanes     one lane for each word
    bank      the busiest bank
    words     byte addresses of the words
    """

    warp: int
    request: int
    lanes: tuple[int, ...]
    bank: int
    words: tuple[int, ...]

    @property
    def ways(self) -> int:
        """Number of different words that one bank must deliver at once: 2 for a two-way bank conflict."""
        return len(self.words)

    def __str__(self) -> str:
        lanes = ", ".join(str(lane) for lane in self.lanes[:8]) + (", ..." if len(self.lanes) > 8 else "")
        return f"{self.ways}-way: lanes {lanes} of warp {self.warp} in bank {self.bank}"


@dataclass(frozen=True)
class Wavefronts:
    """Counts what shared-memory instructions cost: requests, wavefronts, and their worst bank conflict.

    requests     warp instructions
    wavefronts   wavefronts of these instructions: the cycles that shared memory needs for them
    ideal        wavefronts without bank conflicts: one per group of lanes that accesses 128 bytes
    worst        the worst bank conflict; None without conflicts
    form         the instruction that was counted, such as "ldmatrix.x4" or "128-bit load"; "" if there are several
    """

    requests: int
    wavefronts: int
    ideal: int
    worst: Collision | None = None
    form: str = ""

    @property
    def conflicts(self) -> int:
        """Number of wavefronts that bank conflicts add to these accesses: those beyond the ideal."""
        return self.wavefronts - self.ideal

    @property
    def ways(self) -> float:
        """Wavefronts of these accesses divided by the ideal: 1 without bank conflicts, 8 for eight-way conflicts.

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
    """Return the wavefronts of each request (warp instruction) in shared memory, and the ideal without bank conflicts.

    addresses   byte address of each lane; a row for each request (warp instruction), a column for each lane. There are
                at most 32 lanes; fewer are the first lanes of a warp
    bits        bits that a lane accesses
    op          load, store, ldmatrix, stmatrix or wgmma (128 bits: a lane has the address of a row), cp.async or tma;
                st.async: a store, in the shared memory of the CTA that receives it
    sources     cp.async: byte addresses in global memory that the lanes read; None: contiguous
    rules       model of shared memory: when two phases (groups of lanes) are merged
    active      boolean array of the same shape: True for lanes that execute the access; None: all lanes
    returns     (wavefronts, ideal), two arrays with an entry for each request
    raises      LayoutError for an unknown operation or width, or if an address is not aligned to the width

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
    if op == "tma":  # TMA accesses whole rows and has no bank conflicts
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
    """Return for each warp instruction (request) whether two of its phases are merged into one wavefront.

    A phase is a group of lanes that shared memory serves together. The result is a boolean array, one entry a request.

    table    byte address of each lane; a row for each request (warp instruction), a column for each lane
    bits     bits that a lane accesses
    op       operation, such as "load" or "ldmatrix"
    rules    model of shared memory: when two phases are merged
    active   boolean array of the same shape: True for lanes that execute the access; None: all lanes
    """
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
    """Return byte addresses as an integer array, after checking operation, width and alignment.

    addresses   byte address of each lane; a row for each request (warp instruction), a column for each lane
    bits        bits that a lane accesses
    op          operation, such as "load" or "ldmatrix"
    raises      LayoutError for an unknown operation or width, or if an address is not aligned to the width
    """
    table = np.asarray(addresses, dtype=np.int64)
    rules = []
    if op not in OPS:
        rules.append(f"op = {op!r} is not one of {', '.join(OPS)}")
    if bits not in ACCESS_BITS:
        rules.append(f"bits = {bits} is not one of {', '.join(map(str, ACCESS_BITS))}")
    elif op in _MATRIX_OPS and bits != 128:
        rules.append(f"bits = {bits}; a lane of {op} accesses a row of 128 bits")
    if table.ndim != 2 or not 1 <= table.shape[1] <= WARP_THREADS:
        rules.append(f"addresses have shape {table.shape} instead of (requests, lanes) with 1 to 32 lanes")
    if not rules and table.size:
        size = bits // 8
        wrong = np.argwhere((table % size != 0) | (table < 0))
        if len(wrong):
            request, lane = (int(i) for i in wrong[0])
            rules.append(
                f"lane {lane} of request {request} accesses byte {table[request, lane]}, which is not a multiple of "
                f"{size}"
            )
    if rules:
        raise LayoutError(f"wavefronts: {'; '.join(rules)}.")
    return table


def _phases(lanes: int, bits: int) -> np.ndarray:
    """Return the phase (group of lanes that together access at most 128 bytes) of each lane, as an array of indices.

    lanes   number of lanes of a request
    bits    bits that a lane accesses
    """
    return np.arange(lanes) * max(bits, 32) // PHASE_BITS


def _words(table: np.ndarray, bits: int) -> np.ndarray:
    """Return the indices of the 4-byte words that each lane accesses.

    The result is an integer array with axes for requests (warp instructions), lanes, and words of a lane.

    table   byte address of each lane; a row for each request (warp instruction), a column for each lane
    bits    bits that a lane accesses
    """
    count = max(1, bits // 32)
    return (table // SMEM_BANK_BYTES)[:, :, None] + np.arange(count)


def _busiest_bank(table: np.ndarray, bits: int, phase: np.ndarray, active: np.ndarray | None = None) -> np.ndarray:
    """Return how many different words lanes access in the busiest bank, for each phase of each warp instruction.

    The result is an integer array with an axis for requests (warp instructions) and one for phases (groups of lanes
    that are served together).

    table    byte address of each lane; a row for each request (warp instruction), a column for each lane
    bits     bits that a lane accesses
    phase    index of the phase (group of lanes that are served together) of each lane
    active   boolean array of the same shape: True for lanes that execute the access; None: all lanes
    """
    requests, phases = len(table), int(phase[-1]) + 1
    words = _words(table, bits)
    row = np.arange(requests)[:, None] * phases + phase[None, :]
    span = int(words.max(initial=0)) + 1
    asked = row[:, :, None] * span + words
    distinct = np.unique((asked if active is None else asked[active]).reshape(-1))
    rows, banks = distinct // span, distinct % span % SMEM_BANKS
    per_bank = np.bincount(
        (rows * SMEM_BANKS + banks).astype(np.intp, copy=False),
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
    """Return the cost of the requests of several warps together, with the worst bank conflict among them.

    addresses   array of byte addresses with axes for warps, requests (instructions) of a warp, and lanes
    bits        bits that a lane accesses
    op          operation, such as "load", "store" or "ldmatrix"
    sources     for cp.async, byte addresses in global memory, in an array of the same shape; None: contiguous
    rules       model of shared memory: when two phases (groups of lanes) are merged
    active      boolean array of the same shape: True for lanes that execute the access; None: all lanes
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


Phase = dict[int, dict[int, list[int]]]  # bank -> byte address of a word -> lanes that access it


def served(addresses: np.ndarray, bits: int, *, op: str = "load", rules: Rules = DEFAULT_RULES) -> list[Phase]:
    """Return the phases (groups of lanes served together) of a request, each as a dict: bank -> word -> lanes.

    A bank takes one wavefront for each of its words in a phase. For cp.async these are the words that are written;
    the words that are read from global memory may conflict as well.

    addresses   byte address of each lane
    bits        bits that a lane accesses
    op          operation, such as "load" or "ldmatrix"
    rules       model of shared memory: when two phases are merged

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
    """Return the worst bank conflict of one request of a warp; None if only the source of a cp.async has conflicts.

    addresses   byte address of each lane
    bits        bits that a lane accesses
    warp        index of the warp, for the result
    request     index of the request, for the result
    """
    phases = served(addresses, bits, rules=PLAIN)
    busiest = max(phases, key=lambda phase: max(map(len, phase.values())))
    bank, words = max(busiest.items(), key=lambda item: len(item[1]))
    if len(words) < 2:
        return None  # only cp.async: its source conflicts
    return Collision(warp, request, tuple([lanes[0] for lanes in words.values()]), bank, tuple(words))


def bank_conflicts(
    layout: Layout | ComposedLayout,
    tv: Layout | np.ndarray,
    *,
    element_bits: int,
    access_bits: int | None = None,
    op: str = "load",
    rules: Rules = DEFAULT_RULES,
) -> Wavefronts:
    """Return requests, wavefronts and bank conflicts of threads that read or write a tile in shared memory.

    layout         layout of the tile: index in the tile -> offset in elements
    tv             thread-value layout: (thread, value) -> colexicographic index in the tile; or an array of these
                   indices with a row for each thread and a column for each value of a thread
    element_bits   bits of an element
    access_bits    bits that a lane accesses per instruction. None: one element, or the widest form of ldmatrix and
                   stmatrix
    op             operation, such as "load", "store" or "ldmatrix"
    rules          model of shared memory: when two phases (groups of lanes) are merged
    raises         LayoutError if a lane's elements are not aligned vectors of that width, or lie outside of the tile

    >>> transposed = bank_conflicts(Layout((32, 32)), Layout((32, 32), (32, 1)), element_bits=32)
    >>> transposed.wavefronts, transposed.ideal, str(transposed.worst)
    (1024, 32, '32-way: lanes 0, 1, 2, 3, 4, 5, 6, 7, ... of warp 0 in bank 0')
    >>> bank_conflicts(Layout((32, 32), (1, 33)), Layout((32, 32), (32, 1)), element_bits=32).conflicts
    0
    """
    elements = tv if isinstance(tv, np.ndarray) else tv.offsets().reshape(tv[0].size(), -1, order="F")
    table = layout.offsets()
    if table.ndim != 1:
        raise LayoutError(f"bank_conflicts: {layout} returns coordinates. Pass a layout that returns offsets.")
    if elements.ndim != 2 or not elements.size:
        raise LayoutError(
            f"bank_conflicts: tv has shape {elements.shape}. Pass (threads, values), with at least one of each."
        )
    if not 0 <= elements.min() <= elements.max() < len(table):
        raise LayoutError(
            f"bank_conflicts: tv accesses elements {elements.min()} to {elements.max()}; the tile {layout} has "
            f"{len(table)} elements."
        )
    lanes = min(WARP_THREADS, elements.shape[0])
    if elements.shape[0] % lanes:
        raise LayoutError(f"bank_conflicts: {elements.shape[0]} threads are not whole warps of {WARP_THREADS}.")
    grouped = elements.reshape(-1, lanes, elements.shape[1])
    bits = element_bits if access_bits is None and op not in _MATRIX_OPS else access_bits
    return tile_cost(table, grouped, element_bits, op=op, access_bits=bits, rules=rules)


def tile_cost(
    table: np.ndarray,
    elements: np.ndarray,
    element_bits: int,
    *,
    op: str = "load",
    access_bits: int | None = None,
    rules: Rules = DEFAULT_RULES,
) -> Wavefronts:
    """Return requests, wavefronts and bank conflicts of lanes that access given elements of a tile once.

    For ldmatrix and stmatrix, the elements of a lane are the rows of 128 bits whose addresses it supplies. If lanes
    repeat those of the first 8 or 16, the instruction is .x1 or .x2; else it is .x4.

    table          array: offset in elements of each index in the tile
    elements       array with axes for warps, lanes of a warp and values of a lane: index in the tile of the element
                   that is this value
    element_bits   bits of an element
    access_bits    bits that a lane accesses with one instruction, None for the widest that the layout permits. For
                   ldmatrix and stmatrix, bits of a lane's registers: 32 for .x1, 64 for .x2, 128 for .x4
    op             operation, such as "load", "store" or "ldmatrix"
    rules          model of shared memory: when two phases (groups of lanes) are merged
    raises         LayoutError if a lane's elements are not aligned vectors of that width

    >>> rows = np.arange(32 * 8).reshape(1, 32, 8)  # lane i has the i-th run of 8 elements
    >>> tile_cost(np.arange(256), rows, 16, op="ldmatrix")
    Wavefronts(requests=1, wavefronts=4, ideal=4, worst=None, form='ldmatrix.x4')
    >>> tile_cost(np.arange(256), rows % 64, 16, op="ldmatrix").form
    'ldmatrix.x1'
    """
    if op not in ("ldmatrix", "stmatrix"):
        width = access_bits or widest_access(table, elements, element_bits)
        found = cost(byte_addresses(table, elements, element_bits, width), width, op=op, rules=rules)
        return replace(found, form=f"{width}-bit {op}")
    lanes = _address_lanes(elements) if access_bits is None else access_bits * _MATRIX_ROWS // 32
    if lanes not in (8, 16, 32):
        raise LayoutError(f"{op}: {access_bits} bits of a lane. Use 32 for .x1, 64 for .x2 or 128 for .x4.")
    used = elements[:, : max(lanes, _address_lanes(elements))]
    if used.shape[1] % lanes:
        raise LayoutError(f"{op}: {used.shape[1]} lanes give addresses. A multiple of {lanes} is expected.")
    addresses = byte_addresses(table, used, element_bits, _ROW_BITS)
    found = cost(addresses.reshape(len(addresses), -1, lanes), _ROW_BITS, op=op, rules=rules)
    return replace(found, form=f"{op}.x{lanes // _MATRIX_ROWS}")


def _address_lanes(elements: np.ndarray) -> int:
    """Return how many lanes supply different addresses: 8 or 16 if all further lanes repeat those, else all.

    This tells .x1, .x2 and .x4 of ldmatrix and stmatrix apart.

    elements   array with axes for warps, lanes of a warp and values of a lane: index in the tile of the element that is
               this value
    """
    lanes = elements.shape[1]
    for first in (8, 16):
        if lanes % first == 0 and (elements == elements[:, np.arange(lanes) % first]).all():
            return first
    return lanes


def byte_addresses(table: np.ndarray, elements: np.ndarray, element_bits: int, bits: int) -> np.ndarray:
    """Return the byte address of each vector that each lane accesses in shared memory.

    The result is an integer array with axes for warps, vectors of a lane, and lanes.

    table          offset of each tile index, in elements
    elements       array with axes for warps, lanes of a warp and values of a lane: index in the tile of the element
                   that is this value
    element_bits   bits of an element
    bits           bits of a vector; a lane has values * element_bits / bits vectors
    raises         LayoutError if the elements of a vector are not contiguous
    """
    if bits < element_bits or bits % element_bits:
        raise LayoutError(f"an access of {bits} bits does not consist of whole elements of {element_bits} bits.")
    count = bits // element_bits
    if elements.shape[2] % count:
        raise LayoutError(
            f"the {elements.shape[2]} values of a lane are not a multiple of the {count} elements of an access of "
            f"{bits} bits."
        )
    offsets = table[elements].reshape(*elements.shape[:2], -1, count)
    if not (offsets - offsets[..., :1] == np.arange(count)).all():
        raise LayoutError(f"the {count} elements of an access of {bits} bits are not contiguous in this layout.")
    return np.moveaxis(offsets[..., 0] * element_bits // 8, 1, 2)


def widest_access(table: np.ndarray, elements: np.ndarray, element_bits: int, most: int = 128) -> int:
    """Return the bits of the widest contiguous, aligned vectors that the values of every lane form in a layout.

    `autovec_copy` of CuTe uses the same width.

    table          offset of each tile index, in elements
    elements       array with axes for warps, lanes of a warp and values of a lane: index in the tile of the element
                   that is this value
    element_bits   bits of an element
    most           largest width that is tried, in bits

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
