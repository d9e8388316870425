"""Columns of how tiles cover D and the grid, and of how their K is split."""

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
    """How the tiles of many plans cover the D of a problem, e.g. the number of tiles: arrays with one entry per plan.

    D is the kernel's result, i.e. D^T for plans that swap A and B. An empty D counts as a D of one element.

    m, n            extents of D as the kernel sees it
    rows, columns   number of cluster tiles along M and along N that cover D
    tiles           number of cluster tiles that cover the D of all batches
    grid            number of clusters that run at a time
    own_m, own_n    mean number of rows and of columns of a tile that lie within D
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
        """Return how the tiles of many plans cover the D of a problem.

        shapes   properties of the plans, one entry per plan
        grid     number of clusters that run at a time, one entry per plan
        """
        m, n = shapes.extents(problem)
        rows, columns = np.ceil(m / shapes.cluster_m), np.ceil(n / shapes.cluster_n)
        own_m, own_n = m / (rows * shapes.cm), n / (columns * shapes.cn)
        return cls(m, n, rows, columns, rows * columns * max(1, problem.l), grid, own_m, own_n)


@dataclass(frozen=True)
class FixupTiles:
    """Which tiles candidate plans divide by stream-K fixup, and among how many clusters; arrays over these candidates.

    With stream-K fixup, clusters that the last wave leaves idle ("helpers") take the last k-tiles of its tiles.
    Candidates without fixup have no entry.

    at        index of the candidate among all candidates
    shared    number of tiles whose k-tiles are shared with helpers
    workers   number of clusters that help
    kept      k-tiles of each shared tile that the cluster which stores the tile takes itself
    """

    at: Column
    shared: Column
    workers: Column
    kept: Column

    @classmethod
    def of(cls, tiles: Column, k_tiles: int, grid: Column) -> FixupTiles:
        """Return the stream-K fixup of the plans that share at least one tile with helper clusters.

        Helpers are clusters that the last wave leaves idle; they take the last k-tiles of its tiles.

        tiles     number of tiles of D, one entry per plan
        k_tiles   number of k-tiles of a tile
        grid      number of clusters that run at a time, one entry per plan
        returns   entries for the plans that have helpers only; `at` has the indices of these plans

        >>> FixupTiles.of(np.array([66, 70]), 100, np.array([66, 66])).at
        array([1])
        """
        # Integers are divided faster than floats
        division = k_division_of(FIXUP, tiles.astype(int), k_tiles, grid.astype(int), ARRAYS)
        at = np.flatnonzero(division.shared)
        return cls(at, *[column.take(at) for column in (division.shared, division.workers, division.fixup)])


@dataclass(frozen=True)
class FixupVariants(Variants):
    """Describes many candidate Hopper plans by parallel arrays, and adds what stream-K fixup does in them.

    With stream-K fixup, clusters that the last wave leaves idle ("helpers") take k-tiles of the last tiles. The
    inherited arrays have one entry per candidate: the plan, and how it divides K.

    fixup_tiles   number of shared tiles, and of helpers, for each candidate that has fixup; None if none has it
    """

    fixup_tiles: FixupTiles | None = None
