"""Memory that a kernel needs besides its operands: packed operands, and the sums of the parts of a split "
"K."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cutegemm.layout import Layout

if TYPE_CHECKING:
    from cutegemm.plan.plan import GemmPlan
    from cutegemm.plan.problem import Problem

_UNIT_BYTES = 256
_ARRIVAL_BYTES = 4


@dataclass(frozen=True)
class Region:
    """A part of the workspace. Plain integers, or values that a kernel's host function computes with.

    name     "arrivals": a counter for each tile of D, zero at the start; "a", "b": packed operands; "sums"
    first    byte where it begins
    size     bytes
    """

    name: str
    first: Any
    size: Any


def regions(plan: GemmPlan, m: Any, n: Any, k: Any, l: Any) -> list[Region]:  # noqa: E741
    """The parts of a plan's workspace, in order; none where it needs no workspace.

    >>> from cutegemm.plan import Operands, simt_plan
    >>> plan = simt_plan(Operands.of("f32"), pack="a", split_k=2)
    >>> regions(plan, 100, 200, 64, 1)
    [Region(name='a', first=0, size=25600), Region(name='sums', first=25600, size=262144)]
    """
    ops, (bm, bn, _) = plan.operands, plan.cta_tile
    tiles = ((m + (bm - 1)) // bm) * ((n + (bn - 1)) // bn) * l
    sizes: list[tuple[str, Any]] = []
    if plan.split_k > 1 and plan.split.reduction == "last":
        sizes.append(("arrivals", tiles * _ARRIVAL_BYTES))
    for packing in plan.packs:
        rows = packing.extent(m if packing.name == "a" else n)
        sizes.append((packing.name, rows * k * l * (getattr(ops, packing.name).dtype.bits // 8)))
    if plan.split_k > 1:
        sizes.append(("sums", tiles * (plan.split_k * bm * bn * (ops.acc.bits // 8))))
    out, first = [], 0
    for name, size in sizes:
        rounded = (size + (_UNIT_BYTES - 1)) // _UNIT_BYTES * _UNIT_BYTES
        out.append(Region(name, first, rounded))
        first = first + rounded
    return out


def needs_workspace(plan: GemmPlan) -> bool:
    """Whether a plan's kernel takes a workspace."""
    return bool(plan.packs) or plan.split_k > 1


def workspace_bytes(plan: GemmPlan, problem: Problem) -> tuple[int, int]:
    """Bytes in all, and how many of the first must be zero.

    >>> from cutegemm.plan import Problem, simt_plan
    >>> workspace_bytes(simt_plan(split_k=4, reduction="last"), Problem(128, 128, 1024))
    (262400, 256)
    """
    found = regions(plan, problem.m, problem.n, problem.k, problem.l)
    zeroed = found[0].size if found and found[0].name == "arrivals" else 0
    return sum(region.size for region in found), zeroed


def sums_layout(plan: GemmPlan, tiles: Any) -> Layout:
    """Where the parts' sums lie: (vector, threads, vectors, tiles, parts), in elements.

    A thread writes its sums as the vectors that D is stored by, and neighbours lie side by side. `tiles` may
    be any number where only the first three modes are looked at.

    >>> from cutegemm.plan import simt_plan
    >>> str(sums_layout(simt_plan(split_k=2), 6))
    '(4,256,16,6,2):(1,4,1024,16384,98304)'
    """
    bm, bn, _ = plan.cta_tile
    vector, threads = plan.store_d.values, plan.threads
    tile = bm * bn
    shape = (vector, threads, tile // (vector * threads), tiles, plan.split_k)
    return Layout(shape, (1, vector, vector * threads, tile, tile * tiles))
