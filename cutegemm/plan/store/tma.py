"""Store D through epilogue stages by TMA."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from cutegemm.layout.inttuple import product
from cutegemm.plan.program import operations as op
from cutegemm.plan.program.expand import Expansion, State
from cutegemm.plan.program.operations import Op
from cutegemm.plan.program.steps import (
    ALL,
    EACH_WARP,
    FIRST_WARP,
    IS_FIRST_WARP,
    TILES_ARE_READ,
    If,
    LoadEpiTile,
    Step,
    StoreEpiStage,
    SyncEpiTile,
    WaitStores,
    WriteEpiStage,
)
from cutegemm.plan.store.base import Steps
from cutegemm.plan.store.staged import StagedStore, epi_stage_of
from cutegemm.tile.tiled_copy import TiledCopy
from cutegemm.tile.tma import TmaBox

if TYPE_CHECKING:
    from cutegemm.plan.plan import GemmPlan


@dataclass(frozen=True)
class TmaStore(StagedStore):
    """TMA stores the epilogue stages, while the consumer goes on.

    box           stores a stage, or a warp's rows of it, to global memory
    load_c        loads C to the stage that D is stored from later; None: the threads read C from global memory
    from_shared   copies C from a stage to registers; None exactly if `load_c` is
    """

    box: TmaBox
    load_c: TmaBox | None = None
    from_shared: TiledCopy | None = None

    stored_by_tma: ClassVar[bool] = True

    @property
    def to_global(self) -> TmaBox:
        """Return the TMA box that stores an epilogue stage, or a warp's rows of it."""
        return self.box

    @property
    def fetched(self) -> TmaBox | None:
        """Return the TMA box that loads C, or another M x N operand, to the epilogue stages; None if none does."""
        return self.load_c

    @property
    def fetched_bytes(self) -> int:
        """Return the number of bytes of an epilogue tile of C that TMA loads to an epilogue stage; 0 if it does not."""
        return 0 if self.load_c is None else product(self.epi_tile) * self.load_c.dtype.bits // 8

    def stores_rows(self, plan: GemmPlan) -> bool:
        """Return whether each warp stores its own rows of an epilogue stage.

        It does if a TMA box has fewer rows than an epilogue tile, or if a consumer is a single warp.
        """
        rows = self.box.box[1] if plan.operands.d.major == "n" else self.epi_tile[0]
        return plan.consumer_warps == 1 or rows < self.epi_tile[0]

    def prologue(self, plan: GemmPlan) -> Steps:
        """Return the steps that load the first epilogue tiles of C, after stores have read these epilogue stages."""
        return () if self.load_c is None else (If(TILES_ARE_READ, (WaitStores(0, ALL), LoadEpiTile())),)

    def first_wait(self, plan: GemmPlan) -> Steps:
        """Return the steps that wait for earlier stores before the first epilogue tile; () if no wait is needed.

        It is needed only if the number of epilogue stages does not divide the number of epilogue tiles. The tile then
        starts with the stages that the tile before ended with. Their stores have usually read them during the MMAs,
        except for a tile of few k-tiles.
        """
        if not self.has_remainder(plan.consumer_d_tile):
            return ()
        if self.stores_rows(plan):
            return (WaitStores(0, EACH_WARP),)
        return WaitStores(0, FIRST_WARP), SyncEpiTile()

    def epi_tile_steps(self, plan: GemmPlan) -> Steps:
        """Return the steps that store the values of an epilogue tile through its epilogue stage.

        The wait for earlier stores comes as late as possible, so that conversion and shared-memory writes overlap it:

        - If TMA loads C, the wait comes right after the store, because the load of a later epilogue tile follows it.
        - If each warp stores its own rows, it waits for its own stores before it writes.
        """
        fetches, body = self.load_c is not None, list[Step]()
        for name in plan.epi_stage_results:
            if self.stores_rows(plan):
                wait = WaitStores(self.count - 1, EACH_WARP)
                body += [wait, WriteEpiStage(name), StoreEpiStage(EACH_WARP, result=name)]
            else:
                before = [] if fetches else [WaitStores(self.count - 2, FIRST_WARP)]
                body += [WriteEpiStage(name), *before, SyncEpiTile(), StoreEpiStage(FIRST_WARP, result=name)]
        if fetches:
            body.append(If(IS_FIRST_WARP, (WaitStores(self.count - 2, ALL), LoadEpiTile(ahead=2))))
        return tuple(body)

    def epilogue(self, plan: GemmPlan) -> Steps:
        """Return the wait for all stores after the last tile: they still read epilogue stages of this CTA."""
        return (WaitStores(0, ALL),)

    def read_fetched(self, expansion: Expansion, at: State, i: int) -> Iterator[Op]:
        """Yield the operations that wait until TMA has loaded an epilogue tile of C, and read it.

        at   position of the role in its program
        i    index of the epilogue tile
        """
        epi_stage, _ = epi_stage_of(expansion, i)
        yield op.Wait("c", epi_stage, self.epi_stage_at(i)[1] & 1, flipped=True)
        yield op.ReadEpiStage(epi_stage, expansion.place.warp, (at.number, i))


@Expansion.handles(LoadEpiTile)
def _load_epi_tile(expansion: Expansion, load: LoadEpiTile, at: State, i: int) -> Iterator[Op]:
    store, epi_tiles = expansion.plan.store, expansion.epi_tiles
    if not expansion.reads_c or not isinstance(store, TmaStore):
        return
    which = range(min(store.count, epi_tiles)) if load.ahead is None else (i + load.ahead,)
    for epi_tile in which:
        if load.ahead is None or store.count <= epi_tile < epi_tiles:
            epi_stage, pieces = epi_stage_of(expansion, epi_tile)
            yield op.Expect("c", epi_stage, store.fetched_bytes)
            yield op.LoadEpiStage("c", epi_stage, epi_stage, pieces, (at.number, epi_tile), store.fetched_bytes)
