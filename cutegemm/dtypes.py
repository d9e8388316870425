"""Element types, and rounding to them in numpy.

The names are those of PTX. A floating type is defined by its numbers of exponent and mantissa bits: tf32 has the
exponent of f32 and the mantissa of f16. e4m3 has no infinity; its largest value is 448.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

import numpy as np

from cutegemm.errors import UnsupportedError

ROUNDINGS = ("rne", "rna", "rz")


@dataclass(frozen=True)
class DType:
    """An element type of matrices or accumulators, such as bf16, with its size, range and rounding.

    name            PTX name: f16, bf16, tf32, f32, f64, e4m3, e5m2, s8 or s32
    bits            size of an element in memory; 32 for tf32
    exponent_bits   number of exponent bits; 0 for an integer type
    mantissa_bits   number of stored mantissa bits, without the leading 1; 0 for an integer type
    largest         largest finite value
    storage         name of the numpy dtype that holds every value exactly, e.g. float32 for bf16, which numpy lacks
    rounding        default rounding of `round_to`: rne (to nearest, ties to even), or rna (ties away from zero) for
                    tf32
    saturates       True: a larger value is rounded to `largest`, as cvt.rn.satfinite does. False: it becomes infinity
    aliases         further names that `parse` accepts, such as float32
    """

    name: str
    bits: int
    exponent_bits: int
    mantissa_bits: int
    largest: float
    storage: str
    rounding: str = "rne"
    saturates: bool = False
    aliases: tuple[str, ...] = field(default=(), compare=False, repr=False)

    def __str__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle this type by its name, so that each process has only one object per type and `is` comparisons work."""
        return DType.parse, (self.name,)

    @property
    def is_float(self) -> bool:
        """True if this is a floating-point type, False for s8 and s32."""
        return self.exponent_bits > 0

    @property
    def smallest_exponent(self) -> int:
        """Base-2 exponent of this type's smallest normal value, e.g. -14 for f16. Subnormal values share it."""
        return 2 - (1 << (self.exponent_bits - 1))

    @staticmethod
    def parse(name: str | DType) -> DType:
        """Return the element type that a name means; `float32`, `fp32`, `f32` and `torch.float32` are the same type.

        name     a name or alias in upper or lower case, or a numpy or torch dtype; a DType is returned as it is
        raises   UnsupportedError for an unknown name; the message lists the types and names that are similar

        >>> DType.parse("torch.bfloat16"), str(DType.parse("fp8_e4m3"))
        (bf16, 'e4m3')
        """
        if isinstance(name, DType):
            return name
        key = str(name).strip().lower().removeprefix("torch.").removeprefix("numpy.")
        if key not in _BY_NAME:
            known = ", ".join(t.name for t in DTYPES)
            near = _FAMILIES.get(key) or get_close_matches(key, [*_BY_NAME], n=3, cutoff=0.7)
            close = [name if _BY_NAME[name].name == name else f"{_BY_NAME[name]} ({name})" for name in near]
            meant = f" Is it {' or '.join(close)}?" if close else ""
            raise UnsupportedError(f"DType.parse: {name!r} is not an element type. The types are {known}.{meant}")
        return _BY_NAME[key]

    def __repr__(self) -> str:
        return self.name


f64 = DType("f64", 64, 11, 52, float(np.finfo(np.float64).max), "float64", aliases=("float64", "fp64", "double"))
f32 = DType("f32", 32, 8, 23, float(np.finfo(np.float32).max), "float32", aliases=("float32", "fp32", "float"))
tf32 = DType("tf32", 32, 8, 10, (2 - 2.0**-10) * 2.0**127, "float32", "rna", aliases=("tfloat32",))
f16 = DType("f16", 16, 5, 10, 65504.0, "float16", aliases=("float16", "fp16", "half"))
bf16 = DType("bf16", 16, 8, 7, (2 - 2.0**-7) * 2.0**127, "float32", aliases=("bfloat16",))
e4m3 = DType(
    "e4m3",
    8,
    4,
    3,
    448.0,
    "float32",
    saturates=True,
    aliases=("float8_e4m3fn", "float8_e4m3", "fp8_e4m3", "e4m3fn"),
)
e5m2 = DType("e5m2", 8, 5, 2, 57344.0, "float32", saturates=True, aliases=("float8_e5m2", "fp8_e5m2"))
s8 = DType("s8", 8, 0, 0, 127.0, "int8", saturates=True, aliases=("int8", "i8"))
s32 = DType("s32", 32, 0, 0, 2.0**31 - 1, "int32", saturates=True, aliases=("int32", "i32", "int"))

DTYPES = (f16, bf16, tf32, f32, f64, e4m3, e5m2, s8, s32)
_BY_NAME = {name: t for t in DTYPES for name in (t.name, *t.aliases)}
# Names that may mean several types, and the types to suggest.
_FAMILIES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("fp8", "f8", "float8"), ("e4m3", "e5m2")),
    "bf8": ("e5m2",),
    "integer": ("s8", "s32"),
}


def round_to(dtype: DType, values: Any, rounding: str | None = None) -> np.ndarray:
    """Round numbers to an element type, such as bf16, and return them as an array of numpy floats or integers.

    Each value is rounded once, from float64 or float32 directly to the type.

    dtype      the element type
    values     numbers, or an array of any shape
    rounding   rne (to nearest, ties to even), rna (to nearest, ties away from zero), rz (towards zero, as mma truncates
               the low bits of a tf32 operand); None: `dtype.rounding`
    returns    an array of the numpy type `dtype.storage`. NaN stays NaN, or becomes 0 in an integer type. If the type
               saturates, an infinity becomes the largest value
    raises     UnsupportedError for an unknown rounding
    source     PTX ISA, `cvt`

    >>> round_to(bf16, [1.00390625, 1.01171875]).tolist()
    [1.0, 1.015625]
    >>> round_to(e4m3, [1000.0, 0.001]).tolist()
    [448.0, 0.001953125]
    """
    mode = dtype.rounding if rounding is None else rounding
    if mode not in ROUNDINGS:
        raise UnsupportedError(f"round_to: rounding = {rounding!r} is unknown. Use {', '.join(ROUNDINGS)} or None.")
    array = np.asarray(values)
    if dtype is f64 or (dtype is f32 and (mode == "rne" or array.dtype == np.float32)):
        with np.errstate(over="ignore"):
            return array.astype(dtype.storage)
    exact = array.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        out = _rounded(exact, dtype, mode) if dtype.is_float else _to_integer(exact, mode)
        return _bounded(out, exact, dtype, mode).astype(dtype.storage)


def _rounded(exact: np.ndarray, dtype: DType, mode: str) -> np.ndarray:
    """Return float64 values rounded to the mantissa bits of a floating type.

    Values beyond the largest finite value of the type are kept; the caller replaces them.

    exact   values of any shape
    dtype   the floating type whose number of mantissa bits counts
    mode    rne (nearest, ties to even), rna (nearest, ties away from zero) or rz (towards zero)
    """
    _, exponent = np.frexp(exact)  # |x| = m * 2**exponent, 0.5 <= m < 1
    quantum = np.maximum(exponent - 1, dtype.smallest_exponent) - dtype.mantissa_bits
    out: np.ndarray = np.ldexp(_to_integer(np.ldexp(exact, -quantum), mode), quantum)
    return out


def _to_integer(values: np.ndarray, mode: str) -> np.ndarray:
    """Return the values rounded to integers, as floats.

    mode   rne (nearest, ties to even), rna (nearest, ties away from zero) or rz (towards zero)
    """
    if mode == "rne":
        out: np.ndarray = np.rint(values)
        return out
    out = np.trunc(values)
    if mode == "rna":
        out = out + np.where(np.abs(values - out) >= 0.5, np.sign(values), 0.0)
    return out


def _bounded(out: np.ndarray, exact: np.ndarray, dtype: DType, mode: str) -> np.ndarray:
    """Limit rounded values to the range of a type: larger ones become its largest value, or infinity.

    Values become the largest one if the type saturates, or if the mode is rz and the exact value is finite.

    out     rounded values, not yet limited to the range of `dtype`
    exact   unrounded values, of the same shape
    mode    one of rne, rna and rz
    """
    bounded: np.ndarray
    too_large = np.abs(out) > dtype.largest
    if not dtype.is_float:
        bounded = np.nan_to_num(np.clip(out, -dtype.largest - 1, dtype.largest), nan=0.0)
    elif dtype.saturates:
        bounded = np.clip(out, -dtype.largest, dtype.largest)
    elif mode == "rz":  # rounding towards zero never makes a finite value infinite
        bounded = np.where(too_large & np.isfinite(exact), np.copysign(dtype.largest, out), out)
    else:
        bounded = np.where(too_large, np.copysign(np.inf, out), out)
    return bounded
