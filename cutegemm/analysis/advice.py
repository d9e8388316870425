"""Plans that the advice of an analysis names: plans of the same family with another tile, which violate no rule."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from cutegemm.analysis.edges import sharers_mn
from cutegemm.build.mma_sync import mma_sync_plan
from cutegemm.build.mma_sync_tma import mma_tma_plan
from cutegemm.build.simt import simt_plan
from cutegemm.build.sm90 import sm90_plan
from cutegemm.errors import CutegemmError
from cutegemm.plan.rules.limits import limits

if TYPE_CHECKING:
    from cutegemm.plan.plan import GemmPlan
    from cutegemm.plan.problem import Problem

_THREAD_TILES = ((8, 8), (16, 8), (8, 16), (8, 4), (4, 8), (4, 4))
_LANES = ((4, 8), (8, 4), (2, 16), (16, 2))
_WARP_TILES = ((64, 64), (64, 32), (32, 64), (32, 32), (16, 64), (64, 16), (16, 32), (32, 16))
_MOST_WARPS = 8


def with_tile(plan: GemmPlan, problem: Problem, tile_mn: tuple[int, int]) -> str | None:
    """Return the text that names a plan like the given one with another tile of D; None if every such plan is invalid.

    `plan_named` builds the plan from the text, such as "simt:block=64x128x16,warp=32x64,thread=8x8".

    problem   problem that the plan must be able to compute
    tile_mn   (M, N) of D that a CTA stores, or that the CTAs of a cluster store together if they split K

    >>> from cutegemm.build import simt_plan
    >>> from cutegemm.plan import Problem
    >>> with_tile(simt_plan(), Problem(64, 512, 256), (64, 128))
    'simt:block=64x128x16,warp=32x64,thread=8x8'
    >>> with_tile(simt_plan(), Problem(64, 512, 256), (72, 128)) is None
    True
    """
    for options, build in _candidates(plan, tile_mn):
        with suppress(CutegemmError):
            made = build(plan.operands, **options)
            if not made.violations(plan.arch, problem) and stored_together(made) == tile_mn:
                family = "mma_tma" if build is mma_tma_plan else plan.family
                shown = [
                    f"{key}={'x'.join(map(str, value)) if isinstance(value, tuple) else value}"
                    for key, value in options.items()
                ]
                return f"{family}:{','.join(shown)}"
    return None


def stored_together(plan: GemmPlan) -> tuple[int, int]:
    """Return (M, N), the size of the part of D that CTAs compute and store together.

    It is the tile of one CTA. If the CTAs of a cluster split K, each stores a part, and the result is the whole tile.

    >>> from cutegemm.build import sm90_plan
    >>> stored_together(sm90_plan(tile=(64, 64, 64), cluster_k=4))
    (64, 64)
    """
    (bm, bn), (down, across) = plan.d_tile, sharers_mn(plan)
    return bm * down, bn * across


def larger(plan: GemmPlan, problem: Problem) -> str | None:
    """Return the text that names a plan with a larger tile of D; None if every such plan is invalid.

    Tiles with 2 or 1.5 times the rows or columns are tried.
    """
    bm, bn = stored_together(plan)
    for tile in ((bm, 2 * bn), (2 * bm, bn), (bm, bn * 3 // 2), (bm * 3 // 2, bn)):
        text = with_tile(plan, problem, tile)
        if text is not None:
            return text
    return None


def can_schedule(plan: GemmPlan, problem: Problem, **changed: Any) -> bool:
    """Return True if a plan still satisfies all rules for a problem after fields of its tile scheduler are replaced.

    changed   fields of the scheduler and their new values, such as raster=Raster("along_m")

    >>> from cutegemm.build import simt_plan
    >>> from cutegemm.plan import Problem
    >>> from cutegemm.tile.raster import Raster
    >>> can_schedule(simt_plan(), Problem(512, 512, 512), raster=Raster("along_m"))
    True
    """
    with suppress(CutegemmError):
        made = plan.with_scheduler(**changed)
        return not [*made.violations(plan.arch, problem), *limits(made, problem)]
    return False


_Build = Callable[..., "GemmPlan"]


def _candidates(plan: GemmPlan, tile_mn: tuple[int, int]) -> Iterator[tuple[dict[str, Any], _Build]]:
    """Yield (options, builder) of the plans to try for a tile of D of `tile_mn`, the preferred ones first.

    plan      plan of the same family (SIMT, mma.sync or sm90) with another tile
    tile_mn   (M, N) of D
    returns   keyword arguments of the builder, and the builder: a function that returns the plan
    """
    bm, bn = tile_mn
    bk = plan.cta_tile[2]
    if plan.family == "sm90":
        kinds, (across, along) = (
            dict.fromkeys((plan.body.kind, "pingpong", "cooperative")),
            plan.cluster_mn,
        )
        if plan.cluster_k > 1:
            own = {"cluster": (across, 1), "consumers": plan.body.consumers, "cluster_k": plan.cluster_k}
            yield {"tile": (bm, bn, bk), "schedule": plan.body.kind, **own}, sm90_plan
        clusters = dict.fromkeys(((across, along // plan.cluster_k), (1, 1)))
        for kind, cluster in itertools.product(kinds, clusters):
            yield {"tile": (bm, bn, bk), "schedule": kind, "cluster": cluster}, sm90_plan
        return
    if plan.family == "mma_sync":
        build: _Build = mma_sync_plan if not plan.body.has_roles else mma_tma_plan
        for warp in _WARP_TILES:
            if _fits(tile_mn, warp):
                yield {"block": (bm, bn, bk), "warp": warp}, build
        return
    for thread, lanes in itertools.product(_THREAD_TILES, _LANES):
        warp = (thread[0] * lanes[0], thread[1] * lanes[1])
        if _fits(tile_mn, warp):
            yield {"block": (bm, bn, bk), "warp": warp, "thread": thread}, simt_plan


def _fits(tile: tuple[int, int], warp: tuple[int, int]) -> bool:
    """Return True if a CTA's tile of D can be divided evenly into the tiles of at most `_MOST_WARPS` warps.

    tile   (M, N) of the CTA's tile
    warp   (M, N) of the tile of one warp
    """
    if tile[0] % warp[0] or tile[1] % warp[1]:
        return False
    return tile[0] // warp[0] * (tile[1] // warp[1]) <= _MOST_WARPS
