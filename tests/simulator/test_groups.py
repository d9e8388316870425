"""Grouped GEMMs in the simulator: random ends of groups against float64, every order of execution, planted faults."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from cutegemm.build import sm90_plan
from cutegemm.errors import PlanError, SimulationError
from cutegemm.plan import GemmPlan, Operands, Problem
from cutegemm.plan.memory.groups import with_group_ends, with_index
from cutegemm.plan.problem import D_INDEX
from cutegemm.plan.work.division import WorkTile
from cutegemm.plan.work.grouped import DeepGroups, GroupedScheduler, GroupTile, RowGroups
from cutegemm.plan.work.tiles import TileGrid
from cutegemm.plan.work.work import State, Work
from cutegemm.simulator import play_interleavings, roles, run, search_interleavings, simulate
from cutegemm.simulator.memory import GroupsOf, is_poison
from cutegemm.simulator.protocol.protocol import Protocol, protocol_for
from cutegemm.simulator.stores.epi_stages import EpiStageStorage
from tests.grouped import FORMS, arguments, bounds, check_results, expected, form

QUICK, THOROUGH = 30, 500  # vectors of ends for each mode that groups divide
PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47)


# --- random ends ---------------------------------------------------------------------------------------------------


def random_ends(rng: np.random.Generator) -> tuple[list[int], int]:
    """Return ends of groups, and the extent that they divide, which may be more or less than the last end."""
    kind = rng.choice(["none", "ones", "primes", "one giant", "many", "any", "past the end", "decrease"])
    count = int(rng.integers(1, 8))
    sizes: Any = {
        "none": np.zeros(count, int),
        "ones": np.ones(count, int),
        "primes": rng.permutation(PRIMES[: 2 * count]),
        "one giant": np.where(np.arange(count) == rng.integers(count), 330, 1),
        "many": rng.integers(0, 4, 128),
    }.get(kind, rng.integers(0, 150, count) * rng.integers(0, 2, count))
    ends = np.cumsum(sizes)
    extent = int(ends[-1] + rng.integers(0, 2) * rng.integers(0, 70))
    if kind == "past the end":
        extent = int(ends[-1] * rng.random())
    if kind == "decrease":  # ends that fall for good: what was a group's before is never another's too
        ends[count // 2 :] = np.sort(rng.integers(-9, ends[count // 2] + 1, count - count // 2))[::-1]
    return ends.tolist(), max(1, extent)


def check_random(name: str, seed: int) -> None:
    """Simulate a form for random extents and ends, with NaN in the rows, columns or k of A and B after the last end."""
    groups, rng = FORMS[name][0], np.random.default_rng([seed, *map(ord, name)])
    ends, extent = random_ends(rng)
    m, n, k = (8 * int(rng.integers(1, most)) for most in ((9, 9, 2) if groups == "k" else (12, 16, 12)))
    m, n, k = (extent if mode == groups else own for mode, own in zip("mnk", (m, n, k), strict=True))
    given = arguments(name, m, n, k, ends, seed)
    last = max(end for _, end in bounds(ends, extent))
    if "index" in given:
        factor = given["a"] if groups == "m" else given["b"].T
        factor[np.setdiff1d(np.arange(len(factor)), given["index"][:last])] = np.nan
        groups = ""
    if groups in ("m", "k"):
        given["a"][(slice(None),) * (groups == "k") + (slice(last, None),)] = np.nan
    if groups in ("n", "k"):
        given["b"][(slice(None),) * (groups == "n") + (slice(last, None),)] = np.nan
    result = simulate(form(name), **given)
    check_results(name, given, {"d": result.d, **result.aux})
    outside = np.isnan(expected(name, given)["d"])
    assert is_poison(result.d[outside]).all()


def forms_of(groups: str) -> list[str]:
    return [name for name in FORMS if FORMS[name][0] == groups]


@pytest.mark.parametrize("groups", ["m", "n", "k"])
def test_random_ends(groups: str) -> None:
    names = forms_of(groups)
    for seed in range(QUICK):
        check_random(names[seed % len(names)], seed)


@pytest.mark.thorough
@pytest.mark.parametrize("groups", ["m", "n", "k"])
def test_more_random_ends(groups: str) -> None:
    names = forms_of(groups)
    for seed in range(QUICK, QUICK + THOROUGH):
        check_random(names[seed % len(names)], seed)


@pytest.mark.parametrize("name", FORMS)
def test_each_form(name: str) -> None:
    """An empty group, groups of less than a tile and of several, and some elements after the last end."""
    given = arguments(name, 200, 136, 200, [30, 30, 101, 130])
    result = simulate(form(name), **given)
    check_results(name, given, {"d": result.d, **result.aux})


def test_a_group_is_not_touched_by_values_of_another() -> None:
    """Groups divide K: NaN and infinity in the k of group 1 are in its D only, and an empty group has zeros."""
    given = arguments("k", 72, 64, 160, [50, 90, 90, 160])
    given["a"][:, 50:90], given["b"][50:90] = np.nan, np.inf
    d = simulate(form("k"), **given).d
    assert np.isnan(d[1]).all()
    assert not d[2].any()
    np.testing.assert_array_equal(d[[0, 3]], expected("k", given)["d"][[0, 3]])


@pytest.mark.parametrize("name", ["m", "n", "k"])
def test_one_group_is_a_dense_gemm(name: str) -> None:
    given = arguments(name, 136, 136, 136, [136])
    d = simulate(form(name), **given).d.reshape(136, 136)
    np.testing.assert_array_equal(d, given["a"].reshape(136, 136) @ given["b"].reshape(136, 136))


@pytest.mark.parametrize("name", ["m", "k"])
def test_nothing_in_the_extent_that_groups_divide(name: str) -> None:
    given = arguments(name, 0 if name == "m" else 64, 64, 0 if name == "k" else 64, [0, 0])
    d = simulate(form(name), **given).d
    assert (d.shape, d.any()) == (((0, 64), False) if name == "m" else ((2, 64, 64), False))


def test_groups_that_overlap_are_reported() -> None:
    """The ends 50, 30, 40 give group 2 rows that group 0 has as well: they are stored twice."""
    given = arguments("m", 64, 64, 64, [50, 30, 40])
    with pytest.raises(SimulationError, match=r"written 2 times"):
        simulate(form("m"), **given)


def test_arguments_that_do_not_fit() -> None:
    given = arguments("m", 64, 64, 64, [30, 64])
    with pytest.raises(PlanError, match=r"ends is missing; the mainloop reads it\. Pass an array of shape \(l, 1\)"):
        simulate(form("m"), given["a"], given["b"])
    with pytest.raises(PlanError, match="do not fit D = A @ B"):
        simulate(form("m"), given["a"], given["b"], ends=[10, 20, 64])


# --- orders of execution -------------------------------------------------------------------------------------------


def protocol_with(name: str, ends: list[int], extent: int, warps: bool = False) -> Protocol:
    """Return the protocol of a form on two CTAs or clusters for groups with these ends.

    warps   whether each warp of a consumer is a process of its own
    """
    plan = form(name, ctas=2)
    plan = plan.with_scheduler(grid=replace(plan.scheduler.grid, ctas=2 * plan.cluster_tile.size))
    sizes = {mode: extent if mode == FORMS[name][0] else 136 for mode in "mnk"}
    problem = Problem(sizes["m"], sizes["n"], sizes["k"], len(ends), plan.operands)
    work = plan.work(problem, {"ends": np.array(ends).reshape(-1, 1, 1)})
    return protocol_for(plan, [work.of_cluster(place) for place in range(work.clusters)], warps)


@pytest.mark.parametrize("name", ["m", "m_cooperative_2x1", "n", "k", "k_cooperative_2x1", "k_1x2", "m_residual"])
@pytest.mark.parametrize("ends", [[0, 300, 310], [64, 64, 65, 400]])
def test_orders_of_execution(name: str, ends: list[int]) -> None:
    """Groups of K give one, five or six k-tiles; groups of M or N give tiles that only some CTAs take."""
    protocol = protocol_with(name, ends, 400)
    assert play_interleavings(protocol, random_runs=2).faults == ()
    assert search_interleavings(protocol, max_states=200).faults == ()


@pytest.mark.parametrize("name", ["m", "k"])
def test_orders_of_warps(name: str) -> None:
    protocol = protocol_with(name, [0, 130, 140], 200, warps=True)
    assert play_interleavings(protocol, random_runs=2).faults == ()


def test_a_consumer_with_the_k_tiles_of_another_group() -> None:
    """A stale group in one role: one consumer takes the numbers of k-tiles of groups with other ends."""
    whole, stale = protocol_with("k", [64, 300], 400), protocol_with("k", [0, 300], 400)
    mixed = [
        theirs if own.role == "consumer 1" else own
        for own, theirs in zip(whole.processes, stale.processes, strict=True)
    ]
    assert play_interleavings(replace(whole, processes=tuple(mixed)), random_runs=1).faults


# --- planted faults ------------------------------------------------------------------------------------------------


def with_work(plan: GemmPlan, kind: type[Work]) -> GemmPlan:
    """Return a plan whose work tiles are of another class on the host."""

    @dataclass(frozen=True)
    class Faulty(GroupedScheduler):
        def grouped(self, tiles: TileGrid, k: Any, tensors: Mapping[str, Any]) -> Work:
            return kind(**vars(super().grouped(tiles, k, tensors)))

    scheduler = plan.scheduler
    return plan.with_(scheduler=Faulty(**{name: value for name, value in vars(scheduler).items() if name[0] != "_"}))


@dataclass(frozen=True, kw_only=True)
class WrongGroup(RowGroups):
    """The tiles of a group are computed as those of the group before it."""

    def tile_mnl(self, work_tile: WorkTile, rank: Any = 0) -> tuple[Any, Any, Any]:
        m, n, group = super().tile_mnl(work_tile, rank)
        return m, n, self.tiles.arithmetic.maximum(group - 1, 0)


@dataclass(frozen=True, kw_only=True)
class WrongTile(RowGroups):
    """The first tile of a group is not updated: tiles are numbered from the first tile of all."""

    def tile(self, state: State) -> GroupTile:
        return replace(super().tile(state), first=0)


@dataclass(frozen=True, kw_only=True)
class LastIsLeftOut(RowGroups):
    """The last group is never taken."""

    def exists(self, state: State) -> Any:
        return state[1] < self.groups - 1


@dataclass(frozen=True, kw_only=True)
class WrongDepth(DeepGroups):
    """Each group has the k-tiles of the next one."""

    def tile(self, state: State) -> GroupTile:
        tile = super().tile(state)
        return replace(tile, k_count=self._k_tiles(self.bounds(tile.group + 1)[1]))


ENDS = [40, 60, 200]


@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        ("m", WrongGroup, "no CTA takes the tile"),
        ("n", WrongGroup, "no CTA takes the tile"),
        ("m", WrongTile, "no CTA takes the tile"),
        ("m", LastIsLeftOut, "no CTA takes the tile"),
        ("k", WrongDepth, "is multiplied 1 times"),
    ],
)
def test_wrong_work_tiles(name: str, kind: type[Work], said: str) -> None:
    with pytest.raises(SimulationError, match=said):
        simulate(with_work(form(name), kind), **arguments(name, 200, 136, 200, ENDS))


def test_stores_that_are_not_clipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """TMA stores whole tiles: rows of the next group are written twice, and rows after the last end are written."""

    def not_clipped(problem: Problem, *rest: Any) -> Any:
        matrices = laid_out(problem, *rest)
        d = matrices["d"]
        assert d.groups is not None
        d.groups = GroupsOf(d.groups.mode, d.groups.begins, d.extents[0] - d.groups.begins)
        return matrices

    laid_out = run.laid_out
    monkeypatch.setattr(run, "laid_out", not_clipped)
    with pytest.raises(SimulationError, match="written 2 times"):
        simulate(form("m"), **arguments("m", 200, 136, 64, ENDS))
    with pytest.raises(SimulationError, match="past the end of D"):
        simulate(form("m"), **arguments("m", 200, 136, 64, [40]))


def test_a_consumer_that_stores_to_the_group_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stale group in one role: the consumer stores each tile to the group of the tile before."""
    own_group = roles.Player.own_group

    def stale(self: Any, process: Any, number: int) -> Any:
        before = own_group(self, process, max(0, number - 1))
        return replace(own_group(self, process, number), batch=before.batch)

    monkeypatch.setattr(roles.Player, "own_group", stale)
    with pytest.raises(SimulationError, match="written 2 times"):
        simulate(form("m_cooperative_2x1"), **arguments("m_cooperative_2x1", 200, 136, 64, ENDS))


def test_a_producer_that_loads_another_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each group but the first begins with the last k-tile of the group before: D differs from float64."""
    given = arguments("k", 64, 64, 200, ENDS)
    shapes = roles._shapes

    def one_k_tile_early(*all_of: Any) -> Any:
        found = shapes(*all_of)
        return [[replace(s, k_first=s.k_first - (s.group.batch > 0)) for s in own] for own in found]

    monkeypatch.setattr(roles, "_shapes", one_k_tile_early)
    d = simulate(form("k"), **given, check="report").d
    with pytest.raises(AssertionError):
        check_results("k", given, {"d": d})


# --- rows that are gathered ----------------------------------------------------------------------------------------


def test_rows_of_no_group_are_not_loaded() -> None:
    """Tiles of 20, 1 and 64 rows are loaded in 2 k-tiles of 64, for 2 columns of tiles."""
    given = arguments("m_index", 96, 128, 128, [20, 21, 85])
    given["index"] = given["index"] % len(given["a"])
    assert simulate(form("m_index"), **given).stats.loaded_a_elems == (20 + 1 + 64) * 2 * 64 * 2


def test_a_stale_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted fault: a producer that keeps the indices of the tile before loads other rows."""
    sources, known = roles.Stage.sources, []

    def stale(stage, stream, group, first):
        known.append(sources(stage, stream, group, first))
        return known[max(0, len(known) - 2)]

    given = arguments("m_index", 96, 64, 64, [30, 96])
    monkeypatch.setattr(roles.Stage, "sources", stale)
    d = simulate(form("m_index", ctas=1), **given).d
    assert not np.array_equal(d, expected("m_index", given)["d"])


@pytest.mark.parametrize(
    ("name", "fault"), [("m_added", "twice"), ("n_added", "twice"), ("m_added", "past"), ("n_added", "past")]
)
def test_rows_that_are_added_twice_or_past_the_end(name: str, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted faults: the second row of each tile is added where the first is; rows after the last are added."""
    targets = EpiStageStorage.targets

    def wrong(storage, origin, group):
        if fault == "twice":
            return targets(storage, origin, group)[[0, 0, *range(2, storage.store.epi_tile["mn".index(name[0])])]]
        return np.maximum(targets(storage, origin, group), 0)

    given = arguments(name, 96, 96, 64, [30, 90])
    given["d_index"] = np.arange(96)[::-1]
    simulate(form(name), **given)
    monkeypatch.setattr(EpiStageStorage, "targets", wrong)
    with pytest.raises(SimulationError, match=r"is written \d+ times"):
        simulate(form(name), **given)


def test_sums_are_rounded_in_the_order_of_the_rows() -> None:
    """In bf16, 256 + 1 is 256. The rows of a group with 1 in front are added before the one with 256, or after it."""
    plan = sm90_plan(with_index(with_group_ends(Operands.of("bf16", layout="nt", batched=True, groups="m")), D_INDEX))
    a, b = np.zeros((4, 64), np.float32), np.ones((1, 64, 64), np.float32)
    for rows, total in (([1, 1, 256, 0], 258), ([256, 1, 1, 0], 256)):
        a[:, 0] = rows
        problem = Problem(4, 64, 64, 1, plan.operands, targets=2)
        d = simulate(plan, a, b, ends=[4], d_index=[1, 1, 1, 0], problem=problem).d
        assert d.tolist() == [[0] * 64, [total] * 64]


@pytest.mark.parametrize("wrong", [2.7, float("nan"), float("inf"), 2**31, -(2**31) - 1])
def test_ends_and_indices_are_integers_of_32_bits(wrong: float) -> None:
    given = arguments("m_index", 64, 64, 64, [30, 64])
    for name in ("ends", "index"):
        values = np.array(given[name], float)
        simulate(form("m_index"), **{**given, name: values})
        values.flat[1] = wrong
        with pytest.raises(
            PlanError, match=rf"{name.upper()} has the element {re.escape(str(float(wrong)))}, which is"
        ):
            simulate(form("m_index"), **{**given, name: values})


def test_a_problem_of_other_sources() -> None:
    given = arguments("m_index", 64, 64, 64, [64])
    assert len(given["a"]) == 35
    plan = form("m_index")
    problem = Problem(64, 64, 64, 1, plan.operands)
    simulate(plan, **given, problem=replace(problem, sources=35))
    for sources in (None, 34):
        with pytest.raises(PlanError, match=f"sources = {sources}, but A has 35 rows to gather from"):
            simulate(plan, **given, problem=replace(problem, sources=sources))


def test_an_index_of_other_modes() -> None:
    given = arguments("m_index", 64, 64, 64, [64])
    del given["index"]
    with pytest.raises(PlanError, match=r"index is missing; the mainloop reads it\. Pass an array of shape \(m, 1\)"):
        simulate(form("m_index"), **given)
    given["index"] = np.zeros((64, 2), int)
    with pytest.raises(PlanError, match="do not fit D = A @ B"):
        simulate(form("m_index"), **given)
