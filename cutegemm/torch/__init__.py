"""PyTorch API: products by the names that torch gives them, with activations, gradients and `torch.compile`.

functions of tensors              `functional`, `mlps`, `scaled`, `block_scales`, `quantization`; `gemm` for
                                  `cutegemm.gemm`; `checks`
grouped GEMMs                     `grouped`, and `grouped.experts` for mixtures of experts
modules                           `modules`; `fallback` to torch; `models` replaces the modules of other libraries
operators of torch.library        `library`
dispatch and gradients            `dispatch`, `autograd`
several GPUs                      `distributed`, imported at first use
kernels, and the same by torch    `launch`, `reference`, `quantized`
epilogues                         `epilogue` as text, `activations` by name, `derivatives`

See docs/torch.md.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING
from typing import Any as _Any

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
_OF_SEVERAL_GPUS = (  # not in `__all__`: `import *` must work if torch has no torch.distributed
    "ColumnParallel",
    "ColumnParallelLinear",
    "RowParallel",
    "RowParallelLinear",
    "all_gather_mm",
    "mm_all_reduce",
    "mm_reduce_scatter",
    "replicated_mm",
)

if TYPE_CHECKING:  # the names of `_OF_SEVERAL_GPUS`, for type checkers and editors
    from cutegemm.torch.distributed import ColumnParallel as ColumnParallel
    from cutegemm.torch.distributed import ColumnParallelLinear as ColumnParallelLinear
    from cutegemm.torch.distributed import RowParallel as RowParallel
    from cutegemm.torch.distributed import RowParallelLinear as RowParallelLinear
    from cutegemm.torch.distributed import all_gather_mm as all_gather_mm
    from cutegemm.torch.distributed import mm_all_reduce as mm_all_reduce
    from cutegemm.torch.distributed import mm_reduce_scatter as mm_reduce_scatter
    from cutegemm.torch.distributed import replicated_mm as replicated_mm
else:

    def __getattr__(name: str) -> _Any:
        """Import `distributed`, or one of its names, when it is first used.

        raises   AttributeError for another name
        """
        if name in _OF_SEVERAL_GPUS or name == "distributed":
            module = _import_module("cutegemm.torch.distributed")
            return module if name == "distributed" else getattr(module, name)
        raise AttributeError(f"module 'cutegemm.torch' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the sorted names of this module, including those that are not imported yet."""
    return sorted({*globals(), *_OF_SEVERAL_GPUS, "distributed"})
