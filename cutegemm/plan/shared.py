"""How a tile lies in shared memory."""

from __future__ import annotations

from typing import Union

from cutegemm.dtypes import DType
from cutegemm.layout import ComposedLayout, Layout, Swizzle
from cutegemm.machine.arch import SMEM_MAX_ALIGN_BYTES, SMEM_UNIT_BYTES

SharedLayout = Union[Layout, ComposedLayout]


def smem_align_bytes(dtype: DType, layout: SharedLayout) -> int:
    """What the base address of a buffer in shared memory is a multiple of: 128 bytes, or a swizzle's period.

    The hardware swizzles addresses; that is the plan's permutation of offsets where the buffer begins at a
    multiple of the period. No buffer can be aligned to more than 1024 bytes: under a longer period the
    elements of a row change places as those of another row should, which leaves bank conflicts as they are.

    >>> from cutegemm.dtypes import f16
    >>> smem_align_bytes(f16, ComposedLayout(Swizzle(3, 3, 3), 0, Layout((8, 64), (64, 1))))
    1024
    """
    if not isinstance(layout, ComposedLayout) or not isinstance(layout.inner, Swizzle):
        return SMEM_UNIT_BYTES
    swizzle = layout.inner
    period = 1 << (swizzle.base + swizzle.bits + abs(swizzle.shift))
    return min(SMEM_MAX_ALIGN_BYTES, max(SMEM_UNIT_BYTES, period * dtype.bits // 8))
