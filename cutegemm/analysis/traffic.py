"""Traffic through L2 and DRAM under a raster: which tiles are resident together, and what comes from where.

In step. CTAs run in waves, in the order of the raster, and all CTAs of a wave go through K together. So a
row of A's tiles (a panel, bM x K) or of B's is fetched from DRAM once for a wave, at most, however many CTAs
read it. It is fetched again in a later wave unless it is still in L2: L2 keeps what was used last, and D
passes through it too. The distance between two uses of a panel's part at depth x = k / K is what was
touched between them: whole panels in the waves between, the part beyond x of the earlier wave's, the part
before x of the later one's. A part is a hit where that fits the cache. A line that multiprocessors on both
sides read is kept in each partition of the L2, so that the capacity that counts is that of one partition.
That is a formula, which ranks rasters quickly: `traffic`.

In time. Real CTAs fall out of step, and a panel that few of them read is kept once; `analysis.l2` plays that,
and `traffic_in_time` is what is held against counters.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from cutegemm.analysis import l2
from cutegemm.analysis.accesses import read_always
from cutegemm.analysis.edges import grid_of_loads, sharers_mn
from cutegemm.analysis.pace import JITTER, Pace, multicast, pace_of
from cutegemm.analysis.split_k import k_ranges_of
from cutegemm.layout.inttuple import product
from cutegemm.machine.arch import SECTOR_BYTES
from cutegemm.plan.memory.workspace import partials_bytes
from cutegemm.tile.raster import Raster

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cutegemm.machine.device import Device
    from cutegemm.plan.plan import GemmPlan
    from cutegemm.plan.problem import Problem

GROUPS = (1, 2, 4, 8, 16, 32, 64)
_LESS, _MORE = 0.75, 1.15  # of the L2 cache: how much of it may be had for A and B
_BELOW, _ABOVE = 0.05, 0.07  # by which the range is wider than what was played
_ALIKE = 0.005
_PIECES_OF_RANGE = 8  # of K, in which the grid is played again
_MOST_PLAYED = 1 << 14  # work tiles of a grid that is played more often than twice
_READ_OF_TORN = 0.4  # of a D whose sectors are filled in parts, at most, is read before it is written


@dataclass(frozen=True)
class Traffic:
    """Bytes of one GEMM.

    raster                the order of the tiles
    waves                 of CTAs
    resident_mn           tiles of A and of B that an average wave needs, as many as differ
    wave_bytes            of A and B that an average wave needs, each once
    l2_read_bytes         of A and B that the CTAs ask L2 for; what is multicast once
    sm_read_bytes         of A and B that arrive in multiprocessors
    dram_read_bytes       of A and B that come from DRAM
    dram_write_bytes      of D, and of what is stored beside it: other results, partial results of sums and maxima
    min_bytes             of A and B, each once
    far_bytes             of A and B, and of sums, that pass from one partition of the L2 to another; None where CTAs
                          are taken to keep step
    epilogue_bytes        of the epilogue's operands that come from DRAM: each once
    partials_read_bytes   of the sums of parts of K that the GEMM's CTAs read again and that come from DRAM; None there
                          too
    dram_range            between which `dram_read_bytes` lies where launches differ: see `range_in_time`; None there
                          too
    """

    raster: str
    waves: int
    resident_mn: tuple[float, float]
    wave_bytes: float
    l2_read_bytes: int
    sm_read_bytes: int
    dram_read_bytes: float
    dram_write_bytes: int
    min_bytes: int
    epilogue_bytes: int = 0
    far_bytes: float | None = None
    partials_read_bytes: float | None = None
    dram_range: tuple[float, float] | None = None

    @property
    def hit_share(self) -> float:
        """The part of the bytes that L2 is asked for which it holds already."""
        return 1 - self.dram_read_bytes / self.l2_read_bytes if self.l2_read_bytes else 1.0


def traffic(
    plan: GemmPlan, problem: Problem, *, ctas_per_wave: int, l2_bytes: int, raster: Raster | None = None
) -> Traffic:
    """What a plan moves for a problem where CTAs keep step.

    ctas_per_wave   that run together
    l2_bytes        that a panel may be kept in
    raster          another order than the plan's
    """
    order = raster or plan.raster
    bm, bn, _ = plan.mma_tile
    grid_m, grid_n, batch = plan.mma_grid(problem)
    ops = problem.operands
    bytes_a = problem.k * ops.a.dtype.bits / 8 * _extents(problem.m, bm, grid_m)
    bytes_b = problem.k * ops.b.dtype.bits / 8 * _extents(problem.n, bn, grid_n, plan.loaded_tile[1])
    share_a, share_b = multicast(plan)
    tiles_per_wave = max(1, ctas_per_wave // plan.split_k)  # the parts of a tile take all of its K together
    dram, waves, panels_m, panels_n = 0.0, 0, [], []
    tile_d = product(plan.d_tile) * _epilogue_bits(plan, problem) / 8
    for _ in range(batch):  # one after the other, with nothing in common
        at = replace(plan.scheduler, raster=order).tiles(problem.m, problem.n).order().reshape(-1, 3)[:, :2]
        at = at // sharers_mn(plan)  # panels that each CTA reads: those that share K, parts of the same ones
        tiles = at[(at < (grid_m, grid_n)).all(axis=1)]
        found = _simulate(tiles, bytes_a, bytes_b, tile_d, tiles_per_wave, l2_bytes)
        dram += found[0]
        waves += len(found[1])
        panels_m += found[1]
        panels_n += found[2]
    loads_m, loads_n, _ = grid_of_loads(plan, problem)
    of_a, of_b = [
        float(panels[np.minimum(np.arange(loads), len(panels) - 1)].sum()) if len(panels) else 0.0
        for panels, loads in ((bytes_a, loads_m), (bytes_b, loads_n))
    ]
    asked = batch * (loads_n / share_a * of_a + loads_m / share_b * of_b)
    arrived = batch * (loads_n * of_a + loads_m * of_b)
    mean_m, mean_n = (float(np.mean(p)) if p else 0.0 for p in (panels_m, panels_n))
    partials = sum(partials_bytes(plan, problem.m, problem.n, problem.l).values())
    per_wave = mean_m * (bytes_a.mean() if grid_m else 0.0) + mean_n * (bytes_b.mean() if grid_n else 0.0)
    return Traffic(
        str(order), waves, (mean_m, mean_n), float(per_wave), int(asked), int(arrived), float(dram),
        sum(problem.bytes_of(name) for name in plan.epilogue.outputs) + partials,
        int(batch * (bytes_a.sum() + bytes_b.sum())),
        sum(problem.bytes_of(name) for name in read_always(plan)),
    )  # fmt: skip


def traffic_in_time(
    plan: GemmPlan, problem: Problem, device: Device, *, ctas_per_wave: int, raster: Raster | None = None
) -> Traffic:
    """What a plan moves for a problem on a device, CTAs falling out of step as they do.

    ctas_per_wave   that run together
    raster          another order than the plan's
    """
    order = raster or plan.raster
    found = traffic(
        plan, problem, ctas_per_wave=ctas_per_wave, l2_bytes=device.l2_bytes // device.l2_partitions,
        raster=order,
    )  # fmt: skip
    running = max(1, ctas_per_wave // plan.scheduler.cluster_size)
    moved = l2.play(
        work_of(plan, problem, order), pace_of(plan, device, running), device.l2_bytes, device.l2_partitions
    )
    return replace(
        found, dram_read_bytes=moved.dram_bytes, far_bytes=moved.far_bytes, partials_read_bytes=moved.partials_bytes_
    )


def range_in_time(plan: GemmPlan, problem: Problem, device: Device, found: Traffic, ctas_per_wave: int) -> Traffic:
    """The same with the range in which the bytes of a launch are to be expected.

    The grid is played again: with three quarters of L2, and where that changes anything with a little more of it and
    with CTAs that keep step. Where D leaves in parts of sectors, L2 may read them first.

    found   by `traffic_in_time`
    """
    running = max(1, ctas_per_wave // plan.scheduler.cluster_size)
    work, pace = work_of(plan, problem, plan.raster), pace_of(plan, device, running)

    def played(share: float, at: Pace) -> float:
        size = int(share * device.l2_bytes)
        return l2.play(work, at, size, device.l2_partitions, pieces=_PIECES_OF_RANGE).dram_bytes

    seen = [found.dram_read_bytes, played(_LESS, pace)]
    if max(seen) - min(seen) > _ALIKE * max(seen) and len(work.tiles) <= _MOST_PLAYED:
        in_step = Pace(np.ones(running), pace.jitter and JITTER)
        seen += [played(_MORE, pace), played(1.0, in_step), played(_LESS, in_step)]
    accumulators, torn = found.partials_read_bytes or 0.0, _torn_bytes(plan, problem)
    low, high = (1 - _BELOW) * min(seen), (1 + _ABOVE) * max(seen) + _READ_OF_TORN * torn
    return replace(found, dram_range=(low + accumulators, high + accumulators))


def _torn_bytes(plan: GemmPlan, problem: Problem) -> int:
    """Of results that threads store straight out of registers in rows that begin within a sector."""
    if plan.smem_d is not None:
        return 0
    torn = [
        name for name in plan.epilogue.outputs
        if any(s != 1 and e > 1 and s * plan.operands.matrix(name).dtype.bits % (8 * SECTOR_BYTES)
               for e, s in zip(problem.layout(name).shape[:2], problem.layout(name).stride[:2], strict=True))
    ]  # fmt: skip
    return sum(problem.bytes_of(name) for name in torn)


def work_of(plan: GemmPlan, problem: Problem, raster: Raster) -> l2.Work:
    """What the work tiles of a plan touch."""
    (bm, bn, _), (across, along), ops = plan.mma_tile, plan.cluster_mn, problem.operands
    grid_m, grid_n, batch = plan.mma_grid(problem)
    down, right = sharers_mn(plan)
    bytes_a = problem.k * ops.a.dtype.bits / 8 * _extents(problem.m, bm, grid_m)
    bytes_b = problem.k * ops.b.dtype.bits / 8 * _extents(problem.n, bn, grid_n, plan.loaded_tile[1])
    work = replace(plan.scheduler, raster=raster).of(problem)
    at, assignment = work.tiles.order(), work.assignment()
    k_first, k_last = k_ranges_of(work, assignment.work_tile)
    ctas = across * along
    return l2.Work(  # a ragged grid's last cluster reaches past it, to the last panel once more
        assignment.cluster,
        assignment.work_tile.tile,
        k_first,
        k_last,
        at[:, :1, 2] * grid_m + np.minimum(at[:, :across:down, 0] // down, grid_m - 1),
        at[:, :1, 2] * grid_n + np.minimum(at[:, :: across * right, 1] // right, grid_n - 1),
        np.tile(bytes_a, batch),
        np.tile(bytes_b, batch),
        ctas * product(plan.d_tile) * _epilogue_bits(plan, problem) / 8,
        ctas * product(plan.cta_tile[:2]) * ops.acc.bits / 8,
        all_write=not plan.body.has_roles,
        last_adds=plan.body.has_roles or plan.split.reduction == "last",
    )


def _epilogue_bits(plan: GemmPlan, problem: Problem) -> int:
    """Of an element of D, what passes L2 at the end of its tile: results, and tiles that are read."""
    tiles = [name for name in read_always(plan) if name in plan.epilogue.tiles]
    return sum(problem.operands.matrix(name).dtype.bits for name in (*plan.epilogue.outputs, *tiles))


def _extents(total: int, tile: int, count: int, loaded: int | None = None) -> np.ndarray:
    """Rows of each tile, as it is loaded: the last one may be narrower.

    loaded   of each, where some are the next one's
    """
    return np.minimum(loaded or tile, total - tile * np.arange(count)).astype(np.float64)


def _simulate(
    tiles: np.ndarray, bytes_a: np.ndarray, bytes_b: np.ndarray, tile_d: float, per_wave: int, l2_bytes: float
) -> tuple[float, list[int], list[int]]:
    """(DRAM bytes read, A panels of each wave, B panels of each wave)."""
    size = np.concatenate([bytes_a, bytes_b])
    last = np.full(len(size), -1)  # the wave that used each panel last
    dram, count_a, count_b = 0.0, [], []
    for wave, first in enumerate(range(0, len(tiles), per_wave)):
        part = tiles[first : first + per_wave]
        used = np.zeros(len(size), bool)
        used[part[:, 0]] = True
        used[len(bytes_a) + part[:, 1]] = True
        count_a.append(int(used[: len(bytes_a)].sum()))
        count_b.append(int(used[len(bytes_a) :].sum()))
        for before in np.unique(last[used]).tolist():
            wanted = size[used & (last == before)].sum()
            if before >= 0:
                between = (last > before) | ((last == before) & used)
                whole = size[between].sum() + tile_d * per_wave * (wave - before)
                early = size[(last == before) & ~used].sum()  # (1 - x) of it lies between
                late = size[used & (last < before)].sum()  # x of it does
                wanted *= 1 - _share_below(whole + early, late - early, l2_bytes)
            dram += float(wanted)
        last[used] = wave
    return dram, count_a, count_b


def _share_below(start: float, slope: float, bound: float) -> float:
    """The part of x in [0, 1] for which start + slope * x <= bound."""
    if slope == 0:
        return float(start <= bound)
    x = min(1.0, max(0.0, (bound - start) / slope))
    return x if slope > 0 else 1 - x


def compare_rasters(
    plan: GemmPlan, problem: Problem, *, ctas_per_wave: int, l2_bytes: int, groups: Sequence[int] = GROUPS
) -> list[Traffic]:
    """The plan's raster and the others, CTAs in step, the least DRAM traffic first; of equals, the plan's
    own, then the simplest."""
    grid_m, grid_n, _ = plan.grid(problem)
    rasters = [plan.raster, Raster("along_m"), Raster("along_n")]
    rasters += [Raster("grouped_m", g) for g in groups if 1 < g < grid_m]
    rasters += [Raster("grouped_n", g) for g in groups if 1 < g < grid_n]
    found = [
        traffic(plan, problem, ctas_per_wave=ctas_per_wave, l2_bytes=l2_bytes, raster=r) for r in dict.fromkeys(rasters)
    ]
    return sorted(found, key=lambda t: round(t.dram_read_bytes))


def best_rasters(
    plan: GemmPlan,
    problem: Problem,
    device: Device,
    *,
    ctas_per_wave: int,
    most: int = 4,
) -> list[Traffic]:
    """The plan's raster and the best others, in time, the least DRAM traffic first; of equals, its own.

    most   that are played, of those that the formula ranks first
    """
    capacity = device.l2_bytes // device.l2_partitions
    ranked = compare_rasters(plan, problem, ctas_per_wave=ctas_per_wave, l2_bytes=capacity)
    names = dict.fromkeys([str(plan.raster), *[t.raster for t in ranked]])
    found = [
        traffic_in_time(plan, problem, device, ctas_per_wave=ctas_per_wave, raster=Raster.parse(name))
        for name in list(names)[:most]
    ]
    return sorted(found, key=lambda t: round(t.dram_read_bytes))
