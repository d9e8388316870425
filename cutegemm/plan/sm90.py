"""Builder of Hopper plans: TMA fills a queue of k-tiles, wgmma empties it, and D leaves by TMA."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from cutegemm.arch import WARP_THREADS, WARPGROUP_THREADS, arch_named
from cutegemm.dtypes import DType
from cutegemm.errors import CutegemmError, PlanError
from cutegemm.layout import ComposedLayout, Layout, Swizzle, coalesce, tile_to_shape
from cutegemm.layout.inttuple import product
from cutegemm.plan.pipeline import Epilogue, Pipeline
from cutegemm.plan.plan import Barrier, GemmPlan, Role, SharedLayout
from cutegemm.plan.problem import Operand, Operands
from cutegemm.tile.atoms import CopyAtom
from cutegemm.tile.copy_atoms import ldmatrix, stmatrix, universal_copy
from cutegemm.tile.mma_atoms import WGMMA_M, wgmma
from cutegemm.tile.raster import Raster
from cutegemm.tile.smem_atoms import KINDS, SMEM_ATOM_ROWS, smem_atom, widest_smem_kind
from cutegemm.tile.tiled_copy import TiledCopy
from cutegemm.tile.tiled_mma import TiledMma
from cutegemm.tile.tma import TmaBox

H200_MULTIPROCESSORS = 132
MAX_STAGES = 12  # more were not seen to help
_SLACK_BYTES = 1024  # of shared memory, left for the barriers when stages are chosen
_PAD_BYTES = 16  # after each row of a padded slot: the next row begins 4 banks further
_WARPS = WARPGROUP_THREADS // WARP_THREADS
_SUBTILE_COLUMNS = 16  # that one stmatrix.x4 of each warp of a consumer covers

# What a consumer holds of (64, 16) of its sums: lanes 4 along N, in pairs, and 8 along M; warps 16 rows
# apart; values 2 along N, then 8 rows apart, then 8 columns (the layout of D of wgmma, 16 columns of it).
_FRAGMENT = Layout(((4, 8, 4), (2, 2, 2)), ((2 * WGMMA_M, 1, 16), (WGMMA_M, 8, 8 * WGMMA_M)))

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
    shared_d          swizzled, or plain: how a subtile lies in shared memory
    subtile_n         columns of a subtile; 128 bytes of them where that divides the tile
    slots             subtiles of a consumer in shared memory
    raster            the order of the clusters' tiles of D, or its text
    l2                how long the L2 cache is to keep A, B and D
    registers         of a producer's thread and of a consumer's
    with_c            whether C can be read
    ctas              of the persistent grid: as many as there are multiprocessors; None: one for each tile
    order_epilogue, stagger_cycles, two_level   see `Pipeline`
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
        lambda: b.epilogue(consumer_tile, count, rows, shared_d, subtile_n, slots, l2[2], with_c)
    )  # fmt: skip
    epilogue, smem_d = leaving if leaving else (None, None)
    depth = stages
    if depth is None:
        used = 0 if smem_d is None else smem_d.cosize() * ops.d.dtype.bits // 8
        depth = b.stages_that_fit(used)
    a_parts = b.attempt(lambda: b.operand(ops.a, bm, cluster[1], max(1, depth), l2[0]))
    b_parts = b.attempt(lambda: b.operand(ops.b, bn, cluster[0], max(1, depth), l2[1]))
    order = b.attempt(lambda: Raster.parse(raster) if isinstance(raster, str) else raster)
    stored = epilogue.to_shared.atom if epilogue else b.attempt(b.direct_store)
    if b.broken or mma is None or a_parts is None or b_parts is None or order is None or stored is None:
        raise PlanError(b.subject, b.broken)
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
        barriers=_barriers(pipeline, epilogue, b.stage_bytes, cluster),
        smem_d=smem_d,
        cluster_mn=cluster,
        pipeline=pipeline,
        epilogue=epilogue,
        has_c=with_c,
    )


def _roles(pipeline: Pipeline, registers: tuple[int, int] | None) -> tuple[Role, ...]:
    produce, consume = registers or (None, None)
    working = tuple([Role(f"consumer {i}", _WARPS, consume) for i in range(pipeline.consumers)])
    return working if pipeline.kind == "single" else (Role("producer", _WARPS, produce), *working)


def _barriers(
    pipeline: Pipeline, epilogue: Epilogue | None, stage_bytes: int, cluster: tuple[int, int]
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
    return tuple(out)


class _Builder:
    """Collects what is wrong with the parts of a plan, so that all of it can be said at once."""

    def __init__(
        self, subject: str, operands: Operands, tile: tuple[int, int, int], cluster: tuple[int, int]
    ) -> None:
        self.subject, self.operands, self.tile, self.cluster = subject, operands, tile, cluster
        self.broken: list[str] = []

    def attempt(self, make: Callable[[], _T]) -> _T | None:
        """What `make` returns, or None with its complaint noted."""
        try:
            return make()
        except PlanError as error:
            self.broken += error.violations
        except CutegemmError as error:
            self.broken.append(str(error))
        return None

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
        box = TmaBox("load", dtype, (width, outer // sharers), _SWIZZLE[kind], sharers, l2)
        return box, swizzled(dtype, operand.major == "k", (extent, bk), (stages,))

    def epilogue(
        self,
        consumer_tile: tuple[int, int],
        consumers: int,
        store_rows: int,
        shared_d: str,
        subtile_n: int | None,
        slots: int | None,
        l2: str,
        with_c: bool,
    ) -> tuple[Epilogue, SharedLayout]:
        """How D leaves, and the slots that it passes through: (64, n, slots, consumers)."""
        d = self.operands.d
        bits, n_major = d.dtype.bits, d.major == "n"
        columns = subtile_n or next(
            (n for n in (128 * 8 // bits, 64 * 8 // bits, 32 * 8 // bits) if consumer_tile[1] % n == 0), 0
        )
        if not columns or consumer_tile[1] % columns or columns % _SUBTILE_COLUMNS:
            raise PlanError(
                self.subject,
                [
                    f"subtiles of {columns} columns, in steps of {_SUBTILE_COLUMNS}, do not fill the "
                    f"{consumer_tile[1]} of a tile."
                ],
            )
        subtiles = consumer_tile[0] // WGMMA_M * (consumer_tile[1] // columns)
        ring = slots or next((s for s in (2, 3, 5) if subtiles % s == 0), max(2, subtiles))
        shape, copies = (WGMMA_M, columns), (ring, consumers)
        inner = columns if n_major else WGMMA_M
        if shared_d == "swizzled":
            layout: SharedLayout = swizzled(d.dtype, n_major, shape, copies)
            kind = widest_smem_kind(d.dtype, inner)
            width = KINDS[kind][1] * 8 // bits
            swizzle = _SWIZZLE[kind]
        elif shared_d == "plain":
            along = (columns, 1) if n_major else (1, WGMMA_M)
            size = WGMMA_M * columns
            layout = Layout((*shape, *copies), (*along, size, size * ring))
            width, swizzle = inner, "none"
        else:
            raise PlanError(self.subject, [f"shared_d = {shared_d!r}; swizzled or plain is expected."])
        across = store_rows if n_major else columns
        store = TmaBox("store", d.dtype, (width, across), swizzle, l2_policy=l2)
        c = self.operands.c
        if with_c and (c.dtype, c.major) != (d.dtype, d.major):
            raise PlanError(
                self.subject,
                [f"C is {c.dtype} {c.major}-major; like D, {d.dtype} {d.major}-major, is expected."],
            )
        to_shared = TiledCopy(self._matrices(stmatrix), _FRAGMENT, (WGMMA_M, _SUBTILE_COLUMNS))
        from_shared = TiledCopy(self._matrices(ldmatrix), _FRAGMENT, (WGMMA_M, _SUBTILE_COLUMNS))
        load_c = TmaBox("load", c.dtype, (width, across), swizzle)
        epilogue = Epilogue(
            shape, ring, to_shared, store, from_shared if with_c else None, load_c if with_c else None
        )
        return epilogue, layout

    def _matrices(self, move: Callable[..., CopyAtom]) -> CopyAtom:
        """Between fragments and a slot: matrices of 16-bit elements, or a thread's neighbours."""
        d = self.operands.d
        if d.dtype.bits == 16:
            return move(d.dtype, 4, d.major == "m")
        return universal_copy(d.dtype, d.dtype.bits * (2 if d.major == "n" else 1))

    def direct_store(self) -> CopyAtom:
        """Out of registers: a thread's two neighbours of a row, where they are aligned together."""
        d = self.operands.d
        pair = d.major == "n" and d.align_elems >= 2
        return universal_copy(d.dtype, d.dtype.bits * (2 if pair else 1))


_SWIZZLE = {"interleave": "none", "32B": "32B", "64B": "64B", "128B": "128B"}


def swizzled(
    dtype: DType, second_major: bool, shape: tuple[int, int], copies: tuple[int, ...]
) -> ComposedLayout:
    """Tiles in the widest canonical layout that fits, one after the other.

    second_major   whether neighbours lie along the second mode: a k-major (M, K), an n-major (M, N)
    copies         stages, or slots and consumers: modes behind the tile's

    >>> from cutegemm.dtypes import bf16
    >>> str(swizzled(bf16, False, (128, 64), (4,)))
    'S<3,3,3> o 0 o ((64,2),64,4):((1,4096),64,8192)'
    """
    inner = shape[1] if second_major else shape[0]
    atom = smem_atom(dtype, "k" if second_major else "mn", widest_smem_kind(dtype, inner))
    order = (0, 1) if second_major else (1, 0)
    tiled = tile_to_shape(atom, (*shape, *copies), (*order, *range(2, 2 + len(copies))))
    outer: Any = coalesce(tiled.outer, (1,) * (2 + len(copies)))
    inner_swizzle = tiled.inner
    assert isinstance(inner_swizzle, Swizzle)
    return ComposedLayout(inner_swizzle, 0, outer)
