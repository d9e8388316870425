"""FlopCounterMode counts for our functions what it counts for torch's, forward and backward."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode, flop_registry  # noqa: E402

import cutegemm  # noqa: E402
from cutegemm.torch import library  # noqa: E402
from cutegemm.torch.grouped import library as grouped  # noqa: E402
from cutegemm.torch.grouped import mixture_library as mixtures  # noqa: E402
from tests.torch.cases import normal  # noqa: E402


def counted(function, *given, backward=True):
    given = [t.detach().clone().requires_grad_(backward) for t in given]
    with FlopCounterMode(display=False) as counter:
        result = function(*given)
        if backward:
            result.sum().backward()
    return counter.get_total_flops()


def gated(x, gate, up):
    return F.silu(F.linear(x, gate)) * F.linear(x, up)


M, N, K = 5, 6, 8
X, W, U, BIAS, C = normal(M, K), normal(N, K), normal(N, K, seed=1), normal(N), normal(M, N)
DOWN, BATCH, OTHERS = normal(K, N), normal(3, M, K), normal(3, K, N)
CASES = {
    "mm": (cutegemm.mm, torch.mm, (X, W.t())),
    "bmm": (cutegemm.bmm, torch.bmm, (BATCH, OTHERS)),
    "bmm, one matrix": (cutegemm.bmm, torch.matmul, (BATCH, W.t())),
    "addmm": (cutegemm.addmm, torch.addmm, (C, X, W.t())),
    "gemm": (lambda a, b, c: cutegemm.gemm(a, b, c=c, beta=2.0), lambda a, b, c: 2 * c + a @ b, (X, W.t(), C)),
    "linear": (cutegemm.linear, F.linear, (BATCH, W, BIAS)),
    "gelu": (lambda *t: cutegemm.linear(*t, "gelu"), lambda *t: F.gelu(F.linear(*t)), (BATCH, W, BIAS)),
    "gemm_act": (
        lambda a, b, bias, c: sum(cutegemm.gemm_act(a, b, bias, c, "silu")),
        lambda a, b, bias, c: F.silu(a @ b + bias + c),
        (BATCH, OTHERS, BIAS, C),
    ),
    "gemm_gated": (
        lambda x, gate, up: cutegemm.gemm_gated(x, (gate.t(), up.t()), store_preact=False)[1],
        gated,
        (X, W, U),
    ),
    "mlp": (
        lambda x, up, down: cutegemm.mlp(x, up, down, "gelu"),
        lambda x, up, down: F.linear(F.gelu(F.linear(x, up)), down),
        (X, W, DOWN),
    ),
    "gated mlp": (
        lambda x, gate, up, down: cutegemm.mlp(x, (gate, up), down, "swiglu"),
        lambda x, gate, up, down: F.linear(gated(x, gate, up), down),
        (X, W, U, DOWN),
    ),
}  # fmt: skip


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_as_many_as_of_torch(name, backward, monkeypatch):
    monkeypatch.setattr("cutegemm.torch.gemm.wrong_devices", lambda given: [])  # of `gemm`, as if the CPU were a GPU
    ours, theirs, given = CASES[name]
    found = counted(ours, *given, backward=backward)
    assert found == counted(theirs, *given, backward=backward) > 0


def test_by_hand():
    """2MNK; L times in a batch; all N columns of a gated product; a backward pass has two products of each."""
    assert counted(cutegemm.mm, X, W.t(), backward=False) == 2 * M * N * K
    assert counted(cutegemm.bmm, BATCH, OTHERS, backward=False) == 3 * 2 * M * N * K
    assert counted(lambda x, w: cutegemm.gemm_gated(x, w.t())[1], X, W) == 3 * 2 * M * N * K
    by_bytes = [t.to(torch.float8_e4m3fn) for t in (X, W)]
    scale = torch.tensor(1.0)
    with FlopCounterMode(display=False) as counter:
        cutegemm.scaled_mm(by_bytes[0], by_bytes[1].t(), scale, "TensorWise", scale, "TensorWise")
        cutegemm.mm(X, W.t(), out=torch.empty(M, N, dtype=X.dtype))
        cutegemm.addmm(C, X, W.t(), out=torch.empty(M, N, dtype=X.dtype))
        cutegemm.gemm_dact(X, W.t(), C, "relu")
        cutegemm.gemm_dgated(X, W.t(), normal(M, 2 * N))
    assert counter.get_total_flops() == 5 * 2 * M * N * K


def test_a_model_that_use_has_replaced():
    model = nn.Sequential(nn.Linear(K, N), nn.GELU(), nn.Linear(N, K)).double()
    before = counted(model, X)
    with cutegemm.use(model):
        assert counted(model, X) == before == 6 * 2 * M * N * K
    with FlopCounterMode(display=False) as counter:
        torch.ops.cutegemm.mm_parts(normal(M, N), [W[:2].t(), W[2:].t()])
        torch.ops.cutegemm.gemm_dgated(X, W.t(), normal(M, 2 * N), "swiglu")
    assert counter.get_total_flops() == 2 * 2 * M * N * K


def test_every_operator_has_a_formula():
    for name in (*library.SCHEMAS, *grouped.SCHEMAS, *mixtures.SCHEMAS):
        assert getattr(torch.ops.cutegemm, name.partition("::")[2]) in flop_registry
