"""Slots of shared memory that D leaves through, and C comes to: what they hold while a protocol is played.

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

from typing import Union

from cutegemm.plan.program.operations import (
    FetchSlot,
    ReadSlot,
    SlotOp,
    StoreSlot,
    Tag,
    TakeSlot,
    WaitStores,
    WriteSlot,
)
from cutegemm.simulate.protocol.protocol import Misuse

Held = Union[None, tuple[str, Tag]]  # ("C", "D" or another result, which)
Flight = tuple[int, int, int, Union[FetchSlot, StoreSlot]]  # (process, its number there, CTA, what)
Place = tuple[int, int, int]  # (CTA, slot, part)


class SlotState:
    """Parts of slots, and the bulk copies that read or write them."""

    def __init__(self) -> None:
        self.parts: dict[Place, Held] = {}
        self.taken: dict[Place, int] = {}  # warps that have copied it
        self.flights: tuple[Flight, ...] = ()
        self.issued: dict[int, int] = {}  # process -> stores so far

    def copy(self) -> SlotState:
        """The same state, to go on from in another way."""
        other = SlotState()
        other.parts, other.flights, other.issued = self.parts.copy(), self.flights, self.issued.copy()
        other.taken = self.taken.copy()
        return other

    def key(self) -> tuple[object, ...]:
        """A key that is equal for states that go on alike."""
        return (
            frozenset(self.parts.items()),
            frozenset(self.taken.items()),
            frozenset(self.flights),
            tuple(sorted(self.issued.items())),
        )

    def waits(self, process: int, op: WaitStores) -> bool:
        """Whether a store that is waited for has not read its slot yet."""
        first_free = self.issued.get(process, 0) - op.pending
        return any(
            who == process and number < first_free and isinstance(flying, StoreSlot)
            for who, number, _, flying in self.flights
        )

    def act(self, process: int, cta: int, op: SlotOp) -> None:
        """Lets one thing happen.

        raises   Misuse where it must not
        """
        if isinstance(op, FetchSlot):
            self._fetch(process, cta, op)
        elif isinstance(op, ReadSlot):
            self._read(cta, op)
        elif isinstance(op, WriteSlot):
            self._write(cta, op)
        elif isinstance(op, StoreSlot):
            self._store(process, cta, op)
        elif isinstance(op, TakeSlot):
            self._take(cta, op)

    def _fetch(self, process: int, cta: int, op: FetchSlot) -> None:
        """Starts a load of C."""
        self._free(cta, op.slot, op.parts, f"C of subtile {op.tag} is loaded to slot {op.slot}")
        for part in op.parts:
            held = self.parts.get((cta, op.slot, part))
            if held is not None:
                raise Misuse(
                    f"C of subtile {op.tag} is loaded to slot {op.slot}, which still has {_words(held)}."
                )
        self.flights = (*self.flights, (process, 0, cta, op))

    def land(self, flight: Flight) -> FetchSlot | None:
        """Ends a bulk copy: what a load has brought, or a store has read."""
        self.flights = tuple([f for f in self.flights if f != flight])
        cta, op = flight[2:]
        fetched = isinstance(op, FetchSlot)
        for part in op.parts:
            self.parts[cta, op.slot, part] = ("C", op.tag) if fetched else None
        return op if isinstance(op, FetchSlot) else None

    def _read(self, cta: int, op: ReadSlot) -> None:
        """C must be there."""
        held = self.parts.get((cta, op.slot, op.part))
        if held != ("C", op.tag):
            raise Misuse(
                f"C of subtile {op.tag} is read from slot {op.slot}, which has {_words(held)}: early read."
            )

    def _write(self, cta: int, op: WriteSlot) -> None:
        """No bulk copy may still be at the part, and nothing that is yet to be stored may lie there."""
        name = op.result.upper()
        self._free(cta, op.slot, (op.part,), f"{name} of subtile {op.tag} is written to slot {op.slot}")
        held = self.parts.get((cta, op.slot, op.part))
        if held is not None and held[0] != "C":
            raise Misuse(
                f"{name} of subtile {op.tag} is written to slot {op.slot}, which still has {_words(held)}."
            )
        self.parts[cta, op.slot, op.part] = (name, op.tag)

    def _store(self, process: int, cta: int, op: StoreSlot) -> None:
        """All parts must have been written."""
        self._written(cta, op)
        number = self.issued.get(process, 0)
        self.issued[process] = number + 1
        self.flights = (*self.flights, (process, number, cta, op))

    def _take(self, cta: int, op: TakeSlot) -> None:
        """All parts must have been written; each is free when the last warp has copied it."""
        self._written(cta, op)
        for place in ((cta, op.slot, part) for part in op.parts):
            count = self.taken.pop(place, 0) + 1
            if count < op.readers:
                self.taken[place] = count
            else:
                self.parts[place] = None

    def _written(self, cta: int, op: StoreSlot | TakeSlot) -> None:
        for part in op.parts:
            held = self.parts.get((cta, op.slot, part))
            if held != (op.result.upper(), op.tag):
                which = "" if op.result == "d" else f"{op.result} of "
                raise Misuse(
                    f"slot {op.slot} is stored as {which}subtile {op.tag}, but its part {part} has {_words(held)}: "
                    "early store."
                )

    def _free(self, cta: int, slot: int, parts: tuple[int, ...], what: str) -> None:
        for _, _, where, op in self.flights:
            if where == cta and op.slot == slot and set(op.parts) & set(parts):
                doing = "loads to" if isinstance(op, FetchSlot) else "reads"
                raise Misuse(
                    f"{what} while the bulk copy of subtile {op.tag} still {doing} it: overwritten slot."
                )


def _words(held: Held) -> str:
    return "nothing" if held is None else f"{held[0]} of subtile {held[1]}"
