"""What `gemm` asks of its arguments: every rule that is broken, in the caller's own values, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cutegemm.dtypes import tf32
from cutegemm.errors import PlanError, UnsupportedError
from cutegemm.plan.mma_sync_catalog import as_tf32
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Operands, Problem
from cutegemm.views import MODES, View, share_memory

_MOST_EXTENT = 2**31 - 1024  # kernels count with 32 bits, up to the end of the last tile


def check_dtypes(given: dict[str, Any], torch_ops: Any) -> None:
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
    of_bytes = given["a"].dtype.is_floating_point and given["a"].element_size() == 1  # C is then read apart
    if "c" in given and "out" in given and kinds["c"] != kinds["out"] and not of_bytes:
        found.append(f"c is of {kinds['c']}, out of {kinds['out']}; they must be of one type.")
    if found:
        raise UnsupportedError("gemm: " + "\n  ".join(found))


def check_devices(given: dict[str, Any]) -> None:
    a, found = given["a"], []
    for name, tensor in given.items():
        if not tensor.is_cuda:
            found.append(f"{name} is on {tensor.device}; tensors on a CUDA device are served.")
        elif tensor.get_device() != a.get_device():
            found.append(f"{name} is on {tensor.device}, a on {a.device}; all must be on one device.")
    if found:
        raise UnsupportedError("gemm: " + "\n  ".join(found))


def check_memory(given: dict[str, Any]) -> None:
    """That a kernel may read the elements of a tensor where it says they are."""
    found = []
    for name, tensor in given.items():
        if tensor.numel() and not tensor.data_ptr():
            found.append(
                f"{name} is a {type(tensor).__name__} without memory of its own. Pass the tensor inside of it."
            )
        elif tensor.is_neg():
            found.append(f"{name} is a view whose elements are negated. Pass {name}.resolve_neg().")
    if found:
        raise UnsupportedError("gemm: " + "\n  ".join(found))


def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def extents_of(given: dict[str, Any]) -> tuple[bool, tuple[int, int, int, int]]:
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
    found += [
        f"{letter} is {extent}; {_MOST_EXTENT} at most is served."
        for letter, extent in zip("MNKL", (m, n, k, l), strict=True)
        if extent > _MOST_EXTENT
    ]
    if found:
        raise UnsupportedError(f"gemm: a has shape {tuple(a.shape)}.\n  " + "\n  ".join(found))
    return batched, (m, n, k, l)


def wanted_mode(plan: GemmPlan | str | None, name: str) -> int | None:
    """Which mode of a matrix a plan that the caller made has contiguous."""
    if plan is None or isinstance(plan, str):
        return None
    return MODES[name].index(getattr(plan.operands, "d" if name == "out" else name).major)


def check_plan(plan: GemmPlan, operands: Operands, problem: Problem, has_c: bool) -> GemmPlan:
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


def shapes_of(a: Any, b: Any) -> str:
    return f"{tuple(a.shape)} by {tuple(b.shape)}"


def check_values(a: Any, b: Any, c: Any, beta: float) -> None:
    if beta != 0 and c is None:
        raise UnsupportedError(f"gemm: beta = {beta!r}, but no c is given. Pass c, or leave beta at 0.")
    if a.requires_grad or b.requires_grad or (c is not None and c.requires_grad):
        _check_no_gradients()


def _check_no_gradients() -> None:
    from torch import is_grad_enabled

    if is_grad_enabled():
        raise UnsupportedError(
            "gemm records no gradients. Pass a.detach(), or call it under torch.no_grad()."
        )


def check_out(a: Any, b: Any, c: Any, out: Any, views: Sequence[View]) -> None:
    """`out` must lie apart from a and b, and from c unless it is c; and no gradient may be lost by it."""
    if out.requires_grad:
        _check_no_gradients()
    start, written = out.data_ptr(), views[3]
    end = start + written.span
    for name, tensor, view in (("a", a, views[0]), ("b", b, views[1]), ("c", c, views[2])):
        if tensor is None:
            continue
        first = tensor.data_ptr()
        if first >= end or start >= first + view.span or not share_memory(written, start, view, first):
            continue
        if name == "c" and first == start and (c.dtype, c.stride()) == (out.dtype, out.stride()):
            continue
        raise UnsupportedError(
            f"gemm: out overlaps {name} in memory, which would be read after it is overwritten. "
            f"Pass another out{', or c itself' if name == 'c' else ''}, or leave it out."
        )
