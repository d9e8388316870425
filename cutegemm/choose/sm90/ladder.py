"""The Hopper ladder: the named plans of `sm90_catalog` as steps, each one change to the one before it."""

from __future__ import annotations

from dataclasses import dataclass

from cutegemm.choose.ladder import Ladder, LadderStep
from cutegemm.choose.sm90.named import SM90_LADDER
from cutegemm.choose.sm90.recipe import NamedSm90
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Operands

_OPERANDS = Operands.of("bf16", layout="nt")


@dataclass(frozen=True)
class Sm90Step(LadderStep):
    """A step of this ladder."""

    named: NamedSm90

    def build(self, operands: Operands | None = None) -> GemmPlan:
        """The plan for operands; bf16, both k-major, where left out."""
        return self.named.build(operands or _OPERANDS)


def _step(number: int, named: NamedSm90) -> Sm90Step:
    change, _, why = named.summary.partition(": ")
    return Sm90Step(named.name, number, change, why, named)


HOPPER_LADDER = Ladder(
    name="sm90",
    title="GEMM by TMA and wgmma step by step",
    steps=tuple([_step(number, named) for number, named in enumerate(SM90_LADDER, 1)]),
    operands=_OPERANDS,
    data="bf16, both operands k-major",
)
