"""The named plans for Hopper: a ladder, each step with what it changes and why, and the sizes around it.

What may follow a name:

    sm90_64x128/k4              K is split in 4 parts, which the consumer that ends last adds
    sm90_cooperative_2x1/stream the k-tiles of what does not fill the grid, and of one grid of tiles more, are divided
                                evenly among all CTAs; /stream1 without those of one grid more

Times that are quoted are of one H200, bf16, D bf16, A and B k-major, normal data, alternating with cuBLAS of
torch 2.11, 2026-11-20.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from cutegemm.plan.choice import H200_MULTIPROCESSORS, parse_options, parse_tuple
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Operands
from cutegemm.plan.sm90 import sm90_plan
from cutegemm.plan.split import Split
from cutegemm.tile.tma import TMA_INNER_ALIGNED_BYTES

K_TILE_BYTES = 128  # one row of the widest swizzle
STREAM_WAVES = 2  # so that most tiles have two parts, of which one is written long before it is read
_NAME = re.compile(r"(sm90_\w+)(?:/k(\d+)|/stream(\d*))?")

_DEFERRED_BITS = 16  # of an element of D, that registers hold beside the sums of the next tile
TURN_K = (64, 128, 256, 512, 1024, 2048, 4096)  # that a turn was timed with


@dataclass(frozen=True)
class NamedSm90:
    """A Hopper plan by name.

    tile      (bM, bN); bK is 128 bytes
    options   arguments of `sm90_plan`
    turn_us   microseconds in which each multiprocessor finishes a tile, with `TURN_K` elements along K; None
              for a plan that is never chosen. See `sm90_choice`
    far_us    the same for each k-tile, where A and B are larger than L2
    """

    name: str
    summary: str
    tile: tuple[int, int]
    options: Mapping[str, Any] = field(default_factory=dict)
    turn_us: tuple[float, ...] | None = None
    far_us: float = 0.0

    def called(self, split: Split | None = None) -> str:
        """The name with a split of K behind it."""
        if split is None or not split.is_split:
            return self.name
        waves = "" if split.waves == STREAM_WAVES else str(split.waves)
        return f"{self.name}/k{split.parts}" if split.parts > 1 else f"{self.name}/stream{waves}"

    def build(
        self,
        operands: Operands,
        with_c: bool = False,
        ctas: int = H200_MULTIPROCESSORS,
        split: Split | None = None,
    ) -> GemmPlan:
        """The plan for operands; a D that is not aligned to 16 bytes leaves straight out of registers.

        What cannot be stored behind the next tile's products is stored before them: with C, a D of 32 bits, and one
        that leaves straight out of registers.

        ctas     of a persistent grid
        split    of K, instead of that of the name
        raises   PlanError where the operands break its rules
        """
        options: dict[str, Any] = {"ctas": ctas, **self.options}
        if split is not None and split.is_split:
            options |= {"split_k": split.parts, "stream": split.waves}
        if not _through_slots(operands):
            options["store"] = "direct"
        if with_c and options.get("store") == "tma_warp":  # C comes to whole subtiles
            options["store"] = "tma"
        if with_c or options.get("store") == "direct" or operands.d.dtype.bits > _DEFERRED_BITS:
            options.pop("deferred", None)
        bk = K_TILE_BYTES * 8 // operands.a.dtype.bits
        return sm90_plan(
            operands,
            name=self.called(split),
            summary=self.summary,
            tile=(*self.tile, bk),
            with_c=with_c,
            **options,
        )


_DIRECT = {"store": "direct", "raster": "along_n"}
_COOPERATIVE = {"schedule": "cooperative"}
# The stagger is the time in which a consumer converts its sums: meanwhile the other one has the tensor cores.
_DEFERRED = {"deferred": True, "stagger_cycles": 500}
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
        "sm90_padded",
        "the rows are padded by 16 bytes: no conflicts; but a box of TMA lies dense, so the threads copy D out",
        (128, 128),
        {"shared_d": "padded", "raster": "along_n"},
    ),
    NamedSm90(
        "sm90_tma_swizzled",
        "the rows are swizzled as TMA unswizzles them: no conflicts, no padding, and no thread copies",
        (128, 128),
        {"raster": "along_n"},
    ),
    NamedSm90(
        "sm90_slots",
        "four slots of D a consumer: its tile is written without waiting for the stores before it",
        (128, 128),
        {"slots": 4, "raster": "along_n"},
        (1.21, 1.32, 1.65, 3.17, 6.29, 13.86, 25.76),
        0.492,
    ),
    NamedSm90(
        "sm90_along_m",
        "tiles in columns: which operand is read again from L2 decides at large K",
        (128, 128),
        {"slots": 4, "raster": "along_m"},
        (1.36, 1.47, 1.83, 3.23, 6.0, 12.51, 25.67),
        0.443,
    ),
    NamedSm90(
        "sm90_grouped",
        "tiles in bands of 16 rows: both operands are read again from L2",
        (128, 128),
        {"slots": 4, "raster": "grouped_m:16"},
        (1.31, 1.46, 1.92, 3.24, 6.24, 12.33, 25.44),
        0.428,
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
        (1.22, 1.33, 1.78, 3.19, 6.2, 12.19, 24.65),
        0.396,
    ),
    NamedSm90(
        "sm90_cluster_2x1",
        "two CTAs on top of each other load their B once",
        (128, 128),
        {"cluster": (2, 1)},
        (1.31, 1.45, 1.83, 3.11, 6.03, 12.0, 23.46),
        0.39,
    ),
    NamedSm90(
        "sm90_wide_1x2",
        "128 x 192 pingpong: fewer bytes a product than 128 x 128, in the 240 registers that there are",
        (128, 192),
        {"cluster": (1, 2)},
        (1.86, 2.03, 2.59, 4.59, 9.05, 18.07, 35.1),
        0.579,
    ),
    NamedSm90(
        "sm90_wide_2x1",
        "the same, sharing B",
        (128, 192),
        {"cluster": (2, 1)},
        (2.01, 2.21, 2.82, 4.67, 8.96, 17.96, 34.48),
        0.576,
    ),
    NamedSm90(
        "sm90_cooperative",
        "128 x 256 by two consumers with D through TMA, where many k-tiles hide the epilogue",
        (128, 256),
        {**_COOPERATIVE},
        (2.49, 2.73, 3.9, 6.84, 12.56, 24.55, 47.75),
        0.777,
    ),
    NamedSm90(
        "sm90_cooperative_2x1",
        "in clusters; the second consumer begins 550 cycles later, so that the two do not store at once",
        (128, 256),
        {**_COOPERATIVE, "cluster": (2, 1), "stagger_cycles": 550},
        (2.61, 2.89, 3.81, 6.78, 12.81, 25.11, 46.99),
        0.773,
    ),
    NamedSm90(
        "sm90_tall_1x2",
        "256 x 128 by two consumers of 128 x 128 each, sharing A in clusters",
        (256, 128),
        {**_COOPERATIVE, "cluster": (1, 2)},
        (2.62, 2.91, 3.91, 6.87, 12.92, 25.31, 47.23),
        0.775,
    ),
    NamedSm90(
        "sm90_deferred",
        "a tile is stored behind the products of the next one's first k-tiles: no consumer stops for its epilogue",
        (128, 256),
        {**_COOPERATIVE, **_DEFERRED},
        (2.47, 2.7, 3.6, 6.45, 12.41, 24.61, 47.74),
        0.775,
    ),
    NamedSm90(
        "sm90_deferred_2x1",
        "the same in clusters that share B",
        (128, 256),
        {**_COOPERATIVE, **_DEFERRED, "cluster": (2, 1)},
        (2.62, 2.91, 3.87, 6.36, 12.09, 24.13, 46.37),
        0.769,
    ),
    NamedSm90(
        "sm90_deferred_tall_1x2",
        "256 x 128 of it, sharing A",
        (256, 128),
        {**_COOPERATIVE, **_DEFERRED, "cluster": (1, 2)},
        (2.61, 2.93, 4.06, 6.59, 12.39, 24.62, 46.92),
        0.772,
    ),
    NamedSm90(
        "sm90_256x160",
        "the largest tile whose stages still number four: for the largest problems",
        (256, 160),
        {**_COOPERATIVE},
        (3.23, 3.75, 5.19, 8.75, 16.42, 31.92, 58.37),
        0.961,
    ),
    NamedSm90(
        "sm90_64x256",
        "64 x 256 pingpong: for few rows",
        (64, 256),
        {"slots": 4},
        (1.24, 1.37, 2.49, 4.54, 8.71, 17.51, 35.91),
        0.607,
    ),
    NamedSm90(
        "sm90_64x128",
        "64 x 128 pingpong, each warp storing its own rows: for problems of few tiles",
        (64, 128),
        {"slots": 2, "store": "tma_warp"},
        (0.61, 0.74, 1.44, 2.78, 5.45, 10.98, 21.14),
        0.45,
    ),
    NamedSm90(
        "sm90_64x128_2x1",
        "two of them on top of each other load their B once: for 65 to 128 rows, and small problems",
        (64, 128),
        {"slots": 2, "store": "tma_warp", "cluster": (2, 1)},
        (0.61, 0.71, 0.98, 1.9, 3.67, 7.44, 15.04),
        0.316,
    ),
    NamedSm90(
        "sm90_64x64_2x1",
        "64 x 64 in such clusters: half the traffic of B",
        (64, 64),
        {"subtile_n": 32, "store": "tma_warp", "cluster": (2, 1)},
        (0.32, 0.39, 0.62, 1.33, 2.79, 5.52, 10.98),
        0.2,
    ),
    NamedSm90(
        "sm90_64x64",
        "64 x 64 pingpong: for the smallest problems",
        (64, 64),
        {"subtile_n": 32, "store": "tma_warp"},
        (0.32, 0.41, 0.86, 1.74, 3.58, 7.24, 14.56),
        0.249,
    ),
    NamedSm90(
        "sm90_64x32",
        "64 x 32 pingpong: for few columns or, as transposed:sm90_64x32, few rows",
        (64, 32),
        {"subtile_n": 16},
        (0.26, 0.36, 0.58, 1.08, 2.29, 4.89, 10.09),
        0.16,
    ),
    NamedSm90(
        "sm90_64x16",
        "64 x 16 pingpong: the narrowest, whose D leaves straight out of registers",
        (64, 16),
        {"store": "direct"},
        (0.27, 0.34, 0.54, 1.04, 2.18, 4.64, 9.56),
        0.15,
    ),
    NamedSm90(
        "sm90_split",
        "four CTAs share the k-tiles of 64 x 128: for few tiles, which leave multiprocessors idle",
        (64, 128),
        {"slots": 2, "split_k": 4},
    ),
    NamedSm90(
        "sm90_stream",
        "the k-tiles of what does not fill the waves are divided evenly among all CTAs",
        (128, 256),
        {**_COOPERATIVE, "cluster": (2, 1), "stream": STREAM_WAVES},
    ),
)
# For fp8, whose sums wgmma does not keep in full.
SM90_TWO_LEVEL = (
    NamedSm90(
        "sm90_two_level",
        "128 x 128 by two consumers, in clusters that share B; the threads add up the sums of each k-tile",
        (128, 128),
        {**_COOPERATIVE, "two_level": True, "cluster": (2, 1), "store": "tma_warp"},
        (1.40, 1.60, 2.10, 3.40, 6.30, 12.30, 24.50),
        0.42,
    ),
    NamedSm90(
        "sm90_two_level_2x1",
        "128 x 192 of it: for larger problems",
        (128, 192),
        {**_COOPERATIVE, "two_level": True, "cluster": (2, 1)},
        (2.20, 2.40, 3.10, 4.90, 9.50, 18.40, 36.50),
        0.62,
    ),
)
_NAMED = (*SM90_LADDER, *SM90_TWO_LEVEL)
_BY_NAME = {named.name: named for named in _NAMED}


def sm90_names() -> list[tuple[str, str]]:
    """Every name, with what is behind it; `/k4` and `/stream` may follow each."""
    return [(named.name, named.summary) for named in _NAMED]


@cache
def sm90_named(
    name: str, operands: Operands, with_c: bool = False, ctas: int = H200_MULTIPROCESSORS
) -> GemmPlan | None:
    """The plan of a name, or of a text that spells out the arguments of `sm90_plan`; None for another name.

    name     one of `sm90_names()`, one with a split behind it, or
             "sm90:tile=128x128x64,cluster=2x1,slots=4,l2=last+last+first"
    raises   PlanError where the operands break the plan's rules

    >>> sm90_named("sm90:tile=128x256x64,schedule=cooperative", Operands.of("bf16", layout="nt")).stages
    4
    """
    if name.startswith("sm90:"):
        options = {"ctas": ctas, **parse_options(name, _OPTIONS)}
        if not _through_slots(operands):
            options["store"] = "direct"
        return sm90_plan(operands, name=name, with_c=with_c, **options)
    match = _NAME.fullmatch(name)
    if match is None or match[1] not in _BY_NAME:
        return None
    split = None
    if match[2]:
        split = Split(int(match[2]), reduction="last")
    elif match[3] is not None:
        split = Split(waves=int(match[3] or STREAM_WAVES), reduction="last")
    return _BY_NAME[match[1]].build(operands, with_c, ctas, split)


def _through_slots(operands: Operands) -> bool:
    """Whether TMA can store D, or the threads 16 bytes at a time."""
    return operands.d.align_bytes >= TMA_INNER_ALIGNED_BYTES


def _policies(text: str) -> tuple[str, ...]:
    return tuple([f"evict_{part}" for part in text.split("+")])


_OPTIONS: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(("tile", "cluster", "registers"), parse_tuple),
    **dict.fromkeys(
        ("consumers", "stages", "subtile_n", "slots", "stagger_cycles", "split_k", "stream"), int
    ),
    **dict.fromkeys(("schedule", "store", "shared_d", "raster"), str),
    "l2": _policies,
    "ctas": lambda text: None if text == "none" else int(text),
    **dict.fromkeys(("order_epilogue", "two_level", "deferred"), lambda text: text == "1"),
}
