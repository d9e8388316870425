"""`mlp`.

What it computes, its gradients in one step of the record, what that keeps, and when it is divided into two.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import cutegemm  # noqa: E402
from cutegemm.errors import UnsupportedError  # noqa: E402
from cutegemm.torch import GatedMLP, mlp, use  # noqa: E402
from cutegemm.torch.mlps import Mlp  # noqa: E402
from tests.torch.cases import GATED, close, normal  # noqa: E402

ACTS = {
    "relu": F.relu, "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu,
    "sigmoid": torch.sigmoid, "tanh": torch.tanh, "relu_sq": lambda x: F.relu(x).square(), None: lambda x: x,
}  # fmt: skip


def operands(is_gated: bool, with_bias: bool, rows: int = 5, k: int = 4, hidden: int = 6, n: int = 3):
    """x, up, down, up_bias and down_bias, of float64, which want gradients."""
    up = [normal(hidden, k, grad=True) for _ in range(1 + is_gated)]
    biases = [normal((1 + is_gated) * hidden, grad=True), normal(n, grad=True)] if with_bias else [None, None]
    return normal(rows, k, grad=True), tuple(up) if is_gated else up[0], normal(n, hidden, grad=True), *biases


def by_torch(x, up, down, activation, up_bias=None, down_bias=None):
    if isinstance(up, tuple):
        halves = F.linear(x, torch.cat(up), up_bias).chunk(2, -1)
        return F.linear(GATED[activation](*halves), down, down_bias)
    return F.linear(ACTS[activation](F.linear(x, up, up_bias)), down, down_bias)


def flat(x, up, down, *biases):
    return [each for each in (x, *(up if isinstance(up, tuple) else (up,)), down, *biases) if each is not None]


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("activation", [*ACTS, *GATED])
def test_values_and_gradients_are_torchs(activation, with_bias):
    x, up, down, *biases = operands(activation in GATED, with_bias)
    ours, theirs = mlp(x, up, down, activation, *biases), by_torch(x, up, down, activation, *biases)
    close([ours], [theirs])
    given, dy = flat(x, up, down, *biases), normal(*ours.shape)
    close(torch.autograd.grad(ours, given, dy), torch.autograd.grad(theirs, given, dy))


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("activation", GATED)
def test_interleaved_weights(activation, with_bias, is_compiled):
    """With one weight of alternating gate and up rows, values and gradients are those of the pair."""
    x, (gate, up), down, *biases = operands(True, with_bias)
    whole = torch.stack([gate, up], 1).flatten(0, 1).detach().requires_grad_()
    mixed = biases[0] if not with_bias else biases[0].view(2, -1).t().flatten()

    def call(x, whole, down, mixed, last):
        return mlp(x, whole, down, activation, mixed, last, interleaved=True)

    torch._dynamo.reset()
    run = torch.compile(call, fullgraph=True, backend="aot_eager") if is_compiled else call
    ours, theirs = run(x, whole, down, mixed, biases[1]), mlp(x, (gate, up), down, activation, *biases)
    close([ours], [theirs])
    dy, others = normal(*ours.shape), [each for each in (x, down, *biases) if each is not None]
    close(
        torch.autograd.grad(ours, others, dy, retain_graph=True),
        torch.autograd.grad(theirs, others, dy, True),
    )
    (of_whole,) = torch.autograd.grad(ours, [whole], dy)
    close([of_whole[0::2], of_whole[1::2]], torch.autograd.grad(theirs, [gate, up], dy))
    with torch.no_grad():
        close([call(x, whole, down, mixed, biases[1])], [theirs])


def test_interleaved_weights_keep_gate_and_up():
    x, (gate, up), down, *_ = operands(True, False)
    whole, kept = torch.cat([gate, up]).detach().requires_grad_(), []

    def repack(tensor):
        kept.append(tuple(tensor.shape))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(repack, lambda tensor: tensor):
        found = mlp(x, whole, down, "swiglu", interleaved=True)
    assert isinstance(found.grad_fn, Mlp._backward_cls)
    assert kept[-2:] == [(5, 6), (5, 6)]
    assert torch.autograd.gradgradcheck(lambda *t: mlp(*t, "glu", interleaved=True), (x, whole, down))


@pytest.mark.parametrize("activation", ["gelu", "swiglu"])
def test_gradients_of_gradients(activation):
    x, up, down, *biases = operands(activation in GATED, True, 2, 2, 2, 2)
    given = flat(x, up, down, *biases)
    parts = len(given) - 4

    def call(x, *others):
        weights = others[0] if parts == 1 else tuple(others[:2])
        return mlp(x, weights, others[parts], activation, *others[parts + 1 :])

    assert torch.autograd.gradcheck(call, given)
    assert torch.autograd.gradgradcheck(call, given)


@pytest.mark.parametrize("frozen", ["x", "up", "down"])
def test_only_what_is_asked_for_has_a_gradient(frozen):
    x, up, down, *_ = operands(True, False)
    for each in {"x": [x], "up": up, "down": [down]}[frozen]:
        each.requires_grad_(False)
    given = [each for each in flat(x, up, down) if each.requires_grad]
    ours, theirs = mlp(x, up, down, "swiglu"), by_torch(x, up, down, "swiglu")
    assert type(ours.grad_fn).__name__ == "ViewBackward0" or isinstance(ours.grad_fn, Mlp._backward_cls)
    close(torch.autograd.grad(ours.sum(), given), torch.autograd.grad(theirs.sum(), given))


def test_one_step_keeps_the_inputs_and_what_is_in_front_of_the_activation():
    x, up, down, *_ = operands(True, False)
    kept = []

    def repack(tensor):
        kept.append(tuple(tensor.shape))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(repack, lambda tensor: tensor):
        found = mlp(x, up, down, "swiglu")
    assert isinstance(found.grad_fn, Mlp._backward_cls)
    assert sorted(kept) == sorted([(5, 4), (4, 6), (4, 6), (6, 3), (5, 12)])


def test_where_no_gradient_goes_through_the_activation_it_is_taken_apart():
    x, up, down, *_ = operands(False, False)
    with torch.no_grad():
        assert mlp(x, up, down, "gelu").grad_fn is None
    for each in (x, up):
        each.requires_grad_(False)
    assert not isinstance(mlp(x, up, down, "gelu").grad_fn, Mlp._backward_cls)


def test_leading_dimensions_and_autocast():
    x, up, down, *_ = operands(False, False)
    given = x.detach().reshape(5, 1, 4).float()
    weights = [each.detach().float().requires_grad_() for each in (up, down)]
    with torch.autocast("cpu", torch.bfloat16):
        found = mlp(given, *weights, "gelu")
    assert (found.dtype, found.shape) == (torch.bfloat16, (5, 1, 3))
    found.float().sum().backward()
    assert all(each.grad.dtype == torch.float32 for each in weights)


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("activation", ["gelu", "swiglu"])
def test_a_compiled_step_holds_the_way_back_as_one_operator(activation, with_bias):
    x, up, down, *biases = operands(activation in GATED, with_bias)
    given = flat(x, up, down, *biases)
    graphs = []

    def keep(graph, inputs):
        graphs.append(graph.code)
        return graph

    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    torch._dynamo.reset()
    backend = aot_autograd(
        fw_compiler=lambda graph, inputs: make_boxed_func(keep(graph, inputs)),
        bw_compiler=lambda graph, inputs: make_boxed_func(keep(graph, inputs)),
    )
    compiled = torch.compile(mlp, fullgraph=True, backend=backend)
    ours, theirs = compiled(x, up, down, activation, *biases), by_torch(x, up, down, activation, *biases)
    close(torch.autograd.grad(ours.sum(), given), torch.autograd.grad(theirs.sum(), given))
    _, back = graphs
    if activation == "swiglu":
        assert back.count("cutegemm.gemm_dgated") == back.count("cutegemm.mm_parts") == 1
        assert "silu" not in back
    else:
        assert back.count("lambda acc, preact") == 1
    assert "aten.mul" not in back


def test_an_exported_mlp():
    x = normal(5, 4)

    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = GatedMLP(4, 6).double()

        def forward(self, x):
            return self.inner(x)

    whole = Whole()
    program = torch.export.export(whole, (x,))
    close([program.module()(x)], [whole(x)])


def test_a_hook_on_the_last_layer_is_called():
    module = GatedMLP(4, 6)
    seen = []
    module.down_proj.register_forward_hook(lambda layer, given, found: seen.append(tuple(given[0].shape)))
    module(torch.randn(2, 4))
    assert seen == [(2, 6)]


def test_a_last_layer_of_another_class_computes_itself():
    class Twice(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    module, x = GatedMLP(4, 6), torch.randn(2, 4)
    once = module(x)
    down = Twice(6, 4, bias=False)
    down.load_state_dict(module.down_proj.state_dict())
    module.down_proj = down
    close([module(x)], [2 * once])


@pytest.mark.parametrize("activation", GATED)
def test_a_gate_with_a_hook_is_called(activation):
    module, x = GatedMLP(4, 6, activation=activation), torch.randn(2, 4)
    once, seen = module(x), []
    module.gate_proj.register_forward_hook(lambda layer, given, found: seen.append(tuple(found.shape)))
    close([module(x)], [once], 1e-6)
    assert seen == [(2, 6)]


def test_a_model_that_use_has_replaced_is_one_step_for_each_mlp():
    model = nn.ModuleDict({"mlp": GatedMLP(4, 6)})
    use(model)
    found = model["mlp"](torch.randn(2, 4))
    assert isinstance(found.grad_fn, Mlp._backward_cls)
    ddp = torch.utils.checkpoint.checkpoint(model["mlp"], torch.randn(2, 4, requires_grad=True), use_reentrant=False)
    ddp.sum().backward()
    assert model["mlp"].gate_proj.weight.grad is not None


def test_every_rule_that_is_broken_is_said():
    with pytest.raises(UnsupportedError) as error:
        mlp(torch.ones(2, 4), torch.ones(6, 5), torch.ones(3, 7), "swish2", torch.ones(5), torch.ones(2))
    said = str(error.value)
    for part in (
        "'swish2'", "x has rows of 4, up of 5", "down has rows of 7, up has 6 rows", "up_bias has shape (5,). Pass a",
        "down_bias has shape (2,). Pass a tensor of shape (3,)",
    ):  # fmt: skip
        assert part in said
    with pytest.raises(UnsupportedError, match=r"Pass one weight, or two of one shape, for gate and up."):
        mlp(torch.ones(2, 4), (torch.ones(6, 4), torch.ones(5, 4)), torch.ones(3, 6), "swiglu")
    with pytest.raises(UnsupportedError, match="'gelu'"):
        mlp(torch.ones(2, 4), (torch.ones(6, 4), torch.ones(6, 4)), torch.ones(3, 6), "gelu")
    with pytest.raises(UnsupportedError, match=r"up\[1\] is a list"):
        mlp(torch.ones(2, 4), (torch.ones(6, 4), [1.0]), torch.ones(3, 6), "swiglu")
    with pytest.raises(
        UnsupportedError, match=r"up is \(7, 4\), interleaved = True. Pass one weight with an even number of rows"
    ):
        mlp(torch.ones(2, 4), torch.ones(7, 4), torch.ones(3, 3), "swiglu", interleaved=True)
    with pytest.raises(UnsupportedError, match="down has rows of 6, up has 6 rows, two for each of H"):
        mlp(torch.ones(2, 4), torch.ones(6, 4), torch.ones(3, 6), "swiglu", interleaved=True)
    with pytest.raises(UnsupportedError, match=r"activation = 'gelu' is unknown. Use one of 'swiglu', "):
        mlp(torch.ones(2, 4), torch.ones(6, 4), torch.ones(3, 3), "gelu", interleaved=True)
    assert cutegemm.mlp is mlp
