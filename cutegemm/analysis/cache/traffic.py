"""Traffic through L2 and DRAM under a raster: tiles that are resident together, and bytes that come from DRAM.

In step: `traffic`, a formula that ranks rasters quickly. CTAs run in waves, in the order of the raster, and all CTAs of
a wave go through K together. So a panel, which is a row of tiles of A (bM x K) or of B, is fetched from DRAM at most
once per wave, however many CTAs read it. A later wave fetches it again unless it is still in L2. L2 evicts the least
recently used data, and D passes through it too.

Consider the piece of a panel at depth x = k / K. Between its use in one wave and in a later one, the following bytes
are touched: whole panels in the waves between; panels of the earlier wave from depth x on; panels of the later wave up
to depth x. The piece is a hit if these bytes fit the cache. A line that multiprocessors on both sides read is kept in
each partition of the L2, so the capacity is that of one partition.

In time: `traffic_in_time`, a simulation by `analysis.l2` that is compared with hardware counters. CTAs fall out of
step, and a panel that only few of them read is kept once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from cutegemm.analysis.accesses import read_always
from cutegemm.analysis.cache import l2
from cutegemm.analysis.cache.pace import JITTER, Pace, multicast, pace_of
from cutegemm.analysis.edges import grid_of_loads, sharers_mn
from cutegemm.analysis.split_k import k_ranges_of
from cutegemm.layout.inttuple import product
from cutegemm.machine.arch import SECTOR_BYTES
from cutegemm.plan.memory.workspace import partials_bytes
from cutegemm.plan.work.grouped import with_equal_groups
from cutegemm.tile.raster import Raster

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cutegemm.machine.device import Device
    from cutegemm.plan.plan import GemmPlan
    from cutegemm.plan.problem import Problem

GROUPS = (1, 2, 4, 8, 16, 32, 64)
_LESS, _MORE = 0.75, 1.15  # shares of the L2 cache that A and B may have, for the range
_BELOW, _ABOVE = 0.05, 0.07  # relative margins of the range below and above the simulated values
_ALIKE = 0.005  # relative difference below which two simulations count as equal
_PIECES_OF_RANGE = 8  # pieces of K in the simulations for the range
_MOST_PLAYED = 1 << 14  # grids with more work tiles are simulated only twice for the range
_READ_OF_TORN = 0.4  # largest share of partially written sectors of D that L2 reads first


@dataclass(frozen=True)
class Traffic:
    """Predicts how many bytes one GEMM moves through L2 and DRAM, for one order of its tiles.

    raster                order of the tiles
    waves                 number of waves of CTAs
    resident_mn           numbers of different tiles of A and of B that an average wave reads
    wave_bytes            bytes of A and B that an average wave reads, each counted once
    l2_read_bytes         bytes of A and B that CTAs request from L2; multicast bytes count once
    sm_read_bytes         bytes of A and B that arrive in multiprocessors
    dram_read_bytes       bytes of A and B that come from DRAM
    dram_write_bytes      bytes of D, of auxiliary outputs, and of partial results of reductions
    min_bytes             bytes of A and B, each counted once
    epilogue_bytes        bytes of the epilogue's operands, each counted once; all come from DRAM
    far_bytes             bytes of A, B and accumulators that pass from one L2 partition to another; None if not
                          simulated
    partials_read_bytes   bytes of accumulators of K splits that the GEMM reads again from DRAM; None if not simulated
    dram_range            limits of `dram_read_bytes` that are expected over launches; None if not computed
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
        """Share of the requested bytes of A and B that L2 has, so that they are not fetched from DRAM."""
        return 1 - self.dram_read_bytes / self.l2_read_bytes if self.l2_read_bytes else 1.0


def traffic(
    plan: GemmPlan, problem: Problem, *, ctas_per_wave: int, l2_bytes: int, raster: Raster | None = None
) -> Traffic:
    """Predict the bytes that a plan moves through L2 and DRAM, under the assumption that all CTAs run in step.

    A wave of CTAs computes its tiles at the same time, and the next wave starts when all of them have ended.

    ctas_per_wave   CTAs that run at once
    l2_bytes        bytes of L2 that can keep A and B
    raster          order of the tiles; None: the plan's

    >>> from cutegemm.build import simt_plan
    >>> from cutegemm.plan import Problem
    >>> result = traffic(simt_plan(), Problem(2048, 2048, 2048), ctas_per_wave=132, l2_bytes=30 << 20)
    >>> result.waves, round(result.dram_read_bytes / result.min_bytes, 3)  # 1 if every byte is read once
    (2, 1.625)
    """
    plan, problem = with_equal_groups(plan, problem)
    order = raster or plan.scheduler.raster
    bm, bn, _ = plan.mma_tile
    grid_m, grid_n, batch = plan.mma_grid(problem)
    ops = problem.operands
    bytes_a = problem.k * ops.a.dtype.bits / 8 * _extents(problem.m, bm, grid_m)
    bytes_b = problem.k * ops.b.dtype.bits / 8 * _extents(problem.n, bn, grid_n, plan.loaded_tile[1])
    share_a, share_b = multicast(plan)
    tiles_per_wave = max(1, ctas_per_wave // plan.split_k)  # the K splits of a tile run together
    dram, waves, panels_m, panels_n = 0.0, 0, [], []
    tile_d = product(plan.d_tile) * _epilogue_bits(plan, problem) / 8
    for _ in range(batch):  # matrices of the batch share no data
        tiles_of_batch = replace(plan.scheduler, raster=order).tiles(plan.cluster_tile, problem.m, problem.n)
        tile_mn = tiles_of_batch.order().reshape(-1, 3)[:, :2]
        tile_mn = tile_mn // sharers_mn(plan)  # indices of panels: CTAs that split K read the same ones
        tiles = tile_mn[(tile_mn < (grid_m, grid_n)).all(axis=1)]
        wave_result = _simulate(tiles, bytes_a, bytes_b, tile_d, tiles_per_wave, l2_bytes)
        dram += wave_result[0]
        waves += len(wave_result[1])
        panels_m += wave_result[1]
        panels_n += wave_result[2]
    loads_m, loads_n, _ = grid_of_loads(plan, problem)
    loaded_a, loaded_b = [
        float(panels[np.minimum(np.arange(loads), len(panels) - 1)].sum()) if len(panels) else 0.0
        for panels, loads in ((bytes_a, loads_m), (bytes_b, loads_n))
    ]
    asked = batch * (loads_n / share_a * loaded_a + loads_m / share_b * loaded_b)
    arrived = batch * (loads_n * loaded_a + loads_m * loaded_b)
    mean_m, mean_n = (float(np.mean(p)) if p else 0.0 for p in (panels_m, panels_n))
    partials = sum(partials_bytes(plan, problem.m, problem.n, problem.l).values())
    per_wave = mean_m * (bytes_a.mean() if grid_m else 0.0) + mean_n * (bytes_b.mean() if grid_n else 0.0)
    return Traffic(
        str(order), waves, (mean_m, mean_n), float(per_wave), int(asked), int(arrived), float(dram),
        sum(problem.bytes_of(name) for name in (*plan.epilogue.outputs, *plan.epilogue.scales)) + partials,
        int(batch * (bytes_a.sum() + bytes_b.sum())),
        sum(problem.bytes_of(name) for name in read_always(plan)),
    )  # fmt: skip


def traffic_in_time(
    plan: GemmPlan, problem: Problem, device: Device, *, ctas_per_wave: int, raster: Raster | None = None
) -> Traffic:
    """Predict the bytes that a plan moves through L2 and DRAM, by a simulation of L2 with CTAs of varying speed.

    ctas_per_wave   CTAs that run at once
    raster          order of the tiles; None: the plan's
    """
    plan, problem = with_equal_groups(plan, problem)
    order = raster or plan.scheduler.raster
    in_step = traffic(
        plan, problem, ctas_per_wave=ctas_per_wave, l2_bytes=device.l2_bytes // device.l2_partitions,
        raster=order,
    )  # fmt: skip
    running = max(1, ctas_per_wave // plan.cluster_tile.size)
    moved = l2.play(
        work_of(plan, problem, order), pace_of(plan, device, running), device.l2_bytes, device.l2_partitions
    )
    return replace(
        in_step, dram_read_bytes=moved.dram_bytes, far_bytes=moved.far_bytes, partials_read_bytes=moved.partials_bytes_
    )


def range_in_time(plan: GemmPlan, problem: Problem, device: Device, simulated: Traffic, ctas_per_wave: int) -> Traffic:
    """Return a copy of simulated traffic that also has the range to expect for the bytes that a launch reads from DRAM.

    The grid is simulated again: with three quarters of L2 and, if that changes the result, with 15% more L2 and with
    CTAs in step. If D is stored as partial sectors, L2 may read them first, which raises the upper limit.

    simulated       result of `traffic_in_time`
    ctas_per_wave   CTAs that run at once
    """
    running = max(1, ctas_per_wave // plan.cluster_tile.size)
    work, pace = work_of(plan, problem, plan.scheduler.raster), pace_of(plan, device, running)

    def played(share: float, with_pace: Pace) -> float:
        """Simulate the grid with another size of L2 and other times of the clusters; return the bytes read from DRAM.

        share       factor on the size of L2
        with_pace   times of the clusters
        """
        size = int(share * device.l2_bytes)
        return l2.play(work, with_pace, size, device.l2_partitions, pieces=_PIECES_OF_RANGE).dram_bytes

    seen = [simulated.dram_read_bytes, played(_LESS, pace)]
    if max(seen) - min(seen) > _ALIKE * max(seen) and len(work.tiles) <= _MOST_PLAYED:
        in_step = Pace(np.ones(running), pace.jitter and JITTER)
        seen += [played(_MORE, pace), played(1.0, in_step), played(_LESS, in_step)]
    accumulators, torn = simulated.partials_read_bytes or 0.0, _torn_bytes(plan, problem)
    low, high = (1 - _BELOW) * min(seen), (1 + _ABOVE) * max(seen) + _READ_OF_TORN * torn
    return replace(simulated, dram_range=(low + accumulators, high + accumulators))


def _torn_bytes(plan: GemmPlan, problem: Problem) -> int:
    """Return the bytes of results that threads store from registers to rows that are not aligned to 32 bytes.

    Such rows are written as partial sectors, which L2 may have to read first.
    """
    if plan.store.layout is not None:
        return 0
    torn = [
        name for name in plan.epilogue.outputs
        if any(s != 1 and e > 1 and s * plan.operands.matrix(name).dtype.bits % (8 * SECTOR_BYTES)
               for e, s in zip(problem.layout(name).shape[:2], problem.layout(name).stride[:2], strict=True))
    ]  # fmt: skip
    return sum(problem.bytes_of(name) for name in torn)


def work_of(plan: GemmPlan, problem: Problem, raster: Raster) -> l2.Work:
    """Return the data that the work tiles of a plan read and write, as the input of the simulation of L2.

    raster   order of the tiles of D
    """
    (bm, bn, _), (across, along), ops = plan.mma_tile, plan.cluster_mn, problem.operands
    grid_m, grid_n, batch = plan.mma_grid(problem)
    down, right = sharers_mn(plan)
    bytes_a = problem.k * ops.a.dtype.bits / 8 * _extents(problem.m, bm, grid_m)
    bytes_b = problem.k * ops.b.dtype.bits / 8 * _extents(problem.n, bn, grid_n, plan.loaded_tile[1])
    tiles = replace(plan.scheduler, raster=raster).tiles(plan.cluster_tile, problem.m, problem.n, problem.l)
    work = tiles.along(problem.k)
    coords, assignment = work.tiles.order(), work.assignment()
    k_first, k_last = k_ranges_of(work, assignment.work_tile)
    ctas = across * along
    return l2.Work(  # the last cluster of a ragged grid reads the last panel again
        assignment.cluster,
        assignment.work_tile.tile,
        k_first,
        k_last,
        coords[:, :1, 2] * grid_m + np.minimum(coords[:, :across:down, 0] // down, grid_m - 1),
        coords[:, :1, 2] * grid_n + np.minimum(coords[:, :: across * right, 1] // right, grid_n - 1),
        np.tile(bytes_a, batch),
        np.tile(bytes_b, batch),
        ctas * product(plan.d_tile) * _epilogue_bits(plan, problem) / 8,
        ctas * product(plan.cta_tile[:2]) * ops.acc.bits / 8,
        all_write=not plan.body.has_roles,
        last_adds=plan.body.has_roles or plan.scheduler.split.reduction == "last",
    )


def _epilogue_bits(plan: GemmPlan, problem: Problem) -> int:
    """Return the bits that pass L2 for each element of D in the epilogue of a tile.

    They are those of D and auxiliary outputs, and of the matrices that the epilogue reads, such as C.
    """
    tiles = [name for name in read_always(plan) if name in plan.epilogue.tiles]
    return sum(problem.operands.matrix(name).dtype.bits for name in (*plan.epilogue.outputs, *tiles))


def _extents(total: int, tile: int, count: int, loaded: int | None = None) -> np.ndarray:
    """Return the number of rows that are loaded for each tile, as an array; the last tile may have fewer.

    total    rows of the matrix
    tile     rows from one tile to the next
    count    number of tiles
    loaded   rows that are loaded for a tile, if they overlap the next one; None: `tile`
    """
    return np.minimum(loaded or tile, total - tile * np.arange(count)).astype(np.float64)


def _simulate(
    tiles: np.ndarray, bytes_a: np.ndarray, bytes_b: np.ndarray, tile_d: float, per_wave: int, l2_bytes: float
) -> tuple[float, list[int], list[int]]:
    """Return the bytes that CTAs running in step read from DRAM, and how many panels of A and B each wave uses.

    A panel is the block of rows of A, or of columns of B, that a tile of D needs.

    tiles      array with a row for each tile of D, in the order of execution, and two columns: indices of its panels
               of A and of B
    bytes_a    bytes of each panel of A
    bytes_b    bytes of each panel of B
    tile_d     bytes of D, and of what the epilogue reads, per tile
    per_wave   tiles of a wave
    l2_bytes   bytes of L2 that can keep panels
    returns    (bytes read from DRAM, number of A panels of each wave, number of B panels of each wave)
    """
    size = np.concatenate([bytes_a, bytes_b])
    last = np.full(len(size), -1)  # the wave that used each panel last
    dram, count_a, count_b = 0.0, [], []
    for wave, first in enumerate(range(0, len(tiles), per_wave)):
        running = tiles[first : first + per_wave]
        used = np.zeros(len(size), bool)
        used[running[:, 0]] = True
        used[len(bytes_a) + running[:, 1]] = True
        count_a.append(int(used[: len(bytes_a)].sum()))
        count_b.append(int(used[len(bytes_a) :].sum()))
        for before in np.unique(last[used]).tolist():
            wanted = size[used & (last == before)].sum()
            if before >= 0:
                between = (last > before) | ((last == before) & used)
                whole = size[between].sum() + tile_d * per_wave * (wave - before)
                early = size[(last == before) & ~used].sum()  # the share 1 - x of it is touched between the uses
                late = size[used & (last < before)].sum()  # the share x of it is touched between the uses
                wanted *= 1 - _share_below(whole + early, late - early, l2_bytes)
            dram += float(wanted)
        last[used] = wave
    return dram, count_a, count_b


def _share_below(start: float, slope: float, bound: float) -> float:
    """Return the length of the part of the interval [0, 1] in which a straight line does not exceed a bound.

    The line is start + slope * x. For example, start 0, slope 2 and bound 1 give 0.5.
    """
    if slope == 0:
        return float(start <= bound)
    x = min(1.0, max(0.0, (bound - start) / slope))
    return x if slope > 0 else 1 - x


def compare_rasters(
    plan: GemmPlan, problem: Problem, *, ctas_per_wave: int, l2_bytes: int, groups: Sequence[int] = GROUPS
) -> list[Traffic]:
    """Return the traffic of several rasters (orders of the tiles), sorted by DRAM reads, the fewest first.

    CTAs are assumed to run in step. If several rasters have equal DRAM reads, the plan's comes first, then the
    simplest.

    ctas_per_wave   CTAs that run at once
    l2_bytes        bytes of L2 that can keep A and B
    groups          band widths of the grouped rasters to compare, in tiles

    >>> from cutegemm.build import simt_plan
    >>> from cutegemm.plan import Problem
    >>> compare_rasters(simt_plan(), Problem(8192, 8192, 4096), ctas_per_wave=132, l2_bytes=30 << 20)[0].raster
    'grouped_m:16'
    """
    plan, problem = with_equal_groups(plan, problem)
    grid_m, grid_n, _ = plan.grid(problem)
    rasters = [plan.scheduler.raster, Raster("along_m"), Raster("along_n")]
    rasters += [Raster("grouped_m", g) for g in groups if 1 < g < grid_m]
    rasters += [Raster("grouped_n", g) for g in groups if 1 < g < grid_n]
    ranked = [
        traffic(plan, problem, ctas_per_wave=ctas_per_wave, l2_bytes=l2_bytes, raster=r) for r in dict.fromkeys(rasters)
    ]
    return sorted(ranked, key=lambda t: round(t.dram_read_bytes))


def best_rasters(
    plan: GemmPlan,
    problem: Problem,
    device: Device,
    *,
    ctas_per_wave: int,
    most: int = 4,
) -> list[Traffic]:
    """Return the simulated traffic of the plan's raster and of the best others, the fewest DRAM reads first.

    A raster is an order of the tiles. If several have equal DRAM reads, the plan's comes first.

    ctas_per_wave   CTAs that run at once
    most            number of rasters to simulate: the best ones if CTAs ran in step, and the plan's
    """
    plan, problem = with_equal_groups(plan, problem)
    capacity = device.l2_bytes // device.l2_partitions
    ranked = compare_rasters(plan, problem, ctas_per_wave=ctas_per_wave, l2_bytes=capacity)
    names = dict.fromkeys([str(plan.scheduler.raster), *[t.raster for t in ranked]])
    simulated = [
        traffic_in_time(plan, problem, device, ctas_per_wave=ctas_per_wave, raster=Raster.parse(name))
        for name in list(names)[:most]
    ]
    return sorted(simulated, key=lambda t: round(t.dram_read_bytes))
