"""The parts of a tile, where K is split: who adds them up, and when.

operation      what it is on the hardware                       what must hold
TakeTicket     atom.add of 1, the result to shared memory       -
ReadTicket     ld.shared by each warp                           it is that of this unit
WriteSums      st.global of a warp, unless it is of the last    nothing is in the slot
SignalSums     red.release of 1 << 16, unless of the last       -
AwaitSums      ld.acquire until all others have written         -
ReadSums       ld.global of a warp of the last                  the same warp of the other part has written it
ResetCounter   st of 0 by the last                              it is zero at the end
StoreTile      the epilogue of the last                         once for each tile

Two barriers of a consumer's 128 threads hold its warps together: after the ticket, and before what follows.
"""

from __future__ import annotations

from collections.abc import Iterator

from cutegemm.errors import UnsupportedError
from cutegemm.machine.arch import WARP_THREADS, WARPGROUP_THREADS
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.work.shares import Shares, Unit, cluster_shares, grid_of
from cutegemm.simulate.protocol.program import (
    AwaitSums,
    NamedSync,
    Op,
    Program,
    Protocol,
    ReadSums,
    ReadTicket,
    ResetCounter,
    SignalSums,
    StoreTile,
    TakeTicket,
    WriteSums,
)

_WARPS = WARPGROUP_THREADS // WARP_THREADS


def unit_counts(plan: GemmPlan, *, tiles: int, k_tiles: int, cluster: int = 0) -> tuple[int, ...]:
    """k-tiles of each unit that a cluster takes, in their order: `k_blocks` of `protocol_of`.

    >>> from cutegemm.build import sm90_plan
    >>> unit_counts(sm90_plan(stream=1, ctas=2), tiles=5, k_tiles=30)
    (15, 0, 30, 30)
    """
    shares, clusters = _shares(plan, tiles, k_tiles)
    return tuple([shares.unit(number).k_count for number in shares.numbers(cluster, clusters)])


def _shares(plan: GemmPlan, tiles: int, k_tiles: int) -> tuple[Shares, int]:
    if not plan.split.is_split:
        raise UnsupportedError(f"split_protocol: the plan {plan.name!r} does not split K.")
    shares = cluster_shares(plan, tiles, k_tiles)
    return shares, grid_of(plan, shares.units)


def split_protocol(plan: GemmPlan, *, tiles: int, k_tiles: int) -> Protocol:
    """The warps of a consumer in one CTA of each cluster, as they take the units of so many tiles.

    Consumers of other rows, and other CTAs of a cluster, do the same with counters and slots of their own; in
    pingpong the consumers of a CTA take its units in turn.

    raises   UnsupportedError for a plan that does not split K

    >>> from cutegemm.build import sm90_plan
    >>> from cutegemm.simulate.protocol.interleavings import play_interleavings
    >>> play_interleavings(split_protocol(sm90_plan(split_k=3), tiles=1, k_tiles=6)).faults
    ()
    """
    assert plan.pipeline is not None
    shares, clusters = _shares(plan, tiles, k_tiles)
    turns, programs = plan.pipeline.turns, []
    for cta in range(clusters):
        for consumer in range(turns):
            numbers = list(shares.numbers(cta, clusters))[consumer::turns]
            units = [shares.unit(number) for number in numbers]
            for warp in range(_WARPS):
                ops = tuple([op for unit in units for op in _warp(unit, consumer, warp)])
                programs.append(Program(cta, f"warp {warp} of consumer {consumer}", ops))
    kept = tuple([barrier for barrier in plan.barriers if barrier.name == "parts"])
    return Protocol(kept, tuple(programs), ((),) * clusters)


def _warp(unit: Unit, consumer: int, warp: int) -> Iterator[Op]:
    if unit.parts < 2:
        return
    if warp == 0:
        yield TakeTicket(unit.tile, consumer)
    yield NamedSync("parts", consumer, WARP_THREADS)
    yield ReadTicket(unit.tile, consumer, unit.parts)
    yield WriteSums(unit.tile, unit.slot + unit.part, warp)
    if warp == 0:
        yield AwaitSums(unit.tile, unit.parts - 1)
        yield ResetCounter(unit.tile)
    yield NamedSync("parts", consumer, WARP_THREADS)
    if warp == 0:
        yield SignalSums(unit.tile)
    for part in range(unit.parts):
        if part != unit.part:
            yield ReadSums(unit.tile, unit.slot + part, warp)
    yield StoreTile(unit.tile, warp)
