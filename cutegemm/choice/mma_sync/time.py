"""How long plans of mma.sync will take, many at a time: from the latency of memory up to the rate of the tensor cores.

The CTAs of the multiprocessor that has the most of them run a few at a time, each through its k-tiles one after the
other. A k-tile takes as long as the slowest of

    latency        of memory, over the k-tiles that are under way; besides, narrow loads, which a warp issues one after
                   the other
    loads          of all CTAs of the multiprocessor, by the bytes of an access: narrow ones are many
    tensor cores   for their products, at the rate of the plan's tiles

What goes on at the same time adds up in part: `together`. The kernel takes no less than the operands take to come from
DRAM. Besides there are its start, for each round of CTAs the first k-tile and the store of D, and where K is split the
launch of a second kernel, which reads what the first has written.

Rates of the chip are those of its `Device`. `MmaCosts` is fitted to what an H200 and an H100 took behind a flush of the
L2 cache; `python -m docs.evidence fit-mma-sync FILE.json ...` fits it anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from cutegemm.choice.candidate import Predicted, Variants
from cutegemm.choice.columns import Column, of_rows, partials_us, together
from cutegemm.choice.mma_sync.recipe import MmaSyncRecipe
from cutegemm.machine.arch import CACHE_LINE_BYTES, SECTOR_BYTES, WARP_THREADS
from cutegemm.machine.device import Device
from cutegemm.plan.plan import HALF_BITS, GemmPlan
from cutegemm.plan.problem import Operands, Problem
from cutegemm.tile.tiled_copy import TiledCopy

_BOUNDS = "latency", "loads", "tensor cores", "DRAM", "start and end", "sums of parts"
_FILLED = 32 << 10  # bytes of a k-tile of 128 x 128, of elements of 16 bits
_LINES_AT_A_TIME = 64  # that slices of L2 deliver
_ADDED_AT_ONCE = 16  # parts whose sums a thread has under way


@dataclass(frozen=True)
class MmaCosts:
    """What is fitted, in microseconds.

    start                           of a kernel, until its first loads are under way, and from its last store to the end
    round                           of CTAs: the first k-tile comes, and D is written, with no products meanwhile
    fill                            besides, for each `_FILLED` bytes of the k-tiles that come first
    hot                             besides, for each sector of them that all CTAs together ask one slice of L2 for
    latency                         of a k-tile
    own_halves                      for each access of 2 bytes that a thread has for a k-tile
    quads, doubles, words, halves   of an access of a warp: of 16 bytes a lane, of 8, of 4, of 2
    peak                            of the tensor cores' peak, what tiles of rate 1 reach
    store                           of an access of a warp to D
    last                            of one to the last tile of a multiprocessor, which nothing overlaps
    written                         times what a D takes to go to memory, that is added
    launch                          of the kernel that adds the sums of parts
    added                           for each `_ADDED_AT_ONCE` parts
    accumulators                    times what the parts' sums take to be written and read
    within                          the exponent of `together` for what a k-tile waits for
    """

    start: float = 4.5
    round: float = 0.8
    fill: float = 0.93
    hot: float = 0.0005
    latency: float = 0.321
    own_halves: float = 0.0105
    quads: float = 0.0015
    doubles: float = 0.00467
    words: float = 0.0042
    halves: float = 0.0011
    peak: float = 0.833
    store: float = 0.001
    last: float = 0.006
    written: float = 0.74
    launch: float = 1.2
    added: float = 0.54
    accumulators: float = 0.38
    within: float = 2.15


COSTS = MmaCosts()


@dataclass(frozen=True, eq=False)
class Tiles:
    """Columns of what of many plans their time depends on.

    bm, bn, bk                      of a CTA's tile
    ctas                            that share a multiprocessor
    ahead                           k-tiles under way while one is multiplied
    warps                           of a CTA
    quads, doubles, words, halves   accesses of warps for a k-tile, of 16 bytes a lane, of 8, of 4, of 2
    stores                          accesses of warps for a tile of D
    rate                            of the tiles on large problems, that of `mma_128x256` being 1
    """

    bm: Column
    bn: Column
    bk: Column
    ctas: Column
    ahead: Column
    warps: Column
    quads: Column
    doubles: Column
    words: Column
    halves: Column
    stores: Column
    rate: Column

    @classmethod
    def of(cls, plans: Sequence[GemmPlan], rates: Sequence[float]) -> Tiles:
        """Of plans whose K is not split, with their rates."""
        accesses = [_accesses(plan) for plan in plans]
        tiles = [plan.cta_tile for plan in plans]
        return cls(
            bm=np.array([bm for bm, _, _ in tiles]),
            bn=np.array([bn for _, bn, _ in tiles]),
            bk=np.array([bk for _, _, bk in tiles]),
            ctas=np.array([plan.ctas_per_sm for plan in plans]),
            ahead=np.array([_ahead(plan) for plan in plans]),
            warps=np.array([plan.threads // WARP_THREADS for plan in plans]),
            quads=np.array([found[16] for found in accesses]),
            doubles=np.array([found[8] for found in accesses]),
            words=np.array([found[4] for found in accesses]),
            halves=np.array([found[2] for found in accesses]),
            stores=np.array([_stores(plan) for plan in plans]),
            rate=np.array(rates),
        )

    def tiles_of(self, problem: Problem) -> Column:
        """Tiles of D."""
        return -(-problem.m // self.bm) * -(-problem.n // self.bn) * problem.l


def _loads(plan: GemmPlan) -> list[TiledCopy]:
    return [load for load in (plan.a.load, plan.b.load) if isinstance(load, TiledCopy)]


def _ahead(plan: GemmPlan) -> int:
    by_registers = any(not load.atom.is_async for load in _loads(plan))
    return 1 if by_registers else max(1, plan.stages - 1)


def _accesses(plan: GemmPlan) -> dict[int, float]:
    """Of warps for a k-tile, by the bytes of a lane; TMA's are one thread's."""
    (bm, bn, bk), found = plan.cta_tile, dict.fromkeys((16, 8, 4, 2), 0.0)
    for extent, load in ((bm, plan.a.load), (bn, plan.b.load)):
        if isinstance(load, TiledCopy):
            size = max(load.atom.bits, HALF_BITS) // 8
            found[size] += extent * bk / (load.atom.values * WARP_THREADS)
    return found


def _stores(plan: GemmPlan) -> float:
    """Of warps for a tile of D: by whole lines, where it passes through shared memory, else from registers."""
    bm, bn, _ = plan.cta_tile
    values = plan.store_d.values if plan.copy_d is None else plan.copy_d.atom.values
    return bm * bn / (values * WARP_THREADS)


@dataclass(frozen=True, eq=False)
class Model:
    """The times of mma.sync plans that have these tiles.

    peak_tflops   of the tensor cores, by mma.sync; None if the device has none
    """

    tiles: Tiles
    peak_tflops: float | None
    operands: Operands
    device: Device
    costs: MmaCosts = COSTS

    @classmethod
    def of(cls, recipes: Sequence[MmaSyncRecipe], operands: Operands, device: Device, costs: MmaCosts = COSTS) -> Model:
        """Return the times of the plans of recipes, all of which have a rate."""
        plans = [replace(recipe, split=None).build(operands, device=device) for recipe in recipes]
        tiles = Tiles.of(plans, [recipe.rate or 0.0 for recipe in recipes])
        return cls(tiles, device.peak_tflops(plans[0].tiled_mma.atom), operands, device, costs)

    def predict(self, variants: Variants, problem: Problem) -> Predicted:
        """Return how long candidates take: see `candidate.Family`."""
        of, splits = variants.recipe, variants.splits
        costs, tiles, rates = self.costs, self.tiles, self.device.measured
        k_tiles = np.maximum(1.0, np.ceil(np.ceil(problem.k / tiles.bk.take(of)) / splits))
        work, ctas = tiles.tiles_of(problem).take(of) * splits, tiles.ctas.take(of)
        per_sm = np.maximum(1.0, np.ceil(work / self.device.sms))
        rounds = np.floor(per_sm / ctas)
        rest = per_sm - rounds * ctas
        is_rest = np.minimum(rest, 1.0)
        latency_us, loads_us, mma_us = [of_rows(us, of) for us in (self._latency_us, self._loads_us, self._mma_us)]

        def steps_us(at_a_time: Column) -> Column:
            """Of all k-tiles, with so many CTAs at a time: few cover less of each other's latencies."""
            slower = np.sqrt(ctas / np.maximum(1.0, at_a_time))
            each = together(costs.within, latency_us, at_a_time * loads_us, at_a_time * mma_us * slower)
            return k_tiles * each

        round_us = costs.round + np.minimum(per_sm, ctas) * self._fill_us.take(of)
        round_us = round_us + costs.hot * self._asked(problem, of, splits)
        ends_us = costs.start + round_us * (1 + (rounds + is_rest - 1) / ctas)
        d_bytes = problem.m * problem.n * problem.l * self.operands.d.dtype.bits / 8
        d_us = costs.written * d_bytes / (rates.thread_read_gb_s * 1e3)
        ends_us = ends_us + (costs.store * per_sm + costs.last) * tiles.stores.take(of) + d_us
        bits = problem.m * self.operands.a.dtype.bits + problem.n * self.operands.b.dtype.bits
        memory_us = bits / 8 * problem.k * problem.l / (rates.thread_read_gb_s * 1e3)
        turns_us = rounds * steps_us(ctas) + steps_us(rest) * is_rest
        added_us = costs.launch + costs.added * np.ceil(splits / _ADDED_AT_ONCE) + work * self._partials_us.take(of)
        added_us = added_us * (splits > 1)
        us = ends_us + together(costs.within, turns_us, memory_us) + added_us
        if self.peak_tflops is None:
            us = np.full(len(us), np.inf)

        def bounds() -> dict[str, Column]:
            of_k = k_tiles * per_sm
            waited = latency_us * k_tiles * (rounds + is_rest)
            found = waited, loads_us * of_k, mma_us * of_k, memory_us, ends_us, added_us
            return dict(zip(_BOUNDS, found, strict=True))

        return Predicted(us, bounds)

    @cached_property
    def _latency_us(self) -> Column:
        """Of a k-tile."""
        costs, tiles = self.costs, self.tiles
        return costs.latency / tiles.ahead + costs.own_halves * tiles.halves / tiles.warps

    @cached_property
    def _loads_us(self) -> Column:
        """Of a k-tile."""
        costs, tiles = self.costs, self.tiles
        wide_us = costs.quads * tiles.quads + costs.doubles * tiles.doubles
        return wide_us + costs.words * tiles.words + costs.halves * tiles.halves

    @cached_property
    def _mma_us(self) -> Column:
        """Of a k-tile."""
        tiles, peak = self.tiles, (self.peak_tflops or 1.0) * 1e6 / self.device.sms
        return 2.0 * tiles.bm * tiles.bn * tiles.bk / (peak * self.costs.peak * tiles.rate)

    @cached_property
    def _fill_us(self) -> Column:
        """Of the first k-tile of a CTA."""
        tiles = self.tiles
        filled = (tiles.bm + tiles.bn) * tiles.bk * (self.operands.a.dtype.bits / 8 / _FILLED)
        return self.costs.fill * filled

    @cached_property
    def _partials_us(self) -> Column:
        """Of a part of a tile: its sums are written, and read."""
        return self.costs.accumulators * partials_us(self.tiles.bm, self.tiles.bn, self.operands, self.device)

    def _asked(self, problem: Problem, of: Column, splits: Column) -> Column:
        """How often a slice of L2 is asked for sectors of first k-tiles: few lines of a small operand by all CTAs."""
        tiles = self.tiles
        rows, columns = np.ceil(problem.m / tiles.bm), np.ceil(problem.n / tiles.bn)
        work = (rows * columns * problem.l).take(of) * splits
        at_a_time = np.minimum(work, self.device.sms * tiles.ctas.take(of))
        found: Column = 0.0
        for name, extent, tile, others, beside in (
            ("a", problem.m, tiles.bm, rows, columns),
            ("b", problem.n, tiles.bn, columns, rows),
        ):
            asked = self._sectors_of_a_line(name, extent, tile, problem).take(of)
            beside, others = beside.take(of), np.maximum(1.0, others).take(of)
            readers = np.maximum(1.0, np.minimum(beside, at_a_time / others))
            found = np.maximum(found, readers * asked)
        return found

    def _sectors_of_a_line(self, name: str, extent: int, tile: Column, problem: Problem) -> Column:
        """Of a k-tile of an operand, for each of its lines that are delivered at a time."""
        operand = getattr(self.operands, name)
        along_mn, along_k = np.minimum(extent, tile), np.minimum(problem.k, self.tiles.bk)
        is_k_major = operand.major == "k"
        pieces, piece = (along_mn, along_k) if is_k_major else (along_k, along_mn)
        row_bytes = (problem.k if is_k_major else extent) * operand.dtype.bits / 8
        piece_bytes = piece * operand.dtype.bits / 8
        sectors = pieces * np.ceil(piece_bytes / SECTOR_BYTES)
        # Of short rows a line holds several
        is_short = row_bytes < CACHE_LINE_BYTES
        of_a_piece = row_bytes / CACHE_LINE_BYTES if is_short else np.ceil(piece_bytes / CACHE_LINE_BYTES)
        return sectors / np.minimum(np.maximum(1.0, pieces * of_a_piece), _LINES_AT_A_TIME)
