"""What a GPC reads, counted by hand and by loops."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cutegemm.analysis import gpc_reads
from cutegemm.build import simt_plan, sm90_plan
from cutegemm.machine.device import device_named
from cutegemm.plan import Problem
from cutegemm.tile.raster import Raster

H100 = device_named("h100")
TILE_BYTES = 128 * 64 * 2  # bytes of a k-tile of A, and of B


def test_where_clusters_of_two_run() -> None:
    """By `%smid`: four pairs apart, eight GPCs four times, seven of them four times, the last two."""
    seen = [*range(12), *[*range(4, 12)] * 3, *[*range(5, 12)] * 4, 10, 11]
    assert list(H100.gpc_of_tpc) == seen
    assert sorted([2 * seen.count(gpc) for gpc in range(12)], reverse=True) == list(H100.gpc_sms)


def test_counted_by_hand() -> None:
    """36 clusters, 4 x 9, in bands: cluster c has the row c % 4. Four run on pairs apart, eight GPCs have four each, c,
    c + 8, c + 16 and c + 24, of the same row: 12 of 36 rows of tiles differ. B is shared by the CTAs of a cluster."""
    plan = sm90_plan(cluster=(2, 1), gpc_raster=False)
    found = gpc_reads(plan, Problem(4 * 256, 9 * 128, 640), H100)
    assert found is not None
    k_tiles = 10 * TILE_BYTES
    assert found.asked == (72 * k_tiles, 36 * k_tiles)
    assert found.apart == (24 * k_tiles, 36 * k_tiles)
    assert found.share == 60 / 108


def test_counted_by_hand_in_the_order_of_the_gpcs() -> None:
    """64 clusters, 8 x 8, along N: four on pairs apart have half a row, and so has the GPC that has four. The other
    seven have eight, a row each: 4 + 1 + 7 of 64 rows of tiles differ."""
    found = gpc_reads(sm90_plan(cluster=(2, 1)), Problem(8 * 256, 8 * 128, 640), H100)
    assert found is not None
    assert [apart / (10 * TILE_BYTES) for apart in found.apart] == [2 * (4 + 1 + 7), 64]


@pytest.mark.parametrize("cluster", [(1, 1), (2, 1), (1, 2)])
@pytest.mark.parametrize("raster", ["along_m", "along_n", "grouped_m:8", "fitted_n", "even:8"])
@pytest.mark.parametrize("gpc_aware", [False, True])
@pytest.mark.parametrize(
    "mnk", [(2048, 2048, 512), (1216, 2064, 100), (300, 9000, 64), (40, 40, 64), (5000, 3000, 320)]
)
def test_counted_by_loops(cluster, raster, gpc_aware, mnk) -> None:
    plan = sm90_plan(cluster=cluster, raster=raster, gpc_raster=gpc_aware)
    problem, size = Problem(*mnk), cluster[0] * cluster[1]
    work = plan.work(problem)
    grid_m, grid_n, _ = plan.grid(problem)
    if size == 2:
        gpcs = list(H100.gpc_of_tpc)
    else:  # in a round each pair is given one CTA, then each one more
        gpcs, first = [], 0
        for count in H100.tpc_rounds:
            gpcs += 2 * list(H100.gpc_of_tpc[first : first + count])
            first += count
    gpc_of = {work.place(launched): gpcs[launched] for launched in range(work.clusters)}
    asked, apart = [0, 0], [0, 0]
    reads: set[tuple[object, ...]] = set()
    for number in range(work.count):
        one, turn = number % work.clusters, number // work.clusters
        for operand, grid in enumerate((grid_m, grid_n)):
            shared = cluster[1 - operand] > 1
            places = {work.tile_mnl(work.tile((number,)), rank)[operand] for rank in range(size)}
            for place in sorted(place for place in places if place < grid):
                asked[operand] += 1
                apart[operand] += shared or (operand, gpc_of[one], turn, place) not in reads
                reads.add((operand, gpc_of[one], turn, place))
    found = gpc_reads(plan, problem, H100)
    assert found is not None
    k_tiles = -(-mnk[2] // 64) * TILE_BYTES
    assert found.asked == tuple(count * k_tiles for count in asked)
    assert found.apart == tuple(count * k_tiles for count in apart)


def test_where_it_is_not_known() -> None:
    problem = Problem(4096, 4096, 4096)
    assert gpc_reads(sm90_plan(cluster=(2, 2)), problem, H100) is None
    assert gpc_reads(simt_plan(), problem, H100) is None
    assert gpc_reads(sm90_plan(), problem, replace(H100, tpc_rounds=())) is None


def test_bands_follow_from_the_cluster() -> None:
    """The raster of a plan for which none is named leaves no more apart than the other one, of either cluster."""
    problem = Problem(4096, 5120, 512)
    for gpc_aware, others in ((False, ("fitted_n", "fitted_m")), (True, ("even_m:16", "even_n:16"))):
        for cluster, other in zip(((2, 1), (1, 2)), others, strict=True):
            plan = sm90_plan(cluster=cluster, gpc_raster=gpc_aware)
            own, turned = gpc_reads(plan, problem, H100), gpc_reads(plan, problem, H100, Raster.parse(other))
            assert own is not None
            assert turned is not None
            assert own.share < 0.9 * turned.share


@pytest.mark.parametrize("mnk", [(2048, 1024, 4096), (512, 4096, 4096), (768, 3072, 16384), (1599, 1216, 2624)])
@pytest.mark.parametrize("cluster", [(1, 1), (2, 1), (1, 2)])
def test_less_is_left_apart_in_the_order_of_the_gpcs(cluster, mnk) -> None:
    found = [
        gpc_reads(sm90_plan(cluster=cluster, gpc_raster=gpc_aware), Problem(*mnk), H100) for gpc_aware in (True, False)
    ]
    shares = [reads.share for reads in found if reads is not None]
    assert shares[0] < 0.9 * shares[1]
