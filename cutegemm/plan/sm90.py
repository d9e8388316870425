"""Builder of Hopper plans: TMA fills a queue of k-tiles, wgmma empties it, and D leaves by TMA."""

from __future__ import annotations

from cutegemm.arch import WARPGROUP_THREADS
from cutegemm.errors import PlanError
from cutegemm.layout import Layout
from cutegemm.layout.inttuple import product
from cutegemm.plan.arguments import check_arguments
from cutegemm.plan.choice import H200_MULTIPROCESSORS
from cutegemm.plan.pipeline import Pipeline
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Operands
from cutegemm.plan.queue import QueueBuilder, barriers_of, registers_of, roles_of
from cutegemm.plan.sm90_slots import SlotBuilder
from cutegemm.plan.split import Split
from cutegemm.tile.mma_atoms import WGMMA_M, wgmma
from cutegemm.tile.raster import Raster
from cutegemm.tile.tiled_mma import TiledMma

_MANY_SUMS = 160  # of a consumer's thread, beside which it needs all registers that it can get


def sm90_plan(
    operands: Operands | None = None,
    *,
    name: str = "sm90",
    summary: str = "",
    tile: tuple[int, int, int] = (128, 128, 64),
    schedule: str = "pingpong",
    cluster: tuple[int, int] = (1, 1),
    consumers: int | None = None,
    stages: int | None = None,
    store: str = "tma",
    shared_d: str = "swizzled",
    subtile_n: int | None = None,
    slots: int | None = None,
    raster: str | Raster = "grouped_m:8",
    l2: tuple[str, str, str] = ("evict_normal", "evict_normal", "evict_normal"),
    registers: tuple[int, int] | None = None,
    with_c: bool = False,
    ctas: int | None = H200_MULTIPROCESSORS,
    order_epilogue: bool = False,
    stagger_cycles: int = 0,
    two_level: bool = False,
    deferred: bool = False,
    split_k: int = 1,
    stream: int = 0,
) -> GemmPlan:
    """A plan for wgmma, from what a person would say.

    operands          f16, bf16, e4m3, e5m2 or s8; bf16, A k-major and B k-major where left out
    tile              (bM, bN, bK) of a CTA
    schedule          pingpong, cooperative or single; see `Pipeline`
    cluster           CTAs along M, which share the tiles of B, and along N, which share those of A
    consumers         warpgroups that multiply; 2, or 1 for `single`, where left out
    stages            k-tiles in shared memory; as many as there is room for, where left out
    store             tma: a consumer stores a subtile. tma_warp: each warp its 16 rows. direct: out of
                      registers, for a D that is aligned to less than 16 bytes
    shared_d          how a subtile lies in shared memory: swizzled; plain; or padded, which no box of TMA is, so
                      that the consumer's threads store it
    subtile_n         columns of a subtile; 128 bytes of them where that divides the tile into enough for the slots
    slots             subtiles of a consumer in shared memory
    raster            the order of the clusters' tiles of D, or its text
    l2                how long the L2 cache is to keep A, B and D
    registers         of a producer's thread and of a consumer's
    with_c            whether C can be read: by TMA where it is of the type, majorness and alignment of D
    ctas              of the persistent grid: as many as there are multiprocessors; None: one for each tile
    order_epilogue, stagger_cycles, two_level, deferred   see `Pipeline`
    split_k           units that share a tile of D, each with a part of the k-tiles
    stream            waves of the persistent grid whose k-tiles are divided evenly among it; see `Split`
    raises            PlanError with every rule that is broken

    >>> plan = sm90_plan()
    >>> plan.stages, plan.threads, plan.load_a.name, plan.epilogue.store.box
    (6, 384, 'tma.load.64x128.bf16.128B', (64, 64))
    """
    ops = operands or Operands.of("bf16", layout="nt")
    count = consumers or (1 if schedule == "single" else 2)
    subject = f"sm90_plan {name!r}"
    counts = {
        "consumers": count,
        "stages": 0 if stages is None else stages,
        "split_k": split_k,
        "stream": stream,
    }
    check_arguments(subject, ops, {"tile": (tile, 3), "cluster": (cluster, 2)}, counts)
    b = _Builder(subject, ops, tile)
    if store not in ("tma", "tma_warp", "direct"):
        b.broken.append(f"store = {store!r}; tma, tma_warp or direct is expected.")
    if schedule == "single":
        ctas = None
    bm, bn, _ = tile
    consumer_tile = (bm, bn) if schedule == "pingpong" else (bm // count, bn)
    readers = 1 if schedule == "pingpong" else count
    mma = b.attempt(lambda: b.tiled_mma(consumer_tile, readers))
    rows = 16 if store == "tma_warp" else WGMMA_M
    leaving = None if store == "direct" else b.attempt(
        lambda: SlotBuilder(b.subject, ops).epilogue(
            consumer_tile, count, (rows, l2[2]), shared_d, subtile_n, slots, with_c
        )
    )  # fmt: skip
    epilogue, smem_d = leaving if leaving else (None, None)
    depth = stages
    if depth is None:
        depth = b.stages_that_fit(smem_d)
    a_parts = b.attempt(lambda: b.operand(ops.a, bm, cluster[1], max(1, depth), l2[0]))
    b_parts = b.attempt(lambda: b.operand(ops.b, bn, cluster[0], max(1, depth), l2[1]))
    order = b.attempt(lambda: Raster.parse(raster) if isinstance(raster, str) else raster)
    split = b.attempt(lambda: Split(split_k, waves=stream, reduction="last"))
    stored = epilogue.to_shared.atom if epilogue else b.attempt(b.direct_store)
    if b.broken or mma is None or a_parts is None or b_parts is None or order is None or stored is None:
        raise PlanError(b.subject, b.broken)
    assert split is not None
    pipeline = Pipeline(
        schedule, depth, count, consumer_tile, ctas, order_epilogue, stagger_cycles, two_level, deferred
    )
    return GemmPlan(
        name=name,
        summary=summary,
        family="sm90",
        arch="sm_90a",
        operands=ops,
        cta_tile=tile,
        tiled_mma=mma,
        smem_a=a_parts[1],
        smem_b=b_parts[1],
        load_a=a_parts[0],
        load_b=b_parts[0],
        read_a=None,
        read_b=None,
        store_d=stored,
        raster=order,
        schedule=None,
        roles=roles_of(pipeline, registers or b.registers(pipeline)),
        barriers=barriers_of(pipeline, epilogue, b.stage_bytes, cluster, split),
        smem_d=smem_d,
        cluster_mn=cluster,
        split=split,
        pipeline=pipeline,
        epilogue=epilogue,
        has_c=with_c,
    )


class _Builder(QueueBuilder):
    """The parts of a Hopper plan."""

    def registers(self, pipeline: Pipeline) -> tuple[int, int] | None:
        """What a producer leaves to the consumers."""
        sums = product(pipeline.consumer_tile) * self.operands.acc.bits // (32 * WARPGROUP_THREADS)
        return registers_of(pipeline, sums * (1 + pipeline.two_level) > _MANY_SUMS)

    def tiled_mma(self, consumer_tile: tuple[int, int], readers: int) -> TiledMma:
        """One wgmma as wide as the tile; consumers that share a tile take its rows in halves."""
        ops, (_, bn, _) = self.operands, self.tile
        majors = ["k" if operand.major == "k" else "mn" for operand in (ops.a, ops.b)]
        atom = wgmma(ops.a.dtype, bn, majors[0], majors[1], "shared", ops.acc, ops.b.dtype)
        if readers == 1:
            return TiledMma(atom)
        own = consumer_tile[0]
        if own % WGMMA_M or own == 0:
            raise PlanError(
                self.subject, [f"{readers} consumers take {own} rows each, no multiple of {WGMMA_M}."]
            )
        rows = Layout((WGMMA_M, readers, own // WGMMA_M), (1, own, WGMMA_M))
        return TiledMma(atom, Layout((readers, 1, 1)), (rows, None, None))
