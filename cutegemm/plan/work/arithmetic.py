"""What arithmetic of work needs besides operators, for which integers, numpy arrays and values that a kernel computes
with have functions of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


def ceil_div(a: Any, b: Any) -> Any:
    """The quotient of two values, rounded up: by operators alone, so that traced ones may be of two widths.

    >>> ceil_div(7, 2), ceil_div(np.array([6, 7]), 2).tolist()
    (4, [3, 4])
    """
    return (a + (b - 1)) // b


@dataclass(frozen=True)
class Arithmetic:
    """Functions that integers, arrays and traced values have of their own.

    minimum, maximum   of two values
    ceil_div           the quotient of two values, rounded up

    >>> INTEGERS.minimum(3, 5), INTEGERS.ceil_div(7, 2), ARRAYS.maximum(np.array([3, 5]), 4).tolist()
    (3, 4, [4, 5])
    """

    minimum: Callable[[Any, Any], Any] = min
    maximum: Callable[[Any, Any], Any] = max
    ceil_div: Callable[[Any, Any], Any] = ceil_div

    def is_below(self, value: Any, bound: Any) -> Any:
        """1 where a value is less than a bound, else 0: a comparison without a branch.

        >>> [INTEGERS.is_below(value, 2) for value in range(4)], ARRAYS.is_below(np.arange(4), 2).tolist()
        ([1, 1, 0, 0], [1, 1, 0, 0])
        """
        return self.maximum(self.minimum(bound - value, 1), 0)


INTEGERS = Arithmetic()
ARRAYS = Arithmetic(np.minimum, np.maximum)
