"""Operations: what the steps of a program do at barriers and in memory, with every index, for one role of one CTA.

`expand` makes them from a program. The simulator plays them one at a time, in any order relative to other roles.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

from cutegemm.plan.program.steps import Step

Tag = tuple[
    int, int
]  # (tile, k-tile), or of an epilogue stage (tile, epilogue tile); tiles are counted in their order in a CTA

WHOLE_TILE = -1  # in a tag, instead of a k-tile: the whole tile
LAST, KEPT = "last", "held"  # flags: this is the last K split of a tile; a tile is kept in registers, to be stored

# --- barriers, stages and what one role has at a time --------------------------------------------------------


@dataclass(frozen=True)
class Wait:
    """Wait until a phase of an mbarrier of this CTA has ended.

    parity    parity of the phase
    flipped   whether each `FlipPhase` of this program that came before inverts the parity
    """

    barrier: str
    index: int
    parity: int
    flipped: bool = False


@dataclass(frozen=True)
class FlipPhase:
    """From here on, waits with `flipped` wait for the other parity."""


@dataclass(frozen=True)
class Arrive:
    """Arrive `count` times on an mbarrier of each of some CTAs."""

    barrier: str
    index: int
    count: int
    ctas: tuple[int, ...]


@dataclass(frozen=True)
class Expect:
    """Arrive once on an mbarrier and expect bytes: mbarrier.arrive.expect_tx."""

    barrier: str
    index: int
    size_bytes: int


@dataclass(frozen=True)
class Load:
    """Copy part of an operand to a stage of some CTAs; completes bytes on a barrier of each of them.

    operand   which box, such as "A0": the one that CTA 0 of the row loads for all of them
    """

    barrier: str
    index: int
    stage: int
    operand: str
    tag: Tag
    size_bytes: int
    ctas: tuple[int, ...]


@dataclass(frozen=True)
class Send(Load):
    """Send a role's accumulators to some CTAs. They are kept like a stage, numbered after those of the pipeline.

    sender   rank of the sending CTA among those that split K
    """

    sender: int = 0


@dataclass(frozen=True)
class BeginRead:
    """Begin to read a stage. Every operand in it must hold `tag`."""

    stage: int
    tag: Tag


@dataclass(frozen=True)
class EndRead:
    """End reading a stage."""

    stage: int


@dataclass(frozen=True)
class Enter:
    """Take a resource of the CTA for this role."""

    resource: str


@dataclass(frozen=True)
class Leave:
    """Give back a resource of the CTA."""

    resource: str


@dataclass(frozen=True)
class NamedArrive:
    """Arrive at a named barrier with `threads` threads, which do not wait: bar.arrive."""

    barrier: str
    index: int
    threads: int


@dataclass(frozen=True)
class NamedSync:
    """Arrive at a named barrier with `threads` threads and wait for the others: bar.sync."""

    barrier: str
    index: int
    threads: int


@dataclass(frozen=True)
class Mark:
    """Set a flag of this program."""

    flag: str
    value: bool


@dataclass(frozen=True)
class Branch:
    """Skip the next `count` operations if a flag is not set."""

    flag: str
    count: int


@dataclass(frozen=True)
class Compute:
    """Carry out a step that changes registers only.

    stage   the stage of shared memory that it reads, or -1
    """

    step: Step
    tag: Tag
    stage: int = -1


# --- epilogue stages of shared memory that D leaves through, and C comes to
# ---------------------------------------------


@dataclass(frozen=True)
class LoadEpiStage:
    """Load C to all pieces of an epilogue stage by a bulk copy; completes bytes on a barrier."""

    barrier: str
    index: int
    epi_stage: int
    pieces: tuple[int, ...]
    tag: Tag
    size_bytes: int


@dataclass(frozen=True)
class ReadEpiStage:
    """Read C from a piece of an epilogue stage."""

    epi_stage: int
    piece: int
    tag: Tag


@dataclass(frozen=True)
class WriteEpiStage:
    """Write a result, such as D, to a piece of an epilogue stage."""

    epi_stage: int
    piece: int
    tag: Tag
    result: str = "d"


@dataclass(frozen=True)
class StoreEpiStage:
    """Start a bulk store of pieces of an epilogue stage. They are read at any later time."""

    epi_stage: int
    pieces: tuple[int, ...]
    tag: Tag
    result: str = "d"


@dataclass(frozen=True)
class CopyEpiStage:
    """Copy pieces of an epilogue stage to global memory by one of `readers` warps.

    The pieces are free when all of these warps have read them.
    """

    epi_stage: int
    pieces: tuple[int, ...]
    tag: Tag
    readers: int
    result: str = "d"


@dataclass(frozen=True)
class WaitStores:
    """Wait until all bulk stores of this program but the last `pending` have read their epilogue stages."""

    pending: int


EpiStageOp = Union[LoadEpiStage, ReadEpiStage, WriteEpiStage, StoreEpiStage, CopyEpiStage, WaitStores]


# --- the parts of a tile, where K is split --------------------------------------------------------------------


@dataclass(frozen=True)
class IncrementSemaphore:
    """Increment a tile's semaphore and write its old value to the consumer's place in shared memory.

    tile   index of the semaphore: one for each tile, consumer row and CTA of a cluster
    """

    tile: int
    consumer: int
    tag: Tag


@dataclass(frozen=True)
class ReadSemaphore:
    """Set the flag `LAST` if the consumer of this warp is the last of `splits` K splits of a tile."""

    tile: int
    consumer: int
    splits: int


@dataclass(frozen=True)
class WriteAccumulators:
    """Store a warp's accumulators to a slot of the workspace, unless this is the last K split."""

    tile: int
    slot: int
    warp: int
    tag: Tag


@dataclass(frozen=True)
class SignalAccumulators:
    """Count a K split whose accumulators are stored, unless this is the last one."""

    tile: int


@dataclass(frozen=True)
class AwaitAccumulators:
    """The last K split waits until `others` have stored their accumulators."""

    tile: int
    others: int


@dataclass(frozen=True)
class ResetCounter:
    """The last K split sets the tile's counter to zero."""

    tile: int


@dataclass(frozen=True)
class ReadAccumulators:
    """The last K split: a warp adds what the same warp of another K split has stored."""

    tile: int
    slot: int
    warp: int
    tag: Tag


@dataclass(frozen=True)
class EndTile:
    """A warp has stored its share of a tile, or begun to."""

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
