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
    """How the tiles of many plans cover D (or D^T, with swap A/B), and their grids: arrays with one entry per plan.

    An empty D counts as a D of one element.

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
    """Stream-K fixup of several candidates: helper CTAs take the last k-tiles of the tiles that do not fill the grid.

    All fields are arrays with one entry for each candidate that has fixup.

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
        """Return the stream-K fixup of those plans that share at least one tile with helper CTAs.

        Helpers are CTAs that the last wave leaves idle; they take the last k-tiles of its tiles.

        tiles     number of tiles of D, one entry per plan
        k_tiles   number of k-tiles of a tile
        grid      number of clusters that run at a time, one entry per plan
        returns   entries for these plans only; `at` has their indices

        >>> FixupTiles.of(np.array([66, 70]), 100, np.array([66, 66])).at
        array([1])
        """
        # Integers are divided faster than floats
        division = k_division_of(FIXUP, tiles.astype(int), k_tiles, grid.astype(int), ARRAYS)
        at = np.flatnonzero(division.shared)
        return cls(at, *[column.take(at) for column in (division.shared, division.workers, division.fixup)])


@dataclass(frozen=True)
class FixupVariants(Variants):
    """Candidates among Hopper plans, as parallel arrays, together with their stream-K fixup.

    fixup_tiles   which tiles helper CTAs share, for the candidates that have fixup; None if none has it
    """

    fixup_tiles: FixupTiles | None = None
