"""State of the epilogue stages while a protocol is executed: their contents, and the bulk copies in flight.

A *piece* of an epilogue stage consists of the rows that one warp writes and reads.

operation       on the hardware                                     condition
LoadEpiStage    bulk load of an epilogue tile of C                  its pieces are empty, and no copy uses them
ReadEpiStage    ldmatrix of a warp's rows                           the piece contains this epilogue tile of C
WriteEpiStage   stmatrix of a warp's rows                           no copy uses the piece, and its content is not
                needed
StoreEpiStage   bulk store of all pieces, or of a warp's rows       they contain this epilogue tile of D
CopyEpiStage    a warp's share of the stage, copied by threads      all pieces contain this epilogue tile of D
WaitStores      cp.async.bulk.wait_group.read                       earlier stores of this warp have read their pieces
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

Content = Union[None, tuple[str, Tag]]  # ("C", "D" or an auxiliary output, epilogue tile); None: empty
Flight = tuple[int, int, int, Union[LoadEpiStage, StoreEpiStage]]  # (process, index of its store, CTA, operation)
Place = tuple[int, int, int]  # (CTA, epilogue stage, piece: the rows of one warp)


class EpiStageState:
    """Contents of the epilogue stages of all simulated CTAs, and the bulk copies in flight that read or write them.

    An epilogue stage is shared memory for an epilogue tile. A piece of it has the rows of one warp.
    """

    def __init__(self) -> None:
        self.pieces: dict[Place, Content] = {}
        self.copied: dict[Place, int] = {}  # number of warps that have copied the piece
        self.flights: tuple[Flight, ...] = ()
        self.issued: dict[int, int] = {}  # number of stores that each process has issued

    def copy(self) -> EpiStageState:
        """Return a copy of the state of the epilogue stages that can be changed independently."""
        other = EpiStageState()
        other.pieces, other.flights, other.issued = self.pieces.copy(), self.flights, self.issued.copy()
        other.copied = self.copied.copy()
        return other

    def key(self) -> tuple[object, ...]:
        """Return a hashable key of the state of the epilogue stages, so that a search can visit each state once.

        States with equal keys have the same possible continuations.
        """
        return (
            frozenset(self.pieces.items()),
            frozenset(self.copied.items()),
            frozenset(self.flights),
            tuple(sorted(self.issued.items())),
        )

    def waits(self, process: int, op: WaitStores) -> bool:
        """Return whether a process (role of a CTA) must still wait for one of its stores to read its epilogue stage.

        process   index of the process
        op        the operation that waits for all but the last `op.pending` stores
        """
        first_free = self.issued.get(process, 0) - op.pending
        return any(
            who == process and number < first_free and isinstance(flying, StoreEpiStage)
            for who, number, _, flying in self.flights
        )

    def act(self, process: int, cta: int, op: EpiStageOp) -> None:
        """Execute an operation on an epilogue stage, and check that it is allowed.

        process   index of the process (role of a CTA)
        cta       CTA of the process
        raises    Misuse if the stage is in use, or contains something else than the operation needs
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
        """Start a bulk load of C to pieces (rows of a warp) of an epilogue stage.

        process   index of the process (role of a CTA)
        cta       CTA of the process
        raises    Misuse if a piece is not empty, or another copy uses it
        """
        self._free(
            cta, op.epi_stage, op.pieces, f"C of epilogue tile {op.tag} is loaded to epilogue stage {op.epi_stage}"
        )
        for piece in op.pieces:
            content = self.pieces.get((cta, op.epi_stage, piece))
            if content is not None:
                raise Misuse(
                    f"C of epilogue tile {op.tag} is loaded to epilogue stage {op.epi_stage}, which "
                    f"still contains {_words(content)}."
                )
        self.flights = (*self.flights, (process, 0, cta, op))

    def land(self, flight: Flight) -> LoadEpiStage | None:
        """Finish a bulk copy of an epilogue stage; return its operation if it is a load, and None if it is a store.

        flight   the copy in flight
        """
        self.flights = tuple([f for f in self.flights if f != flight])
        cta, op = flight[2:]
        fetched = isinstance(op, LoadEpiStage)
        for piece in op.pieces:
            self.pieces[cta, op.epi_stage, piece] = ("C", op.tag) if fetched else None
        return op if isinstance(op, LoadEpiStage) else None

    def _read(self, cta: int, op: ReadEpiStage) -> None:
        """Check that the piece (a warp's rows) of an epilogue stage that a warp reads contains its epilogue tile of C.

        raises   Misuse if it contains something else
        """
        content = self.pieces.get((cta, op.epi_stage, op.piece))
        if content != ("C", op.tag):
            raise Misuse(
                f"C of epilogue tile {op.tag} is read from epilogue stage {op.epi_stage}, which contains "
                f"{_words(content)}: early read."
            )

    def _write(self, cta: int, op: WriteEpiStage) -> None:
        """Write a result to a piece (a warp's rows) of an epilogue stage.

        raises   Misuse if a bulk copy uses the piece, or it contains a result that is still to be stored
        """
        name = op.result.upper()
        self._free(
            cta,
            op.epi_stage,
            (op.piece,),
            f"{name} of epilogue tile {op.tag} is written to epilogue stage {op.epi_stage}",
        )
        content = self.pieces.get((cta, op.epi_stage, op.piece))
        if content is not None and content[0] != "C":
            raise Misuse(
                f"{name} of epilogue tile {op.tag} is written to epilogue stage {op.epi_stage}, which "
                f"still contains {_words(content)}."
            )
        self.pieces[cta, op.epi_stage, op.piece] = (name, op.tag)

    def _store(self, process: int, cta: int, op: StoreEpiStage) -> None:
        """Start a bulk store of pieces (rows of a warp) of an epilogue stage.

        process   index of the process (role of a CTA) that starts it
        raises    Misuse if one of the pieces has not been written
        """
        self._written(cta, op)
        number = self.issued.get(process, 0)
        self.issued[process] = number + 1
        self.flights = (*self.flights, (process, number, cta, op))

    def _take(self, cta: int, op: CopyEpiStage) -> None:
        """Copy a warp's share of pieces of an epilogue stage to global memory.

        A piece has the rows that one warp wrote. A piece becomes free when the last of the operation's `readers` warps
        has copied it.

        raises   Misuse if one of the pieces has not been written
        """
        self._written(cta, op)
        for place in ((cta, op.epi_stage, piece) for piece in op.pieces):
            count = self.copied.pop(place, 0) + 1
            if count < op.readers:
                self.copied[place] = count
            else:
                self.pieces[place] = None

    def _written(self, cta: int, op: StoreEpiStage | CopyEpiStage) -> None:
        """Check that all pieces of an epilogue stage that an operation stores contain its epilogue tile.

        raises   Misuse if one contains something else
        """
        for piece in op.pieces:
            content = self.pieces.get((cta, op.epi_stage, piece))
            if content != (op.result.upper(), op.tag):
                which = "" if op.result == "d" else f"{op.result} of "
                raise Misuse(
                    f"epilogue stage {op.epi_stage} is stored as {which}epilogue tile {op.tag}, but "
                    f"the rows of warp {piece} contain {_words(content)}: early store."
                )

    def _free(self, cta: int, epi_stage: int, pieces: tuple[int, ...], what: str) -> None:
        """Check that no bulk copy uses some pieces (rows of a warp) of an epilogue stage.

        cta         index of the CTA
        epi_stage   index of the epilogue stage
        pieces      indices of the pieces
        what        the operation, for the message
        raises      Misuse if a copy in flight uses one of them
        """
        for _, _, where, op in self.flights:
            if where == cta and op.epi_stage == epi_stage and set(op.pieces) & set(pieces):
                doing = "loads to" if isinstance(op, LoadEpiStage) else "reads"
                raise Misuse(
                    f"{what} while the bulk copy of epilogue tile {op.tag} still {doing} it: "
                    "overwritten epilogue stage."
                )


def _words(content: Content) -> str:
    """Return what a piece of an epilogue stage contains, as text: "nothing", or "D of epilogue tile (0, 1)"."""
    return "nothing" if content is None else f"{content[0]} of epilogue tile {content[1]}"
