"""Operations: what the steps of a program are at barriers and in memory, with every index, for one role of one CTA.

`expand` makes them of a program; the simulator plays them, one at a time, in any order against those of other roles.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

from cutegemm.plan.program.steps import Step

Tag = tuple[
    int, int
]  # (tile, k-tile), or of an epilogue stage (tile, epilogue tile); tiles are counted in their order in a CTA

WHOLE_TILE = -1  # of a tag, in place of a k-tile: what is of all of the tile
LAST, KEPT = "last", "held"  # flags: this is the last part of a tile; a tile is held, to be stored

# --- barriers, stages and what one role has at a time --------------------------------------------------------


@dataclass(frozen=True)
class Wait:
    """Until the phase of this parity of an mbarrier of the own CTA has ended.

    flipped   whether the parity is turned round by each `FlipPhase` of this program before
    """

    barrier: str
    index: int
    parity: int
    flipped: bool = False


@dataclass(frozen=True)
class FlipPhase:
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
    operand: str
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


# --- epilogue stages of shared memory that D leaves through, and C comes to
# ---------------------------------------------


@dataclass(frozen=True)
class LoadEpiStage:
    """A bulk load of C to all parts of an epilogue stage, which completes bytes on a barrier."""

    barrier: str
    index: int
    epi_stage: int
    pieces: tuple[int, ...]
    tag: Tag
    size_bytes: int


@dataclass(frozen=True)
class ReadEpiStage:
    """C out of a part of an epilogue stage."""

    epi_stage: int
    piece: int
    tag: Tag


@dataclass(frozen=True)
class WriteEpiStage:
    """A result, such as D, into a part of an epilogue stage."""

    epi_stage: int
    piece: int
    tag: Tag
    result: str = "d"


@dataclass(frozen=True)
class StoreEpiStage:
    """A bulk store of some parts of an epilogue stage, which are read at some time from now on."""

    epi_stage: int
    pieces: tuple[int, ...]
    tag: Tag
    result: str = "d"


@dataclass(frozen=True)
class CopyEpiStage:
    """Some parts of an epilogue stage copied to global memory by one of so many warps, which have all read them before
    they are free."""

    epi_stage: int
    pieces: tuple[int, ...]
    tag: Tag
    readers: int
    result: str = "d"


@dataclass(frozen=True)
class WaitStores:
    """Until all stores of this program but the last `pending` have read their epilogue stages."""

    pending: int


EpiStageOp = Union[LoadEpiStage, ReadEpiStage, WriteEpiStage, StoreEpiStage, CopyEpiStage, WaitStores]


# --- the parts of a tile, where K is split --------------------------------------------------------------------


@dataclass(frozen=True)
class IncrementSemaphore:
    """1 is added to a tile's counter, and what was there goes to the consumer's ticket in shared memory.

    tile   of the counter: tiles of all consumers' rows, and of all CTAs of clusters, are counted
    """

    tile: int
    consumer: int
    tag: Tag


@dataclass(frozen=True)
class ReadSemaphore:
    """A warp learns whether its consumer is the last of so many parts of a tile: the flag `LAST`."""

    tile: int
    consumer: int
    splits: int


@dataclass(frozen=True)
class WriteAccumulators:
    """A warp's sums to a slot of the workspace, unless it is of the last part."""

    tile: int
    slot: int
    warp: int
    tag: Tag


@dataclass(frozen=True)
class SignalAccumulators:
    """1 is added to a tile's counter of parts whose sums are written, unless this is the last part."""

    tile: int


@dataclass(frozen=True)
class AwaitAccumulators:
    """The last part: until so many others have been written."""

    tile: int
    others: int


@dataclass(frozen=True)
class ResetCounter:
    """The last part: the tile's counter is zero again."""

    tile: int


@dataclass(frozen=True)
class ReadAccumulators:
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


SplitOp = Union[
    IncrementSemaphore,
    ReadSemaphore,
    WriteAccumulators,
    SignalAccumulators,
    AwaitAccumulators,
    ResetCounter,
    ReadAccumulators,
    EndTile,
]

Op = Union[
    Wait, FlipPhase, Arrive, Expect, Load, Send, BeginRead, EndRead, Enter, Leave, NamedArrive, NamedSync, Mark, Branch,
    Compute, EpiStageOp, SplitOp,
]  # fmt: skip
