"""Arguments of a schedule, and the regions and buffers that follow from them."""

from __future__ import annotations

from dataclasses import dataclass

from cutegemm.dtypes import DType
from cutegemm.ranks.schedule import COPY, INPUT, MAIN, OUTPUT, SECOND, Buffer, shard
from cutegemm.ranks.steps import Copy, Region

ARRIVED = 0  # flag of the only signal between two ranks


@dataclass(frozen=True)
class Shape:
    """Describes the arguments of `schedule_of` that buffers and steps depend on.

    copies   copies of each symmetric buffer
    """

    ranks: int
    m: int
    n: int
    k: int
    dtype: DType
    out_dtype: DType
    chunks: int
    copies: int

    @property
    def distances(self) -> range:
        """Distances to the other ranks in ring order, from 1."""
        return range(1, self.ranks)

    @property
    def most_rows(self) -> int:
        """Rows of the largest shard."""
        return -(-self.m // self.ranks)

    def rank(self, rank: int, distance: int) -> int:
        """Return the rank at a distance in ring order; a negative distance counts backwards."""
        return (rank + distance) % self.ranks

    def rows_of(self, owner: int, buffer: str, rank: int) -> Region:
        """Return the rows of the shard of `owner` in a buffer of `rank` that has all m rows."""
        return Region(rank, buffer, *shard(self.m, self.ranks, owner))

    def slot(self, owner: int, distance: int) -> Region:
        """Return the region of "partials" of `owner` that the rank `distance` before it stores its product to."""
        return Region(owner, "partials", (distance - 1) * self.most_rows, shard(self.m, self.ranks, owner)[1])

    def symmetric(self, name: str, rows: int, columns: int, dtype: DType) -> Buffer:
        """Return a buffer that all ranks can access."""
        return Buffer(name, rows, columns, dtype, True, self.copies)

    def local(self, name: str, rows: int) -> Buffer:
        """Return a buffer of products that only its rank can access."""
        return Buffer(name, rows, self.n, self.out_dtype, False, self.copies)

    def result(self, rows: int) -> Buffer:
        """Return the buffer of D."""
        return Buffer(OUTPUT, rows, self.n, self.out_dtype)

    def sent(self, rank: int, distance: int) -> Region:
        """Return the rows of "sent" where `rank` has its product for the rank at a distance, to be copied."""
        return Region(
            rank, "sent", (distance - 1) * self.most_rows, shard(self.m, self.ranks, self.rank(rank, distance))[1]
        )

    def chunk(self, rank: int, chunk: int) -> tuple[int, int]:
        """Return (first row in the shard, number of rows) of a chunk of the rows that a rank owns."""
        return shard(shard(self.m, self.ranks, rank)[1], self.chunks, chunk)

    def collected(self, rank: int, source: int, chunk: int) -> Copy:
        """Return the step that copies a reduced chunk of the rank `source` to the D of `rank`."""
        first, rows = self.chunk(source, chunk)
        begin = shard(self.m, self.ranks, source)[0]
        return Copy(COPY, Region(source, "reduced", first, rows), Region(rank, OUTPUT, begin + first, rows))

    @property
    def operand(self) -> Buffer:
        """The buffer of A of a rank that has all m rows."""
        return Buffer(INPUT, self.m, self.k, self.dtype)


def lane(launch: int) -> str:
    """Return the stream of a GEMM: two streams in turn. `launch` counts the GEMMs of the rank from 0."""
    return (MAIN, SECOND)[launch % 2]
