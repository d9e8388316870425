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

_EVENLY = KSplit(waves=1)

AnyRecipe = TypeVar("AnyRecipe", bound=Recipe)


@dataclass(frozen=True)
class Request:
    """What a plan is chosen for, apart from the extents M, N, K and L of the problem.

    operands     types, majorness and alignment of A, B, C and D; the alignment of A and B is the one that TMA loads see
    by_threads   operands with the alignment that loads of threads see; None: as `operands`
    arch         architecture, such as "sm_90a"
    device       device whose rates the time models take
    accumulate   for fp8: "fast" accumulates as wgmma does, with about 14 bits; "promoted" promotes the accumulators of
                 each k-tile to f32. Other types are accumulated in full either way
    swap_ab      True: only plans that compute D^T = B^T A^T; False: only plans that compute D; None: both
    with_c       whether a tile of C is read for each tile of D
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
        """Return the operands with the alignment that loads of threads see: `by_threads`, or `operands` by default."""
        return self.by_threads or self.operands

    @property
    def variants(self) -> tuple[bool, ...]:
        """Return the values of `swap_ab` to try: (False, True) if the request leaves it None, else its only value."""
        return (False, True) if self.swap_ab is None else (self.swap_ab,)


@dataclass(frozen=True)
class Candidate:
    """A plan that has not been built yet (its recipe), with its predicted time.

    recipe        name and arguments of the plan; `recipe.build` makes it
    us            predicted time in microseconds, including the repack passes (copies of operands before the GEMM)
    find_bounds   function that returns the value of `bounds`; called only when `bounds` is read
    """

    recipe: Recipe
    us: float
    find_bounds: Callable[[], dict[str, float]] = field(compare=False, repr=False)

    @property
    def bounds(self) -> dict[str, float]:
        """Time that each possible bottleneck would take by itself: its name, such as "L2" -> microseconds."""
        return self.find_bounds()

    @property
    def bound(self) -> str:
        """Return the name of the bottleneck: what takes most of the time, such as "L2" or "tensor cores"."""
        return _highest(self.bounds)


@dataclass(frozen=True)
class Predicted:
    """Predicted times of many candidate plans, as arrays with one entry for each candidate.

    us       microseconds after a flush of the L2 cache; infinite if the device cannot run the plan
    bounds   function that returns a dict: name of a possible bottleneck, such as "DRAM" -> the microseconds that it
             takes by itself, as an array, or as a number that holds for all candidates
    """

    us: Column
    bounds: Callable[[], dict[str, Column]]

    def bounds_of(self, row: int) -> dict[str, float]:
        """Return the time of each possible bottleneck of one candidate: its name -> microseconds by itself.

        row   index of the candidate

        >>> Predicted([3.0, 5.0], lambda: {"L2": [2, 1], "DRAM": [1, 4]}).bounds_of(1)
        {'L2': 1.0, 'DRAM': 4.0}
        """
        return {name: float(us[row] if np.ndim(us) else us) for name, us in self.bounds().items()}

    def bound(self, row: int) -> str:
        """Return the name of the bottleneck with the longest time for the candidate at index `row`."""
        return _highest(self.bounds_of(row))


def _highest(bounds: dict[str, float]) -> str:
    """Return the key of `bounds` (bottleneck -> microseconds) with the largest value."""
    return max(bounds, key=bounds.__getitem__)


@dataclass(frozen=True)
class Variants:
    """Candidates as parallel arrays: each is a recipe (an unbuilt plan) together with one way to divide K among CTAs.

    A field that is a number instead of an array holds for all candidates.

    recipe   index of the recipe in the family's `recipes`
    splits   split-K: number of K splits of each tile; 1 without split-K
    ctas     stream-K: CTAs that share evenly the k-tiles of the tiles that do not fill the grid; 0 without it
    fixup    whether stream-K fixup divides the k-tiles of the tiles that do not fill the grid
    """

    recipe: Column
    splits: Column = 1
    ctas: Column = 0
    fixup: Column = False

    @classmethod
    def of(cls, recipes: Sequence[Recipe]) -> Variants:
        """Return one candidate per recipe, divided along K as the recipe's name or options say.

        >>> from cutegemm.choice.names import recipe_named
        >>> variants = Variants.of([recipe_named(name) for name in ("sm90_epi_stages/k3", "sm90_epi_stages/fixup")])
        >>> variants.splits.tolist(), variants.fixup.tolist()
        ([3, 1], [False, True])
        """
        k_splits = [recipe.division for recipe in recipes]
        ctas = np.array([recipe.ctas or 0 for recipe in recipes])
        splits, fixup = [np.array([getattr(one, name) for one in k_splits]) for name in ("splits", "fixup")]
        return cls(np.arange(len(k_splits)), splits, ctas, fixup)

    def recipe_at(self, place: int, recipes: Sequence[Recipe]) -> Recipe:
        """Return the recipe of one candidate, changed to divide K as the candidate does.

        place     index of the candidate
        recipes   the recipes that the `recipe` column indexes
        """
        splits, ctas, fixup = [
            column[place] if isinstance(column, np.ndarray) else column
            for column in (self.splits, self.ctas, self.fixup)
        ]
        return _divided(recipes[self.recipe[place]], int(splits), int(ctas), bool(fixup))


@lru_cache(maxsize=8192)
def _divided(recipe: Recipe, splits: int, ctas: int, fixup: bool) -> Recipe:
    """Return a variant of the recipe that divides K as the arguments say, cached; the recipe itself without a division.

    splits, ctas, fixup   as the columns of `Variants`
    """
    if ctas:
        return replace(recipe, split=_EVENLY, ctas=ctas)
    if splits == 1 and not fixup:
        return recipe
    return replace(recipe, split=FIXUP if fixup else KSplit(splits, reduction=recipe.reduction))


class Family(Protocol):
    """Interface of a kernel family, such as SIMT or Hopper plans: its recipes for given operands, and their time model.

    The operands are fixed when the family is made; a recipe is a plan that has not been built yet.
    """

    @property
    def recipes(self) -> Sequence[Recipe]:
        """Return the recipes that can implement the operands; an empty sequence if none can."""

    def candidates(self, problem: Problem) -> Variants:
        """Return the candidates for a problem: recipes that may be the fastest, each with the divisions of K to try."""

    def predict(self, variants: Variants, problem: Problem) -> Predicted:
        """Return the predicted times of `variants` for a problem, as arrays in the order of `variants`."""


def ranked(family: Family, problem: Problem) -> Iterator[Candidate]:
    """Yield a family's candidates for a problem in ascending order of predicted time; no plan is built yet.

    Candidates that the device cannot run are left out, unless it can run none of them.
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
    """The recipes of a family that can implement given operands on an architecture, and why the others cannot.

    recipes    the recipes that can
    plans      the built plan of each of these recipes, in the same order
    refusals   (recipe, violated rule) for each recipe that cannot; several entries if it violates several rules
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
        """Build the plan of each recipe, and separate the recipes that can implement the operands from the others.

        rule   function that checks a plan for one more rule: returns the violation as text, or "" without one
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
        """Return the PlanError that lists why no recipe can implement the operands of `request`."""
        subject = f"choose: no named plan for {request.loaded} on {request.arch}"
        return PlanError(subject, by_reason(self.refusals))
