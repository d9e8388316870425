"""A product with an epilogue, by the shortest route that torch allows, and its gradients.

Let g be the derivative by the accumulator, from `derivatives.pullback`. The gradients are g B^T, A^T g, and sums of g
times what an operand is multiplied with. The accumulator itself is seldom needed: the rules read a result that was
stored, or is stored for them (`with_saved`); otherwise the product is computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch

from cutegemm.errors import UnsupportedError
from cutegemm.plan.epilogue import Compare, Expression, Tensor
from cutegemm.run.calls import How
from cutegemm.torch.activations import activated, gated
from cutegemm.torch.derivatives import ACC, ExpressionRules, TensorRules, nodes_of, operands_read, pullback
from cutegemm.torch.dispatch import Route, route_of
from cutegemm.torch.epilogue import PLAIN, OutDtype, constant, formula, text_of, types_text
from cutegemm.torch.launch import (
    AS_CHOSEN,
    OF_LAYER,
    compute,
    dgated_by_torch,
    dgated_of,
    factors_read,
    in_mode,
    joined,
    refuse_torch,
)
from cutegemm.torch.reference import Outs, Values, accumulator_dtype, by_torch, copied_to, result_dtype

Tensors = Sequence[torch.Tensor]
Gradients = Sequence[torch.Tensor | None]
Times = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class Call:
    """Holds the options of a GEMM with an epilogue, apart from its tensors, for the autograd function that computes it.

    The backward pass derives the gradients from these options and from the tensors that the forward pass saved.

    text        the epilogue as text, e.g. "lambda acc, bias: relu(acc + bias)"
    scalars     values of the numbers that the epilogue takes after its tensors
    out_dtype   torch dtype of all results, or a sequence with a dtype or None for each; None: the default of `gemm`
    how         other options of `gemm`, such as the plan and the kind of accumulation
    """

    text: str
    scalars: tuple[float, ...] = ()
    out_dtype: OutDtype = None
    how: How = AS_CHOSEN


# --- the product --------------------------------------------------------------------------------------------------


def product(
    a: torch.Tensor,
    b: tuple[torch.Tensor, ...],
    text: str = PLAIN,
    operands: tuple[torch.Tensor, ...] = (),
    scalars: tuple[float, ...] = (),
    out_dtype: OutDtype = None,
    how: How | None = None,
    outs: Outs = None,
) -> Tensors:
    """Return the results of an epilogue of a @ b, D first; if a tensor requires gradients, torch records the call.

    Further results, which only the backward pass reads, may come after those of the epilogue.

    a           M x K, or a batch of such matrices
    b           tuple of one K x N matrix or batch, or of several that stand side by side as columns of one (gate and
                up)
    text        the epilogue as text, e.g. "lambda acc, bias: acc + bias"
    operands    tensors of the epilogue, which broadcast to D; `scalars` come after them
    scalars     numbers of the epilogue
    out_dtype   torch dtype of all results, or a sequence with a dtype or None for each; None: the default of `gemm`
    how         options of `gemm`; None: its defaults, batch invariant inside of `cutegemm.batch_invariant()`
    outs        for each result a tensor to write it to, or None for a new one; None: all new. With `outs`, no tensor
                may require gradients
    """
    if how is None:
        how = in_mode(AS_CHOSEN)
    a, b = factors_read(a, b, text, scalars)
    if outs is not None and any(out is not None for out in outs):
        return _into(outs, a, b, text, operands, scalars, out_dtype, how)
    route = route_of(a, *b, *operands)
    if route is Route.DIRECT:
        return compute(a, b, text, operands, scalars, out_dtype, how)
    if torch.is_grad_enabled() and text != PLAIN and any(x.requires_grad for x in (a, *b, *operands)):
        # For every operand: which of them are trained must not change the epilogue.
        text = with_saved(text, len(operands))
    if route is Route.RECORDED:
        return Recorded.apply(Call(text, scalars, out_dtype, how), len(b), a, *b, *operands)
    if route is Route.TRANSFORMED:
        return Transformed.apply(Call(text, scalars, out_dtype, how), len(b), a, *b, *operands)
    if route is Route.DECOMPOSED:
        if how.batch_invariant:
            refuse_torch("product", f"it is viewed as {route.value}")
        # A copy also if the parts are adjacent: a view of the first has no derivatives by the others.
        whole = b[0] if len(b) == 1 else torch.cat(b, -1)
        return by_torch(a, whole, formula(text), [*operands, *scalars], out_dtype)
    # Dynamo of torch 2.11 does not follow a dataclass that holds another one, such as `Call`.
    return by_operator(a, b, text, operands, scalars, out_dtype, how)


def _into(
    outs: Gradients,
    a: torch.Tensor,
    b: tuple[torch.Tensor, ...],
    text: str,
    operands: tuple[torch.Tensor, ...],
    scalars: tuple[float, ...],
    out_dtype: OutDtype,
    how: How,
) -> Tensors:
    """Compute a @ b with an epilogue, write the results to tensors of the caller, and return all results, D first.

    In a graph of torch.compile, results are copied to these tensors, unless D is the only one.

    outs        for each result the caller's tensor, or None for a new one
    a           M x K, or a batch of such matrices
    b           tuple of matrices K x N_i that form one matrix side by side, e.g. gate and up weights
    text        the epilogue as text, e.g. "lambda acc, bias: acc + bias"; `operands` are its tensors, and `scalars` its
                numbers
    out_dtype   torch dtype of all results, or a sequence with a dtype or None for each; None: the default of `gemm`
    how         other options of `gemm`, such as the plan
    """
    written = [out for out in outs if out is not None]
    if route_of(a, *b, *written, *operands) is Route.DIRECT:
        return compute(a, b, text, operands, scalars, out_dtype, how, outs)
    if len(outs) > 1:
        asked = out_dtype if isinstance(out_dtype, tuple) else (out_dtype,)
        d = result_dtype(a, asked[0])
        asked = (*asked, *[None] * (len(outs) - len(asked)))
        types = [dtype or d if out is None else out.dtype for dtype, out in zip(asked, outs, strict=True)]
        return copied_to(outs, product(a, b, text, operands, scalars, tuple(types), how)[: len(outs)])
    (out,) = written
    if text == PLAIN and len(b) == 1 and how == AS_CHOSEN:
        torch.ops.cutegemm.mm_out(a, b[0], out)
    else:
        torch.ops.cutegemm.gemm_out(a, list(b), text, list(operands), list(scalars), out, *how.options)
    return [out]


def by_operator(
    a: torch.Tensor,
    b: Tensors,
    text: str,
    operands: Tensors,
    scalars: tuple[float, ...],
    dtype: OutDtype,
    how: How,
) -> Tensors:
    """Compute a @ b with an epilogue by an operator of torch.library, which a graph of torch.compile can contain.

    a        M x K, or a batch of such matrices
    b        matrices K x N_i that form one matrix side by side, e.g. gate and up weights
    text     the epilogue as text, e.g. "lambda acc, bias: acc + bias"; `operands` are its tensors, and `scalars` its
             numbers
    dtype    torch dtype of all results, or a sequence with a dtype or None for each; None: the default of `gemm`
    how      other options of `gemm`, such as the plan
    raises   UnsupportedError if `how` has a plan without a name: a graph contains names only
    """
    is_plain = text == PLAIN and len(b) == 1 and how in (AS_CHOSEN, OF_LAYER)
    if is_plain and (dtype is None or isinstance(dtype, torch.dtype)):
        return [torch.ops.cutegemm.mm(a, b[0], dtype, how.varying_rows)]
    if how.plan is not None and not isinstance(how.plan, str):
        raise UnsupportedError(
            f"gemm: plan is a {type(how.plan).__name__}, which no graph can hold. Pass the name of a plan, or none."
        )
    types = None if dtype is None else types_text(dtype)
    return torch.ops.cutegemm.gemm(a, list(b), text, list(operands), list(scalars), types, *how.options)


def layered(
    x: torch.Tensor,
    b: tuple[torch.Tensor, ...],
    bias: torch.Tensor | None,
    activation: str | None = None,
    stores_preact: bool = False,
    interleaved: bool = False,
    how: How | None = None,
) -> Tensors:
    """Return act(x @ b + bias) of a linear layer and, if `stores_preact`, the argument of the activation too.

    x               T x K: a row for each of T tokens
    b               tuple of one weight as K x N; or of two, gate and up, for a gated activation
    bias            (N,), or None
    activation      name such as "gelu" or "swiglu"; None for none
    stores_preact   True for a second result: the argument of the activation
    interleaved     True if b is one weight whose columns 2j and 2j + 1 are gate and up
    how             options of `gemm`; None: those of a layer, batch invariant inside of `cutegemm.batch_invariant()`
    """
    how = in_mode(OF_LAYER) if how is None else how
    names = () if bias is None else ("bias",)
    if len(b) == 2 or interleaved:
        text = gated(activation, names, interleaved, stores_preact)
    else:
        text = activated(activation, names, stores_preact)
    return product(x, b, text, () if bias is None else (bias,), how=how)


def gated_backward(
    a: torch.Tensor, b: torch.Tensor, preact: torch.Tensor, activation: str, how: How = OF_LAYER
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (gradient of a gated activation's argument, the gated values again), without recording gradients.

    In a graph, the call is an operator; under forward differentiation, it is operations of torch.

    a, b         factors whose product a @ b is the gradient of the gated values act(gate) * up
    preact       argument of the activation: gate columns in the left half, up columns in the right half
    activation   name of the gated activation, such as "swiglu"
    how          other options of `gemm`, such as the plan
    """
    route = route_of(a, b, preact)
    if route is Route.DECOMPOSED:
        if how.batch_invariant:
            refuse_torch("product", f"it is viewed as {route.value}")
        return dgated_by_torch(a, b, preact, activation)
    if route is Route.OPERATOR:
        results: tuple[torch.Tensor, torch.Tensor] = torch.ops.cutegemm.gemm_dgated(
            a, b, preact, activation, how.varying_rows, how.batch_invariant
        )
        return results
    return dgated_of(a, b, preact, activation, how)


class Recorded(torch.autograd.Function):  # type: ignore[misc]
    """Computes a GEMM with an epilogue in eager mode so that torch records it, and its gradients in the backward pass.

    `Recorded.apply(call, parts, a, *b, *operands)` returns the results of the epilogue. It launches the kernel
    directly, without torch's dispatcher.

    call       options of the GEMM: text of the epilogue, its numbers, types of the results
    parts      number of tensors in `b`: 1, or 2 for gate and up weights, which form one matrix side by side
    a, b       factors of the product a @ b
    operands   tensors that the epilogue reads, such as a bias
    """

    @staticmethod
    def forward(ctx: Any, call: Call, parts: int, a: torch.Tensor, *others: torch.Tensor) -> tuple[torch.Tensor, ...]:
        b, operands = others[:parts], others[parts:]
        results = compute(a, b, call.text, operands, call.scalars, call.out_dtype, call.how)
        save(ctx, call, parts, (a, *others), results, ctx.needs_input_grad[2:])
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *upstream: torch.Tensor | None) -> tuple[Any, ...]:
        return (None, None, *backward(ctx, upstream, ctx.needs_input_grad[2:]))


class Transformed(Recorded):
    """Computes a GEMM with an epilogue, and its gradients, in a form that torch.func can transform by vmap or grad.

    For this, the forward and the backward pass call operators of torch.library instead of launching a kernel directly.
    `Transformed.apply(call, parts, a, *b, *operands)` returns the results of the epilogue: `call` has the options,
    `parts` is the number of tensors in `b`, and `operands` are the epilogue's tensors.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(call: Call, parts: int, a: torch.Tensor, *others: torch.Tensor) -> tuple[torch.Tensor, ...]:  # type: ignore[override]
        b, operands = others[:parts], others[parts:]
        return tuple(by_operator(a, b, call.text, operands, call.scalars, call.out_dtype, call.how))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
        call, parts, *tensors = inputs
        save(ctx, call, parts, tensors, output, [True] * len(tensors))


# --- what the backward pass reads ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Needed:
    """Tells which values the backward pass of an epilogue reads, so that the forward pass saves them and no others.

    names     names of the operands to save, e.g. {"bias"}. "acc" among them means that the accumulator is read, so that
              the backward pass has to compute the GEMM again
    results   indices of the forward pass's results to save; 0 is D
    """

    names: frozenset[str]
    results: frozenset[int]


@lru_cache(maxsize=4096)
def needed(text: str, wanted: frozenset[str]) -> Needed:
    """Return which values the derivatives of an epilogue read, so that only these are saved for the backward pass.

    For D = tanh(acc + bias) this is D alone, because the derivative is 1 - D**2.

    text     the epilogue as text, e.g. "lambda acc, bias: acc + bias"
    wanted   names of the operands to differentiate by; "acc" for the accumulator

    >>> needed("lambda acc, bias: gelu(acc + bias)", frozenset({"acc", "bias"}))
    Needed(names=frozenset({...}), results=frozenset())
    >>> needed("lambda acc, bias: tanh(acc + bias)", frozenset({"acc", "bias"}))
    Needed(names=frozenset(), results=frozenset({0}))
    """
    results = formula(text).results
    stored = {result: Tensor(f"result {i}") for i, result in reversed(list(enumerate(results)))}
    upstream = [Tensor(f"g {i}") for i in range(len(results))]
    derivatives = pullback(results, upstream, lambda node: _substitute(node, stored), wanted, ExpressionRules())
    names = operands_read(derivatives)
    indices = [int(name.split()[1]) for name in names if name.startswith("result ")]
    return Needed(frozenset(name for name in names if " " not in name), frozenset(indices))


def _substitute(node: Expression, stored: Mapping[Expression, Tensor]) -> Expression:
    """Return an expression after replacing subexpressions that the forward pass has stored by operands.

    For example, if D = tanh(acc) is stored, 1 - tanh(acc)**2 becomes 1 - d**2.

    node     the expression
    stored   stored subexpression -> the operand that stands for it
    """
    if node in stored:
        return stored[node]
    return node.with_children(*[_substitute(child, stored) for child in node.children])


@constant
def with_saved(text: str, operands: int) -> str:
    """Return an epilogue with one more result: the value that its derivatives need, so that the forward pass stores it.

    Then the backward pass does not compute the GEMM again. The epilogue is returned unchanged if its derivatives do not
    need the accumulator.

    text       the epilogue as text, e.g. "lambda acc, bias: acc + bias"
    operands   number of its operands that are tensors, and so may have gradients

    >>> with_saved("lambda acc, bias: gelu(acc + bias)", 1)
    'lambda acc, bias: (gelu(acc + bias), acc + bias)'
    >>> with_saved("lambda acc, bias: relu(acc + bias)", 1)
    'lambda acc, bias: relu(acc + bias)'
    """
    read = formula(text)
    wanted = frozenset([ACC, *read.names[:operands]])
    if ACC not in needed(text, wanted).names:
        return text
    inner = [
        node
        for node in nodes_of(read.results)
        if node.has_accumulator and node not in read.results and not isinstance(node, Compare)
    ]
    for node in sorted(inner, key=lambda node: -len(list(node.nodes()))):
        longer = text_of([*read.results, node], read.names)
        if ACC not in needed(longer, wanted).names:
            return longer
    return text


def _wanted(call: Call, needs: Sequence[bool], parts: int) -> frozenset[str]:
    """Return the names of the epilogue's operands whose gradients are wanted, and "acc" if those of a or b are wanted.

    call    epilogue, its numbers, types of the results and other options of `gemm`
    needs   for a, each tensor of b and each operand: True if its gradient is wanted
    parts   number of tensors of b: 1, or 2 for gate and up side by side
    """
    names = formula(call.text).names[: len(needs) - 1 - parts]
    wanted = [name for name, need in zip(names, needs[1 + parts :], strict=True) if need]
    return frozenset([ACC, *wanted] if any(needs[: 1 + parts]) else wanted)


@dataclass(frozen=True)
class Extents:
    """Describes a tensor of the forward pass without keeping it, so that the backward pass can shape its gradient.

    shape        shape of the tensor
    dtype        its torch dtype
    by_columns   True if its matrices are column-major
    """

    shape: torch.Size
    dtype: torch.dtype
    by_columns: bool

    @staticmethod
    def of(tensor: torch.Tensor) -> Extents:
        by_columns = tensor.dim() > 1 and tensor.stride(-2) == 1 and tensor.stride(-1) != 1
        return Extents(tensor.shape, tensor.dtype, by_columns)


def save(ctx: Any, call: Call, parts: int, tensors: Tensors, results: Tensors, needs: Sequence[bool]) -> None:
    """Save in `ctx` what the backward pass of a GEMM with an epilogue reads.

    ctx       context of the autograd function
    call      epilogue, its numbers, types of the results and other options of `gemm`
    parts     number of tensors of b: 1, or 2 for gate and up side by side
    tensors   a, the tensors of b, and the operands
    results   results of the forward pass
    needs     for each of `tensors`, True if it needs a gradient
    """
    ctx.call, ctx.parts, ctx.needs = call, parts, tuple(needs)
    ctx.extents = tuple([Extents.of(x) for x in tensors])
    ctx.save_for_backward(*_saved(call, tensors, results, needs, parts))
    ctx.set_materialize_grads(False)


def _saved(call: Call, tensors: Tensors, results: Tensors, needs: Sequence[bool], parts: int) -> Gradients:
    """Return which arguments and results of a GEMM call its backward pass reads, in a list with None for all others.

    call      epilogue, its numbers, types of the results and other options of `gemm`
    tensors   a, the tensors of b, and the operands
    results   results of the forward pass
    needs     for each of `tensors`, True if it needs a gradient
    parts     number of tensors of b
    """
    if call.text == PLAIN:
        b = tensors[1 : 1 + parts] if needs[0] else [None] * parts
        return [tensors[0] if any(needs[1:]) else None, *b, None]
    names = formula(call.text).names
    reads = needed(call.text, _wanted(call, needs, parts))
    again = ACC in reads.names
    a, b, operands = tensors[0], tensors[1 : 1 + parts], tensors[1 + parts :]
    return [
        a if again or any(needs[1 : 1 + parts]) else None,
        *[part if again or needs[0] else None for part in b],
        *[x if name in reads.names else None for x, name in zip(operands, names, strict=False)],
        *[x if i in reads.results else None for i, x in enumerate(results)],
    ]


# --- gradients ----------------------------------------------------------------------------------------------------


def backward(ctx: Any, upstream: Gradients, needs: Sequence[bool]) -> list[torch.Tensor | None]:
    """Return the gradients of a GEMM with an epilogue for a, the tensors of b and the operands, in this order.

    A gradient that is not wanted is None.

    ctx        context that `save` has filled in the forward pass
    upstream   gradients of the results; None if a result has no gradient
    needs      for a, each tensor of b and each operand: True if its gradient is wanted. It must have been wanted in the
               forward pass too, so that what it needs was saved
    """
    call, parts, extents = ctx.call, ctx.parts, ctx.extents
    saved = ctx.saved_tensors  # a checkpoint unpacks them only once
    names, a, b = formula(call.text).names, saved[0], saved[1 : 1 + parts]

    def times(x: Any, y: Any, dtype: torch.dtype, by_rows: bool = False) -> torch.Tensor:
        return product(x, (y,), out_dtype=dtype, how=_how_of_gradient(call.how, by_rows))[0]

    if call.text == PLAIN:
        derivatives = {} if upstream[0] is None else {ACC: upstream[0]}
    else:
        derivatives = _derivatives(ctx, saved, upstream, _wanted(call, needs, parts), times)
    gradients: list[torch.Tensor | None] = [None] * len(extents)
    g = derivatives.get(ACC)
    if g is not None:
        dtype = extents[0].dtype if extents[0].dtype.itemsize > 1 else torch.bfloat16
        g = with_memory(g.to(dtype))
        if needs[0]:
            gradients[0] = gradient_by_a(g, [part.to(dtype) for part in b], extents[0], times, call.how.batch_invariant)
        if any(needs[1 : 1 + parts]):
            gradients[1 : 1 + parts] = gradients_by_b(a.to(dtype), g, extents[1 : 1 + parts], times)
    for i, (name, extent) in enumerate(zip(names, extents[1 + parts :], strict=False), 1 + parts):
        if needs[i] and name in derivatives:
            gradients[i] = derivatives[name].sum_to_size(extent.shape)
    return [
        x.to(extent.dtype) if x is not None and need else None
        for x, extent, need in zip(gradients, extents, needs, strict=True)
    ]


def _derivatives(
    ctx: Any, saved: Gradients, upstream: Gradients, wanted: frozenset[str], times: Times
) -> dict[str, Any]:
    """Return the gradients of an epilogue's operands and of the accumulator, as a dict from name to tensor.

    They are computed from the gradients of the GEMM's results. The accumulator's name is "acc".

    ctx        context that `save` has filled in the forward pass
    saved      tensors and results that `save` has saved; None for a tensor that is not read
    upstream   gradients of the results; None if a result has no gradient
    wanted     names of the operands to differentiate by; "acc" for the accumulator
    times      function that multiplies two matrices: times(x, y, dtype, by_rows) returns x @ y with elements of type
               `dtype`; by_rows is True if its rows are those of a. It is called if the accumulator has to be computed
               again
    """
    call, parts, extents = ctx.call, ctx.parts, ctx.extents
    read = formula(call.text)
    a: Any = saved[0]
    b: Any = saved[1 : 1 + parts]
    shape = (
        *extents[0].shape[:-1],
        read.columns_of_d(sum(part.shape[-1] for part in extents[1 : 1 + parts])),
    )
    end = len(saved) - len(read.results)
    pairs = reversed(list(zip(read.results, saved[end:], strict=True)))
    known = {expression: x for expression, x in pairs if x is not None}
    operands = dict(zip(read.names, [*saved[1 + parts : end], *call.scalars], strict=True))
    values = Values(lambda: times(a, joined(b), accumulator_dtype(a.dtype), True), operands, shape, known)
    return pullback(read.results, upstream, values, wanted, TensorRules(shape))


@lru_cache(maxsize=256)
def _how_of_gradient(how: How, by_rows: bool) -> How:
    """Return the options of `gemm` for a GEMM that computes a gradient, derived from those of the forward pass.

    The plan is left out, because it does not fit the factors of the gradient.

    how       options of the forward pass
    by_rows   True if each row of the gradient belongs to a row of a (a token). Only then the options `varying_rows` and
              `batch_invariant`, which concern rows, are kept
    """
    return replace(
        how, plan=None, varying_rows=how.varying_rows and by_rows, batch_invariant=how.batch_invariant and by_rows
    )


def gradient_by_a(
    g: torch.Tensor, parts: Tensors, a: Extents, times: Times, batch_invariant: bool = False
) -> torch.Tensor:
    """Return the gradient of A in A @ B, which is g @ B^T, in the memory order of A.

    g                 gradient of A @ B, M x N
    parts             matrices that stand side by side as the columns of B: one, or gate and up
    a                 shape, type and memory order of A
    times             function that multiplies two matrices: times(x, y, dtype, by_rows) returns x @ y with elements of
                      type `dtype`; by_rows is True if the rows of the result are the rows of A
    batch_invariant   True if rows of the result must have the same bits in every batch. Then the result is row-major
                      instead of in the memory order of A
    """
    if a.by_columns and not batch_invariant:
        return times(joined(parts), g.mT, g.dtype).mT
    if len(parts) > 1 and not torch.is_grad_enabled() and route_of(g, *parts) is Route.OPERATOR:
        return torch.ops.cutegemm.mm_parts(g, list(parts), g.dtype, batch_invariant)
    return times(g, joined(parts).mT, g.dtype, True)


def gradients_by_b(a: torch.Tensor, g: torch.Tensor, parts: Sequence[Extents], times: Times) -> Tensors:
    """Return the gradients of B's tensors in A @ B: A^T @ g, split into the columns of each tensor.

    They have the memory order of B, which saves a later copy.

    a       A, M x K
    g       gradient of A @ B, M x N
    parts   shape, type and memory order of each tensor that is a range of B's columns
    times   function that multiplies two matrices: times(x, y, dtype) returns x @ y with elements of type `dtype`
    """
    whole = times(g.mT, a, g.dtype).mT if parts[0].by_columns else times(a.mT, g, g.dtype)
    return torch.split(whole, [part.shape[-1] for part in parts], -1) if len(parts) > 1 else [whole]


def with_memory(g: torch.Tensor) -> torch.Tensor:
    """Return a gradient as a tensor whose elements all have memory of their own, so that a kernel can load it.

    Autograd may pass a single number that is expanded to a matrix (strides 0), for example as the gradient of a sum.
    Such a tensor is copied; any other is returned unchanged.
    """
    return g if g.stride(-1) == 1 or g.stride(-2) == 1 else g.contiguous()
