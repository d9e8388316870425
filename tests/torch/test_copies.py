"""Operands of any strides: the functions compute with them as torch does, and on a GPU a copy is warned of."""

from __future__ import annotations

import warnings

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402

from cutegemm.errors import CopyWarning  # noqa: E402
from cutegemm.run import fused  # noqa: E402
from cutegemm.run.calls import Calls  # noqa: E402
from cutegemm.torch import functional, use  # noqa: E402
from cutegemm.torch.epilogue import LINEAR, PLAIN  # noqa: E402
from cutegemm.torch.launch import AS_CHOSEN, by_gemm, is_loadable  # noqa: E402
from tests.noted import note_launches  # noqa: E402
from tests.torch.cases import close, normal  # noqa: E402
from tests.torch.test_memory import CALLS, tensors_of  # noqa: E402


def with_gaps(x):
    """Every second element of each row."""
    wide = x.new_zeros(*x.shape[:-1], 2 * x.shape[-1])
    wide[..., ::2] = x
    return wide[..., ::2]


def with_gaps_in_both(x):
    """Every second element of every second row."""
    return with_gaps(with_gaps(x.mT).mT) if x.dim() > 1 else with_gaps(x)


def of_columns(x):
    """Columns of adjacent elements."""
    return x.mT.contiguous().mT if x.dim() > 1 else x


def of_columns_with_gaps(x):
    return with_gaps(x.mT).mT if x.dim() > 1 else with_gaps(x)


def negated(x):
    """A view whose elements are negated when they are read: the imaginary part of a conjugate."""
    if not x.is_floating_point() or x.dtype.itemsize < 4:
        return x
    return torch.complex(torch.zeros_like(x), -x).conj().imag


def expanded(x):
    """One element of memory, which all elements of a tensor are. Not the same numbers: see `dense`."""
    return x.flatten()[0].expand(x.shape) if x.numel() else x


VIEWS = (with_gaps, with_gaps_in_both, of_columns, of_columns_with_gaps, negated, expanded)


def dense(x):
    """Return a row-major copy."""
    return x.resolve_neg().contiguous().clone()


def both(call, given):
    """The results of the tensors as they lie, and of row-major ones."""
    return tensors_of(call(*given)), tensors_of(call(*[dense(x) for x in given]))


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("name", CALLS)
def test_functions_take_views(name, view):
    call, *shapes = CALLS[name]
    for place in range(len(shapes)):
        given = [normal(*shape) for shape in shapes]
        given[place] = view(given[place])
        ours, theirs = both(call, given)
        for one, other in zip(ours, theirs, strict=True):
            assert one.is_contiguous()
            assert one.numel() == 0 or close([one], [other]) is None


@pytest.mark.parametrize("view", VIEWS)
def test_gradients_of_views(view):
    """The inputs, and what comes back from the results, are views."""
    for name in (
        "mm",
        "addmm of a matrix",
        "linear of three dimensions",
        "linear and gelu",
        "mlp with a gate",
    ):
        call, *shapes = CALLS[name]
        leaves = [normal(*shape) for shape in shapes]
        found = []
        for change in (view, lambda x: dense(view(x))):
            given = [change(x).detach().requires_grad_() for x in leaves]
            result = call(*given)
            found.append(torch.autograd.grad(result, given, change(normal(*result.shape))))
        close(*found)


@pytest.mark.parametrize("view", VIEWS)
def test_layers_take_views(view):
    """A layer that torch computes of a view is computed after `use`, too; also if its weight is one."""
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)).double()
    model[2].weight.data = view(model[2].weight.data)
    x = view(normal(2, 3, 8))
    expected = model(x)
    with use(model) as replaced:
        assert len(replaced.replaced) == 2
        close([model(x)], [expected])


@pytest.fixture
def launched(monkeypatch):
    """The kernels that are taken, as if the CPU were a GPU."""
    monkeypatch.setattr(functional, "_layers", Calls())
    monkeypatch.setattr(fused, "wrong_devices", lambda given: [])
    monkeypatch.setattr(fused, "_calls", Calls())
    return note_launches(monkeypatch, 132)


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize(("place", "which"), [(0, "the first factor"), (1, "the second factor")])
def test_what_is_copied_for_a_kernel(launched, view, place, which):
    """The kernel gets factors whose rows or columns are adjacent elements; the warning names what was copied."""
    given = [normal(*shape, dtype=torch.float32) for shape in ((8, 16), (32, 16))]
    given[place] = view(given[place])
    (x, w), bias = given, normal(32, dtype=torch.float32)
    is_fine = is_loadable(given[place])
    for of_layer, activation in ((bias, "gelu"), (None, None)):
        call = functional._layer(x, w, of_layer, activation)
        assert (getattr(call, "func", None) is functional._copied_linear) is not is_fine
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        by_gemm(x, w.t(), LINEAR, (bias,), (1.0, 1.0), None, AS_CHOSEN, None)
    assert all(is_loadable(factor) for factor in launched[-1].calls[-1][:2])
    assert len(found) == (not is_fine)
    if found:
        assert f"product of (8, 16) by (16, 32): a contiguous copy of {which} is made" in str(found[0].message)
        assert (found[0].category, found[0].filename) == (CopyWarning, __file__)


def test_further_operands_and_results_are_copied(launched):
    a, b, c = (normal(*shape, dtype=torch.float32) for shape in ((8, 16), (16, 32), (8, 32)))
    with pytest.warns(CopyWarning, match="copy of addend is made"):
        by_gemm(a, b, LINEAR, (with_gaps(c),), (1.0, 2.0), None, AS_CHOSEN, None)
    out = with_gaps(c)
    for text, operands, scalars in ((PLAIN, (), ()), (LINEAR, (c,), (1.0, 2.0))):
        (found,) = by_gemm(a, b, text, operands, scalars, None, AS_CHOSEN, (out,))
        assert found is out
    assert launched[-1].calls


def test_one_of_several_results_has_gaps(launched):
    """It is stored apart and copied; the other one is stored in place."""
    a, b = normal(8, 16, dtype=torch.bfloat16), normal(16, 32, seed=1, dtype=torch.bfloat16)
    apart, plain = with_gaps(normal(8, 32, dtype=torch.float32)), torch.empty(8, 32)
    found = by_gemm(a, b, "lambda acc: (relu(acc), acc)", outs=(apart, plain))
    assert found[0] is apart
    assert found[1] is plain
    assert any(x is plain for x in launched[-1].calls[-1])
