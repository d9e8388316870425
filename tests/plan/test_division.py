"""How tiles are divided where K is split: hand-computed tables, and what must hold of any division."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutegemm.analysis import check
from cutegemm.build import sm90_plan
from cutegemm.errors import PlanError
from cutegemm.plan import Problem
from cutegemm.plan.memory.workspace import regions, slot_layout, workspace_bytes
from cutegemm.plan.work.arithmetic import ARRAYS
from cutegemm.plan.work.division import FIXUP_K_TILES, LEAST_REST, LEAST_RUN, MOST_WORKERS, WorkTile, k_division_of
from cutegemm.plan.work.split import FIXUP, KSplit


def units(shares):
    return [shares.work_tile(number) for number in range(shares.count)]


def numbers(shares, cluster, clusters):
    """Return the work tiles of a cluster that are not empty."""
    found = [cluster]
    while (following := shares.following(found[-1], clusters)) < shares.count:
        found.append(following)
    return found


def rows(shares):
    """(tile, first k-tile, k-tiles, part, parts, slot) of the units that take something."""
    return [(u.tile, u.k_first, u.k_count, u.k_split, u.splits, u.slot) for u in units(shares) if u.splits]


# --- by hand -----------------------------------------------------------------------------------------------


def test_a_split_by_hand():
    """5 k-tiles in 2 parts: runs of ceil(5 / 2) = 3, then 2; the parts of tile t have the slots 2t and 2t + 1."""
    assert rows(k_division_of(KSplit(2), 2, 5, 132)) == [
        (0, 0, 3, 0, 2, 0), (0, 3, 2, 1, 2, 0), (1, 0, 3, 0, 2, 2), (1, 3, 2, 1, 2, 2),
    ]  # fmt: skip


def test_more_parts_than_k_tiles_are_as_many_as_there_are():
    assert rows(k_division_of(KSplit(8), 1, 3, 132)) == [
        (0, 0, 1, 0, 3, 0),
        (0, 1, 1, 1, 3, 0),
        (0, 2, 1, 2, 3, 0),
    ]
    # 7 in 5 parts: runs of 2, so 4 parts
    assert [row[1:3] for row in rows(k_division_of(KSplit(5), 1, 7, 132))] == [(0, 2), (2, 2), (4, 2), (6, 1)]


def test_without_k_a_tile_is_one_unit_of_nothing():
    assert rows(k_division_of(KSplit(4), 2, 0, 132)) == [(0, 0, 0, 0, 1, 0), (1, 0, 0, 0, 1, 1)]
    assert rows(k_division_of(KSplit(waves=2), 2, 0, 4)) == [(0, 0, 0, 0, 1, 0), (1, 0, 0, 0, 1, 0)]


def test_a_stream_by_hand():
    """3 tiles of 5 k-tiles, a grid of 4: runs of 4, 4, 4, 3 of the line of 15.

    line     0 1 2 3 4 | 5 6 7 8 9 | 10 11 12 13 14
    worker   0 0 0 0 1 | 1 1 1 2 2 |  2  2  3  3  3
    Slots are worker + tile: 0, 1 for tile 0 (workers 0 and 1), 2, 3 for tile 1, 4, 5 for tile 2.
    """
    assert sorted(rows(k_division_of(KSplit(waves=1), 3, 5, 4, least_run=1))) == [
        (0, 0, 4, 0, 2, 0), (0, 4, 1, 1, 2, 0),
        (1, 0, 3, 0, 2, 2), (1, 3, 2, 1, 2, 2),
        (2, 0, 2, 0, 2, 4), (2, 2, 3, 1, 2, 4),
    ]  # fmt: skip


def test_whole_tiles_come_after_the_shared_ones():
    """448 tiles, a grid of 132: 448 % 132 = 52 do not fill it; with a wave more 184 are shared, 264 are whole."""
    shares = k_division_of(KSplit(waves=2), 448, 128, 132)
    found = units(shares)
    whole = [u.tile for u in found if u.splits == 1 and u.k_count == 128]
    assert shares.shared == 184
    assert set(range(184, 448)) <= set(whole)
    assert [u.tile for u in found[132 * 3 :]] == list(range(184, 448))
    # Each CTA takes 184 * 128 / 132 = 178.4 k-tiles of the shared ones, and two whole tiles
    taken = [sum(u.k_count for u in found[cta::132]) for cta in range(132)]
    assert set(taken) == {178 + 256, 179 + 256}


def test_a_grid_that_tiles_fill_has_nothing_to_share():
    shares = k_division_of(KSplit(waves=2), 264, 64, 132)
    assert shares.shared == 0
    assert sorted(rows(shares)) == [(t, 0, 64, 0, 1, 0) for t in range(264)]


def test_runs_are_not_shorter_than_pays():
    """One tile of 4 * LEAST_RUN k-tiles is shared by 4 of the grid's 132."""
    assert {u.splits for u in units(k_division_of(KSplit(waves=1), 1, 4 * LEAST_RUN, 132)) if u.splits} == {4}
    assert {u.splits for u in units(k_division_of(KSplit(waves=1), 1, LEAST_RUN - 1, 132)) if u.splits} == {1}


def test_tiles_with_owners_by_hand():
    """11 tiles of 95 k-tiles, a grid of 4: 11 % 4 = 3 have an owner, and one CTA is left.

    3 * (95 + 5) = 300 among 4: owners keep 75, the other one takes 20 of each, 60 in all. It comes to three tiles, at
    most: (60 + 19) // 20 + 1 = 4 pieces. Slots are worker + 2 * tile: 0 for the owner of tile 0, 1 for the worker;
    2, 3 and 4, 5. Eight whole tiles, 3 to 10, follow; owners go on to them at once.
    """
    assert FIXUP_K_TILES == 5
    shares = k_division_of(FIXUP, 11, 95, 4)
    assert (shares.shared, shares.fixup, shares.span, shares.pieces, shares.count) == (3, 75, 20, 4, 24)
    assert rows(shares) == [
        (0, 0, 75, 0, 2, 0), (1, 0, 75, 0, 2, 2), (2, 0, 75, 0, 2, 4),
        (0, 75, 20, 1, 2, 0), (1, 75, 20, 1, 2, 2), (2, 75, 20, 1, 2, 4),
        *[(tile, 0, 95, 0, 1, 0) for tile in range(3, 11)],
    ]  # fmt: skip
    assert [numbers(shares, cta, 4) for cta in (0, 2, 3)] == [
        [0, 16, 20],
        [2, 18, 22],
        [3, 7, 11, 15, 19, 23],
    ]


def test_owners_are_left_alone_where_little_is_to_be_had():
    """128 tiles of 128 k-tiles, a grid of 132: 128 * 133 / 132 = 128.97 would be kept, which is all of them."""
    shares = k_division_of(FIXUP, 128, 128, 132)
    assert (shares.shared, shares.count, shares.slots) == (0, 128, 0)
    assert rows(shares) == [(tile, 0, 128, 0, 1, 0) for tile in range(128)]


def test_a_tile_has_not_more_workers_than_pay():
    """One tile of 1000 k-tiles, a grid of 132: four workers in addition to its owner, which keeps a fifth of 1005."""
    assert MOST_WORKERS == 4
    assert [u.k_count for u in units(k_division_of(FIXUP, 1, 1000, 132)) if u.splits] == [201, 200, 200, 200, 199]


# --- laws of all divisions ---------------------------------------------------------------------------------------


splits = st.one_of(
    st.integers(2, 9).map(KSplit), st.integers(1, 3).map(lambda w: KSplit(waves=w)), st.just(FIXUP)
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(splits, st.integers(0, 40), st.integers(0, 40), st.integers(1, 12), st.integers(1, 9))
def test_every_k_tile_is_taken_once_and_every_slot_by_one(split, tiles, k_tiles, grid, least_run):
    shares = k_division_of(split, tiles, k_tiles, grid, least_run=least_run)
    of_tile, slots = defaultdict(list), []
    for u in units(shares):
        if u.splits:
            of_tile[u.tile].append(u)
        else:
            assert u.k_count == 0
    assert sorted(of_tile) == list(range(tiles))
    for splits in of_tile.values():
        splits.sort(key=lambda u: u.k_split)
        assert [u.k_split for u in splits] == list(range(splits[0].splits))
        assert len({(u.splits, u.slot) for u in splits}) == 1
        ends = np.cumsum([0, *(u.k_count for u in splits)])
        assert [u.k_first for u in splits] == ends[:-1].tolist()
        assert ends[-1] == k_tiles
        if len(splits) > 1:
            assert min(u.k_count for u in splits) > 0
            slots += [u.slot + u.k_split for u in splits]
    assert len(slots) == len(set(slots))
    assert not slots or 0 <= min(slots) <= max(slots) < shares.slots


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 3), st.integers(1, 60), st.integers(8, 40), st.integers(1, 12))
def test_shared_waves_are_even(waves, tiles, k_tiles, grid):
    """No CTA takes more than one k-tile more of the shared tiles than another that takes any."""
    shares = k_division_of(KSplit(waves=waves), tiles, k_tiles, grid)
    shared = [u for u in units(shares)[: grid * shares.pieces]]
    taken = [sum(u.k_count for u in shared[cta::grid]) for cta in range(grid)]
    some = [count for count in taken if count]
    assert sum(taken) == shares.shared * k_tiles
    assert not some or max(some) - min(some) <= 1


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 90), st.integers(0, 200), st.integers(1, 20))
def test_with_owners_all_have_about_as_much_to_do(tiles, k_tiles, grid):
    """Nobody has more than the owners: what a worker takes, with what its parts cost, is at most what an owner keeps,
    and a piece; and it is less in all than if the tiles were whole."""
    shares = k_division_of(FIXUP, tiles, k_tiles, grid)
    clusters = min(grid, shares.count)
    taken = [[shares.work_tile(number) for number in numbers(shares, cta, clusters)] for cta in range(clusters)]
    assert sum(len(of_one) for of_one in taken) <= shares.count
    assert sorted(u.tile for of_one in taken for u in of_one if u.splits and u.k_split == 0) == list(range(tiles))
    assert sum(u.k_count for of_one in taken for u in of_one) == tiles * k_tiles
    splits = [[u for u in of_one if u.splits > 1] for of_one in taken]
    if shares.shared:
        kept = max(sum(u.k_count for u in of_one) for of_one in splits[: shares.shared])
        assert kept == shares.fixup <= k_tiles - LEAST_REST
        worked = [sum(u.k_count for u in of_one) for of_one in splits[shares.shared :]]
        assert max(worked) <= max(kept, LEAST_RUN) + shares.span
        for of_one in splits[shares.shared :]:
            ends = [u.k_first + u.k_count for u in of_one]
            assert all(end == k_tiles for end in ends[:-1])  # only its last tile is left to the next worker


def test_arrays_of_numbers_are_divided_alike():
    for split, tiles, k_tiles in ((KSplit(3), 7, 30), (KSplit(waves=2), 7, 30), (FIXUP, 11, 95)):
        one = k_division_of(split, tiles, k_tiles, 4)
        many = k_division_of(split, tiles, k_tiles, 4, ARRAYS)
        found = many.work_tile(np.arange(one.count))
        for name in WorkTile.__dataclass_fields__:
            wanted = [getattr(one.work_tile(i), name) for i in range(one.count)]
            assert (np.zeros(one.count, int) + getattr(found, name)).tolist() == wanted


def test_a_split_says_what_it_cannot_be():
    with pytest.raises(PlanError) as caught:
        KSplit(splits=3, waves=2, order="mixed")
    assert "splits = 3 and waves = 2; use either split-K (splits) or stream-K (waves)." in str(caught.value)
    assert "order = 'mixed'" in str(caught.value)
    with pytest.raises(PlanError, match="fixup = True needs waves = 1, not 2"):
        KSplit(waves=2, fixup=True)
    with pytest.raises(PlanError, match="waves = -1"):
        KSplit(waves=-1)


# --- the workspace -----------------------------------------------------------------------------------------


def test_the_workspace_of_a_split():
    """512 x 512 in 128 x 256 by two consumers: 8 tiles, 3 parts each: 24 slots of 128 KiB, 16 counters."""
    plan = sm90_plan(tile=(128, 256, 64), schedule="cooperative", split_k=3)
    arrivals, accumulators = regions(plan, 512, 512, 4096, 1)
    assert (arrivals.size, accumulators.size) == (256, 24 * 128 * 256 * 4)
    assert workspace_bytes(plan, Problem(512, 512, 4096)) == (256 + 24 * 131072, 256)


def test_the_workspace_of_clusters():
    """300 x 512: 2 clusters of 256 x 128 along M, 4 along N; each of 2 CTAs, also the one that is past the edge."""
    plan = sm90_plan(cluster=(2, 1), split_k=2)
    arrivals, accumulators = regions(plan, 300, 512, 4096, 1)
    assert (arrivals.size, accumulators.size) == (256, 8 * 2 * 2 * 128 * 128 * 4)


@pytest.mark.parametrize(
    "options",
    [
        {"split_k": 2},
        {"stream": 1, "tile": (128, 192, 64)},
        {"split_k": 2, "schedule": "cooperative", "tile": (256, 160, 64), "cluster": (1, 2)},
    ],
)
def test_places_of_sums_are_apart_and_16_bytes_of_a_thread_together(options):
    plan = sm90_plan(**options)
    layout = slot_layout(plan, 2)
    places = layout.offsets()
    assert len(np.unique(places)) == len(places) == layout.cosize()
    assert layout.stride[:2] == (1, 4)  # neighbours in a warp lie side by side
    values = int(np.prod(layout.shape[:3]))
    assert values == plan.consumer_tile[0] * plan.consumer_tile[1]


def test_the_report_counts_the_sums_of_parts():
    """4 tiles of 4 parts each: 12 of them are written and read, 64 KiB each; D is stored 4 times."""
    plan = sm90_plan(split_k=4)
    found = check(plan, Problem(128, 512, 4096, operands=plan.operands))
    moved = {a.name: (a.instruction, a.per, a.sectors) for a in found.global_ if "accumulators" in a.name}
    assert moved == {
        "write accumulators": ("STG.128", "K split", 65536 // 32),
        "read accumulators": ("LDG.128", "K split", 65536 // 32),
    }  # fmt: skip
    assert found.sector_count("st") == found.sector_count("ld") == (12 * 65536 // 512, 12 * 65536 // 32)
    whole = check(sm90_plan(), Problem(128, 512, 4096, operands=plan.operands))
    assert found.counts("stmatrix") == whole.counts("stmatrix")
    assert found.waves.ctas == 4 * whole.waves.ctas == 16
