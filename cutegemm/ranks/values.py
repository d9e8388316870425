"""Values of a schedule: random operands, what its steps compute, and how far D may be from the exact result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cutegemm.dtypes import round_to
from cutegemm.ranks.reduce import MOST_ADDS
from cutegemm.ranks.schedule import INPUT, OUTPUT, Schedule


@dataclass(frozen=True)
class Values:
    """Supplies the operands of a call, and checks its results. All arrays are float32 or float64 of two modes.

    schedule   the schedule that is called
    x          operand of each rank, of the shape of the buffer "x"
    weights    weights of each rank, of shape (k, n). They are those of all ranks in an all-gather, and a rank's share
               of K otherwise
    """

    schedule: Schedule
    x: tuple[np.ndarray, ...]
    weights: tuple[np.ndarray, ...]

    @staticmethod
    def random(schedule: Schedule, seed: int = 0) -> Values:
        """Return normally distributed operands, rounded to their element type."""
        rng = np.random.default_rng(seed)
        buffer = schedule.buffer(INPUT)

        def matrices(rows: int, columns: int) -> tuple[np.ndarray, ...]:
            return tuple([round_to(buffer.dtype, rng.standard_normal((rows, columns))) for _ in range(schedule.ranks)])

        return Values(schedule, matrices(buffer.rows, buffer.columns), matrices(schedule.k, schedule.n))

    def multiplied(self, rank: int, a: np.ndarray, adds: Sequence[np.ndarray] = ()) -> np.ndarray:
        """Return rows of A times the weights of a rank, plus some partial results, as float32.

        adds   partial results, which are added in f32 in this order
        """
        return added([(a.astype(np.float64) @ self.weights[rank]).astype(np.float32), *adds])

    def exact(self, rank: int) -> np.ndarray:
        """Return D of a rank, in float64."""
        return np.asarray(self._products(rank).sum(axis=0))

    def bound(self, rank: int) -> np.ndarray:
        """Return the largest error of each element of D of a rank; see `cutegemm.ranks.reduce_scatter`."""
        products = self._products(rank)
        unit = 0.5 ** (self.schedule.buffer(OUTPUT).dtype.mantissa_bits + 1)
        of_f32 = 2.0**-22 * len(products) * np.abs(products).sum(axis=0)
        partials = self._roundings * np.abs(products).max(axis=0)
        # The result itself is off by the errors before it is rounded
        before = unit * partials + of_f32
        return np.asarray(before + unit * (np.abs(products.sum(axis=0)) + before))

    @property
    def _roundings(self) -> int:
        """Roundings before the last one, each of at most the largest product of a rank."""
        ranks, operation = self.schedule.ranks, self.schedule.operation
        if operation == "all_gather":
            return 0
        if self.schedule.form != "by_shard":
            return ranks
        return ranks - 1 if ranks - 1 <= MOST_ADDS else ranks + MOST_ADDS

    def _products(self, rank: int) -> np.ndarray:
        """Return the exact products whose sum is D of a rank, in float64: an array (products, rows, n)."""
        x, schedule = self.x, self.schedule
        if schedule.operation == "all_gather":
            return (np.concatenate(x).astype(np.float64) @ self.weights[rank])[None]
        first, rows = (0, schedule.m) if schedule.operation == "all_reduce" else schedule.shard(rank)
        own = slice(first, first + rows)
        return np.stack([a[own].astype(np.float64) @ w for a, w in zip(x, self.weights, strict=True)])


def added(terms: Sequence[np.ndarray]) -> np.ndarray:
    """Return the sum of arrays of one shape, added in f32 from the first to the last.

    >>> added([np.array([1.0]), np.array([2.0**-24]), np.array([2.0**-24])]).tolist()
    [1.0]
    """
    total = terms[0].astype(np.float32)
    for term in terms[1:]:
        total = total + term.astype(np.float32)
    return total
