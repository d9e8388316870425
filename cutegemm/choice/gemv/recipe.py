"""The recipe of a plan for few columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from cutegemm.build.gemv import gemv_plan
from cutegemm.choice.options import parse_flag, parse_tuple
from cutegemm.choice.recipe import BuildTarget, Recipe
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Operands

_FEW_COLUMNS = 8  # of one MMA
_FEW_ACCUMULATORS = 16 * 16  # of two
_MANY_WARPS = 8


@dataclass(frozen=True)
class GemvRecipe(Recipe):
    """What a plan is that streams A to registers, before its operands are known.

    is_chosen   whether `choose` considers it
    for_one     whether that is only where one tile has all columns
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
        """(rows of A, columns) that a cluster multiplies."""
        rows, columns = self.options["tile"]
        return rows, columns

    def fitted(self, bits: int) -> dict[str, Any]:
        """The arguments of `gemv_plan` for elements of so many bits. Of bytes, which mma.sync widens to f16 in
        registers, fewer are under way beside many columns, or a CTA has a multiprocessor for itself: else they were
        seen to spill.
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
        """The plan for operands.

        raises   PlanError where they break its rules
        """
        options = self.fitted(operands.a.dtype.bits)
        return gemv_plan(operands.as_tf32, name=self.plan_name, summary=self.summary, **options)
