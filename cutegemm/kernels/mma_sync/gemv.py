"""A GEMM with few columns by mma.sync: A is streamed from global memory directly to fragments.

The warps of a CTA (sliced-K) and the CTAs of a cluster (cluster split-K) split K; see `SlicedSchedule`.

| step     | implementation                                                                               |
|----------|----------------------------------------------------------------------------------------------|
| Read     | 16-byte vectors from global memory to registers, several of a k-tile at once. A vector has   |
|          | the fragments of two k-blocks; the Read of the first one loads it                            |
| Multiply | one mma.sync for each pair of atoms                                                          |
| end      | accumulators of the warps, then of the CTAs, are added through shared memory; then D is      |
|          | stored by `plan.epilogue`                                                                    |

An access beyond the last row or column reads the last one, so it needs no predicate; its accumulators are not stored.
The ragged k-tile is the first one. Its vectors below k = 0 are zeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32
from cutlass.cutlass_dsl import dsl_user_op

from cutegemm.kernels import lower
from cutegemm.kernels.arguments import launch_arguments
from cutegemm.kernels.assembly import assembler
from cutegemm.kernels.launches import begin, release, wait
from cutegemm.kernels.mma_sync.rounding import round_fragment
from cutegemm.kernels.reduce import Reducer
from cutegemm.kernels.threads.mainloop import ScheduledGemm, reread, serpentine
from cutegemm.kernels.values import Values
from cutegemm.kernels.work import TRACED
from cutegemm.layout import Layout
from cutegemm.machine.arch import SMEM_RESERVED_BYTES, WARP_THREADS, arch_named
from cutegemm.plan.launches import GEMM
from cutegemm.plan.program.thread_schedule import Multiply, Read
from cutegemm.plan.reduction import ACCUMULATOR_ALIGN_BYTES
from cutegemm.tile.tiled_copy import TiledCopy

_WORDS = 4  # 32-bit words of a vector that a thread reads at once
_BLOCKS = 2  # k-blocks whose fragments a vector holds


@dsl_user_op
def put(address: Int32, value: Float32, *, loc=None, ip=None) -> None:
    """Write `value` to the shared memory of a CTA in the cluster (distributed shared memory).

    address   shared::cluster address, as the instruction `mapa` returns it
    """
    asm = assembler(loc, ip)
    operands = [Int32(address).ir_value(loc=loc, ip=ip), Float32(value).ir_value(loc=loc, ip=ip)]
    asm(None, operands, "st.shared::cluster.f32 [$0], $1;", "r,f")


@dataclass
class Stream:
    """The elements of A or of B that one thread of a gemv kernel reads from global memory, as vectors.

    atom        copy atom that loads one vector
    rows        pointers to the first vector of each of the thread's rows
    k           index along K of the first element of these vectors; may be negative
    offsets     distance from the first vector to each vector of a k-tile, in elements
    registers   destination of the loads, with three modes: 32-bit words of a vector, the thread's rows, vectors of a
                k-tile
    values      number of elements of a vector
    of_atom     rows of one MMA atom that a thread reads: 2 of A, 1 of B
    """

    atom: cute.CopyAtom
    rows: list[cute.Pointer]
    k: Any
    offsets: Any
    registers: cute.Tensor
    values: int
    of_atom: int


class GemvGemm(ScheduledGemm):
    """Emits the kernel for a D of few columns (GEMV-like): each warp multiplies a share of K by mma.sync.

    Operands are read from global memory to registers, without shared memory. At the end the warps of a CTA, and the
    CTAs of a cluster, add their accumulators. Methods without a decorator such as @cute.jit are plain Python that runs
    while the DSL traces the kernel.
    """

    @cute.jit
    def __call__(self, *arguments):
        given = launch_arguments(self.plan, arguments)
        mA, mB, mD, (tensors, results) = self.matrices(given)
        ctas, reducer = self.plan.cluster_k, Reducer(self.plan, self.launches)
        partials = reducer.partials(given, mD, mA.shape[1])
        in_clusters = {"cluster": (ctas, 1, 1)} if ctas > 1 else {}
        work = self.tiles(mD).along(mA.shape[1])
        values = work.host_values(Int32, lower.divisors)
        operands = (tensors, (*results, *partials))
        self.stream_kernel(mA, mB, operands, mD, given.scalars, values).launch(
            grid=(work.clusters * ctas, 1, 1),
            block=(self.plan.threads, 1, 1),
            stream=given.stream,
            min_blocks_per_mp=self.plan.ctas_per_sm,
            preferred_smem_carveout=self.carveout_percent(),
            use_pdl=self.launches[GEMM].waits,
            **in_clusters,
        )
        reducer.launch(partials, given, given.stream)

    def carveout_percent(self) -> int:
        """Return the percentage of an SM's L1 and shared memory that is shared memory: no more than its CTAs need.

        The rest is L1 cache, which keeps B.
        """
        arch, used = arch_named(self.plan.arch), sum(self.plan.smem_bytes().values()) + SMEM_RESERVED_BYTES
        return min(100, -(-100 * self.plan.ctas_per_sm * used // arch.smem_per_sm_bytes))

    @cute.kernel
    def stream_kernel(
        self,
        mA: cute.Tensor,
        mB: cute.Tensor,
        operands: tuple,
        mD: cute.Tensor,
        scalars: tuple,
        values: tuple,
    ):
        """Compute the tiles of D of one cluster of CTAs (device code of a gemv plan).

        Each CTA multiplies its share of K for all tiles of the cluster. Then it adds the accumulators of all CTAs for
        its own tile, and stores it.

        mA, mB, mD   A (M, K, L), B (N, K, L) and D (M, N, L) in global memory
        operands     (input tensors, auxiliary outputs) of the epilogue
        scalars      scalars of the epilogue
        values       values of the host that CTAs need to find their tiles
        """
        plan, ctas = self.plan, self.plan.cluster_k
        self.values = Values.of(plan, operands, scalars)
        rows, bN, bK = plan.mma_tile
        if cutlass.const_expr(ctas > 1):
            cute.arch.cluster_arrive_relaxed()  # the wait follows before the first store to another CTA
        tid, _, _ = cute.arch.thread_idx()
        number, _, _ = cute.arch.block_idx()
        rank = number % ctas
        work = plan.scheduler.from_values(plan.cluster_tile, values, TRACED, {})
        m_tile, n_tile, batch = work.tiles.tile_mnl(number // ctas)
        k_first, k_tiles = plan.k_range(rank, work.k_tiles, cutlass.min)
        begin = cute.assume(mA.shape[1] - work.k_tiles * bK + k_first * bK, divby=plan.a.load.atom.values)
        streams = [
            self.stream(copy, of_atom, mX, extent, (m_or_n, batch), begin, tid)
            for copy, of_atom, mX, extent, m_or_n in (
                (plan.a.load, 2, mA, rows, m_tile // ctas),
                (plan.b.load, 1, mB, bN, n_tile),
            )
        ]
        tiled_mma = lower.tiled_mma(plan.tiled_mma)
        acc = cute.make_rmem_tensor(
            tiled_mma.get_slice(tid).partition_shape_C((rows, bN)), lower.dtype(plan.operands.acc)
        )
        acc.fill(0.0)
        self.begin(streams, k_tiles)
        for k_tile in cutlass.range(k_tiles, unroll=1):
            self.steps(plan.body.k_tile, streams, tiled_mma, acc, k_tile, k_tiles)
        self.finish(tiled_mma, acc, mD, (m_tile + rank, n_tile, batch), rank, reread("%tid.x"))

    def begin(self, streams: list[Stream], k_tiles) -> None:
        """Issue the first reads of a thread, and wait for the previous kernel in the stream.

        With programmatic dependent launch, A is read before the previous kernel ends. B may be written by that kernel,
        so it is read after.

        streams   the thread's vectors of A and of B
        k_tiles   number of k-tiles of the CTA
        """
        reads = list(self.plan.body.prologue)
        if not self.plan.pdl:
            begin(self.launches[GEMM])
            self.read_blocks(streams, reads, Int32(0), k_tiles)
            return
        release(self.launches[GEMM])
        self.read_blocks(streams[:1], reads, Int32(0), k_tiles)
        wait(self.launches[GEMM])
        self.read_blocks(streams[1:], reads, Int32(0), k_tiles)

    # --- the mainloop ------------------------------------------------------------------------------------------

    def stream(self, copy: TiledCopy, of_atom: int, mX, extent: int, tile_l, begin, tid) -> Stream:
        """Return the vectors of A or B that a thread reads from global memory, for one tile.

        copy      tiled copy that divides the tile among threads
        of_atom   rows of one MMA atom that a thread reads: 2 of A, 1 of B
        mX        A (M, K, L) or B (N, K, L)
        extent    rows or columns of the tile
        tile_l    (index of the tile along M or N, batch)
        begin     start of the first k-tile along K; negative if K is ragged
        tid       index of the thread
        """
        bK, values = self.plan.cta_tile[2], copy.atom.values
        tile, batch = tile_l
        thr = lower.tiled_copy(copy).get_slice(tid)
        coords = thr.partition_S(cute.make_identity_tensor((extent, bK)))  # (V, REST_MN, REST_K)
        count = cute.size(coords, mode=[1])
        k = cute.assume(coords[0, 0, 0][1] + begin, divby=values)
        rows = []
        for i in range(count):
            at = cutlass.min(coords[0, i, 0][0] + tile * extent, mX.shape[0] - 1)
            offset = cute.crd2idx((at, 0, batch), mX.layout) + k
            rows.append(mX.iterator + cute.assume(offset, divby=values))
        offsets = copy.offsets_s(Layout((extent, bK), (0, 1)))[0, ::values, 0]
        vectors = offsets.size
        registers = cute.make_rmem_tensor((_WORDS, count, vectors), Int32)
        registers.fill(0)
        return Stream(lower.copy_atom(copy.atom), rows, k, offsets.T.reshape(-1), registers, values, of_atom)

    def steps(self, steps, streams: list[Stream], tiled_mma, acc, k_tile, k_tiles) -> None:
        """Emit the code of steps of a gemv plan's schedule, in order: reads of k-blocks, and MMAs.

        Adjacent reads are emitted together.

        tiled_mma   the MMA instruction, and how it is repeated over the tile
        steps       `Read` and `Multiply` steps
        streams     the vectors of A and of B that this thread reads
        acc         accumulators of the thread
        k_tile      the k-tile that the steps count from
        k_tiles     number of k-tiles of the CTA
        """
        reads: list[Read] = []
        for step in steps:
            if isinstance(step, Read):
                reads.append(step)
                continue
            self.read_blocks(streams, reads, k_tile, k_tiles)
            reads = []
            self.multiply_block(streams, step, tiled_mma, acc)
        self.read_blocks(streams, reads, k_tile, k_tiles)

    def read_blocks(self, streams: list[Stream], reads: list[Read], k_tile, k_tiles) -> None:
        """Read the fragments of A and B for several k-blocks from global memory, one k-tile after another.

        streams   the thread's vectors of A and of B
        reads     the Read steps, which name the k-blocks and their k-tiles
        k_tile    the k-tile that the steps count from
        k_tiles   number of k-tiles of the CTA
        """
        for ahead in sorted({read.ahead for read in reads}):
            blocks = tuple([read.k_block for read in reads if read.ahead == ahead])
            self.read_of_tile(streams, blocks, k_tile + ahead, k_tiles)

    @cute.jit
    def read_of_tile(self, streams: cutlass.Constexpr, blocks: cutlass.Constexpr, k_tile: Int32, k_tiles: Int32):
        """Read the fragments of A and B for some k-blocks from global memory, if the CTA still has this k-tile.

        streams   the thread's vectors of A and of B
        blocks    indices of the k-blocks
        k_tile    index of the k-tile among those of the CTA
        k_tiles   number of k-tiles of the CTA
        """
        if k_tile < k_tiles:
            for stream in streams:
                self.read_vectors(stream, blocks, k_tile)

    def read_vectors(self, stream: Stream, blocks, k_tile) -> None:
        """Read the vectors of A or B that contain this thread's elements of some k-blocks, from global memory.

        The first k-tile may start at a negative k; vectors below k = 0 are not read.

        stream   the thread's vectors
        blocks   indices of the k-blocks
        k_tile   index of the k-tile
        """
        values, count = stream.values, cute.size(stream.registers, mode=[1])
        for vector in sorted({block // _BLOCKS for block in blocks}):
            offset = k_tile * self.plan.cta_tile[2] + int(stream.offsets[vector])
            inside = cute.make_rmem_tensor((1,), Boolean)
            inside[0] = stream.k + offset >= 0
            for i in range(count):
                at = stream.rows[i] + cute.assume(offset, divby=values)
                source = cute.make_tensor(at, cute.make_layout(((values, 1),)))
                to = cute.recast_ptr(stream.registers[None, i, vector].iterator, dtype=at.dtype)
                cute.copy(stream.atom, source, cute.make_tensor(to, source.layout), pred=inside)

    def fragments(self, stream: Stream, k_block: int, kind) -> cute.Tensor:
        """Return a thread's fragments of A or B for one k-block, in the order of registers that mma.sync takes.

        Each row gives two 32-bit words of the vector that the thread has loaded: the first two for an even k-block, the
        last two for an odd one.

        stream    the thread's vectors of A or of B
        k_block   index of the k-block in the k-tile
        kind      element type
        returns   registers with two modes: elements of an MMA atom, MMA atoms along M or N
        """
        vector, first = k_block // _BLOCKS, k_block % _BLOCKS * _WORDS // _BLOCKS
        of_atom, count = stream.of_atom, cute.size(stream.registers, mode=[1])
        words = cute.make_rmem_tensor((of_atom * _WORDS // _BLOCKS, count // of_atom), Int32)
        for row in range(count):
            for word in range(_WORDS // _BLOCKS):
                place = row % of_atom + of_atom * word
                words[place, row // of_atom] = stream.registers[first + word, row, vector]
        if self.plan.rounding == "rna":
            round_fragment(words)
        return cute.recast_tensor(words, kind)

    def multiply_block(self, streams: list[Stream], step: Multiply, tiled_mma, acc) -> None:
        """Add the product of one k-block's fragments to the accumulators, one MMA atom at a time.

        tiled_mma   the MMA instruction, and how it is repeated over the tile
        streams     the thread's vectors of A and of B
        step        the Multiply step, which names the k-block
        acc         accumulators of the thread
        """
        operands = self.plan.operands
        kinds = [lower.dtype(operand.dtype) for operand in (operands.a, operands.b)]
        a, b = [self.fragments(stream, step.k_block, kind) for stream, kind in zip(streams, kinds, strict=True)]
        for m, n in serpentine(cute.size(a, mode=[1]), cute.size(b, mode=[1]), self.plan.mma_order):
            accumulators = acc[None, m, n]
            cute.mma_atom_call(tiled_mma, accumulators, a[None, m], b[None, n], accumulators)

    # --- reduction of the K splits ----------------------------------------------------------------------------

    @cute.jit
    def finish(
        self, tiled_mma: cutlass.Constexpr, acc: cutlass.Constexpr, mD: cutlass.Constexpr,
        tile_mnl: cutlass.Constexpr, rank: cutlass.Constexpr, tid: Int32,
    ):  # fmt: skip
        """Add the accumulators of the warps, then of the CTAs of the cluster, and store this CTA's tile of D.

        tiled_mma   the MMA instruction, and how it is repeated over the tile
        acc         accumulators of this thread
        mD          D (M, N, L)
        tile_mnl    (m_tile, n_tile, batch) of the tile
        rank        rank of the CTA in its cluster
        tid         index of the thread
        """
        plan, accumulators = self.plan, self.plan.body.sliced_k
        kind = lower.dtype(plan.operands.acc)
        base = cutlass.memory.SmemAllocator().allocate(plan.smem_bytes()["accumulators"], ACCUMULATOR_ALIGN_BYTES)
        of_warps = cute.make_tensor(cute.recast_ptr(base, dtype=kind), lower.layout(accumulators.by_warp))
        own = tiled_mma.get_slice(tid).partition_C(of_warps[None, None, tid // WARP_THREADS])
        cute.autovec_copy(acc, own)
        if cutlass.const_expr(plan.cluster_k > 1):
            cute.arch.cluster_wait()  # all CTAs of the cluster run
        cute.arch.sync_threads()
        thr = lower.tiled_mma(accumulators.added).get_slice(tid)
        total = cute.make_rmem_tensor(thr.partition_shape_C(plan.d_tile), kind)
        if cutlass.const_expr(plan.cluster_k > 1):
            place = cute.recast_ptr(base, dtype=kind) + accumulators.by_warp.cosize()
            of_ctas = cute.make_tensor(place, lower.layout(accumulators.by_cta))
            if tid < accumulators.added.threads:
                for to in cutlass.range_constexpr(plan.cluster_k):
                    self.add_up(thr, of_warps, to, total)
                    self.send(thr, of_ctas, rank, to, total)
            cute.arch.cluster_arrive()
            cute.arch.cluster_wait()
            if tid < accumulators.added.threads:
                self.add_up(thr, of_ctas, 0, total)
                self.store_d(thr, mD, None, total, plan.epilogue, tile_mnl, tid)
        else:
            if tid < accumulators.added.threads:
                self.add_up(thr, of_warps, 0, total)
                self.store_d(thr, mD, None, total, plan.epilogue, tile_mnl, tid)

    def add_up(self, thr, accumulators, of_tile: int, total) -> None:
        """Set `total` to the sums over all K splits of the accumulators at this thread's elements of one CTA's tile.

        thr            the thread's slice of the tiled MMA that divides a tile among threads
        accumulators   (rows, bN, K splits) in shared memory; K splits are added in their order
        of_tile        index of the CTA's tile along the rows
        total          registers of the thread
        """
        parts = cute.size(accumulators, mode=[2])
        own = [
            thr.partition_C(cute.local_tile(accumulators[None, None, part], self.plan.d_tile, (of_tile, 0)))
            for part in range(parts)
        ]
        for i in range(cute.size(total)):
            value = own[0][i]
            for part in own[1:]:
                value = value + part[i]
            total[i] = value

    def send(self, thr, of_ctas, rank, to: int, total) -> None:
        """Write a thread's totals for the tile of CTA `to` to that CTA's shared memory.

        thr       the thread's slice of the tiled MMA that divides a tile among threads
        of_ctas   (rows, bN, CTAs) in shared memory, at the same address in each CTA
        rank      rank of this CTA, which is the index of its totals in `of_ctas`
        to        rank of the receiving CTA, which may be this one
        total     registers with the totals
        """
        own = thr.partition_C(of_ctas[None, None, rank])
        for i in range(cute.size(total)):
            place = own.iterator + cute.crd2idx(i, own.layout)
            put(cute.arch.map_dsmem_ptr(place, Int32(to)).toint(), total[i])
