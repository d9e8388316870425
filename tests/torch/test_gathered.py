"""Groups whose rows an index selects: `grouped_mm(a_index=)` and `experts`, against a copy of the rows."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import cutegemm  # noqa: E402
from cutegemm.epilogue import relu  # noqa: E402
from cutegemm.errors import UnsupportedError  # noqa: E402
from cutegemm.run.calls import How  # noqa: E402
from cutegemm.torch import grouped_mm  # noqa: E402
from cutegemm.torch.grouped import launch, library, mixture  # noqa: E402
from cutegemm.torch.grouped.reference import rows_of  # noqa: E402
from tests.torch.cases import close, normal  # noqa: E402
from tests.torch.grouped_kernels import run_by  # noqa: E402

SOURCES, ROWS, K, N, GROUPS = 13, 40, 64, 48, 3
ENDS = torch.tensor([7, 7, 33], dtype=torch.int32)


def integers(*values):
    return torch.tensor(values, dtype=torch.int32)


def index_of(rows, seed=0):
    """Indices of rows of a matrix of `SOURCES` rows, and some that it does not have."""
    generator = torch.Generator().manual_seed(seed)
    index = torch.randint(0, SOURCES, (rows,), generator=generator, dtype=torch.int32)
    return index.index_put((torch.tensor([1, 5, 20]),), integers(-1, SOURCES, 2**30))


def factors(dtype=torch.float32, grad=False):
    a, b = normal(SOURCES, K).to(dtype), normal(GROUPS, K, N, seed=1).to(dtype)
    return [x.detach().requires_grad_(grad) for x in (a, b)]


def written(result):
    """The rows that belong to a group."""
    return result[: ENDS[-1]]


def test_rows_and_gradients():
    a, b = factors(torch.float64, grad=True)
    index = index_of(ROWS)
    copied = torch.stack([a[i] if 0 <= i < SOURCES else 0 * a[0] for i in index.tolist()])

    def run(rows, **options):
        bias = normal(GROUPS, 1, N, seed=2, dtype=torch.float64)
        result = grouped_mm(rows, b, offs=ENDS, epilogue=lambda acc, c: relu(acc + c), c=bias, **options)
        return [written(result), *torch.autograd.grad(written(result).square().sum(), (a, b))]

    close(run(a, a_index=index), run(copied))


def test_a_row_may_be_none_or_all_rows_of_the_product():
    a, b = factors()
    for index in (torch.zeros(ROWS, dtype=torch.int32), torch.full((ROWS,), -1, dtype=torch.int32)):
        close(
            [written(grouped_mm(a, b, offs=ENDS, a_index=index))],
            [written(grouped_mm(rows_of(a, index), b, offs=ENDS))],
        )
    empty = a[:0].requires_grad_()
    result = written(grouped_mm(empty, b, offs=ENDS, a_index=index_of(ROWS)))
    close([result], [torch.zeros(33, N)])
    assert torch.autograd.grad(result.sum(), empty)[0].shape == (0, K)


def test_torch_compile_has_one_graph():
    a, b = factors(grad=True)
    compiled = torch.compile(grouped_mm, fullgraph=True, backend="aot_eager", dynamic=True)
    for rows in (40, 61):
        index, results = index_of(rows), []
        for function in (compiled, grouped_mm):
            result = written(function(a, b, offs=ENDS, a_index=index))
            results.append([result, *torch.autograd.grad(result.sum(), (a, b))])
        close(*results)


A, B, INDEX = torch.ones(SOURCES, K), torch.ones(GROUPS, K, N), torch.zeros(ROWS, dtype=torch.int32)
ERRORS = {
    "groups of columns": ((B.mT, A.mT, ENDS), {"a_index": INDEX}, "a_index selects rows for groups of rows, but mat_a"),
    "counts": ((B.mT, B, None), {"a_index": INDEX, "counts": ENDS}, "a_index selects rows for groups of rows"),
    "a batch": ((B.mT, B, None), {"a_index": INDEX}, "a_index selects rows for groups of rows"),
    "type": ((A, B, ENDS), {"a_index": INDEX.long()}, r"a_index has shape \(40,\) and is of torch.int64. Pass one dim"),
    "rank": ((A, B, ENDS), {"a_index": INDEX[None]}, r"a_index has shape \(1, 40\) and is of torch.int32"),
    "an operand": (
        (A, B, ENDS),
        {"a_index": INDEX, "epilogue": lambda acc, c: acc + c, "c": torch.ones(SOURCES, 1)},
        r"c has shape \(13, 1\), which does not broadcast to groups. Pass \(\), \(48,\), \(3, 1, 48\), \(40, 1\)",
    ),
    "the name of an operand": (
        (A, B, ENDS),
        {"a_index": INDEX, "epilogue": lambda acc, index: acc + index, "index": torch.ones(N)},
        "an operand has the name 'index', which a kernel uses itself. Rename it and its parameter.",
    ),
}


@pytest.mark.parametrize(("tensors", "options", "message"), ERRORS.values(), ids=ERRORS)
def test_errors(tensors, options, message):
    a, b, offs = tensors
    with pytest.raises(UnsupportedError, match=message):
        grouped_mm(a, b, offs=offs, **options)


def test_the_environment_makes_calls_check_the_index():
    """Also if gradients are recorded. An index after the last group is not read."""
    script = """if True:
        import torch
        from cutegemm.torch import grouped_mm
        b, offs = torch.ones(1, 4, 8), torch.tensor([2], dtype=torch.int32)
        for rows, wanted in ((5, False), (5, True), (0, False)):
            for index in ([0, 4, 7], [4, 5, 7]):
                a = torch.ones(rows, 4, requires_grad=wanted)
                try:
                    grouped_mm(a, b, offs=offs, a_index=torch.tensor(index, dtype=torch.int32))
                    print("none")
                except Exception as error:
                    print(str(error).partition(": ")[2])
    """
    environment = os.environ | {"CUTEGEMM_CHECK_GROUPS": "1"}
    ran = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    wrong = "a_index[1] is 5. Pass 0 to 4, the rows of mat_a."
    empty = [f"a_index[0] is {first}, but mat_a has no rows." for first in (0, 4)]
    assert ran.stdout.splitlines() == ["none", wrong, "none", wrong, *empty]


# --- kernels ------------------------------------------------------------------------------------------------------


def kernel(a, b, index, text="lambda acc: acc", operands=(), plan=None):
    return launch.compute_grouped(a, b, ENDS, text, operands, (), None, How(plan=plan), False, index=index)


@pytest.mark.parametrize("plan", [None, "swap_ab:sm90:tile=64x32x64,schedule=cooperative,consumers=1"])
def test_simulated_kernels(plan, monkeypatch):
    plans = run_by(cutegemm.simulate, monkeypatch)
    a, b = [x.bfloat16() for x in factors()]
    b, index, scale = b.mT.contiguous().mT, index_of(ROWS), normal(ROWS, 1, seed=3)
    for text, operands in (("lambda acc: acc", []), ("lambda acc, w: (relu(acc) * w, acc)", [scale])):
        ours = kernel(a, b, index, text, operands, plan)
        theirs = library.compute(a, b, ENDS, text, operands, (), None, How(), False, index=index)
        close([written(x) for x in ours], [written(x) for x in theirs], 2.0**-7)
        kernel(a, b, index_of(ROWS, 1), text, operands, plan)
    assert len(plans) == 2  # one for each epilogue; the index belongs to no signature
    assert all(each.operands.gathered for each in plans)


def test_a_negated_index(monkeypatch):
    """A kernel reads the memory of a tensor, which has the other sign."""
    run_by(cutegemm.simulate, monkeypatch)
    a, b = [x.bfloat16() for x in factors()]
    index = index_of(ROWS)
    for factor in (a, torch._neg_view(-a)):
        close([written(kernel(factor, b, torch._neg_view(-index))[0])], [written(kernel(a, b, index)[0])])


@pytest.mark.parametrize("name", ["negated", "transposed", "unaligned", "expanded"])
def test_tokens_of_another_layout(name, monkeypatch):
    """Tokens that TMA cannot load are copied, also if a call with others has prepared the product."""
    plans = run_by(cutegemm.simulate, monkeypatch)
    x, weights, up, down = [
        (normal(*shape, seed=i) / 4).bfloat16()
        for i, shape in enumerate([(20, 64), (20, 2), (3, 128, 64), (3, 64, 64)])
    ]
    index = torch.stack([torch.arange(20) % 3, (torch.arange(20) + 1) % 2], -1)
    other = {
        "negated": torch._neg_view(-x),
        "transposed": x.T.contiguous().T,
        "unaligned": torch.cat([x[:, :1], x], 1)[:, 1:],
        "expanded": x[:1].expand(20, 64),
    }[name]
    theirs = cutegemm.experts(other, index, weights, up, down)
    monkeypatch.setattr(library, "compute", launch.compute_grouped)
    monkeypatch.setattr(mixture, "has_kernels", lambda x: True)
    monkeypatch.setattr(mixture, "_steps", type(mixture._steps)())
    cutegemm.experts(x, index, weights, up, down)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # as the copy of a factor of `grouped_mm`
        close([cutegemm.experts(other, index, weights, up, down)], [theirs], 2.0**-6)
    assert [bool(plan.operands.gathered) for plan in plans] == [True, False]  # of both calls


@pytest.mark.parametrize("deterministic", [True, False])
def test_tokens_of_experts_are_not_copied(deterministic, monkeypatch):
    """The first product of a mixture has the tokens as a factor, and the second may add to their rows of the result.

    Emulated, with gradients. The sum of two rows has the same rounding in any order.
    """
    pytest.importorskip("cutlass.cute", reason="the CuTe DSL is not installed")
    pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi is not installed")
    tokens, k = 20, 2
    shapes = (tokens, 64), (tokens, k), (3, 128, 64), (3, 64, 64)
    tensors = [(normal(*shape, seed=i) / 4).bfloat16() for i, shape in enumerate(shapes)]
    index = torch.stack([torch.arange(tokens) % 3, (torch.arange(tokens) + 1) % 2], -1)

    def run(dtype):
        x, weights, *parameters = found = [each.to(dtype, copy=True).requires_grad_() for each in tensors]
        y = cutegemm.experts(x, index, weights, *parameters, deterministic=deterministic)
        return [y.detach(), *torch.autograd.grad(y.float().square().sum(), found)]

    exact, theirs = run(torch.float64), run(torch.bfloat16)
    plans = run_by(cutegemm.emulate, monkeypatch)
    monkeypatch.setattr(library, "compute", launch.compute_grouped)
    monkeypatch.setattr(mixture, "has_kernels", lambda x: True)
    monkeypatch.setattr(mixture, "_steps", type(mixture._steps)())
    for right, other, one in zip(exact, theirs, run(torch.bfloat16), strict=True):
        assert (one - right).norm() <= 1.1 * (other - right).norm()
    selected = [(bool(plan.operands.gathered), plan.operands.scattered) for plan in plans]
    assert selected[:2] == [(True, False), (False, not deterministic)]
