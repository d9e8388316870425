"""What slots hold while a protocol is played; who writes, reads and stores them is told in `slots`."""

from __future__ import annotations

from typing import Union

from cutegemm.simulate.protocol.program import (
    FetchSlot,
    Misuse,
    ReadSlot,
    SlotOp,
    StoreSlot,
    Tag,
    TakeSlot,
    WaitStores,
    WriteSlot,
)

Held = Union[None, tuple[str, Tag]]  # ("C" or "D", which)
Flight = tuple[int, int, Union[FetchSlot, StoreSlot]]  # (program, its number there, what)


class SlotState:
    """Parts of slots, and the bulk copies that read or write them."""

    def __init__(self) -> None:
        self.parts: dict[tuple[int, int], Held] = {}  # (slot, part)
        self.taken: dict[tuple[int, int], int] = {}  # (slot, part) -> warps that have copied it
        self.flights: tuple[Flight, ...] = ()
        self.issued: dict[int, int] = {}  # program -> stores so far

    def copy(self) -> SlotState:
        """The same state, to go on from in another way."""
        other = SlotState()
        other.parts, other.flights, other.issued = self.parts.copy(), self.flights, self.issued.copy()
        other.taken = self.taken.copy()
        return other

    def key(self) -> tuple[object, ...]:
        """What two states that go on alike have in common."""
        return (
            frozenset(self.parts.items()),
            frozenset(self.taken.items()),
            frozenset(self.flights),
            tuple(sorted(self.issued.items())),
        )

    def waits(self, program: int, op: WaitStores) -> bool:
        """Whether a store that is waited for has not read its slot yet."""
        first_free = self.issued.get(program, 0) - op.pending
        return any(
            who == program and number < first_free and isinstance(op, StoreSlot)
            for who, number, op in self.flights
        )

    def act(self, program: int, op: SlotOp) -> None:
        """Lets one thing happen.

        raises   Misuse where it must not
        """
        if isinstance(op, FetchSlot):
            self._fetch(program, op)
        elif isinstance(op, ReadSlot):
            self._read(op)
        elif isinstance(op, WriteSlot):
            self._write(op)
        elif isinstance(op, StoreSlot):
            self._store(program, op)
        elif isinstance(op, TakeSlot):
            self._take(op)

    def _fetch(self, program: int, op: FetchSlot) -> None:
        """Starts a load of C."""
        self._free(op.slot, op.parts, f"C of subtile {op.tag} is loaded to slot {op.slot}")
        for part in op.parts:
            held = self.parts.get((op.slot, part))
            if held is not None:
                raise Misuse(
                    f"C of subtile {op.tag} is loaded to slot {op.slot}, which still has {_words(held)}."
                )
        self.flights = (*self.flights, (program, 0, op))

    def land(self, flight: Flight) -> FetchSlot | None:
        """Ends a bulk copy: what a load has brought, or a store has read."""
        self.flights = tuple([f for f in self.flights if f != flight])
        op = flight[2]
        fetched = isinstance(op, FetchSlot)
        for part in op.parts:
            self.parts[op.slot, part] = ("C", op.tag) if fetched else None
        return op if isinstance(op, FetchSlot) else None

    def _read(self, op: ReadSlot) -> None:
        """C must be there."""
        held = self.parts.get((op.slot, op.part))
        if held != ("C", op.tag):
            raise Misuse(
                f"C of subtile {op.tag} is read from slot {op.slot}, which has {_words(held)}: early read."
            )

    def _write(self, op: WriteSlot) -> None:
        """No bulk copy may still be at the part, and nothing that is yet to be stored may lie there."""
        self._free(op.slot, (op.part,), f"D of subtile {op.tag} is written to slot {op.slot}")
        held = self.parts.get((op.slot, op.part))
        if held is not None and held[0] == "D":
            raise Misuse(
                f"D of subtile {op.tag} is written to slot {op.slot}, which still has {_words(held)}."
            )
        self.parts[op.slot, op.part] = ("D", op.tag)

    def _store(self, program: int, op: StoreSlot) -> None:
        """All parts must have been written."""
        self._written(op)
        number = self.issued.get(program, 0)
        self.issued[program] = number + 1
        self.flights = (*self.flights, (program, number, op))

    def _take(self, op: TakeSlot) -> None:
        """All parts must have been written; each is free when the last warp has copied it."""
        self._written(op)
        for place in ((op.slot, part) for part in op.parts):
            count = self.taken.pop(place, 0) + 1
            if count < op.readers:
                self.taken[place] = count
            else:
                self.parts[place] = None

    def _written(self, op: StoreSlot | TakeSlot) -> None:
        for part in op.parts:
            held = self.parts.get((op.slot, part))
            if held != ("D", op.tag):
                raise Misuse(
                    f"slot {op.slot} is stored as subtile {op.tag}, but its part {part} has {_words(held)}: "
                    "early store."
                )

    def _free(self, slot: int, parts: tuple[int, ...], what: str) -> None:
        for _, _, op in self.flights:
            if op.slot == slot and set(op.parts) & set(parts):
                doing = "loads to" if isinstance(op, FetchSlot) else "reads"
                raise Misuse(
                    f"{what} while the bulk copy of subtile {op.tag} still {doing} it: overwritten slot."
                )


def _words(held: Held) -> str:
    return "nothing" if held is None else f"{held[0]} of subtile {held[1]}"
