"""Simulated memory: global matrices with guard bands, and poison, which marks memory that was never written."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cutegemm.dtypes import DType, round_to
from cutegemm.layout import Layout
from cutegemm.plan.glu import Glu, half_column
from cutegemm.plan.problem import Problem

# A quiet NaN that arithmetic does not produce. Its payload distinguishes it from NaNs of the caller.
_POISON_BITS = {2: 0x7E5A, 4: 0x7FC0DEAD, 8: 0x7FF80000DEADBEEF}
_GUARD_UNITS = 65  # units of aligned elements before a matrix; odd, so that its alignment is not better than promised


def poison(shape: int | tuple[int, ...], dtype: DType) -> np.ndarray:
    """Return an array filled with poison, i.e. with values that mark simulated memory that nobody has written.

    Floats are a NaN with a special payload. Integers have no such value; they are the smallest integer.

    shape   shape of the array
    dtype   element type

    >>> from cutegemm.dtypes import f32
    >>> bool(np.isnan(poison(2, f32)).all())
    True
    """
    storage = np.dtype(dtype.storage)
    out = np.empty(shape, storage)
    if storage.kind == "f":
        out.view(f"u{storage.itemsize}")[...] = _POISON_BITS[storage.itemsize]
    else:
        out[...] = np.iinfo(storage).min
    return out


def is_poison(values: np.ndarray) -> np.ndarray:
    """Return a boolean array: true for poison, i.e. for values that were never written. All False for integers.

    >>> from cutegemm.dtypes import f32
    >>> is_poison(np.append(poison(1, f32), np.float32([1, np.nan]))).tolist()
    [True, False, False]
    """
    size = values.dtype.itemsize
    if values.dtype.kind != "f":
        return np.zeros(values.shape, bool)
    return values.view(f"u{size}") == values.dtype.type(0).view(f"u{size}").dtype.type(_POISON_BITS[size])


@dataclass(frozen=True)
class GroupsOf:
    """Where the groups of a grouped GEMM lie in a matrix that holds all of them.

    mode     0 or 1: the mode of the matrix that the groups divide
    begins   index of the first row (or column) of each group
    reach    rows from there on that copies may access: those of the group if they are clipped at its end, else all that
             follow
    """

    mode: int
    begins: np.ndarray
    reach: np.ndarray


class GlobalMatrix:
    """One matrix in simulated global memory, with the strides of a problem, between guard bands.

    All memory outside of the matrix is poison (marked as never written), also the gaps between its rows. The address of
    the matrix has exactly the alignment that the operand promises, so that accesses that need more are found.

    problem   the problem, which has the extents and strides
    name      name of the operand or result
    buffer    the memory, an array of elements with the guard bands
    inside    boolean array: which elements of `buffer` belong to the matrix
    extents   (M, K, L), (N, K, L) or (M, N, L)
    strides   strides of the three modes, in elements
    base      index in `buffer` of element (0, 0, 0)
    groups    where the groups of a grouped GEMM lie; None if groups do not divide a mode of this matrix
    times     how often a kernel must write each element of `buffer`, if the matrix is a result: mostly once

    >>> matrix = GlobalMatrix(Problem(2, 3, 4), "a")
    >>> matrix.extents, matrix.strides, matrix.base
    ((2, 4, 1), (4, 1, 8), 260)
    """

    def __init__(self, problem: Problem, name: str) -> None:
        operand = problem.operands.matrix(name)
        layout = problem.layout(name)
        self.name = name.upper()
        self.modes = "".join([mode[0] for mode in problem.operands.modes(name)]) + "l"
        self.dtype = operand.dtype
        shape = [  # a broadcast operand has an element also if D has none along the mode
            max(1, extent) if mode in operand.broadcast else extent
            for mode, extent in zip(self.modes, layout.shape, strict=True)
        ]
        layout = Layout(tuple(shape), layout.stride)
        self.extents, self.strides = layout.shape, layout.stride
        self.base = _GUARD_UNITS * operand.align_elems
        length = self.base + int(layout.cosize()) + self.base
        self.buffer = poison(length, operand.dtype)
        self.inside = np.zeros(length, bool)
        self.view(self.inside)[...] = True
        self.groups: GroupsOf | None = None
        self.times: np.ndarray = self.inside

    def first(self, batch: np.ndarray) -> np.ndarray:
        """Return the offset, from `base`, of the first element of a batch or group.

        batch   indices of batches or groups
        """
        if self.groups is None:
            return batch * self.strides[2]
        return self.groups.begins[batch] * self.strides[self.groups.mode]

    def extent(self, mode: int, batch: np.ndarray) -> np.ndarray | int:
        """Return the extent of a mode, in each of several batches or groups: how far copies may reach.

        mode    0 or 1
        batch   indices of batches or groups
        """
        if self.groups is None or mode != self.groups.mode:
            return int(self.extents[mode])
        return self.groups.reach[batch]

    def view(self, memory: np.ndarray) -> np.ndarray:
        """Return the elements of this matrix in `memory` as a strided view of three modes, e.g. (M, K, L).

        memory   an array with an entry for each element of `buffer`, such as counts of writes
        """
        strides = [s * memory.itemsize for s in self.strides]
        return np.lib.stride_tricks.as_strided(memory[self.base :], self.extents, strides)

    def addresses(self, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Return the offsets from element (0, 0, 0) to elements of batch 0, in elements, from their coordinates.

        rows, columns   integer arrays that broadcast: coordinates of the first and the second mode
        """
        return rows * self.strides[0] + columns * self.strides[1]

    def has_row(self, rows: np.ndarray, batch: np.ndarray) -> np.ndarray:
        """Return a boolean array that is true for coordinates in [0, extent) of the first mode of this matrix.

        rows    integer array of coordinates, rows for A and D, columns for B
        batch   index of the batch or group of each CTA
        """
        return np.asarray(rows < self.extent(0, batch))

    def selected(self, first: np.ndarray, count: int, batch: np.ndarray) -> np.ndarray:
        """Return the row that this index of rows selects for each of `count` rows of each CTA: (count, C).

        It is -1 for rows after the last one of the CTA's group.

        first   first of the rows in the group of each CTA: (C,)
        batch   index of the group of each CTA
        """
        assert self.groups is not None
        rows, known = first + np.arange(count)[:, None], self.view(self.buffer)[:, 0, 0].astype(np.int64)
        at = np.minimum(self.groups.begins[batch] + rows, len(known) - 1)
        return np.where(rows < self.groups.reach[batch], known[at], -1)

    def add(self, index: np.ndarray, values: np.ndarray) -> None:
        """Add values to elements of this matrix, one after the other, and round each sum to the element type.

        index   index in `buffer` of the element of each value; it may repeat
        """
        order = np.argsort(index, kind="stable")
        earlier = np.empty_like(order)  # number of earlier values of the same element
        earlier[order] = np.arange(len(index)) - np.searchsorted(index[order], index[order])
        for turn in range(earlier.max(initial=-1) + 1):
            at, new = index[earlier == turn], values[earlier == turn]
            self.buffer[at] = round_to(self.dtype, self.buffer[at] + new)

    def read(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Return (values at some indices of this matrix's memory, mask of the indices that are outside of the matrix).

        The mask is None if all are inside.

        index   integer array of indices in `buffer`
        """
        belongs = self.belongs(index)
        if belongs is None:
            return self.buffer[index], None
        return np.take(self.buffer, index, mode="clip"), ~belongs

    def belongs(self, index: np.ndarray) -> np.ndarray | None:
        """Return a mask of the indices that are elements of this matrix, not gaps or guard bands; None if all are.

        index   integer array of indices in `buffer`
        """
        if index.size == 0:
            return None
        if index.min() >= 0 and index.max() < len(self.buffer):
            belongs = self.inside[index]
            return None if belongs.all() else belongs
        return np.take(self.inside, index, mode="clip") & (index >= 0) & (index < len(self.buffer))


class GatedB(GlobalMatrix):
    """B of a gated GEMM (GLU) in simulated memory, with its columns numbered as a kernel loads them, tile by tile.

    In memory gate and up columns are in two halves or in pairs. In a CTA's tile, blocks of gate columns and of up
    columns alternate. Methods of this class take column numbers in the order of the tiles.

    matrix   B as it is in memory
    glu      a `Glu`: which column of B is at each position of a tile
    n        number of columns of B. The last tile may have positions past the last column; they read as zeros
    """

    def __init__(self, matrix: GlobalMatrix, glu: Glu, n: int) -> None:
        self.__dict__.update(matrix.__dict__)
        self.glu, self.n = glu, n

    def addresses(self, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Return the offsets of elements of a gated plan's B from its first element, from their coordinates.

        rows      column numbers in the order of the tiles, where blocks of gate and up columns alternate
        columns   indices along K
        """
        tile, within = np.divmod(rows, self.glu.columns)
        return super().addresses(self.glu.column_of_b(tile, within, self.n), columns)

    def has_row(self, rows: np.ndarray, batch: np.ndarray) -> np.ndarray:
        """Return a boolean array that is true for column numbers of a gated plan's tiles that B has.

        rows    column numbers in the order of the tiles, where blocks of gate and up columns alternate
        batch   not used: all batches have the same columns
        """
        tile, within = np.divmod(rows, self.glu.columns)
        return np.asarray(tile * self.glu.d_columns + self.glu.d_column(within) < self.n // 2)


def half_of(matrix: GlobalMatrix, by: str, which: int) -> GlobalMatrix:
    """Return the gate half or the up half of a row operand, such as a bias, of a gated GEMM (GLU), as a view.

    The operand has N elements, one for each column of B. The result has N / 2, one for each column of D.

    matrix   the row operand
    by       where gate and up are: "halves" (elements j and j + N / 2 belong to column j of D) or "pairs" (2j and 2j +
             1)
    which    0: elements of gate projections; 1: elements of up projections
    """
    out = GlobalMatrix.__new__(GlobalMatrix)
    out.__dict__.update(matrix.__dict__)
    rows, columns, batch = matrix.extents
    step = matrix.strides[1]
    out.extents = (rows, columns // 2, batch)
    out.strides = (matrix.strides[0], step * (half_column(by, 1, 0, columns // 2)), matrix.strides[2])
    out.base = matrix.base + step * half_column(by, 0, which, columns // 2)
    return out
