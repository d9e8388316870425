"""Buffers and steps of a GEMM with a reduce-scatter or an all-reduce.

Waits for partial results start after the rank's own signals. A wait is a kernel that occupies a multiprocessor. A GEMM
with a CTA for each multiprocessor would not end before it, and neither would the waits of others for the result of that
GEMM.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from cutegemm.ranks.schedule import COPY, INPUT, MAIN, OUTPUT, SECOND, Buffer
from cutegemm.ranks.shape import ARRIVED, REDUCED, Shape, lane
from cutegemm.ranks.steps import Add, Follow, Gemm, Region, Signal, Step, Wait

MOST_ADDS = 3  # regions that the epilogue of a GEMM adds; a separate sum adds the others


def scatter_buffers(of: Shape) -> Iterator[Buffer]:
    """Yield the buffers of a reduce-scatter by shard."""
    yield from _partial_buffers(of)
    yield of.result(of.most_rows)


def _partial_buffers(of: Shape) -> Iterator[Buffer]:
    """Yield the buffers of partial results, and the operand."""
    yield of.operand
    yield of.symmetric("partials", (of.ranks - 1) * of.most_rows, of.n, of.out_dtype)
    if of.ranks - 1 > MOST_ADDS:
        yield Buffer("product", of.most_rows, of.n, of.out_dtype)


def scatter_by_shard(of: Shape, rank: int) -> Iterator[Step]:
    """Yield the steps of a reduce-scatter with a GEMM for each shard."""
    yield from _sent(of, rank)
    yield from _awaited(of, rank)
    yield from _reduced(of, rank, 0, of.m // of.ranks, OUTPUT)


def _sent(of: Shape, rank: int) -> Iterator[Step]:
    """Yield the GEMMs of the shards of other ranks, which store to the memory of the owner, and the signals to it."""
    for distance in of.distances:
        owner, stream = of.rank(rank, distance), lane(distance - 1)
        yield Gemm(stream, of.rows_of(owner, INPUT, rank), of.slot(owner, distance))
        yield Signal(stream, owner, ARRIVED)
    if of.ranks > 2:
        yield Follow(MAIN, SECOND)


def _awaited(of: Shape, rank: int) -> Iterator[Step]:
    """Yield the waits for the partial results of all other ranks."""
    for distance in of.distances:
        yield Wait(MAIN, of.rank(rank, -distance), ARRIVED)


def _reduced(of: Shape, rank: int, first: int, rows: int, target: str) -> Iterator[Step]:
    """Yield the GEMM of some of the own rows, which adds the partial results of others.

    first    index of the first row in the shard
    rows     number of rows
    target   buffer of the sum, which has the rows of the shard
    """

    def part(region: Region) -> Region:
        return replace(region, first_row=region.first_row + first, rows=rows)

    slots = [part(of.slot(rank, distance)) for distance in of.distances]
    a, d = part(of.rows_of(rank, INPUT, rank)), Region(rank, target, first, rows)
    added, rest = tuple(slots[:MOST_ADDS]), tuple(slots[MOST_ADDS:])
    if not rest:
        yield Gemm(MAIN, a, d, added)
        return
    product = Region(rank, "product", first, rows)
    yield Gemm(MAIN, a, product, added)
    yield Add(MAIN, (product, *rest), d)


def _product_buffers(of: Shape) -> Iterator[Buffer]:
    """Yield the operand, and the buffer of products that all ranks read."""
    yield of.operand
    yield of.symmetric("product", of.m, of.n, of.out_dtype)


def scatter_whole_buffers(of: Shape) -> Iterator[Buffer]:
    """Yield the buffers of a reduce-scatter after one GEMM."""
    yield from _product_buffers(of)
    yield of.result(of.most_rows)


def scatter_whole(of: Shape, rank: int) -> Iterator[Step]:
    """Yield the steps of one GEMM and a reduce-scatter: each rank reads its rows of the products of all ranks."""
    yield from _multiplied(of, rank)
    sources = [of.rows_of(rank, "product", source) for source in range(of.ranks)]
    yield Add(MAIN, tuple(sources), Region(rank, OUTPUT, 0, sources[0].rows))


def _multiplied(of: Shape, rank: int) -> Iterator[Step]:
    """Yield one GEMM of all rows, the signals that its product is complete, and the waits for the other products."""
    yield Gemm(MAIN, Region(rank, INPUT, 0, of.m), Region(rank, "product", 0, of.m))
    yield from [Signal(MAIN, of.rank(rank, distance), ARRIVED) for distance in of.distances]
    yield from _awaited(of, rank)


def reduce_buffers(of: Shape) -> Iterator[Buffer]:
    """Yield the buffers of an all-reduce by shard."""
    yield from _partial_buffers(of)
    yield of.symmetric("reduced", of.most_rows, of.n, of.out_dtype)
    yield of.result(of.m)


def reduce_by_shard(of: Shape, rank: int) -> Iterator[Step]:
    """Yield the steps of an all-reduce by shard: reduce the own rows in chunks, and copy those of the other ranks.

    The GEMM of the next chunk follows the signals and waits in one stream. Next to a GEMM, they would wait for its end.
    """
    yield from _sent(of, rank)
    yield from _awaited(of, rank)
    for chunk in range(of.chunks):
        yield from _reduced(of, rank, *of.chunk(rank, chunk), "reduced")
        yield from [Signal(MAIN, of.rank(rank, distance), REDUCED + chunk) for distance in of.distances]
        yield from [Wait(MAIN, of.rank(rank, distance), REDUCED + chunk) for distance in of.distances]
        yield Follow(COPY, MAIN)
        yield from [of.collected(rank, of.rank(rank, distance), chunk) for distance in (*of.distances, 0)]


def reduce_whole_buffers(of: Shape) -> Iterator[Buffer]:
    """Yield the buffers of an all-reduce after one GEMM."""
    yield from _product_buffers(of)
    yield of.result(of.m)


def reduce_whole(of: Shape, rank: int) -> Iterator[Step]:
    """Yield the steps of one GEMM and an all-reduce: each rank reads the products of all ranks."""
    yield from _multiplied(of, rank)
    sources = [Region(source, "product", 0, of.m) for source in range(of.ranks)]
    yield Add(MAIN, tuple(sources), Region(rank, OUTPUT, 0, of.m))
