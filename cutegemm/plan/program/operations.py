"""Operations: what the steps of a program are at barriers and in memory, with every index, for one role of one CTA.

`expand` makes them of a program; the simulator plays them, one at a time, in any order against those of other roles.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

from cutegemm.plan.program.steps import Step

Tag = tuple[
    int, int
]  # (tile, k-tile), or of a slot (tile, subtile); tiles are counted in their order in a CTA

OF_TILE = -1  # of a tag, in place of a k-tile: what is of all of the tile
LAST, HELD = "last", "held"  # flags: this is the last part of a tile; a tile is held, to be stored

# --- barriers, stages and what one role has at a time --------------------------------------------------------


@dataclass(frozen=True)
class Wait:
    """Until the phase of this parity of an mbarrier of the own CTA has ended.

    turned   whether the parity is turned round by each `Turn` of this program before
    """

    barrier: str
    index: int
    parity: int
    turned: bool = False


@dataclass(frozen=True)
class Turn:
    """The parity of what is waited for from here on is the other one."""


@dataclass(frozen=True)
class Arrive:
    """Arrivals on an mbarrier of each of some CTAs."""

    barrier: str
    index: int
    count: int
    ctas: tuple[int, ...]


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
class Send(Load):
    """Sums of a role, to a place of each of some CTAs: a stage behind those of the ring.

    sender   the CTA's number among those that share K
    """

    sender: int = 0


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
    """A resource of the CTA is taken by this role."""

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


@dataclass(frozen=True)
class Mark:
    """A flag of this program."""

    flag: str
    value: bool


@dataclass(frozen=True)
class Branch:
    """Past the next `count` operations, where a flag is not set."""

    flag: str
    count: int


@dataclass(frozen=True)
class Compute:
    """A step that changes registers alone.

    stage   of shared memory that it reads, else -1
    """

    step: Step
    tag: Tag
    stage: int = -1


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
    """A result, such as D, into a part of a slot."""

    slot: int
    part: int
    tag: Tag
    result: str = "d"


@dataclass(frozen=True)
class StoreSlot:
    """A bulk store of some parts of a slot, which are read at some time from now on."""

    slot: int
    parts: tuple[int, ...]
    tag: Tag
    result: str = "d"


@dataclass(frozen=True)
class TakeSlot:
    """Some parts of a slot copied to global memory by one of so many warps, which have all read them before they are
    free."""

    slot: int
    parts: tuple[int, ...]
    tag: Tag
    readers: int
    result: str = "d"


@dataclass(frozen=True)
class WaitStores:
    """Until all stores of this program but the last `pending` have read their slots."""

    pending: int


SlotOp = Union[FetchSlot, ReadSlot, WriteSlot, StoreSlot, TakeSlot, WaitStores]


# --- the parts of a tile, where K is split --------------------------------------------------------------------


@dataclass(frozen=True)
class TakeTicket:
    """1 is added to a tile's counter, and what was there goes to the consumer's ticket in shared memory.

    tile   of the counter: tiles of all consumers' rows, and of all CTAs of clusters, are counted
    """

    tile: int
    consumer: int
    tag: Tag


@dataclass(frozen=True)
class ReadTicket:
    """A warp learns whether its consumer is the last of so many parts of a tile: the flag `LAST`."""

    tile: int
    consumer: int
    parts: int


@dataclass(frozen=True)
class WriteSums:
    """A warp's sums to a slot of the workspace, unless it is of the last part."""

    tile: int
    slot: int
    warp: int
    tag: Tag


@dataclass(frozen=True)
class SignalSums:
    """1 is added to a tile's counter of parts whose sums are written, unless this is the last part."""

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
    tag: Tag


@dataclass(frozen=True)
class EndTile:
    """A warp has stored its part of a tile, or begun to."""

    tile: int
    warp: int


PartOp = Union[TakeTicket, ReadTicket, WriteSums, SignalSums, AwaitSums, ResetCounter, ReadSums, EndTile]

Op = Union[
    Wait, Turn, Arrive, Expect, Load, Send, BeginRead, EndRead, Enter, Leave, NamedArrive, NamedSync, Mark, Branch,
    Compute, SlotOp, PartOp,
]  # fmt: skip
