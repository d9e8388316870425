"""A tile scheduler from outside the package: it carries two integers, and reads a tensor in device memory.

D consists of two problems, which lie one after the other in the order of the raster. The tiles of the second one are
multiplied by half of the k-tiles only, and taken in reverse order. An int32 in device memory says where it begins.
Everything that the scheduler needs is in this file: its work tiles, how a cluster gets from one to the next, its rules.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest

from cutegemm.analysis import check
from cutegemm.build import simt_plan, sm90_plan
from cutegemm.dtypes import s32
from cutegemm.errors import PlanError, SimulationError
from cutegemm.plan import GemmPlan, OneEach, Operand, Operands, Problem, TileScheduler
from cutegemm.plan.work.arithmetic import ceil_div
from cutegemm.plan.work.division import WorkTile
from cutegemm.plan.work.split import by_last_cta
from cutegemm.plan.work.tiles import TileGrid
from cutegemm.plan.work.work import State, Work
from cutegemm.simulator import play_interleavings, simulate
from cutegemm.simulator.protocol.protocol import protocol_for

BEGIN = Operand(s32, "m", 4, modes=("m/65536", "k/65536"))  # a single element, for problems of at most 65536 rows


# --- the scheduler ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HalfTile(WorkTile):
    """A work tile with the problem that it belongs to: 0 or 1."""

    half: Any = 0


@dataclass(frozen=True, kw_only=True)
class TwoProblems(Work):
    """The work tiles of both problems. The state is (number of the work tile, first tile of its problem).

    tensor   first tile of the second problem, at least 1, as a tensor of one element; None on the host of a kernel
    """

    kind: ClassVar[type[WorkTile]] = HalfTile

    tensor: Any

    @property
    def boundary(self) -> Any:
        """Return the first tile of the second problem. A kernel reads it where a method asks for it."""
        return self.tensor[0, 0, 0]

    def first(self, place: Any) -> State:
        return self._after(place, 0)

    def next(self, state: State) -> State:
        number, begin = state
        return self._after(number + self.clusters, begin)

    def _after(self, number: Any, begin: Any) -> State:
        is_second = 1 - self.tiles.arithmetic.is_below(number, self.boundary)
        return number, begin + is_second * (self.boundary - begin)

    def exists(self, state: State) -> Any:
        return state[0] < self.count

    def tile(self, state: State) -> HalfTile:
        number, begin = state
        half = 1 - self.tiles.arithmetic.is_below(begin, 1)
        tile = number + half * (begin + self.count - 1 - 2 * number)
        return HalfTile(tile, 0, self._k_count(half), 1, 0, 0, half)

    def _k_count(self, half: Any) -> Any:
        return self.k_tiles + half * (ceil_div(self.k_tiles, 2) - self.k_tiles)

    def k_tiles_of(self, work_tile: WorkTile) -> Any:
        assert isinstance(work_tile, HalfTile)
        return self._k_count(work_tile.half)


@dataclass(frozen=True)
class TwoProblemScheduler(TileScheduler):
    """Take the tiles of two problems. The operand `begin` is the first tile of the second one."""

    @property
    def reads(self) -> tuple[str, ...]:
        return ("begin",)

    def divide(self, tiles: TileGrid, k_tiles: Any, tensors: Mapping[str, Any]) -> Work:
        clusters = self.grid.clusters(tiles.count, tiles.cluster, tiles.arithmetic)
        tensor = tensors.get("begin")
        if tensor is None and isinstance(tiles.count, int):  # the analysis does not know it
            tensor = np.full((1, 1, 1), max(1, tiles.count // 2))
        return TwoProblems(tiles=tiles, k_tiles=k_tiles, count=tiles.count, clusters=clusters, tensor=tensor)

    def received(self, known: Mapping[str, Any], own: tuple[Any, ...], tensors: Mapping[str, Any]) -> Work:
        return TwoProblems(**known, tensor=tensors["begin"])

    def rules(self, plan: GemmPlan) -> Iterator[str]:
        yield from super().rules(plan)
        if self.split.is_split or plan.cluster_k > 1:
            yield "K is split; a CTA takes all k-tiles of a tile of two problems."

    def describe(self, plan: GemmPlan, problem: Problem | None) -> Iterator[tuple[str, str, str, str]]:
        yield from super().describe(plan, problem)
        yield "problems", "2", "one after the other", "the second has half of the k-tiles"


def plan_of_two(schedule: str = "pingpong", kind: type[TwoProblemScheduler] = TwoProblemScheduler, **options: Any):
    """Return a plan with the scheduler."""
    operands = Operands.of("bf16", layout="nt", out="f32")
    base = sm90_plan(operands, tile=(64, 64, 64), schedule=schedule, epi_tile_n=32, stages=3, **options)
    scheduler = base.scheduler
    return base.with_(
        name="two_problems",
        operands=operands.with_aux(begin=BEGIN),
        scheduler=kind(scheduler.raster, scheduler.split, scheduler.grid, scheduler.order),
    )


def random_arguments(m: int, n: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return A and B of small integers: all sums are exact."""
    rng = np.random.default_rng(m * n + k)
    a, b = rng.integers(-4, 5, (m, k)), rng.integers(-4, 5, (k, n))
    return a.astype(np.float32), b.astype(np.float32)


def expected(plan: GemmPlan, a: np.ndarray, b: np.ndarray, begin: int) -> np.ndarray:
    """Return D by the tiles of the raster: from tile `begin` on, only the first half of the k-tiles counts."""
    (m, k), (_, n), (bm, bn, bk) = a.shape, b.shape, plan.cta_tile
    half = ceil_div(ceil_div(k, bk), 2) * bk
    whole, part = a @ b, a[:, :half] @ b[:half]
    for clusters in plan.work(Problem(m, n, k, operands=plan.operands)).tiles.order()[begin:]:
        for m_tile, n_tile, _ in clusters:
            at = slice(m_tile * bm, (m_tile + 1) * bm), slice(n_tile * bn, (n_tile + 1) * bn)
            whole[at] = part[at]
    return whole


# --- what the package does with it --------------------------------------------------------------------------------


def test_work_tiles_by_hand() -> None:
    """6 tiles on 2 CTAs, the second problem from tile 3 on: tiles 0 to 2, then 5, 4, 3 of half of the 4 k-tiles."""
    plan = plan_of_two(ctas=2, raster="along_m")
    work = plan.work(Problem(192, 128, 256, operands=plan.operands), {"begin": np.full((1, 1, 1), 3)})
    assert [[*work.states(place)] for place in range(2)] == [[(0, 0), (2, 0), (4, 3)], [(1, 0), (3, 3), (5, 3)]]
    assert [(t.tile, t.k_count, t.half) for t in work.of_cluster(0)] == [(0, 4, 0), (2, 4, 0), (4, 2, 1)]
    assert [(t.tile, t.k_count, t.half) for t in work.of_cluster(1)] == [(1, 4, 0), (5, 2, 1), (3, 2, 1)]
    taken = work.assignment()
    assert (taken.work_tile.tile.tolist(), taken.work_tile.half.tolist()) == ([0, 1, 2, 5, 4, 3], [0, 0, 0, 1, 1, 1])


def test_consumers_in_turn() -> None:
    """Consumer 1 of CTA 1 begins with its second tile, after 4 k-tiles, and passes the 2 of the third one."""
    plan = plan_of_two(ctas=2, raster="along_m")
    work = plan.work(Problem(192, 128, 256, operands=plan.operands), {"begin": np.full((1, 1, 1), 3)})
    first = work.first(1)
    assert [work.first_of(first, turn, 2) for turn in range(2)] == [(1, 0), (3, 3)]
    assert [work.k_tiles_before(first, turn, 2) for turn in range(2)] == [0, 4]
    assert [work.k_tiles_between(state, 2) for state in work.states(1)][:2] == [2, 2]
    assert work.ahead(first, 2) == (5, 3)


def test_text_and_rules() -> None:
    plan = plan_of_two()
    line = next(line for line in plan.describe().splitlines() if line.startswith("problems"))
    assert line.split(maxsplit=2)[1:] == ["2", "one after the other   the second has half of the k-tiles"]
    with pytest.raises(PlanError, match="the scheduler reads begin, which is not an operand of the mainloop"):
        plan.with_(operands=Operands.of("bf16", layout="nt", out="f32"))
    with pytest.raises(PlanError, match="K is split; a CTA takes all k-tiles"):
        plan.with_scheduler(split=by_last_cta(split_k=2))
    with pytest.raises(PlanError, match="'pingpong' consumers alternate between tiles, so the grid must be persistent"):
        plan.with_scheduler(grid=OneEach())
    with pytest.raises(
        PlanError, match="'lanes' is not a field of a TwoProblemScheduler; the fields are raster, split"
    ):
        plan.with_scheduler(lanes=2)
    threads = simt_plan()
    with pytest.raises(PlanError, match="TwoProblemScheduler needs warp roles"):
        replace(
            threads,
            operands=threads.operands.with_aux(begin=BEGIN),
            scheduler=TwoProblemScheduler(threads.scheduler.raster),
        )


@pytest.mark.parametrize("schedule", ["cooperative", "pingpong"])
@pytest.mark.parametrize(("mnk", "begin"), [((200, 136, 600), 5), ((256, 320, 64), 1), ((130, 200, 450), 12)])
def test_simulated(schedule: str, mnk: tuple[int, int, int], begin: int) -> None:
    plan = plan_of_two(schedule, ctas=3, **({"consumers": 1} if schedule == "cooperative" else {}))
    a, b = random_arguments(*mnk)
    result = simulate(plan, a, b, begin=np.array([[begin]], np.int32))
    np.testing.assert_array_equal(result.d, expected(plan, a, b, begin))


def test_orders_of_execution() -> None:
    plan = plan_of_two(ctas=2)
    work = plan.work(Problem(192, 128, 7 * 64, operands=plan.operands), {"begin": np.full((1, 1, 1), 2)})
    protocol = protocol_for(plan, [work.of_cluster(place) for place in range(work.clusters)])
    assert play_interleavings(protocol, random_runs=2).faults == ()


def test_planted_faults() -> None:
    """A tile that no CTA takes, and k-tiles that are left out."""

    @dataclass(frozen=True, kw_only=True)
    class Short(TwoProblems):
        def exists(self, state: State) -> Any:
            return state[0] < self.count - 1

    @dataclass(frozen=True, kw_only=True)
    class Shallow(TwoProblems):
        def tile(self, state: State) -> HalfTile:
            tile = super().tile(state)
            return replace(tile, k_count=tile.k_count - 1)

    a, b = random_arguments(200, 136, 600)
    for wrong, said in ((Short, "no CTA takes the tile"), (Shallow, "is multiplied 0 times")):

        @dataclass(frozen=True)
        class Faulty(TwoProblemScheduler):
            def divide(self, tiles: TileGrid, k_tiles: Any, tensors: Mapping[str, Any], kind: Any = wrong) -> Work:
                return kind(**vars(super().divide(tiles, k_tiles, tensors)))

        with pytest.raises(SimulationError, match=said):
            simulate(plan_of_two(kind=Faulty, ctas=3), a, b, begin=np.array([[5]], np.int32))


def test_analysis() -> None:
    """Without the tensor, half of the 64 tiles belong to the second problem."""
    plan = plan_of_two(ctas=132)
    problem = Problem(512, 512, 512, operands=plan.operands)
    assert int(plan.work(problem).assignment().work_tile.half.sum()) == 32
    report = check(plan, problem)
    assert report.traffic is not None
    assert report.waves is not None
    assert report.waves.persistent == 132


@pytest.mark.parametrize("schedule", ["cooperative", "pingpong"])
def test_compiled_and_emulated(schedule: str) -> None:
    pytest.importorskip("cutlass")
    from cutegemm.run.emulated import emulate

    plan = plan_of_two(schedule, ctas=2, **({"consumers": 1} if schedule == "cooperative" else {}))
    a, b = random_arguments(130, 136, 300)
    for begin in (4, 7):
        result = emulate(plan, a, b, begin=np.array([[begin]], np.int32))
        np.testing.assert_array_equal(result.d, expected(plan, a, b, begin))
