"""wgmma in numpy: matrix descriptors of shared memory, fragments in registers, the product.

A descriptor says where the 16-byte units of an operand lie. With T elements to a unit, in units (PTX ISA,
"Shared Memory Matrix Layout" of wgmma; CuTe, mma_sm90_desc.hpp and mma_traits_sm90_gmma.hpp, "canonical layouts"):

| swizzle | K-major: (8, m) rows by 2 units of K | MN-major: (s, m) units of T rows by (8, k) of K |
|---------|--------------------------------------|-------------------------------------------------|
| none    | (1, SBO), LBO                        | (-, SBO), (1, LBO)                              |
| 32B     | (2, SBO), 1                          | (1, LBO), (2, SBO)                              |
| 64B     | (4, SBO), 1                          | (1, LBO), (4, SBO)                              |
| 128B    | (8, SBO), 1                          | (1, LBO), (8, SBO)                              |

s is 1, 2, 4 or 8 units: a row of the swizzle. The swizzle then permutes bits of the address itself, so a
descriptor may point into the middle of a row of the pattern.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from cutegemm.dtypes import DType, bf16, e4m3, e5m2, f16, f32, s8, s32, tf32
from cutegemm.emulator.hopper.faults import RuleViolation
from cutegemm.emulator.hopper.tensormap import UNIT_BYTES
from cutegemm.emulator.scalar import values_of
from cutegemm.emulator.state import WARP
from cutegemm.layout import Swizzle
from cutegemm.tile.mma_atoms import WGMMA_K_BITS, WGMMA_M

# Of the descriptor's two bits: the name of the swizzle, units in a row of it.
SWIZZLES = {0: ("none", 1), 1: ("128B", 8), 2: ("64B", 4), 3: ("32B", 2)}
DTYPES = {t.name: t for t in (bf16, f16, tf32, e4m3, e5m2, s8, f32, s32)}


@dataclass(frozen=True)
class Descriptor:
    """A matrix in shared memory.

    start, leading, stride   bytes; leading and stride are LBO and SBO above
    base_offset              rows of 128 bytes by which the start of the swizzle's pattern is off
    swizzle                  its two bits, see `SWIZZLES`

    >>> Descriptor.of(0x4000_0040_0001_0000 | 0x2000 >> 4)
    Descriptor(start=8192, leading=16, stride=1024, base_offset=0, swizzle=1)
    """

    start: int
    leading: int
    stride: int
    base_offset: int
    swizzle: int

    @staticmethod
    def of(bits: int) -> Descriptor:
        """From its 64 bits."""
        return Descriptor(
            (bits & 0x3FFF) << 4,
            (bits >> 16 & 0x3FFF) << 4,
            (bits >> 32 & 0x3FFF) << 4,
            bits >> 49 & 7,
            bits >> 62 & 3,
        )

    def units(self, rows: int, element_bits: int, mn_major: bool) -> np.ndarray:
        """Addresses of the operand's 16-byte units: (rows, 2) for K-major, (rows / T, K) for MN-major.

        rows     M or N of the instruction
        raises   RuleViolation where the pattern of the swizzle does not begin where it must
        """
        name, row_units = SWIZZLES[self.swizzle]
        pattern = row_units * 8 * UNIT_BYTES
        if row_units > 1 and self.start % pattern >> 7 != self.base_offset:
            raise RuleViolation(
                f"a matrix descriptor of the {name} swizzle starts at shared address {self.start:#x} with base offset "
                f"{self.base_offset}; its pattern of {pattern} bytes must begin at a multiple of that."
            )
        offsets = _offsets(rows, element_bits, mn_major, row_units, self.leading, self.stride)
        bytewise = Swizzle(row_units.bit_length() - 1, 4, 3)  # of 8 units a row: bits 4-6 ^= bits 7-9
        units: np.ndarray = bytewise(self.start + offsets)
        return units


@cache
def _offsets(rows: int, element_bits: int, mn_major: bool, row_units: int, leading: int, stride: int) -> np.ndarray:
    if not mn_major:
        row, unit = np.arange(rows)[:, None], np.arange(2)[None, :]
        along_k = leading if row_units == 1 else UNIT_BYTES
        return row % 8 * (row_units * UNIT_BYTES) + row // 8 * stride + unit * along_k
    per_unit = UNIT_BYTES * 8 // element_bits
    block, k = np.arange(rows // per_unit)[:, None], np.arange(WGMMA_K_BITS // element_bits)[None, :]
    far_rows, far_k = (stride, leading) if row_units == 1 else (leading, stride)
    near = block % row_units * UNIT_BYTES + block // row_units * far_rows
    return near + k % 8 * (row_units * UNIT_BYTES) + k // 8 * far_k


def matrix_of_units(units: np.ndarray, dtype: DType, mn_major: bool) -> np.ndarray:
    """(rows, K) of an operand's units of 16 bytes, uint8 (..., 2, 16) or (..., K, 16), as `Descriptor.units`."""
    values = values_of_bytes(units, dtype)
    if not mn_major:
        return values.reshape(values.shape[0], -1)
    return values.swapaxes(1, 2).reshape(-1, values.shape[1])


def values_of_bytes(raw: np.ndarray, dtype: DType) -> np.ndarray:
    """Elements of bytes (..., n): float32, or int32 for s8. What wgmma ignores of a tf32 is cut off.

    >>> values_of_bytes(np.array([0x80, 0x3F], np.uint8), bf16).tolist()
    [1.0]
    """
    bits = np.ascontiguousarray(raw).view(f"u{dtype.bits // 8}")
    if dtype is tf32:
        bits = bits & np.uint32(0xFFFFE000)
    return values_of(dtype, bits).astype(np.int32 if dtype is s8 else np.float32, copy=False)


@dataclass(frozen=True)
class Shape:
    """A wgmma by its opcode.

    a, b, d     element types
    saturates   of int32 sums: clamped instead of wrapped
    """

    n: int
    k: int
    a: DType
    b: DType
    d: DType
    saturates: bool

    @staticmethod
    def of(parts: tuple[str, ...]) -> Shape:
        """Of `wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16`, split at the dots.

        raises   RuleViolation for one that is not carried out here

        >>> Shape.of(tuple("wgmma.mma_async.sync.aligned.m64n8k32.satfinite.s32.s8.s8".split(".")))
        Shape(n=8, k=32, a=s8, b=s8, d=s32, saturates=True)
        """
        shape = next((part for part in parts if part.startswith("m64n")), "")
        d, a, b = parts[-3:]
        if not shape or not {d, a, b} <= set(DTYPES) or "sp" in parts:
            raise RuleViolation(f"{'.'.join(parts)} is not carried out here.")
        n, k = (int(text) for text in shape.removeprefix("m64n").split("k"))
        if k * DTYPES[a].bits != WGMMA_K_BITS or n % 8 or not 8 <= n <= 256:
            raise RuleViolation(f"{'.'.join(parts)}: there is no such shape.")
        return Shape(n, k, DTYPES[a], DTYPES[b], DTYPES[d], "satfinite" in parts)

    @property
    def registers(self) -> int:
        """Of 32 bits that a thread holds sums in."""
        return WGMMA_M * self.n // 128 * self.d.bits // 32

    def accumulators(self, registers: np.ndarray) -> np.ndarray:
        """(64, n) of the registers uint32 (128, count) of a warpgroup: float32 or int32."""
        values = registers.view({"f32": np.float32, "f16": np.float16, "s32": np.int32}[self.d.name])
        out = np.empty((WGMMA_M, self.n), values.dtype)
        rows, columns = _held(self.n)
        out[rows, columns] = values
        return out.astype(np.float32) if self.d is f16 else out

    def held(self, accumulators: np.ndarray) -> np.ndarray:
        """The inverse of `accumulators`: registers uint32 (128, count)."""
        rows, columns = _held(self.n)
        kind = {"f32": np.float32, "f16": np.float16, "s32": np.int32}[self.d.name]
        with np.errstate(over="ignore"):
            values = np.ascontiguousarray(accumulators[rows, columns].astype(kind))
        return values.view(np.uint32)

    def multiply(self, a: np.ndarray, b: np.ndarray, accumulators: np.ndarray | None) -> np.ndarray:
        """sums + a @ b.T for a (64, k), b (n, k): the products exact, added up in float64 and rounded once.

        The hardware keeps fewer bits on the way (of fp8 about 14), and its order is its own; the results are
        those of f32 sums to within their rounding.
        """
        if self.d is s32:
            total = a.astype(np.int64) @ b.T.astype(np.int64) + (0 if accumulators is None else accumulators)
            if self.saturates:
                total = np.clip(total, -(2**31), 2**31 - 1)
            return total.astype(np.int32)
        with np.errstate(invalid="ignore", over="ignore"):
            product = a.astype(np.float64) @ b.T.astype(np.float64)
            return (product if accumulators is None else product + accumulators).astype(np.float32)


@cache
def _held(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns (128, n / 2) of the values that a thread holds: PTX ISA, "wgmma.mma_async, register
    fragments of D": a warp has 16 rows, a lane two neighbours of row lane / 4, then those 8 rows below."""
    thread, value = np.arange(128)[:, None], np.arange(n // 2)[None, :]
    lane = thread % WARP
    rows = thread // WARP * 16 + lane // 4 + value // 2 % 2 * 8
    columns = value // 4 * 8 + lane % 4 * 2 + value % 2
    return rows, columns


def a_of_registers(registers: np.ndarray, dtype: DType) -> np.ndarray:
    """A (64, K) of a warpgroup's registers, uint32 (128, 4).

    Register r of a lane holds the 4 bytes at 4 * (lane % 4) + 16 * (r / 2) of row lane / 4 + 8 * (r % 2): PTX
    ISA, "wgmma.mma_async, register fragments of A".
    """
    raw = np.empty((WGMMA_M, 8), np.uint32)
    thread, register = np.arange(128)[:, None], np.arange(4)[None, :]
    lane = thread % WARP
    raw[thread // WARP * 16 + lane // 4 + register % 2 * 8, lane % 4 + register // 2 * 4] = registers
    return values_of_bytes(raw.view(np.uint8), dtype)
