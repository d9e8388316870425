"""Builder of SIMT plans: layouts from block, warp and thread tiles, by the layout algebra."""

from __future__ import annotations

from types import NoneType

from cutegemm.build.building import K_RUN, LOADS, Builder, Shared, made, takes_epilogue, vector_copy
from cutegemm.errors import PlanError
from cutegemm.layout import ComposedLayout, Layout, Swizzle
from cutegemm.machine.arch import ACCESS_BITS
from cutegemm.plan.arguments import check_arguments
from cutegemm.plan.memory.repack import Repack, as_repacked, make_repacks
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Operand, Operands
from cutegemm.plan.program.thread_schedule import ThreadSchedule, direct, multistage, prefetched, single_stage
from cutegemm.plan.store import RegisterStore, SharedStore, Store
from cutegemm.plan.stream import OperandStream
from cutegemm.plan.work.grid import grid_of
from cutegemm.plan.work.scheduler import TileScheduler
from cutegemm.plan.work.split import KSplit
from cutegemm.tile.copy_atoms import CP_ASYNC_BYTES, UNIVERSAL_BITS, universal_copy
from cutegemm.tile.mma_atoms import fma
from cutegemm.tile.raster import Raster
from cutegemm.tile.simt import simt_tiled_mma
from cutegemm.tile.tiled_copy import make_tiled_copy_A, make_tiled_copy_B
from cutegemm.tile.tiled_mma import TiledMma

MAX_K_BLOCKS = 1024  # k-blocks of a k-tile; with more, its tiles of A and B fill the shared memory of any GPU


@takes_epilogue
def simt_plan(
    operands: Operands | None = None,
    *,
    name: str = "simt",
    summary: str = "",
    block: tuple[int, int, int] = (128, 128, 16),
    warp: tuple[int, int] = (64, 32),
    thread: tuple[int, int] = (8, 8),
    quad: tuple[int, int] = (4, 4),
    stages: int = 2,
    unroll: int | None = None,
    load_a: str | None = None,
    load_b: str | None = None,
    shared_a: Shared | None = None,
    shared_b: Shared | None = None,
    lanes_along: str = "m",
    raster: Raster | str = "grouped_m:8",
    mma_order: str = "m",
    ctas_per_sm: int = 1,
    access_bits: int = ACCESS_BITS,
    prefetch: bool = False,
    repack: str = "",
    split_k: int = 1,
    split_order: str = "blocked",
    reduction: str = "kernel",
    waves: int = 0,
    persistent: int | None = None,
    store: str | None = None,
) -> GemmPlan:
    """Return a kernel plan that multiplies by scalar FMA instructions (SIMT), from tile sizes and options.

    operands                        element types, majorness and alignment; None: f32 with K-major A, N-major B and D
    name, summary                   name of the plan, and what is special about it
    block, warp, thread             tiles (bM, bN, bK) of a CTA, (M, N) of a warp, (M, N) of a thread
    quad                            (M, N) of neighbouring elements of a thread; it reads each side with one access
    stages                          k-tiles in shared memory at a time; 1: the textbook loop with two barriers per
                                    k-tile; 0: fragments are read from global memory
    unroll                          k-blocks that the code unrolls; None: all of a k-tile
    load_a, load_b                  "cp.async" or "register"; None: by registers for a K-major operand, which is
                                    transposed on its way, and for an alignment below 4 bytes, else by cp.async
    shared_a, shared_b              layout in shared memory; None: along M or N, padded by 16 bytes for a K-major
                                    operand
    lanes_along                     "m" or "n": the mode along which neighbouring lanes of a warp lie
    raster                          order of the tiles, such as "grouped_m:8": see `Raster.parse`
    mma_order                       "m" or "n": the outer mode in the order of a thread's FMAs
    ctas_per_sm                     CTAs that an SM must hold; it limits registers and shared memory
    access_bits                     widest access to any memory, in bits
    prefetch                        with one stage: True to load the next k-tile to registers while one is multiplied
    repack                          "a", "b" or "ab": operands that another kernel copies to a better layout first; "":
                                    none
    split_k                         K splits of each tile of D
    split_order, reduction, waves   how K is split, as in `KSplit`: which k-tiles a split takes; who adds ("kernel" or
                                    "last"); waves of stream-K, 0 for none
    persistent                      CTAs of the grid for stream-K, as many as the device runs at a time; None: one CTA
                                    per tile
    store                           "direct": D is stored from registers; "shared": through shared memory, so that
                                    neighbouring threads store neighbours; None: through shared memory if D is aligned
                                    to less than a thread's `quad` and K is not split
    raises                          PlanError with every rule that is broken

    >>> plan = simt_plan(block=(128, 128, 8), warp=(64, 32), thread=(8, 8))
    >>> plan.threads, plan.smem_bytes(), plan.registers()["accumulators"]
    (256, {'a': 8448, 'b': 8192}, 64)
    """
    ops = Operands.of("f32") if operands is None else operands
    subject = f"simt_plan {name!r}"
    tiles = {"block": (block, 3), "warp": (warp, 2), "thread": (thread, 2), "quad": (quad, 2)}
    counts = {"stages": stages, "split_k": split_k, "waves": waves, "persistent": persistent or 0}
    layouts = (Shared, NoneType)
    typed = {"shared_a": (shared_a, layouts), "shared_b": (shared_b, layouts), "prefetch": (prefetch, (bool,))}
    check_arguments(subject, ops, tiles, counts, {"unroll": unroll, "ctas_per_sm": ctas_per_sm}, typed)
    builder = _SimtBuilder(
        subject, ops, block, stages, quad, access_bits if access_bits in UNIVERSAL_BITS else ACCESS_BITS
    )
    builder.choices(access_bits=(access_bits, UNIVERSAL_BITS))
    builder.choices(load_a=(load_a, LOADS), load_b=(load_b, LOADS), store=(store, (None, "direct", "shared")))
    order = builder.order(raster)
    repacks = builder.attempt(lambda: make_repacks(builder.accessed, repack, along_k=False)) or ()
    split = builder.attempt(lambda: KSplit(split_k, split_order, reduction, waves))
    mma = builder.attempt(
        lambda: simt_tiled_mma(
            block[:2], warp, thread, atom=fma(ops.a.dtype, ops.acc), quad_mn=quad, lanes_along=lanes_along
        )
    )
    schedule = builder.attempt(lambda: builder.schedule(unroll, prefetch))
    if mma is None:  # the tiles are not valid, so the number of threads is unknown
        raise PlanError(builder.subject, builder.violations)
    a = builder.operand("a", mma, repacks, load_a, shared_a)
    b = builder.operand("b", mma, repacks, load_b, shared_b)
    d = builder.attempt(lambda: builder.storing(mma.threads, store, split is not None and split.is_split))
    builder.check()
    return builder.plan(
        mma,
        made(a),
        made(b),
        made(d),
        name=name,
        summary=summary,
        family="simt",
        arch="sm_80",
        scheduler=TileScheduler(made(order), made(split), grid_of(persistent)),
        body=made(schedule),
        ctas_per_sm=ctas_per_sm,
        mma_order=mma_order,
        repacks=repacks,
    )


class _SimtBuilder(Builder):
    """Makes the components of a SIMT plan from its options: tiled MMA, copies, shared-memory layouts and schedule.

    A thread computes several blocks of neighbouring elements of D ("quads"), e.g. four blocks of 4 x 4 for an 8 x 8
    thread tile.

    quad          (M, N) of such a block; a thread reads each of its sides with one access
    access_bits   widest access to any memory, in bits
    """

    least_stages = 0

    def __init__(
        self,
        subject: str,
        operands: Operands,
        block: tuple[int, int, int],
        stages: int,
        quad: tuple[int, int],
        access_bits: int,
    ) -> None:
        super().__init__(subject, operands, block, stages)
        self.quad, self.access_bits = quad, access_bits

    @property
    def accessed(self) -> Operands:
        """Operands of this plan with their alignment limited to `access_bits`, so that no access to memory is wider."""
        if self.access_bits >= ACCESS_BITS:
            return self.operands
        return self.operands.aligned(max(self.access_bits, self.operands.a.dtype.bits) // 8)

    def schedule(self, unroll: int | None, prefetch: bool) -> ThreadSchedule:
        """Return the mainloop's schedule that belongs to the number of stages.

        0 stages: fragments are read from global memory. 1: two barriers per k-tile. 2 or more: a multistage pipeline.

        unroll     k-blocks that the code unrolls; None: all of a k-tile
        prefetch   with one stage: True to load the next k-tile to registers while one is multiplied
        raises     PlanError if a k-tile has too many k-blocks, or `unroll` does not divide them
        """
        k_blocks = self.block[2]
        if k_blocks > MAX_K_BLOCKS:
            raise PlanError(self.subject, [f"bK = {k_blocks}: a k-tile has at most {MAX_K_BLOCKS} k-blocks."])
        if unroll is not None and (unroll < 2 or unroll % 2 or k_blocks % unroll):
            raise PlanError(self.subject, [f"unroll = {unroll} is not an even divisor of the {k_blocks} k-blocks."])
        if self.stages == 0 and k_blocks != 1:
            rule = f"stages = 0, without shared memory, needs bK = 1; block = {self.block}. Use stages of 1 or more."
            raise PlanError(self.subject, [rule])
        if self.stages == 0:
            return direct()
        if self.stages == 1:
            return (prefetched if prefetch else single_stage)(k_blocks, unroll)
        return multistage(self.stages, k_blocks, unroll)

    def operand(
        self, name: str, mma: TiledMma, repacks: tuple[Repack, ...], load: str | None, shared: Shared | None
    ) -> OperandStream | None:
        """Return how tiles of A or B are loaded, laid out in shared memory and read by a SIMT plan.

        None if an argument breaks a rule; the rule is remembered, and `check` raises the error.

        name      "a" or "b"
        mma       tiled MMA of the CTA
        repacks   kernels that copy operands to a better layout first; empty for none
        load      "cp.async", "register" or None (as the alignment allows)
        shared    layout in shared memory; None: along M or N, padded by 16 bytes for a K-major operand
        """
        first = "ab".index(name)
        extent, bk = self.block[first], self.block[2]
        operand: Operand = getattr(as_repacked(self.accessed, repacks), name)
        elements = ACCESS_BITS // operand.dtype.bits  # elements of the widest access
        if self.stages == 0:
            atom = universal_copy(operand.dtype, operand.dtype.bits)
            direct_copy = (make_tiled_copy_A, make_tiled_copy_B)[first](atom, mma)
            return OperandStream(name, "mn"[first], direct_copy, Layout((extent, bk, 0), (1, extent, 0)))
        narrow = min(operand.align_bytes, ACCESS_BITS // 8) < min(CP_ASYNC_BYTES["ca"])
        kind = load or ("register" if operand.major == "k" or narrow else "cp.async")
        vector = min(elements, operand.align_elems)
        is_transposed = operand.major == "k" and (shared is None or shared.major == "mn")
        tile = shared or Shared(pad=elements if is_transposed else 0)
        if kind == "cp.async" and (operand.major == "k") != (tile.major == "k"):
            vector = 1  # elements are transposed one at a time
        copy = self.attempt(lambda: self.copy(operand, extent, mma.threads, kind, vector, k_run=K_RUN))
        layout = self.attempt(lambda: tile.layout(extent, bk, max(1, self.stages)))
        if copy is None or layout is None:
            return None
        neighbours = min(self.quad[first], self.access_bits // operand.dtype.bits) if tile.major == "mn" else 1
        return OperandStream(name, "mn"[first], copy, layout, vector_copy(operand, neighbours))

    def storing(self, threads: int, store: str | None, is_split: bool) -> Store:
        """Return how a tile of D is stored: from registers, or through shared memory so that stores are coalesced.

        A thread computes blocks of neighbouring elements (quads). In shared memory, the lanes of a warp write rows of
        different quads at the same time; a swizzle moves those of four neighbouring quads to different banks.

        threads    number of threads of the CTA
        store      "direct", "shared", or None: through shared memory if D is aligned to less than a quad and K is not
                   split
        is_split   True if K is split among CTAs
        """
        d, (bm, bn, _) = self.operands.d, self.block
        along, across = self.quad[::-1] if d.major == "n" else self.quad
        widest = min(along, ACCESS_BITS // d.dtype.bits)
        vector = min(widest, self.accessed.d.align_elems)
        atom = vector_copy(d, vector)
        is_narrow = d.align_elems < widest and self.stages > 0 and not is_split
        if not (is_narrow if store is None else store == "shared"):
            return RegisterStore(atom)
        copy = self.copy_of_lines(vector, threads)
        outer = Layout((bm, bn), (bn, 1) if d.major == "n" else (1, bm))
        step, low = (bn if d.major == "n" else bm) * across, vector.bit_length() - 1
        if step & (step - 1) == 0 and step >> low >= 4:
            swizzle = Swizzle(2, low, step.bit_length() - 1 - low)
            return SharedStore(atom, ComposedLayout(swizzle, 0, outer), copy)
        return SharedStore(atom, outer, copy)
