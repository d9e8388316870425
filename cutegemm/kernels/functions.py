"""The elementwise functions of an epilogue in a kernel: from a traced scalar to one of its type.

| f32                                | instructions of Hopper                                                          |
|------------------------------------|---------------------------------------------------------------------------------|
| exp, sigmoid, silu, gelu_tanh      | EX2 of a multiple of x; where a reciprocal follows, RCP                         |
| gelu                               | one polynomial, one EX2                                                         |
| gelu_tanh, results of bf16         | TANH                                                                            |
| tanh, erf, log                     | near their zero a polynomial; else 1 - 2 RCP(EX2 + 1), 1 - EX2(polynomial), LG2 |
| sqrt, rsqrt, divide                | the instruction of that name, of operands that are scaled first                 |

The special-function unit takes 16 values a cycle of a multiprocessor, which issues 128 instructions of threads: beside
one of these, 7 others cost nothing. `machine.functions` counts them, `docs/functions.md` says how large the errors are.
TANH has an absolute error near 1 that a result of bf16 hides and a result of more bits does not.

No branch and no call; NaN gives NaN, and an infinity the function's limit there. Results below 2**-126 may be zero.
Products that are added are written as `fma`, so that the compiler has nothing to fuse, and the emulator rounds alike.

f64: the DSL's own functions, with errors of a few units in the last place.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Float64
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import dsl_user_op

_LOG2_E = 1 / math.log(2)
_LN_2 = 0.693147182464599609375  # the nearest f32; the next line is the rest
_LN_2_REST = -1.904654299957767e-09

# gelu(x) = max(x, 0) - |x| * 2**p(|x|) with p(a) = log2(erfc(a / sqrt(2)) / 2), from p(0) = -1 on. Fitted for the least
# largest relative error of 2**p, 2.2e-6; from p = -6 on (-p / 6)**4 times that. At the end 2**p is below 2**-126.
_GELU_END = 13.2
_LOG2_OF_TAIL = (
    -1.0, -1.1511726379394531, -0.4587413966655731, -0.05358864739537239, 0.00827742088586092,
    -0.000860325526446104, 5.155982216820121e-05, -1.3041301372140879e-06,
)  # fmt: skip
# Where results are stored with fewer bits: by how many bits at most, p(a) of fewer terms. Fitted for the least largest
# error of gelu relative to its size, or to 2**-7 where it is less: 2**-12.06, an eighth of half a place of bf16.
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

# log(1 + f) = f + f * f * p(f) where |f| is below the border, relative error 1.4e-7.
_LOG_BORDER = 0.25
_LOG_NEAR = (
    -0.5000035166740417, 0.33333924412727356, -0.2495405673980713, 0.19945266842842102, -0.1811934858560562,
    0.15734636783599854,
)  # fmt: skip

# gelu_tanh(x) = x * sigmoid(2 * u), u = sqrt(2 / pi) * (x + 0.044715 * x**3)
_TWO_U = 2 * math.sqrt(2 / math.pi)
_TWO_U_CUBIC = 0.044715 * _TWO_U
_BITS_OF_TANH = 8  # of a significand, with which results at most are stored that TANH is exact enough for

# Below these numbers the share that x is multiplied by is 0 in silu and both forms of gelu; or so nearly that the
# product is below 2**-126 of f32. f64 has one that is lower.
_ENDS = {Float32: -100.0, Float64: -800.0}


def _is_double(x: Any) -> bool:
    return x.dtype is Float64


@dsl_user_op
def _instruction(name: str, *operands: Any, loc: Any = None, ip: Any = None) -> Float32:
    """An instruction of PTX on f32 that the DSL has no word for."""
    numbers = ", ".join(f"${i}" for i in range(len(operands) + 1))
    values = [operand.ir_value(loc=loc, ip=ip) for operand in operands]
    asm = functools.partial(llvm.inline_asm, has_side_effects=False, is_align_stack=False, loc=loc, ip=ip)
    registers = ",".join(["=f"] + ["f"] * len(operands))
    return Float32(asm(Float32.mlir_type, values, f"{name} {numbers};", registers, asm_dialect=llvm.AsmDialect.AD_ATT))


def _exp2(x: Any) -> Any:
    """2**x, relative error 2**-22; below 2**-126 it is 0."""
    return cute.math.exp2(x, fastmath=True)


def _reciprocal(x: Any) -> Any:
    """1 / x, to one place of the last; of what lies outside of 2**-126 .. 2**126 infinity or 0."""
    return cute.arch.rcp_approx(x)


def _fma(x: Any, y: Any, z: Any) -> Any:
    """x * y + z, rounded once; numbers are of x's type."""
    kind = x.dtype
    return cute.math.fma(x, *[kind(v) if isinstance(v, float) else v for v in (y, z)])


def _polynomial(x: Any, coefficients: Sequence[float]) -> Any:
    """The sum of coefficients[i] * x**i."""
    *others, value = coefficients
    for coefficient in reversed(others):
        value = _fma(x, value, coefficient)
    return value


def _magnitude(x: Any) -> Any:
    return cute.math.abs(x)


def _where(condition: Any, x: Any, y: Any) -> Any:
    return x.dtype(cutlass.select_(condition, x, y))


def _signed(value: Any, like: Any) -> Any:
    """The value with the sign of another one."""
    return cute.math.copysign(value, like)


# --- of two arguments --------------------------------------------------------------------------------------


def minimum(x: Any, y: Any) -> Any:
    """The lesser one; NaN if one is."""
    if _is_double(x):
        return _where((x < y) | (x != x), x, y)
    return cute.arch.fmin(x, y, nan=True)


def maximum(x: Any, y: Any) -> Any:
    """The greater one; NaN if one is."""
    if _is_double(x):
        return _where((x > y) | (x != x), x, y)
    return cute.arch.fmax(x, y, nan=True)


def divide(x: Any, y: Any) -> Any:
    """x / y: of f32 to two places of the last, for any y; of f64 exact."""
    return x / y if _is_double(x) else _instruction("div.full.f32", x, y)


# --- of one argument ---------------------------------------------------------------------------------------


def square(x: Any) -> Any:
    """x * x."""
    return x * x


def sqrt(x: Any) -> Any:
    """The square root; of less than zero NaN."""
    return cute.math.sqrt(x) if _is_double(x) else _instruction("sqrt.approx.f32", x)


def rsqrt(x: Any) -> Any:
    """1 / sqrt(x)."""
    return cute.math.rsqrt(x)


def exp(x: Any) -> Any:
    """e**x. f32: what rounding x / ln 2 loses is multiplied on, without which e**88 has 2**-18 of error."""
    if _is_double(x):
        return cute.math.exp(x)
    power = x * Float32(_LOG2_E)
    lost = _fma(-power, _LN_2_REST, _fma(-power, _LN_2, x))
    # Of infinities `lost` is NaN, which this maximum drops; of all others the factor is nearly 1.
    factor = cute.arch.fmax(lost + Float32(1.0), Float32(0.5))
    return _exp2(power) * factor


def log(x: Any) -> Any:
    """The natural logarithm: of 0 minus infinity, of less NaN."""
    if _is_double(x):
        return cute.math.log(x)
    far = _instruction("lg2.approx.f32", x) * Float32(math.log(2))
    f = x - Float32(1.0)
    near = _fma(f * f, _polynomial(f, _LOG_NEAR), f)
    return _where(_magnitude(f) < Float32(_LOG_BORDER), near, far)


def tanh(x: Any) -> Any:
    """The hyperbolic tangent."""
    if _is_double(x):
        return cute.math.tanh(x)
    grown = _exp2(_magnitude(x) * Float32(2 * _LOG2_E))
    far = _signed(_fma(_reciprocal(grown + Float32(1.0)), -2.0, 1.0), x)
    s = x * x
    near = _fma(x * s, _polynomial(s, _TANH_NEAR), x)
    return _where(_magnitude(x) < Float32(_TANH_BORDER), near, far)


def erf(x: Any) -> Any:
    """The error function."""
    if _is_double(x):
        return cute.math.erf(x)
    a = _magnitude(x)
    far = _signed(Float32(1.0) - _exp2(_polynomial(a, _LOG2_ERFC)), x)
    near = x * _polynomial(x * x, _ERF_NEAR)
    return _where(a < Float32(_ERF_BORDER), near, far)


def _unit(x: Any) -> float:
    """What 1 is in exponents: those of `_share` are of e in f64, of 2 in f32."""
    return 1.0 if _is_double(x) else _LOG2_E


def _share(exponent: Any) -> Any:
    """1 / (1 + e**exponent), where f32 has 2 for e."""
    if _is_double(exponent):
        return Float64(1.0) / (cute.math.exp(exponent) + Float64(1.0))
    return _reciprocal(_exp2(exponent) + Float32(1.0))


def sigmoid(x: Any) -> Any:
    """1 / (1 + e**-x)."""
    return _share(x * x.dtype(-_unit(x)))


def _times_share(x: Any, share: Callable[[Any], Any]) -> Any:
    """x times what goes to 0 with x: from `_ENDS` on down it is 0, and x stays a finite factor."""
    x = maximum(x, x.dtype(_ENDS[x.dtype]))
    return x * share(x)


def relu(x: Any) -> Any:
    """max(x, 0)."""
    return maximum(x, x.dtype(0.0))


def silu(x: Any) -> Any:
    """x * sigmoid(x)."""
    return _times_share(x, sigmoid)


def gelu(x: Any, bits: int = 24) -> Any:
    """x times the share of the normal distribution that is below x: x / 2 * (1 + erf(x / sqrt(2))).

    bits   of the significand that the result is stored with
    """
    if _is_double(x):
        return _times_share(x, lambda x: cute.math.erfc(x * Float64(-math.sqrt(0.5))) * Float64(0.5))
    a = minimum(_magnitude(x), Float32(_GELU_END))
    fitted = [terms for most, terms in _LOG2_OF_TAIL_BY_BITS.items() if bits <= most]
    return _fma(-a, _exp2(_polynomial(a, [*fitted, _LOG2_OF_TAIL][0])), relu(x))


def gelu_tanh(x: Any, bits: int = 24) -> Any:
    """Return x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))).

    bits   of the significand that the result is stored with; of 8 and fewer, the TANH instruction computes the tanh
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
# Functions of fewer instructions where results are stored with so many bits of significand at most, by name:bits.
NARROW: dict[str, Callable[[Any], Any]] = {
    **{f"gelu:{bits}": functools.partial(gelu, bits=bits) for bits in _LOG2_OF_TAIL_BY_BITS},
    f"gelu_tanh:{_BITS_OF_TANH}": functools.partial(gelu_tanh, bits=_BITS_OF_TANH),
}


def function(name: str, bits: int) -> Callable[[Any], Any]:
    """The function of a name, for results that are stored with so many bits of significand."""
    enough = [key for key in NARROW if key.startswith(f"{name}:") and bits <= int(key.split(":")[1])]
    return NARROW[enough[0]] if enough else FUNCTIONS[name]
