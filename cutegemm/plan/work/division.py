"""Divide the k-tiles of tiles among the CTAs of a persistent grid: split-K, stream-K and fixup.

A work tile is a run of k-tiles of one tile. The tiles whose K is split come first, in the order of the raster. Their
k-tiles, `span` of each tile, are concatenated to a line, and workers (CTAs or clusters) take runs of the line. In these
examples of 3 tiles with 5 k-tiles, bars separate tiles, and a letter is the worker that takes a k-tile:

    split-K by 2                     |aaabb|cccdd|eeeff|    a worker for each K split; span 6
    stream-K of 1 wave, grid of 4    |aaaab|bbbcc|ccddd|    a worker for each CTA of the grid; span 5
    fixup, grid of 4                 |aaaad|bbbbd|ccccd|    owners a, b, c; worker d is the CTA without a tile; span 1

A run that crosses the end of a tile is several work tiles, of neighbouring tiles. With fixup, each split tile has an
owner, a CTA that takes its first k-tiles; only the rest is on the line. So all owners read the same k-tiles of A and B
at about the same time, as they do without a split. The tiles that are not split follow, one work tile each.

Every function computes with integers, arrays of integers, or values of a traced kernel, without branches. `scheduler`
decides which cluster takes which work tile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from cutegemm.plan.work.arithmetic import INTEGERS, Arithmetic, ceil_div
from cutegemm.plan.work.split import KSplit

LEAST_RUN = 8  # fewest k-tiles of a worker: with shorter runs, one more worker costs more time than it saves
# Constants of fixup.
FIXUP_K_TILES = 5  # time that a K split takes in addition to its MMAs, in k-tiles; of 0 to 10, 5 to 8 are the fastest
LEAST_REST = 6  # fewest k-tiles of a tile that are worth a fixup
MOST_WORKERS = 4  # most workers for each tile


@dataclass(frozen=True)
class WorkTile:
    """The unit of work of a cluster: a tile of D with all of its k-tiles, or some (one K split).

    tile      index of the tile in the order of the raster. A tile here is what a whole cluster computes
    k_first   index of the first k-tile
    k_count   number of k-tiles
    splits    number of K splits of the tile, this one included. 1: no accumulators to add. 0: an empty work tile, which
              has no k-tiles
    k_split   index of this K split, in the order of its k-tiles. Accumulators are added in this order
    slot      index of the workspace slot (memory for the accumulators of one K split) of the tile's first K split

    A scheduler may use a derived class with more fields, such as the group of a grouped GEMM.
    """

    tile: Any
    k_first: Any
    k_count: Any
    splits: Any
    k_split: Any
    slot: Any

    def map(self, function: Callable[[Any], Any]) -> WorkTile:
        """Return a work tile with `function` applied to each field of this one, e.g. to convert them to arrays."""
        return type(self)(*[function(getattr(self, f.name)) for f in fields(self)])


@dataclass(frozen=True)
class KDivision:
    """Divides the k-tiles of a problem among workers (CTAs or clusters), for split-K and stream-K.

    The result is numbered work tiles: ranges of k-tiles of a tile of D. Imagine the k-tiles of all tiles whose K is
    split in one line, tile after tile. Each worker takes consecutive k-tiles of the line, called its run. A run that
    crosses the end of a tile is several work tiles. With fixup, each split tile has an owner, a CTA that takes its
    first k-tiles; only the rest of the tile is on the line. Tiles whose K is not split come after the split ones.

    k_tiles      number of k-tiles of a tile
    shared       number of tiles whose K is split
    span         number of k-tiles of a split tile on the line
    workers      number of workers
    run          number of k-tiles of a worker's run
    longer       number of workers, the first ones, whose runs have one k-tile more
    columns      distance between the numbers of one worker's work tiles: worker i has the numbers i, i + columns, and
                 so on. With fixup the owners of the `shared` tiles are counted as workers that come first
    pieces       greatest number of work tiles of a worker
    count        number of all work tiles, including empty ones and tiles that are not split
    slots        number of workspace slots, each for the accumulators of one K split
    arithmetic   minimum, maximum and division for these values: Python integers, numpy arrays, or values in a kernel
    fixup        number of k-tiles of a split tile that its owner takes; None: no owners
    divisors     the numbers that are divided by, in a form that a kernel divides by faster; None: plain numbers
    """

    k_tiles: Any
    shared: Any
    span: Any
    workers: Any
    run: Any
    longer: Any
    columns: Any
    pieces: int
    count: Any
    slots: Any
    arithmetic: Arithmetic = INTEGERS
    fixup: Any = None
    divisors: tuple[Any, ...] | None = None

    def work_tile(self, number: Any) -> WorkTile:
        """Return the work tile with a number: a tile of D, and the k-tiles of it that one cluster takes.

        number   in [0, `count`)
        returns  the work tile; an empty one, without k-tiles, has `splits` = 0

        >>> from cutegemm.plan.work.split import KSplit
        >>> division = k_division_of(KSplit(waves=1), 3, 5, 4, least_run=1)
        >>> [(u.tile, u.k_first, u.k_count) for u in map(division.work_tile, range(division.count)) if u.splits]
        [(0, 0, 4), (0, 4, 1), (1, 3, 2), (2, 2, 3), (1, 0, 3), (2, 0, 2)]
        """
        if self.fixup is None and self.pieces == 1:  # split-K: each run is a work tile
            splits = self.span // self.run
            tile, k_split = number // splits, number % splits
            first = k_split * self.run
            k_count = self.arithmetic.minimum(self.run, self.k_tiles - first)
            return WorkTile(tile, first, k_count, splits, k_split, tile * splits)
        column, piece = number % self.columns, number // self.columns
        shared = self._piece(column, piece)
        if self.fixup is not None:
            is_owner = self.arithmetic.is_below(column, self.shared)
            shared = self._either(is_owner, self._kept(column, piece), shared)
        past = number - self.columns * self.pieces  # index among the tiles that are not split, if not below 0
        whole = WorkTile(self.shared + past, 0, self.k_tiles, 1, 0, 0)
        return self._either(self.arithmetic.is_below(past, 0), shared, whole)

    def following(self, number: Any, clusters: Any) -> Any:
        """Return the number of the work tile that the same cluster takes next.

        Without fixup it is `number` + `clusters`. With fixup, an owner has a single work tile of split tiles, so the
        numbers of its other pieces, which are empty, are skipped.

        number     number of a work tile
        clusters   number of clusters of the grid

        >>> from cutegemm.plan.work.split import FIXUP
        >>> division = k_division_of(FIXUP, 11, 95, 4)
        >>> [(number, division.following(number, 4)) for number in (0, 3, 7)]
        [(0, 16), (3, 7), (7, 11)]
        """
        if self.fixup is None:
            return number + clusters
        return number + clusters * (1 + self.arithmetic.is_below(number, self.shared) * (self.pieces - 1))

    def _kept(self, owner: Any, piece: Any) -> WorkTile:
        """Return the work tile of a split tile's owner (stream-K with fixup): the first k-tiles of that tile.

        owner   index of the owner, which is that of the tile
        piece   index of the work tile among those of the owner; all but the first are empty
        """
        splits, slot = self.sums_of(owner)
        is_first = self.arithmetic.is_below(piece, 1)
        return WorkTile(owner, 0, self.fixup * is_first, splits * is_first, 0, slot)

    def _piece(self, column: Any, piece: Any) -> WorkTile:
        """Return the work tile of a worker for one of the tiles that its run of k-tiles crosses (stream-K).

        column   number of the worker; with fixup, the owners of the split tiles are counted first
        piece    index of the tile among those that the run crosses, from 0
        """
        least, most = self.arithmetic.minimum, self.arithmetic.maximum
        worker, kept = column, 0
        if self.fixup is not None:
            worker, kept = most(column - self.shared, 0), self.fixup
        begin, end = self._start(worker), self._start(worker + 1)
        span = most(self.span, 1)
        tile = begin // self.divided_by[0] + piece
        first = most(begin, tile * span)
        count = least(least(end, self.shared * span), (tile + 1) * span) - first
        count = most(count, 0)
        splits, slot = self.sums_of(tile)
        k_split = worker - (slot - tile) if self.fixup is None else worker - (slot - 2 * tile) + 1
        return WorkTile(tile, kept + first - tile * span, count, splits * least(count, 1), k_split, slot)

    def _either(self, is_first: Any, first: WorkTile, second: WorkTile) -> WorkTile:
        """Return `first` if `is_first` is 1, or `second` if it is 0, computed without a branch, as kernels need it."""
        names = [f.name for f in fields(WorkTile)]
        pairs = [(getattr(first, name), getattr(second, name)) for name in names]
        return WorkTile(*[there + is_first * (here - there) for here, there in pairs])

    def sums_of(self, tile: Any) -> tuple[Any, Any]:
        """Return (number of K splits of a tile, workspace slot of its first K split), for a tile whose K is split.

        tile   index of the tile; the tiles whose K is split are those below `shared`

        >>> from cutegemm.plan.work.split import KSplit
        >>> [k_division_of(KSplit(waves=1), 3, 5, 4, least_run=1).sums_of(tile) for tile in range(3)]
        [(2, 0), (2, 2), (2, 4)]
        """
        if self.fixup is None and self.pieces == 1:
            splits = self.span // self.run
            return splits, tile * splits
        span = self.arithmetic.maximum(self.span, 1)
        first, last = self._worker(tile * span), self._worker((tile + 1) * span - 1)
        if self.fixup is None:
            return last - first + 1, first + tile
        return last - first + 2, first + 2 * tile

    def _start(self, worker: Any) -> Any:
        """Return the position of a worker's first k-tile among the k-tiles of all split tiles, counted in order."""
        return worker * self.run + self.arithmetic.minimum(worker, self.longer)

    def _worker(self, place: Any) -> Any:
        """Return the worker that takes a k-tile, given its position when the k-tiles of all split tiles are counted.

        place   position of the k-tile
        """
        least, most = self.arithmetic.minimum, self.arithmetic.maximum
        longer = self.longer * (self.run + 1)
        _, by_longer, by_others = self.divided_by
        return least(place // by_longer, self.longer) + most(place - longer, 0) // by_others

    @property
    def divided_by(self) -> tuple[Any, ...]:
        """Return the three numbers that positions of k-tiles are divided by, to find their tile and their worker.

        They are: k-tiles of a split tile, k-tiles of a longer run, k-tiles of a shorter run. A run is the k-tiles that
        a worker takes. A position counts the k-tiles of all split tiles one after the other.
        """
        if self.divisors is not None:
            return self.divisors
        most = self.arithmetic.maximum
        return most(self.span, 1), self.run + 1, most(self.run, 1)


def k_division_of(
    split: KSplit,
    tiles: Any,
    k_tiles: Any,
    grid: Any,
    arithmetic: Arithmetic = INTEGERS,
    least_run: int = LEAST_RUN,
) -> KDivision:
    """Return how split-K or stream-K divides the k-tiles of `tiles` tiles among the clusters of a persistent grid.

    split        splits > 1 (split-K): each tile has `splits` K splits, or fewer if it has fewer k-tiles. waves > 0
                 (stream-K): the tiles % grid tiles that do not fill the grid, and those of waves - 1 full waves, are
                 divided among all of the grid
    tiles        number of tiles of D, where a tile is what a whole cluster computes
    k_tiles      number of k-tiles of each tile
    grid         number of clusters of the grid
    arithmetic   minimum, maximum and division for these values: `INTEGERS`, or those for arrays or kernel values
    least_run    stream-K: fewest k-tiles that a cluster takes

    >>> from cutegemm.plan.work.split import KSplit
    >>> k_division_of(KSplit(3), 4, 7, 132).count, k_division_of(KSplit(waves=2), 448, 128, 132).shared
    (12, 184)
    """
    minimum, maximum = arithmetic.minimum, arithmetic.maximum
    if split.waves == 0:
        run = maximum(ceil_div(k_tiles, split.splits), 1)
        splits = maximum(ceil_div(k_tiles, run), 1)
        count = tiles * splits
        return KDivision(k_tiles, tiles, run * splits, count, run, 0, count, 1, count, count, arithmetic)
    if split.fixup:
        return _fixup_division(tiles, k_tiles, grid, arithmetic, least_run)
    ragged = tiles % grid
    more = minimum(tiles // grid, split.waves - 1) * grid * minimum(ragged, 1)
    shared = (ragged + more) * minimum(k_tiles, 1)
    line = shared * k_tiles
    workers = maximum(minimum(grid, maximum(shared, line // least_run)), 1)
    pieces = split.waves + 1
    return KDivision(
        k_tiles, shared, k_tiles, workers, line // workers, line % workers, grid, pieces,
        grid * pieces + tiles - shared, maximum(workers + shared - 1, 0), arithmetic,
    )  # fmt: skip


def _fixup_division(
    tiles: Any,
    k_tiles: Any,
    grid: Any,
    arithmetic: Arithmetic,
    least_run: int,
) -> KDivision:
    """Return the division for stream-K with fixup: the tiles that do not fill the grid are split, each with an owner.

    An owner is a cluster that takes the first k-tiles of its tile. Workers, the clusters without a tile, take the rest.
    The division gives both about the same time, where each K split of a tile costs as much as `FIXUP_K_TILES` k-tiles.
    No tile is split if fewer than `LEAST_REST` k-tiles of each would go to the workers.

    tiles        number of tiles of D
    k_tiles      number of k-tiles of a tile
    grid         number of clusters of the persistent grid
    arithmetic   minimum, maximum and division for these values
    least_run    least number of k-tiles that a worker takes
    """
    minimum, maximum = arithmetic.minimum, arithmetic.maximum
    ragged = tiles % grid
    others = minimum(grid - ragged, MOST_WORKERS * ragged)
    among = maximum(ragged + others, 1)
    kept = minimum(ceil_div(ragged * (k_tiles + FIXUP_K_TILES), among), k_tiles)
    rest = k_tiles - kept
    pays = arithmetic.is_below(LEAST_REST - 1, rest) * minimum(ragged, 1)
    shared, span = ragged * pays, maximum(rest, 1)
    line = shared * span
    workers = maximum(minimum(others, line // least_run), 1)
    run = line // workers
    pieces = (ceil_div(run, span) + 1) * pays
    return KDivision(
        k_tiles, shared, span, workers, run, line % workers, grid, pieces, grid * pieces + tiles - shared,
        (workers + 2 * shared) * pays, arithmetic, kept,
    )  # fmt: skip
