"""What the elementwise functions of an epilogue cost a multiprocessor: instructions of a thread, by the unit."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cost:
    """The instructions of a function, for one element of f32.

    fp32      for the units that are 128 to a multiprocessor, or 64 for minima, comparisons and selections; each is
              one that is issued
    special   for the special-function unit, MUFU, which takes 16 threads a cycle

    >>> gelu = COSTS["gelu"]
    >>> 128 * 128 * max((gelu.fp32 + gelu.special) / 128, gelu.special / 16)  # cycles of a tile, at least
    1408.0
    """

    fp32: int
    special: int


# Counted in what ptxas makes of `kernels.functions` for sm_90a, without loads of constants; tests count again.
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
    # If results are stored with 8 bits of significand at most, as in bf16
    "gelu:8": Cost(7, 1),
    "gelu_tanh:8": Cost(6, 1),
}
