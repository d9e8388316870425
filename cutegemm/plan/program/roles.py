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
    IS_LAST_SPLIT,
    IS_TILE,
    LEFT,
    OTHER_BLOCKS,
    OTHERS,
    RIGHT,
    SECOND,
    TAIL,
    TILES_ARE_READ,
    AddAccumulators,
    Advance,
    AwaitConsumed,
    AwaitOrder,
    Clear,
    Evaluate,
    ForAhead,
    ForEpiTiles,
    ForKTiles,
    ForStages,
    ForTiles,
    If,
    IncrementSemaphore,
    KeepTile,
    Load,
    LoadEpiTile,
    Multiply,
    MultiplyBlock,
    OpenOrder,
    OverlappedEpiTile,
    PassOrder,
    Program,
    Promote,
    ReadFirst,
    Reduce,
    ReduceSplits,
    Release,
    SendAccumulators,
    Skip,
    Stagger,
    Step,
    StoreAux,
    StoreEpiStage,
    StoreTile,
    SyncEpiTile,
    SyncThreads,
    Test,
    Wait,
    WaitMma,
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
    """The program of all consumers of a plan."""
    pipeline = warp_roles(plan)
    if not plan.tiled_mma.atom.is_of_warpgroup:
        return _of_warps(plan)
    if pipeline.kind == "single":
        return _multistage(plan)
    if pipeline.kind == "pingpong":
        return _pingpong(plan)
    return _overlapped(plan) if pipeline.overlapped else _cooperative(plan)


# --- schedules --------------------------------------------------------------------------------------------------


def _pingpong(plan: GemmPlan) -> Program:
    tile = (
        *_early(plan),
        *_totals(plan),
        AwaitOrder(),
        *_products(plan),
        PassOrder(),
        Skip(OTHERS),
        *_semaphore(plan),
        *_mma_end(plan),
        *_end(plan, _leave(plan)),
    )
    tiles = ForTiles(tile, every=plan.body.tiles_in_flight)
    return Program((Skip(BEFORE), OpenOrder(), tiles, *_stores_end(plan)))


def _cooperative(plan: GemmPlan) -> Program:
    tile = (
        *_early(plan),
        *_totals(plan),
        *_products(plan),
        *_semaphore(plan),
        *_mma_end(plan),
        *_end(plan, _leave(plan)),
    )
    return Program((*_stagger(plan), ForTiles(tile), *_stores_end(plan)))


def _overlapped(plan: GemmPlan) -> Program:
    epi_tile, aux = _epi_tile(plan, is_overlapped=True), plan.epilogue.outputs[1:]
    tile = (
        ForKTiles((*_k_tile(plan), OverlappedEpiTile(epi_tile))),
        ForEpiTiles(epi_tile, overlapped=True),
        *_semaphore(plan),
        *_mma_end(plan),
        If(IS_TILE, _end(plan, (Evaluate(HEAD), KeepTile(plan.epilogue.tail.tensors, aux, _reduced(plan))))),
    )
    return Program((*_stagger(plan), ForTiles(tile, lasting=True), *_stores_end(plan)))


def _multistage(plan: GemmPlan) -> Program:
    ahead = plan.stages - 1
    tile = (
        *_early(plan),
        ForAhead((Load(),), ahead),
        ForKTiles((Wait("full"), Multiply(), WaitMma(1), SyncThreads(), Load(ahead))),
        WaitMma(0),
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
        return (ForKTiles((Wait("full"), WaitMma(0), Release(previous=True), Multiply())),)
    if plan.partial_accumulators == ACC:
        return (ForKTiles(_k_tile(plan)),)
    return _by_halves() if plan.partial_accumulators == RIGHT else _by_accumulators()


def _k_tile(plan: GemmPlan) -> Steps:
    """Of a k-tile, to sums that each k-tile adds to.

    The wait for the k-tile before stands behind the first k-block, not behind all of them: so its stage is released as
    soon as its products are done, and the tensor cores have the first k-block to work on meanwhile.
    """
    if plan.k_blocks == 1:
        return (Wait("full"), Multiply(), WaitMma(1), Release(previous=True))
    first, others = Multiply(k_blocks=FIRST_BLOCK), Multiply(k_blocks=OTHER_BLOCKS)
    return (Wait("full"), first, WaitMma(1, "k-block"), Release(previous=True), others)


def _by_accumulators() -> Steps:
    """While the products of a k-tile are under way, the threads add up the sums of the one before.

    ptxas follows products around a loop to a wait for all of them alone: so there is one such wait for two k-tiles,
    when the next stage is full.
    """
    odd = (Wait("full"), Multiply(SECOND), Advance())
    one = (Wait("full"), WaitMma(0), Multiply(FIRST), Release(previous=True), Promote(SECOND))
    other = (Wait("full"), Multiply(SECOND), WaitMma(1), Release(previous=True), Promote(FIRST))
    return (If(HAS_ODD_K_TILES, odd), ForKTiles((*one, Advance(), *other), by=2))


def _by_halves() -> Steps:
    """While the products of half of the columns are under way, the threads add up the sums of the other half; as in
    `_by_accumulators`, there is one wait for all of them for two k-tiles."""
    before, half = (Release(previous=True), Promote(RIGHT)), WaitMma(1, "half")
    right = (Multiply(RIGHT), half, Promote(LEFT))
    odd = (Wait("full"), Multiply(LEFT), *right, Advance())
    one = (Wait("full"), WaitMma(0), Multiply(LEFT), *before, *right)
    other = (Wait("full"), Multiply(LEFT), half, *before, *right)
    return (If(HAS_ODD_K_TILES, odd), ForKTiles((*one, Advance(), *other), by=2))


def _mma_end(plan: GemmPlan) -> Steps:
    accumulators = plan.partial_accumulators
    added = () if accumulators == ACC else (Promote(accumulators),)
    return (WaitMma(0), If(HAS_K_TILES, (Release(previous=True),)), *added)


def _totals(plan: GemmPlan) -> Steps:
    """Before the turn and not after the products: ptxas would make them wait for each other."""
    accumulators = plan.partial_accumulators
    return () if accumulators == ACC else (Clear("total"), Clear(accumulators))


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
