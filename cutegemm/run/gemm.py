"""gemm(a, b): checks its arguments, chooses a plan, compiles it or finds it compiled, and launches it.

A call looks up the signature of its arguments (types, shapes, strides, alignment, device); all that follows
from the signature was decided when it was first seen. What a warm call still does is to allocate the result,
to compare addresses where a result is given, and to launch.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cutegemm.choose.catalog import by_simt, by_wgmma, choose, prefers_transposed
from cutegemm.choose.names import recipe_named
from cutegemm.choose.recipe import Recipe
from cutegemm.dtypes import f32, tf32
from cutegemm.errors import CopyWarning, CutegemmError, UnsupportedError
from cutegemm.machine.device import Device
from cutegemm.plan.memory.packing import to_pack_for_wgmma
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Operands, Problem
from cutegemm.plan.rules.limits import limits
from cutegemm.run.checks import (
    WITHOUT_A_GPU,
    check_out,
    check_plan,
    extents_of,
    refused,
    shapes_of,
    wanted_mode,
    without_addresses,
    wrong_choices,
    wrong_devices,
    wrong_dtypes,
    wrong_extents,
    wrong_memory,
    wrong_values,
)
from cutegemm.run.compile import CompiledKernel, compile_plan
from cutegemm.run.views import View, operands_of
from cutegemm.tile.tma import TmaBox

_MOST_SIGNATURES = 4096

_calls: dict[Any, _Call] = {}


class _Call:
    """What follows from the signature of the arguments.

    kernel     the compiled kernel, or None where D is empty
    on_views   the function that takes tensors with the strides that the kernel is to see
    function   the same, where it can be called with the tensors as they are
    strides    for a, b, c, out: those that the kernel is to see instead of the tensor's own, or None
    views      of a, b, c, out
    written    is told of `out`, so that autograd sees that it has changed
    shape      of D, and `dtype`, in torch
    held       the caller's plan, whose id is in the signature
    """

    __slots__ = ("dtype", "function", "held", "kernel", "on_views", "shape", "strides", "views", "written")

    def __init__(
        self, views: Sequence[View], kernel: CompiledKernel | None, shape: tuple[int, ...], dtype: Any
    ) -> None:
        self.kernel, self.shape, self.dtype = kernel, shape, dtype
        self.strides = tuple([view.strides for view in views])
        self.views = tuple(views)
        self.function: Any = None
        self.held: Any = None
        self.on_views: Any = None
        from torch.autograd.graph import increment_version

        self.written = increment_version


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
) -> Any:
    """alpha * a @ b + beta * c, on a CUDA device.

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
    returns  `out`, or a new row-major array of the framework of a
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
    try:
        key = (
            a.__class__, a.dtype, a.shape, a.stride(), a.data_ptr() & 15, a.get_device(), a.is_neg(),
            b.__class__, b.dtype, b.shape, b.stride(), b.data_ptr() & 15, b.get_device(), b.is_neg(),
            plan if plan.__class__ is str else id(plan), accumulate, allow_tf32,
            out if out is None else (
                out.__class__, out.dtype, out.shape, out.stride(), out.data_ptr() & 15, out.get_device(),
                out.is_neg(),
            ),
            c if c is None else (
                c.__class__, c.dtype, c.shape, c.stride(), c.data_ptr() & 15, c.get_device(), c.is_neg()
            ),
        )  # fmt: skip
    except (AttributeError, RuntimeError):
        how = {"plan": plan, "accumulate": accumulate, "allow_tf32": allow_tf32}
        return _through_torch(a, b, c, alpha, beta, out, how)
    call = _calls.get(key)
    if call is None:
        prepared = _prepare(a, b, c, out, beta, plan, accumulate, allow_tf32)
        if isinstance(prepared, list):
            how = {"plan": plan, "accumulate": accumulate, "allow_tf32": allow_tf32}
            return _with_copies(prepared, a, b, c, alpha, beta, out, how)
        call = _calls[key] = prepared
    if beta != 0 or a.requires_grad or b.requires_grad or (out is not None and out.requires_grad):
        wrong = wrong_values(_given(a, b, c, out), beta)
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
        elif call.kernel is not None:
            _launch_as_seen(call, (a, b, result if c is None else c, result), alpha, beta)
    except (TypeError, ValueError, RuntimeError) as error:
        raise CutegemmError(f"gemm of {shapes_of(a, b)} by {call.kernel!r}: {error}") from error
    if out is not None:
        call.written(out)
    return result


def _given(a: Any, b: Any, c: Any, out: Any, needed: Sequence[str] = ()) -> dict[str, Any]:
    """The arguments that are given, by name; those needed also where they are None."""
    named = (("a", a), ("b", b), ("c", c), ("out", out))
    return {name: value for name, value in named if value is not None or name in needed}


def _callable(kernel: CompiledKernel, problem: Problem, turned: bool) -> Any:
    """What takes the tensors as they are: the compiled function, or what gives it a workspace besides.

    turned   the tensors' transposes are what the kernel takes, and the problem is theirs
    """
    function = kernel.for_problem(problem.m, problem.n, problem.k, problem.l)
    if not turned:
        return function
    return lambda a, b, c, d, alpha, beta: function(b.mT, a.mT, c.mT, d.mT, alpha, beta)


def _launch_as_seen(call: _Call, tensors: Sequence[Any], alpha: float, beta: float) -> None:
    """The launch where another device may be the current one, or an extent of 1 has any stride."""
    from torch.cuda import device

    assert call.kernel is not None
    seen = [
        tensor if strides is None else tensor.as_strided(tensor.shape, strides)
        for tensor, strides in zip(tensors, call.strides, strict=True)
    ]
    with device(tensors[0].get_device()):
        call.on_views(*seen, alpha, beta)


def _through_torch(a: Any, b: Any, c: Any, alpha: float, beta: float, out: Any, how: dict[str, Any]) -> Any:
    """For arrays of other frameworks: as torch tensors over the same memory.

    how   the other arguments of `gemm`
    """
    try:
        from cutegemm.run import torch_ops
    except ImportError as error:
        raise UnsupportedError(
            f"gemm: torch is needed to launch a kernel: pip install 'cutegemm[torch]'. {WITHOUT_A_GPU}"
        ) from error
    given = torch_ops.tensors_of(_given(a, b, c, out, needed=("a", "b")))
    wrong = without_addresses(given)
    if wrong:
        raise refused(given["a"], given["b"], wrong)
    result = gemm(
        given["a"], given["b"], c=given.get("c"), alpha=alpha, beta=beta, out=given.get("out"), **how
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
    how: dict[str, Any],
) -> Any:
    warnings.warn(
        f"gemm of {shapes_of(a, b)}: a contiguous copy of {' and '.join(names)} is made, where neither of the "
        "last two dimensions has a stride of 1. Pass a contiguous tensor, or a transposed one.",
        CopyWarning,
        stacklevel=3,
    )
    a, b, c = (v.contiguous() if name in names else v for name, v in (("a", a), ("b", b), ("c", c)))
    given = out.new_empty(out.shape) if "out" in names else out
    result = gemm(a, b, c=c, alpha=alpha, beta=beta, out=given, **how)
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
) -> GemmPlan:
    """The plan that `gemm` carries out for these tensors, which are not touched.

    raises   as `gemm` does, and UnsupportedError where nothing is launched or a copy is made first
    """
    prepared = _prepare(a, b, c, out, 0.0, plan, accumulate, allow_tf32)
    if isinstance(prepared, list) or prepared.kernel is None:
        raise UnsupportedError(
            f"plan_of {shapes_of(a, b)}: no kernel is launched on these tensors as they are."
        )
    return prepared.kernel.plan


def _prepare(
    a: Any,
    b: Any,
    c: Any,
    out: Any,
    beta: float,
    plan: GemmPlan | str | None,
    accumulate: str,
    allow_tf32: bool,
) -> _Call | list[str]:
    """Checks a signature that is new, and finds its kernel.

    returns   the call, or the names of the operands that have no stride of 1
    raises    CutegemmError in words
    """
    from cutegemm.run import torch_ops

    given = _given(a, b, c, out)
    wrong = [
        *wrong_choices(plan, accumulate, allow_tf32),
        *wrong_dtypes(given, torch_ops),
        *wrong_extents(given),
        *wrong_values(given, beta),
        *wrong_memory(given),
        *wrong_devices(given),
    ]
    if wrong:
        raise refused(a, b, wrong)
    batched, (m, n, k, l) = a.dim() == 3, extents_of(a, b)  # noqa: E741
    result = (l, m, n) if batched else (m, n)
    dtype = given["out"].dtype if "out" in given else given["c"].dtype if "c" in given else None
    dtype = dtype or torch_ops.RESULTS[a.dtype][0]
    views = {
        name: View.of(name, tensor, batched, wanted_mode(plan, name, tensor))
        for name, tensor in given.items()
    }
    copies = [name for name, view in views.items() if view.major is None]
    if copies:
        return copies
    if out is None:
        views["out"] = View.fresh(result, torch_ops.DTYPES[dtype].bits // 8, batched)
    views.setdefault("c", views["out"])
    ordered = [views[name] for name in ("a", "b", "c", "out")]
    if 0 in result:
        return _Call(ordered, None, result, dtype)
    index = a.get_device()
    arch, device = torch_ops.device_arch(index), torch_ops.device_of(index)
    kinds = torch_ops.DTYPES[a.dtype], torch_ops.DTYPES[dtype]
    if plan is None and allow_tf32 and kinds[0] is f32:
        kinds = tf32, kinds[1]
    has_c = "c" in given

    def operands(by_box: str | None) -> Operands:
        return operands_of(views, *kinds, batched, by_box, torch_ops.DTYPES[c.dtype] if has_c else None)

    asked = recipe_named(plan) if isinstance(plan, str) else plan
    boxed, problem = operands("ab"), Problem(m, n, k, l, operands(None))
    seen = operands(_loaded_by_box(asked, boxed))
    if asked is None:
        turned = prefers_transposed(boxed, replace(problem, operands=boxed), arch, device)
        chosen = _chosen(seen, problem, turned, arch, device, has_c, accumulate)
    elif isinstance(asked, Recipe):
        turned = asked.transposed
        chosen = asked.build(seen, has_c, arch, device)
    else:
        turned = False
        chosen = check_plan(asked, seen, problem, has_c)
    if turned:
        problem = problem.transposed
    too_large = list(limits(chosen, problem))
    if too_large:
        raise refused(a, b, too_large)
    kernel = compile_plan(chosen, arch)
    call = _Call(ordered, kernel, result, dtype)
    call.held, call.on_views = plan, _callable(kernel, problem, turned)
    if not any(call.strides) and torch_ops.devices() == 1:
        call.function = call.on_views
    if len(_calls) >= _MOST_SIGNATURES:
        _calls.clear()
    return call


def _loaded_by_box(asked: GemmPlan | Recipe | None, boxed: Operands) -> str | None:
    """Which operands TMA loads for a plan, or for a Hopper plan that is chosen; None where threads load them all.

    boxed   the operands as TMA would load them all
    """
    if isinstance(asked, Recipe):
        return asked.boxes(boxed)
    if asked is not None and not isinstance(asked.load_a, TmaBox):
        return None
    packed = to_pack_for_wgmma(boxed) if asked is None else [packing.name for packing in asked.packs]
    return "".join([name for name in "ab" if name not in packed])


def _chosen(
    boxed: Operands,
    problem: Problem,
    turned: bool,
    arch: str,
    device: Device,
    has_c: bool,
    accumulate: str,
) -> GemmPlan:
    """By wgmma where the device has it and it is held to be faster, else by mma.sync or by threads.

    boxed    the operands as TMA loads those that are not to be packed
    turned   whether the plan is for the transposed problem
    """
    if turned:
        boxed, problem = boxed.transposed, problem.transposed
    if arch == "sm_90a" and not by_simt(boxed.a.dtype):
        found = by_wgmma(boxed, problem, device, has_c, accumulate)
        if found is not None:
            return found
        arch = "sm_90"  # by what is left
    return choose(problem.operands, problem, arch, device, has_c)
