"""How a call gets to its kernel: past torch's dispatcher where torch needs to see nothing of it."""

from __future__ import annotations

from enum import Enum
from typing import Any

import torch
from torch._C import (
    _are_functorch_transforms_active,
    _len_torch_dispatch_stack,
    _len_torch_function_stack,
)
from torch.autograd import forward_ad
from torch.compiler import is_compiling

_PLAIN = frozenset([torch.Tensor, torch.nn.Parameter, torch.nn.Buffer])


class Route(Enum):
    """What torch has to see of a call."""

    DIRECT = "nothing: plain tensors, whose gradients nobody wants"
    RECORDED = "its gradients, in autograd's own record"
    TRANSFORMED = "a function that torch.func's transformations know how to take apart"
    DECOMPOSED = "torch's own operations: derivatives are carried forward, which only these can do"
    OPERATOR = "the operator: a graph is made, or another kind of tensor stands before the kernel"


def route_of(*tensors: Any) -> Route:
    """By which way a call goes.

    >>> route_of(torch.ones(2, 2)), route_of(torch.ones(2, 2, requires_grad=True))
    (<Route.DIRECT: ...>, <Route.RECORDED: ...>)
    >>> route_of(torch.ones(2, 2, device="meta"))
    <Route.OPERATOR: ...>
    """
    if is_compiling():
        return Route.OPERATOR
    if forward_ad._current_level >= 0:
        return Route.DECOMPOSED
    if _are_functorch_transforms_active():
        return Route.TRANSFORMED
    if _len_torch_dispatch_stack() or _len_torch_function_stack():
        return Route.OPERATOR
    records, wanted = torch.is_grad_enabled(), False
    for tensor in tensors:
        if tensor.__class__ not in _PLAIN or not (tensor.is_cuda or tensor.is_cpu):
            return Route.OPERATOR
        if records and tensor.requires_grad:
            wanted = True
    return Route.RECORDED if wanted else Route.DIRECT
