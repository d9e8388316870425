"""Slots of shared memory that D leaves through, and C comes to: who writes, reads and stores them, and when.

operation   what it is on the hardware                          what must hold
FetchSlot   bulk load of a subtile of C to a slot               nothing is in the slot, or on its way
ReadSlot    ldmatrix of a warp's rows                           they hold that subtile of C
WriteSlot   stmatrix of a warp's rows                           no store still reads the slot
StoreSlot   bulk store of a slot, or of a warp's rows           they hold that subtile of D
TakeSlot    a warp's share of a slot copied by its threads      it holds that subtile of D
WaitStores  cp.async.bulk.wait_group.read: all but the last     -
            stores of this warp have read their slots
"""

from __future__ import annotations

from dataclasses import dataclass

from cutegemm.errors import UnsupportedError
from cutegemm.layout.inttuple import product
from cutegemm.machine.arch import WARP_THREADS
from cutegemm.plan.plan import GemmPlan
from cutegemm.simulate.protocol.program import (
    Expect,
    FetchSlot,
    NamedSync,
    Op,
    Program,
    Protocol,
    ReadSlot,
    StoreSlot,
    TakeSlot,
    Wait,
    WaitStores,
    WriteSlot,
)
from cutegemm.tile.tma import TmaBox


@dataclass(frozen=True)
class _Ring:
    """A consumer's slots."""

    slots: int
    subtiles: int
    has_c: bool
    bytes_of_c: int
    own_stores: bool
    by_threads: bool
    warps: int

    def parity(self, position: int) -> int:
        """Of the phase of a slot's barrier that C of the `position`-th subtile ends."""
        return position // self.slots & 1


def epilogue_protocol(plan: GemmPlan, *, tiles: int) -> Protocol:
    """The warps of one consumer as they store so many tiles; the consumers' slots are apart.

    raises   UnsupportedError for a plan whose D does not pass through shared memory

    >>> from cutegemm.build.sm90 import sm90_plan
    >>> from cutegemm.simulate.protocol.interleavings import play_interleavings
    >>> play_interleavings(epilogue_protocol(sm90_plan(slots=4), tiles=2)).faults
    ()
    """
    slots, pipeline = plan.slots, plan.pipeline
    if slots is None or pipeline is None:
        raise UnsupportedError(f"epilogue_protocol: D of the plan {plan.name!r} passes through no slots.")
    store = slots.store
    by_threads = not isinstance(store, TmaBox)
    in_rows = isinstance(store, TmaBox) and plan.operands.d.major == "n" and store.box[1] < slots.subtile[0]
    own_stores = in_rows or pipeline.consumer_warps == 1
    ring = _Ring(
        slots.count,
        product(slots.subtiles(pipeline.consumer_tile)),
        slots.load_c is not None,
        plan.barrier("c").transaction_bytes if slots.load_c is not None else 0,
        own_stores,
        by_threads,
        pipeline.consumer_warps,
    )
    programs = tuple(
        [Program(0, f"warp {warp}", tuple(_warp(ring, warp, tiles))) for warp in range(ring.warps)]
    )
    kept = tuple([barrier for barrier in plan.barriers if barrier.name in ("subtile", "c")])
    return Protocol(kept, programs, ((),))


def _warp(ring: _Ring, warp: int, tiles: int) -> list[Op]:
    ops: list[Op] = []
    stores = (ring.own_stores or warp == 0) and not ring.by_threads
    parts = (warp,) if ring.own_stores else tuple(range(ring.warps))
    for tile in range(tiles):
        if ring.has_c and warp == 0:
            ops.append(WaitStores(0))
            for i in range(min(ring.slots, ring.subtiles)):
                ops += _fetch(ring, tile, i)
        for i in range(ring.subtiles):
            slot, tag = i % ring.slots, (tile, i)
            if ring.has_c:
                ops.append(Wait("c", slot, ring.parity(tile * ring.subtiles + i)))
                ops.append(ReadSlot(slot, warp, tag))
            if ring.own_stores:
                ops.append(WaitStores(ring.slots - 1))
            ops.append(WriteSlot(slot, warp, tag))
            if not ring.own_stores:
                if stores and not ring.has_c:
                    ops.append(WaitStores(ring.slots - 2))
                ops.append(NamedSync("subtile", 0, WARP_THREADS))
            if ring.by_threads:  # rows of all warps
                ops.append(TakeSlot(slot, parts, tag, ring.warps))
            if stores:
                ops.append(StoreSlot(slot, parts, tag))
            if stores and ring.has_c:
                ops.append(WaitStores(ring.slots - 2))
                if ring.slots <= i + 2 < ring.subtiles:
                    ops += _fetch(ring, tile, i + 2)
    if stores:
        ops.append(WaitStores(0))
    return ops


def _fetch(ring: _Ring, tile: int, i: int) -> list[Op]:
    slot = i % ring.slots
    parts = tuple(range(ring.warps))
    return [Expect("c", slot, ring.bytes_of_c), FetchSlot("c", slot, slot, parts, (tile, i), ring.bytes_of_c)]
