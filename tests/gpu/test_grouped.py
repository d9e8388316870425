"""`grouped_mm` and `experts` on a GPU: random groups against float64, guard bands, repeats and graphs."""

from __future__ import annotations

import functools
import random
from itertools import accumulate

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import cutegemm  # noqa: E402
from cutegemm.epilogue import gelu  # noqa: E402
from cutegemm.run.calls import How  # noqa: E402
from cutegemm.torch import quantize, scaled_grouped_mm  # noqa: E402
from cutegemm.torch.grouped import launch, prepared, rows  # noqa: E402
from cutegemm.torch.grouped.reference import grouped_by_torch, rows_of  # noqa: E402
from cutegemm.torch.reference import dequantized  # noqa: E402
from tests.grouped import bounds  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("arch")]

GUARD = 8  # units of 16 bytes next to each row of a result, and rows before and after it
POISON = -4096.0  # exact in every type
PRIMES = (2, 3, 5, 7, 13, 31, 61, 127, 131, 251, 257)
EXTENTS = ((1, 256, 64), (3, 520, 328), (8, 1024, 1000), (64, 136, 512))  # groups, N or M, K
FORMS = ("m", "n", "k")
SEEDS = range(12)
VECTORS = 500  # number of vectors of ends, for each form


@pytest.fixture(autouse=True)
def _hopper(arch):
    if not arch.startswith("sm_90"):
        pytest.skip("grouped kernels need Hopper")


def sizes(numbers, groups):
    """Random sizes of groups: zeros, ones, primes, and sometimes one giant group."""
    found = [numbers.choice((0, 1, numbers.choice(PRIMES), numbers.choice(PRIMES))) for _ in range(groups)]
    if numbers.random() < 0.4:
        found[numbers.randrange(groups)] = 3001
    return found


def case(form, seed, dtype=torch.bfloat16):
    """Return factors, ends and parts of a random problem. Elements after the last end are NaN."""
    numbers = random.Random(f"{form} {seed}")
    groups, n, k = EXTENTS[seed % len(EXTENTS)]
    ends = list(accumulate(sizes(numbers, groups)))
    extent = max(8, -(-(ends[-1] + numbers.choice((0, 0, 5, 300))) // 8) * 8)
    generator = torch.Generator("cuda").manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, device="cuda", generator=generator).to(dtype)

    if form == "m":
        a, b = normal(extent, k), normal(groups, n, k).mT
        a[ends[-1] :] = torch.nan
    elif form == "n":
        a, b = normal(groups, n, k), normal(extent, k).mT
        b[:, ends[-1] :] = torch.nan
    else:
        a, b = normal(extent, 264).mT, normal(extent, n)
        a[:, ends[-1] :], b[ends[-1] :] = torch.nan, torch.nan
    return a, b, torch.tensor(ends, device="cuda", dtype=torch.int32), bounds(ends, extent)


def of_groups(form, x, parts):
    """The parts of a result that belong to a group."""
    if form == "k":
        return list(x)
    return [x[begin:end] if form == "m" else x[:, begin:end] for begin, end in parts]


def by_torch(a, b, ends, text="lambda acc: acc", operands=(), out_dtype=None):
    return grouped_by_torch(a, b, ends, text, operands, (), out_dtype, False)


def assert_accurate(form, ours, theirs, exact, parts):
    """Assert that the error of each result is at most twice that of torch's operations."""
    for one, other, right in zip(ours, theirs, exact, strict=True):
        found = [
            torch.cat([x.flatten() for x in of_groups(form, each, parts)]).double() for each in (one, other, right)
        ]
        one, other, right = found
        assert torch.isfinite(one).all()
        assert (one - right).norm() <= 2 * (other - right).norm() + 1e-6 * right.norm()


@pytest.fixture
def guarded(monkeypatch):
    """Let results lie between guard bands in poisoned memory. Returns the list of (memory, index of the result)."""
    memories = []

    def allocated(shape, dtype, form):
        *batch, rows, columns = (*shape[:-2], shape[-1], shape[-2]) if form.groups == "n" else shape
        if form.is_padded:  # matrices follow each other without gaps
            batch, rows = [], batch[0] * rows
        unit = 16 // dtype.itemsize
        pitch = 2 * GUARD * unit + -(-columns // unit) * unit
        whole = torch.full((*batch, rows + 2 * GUARD, pitch), POISON, dtype=dtype, device="cuda")
        index = (..., slice(GUARD, GUARD + rows), slice(GUARD * unit, GUARD * unit + columns))
        memories.append((whole, index))
        return whole[index].mT if form.groups == "n" else whole[index].view(shape)

    monkeypatch.setattr(launch, "_calls", type(launch._calls)())
    monkeypatch.setattr(
        prepared,
        "allocator",
        lambda shape, dtype, form, zeroed: lambda a: allocated(shape, dtype, form).mul_(not zeroed),
    )
    return memories


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("form", FORMS)
def test_random_groups(form, seed, guarded):
    """Results are accurate, and nothing but the rows of groups is written."""
    a, b, ends, parts = case(form, seed)
    ours = cutegemm.grouped_mm(a, b, offs=ends)
    theirs, exact = [by_torch(*each, ends) for each in ((a, b), (a.double(), b.double()))]
    assert_accurate(form, [ours], theirs, exact, parts)
    for memory, index in guarded:
        inside = torch.zeros_like(memory, dtype=torch.bool)
        rows = inside[index]
        for part in of_groups("m" if form == "n" else form, rows, parts):
            part.fill_(True)
        assert (memory[~inside] == POISON).all()


@pytest.mark.parametrize("form", FORMS)
def test_many_vectors_of_ends(form, guarded):
    """One kernel serves zeros, ones, primes and one giant group: accurate, and no other element is written."""
    extent, count, n, k = 1024, 12, 136, 72
    numbers, generator = random.Random(form), torch.Generator("cuda").manual_seed(0)

    def normal(*shape):
        return torch.randn(shape, device="cuda", generator=generator).bfloat16()

    factors = {
        "m": lambda: (normal(extent, k), normal(count, n, k).mT),
        "n": lambda: (normal(count, n, k), normal(extent, k).mT),
        "k": lambda: (normal(extent, n).mT, normal(extent, n)),
    }
    a, b = factors[form]()
    wide = a.double(), b.double()
    for _ in range(VECTORS):
        found = [numbers.choice((0, 1, numbers.choice(PRIMES))) for _ in range(count)]
        if numbers.random() < 0.3:
            found[numbers.randrange(count)] = extent - sum(found) if sum(found) < extent else 0
        ends = [min(each, extent) for each in accumulate(found)]
        offs = torch.tensor(ends, device="cuda", dtype=torch.int32)
        parts = bounds(ends, extent)
        guarded.clear()
        ours = cutegemm.grouped_mm(a, b, offs=offs)
        exact = by_torch(*wide, offs)
        assert_accurate(form, [ours], [each.bfloat16() for each in exact], exact, parts)
        ((memory, index),) = guarded
        inside = torch.zeros_like(memory, dtype=torch.bool)
        for part in of_groups("m" if form == "n" else form, inside[index], parts):
            part.fill_(True)
        assert (memory[~inside] == POISON).all()


EPILOGUES = {
    "bias": ("lambda acc, bias: gelu(acc + bias)", lambda groups, m, n: [(groups, 1, n)]),
    "weights": ("lambda acc, weight, bias: acc + weight * bias", lambda groups, m, n: [(m, 1), (groups, 1, n)]),
    "gated": (
        "lambda acc, bias, w: (swiglu(acc + bias) * w, acc + bias)",
        lambda groups, m, n: [(groups, 1, n), (m, 1)],
    ),
    "residual": ("lambda acc, c: (relu(acc) + c, acc)", lambda groups, m, n: [(m, n)]),
}


@pytest.mark.parametrize("seed", SEEDS[:8])
@pytest.mark.parametrize("name", EPILOGUES)
def test_epilogues_of_random_groups(name, seed, guarded):
    a, b, ends, parts = case("m", seed)
    text, shapes = EPILOGUES[name]
    operands = [torch.randn(shape, device="cuda") for shape in shapes(len(ends), len(a), b.shape[-1])]
    ours = launch.compute_grouped(a, b, ends, text, operands, (), None, How(), False)
    theirs = by_torch(a, b, ends, text, operands)
    exact = by_torch(a.double(), b.double(), ends, text, [x.double() for x in operands])
    assert_accurate("m", ours, theirs, exact, parts)


@pytest.mark.parametrize("seed", SEEDS[:8])
def test_random_counts_of_padded_groups(seed, guarded):
    """Rows after the count are NaN in a, and poison in the result."""
    groups, n, k = EXTENTS[seed % len(EXTENTS)]
    numbers = random.Random(seed)
    rows = numbers.choice((8, 64, 131, 256))
    counts = torch.tensor([numbers.choice((0, 1, rows, numbers.randrange(rows))) for _ in range(groups)], device="cuda")
    valid = torch.arange(rows, device="cuda") < counts[:, None]
    a, b = torch.randn(groups, rows, k, device="cuda"), torch.randn(groups, n, k, device="cuda").bfloat16().mT
    a = a.bfloat16().masked_fill(~valid[..., None], torch.nan)
    ours = cutegemm.grouped_mm(a, b, counts=counts.to(torch.int32))
    exact = (a.double() @ b.double())[valid]
    assert (ours[~valid] == POISON).all()
    error, theirs = [(each[valid].double() - exact).norm() for each in (ours, a @ b)]
    assert error <= 2 * theirs + 1e-6 * exact.norm()


@pytest.mark.parametrize("seed", SEEDS)
def test_random_rows_that_are_gathered(seed, guarded):
    """Rows that no index selects are NaN, some indices are out of range, and only rows of groups are written."""
    _, b, ends, parts = case("m", seed)
    numbers, last = random.Random(seed), parts[-1][1]
    a = torch.randn(numbers.choice((1, 37, 1000)), b.shape[1], device="cuda").bfloat16()
    index = torch.randint(0, len(a), (max(8, last + 5),), device="cuda", dtype=torch.int32)
    index[:: numbers.choice((3, 50))] = numbers.choice((-1, len(a), 2**31 - 1))
    inside = index[:last]
    a[torch.isin(torch.arange(len(a), device="cuda"), inside[inside >= 0], invert=True)] = torch.nan
    rows = rows_of(a, index)
    bias = torch.randn(len(ends), b.shape[-1], device="cuda").bfloat16()
    ours = cutegemm.grouped_mm(a, b, offs=ends, a_index=index, bias=bias)
    text, operands = "lambda acc, bias: acc + bias", [bias.unsqueeze(1)]
    theirs = by_torch(rows, b, ends, text, operands)
    exact = by_torch(rows.double(), b.double(), ends, text, [each.double() for each in operands])
    assert_accurate("m", [ours], theirs, exact, parts)
    for memory, place in guarded:
        is_result = torch.zeros_like(memory, dtype=torch.bool)
        for part in of_groups("m", is_result[place], parts):
            part.fill_(True)
        assert (memory[~is_result] == POISON).all()


def test_gathered_rows_have_the_bits_of_a_copy():
    """In each of 300 runs, also when a CUDA graph is replayed with another index."""
    _, b, ends, parts = case("m", 2)
    last = parts[-1][1]
    a, moment = (
        torch.randn(500, b.shape[1], device="cuda").bfloat16(),
        torch.zeros(last, device="cuda", dtype=torch.int32),
    )
    function = functools.partial(cutegemm.grouped_mm, a, b, offs=ends, a_index=moment)
    function()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = function()
    for seed in range(300):
        generator = torch.Generator("cuda").manual_seed(seed)
        moment.copy_(torch.randint(0, 500, (last,), device="cuda", generator=generator))
        graph.replay()
        assert torch.equal(result, cutegemm.grouped_mm(a[moment], b, offs=ends))


@pytest.mark.parametrize("plan", [None, "sm90:tile=128x128x64", "swap_ab:sm90:tile=64x64x64"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("seed", SEEDS)
def test_random_rows_that_are_added(seed, dtype, plan, guarded):
    """To few or many rows of the result, and some to none. A replayed CUDA graph begins with zeros again."""
    a, b, ends, parts = case("m", seed)
    targets, last = (1, 37, 1000)[seed % 3], parts[-1][1]
    index = torch.randint(-1, targets + 1, (len(a),), device="cuda", dtype=torch.int32)
    text, weight = "lambda acc, weight: acc * weight", torch.rand(len(a), 1, device="cuda")
    rows = by_torch(a.double(), b.double(), ends, text, [weight.double()])[0][:last]
    own = ((index >= 0) & (index < targets))[:last]

    def added(rows):
        return rows.new_zeros(targets, *rows.shape[1:]).index_add_(0, index[:last][own], rows[own])

    def run():
        return launch.compute_grouped(
            a, b, ends, text, [weight], (), dtype, How(plan=plan), False, d_index=index, targets=targets
        )[0]

    exact, size, most = added(rows), added(rows.abs()).norm(), added(torch.ones_like(rows)).max()
    bound = size * (1e-3 if dtype == torch.float32 else (1 + most) * 2.0**-9)
    found = [run(), run()]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found.append(run())
    for _ in range(3):
        graph.replay()
        for each in found:
            assert each.dtype == dtype
            assert (each - exact).norm() <= bound
    for memory, place in guarded:
        outside = torch.ones_like(memory, dtype=torch.bool)
        outside[place] = False
        assert (memory[outside] == POISON).all()


@pytest.mark.parametrize("form", FORMS)
def test_groups_do_not_see_each_other(form):
    """NaN in one group, or in the factors of empty groups, is in no result of another group."""
    a, b, ends, parts = case(form, 3)
    wrong = max(range(len(parts)), key=lambda group: parts[group][1] - parts[group][0])
    clean = cutegemm.grouped_mm(a, b, offs=ends)
    begin, end = parts[wrong]
    if form == "n":
        b[:, begin:end] = torch.nan
    else:
        (a if form == "m" else a.mT)[begin:end] = torch.nan
    for group, (begin, end) in enumerate(parts):
        if begin == end and form != "k":
            (b if form == "m" else a)[group] = torch.nan
    dirty = cutegemm.grouped_mm(a, b, offs=ends)
    pairs = zip(of_groups(form, clean, parts), of_groups(form, dirty, parts), strict=True)
    for group, (before, after) in enumerate(pairs):
        assert after.isnan().all() if group == wrong else torch.equal(before, after)


@pytest.mark.parametrize("form", FORMS)
def test_repeats_have_the_same_bits(form):
    a, b, ends, parts = case(form, 2)
    first = of_groups(form, cutegemm.grouped_mm(a, b, offs=ends), parts)
    for _ in range(1000):
        again = of_groups(form, cutegemm.grouped_mm(a, b, offs=ends), parts)
        assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float8_e4m3fn])
def test_other_types(dtype):
    for seed in SEEDS[:4]:
        a, b, ends, parts = case("m", seed, torch.bfloat16)
        a, b = a.clamp(-8, 8).to(dtype), b.clamp(-8, 8).mT.to(dtype).mT
        k = a.shape[1] // 16 * 16
        a, b = a[:, :k].clone(), b[:, :k].mT.clone().mT
        ours = launch.compute_grouped(a, b, ends, "lambda acc: acc", (), (), None, How(), False)
        wide = (a.bfloat16(), b.bfloat16()) if dtype.itemsize == 1 else (a, b)
        theirs, exact = by_torch(*wide, ends), by_torch(a.double(), b.double(), ends)
        assert_accurate("m", ours, theirs, exact, parts)


@pytest.mark.parametrize("seed", SEEDS)
def test_block_scales(seed, guarded):
    """Float8 with a scale for each row of A and 128 of K, and for each row, or 128 x 128, of the weights."""
    a, b, ends, parts = case("m", seed)
    values, of_a = quantize(a.nan_to_num(), (1, 128))
    of_rows = seed % 2 == 1
    weights = [quantize(each, (1, 128) if of_rows else (128, 128)) for each in b.mT]
    pairs = [(each, scale if of_rows else scale.mT) for each, scale in weights]
    of_b = torch.stack([scale for _, scale in pairs])
    ours = scaled_grouped_mm(
        values,
        torch.stack([each for each, _ in pairs]).mT,
        of_a,
        "BlockWise1x128",
        of_b if of_rows else of_b.mT,
        "BlockWise1x128" if of_rows else "BlockWise128x128",
        offs=ends,
        output_dtype=torch.bfloat16,
    )
    wide = torch.stack([dequantized(*pair) for pair in pairs]).double().mT
    exact = by_torch(dequantized(values, of_a).double(), wide, ends)
    assert_accurate("m", [ours], [each.bfloat16() for each in exact], exact, parts)


def test_a_cuda_graph_takes_new_ends():
    """The ends are in device memory: a replay reads those of the moment."""
    a, b, ends, _ = case("m", 2)
    moment, function = ends.clone(), lambda: cutegemm.grouped_mm(a.nan_to_num(), b, offs=moment)
    function()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = function()
    for seed in SEEDS:
        numbers = random.Random(seed)
        other = sorted(numbers.randrange(len(a) + 1) for _ in ends)
        moment.copy_(torch.tensor(other, dtype=torch.int32))
        result.fill_(torch.nan)
        graph.replay()
        expected = by_torch(a.nan_to_num(), b, moment)[0]
        assert torch.allclose(result[: other[-1]].float(), expected[: other[-1]].float(), 0.02, 0.3)


def test_torch_compile():
    a, b, ends, parts = case("m", 3)
    bias = torch.randn(len(ends), b.shape[-1], device="cuda").bfloat16()

    def function(a, b, ends):
        return cutegemm.grouped_mm(a, b, offs=ends, bias=bias, epilogue=lambda acc: gelu(acc))

    compiled = torch.compile(function, fullgraph=True)
    pairs = [of_groups("m", each(a, b, ends), parts) for each in (compiled, function)]
    assert all(torch.equal(one, other) for one, other in zip(*pairs, strict=True))


# --- rows of experts ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("experts", [1, 8, 128, 257, 1000])
@pytest.mark.parametrize("count", [1, 8, 1000, 8191, 8192, 40_001, 131_072, 1_000_000])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_order_of_random_rows(count, experts, dtype):
    index = torch.randint(0, experts + 1, (count, 1), device="cuda", dtype=dtype)
    for _ in range(3):
        place, ends = rows.placed(index, experts)
        theirs = rows.placed_by_torch(index, experts)
        assert torch.equal(place, theirs[0])
        assert torch.equal(ends, theirs[1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(("tokens", "columns", "k"), [(1, 2048, 8), (777, 4096, 2), (300, 1030, 3), (5000, 7168, 8)])
def test_copies_and_sums_of_rows(tokens, columns, k, dtype):
    x = torch.randn(tokens, columns, device="cuda").to(dtype)
    weights = torch.randn(k, tokens, device="cuda").mT
    place = torch.randperm(tokens * k, device="cuda").to(torch.int32)
    order = rows.inverse(place)
    ours, weight = rows.spread(x, place, k, weights)
    assert torch.equal(ours, x[order // k])
    assert torch.equal(weight, weights.reshape(-1, 1)[order])
    y = torch.randn(tokens * k, columns, device="cuda").to(dtype)
    total = torch.zeros(tokens, columns, device="cuda")
    for each in y[place.long()].float().view(tokens, k, columns).unbind(1):
        total = total + each
    assert torch.equal(rows.summed(y, place, k), total.to(dtype))
    terms = torch.randint(-8, 9, (tokens * k, columns), device="cuda").to(dtype)  # exact sums
    totals = rows.totals(terms, place, torch.zeros(tokens, k, device="cuda"))
    assert torch.equal(totals, terms.float().sum(1)[place.long()].view(tokens, k))


# --- experts ------------------------------------------------------------------------------------------------------


def mixture(tokens=777, k=256, count=16, hidden=192, chosen=4):
    """Arguments of `experts` with biases, and index."""
    x = torch.randn(tokens, k, device="cuda").bfloat16()
    index = torch.rand(tokens, count, device="cuda").topk(chosen, -1).indices
    weights = torch.rand(tokens, chosen, device="cuda")
    up = (torch.randn(count, 2 * hidden, k, device="cuda") / 16).bfloat16()
    down = (torch.randn(count, k, hidden, device="cuda") / 16).bfloat16()
    biases = [torch.randn(count, extent, device="cuda").bfloat16() for extent in (2 * hidden, k)]
    return index, [x, weights, up, down, *biases]


def trained(index, tensors, function=cutegemm.experts):
    """The result and the gradients of `experts`."""
    x, weights, up, down, *biases = [each.detach().requires_grad_() for each in tensors]
    y = function(x, index, weights, up, down, "swiglu_oai", *biases, interleaved=True)
    y.float().square().sum().backward()
    return [y.detach(), *[each.grad for each in (x, weights, up, down, *biases)]]


@pytest.mark.parametrize("deterministic", [True, False])
def test_experts_and_their_gradients(deterministic):
    index, tensors = mixture()
    ours = trained(index, tensors, functools.partial(cutegemm.experts, deterministic=deterministic))
    exact = trained(index.cpu(), [each.cpu().double() for each in tensors])
    theirs = trained(index.cpu(), [each.cpu() for each in tensors])
    for one, other, right in zip(ours, theirs, exact, strict=True):
        assert (one.cpu().double() - right).norm() <= 2 * (other.double() - right).norm()


@pytest.mark.parametrize("tokens", [1, 3, 64])
@pytest.mark.parametrize("grad", [False, True])
def test_experts_of_few_tokens(tokens, grad):
    """Without biases, with weights of bfloat16; the second call of the signature has other values."""
    for _ in range(2):
        index, (x, weights, up, down, *_) = mixture(tokens)
        tensors = [each.detach().requires_grad_(grad) for each in (x, weights.bfloat16(), up, down)]
        wide = [each.detach().double().cpu().requires_grad_(grad) for each in tensors]
        narrow = [each.detach().cpu().requires_grad_(grad) for each in tensors]
        found = []
        for own, seen in ((tensors, index), (narrow, index.cpu()), (wide, index.cpu())):
            y = cutegemm.experts(own[0], seen, *own[1:])
            found.append([y.detach(), *(torch.autograd.grad(y.square().sum(), own) if grad else ())])
        for one, other, right in zip(*found, strict=True):
            assert (one.cpu().double() - right).norm() <= 2 * (other.double() - right).norm() + 1e-6 * right.norm()


@pytest.mark.parametrize("has_bias", [False, True])
def test_experts_on_other_devices_contribute_nothing(has_bias):
    index, (x, weights, up, down, *biases) = mixture()
    biases = biases if has_bias else [None, None]
    index = torch.where(index % 3 == 1, len(up) + index, index)
    torch.full((64 << 20,), torch.nan, device="cuda")  # memory that results may take
    ours = cutegemm.experts(x, index, weights, up, down, "swiglu", *biases, is_partial=True)
    theirs = [each if each is None else each.cpu().double() for each in (x, weights, up, down, *biases)]
    exact = cutegemm.experts(theirs[0], index.cpu(), *theirs[1:4], "swiglu", *theirs[4:], is_partial=True)
    assert (ours.cpu().double() - exact).norm() <= 0.01 * exact.norm()


def test_experts_have_the_same_bits_in_each_run():
    index, tensors = mixture()
    first = trained(index, tensors)
    for _ in range(100):
        assert all(torch.equal(one, other) for one, other in zip(first, trained(index, tensors), strict=True))


def test_experts_wait_for_nothing():
    index, tensors = mixture()
    trained(index, tensors)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        trained(index, tensors)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_experts_in_a_graph_of_torch_compile():
    index, tensors = mixture()
    compiled = torch.compile(cutegemm.experts, fullgraph=True)
    for one, other in zip(trained(index, tensors, compiled), trained(index, tensors), strict=True):
        assert (one - other).double().norm() <= 0.01 * other.double().norm()


def test_experts_in_a_cuda_graph():
    index, (x, weights, up, down, *_) = mixture()
    with torch.no_grad():
        cutegemm.experts(x, index, weights, up, down)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = cutegemm.experts(x, index, weights, up, down)
        index.copy_(torch.rand(len(index), len(up), device="cuda").topk(index.shape[1], -1).indices)
        graph.replay()
        assert torch.equal(result, cutegemm.experts(x, index, weights, up, down))


def test_prepared_experts_compile_nothing_later(monkeypatch):
    """`prepare` compiles all kernels of a forward and a backward pass, for each number of tokens."""
    from cutegemm.compile import plans
    from tests.torch.test_preparation import CHOSEN, COUNT, Block, Experts, K

    block = Block(Experts(False)).cuda()
    prepared = cutegemm.prepare(block, rows=range(1, 301), backward=True)
    assert not prepared.failed
    for function in (plans.compile_plan, plans.compile_rows):
        function.cache_clear()
    monkeypatch.setattr(plans, "_stored", None)
    module = block.experts
    for tokens in (1, 17, 300):
        x = torch.randn(tokens, K, device="cuda").bfloat16().requires_grad_()
        index = torch.rand(tokens, COUNT, device="cuda").topk(CHOSEN, -1).indices.int()
        weights = torch.rand(tokens, CHOSEN, device="cuda", requires_grad=True)
        y = cutegemm.experts(x, index, weights, module.gate_up_proj, module.down_proj)
        torch.autograd.grad(y.sum(), (x, weights, module.gate_up_proj, module.down_proj))
