"""The kernels of `plan.memory.rows`: the order of the rows of experts, copies of tokens to rows, and sums of rows.

Methods without a decorator such as @cute.jit are plain Python that runs while the DSL traces the kernel.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64
from cutlass.cutlass_dsl import dsl_user_op

from cutegemm.dtypes import DType
from cutegemm.kernels import lower
from cutegemm.kernels.assembly import assembler
from cutegemm.machine.arch import WARP_THREADS, Arch
from cutegemm.plan.memory.rows import SORTED_AT_ONCE, RowKernel, SortRows, SortTokens, SpreadRows, SumRows, TotalRows


def host_function(kernel: RowKernel, arch: Arch) -> Any:
    """Return the host function that launches a kernel.

    | kernel     | arguments, before the stream                                                                |
    |------------|---------------------------------------------------------------------------------------------|
    | SortRows   | index (T * k,), place (T * k,), ends (L,)                                                   |
    | SortTokens | the same; tokens of rows (T * k,), weights (T, k), and weights of rows (T * k,)             |
    | SpreadRows | x (T, K), place, rows (T * k, K); weights (T, k) and those of rows (T * k,), if any         |
    | SumRows    | rows (T * k, K), place, sums (T, K)                                                         |
    | TotalRows  | rows (T * k, K), place, totals (T * k,)                                                     |

    arch   architecture to compile for
    """
    if isinstance(kernel, SortTokens):
        return SorterOfTokens(kernel)
    if isinstance(kernel, SortRows):
        return Sorter(kernel)
    if isinstance(kernel, SumRows):
        return Adder(kernel)
    if isinstance(kernel, TotalRows):
        return Totaller(kernel)
    assert isinstance(kernel, SpreadRows)
    return SpreaderOfTwo(kernel) if kernel.weight else Spreader(kernel)


def fake_arguments(kernel: RowKernel) -> tuple[Any, ...]:
    """Return placeholders for the arguments of a kernel's host function, with which it is traced."""
    stream = cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True)
    place = _vector(Int32)
    if isinstance(kernel, SortRows):
        of_index = _vector(Int32 if kernel.index_bits == 32 else Int64), place, _vector(Int32)
        if isinstance(kernel, SortTokens):
            return (*of_index, _vector(Int32), *_weights(kernel.weight), stream)
        return (*of_index, stream)
    if isinstance(kernel, SumRows):
        kind = lower.dtype(kernel.dtype)
        return _matrix(kind, kernel.vector), place, _matrix(kind, kernel.vector), stream
    if isinstance(kernel, TotalRows):
        return _matrix(lower.dtype(kernel.dtype), kernel.vector), place, _vector(lower.dtype(kernel.total)), stream
    assert isinstance(kernel, SpreadRows)
    kind = lower.dtype(kernel.dtype)
    matrices = _matrix(kind, kernel.vector), place, _matrix(kind, kernel.vector)
    if kernel.weight is None:
        return (*matrices, stream)
    return (*matrices, *_weights(kernel.weight), stream)


def _weights(dtype: DType) -> tuple[Any, Any]:
    """Return placeholders for the weights of tokens (T, k), and for the weights of rows (T * k,)."""
    kind = lower.dtype(dtype)
    shape, strides = (cute.sym_int32(), cute.sym_int32()), (cute.sym_int64(), cute.sym_int64())
    return cute.runtime.make_fake_tensor(kind, shape, strides, assumed_align=kind.width // 8), _vector(kind)


def _vector(kind: Any) -> Any:
    return cute.runtime.make_fake_tensor(kind, (cute.sym_int32(),), (1,), assumed_align=kind.width // 8)


def _matrix(kind: Any, vector: int) -> Any:
    shape, pitch = (cute.sym_int32(), cute.sym_int32(divisibility=vector)), cute.sym_int64(divisibility=vector)
    return cute.runtime.make_fake_tensor(kind, shape, (pitch, 1), assumed_align=kind.width * vector // 8)


@dsl_user_op
def put(address: Int32, value: Int32, *, loc=None, ip=None) -> None:
    """Write `value` to the shared memory of a CTA in the cluster (distributed shared memory).

    address   shared::cluster address, as the instruction `mapa` returns it
    """
    asm = assembler(loc, ip)
    operands = [Int32(address).ir_value(loc=loc, ip=ip), Int32(value).ir_value(loc=loc, ip=ip)]
    asm(None, operands, "st.shared::cluster.s32 [$0], $1;", "r,r")


class Sorter:
    """Emits the stable counting sort of a router's index."""

    def __init__(self, kernel: SortRows) -> None:
        self.kernel = kernel

    @cute.jit
    def __call__(self, mI: cute.Tensor, mP: cute.Tensor, mE: cute.Tensor, stream):
        """Launch the sort in one cluster. Runs on the host.

        mI       the index (T * k,)
        mP       the row of each entry (T * k,)
        mE       the end of the rows of each expert (L,)
        stream   CUDA stream of the launch
        """
        ctas, block = (self.kernel.ctas, 1, 1), (self.kernel.threads, 1, 1)
        self.sort(mI, mP, mE).launch(grid=ctas, block=block, cluster=ctas, stream=stream)

    @cute.kernel
    def sort(self, mI: cute.Tensor, mP: cute.Tensor, mE: cute.Tensor):
        """Count, add the counts, and place (device code)."""
        self.sorted(mI, mP, mE)

    def put(self, mP: cute.Tensor, entry, row) -> None:
        """Store the row of an entry."""
        mP[entry] = row

    @cute.jit
    def sorted(self, mI: cute.Tensor, mP: cute.Tensor, mE: cute.Tensor):
        """Count, add the counts, and place (device code)."""
        kernel = self.kernel
        tid, _, _ = cute.arch.thread_idx()
        rank, _, _ = cute.arch.block_idx()
        warp, lane = tid // WARP_THREADS, tid % WARP_THREADS
        if cutlass.const_expr(kernel.ctas > 1):
            cute.arch.cluster_arrive_relaxed()  # the wait follows before the first store to another CTA
        smem = cutlass.memory.SmemAllocator()
        # (counters, warps): the counts of each warp, then the rows of its entries
        counts = smem.allocate_tensor(Int32, cute.make_layout((kernel.counters, kernel.warps)))
        totals = smem.allocate_tensor(Int32, cute.make_layout(kernel.counters))  # counts of all CTAs
        earlier = smem.allocate_tensor(Int32, cute.make_layout(kernel.counters))  # counts of CTAs before this one
        for i in cutlass.range(tid, kernel.counters * kernel.warps, kernel.threads):
            counts[i % kernel.counters, i // kernel.counters] = 0
        cute.arch.sync_threads()
        steps = cute.ceil_div(cute.ceil_div(mI.shape[0], kernel.threads * kernel.ctas), SORTED_AT_ONCE)
        first = (rank * kernel.warps + warp) * steps * SORTED_AT_ONCE * WARP_THREADS + lane
        for step in cutlass.range(steps):
            keys = self.loaded(mI, first + step * SORTED_AT_ONCE * WARP_THREADS)
            for i in cutlass.range_constexpr(SORTED_AT_ONCE):
                own = keys[i]
                peers = self.peers(own)
                if own <= kernel.experts and self.before(peers, lane) == 0:
                    counts[own, warp] = counts[own, warp] + cute.arch.popc(peers)
                cute.arch.sync_warp()
        cute.arch.sync_threads()
        for key in cutlass.range(tid, kernel.counters, kernel.threads):
            total = Int32(0)
            for i in cutlass.range(kernel.warps):
                count = counts[key, i]
                counts[key, i] = total
                total += count
            totals[key] = total
            earlier[key] = 0
        if cutlass.const_expr(kernel.ctas > 1):
            self.exchange(smem, totals, earlier, tid, rank)
        cute.arch.sync_threads()
        if warp == 0:
            self.add_up(totals, mE, lane, rank)
        cute.arch.sync_threads()
        for step in cutlass.range(steps):
            at = first + step * SORTED_AT_ONCE * WARP_THREADS
            keys = self.loaded(mI, at)
            for i in cutlass.range_constexpr(SORTED_AT_ONCE):
                own = keys[i]
                peers = self.peers(own)
                rank, row = self.before(peers, lane), Int32(0)
                if own <= kernel.experts:
                    row = totals[own] + earlier[own] + counts[own, warp]
                    self.put(mP, at + i * WARP_THREADS, row + rank)
                cute.arch.sync_warp()
                if own <= kernel.experts and rank == 0:
                    counts[own, warp] = counts[own, warp] + cute.arch.popc(peers)
                cute.arch.sync_warp()

    @cute.jit
    def exchange(self, smem: cutlass.Constexpr, totals: cute.Tensor, earlier: cute.Tensor, tid: Int32, rank: Int32):
        """Replace the counts of this CTA in `totals` by those of the cluster, and those of `earlier` by earlier CTAs'.

        A thread has the same counters as when it counted.
        """
        kernel = self.kernel
        # (counters, CTAs): the counts of each CTA, at the same address in all of them
        of_ctas = smem.allocate_tensor(Int32, cute.make_layout((kernel.counters, kernel.ctas)))
        cute.arch.cluster_wait()  # all CTAs of the cluster run
        for key in cutlass.range(tid, kernel.counters, kernel.threads):
            own = of_ctas.iterator + rank * kernel.counters + key
            for to in cutlass.range_constexpr(kernel.ctas):
                put(cute.arch.map_dsmem_ptr(own, Int32(to)).toint(), totals[key])
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()
        for key in cutlass.range(tid, kernel.counters, kernel.threads):
            total, before = Int32(0), Int32(0)
            for i in cutlass.range_constexpr(kernel.ctas):
                if rank == i:
                    before = total
                total += of_ctas[key, i]
            totals[key], earlier[key] = total, before

    @cute.jit
    def loaded(self, mI: cute.Tensor, first: Int32):
        """Return the counters of entries of a thread, `WARP_THREADS` apart; L + 1 beyond the last entry of the index.

        first   position of the first entry
        """
        keys = cute.make_rmem_tensor((SORTED_AT_ONCE,), Int32)
        for i in cutlass.range_constexpr(SORTED_AT_ONCE):
            keys[i] = self.kernel.experts + 1
            at = first + i * WARP_THREADS
            if at < mI.shape[0]:
                entry = mI[at]
                # Every number has a counter, so that no wrong index leads to a write outside
                entry = cutlass.min(cutlass.max(entry, 0), self.kernel.experts)
                keys[i] = Int32(entry)
        return keys

    def peers(self, own) -> Any:
        """Return the lanes with the same counter as bits of an integer."""
        found = Int32(-1)
        for bit in range((self.kernel.experts + 1).bit_length()):
            is_set = (own >> bit) & 1
            lanes = Int32(cute.arch.vote_ballot_sync(is_set == 1))
            found = found & (lanes ^ (is_set - 1))
        return found

    def before(self, lanes, lane) -> Any:
        """Return how many of some lanes are before a lane."""
        return Int32(cute.arch.popc(lanes & ((Int32(1) << lane) - 1)))

    @cute.jit
    def add_up(self, totals: cute.Tensor, mE: cute.Tensor, lane: Int32, rank: Int32):
        """Replace the count of each counter by the first row of its entries. One warp calls it.

        The first CTA stores the ends.
        """
        start = Int32(0)
        for step in cutlass.range(cute.ceil_div(self.kernel.counters, WARP_THREADS)):
            key = step * WARP_THREADS + lane
            count = Int32(0)
            if key < self.kernel.counters:
                count = totals[key]
            last = count
            for i in cutlass.range_constexpr(5):
                before = cute.arch.shuffle_sync_up(last, 1 << i, mask_and_clamp=0)
                if lane >= 1 << i:
                    last += before
            if key < self.kernel.counters:
                totals[key] = start + last - count
            if key < self.kernel.experts and rank == 0:
                mE[key] = start + last
            start += cute.arch.shuffle_sync(last, WARP_THREADS - 1)


class SorterOfTokens(Sorter):
    """Emits the sort that also writes the token and the weight of each row."""

    def __init__(self, kernel: SortTokens) -> None:
        super().__init__(kernel)
        self.of_rows: tuple[cute.Tensor, ...] = ()

    @cute.jit
    def __call__(
        self,
        mI: cute.Tensor,
        mP: cute.Tensor,
        mE: cute.Tensor,
        mT: cute.Tensor,
        mW: cute.Tensor,
        mV: cute.Tensor,
        stream,
    ):
        """Launch the sort in one cluster. Runs on the host.

        mI, mP, mE   as for `Sorter`
        mT           the token of each row (T * k,)
        mW, mV       the weights of tokens (T, k), and those of rows (T * k,)
        stream       CUDA stream of the launch
        """
        ctas, block = (self.kernel.ctas, 1, 1), (self.kernel.threads, 1, 1)
        self.sort_tokens(mI, mP, mE, mT, mW, mV).launch(grid=ctas, block=block, cluster=ctas, stream=stream)

    @cute.kernel
    def sort_tokens(
        self, mI: cute.Tensor, mP: cute.Tensor, mE: cute.Tensor, mT: cute.Tensor, mW: cute.Tensor, mV: cute.Tensor
    ):
        """Count, add the counts, and place (device code)."""
        self.of_rows = mT, lower.as_bits(mW), lower.as_bits(mV)
        self.sorted(mI, mP, mE)

    def put(self, mP: cute.Tensor, entry, row) -> None:
        """Store the row of an entry, and the token and the weight of that row."""
        super().put(mP, entry, row)
        mT, mW, mV = self.of_rows
        token, place = entry // self.kernel.count, entry % self.kernel.count
        mT[row] = token
        mV[row] = mW[token, place]


class Vectors:
    """Copies of vectors of adjacent elements between rows in memory and registers of a thread."""

    def __init__(self, kernel: SpreadRows | SumRows | TotalRows) -> None:
        self.kernel = kernel

    def grid(self, tokens: cute.Tensor) -> tuple[Any, Any, int]:
        """Return the grid for a matrix with a row for each token: a CTA has a chunk. Runs on the host."""
        return tokens.shape[0], cutlass.max(cute.ceil_div(tokens.shape[1], self.kernel.chunk), 1), 1

    def vector(self, mX: cute.Tensor, row, column) -> cute.Tensor:
        """Return the view of a vector of adjacent elements of a row."""
        vector = self.kernel.vector
        offset = Int64(row) * mX.stride[0] + column
        pointer = mX.iterator + cute.assume(offset, divby=vector)
        return cute.make_tensor(pointer.align(mX.element_type.width * vector // 8), cute.make_layout((vector,)))

    def copy(self, source: cute.Tensor, target: cute.Tensor) -> None:
        """Copy a vector between memory and registers in one access."""
        kind = source.element_type
        atom = cute.make_copy_atom(
            cute.nvgpu.CopyUniversalOp(), kind, num_bits_per_copy=kind.width * self.kernel.vector
        )
        cute.copy_atom_call(atom, source, target)

    def loaded(self, mX: cute.Tensor, row, column) -> cute.Tensor:
        """Load a vector of a row to registers."""
        registers = cute.make_rmem_tensor((self.kernel.vector,), mX.element_type)
        self.copy(self.vector(mX, row, column), registers)
        return registers


class Spreader(Vectors):
    """Emits the kernel that copies each token to its rows."""

    @cute.jit
    def __call__(self, mX: cute.Tensor, mP: cute.Tensor, mR: cute.Tensor, stream):
        """Launch the copies. Runs on the host.

        mX       rows of tokens (T, K)
        mP       the row of each entry of the index (T * k,)
        mR       rows of experts (T * k, K)
        stream   CUDA stream of the launch
        """
        self.spread(mX, mP, mR).launch(grid=self.grid(mX), block=(self.kernel.threads, 1, 1), stream=stream)

    @cute.kernel
    def spread(self, mX: cute.Tensor, mP: cute.Tensor, mR: cute.Tensor):
        """Copy a chunk of a token (device code)."""
        self.spread_chunk(mX, mP, mR)

    @cute.jit
    def spread_chunk(self, mX: cute.Tensor, mP: cute.Tensor, mR: cute.Tensor):
        """Copy a chunk of the CTA's token to all of its rows."""
        kernel = self.kernel
        tid, _, _ = cute.arch.thread_idx()
        token, chunk, _ = cute.arch.block_idx()
        column = chunk * kernel.chunk + tid * kernel.vector
        mX, mR = lower.as_bits(mX), lower.as_bits(mR)
        if column < mX.shape[1]:
            values = self.loaded(mX, token, column)
            for i in cutlass.range_constexpr(kernel.count):
                self.copy(values, self.vector(mR, mP[token * kernel.count + i], column))


class SpreaderOfTwo(Spreader):
    """Emits the kernel that copies each token to its rows, and the weights with it."""

    @cute.jit
    def __call__(self, mX: cute.Tensor, mP: cute.Tensor, mR: cute.Tensor, mW: cute.Tensor, mV: cute.Tensor, stream):
        """Launch the copies. Runs on the host.

        mX, mP, mR   as for `Spreader`
        mW, mV       the weights of tokens (T, k), and those of rows (T * k,)
        stream       CUDA stream of the launch
        """
        grid, block = self.grid(mX), (self.kernel.threads, 1, 1)
        self.spread_both(mX, mP, mR, mW, mV).launch(grid=grid, block=block, stream=stream)

    @cute.kernel
    def spread_both(self, mX: cute.Tensor, mP: cute.Tensor, mR: cute.Tensor, mW: cute.Tensor, mV: cute.Tensor):
        """Copy a chunk of a token and, with the first chunk, its weights (device code)."""
        tid, _, _ = cute.arch.thread_idx()
        token, chunk, _ = cute.arch.block_idx()
        mW, mV = lower.as_bits(mW), lower.as_bits(mV)
        if chunk == 0:
            for i in cutlass.range(tid, self.kernel.count, self.kernel.threads):
                entry = token * self.kernel.count + i
                mV[mP[entry]] = mW[token, i]
        self.spread_chunk(mX, mP, mR)


class Adder(Vectors):
    """Emits the kernel that adds the rows of each token."""

    @cute.jit
    def __call__(self, mR: cute.Tensor, mP: cute.Tensor, mY: cute.Tensor, stream):
        """Launch the sums. Runs on the host.

        mR       rows of experts (T * k, K)
        mP       the row of each entry of the index (T * k,)
        mY       sums of the rows of each token (T, K)
        stream   CUDA stream of the launch
        """
        self.add(mR, mP, mY).launch(grid=self.grid(mY), block=(self.kernel.threads, 1, 1), stream=stream)

    @cute.kernel
    def add(self, mR: cute.Tensor, mP: cute.Tensor, mY: cute.Tensor):
        """Add a chunk of the rows of a token (device code)."""
        kernel = self.kernel
        tid, _, _ = cute.arch.thread_idx()
        token, chunk, _ = cute.arch.block_idx()
        column = chunk * kernel.chunk + tid * kernel.vector
        if column < mY.shape[1]:
            rows = [self.loaded(mR, mP[token * kernel.count + i], column) for i in range(kernel.count)]
            total = cute.make_rmem_tensor((kernel.vector,), Float32)
            total.fill(0)
            for row in rows:
                total.store(total.load() + row.load().to(Float32))
            sums = cute.make_rmem_tensor((kernel.vector,), mY.element_type)
            sums.store(total.load().to(mY.element_type))
            self.copy(sums, self.vector(mY, token, column))


class Totaller(Vectors):
    """Emits the kernel that adds the elements of each row."""

    @cute.jit
    def __call__(self, mR: cute.Tensor, mP: cute.Tensor, mT: cute.Tensor, stream):
        """Launch the sums. Runs on the host.

        mR       rows of experts (T * k, K)
        mP       the row of each entry of the index (T * k,)
        mT       sum of the row of each entry (T * k,)
        stream   CUDA stream of the launch
        """
        grid, block = (cute.ceil_div(mT.shape[0], self.kernel.rows), 1, 1), (self.kernel.threads, 1, 1)
        self.total(mR, mP, mT).launch(grid=grid, block=block, stream=stream)

    @cute.kernel
    def total(self, mR: cute.Tensor, mP: cute.Tensor, mT: cute.Tensor):
        """Add the elements of a row in each warp (device code)."""
        kernel = self.kernel
        tid, _, _ = cute.arch.thread_idx()
        cta, _, _ = cute.arch.block_idx()
        entry, lane = cta * kernel.rows + tid // WARP_THREADS, tid % WARP_THREADS
        if entry < mT.shape[0]:
            totals = cute.make_rmem_tensor((kernel.vector,), Float32)
            totals.fill(0)
            row = mP[entry]
            for column in cutlass.range(lane * kernel.vector, mR.shape[1], WARP_THREADS * kernel.vector):
                totals.store(totals.load() + self.loaded(mR, row, column).load().to(Float32))
            total = totals[0]
            for i in cutlass.range_constexpr(1, kernel.vector):
                total += totals[i]
            for distance in cutlass.range_constexpr(5):
                total += cute.arch.shuffle_sync_bfly(total, 1 << distance)
            if lane == 0:
                mT[entry] = total.to(mT.element_type)
