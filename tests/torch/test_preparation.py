"""`prepare` and `use` for experts and `grouped_mm`: later calls use the kernels that were chosen. None is compiled."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import cutegemm  # noqa: E402
from cutegemm.dtypes import f32  # noqa: E402
from cutegemm.errors import UnsupportedError  # noqa: E402
from cutegemm.machine.device import DEFAULT_DEVICE  # noqa: E402
from cutegemm.plan import Operands  # noqa: E402
from cutegemm.plan.memory.rows import SortRows, SortTokens, SpreadRows, SumRows, TotalRows  # noqa: E402
from cutegemm.run.prepare import asking  # noqa: E402
from cutegemm.torch.grouped import launch, library, mixture, rows  # noqa: E402
from cutegemm.torch.grouped.preparation import kernels_of_groups, sampled_rows  # noqa: E402
from cutegemm.torch.models.preparation import Router, ask_experts, router_of  # noqa: E402

COUNT, K, HIDDEN, CHOSEN = 8, 256, 192, 2


class Experts(torch.nn.Module):
    """Experts with the attributes that transformers gives them."""

    def __init__(self, has_bias):
        super().__init__()
        self.has_bias, self.is_transposed, self.act_fn = has_bias, False, torch.nn.SiLU()
        self.config = SimpleNamespace(num_experts_per_tok=CHOSEN, _experts_implementation="cutegemm")
        shapes = {"gate_up_proj": (2 * HIDDEN, K), "down_proj": (K, HIDDEN)}
        for name, shape in shapes.items():
            setattr(self, name, torch.nn.Parameter(torch.zeros(COUNT, *shape).bfloat16()))
            bias = torch.nn.Parameter(torch.zeros(COUNT, shape[0]).bfloat16()) if has_bias else None
            setattr(self, f"{name}_bias", bias)

    def _apply_gate(self, x):
        gate, up = x.chunk(2, -1)
        return self.act_fn(gate) * up


class Block(torch.nn.Module):
    """Experts and their router, whose weights are float32."""

    def __init__(self, experts):
        super().__init__()
        self.experts = experts

    def forward(self, x):
        weights, index = torch.rand(x.shape[1], COUNT).topk(CHOSEN, -1)
        return self.experts(x.flatten(0, 1), index.int(), top_k_weights=weights)


@pytest.fixture
def launched(monkeypatch):
    """Take the CPU for a Hopper GPU whose kernels compute nothing. Return the list of the kernels that were needed."""
    kernels = []

    def noted(kernel, arch):
        assert arch == "sm_90a"
        kernels.append(kernel)
        is_sort = isinstance(kernel, SortRows)
        return lambda *tensors: [x.zero_() for x in tensors[1:] if is_sort]  # rows that operations can index

    cached = [getattr(rows, name) for name in ("_sorter", "_spreader", "_adder", "_totaller")]
    for function in cached:
        function.cache_clear()
    for module, name in ((launch, "_calls"), (mixture, "_steps")):
        monkeypatch.setattr(module, name, type(launch._calls)())
    monkeypatch.setattr(launch, "compile_plan", lambda plan, arch: SimpleNamespace(function=noted(plan, arch)))
    monkeypatch.setattr(launch, "on_device", lambda function: function)
    monkeypatch.setattr(rows, "compiled", noted)
    for module in (rows, mixture):
        monkeypatch.setattr(module, "has_kernels", lambda x: True)
    monkeypatch.setattr(rows, "has_dsl", lambda: True)
    monkeypatch.setattr(rows.torch_ops, "device_arch", lambda index: "sm_90a")
    monkeypatch.setattr(rows.torch_ops, "device_of", lambda index: DEFAULT_DEVICE)
    monkeypatch.setattr(library, "compute", launch.compute_grouped)
    yield kernels
    for function in cached:
        function.cache_clear()


def asked(module, tokens, backward):
    kernels = []
    with torch.no_grad(), asking(DEFAULT_DEVICE, kernels):
        ask_experts([(module, Block(module))], tokens, backward)
    return kernels


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("backward", [False, True])
def test_calls_of_experts_need_no_other_kernels(launched, backward, has_bias):
    module = Experts(has_bias)
    kernels = asked(module, range(1, 4500), backward)
    assert launched == []
    assert {arch for _, arch in kernels} == {"sm_90a"}
    keys = {kernel.key() for kernel, _ in kernels}
    for tokens in (1, 3, 4, 7, 64, 100, 1000, 4095, 4096, 4499):
        x = torch.zeros(tokens, K).bfloat16()
        index, weights = torch.zeros(tokens, CHOSEN, dtype=torch.int32), torch.zeros(tokens, CHOSEN)
        parameters = [module.gate_up_proj, module.down_proj, module.gate_up_proj_bias, module.down_proj_bias]
        if backward:
            inputs = [x.requires_grad_(), weights.requires_grad_(), *[each for each in parameters if each is not None]]
            y = cutegemm.experts(x, index, weights, *parameters[:2], "swiglu", *parameters[2:])
            torch.autograd.grad(y, inputs, torch.zeros_like(y))
        with torch.no_grad():
            cutegemm.experts(x, index, weights, *parameters[:2], "swiglu", *parameters[2:])
    needed = {kernel.key() for kernel in launched}
    assert needed <= keys
    # 4096 tokens have 8192 entries, which a cluster of 8 CTAs sorts
    # and with few rows of an expert, the first product gathers them
    of_tokens = SortTokens(COUNT, 32, count=CHOSEN, weight=f32)
    both = {of_tokens.key(), *[SortRows(COUNT, 32, ctas).key() for ctas in (1, 8)]}
    kinds = {type(kernel) for kernel in launched if kernel.family == "rows"}
    assert both <= needed
    assert kinds == {SortTokens, SortRows, SpreadRows, SumRows, *([TotalRows] if backward and not has_bias else [])}
    groups = {kernel.operands.groups for kernel, _ in kernels if kernel.family != "rows"}
    assert groups - {"n"} == ({"m", "k"} if backward else {"m"})  # n: rows, by plans that swap A and B


def test_equal_experts_are_asked_once(launched):
    module = Experts(False)
    kernels = []
    with torch.no_grad(), asking(DEFAULT_DEVICE, kernels):
        ask_experts([(each, Block(each)) for each in (module, Experts(False))], [16], False)
    assert len(kernels) == len(asked(module, [16], False)) == 4  # sort, two grouped GEMMs, sum


def test_parameters_without_gradients_have_no_kernels_of_gradients(launched):
    module = Experts(False).requires_grad_(False)
    groups = [kernel.operands.groups for kernel, _ in asked(module, [16], True) if kernel.family != "rows"]
    assert "k" not in groups


def test_what_a_router_passes():
    module = Experts(False)
    assert router_of(module, Block(module)) == Router(CHOSEN, torch.int32, torch.float32)
    assert router_of(module, None) == Router(CHOSEN, torch.int64, torch.bfloat16)
    assert router_of(module, torch.nn.Bilinear(2, 2, 2)) == Router(CHOSEN, torch.int64, torch.bfloat16)
    assert not module._forward_pre_hooks


def test_undo_leaves_no_attributes():
    module = Experts(False)
    attributes = {*vars(module)}
    replaced = cutegemm.use(Block(module))
    assert replaced.replaced
    replaced.undo()
    assert {*vars(module)} == attributes


def test_experts_on_the_cpu_are_refused():
    with pytest.raises(UnsupportedError, match=r"layers are on cpu, .* Call model.cuda\(\) first"):
        cutegemm.prepare(Block(Experts(False)), rows=[8])


@pytest.mark.parametrize("layout", ["nn", "nt"])
def test_calls_of_grouped_mm_need_no_other_kernels(launched, layout):
    operands = Operands.of("bf16", layout=layout)
    found = kernels_of_groups([(1, 512, 256)], range(1, 3000), 4, operands, DEFAULT_DEVICE)
    keys = {plan.key() for plan, _ in found}
    for count in (1, 5, 127, 128, 500, 2999):
        a, b = torch.zeros(count, 256).bfloat16(), torch.zeros(4, 512, 256).bfloat16().mT
        b = b if layout == "nt" else b.contiguous()
        cutegemm.grouped_mm(a, b, offs=torch.zeros(4, dtype=torch.int32))
        ((plan, _),) = kernels_of_groups([(count, 512, 256)], None, 4, operands, DEFAULT_DEVICE)
        assert launched[-1].key() == plan.key()
    assert {plan.key() for plan in launched} <= keys
    assert len(keys) > 1


def test_all_classes_are_sampled():
    """Each number of rows is in the class of a sample, for some groups and numbers of experts of each token."""
    for k, groups in ((1, 1), (2, 8), (6, 64), (3, 7)):
        counts = range(5, 700)
        classes = {launch.size_class(count * k, groups) for count in sampled_rows(counts, k, groups)}
        assert classes == {launch.size_class(count * k, groups) for count in counts}
    assert sampled_rows([9, 3], 1, 1) == [3, 9]


def test_rows_without_a_compiler_take_a_library_or_torch(launched, monkeypatch):
    index = torch.tensor([[2, 0], [0, 2]])
    monkeypatch.setattr(rows, "has_dsl", lambda: False)
    monkeypatch.setattr(rows.exported, "loaded", lambda kernel, arch: None)
    place, _ = rows.placed(index, 3)
    assert (place.tolist(), launched) == ([2, 0, 1, 3], [])
    monkeypatch.setattr(rows.exported, "loaded", lambda kernel, arch: print)
    rows.placed(index, 3)
    assert launched == [SortRows(3, 64)]
