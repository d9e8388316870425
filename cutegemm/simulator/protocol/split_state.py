"""The parts of a tile, where K is split: what the workspace and its counters hold while a protocol is played.

operation            what it is on the hardware                       what must hold
IncrementSemaphore   atom.add of 1, the result to shared memory       -
ReadSemaphore        ld.shared by each warp                           it is that of this tile
WriteAccumulators    st.global of a warp, unless it is of the last    nothing is in the slot
SignalAccumulators   red.release of 1 << 16, unless of the last       -
AwaitAccumulators    ld.acquire until all others have written         -
ReadAccumulators     ld.global of a warp of the last                  the same warp of the other part has written it
ResetCounter         st of 0 by the last                              it is zero at the end
EndTile              the tile has been stored                         once for each tile

Two barriers of a consumer's 128 threads hold its warps together: after the ticket, and before what follows. A
tile here is a counter: that of a consumer's rows of a CTA's tile.
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
    """Counters, tickets and slots. Operations of the branch that a warp is not in do nothing."""

    def __init__(self) -> None:
        self.counters: dict[int, tuple[int, int]] = {}  # tile -> tickets taken, parts written
        self.semaphores: dict[Key, tuple[int, int]] = {}  # -> (tile, how many had come before)
        self.last: dict[int, bool] = {}  # process -> whether its work tile is the last part
        self.epi_stages: dict[tuple[int, int], int] = {}  # (slot, warp) -> the tile whose sums it has
        self.stored: dict[tuple[int, int], int] = {}  # (tile, warp) -> times

    def copy(self) -> SplitState:
        """The same state, to go on from in another way."""
        other = SplitState()
        for name, value in vars(self).items():
            setattr(other, name, value.copy())
        return other

    def key(self) -> tuple[object, ...]:
        """A key that is equal for states that go on alike."""
        return tuple([frozenset(value.items()) for value in vars(self).values()])

    def waits(self, process: int, op: AwaitAccumulators) -> bool:
        """Whether parts that are waited for have not been written yet."""
        return self.last.get(process, False) and self.counters[op.tile][1] < op.others

    def missing(self, op: AwaitAccumulators) -> str:
        """The parts that are waited for, in words."""
        return f"{op.others} other parts of tile {op.tile}, of which {self.counters[op.tile][1]} are written"

    def act(self, process: int, cta: int, op: SplitOp) -> bool | None:
        """Lets one thing happen; whether this is the last part of a tile, where that is learned.

        raises   Misuse where it must not
        """
        if isinstance(op, IncrementSemaphore):
            taken, written = self.counters.get(op.tile, (0, 0))
            self.counters[op.tile] = (taken + 1, written)
            self.semaphores[cta, op.consumer] = (op.tile, taken)
        elif isinstance(op, ReadSemaphore):
            tile, before = self.semaphores.get((cta, op.consumer), (-1, 0))
            if tile != op.tile:
                what = "nothing" if tile < 0 else f"that of tile {tile}"
                raise Misuse(f"the ticket of tile {op.tile} is read, but shared memory has {what}: early read.")
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
        if isinstance(op, SignalAccumulators):
            taken, written = self.counters[op.tile]
            self.counters[op.tile] = (taken, written + 1)
            return
        held = self.epi_stages.get((op.slot, op.warp))
        if held is not None:
            raise Misuse(f"sums of tile {op.tile} are written to slot {op.slot}, which has those of tile {held}.")
        self.epi_stages[op.slot, op.warp] = op.tile

    def _end(self, op: SplitOp) -> None:
        if isinstance(op, ResetCounter):
            self.counters[op.tile] = (0, 0)
        elif isinstance(op, ReadAccumulators):
            held = self.epi_stages.get((op.slot, op.warp))
            if held != op.tile:
                what = "nothing" if held is None else f"sums of tile {held}"
                raise Misuse(
                    f"sums of tile {op.tile} are read from slot {op.slot}, where this warp of the other part has "
                    f"written {what}: early read of a partial sum."
                )

    def leftovers(self, tiles: frozenset[int]) -> list[str]:
        """Faults that show when all processes have ended.

        tiles   that are to be stored
        """
        out = [
            f"the counter of tile {tile} is left at {taken} tickets and {written} parts, not at zero."
            for tile, (taken, written) in self.counters.items()
            if taken or written
        ]
        out += [f"tile {tile} is stored by no consumer." for tile in tiles if (tile, 0) not in self.stored]
        return out + [f"tile {t} is stored {count} times." for (t, _), count in self.stored.items() if count != 1]
