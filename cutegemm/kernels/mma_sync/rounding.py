"""tf32 that mma.sync does not cut off: fragments of f32 whose upper bits are those of the nearest tf32."""

from __future__ import annotations

import cutlass.cute as cute
from cutlass import Float32, Int32

_SIGN_AND_EXPONENT = -(1 << 23)  # of f32: a power of two, or infinity; 0 of denormal numbers
_HALF_UNIT = 2.0**-11  # of the last bit of tf32, to the power of two


def round_fragment(held: cute.Tensor) -> None:
    """Adds to registers of f32 half a unit of tf32, away from zero: mma.sync leaves out the 13 bits behind it.

    That is cvt.rna, but of denormal numbers, which stay cut off. It takes two instructions a register, where cvt.rna
    takes four.
    """
    bits, values = cute.recast_tensor(held, Int32), cute.recast_tensor(held, Float32)
    power = cute.make_rmem_tensor((1,), Int32)
    of_power = cute.recast_tensor(power, Float32)
    for i in range(cute.size(held)):
        power[0] = bits[i] & Int32(_SIGN_AND_EXPONENT)
        values[i] = cute.math.fma(of_power[0], Float32(_HALF_UNIT), values[i])
