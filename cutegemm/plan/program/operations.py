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
    """Simulated operation of a warp role: wait until a phase of an mbarrier of its CTA has completed.

    barrier   name of the mbarrier, such as "full"
    index     index among the barriers of this name
    parity    parity of the phase: 0 for the first, 1 for the second, and so on in turn
    flipped   whether each earlier `FlipPhase` of this role inverts the parity
    """

    barrier: str
    index: int
    parity: int
    flipped: bool = False


@dataclass(frozen=True)
class FlipPhase:
    """Simulated operation of a warp role: invert the parity that its later waits with `flipped` wait for."""


@dataclass(frozen=True)
class Arrive:
    """Simulated operation of a warp role: arrive `count` times on an mbarrier in each of the CTAs `ctas`.

    barrier   name of the mbarrier, such as "empty"
    index     index among the barriers of this name
    """

    barrier: str
    index: int
    count: int
    ctas: tuple[int, ...]


@dataclass(frozen=True)
class Expect:
    """Simulated operation of a warp role: arrive once on an mbarrier and announce bytes to wait for (arrive.expect_tx).

    barrier      name of the mbarrier, such as "full"
    index        index among the barriers of this name
    size_bytes   number of bytes
    """

    barrier: str
    index: int
    size_bytes: int


@dataclass(frozen=True)
class Load:
    """Simulated operation of a warp role: load a box of an operand by TMA to a stage of one or several CTAs.

    barrier      name of the mbarrier that counts the bytes, in each of these CTAs
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
    """Simulated operation of a warp role: send a consumer's accumulators to CTAs of its cluster (cluster split-K).

    The memory that receives them is numbered like a stage, after the stages of the mainloop pipeline.

    sender   rank of the sending CTA among the CTAs that split K
    """

    sender: int = 0


@dataclass(frozen=True)
class BeginRead:
    """Simulated operation of a warp role: begin to read a stage, where all operands must be those of the k-tile `tag`.

    tag   (tile, k-tile)
    """

    stage: int
    tag: Tag


@dataclass(frozen=True)
class EndRead:
    """Simulated operation of a warp role: end the read of a stage of shared memory that `BeginRead` began."""

    stage: int


@dataclass(frozen=True)
class Enter:
    """Simulated operation of a warp role: acquire a resource of the CTA. A fault is reported if another role has it.

    resource   name, such as "tensor cores"
    """

    resource: str


@dataclass(frozen=True)
class Leave:
    """Simulated operation of a warp role: release a resource of the CTA that `Enter` acquired.

    resource   name, such as "tensor cores"
    """

    resource: str


@dataclass(frozen=True)
class NamedArrive:
    """Simulated operation of a warp role: `threads` threads arrive at a named barrier without waiting (bar.arrive).

    barrier   name of the barrier, such as "order"
    index     index among the barriers of this name
    """

    barrier: str
    index: int
    threads: int


@dataclass(frozen=True)
class NamedSync:
    """Simulated operation of a warp role: `threads` threads arrive at a named barrier and wait there (bar.sync).

    barrier   name of the barrier, such as "order"
    index     index among the barriers of this name
    """

    barrier: str
    index: int
    threads: int


@dataclass(frozen=True)
class Mark:
    """Simulated operation of a warp role: set one of its flags, which decide its branches, to a value.

    flag    `LAST` (this is the last K split of a tile) or `KEPT` (a tile is kept in registers)
    """

    flag: str
    value: bool


@dataclass(frozen=True)
class Branch:
    """Simulated operation of a warp role: skip its next `count` operations if a flag, `LAST` or `KEPT`, is not set."""

    flag: str
    count: int


@dataclass(frozen=True)
class Compute:
    """Simulated operation of a warp role: execute a program step that has no effect on barriers or shared memory.

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
    """Simulated operation of a warp role: load C by TMA to some pieces of an epilogue stage.

    An epilogue stage is shared memory for an epilogue tile; a piece is the rows of one warp.

    barrier      name of the mbarrier that counts the bytes
    index        index among the barriers of this name
    epi_stage    index of the epilogue stage among the stages of all consumers of the CTA
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
    """Simulated operation of a warp role: read C from an epilogue stage, the rows of one warp.

    epi_stage   index of the epilogue stage among the stages of all consumers of the CTA
    piece       index of the warp's rows in the stage
    tag         (tile, epilogue tile) that the data must belong to
    """

    epi_stage: int
    piece: int
    tag: Tag


@dataclass(frozen=True)
class WriteEpiStage:
    """Simulated operation of a warp role: write a result, such as D, to an epilogue stage, the rows of one warp.

    epi_stage   index of the epilogue stage among the stages of all consumers of the CTA
    piece       index of the warp's rows in the stage
    tag         (tile, epilogue tile) of the data
    result      "d", or the name of an auxiliary output
    """

    epi_stage: int
    piece: int
    tag: Tag
    result: str = "d"


@dataclass(frozen=True)
class StoreEpiStage:
    """Simulated operation of a warp role: start a TMA store of some pieces of an epilogue stage.

    A piece is the rows of one warp. The store may read the pieces until a `WaitStores` has waited for it.

    epi_stage   index of the epilogue stage among the stages of all consumers of the CTA
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
    """Simulated operation of a warp role: copy its share of some pieces of an epilogue stage to global memory.

    A piece is the rows that one warp wrote.

    epi_stage   index of the epilogue stage among the stages of all consumers of the CTA
    pieces      indices of the pieces
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
    """Simulated operation of a warp role: wait until all its TMA stores but the last `pending` have read their data."""

    pending: int


EpiStageOp = Union[LoadEpiStage, ReadEpiStage, WriteEpiStage, StoreEpiStage, CopyEpiStage, WaitStores]


# --- K splits of a tile; `tile` is the index of its semaphore: one for each tile, CTA of a cluster and consumer


@dataclass(frozen=True)
class IncrementSemaphore:
    """Simulated operation of a warp role: increment a tile's semaphore; put its old value into shared memory.

    The consumer reads the value there, to find out whether its K split of the tile is the last.

    tile       index of the semaphore
    consumer   index of the consumer
    tag        (index of the tile among the work tiles of the CTA, 0)
    """

    tile: int
    consumer: int
    tag: Tag


@dataclass(frozen=True)
class ReadSemaphore:
    """Simulated operation of a warp role: read a semaphore's old value; set the flag `LAST` if this K split ends last.

    tile       index of the semaphore
    consumer   index of the consumer
    splits     number of K splits of the tile
    """

    tile: int
    consumer: int
    splits: int


@dataclass(frozen=True)
class WriteAccumulators:
    """Simulated operation of a warp role: store a warp's accumulators to the workspace, unless this K split ends last.

    tile   index of the tile's semaphore
    slot   index of the slot: one for each K split, CTA of a cluster and consumer
    warp   index of the warp in its consumer
    tag    (index of the tile among the work tiles of the CTA, 0)
    """

    tile: int
    slot: int
    warp: int
    tag: Tag


@dataclass(frozen=True)
class SignalAccumulators:
    """Simulated operation of a warp role: record in a semaphore that this K split's accumulators are in the workspace.

    It does nothing in the K split of a tile that ends last.

    tile   index of the semaphore
    """

    tile: int


@dataclass(frozen=True)
class AwaitAccumulators:
    """Simulated operation of the K split of a tile that ends last: wait for the accumulators of the other K splits.

    tile     index of the tile's semaphore
    others   number of other K splits, whose accumulators must have been stored to the workspace
    """

    tile: int
    others: int


@dataclass(frozen=True)
class ResetCounter:
    """Simulated operation of the K split of a tile that ends last: reset the semaphore to 0 for the next launch.

    tile   index of the semaphore
    """

    tile: int


@dataclass(frozen=True)
class ReadAccumulators:
    """Simulated operation of the K split of a tile that ends last: add the accumulators of another K split.

    tile   index of the tile's semaphore
    slot   index of the workspace slot of the other K split
    warp   index of the warp in its consumer, which adds what the same warp of the other K split has stored
    tag    (index of the tile among the work tiles of the CTA, index of the other K split)
    """

    tile: int
    slot: int
    warp: int
    tag: Tag


@dataclass(frozen=True)
class EndTile:
    """Simulated operation that records that a warp has stored its rows of a tile, or has started the last store.

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
