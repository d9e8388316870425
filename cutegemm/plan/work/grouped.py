"""The tile scheduler of grouped GEMMs: groups of any size, whose ends are known in device memory only.

`RowGroups` are the work tiles if groups divide M or N. The tiles of a group are numbered after those of the group
before it, and a cluster carries the group of its work tile, with its first tile and its rows. It reads the ends of
other groups only if its next work tile is not in the same group. `DeepGroups` are those if groups divide K: each group
has all tiles of its own D, and its own number of k-tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

from cutegemm.plan.memory.groups import COUNTS, ENDS, ROWS, batch_of_equal_groups, ragged_mode, without_groups
from cutegemm.plan.stream import OperandStream
from cutegemm.plan.work.arithmetic import INTEGERS, Arithmetic
from cutegemm.plan.work.cluster import ClusterTile
from cutegemm.plan.work.division import WorkTile
from cutegemm.plan.work.scheduler import TileScheduler
from cutegemm.plan.work.tiles import TileGrid
from cutegemm.plan.work.work import State, Work
from cutegemm.tile.tma import TmaBox

if TYPE_CHECKING:
    from cutegemm.plan.plan import GemmPlan
    from cutegemm.plan.problem import Problem

Stated = TypeVar("Stated", "Problem", "Problem | None")
MOST_TILES = 2**21  # tiles of a group at most: `kernels.work.Divisor` divides numbers below this one


@dataclass(frozen=True)
class GroupTile(WorkTile):
    """A work tile of a grouped GEMM.

    group   index of the group
    first   number of the group's first tile
    begin   index of the group's first row, column or k
    size    number of its rows, columns or k
    """

    group: Any = 0
    first: Any = 0
    begin: Any = 0
    size: Any = 0


@dataclass(frozen=True, kw_only=True)
class GroupedWork(Work):
    """The work tiles of a grouped GEMM: what both kinds of groups have in common.

    group_ends   (groups, 1, 1) integers: the end of each group along the mode that groups divide, or the size of each
                 group: see `GroupedScheduler.sizes`. None on the host of a kernel
    extent       extent of that mode, for all groups together
    groups       number of groups
    """

    kind: ClassVar[type[WorkTile]] = GroupTile

    group_ends: Any
    extent: Any
    groups: Any

    def bounds(self, group: Any) -> tuple[Any, Any]:
        """Return (begin, size) of a group.

        Ends are cut to the range from 0 to the extent. A group whose end is less than the one before has size 0; if
        later ends rise again, groups overlap.

        group   index of the group. One past the last is allowed; its values have no meaning
        """
        least, most = self.tiles.arithmetic.minimum, self.tiles.arithmetic.maximum
        own = least(group, self.groups - 1)
        if self.scheduler.sizes == COUNTS:  # type: ignore[attr-defined]
            room = self.extent // self.groups
            return own * room, most(least(self.group_ends[own, 0, 0], room), 0)
        is_later = 1 - self.tiles.arithmetic.is_below(own, 1)
        begin = is_later * self._end(most(own - 1, 0))
        return begin, most(self._end(own) - begin, 0)

    def _end(self, group: Any) -> Any:
        """Return the end of a group, at most the extent and at least 0."""
        least, most = self.tiles.arithmetic.minimum, self.tiles.arithmetic.maximum
        return most(least(self.group_ends[group, 0, 0], self.extent), 0)

    def own_values(
        self, integer: Callable[[Any], Any], divisors: Callable[[tuple[Any, ...]], tuple[Any, ...]]
    ) -> tuple[Any, ...]:
        return integer(self.extent), integer(self.groups)


@dataclass(frozen=True, kw_only=True)
class RowGroups(GroupedWork):
    """Groups of rows or of columns of D.

    The state is (number of the work tile, its group, first tile of the group, its first row, number of its rows).
    """

    def first(self, place: Any) -> State:
        return self._at(place, (0, 0, *self.bounds(0)))

    def next(self, state: State) -> State:
        return self.ahead(state, 1)

    def ahead(self, state: State, turns: int) -> State:
        return self._at(state[0] + turns * self.clusters, state[1:])

    def first_of(self, state: State, turn: Any, turns: int) -> State:
        return self._at(state[0] + turn * self.clusters, state[1:])

    def _at(self, number: Any, group: tuple[Any, ...]) -> State:
        """Return the state of a work tile, given its number.

        group   where the search begins: index, first tile, first row and number of rows of a group. Its first tile is
                at most `number`
        """
        return number, *self.tiles.arithmetic.search(number, group, self.groups, self.bounds, self._tiles_of_rows)

    def exists(self, state: State) -> Any:
        return state[1] < self.groups

    def tile(self, state: State) -> GroupTile:
        return GroupTile(state[0], 0, self.k_tiles, 1, 0, 0, *state[1:])

    def k_tiles_before(self, state: State, turn: Any, turns: int) -> Any:
        return turn * self.k_tiles

    def k_tiles_between(self, state: State, turns: int) -> Any:
        return (turns - 1) * self.k_tiles

    @property
    def mode(self) -> int:
        """Return the mode of D that groups divide: 0 for M, 1 for N."""
        return "mn".index(self.scheduler.mode)  # type: ignore[attr-defined]

    def clusters_along(self, size: Any) -> Any:
        """Return the number of tiles of a cluster along the mode that groups divide, for a group of `size` rows."""
        cluster, mode = self.tiles.cluster, self.mode
        return self.tiles.arithmetic.ceil_div(size, cluster.cta_tile[mode] * cluster.cluster_mn[mode])

    def tiles_of(self, group: Any) -> Any:
        """Return the number of tiles of a group."""
        return self._tiles_of_rows(self.bounds(group)[1])

    def _tiles_of_rows(self, size: Any) -> Any:
        """Return the number of tiles of a group of `size` rows, or columns if groups divide N."""
        return self.clusters_along(size) * (self.tiles.n_tiles, self.tiles.m_tiles)[self.mode]

    def tile_mnl(self, work_tile: WorkTile, rank: Any = 0) -> tuple[Any, Any, Any]:
        assert isinstance(work_tile, GroupTile)
        along = self.tiles.arithmetic.maximum(self.clusters_along(work_tile.size), 1)
        m, n, _ = self.tiles.part(self.mode, along).tile_mnl(work_tile.tile - work_tile.first, rank)
        return m, n, work_tile.group

    def ctas_along(self, batch: Any) -> tuple[Any, Any]:
        (bm, bn, _), (_, size) = self.tiles.cluster.cta_tile, self.bounds(batch)
        m, n = super().ctas_along(batch)
        ceil_div = self.tiles.arithmetic.ceil_div
        return (ceil_div(size, bm), n) if self.mode == 0 else (m, ceil_div(size, bn))


@dataclass(frozen=True, kw_only=True)
class DeepGroups(GroupedWork):
    """Groups of K, each with a D of its own. The state is the number of the work tile."""

    def first(self, place: Any) -> State:
        return (place,)

    def next(self, state: State) -> State:
        return (state[0] + self.clusters,)

    def exists(self, state: State) -> Any:
        return state[0] < self.count

    def tile(self, state: State) -> GroupTile:
        (number,) = state
        _, _, group = self.tiles.tile_mnl(number)
        begin, size = self.bounds(group)
        return GroupTile(number, 0, self._k_tiles(size), 1, 0, 0, group, 0, begin, size)

    def _k_tiles(self, size: Any) -> Any:
        """Return the number of k-tiles of a group. One without elements has one k-tile, of zeros."""
        return self.tiles.arithmetic.maximum(self.tiles.arithmetic.ceil_div(size, self.tiles.cluster.cta_tile[2]), 1)

    def k_tiles_of(self, work_tile: WorkTile) -> Any:
        assert isinstance(work_tile, GroupTile)
        return self._k_tiles(work_tile.size)


def with_equal_groups(plan: GemmPlan, problem: Stated) -> tuple[GemmPlan, Stated]:
    """Return a plan and a problem of a batch whose matrices are the groups, if all groups have the same size.

    The analysis looks at them, because the ends of groups are not known before a launch. Without groups, or without a
    problem, both are returned as they are.

    >>> from cutegemm.build import sm90_plan
    >>> from cutegemm.plan import Operands, Problem
    >>> plan = sm90_plan(Operands.of("bf16", batched=True, groups="m"))
    >>> batched, problem = with_equal_groups(plan, Problem(1000, 64, 128, 8, plan.operands))
    >>> type(batched.scheduler).__name__, str(problem)
    ('EqualGroups', '125x64x128x8')
    """
    if not plan.operands.groups or problem is None:
        return plan, problem
    known = plan.scheduler
    batched = EqualGroups(known.raster, known.split, known.grid, known.order)
    streams = tuple([_of_adjacent_rows(plan, stream) for stream in plan.streams])
    operands = without_groups(plan.operands)
    store = plan.store.to_adjacent_rows(plan.operands)
    batched_plan = plan.with_(operands=operands, scheduler=batched, streams=streams, store=store)
    return batched_plan, batch_of_equal_groups(problem)


def _of_adjacent_rows(plan: GemmPlan, stream: OperandStream) -> OperandStream:
    """Return a stream whose rows are gathered as one that loads many rows in a box; another one as it is."""
    if not stream.index:
        return stream
    box, sharers = stream.load, plan.multicast_mn["nm".index(stream.mode)]
    assert isinstance(box, TmaBox)
    rows = replace(box, box=(box.box[0], stream.tile[0] // sharers), multicast=sharers)
    return replace(stream, load=rows, index="")


@dataclass(frozen=True)
class EqualGroups(TileScheduler):
    """Take the tiles of a batch that stands for groups of equal size. What groups cannot have is forbidden too."""

    def rules(self, plan: GemmPlan) -> Iterator[str]:
        yield from super().rules(plan)
        yield from _unsupported(plan)


def _unsupported(plan: GemmPlan) -> Iterator[str]:
    """Yield a sentence for each option of a plan that a grouped GEMM cannot have."""
    if plan.body.has_roles and plan.body.kind == "single":
        yield "a grouped GEMM needs a producer. Use schedule='pingpong' or 'cooperative'."
    if plan.scheduler.split.is_split or plan.cluster_k > 1:
        yield "a grouped GEMM cannot split K. Leave split_k, stream, fixup and cluster_k out."
    if plan.repacks:
        yield "a grouped GEMM cannot repack operands. Leave repack out."
    if plan.epilogue.reductions:
        yield f"a grouped GEMM cannot reduce; its epilogue is {plan.epilogue}."


@dataclass(frozen=True)
class GroupedGrid(TileGrid):
    """The tiles of D of a grouped GEMM.

    mnl   (M, N, number of groups). The extent that groups divide is that of all groups together
    """

    mnl: tuple[Any, Any, Any] = (0, 0, 0)

    def along(self, k: Any, tensors: Mapping[str, Any] | None = None) -> Work:
        scheduler = self.scheduler
        assert isinstance(scheduler, GroupedScheduler)
        return scheduler.grouped(self, k, tensors or {})


@dataclass(frozen=True)
class GroupedScheduler(TileScheduler):
    """Take the tiles of groups whose ends, or sizes, are in device memory.

    mode    the mode that groups divide: "m", "n" or "k"
    sizes   name of the operand that says how large groups are: see `plan.memory.groups.operand_of_sizes`

    >>> from cutegemm.build import sm90_plan
    >>> from cutegemm.plan import Operands, Problem
    >>> plan = sm90_plan(Operands.of("bf16", batched=True, groups="m"), ctas=2)
    >>> problem = Problem(500, 128, 64, 3, plan.operands)
    >>> work = plan.work(problem, {"ends": np.array([300, 300, 500]).reshape(3, 1, 1)})
    >>> [(tile.group, int(tile.begin), int(tile.size)) for tile in work.of_cluster(0)]
    [(0, 0, 300), (0, 0, 300), (2, 300, 200)]
    >>> [tuple(map(int, work.tile_mnl(tile))) for tile in work.of_cluster(0)]
    [(0, 0, 0), (2, 0, 0), (1, 0, 2)]
    """

    mode: str = "m"
    sizes: str = ENDS

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.sizes,)

    @property
    def groups(self) -> str:
        return self.mode

    @property
    def has_empty_tiles(self) -> bool:
        return self.mode != "k"

    def tiles(
        self,
        cluster: ClusterTile,
        m: Any,
        n: Any,
        l: Any = 1,  # noqa: E741
        arithmetic: Arithmetic = INTEGERS,
    ) -> TileGrid:
        """Return the tiles of D. If groups divide M or N, their `count` is the largest one of any sizes of groups."""
        tiles = super().tiles(cluster, m, n, l, arithmetic)
        m_tiles, n_tiles, count = tiles.m_tiles, tiles.n_tiles, tiles.count
        if self.mode != "k":  # each group may end with a tile that is not full
            count = (m_tiles + l) * n_tiles if self.mode == "m" else m_tiles * (n_tiles + l)
        return GroupedGrid(self, cluster, m_tiles, n_tiles, count, arithmetic, mnl=(m, n, l))

    def divide(self, tiles: TileGrid, k_tiles: Any, tensors: Mapping[str, Any]) -> Work:
        return tiles.along(k_tiles * tiles.cluster.cta_tile[2], tensors)

    def grouped(self, tiles: GroupedGrid, k: Any, tensors: Mapping[str, Any]) -> Work:
        """Return the work tiles of a problem.

        k         extent of K; that of all groups together, if they divide K
        tensors   see `divide`
        """
        m, n, groups = tiles.mnl
        extent = {"m": m, "n": n, "k": k}[self.mode]
        ends = tensors.get(self.sizes)
        if ends is None and isinstance(groups, int):  # not known, as in the analysis: groups of equal size
            ends = (np.arange(1, groups + 1) * extent // max(groups, 1)).reshape(-1, 1, 1)
            if self.sizes == COUNTS:
                ends = np.full_like(ends, extent // max(groups, 1))
        k_tiles = tiles.arithmetic.ceil_div(k, tiles.cluster.cta_tile[2])
        fields = {"tiles": tiles, "k_tiles": k_tiles, "group_ends": ends, "extent": extent, "groups": groups}
        work = self._kind(**fields, count=tiles.count, clusters=0)
        if isinstance(work, RowGroups) and ends is not None:
            count = int(sum(work.tiles_of(group) for group in range(groups)))
            work = replace(work, tiles=replace(tiles, count=count), count=count)
        return replace(work, clusters=self.grid.clusters(work.count, tiles.cluster, tiles.arithmetic))

    @property
    def _kind(self) -> type[GroupedWork]:
        """Return the class of the work tiles."""
        return DeepGroups if self.mode == "k" else RowGroups

    def received(self, known: Mapping[str, Any], own: tuple[Any, ...], tensors: Mapping[str, Any]) -> Work:
        extent, groups = own
        return self._kind(**known, group_ends=tensors[self.sizes], extent=extent, groups=groups)

    def rules(self, plan: GemmPlan) -> Iterator[str]:
        yield from super().rules(plan)
        yield from _unsupported(plan)
        if plan.operands.gated and self.mode != "m":
            yield f"groups divide {self.mode.upper()} of B, whose columns a gated epilogue pairs. Let groups divide M."
        for name in ("a", "b", *plan.epilogue.tensors, *plan.epilogue.outputs):
            operand, mode = plan.operands.matrix(name), ragged_mode(plan.operands, name)
            if mode is not None and not operand.broadcast and operand.major == self.mode:
                yield (
                    f"{name.upper()} is {operand.major}-major, but groups divide that mode; TMA cannot start or clip a "
                    f"box at any element of it. Store {name.upper()} with the other mode contiguous."
                )

    def limits(self, work: Work) -> Iterator[str]:
        yield from super().limits(work)
        assert isinstance(work, GroupedWork)
        if work.groups == 0:
            yield "L = 0; a grouped GEMM has at least one group."
        tiles = work.tiles.m_tiles * work.tiles.n_tiles
        if self.mode != "k" and tiles > MOST_TILES:
            yield f"a group may have {tiles} tiles; kernels divide numbers below {MOST_TILES}. Take a larger tile."
        if work.extent >= ROWS:
            yield f"groups divide {work.extent} elements; a tensor map clips at most {ROWS - 1}."

    def describe(self, plan: GemmPlan, problem: Problem | None) -> Iterator[tuple[str, str, str, str]]:
        batched, batch = with_equal_groups(plan, problem)
        yield from TileScheduler.describe(self, batched, batch)
        count, counted = ("L", "") if problem is None else (str(problem.l), "; the tiles are those of equal groups")
        what = "group ends" if self.sizes == ENDS else "sizes of groups"
        yield "groups", count, f"along {self.mode.upper()}", f"{what} in device memory, operand {self.sizes!r}{counted}"


def scheduler_of_groups(mode: str, sizes: str, dense: TileScheduler) -> TileScheduler:
    """Return a tile scheduler of groups with the raster, grid and order of one without groups.

    mode    the mode that groups divide: "m", "n" or "k"; "" for a GEMM without groups, whose scheduler is `dense`
    sizes   name of the operand with the ends or the sizes of the groups
    """
    return GroupedScheduler(dense.raster, dense.split, dense.grid, dense.order, mode, sizes) if mode else dense
