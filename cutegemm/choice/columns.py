"""Columns: a number for each of many plans, by which a model of time predicts all of them at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from cutegemm.machine.device import Device
from cutegemm.plan.problem import Operands

Column = Any  # an array
_FOURTH = 4.0


def of_rows(column: Column, rows: Column) -> Column:
    """Those of some rows; a number is that of each.

    >>> of_rows(np.array([1, 2, 3]), np.array([2, 2])), of_rows(5, np.array([2]))
    (array([3, 3]), 5)
    """
    return column.take(rows) if isinstance(column, np.ndarray) else column


def partials_us(bm: Column, bn: Column, operands: Operands, device: Device) -> Column:
    """To write the sums of a part of a tile of bm x bn, and to read them, at the rate of the device."""
    moved_bytes = 2 * bm * bn * operands.acc.bits / 8
    return moved_bytes / (device.measured.partials_gb_s * 1e3)


def by_time(us: Column) -> Iterator[int]:
    """Numbers of rows, the one that takes the least time first: most often no other is asked for.

    >>> list(by_time(np.array([3.0, 1.0, 2.0])))
    [1, 2, 0]
    """
    if len(us):
        yield int(us.argmin())
        yield from np.argsort(us, kind="stable")[1:].tolist()


def together(exponent: float, *us: Column) -> Column:
    """The slowest of some that go on at the same time, and a little more where another is near it.

    >>> together(2.0, 3.0, 4.0), round(together(4.0, 3.0, 4.0), 2)
    (5.0, 4.28)
    """
    # Squares are several times as fast as other powers
    if isinstance(exponent, float) and exponent == _FOURTH:
        return together(2.0, *[one * one for one in us]) ** 0.5
    total = us[0] ** exponent
    for one in us[1:]:
        total = total + one**exponent
    return total ** (1 / exponent)
