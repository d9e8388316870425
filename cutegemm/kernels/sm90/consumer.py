"""Trace the program of a Hopper consumer: a warpgroup that multiplies k-tiles by wgmma and stores tiles of D."""

from __future__ import annotations

from dataclasses import dataclass, replace

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32
from cutlass.cute.nvgpu import warpgroup
from cutlass.cutlass_dsl import T, dsl_user_op

from cutegemm.kernels import lower
from cutegemm.kernels.assembly import assembler
from cutegemm.kernels.sm90 import integers
from cutegemm.kernels.sm90.cluster_split_k import ClusterSplitK
from cutegemm.kernels.sm90.loads import Loads
from cutegemm.kernels.sm90.split_k import Parts
from cutegemm.kernels.sm90.storage import Storage
from cutegemm.kernels.trace import At, MainloopPipeline, Tracer
from cutegemm.kernels.values import store_as_results
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.program import steps as step
from cutegemm.plan.program.reader import reads

NUMBER = {step.ACC: 0, step.FIRST: 0, step.SECOND: 1, step.LEFT: 0, step.RIGHT: 1}  # index in `Products.accs`


@dataclass
class Products:
    """The operand fragments and accumulators of a consumer warpgroup.

    tCsA    (MMA, MMA_M, MMA_K, stages) in shared memory, if A is read into registers; else None
    tCrA    (MMA, MMA_M, MMA_K) registers of A; or, with a mode of stages, descriptors of shared memory
    tCrB    (MMA, MMA_N, MMA_K, stages) descriptors, one tensor for each block of columns that has MMAs of its own
    accs    (MMA, MMA_M, MMA_N) accumulators: one tensor; or two with accumulator promotion, which alternate or take one
            half of the columns each
    total   the accumulators that are stored: `accs[0]`; with accumulator promotion the f32 totals
    """

    tCsA: cute.Tensor | None
    tCrA: cute.Tensor
    tCrB: tuple[cute.Tensor, ...]
    accs: tuple[cute.Tensor, ...]
    total: cute.Tensor


@dsl_user_op
def zero_here(*, loc=None, ip=None) -> Float32:
    """Return 0 in a register that is written at this position, before the wgmma.fence of any later MMA.

    The compiler would otherwise write it at its first use, after the fence.
    """
    asm = assembler(loc, ip)
    return Float32(asm(T.f32(), [], "mov.f32 $0, 0f00000000;", "=f"))


class ConsumerTracer(Tracer):
    """Emits the code of a consumer warpgroup of a Hopper kernel: its program of waits, MMAs and stores, step by step.

    Methods without a decorator such as @cute.jit are plain Python that runs while the DSL traces the kernel.

    storage   evaluates the epilogue and stores D to global memory
    split_k   adds the K splits of a tile through global memory; None if K is not split
    shared    exchanges accumulators in cluster split-K; None without it
    loads     loads k-tiles, if the plan has no producer
    """

    def __init__(
        self, plan: GemmPlan, storage: Storage, split_k: Parts | None, shared: ClusterSplitK | None, loads: Loads
    ) -> None:
        super().__init__(plan)
        self.storage, self.split_k, self.shared, self.loads = storage, split_k, shared, loads

    def trace(self, program, who, pipeline_state, work) -> None:
        """Emit the code of one consumer's program, after partitioning its fragments and accumulators.

        program          the steps of the program
        who              thread, warp and CTA of the consumer
        pipeline_state   stages in shared memory, and their barriers
        work             the scheduler, which gives each cluster its work tiles (a tile of D and a range of K)
        """
        self.who, self.pipeline_state, self.work = who, pipeline_state, work
        self.products = self.partition(pipeline_state)
        who.lane = cute.arch.lane_idx()
        self.peer = self.peer_of(who.lane, who.rank)
        self.storage.set_up(who)
        self.holds = program.has(step.KeepTile)
        if self.holds:
            self.hold(self.products.total)
        super().trace(program, who, pipeline_state, work)

    def partition(self, pipeline_state: MainloopPipeline) -> Products:
        """Return this consumer's fragments of A and B, and its accumulators.

        pipeline_state   stages in shared memory, and their barriers
        """
        plan, pipeline = self.plan, self.pipeline
        sA = pipeline_state.smem["a"]
        if pipeline.kind != "pingpong":
            sA = cute.local_tile(
                sA, (pipeline.consumer_tile[0], plan.cta_tile[2], plan.stages), (self.who.consumer, 0, 0)
            )
        mma = lower.tiled_mma(plan.consumer_mma)
        thr_mma = mma.get_slice(self.who.tid)
        tCsA = thr_mma.partition_A(sA)
        by_registers = plan.tiled_mma.atom.a_source == "register"
        tCrA = mma.make_fragment_A(tCsA[None, None, None, 0] if by_registers else tCsA)
        rows, columns = plan.consumer_mma_tile
        size = (columns // plan.b_column_blocks, plan.cta_tile[2], plan.stages)
        sB = [pipeline_state.smem["b"]]
        if plan.b_column_blocks > 1:
            sB = [cute.local_tile(pipeline_state.smem["b"], size, (part, 0, 0)) for part in range(plan.b_column_blocks)]
        b_mma = lower.tiled_mma(plan.consumer_b_mma)
        thr_b = b_mma.get_slice(self.who.tid)
        tCrB = tuple([b_mma.make_fragment_B(thr_b.partition_B(part)) for part in sB])
        shape, dtype = thr_mma.partition_shape_C((rows, size[0])), lower.dtype(plan.operands.acc)
        accs = tuple([cute.make_rmem_tensor(shape, dtype) for _ in range(1 + pipeline.promoted)])
        total = accs[0]
        if pipeline.promoted:
            total = cute.make_rmem_tensor(thr_mma.partition_shape_C((rows, columns)), dtype)
        return Products(tCsA if by_registers else None, tCrA, tCrB, accs, total)

    def begin(self, tile) -> None:
        """Compute and keep the coordinates in D of a work tile, before the consumer waits for its first k-tile."""
        self.tile_mnl = self.work.tile_mnl(tile, self.who.rank)
        self.storage.begin(tile)

    def own_tile(self, at: At):
        """Return the indices of this consumer's tile in the grid of consumer tiles: (m_tile, n_tile, batch).

        at   the consumer's position in its program: work tile, k-tile and pipeline state
        """
        return self.plan.own_tile(self.tile_mnl, self.who.consumer)

    # --- MMAs -----------------------------------------------------------------------------------------------

    @reads(step.Multiply)
    def on_multiply(self, multiply: step.Multiply, at: At) -> None:
        """Issue the MMAs of a k-tile, or of some of its k-blocks, as the step `multiply` says.

        The first k-block of the first k-tile overwrites the accumulators instead of adding to them; which k-tile is the
        first is known at run time.

        at   the consumer's position in its program: stage and k-tile
        """
        p, adds = self.products, at.k_tile if multiply.accumulators == step.ACC else 0
        acc, tCrB = p.accs[NUMBER[multiply.accumulators]], p.tCrB[multiply.accumulators == step.RIGHT]
        if p.tCsA is None:
            tCrA = p.tCrA[None, None, None, at.stage]
        else:
            tCrA = p.tCrA
            self.read_a(p.tCsA[None, None, None, at.stage], tCrA)
        if multiply.k_blocks != step.OTHER_BLOCKS:
            warpgroup.fence()
        for k_block in multiply.blocks_of(cute.size(tCrA, mode=[2])):
            a, b = tCrA[None, None, k_block], tCrB[None, None, k_block, at.stage]
            self.multiply_block(acc, a, b, adds > 0 if k_block == 0 else True)
        warpgroup.commit_group()

    def multiply_block(self, acc, tCrA, tCrB, adds) -> None:
        """Issue the wgmmas of one k-block: acc = tCrA * tCrB, plus acc if `adds` holds.

        acc          accumulators (MMA, MMA_M, MMA_N)
        tCrA, tCrB   fragments or shared-memory descriptors of the k-block
        """
        if acc.element_type is Int32:
            integers.multiply(acc, tCrA, tCrB, Int32(adds))
            return
        mma = lower.tiled_mma(self.plan.consumer_mma)
        mma.set(warpgroup.Field.ACCUMULATE, adds)
        cute.gemm(mma, acc, tCrA, tCrB, acc)

    def read_a(self, tCsA, tCrA) -> None:
        """Copy the A fragments of a k-tile from shared memory to registers, for wgmmas that take A from registers.

        No wgmma in flight may read these registers.

        tCsA   the fragments in one stage of shared memory
        tCrA   registers that receive them
        """
        for i in range(cute.size(tCrA)):
            tCrA[i] = tCsA[i]

    @reads(step.WaitMma)
    def on_wait_mma(self, wait: step.WaitMma, at: At) -> None:
        warpgroup.wait_group(wait.pending)

    @reads(step.Clear)
    def on_clear(self, clear: step.Clear, at: At) -> None:
        """Set the accumulators or the f32 totals to 0, as the step `clear` says.

        Without accumulator promotion they are the same registers.

        clear   the step, which names what to clear
        at      the consumer's position in its program: work tile, k-tile and pipeline state
        """
        if clear.what in ("total", step.ACC):
            self.products.total.fill(0)
            return
        acc = self.products.accs[NUMBER[clear.what]]
        for i in range(cute.size(acc)):
            acc[i] = zero_here()

    # --- order barrier --------------------------------------------------------------------------------------

    @reads(step.OpenOrder)
    def on_open_order(self, turns: step.OpenOrder, at: At) -> None:
        self.open_order(at.state)

    @cute.jit
    def open_order(self, first: tuple):
        """Let the first pingpong consumer issue its MMAs at the start: the last consumer arrives at its order barrier.

        first   state of the first work tile; nothing is done if this work tile does not exist
        """
        if self.who.consumer == self.pipeline.tiles_in_flight - 1 and self.work.exists(first):
            self.pass_order()

    @reads(step.AwaitOrder)
    def on_await_order(self, turn: step.AwaitOrder, at: At) -> None:
        self.sync("order", self.who.consumer)

    @reads(step.PassOrder)
    @cute.jit
    def on_pass_order(self, turn: cutlass.Constexpr, at: cutlass.Constexpr):
        if at.is_another:
            self.pass_order()

    def pass_order(self) -> None:
        """Let the next pingpong consumer issue its MMAs: arrive at its order barrier.

        Pingpong consumers multiply in turn, while the other ones store.
        """
        self.arrive("order", (self.who.consumer + 1) % self.pipeline.consumers)

    @reads(step.Stagger)
    @cute.jit
    def on_stagger(self, stagger: cutlass.Constexpr, at: cutlass.Constexpr):
        if self.work.tile(at.state).k_count > 0 and self.work.exists(at.state):
            cute.arch.mbarrier_wait(self.pipeline_state.full, 0)
        begun = cute.arch.clock()
        now = begun
        while now - begun < self.who.consumer * stagger.cycles:
            now = cute.arch.clock()

    # --- without a producer ---------------------------------------------------------------------------------

    @reads(step.SyncThreads)
    def on_sync_threads(self, sync: step.SyncThreads, at: At) -> None:
        cute.arch.sync_threads()

    @reads(step.ForAhead)
    def on_for_ahead(self, loop: step.ForAhead, at: At) -> None:
        at.stage, at.phase = Int32(0), Int32(0)
        self.loads.set_up(self.pipeline_state, self.who.rank)
        self.load_first(loop.count, at.tile.k_count)

    @cute.jit
    def load_first(self, count: cutlass.Constexpr, k_count: Int32):
        """Load the first `count` k-tiles of a work tile, or all if it has fewer, if this plan has no producer.

        Only the first warp of the consumer loads.

        k_count   number of k-tiles of the work tile
        """
        if self.who.warp_idx == 0:
            for k_tile in cutlass.range_constexpr(count):
                if k_tile < k_count:
                    self.loads.fill(self.tile_mnl, k_tile, k_tile, None)

    @reads(step.Load)
    @cute.jit
    def on_load(self, load: cutlass.Constexpr, at: cutlass.Constexpr):
        """Load a later k-tile to the stage that all threads have just read, if this plan has no producer.

        Only the first warp of the consumer loads.

        load   the step; `load.ahead` is the distance to the later k-tile, in k-tiles
        at     the consumer's position in its program: work tile, k-tile and pipeline state
        """
        if self.who.warp_idx == 0:
            if at.k_tile + load.ahead < at.k_count:
                self.loads.fill(self.tile_mnl, at.k_tile + load.ahead, at.last, None)

    def for_k_tiles(self, loop, at, names, count, values):
        """Emit the code of the loop over k-tiles, and return the final values of its loop-carried variables.

        If the plan has no producer, a consumer loads a later k-tile to the stage of the previous k-tile. The first
        k-tile has no previous one, so the last stage is used.

        loop            the step, with the steps of an iteration
        at              the consumer's position in its program before the loop
        names, values   names of the loop-carried variables, such as "stage", and their values before the loop
        count           number of k-tiles
        """
        if any(isinstance(each, step.Load) for each in loop.steps) and "last" in names:
            values = tuple(
                [
                    Int32(self.plan.stages - 1) if name == "last" else value
                    for name, value in zip(names, values, strict=True)
                ]
            )
        return super().for_k_tiles(loop, at, names, count, values)

    # --- K splits -------------------------------------------------------------------------------------------

    @reads(step.IncrementSemaphore)
    def on_increment_semaphore(self, semaphore: step.IncrementSemaphore, at: At) -> None:
        at.semaphore = self.semaphore_of(at) if at.is_tile is None else self.semaphore_if(at, at.is_tile)

    def semaphore_of(self, at: At):
        """Increment the semaphore of the current work tile, which counts its K splits, and return its previous value.

        at   the consumer's position in its program, which includes the current work tile
        """
        return self.split_k.increment_semaphore(at.tile, self.who.rank, self.who.consumer, self.who.tid)

    @cute.jit
    def semaphore_if(self, at: cutlass.Constexpr, is_tile):
        """Increment the semaphore of the current work tile if `is_tile` holds, and return its previous value, else 0.

        The semaphore counts the K splits of a tile that are finished.

        at   the consumer's position in its program, which includes the current work tile
        """
        found = Int32(0)
        if is_tile:
            found = self.semaphore_of(at)
        return found

    @reads(step.ReduceSplits)
    def on_reduce_splits(self, split_k: step.ReduceSplits, at: At) -> None:
        who = self.who
        at.is_last = self.split_k.add_up(
            self.products.total, self.work, at.tile, at.semaphore, who.rank, who.consumer, who.tid
        )

    # --- cluster split-K ------------------------------------------------------------------------------------

    @reads(step.SendAccumulators)
    def on_send_accumulators(self, send: step.SendAccumulators, at: At) -> None:
        self.shared.send(self.products.total, at.k_count, at.accumulators_phase, self.who)

    @reads(step.AddAccumulators)
    def on_add_accumulators(self, add: step.AddAccumulators, at: At) -> None:
        own = lower.tiled_mma(self.plan.consumer_d_mma).get_slice(self.who.tid)
        shape = own.partition_shape_C(self.pipeline.consumer_tile)
        self.own_accumulators = cute.make_rmem_tensor(shape, lower.dtype(self.plan.operands.acc))
        self.shared.add(self.own_accumulators, at.accumulators_phase, self.who)
        at.accumulators_phase ^= 1

    @reads(step.AwaitConsumed)
    def on_await_consumed(self, wait: step.AwaitConsumed, at: At) -> None:
        self.shared.await_spent(at.accumulators_phase, self.who)

    # --- to global memory -----------------------------------------------------------------------------------

    def forgets(self, at: At) -> bool:
        """Return whether the registers that keep a finished tile are free again if a branch is not taken.

        With an overlapped epilogue, a finished tile is kept in registers and stored during the next tile's MMAs. The
        branch is taken if the consumer's K split is the last of its tile. In all other K splits the consumer has
        nothing to store, so the registers need not be kept.

        at   the consumer's position in its program
        """
        return self.holds and at.is_last is not None

    def forget(self) -> None:
        """Overwrite registers that keep a finished tile with 0, so that the compiler does not preserve old values."""
        self.kept.fill(0)

    def condition(self, branch: step.If, at: At):
        """Return the value of the condition of an `If` step: a bool known while tracing, or a value known at run time.

        branch   the step, which names its condition
        at       the consumer's position in its program: work tile, k-tile and pipeline state
        """
        if branch.condition == step.TILES_ARE_READ:
            self.own_mnl = self.own_tile(at)  # not inside the branch: the steps after it use the value too
            return self.storage.reads_by_first()
        if branch.condition == step.IS_FIRST_WARP:
            return self.storage.warp == 0
        return super().condition(branch, at)

    @reads(step.LoadEpiTile)
    def on_load_epi_tile(self, fetch: step.LoadEpiTile, at: At) -> None:
        if fetch.ahead is None:
            self.storage.fetch_first(self.own_mnl)
        else:
            self.storage.fetch_ahead(self.own_mnl, at.i + fetch.ahead)

    @reads(step.Evaluate)
    def on_evaluate(self, values: step.Evaluate, at: At) -> None:
        if values.section == step.HEAD:
            count = at.k_count if self.shared is None and self.plan.scheduler.has_empty_tiles else Int32(1)
            own = self.products.total if self.shared is None else self.own_accumulators
            self.accumulators = self.storage.head(own, count)
            if not self.holds:  # the coordinates are computed as late as possible, to save registers
                self.own_mnl = self.own_tile(at)
            if self.plan.store.first_wait(self.plan):
                self.storage.find_warp()
        else:
            own, ups = self.storage.epi_tile(self.accumulators, at.i)
            self.results = self.storage.tail(own, at.i, self.own_mnl, at.c_phase, ups)
            self.storage.find_warp()

    @reads(step.StoreAux)
    def on_store_aux(self, store: step.StoreAux, at: At) -> None:
        self.storage.store_aux(self.results, at.i, self.own_mnl)

    @reads(step.Reduce)
    def on_reduce(self, reduce: step.Reduce, at: At) -> None:
        self.storage.reduce(self.results, at.i, self.own_mnl)

    @reads(step.ForEpiTiles)
    def on_for_epi_tiles(self, loop: step.ForEpiTiles, at: At) -> None:
        if loop.overlapped:
            self.store_left(loop, at, at.k_count, at.left)
            at.left = Int32(0)
            return
        count = self.storage.epi_tiles
        for i in range(count):
            at.i = i
            self.steps(loop.steps, at)
        at.i, at.c_phase = None, at.c_phase ^ ((count // self.plan.store.count) & 1)

    @reads(step.WaitStores)
    def on_wait_stores(self, wait: step.WaitStores, at: At) -> None:
        self.storage.wait_stores(wait.pending, wait.by)

    @reads(step.WriteEpiStage)
    def on_write_epi_stage(self, write: step.WriteEpiStage, at: At) -> None:
        self.storage.write_epi_stage(self.results(write.result), at.i, write.result)

    @reads(step.SyncEpiTile)
    def on_sync_epi_tile(self, sync: step.SyncEpiTile, at: At) -> None:
        self.sync("epi_tile", self.who.consumer)

    @reads(step.StoreEpiStage)
    def on_store_epi_stage(self, store: step.StoreEpiStage, at: At) -> None:
        held = (at.overlapped_m, at.overlapped_n, at.overlapped_l)
        self.storage.store_epi_stage(store.by, at.i, held if self.holds else self.own_mnl, store.result)

    @reads(step.StoreTile)
    def on_store_tile(self, store: step.StoreTile, at: At) -> None:
        self.storage.store_tile(self.accumulators, self.own_mnl)

    # --- overlapped epilogue --------------------------------------------------------------------------------

    def hold(self, acc) -> None:
        """Allocate registers to keep a finished tile of D until it is stored: (values, epilogue tiles), in D's type.

        An overlapped epilogue stores it during the MMAs of the next tile.

        acc   accumulators of the thread
        """
        shape = self.storage.by_epi_tiles(acc).shape
        self.kept = cute.make_rmem_tensor(shape, lower.dtype(self.plan.operands.d.dtype))

    @reads(step.KeepTile)
    def on_keep_tile(self, hold: step.KeepTile, at: At) -> None:
        own_mnl = self.own_tile(at)
        if self.plan.tail.steps:
            for i in range(self.storage.epi_tiles):
                own, ups = self.storage.epi_tile(self.accumulators, i)
                results = self.storage.tail(own, i, own_mnl, None, ups)
                self.storage.store_aux(results, i, own_mnl)
                self.storage.reduce(results, i, own_mnl)
                self.kept[None, i].store(results("d").load())
        else:
            store_as_results(self.storage.by_epi_tiles(self.accumulators), self.kept)
        at.left = Int32(self.storage.epi_tiles)
        at.overlapped_m, at.overlapped_n, at.overlapped_l = own_mnl
        if hold.groups:
            at.overlapped_begin, at.overlapped_size = Int32(at.tile.begin), Int32(at.tile.size)

    @reads(step.OverlappedEpiTile)
    @cute.jit
    def on_overlapped_epi_tile(self, behind: cutlass.Constexpr, at: cutlass.Constexpr):
        """Store one epilogue tile of the previous, finished tile, after the MMAs of a k-tile (overlapped epilogue).

        The finished tile is kept in registers. Nothing is stored if all its epilogue tiles have been stored.

        behind   the step of the program; it contains the steps that store an epilogue tile
        at       the consumer's position in its program; its k-tile is the index of the epilogue tile
        """
        if at.k_tile < at.left:
            self.store_kept(behind.steps, at, at.k_tile)

    @cute.jit
    def store_left(self, loop: cutlass.Constexpr, at: cutlass.Constexpr, k_count: Int32, left: Int32):
        """Store the epilogue tiles of the previous tile that are left, if the current tile has too few k-tiles.

        loop      the step, which contains the steps that store an epilogue tile
        at        the consumer's position in its program: work tile, k-tile and pipeline state
        k_count   k-tiles of the current tile; one epilogue tile has been stored after each
        left      epilogue tiles of the previous tile, which is kept in registers
        """
        for i in cutlass.range(cutlass.min(k_count, left), left, unroll=1):
            self.store_kept(loop.steps, at, i)

    @cute.jit
    def store_kept(self, steps: cutlass.Constexpr, at: cutlass.Constexpr, i: Int32):
        """Store the epilogue tile with index `i`, known at run time, of the finished tile that is kept in registers.

        Registers cannot be indexed at run time, so each epilogue tile has a branch.

        steps   the steps that store an epilogue tile
        """
        for j in cutlass.range_constexpr(self.storage.epi_tiles):
            if i == j:
                self.store_one(steps, at, j)

    def store_one(self, steps, at: At, j: int) -> None:
        """Store epilogue tile `j`, known while tracing, of the finished tile that is kept in registers.

        steps   the steps that store an epilogue tile
        """
        self.results = lambda _: self.kept[None, j]
        self.storage.find_warp()
        present = self.storage.work_tile
        if self.plan.operands.groups:
            self.storage.begin(replace(present, begin=at.overlapped_begin, size=at.overlapped_size))
        self.steps(
            steps, At(i=j, overlapped_m=at.overlapped_m, overlapped_n=at.overlapped_n, overlapped_l=at.overlapped_l)
        )
        if self.plan.operands.groups:
            self.storage.begin(present)
