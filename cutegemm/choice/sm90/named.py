"""The named Hopper plans that `choose` considers; `ladders.sm90` has further ones, for the tutorial.

Forms of the names, and the suffixes that any name may have:

sm90_128x144_2x1              a tile, and its cluster: see `sm90.tiles`
sm90_64x32_deep_2x2           a tile with k-tiles of 256 bytes along K instead of 128
sm90_128x112_coop_2x1         a tile that its consumers share, as the only tile of its CTA
sm90_64x64_2x1x4              cluster split-K: 2 x 1 tiles per cluster, and four CTAs split the K of each
sm90_64x16_deep_occ2          two CTAs per SM, each with half of the shared memory; there are four such names
sm90_epi_stages+repack        repack passes first, for operands that TMA cannot load, or wgmma cannot multiply, as they
                              are
sm90_64x128/k4                split-K: each tile has 4 K splits, and the consumer that ends last adds their accumulators
sm90_cooperative_2x1/stream   stream-K: the k-tiles of the tiles that do not fill the grid, and of one full wave, are
                              divided evenly among all CTAs; /stream1 leaves the full wave out
sm90_overlapped_2x1/fixup     stream-K fixup: the CTAs that the last wave leaves idle take the last k-tiles of its tiles
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cutegemm.choice.sm90.recipe import Sm90Recipe
from cutegemm.choice.sm90.shapes import K_TILE_BYTES, TileShape
from cutegemm.choice.sm90.tiles import (
    COOPERATIVE,
    OVERLAPPED,
    NamedTile,
    every_tile,
    has_narrow_epi_stages,
)
from cutegemm.plan.work.gpcs import PAIR

_OF_TWO = {"depth": 2, "ctas_per_sm": 2}
# (name, options with the tile (bM, bN), summary)
_TILES = (
    ("sm90_epi_stages", {"tile": (128, 128), "epi_stages": 4, "raster": "along_n"},
     "four epilogue stages per consumer: a tile is written without waiting for the stores before it"),
    ("sm90_cluster_1x2", {"tile": (128, 128), "epi_stages": 4, "cluster": (1, 2)},
     "two CTAs side by side load their A once: by multicast"),
    ("sm90_cluster_2x1", {"tile": (128, 128), "cluster": (2, 1)},
     "two CTAs on top of each other load their B once: by multicast"),
    ("sm90_wide_1x2", {"tile": (128, 192), "cluster": (1, 2)},
     "128 x 192 pingpong: fewer loaded bytes per MMA than 128 x 128, in the 240 registers of a thread"),
    ("sm90_wide_2x1", {"tile": (128, 192), "cluster": (2, 1)},
     "128 x 192 pingpong in clusters of 2 x 1, which share B"),
    ("sm90_wide_along_n", {"tile": (128, 192), "epi_stages": 3, "raster": "along_n"},
     "128 x 192 one after the other along the rows of D: faster writes to DRAM, if L2 holds all of A and B"),
    ("sm90_wide_along_n_1x2", {"tile": (128, 192), "epi_stages": 3, "raster": "along_n", "cluster": (1, 2)},
     "128 x 192 one after the other along the rows of D, in clusters of 1 x 2, which share A"),
    ("sm90_wide_along_n_2x1", {"tile": (128, 192), "epi_stages": 3, "raster": "along_n", "cluster": (2, 1)},
     "128 x 192 one after the other along the rows of D, in clusters of 2 x 1, which share B"),
    ("sm90_overlapped", {"tile": (128, 256), **COOPERATIVE, **OVERLAPPED},
     "128 x 256 with overlapped epilogue: D is stored while the next tile's first k-tiles are multiplied"),
    ("sm90_overlapped_2x1", {"tile": (128, 256), **COOPERATIVE, **OVERLAPPED, "cluster": (2, 1)},
     "128 x 256 with overlapped epilogue, in clusters of 2 x 1, which share B"),
    ("sm90_overlapped_tall_1x2", {"tile": (256, 128), **COOPERATIVE, **OVERLAPPED, "cluster": (1, 2)},
     "256 x 128 with overlapped epilogue, in clusters of 1 x 2, which share A"),
    ("sm90_256x160", {"tile": (256, 160), **COOPERATIVE},
     "256 x 160 by two consumers: the largest tile that leaves room for four stages"),
    ("sm90_64x256", {"tile": (64, 256), "epi_stages": 4},
     "64 x 256 pingpong: for few rows"),
    ("sm90_64x128", {"tile": (64, 128), "epi_stages": 2, "store": "tma_warp"},
     "64 x 128 pingpong, each warp stores its own rows: for problems of few tiles"),
    ("sm90_64x128_2x1", {"tile": (64, 128), "epi_stages": 2, "store": "tma_warp", "cluster": (2, 1)},
     "64 x 128 in clusters of 2 x 1, which share B: for 65 to 128 rows, and small problems"),
    ("sm90_64x64_2x1", {"tile": (64, 64), "epi_tile_n": 32, "store": "tma_warp", "cluster": (2, 1)},
     "64 x 64 in clusters of 2 x 1, which share B: half the traffic of B"),
    ("sm90_64x64", {"tile": (64, 64), "epi_tile_n": 32, "store": "tma_warp"},
     "64 x 64 pingpong: for the smallest problems"),
    ("sm90_64x32", {"tile": (64, 32), "epi_tile_n": 16},
     "64 x 32 pingpong: for few columns or, as swap_ab:sm90_64x32, few rows"),
    ("sm90_64x16", {"tile": (64, 16), "store": "direct"},
     "64 x 16 pingpong: the narrowest tile, whose D is stored from registers"),
)  # fmt: skip
# For one tile per CTA: these plans start sooner than persistent ones.
_ALONE = (
    ("sm90_64x64_multistage", {"tile": (64, 64), "schedule": "single", "ctas": None},
     "64 x 64 by one warpgroup, which loads its own k-tiles: for small problems of few k-tiles"),
    ("sm90_64x32_multistage", {"tile": (64, 32), "schedule": "single", "ctas": None},
     "64 x 32 by one warpgroup, which loads its own k-tiles"),
    ("sm90_64x16_multistage", {"tile": (64, 16), "schedule": "single", "store": "direct", "ctas": None},
     "64 x 16 by one warpgroup, which loads its own k-tiles"),
)  # fmt: skip
# For few rows by large weights. Each CTA has half of the shared memory, so twice as many tiles run at a time, and each
# gets the same share of the memory bandwidth: 12 x 9344 x 13440 (146 tiles) takes 62.1 us in the first of these plans,
# 67.9 us in 128 x 16 in clusters of 2 x 1, and 72.0 us by cuBLAS, in a CUDA graph (H200, 2026-11-25).
_STREAMING = (
    *[(f"sm90_64x{columns}_deep_occ2",
       {"tile": (64, columns), "schedule": "single", **_OF_TWO, "store": "direct", "ctas": None},
       f"64 x {columns} by one warpgroup, k-tiles of 256 bytes, two CTAs per SM: for few rows by large weights")
      for columns in (16, 32)],
    *[(f"sm90_64x{columns}_deep_1x1x2_occ2",
       {"tile": (64, columns), **NamedTile((64, columns), depth=2, cluster_k=2).options, **_OF_TWO},
       f"64 x {columns}, k-tiles of 256 bytes, K split by 2 CTAs of a cluster, two CTAs per SM: for few rows by "
       "large weights")
      for columns in (16, 32)],
)  # fmt: skip
# For fp8: wgmma accumulates with about 14 bits, so the accumulators of each k-tile are promoted to f32.
_PROMOTED = (
    ("sm90_promoted",
     {"tile": (128, 128), **COOPERATIVE, "promoted": True, "cluster": (2, 1), "store": "tma_warp"},
     "128 x 128 by two consumers with accumulator promotion, in clusters of 2 x 1, which share B"),
    ("sm90_promoted_2x1", {"tile": (128, 192), **COOPERATIVE, "promoted": True, "cluster": (2, 1)},
     "128 x 192 by two consumers with accumulator promotion, in clusters of 2 x 1, which share B"),
)  # fmt: skip


def of_tile(named: NamedTile) -> Sm90Recipe:
    """Return the plan for a tile that a name such as sm90_128x144_2x1 spells out, as a recipe (name and arguments).

    The recipe's summary describes the tile.

    named   the tile, cluster and other properties that the name spells out
    """
    names = " and ".join([name for name, ctas in zip("AB", reversed(named.cluster), strict=True) if ctas > 1])
    shared = f", in clusters that share {names}" if names else ""
    accumulators = ", accumulator promotion" if named.promoted else ""
    deep = f", k-tiles of {named.depth * K_TILE_BYTES} bytes" if named.depth > 1 else ""
    by_k = f", K split by {named.cluster_k} CTAs of a cluster" if named.cluster_k > 1 else ""
    alone = ", shared by all consumers" if named.is_alone else ""
    use = "for problems whose tiles fill the grid"
    if named.cluster_k > 1:
        use = "for few tiles with a large K"
    elif named.is_alone:
        use = "for one tile per CTA"
    summary = f"{named.tile[0]} x {named.tile[1]}{deep}{shared}{by_k}{alone}{accumulators}: {use}"
    return Sm90Recipe(named.name, summary, {"tile": named.tile, **named.options})


def _recipes(rows: Iterable[tuple[str, dict[str, Any], str]]) -> tuple[Sm90Recipe, ...]:
    """Return one recipe (name and arguments of a plan) for each row (name, options, summary) of a table.

    Options are arguments of `sm90_plan`: name -> value.
    """
    return tuple([Sm90Recipe(name, summary, options) for name, options, summary in rows])


def _with_tiles(named: tuple[Sm90Recipe, ...], promoted: bool) -> tuple[Sm90Recipe, ...]:
    """Return the given plans, followed by one for each other tile that `choose` considers.

    Plans are given and returned as recipes, i.e. their names and arguments.

    named      plans that have names of their own
    promoted   whether the added plans promote accumulators, i.e. add them to a total in f32 after each k-tile
    """
    covered = {
        NamedTile(recipe.tile, recipe.shape.cluster, promoted, recipe.shape.depth, recipe.shape.cluster_k)
        for recipe in named
        if _is_usual(recipe)
    }
    return (*named, *[of_tile(tile) for tile in every_tile(promoted) if tile not in covered])


def _is_usual(recipe: Sm90Recipe) -> bool:
    """Return whether a plan is the default one for its tile and cluster: with default rasterization and epilogue.

    Such a plan is listed once, under the name that spells out tile and cluster, e.g. sm90_128x144_2x1.

    recipe   name and arguments of the plan
    """
    shape = recipe.shape
    has_usual_order = shape.raster == TileShape.raster and shape.ctas_per_sm == 1
    return shape.epilogue != "single" and has_usual_order and not has_narrow_epi_stages(recipe.tile)


_NAMED, _NAMED_PROMOTED = _recipes((*_TILES, *_ALONE, *_STREAMING)), _recipes(_PROMOTED)
SM90_PLANS = (*_NAMED, *_NAMED_PROMOTED)
# The plans that `choose` considers.
SM90_CHOSEN = _with_tiles(_NAMED, promoted=False)
SM90_PROMOTED = _with_tiles(_NAMED_PROMOTED, promoted=True)
# Plans for block-scaled operands: their promotion multiplies by the scales. The columns of other tiles share few
# scales: 128 x 176 takes 1.2 to 1.4 times as long as 128 x 192 (H100, 2026-11-26).
_SCALED_TILES = {(rows, columns) for rows, widths in ((64, (16, 32, 64)), (128, (64, 128, 192))) for columns in widths}
SM90_SCALED = tuple(
    [
        one
        for one in SM90_PROMOTED
        if one.tile in _SCALED_TILES and one.cluster_ctas <= PAIR and one.shape.cluster_k == 1
    ]
)
# The forms of these plans that read A into registers, as `Sm90Recipe.build_for` makes them.
SM90_READING = tuple([one.reading for one in SM90_CHOSEN if one.may_read and not one.shape.alone])


def sm90_names() -> list[tuple[str, str]]:
    """Return (name, one-line summary) of the Hopper plans, for lists of plans.

    Names with other tile sizes are valid too; the list has one example of each form. `+repack`, then `/k4` or
    `/stream`, may follow each name.

    >>> [name for name, _ in sm90_names()][-2:]
    ['sm90_64x64_2x1x4', 'sm90_overlapped_2x1+repack']
    """
    others = (
        ("sm90_128x144_2x1", "128 x 144 in clusters of 2 x 1; other tile sizes likewise"),
        ("sm90_64x32_deep_2x2", "64 x 32, k-tiles of 256 bytes, in clusters of 2 x 2; other tile sizes likewise"),
        ("sm90_128x112_coop_2x1", "128 x 112 in clusters of 2 x 1, one tile per CTA; other tile sizes likewise"),
        ("sm90_64x64_2x1x4", "64 x 64 in clusters of 2 x 1 tiles, K split by four CTAs; other tile sizes likewise"),
        (
            "sm90_overlapped_2x1+repack",
            "sm90_overlapped_2x1; repack passes first for operands that TMA cannot load or wgmma cannot multiply",
        ),
    )
    return [*((recipe.name, recipe.summary) for recipe in SM90_PLANS), *others]
