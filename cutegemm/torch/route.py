"""How a call gets to its kernel: past torch's dispatcher where torch needs to see nothing of it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

import torch
from torch import is_autocast_enabled, is_grad_enabled
from torch._C import (
    _are_functorch_transforms_active,
    _dispatch_key_parse,
    _dispatch_keys,
    _dispatch_tls_is_dispatch_key_included,
    _get_tracing_state,
    _len_torch_dispatch_stack,
)
from torch.autograd import forward_ad
from torch.compiler import is_compiling

from cutegemm.run.graph import autocast_dtype

_PLAIN = frozenset([torch.Tensor, torch.nn.Parameter])
_OF_BATCHES, _BATCH = _dispatch_key_parse("VmapMode"), _dispatch_key_parse("Batched")


class Route(Enum):
    """What torch has to see of a call."""

    DIRECT = "nothing: plain tensors, whose gradients nobody wants"
    RECORDED = "its gradients, in autograd's own record"
    TRANSFORMED = "a function that torch.func's transformations know how to take apart"
    DECOMPOSED = (
        "torch's own operations: derivatives are carried forward, gradients come in batches, or jit traces"
    )
    OPERATOR = "the operator: a graph is made, or another kind of tensor stands before the kernel"


def route_of(*tensors: Any) -> Route:
    """Return the route of a call.

    tensors   all that it takes

    >>> route_of(torch.ones(2, 2)), route_of(torch.ones(2, 2, requires_grad=True))
    (<Route.DIRECT: ...>, <Route.RECORDED: ...>)
    >>> route_of(torch.ones(2, 2, device="meta"))
    <Route.OPERATOR: ...>
    """
    if is_compiling():
        return Route.OPERATOR
    if forward_ad._current_level >= 0 or _get_tracing_state() is not None:
        return Route.DECOMPOSED
    if _are_functorch_transforms_active():
        return Route.TRANSFORMED
    if _dispatch_tls_is_dispatch_key_included(_OF_BATCHES) and any(is_batch(x) for x in tensors):
        return Route.DECOMPOSED
    if _len_torch_dispatch_stack():
        return Route.OPERATOR
    records, wanted = is_grad_enabled(), False
    for tensor in tensors:
        if tensor.__class__ not in _PLAIN or not (tensor.is_cuda or tensor.is_cpu):
            return Route.OPERATOR
        if records and tensor.requires_grad:
            wanted = True
    return Route.RECORDED if wanted else Route.DIRECT


def is_batch(tensor: torch.Tensor) -> bool:
    """Whether a tensor stands for a batch, as in torch.autograd.grad(is_grads_batched=True): it has no memory itself.

    torch.vmap has tensors of another kind.

    >>> is_batch(torch.ones(2))
    False
    """
    found: bool = _dispatch_keys(tensor).has(_BATCH)
    return found


def is_direct(a: Any, b: Any, bias: Any = None) -> bool:
    """Whether a call on CUDA tensors may go straight to its kernel, as they are: no more is asked than that needs.

    It is `route_of` for the call that is made most, in less than a microsecond, and asks for torch.autocast besides.

    >>> is_direct(torch.ones(2, 2), torch.ones(2, 2))  # on the CPU there is none
    False
    """
    if (
        is_compiling()
        or a.__class__ not in _PLAIN
        or b.__class__ not in _PLAIN
        or not a.is_cuda
        or _are_functorch_transforms_active()
        or _len_torch_dispatch_stack()
        or forward_ad._current_level >= 0
        or _get_tracing_state() is not None
        or is_autocast_enabled("cuda")
    ):
        return False
    wanted = is_grad_enabled()
    if wanted and (a.requires_grad or b.requires_grad):
        return False
    return bias is None or (bias.__class__ in _PLAIN and not (wanted and bias.requires_grad))


def rows_of(x: torch.Tensor) -> torch.Tensor:
    """All rows of a tensor as one matrix; also where they have no elements.

    >>> rows_of(torch.zeros(2, 3, 0)).shape, rows_of(torch.zeros(4)).shape
    (torch.Size([6, 0]), torch.Size([1, 4]))
    """
    return x if x.dim() == 2 else x.flatten(0, -2) if x.dim() > 2 else x.unsqueeze(0)


def reshaped(found: torch.Tensor, shape: Sequence[int], is_read: bool = False) -> torch.Tensor:
    """Return a new contiguous tensor in another shape, not as a view.

    A view that was made without gradients cannot be modified in place with gradients, and FSDP loses its hooks if a
    view is modified. A tensor that a backward pass reads is an exception: autograd sees changes through views alone.

    is_read   whether a backward pass may read `found`

    >>> reshaped(torch.zeros(6, 4), (2, 3, 4))._is_view()
    False
    """
    if is_compiling() or (is_read and found.requires_grad):
        return found.view(shape)
    if found.requires_grad:
        return torch.ops.aten._unsafe_view(found, shape)
    return (
        found.resize_(shape) if route_of(found) is Route.DIRECT else torch.ops.aten._unsafe_view(found, shape)
    )


def as_autocast(*tensors: Any) -> tuple[Any, ...]:
    """Return the tensors as torch.autocast casts the arguments of a product; others, and None, as they are."""
    if not torch._C._is_any_autocast_enabled():
        return tensors
    dtypes = [autocast_dtype(x) for x in tensors]
    return tuple([x if dtype is None else x.to(dtype) for x, dtype in zip(tensors, dtypes, strict=True)])
