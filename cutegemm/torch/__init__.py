"""The face to torch: products as torch names them, with activations, gradients and `torch.compile`. See docs/torch.md.

functions of tensors      `functional`, `mlps` and `scaled`
modules                   `modules`; `replace` puts them into a model
what a graph holds        `library`: operators of torch.library
how a call gets there     `route`: past torch's dispatcher where torch needs to see nothing of it
what is computed          `launch`: by `gemm` on CUDA tensors, else by torch
of an epilogue            `text` as text; `values` by torch; `pullback` its derivatives; `gradients` those of a product
"""

try:
    import torch as _torch  # noqa: F401 - asked for here, so that it is missed in words
except ImportError as error:
    raise ImportError("cutegemm.torch needs torch: pip install 'cutegemm[torch]'") from error

from cutegemm.torch.functional import (
    addmm,
    bmm,
    gemm_act,
    gemm_dact,
    gemm_dgated,
    gemm_gated,
    linear,
    mm,
)
from cutegemm.torch.mlps import mlp
from cutegemm.torch.modules import GatedMLP, Linear
from cutegemm.torch.replace import Replaced, use
from cutegemm.torch.scaled import scaled_mm

__all__ = [
    "GatedMLP",
    "Linear",
    "Replaced",
    "addmm",
    "bmm",
    "gemm_act",
    "gemm_dact",
    "gemm_dgated",
    "gemm_gated",
    "linear",
    "mlp",
    "mm",
    "scaled_mm",
    "use",
]
