"""Builder of Hopper plans: TMA fills a mainloop pipeline, wgmma multiplies from it, and TMA stores D."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from cutegemm.build.building import made, takes_epilogue
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
from cutegemm.plan.mainloop.block_scaled import (
    GRANULARITIES,
    BlockScaled,
    column_scales,
    has_scales,
    scale_names,
    with_scales,
)
from cutegemm.plan.mainloop.promoted import Promoted
from cutegemm.plan.mainloop.register import RegisterShared
from cutegemm.plan.mainloop.shared import SharedShared
from cutegemm.plan.mainloop.single import LoadingAhead
from cutegemm.plan.memory.groups import elements_of_stage, operand_of_sizes, with_group_ends
from cutegemm.plan.memory.repack import as_repacked, is_to_read, make_repacks, needs_transpose, repacked_for_wgmma
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Operand, Operands
from cutegemm.plan.rules.warp_roles import MIN_STAGES
from cutegemm.plan.stream import OperandStream
from cutegemm.plan.warp_roles import WARP_ROLES_KINDS, WarpRoles
from cutegemm.plan.work.gpcs import LEAST_ORDERED, PAIR, GpcRaster, LaunchOrder
from cutegemm.plan.work.grid import grid_of
from cutegemm.plan.work.grouped import scheduler_of_groups
from cutegemm.plan.work.scheduler import TileScheduler
from cutegemm.plan.work.split import by_last_cta
from cutegemm.tile.copy_atoms import universal_copy
from cutegemm.tile.mma_atoms import MAX_WGMMA_COLUMNS, ROWS_IN_BANKS, WGMMA_C_TYPES, WGMMA_M, wgmma
from cutegemm.tile.raster import Raster
from cutegemm.tile.tiled_mma import TiledMma
from cutegemm.tile.tma import L2_POLICIES, TMA_INNER_ALIGNED_BYTES, TMA_SMEM_ALIGNED_BYTES, TmaBox

_MANY_ACCUMULATORS = 160  # registers of a thread's accumulators; with more, a consumer needs all registers it can get
# Registers of a thread for two alternating accumulators and a total, by consumers. With more, a wgmma computes half of
# the columns if accumulators are promoted. Two consumers leave a thread 240 registers, three leave 160.
_TWICE_AND_TOTAL = {1: 192, 2: 192, 3: 128}
# Columns of an epilogue tile of an 8-bit D if threads have many accumulators, or if K is split. With 64 columns or
# more, kernels spilled registers (DSL 4.8.1, 2026-11-22).
_COLUMNS_OF_BYTES = 32
_LEAST_STAGES = 3  # mainloop stages that long rows of D leave room for
_MOST_CONSUMERS = MAX_THREADS_PER_BLOCK // WARPGROUP_THREADS
_STORES = ("tma", "tma_warp", "direct")
_ACROSS_CTAS, ACROSS_CLUSTERS = 8, 16  # most tiles across a band in GPC-aware order, of CTAs and of clusters
_WARP_ROWS = 16  # rows of a wgmma whose accumulators one warp has
_BITS_ALONG_N = 16  # bits of an element that wgmma can read along N
_MANY_ROWS = 256  # rows of a tile


@takes_epilogue
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
    l2: tuple[str, str, str] | None = None,
    registers: tuple[int, int] | None = None,
    with_c: bool = False,
    ctas: int | None = DEFAULT_DEVICE.sms,
    stagger_cycles: int = 0,
    promoted: bool = False,
    at_once: bool = False,
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
    """Return a Hopper kernel plan (TMA, wgmma, warp roles) from tile sizes and a few options.

    operands                               types, majorness and alignment of A to D: f16, bf16, tf32, e4m3, e5m2 or s8;
                                           None: bf16, with K-major A and B
    name, summary                          name of the plan, and what is special about it
    tile                                   (bM, bN, bK) of a CTA
    schedule                               "pingpong": consumers alternate in taking tiles of D; "cooperative": they
                                           share each tile; "single": no producer warp
    cluster                                CTAs of a cluster along M, which share the tiles of B, and along N, which
                                           share the tiles of A
    consumers                              warpgroups that multiply and store; None: 2, or 1 for "single"
    stages                                 mainloop stages, i.e. k-tiles in shared memory; None: as many as fit
    store                                  "tma": a consumer stores an epilogue tile by TMA; "tma_warp": each warp
                                           stores its 16 rows by TMA; "direct": threads store from registers
    shared_d                               layout of an epilogue tile in shared memory: "swizzled" or "plain", which TMA
                                           stores, or "padded", which threads store
    epi_tile_n                             columns of D in an epilogue stage; None: 128 bytes if that leaves enough
                                           epilogue tiles, and 32 columns for an 8-bit D if registers are short
    epi_stages                             epilogue stages (shared-memory buffers for D) per consumer; None: chosen
    raster                                 order of the tiles of D, a `Raster` or its text such as "grouped_m:8"; None:
                                           clusters of a GPC share what they load, and the tiles of a group that share
                                           weights follow one another
    l2                                     L2 policies of A, B and D; None: see `default_l2`
    registers                              registers per thread of the producer and of a consumer; None: chosen
    with_c                                 True if the epilogue reads C: by TMA if C has the type and majorness of D and
                                           is aligned to 16 bytes
    ctas                                   CTAs of the persistent grid, one per multiprocessor; None: one CTA for each
                                           tile
    stagger_cycles, promoted, overlapped   see `WarpRoles`
    at_once                                whether promoted accumulators are added to the total as soon as the MMAs of
                                           their k-tile have ended: see `Promoted`
    scales                                 granularity of the scales of A and of B, "1x128" or "128x128". They multiply
                                           the accumulators of each k-tile of 128 when it is promoted. None: the scales
                                           of `operands`, if any
    split_k                                K splits of each tile of D
    stream                                 stream-K: waves whose k-tiles are divided evenly among the grid; 0: none. See
                                           `KSplit.waves`
    fixup                                  stream-K fixup: CTAs that the last wave leaves idle take the last k-tiles of
                                           its tiles. See `KSplit.fixup`
    cluster_k                              CTAs of a cluster that split K. Each stores an equal number of the tile's
                                           columns, whose accumulators the others send it through distributed shared
                                           memory
    ctas_per_sm                            CTAs that an SM must hold; it limits registers and shared memory
    repack                                 "a", "b" or "ab": operands that another kernel copies first, K-major and
                                           aligned for TMA; "": none
    gpc_raster                             whether clusters take tiles in GPC-aware order; None: if `raster` is None and
                                           the tile is large enough, see `is_gpc_aware`
    tpc_rounds                             TPCs that the hardware fills in each round, see `Device`; (): unknown
    raises                                 PlanError with every rule that is broken

    >>> plan = sm90_plan()
    >>> plan.stages, plan.threads, plan.a.load.name, plan.store.box.box
    (6, 384, 'tma.load.64x128.bf16.128B', (64, 64))
    """
    ops = Operands.of("bf16", layout="nt") if operands is None else operands
    count = consumers or (1 if schedule == "single" else 2)
    subject, rounds = f"sm90_plan {name!r}", len(tpc_rounds) if isinstance(tpc_rounds, tuple) else 1
    switches = {
        "with_c": with_c, "promoted": promoted, "at_once": at_once, "overlapped": overlapped, "fixup": fixup,
    }  # fmt: skip
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
    ops = with_group_ends(ops)
    promoted |= has_scales(ops)
    b = _Builder(subject, ops, tile, ctas_per_sm=ctas_per_sm)
    if at_once and not promoted:
        b.violations.append("at_once says when promoted accumulators are added. Pass promoted=True or scales too.")
    if count > _MOST_CONSUMERS:
        b.violations.append(f"consumers = {count}; at most {_MOST_CONSUMERS} are possible.")
    b.choices(schedule=(schedule, WARP_ROLES_KINDS), store=(store, _STORES), shared_d=(shared_d, SHARED_D))
    ctas = None if schedule == "single" else ctas
    gpc_aware = _gpc_raster(b, gpc_raster, tpc_rounds, (cluster[0], cluster[1] * cluster_k), ctas)
    if gpc_raster is None and not (raster is None and is_gpc_aware(tile, cluster)):
        gpc_aware = LaunchOrder()
    order = b.order(_raster_of(ops.groups, cluster, gpc_aware) if raster is None else raster)
    policies = b.policies(l2)
    repacks = b.attempt(lambda: make_repacks(ops, repack, along_k=True)) or ()
    loaded = as_repacked(ops, repacks)
    a_source = "register" if is_to_read(loaded) else "shared"
    sharing = count if schedule != "pingpong" else 1  # consumers that share a tile
    rows, cluster_k = tile[0] // sharing, b.cluster_k(cluster_k, cluster)
    consumer_tile = (rows, tile[1] // cluster_k)
    b.keep_room(consumer_tile, count, cluster_k)
    accumulators = _Accumulators((rows, tile[1]), ops.acc.bits, count, promoted, at_once, column_scales(ops, tile[1]))
    mma = b.attempt(lambda: b.tiled_mma(loaded, a_source, rows, accumulators.wgmma_columns, sharing))
    if accumulators.wgmma_columns == tile[1]:
        b.b_columns = columns_loaded(loaded.b, tile)
    is_split = split_k > 1 or stream > 0 or fixup
    most = b.most_columns(count, stages, accumulators.per_thread * (1 + promoted) > _MANY_ACCUMULATORS or is_split)
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
        mainloop = BlockScaled(at_once) if has_scales(ops) else Promoted(at_once)
    elif a_source == "register":
        mainloop = RegisterShared()
    pipeline = WarpRoles(
        schedule, made(buffers).stages, count, consumer_tile, mainloop, stagger_cycles, overlapped,
        cluster_k=cluster_k,
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
        scheduler=scheduler_of_groups(
            ops.groups, operand_of_sizes(ops), TileScheduler(made(order), made(split), grid_of(ctas), gpc_aware)
        ),
        cluster_mn=(cluster[0], cluster[1] * cluster_k),
        repacks=repacks,
        epilogue=LINEAR if with_c else SCALED,
        further=b.scale_streams(made(buffers).stages),
    )


def _with_scales(subject: str, operands: Operands, scales: tuple[str, str]) -> Operands:
    """Return the operands with block scales for A and B (block-scaled fp8).

    subject   what an error is about
    scales    granularity of the scales of A and of B: "1x128" (one per row and 128 of K) or "128x128"
    raises    PlanError for an unknown granularity
    """
    known = " or ".join(map(repr, GRANULARITIES))
    if not isinstance(scales, tuple) or len(scales) != 2 or any(each not in GRANULARITIES for each in scales):
        raise PlanError(subject, [f"scales = {scales!r}; two of {known} are needed, for A and for B."])
    return with_scales(operands, scales)


@dataclass(frozen=True)
class _Accumulators:
    """Counts the registers that each thread of a consumer (a warpgroup that multiplies) needs for accumulators.

    tile        (M, N) of D that a consumer multiplies; with a gated B, all gate and up columns count
    bits        bits of one accumulator element
    consumers   number of consumers of a CTA
    promoted    True if the accumulators of each k-tile are added to a total in f32 (accumulator promotion)
    at_once     with `promoted`: True if they are added before the next k-tile is multiplied
    scales      registers for the block scales of columns
    """

    tile: tuple[int, int]
    bits: int
    consumers: int
    promoted: bool
    at_once: bool
    scales: int = 0

    @property
    def per_thread(self) -> int:
        """Registers per thread that hold one accumulator for each element of the consumer's tile."""
        return product(self.tile) * self.bits // (32 * WARPGROUP_THREADS)

    @property
    def _are_halves(self) -> bool:
        """True if a wgmma computes half of the columns of the consumer's tile.

        This is done with accumulator promotion, if whole tiles would need too many registers.
        """
        is_much = 3 * self.per_thread + self.scales > _TWICE_AND_TOTAL.get(self.consumers, 0)
        return self.promoted and not self.at_once and is_much and self.tile[0] == WGMMA_M

    @property
    def wgmma_columns(self) -> int:
        """Number of columns (N) of a wgmma instruction: those of the consumer's tile, or half of them."""
        return self.tile[1] // (1 + (self._are_halves or self.tile[1] > MAX_WGMMA_COLUMNS))

    @property
    def in_all(self) -> int:
        """Registers per thread for all accumulators of a consumer: one, two or three times those of its tile.

        Without promotion there is one set of accumulators. With promotion, there are also the totals that they are
        added to, and a second set if the MMAs of the next k-tile run meanwhile.
        """
        return self.per_thread * (1 + self.promoted * (1 if self._are_halves or self.at_once else 2))


def _gpc_raster(
    b: PipelineBuilder,
    requested: bool | None,
    tpc_rounds: tuple[int, ...],
    cluster: tuple[int, int],
    ctas: int | None,
) -> LaunchOrder | GpcRaster:
    """Return how clusters take tiles: GPC by GPC if that is possible and wanted, else in launch order.

    A GPC is a group of SMs whose reads from L2 can be joined.

    b            builder of the plan, which remembers a broken rule if GPC-aware order is requested but cannot be used
    requested    True or False if the user asked for GPC-aware order or forbade it; None: the builder decides
    tpc_rounds   how the hardware assigns CTAs to TPCs (pairs of SMs): number of TPCs of each round; () if it is not
                 known
    cluster      CTAs of a cluster along M and N
    ctas         CTAs of the persistent grid; None: one CTA for each tile
    """
    if any(after > before for before, after in pairwise(tpc_rounds)):
        b.violations.append(f"tpc_rounds = {tpc_rounds}; each round must be at most as large as the one before.")
    order = GpcRaster.of(tpc_rounds, product(cluster), ctas)
    if requested and order is None:
        b.violations.append(
            f"gpc_raster = True: the GPCs of {ctas or 'all'} CTAs in clusters of {product(cluster)} are not known from "
            f"tpc_rounds = {tpc_rounds}; a persistent grid of at most one CTA per multiprocessor, in clusters of one "
            "or two, is expected."
        )
    return LaunchOrder() if order is None or requested is False else order


def is_gpc_aware(tile: tuple[int, ...], cluster: tuple[int, int]) -> bool:
    """Return True if clusters should take tiles GPC by GPC by default, so that those of a GPC share L2 reads.

    They should for large tiles in small clusters. Smaller tiles, and larger clusters, which multicast their loads, are
    not faster in this order. The order also needs a device whose assignment of CTAs to SMs is known, which is not
    checked here.

    tile      (bM, bN), or (bM, bN, bK)
    cluster   CTAs of a cluster along M and N

    >>> is_gpc_aware((128, 128), (2, 1)), is_gpc_aware((64, 64), (1, 1)), is_gpc_aware((128, 128), (2, 2))
    (True, False, False)
    """
    return product(tile[:2]) >= LEAST_ORDERED and product(cluster) <= PAIR


def _raster_of(groups: str, cluster: tuple[int, int], order: LaunchOrder | GpcRaster) -> str:
    """Return the default order of the tiles of D as text, such as "fitted_m", so that clusters of a GPC share L2 reads.

    Clusters share the reads of an operand if they load the same tiles of it at the same time and are in one GPC. The
    operand that is not multicast profits most. In GPC-aware order, clusters with neighbouring numbers are in one GPC.
    In launch order, about every eighth cluster is in the same one.

    A group has few tiles along the mode that groups divide, so bands never cut that mode.

    groups    mode that groups divide: "m", "n" or "k"; "" for a GEMM without groups
    cluster   CTAs of a cluster along M and N
    order     how clusters take tiles: GPC by GPC or in launch order
    """
    across, is_launch = "m" if cluster[1] > cluster[0] else "n", isinstance(order, LaunchOrder)
    if groups in ("m", "n") and (is_launch or groups == across or cluster == (1, 1)):
        return f"along_{groups}"
    if is_launch:
        return f"fitted_{'n' if across == 'm' else 'm'}"
    return f"even:{_ACROSS_CTAS}" if cluster == (1, 1) else f"even_{across}:{ACROSS_CLUSTERS}"


def default_l2(groups: str) -> tuple[str, str, str]:
    """Return the default L2 policies of A, B and D: "evict_normal", or "evict_first" for the D of groups along K.

    Each of these groups has a whole D, which would displace A and B in L2. 64 groups, K = 16848 in all, 4544 x 5120
    take 1.88 ms, and 1.58 ms if D is evicted first (H100, 2026-11-28).

    groups   mode that groups divide: "m", "n" or "k"; "" for a GEMM without groups

    >>> default_l2("k")
    ('evict_normal', 'evict_normal', 'evict_first')
    """
    return (*NORMAL_L2[:2], "evict_first") if groups == "k" else NORMAL_L2


def columns_loaded(b: Operand, tile: tuple[int, ...]) -> int:
    """Return how many columns of B are loaded for a k-tile: those of the tile, or more to fill whole cache lines.

    More are loaded only if B is N-major and the tile's columns end inside a line of 128 bytes. wgmma reads rows of 32
    bytes at half its rate, so those are always filled. It reads rows of 64 bytes nearly as fast as whole lines, but L2
    looks up more lines for them. They are filled if at most an eighth of the loaded columns are extra, or for tiles of
    256 rows and more than 128 columns, whose MMAs take longer than their loads.

    b      the operand B: element type and majorness
    tile   (bM, bN), or (bM, bN, bK)

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


@lru_cache(maxsize=4096)
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
    """Return (mainloop stages, epilogue tiles per consumer) that `sm90_plan` would choose, without building the plan.

    The result is cached: plans that differ only in their cluster or raster share it.

    operands                 types, majorness and alignment of A to D
    tile                     (bM, bN, bK) of a CTA
    consumer_tile            (M, N) of D that a consumer (warpgroup) stores
    consumers                number of consumers
    epi_tile_n, epi_stages   columns of an epilogue tile and epilogue stages per consumer; None: chosen
    is_direct                True if D is stored from registers, without epilogue tiles. D is also stored that way if no
                             epilogue tiles fill the tile
    cluster_k                CTAs of a cluster that split K, whose accumulators need shared memory
    ctas_per_sm              CTAs that share the shared memory of a multiprocessor
    """
    builder = _Builder("pipeline_of", operands, tile, ctas_per_sm=ctas_per_sm)
    builder.b_columns = columns_loaded(operands.b, tile)
    by_lines = operands.d.align_bytes < TMA_INNER_ALIGNED_BYTES
    builder.keep_room(consumer_tile, consumers, cluster_k)
    most = builder.line_columns(consumers, None) if by_lines else None
    stage_builder = warpgroup_epi_stages(
        "pipeline_of", operands, consumer_tile[1], most=most, stages=builder.stages_that_fit
    )
    if by_lines:  # the option is for boxes; lines are as long as possible
        epi_tile_n = None
    if not is_direct:
        with suppress(PlanError):
            columns, epi_tiles, count = stage_builder.division(
                consumer_tile,
                consumers,
                epi_tile_n,
                None if by_lines else epi_stages,
                "padded" if by_lines else "swizzled",
            )
            shape, copies = (WGMMA_M, columns), (count, consumers)
            smem = stage_builder.padded_rows(shape, copies) if by_lines else Layout((*shape, *copies))
            stages = builder.stages_that_fit(smem)
            if stages >= MIN_STAGES:
                return stages, epi_tiles
    return builder.stages_that_fit(None), 0


class _Builder(PipelineBuilder):
    """Makes the components of a Hopper plan (TMA, wgmma) from its options: tiled MMA, buffers, scales, L2 policies."""

    @property
    def stage_bytes(self) -> int:
        """Size in bytes of one mainloop stage of this plan: a k-tile of A and of B, and their block scales."""
        return super().stage_bytes + sum(4 * each.smem.cosize() for each in self.scale_streams(1))

    def scale_streams(self, stages: int) -> tuple[OperandStream, ...]:
        """Return how TMA loads the block scales with one value per row or column: one box per stage for each operand.

        Empty if the operands have no such scales.

        stages   number of mainloop stages
        """
        found = []
        for name in scale_names(self.operands):
            operand = self.operands.matrix(name)
            mode = operand.modes[0]
            if mode in ("m", "n"):
                rows = elements_of_stage(self.operands, name, self.tile["mn".index(mode)])
                pitch = -(-rows * 4 // TMA_SMEM_ALIGNED_BYTES) * TMA_SMEM_ALIGNED_BYTES // 4
                smem = Layout((rows, 1, stages), (1, pitch, pitch))
                found.append(OperandStream(name, mode, TmaBox("load", operand.dtype, (rows, 1), "none"), smem))
        return tuple(found)

    def most_columns(self, consumers: int, stages: int | None, has_few_registers: bool) -> int | None:
        """Return the largest number of columns that the builder may choose for an epilogue tile; None: no limit.

        consumers           number of consumer warpgroups
        stages              requested number of mainloop stages; None: not requested
        has_few_registers   True if the accumulators leave threads few registers
        """
        d = self.operands.d
        if d.dtype.bits == 8 and has_few_registers:
            return _COLUMNS_OF_BYTES
        return self.line_columns(consumers, stages) if d.align_bytes < TMA_INNER_ALIGNED_BYTES else None

    def line_columns(self, consumers: int, stages: int | None) -> int:
        """Return the widest epilogue tile, in columns, that leaves enough shared memory for mainloop stages.

        It is used if threads store D because TMA cannot, e.g. for an unaligned D. Enough means room for `stages`
        mainloop stages, and for at least 3.

        consumers   number of consumer warpgroups
        stages      requested number of mainloop stages; None: not requested
        """
        used = self.stage_bytes * max(_LEAST_STAGES, stages or 0)
        row_bytes = (self.free_bytes - used) // (consumers * WGMMA_M) - MOST_PAD_BYTES
        return max(0, row_bytes) * 8 // self.operands.d.dtype.bits

    def cluster_k(self, requested: int, cluster: tuple[int, int]) -> int:
        """Check the number of CTAs of a cluster that split K, and return it; 1 if they cannot share the tile's columns.

        Two rules are checked; `check` raises an error for broken ones. Each CTA must store an equal number of the
        tile's columns. The cluster must have one tile along N, since its CTAs along N are those that split K.

        requested   number of CTAs that split K, as the user gave it
        cluster     CTAs of a cluster along M and N that have different tiles
        """
        columns = self.tile[1]
        if requested > 1 and cluster[1] > 1:
            self.violations.append(
                f"cluster = {cluster}: with cluster_k = {requested} its tiles must lie along M. Use {(cluster[0], 1)}."
            )
        if requested == 1 or columns % (requested * FEWEST_COLUMNS) == 0:
            return requested
        self.violations.append(
            f"cluster_k = {requested}: each CTA must store an equal number of the {columns} columns, a multiple of "
            f"{FEWEST_COLUMNS}."
        )
        return 1

    def policies(self, l2: tuple[str, str, str] | None) -> tuple[str, str, str]:
        """Check the L2 policies of A, B and D, and return them.

        If they are not three known policies, a violation is collected and the usual ones are returned.

        l2   names of the three policies, such as ("evict_first", "evict_last", "evict_normal"); None: `default_l2`
        """
        if l2 is None:
            return default_l2(self.operands.groups)
        if isinstance(l2, tuple) and len(l2) == 3 and all(policy in L2_POLICIES for policy in l2):
            return l2
        self.violations.append(f"l2 = {l2!r}; three of {', '.join(L2_POLICIES)}, for A, B and D, are expected.")
        return NORMAL_L2

    def tiled_mma(self, loaded: Operands, a_source: str, rows: int, columns: int, readers: int) -> TiledMma:
        """Return the tiled MMA of the consumer warpgroups: wgmmas as wide as the tile, or half of it.

        Consumers that share a tile divide its rows.

        loaded     types and majorness of the matrices that the GEMM loads. If a repack kernel copies one first, they
                   are those of the copy
        a_source   "shared" or "register": where wgmma reads A from
        rows       rows of a consumer
        columns    columns of a wgmma
        readers    number of consumers that share a tile
        raises     PlanError if the rows of a consumer are not a multiple of 64
        """
        a, b, reads = loaded.a, loaded.b, a_source == "register"
        transposed_operands = [
            name
            for name, is_transposed in (("a", needs_transpose(a) and not reads), ("b", needs_transpose(b)))
            if is_transposed
        ]
        if transposed_operands and a.dtype in WGMMA_C_TYPES:
            self.violations.append(self._how_to_transpose(transposed_operands, a.dtype))
        majors = ["k" if operand.major == "k" or needs_transpose(operand) else "mn" for operand in (a, b)]
        atom = wgmma(a.dtype, columns, majors[0], majors[1], a_source, loaded.acc, b.dtype)
        if readers == 1 and not reads:
            return TiledMma(atom)
        if rows % WGMMA_M or rows == 0:
            raise PlanError(self.subject, [f"{readers} consumers have {rows} rows each, not a multiple of {WGMMA_M}."])
        own = ROWS_IN_BANKS if reads else Layout(WGMMA_M)
        along_m = Layout((own.shape, readers, rows // WGMMA_M), (own.stride, rows, WGMMA_M))
        return TiledMma(atom, Layout((readers, 1, 1)), (along_m, None, None))

    def _how_to_transpose(self, names: list[str], dtype: DType) -> str:
        """Return the text of the rule that wgmma takes only K-major operands of this type, with the remedy.

        names   operands that are not K-major: "a", "b" or both
        dtype   their element type
        """
        majors = " and ".join(f"{name.upper()} is {getattr(self.operands, name).major}-major" for name in names)
        repack = repacked_for_wgmma(self.operands)
        return (
            f"{majors}, but wgmma takes only k-major {dtype} operands, as in layout 'nt'. Add +repack to the name of "
            f"the plan, or pass repack={repack!r} to the builder: a repack pass then copies them first."
        )
