"""Rasters are bijections, on every grid, and the formula serves integers, arrays and the DSL alike."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from cutegemm.errors import LayoutError
from cutegemm.tile.raster import KINDS, Raster

RASTERS = [
    Raster(kind, group)
    for kind in KINDS
    for group in ([1, 2, 3, 4, 7, 8, 100] if kind.startswith(("grouped", "even", "hilbert")) else [None])
    if kind != "hilbert" or group in (1, 2, 4, 8)
]
BY_LOOPS = [raster for raster in RASTERS if raster.kind != "hilbert"]
GRIDS = [*itertools.product(range(1, 10), range(1, 10), (1, 2, 3)), (37, 23, 2), (64, 5, 1), (1, 131, 3)]


@pytest.mark.parametrize("raster", RASTERS, ids=str)
def test_divisors_of_a_part_of_a_grid(raster):
    """They are those of the part, whichever extent differs, and some are taken from the whole grid."""
    for grid in ((37, 23), (64, 5), (1, 131)):
        whole = raster.divisors(*grid)
        for mode, extent in itertools.product((0, 1), (1, 3, 16, 40)):
            m, n = (extent, grid[1]) if mode == 0 else (grid[0], extent)
            assert raster.divisors_of_part(whole, m, n, mode, tuple) == raster.divisors(m, n)


@pytest.mark.parametrize("raster", RASTERS, ids=str)
def test_each_tile_comes_once(raster):
    for grid_m, grid_n, batch in GRIDS:
        order = raster.order(grid_m, grid_n, batch)
        index = order @ np.array([1, grid_m, grid_m * grid_n])
        assert order.min() == 0
        assert (order.max(axis=0) == (grid_m - 1, grid_n - 1, batch - 1)).all()
        assert (np.bincount(index, minlength=len(order)) == 1).all(), (raster, grid_m, grid_n, batch)


def fitted(extent):
    return 4 if extent in (5, 6) else 8


def even(extent, most):
    """Return the width of the widest band, if `extent` is divided evenly into the fewest bands of at most `width`."""
    bands = min(count for count in range(1, extent + 1) if -(-extent // count) <= most)
    return -(-extent // bands)


def by_loops(raster, grid_m, grid_n, batch):
    """The order written down by loops."""
    group = raster.group or 1
    if raster.kind == "even":
        raster = Raster("even_m" if grid_m <= grid_n else "even_n", raster.group)
    if raster.kind.startswith("even"):
        group = even(grid_m if raster.kind == "even_m" else grid_n, raster.group)
    if raster.kind.startswith("fitted"):
        group = fitted(grid_m if raster.kind == "fitted_m" else grid_n)
    for at in range(batch):
        if raster.kind == "along_m":
            yield from ((m, n, at) for n in range(grid_n) for m in range(grid_m))
        elif raster.kind == "along_n":
            yield from ((m, n, at) for m in range(grid_m) for n in range(grid_n))
        elif raster.kind in ("grouped_m", "fitted_m", "even_m"):
            for first in range(0, grid_m, group):
                band = range(first, min(first + group, grid_m))
                yield from ((m, n, at) for n in range(grid_n) for m in band)
        else:
            for first in range(0, grid_n, group):
                band = range(first, min(first + group, grid_n))
                yield from ((m, n, at) for m in range(grid_m) for n in band)


@pytest.mark.parametrize("raster", BY_LOOPS, ids=str)
def test_order_is_that_of_the_loops(raster):
    for grid in GRIDS:
        expected = [*by_loops(raster, *grid)]
        assert [tuple(tile) for tile in raster.order(*grid).tolist()] == expected
        assert [raster.tile(i, grid[0], grid[1]) for i in range(len(expected))] == expected


@pytest.mark.parametrize("log_tile", [0, 1, 2, 3])
def test_log_tile_is_the_threadblock_swizzle_without_idle_ctas(log_tile):
    """bx >> log_tile, (by << log_tile) + (bx & mask) over a grid (grid_m << log_tile, ceil), bx fastest."""
    raster, mask = Raster.from_log_tile(log_tile), (1 << log_tile) - 1
    for grid_m, grid_n in itertools.product(range(1, 8), range(1, 12)):
        launched = itertools.product(range(-(-grid_n // (mask + 1))), range(grid_m << log_tile))
        tiles = [(bx >> log_tile, (by << log_tile) + (bx & mask)) for by, bx in launched]
        busy = [tile for tile in tiles if tile[1] < grid_n]
        assert [tuple(t) for t in raster.order(grid_m, grid_n)[:, :2].tolist()] == busy


@pytest.mark.parametrize("raster", BY_LOOPS, ids=str)
def test_layout_is_the_function_where_there_is_one(raster):
    for grid_m, grid_n, batch in GRIDS:
        along_m = grid_m <= grid_n if raster.kind == "even" else raster.kind.endswith("m")
        extent = grid_m if along_m else grid_n
        group = fitted(extent) if raster.kind.startswith("fitted") else raster.group
        if raster.kind.startswith("even"):
            group = even(extent, raster.group)
        if group and extent % group:
            is_given = raster.kind.startswith("grouped")
            advice = ", or choose a group that divides" if is_given else "  Call `tile`, which accepts every grid"
            with pytest.raises(LayoutError, match=f"(?s)no layout gives the order .*: its last band.*{advice}"):
                raster.as_layout(grid_m, grid_n, batch)
        else:
            layout = raster.as_layout(grid_m, grid_n, batch)
            assert layout.size() == grid_m * grid_n * batch
            assert (layout.offsets() == raster.order(grid_m, grid_n, batch)).all()


def test_grids_past_32_bits():
    """70,000 x 70,000 tiles: the last position is the last tile."""
    for raster in RASTERS:
        if raster.kind.startswith("along"):
            assert raster.tile(70_000**2 - 1, 70_000, 70_000) == (69_999, 69_999, 0)


class Traced:
    """An integer that knows + - * // % and nothing else, as while a kernel is traced."""

    def __init__(self, value):
        self.value = value

    def _with(self, other, function):
        return Traced(function(self.value, other.value if isinstance(other, Traced) else other))

    def __add__(self, other):
        return self._with(other, lambda a, b: a + b)

    def __sub__(self, other):
        return self._with(other, lambda a, b: a - b)

    def __mul__(self, other):
        return self._with(other, lambda a, b: a * b)

    def __rmul__(self, other):
        return self._with(other, lambda a, b: b * a)

    def __floordiv__(self, other):
        return self._with(other, lambda a, b: a // b)

    def __mod__(self, other):
        return self._with(other, lambda a, b: a % b)

    def __bool__(self):
        raise TypeError("a traced value has no truth value")

    __lt__ = __gt__ = __eq__ = __bool__
    __hash__ = None


def test_formula_does_not_branch_on_its_arguments():
    def least(a, b):
        return Traced(min(getattr(a, "value", a), getattr(b, "value", b)))

    for raster, (grid_m, grid_n, batch) in itertools.product(RASTERS, [(5, 7, 2), (8, 4, 1)]):
        expected = raster.order(grid_m, grid_n, batch).tolist()
        for position in range(len(expected)):
            tile = raster.tile(Traced(position), Traced(grid_m), Traced(grid_n), least)
            assert [t.value for t in tile] == expected[position]


@pytest.mark.parametrize("raster", RASTERS, ids=str)
def test_text_reads_back(raster):
    assert Raster.parse(str(raster)) == raster
    assert hash(Raster.parse(str(raster))) == hash(raster)


def test_empty_grids_have_an_empty_order():
    for raster in RASTERS:
        for grid in [(0, 3, 1), (3, 0, 1), (3, 3, 0)]:
            assert raster.order(*grid).shape == (0, 3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Raster("diagonal"), "kind 'diagonal' is not one of along_m"),
        (
            lambda: Raster("along_m", 3),
            "along_m has no group, but group is 3. Leave it out, or use grouped_m",
        ),
        (lambda: Raster("grouped_n", 0), "group 0 of grouped_n is not a positive integer"),
        (lambda: Raster("grouped_m"), "group None of grouped_m is not a positive integer"),
        (lambda: Raster.parse("grouped_m:x"), "'grouped_m:x' is not a raster"),
        (lambda: Raster.parse("along_m:2"), "along_m has no group"),
        (lambda: Raster.from_log_tile(-1), "log_tile = -1"),
        (lambda: Raster().order(-1, 2), "a grid of -1 x 2 tiles"),
        (lambda: Raster().order(2.5, 2), "a grid of 2.5 x 2 tiles"),
        (lambda: Raster().as_layout(2, "3"), "a grid of 2 x '3' tiles"),
        (
            lambda: Raster.parse("grouped_m:" + "9" * 5000),
            "the number has 5000 digits; at most 18 are allowed",
        ),
        (lambda: Raster.parse(5), "5 is not a raster"),
        (lambda: Raster(["along_m"]), "kind ['along_m'] is not one of along_m"),
    ],
)
def test_refusals(make, message):
    with pytest.raises(LayoutError) as raised:
        make()
    assert message in str(raised.value)


def recursive_hilbert(side):
    """The curve of a square by its definition: four smaller ones, the first and the last of them turned."""
    if side == 1:
        return [(0, 0)]
    half = side // 2
    small = recursive_hilbert(half)
    first = [(n, m) for m, n in small]
    second = [(m + half, n) for m, n in small]
    third = [(m + half, n + half) for m, n in small]
    last = [(half - 1 - n, side - 1 - m) for m, n in small]
    return first + second + third + last


@pytest.mark.parametrize("side", [2, 4, 8])
def test_the_hilbert_curve_is_that_of_its_definition(side):
    curve = [tuple(t) for t in Raster("hilbert", side).order(side, side)[:, :2].tolist()]
    assert curve == recursive_hilbert(side)


@pytest.mark.parametrize(("grid_m", "grid_n"), [(8, 24), (16, 8), (4, 64)])
def test_the_next_tile_of_the_hilbert_curve_is_a_neighbour(grid_m, grid_n):
    order = Raster("hilbert", 4).order(grid_m, grid_n)[:, :2]
    steps = np.abs(np.diff(order, axis=0)).sum(axis=1)
    bands = grid_m // 4
    assert (steps != 1).sum() == bands - 1  # from one band to the next
    one_by_one = [Raster("hilbert", 4).tile(i, grid_m, grid_n)[:2] for i in range(grid_m * grid_n)]
    assert one_by_one == [tuple(t) for t in order.tolist()]


def test_a_curve_is_no_layout():
    with pytest.raises(LayoutError, match="no layout gives the order hilbert:4"):
        Raster("hilbert", 4).as_layout(8, 8)
    with pytest.raises(LayoutError, match="group 6 of hilbert is not a power of two"):
        Raster("hilbert", 6)
