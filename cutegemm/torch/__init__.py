"""PyTorch API: products by the names that torch gives them, with activations, gradients and `torch.compile`.

functions of tensors              `functional`, `mlps`, `scaled`, `block_scales`, `quantization`; `gemm` for
                                  `cutegemm.gemm`; `checks`
grouped GEMMs                     `grouped`, and `grouped.experts` for mixtures of experts
modules                           `modules`; `fallback` to torch; `models` replaces the modules of other libraries
operators of torch.library        `library`
dispatch and gradients            `dispatch`, `autograd`
kernels, and the same by torch    `launch`, `reference`, `quantized`
epilogues                         `epilogue` as text, `activations` by name, `derivatives`

See docs/torch.md.
"""

from cutegemm.errors import how_to_install as _how_to_install

try:
    import torch as _torch  # noqa: F401 - for an error with advice if torch is not installed
except ImportError as error:
    raise ImportError(f"cutegemm.torch needs torch. {_how_to_install('torch')}") from error

from cutegemm.torch.functional import addmm, bmm, gemm_act, gemm_dact, gemm_dgated, gemm_gated, linear, mm
from cutegemm.torch.grouped.experts import experts
from cutegemm.torch.grouped.functional import grouped_mm
from cutegemm.torch.grouped.scaled import scaled_grouped_mm
from cutegemm.torch.mlps import mlp
from cutegemm.torch.models import Replaced, use
from cutegemm.torch.modules import GatedMLP, Linear
from cutegemm.torch.quantization import from_deep_gemm, quantize
from cutegemm.torch.scaled import scaled_mm

__all__ = [
    "GatedMLP",
    "Linear",
    "Replaced",
    "addmm",
    "bmm",
    "experts",
    "from_deep_gemm",
    "gemm_act",
    "gemm_dact",
    "gemm_dgated",
    "gemm_gated",
    "grouped_mm",
    "linear",
    "mlp",
    "mm",
    "quantize",
    "scaled_grouped_mm",
    "scaled_mm",
    "use",
]
