"""Plans whose roles differ: a ring of stages that TMA fills and consumers empty, and epilogue stages that D leaves
through."""

from __future__ import annotations

from dataclasses import dataclass

from cutegemm.layout.inttuple import product
from cutegemm.machine.arch import ACCESS_BITS, WARP_THREADS, WARPGROUP_THREADS
from cutegemm.plan.work.gpcs import GpcRaster
from cutegemm.tile.tiled_copy import TiledCopy
from cutegemm.tile.tma import TmaBox

WARP_ROLES_KINDS = ("pingpong", "cooperative", "single")


@dataclass(frozen=True)
class WarpRoles:
    """The roles of a plan: who fills the ring of stages in shared memory, and who works on which tile of D.

    kind             pingpong: the consumers take the tiles of a CTA in turn, so that one multiplies while another
                     stores. cooperative: they share each tile. single: there is no producer; a lane of the consumers
                     asks for a k-tile ahead between their products
    stages           of the ring, a k-tile each
    consumers        that multiply: warpgroups for wgmma, warps for mma.sync
    consumer_tile    (M, N) of D that one of them sums up at a time
    ctas             of a persistent grid, which take tile after tile; None: one for each tile of D
    promoted         the sums of each k-tile are added to those before it by the threads: wgmma keeps about 14 bits of
                     the sums of fp8 products (DeepSeek-V3 technical report, 3.3.2)
    stagger_cycles   cooperative: by which each consumer begins later than the one before it, so that not all of them
                     store at once
    overlapped       cooperative: a consumer converts its sums, goes on to its next tile, and stores them epilogue tile
                     by epilogue tile behind the products of its first k-tiles
    consumer_warps   of a consumer: 4 of a warpgroup, or 1
    gpc_raster       the order in which clusters of a persistent grid take tiles; None: that of their launch
    cluster_k        CTAs of a cluster along N that share K: each multiplies the columns of all of them, by its part of
                     the k-tiles, and has the sums of its own columns from all; see `accumulators.exchanged`
    """

    kind: str
    stages: int
    consumers: int
    consumer_tile: tuple[int, int]
    ctas: int | None = None
    stagger_cycles: int = 0
    promoted: bool = False
    overlapped: bool = False
    consumer_warps: int = WARPGROUP_THREADS // WARP_THREADS
    gpc_raster: GpcRaster | None = None
    cluster_k: int = 1

    @property
    def tiles_in_flight(self) -> int:
        """Tiles of a CTA that are in work at once."""
        return self.consumers if self.kind == "pingpong" else 1

    @property
    def readers(self) -> int:
        """Consumers that read each k-tile."""
        return 1 if self.kind == "pingpong" else self.consumers

    @property
    def consumer_threads(self) -> int:
        """Threads of a consumer."""
        return WARP_THREADS * self.consumer_warps


@dataclass(frozen=True)
class EpiStages:
    """How the sums of a consumer leave through shared memory, epilogue tile by epilogue tile.

    epi_tile      (M, N) of D that an epilogue stage holds
    count         of each consumer; an epilogue tile is written while the stores of others are under way
    to_shared     registers to an epilogue stage
    store         to global memory: an epilogue stage, or a warp's rows of it, by TMA; or an epilogue stage by the
                  consumer's threads, as much at a time as D is aligned to
    from_shared   an epilogue stage to registers, where C comes by TMA
    load_c        C to the epilogue stage that D will leave from. Without it the threads read C, if it is read, straight
                  from global memory
    """

    epi_tile: tuple[int, int]
    count: int
    to_shared: TiledCopy
    store: TmaBox | TiledCopy
    from_shared: TiledCopy | None = None
    load_c: TmaBox | None = None

    @property
    def rotates_lines(self) -> bool:
        """Whether the consumer's threads store lines by less than 16 bytes, each turned by where it lies in D.

        Lanes of a run take neighbours of a line, and the run after it those that follow. A run's neighbours begin where
        their address is a multiple of their own bytes: what the first lanes lack for that, they take from the end of
        the line. So a line of D that begins anywhere has two sectors that are filled in part, not two for each run.
        """
        return isinstance(self.store, TiledCopy) and self.store.atom.bits < ACCESS_BITS

    def epi_tiles(self, consumer_tile: tuple[int, int]) -> tuple[int, int]:
        """How many there are in a consumer's tile along M and N."""
        return consumer_tile[0] // self.epi_tile[0], consumer_tile[1] // self.epi_tile[1]

    def epi_tile_at(self, i: int, consumer_tile: tuple[int, int]) -> tuple[int, int]:
        """The place (m, n) of the i-th epilogue tile in a consumer's tile, counted in epilogue tiles: along N first."""
        across = self.epi_tiles(consumer_tile)[1]
        return i // across, i % across

    def has_remainder(self, consumer_tile: tuple[int, int]) -> bool:
        """Whether they do not divide the epilogue tiles of a tile: the next one begins with epilogue stages that this
        one ends with."""
        return self.count > 0 and product(self.epi_tiles(consumer_tile)) % self.count > 0

    def epi_stage_at(self, i: int) -> tuple[int, int]:
        """The epilogue stage of the i-th epilogue tile of a tile, and how often the epilogue stage has been used for
        the tile before."""
        return i % self.count, i // self.count
