"""A product with an epilogue, by the shortest way that torch allows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from cutegemm.errors import UnsupportedError
from cutegemm.run.calls import How
from cutegemm.torch.activations import activated, gated
from cutegemm.torch.gradients import Call, Extents, gradients, saved, with_kept
from cutegemm.torch.launch import (
    AS_CHOSEN,
    OF_LAYER,
    PLAIN,
    Outs,
    by_torch,
    compute,
    dgated_by_torch,
    dgated_of,
    factors_read,
    result_dtype,
)
from cutegemm.torch.route import Route, route_of
from cutegemm.torch.text import OutDtype, formula, types_text


def product(
    a: torch.Tensor,
    b: tuple[torch.Tensor, ...],
    text: str = PLAIN,
    operands: tuple[torch.Tensor, ...] = (),
    scalars: tuple[float, ...] = (),
    out_dtype: OutDtype = None,
    how: How = AS_CHOSEN,
    outs: Outs = None,
) -> Sequence[torch.Tensor]:
    """Return the results of an epilogue of a @ b, D first, perhaps followed by what the backward pass reads.

    a, b        M x K and K x N, or batches of them of one length; b in parts, side by side
    text        the epilogue: see `text`
    operands    of the epilogue, which broadcast against D; `scalars` follow them
    out_dtype   see `launch.result_dtypes`
    outs        tensors that results are written to, None for a new one; none of the tensors has gradients then
    """
    a, b = factors_read(a, b, text, scalars)
    if outs is not None and any(out is not None for out in outs):
        return _into(outs, a, b, text, operands, scalars, out_dtype, how)
    route = route_of(a, *b, *operands)
    if route is Route.DIRECT:
        return compute(a, b, text, operands, scalars, out_dtype, how)
    if torch.is_grad_enabled():
        text = kept_text(text, a, b, operands)
    if route is Route.RECORDED:
        return Recorded.apply(Call(text, scalars, out_dtype, how), len(b), a, *b, *operands)
    if route is Route.TRANSFORMED:
        return Transformed.apply(Call(text, scalars, out_dtype, how), len(b), a, *b, *operands)
    if route is Route.DECOMPOSED:
        # Copied together also where they lie side by side: a view of the first has no derivatives by the others.
        whole = b[0] if len(b) == 1 else torch.cat(b, -1)
        return by_torch(a, whole, formula(text), [*operands, *scalars], out_dtype)
    return by_operator(a, b, text, operands, scalars, out_dtype, how)


def _into(
    outs: Sequence[torch.Tensor | None],
    a: torch.Tensor,
    b: tuple[torch.Tensor, ...],
    text: str,
    operands: tuple[torch.Tensor, ...],
    scalars: tuple[float, ...],
    out_dtype: OutDtype,
    how: How,
) -> Sequence[torch.Tensor]:
    """Write results to tensors of the caller, and return all results. A graph copies them, unless D is the only one."""
    given = [each for each in outs if each is not None]
    if route_of(a, *b, *given, *operands) is Route.DIRECT:
        return compute(a, b, text, operands, scalars, out_dtype, how, outs)
    if len(outs) > 1:
        asked = out_dtype if isinstance(out_dtype, tuple) else (out_dtype,)
        d = result_dtype(a, asked[0])
        of_all = [*asked, *[None] * (len(outs) - len(asked))]
        types = tuple(
            [each or d if out is None else out.dtype for each, out in zip(of_all, outs, strict=True)]
        )
        found = product(a, b, text, operands, scalars, types, how)
        pairs = zip(outs, found[: len(outs)], strict=True)
        return [each if out is None else out.copy_(each) for out, each in pairs]
    (out,) = given
    if text == PLAIN and len(b) == 1 and how == AS_CHOSEN:
        torch.ops.cutegemm.mm_out(a, b[0], out)
    else:
        torch.ops.cutegemm.gemm_out(a, list(b), text, list(operands), list(scalars), out, *how.options)
    return [out]


def layered(
    x: torch.Tensor,
    b: tuple[torch.Tensor, ...],
    bias: torch.Tensor | None,
    activation: str | None = None,
    keeps: bool = False,
    interleaved: bool = False,
) -> Sequence[torch.Tensor]:
    """Return act(x @ b + bias) of a layer and, if it is kept, what is in front of the activation.

    b             a weight as K x N; two of them, of gate and up, for a gated activation
    interleaved   whether b is one weight whose columns are gates and ups in turn
    """
    names = () if bias is None else ("bias",)
    is_gated = len(b) == 2 or interleaved
    text = gated(activation, names, interleaved, keeps) if is_gated else activated(activation, names, keeps)
    return product(x, b, text, () if bias is None else (bias,), how=OF_LAYER)


def kept_text(text: str, a: torch.Tensor, b: Sequence[torch.Tensor], operands: Sequence[torch.Tensor]) -> str:
    """The epilogue with what its derivatives read, where gradients are to be recorded."""
    if text == PLAIN or not any(x.requires_grad for x in (a, *b, *operands)):
        return text
    # Every operand's: one more result is a matter of the epilogue, not of who is trained.
    return with_kept(text, len(operands))


def multiply(a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype, how: How) -> torch.Tensor:
    """a @ b alone, as the backward pass asks for it."""
    return product(a, (b,), out_dtype=dtype, how=how)[0]


def by_dgated(
    a: torch.Tensor, b: torch.Tensor, preact: torch.Tensor, activation: str, how: How = AS_CHOSEN
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the backward pass of a gated activation, which records no gradients itself: see `dgated_of`."""
    route = route_of(a, b, preact)
    if route is Route.DECOMPOSED:
        return dgated_by_torch(a, b, preact, activation)
    if route is Route.OPERATOR:
        found: tuple[torch.Tensor, torch.Tensor] = torch.ops.cutegemm.gemm_dgated(
            a, b, preact, activation, how.varying_rows
        )
        return found
    return dgated_of(a, b, preact, activation, how=how)


def by_operator(
    a: torch.Tensor,
    b: Sequence[torch.Tensor],
    text: str,
    operands: Sequence[torch.Tensor],
    scalars: Sequence[float],
    out_dtype: OutDtype,
    how: How,
) -> Sequence[torch.Tensor]:
    """Return the results of a product by its operator of torch.library."""
    if (
        text == PLAIN
        and len(b) == 1
        and how in (AS_CHOSEN, OF_LAYER)
        and (out_dtype is None or isinstance(out_dtype, torch.dtype))
    ):
        return [torch.ops.cutegemm.mm(a, b[0], out_dtype, how.varying_rows)]
    if how.plan is not None and not isinstance(how.plan, str):
        raise UnsupportedError(
            f"gemm: plan is a {type(how.plan).__name__}, which no graph can hold. Pass the name of a plan, or none."
        )
    found: Sequence[torch.Tensor] = torch.ops.cutegemm.gemm(
        a,
        list(b),
        text,
        list(operands),
        list(scalars),
        None if out_dtype is None else types_text(out_dtype),
        *how.options,
    )
    return found


class Recorded(torch.autograd.Function):  # type: ignore[misc]
    """A product in autograd's record, without torch's dispatcher.

    apply(call, parts of b, a, *b, *operands) gives the results.
    """

    @staticmethod
    def forward(
        ctx: Any, call: Call, parts: int, a: torch.Tensor, *others: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        results = compute(
            a, others[:parts], call.text, others[parts:], call.scalars, call.out_dtype, call.how
        )
        keep(ctx, call, parts, (a, *others), results, ctx.needs_input_grad[2:])
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *upstream: torch.Tensor | None) -> tuple[Any, ...]:
        return (None, None, *backward(ctx, upstream, ctx.needs_input_grad[2:]))


class Transformed(Recorded):
    """The same for torch.func's transformations, which take it apart: the product by its operator, and the way back."""

    generate_vmap_rule = True

    @staticmethod
    def forward(call: Call, parts: int, a: torch.Tensor, *others: torch.Tensor) -> tuple[torch.Tensor, ...]:  # type: ignore[override]
        b, operands = others[:parts], others[parts:]
        return tuple(by_operator(a, b, call.text, operands, call.scalars, call.out_dtype, call.how))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Sequence[torch.Tensor]) -> None:
        call, parts, *tensors = inputs
        keep(ctx, call, parts, tensors, output, [True] * len(tensors))


def keep(
    ctx: Any,
    call: Call,
    parts: int,
    tensors: Sequence[torch.Tensor],
    results: Sequence[torch.Tensor],
    needs: Sequence[bool],
) -> None:
    """Notes in the context of a call what its backward pass reads."""
    ctx.call, ctx.parts, ctx.needs = call, parts, tuple(needs)
    ctx.extents = tuple([Extents.of(x) for x in tensors])
    ctx.save_for_backward(*saved(call, tensors, results, needs, parts))
    ctx.set_materialize_grads(False)


def backward(
    ctx: Any, upstream: Sequence[torch.Tensor | None], needs: Sequence[bool]
) -> list[torch.Tensor | None]:
    """The gradients by a, the parts of b and the operands.

    needs   which of them are asked for: none that `keep` was not told of
    """
    return gradients(ctx.call, ctx.extents, ctx.parts, ctx.saved_tensors, upstream, needs, multiply)
