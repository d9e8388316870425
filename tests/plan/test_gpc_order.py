"""The order of the GPCs is a permutation of any grid, and puts clusters of a GPC side by side."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutegemm.build import mma_tma_plan, sm90_plan
from cutegemm.errors import PlanError
from cutegemm.machine.device import device_named
from cutegemm.plan import OneEach, Operands, Persistent, Problem
from cutegemm.plan.work.arithmetic import ARRAYS
from cutegemm.plan.work.gpcs import GpcRaster, LaunchOrder

TPC_ROUNDS = device_named("h100").tpc_rounds  # 12, three times 8, four times 7, 2


def launched(tpc_rounds: tuple[int, ...], size: int, begin: int) -> list[int]:
    """The GPC of each cluster, as the hardware hands them out, counted down from the one that has most room.

    The pairs that are apart come first. Each round goes through the GPCs that have room left, from one of them on.

    begin   the GPC that rounds begin with: where the kernel before has ended
    """
    gpcs = next((count for count in tpc_rounds if count < tpc_rounds[0]), tpc_rounds[0])
    room = [sum(count > place for count in tpc_rounds) for place in range(gpcs)]  # of GPC `place`, in TPCs
    found = []
    for turn, count in enumerate(tpc_rounds):
        apart = [-1 - i for i in range(count - gpcs)]
        order = [gpc for gpc in np.roll(range(gpcs - 1, -1, -1), -begin).tolist() if room[gpc] > turn]
        found += [*apart, *order] * (2 // size)
    return found


@pytest.mark.parametrize("size", [1, 2])
def test_it_is_a_permutation_of_every_grid(size) -> None:
    order = GpcRaster.of(TPC_ROUNDS, size, 132)
    assert order is not None
    for clusters in range(1, 132 // size + 1):
        ends = order.ends(clusters)
        places = [order.place(cluster, ends) for cluster in range(clusters)]
        assert sorted(places) == list(range(clusters))
        assert order.place(np.arange(clusters), ends, ARRAYS).tolist() == places


@given(st.lists(st.integers(1, 14), min_size=1, max_size=9).map(sorted), st.sampled_from([1, 2]), st.data())
def test_of_any_chip(counts, size, data) -> None:
    rounds = tuple(reversed(counts))
    order = GpcRaster.of(rounds, size, min(255, 2 * sum(rounds)))
    assert order is not None
    clusters = data.draw(st.integers(1, min(255, 2 * sum(rounds)) // size))
    ends = order.ends(clusters)
    assert sorted(order.place(cluster, ends) for cluster in range(clusters)) == list(range(clusters))


def test_by_hand() -> None:
    """Clusters 0 to 3 of an H100's 66 clusters of two are apart.

    The next GPC has 4, 12, 20 and 28; the last one comes first: places 4 to 7. In the GPC after it, 29, 36, 43, 50 and
    57 belong to the rounds of seven.
    """
    order = GpcRaster.of(TPC_ROUNDS, 2, 132)
    assert order is not None
    by_place = sorted(range(66), key=lambda cluster: order.place(cluster, order.ends(66)))
    assert by_place[:16] == [0, 1, 2, 3, 28, 20, 12, 4, 57, 50, 43, 36, 29, 21, 13, 5]
    assert by_place[-9:] == [65, 63, 56, 49, 42, 35, 27, 19, 11]


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("begin", range(8))
def test_neighbours_whatever_ran_before(size, begin) -> None:
    """Whichever GPC the rounds begin with, clusters of a GPC have places side by side, but for the last two pairs."""
    order = GpcRaster.of(TPC_ROUNDS, size, 132)
    assert order is not None
    gpcs = launched(TPC_ROUNDS, size, begin)
    ends = order.ends(len(gpcs))
    for gpc in range(8):
        own = sorted(order.place(i, ends) for i, of in enumerate(gpcs[: -4 // size]) if of == gpc)
        assert sum(after - before > 1 + 4 // size for before, after in pairwise(own)) == 0


def test_what_a_kernel_is_handed_says_the_same() -> None:
    """The host works the ends out; the kernel has its values from them."""
    plan = sm90_plan(cluster=(1, 2))
    for mnk in ((100, 200, 64), (2048, 1000, 64), (5000, 9000, 64)):
        work = plan.work(Problem(*mnk))
        handed = plan.scheduler.from_values(plan.cluster_tile, work.host_values(), ARRAYS, {})
        assert handed.place(np.arange(work.clusters)).tolist() == [work.place(i) for i in range(work.clusters)]
        assert [work.place(int(cluster)) for cluster in work.launched()] == list(range(work.clusters))


def test_a_plan_whose_clusters_have_no_place_is_refused() -> None:
    """Else two clusters would take the same tile, and none another."""
    plan = sm90_plan(cluster=(2, 1))
    for order, said in (
        (GpcRaster((2, 3)), "rounds = (2, 3); expected positive integers in descending order, with a sum of at most"),
        (GpcRaster(()), "rounds = (); expected"),
        (GpcRaster(None), "scheduler.order.rounds = None; a tuple of integers is expected"),
        (8, "scheduler.order = 8; LaunchOrder or GpcRaster is expected"),
        (GpcRaster((200, 100)), "rounds = (200, 100); expected positive integers in descending order, with a sum of"),
    ):
        with pytest.raises(PlanError) as error:
            plan.with_scheduler(order=order)
        assert said in str(error.value)
    with pytest.raises(PlanError, match="the grid has 132 clusters, but gpc_raster describes only 66, in rounds of"):
        plan.with_scheduler(grid=Persistent(264))
    with pytest.raises(PlanError, match=r"gpc_raster needs a persistent grid. Leave gpc_raster out."):
        plan.with_(body=replace(plan.body, kind="cooperative"), scheduler=replace(plan.scheduler, grid=OneEach()))
    with pytest.raises(PlanError, match=r"gpc_raster needs wgmma; plans with mma.sync do not support it. Leave"):
        mma_tma_plan(Operands.of("bf16", layout="nt")).with_scheduler(order=GpcRaster((132,)))


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(PlanError, match=r"gpc_raster = True: the GPCs of 120 CTAs in clusters of 4 are not known"):
        sm90_plan(cluster=(2, 2), ctas=120, gpc_raster=True)
    with pytest.raises(PlanError, match=r"tpc_rounds = \(2, 3\); each round must be at most as large"):
        sm90_plan(tpc_rounds=(2, 3))
    with pytest.raises(PlanError, match=r"gpc_raster = 1"):
        sm90_plan(gpc_raster=1)  # type: ignore[arg-type]
    assert sm90_plan(tpc_rounds=()).scheduler.order == LaunchOrder()
    assert sm90_plan(ctas=264).scheduler.order == LaunchOrder()
