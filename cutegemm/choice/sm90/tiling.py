"""How tiles lie over D and over the grid, and how their K is divided: columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cutegemm.choice.candidate import Variants
from cutegemm.choice.columns import Column
from cutegemm.choice.sm90.shapes import Shapes
from cutegemm.plan.problem import Problem
from cutegemm.plan.work.arithmetic import ARRAYS
from cutegemm.plan.work.division import k_division_of
from cutegemm.plan.work.split import FIXUP


@dataclass(frozen=True)
class Tiling:
    """How tiles lie over D, or over D^T, and over the grid. A D without an element counts as one of one element.

    m, n            extents
    rows, columns   of clusters
    tiles           clusters, of all batches
    grid            clusters that run at a time
    own_m, own_n    rows and columns of a tile that there are, on the mean
    """

    m: Column
    n: Column
    rows: Column
    columns: Column
    tiles: Column
    grid: Column
    own_m: Column
    own_n: Column

    @classmethod
    def of(cls, shapes: Shapes, problem: Problem, grid: Column) -> Tiling:
        """
        grid   clusters that run at a time
        """
        m, n = shapes.extents(problem)
        rows, columns = np.ceil(m / shapes.cluster_m), np.ceil(n / shapes.cluster_n)
        own_m, own_n = m / (rows * shapes.cm), n / (columns * shapes.cn)
        return cls(m, n, rows, columns, rows * columns * max(1, problem.l), grid, own_m, own_n)


@dataclass(frozen=True)
class FixupTiles:
    """Candidates whose tiles that do not fill the grid have owners, whom others help: see `k_division_of`.

    at        their places among the candidates
    shared    tiles that have owners
    workers   who help them
    kept      k-tiles of each that its owner takes
    """

    at: Column
    shared: Column
    workers: Column
    kept: Column

    @classmethod
    def of(cls, tiles: Column, k_tiles: int, grid: Column) -> FixupTiles:
        """Return those of some shapes that have owners of any tile; integers are divided faster.

        >>> FixupTiles.of(np.array([66, 70]), 100, np.array([66, 66])).at
        array([1])
        """
        shares = k_division_of(FIXUP, tiles.astype(int), k_tiles, grid.astype(int), ARRAYS)
        at = np.flatnonzero(shares.shared)
        return cls(at, *[column.take(at) for column in (shares.shared, shares.workers, shares.fixup)])


@dataclass(frozen=True)
class FixupVariants(Variants):
    """Candidates, with how the owners of tiles are helped; None if no candidate has owners."""

    fixup_tiles: FixupTiles | None = None
