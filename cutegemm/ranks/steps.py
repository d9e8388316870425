"""Steps of a rank: launches, copies, signals and waits, each on a stream of the rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Region:
    """Describes consecutive rows of a buffer of one rank, each row with all its columns.

    rank        rank whose memory the rows are in
    buffer      name of the buffer, such as "gathered"
    first_row   index of the first row in the buffer
    rows        number of rows, at least 1

    >>> print(Region(1, "gathered", 64, 32))
    gathered[64:96] of rank 1
    """

    rank: int
    buffer: str
    first_row: int
    rows: int

    def __str__(self) -> str:
        return f"{self.buffer}[{self.first_row}:{self.first_row + self.rows}] of rank {self.rank}"


@dataclass(frozen=True)
class Step:
    """Base class of the steps of a rank. A step starts when the earlier steps of its stream have ended.

    stream   name of the stream, such as "main"
    """

    stream: str

    @property
    def reads(self) -> tuple[Region, ...]:
        """Regions that this step reads."""
        return ()

    @property
    def writes(self) -> tuple[Region, ...]:
        """Regions that this step overwrites."""
        return ()


@dataclass(frozen=True)
class Gemm(Step):
    """Launch a GEMM: multiply rows by the rank's weights, add earlier partial results, and store the sum.

    A rank with several weight matrices launches one GEMM for each, with the same rows.

    a      rows to multiply
    d      rows to store to. They can be in the memory of another rank
    adds   regions that the epilogue adds to the accumulator, in this order, each with as many rows as `d`

    >>> print(Gemm("main", Region(0, "y", 0, 64), Region(1, "partials", 0, 64)))
    gemm y[0:64] of rank 0 -> partials[0:64] of rank 1
    """

    a: Region
    d: Region
    adds: tuple[Region, ...] = ()

    @property
    def reads(self) -> tuple[Region, ...]:
        """The rows of A, and the regions that the epilogue adds."""
        return (self.a, *self.adds)

    @property
    def writes(self) -> tuple[Region, ...]:
        """The rows of D."""
        return (self.d,)

    def __str__(self) -> str:
        added = "".join(f" + {region}" for region in self.adds)
        return f"gemm {self.a}{added} -> {self.d}"


@dataclass(frozen=True)
class Copy(Step):
    """Copy rows by a copy engine, in the memory of a rank or between ranks.

    source   rows to read
    target   rows to overwrite, as many as `source` has

    >>> print(Copy("copy", Region(0, "x", 0, 64), Region(1, "gathered", 0, 64)))
    copy x[0:64] of rank 0 -> gathered[0:64] of rank 1
    """

    source: Region
    target: Region

    @property
    def reads(self) -> tuple[Region, ...]:
        """The source."""
        return (self.source,)

    @property
    def writes(self) -> tuple[Region, ...]:
        """The target."""
        return (self.target,)

    def __str__(self) -> str:
        return f"copy {self.source} -> {self.target}"


@dataclass(frozen=True)
class Spread(Step):
    """Launch a kernel that copies rows to several regions, such as the same rows of all ranks: for few bytes.

    source    rows to read
    targets   regions to overwrite, each with as many rows as `source` has

    >>> print(Spread("main", Region(0, "x", 0, 8), (Region(0, "gathered", 0, 8), Region(1, "gathered", 0, 8))))
    spread x[0:8] of rank 0 -> gathered[0:8] of rank 0, gathered[0:8] of rank 1
    """

    source: Region
    targets: tuple[Region, ...]

    @property
    def reads(self) -> tuple[Region, ...]:
        """The source."""
        return (self.source,)

    @property
    def writes(self) -> tuple[Region, ...]:
        """The targets."""
        return self.targets

    def __str__(self) -> str:
        return f"spread {self.source} -> {', '.join(map(str, self.targets))}"


@dataclass(frozen=True)
class Add(Step):
    """Launch a kernel that adds regions element by element in f32, and rounds the sum once.

    sources   regions to add, in this order. They can be in the memory of other ranks
    target    rows to overwrite, as many as each source has

    >>> print(Add("main", (Region(0, "product", 0, 8), Region(1, "product", 0, 8)), Region(0, "d", 0, 8)))
    add product[0:8] of rank 0 + product[0:8] of rank 1 -> d[0:8] of rank 0
    """

    sources: tuple[Region, ...]
    target: Region

    @property
    def reads(self) -> tuple[Region, ...]:
        """The sources."""
        return self.sources

    @property
    def writes(self) -> tuple[Region, ...]:
        """The target."""
        return (self.target,)

    def __str__(self) -> str:
        return f"add {' + '.join(map(str, self.sources))} -> {self.target}"


@dataclass(frozen=True)
class Signal(Step):
    """Set a flag in the memory of another rank, after the earlier steps of the stream have ended.

    Each ordered pair of ranks has its own flags. A flag is 0 or 1: the signal first waits until it is 0, then sets it.

    to_rank   rank whose flag is set
    flag      number of the flag, from 0
    """

    to_rank: int
    flag: int

    def __str__(self) -> str:
        return f"signal rank {self.to_rank}, flag {self.flag}"


@dataclass(frozen=True)
class Wait(Step):
    """Wait until a flag that another rank sets is 1, and set it back to 0.

    from_rank   rank that sets the flag
    flag        number of the flag, from 0
    """

    from_rank: int
    flag: int

    def __str__(self) -> str:
        return f"wait for rank {self.from_rank}, flag {self.flag}"


@dataclass(frozen=True)
class Follow(Step):
    """Let the later steps of `stream` wait for the earlier steps of another stream of the rank: a CUDA event.

    after   name of the other stream
    """

    after: str

    def __str__(self) -> str:
        return f"follow stream {self.after}"


@dataclass(frozen=True)
class Barrier(Step):
    """Wait until all ranks have reached this barrier."""

    def __str__(self) -> str:
        return "barrier of all ranks"


def followed(steps: Sequence[Step]) -> list[tuple[int, ...]]:
    """Return for each step of a rank the indices of the steps that it directly follows: those that must end before it.

    steps   steps of the rank, in the order of their launches

    >>> followed([Barrier("main"), Follow("copy", "main"), Wait("copy", 1, 0), Wait("main", 1, 1)])
    [(), (0,), (1,), (0,)]
    """
    last: dict[str, int] = {}
    found = []
    for index, step in enumerate(steps):
        streams = (step.stream, step.after) if isinstance(step, Follow) else (step.stream,)
        found.append(tuple([last[stream] for stream in streams if stream in last]))
        last[step.stream] = index
    return found
