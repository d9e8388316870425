"""Builder of gemv plans, for few columns: A is loaded from global memory straight to the fragments of mma.sync."""

from __future__ import annotations

from cutegemm.build.building import Builder, made, takes_epilogue, vector_copy
from cutegemm.dtypes import tf32
from cutegemm.errors import PlanError
from cutegemm.layout import Layout
from cutegemm.machine.arch import ACCESS_BITS, REGISTER_BITS, WARP_THREADS
from cutegemm.plan.arguments import check_arguments
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Operands
from cutegemm.plan.program.sliced_schedule import SlicedSchedule
from cutegemm.plan.program.thread_schedule import streamed
from cutegemm.plan.reduction import SlicedK
from cutegemm.plan.store import RegisterStore
from cutegemm.plan.stream import OperandStream
from cutegemm.plan.work.scheduler import TileScheduler
from cutegemm.tile.atoms import MmaAtom
from cutegemm.tile.copy_atoms import global_load
from cutegemm.tile.mma_atoms import fma, mma_sync
from cutegemm.tile.raster import Raster
from cutegemm.tile.tiled_copy import TiledCopy, make_tiled_copy
from cutegemm.tile.tiled_mma import TiledMma

ATOM_K_BITS = 256  # bits along K of the m16n8 atoms: 16 elements of 16 bits, 32 of 8 bits, 8 of tf32
_LANES_K, _LANES_MN = 4, 8  # lanes of a warp along K, and along M or N, in the fragments of mma.sync
_PAD = 4  # unused accumulators after a warp's column of 16 rows: 8 rows of 4 pairs of columns hit different banks


@takes_epilogue
def gemv_plan(
    operands: Operands | None = None,
    *,
    name: str = "gemv",
    summary: str = "",
    tile: tuple[int, int] = (16, 8),
    warps: int = 8,
    vectors: int = 4,
    load_chunks: int = 2,
    cluster: int = 1,
    pdl: bool = False,
    rounding: str | None = None,
    raster: Raster | str = "along_m",
    ctas_per_sm: int = 2,
) -> GemmPlan:
    """Return a kernel plan for a D of few columns (GEMV-like), which reads A once, at the bandwidth of DRAM.

    The warps of a CTA split K, and their accumulators are added through shared memory at the end. A and B are loaded
    straight to registers, 16 bytes at a time. For a D of few rows, use D^T = B^T A^T.

    operands        types, majorness and alignment of A to D: f16, bf16, e4m3, e5m2 or tf32, K-major and aligned to 16
                    bytes; None: bf16
    name, summary   name of the plan, and what is special about it
    tile            (bM, bN) of D that a cluster computes; bM is a multiple of 16, bN of 8. Each of its CTAs multiplies
                    the whole tile, for its part of K
    warps           warps of a CTA
    vectors         vectors of 16 bytes that a lane loads of each row at once; with two, four lanes load a cache line
    load_chunks     number of parts that a k-tile is loaded in; all but one are in flight while one is multiplied
    cluster         CTAs of a cluster, which split K, for problems of few tiles. Each CTA stores an equal number of the
                    rows
    pdl             True if the kernel may begin before the previous kernel ends (programmatic dependent launch)
    rounding        rounding of tf32 operands: "rz", "rna" or None, which is "rna" (to nearest)
    raster          order of the tiles, such as "along_m": see `Raster.parse`
    ctas_per_sm     CTAs that an SM must hold; it limits registers and shared memory
    raises          PlanError with every rule that is broken

    >>> plan = gemv_plan(tile=(32, 8), cluster=2, vectors=2)
    >>> plan.threads, plan.cta_tile, plan.mma_tile, plan.smem_bytes()["accumulators"]
    (256, (16, 8, 1024), (32, 8, 1024), 10224)
    """
    ops = Operands.of("bf16", layout="nt") if operands is None else operands
    subject = f"gemv_plan {name!r}"
    counts = {"warps": warps, "vectors": vectors, "load_chunks": load_chunks, "cluster": cluster}
    check_arguments(subject, ops, {"tile": (tile, 2)}, {}, {"ctas_per_sm": ctas_per_sm}, positive=counts)
    deep = vectors * load_chunks * warps * _LANES_K * ACCESS_BITS // ops.a.dtype.bits
    builder = _GemvBuilder(subject, ops, (tile[0] // cluster, tile[1], deep), warps, vectors)
    atom = builder.attempt(lambda: mma_sync(ops.a.dtype, ATOM_K_BITS // ops.a.dtype.bits, ops.acc, ops.b.dtype))
    order = builder.order(raster)
    builder.violations += [
        f"{name.upper()} is {operand.major}-major; lanes read it along K. Make it k-major: layout nt."
        for name, operand in (("a", ops.a), ("b", ops.b))
        if operand.major != "k"
    ]
    if tile[0] % 16 or tile[0] % cluster or tile[1] % 8:
        rule = (
            f"tile = {tile} for {cluster} CTAs; the tile must be a multiple of 16 x 8, with equally many rows "
            "for each CTA."
        )
        builder.violations.append(rule)
    builder.check()
    mma = made(builder.attempt(lambda: builder.mma(made(atom))))
    sliced_k = builder.attempt(lambda: builder.sliced_k(cluster))
    builder.check()
    assert sliced_k is not None
    load_a, load_b = builder.load("streaming"), builder.load("kept")
    return builder.plan(
        mma,
        OperandStream("a", "m", load_a, Layout((tile[0], deep, 0), (1, tile[0], 0))),
        OperandStream("b", "n", load_b, Layout((tile[1], deep, 0), (1, tile[1], 0))),
        RegisterStore(vector_copy(ops.d, 1)),
        name=name,
        summary=summary,
        family="mma_sync",
        arch="sm_90" if cluster > 1 or pdl else "sm_89" if ops.a.dtype.bits == 8 else "sm_80",
        scheduler=TileScheduler(made(order)),
        body=SlicedSchedule.of(streamed(deep // (made(atom).shape_mnk[2] * warps), load_chunks), sliced_k),
        ctas_per_sm=ctas_per_sm,
        mma_order="n",
        rounding=rounding or ("rna" if ops.a.dtype is tf32 else "rz"),
        cluster_mn=(cluster, 1),
        pdl=pdl,
    )


class _GemvBuilder(Builder):
    """Makes the components of a GEMV-like plan (for a D of few columns): tiled MMA, loads, and the sum over warps.

    The warps of a CTA split K, and their accumulators are added at the end.

    warps     number of warps of a CTA, which split each k-tile
    vectors   vectors of 16 bytes that a lane loads of each row at once
    """

    least_stages = 0

    def __init__(self, subject: str, operands: Operands, block: tuple[int, int, int], warps: int, vectors: int) -> None:
        super().__init__(subject, operands, block, 0)
        self.warps, self.vectors = warps, vectors
        self.packed = REGISTER_BITS // operands.a.dtype.bits  # elements in a register
        self.vector = ACCESS_BITS // operands.a.dtype.bits

    def mma(self, atom: MmaAtom) -> TiledMma:
        """Return the tiled MMA whose warps lie along K: each warp multiplies another part of the k-tile.

        The MMA takes the elements of a k-tile in a permuted order along K, the same for A and B, so that the result
        stays the same. With this order, the 16 bytes that a lane loads at once are fragments that it multiplies itself:
        the first two registers in one k-block, the other two in the next one.

        atom   MMA instruction of a warp
        """
        in_register, vector = self.packed, self.vector
        warp_k = self.vectors * _LANES_K * vector
        along_k = Layout(
            ((in_register, _LANES_K, 2), self.warps, (2, self.vectors)),
            ((1, vector, in_register), warp_k, (2 * in_register, _LANES_K * vector)),
        )
        return TiledMma(atom, Layout((1, 1, self.warps)), (None, None, along_k))

    def load(self, cache: str) -> TiledCopy:
        """Return the tiled copy that loads A or B from global memory straight to the fragments of mma.sync.

        Each lane loads the vectors of 16 bytes that it multiplies.

        cache   cache hint of the loads: "streaming" or "kept"
        """
        operand, vector = self.operands.a, self.vector
        warp_k, deep = self.vectors * _LANES_K * vector, self.warps * self.vectors * _LANES_K * vector
        layout = Layout(
            ((_LANES_K, _LANES_MN, self.warps), (vector, self.vectors)),
            ((_LANES_MN * vector, 1, _LANES_MN * warp_k), (_LANES_MN, _LANES_MN * _LANES_K * vector)),
        )
        return make_tiled_copy(global_load(operand.dtype, ACCESS_BITS, cache), layout, (_LANES_MN, deep))

    def sliced_k(self, cluster: int) -> SlicedK:
        """Return how the accumulators of the warps, each for another part of K, are added through shared memory.

        All threads of the CTA add them, neighbouring threads for neighbouring rows of D.

        cluster   number of CTAs of a cluster that split K as well
        raises    PlanError if the threads do not divide the tile evenly
        """
        rows, columns, _ = self.block
        threads = min(self.warps * WARP_THREADS, rows * columns)
        if threads % WARP_THREADS or rows * columns % threads:
            rule = f"{rows} x {columns} elements of D cannot be divided evenly among {self.warps} warps."
            raise PlanError(self.subject, [rule])
        along_m = min(rows, threads)
        added = TiledMma(fma(self.operands.acc), Layout((along_m, threads // along_m, 1)))
        high = rows * cluster + _PAD
        by_warp = Layout((rows * cluster, columns, self.warps), (1, high, high * columns))
        by_cta = Layout((rows, columns, cluster)) if cluster > 1 else None
        return SlicedK(added, by_warp, by_cta)
