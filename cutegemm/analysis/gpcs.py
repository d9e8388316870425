"""What the multiprocessors of a GPC read of A and B, one beside the other: the least that L2 can be asked for.

Reads of a GPC that ask for the same lines at about the same time are joined on their way to L2; those of a multicast
are not. Which reads meet is a matter of time. Which could, is a matter of the raster and of the clusters' order: of the
clusters of a GPC, those that have the same tile of an operand which their own CTAs do not share. CTAs of a cluster that
share K ask for other k-tiles each. Clusters are handed to the GPCs in rounds: see `plan.work.gpcs`. Here rounds
begin as behind a grid that fills the chip.

1599 x 1216 x 2624 of bf16 in 5 x 13 clusters of 2 x 1, one wave, took 24.4 us where bands of the raster left 0.77 of
what CTAs ask for, and 22.0 where they left 0.69 (one H100, 2026-11-23): see docs/raster.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from cutegemm.analysis.edges import sharers_mn
from cutegemm.analysis.pace import handed_pairs, multicast
from cutegemm.plan.work.gpcs import PAIR

if TYPE_CHECKING:
    from cutegemm.machine.device import Device
    from cutegemm.plan.plan import GemmPlan
    from cutegemm.plan.problem import Problem
    from cutegemm.tile.raster import Raster


@dataclass(frozen=True)
class GpcReads:
    """Bytes of A and of B.

    asked   that CTAs ask L2 for, (A, B); what is multicast once
    apart   of these, what is left if all reads of a GPC that can be joined in a wave are joined, (A, B)

    >>> GpcReads((300.0, 100.0), (100.0, 100.0)).share
    0.5
    """

    asked: tuple[float, float]
    apart: tuple[float, float]

    @property
    def share(self) -> float:
        """Of the bytes that CTAs ask for, the least share that reaches L2."""
        return sum(self.apart) / sum(self.asked) if sum(self.asked) else 1.0


def gpc_reads(plan: GemmPlan, problem: Problem, device: Device, raster: Raster | None = None) -> GpcReads | None:
    """What the CTAs of a persistent grid ask for, GPC by GPC.

    None where it is not known which GPC they run on: of a device whose `tpc_rounds` are not known, of clusters of more
    than two CTAs, and where each tile has a CTA of its own.

    raster   another order than the plan's

    >>> from cutegemm.build import sm90_plan
    >>> from cutegemm.machine.device import device_named
    >>> from cutegemm.plan import Problem
    >>> from cutegemm.tile.raster import Raster
    >>> plan, h100 = sm90_plan(cluster=(2, 1)), device_named("h100")
    >>> orders = [plan.raster, Raster("even_m", 16)]
    >>> [round(gpc_reads(plan, Problem(2048, 1024, 4096), h100, order).share, 2) for order in orders]
    [0.46, 1.0]
    """
    scheduler = plan.scheduler if raster is None else replace(plan.scheduler, raster=raster)
    gpcs = _gpcs(device, scheduler.cluster_size)
    if gpcs is None or scheduler.persistent_clusters is None or scheduler.persistent_clusters > len(gpcs):
        return None
    work = scheduler.of(problem)
    assignment, launched = work.assignment(), work.launched()
    grid, k_sharers, shared_by = plan.mma_grid(problem), sharers_mn(plan), multicast(plan)
    bits = plan.operands.a.dtype.bits, plan.operands.b.dtype.bits
    asked, apart = [0.0, 0.0], [0.0, 0.0]
    for operand, sharing in enumerate(shared_by):
        found, many = [], []
        for rank in range(scheduler.cluster_size):
            if scheduler.rank_mn(rank)[1 - operand] and k_sharers[1 - operand] == 1:
                continue  # another CTA of the cluster has the same tile
            *tile_mn, batch = assignment.tile_mnl(rank)
            tile = [of // sharers for of, sharers in zip(tile_mn, k_sharers, strict=True)]
            there = (tile[0] < grid[0]) & (tile[1] < grid[1])
            k_first, k_count = scheduler.cluster_k_range(rank, assignment.work_tile.k_count, np.minimum)
            where = gpcs[launched[assignment.cluster]] if sharing == 1 else -1 - assignment.cluster
            columns = (where, assignment.turn, tile[operand], batch, assignment.work_tile.k_first + k_first)
            found.append(np.stack(np.broadcast_arrays(*columns))[:, there])
            many.append(np.broadcast_to(k_count, there.shape)[there])
        k_tiles = np.concatenate(many)
        _, first = np.unique(np.concatenate(found, axis=1), axis=1, return_index=True)
        size = plan.loaded_tile[operand] * plan.loaded_tile[2] * bits[operand] / 8
        asked[operand], apart[operand] = size * float(k_tiles.sum()), size * float(k_tiles[first].sum())
    return GpcReads((asked[0], asked[1]), (apart[0], apart[1]))


def _gpcs(device: Device, cluster_size: int) -> np.ndarray | None:
    """The GPC of each cluster, in the order in which they are handed out."""
    if not device.tpc_rounds or cluster_size > PAIR:
        return None
    return np.array(device.gpc_of_tpc)[handed_pairs(device, cluster_size)[::cluster_size]]
