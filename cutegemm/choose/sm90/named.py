"""The named plans for Hopper: a ladder, each step with what it changes and why, and the sizes around it.

What may follow a name:

    sm90_128x144_2x1            a tile, and its cluster: see `tiles`
    sm90_64x32_deep_2x2         the same with k-tiles of 256 bytes in place of 128
    sm90_128x112_coop_2x1       the same by consumers that share the tile: for one tile a CTA
    sm90_64x64_2x1x4            the same in clusters of 2 x 1 tiles, of each of which four CTAs share K
    sm90_64x16_deep_occ2        the same with half of the shared memory: two CTAs to a multiprocessor; four such names
    sm90_slots+pack             operands that TMA cannot load, or wgmma not multiply, as they are, are packed first
    sm90_64x128/k4              K is split in 4 parts, which the consumer that ends last adds
    sm90_cooperative_2x1/stream the k-tiles of what does not fill the grid, and of one grid of tiles more, are divided
                                evenly among all CTAs; /stream1 without those of one grid more
    sm90_deferred_2x1/fill      the CTAs that the last tiles leave idle take the last k-tiles of each of these

Times that are quoted are of one H200, bf16, D bf16, A and B k-major, normal data, alternating with cuBLAS of
torch 2.11, 2026-11-20.
"""

from __future__ import annotations

from cutegemm.choose.recipe import STREAM_WAVES
from cutegemm.choose.sm90.recipe import Sm90Recipe
from cutegemm.choose.sm90.shapes import K_TILE_BYTES, TileShape
from cutegemm.choose.sm90.tiles import (
    COOPERATIVE,
    DEFERRED,
    NamedTile,
    every_tile,
    has_narrow_slots,
)

_DIRECT = {"store": "direct", "raster": "along_n"}
_OF_TWO = {"depth": 2, "ctas_per_sm": 2}
_KEEP_INPUTS = ("evict_last", "evict_last", "evict_first")

SM90_LADDER = (
    Sm90Recipe(
        "sm90_multistage",
        "TMA loads and wgmma: one warpgroup, which asks for k-tiles ahead between its products",
        {"tile": (128, 128), "schedule": "single", **_DIRECT},
    ),
    Sm90Recipe(
        "sm90_specialized",
        "a producer warp fills the ring, so that the products never wait for the asking",
        {"tile": (128, 128), "schedule": "cooperative", "consumers": 1, **_DIRECT, "ctas": None},
    ),
    Sm90Recipe(
        "sm90_large_tile",
        "two consumers share 128 x 256: 1.3 times the products for each byte that is loaded",
        {"tile": (128, 256), **COOPERATIVE, **_DIRECT, "ctas": None},
    ),
    Sm90Recipe(
        "sm90_persistent",
        "one CTA per SM takes tile after tile: the next one's k-tiles come while D is written",
        {"tile": (128, 256), **COOPERATIVE, **_DIRECT},
    ),
    Sm90Recipe(
        "sm90_pingpong",
        "the consumers take tiles in turn: one writes D while the other multiplies",
        {"tile": (128, 128), **_DIRECT},
    ),
    Sm90Recipe(
        "sm90_tma_plain",
        "D leaves by TMA, through rows of 128 bytes: stmatrix meets 8-fold bank conflicts",
        {"tile": (128, 128), "shared_d": "plain", "raster": "along_n"},
    ),
    Sm90Recipe(
        "sm90_padded",
        "the rows are padded by 16 bytes: no conflicts; but a box of TMA lies dense, so the threads copy D out",
        {"tile": (128, 128), "shared_d": "padded", "raster": "along_n"},
    ),
    Sm90Recipe(
        "sm90_tma_swizzled",
        "the rows are swizzled as TMA unswizzles them: no conflicts, no padding, and no thread copies",
        {"tile": (128, 128), "raster": "along_n"},
    ),
    Sm90Recipe(
        "sm90_slots",
        "four slots of D a consumer: its tile is written without waiting for the stores before it",
        {"tile": (128, 128), "slots": 4, "raster": "along_n"},
        is_chosen=True,
    ),
    Sm90Recipe(
        "sm90_along_m",
        "tiles in columns: which operand is read again from L2 decides at large K",
        {"tile": (128, 128), "slots": 4, "raster": "along_m"},
    ),
    Sm90Recipe(
        "sm90_grouped",
        "tiles in bands of 16 rows: both operands are read again from L2",
        {"tile": (128, 128), "slots": 4, "raster": "grouped_m:16"},
    ),
    Sm90Recipe(
        "sm90_hilbert",
        "tiles along a Hilbert curve in squares of 8 x 8: as near to each other as an order can have them",
        {"tile": (128, 128), "slots": 4, "raster": "hilbert:8"},
    ),
    Sm90Recipe(
        "sm90_l2",
        "L2 is told to keep A and B, and to let go of D",
        {"tile": (128, 128), "slots": 4, "raster": "grouped_m:8", "l2": _KEEP_INPUTS},
    ),
    Sm90Recipe(
        "sm90_cluster_1x2",
        "two CTAs side by side load their A once, by multicast",
        {"tile": (128, 128), "slots": 4, "cluster": (1, 2)},
        is_chosen=True,
    ),
    Sm90Recipe(
        "sm90_cluster_2x1",
        "two CTAs on top of each other load their B once",
        {"tile": (128, 128), "cluster": (2, 1)},
        is_chosen=True,
    ),
    Sm90Recipe(
        "sm90_wide_1x2",
        "128 x 192 pingpong: fewer bytes a product than 128 x 128, in the 240 registers that there are",
        {"tile": (128, 192), "cluster": (1, 2)},
        is_chosen=True,
    ),
    Sm90Recipe(
        "sm90_wide_2x1",
        "128 x 192 pingpong in clusters of 2 x 1, which share B",
        {"tile": (128, 192), "cluster": (2, 1)},
        is_chosen=True,
    ),
    Sm90Recipe(
        "sm90_wide_along_n",
        "128 x 192 one after the other along the rows of D, which DRAM takes better: where L2 holds all of A and B",
        {"tile": (128, 192), "slots": 3, "raster": "along_n"},
        is_chosen=True,
    ),
    Sm90Recipe(
        "sm90_wide_along_n_1x2",
        "128 x 192 one after the other along the rows of D, in clusters of 1 x 2, which share A",
        {"tile": (128, 192), "slots": 3, "raster": "along_n", "cluster": (1, 2)},
        is_chosen=True,
    ),
    Sm90Recipe(
        "sm90_wide_along_n_2x1",
        "128 x 192 one after the other along the rows of D, in clusters of 2 x 1, which share B",
        {"tile": (128, 192), "slots": 3, "raster": "along_n", "cluster": (2, 1)},
        is_chosen=True,
    ),
    Sm90Recipe(
        "sm90_cooperative",
        "128 x 256 by two consumers with D through TMA, where many k-tiles hide the epilogue",
        {"tile": (128, 256), **COOPERATIVE},
    ),
    Sm90Recipe(
        "sm90_cooperative_2x1",
        "128 x 256 in clusters of 2 x 1; the second consumer begins 550 cycles later, so that the two do not store at "
        "once",
        {"tile": (128, 256), **COOPERATIVE, "cluster": (2, 1), "stagger_cycles": 550},
    ),
    Sm90Recipe(
        "sm90_tall_1x2",
        "256 x 128 by two consumers of 128 x 128 each, sharing A in clusters",
        {"tile": (256, 128), **COOPERATIVE, "cluster": (1, 2)},
    ),
    Sm90Recipe(
        "sm90_deferred",
        "128 x 256, stored behind the products of the next tile's first k-tiles: no consumer stops for its epilogue",
        {"tile": (128, 256), **COOPERATIVE, **DEFERRED},
        is_chosen=True,
    ),
    Sm90Recipe(
        "sm90_deferred_2x1",
        "128 x 256, stored behind the next tile's products, in clusters of 2 x 1, which share B",
        {"tile": (128, 256), **COOPERATIVE, **DEFERRED, "cluster": (2, 1)},
        is_chosen=True,
    ),
    Sm90Recipe(
        "sm90_deferred_tall_1x2",
        "256 x 128, stored behind the next tile's products, in clusters of 1 x 2, which share A",
        {"tile": (256, 128), **COOPERATIVE, **DEFERRED, "cluster": (1, 2)},
        is_chosen=True,
    ),
    Sm90Recipe(
        "sm90_256x160",
        "256 x 160 by two consumers: the largest tile that leaves room for four stages",
        {"tile": (256, 160), **COOPERATIVE},
        is_chosen=True,
    ),
    Sm90Recipe(
        "sm90_64x256",
        "64 x 256 pingpong: for few rows",
        {"tile": (64, 256), "slots": 4},
        is_chosen=True,
    ),
    Sm90Recipe(
        "sm90_64x128",
        "64 x 128 pingpong, each warp storing its own rows: for problems of few tiles",
        {"tile": (64, 128), "slots": 2, "store": "tma_warp"},
        is_chosen=True,
    ),
    Sm90Recipe(
        "sm90_64x128_2x1",
        "64 x 128 in clusters of 2 x 1, which share B: for 65 to 128 rows, and small problems",
        {"tile": (64, 128), "slots": 2, "store": "tma_warp", "cluster": (2, 1)},
        is_chosen=True,
    ),
    Sm90Recipe(
        "sm90_64x64_2x1",
        "64 x 64 in clusters of 2 x 1, which share B: half the traffic of B",
        {"tile": (64, 64), "subtile_n": 32, "store": "tma_warp", "cluster": (2, 1)},
        is_chosen=True,
    ),
    Sm90Recipe(
        "sm90_64x64",
        "64 x 64 pingpong: for the smallest problems",
        {"tile": (64, 64), "subtile_n": 32, "store": "tma_warp"},
        is_chosen=True,
    ),
    Sm90Recipe(
        "sm90_64x32",
        "64 x 32 pingpong: for few columns or, as transposed:sm90_64x32, few rows",
        {"tile": (64, 32), "subtile_n": 16},
        is_chosen=True,
    ),
    Sm90Recipe(
        "sm90_64x16",
        "64 x 16 pingpong: the narrowest, whose D leaves straight out of registers",
        {"tile": (64, 16), "store": "direct"},
        is_chosen=True,
    ),
    Sm90Recipe(
        "sm90_split",
        "four CTAs share the k-tiles of 64 x 128: for few tiles, which leave multiprocessors idle",
        {"tile": (64, 128), "slots": 2, "split_k": 4},
    ),
    Sm90Recipe(
        "sm90_stream",
        "the k-tiles of what does not fill the waves are divided evenly among all CTAs",
        {"tile": (128, 256), **COOPERATIVE, "cluster": (2, 1), "stream": STREAM_WAVES},
    ),
    Sm90Recipe(
        "sm90_fill",
        "each tile of a last wave that is not full keeps a CTA; idle CTAs take its last k-tiles",
        {"tile": (128, 128), "cluster": (2, 1), "fill": True},
    ),
)
# For one tile a CTA: it begins sooner than the persistent ones.
_ALONE = (
    Sm90Recipe(
        "sm90_64x64_multistage",
        "64 x 64 by one warpgroup, which asks for its k-tiles itself: for small problems of few k-tiles",
        {"tile": (64, 64), "schedule": "single", "ctas": None},
        is_chosen=True,
    ),
    Sm90Recipe(
        "sm90_64x32_multistage",
        "64 x 32 by one warpgroup, which asks for its k-tiles itself",
        {"tile": (64, 32), "schedule": "single", "ctas": None},
        is_chosen=True,
    ),
    Sm90Recipe(
        "sm90_64x16_multistage",
        "64 x 16 by one warpgroup, which asks for its k-tiles itself",
        {"tile": (64, 16), "schedule": "single", "store": "direct", "ctas": None},
        is_chosen=True,
    ),
)
# For few rows by large weights. Each CTA has half of a multiprocessor's room, so that twice as many tiles run at a
# time, and memory serves all of them alike: 12 x 9344 x 13440, of 146 tiles, takes 62.1 us in a graph by the first of
# these, 67.9 by 128 x 16 in clusters of 2 x 1, and 72.0 by cuBLAS (one H200, 2026-11-25).
_STREAMING = (
    *[
        Sm90Recipe(
            f"sm90_64x{columns}_deep_occ2",
            f"64 x {columns} by one warpgroup, k-tiles of 256 bytes, two CTAs to a multiprocessor: few rows by weights",
            {"tile": (64, columns), "schedule": "single", **_OF_TWO, "store": "direct", "ctas": None},
            is_chosen=True,
        )
        for columns in (16, 32)
    ],
    *[
        Sm90Recipe(
            f"sm90_64x{columns}_deep_1x1x2_occ2",
            f"64 x {columns}, k-tiles of 256 bytes, K shared by 2 CTAs of a cluster, two CTAs to a multiprocessor: few "
            "rows by weights",
            {"tile": (64, columns), **NamedTile((64, columns), depth=2, k_ctas=2).options, **_OF_TWO},
            is_chosen=True,
        )
        for columns in (16, 32)
    ],
)
# For fp8, whose sums wgmma does not keep in full.
_TWO_LEVEL_LADDER = (
    Sm90Recipe(
        "sm90_two_level",
        "128 x 128 by two consumers, in clusters that share B; the threads add up the sums of each k-tile",
        {"tile": (128, 128), **COOPERATIVE, "two_level": True, "cluster": (2, 1), "store": "tma_warp"},
        is_chosen=True,
    ),
    Sm90Recipe(
        "sm90_two_level_2x1",
        "128 x 192 by two consumers, in clusters that share B; the threads add up the sums of each k-tile",
        {"tile": (128, 192), **COOPERATIVE, "two_level": True, "cluster": (2, 1)},
        is_chosen=True,
    ),
)


def of_tile(given: NamedTile) -> Sm90Recipe:
    """The recipe of a tile that has a name: see `tiles`."""
    names = " and ".join([name for name, ctas in zip("AB", reversed(given.cluster), strict=True) if ctas > 1])
    shared = f", in clusters that share {names}" if names else ""
    sums = ", sums on two levels" if given.two_level else ""
    deep = f", k-tiles of {given.depth * K_TILE_BYTES} bytes" if given.depth > 1 else ""
    by_k = f", K shared by {given.k_ctas} CTAs of a cluster" if given.k_ctas > 1 else ""
    alone = ", shared by all consumers" if given.is_alone else ""
    of = "where such tiles fill the grid"
    if given.k_ctas > 1:
        of = "few tiles with a deep K"
    elif given.is_alone:
        of = "one tile a CTA"
    summary = f"{given.tile[0]} x {given.tile[1]}{deep}{shared}{by_k}{alone}{sums}: {of}"
    return Sm90Recipe(given.name, summary, {"tile": given.tile, **given.options}, is_chosen=True)


def _considered(ladder: tuple[Sm90Recipe, ...], two_level: bool) -> tuple[Sm90Recipe, ...]:
    """Plans of a ladder, and one for each tile that they leave out in the usual order of tiles."""
    chosen = tuple([recipe for recipe in ladder if recipe.is_chosen])
    taken = {
        NamedTile(recipe.tile, recipe.shape.cluster, two_level, recipe.shape.depth, recipe.shape.k_ctas)
        for recipe in chosen
        if _is_usual(recipe)
    }
    return (*chosen, *[of_tile(given) for given in every_tile(two_level) if given not in taken])


def _is_usual(recipe: Sm90Recipe) -> bool:
    """Whether it is the plan that the name of its tile and cluster stands for, see `tiles`."""
    shape = recipe.shape
    has_usual_parts = (
        shape.epilogue != "single" and shape.raster == TileShape.raster and shape.ctas_per_sm == 1
    )
    return has_usual_parts and not has_narrow_slots(recipe.tile)


# What `choose` considers.
SM90_CHOSEN = _considered((*SM90_LADDER, *_ALONE, *_STREAMING), two_level=False)
SM90_TWO_LEVEL = _considered(_TWO_LEVEL_LADDER, two_level=True)
# Plans of an A that threads read into registers, as `Sm90Recipe.build_for` makes them of the others.
SM90_READING = tuple([one.reading for one in SM90_CHOSEN if one.may_read and not one.shape.alone])
SM90_PLANS = (*SM90_LADDER, *_ALONE, *_STREAMING, *_TWO_LEVEL_LADDER)


def sm90_names() -> list[tuple[str, str]]:
    """Every name, with what is behind it; `+pack`, then `/k4` or `/stream`, may follow each. A tile may be of any size.

    >>> [name for name, _ in sm90_names()][-2:]
    ['sm90_64x64_2x1x4', 'sm90_deferred_2x1+pack']
    """
    packed = (
        "sm90_deferred_2x1+pack",
        "sm90_deferred_2x1, operands that TMA cannot load, or wgmma not multiply, as they are, copied first",
    )
    tile = ("sm90_128x144_2x1", "128 x 144 in clusters of 2 x 1; other tiles by such a name too")
    deep = ("sm90_64x32_deep_2x2", "64 x 32, k-tiles of 256 bytes, in clusters of 2 x 2; other tiles too")
    alone = ("sm90_128x112_coop_2x1", "128 x 112 in clusters of 2 x 1, one tile a CTA; other tiles too")
    by_k = ("sm90_64x64_2x1x4", "64 x 64 in clusters of 2 x 1, four CTAs for K; other tiles too")
    return [
        *((recipe.name, recipe.summary) for recipe in SM90_PLANS),
        tile,
        deep,
        alone,
        by_k,
        packed,
    ]
