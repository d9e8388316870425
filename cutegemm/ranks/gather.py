"""Buffers and steps of an all-gather with a GEMM."""

from __future__ import annotations

from collections.abc import Iterator

from cutegemm.ranks.schedule import COPY, INPUT, MAIN, OUTPUT, SIGNAL, Buffer
from cutegemm.ranks.shape import ARRIVED, Shape, lane
from cutegemm.ranks.steps import Barrier, Copy, Follow, Gemm, Region, Signal, Spread, Step, Wait


def gather_buffers(of: Shape) -> Iterator[Buffer]:
    """Yield the buffers of an all-gather."""
    yield Buffer(INPUT, of.m // of.ranks, of.k, of.dtype)
    yield of.symmetric("gathered", of.m, of.k, of.dtype)
    yield of.result(of.m)


def gather_whole(of: Shape, rank: int) -> Iterator[Step]:
    """Yield the steps of an all-gather before one GEMM: a kernel stores the own rows on all ranks."""
    targets = [of.rows_of(rank, "gathered", of.rank(rank, distance)) for distance in range(of.ranks)]
    yield Spread(MAIN, Region(rank, INPUT, 0, of.m // of.ranks), tuple(targets))
    yield Barrier(MAIN)
    yield Gemm(MAIN, Region(rank, "gathered", 0, of.m), Region(rank, OUTPUT, 0, of.m))


def gather_by_shard(of: Shape, rank: int) -> Iterator[Step]:
    """Yield the steps of an all-gather with a GEMM for each shard.

    Signals have a stream of their own: they are kernels, which may have to wait for the end of a GEMM, and the next
    copy need not. The first wait follows the first copy, so that the GEMM of the own rows is running when the wait
    starts: see `cutegemm.ranks.reduce`.
    """
    own = Region(rank, INPUT, 0, of.m // of.ranks)
    for distance in of.distances:
        to = of.rank(rank, -distance)
        yield Copy(COPY, own, of.rows_of(rank, "gathered", to))
        yield Follow(SIGNAL, COPY)
        yield Signal(SIGNAL, to, ARRIVED)
        if distance == 1:
            yield Follow(lane(1), COPY)
            yield Gemm(lane(0), own, of.rows_of(rank, OUTPUT, rank))
    for distance in of.distances:
        source, stream = of.rank(rank, distance), lane(distance)
        yield Wait(stream, source, ARRIVED)
        yield Gemm(stream, of.rows_of(source, "gathered", rank), of.rows_of(source, OUTPUT, rank))
