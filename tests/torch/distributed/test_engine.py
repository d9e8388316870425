"""The engine on ranks that are threads: results of all schedules, over several calls, with poisoned memory."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
if not torch.distributed.is_available():
    pytest.skip("torch has no distributed", allow_module_level=True)

from cutegemm.ranks import FORMS, forms_of  # noqa: E402
from cutegemm.torch.distributed.engine import Engine, Request  # noqa: E402
from cutegemm.torch.distributed.work import Gathered, Reduced, new_results, new_sum  # noqa: E402
from cutegemm.torch.epilogue import PLAIN  # noqa: E402
from tests.torch.distributed.threads import on_ranks  # noqa: E402

CPU = torch.device("cpu")
CALLS = 5
RANKS = (2, 3, 5)


def normal(*shape, seed):
    """Return random integers from -3 to 3 as float32, so that all sums are exact."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-3, 4, shape, generator=generator).float()


def gathered(ranks, form, text=PLAIN, operands=(), columns=(6,)):
    """Return, for each rank and call, the results of an all-gather, and what they should be."""
    xs = [[normal(4, 8, seed=10 * call + rank) for rank in range(ranks)] for call in range(CALLS)]
    bs = [[normal(8, n, seed=100 + 10 * rank + i) for i, n in enumerate(columns)] for rank in range(ranks)]

    def rank_calls(memory):
        engine, found = Engine(memory, CPU), []
        for call in range(CALLS):
            x, b = xs[call][memory.rank], bs[memory.rank]
            results = new_results(x, ranks, b, text, None)
            request = Request("all_gather", 4 * ranks, sum(columns), 8, x.dtype, x.dtype, form)
            engine.run(request, Gathered(x, b, text, operands, (), results))
            found.append(results)
        return found

    wanted = [[[torch.cat(xs[call]) @ b for b in bs[rank]] for call in range(CALLS)] for rank in range(ranks)]
    return on_ranks(ranks, rank_calls), wanted


def reduced(ranks, form, operation, bias=None, rows=None, chunks=1):
    """Return, for each rank and call, the result of a reduction, and what it should be."""
    m = rows or 3 * ranks
    xs = [[normal(m, 8, seed=10 * call + rank) for rank in range(ranks)] for call in range(CALLS)]
    bs = [normal(8, 6, seed=100 + rank) for rank in range(ranks)]
    scatters = operation == "reduce_scatter"

    def rank_calls(memory):
        engine, found = Engine(memory, CPU), []
        for call in range(CALLS):
            x, b = xs[call][memory.rank], bs[memory.rank]
            d = new_sum(x, b, ranks if scatters else 1)
            engine.run(Request(operation, m, 6, 8, x.dtype, x.dtype, form, chunks), Reduced(x, b, bias, d))
            found.append(d)
        return found

    wanted = []
    for rank in range(ranks):
        sums = [sum(x @ b for x, b in zip(xs[call], bs, strict=True)) for call in range(CALLS)]
        sums = sums if bias is None else [each + bias for each in sums]
        wanted.append([each.chunk(ranks)[rank] for each in sums] if scatters else sums)
    return on_ranks(ranks, rank_calls), wanted


@pytest.mark.parametrize("form", forms_of("all_gather"))
@pytest.mark.parametrize("ranks", RANKS)
def test_rows_are_gathered(ranks, form):
    found, wanted = gathered(ranks, form)
    assert all(torch.equal(x[0], y[0]) for a, b in zip(found, wanted, strict=True) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("form", forms_of("all_gather"))
def test_several_weights_and_an_epilogue(form):
    found, wanted = gathered(2, form, columns=(6, 2, 4))
    for each, right in zip(found, wanted, strict=True):
        assert all(torch.equal(x, y) for a, b in zip(each, right, strict=True) for x, y in zip(a, b, strict=True))
    rows = torch.arange(8.0)[:, None] * torch.ones(6)  # differs from row to row
    bias = torch.arange(6.0)
    found, wanted = gathered(2, form, "lambda acc, rows, bias: (relu(acc + bias), acc * rows)", (rows, bias))
    for each, right in zip(found, wanted, strict=True):
        for (d, aux), (product,) in zip(each, right, strict=True):
            assert torch.equal(d, torch.relu(product + bias))
            assert torch.equal(aux, product * rows)


@pytest.mark.parametrize("bias", [None, torch.arange(6.0)], ids=["plain", "bias"])
@pytest.mark.parametrize("operation", ["reduce_scatter", "all_reduce"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("ranks", RANKS)
def test_products_are_added(ranks, form, operation, bias):
    """With 5 ranks, more partial results come than the epilogue of one GEMM adds."""
    found, wanted = reduced(ranks, form, operation, bias)
    assert all(torch.equal(x, y) for a, b in zip(found, wanted, strict=True) for x, y in zip(a, b, strict=True))


def test_any_number_of_rows_is_reduced():
    for rows, form in (3, "by_shard"), (7, "by_shard"), (10, "by_copy"):
        found, wanted = reduced(3, form, "all_reduce", rows=rows)
        assert all(torch.equal(x, y) for a, b in zip(found, wanted, strict=True) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("operation", ["reduce_scatter", "all_reduce"])
def test_chunks(operation):
    for ranks in RANKS:
        found, wanted = reduced(ranks, "by_shard", operation, torch.arange(6.0), chunks=3)
        assert all(torch.equal(x, y) for a, b in zip(found, wanted, strict=True) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("is_captured", [False, True], ids=["eager", "captured"])
def test_calls_of_different_kinds_follow_each_other(is_captured):
    """Memory grows between calls, and buffers of one call lie where those of another were.

    Calls that a CUDA graph captures use one half of the memory only.
    """
    shapes = 3 * [(4, 8), (16, 8), (2, 32), (16, 8), (4, 8)]

    def rank_calls(memory):
        engine, found = Engine(memory, CPU), []
        for call, (m, k) in enumerate(shapes):
            x = torch.full((m, k), float(1 + call + memory.rank))
            b = torch.ones(k, 3)
            d = new_sum(x, b, 2)
            form = FORMS[call % 3]
            engine.is_captured = is_captured
            engine.run(Request("reduce_scatter", m, 3, k, x.dtype, x.dtype, form), Reduced(x, b, None, d))
            results = new_results(x, 2, [b], PLAIN, None)
            gathers = forms_of("all_gather")[call % 2]
            engine.run(
                Request("all_gather", 2 * m, 3, k, x.dtype, x.dtype, gathers), Gathered(x, [b], PLAIN, (), (), results)
            )
            total = new_sum(x, b)
            engine.run(Request("all_reduce", m, 3, k, x.dtype, x.dtype, form), Reduced(x, b, None, total))
            found.append((d, results[0], total))
        return found

    for found in on_ranks(2, rank_calls):
        for call, ((m, k), (d, rows, total)) in enumerate(zip(shapes, found, strict=True)):
            assert torch.equal(d, torch.full((m // 2, 3), float(k * (2 * call + 3))))
            assert torch.equal(rows, torch.cat([torch.full((m, 3), float(k * (1 + call + rank))) for rank in (0, 1)]))
            assert torch.equal(total, torch.full((m, 3), float(k * (2 * call + 3))))
