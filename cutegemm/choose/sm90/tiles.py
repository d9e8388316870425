"""Tiles of Hopper plans that have a name of their own: sm90_128x144_2x1 is 128 x 144 in clusters of 2 x 1, and
sm90_64x32_deep_2x2 is 64 x 32 by k-tiles twice as deep in clusters of 2 x 2, sm90_64x64_2x1x4 is 64 x 64 in clusters of
2 x 1 tiles, of each of which four CTAs share K; sm90_128x112_coop_2x1 is the only tile of its CTA, which both consumers
share.

How such a tile is multiplied and stored follows from its size. Which of them a problem takes is a matter of how its
tiles fill the grid: 1536 x 1536 are 144 tiles of 128 x 128, more than 132 multiprocessors, but 132 of 128 x 144.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cutegemm.build.slots import has_odd_groups, odd_columns
from cutegemm.layout.inttuple import product
from cutegemm.plan.work.gpcs import PAIR
from cutegemm.tile.mma_atoms import WGMMA_M

_TILE_NAME = re.compile(
    r"sm90_(two_level_)?(\d{1,5})x(\d{1,5})(_deep|_coop)?(?:_(\d)x(\d)(?:x([1-9]))?)?", re.ASCII
)
DEEP = 2  # times the usual k-tile
_ALONE = "_coop"
# By rows, the columns of the tiles that `choose` considers: others were not seen to be faster, such as 256 x 176
# and 256 x 208, which leave room for three stages.
COLUMNS = {
    64: (48, 80, 96, 112, 128, 144, 160, 192, 208, 256),
    128: (16, 32, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256),
    192: (64, 80, 96, 112, 128, 144, 160, 176, 192),
    256: (96, 112, 128, 144, 160, 192),
}
# The same of tiles whose sums threads add up k-tile by k-tile: they hold two or three of each.
TWO_LEVEL_COLUMNS = {64: (16, 32, 48, 64, 96, 128), 128: (48, 64, 80, 96, 112, 128, 144, 160, 192)}
CLUSTERS = ((1, 1), (2, 1), (1, 2))
# Tiles in clusters of four and of eight, of few tiles: what a cluster reads once is what L2 need not give. 1 x 4 was
# not seen to be faster than 4 x 1 of the transposed problem, but where the tile itself reads more of A than of B.
FOURS = (
    ((64, 48), (4, 1)), ((64, 48), (2, 2)), ((64, 64), (4, 1)), ((64, 64), (2, 2)), ((64, 64), (1, 4)),
    ((64, 80), (4, 1)), ((64, 80), (2, 2)), ((64, 96), (4, 1)), ((64, 96), (2, 2)), ((64, 128), (4, 1)),
    ((64, 128), (2, 2)), ((64, 160), (4, 1)), ((128, 64), (4, 1)), ((128, 80), (4, 1)), ((128, 96), (4, 1)),
    ((128, 96), (2, 2)), ((128, 112), (4, 1)), ((128, 112), (2, 2)), ((128, 112), (1, 4)), ((128, 128), (4, 1)),
    ((128, 128), (2, 2)), ((128, 128), (1, 4)), ((128, 144), (4, 1)), ((128, 144), (2, 2)), ((128, 160), (4, 1)),
    ((128, 160), (2, 2)), ((128, 224), (4, 1)), ((128, 224), (2, 2)), ((192, 80), (1, 4)), ((192, 96), (4, 1)),
    ((192, 96), (2, 2)), ((192, 96), (1, 4)),
)  # fmt: skip
EIGHTS = (
    ((64, 48), (4, 2)), ((64, 64), (2, 4)), ((64, 80), (4, 2)), ((64, 80), (2, 4)), ((64, 96), (4, 2)),
    ((64, 128), (4, 2)), ((128, 96), (2, 4)), ((128, 112), (4, 2)), ((128, 128), (4, 2)), ((128, 160), (4, 2)),
    ((128, 192), (4, 2)), ((128, 224), (4, 2)),
)  # fmt: skip
# By k-tiles twice as deep: half as many waits.
DEEP_TILES = (
    ((64, 16), (1, 1)), ((64, 16), (2, 1)), ((64, 16), (1, 2)), ((64, 16), (4, 1)), ((64, 16), (1, 4)),
    ((64, 16), (2, 4)), ((64, 32), (1, 1)), ((64, 32), (2, 1)), ((64, 32), (1, 2)), ((64, 32), (2, 2)),
    ((64, 32), (1, 4)), ((64, 32), (4, 1)), ((64, 32), (4, 2)), ((64, 32), (2, 4)), ((64, 48), (1, 2)),
    ((64, 48), (4, 1)), ((64, 48), (2, 2)), ((64, 48), (2, 4)), ((64, 64), (1, 2)), ((64, 64), (2, 2)),
    ((64, 64), (1, 4)), ((64, 64), (2, 4)), ((128, 32), (4, 1)),
)  # fmt: skip
# Of an odd number of groups of eight columns: 777 rows are six times 136 but for 39, and six times 144 but for 87. 777
# x 11008 x 4096 of bf16 takes 99.9 us by the first, 103.2 by the second; 2520 x 2568 x 7080 132.3 by 128 x 200, 139.8
# by 192 x 144 (one H200).
BY_EIGHT = (
    ((128, 136), (1, 2)), ((128, 168), (2, 1)), ((128, 168), (1, 2)), ((128, 200), (2, 1)), ((128, 200), (1, 2)),
    ((128, 216), (2, 1)), ((192, 88), (1, 2)), ((192, 104), (1, 2)), ((192, 120), (2, 1)), ((192, 120), (1, 2)),
    ((192, 136), (1, 2)), ((192, 152), (1, 2)), ((192, 168), (1, 2)), ((256, 120), (2, 1)), ((256, 120), (1, 2)),
    ((256, 136), (1, 2)), ((256, 152), (2, 1)),
)  # fmt: skip
TWO_LEVEL_FOURS = tuple([((128, columns), (2, 2)) for columns in (96, 128, 144, 160)])
# Whose K the CTAs of a cluster share, as many as the last number says: for few tiles with a deep K. Of 85 such problems
# the fastest plan was one of these for 28, and one whose parts of K meet in global memory for 1 (one H200 and one H100,
# 2026-11-24).
SHARED_K = (
    ((64, 32), (1, 1), 2), ((64, 32), (1, 1), 4), ((64, 32), (2, 1), 2), ((64, 32), (2, 1), 4), ((64, 48), (1, 1), 3),
    ((64, 48), (2, 1), 3), ((64, 64), (1, 1), 2), ((64, 64), (1, 1), 4), ((64, 64), (1, 1), 8), ((64, 64), (2, 1), 2),
    ((64, 64), (2, 1), 4), ((64, 96), (1, 1), 3), ((64, 96), (1, 1), 6), ((64, 96), (2, 1), 3), ((64, 128), (1, 1), 2),
    ((64, 128), (1, 1), 4), ((64, 128), (2, 1), 2), ((64, 128), (2, 1), 4), ((128, 64), (1, 1), 2),
    ((128, 64), (1, 1), 4), ((128, 64), (2, 1), 2), ((128, 80), (1, 1), 5), ((128, 96), (1, 1), 2),
    ((128, 96), (1, 1), 3), ((128, 128), (1, 1), 2), ((128, 128), (1, 1), 4), ((128, 128), (1, 1), 8),
    ((128, 128), (2, 1), 2),
)  # fmt: skip
# The same of an A that threads read into registers, along M: of few columns, most of the time is the reading of A from
# memory, longer rows of which are read faster. 32 x 6416 x 12880 nn of tf32 takes 125 us, and 147 by 128 x 64 in
# clusters of 2 x 1 and two parts (one H100, 2026-11-25).
READING_SHARED_K = (((192, 64), (2, 1), 2),)
# 64 x 16 is for 16 rows of x, where CTAs that stream weights would read x as often: 4096 x 4096 in a graph takes
# 10.26 us, and 11.29 by `skinny_16x16`; 28672 x 8192 110.3, and 115.9 by 128 x 16 (one H200, 2026-11-24).
DEEP_SHARED_K = (
    ((64, 16), (1, 1), 2), ((64, 32), (1, 1), 2), ((64, 32), (1, 1), 4), ((64, 32), (2, 1), 2), ((64, 32), (2, 1), 4),
)  # fmt: skip
TWO_LEVEL_SHARED_K = tuple([given for given in SHARED_K if given[0][1] >= 64])
COOPERATIVE = {"schedule": "cooperative"}
# The stagger is the time in which a consumer converts its sums: meanwhile the other one has the tensor cores.
DEFERRED = {"deferred": True, "stagger_cycles": 500}
_NARROWEST = 16  # columns, which leave straight out of registers
_NARROW = 32  # the same of 128 rows
_WIDEST_PINGPONG = 192  # 128 x 192 sums are as many as the registers of a warpgroup hold
# For many tiles a CTA: stored behind the products of the next one. Other tiles of that size are for one or two waves.
_DEFERRED_TILES = ((128, 256), (256, 128))


def takes_turns(tile: tuple[int, int]) -> bool:
    """Whether consumers take such tiles in turn, where a CTA has several."""
    return tile[0] == 2 * WGMMA_M and _NARROW < tile[1] <= _WIDEST_PINGPONG


# For one tile a CTA, in clusters of at most two; larger clusters have but such tiles.
ALONE = (*[(128, columns) for columns in COLUMNS[128] if takes_turns((128, columns))], *_DEFERRED_TILES)
# Slots of half as many columns leave room for one stage more: 5600 x 576 x 5696 of e4m3 by 128 x 192 in clusters of
# 2 x 1 takes 30.5 us with five stages, and 32.4 with four (one H200, 2026-11-23).
_OF_NARROW_SLOTS = ((64, 192), (128, 192))
_NARROW_SLOT = 32  # columns


@dataclass(frozen=True)
class NamedTile:
    """A tile that a name says, and how it is multiplied.

    tile        (bM, bN)
    cluster     CTAs along M and N
    two_level   whether threads add up the sums of each k-tile
    depth       times 128 bytes along K, of a k-tile
    k_ctas      CTAs of a cluster that share K
    is_alone    whether it is the only tile of its CTA: consumers share it that else take turns, or store it at once
                where else they store it behind the next one's products
    """

    tile: tuple[int, int]
    cluster: tuple[int, int] = (1, 1)
    two_level: bool = False
    depth: int = 1
    k_ctas: int = 1
    is_alone: bool = False

    @property
    def name(self) -> str:
        """
        >>> NamedTile((128, 144), (2, 1)).name, NamedTile((64, 16), two_level=True).name
        ('sm90_128x144_2x1', 'sm90_two_level_64x16')
        >>> NamedTile((64, 32), (2, 2), depth=2).name, NamedTile((64, 64), k_ctas=4).name
        ('sm90_64x32_deep_2x2', 'sm90_64x64_1x1x4')
        >>> NamedTile((128, 112), (2, 1), is_alone=True).name
        'sm90_128x112_coop_2x1'
        """
        how = "_deep" if self.depth == DEEP else _ALONE if self.is_alone else ""
        name = f"sm90_{'two_level_' if self.two_level else ''}{self.tile[0]}x{self.tile[1]}{how}"
        if self.k_ctas > 1:
            return f"{name}_{self.cluster[0]}x{self.cluster[1]}x{self.k_ctas}"
        return name if self.cluster == (1, 1) else f"{name}_{self.cluster[0]}x{self.cluster[1]}"

    @classmethod
    def of(cls, name: str) -> NamedTile | None:
        """What a name says as `name` writes it; None of another name.

        >>> NamedTile.of("sm90_64x32_deep").depth, NamedTile.of("sm90_slots")
        (2, None)
        """
        match = _TILE_NAME.fullmatch(name)
        if match is None:
            return None
        two_level, rows, columns, how, along_m, along_n, along_k = match.groups()
        cluster = int(along_m or 1), int(along_n or 1)
        depth, is_alone = DEEP if how == "_deep" else 1, how == _ALONE
        return cls(
            (int(rows), int(columns)), cluster, two_level is not None, depth, int(along_k or 1), is_alone
        )

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of `sm90_plan` beside the tile; `depth`, where a k-tile has so many times 128 bytes; and whether a
        CTA is to have no other tile, `alone`, as it is in clusters of more than two.

        >>> NamedTile((192, 160), (1, 2)).options
        {'schedule': 'cooperative', 'consumers': 3, 'cluster': (1, 2)}
        >>> NamedTile((128, 128), (2, 1)).options, NamedTile((128, 128), (2, 2)).options
        ({'cluster': (2, 1)}, {'schedule': 'cooperative', 'alone': True, 'cluster': (2, 2)})
        """
        (rows, columns), k_ctas = self.tile, self.k_ctas
        is_alone = self.is_alone or (takes_turns(self.tile) and product(self.cluster) > PAIR)
        options: dict[str, Any] = {}
        if k_ctas > 1:  # of which a CTA has one tile, that one consumer takes, or two share
            options = {**COOPERATIVE, "consumers": rows // WGMMA_M, "k_ctas": k_ctas}
        elif rows == 64:
            is_narrow = columns <= (_NARROWEST if self.depth == 1 else _NARROW)
            options = {"store": "direct" if is_narrow else "tma_warp"}
        elif self.two_level:
            options = dict(COOPERATIVE)
        elif rows == 128 and columns <= _NARROW:
            options = {**COOPERATIVE, "store": "direct"}
        elif not takes_turns(self.tile) or is_alone:
            options = dict(COOPERATIVE)
            if rows == 192:
                options["consumers"] = 3
            if is_alone:
                options["alone"] = True
            elif self.tile in _DEFERRED_TILES:
                options |= DEFERRED
        if self.two_level:
            options["two_level"] = True
        if has_narrow_slots(self.tile) and k_ctas == 1:
            options["subtile_n"] = _NARROW_SLOT
        elif columns % k_ctas == 0 and has_odd_groups(columns // k_ctas):
            options["subtile_n"] = odd_columns(columns // k_ctas)
        if self.depth > 1:
            options["depth"] = self.depth
        return {**options, "cluster": self.cluster}


def every_tile(two_level: bool = False) -> Iterator[NamedTile]:
    """The tiles that `choose` considers."""
    for rows, widths in (TWO_LEVEL_COLUMNS if two_level else COLUMNS).items():
        for columns in widths:
            for cluster in CLUSTERS:
                yield NamedTile((rows, columns), cluster, two_level)
    if two_level:
        yield from [NamedTile(*given, two_level) for given in TWO_LEVEL_FOURS]
        yield from [
            NamedTile(tile, cluster, two_level, k_ctas=k_ctas) for tile, cluster, k_ctas in TWO_LEVEL_SHARED_K
        ]
    else:
        yield from [NamedTile(*given) for given in (*FOURS, *EIGHTS, *BY_EIGHT)]
        yield from [NamedTile(*given, depth=DEEP) for given in DEEP_TILES]
        yield from [NamedTile(tile, cluster, k_ctas=k_ctas) for tile, cluster, k_ctas in SHARED_K]
        yield from [
            NamedTile(tile, cluster, depth=DEEP, k_ctas=k_ctas) for tile, cluster, k_ctas in DEEP_SHARED_K
        ]
        yield from [NamedTile(tile, cluster, is_alone=True) for tile in ALONE for cluster in CLUSTERS]


def has_narrow_slots(tile: tuple[int, int]) -> bool:
    """Whether subtiles of D have 32 columns, in place of 64 of bf16, so that there is room for one more stage."""
    return tile in _OF_NARROW_SLOTS
