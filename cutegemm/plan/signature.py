"""The tensors that a compiled plan takes as arguments, with the required element types, shapes, strides and alignment.

A compiled function is called as `kernel(a, b, *tensors, d, *results, *scalars)`. Its arguments are exactly the
operands, results and scalars of the plan.
"""

from __future__ import annotations

from dataclasses import dataclass

from cutegemm.dtypes import DType
from cutegemm.plan.plan import GemmPlan

_MODES = {"a": ("m", "k"), "b": ("k", "n")}  # rows and columns; all others are ("m", "n")
_FACTORS_OF_TRANSPOSE = {"a": "b", "b": "a"}


@dataclass(frozen=True)
class Argument:
    """One tensor argument of a compiled function, with what the function requires of it.

    name         "a", "b", "d", or the name of a further operand or result
    dtype        element type; tf32 is f32 in memory
    modes        names of the extents: "l", "m", "n", "k"; "n/2" for the columns of a gated D; "1" for a single element
    extents      number that must divide the extent of each mode
    strides      number that must divide the stride of each mode, in elements; None if the stride must be 1
    align_bytes  number that must divide the address
    """

    name: str
    dtype: DType
    modes: tuple[str, ...]
    extents: tuple[int, ...]
    strides: tuple[int | None, ...]
    align_bytes: int

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype} ({', '.join(self.modes)})"


def signature_of(plan: GemmPlan) -> tuple[Argument, ...]:
    """Return the tensor arguments of a plan's compiled function, in the order of its parameters.

    With swap A/B the plan computes D^T = B^T A^T, but the function takes A, B and D as for D = A B.

    >>> from cutegemm.build import sm90_plan
    >>> from cutegemm.plan import Operands
    >>> plan = sm90_plan(Operands.of("bf16", layout="nt"), with_c=True)
    >>> print(*signature_of(plan), sep="; ")
    a: bf16 (m, k); b: bf16 (k, n); c: bf16 (m, n); d: bf16 (m, n)
    >>> signature_of(plan)[1].strides
    (None, 8)
    """
    return tuple([_argument(plan, name) for name in tensor_names(plan)])


def tensor_names(plan: GemmPlan) -> tuple[str, ...]:
    """Return the names of the tensor arguments of a plan's compiled function, in the order of its parameters."""
    return ("a", "b", *plan.operands.of_mainloop, *plan.epilogue.tensors, "d", *plan.epilogue.beside)


def _argument(plan: GemmPlan, name: str) -> Argument:
    """Return what a compiled plan requires of its tensor argument `name`: element type, shape, strides and alignment.

    name   name as the caller uses it, before swap A/B
    """
    of_plan = _FACTORS_OF_TRANSPOSE.get(name, name) if plan.swap_ab else name
    operand = plan.operands.matrix(of_plan)
    if plan.swap_ab:
        operand = operand.transposed
    align = operand.align_elems
    of_operand = operand.modes or _MODES.get(name, ("m", "n"))
    modes = [mode for mode in of_operand if mode not in operand.broadcast] or ["1"]
    extents, strides = [1] * len(modes), [None if operand.broadcast else align] * len(modes)
    if not operand.broadcast:
        major = [mode[0] for mode in modes].index(operand.major)
        strides[major] = None
        # TMA clips a box at any extent; threads load and store whole vectors.
        is_by_box = plan.body.has_roles and all(repack.name != of_plan for repack in plan.repacks)
        extents[major] = 1 if is_by_box else align
    if plan.operands.gated and name != "b" and not operand.gated:
        modes = ["n/2" if mode == "n" else mode for mode in modes]
    if plan.operands.has_batch(of_plan):
        modes, extents, strides = ["l", *modes], [1, *extents], [align, *strides]
    return Argument(name, operand.dtype, tuple(modes), tuple(extents), tuple(strides), operand.align_bytes)
