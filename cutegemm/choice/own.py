"""Plans that users name: registered in this process, or offered by an installed package's entry points."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points
from typing import Any, ClassVar

from cutegemm.choice.recipe import SWAPPED, BuildTarget, Recipe
from cutegemm.errors import CutegemmError, PlanError, UnsupportedError
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Operands
from cutegemm.tile.tma import TmaBox

ENTRY_POINTS = "cutegemm.plans"  # group of entry points; the name of an entry point is the name of its plan

Make = Callable[[Operands], GemmPlan]


@dataclass(frozen=True)
class OwnRecipe(Recipe):
    """A plan under a name that a user has registered, together with the user's function that builds it.

    make   function from the operands to a GemmPlan. With swap A/B, it gets the transposed operands. It raises PlanError
           if it cannot implement them
    """

    family: ClassVar[str] = "own"
    arguments: ClassVar[Mapping[str, Callable[[str], Any]]] = {}

    make: Make = field(kw_only=True)

    def build_for(self, operands: Operands, target: BuildTarget) -> GemmPlan:
        """Call the user's function for the operands, and return its plan with the name that the user has registered.

        operands   operands as the kernel sees them: transposed if the plan swaps A and B
        target     not used, because the function depends on the operands only
        raises     PlanError if the function returns anything but a GemmPlan
        """
        plan = self.make(operands)
        if not isinstance(plan, GemmPlan):
            raise PlanError(f"plan {self.name!r}", [f"its function returned {plan!r}, not a GemmPlan."])
        return plan.with_(name=self.name, summary=self.summary or plan.summary)

    def boxes(self, operands: Operands) -> str | None:
        """Return which of A and B the plan loads by TMA: "ab", "a", "b" or ""; None if threads load both.

        An operand that a repack pass (a copy kernel before the GEMM) copies is left out, because the threads of that
        kernel load it.
        """
        plan = self.build(operands)
        if not isinstance(plan.a.load, TmaBox):
            return None
        repacked = "".join([repack.name for repack in plan.repacks])
        if self.swap_ab:
            repacked = repacked.translate(SWAPPED)
        return "".join([name for name in "ab" if name not in repacked])


@cache
def installed() -> Mapping[str, Any]:
    """Return the plans that other installed packages offer, as dict from the name of a plan to its entry point.

    A package offers a plan by an entry point of the group "cutegemm.plans" in its metadata, e.g. `my_plan =
    "my_package.plans:tall"`. Nothing is imported yet.
    """
    return {entry_point.name: entry_point for entry_point in entry_points(group=ENTRY_POINTS)}


def loaded(name: str) -> Any:
    """Import the plan that an installed package offers under a name, and return it.

    A package offers a plan by an entry point of the group "cutegemm.plans", e.g. `my_plan = "my_package.plans:tall"`
    for the attribute `tall` of the module `my_package.plans`.

    name      name of the entry point, e.g. "my_plan"; `installed` must have it
    returns   the attribute: the text of a plan, e.g. "sm90:tile=128x128x64", a recipe (name and arguments of a plan),
              or a function that builds a plan for given operands
    raises    UnsupportedError if the module cannot be imported or does not have the attribute
    """
    entry_point = installed()[name]
    try:
        return entry_point.load()
    except CutegemmError:
        raise
    except Exception as error:  # another package may raise anything
        raise UnsupportedError(
            f"plan_named: {name!r} is the entry point {entry_point.value!r} of an installed package; it cannot be "
            f"loaded: {type(error).__name__}: {error}"
        ) from error
