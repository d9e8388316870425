"""Predicted times of gemv plans: bounded by DRAM or L2 bandwidth, or by the latency of the k-tiles of a CTA.

Times are those after a flush of L2, as in the other families, with which they compete. After another kernel, as in a
CUDA graph, a plan takes about 3 microseconds less.
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

# Times in microseconds, fitted to 28 small problems by 30 plans, and to few rows by large weights (H100 and H200,
# 2026-11-22).
START_US = 6.1  # until the first bytes arrive, and from the last ones to the end
# After another kernel, as in decoding, wgmma plans gain more against a flushed L2 than gemv plans of 16 columns do;
# half of that difference is added here. 16 x 4096 x 4096 takes 11.3 us after a kernel and 15.3 us after a flush in
# gemv_16x16, 10.3 and 16.8 us in sm90_64x16_deep_1x1x2 (H200, 2026-11-24).
AFTER_KERNEL_US = 0.8
MEET_US = 0.5  # for each doubling of the CTAs that split K, until they have exchanged accumulators
NEXT_CLUSTER_US = 0.76  # between two clusters on a multiprocessor, and twice that for each doubling of their CTAs
LATENCY_US = 0.565  # latency of a load, with many in flight
READ_SHARE = 0.905  # share of the data sheet's memory bandwidth that loads of threads reach
UNALIGNED = 1.1  # factor on the time from memory, if rows do not begin at cache lines
L2_SHARE = 0.52  # share of the peak L2 bandwidth that loads of A and B reach together
READ_US = 0.0133  # time of a multiprocessor to load one vector of 16 bytes to each lane of 8 warps
WIDEN = 1.93  # factor on READ_US for 8-bit elements, which are converted to f16
MULTIPLY_US = 0.0237  # time of a multiprocessor for one mma.sync of 256 bits along K by each of 8 warps
_WARPS = 8
_BYTE_BITS = 8
_ATOM_MN = 16, 8
_DEFAULTS = {name: parameter.default for name, parameter in signature(gemv_plan).parameters.items()}


@dataclass(frozen=True, eq=False)
class Streams:
    """Properties of gemv plans that their predicted time depends on, as arrays with one entry per plan.

    rows, columns   rows and columns of D that a cluster computes (its tile)
    ctas            CTAs of a cluster; they split K among them
    ctas_per_sm     CTAs that an SM holds
    warps           warps of a CTA
    deep            elements of a CTA's k-tile along K
    latency_us      latency of loading a k-tile, in microseconds
    busy_us         microseconds that the instructions of a k-tile take, if its CTA has the SM to itself
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
        """Return the properties of several gemv plans, as arrays with one entry per plan.

        plans   arguments of `gemv_plan` (name -> value) for each plan
        bits    bits of an element of A and B

        >>> Streams.of([{"tile": (16, 8)}], 16).deep
        array([2048.])
        """
        rows = [_stream({**_DEFAULTS, **options}, bits) for options in plans]
        return cls(*np.array(rows, float).reshape(-1, len(fields(cls))).T)

    @cached_property
    def doublings(self) -> Column:
        """Return log2 of the number of CTAs that split K in each plan: 0 without cluster split-K, 3 for eight CTAs."""
        return np.log2(self.ctas)

    @cached_property
    def after_kernel_us(self) -> Column:
        """Return the microseconds that are added to each gemv plan's predicted time to compare it with wgmma plans.

        Predicted times are for an empty L2. But another kernel has often just left the operands there, and wgmma plans
        gain more from that. Half of this difference (`AFTER_KERNEL_US`) is added for gemv plans of more than 8 columns
        without cluster split-K, and 0 for all others.
        """
        return AFTER_KERNEL_US * ((self.ctas == 1) & (self.columns > _ATOM_MN[1]))

    def take(self, rows: Column) -> Streams:
        """Return the properties of some of these gemv plans.

        rows   indices of the plans, which give the order of the result
        """
        return Streams(*[getattr(self, field.name).take(rows) for field in fields(self)])

    def resident(self, device: Device) -> Column:
        """Return the number of clusters of each gemv plan that run at a time; 0 if the device cannot run them."""
        return np.array(device.clusters_by_size)[self.ctas.astype(int)] * self.ctas_per_sm


def _stream(options: Mapping[str, Any], bits: int) -> tuple[float, ...]:
    """Return the properties of one gemv plan that its time depends on, in the order of the fields of `Streams`.

    options   arguments of `gemv_plan`: name -> value
    bits      bits of an element of A and B
    """
    (rows, columns), warps, load_chunks = options["tile"], options["warps"], options["load_chunks"]
    vectors, is_bytes = options["vectors"] * load_chunks, bits == _BYTE_BITS
    read_us = READ_US * (WIDEN if is_bytes else 1.0) * (rows + columns) / 8 * vectors
    atoms = rows // _ATOM_MN[0] * (columns // _ATOM_MN[1]) * vectors * 2
    busy_us = (read_us + MULTIPLY_US * (2 if is_bytes else 1) * atoms) * warps / _WARPS
    deep = vectors * warps * (WARP_THREADS // _ATOM_MN[1]) * ACCESS_BITS // bits
    latency_us = LATENCY_US * load_chunks / (load_chunks - 0.5)
    return rows, columns, options["cluster"], options["ctas_per_sm"], warps, deep, latency_us, busy_us


@dataclass(frozen=True, eq=False)
class Model:
    """Predicts the times of many gemv plans (kernels for a D of few columns) on one device.

    streams   properties of the plans, as arrays with one entry per plan
    swap_ab   array of flags: does the plan compute D^T = B^T A^T instead of D?
    bits      bits of an element of A and B
    """

    streams: Streams
    swap_ab: Column
    bits: int
    device: Device

    @classmethod
    def of(cls, recipes: Sequence[GemvRecipe], operands: Operands, device: Device) -> Model:
        """Return the time model of gemv plans, i.e. an object that predicts their times for a problem.

        recipes    names and arguments of the plans
        operands   operands whose element type counts
        device     device whose rates the model uses
        """
        bits = operands.a.dtype.bits
        streams = Streams.of([recipe.fitted(bits) for recipe in recipes], bits)
        return cls(streams, np.array([recipe.swap_ab for recipe in recipes]), bits, device)

    def predict(self, variants: Variants, problem: Problem) -> Predicted:
        """Return the predicted times of gemv candidates; infinite if the device cannot run their clusters.

        variants   the candidates: indices of plans, without split-K

        >>> from cutegemm.choice.names import recipe_named
        >>> from cutegemm.machine.device import device_named
        >>> model = Model.of([recipe_named("gemv_16x8")], Operands.of("bf16"), device_named("h200"))
        >>> predicted = model.predict(Variants(np.array([0])), Problem(4096, 1, 4096))
        >>> round(float(predicted.us[0]), 1), predicted.bound(0)
        (14.0, 'memory')
        """
        bits, streams, device, k = self.bits, self.streams.take(variants.recipe), self.device, problem.k
        swap_ab = self.swap_ab.take(variants.recipe)
        m, n = np.where(swap_ab, problem.n, problem.m), np.where(swap_ab, problem.m, problem.n)
        high, wide = np.ceil(m / streams.rows), np.ceil(n / streams.columns)
        tiles, resident = high * wide * problem.l, streams.resident(device)
        k_bytes = k * bits / 8 * problem.l
        a_bytes, b_bytes = m * k_bytes * wide, np.minimum(streams.columns, n) * k_bytes * high * wide
        k_tiles = np.maximum(0.5, k / (streams.deep * streams.ctas))
        busy_us = np.maximum(1.0, np.minimum(tiles, resident) * streams.ctas / device.sms) * streams.busy_us
        rounds = np.ceil(tiles / np.maximum(1, resident))
        latency_us = k_tiles * rounds * np.sqrt(streams.latency_us**2 + busy_us**2)
        between_us = NEXT_CLUSTER_US * (1 + 2 * streams.doublings) * (rounds - 1) / streams.ctas_per_sm
        overlaps = streams.ctas_per_sm > 1  # another CTA of the SM loads in between
        latency_us = latency_us + between_us * overlaps
        unaligned = 1.0 if (k * bits // 8) % CACHE_LINE_BYTES == 0 else UNALIGNED
        memory_us = unaligned * (m + n) * k_bytes / (READ_SHARE * device.dram_gb_s * 1e3)
        l2_us = (a_bytes + b_bytes) / (L2_SHARE * device.l2_bytes_per_s) * 1e6
        # They overlap, but a load takes longer while many are in flight
        us = together(3.0, np.maximum(memory_us, l2_us), latency_us)
        us = START_US + streams.after_kernel_us + MEET_US * streams.doublings + between_us * ~overlaps + us
        us = np.where(resident > 0, np.round(us, 2), np.inf)
        return Predicted(us, lambda: {"memory": memory_us, "L2": l2_us, "latency": latency_us})
