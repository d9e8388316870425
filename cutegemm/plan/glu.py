"""Gated epilogues (GLU): a column of D is computed from a gate column and an up column of A @ B.

D has half as many columns as B. In a CTA's tile, blocks of gate columns and of the matching up columns alternate, so
that a thread has both accumulators of an element of D. Only the columns that are loaded from B and the epilogue differ
from a plan that is not gated; the tile, its shared memory and the mainloop are the same.

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
    """The arrangement of gate and up columns of a gated GEMM (GLU): in B, and in a CTA's tile of accumulators.

    Column j of D is computed from a gate column and an up column of A @ B. In the tile, blocks of gate columns and of
    up columns alternate: with `block` 4 and 16 columns, it has 4 gates, their 4 ups, 4 gates, 4 ups.

    by        columns of B that give column j of D: "halves" for j (gate) and j + N / 2 (up), "pairs" for 2j and 2j + 1
    block     number of adjacent gate columns in the tile; as many up columns follow them
    columns   number of columns of the tile, gate and up together
    """

    by: str
    block: int
    columns: int

    @property
    def d_columns(self) -> int:
        """Return the number of columns of D that a CTA's tile yields: half of its gate and up columns."""
        return self.columns // 2

    @property
    def blocks(self) -> int:
        """Return the number of blocks of adjacent gate columns in this CTA tile.

        An equally large block of up columns follows each.
        """
        return self.columns // (2 * self.block)

    def is_up(self, column: Any) -> Any:
        """Return 1 if a column of this CTA tile belongs to the up projection, 0 if it belongs to the gate.

        column   index of the column in the tile of accumulators, or an array of indices
        """
        return column // self.block % 2

    def d_column(self, column: Any) -> Any:
        """Return the column, in the CTA's tile of D, of the element that a gate or up column contributes to.

        column   column of the accumulator tile, or an array. With blocks of 4: 0 and 4 both give 0, 8 gives 4
        """
        return column // (2 * self.block) * self.block + column % self.block

    def column_of_b(self, n_tile: Any, column: Any, n: Any) -> Any:
        """Return the column of B that a column of a CTA's accumulator tile is computed from, in a gated GEMM.

        n_tile   index of the tile along N
        column   column of the tile, gate and up columns together
        n        number of columns of B
        """
        return half_column(self.by, n_tile * self.d_columns + self.d_column(column), self.is_up(column), n // 2)


def half_column(by: str, column: Any, is_up: Any, half: Any) -> Any:
    """Return the index of the column of B that holds the gate, or the up projection, of a column of D in a gated GEMM.

    by       where gate and up of column j are in B: "halves" for j and j + N / 2, "pairs" for 2j and 2j + 1
    column   column of D
    is_up    1 for the up projection, 0 for the gate
    half     number of columns of D: N / 2

    >>> half_column("halves", 3, 1, 100), half_column("pairs", 3, 1, 100)
    (103, 7)
    """
    return column + is_up * half if by == "halves" else 2 * column + is_up


@dataclass(frozen=True)
class GluPairs:
    """Indices of a thread's accumulators that are gate and up projection of the same element of D (gated epilogue).

    block   number of adjacent gate columns in the CTA's tile; as many up columns follow them
    gates   indices of the thread's accumulators that are gates, ascending
    ups     for each gate, the index of the accumulator that is its up projection
    """

    block: int
    gates: tuple[int, ...]
    ups: tuple[int, ...]


@lru_cache(maxsize=1024)
def glu_pairs(mma: TiledMma, tile: tuple[int, int]) -> GluPairs | None:
    """Return which accumulators of a thread are gate and up of one element of D, for a gated epilogue (GLU).

    Gate and up columns alternate in the tile in blocks. The largest block size is taken that gives every thread both
    accumulators of each of its elements of D. The indices are the same in all threads. None if no block size does so.

    mma    tiled MMA whose C layout assigns accumulators to threads
    tile   (rows, columns) of the accumulators

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
    """Yield the block sizes that divide a tile into alternating blocks of gate and up columns, the largest first.

    columns   columns of the tile. For example 8 yields 4, 2 and 1
    """
    return (columns // (2 * count) for count in range(1, columns // 2 + 1) if columns % (2 * count) == 0)


def _paired(held: np.ndarray, rows: int, block: int) -> GluPairs | None:
    """Return the gate and up accumulators of a thread that belong together; None if a thread lacks one of two.

    held    array (threads, accumulators): position m + rows * n in the tile of each accumulator
    rows    number of rows of the tile
    block   number of adjacent gate columns in the tile; as many up columns follow them
    """
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
    """Return the indices of a thread's accumulators, grouped into stored vectors: (vector length, vectors).

    The accumulators of a vector are adjacent values of an MMA atom, if the vector length divides their number.
    Otherwise they are values of neighbouring atoms along the contiguous mode of D.

    shape    (values of an atom, atoms along M, atoms along N) of a thread
    vector   number of accumulators of a vector
    major    contiguous mode of D: "m" or "n"

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
    """Return which vectors of a thread are gates and ups of the same elements: (gate vector, up vector) index pairs.

    A vector is a group of accumulators that are stored together, numbered as by `accumulator_vectors`. None if a vector
    contains both gates and ups, or if the ups of a vector of gates do not form one vector.

    pairs    which accumulators are gate and up of one element of D
    shape    (values of an MMA atom, atoms along M, atoms along N) of a thread
    vector   number of accumulators of a vector
    major    contiguous mode of D: "m" or "n"

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
