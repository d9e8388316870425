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
    """What a compiled GEMM function requires of one tensor argument: type, shape, strides and alignment.

    name         "a", "b", "d", or the name of a further operand or result, such as "bias"
    dtype        element type; tf32 is f32 in memory
    modes        extent names of the tensor's modes: "l" (batch), "m", "n", "k"; "n/2" for the columns of a gated D,
                 which has half as many as B; "1" for a single element
    extents      for each mode, a number that must divide its extent
    strides      for each mode, a number that must divide its stride in elements; None if the stride must be 1
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
    """Return the tensor arguments that a plan's compiled function takes, in the order of its parameters.

    If the plan swaps A and B, it computes D^T = B^T A^T, but its function still takes A, B and D as for D = A B.

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
    """Return the names of the tensors that a plan's compiled function takes, in the order of its parameters.

    For example ("a", "b", "bias", "d"): A and B, further operands of the mainloop, operands of the epilogue, D, other
    results.
    """
    return ("a", "b", *plan.operands.of_mainloop, *plan.epilogue.tensors, "d", *plan.epilogue.beside)


def _argument(plan: GemmPlan, name: str) -> Argument:
    """Return what a plan's compiled function requires of one tensor argument: type, shape, strides, alignment.

    name   name as the caller uses it. If the plan swaps A and B, the caller's "a" is the plan's B
    """
    of_plan = _FACTORS_OF_TRANSPOSE.get(name, name) if plan.swap_ab else name
    operand = plan.operands.matrix(of_plan)
    if plan.swap_ab:
        operand = operand.transposed
    align = operand.align_elems
    of_operand = operand.modes or _MODES.get(name, ("m", "n"))
    if of_plan == plan.operands.gathered:  # a matrix with rows, or columns, of its own
        of_operand = tuple(["k" if mode == "k" else "sources" for mode in of_operand])
    if name == "d" and plan.operands.scattered:
        of_operand = tuple([mode if mode == operand.major else "targets" for mode in of_operand])
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
