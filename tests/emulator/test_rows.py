"""The kernels of the rows of experts, emulated: the bits of torch's operations."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("cutlass.cute", reason="the CuTe DSL is not installed")
pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi is not installed")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

import cutegemm  # noqa: E402
from cutegemm.compile.plans import compile_rows  # noqa: E402
from cutegemm.plan.memory.rows import SortRows, SortTokens  # noqa: E402
from cutegemm.torch.grouped import launch, library, rows  # noqa: E402
from tests.emulator.on_cpu import KINDS, emulated  # noqa: E402
from tests.torch.cases import normal  # noqa: E402
from tests.torch.grouped_kernels import run_by  # noqa: E402

GUARD = -77


def sorted_by_kernel(index, experts, ctas=1):
    """Return place and ends from the emulated kernel. What follows them in memory must stay as it is."""
    kernel = SortRows(experts, 8 * index.element_size(), ctas)
    place, ends = [torch.full((count + 9,), GUARD, dtype=torch.int32) for count in (index.numel(), experts)]
    written = place[: index.numel()], ends[:experts]
    emulated(compile_rows(kernel, "sm_90a")[0], (index, *written), [index], [*written])
    assert (place[index.numel() :] == GUARD).all()
    assert (ends[experts:] == GUARD).all()
    return written


@pytest.fixture
def launched(monkeypatch):
    """Let `torch.grouped.rows` take the CPU for a Hopper GPU and emulate the kernels. Return the list of them."""
    kernels = []

    def compiled(kernel, arch):
        folder = compile_rows(kernel, "sm_90a")[0]

        def function(*tensors):
            kernels.append(kernel)
            written = {
                "SortRows": (1, 2),
                "SortTokens": (1, 2, 3, 5),
                "SpreadRows": (2, 4),
                "SumRows": (2,),
                "TotalRows": (2,),
            }[type(kernel).__name__]
            read = [x for i, x in enumerate(tensors) if i not in written]
            emulated(folder, tensors, read, [x for i, x in enumerate(tensors) if i in written])

        return function

    for name in ("_sorter", "_spreader", "_adder", "_totaller"):
        monkeypatch.setattr(rows, name, getattr(rows, name).__wrapped__)
    monkeypatch.setattr(rows, "compiled", compiled)
    monkeypatch.setattr(rows.torch_ops, "device_arch", lambda index: "sm_90a")
    monkeypatch.setattr(rows, "has_kernels", lambda x: True)
    monkeypatch.setitem(KINDS, torch.int64, "s64")
    return kernels


# --- order --------------------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(-2, 9), min_size=1, max_size=90), st.sampled_from([1, 3, 7, 8]), st.sampled_from([1, 2]))
def test_the_order_is_stable(entries, experts, ctas):
    index = torch.tensor(entries, dtype=torch.int32)
    place, ends = sorted_by_kernel(index, experts, ctas)
    theirs = rows.placed_by_torch(index, experts)
    assert torch.equal(place, theirs[0])
    assert torch.equal(ends, theirs[1])


@pytest.mark.parametrize(
    ("count", "experts"), [(1, 1), (31, 8), (32, 31), (1024, 32), (1025, 33), (4097, 257), (9000, 128), (300, 1400)]
)
def test_sizes_of_the_index(count, experts):
    """Counts near the size of a warp, a CTA and a step. With 1400 experts, the CTA has fewer warps."""
    torch.manual_seed(count)
    index = torch.randint(0, experts + 1, (count,), dtype=torch.int32)
    place, ends = sorted_by_kernel(index, experts)
    theirs = rows.placed_by_torch(index, experts)
    assert torch.equal(place, theirs[0])
    assert torch.equal(ends, theirs[1])


def test_one_expert_has_all_rows():
    place, ends = sorted_by_kernel(torch.full((2500,), 2, dtype=torch.int32), 4)
    assert torch.equal(place, torch.arange(2500, dtype=torch.int32))
    assert ends.tolist() == [0, 0, 2500, 2500]


@pytest.mark.parametrize(("count", "experts"), [(8192, 8), (9001, 256), (20_000, 130), (33_000, 31)])
def test_a_cluster_sorts(count, experts):
    torch.manual_seed(count)
    index = torch.randint(0, experts + 1, (count,), dtype=torch.int32)
    place, ends = sorted_by_kernel(index, experts, 8)
    theirs = rows.placed_by_torch(index, experts)
    assert torch.equal(place, theirs[0])
    assert torch.equal(ends, theirs[1])


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_types_of_the_index(dtype, launched):
    index = torch.tensor([[3, 0], [0, 255], [2, 3]]).to(dtype)
    place, ends = rows.placed(index, 4)
    assert place.tolist() == [3, 0, 1, 5, 2, 4]  # rows by expert: 0 of token 0, 0 of 1, 2, 3 of 0, 3 of 2, 255
    assert ends.tolist() == [2, 2, 3, 5]
    assert launched


def test_numbers_beyond_32_bits(launched):
    """They belong to no expert, or to the first one if negative, and write nothing outside."""
    place, ends = rows.placed(torch.tensor([[2**32, 1], [-(2**40), 2**63 - 1]]), 2)
    assert place.tolist() == [2, 1, 0, 3]
    assert ends.tolist() == [1, 2]


@pytest.mark.parametrize("limit", ["_MOST_SORTED", "_LEAST_WARPS"])
def test_kernels_take_the_order_of_torch(limit, launched, monkeypatch):
    """An index that is too long for one cluster, or has too many experts, is sorted by torch."""
    monkeypatch.setattr(rows, limit, {"_MOST_SORTED": 5, "_LEAST_WARPS": 33}[limit])
    index, x, weights = torch.tensor([[3, 0], [0, 9], [2, 3]]), normal(3, 16).bfloat16(), normal(3, 2, seed=1)
    place, ends = rows.placed(index, 4)
    assert not launched
    assert ends.tolist() == [2, 2, 3, 5]
    ours, weight = rows.spread(x, place, 2, weights)
    order = [1, 2, 4, 0, 5, 3]  # entries of experts 0, 0, 2, 3, 3 and 9
    assert torch.equal(ours, x[torch.tensor(order) // 2])
    assert torch.equal(weight, weights.view(-1, 1)[order])
    assert torch.equal(rows.summed(ours, place, 2), 2 * x)
    assert len(launched) == 2


@pytest.mark.parametrize(("tokens", "k", "ctas"), [(1, 1, 1), (13, 3, 1), (300, 2, 2)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tokens_and_weights_of_rows(tokens, k, ctas, dtype, launched, monkeypatch):
    """The sort writes them as `spread` copies them, also from negated weights and from those of another pitch."""
    monkeypatch.setattr(rows, "_LEAST_SHARED", 0 if ctas > 1 else tokens * k + 1)
    monkeypatch.setattr(rows, "_CTAS", ctas)
    torch.manual_seed(tokens)
    index, weights = torch.randint(0, 6, (tokens, k)), normal(tokens, 2 * k).to(dtype)[:, ::2]
    for of_entries in (weights, torch._neg_view(weights)):
        place, ends, of_rows, weight = rows.placed_tokens(index, 5, of_entries)
        for one, other in zip((place, ends), rows.placed(index, 5), strict=True):
            assert torch.equal(one, other)
        order = rows.inverse(place)
        assert of_rows.tolist() == (order // k).tolist()
        assert torch.equal(weight, of_entries.resolve_neg().reshape(-1, 1)[order])
    assert {type(kernel) for kernel in launched} == {SortRows, SortTokens}


# --- copies and sums ----------------------------------------------------------------------------------------------

SHAPES = [(5, 64, 2), (1, 1, 1), (3, 1030, 3), (7, 13, 8), (2, 2056, 2)]  # tokens, columns, k


def permutation(count):
    torch.manual_seed(count)
    return torch.randperm(count, dtype=torch.int32)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float8_e4m3fn])
@pytest.mark.parametrize(("tokens", "columns", "k"), SHAPES)
def test_rows_of_tokens(tokens, columns, k, dtype, launched):
    x, place = normal(tokens, columns).to(dtype), permutation(tokens * k)
    weights = normal(tokens, k, seed=1).to(torch.bfloat16 if k > 2 else torch.float32)
    ours, weight = rows.spread(x, place, k, weights)
    order = rows.inverse(place)
    assert torch.equal(ours.view(torch.uint8), x.view(torch.uint8)[order // k])
    assert torch.equal(weight, weights.view(-1, 1)[order])
    assert ours.stride(0) * ours.element_size() % 16 == 0
    assert torch.equal(rows.spread(x, place, k)[0].view(torch.uint8), ours.view(torch.uint8))
    assert len(launched) == 2


def test_negated_tokens_and_weights(launched):
    x, weights, place = normal(6, 16).bfloat16(), normal(6, 2, seed=1).bfloat16(), permutation(12)
    ours, weight = rows.spread(torch._neg_view(x), place, 2, torch._neg_view(weights))
    order = rows.inverse(place)
    assert torch.equal(ours, -x[order // 2])
    assert torch.equal(weight, -weights.view(-1, 1)[order])


def test_rows_of_tokens_with_other_strides(launched):
    place = permutation(12)
    whole = normal(6, 40).bfloat16()
    for x in (whole[:, 1:33], whole[:, :32], whole[:, ::2], whole.mT[:6], whole[:1].expand(6, 40)):
        assert torch.equal(rows.spread(x, place, 2)[0], x[rows.inverse(place) // 2])
    assert [kernel.vector for kernel in launched] == [1, 8, 4, 2, 8]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(("tokens", "columns", "k"), SHAPES)
def test_sums_of_rows(tokens, columns, k, dtype, launched):
    """The float32 sum in the order of the experts, rounded once."""
    y, place = normal(tokens * k, columns).to(dtype), permutation(tokens * k)
    of_tokens = y[place.long()].float().view(tokens, k, columns)
    total = torch.zeros(tokens, columns)
    for i in range(k):
        total = total + of_tokens[:, i]
    assert torch.equal(rows.summed(y, place, k), total.to(dtype))
    assert len(launched) == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(("tokens", "columns", "k"), SHAPES)
def test_totals_of_rows(tokens, columns, k, dtype, launched):
    terms, place = torch.randint(-8, 9, (tokens * k, columns)).to(dtype), permutation(tokens * k)  # exact sums
    ours = rows.totals(terms, place, torch.zeros(tokens, k))
    assert torch.equal(ours, terms.float().sum(1)[place.long()].view(tokens, k))
    assert rows.totals(terms, place, torch.zeros(tokens, k).bfloat16()).dtype == torch.bfloat16
    assert len(launched) == 2


def test_a_layer_by_emulated_kernels(launched, monkeypatch):
    """All kernels of a forward and a backward pass."""
    shapes = (20, 64), (20, 2), (3, 128, 64), (3, 64, 64)
    tensors = [(normal(*shape, seed=i) / 4).bfloat16() for i, shape in enumerate(shapes)]
    index = torch.stack([torch.arange(20) % 3, (torch.arange(20) + 1) % 2], -1)

    def run(dtype):
        x, weights, up, down = found = [each.to(dtype, copy=True).requires_grad_() for each in tensors]
        y = cutegemm.experts(x, index, weights, up, down)
        return [y.detach(), *torch.autograd.grad(y.float().square().sum(), found)]

    run_by(cutegemm.emulate, monkeypatch)
    monkeypatch.setattr(library, "compute", launch.compute_grouped)
    ours = run(torch.bfloat16)
    assert [type(kernel).__name__ for kernel in launched].count("SpreadRows") == 3
    monkeypatch.undo()
    for one, other, right in zip(ours, run(torch.bfloat16), run(torch.float64), strict=True):
        assert (one - right).norm() <= 1.1 * (other - right).norm()
