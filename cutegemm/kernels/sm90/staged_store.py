"""Store a consumer's tile of D through epilogue stages: what stores by TMA and by threads have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cutlass
import cutlass.cute as cute

from cutegemm.kernels import lower
from cutegemm.kernels.glu import Both, up_of
from cutegemm.kernels.sm90.storage import Storage, Targets
from cutegemm.kernels.trace import Who
from cutegemm.kernels.values import Values
from cutegemm.layout.inttuple import product
from cutegemm.machine.arch import REGISTER_BITS
from cutegemm.plan.epilogue import Function

# A thread with more accumulators does not read 32-bit rows ahead: kernels with 192 accumulators spilled.
_MAX_ACCUMULATORS_WITH_WIDE_ROWS = 160
# With these functions and that many accumulators, narrower rows are read only after the epilogue tile is computed:
# if they are read earlier, the kernel lacks two registers.
_LATE_ROWS = frozenset({"silu"})


class StagedStorage(Storage):
    """Evaluates the epilogue of a consumer piece by piece, and writes results to buffers in shared memory.

    A piece of the consumer's tile is called epilogue tile, a buffer epilogue stage. Subclasses store the stages to
    global memory, by TMA or by threads.
    """

    def epi_stage_tensor(self, smem) -> Any:
        """Allocate the epilogue stages of all consumers in shared memory, and return them as one tensor.

        smem   allocator of the CTA's shared memory
        """
        return lower.smem_tensor(smem, self.plan.operands.d.dtype, self.store.smem)

    def use(self, targets: Targets, values: Values) -> None:
        """Set what the kernel stores to, before its code is emitted: C and D, and the operands of the epilogue.

        targets   C, D and auxiliary outputs in global memory, and the epilogue stages
        values    the operands of the epilogue
        """
        super().use(targets, values)
        self.ahead: dict[int, dict[str, Spread]] = {}  # operands that are read ahead, by index of the epilogue tile

    def set_up(self, who: Who) -> None:
        """Select the epilogue stages in shared memory that belong to this consumer, and their barriers.

        who   thread, warp and CTA of the consumer
        """
        super().set_up(who)
        to = self.targets
        to.sD = to.sD[None, None, None, who.consumer]
        to.arrived_c = to.arrived_c + who.consumer * self.store.count

    def by_epi_tiles(self, acc):
        """View a thread's accumulators as (values of an epilogue tile, epilogue tiles).

        If D is gated, these are the gate accumulators only.
        """
        threads = self.plan.consumer_threads
        shape = (product(self.store.epi_tile) // threads, self.epi_tiles)
        if not self.plan.operands.gated:
            return cute.make_tensor(acc.iterator, cute.make_layout(shape))
        return self.glu_epi_tiles(acc)[0]

    def glu_epi_tiles(self, acc):
        """View accumulators of a gated epilogue as [gates, ups], each (values of an epilogue tile, epilogue tiles)."""
        per = product(self.store.epi_tile) // self.plan.consumer_threads
        down, across = self.store.epi_tiles(self.tile)
        layout = cute.make_layout((per, (across, down)), stride=(1, (per, 2 * per * across)))
        return [cute.make_tensor(acc.iterator + first, layout) for first in (0, per * across)]

    def epi_tile(self, accumulators, i: int):
        """Return (accumulators of the i-th epilogue tile, their up accumulators; None if D is not gated).

        accumulators   all accumulators of the thread
        """
        if not self.plan.operands.gated:
            return self.by_epi_tiles(accumulators)[None, i], None
        gates, ups = self.glu_epi_tiles(accumulators)
        return gates[None, i], ups[None, i]

    # --- operands ------------------------------------------------------------------------------------------

    def tail(self, accumulators, i: int, own_mnl, phase, ups=None) -> Callable[[str], cute.Tensor]:
        """Apply the epilogue, except leading multiplications by scalars, to one epilogue tile, a piece of D's tile.

        accumulators   the thread's accumulators of the epilogue tile
        i              index of the epilogue tile
        own_mnl        (m_tile, n_tile, batch): indices of the consumer's tile in the grid of consumer tiles
        phase          phase of the epilogue stages' barriers, if C is loaded to epilogue stages
        ups            up accumulators, if D is gated; else None
        returns        function from the name of a result, such as "d", to its values

        Rows and columns of the next epilogue tile are read before this one is computed, or directly after it, if
        registers are left for them. If there are several results, each is computed when the returned function is called
        for it, so that registers hold one of them at a time. D alone is computed at once.
        """
        spread = self.spread_ahead(i, accumulators, own_mnl)
        reads_ahead = i + 1 < self.epi_tiles and self.reads_ahead
        if reads_ahead and not self.reads_late:
            self.ahead[i + 1] = self.spread_ahead(i + 1, accumulators, own_mnl)

        def fetch(name: str) -> Any:
            if name == self.plan.fetched_tile:
                epi_stage, used = self.store.epi_stage_at(i)
                return self.read_epi_stage(epi_stage, phase ^ (used & 1))
            return spread[name] if name in spread else self.read_global(name, accumulators, i, own_mnl)

        tail = self.values.tail_part
        if tail.is_whole:
            of = self.values.worked_out(tail, accumulators, fetch, ups)
            return lambda name: of(name, lower.dtype(self.plan.operands.matrix(name).dtype))
        self.values.carry_out_all(tail.steps, accumulators, fetch)
        values = self.converted(accumulators)
        if reads_ahead and self.reads_late:
            self.ahead[i + 1] = self.spread_ahead(i + 1, accumulators, own_mnl)
        return lambda _: values

    @property
    def reads_ahead(self) -> bool:
        """Return whether registers are left to read row and column operands of the next epilogue tile ahead.

        None are left if a row has two numbers for each column of D (gate and up), or for 32-bit rows with many
        accumulators.
        """
        plan = self.plan
        words = max([plan.operands.matrix(name).dtype.bits for name in self.values.epilogue.tensors], default=0)
        return not self.values.epilogue.halved and not (self.holds_many and words >= REGISTER_BITS)

    @property
    def reads_late(self) -> bool:
        """Return whether row and column operands of the next epilogue tile are read only after this one is computed.

        It frees registers for functions that need many, such as silu. It is possible if D is the only result.
        """
        tail = self.values.epilogue.tail
        named = {node.name for node in tail.expression.nodes() if isinstance(node, Function)}
        return self.holds_many and not tail.is_whole and bool(named & _LATE_ROWS)

    @property
    def holds_many(self) -> bool:
        """Return whether a thread's accumulators leave few registers for other values.

        If so, row and column operands of the epilogue are read later, and fewer of them at a time.
        """
        return self.plan.registers()["accumulators"] > _MAX_ACCUMULATORS_WITH_WIDE_ROWS

    def spread_ahead(self, i: int, accumulators, own_mnl) -> dict[str, Spread]:
        """Return the row, column and scalar operands of the i-th epilogue tile, by name.

        If they were not read together with the previous epilogue tile, they are read now.

        i              index of the epilogue tile
        accumulators   the thread's accumulators of the epilogue tile
        own_mnl        (m_tile, n_tile, batch): indices of the consumer's tile in the grid of consumer tiles
        """
        if i in self.ahead:
            return self.ahead.pop(i)
        names = [name for name in self.values.tail_part.tensors if self.plan.operands.matrix(name).broadcast]
        return {name: self.read_spread(name, accumulators, i, own_mnl) for name in names}

    def read_epi_stage(self, epi_stage: int, phase) -> cute.Tensor:
        """Wait until TMA has loaded an epilogue tile of C, and return this thread's values of it.

        epi_stage   index of the epilogue stage that holds it
        phase       parity of the phase of the stage's barrier, to wait for
        """
        raise NotImplementedError

    def read_global(self, name: str, accumulators, i: int, own_mnl) -> Any:
        """Read a thread's values of an M x N operand for the i-th epilogue tile from global memory.

        name           name of the operand
        accumulators   the thread's accumulators of the epilogue tile
        own_mnl        (m_tile, n_tile, batch): indices of the consumer's tile in the grid of consumer tiles
        returns        (elements of a vector, vectors); elements outside of D are 0
        """
        mX = self.values.tensors[name]
        vX, vcX, vSums = self.vectors(name, mX, accumulators, own_mnl)
        held = cute.make_rmem_tensor(vSums.shape, mX.element_type)
        held.fill(0)
        count = cute.size(vSums, mode=[1])
        for j in range(count):
            at = i * count + j
            self.copy_inside(name, vX[None, at], held[None, j], vcX[0, at], self.extents, (0, 1))
        return held

    def read_spread(self, name: str, accumulators, i: int, own_mnl) -> Spread | Both:
        """Read a thread's values of a row, column or scalar operand for the i-th epilogue tile, each element once.

        name           name of the operand
        accumulators   the thread's accumulators of the epilogue tile
        own_mnl        (m_tile, n_tile, batch): indices of the consumer's tile in the grid of consumer tiles
        returns        the values; (gate, up) pairs for a row of a gated epilogue
        """
        mX, operand = self.values.tensors[name], self.plan.operands.matrix(name)
        if operand.gated:
            return Both(*[self.read_row(name, of, accumulators, i, own_mnl) for of in (mX, up_of(mX, operand))])
        return self.read_row(name, mX, accumulators, i, own_mnl)

    def read_row(self, name: str, mX, accumulators, i: int, own_mnl) -> Spread:
        """Read a thread's values of one broadcast tensor, such as the gates of a row, for the i-th epilogue tile.

        name           name of the operand
        mX             (M, N, L) with stride 0 along the modes that the operand does not have
        accumulators   the thread's accumulators of the epilogue tile
        own_mnl        (m_tile, n_tile, batch): indices of the consumer's tile in the grid of consumer tiles
        """
        operand = self.plan.operands.matrix(name)
        vX, vcX, vSums = self.vectors(name, mX, accumulators, own_mnl)
        vector, count = cute.size(vSums, mode=[0]), cute.size(vSums, mode=[1])
        modes = tuple([mode for mode, of in enumerate("mn") if of not in operand.broadcast])
        loads, places = {}, []
        for j in range(i * count, (i + 1) * count):
            place = cute.crd2idx((0, j), vX.layout)
            if place not in loads:
                distinct = vector if cute.cosize(vX[None, j].layout) > 1 else 1
                source = cute.make_tensor(vX[None, j].iterator, cute.make_layout((distinct,)))
                loads[place] = (source, cute.make_rmem_tensor((distinct,), mX.element_type), vcX[0, j])
            held = loads[place][1]
            places += [(held, v if cute.size(held) > 1 else 0) for v in range(vector)]
        if modes:
            last = loads[max(loads)]
            end = last[2][modes[0]] + cute.size(last[1])
            self.load_spread(name, tuple(loads.values()), modes, end <= self.extents[modes[0]])
        else:
            for source, held, _ in loads.values():
                self.copy(name, source, held)
        return Spread(places)

    @cute.jit
    def load_spread(self, name: cutlass.Constexpr, loads: cutlass.Constexpr, modes: cutlass.Constexpr, all_inside):
        """Read a thread's elements of a row or column operand that are inside of D; the others are 0.

        Usually all are inside. Then one address serves all loads, without a test for each.

        name         name of the operand
        loads        (source in global memory, registers, (m, n) of the first element) for each vector
        modes        modes of D along which the operand has elements
        all_inside   whether all elements are inside of D, known at run time
        """
        if all_inside:
            for source, held, _ in loads:
                self.copy(name, source, held)
        else:
            for source, held, at in loads:
                held.fill(0)
                self.copy_inside(name, source, held, at, self.extents, modes)

    def vectors(self, name: str, mX, accumulators, own_mnl):
        """Return a thread's elements of an operand or result, their coordinates, and its accumulators, each by vectors.

        name           name of the operand or result
        mX             the tensor (M, N, L)
        accumulators   the thread's accumulators
        own_mnl        (m_tile, n_tile, batch): indices of the consumer's tile in the grid of consumer tiles
        returns        three tensors (elements of a vector, vectors)
        """
        return self.by_vectors(
            self.vector_of(name), own_mnl, self.tid, mX, None, accumulators=accumulators, extents=self.extents
        )

    def vector_of(self, name: str) -> int:
        """Return how many neighbouring elements of an operand or result of the epilogue a thread accesses at once.

        name   name of the operand or result
        """
        access = self.plan.access(name)
        return access.bits // access.dtype.bits

    def store_aux(self, results: Callable[[str], cute.Tensor], i: int, own_mnl) -> None:
        """Store the i-th epilogue tile of each auxiliary output that TMA or lines do not store, from registers.

        results   function from the name of a result to its values
        own_mnl   (m_tile, n_tile, batch): indices of the consumer's tile in the grid of consumer tiles
        """
        for name in self.plan.aux_outputs:
            values = results(name)
            vX, vcX, vOut = self.vectors(name, self.values.results[name], values, own_mnl)
            count = cute.size(vOut, mode=[1])
            for j in range(count):
                at = i * count + j
                self.copy_inside(name, vOut[None, j], vX[None, at], vcX[0, at], self.extents, (0, 1))

    def reduce(self, results: Callable[[str], cute.Tensor], i: int, own_mnl) -> None:
        """Combine the i-th epilogue tile with the partial results of the epilogue's reductions over rows or columns.

        results   function from the name of a result to its values
        own_mnl   (m_tile, n_tile, batch): indices of the consumer's tile in the grid of consumer tiles
        """
        names = [name for name, _ in self.values.epilogue.reductions]
        if i == 0 and names:
            self.folded = self.folds(own_mnl)
        for name in names:
            values = results(name)
            at, _ = self.by_vectors(1, own_mnl, self.tid, None, accumulators=values, extents=self.extents)
            count = cute.size(values)
            coords = [at[0, i * count + j] for j in range(count)]
            self.folded.add(name, values, i * count, coords)

    # --- epilogue stages -----------------------------------------------------------------------------------

    def write_epi_stage(self, values, i: int, result: str) -> None:
        """Write the i-th epilogue tile of a result from registers to its epilogue stage in shared memory.

        values   the thread's values of the epilogue tile
        result   "d", or the name of an auxiliary output
        """
        to_shared = lower.tiled_copy(self.store.to_shared).get_slice(self.tid)
        tDsD = to_shared.partition_D(self.targets.sD)[None, None, None, self.epi_stage_of(i, result)]
        held = to_shared.partition_S(self.targets.sD)[None, None, None, 0].shape
        tDrD = cute.make_tensor(values.iterator, cute.make_layout(held))
        cute.copy(to_shared, tDrD, tDsD)
        self.after_write()

    def after_write(self) -> None:
        """Make writes to an epilogue stage visible to what stores it to global memory. By default nothing is needed."""

    def epi_stage_of(self, i: int, result: str) -> int:
        """Return the index of the epilogue stage that holds the i-th epilogue tile of a result.

        result   "d", or the name of an auxiliary output
        """
        return self.store.epi_stage_at(self.plan.epi_stage_number(i, result))[0]

    def target_of(self, result: str):
        """Return the TMA copy that stores a result to global memory, and the coordinate tensor to copy to, as a pair.

        result   "d", or the name of an auxiliary output
        """
        to, aux = self.targets, self.plan.epi_stage_results[:-1]
        return to.more[aux.index(result)] if result in aux else (to.tma_d, to.mD)


class Spread:
    """Holds a thread's values of a broadcast operand, such as a bias; index i gives the value for accumulator i.

    Several accumulators may share a value, which is held once.

    places   (registers, index in them) for each accumulator
    """

    def __init__(self, places: list[tuple[Any, int]]) -> None:
        self.places = places

    def __getitem__(self, i: int) -> Any:
        held, at = self.places[i]
        return held[at]
