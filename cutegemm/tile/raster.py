"""Rasters: orders of the tiles of D for the CTAs of a grid.

A raster is a bijection from the position in that order, 0 .. grid_m * grid_n * batch - 1, to a tile coordinate
(m_tile, n_tile, l). CTAs that run at the same time read the same tiles of A and B, so the order decides how
often these are read from the L2 cache. `tile` uses arithmetic and never branches on its arguments: the same
lines work with integers, with numpy arrays and with the DSL's Int32 while a kernel is traced.

The functions of the kinds are in the dictionary `_TILE_OF`, their divisors in `_DIVISORS_OF`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from cutegemm.errors import LayoutError
from cutegemm.layout import hooks
from cutegemm.layout.inttuple import integer_of, shown
from cutegemm.layout.layout import Layout
from cutegemm.layout.stride import E

KINDS = (
    "along_m",
    "along_n",
    "grouped_m",
    "grouped_n",
    "fitted_m",
    "fitted_n",
    "even_m",
    "even_n",
    "even",
    "hilbert",
)
_WITH_GROUP = ("grouped_m", "grouped_n", "even_m", "even_n", "even", "hilbert")  # kinds that need a group

_MAX_DIGITS = 18  # longest number in a text
_TEXT = re.compile(rf"\s*({'|'.join(KINDS)}|log_tile)\s*(?::\s*([0-9]+)\s*)?")


@dataclass(frozen=True)
class Raster(hooks.Shown):
    """The order of the tiles of D for the CTAs of a grid (rasterization). The matrices of a batch follow each other.

    A *band* is a strip of `group` tiles along one mode that spans the whole other mode. The last band of a grid
    may be narrower. Every tile is taken once. The kinds are:

    along_m     m_tile varies fastest, then n_tile
    along_n     n_tile varies fastest, then m_tile
    grouped_m   bands of `group` tiles along M; within a band m_tile varies fastest, then n_tile
    grouped_n   bands of `group` tiles along N; within a band n_tile varies fastest, then m_tile
    fitted_m    grouped_m with bands of 8 tiles, or of 4 if M has 5 or 6 tiles. A Hopper chip has 7 or 8 GPCs
                and assigns clusters to them in turn, so the clusters of a GPC tend to have the same row of
                tiles. Reads of A that coincide within a GPC are joined on their way to L2
    fitted_n    as fitted_m, with bands along N
    even_m      grouped_m with bands of at most `group` tiles that have nearly the same width
    even_n      as even_m, with bands along N
    even        even_m if M has at most as many tiles as N, else even_n
    hilbert     bands of `group` tiles along M, divided into squares; within a square the Hilbert curve, on
                which the next tile is a neighbour. Incomplete squares are taken column by column

    The arguments are:

    kind     one of these kinds
    group    number of tiles across a band, 1 or more, a power of two for hilbert; None for along_* and fitted_*
    raises   LayoutError for another kind or group
    source   grouped_n of 2**log_tile is the threadblock swizzle of CUTLASS
             (cutlass/gemm/threadblock/threadblock_swizzle.h, GemmIdentityThreadblockSwizzle)

    >>> Raster("grouped_m", 2).order(3, 2).tolist()
    [[0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 1, 0], [2, 0, 0], [2, 1, 0]]
    """

    kind: str = "along_m"
    group: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.kind, str) or self.kind not in KINDS:
            raise LayoutError(f"Raster: kind {self.kind!r} is not one of {', '.join(KINDS)}.")
        if self.kind not in _WITH_GROUP:
            if self.group is not None:
                raise LayoutError(
                    f"Raster: {self.kind} has no group, but group is {self.group!r}. Leave it out, or use "
                    f"grouped_{self.kind[-1]}."
                )
        elif type(self.group) is not int or self.group < 1:
            raise LayoutError(
                f"Raster: group {self.group!r} of {self.kind} is not a positive integer. Give 1 tile or more."
            )
        elif self.kind == "hilbert" and self.group & (self.group - 1):
            raise LayoutError(f"Raster: group {self.group} of hilbert is not a power of two.")

    @staticmethod
    def parse(text: str) -> Raster:
        """Return the raster, i.e. the order of the tiles of D, that a text such as "grouped_m:8" names.

        text     along_m, along_n, grouped_m:G, grouped_n:G, fitted_m, fitted_n, even_m:G, even_n:G, even:G or
                 hilbert:G with the band width G in tiles; or log_tile:T for grouped_n:2**T
        raises   LayoutError for any other text

        >>> Raster.parse("grouped_m:8")
        Raster(kind='grouped_m', group=8)
        """
        match = _TEXT.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise LayoutError(
                f"Raster.parse: {shown(text)} is not a raster. Write along_m, along_n, grouped_m:8, grouped_n:8, "
                "fitted_m, fitted_n, even_m:16, even_n:16, even:8, hilbert:8 or log_tile:3."
            )
        if match[2] is not None and len(match[2]) > _MAX_DIGITS:
            raise LayoutError(
                f"Raster.parse: the number has {len(match[2])} digits; at most {_MAX_DIGITS} are allowed."
            )
        kind, number = match[1], None if match[2] is None else int(match[2])
        if kind == "log_tile":
            return Raster.from_log_tile(0 if number is None else number)
        return Raster(kind, number)

    @staticmethod
    def from_log_tile(log_tile: int) -> Raster:
        """Return the raster (order of tiles) of CUTLASS's threadblock swizzle with bands of 2**log_tile tiles.

        In a grid (bx, by), bx fastest, a CTA takes the tile m = bx >> log_tile, n = (by << log_tile) + (bx &
        (2**log_tile - 1)). CTAs without a tile are not counted.

        log_tile   0 to 30
        raises     LayoutError for another value

        >>> Raster.from_log_tile(2)
        Raster(kind='grouped_n', group=4)
        """
        if type(log_tile) is not int or not 0 <= log_tile < 31:
            raise LayoutError(f"Raster: log_tile = {shown(log_tile)} is not an integer from 0 to 30.")
        return Raster("grouped_n", 1 << log_tile)

    def __str__(self) -> str:
        return self.kind if self.group is None else f"{self.kind}:{self.group}"

    def tile(
        self,
        linear: Any,
        grid_m: Any,
        grid_n: Any,
        minimum: Callable[[Any, Any], Any] = min,
        batched: bool = True,
        divisors: tuple[Any, ...] | None = None,
    ) -> tuple[Any, Any, Any]:
        """Return the coordinate (m_tile, n_tile, l) of the tile at a position of this raster (an order of tiles).

        linear           position, from 0: an integer, an integer array, or an integer of the DSL
        grid_m, grid_n   number of tiles along M and N, of the same type
        minimum          function that returns the smaller of two such values: min, np.minimum or cutlass.min
        batched          False for a grid with one batch: the batch index l is 0, and fewer divisions are computed
        divisors         integers that positions are divided by, from the method `divisors`, possibly as objects that
                         divide faster; None to compute them here

        >>> Raster("grouped_n", 2).tile(3, grid_m=4, grid_n=4)
        (1, 1, 0)
        """
        by, *others = divisors or self.divisors(grid_m, grid_n)
        if divisors is None and self.kind.startswith("grouped"):
            del others[1:]  # without the divisor of the last band, `_banded` divides by the width of each band
        batch = linear // by if batched else linear * 0
        within = linear % by if batched else linear
        return (*_TILE_OF[self.kind](within, grid_m, grid_n, self.group, minimum, *others), batch)

    def divisors(self, grid_m: Any, grid_n: Any) -> tuple[Any, ...]:
        """Return the integers that this raster divides a position by to find the coordinates of its tile.

        They depend only on the grid, so a kernel computes them once and passes them to the method `tile`.

        grid_m, grid_n   number of tiles along M and N
        returns          tuple of integers: first the number of tiles of a batch, then the divisors of this order of
                         tiles, e.g. the number of tiles of a band

        >>> Raster("grouped_m", 4).divisors(grid_m=6, grid_n=5)  # bands of 4 x 5 tiles; the last is 2 tiles wide
        (30, 20, 2)
        """
        return (grid_m * grid_n, *_DIVISORS_OF[self.kind](grid_m, grid_n, self.group))

    def divisors_of_part(
        self, whole: tuple[Any, ...], grid_m: Any, grid_n: Any, mode: int, fast: Callable[[tuple[Any, ...]], Any]
    ) -> tuple[Any, ...]:
        """Return the `divisors` of a grid with another number of tiles along one mode, such as the tiles of a group.

        If bands of fitted or even width cut the mode that stays the same, their widths are taken from `whole`, and not
        computed again.

        whole            divisors of the whole grid: integers, or objects that divide faster, with the integer as
                         attribute `divisor`
        grid_m, grid_n   number of tiles along M and N, with the other number
        mode             the mode with another number of tiles: 0 for M, 1 for N
        fast             function that converts positive integers to objects that divide faster

        >>> raster = Raster("even_n", 4)
        >>> raster.divisors_of_part(raster.divisors(10, 6), 2, 6, mode=0, fast=tuple) == raster.divisors(2, 6)
        True
        """
        if self.kind not in (f"{kind}_{'nm'[mode]}" for kind in ("even", "fitted")):
            return tuple(fast(self.divisors(grid_m, grid_n)))
        _, _, last_width, width, _ = whole
        along = (grid_m, grid_n)[mode]
        batch, band, length = fast((grid_m * grid_n, getattr(width, "divisor", width) * along, along))
        return batch, band, last_width, width, length

    def across(self, grid_m: int, grid_n: int) -> int | None:
        """Return the number of tiles across a band (strip of tiles) of this raster; None for an order without bands.

        grid_m, grid_n   number of tiles along M and N

        >>> Raster("grouped_n", 4).across(13, 13), Raster("fitted_n").across(13, 6), Raster("along_m").across(13, 13)
        (4, 4, None)
        """
        if self.kind.startswith("fitted"):
            return int(_fitted(grid_m if self.kind == "fitted_m" else grid_n))
        if self.kind.startswith("even") and self.group:
            return int(_even((grid_m, grid_n)[self._fast(grid_m, grid_n)], self.group))
        return self.group

    def _fast(self, grid_m: int, grid_n: int) -> int:
        """Return the mode of tiles that varies fastest within a band (strip of tiles) of this raster: 0 for M, 1 for N.

        grid_m, grid_n   number of tiles along M and N
        """
        return int(grid_m > grid_n if self.kind == "even" else self.kind.endswith("n"))

    def order(self, grid_m: int, grid_n: int, batch: int = 1) -> np.ndarray:
        """Return the coordinates of all tiles in the order of this raster.

        grid_m, grid_n   number of tiles along M and N
        batch            number of matrices
        returns          int64 array (grid_m * grid_n * batch, 3) with rows (m_tile, n_tile, l), where l is the batch
                         index
        raises           LayoutError for extents that are not integers of 0 or more

        >>> Raster("along_n").order(2, 2).tolist()
        [[0, 0, 0], [0, 1, 0], [1, 0, 0], [1, 1, 0]]
        """
        self._check_grid("order", grid_m, grid_n, batch)
        linear = np.arange(grid_m * grid_n * batch, dtype=np.int64)
        if len(linear) == 0:
            return np.zeros((0, 3), np.int64)
        return np.stack(self.tile(linear, grid_m, grid_n, np.minimum), axis=-1)

    def as_layout(self, grid_m: int, grid_n: int, batch: int = 1) -> Layout:
        """Return this raster as a layout that maps a position to the tile coordinate (m_tile, n_tile, l).

        Law: as_layout(...)(i) == tile(i, ...) for every position i.

        grid_m, grid_n   number of tiles along M and N
        batch            number of matrices
        raises           LayoutError if the width of a band does not divide the grid, and always for hilbert: no
                         layout gives this order, but `tile` does

        >>> str(Raster("grouped_m", 2).as_layout(4, 3, 5))
        '(2,3,2,5):(1@0,1@1,2@0,1@2)'
        """
        self._check_grid("as_layout", grid_m, grid_n, batch)
        if self.kind == "along_m":
            return Layout((grid_m, grid_n, batch), (E(0), E(1), E(2)))
        if self.kind == "along_n":
            return Layout((grid_n, grid_m, batch), (E(1), E(0), E(2)))
        if self.kind == "hilbert":
            raise LayoutError(f"Raster.as_layout: no layout gives the order {self}. Call `tile`.")
        fast = self._fast(grid_m, grid_n)
        slow, extents = 1 - fast, (grid_m, grid_n)
        group = self.across(grid_m, grid_n) or 1
        if extents[fast] % group:
            advice = "Call `tile`, which accepts every grid"
            if self.kind.startswith("grouped"):
                advice += f", or choose a group that divides {extents[fast]}"
            raise LayoutError(
                f"Raster.as_layout: no layout gives the order {self} on a grid of {grid_m}x{grid_n} tiles: its last "
                f"band is {extents[fast] % group} tiles wide, not {group}.\n  {advice}."
            )
        shape = (group, extents[slow], extents[fast] // group, batch)
        return Layout(shape, (E(fast), E(slow), group * E(fast), E(2)))

    def _check_grid(self, operation: str, grid_m: int, grid_n: int, batch: int) -> None:
        """Raise LayoutError unless the numbers of tiles along M, N and the batch are integers of 0 or more.

        operation               name of the calling method, for the message
        grid_m, grid_n, batch   number of tiles along M and N, and of matrices
        """
        extents = [integer_of(extent) for extent in (grid_m, grid_n, batch)]
        if any(extent is None or extent < 0 for extent in extents):
            raise LayoutError(
                f"Raster.{operation}: a grid of {grid_m!r} x {grid_n!r} tiles with batch {batch!r} does not exist. "
                "Give integers of 0 or more."
            )


def _along_m(linear: Any, grid_m: Any, grid_n: Any, group: Any, minimum: Any, column_tiles: Any) -> tuple[Any, Any]:
    """Return the coordinates (m_tile, n_tile) of the tile at position `linear` if m_tile varies fastest.

    All numbers are integers or traced integers of a kernel.

    grid_m, grid_n   number of tiles along M and N
    column_tiles     grid_m, or an object that divides by grid_m faster
    group, minimum   not used; other orders with the same signature need them
    """
    return linear % column_tiles, linear // column_tiles


def _along_n(linear: Any, grid_m: Any, grid_n: Any, group: Any, minimum: Any, row_tiles: Any) -> tuple[Any, Any]:
    """Return the coordinates (m_tile, n_tile) of the tile at position `linear` if n_tile varies fastest.

    All numbers are integers or traced integers of a kernel.

    grid_m, grid_n   number of tiles along M and N
    row_tiles        grid_n, or an object that divides by grid_n faster
    group, minimum   not used; other orders with the same signature need them
    """
    return linear // row_tiles, linear % row_tiles


def _banded(
    linear: Any, grid_fast: Any, grid_slow: Any, group: Any, minimum: Any, band_tiles: Any, last_width: Any = None
) -> tuple[Any, Any]:
    """Return the (fast, slow) coordinates of the tile at position `linear` if the grid of tiles is cut into bands.

    A band is a strip of `group` tiles. Positions count first across a band (the fast coordinate), then along the band
    (the slow one), then from band to band. E.g. with group 2 and grid_slow 3, position 2 is (0, 1) and position 6 is
    (2, 0). The last band has the width that remains. `band_tiles` and `last_width` are divisors: integers, or objects
    that divide faster.

    linear                 position of the tile in the order, from 0
    grid_fast, grid_slow   number of tiles across all bands, and along a band
    group                  width of a band: number of tiles across it
    minimum                function that returns the smaller of two values
    band_tiles             number of tiles of a full band, group * grid_slow
    last_width             width of the last band; None to compute the width of each band here
    """
    band = linear // band_tiles
    first = band * group
    if last_width is None:
        width = minimum(grid_fast - first, group)
        within = linear - first * grid_slow
        return first + within % width, within // width
    return _in_band(linear - first * grid_slow, first, grid_fast, minimum, group, last_width)


def _in_band(
    within: Any, first: Any, grid_fast: Any, minimum: Any, band_width: Any, last_width: Any
) -> tuple[Any, Any]:
    """Return the (fast, slow) coordinates of a tile in the grid from its position within one band (strip of tiles).

    The fast coordinate counts tiles across the bands, the slow one along them. The last band may be narrower than the
    others. `band_width` and `last_width` are divisors: integers, or objects that divide faster.

    within       position within the band, counted across the band first
    first        fast coordinate of the band's first tile
    grid_fast    number of tiles across all bands
    minimum      function that returns the smaller of two values
    band_width   width of a full band, in tiles
    last_width   width of the last band, in tiles
    """
    is_full = minimum((grid_fast - first) // band_width, 1)  # 1 or 0
    fast, slow = within % last_width, within // last_width
    fast, slow = fast + is_full * (within % band_width - fast), slow + is_full * (within // band_width - slow)
    return first + fast, slow


def _grouped_m(linear: Any, grid_m: Any, grid_n: Any, group: Any, minimum: Any, *divisors: Any) -> tuple[Any, Any]:
    """Return the coordinates (m_tile, n_tile) of the tile at position `linear`, for bands of `group` tiles along M.

    Within a band, which spans all of N, m_tile varies fastest, then n_tile. The bands follow each other along M.

    grid_m, grid_n   number of tiles along M and N
    minimum          function that returns the smaller of two values
    group            width of a band, in tiles
    divisors         number of tiles of a full band and, optionally, the width of the last band; each is an integer or
                     an object that divides faster
    """
    return _banded(linear, grid_m, grid_n, group, minimum, *divisors)


def _grouped_n(linear: Any, grid_m: Any, grid_n: Any, group: Any, minimum: Any, *divisors: Any) -> tuple[Any, Any]:
    """Return the coordinates (m_tile, n_tile) of the tile at position `linear`, for bands of `group` tiles along N.

    Within a band, which spans all of M, n_tile varies fastest, then m_tile. The bands follow each other along N.

    grid_m, grid_n   number of tiles along M and N
    minimum          function that returns the smaller of two values
    group            width of a band, in tiles
    divisors         number of tiles of a full band and, optionally, the width of the last band; each is an integer or
                     an object that divides faster
    """
    n_tile, m_tile = _banded(linear, grid_n, grid_m, group, minimum, *divisors)
    return m_tile, n_tile


def _fitted(extent: Any) -> Any:
    """Return the number of tiles across a band of the tile orders fitted_m and fitted_n: 4 for 5 or 6 tiles, else 8.

    The host code of a kernel traces this function, so it computes the result without a branch.

    extent   number of tiles of the grid along the mode that is cut into bands; may be a traced integer

    >>> [_fitted(extent) for extent in range(1, 20)]
    [8, 8, 8, 8, 4, 4, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8]
    """
    below_8 = (extent * 0 + 1) // (extent // 8 + 1)
    is_5_or_6 = below_8 * (extent // 5 - extent // 7)
    return is_5_or_6 * -4 + 8


def _in_fitted_bands(
    linear: Any, grid_fast: Any, minimum: Any, band_tiles: Any, last_width: Any, band_width: Any, band_length: Any
) -> tuple[Any, Any]:
    """Return the (fast, slow) coordinates of the tile at position `linear` if the grid is cut into bands of tiles.

    The fast coordinate counts tiles across the bands, the slow one along them. The last four arguments are divisors,
    computed once for a grid: integers, or objects that divide faster.

    linear        position of the tile in the order: across a band first, then along it, then from band to band
    grid_fast     number of tiles across all bands
    minimum       function that returns the smaller of two values
    band_tiles    number of tiles of a full band
    last_width    width of the last band, in tiles
    band_width    width of a full band, in tiles
    band_length   number of tiles along a band
    """
    within = linear % band_tiles
    return _in_band(within, (linear - within) // band_length, grid_fast, minimum, band_width, last_width)


def _bands_m(linear: Any, grid_m: Any, grid_n: Any, group: Any, minimum: Any, *divisors: Any) -> tuple[Any, Any]:
    """Return (m_tile, n_tile) of the tile at position `linear`, for bands of tiles along M of a given width.

    A band is a strip of tiles over all of N; within it, m_tile varies fastest. Its width is `divisors[2]`, which the
    caller computes from the grid.

    grid_m, grid_n   number of tiles along M and N
    group            not used
    minimum          function that returns the smaller of two values
    divisors         (tiles of a full band, width of the last band, width of a full band, tiles along a band), each an
                     integer or an object that divides faster
    """
    return _in_fitted_bands(linear, grid_m, minimum, *divisors)


def _bands_n(linear: Any, grid_m: Any, grid_n: Any, group: Any, minimum: Any, *divisors: Any) -> tuple[Any, Any]:
    """Return (m_tile, n_tile) of the tile at position `linear`, for bands of tiles along N of a given width.

    This is `_bands_m` with M and N exchanged: a band is a strip of tiles over all of M, and n_tile varies fastest.
    """
    n_tile, m_tile = _in_fitted_bands(linear, grid_n, minimum, *divisors)
    return m_tile, n_tile


def _bands_of_fewer(linear: Any, grid_m: Any, grid_n: Any, group: Any, minimum: Any, *divisors: Any) -> tuple[Any, Any]:
    """Return the coordinates (m_tile, n_tile) of the tile at position `linear`, for bands that cut the shorter mode.

    A band is a strip of tiles. The shorter mode is M if the grid has fewer tiles along M than along N.

    grid_m, grid_n   number of tiles along M and N
    group            not used
    minimum          function that returns the smaller of two values
    divisors         (tiles of a full band, width of the last band, width of a full band, tiles along a band), each an
                     integer or an object that divides faster
    """
    fewer = minimum(grid_m, grid_n)
    fast, slow = _in_fitted_bands(linear, fewer, minimum, *divisors)
    is_n = minimum(grid_m - fewer, 1)  # 1 or 0
    return fast + is_n * (slow - fast), slow + is_n * (fast - slow)


def _even(extent: Any, most: int) -> Any:
    """Return the width of bands that divide `extent` tiles evenly, with the fewest bands of at most `most` tiles.

    For example, 9 tiles with at most 8 per band need two bands, of 5 and 4 tiles, so the width is 5. The result is at
    least 1.

    extent   number of tiles
    most     largest allowed width of a band, in tiles

    >>> [_even(extent, 8) for extent in (0, 1, 7, 8, 9, 12, 17, 24, 25)]
    [1, 1, 7, 8, 5, 6, 6, 8, 7]
    """
    bands = (extent + (most - 1)) // most
    bands = bands + (bands * 0 + 1) // (bands + 1)  # at least one
    width = (extent + (bands - 1)) // bands
    return width + (width * 0 + 1) // (width + 1)


def _band_divisors(group: Any, fast: Any, slow: Any) -> tuple[Any, ...]:
    """Return the four divisors that map a position to a tile, if the grid is cut into bands of `group` tiles.

    A band is a strip of tiles. E.g. group 4, fast 10, slow 3 give (12, 2, 4, 3): bands of 4, 4 and 2 tiles times 3.

    group     width of a band: number of tiles across it
    fast      number of tiles across all bands
    slow      number of tiles along a band
    returns   (tiles of a full band, width of the last band, width of a full band, tiles along a band)
    """
    return group * slow, (fast - 1) % group + 1, group, slow


def _divisors_of_fewer(m: Any, n: Any, most: int) -> tuple[Any, ...]:
    """Return the four divisors that map a position to a tile, if bands cut the shorter mode of the grid evenly.

    A band is a strip of tiles. The mode with fewer tiles is cut into the fewest bands of at most `most` tiles.

    m, n      number of tiles along M and N
    most      largest allowed width of a band
    returns   (tiles of a full band, width of the last band, width of a full band, tiles along a band)
    """
    is_m = (m * 0 + 1) // (m // (n + 1) + 1)  # 1 or 0
    fewer, others = n + is_m * (m - n), m + is_m * (n - m)
    return _band_divisors(_even(fewer, most), fewer, others)


def _hilbert(linear: Any, grid_m: Any, grid_n: Any, group: Any, minimum: Any, band_tiles: Any) -> tuple[Any, Any]:
    """Return the coordinates (m_tile, n_tile) of the tile at position `linear`, if the grid is cut into squares.

    A square has `group` x `group` tiles. A complete square is taken along the Hilbert curve from its tile (0, 0) to (0,
    group - 1), an incomplete one column by column. The squares of a band follow each other along N.

    grid_m, grid_n   number of tiles along M and N
    group            side of a square, in tiles; a power of two
    minimum          function that returns the smaller of two values
    band_tiles       number of tiles of a full band of squares, group * grid_n: an integer or an object that divides
                     faster
    """
    band = linear // band_tiles
    height = minimum(grid_m - band * group, group)
    within = linear - band * group * grid_n
    square = within // (height * group)
    width = minimum(grid_n - square * group, group)
    place = within - square * height * group
    by_column = place % height, place // height
    on_curve = _on_curve(place, group)
    is_full = (height // group) * (width // group)  # 1 or 0
    m, n = (plain + is_full * (curved - plain) for curved, plain in zip(on_curve, by_column, strict=True))
    return band * group + m, square * group + n


def _on_curve(place: Any, side: int) -> tuple[Any, Any]:
    """Return the coordinate (m, n) of a position on the Hilbert curve of a square.

    The code has no branch on the position, so that a kernel can trace it.

    place    position, from 0 to side**2 - 1
    side     extent of the square, a power of two
    source   J. K. Lawder, "Calculation of Mappings Between One and n-dimensional Values Using the Hilbert
             Space-filling Curve", 2000: from the last two bits on, each pair of bits rotates the curve so far

    >>> [_on_curve(i, 2) for i in range(4)]
    [(0, 0), (1, 0), (1, 1), (0, 1)]
    """
    m = n = place * 0
    rest, step = place, 1
    while step < side:
        far_n = rest // 2 % 2
        far_m = (rest + far_n) % 2
        swap = (far_m + 1) % 2
        flip = swap * far_n
        n, m = n + flip * (n * -2 + (step - 1)), m + flip * (m * -2 + (step - 1))
        n, m = n + swap * (m - n), m + swap * (n - m)
        n, m = n + step * far_n, m + step * far_m
        rest, step = rest // 4, step * 2
    return m, n


_TILE_OF: dict[str, Callable[..., tuple[Any, Any]]] = {
    "along_m": _along_m,
    "along_n": _along_n,
    "grouped_m": _grouped_m,
    "grouped_n": _grouped_n,
    "fitted_m": _bands_m,
    "fitted_n": _bands_n,
    "even_m": _bands_m,
    "even_n": _bands_n,
    "even": _bands_of_fewer,
    "hilbert": _hilbert,
}

_DIVISORS_OF: dict[str, Callable[..., tuple[Any, ...]]] = {
    "along_m": lambda m, n, group: (m,),
    "along_n": lambda m, n, group: (n,),
    "grouped_m": lambda m, n, group: (group * n, (m - 1) % group + 1),
    "grouped_n": lambda m, n, group: (group * m, (n - 1) % group + 1),
    "fitted_m": lambda m, n, group: _band_divisors(_fitted(m), m, n),
    "fitted_n": lambda m, n, group: _band_divisors(_fitted(n), n, m),
    "even_m": lambda m, n, group: _band_divisors(_even(m, group), m, n),
    "even_n": lambda m, n, group: _band_divisors(_even(n, group), n, m),
    "even": lambda m, n, group: _divisors_of_fewer(m, n, group),
    "hilbert": lambda m, n, group: (group * n,),
}
