"""Decide which calls of `gemm` must go through torch: those in a torch graph, or with gradients to record.

`cutegemm.torch.gemm` answers these calls. It imports this package, so it is connected by a hook.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from cutegemm.layout.hooks import Hook
from cutegemm.run.calls import BLAS_SCALARS

if TYPE_CHECKING:
    from cutegemm.run.calls import How

# The hooks are registered by `cutegemm`.
through_torch = Hook("gemm through torch")  # arguments of `gemm` by name -> its result
by_torch = Hook("gemm by torch")  # arguments of `gemm` by name -> its result, computed without a kernel of cutegemm
questions_of = Hook("the layers of a model")  # as `torch.models.preparation.questions_of`
kernels_of_groups = Hook("kernels of grouped_mm")  # as `torch.grouped.preparation.kernels_of_groups`


def torch_sees(a: Any, b: Any, c: Any, operands: Mapping[str, Any], out: Any = None) -> bool:
    """Return True if torch must see this call of `gemm` as an operator, so that it goes through torch's dispatcher.

    This is so if Dynamo or torch.jit traces the call, a dispatch mode or a transformation such as vmap is active,
    forward-mode or recorded derivatives are needed, or torch.autocast casts a or b.

    a, b, c, out   arguments of `gemm`
    operands       operands of the epilogue by name

    >>> torch_sees([1.0], [2.0], None, {})
    False
    """
    states = _states or _states_of_torch()
    if not states:
        return False
    is_compiling, modes, is_transformed, tracing, forward_ad, is_autocast, is_recorded = states
    if is_compiling() or modes() or is_transformed() or tracing():
        return True
    if forward_ad._current_level >= 0 and carried((a, b, c, *operands.values())):
        return True
    if is_autocast() and out is None and (autocast_dtype(a) or autocast_dtype(b)):
        return True
    if not is_recorded():
        return False
    try:
        if a.requires_grad or b.requires_grad or (c is not None and c.requires_grad):
            return True
    except AttributeError:  # an array of another framework
        return False
    return bool(operands) and any(getattr(x, "requires_grad", False) for x in operands.values())


def _states_of_torch() -> tuple[Any, ...]:
    """Return torch functions that tell if a transformation, autocast etc. is active; () if torch is not imported yet.

    The functions are imported once and kept.
    """
    global _states
    torch: Any = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "compiler"):
        return ()
    from torch.autograd import forward_ad

    _states = (
        torch.compiler.is_compiling,
        torch._C._len_torch_dispatch_stack,
        torch._C._are_functorch_transforms_active,
        torch._C._get_tracing_state,
        forward_ad,
        torch._C._is_any_autocast_enabled,
        torch.is_grad_enabled,
    )
    return _states


_states = _states_of_torch()


def carried(tensors: Iterable[Any]) -> bool:
    """Return True if one of the tensors carries a tangent of forward-mode differentiation."""
    import torch

    forward_ad: Any = torch.autograd.forward_ad
    return forward_ad._current_level >= 0 and any(
        isinstance(x, torch.Tensor) and forward_ad.unpack_dual(x).tangent is not None for x in tensors
    )


def autocast_dtype(x: Any) -> Any:
    """Return the torch dtype that torch.autocast casts an argument of matmul to; None if it does not cast it.

    x   the argument, a tensor
    """
    import torch

    device = x.device.type if isinstance(x, torch.Tensor) else ""
    if device not in ("cuda", "cpu") or not torch.is_autocast_enabled(device):
        return None
    dtype = torch.get_autocast_dtype(device)
    return dtype if x.dtype != dtype and x.dtype in (torch.float32, torch.float16, torch.bfloat16) else None


def belong_to_transformation(tensors: Mapping[str, Any]) -> bool:
    """Return True if tensors without addresses belong to a transformation such as vmap, or to a graph.

    If they do not, one of them is sparse.

    tensors   tensors of a call, by name
    """
    return all(str(tensor.layout) == "torch.strided" for tensor in tensors.values())


def arguments(
    a: Any,
    b: Any,
    c: Any,
    alpha: Any,
    beta: Any,
    out: Any,
    out_dtype: Any,
    how: How,
    epilogue: Any = None,
    operands: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the arguments of a call of `gemm` as a dictionary, in the form that `through_torch` takes.

    Without an epilogue, an alpha of None becomes 1, and a beta of None becomes 0.

    a, b, c, alpha, beta, out, out_dtype   arguments of `gemm`
    how                                    the other options of `gemm`
    epilogue                               function of the epilogue; None for none
    operands                               operands of the epilogue by name; None for none
    """
    named = {"a": a, "b": b, "c": c, "alpha": alpha, "beta": beta, "out": out, "out_dtype": out_dtype}
    if epilogue is None:
        named |= {name: value for name, value in BLAS_SCALARS.items() if named[name] is None}
    return {**named, "how": how, "epilogue": epilogue, "operands": operands or {}}
