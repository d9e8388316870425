"""What boxes of TMA touch in L2, where rows of a matrix begin at lines and where they do not."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from cutegemm.machine.arch import CACHE_LINE_BYTES, SECTOR_BYTES

# Of the second halves of lines, that are looked up where rows begin at lines: boxes of both come one behind the other.
_SECOND_HALVES = 0.4
WIDTHS_BYTES = CACHE_LINE_BYTES, CACHE_LINE_BYTES // 2, CACHE_LINE_BYTES // 4  # of the rows of a box


def touched(step_bytes: int) -> tuple[tuple[float, float], ...]:
    """Lines, and sectors in fours, that boxes touch for each 128 bytes of their rows, on the mean; by `WIDTHS_BYTES`.

    step_bytes   from one row of the matrix to the next

    >>> touched(256)[:2], touched(10000)[:2]
    (((1.0, 1.0), (1.4, 1.0)), ((1.875, 1.125), (2.75, 1.25)))
    """
    return _touched(math.gcd(step_bytes, CACHE_LINE_BYTES))


@lru_cache(maxsize=8)
def _touched(step: int) -> tuple[tuple[float, float], ...]:
    """Of rows that begin at each multiple of so many bytes alike."""
    found = []
    for width in WIDTHS_BYTES:
        boxes = np.arange(0, CACHE_LINE_BYTES, width)
        first = np.add.outer(np.arange(0, CACHE_LINE_BYTES, step), boxes)
        last = first + width - 1
        lines, sectors = [
            (last // unit - first // unit + 1).mean() for unit in (CACHE_LINE_BYTES, SECTOR_BYTES)
        ]
        in_line = CACHE_LINE_BYTES // width
        if step == CACHE_LINE_BYTES and in_line == 2:
            lines = (1 + _SECOND_HALVES) / 2
        found.append((float(lines) * in_line, float(sectors) * in_line * SECTOR_BYTES / CACHE_LINE_BYTES))
    return tuple(found)
