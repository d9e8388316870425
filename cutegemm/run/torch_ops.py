"""What `gemm` and the command line need of torch."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
import torch.utils.dlpack

from cutegemm.compile.cuda import multiprocessors
from cutegemm.dtypes import DType, bf16, e4m3, e5m2, f16, f32, f64, s8, s32, tf32
from cutegemm.errors import UnsupportedError
from cutegemm.machine.device import Device, device_called
from cutegemm.plan.problem import Operands

DTYPES: dict[torch.dtype, DType] = {
    torch.float16: f16,
    torch.bfloat16: bf16,
    torch.float32: f32,
    torch.float64: f64,
    torch.float8_e4m3fn: e4m3,
    torch.float8_e5m2: e5m2,
    torch.int8: s8,
    torch.int32: s32,
}
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
# What may be multiplied, and the types of the result; the first where no c and no out say otherwise.
RESULTS: dict[torch.dtype, tuple[torch.dtype, ...]] = {
    torch.float16: (torch.float16, torch.float32, torch.bfloat16, *FLOAT8),
    torch.bfloat16: (torch.bfloat16, torch.float32, torch.float16, *FLOAT8),
    torch.float32: (torch.float32, torch.float16, torch.bfloat16),
    torch.float64: (torch.float64,),
    torch.float8_e4m3fn: (torch.bfloat16, torch.float16, torch.float32, *FLOAT8),
    torch.float8_e5m2: (torch.bfloat16, torch.float16, torch.float32, *FLOAT8),
    torch.int8: (torch.int32, torch.float32),
}


FLOATS = tuple([dtype for dtype in DTYPES if dtype.is_floating_point])  # of auxiliary results


def reduced_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the type of sums and maxima over rows or columns, by that of a."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def result_dtypes(
    dtype: torch.dtype, reduces: Sequence[bool], out_dtype: Any, passed: Sequence[torch.dtype | None] = ()
) -> list[torch.dtype]:
    """Return the type of each result of an epilogue.

    dtype      of a
    reduces    for each result, whether it is a sum or a maximum
    out_dtype  a type, or None, of D and of auxiliary results; or a sequence of one for each of the first results
    passed     types of the caller's tensors for the first results; None for a new tensor

    >>> result_dtypes(torch.bfloat16, (False, False, True), (torch.float16, torch.float32))
    [torch.float16, torch.float32, torch.float32]
    >>> result_dtypes(torch.bfloat16, (False, False), None, (torch.float32,))
    [torch.float32, torch.float32]
    """
    asked = list(out_dtype) if isinstance(out_dtype, (tuple, list)) else [out_dtype]
    kinds = [*[of or kind for of, kind in zip_longest(passed, asked)], *[None] * len(reduces)]
    of_d = kinds[0] or RESULTS[dtype][0]
    wide = reduced_dtype(dtype)
    return [wide if is_reduced else kind or of_d for is_reduced, kind in zip(reduces, kinds, strict=False)]


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
def device_of(index: int) -> Device:
    """What a plan is chosen by: the rates of a CUDA device."""
    return device_called(torch.cuda.get_device_name(index), device_arch(index), multiprocessors(index))


def tensors_of(given: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Torch tensors over the same memory, by name.

    raises   UnsupportedError with all that are neither torch tensors nor speak DLPack, or have negative strides,
             which torch has none of
    """
    tensors, wrong = {}, []
    for name, value in given.items():
        strides = getattr(value, "strides", None)
        if isinstance(value, torch.Tensor):
            tensors[name] = value
        elif not hasattr(value, "__dlpack__"):
            wrong.append(
                f"{name} is a {type(value).__name__}; a torch tensor, or an array with DLPack such as CuPy's, is "
                "expected."
            )
        elif isinstance(strides, tuple) and any(stride < 0 for stride in strides):  # torch would end the process
            wrong.append(f"{name} has strides of {strides} bytes; none may be negative. Pass a copy of it.")
        else:
            try:
                tensors[name] = torch.utils.dlpack.from_dlpack(value)
            except (BufferError, RuntimeError, TypeError, ValueError) as error:
                wrong.append(f"{name}, a {type(value).__name__}, does not come over DLPack: {error}")
    if wrong:
        raise UnsupportedError("gemm: " + "\n  ".join(wrong))
    return tensors


def like(example: Any, result: torch.Tensor) -> Any:
    """A tensor as an array of the framework of `example`, whose current stream then waits for it."""
    if isinstance(example, torch.Tensor):
        return result
    named = getattr(example, "__array_namespace__", None)  # of the array API standard
    framework = sys.modules.get(type(example).__module__.split(".")[0]) if named is None else named()
    convert = getattr(framework, "from_dlpack", None)
    return result if convert is None else convert(result)


def from_numpy(
    a: np.ndarray, b: np.ndarray, c: np.ndarray | None, operands: Operands
) -> dict[str, torch.Tensor | None]:
    """Tensors "a", "b", "c" and "out" on the current device, of the types and majorness of `operands`."""
    majors = {"a": operands.a.major == "m", "b": operands.b.major == "k", "c": operands.c.major == "m"}
    kinds = {"a": operands.a.dtype, "b": operands.b.dtype, "c": operands.c.dtype}
    tensors: dict[str, torch.Tensor | None] = {"c": None}
    for name, array in (("a", a), ("b", b), ("c", c)):
        if array is not None:
            tensors[name] = _placed(torch.from_numpy(np.ascontiguousarray(array)), kinds[name], majors[name])
    shape = (*a.shape[:-1], b.shape[-1])
    tensors["out"] = _placed(torch.empty(shape), operands.d.dtype, operands.d.major == "m")
    return tensors


def memory_of(kind: DType) -> torch.dtype:
    """What elements of a type are in torch: those of tf32 are float32.

    raises   UnsupportedError for a type that no kernel takes

    >>> memory_of(tf32)
    torch.float32
    """
    known = {ours: theirs for theirs, ours in DTYPES.items()} | {tf32: torch.float32}
    if kind not in known:
        raise UnsupportedError(f"{kind} is not among the types that run: {', '.join(map(str, known))}.")
    return known[kind]


def _placed(tensor: torch.Tensor, kind: DType, transposed: bool) -> torch.Tensor:
    moved = tensor.to("cuda", memory_of(kind))
    return moved.mT.contiguous().mT if transposed else moved
