"""How long a Hopper plan will take: what bounds a turn of the grid, in a formula of its tile.

A *turn* is a tile of D for each multiprocessor. In a turn a multiprocessor takes a tile's k-tiles, 128 bytes along K
each, one after the other. A k-tile takes as long as the slowest of

    tensor cores     for the area of the tile
    shared memory    for what wgmma reads, and TMA writes
    its port         for all that comes to its shared memory, by a multicast too
    L2               for the rows of A and of B that a CTA loads, those that a multicast brings once for its cluster.
                     Rows that many CTAs read at the same time come cheaper, by a power of the readers; those that
                     do not begin at a line dearer

and a turn is no shorter than it takes to store the tile, nor the problem than to read A and B from memory. Where two
bounds are near each other they add up in part: `_slowest`. What a problem takes besides is the start, the way out
of the last tile, and the parts of tiles where K is split.

Rates of the chip are those of the `Device`; `Sm90Costs` is fitted to one H200, 2026-11-20, behind a flush of the L2
cache; `python -m docs.evidence fit-sm90
FILE.json ...` fits them anew to what `docs.evidence.gemm` wrote.
"""

from __future__ import annotations

from dataclasses import dataclass

from cutegemm.machine.arch import CACHE_LINE_BYTES
from cutegemm.machine.device import DEFAULT_DEVICE, Device
from cutegemm.plan.problem import Operands, Problem
from cutegemm.plan.work.shares import Shares, shares_of
from cutegemm.plan.work.split import FILLED, Split
from cutegemm.tile.mma_atoms import WGMMA_M

K_TILE_BYTES = 128  # along K of a k-tile: one row of the widest swizzle
_UNIT = 128 * 128  # elements of D that the constants are for
_BOUNDS = "tensor cores", "L2", "port", "shared memory"  # of a k-tile
_GROUP = 8  # rows of clusters that a raster takes together


@dataclass(frozen=True)
class Sm90Costs:
    """What is fitted, in microseconds and KiB.

    start           of a kernel: until its first product
    cluster         of a kernel of clusters, besides
    last            until the last tile has been stored, for 128 x 128 of it
    tensor          of a k-tile of 128 x 128
    warm            share of its time that a multiprocessor takes longer after `WARM_US`, at the chip's power limit
    shared          of a KiB that shared memory moves
    eased           share of that which is not seen after `STEADY_US`
    port            of a KiB that enters a multiprocessor, multicast or not
    l2              of a KiB from L2 that one CTA reads, when all multiprocessors do
    l2_alone        the same where few of them do
    l2_readers      power of the number of readers by which that falls
    l2_unaligned    times that, where rows do not begin at lines
    cold            of the time that memory takes for A and B, what nothing overlaps
    store           KiB a microsecond that a multiprocessor stores of a D that stays in L2
    store_memory    the same of a larger D
    store_narrow    times that, where a tile ends within 64 bytes of a row: the boxes are narrow
    store_along     times that, where tiles follow each other along the rows of a larger D
    store_stacked   times that, where CTAs of a cluster lie on top of each other
    pingpong, cooperative, deferred   of a turn, what no products overlap, for 128 x 128 of a tile, by the way of D
    meet            where K is split, until the CTAs of a tile have met
    sums            KiB a microsecond that a CTA writes to L2 or reads from there, of the sums of parts
    shared_wave     of a turn, what a wave of shared tiles takes longer
    ends            where its tiles have owners, until they have what others took of the k-tiles
    ends_in_turn    the same of pingpong consumers, which have it behind each other's products
    mixed           of a whole turn's L2 traffic, what the last turn of several has besides its own
    softness        the exponent of `_slowest`
    """

    start: float
    cluster: float
    last: float
    tensor: float
    warm: float
    shared: float
    eased: float
    port: float
    l2: float
    l2_alone: float
    l2_readers: float
    l2_unaligned: float
    cold: float
    store: float
    store_memory: float
    store_narrow: float
    store_along: float
    store_stacked: float
    pingpong: float
    cooperative: float
    deferred: float
    meet: float
    sums: float
    shared_wave: float
    ends: float
    ends_in_turn: float
    mixed: float
    softness: float


H200_COSTS = Sm90Costs(
    start=5.52,
    cluster=0.125,
    last=0.897,
    tensor=0.296,
    warm=0.243,
    shared=0.00365,
    eased=0.429,
    port=0.00745,
    l2=0.0155,
    l2_alone=0.00695,
    l2_readers=0.166,
    l2_unaligned=1.75,
    cold=0.156,
    store=17.6,
    store_memory=26.3,
    store_narrow=0.761,
    store_along=1.08,
    store_stacked=0.964,
    pingpong=0.098,
    cooperative=0.565,
    deferred=0.304,
    meet=1.21,
    sums=76.3,
    shared_wave=0.242,
    ends=6.39,
    ends_in_turn=1.29,
    mixed=0.0257,
    softness=6.84,
)

WARM_US = 200.0  # of tensor cores at work: a kernel as short as that, behind a flush, does not reach the power limit
STEADY_US = 400.0  # a clock that falls with the power of each kernel becomes one that is the same for all


@dataclass(frozen=True)
class TileShape:
    """What of a plan its time depends on.

    tile       (bM, bN)
    cluster    CTAs along M and N
    epilogue   pingpong, cooperative or deferred: what the products go on behind
    raster     the order of the tiles
    """

    tile: tuple[int, int]
    cluster: tuple[int, int] = (1, 1)
    epilogue: str = "pingpong"
    raster: str = "grouped_m:8"

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


def predicted_us(
    shape: TileShape,
    operands: Operands,
    problem: Problem,
    device: Device = DEFAULT_DEVICE,
    split: Split | None = None,
    costs: Sm90Costs | None = None,
    rate: float = 1.0,
) -> float:
    """Microseconds that a plan takes behind a flush of the L2 cache, beside what packing takes.

    costs   those of an H200 where left out
    rate    of the products, to that of wgmma

    >>> bf16, wide = Operands.of("bf16", layout="nt"), TileShape((128, 256), (2, 1), "deferred")
    >>> 180 < predicted_us(wide, bf16, Problem(4096, 4096, 4096)) < 210
    True
    """
    cost = costs or H200_COSTS
    split = split or Split()
    one = _Turn(shape, operands, problem, device, split, cost, rate)
    grid, units = one.grid, one.clusters * split.parts
    filled = one.filled() if split.owned else None
    if filled is not None:
        turns_us = one.us(grid) * (units // grid + filled.owned / one.k_tiles)
    elif split.waves and not split.owned:
        turns_us = one.us(grid) * (units / grid + cost.shared_wave)
    else:
        whole, rest = divmod(units, grid)
        turns_us = whole * one.us(grid) if whole else 0.0
        if rest:
            turns_us += one.us(min(float(grid), rest + (cost.mixed * grid if whole else 0.0)))
    memory_us = one.memory_us
    us = cost.start + _slowest(cost, turns_us, memory_us) + cost.cold * memory_us + cost.last * one.area
    if shape.cluster != (1, 1):
        us += cost.cluster
    sums_us = shape.tile[0] * shape.tile[1] * operands.acc.bits / 8 / 1024 / cost.sums
    if split.parts > 1:
        us += (cost.meet + split.parts * sums_us) * -(-units // grid)
    if filled is not None:
        ends = cost.ends_in_turn if shape.epilogue == "pingpong" else cost.ends
        us += ends + filled.workers / filled.shared * sums_us
    return us


def bound(
    shape: TileShape,
    operands: Operands,
    problem: Problem,
    device: Device = DEFAULT_DEVICE,
    split: Split | None = None,
    costs: Sm90Costs | None = None,
) -> str:
    """What a plan takes most of its time for, by the model.

    >>> bf16 = Operands.of("bf16", layout="nt")
    >>> bound(TileShape((128, 256), (2, 1), "deferred"), bf16, Problem(8192, 8192, 8192))
    'tensor cores'
    >>> bound(TileShape((64, 16)), bf16, Problem(8192, 16, 8192))
    'DRAM'
    """
    cost = costs or H200_COSTS
    one = _Turn(shape, operands, problem, device, split or Split(), cost, 1.0)
    at_once = min(float(one.grid), float(one.clusters * one.parts))
    turns = one.clusters * one.parts / one.grid
    k_tiles = one.k_tiles * max(1.0, turns)
    found = {name: us * k_tiles for name, us in zip(_BOUNDS, one.k_tile_us(at_once), strict=True)}
    found |= {"store of D": one.store_us * max(1.0, turns), "DRAM": one.memory_us, "start": cost.start}
    return max(found, key=lambda name: found[name])


class _Turn:
    """A turn of the grid: what it takes with so many clusters at work.

    area        of a tile, in units of 128 x 128
    clusters    of tiles of D
    memory_us   of reading A and B from DRAM
    """

    def __init__(
        self,
        shape: TileShape,
        operands: Operands,
        problem: Problem,
        device: Device,
        split: Split,
        cost: Sm90Costs,
        rate: float,
    ) -> None:
        (bm, bn), bits = shape.tile, operands.a.dtype.bits
        self.shape, self.cost, self.grid = shape, cost, shape.grid(device.sms)
        rates = device.measured
        self.rows, self.columns = shape.clusters(problem)
        self.clusters = self.rows * self.columns * problem.l
        self.area = bm * bn / _UNIT
        self.parts = split.parts
        k_bytes = problem.k * bits // 8
        self.k_tiles = -(-k_bytes // K_TILE_BYTES // split.parts)
        busy_us = problem.m * problem.n * problem.l * k_bytes / (rates.wgmma_tflops * 1e6)
        slower = 1 + cost.warm * min(1.0, busy_us / WARM_US)
        self.products_us = cost.tensor * slower * self.area / rate
        # Of each wgmma of 64 rows: its rows of A and all columns of B. TMA writes both once.
        read_kib = -(-bm // WGMMA_M) * (WGMMA_M + bn) * K_TILE_BYTES / 1024
        arriving_kib = (bm + bn) * K_TILE_BYTES / 1024
        eased = 1 - cost.eased * min(1.0, busy_us / STEADY_US)
        self.shared_us = cost.shared * eased * (read_kib + arriving_kib)
        self.port_us = cost.port * eased * arriving_kib
        unaligned = [_unaligned(operands, problem, name) for name in "ab"]
        self.row_kib = [
            extent / sharers * K_TILE_BYTES / 1024 * (cost.l2_unaligned if is_unaligned else 1.0)
            for extent, sharers, is_unaligned in zip((bm, bn), shape.cluster[::-1], unaligned, strict=True)
        ]
        self.store_us = self._store_us(operands, problem, rates.l2_kept_bytes)
        read = self.read_bytes(operands, problem, rates.l2_kept_bytes)
        self.memory_us = read / (rates.tma_read_gb_s * 1e3)
        self.exposed_us = self.area * slower * getattr(cost, shape.epilogue)

    def read_bytes(self, operands: Operands, problem: Problem, kept_bytes: float) -> float:
        """Of A and B, from memory. What L2 does not keep is read once more for each turn of tiles along M or N."""
        of_k = problem.k * problem.l * operands.a.dtype.bits / 8
        a, b = problem.m * of_k, problem.n * of_k
        if a + b > kept_bytes:
            turns = max(1.0, self.rows * self.columns / self.grid)
            if self.shape.raster == "along_n":
                b *= min(turns, max(1, self.rows))
            if self.shape.raster == "along_m":
                a *= min(turns, max(1, self.columns))
        return a + b

    def filled(self) -> Shares | None:
        """The division of K where tiles have owners; None where they would keep all of them."""
        shares = shares_of(FILLED, self.clusters, self.k_tiles, self.grid)
        return shares if shares.shared else None

    def _store_us(self, operands: Operands, problem: Problem, kept_bytes: float) -> float:
        (bm, bn), bits, cost = self.shape.tile, operands.d.dtype.bits, self.cost
        stays = problem.m * problem.n * problem.l * bits / 8 <= kept_bytes
        rate = cost.store if stays else cost.store_memory
        if not stays and self.shape.raster == f"along_{operands.d.major}":
            rate *= cost.store_along
        if bn * bits % 512:
            rate *= cost.store_narrow
        if self.shape.cluster[0] > 1:
            rate *= cost.store_stacked
        return bm * bn * bits / 8 / 1024 / rate

    def us(self, clusters: float) -> float:
        """With so many clusters at a time."""
        k_tile_us = _slowest(self.cost, *self.k_tile_us(clusters))
        return _slowest(self.cost, k_tile_us * self.k_tiles + self.exposed_us, self.store_us)

    def k_tile_us(self, clusters: float) -> tuple[float, float, float, float]:
        """Of a k-tile, what each of `_BOUNDS` takes."""
        cost = self.cost
        tiles = clusters / self.parts
        rows = min(self.rows, _GROUP)
        columns = min(float(self.columns), max(1.0, tiles / rows))
        readers = columns, min(float(self.rows), tiles / columns)  # of a row of A, of a row of B
        kib = sum(
            kib * max(1.0, count) ** -cost.l2_readers
            for kib, count in zip(self.row_kib, readers, strict=True)
        )
        l2_us = max(cost.l2 * clusters / self.grid, cost.l2_alone) * kib
        return self.products_us, l2_us, self.port_us, self.shared_us


def _slowest(cost: Sm90Costs, *us: float) -> float:
    """The slowest of some that go on at the same time, and a little more where another is near it."""
    return float(sum(one**cost.softness for one in us) ** (1 / cost.softness))


def _unaligned(operands: Operands, problem: Problem, name: str) -> bool:
    """Whether not every row of A or of B, as it lies in memory, begins at a line."""
    operand = getattr(operands, name)
    extent = problem.k if operand.major == "k" else problem.m if name == "a" else problem.n
    leading = dict(problem.ld).get(name, extent)
    return bool(leading * operand.dtype.bits // 8 % CACHE_LINE_BYTES)
