"""Builder of Hopper plans: TMA fills a queue of k-tiles, wgmma empties it, and D leaves by TMA."""

from __future__ import annotations

from typing import TypeVar

from cutegemm.arch import WARP_THREADS, WARPGROUP_THREADS, arch_named
from cutegemm.errors import PlanError
from cutegemm.layout import Layout
from cutegemm.layout.inttuple import product
from cutegemm.plan.building import Complaints
from cutegemm.plan.choice import H200_MULTIPROCESSORS
from cutegemm.plan.pipeline import Epilogue, Pipeline
from cutegemm.plan.plan import Barrier, GemmPlan, Role, SharedLayout
from cutegemm.plan.problem import Operand, Operands
from cutegemm.plan.sm90_slots import SWIZZLES, SlotBuilder, swizzled
from cutegemm.plan.split import Split
from cutegemm.tile.atoms import CopyAtom
from cutegemm.tile.copy_atoms import universal_copy
from cutegemm.tile.mma_atoms import WGMMA_M, wgmma
from cutegemm.tile.raster import Raster
from cutegemm.tile.smem_atoms import KINDS, SMEM_ATOM_ROWS, widest_smem_kind
from cutegemm.tile.tiled_mma import TiledMma
from cutegemm.tile.tma import TmaBox

MAX_STAGES = 12  # more were not seen to help
_SLACK_BYTES = 1024  # of shared memory, left for the barriers when stages are chosen
_WARPS = WARPGROUP_THREADS // WARP_THREADS

# By the number of consumers, what a thread of the producer and of a consumer has: of 65536 registers, in
# steps of 8 a thread. A consumer with many sums leaves the producer less.
_REGISTERS = {2: ((40, 232), (24, 240)), 3: ((32, 160), (32, 160))}
_MANY_SUMS = 160

_T = TypeVar("_T")


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
    order_epilogue, stagger_cycles, two_level   see `Pipeline`
    split_k           units that share a tile of D, each with a part of the k-tiles
    stream            waves of the persistent grid whose k-tiles are divided evenly among it; see `Split`
    raises            PlanError with every rule that is broken

    >>> plan = sm90_plan()
    >>> plan.stages, plan.threads, plan.load_a.name, plan.epilogue.store.box
    (6, 384, 'tma.load.64x128.bf16.128B', (64, 64))
    """
    ops = operands or Operands.of("bf16", layout="nt")
    count = consumers or (1 if schedule == "single" else 2)
    b = _Builder(f"sm90_plan {name!r}", ops, tile, cluster)
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
        used = 0 if smem_d is None else smem_d.cosize() * ops.d.dtype.bits // 8
        depth = b.stages_that_fit(used)
    a_parts = b.attempt(lambda: b.operand(ops.a, bm, cluster[1], max(1, depth), l2[0]))
    b_parts = b.attempt(lambda: b.operand(ops.b, bn, cluster[0], max(1, depth), l2[1]))
    order = b.attempt(lambda: Raster.parse(raster) if isinstance(raster, str) else raster)
    split = b.attempt(lambda: Split(split_k, waves=stream, reduction="last"))
    stored = epilogue.to_shared.atom if epilogue else b.attempt(b.direct_store)
    if b.broken or mma is None or a_parts is None or b_parts is None or order is None or stored is None:
        raise PlanError(b.subject, b.broken)
    assert split is not None
    pipeline = Pipeline(
        schedule, depth, count, consumer_tile, ctas, order_epilogue, stagger_cycles, two_level
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
        roles=_roles(pipeline, registers or b.registers(pipeline)),
        barriers=_barriers(pipeline, epilogue, b.stage_bytes, cluster, split),
        smem_d=smem_d,
        cluster_mn=cluster,
        split=split,
        pipeline=pipeline,
        epilogue=epilogue,
        has_c=with_c,
    )


def _roles(pipeline: Pipeline, registers: tuple[int, int] | None) -> tuple[Role, ...]:
    produce, consume = registers or (None, None)
    working = tuple([Role(f"consumer {i}", _WARPS, consume) for i in range(pipeline.consumers)])
    return working if pipeline.kind == "single" else (Role("producer", _WARPS, produce), *working)


def _barriers(
    pipeline: Pipeline,
    epilogue: Epilogue | None,
    stage_bytes: int,
    cluster: tuple[int, int],
    split: Split,
) -> tuple[Barrier, ...]:
    count = pipeline.consumers
    out = [Barrier("full", "mbarrier", pipeline.stages, 1, stage_bytes)]
    if pipeline.kind == "single":
        out.append(Barrier("read", "cta", 1, WARPGROUP_THREADS * count))
    else:
        out.append(
            Barrier("empty", "mbarrier", pipeline.stages, _WARPS * pipeline.readers * (sum(cluster) - 1))
        )
    if epilogue is not None:
        out.append(Barrier("subtile", "named", count, WARPGROUP_THREADS))
        if epilogue.load_c is not None:
            size_bytes = product(epilogue.subtile) * epilogue.load_c.dtype.bits // 8
            out.append(Barrier("c", "mbarrier", epilogue.slots * count, 1, size_bytes))
    if pipeline.kind == "pingpong":
        out.append(Barrier("order mainloop", "named", count, 2 * WARPGROUP_THREADS))
    if pipeline.order_epilogue:
        out.append(Barrier("order epilogue", "named", count, 2 * WARPGROUP_THREADS))
    if split.is_split:
        out.append(Barrier("parts", "named", count, WARPGROUP_THREADS))
    return tuple(out)


class _Builder(Complaints):
    """The parts of a Hopper plan."""

    def __init__(
        self, subject: str, operands: Operands, tile: tuple[int, int, int], cluster: tuple[int, int]
    ) -> None:
        super().__init__()
        self.subject, self.operands, self.tile, self.cluster = subject, operands, tile, cluster

    @property
    def stage_bytes(self) -> int:
        """Bytes of A and B in a stage."""
        bm, bn, bk = self.tile
        return (bm * bk * self.operands.a.dtype.bits + bn * bk * self.operands.b.dtype.bits) // 8

    def stages_that_fit(self, used_bytes: int) -> int:
        """As many stages as shared memory has room for."""
        free = arch_named("sm_90a").smem_per_block_bytes - _SLACK_BYTES - used_bytes
        return min(MAX_STAGES, free // max(1, self.stage_bytes))

    def registers(self, pipeline: Pipeline) -> tuple[int, int] | None:
        """What a producer leaves to the consumers; with one, each thread is launched with all it may have."""
        if pipeline.kind == "single" or pipeline.consumers not in _REGISTERS:
            return None
        sums = product(pipeline.consumer_tile) * self.operands.acc.bits // (32 * WARPGROUP_THREADS)
        few, many = _REGISTERS[pipeline.consumers]
        return few if sums * (1 + pipeline.two_level) <= _MANY_SUMS else many

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

    def operand(
        self, operand: Operand, extent: int, sharers: int, stages: int, l2: str
    ) -> tuple[TmaBox, SharedLayout]:
        """The box that a CTA loads, its share of a tile that `sharers` CTAs have in common; and its place."""
        bk = self.tile[2]
        dtype = operand.dtype
        inner, outer = (bk, extent) if operand.major == "k" else (extent, bk)
        kind = widest_smem_kind(dtype, inner)
        width = KINDS[kind][1] * 8 // dtype.bits
        if outer % (sharers * SMEM_ATOM_ROWS):
            raise PlanError(
                self.subject,
                [
                    f"{outer} rows of a {operand.major}-major tile do not divide into {sharers} shares of "
                    f"{SMEM_ATOM_ROWS}."
                ],
            )
        box = TmaBox("load", dtype, (width, outer // sharers), SWIZZLES[kind], sharers, l2)
        return box, swizzled(dtype, operand.major == "k", (extent, bk), (stages,))

    def direct_store(self) -> CopyAtom:
        """Out of registers: a thread's two neighbours of a row, where they are aligned together."""
        d = self.operands.d
        pair = d.major == "n" and d.align_elems >= 2
        return universal_copy(d.dtype, d.dtype.bits * (2 if pair else 1))
