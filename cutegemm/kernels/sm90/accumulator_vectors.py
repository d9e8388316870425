"""Access to a consumer's accumulators as 16-byte vectors, the unit of their exchange between CTAs."""

from __future__ import annotations

import cutlass.cute as cute

from cutegemm.kernels.vectors import copy_vector
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.reduction import ACCUMULATOR_VECTOR
from cutegemm.tile.atoms import CopyAtom
from cutegemm.tile.copy_atoms import universal_copy


class AccumulatorVectors:
    """Moves a thread's accumulators in vectors and adds them, for Hopper kernels in which several CTAs split K.

    It is the base class of two ways to add K splits: through global memory, and through the shared memory of a cluster.
    The methods are plain Python that runs while the DSL traces the kernel.
    """

    def __init__(self, plan: GemmPlan) -> None:
        self.plan = plan

    @property
    def wide(self) -> CopyAtom:
        """Return the copy atom that moves one vector, `ACCUMULATOR_VECTOR` accumulators."""
        acc = self.plan.operands.acc
        return universal_copy(acc, acc.bits * ACCUMULATOR_VECTOR)

    def by_vectors(self, acc) -> cute.Tensor:
        """View a thread's accumulators with shape (elements of a vector, vectors)."""
        return cute.make_tensor(
            acc.iterator, cute.make_layout((ACCUMULATOR_VECTOR, cute.size(acc) // ACCUMULATOR_VECTOR))
        )

    def read(self, held, first, place) -> None:
        """Copy consecutive vectors of accumulators from memory to the registers `held`, as many as fit.

        held    registers (elements of a vector, vectors)
        first   index of the first vector of `place` that is copied
        place   a thread's accumulators in memory (elements of a vector, vectors)
        """
        for i in range(cute.size(held, mode=[1])):
            copy_vector(self.wide, place[None, first + i], held[None, i])

    def plus(self, accumulators, more) -> None:
        """Add the registers `more` to the registers `accumulators`, element by element."""
        for i in range(cute.size(accumulators)):
            accumulators[i] = accumulators[i] + more[i]
