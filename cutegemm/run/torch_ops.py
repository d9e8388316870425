"""Element types, devices and tensor conversions of torch, for `gemm` and the command line."""

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
from cutegemm.plan.epilogue import Expression
from cutegemm.plan.epilogue.quantized import Quantized
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
# Types of a and b -> types that the result may have. The first is the default, if neither c nor out is passed.
RESULTS: dict[torch.dtype, tuple[torch.dtype, ...]] = {
    torch.float16: (torch.float16, torch.float32, torch.bfloat16, *FLOAT8),
    torch.bfloat16: (torch.bfloat16, torch.float32, torch.float16, *FLOAT8),
    torch.float32: (torch.float32, torch.float16, torch.bfloat16),
    torch.float64: (torch.float64,),
    torch.float8_e4m3fn: (torch.bfloat16, torch.float16, torch.float32, *FLOAT8),
    torch.float8_e5m2: (torch.bfloat16, torch.float16, torch.float32, *FLOAT8),
    torch.int8: (torch.int32, torch.float32),
}


FLOATS = tuple([dtype for dtype in DTYPES if dtype.is_floating_point])  # types of auxiliary outputs


def reduced_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the torch dtype of reductions such as row sums, if the factor a has the type `dtype`.

    It is float64 for float64, else float32.
    """
    return torch.float64 if dtype == torch.float64 else torch.float32


def result_dtypes(
    dtype: torch.dtype, reduces: Sequence[bool], out_dtype: Any, passed: Sequence[torch.dtype | None] = ()
) -> list[torch.dtype]:
    """Return the torch dtype of each result of an epilogue.

    dtype       type of a
    reduces     for each result, True if it is a reduction, such as a sum of rows, or the scales of a quantized D
    out_dtype   type of D and of all auxiliary outputs; None for the default; or a sequence with a type or None for
                each of the first results
    passed      for the first results, the type of the tensor that the caller passed as `out`, which is used instead
                of `out_dtype`; None for a result that gets a new tensor

    >>> result_dtypes(torch.bfloat16, (False, False, True), (torch.float16, torch.float32))
    [torch.float16, torch.float32, torch.float32]
    >>> result_dtypes(torch.bfloat16, (False, False), None, (torch.float32,))
    [torch.float32, torch.float32]
    """
    out_dtypes = list(out_dtype) if isinstance(out_dtype, (tuple, list)) else [out_dtype]
    dtypes = [*[own or chosen for own, chosen in zip_longest(passed, out_dtypes)], *[None] * len(reduces)]
    d_dtype = dtypes[0] or RESULTS[dtype][0]
    wide = reduced_dtype(dtype)
    return [wide if is_reduced else own or d_dtype for is_reduced, own in zip(reduces, dtypes, strict=False)]


def of_quantized(expression: Expression, out_dtype: Any) -> Any:
    """Return the argument `out_dtype` of a call, completed by the float8 type of D if the epilogue quantizes D.

    expression   expression of D, which names the type if it quantizes
    out_dtype    the user's argument; returned as it is if D is not quantized
    raises       UnsupportedError if `out_dtype` names another type

    >>> from cutegemm.plan.epilogue import Accumulator
    >>> of_quantized(Quantized(Accumulator(), e5m2), None), of_quantized(Accumulator(), None)
    ((torch.float8_e5m2, None), None)
    """
    if not isinstance(expression, Quantized):
        return out_dtype
    first, *others = out_dtype if isinstance(out_dtype, (tuple, list)) else (out_dtype,)
    dtype = memory_of(expression.dtype)
    if first not in (None, dtype):
        raise UnsupportedError(f"out_dtype names {first!r}, but {expression} is {dtype!r}. Leave out out_dtype.")
    return (dtype, *(others or [None]))


# Compute capability -> architecture to compile for, with the instructions that only this device has ("a").
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
    """Return the architecture of the CUDA device with this index, such as "sm_90a".

    raises   UnsupportedError for a device that cutegemm has no plans for
    """
    capability = torch.cuda.get_device_capability(index)
    if capability not in _ARCHS:
        known = ", ".join(f"{major}.{minor}" for major, minor in _ARCHS)
        raise UnsupportedError(
            f"gemm: {torch.cuda.get_device_name(index)} has compute capability {capability[0]}.{capability[1]}. Use a "
            f"device of capability {known}."
        )
    return _ARCHS[capability]


@cache
def device_of(index: int) -> Device:
    """Return the rates and sizes of the CUDA device with this index, which the choice of a plan depends on."""
    return device_called(torch.cuda.get_device_name(index), device_arch(index), multiprocessors(index))


def tensors_of(arrays: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Return torch tensors over the memory of arrays, by name. A torch tensor is returned as it is.

    arrays   torch tensors, or arrays of other frameworks with DLPack
    raises   UnsupportedError with every value that is neither, and every array with a negative stride, which torch does
             not support
    """
    tensors, wrong = {}, []
    for name, value in arrays.items():
        strides = getattr(value, "strides", None)
        if isinstance(value, torch.Tensor):
            tensors[name] = value
        elif not hasattr(value, "__dlpack__"):
            wrong.append(
                f"{name} is a {type(value).__name__}. Pass a torch tensor, or an array with DLPack such as CuPy's."
            )
        elif isinstance(strides, tuple) and any(stride < 0 for stride in strides):  # torch would abort the process
            wrong.append(f"{name} has a negative stride: {strides} bytes. Pass a copy of it.")
        else:
            try:
                tensors[name] = torch.utils.dlpack.from_dlpack(value)
            except (BufferError, RuntimeError, TypeError, ValueError) as error:
                wrong.append(f"{name}, a {type(value).__name__}, cannot be converted to torch by DLPack: {error}")
    if wrong:
        raise UnsupportedError("gemm: " + "\n  ".join(wrong))
    return tensors


def like(example: Any, result: torch.Tensor) -> Any:
    """Convert a torch tensor to an array of the framework of `example`; that framework's current stream waits for it.

    example   an array of the framework
    result    the tensor
    returns   the array; the torch tensor itself for a framework that cannot import DLPack
    """
    if isinstance(example, torch.Tensor):
        return result
    namespace = getattr(example, "__array_namespace__", None)  # a method in the array API standard
    framework = sys.modules.get(type(example).__module__.split(".")[0]) if namespace is None else namespace()
    convert = getattr(framework, "from_dlpack", None)
    return result if convert is None else convert(result)


def from_numpy(
    a: np.ndarray, b: np.ndarray, c: np.ndarray | None, operands: Operands
) -> dict[str, torch.Tensor | None]:
    """Return tensors "a", "b", "c" and "out" on the current CUDA device, with the types and majorness of `operands`.

    "out" is not initialized. "c" is None if `c` is None.

    a, b, c   M x K, K x N and M x N, with L in front if batched
    """
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
    """Return the torch dtype of an element type in memory: float32 for tf32.

    raises   UnsupportedError for a type that torch tensors of `gemm` cannot have

    >>> memory_of(tf32)
    torch.float32
    """
    known = {ours: theirs for theirs, ours in DTYPES.items()} | {tf32: torch.float32}
    if kind not in known:
        raise UnsupportedError(f"gemm cannot run on the element type {kind}. Use one of {', '.join(map(str, known))}.")
    return known[kind]


def _placed(tensor: torch.Tensor, kind: DType, column_major: bool) -> torch.Tensor:
    """Return a copy of a tensor on the current CUDA device, converted to an element type, row- or column-major.

    kind           element type
    column_major   True for stride 1 along the rows' index (mode -2), False for stride 1 along the last mode
    """
    on_device = tensor.to("cuda", memory_of(kind))
    return on_device.mT.contiguous().mT if column_major else on_device
