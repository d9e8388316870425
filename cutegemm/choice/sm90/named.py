"""The named plans for Hopper that `choose` considers; `ladders.sm90` has others, to learn from.

What may follow a name:

    sm90_128x144_2x1            a tile, and its cluster: see `tiles`
    sm90_64x32_deep_2x2         the same with k-tiles of 256 bytes in place of 128
    sm90_128x112_coop_2x1       the same by consumers that share the tile: for one tile a CTA
    sm90_64x64_2x1x4            the same in clusters of 2 x 1 tiles, of each of which four CTAs share K
    sm90_64x16_deep_occ2        the same with half of the shared memory: two CTAs to a multiprocessor; four such names
    sm90_epi_stages+repack             operands that TMA cannot load, or wgmma not multiply, as they are, are packed
    first sm90_64x128/k4              K is split in 4 parts, which the consumer that ends last adds
    sm90_cooperative_2x1/stream the k-tiles of what does not fill the grid, and of one grid of tiles more, are divided
                                evenly among all CTAs; /stream1 without those of one grid more
    sm90_overlapped_2x1/fixup      the CTAs that the last tiles leave idle take the last k-tiles of each of these
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

_OF_TWO = {"depth": 2, "ctas_per_sm": 2}
# (name, options, what is special), each with the tile (bM, bN)
_TILES = (
    ("sm90_epi_stages", {"tile": (128, 128), "epi_stages": 4, "raster": "along_n"},
     "four epilogue stages of D a consumer: its tile is written without waiting for the stores before it"),
    ("sm90_cluster_1x2", {"tile": (128, 128), "epi_stages": 4, "cluster": (1, 2)},
     "two CTAs side by side load their A once, by multicast"),
    ("sm90_cluster_2x1", {"tile": (128, 128), "cluster": (2, 1)},
     "two CTAs on top of each other load their B once"),
    ("sm90_wide_1x2", {"tile": (128, 192), "cluster": (1, 2)},
     "128 x 192 pingpong: fewer bytes a product than 128 x 128, in the 240 registers that there are"),
    ("sm90_wide_2x1", {"tile": (128, 192), "cluster": (2, 1)},
     "128 x 192 pingpong in clusters of 2 x 1, which share B"),
    ("sm90_wide_along_n", {"tile": (128, 192), "epi_stages": 3, "raster": "along_n"},
     "128 x 192 one after the other along the rows of D, which DRAM takes better: where L2 holds all of A "
     "and B"),
    ("sm90_wide_along_n_1x2", {"tile": (128, 192), "epi_stages": 3, "raster": "along_n", "cluster": (1, 2)},
     "128 x 192 one after the other along the rows of D, in clusters of 1 x 2, which share A"),
    ("sm90_wide_along_n_2x1", {"tile": (128, 192), "epi_stages": 3, "raster": "along_n", "cluster": (2, 1)},
     "128 x 192 one after the other along the rows of D, in clusters of 2 x 1, which share B"),
    ("sm90_overlapped", {"tile": (128, 256), **COOPERATIVE, **OVERLAPPED},
     "128 x 256, stored behind the products of the next tile's first k-tiles: no consumer stops for its "
     "epilogue"),
    ("sm90_overlapped_2x1", {"tile": (128, 256), **COOPERATIVE, **OVERLAPPED, "cluster": (2, 1)},
     "128 x 256, stored behind the next tile's products, in clusters of 2 x 1, which share B"),
    ("sm90_overlapped_tall_1x2", {"tile": (256, 128), **COOPERATIVE, **OVERLAPPED, "cluster": (1, 2)},
     "256 x 128, stored behind the next tile's products, in clusters of 1 x 2, which share A"),
    ("sm90_256x160", {"tile": (256, 160), **COOPERATIVE},
     "256 x 160 by two consumers: the largest tile that leaves room for four stages"),
    ("sm90_64x256", {"tile": (64, 256), "epi_stages": 4},
     "64 x 256 pingpong: for few rows"),
    ("sm90_64x128", {"tile": (64, 128), "epi_stages": 2, "store": "tma_warp"},
     "64 x 128 pingpong, each warp storing its own rows: for problems of few tiles"),
    ("sm90_64x128_2x1", {"tile": (64, 128), "epi_stages": 2, "store": "tma_warp", "cluster": (2, 1)},
     "64 x 128 in clusters of 2 x 1, which share B: for 65 to 128 rows, and small problems"),
    ("sm90_64x64_2x1", {"tile": (64, 64), "epi_tile_n": 32, "store": "tma_warp", "cluster": (2, 1)},
     "64 x 64 in clusters of 2 x 1, which share B: half the traffic of B"),
    ("sm90_64x64", {"tile": (64, 64), "epi_tile_n": 32, "store": "tma_warp"},
     "64 x 64 pingpong: for the smallest problems"),
    ("sm90_64x32", {"tile": (64, 32), "epi_tile_n": 16},
     "64 x 32 pingpong: for few columns or, as swap_ab:sm90_64x32, few rows"),
    ("sm90_64x16", {"tile": (64, 16), "store": "direct"},
     "64 x 16 pingpong: the narrowest, whose D leaves straight out of registers"),
)  # fmt: skip
# For one tile a CTA: it begins sooner than the persistent ones.
_ALONE = (
    ("sm90_64x64_multistage", {"tile": (64, 64), "schedule": "single", "ctas": None},
     "64 x 64 by one warpgroup, which asks for its k-tiles itself: for small problems of few k-tiles"),
    ("sm90_64x32_multistage", {"tile": (64, 32), "schedule": "single", "ctas": None},
     "64 x 32 by one warpgroup, which asks for its k-tiles itself"),
    ("sm90_64x16_multistage", {"tile": (64, 16), "schedule": "single", "store": "direct", "ctas": None},
     "64 x 16 by one warpgroup, which asks for its k-tiles itself"),
)  # fmt: skip
# For few rows by large weights. Each CTA has half of the shared memory, so that twice as many tiles run at a time, and
# memory serves all of them alike: 12 x 9344 x 13440, of 146 tiles, takes 62.1 us in a graph by the first of these, 67.9
# by 128 x 16 in clusters of 2 x 1, and 72.0 by cuBLAS (H200, 2026-11-25).
_STREAMING = (
    *[(f"sm90_64x{columns}_deep_occ2",
       {"tile": (64, columns), "schedule": "single", **_OF_TWO, "store": "direct", "ctas": None},
       f"64 x {columns} by one warpgroup, k-tiles of 256 bytes, two CTAs to a multiprocessor: few rows by weights")
      for columns in (16, 32)],
    *[(f"sm90_64x{columns}_deep_1x1x2_occ2",
       {"tile": (64, columns), **NamedTile((64, columns), depth=2, cluster_k=2).options, **_OF_TWO},
       f"64 x {columns}, k-tiles of 256 bytes, K shared by 2 CTAs of a cluster, two CTAs to a multiprocessor: few rows "
       "by weights")
      for columns in (16, 32)],
)  # fmt: skip
# For fp8, whose accumulators wgmma does not keep in full.
_PROMOTED = (
    ("sm90_promoted",
     {"tile": (128, 128), **COOPERATIVE, "promoted": True, "cluster": (2, 1), "store": "tma_warp"},
     "128 x 128 by two consumers, in clusters that share B; the threads add up the sums of each k-tile"),
    ("sm90_promoted_2x1", {"tile": (128, 192), **COOPERATIVE, "promoted": True, "cluster": (2, 1)},
     "128 x 192 by two consumers, in clusters that share B; the threads add up the sums of each k-tile"),
)  # fmt: skip


def of_tile(given: NamedTile) -> Sm90Recipe:
    """The recipe of a tile that has a name: see `tiles`."""
    names = " and ".join([name for name, ctas in zip("AB", reversed(given.cluster), strict=True) if ctas > 1])
    shared = f", in clusters that share {names}" if names else ""
    accumulators = ", sums on two levels" if given.promoted else ""
    deep = f", k-tiles of {given.depth * K_TILE_BYTES} bytes" if given.depth > 1 else ""
    by_k = f", K shared by {given.cluster_k} CTAs of a cluster" if given.cluster_k > 1 else ""
    alone = ", shared by all consumers" if given.is_alone else ""
    of = "where such tiles fill the grid"
    if given.cluster_k > 1:
        of = "few tiles with a deep K"
    elif given.is_alone:
        of = "one tile a CTA"
    summary = f"{given.tile[0]} x {given.tile[1]}{deep}{shared}{by_k}{alone}{accumulators}: {of}"
    return Sm90Recipe(given.name, summary, {"tile": given.tile, **given.options})


def _recipes(rows: Iterable[tuple[str, dict[str, Any], str]]) -> tuple[Sm90Recipe, ...]:
    return tuple([Sm90Recipe(name, summary, options) for name, options, summary in rows])


def _with_tiles(named: tuple[Sm90Recipe, ...], promoted: bool) -> tuple[Sm90Recipe, ...]:
    """Return the plans that have a name, and one for each tile that they leave out in the usual order of tiles."""
    taken = {
        NamedTile(recipe.tile, recipe.shape.cluster, promoted, recipe.shape.depth, recipe.shape.cluster_k)
        for recipe in named
        if _is_usual(recipe)
    }
    return (*named, *[of_tile(given) for given in every_tile(promoted) if given not in taken])


def _is_usual(recipe: Sm90Recipe) -> bool:
    """Return whether it is the plan that the name of its tile and cluster stands for: see `tiles`."""
    shape = recipe.shape
    has_usual_order = shape.raster == TileShape.raster and shape.ctas_per_sm == 1
    return shape.epilogue != "single" and has_usual_order and not has_narrow_epi_stages(recipe.tile)


_NAMED, _NAMED_PROMOTED = _recipes((*_TILES, *_ALONE, *_STREAMING)), _recipes(_PROMOTED)
SM90_PLANS = (*_NAMED, *_NAMED_PROMOTED)
# What `choose` considers.
SM90_CHOSEN = _with_tiles(_NAMED, promoted=False)
SM90_PROMOTED = _with_tiles(_NAMED_PROMOTED, promoted=True)
# Plans of an A that threads read into registers, as `Sm90Recipe.build_for` makes them of the others.
SM90_READING = tuple([one.reading for one in SM90_CHOSEN if one.may_read and not one.shape.alone])


def sm90_names() -> list[tuple[str, str]]:
    """Every name, with what is behind it; `+repack`, then `/k4` or `/stream`, may follow each. A tile may be of any
    size.

    >>> [name for name, _ in sm90_names()][-2:]
    ['sm90_64x64_2x1x4', 'sm90_overlapped_2x1+repack']
    """
    others = (
        ("sm90_128x144_2x1", "128 x 144 in clusters of 2 x 1; other tiles by such a name too"),
        ("sm90_64x32_deep_2x2", "64 x 32, k-tiles of 256 bytes, in clusters of 2 x 2; other tiles too"),
        ("sm90_128x112_coop_2x1", "128 x 112 in clusters of 2 x 1, one tile a CTA; other tiles too"),
        ("sm90_64x64_2x1x4", "64 x 64 in clusters of 2 x 1, four CTAs for K; other tiles too"),
        (
            "sm90_overlapped_2x1+repack",
            "sm90_overlapped_2x1, operands that TMA cannot load, or wgmma not multiply, as they are, copied first",
        ),
    )
    return [*((recipe.name, recipe.summary) for recipe in SM90_PLANS), *others]
