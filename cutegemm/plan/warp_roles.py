"""Warp-specialized roles of a plan.

A producer loads k-tiles to the stages of the mainloop pipeline by TMA; consumers multiply and store.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from operator import gt
from typing import TYPE_CHECKING, ClassVar

from cutegemm.errors import UnsupportedError
from cutegemm.layout import Layout
from cutegemm.machine.arch import MAX_THREADS_PER_BLOCK, WARP_THREADS, WARPGROUP_THREADS
from cutegemm.plan.mainloop.base import Mainloop
from cutegemm.plan.reduction import exchanged
from cutegemm.plan.rules.bounds import MOST_STAGES, count_rule, extents_rule
from cutegemm.tile.mma_atoms import wgmma
from cutegemm.tile.tiled_mma import TiledMma

if TYPE_CHECKING:
    from cutegemm.plan.plan import GemmPlan

WARP_ROLES_KINDS = ("pingpong", "cooperative", "single")
_MOST_CYCLES = 1 << 26  # stagger_cycles; with 32 consumers the sum fits the 32-bit clock


@dataclass(frozen=True)
class WarpRoles:
    """How the warps of a CTA divide the work: a producer warp loads k-tiles, consumers multiply and store tiles of D.

    kind             "pingpong": the consumers take the tiles of a CTA in turn; one multiplies while another stores.
                     "cooperative": they share each tile. "single": no producer; a lane of the consumers loads k-tiles,
                     between their MMAs
    stages           number of k-tiles in shared memory
    consumers        number of consumers: warpgroups for wgmma, warps for mma.sync
    consumer_tile    (M, N) of D that a consumer computes at a time
    mainloop         how a consumer multiplies the k-tiles of a tile
    stagger_cycles   cooperative: clock cycles between the starts of consumers, so that they do not all store at once
    overlapped       cooperative: a consumer keeps its finished tile in registers and stores it during the MMAs of the
                     next
    consumer_warps   number of warps of a consumer: 4, a warpgroup, or 1
    cluster_k        number of CTAs of a cluster along N that split K. Each multiplies the columns of all of them by
                     some of the k-tiles, and receives the accumulators of its own columns from all
    """

    kind: str
    stages: int
    consumers: int
    consumer_tile: tuple[int, int]
    mainloop: Mainloop
    stagger_cycles: int = 0
    overlapped: bool = False
    consumer_warps: int = WARPGROUP_THREADS // WARP_THREADS
    cluster_k: int = 1

    has_roles: ClassVar[bool] = True
    slices_k: ClassVar[bool] = False
    k_warps: ClassVar[int] = 1

    def k_ctas(self, cluster_mn: tuple[int, int]) -> int:
        """Return the number of CTAs of a cluster that split K among them; 1 without cluster split-K.

        cluster_mn   CTAs of a cluster along M and N; not used here, but by the same method of `SlicedSchedule`
        """
        return self.cluster_k

    def partial_elements(self, plan: GemmPlan) -> int:
        """Return the number of accumulators that a CTA receives in shared memory from its cluster.

        It is 0 unless the CTAs of a cluster split K.
        """
        return exchanged(plan).cosize() if self.cluster_k > 1 else 0

    def stored_mma(self, plan: GemmPlan) -> TiledMma:
        """Return the tiled MMA whose accumulator layout says which thread stores which element of D.

        If CTAs of a cluster split K, each stores its own columns only.
        """
        return plan.tiled_mma if self.cluster_k == 1 else mma_of_columns(plan.tiled_mma, plan.cta_tile[1])

    def tile_of_consumer(self, cta_tile: tuple[int, int, int]) -> tuple[int, int]:
        """Return (rows, columns) of D that one consumer computes at a time.

        cta_tile   (bM, bN, bK); not used here, but by the same method of `ThreadSchedule`
        """
        return self.consumer_tile

    def fragment_buffers(self, mma_order: str) -> tuple[int, int]:
        """Return how many k-blocks' fragments a thread holds at once: (of A, of B), which is (1, 2) or (2, 1).

        mma_order   "m" or "n": the mode of the outer of the two loops over the MMAs of a k-block. Fragments of that
                    mode are read again as soon as they have been multiplied. Fragments of the inner mode are read one
                    k-block early, to a second buffer
        """
        return (1, 2) if mma_order == "m" else (2, 1)

    @property
    def promoted(self) -> bool:
        """Return whether threads add the accumulators of each k-tile to a total in f32 (accumulator promotion)."""
        return self.mainloop.promoted

    @property
    def tiles_in_flight(self) -> int:
        """Return the number of tiles that a CTA works on at once: one for each pingpong consumer, else one."""
        return self.consumers if self.kind == "pingpong" else 1

    @property
    def readers(self) -> int:
        """Return the number of consumers that read each k-tile: 1 for pingpong, else all, which share a tile."""
        return 1 if self.kind == "pingpong" else self.consumers

    @property
    def consumer_threads(self) -> int:
        """Return the number of threads of one consumer of this plan."""
        return WARP_THREADS * self.consumer_warps

    def bounds(self, plan: GemmPlan) -> Iterator[str]:
        """Yield a sentence for each number of these warp roles that is out of bounds, such as a count below 1."""
        own = [*extents_rule("body.consumer_tile", self.consumer_tile)]
        yield from own
        if not own and min(plan.cta_tile) > 0 and any(map(gt, self.consumer_tile, plan.cta_tile)):
            yield f"body.consumer_tile = {self.consumer_tile!r}; it is larger than the CTA tile, {plan.cta_tile!r}."
        yield from count_rule("body.stages", self.stages, most=MOST_STAGES)
        for name in ("consumers", "consumer_warps"):
            yield from count_rule(f"body.{name}", getattr(self, name), most=MAX_THREADS_PER_BLOCK // WARP_THREADS)
        yield from count_rule("body.stagger_cycles", self.stagger_cycles, 0, _MOST_CYCLES)

    def needs(self, plan: GemmPlan) -> Iterator[str]:
        """Yield a sentence if the plan does not have the store or the roles that these warp roles need."""
        if self.overlapped and not plan.store.stored_by_tma:
            yield (
                "an overlapped epilogue stores D through epilogue stages by TMA. Use store = 'tma', or leave "
                "overlapped out."
            )
        names = [f"consumer {i}" for i in range(min(self.consumers, len(plan.roles)))]
        expected = names if self.kind == "single" else ["producer", *names]
        have = [role.name for role in plan.roles]
        if have != expected[: len(have)]:
            yield f"the roles are {', '.join(map(str, have))}; they must be {', '.join(expected)}."


def warp_roles(plan: GemmPlan) -> WarpRoles:
    """Return the warp roles (producer and consumers) of a plan, or raise an error if it has none.

    raises   UnsupportedError if all threads of the plan follow one schedule instead
    """
    if not isinstance(plan.body, WarpRoles):
        raise UnsupportedError(
            f"plan {plan.name!r}: all threads follow a thread schedule, so it does not have warp roles."
        )
    return plan.body


def mma_of_columns(mma: TiledMma, columns: int) -> TiledMma:
    """Return a tiled MMA with the same threads and rows for a tile with another number of columns.

    mma       tiled MMA of one or several consumers
    columns   columns of the tile
    """
    a = mma.atom
    if not a.is_of_warpgroup:  # of half a warp's columns, an atom after the other
        atom_n = a.shape_mnk[1]
        along_n = Layout((atom_n, columns // atom_n), (1, atom_n))
        return TiledMma(a, permutation_mnk=(mma.permutation_mnk[0], along_n, None))
    atom = wgmma(a.a_dtype, columns, a.a_major, a.b_major, a.a_source, a.c_dtype, a.b_dtype)
    return TiledMma(atom, mma.atom_layout_mnk, (mma.permutation_mnk[0], None, None))
