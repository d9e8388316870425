"""Every function of the API for torch, as a function of A, M x K, and B, K x N, where K is at least 2 N."""

from __future__ import annotations

import torch

import cutegemm
from cutegemm.epilogue import gelu

N = 136  # columns of B


def _scaled_mm(a, b):
    of_rows, of_columns = a.float().abs().amax(1, keepdim=True), b.float().abs().amax(0, keepdim=True)
    a, b = (
        (a / of_rows).to(torch.float8_e4m3fn),
        (b / of_columns).t().contiguous().to(torch.float8_e4m3fn).t(),
    )
    return cutegemm.scaled_mm(a, b, of_rows, "RowWise", of_columns, "RowWise")


def _halves(b):
    """Gate and up, as two weights by columns."""
    return b[:, : N // 2].t().contiguous().t(), b[:, N // 2 :].t().contiguous().t()


FUNCTIONS = {
    "mm": cutegemm.mm,
    "bmm": lambda a, b: cutegemm.bmm(torch.stack([a, -a]), torch.stack([b, b])),
    "addmm": lambda a, b: cutegemm.addmm(b[0], a, b, alpha=0.5, beta=2.0),
    "linear": lambda a, b: cutegemm.linear(a, b.t(), b[0], "gelu"),
    "linear of batches": lambda a, b: cutegemm.linear(a[None], b.t().contiguous(), b[0], "silu"),
    "gemm_act": lambda a, b: cutegemm.gemm_act(a, b, b[0], activation="relu"),
    "gemm_gated": lambda a, b: cutegemm.gemm_gated(a, _halves(b), activation="swiglu"),
    "gemm_dact": lambda a, b: cutegemm.gemm_dact(a, b, a[:, :N], "gelu"),
    "gemm_dgated": lambda a, b: cutegemm.gemm_dgated(a, b, a[:, : 2 * N], "swiglu"),
    "scaled_mm": _scaled_mm,
    "mlp": lambda a, b: cutegemm.mlp(a, b.t(), b, "gelu_tanh"),
    "gated mlp": lambda a, b: cutegemm.mlp(a, tuple(w.t() for w in _halves(b)), b[:, : N // 2], "swiglu"),
    "gemm": lambda a, b: cutegemm.gemm(a, b, c=a[:, :N], alpha=0.5, beta=2.0),
    "gemm with an epilogue": lambda a, b: cutegemm.gemm(a, b, epilogue=lambda acc, r: gelu(acc + r), r=b[0]),
    "two products": lambda a, b: cutegemm.mm(cutegemm.mm(a, b), b.t()),
}


class Of(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, a, b):
        return self.function(a, b)


def results(found):
    """The tensors among what a function returns, in memory of their own."""
    return [each.clone() for each in (found if isinstance(found, tuple) else (found,)) if each is not None]
