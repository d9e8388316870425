"""Tiles of Hopper plans that have a name of their own: sm90_128x144_2x1 is 128 x 144 in clusters of 2 x 1.

How such a tile is multiplied and stored follows from its size. Which of them a problem takes is a matter of how its
tiles fill the grid: 1536 x 1536 are 144 tiles of 128 x 128, more than 132 multiprocessors, but 132 of 128 x 144.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

_TILE_NAME = re.compile(r"sm90_(two_level_)?(\d+)x(\d+)(?:_(\d)x(\d))?")
# By rows, the columns of the tiles that `choose` considers: others were not seen to be faster, such as 128 x 240, or
# 192 x 160, 256 x 176 and 256 x 208, which leave room for three stages.
COLUMNS = {
    64: (48, 80, 96, 112, 128, 144, 160, 192, 208, 256),
    128: (16, 32, 64, 96, 112, 128, 144, 160, 176, 192, 256),
    192: (192,),
    256: (128, 144, 160, 192),
}
# The same of tiles whose sums threads add up k-tile by k-tile: they hold two or three of each.
TWO_LEVEL_COLUMNS = {64: (16, 32, 48, 64, 96, 128), 128: (64, 96, 128, 144, 160, 192)}
CLUSTERS = ((1, 1), (2, 1), (1, 2))
# Tiles in clusters of four, of few tiles: 2 x 2, or 4 x 1 where the tile itself reads less of A than of B. 1 x 4 was
# not seen to be faster than 4 x 1 of the transposed problem.
FOURS = (
    ((64, 64), (4, 1)), ((64, 96), (4, 1)), ((64, 128), (4, 1)),
    ((128, 128), (4, 1)), ((128, 128), (2, 2)), ((128, 160), (2, 2)),
)  # fmt: skip
TWO_LEVEL_FOURS = tuple([((128, columns), (2, 2)) for columns in (96, 128, 144, 160)])
_ALONE = 128 * 128  # elements of a tile, beyond which one by itself was not seen to be faster

COOPERATIVE = {"schedule": "cooperative"}
# The stagger is the time in which a consumer converts its sums: meanwhile the other one has the tensor cores.
DEFERRED = {"deferred": True, "stagger_cycles": 500}
_NARROWEST = 16  # columns, which leave straight out of registers
_NARROW = 32  # the same of 128 rows
_WIDEST_PINGPONG = 192  # 128 x 192 sums are as many as the registers of a warpgroup hold
_WIDEST_DEFERRED = {192: 160, 256: 128}  # beside the sums, those of the tile before


def every_tile(two_level: bool = False) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """The tiles that `choose` considers: (bM, bN), and the cluster."""
    for rows, widths in (TWO_LEVEL_COLUMNS if two_level else COLUMNS).items():
        for columns in widths:
            for cluster in CLUSTERS[rows * columns > _ALONE :]:
                yield (rows, columns), cluster
    yield from TWO_LEVEL_FOURS if two_level else FOURS


def tile_name(tile: tuple[int, int], cluster: tuple[int, int], two_level: bool = False) -> str:
    """
    >>> tile_name((128, 144), (2, 1)), tile_name((64, 80), (1, 1)), tile_name((64, 16), (1, 1), two_level=True)
    ('sm90_128x144_2x1', 'sm90_64x80', 'sm90_two_level_64x16')
    """
    name = f"sm90_{'two_level_' if two_level else ''}{tile[0]}x{tile[1]}"
    return name if cluster == (1, 1) else f"{name}_{cluster[0]}x{cluster[1]}"


def read_tile(name: str) -> tuple[tuple[int, int], tuple[int, int], bool] | None:
    """The tile, the cluster and whether sums have two levels, of a name as `tile_name` writes it; else None.

    >>> read_tile("sm90_128x144_2x1"), read_tile("sm90_slots")
    (((128, 144), (2, 1), False), None)
    """
    match = _TILE_NAME.fullmatch(name)
    if match is None:
        return None
    rows, columns, along_m, along_n = [int(group or 1) for group in match.groups()[1:]]
    return (rows, columns), (along_m, along_n), match[1] is not None


def tile_options(tile: tuple[int, int], cluster: tuple[int, int], two_level: bool = False) -> dict[str, Any]:
    """Arguments of `sm90_plan` beside the tile.

    >>> tile_options((192, 192), (1, 1))
    {'schedule': 'cooperative', 'consumers': 3, 'cluster': (1, 1)}
    """
    rows, columns = tile
    options: dict[str, Any] = {}
    if rows == 64:
        options = {"store": "direct" if columns == _NARROWEST else "tma_warp"}
    elif two_level:
        options = dict(COOPERATIVE)
    elif rows == 128 and columns <= _NARROW:
        options = {**COOPERATIVE, "store": "direct"}
    elif rows != 128 or columns > _WIDEST_PINGPONG:
        options = dict(COOPERATIVE)
        if rows == 192:
            options["consumers"] = 3
        if columns <= _WIDEST_DEFERRED.get(rows, columns):
            options |= DEFERRED
    if two_level:
        options["two_level"] = True
    return {**options, "cluster": cluster}
