"""Minimum, maximum and comparison for integers, numpy arrays and traced values, so that formulas serve all three.

The tile scheduler computes with Python integers on the host, with arrays in the analysis, and with traced values in a
kernel. Operators work on all of them; the functions of `Arithmetic` differ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


def ceil_div(a: Any, b: Any) -> Any:
    """Return a / b, rounded up. It uses operators only, so that traced values may have different widths.

    >>> ceil_div(7, 2), ceil_div(np.array([6, 7]), 2).tolist()
    (4, [3, 4])
    """
    return (a + (b - 1)) // b


@dataclass(frozen=True)
class Arithmetic:
    """Minimum, maximum and rounded-up division of one kind of values: Python integers, numpy arrays, or kernel values.

    Formulas that are written with these functions serve the host, the analysis and the kernel.

    minimum    smaller of two values
    maximum    larger of two values
    ceil_div   quotient of two values, rounded up

    >>> INTEGERS.minimum(3, 5), INTEGERS.ceil_div(7, 2), ARRAYS.maximum(np.array([3, 5]), 4).tolist()
    (3, 4, [4, 5])
    """

    minimum: Callable[[Any, Any], Any] = min
    maximum: Callable[[Any, Any], Any] = max
    ceil_div: Callable[[Any, Any], Any] = ceil_div

    def is_below(self, value: Any, bound: Any) -> Any:
        """Return 1 if an integer is less than a bound, else 0, computed without a branch so that it works in a kernel.

        >>> [INTEGERS.is_below(value, 2) for value in range(4)], ARRAYS.is_below(np.arange(4), 2).tolist()
        ([1, 1, 0, 0], [1, 1, 0, 0])
        """
        return self.maximum(self.minimum(bound - value, 1), 0)


INTEGERS = Arithmetic()
ARRAYS = Arithmetic(np.minimum, np.maximum)
