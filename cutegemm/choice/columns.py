"""Columns: arrays with one number for each of many plans, so that a time model predicts all plans at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from cutegemm.machine.device import Device
from cutegemm.plan.problem import Operands

Column = Any  # a numpy array, or a number that holds for all plans
_FOURTH = 4.0


def of_rows(column: Column, rows: Column) -> Column:
    """Select plans: return `column[rows]`, or `column` itself if it is one number that holds for all plans.

    column   array with one entry per plan, or a number that holds for all plans
    rows     indices of plans; an index may occur several times

    >>> of_rows(np.array([1, 2, 3]), np.array([2, 2])), of_rows(5, np.array([2]))
    (array([3, 3]), 5)
    """
    return column.take(rows) if isinstance(column, np.ndarray) else column


def partials_us(bm: Column, bn: Column, operands: Operands, device: Device) -> Column:
    """Return the microseconds to write the accumulators of one K split of a tile to L2, and to read them again.

    bm, bn     rows and columns of the tile of D, as arrays with one entry per plan
    operands   operands whose types determine the type of an accumulator
    device     device whose bandwidth counts
    returns    array with one entry per plan
    """
    moved_bytes = 2 * bm * bn * operands.acc.bits / 8
    return moved_bytes / (device.measured.partials_gb_s * 1e3)


def by_time(us: Column) -> Iterator[int]:
    """Yield the indices of `us` (predicted times, one per plan) from the shortest to the longest time.

    The first index is found without sorting, because most callers need only the fastest plan.

    >>> list(by_time(np.array([3.0, 1.0, 2.0])))
    [1, 2, 0]
    """
    if len(us):
        yield int(us.argmin())
        yield from np.argsort(us, kind="stable")[1:].tolist()


def together(exponent: float, *us: Column) -> Column:
    """Return the predicted time of activities that partly overlap: the p-norm of their times, (sum of us**p)**(1/p).

    The result is at least the longest time, and at most the sum of all.

    exponent   p: 1 means no overlap; the larger, the more the shorter activities are hidden
    us         time of each activity in microseconds, one argument per activity

    >>> together(2.0, 3.0, 4.0), round(together(4.0, 3.0, 4.0), 2)
    (5.0, 4.28)
    """
    # Squares and roots are computed several times as fast as other powers
    if isinstance(exponent, float) and exponent == _FOURTH:
        return together(2.0, *[one * one for one in us]) ** 0.5
    total = us[0] ** exponent
    for one in us[1:]:
        total = total + one**exponent
    return total ** (1 / exponent)
