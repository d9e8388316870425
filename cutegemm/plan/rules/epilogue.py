"""Rules for the epilogue of a plan: element types that kernels can read, write and compute with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from cutegemm.dtypes import tf32
from cutegemm.plan.epilogue import Accumulator, Add, Cast, Constant, Expression, Multiply, Scalar, Tile

if TYPE_CHECKING:
    from cutegemm.plan.plan import GemmPlan

# Nodes that an epilogue with an integer D may have; the result is rounded once.
_OF_WHOLE_NUMBERS: tuple[type[Expression], ...] = (Accumulator, Constant, Scalar, Tile, Add, Multiply)


def epilogue_rules(plan: GemmPlan) -> Iterator[str]:
    """Yield a sentence for each element type that a kernel cannot read, write or compute with in the plan's epilogue.

    >>> from cutegemm.build import sm90_plan
    >>> from cutegemm.plan import Operands
    >>> from cutegemm.plan.epilogue import parse_epilogue
    >>> plan = sm90_plan(Operands.of("s8", layout="nt", out="s32"), tile=(128, 128, 128))
    >>> plan.with_(epilogue=parse_epilogue("relu(acc)"))
    Traceback (most recent call last):
        ...
    cutegemm.errors.PlanError: plan 'sm90': 1 rule is broken.
      - D is s32; an integer D is computed by additions and multiplications ..., not by relu(acc). Make D f32.
    """
    epilogue, matrix = plan.epilogue, plan.operands.matrix
    for name in (*epilogue.tensors, *epilogue.outputs):
        if matrix(name).dtype is tf32:
            yield f"{name.upper()} is tf32. Only A and B of a tensor-core MMA are tf32; declare it as f32."
    for name in epilogue.outputs[1:]:
        if not matrix(name).dtype.is_float:
            yield f"{name.upper()} is {matrix(name).dtype}; an auxiliary output must have a floating-point type."
    for cast in dict.fromkeys([node for node in _nodes(plan) if isinstance(node, Cast)]):
        if not cast.dtype.is_float:
            yield f"{cast} rounds to integers; the type of a cast must be a floating-point type."
    if plan.operands.d.dtype.is_float:
        return
    d = plan.operands.d.dtype
    other = next((node for node in _nodes(plan) if not isinstance(node, _OF_WHOLE_NUMBERS)), None)
    if other is not None:
        yield (
            f"D is {d}; an integer D is computed by additions and multiplications of scalars and tiles only, "
            f"not by {other}. Make D f32."
        )
    if epilogue.aux:
        yield f"D is {d}; an epilogue with an integer D has no auxiliary outputs. Make D f32."


def _nodes(plan: GemmPlan) -> Iterator[Expression]:
    """Yield all nodes in the expression trees of D and of the auxiliary outputs of a plan's epilogue."""
    for _, expression in plan.epilogue.results:
        yield from expression.nodes()
