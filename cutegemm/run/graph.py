"""The calls of `gemm` that torch has to see: in a graph that it makes, or with gradients to record.

What then answers is above this room, and registers itself: `cutegemm.torch.entry`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cutegemm.layout.hooks import Hook

if TYPE_CHECKING:
    from cutegemm.run.calls import How

through_torch = Hook(
    "gemm as torch sees it"
)  # the arguments of `gemm` by name -> its result; registered by `cutegemm`
# (modules, rows) -> what plans are chosen for in their layers; registered by `cutegemm`
questions_of = Hook("the layers of a model")


def torch_sees(a: Any, b: Any, c: Any, operands: Mapping[str, Any]) -> bool:
    """Whether Dynamo traces this call, a mode of torch watches it, or gradients of it are to be recorded.

    >>> torch_sees([1.0], [2.0], None, {})
    False
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
        return True
    if not torch.is_grad_enabled():
        return False
    try:
        if a.requires_grad or b.requires_grad or (c is not None and c.requires_grad):
            return True
    except AttributeError:  # arrays of another framework
        return False
    return bool(operands) and any(getattr(x, "requires_grad", False) for x in operands.values())


def are_stood_for(tensors: Mapping[str, Any]) -> bool:
    """Whether torch tensors without addresses are those of a transformation or of a graph; else they are sparse."""
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
    """The arguments of `gemm` by name, as `through_torch` takes them."""
    given = {"a": a, "b": b, "c": c, "alpha": alpha, "beta": beta, "out": out, "out_dtype": out_dtype}
    return {**given, "how": how, "epilogue": epilogue, "operands": operands or {}}
