"""How long Hopper plans will take, many at a time: what bounds a turn of the grid, in a formula of the tile.

A *turn* is a tile of D for each multiprocessor. In a turn a multiprocessor takes a tile's k-tiles, 128 bytes along K
each, one after the other. A k-tile takes as long as the slowest of

    tensor cores     for the area of the tile; longer where an operand lies along M or N in rows of less than 128 bytes
    shared memory    for what wgmma reads, and TMA writes
    L2               for the rows of A and of B that a CTA loads, those that a multicast brings once for its cluster;
                     rows that do not begin at a line are dearer

and a turn is no shorter than it takes to store the tile, nor the problem than to read A and B from memory, by all
multiprocessors together or by the few that have work. What goes on at the same time adds up in part: `_together`. What
a problem takes besides is the start and, where K is split, the sums of the parts.

Rates of a chip are those of its `Device`. `Sm90Costs` is fitted to what an H200 and an H100 took, behind a flush of the
L2 cache, for problems that were drawn by a seed; `python -m docs.evidence fit-sm90 FILE.json ...` fits it anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from cutegemm.build.slots import line_columns
from cutegemm.choose.candidate import Column, Predicted
from cutegemm.machine.arch import CACHE_LINE_BYTES, SECTOR_BYTES
from cutegemm.machine.device import DEFAULT_DEVICE, Device
from cutegemm.plan.problem import Operand, Operands, Problem
from cutegemm.plan.work.shares import Shares, shares_of
from cutegemm.plan.work.split import FILLED, Split
from cutegemm.tile.mma_atoms import WGMMA_M
from cutegemm.tile.tma import TMA_INNER_ALIGNED_BYTES

K_TILE_BYTES = 128  # along K of a k-tile: one row of the widest swizzle
_UNIT = 128 * 128  # elements of D that the constants are for
_BOUNDS = "tensor cores", "shared memory", "L2", "store of D", "DRAM", "start"
_NARROW_BYTES = 64  # of a row of a box of D


@dataclass(frozen=True)
class Sm90Costs:
    """What is fitted, in microseconds and KiB.

    start          of a kernel: until its first product, and from its last one to the end
    tensor         of a k-tile of 128 x 128
    warm           share of its time that a multiprocessor takes longer after `WARM_US`, at the chip's power limit
    rows_of_64, rows_of_32   times a k-tile's products, where an operand's rows along M or N have so many bytes
    two_level      times that, where threads add up the sums of each k-tile
    shared         of a KiB that shared memory moves
    l2             of a KiB from L2 that a CTA reads, when all multiprocessors do
    l2_unaligned   times that, where rows do not begin at lines
    l2_apart       times that, of rows along M or N where tiles have owners: the others begin theirs out of step
    one_cta        of a KiB from memory, when one multiprocessor alone reads it
    store          KiB a microsecond that a multiprocessor stores of a D that stays in L2
    store_memory   the same of a larger D
    store_narrow   times that, where a tile ends within 64 bytes of a row: the boxes are narrow
    store_torn     of a sector that a store fills in part, times a whole one: of a D whose lines threads copy
    store_along    times that, where tiles follow each other along the rows of a larger D
    store_stacked  times that, where CTAs of a cluster lie on top of each other
    cooperative, deferred   of a turn, what no products overlap, for 128 x 128 of a tile, by the way of D
    meet           where K is split, until the CTAs of a tile have met
    sums           KiB a microsecond that a CTA writes to L2 or reads from there, of the sums of parts
    ends           where tiles have owners, until they have what others took of the k-tiles
    ends_in_turn   the same of pingpong consumers, which have it behind each other's products
    within         the exponent of `_together` for what a k-tile waits for
    across         the same for products and the store of a tile, and for a problem's turns and its memory
    """

    start: float = 6.49
    tensor: float = 0.259
    warm: float = 0.389
    rows_of_64: float = 1.25
    rows_of_32: float = 2.02
    two_level: float = 1.1
    shared: float = 0.0039
    l2: float = 0.0115
    l2_unaligned: float = 1.6
    l2_apart: float = 1.6
    one_cta: float = 0.00653
    store: float = 25.2
    store_memory: float = 30.9
    store_narrow: float = 0.753
    store_torn: float = 2.0
    store_along: float = 1.08
    store_stacked: float = 0.965
    cooperative: float = 0.285
    deferred: float = 0.12
    meet: float = 1.89
    sums: float = 72.4
    ends: float = 4.85
    ends_in_turn: float = 2.95
    within: float = 5.92
    across: float = 1.89


COSTS = Sm90Costs()

WARM_US = 200.0  # of tensor cores at work: a kernel as short as that, behind a flush, does not reach the power limit


@dataclass(frozen=True)
class TileShape:
    """What of a plan its time depends on.

    tile        (bM, bN)
    cluster     CTAs along M and N
    epilogue    pingpong, cooperative or deferred: what the products go on behind
    raster      the order of the tiles
    two_level   whether threads add up the sums of each k-tile
    """

    tile: tuple[int, int]
    cluster: tuple[int, int] = (1, 1)
    epilogue: str = "pingpong"
    raster: str = "grouped_m:8"
    two_level: bool = False

    def clusters(self, problem: Problem) -> tuple[int, int]:
        """Along M and N of D.

        >>> TileShape((128, 192), (2, 1)).clusters(Problem(1000, 1000, 64))
        (4, 6)
        """
        (bm, bn), (cm, cn) = self.tile, self.cluster
        return -(-problem.m // (bm * cm)), -(-problem.n // (bn * cn))

    def grid(self, sms: int) -> int:
        """Clusters that run at a time."""
        return max(1, sms // (self.cluster[0] * self.cluster[1]))


@dataclass(frozen=True)
class Shapes:
    """Columns of many `TileShape`s."""

    bm: Column
    bn: Column
    cm: Column
    cn: Column
    cooperative: Column
    deferred: Column
    along_m: Column
    along_n: Column
    two_level: Column

    @classmethod
    def of(cls, shapes: Sequence[TileShape]) -> Shapes:
        """
        >>> Shapes.of([TileShape((128, 192)), TileShape((64, 16))]).bn
        array([192,  16])
        """
        return cls(
            bm=np.array([one.tile[0] for one in shapes]),
            bn=np.array([one.tile[1] for one in shapes]),
            cm=np.array([one.cluster[0] for one in shapes]),
            cn=np.array([one.cluster[1] for one in shapes]),
            cooperative=np.array([one.epilogue == "cooperative" for one in shapes]),
            deferred=np.array([one.epilogue == "deferred" for one in shapes]),
            along_m=np.array([one.raster == "along_m" for one in shapes]),
            along_n=np.array([one.raster == "along_n" for one in shapes]),
            two_level=np.array([one.two_level for one in shapes]),
        )

    def taken(self, rows: Column) -> Shapes:
        """Those of some rows."""
        return Shapes(*[column[rows] for column in vars(self).values()])

    def clusters(self, problem: Problem) -> tuple[Column, Column]:
        """Along M and N of D."""
        return -(-problem.m // (self.bm * self.cm)), -(-problem.n // (self.bn * self.cn))

    def grid(self, sms: int) -> Column:
        """Clusters that run at a time."""
        return np.maximum(1, sms // (self.cm * self.cn))


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

    operands   as the GEMM reads them: those that were packed, where some were
    parts      of K, a column
    owned      whether tiles that do not fill the grid have owners, a column: see `shares_of`
    packed     names of the operands that were packed, whose rows begin at lines
    shares     `filled` of them, where that is known
    """
    cost, rates, bits = costs, device.measured, operands.a.dtype.bits
    bm, bn = shapes.bm, shapes.bn
    k_bytes = problem.k * bits / 8
    all_k_tiles = -(-problem.k * bits // 8 // K_TILE_BYTES)
    rows, columns = shapes.clusters(problem)
    tiles, grid = rows * columns * problem.l, shapes.grid(device.sms)
    shares = shares or filled(tiles, all_k_tiles, grid)
    owned = owned & (shares.shared > 0)
    k_tiles = -(-all_k_tiles // parts)
    area = bm * bn / _UNIT
    busy_us = problem.m * problem.n * problem.l * k_bytes / (rates.wgmma_tflops * 1e6)
    slower = 1 + cost.warm * min(1.0, busy_us / WARM_US)
    dearer = _of_rows(cost, operands, shapes)
    products_us = cost.tensor * slower * area * dearer
    products_us = np.where(shapes.two_level, products_us * cost.two_level, products_us)
    # Of each wgmma of 64 rows: its rows of A and all columns of B. TMA writes both once.
    read_kib = -(-bm // WGMMA_M) * (WGMMA_M + bn) * K_TILE_BYTES / 1024 * dearer
    shared_us = cost.shared * (read_kib + (bm + bn) * K_TILE_BYTES / 1024)
    of_a, of_b = [cost.l2_unaligned if _unaligned(operands, problem, name) else 1.0 for name in ("a", "b")]
    apart_a, apart_b = [
        np.where(owned, cost.l2_apart, 1.0) if operand.major != "k" else 1.0
        for operand in (operands.a, operands.b)
    ]
    row_kib = (bm / shapes.cn * of_a * apart_a + bn / shapes.cm * of_b * apart_b) * K_TILE_BYTES / 1024
    d_bytes = problem.m * problem.n * problem.l * operands.d.dtype.bits / 8
    store_us = _store_us(cost, shapes, operands, d_bytes <= rates.l2_kept_bytes)
    by_lines = (
        operands.d.align_bytes < TMA_INNER_ALIGNED_BYTES
    )  # before the next products, whatever the plan's name
    behind = cost.cooperative if by_lines else cost.deferred
    exposed_us = area * slower * (cost.cooperative * shapes.cooperative + behind * shapes.deferred)

    def turn_us(clusters: Column) -> Column:
        """With so many clusters at a time."""
        k_tile_us = _together(cost.within, products_us, shared_us, cost.l2 * clusters / grid * row_kib)
        return _together(cost.across, k_tile_us * k_tiles + exposed_us, store_us)

    units = tiles * parts
    whole, rest = units // grid, units % grid
    full_us = turn_us(grid)
    turns_us = whole * full_us + np.where(rest, turn_us(rest), 0.0)
    turns_us = np.where(owned, full_us * (whole + shares.owned / max(1, all_k_tiles)), turns_us)
    read = _read_bytes(shapes, operands, problem, k_bytes, np.maximum(1.0, tiles / grid), rates.l2_kept_bytes)
    memory_us = read / (rates.tma_read_gb_s * 1e3)
    busy = np.maximum(1, np.minimum(units, grid) * shapes.cm * shapes.cn)
    few_us = cost.one_cta * read / 1024 / busy
    sums_us = bm * bn * operands.acc.bits / 8 / 1024 / cost.sums
    meeting_us = np.where(parts > 1, (cost.meet + parts * sums_us) * -(-units // grid), 0.0)
    ends = np.where(shapes.cooperative | shapes.deferred, cost.ends, cost.ends_in_turn)
    meeting_us += np.where(owned, ends + shares.workers / np.maximum(1, shares.shared) * sums_us, 0.0)
    us = cost.start + _together(cost.across, turns_us, memory_us, few_us) + meeting_us
    turns = np.maximum(1.0, units / grid)
    of_k = turns * k_tiles
    of_k_tiles = products_us, shared_us, cost.l2 * row_kib
    others = store_us * turns, np.maximum(memory_us, few_us), np.full(len(us), cost.start)
    return Predicted(us, dict(zip(_BOUNDS, (*(each * of_k for each in of_k_tiles), *others), strict=True)))


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
    >>> 180 < predicted_us(wide, bf16, Problem(4096, 4096, 4096)) < 220
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
    >>> bound(TileShape((128, 256), (2, 1), "deferred"), bf16, Problem(8192, 8192, 8192))
    'tensor cores'
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
    return predicted(Shapes.of([shape]), operands, problem, device, parts, owned, costs)


def _together(exponent: float, *us: Column) -> Column:
    """The slowest of some that go on at the same time, and a little more where another is near it."""
    total = us[0] ** exponent
    for one in us[1:]:
        total = total + one**exponent
    return total ** (1 / exponent)


def _of_rows(cost: Sm90Costs, operands: Operands, shapes: Shapes) -> Column:
    """What products take longer where an operand lies along M or N, and its tile is no multiple of 128 bytes."""
    factor: Column = 1.0
    for operand, extent in ((operands.a, shapes.bm), (operands.b, shapes.bn)):
        if operand.major != "k":
            size = extent * operand.dtype.bits // 8
            narrow = np.where(size % 64, cost.rows_of_32, cost.rows_of_64)
            factor = factor * np.where(size % K_TILE_BYTES, narrow, 1.0)
    return factor


def _store_us(cost: Sm90Costs, shapes: Shapes, operands: Operands, stays: bool) -> Column:
    """Of a tile of D."""
    bits = operands.d.dtype.bits
    rate: Column = cost.store
    if not stays:
        along = shapes.along_n if operands.d.major == "n" else shapes.along_m
        rate = cost.store_memory * np.where(along, cost.store_along, 1.0)
    if (
        operands.d.align_bytes < TMA_INNER_ALIGNED_BYTES
    ):  # of each line, which begins anywhere, the first and the last
        columns, which = np.unique(shapes.bn, return_inverse=True)
        sectors = np.array([_line_sectors(operands.d, each) for each in columns.tolist()])[which]
        rate = rate / (1 + (2 * cost.store_torn - 1) / sectors)
    else:
        rate = rate * np.where(shapes.bn * bits % (8 * _NARROW_BYTES), cost.store_narrow, 1.0)
    rate = rate * np.where(shapes.cm > 1, cost.store_stacked, 1.0)
    return shapes.bm * shapes.bn * bits / 8 / 1024 / rate


@lru_cache(maxsize=1024)
def _line_sectors(d: Operand, columns: int) -> int:
    """Sectors of a line of a subtile, of a tile of so many columns."""
    elements = WGMMA_M if d.major == "m" else line_columns(d, columns)
    return max(1, elements * d.dtype.bits // (8 * SECTOR_BYTES))


def _read_bytes(
    shapes: Shapes, operands: Operands, problem: Problem, k_bytes: float, turns: Column, kept_bytes: float
) -> Column:
    """Of A and B, from memory. What L2 does not keep is read once more for each turn of tiles along M or N."""
    rows, columns = shapes.clusters(problem)
    a, b = [extent * k_bytes * problem.l * np.ones(len(rows)) for extent in (problem.m, problem.n)]
    if (problem.m + problem.n) * k_bytes * problem.l > kept_bytes:
        a = np.where(shapes.along_m, a * np.minimum(turns, np.maximum(1, columns)), a)
        b = np.where(shapes.along_n, b * np.minimum(turns, np.maximum(1, rows)), b)
    return a + b


def _unaligned(operands: Operands, problem: Problem, name: str) -> bool:
    """Whether not every row of A or of B, as it lies in memory, begins at a line."""
    operand = getattr(operands, name)
    extent = problem.k if operand.major == "k" else problem.m if name == "a" else problem.n
    leading = dict(problem.ld).get(name, extent)
    return bool(leading * operand.dtype.bits // 8 % CACHE_LINE_BYTES)
