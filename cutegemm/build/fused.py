"""From a plan to one with a custom epilogue: an expression, or a function, and the kinds of its operands."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from cutegemm.build.epilogue import with_epilogue
from cutegemm.dtypes import DType, f32, f64
from cutegemm.errors import CutegemmError, PlanError
from cutegemm.machine.arch import ACCESS_BITS
from cutegemm.plan.epilogue import (
    Column,
    Element,
    Epilogue,
    Input,
    Row,
    Scalar,
    Tensor,
    Tile,
    epilogue_of,
    parse_epilogue,
)
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Operand, Operands
from cutegemm.plan.store.quantized import SCALES_OF_D

KINDS: Mapping[str, type[Input]] = {
    "row": Row,
    "column": Column,
    "tile": Tile,
    "element": Element,
    "scalar": Scalar,
}


@dataclass(frozen=True)
class FusedEpilogue:
    """An epilogue (expression that computes D from the accumulators), and the types of what it reads and writes.

    epilogue   the expression
    kinds      name of each operand -> its class: Row, Column, Tile, Element or Scalar
    dtypes     name of a tensor operand or auxiliary output -> its element type; others have the type of D
    """

    epilogue: Epilogue
    kinds: Mapping[str, type[Input]]
    dtypes: Mapping[str, DType]

    @property
    def reads_tiles(self) -> bool:
        """True if the epilogue reads a matrix of D's shape (a tile operand). The first one takes the place of C."""
        return bool(self.epilogue.tiles)

    def made_for(self, operands: Operands) -> Operands:
        """Return the operands with C replaced by the first tile operand that the epilogue reads.

        Builders plan the loads of C for it. The operands are returned unchanged if the epilogue reads no tile.
        """
        if not self.reads_tiles:
            return operands
        return replace(operands, c=self._matrix(operands, self.epilogue.tiles[0]))

    def ends(self, operands: Operands) -> Operands:
        """Return the operands of a GEMM with this epilogue: A to D, and the tensors that the epilogue reads and writes.

        Tiles and outputs have the majorness and the alignment of D. The other tensors are aligned to one element.

        operands   the operands of the GEMM
        """
        others = {}
        for name in self.epilogue.tensors:
            kind = self.kinds[name]
            if kind is not Tile:
                assert issubclass(kind, Tensor)
                others[name] = Operand.of_kind(kind, self.dtypes.get(name, operands.d.dtype))
        for name in (*self.epilogue.tiles[1:], *self.epilogue.outputs[1:]):
            others[name] = self._matrix(operands, name)
        for name, reduction in self.epilogue.reductions:
            accumulators = f64 if operands.acc == f64 else f32
            others[name] = Operand.of_kind(reduction.kind, self.dtypes.get(name, accumulators))
        others |= dict.fromkeys(self.epilogue.scales, SCALES_OF_D)
        whole = self.made_for(operands).with_aux(**others)
        return whole.as_gated(self.epilogue.gated, self.epilogue.halved)

    def _matrix(self, operands: Operands, name: str) -> Operand:
        """Return an operand of D's shape, majorness and alignment, with the element type that is set for `name`."""
        d = operands.d
        dtype = self.dtypes.get(name, d.dtype)
        return Operand(dtype, d.major, min(ACCESS_BITS, d.align_elems * dtype.bits) // 8)

    def on(self, plan: GemmPlan, swap_ab: bool = False) -> GemmPlan:
        """Return a plan with its epilogue replaced by this one.

        plan      plan of the GEMM
        swap_ab   whether the plan computes D^T (swap A/B), so that rows of the epilogue's operands become columns
        raises    PlanError if the plan cannot have this epilogue
        """
        epilogue = self.epilogue.transposed if swap_ab else self.epilogue
        whole = self.ends(plan.operands.transposed).transposed if swap_ab else self.ends(plan.operands)
        return with_epilogue(epilogue, plan, dict(whole.aux))


def fused(epilogue: Callable[..., Any] | Epilogue | str, operands: Mapping[str, str] | None) -> FusedEpilogue:
    """Return the epilogue that the arguments `epilogue` and `operands` of a builder describe.

    epilogue   a function of the accumulator and of operands by name, as `gemm` takes it; or its text
    operands   kind of each operand by name: row, column, tile, element or scalar, and with a type bias="row:f32".
               A type alone is that of an auxiliary output. Without a type an operand has the type of D
    raises     PlanError with everything that is wrong

    >>> spec = fused(lambda acc, bias: (acc + bias, acc), {"bias": "row:f32", "aux": "f16"})
    >>> print(spec.epilogue, spec.kinds, spec.dtypes)
    acc + bias, aux = acc {'bias': <class 'cutegemm.plan.epilogue.expression.Row'>} {'bias': f32, 'aux': f16}
    """
    kinds: dict[str, type[Input]] = {}
    dtypes: dict[str, DType] = {}
    wrong = []
    for name, text in (operands or {}).items():
        kind, _, dtype = str(text).partition(":")
        if kind in KINDS:
            kinds[name] = KINDS[kind]
        try:
            if dtype or kind not in KINDS:
                dtypes[name] = DType.parse(dtype or kind)
        except CutegemmError:
            wrong.append(f"operands[{name!r}] = {text!r}. Use {', '.join(KINDS)} or a type, as in 'row' or 'row:f32'.")
    if wrong:
        raise PlanError("epilogue", wrong)
    if isinstance(epilogue, Epilogue):
        return FusedEpilogue(epilogue, {**epilogue.kinds, **kinds}, dtypes)
    made = parse_epilogue(epilogue, kinds) if isinstance(epilogue, str) else epilogue_of(epilogue, kinds)
    unknown = [name for name in dtypes if name not in kinds and name not in made.beside]
    if unknown:
        rules = [f"operands[{name!r}]: {made} has no operand and no result of that name." for name in unknown]
        raise PlanError("epilogue", rules)
    return FusedEpilogue(made, kinds, dtypes)
