"""The named plans for Hopper: a ladder, each step with what it changes and why, and the sizes around it.

What may follow a name:

    sm90_128x144_2x1            a tile, and its cluster: see `sm90_tiles`
    sm90_slots+pack             operands that TMA cannot load, or wgmma not multiply, as they are, are packed first
    sm90_64x128/k4              K is split in 4 parts, which the consumer that ends last adds
    sm90_cooperative_2x1/stream the k-tiles of what does not fill the grid, and of one grid of tiles more, are divided
                                evenly among all CTAs; /stream1 without those of one grid more
    sm90_deferred_2x1/fill      the CTAs that the last tiles leave idle take the last k-tiles of each of these

Times that are quoted are of one H200, bf16, D bf16, A and B k-major, normal data, alternating with cuBLAS of
torch 2.11, 2026-11-20.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

from cutegemm.build.sm90 import sm90_plan
from cutegemm.choose.common import parse_options, parse_tuple
from cutegemm.choose.sm90.recipe import PACK, STREAM_WAVES, NamedSm90, through_slots
from cutegemm.choose.sm90.tiles import (
    COOPERATIVE,
    DEFERRED,
    TILE_NAME,
    every_tile,
    tile_name,
    tile_options,
)
from cutegemm.choose.sm90.time import TileShape
from cutegemm.machine.device import H200_MULTIPROCESSORS
from cutegemm.plan.memory.packing import to_pack_for_wgmma
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Operands
from cutegemm.plan.work.split import FILLED, Split, by_last

_NAME = re.compile(r"(sm90_\w+)(\+pack)?(?:/k(\d+)|/stream(\d*)|/(fill))?")

_DIRECT = {"store": "direct", "raster": "along_n"}
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
        {**COOPERATIVE, **_DIRECT, "ctas": None},
    ),
    NamedSm90(
        "sm90_persistent",
        "one CTA a multiprocessor takes tile after tile: the next one's k-tiles come while D is written",
        (128, 256),
        {**COOPERATIVE, **_DIRECT},
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
        is_chosen=True,
    ),
    NamedSm90(
        "sm90_along_m",
        "tiles in columns: which operand is read again from L2 decides at large K",
        (128, 128),
        {"slots": 4, "raster": "along_m"},
    ),
    NamedSm90(
        "sm90_grouped",
        "tiles in bands of 16 rows: both operands are read again from L2",
        (128, 128),
        {"slots": 4, "raster": "grouped_m:16"},
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
        is_chosen=True,
    ),
    NamedSm90(
        "sm90_cluster_2x1",
        "two CTAs on top of each other load their B once",
        (128, 128),
        {"cluster": (2, 1)},
        is_chosen=True,
    ),
    NamedSm90(
        "sm90_wide_1x2",
        "128 x 192 pingpong: fewer bytes a product than 128 x 128, in the 240 registers that there are",
        (128, 192),
        {"cluster": (1, 2)},
        is_chosen=True,
    ),
    NamedSm90(
        "sm90_wide_2x1",
        "the same, sharing B",
        (128, 192),
        {"cluster": (2, 1)},
        is_chosen=True,
    ),
    NamedSm90(
        "sm90_wide_along_n",
        "128 x 192 one after the other along the rows of D, which DRAM takes better: where L2 holds all of A and B",
        (128, 192),
        {"slots": 3, "raster": "along_n"},
        is_chosen=True,
    ),
    NamedSm90(
        "sm90_wide_along_n_1x2",
        "the same, sharing A",
        (128, 192),
        {"slots": 3, "raster": "along_n", "cluster": (1, 2)},
        is_chosen=True,
    ),
    NamedSm90(
        "sm90_wide_along_n_2x1",
        "the same, sharing B",
        (128, 192),
        {"slots": 3, "raster": "along_n", "cluster": (2, 1)},
        is_chosen=True,
    ),
    NamedSm90(
        "sm90_cooperative",
        "128 x 256 by two consumers with D through TMA, where many k-tiles hide the epilogue",
        (128, 256),
        {**COOPERATIVE},
    ),
    NamedSm90(
        "sm90_cooperative_2x1",
        "in clusters; the second consumer begins 550 cycles later, so that the two do not store at once",
        (128, 256),
        {**COOPERATIVE, "cluster": (2, 1), "stagger_cycles": 550},
    ),
    NamedSm90(
        "sm90_tall_1x2",
        "256 x 128 by two consumers of 128 x 128 each, sharing A in clusters",
        (256, 128),
        {**COOPERATIVE, "cluster": (1, 2)},
    ),
    NamedSm90(
        "sm90_deferred",
        "a tile is stored behind the products of the next one's first k-tiles: no consumer stops for its epilogue",
        (128, 256),
        {**COOPERATIVE, **DEFERRED},
        is_chosen=True,
    ),
    NamedSm90(
        "sm90_deferred_2x1",
        "the same in clusters that share B",
        (128, 256),
        {**COOPERATIVE, **DEFERRED, "cluster": (2, 1)},
        is_chosen=True,
    ),
    NamedSm90(
        "sm90_deferred_tall_1x2",
        "256 x 128 of it, sharing A",
        (256, 128),
        {**COOPERATIVE, **DEFERRED, "cluster": (1, 2)},
        is_chosen=True,
    ),
    NamedSm90(
        "sm90_256x160",
        "the largest tile whose stages still number four: for the largest problems",
        (256, 160),
        {**COOPERATIVE},
        is_chosen=True,
    ),
    NamedSm90(
        "sm90_64x256",
        "64 x 256 pingpong: for few rows",
        (64, 256),
        {"slots": 4},
        is_chosen=True,
    ),
    NamedSm90(
        "sm90_64x128",
        "64 x 128 pingpong, each warp storing its own rows: for problems of few tiles",
        (64, 128),
        {"slots": 2, "store": "tma_warp"},
        is_chosen=True,
    ),
    NamedSm90(
        "sm90_64x128_2x1",
        "two of them on top of each other load their B once: for 65 to 128 rows, and small problems",
        (64, 128),
        {"slots": 2, "store": "tma_warp", "cluster": (2, 1)},
        is_chosen=True,
    ),
    NamedSm90(
        "sm90_64x64_2x1",
        "64 x 64 in such clusters: half the traffic of B",
        (64, 64),
        {"subtile_n": 32, "store": "tma_warp", "cluster": (2, 1)},
        is_chosen=True,
    ),
    NamedSm90(
        "sm90_64x64",
        "64 x 64 pingpong: for the smallest problems",
        (64, 64),
        {"subtile_n": 32, "store": "tma_warp"},
        is_chosen=True,
    ),
    NamedSm90(
        "sm90_64x32",
        "64 x 32 pingpong: for few columns or, as transposed:sm90_64x32, few rows",
        (64, 32),
        {"subtile_n": 16},
        is_chosen=True,
    ),
    NamedSm90(
        "sm90_64x16",
        "64 x 16 pingpong: the narrowest, whose D leaves straight out of registers",
        (64, 16),
        {"store": "direct"},
        is_chosen=True,
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
        {**COOPERATIVE, "cluster": (2, 1), "stream": STREAM_WAVES},
    ),
    NamedSm90(
        "sm90_fill",
        "each of those tiles keeps a CTA; those without one take its last k-tiles, and all others stay in step",
        (128, 128),
        {"cluster": (2, 1), "fill": True},
    ),
)
# For fp8, whose sums wgmma does not keep in full.
SM90_TWO_LEVEL = (
    NamedSm90(
        "sm90_two_level",
        "128 x 128 by two consumers, in clusters that share B; the threads add up the sums of each k-tile",
        (128, 128),
        {**COOPERATIVE, "two_level": True, "cluster": (2, 1), "store": "tma_warp"},
        is_chosen=True,
    ),
    NamedSm90(
        "sm90_two_level_2x1",
        "128 x 192 of it: for larger problems",
        (128, 192),
        {**COOPERATIVE, "two_level": True, "cluster": (2, 1)},
        is_chosen=True,
    ),
)


def _of_tile(tile: tuple[int, int], cluster: tuple[int, int]) -> NamedSm90:
    shared = {(1, 1): "", (2, 1): ", in clusters that share B", (1, 2): ", in clusters that share A"}
    summary = f"{tile[0]} x {tile[1]}{shared.get(cluster, '')}: where such tiles fill the grid"
    return NamedSm90(tile_name(tile, cluster), summary, tile, tile_options(tile, cluster), is_chosen=True)


_OF_LADDER = tuple([named for named in SM90_LADDER if named.is_chosen])
_TAKEN = {
    (of.tile, of.cluster) for of in (named.shape for named in _OF_LADDER) if of.raster == TileShape.raster
}
# What `choose` considers: plans of the ladder, and one for each tile that they leave out in the usual order of tiles.
SM90_CHOSEN = (*_OF_LADDER, *(_of_tile(*given) for given in every_tile() if given not in _TAKEN))
_NAMED = (*SM90_LADDER, *SM90_TWO_LEVEL)
_BY_NAME = {named.name: named for named in _NAMED}
_PACKED = "sm90_deferred_2x1" + PACK


def sm90_names() -> list[tuple[str, str]]:
    """Every name, with what is behind it; `+pack`, then `/k4` or `/stream`, may follow each. A tile may be of any size.

    >>> [name for name, _ in sm90_names()][-2:]
    ['sm90_128x144_2x1', 'sm90_deferred_2x1+pack']
    """
    packed = (
        _PACKED,
        "sm90_deferred_2x1, operands that TMA cannot load, or wgmma not multiply, as they are, copied first",
    )
    tile = ("sm90_128x144_2x1", "128 x 144 in clusters of 2 x 1; other tiles by such a name too")
    return [*((named.name, named.summary) for named in _NAMED), tile, packed]


@cache
def sm90_named(
    name: str, operands: Operands, with_c: bool = False, ctas: int = H200_MULTIPROCESSORS
) -> GemmPlan | None:
    """The plan of a name, or of a text that spells out the arguments of `sm90_plan`; None for another name.

    name     one of `sm90_names()`, one with packing or a split behind it, or
             "sm90:tile=128x128x64,cluster=2x1,slots=4,l2=last+last+first"
    raises   PlanError where the operands break the plan's rules

    >>> sm90_named("sm90:tile=128x256x64,schedule=cooperative", Operands.of("bf16", layout="nt")).stages
    4
    """
    if name.startswith("sm90:"):
        options = {"ctas": ctas, **parse_options(name, _OPTIONS)}
        if not through_slots(operands):
            options["store"] = "direct"
        return sm90_plan(operands.as_tf32, name=name, with_c=with_c, **options)
    read = read_name(name)
    if read is None:
        return None
    named, is_packed, split = read
    return named.build(operands, with_c, ctas, split, is_packed)


def read_name(name: str) -> tuple[NamedSm90, bool, Split] | None:
    """What a name stands for: a plan, whether operands are packed, and how K is split; None for another name.

    >>> named, is_packed, split = read_name("sm90_128x144_2x1+pack/k3")
    >>> named.tile, is_packed, split.parts
    ((128, 144), True, 3)
    """
    match = _NAME.fullmatch(name)
    named = None if match is None else _BY_NAME.get(match[1]) or _tile_named(match[1])
    if match is None or named is None:
        return None
    split = Split()
    if match[3]:
        split = by_last(split_k=int(match[3]))
    elif match[5]:
        split = FILLED
    elif match[4] is not None:
        split = by_last(stream=int(match[4] or STREAM_WAVES))
    return named, match[2] is not None, split


def _tile_named(name: str) -> NamedSm90 | None:
    match = TILE_NAME.fullmatch(name)
    if match is None:
        return None
    rows, columns, along_m, along_n = [int(group or 1) for group in match.groups()]
    return _of_tile((rows, columns), (along_m, along_n))


def packed_by(name: str, operands: Operands) -> str:
    """The operands that the plan of a name packs.

    >>> of_bytes = Operands.of("e4m3", layout="nn")
    >>> [packed_by(name, of_bytes) for name in ("sm90_slots", "sm90_slots+pack/k2", "sm90:tile=64x64x128,pack=ab")]
    ['', 'b', 'ab']
    """
    if name.startswith("sm90:"):
        return str(parse_options(name, _OPTIONS).get("pack", ""))
    read = read_name(name)
    return to_pack_for_wgmma(operands) if read is not None and read[1] else ""


def _policies(text: str) -> tuple[str, ...]:
    return tuple([f"evict_{part}" for part in text.split("+")])


_OPTIONS: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(("tile", "cluster", "registers"), parse_tuple),
    **dict.fromkeys(
        ("consumers", "stages", "subtile_n", "slots", "stagger_cycles", "split_k", "stream"), int
    ),
    **dict.fromkeys(("schedule", "store", "shared_d", "raster", "pack"), str),
    "l2": _policies,
    "ctas": lambda text: None if text == "none" else int(text),
    **dict.fromkeys(("order_epilogue", "two_level", "deferred", "fill"), lambda text: text == "1"),
}
