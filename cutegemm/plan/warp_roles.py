"""Warp-specialized roles of a plan, and the epilogue stages that D is stored through.

A producer loads k-tiles to the stages of the mainloop pipeline by TMA; consumers multiply and store.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from cutegemm.errors import UnsupportedError
from cutegemm.layout.inttuple import product
from cutegemm.machine.arch import ACCESS_BITS, WARP_THREADS, WARPGROUP_THREADS
from cutegemm.plan.mainloop.base import Mainloop
from cutegemm.plan.work.gpcs import GpcRaster
from cutegemm.tile.tiled_copy import TiledCopy
from cutegemm.tile.tma import TmaBox

if TYPE_CHECKING:
    from cutegemm.plan.plan import GemmPlan

WARP_ROLES_KINDS = ("pingpong", "cooperative", "single")


@dataclass(frozen=True)
class WarpRoles:
    """The warp-specialized roles of a plan: how many stages there are, and which consumer computes which tile of D.

    kind             "pingpong": the consumers alternate in taking the tiles of a CTA; one multiplies while another
                     stores. "cooperative": they share each tile. "single": no producer; a lane of the consumers loads
                     k-tiles ahead, between their MMAs
    stages           k-tiles in shared memory at a time
    consumers        number of consumers: warpgroups for wgmma, warps for mma.sync
    consumer_tile    (M, N) of D that a consumer computes at a time
    mainloop         how a consumer multiplies the k-tiles of a work tile
    stagger_cycles   cooperative: clock cycles that each consumer waits after the start of the one before, so that they
                     do not all store at the same time
    overlapped       cooperative: a consumer keeps its finished tile in registers, starts the next one, and stores an
                     epilogue tile after the MMAs of each of its first k-tiles
    consumer_warps   warps of a consumer: 4, a warpgroup, or 1
    gpc_raster       the order in which clusters of a persistent grid take tiles; None: the order of their launch
    cluster_k        CTAs of a cluster along N that split K. Each multiplies the columns of all of them by some of the
                     k-tiles, and receives the accumulators of its own columns from all; see `reduction.exchanged`
    """

    kind: str
    stages: int
    consumers: int
    consumer_tile: tuple[int, int]
    mainloop: Mainloop
    stagger_cycles: int = 0
    overlapped: bool = False
    consumer_warps: int = WARPGROUP_THREADS // WARP_THREADS
    gpc_raster: GpcRaster | None = None
    cluster_k: int = 1

    has_roles: ClassVar[bool] = True

    def tile_of_consumer(self, cta_tile: tuple[int, int, int]) -> tuple[int, int]:
        """Return (rows, columns) of D that a consumer computes at a time.

        cta_tile   (bM, bN, bK); not used here, but by the same method of `ThreadSchedule`
        """
        return self.consumer_tile

    def fragment_buffers(self, mma_order: str) -> tuple[int, int]:
        """Return the number of k-blocks whose fragments of A and of B a thread holds.

        mma_order   "m" or "n": the outer mode of the MMAs of a k-block. Its fragments are read again as soon as they
                    have been multiplied; those of the inner mode are read one k-block ahead
        """
        return (1, 2) if mma_order == "m" else (2, 1)

    @property
    def promoted(self) -> bool:
        """Return whether threads add the accumulators of each k-tile to a total in f32."""
        return self.mainloop.promoted

    @property
    def tiles_in_flight(self) -> int:
        """Return the number of tiles that a CTA works on at once: one for each pingpong consumer, else one."""
        return self.consumers if self.kind == "pingpong" else 1

    @property
    def readers(self) -> int:
        """Return the number of consumers that read each k-tile: those that share a tile of D."""
        return 1 if self.kind == "pingpong" else self.consumers

    @property
    def consumer_threads(self) -> int:
        """Return the number of threads of a consumer."""
        return WARP_THREADS * self.consumer_warps


def warp_roles(plan: GemmPlan) -> WarpRoles:
    """Return the warp roles of a plan that has them.

    raises   UnsupportedError if all threads of the plan follow one schedule
    """
    if not isinstance(plan.body, WarpRoles):
        raise UnsupportedError(
            f"plan {plan.name!r}: all threads follow a thread schedule, so it does not have warp roles."
        )
    return plan.body


@dataclass(frozen=True)
class EpiStages:
    """The epilogue stages of a consumer: shared memory that D is stored through, one epilogue tile at a time.

    epi_tile      (M, N) of D that a stage holds
    count         stages of each consumer. One epilogue tile is written while the stores of others are running
    to_shared     copies registers to a stage
    store         stores a stage, or a warp's rows of it, to global memory by TMA; or, as a tiled copy, by the threads
                  of the consumer, in accesses as wide as D is aligned
    from_shared   copies a stage to registers, if TMA loads C to it
    load_c        loads C to the stage that D is stored from later; None: the threads read C from global memory
    """

    epi_tile: tuple[int, int]
    count: int
    to_shared: TiledCopy
    store: TmaBox | TiledCopy
    from_shared: TiledCopy | None = None
    load_c: TmaBox | None = None

    @property
    def rotates_lines(self) -> bool:
        """Return whether threads store lines of D in accesses of less than 16 bytes, rotated by their address in D.

        The lanes of a run take neighbours of a line. A run starts where its address is a multiple of its size in bytes;
        elements before the first such address are stored by the lanes at the end of the line. So a line of D that
        starts at any address has two sectors that are written in part, not two for each run.
        """
        return isinstance(self.store, TiledCopy) and self.store.atom.bits < ACCESS_BITS

    def epi_tiles(self, consumer_tile: tuple[int, int]) -> tuple[int, int]:
        """Return the number of epilogue tiles of a consumer's tile along M and N."""
        return consumer_tile[0] // self.epi_tile[0], consumer_tile[1] // self.epi_tile[1]

    def epi_tile_at(self, i: int, consumer_tile: tuple[int, int]) -> tuple[int, int]:
        """Return the place (m, n) of the i-th epilogue tile in a consumer's tile, in epilogue tiles, along N first.

        i               index of the epilogue tile in the order of the stores
        consumer_tile   (rows, columns) of the consumer's tile
        """
        across = self.epi_tiles(consumer_tile)[1]
        return i // across, i % across

    def has_remainder(self, consumer_tile: tuple[int, int]) -> bool:
        """Return whether the number of epilogue stages does not divide that of epilogue tiles of a consumer's tile.

        The next tile then starts with another stage than this one.
        """
        return self.count > 0 and product(self.epi_tiles(consumer_tile)) % self.count > 0

    def epi_stage_at(self, i: int) -> tuple[int, int]:
        """Return (index of the stage of an epilogue tile, how often the tile of D has used that stage before).

        i   index of the epilogue tile in the order of the stores
        """
        return i % self.count, i // self.count
