"""What the sizes of the groups of a grouped GEMM cost: weights that are read, tiles, and the balance of the CTAs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cutegemm.layout.inttuple import product
from cutegemm.plan.memory.groups import COUNTS, batch_of_equal_groups, group_bounds, operand_of_sizes
from cutegemm.plan.work.grouped import GroupedWork, RowGroups

if TYPE_CHECKING:
    from cutegemm.plan.plan import GemmPlan
    from cutegemm.plan.problem import Problem

_WEIGHTS = {"m": "b", "n": "a"}  # mode that groups divide -> the other factor, a matrix for each group


@dataclass(frozen=True, eq=False)
class GroupSchedule:
    """Tells which cluster computes a work tile of a grouped GEMM, and in what order.

    Work tiles are numbered from group to group. Cluster c computes the tiles c, c + clusters, c + 2 * clusters, ...

    sizes      (groups,) rows, columns or k of each group
    groups     (tiles,) group of each work tile of a cluster
    k_tiles    (tiles,) number of its k-tiles
    covered    rows, columns or k that the tiles of all groups cover along the mode that groups divide
    clusters   number of clusters that run at once
    ctas       CTAs of a cluster
    """

    sizes: np.ndarray
    groups: np.ndarray
    k_tiles: np.ndarray
    covered: int
    clusters: int
    ctas: int

    @property
    def rounds(self) -> int:
        """Number of work tiles of the cluster with the most."""
        return -(-len(self.groups) // self.clusters)

    @property
    def loads(self) -> np.ndarray:
        """(clusters,) number of k-tiles that each cluster multiplies."""
        owners = np.arange(len(self.groups)) % self.clusters
        return np.bincount(owners, self.k_tiles, self.clusters)


def equal_ends(problem: Problem) -> np.ndarray:
    """Return the end of each group of a grouped problem, if all groups but the last ones have the same size.

    >>> from cutegemm.plan import Operands, Problem
    >>> equal_ends(Problem(1000, 64, 128, 3, Operands.of("bf16", batched=True, groups="m"))).tolist()
    [334, 668, 1000]
    """
    mode = problem.operands.groups
    own = getattr(batch_of_equal_groups(problem), mode)
    return np.minimum(np.arange(1, problem.l + 1) * own, getattr(problem, mode))


def group_schedule(plan: GemmPlan, problem: Problem, ends: Sequence[int] | None, per_wave: int) -> GroupSchedule:
    """Return which cluster computes which work tile of a grouped GEMM.

    ends       end of each group; None for groups of equal size
    per_wave   CTAs that run at once, if the plan does not state their number

    >>> from cutegemm.build import sm90_plan
    >>> from cutegemm.plan import Operands, Problem
    >>> plan = sm90_plan(Operands.of("bf16", batched=True, groups="m"), tile=(64, 64, 64), ctas=2)
    >>> found = group_schedule(plan, Problem(200, 64, 128, 3, plan.operands), [100, 100, 200], 132)
    >>> found.sizes.tolist(), found.groups.tolist(), found.loads.tolist()
    ([100, 0, 100], [0, 0, 2, 2], [4.0, 4.0])
    """
    name, extent = operand_of_sizes(plan.operands), getattr(problem, plan.operands.groups)
    values = equal_ends(problem) if ends is None else np.array(ends, np.int64)
    if name == COUNTS:  # each group has room for as many rows, and as many valid ones here
        values = np.diff(values, prepend=0)
    _, sizes = group_bounds(name, values, extent)
    work = plan.work(problem, {name: values.reshape(-1, 1, 1)})
    assert isinstance(work, GroupedWork)
    cluster = work.tiles.cluster
    if isinstance(work, RowGroups):
        along = work.clusters_along(sizes)
        tiles = along * (work.tiles.n_tiles, work.tiles.m_tiles)[work.mode]
        k_tiles = np.full_like(sizes, plan.k_tiles(problem))
        extent = cluster.cta_tile[work.mode] * cluster.cluster_mn[work.mode]
    else:
        extent = cluster.cta_tile[2]
        along = k_tiles = np.maximum(-(-sizes // extent), 1)
        tiles = np.full_like(sizes, work.tiles.m_tiles * work.tiles.n_tiles)
    ctas = product(cluster.cluster_mn)
    clusters = max(1, (plan.scheduler.grid.ctas or per_wave) // ctas)
    groups = np.repeat(np.arange(len(sizes)), tiles)
    return GroupSchedule(sizes, groups, np.repeat(k_tiles, tiles), int(along.sum()) * extent, clusters, ctas)


@dataclass(frozen=True)
class GroupCost:
    """Tells what the sizes of groups cost.

    along              mode of the plan's problem that groups divide: "m", "n" or "k"
    count, empty       number of groups, and of those without elements
    least, most        smallest and largest size of a group
    is_known           True if the sizes are given; False if groups of equal size stand for them
    weight_bytes       bytes of the weights of groups with elements: the least that is read of weights. 0 if groups
                       divide K, as they then have no weights
    all_weight_bytes   bytes of the weights of all groups
    tiles              number of CTA tiles
    per_wave           CTAs that run at once
    rounds             number of tiles of the CTA with the most
    tail               share of the CTAs that have a tile in the last round
    imbalance          k-tiles of the CTA with the most, divided by the mean of all CTAs, minus 1
    waste              share of the elements of tiles along the divided mode that belong to no group
    """

    along: str
    count: int
    empty: int
    least: int
    most: int
    is_known: bool
    weight_bytes: int
    all_weight_bytes: int
    tiles: int
    per_wave: int
    rounds: int
    tail: float
    imbalance: float
    waste: float


def group_cost(plan: GemmPlan, problem: Problem, ends: Sequence[int] | None, per_wave: int) -> GroupCost:
    """Return what the sizes of the groups of a grouped GEMM cost. The arguments are those of `group_schedule`.

    Two groups of 100 rows take two tiles of 64 rows each, on three CTAs, and the weights of the empty one are not read:

    >>> from cutegemm.build import sm90_plan
    >>> from cutegemm.plan import Operands, Problem
    >>> plan = sm90_plan(Operands.of("bf16", batched=True, groups="m"), tile=(64, 64, 64), ctas=3)
    >>> cost = group_cost(plan, Problem(200, 64, 128, 3, plan.operands), [100, 100, 200], 132)
    >>> cost.weight_bytes == 2 * 64 * 128 * 2, cost.tiles, cost.rounds, round(cost.tail, 2), cost.imbalance, cost.waste
    (True, 4, 2, 0.33, 0.5, 0.21875)
    """
    along = plan.operands.groups
    schedule = group_schedule(plan, problem, ends, per_wave)
    sizes, tiles, clusters = schedule.sizes, len(schedule.groups), schedule.clusters
    empty = int((sizes == 0).sum())
    of_group = 0
    if along in _WEIGHTS:
        name = _WEIGHTS[along]
        rows = problem.n if name == "b" else problem.m
        of_group = rows * problem.k * plan.operands.matrix(name).dtype.bits // 8
    loads = schedule.loads
    return GroupCost(
        along,
        len(sizes),
        empty,
        int(sizes.min()),
        int(sizes.max()),
        ends is not None,
        of_group * (len(sizes) - empty),
        of_group * len(sizes),
        tiles * schedule.ctas,
        clusters * schedule.ctas,
        schedule.rounds,
        (tiles - (schedule.rounds - 1) * clusters) / clusters if tiles else 1.0,
        float(loads.max() / loads.mean()) - 1 if tiles else 0.0,
        1 - int(sizes.sum()) / schedule.covered if schedule.covered else 0.0,
    )
