"""Predicted times of many mma.sync plans at once: from the latency of memory up to the rate of the tensor cores.

The multiprocessor (SM) with the most CTAs determines the time. It runs a few CTAs at a time, in rounds, and each CTA
goes through its k-tiles one after the other. A k-tile takes as long as the slowest of

    latency        a load from memory, divided by the k-tiles in flight; plus narrow loads, which a warp issues one
                   after another
    loads          loads of all CTAs of the SM, by the bytes of an access: narrow loads need many accesses
    tensor cores   MMAs, at the rate of the plan's tiles

Activities that overlap add up partly: see `together`. The kernel takes at least as long as A and B take to be read from
DRAM. To this are added the start of the kernel, the first k-tile and the store of D for each round of CTAs, and the
second kernel that reads and adds the accumulators if K is split.

The rates of the chip are those of its `Device`. `MmaCosts` is fitted to times after a flush of the L2 cache on an H200
and an H100; `python -m docs.evidence fit-mma-sync FILE.json ...` fits it again.
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

_BOUNDS = "latency", "loads", "tensor cores", "DRAM", "start and end", "adding K splits"
_FILLED = 32 << 10  # bytes of a k-tile of A and B of 128 x 128, with elements of 16 bits
_LINES_AT_A_TIME = 64  # cache lines that the slices of L2 deliver at a time
_ADDED_AT_ONCE = 16  # K splits whose accumulators a thread loads at once


@dataclass(frozen=True)
class MmaCosts:
    """Constants that predict the time of mma.sync plans, fitted to measured times.

    They are in microseconds, unless called a factor or an exponent.

    start                           time from the kernel's start to its first loads, plus that from its last store to
                                    its end
    round                           time of each round of CTAs (those that run at the same time) that is not MMAs:
                                    arrival of the first k-tile, store of D
    fill                            addition to `round` for each `_FILLED` bytes of the first k-tiles
    hot                             addition to `round` for each sector of the first k-tiles that all CTAs together
                                    request from one slice of L2
    latency                         latency of loading a k-tile from memory
    own_halves                      time of each 2-byte access of a thread for a k-tile
    quads, doubles, words, halves   time of each warp-wide access of 16, 8, 4 and 2 bytes per lane
    peak                            fraction of the tensor cores' peak that tiles of rate 1 reach
    store                           time of each warp-wide store to D
    last                            time of each warp-wide store of an SM's last tile, which nothing overlaps
    written                         factor on the time that D takes at the speed of memory
    launch                          launch of the kernel that adds K splits
    added                           time for each `_ADDED_AT_ONCE` K splits in that kernel
    accumulators                    factor on the time to write and read the accumulators of K splits
    within                          exponent of `together` (p-norm of overlapping times) for a k-tile
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
    """Properties of mma.sync plans that their predicted time depends on, as arrays with one entry per plan.

    bm, bn, bk                      tile of a CTA, in elements
    ctas                            CTAs that share an SM
    ahead                           k-tiles whose loads are in flight while one is multiplied
    warps                           warps of a CTA
    quads, doubles, words, halves   warp-wide load instructions for a k-tile, of 16, 8, 4 and 2 bytes per lane
    stores                          warp-wide store instructions for a tile of D
    rate                            speed on large problems, relative to the plan `mma_128x256`
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
        """Return the properties of mma.sync plans that their predicted time depends on. None of the plans may split K.

        rates   speed of each plan on large problems, relative to the plan `mma_128x256`
        """
        accesses = [_accesses(plan) for plan in plans]
        tiles = [plan.cta_tile for plan in plans]
        return cls(
            bm=np.array([bm for bm, _, _ in tiles]),
            bn=np.array([bn for _, bn, _ in tiles]),
            bk=np.array([bk for _, _, bk in tiles]),
            ctas=np.array([plan.ctas_per_sm for plan in plans]),
            ahead=np.array([_ahead(plan) for plan in plans]),
            warps=np.array([plan.threads // WARP_THREADS for plan in plans]),
            quads=np.array([by_bytes[16] for by_bytes in accesses]),
            doubles=np.array([by_bytes[8] for by_bytes in accesses]),
            words=np.array([by_bytes[4] for by_bytes in accesses]),
            halves=np.array([by_bytes[2] for by_bytes in accesses]),
            stores=np.array([_stores(plan) for plan in plans]),
            rate=np.array(rates),
        )

    def tiles_of(self, problem: Problem) -> Column:
        """Return the number of tiles of D, over all batches, for each mma.sync plan."""
        return -(-problem.m // self.bm) * -(-problem.n // self.bn) * problem.l


def _loads(plan: GemmPlan) -> list[TiledCopy]:
    """Return the tiled copies of A and B that the plan's threads execute. An operand that TMA loads has none here."""
    return [load for load in (plan.a.load, plan.b.load) if isinstance(load, TiledCopy)]


def _ahead(plan: GemmPlan) -> int:
    """Return the number of k-tiles whose loads are in flight while one k-tile is multiplied, at least 1.

    It is the number of stages minus one. If A or B is loaded through registers, it is 1.
    """
    by_registers = any(not load.atom.is_async for load in _loads(plan))
    return 1 if by_registers else max(1, plan.stages - 1)


def _accesses(plan: GemmPlan) -> dict[int, float]:
    """Return how many warp-wide load instructions a k-tile takes: bytes per lane (16, 8, 4 or 2) -> number.

    TMA loads do not count, because a single thread issues them.
    """
    (bm, bn, bk), by_bytes = plan.cta_tile, dict.fromkeys((16, 8, 4, 2), 0.0)
    for extent, load in ((bm, plan.a.load), (bn, plan.b.load)):
        if isinstance(load, TiledCopy):
            size = max(load.atom.bits, HALF_BITS) // 8
            by_bytes[size] += extent * bk / (load.atom.values * WARP_THREADS)
    return by_bytes


def _stores(plan: GemmPlan) -> float:
    """Return the number of warp-wide store instructions for a tile of D.

    The tile is stored as whole cache lines through shared memory, or as fragments from registers, as the plan says.
    """
    bm, bn, _ = plan.cta_tile
    return bm * bn / (plan.store.store_atom.values * WARP_THREADS)


@dataclass(frozen=True, eq=False)
class Model:
    """Predicts the times of many mma.sync plans for given operands on a device. Methods return one entry per plan.

    tiles         properties of the plans that the time depends on
    peak_tflops   peak rate of mma.sync for the operands' type, in TFLOP/s; None if the device cannot multiply it so
    costs         fitted constants of the model
    """

    tiles: Tiles
    peak_tflops: float | None
    operands: Operands
    device: Device
    costs: MmaCosts = COSTS

    @classmethod
    def of(cls, recipes: Sequence[MmaSyncRecipe], operands: Operands, device: Device, costs: MmaCosts = COSTS) -> Model:
        """Return the time model of the mma.sync plans that `recipes` describe. Each recipe must have a `rate`.

        operands   operands that the plans are built for
        costs      fitted constants of the model
        """
        plans = [replace(recipe, split=None).build(operands, device=device) for recipe in recipes]
        tiles = Tiles.of(plans, [recipe.rate or 0.0 for recipe in recipes])
        return cls(tiles, device.peak_tflops(plans[0].tiled_mma.atom), operands, device, costs)

    def predict(self, variants: Variants, problem: Problem) -> Predicted:
        """Return predicted times of mma.sync candidates; infinite if the device cannot multiply the type by mma.sync.

        variants   the candidates: indices of plans, each with a number of K splits
        """
        recipes, splits = variants.recipe, variants.splits
        costs, tiles, rates = self.costs, self.tiles, self.device.measured
        k_tiles = np.maximum(1.0, np.ceil(np.ceil(problem.k / tiles.bk.take(recipes)) / splits))
        work, ctas = tiles.tiles_of(problem).take(recipes) * splits, tiles.ctas.take(recipes)
        per_sm = np.maximum(1.0, np.ceil(work / self.device.sms))
        rounds = np.floor(per_sm / ctas)
        rest = per_sm - rounds * ctas
        is_rest = np.minimum(rest, 1.0)
        latency_us, loads_us, mma_us = [of_rows(us, recipes) for us in (self._latency_us, self._loads_us, self._mma_us)]

        def steps_us(at_a_time: Column) -> Column:
            """Return the microseconds that an SM takes for all k-tiles of the CTAs that it runs at the same time.

            at_a_time   number of these CTAs, as an array with one entry per candidate. The fewer CTAs there are, the
                        less of the load latency is hidden
            """
            slower = np.sqrt(ctas / np.maximum(1.0, at_a_time))
            return k_tiles * together(costs.within, latency_us, at_a_time * loads_us, at_a_time * mma_us * slower)

        round_us = costs.round + np.minimum(per_sm, ctas) * self._fill_us.take(recipes)
        round_us = round_us + costs.hot * self._sectors_of_slice(problem, recipes, splits)
        ends_us = costs.start + round_us * (1 + (rounds + is_rest - 1) / ctas)
        d_bytes = problem.m * problem.n * problem.l * self.operands.d.dtype.bits / 8
        d_us = costs.written * d_bytes / (rates.thread_read_gb_s * 1e3)
        ends_us = ends_us + (costs.store * per_sm + costs.last) * tiles.stores.take(recipes) + d_us
        bits = problem.m * self.operands.a.dtype.bits + problem.n * self.operands.b.dtype.bits
        memory_us = bits / 8 * problem.k * problem.l / (rates.thread_read_gb_s * 1e3)
        rounds_us = rounds * steps_us(ctas) + steps_us(rest) * is_rest
        added_us = costs.launch + costs.added * np.ceil(splits / _ADDED_AT_ONCE)
        added_us = (added_us + work * self._partials_us.take(recipes)) * (splits > 1)
        us = ends_us + together(costs.within, rounds_us, memory_us) + added_us
        if self.peak_tflops is None:
            us = np.full(len(us), np.inf)

        def bounds() -> dict[str, Column]:
            """Return the microseconds that each possible bottleneck of a plan would take alone, e.g. {"DRAM": array}.

            Each array has one entry per candidate of the enclosing prediction.
            """
            k_tiles_of_sm = k_tiles * per_sm
            waited = latency_us * k_tiles * (rounds + is_rest)
            us_of = waited, loads_us * k_tiles_of_sm, mma_us * k_tiles_of_sm, memory_us, ends_us, added_us
            return dict(zip(_BOUNDS, us_of, strict=True))

        return Predicted(us, bounds)

    @cached_property
    def _latency_us(self) -> Column:
        """Return the microseconds that a CTA of each plan waits for the load of a k-tile from memory."""
        costs, tiles = self.costs, self.tiles
        return costs.latency / tiles.ahead + costs.own_halves * tiles.halves / tiles.warps

    @cached_property
    def _loads_us(self) -> Column:
        """Return the microseconds that the load instructions of a CTA take for one k-tile, for each plan."""
        costs, tiles = self.costs, self.tiles
        wide_us = costs.quads * tiles.quads + costs.doubles * tiles.doubles
        return wide_us + costs.words * tiles.words + costs.halves * tiles.halves

    @cached_property
    def _mma_us(self) -> Column:
        """Return the microseconds that the MMAs of a CTA take for one k-tile, for each plan."""
        tiles, peak = self.tiles, (self.peak_tflops or 1.0) * 1e6 / self.device.sms
        return 2.0 * tiles.bm * tiles.bn * tiles.bk / (peak * self.costs.peak * tiles.rate)

    @cached_property
    def _fill_us(self) -> Column:
        """Return the part of a CTA's wait for its first k-tile that grows with its bytes, in microseconds per plan."""
        tiles = self.tiles
        filled = (tiles.bm + tiles.bn) * tiles.bk * (self.operands.a.dtype.bits / 8 / _FILLED)
        return self.costs.fill * filled

    @cached_property
    def _partials_us(self) -> Column:
        """Return the microseconds to write and read the accumulators of one K split of a tile, for each plan."""
        return self.costs.accumulators * partials_us(self.tiles.bm, self.tiles.bn, self.operands, self.device)

    def _sectors_of_slice(self, problem: Problem, recipes: Column, splits: Column) -> Column:
        """Return how many 32-byte sectors all CTAs together request from one slice of L2 for their first k-tiles.

        The number is large if all CTAs request the same few cache lines of a small operand, which one slice must
        deliver.

        problem   extents and operands of the GEMM
        recipes   index of each candidate's plan
        splits    number of K splits of each candidate's tiles
        returns   array with one entry per candidate
        """
        tiles = self.tiles
        rows, columns = np.ceil(problem.m / tiles.bm), np.ceil(problem.n / tiles.bn)
        work = (rows * columns * problem.l).take(recipes) * splits
        at_a_time = np.minimum(work, self.device.sms * tiles.ctas.take(recipes))
        most: Column = 0.0
        for name, extent, tile, tiles_along, tiles_across in (
            ("a", problem.m, tiles.bm, rows, columns),
            ("b", problem.n, tiles.bn, columns, rows),
        ):
            sectors = self._sectors_of_line(name, extent, tile, problem).take(recipes)
            across, along = tiles_across.take(recipes), np.maximum(1.0, tiles_along).take(recipes)
            readers = np.maximum(1.0, np.minimum(across, at_a_time / along))
            most = np.maximum(most, readers * sectors)
        return most

    def _sectors_of_line(self, name: str, extent: int, tile: Column, problem: Problem) -> Column:
        """Return the number of 32-byte sectors of an operand's k-tile that come from one cache line, for each plan.

        If the k-tile has several lines, their sectors are divided by the number of lines, up to `_LINES_AT_A_TIME`,
        because L2 delivers that many lines at the same time.

        name     "a" or "b"
        extent   M for A, N for B
        tile     bM or bN of each plan
        """
        operand = getattr(self.operands, name)
        along_mn, along_k = np.minimum(extent, tile), np.minimum(problem.k, self.tiles.bk)
        is_k_major = operand.major == "k"
        pieces, piece = (along_mn, along_k) if is_k_major else (along_k, along_mn)
        row_bytes = (problem.k if is_k_major else extent) * operand.dtype.bits / 8
        piece_bytes = piece * operand.dtype.bits / 8
        sectors = pieces * np.ceil(piece_bytes / SECTOR_BYTES)
        # One line holds several short rows
        is_short = row_bytes < CACHE_LINE_BYTES
        lines_of_piece = row_bytes / CACHE_LINE_BYTES if is_short else np.ceil(piece_bytes / CACHE_LINE_BYTES)
        return sectors / np.minimum(np.maximum(1.0, pieces * lines_of_piece), _LINES_AT_A_TIME)
