"""Layers that torch computes itself: other kinds of tensors, hooks and replaced `forward` methods, and tracers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._C import _get_tracing_state
from torch.fx import Proxy
from torch.nn.modules import linear as _torch_linear
from torch.nn.modules.module import _has_any_global_hook

from cutegemm.errors import UnsupportedError
from cutegemm.run.torch_ops import RESULTS
from cutegemm.torch.dispatch import PLAIN_TENSORS
from cutegemm.torch.epilogue import dtype_name

# Types of weights whose products have the same type, as in torch.nn.Linear.
SERVED = frozenset(dtype for dtype, results in RESULTS.items() if results[0] == dtype)


def is_customized(module: Any) -> bool:
    """Return True if calling a module runs more than its class's `forward`: hooks, or a `forward` set on the instance.

    Global hooks, which `torch.nn.modules.module.register_module_forward_hook` and others set, count too. The result
    for a function is False.

    >>> hooked, patched = nn.Linear(2, 2), nn.Linear(2, 2)
    >>> handle = hooked.register_forward_hook(print)
    >>> patched.forward = lambda x: x
    >>> is_customized(hooked), is_customized(patched), is_customized(nn.Linear(2, 2))
    (True, True, False)
    """
    if not isinstance(module, nn.Module):
        return False
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or ("forward" in module.__dict__ and has_own_forward(module))
        or _has_any_global_hook()
    )


def has_own_forward(module: nn.Module) -> bool:
    """Return True if an attribute of a module object replaces the `forward` of its class.

    Libraries that remove their hooks leave the class's own method as an attribute; that counts as False.

    >>> layer = nn.Linear(2, 2)
    >>> layer.forward = layer.forward
    >>> has_own_forward(layer)
    False
    """
    forward = vars(module).get("forward")
    return forward is not None and not (
        getattr(forward, "__func__", None) is type(module).forward and forward.__self__ is module
    )


# The `forward` of classes whose results are known. A torch.nn.Linear that was patched before this module was imported
# counts as replaced.
_is_original = getattr(nn.Linear.forward, "__globals__", None) is vars(_torch_linear)
_FORWARDS: dict[type, Any] = {nn.Linear: nn.Linear.forward if _is_original else None}


def note_forward(kind: type) -> None:
    """Remember which `forward` a class of modules has now, to notice if the user replaces it afterwards.

    A kernel may compute a module only as long as its class has the original `forward`.

    kind   the class, such as torch.nn.Linear
    """
    _FORWARDS[kind] = kind.forward  # type: ignore[attr-defined]


def is_replaced_forward(kind: type) -> bool:
    """Return True if the `forward` of a class of modules is not the one that `note_forward` has remembered for it.

    It is False for a class without a remembered `forward`.

    >>> is_replaced_forward(nn.Linear), is_replaced_forward(nn.SiLU)
    (False, False)
    """
    return kind in _FORWARDS and kind.forward is not _FORWARDS[kind]  # type: ignore[attr-defined]


def is_left_to_torch(x: Any, weight: Any, bias: Any = None) -> bool:
    """Return True if torch itself, instead of a kernel of cutegemm, has to compute a layer of given tensors.

    There are three cases: no kernel can read one of the tensors, e.g. a sparse, quantized or distributed one;
    torch.jit.trace is active, which records only torch's own operations; or torch.fx traces into a layer.

    x              input of the layer
    weight, bias   parameters of the layer; bias may be None

    >>> x = torch.ones(2, 2)
    >>> is_left_to_torch(x, x), is_left_to_torch(x.to_sparse(), x), is_left_to_torch(x, x.int())
    (False, True, True)
    """
    if (
        _get_tracing_state() is None
        and x.__class__ in PLAIN_TENSORS
        and weight.__class__ in PLAIN_TENSORS
        and (bias is None or bias.__class__ in PLAIN_TENSORS)
        and x.layout is torch.strided
        and weight.layout is torch.strided
        and not x.is_nested
        and weight.dtype in SERVED
        and (weight.is_cuda or weight.is_cpu)
    ):
        return False
    if _get_tracing_state() is not None or isinstance(x, Proxy):
        return True
    return any(bool(why_left_to_torch(each)) for each in (x, weight, bias) if isinstance(each, torch.Tensor))


def why_left_to_torch(tensor: torch.Tensor) -> str:
    """Return the reason, as a phrase for messages, why no kernel can compute with a tensor; "" if a kernel can.

    A subclass of torch.Tensor may have operations of its own, as quantized and distributed tensors do. Subclasses
    of `torch._subclasses` represent a tensor in a graph and have none.

    >>> why_left_to_torch(torch.ones(2).to_sparse()), why_left_to_torch(torch.ones(2))
    ('has the layout torch.sparse_coo', '')
    """
    kind = type(tensor)
    if kind not in PLAIN_TENSORS and not kind.__module__.startswith("torch._subclasses."):
        return f"is a {kind.__name__}, a subclass of torch.Tensor, which may compute something else"
    if tensor.layout is not torch.strided or tensor.is_nested:
        return f"has the layout {'of a nested tensor' if tensor.is_nested else tensor.layout}"
    if tensor.dtype not in SERVED:
        served = ", ".join(sorted(map(dtype_name, SERVED)))
        return f"is of {tensor.dtype}; supported are layers of {served}"
    if not (tensor.is_cuda or tensor.is_cpu or tensor.is_meta):
        return f"is on {tensor.device}; supported are layers on a CUDA device or a CPU"
    return ""


# --- tracers ------------------------------------------------------------------------------------------------------


def leaf(module: nn.Module, x: Any) -> Any:
    """Record the call of a module as one node of the graph that torch.fx traces, and return the node's proxy.

    module    the module, whose inside is not traced
    x         input of the module
    returns   None if x is not a proxy of torch.fx, or if the module itself is being traced
    """
    if not isinstance(x, Proxy):
        return None
    tracer: Any = x.tracer
    path = tracer.path_of_module(module)
    return tracer.create_proxy("call_module", path, (x,), {}) if path else None


def as_node(function: Callable[..., Any], *args: Any) -> Any:
    """Return function(*args); if an argument is a proxy of torch.fx, return one node of its graph for the call."""
    proxies = [x for x in args if isinstance(x, Proxy)]
    if not proxies:
        return function(*args)
    return proxies[0].tracer.create_proxy("call_function", function, args, {})


class Unscriptable(nn.Module):  # type: ignore[misc]
    """Base of modules whose `forward` TorchScript cannot compile: `torch.jit.script` raises UnsupportedError."""

    def __prepare_scriptable__(self) -> Any:
        raise UnsupportedError(
            f"torch.jit.script: TorchScript cannot compile {type(self).__name__}, which cutegemm computes. "
            "Script the model before `use`, or after `undo()`. torch.jit.trace, torch.compile and "
            "torch.export support it."
        )
