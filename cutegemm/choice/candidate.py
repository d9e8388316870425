"""Candidates: the plans that a choice is made among, and the interface of the families that offer them.

A `Family` holds recipes that serve operands, and a model of their times. For a problem it says in which ways the K of
each recipe may be divided (`candidates`), and how long each takes (`predict`), all of them at once, in columns.
`ranked` orders them by time. Families differ only in their candidates, and in the terms of their models.
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
    """What a plan is chosen for, apart from the extents of the problem.

    operands     aligned as TMA loads A and B
    by_threads   the same operands, aligned as threads load them; `operands` if left out
    device       whose rates the models take
    accumulate   of fp8: "fast" accumulates as wgmma does, with about 14 bits; "promoted" promotes the accumulators of
                 each k-tile to f32. Other types are accumulated in full either way
    swap_ab      whether the plans are for D^T alone, or for D alone; None: both
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
        """The operands as threads load them."""
        return self.by_threads or self.operands

    @property
    def variants(self) -> tuple[bool, ...]:
        """Whether the plans are for D^T: the ways that are asked for."""
        return (False, True) if self.swap_ab is None else (self.swap_ab,)


@dataclass(frozen=True)
class Candidate:
    """A plan among which there is a choice.

    us            predicted microseconds, packing included
    find_bounds   finds the microseconds that each bound would take by itself; it is called only if somebody asks
    """

    recipe: Recipe
    us: float
    find_bounds: Callable[[], dict[str, float]] = field(compare=False, repr=False)

    @property
    def bounds(self) -> dict[str, float]:
        """Microseconds that each bound would take by itself, by its name."""
        return self.find_bounds()

    @property
    def bound(self) -> str:
        """Name of the bound that takes most of the time."""
        return _highest(self.bounds)


@dataclass(frozen=True)
class Predicted:
    """Columns of predicted times.

    us       microseconds after a flush of the L2 cache; infinitely many if the device cannot run the plan
    bounds   returns the microseconds that each bound of a plan would take by itself, by its name; a number is that of
             all plans
    """

    us: Column
    bounds: Callable[[], dict[str, Column]]

    def bounds_of(self, row: int) -> dict[str, float]:
        """Return the microseconds that each bound of a plan would take by itself.

        >>> Predicted([3.0, 5.0], lambda: {"L2": [2, 1], "DRAM": [1, 4]}).bounds_of(1)
        {'L2': 1.0, 'DRAM': 4.0}
        """
        return {name: float(us[row] if np.ndim(us) else us) for name, us in self.bounds().items()}

    def bound(self, row: int) -> str:
        """Return the name of the bound that takes most of the time of a plan."""
        return _highest(self.bounds_of(row))


def _highest(bounds: dict[str, float]) -> str:
    """Return the name of the bound with the most microseconds."""
    return max(bounds, key=bounds.__getitem__)


@dataclass(frozen=True)
class Variants:
    """Columns of candidates, each a recipe and a way to divide its K; a number is that of all candidates.

    recipe   index of the recipe
    splits   parts of K; 1 if it is whole
    ctas     CTAs among which the k-tiles of the tiles that do not fill the grid are shared evenly; 0 if they are not
    fixup    whether those tiles have owners, whom idle CTAs help
    """

    recipe: Column
    splits: Column = 1
    ctas: Column = 0
    fixup: Column = False

    @classmethod
    def of(cls, recipes: Sequence[Recipe]) -> Variants:
        """Each recipe once, divided as it says.

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
        """Return the recipe of a candidate, with its K divided."""
        splits, ctas, fixup = [
            column[place] if isinstance(column, np.ndarray) else column
            for column in (self.splits, self.ctas, self.fixup)
        ]
        return _divided(recipes[self.recipe[place]], int(splits), int(ctas), bool(fixup))


@lru_cache(maxsize=8192)
def _divided(recipe: Recipe, splits: int, ctas: int, fixup: bool) -> Recipe:
    if ctas:
        return replace(recipe, split=_EVENLY, ctas=ctas)
    if splits == 1 and not fixup:
        return recipe
    return replace(recipe, split=FIXUP if fixup else KSplit(splits, reduction=recipe.reduction))


class Family(Protocol):
    """Recipes that serve operands, and the model of their times."""

    @property
    def recipes(self) -> Sequence[Recipe]:
        """The recipes; none if nothing serves the operands."""

    def candidates(self, problem: Problem) -> Variants:
        """Return the recipes that may be the fastest for a problem, each in the ways in which its K may be divided."""

    def predict(self, variants: Variants, problem: Problem) -> Predicted:
        """Return how long each of them takes."""


def ranked(family: Family, problem: Problem) -> Iterator[Candidate]:
    """Yield the candidates of a family, the one with the lowest predicted time first; none is built yet."""
    variants = family.candidates(problem) if family.recipes else None
    if variants is None or not len(variants.recipe):
        return
    found = family.predict(variants, problem)
    some_run = bool(np.isfinite(found.us).any())
    for place in by_time(found.us):
        us = float(found.us[place])
        if some_run and math.isinf(us):
            return
        yield Candidate(variants.recipe_at(place, family.recipes), us, partial(found.bounds_of, place))


@dataclass(frozen=True)
class Serving(Generic[AnyRecipe]):
    """Recipes whose plans serve operands on an architecture.

    plans      of each recipe
    refusals   recipes that do not serve, each with a rule that its plan breaks
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
        """Build all recipes.

        rule   returns a further rule that a plan breaks, or ""
        """
        found: dict[AnyRecipe, GemmPlan] = {}
        refusals: list[tuple[object, str]] = []
        for recipe in recipes:
            try:
                plan = recipe.build(operands, arch=arch, device=device)
                violations = [*plan.refusals(arch), *filter(None, [rule(plan)])]
            except PlanError as error:
                violations = list(error.violations)
            refusals += [(recipe, each) for each in violations]
            if not violations:
                found[recipe] = plan
        return cls(tuple(found), tuple(found.values()), tuple(refusals))

    def error(self, request: Request) -> PlanError:
        """Return the error that says why no recipe serves."""
        subject = f"choose: no named plan for {request.loaded} on {request.arch}"
        return PlanError(subject, by_reason(self.refusals))
