"""What the roles of a kernel do to barriers and shared memory, operation by operation: programs, and protocols of them.

What each operation does to the state of a protocol is said where that is kept: `machine`, `slot_state`, `part_state`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Union

from cutegemm.plan.plan import Barrier

Tag = tuple[int, int]  # (tile, k-block), or of a slot (tile, subtile)


# --- barriers, stages and what one role has at a time --------------------------------------------------------


@dataclass(frozen=True)
class Wait:
    """Until the phase of this parity of an mbarrier of the own CTA has ended."""

    barrier: str
    index: int
    parity: int


@dataclass(frozen=True)
class Arrive:
    """Arrivals on an mbarrier of each of some CTAs, the own one where none is named."""

    barrier: str
    index: int
    count: int = 1
    ctas: tuple[int, ...] = ()


@dataclass(frozen=True)
class Expect:
    """mbarrier.arrive.expect_tx: bytes to wait for, and one arrival."""

    barrier: str
    index: int
    size_bytes: int


@dataclass(frozen=True)
class Load:
    """A bulk copy of a part of a stage to some CTAs, which completes bytes on a barrier of each."""

    barrier: str
    index: int
    stage: int
    part: str
    tag: Tag
    size_bytes: int
    ctas: tuple[int, ...]


@dataclass(frozen=True)
class BeginRead:
    """From here on a stage is read; it must hold `tag` in every part."""

    stage: int
    tag: Tag


@dataclass(frozen=True)
class EndRead:
    """The stage is no longer read."""

    stage: int


@dataclass(frozen=True)
class Enter:
    """A resource of the CTA is taken."""

    resource: str


@dataclass(frozen=True)
class Leave:
    """A resource of the CTA is given back."""

    resource: str


@dataclass(frozen=True)
class NamedArrive:
    """bar.arrive by so many threads, which do not wait."""

    barrier: str
    index: int
    threads: int


@dataclass(frozen=True)
class NamedSync:
    """bar.sync by so many threads, which wait for the others."""

    barrier: str
    index: int
    threads: int


# --- slots of shared memory that D leaves through, and C comes to ---------------------------------------------


@dataclass(frozen=True)
class FetchSlot:
    """A bulk load of C to all parts of a slot, which completes bytes on a barrier."""

    barrier: str
    index: int
    slot: int
    parts: tuple[int, ...]
    tag: Tag
    size_bytes: int


@dataclass(frozen=True)
class ReadSlot:
    """C out of a part of a slot."""

    slot: int
    part: int
    tag: Tag


@dataclass(frozen=True)
class WriteSlot:
    """D into a part of a slot."""

    slot: int
    part: int
    tag: Tag


@dataclass(frozen=True)
class StoreSlot:
    """A bulk store of some parts of a slot, which are read at some time from now on."""

    slot: int
    parts: tuple[int, ...]
    tag: Tag


@dataclass(frozen=True)
class TakeSlot:
    """Some parts of a slot copied to D by one of so many warps, which have all read them before they are free."""

    slot: int
    parts: tuple[int, ...]
    tag: Tag
    readers: int


@dataclass(frozen=True)
class WaitStores:
    """Until all stores of this program but the last `pending` have read their slots."""

    pending: int


SlotOp = Union[FetchSlot, ReadSlot, WriteSlot, StoreSlot, TakeSlot, WaitStores]


# --- the parts of a tile, where K is split --------------------------------------------------------------------


@dataclass(frozen=True)
class TakeTicket:
    """1 is added to a tile's counter, and what was there goes to the consumer's ticket in shared memory."""

    tile: int
    consumer: int


@dataclass(frozen=True)
class ReadTicket:
    """A warp learns whether its consumer is the last of so many parts of a tile."""

    tile: int
    consumer: int
    parts: int


@dataclass(frozen=True)
class WriteSums:
    """A warp's sums to a slot of the workspace, unless it is of the last part."""

    tile: int
    slot: int
    warp: int


@dataclass(frozen=True)
class SignalSums:
    """It is added to a tile's counter that a part has been written, unless it is the last one."""

    tile: int


@dataclass(frozen=True)
class AwaitSums:
    """The last part: until so many others have been written."""

    tile: int
    others: int


@dataclass(frozen=True)
class ResetCounter:
    """The last part: the tile's counter is zero again."""

    tile: int


@dataclass(frozen=True)
class ReadSums:
    """The last part: a warp adds what the same warp of another part has written."""

    tile: int
    slot: int
    warp: int


@dataclass(frozen=True)
class StoreTile:
    """A warp stores its part of a tile, unless it is not of the last part."""

    tile: int
    warp: int


PartOp = Union[TakeTicket, ReadTicket, WriteSums, SignalSums, AwaitSums, ResetCounter, ReadSums, StoreTile]


# --- programs -------------------------------------------------------------------------------------------------

Op = Union[
    Wait, Arrive, Expect, Load, BeginRead, EndRead, Enter, Leave, NamedArrive, NamedSync, SlotOp, PartOp
]


@dataclass(frozen=True)
class Program:
    """What one role of one CTA does."""

    cta: int
    role: str
    ops: tuple[Op, ...]

    def __str__(self) -> str:
        return f"{self.role} of CTA {self.cta}"


@dataclass(frozen=True)
class Protocol:
    """Programs, and the barriers that hold them together.

    barriers   of each CTA; `arrivals` end a phase, a named barrier's are threads
    parts      of a stage, by CTA: all must be there before it is read
    readers    roles that read each filling of a stage
    """

    barriers: tuple[Barrier, ...]
    programs: tuple[Program, ...]
    parts: tuple[tuple[str, ...], ...]
    readers: int = 1

    def edited(self, edit: Callable[[Program, Op], Op | None]) -> Protocol:
        """The protocol with each operation put through `edit`; None takes it out. For planting faults."""
        programs = []
        for program in self.programs:
            edited = [edit(program, op) for op in program.ops]
            programs.append(replace(program, ops=tuple([op for op in edited if op is not None])))
        return replace(self, programs=tuple(programs))

    def with_barrier(self, name: str, **changes: Any) -> Protocol:
        """The protocol with a barrier changed."""
        return replace(
            self, barriers=tuple([replace(b, **changes) if b.name == name else b for b in self.barriers])
        )


class ProtocolError(Exception):
    """What goes wrong in one interleaving."""


class Misuse(Exception):
    """What must not happen, before it is known which program did it; the machine makes a `ProtocolError` of it."""
