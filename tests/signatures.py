"""Check the arguments of a launch against the signature of its plan's compiled function."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from cutegemm.dtypes import f32, tf32
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.signature import Argument, signature_of
from cutegemm.run.torch_ops import DTYPES


def mismatches(plan: GemmPlan, arguments: Sequence[Any]) -> list[str]:
    """Return a sentence for each error in the arguments of a launch.

    The compiled function checks the types, ranks, strides and alignment of each tensor. That the extents of all tensors
    belong to one problem is checked only here.

    arguments   torch tensors and numbers in the order of the compiled function, without a workspace
    """
    expected, scalars = signature_of(plan), plan.epilogue.scalars
    if len(arguments) != len(expected) + len(scalars):
        names = [*[each.name for each in expected], *scalars]
        return [f"{len(arguments)} arguments; {', '.join(names)} are expected"]
    tensors, numbers = arguments[: len(expected)], arguments[len(expected) :]
    found = [
        f"{name} = {number!r}, which is not a number"
        for name, number in zip(scalars, numbers, strict=True)
        if type(number) not in (int, float)
    ]
    for argument, tensor in zip(expected, tensors, strict=True):
        found += [f"{argument.name}: {what}" for what in refusals(argument, tensor)]
    return found or list(_extents(plan, expected, tensors))


def refusals(argument: Argument, tensor: Any) -> Iterator[str]:
    """Yield the reasons why the compiled function does not accept a tensor as one of its arguments."""
    of_memory = f32 if argument.dtype is tf32 else argument.dtype
    if DTYPES[tensor.dtype] is not of_memory:
        yield f"of {tensor.dtype}; {of_memory} is expected"
    if tensor.data_ptr() % argument.align_bytes:
        yield f"address {tensor.data_ptr()}; a multiple of {argument.align_bytes} is expected"
    if tensor.dim() != len(argument.modes):
        yield f"shape {tuple(tensor.shape)}; {argument.modes} is expected"
        return
    for extent, divisor in zip(tensor.shape, argument.extents, strict=True):
        if extent % divisor:
            yield f"shape {tuple(tensor.shape)}; a multiple of {divisor} is expected for {extent}"
    for extent, stride, divisor in zip(tensor.shape, tensor.stride(), argument.strides, strict=True):
        if extent == 1:
            continue
        if divisor is None and stride != 1:
            yield f"strides {tensor.stride()}; 1 is expected for {stride}"
        if divisor is not None and stride % divisor:
            yield f"strides {tensor.stride()}; a multiple of {divisor} is expected for {stride}"


def _extents(plan: GemmPlan, expected: Sequence[Argument], tensors: Sequence[Any]) -> Iterator[str]:
    """Yield a sentence for each tensor whose extents do not fit the problem, or that reaches beyond its memory."""
    known = {"1": 1}
    for argument, tensor in zip(expected[:2], tensors[:2], strict=True):
        known |= dict(zip(argument.modes, tensor.shape, strict=True))
    known["n/2"] = known["n"] // 2
    for argument, tensor in zip(expected, tensors, strict=True):
        shape = tuple([known[mode] for mode in argument.modes])
        if tuple(tensor.shape) != shape:
            yield f"{argument.name}: shape {tuple(tensor.shape)}; {shape} is expected"
        reach = sum((extent - 1) * stride for extent, stride in zip(tensor.shape, tensor.stride(), strict=True))
        end = (tensor.storage_offset() + reach + 1) * tensor.element_size()
        if math.prod(tensor.shape) and end > tensor.untyped_storage().nbytes():
            yield f"{argument.name}: its last element lies outside of its memory"
        # All strides of a tensor map must be multiples of 16 bytes, also in a mode of extent 1.
        if plan.body.has_roles and any(
            divisor is not None and stride % divisor
            for stride, divisor in zip(tensor.stride(), argument.strides, strict=True)
        ):
            yield f"{argument.name}: strides {tensor.stride()} of an operand that has a tensor map"
