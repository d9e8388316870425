"""Limits on the size of a problem: CTAs of a grid, and the 32-bit integers that kernels count with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from cutegemm.machine.arch import MAX_GRID_X
from cutegemm.plan.work.grouped import with_equal_groups

if TYPE_CHECKING:
    from cutegemm.plan.plan import GemmPlan
    from cutegemm.plan.problem import Problem

MOST_EXTENT = 2**31 - 1024  # largest extent of a matrix: the end of its last tile must fit 32 bits
_MOST = 2**31 - 1  # largest signed 32-bit integer


def limits(plan: GemmPlan, problem: Problem) -> Iterator[str]:
    """Yield a sentence for each extent of a problem that is too large for a plan's grid or for 32-bit integers.

    >>> from cutegemm.build import simt_plan
    >>> from cutegemm.plan import Operands, Problem
    >>> plan = simt_plan(Operands.of("f32", batched=True))
    >>> list(limits(plan, Problem(128, 128, 16, 2**31, plan.operands)))
    ['1 x 1 x 2147483648 tiles are more than the 2147483647 CTAs that a grid may have.']
    """
    (bm, bn, bk), (cm, cn) = plan.cta_tile, plan.cluster_mn
    work = plan.work(problem)
    clusters = work.tiles.count
    if clusters * cm * cn > MAX_GRID_X:
        batched, batch_of = with_equal_groups(plan, problem)
        m_tiles, n_tiles, batch = batched.grid(batch_of)
        of = "" if (cm, cn) == (1, 1) else f", in clusters of {cm} x {cn},"
        yield f"{m_tiles} x {n_tiles} x {batch} tiles{of} are more than the {MAX_GRID_X} CTAs that a grid may have."
    for name, extent, step in (
        ("M", problem.m, bm * cm),
        ("N", problem.n, bn * cn),
        ("K", problem.k, bk),
    ):
        if -(-extent // step) * step > _MOST:
            yield f"{name} = {extent}, rounded up to whole tiles, exceeds {_MOST}, the largest 32-bit integer."
    if problem.sources == 0:
        yield f"sources = 0, but TMA loads rows of {plan.operands.gathered.upper()} from at least one. D is 0 without."
    if problem.targets == 0:
        yield "targets = 0, but TMA adds rows to a D that has at least one. There is nothing to compute."
    of_packs = {
        p.name.upper(): p.ctas(problem.m if p.name == "a" else problem.n, problem.k, problem.l) for p in plan.repacks
    }
    if sum(of_packs.values()) > MAX_GRID_X:
        said = " and ".join(of_packs)
        yield (
            f"the repack pass of {said} takes {sum(of_packs.values())} CTAs, more than the {MAX_GRID_X} that a "
            "grid may have."
        )
    yield from plan.scheduler.limits(work)
