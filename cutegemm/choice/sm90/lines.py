"""Cache lines that TMA boxes touch in L2, for rows of a matrix that begin at a line, and for other rows."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from cutegemm.choice.columns import Column
from cutegemm.machine.arch import CACHE_LINE_BYTES

# Boxes of half a line: share of the second halves that L2 looks up again, although a box has just loaded the first
# half.
_SECOND_HALVES = 0.4
WIDTHS_BYTES = CACHE_LINE_BYTES, CACHE_LINE_BYTES // 2, CACHE_LINE_BYTES // 4  # widths of a box


def touched(step_bytes: Column) -> tuple[Column, ...]:
    """Return how many cache lines TMA boxes touch on average per 128 bytes of a row, by the width of the box.

    step_bytes   stride of the rows of the matrix, in bytes; or an array of strides
    returns      one number (or array) for each width of a box, 128, 64 and 32 bytes: 1 if each row of a box is exactly
                 one line, more for narrower boxes and for rows that are not aligned to lines

    >>> touched(256)[:2], touched(10000)[:2]
    ((1.0, 1.4), (1.875, 2.75))
    """
    if not isinstance(step_bytes, np.ndarray):
        return _touched(math.gcd(step_bytes, CACHE_LINE_BYTES))
    steps, places = np.unique(np.gcd(step_bytes, CACHE_LINE_BYTES), return_inverse=True)
    by_step = np.array([_touched(int(step)) for step in steps])  # (steps, widths)
    return tuple(by_step[places.reshape(step_bytes.shape)].transpose(2, 0, 1))


@lru_cache(maxsize=8)
def _touched(step: int) -> tuple[float, ...]:
    """Return how many cache lines TMA boxes touch on average per 128 bytes of a row, by the width of the box.

    Rows begin equally often at each multiple of `step` within a cache line. A box that begins inside a line touches one
    line more than one that begins at a line.

    step   bytes; a divisor of the size of a cache line
    """
    means = []
    for width in WIDTHS_BYTES:
        in_line = CACHE_LINE_BYTES // width
        first = np.add.outer(np.arange(0, CACHE_LINE_BYTES, step), np.arange(0, CACHE_LINE_BYTES, width))
        lines = ((first + width - 1) // CACHE_LINE_BYTES - first // CACHE_LINE_BYTES + 1).mean()
        if step == CACHE_LINE_BYTES and in_line == 2:
            lines = (1 + _SECOND_HALVES) / 2
        means.append(float(lines) * in_line)
    return tuple(means)
