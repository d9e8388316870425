"""How long a plan takes that streams A: for bytes from memory and from L2, or for the k-tiles of a CTA, one by one.

Times are those behind a flush of L2, as the other families' are, with which they compete; behind another kernel, as in
a CUDA graph, a plan takes about 3 microseconds less.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from inspect import signature
from typing import Any

import numpy as np

from cutegemm.build.gemv import gemv_plan
from cutegemm.choice.candidate import Predicted, Variants
from cutegemm.choice.columns import Column, together
from cutegemm.choice.gemv.recipe import GemvRecipe
from cutegemm.machine.arch import ACCESS_BITS, CACHE_LINE_BYTES, WARP_THREADS
from cutegemm.machine.device import Device
from cutegemm.plan.problem import Operands, Problem

# An H100 and an H200, 2026-11-22: 28 small problems by 30 plans, and few rows by large weights.
START_US = 6.1  # until the first bytes come, and from the last ones to the end
# Behind another kernel, as when a model decodes, plans of wgmma are faster than behind a flush of L2 by more than plans
# of 16 columns here are. Half of the difference is counted: 16 x 4096 x 4096 takes 11.3 and 15.3 us by `gemv_16x16`,
# 10.3 and 16.8 by `sm90_64x16_deep_1x1x2`; 16 x 5120 x 5120 19.5 by `gemv_32x16`, and 16.2 (H200, 2026-11-24).
BEHIND_US = 0.8
MEET_US = 0.5  # of CTAs that share K, for each doubling of their number
TURN_US = 0.76  # between clusters of a multiprocessor, once, and twice more for each doubling of their CTAs
LATENCY_US = 0.565  # of a load, with many under way
READ_SHARE = 0.905  # of a data sheet's rate of memory, that loads of threads reach
UNALIGNED = 1.1  # times that, of rows that begin at no line
L2_SHARE = 0.52  # of what L2 may deliver, that A and B take together
READ_US = 0.0133  # of a multiprocessor, for a vector that each lane of 8 warps reads
WIDEN = 1.93  # times that, of bytes, which are widened to f16
MULTIPLY_US = 0.0237  # the same for an mma.sync of 256 bits along K
_WARPS = 8
_BYTE_BITS = 8
_ATOM_MN = 16, 8
_DEFAULTS = {name: parameter.default for name, parameter in signature(gemv_plan).parameters.items()}


@dataclass(frozen=True, eq=False)
class Streams:
    """Columns of what of many plans their time depends on.

    rows, columns   of a tile of a cluster
    ctas            that share K
    ctas_per_sm     that a multiprocessor holds
    warps           of a CTA
    deep            elements along K of a CTA's k-tile
    latency_us      of a k-tile
    busy_us         of a multiprocessor that has one CTA, with a k-tile
    """

    rows: Column
    columns: Column
    ctas: Column
    ctas_per_sm: Column
    warps: Column
    deep: Column
    latency_us: Column
    busy_us: Column

    @classmethod
    def of(cls, plans: Sequence[Mapping[str, Any]], bits: int) -> Streams:
        """
        plans   arguments of `gemv_plan`
        bits    of an element of A and B

        >>> Streams.of([{"tile": (16, 8)}], 16).deep
        array([2048.])
        """
        rows = [_stream({**_DEFAULTS, **options}, bits) for options in plans]
        return cls(*np.array(rows, float).reshape(-1, len(fields(cls))).T)

    @cached_property
    def doublings(self) -> Column:
        """Of the CTAs that share K, from one on."""
        return np.log2(self.ctas)

    @cached_property
    def behind_us(self) -> Column:
        """What counts besides where each CTA reads B for itself, of more columns than an mma.sync has."""
        return BEHIND_US * ((self.ctas == 1) & (self.columns > _ATOM_MN[1]))

    def taken(self, rows: Column) -> Streams:
        """Those of some plans."""
        return Streams(*[getattr(self, field.name).take(rows) for field in fields(self)])

    def held(self, device: Device) -> Column:
        """Clusters that a device holds at a time."""
        return np.array(device.clusters_by_size)[self.ctas.astype(int)] * self.ctas_per_sm


def _stream(given: Mapping[str, Any], bits: int) -> tuple[float, ...]:
    (rows, columns), warps, load_chunks = given["tile"], given["warps"], given["load_chunks"]
    vectors, is_bytes = given["vectors"] * load_chunks, bits == _BYTE_BITS
    read_us = READ_US * (WIDEN if is_bytes else 1.0) * (rows + columns) / 8 * vectors
    atoms = rows // _ATOM_MN[0] * (columns // _ATOM_MN[1]) * vectors * 2
    busy_us = (read_us + MULTIPLY_US * (2 if is_bytes else 1) * atoms) * warps / _WARPS
    deep = vectors * warps * (WARP_THREADS // _ATOM_MN[1]) * ACCESS_BITS // bits
    latency_us = LATENCY_US * load_chunks / (load_chunks - 0.5)
    return rows, columns, given["cluster"], given["ctas_per_sm"], warps, deep, latency_us, busy_us


@dataclass(frozen=True, eq=False)
class Model:
    """The times of plans that stream A.

    swap_ab   whether each plan is for D^T
    bits      of an element of A and B
    """

    streams: Streams
    swap_ab: Column
    bits: int
    device: Device

    @classmethod
    def of(cls, recipes: Sequence[GemvRecipe], operands: Operands, device: Device) -> Model:
        """Return the times of the plans of recipes."""
        bits = operands.a.dtype.bits
        streams = Streams.of([recipe.fitted(bits) for recipe in recipes], bits)
        return cls(streams, np.array([recipe.swap_ab for recipe in recipes]), bits, device)

    def predict(self, variants: Variants, problem: Problem) -> Predicted:
        """Return how long candidates take: infinitely long if the device holds no such cluster.

        >>> from cutegemm.choice.names import recipe_named
        >>> from cutegemm.machine.device import device_named
        >>> model = Model.of([recipe_named("gemv_16x8")], Operands.of("bf16"), device_named("h200"))
        >>> found = model.predict(Variants(np.array([0])), Problem(4096, 1, 4096))
        >>> round(float(found.us[0]), 1), found.bound(0)
        (14.0, 'memory')
        """
        bits, streams, device, k = self.bits, self.streams.taken(variants.recipe), self.device, problem.k
        swap_ab = self.swap_ab.take(variants.recipe)
        m, n = np.where(swap_ab, problem.n, problem.m), np.where(swap_ab, problem.m, problem.n)
        high, wide = np.ceil(m / streams.rows), np.ceil(n / streams.columns)
        tiles, held = high * wide * problem.l, streams.held(device)
        of_k = k * bits / 8 * problem.l
        of_a, of_b = m * of_k * wide, np.minimum(streams.columns, n) * of_k * high * wide
        k_tiles = np.maximum(0.5, k / (streams.deep * streams.ctas))
        busy_us = np.maximum(1.0, np.minimum(tiles, held) * streams.ctas / device.sms) * streams.busy_us
        turns = np.ceil(tiles / np.maximum(1, held))
        latency_us = k_tiles * turns * np.sqrt(streams.latency_us**2 + busy_us**2)
        between_us = TURN_US * (1 + 2 * streams.doublings) * (turns - 1) / streams.ctas_per_sm
        meanwhile = streams.ctas_per_sm > 1  # others read
        latency_us = latency_us + between_us * meanwhile
        begins = 1.0 if (k * bits // 8) % CACHE_LINE_BYTES == 0 else UNALIGNED
        memory_us = begins * (m + n) * of_k / (READ_SHARE * device.dram_gb_s * 1e3)
        l2_us = (of_a + of_b) / (L2_SHARE * device.l2_bytes_per_s) * 1e6
        # At the same time; a load takes longer while many are under way
        us = together(3.0, np.maximum(memory_us, l2_us), latency_us)
        us = START_US + streams.behind_us + MEET_US * streams.doublings + between_us * ~meanwhile + us
        us = np.where(held > 0, np.round(us, 2), np.inf)
        return Predicted(us, lambda: {"memory": memory_us, "L2": l2_us, "latency": latency_us})
