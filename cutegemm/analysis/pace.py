"""How long CTAs take for their tiles, and which of them go ahead.

A CTA whose MMA never waits takes as long as the others, but for chance. One of a persistent grid whose k-tiles come
more slowly than its MMA takes them does not: the multiprocessors of a CPC, three pairs of them (TPCs) or two where one
is switched off, share a port. Those of a CPC of two go ahead of the others for good, so that tiles which began
together are read at other times. There chance is greater too, and a CTA for which DRAM must bring what it reads falls
back behind those that find it in L2.

Source: the beginning of every quarter of every tile of 19 plans, in three launches each on an H200 (2026-11-20). Of its
132 multiprocessors the same 24, twelve TPCs, always went ahead; that six CPCs of two TPCs are the reason is inferred.
They took 0.76 to 0.84 of the others' time for tiles of 128 x 128 of bf16, 32 KiB a k-tile, in nine of eleven plans, and
0.87 to 0.93 in two; 0.91 to 1 where it is 24 KiB for as much work; 1 where it is 16 KiB. From that follows the port's
rate, `Measured.cpc_bytes_per_clock`. `FED_JITTER` and `WAIT` are fitted to the DRAM bytes of eleven of these plans,
`JITTER` to those of five SIMT plans: see docs/measured/counters.md.
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

JITTER = 0.009  # by which the times of tiles differ at random, where no MMA waits for k-tiles
FED_JITTER = 0.09  # where it does
WAIT = 0.1  # how much longer that takes, if all that a tile reads comes from DRAM


@dataclass(frozen=True)
class Pace:
    """Of the units, clusters of CTAs, that run at once.

    time     of each for a tile
    jitter   of a tile's time, at random
    wait     of a tile's time, if all that it reads came from DRAM
    """

    time: np.ndarray
    jitter: float = 0.0
    wait: float = 0.0


def multicast(plan: GemmPlan) -> tuple[int, int]:
    """How many CTAs each byte of A, and of B, is read for at once."""
    share_a, share_b = (load.multicast if isinstance(load, TmaBox) else 1 for load in (plan.load_a, plan.load_b))
    return share_a, share_b


def demand(plan: GemmPlan, device: Device) -> float:
    """Bytes of A and B a clock that a multiprocessor asks L2 for while its MMA does not wait.

    >>> from cutegemm.machine.device import device_named
    >>> from cutegemm.build import sm90_plan
    >>> from cutegemm.plan import Operands
    >>> h200, bf16 = device_named("h200"), Operands.of("bf16", layout="nt")
    >>> [round(demand(sm90_plan(bf16, **given), h200)) for given in ({}, {"cluster": (2, 1)})]
    [59, 44]
    """
    peak = device.peak_tflops(plan.tiled_mma.atom)
    if peak is None:
        return 0.0
    (bm, bn, _), (share_a, share_b), ops = plan.mma_tile, multicast(plan), plan.operands
    columns = plan.loaded_tile[1]
    of_k = (bm * ops.a.dtype.bits / share_a + columns * ops.b.dtype.bits / share_b) / 8
    flops_per_clock = peak * 1e6 / (device.sms * device.clock_mhz)
    return of_k * flops_per_clock / (2 * bm * bn)


def pace_of(plan: GemmPlan, device: Device, units: int) -> Pace:
    """The pace of a plan's units, in times that the MMA takes: of clusters by their place, see `WorkGrid.place`."""
    persistent = plan.pipeline is not None and plan.pipeline.ctas is not None
    port = device.measured.cpc_bytes_per_clock
    time = np.maximum(1.0, _sharing(plan, device, units) * demand(plan, device) / port)
    if persistent and time.max() > 1:
        return Pace(time, FED_JITTER, WAIT)
    return Pace(np.ones(units), JITTER)


def handed_pairs(device: Device, in_cluster: int) -> np.ndarray:
    """The pair of multiprocessors (TPC) that each CTA is handed to, in the order of the grid.

    in_cluster   CTAs of a cluster

    >>> from cutegemm.machine.device import device_named
    >>> [handed_pairs(device_named("h100"), size)[10:14].tolist() for size in (1, 2)]
    [[10, 11, 0, 1], [5, 5, 6, 6]]
    """
    if in_cluster > 1:  # each TPC is given a pair of CTAs
        return np.arange(device.sms) // 2
    # Each TPC of a round is given one CTA, then each one more
    ends = np.cumsum(device.tpc_rounds or (device.sms // 2,))
    rounds = np.split(np.arange(ends[-1]), ends[:-1])
    return np.concatenate([np.tile(tpcs, 2) for tpcs in rounds])


def _sharing(plan: GemmPlan, device: Device, units: int) -> np.ndarray:
    """Multiprocessors that share a port with each unit's."""
    in_cluster, gpc_raster = plan.scheduler.cluster_size, plan.scheduler.gpc_raster
    pairs = handed_pairs(device, in_cluster)
    of_two = np.isin(pairs, device.tpcs_of_two)
    first = np.arange(units) * in_cluster % len(pairs)
    sharing = np.where(of_two, CPC_SMS_OF_TWO, CPC_SMS_OF_THREE)[first]
    if gpc_raster is None:
        return sharing
    by_place = np.empty_like(sharing)
    by_place[gpc_raster.place(np.arange(units), gpc_raster.ends(units), ARRAYS)] = sharing
    return by_place
