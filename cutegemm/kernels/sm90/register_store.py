"""Store a consumer's tile of D directly from registers."""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

from cutegemm.kernels.glu import Both, up_of
from cutegemm.kernels.sm90.storage import Storage
from cutegemm.kernels.vectors import by_vectors, copy_vector
from cutegemm.plan.store import RegisterStore


@Storage.stores(RegisterStore)
class RegisterStorage(Storage):
    """Evaluates the epilogue of a consumer (a warpgroup that multiplies), and stores D directly from registers.

    A thread handles one vector of neighbouring elements of D after the other.
    """

    def store_tile(self, acc, own_mnl) -> None:
        """Evaluate the epilogue and store a tile of D directly from registers, by vectors of neighbouring elements.

        acc       accumulators of the thread
        own_mnl   (m_tile, n_tile, batch): indices of the consumer's tile in the grid of consumer tiles
        """
        vector = self.store.atom.values
        tensors, epilogue = self.values.tensors, self.values.epilogue
        results = {name: self.values.results[name] for name in epilogue.outputs[1:]}
        given = {"d": self.targets.mD, **tensors, **results}
        folds = self.folds(own_mnl) if epilogue.reductions else None
        accumulators, ups = (acc, None) if not self.plan.operands.gated else self.gate_and_up(acc)
        given |= {(name, "up"): up_of(tensors[name], self.plan.operands.matrix(name)) for name in epilogue.halved}
        *parts, vcD, vAcc = self.by_vectors(
            vector, own_mnl, self.tid, *given.values(), None, accumulators=accumulators, extents=self.extents
        )
        vUps = None if ups is None else by_vectors(self.in_order(ups), (vector,))
        for i in range(cute.size(parts[0], mode=[1])):
            gX = {name: part[None, i] for name, part in zip(given, parts, strict=True)}
            of_ups, reduced = None if vUps is None else vUps[None, i], self.fragments(vAcc[None, i].shape)
            self.store_vector(vAcc[None, i], gX, vcD[0, i], self.extents, of_ups, reduced)
            for name, values in reduced.items():
                folds.add(name, values, i * vector, [vcD[v, i] for v in range(vector)])

    @cute.jit
    def store_vector(
        self,
        accumulators: cutlass.Constexpr,
        gX: cutlass.Constexpr,
        at,
        extents: cutlass.Constexpr,
        ups: cutlass.Constexpr,
        reduced: cutlass.Constexpr,
    ):
        """Evaluate the epilogue for one vector, and store each result, if the vector's first element is inside of D.

        The plan's alignment puts the other elements inside as well.

        accumulators   the accumulators of the vector
        gX             one vector of each operand and result in global memory, by name
        at             (m, n) of the first element
        extents        (M, N) of D
        ups            up accumulators of the vector, if D is gated; else None
        reduced        registers that receive the inputs of reductions, by name
        """
        if cute.elem_less(at, extents):
            tail = self.values.tail_part
            if cutlass.const_expr(tail.is_whole):
                of = self.values.worked_out(tail, accumulators, lambda name: self.read_vectors(name, gX), ups)
                for name in tail.outputs[1:]:
                    self.copy(name, of(name, gX[name].element_type), gX[name])
                for name, values in reduced.items():
                    values.store(of(name, values.element_type).load())
                self.store_values(of("d", gX["d"].element_type), gX["d"])
            else:
                self.values.carry_out_all(tail.steps, accumulators, lambda name: self.read_vector(name, gX[name]))
                self.store_values(self.converted(accumulators), gX["d"])

    def store_values(self, values, gD) -> None:
        """Store one vector of values in registers to D, without a test whether it is inside of D.

        values   the vector in registers
        gD       the vector in global memory
        """
        copy_vector(self.store.atom, values, gD)

    def read_vectors(self, name: str, gX: dict[Any, Any]) -> Any:
        """Read one vector of an epilogue operand from global memory; for a row of a gated epilogue, (gate, up) pairs.

        name   name of the operand
        gX     vectors in global memory, by name
        """
        if (name, "up") not in gX:
            return self.read_vector(name, gX[name])
        return Both(*[self.read_vector(name, gX[key]) for key in (name, (name, "up"))])

    def read_vector(self, name: str, gX) -> Any:
        """Read a vector of an epilogue operand from global memory to registers, and return the registers.

        If all elements have one address, as in a broadcast operand, it is read once and repeated.

        name   name of the operand
        gX     the vector in global memory
        """
        size = cute.cosize(gX.layout)  # a traced number if a stride is known only at run time
        one = isinstance(size, int) and size == 1
        source = cute.make_tensor(gX.iterator, cute.make_layout((1,))) if one else gX
        held = cute.make_rmem_tensor(source.shape, gX.element_type)
        self.copy(name, source, held)
        return [held[0]] * cute.size(gX) if one else held
