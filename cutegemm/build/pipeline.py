"""Base class of the builders of plans with warp roles: TMA boxes, mainloop stages, roles and registers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from cutegemm.build.building import PlanBuilder
from cutegemm.build.epi_stages import SWIZZLES, swizzled
from cutegemm.dtypes import tf32
from cutegemm.errors import PlanError
from cutegemm.layout.inttuple import product
from cutegemm.machine.arch import MAX_CLUSTER_CTAS, WARP_THREADS, WARPGROUP_THREADS, arch_named
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import INDEX, Operand, Operands
from cutegemm.plan.role import Role
from cutegemm.plan.shared import SharedLayout
from cutegemm.plan.store import RegisterStore, StagedStore, Store
from cutegemm.plan.stream import OperandStream
from cutegemm.plan.warp_roles import WarpRoles
from cutegemm.tile.atoms import CopyAtom
from cutegemm.tile.copy_atoms import universal_copy
from cutegemm.tile.smem_atoms import KINDS, widest_smem_kind
from cutegemm.tile.tiled_mma import TiledMma
from cutegemm.tile.tma import TMA_SMEM_ALIGNED_BYTES, TmaBox

MAX_STAGES = 12  # mainloop stages; more gained nothing
_SLACK_BYTES = 1024  # bytes of shared memory that are left for the barriers when stages are chosen
NORMAL_L2 = ("evict_normal", "evict_normal", "evict_normal")  # L2 policies of A, B and D
_PRODUCER_WARPS = WARPGROUP_THREADS // WARP_THREADS

# Registers of a thread of (producer, consumer) by the number of consumer warpgroups: usual, and for many accumulators.
# A multiprocessor has 65536 registers, and setmaxnreg counts in steps of 8.
_REGISTERS = {2: ((40, 232), (24, 240)), 3: ((32, 160), (32, 160))}


def rounding_of(operands: Operands) -> str:
    """Return how operands that TMA loads are rounded for the tensor cores: "rne" (to nearest) for tf32, else "rz".

    "rz" leaves rounding to the MMA, which ignores low bits; only f32 in memory has such bits.
    """
    return "rne" if operands.a.dtype is tf32 else "rz"


@dataclass(frozen=True)
class Buffers:
    """Shared-memory buffers of a warp-specialized plan: for the k-tiles of A and B, and for D.

    stages   number of mainloop stages, each for one k-tile of A and of B
    a, b     how TMA loads A and B: the TMA box, and the layout of all stages in shared memory
    store    how D is stored, e.g. through epilogue stages (buffers in shared memory)
    """

    stages: int
    a: OperandStream
    b: OperandStream
    store: Store


class PipelineBuilder(PlanBuilder):
    """Base class of the builders of warp-specialized plans: a producer warp fills the mainloop pipeline by TMA.

    It chooses the number of pipeline stages, lays out the shared memory and assembles the plan.

    subject       what errors are about, such as "sm90_plan 'mine'"
    operands      types, majorness and alignment of A to D
    tile          (bM, bN, bK) of a CTA, in elements
    arch          architecture, e.g. "sm_90a"; its shared memory is the limit
    ctas_per_sm   CTAs that share the shared memory of a multiprocessor
    """

    def __init__(
        self,
        subject: str,
        operands: Operands,
        tile: tuple[int, int, int],
        arch: str = "sm_90a",
        ctas_per_sm: int = 1,
    ) -> None:
        super().__init__(subject, operands)
        self.tile, self.arch, self.ctas_per_sm = tile, arch, ctas_per_sm
        self.partials_bytes_ = 0  # shared memory for accumulators of other CTAs, with cluster split-K
        self.b_columns = tile[1]  # columns of B that are loaded for a k-tile: see `GemmPlan.loaded_tile`

    @property
    def stage_bytes(self) -> int:
        """Size in bytes of one mainloop stage of this plan: a k-tile of A and one of B."""
        bm, _, bk = self.tile
        return (bm * bk * self.operands.a.dtype.bits + self.b_columns * bk * self.operands.b.dtype.bits) // 8

    @property
    def free_bytes(self) -> int:
        """Shared memory in bytes that a CTA has for mainloop stages and epilogue stages together."""
        return arch_named(self.arch).smem_of_each_bytes(self.ctas_per_sm) - _SLACK_BYTES - self.partials_bytes_

    def keep_room(self, consumer_tile: tuple[int, int], consumers: int, cluster_k: int) -> None:
        """Reserve shared memory for the accumulators that the CTAs of a cluster exchange if they split K.

        consumer_tile   (M, N) of D that a consumer (warpgroup that multiplies) stores
        consumers       number of consumers of a CTA
        cluster_k       CTAs of a cluster that split K; 1: nothing is reserved
        """
        elements = product(consumer_tile) * consumers * cluster_k if cluster_k > 1 else 0
        self.partials_bytes_ = elements * self.operands.acc.bits // 8

    def stages_that_fit(self, epi_stages: SharedLayout | None) -> int:
        """Return the number of mainloop stages that fit in shared memory next to the epilogue stages.

        epi_stages   layout of the epilogue stages (buffers for D); None: D is stored from registers
        """
        used = 0 if epi_stages is None else epi_stages.cosize() * self.operands.d.dtype.bits // 8
        return min(MAX_STAGES, (self.free_bytes - used) // max(1, self.stage_bytes))

    def buffers(
        self,
        loaded: Operands,
        storing: StagedStore | None,
        stages: int | None,
        sharers: tuple[int, int] = (1, 1),
        l2: tuple[str, str, str] = NORMAL_L2,
    ) -> Buffers | None:
        """Return the shared-memory buffers of a plan, for k-tiles of A and B and for D.

        None if an argument breaks a rule; the rule is remembered, and `check` raises the error.

        loaded    types, majorness and alignment of the matrices that the GEMM loads. If a repack kernel copies one
                  first, they are those of the copy
        storing   how D is stored through epilogue stages; None: it is stored from registers
        stages    number of mainloop stages; None: as many as fit
        sharers   CTAs of a cluster along M, which share the tiles of B, and along N, which share the tiles of A
        l2        L2 policies of A, B and D
        """
        depth = self.stages_that_fit(None if storing is None else storing.smem) if stages is None else stages
        if stages is None and depth < 1:
            partials = f", {self.partials_bytes_} bytes of exchanged accumulators" if self.partials_bytes_ else ""
            sharing = f", with {self.ctas_per_sm} CTAs per SM" if self.ctas_per_sm > 1 else ""
            self.violations.append(
                f"shared memory has no room for a k-tile, {self.stage_bytes} bytes{partials}{sharing}. Shrink the tile."
            )
        rows, columns = self.tile[0], self.b_columns
        a = self.attempt(lambda: self._stream("a", loaded.a, rows, sharers, max(1, depth), l2[0]))
        b = self.attempt(lambda: self._stream("b", loaded.b, columns, sharers, max(1, depth), l2[1]))
        store = storing or self.attempt(self.direct_store)
        if a is None or b is None or store is None:
            return None
        return Buffers(depth, a, b, store)

    def plan(
        self,
        mma: TiledMma,
        buffers: Buffers,
        pipeline: WarpRoles,
        registers: tuple[int, int] | None,
        reads: Mapping[str, CopyAtom],
        cluster_mn: tuple[int, int] = (1, 1),
        further: tuple[OperandStream, ...] = (),
        **others: Any,
    ) -> GemmPlan:
        """Assemble a warp-specialized plan from its components.

        mma          tiled MMA of the consumers (warpgroups or warps that multiply)
        buffers      how A and B are loaded, and how D is stored
        pipeline     warp roles: the producer and the consumers
        registers    registers per thread of the producer and of a consumer; None: all threads have the same number
        reads        copy atom that reads an operand's fragments from shared memory, by operand name; empty if the MMA
                     reads shared memory
        cluster_mn   CTAs of a cluster along M and N
        further      how operands other than A and B are loaded, e.g. block scales
        others       further fields of `GemmPlan` by name, such as the schedule and the family
        raises       PlanError with every rule that is broken
        """
        return GemmPlan(
            operands=self.operands,
            arch=self.arch,
            cta_tile=(self.tile[0], self.tile[1] // pipeline.cluster_k, self.tile[2]),
            tiled_mma=mma,
            streams=(*[replace(stream, read=reads.get(stream.name)) for stream in (buffers.a, buffers.b)], *further),
            store=buffers.store,
            ctas_per_sm=self.ctas_per_sm,
            roles=roles_of(pipeline, registers),
            body=pipeline,
            cluster_mn=cluster_mn,
            rounding=rounding_of(self.operands),
            **others,
        )

    def _stream(
        self, name: str, operand: Operand, extent: int, cluster: tuple[int, int], stages: int, l2: str
    ) -> OperandStream:
        """Return how TMA loads A or B: the box, and the shared-memory layout of its mainloop stages.

        Errors name the arguments `tile` and `cluster` of the user.

        name      "a" or "b"
        operand   its element type and majorness
        extent    rows of A, or columns of B, of a tile
        cluster   CTAs of a cluster along M and N
        stages    number of mainloop stages
        l2        L2 policy of the operand
        """
        gathers = name == self.operands.gathered
        sharers = 1 if gathers else cluster["ba".index(name)]
        try:
            stream = self.operand(name, operand, extent, sharers, stages, l2)
            return by_single_rows(stream) if gathers else stream
        except PlanError as error:
            options = f"tile = {self.tile}" + (f", cluster = {cluster}" if sharers > 1 else "")
            rules = [f"{options}: {name.upper()}: {rule}" for rule in error.violations]
            raise PlanError(self.subject, rules) from None

    def operand(
        self, name: str, operand: Operand, extent: int, sharers: int, stages: int, l2: str = "evict_normal"
    ) -> OperandStream:
        """Return how TMA loads A or B: the box, and the shared-memory layout of its mainloop stages.

        With multicast, a box is the share of a tile that one of `sharers` CTAs loads for all of them. A share may begin
        at any row, because the swizzle permutes bits of addresses.

        name      "a" or "b"
        operand   its element type and majorness
        extent    rows of A, or columns of B, of a tile
        sharers   number of CTAs of a cluster that load the same tile; 1: no multicast
        stages    number of mainloop stages
        l2        L2 policy of the operand
        raises    PlanError if the tile does not divide into shares that TMA can load
        """
        bk = self.tile[2]
        dtype = operand.dtype
        inner, outer = (bk, extent) if operand.major == "k" else (extent, bk)
        kind = widest_smem_kind(dtype, inner)
        row_bytes = KINDS[kind][1]

        def divides(count: int) -> bool:
            return outer % count == 0 and outer // count * row_bytes % TMA_SMEM_ALIGNED_BYTES == 0

        if not divides(sharers):
            allowed = [str(count) for count in range(1, MAX_CLUSTER_CTAS + 1) if divides(count)]
            raise PlanError(
                self.subject,
                [
                    f"{outer} rows of {row_bytes} bytes of a {operand.major}-major tile do not divide into {sharers} "
                    f"shares that begin at multiples of {TMA_SMEM_ALIGNED_BYTES} bytes, as boxes of TMA do. "
                    f"Use {' or '.join(allowed) or 'another tile'}."
                ],
            )
        width = row_bytes * 8 // dtype.bits
        box = TmaBox("load", dtype, (width, outer // sharers), SWIZZLES[kind], sharers, l2)
        smem = swizzled(dtype, operand.major == "k", (extent, bk), (stages,))
        return OperandStream(name, {"a": "m", "b": "n"}[name], box, smem)

    def direct_store(self) -> RegisterStore:
        """Return how D is stored from registers to global memory.

        A thread stores two neighbours at once if D is N-major and aligned to two elements, else one element.
        """
        d = self.operands.d
        pair = d.major == "n" and d.align_elems >= 2
        return RegisterStore(universal_copy(d.dtype, d.dtype.bits * (2 if pair else 1)))


def by_single_rows(stream: OperandStream) -> OperandStream:
    """Return how TMA loads an operand whose rows are selected by the operand `INDEX`: one row in each box."""
    assert isinstance(stream.load, TmaBox)
    return replace(stream, load=replace(stream.load, box=(stream.load.box[0], 1)), index=INDEX)


def registers_of(pipeline: WarpRoles, many: bool) -> tuple[int, int] | None:
    """Return the registers per thread that setmaxnreg gives the producer and each consumer.

    pipeline   warp roles of the plan; a consumer is a warpgroup that multiplies
    many       True if consumers need as many registers as they can get
    returns    (producer, consumer); None if every thread keeps the registers of the launch
    """
    warpgroups = pipeline.consumers * pipeline.consumer_threads // WARPGROUP_THREADS
    if pipeline.kind == "single" or warpgroups not in _REGISTERS:
        return None
    return _REGISTERS[warpgroups][many]


def roles_of(pipeline: WarpRoles, registers: tuple[int, int] | None) -> tuple[Role, ...]:
    """Return the warp roles of a CTA in the order of its warps: the producer, if the plan has one, and the consumers.

    pipeline    kind and number of the roles
    registers   registers per thread of the producer and of a consumer; None: those of the launch
    """
    producer_registers, consumer_registers = registers or (None, None)
    consumers = [Role(f"consumer {i}", pipeline.consumer_warps, consumer_registers) for i in range(pipeline.consumers)]
    if pipeline.kind == "single":
        return tuple(consumers)
    return (Role("producer", _PRODUCER_WARPS, producer_registers), *consumers)
