"""The work tiles of a problem: the interface of schedulers with the kernels, the simulator and the analysis.

A cluster walks through its work tiles by a *state*, a tuple of integers that a kernel carries from one iteration of its
loop to the next:

    state = work.first(place)
    while work.exists(state):
        tile = work.tile(state)         # which tile of D, and which of its k-tiles
        ...
        state = work.next(state)

`WorkGrid` has a single integer, the number of the work tile. A scheduler whose groups have different sizes carries the
group, its first tile, its first row and its number of rows as well, so that it reads ends of groups only when a cluster
leaves its group.

Pingpong consumers take the work tiles of a CTA in turn. A consumer starts at `first_of`, goes on to `ahead`, and skips
the stages of the mainloop pipeline that the others' k-tiles fill, `k_tiles_before` and `k_tiles_between`. These methods
follow from the four above; a scheduler overrides them if it has a formula.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

from cutegemm.plan.work.arithmetic import ARRAYS
from cutegemm.plan.work.division import WorkTile
from cutegemm.plan.work.tiles import TileGrid

if TYPE_CHECKING:
    from cutegemm.plan.work.scheduler import TileScheduler

State = tuple[Any, ...]
_Work = TypeVar("_Work", bound="Work")


@dataclass(frozen=True, kw_only=True)
class Work:
    """Gives each cluster of a launch its work tiles, one after the other. Base class.

    A work tile is a tile of D with all or some of its k-tiles. A cluster iterates over its work tiles by a state, such
    as the number of the work tile: `first` returns the first state, `next` the following one, and `exists` tells
    whether it is valid. A subclass defines the states. All methods compute without branches, so that they also work for
    numpy arrays and for values in a kernel.

    tiles        the tiles of D, in the order of the raster
    k_tiles      number of k-tiles of each tile
    count        number of work tiles. With stream-K some are empty. An upper bound, if only the device knows the number
    clusters     number of launched clusters
    kind         class of the work tiles; not a field
    known_ends   the value of `ends` if it is known already, as in a kernel; None: it is computed
    k_first      index of the first k-tile of each tile: 0, or more for a CTA of a cluster that splits K
    """

    kind: ClassVar[type[WorkTile]] = WorkTile

    tiles: TileGrid
    k_tiles: Any
    count: Any
    clusters: Any
    known_ends: tuple[Any, ...] | None = None
    k_first: Any = 0

    @property
    def scheduler(self) -> TileScheduler:
        """Return the tile scheduler of these work tiles."""
        return self.tiles.scheduler

    # --- from one work tile of a cluster to the next -------------------------------------------------------------

    def first(self, place: Any) -> State:
        """Return the integers that identify the first work tile of a cluster, called its state.

        `next` returns the state of the cluster's next work tile. `tile` converts a state to the work tile.

        place   index of the cluster in the order of the scheduler: as launched, or GPC by GPC
        """
        raise NotImplementedError

    def next(self, state: State) -> State:
        """Return the state of the next work tile of the same cluster.

        state   integers that identify a work tile, as `first` or `next` returns them
        """
        raise NotImplementedError

    def exists(self, state: State) -> Any:
        """Return whether a state has a work tile. If not, the cluster has taken its last one.

        state   integers that identify a work tile, as `first` or `next` returns them
        """
        raise NotImplementedError

    def tile(self, state: State) -> WorkTile:
        """Return the work tile of a state: a tile of D, and the k-tiles of it that one cluster takes.

        An empty work tile has `splits` = 0. Kernels also call this for the state after the last work tile, and ignore
        the result; so it must not read memory out of bounds there.

        state   integers that identify a work tile, as `first` or `next` returns them
        """
        raise NotImplementedError

    def states(self, place: int) -> Iterator[State]:
        """Yield the states of all work tiles of a cluster, in order; `tile` turns a state into the work tile.

        place   index of the cluster in the order of the scheduler: as launched, or GPC by GPC
        """
        state = self.first(place)
        while self.exists(state):
            yield state
            state = self.next(state)

    def of_cluster(self, place: int) -> list[WorkTile]:
        """Return the work tiles that a cluster takes, in order.

        place   index of the cluster in the order of the scheduler: as launched, or GPC by GPC
        """
        return [self.tile(state) for state in self.states(place)]

    # --- pingpong consumers, which alternate between the work tiles of a CTA --------------------------------------

    def ahead(self, state: State, turns: int) -> State:
        """Return the state of the work tile that the same cluster takes `turns` work tiles later.

        state   integers that identify a work tile, as `first` or `next` returns them
        """
        for _ in range(turns):
            state = self.next(state)
        return state

    def first_of(self, state: State, turn: Any, turns: int) -> State:
        """Return the state of the first work tile that one of the pingpong consumers of a CTA takes.

        Pingpong consumers take the work tiles of a CTA in turn.

        state   integers that identify the first work tile of the cluster
        turn    index of the consumer
        turns   number of consumers
        """
        for before in range(turns - 1):
            is_later = self.tiles.arithmetic.is_below(before, turn)
            state = tuple(
                [here + is_later * (there - here) for here, there in zip(state, self.next(state), strict=True)]
            )
        return state

    def k_tiles_before(self, state: State, turn: Any, turns: int) -> Any:
        """Return the number of k-tiles in the mainloop pipeline before the first k-tile of a pingpong consumer.

        Pingpong consumers take the work tiles of a CTA in turn, so these are the k-tiles of the earlier consumers'
        first work tiles.

        state   integers that identify the first work tile of the cluster
        turn    index of the consumer
        turns   number of consumers
        """
        count = 0
        for before in range(turns - 1):
            theirs = self.tile(self.ahead(state, before))
            count = count + self.tiles.arithmetic.is_below(before, turn) * theirs.k_count
        return count

    def k_tiles_between(self, state: State, turns: int) -> Any:
        """Return the number of k-tiles that other pingpong consumers take between two work tiles of one consumer.

        Pingpong consumers take the work tiles of a CTA in turn.

        state   integers that identify the first of the two work tiles
        turns   number of consumers
        """
        return sum([self.tile(self.ahead(state, ahead)).k_count for ahead in range(1, turns)], 0)

    # --- tiles, k-tiles and K splits of a work tile ---------------------------------------------------------------

    def tile_mnl(self, work_tile: WorkTile, rank: Any = 0) -> tuple[Any, Any, Any]:
        """Return (m_tile, n_tile, batch) of the tile of D that a CTA of the cluster computes in a work tile.

        rank   rank of the CTA in its cluster
        """
        return self.tiles.tile_mnl(work_tile.tile, rank)

    def k_tiles_of(self, work_tile: WorkTile) -> Any:
        """Return the number of k-tiles of the whole tile that a work tile belongs to. They start at k-tile 0."""
        return self.k_tiles

    def ctas_along(self, batch: Any) -> tuple[Any, Any]:
        """Return the number of tiles of a cluster's CTAs along M and N of D of a batch, with those past its edges.

        batch   index of the batch, or of the group
        """
        cm, cn = self.tiles.cluster.cluster_mn
        return self.tiles.m_tiles * cm, self.tiles.n_tiles * cn

    def of_rank(self: _Work, rank: Any) -> _Work:
        """Return these work tiles with only the k-tiles that one CTA of each cluster multiplies.

        Unless the cluster splits K, these are all k-tiles.

        rank   rank of the CTA in its cluster
        """
        cluster = self.tiles.cluster
        if cluster.cluster_k == 1:
            return self
        k_first, k_tiles = cluster.k_range(rank, self.k_tiles, self.tiles.arithmetic.minimum)
        return replace(self, k_tiles=k_tiles, k_first=k_first)

    @property
    def shared(self) -> Any:
        """Return the number of tiles that may have several K splits: the first ones in the order of the raster.

        By default 0.
        """
        return 0

    @property
    def slots(self) -> Any:
        """Return the number of workspace slots. Each holds the accumulators of one K split. By default 0."""
        return 0

    @property
    def splits_are_rows(self) -> bool:
        """Return whether blockIdx.y of the launched grid is the K split. By default False."""
        return False

    def peers(self, tile: Any) -> WorkTile:
        """Return K split 0 of a tile, to find the number and workspace slots of all its K splits.

        Only the fields `tile`, `splits`, `k_split` and `slot` of the result are meaningful; its k-tiles are not
        computed.

        tile   index of the tile, below `shared`
        """
        return WorkTile(tile, 0, 0, 1, 0, 0)

    def slot_of(self, work_tile: WorkTile, k_split: Any) -> Any:
        """Return the workspace slot for the accumulators of a K split.

        work_tile   any work tile of the same tile of D
        k_split     index of the K split
        """
        return work_tile.slot + k_split

    # --- the places of clusters -----------------------------------------------------------------------------------

    def place(self, cluster: Any) -> Any:
        """Return the place of a cluster: its index in the order of the scheduler, which decides its first work tile.

        That order is the order of launch, or GPC by GPC.

        cluster   index of the cluster in launch order
        """
        return self.scheduler.order.place(cluster, self.ends, self.tiles.arithmetic)

    @cached_property
    def ends(self) -> tuple[Any, ...]:
        """Return values, computed on the host, that `place` needs to order clusters GPC by GPC; () for launch order."""
        if self.known_ends is not None:
            return self.known_ends
        return self.scheduler.order.ends(self.clusters, self.tiles.arithmetic)

    def launched(self) -> np.ndarray:
        """Return an array whose entry p is the launch index of the cluster with place p: the inverse of `place`.

        The extents must be integers, not traced values.
        """
        return np.argsort(self.of_arrays().place(np.arange(self.clusters)), kind="stable")

    # --- values for a kernel, and the enumeration of all work tiles -----------------------------------------------

    def own_values(
        self, integer: Callable[[Any], Any], divisors: Callable[[tuple[Any, ...]], tuple[Any, ...]]
    ) -> tuple[Any, ...]:
        """Return the values that the host passes to a kernel in addition to the fields of `Work`. By default ().

        integer    function that converts a number to a kernel argument
        divisors   function that converts non-negative integers to a form that is faster to divide by
        """
        return ()

    def host_values(
        self,
        integer: Callable[[Any], Any] = int,
        divisors: Callable[[tuple[Any, ...]], tuple[Any, ...]] = tuple,
    ) -> tuple[Any, ...]:
        """Return what the host passes to a kernel to describe these work tiles: a tuple of numbers and tuples.

        The kernel calls `TileScheduler.from_values` with them.

        integer    function that converts a number to a kernel argument
        divisors   function that converts non-negative integers to a form that is faster to divide by
        """
        return (
            self.k_tiles,
            self.tiles.m_tiles,
            self.tiles.n_tiles,
            self.tiles.host_divisors(divisors),
            self.count,
            self.clusters,
            self.own_values(integer, divisors),
            tuple([integer(end) for end in self.ends]),
        )

    def of_arrays(self: _Work) -> _Work:
        """Return these work tiles with numpy arithmetic: their methods then accept and return arrays of numbers."""
        return replace(self, tiles=replace(self.tiles, arithmetic=ARRAYS), known_ends=self.ends)

    def assignment(self) -> Assignment:
        """Return all work tiles that are not empty, with the cluster that takes each, in the order of their start.

        The extents must be integers, not traced values.
        """
        taken = [
            (turn, place, tile)
            for place in range(self.clusters)
            for turn, tile in enumerate(self.of_cluster(place))
            if tile.splits
        ]
        taken.sort(key=lambda each: each[:2])
        turns, places, tiles = zip(*taken, strict=True) if taken else ((), (), ())
        columns = [np.array([getattr(tile, f.name) for tile in tiles], np.int64) for f in fields(self.kind)]
        work_tiles = self.kind(*columns)
        return Assignment(self.of_arrays(), np.array(places, np.int64), np.array(turns, np.int64), work_tiles)


@dataclass(frozen=True)
class Assignment:
    """Which cluster takes which work tile, as arrays with one entry for each work tile.

    A work tile is a tile of D with all or some of its k-tiles.

    work        all work tiles of the problem; not an array
    cluster     place of the cluster that takes it, in the order of the clusters
    turn        number of work tiles that the same cluster takes before it, empty ones included
    work_tile   the work tile, whose fields are arrays
    """

    work: Work
    cluster: np.ndarray
    turn: np.ndarray
    work_tile: WorkTile

    def __len__(self) -> int:
        """Return the number of work tiles."""
        return len(self.cluster)

    def where(self, which: Any) -> Assignment:
        """Return the selected work tiles.

        which   boolean mask, or array of indices
        """
        work_tile = self.work_tile.map(lambda of: of[which])
        return Assignment(self.work, self.cluster[which], self.turn[which], work_tile)

    def tile_mnl(self, rank: int = 0) -> tuple[Any, Any, Any]:
        """Return the CTA tile of D for one CTA rank in every work tile: three arrays (m_tile, n_tile, l).

        rank   rank of the CTA in its cluster
        """
        return self.work.tile_mnl(self.work_tile, rank)
