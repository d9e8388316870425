"""Slots of shared memory that D leaves through, and C comes to: what they hold while a protocol is played.

operation      what it is on the hardware                          what must hold
LoadEpiStage   bulk load of an epilogue tile of C to an epilogue stage               nothing is in the epilogue stage,
or on its way ReadEpiStage    ldmatrix of a warp's rows                           they hold that epilogue tile of C
WriteEpiStage   stmatrix of a warp's rows                           no store still reads the epilogue stage
StoreEpiStage   bulk store of an epilogue stage, or of a warp's rows           they hold that epilogue tile of D
CopyEpiStage    a warp's share of an epilogue stage copied by its threads      it holds that epilogue tile of D
WaitStores      cp.async.bulk.wait_group.read: all but the last     - stores of this warp have read their epilogue
                stages
"""

from __future__ import annotations

from typing import Union

from cutegemm.plan.program.operations import (
    CopyEpiStage,
    EpiStageOp,
    LoadEpiStage,
    ReadEpiStage,
    StoreEpiStage,
    Tag,
    WaitStores,
    WriteEpiStage,
)
from cutegemm.simulator.protocol.protocol import Misuse

Held = Union[None, tuple[str, Tag]]  # ("C", "D" or another result, which)
Flight = tuple[int, int, int, Union[LoadEpiStage, StoreEpiStage]]  # (process, its number there, CTA, what)
Place = tuple[int, int, int]  # (CTA, epilogue stage, part)


class EpiStageState:
    """Parts of epilogue stages, and the bulk copies that read or write them."""

    def __init__(self) -> None:
        self.pieces: dict[Place, Held] = {}
        self.taken: dict[Place, int] = {}  # warps that have copied it
        self.flights: tuple[Flight, ...] = ()
        self.issued: dict[int, int] = {}  # process -> stores so far

    def copy(self) -> EpiStageState:
        """The same state, to go on from in another way."""
        other = EpiStageState()
        other.pieces, other.flights, other.issued = self.pieces.copy(), self.flights, self.issued.copy()
        other.taken = self.taken.copy()
        return other

    def key(self) -> tuple[object, ...]:
        """A key that is equal for states that go on alike."""
        return (
            frozenset(self.pieces.items()),
            frozenset(self.taken.items()),
            frozenset(self.flights),
            tuple(sorted(self.issued.items())),
        )

    def waits(self, process: int, op: WaitStores) -> bool:
        """Whether a store that is waited for has not read its epilogue stage yet."""
        first_free = self.issued.get(process, 0) - op.pending
        return any(
            who == process and number < first_free and isinstance(flying, StoreEpiStage)
            for who, number, _, flying in self.flights
        )

    def act(self, process: int, cta: int, op: EpiStageOp) -> None:
        """Lets one thing happen.

        raises   Misuse where it must not
        """
        if isinstance(op, LoadEpiStage):
            self._fetch(process, cta, op)
        elif isinstance(op, ReadEpiStage):
            self._read(cta, op)
        elif isinstance(op, WriteEpiStage):
            self._write(cta, op)
        elif isinstance(op, StoreEpiStage):
            self._store(process, cta, op)
        elif isinstance(op, CopyEpiStage):
            self._take(cta, op)

    def _fetch(self, process: int, cta: int, op: LoadEpiStage) -> None:
        """Starts a load of C."""
        self._free(
            cta, op.epi_stage, op.pieces, f"C of epilogue tile {op.tag} is loaded to epilogue stage {op.epi_stage}"
        )
        for piece in op.pieces:
            held = self.pieces.get((cta, op.epi_stage, piece))
            if held is not None:
                raise Misuse(
                    f"C of epilogue tile {op.tag} is loaded to epilogue stage {op.epi_stage}, which "
                    f"still has {_words(held)}."
                )
        self.flights = (*self.flights, (process, 0, cta, op))

    def land(self, flight: Flight) -> LoadEpiStage | None:
        """Ends a bulk copy: what a load has brought, or a store has read."""
        self.flights = tuple([f for f in self.flights if f != flight])
        cta, op = flight[2:]
        fetched = isinstance(op, LoadEpiStage)
        for piece in op.pieces:
            self.pieces[cta, op.epi_stage, piece] = ("C", op.tag) if fetched else None
        return op if isinstance(op, LoadEpiStage) else None

    def _read(self, cta: int, op: ReadEpiStage) -> None:
        """C must be there."""
        held = self.pieces.get((cta, op.epi_stage, op.piece))
        if held != ("C", op.tag):
            raise Misuse(
                f"C of epilogue tile {op.tag} is read from epilogue stage {op.epi_stage}, which has "
                f"{_words(held)}: early read."
            )

    def _write(self, cta: int, op: WriteEpiStage) -> None:
        """No bulk copy may still be at the part, and nothing that is yet to be stored may lie there."""
        name = op.result.upper()
        self._free(
            cta,
            op.epi_stage,
            (op.piece,),
            f"{name} of epilogue tile {op.tag} is written to epilogue stage {op.epi_stage}",
        )
        held = self.pieces.get((cta, op.epi_stage, op.piece))
        if held is not None and held[0] != "C":
            raise Misuse(
                f"{name} of epilogue tile {op.tag} is written to epilogue stage {op.epi_stage}, which "
                f"still has {_words(held)}."
            )
        self.pieces[cta, op.epi_stage, op.piece] = (name, op.tag)

    def _store(self, process: int, cta: int, op: StoreEpiStage) -> None:
        """All parts must have been written."""
        self._written(cta, op)
        number = self.issued.get(process, 0)
        self.issued[process] = number + 1
        self.flights = (*self.flights, (process, number, cta, op))

    def _take(self, cta: int, op: CopyEpiStage) -> None:
        """All parts must have been written; each is free when the last warp has copied it."""
        self._written(cta, op)
        for place in ((cta, op.epi_stage, piece) for piece in op.pieces):
            count = self.taken.pop(place, 0) + 1
            if count < op.readers:
                self.taken[place] = count
            else:
                self.pieces[place] = None

    def _written(self, cta: int, op: StoreEpiStage | CopyEpiStage) -> None:
        for piece in op.pieces:
            held = self.pieces.get((cta, op.epi_stage, piece))
            if held != (op.result.upper(), op.tag):
                which = "" if op.result == "d" else f"{op.result} of "
                raise Misuse(
                    f"epilogue stage {op.epi_stage} is stored as {which}epilogue tile {op.tag}, but "
                    f"its part {piece} has {_words(held)}: "
                    "early store."
                )

    def _free(self, cta: int, epi_stage: int, pieces: tuple[int, ...], what: str) -> None:
        for _, _, where, op in self.flights:
            if where == cta and op.epi_stage == epi_stage and set(op.pieces) & set(pieces):
                doing = "loads to" if isinstance(op, LoadEpiStage) else "reads"
                raise Misuse(
                    f"{what} while the bulk copy of epilogue tile {op.tag} still {doing} it: "
                    "overwritten epilogue stage."
                )


def _words(held: Held) -> str:
    return "nothing" if held is None else f"{held[0]} of epilogue tile {held[1]}"
