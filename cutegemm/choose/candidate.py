"""What a choice is made among, and what is predicted of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from cutegemm.choose.columns import Column
from cutegemm.choose.recipe import Recipe


@dataclass(frozen=True)
class Candidate:
    """A plan among which there is a choice.

    us           microseconds that the model of its family predicts, packing included
    find_bound   finds what takes most of them, which nobody asks for who chooses
    """

    recipe: Recipe
    us: float
    find_bound: Callable[[], str] = field(compare=False, repr=False)

    @property
    def bound(self) -> str:
        """What takes most of the time."""
        return self.find_bound()


@dataclass(frozen=True)
class Predicted:
    """Columns of what a model of time says.

    us       microseconds behind a flush of the L2 cache, beside what packing takes; infinitely many of a plan that
             the device cannot run
    bounds   when it is called: by what bounds a plan, the microseconds that it would take by itself; a number is that
             of each
    """

    us: Column
    bounds: Callable[[], dict[str, Column]]

    def bound(self, row: int) -> str:
        """What a plan takes most of its time for.

        >>> Predicted([3.0, 5.0], lambda: {"L2": [2, 1], "DRAM": [1, 4]}).bound(1)
        'DRAM'
        """
        of_row = {name: us[row] if np.ndim(us) else us for name, us in self.bounds().items()}
        return max(of_row, key=of_row.__getitem__)
