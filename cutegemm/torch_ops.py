"""What `gemm` needs to know of torch."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

import torch
import torch.utils.dlpack

from cutegemm.dtypes import DType, bf16, f16, f32, f64
from cutegemm.errors import UnsupportedError

DTYPES: dict[torch.dtype, DType] = {
    torch.float16: f16,
    torch.bfloat16: bf16,
    torch.float32: f32,
    torch.float64: f64,
}

# By compute capability: the name that the compiler is told, with every instruction of that device.
_ARCHS = {
    (8, 0): "sm_80",
    (8, 6): "sm_86",
    (8, 9): "sm_89",
    (9, 0): "sm_90a",
    (10, 0): "sm_100a",
    (12, 0): "sm_120a",
}


@cache
def device_arch(index: int) -> str:
    """The architecture of a CUDA device.

    raises   UnsupportedError for a device that no plan is made for
    """
    capability = torch.cuda.get_device_capability(index)
    if capability not in _ARCHS:
        known = ", ".join(f"{major}.{minor}" for major, minor in _ARCHS)
        raise UnsupportedError(
            f"gemm: {torch.cuda.get_device_name(index)} has compute capability "
            f"{capability[0]}.{capability[1]}; devices of capability {known} are served."
        )
    return _ARCHS[capability]


@cache
def devices() -> int:
    """How many CUDA devices this process sees."""
    return torch.cuda.device_count()


@cache
def multiprocessors(index: int) -> int:
    """How many multiprocessors a CUDA device has."""
    return int(torch.cuda.get_device_properties(index).multi_processor_count)


def tensor_of(value: Any, name: str) -> torch.Tensor:
    """A torch tensor over the same memory.

    raises   UnsupportedError for what is neither a torch tensor nor speaks DLPack
    """
    if isinstance(value, torch.Tensor):
        return value
    if not hasattr(value, "__dlpack__"):
        raise UnsupportedError(
            f"gemm: {name} is a {type(value).__name__}; a torch tensor, or an array with DLPack such as "
            "CuPy's, is expected."
        )
    try:
        return torch.utils.dlpack.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise UnsupportedError(
            f"gemm: {name}, a {type(value).__name__}, does not come over DLPack: {error}"
        ) from error


def like(example: Any, result: torch.Tensor) -> Any:
    """A tensor as an array of the framework of `example`, whose current stream then waits for it."""
    if isinstance(example, torch.Tensor):
        return result
    framework = sys.modules.get(type(example).__module__.split(".")[0])
    convert = getattr(framework, "from_dlpack", None)
    return result if convert is None else convert(result)
