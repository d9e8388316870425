"""Arithmetic of single threads: the function that each opcode computes from the bits of its operands.

`pure` turns an instruction into a function of arrays. As the PTX ISA says, integers wrap, shift amounts clamp, and
floats are rounded once to nearest even. `mul.f32` and `add.f32` stay two operations here, although ptxas may fuse
them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from cutegemm.dtypes import DType, e4m3, e5m2, round_to
from cutegemm.dtypes import bf16 as bf16_type
from cutegemm.dtypes import tf32 as tf32_type
from cutegemm.emulator.bits import BIT_OPERATIONS
from cutegemm.emulator.special import SPECIAL
from cutegemm.emulator.state import GENERIC_PARAM, GENERIC_SHARED, Instruction, Register

Compute = Callable[..., Any]

TYPES: dict[str, np.dtype] = {
    name: np.dtype(kind)
    for name, kind in (
        ("s8", "i1"), ("s16", "i2"), ("s32", "i4"), ("s64", "i8"), ("u8", "u1"), ("u16", "u2"), ("u32", "u4"),
        ("u64", "u8"), ("b8", "u1"), ("b16", "u2"), ("b32", "u4"), ("b64", "u8"), ("f16", "f2"), ("f32", "f4"),
        ("f64", "f8"), ("pred", "?"), ("bf16", "u2"),
    )
}  # fmt: skip


@dataclass(frozen=True)
class Pure:
    """What a PTX instruction without memory access computes, as a numpy function with the types of its operands.

    compute   function of the sources (arrays or numpy scalars) that returns the result
    sources   dtype to view each source as; None: the bits of the register, at its own width
    result    dtype of the result
    """

    compute: Compute
    sources: tuple[np.dtype | None, ...]
    result: np.dtype


def pure(instruction: Instruction) -> Pure | None:
    """Return the numpy operation of a PTX instruction; None if it accesses memory or its form is not implemented."""
    op, *mods = instruction.opcode
    if op == "cvt":
        return _cvt(instruction, mods)
    if op == "cvta":
        return _cvta(mods)
    if op == "setp":
        return _setp(mods, len(instruction.operands) - 1)
    kind = mods[-1] if mods else ""
    if kind not in TYPES:
        return None
    key = ".".join([op, *mods[:-1]])
    if op == "selp":
        return Pure(_selp, (TYPES[kind], TYPES[kind], TYPES["pred"]), TYPES[kind])
    if kind in _NARROW:
        return _of_16_bits(key, kind, len(instruction.operands) - 1)
    if kind in ("f32", "f64"):
        compute = _FLOAT.get((key, kind)) or _FLOAT.get((key, ""))
    else:
        compute = BIT_OPERATIONS.get((key, kind)) or _INTEGER.get(key)
    if op == "dp2a" and mods[0] in _BYTES_FROM:
        return _dot_of_two(mods[0], *mods[1:])
    if compute is None:
        return None
    seen = TYPES[kind]
    sources = [seen] * (len(instruction.operands) - 1)
    result = seen
    if op in ("popc", "clz"):
        result = TYPES["u32"]
    if mods[0] == "wide":
        result = np.dtype(f"{seen.kind}{seen.itemsize * 2}")
        if op == "mad":
            sources[2] = result
    if op in ("shl", "shr") or key == "bfe" or key == "bfi":
        for i in range(1 if key != "bfi" else 2, len(sources)):
            sources[i] = TYPES["u32"]
    return Pure(compute, tuple(sources), result)


# --- integers ----------------------------------------------------------------------------------------------


def _doubled(a: Any) -> np.dtype:
    return np.dtype(f"{a.dtype.kind}{a.dtype.itemsize * 2}")


def _wide(a: Any, b: Any) -> Any:
    return np.multiply(a, b, dtype=_doubled(a))


def _high(a: Any, b: Any) -> Any:
    if a.dtype.itemsize == 8:
        exact = (np.asarray(a).astype(object) * np.asarray(b).astype(object)) >> 64
        return np.asarray(exact).astype(a.dtype)
    return (_wide(a, b) >> (8 * a.dtype.itemsize)).astype(a.dtype)


_BYTES_FROM = {"lo": 0, "hi": 16}  # first bit of the two bytes of B that dp2a.lo and dp2a.hi multiply


def _dot_of_two(which: str, of_a: str, of_b: str) -> Pure:
    """Return the operation dp2a: the dot product of the two 16-bit halves of A and two bytes of B, plus C.

    which        "lo" or "hi": which two bytes of B
    of_a, of_b   "s32" or "u32": whether the elements are signed
    """
    result = TYPES["u32" if (of_a, of_b) == ("u32", "u32") else "s32"]

    def field(word: Any, first: int, bits: int, kind: str) -> Any:
        narrow = np.dtype(f"{'i' if kind == 's32' else 'u'}{bits // 8}")
        unsigned = (word >> np.uint32(first)).astype(f"u{bits // 8}")
        return unsigned.view(narrow).astype(np.int64)

    def dot(a: Any, b: Any, c: Any) -> Any:
        first = _BYTES_FROM[which]
        total = np.asarray(c).astype(np.int64)
        for i in range(2):
            total = total + field(a, 16 * i, 16, of_a) * field(b, first + 8 * i, 8, of_b)
        return total.astype(result)

    return Pure(dot, (TYPES["u32"], TYPES["u32"], result), result)


def _divided(a: Any, b: Any) -> tuple[Any, Any]:
    """Return (quotient, remainder) of integers as PTX div and rem compute them; the quotient is rounded towards zero.

    Division by zero gives a quotient of all ones, and the dividend as the remainder.
    """
    safe = np.where(b == 0, b.dtype.type(1), b)
    rest = np.fmod(a, safe)
    quotient = (a - rest) // safe
    return np.where(b == 0, ~a.dtype.type(0), quotient), np.where(b == 0, a, rest)


_INTEGER: dict[str, Compute] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul.lo": lambda a, b: a * b,
    "mul.hi": _high,
    "mul.wide": _wide,
    "mad.lo": lambda a, b, c: a * b + c,
    "mad.hi": lambda a, b, c: _high(a, b) + c,
    "mad.wide": lambda a, b, c: _wide(a, b) + c,
    "div": lambda a, b: _divided(a, b)[0],
    "rem": lambda a, b: _divided(a, b)[1],
    "min": np.minimum,
    "max": np.maximum,
    "min.relu": lambda a, b: np.maximum(np.minimum(a, b), 0),
    "max.relu": lambda a, b: np.maximum(np.maximum(a, b), 0),
    "neg": lambda a: -a,
    "abs": np.abs,
}


# --- floats ------------------------------------------------------------------------------------------------


def _fma32(a: Any, b: Any, c: Any) -> Any:
    """Return a * b + c for f32, rounded once.

    The product is exact in f64. If the f64 sum lies in the middle of two f32 values, its rounding error decides which
    of the two is the result. A subnormal result may be rounded twice.
    """
    product = np.multiply(a, b, dtype=np.float64)
    total = product + c
    middle = (total.view(np.uint64) & 0x1FFFFFFF) == 0x10000000
    if middle.any():
        lost = _lost(product, np.asarray(c, np.float64), total)
        to_odd = middle & (lost != 0) & np.isfinite(total)
        total = np.where(to_odd, np.nextafter(total, np.copysign(np.inf, lost)), total)
    return total.astype(np.float32)


def _lost(a: Any, b: Any, total: Any) -> Any:
    """Return the exact rounding error of a floating-point sum: a + b - total, where `total` is a + b rounded."""
    part = total - a
    return (a - (total - part)) + (b - part)


def _halves(a: Any) -> tuple[Any, Any]:
    """Split an f64 value into a sum of two shorter values, so that products of such halves are exact in f64.

    This is Dekker's splitting.
    """
    scaled = a * 134217729.0  # 2**27 + 1
    high = scaled - (scaled - a)
    return high, a - high


def _fma64(a: Any, b: Any, c: Any) -> Any:
    """Return a * b + c for f64, computed with twice the precision of f64 and then rounded."""
    product = a * b
    (ah, al), (bh, bl) = _halves(a), _halves(b)
    error = ((ah * bh - product) + ah * bl + al * bh) + al * bl
    total = product + c
    exact = total + (_lost(product, c, total) + error)
    return np.where(np.isfinite(exact), exact, total)


_FLOAT: dict[tuple[str, str], Compute] = {
    **SPECIAL,
    ("fma.rn", "f32"): _fma32,
    ("fma.rn", "f64"): _fma64,
    **{
        (name, ""): compute
        for names, compute in (
            (("add", "add.rn"), lambda a, b: a + b),
            (("sub", "sub.rn"), lambda a, b: a - b),
            (("mul", "mul.rn"), lambda a, b: a * b),
            (("div.rn",), lambda a, b: a / b),
            (("min",), np.fmin),
            (("max",), np.fmax),
            (("neg",), lambda a: -a),
            (("abs",), np.abs),
        )
        for name in names
    },
}


# Operations on 16-bit types that f32 computes with a correctly rounded result: the significand of f32 has at least
# 2 p + 2 bits, where p is that of the 16-bit type.
_BY_F32 = frozenset(
    ("add", "add.rn", "sub", "sub.rn", "mul", "mul.rn", "min", "max", "min.NaN", "max.NaN", "neg", "abs")
)


def _of_16_bits(key: str, kind: str, count: int) -> Pure | None:
    """Return an operation on f16 or bf16, computed in f32 and rounded; None if it is not implemented.

    key     PTX opcode with its modifiers, without the type
    kind    "f16" or "bf16"
    count   number of sources
    """
    if key not in _BY_F32:
        return None
    compute = _FLOAT.get((key, "")) or _FLOAT[key, "f32"]
    narrow, wide, bits = _NARROW[kind], _WIDE[kind], TYPES["b16"]
    return Pure(lambda *sources: narrow(compute(*map(wide, sources))), (bits,) * count, bits)


# --- predicates --------------------------------------------------------------------------------------------

_ORDERED: dict[str, Compute] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal, "lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal,
}  # fmt: skip


def _selp(a: Any, b: Any, p: Any) -> Any:
    return np.where(p, a, b)


def _comparison(name: str, is_float: bool) -> Compute | None:
    """Return the comparison function for a modifier of setp, or None if it is unknown.

    An unordered comparison ("ltu") is true if an operand is NaN.

    name       modifier of setp: "lt", "ltu", "nan", ...
    is_float   whether floats are compared; only then NaN matters
    """
    if name in _ORDERED:
        if name != "ne" or not is_float:
            return _ORDERED[name]
        return lambda a, b: (a != b) & (a == a) & (b == b)
    if not is_float:
        return None
    if name == "nan":
        return lambda a, b: (a != a) | (b != b)
    if name == "num":
        return lambda a, b: (a == a) & (b == b)
    ordered = _ORDERED.get(name[:-1])
    if name[-1] != "u" or ordered is None:
        return None
    return lambda a, b: ordered(a, b) | (a != a) | (b != b)


def _setp(mods: list[str], count: int) -> Pure | None:
    """Return the operation of setp, which compares two values into a predicate; None if its form is not implemented.

    mods    modifiers of the opcode, such as ["lt", "f32"]
    count   number of sources: 3 with a predicate that is combined with the comparison, else 2
    """
    kind = mods[-1]
    if kind not in TYPES:
        return None
    compare = _comparison(mods[0], kind[0] == "f" or kind in _NARROW)
    joined = mods[1] if len(mods) == 3 else None
    if compare is None or len(mods) > 3 or (count == 3) != (joined is not None):
        return None
    seen, pred = TYPES[kind], TYPES["pred"]
    if kind in _NARROW:
        as_narrow, wide, seen = compare, _WIDE[kind], TYPES["b16"]
        compare = lambda a, b: as_narrow(wide(a), wide(b))  # noqa: E731
    if joined is None:
        return Pure(compare, (seen, seen), pred)
    if joined not in ("and", "or", "xor"):
        return None
    combine = getattr(np, f"logical_{joined}")
    return Pure(lambda a, b, p: combine(compare(a, b), p), (seen, seen, pred), pred)


# --- conversions -------------------------------------------------------------------------------------------


def bf16_bits(values: np.ndarray) -> np.ndarray:
    """Convert float32 values to bf16 bit patterns (uint16), rounded to nearest even."""
    bits = np.asarray(values, np.float32).view(np.uint32)
    rounded = (bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(16)
    return np.where(np.isnan(values), np.uint16(0x7FFF), rounded.astype(np.uint16))


def bf16_values(bits: np.ndarray) -> np.ndarray:
    """Convert bf16 bit patterns (uint16) to float32 values."""
    return (np.asarray(bits).astype(np.uint32) << np.uint32(16)).view(np.float32)


def _f16_bits(values: np.ndarray) -> np.ndarray:
    return np.asarray(values, np.float32).astype(np.float16).view(np.uint16)


def _f16_values(bits: np.ndarray) -> np.ndarray:
    return np.asarray(bits).astype(np.uint16).view(np.float16).astype(np.float32)


_NARROW: dict[str, Callable[[Any], Any]] = {"f16": _f16_bits, "bf16": bf16_bits}
_WIDE: dict[str, Callable[[Any], Any]] = {"f16": _f16_values, "bf16": bf16_values}
_PAIRS_OF_BYTES = {"e4m3x2": e4m3, "e5m2x2": e5m2}


def _cvt_bytes(how: list[str], to: str, source: str) -> Pure | None:
    """Return a conversion of two f32 to a pair of fp8 values, or of such a pair to f16x2; None if not implemented.

    The first source becomes the high byte.

    how          rounding modifiers of cvt
    to, source   PTX types, such as "e4m3x2" and "f32"
    """
    pair, other = (to, source) if to in _PAIRS_OF_BYTES else (source, to)
    if pair not in _PAIRS_OF_BYTES:
        return None
    kind = _PAIRS_OF_BYTES[pair]
    if (how, to, other) == (["rn", "satfinite"], pair, "f32"):

        def join(a: Any, b: Any) -> Any:
            high, low = (exact_bits(kind, round_to(kind, x)).astype(np.uint16) for x in (a, b))
            return (high << np.uint16(8)) | low

        return Pure(join, (TYPES["f32"], TYPES["f32"]), TYPES["b16"])
    if (how, source, other) == (["rn"], pair, "f16x2"):

        def widen(a: Any) -> Any:
            table = small_values(kind).astype(np.float16).view(np.uint16).astype(np.uint32)
            return (table[a >> np.uint16(8)] << np.uint32(16)) | table[a & np.uint16(0xFF)]

        return Pure(widen, (TYPES["b16"],), TYPES["b32"])
    return None


def _cvt(instruction: Instruction, mods: list[str]) -> Pure | None:
    """Return the operation of cvt, which converts between types; None if the conversion is not implemented.

    mods   modifiers of the opcode: rounding, then the two types
    """
    *how, to, source = mods
    if "e4m3x2" in (to, source) or "e5m2x2" in (to, source):
        return _cvt_bytes(how, to, source)
    bits32 = TYPES["b32"]
    f32 = TYPES["f32"]
    if how == ["rn"] and to in ("f16x2", "bf16x2") and source == "f32":
        narrow = _NARROW[to[:-2]]
        join = lambda a, b: (narrow(a).astype(np.uint32) << np.uint32(16)) | narrow(b)  # noqa: E731
        return Pure(join, (f32, f32), bits32)
    if how == ["rna"] and (to, source) == ("tf32", "f32"):
        return Pure(lambda a: round_to(tf32_type, a, "rna"), (f32,), f32)
    if how == ["rn"] and to in _NARROW and source == "f32":
        return Pure(_NARROW[to], (f32,), TYPES["b16"])
    if how == ["rn"] and (to, source) == ("bf16", "f64"):  # rounded once
        narrowed = lambda a: exact_bits(bf16_type, round_to(bf16_type, a)).astype(np.uint16)  # noqa: E731
        return Pure(narrowed, (TYPES["f64"],), TYPES["b16"])
    if not how and to in ("f32", "f64") and source == "bf16":
        return Pure(lambda a: bf16_values(a).astype(TYPES[to]), (TYPES["b16"],), TYPES[to])
    if to not in TYPES or source not in TYPES or "bf16" in (to, source):
        return None
    result, seen = TYPES[to], TYPES[source]
    rounds = {"rzi": np.trunc, "rni": np.rint, "rmi": np.floor, "rpi": np.ceil}.get(".".join(how))
    if result == seen and result.kind == "f":
        return None if rounds is None else Pure(rounds, (seen,), result)
    if result.kind == "f" and seen.kind == "f":
        widens = result.itemsize > seen.itemsize
        if how == ([] if widens else ["rn"]):
            return Pure(lambda a: a.astype(result), (seen,), result)
        return None
    if result.kind == "f":
        return Pure(lambda a: a.astype(result), (seen,), result) if how == ["rn"] else None
    if seen.kind == "f":
        return None if rounds is None else Pure(_to_integer(rounds, result), (seen,), result)
    if how:
        return None
    dest = instruction.operands[0]
    width = {"b16": 2, "b32": 4, "b64": 8}[dest.kind] if isinstance(dest, Register) else result.itemsize
    extended = np.dtype(f"{result.kind}{width}")  # a narrow result is sign- or zero-extended to its register

    def convert(a: Any) -> Any:
        return a.astype(f"u{seen.itemsize}").view(seen).astype(result).astype(extended)

    return Pure(convert, (None,), extended)


def _to_integer(rounds: Callable[[Any], Any], result: np.dtype) -> Compute:
    """Return a conversion of floats to integers that rounds, clamps to the integer range, and turns NaN into 0.

    rounds   rounding function
    result   integer type
    """
    limits = np.iinfo(result)

    def convert(a: Any) -> Any:
        whole = np.nan_to_num(rounds(a.astype(np.float64)), nan=0.0, posinf=np.inf, neginf=-np.inf)
        inside = np.clip(whole, float(limits.min), float(limits.max))
        high = whole >= float(limits.max)
        return np.where(high, limits.max, np.where(high, 0.0, inside).astype(result)).astype(result)

    return convert


def _cvta(mods: list[str]) -> Pure | None:
    """Return the operation of cvta, which converts addresses of a state space to generic ones, or back.

    mods      modifiers of the opcode, such as ["to", "shared", "u64"]
    returns   None if the state space or the type is not implemented
    """
    kind = TYPES["u64"]
    to = mods[0] == "to"
    space = mods[1 if to else 0].partition("::")[0]
    base = {"shared": GENERIC_SHARED, "param": GENERIC_PARAM, "global": 0}.get(space)
    if base is None or mods[-1] != "u64":
        return None
    shift = np.uint64(base)
    return Pure((lambda a: a - shift) if to else (lambda a: a + shift), (kind,), kind)


def exact_bits(dtype: DType, values: np.ndarray) -> np.ndarray:
    """Convert values to their bits in memory. Each value must be one that the type represents exactly.

    >>> from cutegemm.dtypes import bf16, e4m3
    >>> [hex(v) for v in exact_bits(bf16, np.float32([1, -2]))], exact_bits(e4m3, np.float32([1.5])).tolist()
    (['0x3f80', '0xc000'], [60])
    """
    if dtype.name == "bf16":
        return bf16_bits(values)
    if dtype.bits == 8 and dtype.is_float:
        table = small_values(dtype)
        order = np.argsort(table[:128], kind="stable")  # NaN last
        magnitude = np.asarray(values, np.float32)
        index = np.searchsorted(table[:128][order], np.abs(magnitude))
        code = order[np.minimum(index, 127)].astype(np.uint8)
        return code | (np.signbit(magnitude).astype(np.uint8) << np.uint8(7))
    stored = np.dtype(dtype.storage)
    return np.ascontiguousarray(values, stored).view(f"u{stored.itemsize}")


def values_of(dtype: DType, bits: np.ndarray) -> np.ndarray:
    """Convert bits in memory to values in the numpy type that stores `dtype`: the inverse of `exact_bits`."""
    if dtype.name == "bf16":
        return bf16_values(bits)
    if dtype.bits == 8 and dtype.is_float:
        return small_values(dtype)[bits]
    return bits.view(dtype.storage)


def small_values(dtype: DType) -> np.ndarray:
    """Return the values of all 256 bit patterns of an 8-bit float type, as float32: entry i for pattern i."""
    code = np.arange(256)
    exponent_bits, mantissa_bits = dtype.exponent_bits, dtype.mantissa_bits
    exponent = (code >> mantissa_bits) & ((1 << exponent_bits) - 1)
    fraction = (code & ((1 << mantissa_bits) - 1)) / 2.0**mantissa_bits
    scale = np.maximum(exponent, 1) - (1 << (exponent_bits - 1)) + 1
    value = np.ldexp(fraction + (exponent > 0), scale)
    top = exponent == (1 << exponent_bits) - 1
    if dtype.name == "e5m2":
        value = np.where(top, np.where(fraction == 0, np.inf, np.nan), value)
    else:
        value = np.where(value > dtype.largest, np.nan, value)
    return np.where(code < 128, value, -value).astype(np.float32)
