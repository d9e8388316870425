"""tf32 that mma.sync does not truncate: fragments of f32 rounded to nearest."""

from __future__ import annotations

import cutlass.cute as cute
from cutlass import Float32, Int32


def round_fragment(held: cute.Tensor) -> cute.Tensor:
    """Registers of f32, rounded in their place to the nearest tf32, ties away from zero."""
    bits, values = cute.recast_tensor(held, Int32), cute.recast_tensor(held, Float32)
    for i in range(cute.size(held)):
        bits[i] = Int32(cute.arch.cvt_f32_tf32(values[i]))
    return held
