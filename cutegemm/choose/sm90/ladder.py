"""The Hopper ladder: the named plans of `sm90.named` as steps, each one change to the one before it."""

from __future__ import annotations

from cutegemm.choose.ladder import Ladder, LadderStep
from cutegemm.choose.sm90.named import SM90_LADDER
from cutegemm.choose.sm90.recipe import Sm90Recipe
from cutegemm.plan.problem import Operands

_OPERANDS = Operands.of("bf16", layout="nt")


def _step(number: int, recipe: Sm90Recipe) -> LadderStep:
    change, _, why = recipe.summary.partition(": ")
    return LadderStep(recipe, number, change, why, _OPERANDS)


HOPPER_LADDER = Ladder(
    name="sm90",
    title="GEMM by TMA and wgmma step by step",
    steps=tuple([_step(number, recipe) for number, recipe in enumerate(SM90_LADDER, 1)]),
    operands=_OPERANDS,
    data="bf16, both operands k-major",
)
