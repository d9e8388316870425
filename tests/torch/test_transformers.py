"""Experts of transformers' mixture models: by name and by `use`, with outputs and gradients as its own experts'."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", "5.0", reason="transformers 5 is not installed")

import cutegemm.torch.models.transformers  # noqa: E402, F401 - registers the name "cutegemm"
from cutegemm import use  # noqa: E402
from cutegemm.errors import UnsupportedError  # noqa: E402
from cutegemm.machine.device import DEFAULT_DEVICE  # noqa: E402
from cutegemm.run.prepare import asking  # noqa: E402
from cutegemm.torch.models import experts as experts_module  # noqa: E402
from cutegemm.torch.models import preparation  # noqa: E402
from cutegemm.torch.models.experts import activation_of_experts, is_experts  # noqa: E402
from tests.torch.cases import close  # noqa: E402

COMMON = {
    "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 8, "intermediate_size": 48, "num_experts_per_tok": 2,
}  # fmt: skip
LATENT = {
    "num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
    "v_head_dim": 8, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1,
}  # fmt: skip
MODELS = {  # name in transformers: own options, activation of the experts
    "Mixtral": ({"num_local_experts": 4}, ("swiglu", False)),
    "Qwen3Moe": ({"num_experts": 6, "moe_intermediate_size": 24}, ("swiglu", False)),
    "GptOss": ({"num_local_experts": 4}, ("swiglu_oai", True)),
    "DeepseekV3": ({**LATENT, "n_routed_experts": 8, "moe_intermediate_size": 24}, ("swiglu", False)),
}
IDS = torch.arange(24).view(2, 12)


def model_of(name, dtype=torch.float64, **more):
    config = getattr(transformers, f"{name}Config")(**{**COMMON, **MODELS[name][0], **more})
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model.to(dtype)


def step(model):
    """Outputs and gradients, 0 for a parameter without one."""
    model.zero_grad()
    output = model(IDS, labels=IDS)
    output.loss.backward()
    return [output.logits.detach(), *[torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]]


def experts_of(model):
    return [module for module in model.modules() if is_experts(module)]


@pytest.mark.parametrize("name", MODELS)
def test_models_by_name_and_by_use(name):
    model = model_of(name)
    model.set_experts_implementation("eager")
    theirs = step(model)
    model.set_experts_implementation("cutegemm")
    close(step(model), theirs, 1e-12)
    assert {activation_of_experts(each) for each in experts_of(model)} == {MODELS[name][1]}
    model.set_experts_implementation("eager")
    with use(model) as replaced:
        assert not replaced.left
        assert len([text for text in replaced.replaced.values() if "experts" in text]) == len(experts_of(model))
        close(step(model), theirs, 1e-12)
        close(step(copy.deepcopy(model)), theirs, 1e-12)
    close(step(model), theirs, 0.0)


@pytest.mark.parametrize("name", MODELS)
def test_experts_are_as_close_to_float32_as_their_own(name):
    """The errors are at most twice theirs. Experts are alone: a router of bfloat16 may choose other experts."""
    exact = experts_of(model_of(name, torch.float32))[0]
    narrow = copy.deepcopy(exact).bfloat16()
    exact.load_state_dict({key: x.float() for key, x in narrow.state_dict().items()})
    x, index = torch.randn(40, 32).bfloat16(), torch.rand(40, 4).topk(2, -1).indices
    weights = torch.rand(40, 2)

    def run(module, implementation):
        module.zero_grad()
        module.config._experts_implementation = implementation
        own = x.to(module.down_proj.dtype, copy=True).requires_grad_()
        output = module(own, index, weights.to(own.dtype))
        output.backward(torch.ones_like(output))
        return [output.detach(), own.grad, *[p.grad.clone() for p in module.parameters()]]

    wanted, theirs, ours = run(exact, "eager"), run(narrow, "eager"), run(narrow, "cutegemm")
    for right, one, other in zip(wanted, ours, theirs, strict=True):
        assert (one.float() - right).norm() <= 2 * (other.float() - right).norm()


def test_torch_compile_has_one_graph():
    model = model_of("GptOss")
    model.set_experts_implementation("eager")
    with torch.no_grad():
        theirs = model(IDS).logits
        model.set_experts_implementation("cutegemm")
        close([torch.compile(model, fullgraph=True, backend="aot_eager")(IDS).logits], [theirs], 1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_torch_compile_takes_the_activation_that_use_noted(monkeypatch, name):
    """Dynamo of torch before 2.13 calls no constant function with a module; a changed attribute is seen there too."""
    model = model_of(name)
    model.set_experts_implementation("eager")
    with torch.no_grad():
        theirs = model(IDS).logits
        use(model)
        monkeypatch.setattr(experts_module, "_takes_modules", False)
        monkeypatch.setattr(experts_module, "_gate_of", None)
        close([torch.compile(model, fullgraph=True, backend="aot_eager")(IDS).logits], [theirs], 1e-12)
    module = experts_of(model)[0]
    assert experts_module._noted_gate(module) == MODELS[name][1]
    module.act_fn, module.limit = torch.nn.Softplus(), 0.1
    assert experts_module._noted_gate(module) is None
    assert experts_module._noted_gate(torch.nn.Identity()) is None


def test_an_activation_that_no_kernel_has():
    model = model_of("Mixtral")
    model.set_experts_implementation("eager")
    for module in experts_of(model):
        module.act_fn = torch.nn.Softplus()
    theirs = step(model)
    model.set_experts_implementation("cutegemm")
    close(step(model), theirs, 1e-12)


def test_other_limits_of_gpt_oss():
    """A limit that changes after the first call counts."""
    model = model_of("GptOss")
    module = experts_of(model)[0]
    assert activation_of_experts(module) == ("swiglu_oai", True)
    module.limit = 0.1
    assert activation_of_experts(module) == (module._apply_gate, False)


def test_experts_without_a_gate():
    if not hasattr(transformers, "NemotronHConfig"):
        pytest.skip("transformers has no NemotronH")
    from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHExperts

    config = transformers.NemotronHConfig(
        hidden_size=32, n_routed_experts=4, moe_intermediate_size=24, moe_latent_size=None
    )
    module = NemotronHExperts(config).double()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    x, index, weights = torch.randn(9, 32).double(), torch.rand(9, 4).topk(2, -1).indices, torch.rand(9, 2).double()
    results = []
    for implementation in ("eager", "cutegemm"):
        config._experts_implementation = implementation
        results.append(module(x, index, weights))
    close(results[1:], results[:1])
    assert activation_of_experts(module)[0] == "relu_sq"


def test_experts_that_are_left():
    model = model_of("Mixtral")
    module = experts_of(model)[0]
    module.has_post_expert_norm = True
    model.set_experts_implementation("cutegemm")
    with pytest.raises(UnsupportedError, match=r"a norm follows each expert.*Use experts_implementation='grouped_mm'"):
        model(IDS)
    replaced = use(model)
    assert list(replaced.left.values()) == ["a norm follows each expert, before its weight"]
    replaced.undo()
    with pytest.raises(UnsupportedError, match="grouped kernels of experts are not batch invariant"):
        use(model_of("Mixtral"), batch_invariant=True)


@pytest.mark.parametrize("name", ["Mixtral", "Qwen3Moe", "DeepseekV3"])
@pytest.mark.parametrize("by_use", [False, True])
def test_experts_are_prepared(name, by_use):
    """The layers of a model have equal experts, whose kernels are chosen once: sort, two GEMMs, sum.

    With many tokens, another kernel copies their rows before the first GEMM.
    """
    model = model_of(name, torch.bfloat16)
    model.set_experts_implementation("eager" if by_use else "cutegemm")
    if by_use:
        use(model)
    assert all(preparation.is_computed(each) for each in experts_of(model))
    parents = {id(child): module for module in model.modules() for child in module.children()}
    mixtures = [(each, parents[id(each)]) for each in experts_of(model)]
    assert {preparation.router_of(*each).k for each in mixtures} == {2}
    for tokens, expected in ((64, ["rows", "sm90", "sm90", "rows"]), (4096, ["rows", "rows", "sm90", "sm90", "rows"])):
        kernels = []
        with torch.no_grad(), asking(DEFAULT_DEVICE, kernels):
            preparation.ask_experts(mixtures, [tokens], backward=False)
        assert [kernel.family for kernel, _ in kernels] == expected
    if not by_use:
        model.set_experts_implementation("eager")
        assert not any(preparation.is_computed(each) for each in experts_of(model))


def test_a_saved_model_loads(tmp_path):
    model = model_of("Mixtral")
    model.set_experts_implementation("cutegemm")
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path, experts_implementation="cutegemm", dtype=torch.float64)
    with torch.no_grad():
        close([again(IDS).logits], [model(IDS).logits], 1e-12)
        assert again.generate(IDS[:, :4], max_new_tokens=2, do_sample=False).shape == (2, 6)
