"""Operations: the effects of a program's steps on barriers and memory, with every index, for one role of one CTA.

`expand` makes them from a program. The simulator executes them one at a time, interleaved in any order with those of
other roles. These fields have the same meaning in all classes:

    barrier      name of a barrier, such as "full"
    index        index of the barrier among those of its name
    stage        index of a stage of the mainloop pipeline
    epi_stage    index of an epilogue stage among those of all consumers of the CTA
    piece        index of a piece of an epilogue stage: the rows of one warp
    tag          the tile and k-tile, or epilogue tile, that data belongs to
    size_bytes   bytes that are announced, or copied
    ctas         the CTAs whose barriers or shared memory an operation reaches
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

from cutegemm.plan.program.steps import Step

# The data of a stage: (tile, k-tile). The data of an epilogue stage: (tile, epilogue tile). A tile is its index among
# the work tiles of a CTA.
Tag = tuple[int, int]

WHOLE_TILE = -1  # in a tag, instead of a k-tile: the whole tile
LAST, KEPT = "last", "held"  # flags: this is the last K split of a tile; a tile is kept in registers, to be stored

# --- barriers, stages and exclusive resources ----------------------------------------------------------------


@dataclass(frozen=True)
class Wait:
    """Wait until a phase of an mbarrier of this CTA has completed.

    parity    parity of the phase
    flipped   whether each earlier `FlipPhase` of this program inverts the parity
    """

    barrier: str
    index: int
    parity: int
    flipped: bool = False


@dataclass(frozen=True)
class FlipPhase:
    """Invert the parity that all later waits with `flipped` wait for."""


@dataclass(frozen=True)
class Arrive:
    """Arrive `count` times on an mbarrier of each of `ctas`."""

    barrier: str
    index: int
    count: int
    ctas: tuple[int, ...]


@dataclass(frozen=True)
class Expect:
    """Arrive once on an mbarrier and announce the bytes that its phase waits for: mbarrier.arrive.expect_tx."""

    barrier: str
    index: int
    size_bytes: int


@dataclass(frozen=True)
class Load:
    """Load a box of an operand to a stage in each of `ctas`, and complete bytes on a barrier of each of them.

    operand   name of the box. "A0" is the box of A that the first CTA of `ctas` loads for all of them
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
    """Send a consumer's accumulators to the CTAs of a cluster that splits K.

    The memory that receives them is numbered like a stage, after the stages of the mainloop pipeline.

    sender   rank of the sending CTA among those that split K
    """

    sender: int = 0


@dataclass(frozen=True)
class BeginRead:
    """Begin to read a stage of shared memory. All operands in it must belong to the k-tile `tag`."""

    stage: int
    tag: Tag


@dataclass(frozen=True)
class EndRead:
    """End reading a stage of shared memory."""

    stage: int


@dataclass(frozen=True)
class Enter:
    """Acquire a resource of the CTA, such as the tensor cores, for this role alone."""

    resource: str


@dataclass(frozen=True)
class Leave:
    """Release a resource of the CTA that `Enter` acquired."""

    resource: str


@dataclass(frozen=True)
class NamedArrive:
    """Arrive at a named barrier with `threads` threads, without waiting: bar.arrive."""

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
    """Set a flag of this role's program, `LAST` or `KEPT`, to a value."""

    flag: str
    value: bool


@dataclass(frozen=True)
class Branch:
    """Skip the next `count` operations if a flag, `LAST` or `KEPT`, is not set."""

    flag: str
    count: int


@dataclass(frozen=True)
class Compute:
    """Execute a step whose results are in registers, or in global memory that no other operation reads.

    stage   the stage that it reads, or -1
    """

    step: Step
    tag: Tag
    stage: int = -1


# --- epilogue stages: shared memory that C is loaded to, and D is stored through ------------------------------


@dataclass(frozen=True)
class LoadEpiStage:
    """Load C to the pieces of an epilogue stage by TMA, and complete bytes on a barrier."""

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
    """Start a bulk store of pieces of an epilogue stage. It may read them until a `WaitStores` has waited for it."""

    epi_stage: int
    pieces: tuple[int, ...]
    tag: Tag
    result: str = "d"


@dataclass(frozen=True)
class CopyEpiStage:
    """Copy one warp's share of some pieces of an epilogue stage to global memory.

    readers   number of warps that copy these pieces. The pieces are free when all of them have read
    """

    epi_stage: int
    pieces: tuple[int, ...]
    tag: Tag
    readers: int
    result: str = "d"


@dataclass(frozen=True)
class WaitStores:
    """Wait until all bulk stores of this program, except the last `pending`, have read their epilogue stages."""

    pending: int


EpiStageOp = Union[LoadEpiStage, ReadEpiStage, WriteEpiStage, StoreEpiStage, CopyEpiStage, WaitStores]


# --- K splits of a tile; `tile` is the index of its semaphore: one for each tile, CTA of a cluster and consumer


@dataclass(frozen=True)
class IncrementSemaphore:
    """Increment a tile's semaphore, and write its old value to shared memory for the consumer."""

    tile: int
    consumer: int
    tag: Tag


@dataclass(frozen=True)
class ReadSemaphore:
    """Read the old value of the semaphore, and set the flag `LAST` if this is the last of `splits` K splits to end."""

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
    """Count, in the tile's semaphore, a K split whose accumulators are in the workspace, unless this is the last."""

    tile: int


@dataclass(frozen=True)
class AwaitAccumulators:
    """Wait, in the last K split, until `others` K splits have stored their accumulators."""

    tile: int
    others: int


@dataclass(frozen=True)
class ResetCounter:
    """Reset the tile's semaphore to 0, in the last K split."""

    tile: int


@dataclass(frozen=True)
class ReadAccumulators:
    """Add, in the last K split, the accumulators that the same warp of another K split has stored."""

    tile: int
    slot: int
    warp: int
    tag: Tag


@dataclass(frozen=True)
class EndTile:
    """Mark, for the simulator, that a warp has stored its rows of a tile, or has started the last store."""

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
