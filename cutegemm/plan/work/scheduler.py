"""The tile scheduler of a plan: a problem's work tiles, and each cluster's work tiles in order.

A *work tile* is a tile of D of a whole cluster, with all its k-tiles or, if K is split, some of them.

    TileScheduler   a component of the plan: the order of the tiles, the split of K, the grid, the order of clusters
    TileGrid        for M, N and L: the tiles of D, their order, and the tile of each CTA of a cluster
    Work            for K as well: how a cluster gets from one work tile to the next
    WorkGrid        the work tiles of `TileScheduler`, which are numbered; the state of a cluster is a number

Kernels trace these classes; the simulator, the analysis and the drawings enumerate them. No other code maps a state to
a tile of D, a rank to a tile, or a K split to a workspace slot. All functions compute without branches on their values,
for integers, numpy arrays and traced values.

The split of K decides what the number of a work tile means:

| split                  | work tile `number`                                          | grid                        |
|------------------------|-------------------------------------------------------------|-----------------------------|
| none                   | tile `number`, all its k-tiles                              | a cluster for each work     |
|                        |                                                             | tile, or persistent         |
| split-K                | tile `number // splits`, K split `number % splits`. K       | the same                    |
|                        | splits of a tile are neighbours, and none is empty          |                             |
| split-K, `idle_ctas`   | tile `number % tiles`, K split `number // tiles`            | (tiles, K splits)           |
| stream-K               | K splits first, then tiles that are not split: see          | persistent                  |
|                        | `division`                                                  |                             |

Another scheduler derives from `TileScheduler`, and its work tiles from `Work`; see docs/extending.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from cutegemm.machine.arch import MAX_GRID_Y
from cutegemm.plan.work.arithmetic import ARRAYS, INTEGERS, Arithmetic
from cutegemm.plan.work.cluster import ClusterTile
from cutegemm.plan.work.division import KDivision, WorkTile, k_division_of
from cutegemm.plan.work.gpcs import GpcRaster, LaunchOrder
from cutegemm.plan.work.grid import Grid, OneEach
from cutegemm.plan.work.split import KSplit
from cutegemm.plan.work.tiles import TileGrid
from cutegemm.plan.work.work import Assignment, State, Work
from cutegemm.tile.raster import Raster

if TYPE_CHECKING:
    from cutegemm.plan.plan import GemmPlan
    from cutegemm.plan.problem import Problem

# Fields of `KDivision` that the host computes and passes to a kernel.
_HOST_VALUES = ("shared", "span", "workers", "run", "longer")
_FIXUP_HOST_VALUES = (*_HOST_VALUES, "fixup", "pieces")
_MOST = 2**31 - 1  # largest signed 32-bit integer
# The semaphore of a tile counts K splits in two 16-bit fields: those that have incremented it, and those whose
# accumulators are in the workspace.
_MAX_SPLITS = (1 << 15) - 1


@dataclass(frozen=True)
class TileScheduler:
    """The component of a plan that assigns work: the work tiles of a problem, and each cluster's work tiles in order.

    A work tile is a tile of D with all or some of its k-tiles. To write another scheduler, derive from this class and
    override `divide` (work tiles on the host) and `received` (work tiles in a kernel). Other methods to override:
    `reads` (operands that it reads), `rules`, `limits` and `describe`.

    raster   the order of the tiles of D, where a tile is what a whole cluster computes
    split    the split of K: none, split-K or stream-K
    grid     `Persistent` or `OneEach`: how many clusters are launched
    order    how clusters are numbered, which decides their first work tiles: as they are launched, or GPC by GPC (a GPC
             is a group of SMs)
    """

    raster: Raster
    split: KSplit = field(default_factory=KSplit)
    grid: Grid = field(default_factory=OneEach)
    order: LaunchOrder | GpcRaster = field(default_factory=LaunchOrder)

    # --- the work tiles of a problem ------------------------------------------------------------------------------

    @property
    def reads(self) -> tuple[str, ...]:
        """Return the names of the operands that the scheduler itself reads from device memory. By default ().

        A scheduler whose work tiles depend on the contents of an operand names that operand here.
        """
        return ()

    @property
    def groups(self) -> str:
        """Return the mode that the groups of a grouped GEMM divide: "m", "n" or "k"; "" for other GEMMs, by default."""
        return ""

    @property
    def has_empty_tiles(self) -> bool:
        """Return whether a tile may have no k-tiles, as all tiles if K is 0. Its accumulators are then set to 0."""
        return True

    def tiles(
        self,
        cluster: ClusterTile,
        m: Any,
        n: Any,
        l: Any = 1,  # noqa: E741
        arithmetic: Arithmetic = INTEGERS,
    ) -> TileGrid:
        """Return the tiles of a D of M x N x L elements, in the order of the raster.

        cluster      size of a cluster's tile, and how its CTAs divide it
        arithmetic   minimum, maximum and division for the extents: `INTEGERS`, or those for arrays or kernel values
        """
        (bm, bn, _), (cm, cn), ceil_div = cluster.cta_tile, cluster.cluster_mn, arithmetic.ceil_div
        m_tiles, n_tiles = ceil_div(m, bm * cm), ceil_div(n, bn * cn)
        return TileGrid(self, cluster, m_tiles, n_tiles, m_tiles * n_tiles * l, arithmetic)

    def divide(self, tiles: TileGrid, k_tiles: Any, tensors: Mapping[str, Any]) -> Work:
        """Return the work tiles of a problem: its tiles of D, divided along K as the scheduler's `split` says.

        tiles     the tiles of D
        k_tiles   number of k-tiles of each tile
        tensors   the operands that `reads` names, as arrays (rows, columns, L); {} if their contents are not known, as
                  on the host of a kernel and in the analysis
        """
        arithmetic, cluster = tiles.arithmetic, tiles.cluster
        count, division = tiles.count, None
        if cluster.idle_ctas and self.split.splits > 1:
            count = tiles.count * self.split.splits
        elif self.split.is_split:
            division = k_division_of(self.split, tiles.count, k_tiles, self.resident(cluster) or 1, arithmetic)
            count = division.count
        clusters = self.grid.clusters(count, cluster, arithmetic)
        return WorkGrid(tiles=tiles, k_tiles=k_tiles, count=count, clusters=clusters, division=division)

    def resident(self, cluster: ClusterTile) -> int:
        """Return the number of clusters of a persistent grid; 0 if the grid is not persistent.

        cluster   size of a cluster's tile, and how its CTAs divide it
        """
        return self.grid.ctas // cluster.size

    def from_values(
        self, cluster: ClusterTile, values: tuple[Any, ...], arithmetic: Arithmetic, tensors: Mapping[str, Any]
    ) -> Work:
        """Return the work tiles inside of a kernel, from the values that the host passed (`Work.host_values`).

        The numbers of tiles and of workspace slots are None, because only the host needs them.

        cluster      size of a cluster's tile, and how its CTAs divide it
        values       the values of `Work.host_values`, as the kernel's arguments
        arithmetic   minimum, maximum and division for kernel values
        tensors      the operands that `reads` names, as tensors (rows, columns, L) in device memory
        """
        k_tiles, m_tiles, n_tiles, divisors, count, clusters, own, ends = values
        tiles = TileGrid(self, cluster, m_tiles, n_tiles, None, arithmetic, divisors)
        known = {"tiles": tiles, "k_tiles": k_tiles, "count": count, "clusters": clusters, "known_ends": ends}
        return self.received(known, own, tensors)

    def received(self, known: Mapping[str, Any], own: tuple[Any, ...], tensors: Mapping[str, Any]) -> Work:
        """Return the work tiles inside of a kernel, from values that the host passed to it.

        The base class returns a `WorkGrid`. A scheduler with work tiles of another kind overrides the method.

        known     fields that every `Work` has, by their names
        own       further values that the host passed, which `Work.own_values` returned there
        tensors   the operands that the scheduler reads, as tensors (rows, columns, L) in device memory, by name
        """
        if not self.split.is_split:
            return WorkGrid(**known, division=None)
        names = (*_FIXUP_HOST_VALUES, "divisors") if self.split.fixup else _HOST_VALUES
        values = {"pieces": self.split.waves + 1, **dict(zip(names, own, strict=True))}
        tiles, count = known["tiles"], known["count"]
        columns = self.resident(tiles.cluster) if self.split.waves else count
        division = KDivision(
            k_tiles=known["k_tiles"], columns=columns, count=count, slots=None, arithmetic=tiles.arithmetic, **values,
        )  # fmt: skip
        return WorkGrid(**known, division=division)

    # --- rules, text and cost -------------------------------------------------------------------------------------

    def bounds(self) -> Iterator[str]:
        """Yield a sentence for each number of the scheduler that is out of bounds, such as a count below 1."""
        yield from self.grid.bounds()
        yield from self.order.bounds()

    def rules(self, plan: GemmPlan) -> Iterator[str]:
        """Yield a sentence for each rule of the scheduler that the plan breaks."""
        known = [name for name in plan.operands.of_mainloop if name not in [each.name for each in plan.streams]]
        for name in self.reads:
            if name not in known:
                yield f"the scheduler reads {name}, which is not an operand of the mainloop that no stream loads."
        if self.groups != plan.operands.groups:
            theirs, own = [f"groups along {x!r}" if x else "no groups" for x in (plan.operands.groups, self.groups)]
            yield f"the operands have {theirs}, but the scheduler has {own}. sm90_plan makes plans for groups."
        if plan.body.has_roles:
            yield from self._role_rules(plan)
        else:
            yield from self._schedule_rules(plan)
        yield from self.order.rules(plan)

    def _schedule_rules(self, plan: GemmPlan) -> Iterator[str]:
        """Yield a sentence for each broken rule on a plan whose threads all follow one schedule."""
        split = self.split
        if type(self) is not TileScheduler:
            yield f"{type(self).__name__} needs warp roles; a thread schedule takes numbered work tiles only."
        if self.grid.is_persistent != (split.waves > 0):
            yield (
                f"{split.waves} stream-K waves with a grid that is {self.grid}; stream-K of a thread schedule "
                "needs a persistent grid, and a persistent grid needs stream-K. Pass both waves and "
                "persistent, or neither."
            )
        if split.waves and (split.order, split.reduction) != ("blocked", "kernel"):
            yield (
                "stream-K of a thread schedule needs order = 'blocked' and reduction = 'kernel', not "
                f"{split.order!r} and {split.reduction!r}."
            )
        if split.splits > MAX_GRID_Y:
            yield f"split_k = {split.splits}; the second axis of a grid has at most {MAX_GRID_Y} CTAs."

    def _role_rules(self, plan: GemmPlan) -> Iterator[str]:
        """Yield a sentence for each broken rule on a plan with warp roles."""
        split, kind, size = self.split, plan.body.kind, plan.cluster_tile.size
        if self.grid.is_persistent and self.grid.ctas < size:
            yield (
                f"a persistent grid of {self.grid.ctas} CTAs is smaller than a cluster of {size}. Take more CTAs, "
                "or a smaller cluster."
            )
        if kind == "single" and (self.grid.is_persistent or size > 1):
            yield (
                "'single' consumers need a grid with one CTA for each tile, without clusters. Leave persistent "
                "and cluster out."
            )
        if kind == "pingpong" and not self.grid.is_persistent:
            yield "'pingpong' consumers alternate between tiles, so the grid must be persistent."
        if not split.is_split:
            return
        if kind == "single":
            yield "split-K and stream-K need a producer. Use another schedule than 'single', or leave them out."
        if split.waves and not self.grid.is_persistent:
            yield "stream-K needs a persistent grid. Leave ctas at its default, or leave stream and fixup out."
        if split.order != "blocked":
            yield f"order = {split.order!r}; a plan with warp roles splits K in 'blocked' order only."
        if split.reduction != "last":
            yield (
                f"reduction = {split.reduction!r}; with warp roles the CTA that ends last adds the K splits. Use "
                "'last'."
            )
        if max(split.splits, self.grid.ctas) > _MAX_SPLITS:
            yield f"a tile may have {max(split.splits, self.grid.ctas)} K splits; at most {_MAX_SPLITS} are allowed."

    def limits(self, work: Work) -> Iterator[str]:
        """Yield a sentence for each number of work tiles or k-tiles that does not fit the integers of a kernel.

        work   the work tiles of a problem
        """
        tiles = work.tiles.count
        if isinstance(work, WorkGrid) and self.split.waves:
            division = work.division
            assert division is not None
            reached = division.shared + division.pieces + 1  # tile indices, with those past the end that CTAs skip
            if reached * division.span > _MOST:
                yield (
                    f"stream-K divides {division.shared} tiles of {division.k_tiles} k-tiles each; their "
                    f"product exceeds {_MOST}, the largest 32-bit integer."
                )
        elif self.split.is_split and tiles * self.split.splits > _MOST:
            yield (
                f"{tiles} tiles with {self.split.splits} K splits each are more than {_MOST}, the largest 32-bit "
                "integer."
            )

    def describe(self, plan: GemmPlan, problem: Problem | None) -> Iterator[tuple[str, str, str, str]]:
        """Yield the rows of `GemmPlan.describe` about the grid: (level, number, shape, layout or remark).

        problem   the problem whose tiles are counted; None: the grid is given as a formula
        """
        grid, count = "M/bM x N/bN x L", "-"
        if problem is not None:
            m, n, batch = plan.grid(problem)
            grid, count = f"{m} x {n} x {batch} tiles", str(m * n * batch)
        yield "grid", count, grid, f"raster {self.raster}{self.order}"
        if plan.body.has_roles:
            overlapped = (
                "overlapped epilogue: a tile is stored while the next one is multiplied" if plan.body.overlapped else ""
            )
            yield "CTAs", str(self.grid.ctas or count), f"{plan.body.kind}, {self.grid}", overlapped
        elif self.grid.is_persistent:
            yield "CTAs", str(self.grid.ctas), str(self.grid), ""
        if self.split.is_split:
            waves = self.split.waves
            what = f"stream-K {'wave' if waves == 1 else 'waves'}" if waves else "K splits"
            yield "split", str(waves or self.split.splits), what, str(self.split)

    def is_even(self, work: Work) -> bool:
        """Return whether all CTAs have about the same number of k-tiles, so that no CTAs are idle in a last wave.

        work   the work tiles of a problem

        >>> from cutegemm.build import sm90_plan
        >>> from cutegemm.plan import Problem
        >>> problem = Problem(4096, 4096, 4096)
        >>> [plan.scheduler.is_even(plan.work(problem)) for plan in (sm90_plan(), sm90_plan(stream=1))]
        [False, True]
        """
        if self.split.fixup:  # no tile is split if it does not pay
            return bool(work.shared > 0)
        return self.split.waves > 0


@dataclass(frozen=True, kw_only=True)
class WorkGrid(Work):
    """Work tiles with the numbers 0 to `count` - 1. A cluster takes some of them in ascending order.

    division   how split-K or stream-K divides k-tiles among clusters; None if K is not split, or if blockIdx.y is the K
               split

    >>> from cutegemm.plan.work.grid import Persistent
    >>> scheduler = TileScheduler(Raster("along_m"), grid=Persistent(4))
    >>> work = scheduler.tiles(ClusterTile((128, 128, 64), cluster_mn=(2, 1)), 600, 256).along(512)
    >>> work.clusters, [[*work.states(place)] for place in range(2)]
    (2, [[(0,), (2,), (4,)], [(1,), (3,), (5,)]])
    >>> work.tile((4,))
    WorkTile(tile=4, k_first=0, k_count=8, splits=1, k_split=0, slot=0)
    """

    division: KDivision | None

    # --- from one work tile of a cluster to the next -------------------------------------------------------------

    def first(self, place: Any) -> State:
        return (place,)

    def next(self, state: State) -> State:
        return self.ahead(state, 1)

    def exists(self, state: State) -> Any:
        return state[0] < self.count

    def tile(self, state: State) -> WorkTile:
        return self.work_tile(state[0])

    def work_tile(self, number: Any) -> WorkTile:
        """Return the work tile with a number: a tile of D, and the k-tiles of it that one cluster takes.

        number   in [0, `count`)
        returns  the work tile; an empty one has `splits` = 0
        """
        if self.splits_are_rows:
            return self.split_of(number % self.tiles.count, number // self.tiles.count)
        return self.whole(number) if self.division is None else self.division.work_tile(number)

    def whole(self, tile: Any) -> WorkTile:
        """Return the work tile that takes all k-tiles of a tile."""
        return WorkTile(tile, self.k_first, self.k_tiles, 1, 0, 0)

    def split_of(self, tile: Any, k_split: Any) -> WorkTile:
        """Return the work tile of a K split, for a launched grid whose rows are the K splits.

        tile      blockIdx.x, the index of the tile
        k_split   blockIdx.y, the index of the K split
        """
        split = self.scheduler.split
        k_first, k_count = split.k_range(k_split, self.k_tiles, self.tiles.arithmetic.minimum)
        return WorkTile(tile, k_first, k_count, split.splits, k_split, tile)

    # --- pingpong consumers ----------------------------------------------------------------------------------------

    def ahead(self, state: State, turns: int) -> State:
        (number,) = state
        if not self.scheduler.split.fixup:
            return (number + self.clusters * turns,)
        assert self.division is not None
        for _ in range(turns):
            number = self.division.following(number, self.clusters)
        return (number,)

    def first_of(self, state: State, turn: Any, turns: int) -> State:
        if not self.scheduler.split.fixup:
            return (state[0] + turn * self.clusters,)
        return super().first_of(state, turn, turns)

    def k_tiles_before(self, state: State, turn: Any, turns: int) -> Any:
        if not self.scheduler.split.is_split:
            return turn * self.k_tiles
        return super().k_tiles_before(state, turn, turns)

    def k_tiles_between(self, state: State, turns: int) -> Any:
        if not self.scheduler.split.is_split:
            return (turns - 1) * self.k_tiles
        return super().k_tiles_between(state, turns)

    # --- the K splits of a tile -----------------------------------------------------------------------------------

    @property
    def splits_are_rows(self) -> bool:
        """Return whether blockIdx.y of the launched grid is the K split.

        The grid then has a row for each K split, even if K has fewer k-tiles than K splits.
        """
        return self.tiles.cluster.idle_ctas and self.scheduler.split.splits > 1

    @property
    def shared(self) -> Any:
        """Return the number of tiles that may have several K splits.

        They are the first ones in the order of the raster.
        """
        if self.splits_are_rows:
            return self.tiles.count
        return 0 if self.division is None else self.division.shared

    @property
    def slots(self) -> Any:
        """Return the number of workspace slots. Each holds the accumulators of one K split of a cluster's tile."""
        if self.splits_are_rows:
            return self.count
        return 0 if self.division is None else self.division.slots

    def peers(self, tile: Any) -> WorkTile:
        if self.division is None:
            return WorkTile(tile, 0, 0, self.scheduler.split.splits, 0, tile)
        splits, slot = self.division.sums_of(tile)
        return WorkTile(tile, 0, 0, splits, 0, slot)

    def slot_of(self, work_tile: WorkTile, k_split: Any) -> Any:
        if self.splits_are_rows:
            return k_split * self.tiles.count + work_tile.slot
        return work_tile.slot + k_split

    # --- values for a kernel, and the enumeration of all work tiles ------------------------------------------------

    def own_values(
        self, integer: Callable[[Any], Any], divisors: Callable[[tuple[Any, ...]], tuple[Any, ...]]
    ) -> tuple[Any, ...]:
        if self.division is None:
            return ()
        fixup = self.scheduler.split.fixup
        own = tuple([integer(getattr(self.division, f)) for f in (_FIXUP_HOST_VALUES if fixup else _HOST_VALUES)])
        return (*own, divisors(self.division.divided_by)) if fixup else own

    def of_arrays(self) -> WorkGrid:
        work = super().of_arrays()
        return work if work.division is None else replace(work, division=replace(work.division, arithmetic=ARRAYS))

    def assignment(self) -> Assignment:
        work, number = self.of_arrays(), np.arange(self.count, dtype=np.int64)
        clusters = max(1, self.clusters)
        cluster, turn = number % clusters, number // clusters
        if self.scheduler.split.fixup:
            for first in range(min(clusters, self.count)):
                own = [state[0] for state in self.states(first)]
                turn[own] = np.arange(len(own))
        work_tiles = work.work_tile(number).map(lambda value: value + 0 * number)
        return Assignment(work, cluster, turn, work_tiles).where(work_tiles.splits > 0)
