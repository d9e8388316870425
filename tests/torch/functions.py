"""Every function of tensors, with shapes that it takes: what tests of all of them go through."""

from __future__ import annotations

import torch

import cutegemm
from cutegemm.epilogue import column_max, row_sum, tanh, total_sum
from cutegemm.torch import addmm, bmm, gemm_act, gemm_dact, gemm_dgated, gemm_gated, linear, mlp, mm
from tests.torch.cases import normal

# name: (function of tensors, their shapes)
FUNCTIONS = {
    "mm": (mm, [(3, 4), (4, 6)]),
    "bmm": (bmm, [(2, 3, 4), (2, 4, 6)]),
    "bmm, one matrix": (bmm, [(2, 3, 4), (4, 6)]),
    "addmm": (lambda *t: addmm(*t, alpha=0.5, beta=2), [(3, 6), (3, 4), (4, 6)]),
    "addmm of a row": (addmm, [(6,), (3, 4), (4, 6)]),
    "addmm without input": (lambda *t: addmm(*t, beta=0), [(6,), (3, 4), (4, 6)]),
    "linear": (linear, [(2, 3, 4), (6, 4), (6,)]),
    "linear, gelu": (lambda *t: linear(*t, "gelu"), [(3, 4), (6, 4), (6,)]),
    "gemm": (cutegemm.gemm, [(3, 4), (4, 6)]),
    "gemm with c": (lambda a, b, c: cutegemm.gemm(a, b, c=c, alpha=0.5, beta=-2.0), [(3, 4), (4, 6), (3, 6)]),
    "gemm with an epilogue": (
        lambda a, b, e: cutegemm.gemm(a, b, epilogue=lambda acc, e: (tanh(acc + e), acc * e), e=e),
        [(3, 4), (4, 6), (6,)],
    ),
    "gemm with sums": (
        lambda a, b, e: cutegemm.gemm(
            a, b, epilogue=lambda acc, e: (acc * e, row_sum(tanh(acc + e)), column_max(acc), total_sum(acc * e)), e=e
        ),
        [(2, 3, 4), (2, 4, 6), (6,)],
    ),
    "gemm_act": (lambda *t: gemm_act(*t, "gelu"), [(3, 4), (4, 6), (6,), (3, 6)]),
    "gemm_gated": (gemm_gated, [(3, 4), (4, 6), (6,)]),
    "gemm_gated, two weights": (lambda a, g, u: gemm_gated(a, (g, u), store_preact=False)[1], [(3, 4), (4, 3), (4, 3)]),
    "gemm_gated, parts of one": (
        lambda a, g, u: gemm_gated(a, (torch.cat([g, u], 1)[:, :3], torch.cat([g, u], 1)[:, 3:]))[1],
        [(3, 4), (4, 3), (4, 3)],
    ),
    "gemm_gated, a residual of pairs": (
        lambda a, b, c, s: gemm_gated(a, b, interleaved=True, c=c, alpha=s), [(3, 4), (4, 6), (3, 6), (1,)]
    ),
    "gemm_dact": (lambda *t: gemm_dact(*t, "gelu"), [(3, 4), (4, 6), (3, 6)]),
    "gemm_dact, scaled and summed": (
        lambda a, b, x, s: gemm_dact(a, b, x, "tanh", colvec_scale=s, colvec_reduce=True),
        [(3, 4), (4, 6), (3, 6), (3,)],
    ),
    "gemm_dgated": (gemm_dgated, [(3, 4), (4, 6), (3, 12)]),
    "gemm_dgated, scaled and summed": (
        lambda a, b, x, s: gemm_dgated(a, b, x, "glu", True, colvec_scale=s, colvec_reduce=True),
        [(3, 4), (4, 6), (3, 12), (3, 1)],
    ),
    "mlp": (lambda *t: mlp(*t[:3], "gelu", *t[3:]), [(3, 4), (6, 4), (5, 6), (6,), (5,)]),
    "gated mlp": (lambda x, g, u, d: mlp(x, (g, u), d, "swiglu"), [(3, 4), (6, 4), (6, 4), (5, 6)]),
    "interleaved mlp": (lambda x, u, d: mlp(x, u, d, "swiglu", interleaved=True), [(3, 4), (12, 4), (5, 6)]),
}  # fmt: skip


def differentiable(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    """Tensors of float64 that want gradients."""
    return [normal(*shape, seed=i, grad=True) for i, shape in enumerate(shapes)]
