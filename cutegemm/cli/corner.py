"""Choose a corner: a smaller problem that is simulated in place of a large one and exercises the same plan features.

An arbitrary small problem would exercise too little: no tile may be split, the k-tiles may not fill the stages once,
and each CTA may have a single tile. A corner has the same ragged edges as the large problem. It has enough k-tiles to
refill the stages twice. Its persistent grid is small enough that CTAs process several tiles. The cheapest problem with
all features of the large one is searched for. Features that the corner lacks are reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod

import numpy as np

from cutegemm.cli.inputs import Extents
from cutegemm.plan import GemmPlan, Problem
from cutegemm.plan.work.grid import grid_of

_MOST_TILES = 4  # cluster tiles of a corner along M and along N
_MOST_CLUSTERS = 3  # clusters of the corner's persistent grid
# Depths in K to try, as multiples of the k-tiles that refill the stages of every K split twice.
_DEPTHS = (1.0, 1.25, 1.5, 2.0, 3.0, 4.0)
_SHALLOW = (1 / 16, 1 / 4, 1 / 2)  # tried only if all of _DEPTHS exceed the limit


@dataclass(frozen=True)
class Corner:
    """Describes a small GEMM that is simulated instead of a large one, because it tests the same cases in less time.

    Such cases (features) are, e.g., ragged tiles, or more k-tiles than pipeline stages.

    plan            the plan of the large problem, on a smaller persistent grid
    extents         M, N, K and the batch of the smaller problem
    exercised       descriptions of the features of the large problem that the smaller one has
    not_exercised   descriptions of the features that occur only in the large problem
    """

    plan: GemmPlan
    extents: Extents
    exercised: tuple[str, ...]
    not_exercised: tuple[str, ...]

    @property
    def ctas(self) -> int | None:
        """Number of CTAs of the persistent grid that is simulated for this smaller problem; None if not persistent."""
        return self.plan.scheduler.grid.ctas or None


def corner_of(plan: GemmPlan, problem: Problem, extents: Extents, most: int) -> Corner | None:
    """Return the cheapest smaller problem that can be simulated instead of a large one, or None if that is not needed.

    A feature is something that a kernel may get wrong, such as ragged tiles or several K splits. The smaller problem
    has all features of the large one. If no problem within the limit has them all, the result is the one with the most
    features.

    plan      plan of the large problem
    problem   the large problem, with A and B swapped if the plan swaps them
    extents   the extents of `problem`
    most      limit in multiply-adds. A problem within it is simulated whole, so the result is None. The smaller one has
              at most half as many, unless even the smallest candidate has more
    """
    if extents.m * extents.n * extents.k * problem.l <= most:
        return None
    real = _Execution(plan, problem)
    wanted = [feature for feature in _FEATURES if feature.occurs(real, real)]
    best: tuple[int, list[bool], _Execution] | None = None
    for candidate in _candidates(plan, problem, most // 2):
        occurring = [feature.occurs(candidate, real) for feature in wanted]
        is_better = best is None or sum(occurring) > best[0]
        if is_better and not candidate.plan.violations(problem=candidate.problem):
            best = sum(occurring), occurring, candidate
            if all(occurring):
                break
    assert best is not None
    _, occurring, corner = best
    missing = [feature.text(real) for feature, occurs in zip(wanted, occurring, strict=True) if not occurs]
    if real.has_bands and not corner.has_bands:  # not searched for: several bands need too many tiles
        missing.append(f"more than one band of the raster {plan.scheduler.raster}")
    part = corner.problem
    return Corner(
        corner.plan,
        Extents(part.m, part.n, part.k, None if extents.batch is None else part.l),
        tuple([feature.text(corner) for feature, occurs in zip(wanted, occurring, strict=True) if occurs]),
        tuple(missing),
    )


class _Execution:
    """Derives how a plan executes a GEMM: numbers of output tiles and K splits, and the work of each cluster of CTAs.

    The values of a large problem are compared with those of a small one. If both have the same features, e.g. ragged
    tiles, the small problem is simulated instead of the large one.
    """

    def __init__(self, plan: GemmPlan, problem: Problem) -> None:
        self.plan, self.problem = plan, problem
        self.work = plan.work(problem)
        self.assignment = self.work.assignment()
        self.splits = np.asarray(self.assignment.work_tile.splits)

    @property
    def k_tiles(self) -> int:
        """Largest number of k-tiles that one CTA multiplies for one work tile (an output tile, or a K split of it)."""
        most = int(np.max(self.assignment.work_tile.k_count, initial=0))
        return int(self.plan.k_range(0, most)[1])

    @property
    def successive_tiles(self) -> int:
        """Largest number of work tiles that one CTA (one consumer of a ping-pong plan) processes in succession."""
        consumers = self.plan.body.tiles_in_flight
        return int(np.max(np.bincount(self.assignment.cluster), initial=0)) // consumers

    @property
    def ragged(self) -> set[str]:
        """Modes ("M", "N", "K") along which this problem is at least one tile long and its last tile is partial.

        Tiles are those of a cluster of CTAs.
        """
        extents = zip("MNK", self.problem_mnk, cluster_tile(self.plan), strict=True)
        return {mode for mode, extent, tile in extents if extent > tile and extent % tile}

    @property
    def problem_mnk(self) -> tuple[int, int, int]:
        """Extents (M, N, K) of the GEMM that is executed."""
        return self.problem.m, self.problem.n, self.problem.k

    @property
    def has_bands(self) -> bool:
        """True if the tile order (raster) of this plan visits the output tiles in more than one band.

        A band is a group of neighbouring rows (or columns) of tiles, e.g. 8 rows for grouped_m:8; it is finished before
        the next one begins.
        """
        tiles, raster = self.work.tiles, self.plan.scheduler.raster
        extent = tiles.n_tiles if raster.kind.endswith("_n") else tiles.m_tiles
        across = raster.across(tiles.m_tiles, tiles.n_tiles)
        return across is not None and extent > across > 1


@dataclass(frozen=True)
class _Feature:
    """A feature of a GEMM's execution, such as ragged tiles, that a smaller problem should share with the large one.

    The smaller problem is simulated instead of the large one.

    occurs   function of two executions (how a plan executes the smaller problem, and the large one), in this order;
             True if the smaller problem has the feature
    text     function of one execution that returns the description to print, such as "several batches"
    """

    occurs: Callable[[_Execution, _Execution], bool]
    text: Callable[[_Execution], str]


def _k_tiles_text(execution: _Execution) -> str:
    """Describe how many k-tiles a CTA multiplies for one work tile, e.g. "12 k-tiles through 4 stages"."""
    stages = execution.plan.stages
    return f"{execution.k_tiles} k-tiles" + (f" through {stages} stages" if stages > 1 else "")


_FEATURES = (
    _Feature(lambda it, _: it.k_tiles > 2 * max(1, it.plan.stages), _k_tiles_text),
    _Feature(
        lambda it, _: it.successive_tiles > 1,
        lambda it: f"{it.successive_tiles} work tiles of a {'CTA' if not it.plan.body.has_roles else 'consumer'}",
    ),
    _Feature(
        lambda it, _: bool((it.splits > 1).any()),
        lambda it: f"tiles with up to {int(it.splits.max())} K splits",
    ),
    _Feature(
        lambda it, _: it.plan.scheduler.split.is_split and bool((it.splits == 1).any()),
        lambda it: "tiles that are not split",
    ),
    _Feature(
        lambda it, real: bool(real.ragged) and real.ragged <= it.ragged,
        lambda it: f"whole and ragged tiles along {', '.join(sorted(it.ragged, key='MNK'.index))}",
    ),
    _Feature(lambda it, _: it.problem.l > 1, lambda it: "several batches"),
    _Feature(
        lambda it, _: int(it.work.clusters) > 1,
        lambda it: "several clusters" if it.plan.cluster_tile.size > 1 else "several CTAs",
    ),
)


def cluster_tile(plan: GemmPlan) -> tuple[int, int, int]:
    """Return the tile (M, N, K) that a cluster of CTAs computes at a time, in elements; K is that of one k-tile."""
    (bm, bn, bk), (cm, cn) = plan.cta_tile, plan.cluster_mn
    return bm * cm, bn * cn, bk


def _candidates(plan: GemmPlan, problem: Problem, most: int) -> Iterator[_Execution]:
    """Yield smaller problems that could be simulated instead of a large one, cheapest (fewest multiply-adds) first.

    If the plan is persistent, each is yielded for grids of 1, 2 and 3 clusters.

    plan      the plan of the large problem
    problem   the large problem
    most      limit in multiply-adds. If every candidate has more, only the cheapest one is yielded
    """
    m, n, k = cluster_tile(plan)
    refilled = (2 * max(1, plan.stages) + 1) * plan.scheduler.split.splits * plan.cluster_k
    tiles = range(1, _MOST_TILES + 1)

    def sizes(depths: Sequence[float]) -> list[tuple[int, int, int, int]]:
        combinations = product(
            {_cut(problem.m, m, count) for count in tiles},
            {_cut(problem.n, n, count) for count in tiles},
            {_cut(problem.k, k, max(1, int(refilled * depth))) for depth in depths},
            [min(2, problem.l)],
        )
        return sorted(combinations, key=lambda size: (prod(size), size))

    shallow = sizes(_SHALLOW)
    affordable = [size for each in (sizes(_DEPTHS), shallow) for size in each if prod(size) <= most]
    grids = [*_grids(plan)]
    for size in affordable or shallow[:1]:
        m, n, k, l = size  # noqa: E741
        part = replace(problem, m=m, n=n, k=k, l=l)
        yield from (_Execution(reduced, part) for reduced in grids)


def _cut(extent: int, tile: int, count: int) -> int:
    """Return a smaller extent of `count` tiles whose last tile is as ragged as that of `extent`; at most `extent`.

    For example, 2 tiles of 128 for the extent 1000 are 128 + 104 = 232.

    tile   extent of a tile along the same mode
    """
    return min(extent, (count - 1) * tile + (extent % tile or tile))


def _grids(plan: GemmPlan) -> Iterator[GemmPlan]:
    """Yield variants of a plan on persistent grids of 1, 2 and 3 clusters; the plan itself if it is not persistent.

    Grids larger than the plan's own are left out.
    """
    if not plan.scheduler.grid.is_persistent:
        yield plan
        return
    for clusters in range(1, _MOST_CLUSTERS + 1):
        ctas = clusters * plan.cluster_tile.size
        if ctas <= plan.scheduler.grid.ctas:
            yield plan.with_scheduler(grid=grid_of(ctas))
