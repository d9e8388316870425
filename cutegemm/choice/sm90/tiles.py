"""Tiles of Hopper plans whose names say their size.

sm90_128x144_2x1        128 x 144 in clusters of 2 x 1 CTAs
sm90_64x32_deep_2x2     k-tiles twice as deep: 256 bytes along K
sm90_64x64_2x1x4        cluster split-K: 2 x 1 tiles per cluster, and four CTAs split the K of each
sm90_128x112_coop_2x1   the only tile of its CTA, which both consumers share

The size determines how such a tile is multiplied and stored. Which tile is best for a problem depends on how its tiles
fill the grid: a D of 1536 x 1536 has 144 tiles of 128 x 128, more than 132 multiprocessors, but 132 tiles of 128 x 144.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cutegemm.build.epi_stages import has_odd_groups, odd_columns
from cutegemm.layout.inttuple import product
from cutegemm.machine.arch import MAX_CLUSTER_CTAS
from cutegemm.plan.work.gpcs import PAIR
from cutegemm.tile.mma_atoms import WGMMA_M

_TILE_NAME = re.compile(r"sm90_(promoted_)?(\d{1,5})x(\d{1,5})(_deep|_coop)?(?:_(\d)x(\d)(?:x([1-9]))?)?", re.ASCII)
DEEP = 2  # depth of a deep k-tile: twice 128 bytes along K
COOPERATIVE = {"schedule": "cooperative"}
# The stagger is the time that a consumer takes to convert accumulators: meanwhile the other one uses the tensor cores.
OVERLAPPED = {"overlapped": True, "stagger_cycles": 500}
CLUSTERS = ((1, 1), (2, 1), (1, 2), (4, 1), (2, 2), (1, 4), (4, 2), (2, 4))
CLUSTER_K = (2, 3, 4, 5, 6, 8)  # CTAs of a cluster that split the K of a tile

_ALONE = "_coop"
_NARROWEST = 16  # columns of a 64-row tile whose D is stored from registers, at most
_NARROW = 32  # columns of a 128-row tile, or of one with deep k-tiles, whose D is stored from registers, at most
_WIDEST_PINGPONG = 192  # 128 x 192 accumulators are as many as the registers of a warpgroup hold
# Tiles with an overlapped epilogue, for many tiles per CTA. Other tiles of that size are for one or two waves.
_OVERLAPPED_TILES = ((128, 256), (256, 128))
# Tiles with epilogue stages of half as many columns, which leave room for one more mainloop stage: 5600 x 576 x 5696 of
# e4m3 in 128 x 192, clusters of 2 x 1, takes 30.5 us with five stages and 32.4 us with four (H200, 2026-11-23).
_NARROW_EPI_STAGES = ((64, 192), (128, 192))
_NARROW_EPI_STAGE = 32  # columns

# Tiles that `choose` considers, by rows: (narrowest, widest) of columns in steps of 16. Narrower tiles load much of A
# for few columns; wider ones leave room for few stages.
_COLUMNS = {64: (48, 160), 128: (64, 192), 192: (64, 192), 256: (96, 192)}
_FURTHER = ((64, 192), (64, 256), (128, 16), (128, 32), (128, 224), (128, 256))  # tiles outside of these ranges
# Ranges for promoted accumulators: threads hold each accumulator two or three times.
_PROMOTED_COLUMNS = {64: (16, 128), 128: (48, 192)}
# Ranges for an odd number of groups of eight columns, which may extend less beyond D: 777 x 11008
# x 4096 of bf16 takes 99.9 us in 256 x 136 for D^T, and 103.2 us in 256 x 144 (H200, 2026-11-26).
_ODD_COLUMNS = {128: (136, 216), 192: (104, 168), 256: (120, 152)}
# Ranges for clusters of four and eight, for few tiles: multicast relieves L2.
_LARGE_CLUSTER_COLUMNS = {64: (48, 160), 128: (64, 224)}
_WIDEST_OF_2X4 = 96
_LARGEST_SINGLE = 128 * 96  # elements of a tile without a cluster; larger tiles were faster in clusters of two
_WIDEST_SHARED = 128  # columns of a tile with cluster split-K
_FEWEST_SHARED = 8  # columns of such a tile that each CTA stores


def is_pingpong(tile: tuple[int, int]) -> bool:
    """Return whether the two consumer warpgroups of a CTA take tiles of this size in turn (pingpong).

    Otherwise they share each tile. This holds for CTAs that compute several tiles.

    tile   (bM, bN)
    """
    return tile[0] == 2 * WGMMA_M and _NARROW < tile[1] <= _WIDEST_PINGPONG


@dataclass(frozen=True)
class NamedTile:
    """The tile and other properties that a plan's name spells out, e.g. 128 x 144 for `sm90_128x144_2x1`.

    tile        (bM, bN), 128 x 144 in this name
    cluster     CTAs of a cluster along M and N, (2, 1) in this name
    promoted    whether threads add the accumulators of each k-tile to a total in f32
    depth       size of a k-tile along K, in units of 128 bytes
    cluster_k   CTAs of a cluster that split K
    is_alone    whether each CTA computes one such tile only. Its consumers then share the tile instead of taking tiles
                in turn, and its epilogue does not overlap a next tile
    """

    tile: tuple[int, int]
    cluster: tuple[int, int] = (1, 1)
    promoted: bool = False
    depth: int = 1
    cluster_k: int = 1
    is_alone: bool = False

    @property
    def name(self) -> str:
        """Return the name of the plan with this tile, in the form that `NamedTile.of` reads.

        >>> NamedTile((128, 144), (2, 1)).name, NamedTile((64, 16), promoted=True).name
        ('sm90_128x144_2x1', 'sm90_promoted_64x16')
        >>> NamedTile((64, 32), (2, 2), depth=2).name, NamedTile((64, 64), cluster_k=4).name
        ('sm90_64x32_deep_2x2', 'sm90_64x64_1x1x4')
        >>> NamedTile((128, 112), (2, 1), is_alone=True).name
        'sm90_128x112_coop_2x1'
        """
        how = "_deep" if self.depth == DEEP else _ALONE if self.is_alone else ""
        name = f"sm90_{'promoted_' if self.promoted else ''}{self.tile[0]}x{self.tile[1]}{how}"
        if self.cluster_k > 1:
            return f"{name}_{self.cluster[0]}x{self.cluster[1]}x{self.cluster_k}"
        return name if self.cluster == (1, 1) else f"{name}_{self.cluster[0]}x{self.cluster[1]}"

    @classmethod
    def of(cls, name: str) -> NamedTile | None:
        """Parse a plan's name that spells out a tile, such as "sm90_128x144_2x1"; None if it does not have this form.

        >>> NamedTile.of("sm90_64x32_deep").depth, NamedTile.of("sm90_epi_stages")
        (2, None)
        """
        match = _TILE_NAME.fullmatch(name)
        if match is None:
            return None
        promoted, rows, columns, how, along_m, along_n, along_k = match.groups()
        cluster = int(along_m or 1), int(along_n or 1)
        depth, is_alone = DEEP if how == "_deep" else 1, how == _ALONE
        return cls((int(rows), int(columns)), cluster, promoted is not None, depth, int(along_k or 1), is_alone)

    @property
    def options(self) -> dict[str, Any]:
        """Return the options of the plan for this tile that follow from the tile's size and cluster, as name -> value.

        They are arguments of `sm90_plan`, and two more: `depth`, if k-tiles have more than 128 bytes along K, and
        `alone`, if a CTA has one tile only, as it has in clusters of more than two CTAs.

        >>> NamedTile((192, 160), (1, 2)).options
        {'schedule': 'cooperative', 'consumers': 3, 'cluster': (1, 2)}
        >>> NamedTile((128, 128), (2, 1)).options, NamedTile((128, 128), (2, 2)).options
        ({'cluster': (2, 1)}, {'schedule': 'cooperative', 'alone': True, 'cluster': (2, 2)})
        """
        (rows, columns), cluster_k = self.tile, self.cluster_k
        is_alone = self.is_alone or (is_pingpong(self.tile) and product(self.cluster) > PAIR)
        options: dict[str, Any] = {}
        if cluster_k > 1:  # one consumer computes the only tile of a CTA, or two share it
            options = {**COOPERATIVE, "consumers": rows // WGMMA_M, "cluster_k": cluster_k}
        elif rows == 64:
            is_narrow = columns <= (_NARROWEST if self.depth == 1 else _NARROW)
            options = {"store": "direct" if is_narrow else "tma_warp"}
        elif self.promoted:
            options = dict(COOPERATIVE)
        elif rows == 128 and columns <= _NARROW:
            options = {**COOPERATIVE, "store": "direct"}
        elif not is_pingpong(self.tile) or is_alone:
            options = dict(COOPERATIVE)
            if rows == 192:
                options["consumers"] = 3
            if is_alone:
                options["alone"] = True
            elif self.tile in _OVERLAPPED_TILES:
                options |= OVERLAPPED
        if self.promoted:
            options["promoted"] = True
        if has_narrow_epi_stages(self.tile) and cluster_k == 1:
            options["epi_tile_n"] = _NARROW_EPI_STAGE
        elif columns % cluster_k == 0 and has_odd_groups(columns // cluster_k):
            options["epi_tile_n"] = odd_columns(columns // cluster_k)
        if self.depth > 1:
            options["depth"] = self.depth
        return {**options, "cluster": self.cluster}


def every_tile(promoted: bool = False) -> Iterator[NamedTile]:
    """Yield all Hopper tiles that `choose` considers, each with its cluster and the number of CTAs that split its K.

    promoted   True: only the tiles whose accumulators are added to a total in f32 after each k-tile; False: all others

    >>> len(list(every_tile())), len(list(every_tile(promoted=True)))
    (267, 81)
    """
    for rows, columns, cluster in itertools.product((64, 128, 192, 256), range(16, 257, 8), CLUSTERS):
        tile = rows, columns
        if _is_whole(tile, cluster, promoted):
            yield NamedTile(tile, cluster, promoted)
        for cluster_k in CLUSTER_K:
            if _splits_k_in_cluster(tile, cluster, cluster_k, promoted):
                yield NamedTile(tile, cluster, promoted, cluster_k=cluster_k)
            if not promoted and _splits_deep_k_in_cluster(tile, cluster, cluster_k):
                yield NamedTile(tile, cluster, depth=DEEP, cluster_k=cluster_k)
        if not promoted and _is_deep(tile, cluster):
            yield NamedTile(tile, cluster, depth=DEEP)
        if not promoted and _is_alone(tile, cluster):
            yield NamedTile(tile, cluster, is_alone=True)


def _is_whole(tile: tuple[int, int], cluster: tuple[int, int], promoted: bool) -> bool:
    """Return whether a tile and cluster are tried without cluster split-K, with k-tiles of 128 bytes along K.

    The ranges of good tiles were found by measurement.

    tile, cluster   (bM, bN), and CTAs of a cluster along M and N
    promoted        whether threads add the accumulators of each k-tile to a total in f32
    """
    (rows, columns), ctas = tile, product(cluster)
    if promoted and ctas > PAIR:
        return cluster == (2, 2) and rows == 128 and columns % 16 == 0 and 96 <= columns <= 160
    if ctas > PAIR:  # 1 x 4 is no faster than 4 x 1 for D^T
        step = 16 if 2 * columns <= 3 * rows else 32
        is_wide = cluster == (1, 4) or (cluster == (2, 4) and columns > _WIDEST_OF_2X4)
        return columns % step == 0 and _is_within(tile, _LARGE_CLUSTER_COLUMNS) and not is_wide
    if columns % 16:
        return not promoted and ctas == PAIR and _is_within(tile, _ODD_COLUMNS)
    is_usual = _is_within(tile, _PROMOTED_COLUMNS if promoted else _COLUMNS)
    is_usual |= not promoted and tile in _FURTHER
    return is_usual and (ctas == PAIR or rows * columns <= _LARGEST_SINGLE)


def _is_within(tile: tuple[int, int], columns: Mapping[int, tuple[int, int]]) -> bool:
    """Return whether a tile's number of columns is in the range that `columns` allows for its number of rows.

    tile      (bM, bN)
    columns   bM -> (least, largest) bN
    returns   False if `columns` has no range for bM
    """
    narrowest, widest = columns.get(tile[0], (1, 0))
    return narrowest <= tile[1] <= widest


def _is_alone(tile: tuple[int, int], cluster: tuple[int, int]) -> bool:
    """Return whether a plan with one tile per CTA is tried in addition to the plan with several tiles per CTA.

    The consumer warpgroups of the CTA share its tile. It is tried only for clusters of two; larger clusters have one
    tile per CTA anyway.

    tile, cluster   (bM, bN), and CTAs of a cluster along M and N
    """
    return product(cluster) == PAIR and tile[1] % 16 == 0 and (is_pingpong(tile) or tile in _OVERLAPPED_TILES)


def _is_deep(tile: tuple[int, int], cluster: tuple[int, int]) -> bool:
    """Return whether deep k-tiles (256 bytes along K), which halve the number of waits, are tried for this tile.

    They are tried if the tile has few columns, or if several CTAs of a cluster share A.

    tile, cluster   (bM, bN), and CTAs of a cluster along M and N
    """
    rows, columns = tile
    return rows == 64 and columns in (16, 32, *((48, 64) if cluster[1] > 1 else ()))


def _splits_k_in_cluster(tile: tuple[int, int], cluster: tuple[int, int], cluster_k: int, promoted: bool) -> bool:
    """Return whether a plan whose CTAs of a cluster split K is tried for this tile.

    It is meant for problems of few tiles and a large K. Each CTA stores some of the tile's columns. Of 85 such
    problems, a plan with cluster split-K was the fastest for 28, and one with split-K for 1 (H200 and H100,
    2026-11-24).

    tile, cluster   (bM, bN), and CTAs of a cluster along M and N that have different tiles
    cluster_k       CTAs of a cluster that split the K of each tile
    promoted        whether threads add the accumulators of each k-tile to a total in f32
    """
    rows, columns = tile
    least = 64 if promoted else rows // 2
    return rows <= 128 and least <= columns <= _WIDEST_SHARED and _may_split_k_in_cluster(columns, cluster, cluster_k)


def _splits_deep_k_in_cluster(tile: tuple[int, int], cluster: tuple[int, int], cluster_k: int) -> bool:
    """Return whether a plan with cluster split-K and k-tiles of 256 bytes is tried for this tile.

    It is meant for few rows by a large weight: 16 x 4096 x 4096 takes 10.26 us with such a plan, and 11.29 us with
    `gemv_16x16` (CUDA graph, H200, 2026-11-24).

    tile, cluster   (bM, bN), and CTAs of a cluster along M and N that have different tiles
    cluster_k       CTAs of a cluster that split the K of each tile
    """
    return tile[0] == 64 and tile[1] <= _NARROW and _may_split_k_in_cluster(tile[1], cluster, cluster_k)


def _may_split_k_in_cluster(columns: int, cluster: tuple[int, int], cluster_k: int) -> bool:
    """Return whether a tile permits cluster split-K: its columns divide evenly, and the cluster is small enough.

    Each CTA must store a power of two of the columns, and the cluster must have at most eight CTAs.

    columns              columns of the tile
    cluster, cluster_k   CTAs of a cluster along M and N, and CTAs that split K
    """
    own = columns // cluster_k
    is_even = columns % 16 == 0 and own * cluster_k == columns and own >= _FEWEST_SHARED and own & (own - 1) == 0
    return is_even and cluster in ((1, 1), (2, 1)) and product(cluster) * cluster_k <= MAX_CLUSTER_CTAS


def has_narrow_epi_stages(tile: tuple[int, int]) -> bool:
    """Return whether the epilogue tiles of a tile have only 32 columns, which leaves room for one more mainloop stage.

    tile   (bM, bN)
    """
    return tile in _NARROW_EPI_STAGES
