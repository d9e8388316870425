"""Choose the plan of a grouped GEMM: groups of any size, which only the device knows.

The time of a plan is that of a batch of equal groups, as the model of dense GEMMs predicts it, but for two things.
Groups are of random sizes, so that tiles at their ends have rows of no group: a group of 100 rows takes one tile of 128
rows, and two groups of 50 take two. And most of what few rows of each group read are weights, which come from memory
faster if k-tiles have 256 bytes along K.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from cutegemm.build.sm90 import ACROSS_CLUSTERS
from cutegemm.choice.candidate import WITH_WGMMA, Candidate, Request, Variants
from cutegemm.choice.candidate import ranked as ranked_of
from cutegemm.choice.columns import Column
from cutegemm.choice.recipe import Recipe
from cutegemm.choice.refusals import by_reason
from cutegemm.choice.sm90.choice import Sm90Family, family
from cutegemm.choice.sm90.named import of_tile
from cutegemm.choice.sm90.shapes import Shapes
from cutegemm.choice.sm90.tiles import DEEP, NamedTile
from cutegemm.choice.sm90.tiling import FixupTiles, Tiling
from cutegemm.errors import PlanError
from cutegemm.machine.arch import DEFAULT_ARCH
from cutegemm.machine.device import DEFAULT_DEVICE, Device
from cutegemm.plan.memory.groups import batch_of_equal_groups, without_groups
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Problem
from cutegemm.plan.rules.limits import limits

_MOST_TRIED = 400  # candidates to try, the fastest first, until one suits groups
# Time to read the rows of a k-tile of 128 bytes, over that of 256: 128 groups, 8192 rows, 1536 x 4096 of bf16 take
# 672 us in 64 x 128 and 600 us in the same tile with deep k-tiles (H100, 2026-11-27).
_SHALLOW = 1.12
# Share of the weights that is read again from memory for a second tile of a group, which another CTA computes: the same
# problem takes 653 us in 64 x 128 and 588 us in 128 x 128, both with deep k-tiles.
_AGAIN = 0.2
# Largest mean number of rows for deep k-tiles. With more rows, the weights take longer to multiply than to read, and
# deep k-tiles are slower, as shared memory holds few of them. 64 groups, 65536 rows, 4096 x 7168: 7.2 ms in 128 x 128,
# deep, and 5.9 ms in 128 x 256.
_MOST_ROWS_OF_DEEP = 192
# Tiles with deep k-tiles that are candidates for groups only.
_DEEP_TILES = tuple(
    [
        of_tile(NamedTile(tile, cluster, depth=DEEP))
        for tile in ((64, 128), (128, 64), (128, 128), (256, 64))
        for cluster in ((1, 1), (2, 1), (1, 2))
    ]
)


@dataclass(frozen=True, eq=False)
class GroupedFamily(Sm90Family):
    """Predicts the times of Hopper plans for a grouped GEMM, from those of a batch of equal groups.

    mode   mode of the problem's D that groups divide: "m" or "n"; "k" if they divide K
    """

    mode: str = "m"

    def candidates(self, problem: Problem) -> Variants:
        """Return all plans, without split-K; those with deep k-tiles only for groups of few rows."""
        suits = np.ones(len(self.recipes), bool)
        if self.mode == "k" or getattr(problem, self.mode) > _MOST_ROWS_OF_DEEP:
            suits = ~self.shapes.is_deep
        return Variants(np.flatnonzero(suits))

    def tiling(self, problem: Problem) -> Tiling:
        """Return how the tiles of each plan cover the D of groups whose sizes are geometrically distributed.

        problem   the batch of equal groups, whose size is the mean of the sizes
        """
        equal = super().tiling(problem)
        if self.mode == "k":
            return equal
        most = np.where(self._divides_rows, equal.rows, equal.columns)
        return replace(equal, tiles=equal.tiles * self._mean_tiles(problem) / most)

    @cached_property
    def _divides_rows(self) -> Column:
        """Return an array of flags, one per plan: do groups divide the rows of its D? Not its columns, nor K."""
        return self.shapes.swap_ab == (self.mode == "n")

    def _mean_tiles(self, problem: Problem) -> Column:
        """Return the mean number of cluster tiles of a group along the mode that groups divide, for each plan."""
        shapes = self.shapes
        tile = np.where(self._divides_rows, shapes.cluster_m, shapes.cluster_n)
        return mean_tiles(getattr(problem, self.mode), tile)

    def _along(self, tiling: Tiling) -> tuple[Column, Column]:
        """Return two arrays of flags, one entry per plan: do consecutive tiles lie along D's contiguous mode; is it M?

        For groups along K, this is also true of GPC-aware order if a band spans the D of a group. 128 groups, K = 8192
        in all, 4096 x 1536 take 695 us in bands and 724 us in the order along_n. 8 groups, K = 16 in all, 4096 x 14336,
        whose D is wider than a band, take 335 and 324 us (H100, 2026-11-28).
        """
        along, across = super()._along(tiling)
        if self.mode != "k":
            return along, across
        shapes = self.shapes
        spans_m = (shapes.cn > shapes.cm) & (tiling.rows <= ACROSS_CLUSTERS)
        spans_n = (shapes.cm > shapes.cn) & (tiling.columns <= ACROSS_CLUSTERS)
        return along | self._gpc_aware & np.where(across, spans_m, spans_n), across

    def _read_bytes(
        self, problem: Problem, tiling: Tiling, variants: Variants, fixup_tiles: FixupTiles | None, waves: Column
    ) -> Column:
        of_group = (problem.m + problem.n) * problem.k * self.operands.a.dtype.bits / 8
        if of_group <= self.device.measured.l2_kept_bytes:
            read: Column = of_group * problem.l
        else:
            read = super()._read_bytes(problem, tiling, variants, fixup_tiles, waves)
        factor = np.where(self.shapes.is_deep, 1.0, _SHALLOW)
        if self.mode != "k":
            factor = factor * (1 + _AGAIN * np.clip(self._mean_tiles(problem) - 1, 0, 1))
        return read * variants.of_plans(factor)


def mean_tiles(mean: float, tile: Column) -> Column:
    """Return the mean number of tiles of a group, if its number of rows is geometrically distributed.

    mean   mean number of rows of a group
    tile   rows of a tile

    Half of all groups have no row if the mean is 1. The others have one tile of 64 rows, or nearly always:

    >>> round(float(mean_tiles(1, 64)), 6), round(float(mean_tiles(256, 128)), 3)
    (0.5, 2.535)
    """
    more = mean / (1 + mean)  # probability of one more row
    return more / (1 - more**tile)


@lru_cache(maxsize=1024)
def _family(request: Request, mode: str, k: int) -> GroupedFamily:
    """Return the Hopper plans that suit groups, with their time model. Cached.

    request   operands without groups, and the other conditions of the choice
    mode      mode that groups divide
    k         extent along K, as for `choice.sm90.choice.family`
    """
    dense = family(request, k)
    shapes, recipes = [dense.shapes], [*dense.recipes]
    if not dense.recipes or not recipes[0].shape.promoted:
        for swap_ab in request.variants:
            shapes.append(Shapes.of([one.shape for one in _DEEP_TILES], dense.operands, swap_ab, request.with_c))
            recipes += [replace(one, swap_ab=swap_ab) for one in _DEEP_TILES]
    joined = Shapes.joined(shapes)
    # 128 x 192 in clusters of 1 x 2 take up to 1.4 times as long as in 2 x 1: 11.1 and 8.1 ms for 256 groups, 108712
    # rows, 3712 x 5120; 5.7 and 5.8 ms for 128 groups, 81024 rows, 4224 x 4992 (H100, 2026-11-28).
    is_slow = (joined.bm == 128) & (joined.bn == 192) & (joined.cn == 2)
    suits = np.flatnonzero((joined.cluster_k == 1) & ~joined.single & ~is_slow)
    kept = tuple([recipes[i] for i in suits])
    return GroupedFamily(
        joined.take(suits), dense.operands, dense.device, dense.repacked, dense.with_c, recipes=kept, mode=mode
    )


def ranked_grouped(
    problem: Problem,
    arch: str = DEFAULT_ARCH,
    device: Device = DEFAULT_DEVICE,
    accumulate: str = "fast",
    swap_ab: bool | None = None,
    with_c: bool = False,
) -> Iterator[Candidate]:
    """Yield the candidate plans for a grouped problem in ascending order of predicted time; no plan is built yet.

    Some of them may not suit groups. The arguments are those of `choice.catalog.ranked`.

    raises   PlanError if the problem has no groups, or no named plan can implement its operands on the architecture
    """
    rules = []
    if not problem.operands.groups:
        rules.append("the problem has no groups. Call choose, or pass operands with groups = 'm', 'n' or 'k'.")
    if arch != WITH_WGMMA:
        rules.append(f"kernels of groups need wgmma of {WITH_WGMMA}; {arch} does not have it. Pass tensors on the CPU.")
    if rules:
        raise PlanError(f"choose: {problem} on {arch}", rules)
    dense = replace(batch_of_equal_groups(problem), ld=())
    request = Request(without_groups(problem.operands), None, arch, device, accumulate, swap_ab, with_c)
    return ranked_of(_family(request, problem.operands.groups, dense.k), dense)


def chosen_grouped(
    problem: Problem,
    arch: str = DEFAULT_ARCH,
    device: Device = DEFAULT_DEVICE,
    accumulate: str = "fast",
    with_c: bool = False,
    can_implement: Callable[[GemmPlan, bool], GemmPlan | None] | None = None,
) -> tuple[Recipe, GemmPlan]:
    """Return the recipe of the plan with the lowest predicted time for a grouped problem, and the plan itself.

    can_implement   function of a plan, and of whether it swaps A and B: returns the plan with the epilogue of the call,
                    or None if it cannot have it; None: plans are taken as they are
    raises          PlanError with the reasons if no plan can implement the problem

    >>> from cutegemm.plan import Operands
    >>> operands = Operands.of("bf16", layout="nt", batched=True, groups="m")
    >>> recipe, plan = chosen_grouped(Problem(32768, 4096, 4096, 8, operands))
    >>> plan.scheduler.mode, plan.cta_tile
    ('n', (128, 192, 64))
    """
    swap_ab = False if problem.operands.gated else None
    refusals: list[tuple[object, str]] = []
    for number, one in enumerate(ranked_grouped(problem, arch, device, accumulate, swap_ab, with_c)):
        if number == _MOST_TRIED:
            break
        recipe = one.recipe
        try:
            plan = recipe.build(problem.operands, with_c, arch, device)
            too_large = list(limits(plan, problem.transposed if recipe.swap_ab else problem))
            if too_large:
                raise PlanError(f"plan {recipe} on {problem}", too_large)
            made = plan if can_implement is None else can_implement(plan, recipe.swap_ab)
        except PlanError as error:
            refusals += [(recipe, rule) for rule in error.violations]
            continue
        if made is None:
            refusals.append((recipe, "it does not compute the epilogue at full speed. Pass a plan by name."))
        else:
            return recipe, recipe.as_launched(made)
    raise PlanError(f"choose: no named plan for {problem.operands} on {arch}", by_reason(refusals))
