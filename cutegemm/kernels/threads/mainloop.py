"""Base of the kernels with one schedule for all threads of a CTA.

| when            | what                                                                                |
|-----------------|-------------------------------------------------------------------------------------|
| start           | the CTA takes a work tile of `plan.scheduler`, and partitions A, B and D            |
| ragged tiles    | it clears the elements that its copies will omit, then a barrier                    |
|-----------------|-------------------------------------------------------------------------------------|
| prologue        | Fetch, Commit, Store of the first stages - 1 k-tiles, then Wait, Sync, Read         |
| each k-tile     | Fetch of a later k-tile; for each k-block, Read of the next one and Multiply;       |
|                 | before the last k-block Store, Wait and Sync, which make the next stage readable    |
|-----------------|-------------------------------------------------------------------------------------|
| end             | the epilogue: see `epilogue`                                                        |

The steps between the bars are exactly those of `plan.body`:

| step     | tile copied by cp.async                  | tile copied through registers                 |
|----------|------------------------------------------|-----------------------------------------------|
| Fetch    | starts copies, global to shared memory   | global memory to registers                    |
| Commit   | closes the group of copies               | (an empty group)                              |
| Store    | -                                        | registers to shared memory                    |
| Wait     | for this thread's groups but the last n  | (groups are empty)                            |
| Sync     | barrier of all threads: each may read what all others have copied or stored              |
| Read     | shared memory to one buffer of fragments                                                 |
| Multiply | MMAs of a k-block, back and forth along `plan.mma_order`                                 |

The ragged k-tile is the first one: it starts at k = K - k_tiles * bK <= 0, and elements below k = 0 are omitted. So no
later k-tile tests k, and the predicates of the mainloop are loop invariants. Steps beyond the last k-tile copy nothing
from global memory, and nothing reads what else they do.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32, Int64, Uint16
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import T, dsl_user_op

from cutegemm.kernels import lower
from cutegemm.kernels.arguments import LaunchArguments, launch_arguments, operands_seen
from cutegemm.kernels.assembly import assembler
from cutegemm.kernels.glu import by_blocks, columns_of_b
from cutegemm.kernels.launches import SMEM_CARVEOUT_PERCENT, begin
from cutegemm.kernels.lines import ALL_THREADS, from_line
from cutegemm.kernels.reduce import Reducer
from cutegemm.kernels.threads.epilogue import ScheduledEpilogue
from cutegemm.kernels.values import Values
from cutegemm.kernels.work import TRACED
from cutegemm.plan.launches import GEMM
from cutegemm.plan.plan import HALF_BITS
from cutegemm.plan.problem import Operand
from cutegemm.plan.program.thread_schedule import Commit, Fetch, Multiply, Read, Repeat, Store, Sync, Wait
from cutegemm.plan.shared import smem_align_bytes
from cutegemm.plan.work.division import WorkTile
from cutegemm.plan.work.scheduler import WorkGrid
from cutegemm.plan.work.tiles import TileGrid

# With this many accumulators in a thread, the epilogue does not use divisors from the host. They would save
# instructions, but spill up to 13 registers (simt_128x128, D not aligned, CUDA 13).
_MANY_ACCUMULATORS = 128
_FEW_REGISTERS = 64  # with a smaller budget the start does without these divisors as well (sgemm_05_row_of_4)


@dataclass
class ThreadCopy:
    """One thread's part of the copies of A, or of B, from global to shared memory.

    The modes of the tensors are: V, elements that are copied at one position of the tiled copy; REST_MN and REST_K, its
    positions along M or N and along K; then k-tiles or stages.

    copy       the tiled copy
    is_async   whether cp.async copies, without registers in between
    extent     extent of the matrix along M or N
    gX         elements in global memory (V, REST_MN, REST_K, k_tiles)
    cX         coordinates (mn, k) of the same elements, with the shape of gX
    sX         elements in shared memory (V, REST_MN, REST_K, stages)
    rX         registers (V, REST_MN, REST_K) between global and shared memory; None with cp.async. If 16-bit elements
               are loaded one by one, each has a 32-bit register
    pX         predicates (V / vector, REST_MN, REST_K): whether an access lies within the matrix along M or N
    """

    copy: cute.TiledCopy
    is_async: bool
    extent: Any
    gX: cute.Tensor
    cX: cute.Tensor
    sX: cute.Tensor
    rX: cute.Tensor
    pX: cute.Tensor

    @property
    def by_words(self) -> bool:
        """Return whether this thread loads its elements to registers in accesses of 32, 64 or 128 bits."""
        return not self.is_async and not self.by_halves

    @property
    def by_halves(self) -> bool:
        """Return whether this thread loads 16-bit elements one by one, each to a 32-bit register."""
        return self.rX.element_type is Int32


@dataclass
class ThreadTiles:
    """The tiles, fragments and accumulators of one thread, which the steps of its schedule read and write.

    k_first      index of the CTA's first k-tile
    k_tiles      number of k-tiles of the CTA
    loads        copies of A and of B
    tCsA, tCsB   shared memory (V, REST_MN, k_blocks, stages) that fragments are read from
    tCrA, tCrB   fragments (V, REST_MN, buffers)
    acc          accumulators (V, REST_M, REST_N)
    tiled_mma    the MMA instruction, and how it is repeated over the tile
    reads        objects that read the fragments of A and of B from shared memory; None if MMAs need no separate reads
    """

    k_first: Any
    k_tiles: Any
    loads: tuple[ThreadCopy, ThreadCopy]
    tiled_mma: cute.TiledMma
    tCsA: cute.Tensor
    tCsB: cute.Tensor
    tCrA: cute.Tensor
    tCrB: cute.Tensor
    acc: cute.Tensor
    reads: Any = None


@dsl_user_op
def reread(register: str, *, loc=None, ip=None) -> Int32:
    """Return the value of a PTX special register, such as "%ctaid.x", read at this position of the code.

    Reading it again is cheaper than keeping the value in a register through a long loop.
    """
    text = f"mov.u32 $0, {register};"
    asm = assembler(loc, ip)
    return Int32(asm(T.i32(), [], text, "=r"))


@dsl_user_op
def load_half(address: Int64, where: Boolean, *, loc=None, ip=None) -> Int32:
    """Load 16 bits of global memory to a 32-bit register, if `where` holds; otherwise return 0 without an access.

    Two 16-bit elements in one register would make the second load wait for the first, since it is inserted into the
    same register. A k-tile of 96 elements per thread then took 15 us (H200, 2026-11-22).

    address   generic address of the 16 bits
    """
    asm = assembler(loc, ip)
    text = "{.reg .pred p; setp.ne.s32 p, $2, 0; mov.b32 $0, 0; @p ld.global.u16 $0, [$1];}"
    operands = [each.ir_value(loc=loc, ip=ip) for each in (Int64(address), Int32(where))]
    return Int32(asm(T.i32(), operands, text, "=&r,l,r"))


@dsl_user_op
def load_words(address: Int64, where: Boolean, words: int, *, loc=None, ip=None) -> list[Int32]:
    """Load 1, 2 or 4 words of global memory to new registers, if `where` holds; otherwise return 0 without an access.

    A predicated load that the compiler emits keeps the old value if it is off. If the two values are assigned different
    registers, the compiler adds a move, which waits for the load. Warps of `simt_128x64/s396` waited 1.17 cycles per
    instruction (5160 x 46 x 12176 nn, 216 us; H200, 2026-11-24).

    address   generic address of the first word
    words     number of 32-bit words
    """
    asm = assembler(loc, ip)
    names = [f"${word}" for word in range(words)]
    zeros = " ".join(f"mov.b32 {name}, 0;" for name in names)
    vector, held = ("", names[0]) if words == 1 else (f".v{words}", f"{{{', '.join(names)}}}")
    text = f"{{.reg .pred p; setp.ne.s32 p, ${words + 1}, 0; {zeros} @p ld.global{vector}.b32 {held}, [${words}];}}"
    operands = [each.ir_value(loc=loc, ip=ip) for each in (Int64(address), Int32(where))]
    kind = T.i32() if words == 1 else llvm.StructType.get_literal([T.i32()] * words)
    constraints = ",".join([*["=&r"] * words, "l", "r"])
    found = asm(kind, operands, text, constraints)
    if words == 1:
        return [Int32(found)]
    return [Int32(llvm.extractvalue(T.i32(), found, [word], loc=loc, ip=ip)) for word in range(words)]


class ScheduledGemm(ScheduledEpilogue):
    """Emits kernels in which all threads follow one schedule of loads, fragment reads and MMAs. Base class.

    A subclass implements how fragments are read and multiplied (`read` and `multiply`): by FMAs (SIMT), or by mma.sync.
    Methods without a decorator such as @cute.jit are plain Python that runs while the DSL traces the kernel.

    of_host   values that the host computes for the kernel that is traced: tile counts and divisors
    """

    of_host: tuple[Any, ...] = ()

    @cute.jit
    def __call__(self, *arguments):
        given = launch_arguments(self.plan, arguments)
        mA, mB, mD, (tensors, results) = self.matrices(given)
        reducer = Reducer(self.plan, self.launches)
        partials = reducer.partials(given, mD, mA.shape[1])
        operands = (tensors, (*results, *partials))
        tiles = self.tiles(mD)
        self.kernel(mA, mB, operands, mD, given.scalars, self.handed(tiles)).launch(
            grid=(tiles.count, 1, 1),
            block=(self.plan.threads, 1, 1),
            stream=given.stream,
            min_blocks_per_mp=self.plan.ctas_per_sm,
            preferred_smem_carveout=SMEM_CARVEOUT_PERCENT,
            use_pdl=self.launches[GEMM].waits,
        )
        reducer.launch(partials, given, given.stream)

    def matrices(self, given: LaunchArguments) -> tuple[Any, ...]:
        """View the caller's A as (M, K, L), B as (N, K, L), and D and the tensors of the epilogue as (M, N, L).

        given     the arguments of the launch
        returns   (A, B, D, (tensors, results) of the epilogue). A and B have the type that is multiplied; tensors and
                  results of the epilogue are (M, N, L)
        """
        plan = self.plan
        mA, mD = [self.seen_as(tensor, 0, 1) for tensor in (given.a, given.d)]
        mA = self.as_operand(mA, plan.operands.a)
        mB = self.as_operand(self.seen_as(given.b, 1, 0), plan.operands.b)
        return mA, mB, mD, operands_seen(plan, given, mD)

    def tiles(self, mD: cute.Tensor) -> TileGrid:
        """Return the grid of tiles of D (M, N, L), for all matrices of the batch."""
        scheduler, cluster = self.plan.scheduler, self.plan.cluster_tile
        if not self.of_host:
            return scheduler.tiles(cluster, mD.shape[0], columns_of_b(self.plan, mD), mD.shape[2], TRACED)
        m_tiles, n_tiles, divisors = self.of_host
        return TileGrid(scheduler, cluster, m_tiles, n_tiles, m_tiles * n_tiles * mD.shape[2], TRACED, divisors)

    def handed(self, tiles: TileGrid) -> tuple[Any, ...]:
        """Return values that the host computes so that CTAs find their tiles: numbers of tiles, and fast divisors.

        A fast divisor is a number with its reciprocal, so that the kernel divides by a multiplication. It takes
        registers. If the plan leaves few registers to a thread, the result is empty, and the kernel computes the values
        itself.

        tiles   the tiles of D
        """
        if self.register_budget < _FEW_REGISTERS:
            return ()
        return Int32(tiles.m_tiles), Int32(tiles.n_tiles), tiles.host_divisors(lower.divisors)

    def seen_as(self, tensor: cute.Tensor, first: int, second: int) -> cute.Tensor:
        """View the caller's tensor with its modes in CuTe's order and the batch last.

        first, second   modes of the caller's matrix that become the first and the second mode
        """
        if self.plan.operands.batched:
            return cute.make_tensor(tensor.iterator, cute.select(tensor.layout, mode=[1 + first, 1 + second, 0]))
        matrix = cute.select(tensor.layout, mode=[first, second])
        return cute.make_tensor(tensor.iterator, cute.append(matrix, cute.make_layout(1, stride=0)))

    def as_operand(self, tensor: cute.Tensor, operand: Operand) -> cute.Tensor:
        """View A or B with the element type that is multiplied: f32 is seen as tf32 if tensor cores multiply it.

        operand   element type and layout of the operand
        """
        kind = lower.dtype(operand.dtype)
        if tensor.element_type is kind:
            return tensor
        return cute.make_tensor(cute.recast_ptr(tensor.iterator, dtype=kind), tensor.layout)

    @cute.kernel
    def kernel(
        self,
        mA: cute.Tensor,
        mB: cute.Tensor,
        operands: tuple,
        mD: cute.Tensor,
        scalars: tuple,
        tiles: tuple,
    ):
        """Compute the CTA's tile of D (device code of a kernel without split-K).

        mA, mB, mD   A (M, K, L), B (N, K, L) and D (M, N, L)
        operands     (input tensors, auxiliary outputs) of the epilogue
        scalars      scalars of the epilogue
        tiles        values of the host that CTAs use to find their tiles: numbers of tiles and divisors
        """
        begin(self.launches[GEMM])
        self.of_host = tiles
        self.values = Values.of(self.plan, operands, scalars)
        self.tile(mA, mB, mD)

    @cute.jit
    def tile(self, mA: cute.Tensor, mB: cute.Tensor, mD: cute.Tensor):
        """Compute the CTA's work tile, from the load of its first k-tile to the epilogue.

        mA, mB, mD   A (M, K, L), B (N, K, L) and D (M, N, L)
        """
        plan = self.plan
        bM, bN, bK = plan.cta_tile
        tid, _, _ = cute.arch.thread_idx()
        M, N, K = mD.shape[0], mD.shape[1], mA.shape[1]
        tiles, tile = self.tiles(mD), self.tile_number()
        tile_mnl = tiles.tile_mnl(tile)
        work = tiles.along(K)
        residue = cute.assume(K - work.k_tiles * bK, divby=self.k_vector())
        work_tile = self.work_tile(work, tile)
        k_first, k_tiles = work_tile.k_first, work_tile.k_count
        begin = self.first_k(residue, k_first)

        sA, sB, sD = self.shared_tensors()  # (bM, bK, stages), (bN, bK, stages), (bM, bN) or None
        load_a = self.load(plan.a.load, mA, sA, (tile_mnl[0], tile_mnl[2]), begin, tid)
        load_b = self.load(plan.b.load, mB, sB, (tile_mnl[1], tile_mnl[2]), begin, tid, N)
        if residue < 0 or (tile_mnl[0] + 1) * bM > M or (tile_mnl[1] + 1) * plan.d_tile[1] > N:
            self.clear(load_a)
            self.clear(load_b)
            cute.arch.sync_threads()

        tiled_mma = lower.tiled_mma(plan.tiled_mma)
        thr_mma = tiled_mma.get_slice(tid)
        tCsA, tCsB = thr_mma.partition_A(sA), thr_mma.partition_B(sB)
        tCrA, tCrB = [
            cute.make_rmem_tensor((*held.shape[:2], plan.body.fragments), held.element_type) for held in (tCsA, tCsB)
        ]
        acc = cute.make_rmem_tensor(thr_mma.partition_shape_C((bM, bN)), lower.dtype(plan.operands.acc))
        acc.fill(0.0)
        parts = ThreadTiles(k_first, k_tiles, (load_a, load_b), tiled_mma, tCsA, tCsB, tCrA, tCrB, acc)
        self.prepare(parts, tid, sA, sB)

        self.trace(plan.body.prologue, parts, 0, 0)
        stage = Int32(0)
        for k_tile in cutlass.range(k_tiles, unroll=1):
            self.trace(plan.body.k_tile, parts, k_tile, stage)
            stage = self.stage_of(stage, 1)
        # The indices of thread and tile are read again. If they stayed in registers through the mainloop, the
        # compiler would compute the loads' addresses from them for each k-tile (8 instructions of 1140).
        tid, tile = reread("%tid.x"), self.tile_number(again=True)
        self.end(tiled_mma.get_slice(tid), mD, sA, sD, acc, tid, work, tile)

    def tile_number(self, again: bool = False):
        """Return the number of this CTA's tile of D in raster order, which is the CTA index (blockIdx.x).

        again   True: read the special register of the CTA index here. Then no general register must hold the number
                during the mainloop
        """
        return reread("%ctaid.x") if again else cute.arch.block_idx()[0]

    def work_tile(self, work: WorkGrid, tile) -> WorkTile:
        """Return the work tile of this CTA: a tile of D with all its k-tiles. Kernels that split K override it.

        work   the scheduler, which gives each cluster its work tiles (a tile of D and a range of K)
        tile   number of the tile of D, in raster order
        """
        return work.whole(tile)

    def first_k(self, residue, k_first):
        """Return the first k that this CTA loads.

        It is the start of the CTA's first k-tile if its k-tiles are contiguous. If the K splits of a tile take k-tiles
        in turn, it is the start of the tile's first k-tile.

        residue   start of the tile's first k-tile along K; negative if K is ragged
        k_first   index of the CTA's first k-tile
        """
        if not self.plan.scheduler.split.is_split or self.plan.scheduler.split.k_step > 1:
            return residue
        return cute.assume(residue + k_first * self.plan.cta_tile[2], divby=self.k_vector())

    def end(self, thr_mma, mD, sA, sD, acc, tid, work: WorkGrid, tile) -> None:
        """Evaluate the epilogue on the accumulators of a tile, and store D. Kernels that split K override it.

        thr_mma, tid   the thread's slice of the tiled MMA, and its index
        mD             D (M, N, L)
        sA, sD         shared memory of A and of D's tile; sD is None if D is stored from registers
        acc            accumulators of the thread
        work, tile     the scheduler of work tiles (tiles of D with a range of K), and the number of the tile
        """
        tiles = work.tiles
        if self.plan.registers()["accumulators"] >= _MANY_ACCUMULATORS:
            tiles = replace(tiles, divisors=None)
        self.store_d(thr_mma, mD, sD, acc, self.plan.epilogue, tiles.tile_mnl(tile), tid)

    def prepare(self, parts: ThreadTiles, tid, sA, sB) -> None:
        """Set up what a subclass needs to read fragments and to multiply, in addition to `parts`; by default nothing.

        parts    the thread's tiles and fragments
        tid      index of the thread
        sA, sB   shared memory of A and B, with all stages
        """

    def shared_tensors(self):
        """Allocate shared memory, and return the tensors of A, B and D in it.

        D's tile overlaps the stages of A and B; its tensor is None if D is stored from registers.
        """
        ops, used = self.plan.operands, self.plan.smem_bytes()
        buffers = [(ops.a.dtype, self.plan.a.smem, 0), (ops.b.dtype, self.plan.b.smem, used["a"])]
        buffers += [(buffer.dtype, buffer.layout, 0) for buffer in self.plan.store.buffers(self.plan)]
        align = max(smem_align_bytes(kind, given) for kind, given, _ in buffers)
        base = cutlass.memory.SmemAllocator().allocate(sum(used.values()), align)
        if "barriers" in used:
            self.set_up_barriers(base + (sum(used.values()) - used["barriers"]))
        tensors = [lower.smem_view(base + offset, kind, given) for kind, given, offset in buffers]
        return tensors if len(tensors) == 3 else [*tensors, None]

    def set_up_barriers(self, at: cute.Pointer) -> None:
        """Initialize the mbarriers of this kernel, which start at the pointer `at`.

        By default there is nothing to do.
        """

    # --- loads ---------------------------------------------------------------------------------------------

    def k_vector(self) -> int:
        """Return a number that divides the first k of every k-tile, in elements: K and bK hold whole vectors."""
        ops = self.plan.loaded
        along_k = [o.align_elems for o in (ops.a, ops.b) if o.major == "k"]
        return math.gcd(max(along_k, default=1), self.plan.cta_tile[2])

    def load(self, copy, mX, sX, tile_mn_l, residue, tid, of_d=None) -> ThreadCopy:
        """Return one thread's copies of the tiles of A or B that its CTA needs.

        copy        tiled copy from global memory
        mX          A (M, K, L) or B (N, K, L)
        sX          the operand's stages in shared memory
        tile_mn_l   (index of the tile along M or N, batch)
        residue     start of the first k-tile along K; negative if K is ragged
        tid         index of the thread
        of_d        number of columns of D for B; None for A
        """
        tile, batch = tile_mn_l
        tiled = lower.tiled_copy(copy)
        thr = tiled.get_slice(tid)
        tiler = tuple(cute.size(sX, mode=[mode]) for mode in (0, 1))
        mX, coords, extent = self.tiled(mX, of_d)
        # Both begin at k = residue, so that the last k-tile is full: (b_MN, bK, k_tiles)
        gX = cute.local_tile(cute.domain_offset((0, residue), mX[None, None, batch]), tiler, (tile, None))
        cX = cute.local_tile(cute.domain_offset((0, residue), coords), tiler, (tile, None))
        tXgX, tXcX, tXsX = thr.partition_S(gX), thr.partition_S(cX), thr.partition_D(sX)
        by_halves = not copy.atom.is_async and copy.atom.bits == HALF_BITS
        tXrX = cute.make_rmem_tensor(tXsX.shape[:3], Int32 if by_halves else sX.element_type)
        if not copy.atom.is_async:
            fill_with_zeros(tXrX)
        inside = self.predicate(tXcX, 0, extent, with_k=False)
        return ThreadCopy(tiled, copy.atom.is_async, extent, tXgX, tXcX, tXsX, tXrX, inside)

    def tiled(self, mX, of_d=None) -> tuple[Any, Any, Any]:
        """Return A or B as (matrix, coordinates, extent): threads compare coordinates with the extent.

        An element exists if its first coordinate is less than the extent. For a gated epilogue, B's
        columns are rearranged in the order of the tiles that take them.

        mX     A (M, K, L) or B (N, K, L)
        of_d   number of columns of D for B; None for A
        """
        if of_d is None or not self.plan.operands.gated:
            return mX, cute.make_identity_tensor((mX.shape[0], mX.shape[1])), mX.shape[0]
        return (*by_blocks(mX, self.plan, of_d), of_d)

    def predicate(self, coords, k_tile, extent, with_k: bool) -> cute.Tensor:
        """Return a predicate for each access of a thread to a k-tile: whether the access is inside of the matrix.

        coords   coordinates (mn, k) of the accesses
        k_tile   index of the k-tile
        extent   M or N, which the first coordinate must be less than
        with_k   whether the accesses must also not be below k = 0
        """
        vectors, rest_mn, rest_k = [cute.size(coords, mode=mode) for mode in ([0, 1], [1], [2])]
        stride = None if with_k else (rest_mn, 1, 0)
        out = cute.make_rmem_tensor(cute.make_layout((vectors, rest_mn, rest_k), stride=stride), Boolean)
        for v, i, j in itertools.product(range(vectors), range(rest_mn), range(rest_k if with_k else 1)):
            mn, k = coords[(0, v), i, j, k_tile]
            out[v, i, j] = cute.elem_less((mn, -1), (extent, k)) if with_k else cute.elem_less(mn, extent)
        return out

    def clear(self, load: ThreadCopy) -> None:
        """Fill all stages of an operand with zeros if cp.async skips elements outside of the matrix.

        Operands that are loaded through registers do not need it: the registers are zero then.

        load   the thread's copies of the operand
        """
        if load.is_async:
            fill_with_zeros(load.sX)

    @cute.jit
    def fetch(
        self,
        parts: cutlass.Constexpr,
        step: cutlass.Constexpr,
        k_tile: Int32,
        stage: Int32,
        ragged: cutlass.Constexpr,
    ):
        """Start to copy a k-tile of A and B, or some chunks of it, from global memory, if the CTA has this k-tile.

        parts    the thread's views of its tiles of A and B in memory, and its registers
        step     the Fetch step, which names the chunks
        k_tile   index of the k-tile among those of this CTA
        stage    stage of shared memory
        ragged   whether elements below k = 0 must be omitted
        """
        is_there = k_tile < parts.k_tiles
        for load in cutlass.range_constexpr(2):
            if cutlass.const_expr(parts.loads[load].by_words and not ragged):
                self.load_anew(parts.loads[load], step, self.k_at(parts, k_tile), is_there)
        if is_there:
            for load in cutlass.range_constexpr(2):
                if cutlass.const_expr(ragged or not parts.loads[load].by_words):
                    self.copy_from_global(parts.loads[load], step, self.k_at(parts, k_tile), stage, ragged)

    def k_at(self, parts: ThreadTiles, k_tile):
        """Return the distance of one of this CTA's k-tiles from the k-tile where its loads start, in k-tiles.

        The k-tiles of a CTA need not be contiguous: the K splits of a tile may take k-tiles in turn.

        parts    the thread's views of its tiles of A and B in memory, and its registers
        k_tile   index of the k-tile among those of this CTA
        """
        if self.plan.scheduler.split.k_step == 1:
            return k_tile
        return parts.k_first + k_tile * self.plan.scheduler.split.k_step

    def copy_from_global(self, load: ThreadCopy, step: Fetch, k_tile, stage, ragged: bool) -> None:
        """Copy a k-tile of one operand, or some chunks of it, from global memory to its stage or to registers.

        load     the thread's copies of the operand
        step     the Fetch step, which names the chunks
        k_tile   index of the k-tile among those of this CTA
        stage    stage of shared memory
        ragged   whether elements below k = 0 must be omitted
        """
        inside = self.predicate(load.cX, k_tile, load.extent, with_k=True) if ragged else load.pX
        source = load.gX[None, None, None, k_tile]
        held = load.sX[None, None, None, stage] if load.is_async else load.rX
        if load.by_halves:
            first, size = source.iterator.toint(), HALF_BITS // 8
            for at, place in each_of(held):
                offset = cute.crd2idx(place, source.layout)
                held[place] = load_half(first + Int64(offset) * size, inside[at])
            return
        if step.chunks == 1:
            cute.copy(load.copy, source, held, pred=inside)
            return
        for i, j in split_of(source, step):
            cute.copy(load.copy, source[None, i, j], held[None, i, j], pred=inside[None, i, j])

    def load_anew(self, load: ThreadCopy, step: Fetch, k_tile, is_there) -> None:
        """Load a k-tile of one operand from global memory to new registers, 32 bits at a time.

        load       the thread's copies of the operand
        step       the Fetch step, which names the chunks
        k_tile     index of the k-tile
        is_there   whether the k-tile exists
        """
        source = load.gX[None, None, None, k_tile]
        for i, j in split_of(source, step):
            for v in range(cute.size(load.pX, mode=[0])):
                one, held = source[(None, v), i, j], load.rX[(None, v), i, j]
                words = cute.size(one) * source.element_type.width // Int32.width
                to = cute.make_tensor(cute.recast_ptr(held.iterator, dtype=Int32), cute.make_layout(words))
                found = load_words(one.iterator.toint(), load.pX[v, i, j] & is_there, words)
                for word in range(words):
                    to[word] = found[word]

    # --- the schedule, step by step ------------------------------------------------------------------------

    def stage_of(self, stage, ahead: int):
        """Return the index of the stage of shared memory that holds a later k-tile. Stages are used in turn.

        stage   index of the stage of the present k-tile
        ahead   number of k-tiles from the present one to the later one
        """
        stages = self.plan.stages
        if ahead % stages == 0:
            return stage
        if isinstance(stage, int):
            return (stage + ahead) % stages
        further = stage + ahead % stages
        if stages & (stages - 1) == 0:
            return further & (stages - 1)
        return cutlass.select_(further >= stages, further - stages, further)

    def trace(self, steps, parts: ThreadTiles, k_tile, stage) -> None:
        """Emit the code of the steps of a thread schedule, in order.

        steps    the steps
        parts    the thread's views of its tiles of A and B in memory, and its registers
        k_tile   the k-tile that the steps count from
        stage    its stage in shared memory
        """
        for line, step in self.plan.body.lined(steps):
            with from_line(ALL_THREADS, line):
                self.step(step, parts, k_tile, stage)

    def step(self, step, parts: ThreadTiles, k_tile, stage) -> None:
        """Emit the code of one step of a thread schedule.

        parts    the thread's views of its tiles of A and B in memory, and its registers
        k_tile   the k-tile that the step counts from
        stage    its stage in shared memory
        """
        if isinstance(step, Fetch):
            fetched_before = any(isinstance(each, Fetch) for each in self.plan.body.prologue)
            ragged = step.ahead == 0 if isinstance(k_tile, int) else not fetched_before
            self.fetch(parts, step, k_tile + step.ahead, self.stage_of(stage, step.ahead), ragged)
        elif isinstance(step, Commit):
            self.commit()
        elif isinstance(step, Store):
            self.store(parts, self.stage_of(stage, step.ahead))
        elif isinstance(step, Wait):
            self.wait(parts, step, k_tile, stage)
        elif isinstance(step, Sync):
            cute.arch.sync_threads()
        elif isinstance(step, Read):
            self.read(parts, step, self.stage_of(stage, step.ahead), step.k_block)
        elif isinstance(step, Multiply):
            self.multiply(parts, step)
        elif isinstance(step, Repeat):
            self.repeat(parts, step, stage)
        else:
            raise TypeError(f"no kernel has a step {step}")

    def commit(self) -> None:
        """Commit the cp.async copies since the last commit as a group, by cp.async.commit_group."""
        cute.arch.cp_async_commit_group()

    def wait(self, parts: ThreadTiles, step: Wait, k_tile, stage) -> None:
        """Wait until all groups of cp.async copies but the latest `step.pending` have arrived.

        parts           the thread's views of its tiles of A and B in memory, and its registers
        k_tile, stage   the k-tile that the step counts from, and its stage
        """
        cute.arch.cp_async_wait_group(step.pending)

    @cute.jit
    def repeat(self, parts: cutlass.Constexpr, loop: cutlass.Constexpr, stage: Int32):
        """Emit a run-time loop over k-blocks, whose iterations read and multiply successive k-blocks.

        Each iteration moves on by the loop's stride; the buffers of fragments stay the same.

        parts   the thread's views of its tiles of A and B in memory, and its registers
        loop    the loop, with the steps of an iteration
        stage   stage of shared memory
        """
        for turn in cutlass.range(loop.times, unroll=1):
            self.turn(parts, loop, stage, turn * loop.stride)

    def turn(self, parts, loop: Repeat, stage, k_first) -> None:
        """Emit the code of one iteration of a loop over k-blocks: reads of fragments from shared memory, and MMAs.

        parts     the thread's tiles of A and B, in shared memory and in registers
        loop      the loop, with the steps of an iteration
        stage     stage of shared memory
        k_first   index of the first k-block of the iteration
        """
        for line, step in self.plan.body.lined(loop.steps):
            with from_line(ALL_THREADS, line):
                if isinstance(step, Read):
                    self.read(parts, step, stage, k_first + step.k_block)
                else:
                    self.multiply(parts, step)

    def store(self, parts: ThreadTiles, stage) -> None:
        """Store a k-tile of A and B from registers to a stage of shared memory, if cp.async did not load it there.

        parts   the thread's views of its tiles of A and B in memory, and its registers
        stage   index of the stage
        """
        for load in parts.loads:
            if load.by_halves:
                packed = cute.make_rmem_tensor(load.rX.layout, load.sX.element_type)
                bits = lower.as_bits(packed)
                for _, place in each_of(load.rX):
                    bits[place] = load.rX[place].to(Uint16)
                cute.autovec_copy(packed, load.sX[None, None, None, stage])
            elif not load.is_async:
                cute.autovec_copy(load.rX, load.sX[None, None, None, stage])

    def read(self, parts: ThreadTiles, step: Read, stage, k_block) -> None:
        """Read the fragments of A and B for a k-block from shared memory to registers. Kernel families implement it.

        parts     the thread's tiles, in shared memory and in registers
        step      the Read step, which names the buffer of registers
        stage     index of the stage
        k_block   index of the k-block in the k-tile
        """
        raise NotImplementedError

    def multiply(self, parts: ThreadTiles, step: Multiply) -> None:
        """Add the product of a k-block's fragments to the accumulators. Kernel families implement it.

        parts   the thread's fragments and accumulators
        step    the Multiply step, which names the buffer of fragments
        """
        raise NotImplementedError


def each_of(held: cute.Tensor) -> list[tuple[tuple[int, int, int], tuple[Any, int, int]]]:
    """Return the indices of the elements that a thread copies one by one, both in its predicates and in its registers.

    held      registers of the thread, with three modes: elements at one position of the tiled copy, its positions along
              M or N (index i), its positions along K (index j)
    returns   pairs of the index (access, i, j) of a predicate and the index ((0, access), i, j) of the register in
              `held`
    """
    extents = [range(cute.size(held, mode=[mode])) for mode in range(3)]
    return [((v, i, j), ((0, v), i, j)) for v, i, j in itertools.product(*extents)]


def split_of(source: cute.Tensor, step: Fetch) -> list[tuple[int, int]]:
    """Return the positions of a thread's tiled copy that one `Fetch` step copies, i.e. all or a part of a k-tile.

    source    the thread's elements in global memory
    step      the step, with the index of the part and the number of parts
    returns   indices (i, j) of positions: i along M or N, j along K
    """
    rest_mn, rest_k = [cute.size(source, mode=[mode]) for mode in (1, 2)]
    count = rest_mn * rest_k
    first, end = count * step.chunk // step.chunks, count * (step.chunk + 1) // step.chunks
    return [(at % rest_mn, at // rest_mn) for at in range(first, end)]


def fill_with_zeros(tensor: cute.Tensor) -> None:
    """Fill a tensor with zeros. A tf32 tensor is filled as f32, since the DSL has no tf32 constants."""
    kind = cutlass.Float32 if tensor.element_type is cutlass.TFloat32 else tensor.element_type
    cute.make_tensor(cute.recast_ptr(tensor.iterator, dtype=kind), tensor.layout).fill(0.0)


def serpentine(rows: int, columns: int, outer: str) -> list[tuple[int, int]]:
    """Return all (m, n) of a grid in serpentine order: the inner mode runs back and forth.

    Consecutive pairs then share an operand. E.g. 2 rows and 2 columns with outer "m": (0, 0), (0, 1), (1, 1), (1, 0).

    outer   the outer mode, "m" or "n"

    >>> serpentine(2, 2, "m")
    [(0, 0), (0, 1), (1, 1), (1, 0)]
    """
    if outer == "m":
        return [(m, n if m % 2 == 0 else columns - 1 - n) for m in range(rows) for n in range(columns)]
    return [(m, n) for n, m in serpentine(columns, rows, "m")]
