"""Plans whose roles differ: a ring of stages that TMA fills and consumers empty, and slots that D leaves through."""

from __future__ import annotations

from dataclasses import dataclass

from cutegemm.layout.inttuple import product
from cutegemm.machine.arch import ACCESS_BITS, WARP_THREADS, WARPGROUP_THREADS
from cutegemm.plan.work.gpcs import GpcOrder
from cutegemm.tile.tiled_copy import TiledCopy
from cutegemm.tile.tma import TmaBox

PIPELINE_KINDS = ("pingpong", "cooperative", "single")


@dataclass(frozen=True)
class Pipeline:
    """The roles of a plan: who fills the ring of stages in shared memory, and who works on which tile of D.

    kind             pingpong: the consumers take the tiles of a CTA in turn, so that one multiplies while
                     another stores. cooperative: they share each tile. single: there is no producer; a lane of
                     the consumers asks for a k-tile ahead between their products
    stages           of the ring, a k-tile each
    consumers        that multiply: warpgroups for wgmma, warps for mma.sync
    consumer_tile    (M, N) of D that one of them sums up at a time
    ctas             of a persistent grid, which take tile after tile; None: one for each tile of D
    two_level        the sums of each k-tile are added to those before it by the threads: wgmma keeps about 14
                     bits of the sums of fp8 products (DeepSeek-V3 technical report, 3.3.2)
    stagger_cycles   cooperative: by which each consumer begins later than the one before it, so that not all
                     of them store at once
    deferred         cooperative: a consumer converts its sums, goes on to its next tile, and stores them subtile by
                     subtile behind the products of its first k-tiles
    consumer_warps   of a consumer: 4 of a warpgroup, or 1
    gpcs             the order in which clusters of a persistent grid take tiles; None: that of their launch
    k_ctas           CTAs of a cluster along N that share K: each multiplies the columns of all of them, by its part of
                     the k-tiles, and has the sums of its own columns from all; see `sums.exchanged`
    """

    kind: str
    stages: int
    consumers: int
    consumer_tile: tuple[int, int]
    ctas: int | None = None
    stagger_cycles: int = 0
    two_level: bool = False
    deferred: bool = False
    consumer_warps: int = WARPGROUP_THREADS // WARP_THREADS
    gpcs: GpcOrder | None = None
    k_ctas: int = 1

    @property
    def turns(self) -> int:
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
class Slots:
    """How the sums of a consumer leave through shared memory, subtile by subtile.

    subtile       (M, N) of D that a slot holds
    count         of each consumer; a subtile is written while the stores of others are under way
    to_shared     registers to a slot
    store         to global memory: a slot, or a warp's rows of it, by TMA; or a slot by the consumer's threads, as
                  much at a time as D is aligned to
    from_shared   a slot to registers, where C comes by TMA
    load_c        C to the slot that D will leave from. Without it the threads read C, if it is read, straight
                  from global memory
    """

    subtile: tuple[int, int]
    count: int
    to_shared: TiledCopy
    store: TmaBox | TiledCopy
    from_shared: TiledCopy | None = None
    load_c: TmaBox | None = None

    @property
    def turned(self) -> bool:
        """Whether the consumer's threads store lines by less than 16 bytes, each turned by where it lies in D.

        Lanes of a run take neighbours of a line, and the run after it those that follow. A run's neighbours begin where
        their address is a multiple of their own bytes: what the first lanes lack for that, they take from the end of
        the line. So a line of D that begins anywhere has two sectors that are filled in part, not two for each run.
        """
        return isinstance(self.store, TiledCopy) and self.store.atom.bits < ACCESS_BITS

    def subtiles(self, consumer_tile: tuple[int, int]) -> tuple[int, int]:
        """How many there are in a consumer's tile along M and N."""
        return consumer_tile[0] // self.subtile[0], consumer_tile[1] // self.subtile[1]

    def subtile_at(self, i: int, consumer_tile: tuple[int, int]) -> tuple[int, int]:
        """The place (m, n) of the i-th subtile in a consumer's tile, counted in subtiles: along N first."""
        across = self.subtiles(consumer_tile)[1]
        return i // across, i % across

    def leave_over(self, consumer_tile: tuple[int, int]) -> bool:
        """Whether they do not divide the subtiles of a tile: the next one begins with slots that this one ends with."""
        return self.count > 0 and product(self.subtiles(consumer_tile)) % self.count > 0

    def slot_at(self, i: int) -> tuple[int, int]:
        """The slot of the i-th subtile of a tile, and how often the slot has been used for the tile before."""
        return i % self.count, i // self.count
