"""Round f32 fragments to the nearest tf32, because mma.sync truncates."""

from __future__ import annotations

import cutlass.cute as cute
from cutlass import Float32, Int32

_SIGN_AND_EXPONENT = -(1 << 23)  # mask of f32: leaves a signed power of two, or infinity; 0 for denormal numbers
_HALF_UNIT = 2.0**-11  # half of the last bit of tf32, relative to that power of two


def round_fragment(held: cute.Tensor) -> None:
    """Round f32 registers to tf32 in place: add half a unit of tf32, away from zero.

    mma.sync then drops the low 13 bits. The result is that of cvt.rna, except that denormal numbers stay truncated. It
    takes two instructions per register; cvt.rna takes four.

    held   registers of a fragment
    """
    bits, values = cute.recast_tensor(held, Int32), cute.recast_tensor(held, Float32)
    power = cute.make_rmem_tensor((1,), Int32)
    of_power = cute.recast_tensor(power, Float32)
    for i in range(cute.size(held)):
        power[0] = bits[i] & Int32(_SIGN_AND_EXPONENT)
        values[i] = cute.math.fma(of_power[0], Float32(_HALF_UNIT), values[i])
