"""The choice among the named plans for Hopper, by the time that `sm90.time` predicts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

import numpy as np

from cutegemm.build.slots import WHOLE_COLUMNS
from cutegemm.choose.candidate import Candidate
from cutegemm.choose.columns import Column
from cutegemm.choose.sm90.named import SM90_CHOSEN, SM90_READING, SM90_TWO_LEVEL
from cutegemm.choose.sm90.recipe import Sm90Recipe
from cutegemm.choose.sm90.shapes import K_TILE_BYTES, Shapes
from cutegemm.choose.sm90.time import filled, predicted
from cutegemm.errors import PlanError
from cutegemm.machine.device import DEFAULT_DEVICE, Device
from cutegemm.plan.launches import MOST_PACKED_BYTES
from cutegemm.plan.memory.packing import ALIGN_BYTES, is_to_read, to_pack_for_wgmma
from cutegemm.plan.problem import Operand, Operands, Problem
from cutegemm.plan.work.shares import Shares
from cutegemm.plan.work.split import FILLED, Split, by_last
from cutegemm.tile.tma import TMA_INNER_ALIGNED_BYTES

ACCUMULATIONS = ("fast", "two_level")
_ONE_LEVEL, _TWO_LEVELS, _READING = "sums on one level", "sums on two levels", "A out of registers"
_RECIPES = {_ONE_LEVEL: SM90_CHOSEN, _TWO_LEVELS: SM90_TWO_LEVEL, _READING: SM90_READING}

SPLITS = (2, 3, 4, 6, 8, 12, 16)
LEAST_K_TILES = 8  # of a part: it fills the ring of a large tile twice
UNSPLIT = 128 * 192  # elements of a tile, from which on dividing less than a wave was not seen to be faster
MOST_DEEP_K_TILES = 40  # of K in one part: with more, parts of it were seen to be faster than deep k-tiles
FEW_COLUMNS = 48  # of a D, for which tiles of few columns were seen to be faster
_BYTE_BITS, _COLUMNS_OF_BYTES = 8, 32  # of a D that CTAs sharing K store, each its own columns
LEAST_OWNED_K_TILES = 32  # of a tile that has an owner: with fewer that was not seen to be faster

# Of the kernel that packs operands, and until the GEMM behind it has its first product; one that is launched beside it
# is ready then. Of one H200, 2026-11-22: timed alone, and the difference to both together.
PACK_START_US, MEETS_US, MEETS_EARLY_US = 2.7, 2.0, 0.5


def ranked(
    operands: Operands,
    problem: Problem,
    device: Device = DEFAULT_DEVICE,
    accumulate: str = "fast",
    transposed: bool | None = None,
    with_c: bool = False,
) -> Iterator[Candidate]:
    """Plans, whole and split, for D and for D^T, that which is held to be the fastest first.

    Operands that TMA cannot load, or wgmma not multiply, as they are, are packed.

    operands     as TMA loads A and B: those of the problem before it is transposed
    accumulate   of fp8: "fast" sums up as wgmma does, with about 14 bits; "two_level" adds the sums of each k-tile
                 up in f32. Other types are summed up in full either way
    transposed   whether the plans are for D^T alone, or for D alone; both where left out
    with_c       whether a tile of C is read for each of D
    raises       PlanError for another way to sum up

    >>> nt = Operands.of("bf16", layout="nt")
    >>> [next(ranked(nt, Problem(*mnk))).recipe.tile for mnk in ((16, 4096, 4096), (4096, 4096, 4096))]
    [(64, 16), (128, 256)]
    """
    if accumulate not in ACCUMULATIONS:
        raise PlanError("choose", [f"accumulate = {accumulate!r}; {' or '.join(ACCUMULATIONS)} is expected."])
    ways = tuple([way for way in (False, True) if transposed in (None, way) and _serves(operands, way)])
    if not ways:
        return
    packed = to_pack_for_wgmma(operands)
    recipes, every = _ways_considered(_sums(operands, accumulate), operands, ways, with_c)
    rows, parts, owned, shares = _divisions(every, operands, problem, device)
    shapes, read = every.taken(rows), _as_read(operands) if packed else operands
    found = predicted(
        shapes, read, problem, device, parts, owned, packed=packed, shares=shares, with_c=with_c
    )
    packed_us = _packed_us(shapes, operands, problem, device, packed)
    total_us = found.us + packed_us
    for place in np.argsort(total_us, kind="stable").tolist():
        only_b, way, us = bool(shapes.reads_a[place]), bool(shapes.turned[place]), float(total_us[place])
        is_packed = bool(packed.replace(_read_by(way), "") if only_b else packed)
        variant = _variant(
            recipes[rows[place]], int(parts[place]), bool(owned[place]), is_packed, is_packed and only_b, way
        )
        yield Candidate(variant, us, found.bound(place) if us > 2 * packed_us[place] else "packing")


def _read_by(turned: bool) -> str:
    """The operand of the problem that is the A of a plan for D, or for D^T = B^T A^T."""
    return "b" if turned else "a"


def _packed_us(shapes: Shapes, operands: Operands, problem: Problem, device: Device, packed: str) -> Column:
    """What it takes to pack the operands that are in the way; where threads read A, the other one."""
    us: Column = np.zeros(len(shapes.turned))
    if not packed:
        return us
    us = us + packing_us(operands, problem, device)
    for way in (False, True):
        other = packed.replace(_read_by(way), "")
        reads = shapes.reads_a & (shapes.turned == way)
        us = np.where(reads, packing_us(operands, problem, device, other), us)
    return us


def _divisions(
    shapes: Shapes, operands: Operands, problem: Problem, device: Device
) -> tuple[Column, Column, Column, Shares | None]:
    """The rows of `shapes`, each as often as there are ways to divide its K; how many parts, and whether tiles own
    theirs and how, where some do: as far as parts are long enough, and fit the grid."""
    k_tiles = -(-problem.k * operands.a.dtype.bits // 8 // K_TILE_BYTES)
    rows, columns = shapes.clusters(problem)
    tiles, grid = rows * columns * problem.l, shapes.grid(device)
    every = np.arange(len(tiles))
    of_rows, of_parts, shares = [every[_may_be_whole(shapes, problem, k_tiles, tiles <= grid)]], [1], None
    is_small = shapes.bm * shapes.bn < UNSPLIT
    by_itself = ~shapes.single & (shapes.k_ctas == 1)
    few = (2 * tiles <= grid) & is_small & by_itself & (shapes.is_large_cluster | ~shapes.is_for_few)
    if k_tiles >= 2 * LEAST_K_TILES and few.any():
        few = every[few]
        times = grid[few] // np.maximum(1, tiles[few])
        of_parts += [parts for parts in SPLITS if k_tiles >= parts * LEAST_K_TILES]
        of_rows += [few[times >= parts] for parts in of_parts[1:]]
    whole = sum(map(len, of_rows))
    if k_tiles >= LEAST_OWNED_K_TILES:
        shares = filled(tiles, k_tiles, grid)
        may_own = ((tiles >= grid) | is_small) & ~(
            shapes.is_large_cluster | shapes.is_deep | ~by_itself | shapes.is_joint
        )
        of_rows, of_parts = [*of_rows, every[(shares.shared > 0) & may_own]], [*of_parts, 1]
    rows = np.concatenate(of_rows)
    if shares is not None:
        of_each = {name: getattr(shares, name)[rows] for name in ("shared", "workers", "owned")}
        shares = replace(shares, **of_each)
    return rows, np.repeat(of_parts, list(map(len, of_rows))), np.arange(len(rows)) >= whole, shares


def _may_be_whole(shapes: Shapes, problem: Problem, k_tiles: int, are_alone: Column) -> Column:
    """Which shapes are considered with K whole.

    One warpgroup, clusters of four or eight and deep k-tiles were seen to lose 5 to 30% where CTAs take several tiles.
    What is for few columns loses where there are many: 704 x 1680 x 64 took 8.4 us in 128 x 32 (H100, 2026-11-22), and
    5.8 by cuBLAS.

    Nor is K shared by CTAs then, or by more of them than have `LEAST_K_TILES` each.

    are_alone   whether each CTA has one tile at most
    """
    _, n = shapes.extents(problem)
    if k_tiles < 2 * LEAST_K_TILES:
        are_alone = are_alone & (shapes.k_ctas == 1)
    else:
        are_alone = are_alone & ((shapes.k_ctas == 1) | (shapes.k_ctas * LEAST_K_TILES <= k_tiles))
    needs_one = (
        (shapes.k_ctas > 1) | shapes.single | shapes.is_large_cluster | (shapes.is_deep & ~shapes.is_two)
    )
    may_be_deep = ~shapes.is_deep | shapes.is_large_cluster | (k_tiles <= MOST_DEEP_K_TILES)
    return np.where(needs_one, are_alone & may_be_deep, ~shapes.is_for_few | (n <= FEW_COLUMNS))


@lru_cache(maxsize=256)
def _ways_considered(
    sums: str, operands: Operands, ways: tuple[bool, ...], with_c: bool
) -> tuple[tuple[Sm90Recipe, ...], Shapes]:
    """The recipes for D and for D^T, as `ways` say, and their shapes; behind them those that read A. None whose
    D does not leave well: see `_may_leave`.

    sums   one of `_RECIPES`
    """
    reading = tuple([way for way in ways if _may_read(operands.transposed if way else operands)])
    groups = [(sums, ways), (_READING, reading)] if reading else [(sums, ways)]
    recipes = [recipe for which, of in groups for _ in of for recipe in _RECIPES[which]]
    shapes = [
        Shapes.of([recipe.shape for recipe in _RECIPES[which]], operands, of, with_c, which == _READING)
        for which, of in groups
    ]
    every = shapes[0].joined(*shapes[1:])
    leaving = np.flatnonzero(_may_leave(every, operands.d))
    return tuple([recipes[i] for i in leaving]), every.taken(leaving)


def _may_leave(shapes: Shapes, d: Operand) -> Column:
    """Whether D leaves well. A tile that sixteen columns do not divide leaves eight at a time: 16 or 32 bytes of each
    row of D, but whole lines of a D^T (bf16 5000 x 5000 x 5000 in 256 x 152 took 453 and 430 us, one H200; tf32
    3392 x 4624 x 1984 took 202 us in 128 x 136, 175 in 192 x 160, one H100)."""
    own = shapes.bn // shapes.k_ctas
    leaves = (own % WHOLE_COLUMNS == 0) | ((d.dtype.bits == 16) & (shapes.turned != (d.major == "m")))
    if d.dtype.bits == _BYTE_BITS:  # the least row of a box has 32 of them
        leaves = leaves & ((shapes.k_ctas == 1) | (own % _COLUMNS_OF_BYTES == 0))
    return leaves


def _may_read(operands: Operands) -> bool:
    """Whether plans that read A serve: TMA must load it. Their rows are permuted in groups of four, and stmatrix writes
    an m-major D of 16 bits by groups of eight rows."""
    a, d = operands.a, operands.d
    leaves = d.dtype.bits == a.dtype.bits or d.major == "n"
    return is_to_read(operands) and a.align_bytes >= TMA_INNER_ALIGNED_BYTES and leaves


@lru_cache(maxsize=8192)
def _variant(
    recipe: Sm90Recipe, parts: int, owned: bool, is_packed: bool, only_b: bool, turned: bool
) -> Sm90Recipe:
    split: Split | None = FILLED if owned else by_last(split_k=parts) if parts > 1 else None
    return replace(recipe, split=split, is_packed=is_packed, only_b=only_b, transposed=turned)


@lru_cache(maxsize=256)
def _as_read(operands: Operands) -> Operands:
    """As the GEMM reads them, behind what packs them."""
    names = to_pack_for_wgmma(operands)
    made = {name: replace(getattr(operands, name), major="k", align_bytes=ALIGN_BYTES) for name in names}
    return replace(operands, **made) if made else operands


def _serves(operands: Operands, turned: bool) -> bool:
    """Whether wgmma can end so: threads hold a D of bytes in pairs along N."""
    return operands.d.dtype.bits > 8 or (operands.d.major == "m") == turned


def _sums(operands: Operands, accumulate: str) -> str:
    is_fp8 = operands.a.dtype.is_float and operands.a.dtype.bits == 8
    return _TWO_LEVELS if is_fp8 and accumulate == "two_level" else _ONE_LEVEL


def packing_us(
    operands: Operands, problem: Problem, device: Device = DEFAULT_DEVICE, only: str | None = None
) -> float:
    """What it takes to pack the operands that are in the way: one kernel, which reads and writes them.

    It is taken to run at the speed of memory, though L2 may hold some of them; where there is little to pack, the GEMM
    begins beside it.

    only   names of the operands that are packed; all that are in the way where left out

    >>> round(packing_us(Operands.of("bf16", layout="nt", align_bytes=2), Problem(4096, 4096, 4096)), 1)
    36.7
    """
    names = to_pack_for_wgmma(operands) if only is None else only
    if not names:
        return 0.0
    rows = sum(problem.m if name == "a" else problem.n for name in names)
    size = rows * problem.k * problem.l * operands.a.dtype.bits / 8
    meets_us = MEETS_EARLY_US if size <= MOST_PACKED_BYTES else MEETS_US
    return PACK_START_US + meets_us + 2 * size / (device.measured.pack_along_k_gb_s * 1e3)
