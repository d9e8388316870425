"""What a plan does besides multiplying tiles: the sums of the parts of a split K, and operands packed first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cutegemm.layout.inttuple import product
from cutegemm.machine.arch import WARP_THREADS, WARPGROUP_THREADS
from cutegemm.plan.memory.workspace import partials_layout, slot_layout

if TYPE_CHECKING:
    from cutegemm.layout import Layout
    from cutegemm.plan.plan import GemmPlan
    from cutegemm.plan.problem import Problem
    from cutegemm.plan.work.division import WorkTile
    from cutegemm.plan.work.scheduler import WorkGrid


@dataclass(frozen=True)
class Ends:
    """How often a CTA of the GEMM's grid comes to an end of its k-tiles, and does what.

    stores       D
    writes       the sums of a part to the workspace
    reads        those of another part out of it
    semaphores   which part it is that ended, a thread to shared memory
    asked        those, a warp out of it
    """

    stores: int
    writes: int = 0
    reads: int = 0
    semaphores: int = 0
    asked: int = 0


@dataclass(frozen=True)
class Pass:
    """Data that go through the workspace.

    name          "pack A", "pack B" or "sums"
    write_bytes   into it
    read_bytes    out of it, or for packing of the operand; the GEMM's own reads of a packed operand are not here
    is_before     a kernel before the GEMM moves them; else they are added up after a part, or behind the GEMM
    """

    name: str
    write_bytes: int
    read_bytes: int
    is_before: bool


def ends_of(plan: GemmPlan, problem: Problem) -> Ends:
    """The ends of the k-tiles of all CTAs.

    Of a tile in P parts, the CTAs of a plan with a pipeline hand on P - 1 and the last one stores D; those of
    another plan write all P, which the last CTA reads again where it adds them, and else a second kernel. Where the
    last one adds them, one thread increments the semaphore, and hands its value to all that share the tile.

    >>> from cutegemm.build import simt_plan
    >>> from cutegemm.plan import Problem
    >>> ends_of(simt_plan(split_k=4, reduction="last"), Problem(256, 256, 4096))
    Ends(stores=4, writes=16, reads=16, semaphores=16, asked=128)
    """
    tiles_m, tiles_n, batch = plan.grid(problem)
    tiles = tiles_m * tiles_n * batch
    if not plan.split.is_split:
        return Ends(tiles)
    splits = _parts(plan, problem)
    in_cluster = plan.scheduler.cluster_size
    units = sum(splits) * in_cluster
    if plan.body.has_roles:
        handed, semaphores = units - len(splits) * in_cluster, units * plan.body.readers
        return Ends(tiles, handed, handed, semaphores, semaphores * (WARPGROUP_THREADS // WARP_THREADS))
    if plan.split.reduction == "last":
        return Ends(tiles, units, units, units, units * (plan.threads // WARP_THREADS))
    return Ends(tiles - len(splits), units)


def _parts(plan: GemmPlan, problem: Problem) -> list[int]:
    """How many parts each tile has that has several; tiles counted in clusters."""
    found = plan.scheduler.of(problem).assignment().work_tile
    counts: list[int] = found.splits[(found.k_split == 0) & (found.splits > 1)].tolist()
    return counts


def k_ranges_of(work: WorkGrid, work_tile: WorkTile) -> tuple[np.ndarray, np.ndarray]:
    """Where in K work tiles begin and end, in arrays: K goes from 0 to 1. Parts that take every n-th k-tile are taken
    for such that take neighbours.

    >>> from cutegemm.build import simt_plan
    >>> from cutegemm.plan import Problem
    >>> work = simt_plan(split_k=2).scheduler.of(Problem(128, 256, 64))
    >>> [ends.tolist() for ends in k_ranges_of(work, work.assignment().work_tile)]
    [[0.0, 0.0, 0.5, 0.5], [0.5, 0.5, 1.0, 1.0]]
    """
    if work.scheduler.split.k_step > 1:
        return work_tile.k_split / work_tile.splits, (work_tile.k_split + 1) / work_tile.splits
    k_tiles = max(work.k_tiles, 1)
    return work_tile.k_first / k_tiles, (work_tile.k_first + work_tile.k_count) / k_tiles


def passes_of(plan: GemmPlan, problem: Problem) -> list[Pass]:
    """What goes through the workspace, in bytes of the whole problem.

    >>> from cutegemm.build import simt_plan
    >>> from cutegemm.plan import Operands, Problem
    >>> plan = simt_plan(Operands.of("f32"), repack="a", split_k=2)
    >>> for one in passes_of(plan, Problem(128, 128, 64)):
    ...     print(one)
    Pass(name='pack A', write_bytes=32768, read_bytes=32768, is_before=True)
    Pass(name='accumulators', write_bytes=131072, read_bytes=131072, is_before=False)
    """
    found = []
    for repack in plan.repacks:
        rows = problem.m if repack.name == "a" else problem.n
        element = getattr(plan.operands, repack.name).dtype.bits // 8
        name = f"pack {repack.name.upper()}"
        of_packed = product(repack.extents(rows, problem.k)) * problem.l * element
        found.append(Pass(name, of_packed, rows * problem.k * problem.l * element, True))
    written = ends_of(plan, problem).writes
    if written:
        bm, bn, _ = plan.cta_tile
        bytes_of_sums = written * bm * bn * plan.operands.acc.bits // 8
        found.append(Pass("accumulators", bytes_of_sums, bytes_of_sums, False))
    return found


def layout_of_partials(plan: GemmPlan) -> tuple[Layout, int]:
    """(vector, threads, vectors) -> place of a thread's sums, and how many consumers have such a part each."""
    if not plan.body.has_roles:
        return partials_layout(plan, 1), 1
    whole = slot_layout(plan, 1)
    return whole, whole.shape[3]
