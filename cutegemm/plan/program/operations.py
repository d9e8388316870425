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
    """Operation of a role: wait until a phase of an mbarrier of this CTA has completed.

    barrier   name of the mbarrier, such as "full"
    index     index among the barriers of this name
    parity    parity of the phase
    flipped   whether each earlier `FlipPhase` of this role inverts the parity
    """

    barrier: str
    index: int
    parity: int
    flipped: bool = False


@dataclass(frozen=True)
class FlipPhase:
    """Operation of a role: invert the parity that all its later waits with `flipped` wait for."""


@dataclass(frozen=True)
class Arrive:
    """Operation of a role: arrive `count` times on an mbarrier in each of the CTAs `ctas`.

    barrier   name of the mbarrier, such as "empty"
    index     index among the barriers of this name
    """

    barrier: str
    index: int
    count: int
    ctas: tuple[int, ...]


@dataclass(frozen=True)
class Expect:
    """Operation of a role: arrive once on an mbarrier and announce bytes to wait for (arrive.expect_tx).

    barrier      name of the mbarrier, such as "full"
    index        index among the barriers of this name
    size_bytes   number of bytes
    """

    barrier: str
    index: int
    size_bytes: int


@dataclass(frozen=True)
class Load:
    """Operation of a role: load a box of an operand by TMA to a stage in each of several CTAs.

    barrier      name of the mbarrier on which the bytes complete, in each of these CTAs
    index        index among the barriers of this name
    stage        index of the stage of the mainloop pipeline
    operand      name of the box. "A0" is the box of A that the first CTA of `ctas` loads for all of them
    tag          (tile, k-tile) that the data belongs to
    size_bytes   number of bytes of the box
    ctas         the CTAs that receive it (multicast)
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
    """Operation of a role: send a consumer's accumulators to the CTAs of a cluster that splits K.

    The memory that receives them is numbered like a stage, after the stages of the mainloop pipeline.

    sender   rank of the sending CTA among those that split K
    """

    sender: int = 0


@dataclass(frozen=True)
class BeginRead:
    """Operation of a role: begin to read a stage. All operands in the stage must belong to the k-tile `tag`.

    tag   (tile, k-tile)
    """

    stage: int
    tag: Tag


@dataclass(frozen=True)
class EndRead:
    """Operation of a role: end reading a stage of shared memory, which `BeginRead` began."""

    stage: int


@dataclass(frozen=True)
class Enter:
    """Operation of a role: acquire a resource of the CTA for this role alone. Two roles in it at once are an error.

    resource   name, such as "tensor cores"
    """

    resource: str


@dataclass(frozen=True)
class Leave:
    """Operation of a role: release a resource of the CTA that `Enter` acquired.

    resource   name, such as "tensor cores"
    """

    resource: str


@dataclass(frozen=True)
class NamedArrive:
    """Operation of a role: arrive at a named barrier with `threads` threads, without waiting (bar.arrive).

    barrier   name of the barrier, such as "order"
    index     index among the barriers of this name
    """

    barrier: str
    index: int
    threads: int


@dataclass(frozen=True)
class NamedSync:
    """Operation of a role: arrive at a named barrier with `threads` threads and wait for the others (bar.sync).

    barrier   name of the barrier, such as "order"
    index     index among the barriers of this name
    """

    barrier: str
    index: int
    threads: int


@dataclass(frozen=True)
class Mark:
    """Operation of a role: set one of its flags to a value.

    flag    `LAST` (this is the last K split of a tile) or `KEPT` (a tile is kept in registers)
    """

    flag: str
    value: bool


@dataclass(frozen=True)
class Branch:
    """Operation of a role: skip its next `count` operations if a flag, `LAST` or `KEPT`, is not set."""

    flag: str
    count: int


@dataclass(frozen=True)
class Compute:
    """Operation of a role: execute a program step that has no effect on barriers or shared memory.

    Its results are in registers, or in global memory that no other operation reads.

    step    the step, such as a `Multiply`
    tag     (tile, k-tile or epilogue tile) that it works on
    stage   index of the stage that it reads; -1 for none
    """

    step: Step
    tag: Tag
    stage: int = -1


# --- epilogue stages: shared memory that C is loaded to, and D is stored through ------------------------------


@dataclass(frozen=True)
class LoadEpiStage:
    """Operation of a role: load C to the pieces of an epilogue stage by TMA, and complete bytes on an mbarrier.

    An epilogue stage is shared memory for an epilogue tile; a piece is the rows of one warp.

    barrier      name of the mbarrier
    index        index among the barriers of this name
    epi_stage    index of the epilogue stage among those of all consumers of the CTA
    pieces       indices of the pieces
    tag          (tile, epilogue tile) of the data
    size_bytes   number of bytes
    """

    barrier: str
    index: int
    epi_stage: int
    pieces: tuple[int, ...]
    tag: Tag
    size_bytes: int


@dataclass(frozen=True)
class ReadEpiStage:
    """Operation of a role: read C from a piece (the rows of one warp) of an epilogue stage.

    epi_stage   index of the epilogue stage among those of all consumers of the CTA
    tag         (tile, epilogue tile) that the data must belong to
    """

    epi_stage: int
    piece: int
    tag: Tag


@dataclass(frozen=True)
class WriteEpiStage:
    """Operation of a role: write a result, such as D, to a piece (the rows of one warp) of an epilogue stage.

    epi_stage   index of the epilogue stage among those of all consumers of the CTA
    tag         (tile, epilogue tile) of the data
    result      "d", or the name of an auxiliary output
    """

    epi_stage: int
    piece: int
    tag: Tag
    result: str = "d"


@dataclass(frozen=True)
class StoreEpiStage:
    """Operation of a role: start a bulk store of pieces (rows of a warp) of an epilogue stage.

    The store may read the pieces until a `WaitStores` has waited for it.

    epi_stage   index of the epilogue stage among those of all consumers of the CTA
    pieces      indices of the pieces
    tag         (tile, epilogue tile) that the data must belong to
    result      "d", or the name of an auxiliary output
    """

    epi_stage: int
    pieces: tuple[int, ...]
    tag: Tag
    result: str = "d"


@dataclass(frozen=True)
class CopyEpiStage:
    """Operation of a role: copy one warp's share of some pieces of an epilogue stage to global memory, by its threads.

    epi_stage   index of the epilogue stage among those of all consumers of the CTA
    pieces      indices of the pieces; a piece has the rows that one warp wrote
    tag         (tile, epilogue tile) that the data must belong to
    readers     number of warps that copy these pieces. The pieces are free when all of them have read
    result      "d", or the name of an auxiliary output
    """

    epi_stage: int
    pieces: tuple[int, ...]
    tag: Tag
    readers: int
    result: str = "d"


@dataclass(frozen=True)
class WaitStores:
    """Operation of a role: wait until all its bulk stores but the last `pending` have read their epilogue stages."""

    pending: int


EpiStageOp = Union[LoadEpiStage, ReadEpiStage, WriteEpiStage, StoreEpiStage, CopyEpiStage, WaitStores]


# --- K splits of a tile; `tile` is the index of its semaphore: one for each tile, CTA of a cluster and consumer


@dataclass(frozen=True)
class IncrementSemaphore:
    """Operation of a role: increment a tile's semaphore, and write its old value to shared memory for the consumer.

    tile       index of the semaphore
    consumer   index of the consumer
    tag        (tile among the work tiles of the CTA, 0)
    """

    tile: int
    consumer: int
    tag: Tag


@dataclass(frozen=True)
class ReadSemaphore:
    """Operation of a role: read the semaphore's old value, and set the flag `LAST` if this K split ends last.

    tile       index of the semaphore
    consumer   index of the consumer
    splits     number of K splits of the tile
    """

    tile: int
    consumer: int
    splits: int


@dataclass(frozen=True)
class WriteAccumulators:
    """Operation of a role: store a warp's accumulators to the workspace, unless this K split ends last.

    tile   index of the tile's semaphore
    slot   index of the slot: one for each K split, CTA of a cluster and consumer
    warp   index of the warp in its consumer
    tag    (tile among the work tiles of the CTA, 0)
    """

    tile: int
    slot: int
    warp: int
    tag: Tag


@dataclass(frozen=True)
class SignalAccumulators:
    """Operation of a role: count in the tile's semaphore that this K split's accumulators are in the workspace.

    Does nothing in the last K split to end.

    tile   index of the semaphore
    """

    tile: int


@dataclass(frozen=True)
class AwaitAccumulators:
    """Operation of the last K split of a tile: wait until `others` K splits have stored their accumulators.

    tile   index of the tile's semaphore
    """

    tile: int
    others: int


@dataclass(frozen=True)
class ResetCounter:
    """Operation of the last K split of a tile: reset the tile's semaphore to 0 for the next launch.

    tile   index of the semaphore
    """

    tile: int


@dataclass(frozen=True)
class ReadAccumulators:
    """Operation of the last K split of a tile: add the accumulators that the same warp of another K split has stored.

    tile   index of the tile's semaphore
    slot   index of the workspace slot of the other K split
    warp   index of the warp in its consumer
    tag    (tile among the work tiles of the CTA, index of the other K split)
    """

    tile: int
    slot: int
    warp: int
    tag: Tag


@dataclass(frozen=True)
class EndTile:
    """Operation that tells the simulator that a warp has stored its rows of a tile, or started the last store.

    tile   index of the tile's semaphore, which identifies the consumer's rows of the tile
    warp   index of the warp in its consumer
    """

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
