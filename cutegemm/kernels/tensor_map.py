"""Tensor maps on the host, where the DSL (4.8) has no argument for what they are to hold."""

from __future__ import annotations

import cutlass.cute as cute
from cutlass._mlir import ir
from cutlass._mlir.dialects import arith, builtin, llvm
from cutlass.cutlass_dsl import T, dsl_user_op

from cutegemm.tile.tma import L2_PROMOTIONS

# What a copy by TMA is lowered to: 128 bytes, whose bits `emulate.hopper.tensormap` lists.
_LOWERED = "!llvm.struct<(struct<(array<16 x i64>)>)>"
_WORD, _BIT, _MASK = [0, 0, 1], 17, 3


@dsl_user_op
def promoted(atom: cute.CopyAtom, promotion: int, *, loc=None, ip=None) -> cute.CopyAtom:
    """A copy whose tensor map has another L2 promotion, in bytes: see `TmaBox`."""
    (value,) = atom.__extract_mlir_values__()
    held = builtin.unrealized_conversion_cast([ir.Type.parse(_LOWERED)], [value], loc=loc, ip=ip)
    word = llvm.extractvalue(T.i64(), held, _WORD, loc=loc, ip=ip)
    for change, bits in (
        (arith.andi, ~(_MASK << _BIT)),
        (arith.ori, L2_PROMOTIONS.index(promotion) << _BIT),
    ):
        word = change(word, arith.constant(T.i64(), bits, loc=loc, ip=ip), loc=loc, ip=ip)
    held = llvm.insertvalue(held, word, _WORD, loc=loc, ip=ip)
    back = builtin.unrealized_conversion_cast([value.type], [held], loc=loc, ip=ip)
    return atom.__new_from_mlir_values__([back])
