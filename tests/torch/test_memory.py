"""Results of the functions have memory of their own, as torch's have: they may be modified in place, and kept."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from cutegemm.errors import UnsupportedError  # noqa: E402
from cutegemm.torch import (  # noqa: E402
    GatedMLP,
    addmm,
    bmm,
    gemm_act,
    gemm_dact,
    gemm_dgated,
    gemm_gated,
    linear,
    mlp,
    mm,
    scaled_mm,
    use,
)
from tests.torch.cases import close, normal  # noqa: E402

# Calls by name: a function and the shapes of its tensors.
CALLS = {
    "mm": (mm, (4, 8), (8, 16)),
    "mm of one column": (mm, (4, 1), (1, 16)),
    "mm of no rows": (mm, (0, 8), (8, 16)),
    "mm of no columns": (mm, (4, 0), (0, 16)),
    "bmm": (bmm, (2, 4, 8), (2, 8, 16)),
    "bmm with a batch of 1": (bmm, (2, 4, 8), (1, 8, 16)),
    "bmm with a matrix": (bmm, (2, 4, 8), (8, 16)),
    "addmm": (addmm, (16,), (4, 8), (8, 16)),
    "addmm of a matrix": (addmm, (4, 16), (4, 8), (8, 16)),
    "addmm with alpha = 0": (lambda c, a, b: addmm(c, a, b, alpha=0), (4, 16), (4, 8), (8, 16)),
    "addmm with beta = 0": (lambda c, a, b: addmm(c, a, b, beta=0), (16,), (4, 8), (8, 16)),
    "linear": (linear, (4, 8), (16, 8), (16,)),
    "linear of one row": (linear, (8,), (16, 8), (16,)),
    "linear without a bias": (linear, (1, 8), (16, 8)),
    "linear of three dimensions": (linear, (2, 3, 8), (16, 8), (16,)),
    "linear and gelu": (lambda *given: linear(*given, "gelu"), (2, 3, 8), (16, 8), (16,)),
    "gemm_act": (gemm_act, (4, 8), (8, 16)),
    "gemm_act and gelu": (lambda *given: gemm_act(*given, activation="gelu"), (4, 8), (8, 16), (16,), (4, 16)),
    "gemm_gated": (gemm_gated, (4, 8), (8, 16), (16,)),
    "gemm_gated of a pair": (lambda a, b, c: gemm_gated(a, (b, c)), (4, 8), (8, 8), (8, 8)),
    "gemm_gated, interleaved": (lambda a, b: gemm_gated(a, b, interleaved=True), (4, 8), (8, 16)),
    "gemm_dact": (gemm_dact, (4, 8), (8, 16), (4, 16)),
    "gemm_dact and gelu": (lambda *given: gemm_dact(*given, "gelu"), (4, 8), (8, 16), (4, 16)),
    "gemm_dgated": (gemm_dgated, (4, 8), (8, 8), (4, 16)),
    "gemm_dgated, interleaved": (lambda *given: gemm_dgated(*given, interleaved=True), (4, 8), (8, 8), (4, 16)),
    "mlp": (lambda *given: mlp(*given, "gelu"), (2, 3, 8), (16, 8), (8, 16)),
    "mlp with a gate": (lambda x, g, u, d: mlp(x, (g, u), d, "swiglu"), (2, 3, 8), (16, 8), (16, 8), (8, 16)),
}  # fmt: skip


class Watching(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


MODES = (torch.no_grad, torch.inference_mode, torch.enable_grad, Watching)


def tensors_of(found):
    return [each for each in (found if isinstance(found, tuple) else (found,)) if each is not None]


def check_results(call, given):
    """They are contiguous, no part of other memory, and not views."""
    for mode in MODES:
        tensors = [x.detach().clone().requires_grad_(mode is torch.enable_grad) for x in given]
        with mode():
            results = tensors_of(call(*tensors))
        for i, result in enumerate(results):
            storage = result.untyped_storage()
            assert result.is_contiguous()
            assert storage.nbytes() == result.numel() * result.element_size()
            assert not result._is_view()
            others = [*tensors, *results[:i], *results[i + 1 :]]
            assert not storage.nbytes() or storage.data_ptr() not in [x.untyped_storage().data_ptr() for x in others]


@pytest.mark.parametrize("name", CALLS)
def test_results_have_memory_of_their_own(name):
    call, *shapes = CALLS[name]
    check_results(call, [normal(*shape, dtype=torch.float32) for shape in shapes])


def test_results_of_other_types_have_memory_of_their_own():
    a, b = normal(4, 16).to(torch.float8_e4m3fn), normal(16, 16).to(torch.float8_e4m3fn)
    check_results(lambda x: scaled_mm(a, b, x, "TensorWise", x, "TensorWise"), [torch.ones(1)])
    check_results(lambda x: mm(a, b, out_dtype=torch.float32), [torch.ones(1)])
    check_results(lambda x: mm(x, x), [torch.ones(16, 16, dtype=torch.bfloat16)])


@pytest.mark.parametrize("name", CALLS)
def test_a_result_is_modified_in_place(name):
    """The last result, and in a call that stores no value before an activation, as torch permits it."""
    call, *shapes = CALLS[name]
    given = [normal(*shape, grad=True) for shape in shapes]
    found = []
    for act in (lambda x: F.elu_(x, 0.5), lambda x: F.elu(x, 0.5)):
        result = tensors_of(call(*given))[-1]
        found.append(torch.autograd.grad(act(result).square().sum(), given, allow_unused=True))
    for ours, theirs in zip(*found, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None and ours.numel():
            close([ours], [theirs])


@pytest.mark.parametrize("activation", [None, "relu", "relu_sq", "sigmoid", "tanh", "gelu", "silu"])
@pytest.mark.parametrize("shape", [(4, 8), (2, 3, 8)])
def test_a_result_that_a_backward_pass_reads_is_not_modified_unseen(activation, shape):
    """Either the gradients are right, or autograd raises, as it does for torch's own activations."""
    x, w = normal(*shape, grad=True), normal(16, 8, grad=True)
    expected = torch.autograd.grad((2 * linear(x, w, None, activation)).sum(), [x, w])
    modified = linear(x, w, None, activation).mul_(2).sum()
    if activation in ("relu", "sigmoid", "tanh"):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad(modified, [x, w])
    else:
        close(torch.autograd.grad(modified, [x, w]), expected)


@pytest.mark.parametrize("act", [nn.ReLU, nn.SiLU, nn.Hardswish, nn.ELU, nn.LeakyReLU])
def test_an_activation_in_place_follows_a_replaced_layer(act):
    model = nn.Sequential(nn.Linear(8, 16), act(inplace=True), nn.Linear(16, 8), act(inplace=True)).double()
    for shape in ((8,), (4, 8), (2, 3, 8)):
        x, found = normal(*shape, grad=True), []
        for is_ours in (False, True):
            replaced = use(model) if is_ours else None
            found.append(torch.autograd.grad(model(x).square().sum(), [x, *model.parameters()]))
            if replaced:
                replaced.undo()
        close(*found)


def test_a_result_without_gradients_is_modified_where_they_are_recorded():
    """A frozen model is called without gradients, and something that is trained is added to its result."""
    scale = torch.ones(8, requires_grad=True)
    for model in (nn.Linear(8, 8), GatedMLP(8, 16)):
        use(model)
        for shape in ((8,), (4, 8), (2, 3, 8)):
            with torch.no_grad():
                found = model(torch.ones(shape))
            found.mul_(scale).sum().backward()


def test_gradients_are_modified_in_place():
    """By optimizers that keep them, and by scalers."""
    model, x = GatedMLP(8, 16), normal(4, 8, dtype=torch.float32)
    model(x).square().sum().backward()
    before = [p.grad.clone() for p in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    optimizer.zero_grad(set_to_none=False)
    assert not any(p.grad.any() for p in model.parameters())
    model(x).square().sum().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1e9)
    close([p.grad for p in model.parameters()], before, 1e-5)
    for p in model.parameters():
        p.grad.mul_(2)
    close([p.grad / 2 for p in model.parameters()], before, 1e-5)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("name", CALLS)
def test_functions_are_traced_by_jit(name):
    """Of torch's own operations, as such a trace records no kernel."""
    call, *shapes = CALLS[name]
    given = tuple([normal(*shape) for shape in shapes])
    traced = torch.jit.trace(lambda *given: tuple(tensors_of(call(*given))), given)
    others = [2 * x for x in given]
    close(traced(*others), tensors_of(call(*others))) if all(x.numel() for x in given) else None


def test_functions_under_fx():
    with pytest.raises(UnsupportedError, match=r"x is a Proxy. .* pass its name to torch\.fx\.wrap"):
        torch.fx.symbolic_trace(lambda x, w: linear(x, w))
