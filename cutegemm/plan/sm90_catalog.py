"""The named plans for Hopper: a ladder, each step with what it changes and why, and the choice among them.

Times that are quoted are of one H200, bf16, D bf16, A and B k-major, normal data, alternating with cuBLAS of
torch 2.11, 2026-11-20.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from cutegemm.errors import PlanError
from cutegemm.plan.choice import parse_options
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Operands, Problem
from cutegemm.plan.sm90 import H200_MULTIPROCESSORS, sm90_plan
from cutegemm.tile.tma import TMA_INNER_ALIGNED_BYTES

K_TILE_BYTES = 128  # one row of the widest swizzle

# How long a turn takes was measured on 8448 x 9216 with these K, and at 8192 and 16384 cubed for `far_us`.
TURN_K = (64, 128, 256, 512, 1024, 2048)
TURN_K_TILE = 64
FAR_BYTES = 100 << 20  # of A and B together: twice the L2 cache
START_US = 2.0  # of a kernel: until its first product, and after its last


@dataclass(frozen=True)
class NamedSm90:
    """A Hopper plan by name.

    tile      (bM, bN); bK is 128 bytes
    options   arguments of `sm90_plan`
    turn_us   microseconds in which each multiprocessor finishes a tile, with `TURN_K` elements along K; None
              for a plan that is never chosen
    far_us    the same for each k-tile, where A and B are larger than L2
    """

    name: str
    summary: str
    tile: tuple[int, int]
    options: Mapping[str, Any] = field(default_factory=dict)
    turn_us: tuple[float, ...] | None = None
    far_us: float = 0.0

    def build(self, operands: Operands, with_c: bool = False, ctas: int = H200_MULTIPROCESSORS) -> GemmPlan:
        """The plan for operands; a D that TMA cannot store leaves straight out of registers.

        ctas     of a persistent grid
        raises   PlanError where the operands break its rules
        """
        options: dict[str, Any] = {"ctas": ctas, **self.options}
        if not _by_tma(operands, with_c):
            options["store"] = "direct"
        bk = K_TILE_BYTES * 8 // operands.a.dtype.bits
        return sm90_plan(
            operands, name=self.name, summary=self.summary, tile=(*self.tile, bk), with_c=with_c, **options
        )


_DIRECT = {"store": "direct", "raster": "along_n"}
_COOPERATIVE = {"schedule": "cooperative"}
_KEEP_INPUTS = ("evict_last", "evict_last", "evict_first")

SM90_LADDER = (
    NamedSm90(
        "sm90_multistage",
        "TMA loads and wgmma: one warpgroup, which asks for k-tiles ahead between its products",
        (128, 128),
        {"schedule": "single", **_DIRECT},
    ),
    NamedSm90(
        "sm90_specialized",
        "a producer warp fills the queue, so that the products never wait for the asking",
        (128, 128),
        {"schedule": "cooperative", "consumers": 1, **_DIRECT, "ctas": None},
    ),
    NamedSm90(
        "sm90_large_tile",
        "two consumers share 128 x 256: 1.3 times the products for each byte that is loaded",
        (128, 256),
        {**_COOPERATIVE, **_DIRECT, "ctas": None},
    ),
    NamedSm90(
        "sm90_persistent",
        "one CTA a multiprocessor takes tile after tile: the next one's k-tiles come while D is written",
        (128, 256),
        {**_COOPERATIVE, **_DIRECT},
    ),
    NamedSm90(
        "sm90_pingpong",
        "the consumers take tiles in turn: one writes D while the other multiplies",
        (128, 128),
        {**_DIRECT},
    ),
    NamedSm90(
        "sm90_tma_plain",
        "D leaves by TMA, through rows of 128 bytes: stmatrix meets 8-fold bank conflicts",
        (128, 128),
        {"shared_d": "plain", "raster": "along_n"},
    ),
    NamedSm90(
        "sm90_tma_swizzled",
        "the rows are swizzled as TMA unswizzles them: no conflicts",
        (128, 128),
        {"raster": "along_n"},
    ),
    NamedSm90(
        "sm90_slots",
        "four slots of D a consumer: its tile is written without waiting for the stores before it",
        (128, 128),
        {"slots": 4, "raster": "along_n"},
        (1.2, 1.29, 1.74, 3.3, 6.61, 14.38),
        0.6,
    ),
    NamedSm90(
        "sm90_along_m",
        "tiles in columns: which operand is read again from L2 decides at large K",
        (128, 128),
        {"slots": 4, "raster": "along_m"},
        (1.38, 1.51, 1.9, 3.36, 6.65, 13.39),
        0.58,
    ),
    NamedSm90(
        "sm90_grouped",
        "tiles in bands of 16 rows: both operands are read again from L2",
        (128, 128),
        {"slots": 4, "raster": "grouped_m:16"},
        (1.32, 1.49, 2.0, 3.5, 6.78, 13.5),
        0.53,
    ),
    NamedSm90(
        "sm90_hilbert",
        "tiles along a Hilbert curve in squares of 8 x 8: as near to each other as an order can have them",
        (128, 128),
        {"slots": 4, "raster": "hilbert:8"},
    ),
    NamedSm90(
        "sm90_l2",
        "L2 is told to keep A and B, and to let go of D",
        (128, 128),
        {"slots": 4, "raster": "grouped_m:8", "l2": _KEEP_INPUTS},
    ),
    NamedSm90(
        "sm90_cluster_1x2",
        "two CTAs side by side load their A once, by multicast",
        (128, 128),
        {"slots": 4, "cluster": (1, 2)},
        (1.24, 1.36, 1.82, 3.29, 6.52, 13.22),
        0.426,
    ),
    NamedSm90(
        "sm90_cluster_2x1",
        "two CTAs on top of each other load their B once",
        (128, 128),
        {"cluster": (2, 1)},
        (1.41, 1.54, 2.03, 3.27, 6.37, 13.09),
        0.422,
    ),
    NamedSm90(
        "sm90_wide_1x2",
        "128 x 192 pingpong: fewer bytes a product than 128 x 128, in the 240 registers that there are",
        (128, 192),
        {"cluster": (1, 2)},
        (2.05, 2.26, 2.85, 4.68, 9.33, 19.21),
        0.626,
    ),
    NamedSm90(
        "sm90_wide_2x1",
        "the same, sharing B",
        (128, 192),
        {"cluster": (2, 1)},
        (2.15, 2.36, 2.97, 4.72, 9.26, 19.31),
        0.615,
    ),
    NamedSm90(
        "sm90_cooperative",
        "128 x 256 by two consumers with D through TMA, where many k-tiles hide the epilogue",
        (128, 256),
        {**_COOPERATIVE},
        (2.61, 3.22, 4.59, 7.67, 14.86, 27.13),
        0.86,
    ),
    NamedSm90(
        "sm90_cooperative_2x1",
        "in clusters; the second consumer begins 550 cycles later, so that the two do not store at once",
        (128, 256),
        {**_COOPERATIVE, "cluster": (2, 1), "stagger_cycles": 550},
        (2.81, 3.12, 4.33, 7.4, 14.04, 26.91),
        0.8,
    ),
    NamedSm90(
        "sm90_tall_1x2",
        "256 x 128 by two consumers of 128 x 128 each, sharing A in clusters",
        (256, 128),
        {**_COOPERATIVE, "cluster": (1, 2)},
        (2.86, 3.2, 4.5, 7.53, 14.35, 26.73),
        0.806,
    ),
    NamedSm90(
        "sm90_256x160",
        "the largest tile whose stages still number four: for the largest problems",
        (256, 160),
        {**_COOPERATIVE},
        (3.41, 4.3, 5.99, 9.59, 18.03, 33.76),
        1.008,
    ),
    NamedSm90(
        "sm90_64x256",
        "64 x 256 pingpong: for few rows",
        (64, 256),
        {"slots": 4},
        (1.24, 1.4, 2.55, 4.62, 8.75, 17.89),
        0.75,
    ),
    NamedSm90(
        "sm90_64x128",
        "64 x 128 pingpong: for problems of few tiles",
        (64, 128),
        {"slots": 2},
        (0.8, 0.95, 1.45, 2.6, 4.9, 9.5),
        0.33,
    ),
    NamedSm90(
        "sm90_64x64",
        "64 x 64 pingpong: for the smallest problems",
        (64, 64),
        {"subtile_n": 32},
        (0.6, 0.75, 1.15, 2.0, 3.7, 7.0),
        0.25,
    ),
)
# For fp8, whose sums wgmma does not keep in full.
SM90_TWO_LEVEL = (
    NamedSm90(
        "sm90_two_level",
        "128 x 128 by two consumers; the sums of each k-tile are added up by the threads",
        (128, 128),
        {**_COOPERATIVE, "two_level": True},
        (1.40, 1.60, 2.10, 3.40, 6.60, 13.40),
        0.44,
    ),
    NamedSm90(
        "sm90_two_level_2x1",
        "128 x 192 of it, in clusters that share B",
        (128, 192),
        {**_COOPERATIVE, "two_level": True, "cluster": (2, 1)},
        (2.20, 2.40, 3.10, 4.90, 9.50, 19.6),
        0.63,
    ),
)
_NAMED = (*SM90_LADDER, *SM90_TWO_LEVEL)
_BY_NAME = {named.name: named for named in _NAMED}


def sm90_names() -> list[tuple[str, str]]:
    """Every name, with what is behind it."""
    return [(named.name, named.summary) for named in _NAMED]


@cache
def sm90_named(
    name: str, operands: Operands, with_c: bool = False, ctas: int = H200_MULTIPROCESSORS
) -> GemmPlan | None:
    """The plan of a name, or of a text that spells out the arguments of `sm90_plan`; None for another name.

    name     one of `sm90_names()`, or "sm90:tile=128x128x64,cluster=2x1,slots=4,l2=last+last+first"
    raises   PlanError where the operands break the plan's rules

    >>> sm90_named("sm90:tile=128x256x64,schedule=cooperative", Operands.of("bf16", layout="nt")).stages
    4
    """
    if name.startswith("sm90:"):
        options = {"ctas": ctas, **parse_options(name, _OPTIONS)}
        if not _by_tma(operands, with_c):
            options["store"] = "direct"
        return sm90_plan(operands, name=name, with_c=with_c, **options)
    named = _BY_NAME.get(name)
    return None if named is None else named.build(operands, with_c, ctas)


def _by_tma(operands: Operands, with_c: bool) -> bool:
    """Whether TMA can store D and, where it is read, load C to where D will lie."""
    c, d = operands.c, operands.d
    alike = (c.dtype, c.major) == (d.dtype, d.major) and c.align_bytes >= TMA_INNER_ALIGNED_BYTES
    return d.align_bytes >= TMA_INNER_ALIGNED_BYTES and (alike or not with_c)


def _tuple(text: str) -> tuple[int, ...]:
    return tuple([int(part) for part in text.split("x")])


def _policies(text: str) -> tuple[str, ...]:
    return tuple([f"evict_{part}" for part in text.split("+")])


_OPTIONS: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(("tile", "cluster", "registers"), _tuple),
    **dict.fromkeys(("consumers", "stages", "subtile_n", "slots", "stagger_cycles"), int),
    **dict.fromkeys(("schedule", "store", "shared_d", "raster"), str),
    "l2": _policies,
    "ctas": lambda text: None if text == "none" else int(text),
    **dict.fromkeys(("order_epilogue", "two_level"), lambda text: text == "1"),
}


def choose_sm90(
    operands: Operands, problem: Problem, multiprocessors: int = H200_MULTIPROCESSORS, with_c: bool = False
) -> GemmPlan:
    """The named plan whose turns, as measured, are over first; for fp8 one that keeps sums in full.

    A turn is a tile for each multiprocessor; a problem takes ceil(tiles / multiprocessors) of them, counted
    in clusters. Between the measured K a turn's time is interpolated; of smaller tiles it is estimated.

    raises   PlanError where no named plan serves the operands

    >>> small, large = Problem(256, 512, 4096), Problem(8192, 8192, 8192)
    >>> operands = Operands.of("bf16", layout="nt")
    >>> choose_sm90(operands, small).name, choose_sm90(operands, large).name
    ('sm90_64x64', 'sm90_cooperative_2x1')
    """
    broken: list[str] = []
    ladder = SM90_TWO_LEVEL if operands.a.dtype.is_float and operands.a.dtype.bits == 8 else SM90_LADDER
    timed = [named for named in ladder if named.turn_us is not None]
    for named in sorted(timed, key=lambda named: predicted_us(named, operands, problem, multiprocessors)):
        try:
            plan = sm90_named(named.name, operands, with_c, multiprocessors)
        except PlanError as error:
            broken += [f"{named.name}: {rule}" for rule in error.violations]
            continue
        assert plan is not None
        return plan
    raise PlanError(f"choose_sm90: no named plan for {operands}", broken)


def predicted_us(named: NamedSm90, operands: Operands, problem: Problem, multiprocessors: int) -> float:
    """How long a named plan will take, by the table of its turns."""
    assert named.turn_us is not None
    cm, cn = named.options.get("cluster", (1, 1))
    (bm, bn), k = named.tile, problem.k * operands.a.dtype.bits / 16
    clusters = -(-problem.m // (bm * cm)) * -(-problem.n // (bn * cn)) * problem.l
    turns = -(-clusters // max(1, multiprocessors // (cm * cn)))
    a_b_bytes = (problem.m + problem.n) * problem.k * operands.a.dtype.bits // 8
    if a_b_bytes > FAR_BYTES:
        return START_US + turns * max(named.turn_us[0], named.far_us * k / TURN_K_TILE)
    return START_US + turns * _interpolated(named.turn_us, k)


def _interpolated(turn_us: tuple[float, ...], k: float) -> float:
    """Between the measured K; beyond the last one, as between the last two."""
    if k <= TURN_K[0]:
        return turn_us[0]
    last = len(TURN_K) - 1
    right = next((i for i, at in enumerate(TURN_K) if at >= k), last)
    (k0, t0), (k1, t1) = (TURN_K[right - 1], turn_us[right - 1]), (TURN_K[right], turn_us[right])
    return t0 + (t1 - t0) * (k - k0) / (k1 - k0)
