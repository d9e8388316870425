"""Workspace traffic of a plan: accumulators of K splits, and operands of repack passes."""

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
    from cutegemm.plan.work.work import Work


@dataclass(frozen=True)
class Ends:
    """Counts stores of D, moves of accumulators and uses of semaphores at the end of work tiles, over the whole GEMM.

    A work tile is a tile of D, or one of the ranges of K (K splits) that several CTAs compute for a tile of D.

    stores       number of stores of a tile of D
    writes       number of writes of the accumulators of a K split to the workspace
    reads        number of reads of the accumulators of a K split from the workspace
    semaphores   number of increments of a semaphore, each followed by a write of its value to shared memory
    asked        number of times that a warp reads a semaphore's value from shared memory
    """

    stores: int
    writes: int = 0
    reads: int = 0
    semaphores: int = 0
    asked: int = 0


@dataclass(frozen=True)
class Pass:
    """Counts the bytes of one use of the workspace in global memory: a copied operand, or accumulators of K splits.

    name          "repack A", "repack B" (copies before the GEMM) or "accumulators"
    write_bytes   bytes written to the workspace
    read_bytes    bytes read from the workspace, or by a copy from the operand. Loads of the copied operand by the
                  GEMM are not included
    is_before     True for a copy before the GEMM; False for accumulators of K splits
    """

    name: str
    write_bytes: int
    read_bytes: int
    is_before: bool


def ends_of(plan: GemmPlan, problem: Problem) -> Ends:
    """Return how often CTAs store D, move accumulators of K splits and use semaphores at the end of work tiles.

    The CTAs that share a tile of S K splits act as follows. With warp roles, S - 1 CTAs write their accumulators, and
    the one that ends last adds them and stores D. Other plans write all S; the CTA that ends last reads them again if
    `reduction` is "last", else a second kernel does. To find the last one, a thread increments a semaphore and passes
    the value to all threads that share the tile.

    >>> from cutegemm.build import simt_plan
    >>> from cutegemm.plan import Problem
    >>> ends_of(simt_plan(split_k=4, reduction="last"), Problem(256, 256, 4096))
    Ends(stores=4, writes=16, reads=16, semaphores=16, asked=128)
    """
    tiles_m, tiles_n, batch = plan.grid(problem)
    tiles = tiles_m * tiles_n * batch
    if not plan.scheduler.split.is_split:
        return Ends(tiles)
    splits = _split_counts(plan, problem)
    in_cluster = plan.cluster_tile.size
    units = sum(splits) * in_cluster
    if plan.body.has_roles:
        written, semaphores = units - len(splits) * in_cluster, units * plan.body.readers
        return Ends(tiles, written, written, semaphores, semaphores * (WARPGROUP_THREADS // WARP_THREADS))
    if plan.scheduler.split.reduction == "last":
        return Ends(tiles, units, units, units, units * (plan.threads // WARP_THREADS))
    return Ends(tiles - len(splits), units)


def _split_counts(plan: GemmPlan, problem: Problem) -> list[int]:
    """Return the numbers of K splits of all tiles of D whose K is split, as a list without the tiles' indices.

    For example, [2, 3] means that one tile is computed in 2 ranges of K, another one in 3, and all others in one. A
    tile here is that of a whole cluster. Tiles are in no particular order.
    """
    work_tile = plan.work(problem).assignment().work_tile
    counts: list[int] = work_tile.splits[(work_tile.k_split == 0) & (work_tile.splits > 1)].tolist()
    return counts


def k_ranges_of(work: Work, work_tile: WorkTile) -> tuple[np.ndarray, np.ndarray]:
    """Return where work tiles start and end along K, as two arrays of shares of K between 0 and 1.

    If K splits take every n-th k-tile, the result treats them as contiguous ranges of the same length.

    work        tiles, and their division along K
    work_tile   the work tiles (tile and range of K), as arrays

    >>> from cutegemm.build import simt_plan
    >>> from cutegemm.plan import Problem
    >>> work = simt_plan(split_k=2).work(Problem(128, 256, 64))
    >>> [ends.tolist() for ends in k_ranges_of(work, work.assignment().work_tile)]
    [[0.0, 0.0, 0.5, 0.5], [0.5, 0.5, 1.0, 1.0]]
    """
    if work.scheduler.split.k_step > 1:
        return work_tile.k_split / work_tile.splits, (work_tile.k_split + 1) / work_tile.splits
    k_tiles = max(work.k_tiles, 1)
    return work_tile.k_first / k_tiles, (work_tile.k_first + work_tile.k_count) / k_tiles


def passes_of(plan: GemmPlan, problem: Problem) -> list[Pass]:
    """Return what one call writes to and reads from its workspace in global memory, as a `Pass` for each use.

    Uses are copies of A or B before the GEMM (repacking), and accumulators of K splits.

    >>> from cutegemm.build import simt_plan
    >>> from cutegemm.plan import Operands, Problem
    >>> plan = simt_plan(Operands.of("f32"), repack="a", split_k=2)
    >>> for one in passes_of(plan, Problem(128, 128, 64)):
    ...     print(one)
    Pass(name='repack A', write_bytes=32768, read_bytes=32768, is_before=True)
    Pass(name='accumulators', write_bytes=131072, read_bytes=131072, is_before=False)
    """
    passes = []
    for repack in plan.repacks:
        rows = problem.m if repack.name == "a" else problem.n
        element = getattr(plan.operands, repack.name).dtype.bits // 8
        name = f"repack {repack.name.upper()}"
        write_bytes = product(repack.extents(rows, problem.k)) * problem.l * element
        passes.append(Pass(name, write_bytes, rows * problem.k * problem.l * element, True))
    written = ends_of(plan, problem).writes
    if written:
        bm, bn, _ = plan.cta_tile
        partials_bytes = written * bm * bn * plan.operands.acc.bits // 8
        passes.append(Pass("accumulators", partials_bytes, partials_bytes, False))
    return passes


def layout_of_partials(plan: GemmPlan) -> tuple[Layout, int]:
    """Return how the accumulators of a K split are stored in the workspace: a layout, and the number of consumers.

    A consumer is a group of threads that multiplies a tile. The layout is that of one consumer: it maps (element of a
    vector, thread, vector) to an offset in elements.
    """
    if not plan.body.has_roles:
        return partials_layout(plan, 1), 1
    whole = slot_layout(plan, 1)
    return whole, whole.shape[3]
