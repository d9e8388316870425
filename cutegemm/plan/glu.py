"""Gated epilogues: a column of D is made of two columns of A @ B, a gate and an up, and D has half of B's columns.

A CTA sums up blocks of gates and of their ups in turn, so that a thread has both sums of an element of D. Nothing but
where B is read from, and which of the sums are D's, knows of it: the tile, its shared memory and the mainloop are those
of a plan that is not gated.

>>> glu = Glu("halves", 4, 16)
>>> [glu.d_column(column) for column in range(16)]
[0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7, 4, 5, 6, 7]
>>> [glu.column_of_b(1, column, 100) for column in (0, 4, 8)]  # of the second tile
[8, 58, 12]
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from cutegemm.layout import Layout
from cutegemm.tile.tiled_mma import TiledMma


@dataclass(frozen=True)
class Glu:
    """Which columns of a CTA's accumulators are gate projections, and which are up projections.

    by        where the gate and up columns of D's column j are in B: "halves": j and j + N / 2; "pairs": 2j, 2j + 1
    block     adjacent gate columns in the tile; as many up columns follow them
    columns   columns of the tile
    """

    by: str
    block: int
    columns: int

    @property
    def d_columns(self) -> int:
        """Return the number of columns of D's tile."""
        return self.columns // 2

    @property
    def blocks(self) -> int:
        """Return the number of blocks of gate columns."""
        return self.columns // (2 * self.block)

    def is_up(self, column: Any) -> Any:
        """Return 1 if a column of the tile is an up projection, else 0; also for an array of columns."""
        return column // self.block % 2

    def d_column(self, column: Any) -> Any:
        """Return the column of D's tile that a column of the tile contributes to."""
        return column // (2 * self.block) * self.block + column % self.block

    def column_of_b(self, n_tile: Any, column: Any, n: Any) -> Any:
        """Return the column of B that a column of the tile is the product with, if B has n columns."""
        return half_column(self.by, n_tile * self.d_columns + self.d_column(column), self.is_up(column), n // 2)


def half_column(by: str, column: Any, is_up: Any, half: Any) -> Any:
    """Where gate or up of a column of D lie.

    half   columns of D

    >>> half_column("halves", 3, 1, 100), half_column("pairs", 3, 1, 100)
    (103, 7)
    """
    return column + is_up * half if by == "halves" else 2 * column + is_up


@dataclass(frozen=True)
class GluPairs:
    """The accumulators of a thread as pairs of a gate and an up projection.

    block   adjacent gate columns in the tile
    gates   indices of the accumulators that are gates, in the order of the accumulators
    ups     index of the up projection of each gate
    """

    block: int
    gates: tuple[int, ...]
    ups: tuple[int, ...]


@lru_cache(maxsize=1024)
def glu_pairs(mma: TiledMma, tile: tuple[int, int]) -> GluPairs | None:
    """How a tile's columns are divided into gates and ups in the largest blocks of which each thread has both sums of a
    pair, at the same place among its own; None where no blocks are such.

    >>> from cutegemm.dtypes import bf16
    >>> from cutegemm.tile.mma_atoms import wgmma
    >>> glu_pairs(TiledMma(wgmma(bf16, 16)), (64, 16))
    GluPairs(block=8, gates=(0, 1, 2, 3), ups=(4, 5, 6, 7))
    """
    rows, columns = tile
    table = mma.offsets_c(Layout(tile))  # (threads, values, rest_m, rest_n)
    held = table.reshape(table.shape[0], -1, order="F")
    return next((found for block in _blocks(columns) if (found := _paired(held, rows, block))), None)


def _blocks(columns: int) -> Iterator[int]:
    return (columns // (2 * count) for count in range(1, columns // 2 + 1) if columns % (2 * count) == 0)


def _paired(held: np.ndarray, rows: int, block: int) -> GluPairs | None:
    is_up = held // rows // block % 2
    if (is_up != is_up[:1]).any():
        return None
    of_gates, of_ups = np.flatnonzero(is_up[0] == 0), np.flatnonzero(is_up[0] == 1)
    place = {int(held[0, register]): int(register) for register in of_ups}
    wanted = [place.get(int(element) + block * rows) for element in held[0, of_gates]]
    if None in wanted:
        return None
    ups = [register for register in wanted if register is not None]
    if (held[:, ups] != held[:, of_gates] + block * rows).any():
        return None
    return GluPairs(block, tuple(int(x) for x in of_gates), tuple(ups))


def accumulator_vectors(shape: tuple[int, int, int], vector: int, major: str) -> np.ndarray:
    """(vector, vectors) of a thread's sums, by their number in the order of the accumulators: those that are stored at
    once lie in an atom, or side by side along D's contiguous mode.

    shape   (values of an atom, atoms along M, atoms along N)
    major   "m" or "n": D's contiguous mode

    >>> accumulator_vectors((1, 2, 4), 2, "n").T.tolist()
    [[0, 2], [1, 3], [4, 6], [5, 7]]
    """
    values, rows, columns = shape
    table = np.arange(values * rows * columns).reshape(shape, order="F")
    mode = 0 if values % vector == 0 else 2 if major == "n" else 1
    split = table.reshape((*shape[:mode], vector, -1, *shape[mode + 1 :]), order="F")
    out: np.ndarray = np.moveaxis(split, mode, 0).reshape(vector, -1, order="F")
    return out


def paired_vectors(
    pairs: GluPairs, shape: tuple[int, int, int], vector: int, major: str
) -> tuple[tuple[int, int], ...] | None:
    """The vectors of gates, each with that of its ups, by their numbers; None where one has both.

    See `accumulator_vectors`.

    >>> paired_vectors(GluPairs(4, (0, 1, 2, 3), (4, 5, 6, 7)), (1, 1, 8), 2, "n")
    ((0, 2), (1, 3))
    """
    up_of = dict(zip(pairs.gates, pairs.ups, strict=True))
    vectors = [tuple(int(x) for x in column) for column in accumulator_vectors(shape, vector, major).T]
    place = {column: i for i, column in enumerate(vectors)}
    out = []
    for i, column in enumerate(vectors):
        gates = [x for x in column if x in up_of]
        other = place.get(tuple([up_of[x] for x in gates]))
        if gates and (len(gates) < vector or other is None):
            return None
        if gates and other is not None:
            out.append((i, other))
    return tuple(out)
