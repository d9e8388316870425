"""Number of instructions that an epilogue executes per element of D."""

from __future__ import annotations

from cutegemm.machine.functions import COSTS, Cost
from cutegemm.plan.epilogue.epilogue import Epilogue
from cutegemm.plan.epilogue.expression import (
    Accumulator,
    Cast,
    Constant,
    Divide,
    Expression,
    Function,
    Half,
    Input,
    Maximum,
    Minimum,
    Negative,
)

_FREE = (Accumulator, Constant, Half, Input, Negative)  # no instruction; a sign is a modifier of the operand
_CAST = Cost(2, 0)  # converts to the type and back
_OTHER = Cost(1, 0)  # + - *, comparisons and where


def operations(epilogue: Epilogue) -> Cost:
    """Return the number of FP32 and special-function instructions that an epilogue executes for each element of D.

    Auxiliary outputs are included. A subexpression that is used several times is counted once. One that depends on
    scalars alone is not counted: it is computed once for all elements.

    returns   a `Cost` with the fields `fp32` and `special` (instructions of the special function unit, such as exp)

    >>> from cutegemm.plan.epilogue import Row, parse_epilogue
    >>> operations(parse_epilogue("gelu(acc + bias), acc + bias", {"bias": Row}))
    Cost(fp32=11, special=1)
    """
    fp32 = special = 0
    for step in epilogue.steps:
        for node in dict.fromkeys([node for each in step.expressions for node in each.nodes()]):
            if isinstance(node, _FREE) or not (node.has_accumulator or node.tensors):
                continue
            cost = _of(node)
            fp32, special = fp32 + cost.fp32, special + cost.special
    return Cost(fp32, special)


def _of(node: Expression) -> Cost:
    """Return the number of instructions of one operation of an epilogue, such as a division, without its operands.

    node   the operation, such as a `Divide`; not a leaf such as the accumulator
    """
    if isinstance(node, Function):
        return COSTS[node.name]
    if isinstance(node, Divide):
        return COSTS["divide"]
    if isinstance(node, Minimum):  # a Maximum is one
        return COSTS["maximum" if isinstance(node, Maximum) else "minimum"]
    return _CAST if isinstance(node, Cast) else _OTHER
