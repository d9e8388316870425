"""Tutorial ladders: named plans that each change one thing of the step before, with the reason."""

from __future__ import annotations

from dataclasses import dataclass

from cutegemm.choice.recipe import Recipe
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Operands


@dataclass(frozen=True)
class LadderStep:
    """One step of a tutorial: a plan that changes one thing in the plan of the step before.

    recipe     name and arguments of the step's plan
    number     number of the step in the tutorial; several plans, i.e. alternatives, may have the same number
    change     what differs from the step before, as text
    why        what the change should improve, and what the reader should look at, as text
    operands   types and layouts of the matrices that the plan is built for by default
    """

    recipe: Recipe
    number: int
    change: str
    why: str
    operands: Operands

    @property
    def name(self) -> str:
        """Return the name of this tutorial step's plan, such as "sm90_epi_stages"."""
        return str(self.recipe)

    def build(self, operands: Operands | None = None) -> GemmPlan:
        """Build the plan of this tutorial step.

        operands   operands that the plan is built for; None: those that the tutorial uses for this step
        """
        return self.recipe.build(operands or self.operands)


@dataclass(frozen=True)
class Ladder:
    """A tutorial ("ladder") of GEMM plans: each step changes one thing in the plan of the step before.

    name       name of the ladder, such as "sm90"
    title      heading of the tutorial
    steps      the steps, in the order in which a reader should study them
    operands   types and layouts of the matrices that the steps are built for and timed with
    data       text that describes `operands`, for the tutorial's page
    """

    name: str
    title: str
    steps: tuple[LadderStep, ...]
    operands: Operands
    data: str

    def step(self, name: str) -> LadderStep:
        """Return the tutorial step whose plan is called `name`.

        raises   StopIteration if no step has this name
        """
        return next(step for step in self.steps if step.name == name)
