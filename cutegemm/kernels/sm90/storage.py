"""Store a consumer's tile of D to global memory: through epilogue stages in shared memory, or directly from registers.

The expression of the epilogue is applied on the way; see `kernels.values`. The plan's program determines the order
of the steps and the barriers between them; see `plan.program.roles`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32
from cutlass.cute.nvgpu import cpasync

from cutegemm.kernels import lower
from cutegemm.kernels.glu import Both, up_of
from cutegemm.kernels.reduce import Folds
from cutegemm.kernels.sm90.epi_stage_lines import Lines
from cutegemm.kernels.sm90.own_tile import OwnTile
from cutegemm.kernels.trace import Who
from cutegemm.kernels.values import Values, store_as_results
from cutegemm.kernels.vectors import by_vectors, copy_vector
from cutegemm.layout.inttuple import product
from cutegemm.machine.arch import REGISTER_BITS, WARP_THREADS
from cutegemm.plan.epilogue import Function
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.program import steps as step

# A thread with more accumulators does not read 32-bit rows ahead: kernels with 192 accumulators spilled.
_MAX_ACCUMULATORS_WITH_WIDE_ROWS = 160
# With these functions and that many accumulators, narrower rows are read only after the epilogue tile is computed:
# if they are read earlier, the kernel lacks two registers.
_LATE_ROWS = frozenset({"silu"})


@dataclass
class Targets:
    """C and D in global memory, and the epilogue stages. mC and mD are coordinates if TMA copies them, else tensors.

    more        auxiliary outputs that are stored through epilogue stages: a TMA copy and a tensor for each, as for D
    sD          (M, N, epilogue stages, consumers) of epilogue tiles; after `set_up` (M, N, epilogue stages), the
                consumer's own
    arrived_c   mbarriers of the epilogue stages; after `set_up` the consumer's own
    """

    tma_c: cute.CopyAtom
    mC: cute.Tensor
    tma_d: cute.CopyAtom
    mD: cute.Tensor
    more: tuple[tuple[cute.CopyAtom, cute.Tensor], ...] = ()
    sD: Any = None
    arrived_c: Any = None


class Storage(OwnTile):
    """Evaluates the epilogue of a consumer's tile and stores the results.

    Methods without a decorator are plain Python that runs while the kernel is traced.
    """

    def __init__(self, plan: GemmPlan) -> None:
        super().__init__(plan)
        self.store: Any = plan.store
        self.by_tma, self.c_by_tma = plan.store.stored_by_tma, plan.store.fetched is not None
        self.epi_tiles = plan.store.epi_tile_count(plan)

    # --- host ----------------------------------------------------------------------------------------------

    def tma_atoms(self, operands, mD, unused):
        """Return (TMA copy, tensor that it takes) for C, for D, and for each auxiliary output.

        Only auxiliary outputs that are stored through epilogue stages count. What TMA does not copy has the atom
        `unused`, and the tensor itself.

        operands   (tensors, results) of the epilogue, each (M, N, L)
        """
        plan, store, epilogue = self.plan, self.store, self.plan.epilogue
        c, d = (unused, mD), (unused, mD)
        more = [(unused, operands[1][epilogue.beside.index(name)]) for name in plan.epi_stage_results[:-1]]
        if self.c_by_tma:
            mC = operands[0][epilogue.tensors.index(plan.fetched_tile)]
            c = lower.tma_atom(store.fetched, mC, store.smem, store.epi_tile)
        if self.by_tma:
            d, *more = [
                lower.tma_atom(store.box, mX, store.smem, self.box_tile) for mX in (mD, *[mX for _, mX in more])
            ]
        return c, d, tuple(more)

    @property
    def box_tile(self) -> tuple[int, int]:
        """Return the rows and columns of D that one TMA store copies: an epilogue tile, or one warp's rows of it."""
        rows, columns = self.store.epi_tile
        return (self.store.box.box[1], columns) if self.plan.operands.d.major == "n" else (rows, columns)

    # --- device --------------------------------------------------------------------------------------------

    def epi_stage_tensor(self, smem) -> Any:
        """Allocate the epilogue stages of all consumers, and return them as a tensor; None if D is stored directly.

        smem   allocator of the CTA's shared memory
        """
        buffers = self.store.buffers(self.plan)
        return lower.smem_tensor(smem, buffers[0].dtype, buffers[0].layout) if buffers else None

    def descriptors(self, tma_c, tma_d, more) -> Sequence[cute.CopyAtom]:
        """Return the TMA atoms of C, D and auxiliary outputs whose descriptors are prefetched."""
        used = ((tma_c, self.c_by_tma), (tma_d, self.by_tma), *[(atom, self.by_tma) for atom, _ in more])
        return tuple([atom for atom, is_used in used if is_used])

    def use(self, targets: Targets, values: Values) -> None:
        """Set the tensors C and D, and the operands of the epilogue, for the kernel that is traced."""
        self.targets, self.values = targets, values
        self.ahead: dict[int, dict[str, Spread]] = {}  # operands that are read ahead, by index of the epilogue tile
        self.extents = targets.mD.shape[:2]

    def set_up(self, who: Who) -> None:
        """Select the epilogue stages in shared memory that belong to this consumer, and their barriers.

        who   thread, warp and CTA of the consumer
        """
        self.tid, to = who.tid, self.targets
        if self.epi_tiles:
            to.sD = to.sD[None, None, None, who.consumer]
            to.arrived_c = to.arrived_c + who.consumer * self.store.count

    def head(self, accumulators, k_tiles):
        """Apply the leading steps of the epilogue, which scale by scalars alone, to all accumulators of a thread.

        k_tiles   number of k-tiles; if it is 0, the accumulators are set to 0
        """
        return self.values.head(accumulators, k_tiles, self.plan.operands.d.dtype)

    def by_epi_tiles(self, acc):
        """Return a view of the accumulators as (values of an epilogue tile, epilogue tiles).

        If D is gated, these are the gate accumulators only.
        """
        threads = self.plan.consumer_threads
        shape = (product(self.store.epi_tile) // threads, self.epi_tiles)
        if not self.plan.operands.gated:
            return cute.make_tensor(acc.iterator, cute.make_layout(shape))
        return self.glu_epi_tiles(acc)[0]

    def glu_epi_tiles(self, acc):
        """Return views of the gate and of the up accumulators as (values of an epilogue tile, epilogue tiles)."""
        per = product(self.store.epi_tile) // self.plan.consumer_threads
        down, across = self.store.epi_tiles(self.tile)
        layout = cute.make_layout((per, (across, down)), stride=(1, (per, 2 * per * across)))
        return [cute.make_tensor(acc.iterator + first, layout) for first in (0, per * across)]

    def epi_tile(self, accumulators, i: int):
        """Return (accumulators of the i-th epilogue tile, their up accumulators; None if D is not gated)."""
        if not self.plan.operands.gated:
            return self.by_epi_tiles(accumulators)[None, i], None
        gates, ups = self.glu_epi_tiles(accumulators)
        return gates[None, i], ups[None, i]

    def converted(self, accumulators):
        """Return accumulators converted to the element type of D, in registers of their own."""
        out = cute.make_rmem_tensor(accumulators.shape, lower.dtype(self.plan.operands.d.dtype))
        store_as_results(accumulators, out)
        return out

    def find_warp(self):
        """Compute the index of this warp in its consumer, keep it in the attribute `warp`, and return it."""
        self.warp = cute.arch.make_warp_uniform(self.tid // WARP_THREADS)
        return self.warp

    # --- operands -------------------------------------------------------------------------------------

    def reads_tiles(self):
        """Return whether the epilogue reads an M x N operand, such as C: True, False, or a value known at run time."""
        return self.values.reads(self.values.epilogue)

    def reads_by_first(self):
        """Return whether the epilogue reads an M x N operand, and this is the consumer's first warp, which loads it."""
        return cutlass.and_(self.reads_tiles(), self.find_warp() == 0)

    def fetch_first(self, own_mnl) -> None:
        """Load the first epilogue tiles of C, one to each epilogue stage. One warp calls it.

        own_mnl   (m_tile, n_tile, batch) in tiles of a consumer
        """
        for i in range(self.store.count):
            self.fetch(own_mnl, i)

    def fetch_ahead(self, own_mnl, i: int) -> None:
        """Load the i-th epilogue tile of C, unless `fetch_first` has loaded it or it does not exist.

        One warp calls it.
        """
        if self.store.count <= i < self.epi_tiles:
            self.fetch_read(own_mnl, i)

    @cute.jit
    def fetch_read(self, own_mnl, i: cutlass.Constexpr):
        """Load the i-th epilogue tile of C by TMA, if the epilogue reads C.

        own_mnl   (m_tile, n_tile, batch), counted in tiles of a consumer
        """
        if self.reads_tiles():
            self.fetch(own_mnl, i)

    def fetch(self, own_mnl, i: int) -> None:
        """Load the i-th epilogue tile of C to its epilogue stage, which no store may still read. One warp calls it."""
        store, to = self.store, self.targets
        epi_stage, _ = store.epi_stage_at(i)
        epi_tile = cute.local_tile(self.own_tile(to.mC, own_mnl), store.epi_tile, store.epi_tile_at(i, self.tile))
        tCsC, tCgC = cpasync.tma_partition(
            to.tma_c, 0, cute.make_layout(1), cute.group_modes(to.sD, 0, 2), cute.group_modes(epi_tile, 0, 2)
        )
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(to.arrived_c + epi_stage, self.plan.barrier("c").transaction_bytes)
        cute.copy(to.tma_c, tCgC, tCsC[None, epi_stage], tma_bar_ptr=to.arrived_c + epi_stage)

    def tail(self, accumulators, i: int, own_mnl, phase, ups=None) -> Callable[[str], cute.Tensor]:
        """Apply the epilogue's tail to an epilogue tile, and return a function from a result's name to its values.

        accumulators   accumulators of the epilogue tile
        phase          phase of the epilogue stages' barriers, if C is loaded to epilogue stages
        ups            up accumulators, if D is gated; else None

        Rows and columns of the next epilogue tile are read before this one is computed, or directly after it, if
        registers are left for them. If there are several results, each is computed when the returned function is called
        for it, so that registers hold one of them at a time. D alone is computed at once.
        """
        spread = self.spread_ahead(i, accumulators, own_mnl)
        reads_ahead = i + 1 < self.epi_tiles and self.reads_ahead
        if reads_ahead and not self.reads_late:
            self.ahead[i + 1] = self.spread_ahead(i + 1, accumulators, own_mnl)

        def fetch(name: str) -> Any:
            if self.c_by_tma and name == self.plan.fetched_tile:
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
        """Return whether registers are left to read rows and columns of the next epilogue tile ahead.

        None are left if a row has two numbers for each column of D, or for 32-bit rows with many accumulators.
        """
        plan = self.plan
        words = max([plan.operands.matrix(name).dtype.bits for name in self.values.epilogue.tensors], default=0)
        return not self.values.epilogue.halved and not (self.holds_many and words >= REGISTER_BITS)

    @property
    def reads_late(self) -> bool:
        """Return whether rows and columns of the next epilogue tile are read after the previous one is computed.

        This is possible if D is the only result.
        """
        tail = self.values.epilogue.tail
        named = {node.name for node in tail.expression.nodes() if isinstance(node, Function)}
        return self.holds_many and not tail.is_whole and bool(named & _LATE_ROWS)

    @property
    def holds_many(self) -> bool:
        """Return whether a thread's accumulators leave few registers for other values."""
        return self.plan.registers()["accumulators"] > _MAX_ACCUMULATORS_WITH_WIDE_ROWS

    def spread_ahead(self, i: int, accumulators, own_mnl) -> dict[str, Spread]:
        """Return the row, column and scalar operands of the i-th epilogue tile, by name.

        They are read now unless they have been read ahead.
        """
        if i in self.ahead:
            return self.ahead.pop(i)
        names = [name for name in self.values.epilogue.tensors if self.plan.operands.matrix(name).broadcast]
        return {name: self.read_spread(name, accumulators, i, own_mnl) for name in names}

    def read_epi_stage(self, epi_stage: int, phase) -> cute.Tensor:
        """Wait until TMA has loaded an epilogue tile of C, and return this thread's values of it.

        epi_stage   index of the epilogue stage
        phase       parity of the phase of its barrier
        """
        to, operand = self.targets, self.plan.operands.matrix(self.plan.fetched_tile)
        from_shared = lower.tiled_copy(self.store.from_shared).get_slice(self.tid)
        tCsC = from_shared.partition_S(to.sD)
        held = from_shared.partition_D(to.sD)[None, None, None, 0].shape
        tCrC = cute.make_rmem_tensor(held, lower.dtype(operand.dtype))
        cute.arch.mbarrier_wait(to.arrived_c + epi_stage, phase)
        cute.copy(from_shared, tCsC[None, None, None, epi_stage], tCrC)
        return tCrC

    def read_global(self, name: str, accumulators, i: int, own_mnl) -> Any:
        """Read a thread's values of a tile operand for the i-th epilogue tile: (elements of a vector, vectors).

        Elements outside of D are 0.
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
        """Read a thread's values of a row, column or scalar operand for the i-th epilogue tile, each element once."""
        mX, operand = self.values.tensors[name], self.plan.operands.matrix(name)
        if operand.gated:
            return Both(*[self.read_row(name, of, accumulators, i, own_mnl) for of in (mX, up_of(mX, operand))])
        return self.read_row(name, mX, accumulators, i, own_mnl)

    def read_row(self, name: str, mX, accumulators, i: int, own_mnl) -> Spread:
        """Read a thread's values of one broadcast tensor, such as the gates of a row, for the i-th epilogue tile.

        mX   (M, N, L) with stride 0 along the modes that the operand does not have
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
        loads        (source, registers, (m, n) of the first element) for each vector
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

        returns   three tensors (elements of a vector, vectors)
        """
        return self.by_vectors(
            self.vector_of(name), own_mnl, self.tid, mX, None, accumulators=accumulators, extents=self.extents
        )

    def vector_of(self, name: str) -> int:
        """Return the number of neighbouring elements of an operand or result that a thread accesses at once.

        name   name of the operand or result
        """
        access = self.plan.access(name)
        return access.bits // access.dtype.bits

    def store_aux(self, results: Callable[[str], cute.Tensor], i: int, own_mnl) -> None:
        """Store the i-th epilogue tile of each auxiliary output from registers to global memory."""
        for name in self.plan.aux_outputs:
            values = results(name)
            vX, vcX, vOut = self.vectors(name, self.values.results[name], values, own_mnl)
            count = cute.size(vOut, mode=[1])
            for j in range(count):
                at = i * count + j
                self.copy_inside(name, vOut[None, j], vX[None, at], vcX[0, at], self.extents, (0, 1))

    # --- reductions ----------------------------------------------------------------------------------------

    def fragments(self, shape) -> dict[str, Any]:
        """Return registers for the inputs of each reduction, by name, filled with its neutral element."""
        results, out = self.values.results, {}
        for name, each in self.values.epilogue.reductions:
            out[name] = cute.make_rmem_tensor(shape, results[name].element_type)
            out[name].fill(each.identity)
        return out

    def folds(self, own_mnl) -> Folds:
        """Return the reductions (sums and maxima over D) of this consumer's tile.

        own_mnl   (m_tile, n_tile, batch), counted in tiles of a consumer
        """
        tile_mnl, part = self.plan.tile_of_own(own_mnl)
        tid = part * self.plan.consumer_threads + self.tid
        return Folds(self.plan, self.values.results, tile_mnl, tid, self.extents)

    def reduce(self, results: Callable[[str], cute.Tensor], i: int, own_mnl) -> None:
        """Fold the i-th epilogue tile into the warp's partial row and column reductions."""
        names = [name for name, _ in self.values.epilogue.reductions]
        if i == 0 and names:
            self.folded = self.folds(own_mnl)
        for name in names:
            values = results(name)
            at, _ = self.by_vectors(1, own_mnl, self.tid, None, accumulators=values, extents=self.extents)
            count = cute.size(values)
            coords = [at[0, i * count + j] for j in range(count)]
            self.folded.add(name, values, i * count, coords)

    # --- through epilogue stages -------------------------------------------------------------------------------------

    def wait_stores(self, pending: int, by: str) -> None:
        """Wait until at most `pending` stores of a warp still read their epilogue stages.

        by   which warps wait: `FIRST_WARP`, `EACH_WARP` or `ALL` of `plan.program.steps`
        """
        if by == step.FIRST_WARP:
            self.wait_by_first(pending)
            return
        cute.arch.cp_async_bulk_wait_group(pending, read=True)
        if by == step.EACH_WARP:
            cute.arch.sync_warp()

    @cute.jit
    def wait_by_first(self, pending: cutlass.Constexpr):
        """Let the consumer's first warp wait until at most `pending` of its stores still read epilogue stages."""
        if self.warp == 0:
            cute.arch.cp_async_bulk_wait_group(pending, read=True)

    def write_epi_stage(self, values, i: int, result: str) -> None:
        """Write the i-th epilogue tile of a result from registers to its epilogue stage."""
        to_shared = lower.tiled_copy(self.store.to_shared).get_slice(self.tid)
        tDsD = to_shared.partition_D(self.targets.sD)[None, None, None, self.epi_stage_of(i, result)]
        held = to_shared.partition_S(self.targets.sD)[None, None, None, 0].shape
        tDrD = cute.make_tensor(values.iterator, cute.make_layout(held))
        cute.copy(to_shared, tDrD, tDsD)
        if self.by_tma:
            cute.arch.fence_proxy("async.shared", space="cta")

    def epi_stage_of(self, i: int, result: str) -> int:
        """Return the index of the epilogue stage for the i-th epilogue tile of a result."""
        return self.store.epi_stage_at(self.plan.epi_stage_number(i, result))[0]

    def target_of(self, result: str):
        """Return (TMA copy of a result, the tensor that it takes).

        result   "d", or the name of an auxiliary output
        """
        to, aux = self.targets, self.plan.epi_stage_results[:-1]
        return to.more[aux.index(result)] if result in aux else (to.tma_d, to.mD)

    def store_epi_stage(self, by: str, i: int, own_mnl, result: str) -> None:
        """Store the i-th epilogue tile of a result from its epilogue stage to global memory.

        by   which warps store: `FIRST_WARP`, `EACH_WARP` or `ALL` of `plan.program.steps`
        """
        if by == step.ALL:
            self.copy_epi_stage(i, own_mnl, result)
        elif by == step.EACH_WARP and not self.by_tma:
            cute.arch.sync_warp()
            self.copy_epi_stage(i, own_mnl, result)
            cute.arch.sync_warp()
        elif by == step.EACH_WARP:
            cute.arch.sync_warp()
            box = Int32(0) if self.plan.consumer_warps == 1 else self.warp
            self.store_box(i, own_mnl, box, result)
        else:
            self.store_by_first(i, own_mnl, result)

    @cute.jit
    def store_by_first(self, i: cutlass.Constexpr, own_mnl, result: cutlass.Constexpr):
        """Store the i-th epilogue tile of a result by TMA from the first warp."""
        if self.warp == 0:
            self.store_box(i, own_mnl, Int32(0), result)

    def store_box(self, i: int, own_mnl, box, result: str) -> None:
        """Store the i-th epilogue tile of a result by TMA: all of it, or one warp's rows. One warp calls it.

        box   index of the warp's rows in the epilogue tile
        """
        store, to = self.store, self.targets
        tma, mX = self.target_of(result)
        boxes = store.epi_tile[0] // self.box_tile[0]
        sBox = cute.zipped_divide(to.sD, self.box_tile)  # (box, (boxes M, 1, epilogue stages))
        gBox = cute.zipped_divide(self.own_tile(mX, own_mnl), self.box_tile)  # (box, (boxes M, boxes N))
        tBsD, tBgD = cpasync.tma_partition(tma, 0, cute.make_layout(1), sBox, gBox)
        m, n = store.epi_tile_at(i, self.tile)
        epi_stage = self.epi_stage_of(i, result)
        cute.copy(
            tma,
            tBsD[None, (box, 0, epi_stage)],
            tBgD[None, (m * boxes + box, n)],
            **lower.l2_policy(store.box),
        )
        cute.arch.cp_async_bulk_commit_group()

    def copy_epi_stage(self, i: int, own_mnl, result: str) -> None:
        """Copy an epilogue stage to global memory with the consumer's threads, without elements outside of D.

        Each thread first reads several vectors, so that the reads are in flight together, and then stores them.
        """
        store, to = self.store, self.targets
        down, across = store.epi_tiles(self.tile)
        (m, n), (m_tile, n_tile, batch) = store.epi_tile_at(i, self.tile), own_mnl
        extents, (_, mX) = to.mD.shape[:2], self.target_of(result)
        tiles = [mX[None, None, batch], cute.make_identity_tensor(extents)]
        at = (m_tile * down + m, n_tile * across + n)
        gD, coords = [cute.local_tile(tensor, store.epi_tile, at) for tensor in tiles]
        own = lower.tiled_copy(store.copy).get_slice(self.tid)
        if store.rotates_lines:
            first = own.partition_D(cute.make_identity_tensor(store.epi_tile))[0, 0, 0]
            sD = to.sD[None, None, self.epi_stage_of(i, result)]
            lines = Lines(store, self.plan.operands.d.major, sD, gD, first)
            self.copy_lines(lines, *lines.inside(coords[0, 0], extents))
            return
        tDsD = own.partition_S(to.sD)[None, None, None, self.epi_stage_of(i, result)]
        tDgD, tDcD = cute.coalesce(own.partition_D(gD), target_profile=(1, 1, 1)), own.partition_D(coords)
        tDrD = cute.make_rmem_tensor(tDsD.shape, to.mD.element_type)
        cute.copy(lower.copy_atom(store.copy.atom), tDsD, tDrD)
        for y in range(cute.size(tDrD, mode=[2])):
            for x in range(cute.size(tDrD, mode=[1])):
                self.store_line(tDrD[None, x, y], tDgD[None, x, y], tDcD[0, x, y], extents)

    @cute.jit
    def store_line(self, values: cutlass.Constexpr, gD, at, extents: cutlass.Constexpr):
        """Store one vector to D if its first element is inside of D.

        The plan's alignment puts the others inside as well.
        """
        if cute.elem_less(at, extents):
            copy_vector(self.store.copy.atom, values, gD)

    @cute.jit
    def copy_lines(self, lines: cutlass.Constexpr, count: Int32, left: Int32):
        """Copy the lines that are inside of D, `lines.at_once` at a time.

        These are loops on purpose: in straight code each access would have its own condition, and the addresses of all
        lines would stay in registers from one epilogue tile to the next.

        count   number of lines inside of D
        left    number of vectors of a line that are inside of D
        """
        whole = count // lines.at_once * lines.at_once
        for first in cutlass.range(0, whole, lines.at_once, unroll=1):
            self.copy_some(lines, first, lines.at_once, left)
        for line in cutlass.range(whole, count, 1, unroll=1):
            self.copy_some(lines, line, 1, left)

    def copy_some(self, lines: Lines, first, count: int, left) -> None:
        """Copy `count` lines of an epilogue stage to D, from the thread's line number `first` on.

        It is a method here because a DSL loop would carry `lines` as a value if its own method were called in the loop.

        left   number of vectors of a line that are inside of D
        """
        lines.copy(first, count, left)

    # --- straight out of registers -------------------------------------------------------------------------

    def store_tile(self, acc, own_mnl) -> None:
        """Evaluate the epilogue and store a tile of D directly from registers, by vectors of neighbouring elements.

        acc       accumulators of the thread
        own_mnl   (m_tile, n_tile, batch), counted in tiles of a consumer
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

        gX        one vector of each operand and result, by name
        reduced   registers that receive the inputs of reductions, by name
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
        """Store one vector of values in registers to D in global memory."""
        copy_vector(self.store.atom, values, gD)

    def read_vectors(self, name: str, gX: dict[Any, Any]) -> Any:
        """Read one vector of an operand; for a row of a gated epilogue, the pairs of (gate, up)."""
        if (name, "up") not in gX:
            return self.read_vector(name, gX[name])
        return Both(*[self.read_vector(name, gX[key]) for key in (name, (name, "up"))])

    def read_vector(self, name: str, gX) -> Any:
        """Read a vector of an epilogue operand from global memory to registers, and return its elements.

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


class Spread:
    """A fragment of a broadcast operand: element i belongs to accumulator i.

    Several accumulators may share an element.

    places   (registers, index) for each accumulator
    """

    def __init__(self, places: list[tuple[Any, int]]) -> None:
        self.places = places

    def __getitem__(self, i: int) -> Any:
        held, at = self.places[i]
        return held[at]
