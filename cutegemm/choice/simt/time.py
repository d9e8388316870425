"""How long SIMT plans will take, many at a time: from the latency of memory up to the rate of multiply-adds.

The CTAs of the multiprocessor that has the most of them run a few at a time, each through its k-tiles one after the
other. A k-tile takes as long as the slowest of

    latency         of memory, over the k-tiles that are under way, one where tiles go through registers; the barrier,
                    and each k-block's first fragments
    loads           of all CTAs of the multiprocessor: accesses of warps to global memory and, for their fragments, to
                    shared memory
    multiply-adds   of all of them; fewer warps than schedulers leave some idle, few cover less of each other's waits

What goes on at the same time adds up in part: `together`. The kernel takes no less than the operands take to come from
DRAM, and D to be written: longer in short runs, and where sectors are written in parts. The CTAs of a multiprocessor
begin together and drift apart with each round, so that more of them and more rounds let one store D while others
multiply: with one CTA or two, and in one round, the two times add up. Besides there are the start, for each round of
CTAs the first k-tile, the products of the last one, during which nothing is loaded, where K is split the kernel that
adds the sums of parts, and the one that packs operands.

Rates of the chip are those of its `Device`. `SimtCosts` is fitted to what an H200 and an H100 took behind a flush of
the L2 cache; `python -m docs.evidence fit-simt FILE.json ...` fits it anew.
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

_BOUNDS = "latency", "loads", "multiply-adds", "DRAM", "start and end", "sums of parts", "repack"
_ADDED_AT_ONCE = 16  # parts, of which a thread asks for the sums in one go
_IN_STEP = 2  # CTAs of a multiprocessor that multiply and store at the same times
_WIDE_BITS = 64  # of an access that counts as a wide one
_SUMS = 128  # of a thread


@dataclass(frozen=True)
class SimtCosts:
    """What is fitted, in microseconds.

    start            of a kernel, until its first loads are under way, and from its last store to the end
    alone            more of it, divided by the CTAs that fit a multiprocessor, which start beside each other
    round            of CTAs: the first k-tile comes, with no products meanwhile
    drain            times the products of the last k-tile, each warp alone on its scheduler; nothing is loaded
                     meanwhile
    latency          of a k-tile
    step             of a k-tile, what is no latency of memory; block: of a k-block
    wide, narrow     of an access of a warp to global memory, of 8 or 16 bytes a lane, and of fewer
    transposes       of an access of a warp that turns elements of a k-major tile round on their way to shared memory
    reads            of an access of a warp to shared memory, for fragments
    few              the exponent of the CTAs that fit a multiprocessor over those that it has, for how much slower each
                     is
    crowded          times the share of a second round's room that is taken: how far its CTAs fill some multiprocessors
    store            of an access of a warp to D
    written          times what as many bytes take to be read from memory, of D
    runs             more of it, where each run of a tile of D in memory is a cache line
    torn             more of it, where each sector is written in part
    apart            how far the store of one CTA goes on beside the products of another: see above
    across           times their multiply-adds, of threads with more columns than rows
    full             times what D takes to be written by threads with more than `_SUMS` sums, which leave them few
                     registers
    issue            of any of these accesses to global memory, besides, which schedulers do not multiply meanwhile
    added            for each `_ADDED_AT_ONCE` parts, of the kernel that adds their sums
    accumulators     times what the parts' sums take to be written and read
    streamed         of that kernel, where it has to find the parts of each tile; and of the second tile of a CTA
    repack           of the kernel that packs; packed: times what its bytes take
    within, beside   the exponent of `together` for what a k-tile waits for, and for DRAM
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
    """Columns of what of many plans their time depends on.

    bm, bn, bk                        of a CTA's tile
    ctas                              that share a multiprocessor
    ahead                             k-tiles under way while one is multiplied
    by_registers                      1 where a tile goes through registers, else 0
    warps                             of a CTA
    wide, narrow, transposes, reads   accesses of warps for a k-tile: see `SimtCosts`
    across                            1 where a thread has more columns than rows, else 0
    stores                            accesses of warps for a tile of D
    torn, torn_even                   writes of parts of a sector of D, for each that it has; where CTAs share k-tiles
                                      evenly
    runs                              of a tile of D in memory, for each cache line that they have
    packs_a, packs_b                  1 where the operand is packed first, else 0
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
        """Of plans whose K is not split."""
        return cls(*np.array([_row(plan) for plan in plans], dtype=float).T)

    def tiles_of(self, problem: Problem) -> Column:
        """Tiles of D."""
        return np.ceil(problem.m / self.bm) * np.ceil(problem.n / self.bn) * problem.l


def _row(plan: GemmPlan) -> tuple[float, ...]:
    """The columns' values of a plan."""
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
    values = plan.store_d.values if plan.copy_d is None else plan.copy_d.atom.values
    repacks = [repack.name for repack in plan.repacks]
    ahead = 1 if by_registers else max(1, plan.stages - 1)
    return (
        bm, bn, bk, plan.ctas_per_sm, ahead, by_registers, warps, wide, narrow, transposes, reads,
        rows < columns,
        bm * bn / (values * WARP_THREADS), *_torn(plan), _runs(plan), "a" in repacks, "b" in repacks,
    )  # fmt: skip


def _runs(plan: GemmPlan) -> float:
    """Runs of a tile of D in memory, for each cache line that they have."""
    operand, (bm, bn, _) = plan.operands.d, plan.cta_tile
    return CACHE_LINE_BYTES * 8 / operand.dtype.bits / (bn if operand.major == "n" else bm)


def _torn(plan: GemmPlan) -> tuple[float, float]:
    """Writes of parts of a sector of D, for each that it has: as the plan stores, and by threads from registers."""
    operand = plan.operands.d
    sector, vector = SECTOR_BYTES * 8 // operand.dtype.bits, ACCESS_BITS // operand.dtype.bits
    by_threads = vector / plan.store_d.values if plan.store_d.values < vector else 0.0
    if plan.copy_d is None:
        return by_threads, by_threads
    bm, bn, _ = plan.cta_tile
    ends = 2 * sector / (bn if operand.major == "n" else bm)
    return ends if operand.align_bytes * 8 < ACCESS_BITS else 0.0, by_threads


def _thread_tile(plan: GemmPlan) -> tuple[int, int]:
    """(M, N) elements of D of a thread."""
    (bm, bn, _), mma = plan.cta_tile, plan.tiled_mma
    return product(mma.partition_shape_A((bm, 1))), product(mma.partition_shape_B((bn, 1)))


@dataclass(frozen=True)
class _Work:
    """Columns of what the multiprocessor with the most to do runs, and of the parts that K is split into.

    rounds     of as many CTAs as fit, each with `deep` k-tiles
    rest       CTAs of a last round, each with `last` k-tiles
    epilogue stages      parts whose sums are written
    added      of a tile
    is_split   whether there are any
    is_even    whether CTAs share k-tiles evenly
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
    held: Column, count: Column, k_tiles: Column, splits: Column, grid: Column, sms: int, costs: SimtCosts
) -> _Work:
    """The first CTAs are spread over all multiprocessors; those of a last round go where others end, several at a time,
    the less so the more rounds there were.

    held             CTAs that share a multiprocessor
    count, k_tiles   tiles of D, and k-tiles of each
    """
    ctas, at_once, deep = count * splits, sms * held, np.ceil(k_tiles / splits)
    rounds = np.floor(ctas / at_once)
    left = ctas - rounds * at_once
    rest = np.ceil(left / sms)
    crowd = np.minimum(1.0, costs.crowded * left / at_once) / np.maximum(1.0, rounds)
    rest = rest + np.minimum(rounds, 1.0) * crowd * (held - rest)
    is_even = grid > 0
    if not is_even.any():
        return _Work(rounds, deep, rest, deep, ctas, splits, splits > 1, is_even)
    among = np.maximum(grid, 1.0)
    shared = count % among
    workers = np.maximum(1.0, np.minimum(among, np.maximum(shared, shared * k_tiles // LEAST_RUN)))
    slots = workers + shared - 1

    def either(even: Column, split: Column) -> Column:
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
    """The times of SIMT plans that have these tiles."""

    tiles: Tiles
    operands: Operands
    device: Device
    costs: SimtCosts = COSTS

    @classmethod
    def of(cls, recipes: Sequence[SimtRecipe], operands: Operands, device: Device, costs: SimtCosts = COSTS) -> Model:
        """Return the times of the plans of recipes."""
        plans = [replace(recipe, split=None, ctas=None).build(operands, device=device) for recipe in recipes]
        return cls(Tiles.of(plans), operands, device, costs)

    def predict(self, variants: Variants, problem: Problem) -> Predicted:
        """Return how long candidates take: see `candidate.Family`."""
        of, splits, grid = variants.recipe, variants.splits, variants.ctas
        costs, tiles = self.costs, self.tiles
        held, count = of_rows(tiles.ctas, of), of_rows(tiles.tiles_of(problem), of)
        k_tiles = of_rows(np.maximum(1.0, np.ceil(problem.k / tiles.bk)), of)
        work = _work(held, count, k_tiles, splits, grid, self.device.sms, costs)
        latency_us, loads_us, mma_us, warps = [
            of_rows(column, of) for column in (self._latency_us, self._loads_us, self._mma_us, tiles.warps)
        ]

        def steps_us(ctas: Column, k_tiles: Column) -> Column:
            """Of all k-tiles, with so many CTAs at a time."""
            at_a_time = np.maximum(1.0, ctas)
            idle = _idle(np.ceil(at_a_time) * warps) * (held / at_a_time) ** costs.few
            each = together(costs.within, latency_us, at_a_time * loads_us, at_a_time * mma_us * idle)
            return k_tiles * each

        ctas, is_rest = work.rounds * held + work.rest, np.minimum(1.0, work.rest)
        turns = work.rounds + np.ceil(is_rest)
        written_us = costs.store * ctas * of_rows(tiles.stores, of) + self._written_us(problem, of, work)
        ends_us = of_rows(self._start_us, of) + costs.round * (1 + (turns - 1) / held)
        memory_us, repack_start_us = self._memory_us(problem)
        memory_us, repack_start_us = of_rows(memory_us, of), of_rows(repack_start_us, of)
        added_us = costs.added * np.ceil(work.added / _ADDED_AT_ONCE)
        added_us = added_us + costs.streamed * work.is_even + work.slots * of_rows(self._partials_us, of)
        added_us = added_us * work.is_split
        last_us = steps_us(work.rest, work.last) * np.ceil(is_rest)
        turns_us = work.rounds * steps_us(held, work.deep) + last_us
        apart = 1 + costs.apart * np.maximum(0.0, held - _IN_STEP) * (1 - 1 / np.maximum(1.0, turns))
        body_us = together(apart, together(costs.beside, turns_us, memory_us), written_us)
        us = ends_us + body_us + added_us + repack_start_us

        def bounds() -> dict[str, Column]:
            of_k = work.rounds * held * work.deep + work.rest * work.last
            waited = latency_us * (work.rounds * work.deep + np.ceil(is_rest) * work.last)
            ends, products = ends_us + written_us, mma_us * of_k
            found = waited, loads_us * of_k, products, memory_us, ends, added_us, repack_start_us
            return dict(zip(_BOUNDS, found, strict=True))

        return Predicted(us, bounds)

    @cached_property
    def _start_us(self) -> Column:
        """Of the kernel, and the products of the last k-tile."""
        costs, tiles = self.costs, self.tiles
        drain_us = costs.drain * self._mma_us * WARP_SCHEDULERS / tiles.warps
        return costs.start + costs.alone / tiles.ctas + drain_us

    @cached_property
    def _latency_us(self) -> Column:
        """Of a k-tile."""
        costs, tiles = self.costs, self.tiles
        return costs.latency / tiles.ahead + costs.step + costs.block * tiles.bk

    @cached_property
    def _loads_us(self) -> Column:
        """Of a k-tile."""
        costs, tiles = self.costs, self.tiles
        loads_us = costs.wide * tiles.wide + costs.narrow * tiles.narrow
        return loads_us + costs.transposes * tiles.transposes + costs.reads * tiles.reads

    @cached_property
    def _mma_us(self) -> Column:
        """Of a k-tile."""
        costs, tiles = self.costs, self.tiles
        per_us = self.device.measured.ffma_tflops * 1e6 / self.device.sms
        per_us = per_us * _share_of_f32(self.operands, self.device)
        mma_us = 2.0 * tiles.bm * tiles.bn * tiles.bk / per_us
        mma_us = mma_us * np.where(tiles.across, costs.across, 1.0)
        return mma_us + costs.issue * (tiles.wide + tiles.narrow + tiles.transposes)

    @cached_property
    def _full(self) -> Column:
        """See `SimtCosts.full`."""
        tiles = self.tiles
        return np.where(tiles.bm * tiles.bn > tiles.warps * (WARP_THREADS * _SUMS), self.costs.full, 1.0)

    @cached_property
    def _partials_us(self) -> Column:
        """Of a part of a tile: its sums are written, and read."""
        return self.costs.accumulators * partials_us(self.tiles.bm, self.tiles.bn, self.operands, self.device)

    @cached_property
    def _sectors_torn_by_partials(self) -> Column:
        """Of the kernel that adds the sums: it is as slow by narrow accesses."""
        return np.minimum(1.0, self.tiles.torn_even)

    def _written_us(self, problem: Problem, of: Column, work: _Work) -> Column:
        """Until D is in memory."""
        costs, tiles = self.costs, self.tiles
        torn: Column = np.where(work.is_split, of_rows(self._sectors_torn_by_partials, of), of_rows(tiles.torn, of))
        torn = np.where(work.is_even, of_rows(tiles.torn_even, of), torn)
        d_bytes = problem.m * problem.n * problem.l * self.operands.d.dtype.bits / 8
        d_us = costs.written * d_bytes / (self.device.measured.thread_read_gb_s * 1e3)
        d_us = d_us * of_rows(self._full, of)
        return d_us * (1 + costs.runs * of_rows(tiles.runs, of) + costs.torn * torn)

    def _memory_us(self, problem: Problem) -> tuple[Column, Column]:
        """What it takes to read A and B from memory, and to pack those of them that are packed."""
        costs, tiles, rates = self.costs, self.tiles, self.device.measured
        a_bytes = problem.m * problem.k * problem.l * self.operands.a.dtype.bits / 8
        b_bytes = problem.n * problem.k * problem.l * self.operands.b.dtype.bits / 8
        packed = a_bytes * tiles.packs_a + b_bytes * tiles.packs_b
        repack_start_us = costs.repack + costs.packed * 2 * packed / (rates.repack_along_mn_gb_s * 1e3)
        repacks = np.maximum(tiles.packs_a, tiles.packs_b)
        return (a_bytes + b_bytes - packed) / (rates.thread_read_gb_s * 1e3), repack_start_us * repacks


def _idle(warps: Column) -> Column:
    """How many times as long products take: fewer warps than schedulers leave some idle; more of them that do not
    divide evenly leave some with less to do.

    >>> _idle(np.array([2, 4, 6, 8])).round(2).tolist()
    [2.0, 1.0, 1.15, 1.0]
    """
    uneven = np.ceil(warps / WARP_SCHEDULERS) * (WARP_SCHEDULERS / warps)
    return np.where(warps < WARP_SCHEDULERS, uneven, np.sqrt(uneven))


def _share_of_f32(operands: Operands, device: Device) -> float:
    """Of the rate of f32's multiply-adds, that of the sums' type."""
    peaks = device.tflops
    return peaks.get(f"fma.{operands.acc}", peaks["fma.f32"]) / peaks["fma.f32"]
