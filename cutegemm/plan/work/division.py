"""How the k-tiles of tiles are divided among the CTAs of a persistent grid: split-K and stream-K.

A work tile is a run of k-tiles of one tile. The tiles whose k-tiles are shared come first, in the order of the raster;
each is a stretch of `span` k-tiles of one long line, which workers cut into runs:

    split of 2 parts, 3 tiles of 5 k-tiles    |aaabb|cccdd|eeeff|        a worker for each part, each span 6
    stream of 1 wave, 3 tiles, a grid of 4    |aaaab|bbbcc|ccddd|        a worker for each CTA of the grid
    the same, each tile with an owner      aaaa bbbb cccc |abc|          a worker for each CTA without a tile

A worker's run goes over the ends of tiles, so that it is several work tiles, of neighbouring tiles. An owner takes the
first k-tiles of its tile, and only the rest of them are on the line: all owners read the same k-tiles of A and B at
about the same time, as where nothing is shared. Behind the shared tiles come the others, a work tile each. All is
arithmetic on the number of a work tile, for integers, arrays of them, and values that a kernel computes with; who
takes which number, and what else a work tile is, is said by `scheduler`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from cutegemm.plan.work.arithmetic import INTEGERS, Arithmetic, ceil_div
from cutegemm.plan.work.split import KSplit

LEAST_RUN = 8  # k-tiles of a worker: below that a CTA more costs more than it brings
# Where tiles have owners: the time that a part takes besides its products, in k-tiles; the fewest k-tiles of each tile
# that pay for it; and the most workers for each tile. Of 0 to 10 k-tiles 5 to 8 were seen to be best, for pingpong and
# cooperative consumers alike.
FIXUP_K_TILES = 5
LEAST_REST = 6
MOST_WORKERS = 4


@dataclass(frozen=True)
class WorkTile:
    """k-tiles of a tile.

    tile      its number in the raster's order; tiles are counted in clusters
    k_first   the first of the k-tiles
    k_count   how many
    splits    work tiles that share the tile, its peers and itself: with 1 there is nothing to add up; 0 is a work tile
              in which there is nothing to do
    k_split   which of them this is, in the order of their k-tiles, which is that of adding
    slot      by which `WorkGrid.slot_of` finds the places of the parts' sums in the workspace
    group     problem of a grouped GEMM; see `scheduler`
    """

    tile: Any
    k_first: Any
    k_count: Any
    splits: Any
    k_split: Any
    slot: Any
    group: Any = 0

    def map(self, function: Callable[[Any], Any]) -> WorkTile:
        """A function of each field."""
        return WorkTile(*[function(getattr(self, f.name)) for f in fields(self)])


@dataclass(frozen=True)
class KDivision:
    """How the tiles of a problem are divided.

    k_tiles      of a tile
    shared       tiles whose k-tiles are shared
    span         of a shared tile on the line of the workers
    workers      that cut the line; the first `longer` of them take `run` + 1 of it, the others `run`
    columns      numbers from one work tile of a worker to its next
    pieces       work tiles of a worker
    count        numbers of work tiles in all, the whole tiles with them
    slots        of a shared tile's sums in the workspace
    arithmetic   functions of these values
    fixup        k-tiles of a shared tile that its owner takes, and which are not on the line; the first columns are the
                 owners', the workers' are behind them. None where no tile has an owner
    divisors     those of `divided_by`, in a form that is faster to divide by
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
        """The work tile of a number below `count`; one that has no k-tiles to take has 0 parts.

        >>> from cutegemm.plan.work.split import KSplit
        >>> division = k_division_of(KSplit(waves=1), 3, 5, 4, least_run=1)
        >>> [(u.tile, u.k_first, u.k_count) for u in map(division.work_tile, range(division.count)) if u.splits]
        [(0, 0, 4), (0, 4, 1), (1, 3, 2), (2, 2, 3), (1, 0, 3), (2, 0, 2)]
        """
        if self.fixup is None and self.pieces == 1:  # a split: each run is a work tile
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
        past = number - self.columns * self.pieces  # of the whole tiles, where it is not below 0
        whole = WorkTile(self.shared + past, 0, self.k_tiles, 1, 0, 0)
        return self._either(self.arithmetic.is_below(past, 0), shared, whole)

    def following(self, number: Any, clusters: Any) -> Any:
        """The number of the next work tile of the same cluster; owners have one of a shared tile.

        clusters   of the grid

        >>> from cutegemm.plan.work.split import FIXUP
        >>> division = k_division_of(FIXUP, 11, 95, 4)
        >>> [(number, division.following(number, 4)) for number in (0, 3, 7)]
        [(0, 16), (3, 7), (7, 11)]
        """
        if self.fixup is None:
            return number + clusters
        return number + clusters * (1 + self.arithmetic.is_below(number, self.shared) * (self.pieces - 1))

    def _kept(self, owner: Any, piece: Any) -> WorkTile:
        """The k-tiles that the owner of a tile takes of it, by its first piece alone."""
        splits, slot = self.sums_of(owner)
        is_first = self.arithmetic.is_below(piece, 1)
        return WorkTile(owner, 0, self.fixup * is_first, splits * is_first, 0, slot)

    def _piece(self, column: Any, piece: Any) -> WorkTile:
        """The k-tiles that the worker of a column takes off the line."""
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
        """The first where 1 is said, the second where 0 is."""
        names = [f.name for f in fields(WorkTile) if f.name != "group"]
        pairs = [(getattr(first, name), getattr(second, name)) for name in names]
        return WorkTile(*[there + is_first * (here - there) for here, there in pairs])

    def sums_of(self, tile: Any) -> tuple[Any, Any]:
        """How many parts a tile below `shared` has, and the slot of the sums of the first of them.

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
        """Where a worker's run begins."""
        return worker * self.run + self.arithmetic.minimum(worker, self.longer)

    def _worker(self, place: Any) -> Any:
        """Whose run a place is of."""
        least, most = self.arithmetic.minimum, self.arithmetic.maximum
        longer = self.longer * (self.run + 1)
        _, by_longer, by_others = self.divided_by
        return least(place // by_longer, self.longer) + most(place - longer, 0) // by_others

    @property
    def divided_by(self) -> tuple[Any, ...]:
        """The divisors of places on the line: a tile's span, a longer run, and another one."""
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
    """How so many tiles of D are divided among a persistent grid.

    split     parts > 1: each tile into so many, fewer where there are fewer k-tiles. waves > 0: those tiles
              that do not fill the grid, and waves - 1 times a grid of tiles more, among all of the grid
    grid      CTAs, or clusters where tiles are counted in clusters

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
    """The tiles that do not fill the grid, each with an owner; none where the others cannot take enough of them.

    With what the parts take besides, all who take some have as much to do.
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
