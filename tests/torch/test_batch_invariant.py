"""The mode `cutegemm.batch_invariant`: which calls are in it, what they launch, and what is refused."""

from __future__ import annotations

import contextlib
import threading
from functools import partial

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402

import cutegemm  # noqa: E402
from cutegemm import UnsupportedError, batch_invariant, gemm, linear, use  # noqa: E402
from cutegemm.epilogue import gelu  # noqa: E402
from cutegemm.run import calls  # noqa: E402
from cutegemm.run import gemm as launch  # noqa: E402
from cutegemm.run.calls import Calls, is_batch_invariant  # noqa: E402
from cutegemm.torch import functional, library  # noqa: E402, F401
from tests.noted import note_launches  # noqa: E402

N, K = 1024, 4096
WEIGHT = torch.zeros(N, K, dtype=torch.bfloat16)


@pytest.fixture
def kernels(monkeypatch):
    """The kernels that `gemm` launches, as if the CPU were a GPU."""
    monkeypatch.setattr(functional, "_layers", Calls())
    return note_launches(monkeypatch, 132)


def rows(count):
    return torch.zeros(count, K, dtype=torch.bfloat16)


def orders(kernels):
    problems = (cutegemm.Problem(64, 64, K) for _ in kernels)
    return {kernel.plan.accumulation_order(problem) for kernel, problem in zip(kernels, problems, strict=True)}


CALLS = {
    "gemm": lambda x, **how: gemm(x, WEIGHT.mT, **how),
    "gemm of a layer": lambda x, **how: gemm(x, WEIGHT.mT, varying_rows=True, **how),
    "gemm with c": lambda x, **how: gemm(x, WEIGHT.mT, c=torch.zeros(len(x), N, dtype=x.dtype), beta=1.0, **how),
    "epilogue": lambda x, **how: gemm(
        x, WEIGHT.mT, epilogue=lambda acc, bias: gelu(acc + bias), bias=WEIGHT[:, 0], **how
    ),
}  # fmt: skip


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_one_order_for_all_numbers_of_rows(kernels, call):
    for count in (1, 16, 64, 512, 4096):
        call(rows(count))
    assert len(orders(kernels)) > 1
    kernels.clear()
    for count in (1, 16, 64, 512, 4096):
        call(rows(count), batch_invariant=True)
    assert len(orders(kernels)) == 1
    with batch_invariant():
        call(rows(1))
    assert len(orders(kernels)) == 1


def test_layers(kernels):
    """`linear` for tensors on a GPU is a function of `gemm.layer`, by the signature of the call."""
    for mode in (False, True):
        kernels.clear()
        for count in (1, 64, 4096):
            launch.layer(rows(count), WEIGHT, batch_invariant=mode)(rows(count), WEIGHT, None)
            launch.layer(rows(count), WEIGHT, WEIGHT[:, 0].contiguous(), functional._function("gelu", True), mode)
        assert (len(orders(kernels)) == 1) == mode


def test_the_mode_is_in_the_signature(kernels):
    for _ in range(2):
        for mode in (None, False, True):
            gemm(rows(1), WEIGHT.mT, batch_invariant=mode)
    assert len(kernels) == 2
    with batch_invariant():
        gemm(rows(1), WEIGHT.mT)
        gemm(rows(1), WEIGHT.mT, batch_invariant=False)
    assert len(kernels) == 2


def test_contexts():
    """Contexts may be nested and overlap; an error leaves them. All threads are in them."""
    assert not is_batch_invariant()
    with batch_invariant():
        with batch_invariant():
            assert is_batch_invariant()
        assert is_batch_invariant()
        assert not is_batch_invariant(False)
        seen = []
        thread = threading.Thread(target=lambda: seen.append(is_batch_invariant()))
        thread.start()
        thread.join()
        assert seen == [True]
    assert not is_batch_invariant()
    with contextlib.suppress(KeyError), batch_invariant():
        raise KeyError
    assert not is_batch_invariant()
    first, second = batch_invariant(), batch_invariant()
    first.__enter__(), second.__enter__()
    first.__exit__(None, None, None)
    assert is_batch_invariant()
    second.__exit__(None, None, None)
    assert not calls.ENTERED


def test_a_wrong_value_is_refused(kernels):
    with pytest.raises(UnsupportedError, match="batch_invariant = 'yes' is not a bool"):
        gemm(rows(1), WEIGHT.mT, batch_invariant="yes")


# --- what torch would compute --------------------------------------------------------------------------------------

SMALL = torch.ones(3, 8), torch.ones(4, 8)
BY_TORCH = {
    "linear": lambda: linear(*SMALL, batch_invariant=True),
    "mm": lambda: cutegemm.mm(SMALL[0], SMALL[1].mT),
    "bmm": lambda: cutegemm.bmm(SMALL[0][None], SMALL[1].mT[None]),
    "addmm": lambda: cutegemm.addmm(torch.ones(4), SMALL[0], SMALL[1].mT),
    "gemm_act": lambda: cutegemm.gemm_act(SMALL[0], SMALL[1].mT),
    "gemm_gated": lambda: cutegemm.gemm_gated(SMALL[0], SMALL[1].mT),
    "gemm_dact": lambda: cutegemm.gemm_dact(SMALL[0], SMALL[1].mT, torch.ones(3, 4)),
    "gemm_dgated": lambda: cutegemm.gemm_dgated(SMALL[0], SMALL[1].mT, torch.ones(3, 8)),
    "mlp": lambda: cutegemm.mlp(SMALL[0], SMALL[1], torch.ones(8, 4), "gelu"),
    "operator": lambda: torch.ops.cutegemm.mm_parts(SMALL[0], [SMALL[1].mT], None, True),
    "module": lambda: cutegemm.Linear(8, 4)(SMALL[0]),
    "gated": lambda: cutegemm.GatedMLP(8, 4)(SMALL[0]),
    "jvp": lambda: torch.func.jvp(lambda x: linear(x, SMALL[1]), (SMALL[0],), (SMALL[0],)),
    "sparse": lambda: cutegemm.Linear(8, 4)(SMALL[0].to_sparse()),
}


@pytest.mark.parametrize("name", BY_TORCH)
def test_what_torch_would_compute_is_refused(name):
    with batch_invariant(), pytest.raises((UnsupportedError, RuntimeError), match="torch would compute this"):
        BY_TORCH[name]()


def test_gradients_by_rows_are_in_the_mode_of_the_forward_pass(monkeypatch):
    """The backward pass runs outside of the context. The gradient by x has rows; the one by the weight adds them up."""
    seen = []

    def compute(a, b, text, operands, scalars, dtype, how):
        seen.append((tuple(a.shape), how.batch_invariant))
        return [torch.zeros(a.shape[0], b[0].shape[-1], dtype=a.dtype)]

    monkeypatch.setattr("cutegemm.torch.autograd.compute", compute)
    x, w = (each.clone().requires_grad_() for each in SMALL)
    with batch_invariant():
        y = linear(x, w)
    y.sum().backward()
    forward, by_x, by_w = ((3, 8), True), ((3, 4), True), ((4, 3), False)
    assert sorted(seen) == sorted([forward, by_x, by_w])


# --- models and graphs ---------------------------------------------------------------------------------------------


def test_models():
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
    with use(model, batch_invariant=True):
        with pytest.raises(UnsupportedError, match="torch would compute this"):
            model(SMALL[0])
        assert [module.batch_invariant for module in model if hasattr(module, "batch_invariant")] == [True, True]
    model(SMALL[0])
    assert not any("batch_invariant" in vars(module) for module in model.modules())
    with use(model):
        model(SMALL[0])


def test_a_model_with_a_layer_that_torch_computes_is_refused():
    class Shifted(nn.Linear):
        pass

    model = nn.Sequential(nn.Linear(8, 16), Shifted(16, 8))
    with pytest.raises(UnsupportedError, match=r"Nothing is replaced.\n  - 1: Shifted, a subclass"):
        use(model, batch_invariant=True)
    assert type(model[0]) is nn.Linear


def test_graphs_have_the_mode_as_an_argument_and_are_guarded():
    """A function that was compiled outside of the context is compiled again in it."""
    options = []

    def keep(graph, inputs):
        options.extend(node.args[-1] for node in graph.graph.nodes if "cutegemm.gemm" in str(node.target))
        options.extend("mm" for node in graph.graph.nodes if "cutegemm.mm" in str(node.target))
        return graph

    torch._dynamo.reset()
    compiled = torch.compile(lambda x: linear(x, SMALL[1]), backend=keep, fullgraph=True)
    compiled(SMALL[0])
    with batch_invariant(), pytest.raises((UnsupportedError, RuntimeError), match="torch would compute this"):
        compiled(SMALL[0])
    compiled(SMALL[0])
    assert options == ["mm", True]
    inside = torch.compile(partial(_in_context, SMALL[1]), backend=keep, fullgraph=True)
    with pytest.raises((UnsupportedError, RuntimeError), match="torch would compute this"):
        inside(SMALL[0])
    assert options == ["mm", True, True]
    assert not is_batch_invariant()


def _in_context(w, x):
    with batch_invariant():
        return linear(x, w)
