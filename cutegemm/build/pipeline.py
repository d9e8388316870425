"""What the builders of plans with a ring of stages share: boxes, stages, roles and registers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from cutegemm.build.building import PlanBuilder
from cutegemm.build.epi_stages import SWIZZLES, swizzled
from cutegemm.dtypes import tf32
from cutegemm.errors import PlanError
from cutegemm.layout.inttuple import product
from cutegemm.machine.arch import WARP_THREADS, WARPGROUP_THREADS, arch_named
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Operand, Operands
from cutegemm.plan.role import Role
from cutegemm.plan.shared import SharedLayout
from cutegemm.plan.stream import OperandStream
from cutegemm.plan.warp_roles import EpiStages, WarpRoles
from cutegemm.plan.work.split import KSplit
from cutegemm.tile.atoms import CopyAtom
from cutegemm.tile.copy_atoms import universal_copy
from cutegemm.tile.smem_atoms import KINDS, widest_smem_kind
from cutegemm.tile.tiled_mma import TiledMma
from cutegemm.tile.tma import TMA_SMEM_ALIGNED_BYTES, TmaBox

MAX_STAGES = 12  # more were not seen to help
_SLACK_BYTES = 1024  # of shared memory, left for the barriers when stages are chosen
NORMAL_L2 = ("evict_normal", "evict_normal", "evict_normal")  # of A, B and D
_PRODUCER_WARPS = WARPGROUP_THREADS // WARP_THREADS

# By the number of consuming warpgroups, what a thread of the producer and of a consumer has: of 65536
# registers, in steps of 8 a thread. A consumer with many sums leaves the producer less.
_REGISTERS = {2: ((40, 232), (24, 240)), 3: ((32, 160), (32, 160))}


def rounding_of(operands: Operands) -> str:
    """How operands are rounded by TMA: tf32 to nearest, as it is told that it loads tf32."""
    return "rne" if operands.a.dtype is tf32 else "rz"


@dataclass(frozen=True)
class Buffers:
    """How A and B come to shared memory, in so many stages; and D leaves, through epilogue stages or by `store`
    alone."""

    stages: int
    a: OperandStream
    b: OperandStream
    store: CopyAtom
    epi_stages: EpiStages | None
    smem_d: SharedLayout | None


class PipelineBuilder(PlanBuilder):
    """The parts of a plan whose producer fills a ring of stages by TMA."""

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
        self.partials_bytes_ = 0  # of shared memory, where CTAs of a cluster share K
        self.b_columns = tile[1]  # that a k-tile brings: see `GemmPlan.loaded_tile`

    @property
    def stage_bytes(self) -> int:
        """Bytes of A and B in a stage."""
        bm, _, bk = self.tile
        return (bm * bk * self.operands.a.dtype.bits + self.b_columns * bk * self.operands.b.dtype.bits) // 8

    @property
    def free_bytes(self) -> int:
        """Of the shared memory of a CTA, for the stages and the epilogue stages of D, beside the sums of other CTAs."""
        return arch_named(self.arch).smem_of_each_bytes(self.ctas_per_sm) - _SLACK_BYTES - self.partials_bytes_

    def keep_room(self, consumer_tile: tuple[int, int], consumers: int, cluster_k: int) -> None:
        """Leaves room in shared memory for the sums of CTAs that share K: as much as `exchanged` takes.

        consumer_tile   of D
        """
        elements = product(consumer_tile) * consumers * cluster_k if cluster_k > 1 else 0
        self.partials_bytes_ = elements * self.operands.acc.bits // 8

    def stages_that_fit(self, smem_d: SharedLayout | None) -> int:
        """As many stages as shared memory has room for, beside that of D."""
        used = 0 if smem_d is None else smem_d.cosize() * self.operands.d.dtype.bits // 8
        return min(MAX_STAGES, (self.free_bytes - used) // max(1, self.stage_bytes))

    def buffers(
        self,
        loaded: Operands,
        storing: tuple[EpiStages, SharedLayout] | None,
        stages: int | None,
        sharers: tuple[int, int] = (1, 1),
        l2: tuple[str, str, str] = NORMAL_L2,
    ) -> Buffers | None:
        """The stages, or as many as there is room for beside the epilogue stages of D; None with what is wrong noted.

        loaded    the operands as they are loaded
        storing   the epilogue stages of D, and their shared memory; None: D leaves straight out of registers
        sharers   CTAs of a cluster along M, which share the tiles of B, and along N, which share those of A
        l2        how long the cache is to keep A, B and D
        """
        epi_stages, smem_d = storing or (None, None)
        depth = self.stages_that_fit(smem_d) if stages is None else stages
        if stages is None and depth < 1:
            besides = f", beside {self.partials_bytes_} of sums of CTAs that share K" if self.partials_bytes_ else ""
            if self.ctas_per_sm > 1:
                besides += f", where {self.ctas_per_sm} CTAs share a multiprocessor"
            self.violations.append(
                f"shared memory has no room for a k-tile, {self.stage_bytes} bytes{besides}. Shrink the tile."
            )
        rows, columns = self.tile[0], self.b_columns
        a = self.attempt(lambda: self.operand("a", loaded.a, rows, sharers[1], max(1, depth), l2[0]))
        b = self.attempt(lambda: self.operand("b", loaded.b, columns, sharers[0], max(1, depth), l2[1]))
        store = epi_stages.to_shared.atom if epi_stages else self.attempt(self.direct_store)
        if a is None or b is None or store is None:
            return None
        return Buffers(depth, a, b, store, epi_stages, smem_d)

    def plan(
        self,
        mma: TiledMma,
        buffers: Buffers,
        pipeline: WarpRoles,
        registers: tuple[int, int] | None,
        reads: Mapping[str, CopyAtom],
        cluster_mn: tuple[int, int] = (1, 1),
        split: KSplit | None = None,
        further: tuple[OperandStream, ...] = (),
        **others: Any,
    ) -> GemmPlan:
        """The plan of such parts.

        registers   of a producer's thread and of a consumer's
        reads       by stream: how its fragments are read from shared memory
        further     streams besides A and B
        others      the fields of `GemmPlan` that do not follow from the parts
        raises      PlanError with every rule that is broken
        """
        return GemmPlan(
            operands=self.operands,
            arch=self.arch,
            cta_tile=(self.tile[0], self.tile[1] // pipeline.cluster_k, self.tile[2]),
            tiled_mma=mma,
            streams=(*[replace(stream, read=reads.get(stream.name)) for stream in (buffers.a, buffers.b)], *further),
            store_d=buffers.store,
            smem_d=buffers.smem_d,
            epi_stages=buffers.epi_stages,
            ctas_per_sm=self.ctas_per_sm,
            roles=roles_of(pipeline, registers),
            body=pipeline,
            cluster_mn=cluster_mn,
            split=split or KSplit(),
            rounding=rounding_of(self.operands),
            **others,
        )

    def operand(
        self, name: str, operand: Operand, extent: int, sharers: int, stages: int, l2: str = "evict_normal"
    ) -> OperandStream:
        """The box that a CTA loads, its share of a tile that `sharers` CTAs have in common; and its place.

        The swizzle permutes bits of addresses, with whatever row a box begins: so a share need be no whole groups of
        the 8 rows of a swizzle.
        """
        bk = self.tile[2]
        dtype = operand.dtype
        inner, outer = (bk, extent) if operand.major == "k" else (extent, bk)
        kind = widest_smem_kind(dtype, inner)
        row_bytes = KINDS[kind][1]
        if outer % sharers or outer // sharers * row_bytes % TMA_SMEM_ALIGNED_BYTES:
            raise PlanError(
                self.subject,
                [
                    f"{outer} rows of {row_bytes} bytes of a {operand.major}-major tile do not divide into {sharers} "
                    f"shares that begin at multiples of {TMA_SMEM_ALIGNED_BYTES} bytes, as boxes of TMA do."
                ],
            )
        width = row_bytes * 8 // dtype.bits
        box = TmaBox("load", dtype, (width, outer // sharers), SWIZZLES[kind], sharers, l2)
        smem = swizzled(dtype, operand.major == "k", (extent, bk), (stages,))
        return OperandStream(name, {"a": "m", "b": "n"}[name], box, smem)

    def direct_store(self) -> CopyAtom:
        """Out of registers: a thread's two neighbours of a row, where they are aligned together."""
        d = self.operands.d
        pair = d.major == "n" and d.align_elems >= 2
        return universal_copy(d.dtype, d.dtype.bits * (2 if pair else 1))


def registers_of(pipeline: WarpRoles, many: bool) -> tuple[int, int] | None:
    """Registers of a thread of the producer and of a consumer; with one consumer, each thread is launched with all it
    may have.

    many   whether a consumer needs all that it can get
    """
    warpgroups = pipeline.consumers * pipeline.consumer_threads // WARPGROUP_THREADS
    if pipeline.kind == "single" or warpgroups not in _REGISTERS:
        return None
    return _REGISTERS[warpgroups][many]


def roles_of(pipeline: WarpRoles, registers: tuple[int, int] | None) -> tuple[Role, ...]:
    """The producer, where there is one, and the consumers, of so many registers a thread."""
    produce, consume = registers or (None, None)
    working = [Role(f"consumer {i}", pipeline.consumer_warps, consume) for i in range(pipeline.consumers)]
    if pipeline.kind == "single":
        return tuple(working)
    return (Role("producer", _PRODUCER_WARPS, produce), *working)
