"""The corner of a large problem that is simulated in its place: as small as what the plan is about allows.

A small problem is no corner of a large one by itself: none of its tiles may be shared, its k-tiles may not fill the
stages once, and a CTA may have a single tile. So a corner has the same ragged edges, so many k-tiles that the stages
are refilled twice, and so many tiles, on so small a persistent grid, that whatever happens in the large problem
happens in it too; the least such is searched for. What still does not happen is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod

import numpy as np

from cutegemm.cli.inputs import Extents
from cutegemm.plan import GemmPlan, Problem

_MOST_TILES = 4  # of a cluster, along M and along N
_MOST_CLUSTERS = 3  # of a persistent grid
# As many k-tiles, in units of those that refill the stages twice: where K is split, a part has some of them.
_DEPTHS = (1.0, 1.25, 1.5, 2.0, 3.0, 4.0)
_SHALLOW = (1 / 16, 1 / 4, 1 / 2)  # where even those are too many


@dataclass(frozen=True)
class Corner:
    """What is simulated.

    plan           the plan, on a smaller persistent grid
    exercised      what the corner has in common with the problem, in words
    not_exercised  what happens in the problem, and not in the corner
    """

    plan: GemmPlan
    extents: Extents
    exercised: tuple[str, ...]
    not_exercised: tuple[str, ...]

    @property
    def ctas(self) -> int | None:
        """CTAs of a persistent grid, or None."""
        return self.plan.scheduler.persistent


def corner_of(plan: GemmPlan, problem: Problem, of: Extents, most: int) -> Corner | None:
    """The cheapest corner that has all that happens in a problem, or as much of it as it can have.

    problem  of these extents
    most     multiply-adds: a problem of no more is carried out whole, which is None; a corner has at most half of them,
             unless its least is more
    """
    if of.m * of.n * of.k * problem.l <= most:
        return None
    real = _Seen(plan, problem)
    wanted = [phrase for phrase in _HAPPENS if phrase.happens(real, real)]
    best: tuple[int, list[bool], _Seen] | None = None
    for seen in _candidates(plan, problem, most // 2):
        held = [phrase.happens(seen, real) for phrase in wanted]
        is_better = best is None or sum(held) > best[0]
        if is_better and not seen.plan.violations(problem=seen.problem):
            best = sum(held), held, seen
            if all(held):
                break
    assert best is not None
    _, held, seen = best
    missing = [phrase.text(real) for phrase, holds in zip(wanted, held, strict=True) if not holds]
    if real.has_bands and not seen.has_bands:  # not searched for: their tiles would be many
        missing.append(f"more than one band of the raster {plan.raster}")
    part = seen.problem
    return Corner(
        seen.plan,
        Extents(part.m, part.n, part.k, None if of.batch is None else part.l),
        tuple([phrase.text(seen) for phrase, holds in zip(wanted, held, strict=True) if holds]),
        tuple(missing),
    )


class _Seen:
    """What happens when a plan carries out a problem."""

    def __init__(self, plan: GemmPlan, problem: Problem) -> None:
        self.plan, self.problem = plan, problem
        self.work = plan.scheduler.of(problem)
        self.assignment = self.work.assignment()
        self.parts = np.asarray(self.assignment.work_tile.splits)

    @property
    def k_tiles(self) -> int:
        """The most that a CTA has of a work tile."""
        most = int(np.max(self.assignment.work_tile.k_count, initial=0))
        return int(self.plan.k_range(0, most)[1])

    @property
    def tiles_in_turn(self) -> int:
        """Work tiles of one CTA, or of one of its consumers that take them in turn, at most."""
        consumers = 1 if self.plan.pipeline is None else self.plan.pipeline.tiles_in_flight
        return int(np.max(np.bincount(self.assignment.cluster), initial=0)) // consumers

    @property
    def ragged(self) -> set[str]:
        """The modes along which there are whole tiles of a cluster, and a last one that is cut off."""
        extents = zip("MNK", self.problem_mnk, cluster_tile(self.plan), strict=True)
        return {mode for mode, extent, tile in extents if extent > tile and extent % tile}

    @property
    def problem_mnk(self) -> tuple[int, int, int]:
        """Its extents."""
        return self.problem.m, self.problem.n, self.problem.k

    @property
    def has_bands(self) -> bool:
        """Whether the raster goes through several bands of tiles."""
        tiles, raster = self.work.tiles, self.plan.raster
        extent = tiles.n_tiles if raster.kind.endswith("_n") else tiles.m_tiles
        across = raster.across(tiles.m_tiles, tiles.n_tiles)
        return across is not None and extent > across > 1


@dataclass(frozen=True)
class _Phrase:
    """Something that may happen.

    happens   in the first, where it does in the second, which is the problem itself
    text      how it is told
    """

    happens: Callable[[_Seen, _Seen], bool]
    text: Callable[[_Seen], str]


def _k_tiles(seen: _Seen) -> str:
    stages = seen.plan.stages
    return f"{seen.k_tiles} k-tiles" + (f" through {stages} stages" if stages > 1 else "")


_HAPPENS = (
    _Phrase(lambda seen, _: seen.k_tiles > 2 * max(1, seen.plan.stages), _k_tiles),
    _Phrase(
        lambda seen, _: seen.tiles_in_turn > 1,
        lambda seen: f"{seen.tiles_in_turn} work tiles of a {'CTA' if seen.plan.pipeline is None else 'consumer'}",
    ),
    _Phrase(
        lambda seen, _: bool((seen.parts > 1).any()),
        lambda seen: f"tiles in up to {int(seen.parts.max())} parts",
    ),
    _Phrase(
        lambda seen, _: seen.plan.split.is_split and bool((seen.parts == 1).any()),
        lambda seen: "whole tiles beside them",
    ),
    _Phrase(
        lambda seen, real: bool(real.ragged) and real.ragged <= seen.ragged,
        lambda seen: f"whole and ragged tiles along {', '.join(sorted(seen.ragged, key='MNK'.index))}",
    ),
    _Phrase(lambda seen, _: seen.problem.l > 1, lambda seen: "several batches"),
    _Phrase(
        lambda seen, _: int(seen.work.clusters) > 1,
        lambda seen: "several clusters" if seen.work.scheduler.cluster_size > 1 else "several CTAs",
    ),
)


def cluster_tile(plan: GemmPlan) -> tuple[int, int, int]:
    """(M, N, K) of what a cluster has in work at a time."""
    (bm, bn, bk), (cm, cn) = plan.cta_tile, plan.cluster_mn
    return bm * cm, bn * cn, bk


def _candidates(plan: GemmPlan, problem: Problem, most: int) -> Iterator[_Seen]:
    """Corners of at most so many multiply-adds, those of the fewest first; at least the least."""
    m, n, k = cluster_tile(plan)
    refilled = (2 * max(1, plan.stages) + 1) * plan.split.splits * plan.cluster_k
    tiles = range(1, _MOST_TILES + 1)

    def sizes(depths: Sequence[float]) -> list[tuple[int, int, int, int]]:
        found = product(
            {_cut(problem.m, m, count) for count in tiles},
            {_cut(problem.n, n, count) for count in tiles},
            {_cut(problem.k, k, max(1, int(refilled * depth))) for depth in depths},
            [min(2, problem.l)],
        )
        return sorted(found, key=lambda size: (prod(size), size))

    shallow = sizes(_SHALLOW)
    affordable = [size for each in (sizes(_DEPTHS), shallow) for size in each if prod(size) <= most]
    grids = [*_grids(plan)]
    for size in affordable or shallow[:1]:
        m, n, k, l = size  # noqa: E741
        part = replace(problem, m=m, n=n, k=k, l=l)
        yield from (_Seen(reduced, part) for reduced in grids)


def _cut(extent: int, tile: int, count: int) -> int:
    """So many tiles of an extent, the last of them as ragged as the extent's."""
    return min(extent, (count - 1) * tile + (extent % tile or tile))


def _grids(plan: GemmPlan) -> Iterator[GemmPlan]:
    """The plan on persistent grids of few clusters; as it is where its grid is not persistent."""
    scheduler = plan.scheduler
    if scheduler.persistent is None:
        yield plan
        return
    for clusters in range(1, _MOST_CLUSTERS + 1):
        ctas = clusters * scheduler.cluster_size
        if ctas <= scheduler.persistent:
            if plan.pipeline is None:
                yield plan.with_(persistent=ctas)
            else:
                yield plan.with_(pipeline=replace(plan.pipeline, ctas=ctas))
