"""Store D directly from registers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cutegemm.plan.program.steps import HEAD, Evaluate, StoreTile
from cutegemm.plan.store.base import Steps, Store
from cutegemm.tile.atoms import CopyAtom

if TYPE_CHECKING:
    from cutegemm.plan.plan import GemmPlan


@dataclass(frozen=True)
class RegisterStore(Store):
    """Store of D directly from registers: threads store vectors of neighbouring elements to global memory.

    atom   copy atom that stores one vector
    """

    atom: CopyAtom

    def steps(self, plan: GemmPlan) -> Steps:
        """Return the program steps that evaluate a tile's epilogue and store it from registers, vector by vector."""
        epilogue = plan.epilogue
        return (Evaluate(HEAD), StoreTile(epilogue.tail.tensors, epilogue.outputs[1:], plan.epilogue.reduced))
