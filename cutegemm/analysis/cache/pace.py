"""Time that CTAs take for a tile, for the simulation of the L2 cache.

CTAs whose MMAs never wait take the same time, up to random deviations. In a persistent grid whose k-tiles arrive more
slowly than the MMAs consume them, the times differ. The multiprocessors of a CPC, which has three pairs of them (TPCs)
or two if one is disabled, share a port to L2. CTAs in a CPC of two TPCs are faster, so tiles that start together are
read at different times. The random deviations are larger, too, and a CTA whose data come from DRAM is slower than a CTA
that finds its data in L2.

Source: the start of every quarter of every tile of 19 plans, in three launches each (H200, 2026-11-20). 24 of the 132
multiprocessors, always those of 12 certain TPCs, were faster; probably they are six CPCs of two TPCs. For tiles of 128
x 128 in bf16 with 32 KiB per k-tile they took 0.76 to 0.84 of the others' time in nine of eleven plans, and 0.87 to
0.93 in two; with 24 KiB for the same work 0.91 to 1; with 16 KiB 1. This gives the rate of the port,
`Measured.cpc_bytes_per_clock`. `FED_JITTER` and `WAIT` are fitted to the DRAM bytes of eleven of these plans, and
`JITTER` to the DRAM bytes of five SIMT plans; see docs/measured/counters.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cutegemm.machine.device import CPC_SMS_OF_THREE, CPC_SMS_OF_TWO
from cutegemm.plan.work.arithmetic import ARRAYS
from cutegemm.tile.tma import TmaBox

if TYPE_CHECKING:
    from cutegemm.machine.device import Device
    from cutegemm.plan.plan import GemmPlan

JITTER = 0.009  # relative standard deviation of the time of a tile, if no MMA waits for k-tiles
FED_JITTER = 0.09  # relative standard deviation of the time of a tile, if MMAs wait
WAIT = 0.1  # relative increase of the time of a tile if all that it reads comes from DRAM, and MMAs wait


@dataclass(frozen=True)
class Pace:
    """Tells how long clusters of CTAs take for a tile, and how much that varies, as the input of a simulation of L2.

    time     time of each cluster for a tile, relative to the time of the MMAs alone; array over the clusters
    jitter   relative standard deviation of a tile's time
    wait     relative increase of a tile's time if all that it reads comes from DRAM
    """

    time: np.ndarray
    jitter: float = 0.0
    wait: float = 0.0


def multicast(plan: GemmPlan) -> tuple[int, int]:
    """Return the number of CTAs that receive each byte of A, and of B, from one load; (1, 1) without multicast.

    >>> from cutegemm.build import sm90_plan
    >>> multicast(sm90_plan(cluster=(2, 1)))
    (1, 2)
    """
    share_a, share_b = (load.multicast if isinstance(load, TmaBox) else 1 for load in (plan.a.load, plan.b.load))
    return share_a, share_b


def demand(plan: GemmPlan, device: Device) -> float:
    """Return the bytes of A and B per clock that a multiprocessor must load from L2 so that its MMAs do not wait.

    The result is 0 if the peak rate of the MMA is not known.

    >>> from cutegemm.machine.device import device_named
    >>> from cutegemm.build import sm90_plan
    >>> from cutegemm.plan import Operands
    >>> h200, bf16 = device_named("h200"), Operands.of("bf16", layout="nt")
    >>> [round(demand(sm90_plan(bf16, **options), h200)) for options in ({}, {"cluster": (2, 1)})]
    [59, 44]
    """
    peak = device.peak_tflops(plan.tiled_mma.atom)
    if peak is None:
        return 0.0
    (bm, bn, _), (share_a, share_b), ops = plan.mma_tile, multicast(plan), plan.operands
    columns = plan.loaded_tile[1]
    bytes_per_k = (bm * ops.a.dtype.bits / share_a + columns * ops.b.dtype.bits / share_b) / 8
    flops_per_clock = peak * 1e6 / (device.sms * device.clock_mhz)
    return bytes_per_k * flops_per_clock / (2 * bm * bn)


def pace_of(plan: GemmPlan, device: Device, units: int) -> Pace:
    """Return how long each of the clusters that run at once takes for a tile, relative to the time of the MMAs.

    Clusters differ because multiprocessors share their ports to L2. The result is an input of a simulation of L2.

    units   number of clusters that run at once on the device
    """
    port = device.measured.cpc_bytes_per_clock
    time = np.maximum(1.0, _sharing(plan, device, units) * demand(plan, device) / port)
    if plan.scheduler.grid.is_persistent and time.max() > 1:
        return Pace(time, FED_JITTER, WAIT)
    return Pace(np.ones(units), JITTER)


def tpc_of_ctas(device: Device, in_cluster: int) -> np.ndarray:
    """Return the TPC (pair of multiprocessors) that receives each CTA of a grid that fills the device once.

    in_cluster   number of CTAs of a cluster
    returns      integer array over the CTAs in the order of the grid: index of the TPC

    >>> from cutegemm.machine.device import device_named
    >>> [tpc_of_ctas(device_named("h100"), size)[10:14].tolist() for size in (1, 2)]
    [[10, 11, 0, 1], [5, 5, 6, 6]]
    """
    if in_cluster > 1:  # a TPC receives two CTAs of a cluster together
        return np.arange(device.sms) // 2
    # Each TPC of a round receives one CTA, then each a second one.
    ends = np.cumsum(device.tpc_rounds or (device.sms // 2,))
    rounds = np.split(np.arange(ends[-1]), ends[:-1])
    return np.concatenate([np.tile(tpcs, 2) for tpcs in rounds])


def _sharing(plan: GemmPlan, device: Device, units: int) -> np.ndarray:
    """Return an array with an entry for each cluster: the number of multiprocessors that share its port to L2.

    units   number of clusters that run at once
    """
    in_cluster, order = plan.cluster_tile.size, plan.scheduler.order
    pairs = tpc_of_ctas(device, in_cluster)
    is_small_cpc = np.isin(pairs, device.tpcs_of_two)
    first = np.arange(units) * in_cluster % len(pairs)
    sharing = np.where(is_small_cpc, CPC_SMS_OF_TWO, CPC_SMS_OF_THREE)[first]
    by_place = np.empty_like(sharing)
    by_place[order.place(np.arange(units), order.ends(units), ARRAYS)] = sharing
    return by_place
