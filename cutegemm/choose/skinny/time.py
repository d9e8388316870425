"""How long a plan takes that streams A: for bytes from memory and from L2, or for the k-tiles of a CTA, one by one.

Times are those behind a flush of L2, as the other families' are, with which they compete; behind another kernel, as in
a CUDA graph, a plan takes about 3 microseconds less.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any

from cutegemm.build.skinny import skinny_plan
from cutegemm.machine.arch import ACCESS_BITS, WARP_THREADS
from cutegemm.machine.device import Device
from cutegemm.plan.problem import Problem

# An H100 and an H200, 2026-11-22: 28 small problems by 30 plans, and few rows by large weights.
START_US = 6.1  # until the first bytes come, and from the last ones to the end
MEET_US = 0.5  # of CTAs that share K, for each doubling of their number
TURN_US = 0.76  # between clusters of a multiprocessor, for each doubling of their CTAs and once
LATENCY_US = 0.565  # of a load, with many under way
READ_SHARE = 0.905  # of a data sheet's rate of memory, that loads of threads reach
L2_SHARE = 0.52  # of what L2 may deliver, that A and B take together
READ_US = 0.0133  # of a multiprocessor, for a vector that each lane of 8 warps reads
WIDEN = 1.93  # times that, of bytes, which are widened to f16
MULTIPLY_US = 0.0237  # the same for an mma.sync of 256 bits along K
_WARPS = 8
_BYTE_BITS = 8
_ATOM_MN = 16, 8
_DEFAULTS = {name: parameter.default for name, parameter in signature(skinny_plan).parameters.items()}


@dataclass(frozen=True)
class Stream:
    """What of a plan its time depends on.

    rows, columns   of a tile of a cluster
    ctas            that share K
    ctas_per_sm     that a multiprocessor holds
    deep            elements along K of a CTA's k-tile
    latency_us      of a k-tile
    busy_us         of a multiprocessor that has one CTA, with a k-tile
    """

    rows: int
    columns: int
    ctas: int
    ctas_per_sm: int
    deep: int
    latency_us: float
    busy_us: float

    @classmethod
    def of(cls, options: Mapping[str, Any], bits: int) -> Stream:
        """
        options   of `skinny_plan`
        bits      of an element of A and B

        >>> Stream.of({"tile": (16, 8)}, 16).deep
        2048
        """
        given = {**_DEFAULTS, **options}
        (rows, columns), warps, shares = given["tile"], given["warps"], given["shares"]
        vectors, is_bytes = given["vectors"] * shares, bits == _BYTE_BITS
        read_us = READ_US * (WIDEN if is_bytes else 1.0) * (rows + columns) / 8 * vectors
        atoms = rows // _ATOM_MN[0] * (columns // _ATOM_MN[1]) * vectors * 2
        busy_us = (read_us + MULTIPLY_US * (2 if is_bytes else 1) * atoms) * warps / _WARPS
        deep = vectors * warps * (WARP_THREADS // _ATOM_MN[1]) * ACCESS_BITS // bits
        latency_us = LATENCY_US * shares / (shares - 0.5)
        return cls(rows, columns, given["cluster"], given["ctas_per_sm"], deep, latency_us, busy_us)


def predicted(stream: Stream, bits: int, problem: Problem, device: Device) -> tuple[float, dict[str, float]]:
    """Microseconds that a plan takes, and for what, each by itself.

    bits      of an element of A and B
    problem   as the plan sees it: the transposed one, where it is for that

    >>> from cutegemm.machine.device import device_named
    >>> us, bounds = predicted(Stream.of({"tile": (16, 8)}, 16), 16, Problem(4096, 1, 4096), device_named("h200"))
    >>> round(us, 1), max(bounds, key=bounds.__getitem__)
    (14.0, 'memory')
    """
    m, n, k = problem.m, problem.n, problem.k
    ctas = stream.ctas
    high, wide = -(-m // stream.rows), -(-n // stream.columns)
    tiles, held = high * wide * problem.l, device.clusters_by_size[ctas] * stream.ctas_per_sm
    of_k = k * bits / 8 * problem.l
    of_a, of_b = m * of_k * wide, min(stream.columns, n) * of_k * high * wide
    k_tiles = max(0.5, k / (stream.deep * ctas))
    busy_us = max(1.0, min(tiles, held) * ctas / device.sms) * stream.busy_us
    turns = -(-tiles // held)
    doublings = ctas.bit_length() - 1
    latency_us = k_tiles * turns * (stream.latency_us**2 + busy_us**2) ** 0.5
    between_us = TURN_US * (1 + doublings) * (turns - 1) / stream.ctas_per_sm
    if stream.ctas_per_sm > 1:  # others read meanwhile
        latency_us, between_us = latency_us + between_us, 0.0
    bounds = {
        "memory": (m + n) * of_k / (READ_SHARE * device.dram_gb_s * 1e3),
        "L2": (of_a + of_b) / (L2_SHARE * device.l2_bytes_per_s) * 1e6,
        "latency": latency_us,
    }
    # At the same time; a load takes longer while many are under way
    of_bytes_us = max(bounds["memory"], bounds["L2"])
    together_us = (of_bytes_us**3 + latency_us**3) ** (1 / 3)
    return START_US + MEET_US * doublings + between_us + together_us, bounds
