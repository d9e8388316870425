"""Bytes of A and B that the multiprocessors of a GPC ask L2 for, if as many reads as possible are joined.

Reads of one GPC that ask for the same lines at about the same time are joined on their way to L2; multicast reads are
not. When each read happens is not modelled. The raster and the order of the clusters decide which reads can be joined:
those of clusters of one GPC that have the same tile of an operand, unless the operand is multicast. CTAs that split K
read other k-tiles.

Clusters are assigned to the GPCs in rounds; see `plan.work.gpcs`. The model starts the rounds as after a grid that
fills the chip.

Measured: 1599 x 1216 x 2624 in bf16 by 5 x 13 clusters of 2 x 1, one wave, takes 24.4 us with raster bands that leave
0.77 of the bytes, and 22.0 us with bands that leave 0.69 (H100, 2026-11-23). See docs/raster.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from cutegemm.analysis.cache.pace import multicast, tpc_of_ctas
from cutegemm.analysis.edges import sharers_mn
from cutegemm.plan.work.gpcs import PAIR
from cutegemm.plan.work.grouped import with_equal_groups

if TYPE_CHECKING:
    from cutegemm.machine.device import Device
    from cutegemm.plan.plan import GemmPlan
    from cutegemm.plan.problem import Problem
    from cutegemm.tile.raster import Raster


@dataclass(frozen=True)
class GpcReads:
    """Tells how many bytes of A and B CTAs request, and how few L2 has to deliver if SMs share deliveries.

    A GPC is a group of SMs. If several SMs of a GPC request the same data at the same time, L2 may be read only once.

    asked   bytes of (A, B) that CTAs request; multicast bytes count once
    apart   bytes of (A, B) that are read from L2 if all equal requests of a GPC in one wave of CTAs are joined

    >>> GpcReads((300.0, 100.0), (100.0, 100.0)).share
    0.5
    """

    asked: tuple[float, float]
    apart: tuple[float, float]

    @property
    def share(self) -> float:
        """Least share of the requested bytes that L2 must deliver; at most 1.

        It assumes that each GPC (group of SMs) joins equal requests.
        """
        return sum(self.apart) / sum(self.asked) if sum(self.asked) else 1.0


def gpc_reads(plan: GemmPlan, problem: Problem, device: Device, raster: Raster | None = None) -> GpcReads | None:
    """Return the bytes of A and B that a persistent grid requests, in total and if SMs share what they load.

    A GPC is a group of SMs. The second number counts data once that several SMs of a GPC request at the same time.

    raster    tile order to use instead of the plan's; None: the plan's
    returns   None if the GPC of each CTA is not known: if the device has no `tpc_rounds`, if clusters have more than
              two CTAs, or if the grid is not persistent

    >>> from cutegemm.build import sm90_plan
    >>> from cutegemm.machine.device import device_named
    >>> from cutegemm.plan import Problem
    >>> from cutegemm.tile.raster import Raster
    >>> plan, h100 = sm90_plan(cluster=(2, 1)), device_named("h100")
    >>> orders = [plan.scheduler.raster, Raster("even_m", 16)]
    >>> [round(gpc_reads(plan, Problem(2048, 1024, 4096), h100, order).share, 2) for order in orders]
    [0.46, 1.0]
    """
    plan, problem = with_equal_groups(plan, problem)
    scheduler = plan.scheduler if raster is None else replace(plan.scheduler, raster=raster)
    cluster = plan.cluster_tile
    gpcs = _gpcs(device, cluster.size)
    if gpcs is None or not 0 < scheduler.resident(cluster) <= len(gpcs):
        return None
    work = scheduler.tiles(cluster, problem.m, problem.n, problem.l).along(problem.k)
    assignment, launched = work.assignment(), work.launched()
    grid, k_sharers, shared_by = plan.mma_grid(problem), sharers_mn(plan), multicast(plan)
    bits = plan.operands.a.dtype.bits, plan.operands.b.dtype.bits
    asked, apart = [0.0, 0.0], [0.0, 0.0]
    for operand, sharing in enumerate(shared_by):
        reads, counts = [], []
        for rank in range(cluster.size):
            if cluster.rank_mn(rank)[1 - operand] and k_sharers[1 - operand] == 1:
                continue  # another CTA of the cluster has the same tile
            *tile_mn, batch = assignment.tile_mnl(rank)
            tile = [coord // sharers for coord, sharers in zip(tile_mn, k_sharers, strict=True)]
            inside = (tile[0] < grid[0]) & (tile[1] < grid[1])
            k_first, k_count = cluster.k_range(rank, assignment.work_tile.k_count, np.minimum)
            # A multicast read is joined with no other one: each cluster counts as a GPC of its own.
            gpc = gpcs[launched[assignment.cluster]] if sharing == 1 else -1 - assignment.cluster
            columns = (gpc, assignment.turn, tile[operand], batch, assignment.work_tile.k_first + k_first)
            reads.append(np.stack(np.broadcast_arrays(*columns))[:, inside])
            counts.append(np.broadcast_to(k_count, inside.shape)[inside])
        k_tiles = np.concatenate(counts)
        _, first = np.unique(np.concatenate(reads, axis=1), axis=1, return_index=True)
        size = plan.loaded_tile[operand] * plan.loaded_tile[2] * bits[operand] / 8
        asked[operand], apart[operand] = size * float(k_tiles.sum()), size * float(k_tiles[first].sum())
    return GpcReads((asked[0], asked[1]), (apart[0], apart[1]))


def _gpcs(device: Device, cluster_size: int) -> np.ndarray | None:
    """Return the GPC (group of SMs) that runs each cluster, in the order of their assignment; None if it is not known.

    device         device, whose groups of SMs may be known
    cluster_size   number of CTAs of a cluster
    returns        integer array over the clusters that run at once
    """
    if not device.tpc_rounds or cluster_size > PAIR:
        return None
    return np.array(device.gpc_of_tpc)[tpc_of_ctas(device, cluster_size)[::cluster_size]]
