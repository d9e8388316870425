"""wgmma in numpy: matrix descriptors of shared memory, register fragments, and the multiplication.

A descriptor locates the 16-byte units of an operand. The table gives the strides of these modes in units, where a unit
has T elements and a row of the swizzle has s = 1, 2, 4 or 8 units:

| swizzle | K-major: (8, m) rows by 2 units of K | MN-major: (s, m) units of T rows by (8, k) of K |
|---------|--------------------------------------|-------------------------------------------------|
| none    | (1, SBO), LBO                        | (-, SBO), (1, LBO)                              |
| 32B     | (2, SBO), 1                          | (1, LBO), (2, SBO)                              |
| 64B     | (4, SBO), 1                          | (1, LBO), (4, SBO)                              |
| 128B    | (8, SBO), 1                          | (1, LBO), (8, SBO)                              |

The swizzle then permutes bits of the address, so a descriptor may point into the middle of a row of its pattern.

source   PTX ISA, "Shared Memory Matrix Layout" of wgmma; CuTe, mma_sm90_desc.hpp and mma_traits_sm90_gmma.hpp,
         "canonical layouts"
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

# By the two swizzle bits of a descriptor: name of the swizzle, units in a row of its pattern.
SWIZZLES = {0: ("none", 1), 1: ("128B", 8), 2: ("64B", 4), 3: ("32B", 2)}
DTYPES = {t.name: t for t in (bf16, f16, tf32, e4m3, e5m2, s8, f32, s32)}


@dataclass(frozen=True)
class Descriptor:
    """The decoded matrix descriptor of a wgmma operand in shared memory.

    start         address in bytes
    leading       leading byte offset (LBO), in bytes
    stride        stride byte offset (SBO), in bytes
    base_offset   number of 128-byte rows from the start of the swizzle's pattern to `start`
    swizzle       the two swizzle bits, a key of `SWIZZLES`

    >>> Descriptor.decode(0x4000_0040_0001_0000 | 0x2000 >> 4)
    Descriptor(start=8192, leading=16, stride=1024, base_offset=0, swizzle=1)
    """

    start: int
    leading: int
    stride: int
    base_offset: int
    swizzle: int

    @staticmethod
    def decode(bits: int) -> Descriptor:
        """Decode the 64 bits of a wgmma matrix descriptor."""
        return Descriptor(
            (bits & 0x3FFF) << 4,
            (bits >> 16 & 0x3FFF) << 4,
            (bits >> 32 & 0x3FFF) << 4,
            bits >> 49 & 7,
            bits >> 62 & 3,
        )

    def units(self, rows: int, element_bits: int, mn_major: bool) -> np.ndarray:
        """Return the shared-memory addresses of the operand's 16-byte units, with the swizzle applied.

        rows           M or N of the instruction
        element_bits   bits of an element
        mn_major       whether the operand is M- or N-major, not K-major
        returns        (rows, 2) for a K-major operand, (rows / T, K) for an MN-major one, with T elements in a unit
        raises         RuleViolation if the pattern of the swizzle is not aligned to its size
        """
        name, row_units = SWIZZLES[self.swizzle]
        pattern = row_units * 8 * UNIT_BYTES
        if row_units > 1 and self.start % pattern >> 7 != self.base_offset:
            raise RuleViolation(
                f"a matrix descriptor of the {name} swizzle starts at shared address {self.start:#x} with base offset "
                f"{self.base_offset}; its pattern of {pattern} bytes must begin at a multiple of its size."
            )
        offsets = _offsets(rows, element_bits, mn_major, row_units, self.leading, self.stride)
        bytewise = Swizzle(row_units.bit_length() - 1, 4, 3)  # with 8 units in a row: bits 4-6 ^= bits 7-9
        units: np.ndarray = bytewise(self.start + offsets)
        return units


@cache
def _offsets(rows: int, element_bits: int, mn_major: bool, row_units: int, leading: int, stride: int) -> np.ndarray:
    """Return the byte offsets of the 16-byte units of a wgmma operand, before the swizzle is applied.

    rows              M or N
    element_bits      bits of an element
    mn_major          whether the operand is M- or N-major, not K-major
    row_units         16-byte units in a row of the swizzle's pattern
    leading, stride   leading and stride byte offset of the descriptor
    returns           (rows, 2) for a K-major operand, (rows / T, K) for an MN-major one, with T elements in a unit
    """
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
    """Assemble the matrix (rows, K) of a wgmma operand from its 16-byte units, in the order of `Descriptor.units`.

    units      uint8 (rows, 2, 16) for K-major, (rows / T, K, 16) for MN-major, with T elements in a unit
    dtype      element type of the units
    mn_major   whether the operand is M- or N-major, not K-major
    """
    values = values_of_bytes(units, dtype)
    if not mn_major:
        return values.reshape(values.shape[0], -1)
    return values.swapaxes(1, 2).reshape(-1, values.shape[1])


def values_of_bytes(raw: np.ndarray, dtype: DType) -> np.ndarray:
    """Convert bytes (..., n) to elements as wgmma reads them: float32, or int32 for s8.

    The low bits of a tf32 word, which wgmma ignores, are cleared.

    raw     uint8
    dtype   element type that the bytes encode

    >>> values_of_bytes(np.array([0x80, 0x3F], np.uint8), bf16).tolist()
    [1.0]
    """
    bits = np.ascontiguousarray(raw).view(f"u{dtype.bits // 8}")
    if dtype is tf32:
        bits = bits & np.uint32(0xFFFFE000)
    return values_of(dtype, bits).astype(np.int32 if dtype is s8 else np.float32, copy=False)


@dataclass(frozen=True)
class Shape:
    """The shape and element types of a wgmma instruction. M is always 64.

    n, k        extents of the instruction
    a, b, d     element types
    saturates   whether int32 accumulators are clamped instead of wrapped
    """

    n: int
    k: int
    a: DType
    b: DType
    d: DType
    saturates: bool

    @staticmethod
    def parse(parts: tuple[str, ...]) -> Shape:
        """Parse the opcode of a wgmma instruction into its shape and element types.

        parts    the opcode split at the dots: ("wgmma", "mma_async", ..., "m64n128k16", "f32", "bf16", "bf16")
        raises   RuleViolation for an opcode that is not implemented or not valid

        >>> Shape.parse(tuple("wgmma.mma_async.sync.aligned.m64n8k32.satfinite.s32.s8.s8".split(".")))
        Shape(n=8, k=32, a=s8, b=s8, d=s32, saturates=True)
        """
        shape = next((part for part in parts if part.startswith("m64n")), "")
        d, a, b = parts[-3:]
        if not shape or not {d, a, b} <= set(DTYPES) or "sp" in parts:
            raise RuleViolation(f"the emulator does not implement {'.'.join(parts)}.")
        n, k = (int(text) for text in shape.removeprefix("m64n").split("k"))
        if k * DTYPES[a].bits != WGMMA_K_BITS or n % 8 or not 8 <= n <= 256:
            raise RuleViolation(f"{'.'.join(parts)}: wgmma does not have this shape.")
        return Shape(n, k, DTYPES[a], DTYPES[b], DTYPES[d], "satfinite" in parts)

    @property
    def registers(self) -> int:
        """Return the number of 32-bit accumulator registers of each thread for this wgmma shape."""
        return WGMMA_M * self.n // 128 * self.d.bits // 32

    def from_registers(self, registers: np.ndarray) -> np.ndarray:
        """Assemble the accumulator (64, n) from the registers of a warpgroup, as float32 or int32.

        registers   uint32 (128, count), one row for each thread
        """
        values = registers.view({"f32": np.float32, "f16": np.float16, "s32": np.int32}[self.d.name])
        out = np.empty((WGMMA_M, self.n), values.dtype)
        rows, columns = _fragment(self.n)
        out[rows, columns] = values
        return out.astype(np.float32) if self.d is f16 else out

    def to_registers(self, accumulators: np.ndarray) -> np.ndarray:
        """Distribute an accumulator (64, n) over the registers of a warpgroup: uint32 (128 threads, registers)."""
        rows, columns = _fragment(self.n)
        kind = {"f32": np.float32, "f16": np.float16, "s32": np.int32}[self.d.name]
        with np.errstate(over="ignore"):
            values = np.ascontiguousarray(accumulators[rows, columns].astype(kind))
        return values.view(np.uint32)

    def multiply(self, a: np.ndarray, b: np.ndarray, accumulators: np.ndarray | None) -> np.ndarray:
        """Compute one wgmma: a @ b.T + accumulators, in float64, rounded once.

        The hardware keeps fewer bits of the partial sums (about 14 for fp8) and adds in its own order. The results
        differ by the rounding of f32 accumulation.

        a              (64, k)
        b              (n, k)
        accumulators   (64, n); None for zero
        returns        (64, n)
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
def _fragment(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (rows, columns) in D of the accumulator elements of each thread of a wgmma, each of shape (128, n / 2).

    A warp has 16 rows. Of every 8 columns, a lane has two adjacent elements of row lane / 4 and two of the row 8 below.

    source   PTX ISA, "wgmma.mma_async, register fragments of D"
    """
    thread, value = np.arange(128)[:, None], np.arange(n // 2)[None, :]
    lane = thread % WARP
    rows = thread // WARP * 16 + lane // 4 + value // 2 % 2 * 8
    columns = value // 4 * 8 + lane % 4 * 2 + value % 2
    return rows, columns


def a_of_registers(registers: np.ndarray, dtype: DType) -> np.ndarray:
    """Assemble A (64, K) of a wgmma from the registers of a warpgroup, uint32 (128, 4).

    Register r of a lane holds the 4 bytes at 4 * (lane % 4) + 16 * (r / 2) of row lane / 4 + 8 * (r % 2).

    dtype    element type of A
    source   PTX ISA, "wgmma.mma_async, register fragments of A"
    """
    raw = np.empty((WGMMA_M, 8), np.uint32)
    thread, register = np.arange(128)[:, None], np.arange(4)[None, :]
    lane = thread % WARP
    raw[thread // WARP * 16 + lane // 4 + register % 2 * 8, lane % 4 + register // 2 * 4] = registers
    return values_of_bytes(raw.view(np.uint8), dtype)
