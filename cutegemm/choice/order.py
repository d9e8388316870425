"""Batch invariance: one order of accumulation for a weight, whatever the number of rows of the input.

A row of D = A @ B has the same bits in every batch if all numbers of rows are served by plans whose
`accumulation_order` is equal. The order is chosen once for N, K and the types: the one whose plans lose the least time
over all numbers of rows. It does not depend on M, L, the epilogue, or the alignment and majorness of A and D.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from cutegemm.choice.catalog import built, ranked
from cutegemm.choice.recipe import Recipe
from cutegemm.errors import PlanError
from cutegemm.machine.device import Device
from cutegemm.plan.accumulation import DEPENDS_ON, AccumulationOrder, row_independent_order
from cutegemm.plan.problem import Operands, Problem

# Numbers of rows for which plans are compared to choose an order; each counts alike.
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)


@dataclass(frozen=True)
class Weight:
    """The data of a GEMM that its summation order along K may depend on: the weight B and types, but not the rows of A.

    One order is chosen for a weight and used for all numbers of rows, so that results do not change with the batch
    size.

    operands     types of A, B and D, block scales, and majorness of B. A is K-major, D is N-major, and all are aligned
    n, k         extents of the weight B
    arch         architecture to compile for
    device       device whose times are predicted
    accumulate   accumulation of float8: "fast" as the tensor cores do, or "promoted" to f32 after each k-tile
    """

    operands: Operands
    n: int
    k: int
    arch: str
    device: Device
    accumulate: str

    @staticmethod
    def of(operands: Operands, n: int, k: int, arch: str, device: Device, accumulate: str) -> Weight:
        """Return the data of a GEMM on which the choice of a fixed summation order along K depends.

        operands       types, majorness and block scales; the alignment, and the majorness of A and D, are ignored
        n, k           extents of the weight B
        arch, device   architecture to compile for, and device whose times are predicted
        accumulate     accumulation of float8: "fast" as the tensor cores do, or "promoted" to f32 after each k-tile
        """
        letters = f"n{'t' if operands.b.major == 'k' else 'n'}"
        types = {"b": operands.b.dtype, "out": operands.d.dtype, "acc": operands.acc}
        plain = Operands.of(operands.a.dtype, layout=letters, **types)  # type: ignore[arg-type]
        scales = {name: operands.matrix(name) for name in operands.of_mainloop}
        return Weight(plain.fitted(1, n, k).with_aux(**scales), n, k, arch, device, accumulate)

    def problem(self, rows: int) -> Problem:
        """Return the GEMM problem of this weight (B) with an A of `rows` rows."""
        return Problem(rows, self.n, self.k, operands=self.operands)


@dataclass(frozen=True)
class ServedRows:
    """The summation order along K that was chosen for a weight, and the plan to use for each number of rows of A.

    All these plans have that order, so a row of D has the same bits for any number of rows of A.

    order     the order of accumulation
    recipes   name and arguments of the plan with the lowest predicted time, for each power of two from 1 to 8192 as the
              number of rows of A
    """

    order: AccumulationOrder
    recipes: tuple[Recipe, ...]

    def nearest(self, rows: int) -> list[Recipe]:
        """Return the distinct plans of this object, those chosen for numbers of rows near `rows` first.

        A plan is given as a recipe, i.e. its name and arguments.

        rows   number of rows of A
        """
        distances = sorted(zip([abs(each - rows) for each in ROWS], range(len(ROWS)), strict=True))
        return list(dict.fromkeys([self.recipes[index] for _, index in distances]))


@dataclass(frozen=True)
class Orders:
    """Finds the order in which plans for a weight add the products along K, and remembers it.

    A plan is given as a recipe, i.e. its name and arguments. It must be built to find its order, which takes time. But
    recipes whose keys `accumulates_as` are equal have the same order, so only one plan is built for each key.

    operands     operands of the GEMM, with the alignments that loads by TMA need
    by_threads   `operands` with the alignments that loads by threads need for A and B
    weight       N, K, architecture and device
    with_c       whether the epilogue reads a C
    """

    operands: Operands
    by_threads: Operands
    weight: Weight
    with_c: bool = False
    _known: dict[object, AccumulationOrder | None] = field(default_factory=dict, compare=False, repr=False)

    def of(self, recipe: Recipe) -> AccumulationOrder | None:
        """Return the order in which a plan adds products along K, if this order does not depend on the number of rows.

        recipe    name and arguments of the plan
        returns   None if the plan breaks a rule, or if CTAs of different clusters split K. Such a split pays only for
                  few rows
        """
        if recipe.division.is_split or recipe.ctas:
            return None
        alike = recipe if DEPENDS_ON else recipe.accumulates_as
        known = self._known.get(alike)
        if known is None and recipe not in self._known:
            self._known[recipe] = known = self._of_plan(recipe)
            if known is not None:
                self._known[alike] = known
        return known

    def _of_plan(self, recipe: Recipe) -> AccumulationOrder | None:
        """Build a plan, and return the order in which it adds the products along K; None if the plan breaks a rule.

        recipe   name and arguments of the plan
        """
        weight = self.weight
        problem = Problem(1, weight.n, weight.k, operands=self.by_threads)
        try:
            plan = built(recipe, self.operands, self.by_threads, problem, weight.arch, weight.device, self.with_c)
        except PlanError:
            return None
        return row_independent_order(plan, problem.transposed if recipe.swap_ab else problem, recipe.swap_ab)


@lru_cache(maxsize=1024)
def served_rows(weight: Weight) -> ServedRows:
    """Choose the summation order along K for a weight B that costs the least time over many numbers of rows of A.

    With one order, a row of D has the same bits in every batch. For each order and number of rows, the slowdown is the
    time of the fastest plan with the order, divided by that of the fastest plan of all. The order with the lowest mean
    slowdown is chosen, among those that have a plan for every number of rows.

    weight    extents N and K, operands and device
    returns   the order, and the fastest recipe with it for each number of rows
    raises    PlanError if no order has a plan for all numbers of rows

    >>> from cutegemm.machine.device import device_named
    >>> weight = Weight.of(Operands.of("bf16", layout="nt"), 4096, 4096, "sm_90a", device_named("h100"), "fast")
    >>> print(served_rows(weight).order)
    wgmma of 16 k, bf16 x bf16 -> f32: k 0..4096
    """
    known = Orders(weight.operands, weight.operands, weight)
    slower: dict[AccumulationOrder, list[float]] = {}
    fastest: dict[AccumulationOrder, list[Recipe]] = {}
    for rows in ROWS:
        best: dict[AccumulationOrder, tuple[float, Recipe]] = {}
        least = 0.0
        for one in ranked(weight.operands, weight.problem(rows), weight.arch, weight.device, weight.accumulate):
            least = least or one.us
            order = known.of(one.recipe)
            if order is not None:
                best.setdefault(order, (one.us, one.recipe))
        for order, (us, recipe) in best.items():
            slower.setdefault(order, []).append(us / least)
            fastest.setdefault(order, []).append(recipe)
    serving = [order for order, ratios in slower.items() if len(ratios) == len(ROWS)]
    if not serving:
        rule = f"no order of accumulation serves {ROWS[0]} to {ROWS[-1]} rows. Leave out batch_invariant."
        raise PlanError(f"batch_invariant: {weight.problem(ROWS[0])} of {weight.operands}", [rule])
    order = min(serving, key=lambda order: sum(slower[order]))
    return ServedRows(order, tuple(fastest[order]))


def restored(weight: Weight, recipes: Sequence[Recipe]) -> ServedRows | None:
    """Rebuild the chosen summation order of a weight from remembered plans, without predicting any time.

    weight    the weight for which they were chosen
    recipes   names and arguments of plans, one for each number of rows in `ROWS` (the powers of two from 1 to 8192)
    returns   None if the number of recipes is wrong or if their plans do not all have the same summation order
    """
    known = Orders(weight.operands, weight.operands, weight)
    orders = {known.of(recipe) for recipe in recipes}
    (order, *others) = orders or {None}
    if others or order is None or len(recipes) != len(ROWS):
        return None
    return ServedRows(order, tuple(recipes))
