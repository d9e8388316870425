"""GemmPlan: everything about a GEMM kernel that can be decided before it is traced."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any, TypeVar

import numpy as np

from cutegemm.errors import PlanError, UnsupportedError
from cutegemm.layout import Layout, coalesce, hooks
from cutegemm.layout.inttuple import as_int_tuple, product
from cutegemm.machine.arch import (
    MAX_REGISTERS_PER_THREAD,
    WARP_THREADS,
    arch_named,
)
from cutegemm.plan.accumulation import AccumulationOrder, accumulation_order
from cutegemm.plan.epilogue import LINEAR, Accumulator, Epilogue
from cutegemm.plan.glu import Glu, GluPairs, glu_pairs, paired_vectors
from cutegemm.plan.memory.repack import Repack
from cutegemm.plan.problem import Operands, Problem, check_is_problem
from cutegemm.plan.program.barriers import Barrier, barriers_of
from cutegemm.plan.program.roles import consumer, producer
from cutegemm.plan.program.steps import Program
from cutegemm.plan.program.thread_schedule import ThreadSchedule
from cutegemm.plan.reduction import ACCUMULATOR_VECTOR
from cutegemm.plan.role import Role
from cutegemm.plan.shared import Buffer
from cutegemm.plan.store.base import Store
from cutegemm.plan.stream import OperandStream
from cutegemm.plan.warp_roles import WarpRoles, mma_of_columns
from cutegemm.plan.work.cluster import ClusterTile
from cutegemm.plan.work.scheduler import TileScheduler
from cutegemm.plan.work.split import KSplit
from cutegemm.plan.work.work import Work
from cutegemm.tile.atoms import CopyAtom
from cutegemm.tile.copy_atoms import universal_copy
from cutegemm.tile.tiled_copy import TiledCopy
from cutegemm.tile.tiled_mma import TiledMma

# An access of one element of 16 bits: it goes to a register of its own, so that no load waits for another. Its address
# and predicate, shared by a run of accesses, take half a register in addition (read from SASS).
HALF_BITS, _BITS_FOR_HALF = 16, 48
MAX_ACCESS_BITS = 128  # bits of the widest access of a thread
SEMAPHORE_BYTES = 4  # bytes in shared memory: a consumer's threads read there whether theirs is a tile's last K split
_REGISTERS_BESIDES = 32  # addresses and counters of a consumer that adds K splits


_Part = TypeVar("_Part", Role, Barrier, OperandStream)


@dataclass(frozen=True, kw_only=True)
class GemmPlan(hooks.Shown):
    """A GEMM kernel as data: everything that is decided before it is compiled, for given operand types and any extents.

    name, summary   short name of the plan, and a sentence on what distinguishes it
    family          "simt", "mma_sync" or "sm90": the kernel that carries the plan out
    arch            the oldest architecture that it runs on
    operands        types, majorness and alignment of A, B, C, D and the epilogue's operands
    cta_tile        (bM, bN, bK): the tile of D that a CTA computes, and the extent of a k-tile
    tiled_mma       the MMA atom, and how warps, threads and values cover the tile
    streams         how A, B and further operands are loaded for each k-tile
    store           how a tile of D gets from registers to global memory
    scheduler       which cluster computes which tiles of D, in order
    body            how threads work: all by one `ThreadSchedule`, or in `WarpRoles`
    roles           the warps of each role, with their registers
    cluster_mn      CTAs of a cluster along M and N
    repacks         operands that a kernel copies first, to a layout that the mainloop loads faster
    ctas_per_sm     CTAs that an SM must hold; it limits registers and shared memory
    mma_order       "m" or "n": the outer mode in the order of the MMAs of a k-block, which goes back and forth
    rounding        rounding of f32 to tf32: "rz", by the MMA, which ignores the low bits; "rna", to nearest, in
                    registers; "rne", by TMA
    epilogue        what is computed from the accumulators. If it does not read C, beta must be 0
    pdl             whether the kernel may begin before the previous kernel of the stream has ended. It reads A at once,
                    so the previous kernel must not write A. Everything else it reads after that kernel's end
    swap_ab         whether the kernel computes D^T = B^T A^T and its host function takes A, B, C and D themselves, so
                    that callers need no transposed views
    raises          PlanError with every rule that is broken
    """

    name: str
    summary: str = ""
    family: str
    arch: str
    operands: Operands
    cta_tile: tuple[int, int, int]
    tiled_mma: TiledMma
    streams: tuple[OperandStream, ...]
    store: Store
    scheduler: TileScheduler
    body: ThreadSchedule | WarpRoles
    roles: tuple[Role, ...]
    cluster_mn: tuple[int, int] = (1, 1)
    repacks: tuple[Repack, ...] = ()
    ctas_per_sm: int = 1
    mma_order: str = "m"
    rounding: str = "rz"
    epilogue: Epilogue = LINEAR
    pdl: bool = False
    swap_ab: bool = False

    def __post_init__(self) -> None:
        violations = self.violations()
        if violations:
            raise PlanError(f"plan {self.name!r}", violations)

    def violations(self, arch: str | None = None, problem: Problem | None = None) -> list[str]:
        """Return a sentence for every rule that this plan breaks on an architecture and for a problem; [] if none.

        A plan that exists breaks none on its own architecture. It may break some on another one, or for a problem.

        arch      name of the architecture, such as "sm_90a"; None for the plan's own
        problem   the problem to check; None checks the plan alone
        """
        from cutegemm.plan.rules.violations import violated_rules

        check_is_problem("violations", problem)
        return violated_rules(self, arch_named(arch or self.arch), problem)

    def refusals(self, arch: str) -> list[str]:
        """Return a sentence for each reason why this plan does not run on an architecture; [] if it runs.

        Only rules that depend on the architecture are checked.

        arch      name of the architecture, such as "sm_90a"
        """
        from cutegemm.plan.rules.violations import violated_on

        return violated_on(self, arch_named(arch))

    def with_(self, **changes: Any) -> GemmPlan:
        """Return a copy of this plan with some fields changed, e.g.

        `plan.with_(ctas_per_sm=2)`. All rules are checked again.

        changes   field -> new value. `epilogue` may also be a function such as `lambda acc, bias: acc + bias`, or its
                  text. `operands` may then be a dict of the kind of each of its operands, such as {"bias": "row"}
        raises    PlanError for an unknown field, or with every rule that is then broken

        >>> from cutegemm.build import sm90_plan
        >>> print(sm90_plan().with_(epilogue=lambda acc, bias: acc + bias, operands={"bias": "row"}).epilogue)
        acc + bias
        """
        if isinstance(changes.get("operands"), Mapping) or not isinstance(changes.get("epilogue", LINEAR), Epilogue):
            epilogue, kinds = changes.pop("epilogue", None), None
            if isinstance(changes.get("operands"), Mapping):
                kinds = changes.pop("operands")
            plan: GemmPlan = hooks.fused(epilogue, kinds).on(self.with_(**changes))
            return plan
        self._check_fields("a plan", self, changes)
        return replace(self, **changes)

    def _check_fields(self, kind: str, owner: Any, changes: Mapping[str, Any]) -> None:
        """Raise PlanError if a change names something that is not a field of `owner`.

        kind      what the owner is, for the message, such as "plan"
        owner     the plan, or one of its components, such as the scheduler
        changes   field -> new value
        """
        known = [field.name for field in fields(owner)]
        strange = [
            f"{name!r} is not a field of {kind}; the fields are {', '.join(known)}."
            for name in changes
            if name not in known
        ]
        if strange:
            raise PlanError(f"plan {self.name!r}", strange)

    def with_stream(self, name: str, **changes: Any) -> GemmPlan:
        """Return a copy of this plan with some fields of one operand stream changed, checked again.

        An operand stream describes how A, B or another operand of the mainloop is loaded, and its place in shared
        memory.

        name      "a", "b", or the name of a further operand of the mainloop
        changes   new value of each field of the `OperandStream` by its name
        raises    UnsupportedError for an unknown name, PlanError for an unknown field, or with every rule that is then
                  broken

        >>> from cutegemm.build import simt_plan
        >>> plan = simt_plan(block=(128, 128, 8), stages=2)
        >>> padded = plan.with_stream("b", smem=Layout((128, 8, 2), (1, 132, 1056)))
        >>> plan.smem_bytes()["b"], padded.smem_bytes()["b"]
        (8192, 8432)
        """
        changed = self.stream(name)
        self._check_fields("an operand stream", changed, changes)
        return self.with_(streams=tuple([replace(s, **changes) if s is changed else s for s in self.streams]))

    def with_scheduler(self, **changes: Any) -> GemmPlan:
        """Return a copy of this plan with some fields of its tile scheduler changed, checked again.

        changes   new value of each field of the scheduler by its name
        raises    PlanError for an unknown field, or with every rule that is then broken

        >>> from cutegemm.build import sm90_plan
        >>> from cutegemm.plan import Persistent
        >>> print(sm90_plan().with_scheduler(grid=Persistent(16)).scheduler.grid.ctas)
        16
        """
        self._check_fields(f"a {type(self.scheduler).__name__}", self.scheduler, changes)
        return self.with_(scheduler=replace(self.scheduler, **changes))

    @property
    def a(self) -> OperandStream:
        """Return how this plan loads A: the copies of its k-tiles, and their place in shared memory."""
        return self.streams[0]

    @property
    def b(self) -> OperandStream:
        """Return how this plan loads B: the copies of its k-tiles, and their place in shared memory."""
        return self.streams[1]

    def stream(self, name: str) -> OperandStream:
        """Return how this plan loads an operand of the mainloop: its copies, and its stages in shared memory.

        name     "a", "b", or the name of a further operand of the mainloop
        raises   UnsupportedError for an unknown name
        """
        return _of_name(self.name, self.streams, name)

    def to_json(self) -> str:
        """Return this plan as JSON text, which `from_json` of the same version of the package reads.

        >>> from cutegemm.build import sm90_plan
        >>> GemmPlan.from_json(sm90_plan().to_json()) == sm90_plan()
        True
        """
        from cutegemm.plan.saved import saved

        return saved(self)

    @staticmethod
    def from_json(text: str) -> GemmPlan:
        """Return the plan that `to_json` converted to the JSON `text`. Its rules are checked again.

        raises   UnsupportedError for another text, or for one that another version of the package wrote
        """
        from cutegemm.plan.saved import loaded

        plan = loaded(text)
        if not isinstance(plan, GemmPlan):
            raise UnsupportedError(f"GemmPlan.from_json: the text is a saved {type(plan).__name__}, not a plan.")
        return plan

    @property
    def threads(self) -> int:
        """Return the number of threads of a CTA of this plan's kernel."""
        return WARP_THREADS * sum(role.warps for role in self.roles)

    @property
    def has_c(self) -> bool:
        """Return whether the epilogue of this plan can read C."""
        return "c" in self.epilogue.tiles

    @property
    def mma_tile(self) -> tuple[int, int, int]:
        """Return (rows, columns, k) that a CTA of this plan multiplies for each k-tile.

        Rows and columns are the CTA's tile of D. If the CTAs of a cluster split K, each CTA multiplies the rows or
        columns of all of them, by its own k-tiles.

        >>> from cutegemm.build import sm90_plan
        >>> plan = sm90_plan(tile=(64, 96, 64), cluster_k=3)
        >>> plan.mma_tile, plan.cta_tile, plan.cluster_mn
        ((64, 96, 64), (64, 32, 64), (1, 3))
        """
        bm, bn, bk = self.cta_tile
        return (bm, bn * self.cluster_k, bk) if self.body.has_roles else (bm * self.cluster_k, bn, bk)

    @property
    def loaded_tile(self) -> tuple[int, int, int]:
        """Return (rows of A, columns of B, k) that a CTA of this plan loads to shared memory for each k-tile.

        They are what a CTA multiplies. Only for an n-major B, the columns are rounded up to whole rows of its TMA
        boxes: the last columns belong to the next tile and are not multiplied.

        >>> from cutegemm.build import sm90_plan
        >>> plan = sm90_plan(Operands.of("bf16", layout="nn"), tile=(128, 112, 64))
        >>> plan.loaded_tile, plan.mma_tile
        ((128, 128, 64), (128, 112, 64))
        """
        bm, bn, bk = self.mma_tile
        return (bm, self.b.tile[0], bk) if self.stages else (bm, bn, bk)

    @property
    def multicast_mn(self) -> tuple[int, int]:
        """Return how many CTAs of a cluster share each load by multicast: (along M, along N).

        CTAs along M share a tile of B, CTAs along N share a tile of A. CTAs that split K load different k-tiles and
        share nothing.
        """
        (across, along), shared = self.cluster_mn, self.cluster_k
        return (across // shared, along) if not self.body.has_roles else (across, max(1, along // shared))

    @property
    def cluster_k(self) -> int:
        """Return the number of CTAs of a cluster that split the K of one tile among them; 1 without cluster split-K."""
        return self.body.k_ctas(self.cluster_mn)

    def k_range(self, rank: Any, k_tiles: Any, minimum: Any = min) -> tuple[Any, Any]:
        """Return (first k-tile, number of k-tiles) that one CTA multiplies if the CTAs of a cluster split K.

        rank      rank of the CTA in its cluster
        k_tiles   number of k-tiles of the tile
        minimum   function that returns the smaller of two values: `min` for integers, another one for traced values in
                  a kernel
        """
        return KSplit(self.cluster_k).k_range(rank, k_tiles, minimum)

    @property
    def epilogue_mma(self) -> TiledMma:
        """Return the tiled MMA whose accumulator (C) layout says which thread of a CTA stores which element of D.

        It is the plan's `tiled_mma`. If warps or CTAs split K, threads exchange accumulators before the store, and the
        result is the tiled MMA for the accumulators after that exchange.
        """
        return self.body.stored_mma(self)

    @property
    def head(self) -> Epilogue:
        """Return the leading scaling of this plan's epilogue, applied to all accumulators before the first store.

        For alpha * acc + beta * c it is alpha * acc. It is empty if D is an integer type: the epilogue of integers is
        rounded once, at the end.

        >>> from cutegemm.build import sm90_plan
        >>> plan = sm90_plan(Operands.of("s8", layout="nt", out="s32"), tile=(128, 128, 128))
        >>> print(plan.head, "|", plan.tail)
        acc | alpha * acc
        """
        return self.epilogue.head if self.operands.d.dtype.is_float else Epilogue(Accumulator())

    @property
    def tail(self) -> Epilogue:
        """Return the rest of this plan's epilogue after its leading scaling (`head`).

        A kernel applies it to one epilogue tile at a time. For alpha * acc + beta * c it is acc + beta * c; if D is an
        integer type, it is the whole epilogue.
        """
        return self.epilogue.tail if self.operands.d.dtype.is_float else self.epilogue

    @functools.cached_property
    def pairs(self) -> GluPairs | None:
        """Return which accumulators of a thread are gate and up of one element of D, in a gated epilogue (GLU).

        None if some thread does not have both accumulators of an element.
        """
        return glu_pairs(self.epilogue_mma, self.cta_tile[:2])

    @functools.cached_property
    def stored_pairs(self) -> GluPairs:
        """Return the registers of a thread that hold gates, in the order of D's stores, and the registers of their ups.

        In a gated epilogue (GLU) a gate and its up projection, two accumulators, give one element of D. The plan must
        have warp roles and a gated epilogue.
        """
        assert self.pairs is not None
        both = [self.accumulator_registers[list(own)] for own in (self.pairs.gates, self.pairs.ups)]
        gates, ups = [tuple(each[np.argsort(both[0])].tolist()) for each in both]
        return GluPairs(self.pairs.block, gates, ups)

    @property
    def glu(self) -> Glu | None:
        """Return how gate and up columns alternate in a CTA's tile; None if the epilogue is not gated (GLU)."""
        if not self.operands.gated:
            return None
        assert self.pairs is not None
        return Glu(self.operands.gated, self.pairs.block, self.cta_tile[1])

    @functools.cached_property
    def paired_vectors(self) -> tuple[tuple[int, int], ...]:
        """Return which stored vectors of a thread are gates and ups of the same elements: (gate, up) index pairs.

        The pairs are in the order of stores. A vector is a group of accumulators that are stored together. () if a
        vector contains both gates and ups. The plan must have a thread schedule and a gated epilogue (GLU).
        """
        assert self.pairs is not None
        values, *rest = self.epilogue_mma.partition_shape_C(self.cta_tile[:2])
        shape = (product(values), *rest)
        return paired_vectors(self.pairs, shape, self.store.atom.values, self.operands.d.major) or ()

    @functools.cached_property
    def stored_by_threads(self) -> np.ndarray:
        """Return which elements of a CTA's tile of D each thread stores: an integer array (threads, elements).

        An entry is the index m + bM * n of an element in the tile. The entries of a thread are in the order of its
        accumulators.
        """
        (bm, bn, _), glu = self.cta_tile, self.glu
        table = self.epilogue_mma.offsets_c(Layout((bm, bn)))  # (threads, values, rest_m, rest_n)
        held: np.ndarray = table.reshape(table.shape[0], -1, order="F")
        if glu is None or self.pairs is None:
            return held
        held = held[:, list(self.pairs.gates)]
        return held % bm + bm * glu.d_column(held // bm)

    @property
    def d_tile(self) -> tuple[int, int]:
        """Return (rows, columns) of D that a CTA stores: half of the tile's columns if the epilogue is gated (GLU).

        >>> from cutegemm.build import with_epilogue, sm90_plan
        >>> from cutegemm.plan.epilogue import Accumulator, functions
        >>> with_epilogue(Epilogue(functions.swiglu(Accumulator())), sm90_plan(Operands.of("bf16"))).d_tile
        (128, 64)
        """
        bm, bn, _ = self.cta_tile
        return (bm, bn // 2) if self.operands.gated else (bm, bn)

    @property
    def consumer_tile(self) -> tuple[int, int]:
        """Return (rows, columns) of D that a consumer of this plan computes at a time.

        If all threads follow one schedule, they count as a single consumer.
        """
        return self.body.tile_of_consumer(self.cta_tile)

    @property
    def consumer_warps(self) -> int:
        """Return the number of warps of a consumer of this plan, i.e. of a role that multiplies."""
        return self.roles[-1].warps

    @property
    def consumer_threads(self) -> int:
        """Return the number of threads of a consumer of this plan, i.e. of a role that multiplies."""
        return WARP_THREADS * self.consumer_warps

    @property
    def consumer_d_tile(self) -> tuple[int, int]:
        """Return (rows, columns) of D that a consumer stores: half of its columns if the epilogue is gated (GLU).

        The plan must have warp roles.
        """
        rows, columns = self.consumer_tile
        return (rows, columns // 2) if self.operands.gated else (rows, columns)

    @property
    def consumer_mma_tile(self) -> tuple[int, int]:
        """Return (rows, columns) that a consumer of this plan (a warp role that multiplies) multiplies at a time.

        It is the tile that the consumer stores. If the CTAs of a cluster split K, it is the tile of this consumer in
        all of these CTAs together. The plan must have warp roles.
        """
        rows, columns = self.consumer_tile
        return rows, columns * self.cluster_k

    @property
    def consumer_d_mma(self) -> TiledMma:
        """Return the tiled MMA whose accumulator (C) layout says which thread of a consumer stores which element of D.

        It is the consumer's own MMA. For a gated epilogue it has half of the columns, and if a cluster splits K it has
        only the columns that the CTA stores. The plan must have warp roles.
        """
        if not self.operands.gated and self.cluster_k == 1:
            return self.consumer_mma
        return mma_of_columns(self.consumer_mma, self.consumer_d_tile[1])

    @property
    def fetched_tile(self) -> str:
        """Return the name of the M x N operand, such as "c", that TMA loads to this plan's epilogue stages; "" if none.

        An epilogue stage is shared memory for an epilogue tile.
        """
        return self.epilogue.tiles[0] if self.store.fetched is not None and self.epilogue.tiles else ""

    @functools.cached_property
    def epi_stage_results(self) -> tuple[str, ...]:
        """Return the names of the results that are stored through epilogue stages, "d" last.

        An epilogue stage is shared memory for an epilogue tile. Each result of an epilogue tile takes a stage of its
        own. () if D is not stored through epilogue stages.
        """
        return self.store.results(self)

    def epi_stage_number(self, i: int, result: str = "d") -> int:
        """Return the index of one store among all stores of a tile of D through epilogue stages (shared memory).

        Each epilogue tile has a store for each result. With the results "aux" and "d", D of epilogue tile 2 has the
        index 5.

        i        index of the epilogue tile that is stored
        result   "d", or the name of an auxiliary output
        """
        return i * len(self.epi_stage_results) + self.epi_stage_results.index(result)

    @property
    def aux_outputs(self) -> tuple[str, ...]:
        """Return the names of the epilogue's auxiliary outputs that this plan stores directly from registers."""
        return tuple([name for name in self.epilogue.outputs[1:] if name not in self.epi_stage_results])

    @property
    def split_k(self) -> int:
        """Return the number of K splits of each tile of D; 1 without split-K."""
        return self.scheduler.split.splits

    @property
    def loaded(self) -> Operands:
        """Return the operands as the mainloop of this plan loads them: the caller's, or repacked copies of A and B.

        A repack pass is a kernel that copies A or B to a better layout before the GEMM.
        """
        from cutegemm.plan.memory.repack import as_repacked

        return as_repacked(self.operands, self.repacks)

    @property
    def stages(self) -> int:
        """Return the number of k-tiles that shared memory holds; 0 if fragments are read from global memory."""
        return self.body.stages

    @functools.cached_property
    def programs(self) -> dict[str, Program]:
        """Return the program (the steps) of each warp role by its name; {} if all threads follow one schedule.

        >>> from cutegemm.build import sm90_plan
        >>> print(sm90_plan().programs["producer"])
        for tile in work:
          for k in tile.k_tiles:
            acquire  empty[k]
            load     A[k], B[k] -> full[k]
        """
        if not self.body.has_roles:
            return {}
        own = consumer(self)
        further = tuple([stream.name for stream in self.streams[2:]])
        loads = producer(self.cluster_mn != (1, 1), further)
        return {role.name: loads if role.name == "producer" else own for role in self.roles}

    def program(self, role: str) -> Program:
        """Return the program of a warp role of this plan: the steps that its warps execute.

        role     name of the role, such as "producer"
        raises   UnsupportedError for an unknown role, or if all threads follow one schedule
        """
        if role not in self.programs:
            roles = (
                f"the roles are {', '.join(self.programs)}" if self.programs else "all threads follow a thread schedule"
            )
            raise UnsupportedError(f"plan {self.name!r}: {role!r} is not a role; {roles}.")
        return self.programs[role]

    @functools.cached_property
    def barriers(self) -> tuple[Barrier, ...]:
        """Return the barriers of a CTA of this plan: number, arrivals and bytes of each.

        They are derived from the programs of the warp roles. If all threads follow one schedule, there is a single
        barrier of the whole CTA.
        """
        if not self.body.has_roles:
            return (Barrier("cta", "cta", 1, self.threads),)
        return barriers_of(self)

    def role(self, name: str) -> Role:
        """Return the warp role called `name`, such as "producer": its number of warps and its registers.

        raises   UnsupportedError for an unknown name
        """
        return _of_name(self.name, self.roles, name)

    def barrier(self, name: str) -> Barrier:
        """Return the barriers of this plan called `name`, such as "full": their kind, number and arrivals.

        raises   UnsupportedError for an unknown name
        """
        return _of_name(self.name, self.barriers, name)

    def barrier_id(self, name: str) -> int:
        """Return the hardware number (for bar.sync) of the first named barrier called `name`.

        Number 0 is the barrier of all threads.

        raises   UnsupportedError for an unknown name
        """
        wanted, first = self.barrier(name), 1
        for barrier in self.barriers:
            if barrier is wanted:
                break
            first += barrier.count if barrier.kind == "named" else 0
        return first

    @property
    def k_blocks(self) -> int:
        """Return the number of k-blocks of a k-tile in this plan: steps of the K extent of one MMA instruction."""
        shape: Any = self.tiled_mma.partition_shape_A((self.cta_tile[0], self.cta_tile[2]))
        return int(shape[2])

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """Return the shared-memory buffers of this plan: A, B and further operands, then those of the store."""
        streams = [Buffer(s.name, self.operands.matrix(s.name).dtype, s.smem, s.tile) for s in self.streams]
        return (*streams, *self.store.buffers(self))

    def smem_bytes(self) -> dict[str, int]:
        """Return the bytes of shared memory of each buffer of this plan, with the padding after it: name -> bytes.

        The names are "a", "b", further operands, "d", and others such as "barriers". If D uses the shared memory of A
        and B, "d" counts only what D needs in addition.
        """
        ops, out = self.operands, {}
        every = self.buffers
        apart = len(self.streams) if self.store.reuses_stages else len(every)
        for buffer, following in zip(every[:apart], (*every[1:apart], None), strict=True):
            align = 1 if following is None else following.align_bytes
            out[buffer.name] = -(-buffer.size_bytes // align) * align
        out.update({buffer.name: max(0, buffer.size_bytes - sum(out.values())) for buffer in every[apart:]})
        partials = self.body.partial_elements(self)
        if partials:
            out["accumulators"] = partials * ops.acc.bits // 8
        mbarriers = sum(b.count for b in self.barriers if b.kind == "mbarrier")
        if mbarriers:
            out["barriers"] = 8 * mbarriers
        if self.body.has_roles and self.scheduler.split.is_split:
            out["semaphores"] = SEMAPHORE_BYTES * self.body.consumers
        return out

    def registers(self) -> dict[str, int]:
        """Return the number of 32-bit registers that a thread needs for its data: use -> number.

        For example {"accumulators": 64, "fragments": 32}; k-tiles that are copied through registers are another use.
        The compiler adds registers for addresses, counters and predicates.
        """
        ops, mma = self.operands, self.tiled_mma
        bm, bn, _ = self.mma_tile
        holders = mma.threads // self.body.k_warps  # threads that together hold the accumulators of a tile
        out = {"accumulators": _words(bm * bn, ops.acc.bits, holders)}
        own = self.body.mainloop.registers(self, out["accumulators"])
        out.update(own)
        if self.body.has_roles and self.scheduler.split.is_split:  # added where a k-tile's have been
            of_parts = 2 * ACCUMULATOR_VECTOR * self.vectors_at_once
            out["accumulators of other K splits"] = max(0, of_parts - sum(own.values()))
        if mma.atom.is_of_warpgroup and mma.atom.a_source == "register":
            per_thread = product(as_int_tuple(mma.partition_shape_A((bm, self.cta_tile[2]))))
            later = out.get("accumulators of other K splits", 0)  # in the same registers
            out["fragments"] = max(0, _words(per_thread, ops.a.dtype.bits, 1) - later)
        elif mma.atom.a_source == "register":
            depth_a, depth_b = self.fragment_buffers
            bk = self.cta_tile[2]
            per_thread_a = product(as_int_tuple(mma.partition_shape_A((bm, bk))[:2]))
            per_thread_b = product(as_int_tuple(mma.partition_shape_B((bn, bk))[:2]))
            out["fragments"] = _words(depth_a * per_thread_a, ops.a.dtype.bits, 1) + _words(
                depth_b * per_thread_b, ops.b.dtype.bits, 1
            )
        for name, copy in self.by_registers.items():
            bits = _BITS_FOR_HALF if copy.atom.bits == HALF_BITS else ops.matrix(name).dtype.bits
            elements = (bm if name == "a" else bn) * self.cta_tile[2]
            out[f"tile of {name.upper()} in flight"] = _words(elements, bits, self.threads)
        return out

    @functools.cached_property
    def by_registers(self) -> dict[str, TiledCopy]:
        """Return the tiled copies that load A or B through registers to shared memory: "a" or "b" -> copy.

        Operands that cp.async or TMA loads directly to shared memory are absent.
        """
        loads = {stream.name: stream.load for stream in self.streams} if self.stages else {}
        return {name: load for name, load in loads.items() if isinstance(load, TiledCopy) and not load.atom.is_async}

    @property
    def vectors_at_once(self) -> int:
        """Return how many vectors of another K split's accumulators a consumer's thread reads before it adds them.

        It is the largest of 16, 8, 4, 2 and 1 for which registers are left. Each vector takes registers twice: for what
        is read, and for what it is added to.
        """
        given = max(role.registers or MAX_REGISTERS_PER_THREAD for role in self.roles)
        bm, bn, _ = self.cta_tile
        own = _words(bm * bn, self.operands.acc.bits, self.tiled_mma.threads)
        free = given - own - _REGISTERS_BESIDES
        return next((n for n in (16, 8, 4, 2) if 2 * ACCUMULATOR_VECTOR * n <= free), 1)

    @property
    def fragment_buffers(self) -> tuple[int, int]:
        """Return how many k-blocks' fragments a thread holds at once: (of A, of B).

        A k-block is multiplied in two nested loops over rows and columns. Fragments of the outer loop's operand are
        read again as soon as they have been used. Fragments of the inner loop's operand are read one k-block early, to
        a second buffer.
        """
        return self.body.fragment_buffers(self.mma_order)

    @property
    def consumer_mma(self) -> TiledMma:
        """Return the tiled MMA of a single consumer (a warp role that multiplies).

        It is derived from `tiled_mma`, the tiled MMA of all consumers of a CTA together.

        The plan must have warp roles.
        """
        return _of_one_consumer(self.tiled_mma)

    @property
    def consumer_b_mma(self) -> TiledMma:
        """Return the tiled MMA that a consumer uses to partition B in shared memory.

        It is the consumer's MMA, with as many columns as are loaded. These can be more than are multiplied; the wgmma
        descriptor of B is the same.
        """
        columns = self.loaded_tile[1]
        if columns == self.mma_tile[1]:
            return self.consumer_mma
        return mma_of_columns(self.consumer_mma, columns)

    @property
    def b_column_blocks(self) -> int:
        """Return the number of blocks of a consumer's columns whose MMAs are issued and waited for separately.

        It is 1, or 2 if the MMAs of the left and the right half alternate.
        """
        return self.body.mainloop.b_column_blocks(self)

    @property
    def piece_n(self) -> int:
        """Return how many adjacent columns of the CTA's tile belong to one consumer, before those of the next begin.

        It is the width of a consumer's tile, or less if the consumers interleave their columns.
        """
        along_n = self.tiled_mma.permutation_mnk[1]
        return int(along_n[1].stride) if isinstance(along_n, Layout) else self.consumer_tile[1]

    def column_of(self, own_n: Any, column: Any) -> Any:
        """Return the column of D for a column of a consumer's tile. The columns of several consumers may interleave.

        own_n    index of the consumer's tile along N, among the consumers' tiles of all CTAs
        column   column in the consumer's tile

        >>> from cutegemm.build import mma_tma_plan
        >>> plan = mma_tma_plan(Operands.of("bf16", layout="nn"), block=(256, 160, 64), warp=(64, 80))
        >>> plan.piece_n, [plan.column_of(1, column) for column in (0, 15, 16, 79)]
        (16, [16, 31, 48, 159])
        """
        bn, own, piece = self.cta_tile[1], self.consumer_tile[1], self.piece_n
        across = bn // own
        first = own_n // across * bn + own_n % across * piece
        return first + column // piece * (piece * across) + column % piece

    def accumulator_order(self, shape: tuple[int, int, int]) -> Layout:
        """Return the layout from an accumulator's coordinates (value, MMA_M, MMA_N) to the index of its register.

        Registers are ordered like the stores: those of one epilogue tile are adjacent.

        shape   (values of an atom, atoms along M, atoms along N) of a thread

        >>> from cutegemm.build import mma_tma_plan
        >>> plan = mma_tma_plan(Operands.of("bf16", layout="nn"), block=(64, 64, 64), warp=(32, 32))
        >>> plan.accumulator_order((4, 2, 4))
        Layout((4, (1, 2), (2, 2)), (1, (4, 16), (4, 8)))
        """
        return self.store.accumulator_order(self, shape)

    @functools.cached_property
    def accumulator_registers(self) -> np.ndarray:
        """Return the register index of each accumulator of a thread: an array in the order (values, MMA_M, MMA_N)."""
        values, *rest = self.epilogue_mma.partition_shape_C(self.cta_tile[:2])
        return self.accumulator_order((product(values), *rest)).offsets()

    def own_tile(self, tile_mnl: tuple[Any, Any, Any], consumer: Any) -> tuple[Any, Any, Any]:
        """Return the coordinates (m_tile, n_tile, batch) of a consumer's tile, counted in tiles of consumers.

        A CTA tile consists of the tiles of its consumers. E.g. with two consumers along M, consumer 1 of CTA tile (3,
        5, 0) has (7, 5, 0).

        tile_mnl   (m_tile, n_tile, batch) of the CTA's tile
        consumer   index of the consumer among the consumers that share the CTA's tile

        >>> from cutegemm.build import sm90_plan
        >>> sm90_plan(tile=(256, 128, 64), schedule="cooperative").own_tile((3, 5, 0), 1)
        (7, 5, 0)
        """
        if self.body.readers == 1:
            return tile_mnl
        down, across = [whole // own for whole, own in zip(self.cta_tile, self.consumer_tile, strict=False)]
        m_tile, n_tile, batch = tile_mnl
        if across == 1:
            return m_tile * down + consumer, n_tile, batch
        return m_tile * down + consumer // across, n_tile * across + consumer % across, batch

    def tile_of_own(self, own_mnl: tuple[Any, Any, Any]) -> tuple[tuple[Any, Any, Any], Any]:
        """Return the CTA's tile that contains a consumer's tile, and the index of the consumer: inverse of `own_tile`.

        own_mnl   (m_tile, n_tile, batch) of the consumer's tile, counted in tiles of a consumer
        returns   ((m_tile, n_tile, batch) counted in tiles of a CTA, index of the consumer). The index is 0 if each
                  consumer has a CTA tile of its own

        >>> from cutegemm.build import sm90_plan
        >>> sm90_plan(tile=(256, 128, 64), schedule="cooperative").tile_of_own((7, 5, 0))
        ((3, 5, 0), 1)
        """
        m, n, batch = own_mnl
        if self.body.readers == 1:
            return own_mnl, 0 * m
        down, across = [whole // own for whole, own in zip(self.cta_tile, self.consumer_tile, strict=False)]
        if across == 1:
            return (m // down, n, batch), m % down
        return (m // down, n // across, batch), m % down * across + n % across

    def access(self, name: str) -> CopyAtom:
        """Return the copy atom that moves an operand or result of the epilogue between global memory and registers.

        Its vector is that of D's stores if the operand is contiguous along the same mode as D. With warp roles it has
        two elements: the neighbours of a row that a thread holds.

        name   name of the operand or result, such as "c" or "bias"
        """
        operand, d = self.operands.matrix(name), self.operands.d
        if operand.gated == "pairs":
            elements = 1
        elif self.body.has_roles:
            elements = 2 if operand.major == "n" and "n" not in operand.broadcast else 1
        else:
            lies_along = operand.major == d.major and d.major not in operand.broadcast
            elements = self.store.atom.bits // d.dtype.bits if lies_along else 1
        most = max(1, MAX_ACCESS_BITS // operand.dtype.bits)
        return universal_copy(operand.dtype, operand.dtype.bits * min(elements, operand.align_elems, most))

    @functools.cached_property
    def cluster_tile(self) -> ClusterTile:
        """Return the tile and the CTAs of a cluster of this plan, as the tile scheduler needs them."""
        return ClusterTile(
            self.cta_tile, self.cluster_mn, self.body.cluster_k, self.operands.batched, not self.body.has_roles
        )

    def work(self, problem: Problem, tensors: Mapping[str, Any] | None = None) -> Work:
        """Return the work tiles of a problem, and which cluster takes which.

        A work tile is a tile of D with all or some of its k-tiles.

        tensors   operands that the scheduler reads, as arrays by name; None: their contents are not known, or it reads
                  none

        >>> from cutegemm.build import sm90_plan
        >>> sm90_plan(split_k=4).work(Problem(128, 1024, 4096)).count
        32
        """
        tiles = self.scheduler.tiles(self.cluster_tile, problem.m, problem.n, problem.l)
        return tiles.along(problem.k, tensors)

    def grid(self, problem: Problem) -> tuple[int, int, int]:
        """Return the number of CTA tiles of D that this plan has for a problem: (along M, along N, batch).

        In a grouped GEMM, no group has more tiles than these: they are those of a group with all rows, or all columns.
        """
        return (
            -(-problem.m // self.cta_tile[0]),
            -(-problem.n // self.cta_tile[1]),
            problem.l,
        )

    def mma_grid(self, problem: Problem) -> tuple[int, int, int]:
        """Return the number of tiles that CTAs multiply for a problem: (along M, along N, batch).

        It is the number of CTA tiles of D. If the CTAs of a cluster split K, each of them multiplies the tiles of all
        of them together, which count as one.

        >>> from cutegemm.build import sm90_plan
        >>> plan = sm90_plan(tile=(64, 64, 64), cluster_k=4)
        >>> plan.grid(Problem(100, 200, 640)), plan.mma_grid(Problem(100, 200, 640))
        ((2, 13, 1), (2, 4, 1))
        """
        rows, columns, _ = self.mma_tile
        return -(-problem.m // rows), -(-problem.n // columns), problem.l

    def k_tiles(self, problem: Problem) -> int:
        """Return the number of k-tiles that cover the extent K of a problem; a group of K has at most as many.

        If bK does not divide K, one k-tile is ragged. With TMA it is the last one, which is filled with zeros beyond K.
        If threads copy, it is the first one, which begins at k = K - k_tiles * bK, below 0.
        """
        return -(-problem.k // self.cta_tile[2])

    def accumulation_order(self, problem: Problem) -> AccumulationOrder:
        """Return in what order this plan's kernel adds the products of an element of D.

        Plans with equal orders give the same accumulators, bit for bit. Only stream-K orders depend on M, N and L.

        problem   the problem with the plan's A and B: if the plan swaps A and B, it is D^T = B^T A^T

        >>> from cutegemm.build import sm90_plan
        >>> print(sm90_plan(tile=(64, 64, 64), split_k=2).accumulation_order(Problem(64, 64, 4096)))
        wgmma of 16 k, bf16 x bf16 -> f32: (k 0..2048) + (k 2048..4096)
        """
        check_is_problem("accumulation_order", problem)
        return accumulation_order(self, problem)

    def describe(self, problem: Problem | None = None) -> str:
        """Return this plan as text: a line (count, shape, layout) for each level from the grid of CTAs to a value.

        problem   the problem whose tiles are counted; None: the grid is given as a formula
        """
        from cutegemm.plan.describe import describe

        check_is_problem("describe", problem)
        return describe(self, problem)

    def key(self) -> str:
        """Return a text that identifies the kernel of this plan: different kernels have different texts.

        It has all fields that affect the kernel; the name and the summary are left out.
        """
        parts = [
            f"{f.name}={getattr(self, f.name)!r}"
            for f in fields(self)
            if f.compare and f.name not in ("name", "summary") and (f.name != "swap_ab" or self.swap_ab)
        ]
        return "\n".join(parts)

    def __str__(self) -> str:
        return self.name


def _of_name(plan: str, parts: tuple[_Part, ...], name: str) -> _Part:
    for part in parts:
        if part.name == name:
            return part
    known = ", ".join(part.name for part in parts)
    raise UnsupportedError(f"plan {plan!r}: {name!r} is not the name of one; the names are {known}.")


@cache
def _of_one_consumer(mma: TiledMma) -> TiledMma:
    along_m, along_n, _ = mma.permutation_mnk  # (an atom, consumers, the atoms of one)
    if mma.atom.is_of_warpgroup:
        rows = along_m[0] if isinstance(along_m, Layout) else None
        is_permuted = rows is not None and coalesce(rows) != Layout(rows.size())
        return TiledMma(mma.atom, permutation_mnk=(rows if is_permuted else None, None, None))
    own = (_without_second(along_m), _without_second(along_n), None)
    return TiledMma(mma.atom, permutation_mnk=own)


@cache
def _without_second(permutation: Layout) -> Layout:
    """Return the permutation of one consumer's rows (or columns), from that of all consumers together.

    A permutation says which rows of the tile the MMA atoms cover, in order. In the result, a consumer's rows are
    adjacent.

    permutation   layout with three modes: rows of an MMA atom, consumers, repetitions. The mode of the consumers is
                  removed
    """
    first, consumers, rest = (permutation[mode] for mode in range(3))
    modes = zip(*rest.flat(), strict=True)
    count, piece = consumers.size(), consumers.stride
    closer = [(extent, stride if stride < piece else stride // count) for extent, stride in modes]
    own = Layout(tuple([extent for extent, _ in closer]), tuple([stride for _, stride in closer]))
    return Layout((first.shape, own.shape), (first.stride, own.stride))


def _words(elements: int, bits: int, threads: int) -> int:
    return -(-elements * bits // (32 * threads))
