"""torch's own checks of derivatives, for every function: recorded, carried forward, in batches, and of gradients."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import cutegemm  # noqa: E402
from cutegemm.errors import UnsupportedError  # noqa: E402
from cutegemm.torch import (  # noqa: E402
    addmm,
    autograd,
    functional,
    gemm_gated,
    launch,
    library,
    linear,
    mm,
)
from tests.torch.cases import close, normal  # noqa: E402
from tests.torch.functions import FUNCTIONS, differentiable  # noqa: E402


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch):
    """`cutegemm.gemm` as if the CPU were a GPU, whose kernels take tensors with addresses alone."""
    monkeypatch.setattr("cutegemm.torch.gemm.wrong_devices", lambda given: [])
    for name in ("compute", "dgated_of"):
        for module in (autograd, library, functional):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, of_addresses(getattr(launch, name)))


def of_addresses(function):
    def call(*given, **named):
        flat = [x for each in given for x in (each if isinstance(each, (list, tuple)) else [each])]
        for x in flat:
            if isinstance(x, torch.Tensor):
                assert x.data_ptr() or not x.numel()
        return function(*given, **named)

    return call


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients(name):
    """Gradients of one result and of a batch, recorded and carried forward."""
    function, shapes = FUNCTIONS[name]
    assert torch.autograd.gradcheck(
        function,
        differentiable(*shapes),
        check_batched_grad=True,
        check_forward_ad=True,
        check_batched_forward_grad=True,
    )


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_of_gradients(name):
    function, shapes = FUNCTIONS[name]
    assert torch.autograd.gradgradcheck(function, differentiable(*shapes), check_batched_grad=True)


def test_a_batch_of_gradients():
    x, w = differentiable((3, 4), (6, 4))
    y = linear(x, w, None, "silu")
    units = torch.eye(18, dtype=torch.float64).view(18, 3, 6)
    ours = torch.autograd.grad(y, (x, w), units, is_grads_batched=True, retain_graph=True)
    each = [torch.autograd.grad(y, (x, w), unit, retain_graph=True) for unit in units]
    close(ours, [torch.stack(found) for found in zip(*each, strict=True)])
    jacobian = torch.autograd.functional.jacobian(lambda x: linear(x, w, None, "silu"), x, vectorize=True)
    close([jacobian.view(18, 3, 4)], [ours[0]])


def test_weights_side_by_side_have_tangents_of_their_own():
    """One of a gated layer's two weights has a tangent; as a view of the first, the second would lose it."""
    whole, x = normal(12, 4), normal(3, 4)
    gate, up = whole[:6], whole[6:]
    for tangents in ((normal(6, 4, seed=3), None), (None, normal(6, 4, seed=3))):
        found = []
        for pair in ((gate, up), (gate.clone(), up.clone())):
            with torch.autograd.forward_ad.dual_level():
                weights = [
                    w if t is None else torch.autograd.forward_ad.make_dual(w, t)
                    for w, t in zip(pair, tangents, strict=True)
                ]
                result = gemm_gated(x, tuple(w.t() for w in weights), store_preact=False)[1]
                found.append(torch.autograd.forward_ad.unpack_dual(result).tangent)
        close(found[:1], found[1:])
        assert found[0].abs().max() > 0.1


def test_derivatives_and_out():
    """What a tangent carries is not carried into memory of the caller."""
    a, b, out = normal(3, 4), normal(4, 6), normal(3, 6)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(a, a)
        for call in (
            lambda a: mm(a, b, out=out),
            lambda a: addmm(out, a, b, out=out),
            lambda a: cutegemm.gemm(a, b, out=out),
        ):
            with pytest.raises(
                UnsupportedError,
                match=r"out is passed, but forward-mode derivatives are not recorded into it. Leave out",
            ):
                call(dual)
        with torch.no_grad():
            result = cutegemm.gemm(dual, b)
        close([torch.autograd.forward_ad.unpack_dual(result).tangent], [a @ b])
