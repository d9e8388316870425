"""Reductions of an epilogue: the sum or maximum over rows, columns or all of D.

`Fold` reduces a warp's values of a tile to partial results in the workspace. `Reducer` launches a second kernel, which
reduces the partial results. Every address is written by one thread, without atomics. `plan.memory.partials` says which
thread has which values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32, Int64

from cutegemm.kernels import lower
from cutegemm.kernels.arguments import LaunchArguments
from cutegemm.kernels.functions import BINARY
from cutegemm.kernels.glu import columns_of_b
from cutegemm.kernels.launches import begin
from cutegemm.kernels.repack import region
from cutegemm.kernels.work import TRACED
from cutegemm.machine.arch import WARP_THREADS
from cutegemm.plan.epilogue import Reduction
from cutegemm.plan.launches import Launch, reduce_name
from cutegemm.plan.memory.partials import REDUCER_THREADS, folding, kept, partials_shape, reducer_shape
from cutegemm.plan.memory.workspace import region_of, regions
from cutegemm.plan.plan import GemmPlan


def combine(reduction: Reduction) -> Callable[[Any, Any], Any]:
    """Return the function of two values that a reduction applies to combine them: addition or maximum."""
    return (lambda x, y: x + y) if reduction.operation == "sum" else BINARY["maximum"]


class Fold:
    """Computes one reduction, a sum or maximum over rows or columns of D, for a warp's part of a tile of D.

    The results are partial: they go to the workspace, and a later kernel combines them over all tiles.

    Methods without a decorator such as @cute.jit are plain Python that runs while the DSL traces the kernel.

    partials   workspace for partial results: (results, partial results of each, L)
    tile_mnl   (m_tile, n_tile, batch) of the CTA's tile
    tid        index of the thread among the threads that hold the tile in registers
    extents    (M, N) of D
    """

    def __init__(self, plan: GemmPlan, reduction: Reduction, partials: cute.Tensor, tile_mnl, tid, extents) -> None:
        self.plan, self.reduction, self.partials = plan, reduction, partials
        self.tile_mnl, self.extents, self.kind = tile_mnl, extents, partials.element_type
        self.folding, self.combine = folding(plan, reduction.along), combine(reduction)
        self.warp, self.lane = tid // WARP_THREADS, tid % WARP_THREADS
        self.totals: dict[int, Any] = {}

    @property
    def identity(self) -> Any:
        """Return the neutral element of this reduction, 0 or minus infinity, which stands for elements outside of D."""
        return self.kind(self.reduction.identity)

    def inside(self, value, at) -> Any:
        """Return `value` if it belongs to D, else the neutral element (0 or minus infinity), which changes no result.

        at   coordinates (m, n) of the value in D
        """
        for mode, x, extent in zip("mn", at, self.extents, strict=True):
            if mode in self.reduction.along:
                value = cutlass.select_(x < extent, value, self.identity)
        return value

    def add(self, value, register: int, at, unit: Any = 0) -> None:
        """Combine the value of one register with the thread's earlier values of the same result of this reduction.

        Registers must come in ascending order. After the last register of a result, its partial result is written to
        the workspace.

        register   index of the register
        at         coordinates (m, n) of the value in D
        unit       index of the vector, if vectors have partial results of their own
        """
        group, value = self.folding.groups[register], self.kind(value)
        total = self.totals.get(group)
        self.totals[group] = value if total is None else self.combine(total, value)
        if register == self.folding.ends[group]:
            self.leave(self.totals.pop(group), at, unit)

    def leave(self, total, at, unit) -> None:
        """Combine a thread's partial result with those of the lanes that share it, and write it to the workspace.

        total   the thread's partial result
        at      coordinates (m, n) in D of the last value
        unit    index of the vector, if vectors have partial results of their own; else 0
        """
        for distance in self.folding.lanes:
            total = self.combine(total, cute.arch.shuffle_sync_bfly(total, distance))
        (m_tile, n_tile, batch), (bm, bn) = self.tile_mnl, self.plan.d_tile
        piece = cute.crd2idx((unit, self.warp), lower.layout(self.folding.piece_of))
        place = self.folding.place(m_tile, n_tile, cute.ceil_div(self.extents[0], bm), piece)
        along = self.reduction.along
        key = kept(along, Int32(at[0]), Int32(at[1]))
        writes = Boolean(self.lane & sum(self.folding.lanes) == 0) & (key < self.partials.shape[0])
        # CTAs of a cluster may have tiles beyond the edge of D
        tiles = zip("mn", (m_tile, n_tile), self.extents, (bm, bn), self.plan.cluster_mn, strict=True)
        for mode, tile, extent, own, ctas in tiles:
            if mode in along and ctas > 1:
                writes = writes & (tile * own < extent)
        self.write(total, (key, place, batch), writes)

    @cute.jit
    def write(self, total: cutlass.Constexpr, at: cutlass.Constexpr, writes: Boolean):
        """Write a partial result to the workspace if `writes` holds.

        total    the partial result
        at       (index of the result, index of the partial result, batch)
        writes   condition known at run time
        """
        if writes:
            self.put(total, at)

    def put(self, total, at) -> None:
        """Write a partial result to the workspace.

        total   the partial result
        at      (index of the result, index of the partial result, batch)
        """
        self.partials[at] = total


class Folds:
    """Computes all reductions of an epilogue (sums and maxima over rows or columns of D) for one tile of D.

    The epilogue passes each value of D with the name of its reduction; the values are added register by register.

    results    name of each reduction -> the workspace for its partial results
    tile_mnl   (m_tile, n_tile, batch) of the CTA's tile
    tid        index of the thread among the threads that hold the tile in registers
    extents    (M, N) of D
    """

    def __init__(self, plan: GemmPlan, results: dict[str, Any], tile_mnl, tid, extents) -> None:
        self.by_name = {
            name: Fold(plan, each, results[name], tile_mnl, tid, extents) for name, each in plan.epilogue.reductions
        }

    def add(self, name: str, values, first: int, coords: Sequence[Any], unit: Any = 0) -> None:
        """Combine the values of consecutive registers into the reduction `name`.

        values   the values
        first    index of the first register
        coords   coordinates (m, n) of each value in D
        unit     index of the vector, if vectors have partial results of their own
        """
        fold = self.by_name[name]
        for i, at in enumerate(coords):
            fold.add(fold.inside(values[i], at), first + i, at, unit)


class Reducer:
    """Allocates the workspace of an epilogue's reductions, and launches the kernels that combine partial results there.

    The GEMM writes one partial result per tile and row (or column) of D to the workspace. For each reduction, one
    kernel after the GEMM combines them to the final results.

    launches   kernels of a call by name; each entry says how the kernel overlaps with its neighbours (PDL)
    """

    def __init__(self, plan: GemmPlan, launches: dict[str, Launch]) -> None:
        self.plan, self.launches = plan, launches

    def partials(self, given: LaunchArguments, mD: cute.Tensor, k) -> tuple[cute.Tensor, ...]:
        """Return, for each reduction, the tensor in the workspace that holds its partial results.

        Its modes are: results (e.g. rows of D for row sums), partial results of each, batches.

        Runs on the host.

        given     the arguments of the launch
        mD        D as (M, N, L)
        k         extent K
        returns   tensors in the order of the reductions; an empty tuple if the epilogue has none
        """
        plan, reductions = self.plan, self.plan.epilogue.reductions
        if not reductions:
            return ()
        extents = [Int64(extent) for extent in (mD.shape[0], columns_of_b(plan, mD), k, mD.shape[2])]
        firsts = {r.name: r.first for r in regions(plan, *extents, TRACED)}
        out = []
        for name, each in reductions:
            shape = partials_shape(plan, each.along, *mD.shape)
            stride = (1, Int64(shape[0]), Int64(shape[0]) * shape[1])
            layout = cute.make_layout(shape, stride=stride)
            kind = lower.dtype(plan.operands.matrix(name).dtype)
            out.append(region(given.spaces[-1], firsts[region_of(name)], kind, layout))
        return tuple(out)

    def launch(self, partials: Sequence[cute.Tensor], given: LaunchArguments, stream) -> None:
        """Launch a kernel for each reduction, which combines the partial results that the GEMM has written.

        Runs on the host.

        stream     CUDA stream of the launch
        partials   partial results of each reduction
        given      the arguments of the launch, with the tensors of the results
        """
        results = given.results[len(given.results) - len(partials) :]
        for (name, each), mP, result in zip(self.plan.epilogue.reductions, partials, results, strict=True):
            by_batch = result.layout.stride[0] if self.plan.operands.batched else 0
            layout = cute.make_layout((mP.shape[0], mP.shape[2]), stride=(1, by_batch))
            own = self.launches[reduce_name(name)]
            Second(each, own).launch(mP, cute.make_tensor(result.iterator, layout), stream)


class Second:
    """Emits the kernel after the GEMM that computes the results of one reduction over D from partial results of tiles.

    Methods without a decorator such as @cute.jit are plain Python that runs while the DSL traces the kernel.

    reduction   the operation, and the modes of D that are reduced
    own         how this kernel overlaps with the kernels before and after it (programmatic dependent launch)
    """

    def __init__(self, reduction: Reduction, own: Launch) -> None:
        self.reduction, self.combine, self.own = reduction, combine(reduction), own
        self.results, self.runs = reducer_shape(reduction.along)

    def launch(self, mP: cute.Tensor, mX: cute.Tensor, stream) -> None:
        """Launch the kernel that combines partial results to results. Runs on the host.

        mP       (results, partial results of each, L)
        mX       (results, L)
        stream   CUDA stream
        """
        self.reduce_kernel(mP, mX).launch(
            grid=(cute.ceil_div(mX.shape[0], self.results) * mX.shape[1], 1, 1),
            block=(REDUCER_THREADS, 1, 1),
            stream=stream,
            use_pdl=self.own.waits,
        )

    @cute.kernel
    def reduce_kernel(self, mP: cute.Tensor, mX: cute.Tensor):
        """Combine partial results mP (results, partial results of each, L) to results mX (results, L). Device code.

        Each thread combines every `runs`-th partial result of a result, in their order. Then threads combine their
        values pairwise in shared memory. The order is fixed, so the result is deterministic.
        """
        begin(self.own)
        tid, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        blocks = cute.ceil_div(mX.shape[0], self.results)
        own, run, batch = tid % self.results, tid // self.results, block // blocks
        at = block % blocks * self.results + own
        total = mX.element_type(self.reduction.identity)
        if at < mX.shape[0]:
            for i in cutlass.range(run, mP.shape[1], self.runs, unroll=4):
                total = self.combine(total, mP[at, i, batch])
        smem = cutlass.memory.SmemAllocator()
        of_runs = smem.allocate_tensor(mX.element_type, cute.make_layout((self.results, self.runs)))
        of_runs[own, run] = total
        for halvings in cutlass.range_constexpr(1, self.runs.bit_length()):
            left = self.runs >> halvings
            cute.arch.sync_threads()
            if run < left:
                of_runs[own, run] = self.combine(of_runs[own, run], of_runs[own, run + left])
        if run == 0 and at < mX.shape[0]:
            mX[at, batch] = of_runs[own, 0]
