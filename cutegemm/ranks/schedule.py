"""The schedule of an operation: the buffers of each rank, and the steps that each rank issues, in order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cutegemm.dtypes import DType
from cutegemm.errors import UnsupportedError
from cutegemm.ranks.steps import Follow, Region, Signal, Step, Wait

MAIN = "main"  # the stream of the caller: all streams start after it, and it ends after all streams
SECOND = "second"  # every second GEMM, so that its first CTAs run next to the last ones of the GEMM before
COPY = "copy"  # copies by the copy engines
SIGNAL = "signal"  # signals that follow copies

# Buffers of the caller. The others belong to the group of ranks.
INPUT, OUTPUT = "x", "d"
# Buffers of final values: an `Add` or a `Gemm` that writes them also computes the epilogue.
FINAL = (OUTPUT, "reduced")


@dataclass(frozen=True)
class Buffer:
    """Describes a matrix that each rank has in its memory.

    name            "x" (operand of the rank), "d" (result of the rank), or the name of an internal buffer
    rows, columns   extents in elements; rows are contiguous
    dtype           element type
    is_symmetric    whether other ranks can access it. All ranks allocate a symmetric buffer together
    copies          number of copies, which consecutive calls use in turn: call e uses copy e % copies
    """

    name: str
    rows: int
    columns: int
    dtype: DType
    is_symmetric: bool = False
    copies: int = 1

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.columns * self.dtype.bits // 8

    @property
    def size_bytes(self) -> int:
        """Bytes of all copies of this buffer on one rank."""
        return self.rows * self.row_bytes * self.copies


@dataclass(frozen=True)
class Schedule:
    """Describes an operation of several ranks: what each rank launches, copies, signals and awaits, on which stream.

    A rank issues its steps in the order of its tuple. Steps of one stream run one after the other; steps of different
    streams run at the same time, unless a `Follow`, or a `Signal` and its `Wait`, orders them.

    operation     "all_gather", "reduce_scatter" or "all_reduce"
    form          "whole" (one GEMM), "by_shard" (one GEMM for each shard of rows, which overlaps with copies) or
                  "by_copy" (the same, then a sum)
    ranks         number of ranks
    m             rows of all ranks together
    n, k          columns and rows of the weights of one rank
    buffers       buffers that each rank has
    steps         steps of each rank
    chunks        launches for the rows of a shard, of a reduction by shard
    is_captured   whether a CUDA graph can replay the schedule: buffers have one copy, and a barrier comes first

    >>> from cutegemm.ranks import all_reduce
    >>> schedule = all_reduce(2, 128, 64, 32, form="whole")
    >>> print(schedule)
    all_reduce whole, 2 ranks: m=128 n=64 k=32
    >>> print(schedule.steps[0][0])
    gemm x[0:128] of rank 0 -> product[0:128] of rank 0
    """

    operation: str
    form: str
    ranks: int
    m: int
    n: int
    k: int
    buffers: tuple[Buffer, ...]
    steps: tuple[tuple[Step, ...], ...]
    chunks: int = 1
    is_captured: bool = False

    def __str__(self) -> str:
        return f"{self.operation} {self.way}, {self.ranks} ranks: m={self.m} n={self.n} k={self.k}"

    @property
    def way(self) -> str:
        """The form as text, with the number of chunks if there are several: "by_shard in 4 chunks"."""
        return f"{self.form} in {self.chunks} chunks" if self.chunks > 1 else self.form

    def buffer(self, name: str) -> Buffer:
        """Return the buffer with a name.

        raises   UnsupportedError if this schedule has no such buffer
        """
        for buffer in self.buffers:
            if buffer.name == name:
                return buffer
        names = ", ".join(buffer.name for buffer in self.buffers)
        raise UnsupportedError(f"Schedule.buffer: {name!r} is not a buffer of {self.operation}. Its buffers: {names}.")

    @property
    def flags(self) -> int:
        """Number of flags that each ordered pair of ranks needs."""
        return 1 + max((s.flag for steps in self.steps for s in steps if isinstance(s, Signal | Wait)), default=-1)

    def streams(self, rank: int) -> tuple[str, ...]:
        """Return the names of a rank's streams, in the order of their first steps."""
        return tuple(dict.fromkeys(step.stream for step in self.steps[rank]))

    def shard(self, rank: int) -> tuple[int, int]:
        """Return (first row, number of rows) of the rows of D that a rank owns: its share of `m`."""
        return shard(self.m, self.ranks, rank)

    def described(self, rank: int) -> str:
        """Return the steps of a rank as text: one line for each step, with its stream."""
        steps = self.steps[rank]
        width = max(len(step.stream) for step in steps)
        return "\n".join(f"{step.stream:{width}}  {step}" for step in steps)

    def violations(self) -> Iterator[str]:
        """Yield a sentence for each rule that a step breaks on its own, without regard to the other ranks.

        Regions are in their buffers, and those of other ranks in symmetric ones. A stream begins with a `Follow`, and
        the main stream follows its last step.
        """
        for rank, steps in enumerate(self.steps):
            for step in steps:
                for region in (*step.reads, *step.writes):
                    yield from self._wrong(rank, step, region)
            yield from self._loose(rank)

    def _wrong(self, rank: int, step: Step, region: Region) -> Iterator[str]:
        """Yield a sentence for each rule that a region of a step breaks.

        rank     rank that issues the step
        """
        buffer = self.buffer(region.buffer)
        if region.rank != rank and not buffer.is_symmetric:
            yield f"rank {rank}, {step}: {region} is not symmetric, so only rank {region.rank} can access it."
        if not 0 <= region.first_row < region.first_row + region.rows <= buffer.rows:
            yield f"rank {rank}, {step}: {region} is not in the buffer's {buffer.rows} rows."

    def _loose(self, rank: int) -> Iterator[str]:
        """Yield a sentence for each stream of a rank that does not begin or end with the main one."""
        known: dict[str, dict[str, int]] = {MAIN: {}}  # stream -> number of steps of each stream that it follows
        for number, step in enumerate(self.steps[rank], 1):
            if step.stream not in known and not isinstance(step, Follow):
                yield f"rank {rank}: stream {step.stream} begins with {step}. Let it follow another stream first."
            follows = known.setdefault(step.stream, {})
            if isinstance(step, Follow):
                for stream, count in known.get(step.after, {}).items():
                    follows[stream] = max(count, follows.get(stream, 0))
            follows[step.stream] = number
        for stream, follows in known.items():
            if follows.get(stream, 0) > known[MAIN].get(stream, 0):
                yield f"rank {rank}: the main stream does not follow the last step of stream {stream}."


def shard(rows: int, ranks: int, rank: int) -> tuple[int, int]:
    """Return (first row, number of rows) of a rank's share, if rows are divided as evenly as possible.

    >>> [shard(10, 4, rank) for rank in range(4)]
    [(0, 2), (2, 3), (5, 2), (7, 3)]
    """
    first = rows * rank // ranks
    return first, rows * (rank + 1) // ranks - first
