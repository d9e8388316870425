"""Experts of transformers with float8 weights and scales of 128 x 128, by the name "cutegemm"."""

from __future__ import annotations

import functools

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", "5.0", reason="transformers 5 is not installed")
fp8 = pytest.importorskip("transformers.integrations.finegrained_fp8", reason="transformers has no float8 experts")
if not hasattr(fp8, "FP8ExpertsInterface"):
    pytest.skip("transformers has no interface of float8 experts", allow_module_level=True)

from transformers.integrations.moe import use_experts_implementation  # noqa: E402

import cutegemm.torch.models.transformers  # noqa: E402, F401 - registers the name "cutegemm"
from cutegemm import use  # noqa: E402
from cutegemm.errors import UnsupportedError  # noqa: E402
from cutegemm.torch import quantize  # noqa: E402
from cutegemm.torch.models import preparation  # noqa: E402
from cutegemm.torch.reference import dequantized  # noqa: E402

WIDTH, HIDDEN, EXPERTS, CHOSEN = 384, 200, 5, 2  # K/128 and 2 * HIDDEN / 128 are not multiples of 4, or whole
kinds: dict[bool, type] = {}


def kind(has_gate):
    """A class as transformers makes it of `FP8Experts`: once, because the decorator changes the class."""
    if has_gate not in kinds:
        own = type("FP8Experts", (fp8.FP8Experts,), {"forward": fp8.FP8Experts.forward})
        kinds[has_gate] = use_experts_implementation(
            experts_class=own, experts_interface=fp8.ALL_FP8_EXPERTS_FUNCTIONS, has_bias=False, has_gate=has_gate
        )
    return kinds[has_gate]


def experts(has_gate=True, device="cpu", **options):
    """Float8 experts, and their weights in float64: (module, up, down)."""
    config = transformers.Qwen3MoeConfig(
        hidden_size=WIDTH, moe_intermediate_size=HIDDEN, num_experts=EXPERTS, num_experts_per_tok=CHOSEN
    )
    config._experts_implementation = "cutegemm"
    module = kind(has_gate)(config, **{"block_size": (128, 128), "has_gate": has_gate, **options})
    module.has_gate = has_gate
    generator, weights = torch.Generator().manual_seed(0), []
    for name in ("gate_up_proj" if has_gate else "up_proj", "down_proj"):
        parameter, scale = getattr(module, name), getattr(module, f"{name}_scale_inv")
        for expert in range(EXPERTS):
            rows = torch.randn(parameter.shape[1:], generator=generator) / parameter.shape[2] ** 0.5
            values, scales = quantize(rows, (128, 128))
            parameter.data[expert], scale.data[expert] = values, scales[: scale.shape[2]].t()
        blocks = scale.data.repeat_interleave(128, 1)[:, : parameter.shape[1]]
        blocks = blocks.repeat_interleave(128, 2)[:, :, : parameter.shape[2]]
        weights.append(parameter.data.double() * blocks.double())
    return module.to(device), *weights


def routed(tokens, seed=1):
    generator = torch.Generator().manual_seed(seed)
    scores, index = torch.rand(tokens, EXPERTS, generator=generator).topk(CHOSEN, -1)
    return torch.randn(tokens, WIDTH, generator=generator).bfloat16(), index, scores.softmax(-1).bfloat16()


def expected(module, up, down, x, index, weights):
    """The result in float64, with rows that are rounded to bfloat16 and quantized as the module does."""
    x = dequantized(*quantize(x)).double()
    y = torch.zeros(len(x), WIDTH, dtype=torch.double)
    for token, (chosen, each) in enumerate(zip(index.tolist(), weights, strict=True)):
        for expert, weight in zip(chosen, each, strict=True):
            if expert < EXPERTS:
                hidden = (up[expert] @ x[token]).bfloat16().unsqueeze(0)
                hidden = module._apply_gate(hidden) if hasattr(module, "gate_up_proj") else module.act_fn(hidden)
                hidden = dequantized(*quantize(hidden)).double()
                y[token] += weight.double() * (down[expert] @ hidden[0])
    return y


def error(found, want):
    return float((found.double().cpu() - want).norm() / want.norm())


@pytest.mark.parametrize("has_gate", [True, False])
@pytest.mark.parametrize("tokens", [1, 7, 64])
def test_results(tokens, has_gate):
    module, *weights = experts(has_gate)
    x, index, shares = routed(tokens)
    found = module(x, index, shares)
    assert (found.shape, found.dtype, found.requires_grad) == (x.shape, x.dtype, False)
    assert error(found, expected(module, *weights, x, index, shares)) < 0.005
    others = expected(module, *weights, x, (index + 1) % EXPERTS, shares)
    assert error(found, others) > 0.5


@pytest.mark.parametrize("is_marked", [True, False])
def test_experts_on_other_devices_contribute_nothing(is_marked):
    """transformers marks the module, or replaces its forward. New memory has NaN."""
    module, *weights = experts()
    x, index, shares = routed(9)
    index[0], index[3, 1] = EXPERTS, EXPERTS
    if is_marked:
        module._is_expert_parallel = True
    else:
        module.forward = functools.partial(type(module).forward, module)
    torch.use_deterministic_algorithms(True)
    try:
        found = module(x, index, shares)
    finally:
        torch.use_deterministic_algorithms(False)
    assert not found[0].any()
    assert error(found, expected(module, *weights, x, index, shares)) < 0.005


def test_torch_compile_has_one_graph():
    module, *_ = experts()
    inputs = routed(16)
    torch._dynamo.reset()
    with torch.no_grad():
        close = torch.compile(module, fullgraph=True, backend="eager")(*inputs)
        assert torch.equal(close, module(*inputs))


def wrong_scheme(module):
    module.activation_scheme = "static"


def wrong_block(module):
    module.block_size = (64, 128)


def wrong_weight(module):
    module.down_proj = torch.nn.Parameter(module.down_proj.view(torch.int8), requires_grad=False)


def wrong_type(module):
    module.down_proj_scale_inv.data = module.down_proj_scale_inv.data.bfloat16()


def wrong_shape(module):
    module.gate_up_proj_scale_inv.data = module.gate_up_proj_scale_inv.data[:, :2]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (wrong_scheme, "the scales of its activations are static, not dynamic"),
        (wrong_block, r"its weights have scales of blocks of \(64, 128\), not of 128 x 128"),
        (wrong_weight, r"its down_proj is of torch\.int8 and shape \(5, 384, 200\), not of float8"),
        (wrong_type, r"the scales of its down_proj are of torch\.bfloat16 and shape \(5, 3, 2\), not of float32"),
        (
            wrong_shape,
            r"gate_up_proj are of torch\.float32 and shape \(5, 2, 3\), not of float32 and shape \(5, 4, 3\)",
        ),
    ],
)
def test_experts_that_no_kernel_computes(change, says):
    module, *_ = experts()
    change(module)
    with pytest.raises(UnsupportedError, match=f"{says}.*Use experts_implementation='eager'"):
        module(*routed(3))


def test_no_derivatives():
    module, *_ = experts()
    x, index, shares = routed(3)
    x.requires_grad_()
    with pytest.raises(UnsupportedError, match=r"hidden_states requires gradients.*torch\.no_grad\(\)"):
        module(x, index, shares)
    with torch.no_grad():
        module(x, index, shares)
        with pytest.raises(UnsupportedError, match="tangents of hidden_states are passed"):
            torch.func.jvp(lambda x: module(x, index, shares), (x.detach(),), (x.detach(),))


def test_use_leaves_them_and_prepare_skips_them():
    module, *_ = experts()
    assert not preparation.is_computed(module)
    left = use(torch.nn.Sequential(module)).left
    assert left == {"0": "its weights are of float8. Load the model with experts_implementation='cutegemm'"}


def test_a_model_by_its_quantization():
    """transformers replaces the experts as in a model that it loads; the linear layers stay."""
    config = transformers.Qwen3MoeConfig(
        hidden_size=128, moe_intermediate_size=128, num_experts=4, num_experts_per_tok=2, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, head_dim=64, intermediate_size=128, vocab_size=64,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.Qwen3MoeForCausalLM(config).bfloat16().eval()
    ids = torch.arange(20).view(2, 10)
    with torch.no_grad():
        want = model(ids).logits
    weights = [(name, getattr(model.model.layers[0].mlp.experts, name).data) for name in ("gate_up_proj", "down_proj")]
    linear = [name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)]
    options = transformers.FineGrainedFP8Config(weight_block_size=(128, 128))
    fp8.replace_with_fp8_linear(model, linear, options, pre_quantized=True)
    experts = model.model.layers[0].mlp.experts.to_empty(device="cpu")
    for name, values in weights:
        quantized = [quantize(each, (128, 128)) for each in values]
        getattr(experts, name).data = torch.stack([values for values, _ in quantized])
        getattr(experts, f"{name}_scale_inv").data = torch.stack([scales[:1].t() for _, scales in quantized])
    model.set_experts_implementation("cutegemm")
    with torch.no_grad():
        assert 0 < error(model(ids).logits, want.double()) < 0.05
