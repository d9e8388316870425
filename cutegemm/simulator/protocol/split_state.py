"""State of the K splits of tiles while a protocol is executed: semaphores, and accumulators in the workspace.

operation            on the hardware                                          condition
IncrementSemaphore   atom.add of 1, the result to shared memory               -
ReadSemaphore        ld.shared by each warp                                   the result is that of this tile
WriteAccumulators    st.global of a warp, except in the last K split          the slot is empty
SignalAccumulators   red.release of 1 << 16, except in the last K split       -
AwaitAccumulators    ld.acquire until all other K splits have written         -
ReadAccumulators     ld.global of a warp, in the last K split                 the same warp of the other one has written
ResetCounter         st of 0, in the last K split                             the semaphore is 0 at the end
EndTile              the tile has been stored                                 exactly once for each tile

The last K split of a tile is the one that increments the semaphore last. Two barriers of the 128 threads of a consumer
synchronize its warps: one after the semaphore is incremented, and one before the operations that follow.

A tile here is the part of the CTA's tile that has its own semaphore: the rows of one consumer.
"""

from __future__ import annotations

from cutegemm.plan.program.operations import (
    AwaitAccumulators,
    EndTile,
    IncrementSemaphore,
    ReadAccumulators,
    ReadSemaphore,
    ResetCounter,
    SignalAccumulators,
    SplitOp,
    WriteAccumulators,
)
from cutegemm.simulator.protocol.protocol import Misuse

Key = tuple[int, int]  # (CTA, consumer)


class SplitState:
    """State of all tiles whose K is split: their semaphores, and which accumulators each workspace slot holds.

    `act` executes an operation of a simulated warp role and checks it. A role executes the operations of both cases:
    "this K split of the tile ends last" and "it does not". Operations of the wrong case change nothing.
    """

    def __init__(self) -> None:
        self.counters: dict[int, tuple[int, int]] = {}  # tile -> (increments, K splits written)
        self.semaphores: dict[Key, tuple[int, int]] = {}  # value in shared memory: (tile, increments before)
        self.last: dict[int, bool] = {}  # process -> whether its work tile is the last K split
        self.slots: dict[tuple[int, int], int] = {}  # (slot, warp) -> tile of its accumulators
        self.stored: dict[tuple[int, int], int] = {}  # (tile, warp) -> number of stores

    def copy(self) -> SplitState:
        """Return a copy of the state of semaphores and workspace slots that can be changed independently."""
        other = SplitState()
        for name, value in vars(self).items():
            setattr(other, name, value.copy())
        return other

    def key(self) -> tuple[object, ...]:
        """Return a hashable key of semaphores and workspace slots, so that a search can visit each state once.

        States with equal keys have the same possible continuations.
        """
        return tuple([frozenset(value.items()) for value in vars(self).values()])

    def waits(self, process: int, op: AwaitAccumulators) -> bool:
        """Return whether a warp role must still wait until other K splits of its tile have written their accumulators.

        process   index of the simulated warp role of a CTA
        op        the wait, which names the tile and the number of K splits
        """
        return self.last.get(process, False) and self.counters[op.tile][1] < op.others

    def missing(self, op: AwaitAccumulators) -> str:
        """Return a text for messages: how many K splits of the tile a wait needs, and how many have been written.

        op   the wait, which names the tile
        """
        return f"{op.others} other K splits of tile {op.tile}; {self.counters[op.tile][1]} of them are written"

    def act(self, process: int, cta: int, op: SplitOp) -> bool | None:
        """Execute an operation on the K splits of a tile (semaphore or accumulators), and check that it is allowed.

        process   index of the simulated warp role of a CTA that executes it
        cta       index of its CTA
        op        the operation, which names the tile's semaphore
        returns   for `ReadSemaphore`, whether this is the last K split of the tile to end; else None
        raises    Misuse if shared memory or a workspace slot contains something else than the operation needs
        """
        if isinstance(op, IncrementSemaphore):
            increments, written = self.counters.get(op.tile, (0, 0))
            self.counters[op.tile] = (increments + 1, written)
            self.semaphores[cta, op.consumer] = (op.tile, increments)
        elif isinstance(op, ReadSemaphore):
            tile, before = self.semaphores.get((cta, op.consumer), (-1, 0))
            if tile != op.tile:
                what = "nothing" if tile < 0 else f"that of tile {tile}"
                raise Misuse(f"the semaphore of tile {op.tile} is read, but shared memory has {what}: early read.")
            self.last[process] = before == op.splits - 1
            return self.last[process]
        elif isinstance(op, EndTile):
            self.stored[op.tile, op.warp] = self.stored.get((op.tile, op.warp), 0) + 1
        elif isinstance(op, (WriteAccumulators, SignalAccumulators)):
            if not self.last[process]:
                self._leave(op)
        elif self.last[process]:
            self._end(op)
        return None

    def _leave(self, op: WriteAccumulators | SignalAccumulators) -> None:
        """Execute an operation of a K split that does not end last: write accumulators, or signal that this is done.

        op       the operation, which names the tile's semaphore and, for a write, the workspace slot
        raises   Misuse if the workspace slot still has other accumulators
        """
        if isinstance(op, SignalAccumulators):
            increments, written = self.counters[op.tile]
            self.counters[op.tile] = (increments, written + 1)
            return
        other = self.slots.get((op.slot, op.warp))
        if other is not None:
            raise Misuse(
                f"accumulators of tile {op.tile} are written to slot {op.slot}, which still has those of tile {other}."
            )
        self.slots[op.slot, op.warp] = op.tile

    def _end(self, op: SplitOp) -> None:
        """Execute an operation of the K split that ends last: read accumulators of another one, or reset the semaphore.

        op       the operation, which names the tile's semaphore and, for a read, the workspace slot
        raises   Misuse if the accumulators have not been written yet
        """
        if isinstance(op, ResetCounter):
            self.counters[op.tile] = (0, 0)
        elif isinstance(op, ReadAccumulators):
            written = self.slots.get((op.slot, op.warp))
            if written != op.tile:
                what = "nothing" if written is None else f"accumulators of tile {written}"
                raise Misuse(
                    f"accumulators of tile {op.tile} are read from slot {op.slot}, where this warp of the other K "
                    f"split has written {what}: early read of accumulators."
                )

    def leftovers(self, tiles: frozenset[int]) -> list[str]:
        """Return the faults that show at the end, as texts: semaphores that are not 0, tiles not stored exactly once.

        tiles   indices of the semaphores of the tiles that must be stored
        """
        out = [
            f"the semaphore of tile {tile} ends at {increments} increments and {written} K splits, not at zero."
            for tile, (increments, written) in self.counters.items()
            if increments or written
        ]
        out += [f"tile {tile} is stored by no consumer." for tile in tiles if (tile, 0) not in self.stored]
        return out + [f"tile {t} is stored {count} times." for (t, _), count in self.stored.items() if count != 1]
