"""Simulation of a GEMV-like plan, whose warps, and the CTAs of a cluster, split K: see `SlicedSchedule`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from cutegemm.layout import Layout
from cutegemm.machine.arch import WARP_THREADS
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.program.sliced_schedule import sliced_schedule
from cutegemm.plan.program.thread_schedule import thread_schedule
from cutegemm.simulator.checks import check_tables
from cutegemm.simulator.copies import CtaGroup, OperandFlow
from cutegemm.simulator.mainloop import run_mainloop
from cutegemm.simulator.reductions import finish_all
from cutegemm.simulator.report import Report
from cutegemm.simulator.stores.tile_store import TileStore
from cutegemm.simulator.tables import PlanTables, plan_tables
from cutegemm.simulator.task import Task


def run_gemv(task: Task) -> tuple[int, int, int, int, int]:
    """Simulate every tile of a GEMV-like plan (small M), and return counts of the work.

    Each warp multiplies some of the k-tiles. The warps of a CTA, and the CTAs of a cluster, then add their
    accumulators. D and the auxiliary outputs are written to the task's simulated matrices.

    task      the plan, the simulated matrices and the collector of faults
    returns   (CTAs, k-tiles of a tile, multiply-adds, elements of A loaded, elements of B loaded)
    """
    plan, problem, matrices, report = task.plan, task.problem, task.matrices, task.report
    tables = plan_tables(plan)
    if task.checked:
        check_tables(plan, tables, report)
    schedule, ctas, k_tiles = thread_schedule(plan), plan.cluster_k, plan.k_tiles(problem)
    rows, bn, bk = plan.mma_tile
    added = _WarpReduction(plan, tables, report)
    store = TileStore(task, added.elements)
    k_first = problem.k - k_tiles * bk
    clusters = plan.work(problem).tiles.order()  # (clusters, CTAs, 3)
    done, total = 0, len(clusters) * ctas * max(1, k_tiles)
    loaded = [0, 0]

    def ticked() -> None:
        nonlocal done
        done += len(own)
        task.report_progress(min(1.0, done / total))

    for own in _batches(clusters, task.ctas_at_once):
        position, (m, n, batch) = np.arange(len(own)), own[:, 0].T
        group = CtaGroup(position, m // ctas, n, batch)
        ragged = ((group.m_tile + 1) * rows > problem.m) | ((n + 1) * bn > problem.n) | (k_first < 0)
        by_cta = []
        for rank in range(ctas):
            first, count = plan.k_range(rank, k_tiles)
            a, b = (
                OperandFlow(
                    t, matrices[name], group, tile * t.extent, ragged, k_first + first * bk, schedule, count,
                    report, task.checked,
                )
                for name, t, tile in (("a", tables.a, group.m_tile), ("b", tables.b, n))
            )  # fmt: skip
            by_cta.append(added.of_warps(run_mainloop(plan, tables, schedule, (a, b), count, report, ticked)))
            loaded = [have + flow.loaded_elems for have, flow in zip(loaded, (a, b), strict=True)]
        for rank in range(ctas):
            tile = CtaGroup(position, *own[:, rank].T)
            store.write(added.in_order([accumulators[rank] for accumulators in by_cta]), tile)
    finish_all(store.reduced)
    if task.checked:
        store.finish()
    task.report_progress(1.0)
    return len(clusters) * ctas, k_tiles, len(clusters) * k_tiles * rows * bn * bk, loaded[0], loaded[1]


def _batches(clusters: np.ndarray, together: int) -> Iterator[np.ndarray]:
    """Yield an array of clusters in slices of at most `together` entries, which are simulated as one array operation.

    clusters   array whose first axis is over the clusters
    """
    for first in range(0, len(clusters), together):
        yield clusters[first : first + together]


class _WarpReduction:
    """Simulates how the warps of a CTA, which split K (sliced-K), add their accumulators through shared memory.

    plan       plan whose warps split K
    tables     index tables of the plan
    report     collects faults
    elements   position in the CTA's tile of the elements whose totals each thread computes. Axes: MMA atoms of a thread
               along M, the same along N, registers of an atom, threads
    """

    def __init__(self, plan: GemmPlan, tables: PlanTables, report: Report) -> None:
        sliced_k = sliced_schedule(plan).sliced_k
        self.report, self.ctas, self.warps = report, plan.cluster_k, sliced_k.warps
        bm, bn, _ = plan.cta_tile
        rows, table = plan.mma_tile[0], sliced_k.added.offsets_c(Layout((bm, bn)))
        self.elements = np.ascontiguousarray(table.transpose(2, 3, 1, 0))
        self.places = sliced_k.by_warp.offsets().reshape(-1)  # by the index m + rows * n + rows * bn * warp
        self.of_warp, self.rows, self.bm = rows * bn, rows, bm
        warp = np.arange(tables.elements.shape[3]) // WARP_THREADS
        self.written = self.places[tables.elements + self.of_warp * warp].reshape(-1)

    def of_warps(self, accumulators: np.ndarray) -> list[np.ndarray]:
        """Add the accumulators of a CTA's warps, separately for each CTA of the cluster that stores some of the rows.

        accumulators   accumulators of one CTA, for the rows of all CTAs of its cluster. Axes: MMA atoms of a thread
                       along M, the same along N, registers of an atom in all threads of all clusters (the cluster
                       fastest)
        returns        for each CTA of the cluster, the sums for its rows: an array with the axes elements and clusters
        """
        clusters = accumulators.size // len(self.written)
        shared = np.full((int(self.places.max()) + 1, clusters), np.nan, accumulators.dtype)
        shared[self.written] = accumulators.reshape(-1, clusters)
        flat = self.elements.reshape(-1)
        out = []
        for rank in range(self.ctas):
            element = flat % self.bm + rank * self.bm + self.rows * (flat // self.bm)
            by_warp = [shared[self.places[element + self.of_warp * warp]] for warp in range(self.warps)]
            out.append(self.in_order(by_warp))
        return out

    def in_order(self, terms: list[np.ndarray]) -> np.ndarray:
        """Return the sum of arrays, added from the first to the last, as a thread of the kernel adds them.

        terms   one array of accumulators for each warp or CTA
        """
        total = terms[0].copy()
        for term in terms[1:]:
            total += term
        return total
