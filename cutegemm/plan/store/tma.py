"""Store D through epilogue stages by TMA."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from cutegemm.layout.inttuple import product
from cutegemm.plan.access import Move
from cutegemm.plan.problem import D_INDEX, Operands
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
from cutegemm.tile.tma import TMA_INNER_ALIGNED_BYTES, TmaBox

if TYPE_CHECKING:
    from cutegemm.plan.plan import GemmPlan

MIN_EPI_STAGES = 2  # epilogue stages of a consumer that has several warps, at least


@dataclass(frozen=True)
class TmaStore(StagedStore):
    """Store of D through epilogue stages in shared memory, which TMA stores while the consumer goes on.

    box           TMA box that stores a stage, or a warp's rows of it, to global memory
    load_c        TMA box that loads C to the stage that D is stored from later; None: the threads read C from global
                  memory
    from_shared   tiled copy of C from a stage to registers; None if and only if `load_c` is None
    """

    box: TmaBox
    load_c: TmaBox | None = None
    from_shared: TiledCopy | None = None

    stored_by_tma: ClassVar[bool] = True

    @property
    def to_global(self) -> TmaBox:
        """Return the TMA box that stores an epilogue stage, or a warp's rows of it, to global memory."""
        return self.box

    @property
    def fetched(self) -> TmaBox | None:
        """Return the TMA box that loads C, or another M x N operand, to the epilogue stages; None if TMA loads none."""
        return self.load_c

    @property
    def boxes(self) -> tuple[tuple[str, TmaBox], ...]:
        """Return the TMA boxes of D and, if TMA loads it, of C or another M x N operand."""
        return (("D", self.box), *((("C", self.load_c),) if self.load_c else ()))

    def to_adjacent_rows(self, operands: Operands) -> TmaStore:
        """Return this store for a batch of equal groups: its boxes have many rows and are stored, not added."""
        if not operands.scattered:
            return self
        box = (self.box.box[0], self.epi_tile["nm".index(operands.d.major)])
        return replace(self, box=replace(self.box, direction="store", box=box))

    def moves(self, operands: Operands) -> tuple[Move, ...]:
        """Return the copies that threads make: D from registers to an epilogue stage, C from a stage to registers.

        operands   operands of the plan, with the types of C and D
        """
        return (*super().moves(operands), Move("store.from_shared", self.from_shared, operands.c.dtype, "shared"))

    @property
    def fetched_bytes(self) -> int:
        """Return the number of bytes of C that TMA loads to an epilogue stage; 0 if it does not load C."""
        return 0 if self.load_c is None else product(self.epi_tile) * self.load_c.dtype.bits // 8

    def stores_rows(self, plan: GemmPlan) -> bool:
        """Return whether each warp stores its own rows of an epilogue stage by TMA; else one warp stores the stage.

        Each warp does if a TMA box has fewer rows than an epilogue tile, or if a consumer is a single warp.
        """
        rows = self.box.box[1] if plan.operands.d.major == "n" else self.epi_tile[0]
        return plan.consumer_warps == 1 or rows < self.epi_tile[0]

    def least_count(self, plan: GemmPlan) -> int:
        """Return the smallest number of epilogue stages that a consumer needs: one is written while another is stored.

        A single warp waits for its own stores, so one stage is enough.
        """
        return MIN_EPI_STAGES if plan.consumer_warps > 1 else 1

    def may_have_remainder(self, plan: GemmPlan) -> bool:
        """Return whether the number of epilogue stages may be one that does not divide the number of epilogue tiles.

        A tile then starts on stages whose stores may still run, and waits for them. This is allowed if only D is
        stored, and only after the MMAs of the tile.
        """
        return self.load_c is None and len(plan.epi_stage_results) == 1 and not plan.body.overlapped

    def rules(self, plan: GemmPlan) -> Iterator[str]:
        """Yield a sentence for each rule on epilogue stages, stores of D and loads of C that the plan breaks."""
        yield from super().rules(plan)
        d, load_c, (rows, cols) = plan.operands.d, self.load_c, self.epi_tile
        if d.align_bytes < TMA_INNER_ALIGNED_BYTES:
            yield (
                f"D is aligned to {d.align_bytes} bytes; a TMA store needs {TMA_INNER_ALIGNED_BYTES} for the "
                "address, the strides and the contiguous extent. Use shared_d = 'padded', or store = 'direct'."
            )
        whole = rows if d.major == "n" else cols
        if not plan.operands.scattered and self.box.box[1] < whole and (d.major == "m" or load_c is not None):
            yield "store = 'tma_warp' needs an n-major D, and no C that is loaded by TMA. Use store = 'tma'."
        fetched = plan.operands.matrix(plan.fetched_tile or "c")
        if load_c is not None and fetched.align_bytes < TMA_INNER_ALIGNED_BYTES:
            name, have = plan.fetched_tile.upper(), fetched.align_bytes
            yield f"{name} is aligned to {have} bytes; a TMA load needs {TMA_INNER_ALIGNED_BYTES}. Align it."
        if load_c is not None and (fetched.dtype, fetched.major) != (load_c.dtype, d.major):
            yield (
                f"{plan.fetched_tile} is {fetched.dtype} {fetched.major}-major; it must be {load_c.dtype} "
                f"{d.major}-major like the epilogue stages that it is loaded into."
            )
        reads_c = self.from_shared is not None
        if (load_c is not None) != reads_c or (load_c is not None and not plan.epilogue.tiles):
            yield (
                "the store must say both how C is loaded (fetched) and how it is read (from_shared), and only if the "
                "epilogue reads C."
            )

    def prologue(self, plan: GemmPlan) -> Steps:
        """Return the program steps that load the first epilogue tiles of C by TMA; () if TMA does not load C.

        They first wait until earlier stores have read these epilogue stages.
        """
        return () if self.load_c is None else (If(TILES_ARE_READ, (WaitStores(0, ALL), LoadEpiTile())),)

    def first_wait(self, plan: GemmPlan) -> Steps:
        """Return the program steps that wait for earlier stores before the first epilogue tile; () for none.

        A wait is needed only if the number of epilogue stages does not divide that of the epilogue tiles: then the tile
        starts with stages that the previous tile has just stored from. These stores have usually read the stages during
        the MMAs, except if a tile has few k-tiles.
        """
        if not self.has_remainder(plan.consumer_d_tile):
            return ()
        if self.stores_rows(plan):
            return (WaitStores(0, EACH_WARP),)
        return WaitStores(0, FIRST_WARP), SyncEpiTile()

    def epi_tile_steps(self, plan: GemmPlan) -> Steps:
        """Return the program steps that store one epilogue tile through its epilogue stage by TMA.

        They include a wait for earlier stores of the stages, as late as possible, so that conversion and shared-memory
        writes overlap it:

        - If TMA loads C, the wait comes right after the store, because the load of a later epilogue tile follows it.
        - If each warp stores its own rows, it waits for its own stores before it writes.
        """
        fetches, body = self.load_c is not None, list[Step]()
        index = D_INDEX if plan.operands.scattered else ""
        for name in plan.epi_stage_results:
            if self.stores_rows(plan):
                wait = WaitStores(self.count - 1, EACH_WARP)
                body += [wait, WriteEpiStage(name), StoreEpiStage(EACH_WARP, result=name, index=index)]
            else:
                before = [] if fetches else [WaitStores(self.count - 2, FIRST_WARP)]
                stored = StoreEpiStage(FIRST_WARP, result=name, index=index)
                body += [WriteEpiStage(name), *before, SyncEpiTile(), stored]
        if fetches:
            body.append(If(IS_FIRST_WARP, (WaitStores(self.count - 2, ALL), LoadEpiTile(ahead=2))))
        return tuple(body)

    def epilogue(self, plan: GemmPlan) -> Steps:
        """Return the program step after a consumer's last tile: wait for its TMA stores, which read shared memory."""
        return (WaitStores(0, ALL),)

    def read_fetched(self, expansion: Expansion, at: State, i: int) -> Iterator[Op]:
        """Yield the simulated operations that wait for an epilogue tile of C, and read it from its epilogue stage.

        expansion   the symbolic execution of the warp role's program
        at          position of the role in its program
        i           index of the epilogue tile
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
