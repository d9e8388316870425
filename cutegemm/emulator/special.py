"""Instructions of the special-function unit, and those that are like them: roots, quotients, NaN in min and max.

An approximation is computed in float64 and rounded to nearest. The hardware's differs from it, within the bound that
the PTX ISA gives:

| instruction       | bound                                                                                  |
|-------------------|----------------------------------------------------------------------------------------|
| ex2.approx.f32    | 2 units in the last place                                                              |
| lg2.approx.f32    | absolute 2**-22 for operands in (0.5, 2); elsewhere 2 units in the last place          |
| rcp.approx.f32    | 1 unit in the last place                                                               |
| sqrt.approx.f32   | relative 2**-23                                                                        |
| rsqrt.approx.f32  | relative 2**-22.9                                                                      |
| tanh.approx.f32   | relative 2**-11                                                                        |
| div.full.f32      | 2 units in the last place                                                              |
| rcp.approx.ftz.f64, rsqrt.approx.ftz.f64 | relative 2**-20 and so; the lower 32 bits of the result are 0   |

`.ftz` takes a subnormal operand for zero of its sign, and gives zero for a subnormal result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Compute = Callable[..., Any]

_SMALLEST_NORMAL = np.float32(2.0**-126)
_UPPER_HALF = np.uint64(0xFFFFFFFF00000000)


def _quiet(compute: Compute) -> Compute:
    """Without numpy's warnings: an infinity or NaN is a result like others."""

    def computed(*operands: Any) -> Any:
        with np.errstate(all="ignore"):
            return compute(*operands)

    return computed


def _by_f64(function: Callable[[Any], Any]) -> Compute:
    """An instruction of f32, exact but for one rounding."""
    return _quiet(lambda a: function(np.asarray(a, np.float64)).astype(np.float32))


def _without_subnormals(a: Any) -> Any:
    return np.where(np.abs(a) < _SMALLEST_NORMAL, np.copysign(np.float32(0), a), a)


def _flushing(compute: Compute) -> Compute:
    """The same with .ftz."""
    return _quiet(lambda *given: _without_subnormals(compute(*[_without_subnormals(a) for a in given])))


def _upper_half(function: Callable[[Any], Any]) -> Compute:
    """An approximation of f64 that has the upper half of its bits; subnormal ones are zero."""

    def computed(a: Any) -> Any:
        tiny = np.finfo(np.float64).tiny
        given = np.where(np.abs(a) < tiny, np.copysign(0.0, a), a)
        result = (np.asarray(function(given), np.float64).view(np.uint64) & _UPPER_HALF).view(np.float64)
        result = np.where(np.isnan(given), np.nan, result)  # which may have been in the lower half
        return np.where(np.abs(result) < tiny, np.copysign(0.0, result), result)

    return _quiet(computed)


_APPROXIMATE: dict[str, Callable[[Any], Any]] = {
    "ex2": np.exp2,
    "lg2": np.log2,
    "rcp": lambda a: 1 / a,
    "sqrt": np.sqrt,
    "rsqrt": lambda a: 1 / np.sqrt(a),
    "tanh": np.tanh,
}

# By (opcode with its modifiers, type); the type "" stands for f32 and f64.
SPECIAL: dict[tuple[str, str], Compute] = {
    **{(f"{name}.approx", "f32"): _by_f64(function) for name, function in _APPROXIMATE.items()},
    **{
        (f"{name}.approx.ftz", "f32"): _flushing(_by_f64(function))
        for name, function in _APPROXIMATE.items()
        if name != "tanh"
    },
    ("rcp.approx.ftz", "f64"): _upper_half(_APPROXIMATE["rcp"]),
    ("rsqrt.approx.ftz", "f64"): _upper_half(_APPROXIMATE["rsqrt"]),
    ("rsqrt.approx", "f64"): _quiet(_APPROXIMATE["rsqrt"]),
    ("rcp.rn", ""): _quiet(lambda a: 1 / a),
    ("sqrt.rn", ""): _quiet(np.sqrt),
    ("div.full", "f32"): _quiet(lambda a, b: a / b),
    ("div.full.ftz", "f32"): _flushing(lambda a, b: a / b),
    ("min.NaN", "f32"): np.minimum,
    ("max.NaN", "f32"): np.maximum,
    ("copysign", ""): lambda a, b: np.copysign(b, a),  # the sign of a, the value of b
}
