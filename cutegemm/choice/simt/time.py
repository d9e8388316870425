"""Predicted times of many SIMT plans at once: from the latency of memory up to the rate of the multiply-adds.

The multiprocessor (SM) with the most CTAs determines the time. It runs a few CTAs at a time, in rounds, and each CTA
goes through its k-tiles one after the other. A k-tile takes as long as the slowest of

    latency         a load from memory, divided by the k-tiles in flight (one if a tile is loaded through registers);
                    plus the barrier and the first fragments of each k-block
    loads           accesses of the warps of all CTAs of the SM to global memory and, for fragments, to shared memory
    multiply-adds   multiply-adds of all CTAs of the SM. With fewer warps than schedulers some schedulers idle, and with
                    few warps the waits of one warp are not covered by others

Activities that overlap add up partly: see `together`. The kernel takes at least as long as A and B take to be read from
DRAM and D to be written; short runs and partial sectors are slower. The CTAs of an SM start together and drift apart
with each round, so with three or more CTAs, and in later rounds, one CTA stores D while others multiply. With one or
two CTAs, or in a single round, both times add up.

To this are added the start of the kernel, the first k-tile of each round of CTAs, the multiply-adds of the last k-tile
(nothing is loaded meanwhile), the kernel that adds K splits, and the repack passes.

The rates of the chip are those of its `Device`. `SimtCosts` is fitted to times after a flush of the L2 cache on an H200
and an H100; `python -m docs.evidence fit-simt FILE.json ...` fits it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from cutegemm.choice.candidate import Predicted, Variants
from cutegemm.choice.columns import Column, of_rows, partials_us, together
from cutegemm.choice.simt.recipe import SimtRecipe
from cutegemm.layout import product
from cutegemm.machine.arch import ACCESS_BITS, CACHE_LINE_BYTES, SECTOR_BYTES, WARP_SCHEDULERS, WARP_THREADS
from cutegemm.machine.device import Device
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Operands, Problem
from cutegemm.plan.work.division import LEAST_RUN
from cutegemm.tile.tiled_copy import TiledCopy

_BOUNDS = "latency", "loads", "multiply-adds", "DRAM", "start and end", "adding K splits", "repack"
_ADDED_AT_ONCE = 16  # K splits whose accumulators a thread loads at once
_IN_STEP = 2  # CTAs of an SM that multiply and store at the same times
_WIDE_BITS = 64  # bits of an access to global memory that counts as wide
_FULL_ACCUMULATORS = 128  # accumulators of a thread; with more, few registers are left for the store


@dataclass(frozen=True)
class SimtCosts:
    """Constants that predict the time of SIMT plans, fitted to measured times.

    They are in microseconds, unless called a factor or an exponent.

    start            time from the kernel's start to its first loads, plus that from its last store to its end
    alone            additional start, divided by the CTAs that fit an SM, since these start side by side
    round            time of each round of CTAs (those that run at the same time) until the first k-tile arrives and
                     MMAs can begin
    drain            factor on the multiply-adds of the last k-tile, if each warp has a scheduler to itself; nothing is
                     loaded meanwhile
    latency          latency of loading a k-tile from memory
    step, block      time of each k-tile, and of each k-block, in addition to the latency of memory
    wide, narrow     time of each warp-wide access to global memory, of at least 8 bytes per lane, and of fewer
    transposes       time of each warp-wide access to shared memory that transposes elements of a K-major tile
    reads            time of each warp-wide access to shared memory that reads fragments
    few              exponent: multiply-adds take (CTAs that fit an SM / CTAs that it has) ** few times as long
    crowded          factor on the share of a partial last round that is occupied: how far its CTAs crowd on some SMs
    store            time of each warp-wide store to D
    written          time to write D, relative to reading as many bytes
    runs             relative increase of the time to write D, if a contiguous run of D in a tile is one cache line
    torn             relative increase of the time to write D, if every sector is written in parts
    apart            increase of the exponent of `together` for storing D, for each CTA of an SM beyond two; the larger
                     the exponent, the more the store overlaps
    across           factor on the multiply-adds of threads with more columns than rows
    full             factor on writing D, for threads with more than `_FULL_ACCUMULATORS` accumulators
    issue            time for which a warp-wide access to global memory keeps the schedulers from issuing multiply-adds
    added            time for each `_ADDED_AT_ONCE` K splits, in the kernel that adds them
    accumulators     factor on the time to write and read the accumulators of K splits
    streamed         time of stream-K for the second tile of a CTA, and for the search for the K splits of a tile
    repack, packed   start of the repack passes, and factor on the time of their bytes
    within, beside   exponents of `together` (p-norm of overlapping times): for a k-tile, and for DRAM
    """

    start: float = 1.89
    alone: float = 3.01
    round: float = 2.1
    drain: float = 1.16
    latency: float = 0.534
    step: float = 0.102
    block: float = 0.00347
    wide: float = 0.0057
    narrow: float = 0.00391
    transposes: float = 0.00165
    reads: float = 0.00126
    few: float = 0.109
    crowded: float = 1.43
    store: float = 0.0019
    written: float = 0.282
    torn: float = 1.91
    runs: float = 2.16
    apart: float = 0.329
    across: float = 1.05
    full: float = 1.67
    issue: float = 0.00153
    added: float = 1.1
    accumulators: float = 0.4
    streamed: float = 5.43
    repack: float = 3.04
    packed: float = 1.3
    within: float = 4.98
    beside: float = 2.43


COSTS = SimtCosts()


@dataclass(frozen=True, eq=False)
class Tiles:
    """Properties of SIMT plans that their predicted time depends on, as arrays with one entry per plan.

    bm, bn, bk                        tile of a CTA, in elements
    ctas                              CTAs that share an SM
    ahead                             k-tiles whose loads are in flight while one is multiplied
    by_registers                      1 if a tile of A or B is loaded through registers, else 0
    warps                             warps of a CTA
    wide, narrow, transposes, reads   warp-wide instructions for a k-tile: loads of at least 8 bytes per lane, shorter
                                      loads, transposing stores to shared memory, reads of fragments
    across                            1 if a thread computes more columns than rows, else 0
    stores                            warp-wide store instructions for a tile of D
    torn, torn_even                   writes of partial sectors per sector of D; `torn_even`: with stream-K
    runs                              size of a cache line, divided by the size of a contiguous run of D in a tile
    packs_a, packs_b                  1 if a repack pass copies the operand before the GEMM, else 0
    """

    bm: Column
    bn: Column
    bk: Column
    ctas: Column
    ahead: Column
    by_registers: Column
    warps: Column
    wide: Column
    narrow: Column
    transposes: Column
    reads: Column
    across: Column
    stores: Column
    torn: Column
    torn_even: Column
    runs: Column
    packs_a: Column
    packs_b: Column

    @classmethod
    def of(cls, plans: Sequence[GemmPlan]) -> Tiles:
        """Return the properties of SIMT plans that their time depends on, in the order of `plans`.

        No plan may split K.
        """
        return cls(*np.array([_row(plan) for plan in plans], dtype=float).T)

    def tiles_of(self, problem: Problem) -> Column:
        """Return the number of tiles of D, over all batches, for each SIMT plan."""
        return np.ceil(problem.m / self.bm) * np.ceil(problem.n / self.bn) * problem.l


def _row(plan: GemmPlan) -> tuple[float, ...]:
    """Return the properties of one SIMT plan that its time depends on, in the order of the fields of `Tiles`."""
    (bm, bn, bk), warps = plan.cta_tile, plan.threads / WARP_THREADS
    wide = narrow = transposes = 0.0
    by_registers = False
    for name, extent, load in (("a", bm, plan.a.load), ("b", bn, plan.b.load)):
        assert isinstance(load, TiledCopy)
        accesses, is_wide = extent * bk / (load.atom.values * WARP_THREADS), load.atom.bits >= _WIDE_BITS
        wide, narrow = wide + accesses * is_wide, narrow + accesses * (not is_wide)
        if is_wide and getattr(plan.loaded, name).major == "k":
            transposes += extent * bk / WARP_THREADS
        by_registers |= not load.atom.is_async
    rows, columns = _thread_tile(plan)
    assert plan.a.read is not None
    assert plan.b.read is not None
    reads = (rows / plan.a.read.values + columns / plan.b.read.values) * warps * bk
    values = plan.store.store_atom.values
    repacks = [repack.name for repack in plan.repacks]
    ahead = 1 if by_registers else max(1, plan.stages - 1)
    return (
        bm, bn, bk, plan.ctas_per_sm, ahead, by_registers, warps, wide, narrow, transposes, reads,
        rows < columns,
        bm * bn / (values * WARP_THREADS), *_torn(plan), _runs(plan), "a" in repacks, "b" in repacks,
    )  # fmt: skip


def _runs(plan: GemmPlan) -> float:
    """Return the bytes of a cache line, divided by the bytes of D that a tile stores contiguously (a row or column).

    It is less than 1 if rows (of an N-major D) of the tile are longer than a line.
    """
    operand, (bm, bn, _) = plan.operands.d, plan.cta_tile
    return CACHE_LINE_BYTES * 8 / operand.dtype.bits / (bn if operand.major == "n" else bm)


def _torn(plan: GemmPlan) -> tuple[float, float]:
    """Return how many partial writes of L2 sectors a plan needs per sector of D, as two numbers.

    A sector (32 bytes) that no single instruction writes as a whole is written in parts, which is slow. The first
    number is for the store of the plan. The second one is for stores from registers, which stream-K always uses. 0
    means that all sectors are written whole.
    """
    operand = plan.operands.d
    sector, vector = SECTOR_BYTES * 8 // operand.dtype.bits, ACCESS_BITS // operand.dtype.bits
    by_threads = vector / plan.store.atom.values if plan.store.atom.values < vector else 0.0
    if plan.store.layout is None:
        return by_threads, by_threads
    bm, bn, _ = plan.cta_tile
    ends = 2 * sector / (bn if operand.major == "n" else bm)
    return ends if operand.align_bytes * 8 < ACCESS_BITS else 0.0, by_threads


def _thread_tile(plan: GemmPlan) -> tuple[int, int]:
    """Return the extents (M, N) of the elements of D that one thread computes."""
    (bm, bn, _), mma = plan.cta_tile, plan.tiled_mma
    return product(mma.partition_shape_A((bm, 1))), product(mma.partition_shape_B((bn, 1)))


@dataclass(frozen=True)
class _Work:
    """Work of the SM that has the most to do, and what split-K adds to it, as arrays with one entry per candidate plan.

    A round is a set of CTAs that run on the SM at the same time.

    rounds     number of full rounds
    deep       k-tiles of each CTA of the full rounds
    rest       CTAs of a last, partial round; 0 if all rounds are full
    last       k-tiles of each CTA of the last round
    slots      tiles of partial accumulators that are written to the workspace if K is divided
    added      number of K splits of a tile whose accumulators are added
    is_split   whether K is divided
    is_even    whether stream-K divides the k-tiles evenly among CTAs
    """

    rounds: Column
    deep: Column
    rest: Column
    last: Column
    slots: Column
    added: Column
    is_split: Column
    is_even: Column


def _work(
    resident: Column, count: Column, k_tiles: Column, splits: Column, grid: Column, sms: int, costs: SimtCosts
) -> _Work:
    """Return the work of the multiprocessor (SM) that has the most to do, for each candidate.

    The first CTAs spread evenly over all SMs. A CTA of the last round starts on the SM where an earlier CTA ends first,
    so some SMs get several of these CTAs. The more rounds there were before, the fewer of them crowd on one SM.

    resident   number of CTAs that share an SM
    count      number of tiles of D
    k_tiles    number of k-tiles of a tile of D
    splits     number of K splits of each tile
    grid       number of CTAs of a stream-K grid; 0 without stream-K
    sms        number of SMs of the device
    costs      fitted constants
    """
    ctas, at_once, deep = count * splits, sms * resident, np.ceil(k_tiles / splits)
    rounds = np.floor(ctas / at_once)
    left = ctas - rounds * at_once
    rest = np.ceil(left / sms)
    crowd = np.minimum(1.0, costs.crowded * left / at_once) / np.maximum(1.0, rounds)
    rest = rest + np.minimum(rounds, 1.0) * crowd * (resident - rest)
    is_even = grid > 0
    if not is_even.any():
        return _Work(rounds, deep, rest, deep, ctas, splits, splits > 1, is_even)
    among = np.maximum(grid, 1.0)
    shared = count % among
    workers = np.maximum(1.0, np.minimum(among, np.maximum(shared, shared * k_tiles // LEAST_RUN)))
    slots = workers + shared - 1

    def either(even: Column, split: Column) -> Column:
        """Return an array over the candidates: the entry of `even` if a candidate uses stream-K, else that of `split`.

        even, split   arrays with one entry per candidate, for stream-K and for split-K
        """
        return np.where(is_even, even, split)

    return _Work(
        rounds=either(count // among, rounds),
        deep=either(k_tiles, deep),
        rest=either(np.ceil(workers / sms) * (shared > 0), rest),
        last=either(np.ceil(shared * k_tiles / workers), deep),
        slots=either(slots, ctas),
        added=either(slots / np.maximum(1.0, shared), splits),
        is_split=either(shared > 0, splits > 1),
        is_even=is_even,
    )


@dataclass(frozen=True, eq=False)
class Model:
    """Predicts the times of many SIMT plans for given operands on a device. Methods return one entry per plan."""

    tiles: Tiles
    operands: Operands
    device: Device
    costs: SimtCosts = COSTS

    @classmethod
    def of(cls, recipes: Sequence[SimtRecipe], operands: Operands, device: Device, costs: SimtCosts = COSTS) -> Model:
        """Return the time model of the SIMT plans of `recipes`, which are built without a division of K.

        operands   operands that the plans are built for
        costs      fitted constants of the model
        """
        plans = [replace(recipe, split=None, ctas=None).build(operands, device=device) for recipe in recipes]
        return cls(Tiles.of(plans), operands, device, costs)

    def predict(self, variants: Variants, problem: Problem) -> Predicted:
        """Return the predicted times of SIMT candidates, including their repack passes.

        A repack pass is a kernel that copies an operand before the GEMM.

        variants   the candidates: indices of plans, each with a division of K (split-K or stream-K)
        """
        recipes, splits, grid = variants.recipe, variants.splits, variants.ctas
        costs, tiles = self.costs, self.tiles
        resident, count = of_rows(tiles.ctas, recipes), of_rows(tiles.tiles_of(problem), recipes)
        k_tiles = of_rows(np.maximum(1.0, np.ceil(problem.k / tiles.bk)), recipes)
        work = _work(resident, count, k_tiles, splits, grid, self.device.sms, costs)
        latency_us, loads_us, mma_us, warps = [
            of_rows(column, recipes) for column in (self._latency_us, self._loads_us, self._mma_us, tiles.warps)
        ]

        def steps_us(ctas: Column, k_tiles: Column) -> Column:
            """Return the microseconds that an SM takes for the k-tiles of the CTAs that it runs at the same time.

            ctas      number of these CTAs, as an array with one entry per candidate
            k_tiles   number of k-tiles of each CTA, likewise
            returns   array with one entry per candidate
            """
            at_a_time = np.maximum(1.0, ctas)
            idle = _idle(np.ceil(at_a_time) * warps) * (resident / at_a_time) ** costs.few
            return k_tiles * together(costs.within, latency_us, at_a_time * loads_us, at_a_time * mma_us * idle)

        ctas, is_rest = work.rounds * resident + work.rest, np.minimum(1.0, work.rest)
        rounds = work.rounds + np.ceil(is_rest)
        written_us = costs.store * ctas * of_rows(tiles.stores, recipes) + self._written_us(problem, recipes, work)
        ends_us = of_rows(self._start_us, recipes) + costs.round * (1 + (rounds - 1) / resident)
        memory_us, repack_start_us = self._memory_us(problem)
        memory_us, repack_start_us = of_rows(memory_us, recipes), of_rows(repack_start_us, recipes)
        added_us = costs.added * np.ceil(work.added / _ADDED_AT_ONCE)
        added_us = added_us + costs.streamed * work.is_even + work.slots * of_rows(self._partials_us, recipes)
        added_us = added_us * work.is_split
        last_us = steps_us(work.rest, work.last) * np.ceil(is_rest)
        rounds_us = work.rounds * steps_us(resident, work.deep) + last_us
        apart = 1 + costs.apart * np.maximum(0.0, resident - _IN_STEP) * (1 - 1 / np.maximum(1.0, rounds))
        body_us = together(apart, together(costs.beside, rounds_us, memory_us), written_us)
        us = ends_us + body_us + added_us + repack_start_us

        def bounds() -> dict[str, Column]:
            """Return the microseconds that each possible bottleneck of a plan would take alone, e.g. {"DRAM": array}.

            Each array has one entry per candidate of the enclosing prediction.
            """
            k_tiles_of_sm = work.rounds * resident * work.deep + work.rest * work.last
            waited = latency_us * (work.rounds * work.deep + np.ceil(is_rest) * work.last)
            ends = ends_us + written_us
            us_of = waited, loads_us * k_tiles_of_sm, mma_us * k_tiles_of_sm, memory_us, ends, added_us, repack_start_us
            return dict(zip(_BOUNDS, us_of, strict=True))

        return Predicted(us, bounds)

    @cached_property
    def _start_us(self) -> Column:
        """Return the microseconds from the kernel's start to its first k-tile, plus those to multiply the last k-tile.

        Nothing overlaps with these two. The array has one entry per plan.
        """
        costs, tiles = self.costs, self.tiles
        drain_us = costs.drain * self._mma_us * WARP_SCHEDULERS / tiles.warps
        return costs.start + costs.alone / tiles.ctas + drain_us

    @cached_property
    def _latency_us(self) -> Column:
        """Return the microseconds that a CTA waits at each k-tile: for memory, its barrier and its first fragments.

        The array has one entry per plan.
        """
        costs, tiles = self.costs, self.tiles
        return costs.latency / tiles.ahead + costs.step + costs.block * tiles.bk

    @cached_property
    def _loads_us(self) -> Column:
        """Return the microseconds that a k-tile's accesses to global and shared memory take a CTA, for each plan."""
        costs, tiles = self.costs, self.tiles
        loads_us = costs.wide * tiles.wide + costs.narrow * tiles.narrow
        return loads_us + costs.transposes * tiles.transposes + costs.reads * tiles.reads

    @cached_property
    def _mma_us(self) -> Column:
        """Return the microseconds of a CTA's multiply-adds for a k-tile, for each plan."""
        costs, tiles = self.costs, self.tiles
        per_us = self.device.measured.ffma_tflops * 1e6 / self.device.sms
        per_us = per_us * _share_of_f32(self.operands, self.device)
        mma_us = 2.0 * tiles.bm * tiles.bn * tiles.bk / per_us
        mma_us = mma_us * np.where(tiles.across, costs.across, 1.0)
        return mma_us + costs.issue * (tiles.wide + tiles.narrow + tiles.transposes)

    @cached_property
    def _full(self) -> Column:
        """Return the factor on the time to write D for each plan: above 1 if a thread has many accumulators, else 1."""
        tiles = self.tiles
        return np.where(tiles.bm * tiles.bn > tiles.warps * (WARP_THREADS * _FULL_ACCUMULATORS), self.costs.full, 1.0)

    @cached_property
    def _partials_us(self) -> Column:
        """Return the microseconds to write and read the accumulators of one K split of a tile, for each plan."""
        return self.costs.accumulators * partials_us(self.tiles.bm, self.tiles.bn, self.operands, self.device)

    @cached_property
    def _sectors_torn_by_partials(self) -> Column:
        """Return how many partial sectors the kernel that adds K splits writes per sector of D, for each plan.

        At most 1; a sector is 32 bytes of L2.
        """
        return np.minimum(1.0, self.tiles.torn_even)

    def _written_us(self, problem: Problem, recipes: Column, work: _Work) -> Column:
        """Return the microseconds that it takes to write D to memory, for each candidate.

        problem   extents and operands of the GEMM
        recipes   index of each candidate's plan
        work      CTAs and K splits of each candidate
        """
        costs, tiles = self.costs, self.tiles
        by_partials = of_rows(self._sectors_torn_by_partials, recipes)
        torn: Column = np.where(work.is_split, by_partials, of_rows(tiles.torn, recipes))
        torn = np.where(work.is_even, of_rows(tiles.torn_even, recipes), torn)
        d_bytes = problem.m * problem.n * problem.l * self.operands.d.dtype.bits / 8
        d_us = costs.written * d_bytes / (self.device.measured.thread_read_gb_s * 1e3)
        d_us = d_us * of_rows(self._full, recipes)
        return d_us * (1 + costs.runs * of_rows(tiles.runs, recipes) + costs.torn * torn)

    def _memory_us(self, problem: Problem) -> tuple[Column, Column]:
        """Return two arrays of microseconds, one entry per plan: time to read A and B from DRAM, time of repack passes.

        A repack pass is a kernel that copies A or B before the GEMM. The first time leaves out the operands that are
        repacked.

        problem   extents and operands of the GEMM
        """
        costs, tiles, rates = self.costs, self.tiles, self.device.measured
        a_bytes = problem.m * problem.k * problem.l * self.operands.a.dtype.bits / 8
        b_bytes = problem.n * problem.k * problem.l * self.operands.b.dtype.bits / 8
        repacked = a_bytes * tiles.packs_a + b_bytes * tiles.packs_b
        repack_start_us = costs.repack + costs.packed * 2 * repacked / (rates.repack_along_mn_gb_s * 1e3)
        repacks = np.maximum(tiles.packs_a, tiles.packs_b)
        return (a_bytes + b_bytes - repacked) / (rates.thread_read_gb_s * 1e3), repack_start_us * repacks


def _idle(warps: Column) -> Column:
    """Return the slowdown of multiply-adds due to idle warp schedulers of an SM; 1 if none idles.

    They idle if the SM has fewer warps than schedulers, or if the schedulers have unequal numbers of warps.

    warps   number of warps that run on an SM

    >>> _idle(np.array([2, 4, 6, 8])).round(2).tolist()
    [2.0, 1.0, 1.15, 1.0]
    """
    uneven = np.ceil(warps / WARP_SCHEDULERS) * (WARP_SCHEDULERS / warps)
    return np.where(warps < WARP_SCHEDULERS, uneven, np.sqrt(uneven))


def _share_of_f32(operands: Operands, device: Device) -> float:
    """Return the device's peak rate of multiply-adds for the accumulator's type, as a fraction of the rate for f32."""
    peaks = device.tflops
    return peaks.get(f"fma.{operands.acc}", peaks["fma.f32"]) / peaks["fma.f32"]
