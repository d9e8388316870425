"""Functions for tensor parallelism: a GEMM whose rows come from all ranks, or whose result is a sum over the ranks.

The communication overlaps with the GEMM, or follows it, as a schedule says (`cutegemm.ranks`). All ranks of a group
must make the same calls in the same order, with tensors of the same shapes and types. The functions work under autograd
and torch.compile.

On GPUs that can access each other's memory, ranks write to each other's buffers, which torch's symmetric memory
provides. On a CPU, between hosts, and without such memory, collectives of torch.distributed run before or after
the GEMM.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from cutegemm.plan.epilogue import Reduction
from cutegemm.plan.epilogue.quantized import BlockScale, Quantized
from cutegemm.ranks import FORMS
from cutegemm.run.calls import ENTERED, is_batch_invariant
from cutegemm.run.checks import wrong_numbers
from cutegemm.torch import checks
from cutegemm.torch.activations import ACTIVATIONS, GATED, activated, gated, wrong_activation
from cutegemm.torch.dispatch import PLAIN_TENSORS, as_autocast, is_direct, reshaped, rows_of
from cutegemm.torch.distributed import library
from cutegemm.torch.distributed.calls import Ranks, all_reduced, gathered, ranks_of, reduce_scattered
from cutegemm.torch.distributed.groups import group_of, traced_name_of
from cutegemm.torch.epilogue import PLAIN, constant, formula, text_of_function

_MOST_WARM = 4096  # signatures of warm calls; one more empties the dictionary
# Signature of a call that was checked -> its group. Later calls of the signature go straight to their kernels.
_warm: dict[Any, Ranks] = {}
_WIDE = (Reduction, BlockScale, Quantized)  # results that depend on several rows or on blocks


def all_gather_mm(
    a: torch.Tensor,
    b: torch.Tensor | Sequence[torch.Tensor],
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    *,
    group: Any = None,
    out_dtype: torch.dtype | None = None,
    form: str | None = None,
    epilogue: Callable[..., Any] | None = None,
    **operands: Any,
) -> Any:
    """Return act(A @ b + bias), where A has the rows of all ranks, and each rank has some columns of B.

    It is the first GEMM of a tensor-parallel MLP or attention with sequence parallelism: each of R ranks has M/R of the
    M tokens, and N/R of the columns of the weights. The gradient by `a` is that of a `mm_reduce_scatter`.

    a            M/R x K, the rows of this rank; or (M/R, ..., K)
    b            K x N, the columns of this rank. Or a sequence of matrices, such as the weights of q, k and v: the rows
                 are gathered once, and each matrix gets a result of its own, without an epilogue
    bias         (N,), the part of this rank; None for no bias
    activation   name such as "gelu"; or "swiglu", if the left half of the columns of b are gate, the right half up;
                 None for none
    group        ProcessGroup, its name, a DeviceMesh of one dimension, or None for all ranks
    out_dtype    torch dtype of the result; None for the default of `gemm`
    form         "whole" multiplies after all rows have arrived. "by_shard" multiplies the rows of each rank by a launch
                 of its own, while others arrive. None: chosen
    epilogue     function of the accumulator and of `operands`, as that of `cutegemm.gemm`, in place of bias and
                 activation. Operands have the rows of all ranks and the columns of this one. No result may be a
                 reduction, or quantized
    returns      M x N, or (M, ..., N); a list if b is a sequence, a tuple if the epilogue has several results
    raises       UnsupportedError with every rule that is violated

    >>> hidden = all_gather_mm(x, up.t(), activation="gelu", group=mesh["tp"])  # doctest: +SKIP
    """
    return _columns("all_gather_mm", a, b, bias, activation, group, out_dtype, form, epilogue, operands, True)


def replicated_mm(
    a: torch.Tensor,
    b: torch.Tensor | Sequence[torch.Tensor],
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    *,
    group: Any = None,
    out_dtype: torch.dtype | None = None,
    epilogue: Callable[..., Any] | None = None,
    **operands: Any,
) -> Any:
    """Return act(a @ b + bias), where all ranks have the same `a`, and each rank has some columns of B.

    It is the first GEMM of a tensor-parallel MLP without sequence parallelism. It communicates in the backward pass
    only: the gradient by `a`, the same on all ranks, is that of a `mm_all_reduce`.

    a         M x K, or (..., K), the same on all ranks
    others    as for `all_gather_mm`

    >>> hidden = replicated_mm(x, up.t(), activation="gelu", group=mesh["tp"])  # doctest: +SKIP
    """
    return _columns("replicated_mm", a, b, bias, activation, group, out_dtype, None, epilogue, operands, False)


def mm_reduce_scatter(
    a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None = None, *, group: Any = None, form: str | None = None
) -> torch.Tensor:
    """Return this rank's rows of the sum over the ranks of a @ b, plus the bias.

    It is the last GEMM of a tensor-parallel MLP or attention with sequence parallelism: each of R ranks has K/R of the
    columns of A and of the rows of the weights, and gets M/R of the rows of the result. The gradient by `a` is that of
    an `all_gather_mm`.

    The result is the same in every call, bit by bit. Ranks send partial results in the type of the result, as NCCL
    does. With u half a unit in the last place of 1, the error of an element is at most (R - 1) * u * (largest partial
    result) + u * |result|, plus that of the GEMMs. In the forms "whole" and "by_copy" the first factor is R.

    a         M x K, the columns of A of this rank; or (M, ..., K). R must divide M
    b         K x N, the rows of B of this rank
    bias      (N,), the same on all ranks, which is added once; None for no bias
    group     ProcessGroup, its name, a DeviceMesh of one dimension, or None for all ranks
    form      "whole" computes all rows by one launch, then reduces. "by_shard" computes the rows of each rank by a
              launch of its own, which stores to the memory of that rank or is followed by a copy. "by_copy" copies
              the rows of the others while it computes its own, then adds. None: chosen
    returns   M/R x N, or (M/R, ..., N)
    raises    UnsupportedError with every rule that is violated

    >>> y = mm_reduce_scatter(hidden, down.t(), group=mesh["tp"])  # doctest: +SKIP
    """
    return _sum("mm_reduce_scatter", a, b, bias, group, form, True)


def mm_all_reduce(
    a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None = None, *, group: Any = None, form: str | None = None
) -> torch.Tensor:
    """Return the sum over the ranks of a @ b, plus the bias, on every rank.

    It is the last GEMM of a tensor-parallel MLP or attention without sequence parallelism. All ranks get the same bits,
    in every call. The error is that of `mm_reduce_scatter`. In the backward pass, the gradient of the result has to be
    the same on all ranks.

    a         M x K, the columns of A of this rank; or (..., K)
    returns   M x N, or (..., N)
    others    as for `mm_reduce_scatter`

    >>> y = mm_all_reduce(hidden, down.t(), group=mesh["tp"])  # doctest: +SKIP
    """
    return _sum("mm_all_reduce", a, b, bias, group, form, False)


def _columns(
    called: str,
    a: torch.Tensor,
    b: torch.Tensor | Sequence[torch.Tensor],
    bias: torch.Tensor | None,
    activation: str | None,
    group: Any,
    out_dtype: torch.dtype | None,
    form: str | None,
    epilogue: Callable[..., Any] | None,
    operands: Mapping[str, Any],
    gathers: bool,
) -> Any:
    """Check the arguments of a function whose result has columns of this rank, and compute it.

    called    name of the function
    gathers   True if `a` has the rows of this rank
    others    arguments of the function
    """
    key = None
    if epilogue is None and not operands and gathers and b.__class__ in PLAIN_TENSORS and is_direct(a, b, bias):
        key = _signature(called, a, b, bias, group, form, activation, out_dtype)
        warm = _warm.get(key)
        if warm is not None:
            text, read, _ = _epilogue(bias, activation, None, operands)
            (d,) = gathered(rows_of(a), (b,), text, read, (), out_dtype, warm, form)
            return d if a.dim() == 2 else reshaped(d, (*_scaled(a.shape, warm.group.size()), d.shape[-1]))
    weights: list[Any] = list(b) if isinstance(b, (list, tuple)) else [b]
    names = ["b"] if not isinstance(b, (list, tuple)) else [f"b[{i}]" for i in range(len(weights))]
    tensors = {"a": a, **dict(zip(names, weights, strict=True)), "bias": bias}
    rules = checks.wrong_tensors(tensors, ("bias",)) or _wrong_rank(a)
    if not rules:
        a, *weights = as_autocast(a, *weights)
        for name, part in zip(names, weights, strict=True):
            rules += checks.wrong_product(("a", name), rows_of(a), part, 2, out_dtype)
    rules += _wrong_epilogue(len(weights), bias, activation, epilogue, operands)
    rules += _wrong_form(form) + _wrong_mode()
    checks.refuse(called, tensors, rules)
    name, size = _resolved(group)
    ranks = size if gathers else 1
    text, read, numbers = _epilogue(bias, activation, epilogue, operands)
    d = (rows_of(a).shape[0] * ranks, weights[0].shape[1])
    if epilogue is None:
        rules = checks.wrong_bias("bias", bias, d[1]) + checks.wrong_operand_dtypes(a, bias=bias)
        if activation is not None and text != PLAIN and _is_odd_gated(activation, d[1]):
            rules.append(f"b has {d[1]} columns, an odd number. Gate and up of {activation!r} are a half each.")
    else:
        known = {key: x for key, x in operands.items() if isinstance(x, torch.Tensor)}
        rules = checks.wrong_operand_dtypes(a, **known)
        rules += [rule for key, x in known.items() for rule in checks.wrong_operand(key, x, d)]
        if _wide_results(text):
            rules.append(f"the results {_wide_results(text)} are reduced or quantized. Compute them after this call.")
    checks.refuse(called, tensors, rules)
    results = library.gather_product(rows_of(a), weights, text, read, numbers, out_dtype, gathers, name, form)
    if key is not None:
        _keep(key, name, a)
    if text != PLAIN:
        results = results[: int(_count(text))]
    if a.dim() != 2:
        results = [reshaped(x, (*_scaled(a.shape, ranks), x.shape[-1])) for x in results]
    if isinstance(b, (list, tuple)):
        return list(results)
    return results[0] if len(results) == 1 else tuple(results)


def _sum(
    called: str, a: torch.Tensor, b: torch.Tensor, bias: Any, group: Any, form: str | None, scatters: bool
) -> torch.Tensor:
    """Check the arguments of a function whose result is a sum over the ranks, and compute it.

    called     name of the function
    scatters   True if the result has the rows of this rank
    others     arguments of the function
    """
    key = None
    if is_direct(a, b, bias):
        key = _signature(called, a, b, bias, group, form)
        warm = _warm.get(key)
        if warm is not None:
            result = (reduce_scattered if scatters else all_reduced)(rows_of(a), b, bias, warm, form)
            return result if a.dim() == 2 else _with_leading(a, result, warm.group.size() if scatters else 1)
    tensors = {"a": a, "b": b, "bias": bias}
    rules = checks.wrong_tensors(tensors, ("bias",)) or _wrong_rank(a)
    if not rules:
        a, b = as_autocast(a, b)
        rules += checks.wrong_product(("a", "b"), rows_of(a), b, 2, None)
    if not rules:
        rules += checks.wrong_bias("bias", bias, b.shape[1]) + checks.wrong_operand_dtypes(a, bias=bias)
    rules += _wrong_form(form) + _wrong_mode()
    checks.refuse(called, tensors, rules)
    name, size = _resolved(group)
    if scatters and a.shape[0] % size:
        checks.refuse(
            called, tensors, [f"a has {a.shape[0]} rows, and {size} ranks share them. Pad a to a multiple of {size}."]
        )
    result = library.reduced_product(rows_of(a), b, bias, scatters, name, form)
    if key is not None:
        _keep(key, name, a)
    return result if a.dim() == 2 else _with_leading(a, result, size if scatters else 1)


def _with_leading(a: torch.Tensor, d: torch.Tensor, ranks: int) -> torch.Tensor:
    """Return the rows of a sum with the leading dimensions of `a`, the first one divided among ranks."""
    return reshaped(d, (a.shape[0] // ranks, *a.shape[1:-1], d.shape[1]))


def _signature(
    called: str, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, group: Any, *options: Any
) -> Any:
    """Return what the checks of a call depend on, as a key of `_warm`; None if the call must be checked each time.

    options   other arguments of the function
    """
    if ENTERED:
        return None
    own = None if bias is None else (bias.dtype, bias.shape, bias.stride(), bias.get_device())
    return (
        called, group_of(group), a.dtype, a.shape, a.stride(), a.get_device(), b.dtype, b.shape, b.stride(),
        b.get_device(), own, *options,
    )  # fmt: skip


def _keep(key: Any, name: str, a: torch.Tensor) -> None:
    """Remember that a call of a signature was checked.

    name   name of its group
    """
    if len(_warm) >= _MOST_WARM:
        _warm.clear()
    _warm[key] = ranks_of(name, a.device)


def _resolved(group: Any) -> tuple[str, int]:
    """Return the name and the number of ranks of a group."""
    if torch.compiler.is_compiling():
        name = traced_name_of(group)
        return name, int(_size_text(name))
    found = group_of(group)
    return str(found.group_name), found.size()


@constant
def _size_text(name: str) -> str:
    """Return the number of ranks of a group, as text."""
    return str(group_of(name).size())


def _scaled(shape: Sequence[int], ranks: int) -> tuple[int, ...]:
    """Return the leading extents of a result with the rows of all ranks."""
    return (shape[0] * ranks, *shape[1:-1])


def _epilogue(
    bias: torch.Tensor | None, activation: str | None, epilogue: Callable[..., Any] | None, operands: Mapping[str, Any]
) -> tuple[str, tuple[torch.Tensor, ...], tuple[float, ...]]:
    """Return an epilogue as (text, tensors that it reads, numbers that it reads)."""
    if epilogue is not None:
        named = {key: x for key, x in operands.items() if isinstance(x, torch.Tensor)}
        numbers = {key: float(x) for key, x in operands.items() if key not in named}
        text = text_of_function(epilogue, tuple(named), tuple(numbers))
        return text, tuple(named.values()), tuple(numbers.values())
    if bias is None and activation is None:
        return PLAIN, (), ()
    names, read = ((), ()) if bias is None else (("bias",), (bias,))
    if activation in GATED:
        return gated(activation, names, False, False), read, ()
    return activated(activation, names), read, ()


def _is_odd_gated(activation: str, columns: int) -> bool:
    """Return True if gate and up of a gated activation cannot be halves of the columns."""
    return activation in GATED and columns % 2 != 0


@constant
def _count(text: str) -> str:
    """Return the number of results of an epilogue, as text.

    >>> _count("lambda acc: (acc, relu(acc))")
    '2'
    """
    return str(len(formula(text).results))


@constant
def _wide_results(text: str) -> str:
    """Return the results of an epilogue that are reductions or quantized, as text; "" without any.

    >>> _wide_results("lambda acc: (acc, row_sum(acc))"), _wide_results("lambda acc: acc")
    ('row_sum(acc)', '')
    """
    return ", ".join([str(each) for each in formula(text).results if isinstance(each, _WIDE)])


# --- rules ----------------------------------------------------------------------------------------------------------


def _wrong_rank(a: torch.Tensor) -> list[str]:
    """Return an error message, in a list, if `a` has fewer than two dimensions."""
    return [] if a.dim() > 1 else [f"a has shape {tuple(a.shape)}. Pass rows of K elements: (M, K) or (M, ..., K)."]


def _wrong_form(form: str | None) -> list[str]:
    """Return an error message, in a list, for an unknown form of a schedule."""
    if form is None or form in FORMS:
        return []
    return [f"form = {form!r} is unknown. Use {', '.join(map(repr, FORMS))} or None."]


def _wrong_mode() -> list[str]:
    """Return an error message, in a list, if a context of `cutegemm.batch_invariant` is active."""
    if not is_batch_invariant():
        return []
    return [
        "it is not batch invariant, because the owner of a row depends on the number of rows. Call it outside of "
        "cutegemm.batch_invariant()."
    ]


def _wrong_epilogue(
    parts: int,
    bias: Any,
    activation: str | None,
    epilogue: Callable[..., Any] | None,
    operands: Mapping[str, Any],
) -> list[str]:
    """Return error messages for an epilogue that does not go with the other arguments.

    parts   number of weights
    """
    rules = wrong_activation(activation, {**ACTIVATIONS, **GATED})
    rules += wrong_numbers({key: x for key, x in operands.items() if not isinstance(x, torch.Tensor)})
    named = [name for name, x in (("bias", bias), ("activation", activation)) if x is not None]
    if epilogue is not None and named:
        rules.append(f"epilogue and {' and '.join(named)} are passed. Pass one, or write both into the epilogue.")
    if epilogue is None and operands:
        rules.append(
            f"{', '.join(operands)} belong to an epilogue, and none is passed. Pass epilogue, or leave them out."
        )
    if parts == 0:
        rules.append("b is an empty sequence. Pass a matrix, or a sequence of matrices.")
    if parts > 1 and (epilogue is not None or named):
        rules.append(
            f"b has {parts} matrices, which have no epilogue. Pass one matrix, or no epilogue, bias and activation."
        )
    return rules
