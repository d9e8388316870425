"""The operator `cutegemm::grouped_mm` of torch.library: its kernel, its fake, its gradients and its flop count.

Gradients are grouped products too. Let g be the derivative by the accumulator. The gradient by a is g B^T and that by b
is A^T g, each in the form that its factors have: a group of rows becomes a group of k, and the other way round.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch._C._functorch import is_batchedtensor

from cutegemm.run.calls import ASKING, How, is_batch_invariant
from cutegemm.torch import checks
from cutegemm.torch.autograd import needed, with_saved
from cutegemm.torch.autograd import product as batched_product
from cutegemm.torch.derivatives import ACC, TensorRules, pullback
from cutegemm.torch.dispatch import TRANSFORMS, Route, is_transformed, route_of
from cutegemm.torch.epilogue import PLAIN, OutDtype, formula, types_read, types_text
from cutegemm.torch.grouped.forms import Form
from cutegemm.torch.grouped.launch import compute_grouped
from cutegemm.torch.grouped.prepared import joined_results
from cutegemm.torch.grouped.reference import added_rows, allocated, grouped_by_torch, rows_of
from cutegemm.torch.launch import AS_CHOSEN
from cutegemm.torch.library import define
from cutegemm.torch.reference import Values, accumulator_dtype

NAME, SCALED = "cutegemm::grouped_mm", "cutegemm::scaled_grouped_mm"
SCHEMAS = {
    NAME: "(Tensor a, Tensor b, Tensor ends, str epilogue, Tensor[] operands, float[] scalars, str? out_dtype, "
    "str? plan, str accumulate, bool zeroed) -> Tensor[]",
    SCALED: "(Tensor a, Tensor b, Tensor ends, Tensor scale_a, Tensor scale_b, str epilogue, Tensor[] operands, "
    "float[] scalars, str? out_dtype, str? plan) -> Tensor[]",
}
CHECKS_ENDS = os.environ.get("CUTEGEMM_CHECK_GROUPS") == "1"  # whether each call checks the ends of groups


def compute(
    a: torch.Tensor,
    b: torch.Tensor,
    ends: torch.Tensor,
    text: str,
    operands: Sequence[torch.Tensor],
    scalars: Sequence[float],
    out_dtype: OutDtype,
    how: How,
    zeroed: bool,
    scales: Sequence[torch.Tensor] = (),
    joined: bool | None = None,
    index: torch.Tensor | None = None,
    d_index: torch.Tensor | None = None,
    targets: int = 0,
) -> list[torch.Tensor]:
    """Return the results of a grouped GEMM: by a kernel for CUDA tensors, else by torch.

    The arguments are those of `launch.compute_grouped`.

    raises   UnsupportedError for ends of groups that decrease or exceed the extent, and for indices of rows that a does
             not have, if the environment variable CUTEGEMM_CHECK_GROUPS was "1" at the import. The host then waits for
             them in each call
    """
    if CHECKS_ENDS:
        rules = Form.of(a, b, ends, index).wrong_ends(ends.tolist())
        if index is not None:
            rules += _wrong_rows(index, a.shape[0], ends)
        checks.refuse("grouped_mm", {"mat_a": a, "mat_b": b}, rules)
    if not a.is_cuda and ASKING.device is None:
        rows = a if index is None else rows_of(a, index)
        results = grouped_by_torch(rows, b, ends, text, operands, scalars, out_dtype, zeroed or targets > 0, scales)
        return joined_results(results if d_index is None else added_rows(results, d_index, targets), joined)
    options = text, operands, scalars, out_dtype, how, zeroed, scales, joined, index, d_index, targets
    return compute_grouped(a, b, ends, *options)


def _wrong_rows(index: torch.Tensor, rows: int, ends: torch.Tensor) -> list[str]:
    """Return an error message, in a list, for the first index that is not the number of a row; else an empty list.

    rows   number of rows of the matrix
    ends   the end of each group. Indices after the last one are not read

    >>> _wrong_rows(torch.tensor([0, 3, -1]), 3, torch.tensor([1, 2]))
    ['a_index[1] is 3. Pass 0 to 2, the rows of mat_a.']
    """
    index = index[: max([0, *ends.tolist()])]
    wrong = ((index < 0) | (index >= rows)).nonzero().flatten().tolist()
    rule = f". Pass 0 to {rows - 1}, the rows of mat_a." if rows else ", but mat_a has no rows."
    return [f"a_index[{i}] is {int(index[i])}{rule}" for i in wrong[:1]]


def product(
    a: torch.Tensor,
    b: torch.Tensor,
    ends: torch.Tensor,
    text: str = PLAIN,
    operands: Sequence[torch.Tensor] = (),
    scalars: Sequence[float] = (),
    out_dtype: OutDtype = None,
    how: How = AS_CHOSEN,
    zeroed: bool = False,
    joined: bool | None = None,
    index: torch.Tensor | None = None,
) -> Sequence[torch.Tensor]:
    """Return the results of an epilogue of a grouped a @ b, D first, and let torch record gradients if they are wanted.

    A value that the backward pass reads may come after the results. The arguments are those of
    `launch.compute_grouped`.
    """
    route = route_of(a, b, ends, *operands, *([] if index is None else [index]))
    if route is Route.DIRECT:
        return compute(a, b, ends, text, operands, scalars, out_dtype, how, zeroed, joined=joined, index=index)
    if index is not None:  # gradients and graphs have no kernel that gathers
        if CHECKS_ENDS and route is Route.RECORDED:
            checks.refuse("grouped_mm", {"mat_a": a, "mat_b": b}, _wrong_rows(index, a.shape[0], ends))
        a = rows_of(a, index)
    if route in TRANSFORMS and is_transformed(a, b, ends, *operands):
        return joined_results(transformed(a, b, ends, text, operands, scalars, out_dtype, zeroed), joined)
    if torch.is_grad_enabled() and text != PLAIN and any(x.requires_grad for x in (a, b, *operands)):
        text = with_saved(text, len(operands))
    if route is Route.RECORDED:
        found = Recorded.apply((text, tuple(scalars), out_dtype, how, zeroed), a, b, ends, *operands)
        return found if joined is None else joined_results(list(found), joined)
    types = None if out_dtype is None else types_text(out_dtype)
    results: Sequence[torch.Tensor] = torch.ops.cutegemm.grouped_mm(
        a, b, ends, text, list(operands), list(scalars), types, how.plan, how.accumulate, zeroed
    )
    return results if joined is None else joined_results(list(results), joined)


def scaled_product(
    a: torch.Tensor,
    b: torch.Tensor,
    ends: torch.Tensor,
    scales: tuple[torch.Tensor, torch.Tensor],
    text: str,
    operands: Sequence[torch.Tensor] = (),
    scalars: Sequence[float] = (),
    out_dtype: OutDtype = None,
    how: How = AS_CHOSEN,
) -> Sequence[torch.Tensor]:
    """Return the results of an epilogue of a grouped, block-scaled a @ b. It has no derivatives.

    The arguments are those of `launch.compute_grouped`.
    """
    route = route_of(a, b, ends, *scales, *operands)
    if route is Route.DIRECT:
        return compute(a, b, ends, text, operands, scalars, out_dtype, how, False, scales)
    if route in TRANSFORMS and is_transformed(a, b, ends, *scales, *operands):
        return transformed(a, b, ends, text, operands, scalars, out_dtype, False, scales)
    types = None if out_dtype is None else types_text(out_dtype)
    results: Sequence[torch.Tensor] = torch.ops.cutegemm.scaled_grouped_mm(
        a, b, ends, *scales, text, list(operands), list(scalars), types, how.plan
    )
    return results


def transformed(a: torch.Tensor, b: torch.Tensor, ends: torch.Tensor, *options: Any) -> list[torch.Tensor]:
    """Return the results of a grouped GEMM by operations that torch can transform. The host waits for the ends.

    The arguments are those of `grouped_by_torch`.

    raises   UnsupportedError if the ends are a batch of torch.vmap
    """
    if is_batchedtensor(ends):
        rule = "the ends of groups are a batch of torch.vmap. Call it for each element of the batch in a loop."
        checks.refuse("grouped_mm", {"mat_a": a, "mat_b": b}, [rule])
    return grouped_by_torch(a, b, ends, *options)


def wrong_mode() -> list[str]:
    """Return an error message, in a list, if a context of `cutegemm.batch_invariant` is active; else an empty list."""
    if not is_batch_invariant(None):
        return []
    return ["grouped kernels are not batch invariant. Call it outside of cutegemm.batch_invariant()."]


def _kernel(*args: Any) -> list[torch.Tensor]:
    """Compute the operator."""
    a, b, ends, text, operands, scalars, types, plan, accumulate, zeroed = args
    how = How(plan=plan, accumulate=accumulate)
    return compute(a, b, ends, text, operands, scalars, types_read(types), how, zeroed)


def _scaled_kernel(*args: Any) -> list[torch.Tensor]:
    """Compute the block-scaled operator."""
    a, b, ends, of_a, of_b, text, operands, scalars, types, plan = args
    return compute(a, b, ends, text, operands, scalars, types_read(types), How(plan=plan), False, (of_a, of_b))


def _scaled_fake(*args: Any) -> list[torch.Tensor]:
    """Return results of the block-scaled operator with only a shape and a type."""
    a, b, ends, _, _, text, _, _, types, _ = args
    return allocated(a, b, ends, text, types_read(types))


def _fake(*args: Any) -> list[torch.Tensor]:
    """Return results with only a shape and a type."""
    a, b, ends, text, _, _, types, *_ = args
    return allocated(a, b, ends, text, types_read(types))


def _flops(a: Sequence[int], b: Sequence[int], *_: Any, **__: Any) -> int:
    """Return 2 M N K of a grouped a @ b, if all elements belong to groups.

    a, b   shapes

    >>> _flops((8, 4), (3, 4, 2)), _flops((8, 4), (4, 2)), _flops((3, 8, 4), (3, 4, 2))
    (128, 128, 384)
    """
    return 2 * prod(a if len(b) == 3 else a[-2:]) * b[-1]


# --- gradients ----------------------------------------------------------------------------------------------------


class Recorded(torch.autograd.Function):  # type: ignore[misc]
    """Computes a grouped GEMM in eager mode so that torch records it, without torch's dispatcher.

    It is called as apply((text, scalars, out_dtype, how, zeroed), a, b, ends, *operands), the arguments of `product`.
    """

    @staticmethod
    def forward(ctx: Any, call: Any, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        (text, scalars, *options), (a, b, ends, *operands) = call, tensors
        results = compute(a, b, ends, text, operands, scalars, *options)
        _save(ctx, (a, b, ends, text, operands, scalars), results)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *upstream: torch.Tensor | None) -> tuple[Any, ...]:
        by_a, by_b, by_operands = _gradients(ctx, upstream, ctx.needs_input_grad[1:3])
        return None, by_a, by_b, None, *by_operands


def _save(ctx: Any, inputs: tuple[Any, ...], output: Sequence[torch.Tensor]) -> None:
    """Save what the gradients need. The first inputs are those of the operator."""
    a, b, ends, text, operands, scalars, *_ = inputs
    ctx.text, ctx.scalars, ctx.count = text, tuple(scalars), len(operands)
    names = formula(text).names[: len(operands)]
    wanted = [ACC] if a.requires_grad or b.requires_grad else []
    wanted += [name for name, x in zip(names, operands, strict=True) if x.requires_grad]
    ctx.wanted = frozenset(wanted)
    ctx.set_materialize_grads(False)
    reads = needed(text, ctx.wanted) if text != PLAIN else None
    is_read = [] if reads is None else [name in reads.names for name in names]
    ctx.again = reads is not None and ACC in reads.names
    results = (
        [None] * len(output) if reads is None else [x if i in reads.results else None for i, x in enumerate(output)]
    )
    ctx.shapes = [x.shape for x in operands]
    ctx.dtypes = a.dtype, b.dtype, *[x.dtype for x in operands]
    kept = [x if read else None for x, read in zip(operands, is_read or [False] * len(operands), strict=True)]
    ctx.save_for_backward(a, b, ends, *kept, *results)


def _backward(ctx: Any, upstream: Sequence[torch.Tensor | None]) -> tuple[Any, ...]:
    """Return the gradients by the inputs of the operator."""
    by_a, by_b, by_operands = _gradients(ctx, upstream, ctx.needs_input_grad[:2])
    scalars: Any = None if ctx.scalars else []
    return by_a, by_b, None, None, by_operands, scalars, None, None, None, None


def _gradients(ctx: Any, upstream: Sequence[torch.Tensor | None], needs: Sequence[bool]) -> tuple[Any, Any, list[Any]]:
    """Return the gradients by a, by b, and by each operand, or None if a gradient is not wanted.

    upstream   gradient of each result, or None
    needs      whether those by a and by b are wanted
    """
    a, b, ends, *saved = ctx.saved_tensors
    operands, results = saved[: ctx.count], saved[ctx.count :]
    form, read = Form.of(a, b, ends), formula(ctx.text)
    if ctx.text == PLAIN:
        derivatives: dict[str, Any] = {} if upstream[0] is None else {ACC: upstream[0]}
    else:
        shape = form.result_shapes(read)[0]
        of_rows = [x if x is None else spread(x, form, ends) for x in operands]
        named = dict(zip(read.names, [*of_rows, *ctx.scalars], strict=True))
        known = {node: x for node, x in reversed(list(zip(read.results, results, strict=True))) if x is not None}
        acc_dtype = accumulator_dtype(a.dtype)
        values = Values(lambda: product(a, b, ends, out_dtype=acc_dtype, zeroed=True)[0], named, shape, known)
        derivatives = pullback(read.results, upstream, values, ctx.wanted, TensorRules(shape))
    by_a = by_b = None
    g = derivatives.get(ACC)
    if g is not None:
        dtype = a.dtype if a.dtype.itemsize > 1 else torch.bfloat16
        g = g.to(dtype)
        if needs[0]:
            by_a = product(g, b.to(dtype).mT, ends, out_dtype=dtype, zeroed=True)[0]
        if needs[1] and form.is_padded:
            a, g = [torch.where(inside(form, ends), x.to(dtype), 0) for x in (a, g)]
            by_b = batched_product(a.mT, (g,), out_dtype=dtype)[0]
        elif needs[1]:
            by_b = product(a.to(dtype).mT, g, ends, out_dtype=dtype, zeroed=True)[0]
    names = read.names[: ctx.count]
    by_operands = [
        sum_of_groups(derivatives[name], shape, form, ends).to(dtype) if name in derivatives else None
        for name, shape, dtype in zip(names, ctx.shapes, ctx.dtypes[2:], strict=True)
    ]
    return by_a, by_b, by_operands


def _group_of(form: Form, ends: torch.Tensor) -> torch.Tensor:
    """Return the group of each row, or of each column if groups divide N; L for those after the last group.

    A group whose end is before that of an earlier group has no elements.
    """
    extent = form.m if form.groups == "m" else form.n
    index = torch.arange(extent, device=ends.device, dtype=ends.dtype)
    return torch.searchsorted(ends.cummax(0).values, index, right=True)


def inside(form: Form, ends: torch.Tensor) -> torch.Tensor:
    """Return which elements of D belong to a group, as booleans that broadcast to D."""
    if form.is_padded:
        return (torch.arange(form.m, device=ends.device) < ends.unsqueeze(1)).unsqueeze(2)
    return (_group_of(form, ends) < form.l).unsqueeze(1 if form.groups == "m" else 0)


def spread(x: torch.Tensor, form: Form, ends: torch.Tensor) -> torch.Tensor:
    """Return an operand of single groups as a tensor that broadcasts to D, if D has the rows of all groups."""
    if not form.has_groups(x) or form.groups == "k" or form.is_padded:
        return x
    rows = x[_group_of(form, ends).clamp(max=form.l - 1)]  # (M, 1, N) or (N, M, 1)
    return rows[:, 0] if form.groups == "m" else rows[..., 0].mT


def sum_of_groups(g: torch.Tensor, shape: torch.Size, form: Form, ends: torch.Tensor) -> torch.Tensor:
    """Return the gradient of an operand, of its shape: the sum of the derivatives over what it broadcasts to.

    g   derivative of each element of D by the operand
    """
    if form.groups == "k":
        return g.sum_to_size(shape)
    g = torch.where(inside(form, ends), g, 0)  # elements that belong to no group were not computed
    if len(shape) != 3 or form.is_padded:
        return g.sum_to_size(shape)
    group = _group_of(form, ends)
    member = torch.nn.functional.one_hot(group, form.l + 1)[:, : form.l].to(g.dtype)
    if form.groups == "m":
        return (member.mT @ g).unsqueeze(1)
    return (g @ member).mT.unsqueeze(2)


def _define() -> None:
    """Define the operators, and register their kernels, fakes and flop counts, and the gradients of the first."""
    for name, kernel, fake in ((NAME, _kernel, _fake), (SCALED, _scaled_kernel, _scaled_fake)):
        define(name, SCHEMAS[name], kernel, fake, _flops)
    torch.library.register_autograd(NAME, _backward, setup_context=_save)


_define()
