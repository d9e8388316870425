"""Buffers and steps of a GEMM with a reduce-scatter or an all-reduce.

Barriers are in the main stream, between GEMMs. A barrier is a kernel that occupies a multiprocessor. A GEMM with a CTA
for each multiprocessor would not end before it, and neither would the barriers of others, who wait for that GEMM.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from cutegemm.ranks.schedule import COPY, INPUT, MAIN, OUTPUT, SECOND, Buffer
from cutegemm.ranks.shape import Shape, lane
from cutegemm.ranks.steps import Add, Barrier, Copy, Follow, Gemm, Region, Step

MOST_ADDS = 3  # regions that the epilogue of a GEMM adds; a separate sum adds the others


# --- by shard: GEMMs store to other ranks or products are copied there, and the last GEMM adds them -------------------


def scatter_buffers(of: Shape) -> Iterator[Buffer]:
    """Yield the buffers of a reduce-scatter by shard."""
    yield from _partial_buffers(of)
    yield of.result(of.most_rows)


def _partial_buffers(of: Shape) -> Iterator[Buffer]:
    """Yield the buffers of partial results, and the operand."""
    yield of.operand
    yield of.symmetric("partials", (of.ranks - 1) * of.most_rows, of.n, of.out_dtype)
    if of.chunks > 1:
        yield of.local("sent", (of.ranks - 1) * of.most_rows)
    if of.ranks - 1 > MOST_ADDS:
        yield of.local("product", of.most_rows)


def scatter_by_shard(of: Shape, rank: int) -> Iterator[Step]:
    """Yield the steps of a reduce-scatter with a GEMM for each shard, or for each chunk of it."""
    yield from _sent(of, rank)
    for chunk in range(of.chunks):
        yield from _met(of, chunk)
        yield from _reduced(of, rank, *of.chunk(rank, chunk), OUTPUT)


def _sent(of: Shape, rank: int) -> Iterator[Step]:
    """Yield the GEMMs of the rows that other ranks own. Each result is stored in the memory of the owner.

    With one chunk, the GEMMs store it there. With several, a chunk is copied there while the next one is computed.
    """
    if of.chunks == 1:
        for distance in of.distances:
            owner = of.rank(rank, distance)
            yield Gemm(lane(distance - 1), of.rows_of(owner, INPUT, rank), of.slot(owner, distance))
        return
    for chunk in range(of.chunks):
        for distance in of.distances:
            owner = of.rank(rank, distance)
            rows = of.chunk(owner, chunk)
            product = _rows(of.sent(rank, distance), *rows)
            yield Gemm(MAIN, _rows(of.rows_of(owner, INPUT, rank), *rows), product)
            yield Follow(f"{COPY} {chunk}", MAIN)
            yield Copy(f"{COPY} {chunk}", product, _rows(of.slot(owner, distance), *rows))


def _met(of: Shape, chunk: int) -> Iterator[Step]:
    """Yield the steps that wait until the partial results of a chunk have arrived on all ranks."""
    if of.chunks > 1:
        yield Follow(MAIN, f"{COPY} {chunk}")
    elif of.ranks > 2:
        yield Follow(MAIN, SECOND)
    yield Barrier(MAIN)


def _rows(region: Region, first: int, rows: int) -> Region:
    """Return some rows of a region, from the `first` on."""
    return replace(region, first_row=region.first_row + first, rows=rows)


def _reduced(of: Shape, rank: int, first: int, rows: int, target: str) -> Iterator[Step]:
    """Yield the GEMM of some of the own rows, which adds the partial results of others.

    first    index of the first row in the shard
    rows     number of rows
    target   buffer of the sum, which has the rows of the shard
    """
    slots = [_rows(of.slot(rank, distance), first, rows) for distance in of.distances]
    a, d = _rows(of.rows_of(rank, INPUT, rank), first, rows), Region(rank, target, first, rows)
    added, rest = tuple(slots[:MOST_ADDS]), tuple(slots[MOST_ADDS:])
    if not rest:
        yield Gemm(MAIN, a, d, added)
        return
    product = Region(rank, "product", first, rows)
    yield Gemm(MAIN, a, product, added)
    yield Add(MAIN, (product, *rest), d)


def reduce_buffers(of: Shape) -> Iterator[Buffer]:
    """Yield the buffers of an all-reduce by shard."""
    yield from _partial_buffers(of)
    yield of.symmetric("reduced", of.most_rows, of.n, of.out_dtype)
    yield of.result(of.m)


def reduce_by_shard(of: Shape, rank: int) -> Iterator[Step]:
    """Yield the steps of an all-reduce by shard: reduce the own rows in chunks, and copy those of the other ranks."""
    yield from _sent(of, rank)
    for chunk in range(of.chunks):
        yield from _met(of, chunk)
        yield from _reduced(of, rank, *of.chunk(rank, chunk), "reduced")
        yield Barrier(MAIN)
        yield Follow(COPY, MAIN)
        yield from [of.collected(rank, of.rank(rank, distance), chunk) for distance in (*of.distances, 0)]


# --- by copy: products are copied while the next rows are multiplied, and a sum follows -------------------------------


def scatter_by_copy_buffers(of: Shape) -> Iterator[Buffer]:
    """Yield the buffers of a reduce-scatter by copy."""
    yield of.operand
    yield of.symmetric("partials", (of.ranks - 1) * of.most_rows, of.n, of.out_dtype)
    yield of.local("sent", (of.ranks - 1) * of.most_rows)
    yield of.local("product", of.most_rows)
    yield of.result(of.most_rows)


def scatter_by_copy(of: Shape, rank: int) -> Iterator[Step]:
    """Yield the steps of a reduce-scatter by copy: a GEMM for each shard, the own one last, then a sum."""
    for distance in of.distances:
        owner = of.rank(rank, distance)
        yield Gemm(MAIN, of.rows_of(owner, INPUT, rank), of.sent(rank, distance))
        yield Follow(COPY, MAIN)
        yield Copy(COPY, of.sent(rank, distance), of.slot(owner, distance))
    own = of.rows_of(rank, INPUT, rank)
    product = Region(rank, "product", 0, own.rows)
    yield Gemm(MAIN, own, product)
    yield Follow(MAIN, COPY)
    yield Barrier(MAIN)
    slots = [of.slot(rank, distance) for distance in of.distances]
    yield Add(MAIN, (product, *slots), Region(rank, OUTPUT, 0, own.rows))


def reduce_by_copy_buffers(of: Shape) -> Iterator[Buffer]:
    """Yield the buffers of an all-reduce by copy."""
    yield from _product_buffers(of)
    yield of.symmetric("copies", (of.ranks - 1) * of.m, of.n, of.out_dtype)
    yield of.result(of.m)


def reduce_by_copy(of: Shape, rank: int) -> Iterator[Step]:
    """Yield the steps of an all-reduce by copy: each rank adds the products of all ranks, in the order of the ranks.

    A rank multiplies the shards in ring order, its own last. It copies each product but the last one to the others.
    They read the last one from its memory.
    """

    def copied(owner: int, source: int, to: int) -> Region:
        """Return where the rank `to` has the product of `source` for the rows of `owner`."""
        rows = of.rows_of(owner, "copies", to)
        return replace(rows, first_row=rows.first_row + ((to - source) % of.ranks - 1) * of.m)

    for distance in (*of.distances, 0):
        owner = of.rank(rank, distance)
        product = of.rows_of(owner, "product", rank)
        yield Gemm(MAIN, of.rows_of(owner, INPUT, rank), product)
        if distance:
            yield Follow(COPY, MAIN)
            for to in [of.rank(rank, further) for further in of.distances]:
                yield Copy(COPY, product, copied(owner, rank, to))
    yield Follow(MAIN, COPY)
    yield Barrier(MAIN)
    for owner in range(of.ranks):
        sources = [
            of.rows_of(owner, "product", source) if source in (rank, owner) else copied(owner, source, rank)
            for source in range(of.ranks)
        ]
        yield Add(MAIN, tuple(sources), of.rows_of(owner, OUTPUT, rank))


# --- whole: one GEMM, and a sum that reads the memory of all ranks ----------------------------------------------------


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
    """Yield one GEMM of all rows, and a barrier, after which the products of all ranks are complete."""
    yield Gemm(MAIN, Region(rank, INPUT, 0, of.m), Region(rank, "product", 0, of.m))
    yield Barrier(MAIN)


def reduce_whole_buffers(of: Shape) -> Iterator[Buffer]:
    """Yield the buffers of an all-reduce after one GEMM."""
    yield from _product_buffers(of)
    yield of.result(of.m)


def reduce_whole(of: Shape, rank: int) -> Iterator[Step]:
    """Yield the steps of one GEMM and an all-reduce: each rank reads the products of all ranks."""
    yield from _multiplied(of, rank)
    sources = [Region(source, "product", 0, of.m) for source in range(of.ranks)]
    yield Add(MAIN, tuple(sources), Region(rank, OUTPUT, 0, of.m))
