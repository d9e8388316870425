"""Store D through epilogue stages: shared memory for one epilogue tile each, while others are still being stored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from cutegemm.errors import UnsupportedError
from cutegemm.layout import Layout, product_each
from cutegemm.layout.inttuple import product
from cutegemm.plan.access import Move
from cutegemm.plan.problem import Operands
from cutegemm.plan.program import operations as op
from cutegemm.plan.program.expand import Expansion, State
from cutegemm.plan.program.operations import KEPT, Op
from cutegemm.plan.program.steps import (
    ALL,
    EACH_WARP,
    FIRST_WARP,
    HEAD,
    TAIL,
    Evaluate,
    ForEpiTiles,
    OverlappedEpiTile,
    Reduce,
    StoreAux,
    StoreEpiStage,
    WaitStores,
    WriteEpiStage,
)
from cutegemm.plan.rows import Row, copy_row
from cutegemm.plan.rules.bounds import MOST_STAGES, count_rule, extents_rule
from cutegemm.plan.shared import SharedLayout
from cutegemm.plan.store.base import Steps, Store
from cutegemm.plan.store.quantized import quantize_steps
from cutegemm.tile.atoms import CopyAtom
from cutegemm.tile.tiled_copy import TiledCopy
from cutegemm.tile.tma import TmaBox

if TYPE_CHECKING:
    from cutegemm.plan.plan import GemmPlan


@dataclass(frozen=True)
class StagedStore(Store):
    """Store of D through epilogue stages: consumers write one epilogue tile after the other to shared memory.

    From there TMA or threads copy it to global memory: see the subclasses.

    epi_tile    (M, N) of D that a stage holds
    count       number of stages of each consumer. One epilogue tile is written while the stores of others are running
    to_shared   tiled copy from registers to a stage
    smem        layout (rows, columns, stages, consumers) of all epilogue stages in shared memory
    """

    epi_tile: tuple[int, int]
    count: int
    to_shared: TiledCopy
    smem: SharedLayout

    reads_ahead: ClassVar[bool] = True

    @property
    def atom(self) -> CopyAtom:
        """Return the copy atom that writes D from registers to an epilogue stage in shared memory."""
        return self.to_shared.atom

    @property
    def stage_copy(self) -> TiledCopy:
        """Return the tiled copy of D from registers to an epilogue stage in shared memory."""
        return self.to_shared

    @property
    def to_global(self) -> TmaBox | TiledCopy:
        """Return the copy of an epilogue stage to global memory: a TMA box, or a copy by threads."""
        raise NotImplementedError

    @property
    def options(self) -> Mapping[str, int]:
        """Return the options of a plan's builder that describe these epilogue stages: name -> number."""
        return {"epi_tile_n": self.epi_tile[1], "epi_stages": self.count}

    @property
    def layout(self) -> SharedLayout:
        """Return the layout of all epilogue stages in shared memory: (rows, columns, stages, consumers)."""
        return self.smem

    def tile(self, plan: GemmPlan) -> tuple[int, int]:
        """Return (M, N) of an epilogue tile: the piece of D that passes through shared memory at a time."""
        return self.epi_tile

    def smem_extents(self, plan: GemmPlan) -> tuple[int, ...]:
        """Return the extents that the shared memory of D must have: (M, N, epilogue stages, consumers)."""
        return (*self.epi_tile, self.count, plan.body.consumers)

    def moves(self, operands: Operands) -> tuple[Move, ...]:
        """Return the copy of D that threads make: from registers to an epilogue stage.

        operands   operands of the plan, with the type of D
        """
        return (Move("store.to_shared", self.to_shared, operands.d.dtype, "register", "shared"),)

    def epi_tiles(self, consumer_tile: tuple[int, int]) -> tuple[int, int]:
        """Return the number of epilogue tiles of a consumer's tile: (along M, along N).

        consumer_tile   (rows, columns) of the consumer's tile
        """
        return consumer_tile[0] // self.epi_tile[0], consumer_tile[1] // self.epi_tile[1]

    def epi_tile_at(self, i: int, consumer_tile: tuple[int, int]) -> tuple[int, int]:
        """Return the coordinates (m, n) of the i-th epilogue tile in a consumer's tile, counted in epilogue tiles.

        i               index of the epilogue tile in the order of the stores, along N first
        consumer_tile   (rows, columns) of the consumer's tile
        """
        across = self.epi_tiles(consumer_tile)[1]
        return i // across, i % across

    def has_remainder(self, consumer_tile: tuple[int, int]) -> bool:
        """Return whether the number of epilogue stages does not divide the number of a tile's epilogue tiles.

        The next tile then starts with another stage than this one.

        consumer_tile   (rows, columns) of the consumer's tile
        """
        return self.count > 0 and product(self.epi_tiles(consumer_tile)) % self.count > 0

    def epi_stage_at(self, i: int) -> tuple[int, int]:
        """Return the epilogue stage that epilogue tile `i` uses, and how many earlier ones of the same tile used it.

        Stages are used in turn. E.g. with 4 stages, epilogue tile 5 uses stage 1, which epilogue tile 1 has used
        before: (1, 1).

        i   index of the epilogue tile in the order of the stores
        """
        return i % self.count, i // self.count

    def results(self, plan: GemmPlan) -> tuple[str, ...]:
        """Return the names of the results that are stored through epilogue stages (shared memory); "d" is the last.

        Each result of an epilogue tile takes a stage of its own. An auxiliary output is stored from registers instead
        in these cases: its type or majorness is not that of D, TMA loads an M x N operand, the epilogue is overlapped,
        or the epilogue stages do not divide the epilogue tiles.
        """
        if plan.fetched_tile or plan.body.overlapped or self.has_remainder(plan.consumer_d_tile):
            return ("d",)
        d, alike = plan.operands.d, []
        for name in plan.epilogue.outputs[1:]:
            operand = plan.operands.matrix(name)
            if (operand.dtype, operand.major) == (d.dtype, d.major) and operand.align_bytes >= d.align_bytes:
                alike.append(name)
        return (*alike, "d")

    def epi_tile_count(self, plan: GemmPlan) -> int:
        """Return the number of epilogue tiles of a consumer's tile of D."""
        return product(self.epi_tiles(plan.consumer_d_tile))

    def pieces(self, plan: GemmPlan, elements: int) -> int:
        """Return the number of pieces that a thread divides the epilogue of a tile into: here its epilogue tiles.

        elements   number of elements of D that the thread has; not used here
        """
        return self.epi_tile_count(plan)

    def atoms_at_once(self, plan: GemmPlan) -> tuple[int, int]:
        """Return how many MMA atoms a warp writes to an epilogue stage at once: (along M, along N).

        "At once" is one instruction, or several that write the same cache lines of shared memory. The plan must have
        single warps as consumers.
        """
        atom, tile = plan.tiled_mma.atom.shape_mnk, self.to_shared.tiler_mn
        return int(tile[0]) // atom[0], int(tile[1]) // atom[1]

    def accumulator_order(self, plan: GemmPlan, shape: tuple[int, int, int]) -> Layout:
        """Return the layout from an accumulator's coordinates (value, MMA_M, MMA_N) to the index of its register.

        Registers are ordered like the stores: if a consumer is a single warp, those of one epilogue tile are adjacent.

        shape   (values of an atom, atoms along M, atoms along N) of a thread
        """
        if plan.consumer_warps > 1:
            return Layout(shape)
        values, (m, n) = shape[0], self.atoms_at_once(plan)
        down, across = shape[1] // m, shape[2] // n
        stride = (1, (values, values * m * n * across), (values * m, values * m * n))
        return Layout((values, (m, down), (n, across)), stride)

    # --- the program of a consumer ------------------------------------------------------------------------------

    def steps(self, plan: GemmPlan) -> Steps:
        """Return the program steps that evaluate a tile's epilogue and store it, one epilogue tile after the other."""
        first = (Evaluate(HEAD), *quantize_steps(plan), *self.first_wait(plan))
        return (*first, ForEpiTiles((*_values(plan), *self.epi_tile_steps(plan))))

    def barriers(self, plan: GemmPlan) -> Mapping[str, int]:
        """Return the mbarriers that this store needs: {"c": n}, one for each epilogue stage that TMA loads C to."""
        return {"c": self.count * plan.body.consumers}

    def rows(self, plan: GemmPlan) -> tuple[Row, ...]:
        """Return the lines of the plan's printed description for the epilogue tiles and their copies."""
        shape, stages = " x ".join(str(e) for e in self.epi_tile), f"{self.count} epilogue stages a consumer"
        out = [
            ("epi_tile", str(self.epi_tile_count(plan)), shape, stages),
            copy_row("D to an epilogue stage", self.to_shared, self.epi_tile),
        ]
        if self.fetched is not None:
            label = "load C" if plan.fetched_tile == "c" else f"load {plan.fetched_tile}"
            out.append(copy_row(label, self.fetched, self.epi_tile))
        elif plan.has_c:
            out.append(("load C", "1", f"{plan.operands.c.dtype.bits} bits", "to registers, in the epilogue"))
        return (*out, copy_row("epilogue stage to D", self.to_global, self.epi_tile))

    def least_count(self, plan: GemmPlan) -> int:
        """Return the smallest number of epilogue stages that each consumer needs: 1 in this store."""
        return 1

    def may_have_remainder(self, plan: GemmPlan) -> bool:
        """Return False: in this store the number of epilogue stages must divide the number of epilogue tiles."""
        return False

    def bounds(self) -> Iterator[str]:
        """Yield a sentence if the extents of an epilogue tile, or the number of epilogue stages, are out of bounds."""
        yield from extents_rule("store.epi_tile", self.epi_tile)
        yield from count_rule("store.count", self.count, most=MOST_STAGES)

    def needs(self, plan: GemmPlan) -> Iterator[str]:
        """Yield a sentence if the plan has no warp roles: this store needs consumers, which write epilogue stages."""
        if not plan.body.has_roles:
            yield (
                "the store has epilogue stages; they need warp roles. Use another store: in a thread schedule all "
                "threads copy D."
            )

    def rules(self, plan: GemmPlan) -> Iterator[str]:
        """Yield a sentence for each rule on the shape and the number of epilogue stages that the plan breaks."""
        (rows, cols), tile, least = self.epi_tile, plan.consumer_d_tile, self.least_count(plan)
        if tile[0] % rows or tile[1] % cols:
            yield f"epilogue tiles of {rows} x {cols} do not divide a consumer's tile of {tile[0]} x {tile[1]}."
        elif self.count < least or (self.has_remainder(tile) and not self.may_have_remainder(plan)):
            epi_tiles = product(self.epi_tiles(tile))
            instead = "" if epi_tiles >= least else " Use a smaller epi_tile_n, or store = 'direct'."
            yield (
                f"epi_stages = {self.count}; it must be at least {least} and divide the {epi_tiles} epilogue "
                f"tiles of {rows} x {cols} of a consumer's tile.{instead}"
            )
        want = self.smem_extents(plan)
        if product_each(self.smem.shape) != want:
            yield (
                f"the shared memory of D is {self.smem}; its extents must be {want}: an epilogue tile, epilogue "
                "stages and consumers."
            )


def _values(plan: GemmPlan) -> Steps:
    """Return the program steps that evaluate the epilogue on one epilogue tile.

    They also store its auxiliary outputs from registers, and fold its values into the reductions.
    """
    epilogue, fetched = plan.epilogue, plan.fetched_tile
    read = tuple([name for name in epilogue.tail.tensors if name != fetched])
    aux = plan.aux_outputs
    values = Evaluate(TAIL, fetched, read)
    stored = (StoreAux(aux),) if aux else ()
    return (values, *stored, *((Reduce(plan.epilogue.reduced),) if plan.epilogue.reduced else ()))


def staged(plan: GemmPlan) -> StagedStore:
    """Return the store of a plan that stores D through epilogue stages, or raise an error.

    raises   UnsupportedError if D is stored in another way
    """
    if not isinstance(plan.store, StagedStore):
        raise UnsupportedError(f"plan {plan.name!r}: D is not stored through epilogue stages.")
    return plan.store


# --- the operations of the steps --------------------------------------------------------------------------------


def epi_stage_of(expansion: Expansion, i: int, result: str = "d") -> tuple[int, tuple[int, ...]]:
    """Return (index of the stage of an epilogue tile, indices of its pieces) for a simulated warp role.

    The stage is numbered among those of all consumers of the CTA. A piece has the rows that one simulated process (a
    consumer, or one of its warps) writes.

    expansion   the symbolic execution of the role's program
    i           index of the epilogue tile
    result      "d", or the name of an auxiliary output
    """
    store = staged(expansion.plan)
    epi_stage, _ = store.epi_stage_at(expansion.plan.epi_stage_number(i, result))
    return expansion.consumer * store.count + epi_stage, tuple(range(expansion.place.warps))


@Expansion.handles(ForEpiTiles)
def _for_epi_tiles(expansion: Expansion, loop: ForEpiTiles, at: State, i: int) -> Iterator[Op]:
    tiles, count, warp = expansion.tiles, expansion.epi_tiles, expansion.place.warp
    if not loop.overlapped:
        for epi_tile in range(count):
            yield from expansion.steps(loop.steps, at, epi_tile)
        yield op.EndTile(expansion.counter(tiles[at.number]), warp)
        if count // staged(expansion.plan).count % 2:
            yield op.FlipPhase()
        return
    held, first = replace(at, number=at.number - 1), min(expansion.k_tiles(at), count)
    body = [o for left in range(first, count) for o in expansion.steps(loop.steps, held, left)]
    ended = [op.EndTile(expansion.counter(tiles[held.number]), warp)] if at.number else []
    yield from expansion.branch(KEPT, [*body, *ended, op.Mark(KEPT, False)])


@Expansion.handles(OverlappedEpiTile)
def _overlapped_epi_tile(expansion: Expansion, loop: OverlappedEpiTile, at: State, i: int) -> Iterator[Op]:
    if at.k < expansion.epi_tiles:
        yield from expansion.branch(KEPT, expansion.steps(loop.steps, replace(at, number=at.number - 1), at.k))


@Expansion.handles(WaitStores)
def _wait_stores(expansion: Expansion, wait: WaitStores, at: State, i: int) -> Iterator[Op]:
    if wait.by != FIRST_WARP or expansion.place.warp == 0:
        yield op.WaitStores(wait.pending)


@Expansion.handles(WriteEpiStage)
def _write_epi_stage(expansion: Expansion, write: WriteEpiStage, at: State, i: int) -> Iterator[Op]:
    epi_stage, _ = epi_stage_of(expansion, i, write.result)
    yield op.WriteEpiStage(epi_stage, expansion.place.warp, (at.number, i), write.result)


@Expansion.handles(StoreEpiStage)
def _store_epi_stage(expansion: Expansion, store: StoreEpiStage, at: State, i: int) -> Iterator[Op]:
    epi_stage, pieces = epi_stage_of(expansion, i, store.result)
    tag, result, place = (at.number, i), store.result, expansion.place
    if store.by == ALL:
        yield op.CopyEpiStage(epi_stage, pieces, tag, place.warps, result)
    elif store.by == EACH_WARP and not store.by_tma:
        yield op.CopyEpiStage(epi_stage, (place.warp,), tag, 1, result)
    elif store.by == EACH_WARP:
        yield op.StoreEpiStage(epi_stage, (place.warp,), tag, result)
    elif place.warp == 0:
        yield op.StoreEpiStage(epi_stage, pieces, tag, result)
