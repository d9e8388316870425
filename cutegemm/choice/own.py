"""Plans of one's own that have a name: registered in this process, or by an installed package's entry points."""

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

ENTRY_POINTS = "cutegemm.plans"  # the group; the name of an entry point is that of its plan

Make = Callable[[Operands], GemmPlan]


@dataclass(frozen=True)
class OwnRecipe(Recipe):
    """A plan that a function of the operands makes.

    make   called with the operands that the plan is to see; it raises PlanError where it does not serve them
    """

    family: ClassVar[str] = "own"
    arguments: ClassVar[Mapping[str, Callable[[str], Any]]] = {}

    make: Make = field(kw_only=True)

    def build_for(self, operands: Operands, target: BuildTarget) -> GemmPlan:
        """What the function returns, under the name that it was registered by."""
        plan = self.make(operands)
        if not isinstance(plan, GemmPlan):
            what = f"its function returned {plan!r}; a GemmPlan is expected."
            raise PlanError(f"plan {self.name!r}", [what])
        return plan.with_(name=self.name, summary=self.summary or plan.summary)

    def boxes(self, operands: Operands) -> str | None:
        """Which operands TMA loads for the plan that the function makes; None where threads load them all."""
        plan = self.build(operands)
        if not isinstance(plan.a.load, TmaBox):
            return None
        packed = "".join([repack.name for repack in plan.repacks])
        if self.swap_ab:
            packed = packed.translate(SWAPPED)
        return "".join([name for name in "ab" if name not in packed])


@cache
def installed() -> Mapping[str, Any]:
    """What installed packages offer under `ENTRY_POINTS`, not loaded yet, by name."""
    return {found.name: found for found in entry_points(group=ENTRY_POINTS)}


def loaded(name: str) -> Any:
    """What an installed package offers by a name: a text, a recipe or a function.

    raises   UnsupportedError where its package cannot be imported, or has no such thing
    """
    found = installed()[name]
    try:
        return found.load()
    except CutegemmError:
        raise
    except Exception as error:  # of another package, which may raise anything
        raise UnsupportedError(
            f"plan_named: {name!r} is the entry point {found.value!r} of an installed package, which cannot be loaded: "
            f"{type(error).__name__}: {error}"
        ) from error
