"""The choice among the named plans for Hopper: a model of their times, fitted to those of one H200.

Each number is of one H200, bf16, torch 2.11, normal data, 2026-11-20, behind a flush of the L2 cache;
`python -m cutegemm.bench.fit_sm90 FILE.json ...` makes those of the catalog anew from what `cutegemm.bench.gemm`
wrote. Those of the parts of a tile are estimates: parts of 16 to 256 rows were timed, and whole tiles were faster.
"""

from __future__ import annotations

from collections.abc import Iterator

from cutegemm.errors import PlanError
from cutegemm.plan.choice import H200_MULTIPROCESSORS, by_reason
from cutegemm.plan.limits import limits
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Operands, Problem
from cutegemm.plan.sm90_catalog import (
    SM90_LADDER,
    SM90_TWO_LEVEL,
    TURN_K,
    NamedSm90,
    sm90_named,
)
from cutegemm.plan.split import Split

ACCUMULATIONS = ("fast", "two_level")

TURN_K_TILE = 64  # elements of 16 bits
START_US = 2.0  # of a kernel: until its first product, and after its last
DEFERRED_END_US = (
    1.0  # behind no products any more: the last tile of a plan that stores behind the next one's
)
FAR_BYTES = (
    100 << 20
)  # of A and B together, twice the L2 cache: they are then read from memory again and again
CLOSE = 1.002  # of plans that differ by less than this, that which loads the fewest bytes is taken

# What streaming the operands takes at least. A benchmark's flush leaves the L2 cache full of what must be written to
# memory before anything else has room; D itself may stay there.
MEMORY_BYTES_PER_US = 4.2e6
L2_BYTES = 50e6
# 64 rows take 18.0 and 44.9 us with 4096 and 8192 columns and k; 128 rows, by tiles of 64, 21.3 and 55.6, but in
# clusters, which load it once for both, 18.5 and 45.9; and 16 rows, so that a box of A is past the edge, 20.8 and 49.4
# to 54.
TWO_READERS = 1.2  # times that, where two rows of clusters stream B, or two columns A
FILL_BYTES_PER_US = 81e3  # of one multiprocessor, of A and B that come from memory
FEW = 256  # rows, or columns
PAST_THE_EDGE = 0.2  # of that more for 64 rows past the edge of the only row of tiles, or columns

# Estimates of what parts of a tile take: until consumers have met, and for each part's sums on their way.
MEET_US = 1.5
SUMS_BYTES_PER_US = 60e3  # of one multiprocessor, to or from the L2 cache
LEAST_GAIN = 1.05  # by which a split must be faster to be taken, as long as that is an estimate
STREAM_TURNS = 0.25  # that a shared wave takes longer: 0.18 to 0.32 in 10 shapes, with K = 8192 to 28672
LEAST_WAVES = 4  # whole ones, before sharing what is left was seen to gain
SPLITS = (2, 3, 4, 6, 8, 12, 16)
LEAST_K = 512  # of a part, in elements of 16 bits: it fills the queue of a large tile twice


def choose_sm90(
    operands: Operands,
    problem: Problem,
    multiprocessors: int = H200_MULTIPROCESSORS,
    with_c: bool = False,
    accumulate: str = "fast",
) -> GemmPlan:
    """The named plan that `predicted_us` holds to be the fastest; K is split where that gains 5% and more.

    accumulate   of fp8: "fast" sums up as wgmma does, with about 14 bits; "two_level" adds the sums of each k-tile
                 up in f32. Other types are summed up in full either way
    raises       PlanError where no named plan serves the operands

    >>> operands = Operands.of("bf16", layout="nt")
    >>> [choose_sm90(operands, Problem(*mnk)).name for mnk in ((64, 4096, 4096), (8192, 8192, 8192))]
    ['sm90_64x64', 'sm90_wide_2x1']
    >>> choose_sm90(operands, Problem(128, 128, 16384)).split.is_split
    True
    """
    if accumulate not in ACCUMULATIONS:
        raise PlanError(
            "choose_sm90", [f"accumulate = {accumulate!r}; {' or '.join(ACCUMULATIONS)} is expected."]
        )
    is_fp8 = operands.a.dtype.is_float and operands.a.dtype.bits == 8
    ladder = SM90_TWO_LEVEL if is_fp8 and accumulate == "two_level" else SM90_LADDER
    refusals: list[tuple[str, str]] = []
    for name in ranked(ladder, operands, problem, multiprocessors):
        try:
            plan = sm90_named(name, operands, with_c, multiprocessors)
        except PlanError as error:
            refusals += [(name, rule) for rule in error.violations]
            continue
        assert plan is not None
        too_large = list(limits(plan, problem))
        if not too_large:
            return plan
        refusals += [(name, rule) for rule in too_large]
    raise PlanError(f"choose_sm90: no named plan for {operands}", by_reason(refusals))


def ranked(
    ladder: tuple[NamedSm90, ...], operands: Operands, problem: Problem, multiprocessors: int
) -> list[str]:
    """Names of plans, the one to take first."""
    timed = [named for named in ladder if named.turn_us is not None]

    def entry(named: NamedSm90, split: Split) -> tuple[float, float, str]:
        us = predicted_us(named, operands, problem, multiprocessors, split)
        return us, loaded_bytes(named, operands, problem), named.called(split)

    found = [entry(named, Split()) for named in timed]
    whole_us = min(found)[0]
    for named in timed:
        for split in splits(named, operands, problem, multiprocessors):
            one = entry(named, split)
            if one[0] * (1.0 if split.waves else LEAST_GAIN) <= whole_us:
                found.append(one)
    close_us = min(found)[0] * CLOSE
    in_order = sorted(found, key=lambda one: (max(one[0], close_us), one[1], one[0]))
    return [name for _, _, name in in_order]


def splits(named: NamedSm90, operands: Operands, problem: Problem, multiprocessors: int) -> Iterator[Split]:
    """Of K, as far as its parts are long enough; a shared wave behind some whole ones."""
    k = problem.k * operands.a.dtype.bits / 16
    yield from (Split(parts, reduction="last") for parts in SPLITS if k >= parts * LEAST_K)
    if clusters_of(named, problem) >= LEAST_WAVES * grid_of(named, multiprocessors):
        yield Split(waves=1, reduction="last")


def clusters_of(named: NamedSm90, problem: Problem) -> int:
    """Tiles of D, in clusters.

    >>> clusters_of(SM90_LADDER[0], Problem(1000, 1000, 64))
    64
    """
    (bm, bn), (cm, cn) = named.tile, named.options.get("cluster", (1, 1))
    return -(-problem.m // bm // cm) * -(-problem.n // bn // cn) * problem.l


def grid_of(named: NamedSm90, multiprocessors: int) -> int:
    """Clusters that run at a time."""
    cm, cn = named.options.get("cluster", (1, 1))
    return int(max(1, multiprocessors // (cm * cn)))


def predicted_us(
    named: NamedSm90,
    operands: Operands,
    problem: Problem,
    multiprocessors: int,
    split: Split | None = None,
) -> float:
    """How long a named plan will take.

    A turn is a tile for each multiprocessor; a problem takes ceil(tiles / multiprocessors) of them, counted in
    clusters, or of parts of tiles; with shared waves a fraction. Between the measured K a turn's time is
    interpolated. Never less than it takes to stream the operands. On top comes what the parts of a tile take: one is
    written, and the last consumer reads the others.
    """
    assert named.turn_us is not None
    split = split or Split()
    cm, cn = named.options.get("cluster", (1, 1))
    (bm, bn), k = named.tile, problem.k * operands.a.dtype.bits / 16 / split.parts
    rows, columns = -(-problem.m // bm), -(-problem.n // bn)
    clusters, grid = clusters_of(named, problem), grid_of(named, multiprocessors)
    turns = clusters / grid + STREAM_TURNS if split.waves else -(-clusters * split.parts // grid)
    streaming = streams(named.tile, problem.m, problem.n)
    if (problem.m + problem.n) * problem.k * operands.a.dtype.bits // 8 > FAR_BYTES and not streaming:
        work = turns * max(named.turn_us[0], named.far_us * k / TURN_K_TILE)
    else:
        work = turns * _interpolated(named.turn_us, k)
    least = _streamed_us(operands, problem)
    if streaming:
        work = max(work, turns * (bm + bn) * k * 2 / FILL_BYTES_PER_US)
        few, unused, sharing = (rows, rows * bm - problem.m, cm)
        if columns < rows:
            few, unused, sharing = (columns, columns * bn - problem.n, cn)
        if -(-few // sharing) == 2:
            least *= TWO_READERS
        elif few == 1:
            least *= 1.0 + PAST_THE_EDGE * unused / 64
    whole_us = START_US + max(work, least) + (DEFERRED_END_US if named.options.get("deferred") else 0.0)
    if split.parts == 1:
        return whole_us
    sums_us = bm * bn * operands.acc.bits / 8 / SUMS_BYTES_PER_US
    return whole_us + (MEET_US + split.parts * sums_us) * turns


def streams(tile: tuple[int, int], m: int, n: int) -> bool:
    """Whether D has so few rows or columns, and of tiles, that an operand is read from memory about once.

    >>> streams((128, 128), 256, 8192), streams((64, 128), 256, 8192), streams((256, 128), 512, 8192)
    (True, False, False)
    """
    return min(m, n) <= FEW and min(-(-m // tile[0]), -(-n // tile[1])) <= 2


def loaded_bytes(named: NamedSm90, operands: Operands, problem: Problem) -> float:
    """Of A and B, by all CTAs, each box of a multicast once."""
    (bm, bn), (cm, cn) = named.tile, named.options.get("cluster", (1, 1))
    clusters = -(-problem.m // (bm * cm)) * -(-problem.n // (bn * cn)) * problem.l
    return float(clusters * (bm * cm + bn * cn) * problem.k * operands.a.dtype.bits / 8)


def _streamed_us(operands: Operands, problem: Problem) -> float:
    """What it takes to read A and B once, and to write that part of D that does not stay in the L2 cache."""
    a_b_bytes = (problem.m + problem.n) * problem.k * problem.l * operands.a.dtype.bits / 8
    d_bytes = problem.m * problem.n * problem.l * operands.d.dtype.bits / 8
    moved = a_b_bytes + max(0.0, d_bytes - L2_BYTES) + min(a_b_bytes + d_bytes, L2_BYTES)
    return float(moved / MEMORY_BYTES_PER_US)


def _interpolated(turn_us: tuple[float, ...], k: float) -> float:
    """Between the measured K; beyond the last one, as between the last two."""
    if k <= TURN_K[0]:
        return turn_us[0]
    last = len(TURN_K) - 1
    right = next((i for i, at in enumerate(TURN_K) if at >= k), last)
    (k0, t0), (k1, t1) = (TURN_K[right - 1], turn_us[right - 1]), (TURN_K[right], turn_us[right])
    return t0 + (t1 - t0) * (k - k0) / (k1 - k0)
