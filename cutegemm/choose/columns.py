"""Columns: a number for each of many plans, by which a model of time predicts all of them at once."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np

Column = Any  # an array
LINES_AT_A_TIME = 64  # that slices of L2 deliver
_FOURTH = 4.0
_Some = TypeVar("_Some", bound="Columns")


class Columns:
    """What of many plans their time depends on: a dataclass of columns, with a row for each plan."""

    def taken(self: _Some, rows: Column) -> _Some:
        """Those of some rows."""
        return type(self)(*[column.take(rows) for column in vars(self).values()])

    def joined(self: _Some, *others: _Some) -> _Some:
        """These, and the rows of others behind them."""
        every = [vars(one).values() for one in (self, *others)]
        return type(self)(*[np.concatenate(columns) for columns in zip(*every, strict=True)])


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
