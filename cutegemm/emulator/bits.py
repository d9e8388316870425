"""Bit operations of PTX: logic, shifts, bit fields, permutations, counts.

Each function takes arrays of the operand values and returns an array of results.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def _shl(a: Any, b: Any) -> Any:
    width = 8 * a.dtype.itemsize
    kept = np.where(b < width, b, 0).astype(a.dtype)
    return np.where(b < width, a << kept, a.dtype.type(0))


def _shr(a: Any, b: Any) -> Any:
    """Return a shifted right by b bits: arithmetic for a signed type, logical for an unsigned one."""
    width = 8 * a.dtype.itemsize
    if a.dtype.kind == "i":
        return a >> np.minimum(b, width - 1).astype(a.dtype)
    kept = np.where(b < width, b, 0).astype(a.dtype)
    return np.where(b < width, a >> kept, a.dtype.type(0))


def _lop3(a: Any, b: Any, c: Any, table: Any) -> Any:
    out = np.zeros_like(a)
    for row in range(8):
        if int(table) >> row & 1:
            terms = [v if row >> (2 - i) & 1 else ~v for i, v in enumerate((a, b, c))]
            out = out | (terms[0] & terms[1] & terms[2])
    return out


def _funnel(left: bool, wraps: bool) -> Callable[..., Any]:
    def shift(low: Any, high: Any, amount: Any) -> Any:
        n = (amount & 31 if wraps else np.minimum(amount, 32)).astype(np.uint64)
        both = (high.astype(np.uint64) << np.uint64(32)) | low.astype(np.uint64)
        moved = (both << n) >> np.uint64(32) if left else both >> n
        return moved.astype(np.uint32)

    return shift


def _prmt(a: Any, b: Any, selector: Any) -> Any:
    both = (b.astype(np.uint64) << np.uint64(32)) | a.astype(np.uint64)
    out = np.uint32(0)
    for i in range(4):
        choice = (selector >> np.uint32(4 * i)).astype(np.uint64)
        byte = (both >> ((choice & np.uint64(7)) * np.uint64(8))) & np.uint64(0xFF)
        sign = np.where(byte >> np.uint64(7), np.uint64(0xFF), np.uint64(0))
        picked = np.where(choice & np.uint64(8), sign, byte).astype(np.uint32)
        out = out | (picked << np.uint32(8 * i))
    return out


def _bfe(a: Any, start: Any, length: Any) -> Any:
    width = 8 * a.dtype.itemsize
    wide = a.astype(object)
    at, count = (np.asarray(v & 0xFF).astype(object) for v in (start, length))

    def field(value: int, at: int, count: int) -> int:
        unsigned = value & ((1 << width) - 1)
        if a.dtype.kind == "u" or count == 0:
            return (unsigned >> at) & ((1 << count) - 1)
        sign = unsigned >> min(at + count - 1, width - 1) & 1
        kept = max(0, min(count, width - at))
        low = (unsigned >> at) & ((1 << kept) - 1)
        return low - (1 << kept) if sign else low

    return np.frompyfunc(field, 3, 1)(wide, at, count).astype(a.dtype)


def _bfi(a: Any, b: Any, start: Any, length: Any) -> Any:
    width = 8 * a.dtype.itemsize

    def insert(value: int, into: int, at: int, count: int) -> int:
        mask = ((1 << (count & 0xFF)) - 1) << (at & 0xFF) & ((1 << width) - 1)
        return (into & ~mask) | (value << (at & 0xFF) & mask)

    parts = [np.asarray(v).astype(object) for v in (a, b, start, length)]
    return np.frompyfunc(insert, 4, 1)(*parts).astype(a.dtype)


_ONES = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1, dtype=np.uint32)


def _popc(a: Any) -> Any:
    whole = np.atleast_1d(a)
    return _ONES[np.ascontiguousarray(whole).view(np.uint8).reshape(len(whole), -1)].sum(1, dtype=np.uint32)


def _brev(a: Any) -> Any:
    out = np.zeros_like(a)
    for i in range(8 * a.dtype.itemsize):
        out = (out << a.dtype.type(1)) | ((a >> a.dtype.type(i)) & a.dtype.type(1))
    return out


def _clz(a: Any) -> Any:
    width = 8 * a.dtype.itemsize
    smeared = a
    for shift in (1, 2, 4, 8, 16, 32):
        if shift < width:
            smeared = smeared | (smeared >> a.dtype.type(shift))
    return np.uint32(width) - _popc(smeared)


_PLAIN: dict[str, Callable[..., Any]] = {
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "not": lambda a: ~a,
}

# By (opcode with its modifiers, type).
BIT_OPERATIONS: dict[tuple[str, str], Callable[..., Any]] = {
    **{(name, kind): f for name, f in _PLAIN.items() for kind in ("pred", "b16", "b32", "b64")},
    **{("shl", kind): _shl for kind in ("b16", "b32", "b64")},
    **{("shr", sign + width): _shr for sign in "bus" for width in ("16", "32", "64")},
    **{("bfe", sign + width): _bfe for sign in "us" for width in ("32", "64")},
    **{("bfi", kind): _bfi for kind in ("b32", "b64")},
    **{(f"shf.{to}.{how}", "b32"): _funnel(to == "l", how == "wrap") for to in "lr" for how in ("wrap", "clamp")},
    ("lop3", "b32"): _lop3,
    ("prmt", "b32"): _prmt,
    ("popc", "b32"): _popc,
    ("popc", "b64"): _popc,
    ("brev", "b32"): _brev,
    ("brev", "b64"): _brev,
    ("clz", "b32"): _clz,
    ("clz", "b64"): _clz,
}
