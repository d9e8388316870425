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
    BEFORE,
    HEAD,
    IS_LAST_SPLIT,
    IS_TILE,
    OTHERS,
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
    OpenOrder,
    OverlappedEpiTile,
    PassOrder,
    Program,
    ReduceSplits,
    SendAccumulators,
    Skip,
    Stagger,
    Step,
    Wait,
)
from cutegemm.plan.warp_roles import warp_roles

if TYPE_CHECKING:
    from cutegemm.plan.plan import GemmPlan

Steps = tuple[Step, ...]


def producer(in_cluster: bool, further: tuple[str, ...] = ()) -> Program:
    """Return the program of the producer role, whose warp loads the k-tiles of the CTA's tiles by TMA.

    in_cluster   whether the CTA is in a cluster of several. The producer then waits at the end until every stage is
                 empty, because consumers of the other CTAs may still arrive at barriers in its shared memory
    further      names of the operands that are loaded with A and B, such as block scales
    """
    tiles = ForTiles((ForKTiles((Wait("empty"), Load(further=further))),))
    return Program((tiles, ForStages((Wait("empty"),))) if in_cluster else (tiles,))


def consumer(plan: GemmPlan) -> Program:
    """Return the program that every consumer of a plan executes: the steps that multiply and store its tiles.

    plan   plan with warp roles: pingpong, cooperative or single
    """
    roles = warp_roles(plan)
    if roles.kind == "pingpong":
        return _pingpong(plan)
    return _overlapped(plan) if roles.overlapped else _cooperative(plan)


def _pingpong(plan: GemmPlan) -> Program:
    """Return the program of pingpong consumers: they take alternate tiles, and one multiplies while another stores.

    An order barrier lets one consumer at a time issue MMAs.
    """
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
    """Return the program of cooperative consumers: they share each tile, and store it before they start the next."""
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
    """Return the program of consumers that share each tile, and store it during the MMAs of the next one.

    This is an overlapped epilogue: a finished tile is kept in registers until it is stored.
    """
    epi_tile, aux = plan.store.epi_tile_steps(plan), plan.epilogue.outputs[1:]
    mainloop = warp_roles(plan).mainloop
    keep = KeepTile(plan.epilogue.tail.tensors, aux, plan.epilogue.reduced, bool(plan.operands.groups))
    tile = (
        ForKTiles((*mainloop.k_tile(plan), OverlappedEpiTile(epi_tile))),
        ForEpiTiles(epi_tile, overlapped=True),
        *_semaphore(plan),
        *mainloop.epilogue(plan),
        If(IS_TILE, _end(plan, (Evaluate(HEAD), keep))),
    )
    return Program((*_stagger(plan), ForTiles(tile, lasting=True), *_stores_end(plan)))


def _stagger(plan: GemmPlan) -> Steps:
    """Return the program step that delays each consumer's start, so that stores do not coincide; () without a delay."""
    cycles = warp_roles(plan).stagger_cycles
    return (Stagger(cycles),) if cycles else ()


def _semaphore(plan: GemmPlan) -> Steps:
    """Return the program step that increments the tile's semaphore during the last MMAs; () if K is not split.

    The semaphore tells which K split of a tile ends last.
    """
    return (IncrementSemaphore(),) if plan.scheduler.split.is_split else ()


def _early(plan: GemmPlan) -> Steps:
    """Return the program steps that load C before the MMAs of a tile; () if K is split.

    If K is split, only the K split that ends last reads C, so C is loaded after the MMAs.
    """
    return () if plan.scheduler.split.is_split else plan.store.prologue(plan)


def _leave(plan: GemmPlan) -> Steps:
    """Return the program steps that evaluate the epilogue and store a tile.

    If K is split, they begin with the load of C, because only the K split that ends last needs it.
    """
    late = plan.store.prologue(plan) if plan.scheduler.split.is_split else ()
    return (*late, *plan.store.steps(plan))


def _end(plan: GemmPlan, leave: Steps) -> Steps:
    """Return the program steps of a consumer after the MMAs of a work tile: combine accumulators, and store D.

    With cluster split-K, the CTAs of the cluster first exchange accumulators. With split-K or stream-K, only the K
    split that ends last stores D, after it has added the accumulators of the others.

    leave   the steps that evaluate the epilogue and store the complete accumulators
    """
    if plan.cluster_k > 1:
        return (SendAccumulators(), AddAccumulators(), *leave)
    return (ReduceSplits(), If(IS_LAST_SPLIT, leave)) if plan.scheduler.split.is_split else leave


def _stores_end(plan: GemmPlan) -> Steps:
    """Return the last program steps of a consumer: waits that keep the CTA alive while its shared memory is in use.

    TMA stores still read epilogue stages, and other CTAs of the cluster may still arrive at its barriers.
    """
    consumed: Steps = (AwaitConsumed(),) if plan.cluster_k > 1 else ()
    return (*consumed, *plan.store.epilogue(plan))
