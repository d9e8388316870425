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


def search(number: int, start: int, first: int, count: int, sizes: Callable[[int], int]) -> tuple[int, int]:
    """Return which run of consecutive numbers contains a number, and the first number of that run.

    number   the number that is looked up, at least `first`
    start    index of the run where the search begins
    first    first number of that run
    count    number of runs. It is returned as index if `number` is past the end of the last run
    sizes    function from the index of a run to the count of its numbers, which may be 0

    >>> runs = (3, 0, 4)  # the numbers 0 to 2, none, and 3 to 6
    >>> [search(number, 0, 0, 3, runs.__getitem__) for number in (2, 3, 6, 7)]
    [(0, 0), (2, 3), (2, 3), (3, 7)]
    """
    while start < count and number >= first + sizes(start):
        first += sizes(start)
        start += 1
    return start, first


@dataclass(frozen=True)
class Arithmetic:
    """Minimum, maximum and rounded-up division of one kind of values: Python integers, numpy arrays, or kernel values.

    Formulas that are written with these functions serve the host, the analysis and the kernel.

    minimum    smaller of two values
    maximum    larger of two values
    ceil_div   quotient of two values, rounded up
    search     function that finds the run of numbers that contains a number: see `search`; not for arrays

    >>> INTEGERS.minimum(3, 5), INTEGERS.ceil_div(7, 2), ARRAYS.maximum(np.array([3, 5]), 4).tolist()
    (3, 4, [4, 5])
    """

    minimum: Callable[[Any, Any], Any] = min
    maximum: Callable[[Any, Any], Any] = max
    ceil_div: Callable[[Any, Any], Any] = ceil_div
    search: Callable[..., tuple[Any, Any]] = search

    def is_below(self, value: Any, bound: Any) -> Any:
        """Return 1 if an integer is less than a bound, else 0, computed without a branch so that it works in a kernel.

        >>> [INTEGERS.is_below(value, 2) for value in range(4)], ARRAYS.is_below(np.arange(4), 2).tolist()
        ([1, 1, 0, 0], [1, 1, 0, 0])
        """
        return self.maximum(self.minimum(bound - value, 1), 0)


INTEGERS = Arithmetic()
ARRAYS = Arithmetic(np.minimum, np.maximum)
