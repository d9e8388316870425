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
    """A custom epilogue, i.e. an expression that computes D from the accumulators, with the kinds of its operands.

    The method `on` gives a plan this epilogue.

    epilogue   the expression, such as gelu(acc + bias)
    kinds      class of each operand by name: Row (one value per column of D, like a bias), Column (one per row), Tile
               (a matrix of D's shape), Element (a tensor of one value) or Scalar (a number)
    dtypes     element type of tensor operands and auxiliary outputs by name; a tensor without an entry has D's type
    """

    epilogue: Epilogue
    kinds: Mapping[str, type[Input]]
    dtypes: Mapping[str, DType]

    @property
    def reads_tiles(self) -> bool:
        """True if this epilogue reads a matrix of D's shape, such as a residual.

        The kernel loads the first such matrix as it loads C otherwise. Such a plan has no other C.
        """
        return bool(self.epilogue.tiles)

    def made_for(self, operands: Operands) -> Operands:
        """Return the operands to pass to a plan builder whose plan will get this epilogue.

        They are `operands` with another C: the first matrix of D's shape that the epilogue reads (e.g. a residual),
        because the kernel loads that matrix in the place of C. Without such a matrix, `operands` is returned unchanged.

        operands   types, majorness and alignment of A, B, C and D
        """
        if not self.reads_tiles:
            return operands
        return replace(operands, c=self._matrix(operands, self.epilogue.tiles[0]))

    def ends(self, operands: Operands) -> Operands:
        """Return the operands of a GEMM with this epilogue: A to D, and the tensors that the epilogue reads and writes.

        Matrices of D's shape have the majorness and the alignment of D. Row, column and single-value tensors are
        aligned to one element.

        operands   types, majorness and alignment of A, B, C and D
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
        """Describe a matrix that this epilogue reads or writes: it has D's shape, majorness and alignment in elements.

        name   its name, for which an element type may be set; otherwise it has D's type
        """
        d = operands.d
        dtype = self.dtypes.get(name, d.dtype)
        return Operand(dtype, d.major, min(ACCESS_BITS, d.align_elems * dtype.bits) // 8)

    def on(self, plan: GemmPlan, swap_ab: bool = False) -> GemmPlan:
        """Return a copy of a plan that has this epilogue.

        plan      plan of the GEMM
        swap_ab   True if the plan computes D^T (swap A/B), so that rows of the epilogue's operands become columns
        raises    PlanError if the plan cannot have this epilogue
        """
        epilogue = self.epilogue.transposed if swap_ab else self.epilogue
        whole = self.ends(plan.operands.transposed).transposed if swap_ab else self.ends(plan.operands)
        return with_epilogue(epilogue, plan, dict(whole.aux))


def fused(epilogue: Callable[..., Any] | Epilogue | str, operands: Mapping[str, str] | None) -> FusedEpilogue:
    """Combine an epilogue and the kinds of its operands, as `gemm` and plan builders take them.

    epilogue   a function of the accumulator and of operands by name, e.g. `lambda acc, bias: acc + bias`; or its text
    operands   kind of each operand by name, e.g. {"bias": "row"} or, with a type, {"bias": "row:f32"}. A kind is row
               (one value per column of D), column, tile (a matrix of D's shape), element (one value) or scalar. A type
               alone, {"aux": "f16"}, is that of an auxiliary output. The default type is that of D. None: no operands
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
