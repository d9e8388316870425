"""Builder of Hopper plans: TMA fills a ring of stages with k-tiles, wgmma empties it, and D leaves by TMA."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise

from cutegemm.build.building import made
from cutegemm.build.epi_stages import FEWEST_COLUMNS, MOST_PAD_BYTES, SHARED_D, warpgroup_epi_stages
from cutegemm.build.pipeline import NORMAL_L2, PipelineBuilder, registers_of
from cutegemm.dtypes import DType
from cutegemm.errors import PlanError
from cutegemm.layout import Layout
from cutegemm.layout.inttuple import product
from cutegemm.machine.arch import CACHE_LINE_BYTES, MAX_THREADS_PER_BLOCK, WARPGROUP_THREADS
from cutegemm.machine.device import DEFAULT_DEVICE
from cutegemm.plan.arguments import check_arguments
from cutegemm.plan.epilogue import LINEAR, SCALED
from cutegemm.plan.mainloop.base import Mainloop
from cutegemm.plan.mainloop.block_scaled import GRANULARITIES, BlockScaled, column_scales, has_scales, with_scales
from cutegemm.plan.mainloop.promoted import Promoted
from cutegemm.plan.mainloop.register import RegisterShared
from cutegemm.plan.mainloop.shared import SharedShared
from cutegemm.plan.mainloop.single import LoadingAhead
from cutegemm.plan.memory.repack import as_repacked, is_to_read, make_repacks, needs_transpose, repacked_for_wgmma
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Operand, Operands
from cutegemm.plan.rules.warp_roles import MIN_STAGES
from cutegemm.plan.stream import OperandStream
from cutegemm.plan.warp_roles import WARP_ROLES_KINDS, WarpRoles
from cutegemm.plan.work.gpcs import LEAST_ORDERED, PAIR, GpcRaster
from cutegemm.plan.work.split import by_last_cta
from cutegemm.tile.copy_atoms import universal_copy
from cutegemm.tile.mma_atoms import MAX_WGMMA_COLUMNS, ROWS_IN_BANKS, WGMMA_C_TYPES, WGMMA_M, wgmma
from cutegemm.tile.raster import Raster
from cutegemm.tile.tiled_mma import TiledMma
from cutegemm.tile.tma import L2_POLICIES, TMA_INNER_ALIGNED_BYTES, TMA_SMEM_ALIGNED_BYTES, TmaBox

_MANY_ACCUMULATORS = 160  # of a consumer's thread, beside which it needs all registers that it can get
# Of a thread of so many consumers that has two accumulators, which take turns, and a total: with more of them, sums on
# two levels are those of halves of the columns. Eight warps leave a thread 240 registers, twelve 160.
_TWICE_AND_TOTAL = {1: 192, 2: 192, 3: 128}
# Of an epilogue tile of bytes beside many sums, or beside those of other parts of K: with 64 columns or more, kernels
# were seen to spill (DSL 4.8.1, 2026-11-22).
_COLUMNS_OF_BYTES = 32
_LEAST_STAGES = 3  # that long rows of D leave room for
_MOST_CONSUMERS = MAX_THREADS_PER_BLOCK // WARPGROUP_THREADS
_STORES = ("tma", "tma_warp", "direct")
_ACROSS_CTAS, _ACROSS_CLUSTERS = 8, 16  # tiles across a band at most, of CTAs and of clusters by their GPCs
_WARP_ROWS = 16  # of the sums of a wgmma
_BITS_ALONG_N = 16  # of an element, that wgmma reads of rows along N
_MANY_ROWS = 256  # of a tile


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
    epi_tile_n: int | None = None,
    epi_stages: int | None = None,
    raster: str | Raster | None = None,
    l2: tuple[str, str, str] = NORMAL_L2,
    registers: tuple[int, int] | None = None,
    with_c: bool = False,
    ctas: int | None = DEFAULT_DEVICE.sms,
    stagger_cycles: int = 0,
    promoted: bool = False,
    scales: tuple[str, str] | None = None,
    overlapped: bool = False,
    split_k: int = 1,
    stream: int = 0,
    fixup: bool = False,
    cluster_k: int = 1,
    ctas_per_sm: int = 1,
    repack: str = "",
    gpc_raster: bool | None = None,
    tpc_rounds: tuple[int, ...] = DEFAULT_DEVICE.tpc_rounds,
) -> GemmPlan:
    """A plan for wgmma, from what a person would say.

    operands                               f16, bf16, tf32, e4m3, e5m2 or s8; bf16, A k-major and B k-major where left
                                           out
    tile                                   (bM, bN, bK) of a CTA
    schedule                               pingpong, cooperative or single; see `WarpRoles`
    cluster                                CTAs along M, which share the tiles of B, and along N, which share those of A
    consumers                              warpgroups that multiply; 2, or 1 for `single`, where left out
    stages                                 k-tiles in shared memory; as many as there is room for, where left out
    store                                  tma: a consumer stores an epilogue tile. tma_warp: each warp its 16 rows.
                                           direct: out of registers
    shared_d                               how an epilogue tile lies in shared memory: swizzled; plain; or padded, which
                                           no box of TMA is, so that the consumer's threads store it, whatever D is
                                           aligned to
    epi_tile_n                             columns of an epilogue tile; 128 bytes of them where that divides the tile
                                           into enough for the epilogue stages, and 32 columns of a D of bytes whose
                                           consumers have no registers left for more
    epi_stages                             epilogue tiles of a consumer in shared memory
    raster                                 the order of the clusters' tiles of D, or its text; one by which clusters of
                                           a GPC share what they read, where left out
    l2                                     how long the L2 cache is to keep A, B and D
    registers                              of a producer's thread and of a consumer's
    with_c                                 whether C can be read: by TMA where it is of the type, majorness and
                                           alignment of D
    ctas                                   of the persistent grid: as many as there are multiprocessors; None: one for
                                           each tile
    stagger_cycles, promoted, overlapped   see `WarpRoles`
    scales                                 granularity of the scales of A and of B, "1x128" or "128x128", by which the
                                           accumulators of each k-tile of 128 are multiplied when they are promoted.
                                           None: the scales of `operands`, if any
    split_k                                parts that the k-tiles of each tile of D are cut into, a work tile each
    stream                                 waves of the persistent grid whose k-tiles are divided evenly among it; see
                                           `KSplit`
    fixup                                  the CTAs that the tiles leave idle at the end take the last k-tiles of some;
                                           see `KSplit.fixup`
    cluster_k                              CTAs of a cluster that share a tile, each with its part of the k-tiles: each
                                           stores as many of the tile's columns as the others, whose sums come to it
                                           through shared memory
    ctas_per_sm                            that must fit a multiprocessor together
    repack                                 "a", "b" or "ab": operands that are copied first, to k-major ones that TMA
                                           loads; see `plan.repack`
    gpc_raster                             whether clusters take tiles in the order of the GPCs; where left out, if no
                                           raster is given and the tile is large enough: see `is_gpc_aware`
    tpc_rounds                             how the hardware hands out a grid, see `Device`; () where that is not known
    raises                                 PlanError with every rule that is broken

    >>> plan = sm90_plan()
    >>> plan.stages, plan.threads, plan.a.load.name, plan.epi_stages.store.box
    (6, 384, 'tma.load.64x128.bf16.128B', (64, 64))
    """
    ops = Operands.of("bf16", layout="nt") if operands is None else operands
    count = consumers or (1 if schedule == "single" else 2)
    subject, rounds = f"sm90_plan {name!r}", len(tpc_rounds) if isinstance(tpc_rounds, tuple) else 1
    switches = {"with_c": with_c, "promoted": promoted, "overlapped": overlapped, "fixup": fixup}
    check_arguments(
        subject,
        ops,
        {
            "tile": (tile, 3), "cluster": (cluster, 2),
            **({} if registers is None else {"registers": (registers, 2)}),
            **({} if tpc_rounds == () else {"tpc_rounds": (tpc_rounds, rounds)}),
        },
        {"split_k": split_k, "stream": stream, "stagger_cycles": stagger_cycles},
        {"consumers": consumers, "stages": stages, "epi_tile_n": epi_tile_n, "epi_stages": epi_stages, "ctas": ctas},
        {
            "gpc_raster": (gpc_raster, (bool, type(None))),
            **{name: (value, (bool,)) for name, value in switches.items()}},
        positive={"cluster_k": cluster_k, "ctas_per_sm": ctas_per_sm},
    )  # fmt: skip
    if scales is not None:
        ops = _with_scales(subject, ops, scales)
    promoted |= has_scales(ops)
    b = _Builder(subject, ops, tile, ctas_per_sm=ctas_per_sm)
    if count > _MOST_CONSUMERS:
        b.violations.append(f"consumers = {count}; {_MOST_CONSUMERS} at most is expected.")
    b.choices(schedule=(schedule, WARP_ROLES_KINDS), store=(store, _STORES), shared_d=(shared_d, SHARED_D))
    ctas = None if schedule == "single" else ctas
    gpc_aware = _gpc_raster(b, gpc_raster, tpc_rounds, (cluster[0], cluster[1] * cluster_k), ctas)
    if gpc_raster is None and not (raster is None and is_gpc_aware(tile, cluster)):
        gpc_aware = None
    order = b.order(_raster_of(cluster, gpc_aware) if raster is None else raster)
    policies = b.policies(l2)
    repacks = b.attempt(lambda: make_repacks(ops, repack, along_k=True)) or ()
    loaded = as_repacked(ops, repacks)
    a_source = "register" if is_to_read(loaded) else "shared"
    sharing = count if schedule != "pingpong" else 1  # consumers that share a tile
    rows, cluster_k = tile[0] // sharing, b.cluster_k(cluster_k, cluster)
    consumer_tile = (rows, tile[1] // cluster_k)
    b.keep_room(consumer_tile, count, cluster_k)
    accumulators = _Accumulators((rows, tile[1]), ops.acc.bits, count, promoted, column_scales(ops, tile[1]))
    mma = b.attempt(lambda: b.tiled_mma(loaded, a_source, rows, accumulators.wgmma_columns, sharing))
    if accumulators.wgmma_columns == tile[1]:
        b.b_columns = columns_loaded(loaded.b, tile)
    is_split = split_k > 1 or stream > 0 or fixup
    most = b.most_columns(count, stages, accumulators.of_thread * (1 + promoted) > _MANY_ACCUMULATORS or is_split)
    box = (_WARP_ROWS if store == "tma_warp" else WGMMA_M, policies[2])
    storing = None if store == "direct" else b.attempt(
        lambda: warpgroup_epi_stages(
            subject, ops, consumer_tile[1], a_source, most, None if overlapped else b.stages_that_fit
        ).epi_stages(consumer_tile, count, box, shared_d, epi_tile_n, epi_stages, with_c)
    )  # fmt: skip
    if storing is None and store != "direct" and cluster_k > 1:
        b.violations.append(
            f"cluster_k = {cluster_k}: each CTA stores {consumer_tile[1]} of the tile's {tile[1]} columns."
        )
    buffers = b.buffers(loaded, storing, stages, cluster if cluster_k == 1 else (cluster[0], 1), policies)
    split = b.attempt(lambda: by_last_cta(split_k, stream, fixup))
    b.check()
    mainloop: Mainloop = LoadingAhead() if schedule == "single" else SharedShared()
    if promoted:
        mainloop = BlockScaled() if has_scales(ops) else Promoted()
    elif a_source == "register":
        mainloop = RegisterShared()
    pipeline = WarpRoles(
        schedule, made(buffers).stages, count, consumer_tile, mainloop, stagger_cycles, overlapped,
        gpc_raster=gpc_aware, cluster_k=cluster_k,
    )  # fmt: skip
    return b.plan(
        made(mma),
        made(buffers),
        pipeline,
        registers or registers_of(pipeline, accumulators.in_all > _MANY_ACCUMULATORS),
        {} if a_source == "shared" else {"a": universal_copy(loaded.a.dtype, loaded.a.dtype.bits)},
        name=name,
        summary=summary,
        family="sm90",
        raster=made(order),
        cluster_mn=(cluster[0], cluster[1] * cluster_k),
        persistent=ctas,
        split=made(split),
        repacks=repacks,
        epilogue=LINEAR if with_c else SCALED,
        further=b.scale_streams(made(buffers).stages),
    )


def _with_scales(subject: str, operands: Operands, scales: tuple[str, str]) -> Operands:
    """Return the operands with scales of A and B; raises PlanError for an unknown granularity."""
    known = " or ".join(map(repr, GRANULARITIES))
    if not isinstance(scales, tuple) or len(scales) != 2 or any(each not in GRANULARITIES for each in scales):
        raise PlanError(subject, [f"scales = {scales!r}; two of {known} are needed, for A and for B."])
    return with_scales(operands, scales)


@dataclass(frozen=True)
class _Accumulators:
    """The sums of a consumer's thread.

    tile        of a consumer, with all columns that it multiplies
    bits        of each
    consumers   of a CTA
    promoted    whether those of each k-tile are added to a total
    scales      registers of the scales that columns have
    """

    tile: tuple[int, int]
    bits: int
    consumers: int
    promoted: bool
    scales: int = 0

    @property
    def of_thread(self) -> int:
        """Registers of the sums of the whole tile."""
        return product(self.tile) * self.bits // (32 * WARPGROUP_THREADS)

    @property
    def _are_halves(self) -> bool:
        """Whether sums of k-tiles are those of halves of the columns."""
        is_much = 3 * self.of_thread + self.scales > _TWICE_AND_TOTAL.get(self.consumers, 0)
        return self.promoted and is_much and self.tile[0] == WGMMA_M

    @property
    def wgmma_columns(self) -> int:
        """Columns of a wgmma: of the tile, or of a half of it."""
        return self.tile[1] // (1 + (self._are_halves or self.tile[1] > MAX_WGMMA_COLUMNS))

    @property
    def in_all(self) -> int:
        """Registers of the total and of the sums of k-tiles: as many again, or twice as many."""
        return self.of_thread * (1 + self.promoted * (1 if self._are_halves else 2))


def _gpc_raster(
    b: PipelineBuilder,
    asked: bool | None,
    tpc_rounds: tuple[int, ...],
    cluster: tuple[int, int],
    ctas: int | None,
) -> GpcRaster | None:
    """The order of the GPCs, where it is known and not refused; what is wrong is told to the builder."""
    if any(after > before for before, after in pairwise(tpc_rounds)):
        b.violations.append(
            f"tpc_rounds = {tpc_rounds}; rounds are expected of which none is larger than the one before."
        )
    order = GpcRaster.of(tpc_rounds, product(cluster), ctas)
    if asked and order is None:
        b.violations.append(
            f"gpc_raster = True: the GPCs of {ctas or 'all'} CTAs in clusters of {product(cluster)} are not known from "
            f"tpc_rounds = {tpc_rounds}; a persistent grid of no more CTAs than multiprocessors, in clusters of one "
            "or two, is expected."
        )
    return None if asked is False else order


def is_gpc_aware(tile: tuple[int, ...], cluster: tuple[int, int]) -> bool:
    """Whether clusters take tiles in the order of the GPCs, where that is known: of smaller tiles, and of larger
    clusters, whose reads are multicasts, plans were not faster so.

    >>> is_gpc_aware((128, 128), (2, 1)), is_gpc_aware((64, 64), (1, 1)), is_gpc_aware((128, 128), (2, 2))
    (True, False, False)
    """
    return product(tile[:2]) >= LEAST_ORDERED and product(cluster) <= PAIR


def _raster_of(cluster: tuple[int, int], gpc_raster: GpcRaster | None) -> str:
    """So that clusters of a GPC have equal tiles of the operand that a cluster does not share: their reads are joined
    on the way to L2 where they meet; those of a multicast are not. Where clusters are numbered GPC by GPC, neighbours
    have them, and CTAs without a cluster have a block of tiles; else every eighth."""
    is_wide = cluster[1] > cluster[0]
    if gpc_raster is None:
        return "fitted_n" if is_wide else "fitted_m"
    if cluster == (1, 1):
        return f"even:{_ACROSS_CTAS}"
    return f"even_{'m' if is_wide else 'n'}:{_ACROSS_CLUSTERS}"


def columns_loaded(b: Operand, tile: tuple[int, ...]) -> int:
    """Columns of a B along N that come for a k-tile: the tile's, or those of whole lines, where boxes of part of a line
    cost more than the columns beside the tile do.

    wgmma reads rows of 32 bytes at half its rate. Rows of 64 bytes it reads nearly as fast as lines, but L2 looks up
    more lines for them. There whole lines come where at most an eighth of the columns are beside the tile, and to tiles
    of 256 rows and more than 128 columns, whose products take longer than their loads.

    tile   (bM, bN), or more

    >>> from cutegemm.plan import Operands
    >>> b = Operands.of("bf16", layout="nn").b
    >>> [columns_loaded(b, (128, columns)) for columns in (96, 112, 160, 224)], columns_loaded(b, (256, 160))
    ([96, 128, 160, 256], 192)
    """
    columns, line = tile[1], CACHE_LINE_BYTES * 8 // b.dtype.bits
    if b.major == "k" or b.gated or columns < line or b.dtype.bits != _BITS_ALONG_N:
        return columns
    by_lines = -(-columns // line) * line
    is_narrow, is_cheap = columns % (line // 2) > 0, tile[0] >= _MANY_ROWS and columns > line * 2
    return by_lines if is_narrow or is_cheap or 8 * columns >= 7 * by_lines else columns


def pipeline_of(
    operands: Operands,
    tile: tuple[int, int, int],
    consumer_tile: tuple[int, int],
    consumers: int,
    epi_tile_n: int | None = None,
    epi_stages: int | None = None,
    is_direct: bool = False,
    cluster_k: int = 1,
    ctas_per_sm: int = 1,
) -> tuple[int, int]:
    """Stages that a tile leaves room for, and epilogue tiles of a consumer, without a plan being built.

    consumer_tile   of D
    is_direct       whether D leaves straight out of registers, as one does that no epilogue tiles fill
    cluster_k       that share K, whose sums of a tile have room beside it
    ctas_per_sm     that share the room
    """
    builder = _Builder("pipeline_of", operands, tile, ctas_per_sm=ctas_per_sm)
    builder.b_columns = columns_loaded(operands.b, tile)
    by_lines = operands.d.align_bytes < TMA_INNER_ALIGNED_BYTES
    builder.keep_room(consumer_tile, consumers, cluster_k)
    most = builder.line_columns(consumers, None) if by_lines else None
    slot_builder = warpgroup_epi_stages(
        "pipeline_of", operands, consumer_tile[1], most=most, stages=builder.stages_that_fit
    )
    if by_lines:  # they are those of a box; lines are as long as they can be
        epi_tile_n = None
    if not is_direct:
        with suppress(PlanError):
            columns, epi_tiles, count = slot_builder.division(
                consumer_tile,
                consumers,
                epi_tile_n,
                None if by_lines else epi_stages,
                "padded" if by_lines else "swizzled",
            )
            shape, copies = (WGMMA_M, columns), (count, consumers)
            held = slot_builder.padded_rows(shape, copies) if by_lines else Layout((*shape, *copies))
            stages = builder.stages_that_fit(held)
            if stages >= MIN_STAGES:
                return stages, epi_tiles
    return builder.stages_that_fit(None), 0


class _Builder(PipelineBuilder):
    """The parts of a Hopper plan."""

    @property
    def stage_bytes(self) -> int:
        """Bytes of A, B and scales of their rows and columns in a stage."""
        return super().stage_bytes + sum(4 * each.smem.cosize() for each in self.scale_streams(1))

    def scale_streams(self, stages: int) -> tuple[OperandStream, ...]:
        """Return the streams of the scales that rows and columns have: one box of a k-tile's scales in each stage."""
        found = []
        for name in self.operands.of_mainloop:
            operand = self.operands.matrix(name)
            mode = operand.modes[0]
            if mode in ("m", "n"):
                rows = self.tile["mn".index(mode)]
                pitch = -(-rows * 4 // TMA_SMEM_ALIGNED_BYTES) * TMA_SMEM_ALIGNED_BYTES // 4
                smem = Layout((rows, 1, stages), (1, pitch, pitch))
                found.append(OperandStream(name, mode, TmaBox("load", operand.dtype, (rows, 1), "none"), smem))
        return tuple(found)

    def most_columns(self, consumers: int, stages: int | None, has_few_registers: bool) -> int | None:
        """The most columns of an epilogue tile, where they are limited.

        has_few_registers   whether threads have few left beside their sums
        """
        d = self.operands.d
        if d.dtype.bits == 8 and has_few_registers:
            return _COLUMNS_OF_BYTES
        return self.line_columns(consumers, stages) if d.align_bytes < TMA_INNER_ALIGNED_BYTES else None

    def line_columns(self, consumers: int, stages: int | None) -> int:
        """The most columns of an epilogue tile of so many consumers, beside whose epilogue stages there is room for the
        stages that are asked for, or for `_LEAST_STAGES`: see `EpiStageBuilder.line_columns`."""
        used = self.stage_bytes * max(_LEAST_STAGES, stages or 0)
        row_bytes = (self.free_bytes - used) // (consumers * WGMMA_M) - MOST_PAD_BYTES
        return max(0, row_bytes) * 8 // self.operands.d.dtype.bits

    def cluster_k(self, asked: int, cluster: tuple[int, int]) -> int:
        """The CTAs that share K; 1, with a complaint noted, where the tile's columns are not divided among so many.
        Another is noted of a cluster with tiles along N, where these CTAs lie."""
        columns = self.tile[1]
        if asked > 1 and cluster[1] > 1:
            self.violations.append(
                f"cluster = {cluster}: beside cluster_k = {asked} its tiles lie along M. Take {(cluster[0], 1)}."
            )
        if asked == 1 or columns % (asked * FEWEST_COLUMNS) == 0:
            return asked
        self.violations.append(
            f"cluster_k = {asked}: each of them stores as many of the {columns} columns as the others, a multiple of "
            f"{FEWEST_COLUMNS}."
        )
        return 1

    def policies(self, l2: tuple[str, str, str]) -> tuple[str, str, str]:
        """The L2 policies of A, B and D; the usual ones, with a complaint noted, where they are none."""
        if isinstance(l2, tuple) and len(l2) == 3 and all(policy in L2_POLICIES for policy in l2):
            return l2
        self.violations.append(f"l2 = {l2!r}; three of {', '.join(L2_POLICIES)}, for A, B and D, are expected.")
        return NORMAL_L2

    def tiled_mma(self, loaded: Operands, a_source: str, rows: int, columns: int, readers: int) -> TiledMma:
        """One wgmma as wide as the tile, or half of it; consumers that share a tile take its rows in halves.

        loaded    the operands as they are loaded
        a_source  where wgmma reads A from: shared memory, or registers
        rows      of a consumer
        columns   of a wgmma
        readers   consumers that share a tile
        """
        a, b, reads = loaded.a, loaded.b, a_source == "register"
        transposed_operands = [
            name
            for name, is_turned in (("a", needs_transpose(a) and not reads), ("b", needs_transpose(b)))
            if is_turned
        ]
        if transposed_operands and a.dtype in WGMMA_C_TYPES:
            self.violations.append(self._how_to_turn(transposed_operands, a.dtype))
        majors = ["k" if operand.major == "k" or needs_transpose(operand) else "mn" for operand in (a, b)]
        atom = wgmma(a.dtype, columns, majors[0], majors[1], a_source, loaded.acc, b.dtype)
        if readers == 1 and not reads:
            return TiledMma(atom)
        if rows % WGMMA_M or rows == 0:
            raise PlanError(self.subject, [f"{readers} consumers take {rows} rows each, no multiple of {WGMMA_M}."])
        own = ROWS_IN_BANKS if reads else Layout(WGMMA_M)
        of_m = Layout((own.shape, readers, rows // WGMMA_M), (own.stride, rows, WGMMA_M))
        return TiledMma(atom, Layout((readers, 1, 1)), (of_m, None, None))

    def _how_to_turn(self, names: list[str], dtype: DType) -> str:
        of_each = " and ".join(f"{name.upper()} is {getattr(self.operands, name).major}-major" for name in names)
        repack = repacked_for_wgmma(self.operands)
        return (
            f"{of_each}, but wgmma takes {dtype} operands k-major alone, as layout 'nt' has them. +repack behind the "
            f"plan's name, or repack={repack!r} for the builder, copies them to such ones first."
        )
