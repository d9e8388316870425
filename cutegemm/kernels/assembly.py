"""Inline PTX in kernels."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from cutlass._mlir.dialects import llvm


def assembler(loc: Any, ip: Any, has_side_effects: bool = True) -> Callable[..., Any]:
    """Return a function that inserts inline PTX into the traced kernel.

    It maps (type of the result or None, operands, text, constraints) to the result.

    loc, ip            location and insertion point, as a `dsl_user_op` gets them
    has_side_effects   whether the compiler must neither move nor remove the instructions
    """
    return functools.partial(
        llvm.inline_asm,
        has_side_effects=has_side_effects,
        is_align_stack=False,
        asm_dialect=llvm.AsmDialect.AD_ATT,
        loc=loc,
        ip=ip,
    )


def assembled(
    kind: Any, count: int, operands: Sequence[Any], text: str, constraints: str, *, loc: Any, ip: Any
) -> list[Any]:
    """Insert inline PTX with side effects, and return its `count` results, which are all of one type.

    kind          MLIR type of a result
    operands      values of the DSL; those that share a register with a result are the last ones
    text          the PTX, with $0 for the first result
    constraints   constraints of results and operands, separated by commas, as in LLVM
    loc, ip       location and insertion point
    """
    values = [each.ir_value(loc=loc, ip=ip) for each in operands]
    struct = llvm.StructType.get_literal([kind] * count)
    results = assembler(loc, ip)(struct, values, text, constraints)
    return [llvm.extractvalue(kind, results, [i], loc=loc, ip=ip) for i in range(count)]
