"""Modules, and `use`: what is replaced, what it computes, that parameters stay what they are, and the way back."""

from __future__ import annotations

import copy
import functools
import inspect
import io
import pickle
import random
from typing import ClassVar

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.utils import parametrizations, weight_norm  # noqa: E402
from torch.nn.utils.parametrize import register_parametrization  # noqa: E402
from torch.nn.utils.prune import l1_unstructured  # noqa: E402

import cutegemm  # noqa: E402
from cutegemm.errors import UnsupportedError  # noqa: E402
from cutegemm.torch import GatedMLP, Linear, use  # noqa: E402
from cutegemm.torch.launch import joined  # noqa: E402
from cutegemm.torch.modules import are_side_by_side  # noqa: E402
from tests.torch.cases import close, normal  # noqa: E402


class LlamaMLP(nn.Module):
    """An MLP with the parts and the names of transformers' Llama."""

    def __init__(self, k=8, hidden=12, bias=False, act=None):
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(k, hidden, bias), nn.Linear(k, hidden, bias)
        self.down_proj = nn.Linear(hidden, k, bias)
        self.act_fn = act or nn.SiLU()

    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class Conv1D(nn.Module):
    """GPT-2's linear layer: its weight is K x N."""

    def __init__(self, nf, nx):
        nn.Module.__init__(self)
        self.nf = nf
        self.weight, self.bias = nn.Parameter(torch.randn(nx, nf) / 3), nn.Parameter(torch.randn(nf))

    def forward(self, x):
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(*x.shape[:-1], self.nf)


class GPT2MLP(nn.Module):
    def __init__(self, k=8, hidden=12):
        super().__init__()
        self.c_fc, self.c_proj = Conv1D(hidden, k), Conv1D(k, hidden)
        self.act, self.dropout = nn.GELU("tanh"), nn.Dropout(0.1)

    def forward(self, x):
        return self.dropout(self.c_proj(self.act(self.c_fc(x))))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj, self.mlp, self.other, self.norm = nn.Linear(8, 8), LlamaMLP(), GPT2MLP(), nn.LayerNorm(8)

    def forward(self, x):
        return self.other(self.mlp(self.norm(x)) + self.q_proj(x))


@pytest.fixture
def block():
    torch.manual_seed(0)
    return Block().double().eval()


X = normal(2, 3, 8)


def outcome(model, x=X):
    """The result, and the gradients of all parameters that have one, by name."""
    model.zero_grad()
    result = model(x)
    result.square().sum().backward()
    return [
        result.detach(),
        *[p.grad.clone() for _, p in sorted(model.named_parameters()) if p.grad is not None],
    ]


def test_linear_is_torch_s_with_an_activation():
    theirs = nn.Linear(8, 6).double()
    ours = Linear(8, 6, activation="gelu").double()
    ours.load_state_dict(theirs.state_dict())
    close([ours(X)], [F.gelu(theirs(X))])
    assert isinstance(ours, nn.Linear)
    with pytest.raises(UnsupportedError, match=r"Linear: activation = 'mish' is unknown. Use one of None, 'relu'"):
        Linear(8, 6, activation="mish")
    with pytest.raises(UnsupportedError, match=r"GatedMLP: activation = 'silu' is unknown. Use one of 'swiglu', "):
        GatedMLP(8, 6, activation="silu")


@pytest.mark.parametrize("bias", [False, True])
def test_gated_mlp_loads_what_llama_saved(bias):
    theirs, ours = LlamaMLP(bias=bias).double(), GatedMLP(8, 12, bias).double()
    ours.load_state_dict(theirs.state_dict())
    close(outcome(ours), outcome(theirs))
    assert ours.state_dict().keys() == theirs.state_dict().keys()


MOVES = {
    "as it was made": lambda mlp: mlp,
    "to another type": lambda mlp: mlp.float().double(),
    "loaded": lambda mlp: mlp.load_state_dict(copy.deepcopy(mlp.state_dict())),
    "loaded by assignment": lambda mlp: mlp.load_state_dict(copy.deepcopy(mlp.state_dict()), assign=True),
    "moved in a larger module": lambda mlp: nn.Sequential(mlp).to("cpu", torch.float32).double(),
}


@pytest.mark.parametrize("move", MOVES)
def test_weights_stay_side_by_side(move):
    mlp = GatedMLP(8, 12).double()
    MOVES[move](mlp)
    gate, up = mlp.gate_proj.weight, mlp.up_proj.weight
    assert are_side_by_side(gate, up)
    assert joined([gate.t(), up.t()]).data_ptr() == gate.data_ptr()
    assert gate.is_leaf
    assert isinstance(gate, nn.Parameter)


def test_weights_that_something_else_has_moved():
    """Results are right at once, and one call joins the weights again. Parts of larger memory are not moved."""
    mlp = GatedMLP(8, 12).double()
    expected = mlp(X).detach()
    for moved in (mlp, copy.deepcopy(mlp)):
        moved.gate_proj.weight.data = moved.gate_proj.weight.data.clone()
        assert not are_side_by_side(moved.gate_proj.weight, moved.up_proj.weight)
        close([moved(X)], [expected])
        assert are_side_by_side(moved.gate_proj.weight, moved.up_proj.weight)
    flat = torch.zeros(4 * 96, dtype=torch.float64)
    flat[:96].view(12, 8).copy_(mlp.gate_proj.weight.data)
    mlp.gate_proj.weight.data = flat[:96].view(12, 8)
    close([mlp(X)], [expected])
    assert mlp.gate_proj.weight.data_ptr() == flat.data_ptr()
    with torch.no_grad():
        flat[:96] = 0
    assert not mlp(X).any()


SAVED = {
    "called": lambda model: model(X.to(next(model.parameters()).dtype)),
    "of another type": lambda model: model.float().double(),
    "of half": lambda model: model.bfloat16(),
    "loaded": lambda model: model.load_state_dict(copy.deepcopy(model.state_dict())),
    "loaded from itself": lambda model: model.load_state_dict(model.state_dict()),
    "loaded by assignment": lambda model: model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True),
    "assigned from itself": lambda model: model.load_state_dict(model.state_dict(), assign=True),
    "copied": copy.deepcopy,
    "pickled": lambda model: pickle.loads(pickle.dumps(model)),
    "saved": lambda model: torch.load(saved_by_torch(model), weights_only=False),
    "shared": lambda model: model.share_memory(),
    "swapped": lambda model: setattr(model.gate_proj, "weight", nn.Parameter(model.gate_proj.weight.data.clone())),
    "replaced": use,
}


def saved_by_torch(what):
    file = io.BytesIO()
    torch.save(what, file)
    file.seek(0)
    return file


@pytest.mark.parametrize("seed", range(40))
def test_each_tensor_of_a_state_dict_has_a_storage_of_its_own(seed):
    """Whatever happened to an MLP, what saves tensors finds each of them once, and writes no more than its elements."""
    drawn = random.Random(seed)
    torch.manual_seed(seed)
    model = drawn.choice((LlamaMLP, lambda: GatedMLP(8, 12, True)))().double()
    replaced = use(model)
    for step in drawn.choices(list(SAVED), k=4):
        before = {name: x.clone() for name, x in model.state_dict().items()}
        found = SAVED[step](model)
        model = found if isinstance(found, nn.Module) else model
        for part in (model, model.gate_proj, nn.Sequential(model)):
            tensors = list(part.state_dict().values())
            assert len({x.untyped_storage().data_ptr() for x in tensors}) == len(tensors)
            assert all(x.untyped_storage().nbytes() == x.numel() * x.element_size() for x in tensors)
        close([x.to(before[name].dtype) for name, x in model.state_dict().items()], list(before.values()), 1e-2)
        kept = model.state_dict(keep_vars=True)
        assert all(kept[name] is p for name, p in model.named_parameters())
        with torch.no_grad():
            for name, x in model.state_dict().items():
                x.mul_(2)  # in the memory of the parameter
                close([model.get_parameter(name).data / 2], [before[name].to(x.dtype)], 1e-2)
    replaced.undo()
    if type(model) is LlamaMLP:
        assert not are_side_by_side(model.gate_proj.weight, model.up_proj.weight)


def test_weights_that_others_see_stay_where_they_are():
    """Ties of weights, by one parameter or by one memory, and memory of other processes outlast a call."""
    mlp = GatedMLP(8, 12).double()
    tied = nn.Linear(8, 12, bias=False)
    mlp.gate_proj.weight = nn.Parameter(mlp.gate_proj.weight.data.clone())
    tied.weight = nn.Parameter(mlp.gate_proj.weight.data)  # another parameter over the same memory
    expected = mlp(X).detach()
    assert tied.weight.data_ptr() == mlp.gate_proj.weight.data_ptr()
    with torch.no_grad():
        tied.weight.mul_(2)
    assert not torch.equal(mlp(X), expected)
    del tied
    mlp(X)
    assert are_side_by_side(mlp.gate_proj.weight, mlp.up_proj.weight)

    shared = copy.deepcopy(mlp).share_memory()
    shared(X)
    assert all(p.is_shared() for p in shared.parameters())

    other = GatedMLP(8, 12).double()
    other.gate_proj.weight = mlp.gate_proj.weight  # one parameter of two MLPs
    for each in (other, mlp, other):
        each(X)
        assert are_side_by_side(mlp.gate_proj.weight, mlp.up_proj.weight)
    mlp.up_proj.weight = mlp.gate_proj.weight
    plain = LlamaMLP().double()
    plain.load_state_dict(mlp.state_dict())
    plain.up_proj.weight = plain.gate_proj.weight
    close(outcome(mlp), outcome(plain))


@pytest.mark.parametrize("make", [lambda: GatedMLP(8, 12), LlamaMLP, Block])
def test_safetensors(make, tmp_path):
    safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
    model, other = make().double().eval(), make().double().eval()
    expected = copy.deepcopy(model.state_dict())
    results = [model(X)]
    for each in (model, other):
        use(each)
    for save in (
        lambda file: safetensors.save_model(model, file),
        lambda file: safetensors.save_file(model.state_dict(), file),
    ):
        save(tmp_path / "model.safetensors")
        assert safetensors.load_file(tmp_path / "model.safetensors").keys() == expected.keys()
        for p in other.parameters():
            nn.init.zeros_(p)
        assert safetensors.load_model(other, tmp_path / "model.safetensors") == (set(), [])
        close(list(other.state_dict().values()), list(expected.values()), 0.0)
        close([other(X)], results)


def test_accelerate_saves_each_weight(tmp_path):
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")
    safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
    model = GatedMLP(8, 12)
    accelerate.Accelerator(cpu=True).save_model(model, tmp_path)
    found = safetensors.load_file(tmp_path / "model.safetensors")
    close([found[name] for name in sorted(found)], [x for _, x in sorted(model.state_dict().items())], 0.0)


def test_an_optimizer_trains_both_weights():
    ours, theirs = GatedMLP(8, 12).double(), LlamaMLP().double()
    theirs.load_state_dict(ours.state_dict())
    for mlp in (ours, theirs):
        optimizer = torch.optim.AdamW(mlp.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            mlp(X).square().sum().backward()
            optimizer.step()
    close(
        [p for _, p in sorted(ours.named_parameters())],
        [p for _, p in sorted(theirs.named_parameters())],
        1e-9,
    )


def test_use_computes_the_same_and_can_be_undone(block):
    before, parameters = outcome(block), dict(block.named_parameters())
    kinds = {name: type(module) for name, module in block.named_modules()}
    saved = copy.deepcopy(block.state_dict())
    replaced = use(block)
    assert sorted(replaced.replaced) == [
        "mlp", "mlp.down_proj", "mlp.gate_proj", "mlp.up_proj", "other", "other.c_fc", "other.c_proj", "q_proj",
    ]  # fmt: skip
    assert replaced.left == {}
    close(outcome(block), before)
    assert all(parameter is parameters[name] for name, parameter in block.named_parameters())
    assert block.state_dict().keys() == saved.keys()
    block.load_state_dict(saved)
    close(outcome(block), before)
    assert isinstance(block.mlp, LlamaMLP)
    replaced.undo()
    assert {name: type(module) for name, module in block.named_modules()} == kinds
    assert not [name for module in block.modules() for name in vars(module) if "cutegemm" in name]
    close(outcome(block), before)
    replaced.undo()  # there is nothing left to undo


def test_it_does_call_the_kernels(block, monkeypatch):
    """What is computed goes through `linear` and `gemm_gated`, with the activation in it."""
    from cutegemm.torch import launch

    texts = []

    def noted(a, b, text, *rest):
        texts.append(text)
        return launch.compute(a, b, text, *rest)

    monkeypatch.setattr("cutegemm.torch.autograd.compute", noted)
    with use(block), torch.no_grad():
        block(X)
    assert texts == [
        "lambda acc: silu(halves(acc)[0]) * halves(acc)[1]", "lambda acc: acc", "lambda acc, bias: acc + bias",
        "lambda acc, bias: gelu_tanh(acc + bias)", "lambda acc, bias: acc + bias",
    ]  # fmt: skip
    texts.clear()
    block(X)
    assert texts == []


def test_a_second_use_replaces_what_is_new(block):
    first = use(block)
    assert use(block).replaced == {}
    block.added = nn.Linear(8, 8).double()
    second = use(block)
    assert list(second.replaced) == ["added"]
    first.undo()
    assert type(block.added) is Linear
    second.undo()
    assert type(block.added) is nn.Linear


def test_a_model_that_is_itself_one_of_these():
    layer = nn.Linear(8, 6)
    with use(layer) as replaced:
        assert list(replaced.replaced) == [""]
        assert type(layer) is Linear
    assert type(layer) is nn.Linear


def test_copies_and_pickles(block):
    expected = block(X).detach()
    use(block)
    kept = io.BytesIO()
    torch.save(block, kept)
    kept.seek(0)
    for again in (copy.deepcopy(block), torch.load(kept, weights_only=False)):
        assert isinstance(again.mlp, LlamaMLP)
        assert type(again.mlp) is type(block.mlp)
        close([again(X)], [expected])


def test_a_compiled_model(block):
    expected = outcome(block)
    use(block)
    torch._dynamo.reset()
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    block.zero_grad()
    result = compiled(X)
    result.square().sum().backward()
    close([result, *[p.grad for _, p in sorted(block.named_parameters())]], expected)


class Scaled(LlamaMLP):
    def forward(self, x):
        return 2 * super().forward(x)


class LayerScaled(LlamaMLP):
    """A scale that changes nothing before it is trained."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return self.scale * super().forward(x)


class Lora(nn.Linear):
    def forward(self, x):
        return super().forward(x) + x.sum()


class Transposed(Conv1D):
    def forward(self, x):
        return F.linear(x, self.weight, self.bias)


def other_conv1d():
    return type("Conv1D", (nn.Module,), {"__init__": Conv1D.__init__, "forward": Transposed.forward})(8, 8)


def changed(module, change):
    """A sequence of one layer whose weight has been changed."""
    model = nn.Sequential(module)
    change(model, "0")
    return model


LEFT = [
    (
        lambda: changed(nn.Linear(8, 8), quantize),
        "0",
        "its weight is a Quantized, a subclass of torch.Tensor",
    ),
    (lambda: changed(nn.Linear(8, 8), repack), "0", "its weight is a Packed, a subclass of torch.Tensor"),
    (lambda: changed(Conv1D(8, 8), mark), "0", "its weight is a Marked, a subclass of torch.Tensor"),
    (lambda: changed(nn.Linear(8, 8), sparsify), "0", "its weight has the layout torch.sparse_csr"),
    (lambda: changed(LlamaMLP(), quantize_gate), "0", "its gate_proj: its weight is a Quantized"),
    (
        lambda: nn.Sequential(nn.Linear(8, 8).to(torch.float8_e4m3fn)),
        "0",
        "its weight is of torch.float8_e4m3fn; supported are layers",
    ),
    (Scaled, "", "of four rows it computes something else"),
    (LayerScaled, "", "it has scale of its own, which an MLP of these parts does not use"),
    (lambda: LlamaMLP(act=nn.Softplus()), "", "its activation is a Softplus, which is not known"),
    (
        lambda: LlamaMLP(act=nn.Tanh()),
        "",
        "its activation is tanh, which is not one of the gated activations: silu, gelu",
    ),
    (lambda: nn.Sequential(Lora(8, 8)), "0", "Lora, a subclass of Linear, may compute something else"),
    (
        lambda: nn.Sequential(Transposed(8, 8)),
        "0",
        "Transposed, a subclass of Conv1D, may compute something else",
    ),
    (
        lambda: nn.Sequential(other_conv1d()),
        "0",
        "of four rows it computes something else than x @ weight + bias",
    ),
    (lambda: nn.Sequential(nn.Linear(8, 8).to(torch.complex64)), "0", "its weight is of torch.complex64"),
]


@pytest.mark.parametrize(("make", "name", "words"), LEFT)
def test_what_is_left_and_why(make, name, words):
    model = make()
    replaced = use(model)
    assert words in replaced.left[name]
    assert f"left: {name or 'the model itself'}: {replaced.left[name]}" in str(replaced)
    assert type(model.get_submodule(name)).__module__ != "cutegemm.torch.models.replacement"


class OfConfig(LlamaMLP):
    """What it computes depends on a number, as where a model's config says so."""

    tp = 1

    def forward(self, x):
        return super().forward(x) / self.tp


class Parallel(OfConfig):
    tp = 2


@pytest.mark.parametrize(
    ("make", "is_mlp"),
    [
        (LlamaMLP, True),
        (lambda: LlamaMLP(hidden=200, bias=True), True),
        (GPT2MLP, True),
        (lambda: TwoLayers(), True),
        (OfConfig, True),
        (Parallel, False),
        (Scaled, False),
    ],
)
def test_on_the_meta_device_an_mlp_is_what_its_forward_says(make, is_mlp):
    """Whatever was replaced there computes, of the numbers that come later, what it did."""
    plain = make().double().eval()
    with torch.device("meta"):
        model = make().double().eval()
        random = torch.random.get_rng_state()
        replaced = use(model)
    assert ("" in replaced.replaced) is is_mlp
    assert is_mlp or "it is on the meta device, and with small layers" in replaced.left[""]
    assert all(each.is_meta for each in model.parameters())
    assert not any(each.training for each in model.modules())
    assert torch.equal(torch.random.get_rng_state(), random)
    model.load_state_dict(plain.state_dict(), assign=True)
    close(model(X), plain(X))


def test_a_model_is_looked_at_on_its_own_device():
    """Not on the one where tensors are made meanwhile."""
    model = LlamaMLP()
    with torch.device("meta"):
        assert "" in use(model).replaced


def test_parts_with_hooks_are_called(block):
    seen = []
    block.mlp.gate_proj.register_forward_hook(lambda *given: seen.append(given))
    replaced = use(block)
    assert replaced.left == {"mlp": "hooks, or a forward of the instance, of its gate_proj would not be called"}
    block(X)
    assert len(seen) == 1


def sparsify(mlp, name):
    layer = getattr(mlp, name)
    layer.weight = nn.Parameter(layer.weight.detach().to_sparse_csr(), requires_grad=False)


def quantize_gate(mlp, name):
    quantize(getattr(mlp, name), "gate_proj")


def extents_of(layer):
    """K and N."""
    return layer.weight.shape if hasattr(layer, "nf") else layer.weight.shape[::-1]


class Adapted(nn.Module):
    """A layer and what somebody has added to it."""

    def __init__(self, layer):
        super().__init__()
        self.base_layer, self.added = layer, nn.Linear(*extents_of(layer), bias=False)
        nn.init.constant_(self.added.weight, 0.25)

    def forward(self, x):
        return self.base_layer(x) + self.added(x)


class Doubled(nn.Module):
    def forward(self, weight):
        return 2 * weight


def adapt(mlp, name):
    setattr(mlp, name, Adapted(getattr(mlp, name)))


def prune(mlp, name):
    l1_unstructured(getattr(mlp, name), "weight", amount=0.5)


def parametrize(mlp, name):
    register_parametrization(getattr(mlp, name), "weight", Doubled())


def norm_by_hook(mlp, name):
    with pytest.warns(FutureWarning):
        weight_norm(getattr(mlp, name)).weight_g.data.mul_(2)


def norm_by_parametrization(mlp, name):
    parametrizations.weight_norm(getattr(mlp, name)).parametrizations.weight.original0.data.mul_(2)


def hook(mlp, name):
    getattr(mlp, name).register_forward_hook(lambda module, given, result: 3 * result)


def hook_with_keywords(mlp, name):
    getattr(mlp, name).register_forward_hook(lambda module, given, named, result: 3 * result, with_kwargs=True)


def hook_before(mlp, name):
    getattr(mlp, name).register_forward_pre_hook(lambda module, given: (2 * given[0],))


def hook_backward(mlp, name):
    getattr(mlp, name).register_full_backward_hook(
        lambda module, into, out: (None if into[0] is None else 3 * into[0],)
    )


def hook_before_backward(mlp, name):
    getattr(mlp, name).register_full_backward_pre_hook(lambda module, out: (3 * out[0],))


def patch(mlp, name):
    module = getattr(mlp, name)
    forward = module.forward
    module.forward = lambda x: 2 * forward(x)


def patch_as_accelerate(mlp, name):
    """What `accelerate.hooks.add_hook_to_module` does."""
    module = getattr(mlp, name)

    def around(module, *given, **named):
        return 2 * module._old_forward(*given, **named)

    module._old_forward = module.forward
    module.forward = functools.update_wrapper(functools.partial(around, module), module._old_forward)


def patch_and_back(mlp, name):
    """What accelerate leaves when it removes its hooks."""
    patch_as_accelerate(mlp, name)
    module = getattr(mlp, name)
    module.forward = module._old_forward
    del module._old_forward


class Quantized(torch.Tensor):
    """int8 with a scale, as torchao's weights: it computes torch.nn.functional.linear, and no other product."""

    @staticmethod
    def __new__(cls, values, scale):
        return torch.Tensor._make_wrapper_subclass(cls, values.shape, dtype=scale.dtype, device=values.device)

    def __init__(self, values, scale):
        self.values, self.scale = values, scale

    @classmethod
    def of(cls, weight):
        scale = weight.abs().amax() / 127
        return cls((weight / scale).round().to(torch.int8), scale)

    def dequantized(self):
        return self.values.to(self.scale.dtype) * self.scale

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func in (F.linear, torch.addmm):
            return func(*[x.dequantized() if isinstance(x, cls) else x for x in args], **(kwargs or {}))
        return super().__torch_function__(func, types, args, kwargs)

    @classmethod
    def __torch_dispatch__(cls, func, types, args, kwargs=None):
        if func in (
            torch.ops.aten.detach.default,
            torch.ops.aten.clone.default,
            torch.ops.aten._to_copy.default,
        ):
            return cls(args[0].values, args[0].scale)
        raise NotImplementedError(f"{func}")


class Packed(nn.Parameter):
    """Bytes that stand for something else, as GGUF's and bitsandbytes' parameters."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            if func in (F.linear, torch.addmm):
                args = [2 * x.as_subclass(torch.Tensor) if isinstance(x, cls) else x for x in args]
            return func(*args, **(kwargs or {}))


class Marked(nn.Parameter):
    """A parameter of another class that computes what torch's does."""


def quantize(mlp, name):
    layer = getattr(mlp, name)
    layer.weight = nn.Parameter(Quantized.of(layer.weight.detach()), requires_grad=False)


def repack(mlp, name):
    layer = getattr(mlp, name)
    layer.weight = Packed(layer.weight.detach().clone(), requires_grad=False)


def mark(mlp, name):
    layer = getattr(mlp, name)
    layer.weight = Marked(layer.weight.detach().clone())


def other_class(mlp, name):
    module = getattr(mlp, name)
    module.__class__ = type(
        "Shifted", (type(module),), {"forward": lambda self, x: super(type(self), self).forward(x) + 1}
    )


def without_bias(mlp, name):
    layer = getattr(mlp, name)
    layer.bias = nn.Parameter(torch.zeros(layer.nf)) if hasattr(layer, "nf") else None  # which needs one


def other_layer(mlp, name):
    layer = nn.Linear(*extents_of(getattr(mlp, name)))
    nn.init.constant_(layer.weight, 0.5)
    nn.init.constant_(layer.bias, 0.25)
    setattr(mlp, name, layer)


def other_activation(mlp, _):
    setattr(mlp, act_of(mlp), nn.ReLU())


def other_approximation(mlp, _):
    getattr(mlp, act_of(mlp)).approximate = "none"


def hooked_activation(mlp, _):
    hook(mlp, act_of(mlp))


def patched_activation(mlp, _):
    patch(mlp, act_of(mlp))


def other_attribute(mlp, _):
    mlp.factor = 2.0


def act_of(mlp):
    return "act_fn" if hasattr(mlp, "act_fn") else "act"


CHANGES_OF_LAYERS = (
    adapt, prune, parametrize, norm_by_hook, norm_by_parametrization, hook, hook_with_keywords, hook_before,
    hook_backward, hook_before_backward, patch, patch_as_accelerate, patch_and_back, other_class, without_bias,
    other_layer, quantize, repack, mark,
)  # fmt: skip
CHANGES_OF_MLPS = (
    other_activation,
    other_approximation,
    hooked_activation,
    patched_activation,
    other_attribute,
)


class TwoLayers(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.act, self.fc2 = nn.Linear(8, 12), nn.GELU(), nn.Linear(12, 8)

    def forward(self, x):
        return self.fc2(self.act(self.fc1(x)))


@pytest.mark.parametrize("change", CHANGES_OF_LAYERS + CHANGES_OF_MLPS)
@pytest.mark.parametrize(
    ("make", "name"),
    [
        (LlamaMLP, "gate_proj"),
        (LlamaMLP, "up_proj"),
        (LlamaMLP, "down_proj"),
        (TwoLayers, "fc1"),
        (TwoLayers, "fc2"),
    ],
)
def test_what_is_changed_behind_use_counts(make, name, change):
    """Adapters, masks, parametrizations and hooks of the parts of an MLP that computes them all at once."""
    plain = make().double()
    used = copy.deepcopy(plain)
    replaced = use(used)
    assert "" in replaced.replaced
    for model in (plain, used):
        change(model, name)
        model.double()
    close(outcome(used), outcome(plain))
    replaced.undo()
    close(outcome(used), outcome(plain))


class Factored(LlamaMLP):
    """Its forward reads a number that is set later."""

    factor = 1.0

    def forward(self, x):
        return self.factor * super().forward(x)


KINDS = (
    Factored,
    GPT2MLP,
    LlamaMLP,
    TwoLayers,
    lambda: nn.Linear(8, 8),
    lambda: Conv1D(8, 8),
    lambda: GatedMLP(8, 12),
)


@pytest.mark.parametrize("seed", range(60))
def test_random_changes_of_random_models(seed):
    """Changes before `use`, after it and after `undo` leave the results and the gradients of the plain model."""
    drawn = random.Random(seed)
    torch.manual_seed(seed)
    plain = nn.Sequential(*[drawn.choice(KINDS)() for _ in range(3)]).double().eval()
    used = copy.deepcopy(plain)
    untouched = [
        (layer, str(i), CHANGES_OF_LAYERS) for i in range(3) for layer in ("",) if not list(plain[i].children())
    ]
    for i, module in enumerate(plain):
        names = [name for name, _ in module.named_children()]
        untouched += [(str(i), name, CHANGES_OF_LAYERS) for name in names if "act" not in name and name != "dropout"]
        untouched += [(str(i), name, CHANGES_OF_MLPS) for name in names if "act" in name]
    drawn.shuffle(untouched)

    def change_one():
        parent, name, changes = untouched.pop()
        change = drawn.choice(changes)
        for model in (plain, used):
            change(model.get_submodule(parent), name)
            model.double()
        close(outcome(used), outcome(plain))

    for _ in range(drawn.randrange(2)):
        change_one()
    replaced = use(used)
    close(outcome(used), outcome(plain))
    change_one()
    if len(untouched) > 1:
        change_one()
        replaced.undo()
        close(outcome(used), outcome(plain))
        change_one()


@pytest.mark.parametrize("make", [LlamaMLP, GPT2MLP, TwoLayers, lambda: nn.Linear(8, 8), lambda: Conv1D(8, 8)])
def test_a_forward_that_is_replaced_in_its_class(make, monkeypatch):
    """The class of the module itself, of a layer of it and of its activation."""
    plain = make().double().eval()
    kinds = {type(module) for module in plain.modules() if "forward" in vars(type(module))}
    for before in (True, False):
        for kind in kinds:
            used = copy.deepcopy(plain)
            replaced = None if before else use(used)
            with monkeypatch.context() as patched:
                forward = kind.forward
                patched.setattr(kind, "forward", lambda self, x: 2 * forward(self, x))  # noqa: B023 - called here
                replaced = replaced or use(used)
                close(outcome(used), outcome(plain))
                assert type(used) is type(plain) or not (before and kind is type(plain))
                close(outcome(copy.deepcopy(used)), outcome(plain))
            close(outcome(used), outcome(plain))
            replaced.undo()
            close(outcome(used), outcome(plain))


def test_hooks_of_all_modules_are_called():
    """The parts of an MLP are called as modules for them."""
    model = LlamaMLP().double()
    use(model)
    called = []
    handle = torch.nn.modules.module.register_module_forward_hook(lambda module, given, result: called.append(module))
    try:
        model(X)
    finally:
        handle.remove()
    assert called == [model.gate_proj, model.act_fn, model.up_proj, model.down_proj, model]


def test_hooks_are_not_called_by_use(block):
    """Nor are statistics changed: `use` tries an MLP with numbers of its own."""
    for module in block.modules():
        module.register_forward_hook(lambda *given: pytest.fail("it is called"))
    use(block)
    model = TwoLayers()
    model.fc2 = nn.Sequential(nn.Linear(12, 8), nn.BatchNorm1d(8))
    before = copy.deepcopy(model.state_dict())
    use(model)
    close(list(model.state_dict().values()), list(before.values()), 0.0)


@pytest.mark.parametrize("make", [LlamaMLP, GPT2MLP, TwoLayers, lambda: nn.Linear(8, 8), lambda: Conv1D(8, 8)])
def test_a_method_outlives_undo(make):
    """Wrappers keep the `forward` of a module: from before `use`, or from before it is undone."""
    model = make().double().eval()
    expected, methods = [model(X)], [model.forward]
    with use(model):
        methods.append(model.forward)
        close([method(X) for method in methods], expected * 2)
    close([method(X) for method in methods], expected * 2)


def test_arguments_by_name(block):
    expected = outcome(block)
    use(block)
    first, *_ = expected
    close([block.other(x=block.mlp(x=block.norm(X)) + block.q_proj(input=X))], [first])


def test_hooks_of_accelerate():
    hooks = pytest.importorskip("accelerate.hooks", reason="accelerate is not installed")

    class Tripled(hooks.ModelHook):
        def post_forward(self, module, output):
            return 3 * output

    plain = Block().double().eval()
    used = copy.deepcopy(plain)
    replaced = use(used)
    names = [name for name, _ in plain.named_modules() if name]
    for name in names:
        for model in (plain, used):
            hooks.add_hook_to_module(model.get_submodule(name), Tripled())
        close(outcome(used), outcome(plain))
    for name in names[::2]:
        for model in (plain, used):
            hooks.remove_hook_from_module(model.get_submodule(name))
    close(outcome(used), outcome(plain))
    replaced.undo()
    close(outcome(used), outcome(plain))
    assert use(used).replaced.keys() == {"q_proj", "mlp.gate_proj", "mlp.down_proj", "other.c_proj"}


def test_adapters_of_peft():
    peft = pytest.importorskip("peft", reason="peft is not installed")
    config = peft.LoraConfig(target_modules=["gate_proj", "down_proj", "q_proj"], init_lora_weights=False)
    plain = Block().double().eval()
    used = copy.deepcopy(plain)
    replaced = use(used)
    adapted = []
    for model in (plain, used):
        torch.manual_seed(0)
        adapted.append(peft.get_peft_model(model, config).double().eval())
    close(outcome(adapted[1]), outcome(adapted[0]))
    for model in adapted:
        model.merge_adapter()
    close([adapted[1](X)], [adapted[0](X)])
    whole = [model.merge_and_unload() for model in adapted]
    close([whole[1](X)], [whole[0](X)])
    replaced.undo()
    close([whole[1](X)], [whole[0](X)])


def test_a_gated_mlp_whose_layer_is_adapted():
    mlp = GatedMLP(8, 12, activation="geglu").double()
    plain = LlamaMLP(act=nn.GELU()).double()
    plain.load_state_dict(mlp.state_dict())
    for change, name in ((adapt, "gate_proj"), (hook, "up_proj")):
        for model in (plain, mlp):
            change(model, name)
            model.double()
        close(outcome(mlp), outcome(plain))


class Logged(torch.Tensor):
    """An input that notes what is computed with it."""

    called: ClassVar[list] = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.called.append(func)
        return super().__torch_function__(func, types, args, kwargs)


@pytest.mark.parametrize("make", KINDS[:-1])
def test_an_input_of_another_class(make):
    """torch's own operations see it, and the result is of that class."""
    plain = make().double().eval()
    used = copy.deepcopy(plain)
    use(used)
    called = []
    for model in (plain, used):
        Logged.called.clear()
        found = model(X.as_subclass(Logged))
        assert type(found) is Logged
        close([found.as_subclass(torch.Tensor)], [plain(X)])
        called.append(list(Logged.called))
    assert F.linear in called[0] + [F.linear] * (torch.addmm in called[0])
    assert called[1] == called[0]


@pytest.mark.parametrize("make", KINDS[:-1])
def test_inputs_and_types_that_kernels_do_not_serve(make):
    """What torch computes before `use`, it computes after it: other types, sparse weights, nested inputs."""
    plain = make().double().eval()
    used = copy.deepcopy(plain)
    use(used)
    for convert in (lambda model: model.to(torch.complex64), lambda model: model.to("meta")):
        models = [convert(copy.deepcopy(model)) for model in (plain, used)]
        weight = next(models[0].parameters())
        x = X.to(weight.device, weight.dtype)
        found = []
        for model in models:
            try:
                found.append(model(x))
            except (RuntimeError, UnsupportedError) as error:  # torch has no such gelu
                found.append(type(error))
        assert isinstance(found[0], torch.Tensor) == isinstance(found[1], torch.Tensor)
        if isinstance(found[0], torch.Tensor):
            assert (found[0].shape, found[0].dtype, found[0].device) == (
                found[1].shape,
                found[1].dtype,
                found[1].device,
            )
    if isinstance(plain, nn.Linear):
        nested = torch.nested.nested_tensor([X[0, :1], X[0]])
        close(used(nested).unbind(), plain(nested).unbind())
        for model in (plain, used):
            model.weight = nn.Parameter(model.weight.detach().to_sparse_csr(), requires_grad=False)
        close([used(X[0])], [plain(X[0])])


@pytest.fixture(scope="module")
def mesh():
    """One process, as a mesh of devices."""
    distributed = pytest.importorskip("torch.distributed", reason="torch has no distributed package")
    if not distributed.is_available() or not distributed.is_gloo_available():
        pytest.skip("gloo is not available")
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield distributed.init_device_mesh("cpu", (1,))
    distributed.destroy_process_group()


@pytest.mark.filterwarnings("error:FSDP2-wrapped module:UserWarning")
@pytest.mark.parametrize("is_before", [False, True])
def test_layers_that_are_sharded(mesh, is_before):
    """Tensor parallelism has distributed weights and hooks; FSDP gathers the weights in a call."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    styles = {"gate_proj": ColwiseParallel(), "up_proj": ColwiseParallel(), "down_proj": RowwiseParallel()}
    ways = (
        lambda model: parallelize_module(model, mesh, styles),
        lambda model: fully_shard(model, mesh=mesh),
    )
    for shard in ways:
        plain = LlamaMLP().double()
        used, expected = copy.deepcopy(plain), outcome(plain)
        steps = [use, shard]
        for step in reversed(steps) if is_before else steps:
            found = step(used)
            if is_before and not isinstance(found, nn.Module):
                assert "its weight is a DTensor" in found.left["gate_proj"]
        assert isinstance(used.gate_proj.weight, DTensor)
        found = outcome(used)
        close([x.full_tensor() if isinstance(x, DTensor) else x for x in found], expected)


def test_a_model_is_traced_by_fx(block):
    """Modules are leaves of the graph, as torch's own layers are."""
    expected = [block(X)]
    replaced = use(block)
    traced = torch.fx.symbolic_trace(block)
    leaves = [node.target for node in traced.graph.nodes if node.op == "call_module"]
    assert leaves == ["norm", "mlp", "q_proj", "other"]
    close([traced(X)], expected)
    close(outcome(traced), outcome(block))
    replaced.undo()
    close([traced(X)], expected)
    model = nn.Sequential(GatedMLP(8, 12), Linear(8, 8, activation="gelu_new"), nn.Linear(8, 8)).double()
    use(model)
    traced = torch.fx.symbolic_trace(model)
    assert [node.target for node in traced.graph.nodes if node.op == "call_module"] == ["0", "1", "2"]
    close([traced(X)], [model(X)])


@pytest.mark.parametrize("make", [*(make for make in KINDS if make().__class__ is not Conv1D), nn.Identity])
def test_a_module_is_traced_by_fx_itself(make):
    """Its parts are leaves then, and a layer is torch's."""
    model = make().double().eval()
    use(model)
    close([torch.fx.symbolic_trace(model)(X)], [model(X)])
    if not isinstance(model, (nn.Linear, GatedMLP)):
        assert inspect.signature(model.forward) == inspect.signature(make().forward)


@pytest.mark.parametrize("is_recorded", [False, True])
@pytest.mark.parametrize("make", KINDS)
def test_a_model_is_traced_by_jit(make, is_recorded):
    """The trace holds torch's own operations; it is saved, and takes other numbers of rows."""
    plain = make().double().eval()
    used = copy.deepcopy(plain)
    use(used)
    with torch.set_grad_enabled(is_recorded):
        traced = torch.jit.trace(used, X)
    assert not [node for node in traced.inlined_graph.nodes() if "cutegemm" in node.kind() or "Python" in node.kind()]
    file = io.BytesIO()
    torch.jit.save(traced, file)
    file.seek(0)
    loaded = torch.jit.load(file)
    for x in (X, normal(5, 3, 8)):
        close([traced(x), loaded(x)], [plain(x)] * 2)


@pytest.mark.parametrize("make", KINDS)
def test_a_script_is_refused_with_advice(make):
    model = nn.Sequential(make().double())
    replaced = use(model)
    with pytest.raises(
        UnsupportedError, match=r"which cutegemm computes. Script the model before `use`, or after `undo\(\)`."
    ):
        torch.jit.script(model)
    replaced.undo()
    if type(model[0]) in (nn.Linear, LlamaMLP, TwoLayers):
        close([torch.jit.script(model)(X)], [model(X)])


def test_dropout_stays_dropout(block):
    use(block)
    block.train()
    torch.manual_seed(1)
    first = block(X)
    assert not torch.equal(first, block(X))


def test_use_of_what_is_no_module():
    with pytest.raises(UnsupportedError, match=r"use: model is a dict. Pass a torch.nn.Module."):
        cutegemm.use({})


TRANSFORMERS = {
    "llama": lambda t: t.LlamaForCausalLM(
        t.LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                      num_key_value_heads=2)
    ),
    "gpt2": lambda t: t.GPT2LMHeadModel(
        t.GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_models_of_transformers(name, tmp_path):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    model = TRANSFORMERS[name](transformers).double().eval()
    ids = torch.arange(24).view(2, 12)

    def run():
        model.zero_grad()
        found = model(ids, labels=ids)
        found.loss.backward()
        return [found.logits.detach(), *[p.grad.clone() for p in model.parameters()]]

    before = run()
    with use(model) as replaced:
        assert replaced.left == {}
        assert len([said for said in replaced.replaced.values() if "MLP" in said]) == 2
        close(run(), before, 1e-10)
        model.tie_weights()
        model.save_pretrained(tmp_path)
        again = type(model).from_pretrained(tmp_path).double().eval()
        use(again)
        close([again(ids).logits], [model(ids).logits], 1e-10)
    close(run(), before, 0.0)


def test_weights_are_trained_behind_an_inference():
    """Weights that are laid side by side by the first call stay ordinary ones."""
    module = GatedMLP(8, 16)
    x = torch.randn(3, 8)
    with torch.inference_mode():
        module(x)
    assert not any(weight.is_inference() for weight in module.parameters())
    module(x).sum().backward()
    assert all(weight.grad is not None for weight in module.parameters())


MODES = (torch.inference_mode, torch.no_grad, torch.enable_grad)
STEPS = {
    "loaded": lambda model: model.load_state_dict({name: x.clone() for name, x in model.state_dict().items()}),
    "of another type": lambda model: model.float().double(),
    "called": lambda model: model(X),
    "frozen": lambda model: model.requires_grad_(False),
    "trained": lambda model: model.requires_grad_(True),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(12))
def test_modes_in_which_a_model_is_made_replaced_and_called(kind, seed):
    """Each step runs in a mode of its own; the plain model and the replaced one give the same, or raise the same."""
    drawn = random.Random(f"{KINDS.index(kind)} {seed}")
    steps = [(name, drawn.choice(MODES)) for name in (*drawn.sample(list(STEPS), 2), "called", "called")]
    made, replaced = drawn.choice(MODES), drawn.choice(MODES)

    def run(is_ours):
        torch.manual_seed(seed)
        with made():
            model = kind().double().eval()
            if isinstance(model, GatedMLP) and not is_ours:
                weights = model.state_dict()
                model = LlamaMLP().double().eval()
                model.load_state_dict(weights)
        if is_ours:
            with replaced():
                use(model)
        for name, mode in steps:
            with mode():
                found = STEPS[name](model)
        with steps[-1][1]():
            tensors = [found.clone()]
            if found.requires_grad:
                found.square().sum().backward()
                tensors += [p.grad for _, p in sorted(model.named_parameters())]
        return tensors

    results = []
    for is_ours in (False, True):
        try:
            results.append(run(is_ours))
        except RuntimeError as error:
            results.append([str(error)])
    theirs, ours = ([each for each in found if not isinstance(each, torch.Tensor)] for found in results)
    assert ours == theirs
    close(*[[each for each in found if isinstance(each, torch.Tensor)] for found in results])


@pytest.mark.parametrize("is_training", [True, False])
def test_a_model_that_is_left_trains_as_before(is_training):
    """An MLP that takes more than a tensor raises when `use` tries it."""

    class Routed(LlamaMLP):
        def forward(self, x, weights):
            return super().forward(x) * weights

    module = Routed().train(is_training)
    module.act_fn.train(not is_training)
    assert "" in use(module).left
    assert [each.training is is_training for each in (module, module.down_proj)] == [True, True]
    assert module.act_fn.training is not is_training


def test_a_dropout_that_is_a_function_is_left():
    class Dropped(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc1, self.act, self.fc2 = nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)

        def forward(self, x):
            return self.fc2(F.dropout(self.act(self.fc1(x)), 0.5, self.training))

    module, x = Dropped(), torch.randn(4, 64)
    before = torch.random.get_rng_state()
    use(module)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert module.training
    assert (module(x) - module(x)).abs().max() > 1e-3
