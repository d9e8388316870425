"""Store a consumer's tile of D to global memory: the base class of the kernels of each store.

The expression of the epilogue is applied on the way; see `kernels.values`. The plan's program determines the order
of the steps and the barriers between them; see `plan.program.roles`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import cutlass.cute as cute

from cutegemm.errors import UnsupportedError
from cutegemm.kernels import lower
from cutegemm.kernels.reduce import Folds
from cutegemm.kernels.sm90.own_tile import OwnTile
from cutegemm.kernels.trace import Who
from cutegemm.kernels.values import Values, store_as_results
from cutegemm.machine.arch import WARP_THREADS
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.store import Store

_Storage = TypeVar("_Storage", bound="type[Storage]")


@dataclass
class Targets:
    """What the epilogue of a Hopper kernel accesses: C and D in global memory, and epilogue stages in shared memory.

    tma_c, tma_d   TMA copies of C and D
    mC, mD         C and D in global memory: coordinate tensors if TMA copies them, else the tensors themselves
    more           auxiliary outputs that are stored through epilogue stages: (TMA copy, tensor) for each, as for D
    sD             epilogue stages (M, N, stages, consumers); after `set_up` the consumer's own (M, N, stages)
    arrived_c      mbarriers of the epilogue stages; after `set_up` the consumer's own
    index          (rows of A @ B, 1, 1): the row of D that each one is added to, in global memory
    """

    tma_c: cute.CopyAtom
    mC: cute.Tensor
    tma_d: cute.CopyAtom
    mD: cute.Tensor
    more: tuple[tuple[cute.CopyAtom, cute.Tensor], ...] = ()
    sD: Any = None
    arrived_c: Any = None
    index: Any = None


class Storage(OwnTile):
    """Evaluates the epilogue for a consumer's tile of D in a Hopper kernel, and stores D. Base class.

    There is a subclass for each way to store D: by TMA, by lines of shared memory, or from registers. Methods without a
    decorator such as @cute.jit are plain Python that runs while the DSL traces the kernel.
    """

    _kinds: ClassVar[dict[type[Store], type[Storage]]] = {}

    def __init__(self, plan: GemmPlan) -> None:
        super().__init__(plan)
        self.store: Any = plan.store
        self.epi_tiles = plan.store.epi_tile_count(plan)

    @classmethod
    def stores(cls, kind: type[Store]) -> Callable[[_Storage], _Storage]:
        """Return a class decorator that registers a subclass for one way to store D.

        kind   class of `plan.store` that the subclass implements in kernels, such as LineStore
        """

        def register(storage: _Storage) -> _Storage:
            Storage._kinds[kind] = storage
            return storage

        return register

    @classmethod
    def of(cls, plan: GemmPlan) -> Storage:
        """Return the object that evaluates the epilogue and stores D in the kernel of a plan.

        raises   UnsupportedError if no class is registered for the plan's store
        """
        for kind in type(plan.store).__mro__:
            if kind in cls._kinds:
                return cls._kinds[kind](plan)
        name = type(plan.store).__name__
        raise UnsupportedError(
            f"plan {plan.name!r}: no kernel stores D by {name}. Decorate a class with @Storage.stores({name})."
        )

    # --- host ----------------------------------------------------------------------------------------------

    def tma_atoms(self, operands, mD, unused):
        """Return (TMA copy, tensor that it takes) for C, for D, and for each auxiliary output in epilogue stages.

        What TMA does not copy has the atom `unused`, and the tensor itself. Runs on the host.

        operands   (input tensors, auxiliary outputs) of the epilogue, each (M, N, L)
        mD         D (M, N, L)
        unused     a placeholder
        """
        beside = self.plan.epilogue.beside
        more = [(unused, operands[1][beside.index(name)]) for name in self.plan.epi_stage_results[:-1]]
        return (unused, mD), (unused, mD), tuple(more)

    # --- device --------------------------------------------------------------------------------------------

    def epi_stage_tensor(self, smem) -> Any:
        """Allocate the epilogue stages of all consumers in shared memory, as one tensor; None if D is stored directly.

        smem   allocator of the CTA's shared memory
        """
        return None

    def descriptors(self, tma_c, tma_d, more) -> Sequence[cute.CopyAtom]:
        """Return the TMA copies whose descriptors (tensor maps) the kernel prefetches: of C, D and auxiliary outputs.

        tma_c, tma_d, more   the TMA copies of C, of D and of auxiliary outputs
        """
        return ()

    def use(self, targets: Targets, values: Values) -> None:
        """Set what the kernel stores to, before its code is emitted: C and D, and the operands of the epilogue.

        targets   C, D and auxiliary outputs in global memory, and the epilogue stages
        values    the operands of the epilogue
        """
        self.targets, self.values = targets, values
        self.extents = targets.mD.shape[:2]

    def set_up(self, who: Who) -> None:
        """Select what belongs to this consumer, such as its epilogue stages.

        who   thread, warp and CTA of the consumer
        """
        self.tid = who.tid

    def head(self, accumulators, k_tiles):
        """Multiply a thread's accumulators by the scalars that the epilogue starts with.

        Such a scalar is alpha, for example.

        k_tiles   number of k-tiles; if it is 0, the accumulators are set to 0
        returns   the scaled accumulators
        """
        return self.values.head(accumulators, k_tiles, self.plan.operands.d.dtype)

    def converted(self, accumulators):
        """Return a thread's accumulators converted to the element type of D, in registers of their own."""
        out = cute.make_rmem_tensor(accumulators.shape, lower.dtype(self.plan.operands.d.dtype))
        store_as_results(accumulators, out)
        return out

    def find_warp(self):
        """Return the index of this warp in its consumer, and keep it in the attribute `warp`."""
        self.warp = cute.arch.make_warp_uniform(self.tid // WARP_THREADS)
        return self.warp

    # --- reductions ----------------------------------------------------------------------------------------

    def fragments(self, shape) -> dict[str, Any]:
        """Return registers for the values that each reduction of the epilogue reduces: name -> registers.

        They are filled with the reduction's neutral element: 0 for a sum, minus infinity for a maximum.

        shape   shape of the registers: that of the thread's accumulators to reduce
        """
        results, out = self.values.results, {}
        for name, each in self.values.epilogue.reductions:
            out[name] = cute.make_rmem_tensor(shape, results[name].element_type)
            out[name].fill(each.identity)
        return out

    def folds(self, own_mnl) -> Folds:
        """Return the reductions (sums and maxima over D) of the epilogue, for this consumer's tile.

        own_mnl   (m_tile, n_tile, batch): indices of the consumer's tile in the grid of consumer tiles
        """
        tile_mnl, part = self.plan.tile_of_own(own_mnl)
        tid = part * self.plan.consumer_threads + self.tid
        return Folds(self.plan, self.values.results, tile_mnl, tid, self.extents)
