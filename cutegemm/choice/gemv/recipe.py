"""The recipe of a gemv plan: a plan for few columns, which loads A straight to registers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from cutegemm.build.gemv import gemv_plan
from cutegemm.choice.options import parse_flag, parse_tuple
from cutegemm.choice.recipe import BuildTarget, Recipe
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Operands

_FEW_COLUMNS = 8  # columns of one MMA
_FEW_ACCUMULATORS = 16 * 16  # accumulators of two MMAs
_MANY_WARPS = 8  # warps of a CTA; if a CTA has more, plans for 8-bit elements have one CTA per SM


@dataclass(frozen=True)
class GemvRecipe(Recipe):
    """A gemv plan (a kernel for a D of few columns) that is not built yet: its name, and the arguments of `gemv_plan`.

    The method `build` makes the plan for given operands.

    is_chosen   whether `choose` considers the plan
    for_one     whether `choose` considers the plan only if one tile holds all columns of D
    """

    family: ClassVar[str] = "gemv"
    arguments: ClassVar[Mapping[str, Callable[[str], Any]]] = {
        "tile": parse_tuple,
        **dict.fromkeys(("warps", "vectors", "load_chunks", "cluster", "ctas_per_sm"), int),
        **dict.fromkeys(("rounding", "raster"), str),
        "pdl": parse_flag,
    }

    is_chosen: bool = False
    for_one: bool = False

    @property
    def tile(self) -> tuple[int, int]:
        """Return (rows, columns) of the tile of D that a cluster of this gemv plan computes."""
        rows, columns = self.options["tile"]
        return rows, columns

    def fitted(self, bits: int) -> dict[str, Any]:
        """Return the arguments of `gemv_plan` (name -> value), adapted to operands with elements of `bits` bits.

        mma.sync of 8-bit floats converts them to f16 in registers. To avoid spills, plans for more than 8 columns then
        have half as many vectors in flight, or one CTA per SM. Options that the user spelled out are not changed.
        """
        options = dict(self.options)
        if self.spelled_out:
            return options
        rows, columns = self.tile
        if bits == 8 and columns > _FEW_COLUMNS:
            if options["vectors"] > 1:
                options["vectors"] //= 2
            elif rows * columns > _FEW_ACCUMULATORS:
                options["ctas_per_sm"] = 1
            if options.get("warps", 0) > _MANY_WARPS:
                options["ctas_per_sm"] = 1
        return options

    def build_for(self, operands: Operands, target: BuildTarget) -> GemmPlan:
        """Build the gemv plan for the operands as the kernel sees them, i.e. already transposed if it swaps A and B.

        target   architecture and device properties that the plan is built for
        raises   PlanError if the operands break rules of the plan
        """
        options = self.fitted(operands.a.dtype.bits)
        return gemv_plan(operands.as_tf32, name=self.plan_name, summary=self.summary, **options)
