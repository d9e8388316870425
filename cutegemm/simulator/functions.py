"""Elementwise functions of an epilogue in numpy.

Arrays of f32 are computed in float64 and rounded once, which nearly always gives the nearest f32. Arrays of f64 have
the relative error of a few operations, 4e-15; `gelu` near its zeros has in addition the error of the argument of erfc,
x * x * 2e-16. Infinities give the limits of the function, NaN gives NaN, and numpy warns of neither.

>>> x = np.float32([-np.inf, -1, 0, 1, np.inf])
>>> FUNCTIONS["gelu"](x).tolist()
[-0.0, -0.15865525603294373, 0.0, 0.8413447737693787, inf]
>>> BINARY["divide"](x, np.float32(0)).tolist()
[-inf, -inf, nan, inf, inf]
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

_BLOCK = 1 << 14  # elements that are computed at once: they fit a cache of the CPU

# erf(x) = x * p(x * x) for |x| < 1, and erfc(x) = exp(-x * x) / (x + 2) * q(6 / (x + 2) - 1) for x >= 1, with a
# relative error of 1.2e-15 each. The polynomials p and q interpolate 50-digit values at Chebyshev points.
_BORDER, _SHIFT = 1.0, 2.0
_ERF = (
    1.1283791670955132, -0.3761263890318846, 0.11283791671130493, -0.026866170674410182, 0.005223977891212352,
    -0.0008548341614110624, 0.00012055848058756719, -1.4937726841084298e-05, 1.6652062815907758e-06,
    -1.8345741495462158e-07, 2.7910628613123765e-08, -6.200976494774677e-09, 9.071260042955855e-10,
)  # fmt: skip
_ERFC = (
    0.8219967457503687, 0.34380947367039705, 0.10291788782347694, 0.016633141231079274,
    -0.0014137333844415313, -0.0012570181803722982, -3.678929133926729e-05, 0.00010491721444380516,
    6.343900469834735e-06, -1.1183361876203792e-05, -2.1096463591481174e-07, 1.4034004086609601e-06,
    -1.2533422647602918e-07, -1.7978144850606682e-07, 4.6131863381334264e-08, 1.9544583945733703e-08,
    -9.683172700846127e-09, -1.277383108558422e-09, 1.0592264234189813e-09,
)  # fmt: skip

# silu and both forms of gelu are 0 below this number; clamping x to it keeps the factor x finite.
_END = -800.0


def _polynomial(x: np.ndarray, coefficients: Sequence[float]) -> np.ndarray:
    """Return the value of the polynomial sum of coefficients[i] * x**i at each element x of an array."""
    value = np.full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        value *= x
        value += coefficient
    return value


def _erfc_above(a: np.ndarray) -> np.ndarray:
    """Return erfc(a), the complementary error function 1 - erf(a), for an array of values a >= 1."""
    high = a.astype(np.float32).astype(np.float64)  # the square of `high` is exact
    power = np.exp(-high * high) * np.exp((high - a) * (high + a))
    reciprocal = 1 / (a + _SHIFT)
    scaled = _polynomial(2 * (_BORDER + _SHIFT) * reciprocal - 1, _ERFC) * reciprocal
    return np.where(a < 40, power * scaled, np.where(np.isnan(a), a, 0.0))


def _in_blocks(function: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
    """Return `function` with its array argument processed in blocks, so that temporary arrays fit a CPU cache."""

    @functools.wraps(function)
    def computed(x: np.ndarray) -> np.ndarray:
        flat = x.reshape(-1)
        out = np.empty_like(flat)
        for start in range(0, len(flat), _BLOCK):
            out[start : start + _BLOCK] = function(flat[start : start + _BLOCK])
        return out.reshape(x.shape)

    return computed


@_in_blocks
def _erf(x: np.ndarray) -> np.ndarray:
    """Return the error function erf(x) of each element of a float64 array."""
    a = np.abs(x)
    near = x * _polynomial(np.minimum(x * x, 1), _ERF)
    far = np.copysign(1 - _erfc_above(np.maximum(a, _BORDER)), x)
    return np.where(a < _BORDER, near, far)


@_in_blocks
def _erfc(x: np.ndarray) -> np.ndarray:
    """Return 1 - erf(x), the complementary error function, for each element of a float64 array."""
    a = np.abs(x)
    far = _erfc_above(np.maximum(a, _BORDER))
    near = x * _polynomial(np.minimum(x * x, 1), _ERF)
    return np.where(a < _BORDER, 1 - near, np.where(x < 0, 2 - far, far))


def _sigmoid(x: np.ndarray) -> np.ndarray:
    """Return the logistic function 1 / (1 + exp(-x)) of each element of an array."""
    return 1 / (1 + np.exp(-x))


def _silu(x: np.ndarray) -> np.ndarray:
    """Return silu(x) = x * sigmoid(x) of each element of an array."""
    x = np.maximum(x, _END)
    return x * _sigmoid(x)


def _gelu(x: np.ndarray) -> np.ndarray:
    """Return gelu(x) = x * Phi(x) of each element of an array, where Phi is the normal distribution function."""
    x = np.maximum(x, _END)
    return x * (0.5 * _erfc(x * -math.sqrt(0.5)))


def _gelu_tanh(x: np.ndarray) -> np.ndarray:
    """Return the tanh approximation of gelu(x) for each element of an array, computed as x * sigmoid(2u).

    u is sqrt(2 / pi) * (x + 0.044715 * x**3); this is torch's `gelu` with approximate="tanh".
    """
    x = np.maximum(x, _END)
    return x * _sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x))


def _rounded(function: Callable[..., Any]) -> Callable[..., Any]:
    """Convert a function of float64 arrays to one of any float type, whose result has the type of its argument.

    It is computed in float64 and rounded once.
    """

    @functools.wraps(function)
    def evaluated(x: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            return function(x.astype(np.float64)).astype(x.dtype)

    return evaluated


def _quotient(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return x / y element by element, without warnings for division by 0."""
    with np.errstate(all="ignore"):
        return np.divide(x, y)


FUNCTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "abs": np.abs,
    "square": _rounded(np.square),
    "sqrt": _rounded(np.sqrt),
    "rsqrt": _rounded(lambda x: 1 / np.sqrt(x)),
    "exp": _rounded(np.exp),
    "log": _rounded(np.log),
    "tanh": _rounded(np.tanh),
    "erf": _rounded(_erf),
    "sigmoid": _rounded(_sigmoid),
    "relu": lambda x: np.maximum(x, x.dtype.type(0)),
    "gelu": _rounded(_gelu),
    "gelu_tanh": _rounded(_gelu_tanh),
    "silu": _rounded(_silu),
}
BINARY: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "minimum": np.minimum,
    "maximum": np.maximum,
    "divide": _quotient,
}
