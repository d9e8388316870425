"""Instructions of the special-function unit and similar ones: roots, quotients, min and max that propagate NaN.

An approximate instruction is computed in float64 and rounded to nearest. The hardware's result may differ, within the
bound of the PTX ISA:

| instruction       | bound                                                                                  |
|-------------------|----------------------------------------------------------------------------------------|
| ex2.approx.f32    | 2 units in the last place                                                              |
| lg2.approx.f32    | absolute 2**-22 for operands in (0.5, 2); elsewhere 2 units in the last place          |
| rcp.approx.f32    | 1 unit in the last place                                                               |
| sqrt.approx.f32   | relative 2**-23                                                                        |
| rsqrt.approx.f32  | relative 2**-22.9                                                                      |
| tanh.approx.f32   | relative 2**-11                                                                        |
| div.full.f32      | 2 units in the last place                                                              |
| rcp.approx.ftz.f64, rsqrt.approx.ftz.f64 | about relative 2**-20; the lower 32 bits of the result are 0    |

`.ftz` replaces a subnormal operand or result by zero of the same sign.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Compute = Callable[..., Any]

_SMALLEST_NORMAL = np.float32(2.0**-126)
_NAN_OF_NUMBERS = np.uint32(0xFFC00000).view(np.float32)
_UPPER_HALF = np.uint64(0xFFFFFFFF00000000)


def _quiet(compute: Compute) -> Compute:
    """Return a function that computes the same as `compute`, a function on numpy arrays, but without numpy's warnings.

    In PTX, an infinity or NaN is an ordinary result.
    """

    def computed(*operands: Any) -> Any:
        with np.errstate(all="ignore"):
            return compute(*operands)

    return computed


def _by_f64(function: Callable[[Any], Any]) -> Compute:
    """Return a function of f32 arrays that evaluates `function` in f64 and rounds the result to f32.

    A NaN that comes from a number always gets its sign set, as on x86, because numpy differs between processors.
    """

    def computed(a: Any) -> Any:
        result = np.asarray(function(np.asarray(a, np.float64)), np.float32)
        return np.where(np.isnan(result) & ~np.isnan(a), _NAN_OF_NUMBERS, result)

    return _quiet(computed)


def _without_subnormals(a: Any) -> Any:
    """Replace subnormal f32 values by zero of the same sign."""
    return np.where(np.abs(a) < _SMALLEST_NORMAL, np.copysign(np.float32(0), a), a)


def _flushing(compute: Compute) -> Compute:
    """Return a function that computes the same as `compute`, but takes subnormal f32 operands and results as zero.

    This is the modifier .ftz of PTX instructions.
    """
    return _quiet(lambda *operands: _without_subnormals(compute(*[_without_subnormals(a) for a in operands])))


def _upper_half(function: Callable[[Any], Any]) -> Compute:
    """Return a function that computes the same as `function` in f64, but keeps only the upper 32 bits of results.

    Subnormal operands and results become zero.
    """

    def computed(a: Any) -> Any:
        tiny = np.finfo(np.float64).tiny
        operand = np.where(np.abs(a) < tiny, np.copysign(0.0, a), a)
        result = (np.asarray(function(operand), np.float64).view(np.uint64) & _UPPER_HALF).view(np.float64)
        result = np.where(np.isnan(operand), np.nan, result)  # the payload of a NaN may be in the lower half only
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
