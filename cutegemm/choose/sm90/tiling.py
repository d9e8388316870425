"""How tiles lie over D and over the grid, and how their K is divided: columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cutegemm.choose.candidate import Ways
from cutegemm.choose.columns import Column
from cutegemm.choose.sm90.shapes import Shapes
from cutegemm.plan.problem import Problem
from cutegemm.plan.work.arithmetic import ARRAYS
from cutegemm.plan.work.shares import shares_of
from cutegemm.plan.work.split import FILLED


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
class Owners:
    """Candidates whose tiles that do not fill the grid have owners, whom others help: see `shares_of`.

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
    def of(cls, tiles: Column, k_tiles: int, grid: Column) -> Owners:
        """Return those of some shapes that have owners of any tile; integers are divided faster.

        >>> Owners.of(np.array([66, 70]), 100, np.array([66, 66])).at
        array([1])
        """
        shares = shares_of(FILLED, tiles.astype(int), k_tiles, grid.astype(int), ARRAYS)
        at = np.flatnonzero(shares.shared)
        return cls(at, *[column.take(at) for column in (shares.shared, shares.workers, shares.owned)])


@dataclass(frozen=True)
class OwnedWays(Ways):
    """Candidates, with how the owners of tiles are helped; None if no candidate has owners."""

    owners: Owners | None = None
