"""Elementwise functions of an epilogue in a kernel: each maps a traced scalar to one of the same type.

| f32                                | instructions on Hopper                                                          |
|------------------------------------|---------------------------------------------------------------------------------|
| exp, sigmoid, silu, gelu_tanh      | EX2 of a multiple of x; then RCP, if there is a reciprocal                      |
| gelu                               | one polynomial, one EX2                                                         |
| gelu_tanh with bf16 results        | TANH                                                                            |
| tanh, erf, log                     | a polynomial near the zero; else 1 - 2 RCP(EX2 + 1), 1 - EX2(polynomial), LG2   |
| sqrt, rsqrt, divide                | the instruction of that name, with scaled operands                              |

The special-function unit of an SM computes 16 values per cycle, and the SM issues instructions for 128 threads. So 7
other instructions are free next to one of these. `machine.functions` counts them, and `docs/functions.md` lists the
errors. TANH has an absolute error near 1 that rounding to bf16 hides; a type with more bits would show it.

The code has neither branches nor calls. NaN gives NaN, and an infinity gives the limit of the function. Results below
2**-126 may be zero. Multiply-adds are written as `fma`, so that the compiler fuses nothing else and the emulator rounds
in the same way.

f64 uses the DSL's functions, with errors of a few units in the last place.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Float64
from cutlass.cutlass_dsl import dsl_user_op

from cutegemm.kernels.assembly import assembler

_LOG2_E = 1 / math.log(2)
_LN_2 = 0.693147182464599609375  # ln 2 rounded to f32; the next line is the remainder
_LN_2_REST = -1.904654299957767e-09

# gelu(x) = max(x, 0) - |x| * 2**p(|x|) with p(a) = log2(erfc(a / sqrt(2)) / 2), starting at p(0) = -1. A minimax fit of
# the relative error of 2**p: 2.2e-6; for p < -6, (-p / 6)**4 times that. At _GELU_END, 2**p is below 2**-126.
_GELU_END = 13.2
_LOG2_OF_TAIL = (
    -1.0, -1.1511726379394531, -0.4587413966655731, -0.05358864739537239, 0.00827742088586092,
    -0.000860325526446104, 5.155982216820121e-05, -1.3041301372140879e-06,
)  # fmt: skip
# Polynomials with fewer terms for results stored with fewer bits, by the largest number of bits. A minimax fit of the
# error of gelu relative to max(|gelu|, 2**-7): 2**-12.06, an eighth of half a unit in the last place of bf16.
_LOG2_OF_TAIL_BY_BITS = {
    8: (-1.0, -1.14768612, -0.469914421, -0.0422064742, 0.00343967725),
}

# erf(x) = x * p(x * x) below the border, relative error 3.7e-8; 1 - 2**q(|x|) above, 7.4e-8 of erf.
_ERF_BORDER = 0.7
_ERF_NEAR = (
    1.1283791065216064, -0.37612220644950867, 0.11276999115943909, -0.026474477723240852, 0.004281796980649233,
)  # fmt: skip
_LOG2_ERFC = (
    -0.0010994203621521592, -1.6223113536834717, -0.9294852018356323, -0.1382858157157898, 0.024904834106564522,
    -0.00214000279083848,
)  # fmt: skip

# tanh(x) = x + x**3 * p(x * x) below the border, relative error 3.7e-8.
_TANH_BORDER = 0.55
_TANH_NEAR = (-0.3333294689655304, 0.13320724666118622, -0.05267181247472763, 0.016437580808997154)

# log(1 + f) = f + f * f * p(f) if |f| is below the border, relative error 1.4e-7.
_LOG_BORDER = 0.25
_LOG_NEAR = (
    -0.5000035166740417, 0.33333924412727356, -0.2495405673980713, 0.19945266842842102, -0.1811934858560562,
    0.15734636783599854,
)  # fmt: skip

# gelu_tanh(x) = x * sigmoid(2 * u), u = sqrt(2 / pi) * (x + 0.044715 * x**3)
_TWO_U = 2 * math.sqrt(2 / math.pi)
_TWO_U_CUBIC = 0.044715 * _TWO_U
_BITS_OF_TANH = 8  # largest number of significand bits for which TANH is accurate enough: that of bf16

# Below these values of x, the factor of x in silu and in both forms of gelu is 0, or the result is below 2**-126 (f32).
_ENDS = {Float32: -100.0, Float64: -800.0}


def _is_double(x: Any) -> bool:
    """Return whether a traced scalar is f64."""
    return x.dtype is Float64


@dsl_user_op
def _instruction(name: str, *operands: Any, loc: Any = None, ip: Any = None) -> Float32:
    """Emit a PTX instruction on f32 operands for which the DSL has no function, and return its f32 result.

    name   opcode with its modifiers, such as "tanh.approx.f32"
    """
    numbers = ", ".join(f"${i}" for i in range(len(operands) + 1))
    values = [operand.ir_value(loc=loc, ip=ip) for operand in operands]
    asm = assembler(loc, ip, has_side_effects=False)
    registers = ",".join(["=f"] + ["f"] * len(operands))
    return Float32(asm(Float32.mlir_type, values, f"{name} {numbers};", registers))


def _exp2(x: Any) -> Any:
    """Return 2**x for f32, with relative error 2**-22; 0 if the result is below 2**-126."""
    return cute.math.exp2(x, fastmath=True)


def _reciprocal(x: Any) -> Any:
    """Return 1 / x for f32, with an error of one unit in the last place.

    If the magnitude of x is outside of 2**-126 .. 2**126, the result is infinity or 0.
    """
    return cute.arch.rcp_approx(x)


def _fma(x: Any, y: Any, z: Any) -> Any:
    """Return x * y + z, rounded once. Python floats are converted to the type of x."""
    kind = x.dtype
    return cute.math.fma(x, *[kind(v) if isinstance(v, float) else v for v in (y, z)])


def _polynomial(x: Any, coefficients: Sequence[float]) -> Any:
    """Return the polynomial sum of coefficients[i] * x**i over all i, computed by fused multiply-adds."""
    *others, value = coefficients
    for coefficient in reversed(others):
        value = _fma(x, value, coefficient)
    return value


def _magnitude(x: Any) -> Any:
    """Return the absolute value of x."""
    return cute.math.abs(x)


def _where(condition: Any, x: Any, y: Any) -> Any:
    """Return x if the condition holds, else y."""
    return x.dtype(cutlass.select_(condition, x, y))


def _signed(value: Any, like: Any) -> Any:
    """Return the magnitude of `value` with the sign of `like` (copysign), for f32 or f64 numbers in a kernel."""
    return cute.math.copysign(value, like)


# --- functions of two arguments ----------------------------------------------------------------------------


def minimum(x: Any, y: Any) -> Any:
    """Return the smaller of x and y; NaN if one of them is NaN."""
    if _is_double(x):
        return _where((x < y) | (x != x), x, y)
    return cute.arch.fmin(x, y, nan=True)


def maximum(x: Any, y: Any) -> Any:
    """Return the larger of x and y; NaN if one of them is NaN."""
    if _is_double(x):
        return _where((x > y) | (x != x), x, y)
    return cute.arch.fmax(x, y, nan=True)


def divide(x: Any, y: Any) -> Any:
    """Return x / y. f32 has an error of two units in the last place for any y; f64 is correctly rounded."""
    return x / y if _is_double(x) else _instruction("div.full.f32", x, y)


# --- functions of one argument -----------------------------------------------------------------------------


def square(x: Any) -> Any:
    """Return x * x."""
    return x * x


def sqrt(x: Any) -> Any:
    """Return the square root of x; NaN for negative x."""
    return cute.math.sqrt(x) if _is_double(x) else _instruction("sqrt.approx.f32", x)


def rsqrt(x: Any) -> Any:
    """Return 1 / sqrt(x)."""
    return cute.math.rsqrt(x)


def exp(x: Any) -> Any:
    """Return e**x for an f32 or f64 number in a kernel.

    In f32 it is computed as 2**(x / ln 2). The rounding error of x / ln 2 is corrected by a factor; without it, e**88
    would have an error of 2**-18.
    """
    if _is_double(x):
        return cute.math.exp(x)
    power = x * Float32(_LOG2_E)
    lost = _fma(-power, _LN_2_REST, _fma(-power, _LN_2, x))
    # If x is infinite, `lost` is NaN, which this maximum drops. Otherwise the factor is nearly 1.
    factor = cute.arch.fmax(lost + Float32(1.0), Float32(0.5))
    return _exp2(power) * factor


def log(x: Any) -> Any:
    """Return the natural logarithm of x: minus infinity for 0, NaN for negative x."""
    if _is_double(x):
        return cute.math.log(x)
    far = _instruction("lg2.approx.f32", x) * Float32(math.log(2))
    f = x - Float32(1.0)
    near = _fma(f * f, _polynomial(f, _LOG_NEAR), f)
    return _where(_magnitude(f) < Float32(_LOG_BORDER), near, far)


def tanh(x: Any) -> Any:
    """Return the hyperbolic tangent of x."""
    if _is_double(x):
        return cute.math.tanh(x)
    grown = _exp2(_magnitude(x) * Float32(2 * _LOG2_E))
    far = _signed(_fma(_reciprocal(grown + Float32(1.0)), -2.0, 1.0), x)
    s = x * x
    near = _fma(x * s, _polynomial(s, _TANH_NEAR), x)
    return _where(_magnitude(x) < Float32(_TANH_BORDER), near, far)


def erf(x: Any) -> Any:
    """Return the error function of x."""
    if _is_double(x):
        return cute.math.erf(x)
    a = _magnitude(x)
    far = _signed(Float32(1.0) - _exp2(_polynomial(a, _LOG2_ERFC)), x)
    near = x * _polynomial(x * x, _ERF_NEAR)
    return _where(a < Float32(_ERF_BORDER), near, far)


def _unit(x: Any) -> float:
    """Return the factor for exponents of a logistic function that is computed with base 2 in f32, base e in f64.

    It is log2(e) for f32, since e**x = 2**(x * log2(e)), and 1 for f64.
    """
    return 1.0 if _is_double(x) else _LOG2_E


def _share(exponent: Any) -> Any:
    """Return the logistic function of -exponent, with base e for f64 and base 2 for f32.

    That is 1 / (1 + e**exponent) for f64, and 1 / (1 + 2**exponent) for f32, which takes fewer instructions.
    """
    if _is_double(exponent):
        return Float64(1.0) / (cute.math.exp(exponent) + Float64(1.0))
    return _reciprocal(_exp2(exponent) + Float32(1.0))


def sigmoid(x: Any) -> Any:
    """Return 1 / (1 + e**-x)."""
    return _share(x * x.dtype(-_unit(x)))


def _times_share(x: Any, share: Callable[[Any], Any]) -> Any:
    """Return x * share(x), such as x * sigmoid(x), without NaN for x = minus infinity, where the factor is 0.

    x is clamped from below to a number whose product is 0 already. Infinity times 0 would be NaN.

    share   function of x that returns the factor, which goes to 0 as x goes to minus infinity
    """
    x = maximum(x, x.dtype(_ENDS[x.dtype]))
    return x * share(x)


def relu(x: Any) -> Any:
    """Return max(x, 0)."""
    return maximum(x, x.dtype(0.0))


def silu(x: Any) -> Any:
    """Return x * sigmoid(x)."""
    return _times_share(x, sigmoid)


def gelu(x: Any, bits: int = 24) -> Any:
    """Return the activation GELU: x / 2 * (1 + erf(x / sqrt(2))).

    bits   significand bits with which the result is stored; with 8 or fewer (bf16, fp8), a shorter polynomial is used
    """
    if _is_double(x):
        return _times_share(x, lambda x: cute.math.erfc(x * Float64(-math.sqrt(0.5))) * Float64(0.5))
    a = minimum(_magnitude(x), Float32(_GELU_END))
    fitted = [terms for most, terms in _LOG2_OF_TAIL_BY_BITS.items() if bits <= most]
    return _fma(-a, _exp2(_polynomial(a, [*fitted, _LOG2_OF_TAIL][0])), relu(x))


def gelu_tanh(x: Any, bits: int = 24) -> Any:
    """Return the tanh approximation of GELU: x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))).

    bits   significand bits with which the result is stored; with 8 or fewer, the TANH instruction computes the tanh
    """
    if bits <= _BITS_OF_TANH and not _is_double(x):
        x = maximum(x, Float32(_ENDS[Float32]))
        half = x * Float32(0.5)
        share = _instruction("tanh.approx.f32", x * _fma(x * x, _TWO_U_CUBIC / 2, _TWO_U / 2))
        return _fma(half, share, half)
    unit = _unit(x)
    return _times_share(x, lambda x: _share(x * _fma(x * x, -_TWO_U_CUBIC * unit, -_TWO_U * unit)))


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "abs": _magnitude,
    "square": square,
    "sqrt": sqrt,
    "rsqrt": rsqrt,
    "exp": exp,
    "log": log,
    "tanh": tanh,
    "erf": erf,
    "sigmoid": sigmoid,
    "relu": relu,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "silu": silu,
}
BINARY: dict[str, Callable[[Any, Any], Any]] = {"minimum": minimum, "maximum": maximum, "divide": divide}
# Functions with fewer instructions, by "name:bits": for results stored with at most `bits` bits of significand.
NARROW: dict[str, Callable[[Any], Any]] = {
    **{f"gelu:{bits}": functools.partial(gelu, bits=bits) for bits in _LOG2_OF_TAIL_BY_BITS},
    f"gelu_tanh:{_BITS_OF_TANH}": functools.partial(gelu_tanh, bits=_BITS_OF_TANH),
}


def function(name: str, bits: int) -> Callable[[Any], Any]:
    """Return the function that computes `name` (such as "gelu") in a kernel, just accurate enough for the result.

    bits   significand bits with which the result is stored; fewer may select a shorter version
    """
    enough = [key for key in NARROW if key.startswith(f"{name}:") and bits <= int(key.split(":")[1])]
    return NARROW[enough[0]] if enough else FUNCTIONS[name]
