"""Ladders: the steps in which the literature teaches a GEMM, each a named plan with its reason."""

from __future__ import annotations

from dataclasses import dataclass

from cutegemm.choice.recipe import Recipe
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Operands


@dataclass(frozen=True)
class LadderStep:
    """A step of a ladder.

    recipe     of its plan
    number     of the step; several plans may share one
    change     what is different from the step before
    why        what that is meant to bring, and what to look at
    operands   that the plan is for where no others are given
    """

    recipe: Recipe
    number: int
    change: str
    why: str
    operands: Operands

    @property
    def name(self) -> str:
        """Of the plan."""
        return str(self.recipe)

    def build(self, operands: Operands | None = None) -> GemmPlan:
        """The plan for operands; those of the step where left out."""
        return self.recipe.build(operands or self.operands)


@dataclass(frozen=True)
class Ladder:
    """Named plans, each one step from the one before.

    operands   that the steps are built for and measured on
    data       these in words
    """

    name: str
    title: str
    steps: tuple[LadderStep, ...]
    operands: Operands
    data: str

    def step(self, name: str) -> LadderStep:
        """The step of a plan's name."""
        return next(step for step in self.steps if step.name == name)
