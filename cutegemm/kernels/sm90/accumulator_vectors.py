"""A consumer's sums as vectors of 16 bytes, as they go to other CTAs and come from there."""

from __future__ import annotations

import cutlass.cute as cute

from cutegemm.kernels.vectors import copy_vector
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.reduction import ACCUMULATOR_VECTOR
from cutegemm.tile.atoms import CopyAtom
from cutegemm.tile.copy_atoms import universal_copy


class AccumulatorVectors:
    """Plain Python, run while tracing."""

    def __init__(self, plan: GemmPlan) -> None:
        self.plan = plan

    @property
    def wide(self) -> CopyAtom:
        """An access to a vector of sums."""
        acc = self.plan.operands.acc
        return universal_copy(acc, acc.bits * ACCUMULATOR_VECTOR)

    def by_vectors(self, acc) -> cute.Tensor:
        """A thread's sums as (vector, vectors)."""
        return cute.make_tensor(
            acc.iterator, cute.make_layout((ACCUMULATOR_VECTOR, cute.size(acc) // ACCUMULATOR_VECTOR))
        )

    def read(self, held, first, place) -> None:
        """Vectors of what lies at a place, from the `first` on."""
        for i in range(cute.size(held, mode=[1])):
            copy_vector(self.wide, place[None, first + i], held[None, i])

    def plus(self, accumulators, more) -> None:
        """sums += more, register by register."""
        for i in range(cute.size(accumulators)):
            accumulators[i] = accumulators[i] + more[i]
