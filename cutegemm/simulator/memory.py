"""The simulated memories: global ones with guard bands, and poison, which shows a hole."""

from __future__ import annotations

import numpy as np

from cutegemm.dtypes import DType
from cutegemm.layout import Layout
from cutegemm.plan.glu import Glu, half_column
from cutegemm.plan.problem import Problem

# A quiet NaN that no arithmetic gives: its payload tells it from a NaN of the caller's.
_POISON_BITS = {2: 0x7E5A, 4: 0x7FC0DEAD, 8: 0x7FF80000DEADBEEF}
_GUARD_UNITS = 65  # of aligned elements before a matrix; odd, so that it is aligned to no more than promised


def poison(shape: int | tuple[int, ...], dtype: DType) -> np.ndarray:
    """An array of memory that nothing has been written to.

    Floats are a NaN with a payload; integers, which have no such value, are the smallest.

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
    """A mask of the values that nobody has written; all False for integers, which have no poison."""
    size = values.dtype.itemsize
    if values.dtype.kind != "f":
        return np.zeros(values.shape, bool)
    return values.view(f"u{size}") == values.dtype.type(0).view(f"u{size}").dtype.type(_POISON_BITS[size])


class GlobalMatrix:
    """One matrix in global memory, as a problem lays it out, between guard bands.

    All that does not belong to the matrix, the gaps between its rows too, is poison. The matrix begins at
    an address that is aligned as the operand promises, and no better.

    buffer    the memory, in elements
    inside    which elements of it belong to the matrix
    extents   (M, K, L), (N, K, L) or (M, N, L)
    strides   of the three, in elements
    base      where element (0, 0, 0) is

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
        shape = [  # what stays the same along a mode is there also where D has no elements along it
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

    def view(self, memory: np.ndarray) -> np.ndarray:
        """Elements of the matrix in `memory`, which is laid out as `buffer` is: an axis for each mode."""
        strides = [s * memory.itemsize for s in self.strides]
        return np.lib.stride_tricks.as_strided(memory[self.base :], self.extents, strides)

    def addresses(self, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Offsets from the matrix's first element of these coordinates in batch 0."""
        return rows * self.strides[0] + columns * self.strides[1]

    def has_row(self, rows: np.ndarray) -> np.ndarray:
        """Which of these are coordinates of the first mode."""
        return np.asarray(rows < self.extents[0])

    def read(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """The values at these places of `buffer`, and a mask of those outside the matrix; None if none is."""
        belongs = self.belongs(index)
        if belongs is None:
            return self.buffer[index], None
        return np.take(self.buffer, index, mode="clip"), ~belongs

    def belongs(self, index: np.ndarray) -> np.ndarray | None:
        """Which of these places are elements of the matrix; None if all are."""
        if index.size == 0:
            return None
        if index.min() >= 0 and index.max() < len(self.buffer):
            belongs = self.inside[index]
            return None if belongs.all() else belongs
        return np.take(self.inside, index, mode="clip") & (index >= 0) & (index < len(self.buffer))


class GatedB(GlobalMatrix):
    """B in the order in which the tiles of a gated plan have its columns: gates and their ups in turn.

    n   its columns, which may be followed by zeros
    """

    def __init__(self, matrix: GlobalMatrix, glu: Glu, n: int) -> None:
        self.__dict__.update(matrix.__dict__)
        self.glu, self.n = glu, n

    def addresses(self, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        tile, within = np.divmod(rows, self.glu.columns)
        return super().addresses(self.glu.column_of_b(tile, within, self.n), columns)

    def has_row(self, rows: np.ndarray) -> np.ndarray:
        tile, within = np.divmod(rows, self.glu.columns)
        return np.asarray(tile * self.glu.d_columns + self.glu.d_column(within) < self.n // 2)


def half_of(matrix: GlobalMatrix, by: str, which: int) -> GlobalMatrix:
    """A row beside a gated B as one of D's columns: the numbers of gates, or of ups.

    which   0 or 1
    """
    out = GlobalMatrix.__new__(GlobalMatrix)
    out.__dict__.update(matrix.__dict__)
    rows, columns, batch = matrix.extents
    step = matrix.strides[1]
    out.extents = (rows, columns // 2, batch)
    out.strides = (matrix.strides[0], step * (half_column(by, 1, 0, columns // 2)), matrix.strides[2])
    out.base = matrix.base + step * half_column(by, 0, which, columns // 2)
    return out
