"""How long plans of mma.sync will take, many at a time: from the latency of memory up to the rate of the tensor cores.

The CTAs of the multiprocessor that has the most of them run a few at a time, each through its k-tiles one after the
other. A k-tile takes as long as the slowest of

    latency        of memory, over the k-tiles that are under way; besides the barrier, the first fragments, and narrow
                   loads, which a warp issues one after the other
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
from dataclasses import dataclass

import numpy as np

from cutegemm.choose.candidate import Predicted
from cutegemm.choose.columns import LINES_AT_A_TIME, Column, Columns, together
from cutegemm.machine.arch import CACHE_LINE_BYTES, SECTOR_BYTES, WARP_THREADS
from cutegemm.machine.device import Device
from cutegemm.plan.plan import HALF_BITS, GemmPlan
from cutegemm.plan.problem import Operands, Problem
from cutegemm.tile.tiled_copy import TiledCopy

_BOUNDS = "latency", "loads", "tensor cores", "DRAM", "start and end", "sums of parts"
_FILLED = 32 << 10  # bytes of a k-tile of 128 x 128, of elements of 16 bits
_ACCESSES, _SUMS = 32, 32  # of a thread for a k-tile, for which it has registers at the same time
_WARPS = 8  # of a CTA whose threads crowd: see `MmaCosts.crowded`
_ADDED_AT_ONCE = 16  # parts whose sums a thread has under way


@dataclass(frozen=True)
class MmaCosts:
    """What is fitted, in microseconds.

    start       of a kernel, until its first loads are under way, and from its last store to the end
    round       of CTAs: the first k-tile comes, and D is written, with no products meanwhile
    fill        besides, for each `_FILLED` bytes of the k-tiles that come first
    hot         besides, for each sector of them that all CTAs together ask one slice of L2 for
    latency     of a k-tile
    step        of a k-tile, what is no latency of memory
    own_words, own_halves   for each access of 4 and of 2 bytes that a thread has for a k-tile
    crowded     times the accesses of a thread beyond `_ACCESSES`, times its sums beyond `_SUMS`, of `_WARPS` warps
    quads, doubles, words, halves   of an access of a warp: of 16 bytes a lane, of 8, of 4, of 2
    peak        of the tensor cores' peak, what tiles of rate 1 reach
    store       of an access of a warp to D
    written     times what a D takes to go to memory, that is added
    launch      of the kernel that adds the sums of parts
    added       for each `_ADDED_AT_ONCE` parts
    sums        times what the parts' sums take to be written and read
    within      the exponent of `together` for what a k-tile waits for
    """

    start: float = 4.5
    round: float = 0.83
    fill: float = 0.93
    hot: float = 0.0005
    latency: float = 0.321
    step: float = 0.000627
    own_words: float = 0.00863
    own_halves: float = 0.00895
    crowded: float = 0.0005
    quads: float = 0.0015
    doubles: float = 0.00467
    words: float = 0.00319
    halves: float = 0.00131
    peak: float = 0.833
    store: float = 0.00232
    written: float = 0.74
    launch: float = 1.2
    added: float = 0.54
    sums: float = 0.38
    within: float = 2.15


COSTS = MmaCosts()


@dataclass(frozen=True)
class Tiles(Columns):
    """Columns of what of many plans their time depends on.

    bm, bn, bk           of a CTA's tile
    ctas                 that share a multiprocessor
    ahead                k-tiles under way while one is multiplied
    warps                of a CTA
    quads, doubles, words, halves   accesses of warps for a k-tile, of 16 bytes a lane, of 8, of 4, of 2
    stores               accesses of warps for a tile of D
    rate                 of the tiles on large problems, that of `mma_128x256` being 1
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
    return [load for load in (plan.load_a, plan.load_b) if isinstance(load, TiledCopy)]


def _ahead(plan: GemmPlan) -> int:
    by_registers = any(not load.atom.is_async for load in _loads(plan))
    return 1 if by_registers else max(1, plan.stages - 1)


def _accesses(plan: GemmPlan) -> dict[int, float]:
    """Of warps for a k-tile, by the bytes of a lane; TMA's are one thread's."""
    (bm, bn, bk), found = plan.cta_tile, dict.fromkeys((16, 8, 4, 2), 0.0)
    for extent, load in ((bm, plan.load_a), (bn, plan.load_b)):
        if isinstance(load, TiledCopy):
            size = max(load.atom.bits, HALF_BITS) // 8
            found[size] += extent * bk / (load.atom.values * WARP_THREADS)
    return found


def _stores(plan: GemmPlan) -> float:
    """Of warps for a tile of D: by whole lines, where it passes through shared memory, else from registers."""
    bm, bn, _ = plan.cta_tile
    values = plan.store_d.values if plan.copy_d is None else plan.copy_d.atom.values
    return bm * bn / (values * WARP_THREADS)


def predicted(
    tiles: Tiles,
    peak_tflops: float | None,
    operands: Operands,
    problem: Problem,
    device: Device,
    parts: Column = 1,
    costs: MmaCosts = COSTS,
) -> Predicted:
    """What plans take that have these tiles.

    peak_tflops   of the tensor cores, by mma.sync; None where the device has none
    parts         of K, a column
    """
    cost, rates = costs, device.measured
    all_k_tiles = -(-problem.k // tiles.bk)
    k_tiles = np.maximum(1, -(-all_k_tiles // parts))
    per_sm = np.maximum(1, -(-tiles.tiles_of(problem) * parts // device.sms))
    rounds, rest = per_sm // tiles.ctas, per_sm % tiles.ctas
    accesses = np.maximum(0.0, (tiles.words + tiles.halves) / tiles.warps - _ACCESSES)
    sums = np.maximum(0.0, tiles.bm * tiles.bn / (tiles.warps * WARP_THREADS) - _SUMS)
    crowd_us = cost.crowded * accesses * sums * tiles.warps / _WARPS
    own_us = (cost.own_words * tiles.words + cost.own_halves * tiles.halves) / tiles.warps
    latency_us = cost.latency / tiles.ahead + cost.step + own_us
    wide_us = cost.quads * tiles.quads + cost.doubles * tiles.doubles
    loads_us = wide_us + cost.words * tiles.words + cost.halves * tiles.halves
    per_us = (peak_tflops or 1.0) * 1e6 / device.sms * cost.peak * tiles.rate  # products, of a multiprocessor
    products_us = 2.0 * tiles.bm * tiles.bn * tiles.bk / per_us

    def steps_us(ctas: Column) -> Column:
        """Of all k-tiles, with so many CTAs at a time, which cover less of each other's latencies if they are few."""
        slower = np.sqrt(tiles.ctas / np.maximum(1, ctas))
        each = together(cost.within, latency_us, ctas * loads_us, ctas * products_us * slower)
        return np.where(ctas, k_tiles * (each + ctas * crowd_us), 0.0)

    first_bytes = (
        np.minimum(per_sm, tiles.ctas) * (tiles.bm + tiles.bn) * tiles.bk * operands.a.dtype.bits / 8
    )
    round_us = cost.round + cost.fill * first_bytes / _FILLED
    round_us = round_us + cost.hot * _asked(tiles, operands, problem, device, parts)
    ends_us = cost.start + round_us * (1 + (rounds + (rest > 0) - 1) / tiles.ctas)
    d_bytes = problem.m * problem.n * problem.l * operands.d.dtype.bits / 8
    d_us = cost.written * d_bytes / (rates.thread_read_gb_s * 1e3)
    ends_us = ends_us + cost.store * per_sm * tiles.stores + d_us
    bits = problem.m * operands.a.dtype.bits + problem.n * operands.b.dtype.bits
    memory_us = bits / 8 * problem.k * problem.l / (rates.thread_read_gb_s * 1e3)
    turns_us = rounds * steps_us(tiles.ctas) + steps_us(rest)
    moved = 2 * tiles.tiles_of(problem) * parts * tiles.bm * tiles.bn * operands.acc.bits / 8
    sums_us = cost.launch + cost.added * -(-parts // _ADDED_AT_ONCE)
    sums_us = sums_us + cost.sums * moved / (rates.sums_gb_s * 1e3)
    sums_us = np.where(parts > 1, sums_us, 0.0)
    us = ends_us + together(cost.within, turns_us, memory_us) + sums_us
    if peak_tflops is None:
        us = np.full(len(us), np.inf)
    of_k = k_tiles * per_sm
    waited = latency_us * k_tiles * (rounds + (rest > 0))
    memory = np.full(len(us), memory_us)
    return Predicted(
        us,
        dict(
            zip(_BOUNDS, (waited, loads_us * of_k, products_us * of_k, memory, ends_us, sums_us), strict=True)
        ),
    )


def _asked(tiles: Tiles, operands: Operands, problem: Problem, device: Device, parts: Column) -> Column:
    """How often a slice of L2 is asked for sectors of first k-tiles: the few lines of a small operand by all CTAs."""
    rows, columns = np.ceil(problem.m / tiles.bm), np.ceil(problem.n / tiles.bn)
    at_a_time = np.minimum(rows * columns * problem.l * parts, device.sms * tiles.ctas)
    found: Column = 0.0
    for name, extent, tile, others, beside in (
        ("a", problem.m, tiles.bm, rows, columns),
        ("b", problem.n, tiles.bn, columns, rows),
    ):
        operand = getattr(operands, name)
        along_mn, along_k = np.minimum(extent, tile), np.minimum(problem.k, tiles.bk)
        is_k_major = operand.major == "k"
        pieces, piece = (along_mn, along_k) if is_k_major else (along_k, along_mn)
        row_bytes = (problem.k if is_k_major else extent) * operand.dtype.bits / 8
        piece_bytes = piece * operand.dtype.bits / 8
        sectors = pieces * np.ceil(piece_bytes / SECTOR_BYTES)
        # Of short rows a line holds several
        lines = pieces * np.where(
            row_bytes < CACHE_LINE_BYTES,
            row_bytes / CACHE_LINE_BYTES,
            np.ceil(piece_bytes / CACHE_LINE_BYTES),
        )
        readers = np.maximum(1, np.minimum(beside, at_a_time / np.maximum(1, others)))
        found = np.maximum(found, readers * sectors / np.clip(lines, 1, LINES_AT_A_TIME))
    return found
