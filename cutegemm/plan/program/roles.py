"""Build the programs of the producer and the consumers of a plan with warp roles.

| schedule             | consumers                                                                                    |
|----------------------|----------------------------------------------------------------------------------------------|
| pingpong             | alternate between the tiles of the CTA: one multiplies while another stores                  |
| cooperative          | share each tile                                                                              |
| overlapped epilogue  | share each tile, and store it during the MMAs of the next tile                               |
| single               | share a tile; there is no producer, and one of their warps loads ahead                       |
| warps as consumers   | share each tile: each consumer is one warp, issues mma.sync, and reads fragments ahead       |

The mainloop of the plan supplies the steps of a k-tile, with accumulator promotion if it has that. Functions of this
file supply the steps of split-K, of cluster split-K and of the epilogue. Every schedule may use them.
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


def producer(in_cluster: bool, further: tuple[str, ...] = ()) -> Program:
    """Return the program of the producer: it loads the k-tiles of the CTA's work tiles to the mainloop pipeline.

    in_cluster   whether the CTA is in a cluster of several. The producer then waits at the end until every stage is
                 empty, because consumers of the other CTAs may still arrive at barriers in its shared memory
    further      names of the operands of the mainloop that are loaded with A and B
    """
    tiles = ForTiles((ForKTiles((Wait("empty"), Load(further=further))),))
    return Program((tiles, ForStages((Wait("empty"),))) if in_cluster else (tiles,))


def consumer(plan: GemmPlan) -> Program:
    """Return the program that every consumer of a plan executes."""
    roles = warp_roles(plan)
    if roles.kind == "pingpong":
        return _pingpong(plan)
    return _overlapped(plan) if roles.overlapped else _cooperative(plan)


def _pingpong(plan: GemmPlan) -> Program:
    """Return the program of consumers that alternate between tiles, ordered by the order barrier."""
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
    """Return the program of consumers that share each tile, and store it before they start the next one."""
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
    """Return the program of consumers that share each tile, and store it during the MMAs of the next one."""
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
    """Return the step that delays each consumer's start, so that they do not store together; () if not planned."""
    cycles = warp_roles(plan).stagger_cycles
    return (Stagger(cycles),) if cycles else ()


def _semaphore(plan: GemmPlan) -> Steps:
    """Return the increment of the tile's semaphore, which runs during the last MMAs; no step if K is not split."""
    return (IncrementSemaphore(),) if plan.split.is_split else ()


def _end(plan: GemmPlan, leave: Steps) -> Steps:
    """Return the steps from the accumulators of one work tile to D.

    With cluster split-K, the CTAs of the cluster first exchange accumulators. With split-K or stream-K, only the K
    split that ends last stores D, after it has added the accumulators of the others.

    leave   the steps that store the complete accumulators; see `_leave`
    """
    if plan.cluster_k > 1:
        return (SendAccumulators(), AddAccumulators(), *leave)
    return (ReduceSplits(), If(IS_LAST_SPLIT, leave)) if plan.split.is_split else leave


# --- to global memory -------------------------------------------------------------------------------------------


def _fetches(plan: GemmPlan) -> bool:
    """Return whether TMA loads a tile operand of the epilogue, such as C, to the epilogue stages."""
    return plan.epi_stages is not None and plan.epi_stages.load_c is not None


def _fetch(plan: GemmPlan) -> Steps:
    """Return the steps that load the first epilogue tiles of C, after stores have read these epilogue stages."""
    if not _fetches(plan):
        return ()
    return (If(TILES_ARE_READ, (WaitStores(0, ALL), LoadEpiTile())),)


def _early(plan: GemmPlan) -> Steps:
    """Return the steps that load C before the MMAs of a tile; () if K is split.

    If K is split, only the last K split reads C, so it loads C after its MMAs; see `_leave`.
    """
    return () if plan.split.is_split else _fetch(plan)


def _leave(plan: GemmPlan) -> Steps:
    """Return the steps that evaluate the epilogue and store a tile, from registers or through epilogue stages."""
    late = _fetch(plan) if plan.split.is_split else ()
    if plan.epi_stages is None:
        epilogue = plan.epilogue
        stored = StoreTile(epilogue.tail.tensors, epilogue.outputs[1:], _reduced(plan))
        return (*late, Evaluate(HEAD), stored)
    return (*late, Evaluate(HEAD), *_epi_stages_begin(plan), ForEpiTiles(_epi_tile(plan)))


def _epi_stages_begin(plan: GemmPlan) -> Steps:
    """Return the steps that wait for earlier stores before the first epilogue tile of a tile; () if no wait is needed.

    It is needed only if the number of epilogue stages does not divide the number of epilogue tiles. The tile then
    starts with the stages that the tile before ended with. Their stores have usually read them during the MMAs, except
    for a tile of few k-tiles.
    """
    epi_stages = plan.epi_stages
    assert epi_stages is not None
    if not epi_stages.has_remainder(plan.consumer_d_tile):
        return ()
    if epi_stages_are_stored_by_rows(plan):
        return (WaitStores(0, EACH_WARP),)
    return WaitStores(0, FIRST_WARP), SyncEpiTile()


def _epi_tile(plan: GemmPlan, is_overlapped: bool = False) -> Steps:
    """Return the steps that store an epilogue tile through its epilogue stage.

    A wait for earlier stores stands as late as possible, so that conversion and shared-memory writes overlap it:

    - If TMA loads C, the wait stands right after the store, because the load of a later epilogue tile follows it.
    - If each warp stores its own rows by TMA, it waits for its own stores before it writes.
    - If the threads copy the stage, no wait is needed. All have read the stage when they reach the barrier of the next
      epilogue tile; with a single epilogue stage there is one more barrier for this.

    is_overlapped   whether the registers hold values of D already, so that the epilogue is not evaluated again
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
    """Return the steps that evaluate the epilogue of an epilogue tile.

    They also store its auxiliary outputs from registers, and fold its values into the reductions.
    """
    epilogue, fetched = plan.epilogue, plan.fetched_tile
    read = tuple([name for name in epilogue.tail.tensors if name != fetched])
    aux = plan.aux_outputs
    values = Evaluate(TAIL, fetched, read)
    stored = (StoreAux(aux),) if aux else ()
    return (values, *stored, *((Reduce(_reduced(plan)),) if _reduced(plan) else ()))


def _reduced(plan: GemmPlan) -> tuple[str, ...]:
    """Return the names of the results that are sums or maxima over rows, columns or all of D."""
    return tuple([name for name, _ in plan.epilogue.reductions])


def epi_stages_are_stored_by_rows(plan: GemmPlan) -> bool:
    """Return whether each warp stores its own rows of an epilogue stage by TMA.

    It does if a TMA box has fewer rows than an epilogue tile, or if a consumer is a single warp.
    """
    assert plan.epi_stages is not None
    if not isinstance(plan.epi_stages.store, TmaBox):
        return False
    rows = plan.epi_stages.store.box[1] if plan.operands.d.major == "n" else plan.epi_stages.epi_tile[0]
    return plan.consumer_warps == 1 or rows < plan.epi_stages.epi_tile[0]


def _stores_end(plan: GemmPlan) -> Steps:
    """Return the last steps of a consumer, which keep its CTA alive while its shared memory is in use.

    Bulk stores still read epilogue stages, and other CTAs of the cluster may still arrive at its barriers.
    """
    consumed: Steps = (AwaitConsumed(),) if plan.cluster_k > 1 else ()
    if plan.epi_stages is None or not isinstance(plan.epi_stages.store, TmaBox):
        return consumed
    return (*consumed, WaitStores(0, ALL))
