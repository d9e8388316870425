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
    ALL,
    BEFORE,
    EACH_WARP,
    FIRST_WARP,
    HEAD,
    IS_FIRST_WARP,
    IS_LAST_SPLIT,
    IS_TILE,
    OTHERS,
    TAIL,
    TILES_ARE_READ,
    AddAccumulators,
    AwaitConsumed,
    AwaitOrder,
    Evaluate,
    ForEpiTiles,
    ForKTiles,
    ForStages,
    ForTiles,
    If,
    IncrementSemaphore,
    KeepTile,
    Load,
    LoadEpiTile,
    OpenOrder,
    OverlappedEpiTile,
    PassOrder,
    Program,
    Reduce,
    ReduceSplits,
    SendAccumulators,
    Skip,
    Stagger,
    Step,
    StoreAux,
    StoreEpiStage,
    StoreTile,
    SyncEpiTile,
    Wait,
    WaitStores,
    WriteEpiStage,
)
from cutegemm.plan.warp_roles import warp_roles
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
    """Return the program of all consumers of a plan."""
    roles = warp_roles(plan)
    if roles.kind == "pingpong":
        return _pingpong(plan)
    return _overlapped(plan) if roles.overlapped else _cooperative(plan)


def _pingpong(plan: GemmPlan) -> Program:
    mainloop = warp_roles(plan).mainloop
    tile = (
        *_early(plan),
        *mainloop.prologue(plan),
        AwaitOrder(),
        *mainloop.k_tiles(plan),
        PassOrder(),
        Skip(OTHERS),
        *_semaphore(plan),
        *mainloop.epilogue(plan),
        *_end(plan, _leave(plan)),
    )
    tiles = ForTiles(tile, every=plan.body.tiles_in_flight)
    return Program((Skip(BEFORE), OpenOrder(), tiles, *_stores_end(plan)))


def _cooperative(plan: GemmPlan) -> Program:
    mainloop = warp_roles(plan).mainloop
    tile = (
        *_early(plan),
        *mainloop.prologue(plan),
        *mainloop.k_tiles(plan),
        *_semaphore(plan),
        *mainloop.epilogue(plan),
        *_end(plan, _leave(plan)),
    )
    return Program((*_stagger(plan), ForTiles(tile), *_stores_end(plan)))


def _overlapped(plan: GemmPlan) -> Program:
    epi_tile, aux = _epi_tile(plan, is_overlapped=True), plan.epilogue.outputs[1:]
    mainloop = warp_roles(plan).mainloop
    tile = (
        ForKTiles((*mainloop.k_tile(plan), OverlappedEpiTile(epi_tile))),
        ForEpiTiles(epi_tile, overlapped=True),
        *_semaphore(plan),
        *mainloop.epilogue(plan),
        If(IS_TILE, _end(plan, (Evaluate(HEAD), KeepTile(plan.epilogue.tail.tensors, aux, _reduced(plan))))),
    )
    return Program((*_stagger(plan), ForTiles(tile, lasting=True), *_stores_end(plan)))


def _stagger(plan: GemmPlan) -> Steps:
    cycles = warp_roles(plan).stagger_cycles
    return (Stagger(cycles),) if cycles else ()


def _semaphore(plan: GemmPlan) -> Steps:
    """The ticket of a part, which is drawn while the last products run."""
    return (IncrementSemaphore(),) if plan.split.is_split else ()


def _end(plan: GemmPlan, leave: Steps) -> Steps:
    """The sums to D; where K is split, those of a tile's last part alone, with the other parts' added; where CTAs share
    K, those of the own columns, from all of them."""
    if plan.cluster_k > 1:
        return (SendAccumulators(), AddAccumulators(), *leave)
    return (ReduceSplits(), If(IS_LAST_SPLIT, leave)) if plan.split.is_split else leave


# --- to global memory -------------------------------------------------------------------------------------------


def _fetches(plan: GemmPlan) -> bool:
    """Whether tile operands of the epilogue come to the epilogue stages by TMA."""
    return plan.epi_stages is not None and plan.epi_stages.load_c is not None


def _fetch(plan: GemmPlan) -> Steps:
    """The first epilogue tiles of C, when the stores out of their epilogue stages have read them."""
    if not _fetches(plan):
        return ()
    return (If(TILES_ARE_READ, (WaitStores(0, ALL), LoadEpiTile())),)


def _early(plan: GemmPlan) -> Steps:
    """C is asked for before the products; of a split tile only the last part reads it, behind them."""
    return () if plan.split.is_split else _fetch(plan)


def _leave(plan: GemmPlan) -> Steps:
    """The tile: straight out of registers, or through epilogue stages."""
    late = _fetch(plan) if plan.split.is_split else ()
    if plan.epi_stages is None:
        epilogue = plan.epilogue
        stored = StoreTile(epilogue.tail.tensors, epilogue.outputs[1:], _reduced(plan))
        return (*late, Evaluate(HEAD), stored)
    return (*late, Evaluate(HEAD), *_epi_stages_begin(plan), ForEpiTiles(_epi_tile(plan)))


def _epi_stages_begin(plan: GemmPlan) -> Steps:
    """Where the epilogue stages do not divide the epilogue tiles, a tile begins with those that the one before has
    ended with: their stores have read them by then, but for a tile of few products."""
    epi_stages = plan.epi_stages
    assert epi_stages is not None
    if not epi_stages.has_remainder(plan.consumer_d_tile):
        return ()
    if epi_stages_are_stored_by_rows(plan):
        return (WaitStores(0, EACH_WARP),)
    return WaitStores(0, FIRST_WARP), SyncEpiTile()


def _epi_tile(plan: GemmPlan, is_overlapped: bool = False) -> Steps:
    """An epilogue tile's values through its epilogue stage.

    A wait for stores comes as late as it can, so that what is converted and written meanwhile costs nothing. Where C
    comes by TMA, it comes right after the store, as C is asked for behind it. Where each warp stores its own rows, it
    waits for its own stores before it writes; where the threads copy the epilogue stage, they have all read it when
    they come to the next epilogue tile's barrier, or where there is one epilogue stage, to a barrier of its own.

    is_overlapped   the values are those of D already
    """
    epi_stages = plan.epi_stages
    assert epi_stages is not None
    fetches, count = _fetches(plan), epi_stages.count
    by_tma = isinstance(epi_stages.store, TmaBox)
    own_rows = by_tma and epi_stages_are_stored_by_rows(plan)
    values: Steps = () if is_overlapped else _values(plan)
    body: list[Step] = []
    for name in plan.epi_stage_results:
        if own_rows:
            body += [WaitStores(count - 1, EACH_WARP), WriteEpiStage(name), StoreEpiStage(EACH_WARP, result=name)]
        elif not by_tma and plan.consumer_warps == 1:
            body += [WriteEpiStage(name), StoreEpiStage(EACH_WARP, by_tma=False, result=name)]
        elif not by_tma:
            free: Steps = (SyncEpiTile(),) if count == 1 else ()
            body += [*free, WriteEpiStage(name), SyncEpiTile(), StoreEpiStage(ALL, by_tma=False, result=name)]
        else:
            before = [] if fetches else [WaitStores(count - 2, FIRST_WARP)]
            body += [WriteEpiStage(name), *before, SyncEpiTile(), StoreEpiStage(FIRST_WARP, result=name)]
    behind: Steps = ()
    if fetches:
        behind = (If(IS_FIRST_WARP, (WaitStores(count - 2, ALL), LoadEpiTile(ahead=2))),)
    return (*values, *body, *behind)


def _values(plan: GemmPlan) -> Steps:
    """An epilogue tile's values of D; other results leave at once."""
    epilogue, fetched = plan.epilogue, plan.fetched_tile
    read = tuple([name for name in epilogue.tail.tensors if name != fetched])
    aux = plan.aux_outputs
    values = Evaluate(TAIL, fetched, read)
    stored = (StoreAux(aux),) if aux else ()
    return (values, *stored, *((Reduce(_reduced(plan)),) if _reduced(plan) else ()))


def _reduced(plan: GemmPlan) -> tuple[str, ...]:
    """The results that are sums or maxima over rows, columns or all of D."""
    return tuple([name for name, _ in plan.epilogue.reductions])


def epi_stages_are_stored_by_rows(plan: GemmPlan) -> bool:
    """Whether each warp stores its own rows of an epilogue stage by TMA: a box is lower than an epilogue tile, or a
    consumer is a warp."""
    assert plan.epi_stages is not None
    if not isinstance(plan.epi_stages.store, TmaBox):
        return False
    rows = plan.epi_stages.store.box[1] if plan.operands.d.major == "n" else plan.epi_stages.epi_tile[0]
    return plan.consumer_warps == 1 or rows < plan.epi_stages.epi_tile[0]


def _stores_end(plan: GemmPlan) -> Steps:
    """The epilogue stages live as long as their readers, and barriers as long as who arrives there."""
    consumed: Steps = (AwaitConsumed(),) if plan.cluster_k > 1 else ()
    if plan.epi_stages is None or not isinstance(plan.epi_stages.store, TmaBox):
        return consumed
    return (*consumed, WaitStores(0, ALL))
