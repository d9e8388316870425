"""Candidates: the plans that `choose` compares, and the interface of the families that offer them.

A `Family` holds the recipes that can implement the operands, and a time model. `candidates` returns the recipes for a
problem, each with the divisions of K to try; `predict` returns the times of all of them at once, in columns; `ranked`
sorts them by time. Families differ only in their candidates and in the terms of their models.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Generic, Protocol, TypeVar

import numpy as np

from cutegemm.choice.columns import Column, by_time
from cutegemm.choice.recipe import Recipe
from cutegemm.choice.refusals import by_reason
from cutegemm.errors import PlanError
from cutegemm.machine.arch import DEFAULT_ARCH
from cutegemm.machine.device import DEFAULT_DEVICE, Device
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Operands, Problem
from cutegemm.plan.work.split import FIXUP, KSplit

WITH_WGMMA = "sm_90a"  # the architecture whose plans use wgmma
_EVENLY = KSplit(waves=1)
_MOST_SPLITS, _MOST_CTAS = 1 << 10, 1 << 20  # larger than K splits, and CTAs, of any candidate

AnyRecipe = TypeVar("AnyRecipe", bound=Recipe)


@dataclass(frozen=True)
class Request:
    """All conditions for the choice of a GEMM plan except the extents of the problem: operands, GPU, precision.

    operands     types, majorness and alignment of A, B, C and D. A and B have the alignments that TMA needs: those of
                 addresses and strides
    by_threads   `operands` with the alignments that loads by threads need for A and B: those of addresses, strides and
                 lengths of rows; None: as `operands`
    arch         architecture, such as "sm_90a"
    device       device whose rates the time models use
    accumulate   for fp8: "fast" keeps the accumulators in wgmma, with about 14 bits; "promoted" adds the accumulators
                 of each k-tile to a total in f32. No effect on other types
    swap_ab      True: only plans that compute D^T = B^T A^T; False: only plans that compute D; None: both
    with_c       whether the epilogue reads a C
    """

    operands: Operands
    by_threads: Operands | None = None
    arch: str = DEFAULT_ARCH
    device: Device = DEFAULT_DEVICE
    accumulate: str = "fast"
    swap_ab: bool | None = None
    with_c: bool = False

    @property
    def loaded(self) -> Operands:
        """Return the operands of this request with the alignments that loads by threads need for A and B.

        They are the field `by_threads`, or `operands` if that is None.
        """
        return self.by_threads or self.operands

    @property
    def variants(self) -> tuple[bool, ...]:
        """Return which plans this request permits, as the values of "does the plan swap A and B?" that are tried.

        A plan that swaps A and B computes D^T = B^T A^T. The result is (False,) if only plans for D are permitted,
        (True,) if only plans for D^T are, and (False, True) if both are.
        """
        return (False, True) if self.swap_ab is None else (self.swap_ab,)


@dataclass(frozen=True)
class Candidate:
    """A plan that may be chosen for a problem, not built yet, with its predicted time and its bottleneck.

    recipe        name and arguments of the plan; `recipe.build` builds it
    us            predicted time in microseconds, including the repack passes (copies of operands before the GEMM)
    find_bounds   function without arguments that returns a dict, e.g. {"DRAM": 12.0}: the microseconds that each
                  possible bottleneck would take alone
    """

    recipe: Recipe
    us: float
    find_bounds: Callable[[], dict[str, float]] = field(compare=False, repr=False)

    @property
    def bounds(self) -> dict[str, float]:
        """Return the microseconds that each possible bottleneck of this plan would take alone, e.g. {"DRAM": 12.0}."""
        return self.find_bounds()

    @property
    def bound(self) -> str:
        """Return the name of this candidate's bottleneck, i.e. what takes the most time, such as "L2"."""
        return _highest(self.bounds)


@dataclass(frozen=True)
class Predicted:
    """Predicted times of many candidate plans for one problem, with the times of their possible bottlenecks.

    us       array of microseconds, one entry per candidate, for an L2 cache that is empty at the start; infinite if the
             device cannot run the plan
    bounds   function without arguments that returns a dict, e.g. {"DRAM": array, "L2": array}: the microseconds that
             each possible bottleneck would take alone, as an array with one entry per candidate, or as one number for
             all candidates
    """

    us: Column
    bounds: Callable[[], dict[str, Column]]

    def bounds_of(self, row: int) -> dict[str, float]:
        """Return the microseconds that each possible bottleneck of one candidate would take alone, e.g. {"DRAM": 12.0}.

        row   index of the candidate in the arrays

        >>> Predicted([3.0, 5.0], lambda: {"L2": [2, 1], "DRAM": [1, 4]}).bounds_of(1)
        {'L2': 1.0, 'DRAM': 4.0}
        """
        return {name: float(us[row] if np.ndim(us) else us) for name, us in self.bounds().items()}

    def bound(self, row: int) -> str:
        """Return the bottleneck of the candidate at index `row`, i.e. what takes the most time, such as "L2"."""
        return _highest(self.bounds_of(row))


def _highest(bounds: dict[str, float]) -> str:
    """Return the bottleneck that takes the longest: the key of `bounds` with the largest value.

    bounds   name of a possible bottleneck, such as "L2" -> the microseconds that it would take alone
    """
    return max(bounds, key=bounds.__getitem__)


@dataclass(frozen=True)
class Variants:
    """Describes many candidate plans for a problem by parallel arrays: entry i of each array is for candidate i.

    A candidate is a plan, not built yet, with one way to divide K among CTAs. A field may be one number instead of an
    array; it then holds for all candidates.

    recipe   index of the plan in the list of all plans of its kernel family
    splits   split-K: number of K splits of each tile; 1 without split-K
    ctas     stream-K: number of CTAs that share evenly the k-tiles of the last, partial wave of tiles; 0 without
             stream-K
    fixup    stream-K fixup: whether CTAs that the last wave leaves idle take k-tiles of its tiles
    problem  index of the problem, if there are several that differ in M
    """

    recipe: Column
    splits: Column = 1
    ctas: Column = 0
    fixup: Column = False
    problem: Column = 0

    @classmethod
    def of(cls, recipes: Sequence[Recipe]) -> Variants:
        """Return one candidate per recipe (name and arguments of a plan), with K divided as the recipe says.

        A name that ends with /k3 means three K splits of each tile, and one with /fixup means stream-K fixup.

        recipes   one entry per candidate

        >>> from cutegemm.choice.names import recipe_named
        >>> variants = Variants.of([recipe_named(name) for name in ("sm90_epi_stages/k3", "sm90_epi_stages/fixup")])
        >>> variants.splits.tolist(), variants.fixup.tolist()
        ([3, 1], [False, True])
        """
        k_splits = [recipe.division for recipe in recipes]
        ctas = np.array([recipe.ctas or 0 for recipe in recipes])
        splits, fixup = [np.array([getattr(one, name) for one in k_splits]) for name in ("splits", "fixup")]
        return cls(np.arange(len(k_splits)), splits, ctas, fixup)

    def of_plans(self, column: Column) -> Column:
        """Return the value for each candidate from a value for each plan.

        column   array (plans), (problems, plans) or (problems, 1); or one number, which is returned
        """
        if not isinstance(column, np.ndarray):
            return column
        if column.ndim == 1:
            return column.take(self.recipe)
        plans = column.shape[1]
        return column.take(self.problem * plans + self.recipe if plans > 1 else self.problem)

    @property
    def numbers(self) -> Column:
        """Return an array of integers below 2**48, one per candidate: `recipe_of` makes a candidate's recipe of one.

        Numbers are equal for equal candidates of a family, also for different problems.
        """
        number = np.asarray(self.recipe, np.int64) * _MOST_SPLITS + np.asarray(self.splits, np.int64)
        return (number * _MOST_CTAS + np.asarray(self.ctas, np.int64)) * 2 + self.fixup

    def recipe_at(self, place: int, recipes: Sequence[Recipe]) -> Recipe:
        """Return the recipe (name and arguments of a plan) of one candidate, including how the candidate divides K.

        place     index of the candidate in the arrays
        recipes   list of all recipes of the kernel family, which the array `recipe` of this object indexes
        """
        splits, ctas, fixup = [
            column[place] if isinstance(column, np.ndarray) else column
            for column in (self.splits, self.ctas, self.fixup)
        ]
        return _divided(recipes[self.recipe[place]], int(splits), int(ctas), bool(fixup))


def recipe_of(number: int, recipes: Sequence[Recipe]) -> Recipe:
    """Return the recipe of the candidate that has a number, including how the candidate divides K.

    number    one of `Variants.numbers`
    recipes   list of all recipes of the kernel family
    """
    number, fixup = divmod(number, 2)
    number, ctas = divmod(number, _MOST_CTAS)
    index, splits = divmod(number, _MOST_SPLITS)
    return _divided(recipes[index], splits, ctas, bool(fixup))


@lru_cache(maxsize=8192)
def _divided(recipe: Recipe, splits: int, ctas: int, fixup: bool) -> Recipe:
    """Return a copy of `recipe` (name and arguments of a plan) that divides K as the arguments say. Results are cached.

    splits    number of K splits of each tile; 1: no split-K
    ctas      stream-K: CTAs that share k-tiles evenly; 0: no stream-K
    fixup     whether idle CTAs of the last wave take k-tiles of its tiles (stream-K fixup)
    returns   `recipe` itself if no division of K is asked for
    """
    if ctas:
        return replace(recipe, split=_EVENLY, ctas=ctas)
    if splits == 1 and not fixup:
        return recipe
    return replace(recipe, split=FIXUP if fixup else KSplit(splits, reduction=recipe.reduction))


class Family(Protocol):
    """Interface that a kernel family (SIMT, mma.sync, gemv or Hopper) offers to the choice of a plan.

    An implementation is made for given operands. It lists the family's plans, selects those that are candidates for a
    problem, and predicts their times.
    """

    @property
    def recipes(self) -> Sequence[Recipe]:
        """Return the recipes (names and arguments of plans) that can implement the operands; empty if none can."""

    def candidates(self, problem: Problem) -> Variants:
        """Return the candidates for a problem: plans that may be the fastest, each with the divisions of K to try."""

    def predict(self, variants: Variants, problem: Problem) -> Predicted:
        """Return the predicted times of candidates for a problem, in microseconds and in the order of the candidates.

        variants   the candidates: plans, each with one way to divide K
        problem    extents M, N, K and L of the GEMM
        """


def ranked(family: Family, problem: Problem) -> Iterator[Candidate]:
    """Yield the candidate plans of one kernel family for a problem, in ascending order of predicted time.

    No plan is built yet. Candidates that the device cannot run (infinite time) are left out if there are any that it
    can run.

    family    the kernel family, e.g. SIMT, with its candidates and its time model
    problem   extents M, N, K and L of the GEMM
    """
    variants = family.candidates(problem) if family.recipes else None
    if variants is None or not len(variants.recipe):
        return
    predicted = family.predict(variants, problem)
    some_run = bool(np.isfinite(predicted.us).any())
    for place in by_time(predicted.us):
        us = float(predicted.us[place])
        if some_run and math.isinf(us):
            return
        yield Candidate(variants.recipe_at(place, family.recipes), us, partial(predicted.bounds_of, place))


@dataclass(frozen=True)
class Serving(Generic[AnyRecipe]):
    """Result of testing all plans of a kernel family against given operands: the usable plans, and why others are not.

    A recipe is the name and the arguments of a plan.

    recipes    recipes whose plans can implement the operands on the architecture
    plans      the built plan of each of these recipes, in the same order
    refusals   a pair (recipe, violated rule as text) for each rule that a recipe violates
    """

    recipes: tuple[AnyRecipe, ...]
    plans: tuple[GemmPlan, ...]
    refusals: tuple[tuple[object, str], ...]

    @classmethod
    def of(
        cls,
        recipes: Iterable[AnyRecipe],
        operands: Operands,
        arch: str,
        device: Device,
        rule: Callable[[GemmPlan], str] = lambda _: "",
    ) -> Serving[AnyRecipe]:
        """Build the plan of each recipe, and separate the usable plans from those that cannot implement the operands.

        recipes        names and arguments of the plans of a kernel family
        operands       types, majorness and alignment of A, B, C and D
        arch, device   GPU architecture and device to build the plans for
        rule           an additional check: returns why a built plan must not be used, or "" if it may be
        """
        plans: dict[AnyRecipe, GemmPlan] = {}
        refusals: list[tuple[object, str]] = []
        for recipe in recipes:
            try:
                plan = recipe.build(operands, arch=arch, device=device)
                violations = [*plan.refusals(arch), *filter(None, [rule(plan)])]
            except PlanError as error:
                violations = list(error.violations)
            refusals += [(recipe, violation) for violation in violations]
            if not violations:
                plans[recipe] = plan
        return cls(tuple(plans), tuple(plans.values()), tuple(refusals))

    def error(self, request: Request) -> PlanError:
        """Return the PlanError to raise if no plan of this kernel family can implement the operands.

        The error lists the rules that the plans violate.

        request   operands, architecture and other conditions of the choice
        """
        subject = f"choose: no named plan for {request.loaded} on {request.arch}"
        return PlanError(subject, by_reason(self.refusals))
