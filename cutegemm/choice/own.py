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
    """A named plan that a user's function builds.

    make   function from the operands, as the kernel sees them (transposed with swap A/B), to a GemmPlan; raises
           PlanError if it cannot implement them
    """

    family: ClassVar[str] = "own"
    arguments: ClassVar[Mapping[str, Callable[[str], Any]]] = {}

    make: Make = field(kw_only=True)

    def build_for(self, operands: Operands, target: BuildTarget) -> GemmPlan:
        """Call the user's function for the operands, and return the plan that it makes under the registered name.

        target   not used: the function depends on the operands only
        raises   PlanError if the function returns anything but a GemmPlan
        """
        plan = self.make(operands)
        if not isinstance(plan, GemmPlan):
            raise PlanError(f"plan {self.name!r}", [f"its function returned {plan!r}, not a GemmPlan."])
        return plan.with_(name=self.name, summary=self.summary or plan.summary)

    def boxes(self, operands: Operands) -> str | None:
        """Return which of A and B the plan loads by TMA: "ab", "a", "b" or ""; None if threads load both.

        An operand that a repack pass (a copy kernel before the GEMM) copies is left out, because threads load it there.
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
    """Return the plans that installed packages offer, as entry points: name of the plan -> entry point.

    They are entry points of the group "cutegemm.plans". None is loaded yet, so no package is imported.
    """
    return {entry_point.name: entry_point for entry_point in entry_points(group=ENTRY_POINTS)}


def loaded(name: str) -> Any:
    """Import what an installed package offers as the plan `name`: the text or recipe of a plan, or a function.

    raises   UnsupportedError if the package cannot be imported or does not have the attribute
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
