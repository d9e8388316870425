"""The programs of the roles of a plan with a ring of stages: the schedules, made of pieces that they share.

| schedule      | the consumers                                                                             |
|---------------|-------------------------------------------------------------------------------------------|
| pingpong      | take the CTA's tiles in turn: one multiplies while another stores                         |
| cooperative   | share each tile                                                                           |
| deferred      | share each tile, and store it behind the products of the next one                         |
| multistage    | share a tile; there is no producer, and a warp of theirs loads ahead                      |
| of warps      | share each tile, a warp each: mma.sync, fragments read ahead                              |

Sums on two levels, parts of a split K, sums of CTAs that share K, and the way to global memory are pieces: any schedule
may have them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cutegemm.plan.program.steps import (
    ACC,
    ALL,
    BEFORE,
    EACH_WARP,
    FIRST,
    FIRST_BLOCK,
    FIRST_WARP,
    HAS_K_TILES,
    HAS_ODD_K_TILES,
    HEAD,
    IS_FIRST_WARP,
    IS_LAST_PART,
    IS_TILE,
    LEFT,
    OTHER_BLOCKS,
    OTHERS,
    RIGHT,
    SECOND,
    TAIL,
    TILES_ARE_READ,
    AddLevel,
    AddParts,
    AddSums,
    Advance,
    AwaitSpent,
    AwaitTurn,
    Clear,
    Evaluate,
    FetchTile,
    ForAhead,
    ForKTiles,
    ForStages,
    ForSubtiles,
    ForTiles,
    HandOver,
    HeldSubtile,
    Hold,
    If,
    Load,
    Multiply,
    MultiplyBlock,
    OpenTurns,
    Program,
    ReadFirst,
    Reduce,
    Release,
    SendSums,
    Skip,
    Stagger,
    Step,
    StoreFurther,
    StoreSlot,
    StoreTile,
    SyncSubtile,
    SyncThreads,
    TakeTicket,
    Test,
    Wait,
    WaitProducts,
    WaitStores,
    WriteSlot,
)
from cutegemm.tile.tma import TmaBox

if TYPE_CHECKING:
    from cutegemm.plan.plan import GemmPlan

Steps = tuple[Step, ...]


def producer(in_cluster: bool) -> Program:
    """Fills the ring with the k-tiles of the CTA's tiles.

    in_cluster   no CTA of a cluster ends while a consumer of another one may still arrive at its barriers
    """
    tiles = ForTiles((ForKTiles((Wait("empty"), Load())),))
    return Program((tiles, ForStages((Wait("empty"),))) if in_cluster else (tiles,))


def consumer(plan: GemmPlan) -> Program:
    """The program of all consumers of a plan."""
    pipeline = plan.pipeline
    assert pipeline is not None
    if not plan.tiled_mma.atom.is_of_warpgroup:
        return _of_warps(plan)
    if pipeline.kind == "single":
        return _multistage(plan)
    if pipeline.kind == "pingpong":
        return _pingpong(plan)
    return _deferred(plan) if pipeline.deferred else _cooperative(plan)


# --- schedules --------------------------------------------------------------------------------------------------


def _pingpong(plan: GemmPlan) -> Program:
    tile = (
        *_early(plan),
        *_totals(plan),
        AwaitTurn(),
        *_products(plan),
        HandOver(),
        Skip(OTHERS),
        *_ticket(plan),
        *_products_end(plan),
        *_end(plan, _leave(plan)),
    )
    assert plan.pipeline is not None
    tiles = ForTiles(tile, every=plan.pipeline.turns)
    return Program((Skip(BEFORE), OpenTurns(), tiles, *_stores_end(plan)))


def _cooperative(plan: GemmPlan) -> Program:
    tile = (
        *_early(plan),
        *_totals(plan),
        *_products(plan),
        *_ticket(plan),
        *_products_end(plan),
        *_end(plan, _leave(plan)),
    )
    return Program((*_stagger(plan), ForTiles(tile), *_stores_end(plan)))


def _deferred(plan: GemmPlan) -> Program:
    subtile, further = _subtile(plan, is_held=True), plan.epilogue.outputs[1:]
    tile = (
        ForKTiles((*_k_tile(plan), HeldSubtile(subtile))),
        ForSubtiles(subtile, held=True),
        *_ticket(plan),
        *_products_end(plan),
        If(IS_TILE, _end(plan, (Evaluate(HEAD), Hold(plan.epilogue.tail.tensors, further, _reduced(plan))))),
    )
    return Program((*_stagger(plan), ForTiles(tile, lasting=True), *_stores_end(plan)))


def _multistage(plan: GemmPlan) -> Program:
    ahead = plan.stages - 1
    tile = (
        *_early(plan),
        ForAhead((Load(),), ahead),
        ForKTiles((Wait("full"), Multiply(), WaitProducts(1), SyncThreads(), Load(ahead))),
        WaitProducts(0),
        *_leave(plan),
    )
    return Program((ForTiles(tile), *_stores_end(plan)))


def _of_warps(plan: GemmPlan) -> Program:
    """The last k-tile stands apart: nothing is read ahead there."""
    tile = (
        Clear("acc"),
        If(
            HAS_K_TILES,
            (
                Wait("full"),
                ReadFirst(),
                ForKTiles(tuple(_k_blocks(plan.k_blocks, reads_on=True)), but_last=True),
                *_k_blocks(plan.k_blocks, reads_on=False),
                Advance(),
            ),
        ),
        *_leave(plan),
    )
    return Program((ForTiles(tile), *_stores_end(plan)))


def _k_blocks(count: int, reads_on: bool) -> list[Step]:
    """The products of a k-tile, k-block by k-block.

    reads_on   on to the next k-tile, whose barrier is asked a k-block before it is needed
    """
    steps: list[Step] = []
    for k_block in range(count):
        is_last = k_block == count - 1
        if reads_on and k_block == count - 2:
            steps.append(Test("full", ahead=1))
        if reads_on and is_last:
            steps.append(Wait("full", ahead=1))
        ahead = (1 if reads_on else None) if is_last else 0
        steps.append(MultiplyBlock(k_block, ahead, releases=is_last))
    return steps


# --- pieces -----------------------------------------------------------------------------------------------------


def _products(plan: GemmPlan) -> Steps:
    """Of all k-tiles. Those of the last one are still under way behind it."""
    if plan.tiled_mma.atom.a_source == "register":  # which products that are under way still read
        return (ForKTiles((Wait("full"), WaitProducts(0), Release(previous=True), Multiply())),)
    if plan.level_sums == ACC:
        return (ForKTiles(_k_tile(plan)),)
    return _by_halves() if plan.level_sums == RIGHT else _by_accumulators()


def _k_tile(plan: GemmPlan) -> Steps:
    """Of a k-tile, to sums that each k-tile adds to.

    The wait for the k-tile before stands behind the first k-block, not behind all of them: so its stage is released as
    soon as its products are done, and the tensor cores have the first k-block to work on meanwhile.
    """
    if plan.k_blocks == 1:
        return (Wait("full"), Multiply(), WaitProducts(1), Release(previous=True))
    first, others = Multiply(k_blocks=FIRST_BLOCK), Multiply(k_blocks=OTHER_BLOCKS)
    return (Wait("full"), first, WaitProducts(1, "k-block"), Release(previous=True), others)


def _by_accumulators() -> Steps:
    """While the products of a k-tile are under way, the threads add up the sums of the one before.

    ptxas follows products around a loop to a wait for all of them alone: so there is one such wait for two k-tiles,
    when the next stage is full.
    """
    odd = (Wait("full"), Multiply(SECOND), Advance())
    one = (Wait("full"), WaitProducts(0), Multiply(FIRST), Release(previous=True), AddLevel(SECOND))
    other = (Wait("full"), Multiply(SECOND), WaitProducts(1), Release(previous=True), AddLevel(FIRST))
    return (If(HAS_ODD_K_TILES, odd), ForKTiles((*one, Advance(), *other), by=2))


def _by_halves() -> Steps:
    """While the products of half of the columns are under way, the threads add up the sums of the other half; as in
    `_by_accumulators`, there is one wait for all of them for two k-tiles."""
    before, half = (Release(previous=True), AddLevel(RIGHT)), WaitProducts(1, "half")
    right = (Multiply(RIGHT), half, AddLevel(LEFT))
    odd = (Wait("full"), Multiply(LEFT), *right, Advance())
    one = (Wait("full"), WaitProducts(0), Multiply(LEFT), *before, *right)
    other = (Wait("full"), Multiply(LEFT), half, *before, *right)
    return (If(HAS_ODD_K_TILES, odd), ForKTiles((*one, Advance(), *other), by=2))


def _products_end(plan: GemmPlan) -> Steps:
    sums = plan.level_sums
    added = () if sums == ACC else (AddLevel(sums),)
    return (WaitProducts(0), If(HAS_K_TILES, (Release(previous=True),)), *added)


def _totals(plan: GemmPlan) -> Steps:
    """Before the turn and not after the products: ptxas would make them wait for each other."""
    sums = plan.level_sums
    return () if sums == ACC else (Clear("total"), Clear(sums))


def _stagger(plan: GemmPlan) -> Steps:
    assert plan.pipeline is not None
    cycles = plan.pipeline.stagger_cycles
    return (Stagger(cycles),) if cycles else ()


def _ticket(plan: GemmPlan) -> Steps:
    """The ticket of a part, which is drawn while the last products run."""
    return (TakeTicket(),) if plan.split.is_split else ()


def _end(plan: GemmPlan, leave: Steps) -> Steps:
    """The sums to D; where K is split, those of a tile's last part alone, with the other parts' added; where CTAs share
    K, those of the own columns, from all of them."""
    if plan.k_ctas > 1:
        return (SendSums(), AddSums(), *leave)
    return (AddParts(), If(IS_LAST_PART, leave)) if plan.split.is_split else leave


# --- to global memory -------------------------------------------------------------------------------------------


def _fetches(plan: GemmPlan) -> bool:
    """Whether tile operands of the epilogue come to the slots by TMA."""
    return plan.slots is not None and plan.slots.load_c is not None


def _fetch(plan: GemmPlan) -> Steps:
    """The first subtiles of C, when the stores out of their slots have read them."""
    if not _fetches(plan):
        return ()
    return (If(TILES_ARE_READ, (WaitStores(0, ALL), FetchTile())),)


def _early(plan: GemmPlan) -> Steps:
    """C is asked for before the products; of a split tile only the last part reads it, behind them."""
    return () if plan.split.is_split else _fetch(plan)


def _leave(plan: GemmPlan) -> Steps:
    """The tile: straight out of registers, or through slots."""
    late = _fetch(plan) if plan.split.is_split else ()
    if plan.slots is None:
        epilogue = plan.epilogue
        stored = StoreTile(epilogue.tail.tensors, epilogue.outputs[1:], _reduced(plan))
        return (*late, Evaluate(HEAD), stored)
    return (*late, Evaluate(HEAD), *_slots_begin(plan), ForSubtiles(_subtile(plan)))


def _slots_begin(plan: GemmPlan) -> Steps:
    """Where the slots do not divide the subtiles, a tile begins with those that the one before has ended with: their
    stores have read them by then, but for a tile of few products."""
    slots = plan.slots
    assert slots is not None
    if not slots.leave_over(plan.consumer_d_tile):
        return ()
    if slots_are_stored_by_rows(plan):
        return (WaitStores(0, EACH_WARP),)
    return WaitStores(0, FIRST_WARP), SyncSubtile()


def _subtile(plan: GemmPlan, is_held: bool = False) -> Steps:
    """A subtile's values through its slot.

    A wait for stores comes as late as it can, so that what is converted and written meanwhile costs nothing. Where C
    comes by TMA, it comes right after the store, as C is asked for behind it. Where each warp stores its own rows, it
    waits for its own stores before it writes; where the threads copy the slot, they have all read it when they
    come to the next subtile's barrier, or where there is one slot, to a barrier of its own.

    is_held   the values are those of D already
    """
    slots = plan.slots
    assert slots is not None
    assert plan.pipeline is not None
    fetches, count = _fetches(plan), slots.count
    by_tma = isinstance(slots.store, TmaBox)
    own_rows = by_tma and slots_are_stored_by_rows(plan)
    values: Steps = () if is_held else _values(plan)
    body: list[Step] = []
    for name in plan.slot_results:
        if own_rows:
            body += [WaitStores(count - 1, EACH_WARP), WriteSlot(name), StoreSlot(EACH_WARP, result=name)]
        elif not by_tma and plan.pipeline.consumer_warps == 1:
            body += [WriteSlot(name), StoreSlot(EACH_WARP, by_tma=False, result=name)]
        elif not by_tma:
            free: Steps = (SyncSubtile(),) if count == 1 else ()
            body += [*free, WriteSlot(name), SyncSubtile(), StoreSlot(ALL, by_tma=False, result=name)]
        else:
            before = [] if fetches else [WaitStores(count - 2, FIRST_WARP)]
            body += [WriteSlot(name), *before, SyncSubtile(), StoreSlot(FIRST_WARP, result=name)]
    behind: Steps = ()
    if fetches:
        behind = (If(IS_FIRST_WARP, (WaitStores(count - 2, ALL), FetchTile(ahead=2))),)
    return (*values, *body, *behind)


def _values(plan: GemmPlan) -> Steps:
    """A subtile's values of D; other results leave at once."""
    epilogue, fetched = plan.epilogue, plan.fetched_tile
    read = tuple([name for name in epilogue.tail.tensors if name != fetched])
    further = plan.further_results
    values = Evaluate(TAIL, fetched, read)
    stored = (StoreFurther(further),) if further else ()
    return (values, *stored, *((Reduce(_reduced(plan)),) if _reduced(plan) else ()))


def _reduced(plan: GemmPlan) -> tuple[str, ...]:
    """The results that are sums or maxima over rows, columns or all of D."""
    return tuple([name for name, _ in plan.epilogue.reductions])


def slots_are_stored_by_rows(plan: GemmPlan) -> bool:
    """Whether each warp stores its own rows of a slot by TMA: a box is lower than a subtile, or a consumer is
    a warp."""
    assert plan.slots is not None
    assert plan.pipeline is not None
    if not isinstance(plan.slots.store, TmaBox):
        return False
    rows = plan.slots.store.box[1] if plan.operands.d.major == "n" else plan.slots.subtile[0]
    return plan.pipeline.consumer_warps == 1 or rows < plan.slots.subtile[0]


def _stores_end(plan: GemmPlan) -> Steps:
    """The slots live as long as their readers, and barriers as long as who arrives there."""
    spent: Steps = (AwaitSpent(),) if plan.k_ctas > 1 else ()
    if plan.slots is None or not isinstance(plan.slots.store, TmaBox):
        return spent
    return (*spent, WaitStores(0, ALL))
