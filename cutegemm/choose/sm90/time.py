"""How long Hopper plans will take, many at a time: what bounds a turn of the grid, in a formula of the tile.

A *turn* is a tile of D for each multiprocessor. In a turn a multiprocessor takes a tile's k-tiles, 128 bytes along K
each, one after the other. A k-tile waits for

    tensor cores   for the area of the tile; longer where an operand lies along M or N in rows of 32 bytes
    L2             for the rows of A and of B that a CTA loads, of those that there are, and that a multicast brings
                   once for its cluster; rows that do not begin at a line are dearer
    few lines      that many CTAs read at once: the rows of a small operand
    latency        of a load, over the stages that are under way

and a turn is no shorter than it takes to store the tile; the store of the last one nothing overlaps. A problem takes
no less than reading A and B from memory does, and in the long run no less than the chip's power allows. What goes on at
the same time adds up like the sides of a right triangle: `_together`. What a problem takes besides is the start and,
where K is split, the sums of the parts.

Rates of a chip are those of its `Device`. `Sm90Costs` is fitted to what an H200 and an H100 took, behind a flush of the
L2 cache, for problems that were drawn by a seed; `python -m docs.evidence fit-sm90 FILE.json ...` fits it anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cutegemm.build.sm90 import ring_of
from cutegemm.choose.candidate import Column, Predicted
from cutegemm.machine.arch import CACHE_LINE_BYTES
from cutegemm.machine.device import DEFAULT_DEVICE, Device
from cutegemm.plan.problem import Operands, Problem
from cutegemm.plan.work.shares import Shares, shares_of
from cutegemm.plan.work.split import FILLED, Split
from cutegemm.tile.tma import TMA_INNER_ALIGNED_BYTES

K_TILE_BYTES = 128  # along K of a k-tile: one row of the widest swizzle
_UNIT = 128 * 128  # elements of D
_UNIT_CYCLES = 512  # of the tensor cores, for a k-tile of so many
_BOUNDS = "tensor cores", "L2", "latency", "store of D", "DRAM", "power", "start"
_NARROW_BYTES = 64  # of a row along M or N: less is narrow
_DEFERRED_BITS = 16  # of an element of D, that registers hold beside the sums of the next tile
_PAIRED = 2  # CTAs of a cluster, up to which clusters fill the chip: of four they pay where all run at a time
_LINES = 64  # that slices of L2 deliver at the same time
_BAND = 8  # rows of tiles that are taken side by side, by "grouped_m:8"


@dataclass(frozen=True)
class Sm90Costs:
    """What is fitted, in microseconds and KiB.

    start          of a kernel: until its first product, and from its last one to the end
    fours          of a cluster of four, until its CTAs have met
    narrow         times a k-tile's products, where an operand's rows along M or N have 32 bytes
    two_level      of a k-tile, whose sums threads add to those before it
    l2             of a KiB from L2 that a CTA reads, when all multiprocessors do
    l2_unaligned   times that, where rows do not begin at lines
    l2_apart       times that, of rows along M or N where tiles have owners: the others begin theirs out of step
    l2_fours       times that, in clusters of four
    reader         for each CTA that reads the same few lines
    missing        times a KiB from L2, of rows beyond the end of an operand, which TMA fills with zeros
    load           of a k-tile, from asking for it until it is there
    step           of a k-tile, besides
    store          KiB a microsecond that a multiprocessor stores of D
    store_across   share of that, of a D that TMA does not store, where threads store columns of the tile
    ends_of_rows   bytes that such a D takes besides, for each row of the tiles of a cluster: sectors filled in part
    written        of a D that L2 does not keep, times what as much takes to be read from memory
    store_along    times the rate of such a D, where tiles follow each other along the rows of a larger D
    subtile        of a consumer that leaves through shared memory
    turn           of a tile, besides
    cooperative, deferred   share of the store of a tile that no products overlap, by the way of D
    waited         times that, of a D larger than L2
    meet           where K is split, until the CTAs of a tile have met
    part           for each part that is added
    sums           KiB a microsecond that a CTA writes to L2 or reads from there, of the sums of parts
    ends           where tiles have owners, until they have what others took of the k-tiles
    burst          of tensor cores at work, before the chip is at its power limit
    rests          times the limit, where consumers share tiles that are not stored behind products: tensor cores rest
                   meanwhile, and the clock does not make it up
    """

    start: float = 6.41
    fours: float = 0.5
    narrow: float = 2.2
    two_level: float = 0.025
    l2: float = 0.00811
    l2_unaligned: float = 1.58
    l2_apart: float = 1.32
    l2_fours: float = 0.37
    reader: float = 0.000289
    missing: float = 3.46
    load: float = 0.359
    step: float = 0.0535
    store: float = 46.2
    store_along: float = 1.7
    store_across: float = 0.5
    ends_of_rows: float = 128.0
    written: float = 0.756
    subtile: float = 0.0495
    turn: float = 0.138
    cooperative: float = 0.547
    waited: float = 1.82
    deferred: float = 0.319
    meet: float = 1.55
    part: float = 0.0843
    sums: float = 49.0
    ends: float = 4.51
    burst: float = 60.0
    rests: float = 1.05


COSTS = Sm90Costs()


@dataclass(frozen=True)
class TileShape:
    """What of a plan its time depends on.

    tile        (bM, bN)
    cluster     CTAs along M and N
    epilogue    pingpong, cooperative or deferred: what the products go on behind
    raster      the order of the tiles
    two_level   whether threads add up the sums of each k-tile
    consumers   warpgroups
    subtile_n, slots   of D, where they do not follow from the tile
    is_direct   whether D leaves straight out of registers
    depth       k-tiles of 128 bytes that a stage holds, which are waited for together
    """

    tile: tuple[int, int]
    cluster: tuple[int, int] = (1, 1)
    epilogue: str = "pingpong"
    raster: str = "grouped_m:8"
    two_level: bool = False
    consumers: int = 2
    subtile_n: int | None = None
    slots: int | None = None
    is_direct: bool = False
    depth: int = 1

    def ring(self, operands: Operands) -> tuple[int, int]:
        """Stages, and subtiles of a consumer.

        >>> TileShape((128, 192)).ring(Operands.of("bf16", layout="nt"))
        (4, 6)
        """
        (bm, bn), is_shared = self.tile, self.epilogue != "pingpong"
        rows = bm // self.consumers if is_shared else bm
        k_tile = self.depth * K_TILE_BYTES * 8 // operands.a.dtype.bits
        return ring_of(
            operands, (bm, bn, k_tile), (rows, bn), self.consumers, self.subtile_n, self.slots, self.is_direct
        )


def may_defer(operands: Operands) -> bool:
    """Whether a tile can be stored behind the next one's products: TMA stores D, and registers hold it beside the sums.

    >>> may_defer(Operands.of("bf16")), may_defer(Operands.of("tf32")), may_defer(Operands.of("bf16", align_bytes=2))
    (True, False, False)
    """
    return operands.d.dtype.bits <= _DEFERRED_BITS and operands.d.align_bytes >= TMA_INNER_ALIGNED_BYTES


@dataclass(frozen=True)
class Shapes:
    """Columns of many `TileShape`s, for operands of some types.

    band       rows of tiles that are taken side by side
    late       1 / (stages - 1): a k-tile's share of a load
    subtiles   of a consumer
    waits      share of a wait that a k-tile of 128 bytes takes: one for twice as many takes 1.4 times as long
    turned     whether the plan is for D^T
    """

    bm: Column
    bn: Column
    cm: Column
    cn: Column
    cooperative: Column
    deferred: Column
    band: Column
    along_m: Column
    along_n: Column
    two_level: Column
    late: Column
    subtiles: Column
    waits: Column
    turned: Column

    @classmethod
    def of(cls, shapes: Sequence[TileShape], operands: Operands, ways: Sequence[bool] = (False,)) -> Shapes:
        """
        ways   whether for D^T: those of each, one behind the other

        >>> Shapes.of([TileShape((128, 192)), TileShape((64, 16))], Operands.of("bf16", layout="nt")).bn
        array([192,  16])
        """
        rings, defers = [one.ring(operands) for one in shapes], may_defer(operands)
        bands = {"along_m": 1 << 20, "along_n": 1}
        columns: list[list[Any]] = [
            [one.tile[0] for one in shapes],
            [one.tile[1] for one in shapes],
            [one.cluster[0] for one in shapes],
            [one.cluster[1] for one in shapes],
            [one.epilogue == "cooperative" or (not defers and one.epilogue == "deferred") for one in shapes],
            [defers and one.epilogue == "deferred" for one in shapes],
            [bands.get(one.raster, _BAND) for one in shapes],
            [one.raster == "along_m" for one in shapes],
            [one.raster == "along_n" for one in shapes],
            [one.two_level for one in shapes],
            [1 / max(1, stages - 1) for stages, _ in rings],
            [subtiles for _, subtiles in rings],
            [one.depth**-0.5 for one in shapes],
        ]
        columns = [column * len(ways) for column in columns]
        columns.append([way for way in ways for _ in shapes])
        return cls(*[np.array(column) for column in columns])

    @property
    def is_four(self) -> Column:
        """Whether clusters have four CTAs."""
        return self.cm * self.cn > _PAIRED

    @property
    def is_deep(self) -> Column:
        """Whether k-tiles have more than 128 bytes along K."""
        return self.waits < 1.0

    def taken(self, rows: Column) -> Shapes:
        """Those of some rows."""
        return Shapes(*[column[rows] for column in vars(self).values()])

    def extents(self, problem: Problem) -> tuple[Column, Column]:
        """M and N, of D or of D^T."""
        if problem.m == problem.n:
            return problem.m, problem.n
        return np.where(self.turned, problem.n, problem.m), np.where(self.turned, problem.m, problem.n)

    def clusters(self, problem: Problem) -> tuple[Column, Column]:
        """Along M and N of D, or of D^T."""
        m, n = self.extents(problem)
        return -(-m // (self.bm * self.cm)), -(-n // (self.bn * self.cn))

    def grid(self, device: Device) -> Column:
        """Clusters that run at a time."""
        return np.maximum(1, np.array(device.clusters_by_size)[self.cm * self.cn])


def predicted(
    shapes: Shapes,
    operands: Operands,
    problem: Problem,
    device: Device = DEFAULT_DEVICE,
    parts: Column = 1,
    owned: Column = False,
    costs: Sm90Costs = COSTS,
    packed: str = "",
    shares: Shares | None = None,
) -> Predicted:
    """What plans take that have these tiles.

    operands   as the GEMM for D reads them: those that were packed, where some were
    parts      of K, a column
    owned      whether tiles that do not fill the grid have owners, a column: see `shares_of`
    packed     names of the operands that were packed, whose rows begin at lines
    shares     `filled` of them, where that is known
    """
    cost, rates, turned = costs, device.measured, shapes.turned
    bm, bn, cm, cn = shapes.bm, shapes.bn, shapes.cm, shapes.cn
    bits = operands.a.dtype.bits
    k_bytes, all_k_tiles = problem.k * bits / 8, -(-problem.k * bits // 8 // K_TILE_BYTES)
    m, n = shapes.extents(problem)
    rows, columns = shapes.clusters(problem)
    tiles, grid = rows * columns * problem.l, shapes.grid(device)
    some_own, some_split = bool(np.any(owned)), bool(np.any(np.greater(parts, 1)))
    if some_own:
        shares = shares or filled(tiles, all_k_tiles, grid)
        owned = owned & (shares.shared > 0)
    k_tiles, units = -(-all_k_tiles // parts), tiles * parts
    # Of a tile, as many rows and columns as there are, and how many CTAs read the same ones at a time
    own_m, own_n = m / np.maximum(1, rows * cm), n / np.maximum(1, columns * cn)
    at_a_time = np.minimum(tiles, grid)
    readers_of_a = np.maximum(
        1, np.minimum(columns, at_a_time / np.maximum(1, np.minimum(rows, shapes.band)))
    )
    reading_a = readers_of_a * np.minimum(1, _LINES / np.maximum(1, own_m * cm))
    reading_b = at_a_time / readers_of_a * np.minimum(1, _LINES / np.maximum(1, own_n * cn))
    waiting_us = cost.reader * np.maximum(reading_a, reading_b)
    products_us = bm * bn * (_UNIT_CYCLES / _UNIT / device.clock_mhz)
    of_a, of_b = _by_way(
        turned, *[cost.l2_unaligned if _unaligned(operands, problem, name, packed) else 1.0 for name in "ab"]
    )
    for_a, for_b = operands.a.major != "k", operands.b.major != "k"
    if for_a or for_b:
        along_a, along_b = _by_way(turned, for_a, for_b)
        narrow_a, narrow_b = [
            along & (extent * bits // 8 % _NARROW_BYTES > 0)
            for along, extent in ((along_a, bm), (along_b, bn))
        ]
        products_us = (
            products_us * np.where(narrow_a, cost.narrow, 1.0) * np.where(narrow_b, cost.narrow, 1.0)
        )
        if some_own:
            of_a = of_a * np.where(owned & along_a, cost.l2_apart, 1.0)
            of_b = of_b * np.where(owned & along_b, cost.l2_apart, 1.0)
    of_a, of_b = of_a * _loaded(m, bm, cost.missing), of_b * _loaded(n, bn, cost.missing)
    l2_us = (
        cost.l2 * K_TILE_BYTES / 1024 * (of_a / cn + of_b / cm) * np.where(shapes.is_four, cost.l2_fours, 1.0)
    )
    latency_us = (cost.step + cost.load * shapes.late) * shapes.waits
    beside_us = waiting_us**2 + products_us**2 + latency_us**2
    d_size = operands.d.dtype.bits / 8
    d_bytes = problem.m * problem.n * problem.l * d_size
    stays, by_threads = d_bytes <= rates.l2_kept_bytes, operands.d.align_bytes < TMA_INNER_ALIGNED_BYTES
    along, across = _along(shapes, operands)
    rate = cost.store * (1.0 if stays else np.where(along, cost.store_along, 1.0))
    if by_threads:
        rate = rate * np.where(across, cost.store_across, 1.0)
        more = 1 + cost.ends_of_rows / (np.where(across, own_m * cm, own_n * cn) * d_size)
        rate, d_bytes = rate / more, d_bytes * more
    store_us = own_m * own_n * d_size / 1024 / rate + cost.subtile * shapes.subtiles
    exposed = np.where(shapes.deferred, cost.deferred, cost.cooperative * shapes.cooperative)
    exposed_us = store_us * (shapes.cooperative if by_threads else exposed * (1.0 if stays else cost.waited))
    hidden_us = np.where(shapes.cooperative, 0.0, store_us)
    sums_us = cost.two_level * shapes.two_level

    def turn_us(share: Column) -> Column:
        """Where that share of the grid has tiles."""
        k_tile_us = np.sqrt(beside_us + (l2_us * share) ** 2) + sums_us
        return _together(k_tile_us * k_tiles + exposed_us, hidden_us) + cost.turn

    whole, rest = units // grid, units % grid
    full_us = turn_us(1.0)
    turns_us = whole * full_us + np.where(rest, turn_us(rest / grid), 0.0)
    meeting_us: Column = 0.0
    part_us = bm * bn * (operands.acc.bits / 8 / 1024 / cost.sums)
    if some_split:
        once_us = cost.meet + parts * (part_us + cost.part)
        meeting_us = np.where(np.greater(parts, 1), once_us * -(-units // grid), 0.0)
    if shares is not None and some_own:
        turns_us = np.where(owned, full_us * (whole + shares.owned / max(1, all_k_tiles)), turns_us)
        workers = shares.workers / np.maximum(1, shares.shared)
        meeting_us = meeting_us + np.where(owned, cost.ends + workers * part_us, 0.0)
    turns = np.maximum(1.0, units / grid)
    read = _read_bytes(shapes, m, n, rows, columns, k_bytes * problem.l, turns, rates.l2_kept_bytes)
    memory_us = (read + (0.0 if stays else cost.written * d_bytes)) / (rates.tma_read_gb_s * 1e3)
    long_us = problem.m * problem.n * problem.l * k_bytes / (rates.wgmma_tflops * 1e6)
    power_us = long_us * long_us / (long_us + cost.burst) * np.where(shapes.cooperative, cost.rests, 1.0)
    us = np.sqrt(_together(_together(turns_us, memory_us) ** 2, power_us**2))
    us = cost.start + cost.fours * shapes.is_four + us + meeting_us + store_us
    of_k = turns * k_tiles
    every = np.ones(len(us))
    bounds = (
        products_us * of_k, np.maximum(l2_us, waiting_us) * of_k, latency_us * of_k, store_us * turns,
        memory_us * every, power_us * every, cost.start * every,
    )  # fmt: skip
    return Predicted(us, dict(zip(_BOUNDS, bounds, strict=True)))


def filled(tiles: Column, k_tiles: int, grid: Column) -> Shares:
    """How tiles are shared that do not fill a grid, and have owners: columns.

    >>> filled(np.array([66, 70]), 100, 66).shared
    array([0, 4])
    """
    return shares_of(FILLED, tiles, k_tiles, grid, np.minimum, np.maximum)


def predicted_us(
    shape: TileShape,
    operands: Operands,
    problem: Problem,
    device: Device = DEFAULT_DEVICE,
    split: Split | None = None,
    costs: Sm90Costs = COSTS,
) -> float:
    """`predicted` of one plan.

    >>> bf16, wide = Operands.of("bf16", layout="nt"), TileShape((128, 256), (2, 1), "deferred")
    >>> 160 < predicted_us(wide, bf16, Problem(4096, 4096, 4096)) < 200
    True
    """
    return float(_of_one(shape, operands, problem, device, split, costs).us[0])


def bound(
    shape: TileShape,
    operands: Operands,
    problem: Problem,
    device: Device = DEFAULT_DEVICE,
    split: Split | None = None,
) -> str:
    """What one plan takes most of its time for, by the model.

    >>> bf16 = Operands.of("bf16", layout="nt")
    >>> bound(TileShape((64, 16)), bf16, Problem(8192, 16, 8192))
    'DRAM'
    """
    return _of_one(shape, operands, problem, device, split, COSTS).bound(0)


def _of_one(
    shape: TileShape,
    operands: Operands,
    problem: Problem,
    device: Device,
    split: Split | None,
    costs: Sm90Costs,
) -> Predicted:
    given = split or Split()
    parts, owned = np.array([given.parts]), np.array([given.owned])
    return predicted(Shapes.of([shape], operands), operands, problem, device, parts, owned, costs)


def _together(one: Column, other: Column) -> Column:
    """The slower of two that go on at the same time, and a little more where the other is near it."""
    return np.sqrt(one * one + other * other)


def _loaded(extent: Column, tile: Column, missing: float) -> Column:
    """What a tile's rows along M or N cost, in rows: those that there are, on the mean, and those beyond the end. A CTA
    of a cluster whose whole tile is beyond it loads the last one again."""
    own = extent / np.maximum(1, -(-extent // tile))
    return own + missing * (tile - own)


def _by_way(turned: Column, of_a: Any, of_b: Any) -> tuple[Column, Column]:
    """What there is of A and of B, for D or for D^T = B^T A^T."""
    return np.where(turned, of_b, of_a), np.where(turned, of_a, of_b)


def _along(shapes: Shapes, operands: Operands) -> tuple[Column, Column]:
    """Whether tiles follow each other along the rows of D, as it lies in memory; and whether those of a plan are its
    columns."""
    across = shapes.turned != (operands.d.major == "m")
    return np.where(across, shapes.along_m, shapes.along_n), across


def _read_bytes(
    shapes: Shapes,
    m: Column,
    n: Column,
    rows: Column,
    columns: Column,
    k_bytes: float,
    turns: Column,
    kept: float,
) -> Column:
    """Of A and B, from memory. What L2 does not keep is read once more for each turn of tiles along M or N.

    k_bytes   of all rows along K
    """
    once = (m + n) * k_bytes
    if np.max(once, initial=0.0) <= kept:
        return once
    a = np.where(shapes.along_m, np.minimum(turns, np.maximum(1, columns)), 1.0)
    b = np.where(shapes.along_n, np.minimum(turns, np.maximum(1, rows)), 1.0)
    return (m * a + n * b) * k_bytes


def _unaligned(operands: Operands, problem: Problem, name: str, packed: str) -> bool:
    """Whether not every row of A or of B, as it lies in memory, begins at a line."""
    if name in packed:
        return False
    operand = getattr(operands, name)
    extent = problem.k if operand.major == "k" else problem.m if name == "a" else problem.n
    leading = dict(problem.ld).get(name, extent)
    return bool(leading * operand.dtype.bits // 8 % CACHE_LINE_BYTES)
