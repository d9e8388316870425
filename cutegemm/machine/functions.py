"""Cost of the elementwise functions of an epilogue: instructions of a thread, by functional unit."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cost:
    """Number of instructions that an elementwise epilogue function, such as gelu, takes for each f32 element of D.

    fp32      number of instructions for the FP32 units. An SM executes one for 128 threads per clock; minima,
              comparisons and selections run at 64, but count as one instruction each
    special   number of instructions for the special-function unit (MUFU); an SM executes one for 16 threads per clock

    >>> gelu = COSTS["gelu"]
    >>> 128 * 128 * max((gelu.fp32 + gelu.special) / 128, gelu.special / 16)  # least clocks for a tile of 128 x 128
    1408.0
    """

    fp32: int
    special: int


# Counted in the SASS of `kernels.functions` for sm_90a, without loads of constants, and again by
# tests/kernels/test_functions.py
COSTS: dict[str, Cost] = {
    "abs": Cost(1, 0),
    "square": Cost(1, 0),
    "sqrt": Cost(3, 1),
    "rsqrt": Cost(3, 1),
    "exp": Cost(6, 1),
    "log": Cost(14, 1),
    "tanh": Cost(11, 2),
    "erf": Cost(14, 1),
    "sigmoid": Cost(2, 2),
    "relu": Cost(1, 0),
    "gelu": Cost(10, 1),
    "gelu_tanh": Cost(6, 2),
    "silu": Cost(4, 2),
    "minimum": Cost(1, 0),
    "maximum": Cost(1, 0),
    "divide": Cost(7, 1),
    # For results with at most 8 bits of significand, such as bf16
    "gelu:8": Cost(7, 1),
    "gelu_tanh:8": Cost(6, 1),
}
