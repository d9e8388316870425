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


def search(
    number: int,
    run: tuple[int, int, int, int],
    count: int,
    bounds: Callable[[int], tuple[int, int]],
    numbers: Callable[[int], int],
) -> tuple[int, int, int, int]:
    """Return the run of consecutive numbers that contains a number.

    Runs follow each other without gaps; some are empty. A run is (index, first number, begin, size). `begin` and `size`
    are the caller's, and `numbers(size)` is the count of its numbers. An example is a group: index, first tile, first
    row, number of rows.

    number    the number that is looked up, at least the first number of `run`
    run       the run where the search begins
    count     number of runs. It is the index of the result if `number` is past the end of the last run; begin and size
              then have no meaning
    bounds    function from the index of a run to its begin and its size. It is also called for the index `count`
    numbers   function from the size of a run to the count of its numbers, which may be 0

    >>> sizes = (3, 0, 4, 0)  # the numbers 0 to 2, none, and 3 to 6
    >>> [search(number, (0, 0, 0, 3), 3, lambda i: (sum(sizes[:i]), sizes[i]), int) for number in (2, 3, 6, 7)]
    [(0, 0, 0, 3), (2, 3, 3, 4), (2, 3, 3, 4), (3, 7, 7, 0)]
    """
    index, first, begin, size = run
    while index < count and number >= first + numbers(size):
        first += numbers(size)
        index += 1
        begin, size = bounds(index)
    return index, first, begin, size


@dataclass(frozen=True)
class Arithmetic:
    """Minimum, maximum and divisions of one kind of values: Python integers, numpy arrays, or kernel values.

    Formulas that are written with these functions serve the host, the analysis and the kernel.

    minimum    smaller of two values
    maximum    larger of two values
    ceil_div   quotient of two values, rounded up
    search     function that finds the run of numbers that contains a number: see `search`; not for arrays
    divisors   function that converts positive integers to objects that a kernel divides by faster

    >>> INTEGERS.minimum(3, 5), INTEGERS.ceil_div(7, 2), ARRAYS.maximum(np.array([3, 5]), 4).tolist()
    (3, 4, [4, 5])
    """

    minimum: Callable[[Any, Any], Any] = min
    maximum: Callable[[Any, Any], Any] = max
    ceil_div: Callable[[Any, Any], Any] = ceil_div
    search: Callable[..., tuple[Any, Any, Any, Any]] = search
    divisors: Callable[[tuple[Any, ...]], tuple[Any, ...]] = tuple

    def is_below(self, value: Any, bound: Any) -> Any:
        """Return 1 if an integer is less than a bound, else 0, computed without a branch so that it works in a kernel.

        >>> [INTEGERS.is_below(value, 2) for value in range(4)], ARRAYS.is_below(np.arange(4), 2).tolist()
        ([1, 1, 0, 0], [1, 1, 0, 0])
        """
        return self.maximum(self.minimum(bound - value, 1), 0)


INTEGERS = Arithmetic()
ARRAYS = Arithmetic(np.minimum, np.maximum)
