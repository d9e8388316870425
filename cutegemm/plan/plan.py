"""GemmPlan: everything about a GEMM kernel that can be decided before it is traced."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Union

from cutegemm.arch import WARP_THREADS, Arch, arch_named
from cutegemm.errors import PlanError
from cutegemm.layout import ComposedLayout, Layout, size
from cutegemm.plan.problem import Operands, Problem
from cutegemm.plan.schedule import Schedule
from cutegemm.tile.atoms import CopyAtom
from cutegemm.tile.raster import Raster
from cutegemm.tile.tiled_copy import TiledCopy
from cutegemm.tile.tiled_mma import TiledMma

SharedLayout = Union[Layout, ComposedLayout]


@dataclass(frozen=True)
class Role:
    """Warps that run one program.

    warps       how many, counted on from those of the role before
    registers   per thread while it runs (setmaxnreg), or None where the compiler decides
    """

    name: str
    warps: int
    registers: int | None = None


@dataclass(frozen=True)
class Barrier:
    """A barrier, or one for each stage.

    kind                "cta" (all threads), "named" (some warps) or "mbarrier"
    count               how many of them
    arrivals            that complete a phase
    transaction_bytes   that a phase waits for besides
    """

    name: str
    kind: str
    count: int
    arrivals: int
    transaction_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class GemmPlan:
    """A GEMM described: for operands of given types, majorness and alignment, and of any extents.

    name, summary    what it is called, and what it does differently
    family           "simt", "mma_sync" or "sm90": which kernel carries it out
    arch             the least architecture that it runs on
    operands         element types, majorness, alignment
    cta_tile         (bM, bN, bK): the part of D that a CTA computes, and the step along K
    tiled_mma        who multiplies what: block > warp > thread > value
    smem_a, smem_b   the shared memory of A (bM, bK, stages) and B (bN, bK, stages), in elements
    load_a, load_b   global to shared memory
    read_a, read_b   shared memory to registers
    store_d          registers to global memory, or to `smem_d` where that is given
    raster           in which order the CTAs take the tiles of D
    schedule         what the threads do for each k-tile
    roles, barriers  who does it, and what holds them together
    smem_d           shared memory that D's tile passes through, or None
    cluster_mn       CTAs of a cluster along M and N
    split_k          parts that K is cut into
    ctas_per_sm      that must fit a multiprocessor together; the register budget follows from it
    mma_order        "m" or "n": the products of a k-block are issued back and forth, this mode outermost
    raises           PlanError with every rule that is broken
    """

    name: str
    summary: str = ""
    family: str
    arch: str
    operands: Operands
    cta_tile: tuple[int, int, int]
    tiled_mma: TiledMma
    smem_a: SharedLayout
    smem_b: SharedLayout
    load_a: TiledCopy
    load_b: TiledCopy
    read_a: CopyAtom
    read_b: CopyAtom
    store_d: CopyAtom
    raster: Raster
    schedule: Schedule
    roles: tuple[Role, ...]
    barriers: tuple[Barrier, ...]
    smem_d: SharedLayout | None = None
    cluster_mn: tuple[int, int] = (1, 1)
    split_k: int = 1
    ctas_per_sm: int = 1
    mma_order: str = "m"

    def __post_init__(self) -> None:
        broken = self.violations()
        if broken:
            raise PlanError(f"plan {self.name!r}", broken)

    def violations(self, arch: str | None = None, problem: Problem | None = None) -> list[str]:
        """Every rule that the plan breaks on an architecture (its own where left out) and for a problem.

        A plan that exists breaks none on its own architecture; another one, or a problem, may differ.
        """
        from cutegemm.plan.rules import broken_rules

        return broken_rules(self, arch_named(arch or self.arch), problem)

    def with_(self, **changes: Any) -> GemmPlan:
        """The plan with some fields changed, checked anew."""
        return replace(self, **changes)

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return WARP_THREADS * sum(role.warps for role in self.roles)

    @property
    def stages(self) -> int:
        """Shared-memory stages of A and B."""
        return self.schedule.stages

    def smem_bytes(self) -> dict[str, int]:
        """Bytes of shared memory by buffer."""
        ops = self.operands
        out = {
            "a": self.smem_a.cosize() * ops.a.dtype.bits // 8,
            "b": self.smem_b.cosize() * ops.b.dtype.bits // 8,
        }
        if self.smem_d is not None:
            out["d"] = self.smem_d.cosize() * ops.d.dtype.bits // 8
        mbarriers = sum(b.count for b in self.barriers if b.kind == "mbarrier")
        if mbarriers:
            out["barriers"] = 8 * mbarriers
        return out

    def registers(self) -> dict[str, int]:
        """32-bit registers that a thread's data needs: accumulators, fragments, and tiles on their way.

        The compiler adds addresses, counters and predicates.
        """
        ops, mma = self.operands, self.tiled_mma
        bm, bn, _ = self.cta_tile
        depth = self.schedule.fragments
        out = {"accumulators": _words(bm * bn, ops.acc.bits, mma.threads)}
        if mma.atom.a_source == "register":
            per_thread_a = size(mma.layout_a_tv_tiled, mode=[1]) * (bm // mma.tile_mnk[0])
            per_thread_b = size(mma.layout_b_tv_tiled, mode=[1]) * (bn // mma.tile_mnk[1])
            out["fragments"] = _words(depth * per_thread_a, ops.a.dtype.bits, 1) + _words(
                depth * per_thread_b, ops.b.dtype.bits, 1
            )
        for name, copy, tile, operand in (
            ("tile of A on its way", self.load_a, bm, ops.a),
            ("tile of B on its way", self.load_b, bn, ops.b),
        ):
            if not copy.atom.is_async:
                out[name] = _words(tile * self.cta_tile[2], operand.dtype.bits, self.threads)
        return out

    def grid(self, problem: Problem) -> tuple[int, int, int]:
        """How many tiles D has along M, N and the batch."""
        return (
            -(-problem.m // self.cta_tile[0]),
            -(-problem.n // self.cta_tile[1]),
            problem.l,
        )

    def k_tiles(self, problem: Problem) -> int:
        """Steps along K. The first one is the ragged one: it begins at K - k_tiles * bK."""
        return -(-problem.k // self.cta_tile[2])

    def describe(self, problem: Problem | None = None) -> str:
        """The hierarchy, a line a level: count, shape, layout."""
        from cutegemm.plan.describe import describe

        return describe(self, problem)

    def architecture(self) -> Arch:
        """The limits of the least architecture that it runs on."""
        return arch_named(self.arch)

    def key(self) -> str:
        """Text in which two plans differ where they are carried out differently."""
        parts = [
            f"{f.name}={getattr(self, f.name)!r}"
            for f in fields(self)
            if f.compare and f.name not in ("name", "summary")
        ]
        return "\n".join(parts)

    def __str__(self) -> str:
        return self.name


def _words(elements: int, bits: int, threads: int) -> int:
    return -(-elements * bits // (32 * threads))
