"""Buffers in shared memory, and their alignment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

from cutegemm.dtypes import DType
from cutegemm.layout import ComposedLayout, Layout, Swizzle
from cutegemm.machine.arch import SMEM_MAX_ALIGN_BYTES, SMEM_UNIT_BYTES

SharedLayout = Union[Layout, ComposedLayout]


def smem_align_bytes(dtype: DType, layout: SharedLayout) -> int:
    """Return the alignment in bytes that a buffer in shared memory needs: 128, or the period of its swizzle if larger.

    Why: the hardware swizzles addresses, but the plan's layout swizzles offsets from the buffer's start. The two agree
    if the buffer starts at a multiple of the swizzle's period. The result is at most 1024, the largest alignment of
    shared memory. If the period is longer, rows may be permuted by the pattern of another row; the number of bank
    conflicts is the same.

    dtype    element type
    layout   layout of the buffer, in elements, with or without a swizzle

    >>> from cutegemm.dtypes import f16
    >>> smem_align_bytes(f16, ComposedLayout(Swizzle(3, 3, 3), 0, Layout((8, 64), (64, 1))))
    1024
    """
    if not isinstance(layout, ComposedLayout) or not isinstance(layout.inner, Swizzle):
        return SMEM_UNIT_BYTES
    swizzle = layout.inner
    period = 1 << (swizzle.base + swizzle.bits + abs(swizzle.shift))
    return min(SMEM_MAX_ALIGN_BYTES, max(SMEM_UNIT_BYTES, period * dtype.bits // 8))


@dataclass(frozen=True)
class Buffer:
    """A buffer in shared memory that a plan needs, such as the stages of A.

    name     name for reports, such as "a" or "d"
    dtype    element type
    layout   offset in elements of each (row, column, stage), perhaps with further modes
    tile     number of (rows, columns) that are written or read at a time
    """

    name: str
    dtype: DType
    layout: SharedLayout
    tile: tuple[int, int]

    @property
    def align_bytes(self) -> int:
        """Return the alignment in bytes that this buffer needs: 128, or the period of its swizzle if that is larger."""
        return smem_align_bytes(self.dtype, self.layout)

    @property
    def size_bytes(self) -> int:
        """Return the size of this buffer in bytes, from its first to its last element."""
        return self.layout.cosize() * self.dtype.bits // 8
