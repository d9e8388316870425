"""gemm(a, b): checks its arguments, chooses a plan, compiles it or finds it compiled, and launches it.

A call looks up the signature of its arguments (types, shapes, strides, alignment, device); all that follows
from the signature was decided when it was first seen. What a warm call still does is to allocate the result,
to compare addresses where a result is given, and to launch.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from cutegemm.arch import MAX_GRID_X
from cutegemm.compile import CompiledKernel, compile_plan
from cutegemm.dtypes import tf32
from cutegemm.errors import CopyWarning, CutegemmError, PlanError, UnsupportedError
from cutegemm.plan.catalog import choose, plan_named
from cutegemm.plan.mma_sync_catalog import as_tf32
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Operands, Problem
from cutegemm.plan.sm90_catalog import choose_sm90
from cutegemm.plan.workspace import needs_workspace
from cutegemm.views import ALIGN_BYTES, MODES, View, operands_of

_MOST_SIGNATURES = 4096

_calls: dict[Any, _Call] = {}


class _Call:
    """What follows from the signature of the arguments.

    kernel     the compiled kernel, or None where D is empty
    function   of it, where it can be called with the tensors as they are
    strides    for a, b, c, out: those that the kernel is to see instead of the tensor's own, or None
    spans      bytes from the first to the last element of a, b, c, out
    shape      of D, and `dtype`, in torch
    held       the caller's plan, whose id is in the signature
    """

    __slots__ = ("dtype", "function", "held", "kernel", "shape", "spans", "strides")

    def __init__(
        self, views: Sequence[View], kernel: CompiledKernel | None, shape: tuple[int, ...], dtype: Any
    ) -> None:
        self.kernel, self.shape, self.dtype = kernel, shape, dtype
        self.strides = tuple([view.strides for view in views])
        self.spans = tuple([view.span for view in views])
        self.function: Any = None
        self.held: Any = None


def gemm(
    a: Any,
    b: Any,
    *,
    c: Any = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    plan: GemmPlan | str | None = None,
) -> Any:
    """alpha * a @ b + beta * c, on a CUDA device.

    a, b     M x K and K x N, or L x M x K and L x K x N: torch tensors, or arrays with DLPack, of one type:
             float32, float64, float16 or bfloat16; on Hopper also float8 and int8, the rows of a and the
             columns of b contiguous. Any strides; where neither of the last two is 1, a copy is
             made, and a `CopyWarning` says so
    c        M x N or L x M x N, of the type of the result; read where beta is not 0, and then needed
    out      where the result goes: like c, of the type of a, float32, float16 or bfloat16; of int8 int32 or
             float32. It may be c; it must not overlap a or b
    plan     a GemmPlan, or a name from `cutegemm.plan.catalog.plans()`; chosen by the shape where left out
    returns  `out`, or a new row-major array of the framework of a
    raises   UnsupportedError, PlanError or CutegemmError, before anything is launched

    Sums are kept in float32, or float64 for float64. float32 is multiplied as it is, unless a plan is asked for
    that takes it as tf32: "mma_128x256" and its like do. It runs on torch's current stream, and a CUDA graph may
    capture it once the same signature has been called before. Gradients are not recorded.
    """
    try:
        third = c if c is None else (c.dtype, c.shape, c.stride(), c.data_ptr() & 15, c.get_device())
        key = (
            a.dtype, a.shape, a.stride(), a.data_ptr() & 15, a.get_device(),
            b.dtype, b.shape, b.stride(), b.data_ptr() & 15, b.get_device(),
            plan if plan.__class__ is str else id(plan),
            out if out is None else (
                out.dtype, out.shape, out.stride(), out.data_ptr() & 15, out.get_device()
            ),
            third,
        )  # fmt: skip
    except (AttributeError, RuntimeError):
        return _through_torch(a, b, c, alpha, beta, out, plan)
    call = _calls.get(key)
    if call is None:
        prepared = _prepare(a, b, c, out, plan)
        if isinstance(prepared, list):
            return _with_copies(prepared, a, b, c, alpha, beta, out, plan)
        call = _calls[key] = prepared
    if beta != 0 or a.requires_grad or b.requires_grad:
        _check_values(a, b, c, beta)
    if out is None:
        out = a.new_empty(call.shape, dtype=call.dtype)
    else:
        _check_overlap(a, b, c, out, call.spans)
    try:
        if call.function is not None:
            call.function(a, b, out if c is None else c, out, alpha, beta)
        elif call.kernel is not None:
            _launch_as_seen(call, (a, b, out if c is None else c, out), alpha, beta)
    except (TypeError, ValueError, RuntimeError) as error:
        raise CutegemmError(f"gemm of {_shapes(a, b)} by {call.kernel!r}: {error}") from error
    return out


def _callable(kernel: Any) -> Any:
    """What takes the tensors as they are: the compiled function, or what gives it a workspace besides."""
    return kernel if needs_workspace(kernel.plan) else kernel.function


def _launch_as_seen(call: _Call, tensors: Sequence[Any], alpha: float, beta: float) -> None:
    """The launch where another device may be the current one, or an extent of 1 has any stride."""
    from torch.cuda import device

    assert call.kernel is not None
    seen = [
        tensor if strides is None else tensor.as_strided(tensor.shape, strides)
        for tensor, strides in zip(tensors, call.strides, strict=True)
    ]
    with device(tensors[0].get_device()):
        _callable(call.kernel)(*seen, alpha, beta)


def _through_torch(a: Any, b: Any, c: Any, alpha: float, beta: float, out: Any, plan: Any) -> Any:
    """For arrays of other frameworks: as torch tensors over the same memory."""
    try:
        from cutegemm import torch_ops
    except ImportError as error:
        raise UnsupportedError(
            "gemm: torch is needed to launch a kernel: pip install 'cutegemm[torch]'."
        ) from error
    given = [
        None if v is None else torch_ops.tensor_of(v, name)
        for v, name in ((a, "a"), (b, "b"), (c, "c"), (out, "out"))
    ]
    if all(new is old for new, old in zip(given, (a, b, c, out), strict=True)):
        raise UnsupportedError(
            "gemm: the tensors have no addresses; dense tensors on a CUDA device are expected."
        )
    result = gemm(given[0], given[1], c=given[2], alpha=alpha, beta=beta, out=given[3], plan=plan)
    if out is None:
        return torch_ops.like(a, result)
    torch_ops.like(out, result)  # the stream of its framework waits for the kernel
    return out


def _with_copies(
    names: Sequence[str], a: Any, b: Any, c: Any, alpha: float, beta: float, out: Any, plan: Any
) -> Any:
    warnings.warn(
        f"gemm of {_shapes(a, b)}: a contiguous copy of {' and '.join(names)} is made, where neither of the "
        "last two dimensions has a stride of 1. Pass a contiguous tensor, or a transposed one.",
        CopyWarning,
        stacklevel=3,
    )
    a, b, c = (v.contiguous() if name in names else v for name, v in (("a", a), ("b", b), ("c", c)))
    if "out" not in names:
        return gemm(a, b, c=c, alpha=alpha, beta=beta, out=out, plan=plan)
    result = gemm(a, b, c=c, alpha=alpha, beta=beta, out=out.new_empty(out.shape), plan=plan)
    return out.copy_(result)


# --- checks that depend on more than the signature ---------------------------------------------------------


def _check_values(a: Any, b: Any, c: Any, beta: float) -> None:
    if beta != 0 and c is None:
        raise UnsupportedError(f"gemm: beta = {beta!r}, but no c is given. Pass c, or leave beta at 0.")
    if a.requires_grad or b.requires_grad or (c is not None and c.requires_grad):
        from torch import is_grad_enabled

        if is_grad_enabled():
            raise UnsupportedError(
                "gemm records no gradients. Pass a.detach(), or call it under torch.no_grad()."
            )


def _check_overlap(a: Any, b: Any, c: Any, out: Any, spans: tuple[int, ...]) -> None:
    """`out` must lie apart from a and b, and from c unless it is c."""
    start = out.data_ptr()
    end = start + spans[3]
    for name, tensor, span in (("a", a, spans[0]), ("b", b, spans[1]), ("c", c, spans[2])):
        if tensor is None or not span or not spans[3]:
            continue
        first = tensor.data_ptr()
        if first < end and start < first + span:
            if name == "c" and first == start and c.stride() == out.stride():
                continue
            raise UnsupportedError(
                f"gemm: out overlaps {name} in memory, which would be read after it is overwritten. "
                f"Pass another out{', or c itself' if name == 'c' else ''}, or leave it out."
            )


def plan_of(
    a: Any, b: Any, *, c: Any = None, out: Any = None, plan: GemmPlan | str | None = None
) -> GemmPlan:
    """The plan that `gemm` carries out for these tensors, which are not touched.

    raises   as `gemm` does, and UnsupportedError where nothing is launched or a copy is made first
    """
    prepared = _prepare(a, b, c, out, plan)
    if isinstance(prepared, list) or prepared.kernel is None:
        raise UnsupportedError(
            f"plan_of {_shapes(a, b)}: no kernel is launched on these tensors as they are."
        )
    return prepared.kernel.plan


# --- what follows from the signature -----------------------------------------------------------------------


def _prepare(a: Any, b: Any, c: Any, out: Any, plan: GemmPlan | str | None) -> _Call | list[str]:
    """Checks a signature that is new, and finds its kernel.

    returns   the call, or the names of the operands that have no stride of 1
    raises    CutegemmError in words
    """
    from cutegemm import torch_ops

    given = {name: v for name, v in (("a", a), ("b", b), ("c", c), ("out", out)) if v is not None}
    _check_dtypes(given, torch_ops)
    batched, (m, n, k, l) = _extents(given)  # noqa: E741
    _check_devices(given)
    result = (l, m, n) if batched else (m, n)
    dtype = given["out"].dtype if "out" in given else given["c"].dtype if "c" in given else None
    dtype = dtype or torch_ops.RESULTS[a.dtype][0]
    views = {name: View.of(name, tensor, batched, _wanted(plan, name)) for name, tensor in given.items()}
    copies = [name for name, view in views.items() if view.major is None]
    if copies:
        return copies
    if out is None:
        views["out"] = View.fresh(result, torch_ops.DTYPES[dtype].bits // 8, batched)
    views.setdefault("c", views["out"])
    ordered = [views[name] for name in ("a", "b", "c", "out")]
    if 0 in result:
        return _Call(ordered, None, result, dtype)
    device = a.get_device()
    arch = torch_ops.device_arch(device)
    kinds = torch_ops.DTYPES[a.dtype], torch_ops.DTYPES[dtype]
    has_c = "c" in given

    def operands(by_box: bool) -> Operands:
        return operands_of(views, *kinds, batched, by_box)

    problem = Problem(m, n, k, l, operands(False))
    if plan is None:
        chosen = _chosen(operands, problem, arch, torch_ops.multiprocessors(device), has_c)
    elif isinstance(plan, str):
        chosen = plan_named(plan, operands(plan.startswith("sm90")), has_c, arch)
    else:
        chosen = _given_plan(plan, operands(plan.family == "sm90"), problem, has_c)
    tiles = chosen.grid(problem)
    if tiles[0] * tiles[1] * tiles[2] > MAX_GRID_X:
        raise UnsupportedError(
            f"gemm of {_shapes(a, b)}: {tiles} tiles are more than the {MAX_GRID_X} of a grid."
        )
    call = _Call(ordered, compile_plan(chosen, arch), result, dtype)
    call.held = plan
    if not any(call.strides) and torch_ops.devices() == 1:
        call.function = _callable(call.kernel)
    if len(_calls) >= _MOST_SIGNATURES:
        _calls.clear()
    return call


def _chosen(
    operands: Callable[[bool], Operands], problem: Problem, arch: str, multiprocessors: int, has_c: bool
) -> GemmPlan:
    """By wgmma where the device has it and TMA can load A and B, else by mma.sync or by threads."""
    if arch == "sm_90a":
        boxed = operands(True)
        if boxed.a.dtype.bits <= 16 and boxed.a.align_bytes >= ALIGN_BYTES <= boxed.b.align_bytes:
            with contextlib.suppress(PlanError):
                return choose_sm90(boxed, problem, multiprocessors, has_c)
    return choose(operands(False), problem, arch, multiprocessors, has_c)


def _check_dtypes(given: dict[str, Any], torch_ops: Any) -> None:
    kinds = {name: _name(tensor.dtype) for name, tensor in given.items()}
    served = ", ".join(_name(t) for t in torch_ops.RESULTS)
    found = [
        f"{name} is of {kinds[name]}; {served} are served."
        for name in ("a", "b")
        if given[name].dtype not in torch_ops.RESULTS
    ]
    if kinds["b"] != kinds["a"]:
        found.append(f"a is of {kinds['a']}, b of {kinds['b']}; they must be of one type.")
    allowed = [_name(t) for t in torch_ops.RESULTS.get(given["a"].dtype, ())]
    for name in ("c", "out"):
        if name in given and allowed and kinds[name] not in allowed:
            found.append(f"{name} is of {kinds[name]}; {' or '.join(allowed)} is expected.")
    if "c" in given and "out" in given and kinds["c"] != kinds["out"]:
        found.append(f"c is of {kinds['c']}, out of {kinds['out']}; they must be of one type.")
    if found:
        raise UnsupportedError("gemm: " + "\n  ".join(found))


def _check_devices(given: dict[str, Any]) -> None:
    a, found = given["a"], []
    for name, tensor in given.items():
        if not tensor.is_cuda:
            found.append(f"{name} is on {tensor.device}; tensors on a CUDA device are served.")
        elif tensor.get_device() != a.get_device():
            found.append(f"{name} is on {tensor.device}, a on {a.device}; all must be on one device.")
    if found:
        raise UnsupportedError("gemm: " + "\n  ".join(found))


def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _extents(given: dict[str, Any]) -> tuple[bool, tuple[int, int, int, int]]:
    """Whether there is a batch, and (m, n, k, l), all shapes checked against them."""
    a, b = given["a"], given["b"]
    if a.dim() not in (2, 3) or a.dim() != b.dim():
        raise UnsupportedError(
            f"gemm: a has shape {tuple(a.shape)}, b {tuple(b.shape)}; two matrices, or two batches of "
            "matrices, are expected. Expand a matrix that all of a batch share: b.expand(l, -1, -1)."
        )
    batched = a.dim() == 3
    m, k, n = int(a.shape[-2]), int(a.shape[-1]), int(b.shape[-1])
    l = int(a.shape[0]) if batched else 1  # noqa: E741
    batch = (l,) if batched else ()
    found = [
        f"{name} has shape {tuple(given[name].shape)}; {shape} is expected."
        for name, shape in (("b", (*batch, k, n)), ("c", (*batch, m, n)), ("out", (*batch, m, n)))
        if name in given and tuple(given[name].shape) != shape
    ]
    if found:
        raise UnsupportedError(f"gemm: a has shape {tuple(a.shape)}.\n  " + "\n  ".join(found))
    return batched, (m, n, k, l)


def _wanted(plan: GemmPlan | str | None, name: str) -> int | None:
    """Which mode of a matrix a plan that the caller made has contiguous."""
    if plan is None or isinstance(plan, str):
        return None
    return MODES[name].index(getattr(plan.operands, "d" if name == "out" else name).major)


def _given_plan(plan: GemmPlan, operands: Operands, problem: Problem, has_c: bool) -> GemmPlan:
    """A plan that the caller made, held against what it is to serve."""
    found = []
    ours = plan.operands
    if ours.a.dtype is tf32:  # f32 in memory
        operands = as_tf32(operands)
    if has_c and not plan.has_c:
        found.append("c is given, but the plan does not read C. Make it with_c=True.")
    for name in "abcd":
        want, have = getattr(ours, name), getattr(operands, name)
        if want.dtype != have.dtype or want.major != have.major:
            found.append(f"{name.upper()} is {have}; the plan is made for {want}.")
        elif have.align_bytes < want.align_bytes:
            found.append(
                f"{name.upper()} is aligned to {have.align_bytes} bytes, in its address, its strides and its "
                f"contiguous extent; the plan needs {want.align_bytes}."
            )
    if ours.batched != operands.batched:
        found.append(
            f"the tensors have {'a' if operands.batched else 'no'} batch mode; the plan expects otherwise."
        )
    if found:
        raise PlanError(f"gemm of {problem} by the plan {plan.name!r}", found)
    return plan


def _shapes(a: Any, b: Any) -> str:
    return f"{tuple(a.shape)} by {tuple(b.shape)}"
