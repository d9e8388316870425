"""Dispatch of a call: straight to its kernel, or through what torch has to see of it."""

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
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.autograd import forward_ad
from torch.compiler import is_compiling

from cutegemm.errors import UnsupportedError
from cutegemm.run.graph import autocast_dtype, carried

PLAIN_TENSORS = frozenset([torch.Tensor, torch.nn.Parameter])  # classes without operations of their own
_VMAP_MODE, _BATCHED = _dispatch_key_parse("VmapMode"), _dispatch_key_parse("Batched")
_FORWARD = "cutegemm: forward differentiation is inside of a graph of torch.compile. Call it outside."
_HAS_FLAG = hasattr(torch.compiler, "_is_exporting_flag")  # torch 2.6 may not have it


def is_exporting() -> bool:
    """Return True while torch.export traces a graph, and False while torch.compile does.

    It reads torch's flag, because torch.compile before torch 2.13 takes torch.compiler.is_exporting() as True.
    """
    return bool(_HAS_FLAG and torch.compiler._is_exporting_flag)


class Route(Enum):
    """The five routes of a GEMM call to its kernel, so that torch can record, trace or transform the call.

    DIRECT launches the kernel. RECORDED uses an autograd function, TRANSFORMED one that torch.func can transform.
    DECOMPOSED computes the GEMM by torch's own operations. OPERATOR calls an operator of torch.library, as in graphs of
    torch.compile. The value of each member is a phrase for messages.
    """

    DIRECT = "nothing: the tensors are plain and no gradients are recorded"
    RECORDED = "an autograd function, whose gradients it records"
    TRANSFORMED = "an autograd function that the transformations of torch.func can take apart"
    DECOMPOSED = "its own operations: forward differentiation, batched gradients, or torch.jit.trace"
    OPERATOR = "an operator of torch.library: a graph is traced, or a tensor is not a plain one"


TRANSFORMS = Route.TRANSFORMED, Route.DECOMPOSED  # routes on which tensors may be transformed


def route_of(*tensors: Any) -> Route:
    """Return how a call must reach its kernel: directly, by an autograd function, or as an operator that torch can see.

    It depends on the state of torch (compiling, tracing, vmap, gradients) and on the kinds of tensors.

    tensors   all tensors that the call reads or writes
    raises    UnsupportedError for forward differentiation in a graph of torch.compile: operators drop tangents

    >>> route_of(torch.ones(2, 2)), route_of(torch.ones(2, 2, requires_grad=True))
    (<Route.DIRECT: ...>, <Route.RECORDED: ...>)
    >>> route_of(torch.ones(2, 2, device="meta"))
    <Route.OPERATOR: ...>
    """
    if is_compiling():
        if forward_ad._current_level >= 0:
            raise UnsupportedError(_FORWARD)
        return Route.OPERATOR
    if forward_ad._current_level >= 0 or _get_tracing_state() is not None:
        return Route.DECOMPOSED
    if _are_functorch_transforms_active():
        return Route.TRANSFORMED
    if _dispatch_tls_is_dispatch_key_included(_VMAP_MODE) and any(is_batched(x) for x in tensors):
        return Route.DECOMPOSED
    if _len_torch_dispatch_stack():
        return Route.OPERATOR
    records, wanted = is_grad_enabled(), False
    for tensor in tensors:
        if tensor.__class__ not in PLAIN_TENSORS or not (tensor.is_cuda or tensor.is_cpu):
            return Route.OPERATOR
        if records and tensor.requires_grad:
            wanted = True
    return Route.RECORDED if wanted else Route.DIRECT


def is_batched(tensor: torch.Tensor) -> bool:
    """Return True if a tensor represents a batch in torch.autograd.grad(is_grads_batched=True).

    Such a tensor has no memory of its own. Tensors of torch.vmap are of another kind.

    >>> is_batched(torch.ones(2))
    False
    """
    return _dispatch_keys(tensor).has(_BATCHED)


def is_transformed(*tensors: torch.Tensor) -> bool:
    """Return True if a tensor belongs to a transformation of torch.func, to a batch of gradients, or has a tangent.

    >>> is_transformed(torch.ones(2)), torch.func.vmap(lambda x: x * is_transformed(x))(torch.ones(2))
    (False, tensor([1., 1.]))
    """
    if not _are_functorch_transforms_active():
        return any(is_batched(x) for x in tensors) or carried(tensors)
    return any(is_functorch_wrapped_tensor(x) for x in tensors) or carried(tensors)


def is_direct(a: Any, b: Any, bias: Any = None) -> bool:
    """Return True if a GEMM of CUDA tensors may call its kernel directly, since torch has nothing to record or trace.

    The decision is that of `route_of`, and False under torch.autocast. This function runs before every warm call, so
    it tests only what is necessary and takes less than a microsecond.

    a, b, bias   tensors of the call; bias may be None

    >>> is_direct(torch.ones(2, 2), torch.ones(2, 2))  # tensors on the CPU
    False
    """
    if (
        is_compiling()
        or a.__class__ not in PLAIN_TENSORS
        or b.__class__ not in PLAIN_TENSORS
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
    return bias is None or (bias.__class__ in PLAIN_TENSORS and not (wanted and bias.requires_grad))


def rows_of(x: torch.Tensor) -> torch.Tensor:
    """Return a tensor (..., K) of any rank as a matrix (rows, K), where rows is the product of the other extents.

    >>> rows_of(torch.zeros(2, 3, 0)).shape, rows_of(torch.zeros(4)).shape
    (torch.Size([6, 0]), torch.Size([1, 4]))
    """
    return x if x.dim() == 2 else x.flatten(0, -2) if x.dim() > 2 else x.unsqueeze(0)


def reshaped(x: torch.Tensor, shape: Sequence[int], is_read: bool = False) -> torch.Tensor:
    """Give a tensor that was just computed another shape, in a way that autograd does not see as a view.

    A view that was made without gradients cannot be modified in place with gradients, and FSDP loses its hooks if a
    view is modified. A tensor that a backward pass reads becomes a view, because autograd detects changes only in
    views.

    x         a contiguous tensor that nothing else uses
    shape     its new shape
    is_read   True if a backward pass may read x

    >>> reshaped(torch.zeros(6, 4), (2, 3, 4))._is_view()
    False
    """
    if is_compiling() or (is_read and x.requires_grad):
        return x.view(shape)
    if not x.requires_grad and route_of(x) is Route.DIRECT:
        return x.resize_(shape)
    return torch.ops.aten._unsafe_view(x, shape)


def as_autocast(*tensors: Any) -> tuple[Any, ...]:
    """Return the arguments of a GEMM, cast as torch.autocast does it if it is active.

    tensors   tensors; None and other values are returned unchanged
    """
    if not torch._C._is_any_autocast_enabled():
        return tensors
    dtypes = [autocast_dtype(x) for x in tensors]
    return tuple([x if dtype is None else x.to(dtype) for x, dtype in zip(tensors, dtypes, strict=True)])
