"""The parts of a tile, where K is split: what the workspace and its counters hold while a protocol is played.

operation      what it is on the hardware                       what must hold
TakeTicket     atom.add of 1, the result to shared memory       -
ReadTicket     ld.shared by each warp                           it is that of this tile
WriteSums      st.global of a warp, unless it is of the last    nothing is in the slot
SignalSums     red.release of 1 << 16, unless of the last       -
AwaitSums      ld.acquire until all others have written         -
ReadSums       ld.global of a warp of the last                  the same warp of the other part has written it
ResetCounter   st of 0 by the last                              it is zero at the end
EndTile        the tile has been stored                         once for each tile

Two barriers of a consumer's 128 threads hold its warps together: after the ticket, and before what follows. A
tile here is a counter: that of a consumer's rows of a CTA's tile.
"""

from __future__ import annotations

from cutegemm.plan.program.operations import (
    AwaitSums,
    EndTile,
    PartOp,
    ReadSums,
    ReadTicket,
    ResetCounter,
    SignalSums,
    TakeTicket,
    WriteSums,
)
from cutegemm.simulate.protocol.protocol import Misuse

Key = tuple[int, int]  # (CTA, consumer)


class PartState:
    """Counters, tickets and slots. Operations of the branch that a warp is not in do nothing."""

    def __init__(self) -> None:
        self.counters: dict[int, tuple[int, int]] = {}  # tile -> tickets taken, parts written
        self.tickets: dict[Key, tuple[int, int]] = {}  # -> (tile, how many had come before)
        self.last: dict[int, bool] = {}  # process -> whether its work tile is the last part
        self.slots: dict[tuple[int, int], int] = {}  # (slot, warp) -> the tile whose sums it has
        self.stored: dict[tuple[int, int], int] = {}  # (tile, warp) -> times

    def copy(self) -> PartState:
        """The same state, to go on from in another way."""
        other = PartState()
        for name, value in vars(self).items():
            setattr(other, name, value.copy())
        return other

    def key(self) -> tuple[object, ...]:
        """A key that is equal for states that go on alike."""
        return tuple([frozenset(value.items()) for value in vars(self).values()])

    def waits(self, process: int, op: AwaitSums) -> bool:
        """Whether parts that are waited for have not been written yet."""
        return self.last.get(process, False) and self.counters[op.tile][1] < op.others

    def missing(self, op: AwaitSums) -> str:
        """The parts that are waited for, in words."""
        return f"{op.others} other parts of tile {op.tile}, of which {self.counters[op.tile][1]} are written"

    def act(self, process: int, cta: int, op: PartOp) -> bool | None:
        """Lets one thing happen; whether this is the last part of a tile, where that is learned.

        raises   Misuse where it must not
        """
        if isinstance(op, TakeTicket):
            taken, written = self.counters.get(op.tile, (0, 0))
            self.counters[op.tile] = (taken + 1, written)
            self.tickets[cta, op.consumer] = (op.tile, taken)
        elif isinstance(op, ReadTicket):
            tile, before = self.tickets.get((cta, op.consumer), (-1, 0))
            if tile != op.tile:
                what = "nothing" if tile < 0 else f"that of tile {tile}"
                raise Misuse(
                    f"the ticket of tile {op.tile} is read, but shared memory has {what}: early read."
                )
            self.last[process] = before == op.parts - 1
            return self.last[process]
        elif isinstance(op, EndTile):
            self.stored[op.tile, op.warp] = self.stored.get((op.tile, op.warp), 0) + 1
        elif isinstance(op, (WriteSums, SignalSums)):
            if not self.last[process]:
                self._leave(op)
        elif self.last[process]:
            self._end(op)
        return None

    def _leave(self, op: WriteSums | SignalSums) -> None:
        if isinstance(op, SignalSums):
            taken, written = self.counters[op.tile]
            self.counters[op.tile] = (taken, written + 1)
            return
        held = self.slots.get((op.slot, op.warp))
        if held is not None:
            raise Misuse(
                f"sums of tile {op.tile} are written to slot {op.slot}, which has those of tile {held}."
            )
        self.slots[op.slot, op.warp] = op.tile

    def _end(self, op: PartOp) -> None:
        if isinstance(op, ResetCounter):
            self.counters[op.tile] = (0, 0)
        elif isinstance(op, ReadSums):
            held = self.slots.get((op.slot, op.warp))
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
        return out + [
            f"tile {t} is stored {count} times." for (t, _), count in self.stored.items() if count != 1
        ]
