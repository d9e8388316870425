"""The workspace of a launch: repacked operands, accumulators of K splits, and partial sums and maxima."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cutegemm.layout import Layout
from cutegemm.machine.arch import WARPGROUP_THREADS
from cutegemm.plan.memory.partials import partials_shape
from cutegemm.plan.reduction import ACCUMULATOR_VECTOR
from cutegemm.plan.work.arithmetic import INTEGERS, Arithmetic, ceil_div
from cutegemm.plan.work.work import Work

if TYPE_CHECKING:
    from cutegemm.plan.plan import GemmPlan
    from cutegemm.plan.problem import Problem

_UNIT_BYTES = 256
_ARRIVAL_BYTES = 4


@dataclass(frozen=True)
class Region:
    """A section of the workspace, the global memory that a launch needs in addition to its operands.

    name     what the section holds. "arrivals": semaphores that count K splits, one for each tile of D or for each
             consumer's rows of it, zero at the start. "a", "b": a repacked operand. "accumulators": those of K splits.
             "partials of NAME": partial results of the reduction NAME
    first    offset of the first byte. In a plan with warp roles the semaphores are memory of their own, so the next
             section starts at 0 again
    size     number of bytes. It and `first` are integers, or values that the kernel's host function computes
    """

    name: str
    first: Any
    size: Any


def regions(
    plan: GemmPlan,
    m: Any,
    n: Any,
    k: Any,
    l: Any,  # noqa: E741
    arithmetic: Arithmetic = INTEGERS,
) -> list[Region]:
    """Return the sections of a plan's workspace for a problem, in order; an empty list if it needs no workspace.

    m, n, k, l   extents of the problem; l is the batch
    arithmetic   minimum, maximum and division for integers, or for values that the kernel's host function computes

    >>> from cutegemm.build import simt_plan
    >>> from cutegemm.plan import Operands
    >>> plan = simt_plan(Operands.of("f32"), repack="a", split_k=2)
    >>> regions(plan, 100, 200, 64, 1)
    [Region(name='a', first=0, size=32768), Region(name='accumulators', first=32768, size=262144)]
    """
    ops, (bm, bn, _) = plan.operands, plan.cta_tile
    work = plan.scheduler.tiles(plan.cluster_tile, m, n, l, arithmetic).along(k)
    sizes: list[tuple[str, Any]] = []
    if plan.scheduler.split.is_split and plan.scheduler.split.reduction == "last":
        sizes.append(("arrivals", counters(plan, work) * _ARRIVAL_BYTES))
    for repack in plan.repacks:
        rows, columns = repack.extents(m if repack.name == "a" else n, k, arithmetic.maximum)
        sizes.append((repack.name, rows * columns * l * (getattr(ops, repack.name).dtype.bits // 8)))
    if plan.scheduler.split.is_split:
        sizes.append(("accumulators", work.slots * (plan.cluster_tile.size * bm * bn * (ops.acc.bits // 8))))
    sizes += [(region_of(name), size) for name, size in partials_bytes(plan, m, n, l).items()]
    out, first = [], 0
    for name, size in sizes:
        rounded = ceil_div(size, _UNIT_BYTES) * _UNIT_BYTES
        out.append(Region(name, first, rounded))
        if name != "arrivals" or not plan.body.has_roles:
            first = first + rounded
    return out


def partials_bytes(plan: GemmPlan, m: Any, n: Any, l: Any) -> dict[str, Any]:  # noqa: E741
    """Return the bytes of workspace for the partial results of each reduction: name of the result -> bytes.

    m, n, l   extents of A @ B and the batch
    """
    found, n = {}, n // 2 if plan.operands.gated else n
    for name, reduction in plan.epilogue.reductions:
        extent, partials, batch = partials_shape(plan, reduction.along, m, n, l)
        found[name] = extent * partials * batch * (plan.operands.matrix(name).dtype.bits // 8)
    return found


def repacked_bytes_of(parts: list[Region]) -> Any:
    """Return the bytes of workspace that repacked copies of A and B take together; 0 if neither is repacked.

    parts   sections of the workspace, as `regions` returns them
    """
    return sum([region.size for region in parts if region.name in ("a", "b")])


def region_of(reduction: str) -> str:
    """Return the name of the workspace section with a reduction's partial results, e.g. "partials of largest".

    reduction   name of the result in the epilogue
    """
    return f"partials of {reduction}"


def needs_workspace(plan: GemmPlan) -> bool:
    """Return whether a plan needs a workspace: it repacks an operand, splits K, or computes sums or maxima over D."""
    return bool(plan.repacks) or plan.scheduler.split.is_split or bool(plan.epilogue.reductions)


def workspace_bytes(plan: GemmPlan, problem: Problem) -> tuple[int, int]:
    """Return (bytes of the workspace of a launch, how many of its first bytes must be zero before the launch).

    problem   the problem, whose extents determine the size

    >>> from cutegemm.build import simt_plan
    >>> from cutegemm.plan import Problem
    >>> workspace_bytes(simt_plan(split_k=4, reduction="last"), Problem(128, 128, 1024))
    (262400, 256)
    """
    found = regions(plan, problem.m, problem.n, problem.k, problem.l)
    zeroed = found[0].size if found and found[0].name == "arrivals" else 0
    return sum(region.size for region in found), zeroed


def counters(plan: GemmPlan, work: Work) -> Any:
    """Return the number of semaphores that a plan with split K needs in global memory, to count finished K splits.

    There is one for each CTA's tile that is split, or one for each consumer's rows of it.

    work   work tiles of the problem
    """
    return work.shared * (plan.cluster_tile.size * _readers(plan))


def counter_of(plan: GemmPlan, tile: Any, rank: Any = 0, consumer: Any = 0) -> Any:
    """Return the index of the semaphore that counts the K splits of a consumer's rows of a tile.

    tile       index of the tile of D that the cluster computes, in the order of the raster
    rank       rank of the CTA in its cluster
    consumer   index of the consumer among the consumers that share the CTA's tile

    >>> from cutegemm.build import sm90_plan
    >>> plan = sm90_plan(tile=(128, 256, 64), schedule="cooperative", cluster=(2, 1), split_k=2)
    >>> [counter_of(plan, 3, rank, consumer) for rank in range(2) for consumer in range(2)]
    [12, 13, 14, 15]
    """
    return (tile * plan.cluster_tile.size + rank) * _readers(plan) + consumer


def _readers(plan: GemmPlan) -> int:
    return plan.body.readers


def partials_layout(plan: GemmPlan, slots: Any) -> Layout:
    """Return where accumulators of K splits are in the workspace, for a plan without warp roles, as a layout.

    It maps (element of a vector, thread, vector, slot) to an offset in elements. A slot holds the accumulators of one K
    split of a tile. A thread writes them in the vectors of its stores to D; vectors of neighbouring threads are
    adjacent.

    slots   number of slots

    >>> from cutegemm.build import simt_plan
    >>> str(partials_layout(simt_plan(split_k=2), 12))
    '(4,256,16,12):(1,4,1024,16384)'
    """
    bm, bn, _ = plan.cta_tile
    vector, threads = plan.store.atom.values, plan.threads
    tile = bm * bn
    return Layout((vector, threads, tile // (vector * threads), slots), (1, vector, vector * threads, tile))


def slot_layout(plan: GemmPlan, slots: Any) -> Layout:
    """Return where accumulators of K splits are in the workspace, for a plan with warp roles, as a layout.

    It maps (element of a vector, thread, vector, consumer, CTA, slot) to an offset in elements. The consumers are those
    that share a tile, the CTAs those of a cluster. A slot holds one K split's accumulators of a tile. A thread writes
    its accumulators in register order, 16 bytes at a time; vectors of neighbouring threads are adjacent.

    slots   number of slots

    >>> from cutegemm.build import sm90_plan
    >>> str(slot_layout(sm90_plan(tile=(128, 256, 64), schedule="cooperative", split_k=2), 6))
    '(4,128,32,2,1,6):(1,4,512,16384,32768,32768)'
    """
    threads, readers = WARPGROUP_THREADS, plan.body.readers
    bm, bn, _ = plan.cta_tile
    of_consumer = bm * bn // readers
    ctas = plan.cluster_tile.size
    shape = (ACCUMULATOR_VECTOR, threads, of_consumer // (ACCUMULATOR_VECTOR * threads), readers, ctas, slots)
    line = ACCUMULATOR_VECTOR * threads
    return Layout(shape, (1, ACCUMULATOR_VECTOR, line, of_consumer, bm * bn, bm * bn * ctas))
