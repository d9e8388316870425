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
    """Simulated contents of the epilogue stages of all CTAs; checks each access to them, for `Machine`.

    An epilogue stage is shared memory for an epilogue tile. A piece of a stage is the rows that one warp writes. The
    state has the content of each piece, and the bulk copies (TMA loads and stores) that have started and not ended.
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
        """Return a hashable key of the contents of the epilogue stages, so that a search can visit each state once.

        States with equal keys have the same possible continuations.
        """
        return (
            frozenset(self.pieces.items()),
            frozenset(self.copied.items()),
            frozenset(self.flights),
            tuple(sorted(self.issued.items())),
        )

    def waits(self, process: int, op: WaitStores) -> bool:
        """Return whether a warp role must still wait, because one of its bulk stores still reads its epilogue stage.

        process   index of the simulated warp role of a CTA
        op        the wait that it executes next: for all its stores except the last `op.pending`
        """
        first_free = self.issued.get(process, 0) - op.pending
        return any(
            who == process and number < first_free and isinstance(flying, StoreEpiStage)
            for who, number, _, flying in self.flights
        )

    def act(self, process: int, cta: int, op: EpiStageOp) -> None:
        """Execute an operation on an epilogue stage (load, read, write, store or copy), and check that it is allowed.

        process   index of the simulated warp role of a CTA that executes it
        cta       index of its CTA
        op        the operation, which names the stage and the epilogue tile
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
        """Start a TMA load of C to some pieces of an epilogue stage. A piece is the rows of one warp.

        process   index of the simulated warp role of a CTA that executes it
        cta       index of its CTA
        op        the load, which names the stage, the pieces and the epilogue tile
        raises    Misuse if a piece is not empty, or another bulk copy uses it
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
        """Finish a bulk copy of an epilogue stage that was in flight.

        flight    (warp role that started it, number among its stores, CTA, operation)
        returns   the operation if the copy is a load; None if it is a store
        """
        self.flights = tuple([f for f in self.flights if f != flight])
        cta, op = flight[2:]
        fetched = isinstance(op, LoadEpiStage)
        for piece in op.pieces:
            self.pieces[cta, op.epi_stage, piece] = ("C", op.tag) if fetched else None
        return op if isinstance(op, LoadEpiStage) else None

    def _read(self, cta: int, op: ReadEpiStage) -> None:
        """Check that the rows of an epilogue stage that a warp reads contain C of the epilogue tile that it expects.

        cta      index of the CTA
        op       the read, which names the stage, the warp's piece (its rows) and the epilogue tile
        raises   Misuse if the piece contains something else
        """
        content = self.pieces.get((cta, op.epi_stage, op.piece))
        if content != ("C", op.tag):
            raise Misuse(
                f"C of epilogue tile {op.tag} is read from epilogue stage {op.epi_stage}, which contains "
                f"{_words(content)}: early read."
            )

    def _write(self, cta: int, op: WriteEpiStage) -> None:
        """Write a warp's rows of a result, such as D, to an epilogue stage, and check that the rows may be overwritten.

        cta      index of the CTA
        op       the write, which names the stage, the warp's piece (its rows), the result and the epilogue tile
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
        """Start a TMA store of some pieces of an epilogue stage, and check that they have been written.

        A piece is the rows of the stage that one warp writes. The store stays in flight until `land` ends it.

        process   index of the simulated warp role that starts the store
        cta       index of its CTA
        op        the store, which names the stage, the pieces, the result and the epilogue tile
        raises    Misuse if a piece does not contain that result of that epilogue tile
        """
        self._written(cta, op)
        number = self.issued.get(process, 0)
        self.issued[process] = number + 1
        self.flights = (*self.flights, (process, number, cta, op))

    def _take(self, cta: int, op: CopyEpiStage) -> None:
        """Record that one warp has copied its share of some pieces of an epilogue stage to global memory.

        A piece is the rows that one warp wrote. Several warps copy each piece. It is free when all of them have copied.

        cta      index of the CTA
        op       the copy, which names the stage and the pieces; `op.readers` is the number of warps that copy each
                 piece
        raises   Misuse if a piece has not been written
        """
        self._written(cta, op)
        for place in ((cta, op.epi_stage, piece) for piece in op.pieces):
            count = self.copied.pop(place, 0) + 1
            if count < op.readers:
                self.copied[place] = count
            else:
                self.pieces[place] = None

    def _written(self, cta: int, op: StoreEpiStage | CopyEpiStage) -> None:
        """Check that the pieces of an epilogue stage that are stored contain the right result and epilogue tile.

        A piece is the rows that one warp writes.

        cta      index of the CTA
        op       the store or copy, which names the stage, the pieces, the result and the epilogue tile
        raises   Misuse if a piece contains something else
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
        """Check that no bulk copy in flight uses some pieces of an epilogue stage. A piece is the rows of one warp.

        cta         index of the CTA
        epi_stage   index of the epilogue stage
        pieces      indices of the pieces
        what        text that names the access, for the message
        raises      Misuse if a bulk copy in flight uses one of them
        """
        for _, _, where, op in self.flights:
            if where == cta and op.epi_stage == epi_stage and set(op.pieces) & set(pieces):
                doing = "loads to" if isinstance(op, LoadEpiStage) else "reads"
                raise Misuse(
                    f"{what} while the bulk copy of epilogue tile {op.tag} still {doing} it: "
                    "overwritten epilogue stage."
                )


def _words(content: Content) -> str:
    """Return the content of a warp's rows of an epilogue stage as text: "nothing", or "D of epilogue tile (0, 1)"."""
    return "nothing" if content is None else f"{content[0]} of epilogue tile {content[1]}"
