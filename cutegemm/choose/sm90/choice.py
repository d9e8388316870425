"""The choice among the named plans for Hopper, by the time that `sm90_time` predicts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cutegemm.choose.common import by_reason
from cutegemm.choose.sm90.named import SM90_CHOSEN, SM90_TWO_LEVEL, sm90_named
from cutegemm.choose.sm90.recipe import NamedSm90
from cutegemm.choose.sm90.time import K_TILE_BYTES, predicted_us
from cutegemm.errors import PlanError
from cutegemm.machine.device import H200_MULTIPROCESSORS
from cutegemm.plan.memory.packing import ALIGN_BYTES, to_pack_for_wgmma
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Operands, Problem
from cutegemm.plan.rules.limits import limits
from cutegemm.plan.work.shares import shares_of
from cutegemm.plan.work.split import FILLED, Split, by_last

ACCUMULATIONS = ("fast", "two_level")

LEAST_GAIN = 1.03  # by which a split must be faster to be taken
# Where idle CTAs take the ends of the last tiles: by which that must be faster, of how many k-tiles the tiles must be,
# which were else seen to lose by it, and for which tiles it was timed.
LEAST_FILL_GAIN = 1.005
LEAST_FILL_K_TILES = 24
FILLED_TILES = ((128, 128), (128, 160), (128, 176), (128, 192), (128, 256), (256, 128))
SPLITS = (2, 3, 4, 6, 8, 12, 16)
LEAST_K_TILES = 8  # of a part: it fills the queue of a large tile twice


# Operands that are packed first. Their copy is taken to run at the speed of memory, though L2 may hold some of it.
PACK_START_US = 2.5  # of a kernel that packs one
PACK_BYTES_PER_US = 4.2e6  # read or written
# Of wgmma's rate: 0.60 to 0.71 of tf32 in 2048 to 8192 cubed. Where threads load fewer than 16 bytes at a time, it was
# seen to fall with them: 0.04 to 0.1 with rows of bf16 that are aligned to 2.
MMA_SYNC_RATE = 0.62


def choose_sm90(
    operands: Operands,
    problem: Problem,
    multiprocessors: int = H200_MULTIPROCESSORS,
    with_c: bool = False,
    accumulate: str = "fast",
) -> GemmPlan:
    """The named plan that `predicted_us` holds to be the fastest; K is split where that gains enough.

    Operands that TMA cannot load, or wgmma not multiply, as they are, are packed.

    accumulate   of fp8: "fast" sums up as wgmma does, with about 14 bits; "two_level" adds the sums of each k-tile
                 up in f32. Other types are summed up in full either way
    raises       PlanError where no named plan serves the operands

    >>> operands = Operands.of("bf16", layout="nt")
    >>> [choose_sm90(operands, Problem(*mnk)).name for mnk in ((1536, 1536, 1536), (4096, 4096, 4096))]
    ['sm90_128x144_2x1', 'sm90_cluster_2x1/fill']
    >>> choose_sm90(operands, Problem(128, 128, 16384)).split.is_split
    True
    >>> print(*choose_sm90(Operands.of("e4m3"), Problem(64, 4096, 4096)).packs)
    B to k-major by tiles of 128 x 128, 256 threads
    """
    if accumulate not in ACCUMULATIONS:
        raise PlanError(
            "choose_sm90", [f"accumulate = {accumulate!r}; {' or '.join(ACCUMULATIONS)} is expected."]
        )
    is_fp8 = operands.a.dtype.is_float and operands.a.dtype.bits == 8
    considered = SM90_TWO_LEVEL if is_fp8 and accumulate == "two_level" else SM90_CHOSEN
    unsuited: list[tuple[str, str]] = []
    too_large: list[tuple[str, str]] = []
    for name in ranked(considered, operands, problem, multiprocessors):
        try:
            plan = sm90_named(name, operands, with_c, multiprocessors)
        except PlanError as error:
            unsuited += [(name, rule) for rule in error.violations]
            continue
        assert plan is not None
        beyond = list(limits(plan, problem))
        if not beyond:
            return plan
        too_large += [(name, rule) for rule in beyond]
    # A problem that is too large for plans of its operands is so whatever the other plans cannot do
    raise PlanError(f"choose_sm90: no named plan for {operands}", by_reason(too_large or unsuited))


def ranked(
    considered: Iterable[NamedSm90], operands: Operands, problem: Problem, multiprocessors: int
) -> list[str]:
    """Names of plans, the one to take first; of two that take as long, that which loads fewer bytes."""
    is_packed = bool(to_pack_for_wgmma(operands))
    found = [
        (us, loaded_bytes(named, operands, problem), named.called(split, is_packed))
        for us, named, split in candidates(considered, operands, problem, multiprocessors)
    ]
    return [name for _, _, name in sorted(found)]


def candidates(
    considered: Iterable[NamedSm90],
    operands: Operands,
    problem: Problem,
    multiprocessors: int,
    rate: float = 1.0,
) -> Iterator[tuple[float, NamedSm90, Split]]:
    """Plans with whole tiles, and with shared ones where that is held to gain enough; and microseconds of each.

    rate   of the products, to that of wgmma
    """
    plans = tuple(considered)

    def entry(named: NamedSm90, split: Split) -> tuple[float, NamedSm90, Split]:
        us = predicted_us(named.shape, operands, problem, multiprocessors, split, rate=rate)
        return us, named, split

    whole = [entry(named, Split()) for named in plans]
    yield from whole
    whole_us = min(us for us, _, _ in whole)
    for named in plans:
        for split in splits(named, operands, problem, multiprocessors):
            one = entry(named, split)
            if one[0] * (LEAST_FILL_GAIN if split.owned else LEAST_GAIN) <= whole_us:
                yield one


def best_predicted_us(
    operands: Operands, problem: Problem, multiprocessors: int = H200_MULTIPROCESSORS, rate: float = 1.0
) -> float:
    """Of the plan that is held to be the fastest.

    rate   of the products, to that of wgmma
    """
    return min(us for us, _, _ in candidates(SM90_CHOSEN, operands, problem, multiprocessors, rate))


def splits(named: NamedSm90, operands: Operands, problem: Problem, multiprocessors: int) -> Iterator[Split]:
    """Of K, as far as its parts are long enough; or of the last k-tiles of tiles that do not fill the grid."""
    k_tiles = problem.k * operands.a.dtype.bits // 8 // K_TILE_BYTES
    rows, columns = named.shape.clusters(problem)
    tiles, grid = rows * columns * problem.l, named.shape.grid(multiprocessors)
    if tiles < grid:
        yield from (by_last(split_k=parts) for parts in SPLITS if k_tiles >= parts * LEAST_K_TILES)
    is_seen = named.tile in FILLED_TILES and k_tiles >= LEAST_FILL_K_TILES
    if is_seen and shares_of(FILLED, tiles, k_tiles, grid).shared:
        yield FILLED


def packing_us(operands: Operands, problem: Problem) -> float:
    """What it takes to pack the operands that are in the way: a kernel each, which reads and writes them.

    >>> round(packing_us(Operands.of("bf16", layout="nt", align_bytes=2), Problem(4096, 4096, 4096)), 1)
    37.0
    """
    total = 0.0
    for name in to_pack_for_wgmma(operands):
        rows = problem.m if name == "a" else problem.n
        size = rows * problem.k * problem.l * operands.a.dtype.bits / 8
        total += PACK_START_US + 2 * size / PACK_BYTES_PER_US
    return total


def packing_pays(operands: Operands, problem: Problem, multiprocessors: int = H200_MULTIPROCESSORS) -> bool:
    """Whether operands are faster packed and multiplied by wgmma than as they are by mma.sync.

    >>> tf32 = Operands.of("tf32", layout="nn")
    >>> packing_pays(tf32, Problem(4096, 4096, 4096)), packing_pays(tf32, Problem(64, 4096, 4096))
    (True, False)
    """
    loaded = min(operands.a.align_bytes, operands.b.align_bytes, ALIGN_BYTES)
    rate = MMA_SYNC_RATE * loaded / ALIGN_BYTES
    wgmma_us, mma_sync_us = (best_predicted_us(operands, problem, multiprocessors, of) for of in (1.0, rate))
    return wgmma_us + packing_us(operands, problem) < mma_sync_us


def loaded_bytes(named: NamedSm90, operands: Operands, problem: Problem) -> float:
    """Of A and B, by all CTAs, each box of a multicast once."""
    (bm, bn), (cm, cn), (rows, columns) = named.tile, named.shape.cluster, named.shape.clusters(problem)
    loaded = rows * columns * problem.l * (bm * cm + bn * cn)
    return float(loaded * problem.k * operands.a.dtype.bits / 8)
