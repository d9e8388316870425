"""Build the schedules of the three operations: all-gather, reduce-scatter and all-reduce, with a GEMM.

Rank r takes the other ranks in ring order: r + 1, r + 2 and so on, modulo the number of ranks. So at each time every
rank sends to one rank and receives from one.

A call need not wait until all ranks have entered it, because calls use two copies of the symmetric buffers in turn.
Take a rank that writes to copy e % 2 of another rank's buffer in call e. In call e - 1 it has waited for a signal of
that rank, or met it at a barrier, which follows the end of that rank's call e - 2. So that rank no longer reads the
copy. A CUDA graph replays the same copy, so a captured schedule begins with a barrier instead. All this holds for calls
of different schedules too, whose buffers share the same memory: each waits for a signal or barrier of every other rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from cutegemm.dtypes import DType, bf16
from cutegemm.errors import PlanError
from cutegemm.ranks.gather import gather_buffers, gather_by_shard, gather_whole
from cutegemm.ranks.reduce import (
    reduce_buffers,
    reduce_by_copy,
    reduce_by_copy_buffers,
    reduce_by_shard,
    reduce_whole,
    reduce_whole_buffers,
    scatter_buffers,
    scatter_by_copy,
    scatter_by_copy_buffers,
    scatter_by_shard,
    scatter_whole,
    scatter_whole_buffers,
)
from cutegemm.ranks.schedule import MAIN, Buffer, Schedule
from cutegemm.ranks.shape import Shape
from cutegemm.ranks.steps import Barrier, Follow, Step

OPERATIONS = ("all_gather", "reduce_scatter", "all_reduce")
FORMS = ("whole", "by_shard", "by_copy")


def forms_of(operation: str) -> tuple[str, ...]:
    """Return the names of the forms that the schedule of an operation can have, such as "whole".

    >>> forms_of("all_gather"), forms_of("all_reduce")
    (('whole', 'by_shard'), ('whole', 'by_shard', 'by_copy'))
    """
    return tuple([form for form in FORMS if (operation, form) in _BUILDERS])


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
    form          "whole": one GEMM, for few rows. "by_shard": one GEMM for each shard of rows, next to copies.
                  "by_copy", not of an all-gather: one GEMM for each shard, next to copies of the products, then a sum
    chunks        launches for the rows of a shard, of a reduce-scatter or all-reduce by shard. A chunk is copied while
                  the next one is computed. With 1, GEMMs store to the memory of other ranks
    is_captured   whether a CUDA graph can replay the schedule
    raises        PlanError with every rule that the arguments break

    >>> print(schedule_of("reduce_scatter", 2, 128, 64, 32).described(1))
    main  gemm x[0:64] of rank 1 -> partials[0:64] of rank 0
    main  barrier of all ranks
    main  gemm x[64:128] of rank 1 + partials[0:64] of rank 1 -> d[0:64] of rank 1
    """
    rules = [
        (operation not in OPERATIONS, f"operation = {operation!r} is unknown. Use {', '.join(OPERATIONS)}."),
        (form not in FORMS, f"form = {form!r} is unknown. Use one of {', '.join(FORMS)}."),
        (
            (operation, form) == ("all_gather", "by_copy"),
            "form = 'by_copy' adds products. Use 'by_shard', which copies rows of A.",
        ),
        (ranks < 2, f"ranks = {ranks}; at least 2 are needed. Call gemm for one rank."),
        (min(m, n, k) < 1, f"m, n, k = {m}, {n}, {k}; each must be at least 1."),
        (
            operation != "all_reduce" and ranks > 0 and m % ranks != 0,
            f"m = {m} is not a multiple of {ranks} ranks. Pad the rows, or use all_reduce, which divides any m.",
        ),
        (
            form in FORMS[1:] and m < ranks * max(1, chunks),
            f"m = {m} has less than a row for each chunk of {ranks} ranks. Use form='whole'.",
        ),
        (
            chunks < 1 or (chunks > 1 and (operation == "all_gather" or form != "by_shard")),
            f"chunks = {chunks}; use 1, or more for reduce_scatter and all_reduce by_shard.",
        ),
    ]
    broken = [text for is_broken, text in rules if is_broken]
    if broken:
        raise PlanError(f"schedule_of({operation!r}, ranks={ranks}, m={m}, n={n}, k={k})", broken)
    kind = DType.parse(dtype)
    result = kind if out_dtype is None else DType.parse(out_dtype)
    shape = Shape(ranks, m, n, k, kind, result, chunks, 1 if is_captured else 2)
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
    of the rank that owns the rows, or copies bring them there, chunk by chunk. The epilogue of the last GEMM, for the
    rank's own rows, adds the partial results of the others in ring order. By copy, the results are copied there, and a
    kernel adds them to the product of the rank itself. So the result is the same in every call, bit by bit.

    Partial results are rounded to the type of D. With u half a unit in the last place of 1, the error of an element is
    at most (ranks - 1) * u * (largest partial result) + u * |result|, plus that of the GEMMs in f32. In the forms
    "whole" and "by_copy" there are `ranks` such roundings. By shard with more than `MOST_ADDS` other ranks, the sum of
    `MOST_ADDS` + 1 partial results is rounded too, which makes it ranks + `MOST_ADDS`.

    ranks     number of ranks. Each has m rows of A, and k of all columns of A
    m, n, k   rows and columns of the sum, and columns of a rank's A
    options   `out_dtype`, `form`, `chunks` and `is_captured` of `schedule_of`

    >>> print(reduce_scatter(2, 128, 64, 32).described(0))
    main  gemm x[64:128] of rank 0 -> partials[0:64] of rank 1
    main  barrier of all ranks
    main  gemm x[0:64] of rank 0 + partials[0:64] of rank 0 -> d[0:64] of rank 0
    """
    return schedule_of("reduce_scatter", ranks, m, n, k, dtype, **options)


def all_reduce(ranks: int, m: int, n: int, k: int, dtype: DType | str = bf16, **options: Any) -> Schedule:
    """Return the schedule of a GEMM with an all-reduce: every rank gets the sum of the D of all ranks.

    By shard, each rank reduces its share of the rows, as in `reduce_scatter`, and the other ranks copy it. In the form
    "whole", every rank reads the products of all ranks, and adds them in the order of the ranks. By copy, all but the
    last product of a rank are copied to the others before. In each form all ranks have the same bits. The errors are
    those of `reduce_scatter`.

    ranks     number of ranks. Each has m rows of A, and k of all columns of A
    m, n, k   rows and columns of the sum, and columns of a rank's A
    options   `out_dtype`, `form`, `chunks` and `is_captured` of `schedule_of`

    >>> print(all_reduce(2, 128, 64, 32, form="whole").described(0))
    main  gemm x[0:128] of rank 0 -> product[0:128] of rank 0
    main  barrier of all ranks
    main  add product[0:128] of rank 0 + product[0:128] of rank 1 -> d[0:128] of rank 0
    """
    return schedule_of("all_reduce", ranks, m, n, k, dtype, **options)


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


# (buffers, steps of a rank) of each operation and form
_BUILDERS: dict[tuple[str, str], tuple[Callable[[Shape], Iterable[Buffer]], Callable[[Shape, int], Iterable[Step]]]] = {
    ("all_gather", "whole"): (gather_buffers, gather_whole),
    ("all_gather", "by_shard"): (gather_buffers, gather_by_shard),
    ("reduce_scatter", "whole"): (scatter_whole_buffers, scatter_whole),
    ("reduce_scatter", "by_shard"): (scatter_buffers, scatter_by_shard),
    ("reduce_scatter", "by_copy"): (scatter_by_copy_buffers, scatter_by_copy),
    ("all_reduce", "whole"): (reduce_whole_buffers, reduce_whole),
    ("all_reduce", "by_shard"): (reduce_buffers, reduce_by_shard),
    ("all_reduce", "by_copy"): (reduce_by_copy_buffers, reduce_by_copy),
}
