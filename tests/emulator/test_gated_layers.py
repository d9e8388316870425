"""Gated MLPs without gradients, from the module to the emulated kernel of gate and up."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("cutlass.cute", reason="the CuTe DSL is not installed")
pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi is not installed")

from cutegemm import batch_invariant  # noqa: E402
from cutegemm.errors import UnsupportedError  # noqa: E402
from cutegemm.torch import GatedMLP, functional  # noqa: E402
from cutegemm.torch.activations import gated_by_torch  # noqa: E402
from cutegemm.torch.modules import side_by_side  # noqa: E402
from tests.emulator.on_cpu import emulate_launches  # noqa: E402
from tests.torch.cases import normal  # noqa: E402

K, H = 64, 48


@pytest.fixture
def launched(monkeypatch):
    """Return the list of plans that layers launch directly, as on a Hopper GPU of four SMs."""
    for name in ("_layers", "_gated_layers"):
        monkeypatch.setattr(functional, name, type(functional._layers)())
    monkeypatch.setattr(functional, "is_direct", lambda *tensors: True)
    return emulate_launches(monkeypatch, 4)


def layer(has_bias):
    torch.manual_seed(0)
    mlp = GatedMLP(K, H, has_bias, "geglu").bfloat16()
    weights = mlp.gate_proj.weight, mlp.up_proj.weight
    assert side_by_side(*weights)
    return mlp, *weights, torch.cat([mlp.gate_proj.bias, mlp.up_proj.bias]) if has_bias else None


def by_torch(x, gate, up, bias):
    preact = x.double() @ torch.cat([gate, up]).double().t() + (0 if bias is None else bias.double())
    return gated_by_torch("geglu", *preact.chunk(2, -1))


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("shape", [(3, K), (2, 5, K), (2, 1, 3, K)])
@torch.no_grad()
def test_gate_and_up_are_one_launch(shape, has_bias, launched):
    _, *weights = layer(has_bias)
    for seed in range(2):  # the second call finds the kernel of the first
        x = normal(*shape, seed=seed).bfloat16()
        values = functional.gated_linear(x, *weights, "geglu")
        exact = by_torch(x, *weights)
        assert values.shape == (*shape[:-1], H)
        assert (values.double() - exact).norm() <= 2**-8 * exact.norm()
    assert len(functional._gated_layers.found) == 1
    assert len({plan.key() for plan in launched}) == 1


@torch.no_grad()
def test_a_gated_layer_is_none_of_linear(launched):
    """The signature of a gated layer does not make `linear` accept its activation."""
    _, gate, up, _ = layer(False)
    x = normal(3, K).bfloat16()
    functional.gated_linear(x, gate, up, None, "geglu")
    with pytest.raises(UnsupportedError, match="activation = 'geglu' is unknown"):
        functional.linear(x, gate.as_strided((2 * H, K), (K, 1)), None, "geglu")


@torch.no_grad()
def test_other_calls_are_left_to_the_general_way(launched):
    _, gate, up, _ = layer(False)
    x = normal(3, K).bfloat16()
    assert functional.gated_linear(x[:, ::2], gate, up, None, "geglu") is None  # K does not fit
    assert (
        functional.gated_linear(normal(6, 2 * K).bfloat16()[::2, ::2], gate, up, None, "geglu") is None
    )  # no stride 1
    for weights in ((torch._neg_view(gate), up), (gate, torch._neg_view(up))):  # their memory has the other sign
        assert functional.gated_linear(x, *weights, None, "geglu") is None
    assert functional.gated_linear(x, gate, up, torch._neg_view(normal(2 * H).bfloat16()), "geglu") is None
    with torch.enable_grad():
        assert functional.gated_linear(x, gate, up, None, "geglu") is None
    assert not launched


@torch.no_grad()
def test_a_batch_invariant_call_has_a_kernel_of_its_own(launched):
    _, gate, up, _ = layer(False)
    x = normal(3, K).bfloat16()
    free = functional.gated_linear(x, gate, up, None, "geglu")
    with batch_invariant():
        rows = [functional.gated_linear(x[i : i + 1], gate, up, None, "geglu") for i in range(3)]
        assert torch.equal(torch.cat(rows), functional.gated_linear(x, gate, up, None, "geglu"))
    assert free.shape == (3, H)
    assert len(functional._gated_layers.found) == 3


@torch.no_grad()
def test_a_module_takes_it(launched, monkeypatch):
    mlp, *weights = layer(True)
    calls, known = [], functional.gated_linear
    monkeypatch.setattr("cutegemm.torch.modules.gated_linear", lambda *tensors: calls.append(1) or known(*tensors))
    x = normal(2, 3, K).bfloat16()
    exact = by_torch(x, *weights).bfloat16() @ mlp.down_proj.weight.t() + mlp.down_proj.bias
    assert (mlp(x) - exact).norm() <= 2**-7 * exact.norm()
    assert calls == [1]
