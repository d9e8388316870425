"""Operators of torch.library for GEMMs of several ranks: their kernels, fakes, gradients and flop counts.

| operator                     | returns                                                                            |
|------------------------------|------------------------------------------------------------------------------------|
| `cutegemm::all_gather_mm`    | results of an epilogue of the rows of all ranks times this rank's columns of B     |
| `cutegemm::mm_reduce_scatter`| this rank's rows of the sum of a @ b over the ranks                                |
| `cutegemm::mm_all_reduce`    | all rows of that sum                                                               |

Each is the gradient of another. Let g be the gradient of the result. The gradient by `a` of an all-gather is the
reduce-scatter of g B^T, that of a reduce-scatter is the all-gather of g, times B^T, and that of an all-reduce is g B^T.
With `gathers` False, all ranks have the same `a`, and the gradient by it is the all-reduce of g B^T. A group is an
argument by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
import torch.distributed._functional_collectives as collectives
from torch.distributed import distributed_c10d as c10d

from cutegemm.torch import checks
from cutegemm.torch.autograd import Extents, gradients_by_b, needed, product, with_memory, with_saved
from cutegemm.torch.derivatives import ACC, TensorRules, pullback
from cutegemm.torch.dispatch import TRANSFORMS, Route, is_transformed, route_of
from cutegemm.torch.distributed.calls import all_reduced, gathered, ranks_of, reduce_scattered
from cutegemm.torch.distributed.work import new_results, new_sum
from cutegemm.torch.epilogue import PLAIN, OutDtype, formula, types_read, types_text
from cutegemm.torch.launch import compute, joined
from cutegemm.torch.library import define
from cutegemm.torch.reference import Values, accumulator_dtype

SCHEMAS = {
    "cutegemm::all_gather_mm": "(Tensor a, Tensor[] b, str epilogue, Tensor[] operands, float[] scalars, "
    "str? out_dtype, bool gathers, str group, str? form) -> Tensor[]",
    "cutegemm::mm_reduce_scatter": "(Tensor a, Tensor b, Tensor? bias, str group, str? form) -> Tensor",
    "cutegemm::mm_all_reduce": "(Tensor a, Tensor b, Tensor? bias, str group, str? form) -> Tensor",
}
_AFTER_GATHER = 6  # arguments of all_gather_mm from `scalars` on

Tensors = Sequence[torch.Tensor]


# --- calls --------------------------------------------------------------------------------------------------------


def gather_product(
    a: torch.Tensor,
    b: Tensors,
    text: str,
    operands: Tensors,
    scalars: Sequence[float],
    out_dtype: OutDtype,
    gathers: bool,
    name: str,
    form: str | None = None,
) -> Sequence[torch.Tensor]:
    """Return the results of an epilogue of the rows of all ranks times `b`; torch records gradients if they are wanted.

    A value that the backward pass reads may come after the results.

    gathers   True if `a` has the rows of this rank; False if all ranks have the same `a`
    others    as for `calls.gathered`
    """
    route = route_of(a, *b, *operands)
    if route is Route.DIRECT:
        return _gather(a, b, text, operands, scalars, out_dtype, gathers, name, form)
    _refuse_transformed(route, "all_gather_mm" if gathers else "replicated_mm", a, *b, *operands)
    if torch.is_grad_enabled() and text != PLAIN and any(x.requires_grad for x in (a, *b, *operands)):
        text = with_saved(text, len(operands))
    types = None if out_dtype is None else types_text(out_dtype)
    results: Sequence[torch.Tensor] = torch.ops.cutegemm.all_gather_mm(
        a, list(b), text, list(operands), list(scalars), types, gathers, name, form
    )
    return results


def reduced_product(
    a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, scatters: bool, name: str, form: str | None = None
) -> torch.Tensor:
    """Return the sum of a @ b over the ranks, plus the bias; torch records gradients if they are wanted.

    scatters   True for the rows of this rank; False for all rows
    others     as for `calls.reduce_scattered`
    """
    tensors = [a, b] if bias is None else [a, b, bias]
    route = route_of(*tensors)
    if route is Route.DIRECT:
        return (reduce_scattered if scatters else all_reduced)(a, b, bias, ranks_of(name, a.device), form)
    _refuse_transformed(route, "mm_reduce_scatter" if scatters else "mm_all_reduce", *tensors)
    operator = torch.ops.cutegemm.mm_reduce_scatter if scatters else torch.ops.cutegemm.mm_all_reduce
    result: torch.Tensor = operator(a, b, bias, name, form)
    return result


def _refuse_transformed(route: Route, called: str, *tensors: torch.Tensor) -> None:
    """Raise UnsupportedError if a tensor is transformed: the ranks would have to communicate in another order.

    called   name of the function, for the message
    """
    if route in TRANSFORMS and is_transformed(*tensors):
        rule = (
            "torch.vmap, torch.func and forward-mode differentiation cannot transform what ranks exchange. Call it "
            "outside of them, and take gradients by torch.autograd."
        )
        checks.refuse(called, {"a": tensors[0], "b": tensors[1]}, [rule])


def _gather(
    a: torch.Tensor,
    b: Tensors,
    text: str,
    operands: Tensors,
    scalars: Sequence[float],
    out_dtype: OutDtype,
    gathers: bool,
    name: str,
    form: str | None,
) -> list[torch.Tensor]:
    if gathers:
        return gathered(a, b, text, operands, scalars, out_dtype, ranks_of(name, a.device), form)
    if text != PLAIN:
        return compute(a, b, text, operands, scalars, out_dtype)
    return [compute(a, (part,), PLAIN, out_dtype=out_dtype)[0] for part in b]


# --- kernels and fakes ----------------------------------------------------------------------------------------------


def _all_gather_mm(*args: Any) -> list[torch.Tensor]:
    a, b, text, operands, scalars, types, gathers, name, form = args
    return _gather(a, b, text, operands, scalars, types_read(types), gathers, name, form)


def _mm_reduce_scatter(a: torch.Tensor, b: torch.Tensor, bias: Any, name: str, form: Any) -> torch.Tensor:
    return reduce_scattered(a, b, bias, ranks_of(name, a.device), form)


def _mm_all_reduce(a: torch.Tensor, b: torch.Tensor, bias: Any, name: str, form: Any) -> torch.Tensor:
    return all_reduced(a, b, bias, ranks_of(name, a.device), form)


def _fake_all_gather_mm(*args: Any) -> list[torch.Tensor]:
    a, b, text, _, _, types, gathers, name, _ = args
    return new_results(a, _size_of(name) if gathers else 1, b, text, types_read(types))


def _fake_mm_reduce_scatter(a: Any, b: Any, bias: Any, name: str, form: Any) -> torch.Tensor:
    return new_sum(a, b, _size_of(name))


def _fake_mm_all_reduce(a: Any, b: Any, bias: Any, name: str, form: Any) -> torch.Tensor:
    return new_sum(a, b)


def _size_of(name: str) -> int:
    """Return the number of ranks of a group."""
    return int(c10d._get_group_size_by_name(name))


# --- gradients ------------------------------------------------------------------------------------------------------


def _times(x: Any, y: Any, dtype: torch.dtype, by_rows: bool = False) -> torch.Tensor:
    return product(x, (y,), out_dtype=dtype)[0]


def _rows_of_all(x: torch.Tensor, name: str) -> torch.Tensor:
    """Start to gather the rows of all ranks; the first use of the result waits for them."""
    gather = getattr(collectives, "all_gather_single", None) or collectives.all_gather_tensor  # before torch 2.13
    return gather(x.contiguous(), 0, name)


def _waited(x: torch.Tensor) -> torch.Tensor:
    """Return a plain tensor of what a collective has computed."""
    return collectives.wait_tensor(x)


def _save_gather(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
    a, b, text, operands, scalars, _, ctx.gathers, ctx.name, _ = inputs
    ctx.text, ctx.scalars, ctx.parts, ctx.count = text, tuple(scalars), len(b), len(operands)
    ctx.set_materialize_grads(False)
    names = formula(text).names[: len(operands)]
    wanted = [ACC] if a.requires_grad or any(x.requires_grad for x in b) else []
    ctx.wanted = frozenset([*wanted, *[name for name, x in zip(names, operands, strict=True) if x.requires_grad]])
    ctx.needs = [x.requires_grad for x in (a, *b, *operands)]
    reads = needed(text, ctx.wanted)
    kept = [x if name in reads.names else None for name, x in zip(names, operands, strict=True)]
    results = [x if text != PLAIN and i in reads.results else None for i, x in enumerate(output)]
    ctx.operand_shapes = [x.shape for x in operands]
    ctx.dtypes = [x.dtype for x in (a, *b, *operands)]
    ctx.save_for_backward(a, *b, *kept, *results)


def _backward_gather(ctx: Any, upstream: Sequence[torch.Tensor | None]) -> tuple[Any, ...]:
    a, *saved = ctx.saved_tensors
    b, operands, results = saved[: ctx.parts], saved[ctx.parts :][: ctx.count], saved[ctx.parts + ctx.count :]
    derivatives: dict[str, Any] = {}
    if ctx.text == PLAIN:
        gradients = list(upstream)
    else:
        read = formula(ctx.text)
        rows = a.shape[0] * (_size_of(ctx.name) if ctx.gathers else 1)
        shape = (rows, read.columns_of_d(b[0].shape[1]))
        named = dict(zip(read.names, [*operands, *ctx.scalars], strict=True))
        known = {node: x for node, x in reversed(list(zip(read.results, results, strict=True))) if x is not None}
        values = Values(lambda: _accumulator(ctx, a, b), named, shape, known)
        derivatives = pullback(read.results, upstream, values, ctx.wanted, TensorRules(shape))
        gradients = [derivatives.get(ACC)]
    by_a, by_b = _by_factors(ctx, a, b, gradients)
    names = formula(ctx.text).names[: ctx.count]
    by_operands = [
        derivatives[name].sum_to_size(extents).to(dtype) if need and name in derivatives else None
        for name, extents, dtype, need in zip(
            names, ctx.operand_shapes, ctx.dtypes[1 + ctx.parts :], ctx.needs[1 + ctx.parts :], strict=True
        )
    ]
    scalars: Any = None if ctx.scalars else []  # torch flattens lists: an empty one has no leaf
    return (by_a, by_b, None, by_operands, scalars, *[None] * (_AFTER_GATHER - 2))


def _accumulator(ctx: Any, a: torch.Tensor, b: Tensors) -> torch.Tensor:
    """Return the accumulator of the forward pass, computed again."""
    dtype = accumulator_dtype(a.dtype)
    return gather_product(a, b, PLAIN, (), (), dtype, ctx.gathers, ctx.name)[0]


def _by_factors(
    ctx: Any, a: torch.Tensor, b: Tensors, gradients: Sequence[torch.Tensor | None]
) -> tuple[torch.Tensor | None, list[torch.Tensor | None]]:
    """Return the gradients by `a` and by each of `b`.

    gradients   for each of `b`, the gradient of the accumulator; None without one
    """
    by_b: list[torch.Tensor | None] = [None] * len(b)
    present = [i for i, g in enumerate(gradients) if g is not None]
    if not present:
        return None, by_b
    dtype = a.dtype
    g = {i: with_memory(x.to(dtype)) for i in present if (x := gradients[i]) is not None}
    wanted = [i for i in present if ctx.needs[1 + i]]
    rows = _rows_of_all(a, ctx.name) if wanted and ctx.gathers else a
    by_a = None
    if ctx.needs[0]:
        whole = g[present[0]] if len(present) == 1 else torch.cat([g[i] for i in present], 1)
        weights = joined([b[i] for i in present]).mT
        by_a = reduced_product(whole, weights, None, ctx.gathers, ctx.name)
    if wanted and ctx.gathers:
        rows = _waited(rows)
    for i in wanted:
        by_b[i] = gradients_by_b(rows, g[i], [Extents.of(b[i])], _times)[0]
    return by_a, by_b


def _save_reduced(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    a, b, bias, ctx.name, _ = inputs
    ctx.set_materialize_grads(False)
    ctx.bias_dtype = None if bias is None or not bias.requires_grad else bias.dtype
    ctx.needs = a.requires_grad, b.requires_grad
    ctx.b_extents, ctx.dtype = Extents.of(b), a.dtype
    ctx.save_for_backward(a if b.requires_grad else None, b if a.requires_grad else None)


def _backward_scatter(ctx: Any, g: torch.Tensor | None) -> tuple[Any, ...]:
    return _backward_reduced(ctx, g, True)


def _backward_all_reduce(ctx: Any, g: torch.Tensor | None) -> tuple[Any, ...]:
    return _backward_reduced(ctx, g, False)


def _backward_reduced(ctx: Any, g: torch.Tensor | None, scatters: bool) -> tuple[Any, ...]:
    """Return the gradients of a reduction.

    g          gradient of the result; if it has all rows, it is the same on all ranks
    scatters   True if the result has the rows of this rank only
    """
    if g is None:
        return None, None, None, None, None
    a, b = ctx.saved_tensors
    by_a = by_b = by_bias = None
    g = with_memory(g.to(ctx.dtype))
    whole = _rows_of_all(g, ctx.name) if scatters and ctx.needs[1] else g
    if ctx.needs[0]:
        by_a = (
            gather_product(g, (b.mT,), PLAIN, (), (), g.dtype, scatters, ctx.name)[0]
            if scatters
            else _times(g, b.mT, g.dtype)
        )
    if ctx.bias_dtype is not None:
        by_bias = g.sum(0, dtype=accumulator_dtype(g.dtype))
        if scatters:
            by_bias = _waited(collectives.all_reduce(by_bias, "sum", ctx.name))
        by_bias = by_bias.to(ctx.bias_dtype)
    if ctx.needs[1]:
        by_b = gradients_by_b(a, _waited(whole) if scatters else whole, [ctx.b_extents], _times)[0]
    return by_a, by_b, by_bias, None, None


# --- floating-point operations ----------------------------------------------------------------------------------------


def _flops_gather(a: Sequence[int], b: Sequence[Sequence[int]], *args: Any, **_: Any) -> int:
    """Return 2 M N K of this rank: the rows of all ranks times its weights.

    a, b   shapes
    args   the other arguments: `gathers` and the name of the group are the last but two and the last but one
    """
    gathers, name = args[4], args[5]
    return 2 * prod(a) * (_size_of(name) if gathers else 1) * sum(part[1] for part in b)


def _flops_reduced(a: Sequence[int], b: Sequence[int], *_: Any, **__: Any) -> int:
    """Return 2 M N K of this rank.

    >>> _flops_reduced((8, 4), (4, 2))
    128
    """
    return 2 * prod(a) * b[1]


def _define() -> None:
    """Define the operators, and register their kernels, fakes, gradients and flop counts."""
    parts: dict[str, tuple[Callable[..., Any], ...]] = {
        "cutegemm::all_gather_mm": (_all_gather_mm, _fake_all_gather_mm, _flops_gather, _backward_gather, _save_gather),
        "cutegemm::mm_reduce_scatter": (
            _mm_reduce_scatter, _fake_mm_reduce_scatter, _flops_reduced, _backward_scatter, _save_reduced,
        ),
        "cutegemm::mm_all_reduce": (
            _mm_all_reduce, _fake_mm_all_reduce, _flops_reduced, _backward_all_reduce, _save_reduced,
        ),
    }  # fmt: skip
    for name, (kernel, fake, flops, gradients, saves) in parts.items():
        define(name, SCHEMAS[name], kernel, fake, flops)
        torch.library.register_autograd(name, gradients, setup_context=saves)


_define()
