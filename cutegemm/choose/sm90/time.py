"""How long Hopper plans will take, many at a time: what bounds a wave of the grid, in a formula of the tile.

A *wave* is a tile of D for each multiprocessor. In a wave a multiprocessor takes a tile's k-tiles, 128 bytes along K
each, one after the other. A k-tile waits for

    tensor cores   for the area of the tile; longer where an operand lies along M or N in rows of 32 bytes
    L2             for the rows of A and of B that a CTA loads, of those that there are, and that a multicast brings
                   once for its cluster; rows that do not begin at a line are dearer
    few lines      that many CTAs read at once: the rows of a small operand
    latency        of a load, over the stages that are under way

and a wave is no shorter than it takes to store the tile; the store of the last one nothing overlaps. In the long run
a wave takes no less than the chip's power allows: the last one, of few tiles, is the shorter for it. A problem takes no
less than reading A and B from memory does. What goes on at the same time adds up like the sides of a right triangle,
or nearly so: `together`. What a problem takes besides is the start, until the first k-tile is there, and where K is
split the sums of the parts.

Rates of a chip are those of its `Device`. `Sm90Costs` is fitted to what an H200 and an H100 took, behind a flush of the
L2 cache, for problems that were drawn by a seed; `python -m docs.evidence fit-sm90 FILE.json ...` fits it anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cutegemm.build.slots import WHOLE_COLUMNS
from cutegemm.choose.candidate import Predicted
from cutegemm.choose.columns import LINES_AT_A_TIME, Column, together
from cutegemm.choose.sm90.shapes import K_TILE_BYTES, Shapes, TileShape
from cutegemm.machine.arch import CACHE_LINE_BYTES, SECTOR_BYTES
from cutegemm.machine.device import DEFAULT_DEVICE, Device
from cutegemm.plan.problem import Operands, Problem
from cutegemm.plan.work.arithmetic import ARRAYS
from cutegemm.plan.work.shares import Shares, shares_of
from cutegemm.plan.work.split import FILLED, Split
from cutegemm.tile.tma import TMA_INNER_ALIGNED_BYTES

_UNIT = 128 * 128  # elements of D
_UNIT_CYCLES = 512  # of the tensor cores, for a k-tile of so many
_BOUNDS = "tensor cores", "L2", "latency", "store of D", "DRAM", "power", "start"
_FILLED_ROWS = 256  # of a k-tile, 32 KiB
_HALF_BYTES = 64  # of a row along M or N, which may have 128; less is narrow
_STAGES, _MOST_STAGES = 4, 5  # of the ring of a large tile; and beyond which more of them even out no more
_NO_TIME = 1e-9  # microseconds, of a problem without a tile
_OF_FEWEST = 0.5  # of what a subtile takes, one of eight columns


@dataclass(frozen=True)
class Sm90Costs:
    """What is fitted, in microseconds and KiB.

    start          of a kernel: until its first product, and from its last one to the end
    fill           for each `_FILLED_ROWS` rows of the k-tile that comes first
    single         share of the start, of one warpgroup with one tile, or of CTAs that share K
    fours          for each four CTAs of a cluster, until all of them have met
    pairs          more of all of the time, in clusters of two
    shallow        more of the time of all waves, of rings of less than four stages
    narrow, half   times a k-tile's products, where an operand's rows along M or N have 32 bytes, or 64
    two_level      of a k-tile, whose sums threads add to those before it
    l2             times what a device takes for what a CTA reads from L2, when all multiprocessors do
    l2_unaligned   times that, where rows do not begin at lines
    l2_apart       times that, of rows along M or N where tiles have owners: the others begin theirs out of step
    l2_fours       times that, in clusters of four or eight
    l2_joined      times that, of rows that no multicast brings and that begin at lines, where clusters take tiles in
                   the order of the GPCs: reads of a GPC are joined
    l2_larger      power of the other operand's share of what is read, twice: reads that wait for memory are joined more
    reader         for each CTA that reads the same few lines
    missing        times a KiB from L2, of rows beyond the end of an operand, which TMA fills with zeros
    load           of a k-tile, from asking for it until it is there
    deeper         for each stage more than four, more of the exponent by which waves and memory add up: a deep ring
                   evens out what comes from memory by fits and starts
    step           of a k-tile, besides
    asks           of a k-tile that is asked for by what multiplies it, besides
    store          KiB a microsecond that a multiprocessor stores of D
    store_across   share of that, of a D that TMA does not store, where threads store columns of the tile
    ends_of_rows   bytes that such a D takes besides, for each row of the tiles of a cluster: sectors filled in part
    written        of a D that L2 does not keep, times what as much takes to be read from memory
    store_along    times the rate of such a D, where tiles follow each other along the rows of a larger D
    subtile        of a consumer that leaves through shared memory
    tile           of a tile, besides
    cooperative, deferred   share of the store of a tile that no products overlap, by the way of D
    waited         times that, of a D larger than L2
    meet           where K is split, until the CTAs of a tile have met
    part           for each part that is added
    sums           KiB a microsecond that a CTA writes to L2 or reads from there, of the sums of parts
    shared         where CTAs of a cluster share K, until each has the sums of its own columns
    sent           KiB a microsecond that a CTA sends of its sums, and adds
    ends           where tiles have owners, until they have what others took of the k-tiles
    burst          of tensor cores at work, before the chip is at its power limit
    rests          times the share of a wave in which no products run: so much longer a problem takes at the power
                   limit, since the clock does not make up for it
    """

    start: float = 6.15
    fill: float = 0.3
    single: float = 0.888
    fours: float = 0.2
    pairs: float = 0.003
    shallow: float = 0.04
    narrow: float = 2.2
    half: float = 1.06
    two_level: float = 0.025
    l2: float = 1.0
    l2_unaligned: float = 1.58
    l2_apart: float = 1.32
    l2_fours: float = 0.7
    l2_joined: float = 0.6
    l2_larger: float = 0.05
    reader: float = 0.000289
    missing: float = 3.46
    load: float = 0.359
    deeper: float = 0.05
    step: float = 0.0535
    asks: float = 0.0537
    store: float = 46.2
    store_along: float = 2.1
    store_across: float = 0.5
    ends_of_rows: float = 128.0
    written: float = 0.756
    subtile: float = 0.0495
    tile: float = 0.138
    cooperative: float = 0.547
    waited: float = 1.82
    deferred: float = 0.319
    meet: float = 1.8
    part: float = 0.0843
    sums: float = 49.0
    shared: float = 0.9
    sent: float = 30.0
    ends: float = 4.51
    burst: float = 80.0
    rests: float = 2.0


COSTS = Sm90Costs()


@dataclass(frozen=True)
class _Tiling:
    """How tiles lie over D, or over D^T, and over the grid.

    m, n            extents
    rows, columns   of clusters
    tiles           clusters, of all batches
    grid            clusters that run at a time
    own_m, own_n    rows and columns of a tile that there are, on the mean
    """

    m: Column
    n: Column
    rows: Column
    columns: Column
    tiles: Column
    grid: Column
    own_m: Column
    own_n: Column

    @classmethod
    def of(cls, shapes: Shapes, problem: Problem, device: Device) -> _Tiling:
        m, n = shapes.extents(problem)
        rows, columns = shapes.clusters(problem)
        own_m, own_n = m / np.maximum(1, rows * shapes.cm), n / np.maximum(1, columns * shapes.cn)
        return cls(m, n, rows, columns, rows * columns * problem.l, shapes.grid(device), own_m, own_n)


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
    with_c: bool = False,
) -> Predicted:
    """What plans take that have these tiles.

    operands   as the GEMM for D reads them: those that were packed, where some were
    parts      of K, a column
    owned      whether tiles that do not fill the grid have owners, a column: see `shares_of`
    packed     names of the operands that were packed, whose rows begin at lines
    shares     `filled` of them, where that is known
    with_c     whether a tile of C is read for each tile of D; `shapes` are to be made with the same
    """
    tiling = _Tiling.of(shapes, problem, device)
    all_k_tiles = -(-problem.k * operands.a.dtype.bits // 8 // K_TILE_BYTES)
    if not np.any(owned):
        shares = None
    else:
        shares = shares or filled(tiling.tiles, all_k_tiles, tiling.grid)
        owned = owned & (shares.shared > 0)
    products_us = _products_us(shapes, operands, device, costs)
    l2_us = _l2_us(shapes, operands, problem, device, tiling, packed, owned, costs)
    waiting_us = _waiting_us(shapes, tiling, costs)
    step_us = costs.step + costs.asks * shapes.single
    latency_us = (step_us + costs.load * shapes.late) * shapes.waits
    beside_us = waiting_us**2 + products_us**2 + latency_us**2
    store_us, exposed_us, written_bytes = _store(shapes, operands, problem, device, tiling, costs, with_c)
    hidden_us = np.where(shapes.cooperative, 0.0, store_us)
    sums_us = costs.two_level * shapes.two_level
    k_tiles = -(-all_k_tiles // (parts * shapes.depth * shapes.k_ctas)) * shapes.depth
    units = tiling.tiles * parts

    def wave_us(share: Column) -> Column:
        """Where that share of the grid has tiles."""
        k_tile_us = np.sqrt(beside_us + (l2_us * share) ** 2) + sums_us
        return together(2.0, k_tile_us * k_tiles + exposed_us, hidden_us) + costs.tile

    whole, rest = units // tiling.grid, units % tiling.grid
    waves = np.maximum(1.0, units / tiling.grid)
    full_us, last_us = wave_us(1.0), np.where(rest, wave_us(rest / tiling.grid), 0.0)
    power_us = _power_us(operands, problem, device, costs) * (1 + costs.rests * exposed_us / full_us)
    power_us = power_us / np.maximum(1, units)
    waves_us = whole * full_us + last_us
    limited_us = whole * together(4.0, full_us, power_us * tiling.grid) + together(
        4.0, last_us, power_us * rest
    )
    if shares is not None:
        owned_waves = whole + shares.owned / max(1, all_k_tiles)
        waves_us = np.where(owned, full_us * owned_waves, waves_us)
        limited_us = np.where(owned, together(4.0, waves_us, power_us * units), limited_us)
    meeting_us = _meeting_us(shapes, operands, parts, -(-units // tiling.grid), owned, shares, costs)
    memory_us = _memory_us(shapes, operands, problem, device, tiling, waves, written_bytes, owned, shares)
    deeper = np.minimum(shapes.stages, _MOST_STAGES) - _STAGES
    us = together(2.0 + costs.deeper * deeper, waves_us, memory_us)
    us = us * np.where(units, limited_us / np.maximum(waves_us, _NO_TIME), 1.0)
    us = us * (1 + costs.shallow * (shapes.stages < _STAGES))
    start_us = costs.start * np.where(shapes.single | (shapes.k_ctas > 1), costs.single, 1.0)
    start_us = start_us + costs.fill * (shapes.bm + shapes.bn) * shapes.depth / _FILLED_ROWS
    us = start_us + costs.fours * (shapes.cm * shapes.cn // 4) + us + meeting_us + store_us
    us = us * (1 + costs.pairs * shapes.is_two)
    of_k = waves * k_tiles
    every = np.ones(len(us))
    bounds = (
        products_us * of_k, np.maximum(l2_us, waiting_us) * of_k, latency_us * of_k, store_us * waves,
        memory_us * every, power_us * units, start_us,
    )  # fmt: skip
    return Predicted(us, dict(zip(_BOUNDS, bounds, strict=True)))


def filled(tiles: Column, k_tiles: int, grid: Column) -> Shares:
    """How tiles are shared that do not fill a grid, and have owners: columns.

    >>> filled(np.array([66, 70]), 100, 66).shared
    array([0, 4])
    """
    return shares_of(FILLED, tiles, k_tiles, grid, ARRAYS)


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
    given = split or Split()
    parts, owned = np.array([given.parts]), np.array([given.owned])
    found = predicted(Shapes.of([shape], operands), operands, problem, device, parts, owned, costs)
    return float(found.us[0])


def _products_us(shapes: Shapes, operands: Operands, device: Device, costs: Sm90Costs) -> Column:
    """The products of a k-tile."""
    bits, us = operands.a.dtype.bits, shapes.bm * shapes.bn * (_UNIT_CYCLES / _UNIT / device.clock_mhz)
    if operands.a.major == operands.b.major == "k":
        return us
    for along, extent in zip(_along_mn(shapes, operands), (shapes.bm, shapes.bn), strict=True):
        over = extent * bits // 8 % K_TILE_BYTES
        us = us * np.where(along & (over > 0), np.where(over % _HALF_BYTES, costs.narrow, costs.half), 1.0)
    return us


def _l2_us(
    shapes: Shapes,
    operands: Operands,
    problem: Problem,
    device: Device,
    tiling: _Tiling,
    packed: str,
    owned: Column,
    costs: Sm90Costs,
) -> Column:
    """What a CTA reads from L2 for a k-tile, when all multiprocessors do."""
    of_a, of_b = _dearer(shapes, operands, problem, packed, costs)
    if packed and np.any(shapes.reads_a):
        in_place, _ = _dearer(shapes, operands, problem, "", costs, of_mn=packed)
        of_a = np.where(shapes.reads_a, in_place, of_a)  # B is packed there, or as it is
    # Those of a multicast are not joined; of rows that do not begin at lines few are
    by_gpc, mean = shapes.by_gpc & bool(device.tpc_rounds), max(1, problem.m + problem.n) / 2
    of_m, of_n = [(extent / mean) ** costs.l2_larger for extent in (problem.m, problem.n)]
    own_a, own_b = [
        np.where(by_gpc & (shared == 1), np.where(of == 1, costs.l2_joined, 1.0) * larger, 1.0)
        for shared, of, larger in zip(
            (shapes.cn, shapes.cm), (of_a, of_b), _by_way(shapes.turned, of_n, of_m), strict=True
        )
    ]
    if np.any(owned):
        along_a, along_b = _along_mn(shapes, operands)
        of_a = of_a * np.where(owned & (along_a | shapes.reads_a), costs.l2_apart, 1.0)
        of_b = of_b * np.where(owned & along_b, costs.l2_apart, 1.0)
    of_a = of_a * _loaded(tiling.m, shapes.bm, costs.missing)
    of_b = of_b * _loaded(tiling.n, shapes.bn, costs.missing)
    rows = own_a * of_a / shapes.cn + own_b * of_b / shapes.cm
    row_us = costs.l2 * K_TILE_BYTES / (device.measured.sm_l2_gb_s * 1e3)
    return row_us * rows * np.where(shapes.is_large_cluster, costs.l2_fours, 1.0)


def _waiting_us(shapes: Shapes, tiling: _Tiling, costs: Sm90Costs) -> Column:
    """For the lines of a k-tile that other CTAs read at the same time, of the operand of which there are few."""
    at_a_time = np.minimum(tiling.tiles, tiling.grid)
    rows = np.maximum(1, np.minimum(tiling.rows, shapes.band))
    of_a = np.maximum(1, np.minimum(tiling.columns, at_a_time / rows))
    reading_a = of_a * np.minimum(1, LINES_AT_A_TIME / np.maximum(1, tiling.own_m * shapes.cm))
    reading_b = at_a_time / of_a * np.minimum(1, LINES_AT_A_TIME / np.maximum(1, tiling.own_n * shapes.cn))
    return costs.reader * np.maximum(reading_a, reading_b)


def _store(
    shapes: Shapes,
    operands: Operands,
    problem: Problem,
    device: Device,
    tiling: _Tiling,
    costs: Sm90Costs,
    with_c: bool,
) -> tuple[Column, Column, Column]:
    """What it takes to store a tile, and to read as much for it; the part of that which no products overlap; and bytes
    of D that L2 does not keep, and of C."""
    d_size = operands.d.dtype.bits / 8
    d_bytes = problem.m * problem.n * problem.l * d_size
    stays = d_bytes <= device.measured.l2_kept_bytes
    by_threads = operands.d.align_bytes < TMA_INNER_ALIGNED_BYTES
    along, across = _along(shapes, operands)
    rate = costs.store * (1.0 if stays else np.where(along, costs.store_along, 1.0))
    if by_threads:
        rate = rate * np.where(across, costs.store_across, 1.0)
        row = np.where(across, tiling.own_m * shapes.cm, tiling.own_n * shapes.cn / shapes.k_ctas)
        more = 1 + costs.ends_of_rows / (np.maximum(1, row) * d_size)
        rate, d_bytes = rate / more, d_bytes * more
    elif _row_bytes("d", operands, problem) % SECTOR_BYTES:
        columns_bytes = shapes.bn / shapes.k_ctas * d_size / np.maximum(1, shapes.subtiles)
        box_bytes = np.where(across, CACHE_LINE_BYTES, np.minimum(CACHE_LINE_BYTES, columns_bytes))
        rate = rate / (1 + SECTOR_BYTES / box_bytes)  # each row of a box begins and ends in part of a sector
    subtile_us = costs.subtile * np.where(shapes.bn % WHOLE_COLUMNS, _OF_FEWEST, 1.0)
    us = tiling.own_m * tiling.own_n / shapes.k_ctas * d_size / 1024 / rate + subtile_us * shapes.subtiles
    if with_c:
        us = 2 * us
    # In one wave there is no next tile whose products a deferred store could go on behind
    defers = shapes.deferred & (tiling.tiles > tiling.grid)
    exposed = np.where(defers, costs.deferred, costs.cooperative * (shapes.cooperative | shapes.deferred))
    exposed_us = us * (shapes.cooperative if by_threads else exposed * (1.0 if stays else costs.waited))
    kept_bytes = 0.0 if stays else costs.written * d_bytes
    return us, exposed_us, kept_bytes + d_bytes * with_c


def _meeting_us(
    shapes: Shapes,
    operands: Operands,
    parts: Column,
    waves: Column,
    owned: Column,
    shares: Shares | None,
    costs: Sm90Costs,
) -> Column:
    """Until the CTAs that share a tile have added up their sums: in the workspace, or in shared memory."""
    sums_kb = shapes.bm * shapes.bn * (operands.acc.bits / 8 / 1024)
    part_us = sums_kb / costs.sums
    us: Column = np.where(shapes.k_ctas > 1, costs.shared + sums_kb / costs.sent, 0.0) * waves
    if np.any(np.greater(parts, 1)):
        once_us = costs.meet + parts * (part_us + costs.part)
        us = us + np.where(np.greater(parts, 1), once_us * waves, 0.0)
    if shares is not None:
        workers = shares.workers / np.maximum(1, shares.shared)
        us = us + np.where(owned, costs.ends + workers * part_us, 0.0)
    return us


def _memory_us(
    shapes: Shapes,
    operands: Operands,
    problem: Problem,
    device: Device,
    tiling: _Tiling,
    waves: Column,
    written_bytes: Column,
    owned: Column,
    shares: Shares | None,
) -> Column:
    """What is read from memory, and the D that L2 does not keep."""
    k_bytes, rates = problem.k * operands.a.dtype.bits / 8 * problem.l, device.measured
    apart: Column = 0.0
    if shares is not None:
        of_workers = 1 - shares.owned / np.maximum(1, shares.k_tiles)
        apart = np.where(owned, of_workers * shares.shared / np.maximum(1, tiling.tiles), 0.0)
    read_bytes = _read_bytes(shapes, tiling, k_bytes, waves, rates.l2_kept_bytes, apart)
    return (read_bytes + written_bytes) / (rates.tma_read_gb_s * 1e3)


def _power_us(operands: Operands, problem: Problem, device: Device, costs: Sm90Costs) -> float:
    """What the chip's power allows, in the long run, where tensor cores never rest."""
    k_bytes = problem.k * operands.a.dtype.bits / 8
    long_us = problem.m * problem.n * problem.l * k_bytes / (device.measured.wgmma_tflops * 1e6)
    return long_us * long_us / (long_us + costs.burst)


def _loaded(extent: Column, tile: Column, missing: float) -> Column:
    """What a tile's rows along M or N cost, in rows: those that there are, on the mean, and those beyond the end. A CTA
    of a cluster whose whole tile is beyond it loads the last one again."""
    own = extent / np.maximum(1, -(-extent // tile))
    return own + missing * (tile - own)


def _by_way(turned: Column, of_a: Any, of_b: Any) -> tuple[Column, Column]:
    """What there is of A and of B, for D or for D^T = B^T A^T."""
    return np.where(turned, of_b, of_a), np.where(turned, of_a, of_b)


def _along_mn(shapes: Shapes, operands: Operands) -> tuple[Column, Column]:
    """Whether the first operand of the plan, and the second one, lie along M or N of D, or of D^T."""
    return _by_way(shapes.turned, operands.a.major != "k", operands.b.major != "k")


def _along(shapes: Shapes, operands: Operands) -> tuple[Column, Column]:
    """Whether tiles follow each other along the rows of D, as it lies in memory; and whether those of a plan are its
    columns."""
    across = shapes.turned != (operands.d.major == "m")
    return np.where(across, shapes.along_m, shapes.along_n), across


def _read_bytes(
    shapes: Shapes, tiling: _Tiling, k_bytes: float, waves: Column, kept: float, apart: Column
) -> Column:
    """Of A and B, from memory. What L2 does not keep is read once more for each wave of tiles along M or N; and by each
    CTA that helps an owner, which is out of step with the others.

    k_bytes   of all rows along K
    apart     share of all k-tiles that are taken by helpers of their tiles' owners
    """
    m, n = tiling.m, tiling.n
    once = (m + n) * k_bytes
    if np.max(once, initial=0.0) <= kept:
        return once
    rows, columns = np.maximum(1, tiling.rows), np.maximum(1, tiling.columns)
    a = np.where(shapes.along_m, np.minimum(waves, columns), 1.0)
    b = np.where(shapes.along_n, np.minimum(waves, rows), 1.0)
    a = a + apart * (columns - a) * (m * k_bytes > kept)
    b = b + apart * (rows - b) * (n * k_bytes > kept)
    return (m * a + n * b) * k_bytes


def _dearer(
    shapes: Shapes, operands: Operands, problem: Problem, packed: str, costs: Sm90Costs, of_mn: str = ""
) -> tuple[Column, Column]:
    """Times what L2 takes for the first operand of a plan, and for the second one: more where not every row of it, as
    it lies in memory, begins at a line.

    packed   names of the operands whose rows do
    of_mn    names of those that lie along M or N, though `operands` has them as they would be packed
    """

    def of(name: str) -> float:
        row_bytes = _row_bytes(name, operands, problem, of_mn)
        return costs.l2_unaligned if name not in packed and row_bytes % CACHE_LINE_BYTES else 1.0

    return _by_way(shapes.turned, of("a"), of("b"))


def _row_bytes(name: str, operands: Operands, problem: Problem, of_mn: str = "") -> int:
    """From a row of an operand to the next one.

    of_mn   names of those whose rows lie along M or N, whatever `operands` says
    """
    operand = getattr(operands, name)
    major = "m" if name == "a" and name in of_mn else "n" if name in of_mn else operand.major
    extent = {"m": problem.m, "n": problem.n, "k": problem.k}[major]
    return int(dict(problem.ld).get(name, extent)) * operand.dtype.bits // 8
