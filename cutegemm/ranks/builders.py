"""Build the schedules of the three operations: all-gather, reduce-scatter and all-reduce, with a GEMM.

Rank r takes the other ranks in ring order: r + 1, r + 2 and so on, modulo the number of ranks. So at each time every
rank sends to one rank and receives from one.

A call need not wait until all ranks have entered it, because calls use two copies of the symmetric buffers in turn.
Take a rank that writes to copy e % 2 of another rank's buffer in call e. In call e - 1 it has waited for a signal of
that rank, which sends it after the end of its call e - 2. So that rank no longer reads the copy. A CUDA graph replays
the same copy, so a captured schedule begins with a barrier instead. All this holds for calls of different schedules
too, whose buffers share the same memory: in each of them a rank waits for a signal of every other rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from cutegemm.dtypes import DType, bf16
from cutegemm.errors import PlanError
from cutegemm.ranks.schedule import COPY, INPUT, MAIN, OUTPUT, SECOND, SIGNAL, Buffer, Schedule, shard
from cutegemm.ranks.steps import Add, Barrier, Copy, Follow, Gemm, Region, Signal, Step, Wait

OPERATIONS = ("all_gather", "reduce_scatter", "all_reduce")
FORMS = ("whole", "by_shard")
MOST_ADDS = 3  # regions that the epilogue of a GEMM adds; a separate sum adds the others

# Flag of the only signal between two ranks, and of the first of those for the chunks of a reduced shard.
_ARRIVED, _REDUCED = 0, 1


def schedule_of(
    operation: str,
    ranks: int,
    m: int,
    n: int,
    k: int,
    dtype: DType | str = bf16,
    out_dtype: DType | str | None = None,
    *,
    form: str = "by_shard",
    chunks: int = 1,
    is_captured: bool = False,
) -> Schedule:
    """Return the schedule of an operation by its name.

    operation     "all_gather", "reduce_scatter" or "all_reduce"
    ranks         number of ranks, at least 2
    m             rows of all ranks together
    n, k          columns and rows of the weights of one rank
    dtype         element type of the operands
    out_dtype     element type of D, and of partial results between ranks; None: that of the operands
    form          "whole": one GEMM, for few rows. "by_shard": one GEMM for each shard of rows, next to copies
    chunks        launches for the rows that a rank owns, of an all-reduce by shard. The other ranks copy the rows of a
                  chunk while the next one is computed
    is_captured   whether a CUDA graph can replay the schedule
    raises        PlanError with every rule that the arguments break

    >>> print(schedule_of("reduce_scatter", 2, 128, 64, 32).described(1))
    main  gemm x[0:64] of rank 1 -> partials[0:64] of rank 0
    main  signal rank 0, flag 0
    main  wait for rank 0, flag 0
    main  gemm x[64:128] of rank 1 + partials[0:64] of rank 1 -> d[0:64] of rank 1
    """
    rules = [
        (operation not in OPERATIONS, f"operation = {operation!r} is unknown. Use {', '.join(OPERATIONS)}."),
        (form not in FORMS, f"form = {form!r} is unknown. Use {' or '.join(FORMS)}."),
        (ranks < 2, f"ranks = {ranks}; at least 2 are needed. Call gemm for one rank."),
        (min(m, n, k) < 1, f"m, n, k = {m}, {n}, {k}; each must be at least 1."),
        (
            operation != "all_reduce" and ranks > 0 and m % ranks != 0,
            f"m = {m} is not a multiple of {ranks} ranks. Pad the rows, or use all_reduce, which divides any m.",
        ),
        (
            form == "by_shard" and m < ranks * max(1, chunks),
            f"m = {m} has less than a row for each chunk of {ranks} ranks. Use form='whole'.",
        ),
        (
            chunks < 1 or (chunks > 1 and (operation, form) != ("all_reduce", "by_shard")),
            f"chunks = {chunks}; use 1, or more for all_reduce by_shard.",
        ),
    ]
    broken = [text for is_broken, text in rules if is_broken]
    if broken:
        raise PlanError(f"schedule_of({operation!r}, ranks={ranks}, m={m}, n={n}, k={k})", broken)
    kind = DType.parse(dtype)
    result = kind if out_dtype is None else DType.parse(out_dtype)
    shape = _Shape(ranks, m, n, k, kind, result, chunks, 1 if is_captured else 2)
    buffers_of, steps_of = _BUILDERS[operation, form]
    steps = [tuple(_framed(list(steps_of(shape, rank)), is_captured)) for rank in range(ranks)]
    return Schedule(operation, form, ranks, m, n, k, tuple(buffers_of(shape)), tuple(steps), chunks, is_captured)


def all_gather(ranks: int, m: int, n: int, k: int, dtype: DType | str = bf16, **options: Any) -> Schedule:
    """Return the schedule of an all-gather with a GEMM: each rank multiplies the rows of all ranks by its weights.

    By shard, a rank copies its rows to the others in ring order, and multiplies its own rows in the meantime. Then it
    multiplies the rows of each other rank, as they arrive.

    ranks     number of ranks. Each has m / ranks rows of A
    m, n, k   rows of D, columns of a rank's D, and columns of A
    options   `out_dtype`, `form` and `is_captured` of `schedule_of`

    >>> print(all_gather(2, 128, 64, 32).described(0))
    copy    follow stream main
    copy    copy x[0:64] of rank 0 -> gathered[0:64] of rank 1
    signal  follow stream copy
    signal  signal rank 1, flag 0
    second  follow stream copy
    main    gemm x[0:64] of rank 0 -> d[0:64] of rank 0
    second  wait for rank 1, flag 0
    second  gemm gathered[64:128] of rank 0 -> d[64:128] of rank 0
    main    follow stream signal
    main    follow stream second
    """
    return schedule_of("all_gather", ranks, m, n, k, dtype, **options)


def reduce_scatter(ranks: int, m: int, n: int, k: int, dtype: DType | str = bf16, **options: Any) -> Schedule:
    """Return the schedule of a GEMM with a reduce-scatter: rank r gets the r-th share of the rows of the sum of all D.

    By shard, a rank computes the rows of the other ranks first. These GEMMs store their partial results to the memory
    of the rank that owns the rows. The epilogue of the last GEMM, for the rank's own rows, adds the partial results of
    the others in ring order. So the result is the same in every call, bit by bit.

    Partial results are rounded to the type of D. With u half a unit in the last place of 1, the error of an element is
    at most (ranks - 1) * u * (largest partial result) + u * |result|, plus that of the GEMMs in f32. In the form
    "whole" there are `ranks` such roundings. With more than `MOST_ADDS` other ranks, the sum of `MOST_ADDS` + 1
    partial results is rounded too, which makes it ranks + `MOST_ADDS`.

    ranks     number of ranks. Each has m rows of A, and k of all columns of A
    m, n, k   rows and columns of the sum, and columns of a rank's A
    options   `out_dtype`, `form` and `is_captured` of `schedule_of`

    >>> print(reduce_scatter(2, 128, 64, 32).described(0))
    main  gemm x[64:128] of rank 0 -> partials[0:64] of rank 1
    main  signal rank 1, flag 0
    main  wait for rank 1, flag 0
    main  gemm x[0:64] of rank 0 + partials[0:64] of rank 0 -> d[0:64] of rank 0
    """
    return schedule_of("reduce_scatter", ranks, m, n, k, dtype, **options)


def all_reduce(ranks: int, m: int, n: int, k: int, dtype: DType | str = bf16, **options: Any) -> Schedule:
    """Return the schedule of a GEMM with an all-reduce: every rank gets the sum of the D of all ranks.

    By shard, each rank reduces its share of the rows, as in `reduce_scatter`, and the other ranks copy it. In the form
    "whole", every rank reads the products of all ranks, and adds them in the order of the ranks. Either way all ranks
    have the same bits. The errors are those of `reduce_scatter`.

    ranks     number of ranks. Each has m rows of A, and k of all columns of A
    m, n, k   rows and columns of the sum, and columns of a rank's A
    options   `out_dtype`, `form`, `chunks` and `is_captured` of `schedule_of`

    >>> print(all_reduce(2, 128, 64, 32, form="whole").described(0))
    main  gemm x[0:128] of rank 0 -> product[0:128] of rank 0
    main  signal rank 1, flag 0
    main  wait for rank 1, flag 0
    main  add product[0:128] of rank 0 + product[0:128] of rank 1 -> d[0:128] of rank 0
    """
    return schedule_of("all_reduce", ranks, m, n, k, dtype, **options)


@dataclass(frozen=True)
class _Shape:
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
        """Return the rows in "partials" of `owner` for the partial result of the rank `distance` before it."""
        return Region(owner, "partials", (distance - 1) * self.most_rows, shard(self.m, self.ranks, owner)[1])

    def symmetric(self, name: str, rows: int, columns: int, dtype: DType) -> Buffer:
        """Return a buffer that all ranks can access."""
        return Buffer(name, rows, columns, dtype, True, self.copies)

    def result(self, rows: int) -> Buffer:
        """Return the buffer of D."""
        return Buffer(OUTPUT, rows, self.n, self.out_dtype)

    def chunk(self, rank: int, chunk: int) -> tuple[int, int]:
        """Return (first row in the shard, number of rows) of a chunk of the rows that a rank owns."""
        return shard(shard(self.m, self.ranks, rank)[1], self.chunks, chunk)

    def collected(self, rank: int, source: int, chunk: int) -> Copy:
        """Return the copy of a reduced chunk of the rank `source` to the D of `rank`."""
        first, rows = self.chunk(source, chunk)
        begin = shard(self.m, self.ranks, source)[0]
        return Copy(COPY, Region(source, "reduced", first, rows), Region(rank, OUTPUT, begin + first, rows))

    @property
    def operand(self) -> Buffer:
        """The buffer of A of a rank that has all m rows."""
        return Buffer(INPUT, self.m, self.k, self.dtype)


def _lane(launch: int) -> str:
    """Return the stream of a GEMM: two streams in turn. `launch` counts the GEMMs of the rank from 0."""
    return (MAIN, SECOND)[launch % 2]


def _framed(steps: list[Step], has_barrier: bool) -> Iterator[Step]:
    """Yield steps between those that let other streams begin after the main one, and the main one end after them all.

    has_barrier   True to begin with a barrier of all ranks
    """
    streams = [step.stream for step in steps]
    first = {stream: streams.index(stream) for stream in dict.fromkeys(streams) if stream != MAIN}
    if has_barrier:
        yield Barrier(MAIN)
    yield from [Follow(stream, MAIN) for stream, at in first.items() if not isinstance(steps[at], Follow)]
    yield from steps
    for stream in first:
        last = len(streams) - 1 - streams[::-1].index(stream)
        if not any(isinstance(step, Follow) and step.after == stream for step in steps[last:]):
            yield Follow(MAIN, stream)


def _gather_buffers(of: _Shape) -> Iterator[Buffer]:
    """Yield the buffers of an all-gather."""
    yield Buffer(INPUT, of.m // of.ranks, of.k, of.dtype)
    yield of.symmetric("gathered", of.m, of.k, of.dtype)
    yield of.result(of.m)


def _gather_whole(of: _Shape, rank: int) -> Iterator[Step]:
    """Yield the steps of an all-gather before one GEMM. A stream for each copy keeps their latencies from adding up."""
    own = Region(rank, INPUT, 0, of.m // of.ranks)
    for distance in of.distances:
        to, stream = of.rank(rank, -distance), f"{COPY} {distance}"
        yield Copy(stream, own, of.rows_of(rank, "gathered", to))
        yield Signal(stream, to, _ARRIVED)
    yield Copy(MAIN, own, of.rows_of(rank, "gathered", rank))
    for distance in of.distances:
        yield Wait(MAIN, of.rank(rank, distance), _ARRIVED)
    yield Gemm(MAIN, Region(rank, "gathered", 0, of.m), Region(rank, OUTPUT, 0, of.m))


def _gather_by_shard(of: _Shape, rank: int) -> Iterator[Step]:
    """Yield the steps of an all-gather with a GEMM for each shard.

    Signals have a stream of their own: they are kernels, which may have to wait for the end of a GEMM, and the next
    copy need not. The first wait follows the first copy, so that the GEMM of the own rows is running when the wait
    starts: see `_awaited`.
    """
    own = Region(rank, INPUT, 0, of.m // of.ranks)
    for distance in of.distances:
        to = of.rank(rank, -distance)
        yield Copy(COPY, own, of.rows_of(rank, "gathered", to))
        yield Follow(SIGNAL, COPY)
        yield Signal(SIGNAL, to, _ARRIVED)
        if distance == 1:
            yield Follow(_lane(1), COPY)
            yield Gemm(_lane(0), own, of.rows_of(rank, OUTPUT, rank))
    for distance in of.distances:
        source, stream = of.rank(rank, distance), _lane(distance)
        yield Wait(stream, source, _ARRIVED)
        yield Gemm(stream, of.rows_of(source, "gathered", rank), of.rows_of(source, OUTPUT, rank))


def _scatter_buffers(of: _Shape) -> Iterator[Buffer]:
    """Yield the buffers of a reduce-scatter by shard."""
    yield from _partial_buffers(of)
    yield of.result(of.most_rows)


def _partial_buffers(of: _Shape) -> Iterator[Buffer]:
    """Yield the buffers of partial results, and the operand."""
    yield of.operand
    yield of.symmetric("partials", (of.ranks - 1) * of.most_rows, of.n, of.out_dtype)
    if of.ranks - 1 > MOST_ADDS:
        yield Buffer("product", of.most_rows, of.n, of.out_dtype)


def _scatter_by_shard(of: _Shape, rank: int) -> Iterator[Step]:
    """Yield the steps of a reduce-scatter with a GEMM for each shard."""
    yield from _sent(of, rank)
    yield from _awaited(of, rank)
    yield from _reduced(of, rank, 0, of.m // of.ranks, OUTPUT)


def _sent(of: _Shape, rank: int) -> Iterator[Step]:
    """Yield the GEMMs of the shards of other ranks, which store to the memory of the owner, and the signals to it."""
    for distance in of.distances:
        owner, stream = of.rank(rank, distance), _lane(distance - 1)
        yield Gemm(stream, of.rows_of(owner, INPUT, rank), of.slot(owner, distance))
        yield Signal(stream, owner, _ARRIVED)
    if of.ranks > 2:
        yield Follow(MAIN, SECOND)


def _awaited(of: _Shape, rank: int) -> Iterator[Step]:
    """Yield the waits for the partial results of all other ranks.

    They start after the rank's own signals. A wait is a kernel that occupies a multiprocessor. A GEMM with a CTA for
    each multiprocessor would not end before it, and neither would the waits of others for the result of that GEMM.
    """
    for distance in of.distances:
        yield Wait(MAIN, of.rank(rank, -distance), _ARRIVED)


def _reduced(of: _Shape, rank: int, first: int, rows: int, target: str) -> Iterator[Step]:
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


def _product_buffers(of: _Shape) -> Iterator[Buffer]:
    """Yield the operand, and the buffer of products that all ranks read."""
    yield of.operand
    yield of.symmetric("product", of.m, of.n, of.out_dtype)


def _scatter_whole_buffers(of: _Shape) -> Iterator[Buffer]:
    """Yield the buffers of a reduce-scatter after one GEMM."""
    yield from _product_buffers(of)
    yield of.result(of.most_rows)


def _scatter_whole(of: _Shape, rank: int) -> Iterator[Step]:
    """Yield the steps of one GEMM and a reduce-scatter: each rank reads its rows of the products of all ranks."""
    yield from _multiplied(of, rank)
    sources = [of.rows_of(rank, "product", source) for source in range(of.ranks)]
    yield Add(MAIN, tuple(sources), Region(rank, OUTPUT, 0, sources[0].rows))


def _multiplied(of: _Shape, rank: int) -> Iterator[Step]:
    """Yield one GEMM of all rows, the signals that its product is complete, and the waits for the other products."""
    yield Gemm(MAIN, Region(rank, INPUT, 0, of.m), Region(rank, "product", 0, of.m))
    yield from [Signal(MAIN, of.rank(rank, distance), _ARRIVED) for distance in of.distances]
    yield from _awaited(of, rank)


def _reduce_buffers(of: _Shape) -> Iterator[Buffer]:
    """Yield the buffers of an all-reduce by shard."""
    yield from _partial_buffers(of)
    yield of.symmetric("reduced", of.most_rows, of.n, of.out_dtype)
    yield of.result(of.m)


def _reduce_by_shard(of: _Shape, rank: int) -> Iterator[Step]:
    """Yield the steps of an all-reduce by shard: reduce the own rows in chunks, and copy those of the other ranks.

    The GEMM of the next chunk follows the signals and waits in one stream. Next to a GEMM, they would wait for its end.
    """
    yield from _sent(of, rank)
    yield from _awaited(of, rank)
    for chunk in range(of.chunks):
        yield from _reduced(of, rank, *of.chunk(rank, chunk), "reduced")
        yield from [Signal(MAIN, of.rank(rank, distance), _REDUCED + chunk) for distance in of.distances]
        yield from [Wait(MAIN, of.rank(rank, distance), _REDUCED + chunk) for distance in of.distances]
        yield Follow(COPY, MAIN)
        yield from [of.collected(rank, of.rank(rank, distance), chunk) for distance in (*of.distances, 0)]


def _reduce_whole_buffers(of: _Shape) -> Iterator[Buffer]:
    """Yield the buffers of an all-reduce after one GEMM."""
    yield from _product_buffers(of)
    yield of.result(of.m)


def _reduce_whole(of: _Shape, rank: int) -> Iterator[Step]:
    """Yield the steps of one GEMM and an all-reduce: each rank reads the products of all ranks."""
    yield from _multiplied(of, rank)
    sources = [Region(source, "product", 0, of.m) for source in range(of.ranks)]
    yield Add(MAIN, tuple(sources), Region(rank, OUTPUT, 0, of.m))


# (buffers, steps of a rank) of each operation and form
_BUILDERS: dict[
    tuple[str, str], tuple[Callable[[_Shape], Iterable[Buffer]], Callable[[_Shape, int], Iterable[Step]]]
] = {
    ("all_gather", "whole"): (_gather_buffers, _gather_whole),
    ("all_gather", "by_shard"): (_gather_buffers, _gather_by_shard),
    ("reduce_scatter", "whole"): (_scatter_whole_buffers, _scatter_whole),
    ("reduce_scatter", "by_shard"): (_scatter_buffers, _scatter_by_shard),
    ("all_reduce", "whole"): (_reduce_whole_buffers, _reduce_whole),
    ("all_reduce", "by_shard"): (_reduce_buffers, _reduce_by_shard),
}
