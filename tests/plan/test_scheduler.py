"""What must hold of the work tiles of any problem, by whoever asks: integers, arrays, and values that have no truth."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cutegemm
from cutegemm.build import simt_plan, sm90_plan
from cutegemm.plan import Operands, Problem
from cutegemm.plan.memory.workspace import counter_of, counters, slot_layout
from cutegemm.plan.work.arithmetic import INTEGERS, Arithmetic
from cutegemm.plan.work.cluster import ClusterTile
from cutegemm.plan.work.division import KDivision, WorkTile
from cutegemm.plan.work.grid import grid_of
from cutegemm.plan.work.scheduler import TileScheduler, WorkGrid
from cutegemm.plan.work.split import FIXUP, KSplit
from cutegemm.plan.work.tiles import TileGrid
from cutegemm.plan.work.work import Work
from cutegemm.tile.raster import Raster

TILE = (4, 8, 2)  # tile of a CTA: small, so that most problems are ragged
RASTERS = [Raster.parse(text) for text in ("along_m", "along_n", "grouped_m:3", "grouped_n:2", "hilbert:4")]
CLUSTERS = [(1, 1), (2, 1), (1, 2), (2, 2), (4, 1)]
ROWS = [KSplit(2), KSplit(3, "strided"), KSplit(5)]  # parts that are rows of the grid
SPLITS = [KSplit(), KSplit(2), KSplit(7), KSplit(waves=1), KSplit(waves=3), FIXUP]


@st.composite
def schedulers(draw):
    """(scheduler, tile of a cluster) of kernels with warp roles, and of kernels with a thread schedule."""
    raster = draw(st.sampled_from(RASTERS))
    if draw(st.booleans()):
        cluster = draw(st.sampled_from(CLUSTERS))
        split = draw(st.sampled_from(SPLITS))
        ctas = draw(st.integers(1, 9)) * cluster[0] * cluster[1]
        persistent = ctas if split.waves or draw(st.booleans()) else None
        return TileScheduler(raster, split, grid_of(persistent)), ClusterTile(TILE, cluster)
    split = draw(st.sampled_from([KSplit(), *ROWS, KSplit(waves=1), KSplit(waves=2)]))
    persistent = draw(st.integers(1, 9)) if split.waves else None
    return TileScheduler(raster, split, grid_of(persistent)), ClusterTile(TILE, idle_ctas=True)


extents = st.tuples(st.integers(0, 40), st.integers(0, 70), st.one_of(st.integers(0, 12), st.integers(60, 300)))
batches = st.integers(1, 3)


def work_of(scheduled, mnk, l) -> WorkGrid:  # noqa: E741
    scheduler, cluster = scheduled
    return scheduler.tiles(cluster, *mnk[:2], l).along(mnk[2])


def by_rank(work: WorkGrid) -> list[tuple[tuple[int, int, int], int, WorkTile]]:
    """(tile of D, rank, work tile) of every CTA that has something to do, cluster by cluster, in their order."""
    found = []
    for cluster in range(work.clusters):
        for work_tile in work.of_cluster(cluster):
            if work_tile.splits:
                ranks = range(work.tiles.cluster.size)
                found += [(work.tile_mnl(work_tile, rank), rank, work_tile) for rank in ranks]
    return found


def tile_counts(mnk, l):  # noqa: E741
    return -(-mnk[0] // TILE[0]), -(-mnk[1] // TILE[1]), l, -(-mnk[2] // TILE[2])


def check_all_is_taken_once(scheduled, mnk, l):  # noqa: E741
    """Every k-tile of every tile of D; what lies outside of D are whole rows or columns of clusters at its edges."""
    m_tiles, n_tiles, l_tiles, k_tiles = tile_counts(mnk, l)
    work, k_step = work_of(scheduled, mnk, l), scheduled[0].split.k_step
    taken = Counter()
    for tile, _, k_split in by_rank(work):
        if k_split.k_split == 0:
            taken[tile, "stored"] += 1
        for i in range(k_split.k_count):
            taken[tile, k_split.k_first + i * k_step] += 1
    (cm, cn), up = scheduled[1].cluster_mn, lambda count, step: -(-count // step) * step
    every = product(range(up(m_tiles, cm)), range(up(n_tiles, cn)), range(l_tiles))
    assert taken == Counter({(tile, k): 1 for tile in every for k in ("stored", *range(k_tiles))})


def check_slots_are_apart(scheduled, mnk, l):  # noqa: E741
    """Check K splits: those of a tile agree on their number, and on where the accumulators of the others are."""
    work = work_of(scheduled, mnk, l)
    slots, told = [], {}
    for _, rank, k_split in by_rank(work):
        if rank == 0 and k_split.splits > 1:
            slots.append(work.slot_of(k_split, k_split.k_split))
            told.setdefault(k_split.tile, set()).add(tuple(work.slot_of(k_split, i) for i in range(k_split.splits)))
            peers = work.peers(k_split.tile)
            assert k_split.tile < work.shared
            assert peers.splits == k_split.splits
            assert work.slot_of(peers, k_split.k_split) == slots[-1]
    assert len(set(slots)) == len(slots)
    assert all(0 <= slot < work.slots for slot in slots)
    assert all(len(of_tile) == 1 for of_tile in told.values())
    assert sorted(slots) == sorted(slot for (of_tile,) in told.values() for slot in of_tile)


def check_turns(scheduled, mnk, l, turns):  # noqa: E741
    """Consumers that take work tiles in turn find their own, and their k-tiles where the others' have passed."""
    work = work_of(scheduled, mnk, l)
    for cluster, turn in product(range(work.clusters), range(turns)):
        states, first = [*work.states(cluster)], work.first(cluster)
        own = states[turn::turns]
        if not own:
            assert not work.exists(work.first_of(first, turn, turns))
            continue
        assert own[0] == work.first_of(first, turn, turns)
        passed = np.cumsum([0, *(work.tile(state).k_count for state in states)])
        position = work.k_tiles_before(first, turn, turns)
        for i, state in enumerate(own):
            assert position == passed[turn + i * turns]
            position += work.tile(state).k_count + work.k_tiles_between(state, turns)
            following = work.ahead(state, turns)
            assert following == own[i + 1] if i + 1 < len(own) else not work.exists(following)


def check_formulas(scheduled, mnk, l, turns):  # noqa: E741
    """The formulas of numbered work tiles for consumers in turn give what follows from one step at a time."""
    work = work_of(scheduled, mnk, l)
    for cluster, turn in product(range(work.clusters), range(turns)):
        first = work.first(cluster)
        assert work.first_of(first, turn, turns) == Work.first_of(work, first, turn, turns)
        if work.exists(work.ahead(first, turns)):
            assert work.ahead(first, turns) == Work.ahead(work, first, turns)
            assert work.k_tiles_before(first, turn, turns) == Work.k_tiles_before(work, first, turn, turns)
            assert work.k_tiles_between(first, turns) == Work.k_tiles_between(work, first, turns)


def check_arrays_agree(scheduled, mnk, l):  # noqa: E741
    work = work_of(scheduled, mnk, l)
    taken = work.assignment()
    states = [
        (turn, cluster, state) for cluster in range(work.clusters) for turn, state in enumerate(work.states(cluster))
    ]
    wanted = [each for each in sorted(states, key=lambda each: each[2]) if work.tile(each[2]).splits]
    assert [*zip(taken.turn.tolist(), taken.cluster.tolist(), strict=True)] == [each[:2] for each in wanted]
    tiles = [work.tile(state) for _, _, state in wanted]
    for field in fields(WorkTile):
        assert getattr(taken.work_tile, field.name).tolist() == [getattr(tile, field.name) for tile in tiles]
    for rank in range(work.tiles.cluster.size):
        found = np.broadcast_arrays(taken.turn, *taken.tile_mnl(rank))[1:]
        one_by_one = [work.tile_mnl(tile, rank) for tile in tiles]
        assert list(zip(*[of_mode.tolist() for of_mode in found], strict=True)) == one_by_one
    slowly = Work.assignment(work)
    rows = [
        {(int(t), int(c), int(w)) for t, c, w in zip(a.turn, a.cluster, a.work_tile.tile, strict=True)}
        for a in (taken, slowly)
    ]
    assert rows[0] == rows[1]
    order = work.tiles.order()
    assert order.shape == (work.tiles.count, work.tiles.cluster.size, 3)
    for tile, rank in product(range(work.tiles.count), range(work.tiles.cluster.size)):
        assert tuple(order[tile, rank].tolist()) == work.tiles.tile_mnl(tile, rank)


CHECKS = (check_all_is_taken_once, check_slots_are_apart, check_arrays_agree)


@pytest.mark.parametrize("check", CHECKS)
@settings(max_examples=100, deadline=None)
@given(schedulers(), extents, batches)
def test_any_work(check, scheduled, mnk, l):  # noqa: E741
    check(scheduled, mnk, l)


@settings(max_examples=80, deadline=None)
@given(schedulers().filter(lambda s: not s[1].idle_ctas or s[0].split.splits == 1), extents, batches, st.integers(1, 3))
def test_consumers_that_take_work_tiles_in_turn(scheduled, mnk, l, turns):  # noqa: E741
    check_turns(scheduled, mnk, l, turns)
    check_formulas(scheduled, mnk, l, turns)


@settings(max_examples=60, deadline=None)
@given(schedulers().filter(lambda s: not s[1].idle_ctas), extents, batches)
def test_a_kernel_finds_the_work_that_the_host_has_handed_it(scheduled, mnk, l):  # noqa: E741
    """By numbers that know + - * // % and no order, as a kernel's do."""
    host = work_of(scheduled, mnk, l)
    values = host.host_values(Traced, lambda of: tuple(map(Traced, of)))
    device = scheduled[0].from_values(scheduled[1], values, TRACED, {})
    assert value_of(device.count) == host.count
    assert value_of(device.clusters) == host.clusters
    for number in range(host.count):
        state, traced_state = (number,), (Traced(number),)
        want, got = host.tile(state), device.tile(traced_state)
        assert got.map(value_of) == want
        assert [*map(value_of, device.ahead(traced_state, 2))] == [*host.ahead(state, 2)]
        if not want.splits:
            continue
        for rank in range(scheduled[1].size):
            traced = device.tile_mnl(got, Traced(rank))
            assert tuple(map(value_of, traced)) == host.tile_mnl(want, rank)
        for turns in (2, 3):
            assert value_of(device.k_tiles_between(traced_state, turns)) == host.k_tiles_between(state, turns)
    for cluster, turn in product(range(host.clusters), range(3)):
        first, state = device.first(Traced(cluster)), host.first(cluster)
        assert [*map(value_of, device.first_of(first, Traced(turn), 3))] == [*host.first_of(state, turn, 3)]
        assert value_of(device.k_tiles_before(first, Traced(turn), 3)) == host.k_tiles_before(state, turn, 3)


class Traced:
    """An integer that has no truth value."""

    def __init__(self, value):
        self.value = value_of(value)

    def __bool__(self):
        raise TypeError("a traced value has no truth value")

    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __bool__
    __hash__ = None


def _operation(name):
    def apply(self, other):
        return Traced(getattr(self.value, name)(value_of(other)))

    return apply


for _name in ("add", "radd", "sub", "rsub", "mul", "rmul", "floordiv", "mod"):
    setattr(Traced, f"__{_name}__", _operation(f"__{_name}__"))


def value_of(value):
    return getattr(value, "value", value)


TRACED = Arithmetic(
    lambda a, b: Traced(min(value_of(a), value_of(b))), lambda a, b: Traced(max(value_of(a), value_of(b)))
)


# --- planted faults ----------------------------------------------------------------------------------------


def planted(owner, name, wrong):
    """A method of a class that gives something else."""
    real = getattr(owner, name)

    def method(self, *arguments):
        return wrong(real(self, *arguments), *arguments)

    return owner, name, method


PAIRS = ClusterTile(TILE, (2, 1))
SPLIT = ((TileScheduler(Raster("grouped_m", 3), KSplit(3), grid_of(8)), PAIRS), (30, 50, 20), 2)
FILL = ((TileScheduler(Raster("along_n"), FIXUP, grid_of(10)), PAIRS), (30, 50, 200), 1)
IN_ROWS = ((TileScheduler(Raster("along_m"), KSplit(3)), ClusterTile(TILE, idle_ctas=True)), (30, 50, 20), 2)
IN_TURN = (*FILL, 2)

# What is planted, what finds it, and the work with it
FAULTS = {
    "a k-tile less": (
        planted(KDivision, "work_tile", lambda w, n: replace(w, k_count=w.k_count - (n == 1))),
        check_all_is_taken_once, SPLIT,
    ),
    "a k-tile of an owner less": (
        planted(KDivision, "work_tile", lambda w, n: replace(w, k_count=w.k_count - (n == 0))),
        check_all_is_taken_once, FILL,
    ),
    "a part twice": (
        planted(KDivision, "work_tile", lambda w, n: replace(w, k_split=0)), check_slots_are_apart, SPLIT
    ),
    "slots of every second tile": (
        planted(KDivision, "sums_of", lambda found, tile: (found[0], found[1] // 2)), check_slots_are_apart, FILL
    ),
    "a wrong tile": (
        planted(KDivision, "work_tile", lambda w, n: replace(w, tile=w.tile + (n == 2))),
        check_all_is_taken_once, SPLIT,
    ),
    "ranks along N first": (
        planted(TileGrid, "tile_mnl", lambda at, tile, rank=0: (at[0] - rank % 2, at[1] + rank % 2, at[2])),
        check_all_is_taken_once, SPLIT,
    ),
    "the next work tile of another cluster": (
        planted(WorkGrid, "ahead", lambda found, state, turns: (found[0] + 1,)), check_all_is_taken_once, SPLIT
    ),
    "a skip too short": (
        planted(WorkGrid, "k_tiles_between", lambda found, state, turns: found - 1), check_turns, IN_TURN
    ),
    "a k-tile too early": (
        planted(KSplit, "k_range", lambda found, *_: (found[0] - (found[0] > 0), found[1])),
        check_all_is_taken_once, IN_ROWS,
    ),
    "a slot of the neighbour": (
        planted(WorkGrid, "slot_of", lambda found, work_tile, k_split: found - (k_split == 1)),
        check_slots_are_apart, IN_ROWS
    ),
}  # fmt: skip


@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name, monkeypatch):
    (owner, method, wrong), check, work = FAULTS[name]
    check(*work)
    monkeypatch.setattr(owner, method, wrong)
    with pytest.raises(AssertionError):
        check(*work)


# --- schedulers of plans ----------------------------------------------------------------------------------------------


def test_work_tiles_by_hand():
    """300 x 256 in tiles of 128 x 128 and clusters of 2 along M: 2 x 2 clusters, the lower ones past the edge.

    A grid of 6 CTAs is 3 clusters: cluster 0 takes the tiles 0 and 3.
    """
    plan = sm90_plan(tile=(128, 128, 64), cluster=(2, 1), ctas=6, raster="along_n")
    work = plan.work(Problem(300, 256, 512, operands=plan.operands))
    assert (work.count, work.clusters, [*work.states(0)]) == (4, 3, [(0,), (3,)])
    assert [work.tile_mnl(work.tile((3,)), rank) for rank in range(2)] == [(2, 1, 0), (3, 1, 0)]
    assert work.tile((3,)) == WorkTile(3, 0, 8, 1, 0, 0)


def test_parts_that_are_rows_of_the_grid():
    """3 tiles of 7 k-tiles in 2 parts of a SIMT plan: 4 and 3 k-tiles; part p of tile t has the slot 3p + t."""
    plan = simt_plan(Operands.of("f32"), block=(128, 128, 8), split_k=2)
    work = plan.work(Problem(384, 128, 56))
    assert (work.count, work.clusters, work.slots, work.shared) == (6, 6, 6, 3)
    found = [work.tile((number,)) for number in range(6)]
    assert [(w.tile, w.k_split, w.k_first, w.k_count) for w in found] == [
        (0, 0, 0, 4), (1, 0, 0, 4), (2, 0, 0, 4), (0, 1, 4, 3), (1, 1, 4, 3), (2, 1, 4, 3),
    ]  # fmt: skip
    assert [work.slot_of(w, w.k_split) for w in found] == [0, 1, 2, 3, 4, 5]


def test_counters_and_slots_of_clusters_are_apart():
    """2 x 2 clusters of 2 CTAs of 2 consumers, 3 parts: 16 counters, and 12 slots with a place for each CTA."""
    plan = sm90_plan(tile=(128, 256, 64), schedule="cooperative", cluster=(2, 1), split_k=3)
    work = plan.work(Problem(512, 512, 1024, operands=plan.operands))
    places = [
        counter_of(plan, tile, rank, consumer)
        for tile, rank, consumer in product(range(work.shared), range(2), range(2))
    ]
    assert sorted(places) == list(range(counters(plan, work))) == list(range(16))
    assert (work.slots, slot_layout(plan, work.slots).size()) == (12, 12 * 2 * 128 * 256)


def test_the_grid_of_a_plan_without_pipeline_does_not_follow_from_the_problem():
    plan = simt_plan(Operands.of("f32"), waves=1, persistent=132)
    for mnk in ((128, 128, 64), (8192, 8192, 8192)):
        assert plan.work(Problem(*mnk)).clusters == 132
    assert INTEGERS.ceil_div(7, 4) == 2


def test_nobody_else_asks_a_raster_for_a_tile():
    """In the package: a kernel, a simulator or a drawing that did would be a twin of the scheduler."""
    package = Path(cutegemm.__file__).parent
    asking = {str(file.relative_to(package)) for file in package.rglob("*.py") if "raster.tile(" in file.read_text()}
    assert asking == {"plan/work/tiles.py"}
