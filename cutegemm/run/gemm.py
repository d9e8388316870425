"""gemm(a, b): checks its arguments, chooses a plan, compiles it or finds it compiled, and launches it.

A call looks up the signature of its arguments (types, shapes, strides, alignment, device); all that follows
from the signature was decided when it was first seen: see `prepare`. What a warm call still does is to allocate the
result, to compare addresses where a result is given, and to launch.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

from cutegemm.errors import CopyWarning, CutegemmError, UnsupportedError
from cutegemm.plan.plan import GemmPlan
from cutegemm.run.checks import (
    WITHOUT_A_GPU,
    check_out,
    refused,
    shapes_of,
    without_addresses,
    wrong_values,
)
from cutegemm.run.graph import are_stood_for, arguments, through_torch, torch_sees
from cutegemm.run.prepare import How, Prepared, named, prepare

_MOST_SIGNATURES = 4096

_calls: dict[Any, _Call] = {}


class _Call:
    """What a warm call needs of what was prepared.

    on_views   the function that takes tensors with the strides that the kernel is to see
    function   the same, where it can be called with the tensors as they are
    strides    for a, b, c, out: those that the kernel is to see instead of the tensor's own, or None
    written    is told of `out`, so that autograd sees that it has changed
    held       the caller's plan, whose id is in the signature
    """

    __slots__ = ("dtype", "function", "held", "kernel", "on_views", "shape", "strides", "views", "written")

    def __init__(self, prepared: Prepared, held: Any) -> None:
        from torch.autograd.graph import increment_version

        from cutegemm.run.torch_ops import devices

        self.kernel, self.shape, self.dtype = prepared.kernel, prepared.shape, prepared.dtype
        self.views, self.held, self.written = prepared.views, held, increment_version
        self.strides = tuple([view.strides for view in prepared.views])
        self.on_views: Any = None if self.kernel is None else _callable(prepared)
        is_plain = self.kernel is not None and not any(self.strides) and devices() == 1
        self.function = self.on_views if is_plain else None


def gemm(
    a: Any,
    b: Any,
    *,
    c: Any = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    plan: GemmPlan | str | None = None,
    accumulate: str = "fast",
    allow_tf32: bool = False,
    out_dtype: Any = None,
    epilogue: Callable[..., Any] | None = None,
    **operands: Any,
) -> Any:
    """alpha * a @ b + beta * c, or what an epilogue makes of a @ b, on a CUDA device.

    a, b     M x K and K x N, or L x M x K and L x K x N: torch tensors, or arrays with DLPack, of one type:
             float32, float64, float16 or bfloat16; on Hopper also float8 and int8. Any strides; where neither of
             the last two is 1, a copy is made, and a `CopyWarning` says so
    c        M x N or L x M x N, of the type of the result, or beside float8 of any that it might have; read where
             beta is not 0, and then needed
    out      where the result goes: M x N or L x M x N, of the type of a, float32, float16 or bfloat16; of int8
             int32 or float32. What is past the largest float8 becomes that. It may be c; it must not overlap a or b
    plan     a GemmPlan, or a name from `cutegemm.choose.catalog.plans()`; chosen by the shape where left out. After
             "transposed:" the name of a plan for D^T = B^T A^T
    accumulate   of a plan that is chosen for float8: "fast", as wgmma sums up, with about 14 bits; or "two_level":
             the sums of every 128 products are added up in float32, as torch._scaled_mm does without use_fast_accum
    allow_tf32   whether a plan that is chosen for float32 may multiply it as tf32, by tensor cores
    out_dtype    the type of the result, where no `out` says it
    epilogue     a function of the sums of a @ b and of operands by name: `lambda acc, bias: gelu(acc + bias)`, of the
                 functions of `cutegemm.epilogue`. It is called once, with symbols. Where it returns several
                 expressions, the first is D, and the others are stored as well; `row_sum(x)` and the like, which
                 stand behind the first alone, give one float32 for each row, for each column, or for all of D
    operands     of the epilogue: numbers, or tensors of one element, of N or 1 x N, of M x 1, of M x N, with L in front
                 or without; of any floating type
    returns  a tuple where the epilogue returns several; `out`, or a new row-major array of the framework of a
    raises   UnsupportedError with the rules that the arguments break, PlanError where the plan does not fit them, or
             CutegemmError; before anything is launched

    Sums are kept in float32, or float64 for float64. float32 is multiplied as it is, unless tf32 is allowed, or a plan
    is asked for that takes it as that: "mma_128x256", "sm90_slots" and their like do. It runs on torch's current
    stream, and a CUDA graph may capture it once the same signature has been called before. Gradients are not recorded.
    Where operands lie otherwise than the kernel can load them fast, one before it packs them into a workspace.

    >>> a, b = torch.randn(4096, 512, device="cuda"), torch.randn(2048, 512, device="cuda").t()  # doctest: +SKIP
    >>> d = gemm(a, b)  # doctest: +SKIP
    >>> d = gemm(a, b, c=d, alpha=0.5, beta=1.0, out=d, plan="simt_256x128")  # doctest: +SKIP
    """
    if torch_sees(a, b, c, operands):
        how = How(plan, accumulate, allow_tf32, out_dtype)
        return through_torch(arguments(a, b, c, alpha, beta, out, how, epilogue, operands))
    if epilogue is not None or operands:
        from cutegemm.run.fused import fused

        return fused(a, b, c, alpha, beta, out, (plan, accumulate, allow_tf32, out_dtype), epilogue, operands)
    try:
        key = (
            a.__class__, a.dtype, a.shape, a.stride(), a.data_ptr() & 15, a.get_device(), a.is_neg(),
            b.__class__, b.dtype, b.shape, b.stride(), b.data_ptr() & 15, b.get_device(), b.is_neg(),
            plan if plan.__class__ is str else id(plan), accumulate, allow_tf32, out_dtype,
            out if out is None else (
                out.__class__, out.dtype, out.shape, out.stride(), out.data_ptr() & 15, out.get_device(),
                out.is_neg(),
            ),
            c if c is None else (
                c.__class__, c.dtype, c.shape, c.stride(), c.data_ptr() & 15, c.get_device(), c.is_neg()
            ),
        )  # fmt: skip
    except (AttributeError, RuntimeError):
        return _through_torch(a, b, c, alpha, beta, out, How(plan, accumulate, allow_tf32, out_dtype))
    call = _calls.get(key)
    if call is None:
        how = How(plan, accumulate, allow_tf32, out_dtype)
        prepared = prepare(a, b, c, out, beta, how)
        if isinstance(prepared, list):
            return _with_copies(prepared, a, b, c, alpha, beta, out, how)
        if len(_calls) >= _MOST_SIGNATURES:
            _calls.clear()
        call = _calls[key] = _Call(prepared, plan)
    if beta != 0 or a.requires_grad or b.requires_grad or (out is not None and out.requires_grad):
        wrong = wrong_values(named(a, b, c, out), beta)
        if wrong:
            raise refused(a, b, wrong)
    result = out
    if out is None:
        result = a.new_empty(call.shape, dtype=call.dtype)
    else:
        check_out(a, b, c, out, call.views)
    try:
        if call.function is not None:
            call.function(a, b, result if c is None else c, result, alpha, beta)
        elif call.on_views is not None:
            _launch_as_seen(call, (a, b, result if c is None else c, result), alpha, beta)
    except (TypeError, ValueError, RuntimeError) as error:
        raise CutegemmError(f"gemm of {shapes_of(a, b)} by {call.kernel!r}: {error}") from error
    if out is not None:
        call.written(out)
    return result


def _callable(prepared: Prepared) -> Any:
    """What takes the tensors as they are: the compiled function, or what gives it a workspace besides."""
    function = prepared.function
    if not prepared.turned:
        return function
    return lambda a, b, c, d, alpha, beta: function(b.mT, a.mT, c.mT, d.mT, alpha, beta)


def _launch_as_seen(call: _Call, tensors: Sequence[Any], alpha: float, beta: float) -> None:
    """The launch where another device may be the current one, or an extent of 1 has any stride."""
    from torch.cuda import device

    assert call.on_views is not None
    seen = [
        tensor if strides is None else tensor.as_strided(tensor.shape, strides)
        for tensor, strides in zip(tensors, call.strides, strict=True)
    ]
    with device(tensors[0].get_device()):
        call.on_views(*seen, alpha, beta)


def _through_torch(a: Any, b: Any, c: Any, alpha: float, beta: float, out: Any, how: How) -> Any:
    """For arrays of other frameworks: as torch tensors over the same memory.

    how   the other arguments of `gemm`
    """
    try:
        from cutegemm.run import torch_ops
    except ImportError as error:
        raise UnsupportedError(
            f"gemm: torch is needed to launch a kernel: pip install 'cutegemm[torch]'. {WITHOUT_A_GPU}"
        ) from error
    given = torch_ops.tensors_of(named(a, b, c, out, needed=("a", "b")))
    wrong = without_addresses(given)
    if wrong and are_stood_for(given):
        return through_torch(arguments(a, b, c, alpha, beta, out, how))
    if wrong:
        raise refused(given["a"], given["b"], wrong)
    result = gemm(
        given["a"], given["b"], c=given.get("c"), alpha=alpha, beta=beta, out=given.get("out"), **vars(how)
    )  # fmt: skip
    if out is None:
        return torch_ops.like(a, result)
    torch_ops.like(out, result)  # the stream of its framework waits for the kernel
    return out


def _with_copies(
    names: Sequence[str],
    a: Any,
    b: Any,
    c: Any,
    alpha: float,
    beta: float,
    out: Any,
    how: How,
) -> Any:
    warnings.warn(
        f"gemm of {shapes_of(a, b)}: a contiguous copy of {' and '.join(names)} is made, where neither of the "
        "last two dimensions has a stride of 1. Pass a contiguous tensor, or a transposed one.",
        CopyWarning,
        stacklevel=3,
    )
    a, b, c = (v.contiguous() if name in names else v for name, v in (("a", a), ("b", b), ("c", c)))
    given = out.new_empty(out.shape) if "out" in names else out
    result = gemm(a, b, c=c, alpha=alpha, beta=beta, out=given, **vars(how))
    return out.copy_(result) if "out" in names else result


def plan_of(
    a: Any,
    b: Any,
    *,
    c: Any = None,
    out: Any = None,
    plan: GemmPlan | str | None = None,
    accumulate: str = "fast",
    allow_tf32: bool = False,
    out_dtype: Any = None,
) -> GemmPlan:
    """The plan that `gemm` carries out for these tensors, which are not touched.

    raises   as `gemm` does, and UnsupportedError where nothing is launched or a copy is made first
    """
    prepared = prepare(a, b, c, out, 0.0, How(plan, accumulate, allow_tf32, out_dtype))
    if isinstance(prepared, list) or prepared.kernel is None:
        raise UnsupportedError(
            f"plan_of {shapes_of(a, b)}: no kernel is launched on these tensors as they are."
        )
    return prepared.kernel.plan
